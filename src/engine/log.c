/*
 * The SSD log: its memory, the calls of log.h that belong to no part, the pump and the figures.
 */
#include "engine/log.h"

#include <stdio.h>
#include <string.h>

#include "engine/log_private.h"

#define PUMP_ROUNDS_MAX 100000 /* more is a loop that feeds itself */

/* ---- memory ---- */

/* The next `blocks` blocks of the FB_IO_META region. */
struct meta_taker {
    uint8_t *at;
    uint64_t base;
    uint64_t used;
};

static struct fb_log_buffer take(struct meta_taker *meta, uint64_t blocks)
{
    struct fb_log_buffer buffer = {.at = meta->at + meta->used, .off = meta->base + meta->used};
    meta->used += blocks * FB_BLOCK_BYTES;
    return buffer;
}

/* Numbers that follow from the config. */
struct shape {
    struct fb_log_geometry geometry;
    uint32_t segment_blocks;
    uint32_t batch_blocks;
    uint32_t window_blocks;
    uint32_t window_max;
    uint32_t summary_blocks;
    uint32_t record_blocks; /* of the longest reclaim record */
    uint32_t ring_blocks;
    uint32_t descs;
};

static struct shape shape_of(const struct fb_log_config *config)
{
    struct shape shape = {0};
    int result = fb_log_geometry(config->capacity_bytes, &shape.geometry);
    FB_ASSERT(result == 0);
    FB_ASSERT(config->batch_bytes >= shape.geometry.chunk_bytes);
    shape.segment_blocks = (uint32_t)(shape.geometry.segment_bytes / FB_BLOCK_BYTES);
    shape.batch_blocks = config->batch_bytes / FB_BLOCK_BYTES;
    shape.window_blocks =
        (uint32_t)fb_min_u64(2 * ((uint64_t)shape.batch_blocks + FB_LOG_BATCH_UNITS),
                             shape.segment_blocks);
    shape.window_max = (uint32_t)fb_min_u64(fb_max_u64(FB_LOG_WINDOW_BYTES_MAX / FB_BLOCK_BYTES,
                                                       2 * (uint64_t)shape.window_blocks),
                                            shape.segment_blocks);
    shape.summary_blocks = shape.segment_blocks / FB_LOG_SUMMARY_SHARE;
    shape.record_blocks = fb_log_history_record_blocks(shape.geometry.segment_bytes);
    shape.ring_blocks = (uint32_t)(shape.geometry.history_bytes / FB_BLOCK_BYTES);
    shape.descs = FB_LOG_CLASSES * (shape.window_max / FB_LOG_DESC_SHARE) +
                  FB_LOG_WRITERS * FB_LOG_BATCH_UNITS / 2 + FB_LOG_DESC_SPARE;
    return shape;
}

#define NAMES_BLOCKS (FB_LOG_NAMES_SLOT_BYTES / FB_BLOCK_BYTES)

static uint64_t meta_blocks(const struct shape *shape)
{
    return (uint64_t)FB_LOG_WRITERS * (FB_LOG_HEADER_BLOCKS + shape->summary_blocks) +
           (uint64_t)FB_LOG_WALKERS * FB_LOG_WALK_BLOCKS + shape->descs + FB_LOG_SUPER_COPIES +
           2 * NAMES_BLOCKS + shape->record_blocks + 1 + 2 * FB_LOG_HEADER_BLOCKS;
}

static void take_meta(struct fb_log *log, const struct shape *shape, struct meta_taker *meta)
{
    for (uint32_t i = 0; i < FB_LOG_WRITERS; i++) {
        log->writers[i].head = take(meta, FB_LOG_HEADER_BLOCKS);
        log->writers[i].sum_buffer = take(meta, shape->summary_blocks);
    }
    for (uint32_t i = 0; i < FB_LOG_WALKERS; i++)
        log->walkers[i].buffer = take(meta, FB_LOG_WALK_BLOCKS);
    log->descs = take(meta, shape->descs);
    log->super_op.buffer = take(meta, FB_LOG_SUPER_COPIES);
    log->names.found = take(meta, NAMES_BLOCKS);
    log->names.writing = take(meta, NAMES_BLOCKS);
    log->history.buffer = take(meta, shape->record_blocks);
    log->reclaim.read_buffer = take(meta, 1);
    log->free_op.buffer = take(meta, 2 * FB_LOG_HEADER_BLOCKS);
    FB_ASSERT(meta->used == meta_blocks(shape) * FB_BLOCK_BYTES);
}

/* The pieces of plain memory; NULL when counting. */
struct plain {
    struct fb_log *log;
    struct fb_log_segment *segments;
    struct fb_log_fate *fates;
    struct fb_log_batch *batches;
    struct fb_log_slice *slices;
    uint16_t *free_descs;
    struct fb_log_tomb_copy *tomb_copies;
    struct fb_log_victim *victims;
    struct fb_log_past *past;
    uint64_t *when_ms, *issued;
    uint32_t *buckets;
    uint32_t bucket_count;
};

static struct plain take_plain(const struct fb_log_config *config, const struct shape *shape,
                               struct fb_region *region)
{
    uint32_t segments = shape->geometry.segments;
    size_t past = (size_t)shape->ring_blocks * FB_LOG_HISTORY_ENTRIES_MAX;
    struct plain plain = {.bucket_count = 1u << fb_log2_ceil(past / 2)};
    plain.log = FB_REGION_NEW(region, struct fb_log, 1);
    plain.segments = FB_REGION_NEW(region, struct fb_log_segment, segments);
    plain.fates = FB_REGION_NEW(region, struct fb_log_fate, segments);
    plain.batches = FB_REGION_NEW(region, struct fb_log_batch, FB_LOG_BATCHES_MAX);
    plain.slices = FB_REGION_NEW(region, struct fb_log_slice, config->write_depth);
    plain.free_descs = FB_REGION_NEW(region, uint16_t, shape->descs);
    plain.tomb_copies = FB_REGION_NEW(region, struct fb_log_tomb_copy, FB_LOG_TOMB_COPIES);
    plain.victims = FB_REGION_NEW(region, struct fb_log_victim, shape->segment_blocks);
    plain.past = FB_REGION_NEW(region, struct fb_log_past, past);
    plain.when_ms = FB_REGION_NEW(region, uint64_t, shape->ring_blocks);
    plain.issued = FB_REGION_NEW(region, uint64_t, shape->ring_blocks);
    plain.buckets = FB_REGION_NEW(region, uint32_t, plain.bucket_count);
    return plain;
}

size_t fb_log_footprint(const struct fb_log_config *config)
{
    struct shape shape = shape_of(config);
    struct fb_region region;
    fb_region_init_counting(&region);
    (void)take_plain(config, &shape, &region);
    return region.used_bytes;
}

size_t fb_log_meta_footprint(const struct fb_log_config *config)
{
    struct shape shape = shape_of(config);
    return meta_blocks(&shape) * FB_BLOCK_BYTES;
}

static void init_lists(struct fb_log *log)
{
    struct fb_list *lists[] = {&log->copies,       &log->tombstones,  &log->queues[0],
                               &log->queues[1],    &log->sending,     &log->resend,
                               &log->no_space,     &log->ended,       &log->parked,
                               &log->tickets,      &log->covered,     &log->misses,
                               &log->free_batches, &log->free_slices, &log->recover.stage_waits};
    _Static_assert(FB_LOG_CLASSES == 2, "a queue for each class");
    for (size_t i = 0; i < FB_ARRAY_COUNT(lists); i++)
        fb_list_init(lists[i]);
    for (uint32_t i = 0; i < FB_LOG_WRITERS; i++)
        fb_list_init(&log->writers[i].batches);
    for (uint32_t i = 0; i < FB_LOG_BATCHES_MAX; i++) {
        struct fb_log_batch *batch = &log->batches[i];
        fb_list_init(&batch->items);
        fb_link_init(&batch->link);
        fb_link_init(&batch->send_link);
        fb_list_push_back(&log->free_batches, &batch->link);
    }
    for (uint32_t i = 0; i < log->config.write_depth; i++) {
        fb_link_init(&log->slices[i].link);
        fb_list_push_back(&log->free_slices, &log->slices[i].link);
    }
    for (uint32_t i = 0; i < FB_LOG_WALKERS; i++) {
        fb_link_init(&log->walkers[i].stage_wait);
        log->walkers[i].stage = UINT32_MAX;
    }
}

/* Sets what follows from the config. */
static void apply_shape(struct fb_log *log, const struct shape *shape, const struct plain *plain)
{
    log->segments = plain->segments;
    log->fates = plain->fates;
    log->batches = plain->batches;
    log->slices = plain->slices;
    log->free_descs = plain->free_descs;
    log->tomb_copies = plain->tomb_copies;
    log->reclaim.records = plain->victims;
    log->reclaim.round = 1;
    log->history.past = plain->past;
    log->history.when_ms = plain->when_ms;
    log->history.issued = plain->issued;
    log->history.buckets = plain->buckets;
    log->history.bucket_count = plain->bucket_count;
    log->geometry = shape->geometry;
    log->segment_blocks = shape->segment_blocks;
    log->batch_blocks = shape->batch_blocks;
    log->window_blocks = shape->window_blocks;
    log->window_max = shape->window_max;
    log->summary_blocks_max = shape->summary_blocks;
    log->history.blocks = shape->ring_blocks;
    log->history.record_blocks_max = shape->record_blocks;
    log->history.next_sequence = 1;
    memset(log->history.buckets, 0xff, (size_t)log->history.bucket_count * sizeof(uint32_t));
    log->desc_count = shape->descs;
    log->free_desc_count = shape->descs;
    for (uint32_t i = 0; i < shape->descs; i++)
        log->free_descs[i] = (uint16_t)i;
}

struct fb_log *fb_log_init(const struct fb_log_config *config, struct fb_region *region,
                           void *meta_memory, const struct fb_log_owner *owner)
{
    struct shape shape = shape_of(config);
    FB_ASSERT(config->stage_bytes >= shape.geometry.chunk_bytes);
    FB_ASSERT(config->reserve_segments >= 1 && config->tombs_max >= 1);
    FB_ASSERT(config->io_errors_to_fence >= 1 && config->device < FB_DEVICES_MAX);
    struct plain plain = take_plain(config, &shape, region);
    struct fb_log *log = plain.log;
    struct meta_taker meta = {.at = meta_memory, .base = config->meta_base};
    take_meta(log, &shape, &meta);
    log->config = *config;
    log->owner = *owner;
    apply_shape(log, &shape, &plain);
    bool has_classes = shape.geometry.segments >=
                       FB_LOG_CLASS_SEGMENTS * FB_LOG_CLASSES * (uint32_t)config->shards;
    log->classes = has_classes ? FB_LOG_CLASSES : 1;
    log->recover.stage_count =
        (uint32_t)fb_min_u64(config->stage_bytes / shape.geometry.chunk_bytes, FB_LOG_WALKERS);
    log->told_state = FB_TIER_RECOVERING;
    fb_sched_init(&log->sched, config->read_depth, config->write_depth);
    init_lists(log);
    return log;
}

/* ---- calls ---- */

static void enter(struct fb_log *log, uint64_t now_ns)
{
    log->now_ns = now_ns;
    log->depth++;
}

void fb_log_append(struct fb_log *log, uint64_t now_ns, struct fb_log_item *item)
{
    FB_ASSERT(item->vec_count <= FB_LOG_VEC_MAX && item->record.class_hint < FB_LOG_CLASSES);
    enter(log, now_ns);
    fb_link_init(&item->link);
    bool is_tomb = item->record.kind == FB_LOG_TOMB;
    if (log->is_fenced || log->is_draining) {
        log->stats.items_failed++;
        log->owner.durable(log->owner.ctx, item, log->is_fenced ? FB_IO : FB_SHUTTING_DOWN);
    } else if (is_tomb && FB_BUG(FB_BUG_TOMBSTONE_LOST)) {
        log->owner.durable(log->owner.ctx, item, FB_OK);
    } else if (is_tomb) {
        fb_list_push_back(&log->tombstones, &item->link);
    } else if (fb_log_is_copy(log, &item->record)) {
        fb_list_push_back(&log->copies, &item->link);
    } else {
        fb_list_push_back(&log->queues[item->record.class_hint], &item->link);
    }
    fb_log_leave(log);
}

bool fb_log_cancel(struct fb_log *log, struct fb_log_item *item)
{
    struct fb_list *queues[] = {&log->copies, &log->tombstones, &log->queues[0], &log->queues[1]};
    for (size_t q = 0; q < FB_ARRAY_COUNT(queues); q++) {
        FB_LIST_FOREACH (link, queues[q]) {
            if (link == &item->link) {
                fb_list_remove(link);
                return true;
            }
        }
    }
    return false;
}

void fb_log_garbage(struct fb_log *log, const struct fb_log_addr *addr, uint32_t part_bytes)
{
    if (addr->segment >= log->geometry.segments)
        return;
    struct fb_log_segment *segment = &log->segments[addr->segment];
    if (segment->incarnation != addr->incarnation || segment->live_values == 0)
        return;
    uint32_t blocks = (uint32_t)fb_min_u64(fb_log_blocks(part_bytes), segment->live_blocks);
    segment->live_values--;
    segment->live_blocks -= blocks;
    log->live_blocks -= blocks;
}

void fb_log_set_floor(struct fb_log *log, uint64_t now_ns, bool below_floor)
{
    enter(log, now_ns);
    log->is_below_floor = below_floor;
    fb_log_leave(log);
}

void fb_log_drain(struct fb_log *log, uint64_t now_ns)
{
    enter(log, now_ns);
    log->is_draining = true;
    fb_log_reclaim_abandon(log);
    fb_log_fail_queued(log, FB_SHUTTING_DOWN);
    for (uint32_t i = 0; i < FB_LOG_WRITERS; i++) {
        if (log->writers[i].state == FB_LOG_WRITER_OPEN)
            fb_log_writer_close(log, &log->writers[i]);
    }
    fb_log_leave(log);
}

uint32_t fb_log_boot(const struct fb_log *log)
{
    return log->super.boot;
}

const char *fb_log_start_error(const struct fb_log *log)
{
    return log->start_error;
}

bool fb_log_is_uncertain(const struct fb_log *log)
{
    return log->uncertain > 0;
}

bool fb_log_is_stale(const struct fb_log *log)
{
    return log->stale > 0;
}

/* True while anything is queued, in flight or half done. */
static bool is_busy(const struct fb_log *log)
{
    if (log->is_flushing || log->is_growing || log->meta_out > 0 || log->reads_out > 0 ||
        log->batches_out > 0 || log->scan != NULL || log->names.request != NULL)
        return true;
    const struct fb_list *lists[] = {&log->copies,    &log->tombstones, &log->queues[0],
                                     &log->queues[1], &log->tickets,    &log->parked};
    for (size_t i = 0; i < FB_ARRAY_COUNT(lists); i++) {
        if (!fb_list_is_empty(lists[i]))
            return true;
    }
    return log->reclaim.step != FB_LOG_RECLAIM_IDLE;
}

bool fb_log_idle(const struct fb_log *log)
{
    if (log->phase == FB_LOG_PHASE_RECOVERING || is_busy(log))
        return false;
    if (log->is_draining && !log->is_fenced && log->drained != FB_LOG_DRAINED)
        return false;
    for (uint32_t i = 0; i < FB_LOG_WRITERS; i++) {
        const struct fb_log_writer *writer = &log->writers[i];
        bool is_quiet = writer->state == FB_LOG_WRITER_IDLE ||
                        (writer->state == FB_LOG_WRITER_OPEN && !log->is_draining);
        if (!is_quiet || writer->gather != NULL)
            return false;
    }
    return true;
}

/* ---- the pump ---- */

enum fb_tier_state fb_log_state(const struct fb_log *log)
{
    if (log->is_fenced)
        return FB_TIER_FENCED;
    if (log->phase != FB_LOG_PHASE_SERVING)
        return FB_TIER_RECOVERING;
    bool is_full = !fb_list_is_empty(&log->no_space) || !fb_list_is_empty(&log->parked) ||
                   (log->is_waiting_for_segment && fb_log_is_growth_blocked(log) &&
                    log->reclaim.step == FB_LOG_RECLAIM_IDLE);
    return is_full ? FB_TIER_FULL : FB_TIER_ON;
}

/* Tells the owner that it may look again. */
static void tell(struct fb_log *log)
{
    enum fb_tier_state state = fb_log_state(log);
    uint32_t free_now = fb_log_free_segments(log);
    if (log->phase == FB_LOG_PHASE_RECOVERING ||
        (state == log->told_state && free_now == log->told_free))
        return;
    log->told_state = state;
    log->told_free = free_now;
    log->owner.changed(log->owner.ctx);
}

static bool pump_once(struct fb_log *log)
{
    bool moved = fb_log_read_pump(log);
    moved = fb_log_free_pump(log) || moved;
    moved = fb_log_send_pump(log) || moved;
    moved = fb_log_super_pump(log) || moved;
    moved = fb_log_segment_pump(log) || moved;
    moved = fb_log_append_pump(log) || moved;
    moved = fb_log_reclaim_pump(log) || moved;
    moved = fb_log_scan_pump(log) || moved;
    return fb_log_flush_pump(log) || moved;
}

void fb_log_leave(struct fb_log *log)
{
    FB_ASSERT(log->depth > 0);
    if (log->depth == 1) {
        log->reclaim.is_turn_over = false;
        uint32_t rounds = 0;
        do {
            while (pump_once(log))
                FB_ASSERT(++rounds < PUMP_ROUNDS_MAX);
            tell(log);
        } while (pump_once(log));
    }
    log->depth--;
}

/* Forgives an error now and then: a device that fails once a month is not to be fenced in a year.
 */
static void forgive(struct fb_log *log)
{
    if (log->errors == 0 || !fb_log_is_due(log->now_ns, log->forgive_ns, FB_LOG_FORGIVE_NS))
        return;
    log->errors--;
    log->forgive_ns = fb_add_saturated(log->now_ns, FB_LOG_FORGIVE_NS);
}

void fb_log_tick(struct fb_log *log, uint64_t now_ns, uint64_t wall_ms)
{
    enter(log, now_ns);
    log->wall_ms = wall_ms;
    log->wall_at_ns = now_ns;
    fb_log_resume_no_space(log);
    forgive(log);
    fb_log_leave(log);
}

uint64_t fb_log_next_ns(const struct fb_log *log)
{
    uint64_t next = UINT64_MAX;
    if (log->retry_ns != 0)
        next = log->retry_ns;
    if (log->free_op.retry_ns != 0)
        next = fb_min_u64(next, log->free_op.retry_ns);
    if (log->phase != FB_LOG_PHASE_SERVING || log->is_fenced)
        return next;
    next = fb_min_u64(next, fb_log_append_next_ns(log));
    next = fb_min_u64(next, fb_log_reclaim_next_ns(log));
    if (log->grow_retry_ns != 0 && !log->is_growing && !log->is_below_floor)
        next = fb_min_u64(next, log->grow_retry_ns);
    if (log->super_op.retry_ns > log->now_ns)
        next = fb_min_u64(next, log->super_op.retry_ns);
    return next;
}

struct fb_io_req *fb_log_take_io(struct fb_log *log, uint64_t now_ns)
{
    enum fb_sched_class class;
    struct fb_io_req *req = fb_sched_take(&log->sched, &class);
    if (req != NULL)
        return req;
    uint64_t room = fb_sched_write_room(&log->sched, now_ns);
    return room > 0 ? fb_log_next_slice(log, room) : NULL;
}

void fb_log_io_done(struct fb_log *log, uint64_t now_ns, struct fb_io_req *req)
{
    FB_ASSERT(fb_log_is_mine(req));
    enter(log, now_ns);
    switch ((enum fb_log_req)(req->cookie & UINT32_MAX)) {
    case FB_LOG_REQ_READ:
        fb_log_read_io_done(log, req);
        break;
    case FB_LOG_REQ_SLICE:
        fb_log_slice_done(log, req);
        break;
    case FB_LOG_REQ_META:
        fb_log_meta_io_done(log, req);
        break;
    case FB_LOG_REQ_FLUSH:
        fb_log_flush_done(log, req->result);
        break;
    case FB_LOG_REQ_GROW:
        fb_log_grow_done(log, req->result);
        break;
    case FB_LOG_REQ_HASH:
        fb_log_walk_hash_done(log, req);
        break;
    default:
        FB_UNREACHABLE();
    }
    fb_log_leave(log);
}

/* ---- figures ---- */

void fb_log_stats(const struct fb_log *log, struct fb_log_stats *out)
{
    *out = log->stats;
    uint64_t used = 0;
    for (uint32_t i = 0; i < log->grown; i++)
        used += fb_log_is_alive(&log->segments[i]);
    out->tombs_now = log->tombs;
    out->segments_free_now = fb_log_free_segments(log);
    out->live_bytes_now = log->live_blocks * FB_BLOCK_BYTES;
    out->used_bytes_now = used * log->geometry.segment_bytes;
    out->file_bytes_now = log->phase == FB_LOG_PHASE_NEW ? 0 : fb_log_segment_off(log, log->grown);
    out->reads_in_flight_max = log->sched.reads_in_flight_max;
    out->history_since_ms = fb_log_history_since(log);
}
