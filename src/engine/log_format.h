/*
 * log_format.h - the structures of the SSD log as bytes: docs/format.md in code, and nothing else.
 *
 * Every structure is one block of 4096 bytes with a common prefix. Encoding fills a block of the
 * caller's; decoding believes nothing: each bound, count and position is checked, and a block that
 * does not fit is refused as a whole. No state, no memory, no I/O.
 */
#ifndef FB_ENGINE_LOG_FORMAT_H
#define FB_ENGINE_LOG_FORMAT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cursor.h"
#include "engine/log.h"

#define FB_LOG_VERSION         1
#define FB_LOG_PREFIX_BYTES    32
#define FB_LOG_DEVICE_ID_BYTES 16

/* Feature bits of the superblock that this build knows. */
#define FB_LOG_COMPAT_KNOWN   0
#define FB_LOG_INCOMPAT_KNOWN 0

/* A segment's blocks: header copies, then units. */
#define FB_LOG_HEADER_BLOCKS  2
#define FB_LOG_TRAILER_BLOCKS 1

/* Where bodies begin inside their blocks, and how long their items are. */
#define FB_LOG_DESC_HEAD_BYTES     96
#define FB_LOG_RECORD_BYTES        120 /* without leaves, key and TLV area */
#define FB_LOG_HISTORY_HEAD_BYTES  96
#define FB_LOG_HISTORY_ENTRY_BYTES 24
#define FB_LOG_HISTORY_ENTRIES_MAX \
    ((FB_BLOCK_BYTES - FB_LOG_HISTORY_HEAD_BYTES) / FB_LOG_HISTORY_ENTRY_BYTES)
#define FB_LOG_SUM_HEAD_BYTES  64
#define FB_LOG_SUM_IDENT_BYTES 40
#define FB_LOG_SUM_GROUP_BYTES 24
#define FB_LOG_SUM_VALUE_BYTES 48
#define FB_LOG_SUM_PART_BYTES  64
#define FB_LOG_SUM_TOMB_BYTES  40
#define FB_LOG_SUM_BODY_BYTES  (FB_BLOCK_BYTES - FB_LOG_SUM_HEAD_BYTES)
#define FB_LOG_SUM_IDENTS_MAX  (FB_LOG_SUM_BODY_BYTES / FB_LOG_SUM_IDENT_BYTES)
#define FB_LOG_SUM_GROUPS_MAX  (FB_LOG_SUM_BODY_BYTES / FB_LOG_SUM_GROUP_BYTES)
#define FB_LOG_SUM_GROUP_NONE  255
#define FB_LOG_TLV_HEAD_BYTES  4
#define FB_LOG_TLV_UNDERSTAND  0x8000 /* types from here on must be understood */
/* Copies of the superblock, and how many blocks they lie apart: one bad page of flash takes only
 * one. */
#define FB_LOG_SUPER_COPIES     2
#define FB_LOG_SUPER_STRIDE     16
#define FB_LOG_NAMES_SLOTS      2
#define FB_LOG_NAMES_SLOT_BYTES (FB_BLOCK_BYTES + FB_LOG_NAMES_BYTES_MAX)

_Static_assert(FB_LOG_SUM_GROUPS_MAX < FB_LOG_SUM_GROUP_NONE, "groups of a block have 8 bits");
_Static_assert(FB_LOG_DESC_HEAD_BYTES + FB_LOG_RECORD_BYTES + 8 * FB_LOG_LEAVES_MAX +
                       FB_KEY_BYTES_MAX + 8 <=
                   FB_BLOCK_BYTES,
               "a descriptor holds any record");
_Static_assert(FB_SEGMENT_BYTES_MAX / FB_BLOCK_BYTES <= UINT16_MAX, "blocks have 16 bits");

/* What a block turned out to be. */
enum fb_log_block {
    FB_LOG_BLOCK_GOOD,    /* all checks passed */
    FB_LOG_BLOCK_ZERO,    /* every byte is zero */
    FB_LOG_BLOCK_FOREIGN, /* another magic, device, segment, incarnation or position */
    FB_LOG_BLOCK_VERSION, /* whole, but of another version */
    FB_LOG_BLOCK_DAMAGED  /* the right magic, and the checksum or a field does not fit */
};

/* Which structure of which segment's life a block must be. */
struct fb_log_place {
    uint8_t device_id[FB_LOG_DEVICE_ID_BYTES];
    uint32_t segment;
    uint32_t segment_blocks;
    uint64_t incarnation; /* descriptors: 0 is any, for a segment without a header */
};

/* Blocks of the longest reclaim record of a segment. */
uint32_t fb_log_history_record_blocks(uint64_t segment_bytes);

/* ---- superblock ---- */

struct fb_log_super {
    uint8_t device_id[FB_LOG_DEVICE_ID_BYTES];
    uint64_t sequence;
    uint32_t copy; /* which one, below FB_LOG_SUPER_COPIES */
    uint32_t boot;
    uint64_t node_id;
    uint64_t capacity_bytes;
    struct fb_log_geometry geometry;
    uint16_t shard;
    uint16_t shards;
    uint32_t map_version;
    uint64_t compat;
    uint64_t incompat;
    uint64_t incarnation_frontier;
    uint32_t segment_frontier;
    uint16_t device;
    uint16_t version; /* out: of the structure found, also with FB_LOG_BLOCK_VERSION */
};

/* Encodes a copy of the superblock. */
void fb_log_format_super_put(void *block, const struct fb_log_super *super);

/* Where a copy lies on the device, bytes. */
static inline uint64_t fb_log_format_super_off(uint32_t copy)
{
    return (uint64_t)copy * FB_LOG_SUPER_STRIDE * FB_BLOCK_BYTES;
}

/* Decodes the block that was read from where copy number `copy` lies; *super is set if the result
 * is GOOD, its version also if it is VERSION. */
enum fb_log_block fb_log_format_super_get(const void *block, uint32_t copy,
                                          struct fb_log_super *super);

/* ---- namespace table ---- */

struct fb_log_names_head {
    uint64_t sequence;
    uint32_t slot;
    uint32_t bytes;
    uint64_t checksum;
};

/* The checksum of a table's body. */
uint64_t fb_log_format_names_checksum(const void *body, uint32_t bytes, uint64_t sequence);

/* Encodes the header of a slot. */
void fb_log_format_names_put(void *block, const uint8_t *device_id,
                             const struct fb_log_names_head *head);

/* Decodes the header of slot number `slot`. The body's checksum is the caller's to compare. */
enum fb_log_block fb_log_format_names_get(const void *block, const uint8_t *device_id,
                                          uint32_t slot, struct fb_log_names_head *head);

/* ---- history ---- */

struct fb_log_history_head {
    uint64_t sequence;
    uint32_t ring_block;
    uint32_t index;
    uint32_t count;
    uint32_t segment;
    uint64_t incarnation;
    uint64_t when_ms;
    uint64_t issued; /* the number that the record itself took, as segments take incarnations */
    uint16_t reason;
    uint16_t entries;
};

struct fb_log_history_entry {
    struct fb_digest digest;
    uint64_t generation;
};

/* Sets entry `index` of a history block that is being filled. */
void fb_log_format_history_set(void *block, uint32_t index,
                               const struct fb_log_history_entry *entry);

/* Encodes the head around head->entries entries that are set, and seals the block. */
void fb_log_format_history_put(void *block, const uint8_t *device_id,
                               const struct fb_log_history_head *head);

/* Decodes the head of the block read from ring block `ring_block`. */
enum fb_log_block fb_log_format_history_get(const void *block, const uint8_t *device_id,
                                            uint32_t ring_block, struct fb_log_history_head *head);

/* Entry `index`, below head.entries, of a block that was found good. */
struct fb_log_history_entry fb_log_format_history_entry(const void *block, uint32_t index);

/* ---- segment header and trailer ---- */

enum fb_log_header_state {
    FB_LOG_HEADER_FREE = 1,
    FB_LOG_HEADER_OPEN = 2
};

struct fb_log_header {
    uint32_t segment;
    uint32_t block; /* which copy */
    uint64_t incarnation;
    uint16_t state;
    uint16_t class_hint;
    uint16_t shard;
    uint16_t shards;
    uint32_t map_version;
    uint32_t window_blocks; /* the first promise of reach, from block 0 */
    uint32_t boot;
    uint32_t rescue; /* incarnation of the segment whose records it was opened to take; 0 none */
};

/* Encodes one copy of a segment's header. */
void fb_log_format_header_put(void *block, const uint8_t *device_id,
                              const struct fb_log_header *header);

/* Decodes copy `at` of the header of `segment`. */
enum fb_log_block fb_log_format_header_get(const void *block, const uint8_t *device_id,
                                           uint32_t segment, uint32_t at,
                                           struct fb_log_header *header);

struct fb_log_trailer {
    uint32_t summary_first;
    uint32_t summary_blocks;
    uint32_t records;
    uint32_t end;     /* of the units */
    uint32_t durable; /* blocks below it need no check */
    uint32_t tombs;
    uint64_t data_bytes;
};

/* Encodes the trailer of a place. */
void fb_log_format_trailer_put(void *block, const struct fb_log_place *place,
                               const struct fb_log_trailer *trailer);

/* Decodes the trailer of a place, with every bound of the segment checked. */
enum fb_log_block fb_log_format_trailer_get(const void *block, const struct fb_log_place *place,
                                            struct fb_log_trailer *trailer);

/* ---- descriptors ---- */

struct fb_log_desc_head {
    uint32_t block;
    uint32_t batch;
    uint32_t flushed_up_to;
    uint32_t ordinal; /* of the first record */
    uint32_t data_blocks;
    uint32_t
        reach; /* once this is durable, no unit begins at or beyond it without a later promise */
    uint16_t records;
};

/* Where a record was found, beside what it says. */
struct fb_log_found {
    uint32_t ordinal;
    uint32_t desc_block;
    uint32_t data_block; /* 0 in a tombstone */
    uint64_t horizon;    /* of a tombstone */
};

/* Bytes that a record takes in a descriptor. */
uint32_t fb_log_format_record_bytes(const struct fb_log_record *record);

/* Appends a record behind `used` bytes of a descriptor block; returns the new count of bytes, or 0
 * if it does not fit. Begin with FB_LOG_DESC_HEAD_BYTES. */
uint32_t fb_log_format_record_put(void *block, uint32_t used, const struct fb_log_record *record,
                                  uint32_t data_block, uint64_t horizon);

/* Encodes the head around the records in the first `used` bytes, and seals the block. */
void fb_log_format_desc_put(void *block, uint32_t used, const struct fb_log_place *place,
                            const struct fb_log_desc_head *head);

/* A walk over the records of one descriptor. Private but for `head`. */
struct fb_log_desc {
    struct fb_log_desc_head head;
    struct fb_reader reader;
    uint32_t next_ordinal;
    uint32_t left;
    uint32_t next_data_block;
    uint32_t end_block;   /* of the unit */
    uint64_t incarnation; /* that it says of itself */
};

/* Begins to read the block found at `at` of a place. GOOD says that the unit lies in the segment.
 */
enum fb_log_block fb_log_format_desc_get(const void *block, const struct fb_log_place *place,
                                         uint32_t at, struct fb_log_desc *desc);

/* Takes the next record: 1, 0 at the end, -1 for a record that is malformed, or of a kind or with a
 * field that this version must understand and does not: it is skipped, except if what follows
 * cannot be found, then the walk is over. record->key points into the block. */
int fb_log_format_desc_next(struct fb_log_desc *desc, struct fb_log_record *record,
                            struct fb_log_found *found);

/* ---- summaries ---- */

/* A summary that is being filled, in blocks of the caller's. Private. */
struct fb_log_sum_writer {
    struct fb_log_place place;
    uint8_t *blocks;
    uint32_t capacity_blocks;
    uint32_t used_blocks; /* begun ones */
    uint32_t at_bytes;    /* in the last begun one */
    uint32_t first_ordinal;
    uint32_t records; /* in the last begun one */
    uint32_t ident_count;
    uint32_t group_count;
    uint16_t ident_at[FB_LOG_SUM_IDENTS_MAX];
    uint16_t group_at[FB_LOG_SUM_GROUPS_MAX];
};

/* Begins a summary of a place in `capacity_blocks` blocks. */
void fb_log_format_sum_begin(struct fb_log_sum_writer *writer, const struct fb_log_place *place,
                             void *blocks, uint32_t capacity_blocks);

/* Adds a record; false, with nothing changed, if no block is left for it. Ordinals rise by one. */
bool fb_log_format_sum_add(struct fb_log_sum_writer *writer, const struct fb_log_record *record,
                           const struct fb_log_found *found);

/* Seals the last block; returns how many blocks the summary has. */
uint32_t fb_log_format_sum_finish(struct fb_log_sum_writer *writer);

/* A walk over one block of a summary. Private but for ordinal and left. */
struct fb_log_sum {
    struct fb_reader reader;
    uint32_t ordinal; /* of the next record */
    uint32_t left;
    uint32_t segment_blocks;
    uint32_t ident_count;
    uint32_t group_count;
    const uint8_t *idents[FB_LOG_SUM_IDENTS_MAX];
    const uint8_t *groups[FB_LOG_SUM_GROUPS_MAX];
};

/* Begins to read block number `index` of a place's summary. */
enum fb_log_block fb_log_format_sum_get(const void *block, const struct fb_log_place *place,
                                        uint32_t index, struct fb_log_sum *sum);

/* Takes the next record, without key and leaves: 1, 0 at the end, -1 if the block is malformed. */
int fb_log_format_sum_next(struct fb_log_sum *sum, struct fb_log_record *record,
                           struct fb_log_found *found);

/* ---- help ---- */

/* Writes the prefix into a block whose first `used` bytes are set from FB_LOG_PREFIX_BYTES on,
 * zeroes the rest, and computes the checksum. */
void fb_log_format_seal(void *block, uint32_t magic, const uint8_t *device_id, uint32_t used);

/* Checks prefix and checksum; device_id NULL: any. On GOOD the reader is behind the prefix and ends
 * where the used bytes end. */
enum fb_log_block fb_log_format_check(const void *block, uint32_t magic, const uint8_t *device_id,
                                      struct fb_reader *reader);

/* Steps over `bytes` bytes that must be zero; else the reader has failed. */
void fb_log_format_zeros(struct fb_reader *reader, uint32_t bytes);

/* Reads and writes a digest: lo, then hi. */
struct fb_digest fb_log_format_digest_get(struct fb_reader *reader);

/* Appends a digest. */
void fb_log_format_digest_put(struct fb_writer *writer, struct fb_digest digest);

/* True if a block claims, by fields that no checksum vouches for, to be a descriptor of a place: a
 * torn one does. */
bool fb_log_format_looks_like_desc(const void *block, const struct fb_log_place *place);

/* True if all 4096 bytes are zero. */
bool fb_log_format_is_zero(const void *block);

#endif
