/*
 * The end of a start: what was found is made durable, and the boot with it.
 *
 * What a process before this one wrote may have been read from a cache, or a flush of it may have
 * failed so that the device only seems to have it. So what nothing proves to be durable is written
 * again where it is (the walkers did so with records and descriptors; headers of open segments,
 * reclaim records of segments that still look alive, and the namespace table here), and then one
 * flush covers it. Only then do FREE headers and trailers follow, which rest on it.
 */
#include <string.h>

#include "engine/log_private.h"

static void again_next(struct fb_log *log);
static void settle_next(struct fb_log *log);

/* ---- writing again ---- */

static void again_written(struct fb_log *log, struct fb_log_meta *meta, int result)
{
    (void)meta;
    (void)result; /* counted; the flush or the fence decides */
    log->recover.settle++;
    again_next(log);
}

static void record_read(struct fb_log *log, struct fb_log_meta *meta, int result);

static uint64_t record_off(const struct fb_log *log, const struct fb_log_fate *fate)
{
    return log->geometry.history_off + (uint64_t)fate->ring_block * FB_BLOCK_BYTES;
}

static void read_record(struct fb_log *log)
{
    const struct fb_log_fate *fate = &log->fates[log->recover.settle];
    fb_log_meta_start(log, &log->recover.meta, FB_IO_READ, &log->history.buffer,
                      record_off(log, fate), fate->ring_count * FB_BLOCK_BYTES, record_read);
}

/* True if the buffer holds the record that names the segment. */
static bool is_record(const struct fb_log *log, uint32_t number)
{
    const struct fb_log_fate *fate = &log->fates[number];
    for (uint32_t i = 0; i < fate->ring_count; i++) {
        struct fb_log_history_head head;
        const uint8_t *block = log->history.buffer.at + (size_t)i * FB_BLOCK_BYTES;
        if (fb_log_format_history_get(block, log->super.device_id, fate->ring_block + i, &head) !=
                FB_LOG_BLOCK_GOOD ||
            head.segment != number || head.incarnation != fate->dead_incarnation ||
            head.index != i || head.count != fate->ring_count)
            return false;
    }
    return true;
}

/* What was read is written only if it is what it must be: a misread must not become the truth. */
static void record_read(struct fb_log *log, struct fb_log_meta *meta, int result)
{
    (void)meta;
    struct fb_log_recover *recover = &log->recover;
    if (result == 0 && is_record(log, recover->settle)) {
        const struct fb_log_fate *fate = &log->fates[recover->settle];
        recover->rereads = 0;
        fb_log_meta_start(log, &recover->meta, FB_IO_WRITE, &log->history.buffer,
                          record_off(log, fate), fate->ring_count * FB_BLOCK_BYTES, again_written);
    } else if (recover->rereads++ < FB_LOG_REREADS) {
        read_record(log);
    } else {
        fb_log_start_failed(log, "a reclaim record cannot be read any more: check the device");
    }
}

/* Writes copies of the header of a segment that lives. */
static void write_header(struct fb_log *log, uint32_t first, uint32_t count)
{
    uint32_t number = log->recover.settle;
    const struct fb_log_fate *fate = &log->fates[number];
    struct fb_log_buffer block = log->history.buffer;
    fb_log_header_fill(log, block.at, number, FB_LOG_HEADER_OPEN, fate->window, fate->rescue);
    block.at += (size_t)first * FB_BLOCK_BYTES;
    block.off += (uint64_t)first * FB_BLOCK_BYTES;
    fb_log_meta_start(log, &log->recover.meta, FB_IO_WRITE, &block,
                      fb_log_segment_off(log, number) + (uint64_t)first * FB_BLOCK_BYTES,
                      count * FB_BLOCK_BYTES, again_written);
}

/* Writes again what segment number `settle` rests on; false: nothing. */
static bool write_again(struct fb_log *log)
{
    uint32_t number = log->recover.settle;
    const struct fb_log_fate *fate = &log->fates[number];
    switch (log->segments[number].state) {
    case FB_LOG_SEG_OPEN:
        write_header(log, 0, FB_LOG_HEADER_BLOCKS);
        return true;
    case FB_LOG_SEG_SEALED:
        /* One copy is all that says what lies here: the other is made anew, and this one left. */
        if (fate->bad_header == 0)
            return false;
        write_header(log, fate->bad_header - 1, 1);
        return true;
    case FB_LOG_SEG_FREEING:
        if (fate->ring_count == 0)
            return false; /* a rescue that is thrown away: no record names it */
        read_record(log);
        return true;
    default:
        return false;
    }
}

static void boot_written(struct fb_log *log, int result)
{
    if (result != 0) {
        fb_log_start_failed(log, "the superblock cannot be written (errno %d): check the device",
                            -result);
        return;
    }
    log->recover.step = FB_LOG_RECOVER_SETTLE;
    log->recover.settle = 0;
    settle_next(log);
}

static void begin_boot(struct fb_log *log)
{
    struct fb_log_recover *recover = &log->recover;
    recover->step = FB_LOG_RECOVER_BOOT;
    struct fb_log_super wanted = log->super;
    log->next_incarnation =
        fb_max_u64(fb_max_u64(wanted.incarnation_frontier, recover->incarnation_max + 1), 1);
    if (log->next_incarnation + FB_LOG_INCARNATION_STEP > UINT32_MAX) {
        fb_log_start_failed(log, "the log has used all of 4294967295 incarnations: format it");
        return;
    }
    wanted.boot = (uint32_t)fb_max_u64(wanted.boot, recover->boot_max) + 1;
    wanted.incarnation_frontier = log->next_incarnation + FB_LOG_INCARNATION_STEP;
    uint64_t segments =
        fb_min_u64((uint64_t)log->grown + FB_LOG_SEGMENT_STEP, log->geometry.segments);
    wanted.segment_frontier =
        (uint32_t)fb_min_u64(fb_max_u64(wanted.segment_frontier, segments), log->geometry.segments);
    fb_log_super_write(log, &wanted, boot_written);
}

static void all_flushed(struct fb_log *log, struct fb_log_ticket *ticket, int result)
{
    (void)ticket;
    if (result != 0)
        fb_log_start_failed(log, "the device cannot be flushed (errno %d): check the device",
                            -result);
    else
        begin_boot(log);
}

static void begin_flush(struct fb_log *log)
{
    log->recover.step = FB_LOG_RECOVER_FLUSH;
    fb_log_ticket_start(log, &log->recover.ticket, log->flush_failures, all_flushed);
}

static void names_again(struct fb_log *log, int result)
{
    if (result != 0)
        fb_log_start_failed(log,
                            "the namespace table cannot be written (errno %d): check the device",
                            -result);
    else
        begin_flush(log);
}

static void again_next(struct fb_log *log)
{
    struct fb_log_recover *recover = &log->recover;
    if (log->phase != FB_LOG_PHASE_RECOVERING)
        return;
    for (; recover->settle < log->grown; recover->settle++) {
        if (write_again(log))
            return;
    }
    if (log->names.bytes == 0) {
        begin_flush(log);
        return;
    }
    memcpy(log->names.writing.at + FB_BLOCK_BYTES, log->names.found.at + FB_BLOCK_BYTES,
           log->names.bytes);
    fb_log_names_start(log, log->names.bytes, names_again);
}

/* ---- settling ---- */

static void serve(struct fb_log *log)
{
    log->recover.step = FB_LOG_RECOVER_IDLE;
    log->free_grown = 0;
    for (uint32_t i = 0; i < log->grown; i++) {
        struct fb_log_segment *segment = &log->segments[i];
        if (segment->state == FB_LOG_SEG_UNUSED)
            segment->state = FB_LOG_SEG_FREE; /* the file has its room, and nobody used it */
        log->free_grown += segment->state == FB_LOG_SEG_FREE;
    }
    log->stats.recovery_bytes_read = log->stats.bytes_read;
    if (log->is_fenced) {
        fb_log_start_failed(log, "the device failed %u times while it was read: check it",
                            log->errors);
        return;
    }
    log->phase = FB_LOG_PHASE_SERVING;
    log->owner.recovery_done(log->owner.ctx, FB_OK);
}

static void segment_freed(struct fb_log *log, enum fb_log_segment_state state)
{
    fb_log_segment_settle(log, log->recover.settle++, state);
    settle_next(log);
}

static void trailer_written(struct fb_log *log, struct fb_log_meta *meta, int result)
{
    (void)meta;
    struct fb_log_segment *segment = &log->segments[log->recover.settle++];
    segment->state = result == 0 ? FB_LOG_SEG_SEALED : FB_LOG_SEG_RETIRED;
    settle_next(log);
}

/* Seals a segment that was found open: a trailer without a summary. */
static void settle_open(struct fb_log *log, uint32_t number)
{
    struct fb_log_segment *segment = &log->segments[number];
    struct fb_log_place place = fb_log_place_of(log, number);
    uint32_t last = log->segment_blocks - FB_LOG_TRAILER_BLOCKS;
    segment->summary_blocks = 0;
    struct fb_log_trailer trailer = {.records = segment->records,
                                     .end = segment->end,
                                     .durable =
                                         (uint32_t)fb_min_u64(segment->durable, segment->end),
                                     .tombs = segment->tombs,
                                     .data_bytes = (uint64_t)segment->live_blocks * FB_BLOCK_BYTES};
    fb_log_format_trailer_put(log->history.buffer.at, &place, &trailer);
    log->stats.segments_sealed++;
    fb_log_meta_start(log, &log->recover.meta, FB_IO_WRITE, &log->history.buffer,
                      fb_log_segment_off(log, number) + (uint64_t)last * FB_BLOCK_BYTES,
                      FB_BLOCK_BYTES, trailer_written);
}

static void settle_next(struct fb_log *log)
{
    struct fb_log_recover *recover = &log->recover;
    if (log->phase != FB_LOG_PHASE_RECOVERING)
        return;
    for (; recover->settle < log->grown; recover->settle++) {
        uint32_t number = recover->settle;
        struct fb_log_segment *segment = &log->segments[number];
        bool is_newest = log->history.newest_sequence > 0 &&
                         number == log->history.newest_segment && segment->state == FB_LOG_SEG_FREE;
        if (segment->state == FB_LOG_SEG_OPEN) {
            settle_open(log, number);
            return;
        }
        /* The FREE header of the last reclaim may only seem to be there: its flush may have failed.
         * One copy alone is all that keeps an ended life from coming back: it gets its second. */
        bool is_lone = segment->state == FB_LOG_SEG_FREE && log->fates[number].bad_header != 0;
        if (segment->state == FB_LOG_SEG_FREEING || is_newest || is_lone) {
            segment->state = FB_LOG_SEG_FREEING;
            fb_log_free_start(log, number, segment->incarnation, segment_freed);
            return;
        }
    }
    serve(log);
}

void fb_log_finish_start(struct fb_log *log)
{
    FB_ASSERT(log->phase == FB_LOG_PHASE_RECOVERING);
    log->recover.step = FB_LOG_RECOVER_AGAIN;
    log->recover.settle = 0;
    again_next(log);
}
