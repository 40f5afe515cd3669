/* forebay put: values from files, in batches that fit into memory. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bits.h"
#include "base/limits.h"
#include "base/size.h"
#include "cli/cli.h"

#define READ_STEP_BYTES FB_MIB(1)
#define STATUS_BYTES    FB_KIB(64)

struct value {
    const char *file;
    uint8_t *key;
    size_t key_bytes;
    struct fb_buf bytes;
};

/* Reads a whole file. Returns false, with a line, if that does not go or if it is too long. */
static bool read_all(int fd, const char *name, struct fb_buf *out)
{
    size_t room = 0;
    uint8_t *bytes = NULL;
    size_t used = 0;
    for (;;) {
        if (used == room) {
            room = room == 0 ? READ_STEP_BYTES : room * 2;
            uint8_t *more = room > 2 * FB_VALUE_BYTES_MAX ? NULL : realloc(bytes, room);
            if (more == NULL) {
                fb_cli_error("%s: does not fit into memory, or is longer than 1 GiB", name);
                break;
            }
            bytes = more;
        }
        ssize_t got = read(fd, bytes + used, room - used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            fb_cli_error("%s: cannot read: %s", name, strerror(errno));
            break;
        }
        if (got == 0) {
            *out = (struct fb_buf){bytes, used};
            return true;
        }
        used += (size_t)got;
    }
    free(bytes);
    return false;
}

static bool read_file(const char *name, struct fb_buf *out)
{
    if (strcmp(name, "-") == 0)
        return read_all(STDIN_FILENO, "standard input", out);
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        fb_cli_error("%s: cannot open: %s", name, strerror(errno));
        return false;
    }
    bool good = read_all(fd, name, out);
    close(fd);
    return good;
}

static bool read_value(const struct fb_cli_args *args, const char *key, const char *file,
                       struct value *out)
{
    out->key = malloc(strlen(key) + 1);
    if (out->key == NULL) {
        fb_cli_error("no memory");
        return false;
    }
    out->file = strcmp(file, "-") == 0 ? "standard input" : file;
    out->key_bytes = fb_cli_key(args, key, out->key);
    return out->key_bytes != 0 && read_file(file, &out->bytes);
}

static void free_values(struct value *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(values[i].key);
        free(values[i].bytes.ptr);
    }
}

/* The setting of the node that makes the limit of a value, and what to do about it. */
static const struct {
    const char *set_by, *cure;
} cures[] = {
    {"pool", "set by --pool: a larger pool"},
    {"ssd-cap", "a quarter of --ssd-cap: a larger cap"},
    {"index-entries", "set by --index-entries: more entries"},
    {"format", "the limit of the format: cut it into several values"},
};

/* Asks the node what makes its limit. */
static const char *cure_of_limit(struct fb_client *client, uint32_t timeout_ms)
{
    static char text[STATUS_BYTES];
    const char *cure = "see value_bytes_max_set_by in 'forebay status'";
    if (fb_status(client, text, sizeof(text), NULL, timeout_ms) != FB_OK)
        return cure;
    json_t *root = json_loads(text, 0, NULL);
    const char *set_by = json_string_value(json_object_get(root, "value_bytes_max_set_by"));
    for (size_t i = 0; set_by != NULL && i < FB_ARRAY_COUNT(cures); i++) {
        if (strcmp(set_by, cures[i].set_by) == 0)
            cure = cures[i].cure;
    }
    json_decref(root);
    return cure;
}

static int report_too_big(const struct fb_cli_args *args, struct fb_client *client,
                          const struct fb_put_item *item)
{
    char size[FB_SIZE_TEXT_BYTES], limit[FB_SIZE_TEXT_BYTES];
    uint64_t most = fb_client_value_bytes_max(client);
    fb_cli_progress_end();
    fprintf(stderr, "forebay: ");
    fb_cli_print_key(stderr, args, item->key, item->key_bytes);
    fprintf(stderr, ": TOO_BIG: %zu bytes (%s); this node takes values of up to %llu (%s), %s\n",
            item->bufs[0].len, fb_size_print(size, sizeof(size), item->bufs[0].len),
            (unsigned long long)most, fb_size_print(limit, sizeof(limit), most),
            cure_of_limit(client, args->timeout_ms));
    return fb_cli_code(item->result);
}

static int report_empty(const struct fb_cli_args *args, const struct fb_put_item *item,
                        const char *file)
{
    fb_cli_progress_end();
    fprintf(stderr, "forebay: ");
    fb_cli_print_key(stderr, args, item->key, item->key_bytes);
    fprintf(stderr, ": BAD_ARGUMENT: %s is empty; a value has 1 byte or more\n", file);
    return fb_cli_code(item->result);
}

static int report(const struct fb_cli_args *args, struct fb_client *client,
                  const struct fb_put_item *item, const char *file)
{
    if (item->result == FB_TOO_BIG)
        return report_too_big(args, client, item);
    if (item->result == FB_BAD_ARGUMENT && item->bufs[0].len == 0)
        return report_empty(args, item, file);
    if (item->result < 0) {
        fb_cli_key_error(args, item->key, item->key_bytes, item->result, item->reason);
        return fb_cli_code(item->result);
    }
    if (args->quiet)
        return FB_CLI_OK;
    fb_cli_progress_end();
    fb_cli_print_key(stdout, args, item->key, item->key_bytes);
    printf(": %s%s\n", fb_result_name(item->result), item->persisted ? " PERSISTED" : "");
    return FB_CLI_OK;
}

static int put_values(const struct fb_cli_args *args, struct fb_client *client,
                      const struct value *values, size_t count)
{
    struct fb_put_item *items = calloc(count, sizeof(*items));
    if (items == NULL) {
        fb_cli_error("no memory");
        return FB_CLI_FAILED;
    }
    for (size_t i = 0; i < count; i++) {
        items[i] = (struct fb_put_item){
            .key = values[i].key,
            .key_bytes = values[i].key_bytes,
            .bufs = &values[i].bytes,
            .buf_count = 1,
            .group = args->group,
            .group_bytes = args->group == NULL ? 0 : strlen(args->group),
            .depth = args->depth,
            .persist_mode = args->persist_mode,
            .pin_class = args->pin_class,
            .flags = args->put_flags,
        };
    }
    /* What the call says, each key says too. */
    (void)fb_put_batch(client, items, count, args->timeout_ms);
    int code = FB_CLI_OK;
    for (size_t i = 0; i < count; i++)
        code = fb_cli_worse(code, report(args, client, &items[i], values[i].file));
    free(items);
    return code;
}

/* Reads and puts values until all words are used up. */
static int put_all(const struct fb_cli_args *args, struct fb_client *client, struct value *values)
{
    int pairs = (args->word_count + 1) / 2;
    int code = FB_CLI_OK;
    for (int next = 0; next < pairs;) {
        size_t count = 0;
        uint64_t bytes = 0;
        bool good = true;
        while (good && next < pairs && bytes < FB_CLI_BATCH_BYTES) {
            int file = next * 2 + 1;
            values[count] = (struct value){.key = NULL};
            good = read_value(args, args->words[next * 2],
                              file < args->word_count ? args->words[file] : "-", &values[count]);
            bytes += values[count].bytes.len;
            count++;
            next++;
        }
        if (good)
            code = fb_cli_worse(code, put_values(args, client, values, count));
        free_values(values, count);
        if (!good)
            return fb_cli_worse(code, FB_CLI_FAILED);
        fb_cli_progress(args, "%d of %d values stored", next, pairs);
    }
    return code;
}

/* A wrong key is a fault of the command line: nothing is stored then. */
static bool are_keys(const struct fb_cli_args *args)
{
    for (int i = 0; i < args->word_count; i += 2) {
        uint8_t *key = malloc(strlen(args->words[i]) + 1);
        if (key == NULL)
            fb_cli_error("no memory");
        bool good = key != NULL && fb_cli_key(args, args->words[i], key) != 0;
        free(key);
        if (!good)
            return false;
    }
    return true;
}

int fb_cli_put(const struct fb_cli_args *args)
{
    int pairs = (args->word_count + 1) / 2;
    if (pairs > 1 && args->word_count % 2 != 0) {
        fb_cli_error("several values need a FILE behind each KEY");
        return FB_CLI_USAGE;
    }
    if (!are_keys(args))
        return FB_CLI_USAGE;
    int code = FB_CLI_FAILED;
    struct value *values = calloc((size_t)pairs, sizeof(*values));
    struct fb_client *client = values == NULL ? NULL : fb_cli_open(args, true, &code);
    if (client != NULL)
        code = put_all(args, client, values);
    fb_client_close(client);
    free(values);
    return code;
}
