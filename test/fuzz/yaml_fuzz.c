/*
 * The configuration: YAML, then names and values of settings; and the same lines as flags, as the
 * environment, and as a file beside both.
 *
 * The bytes lie in memory of their exact length. What is refused is refused with one line; what is
 * taken is printed as a file, and that file gives the same values again. The sources are included:
 * they belong to the daemon and are in no library.
 */
#include "server/options.c"
#include "server/yaml.c"

#include <ctype.h>
#include <sys/mman.h>

#include "test/lib/fuzz.h"

#define LINES_MAX   24
#define LINE_BYTES  300
#define NAME_OF_ENV 64 /* so much of a line is written as a name */

static bool is_one_line(const char *why, size_t room)
{
    const char *end = memchr(why, 0, room);
    return end != NULL && end > why;
}

/* Reads a file's bytes into settings and gives them their meaning; 0, or -1 with a line in `why`.
 */
static int read_bytes(struct fb_server_settings *settings, const uint8_t *bytes, size_t count,
                      char *why, size_t why_bytes)
{
    struct file_context context = {.settings = settings, .path = "fuzz.yaml"};
    memset(settings, 0, sizeof(*settings));
    settings->ready_fd = -1;
    if (fb_server_yaml_read(bytes, count, set_from_file, &context, why, why_bytes) != 0)
        return -1;
    return take_all(settings, why, why_bytes);
}

static void print_and_read_again(const struct fb_server_settings *settings)
{
    static struct fb_server_settings again;
    static char printed[2 * FB_SERVER_FILE_BYTES];
    FILE *out = fmemopen(printed, sizeof(printed), "w");
    FUZZ_CHECK(out != NULL);
    fb_server_options_print(settings, out);
    long bytes = ftell(out);
    FUZZ_CHECK(fclose(out) == 0 && bytes >= 0 && (size_t)bytes < sizeof(printed));
    char why[FB_NODE_WHY_BYTES];
    FUZZ_CHECK(read_bytes(&again, (const uint8_t *)printed, (size_t)bytes, why, sizeof(why)) == 0);
    for (unsigned i = 0; i < OPTIONS; i++)
        if (settings->values[i].is_given)
            FUZZ_CHECK(strcmp(settings->values[i].text, again.values[i].text) == 0);
}

/* Control characters and blanks at the ends do not survive being written as a quoted scalar. */
static bool can_be_printed(const struct fb_server_settings *settings)
{
    for (unsigned i = 0; i < OPTIONS; i++) {
        for (const char *at = settings->values[i].text; *at != '\0'; at++)
            if ((unsigned char)*at < 0x20 || (unsigned char)*at >= 0x7f)
                return false;
    }
    return true;
}

/* ---- all sources ---- */

struct words {
    char text[LINES_MAX][LINE_BYTES];
    char *list[LINES_MAX + 3];
    unsigned count;
};

static char *add(struct words *words, const char *prefix, const char *line, size_t bytes)
{
    char *text = words->text[words->count];
    snprintf(text, LINE_BYTES, "%s%.*s", prefix, (int)bytes, line);
    words->list[words->count++] = text;
    words->list[words->count] = NULL;
    return text;
}

/* `name: value` as --name=value, anything else as it stands behind two hyphens. */
static void add_flag(struct words *flags, const char *line, size_t bytes)
{
    char *colon = strstr(add(flags, line[0] == '-' ? "" : "--", line, bytes), ": ");
    if (colon != NULL) {
        *colon = '=';
        memmove(colon + 1, colon + 2, strlen(colon + 2) + 1);
    }
}

/* `name: value` as FOREBAY_NAME=value. */
static void add_variable(struct words *environment, const char *line, size_t bytes)
{
    char *text = add(environment, ENV_PREFIX, line, bytes);
    char *colon = strstr(text, ": ");
    if (colon != NULL) {
        *colon = '=';
        memmove(colon + 1, colon + 2, strlen(colon + 2) + 1);
    }
    for (unsigned i = 0; i < NAME_OF_ENV && text[i] != '\0' && text[i] != '='; i++)
        text[i] = text[i] == '-' ? '_' : (char)toupper((unsigned char)text[i]);
}

/* Reads, and prints what was asked for. */
static void read_sources(unsigned flags, char *const *argv, char *const *environment)
{
    static struct fb_server_settings settings;
    static char room[2 * FB_SERVER_FILE_BYTES];
    char why[FB_NODE_WHY_BYTES] = "";
    if (fb_server_options_read(&settings, (int)flags, argv, environment, why, sizeof(why)) != 0) {
        FUZZ_CHECK(is_one_line(why, sizeof(why)));
        return;
    }
    FILE *out = fmemopen(room, sizeof(room), "w");
    FUZZ_CHECK(out != NULL);
    if (settings.action == FB_SERVER_HELP)
        fb_server_options_help(out);
    else if (settings.action == FB_SERVER_PRINT_CONFIG)
        fb_server_options_print(&settings, out);
    FUZZ_CHECK(fclose(out) == 0);
}

/* The lines of the input as flags; then as a file, with the lines as environment and the first as a
 * flag before both. */
static void all_sources(const uint8_t *data, size_t size)
{
    static struct words flags, environment;
    flags.count = environment.count = 0;
    environment.list[0] = NULL;
    add(&flags, "forebayd", "", 0);
    const char *at = (const char *)data, *end = at + size;
    while (at < end && flags.count < LINES_MAX) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        size_t bytes = (size_t)((stop != NULL ? stop : end) - at);
        if (bytes > 0) {
            add_flag(&flags, at, fb_min_u64(bytes, LINE_BYTES));
            add_variable(&environment, at, fb_min_u64(bytes, LINE_BYTES));
        }
        at += bytes + 1;
    }
    read_sources(flags.count, flags.list, (char *const[]){NULL});
    int fd = memfd_create("fuzz", 0);
    FUZZ_CHECK(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    char config[64];
    snprintf(config, sizeof(config), "--config=/proc/self/fd/%d", fd);
    char *argv[] = {flags.list[0], config, flags.count > 1 ? flags.list[1] : NULL, NULL};
    read_sources(flags.count > 1 ? 3 : 2, argv, environment.list);
    close(fd);
}

/* The corpus was written by hand: it is what people write, and what they get wrong. */
static void seeds(void)
{
    static const char text[] = "pool: 64GB\nssd-path: /mnt/nvme0\nssd_cap: 1.5TB\n";
    fuzz_seed("made", text, sizeof(text) - 1);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    return fuzz_start(argc, argv, seeds);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct fb_server_settings settings;
    char why[FB_NODE_WHY_BYTES] = "";
    uint8_t *exact = malloc(size > 0 ? size : 1);
    FUZZ_CHECK(exact != NULL);
    memcpy(exact, data, size);
    int result = read_bytes(&settings, exact, size, why, sizeof(why));
    free(exact);
    if (result != 0)
        FUZZ_CHECK(is_one_line(why, sizeof(why)));
    else if (can_be_printed(&settings))
        print_and_read_again(&settings);
    all_sources(data, size);
    return 0;
}
