/* Output and what the commands have in common. See cli.h. */
#include <ctype.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/limits.h"
#include "cli/cli.h"

#define PROGRESS_AFTER_S 1.0
#define PROGRESS_EVERY_S 0.2
#define STATUS_BYTES     FB_KIB(64)
#define NAMESPACE_ADVICE "use --model and the like, or FOREBAY_MODEL and the like"

void fb_cli_error(const char *format, ...)
{
    fb_cli_progress_end();
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "forebay: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
}

int fb_cli_code(int result)
{
    switch (result) {
    case FB_MISS:
        return FB_CLI_ABSENT;
    case FB_CONNECTION:
        return FB_CLI_UNREACHABLE;
    default:
        return result >= 0 ? FB_CLI_OK : FB_CLI_FAILED;
    }
}

int fb_cli_worse(int one, int other)
{
    /* An absent key is the mildest of faults. */
    static const int order[] = {FB_CLI_OK,    FB_CLI_ABSENT,      FB_CLI_FAILED,
                                FB_CLI_USAGE, FB_CLI_UNREACHABLE, FB_CLI_BROKEN};
    for (int i = (int)(sizeof(order) / sizeof(order[0])) - 1; i >= 0; i--) {
        if (one == order[i] || other == order[i])
            return order[i];
    }
    return FB_CLI_FAILED;
}

/* How many namespaces the node takes; it says so to a client without one. 0: not known. */
static unsigned long long namespaces_max(struct fb_client_options options)
{
    static char text[STATUS_BYTES];
    struct fb_client *client = NULL;
    unsigned long long most = 0;
    options.no_namespace = true;
    options.ns = (struct fb_namespace_fields){0};
    if (fb_client_open(&options, &client, NULL, 0) == FB_OK &&
        fb_status(client, text, sizeof(text), NULL, options.connect_timeout_ms) == FB_OK) {
        json_t *root = json_loads(text, 0, NULL);
        most = (unsigned long long)json_integer_value(json_object_get(root, "namespaces_max"));
        json_decref(root);
    }
    fb_client_close(client);
    return most;
}

static int say_not_opened(const struct fb_client_options *options, int result, const char *why)
{
    bool advise = result == FB_BAD_ARGUMENT && strstr(why, "namespace") != NULL;
    unsigned long long most = result == FB_QUOTA ? namespaces_max(*options) : 0;
    if (most != 0)
        fb_cli_error("%s (--namespaces=%llu)", why, most);
    else
        fb_cli_error("%s%s%s", why, advise ? ": " : "", advise ? NAMESPACE_ADVICE : "");
    if (result == FB_BAD_ARGUMENT)
        return FB_CLI_USAGE;
    if (result == FB_CONNECTION || result == FB_DEADLINE || result == FB_DENIED)
        return FB_CLI_UNREACHABLE;
    return FB_CLI_FAILED;
}

struct fb_client *fb_cli_open(const struct fb_cli_args *args, bool with_namespace, int *code)
{
    struct fb_client_options options;
    fb_client_options_init(&options);
    options.address = args->address[0] != '\0' ? args->address : NULL;
    options.use_shm = args->use_shm;
    options.name = "forebay";
    options.no_namespace = !with_namespace;
    if (with_namespace)
        options.ns = args->ns;
    if (args->timeout_ms != 0)
        options.connect_timeout_ms = args->timeout_ms;
    struct fb_client *client = NULL;
    char why[FB_WHY_BYTES];
    int result = fb_client_open(&options, &client, why, sizeof(why));
    if (result == FB_OK)
        return client;
    *code = say_not_opened(&options, result, why);
    return NULL;
}

static int hex_digit(char digit)
{
    if (digit >= '0' && digit <= '9')
        return digit - '0';
    int lower = tolower((unsigned char)digit);
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

size_t fb_cli_key(const struct fb_cli_args *args, const char *word, uint8_t *out)
{
    size_t bytes = strlen(word);
    if (!args->hex) {
        memcpy(out, word, bytes);
    } else {
        bool good = bytes % 2 == 0;
        for (size_t i = 0; good && i < bytes; i += 2) {
            int high = hex_digit(word[i]);
            int low = hex_digit(word[i + 1]);
            good = high >= 0 && low >= 0;
            out[i / 2] = (uint8_t)(high * 16 + low);
        }
        if (!good) {
            fb_cli_error("key '%s': with --hex a key is pairs of hex digits", word);
            return 0;
        }
        bytes /= 2;
    }
    if (bytes >= FB_KEY_BYTES_MIN && bytes <= FB_KEY_BYTES_MAX)
        return bytes;
    fb_cli_error("a key has 1 to %d bytes, this one has %zu", FB_KEY_BYTES_MAX, bytes);
    return 0;
}

void fb_cli_print_key(FILE *out, const struct fb_cli_args *args, const void *key, size_t key_bytes)
{
    const uint8_t *bytes = key;
    for (size_t i = 0; i < key_bytes; i++) {
        if (args->hex)
            fprintf(out, "%02x", bytes[i]);
        else if (bytes[i] == '\\' || bytes[i] < ' ' || bytes[i] > '~')
            fprintf(out, "\\x%02x", bytes[i]);
        else
            fputc(bytes[i], out);
    }
}

void fb_cli_key_error(const struct fb_cli_args *args, const void *key, size_t key_bytes, int result,
                      uint8_t reason)
{
    fb_cli_progress_end();
    fprintf(stderr, "forebay: ");
    fb_cli_print_key(stderr, args, key, key_bytes);
    fprintf(stderr, ": %s: %s", fb_result_name(result), fb_result_text(result));
    if (reason != 0)
        fprintf(stderr, " (%s: %s)", fb_reason_name(reason), fb_reason_text(reason));
    fprintf(stderr, "\n");
}

/* Prints it and returns true; false, with nothing printed, if it is no UTF-8. */
static bool print_utf8(FILE *out, const void *text, size_t bytes)
{
    json_t *value = json_stringn(text, bytes);
    bool good = value != NULL && json_dumpf(value, out, JSON_ENCODE_ANY) == 0;
    json_decref(value);
    return good;
}

void fb_cli_print_json(FILE *out, const void *text, size_t bytes)
{
    if (print_utf8(out, text, bytes))
        return;
    const uint8_t *at = text;
    fputc('"', out);
    for (size_t i = 0; i < bytes; i++)
        fprintf(out, "\\u%04x", at[i]);
    fputc('"', out);
}

void fb_cli_print_json_key(FILE *out, const struct fb_cli_args *args, const void *key,
                           size_t key_bytes)
{
    fprintf(out, "\"key\":");
    if (!args->hex && print_utf8(out, key, key_bytes))
        return;
    struct fb_cli_args in_hex = *args;
    in_hex.hex = true;
    fprintf(out, "null,\"key_hex\":\"");
    fb_cli_print_key(out, &in_hex, key, key_bytes);
    fputc('"', out);
}

/* ---- progress ---- */

static bool progress_shown;

static double seconds_now(void)
{
    struct timespec now;
    if (clock_gettime(CLOCK_MONOTONIC, &now) != 0)
        return 0;
    return (double)now.tv_sec + (double)now.tv_nsec / (double)FB_SEC_NS;
}

void fb_cli_progress(const struct fb_cli_args *args, const char *format, ...)
{
    static double began, last;
    double now = seconds_now();
    if (began <= 0)
        began = now;
    if (args->quiet || now - began < PROGRESS_AFTER_S || now - last < PROGRESS_EVERY_S ||
        isatty(STDERR_FILENO) == 0)
        return;
    last = now;
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "\r\033[K");
    vfprintf(stderr, format, arguments);
    fflush(stderr);
    va_end(arguments);
    progress_shown = true;
}

void fb_cli_progress_end(void)
{
    if (progress_shown)
        fprintf(stderr, "\r\033[K");
    progress_shown = false;
}
