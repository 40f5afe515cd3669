/*
 * log_format_test.c - the bytes of docs/format.md.
 *
 * Golden: a block of each structure with fixed fields has fixed bytes at the offsets that the page
 * gives, so that a change of the format cannot pass unnoticed. Round trips: what is put comes back.
 * Damage: after any change of any byte, a block is refused (the checksum covers all of it), and
 * with the checksum made good again, decoding stays in bounds and gives only records that are sound
 * (run under the sanitizers). What it cannot show: that a reader on another host agrees.
 */
#include "test/lib/cm.h"

#include <string.h>

#include "base/bits.h"
#include "base/prng.h"
#include "base/reason.h"
#include "base/result.h"
#include "engine/log_format.h"

#define SEGMENT_BLOCKS 1024
#define DAMAGES        20000

static const uint8_t DEVICE_ID[FB_LOG_DEVICE_ID_BYTES] = "0123456789abcdef";
static _Alignas(8) uint8_t block[FB_BLOCK_BYTES];

static const struct fb_log_place place = {.device_id = {'0', '1', '2', '3', '4', '5', '6', '7', '8',
                                                        '9', 'a', 'b', 'c', 'd', 'e', 'f'},
                                          .segment = 7,
                                          .segment_blocks = SEGMENT_BLOCKS,
                                          .incarnation = 41};

static uint64_t at(uint32_t offset, uint32_t bytes)
{
    uint64_t value = 0;
    for (uint32_t i = bytes; i > 0; i--)
        value = value << 8 | block[offset + i - 1];
    return value;
}

/* The checksum as the page defines it, computed apart from the code under test. */
static void check_prefix(const char *magic, uint32_t used)
{
    assert_memory_equal(block, magic, 4);
    assert_int_equal(at(4, 2), 1);
    assert_int_equal(at(6, 2), used);
    assert_int_equal(at(8, 8), fb_hash64(block + 16, 4080, at(0, 8)));
    assert_memory_equal(block + 16, DEVICE_ID, 16);
    for (uint32_t i = used; i < FB_BLOCK_BYTES; i++)
        assert_int_equal(block[i], 0);
}

static struct fb_log_record value_record(uint32_t part_bytes, const char *key)
{
    struct fb_log_record record = {.kind = FB_LOG_VALUE,
                                   .class_hint = 1,
                                   .pin_class = 3,
                                   .key_bytes = (uint16_t)strlen(key),
                                   .depth = 17,
                                   .part = 0,
                                   .parts = 1,
                                   .part_bytes = part_bytes,
                                   .value_bytes = part_bytes,
                                   .epoch = 5,
                                   .digest = {.hi = 0x1111, .lo = 0x2222},
                                   .group = {.hi = 0x3333, .lo = 0x4444},
                                   .origin = 99,
                                   .generation = (UINT64_C(2) << 40) | 8,
                                   .root = 0x5555,
                                   .key = (const uint8_t *)key};
    memset(record.namespace_id, 0xab, sizeof(record.namespace_id));
    record.leaf_count = (uint32_t)fb_div_up(part_bytes, FB_LEAF_BYTES);
    for (uint32_t i = 0; i < record.leaf_count; i++)
        record.leaves[i] = 1000 + i;
    return record;
}

static struct fb_log_record tomb_record(const char *key)
{
    struct fb_log_record record = value_record(1, key);
    record.kind = FB_LOG_TOMB;
    record.part_bytes = 0;
    record.leaf_count = 0;
    record.value_bytes = 0;
    record.pin_class = FB_REASON_REPLACED; /* why it was written */
    record.depth = 0;
    record.root = 0;
    record.group = (struct fb_digest){0};
    return record;
}

static void assert_same(const struct fb_log_record *a, const struct fb_log_record *b, bool whole)
{
    assert_int_equal(a->kind, b->kind);
    assert_int_equal(a->class_hint, b->class_hint);
    assert_int_equal(a->part, b->part);
    assert_int_equal(a->parts, b->parts);
    assert_int_equal(a->part_bytes, b->part_bytes);
    assert_int_equal(a->value_bytes, b->value_bytes);
    assert_int_equal(a->epoch, b->epoch);
    assert_int_equal(a->origin, b->origin);
    assert_int_equal(a->generation, b->generation);
    assert_int_equal(a->root, b->root);
    assert_int_equal(a->depth, b->depth);
    assert_int_equal(a->pin_class, b->pin_class);
    assert_true(fb_digest_is_equal(a->digest, b->digest));
    assert_true(fb_digest_is_equal(a->group, b->group));
    assert_memory_equal(a->namespace_id, b->namespace_id, FB_NAMESPACE_ID_BYTES);
    if (!whole)
        return;
    assert_int_equal(a->key_bytes, b->key_bytes);
    assert_memory_equal(a->key, b->key, a->key_bytes);
    assert_int_equal(a->leaf_count, b->leaf_count);
    assert_memory_equal(a->leaves, b->leaves, a->leaf_count * sizeof(uint64_t));
}

/* ---- geometry ---- */

static void geometry_follows_the_page(void **state)
{
    (void)state;
    struct fb_log_geometry g;
    assert_int_equal(fb_log_geometry(FB_MIB(16) - 1, &g), FB_BAD_ARGUMENT);
    assert_int_equal(fb_log_geometry(FB_MIB(16), &g), 0);
    assert_int_equal(g.segment_bytes, FB_KIB(256));
    assert_int_equal(g.chunk_bytes, FB_KIB(64));
    assert_int_equal(g.names_off, 32 * 4096);
    assert_int_equal(fb_log_format_super_off(1), 16 * 4096);
    assert_int_equal(g.names_bytes, 2 * (4096 + 262144));
    assert_int_equal(g.history_bytes, 8 * 4096);
    assert_int_equal(g.segments, 61);
    for (uint64_t capacity = FB_MIB(16); capacity <= FB_TIB(16); capacity += capacity / 3 + 12345) {
        assert_int_equal(fb_log_geometry(capacity, &g), 0);
        assert_true(fb_is_power_of_two(g.segment_bytes));
        assert_true(g.segment_bytes <= FB_SEGMENT_BYTES_MAX);
        assert_true(g.segments_off + g.segments * g.segment_bytes <= capacity);
        assert_true(g.segments >= 60 && g.chunk_bytes * 4 <= g.segment_bytes);
        assert_int_equal(g.segments_off % FB_BLOCK_BYTES, 0);
    }
    assert_int_equal(fb_log_geometry(FB_GIB(100), &g), 0);
    assert_int_equal(g.segment_bytes, FB_MIB(64));
    assert_int_equal(g.chunk_bytes, FB_MIB(4));
    assert_int_equal(g.history_bytes, FB_MIB(8));
    assert_int_equal(fb_log_history_record_blocks(g.segment_bytes), 99);
}

/* ---- golden bytes ---- */

static struct fb_log_super a_superblock(void)
{
    struct fb_log_super super = {.sequence = 3,
                                 .copy = 1,
                                 .boot = 12,
                                 .node_id = 77,
                                 .capacity_bytes = FB_GIB(1),
                                 .shard = 0,
                                 .shards = 1,
                                 .map_version = 1,
                                 .incarnation_frontier = 4097,
                                 .segment_frontier = 16,
                                 .device = 2};
    memcpy(super.device_id, DEVICE_ID, sizeof(DEVICE_ID));
    assert_int_equal(fb_log_geometry(super.capacity_bytes, &super.geometry), 0);
    return super;
}

static void superblock_has_its_bytes(void **state)
{
    (void)state;
    struct fb_log_super super = a_superblock(), back;
    fb_log_format_super_put(block, &super);
    check_prefix("FBSB", 160);
    assert_int_equal(at(32, 8), 3);
    assert_int_equal(at(40, 4), 1);
    assert_int_equal(at(44, 4), 12);
    assert_int_equal(at(48, 8), 77);
    assert_int_equal(at(56, 8), FB_GIB(1));
    assert_int_equal(at(64, 8), FB_MIB(16));
    assert_int_equal(at(72, 4), FB_MIB(4));
    assert_int_equal(at(80, 8), 32 * 4096);
    assert_int_equal(at(112, 8), super.geometry.segments_off);
    assert_int_equal(at(122, 2), 1);
    assert_int_equal(at(144, 8), 4097);
    assert_int_equal(at(152, 4), 16);
    assert_int_equal(at(156, 2), 2);
    assert_int_equal(fb_log_format_super_get(block, 1, &back), FB_LOG_BLOCK_GOOD);
    assert_int_equal(back.sequence, super.sequence);
    assert_memory_equal(&back.geometry, &super.geometry, sizeof(back.geometry));
    assert_int_equal(fb_log_format_super_get(block, 0, &back), FB_LOG_BLOCK_FOREIGN);
    block[4] = 9;
    uint64_t sum = htole64(fb_hash64(block + 16, 4080, at(0, 8)));
    memcpy(block + 8, &sum, 8);
    assert_int_equal(fb_log_format_super_get(block, 1, &back), FB_LOG_BLOCK_VERSION);
    assert_int_equal(back.version, 9);
    memset(block, 0, sizeof(block));
    assert_int_equal(fb_log_format_super_get(block, 1, &back), FB_LOG_BLOCK_ZERO);
}

static void names_and_history_have_their_bytes(void **state)
{
    (void)state;
    struct fb_log_names_head names = {.sequence = 6, .slot = 1, .bytes = 1000, .checksum = 0xfeed};
    struct fb_log_names_head names_back;
    fb_log_format_names_put(block, DEVICE_ID, &names);
    check_prefix("FBNM", 56);
    assert_int_equal(at(32, 8), 6);
    assert_int_equal(at(40, 4), 1);
    assert_int_equal(at(44, 4), 1000);
    assert_int_equal(at(48, 8), 0xfeed);
    assert_int_equal(fb_log_format_names_get(block, DEVICE_ID, 1, &names_back), FB_LOG_BLOCK_GOOD);
    assert_int_equal(fb_log_format_names_get(block, DEVICE_ID, 0, &names_back),
                     FB_LOG_BLOCK_FOREIGN);

    struct fb_log_history_head head = {.sequence = 88,
                                       .ring_block = 4,
                                       .index = 0,
                                       .count = 1,
                                       .segment = 9,
                                       .incarnation = 33,
                                       .when_ms = 1234567,
                                       .issued = 7654321,
                                       .reason = 10,
                                       .entries = FB_LOG_HISTORY_ENTRIES_MAX};
    struct fb_log_history_head back;
    assert_int_equal(FB_LOG_HISTORY_ENTRIES_MAX, 166);
    for (uint32_t i = 0; i < head.entries; i++) {
        struct fb_log_history_entry entry = {{.hi = i, .lo = i + 1}, i * 7};
        fb_log_format_history_set(block, i, &entry);
    }
    fb_log_format_history_put(block, DEVICE_ID, &head);
    check_prefix("FBHI", 96 + 166 * 24);
    assert_int_equal(at(32, 8), 88);
    assert_int_equal(at(40, 4), 4);
    assert_int_equal(at(48, 4), 1);
    assert_int_equal(at(52, 4), 9);
    assert_int_equal(at(56, 8), 33);
    assert_int_equal(at(64, 8), 1234567);
    assert_int_equal(at(72, 2), 10);
    assert_int_equal(at(74, 2), 166);
    assert_int_equal(at(80, 8), 7654321);
    assert_int_equal(at(96 + 24 * 5, 8), 6);
    assert_int_equal(fb_log_format_history_get(block, DEVICE_ID, 4, &back), FB_LOG_BLOCK_GOOD);
    assert_int_equal(back.issued, 7654321);
    struct fb_log_history_entry entry = fb_log_format_history_entry(block, 165);
    assert_int_equal(entry.digest.hi, 165);
    assert_int_equal(entry.generation, 165 * 7);
    assert_int_equal(fb_log_format_history_get(block, DEVICE_ID, 5, &back), FB_LOG_BLOCK_FOREIGN);
}

static void ends_of_a_segment_have_their_bytes(void **state)
{
    (void)state;
    struct fb_log_header header = {.segment = 7,
                                   .block = 1,
                                   .incarnation = 41,
                                   .state = FB_LOG_HEADER_OPEN,
                                   .class_hint = 1,
                                   .shards = 1,
                                   .map_version = 1,
                                   .window_blocks = 500,
                                   .boot = 3};
    struct fb_log_header header_back;
    fb_log_format_header_put(block, DEVICE_ID, &header);
    check_prefix("FBSG", 72);
    assert_int_equal(at(32, 4), 7);
    assert_int_equal(at(40, 8), 41);
    assert_int_equal(at(48, 2), 2);
    assert_int_equal(at(60, 4), 500);
    assert_int_equal(fb_log_format_header_get(block, DEVICE_ID, 7, 1, &header_back),
                     FB_LOG_BLOCK_GOOD);
    assert_int_equal(fb_log_format_header_get(block, DEVICE_ID, 8, 1, &header_back),
                     FB_LOG_BLOCK_FOREIGN);

    struct fb_log_trailer trailer = {.summary_first = 1020,
                                     .summary_blocks = 3,
                                     .records = 9,
                                     .end = 900,
                                     .durable = 900,
                                     .tombs = 2,
                                     .data_bytes = 123};
    struct fb_log_trailer back;
    fb_log_format_trailer_put(block, &place, &trailer);
    check_prefix("FBTR", 80);
    assert_int_equal(at(36, 4), 1020);
    assert_int_equal(at(48, 4), 3);
    assert_int_equal(at(56, 4), 900);
    assert_int_equal(at(64, 8), 123);
    assert_int_equal(at(72, 4), 900);
    assert_int_equal(fb_log_format_trailer_get(block, &place, &back), FB_LOG_BLOCK_GOOD);
    struct fb_log_place other = place;
    other.incarnation++;
    assert_int_equal(fb_log_format_trailer_get(block, &other, &back), FB_LOG_BLOCK_FOREIGN);
    trailer.summary_first = 899;
    fb_log_format_trailer_put(block, &place, &trailer);
    assert_int_equal(fb_log_format_trailer_get(block, &place, &back), FB_LOG_BLOCK_DAMAGED);
}

/* ---- descriptors ---- */

static void descriptor_has_its_bytes(void **state)
{
    (void)state;
    struct fb_log_record record = value_record(300 * 1024, "the key");
    uint32_t used = fb_log_format_record_put(block, FB_LOG_DESC_HEAD_BYTES, &record, 21, 0);
    assert_int_equal(used, 96 + 120 + 2 * 8 + 8);
    struct fb_log_desc_head head = {.block = 20,
                                    .batch = 4,
                                    .flushed_up_to = 13,
                                    .ordinal = 55,
                                    .data_blocks = 75,
                                    .reach = 900,
                                    .records = 1};
    fb_log_format_desc_put(block, used, &place, &head);
    check_prefix("FBDE", used);
    assert_int_equal(at(32, 4), 7);
    assert_int_equal(at(36, 4), 20);
    assert_int_equal(at(40, 8), 41);
    assert_int_equal(at(48, 4), 4);
    assert_int_equal(at(52, 4), 13);
    assert_int_equal(at(56, 4), 55);
    assert_int_equal(at(60, 2), 1);
    assert_int_equal(at(64, 4), 75);
    assert_int_equal(at(68, 4), 900);
    assert_int_equal(at(96, 2), 144);
    assert_int_equal(at(96 + 2, 2), 7);
    assert_int_equal(at(96 + 6, 1), 2);
    assert_int_equal(at(96 + 7, 1), FB_LOG_VALUE);
    assert_int_equal(at(96 + 12, 4), 21);
    assert_int_equal(at(96 + 24, 4), 300 * 1024);
    assert_int_equal(at(96 + 40, 8), 5);
    assert_int_equal(at(96 + 48, 8), record.generation);
    assert_int_equal(at(96 + 72, 8), 0x2222);
    assert_int_equal(at(96 + 80, 8), 0x1111);
    assert_int_equal(at(96 + 104, 1), 0xab);
    assert_int_equal(at(96 + 120, 8), 1000);
    assert_memory_equal(block + 96 + 136, "the key", 7);
}

/* Fills a descriptor with as many records as fit; returns how many. */
static uint32_t fill_descriptor(const struct fb_log_record *value, const struct fb_log_record *tomb,
                                uint32_t at_block, uint32_t *used_out)
{
    uint32_t used = FB_LOG_DESC_HEAD_BYTES, count = 0, data = at_block + 1;
    for (;; count++) {
        const struct fb_log_record *record = count % 3 == 2 ? tomb : value;
        uint32_t next = fb_log_format_record_put(block, used, record, data, 400 + count);
        if (next == 0)
            break;
        used = next;
        if (record == value)
            data += (uint32_t)fb_div_up(value->part_bytes, FB_BLOCK_BYTES);
    }
    struct fb_log_desc_head head = {.block = at_block,
                                    .ordinal = 10,
                                    .flushed_up_to = 2,
                                    .data_blocks = data - at_block - 1,
                                    .records = (uint16_t)count};
    fb_log_format_desc_put(block, used, &place, &head);
    *used_out = used;
    return count;
}

static void descriptor_comes_back(void **state)
{
    (void)state;
    struct fb_log_record value = value_record(5000, "a key of some length, with 32 b.");
    struct fb_log_record tomb = tomb_record("gone");
    uint32_t used, count = fill_descriptor(&value, &tomb, 30, &used);
    assert_true(count > 20);
    struct fb_log_desc desc;
    assert_int_equal(fb_log_format_desc_get(block, &place, 30, &desc), FB_LOG_BLOCK_GOOD);
    struct fb_log_record record;
    struct fb_log_found found;
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(fb_log_format_desc_next(&desc, &record, &found), 1);
        assert_same(&record, i % 3 == 2 ? &tomb : &value, true);
        assert_int_equal(found.ordinal, 10 + i);
        assert_int_equal(found.desc_block, 30);
        if (record.kind == FB_LOG_TOMB)
            assert_int_equal(found.horizon, 400 + i);
    }
    assert_int_equal(fb_log_format_desc_next(&desc, &record, &found), 0);
    struct fb_log_place other = place;
    other.incarnation = 40;
    assert_int_equal(fb_log_format_desc_get(block, &other, 30, &desc), FB_LOG_BLOCK_FOREIGN);
    assert_int_equal(fb_log_format_desc_get(block, &place, 31, &desc), FB_LOG_BLOCK_FOREIGN);
    assert_true(fb_log_format_looks_like_desc(block, &place));
    assert_false(fb_log_format_looks_like_desc(block, &other));
}

/* Makes the checksum good again after a change. */
static void reseal(void)
{
    uint64_t sum = htole64(fb_hash64(block + 16, 4080, at(0, 8)));
    memcpy(block + 8, &sum, 8);
}

static void tlv_is_skipped_or_refused(void **state)
{
    (void)state;
    struct fb_log_record value = value_record(5000, "0123456789abcdef");
    uint32_t used = fb_log_format_record_put(block, 96, &value, 31, 0);
    uint32_t bytes = used - 96;
    /* The last eight bytes of the key become a TLV of an unknown type. */
    block[96 + 2] = 8;
    block[96 + 4] = 8;
    const uint8_t tlv[8] = {0x01, 0x00, 4, 0, 1, 2, 3, 4};
    memcpy(block + 96 + bytes - 8, tlv, 8);
    struct fb_log_desc_head head = {.block = 30,
                                    .flushed_up_to = 2,
                                    .data_blocks = 2,
                                    .records = 1};
    fb_log_format_desc_put(block, used, &place, &head);
    struct fb_log_desc desc;
    struct fb_log_record record;
    struct fb_log_found found;
    assert_int_equal(fb_log_format_desc_get(block, &place, 30, &desc), FB_LOG_BLOCK_GOOD);
    assert_int_equal(fb_log_format_desc_next(&desc, &record, &found), 1);
    assert_int_equal(record.key_bytes, 8);
    block[96 + bytes - 7] = 0x80; /* must be understood */
    reseal();
    assert_int_equal(fb_log_format_desc_get(block, &place, 30, &desc), FB_LOG_BLOCK_GOOD);
    assert_int_equal(fb_log_format_desc_next(&desc, &record, &found), -1);
    assert_int_equal(fb_log_format_desc_next(&desc, &record, &found), 0);
    block[96 + bytes - 7] = 0x00;
    block[96 + bytes - 6] = 5; /* runs over the end of the area */
    reseal();
    assert_int_equal(fb_log_format_desc_get(block, &place, 30, &desc), FB_LOG_BLOCK_GOOD);
    assert_int_equal(fb_log_format_desc_next(&desc, &record, &found), -1);
}

/* ---- summaries ---- */

#define SUM_BLOCKS  8
#define SUM_RECORDS 300

static struct fb_log_record nth_record(uint32_t i)
{
    struct fb_log_record record = i % 5 == 4 ? tomb_record("t") : value_record(4096, "k");
    record.digest.lo = i;
    record.epoch = i / 40;
    if (record.kind == FB_LOG_VALUE) {
        record.group.lo = i % 12;
        record.group.hi = 0;
        if (i % 7 == 0) {
            record.part = 3;
            record.parts = 9;
            record.value_bytes = 100000;
        }
    }
    return record;
}

static void summary_comes_back(void **state)
{
    (void)state;
    static uint8_t blocks[SUM_BLOCKS][FB_BLOCK_BYTES];
    struct fb_log_sum_writer writer;
    fb_log_format_sum_begin(&writer, &place, blocks, SUM_BLOCKS);
    for (uint32_t i = 0; i < SUM_RECORDS; i++) {
        struct fb_log_record record = nth_record(i);
        struct fb_log_found found = {.ordinal = i,
                                     .desc_block = 2 + i,
                                     .data_block = 3 + i,
                                     .horizon = i * 2};
        assert_true(fb_log_format_sum_add(&writer, &record, &found));
    }
    uint32_t count = fb_log_format_sum_finish(&writer);
    uint32_t seen = 0;
    for (uint32_t b = 0; b < count; b++) {
        struct fb_log_sum sum;
        struct fb_log_record record;
        struct fb_log_found found;
        assert_int_equal(fb_log_format_sum_get(blocks[b], &place, b, &sum), FB_LOG_BLOCK_GOOD);
        assert_int_equal(sum.ordinal, seen);
        while (fb_log_format_sum_next(&sum, &record, &found) == 1) {
            struct fb_log_record want = nth_record(seen);
            assert_same(&record, &want, false);
            assert_int_equal(found.ordinal, seen);
            assert_int_equal(found.desc_block, 2 + seen);
            if (record.kind == FB_LOG_VALUE)
                assert_int_equal(found.data_block, 3 + seen);
            else
                assert_int_equal(found.horizon, seen * 2);
            seen++;
        }
        assert_int_equal(sum.left, 0);
        assert_int_equal(fb_log_format_sum_get(blocks[b], &place, b + 1, &sum),
                         FB_LOG_BLOCK_FOREIGN);
    }
    assert_int_equal(seen, SUM_RECORDS);
}

static void summary_is_compact_and_bounded(void **state)
{
    (void)state;
    static uint8_t blocks[2][FB_BLOCK_BYTES];
    struct fb_log_sum_writer writer;
    fb_log_format_sum_begin(&writer, &place, blocks, 2);
    struct fb_log_record record = value_record(4096, "k");
    uint32_t added = 0;
    for (;; added++) {
        struct fb_log_found found = {.ordinal = added,
                                     .desc_block = 2 + added,
                                     .data_block = 3 + added};
        if (!fb_log_format_sum_add(&writer, &record, &found))
            break;
    }
    assert_int_equal(added, 2 * 82);
    assert_int_equal(fb_log_format_sum_finish(&writer), 2);
    /* The page says 49 bytes for a value of 4 KiB, so a start reads less than 2 % of the data. */
    assert_true(2.0 * FB_BLOCK_BYTES / added <= 50.0);
}

/* ---- damage ---- */

/* Reads everything that can be read from the block, as whatever it may be. */
static void decode_all(void)
{
    struct fb_log_super super;
    (void)fb_log_format_super_get(block, 1, &super);
    struct fb_log_names_head names;
    (void)fb_log_format_names_get(block, DEVICE_ID, 1, &names);
    struct fb_log_history_head history;
    if (fb_log_format_history_get(block, DEVICE_ID, 4, &history) == FB_LOG_BLOCK_GOOD) {
        for (uint32_t i = 0; i < history.entries; i++)
            (void)fb_log_format_history_entry(block, i);
    }
    struct fb_log_header header;
    (void)fb_log_format_header_get(block, DEVICE_ID, 7, 1, &header);
    struct fb_log_trailer trailer;
    if (fb_log_format_trailer_get(block, &place, &trailer) == FB_LOG_BLOCK_GOOD)
        assert_true(trailer.summary_first + trailer.summary_blocks < SEGMENT_BLOCKS);
    struct fb_log_record record;
    struct fb_log_found found;
    struct fb_log_desc desc;
    if (fb_log_format_desc_get(block, &place, 30, &desc) == FB_LOG_BLOCK_GOOD) {
        int got;
        while ((got = fb_log_format_desc_next(&desc, &record, &found)) != 0) {
            if (got == 1 && record.kind == FB_LOG_VALUE)
                assert_true(found.data_block + fb_div_up(record.part_bytes, 4096) < SEGMENT_BLOCKS);
            if (got == 1 && record.key_bytes > 0)
                assert_true(record.key >= block && record.key + record.key_bytes <= block + 4096);
        }
    }
    struct fb_log_sum sum;
    if (fb_log_format_sum_get(block, &place, 0, &sum) == FB_LOG_BLOCK_GOOD) {
        while (fb_log_format_sum_next(&sum, &record, &found) == 1) {
            if (record.kind == FB_LOG_VALUE)
                assert_true(found.data_block + fb_div_up(record.part_bytes, 4096) < SEGMENT_BLOCKS);
        }
    }
}

/* True if the block is refused as every structure. */
static bool is_refused(void)
{
    struct fb_log_super super;
    struct fb_log_names_head names;
    struct fb_log_history_head history;
    struct fb_log_header header;
    struct fb_log_trailer trailer;
    struct fb_log_desc desc;
    struct fb_log_sum sum;
    return fb_log_format_super_get(block, 1, &super) != FB_LOG_BLOCK_GOOD &&
           fb_log_format_names_get(block, DEVICE_ID, 1, &names) != FB_LOG_BLOCK_GOOD &&
           fb_log_format_history_get(block, DEVICE_ID, 4, &history) != FB_LOG_BLOCK_GOOD &&
           fb_log_format_header_get(block, DEVICE_ID, 7, 1, &header) != FB_LOG_BLOCK_GOOD &&
           fb_log_format_trailer_get(block, &place, &trailer) != FB_LOG_BLOCK_GOOD &&
           fb_log_format_desc_get(block, &place, 30, &desc) != FB_LOG_BLOCK_GOOD &&
           fb_log_format_sum_get(block, &place, 0, &sum) != FB_LOG_BLOCK_GOOD;
}

/* Puts a good block of the given kind there; returns how many bytes it uses. */
static uint32_t make_block(unsigned kind)
{
    struct fb_log_super super = a_superblock();
    struct fb_log_names_head names = {.sequence = 6, .slot = 1, .bytes = 1000};
    struct fb_log_history_head history =
        {.sequence = 8, .ring_block = 4, .count = 1, .segment = 9, .incarnation = 3, .entries = 40};
    struct fb_log_header header = {.segment = 7,
                                   .block = 1,
                                   .incarnation = 41,
                                   .state = 2,
                                   .class_hint = 1};
    struct fb_log_trailer trailer = {.summary_first = 1020,
                                     .summary_blocks = 3,
                                     .end = 900,
                                     .durable = 900};
    struct fb_log_record value = value_record(5000, "some key"), tomb = tomb_record("gone");
    struct fb_log_sum_writer writer;
    uint32_t used = 160;
    switch (kind) {
    case 0:
        fb_log_format_super_put(block, &super);
        break;
    case 1:
        fb_log_format_names_put(block, DEVICE_ID, &names);
        break;
    case 2:
        memset(block, 0x5a, sizeof(block));
        fb_log_format_history_put(block, DEVICE_ID, &history);
        used = 96 + 40 * 24;
        break;
    case 3:
        fb_log_format_header_put(block, DEVICE_ID, &header);
        break;
    case 4:
        fb_log_format_trailer_put(block, &place, &trailer);
        break;
    case 5:
        (void)fill_descriptor(&value, &tomb, 30, &used);
        break;
    default:
        fb_log_format_sum_begin(&writer, &place, block, 1);
        for (uint32_t i = 0; i < 60; i++) {
            struct fb_log_record record = nth_record(i);
            struct fb_log_found found = {.ordinal = i, .desc_block = 2 + i, .data_block = 3 + i};
            (void)fb_log_format_sum_add(&writer, &record, &found);
        }
        used = writer.at_bytes;
        (void)fb_log_format_sum_finish(&writer);
        break;
    }
    assert_false(is_refused());
    return used;
}
#define KINDS 7

static void any_changed_byte_is_noticed(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < KINDS; kind++) {
        (void)make_block(kind);
        for (uint32_t i = 0; i < FB_BLOCK_BYTES; i++) {
            block[i] ^= (uint8_t)(1 + i % 255);
            assert_true(is_refused());
            decode_all();
            block[i] ^= (uint8_t)(1 + i % 255);
        }
        assert_false(is_refused());
    }
}

static void forged_fields_stay_in_bounds(void **state)
{
    (void)state;
    struct fb_prng prng;
    fb_prng_seed(&prng, 4711);
    for (unsigned round = 0; round < DAMAGES; round++) {
        uint32_t used = make_block(round % KINDS);
        uint32_t changes = 1 + (uint32_t)fb_prng_below(&prng, 4);
        for (uint32_t i = 0; i < changes; i++) {
            uint32_t where = 6 + (uint32_t)fb_prng_below(&prng, used - 6);
            if (where >= 16 && where < 32)
                continue; /* the device's id: foreign at once */
            block[where] = fb_prng_below(&prng, 3) == 0 ? 0xff : (uint8_t)fb_prng_next(&prng);
        }
        reseal();
        decode_all();
    }
}

static void blocks_of_noise_are_refused(void **state)
{
    (void)state;
    struct fb_prng prng;
    fb_prng_seed(&prng, 99);
    for (unsigned round = 0; round < 2000; round++) {
        for (uint32_t i = 0; i < FB_BLOCK_BYTES; i++)
            block[i] = (uint8_t)fb_prng_next(&prng);
        assert_true(is_refused());
        decode_all();
    }
    memset(block, 0, sizeof(block));
    assert_true(is_refused());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(geometry_follows_the_page),
        cmocka_unit_test(superblock_has_its_bytes),
        cmocka_unit_test(names_and_history_have_their_bytes),
        cmocka_unit_test(ends_of_a_segment_have_their_bytes),
        cmocka_unit_test(descriptor_has_its_bytes),
        cmocka_unit_test(descriptor_comes_back),
        cmocka_unit_test(tlv_is_skipped_or_refused),
        cmocka_unit_test(summary_comes_back),
        cmocka_unit_test(summary_is_compact_and_bounded),
        cmocka_unit_test(any_changed_byte_is_noticed),
        cmocka_unit_test(forged_fields_stay_in_bounds),
        cmocka_unit_test(blocks_of_noise_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
