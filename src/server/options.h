/*
 * options.h - the settings of forebayd: one table, three sources.
 *
 * Each setting has one name. On the command line it is --name=value or --name value; in the
 * environment FOREBAY_NAME, with underscores for hyphens; in the YAML file a key `name` of a flat
 * map. A flag goes before the environment, that before the file, that before the default. `--help`,
 * `--print-config` and the list in docs/operations.md come from, or are compared with, the same
 * table.
 */
#ifndef FB_SERVER_OPTIONS_H
#define FB_SERVER_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "node/node.h"

#define FB_SERVER_SETTINGS_MAX 48
#define FB_SERVER_TEXT_BYTES   1200 /* of one value */
#define FB_SERVER_WARN_BYTES   8192
#define FB_SERVER_FILE_BYTES   (64 * 1024)
#define FB_SERVER_ORIGIN_BYTES 1100 /* "line 3 of FILE" */

/* What the process is told to do beside being a node. */
enum fb_server_action {
    FB_SERVER_RUN,
    FB_SERVER_HELP,
    FB_SERVER_VERSION,
    FB_SERVER_PRINT_CONFIG
};

/* A value and where it comes from. */
struct fb_server_value {
    bool is_given;
    char text[FB_SERVER_TEXT_BYTES];
    char origin[FB_SERVER_ORIGIN_BYTES];
};

struct fb_server_settings {
    enum fb_server_action action;
    struct fb_server_value values[FB_SERVER_SETTINGS_MAX]; /* by place in the table */
    /* What they mean. */
    struct fb_node_config node;
    int ready_fd;                        /* -1: none */
    char bugs[FB_SERVER_TEXT_BYTES];     /* test builds */
    char warnings[FB_SERVER_WARN_BYTES]; /* what was passed over: lines; "" */
};

/*
 * Reads all sources. Returns 0, or -1 with one line in `why`: which setting, its value, where it
 * comes from, what is wrong, what would be right. `environment` is a list of "NAME=value" that ends
 * in NULL.
 */
int fb_server_options_read(struct fb_server_settings *settings, int argc, char *const *argv,
                           char *const *environment, char *why, size_t why_bytes);

/* Writes the help text, made from the table. */
void fb_server_options_help(FILE *out);

/* Writes all settings as a YAML file that would give the same, with where each came from. */
void fb_server_options_print(const struct fb_server_settings *settings, FILE *out);

/* Takes one pair of the file; other than 0, with one line in `why`, ends the reading. */
typedef int fb_server_yaml_fn(void *context, const char *key, const char *value, unsigned line,
                              char *why, size_t why_bytes);
/*
 * Reads a flat YAML map from `bytes`: calls `set` for each pair, with the line that it stands on.
 * Returns 0, or -1 with one line in `why`: not YAML, or not such a map, or what `set` said (it
 * writes `why` itself and returns other than 0).
 */
int fb_server_yaml_read(const uint8_t *bytes, size_t count, fb_server_yaml_fn *set, void *context,
                        char *why, size_t why_bytes);

#endif
