/*
 * One segment: header, units and their records, trailer, summary, and on request the bytes. See
 * fsck.h; the rules are those of docs/format.md, section 6.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/hash.h"
#include "base/limits.h"
#include "cli/fsck.h"

#define COUNTER_BITS 40
#define FIRST_UNIT   FB_LOG_HEADER_BLOCKS
#define FIRST_ROOM   1024

/* A record as the descriptors tell it, to be compared with the summary. */
struct seen {
    uint32_t ordinal;
    uint8_t kind;
    uint32_t data_block, part, part_bytes;
    uint64_t generation;
    struct fb_digest digest;
    uint64_t root;
};

struct segment {
    struct fb_fsck *fsck;
    struct fb_log_place place;
    struct fb_log_header header;
    bool has_trailer;
    struct fb_log_trailer trailer;
    uint32_t frontier; /* blocks below it were durable */
    uint32_t next_ordinal;
    struct seen *seen;
    size_t seen_count, seen_room;
    uint8_t block[FB_BLOCK_BYTES];
};

static bool read_block(struct segment *segment, uint32_t block)
{
    const struct fb_log_super *super = &segment->fsck->super;
    uint64_t off = super->geometry.segments_off +
                   segment->place.segment * super->geometry.segment_bytes +
                   (uint64_t)block * FB_BLOCK_BYTES;
    return fb_fsck_read(segment->fsck, off, segment->block, FB_BLOCK_BYTES);
}

/* ---- header ---- */

enum life {
    LIFE_UNUSED,
    LIFE_FREE,
    LIFE_USED,
    LIFE_LOST
};

/* The header that counts: the higher incarnation, of equal ones FREE. */
static bool is_better(const struct fb_log_header *one, const struct fb_log_header *other)
{
    if (one->incarnation != other->incarnation)
        return one->incarnation > other->incarnation;
    return one->state == FB_LOG_HEADER_FREE && other->state != FB_LOG_HEADER_FREE;
}

static enum life read_header(struct segment *segment)
{
    struct fb_fsck *fsck = segment->fsck;
    bool any = false;
    bool foreign_only = true;
    for (uint32_t copy = 0; copy < FB_LOG_HEADER_BLOCKS; copy++) {
        struct fb_log_header header;
        if (!read_block(segment, copy)) {
            foreign_only = false;
            continue;
        }
        enum fb_log_block is = fb_log_format_header_get(segment->block, segment->place.device_id,
                                                        segment->place.segment, copy, &header);
        if (is == FB_LOG_BLOCK_GOOD && (!any || is_better(&header, &segment->header))) {
            segment->header = header;
            any = true;
        }
        if (is == FB_LOG_BLOCK_DAMAGED || is == FB_LOG_BLOCK_VERSION) {
            foreign_only = false;
            fb_fsck_found(fsck, &fsck->damaged_blocks,
                          "segment %u: copy %u of its header is damaged", segment->place.segment,
                          copy);
        }
    }
    if (any) {
        bool is_free = segment->header.state == FB_LOG_HEADER_FREE ||
                       segment->header.incarnation <= fsck->dead[segment->place.segment];
        return is_free ? LIFE_FREE : LIFE_USED;
    }
    struct fb_log_desc desc;
    if (foreign_only && read_block(segment, FIRST_UNIT) &&
        fb_log_format_desc_get(segment->block, &segment->place, FIRST_UNIT, &desc) !=
            FB_LOG_BLOCK_GOOD)
        return LIFE_UNUSED;
    return LIFE_LOST;
}

static void read_trailer(struct segment *segment)
{
    struct fb_fsck *fsck = segment->fsck;
    if (!read_block(segment, segment->place.segment_blocks - FB_LOG_TRAILER_BLOCKS))
        return;
    enum fb_log_block is =
        fb_log_format_trailer_get(segment->block, &segment->place, &segment->trailer);
    segment->has_trailer = is == FB_LOG_BLOCK_GOOD;
    if (is == FB_LOG_BLOCK_DAMAGED || is == FB_LOG_BLOCK_VERSION)
        fb_fsck_found(fsck, &fsck->damaged_blocks, "segment %u: its trailer is damaged",
                      segment->place.segment);
    segment->frontier = segment->has_trailer ? segment->trailer.durable : 0;
}

/* ---- records ---- */

static bool keep(struct segment *segment, const struct fb_log_record *record,
                 const struct fb_log_found *found)
{
    if (segment->seen_count == segment->seen_room) {
        size_t room = segment->seen_room == 0 ? FIRST_ROOM : segment->seen_room * 2;
        struct seen *more = realloc(segment->seen, room * sizeof(*more));
        if (more == NULL)
            return false;
        segment->seen = more;
        segment->seen_room = room;
    }
    segment->seen[segment->seen_count++] = (struct seen){
        .ordinal = found->ordinal,
        .kind = record->kind,
        .data_block = found->data_block,
        .part = record->part,
        .part_bytes = record->part_bytes,
        .generation = record->generation,
        .digest = record->digest,
        .root = record->root,
    };
    return true;
}

/* The bytes of a value have the leaves, and these the root, that the record names. */
static bool is_data_good(struct segment *segment, const struct fb_log_record *record,
                         const struct fb_log_found *found)
{
    struct fb_fsck *fsck = segment->fsck;
    const struct fb_log_geometry *geometry = &fsck->super.geometry;
    uint64_t off = geometry->segments_off + segment->place.segment * geometry->segment_bytes +
                   (uint64_t)found->data_block * FB_BLOCK_BYTES;
    if (!fb_fsck_read(fsck, off, fsck->data, record->part_bytes))
        return true; /* counted as unreadable */
    for (uint32_t i = 0; i < record->leaf_count; i++) {
        uint64_t at = i * FB_LEAF_BYTES;
        uint64_t bytes = fb_min_u64(FB_LEAF_BYTES, record->part_bytes - at);
        if (fb_leaf_hash(fsck->data + at, bytes) != record->leaves[i])
            return false;
    }
    struct fb_identity identity = {
        .namespace_id = record->namespace_id,
        .epoch = record->epoch,
        .key = record->key,
        .key_bytes = record->key_bytes,
        .generation = {.boot = (uint32_t)(record->generation >> COUNTER_BITS),
                       .counter = record->generation & ((UINT64_C(1) << COUNTER_BITS) - 1)},
        .part = record->part,
        .total_bytes = record->value_bytes,
        .part_bytes = record->part_bytes,
    };
    fsck->parts_checked++;
    return fb_root_of(&identity, record->leaves, record->leaf_count) == record->root;
}

static void take_record(struct segment *segment, const struct fb_log_record *record,
                        const struct fb_log_found *found, bool durable)
{
    struct fb_fsck *fsck = segment->fsck;
    if (!keep(segment, record, found)) {
        fb_fsck_found(fsck, &fsck->unreadable, "no memory for the records of a segment");
        return;
    }
    if (record->kind == FB_LOG_TOMB) {
        fsck->tombstones++;
        return;
    }
    fsck->values++;
    fsck->value_bytes += record->part_bytes;
    if (!fsck->args->data || is_data_good(segment, record, found))
        return;
    if (durable)
        fb_fsck_found(fsck, &fsck->bad_data,
                      "segment %u, block %u: the bytes are not those of their record",
                      segment->place.segment, found->data_block);
    else
        fsck->torn++;
}

/* The records of a unit. The second of two equal units (tombstones) is passed over. */
static void take_unit(struct segment *segment, struct fb_log_desc *desc, uint32_t at)
{
    struct fb_fsck *fsck = segment->fsck;
    fsck->units++;
    bool durable = at + 1 + desc->head.data_blocks <= segment->frontier;
    bool again = desc->head.records > 0 && desc->head.ordinal < segment->next_ordinal;
    for (;;) {
        struct fb_log_record record;
        struct fb_log_found found;
        int got = fb_log_format_desc_next(desc, &record, &found);
        if (got == 0)
            break;
        if (got < 0) {
            fb_fsck_found(fsck, &fsck->damaged_blocks,
                          "segment %u, block %u: a record that this version does not understand",
                          segment->place.segment, at);
            break;
        }
        if (!again)
            take_record(segment, &record, &found, durable);
    }
    if (!again)
        segment->next_ordinal = desc->head.ordinal + desc->head.records;
}

/* ---- the walk ---- */

/* The highest frontier that any descriptor tells of. For a segment without trailer. */
static void find_frontier(struct segment *segment)
{
    for (uint32_t at = FIRST_UNIT; at < segment->place.segment_blocks;) {
        struct fb_log_desc desc;
        uint32_t step = 1;
        if (!read_block(segment, at))
            return;
        if (fb_log_format_desc_get(segment->block, &segment->place, at, &desc) ==
            FB_LOG_BLOCK_GOOD) {
            segment->frontier = (uint32_t)fb_max_u64(segment->frontier, desc.head.flushed_up_to);
            step += desc.head.data_blocks;
        } else if (at >= segment->frontier + segment->header.window_blocks) {
            return;
        }
        at += step;
    }
}

/* Looks for the next descriptor behind a place where there should be one. 0: there is none. */
static uint32_t find_next(struct segment *segment, uint32_t at, uint32_t end)
{
    uint64_t limit = at < segment->frontier
                         ? end
                         : fb_min_u64(end, (uint64_t)at + segment->header.window_blocks);
    for (uint32_t next = at + 1; next < limit; next++) {
        struct fb_log_desc desc;
        if (read_block(segment, next) && fb_log_format_desc_get(segment->block, &segment->place,
                                                                next, &desc) == FB_LOG_BLOCK_GOOD)
            return next;
    }
    return 0;
}

static void walk(struct segment *segment)
{
    struct fb_fsck *fsck = segment->fsck;
    uint32_t end = segment->has_trailer ? segment->trailer.end
                                        : segment->place.segment_blocks - FB_LOG_TRAILER_BLOCKS;
    if (!segment->has_trailer)
        find_frontier(segment);
    for (uint32_t at = FIRST_UNIT; at < end;) {
        struct fb_log_desc desc;
        bool readable = read_block(segment, at);
        if (readable && fb_log_format_desc_get(segment->block, &segment->place, at, &desc) ==
                            FB_LOG_BLOCK_GOOD) {
            uint32_t blocks = 1 + desc.head.data_blocks;
            take_unit(segment, &desc, at);
            at += blocks;
            continue;
        }
        bool looks_so = readable && fb_log_format_looks_like_desc(segment->block, &segment->place);
        if (at < segment->frontier)
            fb_fsck_found(fsck, &fsck->rot, "segment %u, block %u: a descriptor is gone",
                          segment->place.segment, at);
        uint32_t next = find_next(segment, at, end);
        if (at >= segment->frontier && (next != 0 || looks_so))
            fsck->torn++;
        if (next == 0)
            return;
        at = next;
    }
}

/* ---- the second witness ---- */

static const struct seen *find_seen(const struct segment *segment, uint32_t ordinal)
{
    size_t low = 0;
    size_t high = segment->seen_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (segment->seen[middle].ordinal < ordinal)
            low = middle + 1;
        else
            high = middle;
    }
    bool found = low < segment->seen_count && segment->seen[low].ordinal == ordinal;
    return found ? &segment->seen[low] : NULL;
}

static bool do_agree(const struct seen *seen, const struct fb_log_record *record,
                     const struct fb_log_found *found)
{
    return seen->kind == record->kind && seen->generation == record->generation &&
           fb_digest_is_equal(seen->digest, record->digest) &&
           (record->kind == FB_LOG_TOMB ||
            (seen->data_block == found->data_block && seen->part == record->part &&
             seen->part_bytes == record->part_bytes && seen->root == record->root));
}

static void compare_summary(struct segment *segment)
{
    struct fb_fsck *fsck = segment->fsck;
    const struct fb_log_trailer *trailer = &segment->trailer;
    for (uint32_t i = 0; i < trailer->summary_blocks; i++) {
        struct fb_log_sum sum;
        if (!read_block(segment, trailer->summary_first + i))
            continue;
        if (fb_log_format_sum_get(segment->block, &segment->place, i, &sum) != FB_LOG_BLOCK_GOOD) {
            fb_fsck_found(fsck, &fsck->damaged_blocks,
                          "segment %u: block %u of its summary is damaged", segment->place.segment,
                          i);
            continue;
        }
        struct fb_log_record record;
        struct fb_log_found found;
        while (fb_log_format_sum_next(&sum, &record, &found) > 0) {
            const struct seen *seen = find_seen(segment, found.ordinal);
            if (seen != NULL && !do_agree(seen, &record, &found))
                fb_fsck_found(fsck, &fsck->disagreements,
                              "segment %u, record %u: summary and descriptor differ",
                              segment->place.segment, found.ordinal);
        }
    }
}

void fb_fsck_segment(struct fb_fsck *fsck, uint32_t number)
{
    struct segment segment = {.fsck = fsck};
    segment.place = (struct fb_log_place){
        .segment = number,
        .segment_blocks = (uint32_t)(fsck->super.geometry.segment_bytes / FB_BLOCK_BYTES),
    };
    memcpy(segment.place.device_id, fsck->super.device_id, sizeof(segment.place.device_id));
    enum life life = read_header(&segment);
    if (life == LIFE_LOST)
        fb_fsck_found(fsck, &fsck->lost_segments, "segment %u: no header of it is whole", number);
    if (life == LIFE_FREE)
        fsck->segments_free++;
    if (life != LIFE_USED)
        return;
    fsck->segments_used++;
    segment.place.incarnation = segment.header.incarnation;
    read_trailer(&segment);
    if (segment.has_trailer)
        fsck->segments_sealed++;
    else
        fsck->segments_open++;
    walk(&segment);
    if (segment.has_trailer)
        compare_summary(&segment);
    free(segment.seen);
}
