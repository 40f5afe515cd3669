/*
 * The configuration file: YAML, then names and values of settings.
 *
 * The bytes lie in memory of their exact length. What is refused is refused with one line; what is
 * taken is printed as a file, and that file gives the same values again. The sources are included:
 * they belong to the daemon and are in no library.
 */
#include "server/options.c"
#include "server/yaml.c"

#include "test/lib/fuzz.h"

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
    return 0;
}
