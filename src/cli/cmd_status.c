/* forebay status and explain: what the node says of itself, and of a key. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/bits.h"
#include "base/limits.h"
#include "cli/cli.h"

#define FIRST_STATUS_BYTES FB_KIB(64)
#define PATH_BYTES         256
#define DEPTH_MAX          8

/* ---- status ---- */

/* Prints every leaf of a JSON value as "path value", one a line. */
static void print_leaves(const json_t *value, const char *path, unsigned depth)
{
    const char *name;
    json_t *inner;
    size_t index;
    char longer[PATH_BYTES];
    if (json_is_object(value) && depth < DEPTH_MAX) {
        json_object_foreach((json_t *)value, name, inner)
        {
            snprintf(longer, sizeof(longer), "%s%s%s", path, path[0] != '\0' ? "." : "", name);
            print_leaves(inner, longer, depth + 1);
        }
        return;
    }
    if (json_is_array(value) && depth < DEPTH_MAX) {
        json_array_foreach(value, index, inner)
        {
            snprintf(longer, sizeof(longer), "%s[%zu]", path, index);
            print_leaves(inner, longer, depth + 1);
        }
        return;
    }
    if (json_is_string(value)) {
        printf("%-32s %s\n", path, json_string_value(value));
        return;
    }
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    printf("%-32s %s\n", path, text == NULL ? "?" : text);
    free(text);
}

static int print_status(const struct fb_cli_args *args, const char *text)
{
    if (args->json) {
        printf("%s\n", text);
        return FB_CLI_OK;
    }
    json_error_t error;
    json_t *root = json_loads(text, 0, &error);
    if (root == NULL) {
        fb_cli_error("the node's answer is not JSON: %s", error.text);
        return FB_CLI_FAILED;
    }
    print_leaves(root, "", 0);
    json_decref(root);
    return FB_CLI_OK;
}

int fb_cli_status(const struct fb_cli_args *args)
{
    int code = FB_CLI_FAILED;
    struct fb_client *client = fb_cli_open(args, false, &code);
    if (client == NULL)
        return code;
    size_t room = FIRST_STATUS_BYTES;
    char *text = malloc(room);
    int result =
        text == NULL ? FB_NO_MEMORY : fb_status(client, text, room, &room, args->timeout_ms);
    if (result == FB_BUFFER_TOO_SMALL) {
        free(text);
        text = malloc(room);
        result =
            text == NULL ? FB_NO_MEMORY : fb_status(client, text, room, NULL, args->timeout_ms);
    }
    fb_client_close(client);
    if (result == FB_OK) {
        code = print_status(args, text);
    } else {
        fb_cli_error("status: %s: %s", fb_result_name(result), fb_result_text(result));
        code = fb_cli_worse(FB_CLI_FAILED, fb_cli_code(result));
    }
    free(text);
    return code;
}

/* ---- explain ---- */

static const struct {
    uint8_t bit;
    const char *name;
} places[] = {
    {FB_EXPLAIN_DRAM, "dram"},       {FB_EXPLAIN_SSD, "ssd"},       {FB_EXPLAIN_DIRTY, "dirty"},
    {FB_EXPLAIN_WRITING, "writing"}, {FB_EXPLAIN_LEASED, "leased"},
};

static void print_time(const char *name, uint64_t ms)
{
    char text[64] = "unknown";
    time_t seconds = (time_t)(ms / 1000);
    struct tm parts;
    if (ms != 0 && gmtime_r(&seconds, &parts) != NULL)
        strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S UTC", &parts);
    printf("%s %s\n", name, text);
}

static void explain_text(const struct fb_explanation *out)
{
    if (!out->present && (out->where & FB_EXPLAIN_WRITING) == 0) {
        printf("absent: %s: %s\n", fb_reason_name(out->reason), fb_reason_text(out->reason));
        if (out->when_ms != 0)
            print_time("when:", out->when_ms);
        print_time("the history reaches back to:", out->since_ms);
        if (out->text[0] != '\0')
            printf("%s\n", out->text);
        return;
    }
    printf("%s:", out->present ? "present" : "absent, being written");
    for (size_t i = 0; i < FB_ARRAY_COUNT(places); i++) {
        if ((out->where & places[i].bit) != 0)
            printf(" %s", places[i].name);
    }
    printf("\nbytes: %llu\ngeneration: %llx\n", (unsigned long long)out->value_bytes,
           (unsigned long long)out->generation);
    if (out->text[0] != '\0')
        printf("%s\n", out->text);
}

static void explain_json(const struct fb_cli_args *args, const struct fb_explanation *out,
                         const void *key, size_t key_bytes)
{
    printf("{");
    fb_cli_print_json_key(stdout, args, key, key_bytes);
    printf(",\"present\":%s", out->present ? "true" : "false");
    for (size_t i = 0; i < FB_ARRAY_COUNT(places); i++)
        printf(",\"%s\":%s", places[i].name, (out->where & places[i].bit) != 0 ? "true" : "false");
    printf(",\"reason\":\"%s\",\"bytes\":%llu,\"generation\":%llu,\"when_ms\":%llu,"
           "\"since_ms\":%llu,\"text\":",
           fb_reason_name(out->reason), (unsigned long long)out->value_bytes,
           (unsigned long long)out->generation, (unsigned long long)out->when_ms,
           (unsigned long long)out->since_ms);
    fb_cli_print_json(stdout, out->text, strlen(out->text));
    printf("}\n");
}

int fb_cli_explain(const struct fb_cli_args *args)
{
    uint8_t *key = malloc(strlen(args->words[0]) + 1);
    size_t key_bytes = key == NULL ? 0 : fb_cli_key(args, args->words[0], key);
    int code = FB_CLI_USAGE;
    struct fb_client *client = key_bytes == 0 ? NULL : fb_cli_open(args, true, &code);
    if (client != NULL) {
        struct fb_explanation out;
        int result = fb_explain(client, key, key_bytes, &out, args->timeout_ms);
        if (result != FB_OK) {
            fb_cli_key_error(args, key, key_bytes, result, 0);
            code = fb_cli_worse(FB_CLI_FAILED, fb_cli_code(result));
        } else {
            if (args->json)
                explain_json(args, &out, key, key_bytes);
            else
                explain_text(&out);
            code = out.present ? FB_CLI_OK : FB_CLI_ABSENT;
        }
    }
    fb_client_close(client);
    free(key);
    return code;
}
