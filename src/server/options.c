/*
 * The table of settings, and what its values mean.
 */
#include "server/options.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/bits.h"
#include "base/bug.h"
#include "base/size.h"

#define ENV_PREFIX          "FOREBAY_"
#define NAME_BYTES          64
#define DRAIN_MS_MAX        600000
#define LEASE_MS_MAX        3600000
#define HELP_COLUMN         26
#define HELP_WIDTH          78
#define YAML_COMMENT_COLUMN 40
#define RANGE_BYTES         96

/* The most that is taken; what a machine has is less. */
#define POOL_BYTES_MAX    FB_TIB(4)
#define INDEX_ENTRIES_MAX (UINT32_C(1) << 31)
#define DEVICE_BYTES_MAX  (UINT64_C(1) << 60)
#define DEVICE_RATE_MAX   (UINT64_C(1) << 50) /* bytes a second */

enum kind {
    KIND_TEXT,    /* any */
    KIND_NAME,    /* any but "none", which stands for NULL */
    KIND_SIZE,    /* bytes */
    KIND_NUMBER,  /* a plain whole number */
    KIND_ON_OFF,  /* on or off */
    KIND_LEVEL,   /* of log lines */
    KIND_PERSIST, /* a persist mode */
    KIND_COMMAND  /* takes no value, and only as a flag */
};

struct option {
    const char *name;
    enum kind kind;
    size_t offset;        /* in struct fb_server_settings */
    uint8_t width;        /* bytes of a number there */
    uint64_t least, most; /* of a number or a size */
    const char *fallback; /* the default; NULL: none */
    const char *value;    /* what the help calls the value */
    const char *help;
};

#define AT(field)     offsetof(struct fb_server_settings, field)
#define WIDTH(field)  sizeof(((struct fb_server_settings *)0)->field)
#define NUMBER(field) AT(field), WIDTH(field)

static const struct option options[] = {
    {"config", KIND_NAME, 0, 0, 0, 0, "none", "FILE",
     "a YAML file with settings: one 'name: value' a line"},

    {"socket", KIND_NAME, NUMBER(node.socket_path), 0, 0, "/tmp/forebay.sock", "PATH|none",
     "Unix socket for clients on this machine; shared memory needs it"},
    {"listen", KIND_NAME, NUMBER(node.listen), 0, 0, "127.0.0.1:7700", "HOST:PORT|none",
     "TCP address for clients; port 0 takes a free one"},
    {"admin", KIND_NAME, NUMBER(node.admin), 0, 0, "127.0.0.1:7701", "HOST:PORT|none",
     "HTTP address of /metrics and /health"},
    {"insecure-bind", KIND_ON_OFF, NUMBER(node.insecure_bind), 0, 1, "off", "on|off",
     "allow --listen and --admin to be other than loopback; there are no credentials yet: whoever "
     "reaches them "
     "reads and writes"},
    {"shm", KIND_ON_OFF, NUMBER(node.no_shm), 0, 1, "on", "on|off",
     "offer shared memory to processes of the same user"},
    {"sessions", KIND_NUMBER, NUMBER(node.sessions_max), 1, FB_SESSIONS_MAX, "256", "N",
     "connections at once; each may take about 0.6 MiB"},

    {"namespaces", KIND_NUMBER, NUMBER(node.namespaces_max), 1, FB_NODE_NAMESPACES_MAX, "1024", "N",
     "namespaces that can be made; they are kept for good, and their table on SSD holds about 4000 "
     "short ones, or 240 of the longest"},

    {"pool", KIND_SIZE, NUMBER(node.pool_bytes), FB_NODE_POOL_BYTES_MIN, POOL_BYTES_MAX, "1GiB",
     "SIZE", "memory for values, in steps of 2 MiB"},
    {"index-entries", KIND_NUMBER, NUMBER(node.index_entries), 0, INDEX_ENTRIES_MAX, "0", "N",
     "parts of values that can be known, at most 96 bytes each; 0: one for each 64 KiB of pool and "
     "SSD, and at least 65536"},
    {"persist", KIND_PERSIST, NUMBER(node.persist), 0, 0, "auto", "MODE",
     "when values go to SSD, unless a put says otherwise: off (never), evict (when memory fills), "
     "behind (when the "
     "device is free), through (before a put is answered); auto: behind with an SSD, off without"},
    {"watermark", KIND_NUMBER, NUMBER(node.watermark_pct), 0, 100, "0", "PERCENT",
     "mode evict: from how full a pool on values are written; 0: 75"},

    {"ssd-path", KIND_NAME, NUMBER(node.ssd_path), 0, 0, "none", "PATH|none",
     "file, block device, or directory for the SSD tier; a directory that is there gets a file "
     "forebay.ssd, a path that is not there becomes a file"},
    {"ssd-cap", KIND_SIZE, NUMBER(node.ssd_cap_bytes), 0, DEVICE_BYTES_MAX, "0", "SIZE",
     "the most that the tier takes there, 16 MiB to 64 TiB; needed with --ssd-path"},
    {"ssd-floor", KIND_SIZE, NUMBER(node.ssd_floor_bytes), 0, DEVICE_BYTES_MAX, "1GiB", "SIZE",
     "free space of the file system that the tier leaves alone"},
    {"io", KIND_TEXT, NUMBER(node.io), 0, 0, "auto", "auto|uring|posix",
     "how the device is used: io_uring, or a pool of threads with plain calls; auto: the first "
     "that is to be had"},
    {"direct", KIND_ON_OFF, NUMBER(node.no_direct), 0, 1, "on", "on|off",
     "use O_DIRECT; off goes through the page cache: for tests, and for file systems without it"},
    {"format", KIND_ON_OFF, NUMBER(node.format), 0, 1, "off", "on|off",
     "overwrite what is at --ssd-path if it is no usable log of this node; a usable one is never "
     "overwritten"},
    {"device-rate", KIND_SIZE, NUMBER(node.device_write_bytes_per_s), 0, DEVICE_RATE_MAX, "0",
     "SIZE",
     "bytes a second that the device writes, to begin with; it is measured later; 0: 476 MiB"},

    {"node-id", KIND_NUMBER, NUMBER(node.node_id), 1, UINT64_MAX, "1", "N",
     "which node this is; the SSD log of another one is refused"},
    {"drain-ms", KIND_NUMBER, NUMBER(node.drain_ms), 1, DRAIN_MS_MAX, "25000", "MS",
     "how long the end may take after SIGTERM; also bounds what may be dirty"},
    {"lease-ms", KIND_NUMBER, NUMBER(node.lease_ms), 0, LEASE_MS_MAX, "0", "MS",
     "how long a lookup keeps a key readable; 0: 5000"},
    {"hold-ms", KIND_NUMBER, NUMBER(node.hold_ms), 0, LEASE_MS_MAX, "0", "MS",
     "the longest hold; 0: 60000"},
    {"log-level", KIND_LEVEL, NUMBER(node.log_level), 0, 0, "info", "LEVEL",
     "debug, info, warn or error"},
    {"ready-fd", KIND_NUMBER, NUMBER(ready_fd), 0, INT32_MAX, NULL, "FD",
     "write a line to this descriptor, and close it (0 to 2 stay open), when the node serves; it "
     "must be open for writing at the start"},
#ifdef FB_TEST_HOOKS
    {"bug", KIND_TEXT, AT(bugs), 0, 0, 0, "", "NAMES",
     "test build: planted bugs, separated by commas"},
    {"io-fault", KIND_NAME, NUMBER(node.io_fault), 0, 0, "none", "SCRIPT",
     "test build: requests that fail"},
#endif
    {"print-config", KIND_COMMAND, FB_SERVER_PRINT_CONFIG, 0, 0, 0, NULL, "",
     "print all settings as a YAML file, and where each comes from; then end"},
    {"help", KIND_COMMAND, FB_SERVER_HELP, 0, 0, 0, NULL, "", "print this; then end"},
    {"version", KIND_COMMAND, FB_SERVER_VERSION, 0, 0, 0, NULL, "", "print the version; then end"},
};

#define OPTIONS FB_ARRAY_COUNT(options)
_Static_assert(OPTIONS <= FB_SERVER_SETTINGS_MAX, "every setting has a place for its value");

/* ---- names ---- */

/* A setting by its name, hyphens and underscores alike; -1 if there is none. */
static int find(const char *name, size_t bytes)
{
    for (unsigned i = 0; i < OPTIONS; i++) {
        const char *known = options[i].name;
        size_t at = 0;
        while (at < bytes && known[at] != '\0' &&
               (name[at] == known[at] || (name[at] == '_' && known[at] == '-')))
            at++;
        if (at == bytes && known[at] == '\0')
            return (int)i;
    }
    return -1;
}

/* The name of the environment's variable. */
static void env_name(const struct option *option, char out[NAME_BYTES])
{
    int count = snprintf(out, NAME_BYTES, ENV_PREFIX "%s", option->name);
    for (int i = 0; i < count && i < NAME_BYTES; i++)
        out[i] = out[i] == '-' ? '_' : (char)toupper((unsigned char)out[i]);
}

__attribute__((format(printf, 3, 4))) static int refuse(char *why, size_t why_bytes,
                                                        const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(why, why_bytes, format, args);
    va_end(args);
    return -1;
}

/* The value of a later source takes the place of an earlier one's. */
static int note(struct fb_server_settings *settings, unsigned i, const char *text,
                const char *origin, char *why, size_t why_bytes)
{
    struct fb_server_value *value = &settings->values[i];
    if (strlen(text) >= sizeof(value->text))
        return refuse(why, why_bytes, "--%s (%s) has %zu characters; at most %zu: shorten it",
                      options[i].name, origin, strlen(text), sizeof(value->text) - 1);
    value->is_given = true;
    snprintf(value->text, sizeof(value->text), "%s", text);
    snprintf(value->origin, sizeof(value->origin), "%s", origin);
    return 0;
}

/* ---- the command line ---- */

static int read_flag(struct fb_server_settings *settings, int argc, char *const *argv, int *at,
                     char *why, size_t why_bytes)
{
    const char *argument = strcmp(argv[*at], "-h") == 0 ? "--help" : argv[*at];
    if (strncmp(argument, "--", 2) != 0 || argument[2] == '\0')
        return refuse(why, why_bytes, "'%.200s' is no option; forebayd --help lists them",
                      argument);
    const char *name = argument + 2;
    const char *equals = strchr(name, '=');
    size_t bytes = equals != NULL ? (size_t)(equals - name) : strlen(name);
    int i = find(name, bytes);
    if (i < 0)
        return refuse(why, why_bytes, "--%.*s is unknown; forebayd --help lists what there is",
                      (int)fb_min_u64(bytes, NAME_BYTES), name);
    const struct option *option = &options[i];
    if (option->kind == KIND_COMMAND) {
        if (equals != NULL)
            return refuse(why, why_bytes, "--%s takes no value: leave out what follows its name",
                          option->name);
        if (settings->action == FB_SERVER_RUN || option->offset < settings->action)
            settings->action = (enum fb_server_action)option->offset;
        return 0;
    }
    if (equals != NULL)
        return note(settings, (unsigned)i, equals + 1, "command line", why, why_bytes);
    bool next_is_value = *at + 1 < argc && strncmp(argv[*at + 1], "--", 2) != 0;
    if (option->kind == KIND_ON_OFF && !next_is_value)
        return note(settings, (unsigned)i, "on", "command line", why, why_bytes);
    if (*at + 1 >= argc)
        return refuse(why, why_bytes, "--%s needs a value: --%s=%s", option->name, option->name,
                      option->value);
    return note(settings, (unsigned)i, argv[++*at], "command line", why, why_bytes);
}

static int read_flags(struct fb_server_settings *settings, int argc, char *const *argv, char *why,
                      size_t why_bytes)
{
    for (int at = 1; at < argc; at++)
        if (read_flag(settings, argc, argv, &at, why, why_bytes) != 0)
            return -1;
    return 0;
}

/* ---- the environment ---- */

/* Names with our prefix that are the clients'. */
static bool is_a_clients(const char *name, size_t bytes)
{
    static const char *const names[] = {"FOREBAY_ADDRESS",  "FOREBAY_MODEL", "FOREBAY_WEIGHTS",
                                        "FOREBAY_ADAPTER",  "FOREBAY_DTYPE", "FOREBAY_LAYOUT",
                                        "FOREBAY_PARALLEL", "FOREBAY_SALT"};
    for (unsigned i = 0; i < FB_ARRAY_COUNT(names); i++)
        if (strlen(names[i]) == bytes && strncmp(names[i], name, bytes) == 0)
            return true;
    return false;
}

/* A line of its own; what has no room is left out. */
__attribute__((format(printf, 2, 3))) static void warn(struct fb_server_settings *settings,
                                                       const char *format, ...)
{
    size_t used = strlen(settings->warnings);
    size_t room = sizeof(settings->warnings) - used;
    va_list args;
    va_start(args, format);
    int count = vsnprintf(settings->warnings + used, room, format, args);
    va_end(args);
    if (count < 0 || (size_t)count + 1 >= room)
        settings->warnings[used] = '\0';
    else
        snprintf(settings->warnings + used + count, room - (size_t)count, "\n");
}

static int take(struct fb_server_settings *settings, const struct option *option,
                const struct fb_server_value *value, char *why, size_t why_bytes);

/* A value that a higher source goes before: if it is wrong, that would show on the day when it
 * alone is left. */
static void check_overridden(struct fb_server_settings *settings, unsigned i, const char *text,
                             const char *origin)
{
    static struct fb_server_settings scratch;
    static struct fb_server_value value;
    char why[FB_NODE_WHY_BYTES];
    snprintf(value.text, sizeof(value.text), "%s", text);
    snprintf(value.origin, sizeof(value.origin), "%s", origin);
    if (take(&scratch, &options[i], &value, why, sizeof(why)) != 0)
        warn(settings, "%s: passed over, since the %s says otherwise", why,
             settings->values[i].origin);
}

static int read_environment(struct fb_server_settings *settings, char *const *environment,
                            char *why, size_t why_bytes)
{
    for (char *const *entry = environment; *entry != NULL; entry++) {
        const char *equals = strchr(*entry, '=');
        if (equals == NULL || strncmp(*entry, ENV_PREFIX, strlen(ENV_PREFIX)) != 0)
            continue;
        size_t bytes = (size_t)(equals - *entry);
        bool known = false;
        for (unsigned i = 0; i < OPTIONS && !known; i++) {
            char name[NAME_BYTES];
            env_name(&options[i], name);
            known = options[i].kind != KIND_COMMAND && strlen(name) == bytes &&
                    strncmp(name, *entry, bytes) == 0;
            if (known && settings->values[i].is_given)
                check_overridden(settings, i, equals + 1, name);
            else if (known && note(settings, i, equals + 1, name, why, why_bytes) != 0)
                return -1;
        }
        if (!known && !is_a_clients(*entry, bytes))
            warn(settings, "no setting is called %.*s: passed over",
                 (int)fb_min_u64(bytes, NAME_BYTES), *entry);
    }
    return 0;
}

/* ---- the file ---- */

struct file_context {
    struct fb_server_settings *settings;
    const char *path;
    unsigned line[FB_SERVER_SETTINGS_MAX]; /* where a setting stands; 0: not there */
};

static int set_from_file(void *context, const char *key, const char *value, unsigned line,
                         char *why, size_t why_bytes)
{
    struct file_context *file = context;
    int i = find(key, strlen(key));
    if (i < 0 || options[i].kind == KIND_COMMAND || strcmp(options[i].name, "config") == 0)
        return refuse(why, why_bytes, "line %u: '%s' is no setting; forebayd --help lists them",
                      line, key);
    if (file->line[i] != 0)
        return refuse(why, why_bytes,
                      "line %u: '%s' was set in line %u already; leave one of them out", line, key,
                      file->line[i]);
    file->line[i] = line;
    char origin[FB_SERVER_ORIGIN_BYTES];
    snprintf(origin, sizeof(origin), "line %u of %.1000s", line, file->path);
    if (file->settings->values[i].is_given) { /* a flag or the environment says otherwise */
        check_overridden(file->settings, (unsigned)i, value, origin);
        return 0;
    }
    return note(file->settings, (unsigned)i, value, origin, why, why_bytes);
}

/* The whole of a file; its length, or -1 with errno set: EINVAL if it is no regular file. */
static ssize_t read_whole(const char *path, uint8_t *out, size_t room)
{
    /* A pipe would keep the start waiting for a writer. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat status;
    if (fd < 0)
        return -1;
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
        close(fd);
        errno = EINVAL;
        return -1;
    }
    size_t used = 0;
    ssize_t n = 1;
    while (n > 0 && used < room) {
        n = read(fd, out + used, room - used);
        if (n < 0 && errno == EINTR)
            n = 1;
        else if (n > 0)
            used += (size_t)n;
    }
    int error = errno;
    close(fd);
    errno = error;
    return n < 0 ? -1 : (ssize_t)used;
}

static int read_file(struct fb_server_settings *settings, char *why, size_t why_bytes)
{
    const struct fb_server_value *value = &settings->values[find("config", strlen("config"))];
    if (!value->is_given || strcmp(value->text, "none") == 0)
        return 0;
    static uint8_t bytes[FB_SERVER_FILE_BYTES];
    ssize_t count = read_whole(value->text, bytes, sizeof(bytes));
    if (count < 0)
        return refuse(why, why_bytes, "--config '%s' (%s): %s; name a file that can be read",
                      value->text, value->origin,
                      errno == EINVAL ? "no regular file" : strerror(errno));
    if ((size_t)count == sizeof(bytes))
        return refuse(why, why_bytes, "--config '%s': longer than %zu bytes; shorten it",
                      value->text, sizeof(bytes) - 1);
    struct file_context context = {.settings = settings, .path = value->text};
    char clause[FB_NODE_WHY_BYTES];
    if (fb_server_yaml_read(bytes, (size_t)count, set_from_file, &context, clause,
                            sizeof(clause)) != 0)
        return refuse(why, why_bytes, "--config '%.200s': %s", value->text, clause);
    return 0;
}

/* ---- values ---- */

static void store(struct fb_server_settings *settings, const struct option *option, uint64_t number)
{
    uint8_t *at = (uint8_t *)settings + option->offset;
    uint8_t n8 = (uint8_t)number;
    uint32_t n32 = (uint32_t)number;
    if (option->width == sizeof(n8))
        memcpy(at, &n8, sizeof(n8));
    else if (option->width == sizeof(n32))
        memcpy(at, &n32, sizeof(n32));
    else
        memcpy(at, &number, sizeof(number));
}

static int wrong(const struct option *option, const struct fb_server_value *value,
                 const char *clause, char *why, size_t why_bytes)
{
    return refuse(why, why_bytes, "--%s '%.200s' (%s): %s", option->name, value->text,
                  value->origin, clause);
}

/* "from 16 MiB to 4 TiB" */
static void print_range(const struct option *option, char *out, size_t room)
{
    char least[FB_SIZE_TEXT_BYTES], most[FB_SIZE_TEXT_BYTES];
    if (option->kind == KIND_SIZE)
        snprintf(out, room, "from %s to %s", fb_size_print(least, sizeof(least), option->least),
                 fb_size_print(most, sizeof(most), option->most));
    else
        snprintf(out, room, "from %llu to %llu", (unsigned long long)option->least,
                 (unsigned long long)option->most);
}

/* Says what a number must be. */
static int wrong_number(const struct option *option, const struct fb_server_value *value, char *why,
                        size_t why_bytes)
{
    char clause[FB_SIZE_ERROR_BYTES], range[RANGE_BYTES];
    print_range(option, range, sizeof(range));
    snprintf(clause, sizeof(clause), "must be %s %s; write one that is",
             option->kind == KIND_SIZE ? "a size" : "a whole number", range);
    return wrong(option, value, clause, why, why_bytes);
}

static int take_number(struct fb_server_settings *settings, const struct option *option,
                       const struct fb_server_value *value, char *why, size_t why_bytes)
{
    char clause[FB_SIZE_ERROR_BYTES], range[RANGE_BYTES];
    uint64_t number;
    print_range(option, range, sizeof(range));
    if (option->kind == KIND_SIZE) {
        if (fb_size_parse(value->text, &number, clause, sizeof(clause)) != 0)
            return refuse(why, why_bytes,
                          "--%s (%s): %s; write say 64GB (GB and GiB are both 2^30 bytes), %s",
                          option->name, value->origin, clause, range);
    } else {
        char *end;
        errno = 0;
        number = strtoull(value->text, &end, 10);
        if (!isdigit((unsigned char)value->text[0]) || *end != '\0' || errno != 0)
            return wrong_number(option, value, why, why_bytes);
    }
    if (number < option->least || number > option->most)
        return wrong_number(option, value, why, why_bytes);
    store(settings, option, number);
    return 0;
}

static int take_on_off(struct fb_server_settings *settings, const struct option *option,
                       const struct fb_server_value *value, char *why, size_t why_bytes)
{
    static const char *const yes[] = {"on", "true", "yes", "1"};
    static const char *const no[] = {"off", "false", "no", "0"};
    /* These two stand in the node's config as what they forbid. */
    bool inverted = strcmp(option->name, "shm") == 0 || strcmp(option->name, "direct") == 0;
    for (unsigned i = 0; i < FB_ARRAY_COUNT(yes); i++) {
        bool is_yes = strcmp(value->text, yes[i]) == 0;
        if (is_yes || strcmp(value->text, no[i]) == 0) {
            store(settings, option, is_yes != inverted);
            return 0;
        }
    }
    return wrong(option, value, "must be on or off; write one of them", why, why_bytes);
}

static int take(struct fb_server_settings *settings, const struct option *option,
                const struct fb_server_value *value, char *why, size_t why_bytes)
{
    enum fb_logger_level level;
    uint8_t persist;
    const char *text = value->text;
    switch (option->kind) {
    case KIND_SIZE:
    case KIND_NUMBER:
        return take_number(settings, option, value, why, why_bytes);
    case KIND_ON_OFF:
        return take_on_off(settings, option, value, why, why_bytes);
    case KIND_LEVEL:
        if (!fb_logger_level_find(text, &level))
            return wrong(option, value, "must be debug, info, warn or error; write one of them",
                         why, why_bytes);
        settings->node.log_level = level;
        return 0;
    case KIND_PERSIST:
        if (!fb_node_persist_find(text, &persist))
            return wrong(option, value,
                         "must be auto, off, evict, behind or through; write one of them", why,
                         why_bytes);
        settings->node.persist = persist;
        return 0;
    case KIND_NAME:
        text = strcmp(text, "none") == 0 ? NULL : text;
        if (option->width != 0)
            memcpy((uint8_t *)settings + option->offset, &text, sizeof(text));
        return 0;
    case KIND_TEXT:
        if (option->width == 0)
            snprintf((char *)settings + option->offset, FB_SERVER_TEXT_BYTES, "%s", text);
        else
            memcpy((uint8_t *)settings + option->offset, &text, sizeof(text));
        return 0;
    case KIND_COMMAND:
        return 0;
    }
    FB_UNREACHABLE();
}

/* Gives all values their meaning; the default where none was given. */
static int take_all(struct fb_server_settings *settings, char *why, size_t why_bytes)
{
    for (unsigned i = 0; i < OPTIONS; i++) {
        struct fb_server_value *value = &settings->values[i];
        if (!value->is_given && options[i].fallback != NULL) {
            snprintf(value->text, sizeof(value->text), "%s", options[i].fallback);
            snprintf(value->origin, sizeof(value->origin), "default");
        }
        bool has_value = value->is_given || options[i].fallback != NULL;
        if (has_value && take(settings, &options[i], value, why, why_bytes) != 0)
            return -1;
    }
    return 0;
}

/*
 * A number that nobody opened is taken by the first thing that the node itself opens, say the file
 * of the SSD tier: the line would go there, and the descriptor be closed under its user. So it is
 * checked while nothing of the node's own is open.
 */
static int check_ready_fd(const struct fb_server_settings *settings, char *why, size_t why_bytes)
{
    static const char name[] = "ready-fd";
    int i = find(name, sizeof(name) - 1);
    FB_ASSERT(i >= 0);
    if (settings->ready_fd < 0)
        return 0;
    int flags = fcntl(settings->ready_fd, F_GETFL);
    const char *clause = NULL;
    if (flags < 0)
        clause = "no such descriptor is open; it must be one that whoever starts the node has "
                 "opened, say --ready-fd=3 with 3>FILE in a shell";
    else if ((flags & O_ACCMODE) == O_RDONLY)
        clause = "this descriptor is open for reading only; hand over one that can be written";
    return clause == NULL ? 0 : wrong(&options[i], &settings->values[i], clause, why, why_bytes);
}

int fb_server_options_read(struct fb_server_settings *settings, int argc, char *const *argv,
                           char *const *environment, char *why, size_t why_bytes)
{
    memset(settings, 0, sizeof(*settings));
    settings->ready_fd = -1;
    if (read_flags(settings, argc, argv, why, why_bytes) != 0)
        return -1;
    if (settings->action == FB_SERVER_HELP || settings->action == FB_SERVER_VERSION)
        return 0;
    if (read_environment(settings, environment, why, why_bytes) != 0 ||
        read_file(settings, why, why_bytes) != 0)
        return -1;
    if (take_all(settings, why, why_bytes) != 0)
        return -1;
    return check_ready_fd(settings, why, why_bytes);
}

/* ---- what is printed ---- */

/* Text in lines of HELP_WIDTH, from a column on. */
static void wrap(FILE *out, const char *text)
{
    size_t column = HELP_COLUMN;
    for (const char *at = text; *at != '\0'; at += strspn(at, " ")) {
        size_t word = strcspn(at, " ");
        bool is_first = at == text;
        if (!is_first && column + 1 + word > HELP_WIDTH) {
            fprintf(out, "\n%*s", HELP_COLUMN, "");
            column = HELP_COLUMN;
        } else if (!is_first) {
            fputc(' ', out);
            column++;
        }
        fprintf(out, "%.*s", (int)word, at);
        column += word;
        at += word;
    }
    fputc('\n', out);
}

void fb_server_options_help(FILE *out)
{
    fputs("usage: forebayd [--name=value]...\n\n"
          "Serves one node of Forebay until SIGTERM or SIGINT. Each setting can be a flag, a "
          "variable\n"
          "of the environment (FOREBAY_SSD_PATH for --ssd-path), or a line of the YAML file "
          "(ssd-path);\n"
          "a flag goes before the environment, that before the file. GB and GiB are both 2^30 "
          "bytes.\n\n",
          out);
    for (unsigned i = 0; i < OPTIONS; i++) {
        const struct option *option = &options[i];
        char head[NAME_BYTES + 64];
        int count = snprintf(head, sizeof(head), "  --%s%s%s", option->name,
                             option->value[0] != '\0' ? "=" : "", option->value);
        fputs(head, out);
        if (count >= HELP_COLUMN - 1)
            fprintf(out, "\n%*s", HELP_COLUMN, "");
        else
            fprintf(out, "%*s", HELP_COLUMN - count, "");
        char text[FB_SERVER_TEXT_BYTES];
        bool has_default = option->fallback != NULL && option->fallback[0] != '\0';
        snprintf(text, sizeof(text), "%s%s%s%s", option->help, has_default ? " (default " : "",
                 has_default ? option->fallback : "", has_default ? ")" : "");
        wrap(out, text);
    }
    fputs("\nExit codes: 0 ended as asked; 1 failed while running; 2 a setting is wrong; 3 a "
          "setting may be\n"
          "right, but the device, an address or memory is not to be had.\n",
          out);
}

void fb_server_options_print(const struct fb_server_settings *settings, FILE *out)
{
    for (unsigned i = 0; i < OPTIONS; i++) {
        const struct fb_server_value *value = &settings->values[i];
        if (options[i].kind == KIND_COMMAND || strcmp(options[i].name, "config") == 0 ||
            (!value->is_given && options[i].fallback == NULL))
            continue;
        int column = fprintf(out, "%s: '", options[i].name);
        for (const char *at = value->text; *at != '\0'; at++)
            column += fprintf(out, *at == '\'' ? "''" : "%c", *at);
        column += fprintf(out, "'");
        fprintf(out, "%*s # %s\n", column < YAML_COMMENT_COLUMN ? YAML_COMMENT_COLUMN - column : 0,
                "", value->origin);
    }
}
