/*
 * The data thread: one loop that moves what is ready, a bounded piece at a time, and sleeps until
 * something is.
 *
 * A turn: sockets that are ready; connections that had more than a turn's work; finished I/O into
 * the shard; the shard's wishes out; answers out; a snapshot for who asks. Nothing in it waits.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/bits.h"
#include "base/result.h"
#include "node/node_private.h"

#define PUMP_ROUNDS 4 /* of I/O and answers in one turn */

uint64_t fb_node_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * FB_SEC_NS + (uint64_t)now.tv_nsec;
}

uint64_t fb_node_wall_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / FB_MS_NS;
}

int fb_node_watch_set(struct fb_node *node, struct fb_node_watch *watch, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = watch};
    FB_ASSERT(watch->fd >= 0);
    int rc = epoll_ctl(node->epoll, EPOLL_CTL_MOD, watch->fd, &event);
    if (rc != 0 && errno == ENOENT)
        rc = epoll_ctl(node->epoll, EPOLL_CTL_ADD, watch->fd, &event);
    if (rc != 0)
        return -errno;
    watch->events = events;
    return 0;
}

void fb_node_watch_close(struct fb_node *node, struct fb_node_watch *watch)
{
    if (watch->fd < 0)
        return;
    epoll_ctl(node->epoll, EPOLL_CTL_DEL, watch->fd, NULL);
    close(watch->fd);
    watch->fd = -1;
    watch->events = 0;
}

void fb_node_wake(struct fb_node *node)
{
    uint64_t one = 1;
    ssize_t n = write(node->wake.fd, &one, sizeof(one)); /* a full one is readable already */
    (void)n;
}

void fb_node_stop(struct fb_node *node)
{
    atomic_fetch_add(&node->stops, 1);
    fb_node_wake(node);
}

/* ---- the end of a run ---- */

static void fail(struct fb_node *node, enum fb_node_failure failure, const char *why)
{
    if (node->finished)
        return;
    node->failure = failure;
    snprintf(node->why, sizeof(node->why), "%s", why);
    node->finished = true;
}

static uint64_t dirty_bytes(const struct fb_node *node)
{
    struct fb_shard_stats stats;
    fb_shard_stats(node->shard, &stats);
    return stats.dirty_bytes;
}

static void drain_begin(struct fb_node *node, uint64_t now_ns)
{
    node->draining = true;
    node->drain_begun_ns = now_ns;
    node->drain_until_ns = now_ns + node->config.drain_ms * FB_MS_NS;
    node->drain_dirty_bytes = dirty_bytes(node);
    fb_node_listen_stop(node);
    struct fb_logger_line line;
    fb_logger_begin(&line, FB_LOGGER_INFO, "drain_begun");
    fb_logger_size(&line, "dirty", node->drain_dirty_bytes);
    fb_logger_u64(&line, "within_ms", node->config.drain_ms);
    fb_logger_u64(&line, "connections", node->stats.connections);
    fb_logger_write(&node->logger, &line, now_ns);
    fb_shard_drain(node->shard, now_ns);
}

/* Says what the drain did; the run is over. */
static void drain_end(struct fb_node *node, uint64_t now_ns, const char *how)
{
    uint64_t left = dirty_bytes(node);
    struct fb_logger_line line;
    fb_logger_begin(&line, left > 0 && node->has_device ? FB_LOGGER_WARN : FB_LOGGER_INFO,
                    "drain_ended");
    fb_logger_text(&line, "how", how);
    fb_logger_size(&line, "persisted", fb_sub_floored(node->drain_dirty_bytes, left));
    fb_logger_size(&line, "left_in_memory_only", left);
    fb_logger_u64(&line, "took_ms", (now_ns - node->drain_begun_ns) / FB_MS_NS);
    fb_logger_write(&node->logger, &line, now_ns);
    node->finished = true;
}

static void check_stop(struct fb_node *node, uint64_t now_ns)
{
    unsigned stops = atomic_load(&node->stops);
    if (stops == 0 || node->finished)
        return;
    if (!node->draining)
        drain_begin(node, now_ns);
    if (stops > 1)
        drain_end(node, now_ns, "stopped at once by a second signal");
    else if (fb_shard_drained(node->shard))
        drain_end(node, now_ns, "all that was dirty is persisted, or could not be");
    else if (now_ns >= node->drain_until_ns)
        drain_end(node, now_ns, "its time was over");
}

/* ---- one turn ---- */

/* What clients can count on: known when the device is, and the pool is backed by memory. */
static void say_limits(struct fb_node *node, uint64_t now_ns)
{
    bool is_backed = node->told_faulted == node->pool.bytes || node->told_fault_error;
    if (node->told_limits || !node->was_ready || !is_backed)
        return;
    node->told_limits = true;
    struct fb_shard_stats stats;
    fb_shard_stats(node->shard, &stats);
    struct fb_logger_line line;
    fb_logger_begin(&line, FB_LOGGER_INFO, "limits");
    fb_logger_size(&line, "pool_in_huge_pages", atomic_load(&node->pool.huge_bytes));
    fb_logger_size(&line, "dirty_at_most", stats.dirty_limit_bytes);
    fb_logger_u64(&line, "drain_ms", node->config.drain_ms);
    fb_logger_size(&line, "device_write_per_s", node->shard_config.device_write_bytes_per_s);
    fb_logger_size(&line, "value_at_most", fb_shard_value_bytes_max(node->shard));
    fb_logger_u64(&line, "index_entries", node->shard_config.index_entries);
    fb_logger_u64(&line, "sessions", node->config.sessions_max);
    fb_logger_write(&node->logger, &line, now_ns);
}

static void check_ready(struct fb_node *node, uint64_t now_ns)
{
    int ready = fb_shard_ready(node->shard);
    if (ready < 0) {
        char why[FB_NODE_WHY_BYTES];
        snprintf(why, sizeof(why), "--ssd-path %s: %s (--format=on allows to overwrite it)",
                 node->device.path, fb_shard_start_error(node->shard));
        fail(node, FB_NODE_CANNOT_START, why);
        return;
    }
    if (ready == 0 || node->was_ready)
        return;
    node->was_ready = true;
    node->told_tier = fb_shard_tier(node->shard);
    struct fb_log_stats log;
    fb_shard_log_stats(node->shard, &log);
    struct fb_logger_line line;
    fb_logger_begin(&line, FB_LOGGER_INFO, "serving");
    fb_logger_text(&line, "tier", fb_node_tier_name(fb_shard_tier(node->shard)));
    fb_logger_u64(&line, "recovered_records", log.recovered_records);
    fb_logger_size(&line, "recovery_read", log.recovery_bytes_read);
    fb_logger_u64(&line, "torn_tail", log.torn_tail);
    fb_logger_u64(&line, "rot", log.rot_descriptors);
    fb_logger_u64(&line, "took_ms", (now_ns - node->started_ns) / FB_MS_NS);
    fb_logger_write(&node->logger, &line, now_ns);
    fb_node_publish(node, now_ns, true); /* who is told may look at once */
    if (node->config.ready != NULL)
        node->config.ready(node->config.ready_context);
}

/* Tells when the tier goes out of service, fills up, or is well again. */
static void watch_tier(struct fb_node *node, uint64_t now_ns)
{
    enum fb_tier_state tier = fb_shard_tier(node->shard);
    if (tier == FB_TIER_THROTTLED)
        tier = FB_TIER_ON; /* comes and goes under load; the metric has it */
    if (tier == node->told_tier || !node->was_ready)
        return;
    bool is_well = tier == FB_TIER_ON || tier == FB_TIER_OFF;
    struct fb_log_stats log;
    fb_shard_log_stats(node->shard, &log);
    struct fb_logger_line line;
    fb_logger_begin(&line, is_well ? FB_LOGGER_INFO : FB_LOGGER_ERROR, "tier_changed");
    fb_logger_text(&line, "from", fb_node_tier_name(node->told_tier));
    fb_logger_text(&line, "to", fb_node_tier_name(tier));
    fb_logger_u64(&line, "write_errors", log.write_errors);
    fb_logger_u64(&line, "flush_errors", log.flush_errors);
    fb_logger_u64(&line, "no_space", log.no_space);
    fb_logger_write(&node->logger, &line, now_ns);
    node->told_tier = tier;
}

static size_t move_io(struct fb_node *node, uint64_t now_ns)
{
    struct fb_io_req *done[FB_NODE_REAP];
    /* While nothing is under way, and nothing was told of, there is nothing to ask the backend. */
    bool ask = node->io_pending > 0 || node->io_told;
    size_t moved = ask ? fb_io_reap(node->io, done, FB_NODE_REAP) : 0;
    node->io_told = false;
    FB_ASSERT(moved <= node->io_pending);
    node->io_pending -= moved;
    for (size_t i = 0; i < moved; i++)
        fb_shard_io_done(node->shard, now_ns, done[i]);
    struct fb_io_req *request;
    for (unsigned i = 0; i < FB_NODE_SUBMIT_MAX; i++) {
        request = fb_shard_take_io(node->shard, now_ns);
        if (request == NULL)
            break;
        fb_io_submit(node->io, request);
        node->io_pending++;
        moved++;
    }
    return moved;
}

static size_t move_answers(struct fb_node *node, uint64_t now_ns)
{
    size_t moved = 0;
    fb_proto_server_pump(node->server, now_ns);
    struct fb_proto_session *session;
    while ((session = fb_proto_server_next(node->server)) != NULL) {
        fb_node_conn_news(node, (struct fb_node_conn *)(uintptr_t)fb_proto_session_cookie(session));
        moved++;
    }
    return moved;
}

static void drop_notices(struct fb_node *node)
{
    struct fb_notice notice;
    while (fb_shard_take_notice(node->shard, &notice))
        node->stats.notices++; /* there is no directory to be told yet */
}

static void sweep(struct fb_node *node, uint64_t now_ns)
{
    if (now_ns < node->next_sweep_ns)
        return;
    node->next_sweep_ns = now_ns + FB_NODE_SWEEP_NS;
    FB_LIST_FOREACH_SAFE (link, next, &node->conns)
        fb_node_conn_sweep(node, FB_LIST_ITEM(link, struct fb_node_conn, all), now_ns);
    if (node->tcp.watch.fd >= 0 && node->tcp.watch.events == 0)
        fb_node_watch_set(node, &node->tcp.watch, EPOLLIN);
    if (node->local.watch.fd >= 0 && node->local.watch.events == 0)
        fb_node_watch_set(node, &node->local.watch, EPOLLIN);
}

/* Connections that had more to do than their turn allowed: each once. */
static void take_turns(struct fb_node *node)
{
    struct fb_list now;
    fb_list_init(&now);
    fb_list_append(&now, &node->ready);
    struct fb_link *link;
    while ((link = fb_list_pop_front(&now)) != NULL)
        fb_node_conn_turn(node, FB_LIST_ITEM(link, struct fb_node_conn, ready));
}

static void turn(struct fb_node *node, const struct epoll_event *events, int count)
{
    uint64_t now = fb_node_now_ns();
    uint64_t begun = now;
    fb_shard_tick(node->shard, now, fb_node_wall_ms());
    fb_proto_server_tick(node->server, now);
    for (int i = 0; i < count; i++) {
        struct fb_node_watch *watch = events[i].data.ptr;
        if (watch->fd >= 0)
            watch->ready(node, watch, events[i].events);
    }
    take_turns(node);
    size_t moved = 1;
    for (unsigned round = 0; round < PUMP_ROUNDS && moved > 0; round++) {
        now = fb_node_now_ns();
        moved = move_io(node, now) + move_answers(node, now);
    }
    if (node->io_pending > 0)
        fb_io_kick(node->io);
    drop_notices(node);
    check_ready(node, now);
    say_limits(node, now);
    watch_tier(node, now);
    check_stop(node, now);
    sweep(node, now);
    fb_node_conn_bury(node);
    now = fb_node_now_ns();
    node->stats.turns++;
    node->unpublished = true;
    node->stats.turn_max_ns = fb_max_u64(node->stats.turn_max_ns, now - begun);
    atomic_store(&node->last_turn_ns, now);
}

/* ---- sleep ---- */

static uint64_t next_ns(const struct fb_node *node, uint64_t now_ns)
{
    if (!fb_list_is_empty(&node->ready))
        return now_ns;
    uint64_t next =
        fb_min_u64(fb_shard_next_ns(node->shard), fb_proto_server_next_ns(node->server));
    if (node->draining)
        next = fb_min_u64(next, node->drain_until_ns);
    return fb_min_u64(next, node->next_sweep_ns);
}

static int wait_for(struct fb_node *node, struct epoll_event *events)
{
    uint64_t now = fb_node_now_ns();
    uint64_t next = next_ns(node, now);
    bool wanted = atomic_load(&node->snapshot_wanted);
    if (wanted)
        atomic_store(&node->snapshot_wanted, false);
    fb_node_publish(node, now, wanted);
    if (node->unpublished)
        next = fb_min_u64(next, node->published_ns + FB_NODE_PUBLISH_LATE_NS);
    uint64_t left = fb_sub_floored(next, now);
    struct timespec timeout = {.tv_sec = (time_t)(left / FB_SEC_NS),
                               .tv_nsec = (long)(left % FB_SEC_NS)};
    int count = epoll_pwait2(node->epoll, events, FB_NODE_EVENTS, &timeout, NULL);
    if (count < 0 && errno == ENOSYS) /* before Linux 5.11: whole milliseconds, rounded up */
        count = epoll_wait(node->epoll, events, FB_NODE_EVENTS,
                           (int)((left + FB_MS_NS - 1) / FB_MS_NS));
    if (count < 0 && errno != EINTR)
        fail(node, FB_NODE_FAILED, strerror(errno));
    return count < 0 ? 0 : count;
}

/* The last words: every client is told, and has a moment to hear it. */
static void farewell(struct fb_node *node)
{
    FB_LIST_FOREACH_SAFE (link, next, &node->conns) {
        struct fb_node_conn *conn = FB_LIST_ITEM(link, struct fb_node_conn, all);
        fb_proto_session_refuse(conn->session, FB_SHUTTING_DOWN, "the node goes down");
        fb_node_conn_news(node, conn);
    }
    uint64_t until = fb_node_now_ns() + FB_NODE_FAREWELL_NS;
    struct epoll_event events[FB_NODE_EVENTS];
    while (node->stats.connections > 0 && fb_node_now_ns() < until) {
        int count = epoll_wait(node->epoll, events, FB_NODE_EVENTS, 10);
        for (int i = 0; i < count; i++) {
            struct fb_node_watch *watch = events[i].data.ptr;
            if (watch->fd >= 0 && watch != &node->wake && watch != &node->io_ready)
                watch->ready(node, watch, events[i].events);
        }
        move_answers(node, fb_node_now_ns());
    }
}

enum fb_node_failure fb_node_run(struct fb_node *node, char *why, size_t why_bytes)
{
    struct epoll_event events[FB_NODE_EVENTS];
    int count = 0;
    node->next_sweep_ns = fb_node_now_ns();
    while (!node->finished) {
        turn(node, events, count);
        count = node->finished ? 0 : wait_for(node, events);
    }
    if (node->failure == FB_NODE_OK)
        farewell(node);
    fb_node_publish(node, fb_node_now_ns(), true);
    snprintf(why, why_bytes, "%s", node->why);
    return node->failure;
}
