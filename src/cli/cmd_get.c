/* forebay get: a value, or a range of it, to a file. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bits.h"
#include "base/limits.h"
#include "cli/cli.h"

/* A value may be replaced by a longer one between the question for its length and the get. */
#define TRIES 5
/* Room with which a first try is made: most values are not longer. */
#define FIRST_BYTES FB_MIB(8)

static bool write_all(int fd, const uint8_t *bytes, uint64_t count)
{
    while (count > 0) {
        ssize_t written = write(fd, bytes, count);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return false;
        bytes += written;
        count -= (uint64_t)written;
    }
    return true;
}

static int write_value(const struct fb_cli_args *args, const struct fb_get_item *item)
{
    const char *name = args->word_count > 1 ? args->words[1] : "-";
    bool is_stdout = strcmp(name, "-") == 0;
    int fd = is_stdout ? STDOUT_FILENO : open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        fb_cli_error("%s: cannot open: %s", name, strerror(errno));
        return FB_CLI_FAILED;
    }
    bool good = write_all(fd, item->bufs[0].ptr, item->bytes);
    if (!is_stdout && close(fd) != 0)
        good = false;
    if (good)
        return FB_CLI_OK;
    fb_cli_error("%s: cannot write: %s", is_stdout ? "standard output" : name, strerror(errno));
    return FB_CLI_FAILED;
}

/* Gets into memory that grows as needed. */
static int get_value(const struct fb_cli_args *args, struct fb_client *client,
                     struct fb_get_item *item, struct fb_buf *buf)
{
    size_t wanted =
        (size_t)fb_min_u64(FIRST_BYTES, args->range_bytes == 0 ? UINT64_MAX : args->range_bytes);
    for (unsigned i = 0; i < TRIES; i++) {
        uint8_t *bytes = realloc(buf->ptr, wanted);
        if (bytes == NULL) {
            fb_cli_error("no memory for a value of %zu bytes", wanted);
            return FB_CLI_FAILED;
        }
        *buf = (struct fb_buf){bytes, wanted};
        (void)fb_get_batch(client, item, 1, args->timeout_ms);
        if (item->result != FB_BUFFER_TOO_SMALL)
            break;
        uint64_t left = fb_sub_floored(item->value_bytes, item->range_off);
        wanted = (size_t)(args->range_bytes == 0 ? left : fb_min_u64(left, args->range_bytes));
    }
    if (item->result == FB_OK && item->bytes == 0 && args->range_off >= item->value_bytes) {
        fb_cli_progress_end();
        fprintf(stderr, "forebay: ");
        fb_cli_print_key(stderr, args, item->key, item->key_bytes);
        fprintf(stderr, ": the value has %llu bytes, and --offset is %llu: nothing was read\n",
                (unsigned long long)item->value_bytes, (unsigned long long)args->range_off);
    }
    if (item->result == FB_OK)
        return write_value(args, item);
    fb_cli_key_error(args, item->key, item->key_bytes, item->result, item->reason);
    return fb_cli_code(item->result);
}

int fb_cli_get(const struct fb_cli_args *args)
{
    uint8_t *key = malloc(strlen(args->words[0]) + 1);
    size_t key_bytes = key == NULL ? 0 : fb_cli_key(args, args->words[0], key);
    int code = FB_CLI_USAGE;
    struct fb_client *client = key_bytes == 0 ? NULL : fb_cli_open(args, true, &code);
    if (client != NULL) {
        struct fb_buf buf = {NULL, 0};
        struct fb_get_item item = {.key = key,
                                   .key_bytes = key_bytes,
                                   .bufs = &buf,
                                   .buf_count = 1,
                                   .range_off = args->range_off,
                                   .range_bytes = args->range_bytes};
        code = get_value(args, client, &item, &buf);
        free(buf.ptr);
    }
    fb_client_close(client);
    free(key);
    return code;
}
