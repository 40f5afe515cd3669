/*
 * Making a node: the settings checked, then memory, device, I/O and addresses, each said in one
 * line, so that an operator reads at the start what was chosen and why.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/bits.h"
#include "base/size.h"
#include "node/node_private.h"

#define SESSIONS_MAX      FB_SESSIONS_MAX
#define DRAIN_MS_MAX      600000u
#define SSD_FILE_NAME     "forebay.ssd" /* in a directory that the operator named */
#define SESSION_BITS      32  /* of a session's number: a counter; above it: of this start */
#define INDEX_ENTRY_BYTES 96u /* what an entry costs at most, all in */
#define FDS_BESIDE        64u /* descriptors that are not connections */
#define FDS_PER_SESSION   2u  /* its socket, and its process if it shares memory */
#define NAMESPACES        1024u

/* ---- settings ---- */

__attribute__((format(printf, 3, 4))) static enum fb_node_failure bad(char *why, size_t why_bytes,
                                                                      const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(why, why_bytes, format, args);
    va_end(args);
    return FB_NODE_BAD_CONFIG;
}

static enum fb_node_failure check_address(const char *flag, const char *text, bool insecure,
                                          char *why, size_t why_bytes)
{
    struct sockaddr_storage storage;
    uint32_t bytes;
    bool is_loopback;
    const char *wrong;
    if (text == NULL)
        return FB_NODE_OK;
    if (fb_node_address_parse(text, &storage, &bytes, &is_loopback, &wrong) != 0)
        return bad(why, why_bytes, "%s '%s' %s; write say 127.0.0.1:7700 or [::1]:7700", flag, text,
                   wrong);
    if (!is_loopback && !insecure)
        return bad(why, why_bytes,
                   "%s '%s' is not a loopback address, and this version has no credentials: "
                   "anybody who reaches it "
                   "reads and writes; choose 127.0.0.1, or say --insecure-bind if the network is "
                   "yours alone",
                   flag, text);
    return FB_NODE_OK;
}

static enum fb_node_failure check_addresses(const struct fb_node_config *config, char *why,
                                            size_t why_bytes)
{
    struct sockaddr_un address;
    if (config->listen == NULL && config->socket_path == NULL)
        return bad(why, why_bytes,
                   "neither --listen nor --socket is given: nobody could connect; name one");
    if (config->socket_path != NULL &&
        (config->socket_path[0] == '\0' || strlen(config->socket_path) >= sizeof(address.sun_path)))
        return bad(why, why_bytes,
                   "--socket '%s' has %zu characters; a socket's path has 1 to %zu: choose another",
                   config->socket_path, strlen(config->socket_path), sizeof(address.sun_path) - 1);
    enum fb_node_failure failure =
        check_address("--listen", config->listen, config->insecure_bind, why, why_bytes);
    if (failure != FB_NODE_OK)
        return failure;
    return check_address("--admin", config->admin, config->insecure_bind, why, why_bytes);
}

static const char *const persist_names[] = {
    [FB_PERSIST_DEFAULT] = "auto",  [FB_PERSIST_OFF] = "off",         [FB_PERSIST_EVICT] = "evict",
    [FB_PERSIST_BEHIND] = "behind", [FB_PERSIST_THROUGH] = "through",
};

static enum fb_node_failure check_cap(struct fb_node_config *config, char *why, size_t why_bytes)
{
    char given[FB_SIZE_TEXT_BYTES], least[FB_SIZE_TEXT_BYTES], most[FB_SIZE_TEXT_BYTES];
    fb_size_print(least, sizeof(least), FB_LOG_CAPACITY_BYTES_MIN);
    fb_size_print(most, sizeof(most), FB_LOG_CAPACITY_BYTES_MAX);
    fb_size_print(given, sizeof(given), config->ssd_cap_bytes);
    if (config->ssd_cap_bytes < FB_LOG_CAPACITY_BYTES_MIN ||
        config->ssd_cap_bytes > FB_LOG_CAPACITY_BYTES_MAX)
        return bad(why, why_bytes,
                   "--ssd-cap %s%s, and --ssd-path is '%s'; it must be from %s to %s: say how much "
                   "may be written there",
                   config->ssd_cap_bytes == 0 ? "is missing" : "is ",
                   config->ssd_cap_bytes == 0 ? "" : given, config->ssd_path, least, most);
    config->ssd_cap_bytes = fb_align_down(config->ssd_cap_bytes, FB_BLOCK_BYTES);
    return FB_NODE_OK;
}

static enum fb_node_failure check_sizes(struct fb_node_config *config, char *why, size_t why_bytes)
{
    char text[FB_SIZE_TEXT_BYTES];
    config->pool_bytes = fb_align_down(config->pool_bytes, FB_NODE_POOL_STEP_BYTES);
    if (config->pool_bytes < FB_NODE_POOL_BYTES_MIN)
        return bad(why, why_bytes,
                   "--pool is %s; the least is 16 MiB, in steps of 2 MiB: make it larger",
                   fb_size_print(text, sizeof(text), config->pool_bytes));
    if (config->ssd_path == NULL) {
        if (config->persist != FB_PERSIST_DEFAULT && config->persist != FB_PERSIST_OFF)
            return bad(why, why_bytes,
                       "--persist is %s, and there is no --ssd-path: name the file or the device, "
                       "or choose off",
                       config->persist < FB_ARRAY_COUNT(persist_names)
                           ? persist_names[config->persist]
                           : "unknown");
        if (config->ssd_cap_bytes != 0)
            return bad(why, why_bytes,
                       "--ssd-cap is %s, and there is no --ssd-path: name the file or the device",
                       fb_size_print(text, sizeof(text), config->ssd_cap_bytes));
        return FB_NODE_OK;
    }
    if (config->ssd_path[0] == '\0' ||
        strlen(config->ssd_path) >= FB_NODE_PATH_BYTES - sizeof(SSD_FILE_NAME) - 1)
        return bad(why, why_bytes,
                   "--ssd-path has %zu characters; it may have 1 to %zu: choose another",
                   strlen(config->ssd_path),
                   (size_t)FB_NODE_PATH_BYTES - sizeof(SSD_FILE_NAME) - 2);
    return check_cap(config, why, why_bytes);
}

static bool is_io_name(const char *name)
{
#ifdef FB_TEST_HOOKS
    if (strcmp(name, "forget") == 0)
        return true;
#endif
    return strcmp(name, "auto") == 0 || strcmp(name, "uring") == 0 || strcmp(name, "posix") == 0;
}

bool fb_node_persist_find(const char *name, uint8_t *persist)
{
    for (unsigned i = 0; i < FB_ARRAY_COUNT(persist_names); i++) {
        if (strcmp(name, persist_names[i]) == 0) {
            *persist = (uint8_t)i;
            return true;
        }
    }
    return false;
}

static void fill_defaults(struct fb_node_config *config)
{
    if (config->io == NULL)
        config->io = "auto";
    if (config->node_id == 0)
        config->node_id = 1;
    if (config->sessions_max == 0)
        config->sessions_max = FB_NODE_SESSIONS_DEFAULT;
    if (config->namespaces_max == 0)
        config->namespaces_max = NAMESPACES;
    if (config->drain_ms == 0)
        config->drain_ms = FB_SHUTDOWN_NS / FB_MS_NS;
}

/* The shard's settings as far as they follow from the node's. */
static void shard_config_of(const struct fb_node_config *config, struct fb_shard_config *out)
{
    *out = (struct fb_shard_config){
        .pool_bytes = config->pool_bytes,
        .index_entries = config->index_entries,
        .devices = config->ssd_path != NULL ? 1 : 0,
        .persist = config->persist,
        .drain_ms = config->drain_ms,
        .lease_ms = config->lease_ms,
        .hold_ms_max = config->hold_ms,
        .watermark_pct = config->watermark_pct,
        .device_write_bytes_per_s = config->device_write_bytes_per_s,
        .peers_max = config->sessions_max,
        .namespaces_max = config->namespaces_max,
        .log = {.capacity_bytes = config->ssd_cap_bytes, .node_id = config->node_id, .shards = 1},
    };
}

enum fb_node_failure fb_node_config_check(struct fb_node_config *config, char *why,
                                          size_t why_bytes)
{
    fill_defaults(config);
    if (!is_io_name(config->io))
        return bad(why, why_bytes, "--io '%s' is unknown; choose auto, uring or posix", config->io);
    if (config->sessions_max > SESSIONS_MAX)
        return bad(why, why_bytes, "--sessions is %u; at most %u: choose fewer",
                   config->sessions_max, SESSIONS_MAX);
    if (config->drain_ms > DRAIN_MS_MAX)
        return bad(why, why_bytes, "--drain-ms is %u; at most %u (10 minutes): choose less",
                   config->drain_ms, DRAIN_MS_MAX);
    enum fb_node_failure failure = check_addresses(config, why, why_bytes);
    if (failure == FB_NODE_OK)
        failure = check_sizes(config, why, why_bytes);
    if (failure != FB_NODE_OK)
        return failure;
    struct fb_shard_config shard;
    shard_config_of(config, &shard);
    if (fb_shard_config_check(&shard, why, why_bytes) != 0)
        return FB_NODE_BAD_CONFIG;
    return FB_NODE_OK;
}

/* ---- lines ---- */

void fb_node_say(struct fb_node *node, enum fb_logger_level level, const char *event,
                 const char *text)
{
    struct fb_logger_line line;
    fb_logger_begin(&line, level, event);
    fb_logger_text(&line, "text", text);
    fb_logger_write(&node->logger, &line, fb_node_now_ns());
}

static void say_device(void *context, const char *text)
{
    fb_node_say(context, FB_LOGGER_INFO, "device", text);
}

static void say_io(void *context, const char *text)
{
    fb_node_say(context, FB_LOGGER_INFO, "io", text);
}

__attribute__((format(printf, 3, 4))) static enum fb_node_failure cannot(char *why,
                                                                         size_t why_bytes,
                                                                         const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(why, why_bytes, format, args);
    va_end(args);
    return FB_NODE_CANNOT_START;
}

/* ---- descriptors ---- */

uint64_t fb_node_descriptors(const struct fb_node_config *config)
{
    return (uint64_t)FDS_PER_SESSION * config->sessions_max + FDS_BESIDE;
}

static void say_descriptors(struct fb_node *node)
{
    struct rlimit limit;
    uint64_t wanted = fb_node_descriptors(&node->config);
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted)
        return;
    struct fb_logger_line line;
    fb_logger_begin(&line, FB_LOGGER_WARN, "descriptors");
    fb_logger_u64(&line, "limit", limit.rlim_cur);
    fb_logger_u64(&line, "wanted", wanted);
    fb_logger_u64(&line, "sessions", node->config.sessions_max);
    fb_logger_text(&line, "cure",
                   "raise the limit of open files (ulimit -Hn, LimitNOFILE=), or fewer --sessions: "
                   "clients wait when there is no descriptor for them");
    fb_logger_write(&node->logger, &line, fb_node_now_ns());
}

/* ---- memory ---- */

static void *map(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

/* Says what all parts will take together, beside what there is. */
static void say_memory(struct fb_node *node)
{
    const char *from;
    uint64_t limit = fb_node_memory_limit(&from);
    uint64_t sessions =
        node->config.sessions_max *
        (uint64_t)(fb_proto_session_footprint(node->server) + sizeof(struct fb_node_conn));
    uint64_t sum =
        node->pool.bytes + node->shard_bytes + node->meta_bytes + node->server_bytes + sessions;
    node->facts.plan_bytes = sum;
    bool too_much = limit != 0 && sum > limit;
    struct fb_logger_line line;
    fb_logger_begin(&line, too_much ? FB_LOGGER_WARN : FB_LOGGER_INFO, "memory");
    fb_logger_size(&line, "sum_at_most", sum);
    fb_logger_size(&line, "pool", node->pool.bytes);
    fb_logger_size(&line, "index_and_engine", node->shard_bytes);
    fb_logger_size(&line, "device_buffers", node->meta_bytes);
    fb_logger_size(&line, "sessions", sessions);
    fb_logger_size(&line, "namespaces_and_frames", node->server_bytes);
    fb_logger_size(&line, "limit", limit);
    fb_logger_text(&line, "limit_of", from);
    fb_logger_text(&line, "pages",
                   node->pool.huge
                       ? "huge, set aside by the operator"
                       : "ordinary; made huge as they are backed, where the kernel can");
    if (too_much)
        fb_logger_text(&line, "cure", "a smaller --pool or --index-entries, or more memory");
    fb_logger_write(&node->logger, &line, fb_node_now_ns());
}

static enum fb_node_failure make_memory(struct fb_node *node, char *why, size_t why_bytes)
{
    char text[FB_SIZE_TEXT_BYTES];
    int rc = fb_node_pool_make(&node->pool, node->config.pool_bytes);
    if (rc != 0)
        return cannot(why, why_bytes, "--pool %s: %s; make it smaller, or raise the limit of %s",
                      fb_size_print(text, sizeof(text), node->config.pool_bytes), strerror(-rc),
                      rc == -EFBIG ? "a file's size (ulimit -f), which counts for it too"
                                   : "memory");
    node->shard_bytes = fb_align_up(fb_shard_footprint(&node->shard_config), FB_PAGE_BYTES);
    node->meta_bytes = fb_align_up(fb_shard_meta_footprint(&node->shard_config), FB_PAGE_BYTES);
    node->shard_memory = map(node->shard_bytes);
    node->meta = node->meta_bytes > 0 ? map(node->meta_bytes) : NULL;
    if (node->shard_memory == NULL || (node->meta == NULL && node->meta_bytes > 0))
        return cannot(why, why_bytes, "%s for the index of --index-entries %u: %s; make it smaller",
                      fb_size_print(text, sizeof(text), node->shard_bytes + node->meta_bytes),
                      node->shard_config.index_entries, strerror(errno));
    return FB_NODE_OK;
}

/* ---- device and I/O ---- */

/* The file in a directory, or what the operator named. False if that is a directory, by its slash,
 * and there is none. */
static bool ssd_path_of(const struct fb_node *node, char *out, size_t room)
{
    struct stat status;
    const char *path = node->config.ssd_path;
    bool is_directory = stat(path, &status) == 0 && S_ISDIR(status.st_mode);
    bool ends_in_slash = path[strlen(path) - 1] == '/';
    snprintf(out, room,
             is_directory ? ends_in_slash ? "%s" SSD_FILE_NAME : "%s/" SSD_FILE_NAME : "%s", path);
    return is_directory || !ends_in_slash;
}

static void say_disk(struct fb_node *node)
{
    struct statvfs disk;
    uint64_t free_bytes = 0;
    if (fstatvfs(node->device.fd, &disk) == 0)
        free_bytes = (uint64_t)disk.f_bavail * disk.f_frsize;
    int64_t used = fb_device_bytes(&node->device);
    uint64_t wanted = fb_sub_floored(node->config.ssd_cap_bytes, used > 0 ? (uint64_t)used : 0);
    bool too_much = !node->device.is_block && wanted + node->config.ssd_floor_bytes > free_bytes;
    struct fb_logger_line line;
    fb_logger_begin(&line, too_much ? FB_LOGGER_WARN : FB_LOGGER_INFO, "disk");
    fb_logger_text(&line, "path", node->device.path);
    fb_logger_size(&line, "cap", node->config.ssd_cap_bytes);
    fb_logger_size(&line, "used", used > 0 ? (uint64_t)used : 0);
    fb_logger_size(&line, "free", free_bytes);
    fb_logger_size(&line, "floor", node->config.ssd_floor_bytes);
    fb_logger_text(&line, "access",
                   node->device.is_direct ? "O_DIRECT" : "page cache, since --direct=off");
    if (too_much)
        fb_logger_text(&line, "cure",
                       "a smaller --ssd-cap, or free space: when there is none left the tier is "
                       "FULL until there is");
    fb_logger_write(&node->logger, &line, fb_node_now_ns());
}

static enum fb_node_failure open_device(struct fb_node *node, char *why, size_t why_bytes)
{
    if (node->config.ssd_path == NULL) {
        fb_node_say(node, FB_LOGGER_INFO, "disk", "no --ssd-path: values are kept in memory only");
        return FB_NODE_OK;
    }
    char path[FB_NODE_PATH_BYTES];
    if (!ssd_path_of(node, path, sizeof(path)))
        return cannot(
            why, why_bytes,
            "--ssd-path '%s': there is no such directory; make it, or leave out the slash "
            "for a file",
            path);
    struct fb_device_config config = {
        .path = path,
        .cap_bytes = node->config.ssd_cap_bytes,
        .floor_bytes = node->config.ssd_floor_bytes,
        .no_direct = node->config.no_direct,
        .lock_wait_ms = FB_DEVICE_LOCK_WAIT_MS,
        .say = say_device,
        .say_context = node,
    };
    if (fb_device_open(&config, &node->device, why, why_bytes) != 0)
        return FB_NODE_CANNOT_START;
    node->has_device = true;
    say_disk(node);
    return FB_NODE_OK;
}

static enum fb_node_failure open_io(struct fb_node *node, char *why, size_t why_bytes)
{
    struct fb_io_config config = {
        .backend = node->config.io,
        .arena = node->pool.base,
        .arena_bytes = node->pool.bytes,
        .meta = node->meta,
        .meta_bytes = node->meta_bytes,
        .devices = &node->device,
        .device_count = node->has_device ? 1 : 0,
        .fault_script = node->config.io_fault,
        .say = say_io,
        .say_context = node,
    };
    struct fb_io *io = NULL;
    int rc = fb_io_open(&config, &io, why, why_bytes);
    if (rc != 0)
        return rc == -EINVAL ? FB_NODE_BAD_CONFIG : FB_NODE_CANNOT_START;
    node->io = io;
    return FB_NODE_OK;
}

/* ---- what the server asks of the node ---- */

static void entropy(void *ctx, void *out, size_t bytes)
{
    (void)ctx;
    size_t got = 0;
    while (got < bytes) {
        ssize_t n = getrandom((uint8_t *)out + got, bytes - got, 0);
        FB_ASSERT(n > 0 || errno == EINTR);
        got += n > 0 ? (size_t)n : 0;
    }
}

static size_t status(void *ctx, char *out, size_t room)
{
    struct fb_node *node = ctx;
    struct fb_node_text text = {.at = out, .room = room};
    fb_node_publish(node, fb_node_now_ns(), true);
    fb_node_status(&node->snapshot, &node->facts, &text); /* this thread alone writes it */
    return text.used;
}

static void pong(void *ctx, struct fb_msg_pong *out)
{
    const struct fb_node *node = ctx;
    out->turn_age_us = (fb_node_now_ns() - atomic_load(&node->last_turn_ns)) / FB_US_NS;
    out->tier = (uint8_t)fb_shard_tier(node->shard);
    out->state = node->draining    ? FB_WIRE_DRAINING
                 : node->was_ready ? FB_WIRE_SERVING
                                   : FB_WIRE_RECOVERING;
}

/* ---- the parts together ---- */

static enum fb_node_failure make_shard(struct fb_node *node, char *why, size_t why_bytes)
{
    shard_config_of(&node->config, &node->shard_config);
    entropy(NULL, node->shard_config.log.device_seed, sizeof(node->shard_config.log.device_seed));
    if (fb_shard_config_check(&node->shard_config, why, why_bytes) != 0)
        return FB_NODE_BAD_CONFIG;
    enum fb_node_failure failure = make_memory(node, why, why_bytes);
    if (failure != FB_NODE_OK)
        return failure;
    struct fb_region region;
    fb_region_init(&region, node->shard_memory, node->shard_bytes);
    node->shard = fb_shard_init(&node->shard_config, &region, node->meta);
    return FB_NODE_OK;
}

static enum fb_node_failure make_server(struct fb_node *node, char *why, size_t why_bytes)
{
    struct fb_proto_server_config config = {
        .shard = node->shard,
        .pool = node->pool.base,
        .pool_bytes = node->pool.bytes,
        .node_id = node->config.node_id,
        .heartbeat_ms = FB_NODE_HEARTBEAT_MS,
        .namespaces_max = node->shard_config.namespaces_max,
        .ctx = node,
        .entropy = entropy,
        .status = status,
        .pong = pong,
    };
    uint32_t start;
    entropy(NULL, &config.boot_nonce, sizeof(config.boot_nonce));
    entropy(NULL, &start, sizeof(start));
    /* The number of a session of an earlier start names nothing in this one. */
    node->next_session = ((uint64_t)start << SESSION_BITS) + 1;
    node->facts.boot_nonce = config.boot_nonce;
    node->server_bytes = fb_align_up(fb_proto_server_footprint(&config), FB_PAGE_BYTES);
    node->server_memory = map(node->server_bytes);
    if (node->server_memory == NULL)
        return cannot(why, why_bytes, "%zu bytes for the sessions: %s; free some memory",
                      node->server_bytes, strerror(errno));
    struct fb_region region;
    fb_region_init(&region, node->server_memory, node->server_bytes);
    node->server = fb_proto_server_init(&config, &region);
    return FB_NODE_OK;
}

static void on_wake(struct fb_node *node, struct fb_node_watch *watch, uint32_t events)
{
    (void)events;
    uint64_t count;
    ssize_t n = read(watch->fd, &count, sizeof(count));
    (void)n;
    fb_node_helper_news(node, fb_node_now_ns());
}

/* Finished I/O is taken in every turn; this only ends the sleep. */
static void on_io(struct fb_node *node, struct fb_node_watch *watch, uint32_t events)
{
    (void)watch;
    (void)events;
    node->io_told = true;
}

static enum fb_node_failure make_loop(struct fb_node *node, char *why, size_t why_bytes)
{
    node->epoll = epoll_create1(EPOLL_CLOEXEC);
    node->wake =
        (struct fb_node_watch){.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), .ready = on_wake};
    node->io_ready = (struct fb_node_watch){.fd = fb_io_event_fd(node->io), .ready = on_io};
    if (node->epoll < 0 || node->wake.fd < 0 ||
        fb_node_watch_set(node, &node->wake, EPOLLIN) != 0 ||
        fb_node_watch_set(node, &node->io_ready, EPOLLIN) != 0)
        return cannot(why, why_bytes, "epoll: %s; raise the limit of open files", strerror(errno));
    return FB_NODE_OK;
}

static void note_facts(struct fb_node *node)
{
    struct fb_node_facts *facts = &node->facts;
    snprintf(facts->io_name, sizeof(facts->io_name), "%s", node->io->ops->name);
    snprintf(facts->ssd_path, sizeof(facts->ssd_path), "%s",
             node->has_device ? node->device.path : "");
    facts->ssd_cap_bytes = node->config.ssd_cap_bytes;
    facts->ssd_floor_bytes = node->config.ssd_floor_bytes;
    facts->node_id = node->config.node_id;
    facts->pool_bytes = node->pool.bytes;
    facts->index_bytes = node->shard_bytes;
    facts->value_bytes_max = fb_shard_value_bytes_max(node->shard);
    facts->value_limit = fb_shard_value_limit(node->shard);
    facts->chunk_bytes = fb_shard_chunk_bytes(node->shard);
    facts->sessions_max = node->config.sessions_max;
    facts->namespaces_max = node->config.namespaces_max;
    facts->huge_pages = node->pool.huge;
    facts->has_device = node->has_device;
    facts->is_direct = node->has_device && node->device.is_direct;
}

/* Warns if values are limited by less than the pool: whoever sized the pool for them is surprised.
 */
static void say_value_limit(struct fb_node *node)
{
    uint64_t most = fb_shard_value_bytes_max(node->shard);
    uint64_t of_pool = fb_shard_value_bytes_of_pool(node->shard);
    if (most >= of_pool)
        return;
    bool by_device = fb_shard_value_limit(node->shard) == FB_VALUE_LIMIT_DEVICE;
    struct fb_logger_line line;
    fb_logger_begin(&line, FB_LOGGER_WARN, "value_limit");
    fb_logger_size(&line, "value_at_most", most);
    fb_logger_size(&line, "pool_would_allow", of_pool);
    fb_logger_text(&line, "limit_of",
                   by_device ? "a quarter of --ssd-cap" : "half of --index-entries, one a part");
    fb_logger_text(&line, "cure",
                   by_device ? "a larger --ssd-cap, if larger values are put"
                             : "more --index-entries, if larger values are put");
    fb_logger_write(&node->logger, &line, fb_node_now_ns());
}

static void say_addresses(struct fb_node *node)
{
    struct fb_logger_line line;
    fb_logger_begin(&line, FB_LOGGER_INFO, "listening");
    fb_logger_text(&line, "tcp", node->tcp.address[0] != '\0' ? node->tcp.address : "none");
    fb_logger_text(&line, "socket", node->local.address[0] != '\0' ? node->local.address : "none");
    fb_logger_text(&line, "admin",
                   fb_node_admin_address(node)[0] != '\0' ? fb_node_admin_address(node) : "none");
    fb_logger_write(&node->logger, &line, fb_node_now_ns());
    if (node->config.insecure_bind)
        fb_node_say(node, FB_LOGGER_WARN, "insecure_bind",
                    "whoever reaches the addresses reads and writes: there are no credentials");
}

static enum fb_node_failure build(struct fb_node *node, char *why, size_t why_bytes)
{
    enum fb_node_failure (*const steps[])(struct fb_node *, char *, size_t) = {
        open_device,    make_shard,          open_io, make_server, make_loop,
        fb_node_listen, fb_node_admin_start,
    };
    for (unsigned i = 0; i < FB_ARRAY_COUNT(steps); i++) {
        enum fb_node_failure failure = steps[i](node, why, why_bytes);
        if (failure != FB_NODE_OK)
            return failure;
    }
    note_facts(node);
    say_memory(node);
    say_value_limit(node);
    say_descriptors(node);
    say_addresses(node);
    node->started_ns = fb_node_now_ns();
    atomic_store(&node->last_turn_ns, node->started_ns);
    fb_node_publish(node, node->started_ns, true);
    fb_shard_start(node->shard, node->started_ns, fb_node_wall_ms(), node->config.format);
    int rc = fb_node_helper_start(node);
    if (rc != 0)
        return cannot(why, why_bytes, "a thread: %s; raise the limit of processes", strerror(-rc));
    return FB_NODE_OK;
}

enum fb_node_failure fb_node_make(const struct fb_node_config *config, struct fb_node **out,
                                  char *why, size_t why_bytes)
{
    struct fb_node *node = calloc(1, sizeof(*node));
    if (node == NULL)
        return cannot(why, why_bytes, "no memory for the node itself");
    node->config = *config;
    node->epoll = node->wake.fd = node->io_ready.fd = node->tcp.watch.fd = node->local.watch.fd =
        -1;
    node->pool.fd = -1;
    fb_list_init(&node->conns);
    fb_list_init(&node->zombies);
    fb_list_init(&node->ready);
    fb_list_init(&node->big_waiters);
    pthread_mutex_init(&node->snapshot_lock, NULL);
    fb_logger_init(&node->logger, config->log_sink, config->log_context, config->log_level,
                   FB_NODE_LOG_BURST, FB_NODE_LOG_PER_SECOND, fb_node_now_ns());
    enum fb_node_failure failure = build(node, why, why_bytes);
    if (failure != FB_NODE_OK) {
        fb_node_free(node);
        return failure;
    }
    *out = node;
    return FB_NODE_OK;
}

static void unmap(void *memory, size_t bytes)
{
    if (memory != NULL)
        munmap(memory, bytes);
}

void fb_node_free(struct fb_node *node)
{
    if (node == NULL)
        return;
    fb_node_admin_stop(node);
    fb_node_helper_stop(node);
    fb_node_listen_stop(node);
    FB_LIST_FOREACH_SAFE (link, next, &node->conns)
        fb_node_conn_close(node, FB_LIST_ITEM(link, struct fb_node_conn, all));
    /* Nothing touches the pool any more from here; operations are dropped with the shard. */
    if (node->io != NULL)
        fb_io_close(node->io);
    fb_node_conn_drop(node);
    if (node->has_device)
        fb_device_close(&node->device);
    if (node->wake.fd >= 0)
        close(node->wake.fd);
    if (node->epoll >= 0)
        close(node->epoll);
    unmap(node->server_memory, node->server_bytes);
    unmap(node->shard_memory, node->shard_bytes);
    unmap(node->meta, node->meta_bytes);
    fb_node_pool_free(&node->pool);
    if (node->draining) {
        /* Giving a large pool back takes long: a supervisor waits for this line, not for
         * drain_ended. */
        struct fb_logger_line line;
        uint64_t now_ns = fb_node_now_ns();
        fb_logger_begin(&line, FB_LOGGER_INFO, "ended");
        fb_logger_u64(&line, "took_ms", (now_ns - node->drain_begun_ns) / FB_MS_NS);
        fb_logger_write(&node->logger, &line, now_ns);
    }
    pthread_mutex_destroy(&node->snapshot_lock);
    free(node);
}
