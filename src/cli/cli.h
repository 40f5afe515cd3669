/*
 * cli.h - what the commands of `forebay` share: options, exit codes, a handle, output.
 */
#ifndef FB_CLI_CLI_H
#define FB_CLI_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "forebay/forebay.h"

/* How a command ends. */
enum fb_cli_exit {
    FB_CLI_OK = 0,
    FB_CLI_FAILED = 1,      /* a key, or the command, ended in another result than was hoped for */
    FB_CLI_USAGE = 2,       /* the command line */
    FB_CLI_ABSENT = 3,      /* a key is not there */
    FB_CLI_UNREACHABLE = 4, /* no node answers */
    FB_CLI_BROKEN = 5       /* doctor or fsck found something wrong */
};

#define FB_CLI_ADDRESS_BYTES 512
/* Values that a put reads into memory before it sends them. */
#define FB_CLI_BATCH_BYTES ((uint64_t)256 << 20)

struct fb_cli_command;

/* The command line. */
struct fb_cli_args {
    const struct fb_cli_command *command;
    int word_count; /* what is not an option */
    char **words;
    char address[FB_CLI_ADDRESS_BYTES]; /* "": the library's default */
    struct fb_namespace_fields ns;
    enum fb_shm_use use_shm;
    uint32_t timeout_ms; /* 0: the default of each call */
    bool json, quiet, hex, help, version;
    /* put */
    uint32_t put_flags;
    uint8_t persist_mode;
    uint8_t pin_class;
    uint16_t depth;
    const char *group;
    /* get */
    uint64_t range_off, range_bytes;
    /* fsck */
    bool data;
    /* doctor */
    bool dram_only;
};

struct fb_cli_command {
    const char *name;
    uint32_t bit;
    const char *words; /* what it takes, for the help */
    int words_min, words_max;
    const char *summary;
    const char *details;
    int (*run)(const struct fb_cli_args *args);
};

/* ---- options.c ---- */

/* Reads the command line; on a fault prints one line and returns false. */
bool fb_cli_read(int argc, char **argv, struct fb_cli_args *args);

/* Prints the help of a command, or of all if it is NULL. */
void fb_cli_help(FILE *out, const struct fb_cli_command *command);

/* All commands, ended by one without a name. */
extern const struct fb_cli_command fb_cli_commands[];

/* ---- output.c ---- */

/* Prints one line "forebay: ..." to stderr. */
void fb_cli_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Opens a handle as the options say; prints a line if that fails, and sets *code to the exit code.
 */
struct fb_client *fb_cli_open(const struct fb_cli_args *args, bool with_namespace, int *code);

/* The exit code for a result of a key or a call. */
int fb_cli_code(int result);

/* The worse of two exit codes. */
int fb_cli_worse(int one, int other);

/* Prints the result of a key that did not end well. */
void fb_cli_key_error(const struct fb_cli_args *args, const void *key, size_t key_bytes, int result,
                      uint8_t reason);

/* Prints a key to stdout: as text with \xNN for what is not printable, or in hex. */
void fb_cli_print_key(FILE *out, const struct fb_cli_args *args, const void *key, size_t key_bytes);

/*
 * A key of the command line: its bytes, or with --hex what the digits say, in memory of the caller
 * that has as many bytes as the word. Returns their number; 0, with a line, if it is no key.
 */
size_t fb_cli_key(const struct fb_cli_args *args, const char *word, uint8_t *out);

/* Prints text as a JSON string, with its quotes; if it is no UTF-8, each byte as a character. */
void fb_cli_print_json(FILE *out, const void *text, size_t bytes);

/*
 * Prints the members that say a key: "key" as text, or null if the key is no UTF-8 or --hex is
 * given; then "key_hex" has its digits.
 */
void fb_cli_print_json_key(FILE *out, const struct fb_cli_args *args, const void *key,
                           size_t key_bytes);

/* Shows a line of progress on stderr in place of the one before, if it is a terminal and the
 * command has run for a second. */
void fb_cli_progress(const struct fb_cli_args *args, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Ends the line of progress. */
void fb_cli_progress_end(void);

/* ---- the commands: each returns an exit code ---- */

/* Stores values. */
int fb_cli_put(const struct fb_cli_args *args);

/* Reads a value. */
int fb_cli_get(const struct fb_cli_args *args);

/* Looks keys up. */
int fb_cli_exists(const struct fb_cli_args *args);

/* Removes keys. */
int fb_cli_rm(const struct fb_cli_args *args);

/* Waits until keys are on SSD. */
int fb_cli_wait(const struct fb_cli_args *args);

/* Invalidates the namespace. */
int fb_cli_bump(const struct fb_cli_args *args);

/* Lists keys. */
int fb_cli_ls(const struct fb_cli_args *args);

/* Shows the state of the node. */
int fb_cli_status(const struct fb_cli_args *args);

/* Says what became of a key. */
int fb_cli_explain(const struct fb_cli_args *args);

/* Checks the whole path of a value. */
int fb_cli_doctor(const struct fb_cli_args *args);

/* Looks through the file of an SSD tier. */
int fb_cli_fsck(const struct fb_cli_args *args);

#endif
