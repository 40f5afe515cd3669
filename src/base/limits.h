/*
 * The named limits of the store. Every queue, loop and buffer is bounded by one of these, or by
 * one in its own module's header. Relations between them are checked when compiling.
 */
#ifndef FB_BASE_LIMITS_H
#define FB_BASE_LIMITS_H

#include <stdint.h>

#define FB_KIB(n) ((uint64_t)(n) << 10)
#define FB_MIB(n) ((uint64_t)(n) << 20)
#define FB_GIB(n) ((uint64_t)(n) << 30)
#define FB_TIB(n) ((uint64_t)(n) << 40)

#define FB_US_NS  ((uint64_t)1000)
#define FB_MS_NS  ((uint64_t)1000 * 1000)
#define FB_SEC_NS ((uint64_t)1000 * 1000 * 1000)

/* ---- keys and values ---- */

#define FB_KEY_BYTES_MIN   1
#define FB_KEY_BYTES_MAX   1024
#define FB_VALUE_BYTES_MIN 1
#define FB_VALUE_BYTES_MAX FB_GIB(1)

/* A namespace is known by a 128-bit id. */
#define FB_NAMESPACE_ID_BYTES 16

/* Of the programs; the formats of disk and wire have numbers of their own. */
#define FB_VERSION_TEXT "0.1.0"

/* A checksum covers one leaf: this many bytes of a value, by value offset. */
#define FB_LEAF_BYTES       FB_KIB(256)
#define FB_VALUE_LEAVES_MAX (FB_VALUE_BYTES_MAX / FB_LEAF_BYTES)

/* ---- memory ---- */

#define FB_PAGE_BYTES       4096
#define FB_EXTENT_BYTES_MIN FB_PAGE_BYTES
#define FB_EXTENT_BYTES_MAX FB_MIB(2)
/* Page classes are the powers of two from FB_EXTENT_BYTES_MIN to FB_EXTENT_BYTES_MAX. */
#define FB_EXTENT_CLASSES 10
#define FB_CACHE_LINE     64

/* ---- disk ---- */

#define FB_BLOCK_BYTES       4096
#define FB_CHUNK_BYTES_MAX   FB_MIB(4)
#define FB_SEGMENT_BYTES_MAX FB_MIB(64)
/* A segment has the capacity divided by this, or FB_SEGMENT_BYTES_MAX if that is less. */
#define FB_SEGMENTS_MIN 64
/* A chunk has a segment divided by this, or FB_CHUNK_BYTES_MAX if that is less. */
#define FB_SEGMENT_CHUNKS_MIN 4
/* Devices of one node. */
#define FB_DEVICES_MAX 8

/* ---- wire ---- */

#define FB_FRAME_BYTES_MAX FB_KIB(256)
#define FB_SESSIONS_MAX    1024

/* ---- time ---- */

/* One turn of a loop does at most this much work before it looks up again. */
#define FB_TURN_BYTES_MAX FB_KIB(256)
#define FB_TURN_NS_MAX    (200 * FB_US_NS)

/* The slowest writer that is waited for; deadlines and grant expiry grow with size by it. */
#define FB_PUT_BYTES_PER_SEC_MIN 50000000
#define FB_PUT_DEADLINE_NS       (30 * FB_SEC_NS)
#define FB_GRANT_EXPIRY_NS       (5 * FB_SEC_NS)
/* How long a node may take to drain after SIGTERM, unless told otherwise. */
#define FB_SHUTDOWN_NS (25 * FB_SEC_NS)

/* ---- text ---- */

#define FB_LOG_LINE_BYTES_MAX 1024

_Static_assert(FB_KEY_BYTES_MAX < FB_BLOCK_BYTES, "a descriptor block holds any key");
_Static_assert(FB_VALUE_BYTES_MAX % FB_LEAF_BYTES == 0, "the longest value is whole leaves");
_Static_assert(FB_LEAF_BYTES % FB_PAGE_BYTES == 0, "a leaf is whole pages");
_Static_assert(FB_EXTENT_BYTES_MAX % FB_LEAF_BYTES == 0, "a large extent is whole leaves");
_Static_assert(FB_CHUNK_BYTES_MAX % FB_LEAF_BYTES == 0, "a large chunk is whole leaves");
_Static_assert(FB_CHUNK_BYTES_MAX % FB_EXTENT_BYTES_MAX == 0, "a large chunk is whole extents");
_Static_assert((uint64_t)FB_EXTENT_BYTES_MIN << (FB_EXTENT_CLASSES - 1) == FB_EXTENT_BYTES_MAX,
               "the page classes are the powers of two between the two");
_Static_assert(FB_SEGMENT_BYTES_MAX % FB_CHUNK_BYTES_MAX == 0, "a segment holds whole chunks");
_Static_assert(FB_SEGMENT_BYTES_MAX / FB_SEGMENT_CHUNKS_MIN >= FB_CHUNK_BYTES_MAX,
               "the longest chunk is allowed in the longest segment");
_Static_assert(FB_BLOCK_BYTES == FB_PAGE_BYTES, "pages go to disk as blocks");
_Static_assert(FB_FRAME_BYTES_MAX > FB_KEY_BYTES_MAX, "any key fits into one frame");
_Static_assert(FB_GRANT_EXPIRY_NS < FB_PUT_DEADLINE_NS, "a dead writer costs a waiter no deadline");

#endif
