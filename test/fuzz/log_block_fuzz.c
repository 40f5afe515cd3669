/*
 * One block of the SSD log under each decoder: superblock, namespace table, history, segment header
 * and trailer, descriptor, summary.
 *
 * An input says which structure, how large the segment is and whether the checksum is made good;
 * then come the bytes of the block, zeros behind them. What is decoded must lie in its bounds; it
 * is encoded again, and must come out the same.
 *
 * Cannot show: what recovery makes of blocks that contradict each other (recover_fuzz).
 */
#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/hash.h"
#include "engine/log_format.h"
#include "test/lib/fuzz.h"

#define BODY_AT       16 /* behind magic, version, length and checksum */
#define RECORDS_MAX   64
#define SUM_BLOCKS    8
#define SEGMENT       7
#define INCARNATION   41
#define HISTORY_BLOCK 5

enum kind {
    KIND_SUPER,
    KIND_NAMES,
    KIND_HISTORY,
    KIND_HEADER,
    KIND_TRAILER,
    KIND_DESC,
    KIND_SUM,
    KIND_COUNT
};

enum mode {
    MODE_SEAL = 1,  /* the checksum is made good */
    MODE_SECOND = 2 /* the second copy or slot, the second block of a summary */
};

static const uint32_t segment_blocks[] = {64, 1024, 16384};

static struct fb_log_place place = {.device_id = "0123456789abcde",
                                    .segment = SEGMENT,
                                    .incarnation = INCARNATION};
static _Alignas(8) uint8_t again[FB_BLOCK_BYTES];
static _Alignas(8) uint8_t sum_blocks[SUM_BLOCKS * FB_BLOCK_BYTES];

static struct fb_log_record records[RECORDS_MAX];
static struct fb_log_found founds[RECORDS_MAX];

static uint64_t load_u64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof(value));
    return le64toh(value);
}

/* The checksum as docs/format.md has it. */
static void seal(uint8_t *block)
{
    uint64_t sum = htole64(fb_hash64(block + BODY_AT, FB_BLOCK_BYTES - BODY_AT, load_u64(block)));
    memcpy(block + 8, &sum, sizeof(sum));
}

/* What was encoded has the bytes of what was decoded, as far as the structure goes. */
static void check_same(const uint8_t *block)
{
    uint32_t used = block[6] | (uint32_t)block[7] << 8;
    FUZZ_CHECK(used >= FB_LOG_PREFIX_BYTES && used <= FB_BLOCK_BYTES);
    FUZZ_CHECK(memcmp(block, again, 8) == 0);
    FUZZ_CHECK(memcmp(block + BODY_AT, again + BODY_AT, used - BODY_AT) == 0);
}

/* ---- the structures with one form ---- */

static void try_super(const uint8_t *block, uint32_t copy)
{
    struct fb_log_super super;
    if (fb_log_format_super_get(block, copy, &super) != FB_LOG_BLOCK_GOOD)
        return;
    fb_log_format_super_put(again, &super);
    check_same(block);
}

static void try_names(const uint8_t *block, uint32_t slot)
{
    struct fb_log_names_head head;
    if (fb_log_format_names_get(block, place.device_id, slot, &head) != FB_LOG_BLOCK_GOOD)
        return;
    FUZZ_CHECK(head.bytes <= FB_LOG_NAMES_BYTES_MAX);
    fuzz_touch(&head.checksum, sizeof(head.checksum));
    fb_log_format_names_put(again, place.device_id, &head);
    check_same(block);
    uint32_t bytes = head.bytes < FB_BLOCK_BYTES ? head.bytes : FB_BLOCK_BYTES;
    uint64_t sum = fb_log_format_names_checksum(block, bytes, head.sequence);
    fuzz_touch(&sum, sizeof(sum));
}

static void try_history(const uint8_t *block)
{
    struct fb_log_history_head head;
    if (fb_log_format_history_get(block, place.device_id, HISTORY_BLOCK, &head) !=
        FB_LOG_BLOCK_GOOD)
        return;
    FUZZ_CHECK(head.entries <= FB_LOG_HISTORY_ENTRIES_MAX);
    for (uint32_t i = 0; i < head.entries; i++) {
        struct fb_log_history_entry entry = fb_log_format_history_entry(block, i);
        fb_log_format_history_set(again, i, &entry);
    }
    fb_log_format_history_put(again, place.device_id, &head);
    check_same(block);
}

static void try_header(const uint8_t *block, uint32_t at)
{
    struct fb_log_header header;
    if (fb_log_format_header_get(block, place.device_id, SEGMENT, at, &header) != FB_LOG_BLOCK_GOOD)
        return;
    FUZZ_CHECK(header.class_hint < FB_LOG_CLASSES && header.incarnation != 0);
    fb_log_format_header_put(again, place.device_id, &header);
    check_same(block);
}

static void try_trailer(const uint8_t *block)
{
    struct fb_log_trailer trailer;
    if (fb_log_format_trailer_get(block, &place, &trailer) != FB_LOG_BLOCK_GOOD)
        return;
    FUZZ_CHECK(trailer.end < place.segment_blocks && trailer.durable <= trailer.end);
    FUZZ_CHECK((uint64_t)trailer.summary_first + trailer.summary_blocks < place.segment_blocks ||
               trailer.summary_blocks == 0);
    fb_log_format_trailer_put(again, &place, &trailer);
    check_same(block);
}

/* ---- lists of records ---- */

static void check_record(const struct fb_log_record *record, const struct fb_log_found *found)
{
    uint32_t end = place.segment_blocks - FB_LOG_TRAILER_BLOCKS;
    FUZZ_CHECK(record->class_hint < FB_LOG_CLASSES && record->leaf_count <= FB_LOG_LEAVES_MAX);
    FUZZ_CHECK(found->desc_block >= FB_LOG_HEADER_BLOCKS && found->desc_block < end);
    fuzz_touch(record->key, record->key_bytes);
    if (record->kind == FB_LOG_TOMB)
        return;
    FUZZ_CHECK(record->kind == FB_LOG_VALUE && record->part < record->parts);
    FUZZ_CHECK(record->part_bytes > 0 && record->part_bytes <= FB_CHUNK_BYTES_MAX);
    uint32_t blocks = (uint32_t)fb_div_up(record->part_bytes, FB_BLOCK_BYTES);
    FUZZ_CHECK(found->data_block > found->desc_block && found->data_block + blocks <= end);
}

static void check_equal(const struct fb_log_record *a, const struct fb_log_record *b)
{
    FUZZ_CHECK(a->kind == b->kind && a->class_hint == b->class_hint && a->part == b->part);
    FUZZ_CHECK(a->parts == b->parts && a->part_bytes == b->part_bytes && a->epoch == b->epoch);
    FUZZ_CHECK(a->value_bytes == b->value_bytes && a->generation == b->generation);
    FUZZ_CHECK(a->origin == b->origin && a->pin_class == b->pin_class);
    FUZZ_CHECK(fb_digest_is_equal(a->digest, b->digest));
    FUZZ_CHECK(memcmp(a->namespace_id, b->namespace_id, FB_NAMESPACE_ID_BYTES) == 0);
    if (a->kind == FB_LOG_TOMB)
        return;
    FUZZ_CHECK(fb_digest_is_equal(a->group, b->group));
    FUZZ_CHECK(a->root == b->root && a->depth == b->depth);
}

/* Encodes the records again as a descriptor, and walks that. */
static void check_desc_again(const struct fb_log_desc_head *head, uint32_t count)
{
    uint32_t used = FB_LOG_DESC_HEAD_BYTES;
    for (uint32_t i = 0; i < count; i++) {
        used = fb_log_format_record_put(again, used, &records[i], founds[i].data_block,
                                        founds[i].horizon);
        FUZZ_CHECK(used != 0);
    }
    struct fb_log_desc_head new_head = *head;
    new_head.records = (uint16_t)count;
    fb_log_format_desc_put(again, used, &place, &new_head);
    struct fb_log_desc desc;
    FUZZ_CHECK(fb_log_format_looks_like_desc(again, &place));
    FUZZ_CHECK(fb_log_format_desc_get(again, &place, head->block, &desc) == FB_LOG_BLOCK_GOOD);
    for (uint32_t i = 0; i < count; i++) {
        struct fb_log_record record;
        struct fb_log_found found;
        FUZZ_CHECK(fb_log_format_desc_next(&desc, &record, &found) == 1);
        check_equal(&record, &records[i]);
        FUZZ_CHECK(found.data_block == founds[i].data_block && found.horizon == founds[i].horizon);
        FUZZ_CHECK(record.key_bytes == records[i].key_bytes);
        FUZZ_CHECK(memcmp(record.key, records[i].key, record.key_bytes) == 0);
    }
}

static void try_desc(const uint8_t *block)
{
    struct fb_log_desc desc;
    (void)fb_log_format_looks_like_desc(block, &place);
    uint32_t at = load_u64(block + FB_LOG_PREFIX_BYTES) >> 32;
    if (fb_log_format_desc_get(block, &place, at, &desc) != FB_LOG_BLOCK_GOOD)
        return;
    uint32_t count = 0;
    int next;
    struct fb_log_record record;
    struct fb_log_found found;
    while ((next = fb_log_format_desc_next(&desc, &record, &found)) != 0) {
        if (next < 0)
            continue;
        check_record(&record, &found);
        FUZZ_CHECK(record.key_bytes == 0 || (record.key >= block && record.key + record.key_bytes <=
                                                                        block + FB_BLOCK_BYTES));
        FUZZ_CHECK(count < RECORDS_MAX);
        records[count] = record;
        founds[count++] = found;
    }
    check_desc_again(&desc.head, count);
}

/* Encodes the records again as a summary, and walks that. */
static void check_sum_again(uint32_t first_ordinal, uint32_t count)
{
    static struct fb_log_sum_writer writer;
    fb_log_format_sum_begin(&writer, &place, sum_blocks, SUM_BLOCKS);
    for (uint32_t i = 0; i < count; i++) {
        founds[i].ordinal = first_ordinal + i;
        FUZZ_CHECK(fb_log_format_sum_add(&writer, &records[i], &founds[i]));
    }
    uint32_t blocks = fb_log_format_sum_finish(&writer);
    FUZZ_CHECK(blocks == 0 ? count == 0 : blocks <= 2);
    uint32_t at = 0;
    for (uint32_t b = 0; b < blocks; b++) {
        static struct fb_log_sum sum;
        const uint8_t *block = sum_blocks + (size_t)b * FB_BLOCK_BYTES;
        FUZZ_CHECK(fb_log_format_sum_get(block, &place, b, &sum) == FB_LOG_BLOCK_GOOD);
        FUZZ_CHECK(sum.ordinal == first_ordinal + at);
        struct fb_log_record record;
        struct fb_log_found found;
        int next;
        while ((next = fb_log_format_sum_next(&sum, &record, &found)) == 1) {
            check_equal(&record, &records[at]);
            FUZZ_CHECK(found.desc_block == founds[at].desc_block);
            FUZZ_CHECK(found.data_block == founds[at++].data_block);
        }
        FUZZ_CHECK(next == 0);
    }
    FUZZ_CHECK(at == count);
}

static void try_sum(const uint8_t *block, uint32_t index)
{
    static struct fb_log_sum sum;
    if (fb_log_format_sum_get(block, &place, index, &sum) != FB_LOG_BLOCK_GOOD)
        return;
    uint32_t count = 0;
    uint32_t first = sum.ordinal;
    while (count < RECORDS_MAX &&
           fb_log_format_sum_next(&sum, &records[count], &founds[count]) == 1) {
        check_record(&records[count], &founds[count]);
        count++;
    }
    check_sum_again(first, count);
}

static void try_block(enum kind kind, const uint8_t *block, uint32_t number)
{
    switch (kind) {
    case KIND_SUPER:
        try_super(block, number);
        break;
    case KIND_NAMES:
        try_names(block, number);
        break;
    case KIND_HISTORY:
        try_history(block);
        break;
    case KIND_HEADER:
        try_header(block, number);
        break;
    case KIND_TRAILER:
        try_trailer(block);
        break;
    case KIND_DESC:
        try_desc(block);
        break;
    default:
        try_sum(block, number);
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input input = {.at = data, .left = size};
    enum kind kind = (enum kind)fuzz_choice(&input, KIND_COUNT);
    unsigned mode = fuzz_choice(&input, 4);
    place.segment_blocks = segment_blocks[fuzz_choice(&input, FB_ARRAY_COUNT(segment_blocks))];
    static uint8_t bytes[FB_BLOCK_BYTES];
    fuzz_take(&input, bytes, sizeof(bytes));
    if ((mode & MODE_SEAL) != 0)
        seal(bytes);
    uint8_t *block = fuzz_exact(bytes, sizeof(bytes));
    try_block(kind, block, (mode & MODE_SECOND) != 0);
    free(block);
    return 0;
}

/* ---- seeds ---- */

static void seed(const char *name, enum kind kind, unsigned mode, unsigned size_class,
                 const uint8_t *block)
{
    static struct fuzz_seed out;
    uint8_t head[3] = {(uint8_t)kind, (uint8_t)mode, (uint8_t)size_class};
    size_t bytes = FB_BLOCK_BYTES;
    while (bytes > 0 && block[bytes - 1] == 0)
        bytes--;
    out.count = 0;
    fuzz_add(&out, head, sizeof(head));
    fuzz_add(&out, block, bytes);
    fuzz_seed(name, out.bytes, out.count);
}

static struct fb_log_record value_of(uint32_t part_bytes, const char *key, uint64_t group)
{
    struct fb_log_record record = {.kind = FB_LOG_VALUE,
                                   .class_hint = 1,
                                   .key_bytes = (uint16_t)strlen(key),
                                   .depth = 17,
                                   .parts = 1,
                                   .part_bytes = part_bytes,
                                   .value_bytes = part_bytes,
                                   .epoch = 5,
                                   .digest = {.hi = 1, .lo = 2},
                                   .group = {.lo = group},
                                   .origin = 99,
                                   .generation = (UINT64_C(2) << 40) | 8,
                                   .root = 0x5555,
                                   .key = (const uint8_t *)key};
    record.leaf_count = (uint32_t)fb_div_up(part_bytes, FB_LEAF_BYTES);
    return record;
}

static struct fb_log_record tomb_of(const char *key)
{
    struct fb_log_record record = value_of(1, key, 0);
    record.kind = FB_LOG_TOMB;
    record.part_bytes = record.leaf_count = 0;
    record.value_bytes = 0;
    return record;
}

static void seed_super(void)
{
    struct fb_log_super super = {.sequence = 3, .boot = 12, .capacity_bytes = FB_MIB(16)};
    memcpy(super.device_id, place.device_id, sizeof(super.device_id));
    (void)fb_log_geometry(super.capacity_bytes, &super.geometry);
    super.shards = 1;
    fb_log_format_super_put(again, &super);
    seed("super", KIND_SUPER, 1, 0, again);
    seed("super-not-sealed", KIND_SUPER, 0, 0, again);
    seed("super-other-copy", KIND_SUPER, 3, 0, again);
    again[4] = 9;
    seed("super-version", KIND_SUPER, 1, 0, again);
    again[4] = 1;
    again[6] = 10;
    seed("super-short", KIND_SUPER, 1, 0, again);
    again[6] = 160;
    again[158] = 1;
    seed("super-reserved", KIND_SUPER, 1, 0, again);
    memset(again, 0, sizeof(again));
    seed("zero", KIND_SUPER, 0, 0, again);
}

static void seed_heads(void)
{
    struct fb_log_names_head names = {.sequence = 4, .slot = 1, .bytes = 100, .checksum = 5};
    fb_log_format_names_put(again, place.device_id, &names);
    seed("names", KIND_NAMES, 3, 0, again);
    seed("names-other-slot", KIND_NAMES, 1, 0, again);
    again[16] ^= 1;
    seed("names-other-device", KIND_NAMES, 3, 0, again);
    struct fb_log_history_head history = {.sequence = 9,
                                          .ring_block = HISTORY_BLOCK,
                                          .count = 1,
                                          .incarnation = INCARNATION,
                                          .entries = 3};
    for (uint32_t i = 0; i < history.entries; i++) {
        struct fb_log_history_entry entry = {.digest = {.hi = i, .lo = 7}, .generation = i};
        fb_log_format_history_set(again, i, &entry);
    }
    fb_log_format_history_put(again, place.device_id, &history);
    seed("history", KIND_HISTORY, 1, 0, again);
    history.ring_block++;
    fb_log_format_history_put(again, place.device_id, &history);
    seed("history-elsewhere", KIND_HISTORY, 1, 0, again);
    struct fb_log_header header = {.segment = SEGMENT,
                                   .block = 1,
                                   .incarnation = INCARNATION,
                                   .state = FB_LOG_HEADER_OPEN,
                                   .shards = 1};
    fb_log_format_header_put(again, place.device_id, &header);
    seed("header", KIND_HEADER, 3, 0, again);
    header.state = FB_LOG_HEADER_FREE;
    fb_log_format_header_put(again, place.device_id, &header);
    seed("header-free", KIND_HEADER, 3, 0, again);
    header.segment++;
    fb_log_format_header_put(again, place.device_id, &header);
    seed("header-elsewhere", KIND_HEADER, 3, 0, again);
}

static void seed_trailer(const char *name, uint32_t end, uint32_t durable, uint32_t first,
                         uint32_t blocks)
{
    struct fb_log_trailer trailer = {.summary_first = first,
                                     .summary_blocks = blocks,
                                     .records = 3,
                                     .end = end,
                                     .durable = durable,
                                     .data_bytes = 4096};
    fb_log_format_trailer_put(again, &place, &trailer);
    seed(name, KIND_TRAILER, 1, 0, again);
}

static void seed_desc(void)
{
    struct fb_log_record value = value_of(5000, "key-1", 4);
    struct fb_log_record large = value_of((uint32_t)FB_KIB(600), "key-of-a-large-part", 0);
    struct fb_log_record tomb = tomb_of("gone");
    struct fb_log_desc_head head = {.block = 4, .batch = 2, .flushed_up_to = 3, .records = 3};
    head.data_blocks = 2 + 150;
    uint32_t used = FB_LOG_DESC_HEAD_BYTES;
    used = fb_log_format_record_put(again, used, &value, 5, 0);
    used = fb_log_format_record_put(again, used, &tomb, 0, 40);
    used = fb_log_format_record_put(again, used, &large, 7, 0);
    fb_log_format_desc_put(again, used, &place, &head);
    seed("desc", KIND_DESC, 1, 1, again);
    seed("desc-too-long", KIND_DESC, 1, 0, again);
    /* The first record with a TLV area of 8 bytes behind a shorter key. */
    uint8_t *record = again + FB_LOG_DESC_HEAD_BYTES;
    record[2] = 0;
    record[4] = 8;
    record[6] = 0;
    record[7] = FB_LOG_TOMB;
    memset(record + 12, 0, 4);
    memset(record + 24, 0, 4);
    seed("desc-tlv", KIND_DESC, 1, 1, again);
    record[120 + 1] = 0x80;
    seed("desc-tlv-understand", KIND_DESC, 1, 1, again);
    record[0] = 3;
    seed("desc-record-short", KIND_DESC, 1, 1, again);
    head.block = 5;
    fb_log_format_desc_put(again, used, &place, &head);
    again[48]++;
    seed("desc-incarnation", KIND_DESC, 1, 1, again);
    again[32]++;
    seed("desc-elsewhere", KIND_DESC, 1, 1, again);
}

static void seed_sum(void)
{
    static struct fb_log_sum_writer writer;
    struct fb_log_record value = value_of(5000, "key-1", 4);
    struct fb_log_record other = value_of(4096, "key-2", 8);
    struct fb_log_record tomb = tomb_of("gone");
    struct fb_log_record part = value_of((uint32_t)FB_KIB(64), "key-3", 0);
    part.part = 1;
    part.parts = 3;
    part.value_bytes = FB_KIB(192);
    other.epoch++;
    fb_log_format_sum_begin(&writer, &place, sum_blocks, SUM_BLOCKS);
    struct fb_log_found found = {.desc_block = 4, .data_block = 5};
    const struct fb_log_record *all[] = {&value, &other, &part, &tomb};
    for (uint32_t i = 0; i < 4; i++, found.ordinal++) {
        found.data_block = all[i] == &tomb ? 0 : 5;
        (void)fb_log_format_sum_add(&writer, all[i], &found);
    }
    fb_log_format_sum_finish(&writer);
    seed("sum", KIND_SUM, 1, 0, sum_blocks);
    seed("sum-second", KIND_SUM, 3, 0, sum_blocks);
    fb_log_format_sum_begin(&writer, &place, sum_blocks, SUM_BLOCKS);
    for (uint32_t i = 0; writer.used_blocks < 2; i++) {
        value.group.lo = i;
        value.epoch = i / 8;
        found.ordinal = i;
        found.data_block = 5 + i % 50;
        (void)fb_log_format_sum_add(&writer, &value, &found);
    }
    fb_log_format_sum_finish(&writer);
    seed("sum-full", KIND_SUM, 1, 0, sum_blocks);
}

static void seeds(void)
{
    place.segment_blocks = segment_blocks[0];
    seed_super();
    seed_heads();
    seed_trailer("trailer", 20, 20, 40, 23);
    seed_trailer("trailer-plain", 20, 10, 0, 0);
    seed_trailer("trailer-end", 64, 10, 0, 0);
    seed_trailer("trailer-durable", 20, 21, 0, 0);
    seed_desc();
    seed_sum();
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    return fuzz_start(argc, argv, seeds);
}
