/*
 * shard.h - one shard of a node: index, arena, admission, eviction, leases, and the SSD log under
 * it.
 *
 * Pure: `now_ns` and an event in, actions out. The owner (the node, or the simulator) drives it
 * with the calls below and drains three outboxes after every call or batch of calls:
 *   fb_shard_take_event()  what happened to operations;
 *   fb_shard_take_io()     requests for the I/O seam, to be answered by fb_shard_io_done();
 *   fb_shard_take_notice() announcements and withdrawals for a directory (a local stub today).
 *
 * Operations and peers are caller-owned structs. The owner fills the request part, starts it, and
 * may not touch or free it until its CLOSED event. Nothing is allocated after fb_shard_init().
 *
 * Values are lists of parts of at most chunk_bytes; a part has its own index entry, extents, SSD
 * address and root. Bytes of values are never read or written here: clients and the node move them
 * into and out of the arena runs that fb_shard_put_runs() and fb_shard_chunk_runs() name.
 */
#ifndef FB_ENGINE_SHARD_H
#define FB_ENGINE_SHARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/limits.h"
#include "base/list.h"
#include "base/reason.h"
#include "base/region.h"
#include "base/result.h"
#include "engine/attempt.h"
#include "engine/log.h"
#include "engine/wheel.h"
#include "io/io.h"

#define FB_GET_WINDOW 4 /* chunks of one get that may be out at once */

enum fb_persist {
    FB_PERSIST_DEFAULT,
    FB_PERSIST_OFF,
    FB_PERSIST_EVICT,
    FB_PERSIST_BEHIND,
    FB_PERSIST_THROUGH
};

/* A peer: one session of one client process. Owned by the node. */
struct fb_peer {
    struct fb_list queue;   /* puts that wait for space, first in first out */
    struct fb_link turn;    /* place in the round robin of peers that wait */
    struct fb_list ops;     /* every operation that is not CLOSED */
    uint64_t deficit_bytes; /* round robin by bytes: what it had beyond its turns so far */
    uint64_t deficit_round; /* the round in which that was true */
    uint64_t granted_bytes; /* reserved, not yet committed */
    uint64_t quarantine_bytes;
    uint64_t pinned_bytes; /* chunks out to this peer */
    uint32_t waiting;      /* puts in `queue` */
    bool gone;
    bool proven;     /* gone, and nothing of it can touch memory any more */
    uint64_t cookie; /* the node's */
};

enum fb_op_kind {
    FB_OP_PUT,
    FB_OP_GET,
    FB_OP_LOOKUP,         /* a list of digests: readable where, held? */
    FB_OP_HOLD_RELEASE,   /* gives holds of a list of digests back */
    FB_OP_REMOVE,         /* durable before DONE */
    FB_OP_WAIT_PERSISTED, /* one key: FB_OK when durable, FB_NOT_PERSISTED, FB_MISS */
    FB_OP_NAMESPACE,      /* opens (or creates, durably) a namespace */
    FB_OP_EPOCH,          /* bumps a namespace's epoch, durable before DONE */
    FB_OP_DROP_DRAM,      /* one key: persist it, then drop its DRAM copy (doctor, tests) */
    FB_OP_LIST            /* key texts of a namespace, by cursor */
};

enum fb_op_flags {
    FB_PUT_UPSERT = 1 << 0, /* replace a committed value by a later generation */
    FB_GET_VERIFY =
        1 << 1, /* the shard checks the part before the CHUNK event (for ranges sent over a wire) */
    FB_GET_HELD = 1 << 2, /* this read counts as one load of a hold */
    FB_GET_NO_PROMOTE = 1 << 3
};

/* Bits of fb_shard_take_event(). One event can carry several. */
enum fb_op_event {
    FB_EV_GRANT =
        1 << 0, /* PUT: memory is reserved; op->generation set; fill the runs, then commit */
    FB_EV_CHUNK = 1 << 1, /* GET: chunks with state FB_CHUNK_READY wait to be moved and released */
    FB_EV_DONE = 1 << 2,  /* the one result: op->result, op->reason, op->persisted, ... */
    FB_EV_CLOSED = 1 << 3 /* the shard holds no pointer to op any more */
};

enum fb_chunk_state {
    FB_CHUNK_IDLE,
    FB_CHUNK_LOADING,
    FB_CHUNK_READY,
    FB_CHUNK_OUT
};

/* A piece of a value on its way to a reader: one part, pinned. */
struct fb_chunk {
    uint8_t state;
    uint8_t from_ssd; /* its bytes were read from the device for this operation */
    uint8_t verified; /* its root was checked by the shard after its bytes entered DRAM */
    uint32_t part;
    uint64_t value_off;  /* where the part begins in the value */
    uint32_t part_bytes; /* of the whole part; the runs cover it */
    uint32_t want_off;   /* the asked range within the part */
    uint32_t want_bytes;
    uint64_t root;
    uint32_t extent; /* the shard's */
    uint32_t entry;  /* the shard's */
    uint8_t source;  /* the shard's */
};

/* Answer bits per key of a lookup. */
enum fb_found {
    FB_FOUND_READABLE = 1 << 0,
    FB_FOUND_DRAM = 1 << 1,
    FB_FOUND_SSD = 1 << 2,
    FB_FOUND_HELD = 1 << 3
};

struct fb_op {
    /* ---- request, filled by the owner ---- */
    uint8_t kind;    /* enum fb_op_kind */
    uint8_t persist; /* enum fb_persist; PUT */
    uint8_t pin_class;
    uint8_t flags; /* enum fb_op_flags */
    uint16_t ns;   /* handle from FB_OP_NAMESPACE */
    uint16_t key_bytes;
    uint16_t depth;
    struct fb_peer *peer;
    uint64_t epoch;
    uint64_t deadline_ns;    /* absolute */
    const uint8_t *key;      /* valid until CLOSED */
    struct fb_digest digest; /* fb_digest128 of (namespace secret, epoch, key) */
    struct fb_digest group;
    uint64_t value_bytes;            /* PUT: of the value. GET out: of the value */
    uint64_t range_off;              /* GET: first byte */
    uint64_t range_bytes;            /* GET: at most so many; UINT64_MAX = to the end */
    const struct fb_digest *digests; /* LOOKUP, HOLD_RELEASE */
    uint8_t *found;                  /* LOOKUP: n answers, enum fb_found */
    uint32_t n;
    uint32_t hold_ms; /* LOOKUP: 0 = no hold, only look (is_exist gives its short lease itself) */
    uint32_t
        hold_loads; /* LOOKUP: expected reads of each key, 1..255; RELEASE: how many to give back */
    const void *ns_fields; /* NAMESPACE: the typed fields, canonical bytes (docs/format.md) */
    uint32_t ns_fields_bytes;
    uint8_t ns_secret[16];        /* NAMESPACE in: random, used if it is created; out: the secret */
    uint64_t ns_quota_dram_bytes; /* NAMESPACE, creation: 0 = none */
    uint64_t ns_quota_ssd_bytes;
    uint64_t list_cursor; /* LIST: in and out, 0 = from the start; out UINT64_MAX = end */
    uint8_t *list_out;    /* LIST: (u16 length, key) repeated */
    uint32_t list_bytes;  /* LIST: in: room, out: used */

    /* ---- answer ---- */
    int result;        /* 0, FB_EXISTS, or negative */
    uint8_t reason;    /* enum fb_reason: why it missed, was refused or dropped */
    uint8_t persisted; /* STORED and EXISTS: durable on SSD at the time of the answer */
    uint8_t tiers;     /* GET: bit 0 a part came from DRAM, bit 1 from SSD */
    uint64_t generation;
    uint8_t ns_id[16]; /* NAMESPACE */
    struct fb_chunk chunk[FB_GET_WINDOW];

    /* ---- the shard's ---- */
    struct fb_link link;      /* on one of: peer queue, waiters of a key, parked, other queues */
    struct fb_link peer_link; /* on peer->ops */
    struct fb_link event_link;
    struct fb_timer timer;
    struct fb_attempt attempt; /* PUT */
    uint8_t events;
    uint8_t state;
    uint8_t marks;
    uint8_t retries;
    uint32_t claim;  /* PUT: the key's claim */
    uint32_t entry;  /* first index entry of the value being written or read */
    uint32_t cursor; /* entry of the next part */
    uint32_t next_part;
    uint32_t parts;
    uint64_t entry_generation;
    uint64_t next_off; /* GET: where the next part begins in the value */
    uint64_t progress_ns;

    uint64_t cookie; /* the owner's */
};

struct fb_shard_config {
    uint64_t pool_bytes;      /* arena; multiple of 2 MiB */
    uint32_t index_entries;   /* parts known at most; <= 96 bytes each all in */
    uint32_t devices;         /* 0: tier OFF; 1 today */
    struct fb_log_config log; /* of device 0 */
    uint8_t persist;          /* enum fb_persist, the default of the node */
    uint32_t drain_ms; /* dirty limit: what the device can drain in this time (default 25,000) */
    uint64_t device_write_bytes_per_s; /* estimate to begin with; corrected by measurement */
    uint32_t watermark_pct;            /* EVICT: cleaner starts above this share of DRAM in use */
    uint32_t grant_stall_ms; /* expiry of a grant: 5,000 + bytes / 50 MB/s without progress */
    uint32_t lease_ms;       /* of a plain lookup */
    uint32_t hold_ms_max;
    uint32_t peers_max, history_entries, namespaces_max;
    /* Further limits; 0 takes the default. */
    uint32_t puts_open_max;    /* keys that are being put at once; beyond it a put is BUSY */
    uint32_t key_granules;     /* 64 bytes each, for key texts of values that are in DRAM only */
    uint32_t write_items;      /* parts and tombstones on their way to the device */
    uint32_t read_slots;       /* parts on their way from the device, or being checked */
    uint32_t peer_waiting_max; /* puts of one peer that wait for space; beyond it BUSY */
};

/* What the node must tell a directory; today counted and dropped. Withdraw comes before the drop.
 */
enum fb_notice_kind {
    FB_NOTICE_ANNOUNCE,
    FB_NOTICE_WITHDRAW,
    FB_NOTICE_LAST_COPY
};
struct fb_notice {
    uint8_t kind;
    uint8_t tiers;
    struct fb_digest digest;
    uint64_t generation, sequence;
};

struct fb_shard;

/* Bytes of plain memory that a shard takes, at any address, for a config that was checked. The pool
 * is not among them: the shard never touches it. */
size_t fb_shard_footprint(const struct fb_shard_config *config);
/* Bytes of FB_IO_META memory that it takes, from config->log.meta_base on; 0 without a device. */
size_t fb_shard_meta_footprint(const struct fb_shard_config *config);
/* Fills what was left 0 with defaults, checks the rest; a reason in `why` on -FB_BAD_ARGUMENT. */
int fb_shard_config_check(struct fb_shard_config *config, char *why, size_t why_bytes);
/* Carves a shard from a region of at least fb_shard_footprint() bytes; `meta` is the address of
 * config->log.meta_base. Both stay the caller's and outlive the shard, which has no end: it is just
 * not called any more. No I/O yet; fb_shard_start() comes next. */
struct fb_shard *fb_shard_init(const struct fb_shard_config *config, struct fb_region *region,
                               void *meta);

/* Begins: recovery of the device if there is one. Operations started before it ends are parked and
 * go on afterwards, up to their deadlines. */
void fb_shard_start(struct fb_shard *shard, uint64_t now_ns, uint64_t wall_ms, bool format);
/* 0 recovering, 1 serving, negative: could not start (fb_shard_start_error says why). */
int fb_shard_ready(const struct fb_shard *shard);
/* Why it could not start, in one line that names value, limit and cure; "" if it could. */
const char *fb_shard_start_error(const struct fb_shard *shard);

/* Only the first `bytes` of the pool may be granted (pools are faulted in behind). Grows only. */
void fb_shard_pool_faulted(struct fb_shard *shard, uint64_t bytes);
/* No more of the pool will come: what was faulted is all there is. Until then, or until all of it
 * is faulted, nothing that is in DRAM only is evicted for want of memory. */
void fb_shard_pool_whole(struct fb_shard *shard);

/* Makes a peer, whose cookie is kept. From here to fb_shard_peer_idle() the struct belongs to the
 * shard. */
void fb_shard_peer_open(struct fb_shard *shard, struct fb_peer *peer);
/* The peer is gone. `proven`: it can touch no memory any more, so its memory is free at once; else
 * it stays in quarantine until this is called again with proven. All its operations end and close.
 */
void fb_shard_peer_gone(struct fb_shard *shard, uint64_t now_ns, struct fb_peer *peer, bool proven);
/* True when no operation and no memory of the peer is left: the struct may be reused. */
bool fb_shard_peer_idle(const struct fb_peer *peer);

/* Starts any kind of operation. Bad arguments end it at once (an event, like every result). */
void fb_shard_start_op(struct fb_shard *shard, uint64_t now_ns, struct fb_op *op);
/* The client gave up (its deadline passed): ends as FB_DEADLINE where that is still possible. */
void fb_shard_cancel(struct fb_shard *shard, uint64_t now_ns, struct fb_op *op);

/* PUT after GRANT: arena runs that hold value bytes [off, ...); returns how many runs were written
 * to `out` (0 at the end) and advances *off. Runs of one part do not run into the next. */
size_t fb_shard_put_runs(const struct fb_shard *shard, const struct fb_op *op, uint64_t *off,
                         struct fb_io_vec *out, size_t max);
/* PUT: bytes were moved; puts the expiry of the grant off. */
void fb_shard_put_progress(struct fb_shard *shard, uint64_t now_ns, struct fb_op *op);
/* PUT: all bytes are in place; roots[parts], each computed by fb_root_* over the identity.
 * `attempt` is op->generation as granted: a commit of another attempt is answered and never
 * installed. */
void fb_shard_put_commit(struct fb_shard *shard, uint64_t now_ns, struct fb_op *op,
                         uint64_t generation, const uint64_t *roots, uint32_t n);
/* PUT after a DONE that was not asked for (expiry, remove, epoch): the peer will not touch the
 * memory any more. Leads to CLOSED. Also ends a granted put that the client gives up (DONE
 * FB_DEADLINE). A commit that comes after such a DONE says the same: it releases, and installs
 * nothing. */
void fb_shard_put_release(struct fb_shard *shard, uint64_t now_ns, struct fb_op *op);
/* The same, if the bytes that came are not those of the client's checksums: a put that has no
 * result yet ends as FB_BAD_CHECKSUM. */
void fb_shard_put_mismatch(struct fb_shard *shard, uint64_t now_ns, struct fb_op *op);

/* GET after CHUNK: runs of a ready chunk; marks it OUT. */
size_t fb_shard_chunk_runs(struct fb_shard *shard, const struct fb_op *op, unsigned chunk,
                           uint32_t *off, struct fb_io_vec *out, size_t max);
/* GET: the chunk has been moved (`bad`: the reader found another root: counted, the record is
 * dropped, the operation ends as FB_MISS with BAD_CHECKSUM). */
void fb_shard_chunk_release(struct fb_shard *shard, uint64_t now_ns, struct fb_op *op,
                            unsigned chunk, bool bad);

/* Explains a key now, from index and bounded history. */
struct fb_explain {
    bool present;
    uint8_t tiers;  /* bit 0 DRAM, bit 1 SSD, bit 2 dirty, bit 3 being written, bit 4 leased */
    uint8_t reason; /* when absent: enum fb_reason; FB_REASON_NO_RECORD: nothing since since_ms */
    uint64_t value_bytes, generation;
    uint64_t when_ms;  /* wall time of the reason, 0 unknown */
    uint64_t since_ms; /* how far the history reaches back */
    struct fb_log_addr addr;
};
/* Fills *out for one key. Cost: a look at index and histories. */
void fb_shard_explain(const struct fb_shard *shard, uint16_t ns, const struct fb_digest *digest,
                      struct fb_explain *out);
/* Namespace by handle: secret, epoch, id; false if the handle is unknown. */
bool fb_shard_namespace(const struct fb_shard *shard, uint16_t ns, uint8_t id[16],
                        uint8_t secret[16], uint64_t *epoch);

/* Drives everything that waits for time: deadlines, expiries, leases, sweeps, the log's timers.
 * `wall_ms` is only written down, never compared. To be called at fb_shard_next_ns(), or more
 * often. */
void fb_shard_tick(struct fb_shard *shard, uint64_t now_ns, uint64_t wall_ms);
/* When to call fb_shard_tick() next: a time that has come means at once (a turn ended by its
 * limit), UINT64_MAX never. Changes with every call. */
uint64_t fb_shard_next_ns(const struct fb_shard *shard);

/* The next operation to which something happened, with enum fb_op_event bits in *events; NULL if
 * there is none. After FB_EV_CLOSED the operation is the owner's again. */
struct fb_op *fb_shard_take_event(struct fb_shard *shard, unsigned *events);
/* The next request for the I/O seam, or NULL if none may go now. It is the shard's, lent until
 * fb_shard_io_done(). */
struct fb_io_req *fb_shard_take_io(struct fb_shard *shard, uint64_t now_ns);
/* A request is finished; each exactly once, in any order. */
void fb_shard_io_done(struct fb_shard *shard, uint64_t now_ns, struct fb_io_req *req);
/* The next notice, in order; false if there is none. Who does not take them in time finds a gap in
 * `sequence`. */
bool fb_shard_take_notice(struct fb_shard *shard, struct fb_notice *out);

/* SIGTERM: takes no new puts (FB_SHUTTING_DOWN), persists what is dirty until drained or the owner
 * stops. */
void fb_shard_drain(struct fb_shard *shard, uint64_t now_ns);
/* True when nothing is dirty any more and the log is at rest; behind a fence, when no put is under
 * way. A tier that is FULL is never drained: the owner stops it. */
bool fb_shard_drained(const struct fb_shard *shard);
/* The node's view of the file system's free space: below the floor no new file space is taken. */
void fb_shard_set_floor(struct fb_shard *shard, uint64_t now_ns, bool below_floor);
/* State of the SSD tier, THROTTLED included. src/engine/tier.c says what each means. */
enum fb_tier_state fb_shard_tier(const struct fb_shard *shard);
/* Longest part of a value: values are cut into parts of this many bytes, the last may be shorter.
 */
uint32_t fb_shard_chunk_bytes(const struct fb_shard *shard);
/* Largest value a put may have; above it TOO_BIG. */
uint64_t fb_shard_value_bytes_max(const struct fb_shard *shard);
/* What can make that limit: the smallest of these. */
enum fb_value_limit {
    FB_VALUE_LIMIT_FORMAT, /* 1 GiB: no value is longer anywhere */
    FB_VALUE_LIMIT_POOL,   /* the pool without what reads from SSD need */
    FB_VALUE_LIMIT_DEVICE, /* a quarter of the device's capacity */
    FB_VALUE_LIMIT_INDEX   /* half of the index's entries, one a part */
};
/* What makes the limit of this shard. */
enum fb_value_limit fb_shard_value_limit(const struct fb_shard *shard);
/* Largest value that the pool alone would allow, at most 1 GiB. */
uint64_t fb_shard_value_bytes_of_pool(const struct fb_shard *shard);

/* Exact families (R11): gets = get_hits + sum(get_misses); puts = sum(put_results). */
struct fb_shard_stats {
    uint64_t gets, get_hits, get_hits_dram, get_hits_ssd, get_bytes;
    uint64_t get_misses[FB_REASON_COUNT];
    uint64_t lookups, lookup_hits, lookup_misses[FB_REASON_COUNT];
    uint64_t puts, put_bytes, put_results[FB_RESULT_COUNT]; /* by fb_result_index() */
    uint64_t put_waited_key;   /* met an unfinished put of the same key */
    uint64_t put_waited_space; /* did not get space at once */
    uint64_t drops[FB_REASON_COUNT];
    uint64_t removes, epoch_bumps, grants_expired, quarantined, late_commits, checksum_failures;
    uint64_t notices_announced, notices_withdrawn;
    /* now */
    uint64_t pool_bytes, free_bytes, clean_bytes, dirty_bytes, reserved_bytes, quarantine_bytes,
        pinned_bytes, staging_bytes, leased_bytes, dirty_limit_bytes;
    uint64_t entries, entries_max, keys, keys_dram, keys_ssd, waiting_puts, open_ops, namespaces;
    uint64_t device_write_bytes_per_s;
};
/* Fills all figures; cheap. */
void fb_shard_stats(const struct fb_shard *shard, struct fb_shard_stats *out);
/* The same for the log; all 0 without a device. */
void fb_shard_log_stats(const struct fb_shard *shard, struct fb_log_stats *out);
/* Checks every invariant of the shard's memory (accounts add up, links whole, pins owned): for
 * tests and the simulator. Asserts on the first breach. Cost: all entries. */
void fb_shard_audit(const struct fb_shard *shard);

#endif
