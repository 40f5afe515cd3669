/*
 * toylog.h - a toy of the SSD log: eight segments of a few blocks in memory, a device that loses,
 * tears and reorders what was not flushed, an engine that writes it by the rules of docs/format.md,
 * and recovery. For test/model/toylog_test.c, which says what is shown by it.
 *
 * A struct toy is a plain value: a crash is tried on a copy. Blocks are symbols, not bytes: a block
 * is whole or bad, and what a checksum would find out is a comparison of names.
 *
 * The engine keeps four facts about a key's records on the device, and only these: the one that
 * the index points at, those in flight, `stray` (an unindexed record up to that generation may be
 * there), and the newest durable kill. A newer value may be acknowledged only when none of the
 * first three holds an older one.
 */
#ifndef FB_TEST_TOYLOG_H
#define FB_TEST_TOYLOG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/prng.h"

#define TOY_SEGMENTS   8
#define TOY_SEG_BLOCKS 12 /* two headers, units, summary, trailer */
#define TOY_UNIT_FIRST 2
#define TOY_UNIT_END   10
#define TOY_SUMMARY    10
#define TOY_TRAILER    11
#define TOY_CLASSES    2 /* segments that are open at once */
#define TOY_KEYS       6
#define TOY_UNIT_RECS  3
#define TOY_SEG_RECS   12
#define TOY_RING       3
#define TOY_RING_AT    2
#define TOY_SEG_AT     (TOY_RING_AT + TOY_RING)
#define TOY_BLOCKS     (TOY_SEG_AT + TOY_SEGMENTS * TOY_SEG_BLOCKS)
#define TOY_WRITES_MAX 96
#define TOY_JOBS_MAX   24
#define TOY_ITEMS_MAX  32
#define TOY_BOOT_SHIFT 8  /* generation = boot << 8 | counter */
#define TOY_INC_STEP   64 /* incarnations that one superblock write sets aside */

/* X(symbol, what the rule says) */
#define TOY_RULE_LIST(X)                                                                       \
    X(ACK_AFTER_FLUSH, "persisted is answered after a flush")                                  \
    X(FLUSH_COVERS_DONE, "a flush covers only what was written when it began")                 \
    X(FAILED_FLUSH_FAILS, "a failed flush is never retried into success")                      \
    X(FAILED_FLUSH_FAILS_LATER, "it also fails what was written while it ran")                 \
    X(UNIT_ORDER, "a unit is durable when all before it in its segment are")                   \
    X(FRONTIER_HONEST, "flushed-up-to never says more than was flushed")                       \
    X(SEAL_WAITS, "a segment is sealed when all of it is durable")                             \
    X(OPEN_IS_SEALED, "a segment found open is sealed, never appended to")                     \
    X(RECOVERY_SUMS, "it gets a summary of what was believed: a second witness (rot)")         \
    X(RECOVERY_REPAIRS, "a header of which one copy is left gets the other again (rot)")       \
    X(INC_CHECKED, "a descriptor of another incarnation is none")                              \
    X(SUMMARY_INC_CHECKED, "a summary of another incarnation is none")                         \
    X(INC_NEVER_REUSED, "an incarnation is never given out twice, not even an unflushed one")  \
    X(GEN_ORDER, "recovery goes by generation, not by place or time")                          \
    X(TAIL_VERIFIED, "data behind the flushed frontier are read at recovery")                  \
    X(RECOVERY_FLUSHES, "recovery flushes before it believes what it read")                    \
    X(TOMB_DURABLE, "a remove is answered when its tombstone is durable")                      \
    X(TOMB_COPIED, "a tombstone is copied while an older-born segment lives")                  \
    X(TOMB_HORIZON, "born is the newest incarnation given out, not that of its own segment")   \
    X(LAYOUT_CHECKS, "what is dead when it is laid out is not written")                        \
    X(CLEAN_WAITS, "an old value is not laid out behind the kill that a put has placed")       \
    X(KILL_OLD, "a cached value is acknowledged after older ones are durably killed")          \
    X(KILL_OLD_THROUGH, "so is a durable one, though its record is newer")                     \
    X(FLIGHT_COUNTS, "an older record in flight counts as on the device")                      \
    X(FAILED_COUNTS, "a record whose write failed counts as on the device")                    \
    X(HIDDEN_COUNTS, "a record that a remove hides counts until its tombstone is durable")     \
    X(STALE_COUNTS, "a record that became durable after its value was replaced counts")        \
    X(COPY_COUNTS, "a record that was copied forward counts until its segment is dead")        \
    X(TWIN_COUNTS, "a record that recovery finds twice counts")                                \
    X(STRAY_KILLED_FIRST, "before the indexed record is given up, strays are killed")          \
    X(HIDDEN_KILLED_FIRST, "so is what the index points at no more and is not durably dead")   \
    X(FAILED_KILL_DROPS, "a kill that failed takes the old value with it")                     \
    X(BAD_DROP_TOMB, "a record dropped as bad gets a tombstone")                               \
    X(COPY_BEFORE_RECORD, "copies are durable before the reclaim record is written")           \
    X(RECORD_BEFORE_REUSE, "the reclaim record is durable before the segment is reused")       \
    X(RECORD_BEFORE_FORGET, "it is durable before the index forgets")                          \
    X(RECORD_KILLS, "a segment with a reclaim record is dead, whatever its header says")       \
    X(FREE_BEFORE_WRAP, "the FREE header is durable before the ring comes round")              \
    X(FAILED_RECORD_STANDS, "a reclaim record that failed is written again, not abandoned")    \
    X(RECORD_KEEPS_PLACE, "it is written again where it was, so that the history has no gap")  \
    X(FREE_BEFORE_FORGET, "what a record names counts until the FREE header is durable (rot)") \
    X(TOMB_TWICE, "a unit with tombstones has its descriptor twice (rot)")                     \
    X(HEADER_TWICE, "a header is written twice (rot)")                                         \
    X(ROT_COUNTED, "a bad place below the frontier is rot, not a torn tail")

#define TOY_MEMBER(symbol, text) TOY_##symbol,
enum toy_rule {
    TOY_RULE_LIST(TOY_MEMBER) /* from 0 */
    TOY_RULES
};
#undef TOY_MEMBER

/* Rules that are switched off, one bit each. */
extern uint64_t toy_rules_off;
/* Prints what happens, to read a counterexample. */
extern bool toy_is_loud;

/* The first violation, or NULL. */
extern const char *toy_violation;

enum toy_kind {
    TOY_VALUE = 1,
    TOY_TOMB
};

struct toy_record {
    uint8_t kind, key;
    uint8_t at; /* VALUE: block of its data within the segment */
    uint8_t pad;
    uint16_t gen;     /* a tombstone kills up to and with it */
    uint16_t horizon; /* TOMB: newest incarnation that was given out when it was made */
};

enum toy_type {
    TOY_ZERO,
    TOY_SUPER,
    TOY_HISTORY,
    TOY_HEADER,
    TOY_DESC,
    TOY_DATA,
    TOY_SUM,
    TOY_TRAIL
};

#define TOY_TORN   1
#define TOY_ROTTEN 2

enum toy_header {
    TOY_FREE = 1,
    TOY_OPEN
};

struct toy_block {
    uint8_t type;
    uint8_t bad; /* 0, or TOY_TORN or TOY_ROTTEN: no checksum fits, and nobody can tell which */
    uint8_t segment, at;
    uint16_t inc;
    uint8_t state;   /* HEADER: enum toy_header. DESC: 1 in a second copy */
    uint8_t flushed; /* DESC: flushed up to. TRAIL: durable frontier */
    uint8_t data;    /* DESC: data blocks. TRAIL: end of the units */
    uint8_t copies;  /* DESC: of itself */
    uint8_t has_sum; /* TRAIL */
    uint8_t records;
    uint16_t seq;      /* SUPER, HISTORY */
    uint16_t frontier; /* SUPER: no incarnation from this one on was given out */
    uint16_t boot;     /* SUPER */
    struct toy_record rec[TOY_SEG_RECS];
};

/* A block on its way: in flight, or in the device's cache. */
struct toy_write {
    uint8_t place;
    uint8_t done;    /* in the cache */
    uint8_t covered; /* by the flush that runs */
    uint8_t job;     /* whose it is, or TOY_NONE */
    struct toy_block block;
};

#define TOY_NONE 0xff

struct toy_device {
    struct toy_block durable[TOY_BLOCKS];
    struct toy_write write[TOY_WRITES_MAX]; /* in the order of submission */
    uint8_t writes;
    bool flushing;
    uint32_t ops_left; /* recovery: device operations until the next crash */
    bool dead;         /* crashed within recovery */
};

enum toy_why {
    TOY_PUT = 1,
    TOY_REMOVE,
    TOY_CLEAN,
    TOY_DROP,
    TOY_COPY,
    TOY_GIVEUP
};

/* A record that waits to be laid out, or is in a unit. */
struct toy_item {
    uint8_t used, why, job;
    uint8_t class;
    bool kill; /* VALUE of a put: with a tombstone for all older generations in the same unit */
    struct toy_record rec;
};

enum toy_job_kind {
    TOY_UNIT = 1,
    TOY_SEAL,
    TOY_RECORD,
    TOY_FREEING
};

/* Writes that become durable, or fail, together. */
struct toy_job {
    uint8_t kind; /* 0: unused */
    uint8_t segment;
    uint8_t left;    /* writes not done */
    uint8_t covered; /* by the flush that runs */
    uint8_t doomed;
    uint8_t flushed; /* and waits for its elders */
    uint8_t end;     /* UNIT: first block behind it */
    uint16_t order;  /* of submission */
};

enum toy_state {
    TOY_S_FREE,
    TOY_S_OPEN,
    TOY_S_FULL,
    TOY_S_SEALED,
    TOY_S_RETIRED,
    TOY_S_DEAD
};

struct toy_segment {
    uint8_t state;
    uint8_t end;     /* first free block */
    uint8_t durable; /* all below is flushed */
    uint8_t records;
    uint16_t inc;
    struct toy_record rec[TOY_SEG_RECS];
};

struct toy_key {
    uint16_t dram; /* generation in memory, 0 none */
    bool dirty;
    uint16_t disk; /* generation that the index points at, 0 none */
    uint8_t segment, at;
    uint16_t inc;
    uint16_t stray;    /* unindexed records up to this generation may be on the device */
    uint16_t victim;   /* a record of this generation is left in the segment that is reclaimed */
    uint16_t tomb;     /* all up to this generation are durably killed */
    uint8_t inflight;  /* records laid out and not yet durable or failed */
    uint16_t put;      /* generation of the put under way, 0 none */
    bool put_killed;   /* by a remove */
    bool put_placed;   /* its kill has been laid out */
    uint16_t removing; /* generation of the remove under way */
    bool cleaning, dropping;
    uint16_t drop; /* a bad record up to this generation must be killed */
};

enum toy_phase {
    TOY_R_IDLE,
    TOY_R_COPY,
    TOY_R_TOMB,
    TOY_R_RECORD,
    TOY_R_FREE
};

struct toy_reclaim {
    uint8_t phase, segment, left;
    bool failed;
    uint8_t records; /* in the reclaim record */
    struct toy_record rec[TOY_SEG_RECS];
};

/* What was promised, and what excuses a miss. */
struct toy_oracle_key {
    uint16_t acked;      /* newest generation answered as stored */
    uint16_t persisted;  /* newest generation answered as persisted */
    uint16_t removed;    /* newest remove that was answered */
    uint16_t killed;     /* newest generation that is known to be durably killed, with a reason */
    uint16_t given;      /* newest generation named in a durable reclaim record */
    uint16_t given_seq;  /* that record's number */
    uint16_t void_given; /* the same for a reclaim record: number of it */
    uint16_t void_kill;  /* a kill that failed while its victim went on being served: no excuse */
    uint16_t waived;     /* lost to rot: no promise */
};

/* What a load has more of than others, so that rare things meet. */
enum toy_load {
    TOY_LOAD_EVEN,
    TOY_LOAD_RECLAIM, /* reclaims, many of them abandoned */
    TOY_LOAD_RING,    /* failures and rot of the history ring, and puts meanwhile */
    TOY_LOADS
};

struct toy {
    struct toy_device dev;
    uint8_t load; /* enum toy_load */
    struct toy_segment seg[TOY_SEGMENTS];
    struct toy_key key[TOY_KEYS];
    struct toy_job job[TOY_JOBS_MAX];
    struct toy_item item[TOY_ITEMS_MAX];
    struct toy_reclaim reclaim;
    struct toy_oracle_key oracle[TOY_KEYS];
    uint8_t open[TOY_CLASSES]; /* segment, or TOY_NONE */
    uint16_t boot, gen, inc, frontier, super_seq, ring_seq, order;
    uint16_t torn, rot;                                   /* counted by the last recovery */
    bool rotten;                                          /* a block has been damaged */
    uint32_t reclaims, recoveries, drops, failed_flushes; /* for the counters of a run */
};

enum toy_crash {
    TOY_CRASH_ALL,    /* power: all unflushed writes reached the device */
    TOY_CRASH_NONE,   /* power: none did */
    TOY_CRASH_RANDOM, /* power: some did */
    TOY_CRASH_TORN,   /* power: some did, some are garbage */
    TOY_CRASH_KILL,   /* the process only: they stay in the device's cache, unflushed */
    TOY_CRASHES
};

/* True if the rule is on. */
bool toy_rule(enum toy_rule rule);

/* Notes a violation if the condition does not hold. */
bool toy_check(bool holds, const char *what);

/* Prints a line if toy_is_loud. */
__attribute__((format(printf, 1, 2))) void toy_say(const char *format, ...);

/* Takes a write out of the list of those on their way. */
void toy_drop_write(struct toy_device *dev, unsigned i);

/* An empty, formatted device and an engine that has started on it. */
void toy_init(struct toy *t, enum toy_load load);

/* One step of a random load: an operation, a write that completes, a flush that begins or ends. */
void toy_step(struct toy *t, struct fb_prng *prng);

/* Ends the process or the power. The engine's memory is gone; the device keeps what it keeps. */
void toy_crash(struct toy *t, enum toy_crash how, struct fb_prng *prng);

/* Damages one block that is durable and not zero. Returns its number. */
unsigned toy_rot(struct toy *t, struct fb_prng *prng);

/*
 * Starts again: reads the device, rebuilds the index, repairs, and holds the result against what
 * was promised. Returns false if it crashed within, after dev.ops_left operations: crash again.
 */
bool toy_recover(struct toy *t);

/* The block as a read would return it now. */
const struct toy_block *toy_read(const struct toy *t, unsigned place);

/* Submits a write of one block for a job (or TOY_NONE). */
void toy_write(struct toy *t, unsigned place, const struct toy_block *block, unsigned job);

/* Place of a block of a segment on the device. */
unsigned toy_place(unsigned segment, unsigned at);

/* True if the bytes of an indexed record are there. */
bool toy_data_holds(const struct toy *t, const struct toy_record *rec, unsigned segment);

#endif
