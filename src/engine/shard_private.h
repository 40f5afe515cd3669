/*
 * shard_private.h - what the files of one shard share: its struct, and the calls between its
 * modules. Nobody outside of src/engine and its unit tests includes this.
 *
 * How the modules hang together (README.md has the picture):
 *   shard.c    start, dispatch, the pump, I/O and events in and out
 *   value.c    entries as values: pages, lists, accounts, dropping, ghosts
 *   put.c      puts through the table of attempts; claim.c: who puts which key now
 *   admit.c    who gets space next; room.c: making room
 *   get.c      reads; lookup.c: lookups, leases and holds
 *   remove.c   removes, and the kills that must be durable before something is acknowledged
 *   clean.c    dirty parts to the device; reclaim.c: judge, copy forward, dropped
 *   space.c    namespaces, epochs, quotas; recover.c: records to index
 *   tier.c     state of the tier, dirty limit; stats.c, audit.c
 *
 * One rule for all of them: a call never runs another operation's next step by itself. It changes
 * state and leaves the rest to the pump, which runs before every outer call returns.
 */
#ifndef FB_ENGINE_SHARD_PRIVATE_H
#define FB_ENGINE_SHARD_PRIVATE_H

#include <string.h>

#include "base/assert.h"
#include "base/bits.h"
#include "base/bug.h"
#include "engine/arena.h"
#include "engine/claim.h"
#include "engine/evict.h"
#include "engine/history.h"
#include "engine/index.h"
#include "engine/keys.h"
#include "engine/shard.h"
#include "engine/wheel.h"

/* ---- limits ---- */

#define FB_SHARD_POOL_BYTES_MAX    FB_TIB(4)
#define FB_SHARD_ENTRIES_MIN       64u
#define FB_SHARD_ENTRIES_MAX       (1u << 31)
#define FB_SHARD_INDEX_SLACK       16u /* 1/16 of the index is kept for recovery's tombstones */
#define FB_SHARD_INDEX_LOW         8u  /* below 1/8 free the log is asked to give up a segment */
#define FB_SHARD_STAGING_CHUNKS    2u  /* staging for reads: at least so many chunks, */
#define FB_SHARD_STAGING_SHARE     16u /* at least 1/16 of the pool, */
#define FB_SHARD_STAGING_SHARE_MAX 4u  /* and at most 1/4 */
#define FB_SHARD_POOL_CHUNKS_MIN   4u  /* the pool holds at least so many chunks */
#define FB_SHARD_VALUE_SSD_SHARE   4u  /* a value takes at most 1/4 of the device */
#define FB_SHARD_PEER_SHARE        2u  /* a peer's grants take at most 1/2 of what puts may have */
#define FB_SHARD_LEASED_SHARE      2u  /* leases on values that are in DRAM only: 1/2 of the pool */
#define FB_SHARD_LEASED_SHARE_SSD  4u  /* leases on everything else: 1/4 of the device */
#define FB_SHARD_LEASED_UNASKED    2u  /* short leases, without a hold: 1/2 of these shares */
#define FB_SHARD_PARTS_MAX         (1u << 16)
#define FB_SHARD_WRITE_ITEMS_MIN   64u
#define FB_SHARD_WRITE_ITEMS_MAX   1024u
#define FB_SHARD_WRITE_RESERVE     4u /* 1/4 of the items is for tombstones and copies alone */
#define FB_SHARD_READ_SLOTS        128u
#define FB_SHARD_READ_SLOTS_MIN    8u
#define FB_SHARD_READ_RESERVE      8u /* 1/8 of the read slots is for copies forward alone */
#define FB_GENERATION_BOOT_SHIFT   40 /* a generation is (boot << 40) | counter */
#define FB_GENERATION_COUNTER_MAX  ((UINT64_C(1) << FB_GENERATION_BOOT_SHIFT) - 1)
#define FB_SHARD_KEY_SHARE         128u /* granules: 1/128 of the pool, by default */
#define FB_SHARD_KEY_BYTES_MIN     FB_KIB(256)
#define FB_SHARD_KEY_BYTES_MAX     FB_MIB(64)
#define FB_SHARD_PUTS_OPEN         32768u
#define FB_SHARD_PUTS_OPEN_MIN     1024u
#define FB_SHARD_PEER_WAITING      65536u
#define FB_SHARD_WAIT_BUCKETS      1024u /* power of two */
#define FB_SHARD_NOTICES           1024u /* power of two */
#define FB_SHARD_NAMESPACES        64u
#define FB_SHARD_NAMESPACES_MAX    4096u
#define FB_SHARD_FIELDS_MAX        4096u /* canonical bytes of one namespace */
#define FB_SHARD_HISTORY           65536u
#define FB_SHARD_HELD_SLOTS        1024u /* power of two; beats of a round of the wheel of holds */
#define FB_SHARD_HOLD_MS_MAX       3600000u
#define FB_SHARD_HOLD_MS           60000u
/* Leases of a value that follow each other without a gap: so many of the longest holds at most. */
#define FB_SHARD_LEASE_TOTAL       10u
#define FB_SHARD_LEASE_TOTAL_BEATS 60000u /* and at most this, so that 16 bits tell how long */
#define FB_SHARD_LEASE_MS          5000u
#define FB_SHARD_WATERMARK_PCT     75u
#define FB_SHARD_DEVICE_RATE       (UINT64_C(500) * 1000 * 1000)
#define FB_SHARD_PEERS             1024u
#define FB_SHARD_ENTRY_SHARE \
    FB_KIB(64) /* index entries by default: one for so much of pool and device */
#define FB_SHARD_ITEM_SHARE FB_KIB(16) /* write items by default: one for so much of the pool */
/* Generations without a device: boots are minutes since 2020, and 2^24 generations a millisecond.
 */
#define FB_SHARD_BOOT_ZERO_MS    UINT64_C(1577836800000)
#define FB_SHARD_BOOT_MS         UINT64_C(60000)
#define FB_SHARD_BOOT_SHIFT      24
#define FB_SHARD_PUMP_ROUNDS     8u
#define FB_SHARD_LEASE_SPARE     8u /* beats of the account of leases beyond the longest hold */
#define FB_SHARD_AUDIT_WORD_BITS 64u

/* The log of the device, where the owner left it open. */
#define FB_SHARD_LOG_ERRORS        8u
#define FB_SHARD_LOG_READ_DEPTH    32u
#define FB_SHARD_LOG_WRITE_DEPTH   16u
#define FB_SHARD_LOG_LINGER_NS     (500 * FB_US_NS)
#define FB_SHARD_LOG_BATCH_BYTES   FB_MIB(4)
#define FB_SHARD_LOG_TOMBS_MIN     1024u
#define FB_SHARD_LOG_TOMBS_MAX     65536u
#define FB_SHARD_LOG_RESERVE       2u
#define FB_SHARD_CLEAN_BYTES_SHARE 4u /* parts on their way to the device: 1/4 of the pool */
#define FB_SHARD_RETRY_NS          (100 * FB_MS_NS) /* a ghost whose tombstone failed */
#define FB_SHARD_COPY_WAIT_NS      FB_SEC_NS        /* a copy waits so long for the end of a kill */
#define FB_SHARD_RATE_WINDOW_NS    (500 * FB_MS_NS) /* how long a measurement of the device takes */
#define FB_SHARD_CLASS_HOT         0 /* open segments of the log: what was copied forward, */
#define FB_SHARD_CLASS_COLD        1 /* and everything else */
#define FB_SHARD_RECLAIM_NS        (10 * FB_MS_NS) /* between two wishes for a segment */
#define FB_SHARD_RECLAIM_NS_MAX    FB_SEC_NS       /* the same, if they do not help */
#define FB_SHARD_DIRTY_LOOKS       64u             /* dirty values looked at for one to give up */

/* Work of one turn of the pump, in steps of about a microsecond or less. What is left goes on in
 * the next turn; fb_shard_next_ns() then says "now". */
#define FB_SHARD_TURN_STEPS  2048u
#define FB_SHARD_TURN_EVICTS 512u
#define FB_SHARD_TURN_SWEEP  2048u /* entries looked at for old epochs */
#define FB_SHARD_TURN_LOOKUP 4096u /* keys of one lookup */
#define FB_SHARD_TURN_TIMERS 1024u
#define FB_SHARD_TURN_LIST   4096u /* entries looked at for a list of keys */

/* How many keys ahead a lookup touches buckets and entries. */
#define FB_SHARD_PREFETCH_BUCKETS 16u
#define FB_SHARD_PREFETCH_ENTRIES 8u

#define FB_BEAT_SHIFT             26 /* a beat is 2^26 ns */

_Static_assert(FB_LOG_VEC_MAX *FB_PAGE_BYTES >= FB_CHUNK_BYTES_MAX,
               "a part of single pages fits into one vector");
_Static_assert(FB_PERSIST_BEHIND - FB_PERSIST_OFF == (int)FB_ENTRY_PERSIST_BEHIND,
               "modes of entries are those of puts");
_Static_assert(FB_SHARD_BOOT_MS << FB_SHARD_BOOT_SHIFT < FB_GENERATION_COUNTER_MAX,
               "a minute of generations fits into the counter");
_Static_assert(FB_ENTRY_LISTS <= 8, "a list fits into three bits");
_Static_assert(((uint64_t)FB_SHARD_HELD_SLOTS << FB_BEAT_SHIFT) > 60 * FB_SEC_NS,
               "a round of the wheel of holds is long enough to be cheap");

/* ---- pieces ---- */

/* What a page of DRAM is at one time. Free pages are the arena's. */
enum fb_pages {
    FB_PAGES_CLEAN, /* droppable: the others are not */
    FB_PAGES_DIRTY, /* droppable only when the tier is FENCED or FULL */
    FB_PAGES_HELD,
    FB_PAGES_PINNED,
    FB_PAGES_RESERVED,
    FB_PAGES_QUARANTINE,
    FB_PAGES_STAGING,
    FB_PAGES_CLASSES
};

/* op->state */
enum fb_op_state {
    FB_OP_STATE_NEW,
    FB_OP_STATE_PARKED,   /* recovery is not over */
    FB_OP_STATE_PUT,      /* op->attempt says what it does */
    FB_OP_STATE_FLUSHING, /* waits until a value is durable: a `through` put, WAIT_PERSISTED,
                             DROP_DRAM */
    FB_OP_STATE_READING,
    FB_OP_STATE_CLOSING, /* a read that has its result and waits for its chunks */
    FB_OP_STATE_LOOKING, /* a lookup, in slices */
    FB_OP_STATE_KILLING, /* a remove that waits for its tombstone */
    FB_OP_STATE_NAMES,   /* waits for the namespace table */
    FB_OP_STATE_LISTING,
    FB_OP_STATE_CLOSED
};

/* op->marks */
enum fb_op_mark {
    FB_OP_DONE = 1 << 0,       /* has its result */
    FB_OP_THROUGH = 1 << 1,    /* a put that is answered when durable */
    FB_OP_WAITED = 1 << 2,     /* was counted as one that waited for space */
    FB_OP_STAGED = 1 << 3,     /* on the queue for staging */
    FB_OP_QUEUED = 1 << 4,     /* on its peer's queue for space */
    FB_OP_KILLQ = 1 << 5,      /* on the queue for a tombstone */
    FB_OP_OVER_QUOTA = 1 << 6, /* what it waits for is its namespace's quota */
    FB_OP_IN_LINE = 1 << 7     /* a put on the line of its claim */
};

/* chunk->source */
enum fb_chunk_source {
    FB_CHUNK_NOWHERE,
    FB_CHUNK_DRAM,  /* pins the part's own pages */
    FB_CHUNK_STAGE, /* owns staging pages */
    FB_CHUNK_AGAIN  /* its DRAM copy was bad: is to be read from the device */
};

/* A namespace with an epoch, interned: entries name it by 16 bits. */
struct fb_space {
    uint64_t epoch;
    uint32_t entries; /* that name it */
    uint16_t ns;
    bool used;
    bool retired; /* an old epoch: what is left of it is swept */
    struct fb_evict evict;
};

struct fb_namespace {
    bool used;
    uint16_t space; /* of the current epoch */
    uint8_t id[FB_NAMESPACE_ID_BYTES];
    uint8_t secret[16]; /* the seed; clients derive the secret */
    uint64_t epoch;
    uint64_t quota_dram_bytes; /* 0: none */
    uint64_t quota_ssd_bytes;
    uint64_t dram_pages; /* of all entries of all its epochs, reserved ones too */
    uint64_t ssd_bytes;  /* durable, or meant to be */
    uint32_t fields_bytes;
    uint8_t fields[FB_SHARD_FIELDS_MAX];
};

/* What a write slot carries. */
enum fb_write_kind {
    FB_WRITE_FREE,
    FB_WRITE_PART,
    FB_WRITE_KILL,
    FB_WRITE_COPY
};
enum fb_write_phase {
    FB_WRITE_READING, /* copy: from the device into staging */
    FB_WRITE_HASHING, /* leaves are computed */
    FB_WRITE_READY,   /* copy: hashed, may be appended */
    FB_WRITE_LOG      /* the log has the item */
};

/* A part, a tombstone, or a copy forward on its way to the device. */
struct fb_write {
    struct fb_log_item item;
    struct fb_link link; /* on one of: free, copies that wait, copies that the log has */
    struct fb_op *op;    /* KILL: who waits, or NULL */
    uint32_t entry;      /* PART, COPY: the part's entry */
    uint32_t read;       /* COPY: the read slot it uses, or FB_SLOT_NONE */
    uint32_t stage;      /* COPY: staging pages, or FB_ARENA_NONE */
    uint64_t generation; /* PART, COPY: of the value. KILL: everything up to it dies */
    struct fb_digest digest;
    struct fb_log_addr from; /* COPY */
    uint64_t until_ns;       /* COPY: how long it waits for a value that is being killed */
    uint8_t kind;
    uint8_t phase;
    bool first;                         /* PART: nothing of the value was placed before */
    uint64_t leaves[FB_LOG_LEAVES_MAX]; /* COPY: computed, to be compared */
    uint8_t key[FB_KEY_BYTES_MAX];
};

#define FB_SLOT_NONE UINT32_MAX

enum fb_read_kind {
    FB_READ_FREE,
    FB_READ_GET,
    FB_READ_VERIFY,
    FB_READ_COPY
};

/* A part on its way from the device, or being checked in DRAM. */
struct fb_read {
    struct fb_log_read read;
    struct fb_link link;
    struct fb_op *op; /* GET, VERIFY */
    uint32_t chunk;   /* GET, VERIFY: which of op->chunk */
    uint32_t write;   /* COPY: the write slot */
    uint32_t entry;
    uint64_t generation;
    uint32_t stage; /* staging pages, or FB_ARENA_NONE */
    uint8_t kind;
    bool hashing;
    int result;                           /* of the read */
    struct fb_io_vec vec[FB_LOG_VEC_MAX]; /* what is hashed: part_bytes long */
    uint64_t leaves[FB_LOG_LEAVES_MAX];
};

/* What leases add up to. */
struct fb_lease_sum {
    uint64_t pages, parts;
};

struct fb_shard {
    struct fb_shard_config config;
    struct fb_log *log; /* NULL: no device */
    uint64_t start_ns, now_ns, wall_ms;
    uint32_t chunk_bytes;
    uint32_t cap_pages; /* what puts, dirty, held, pinned and quarantined pages may take together */
    uint32_t staging_pages; /* reserved for reads */
    uint64_t value_bytes_max, value_bytes_of_pool;
    enum fb_value_limit value_limit; /* what value_bytes_max is made by */
    int ready;
    bool draining;
    bool log_draining;
    bool pumping;
    bool more_work;       /* a turn ended by its limit */
    bool again;           /* something happened that another module's pump may wait for */
    bool index_waits;     /* a put waits for index entries that only the log can free */
    bool is_index_short;  /* recovery found more than the index holds */
    int load_error;       /* of the namespace table */
    bool was_fenced;      /* the fence has been acted upon */
    bool dirty_limited;   /* puts wait because of the dirty limit */
    bool wants_room;      /* puts wait for pages or entries */
    uint32_t turn_peers;  /* on `turns` */
    uint32_t spaces_high; /* spaces in use are below this */
    uint32_t evicts_left; /* of this turn */
    const char *start_error;
    uint64_t boot;
    uint64_t counter;  /* of generations, within this boot */
    uint64_t sequence; /* of notices */

    struct fb_index index;
    struct fb_arena arena;
    struct fb_keys keys;
    struct fb_history history;
    struct fb_wheel wheel;
    struct fb_claims claims;
    uint64_t pages[FB_PAGES_CLASSES];
    uint64_t placed_entries; /* entries that a device may hold something of */

    struct fb_lru dirty, lazy, ghosts, partial;
    struct fb_lru held[FB_SHARD_HELD_SLOTS];
    bool pool_is_whole; /* no more of it will be faulted */
    uint32_t held_beat; /* worked off up to here */
    struct fb_lease_sum
        *lease_sums;      /* by the beat in which a lease ends: what is, or will be, on a device */
    uint32_t lease_beats; /* length of that */
    uint32_t lease_beat;  /* worked off up to here */
    struct fb_lease_sum leased; /* sum of them */

    struct fb_namespace *namespaces;                 /* the first namespace_count are used */
    uint8_t (*namespace_ids)[FB_NAMESPACE_ID_BYTES]; /* theirs again, close together to search */
    uint32_t namespace_count;
    struct fb_space *spaces;
    uint32_t spaces_max;
    uint32_t sweep; /* next entry to look at for retired spaces */
    uint32_t sweep_left;
    uint32_t claim_sweep; /* next claim to look at for stale epochs or a fence */
    uint32_t claim_sweep_left;
    uint32_t wait_sweep_left;

    struct fb_list turns; /* peers with puts that wait for space */
    uint64_t round;
    uint64_t waiting_puts;
    uint64_t open_ops;
    struct fb_list parked, events, staging_queue, looking, listing, kill_queue, names_queue;
    struct fb_list *waits; /* FB_SHARD_WAIT_BUCKETS: operations by head entry */

    struct fb_write *writes;
    struct fb_io_req *write_hashes;
    struct fb_list writes_free, copies, copies_out;
    uint32_t writes_free_count;
    uint64_t clean_bytes_in_flight;
    uint32_t parts_in_flight;
    struct fb_read *reads;
    struct fb_io_req *read_hashes;
    struct fb_list reads_free, reads_done;
    uint32_t reads_free_count;
    struct fb_list hash_out;
    uint64_t ghost_retry_ns;
    uint64_t reclaim_asked_ns, reclaim_wait_ns;
    uint32_t reclaim_free; /* entries that were free when it was asked last */

    struct fb_log_names names;
    uint8_t *names_bytes;
    struct fb_op *names_op;         /* whose change is being written */
    struct fb_namespace names_plan; /* the change that is being planned */
    bool names_loaded;

    struct fb_log_scan scan;
    bool scan_busy;
    struct fb_op *scan_op;

    struct fb_notice *notices;
    uint32_t notices_first, notices_count;

    uint64_t rate_bytes_per_s; /* of the device's writes, measured */
    uint64_t rate_bytes, rate_busy_ns, rate_from_ns;
    bool rate_busy;

    uint64_t keys_dram, keys_ssd; /* heads of readable values with pages, with an address */
    uint64_t *audit_bits;         /* one a page: for fb_shard_audit() */

    struct fb_shard_stats stats; /* the counters; "now" fields are filled when asked */
};

/* ---- shard.c ---- */

/* Does what can be done now: grants, reads, writes, kills... Every outer call ends with it. */
void fb_shard_pump(struct fb_shard *shard);

/* Gives an operation its result; once. The owner sees FB_EV_DONE. */
void fb_op_done(struct fb_shard *shard, struct fb_op *op, int result, enum fb_reason reason);
/* The shard lets go of an operation that has its result. The owner sees FB_EV_CLOSED. */
void fb_op_close(struct fb_shard *shard, struct fb_op *op);
/* Both. */
void fb_op_end(struct fb_shard *shard, struct fb_op *op, int result, enum fb_reason reason);
/* Tells the owner something else. */
void fb_op_event(struct fb_shard *shard, struct fb_op *op, unsigned event);
/* (Re)starts an operation: also one that was parked, or has to look again. */
void fb_op_dispatch(struct fb_shard *shard, struct fb_op *op);
/* True if the operation's namespace is unknown or its epoch is not the current one; then it has
 * been ended. */
bool fb_op_check_space(struct fb_shard *shard, struct fb_op *op);
/* Puts a notice for a directory into the outbox. */
void fb_shard_notice(struct fb_shard *shard, enum fb_notice_kind kind, const struct fb_entry *head);
/* The next generation. */
uint64_t fb_shard_generation(struct fb_shard *shard);
/* Beats since the start, at a time, rounded up. */
uint32_t fb_shard_beat_at(const struct fb_shard *shard, uint64_t ns);
/* Beats since the start, now, rounded down. */
uint32_t fb_shard_beat(const struct fb_shard *shard);
/* Queues a hash request for the I/O seam. */
void fb_shard_hash(struct fb_shard *shard, struct fb_io_req *req, const struct fb_io_vec *vec,
                   uint32_t vec_count, uint32_t bytes, uint64_t *leaves);

/* ---- value.c ---- */

/* Pages of a part. */
uint32_t fb_part_pages(const struct fb_entry *entry);
/* Takes a part off its list and out of the accounts, so that its state may be changed; */
void fb_part_lift(struct fb_shard *shard, struct fb_entry *entry);
/* and puts it back where its state says. `touched`: it was just used. */
void fb_part_settle(struct fb_shard *shard, struct fb_entry *entry);
/* A part was used: moves it to the hot end. */
void fb_part_touch(struct fb_shard *shard, struct fb_entry *entry);
/* Somebody uses the pages of a part: they stay until the same number of unpins. */
void fb_part_pin(struct fb_shard *shard, struct fb_entry *entry);
/* The last unpin of a part that is out of the index frees it. */
void fb_part_unpin(struct fb_shard *shard, struct fb_entry *entry);
/* Gives a part that has none pages. */
void fb_part_attach(struct fb_shard *shard, struct fb_entry *entry, uint32_t chain);
/* Gives a part an address. */
void fb_part_set_addr(struct fb_shard *shard, struct fb_entry *entry,
                      const struct fb_log_addr *addr);
/* The durable record of a part goes, but its value is not wholly durable: it is written again from
 * DRAM. False if it is not there. */
bool fb_part_redirty(struct fb_shard *shard, struct fb_entry *entry);
/* Drops the DRAM copy of a part. It is not pinned (asserted). */
void fb_part_drop_pages(struct fb_shard *shard, struct fb_entry *entry);
/* The value with this digest that can be read or is doomed, or NULL. */
struct fb_entry *fb_value_find(const struct fb_shard *shard, struct fb_digest digest);
/* The head of a number if it still is this generation of a readable value, or NULL. */
struct fb_entry *fb_value_at(const struct fb_shard *shard, uint32_t head, uint64_t generation);
/* True if no part of the value waits to be written, and every part has an address. */
bool fb_value_is_durable(const struct fb_shard *shard, const struct fb_entry *head);
/* Why a value cannot be made durable: 0 if it can, or it is. */
int fb_value_persist_error(const struct fb_shard *shard, const struct fb_entry *head);
/* True if the bytes of a part can be had: in DRAM, or on a device that is in use. */
bool fb_part_is_readable(const struct fb_shard *shard, const struct fb_entry *entry);
/* True if every part is. */
bool fb_value_is_readable(const struct fb_shard *shard, struct fb_entry *head);
/* Tiers of a value: bit 0 all in DRAM, bit 1 all on the device. */
unsigned fb_value_tiers(const struct fb_shard *shard, struct fb_entry *head);
/* Makes entries for a value that was granted: reserved, with pages. There is room (asserted). */
struct fb_entry *fb_value_reserve(struct fb_shard *shard, const struct fb_op *op, uint32_t parts);
/* Changes the state of all parts. */
void fb_value_set_state(struct fb_shard *shard, struct fb_entry *head, enum fb_entry_state state);
/*
 * The value leaves the index, for this reason; its pages are free as soon as nobody uses them. If a
 * device may hold something of it and `settled` is false, a ghost stays. `settled` says that the
 * device's part is durably known to be dead.
 */
void fb_value_drop(struct fb_shard *shard, struct fb_entry *head, enum fb_reason reason,
                   bool settled);
/* As fb_value_drop(), without telling those who wait for the key: for the switch to a later
 * generation. */
void fb_value_drop_quietly(struct fb_shard *shard, struct fb_entry *head, enum fb_reason reason,
                           bool settled);
/* Forgets the key text of a value. */
void fb_value_free_key(struct fb_shard *shard, struct fb_entry *head);
/* Counts a value that is to be written for its namespace; over the quota it is marked UNKEPT. */
void fb_value_count_ssd(struct fb_shard *shard, struct fb_entry *head);
/* Frees entries that are not in the index: a put that ends without a value. */
void fb_value_release(struct fb_shard *shard, struct fb_entry *head);
/* Somebody waits until the value is durable: it goes first. */
void fb_value_demand(struct fb_shard *shard, struct fb_entry *head);
/* The value has become durable: its key text goes, who waits is answered. */
void fb_value_made_durable(struct fb_shard *shard, struct fb_entry *head);
/* Takes a value or tombstone out of the index without a trace: during recovery. */
void fb_value_forget(struct fb_shard *shard, struct fb_entry *head);
/* Takes parts that are on their way to the device back, as far as possible. */
void fb_value_cancel_writes(struct fb_shard *shard, struct fb_entry *head);
/* Takes the ghost out of the index: the device holds nothing of it any more. */
void fb_value_lay_ghost(struct fb_shard *shard, struct fb_entry *ghost);
/* Pages that cannot be dropped now, staging not counted. */
uint64_t fb_pages_stuck(const struct fb_shard *shard);
/* Puts a value's parts where its lease says (values in DRAM only). */
void fb_value_relist(struct fb_shard *shard, struct fb_entry *head);
/* Works off the leases on values in DRAM only that have ended. */
void fb_held_tick(struct fb_shard *shard);
/* Staging pages, or FB_ARENA_NONE if there are none now. */
uint32_t fb_stage_take(struct fb_shard *shard, uint32_t bytes);
/* Gives staging pages back. */
void fb_stage_give(struct fb_shard *shard, uint32_t head);
/* Staging pages become the DRAM copy of a part that has none. */
void fb_stage_promote(struct fb_shard *shard, struct fb_entry *entry, uint32_t head);

/* ---- waits: operations that wait until a value is durable (value.c) ---- */

/* Lets an operation wait for a value. */
void fb_wait_for(struct fb_shard *shard, struct fb_op *op, struct fb_entry *head);
/* The value is durable (0), or will not be (negative): answers who waits. */
void fb_wait_over(struct fb_shard *shard, struct fb_entry *head, int result, enum fb_reason reason);

/* ---- put.c ---- */

/* A put arrives: it is refused, answered, waits, or queues for space. */
void fb_put_start(struct fb_shard *shard, struct fb_op *op);
/* Space was found: memory is reserved, the grant goes out. */
void fb_put_grant(struct fb_shard *shard, struct fb_op *op);
/* It will not be found, ever. */
void fb_put_refuse(struct fb_shard *shard, struct fb_op *op, int result, enum fb_reason reason);
/* A timer, a loss, a kill, the end of a kill: an event of the table. */
void fb_put_event(struct fb_shard *shard, struct fb_op *op, enum fb_attempt_event event);
/* What had to be durable before the commit is (0), or could not be made so. */
void fb_put_killed(struct fb_shard *shard, struct fb_op *op, int result);
/* The timer of a put. */
void fb_put_timer(struct fb_shard *shard, struct fb_op *op);
/* The value under a key changed other than by an install: who waits for it looks again. */
void fb_put_value_changed(struct fb_shard *shard, struct fb_digest digest);
/* The value under a key cannot be made durable: `through` duplicates are told so. */
void fb_put_value_stuck(struct fb_shard *shard, struct fb_digest digest, int result);
/* Steps every attempt of a claim, the line before the writer: an epoch bump, a shutdown. */
void fb_put_end_claim(struct fb_shard *shard, struct fb_claim *claim, enum fb_attempt_event event);
/* A slice of the sweep over all claims. */
void fb_put_sweep(struct fb_shard *shard);
/* The writer of a key: a remove kills it. True if there was one that held memory. */
bool fb_put_remove(struct fb_shard *shard, struct fb_digest digest);
/* A value is about to be replaced: keeps its lease for who replaces it. */
void fb_put_note_lease(struct fb_shard *shard, const struct fb_entry *head);
/* A put waits until its value is durable, and its time is over. */
void fb_put_flush_over(struct fb_shard *shard, struct fb_op *op, int result, enum fb_reason reason);
/* The peer is gone, or proven dead. */
void fb_put_abandon(struct fb_shard *shard, struct fb_op *op, bool proven);
/* True if a put is moving bytes under this key. */
bool fb_put_is_writing(const struct fb_shard *shard, struct fb_digest digest);
/* Bytes that a put's memory counts for at its peer. */
uint64_t fb_put_bytes(const struct fb_shard *shard, const struct fb_op *op);

/* ---- admit.c ---- */

/* A put queues for space. */
void fb_admit_join(struct fb_shard *shard, struct fb_op *op);
/* It leaves the queue. */
void fb_admit_leave(struct fb_shard *shard, struct fb_op *op);
/* Grants as far as there is space. */
void fb_admit_pump(struct fb_shard *shard);
/* Parts of a value of so many bytes. */
uint32_t fb_admit_parts(const struct fb_shard *shard, uint64_t value_bytes);
/* Pages of a value of so many bytes. */
uint64_t fb_admit_pages(const struct fb_shard *shard, uint64_t value_bytes);

/* ---- room.c ---- */

/* WAIT: nothing more can be dropped now. MORE: this turn's work is done, go on in the next. */
enum fb_room {
    FB_ROOM_OK,
    FB_ROOM_WAIT,
    FB_ROOM_MORE
};

/* Makes so many pages free by dropping what may be dropped. */
enum fb_room fb_room_pages(struct fb_shard *shard, uint64_t pages);
/* Drops parts of one namespace, oldest first, until it has at most so many pages. */
enum fb_room fb_room_quota(struct fb_shard *shard, uint16_t ns, uint64_t pages);
/* Makes so many index entries and granules of key text free. */
enum fb_room fb_room_entries(struct fb_shard *shard, uint32_t entries, uint32_t granules);
/* Drops dirty values, where the tier's state allows it, until at most so many pages are stuck. */
enum fb_room fb_room_stuck(struct fb_shard *shard, uint64_t pages);
/* The part that would be dropped next, or NULL. */
struct fb_entry *fb_room_victim(const struct fb_shard *shard);

/* ---- get.c ---- */

/* A get arrives. */
void fb_get_start(struct fb_shard *shard, struct fb_op *op);
/* Reads that ended; and reads that wait for staging, as far as it came free. */
void fb_get_pump(struct fb_shard *shard);
/* A get is at its deadline, or was cancelled. */
void fb_get_timer(struct fb_shard *shard, struct fb_op *op);
/* The peer is gone: ends the read. `proven`: it can touch no memory, so chunks that are out come
 * back. */
void fb_get_abandon(struct fb_shard *shard, struct fb_op *op, bool proven);
/* Leaves of a part were computed. */
void fb_get_hash_done(struct fb_shard *shard, struct fb_read *slot);

/* ---- fetch.c: parts on their way from the device, and how a bad one is treated ---- */

/* A read slot, or NULL. */
struct fb_read *fb_read_take(struct fb_shard *shard, enum fb_read_kind kind);
/* Gives it back; its staging pages are somebody else's by now. */
void fb_read_give(struct fb_shard *shard, struct fb_read *slot);
/* The number of a read slot. */
uint32_t fb_read_number(const struct fb_shard *shard, const struct fb_read *slot);
/* Starts to read a part from the device into slot->stage. Ends in the list of reads that are done.
 */
void fb_read_submit(struct fb_shard *shard, struct fb_read *slot, const struct fb_entry *entry);
/* Starts to hash the first `bytes` of a chain. */
void fb_read_hash(struct fb_shard *shard, struct fb_read *slot, uint32_t chain, uint32_t bytes);
/* The root of a part: `what` has key, part and lengths, the rest is filled in. */
uint64_t fb_part_root(const struct fb_shard *shard, const struct fb_identity *what, uint16_t ns,
                      uint64_t epoch, uint64_t generation, const uint64_t *leaves);
/* The bytes of a value are not what its root says: it is a miss from now on, and a tombstone
 * follows if a device holds it. Counted by the caller. */
void fb_value_bad(struct fb_shard *shard, struct fb_entry *head);

/* ---- lookup.c ---- */

/* A lookup, or a return of holds, arrives; it is worked off by the pump. */
void fb_lookup_start(struct fb_shard *shard, struct fb_op *op);
/* A slice of the lookups that are under way. */
void fb_lookup_pump(struct fb_shard *shard);
/* What became of a key's newest value that anything is known of. */
struct fb_past {
    enum fb_reason reason; /* FB_REASON_NO_RECORD: nothing is known */
    uint64_t generation;
    uint64_t when_ms;
};
/* Asks the history in memory and the log's: who knows of the later generation is right. False if
 * neither knows the key. */
bool fb_lookup_past(const struct fb_shard *shard, struct fb_digest digest, struct fb_past *out);
/* Why a key is not there: from what is under way, and from the history. */
enum fb_reason fb_lookup_reason(const struct fb_shard *shard, uint16_t ns, struct fb_digest digest);
/* True while a lease on the value lasts. */
bool fb_value_is_leased(const struct fb_shard *shard, const struct fb_entry *head);
/* The value goes: its lease is taken off the account. */
void fb_lease_forget(struct fb_shard *shard, struct fb_entry *head);
/* A value takes over the lease of the one that it replaces. */
void fb_lease_inherit(struct fb_shard *shard, struct fb_entry *head, uint32_t until, uint8_t loads);
/* Leases that are over are taken off the account. */
void fb_lease_tick(struct fb_shard *shard);
/* A read counted as one load of a hold has ended. */
void fb_lookup_loaded(struct fb_shard *shard, struct fb_entry *head);
/* A read goes on: the value stays readable for a while. */
void fb_lookup_extend(struct fb_shard *shard, struct fb_entry *head);

/* ---- remove.c ---- */

/* A remove arrives. */
void fb_remove_start(struct fb_shard *shard, struct fb_op *op);
/* A remove is at its deadline: its tombstone goes on without it. */
void fb_remove_timer(struct fb_shard *shard, struct fb_op *op);
/* A put's or a remove's tombstone: queues it. */
void fb_kill_join(struct fb_shard *shard, struct fb_op *op);
/* Leaves the queue, or lets go of the tombstone under way. */
void fb_kill_leave(struct fb_shard *shard, struct fb_op *op);
/* Starts tombstones: those that are waited for, then those of ghosts. */
void fb_kill_pump(struct fb_shard *shard);
/* A tombstone is durable (0), or failed. */
void fb_kill_durable(struct fb_shard *shard, struct fb_write *slot, int result);
/* True if a device may hold something of this key that must be killed first. */
bool fb_kill_is_needed(const struct fb_shard *shard, struct fb_digest digest);

/* ---- clean.c ---- */

/* A free write slot, or NULL. `reserve`: also from those kept for tombstones and copies. */
struct fb_write *fb_write_take(struct fb_shard *shard, enum fb_write_kind kind, bool reserve);
/* Gives a write slot back. */
void fb_write_give(struct fb_shard *shard, struct fb_write *slot);
/* The number of a write slot. */
uint32_t fb_write_number(const struct fb_shard *shard, const struct fb_write *slot);
/* Hands an item to the log. */
void fb_write_append(struct fb_shard *shard, struct fb_write *slot);
/* Starts to write dirty parts. */
void fb_clean_pump(struct fb_shard *shard);
/* The leaves of a part are computed: it is handed to the log, or dropped as bad. */
void fb_clean_hash_done(struct fb_shard *shard, struct fb_write *slot);
/* A part is durable (0), or its write failed. */
void fb_clean_durable(struct fb_shard *shard, struct fb_write *slot, int result);
/* The log has given the item of a part back before it was placed. */
void fb_clean_taken_back(struct fb_shard *shard, struct fb_write *slot);
/* How many bytes of parts may be on their way to the device. */
uint64_t fb_clean_bytes_max(const struct fb_shard *shard);
/* The device is fenced: nobody waits for durability any more. */
void fb_clean_give_up(struct fb_shard *shard);
/* WAIT_PERSISTED and DROP_DRAM. */
void fb_clean_wait_start(struct fb_shard *shard, struct fb_op *op);
/* An operation that waits for durability is at its deadline. */
void fb_clean_timer(struct fb_shard *shard, struct fb_op *op);
/* An operation that waited for durability is over. */
void fb_clean_wait_done(struct fb_shard *shard, struct fb_op *op, struct fb_entry *head, int result,
                        enum fb_reason reason);

/* ---- reclaim.c ---- */

/* For struct fb_log_owner: what of a record of a segment that is to be given up. */
enum fb_log_verdict fb_reclaim_judge(void *ctx, const struct fb_log_record *record,
                                     const struct fb_log_addr *addr);
/* For struct fb_log_owner: a record is to be copied forward. */
void fb_reclaim_copy(void *ctx, const struct fb_log_record *record, const struct fb_log_addr *addr);
/* For struct fb_log_owner: a record was given up, durably. */
void fb_reclaim_dropped(void *ctx, const struct fb_digest *digest, uint64_t generation,
                        const struct fb_log_addr *addr);
/* True if a segment with a part of the value is being given up: whether it stays is decided. */
bool fb_value_is_being_given_up(const struct fb_shard *shard, const struct fb_entry *head);
/* True if the value was judged and goes with its segment. If that was called off, the value is LIVE
 * again.
 */
bool fb_value_is_doomed(struct fb_shard *shard, struct fb_entry *head);
/* Copies that wait for slots or pages go on. */
void fb_reclaim_pump(struct fb_shard *shard);
/* The leaves of a copy are computed. */
void fb_reclaim_hash_done(struct fb_shard *shard, struct fb_write *slot);
/* The bytes of a copy have been read, or not. */
void fb_reclaim_read_done(struct fb_shard *shard, struct fb_read *slot, int result);
/* A copy is durable (0), or its write failed. */
void fb_reclaim_durable(struct fb_shard *shard, struct fb_write *slot, int result);
/* Takes copies of a value back that the log has not placed yet: behind a tombstone, in a segment
 * that was opened after it, one would outlive it. */
void fb_reclaim_cancel(struct fb_shard *shard, const struct fb_entry *head);

/* ---- space.c ---- */

/* Takes room for namespaces and spaces from the region, or counts it. */
void fb_space_init(struct fb_shard *shard, struct fb_region *region);
/* NAMESPACE or EPOCH arrives. */
void fb_space_start(struct fb_shard *shard, struct fb_op *op);
/* Starts the next change of the table. */
void fb_space_pump(struct fb_shard *shard);
/* The operation's time is over, or its peer is gone. */
void fb_space_leave(struct fb_shard *shard, struct fb_op *op, int result);
/* Reads the table that the log found. 0, or FB_IO if it cannot be understood. */
int fb_space_load(struct fb_shard *shard);
/* The namespace of a handle, or NULL. */
struct fb_namespace *fb_space_namespace(const struct fb_shard *shard, uint16_t ns);
/* Handle of the namespace with this id, or -1. */
int fb_space_find(const struct fb_shard *shard, const uint8_t *id);
/* An entry begins to name a space. */
void fb_space_enter(struct fb_shard *shard, struct fb_entry *entry, uint16_t space);
/* An entry ends to name its space. */
void fb_space_exit(struct fb_shard *shard, struct fb_entry *entry);
/* The namespace of an entry. */
struct fb_namespace *fb_space_of(const struct fb_shard *shard, const struct fb_entry *entry);
/* A slice of the sweep for old epochs. */
void fb_space_sweep(struct fb_shard *shard);

/* ---- tier.c ---- */

/* The state as the log has it; OFF without one. */
enum fb_tier_state fb_tier_now(const struct fb_shard *shard);
/* True if something can be written to the device, now or when it has healed. */
bool fb_tier_is_writable(const struct fb_shard *shard);
/* True if the device can be read. */
bool fb_tier_is_readable(const struct fb_shard *shard);
/* How many pages may be dirty or reserved for what will be. */
uint64_t fb_tier_dirty_limit(const struct fb_shard *shard);
/* Bytes became durable: measures the device. */
void fb_tier_measure(struct fb_shard *shard, uint64_t bytes);
/* What is on its way to the device is about to change, or has changed. */
void fb_tier_pulse(struct fb_shard *shard);
/* Acts on a fence. */
void fb_tier_check(struct fb_shard *shard);
/* The persist mode of a put. */
enum fb_persist fb_tier_persist(const struct fb_shard *shard, const struct fb_op *op);

/* ---- recover.c ---- */

/* For struct fb_log_owner: a record was found. */
void fb_recover_record(void *ctx, const struct fb_log_record *record,
                       const struct fb_log_addr *addr);
/* For struct fb_log_owner: all records were found. */
void fb_recover_done(void *ctx, int result);

/* ---- listing.c ---- */

/* A listing of keys arrives. */
void fb_listing_start(struct fb_shard *shard, struct fb_op *op);
/* Listings go on. */
void fb_listing_pump(struct fb_shard *shard);
/* A listing ends before its time. */
void fb_listing_leave(struct fb_shard *shard, struct fb_op *op, int result);

/* ---- config.c ---- */

/* Bytes of a chunk: of the device, or without one what suits the pool. 0: the device is too small.
 */
uint32_t fb_config_chunk_bytes(const struct fb_shard_config *config);

/* Carves everything from a region. */
struct fb_shard *fb_shard_carve(const struct fb_shard_config *config, struct fb_region *region,
                                void *meta, const struct fb_log_owner *owner);

#endif
