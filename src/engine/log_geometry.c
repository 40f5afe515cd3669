/*
 * Where things lie on a device, from its capacity alone. See docs/format.md, section 1.
 */
#include "base/assert.h"
#include "base/bits.h"
#include "base/result.h"
#include "engine/log_format.h"

#define SEGMENT_BYTES_MIN   FB_KIB(256)
#define SEGMENTS_MAX        (1u << 20)
#define HISTORY_SHARE       1024 /* of the capacity */
#define HISTORY_RECORDS_MIN 8    /* of the longest kind */
#define HISTORY_BYTES_MAX   FB_MIB(8)

uint32_t fb_log_history_record_blocks(uint64_t segment_bytes)
{
    uint64_t entries = segment_bytes / FB_BLOCK_BYTES;
    return (uint32_t)fb_div_up(entries, FB_LOG_HISTORY_ENTRIES_MAX);
}

int fb_log_geometry(uint64_t capacity_bytes, struct fb_log_geometry *out)
{
    _Static_assert(FB_LOG_CAPACITY_BYTES_MIN == FB_SEGMENTS_MIN * SEGMENT_BYTES_MIN, "the least");
    _Static_assert(FB_LOG_CAPACITY_BYTES_MAX == SEGMENTS_MAX * FB_SEGMENT_BYTES_MAX, "the most");
    if (capacity_bytes < FB_LOG_CAPACITY_BYTES_MIN || capacity_bytes > FB_LOG_CAPACITY_BYTES_MAX)
        return FB_BAD_ARGUMENT;
    struct fb_log_geometry geometry = {0};
    uint64_t segment = fb_min_u64(FB_SEGMENT_BYTES_MAX,
                                  UINT64_C(1) << fb_log2_floor(capacity_bytes / FB_SEGMENTS_MIN));
    FB_ASSERT(segment >= SEGMENT_BYTES_MIN && fb_is_power_of_two(segment));
    geometry.segment_bytes = segment;
    geometry.chunk_bytes =
        (uint32_t)fb_min_u64(FB_CHUNK_BYTES_MAX, segment / FB_SEGMENT_CHUNKS_MIN);
    uint64_t history = fb_align_down(capacity_bytes / HISTORY_SHARE, FB_BLOCK_BYTES);
    uint64_t least =
        (uint64_t)HISTORY_RECORDS_MIN * fb_log_history_record_blocks(segment) * FB_BLOCK_BYTES;
    geometry.names_off = fb_log_format_super_off(FB_LOG_SUPER_COPIES);
    geometry.names_bytes = (uint64_t)FB_LOG_NAMES_SLOTS * FB_LOG_NAMES_SLOT_BYTES;
    geometry.history_off = geometry.names_off + geometry.names_bytes;
    geometry.history_bytes = fb_min_u64(fb_max_u64(history, least), HISTORY_BYTES_MAX);
    FB_ASSERT(geometry.history_bytes >= least);
    geometry.segments_off = geometry.history_off + geometry.history_bytes;
    uint64_t segments = (capacity_bytes - geometry.segments_off) / segment;
    FB_ASSERT(segments > 0 && segments <= SEGMENTS_MAX);
    geometry.segments = (uint32_t)segments;
    *out = geometry;
    return 0;
}
