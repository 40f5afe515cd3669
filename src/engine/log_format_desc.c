/*
 * Descriptor blocks: the records of a unit, with their keys and leaves. See docs/format.md, 6.2.
 */
#include <string.h>

#include "base/assert.h"
#include "base/bits.h"
#include "base/bug.h"
#include "engine/log_format.h"

#define DESC_MAGIC   ((uint32_t)'F' | (uint32_t)'B' << 8 | (uint32_t)'D' << 16 | (uint32_t)'E' << 24)
#define RECORD_ALIGN 8
#define HEAD_ZEROS   24 /* at the end of the head */
#define SEGMENT_AT   32 /* for a look at a block that may be torn */

/* Leaves of a part. */
static uint32_t leaves_of(uint32_t part_bytes)
{
    return (uint32_t)fb_div_up(part_bytes, FB_LEAF_BYTES);
}

uint32_t fb_log_format_record_bytes(const struct fb_log_record *record)
{
    uint32_t bytes = FB_LOG_RECORD_BYTES + 8 * record->leaf_count + (uint32_t)record->key_bytes;
    return (uint32_t)fb_align_up(bytes, RECORD_ALIGN);
}

/* The fixed part of a record. */
static void put_fixed(struct fb_writer *writer, const struct fb_log_record *record, uint32_t bytes,
                      uint32_t data_block, uint64_t horizon)
{
    bool is_tomb = record->kind == FB_LOG_TOMB;
    fb_writer_u16(writer, (uint16_t)bytes);
    fb_writer_u16(writer, record->key_bytes);
    fb_writer_u16(writer, 0);
    fb_writer_u8(writer, (uint8_t)record->leaf_count);
    fb_writer_u8(writer, record->kind);
    fb_writer_u8(writer, record->class_hint);
    fb_writer_u8(writer, record->pin_class);
    fb_writer_u16(writer, record->depth);
    fb_writer_u32(writer, is_tomb ? 0 : data_block);
    fb_writer_u32(writer, record->part);
    fb_writer_u32(writer, record->parts);
    fb_writer_u32(writer, is_tomb ? 0 : record->part_bytes);
    fb_writer_u32(writer, 0);
    fb_writer_u64(writer, is_tomb ? horizon : record->value_bytes);
    fb_writer_u64(writer, record->epoch);
    fb_writer_u64(writer, record->generation);
    fb_writer_u64(writer, record->origin);
    fb_writer_u64(writer, record->root);
    fb_log_format_digest_put(writer, record->digest);
    fb_log_format_digest_put(writer, record->group);
    fb_writer_bytes(writer, record->namespace_id, FB_NAMESPACE_ID_BYTES);
}

uint32_t fb_log_format_record_put(void *block, uint32_t used, const struct fb_log_record *record,
                                  uint32_t data_block, uint64_t horizon)
{
    FB_ASSERT(record->kind == FB_LOG_VALUE || record->kind == FB_LOG_TOMB);
    FB_ASSERT(record->kind == FB_LOG_TOMB ? record->leaf_count == 0
                                          : record->leaf_count == leaves_of(record->part_bytes));
    FB_ASSERT(record->leaf_count <= FB_LOG_LEAVES_MAX && record->key_bytes <= FB_KEY_BYTES_MAX);
    FB_ASSERT(record->kind == FB_LOG_TOMB || (record->key_bytes > 0 && record->part_bytes > 0));
    uint32_t bytes = fb_log_format_record_bytes(record);
    if (used + bytes > FB_BLOCK_BYTES)
        return 0;
    struct fb_writer writer;
    fb_writer_init(&writer, (uint8_t *)block + used, bytes);
    put_fixed(&writer, record, bytes, data_block, horizon);
    FB_ASSERT(writer.at_bytes == FB_LOG_RECORD_BYTES);
    for (uint32_t i = 0; i < record->leaf_count; i++)
        fb_writer_u64(&writer, record->leaves[i]);
    fb_writer_bytes(&writer, record->key, record->key_bytes);
    fb_writer_align(&writer, RECORD_ALIGN);
    FB_ASSERT(fb_writer_ok(&writer) && writer.at_bytes == bytes);
    return used + bytes;
}

void fb_log_format_desc_put(void *block, uint32_t used, const struct fb_log_place *place,
                            const struct fb_log_desc_head *head)
{
    FB_ASSERT(used >= FB_LOG_DESC_HEAD_BYTES && head->block >= FB_LOG_HEADER_BLOCKS);
    struct fb_writer writer;
    fb_writer_init(&writer, block, FB_LOG_DESC_HEAD_BYTES);
    (void)fb_writer_room(&writer, FB_LOG_PREFIX_BYTES);
    fb_writer_u32(&writer, place->segment);
    fb_writer_u32(&writer, head->block);
    fb_writer_u64(&writer, place->incarnation);
    fb_writer_u32(&writer, head->batch);
    fb_writer_u32(&writer, head->flushed_up_to);
    fb_writer_u32(&writer, head->ordinal);
    fb_writer_u16(&writer, head->records);
    fb_writer_u16(&writer, 0);
    fb_writer_u32(&writer, head->data_blocks);
    fb_writer_u32(&writer, head->reach);
    fb_writer_zeros(&writer, HEAD_ZEROS);
    FB_ASSERT(fb_writer_ok(&writer) && writer.at_bytes == FB_LOG_DESC_HEAD_BYTES);
    fb_log_format_seal(block, DESC_MAGIC, place->device_id, used);
}

enum fb_log_block fb_log_format_desc_get(const void *block, const struct fb_log_place *place,
                                         uint32_t at, struct fb_log_desc *desc)
{
    struct fb_reader *reader = &desc->reader;
    struct fb_log_desc_head *head = &desc->head;
    enum fb_log_block found = fb_log_format_check(block, DESC_MAGIC, place->device_id, reader);
    if (found != FB_LOG_BLOCK_GOOD)
        return found;
    uint32_t segment = fb_reader_u32(reader);
    head->block = fb_reader_u32(reader);
    uint64_t incarnation = fb_reader_u64(reader);
    head->batch = fb_reader_u32(reader);
    head->flushed_up_to = fb_reader_u32(reader);
    head->ordinal = fb_reader_u32(reader);
    head->records = fb_reader_u16(reader);
    fb_log_format_zeros(reader, sizeof(uint16_t));
    head->data_blocks = fb_reader_u32(reader);
    head->reach = fb_reader_u32(reader);
    fb_log_format_zeros(reader, HEAD_ZEROS);
    if (segment != place->segment || head->block != at)
        return FB_LOG_BLOCK_FOREIGN;
    bool is_any_life = place->incarnation == 0 || FB_BUG(FB_BUG_TRUST_STALE_INCARNATION);
    if (incarnation != place->incarnation && !is_any_life)
        return FB_LOG_BLOCK_FOREIGN;
    uint32_t end_max = place->segment_blocks - FB_LOG_TRAILER_BLOCKS;
    bool fits = at >= FB_LOG_HEADER_BLOCKS && at < end_max && head->data_blocks < end_max - at &&
                head->flushed_up_to <= at;
    if (!fb_reader_ok(reader) || !fits)
        return FB_LOG_BLOCK_DAMAGED;
    desc->incarnation = incarnation;
    desc->next_ordinal = head->ordinal;
    desc->left = head->records;
    desc->next_data_block = at + 1;
    desc->end_block = at + 1 + head->data_blocks;
    return FB_LOG_BLOCK_GOOD;
}

/* Reads the fixed part of a record; returns the bytes of its TLV area. */
static uint32_t get_fixed(struct fb_reader *reader, struct fb_log_record *record,
                          struct fb_log_found *found)
{
    record->key_bytes = fb_reader_u16(reader);
    uint32_t tlv_bytes = fb_reader_u16(reader);
    record->leaf_count = fb_reader_u8(reader);
    record->kind = fb_reader_u8(reader);
    record->class_hint = fb_reader_u8(reader);
    record->pin_class = fb_reader_u8(reader);
    record->depth = fb_reader_u16(reader);
    found->data_block = fb_reader_u32(reader);
    record->part = fb_reader_u32(reader);
    record->parts = fb_reader_u32(reader);
    record->part_bytes = fb_reader_u32(reader);
    fb_log_format_zeros(reader, sizeof(uint32_t));
    record->value_bytes = fb_reader_u64(reader);
    record->epoch = fb_reader_u64(reader);
    record->generation = fb_reader_u64(reader);
    record->origin = fb_reader_u64(reader);
    record->root = fb_reader_u64(reader);
    record->digest = fb_log_format_digest_get(reader);
    record->group = fb_log_format_digest_get(reader);
    fb_reader_copy(reader, record->namespace_id, FB_NAMESPACE_ID_BYTES);
    return tlv_bytes;
}

/* False if the TLV area is malformed or has a field that must be understood. */
static bool is_tlv_understood(struct fb_reader *reader, uint32_t tlv_bytes)
{
    struct fb_reader area = fb_reader_sub(reader, tlv_bytes);
    while (fb_reader_left(&area) > 0) {
        uint16_t type = fb_reader_u16(&area);
        uint16_t bytes = fb_reader_u16(&area);
        fb_reader_skip(&area, bytes);
        if (!fb_reader_ok(&area) || type >= FB_LOG_TLV_UNDERSTAND)
            return false;
    }
    return fb_reader_ok(&area);
}

/* True if the fields agree with each other, and the data lie behind those of the record before. */
static bool is_record_sound(const struct fb_log_desc *desc, const struct fb_log_record *record,
                            uint32_t data_block)
{
    if (record->key_bytes > FB_KEY_BYTES_MAX || record->class_hint >= FB_LOG_CLASSES)
        return false;
    if (record->kind == FB_LOG_TOMB)
        return record->leaf_count == 0 && record->part_bytes == 0 && data_block == 0;
    if (record->kind != FB_LOG_VALUE || record->key_bytes == 0)
        return false;
    if (record->part_bytes == 0 || record->part_bytes > FB_CHUNK_BYTES_MAX)
        return false;
    uint32_t blocks = (uint32_t)fb_div_up(record->part_bytes, FB_BLOCK_BYTES);
    return record->part < record->parts && record->part_bytes <= record->value_bytes &&
           (record->parts > 1 || record->part_bytes == record->value_bytes) &&
           record->leaf_count == leaves_of(record->part_bytes) &&
           data_block >= desc->next_data_block && data_block < desc->end_block &&
           blocks <= desc->end_block - data_block;
}

int fb_log_format_desc_next(struct fb_log_desc *desc, struct fb_log_record *record,
                            struct fb_log_found *found)
{
    if (desc->left == 0)
        return 0;
    desc->left--;
    struct fb_reader *reader = &desc->reader;
    uint16_t bytes = fb_reader_u16(reader);
    if (!fb_reader_ok(reader) || bytes < FB_LOG_RECORD_BYTES || bytes % RECORD_ALIGN != 0 ||
        bytes - sizeof(uint16_t) > fb_reader_left(reader)) {
        desc->left = 0;
        return -1;
    }
    struct fb_reader body = fb_reader_sub(reader, bytes - sizeof(uint16_t));
    *record = (struct fb_log_record){0};
    *found = (struct fb_log_found){.ordinal = desc->next_ordinal++, .desc_block = desc->head.block};
    uint32_t tlv_bytes = get_fixed(&body, record, found);
    bool is_sound = fb_reader_ok(&body) && record->leaf_count <= FB_LOG_LEAVES_MAX;
    for (uint32_t i = 0; is_sound && i < record->leaf_count; i++)
        record->leaves[i] = fb_reader_u64(&body);
    record->key = is_sound ? fb_reader_bytes(&body, record->key_bytes) : NULL;
    bool is_understood = is_sound && is_tlv_understood(&body, tlv_bytes);
    is_sound = is_sound && fb_reader_ok(&body) && is_record_sound(desc, record, found->data_block);
    if (is_sound && record->kind == FB_LOG_VALUE)
        desc->next_data_block =
            found->data_block + (uint32_t)fb_div_up(record->part_bytes, FB_BLOCK_BYTES);
    if (record->kind == FB_LOG_TOMB) {
        found->horizon = record->value_bytes;
        record->value_bytes = 0;
    }
    return is_sound && is_understood ? 1 : -1;
}

bool fb_log_format_looks_like_desc(const void *block, const struct fb_log_place *place)
{
    struct fb_reader reader;
    fb_reader_init(&reader, block, FB_BLOCK_BYTES);
    if (fb_reader_u32(&reader) != DESC_MAGIC)
        return false;
    fb_reader_skip(&reader, FB_LOG_PREFIX_BYTES - FB_LOG_DEVICE_ID_BYTES - sizeof(uint32_t));
    const uint8_t *id = fb_reader_bytes(&reader, FB_LOG_DEVICE_ID_BYTES);
    if (memcmp(id, place->device_id, FB_LOG_DEVICE_ID_BYTES) != 0)
        return false;
    FB_ASSERT(reader.at_bytes == SEGMENT_AT);
    uint32_t segment = fb_reader_u32(&reader);
    fb_reader_skip(&reader, sizeof(uint32_t));
    return segment == place->segment && fb_reader_u64(&reader) == place->incarnation;
}
