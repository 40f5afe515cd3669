/*
 * Segments: opening, growing the file, sealing, retiring, and making free again.
 */
#include <errno.h>
#include <string.h>

#include "engine/log_private.h"

enum free_step {
    FREE_IDLE,
    FREE_WRITE,
    FREE_FLUSH,
    FREE_CHECK,
    FREE_WAIT
};

struct fb_log_place fb_log_place_of(const struct fb_log *log, uint32_t segment)
{
    struct fb_log_place place = {.segment = segment,
                                 .segment_blocks = log->segment_blocks,
                                 .incarnation = log->segments[segment].incarnation};
    memcpy(place.device_id, log->super.device_id, FB_LOG_DEVICE_ID_BYTES);
    return place;
}

bool fb_log_is_alive(const struct fb_log_segment *segment)
{
    return segment->state != FB_LOG_SEG_UNUSED && segment->state != FB_LOG_SEG_FREE &&
           segment->state != FB_LOG_SEG_SPARE;
}

bool fb_log_is_growth_blocked(const struct fb_log *log)
{
    return log->is_below_floor || log->grow_retry_ns != 0;
}

uint32_t fb_log_free_segments(const struct fb_log *log)
{
    uint32_t more = fb_log_is_growth_blocked(log) ? 0 : log->geometry.segments - log->grown;
    return log->free_grown + more;
}

void fb_log_segment_forget(struct fb_log *log, uint32_t number)
{
    struct fb_log_segment *segment = &log->segments[number];
    FB_ASSERT(log->tombs >= segment->tombs && log->live_blocks >= segment->live_blocks);
    log->tombs -= segment->tombs;
    log->live_blocks -= segment->live_blocks;
    segment->tombs = 0;
    segment->live_blocks = 0;
    segment->live_values = 0;
    segment->records = 0;
}

/* ---- opening ---- */

/* A free segment that no read pins, the first one; or the count of segments. */
static uint32_t pick_free(const struct fb_log *log)
{
    uint32_t end = (uint32_t)fb_min_u64(log->grown, log->super.segment_frontier);
    for (uint32_t i = 0; i < end; i++) {
        const struct fb_log_segment *segment = &log->segments[i];
        if (segment->state != FB_LOG_SEG_FREE)
            continue;
        if (segment->readers == 0 || FB_BUG(FB_BUG_REUSE_BEFORE_UNPIN))
            return i;
    }
    return log->geometry.segments;
}

static void header_written(struct fb_log *log, struct fb_log_meta *meta, int result)
{
    struct fb_log_writer *writer = FB_LIST_ITEM(meta, struct fb_log_writer, meta);
    writer->is_header_written = result == 0;
    if (result != 0)
        fb_log_writer_break(log, writer, 0);
    fb_log_writer_advance(log, writer);
}

void fb_log_header_fill(const struct fb_log *log, uint8_t *blocks, uint32_t segment,
                        enum fb_log_header_state state, uint32_t window_blocks, uint32_t rescue)
{
    struct fb_log_header header = {.segment = segment,
                                   .incarnation = log->segments[segment].incarnation,
                                   .state = (uint16_t)state,
                                   .class_hint = log->segments[segment].class_hint,
                                   .shard = log->config.shard,
                                   .shards = log->config.shards,
                                   .map_version = log->super.map_version,
                                   .window_blocks = window_blocks,
                                   .boot = log->super.boot,
                                   .rescue = rescue};
    for (uint32_t i = 0; i < FB_LOG_HEADER_BLOCKS; i++) {
        header.block = i;
        fb_log_format_header_put(blocks + (size_t)i * FB_BLOCK_BYTES, log->super.device_id,
                                 &header);
    }
}

/* How many free segments an item must leave. */
static uint32_t least_left(const struct fb_log *log, enum fb_log_claim claim)
{
    if (claim == FB_LOG_CLAIM_COPY)
        return 0;
    return claim == FB_LOG_CLAIM_TOMB ? 1 : log->config.reserve_segments;
}

const struct fb_log_writer *fb_log_rescue(const struct fb_log *log)
{
    for (uint32_t i = 0; i < FB_LOG_WRITERS; i++) {
        if (log->writers[i].state != FB_LOG_WRITER_IDLE && log->writers[i].rescue_of != 0)
            return &log->writers[i];
    }
    return NULL;
}

void fb_log_rescue_over(struct fb_log *log)
{
    for (uint32_t i = 0; i < FB_LOG_WRITERS; i++)
        log->writers[i].rescue_of = 0;
    for (uint32_t i = 0; i < log->grown; i++)
        log->segments[i].rescue_of = 0;
}

static bool is_number_alive(const struct fb_log *log, uint32_t incarnation)
{
    for (uint32_t i = 0; i < log->grown; i++) {
        const struct fb_log_segment *segment = &log->segments[i];
        if (segment->incarnation == incarnation && fb_log_is_alive(segment))
            return true;
    }
    return false;
}

uint32_t fb_log_redundant_rescue(const struct fb_log *log)
{
    for (uint32_t i = 0; i < log->grown; i++) {
        const struct fb_log_segment *segment = &log->segments[i];
        bool is_closed =
            segment->state == FB_LOG_SEG_SEALED || segment->state == FB_LOG_SEG_RETIRED;
        if (segment->rescue_of != 0 && is_closed && is_number_alive(log, segment->rescue_of))
            return i;
    }
    return log->geometry.segments;
}

/* A writer that is not in use, or NULL. */
static struct fb_log_writer *idle_writer(struct fb_log *log)
{
    for (uint32_t i = 0; i < FB_LOG_WRITERS; i++) {
        if (log->writers[i].state == FB_LOG_WRITER_IDLE && !log->writers[i].meta.is_busy)
            return &log->writers[i];
    }
    return NULL;
}

struct fb_log_writer *fb_log_writer_open(struct fb_log *log, uint32_t class_hint,
                                         enum fb_log_claim claim)
{
    struct fb_log_writer *writer = idle_writer(log);
    if (writer == NULL || log->next_incarnation >= log->super.incarnation_frontier)
        return NULL;
    /* Only segments that the file has count: it may not be able to grow when the reserve is needed.
     */
    if (log->free_grown <= least_left(log, claim))
        return NULL;
    bool is_last = log->free_grown == 1;
    if (is_last && log->grown < log->geometry.segments && !fb_log_is_growth_blocked(log))
        return NULL; /* it grows */
    /* The last one is for what the reclaim under way carries on, not for leftovers of another. */
    if (is_last && !fb_log_reclaim_is_copying(log))
        return NULL;
    uint32_t rescue_of = is_last ? log->reclaim.incarnation : 0;
    uint32_t number = pick_free(log);
    if (number >= log->geometry.segments)
        return NULL;
    struct fb_log_segment *segment = &log->segments[number];
    FB_ASSERT(segment->state == FB_LOG_SEG_FREE && log->free_grown > 0);
    log->free_grown--;
    *segment = (struct fb_log_segment){.incarnation = (uint32_t)log->next_incarnation++,
                                       .readers = segment->readers,
                                       .end = FB_LOG_HEADER_BLOCKS,
                                       .durable = FB_LOG_HEADER_BLOCKS,
                                       .state = FB_LOG_SEG_OPEN,
                                       .class_hint = (uint8_t)class_hint};
    writer->state = FB_LOG_WRITER_OPEN;
    writer->class_hint = (uint8_t)class_hint;
    writer->segment = number;
    writer->gather = NULL;
    writer->next_block = FB_LOG_HEADER_BLOCKS;
    writer->next_batch = 0;
    writer->window = log->window_blocks;
    writer->reach =
        (uint32_t)fb_min_u64(FB_LOG_HEADER_BLOCKS + log->window_blocks, log->segment_blocks);
    writer->is_short = false;
    writer->proven = FB_LOG_HEADER_BLOCKS;
    writer->last_end = FB_LOG_HEADER_BLOCKS;
    writer->data_bytes = 0;
    writer->is_header_written = false;
    writer->is_broken = false;
    writer->rescue_of = rescue_of;
    FB_ASSERT(fb_list_is_empty(&writer->batches));
    struct fb_log_place place = fb_log_place_of(log, number);
    fb_log_format_sum_begin(&writer->sum, &place, writer->sum_buffer.at, log->summary_blocks_max);
    fb_log_header_fill(log, writer->head.at, number, FB_LOG_HEADER_OPEN, writer->reach, rescue_of);
    fb_log_meta_start(log, &writer->meta, FB_IO_WRITE, &writer->head,
                      fb_log_segment_off(log, number), FB_LOG_HEADER_BLOCKS * FB_BLOCK_BYTES,
                      header_written);
    return writer;
}

/* ---- closing ---- */

void fb_log_writer_close(struct fb_log *log, struct fb_log_writer *writer)
{
    fb_log_batch_close(log, writer);
    for (uint32_t i = 0; i < FB_LOG_CLASSES; i++) {
        if (log->open[i] == writer)
            log->open[i] = NULL;
    }
    if (writer->state == FB_LOG_WRITER_OPEN)
        writer->state = FB_LOG_WRITER_CLOSING;
}

void fb_log_writer_break(struct fb_log *log, struct fb_log_writer *writer, uint32_t number)
{
    if (writer->is_broken) {
        writer->broken_from = (uint32_t)fb_min_u64(writer->broken_from, number);
        return;
    }
    writer->is_broken = true;
    writer->broken_from = number;
    fb_log_writer_close(log, writer);
    FB_LIST_FOREACH (link, &writer->batches) {
        struct fb_log_batch *batch = FB_LIST_ITEM(link, struct fb_log_batch, link);
        if (batch->state == FB_LOG_BATCH_SENDING && batch->number >= number)
            batch->error = -EIO; /* what was not sent of it is not sent any more */
    }
}

/* The writer has nothing left to do for its segment. */
static void end_writer(struct fb_log *log, struct fb_log_writer *writer,
                       enum fb_log_segment_state state)
{
    struct fb_log_segment *segment = &log->segments[writer->segment];
    FB_ASSERT(fb_list_is_empty(&writer->batches) && writer->gather == NULL);
    segment->state = (uint8_t)state;
    segment->end = segment->durable;
    if (state == FB_LOG_SEG_SEALED) {
        log->stats.segments_sealed++;
    } else {
        segment->summary_blocks = 0;
        log->stats.segments_retired++;
    }
    segment->rescue_of = writer->rescue_of;
    writer->rescue_of = 0;
    writer->state = FB_LOG_WRITER_IDLE;
}

static void trailer_written(struct fb_log *log, struct fb_log_meta *meta, int result)
{
    struct fb_log_writer *writer = FB_LIST_ITEM(meta, struct fb_log_writer, meta);
    end_writer(log, writer, result == 0 ? FB_LOG_SEG_SEALED : FB_LOG_SEG_RETIRED);
}

static void write_trailer(struct fb_log *log, struct fb_log_writer *writer)
{
    struct fb_log_segment *segment = &log->segments[writer->segment];
    struct fb_log_place place = fb_log_place_of(log, writer->segment);
    uint32_t last = log->segment_blocks - FB_LOG_TRAILER_BLOCKS;
    struct fb_log_trailer trailer = {.summary_first = last - segment->summary_blocks,
                                     .summary_blocks = segment->summary_blocks,
                                     .records = segment->records,
                                     .end = segment->durable,
                                     .durable = segment->durable,
                                     .tombs = segment->tombs,
                                     .data_bytes = writer->data_bytes};
    fb_log_format_trailer_put(writer->head.at, &place, &trailer);
    writer->state = FB_LOG_WRITER_TRAILER;
    fb_log_meta_start(log, &writer->meta, FB_IO_WRITE, &writer->head,
                      fb_log_segment_off(log, writer->segment) + (uint64_t)last * FB_BLOCK_BYTES,
                      FB_BLOCK_BYTES, trailer_written);
}

static void summary_written(struct fb_log *log, struct fb_log_meta *meta, int result)
{
    struct fb_log_writer *writer = FB_LIST_ITEM(meta, struct fb_log_writer, meta);
    if (result != 0)
        end_writer(log, writer, FB_LOG_SEG_RETIRED);
    else
        write_trailer(log, writer);
}

/* All of a closed writer's records are durable: writes the summary, then the trailer. */
static void seal(struct fb_log *log, struct fb_log_writer *writer)
{
    struct fb_log_segment *segment = &log->segments[writer->segment];
    FB_ASSERT(segment->durable == writer->next_block);
    segment->summary_blocks = fb_log_format_sum_finish(&writer->sum);
    uint32_t last = log->segment_blocks - FB_LOG_TRAILER_BLOCKS;
    segment->summary_first = last - segment->summary_blocks;
    FB_ASSERT(segment->summary_first >= writer->next_block);
    if (segment->summary_blocks == 0) {
        write_trailer(log, writer);
        return;
    }
    writer->state = FB_LOG_WRITER_SUMMARY;
    fb_log_meta_start(log, &writer->meta, FB_IO_WRITE, &writer->sum_buffer,
                      fb_log_segment_off(log, writer->segment) +
                          (uint64_t)segment->summary_first * FB_BLOCK_BYTES,
                      segment->summary_blocks * FB_BLOCK_BYTES, summary_written);
}

static bool seal_closed(struct fb_log *log)
{
    bool moved = false;
    for (uint32_t i = 0; i < FB_LOG_WRITERS; i++) {
        struct fb_log_writer *writer = &log->writers[i];
        if (writer->state != FB_LOG_WRITER_CLOSING || !fb_list_is_empty(&writer->batches) ||
            writer->meta.is_busy)
            continue;
        moved = true;
        if (writer->is_broken || log->is_fenced)
            end_writer(log, writer, FB_LOG_SEG_RETIRED);
        else
            seal(log, writer);
    }
    return moved;
}

/* ---- growing ---- */

static bool wants_to_grow(const struct fb_log *log)
{
    if (log->is_growing || log->is_fenced || log->is_below_floor)
        return false;
    /* Not ahead of need at the end, but what is still to be persisted needs its place. */
    if (log->is_draining && !log->is_waiting_for_segment)
        return false;
    if (log->grown >= log->geometry.segments || log->grown >= log->super.segment_frontier)
        return false;
    if (log->grow_retry_ns != 0 &&
        !fb_log_is_due(log->now_ns, log->grow_retry_ns, log->grow_wait_ns))
        return false;
    return log->free_grown < log->config.reserve_segments + FB_LOG_GROW_AHEAD;
}

/* A grow that failed for want of space is not wanted any more: reclaimed segments serve instead. */
static bool forget_failed_grow(struct fb_log *log)
{
    if (log->grow_retry_ns == 0 || log->is_growing ||
        !fb_log_is_due(log->now_ns, log->grow_retry_ns, log->grow_wait_ns))
        return false;
    log->grow_retry_ns = 0;
    log->grow_wait_ns = 0;
    return true;
}

static bool grow(struct fb_log *log)
{
    if (log->phase != FB_LOG_PHASE_SERVING)
        return false;
    if (!wants_to_grow(log))
        return forget_failed_grow(log);
    log->is_growing = true;
    log->grow_req = (struct fb_io_req){.op = FB_IO_GROW,
                                       .device = log->config.device,
                                       .device_off = fb_log_segment_off(log, log->grown + 1),
                                       .cookie = FB_LOG_COOKIE | FB_LOG_REQ_GROW};
    fb_sched_push(&log->sched, FB_SCHED_URGENT, log->now_ns, &log->grow_req);
    return true;
}

void fb_log_grow_done(struct fb_log *log, int64_t result)
{
    FB_ASSERT(log->is_growing);
    log->is_growing = false;
    fb_sched_done(&log->sched, FB_SCHED_URGENT, log->now_ns);
    if (log->phase == FB_LOG_PHASE_RECOVERING) {
        fb_log_recover_grown(log, result);
        return;
    }
    if (result >= 0) {
        struct fb_log_segment *segment = &log->segments[log->grown];
        FB_ASSERT(segment->state == FB_LOG_SEG_UNUSED);
        segment->state = FB_LOG_SEG_FREE;
        log->grown++;
        log->free_grown++;
        log->grow_retry_ns = 0;
        log->grow_wait_ns = 0;
        return;
    }
    if (fb_log_is_no_space(result)) {
        log->stats.no_space++;
    } else {
        log->stats.write_errors++;
        fb_log_count_error(log);
    }
    const uint64_t most_ns =
        fb_log_is_no_space(result) ? FB_LOG_SPACE_RETRY_NS : FB_LOG_RETRY_MAX_NS;
    log->grow_wait_ns = fb_min_u64(fb_max_u64(2 * log->grow_wait_ns, FB_LOG_RETRY_MIN_NS), most_ns);
    log->grow_retry_ns = fb_add_saturated(log->now_ns, log->grow_wait_ns);
}

/* ---- draining ---- */

static void drain_flushed(struct fb_log *log, struct fb_log_ticket *ticket, int result)
{
    (void)ticket;
    (void)result; /* what it covers are trailers: hints */
    log->drained = FB_LOG_DRAINED;
}

/* When all is sealed: one flush for the trailers, so that the next start is quick. */
static bool drain(struct fb_log *log)
{
    if (!log->is_draining || log->drained != FB_LOG_DRAINED_NOT || log->is_fenced ||
        log->phase != FB_LOG_PHASE_SERVING)
        return false;
    for (uint32_t i = 0; i < FB_LOG_WRITERS; i++) {
        if (log->writers[i].state != FB_LOG_WRITER_IDLE)
            return false;
    }
    log->drained = FB_LOG_DRAINED_FLUSHING;
    fb_log_ticket_start(log, &log->drain_ticket, log->flush_failures, drain_flushed);
    return true;
}

bool fb_log_segment_pump(struct fb_log *log)
{
    bool moved = seal_closed(log);
    moved = drain(log) || moved;
    return grow(log) || moved;
}

/* ---- making free ---- */

void fb_log_segment_settle(struct fb_log *log, uint32_t number, enum fb_log_segment_state state)
{
    struct fb_log_segment *segment = &log->segments[number];
    segment->state = (uint8_t)state;
    if (segment->must_go) {
        segment->must_go = false;
        log->uncertain--;
    }
    if (segment->has_stale) {
        segment->has_stale = false;
        log->stale--;
    }
    if (state == FB_LOG_SEG_FREE)
        log->free_grown++;
    if (state == FB_LOG_SEG_STUCK && ++log->stuck > fb_log_stuck_max(log) && !log->is_fenced)
        fb_log_fence(log);
}

static void free_write(struct fb_log *log);

static void free_end(struct fb_log *log, enum fb_log_segment_state state)
{
    struct fb_log_free_op *op = &log->free_op;
    op->step = FREE_IDLE;
    op->retry_ns = 0;
    op->done(log, state);
}

/* It did not work: again later, each copy of the header by itself if it did not work with both. */
static void free_again(struct fb_log *log)
{
    struct fb_log_free_op *op = &log->free_op;
    if (log->is_fenced || ++op->tries > FB_LOG_TRIES_MAX) {
        free_end(log, FB_LOG_SEG_STUCK);
        return;
    }
    uint32_t turn = op->tries % (FB_LOG_HEADER_BLOCKS + 1);
    op->first = turn == 0 ? 0 : turn - 1;
    op->count = turn == 0 ? FB_LOG_HEADER_BLOCKS : 1;
    op->step = FREE_WAIT;
    op->retry_ns = fb_add_saturated(log->now_ns, FB_LOG_RETRY_MIN_NS);
}

/* Header block number op->first of the segment, on the device. */
static uint64_t free_off(const struct fb_log *log)
{
    return fb_log_segment_off(log, log->free_op.segment) +
           (uint64_t)log->free_op.first * FB_BLOCK_BYTES;
}

/* Part of the buffer: header `block` to write, or that many blocks further to read back. */
static struct fb_log_buffer free_buffer(const struct fb_log *log, uint32_t block)
{
    struct fb_log_buffer buffer = log->free_op.buffer;
    buffer.at += (size_t)block * FB_BLOCK_BYTES;
    buffer.off += (uint64_t)block * FB_BLOCK_BYTES;
    return buffer;
}

static void free_checked(struct fb_log *log, struct fb_log_meta *meta, int result)
{
    (void)meta;
    struct fb_log_free_op *op = &log->free_op;
    uint32_t good = 0;
    for (uint32_t i = 0; result == 0 && i < op->count; i++) {
        struct fb_log_header header;
        struct fb_log_buffer back = free_buffer(log, FB_LOG_HEADER_BLOCKS + i);
        if (fb_log_format_header_get(back.at, log->super.device_id, op->segment, op->first + i,
                                     &header) == FB_LOG_BLOCK_GOOD &&
            header.state == FB_LOG_HEADER_FREE && header.incarnation == op->incarnation)
            good++;
    }
    if (good == FB_LOG_HEADER_BLOCKS)
        free_end(log, FB_LOG_SEG_FREE);
    else if (good > 0 && op->tries >= FB_LOG_SPARE_TRIES)
        free_end(log, FB_LOG_SEG_SPARE); /* FREE rules over OPEN, so one copy is enough */
    else
        free_again(log);
}

static void free_flushed(struct fb_log *log, struct fb_log_ticket *ticket, int result)
{
    (void)ticket;
    struct fb_log_free_op *op = &log->free_op;
    if (result != 0) {
        free_again(log);
        return;
    }
    op->step = FREE_CHECK;
    struct fb_log_buffer back = free_buffer(log, FB_LOG_HEADER_BLOCKS);
    fb_log_meta_start(log, &op->meta, FB_IO_READ, &back, free_off(log), op->count * FB_BLOCK_BYTES,
                      free_checked);
}

static void free_written(struct fb_log *log, struct fb_log_meta *meta, int result)
{
    if (result != 0) {
        free_again(log);
        return;
    }
    log->free_op.step = FREE_FLUSH;
    fb_log_ticket_start(log, &log->free_op.ticket, meta->failures, free_flushed);
}

static void free_write(struct fb_log *log)
{
    struct fb_log_free_op *op = &log->free_op;
    op->step = FREE_WRITE;
    op->retry_ns = 0;
    FB_ASSERT(log->segments[op->segment].incarnation == op->incarnation);
    fb_log_header_fill(log, op->buffer.at, op->segment, FB_LOG_HEADER_FREE, log->window_blocks, 0);
    struct fb_log_buffer buffer = free_buffer(log, op->first);
    fb_log_meta_start(log, &op->meta, FB_IO_WRITE, &buffer, free_off(log),
                      op->count * FB_BLOCK_BYTES, free_written);
}

void fb_log_free_start(struct fb_log *log, uint32_t segment, uint32_t incarnation,
                       void (*done)(struct fb_log *log, enum fb_log_segment_state state))
{
    struct fb_log_free_op *op = &log->free_op;
    FB_ASSERT(op->step == FREE_IDLE && incarnation != 0);
    op->segment = segment;
    op->incarnation = incarnation;
    op->first = 0;
    op->count = FB_LOG_HEADER_BLOCKS;
    op->tries = 0;
    op->done = done;
    free_write(log);
}

bool fb_log_free_pump(struct fb_log *log)
{
    struct fb_log_free_op *op = &log->free_op;
    if (op->step != FREE_WAIT)
        return false;
    if (log->is_fenced) {
        free_end(log, FB_LOG_SEG_STUCK);
        return true;
    }
    if (!fb_log_is_due(log->now_ns, op->retry_ns, FB_LOG_RETRY_MIN_NS))
        return false;
    free_write(log);
    return true;
}
