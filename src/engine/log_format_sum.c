/*
 * Summaries: the records of a segment without keys and leaves, so that a start reads little. Each
 * block stands alone, with the identities and groups that its records use. See docs/format.md, 6.3.
 */
#include <string.h>

#include "base/assert.h"
#include "base/bits.h"
#include "base/bug.h"
#include "engine/log_format.h"

#define SUM_MAGIC  ((uint32_t)'F' | (uint32_t)'B' << 8 | (uint32_t)'S' << 16 | (uint32_t)'U' << 24)
#define HEAD_ZEROS 10 /* at the end of the head */
#define ITEM_ZEROS 7  /* behind the type of identities and groups */
#define IDENT_BODY (FB_LOG_SUM_IDENT_BYTES - 8)
#define GROUP_BODY (FB_LOG_SUM_GROUP_BYTES - 8)

enum entry_type {
    ENTRY_IDENT = 1,
    ENTRY_GROUP,
    ENTRY_VALUE,
    ENTRY_PART,
    ENTRY_TOMB
};

_Static_assert(IDENT_BODY == FB_NAMESPACE_ID_BYTES + 2 * sizeof(uint64_t), "an identity");
_Static_assert(GROUP_BODY == sizeof(struct fb_digest), "a group");

/* ---- writing ---- */

static uint8_t *current_block(struct fb_log_sum_writer *writer)
{
    FB_ASSERT(writer->used_blocks > 0);
    return writer->blocks + (size_t)(writer->used_blocks - 1) * FB_BLOCK_BYTES;
}

void fb_log_format_sum_begin(struct fb_log_sum_writer *writer, const struct fb_log_place *place,
                             void *blocks, uint32_t capacity_blocks)
{
    *writer = (struct fb_log_sum_writer){.place = *place,
                                         .blocks = blocks,
                                         .capacity_blocks = capacity_blocks};
}

/* Writes the head of the last begun block and seals it. */
static void seal_block(struct fb_log_sum_writer *writer)
{
    struct fb_writer head;
    fb_writer_init(&head, current_block(writer), FB_LOG_SUM_HEAD_BYTES);
    (void)fb_writer_room(&head, FB_LOG_PREFIX_BYTES);
    fb_writer_u32(&head, writer->place.segment);
    fb_writer_u32(&head, writer->used_blocks - 1);
    fb_writer_u64(&head, writer->place.incarnation);
    fb_writer_u32(&head, writer->first_ordinal);
    fb_writer_u16(&head, (uint16_t)writer->records);
    fb_writer_zeros(&head, HEAD_ZEROS);
    FB_ASSERT(fb_writer_ok(&head) && head.at_bytes == FB_LOG_SUM_HEAD_BYTES);
    fb_log_format_seal(current_block(writer), SUM_MAGIC, writer->place.device_id, writer->at_bytes);
}

static void begin_block(struct fb_log_sum_writer *writer, uint32_t ordinal)
{
    if (writer->used_blocks > 0)
        seal_block(writer);
    writer->used_blocks++;
    writer->at_bytes = FB_LOG_SUM_HEAD_BYTES;
    writer->first_ordinal = ordinal;
    writer->records = 0;
    writer->ident_count = 0;
    writer->group_count = 0;
}

uint32_t fb_log_format_sum_finish(struct fb_log_sum_writer *writer)
{
    if (writer->used_blocks > 0)
        seal_block(writer);
    return writer->used_blocks;
}

/* The 32 bytes of a record's identity. */
static void ident_bytes(const struct fb_log_record *record, uint8_t *out)
{
    struct fb_writer writer;
    fb_writer_init(&writer, out, IDENT_BODY);
    fb_writer_bytes(&writer, record->namespace_id, FB_NAMESPACE_ID_BYTES);
    fb_writer_u64(&writer, record->epoch);
    fb_writer_u64(&writer, record->origin);
    FB_ASSERT(fb_writer_ok(&writer));
}

/* The number of a body among those noted in the block, the newest first; or `count`. */
static uint32_t find_noted(struct fb_log_sum_writer *writer, const uint16_t *at, uint32_t count,
                           const uint8_t *body, size_t bytes)
{
    const uint8_t *block = current_block(writer);
    for (uint32_t i = count; i > 0; i--) {
        if (memcmp(block + at[i - 1] + 8, body, bytes) == 0)
            return i - 1;
    }
    return count;
}

/* Notes an identity or group in the block. */
static void note(struct fb_log_sum_writer *writer, enum entry_type type, uint16_t *at,
                 const uint8_t *body, size_t bytes)
{
    struct fb_writer out;
    fb_writer_init(&out, current_block(writer) + writer->at_bytes, 8 + bytes);
    fb_writer_u8(&out, (uint8_t)type);
    fb_writer_zeros(&out, ITEM_ZEROS);
    fb_writer_bytes(&out, body, bytes);
    FB_ASSERT(fb_writer_ok(&out));
    *at = (uint16_t)writer->at_bytes;
    writer->at_bytes += (uint32_t)out.at_bytes;
}

static uint32_t entry_bytes(const struct fb_log_record *record)
{
    if (record->kind == FB_LOG_TOMB)
        return FB_LOG_SUM_TOMB_BYTES;
    return record->parts == 1 ? FB_LOG_SUM_VALUE_BYTES : FB_LOG_SUM_PART_BYTES;
}

/* Appends the entry of a record whose identity and group are noted. */
static void put_entry(struct fb_log_sum_writer *writer, const struct fb_log_record *record,
                      const struct fb_log_found *found, uint32_t ident, uint32_t group)
{
    struct fb_writer out;
    fb_writer_init(&out, current_block(writer) + writer->at_bytes, entry_bytes(record));
    if (record->kind == FB_LOG_TOMB) {
        fb_writer_u8(&out, ENTRY_TOMB);
        fb_writer_u8(&out, (uint8_t)ident);
        fb_writer_u8(&out, record->class_hint);
        fb_writer_u8(&out, record->pin_class); /* of a tombstone: the reason */
        fb_writer_u16(&out, (uint16_t)found->desc_block);
        fb_writer_u16(&out, 0);
        fb_log_format_digest_put(&out, record->digest);
        fb_writer_u64(&out, record->generation);
        fb_writer_u64(&out, found->horizon);
    } else {
        fb_writer_u8(&out, record->parts == 1 ? ENTRY_VALUE : ENTRY_PART);
        fb_writer_u8(&out, (uint8_t)ident);
        fb_writer_u8(&out, (uint8_t)group);
        fb_writer_u8(&out, record->pin_class);
        fb_writer_u16(&out, (uint16_t)found->data_block);
        fb_writer_u16(&out, (uint16_t)found->desc_block);
        fb_writer_u32(&out, record->part_bytes);
        fb_writer_u16(&out, record->depth);
        fb_writer_u8(&out, record->class_hint);
        fb_writer_u8(&out, 0);
        fb_log_format_digest_put(&out, record->digest);
        fb_writer_u64(&out, record->generation);
        fb_writer_u64(&out, record->root);
    }
    if (record->kind == FB_LOG_VALUE && record->parts != 1) {
        fb_writer_u32(&out, record->part);
        fb_writer_u32(&out, record->parts);
        fb_writer_u64(&out, record->value_bytes);
    }
    FB_ASSERT(fb_writer_ok(&out) && out.at_bytes == entry_bytes(record));
    writer->at_bytes += (uint32_t)out.at_bytes;
    writer->records++;
}

bool fb_log_format_sum_add(struct fb_log_sum_writer *writer, const struct fb_log_record *record,
                           const struct fb_log_found *found)
{
    uint8_t ident[IDENT_BODY];
    uint8_t group[GROUP_BODY];
    struct fb_writer out;
    ident_bytes(record, ident);
    fb_writer_init(&out, group, GROUP_BODY);
    fb_log_format_digest_put(&out, record->group);
    bool has_group =
        record->kind == FB_LOG_VALUE && (record->group.hi != 0 || record->group.lo != 0);
    bool is_new_ident = true, is_new_group = has_group;
    uint32_t ident_at = 0, group_at = FB_LOG_SUM_GROUP_NONE;
    if (writer->used_blocks > 0) {
        ident_at = find_noted(writer, writer->ident_at, writer->ident_count, ident, sizeof(ident));
        is_new_ident = ident_at == writer->ident_count;
        if (has_group) {
            group_at =
                find_noted(writer, writer->group_at, writer->group_count, group, sizeof(group));
            is_new_group = group_at == writer->group_count;
        }
    }
    uint32_t need = entry_bytes(record) + (is_new_ident ? FB_LOG_SUM_IDENT_BYTES : 0) +
                    (is_new_group ? FB_LOG_SUM_GROUP_BYTES : 0);
    if (writer->used_blocks == 0 || writer->at_bytes + need > FB_BLOCK_BYTES) {
        if (writer->used_blocks == writer->capacity_blocks)
            return false;
        begin_block(writer, found->ordinal);
        ident_at = 0;
        is_new_ident = true;
        is_new_group = has_group;
        group_at = has_group ? 0 : FB_LOG_SUM_GROUP_NONE;
    }
    if (is_new_ident)
        note(writer, ENTRY_IDENT, &writer->ident_at[writer->ident_count++], ident, sizeof(ident));
    if (is_new_group)
        note(writer, ENTRY_GROUP, &writer->group_at[writer->group_count++], group, sizeof(group));
    put_entry(writer, record, found, ident_at, group_at);
    return true;
}

/* ---- reading ---- */

enum fb_log_block fb_log_format_sum_get(const void *block, const struct fb_log_place *place,
                                        uint32_t index, struct fb_log_sum *sum)
{
    struct fb_reader *reader = &sum->reader;
    enum fb_log_block found = fb_log_format_check(block, SUM_MAGIC, place->device_id, reader);
    if (found != FB_LOG_BLOCK_GOOD)
        return found;
    uint32_t segment = fb_reader_u32(reader);
    uint32_t found_index = fb_reader_u32(reader);
    uint64_t incarnation = fb_reader_u64(reader);
    sum->ordinal = fb_reader_u32(reader);
    sum->left = fb_reader_u16(reader);
    fb_log_format_zeros(reader, HEAD_ZEROS);
    sum->segment_blocks = place->segment_blocks;
    sum->ident_count = 0;
    sum->group_count = 0;
    if (segment != place->segment || incarnation != place->incarnation || found_index != index)
        return FB_LOG_BLOCK_FOREIGN;
    return fb_reader_ok(reader) ? FB_LOG_BLOCK_GOOD : FB_LOG_BLOCK_DAMAGED;
}

/* Takes identities and groups up to the next record, whose type is returned; 0 if malformed. */
static uint8_t skip_to_record(struct fb_log_sum *sum)
{
    for (;;) {
        uint8_t type = fb_reader_u8(&sum->reader);
        if (type == ENTRY_IDENT && sum->ident_count < FB_LOG_SUM_IDENTS_MAX) {
            fb_log_format_zeros(&sum->reader, ITEM_ZEROS);
            sum->idents[sum->ident_count++] = fb_reader_bytes(&sum->reader, IDENT_BODY);
        } else if (type == ENTRY_GROUP && sum->group_count < FB_LOG_SUM_GROUPS_MAX) {
            fb_log_format_zeros(&sum->reader, ITEM_ZEROS);
            sum->groups[sum->group_count++] = fb_reader_bytes(&sum->reader, GROUP_BODY);
        } else {
            bool is_record = type == ENTRY_VALUE || type == ENTRY_PART || type == ENTRY_TOMB;
            return is_record && fb_reader_ok(&sum->reader) ? type : 0;
        }
        if (!fb_reader_ok(&sum->reader))
            return 0;
    }
}

static void get_tomb(struct fb_reader *reader, struct fb_log_record *record,
                     struct fb_log_found *found)
{
    record->kind = FB_LOG_TOMB;
    record->class_hint = fb_reader_u8(reader);
    record->pin_class = fb_reader_u8(reader);
    found->desc_block = fb_reader_u16(reader);
    fb_log_format_zeros(reader, sizeof(uint16_t));
    record->digest = fb_log_format_digest_get(reader);
    record->generation = fb_reader_u64(reader);
    found->horizon = fb_reader_u64(reader);
    record->parts = 1;
}

/* Reads a value or part; returns the number of its group. */
static uint8_t get_value(struct fb_reader *reader, uint8_t type, struct fb_log_record *record,
                         struct fb_log_found *found)
{
    record->kind = FB_LOG_VALUE;
    uint8_t group = fb_reader_u8(reader);
    record->pin_class = fb_reader_u8(reader);
    found->data_block = fb_reader_u16(reader);
    found->desc_block = fb_reader_u16(reader);
    record->part_bytes = fb_reader_u32(reader);
    record->depth = fb_reader_u16(reader);
    record->class_hint = fb_reader_u8(reader);
    fb_log_format_zeros(reader, 1);
    record->digest = fb_log_format_digest_get(reader);
    record->generation = fb_reader_u64(reader);
    record->root = fb_reader_u64(reader);
    record->parts = 1;
    record->value_bytes = record->part_bytes;
    if (type == ENTRY_PART) {
        record->part = fb_reader_u32(reader);
        record->parts = fb_reader_u32(reader);
        record->value_bytes = fb_reader_u64(reader);
    }
    return group;
}

/* Fills in what the identity says. */
static void apply_ident(const uint8_t *ident, struct fb_log_record *record)
{
    struct fb_reader reader;
    fb_reader_init(&reader, ident, IDENT_BODY);
    fb_reader_copy(&reader, record->namespace_id, FB_NAMESPACE_ID_BYTES);
    record->epoch = fb_reader_u64(&reader);
    record->origin = fb_reader_u64(&reader);
    FB_ASSERT(fb_reader_is_done(&reader));
}

/* True if the record's blocks lie in the segment and its lengths agree. */
static bool is_sound(const struct fb_log_sum *sum, const struct fb_log_record *record,
                     const struct fb_log_found *found)
{
    uint32_t end = sum->segment_blocks - FB_LOG_TRAILER_BLOCKS;
    if (found->desc_block < FB_LOG_HEADER_BLOCKS || found->desc_block >= end ||
        record->class_hint >= FB_LOG_CLASSES)
        return false;
    if (record->kind == FB_LOG_TOMB)
        return true;
    if (record->part_bytes == 0 || record->part_bytes > FB_CHUNK_BYTES_MAX ||
        record->part >= record->parts || record->part_bytes > record->value_bytes ||
        (record->parts == 1 && record->part_bytes != record->value_bytes))
        return false;
    uint32_t blocks = (uint32_t)fb_div_up(record->part_bytes, FB_BLOCK_BYTES);
    return found->data_block > found->desc_block && found->data_block < end &&
           blocks <= end - found->data_block;
}

int fb_log_format_sum_next(struct fb_log_sum *sum, struct fb_log_record *record,
                           struct fb_log_found *found)
{
    if (sum->left == 0)
        return fb_reader_is_done(&sum->reader) ? 0 : -1;
    uint8_t type = skip_to_record(sum);
    uint8_t ident = fb_reader_u8(&sum->reader);
    if (type == 0 || ident >= sum->ident_count)
        return -1;
    *record = (struct fb_log_record){0};
    *found = (struct fb_log_found){.ordinal = sum->ordinal};
    uint8_t group = FB_LOG_SUM_GROUP_NONE;
    if (type == ENTRY_TOMB)
        get_tomb(&sum->reader, record, found);
    else
        group = get_value(&sum->reader, type, record, found);
    if (group != FB_LOG_SUM_GROUP_NONE && group >= sum->group_count &&
        !FB_BUG(FB_BUG_PARSER_OVERREAD))
        return -1;
    if (!fb_reader_ok(&sum->reader) || !is_sound(sum, record, found))
        return -1;
    apply_ident(sum->idents[ident], record);
    if (group != FB_LOG_SUM_GROUP_NONE) {
        struct fb_reader reader;
        fb_reader_init(&reader, sum->groups[group], GROUP_BODY);
        record->group = fb_log_format_digest_get(&reader);
    }
    sum->left--;
    sum->ordinal++;
    return 1;
}
