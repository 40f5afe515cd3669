/*
 * Reading the records of one segment: from its summary, or from descriptor to descriptor.
 *
 * Recovery reads many segments so, reclaim one, a scan of keys one. A walk is a loop over a phase
 * that stops where a block must come from the device and goes on when it has come; records go to a
 * callback, which may stop the walk and resume it later. docs/format.md, 6.5, has the rules by
 * which rot is told from a torn tail.
 *
 * What lies beyond the proven frontier was perhaps never flushed: its bytes are read, hashed and,
 * if they hold, written again to where they are. So the flush that recovery does before it answers
 * makes durable what it reports, even if a flush of the process before failed and the device only
 * seems to have the bytes.
 */
#include <string.h>

#include "engine/log_private.h"

#define NO_STAGE UINT32_MAX

enum step {
    STEP_ON,
    STEP_WAIT
};

static void run(struct fb_log *log, struct fb_log_walker *walker);

/* ---- blocks ---- */

static uint64_t block_off(const struct fb_log *log, const struct fb_log_walker *walker,
                          uint32_t block)
{
    return fb_log_segment_off(log, walker->place.segment) + (uint64_t)block * FB_BLOCK_BYTES;
}

static void blocks_read(struct fb_log *log, struct fb_log_meta *meta, int result)
{
    struct fb_log_walker *walker = FB_LIST_ITEM(meta, struct fb_log_walker, meta);
    if (walker->phase == FB_LOG_WALK_IDLE)
        return; /* given up meanwhile */
    if (result != 0 && walker->buffer_count > 1) {
        /* One bad sector must not hide its neighbours. */
        walker->single_end = walker->buffer_first + walker->buffer_count;
        walker->buffer_count = 0;
    } else if (result != 0) {
        memset(walker->buffer.at, 0, FB_BLOCK_BYTES);
        walker->is_block_failed = true;
    }
    run(log, walker);
}

/* A block of the segment, or NULL while it comes from the device. */
static const uint8_t *block_at(struct fb_log *log, struct fb_log_walker *walker, uint32_t block)
{
    FB_ASSERT(block < log->segment_blocks);
    if (block >= walker->buffer_first && block - walker->buffer_first < walker->buffer_count)
        return walker->buffer.at + (size_t)(block - walker->buffer_first) * FB_BLOCK_BYTES;
    uint32_t count = block < walker->single_end ? 1 : walker->ahead;
    walker->buffer_first = block;
    walker->is_block_failed = false;
    walker->buffer_count = (uint32_t)fb_min_u64(count, log->segment_blocks - block);
    fb_log_meta_start(log, &walker->meta, FB_IO_READ, &walker->buffer,
                      block_off(log, walker, block), walker->buffer_count * FB_BLOCK_BYTES,
                      blocks_read);
    return NULL;
}

/* True if a block that looks bad should be read once more: the device may have misread it. */
static bool reread(struct fb_log_walker *walker)
{
    if (walker->rereads >= FB_LOG_REREADS)
        return false;
    walker->rereads++;
    walker->buffer_count = 0;
    return true;
}

/* ---- records ---- */

/* Gives the current record to the callback; false: it said stop. */
static bool deliver(struct fb_log *log, struct fb_log_walker *walker)
{
    FB_ASSERT(walker->has_current);
    if (!walker->record(log, walker, &walker->current, &walker->current_found)) {
        walker->is_paused = walker->phase != FB_LOG_WALK_IDLE;
        return false;
    }
    walker->has_current = false;
    walker->missing_from = walker->current_found.ordinal + 1;
    if (walker->current.kind == FB_LOG_TOMB)
        walker->result.tombs++;
    return true;
}

static enum step finish(struct fb_log *log, struct fb_log_walker *walker)
{
    walker->phase = FB_LOG_WALK_IDLE;
    walker->result.records = (uint32_t)fb_max_u64(walker->result.records, walker->missing_from);
    walker->done(log, walker);
    return STEP_WAIT;
}

static enum step begin_units(struct fb_log_walker *walker)
{
    walker->phase = FB_LOG_WALK_UNITS;
    walker->pos = FB_LOG_HEADER_BLOCKS;
    walker->gap_at = 0;
    walker->rereads = 0;
    walker->ahead = 1;
    walker->is_whole = true;
    walker->result.durable = walker->frontier;
    return STEP_ON;
}

/* ---- the summary ---- */

/* The summary is bad from here on, torn or rotten: the descriptors tell the rest. */
static enum step leave_summary(struct fb_log_walker *walker)
{
    walker->has_current = false;
    walker->is_in_sum = false;
    return begin_units(walker);
}

static enum step begin_sum_block(struct fb_log *log, struct fb_log_walker *walker)
{
    if (walker->summary_index == walker->summary_blocks) {
        if (walker->missing_from < walker->expected)
            return leave_summary(walker);
        walker->result.end = walker->end;
        walker->result.durable = walker->frontier;
        return finish(log, walker);
    }
    const uint8_t *block = block_at(log, walker, walker->summary_first + walker->summary_index);
    if (block == NULL)
        return STEP_WAIT;
    enum fb_log_block found =
        fb_log_format_sum_get(block, &walker->place, walker->summary_index, &walker->sum);
    if (found != FB_LOG_BLOCK_GOOD || walker->sum.ordinal != walker->missing_from)
        return reread(walker) ? STEP_ON : leave_summary(walker);
    walker->rereads = 0;
    walker->is_in_sum = true;
    walker->summary_index++;
    return STEP_ON;
}

static enum step step_summary(struct fb_log *log, struct fb_log_walker *walker)
{
    if (!walker->is_in_sum)
        return begin_sum_block(log, walker);
    if (!walker->has_current) {
        int got = fb_log_format_sum_next(&walker->sum, &walker->current, &walker->current_found);
        if (got < 0)
            return leave_summary(walker);
        walker->is_in_sum = got == 1;
        walker->has_current = got == 1;
        return STEP_ON;
    }
    return deliver(log, walker) ? STEP_ON : STEP_WAIT;
}

/* ---- units ---- */

enum unit {
    UNIT_FOUND,
    UNIT_END,
    UNIT_WAIT
};

/* Begins to search behind a place where there is no descriptor. */
static void begin_gap(struct fb_log_walker *walker, const uint8_t *block)
{
    uint64_t reach = fb_max_u64(walker->reach, walker->frontier);
    walker->gap_at = walker->pos;
    /* A unit that ends at its reach may have a successor there. */
    walker->scan_end = (uint32_t)fb_min_u64(fb_max_u64(reach, walker->pos) + 1, walker->end);
    walker->is_tail_torn = fb_log_format_looks_like_desc(block, &walker->place);
    walker->ahead = FB_LOG_WALK_BLOCKS;
}

/* Finds the unit at pos, or the next one behind a gap. */
static enum unit find_unit(struct fb_log *log, struct fb_log_walker *walker)
{
    while (walker->pos < (walker->gap_at != 0 ? walker->scan_end : walker->end)) {
        const uint8_t *block = block_at(log, walker, walker->pos);
        if (block == NULL)
            return UNIT_WAIT;
        enum fb_log_block found =
            fb_log_format_desc_get(block, &walker->place, walker->pos, &walker->desc);
        if (found == FB_LOG_BLOCK_GOOD && walker->desc.end_block <= walker->end) {
            walker->rereads = 0;
            walker->reach = walker->desc.head.reach;
            /* Units without much data stand close: read several at once. */
            walker->ahead =
                walker->desc.head.data_blocks < FB_LOG_WALK_BLOCKS / 4 ? FB_LOG_WALK_BLOCKS : 1;
            return UNIT_FOUND;
        }
        if (walker->gap_at == 0 && reread(walker))
            continue;
        walker->rereads = 0;
        walker->result.is_unreadable = walker->result.is_unreadable || walker->is_block_failed;
        if (walker->gap_at == 0)
            begin_gap(walker, block);
        walker->pos++;
    }
    return UNIT_END;
}

/* Without a trailer: goes through all units once, to learn where they end and what is proven. */
static enum step step_probe(struct fb_log *log, struct fb_log_walker *walker)
{
    switch (find_unit(log, walker)) {
    case UNIT_WAIT:
        return STEP_WAIT;
    case UNIT_FOUND:
        walker->frontier = (uint32_t)fb_max_u64(walker->frontier, walker->desc.head.flushed_up_to);
        walker->result.end = walker->desc.end_block;
        walker->pos = walker->desc.end_block;
        walker->gap_at = 0;
        return STEP_ON;
    default:
        log->stats.torn_tail += walker->gap_at != 0 && walker->is_tail_torn;
        walker->end = walker->result.end;
        walker->frontier = (uint32_t)fb_min_u64(walker->frontier, walker->end);
        return begin_units(walker);
    }
}

/* Counts a place without a descriptor, which is now known to lie between others. */
static void count_gap(struct fb_log *log, struct fb_log_walker *walker)
{
    if (walker->gap_at == 0)
        return;
    if (walker->gap_at < walker->frontier)
        log->stats.rot_descriptors++;
    else
        log->stats.torn_tail++;
    walker->is_whole = walker->is_whole && walker->gap_at < walker->frontier;
    walker->gap_at = 0;
}

static enum step step_units(struct fb_log *log, struct fb_log_walker *walker)
{
    enum unit unit = find_unit(log, walker);
    if (unit == UNIT_WAIT)
        return STEP_WAIT;
    count_gap(log, walker);
    if (unit == UNIT_END) {
        walker->result.end = walker->end;
        return finish(log, walker);
    }
    walker->phase = FB_LOG_WALK_RECORDS;
    walker->unit_is_checked = walker->check_tail && walker->desc.end_block > walker->frontier;
    walker->is_unit_good = true;
    walker->is_rewritten = false;
    walker->result.records =
        (uint32_t)fb_max_u64(walker->result.records,
                             (uint64_t)walker->desc.head.ordinal + walker->desc.head.records);
    return STEP_ON;
}

/* ---- checking what lies beyond the frontier ---- */

static void check_ended(struct fb_log *log, struct fb_log_walker *walker, bool is_good)
{
    if (!is_good && walker->check_tries < FB_LOG_REREADS) {
        walker->check_tries++;
        walker->check = FB_LOG_CHECK_STAGE; /* the device may have misread it */
    } else {
        walker->check = is_good ? FB_LOG_CHECK_GOOD : FB_LOG_CHECK_BAD;
        fb_log_stage_release(log, walker);
    }
    run(log, walker);
}

static void data_rewritten(struct fb_log *log, struct fb_log_meta *meta, int result)
{
    struct fb_log_walker *walker = FB_LIST_ITEM(meta, struct fb_log_walker, data);
    /* The bytes were read and hold: one write that fails takes away no value that was answered as
     * durable. But the device may lose them yet, so the segment must not outlive this start. */
    if (result != 0)
        walker->result.is_unreadable = true;
    check_ended(log, walker, true);
}

static uint64_t stage_off(const struct fb_log *log, const struct fb_log_walker *walker)
{
    return log->config.stage_base + (uint64_t)walker->stage * log->geometry.chunk_bytes;
}

void fb_log_walk_hash_done(struct fb_log *log, struct fb_io_req *req)
{
    struct fb_log_walker *walker = FB_LIST_ITEM(req, struct fb_log_walker, hash_req);
    FB_ASSERT(walker->is_hashing);
    walker->is_hashing = false;
    fb_sched_done(&log->sched, FB_SCHED_URGENT, log->now_ns);
    const struct fb_log_record *record = &walker->current;
    if (req->result < 0 || memcmp(walker->leaves, record->leaves,
                                  record->leaf_count * sizeof(record->leaves[0])) != 0) {
        check_ended(log, walker, false);
        return;
    }
    walker->check = FB_LOG_CHECK_WRITE;
    fb_log_meta_start_arena(log, &walker->data, FB_IO_WRITE, stage_off(log, walker),
                            block_off(log, walker, walker->current_found.data_block),
                            fb_log_blocks(record->part_bytes) * FB_BLOCK_BYTES, data_rewritten);
}

static void data_read(struct fb_log *log, struct fb_log_meta *meta, int result)
{
    struct fb_log_walker *walker = FB_LIST_ITEM(meta, struct fb_log_walker, data);
    if (result != 0) {
        walker->result.is_unreadable = true;
        check_ended(log, walker, false);
        return;
    }
    uint32_t bytes = walker->current.part_bytes;
    walker->check = FB_LOG_CHECK_HASH;
    walker->is_hashing = true;
    walker->hash_vec =
        (struct fb_io_vec){.off = stage_off(log, walker), .len = bytes, .space = FB_IO_ARENA};
    walker->hash_req = (struct fb_io_req){.op = FB_IO_HASH,
                                          .device = log->config.device,
                                          .vec_count = 1,
                                          .leaf_count = walker->current.leaf_count,
                                          .len = bytes,
                                          .vec = &walker->hash_vec,
                                          .leaf_out = walker->leaves,
                                          .cookie = FB_LOG_COOKIE | FB_LOG_REQ_HASH};
    fb_sched_push(&log->sched, FB_SCHED_URGENT, log->now_ns, &walker->hash_req);
}

/* Goes on with the check of the current record; STEP_ON when it has a verdict. */
static enum step step_check(struct fb_log *log, struct fb_log_walker *walker)
{
    switch (walker->check) {
    case FB_LOG_CHECK_NONE:
        walker->check_tries = 0;
        walker->check =
            walker->current.kind == FB_LOG_TOMB ? FB_LOG_CHECK_GOOD : FB_LOG_CHECK_STAGE;
        return STEP_ON;
    case FB_LOG_CHECK_STAGE:
        if (!fb_log_stage_take(log, walker))
            return STEP_WAIT;
        walker->check = FB_LOG_CHECK_READ;
        fb_log_meta_start_arena(log, &walker->data, FB_IO_READ, stage_off(log, walker),
                                block_off(log, walker, walker->current_found.data_block),
                                fb_log_blocks(walker->current.part_bytes) * FB_BLOCK_BYTES,
                                data_read);
        return STEP_WAIT;
    case FB_LOG_CHECK_BAD:
        log->stats.torn_tail++;
        walker->is_unit_good = false;
        walker->has_current = false;
        return STEP_ON;
    default:
        return STEP_WAIT;
    }
}

static void unit_rewritten(struct fb_log *log, struct fb_log_meta *meta, int result)
{
    struct fb_log_walker *walker = FB_LIST_ITEM(meta, struct fb_log_walker, meta);
    walker->is_unit_good = walker->is_unit_good && result == 0;
    run(log, walker);
}

/* Leaves a unit; one that was checked is written again first. */
static enum step end_unit(struct fb_log *log, struct fb_log_walker *walker)
{
    if (walker->unit_is_checked && !walker->is_rewritten) {
        walker->is_rewritten = true;
        struct fb_log_buffer block = walker->buffer;
        uint32_t skip = walker->desc.head.block - walker->buffer_first;
        FB_ASSERT(skip < walker->buffer_count);
        block.at += (size_t)skip * FB_BLOCK_BYTES;
        block.off += (uint64_t)skip * FB_BLOCK_BYTES;
        fb_log_meta_start(log, &walker->meta, FB_IO_WRITE, &block,
                          block_off(log, walker, walker->desc.head.block), FB_BLOCK_BYTES,
                          unit_rewritten);
        return STEP_WAIT;
    }
    /* Of tombstones the other copy may be torn: they stay unproven, whoever starts next. */
    bool has_tombs = walker->desc.head.records > 0 && walker->desc.head.data_blocks == 0;
    bool is_proven = !walker->unit_is_checked || (walker->is_unit_good && !has_tombs);
    walker->is_whole = walker->is_whole && is_proven;
    if (walker->is_whole)
        walker->result.durable =
            (uint32_t)fb_max_u64(walker->result.durable, walker->desc.end_block);
    walker->pos = walker->desc.end_block;
    walker->phase = FB_LOG_WALK_UNITS;
    return STEP_ON;
}

static enum step step_records(struct fb_log *log, struct fb_log_walker *walker)
{
    if (!walker->has_current) {
        if (walker->meta.is_busy)
            return STEP_WAIT; /* the descriptor is being written again */
        int got = fb_log_format_desc_next(&walker->desc, &walker->current, &walker->current_found);
        if (got == 0)
            return end_unit(log, walker);
        if (got < 0) {
            log->stats.rot_descriptors++;
            walker->is_unit_good = false;
            return STEP_ON;
        }
        walker->has_current = walker->current_found.ordinal >= walker->missing_from;
        walker->current.is_unproven =
            walker->unit_is_checked && walker->current.kind == FB_LOG_TOMB;
        walker->check = walker->unit_is_checked ? FB_LOG_CHECK_NONE : FB_LOG_CHECK_GOOD;
        return STEP_ON;
    }
    if (walker->check != FB_LOG_CHECK_GOOD)
        return step_check(log, walker);
    return deliver(log, walker) ? STEP_ON : STEP_WAIT;
}

/* ---- lost segments ---- */

/*
 * Nobody knows which life of the segment is the last, so its values are not believed; but a
 * tombstone is a fact that never becomes untrue. Each block that is a descriptor is looked at, but
 * for those of lives that a record says to be over: what was still needed of them was copied
 * before. So a header that was torn by a crash when it was free asks for no room.
 */
static enum step step_lost(struct fb_log *log, struct fb_log_walker *walker)
{
    if (walker->has_current)
        return deliver(log, walker) ? STEP_ON : STEP_WAIT;
    if (walker->is_in_sum) {
        int got = fb_log_format_desc_next(&walker->desc, &walker->current, &walker->current_found);
        walker->is_in_sum = got != 0;
        walker->has_current = got == 1 && walker->current.kind == FB_LOG_TOMB;
        return STEP_ON;
    }
    if (walker->pos == walker->end)
        return finish(log, walker);
    const uint8_t *block = block_at(log, walker, walker->pos);
    if (block == NULL)
        return STEP_WAIT;
    uint32_t dead = log->fates[walker->place.segment].dead_incarnation;
    walker->is_in_sum = fb_log_format_desc_get(block, &walker->place, walker->pos, &walker->desc) ==
                            FB_LOG_BLOCK_GOOD &&
                        walker->desc.incarnation > dead;
    walker->pos++;
    return STEP_ON;
}

/* ---- the loop ---- */

static enum step step(struct fb_log *log, struct fb_log_walker *walker)
{
    switch (walker->phase) {
    case FB_LOG_WALK_SUMMARY:
        return step_summary(log, walker);
    case FB_LOG_WALK_PROBE:
        return step_probe(log, walker);
    case FB_LOG_WALK_UNITS:
        return step_units(log, walker);
    case FB_LOG_WALK_RECORDS:
        return step_records(log, walker);
    case FB_LOG_WALK_LOST:
        return step_lost(log, walker);
    default:
        return STEP_WAIT;
    }
}

static void run(struct fb_log *log, struct fb_log_walker *walker)
{
    if (walker->is_running) {
        walker->is_called_again = true;
        return;
    }
    walker->is_running = true;
    do {
        walker->is_called_again = false;
        while (!walker->is_paused && step(log, walker) == STEP_ON)
            continue;
    } while (walker->is_called_again);
    walker->is_running = false;
}

void fb_log_walk_resume(struct fb_log *log, struct fb_log_walker *walker)
{
    walker->is_paused = false;
    run(log, walker);
}

void fb_log_walk_abort(struct fb_log_walker *walker)
{
    walker->phase = FB_LOG_WALK_IDLE;
    walker->is_paused = false;
    walker->has_current = false;
}

bool fb_log_walk_is_idle(const struct fb_log_walker *walker)
{
    return walker->phase == FB_LOG_WALK_IDLE && !walker->meta.is_busy && !walker->data.is_busy &&
           !walker->is_running;
}

/* What both kinds of walk begin with. */
static void reset(struct fb_log *log, struct fb_log_walker *walker, uint32_t segment,
                  fb_log_walk_record *record, fb_log_walk_done *done)
{
    FB_ASSERT(walker->phase == FB_LOG_WALK_IDLE && !walker->meta.is_busy);
    walker->place = fb_log_place_of(log, segment);
    walker->record = record;
    walker->done = done;
    walker->result =
        (struct fb_log_walk_result){.end = FB_LOG_HEADER_BLOCKS, .durable = FB_LOG_HEADER_BLOCKS};
    walker->buffer_count = 0;
    walker->single_end = 0;
    walker->ahead = FB_LOG_WALK_BLOCKS;
    walker->pos = FB_LOG_HEADER_BLOCKS;
    walker->frontier = FB_LOG_HEADER_BLOCKS;
    walker->gap_at = 0;
    walker->expected = 0;
    walker->missing_from = 0;
    walker->summary_blocks = 0;
    walker->summary_index = 0;
    walker->rereads = 0;
    walker->has_current = false;
    walker->is_in_sum = false;
    walker->is_paused = false;
    walker->is_whole = true;
    walker->is_tail_torn = false;
    walker->check_tail = false;
}

void fb_log_walk_start(struct fb_log *log, struct fb_log_walker *walker, uint32_t number,
                       bool use_summary, fb_log_walk_record *record, fb_log_walk_done *done)
{
    const struct fb_log_segment *segment = &log->segments[number];
    reset(log, walker, number, record, done);
    walker->end = segment->end;
    walker->frontier = segment->end;
    walker->reach = log->segment_blocks;
    if (use_summary && segment->summary_blocks > 0) {
        walker->phase = FB_LOG_WALK_SUMMARY;
        walker->summary_first = segment->summary_first;
        walker->summary_blocks = segment->summary_blocks;
        walker->expected = segment->records;
    } else {
        (void)begin_units(walker);
    }
    run(log, walker);
}

void fb_log_walk_lost(struct fb_log *log, struct fb_log_walker *walker, uint32_t number,
                      fb_log_walk_record *record, fb_log_walk_done *done)
{
    reset(log, walker, number, record, done);
    walker->place.incarnation = 0;
    walker->end = log->segment_blocks - FB_LOG_TRAILER_BLOCKS;
    walker->phase = FB_LOG_WALK_LOST;
    run(log, walker);
}

void fb_log_walk_recover(struct fb_log *log, struct fb_log_walker *walker, uint32_t number,
                         const struct fb_log_trailer *trailer, uint32_t reach,
                         fb_log_walk_record *record, fb_log_walk_done *done)
{
    reset(log, walker, number, record, done);
    walker->check_tail = true;
    walker->reach = reach > 0 ? reach : log->segment_blocks;
    if (trailer == NULL) {
        walker->phase = FB_LOG_WALK_PROBE;
        walker->end = log->segment_blocks - FB_LOG_TRAILER_BLOCKS;
        walker->ahead = 1;
    } else {
        walker->end = trailer->end;
        walker->frontier = trailer->durable;
        walker->expected = trailer->records;
        walker->summary_first = trailer->summary_first;
        walker->summary_blocks = trailer->summary_blocks;
        walker->phase = FB_LOG_WALK_SUMMARY;
        if (trailer->summary_blocks == 0)
            (void)begin_units(walker);
    }
    run(log, walker);
}
