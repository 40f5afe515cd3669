/*
 * Encoding and decoding of the log's blocks: the common prefix, superblock, namespace table,
 * history and the ends of a segment. Descriptors are in log_format_desc.c, summaries in
 * log_format_sum.c.
 */
#include "engine/log_format.h"

#include <string.h>

#include "base/assert.h"
#include "base/bits.h"

#define MAGIC(a, b, c, d) \
    ((uint32_t)(a) | (uint32_t)(b) << 8 | (uint32_t)(c) << 16 | (uint32_t)(d) << 24)
#define SUPER_MAGIC   MAGIC('F', 'B', 'S', 'B')
#define NAMES_MAGIC   MAGIC('F', 'B', 'N', 'M')
#define HISTORY_MAGIC MAGIC('F', 'B', 'H', 'I')
#define HEADER_MAGIC  MAGIC('F', 'B', 'S', 'G')
#define TRAILER_MAGIC MAGIC('F', 'B', 'T', 'R')

#define CHECKED_FROM                                                            \
    16 /* the checksum covers the bytes from here on; those before are its seed \
        */
#define CHECKSUM_AT   8
#define SUPER_BYTES   160
#define NAMES_BYTES   56
#define HEADER_BYTES  72
#define TRAILER_BYTES 80

/* ---- the prefix ---- */

static uint64_t load_u64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof(value));
    return le64toh(value);
}

static uint64_t checksum_of(const uint8_t *bytes)
{
    return fb_hash64(bytes + CHECKED_FROM, FB_BLOCK_BYTES - CHECKED_FROM, load_u64(bytes));
}

bool fb_log_format_is_zero(const void *block)
{
    const uint8_t *bytes = block;
    return bytes[0] == 0 && memcmp(bytes, bytes + 1, FB_BLOCK_BYTES - 1) == 0;
}

void fb_log_format_seal(void *block, uint32_t magic, const uint8_t *device_id, uint32_t used)
{
    FB_ASSERT(used >= FB_LOG_PREFIX_BYTES && used <= FB_BLOCK_BYTES);
    uint8_t *bytes = block;
    memset(bytes + used, 0, FB_BLOCK_BYTES - used);
    struct fb_writer writer;
    fb_writer_init(&writer, bytes, FB_LOG_PREFIX_BYTES);
    fb_writer_u32(&writer, magic);
    fb_writer_u16(&writer, FB_LOG_VERSION);
    fb_writer_u16(&writer, (uint16_t)used);
    fb_writer_u64(&writer, 0);
    fb_writer_bytes(&writer, device_id, FB_LOG_DEVICE_ID_BYTES);
    fb_writer_patch_u64(&writer, CHECKSUM_AT, checksum_of(bytes));
    FB_ASSERT(fb_writer_ok(&writer));
}

enum fb_log_block fb_log_format_check(const void *block, uint32_t magic, const uint8_t *device_id,
                                      struct fb_reader *reader)
{
    fb_reader_init(reader, block, FB_BLOCK_BYTES);
    uint32_t found_magic = fb_reader_u32(reader);
    uint16_t version = fb_reader_u16(reader);
    uint16_t used = fb_reader_u16(reader);
    uint64_t checksum = fb_reader_u64(reader);
    const uint8_t *found_id = fb_reader_bytes(reader, FB_LOG_DEVICE_ID_BYTES);
    if (found_magic != magic)
        return fb_log_format_is_zero(block) ? FB_LOG_BLOCK_ZERO : FB_LOG_BLOCK_FOREIGN;
    if (device_id != NULL && memcmp(found_id, device_id, FB_LOG_DEVICE_ID_BYTES) != 0)
        return FB_LOG_BLOCK_FOREIGN;
    if (checksum != checksum_of(block))
        return FB_LOG_BLOCK_DAMAGED;
    if (version != FB_LOG_VERSION)
        return FB_LOG_BLOCK_VERSION;
    if (used < FB_LOG_PREFIX_BYTES || used > FB_BLOCK_BYTES)
        return FB_LOG_BLOCK_DAMAGED;
    reader->size_bytes = used;
    return FB_LOG_BLOCK_GOOD;
}

void fb_log_format_zeros(struct fb_reader *reader, uint32_t bytes)
{
    const uint8_t *at = fb_reader_bytes(reader, bytes);
    for (uint32_t i = 0; at != NULL && i < bytes; i++) {
        if (at[i] != 0) {
            fb_reader_fail(reader);
            return;
        }
    }
}

struct fb_digest fb_log_format_digest_get(struct fb_reader *reader)
{
    uint64_t lo = fb_reader_u64(reader);
    uint64_t hi = fb_reader_u64(reader);
    return (struct fb_digest){.hi = hi, .lo = lo};
}

void fb_log_format_digest_put(struct fb_writer *writer, struct fb_digest digest)
{
    fb_writer_u64(writer, digest.lo);
    fb_writer_u64(writer, digest.hi);
}

/* A writer for the body of a block. */
static void begin_body(struct fb_writer *writer, void *block)
{
    fb_writer_init(writer, block, FB_BLOCK_BYTES);
    (void)fb_writer_room(writer, FB_LOG_PREFIX_BYTES);
}

/* Seals a block whose body is complete and has exactly `bytes` bytes, prefix included. */
static void end_body(struct fb_writer *writer, uint32_t magic, const uint8_t *device_id,
                     uint32_t bytes)
{
    FB_ASSERT(fb_writer_ok(writer) && writer->at_bytes == bytes);
    fb_log_format_seal(writer->bytes, magic, device_id, bytes);
}

/* GOOD if a body was read to its end and `fits`; else DAMAGED. */
static enum fb_log_block end_of(const struct fb_reader *reader, bool fits)
{
    return fb_reader_is_done(reader) && fits ? FB_LOG_BLOCK_GOOD : FB_LOG_BLOCK_DAMAGED;
}

/* ---- superblock ---- */

void fb_log_format_super_put(void *block, const struct fb_log_super *super)
{
    FB_ASSERT(super->copy < FB_LOG_SUPER_COPIES);
    const struct fb_log_geometry *geometry = &super->geometry;
    struct fb_writer writer;
    begin_body(&writer, block);
    fb_writer_u64(&writer, super->sequence);
    fb_writer_u32(&writer, super->copy);
    fb_writer_u32(&writer, super->boot);
    fb_writer_u64(&writer, super->node_id);
    fb_writer_u64(&writer, super->capacity_bytes);
    fb_writer_u64(&writer, geometry->segment_bytes);
    fb_writer_u32(&writer, geometry->chunk_bytes);
    fb_writer_u32(&writer, geometry->segments);
    fb_writer_u64(&writer, geometry->names_off);
    fb_writer_u64(&writer, geometry->names_bytes);
    fb_writer_u64(&writer, geometry->history_off);
    fb_writer_u64(&writer, geometry->history_bytes);
    fb_writer_u64(&writer, geometry->segments_off);
    fb_writer_u16(&writer, super->shard);
    fb_writer_u16(&writer, super->shards);
    fb_writer_u32(&writer, super->map_version);
    fb_writer_u64(&writer, super->compat);
    fb_writer_u64(&writer, super->incompat);
    fb_writer_u64(&writer, super->incarnation_frontier);
    fb_writer_u32(&writer, super->segment_frontier);
    fb_writer_u16(&writer, super->device);
    fb_writer_u16(&writer, 0);
    end_body(&writer, SUPER_MAGIC, super->device_id, SUPER_BYTES);
}

/* Reads the geometry in the order of the superblock. */
static void read_geometry(struct fb_reader *reader, struct fb_log_geometry *geometry)
{
    geometry->segment_bytes = fb_reader_u64(reader);
    geometry->chunk_bytes = fb_reader_u32(reader);
    geometry->segments = fb_reader_u32(reader);
    geometry->names_off = fb_reader_u64(reader);
    geometry->names_bytes = fb_reader_u64(reader);
    geometry->history_off = fb_reader_u64(reader);
    geometry->history_bytes = fb_reader_u64(reader);
    geometry->segments_off = fb_reader_u64(reader);
}

enum fb_log_block fb_log_format_super_get(const void *block, uint32_t copy,
                                          struct fb_log_super *out)
{
    struct fb_log_super super = {0};
    struct fb_reader reader;
    enum fb_log_block found = fb_log_format_check(block, SUPER_MAGIC, NULL, &reader);
    if (found != FB_LOG_BLOCK_GOOD && found != FB_LOG_BLOCK_VERSION)
        return found;
    struct fb_reader head;
    fb_reader_init(&head, block, FB_LOG_PREFIX_BYTES);
    fb_reader_skip(&head, sizeof(uint32_t));
    super.version = fb_reader_u16(&head);
    if (found == FB_LOG_BLOCK_VERSION) {
        out->version = super.version;
        return found;
    }
    fb_reader_skip(&head, sizeof(uint16_t) + sizeof(uint64_t));
    fb_reader_copy(&head, super.device_id, FB_LOG_DEVICE_ID_BYTES);
    super.sequence = fb_reader_u64(&reader);
    super.copy = fb_reader_u32(&reader);
    super.boot = fb_reader_u32(&reader);
    super.node_id = fb_reader_u64(&reader);
    super.capacity_bytes = fb_reader_u64(&reader);
    read_geometry(&reader, &super.geometry);
    super.shard = fb_reader_u16(&reader);
    super.shards = fb_reader_u16(&reader);
    super.map_version = fb_reader_u32(&reader);
    super.compat = fb_reader_u64(&reader);
    super.incompat = fb_reader_u64(&reader);
    super.incarnation_frontier = fb_reader_u64(&reader);
    super.segment_frontier = fb_reader_u32(&reader);
    super.device = fb_reader_u16(&reader);
    fb_log_format_zeros(&reader, sizeof(uint16_t));
    if (end_of(&reader, super.copy == copy) != FB_LOG_BLOCK_GOOD)
        return super.copy != copy ? FB_LOG_BLOCK_FOREIGN : FB_LOG_BLOCK_DAMAGED;
    *out = super;
    return FB_LOG_BLOCK_GOOD;
}

/* ---- namespace table ---- */

uint64_t fb_log_format_names_checksum(const void *body, uint32_t bytes, uint64_t sequence)
{
    return fb_hash64(body, bytes, sequence);
}

void fb_log_format_names_put(void *block, const uint8_t *device_id,
                             const struct fb_log_names_head *head)
{
    FB_ASSERT(head->slot < FB_LOG_NAMES_SLOTS && head->bytes <= FB_LOG_NAMES_BYTES_MAX);
    struct fb_writer writer;
    begin_body(&writer, block);
    fb_writer_u64(&writer, head->sequence);
    fb_writer_u32(&writer, head->slot);
    fb_writer_u32(&writer, head->bytes);
    fb_writer_u64(&writer, head->checksum);
    end_body(&writer, NAMES_MAGIC, device_id, NAMES_BYTES);
}

enum fb_log_block fb_log_format_names_get(const void *block, const uint8_t *device_id,
                                          uint32_t slot, struct fb_log_names_head *head)
{
    struct fb_reader reader;
    enum fb_log_block found = fb_log_format_check(block, NAMES_MAGIC, device_id, &reader);
    if (found != FB_LOG_BLOCK_GOOD)
        return found;
    head->sequence = fb_reader_u64(&reader);
    head->slot = fb_reader_u32(&reader);
    head->bytes = fb_reader_u32(&reader);
    head->checksum = fb_reader_u64(&reader);
    if (head->slot != slot)
        return FB_LOG_BLOCK_FOREIGN;
    return end_of(&reader, head->bytes <= FB_LOG_NAMES_BYTES_MAX);
}

/* ---- history ---- */

void fb_log_format_history_set(void *block, uint32_t index,
                               const struct fb_log_history_entry *entry)
{
    FB_ASSERT(index < FB_LOG_HISTORY_ENTRIES_MAX);
    uint8_t *at = (uint8_t *)block + FB_LOG_HISTORY_HEAD_BYTES;
    struct fb_writer writer;
    fb_writer_init(&writer, at + (size_t)index * FB_LOG_HISTORY_ENTRY_BYTES,
                   FB_LOG_HISTORY_ENTRY_BYTES);
    fb_log_format_digest_put(&writer, entry->digest);
    fb_writer_u64(&writer, entry->generation);
}

void fb_log_format_history_put(void *block, const uint8_t *device_id,
                               const struct fb_log_history_head *head)
{
    FB_ASSERT(head->entries <= FB_LOG_HISTORY_ENTRIES_MAX && head->index < head->count);
    struct fb_writer writer;
    begin_body(&writer, block);
    fb_writer_u64(&writer, head->sequence);
    fb_writer_u32(&writer, head->ring_block);
    fb_writer_u32(&writer, head->index);
    fb_writer_u32(&writer, head->count);
    fb_writer_u32(&writer, head->segment);
    fb_writer_u64(&writer, head->incarnation);
    fb_writer_u64(&writer, head->when_ms);
    fb_writer_u16(&writer, head->reason);
    fb_writer_u16(&writer, head->entries);
    fb_writer_u32(&writer, 0);
    fb_writer_u64(&writer, head->issued);
    fb_writer_zeros(&writer, FB_LOG_HISTORY_HEAD_BYTES - writer.at_bytes);
    uint32_t used =
        FB_LOG_HISTORY_HEAD_BYTES + (uint32_t)head->entries * FB_LOG_HISTORY_ENTRY_BYTES;
    FB_ASSERT(fb_writer_ok(&writer));
    fb_log_format_seal(block, HISTORY_MAGIC, device_id, used);
}

enum fb_log_block fb_log_format_history_get(const void *block, const uint8_t *device_id,
                                            uint32_t ring_block, struct fb_log_history_head *head)
{
    struct fb_reader reader;
    enum fb_log_block found = fb_log_format_check(block, HISTORY_MAGIC, device_id, &reader);
    if (found != FB_LOG_BLOCK_GOOD)
        return found;
    head->sequence = fb_reader_u64(&reader);
    head->ring_block = fb_reader_u32(&reader);
    head->index = fb_reader_u32(&reader);
    head->count = fb_reader_u32(&reader);
    head->segment = fb_reader_u32(&reader);
    head->incarnation = fb_reader_u64(&reader);
    head->when_ms = fb_reader_u64(&reader);
    head->reason = fb_reader_u16(&reader);
    head->entries = fb_reader_u16(&reader);
    fb_log_format_zeros(&reader, sizeof(uint32_t));
    head->issued = fb_reader_u64(&reader);
    fb_log_format_zeros(&reader, (uint32_t)(FB_LOG_HISTORY_HEAD_BYTES - reader.at_bytes));
    if (head->ring_block != ring_block)
        return FB_LOG_BLOCK_FOREIGN;
    bool fits = head->entries <= FB_LOG_HISTORY_ENTRIES_MAX && head->index < head->count &&
                head->incarnation != 0 && head->incarnation <= UINT32_MAX;
    fb_reader_skip(&reader, (size_t)head->entries * FB_LOG_HISTORY_ENTRY_BYTES);
    return end_of(&reader, fits);
}

struct fb_log_history_entry fb_log_format_history_entry(const void *block, uint32_t index)
{
    FB_ASSERT(index < FB_LOG_HISTORY_ENTRIES_MAX);
    struct fb_reader reader;
    fb_reader_init(&reader, block, FB_BLOCK_BYTES);
    fb_reader_skip(&reader, FB_LOG_HISTORY_HEAD_BYTES + index * FB_LOG_HISTORY_ENTRY_BYTES);
    struct fb_log_history_entry entry = {.digest = fb_log_format_digest_get(&reader)};
    entry.generation = fb_reader_u64(&reader);
    FB_ASSERT(fb_reader_ok(&reader));
    return entry;
}

/* ---- segment header and trailer ---- */

void fb_log_format_header_put(void *block, const uint8_t *device_id,
                              const struct fb_log_header *header)
{
    FB_ASSERT(header->block < FB_LOG_HEADER_BLOCKS && header->incarnation != 0);
    struct fb_writer writer;
    begin_body(&writer, block);
    fb_writer_u32(&writer, header->segment);
    fb_writer_u32(&writer, header->block);
    fb_writer_u64(&writer, header->incarnation);
    fb_writer_u16(&writer, header->state);
    fb_writer_u16(&writer, header->class_hint);
    fb_writer_u16(&writer, header->shard);
    fb_writer_u16(&writer, header->shards);
    fb_writer_u32(&writer, header->map_version);
    fb_writer_u32(&writer, header->window_blocks);
    fb_writer_u32(&writer, header->boot);
    fb_writer_u32(&writer, header->rescue);
    end_body(&writer, HEADER_MAGIC, device_id, HEADER_BYTES);
}

enum fb_log_block fb_log_format_header_get(const void *block, const uint8_t *device_id,
                                           uint32_t segment, uint32_t at,
                                           struct fb_log_header *header)
{
    struct fb_reader reader;
    enum fb_log_block found = fb_log_format_check(block, HEADER_MAGIC, device_id, &reader);
    if (found != FB_LOG_BLOCK_GOOD)
        return found;
    header->segment = fb_reader_u32(&reader);
    header->block = fb_reader_u32(&reader);
    header->incarnation = fb_reader_u64(&reader);
    header->state = fb_reader_u16(&reader);
    header->class_hint = fb_reader_u16(&reader);
    header->shard = fb_reader_u16(&reader);
    header->shards = fb_reader_u16(&reader);
    header->map_version = fb_reader_u32(&reader);
    header->window_blocks = fb_reader_u32(&reader);
    header->boot = fb_reader_u32(&reader);
    header->rescue = fb_reader_u32(&reader);
    if (header->segment != segment || header->block != at)
        return FB_LOG_BLOCK_FOREIGN;
    bool fits = (header->state == FB_LOG_HEADER_FREE || header->state == FB_LOG_HEADER_OPEN) &&
                header->class_hint < FB_LOG_CLASSES && header->incarnation != 0 &&
                header->incarnation <= UINT32_MAX;
    return end_of(&reader, fits);
}

void fb_log_format_trailer_put(void *block, const struct fb_log_place *place,
                               const struct fb_log_trailer *trailer)
{
    struct fb_writer writer;
    begin_body(&writer, block);
    fb_writer_u32(&writer, place->segment);
    fb_writer_u32(&writer, trailer->summary_first);
    fb_writer_u64(&writer, place->incarnation);
    fb_writer_u32(&writer, trailer->summary_blocks);
    fb_writer_u32(&writer, trailer->records);
    fb_writer_u32(&writer, trailer->end);
    fb_writer_u32(&writer, trailer->tombs);
    fb_writer_u64(&writer, trailer->data_bytes);
    fb_writer_u32(&writer, trailer->durable);
    fb_writer_u32(&writer, 0);
    end_body(&writer, TRAILER_MAGIC, place->device_id, TRAILER_BYTES);
}

/* True if summary, end and frontier lie in the segment, in this order. */
static bool is_trailer_in_bounds(const struct fb_log_place *place,
                                 const struct fb_log_trailer *trailer)
{
    uint32_t last = place->segment_blocks - FB_LOG_TRAILER_BLOCKS;
    if (trailer->end < FB_LOG_HEADER_BLOCKS || trailer->end > last)
        return false;
    if (trailer->durable < FB_LOG_HEADER_BLOCKS || trailer->durable > trailer->end)
        return false;
    if (trailer->summary_blocks == 0)
        return true;
    return trailer->summary_first >= trailer->end && trailer->summary_first <= last &&
           trailer->summary_blocks == last - trailer->summary_first &&
           trailer->durable == trailer->end;
}

enum fb_log_block fb_log_format_trailer_get(const void *block, const struct fb_log_place *place,
                                            struct fb_log_trailer *trailer)
{
    struct fb_reader reader;
    enum fb_log_block found = fb_log_format_check(block, TRAILER_MAGIC, place->device_id, &reader);
    if (found != FB_LOG_BLOCK_GOOD)
        return found;
    uint32_t segment = fb_reader_u32(&reader);
    trailer->summary_first = fb_reader_u32(&reader);
    uint64_t incarnation = fb_reader_u64(&reader);
    trailer->summary_blocks = fb_reader_u32(&reader);
    trailer->records = fb_reader_u32(&reader);
    trailer->end = fb_reader_u32(&reader);
    trailer->tombs = fb_reader_u32(&reader);
    trailer->data_bytes = fb_reader_u64(&reader);
    trailer->durable = fb_reader_u32(&reader);
    fb_log_format_zeros(&reader, sizeof(uint32_t));
    if (segment != place->segment || incarnation != place->incarnation)
        return FB_LOG_BLOCK_FOREIGN;
    return end_of(&reader, is_trailer_in_bounds(place, trailer));
}
