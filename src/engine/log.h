/*
 * log.h - the SSD log of one shard on one device: segments, batches, flushes, tombstones, reclaim
 * and recovery. docs/format.md has the bytes.
 *
 * Pure: it never reads a clock and never touches a device. Requests go to an outbox that the owner
 * hands to the I/O seam; finished requests come back through fb_log_io_done(). Everything that the
 * owner must know arrives through struct fb_log_owner, always from inside one of the calls below.
 *
 * Invariants:
 *  - a record is reported durable only after a flush that was submitted after its writes completed;
 *  - a failed flush or write fails every item in it, and never turns into success by retry;
 *  - the history record of a reclaim is durable before the owner's index forgets, and the segment's
 *    FREE header is durable before the segment is used again;
 *  - a segment found open at start is sealed, never appended to;
 *  - no segment is reused while a device read of it is in flight.
 */
#ifndef FB_ENGINE_LOG_H
#define FB_ENGINE_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/limits.h"
#include "base/list.h"
#include "base/region.h"
#include "io/io.h"

#define FB_LOG_LEAVES_MAX (FB_CHUNK_BYTES_MAX / FB_LEAF_BYTES) /* leaves of one part */
#define FB_LOG_VEC_MAX    1024 /* extents of one part: a chunk in 4 KiB pages */
#define FB_LOG_CLASSES    2    /* open segments: 0 prefix heads and hot, 1 tails and cold */
#define FB_LOG_WALKERS    16   /* segments that recovery reads at once */

/* Where a part lies. Packed into 8 bytes in the index; the incarnation is kept beside it. */
struct fb_log_addr {
    uint32_t incarnation; /* of the segment; 0 = nowhere */
    uint32_t segment;
    uint32_t block; /* 4 KiB block within the segment where the value's bytes begin */
    uint8_t device;
};

enum fb_log_kind {
    FB_LOG_VALUE = 1, /* one part of a value */
    FB_LOG_TOMB = 2   /* kills all generations of a digest up to `generation` */
};

/*
 * What a record says, on disk and in memory. `key` points at bytes owned by whoever filled it.
 *
 * A record that the log fills for recovered() and judge() may come from a segment's summary, which
 * has neither key text nor leaves: key is then NULL, key_bytes and leaf_count are 0. In copy() and
 * in a scan both are always there. What `key` points at is valid during the callback only.
 */
struct fb_log_record {
    uint8_t kind;
    uint8_t class_hint; /* which open segment, < FB_LOG_CLASSES */
    uint8_t pin_class;  /* TOMB: why, enum fb_reason */
    bool is_unproven;   /* TOMB, in recovered(): there may be one witness only, write it again */
    uint16_t key_bytes;
    uint16_t depth;
    uint32_t part; /* 0 .. parts-1 */
    uint32_t parts;
    uint32_t part_bytes;  /* of this part, not rounded */
    uint64_t value_bytes; /* of the whole value */
    uint8_t namespace_id[16];
    uint64_t epoch;
    struct fb_digest digest; /* of (namespace secret, epoch, key) */
    struct fb_digest group;  /* all zero: none */
    uint64_t origin;         /* node id that made the generation */
    uint64_t generation;     /* (boot counter << 40) | counter */
    uint64_t root;
    uint32_t leaf_count;
    uint64_t leaves[FB_LOG_LEAVES_MAX];
    const uint8_t *key;
};

/*
 * A record on its way to the device. Owned by the shard, lent to the log from fb_log_append() until
 * owner->durable() or a successful fb_log_cancel().
 */
struct fb_log_item {
    struct fb_link link;
    struct fb_log_record record;
    struct fb_io_vec vec[FB_LOG_VEC_MAX]; /* VALUE: arena runs, whole pages, covering part_bytes */
    uint16_t vec_count;
    bool urgent;             /* somebody waits: flush without lingering */
    struct fb_log_addr addr; /* out */
    uint64_t cookie;         /* the shard's */
};

/* A read of one part into arena pages. Lent from fb_log_read() until owner->read_done(). */
struct fb_log_read {
    struct fb_link link;
    struct fb_io_req req; /* the log's */
    struct fb_log_addr addr;
    uint32_t bytes;        /* whole pages covering the part (or a page-aligned piece of it) */
    uint32_t block_offset; /* first 4 KiB block within the part; 0 for a whole part */
    struct fb_io_vec vec[FB_LOG_VEC_MAX];
    uint16_t vec_count;
    uint8_t retries; /* the log's */
    uint64_t cookie; /* the shard's */
};

/* What the shard answers for a record of a segment that is about to be given up. */
enum fb_log_verdict {
    FB_LOG_DEAD, /* not what the index points at: forget it silently */
    FB_LOG_DROP, /* live, and given up: goes into the history */
    FB_LOG_KEEP, /* live, and to be copied forward: somebody was promised that it stays */
    FB_LOG_WISH  /* live, and worth copying forward if little else is; else dropped */
};

/* State of the tier as the log knows it (DESIGN section 6). */
enum fb_tier_state {
    FB_TIER_OFF,
    FB_TIER_RECOVERING,
    FB_TIER_ON,
    FB_TIER_THROTTLED, /* writes run behind: dirty limit reached */
    FB_TIER_FULL,      /* ENOSPC or the floor of free space: heals when space is back */
    FB_TIER_FENCED     /* too many errors: the device is no longer used */
};

/*
 * Calls into the shard. `ctx` is the shard's. None may call back into the log except by
 * fb_log_append(), fb_log_read(), fb_log_cancel(), fb_log_copied() and fb_log_garbage(), which then
 * only take note; what follows from it happens before the outer call returns.
 */
struct fb_log_owner {
    void *ctx;
    /* item is durable (result 0, item->addr set) or failed (FB_IO, FB_SHUTTING_DOWN). The item is
     * the shard's again. */
    void (*durable)(void *ctx, struct fb_log_item *item, int result);
    /* 0: read->bytes arrived and must still be checked against the root. FB_MISS: the segment has
     * another incarnation. FB_IO: the device failed. */
    void (*read_done)(void *ctx, struct fb_log_read *read, int result);
    /* Recovery found a record. Arrives in any order of generations, tombstones among values. One
     * that lies beyond the flushed frontier is reported only after its bytes were read and hold.
     * The same record may be reported from two places (a copy forward that a crash cut short). */
    void (*recovered)(void *ctx, const struct fb_log_record *record,
                      const struct fb_log_addr *addr);
    /* Recovery is over: everything that is on the device has been reported. result 0 or FB_IO. */
    void (*recovery_done)(void *ctx, int result);
    /* Reclaim, step 1: what of this value? (Tombstones are the log's own business.) May be asked
     * again after a crash or a reclaim that was given up. After DROP the owner gives no new lease
     * on this address. A KEEP beyond the budget for copying, or whose copy failed, is dropped like
     * a DROP. */
    enum fb_log_verdict (*judge)(void *ctx, const struct fb_log_record *record,
                                 const struct fb_log_addr *addr);
    /* Reclaim, copy forward: take over copying this live record (read, check, append as a new
     * item); answer through fb_log_copied() when its new place is durable or it has become dead. */
    void (*copy)(void *ctx, const struct fb_log_record *record, const struct fb_log_addr *addr);
    /* Reclaim, step 2: the history record is durable; drop from the index whatever still points
     * into this segment and incarnation (called once per dropped record). */
    void (*dropped)(void *ctx, const struct fb_digest *digest, uint64_t generation,
                    const struct fb_log_addr *addr);
    /* State or free space changed: waiting items may move, dirty limits may change. */
    void (*changed)(void *ctx);
};

/*
 * The requests of a log carry this in the upper half of their cookie, so that an owner with
 * requests of its own can tell which to hand back by fb_log_io_done().
 */
#define FB_LOG_COOKIE UINT64_C(0x46424c4700000000)

/* True if a finished request is one of a log's, to be handed back by fb_log_io_done(). */
static inline bool fb_log_is_mine(const struct fb_io_req *req)
{
    return (req->cookie & ~(uint64_t)UINT32_MAX) == FB_LOG_COOKIE;
}

/* How a log is made. Sizes are multiples of 4096. */
struct fb_log_config {
    uint64_t capacity_bytes; /* cap of the file, superblock and history included */
    uint64_t meta_base;      /* byte offset of this log's buffers in the FB_IO_META region */
    uint8_t device;
    uint16_t shard;
    uint16_t shards;
    uint64_t node_id;
    uint32_t io_errors_to_fence;
    uint32_t read_depth;  /* reads in flight at most */
    uint32_t write_depth; /* write requests in flight at most */
    uint64_t linger_ns;   /* how long an unurgent batch may wait for company */
    uint32_t batch_bytes; /* data of one batch at most, >= one chunk */
    uint32_t tombs_max;
    uint32_t reserve_segments; /* kept free for copying forward and tombstones; at least 1 */
    /* A run of the arena, at least geometry.chunk_bytes long, that nobody else touches until
     * recovery_done(): recovery reads into it the values that lie beyond the flushed frontier. More
     * chunks make that faster, up to FB_LOG_WALKERS. */
    uint64_t stage_base;
    uint32_t stage_bytes;
    /* Random bytes for the id of a device that is formatted; all zero: the id is derived from the
     * other fields and the time, which is good enough only for tests. */
    uint64_t device_seed[2];
};

struct fb_log;

/* Geometry that follows from a capacity; the same function is used by fsck and the documents. */
struct fb_log_geometry {
    uint64_t segment_bytes; /* min(64 MiB, capacity / 64), a power-of-two multiple of 4096 */
    uint32_t chunk_bytes;   /* min(4 MiB, segment / 4) */
    uint32_t segments;
    uint64_t history_off, history_bytes; /* the ring of reclaim records */
    uint64_t names_off, names_bytes;     /* two slots of the namespace table */
    uint64_t segments_off;
};

/* What a capacity may be. */
#define FB_LOG_CAPACITY_BYTES_MIN FB_MIB(16)
#define FB_LOG_CAPACITY_BYTES_MAX FB_TIB(64)

/* Computes the geometry; FB_BAD_ARGUMENT if the capacity is below the least (64 segments of 256
 * KiB). */
int fb_log_geometry(uint64_t capacity_bytes, struct fb_log_geometry *out);
/* Bytes of plain memory that fb_log_init() will take. */
size_t fb_log_footprint(const struct fb_log_config *config);
/* Bytes of FB_IO_META memory that fb_log_init() will take. */
size_t fb_log_meta_footprint(const struct fb_log_config *config);
/* Carves a log from `region`; `meta` is the address of config->meta_base. Starts in RECOVERING; no
 * I/O yet. */
struct fb_log *fb_log_init(const struct fb_log_config *config, struct fb_region *region, void *meta,
                           const struct fb_log_owner *owner);

/*
 * Begins recovery, or formatting of an empty device. Ends in owner->recovery_done(). Before that,
 * only fb_log_io_done(), fb_log_take_io(), fb_log_tick(), fb_log_next_ns(), fb_log_stats() and
 * fb_log_state() may be called. The boot counter is raised and durable before recovery_done.
 *
 * `format` allows to overwrite what could not be used otherwise: foreign content, another version,
 * another node's or another shape's log, a damaged superblock. A log of this node that can be used
 * is used, and never formatted: who wants it empty deletes the file.
 */
void fb_log_start(struct fb_log *log, uint64_t now_ns, bool format);
/* Valid after recovery_done: this boot's number, for generations. */
uint32_t fb_log_boot(const struct fb_log *log);
/* Why start failed (other version, other device id, damaged superblock...): one line, or "". */
const char *fb_log_start_error(const struct fb_log *log);

/*
 * Queues a record. Always accepted (the owner bounds its items). Values of one class are placed in
 * the order given. Tombstones, and copies that owner->copy asked for, go before values that wait
 * for space: so, before it appends a tombstone, the owner cancels every queued item that the
 * tombstone kills. (One that cannot be cancelled is placed already, and the tombstone reaches it.)
 */
void fb_log_append(struct fb_log *log, uint64_t now_ns, struct fb_log_item *item);
/* Takes back an item that has not been placed yet; false if its bytes are already on their way. */
bool fb_log_cancel(struct fb_log *log, struct fb_log_item *item);
/* Reads (part of) a record. Reads go before writes. */
void fb_log_read(struct fb_log *log, uint64_t now_ns, struct fb_log_read *read);
/* Answer to owner->copy; from a callback too. An answer that nobody waits for is ignored. */
void fb_log_copied(struct fb_log *log, uint64_t now_ns, const struct fb_log_addr *from);
/* Space of one record became garbage (removed, replaced): accounting for the choice of victims. */
void fb_log_garbage(struct fb_log *log, const struct fb_log_addr *addr, uint32_t part_bytes);

/* Gives up one segment, the oldest that can be, even if space is not short: the owner's index is
 * full. Nothing happens if a reclaim is under way or no segment is closed. */
void fb_log_reclaim_one(struct fb_log *log, uint64_t now_ns);

/* True while the device may hold records that recovery could not read. They are being given up;
 * until then the owner counts every key as one that may be on the device. */
bool fb_log_is_uncertain(const struct fb_log *log);

/* True while a segment may hold records of which copies were made: who forgets such a copy has to
 * kill it, or the next start finds what it was made of. */
bool fb_log_is_stale(const struct fb_log *log);

/* True while the segment of an address is being given up; false again if that was called off. */
bool fb_log_is_giving_up(const struct fb_log *log, const struct fb_log_addr *addr);

/*
 * A walk over the records of one segment with their key texts, for listing keys. Lent from
 * fb_log_scan() until done(); one at a time. Cost: a read of each descriptor of the segment.
 * record() is called for each durable value, dead ones too: the owner asks its index. If it returns
 * false the walk ends, and `ordinal` is that record's, so that the next scan begins with it.
 * Afterwards `segment` and `ordinal` say where to go on; segment UINT32_MAX is the end.
 */
struct fb_log_scan {
    struct fb_link link;
    uint32_t segment; /* in and out; 0 to begin with */
    uint32_t ordinal; /* in and out: first record within the segment */
    bool (*record)(void *ctx, const struct fb_log_record *record, const struct fb_log_addr *addr);
    void (*done)(void *ctx, struct fb_log_scan *scan, int result); /* 0 or FB_IO */
    void *ctx;
};
/* Begins a scan; it ends in scan->done(). */
void fb_log_scan(struct fb_log *log, uint64_t now_ns, struct fb_log_scan *scan);

/* The namespace table, whole: replaced at once, durable before owner's callback. One at a time. */
struct fb_log_names {
    struct fb_link link;
    const void *bytes; /* <= FB_LOG_NAMES_BYTES_MAX */
    uint32_t len;
    void (*done)(void *ctx, struct fb_log_names *names, int result);
    void *ctx;
};
#define FB_LOG_NAMES_BYTES_MAX (256u * 1024)
/* Replaces the table; ends in names->done(): 0 when both slots are durable, else FB_IO. */
void fb_log_write_names(struct fb_log *log, uint64_t now_ns, struct fb_log_names *names);
/* After recovery_done: the table found on the device; *len 0 if none. */
const void *fb_log_names(const struct fb_log *log, uint32_t *len);

/* History of what was given up: newest matching record, or false. `since_ms` = how far back it
 * reaches (wall ms). */
bool fb_log_history(const struct fb_log *log, const struct fb_digest *digest, uint64_t *generation,
                    uint64_t *when_ms, uint64_t *since_ms);

/* Drives timers: lingering batches, retries after ENOSPC, reclaim. `wall_ms` is only written into
 * history records. */
void fb_log_tick(struct fb_log *log, uint64_t now_ns, uint64_t wall_ms);
/* When tick wants to be called next; UINT64_MAX: not. */
uint64_t fb_log_next_ns(const struct fb_log *log);
/* Next request for the I/O seam, in the order of the device's scheduler; NULL if none may go now.
 */
struct fb_io_req *fb_log_take_io(struct fb_log *log, uint64_t now_ns);
/* Takes back a finished request of this log. Calls the owner for whatever that completes. */
void fb_log_io_done(struct fb_log *log, uint64_t now_ns, struct fb_io_req *req);

/* The state of the tier as the log knows it. */
enum fb_tier_state fb_log_state(const struct fb_log *log);
/* Free-space floor seen by the node (statvfs): below it no new file space is taken. */
void fb_log_set_floor(struct fb_log *log, uint64_t now_ns, bool below_floor);
/* Stops taking items; flushes what is placed; `durable` is called for the rest with
 * FB_SHUTTING_DOWN. */
void fb_log_drain(struct fb_log *log, uint64_t now_ns);
/* True if nothing is placed, queued or in flight. */
bool fb_log_idle(const struct fb_log *log);

/* Figures for metrics; plain counters, monotonic unless named *_now. */
struct fb_log_stats {
    uint64_t bytes_written, bytes_read, data_bytes_written, flushes, batches;
    uint64_t items_durable, items_failed, reads, read_errors, short_reads, write_errors,
        flush_errors;
    uint64_t stale_incarnation, torn_tail, rot_descriptors, segments_sealed, segments_reclaimed,
        segments_retired;
    uint64_t records_dropped, records_copied, tombs_written, tombs_dropped, tombs_now;
    uint64_t segments_free_now, live_bytes_now, used_bytes_now, file_bytes_now;
    uint64_t reads_in_flight_max, recovered_records, recovery_bytes_read;
    uint64_t no_space, segments_lost, reclaims_given_up, flush_failed_items;
    uint64_t history_since_ms; /* wall clock: what was given up earlier may be forgotten; 0: nothing
                                  is */
};
/* Copies the figures out. */
void fb_log_stats(const struct fb_log *log, struct fb_log_stats *out);

#endif
