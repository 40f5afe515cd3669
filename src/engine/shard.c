/*
 * shard.c - the shard as a whole: start, operations in, the pump, events and I/O out.
 *
 * Every call notes what happened, lets the module that it concerns change its state, and ends with
 * the pump: a bounded round through all modules that may now go on. What is left over goes on in
 * the next call, and fb_shard_next_ns() says so.
 */
#include "engine/shard_private.h"

/* ---- time, generations, notices ---- */

uint32_t fb_shard_beat_at(const struct fb_shard *shard, uint64_t ns)
{
    uint64_t since = fb_sub_floored(ns, shard->start_ns);
    uint64_t beat =
        (since >> FB_BEAT_SHIFT) + ((since & ((UINT64_C(1) << FB_BEAT_SHIFT) - 1)) != 0);
    FB_ASSERT(beat < UINT32_MAX);
    /* Beat 0 is "never" for leases. */
    return (uint32_t)beat + 1;
}

uint32_t fb_shard_beat(const struct fb_shard *shard)
{
    return (uint32_t)(fb_sub_floored(shard->now_ns, shard->start_ns) >> FB_BEAT_SHIFT) + 1;
}

uint64_t fb_shard_generation(struct fb_shard *shard)
{
    shard->counter++;
    FB_ASSERT(shard->counter <= FB_GENERATION_COUNTER_MAX);
    return shard->boot << FB_GENERATION_BOOT_SHIFT | shard->counter;
}

void fb_shard_notice(struct fb_shard *shard, enum fb_notice_kind kind, const struct fb_entry *head)
{
    if (kind == FB_NOTICE_ANNOUNCE)
        shard->stats.notices_announced++;
    else
        shard->stats.notices_withdrawn++;
    uint64_t sequence = ++shard->sequence;
    /* Nobody listens yet: the oldest is dropped, and the gap in the sequence tells. */
    if (shard->notices_count == FB_SHARD_NOTICES) {
        shard->notices_first = (shard->notices_first + 1) % FB_SHARD_NOTICES;
        shard->notices_count--;
    }
    uint32_t at = (shard->notices_first + shard->notices_count) % FB_SHARD_NOTICES;
    shard->notices_count++;
    shard->notices[at] = (struct fb_notice){
        .kind = (uint8_t)kind,
        .tiers =
            (uint8_t)((head->extent != FB_ARENA_NONE ? 1 : 0) | (fb_entry_has_addr(head) ? 2 : 0)),
        .digest = head->digest,
        .generation = head->generation,
        .sequence = sequence,
    };
}

bool fb_shard_take_notice(struct fb_shard *shard, struct fb_notice *out)
{
    if (shard->notices_count == 0)
        return false;
    *out = shard->notices[shard->notices_first];
    shard->notices_first = (shard->notices_first + 1) % FB_SHARD_NOTICES;
    shard->notices_count--;
    return true;
}

/* ---- what the log calls ---- */

static void on_durable(void *ctx, struct fb_log_item *item, int result)
{
    struct fb_shard *shard = ctx;
    FB_ASSERT(item->cookie < shard->config.write_items);
    struct fb_write *slot = &shard->writes[item->cookie];
    FB_ASSERT(&slot->item == item && slot->phase == FB_WRITE_LOG);
    shard->again = true;
    switch (slot->kind) {
    case FB_WRITE_PART:
        fb_clean_durable(shard, slot, result);
        break;
    case FB_WRITE_KILL:
        fb_kill_durable(shard, slot, result);
        break;
    case FB_WRITE_COPY:
        fb_reclaim_durable(shard, slot, result);
        break;
    default:
        FB_UNREACHABLE();
    }
}

static void on_read_done(void *ctx, struct fb_log_read *read, int result)
{
    struct fb_shard *shard = ctx;
    FB_ASSERT(read->cookie < shard->config.read_slots);
    struct fb_read *slot = &shard->reads[read->cookie];
    FB_ASSERT(&slot->read == read && slot->kind != FB_READ_FREE);
    shard->again = true;
    slot->result = result;
    fb_list_push_back(&shard->reads_done, &slot->link);
}

static void on_changed(void *ctx)
{
    struct fb_shard *shard = ctx;
    shard->again = true;
}

static const struct fb_log_owner log_owner = {
    .durable = on_durable,
    .read_done = on_read_done,
    .recovered = fb_recover_record,
    .recovery_done = fb_recover_done,
    .judge = fb_reclaim_judge,
    .copy = fb_reclaim_copy,
    .dropped = fb_reclaim_dropped,
    .changed = on_changed,
};

/* ---- start ---- */

struct fb_shard *fb_shard_init(const struct fb_shard_config *config, struct fb_region *region,
                               void *meta)
{
    FB_ASSERT(!fb_region_is_counting(region));
    return fb_shard_carve(config, region, meta, &log_owner);
}

/* Without a device there is no boot counter: the wall clock makes generations rise over restarts.
 * The boot is minutes, the counter begins at the milliseconds of this one. */
static void start_without_device(struct fb_shard *shard)
{
    uint64_t since_ms = fb_sub_floored(shard->wall_ms, FB_SHARD_BOOT_ZERO_MS);
    shard->boot = 1 + since_ms / FB_SHARD_BOOT_MS;
    shard->counter = since_ms % FB_SHARD_BOOT_MS << FB_SHARD_BOOT_SHIFT;
    shard->ready = 1;
}

void fb_shard_start(struct fb_shard *shard, uint64_t now_ns, uint64_t wall_ms, bool format)
{
    FB_ASSERT(shard->ready == 0 && shard->start_ns == 0);
    shard->start_ns = now_ns;
    shard->now_ns = now_ns;
    shard->wall_ms = wall_ms;
    shard->rate_from_ns = now_ns;
    shard->held_beat = fb_shard_beat(shard);
    shard->lease_beat = shard->held_beat;
    fb_wheel_init(&shard->wheel, now_ns);
    fb_history_begin(&shard->history, wall_ms);
    if (shard->log == NULL) {
        start_without_device(shard);
        return;
    }
    fb_log_start(shard->log, now_ns, format);
    fb_log_tick(shard->log, now_ns, wall_ms); /* its first record may come before the next one */
}

int fb_shard_ready(const struct fb_shard *shard)
{
    return shard->ready;
}

const char *fb_shard_start_error(const struct fb_shard *shard)
{
    return shard->start_error == NULL ? "" : shard->start_error;
}

void fb_shard_pool_faulted(struct fb_shard *shard, uint64_t bytes)
{
    fb_arena_faulted(&shard->arena, bytes);
    shard->cap_pages = (uint32_t)fb_sub_floored(shard->arena.faulted_pages, shard->staging_pages);
    shard->again = true;
    fb_shard_pump(shard);
}

void fb_shard_pool_whole(struct fb_shard *shard)
{
    shard->pool_is_whole = true;
    shard->again = true;
    fb_shard_pump(shard);
}

uint32_t fb_shard_chunk_bytes(const struct fb_shard *shard)
{
    return shard->chunk_bytes;
}

uint64_t fb_shard_value_bytes_max(const struct fb_shard *shard)
{
    return shard->value_bytes_max;
}

enum fb_value_limit fb_shard_value_limit(const struct fb_shard *shard)
{
    return shard->value_limit;
}

uint64_t fb_shard_value_bytes_of_pool(const struct fb_shard *shard)
{
    return shard->value_bytes_of_pool;
}

/* ---- events ---- */

void fb_op_event(struct fb_shard *shard, struct fb_op *op, unsigned event)
{
    op->events = (uint8_t)(op->events | event);
    if (!fb_link_is_linked(&op->event_link))
        fb_list_push_back(&shard->events, &op->event_link);
}

struct fb_op *fb_shard_take_event(struct fb_shard *shard, unsigned *events)
{
    struct fb_link *link = fb_list_pop_front(&shard->events);
    if (link == NULL)
        return NULL;
    struct fb_op *op = FB_LIST_ITEM(link, struct fb_op, event_link);
    *events = op->events;
    op->events = 0;
    return op;
}

static void count_get(struct fb_shard *shard, const struct fb_op *op)
{
    if (op->result != FB_OK) {
        shard->stats.get_misses[op->reason == FB_REASON_NONE ? FB_REASON_NO_RECORD : op->reason]++;
        return;
    }
    shard->stats.get_hits++;
    if ((op->tiers & 2) != 0)
        shard->stats.get_hits_ssd++;
    else
        shard->stats.get_hits_dram++;
    uint64_t end = fb_min_u64(fb_add_saturated(op->range_off, op->range_bytes), op->value_bytes);
    shard->stats.get_bytes += fb_sub_floored(end, op->range_off);
}

void fb_op_done(struct fb_shard *shard, struct fb_op *op, int result, enum fb_reason reason)
{
    FB_ASSERT((op->marks & FB_OP_DONE) == 0 && op->state != FB_OP_STATE_CLOSED);
    op->marks |= FB_OP_DONE;
    op->result = result;
    op->reason = (uint8_t)reason;
    fb_wheel_clear(&shard->wheel, &op->timer);
    /* Counted where they end, so that the families add up at any moment. */
    if (op->kind == FB_OP_GET) {
        shard->stats.gets++;
        count_get(shard, op);
    }
    if (op->kind == FB_OP_PUT) {
        shard->stats.puts++;
        int index = fb_result_index(result);
        FB_ASSERT(index >= 0);
        shard->stats.put_results[index]++;
    }
    fb_op_event(shard, op, FB_EV_DONE);
}

void fb_op_close(struct fb_shard *shard, struct fb_op *op)
{
    FB_ASSERT((op->marks & FB_OP_DONE) != 0 && op->state != FB_OP_STATE_CLOSED);
    FB_ASSERT(!fb_link_is_linked(&op->link) && !fb_timer_is_set(&op->timer));
    op->state = FB_OP_STATE_CLOSED;
    fb_list_remove(&op->peer_link);
    shard->open_ops--;
    fb_op_event(shard, op, FB_EV_CLOSED);
}

void fb_op_end(struct fb_shard *shard, struct fb_op *op, int result, enum fb_reason reason)
{
    if ((op->marks & FB_OP_DONE) == 0)
        fb_op_done(shard, op, result, reason);
    fb_op_close(shard, op);
}

/* ---- peers ---- */

void fb_shard_peer_open(struct fb_shard *shard, struct fb_peer *peer)
{
    (void)shard;
    uint64_t cookie = peer->cookie;
    *peer = (struct fb_peer){.cookie = cookie};
    fb_list_init(&peer->queue);
    fb_list_init(&peer->ops);
    fb_link_init(&peer->turn);
}

bool fb_shard_peer_idle(const struct fb_peer *peer)
{
    return fb_list_is_empty(&peer->ops);
}

/* Takes an operation off the queue that it is on, and ends it; one that has its result only waits.
 */
static void abandon(struct fb_shard *shard, struct fb_op *op, int result, bool proven)
{
    switch (op->state) {
    case FB_OP_STATE_PUT:
        fb_put_abandon(shard, op, proven);
        break;
    case FB_OP_STATE_READING:
    case FB_OP_STATE_CLOSING:
        fb_get_abandon(shard, op, proven);
        break;
    case FB_OP_STATE_KILLING:
        fb_kill_leave(shard, op);
        fb_op_end(shard, op, result, FB_REASON_NONE);
        break;
    case FB_OP_STATE_NAMES:
        fb_space_leave(shard, op, result);
        break;
    case FB_OP_STATE_LISTING:
        fb_listing_leave(shard, op, result);
        break;
    case FB_OP_STATE_PARKED:
    case FB_OP_STATE_FLUSHING:
    case FB_OP_STATE_LOOKING:
        fb_list_remove(&op->link);
        fb_op_end(shard, op, result, FB_REASON_WRITER_DIED);
        break;
    default:
        FB_UNREACHABLE();
    }
}

void fb_shard_peer_gone(struct fb_shard *shard, uint64_t now_ns, struct fb_peer *peer, bool proven)
{
    shard->now_ns = now_ns;
    peer->gone = true;
    peer->proven |= proven;
    /* Ending one operation may end others of the same peer: who waits for the same key. So the list
     * is moved aside, and each is put back before it is looked at. */
    struct fb_list left;
    fb_list_init(&left);
    fb_list_append(&left, &peer->ops);
    struct fb_link *link;
    while ((link = fb_list_pop_front(&left)) != NULL) {
        fb_list_push_back(&peer->ops, link);
        abandon(shard, FB_LIST_ITEM(link, struct fb_op, peer_link), FB_CONNECTION, proven);
    }
    fb_shard_pump(shard);
}

/* ---- operations ---- */

/* Ends an operation whose namespace is unknown or has moved on. */
static void refuse_space(struct fb_shard *shard, struct fb_op *op, bool known)
{
    bool reads = op->kind == FB_OP_GET || op->kind == FB_OP_LOOKUP;
    enum fb_reason reason = known ? FB_REASON_EPOCH_BUMPED : FB_REASON_NAMESPACE_UNKNOWN;
    if (op->kind == FB_OP_LOOKUP && op->found != NULL) {
        memset(op->found, 0, op->n);
        shard->stats.lookups += op->n;
        shard->stats.lookup_misses[reason] += op->n;
    }
    fb_op_end(shard, op, known ? FB_STALE_EPOCH : reads ? FB_MISS : FB_BAD_ARGUMENT, reason);
}

bool fb_op_check_space(struct fb_shard *shard, struct fb_op *op)
{
    if (op->kind == FB_OP_NAMESPACE)
        return false;
    const struct fb_namespace *ns = fb_space_namespace(shard, op->ns);
    if (ns != NULL && ns->epoch == op->epoch)
        return false;
    refuse_space(shard, op, ns != NULL);
    return true;
}

void fb_op_dispatch(struct fb_shard *shard, struct fb_op *op)
{
    if (fb_op_check_space(shard, op))
        return;
    switch (op->kind) {
    case FB_OP_PUT:
        fb_put_start(shard, op);
        break;
    case FB_OP_GET:
        fb_get_start(shard, op);
        break;
    case FB_OP_LOOKUP:
    case FB_OP_HOLD_RELEASE:
        fb_lookup_start(shard, op);
        break;
    case FB_OP_REMOVE:
        fb_remove_start(shard, op);
        break;
    case FB_OP_WAIT_PERSISTED:
    case FB_OP_DROP_DRAM:
        fb_clean_wait_start(shard, op);
        break;
    case FB_OP_NAMESPACE:
    case FB_OP_EPOCH:
        fb_space_start(shard, op);
        break;
    case FB_OP_LIST:
        fb_listing_start(shard, op);
        break;
    default:
        fb_op_end(shard, op, FB_BAD_ARGUMENT, FB_REASON_NONE);
    }
}

void fb_shard_start_op(struct fb_shard *shard, uint64_t now_ns, struct fb_op *op)
{
    FB_ASSERT(op->peer != NULL);
    shard->now_ns = now_ns;
    op->state = FB_OP_STATE_NEW;
    op->marks = 0;
    op->events = 0;
    op->result = 0;
    op->reason = FB_REASON_NONE;
    op->persisted = 0;
    fb_link_init(&op->link);
    fb_link_init(&op->peer_link);
    fb_link_init(&op->event_link);
    fb_timer_init(&op->timer);
    fb_list_push_back(&op->peer->ops, &op->peer_link);
    shard->open_ops++;
    if (op->peer->gone) {
        fb_op_end(shard, op, FB_CONNECTION, FB_REASON_WRITER_DIED);
    } else if (shard->ready < 0) {
        fb_op_end(shard, op, FB_IO, FB_REASON_IO_ERROR);
    } else if (shard->ready == 0) {
        op->state = FB_OP_STATE_PARKED;
        fb_wheel_set(&shard->wheel, &op->timer, op->deadline_ns);
        fb_list_push_back(&shard->parked, &op->link);
    } else {
        fb_op_dispatch(shard, op);
    }
    fb_shard_pump(shard);
}

/* An operation's timer fired. */
static void on_timer(struct fb_shard *shard, struct fb_op *op)
{
    switch (op->state) {
    case FB_OP_STATE_PUT:
        fb_put_timer(shard, op);
        break;
    case FB_OP_STATE_FLUSHING:
        fb_clean_timer(shard, op);
        break;
    case FB_OP_STATE_READING:
        fb_get_timer(shard, op);
        break;
    case FB_OP_STATE_KILLING:
        fb_remove_timer(shard, op);
        break;
    case FB_OP_STATE_NAMES:
        fb_space_leave(shard, op, FB_DEADLINE);
        break;
    case FB_OP_STATE_LISTING:
        fb_listing_leave(shard, op, FB_DEADLINE);
        break;
    case FB_OP_STATE_PARKED:
        fb_list_remove(&op->link);
        fb_op_end(shard, op, FB_DEADLINE, FB_REASON_READ_DEADLINE);
        break;
    default:
        FB_UNREACHABLE();
    }
}

void fb_shard_cancel(struct fb_shard *shard, uint64_t now_ns, struct fb_op *op)
{
    shard->now_ns = now_ns;
    if ((op->marks & FB_OP_DONE) != 0)
        return;
    if (op->state == FB_OP_STATE_LOOKING) {
        fb_list_remove(&op->link);
        fb_op_end(shard, op, FB_DEADLINE, FB_REASON_NONE);
    } else if (op->state == FB_OP_STATE_PUT) {
        fb_put_event(shard, op, FB_ATTEMPT_ON_DEADLINE);
    } else {
        on_timer(shard, op);
    }
    fb_shard_pump(shard);
}

/* ---- the pump ---- */

static void unpark(struct fb_shard *shard)
{
    struct fb_link *link;
    for (uint32_t steps = 0; (link = fb_list_pop_front(&shard->parked)) != NULL; steps++) {
        struct fb_op *op = FB_LIST_ITEM(link, struct fb_op, link);
        if (shard->ready < 0) {
            fb_op_end(shard, op, FB_IO, FB_REASON_IO_ERROR);
            continue;
        }
        fb_wheel_clear(&shard->wheel, &op->timer);
        op->state = FB_OP_STATE_NEW;
        fb_op_dispatch(shard, op);
        if (steps == FB_SHARD_TURN_STEPS) {
            shard->more_work = true;
            return;
        }
    }
}

/* When all that was dirty is durable and nobody is at work, the log may end too. */
static void drain_on(struct fb_shard *shard)
{
    if (!shard->draining || shard->log_draining || shard->log == NULL)
        return;
    bool busy = shard->claims.used > 0 || shard->pages[FB_PAGES_DIRTY] > 0 ||
                shard->parts_in_flight > 0 || !fb_list_is_empty(&shard->kill_queue) ||
                shard->ghosts.count > 0 || shard->names_op != NULL;
    if (busy)
        return;
    shard->log_draining = true;
    fb_log_drain(shard->log, shard->now_ns);
}

static void pump_round(struct fb_shard *shard)
{
    fb_tier_check(shard);
    fb_reclaim_pump(shard);
    fb_get_pump(shard);
    fb_kill_pump(shard);
    fb_space_pump(shard);
    fb_lookup_pump(shard);
    fb_admit_pump(shard);
    fb_clean_pump(shard);
    fb_listing_pump(shard);
    drain_on(shard);
}

void fb_shard_pump(struct fb_shard *shard)
{
    if (shard->pumping)
        return;
    shard->pumping = true;
    shard->more_work = false;
    shard->evicts_left = FB_SHARD_TURN_EVICTS;
    if (shard->ready != 0)
        unpark(shard);
    for (uint32_t round = 0; shard->ready > 0; round++) {
        if (round == FB_SHARD_PUMP_ROUNDS) {
            shard->more_work = true;
            break;
        }
        shard->again = false;
        pump_round(shard);
        if (!shard->again)
            break;
    }
    shard->pumping = false;
}

static void run_timers(struct fb_shard *shard)
{
    struct fb_timer *timer;
    for (uint32_t steps = 0; steps < FB_SHARD_TURN_TIMERS; steps++) {
        timer = fb_wheel_take_due(&shard->wheel, shard->now_ns);
        if (timer == NULL)
            return;
        on_timer(shard, FB_LIST_ITEM(timer, struct fb_op, timer));
    }
}

void fb_shard_tick(struct fb_shard *shard, uint64_t now_ns, uint64_t wall_ms)
{
    shard->now_ns = now_ns;
    shard->wall_ms = wall_ms;
    if (shard->log != NULL)
        fb_log_tick(shard->log, now_ns, wall_ms);
    run_timers(shard);
    fb_held_tick(shard);
    fb_lease_tick(shard);
    fb_shard_pump(shard);
    if (shard->sweep_left > 0)
        fb_space_sweep(shard);
    if (shard->claim_sweep_left > 0)
        fb_put_sweep(shard);
    if (shard->again && shard->ready > 0)
        shard->more_work = true;
}

uint64_t fb_shard_next_ns(const struct fb_shard *shard)
{
    if (shard->more_work || shard->sweep_left > 0 || shard->claim_sweep_left > 0)
        return shard->now_ns;
    uint64_t next = fb_wheel_next_ns(&shard->wheel);
    if (shard->log != NULL)
        next = fb_min_u64(next, fb_log_next_ns(shard->log));
    /* Not from now_ns: time may have moved on without a tick. */
    if (shard->pages[FB_PAGES_HELD] > 0)
        next = fb_min_u64(next, shard->start_ns + ((uint64_t)shard->held_beat << FB_BEAT_SHIFT));
    if (shard->ghost_retry_ns != 0)
        next = fb_min_u64(next, shard->ghost_retry_ns);
    if (shard->index_waits && shard->log != NULL)
        next = fb_min_u64(next, shard->reclaim_asked_ns + shard->reclaim_wait_ns);
    return next;
}

/* ---- I/O ---- */

void fb_shard_hash(struct fb_shard *shard, struct fb_io_req *req, const struct fb_io_vec *vec,
                   uint32_t vec_count, uint32_t bytes, uint64_t *leaves)
{
    *req = (struct fb_io_req){
        .op = FB_IO_HASH,
        .vec_count = (uint16_t)vec_count,
        .leaf_count = (uint32_t)fb_div_up(bytes, FB_LEAF_BYTES),
        .len = bytes,
        .vec = vec,
        .leaf_out = leaves,
    };
    fb_link_init(&req->link);
    fb_list_push_back(&shard->hash_out, &req->link);
}

struct fb_io_req *fb_shard_take_io(struct fb_shard *shard, uint64_t now_ns)
{
    shard->now_ns = now_ns;
    struct fb_link *link = fb_list_pop_front(&shard->hash_out);
    if (link != NULL)
        return FB_LIST_ITEM(link, struct fb_io_req, link);
    return shard->log == NULL ? NULL : fb_log_take_io(shard->log, now_ns);
}

static void hash_done(struct fb_shard *shard, struct fb_io_req *req)
{
    FB_ASSERT(req->op == FB_IO_HASH && req->result == 0);
    if (req >= shard->write_hashes && req < shard->write_hashes + shard->config.write_items) {
        struct fb_write *slot = &shard->writes[req - shard->write_hashes];
        FB_ASSERT(slot->phase == FB_WRITE_HASHING);
        if (slot->kind == FB_WRITE_PART)
            fb_clean_hash_done(shard, slot);
        else
            fb_reclaim_hash_done(shard, slot);
        return;
    }
    FB_ASSERT(req >= shard->read_hashes && req < shard->read_hashes + shard->config.read_slots);
    fb_get_hash_done(shard, &shard->reads[req - shard->read_hashes]);
}

void fb_shard_io_done(struct fb_shard *shard, uint64_t now_ns, struct fb_io_req *req)
{
    shard->now_ns = now_ns;
    if (fb_log_is_mine(req))
        fb_log_io_done(shard->log, now_ns, req);
    else
        hash_done(shard, req);
    fb_shard_pump(shard);
}

/* ---- the rest ---- */

void fb_shard_drain(struct fb_shard *shard, uint64_t now_ns)
{
    shard->now_ns = now_ns;
    shard->draining = true;
    shard->claim_sweep_left = shard->claims.count;
    fb_shard_pump(shard);
    fb_put_sweep(shard);
}

bool fb_shard_drained(const struct fb_shard *shard)
{
    if (!shard->draining || shard->claims.used > 0)
        return false;
    if (shard->log == NULL || fb_tier_now(shard) == FB_TIER_FENCED)
        return true;
    return shard->log_draining && fb_log_idle(shard->log);
}

void fb_shard_set_floor(struct fb_shard *shard, uint64_t now_ns, bool below_floor)
{
    shard->now_ns = now_ns;
    if (shard->log != NULL)
        fb_log_set_floor(shard->log, now_ns, below_floor);
    fb_shard_pump(shard);
}
