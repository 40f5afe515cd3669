/*
 * Start: superblock, namespace table, history ring, segments. Nothing is written before all of it
 * is read, and nothing that is refused is ever written. log_finish.c does the writing.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/log_private.h"

static void super_read(struct fb_log *log, struct fb_log_meta *meta, int result);
static void names_read(struct fb_log *log, struct fb_log_meta *meta, int result);
static void ring_read(struct fb_log *log, struct fb_log_meta *meta, int result);
static void start_walkers(struct fb_log *log);

void fb_log_start_failed(struct fb_log *log, const char *format, ...)
{
    FB_ASSERT(log->phase == FB_LOG_PHASE_RECOVERING);
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(log->start_error, sizeof(log->start_error), format, arguments);
    va_end(arguments);
    log->phase = FB_LOG_PHASE_FAILED;
    log->is_fenced = true;
    for (uint32_t i = 0; i < FB_LOG_WALKERS; i++)
        fb_log_walk_abort(&log->walkers[i]);
    log->stats.recovery_bytes_read = log->stats.bytes_read;
    log->owner.recovery_done(log->owner.ctx, FB_IO);
}

/* ---- formatting ---- */

/* An id that no other life of this device has. */
static void make_device_id(const struct fb_log *log, uint8_t *id)
{
    const struct fb_log_config *config = &log->config;
    uint64_t words[6] = {config->device_seed[0],
                         config->device_seed[1],
                         config->node_id,
                         config->capacity_bytes,
                         log->now_ns,
                         config->device};
    uint64_t parts[2];
    for (uint64_t i = 0; i < FB_ARRAY_COUNT(parts); i++)
        parts[i] = htole64(fb_hash64(words, sizeof(words), i + 1));
    _Static_assert(sizeof(parts) == FB_LOG_DEVICE_ID_BYTES, "an id of 128 bits");
    memcpy(id, parts, sizeof(parts));
}

static void format(struct fb_log *log)
{
    struct fb_log_super super = {.sequence = log->super.sequence,
                                 .node_id = log->config.node_id,
                                 .capacity_bytes = log->config.capacity_bytes,
                                 .geometry = log->geometry,
                                 .shard = log->config.shard,
                                 .shards = log->config.shards,
                                 .map_version = 1,
                                 .incarnation_frontier = 1,
                                 .device = log->config.device};
    make_device_id(log, super.device_id);
    log->super = super;
    log->names.slot = FB_LOG_NAMES_SLOTS - 1;
    log->recover.step = FB_LOG_RECOVER_FORMAT;
    log->is_growing = true;
    log->grow_req = (struct fb_io_req){.op = FB_IO_GROW,
                                       .device = log->config.device,
                                       .device_off = log->geometry.segments_off,
                                       .cookie = FB_LOG_COOKIE | FB_LOG_REQ_GROW};
    fb_sched_push(&log->sched, FB_SCHED_URGENT, log->now_ns, &log->grow_req);
}

void fb_log_recover_grown(struct fb_log *log, int64_t result)
{
    if (result < 0) {
        fb_log_start_failed(
            log,
            "the device has no room for %llu bytes of metadata (errno %d): make room "
            "or lower the capacity",
            (unsigned long long)log->geometry.segments_off, (int)-result);
        return;
    }
    fb_log_finish_start(log);
}

/* ---- superblock ---- */

/* Overwrites what cannot be used, if that is allowed; else says why not. True if it refused. */
#define REFUSE(log, ...)                             \
    do {                                             \
        if ((log)->recover.may_format)               \
            format(log);                             \
        else                                         \
            fb_log_start_failed((log), __VA_ARGS__); \
    } while (0)

static void begin_names(struct fb_log *log)
{
    struct fb_log_recover *recover = &log->recover;
    recover->step = FB_LOG_RECOVER_NAMES;
    recover->names_slot = 0;
    recover->rereads = 0;
    log->names.slot = FB_LOG_NAMES_SLOTS - 1;
    fb_log_meta_start(log, &recover->meta, FB_IO_READ, &log->names.writing, log->geometry.names_off,
                      FB_LOG_NAMES_SLOT_BYTES, names_read);
}

/* Another capacity is fine as long as everything keeps its place. */
static bool is_same_shape(const struct fb_log *log, const struct fb_log_super *super)
{
    const struct fb_log_geometry *mine = &log->geometry, *found = &super->geometry;
    return mine->segment_bytes == found->segment_bytes && mine->chunk_bytes == found->chunk_bytes &&
           mine->names_off == found->names_off && mine->names_bytes == found->names_bytes &&
           mine->history_off == found->history_off && mine->history_bytes == found->history_bytes &&
           mine->segments_off == found->segments_off &&
           (mine->segments >= found->segments || super->segment_frontier <= mine->segments);
}

/* A whole superblock was found: is it one that this node, so configured, may use? */
static void use_super(struct fb_log *log, const struct fb_log_super *super)
{
    log->super.sequence = super->sequence;
    if ((super->incompat & ~(uint64_t)FB_LOG_INCOMPAT_KNOWN) != 0) {
        REFUSE(
            log,
            "the log has feature bits %llx that this build does not know: start the newer build, "
            "or format",
            (unsigned long long)super->incompat);
    } else if (super->node_id != log->config.node_id) {
        REFUSE(log,
               "the log belongs to node %llu, this is node %llu: give the right path, or format",
               (unsigned long long)super->node_id, (unsigned long long)log->config.node_id);
    } else if (super->device != log->config.device) {
        REFUSE(
            log,
            "the log is device %u of the node, configured is device %u: swap the paths, or format",
            super->device, log->config.device);
    } else if (super->boot >= FB_LOG_BOOT_MAX) {
        REFUSE(log, "the log has used %u of %u boot numbers: format it", super->boot,
               FB_LOG_BOOT_MAX);
    } else if (super->shards != log->config.shards || super->shard != log->config.shard) {
        REFUSE(log, "the log is shard %u of %u, configured is shard %u of %u: reshard, or format",
               super->shard, super->shards, log->config.shard, log->config.shards);
    } else if (!is_same_shape(log, super)) {
        REFUSE(log,
               "the log was made for %llu bytes, configured are %llu bytes, which lay it out "
               "otherwise: start with the old capacity, or format",
               (unsigned long long)super->capacity_bytes,
               (unsigned long long)log->config.capacity_bytes);
    } else if (super->incarnation_frontier + 2 * FB_LOG_INCARNATION_STEP > UINT32_MAX) {
        REFUSE(log, "the log has used %llu of 4294967295 incarnations: format it",
               (unsigned long long)super->incarnation_frontier);
    } else {
        log->super = *super;
        log->super.geometry = log->geometry;
        log->super.capacity_bytes = log->config.capacity_bytes;
        begin_names(log);
    }
}

static void read_super(struct fb_log *log)
{
    struct fb_log_recover *recover = &log->recover;
    recover->step = FB_LOG_RECOVER_SUPER;
    fb_log_meta_start(log, &recover->meta, FB_IO_READ, &log->super_op.buffer,
                      fb_log_format_super_off(recover->super_copy), FB_BLOCK_BYTES, super_read);
}

/* No copy of the superblock is whole. */
static void without_super(struct fb_log *log)
{
    const enum fb_log_block *found = log->recover.super_found;
    if (found[0] == FB_LOG_BLOCK_ZERO && found[1] == FB_LOG_BLOCK_ZERO) {
        format(log);
    } else if (found[0] == FB_LOG_BLOCK_VERSION || found[1] == FB_LOG_BLOCK_VERSION) {
        uint32_t version = found[0] == FB_LOG_BLOCK_VERSION ? log->recover.supers[0].version
                                                            : log->recover.supers[1].version;
        REFUSE(log,
               "the log has format version %u, this build reads version %d: start the build that "
               "wrote it, or format",
               version, FB_LOG_VERSION);
    } else if (found[0] == FB_LOG_BLOCK_DAMAGED || found[1] == FB_LOG_BLOCK_DAMAGED) {
        REFUSE(log, "both copies of the superblock are damaged: restore the file, or format");
    } else {
        REFUSE(log, "the file is not a log of forebay and not empty: give another path, or format");
    }
}

/*
 * One copy is whole and the other cannot be told: it may be the newer one, of starts that could not
 * write the one that is left. So no number below what those may have given out is given out again,
 * and every segment is looked at.
 */
static void assume_newer(struct fb_log_super *super)
{
    const uint64_t starts = FB_LOG_SUPER_AHEAD_MAX;
    super->boot = (uint32_t)fb_min_u64(super->boot + starts, FB_LOG_BOOT_MAX - 1);
    super->sequence += starts;
    super->incarnation_frontier += starts * FB_LOG_INCARNATION_STEP;
    super->segment_frontier = super->geometry.segments;
}

/* Both copies were read. */
static void choose_super(struct fb_log *log)
{
    struct fb_log_recover *recover = &log->recover;
    bool is_good[FB_LOG_SUPER_COPIES];
    for (uint32_t i = 0; i < FB_LOG_SUPER_COPIES; i++)
        is_good[i] = recover->super_found[i] == FB_LOG_BLOCK_GOOD;
    if (!is_good[0] && !is_good[1]) {
        without_super(log);
        return;
    }
    uint32_t best = 0;
    if (!is_good[0] || (is_good[1] && recover->supers[1].sequence > recover->supers[0].sequence))
        best = 1;
    uint32_t other = FB_LOG_SUPER_COPIES - 1 - best;
    log->super_op.weaker = other;
    if (!is_good[other] && recover->super_found[other] != FB_LOG_BLOCK_ZERO)
        assume_newer(&recover->supers[best]);
    use_super(log, &recover->supers[best]);
}

static bool has_good_copy(const struct fb_log_recover *recover)
{
    return recover->super_found[0] == FB_LOG_BLOCK_GOOD ||
           recover->super_found[1] == FB_LOG_BLOCK_GOOD;
}

static void super_read(struct fb_log *log, struct fb_log_meta *meta, int result)
{
    (void)meta;
    struct fb_log_recover *recover = &log->recover;
    uint32_t copy = recover->super_copy;
    enum fb_log_block found = FB_LOG_BLOCK_DAMAGED;
    if (result == 0)
        found = fb_log_format_super_get(log->super_op.buffer.at, copy, &recover->supers[copy]);
    bool is_bad = found != FB_LOG_BLOCK_GOOD && found != FB_LOG_BLOCK_ZERO;
    if (is_bad && recover->rereads < FB_LOG_REREADS) {
        recover->rereads++; /* the device may have misread it */
        read_super(log);
        return;
    }
    /* What cannot be read may be anything: the other copy can speak for it, but nothing else. */
    recover->super_errno = result != 0 ? result : recover->super_errno;
    recover->super_found[copy] = found;
    recover->rereads = 0;
    if (++recover->super_copy < FB_LOG_SUPER_COPIES)
        read_super(log);
    else if (recover->super_errno != 0 && !has_good_copy(recover))
        fb_log_start_failed(log, "the superblock cannot be read (errno %d): check the device",
                            -recover->super_errno);
    else
        choose_super(log);
}

/* ---- names ---- */

static void begin_history(struct fb_log *log)
{
    log->recover.step = FB_LOG_RECOVER_HISTORY;
    log->recover.ring_block = 0;
    log->recover.ring_single = 0;
    log->recover.ring_count = (uint32_t)fb_min_u64(FB_LOG_WALK_BLOCKS, log->history.blocks);
    fb_log_meta_start(log, &log->recover.meta, FB_IO_READ, &log->walkers[0].buffer,
                      log->geometry.history_off, log->recover.ring_count * FB_BLOCK_BYTES,
                      ring_read);
}

/* Takes the slot in the writing buffer if it is whole and newer. True if it was good or empty. */
static bool take_names(struct fb_log *log, uint32_t slot)
{
    struct fb_log_names_op *names = &log->names;
    struct fb_log_names_head head;
    enum fb_log_block found =
        fb_log_format_names_get(names->writing.at, log->super.device_id, slot, &head);
    if (found != FB_LOG_BLOCK_GOOD)
        return found == FB_LOG_BLOCK_ZERO || found == FB_LOG_BLOCK_FOREIGN;
    if (head.checksum !=
        fb_log_format_names_checksum(names->writing.at + FB_BLOCK_BYTES, head.bytes, head.sequence))
        return false;
    if (head.sequence < names->sequence)
        return true;
    struct fb_log_buffer swap = names->found;
    names->found = names->writing;
    names->writing = swap;
    names->sequence = head.sequence;
    names->slot = slot;
    names->bytes = head.bytes;
    return true;
}

static void names_read(struct fb_log *log, struct fb_log_meta *meta, int result)
{
    (void)meta;
    struct fb_log_recover *recover = &log->recover;
    bool is_good = result == 0 && take_names(log, recover->names_slot);
    if (!is_good && recover->rereads < FB_LOG_REREADS) {
        recover->rereads++;
    } else {
        recover->rereads = 0;
        recover->names_slot++;
    }
    if (recover->names_slot == FB_LOG_NAMES_SLOTS) {
        begin_history(log);
        return;
    }
    fb_log_meta_start(log, &recover->meta, FB_IO_READ, &log->names.writing,
                      log->geometry.names_off +
                          (uint64_t)recover->names_slot * FB_LOG_NAMES_SLOT_BYTES,
                      FB_LOG_NAMES_SLOT_BYTES, names_read);
}

/* ---- history ---- */

static void begin_segments(struct fb_log *log)
{
    struct fb_log_recover *recover = &log->recover;
    fb_log_history_loaded(log);
    recover->step = FB_LOG_RECOVER_SEGMENTS;
    recover->next_segment = 0;
    recover->scan_to =
        (uint32_t)fb_min_u64((uint64_t)log->super.segment_frontier + FB_LOG_SEGMENT_STEP,
                             log->geometry.segments);
    start_walkers(log);
}

static void ring_read(struct fb_log *log, struct fb_log_meta *meta, int result)
{
    (void)meta;
    struct fb_log_recover *recover = &log->recover;
    uint8_t *bytes = log->walkers[0].buffer.at;
    if (result != 0 && recover->ring_count > 1) {
        recover->ring_single = recover->ring_block + recover->ring_count;
        recover->ring_count = 0;
    } else if (result != 0) {
        memset(bytes, 0, FB_BLOCK_BYTES);
    }
    for (uint32_t i = 0; i < recover->ring_count; i++)
        fb_log_history_load(log, recover->ring_block + i, bytes + (size_t)i * FB_BLOCK_BYTES);
    recover->ring_block += recover->ring_count;
    if (recover->ring_block == log->history.blocks) {
        begin_segments(log);
        return;
    }
    uint32_t count = recover->ring_block < recover->ring_single ? 1 : FB_LOG_WALK_BLOCKS;
    recover->ring_count = (uint32_t)fb_min_u64(count, log->history.blocks - recover->ring_block);
    fb_log_meta_start(log, &recover->meta, FB_IO_READ, &log->walkers[0].buffer,
                      log->geometry.history_off + (uint64_t)recover->ring_block * FB_BLOCK_BYTES,
                      recover->ring_count * FB_BLOCK_BYTES, ring_read);
}

/* ---- segments ---- */

bool fb_log_stage_take(struct fb_log *log, struct fb_log_walker *walker)
{
    struct fb_log_recover *recover = &log->recover;
    if (walker->stage != UINT32_MAX)
        return true;
    for (uint32_t i = 0; i < recover->stage_count; i++) {
        if ((recover->stage_used & (1u << i)) != 0)
            continue;
        recover->stage_used |= 1u << i;
        walker->stage = i;
        return true;
    }
    if (!fb_link_is_linked(&walker->stage_wait))
        fb_list_push_back(&recover->stage_waits, &walker->stage_wait);
    return false;
}

void fb_log_stage_release(struct fb_log *log, struct fb_log_walker *walker)
{
    if (walker->stage == UINT32_MAX)
        return;
    log->recover.stage_used &= ~(1u << walker->stage);
    walker->stage = UINT32_MAX;
    struct fb_link *link = fb_list_pop_front(&log->recover.stage_waits);
    if (link != NULL)
        fb_log_walk_resume(log, FB_LIST_ITEM(link, struct fb_log_walker, stage_wait));
}

/* Tells the owner of a tombstone. The reason is taken out of one that is older than all that the
 * history knows: a newer value of its key may have been given up since, and that be forgotten. */
static void tell_tomb(struct fb_log *log, const struct fb_log_record *record,
                      const struct fb_log_addr *addr, uint64_t horizon)
{
    struct fb_log_record tomb = *record;
    if (horizon < fb_log_history_oldest(log))
        tomb.pin_class = FB_REASON_NONE;
    log->owner.recovered(log->owner.ctx, &tomb, addr);
}

static bool recovered(struct fb_log *log, struct fb_log_walker *walker,
                      const struct fb_log_record *record, const struct fb_log_found *found)
{
    struct fb_log_segment *segment = &log->segments[walker->place.segment];
    bool is_tomb = record->kind == FB_LOG_TOMB;
    if (is_tomb) {
        segment->tombs++;
        log->tombs++;
    } else {
        uint32_t blocks = fb_log_blocks(record->part_bytes);
        segment->live_values++;
        segment->live_blocks += blocks;
        log->live_blocks += blocks;
    }
    if (record->origin == log->config.node_id)
        log->recover.boot_max =
            (uint32_t)fb_max_u64(log->recover.boot_max, record->generation >> FB_LOG_BOOT_SHIFT);
    struct fb_log_addr addr = {.incarnation = segment->incarnation,
                               .segment = walker->place.segment,
                               .block = is_tomb ? found->desc_block : found->data_block,
                               .device = log->config.device};
    log->stats.recovered_records++;
    if (is_tomb)
        tell_tomb(log, record, &addr, found->horizon);
    else
        log->owner.recovered(log->owner.ctx, record, &addr);
    return true;
}

static void walker_done(struct fb_log *log)
{
    FB_ASSERT(log->recover.walking > 0);
    log->recover.walking--;
    start_walkers(log);
}

static void walked(struct fb_log *log, struct fb_log_walker *walker)
{
    struct fb_log_segment *segment = &log->segments[walker->place.segment];
    bool had_trailer = segment->state == FB_LOG_SEG_SEALED;
    /* A trailer that does not say how much is durable by now is written again. */
    if (had_trailer && walker->result.durable <= segment->durable)
        segment->durable = walker->frontier;
    else
        segment->state = FB_LOG_SEG_OPEN;
    segment->durable = (uint32_t)fb_max_u64(segment->durable, walker->result.durable);
    segment->end = walker->result.end;
    segment->records = walker->result.records;
    if (walker->result.is_unreadable) {
        /* What cannot be read now must not come back at a later start. */
        segment->must_go = true;
        log->uncertain++;
    }
    walker_done(log);
}

/* A segment that counts: later ones may be in use beyond what the superblock says. */
static void note_used(struct fb_log *log, uint32_t number)
{
    const struct fb_log_segment *segment = &log->segments[number];
    struct fb_log_recover *recover = &log->recover;
    recover->incarnation_max = fb_max_u64(recover->incarnation_max, segment->incarnation);
    log->grown = (uint32_t)fb_max_u64(log->grown, number + 1);
    recover->scan_to = (uint32_t)fb_max_u64(recover->scan_to,
                                            fb_min_u64((uint64_t)number + 1 + FB_LOG_SEGMENT_STEP,
                                                       log->geometry.segments));
}

static uint32_t segment_of(const struct fb_log_walker *walker)
{
    return walker->place.segment;
}

static void read_header(struct fb_log *log, struct fb_log_walker *walker);
static void read_trailer(struct fb_log *log, struct fb_log_walker *walker);

static void trailer_read(struct fb_log *log, struct fb_log_meta *meta, int result)
{
    struct fb_log_walker *walker = FB_LIST_ITEM(meta, struct fb_log_walker, meta);
    if (log->phase != FB_LOG_PHASE_RECOVERING)
        return;
    struct fb_log_segment *segment = &log->segments[segment_of(walker)];
    struct fb_log_place place = fb_log_place_of(log, segment_of(walker));
    struct fb_log_trailer trailer;
    enum fb_log_block found = FB_LOG_BLOCK_DAMAGED;
    if (result == 0)
        found = fb_log_format_trailer_get(walker->buffer.at, &place, &trailer);
    /* "Never used" is read again too: a read that went astray must not give a segment away. */
    if (found != FB_LOG_BLOCK_GOOD && walker->reads <= FB_LOG_REREADS) {
        read_trailer(log, walker);
        return;
    }
    bool has_trailer = found == FB_LOG_BLOCK_GOOD;
    segment->state = has_trailer ? FB_LOG_SEG_SEALED : FB_LOG_SEG_OPEN;
    segment->durable = has_trailer ? trailer.durable : FB_LOG_HEADER_BLOCKS;
    if (has_trailer) {
        segment->summary_first = trailer.summary_first;
        segment->summary_blocks = trailer.summary_blocks;
    }
    fb_log_walk_recover(log, walker, segment_of(walker), has_trailer ? &trailer : NULL,
                        walker->header.window_blocks, recovered, walked);
}

static void read_trailer(struct fb_log *log, struct fb_log_walker *walker)
{
    uint32_t last = log->segment_blocks - FB_LOG_TRAILER_BLOCKS;
    walker->reads++;
    fb_log_meta_start(log, &walker->meta, FB_IO_READ, &walker->buffer,
                      fb_log_segment_off(log, segment_of(walker)) + (uint64_t)last * FB_BLOCK_BYTES,
                      FB_BLOCK_BYTES, trailer_read);
}

/* The better of two copies of a header. */
static bool is_newer(const struct fb_log_header *a, const struct fb_log_header *b)
{
    if (a->incarnation != b->incarnation)
        return a->incarnation > b->incarnation;
    return a->state == FB_LOG_HEADER_FREE && b->state == FB_LOG_HEADER_OPEN;
}

/*
 * Looks at both copies of a header: GOOD if one counts; ZERO if the segment was never used, which
 * is so if both are empty or foreign and no descriptor follows; else DAMAGED.
 */
static enum fb_log_block choose_header(struct fb_log *log, struct fb_log_walker *walker)
{
    bool is_found = false, is_damaged = false;
    walker->bad_header = 0;
    for (uint32_t i = 0; i < FB_LOG_HEADER_BLOCKS; i++) {
        struct fb_log_header header;
        enum fb_log_block found =
            fb_log_format_header_get(walker->buffer.at + (size_t)i * FB_BLOCK_BYTES,
                                     log->super.device_id, segment_of(walker), i, &header);
        bool is_good = found == FB_LOG_BLOCK_GOOD;
        if (is_found && (!is_good || is_newer(&walker->header, &header)))
            walker->bad_header = 1 + i;
        if (is_good && (!is_found || is_newer(&header, &walker->header))) {
            walker->bad_header = i; /* the one before: it was not as good */
            walker->header = header;
            is_found = true;
        }
        is_damaged = is_damaged || found == FB_LOG_BLOCK_DAMAGED || found == FB_LOG_BLOCK_VERSION;
    }
    if (is_found)
        return FB_LOG_BLOCK_GOOD;
    struct fb_log_place any = fb_log_place_of(log, segment_of(walker));
    any.incarnation = 0;
    struct fb_log_desc desc;
    const uint8_t *first = walker->buffer.at + (size_t)FB_LOG_HEADER_BLOCKS * FB_BLOCK_BYTES;
    if (fb_log_format_desc_get(first, &any, FB_LOG_HEADER_BLOCKS, &desc) == FB_LOG_BLOCK_GOOD)
        is_damaged = true;
    return is_damaged ? FB_LOG_BLOCK_DAMAGED : FB_LOG_BLOCK_ZERO;
}

/* A segment whose header counts. */
static void use_header(struct fb_log *log, struct fb_log_walker *walker)
{
    uint32_t number = segment_of(walker);
    struct fb_log_segment *segment = &log->segments[number];
    const struct fb_log_fate *fate = &log->fates[number];
    const struct fb_log_header *header = &walker->header;
    segment->incarnation = (uint32_t)header->incarnation;
    segment->class_hint = (uint8_t)header->class_hint;
    log->fates[number].rescue = header->rescue;
    log->fates[number].window = header->window_blocks;
    log->fates[number].bad_header = walker->bad_header;
    note_used(log, number);
    if (header->state == FB_LOG_HEADER_FREE) {
        segment->state = FB_LOG_SEG_FREE;
        walker_done(log);
    } else if (header->incarnation <= fate->dead_incarnation) {
        segment->state = FB_LOG_SEG_FREEING;
        walker_done(log);
    } else if (header->rescue != 0 && log->recover.next_rescue == 0) {
        /* Whether it is needed is known when all others have been looked at. */
        segment->state = FB_LOG_SEG_RESCUE;
        walker_done(log);
    } else {
        walker->reads = 0;
        read_trailer(log, walker);
    }
}

static void lost_walked(struct fb_log *log, struct fb_log_walker *walker)
{
    (void)walker;
    walker_done(log);
}

/* No copy of the header counts, or none can be read: only tombstones are believed. */
static void lose_segment(struct fb_log *log, struct fb_log_walker *walker, enum fb_reason reason)
{
    struct fb_log_segment *segment = &log->segments[segment_of(walker)];
    log->stats.segments_lost++;
    log->uncertain++;
    segment->state = FB_LOG_SEG_LOST;
    segment->must_go = true;
    segment->reason = (uint8_t)reason;
    note_used(log, segment_of(walker));
    fb_log_walk_lost(log, walker, segment_of(walker), recovered, lost_walked);
}

/*
 * True if this reading of a header says the same as the one before. One reading alone is not
 * believed: a read that went astray, or came from an old copy, would give a segment away or bring
 * an ended life back.
 */
static bool is_agreed(struct fb_log_walker *walker, enum fb_log_block found)
{
    const struct fb_log_header *last = &walker->last_header, *now = &walker->header;
    bool is_same = walker->reads > 1 && found == walker->last_found;
    if (found == FB_LOG_BLOCK_GOOD)
        is_same = is_same && last->incarnation == now->incarnation && last->state == now->state;
    walker->last_found = found;
    walker->last_header = walker->header;
    return is_same;
}

static void header_read(struct fb_log *log, struct fb_log_meta *meta, int result)
{
    struct fb_log_walker *walker = FB_LIST_ITEM(meta, struct fb_log_walker, meta);
    if (log->phase != FB_LOG_PHASE_RECOVERING)
        return;
    enum fb_log_block found = result == 0 ? choose_header(log, walker) : FB_LOG_BLOCK_DAMAGED;
    if (!is_agreed(walker, found) && walker->reads <= FB_LOG_HEADER_READS)
        read_header(log, walker);
    else if (found == FB_LOG_BLOCK_GOOD)
        use_header(log, walker);
    else if (found == FB_LOG_BLOCK_ZERO)
        walker_done(log); /* never used */
    else
        lose_segment(log, walker, result != 0 ? FB_REASON_IO_ERROR : FB_REASON_BAD_CHECKSUM);
}

static void read_header(struct fb_log *log, struct fb_log_walker *walker)
{
    walker->reads++;
    fb_log_meta_start(log, &walker->meta, FB_IO_READ, &walker->buffer,
                      fb_log_segment_off(log, segment_of(walker)),
                      (FB_LOG_HEADER_BLOCKS + 1) * FB_BLOCK_BYTES, header_read);
}

/* True if a segment with this incarnation is alive. */
static bool is_incarnation_alive(const struct fb_log *log, uint32_t incarnation)
{
    for (uint32_t i = 0; i < log->grown; i++) {
        const struct fb_log_segment *segment = &log->segments[i];
        if (segment->incarnation == incarnation && fb_log_is_alive(segment) &&
            segment->state != FB_LOG_SEG_FREEING)
            return true;
    }
    return false;
}

/*
 * Looks at the segments that were opened as the rescue of another, one by one. If that one still
 * lives, its rescue holds only copies of what lies there, perhaps not all: it is thrown away. So a
 * crash in a reclaim never costs the last free segment.
 */
static void next_rescue(struct fb_log *log)
{
    struct fb_log_recover *recover = &log->recover;
    for (; recover->next_rescue < log->grown; recover->next_rescue++) {
        uint32_t number = recover->next_rescue;
        struct fb_log_segment *segment = &log->segments[number];
        if (segment->state != FB_LOG_SEG_RESCUE)
            continue;
        if (is_incarnation_alive(log, log->fates[number].rescue)) {
            segment->state = FB_LOG_SEG_FREEING;
            continue;
        }
        struct fb_log_walker *walker = &log->walkers[0];
        walker->place.segment = number;
        walker->reads = 0;
        recover->next_rescue++;
        recover->walking++;
        read_header(log, walker);
        return;
    }
    fb_log_finish_start(log);
}

/* Gives each idle walker a segment; goes on when all are done. */
static void start_walkers(struct fb_log *log)
{
    struct fb_log_recover *recover = &log->recover;
    if (recover->is_starting || log->phase != FB_LOG_PHASE_RECOVERING)
        return;
    recover->is_starting = true;
    for (uint32_t i = 0; i < FB_LOG_WALKERS && recover->next_segment < recover->scan_to; i++) {
        struct fb_log_walker *walker = &log->walkers[i];
        if (!fb_log_walk_is_idle(walker))
            continue;
        walker->place.segment = recover->next_segment++;
        walker->reads = 0;
        recover->walking++;
        read_header(log, walker);
    }
    recover->is_starting = false;
    if (recover->walking == 0 && recover->next_segment >= recover->scan_to)
        next_rescue(log);
}

void fb_log_start(struct fb_log *log, uint64_t now_ns, bool may_format)
{
    FB_ASSERT(log->phase == FB_LOG_PHASE_NEW);
    log->now_ns = now_ns;
    log->depth++;
    log->phase = FB_LOG_PHASE_RECOVERING;
    log->recover.may_format = may_format;
    read_super(log);
    fb_log_leave(log);
}
