/*
 * log_private.h - what the files of the SSD log share. LOG.md says how they work together.
 *
 *   log.c          memory, the calls of log.h, the pump, figures
 *   log_meta.c     requests for metadata, errors, the way of each finished request
 *   log_super.c    superblock and frontiers
 *   log_names.c    the namespace table
 *   log_history.c  the ring of reclaim records and its image in memory
 *   log_append.c   placing items, batches, slices of writes
 *   log_flush.c    the flush sequencer; what becomes durable, what fails
 *   log_segment.c  segments: opening, growing, sealing, retiring, making free
 *   log_read.c     reads of values
 *   log_walk.c     reading the records of one segment
 *   log_reclaim.c  giving segments up; log_copy.c copying forward; log_scan.c listing keys
 *   log_recover.c  start: everything into memory; log_finish.c: making what was found durable
 *
 * Rule of re-entry: a public call notes what happened (enter, note, leave); what follows from it is
 * done by the pump when the outermost call leaves. So callbacks of the owner may call in again.
 */
#ifndef FB_ENGINE_LOG_PRIVATE_H
#define FB_ENGINE_LOG_PRIVATE_H

#include "base/assert.h"
#include "base/bits.h"
#include "base/bug.h"
#include "base/reason.h"
#include "base/result.h"
#include "engine/log.h"
#include "engine/log_format.h"
#include "engine/sched.h"

/* ---- limits ---- */

#define FB_LOG_BATCHES_MAX      32         /* gathering, in flight, or waiting for a flush */
#define FB_LOG_BATCH_VECS       2304       /* memory runs of one batch */
#define FB_LOG_BATCH_UNITS      128        /* descriptors of one batch */
#define FB_LOG_WINDOW_BYTES_MAX FB_MIB(16) /* written and not durable, of a segment */
#define FB_LOG_DESC_SHARE       24 /* of the blocks of a batch are descriptors, if values are small */
#define FB_LOG_DESC_SPARE       FB_LOG_BATCHES_MAX
#define FB_LOG_SLICE_VECS       256                  /* memory runs of one write request */
#define FB_LOG_WRITERS          (FB_LOG_CLASSES + 2) /* open segments and ones being sealed */
#define FB_LOG_SUMMARY_SHARE    32 /* a summary takes at most this share of its segment */
#define FB_LOG_WALK_BLOCKS      32 /* buffer of a walker */
#define FB_LOG_META_READ_PIECE  FB_MIB(1)
#define FB_LOG_META_WRITE_PIECE FB_KIB(256)
#define FB_LOG_TRIES_MAX        8 /* a request that makes no progress is resumed so often */
#define FB_LOG_SPARE_TRIES \
    3 /* a segment that is half free is tried so often to make free: each copy, then both */
#define FB_LOG_READ_RETRIES     2  /* a short read of a value is repeated so often */
#define FB_LOG_HEADER_READS     4  /* until two readings of a header agree */
#define FB_LOG_REREADS          2  /* a block that looks bad is read again so often */
#define FB_LOG_GROW_AHEAD       1  /* free segments beyond the reserve that are kept ready */
#define FB_LOG_FREE_AHEAD       2  /* reclaim begins when so many beyond the reserve are left */
#define FB_LOG_CLASS_SEGMENTS   32 /* segments a class and shard, else there is one class only */
#define FB_LOG_INCARNATION_STEP 64 /* a start skips what is left of it */
#define FB_LOG_INCARNATION_LOW  16 /* left when the frontier is raised */
#define FB_LOG_SEGMENT_STEP     16
/* So many writes of the superblock may a copy that cannot be read be ahead of the one that can. */
#define FB_LOG_SUPER_AHEAD_MAX 1024
#define FB_LOG_SEGMENT_LOW     4
#define FB_LOG_COPIES_MAX      16  /* records that the owner copies at a time */
#define FB_LOG_TOMB_COPIES     16  /* tombstones that the log copies at a time */
#define FB_LOG_COPY_PERCENT    50  /* of a segment at most is copied forward */
#define FB_LOG_FORCED_PERCENT  85  /* the same, if nothing better was found in a whole round */
#define FB_LOG_WISH_PERCENT    25  /* the same, when what is only worth it is copied too */
#define FB_LOG_VICTIM_TRIES    4   /* victims looked at before one over the budget is taken */
#define FB_LOG_ROUND_SHARE     8   /* a round ends when 1/8 of the segments were given up in it */
#define FB_LOG_TURN_RECORDS    512 /* records looked at in one turn of reclaim */
#define FB_LOG_ERROR_TEXT      256

#define FB_LOG_PROOF_NS        FB_SEC_NS /* idle so long: an empty unit says what is durable */
#define FB_LOG_RETRY_MIN_NS    (50 * FB_MS_NS) /* back-off after "no space" and after errors */
#define FB_LOG_RETRY_MAX_NS    (5 * FB_SEC_NS)
#define FB_LOG_SPACE_RETRY_NS  (800 * FB_MS_NS)  /* the longest after "no space": heals in 1 s */
#define FB_LOG_COPY_WAIT_NS    (10 * FB_SEC_NS)  /* the owner's time for copying forward */
#define FB_LOG_FORGIVE_NS      (600 * FB_SEC_NS) /* one error is forgotten in this time */

/* Kinds of requests, in the lower half of the cookie. */
enum fb_log_req {
    FB_LOG_REQ_READ = 1,
    FB_LOG_REQ_SLICE,
    FB_LOG_REQ_META,
    FB_LOG_REQ_FLUSH,
    FB_LOG_REQ_GROW,
    FB_LOG_REQ_HASH
};

/* The boot counter is in the upper bits of a generation. */
#define FB_LOG_BOOT_SHIFT 40
#define FB_LOG_BOOT_MAX   ((1u << (64 - FB_LOG_BOOT_SHIFT)) - 1)

enum fb_log_drained {
    FB_LOG_DRAINED_NOT,
    FB_LOG_DRAINED_FLUSHING,
    FB_LOG_DRAINED
};

enum fb_log_phase {
    FB_LOG_PHASE_NEW,
    FB_LOG_PHASE_RECOVERING,
    FB_LOG_PHASE_SERVING,
    FB_LOG_PHASE_FAILED /* could not start */
};

/* ---- memory that requests can name ---- */

struct fb_log_buffer {
    uint8_t *at;
    uint64_t off; /* in the FB_IO_META region */
};

/* ---- segments ---- */

enum fb_log_segment_state {
    FB_LOG_SEG_UNUSED,  /* never grown */
    FB_LOG_SEG_FREE,    /* its FREE header is durable, or it was never opened */
    FB_LOG_SEG_OPEN,    /* has a writer: open, or being sealed */
    FB_LOG_SEG_SEALED,  /* has a trailer */
    FB_LOG_SEG_RETIRED, /* an error closed it; what was durable before is readable */
    FB_LOG_SEG_RECLAIM, /* being given up */
    FB_LOG_SEG_FREEING, /* given up; FREE header under way */
    FB_LOG_SEG_LOST,    /* found without a header that counts */
    FB_LOG_SEG_RESCUE,  /* at start: a rescue that is not looked at yet */
    FB_LOG_SEG_STUCK,   /* given up, but could not be made free: its record must outlive it */
    FB_LOG_SEG_SPARE    /* free, by one copy of its header: not used again in this run */
};
#define FB_LOG_STUCK_MAX 8 /* the next one fences the device */

struct fb_log_segment {
    uint32_t incarnation; /* 0: never opened */
    uint32_t readers;     /* reads that pin it */
    uint32_t rescue_of;   /* closed before its victim was given up: see fb_log_redundant_rescue() */
    uint32_t end;         /* of its units, blocks */
    uint32_t durable;     /* frontier, blocks */
    uint32_t summary_first;
    uint32_t summary_blocks;
    uint32_t records;
    uint32_t tombs;
    uint32_t live_values;
    uint32_t live_blocks;
    uint32_t deferred; /* reclaim round in which it was found too full of records to keep */
    uint8_t state;
    uint8_t class_hint;
    uint8_t reason; /* enum fb_reason of its record; 0: space was needed */
    bool must_go;   /* lost, or a part of it could not be read at start: to be given up first */
    bool has_stale; /* its reclaim was called off after copies were made: what they were made of is
                       garbage that a start would find */
};

/* Which record in force names a segment last. */
struct fb_log_fate {
    uint32_t dead_incarnation; /* highest one named by a record in force; 0 none */
    uint32_t rescue;           /* of its header: incarnation of the segment that it was to take */
    uint32_t window;           /* of its header */
    uint32_t bad_header;       /* the other copy of it does not say the same: 1 + which; 0 none */
    uint32_t ring_block;       /* where that record is */
    uint32_t ring_count;
};

/* ---- metadata requests ---- */

struct fb_log_meta;
typedef void fb_log_meta_done(struct fb_log *log, struct fb_log_meta *meta, int result);

/* A run of memory going to or from the device; resumed after short counts, parked on "no space". */
struct fb_log_meta {
    struct fb_io_req req;
    struct fb_io_vec vec;
    struct fb_link parked;
    fb_log_meta_done *done;
    uint8_t *at; /* FB_IO_META only */
    uint64_t device_off;
    uint64_t memory_off;
    uint64_t failures; /* log->flush_failures when it began */
    uint32_t bytes;
    uint32_t moved;
    uint8_t op;
    uint8_t space;
    uint8_t tries;
    bool is_busy;
};

/* ---- flushes ---- */

struct fb_log_ticket;
typedef void fb_log_ticket_done(struct fb_log *log, struct fb_log_ticket *ticket, int result);

/* Somebody's claim on the next flush. */
struct fb_log_ticket {
    struct fb_link link;
    fb_log_ticket_done *done;
    uint64_t failures; /* log->flush_failures when the first write that it stands for began */
};

/* ---- batches and writers ---- */

enum fb_log_batch_state {
    FB_LOG_BATCH_IDLE,
    FB_LOG_BATCH_GATHERING,
    FB_LOG_BATCH_SENDING, /* slices are sent or in flight */
    FB_LOG_BATCH_WRITTEN, /* waits for earlier batches */
    FB_LOG_BATCH_TICKET,  /* waits for its flush */
    FB_LOG_BATCH_FAILED   /* a write failed; waits for earlier batches */
};

struct fb_log_unit {
    struct fb_log_desc_head head;
    uint16_t desc; /* number of the descriptor buffer */
    uint16_t twin; /* of the second witness of tombstones; else FB_LOG_NO_DESC */
    uint16_t used; /* bytes of it */
};
#define FB_LOG_NO_DESC UINT16_MAX

struct fb_log_batch {
    struct fb_link link;      /* writer->batches, or the free list */
    struct fb_link send_link; /* log->sending */
    struct fb_log_ticket ticket;
    struct fb_log_writer *writer;
    struct fb_list items;
    uint64_t opened_ns;
    uint64_t failures; /* log->flush_failures when it was closed */
    uint32_t number;
    uint32_t first_block;
    uint32_t end_block;
    uint32_t reach; /* that its descriptors promise */
    uint32_t data_blocks;
    uint32_t vec_at;     /* next vector to send */
    uint32_t vec_off;    /* bytes of it that were sent */
    uint64_t sent_bytes; /* handed out in slices */
    uint32_t slices_out;
    uint16_t vec_count;
    uint16_t unit_count;
    uint8_t state;
    bool is_urgent;
    int error;
    struct fb_log_unit units[FB_LOG_BATCH_UNITS];
    struct fb_io_vec vec[FB_LOG_BATCH_VECS];
};

/* One write request of a batch. */
struct fb_log_slice {
    struct fb_io_req req;
    struct fb_link link; /* free list, resend list or no-space list */
    struct fb_log_batch *batch;
    uint8_t tries;
    uint16_t vec_count;
    struct fb_io_vec vec[FB_LOG_SLICE_VECS];
};

/* What an item may claim when segments are short. */
enum fb_log_claim {
    FB_LOG_CLAIM_VALUE,
    FB_LOG_CLAIM_TOMB,
    FB_LOG_CLAIM_COPY
};

enum fb_log_writer_state {
    FB_LOG_WRITER_IDLE,
    FB_LOG_WRITER_OPEN,
    FB_LOG_WRITER_CLOSING, /* takes no more; waits until all is durable or failed */
    FB_LOG_WRITER_SUMMARY, /* writes the summary */
    FB_LOG_WRITER_TRAILER
};

/* The open end of a segment. */
struct fb_log_writer {
    struct fb_list batches; /* in order; the gathering one is last */
    struct fb_log_batch *gather;
    struct fb_log_meta meta; /* header, then summary, then trailer */
    struct fb_log_buffer head;
    struct fb_log_buffer sum_buffer;
    struct fb_log_sum_writer sum;
    uint32_t segment;
    uint32_t next_block;
    uint32_t next_batch;
    uint32_t reach;       /* durably promised: units end here at the latest */
    uint32_t window;      /* of the next promise: grows while units wait for it */
    uint32_t proven;      /* flushed_up_to of the last descriptor that was written */
    uint32_t last_end;    /* of the last unit with records */
    uint32_t broken_from; /* number of the batch from which on everything fails */
    uint64_t data_bytes;
    uint64_t durable_ns; /* when the last batch became durable */
    uint8_t state;
    uint8_t class_hint;
    bool is_header_written; /* so that the next flush covers it */
    bool is_broken;
    bool is_short;      /* a unit waited for the reach */
    uint32_t rescue_of; /* incarnation of the victim whose copies alone may go here; 0 none */
};

/* ---- reading the records of a segment ---- */

struct fb_log_walker;
/* A record was found; false: stop, and give it again on fb_log_walk_resume(). */
typedef bool fb_log_walk_record(struct fb_log *log, struct fb_log_walker *walker,
                                const struct fb_log_record *record,
                                const struct fb_log_found *found);
typedef void fb_log_walk_done(struct fb_log *log, struct fb_log_walker *walker);

enum fb_log_walk_phase {
    FB_LOG_WALK_IDLE,
    FB_LOG_WALK_SUMMARY,
    FB_LOG_WALK_PROBE,   /* finds end and frontier of a segment without a trailer */
    FB_LOG_WALK_UNITS,   /* goes from descriptor to descriptor */
    FB_LOG_WALK_RECORDS, /* inside a unit */
    FB_LOG_WALK_LOST     /* looks at each block of a lost segment */
};

/* What a walk found, for recovery. */
struct fb_log_walk_result {
    uint32_t end;     /* of the last unit */
    uint32_t durable; /* all below was proven or checked without a gap */
    uint32_t records;
    uint32_t tombs;
    bool is_unreadable; /* a block could not be read, also the second time */
};

/* Steps of checking one record that lies beyond the frontier. */
enum fb_log_check_step {
    FB_LOG_CHECK_NONE,
    FB_LOG_CHECK_STAGE, /* waits for a stage slot */
    FB_LOG_CHECK_READ,
    FB_LOG_CHECK_HASH,
    FB_LOG_CHECK_WRITE, /* the same bytes again, so that the next flush covers them */
    FB_LOG_CHECK_GOOD,
    FB_LOG_CHECK_BAD
};

struct fb_log_walker {
    struct fb_log_meta meta;
    struct fb_log_buffer buffer; /* FB_LOG_WALK_BLOCKS */
    struct fb_log_place place;
    fb_log_walk_record *record;
    fb_log_walk_done *done;
    struct fb_log_walk_result result;
    struct fb_log_desc desc;
    struct fb_log_sum sum;
    struct fb_log_record current; /* a record that was taken and not delivered yet */
    struct fb_log_found current_found;
    uint32_t buffer_first; /* block of the segment that is at the start of the buffer */
    uint32_t buffer_count;
    uint32_t single_end; /* after an error: below it blocks are read one by one */
    uint32_t ahead;      /* blocks to read at once */
    uint32_t pos;
    uint32_t end;          /* units end here at the latest */
    uint32_t frontier;     /* all below is durable */
    uint32_t reach;        /* that the last unit before here promised */
    uint32_t gap_at;       /* while searching: where it began; 0: not searching */
    uint32_t scan_end;     /* while searching: where it gives up */
    uint32_t expected;     /* records that the segment should have, if it has a summary */
    uint32_t missing_from; /* ordinals below were delivered already */
    uint32_t summary_first, summary_blocks, summary_index;
    uint8_t phase;
    uint8_t rereads;
    bool has_current;
    bool is_in_sum;  /* walker->sum is being read; in a lost segment: walker->desc */
    bool is_running; /* on the stack */
    bool is_called_again;
    bool is_paused; /* the record callback said stop */
    bool is_tail_torn;
    bool is_block_failed; /* the block in the buffer could not be read */
    bool is_whole;        /* no gap and nothing bad so far */
    bool is_unit_good;
    bool is_rewritten; /* the unit's descriptor */
    bool check_tail;   /* recovery: check and rewrite what lies beyond the frontier */
    bool unit_is_checked;
    /* checking one record */
    struct fb_io_req hash_req;
    struct fb_io_vec hash_vec;
    uint64_t leaves[FB_LOG_LEAVES_MAX];
    struct fb_log_meta data; /* the record's bytes, to and from the stage */
    struct fb_link stage_wait;
    uint32_t stage; /* number of the stage slot; UINT32_MAX none */
    uint8_t check;  /* enum fb_log_check_step */
    uint8_t check_tries;
    bool is_hashing;
    /* recovery's */
    struct fb_log_header header;
    struct fb_log_header last_header; /* of the reading before */
    uint32_t bad_header;              /* as in struct fb_log_fate */
    enum fb_log_block last_found;
    uint8_t reads; /* of header or trailer */
};

/* ---- reclaim ---- */

enum fb_log_reclaim_step {
    FB_LOG_RECLAIM_IDLE,
    FB_LOG_RECLAIM_JUDGE,   /* walking the victim */
    FB_LOG_RECLAIM_COPY,    /* the owner copies forward */
    FB_LOG_RECLAIM_TOMBS,   /* the log copies tombstones forward */
    FB_LOG_RECLAIM_ASK,     /* once more about what should have been copied */
    FB_LOG_RECLAIM_HISTORY, /* record is being written and flushed */
    FB_LOG_RECLAIM_DROP,    /* the owner's index forgets */
    FB_LOG_RECLAIM_FREE     /* FREE header */
};

enum fb_log_victim_state {
    FB_LOG_VICTIM_DROP,
    FB_LOG_VICTIM_WISH,    /* to be copied if there is budget left */
    FB_LOG_VICTIM_KEEP,    /* to be copied */
    FB_LOG_VICTIM_COPYING, /* with the owner */
    FB_LOG_VICTIM_COPIED
};

/* A live value of the victim. */
struct fb_log_victim {
    struct fb_digest digest;
    uint64_t generation;
    uint32_t part;
    uint16_t data_block;
    uint16_t desc_block;
    uint16_t blocks;
    uint8_t state;
};

struct fb_log_reclaim {
    uint8_t step;
    uint8_t was_state;    /* of the victim */
    bool is_asked;        /* by fb_log_reclaim_one() */
    bool is_forced;       /* the victim is taken even over the budget for copying */
    bool is_lost;         /* the victim is a lost segment: only its tombstones count */
    uint32_t incarnation; /* that its record names */
    bool has_read;        /* read_buffer holds read_block */
    bool is_tombs_walked;
    uint32_t victim;        /* segment */
    uint32_t round;         /* of choosing; segments deferred in it are not looked at again */
    uint32_t round_count;   /* segments given up in it */
    bool is_round_fruitful; /* a segment was given up in it that was not forced */
    uint32_t record_count;
    uint32_t next;    /* record that is looked at next */
    uint32_t copying; /* records with the owner: */
    uint32_t active[FB_LOG_COPIES_MAX];
    uint32_t tombs_copying;
    uint32_t lowest_other; /* lowest incarnation alive outside of the victim */
    uint64_t keep_blocks;
    uint64_t deadline_ns;
    uint64_t retry_ns;
    uint32_t read_block;
    struct fb_log_victim *records;
    struct fb_log_meta read; /* of a descriptor, for copying */
    struct fb_log_buffer read_buffer;
    bool is_turn_over; /* there is more to do in the next turn */
};

/* A tombstone that the log copies forward itself. */
struct fb_log_tomb_copy {
    struct fb_log_item item;
    bool is_busy;
    bool is_wanted; /* its reclaim still waits for it */
};

/* Makes a segment's FREE header durable and reads it back. */
struct fb_log_free_op {
    struct fb_log_meta meta;
    struct fb_log_ticket ticket;
    struct fb_log_buffer buffer; /* header copies, and two blocks to read back into */
    uint32_t segment;
    uint32_t incarnation; /* that is ended */
    uint32_t first;       /* copy of the header that is written first, */
    uint32_t count;       /* and how many */
    uint64_t retry_ns;
    uint8_t step;
    uint8_t tries;
    void (*done)(struct fb_log *log, enum fb_log_segment_state state);
};

/* ---- history ---- */

struct fb_log_past {
    struct fb_digest digest;
    uint64_t generation;
    uint32_t next; /* in its bucket; UINT32_MAX end */
    uint32_t used;
};

struct fb_log_history_state {
    struct fb_log_meta meta;
    struct fb_log_ticket ticket;
    struct fb_log_buffer buffer; /* the longest record */
    struct fb_log_past *past;    /* FB_LOG_HISTORY_ENTRIES_MAX for each block of the ring */
    uint32_t *buckets;
    uint32_t bucket_count;
    uint32_t blocks; /* of the ring */
    uint32_t record_blocks_max;
    uint64_t *when_ms;   /* of each ring block; 0 none */
    uint64_t *issued;    /* of each ring block: the number of its record */
    uint32_t next_block; /* where the next record goes */
    uint64_t next_sequence;
    uint32_t count; /* blocks of the record being written */
    uint32_t at;    /* where */
    /* recovery: the run of blocks that is being read */
    struct fb_log_history_head run;
    uint32_t run_length;
    uint64_t newest_sequence;
    uint32_t newest_segment;
    void (*done)(struct fb_log *log, int result);
};

/* ---- superblock, names ---- */

struct fb_log_super_op {
    struct fb_log_meta meta;
    struct fb_log_ticket ticket;
    struct fb_log_buffer buffer; /* a block for each copy */
    struct fb_log_super wanted;
    uint64_t retry_ns;
    uint32_t weaker; /* the copy that is damaged or older: goes first */
    uint32_t copy;   /* that is being written */
    uint32_t tried;
    uint32_t written;
    bool is_busy;
    void (*done)(struct fb_log *log, int result);
};

struct fb_log_names_op {
    struct fb_log_meta meta;
    struct fb_log_ticket ticket;
    struct fb_log_buffer found;   /* the table in force: header block and body */
    struct fb_log_buffer writing; /* the one that is being written, or read at start */
    struct fb_log_names *request; /* NULL: none */
    uint64_t sequence;            /* of the last one that was tried */
    uint32_t slot;                /* holds a table durably: the other one is written first */
    uint32_t bytes;               /* of the one in force */
    uint32_t new_bytes;
    uint8_t copies; /* slots that hold the new table durably */
    bool is_busy;
    void (*done)(struct fb_log *log, int result); /* for a rewrite at start */
};

/* ---- recovery ---- */

enum fb_log_recover_step {
    FB_LOG_RECOVER_IDLE,
    FB_LOG_RECOVER_SUPER,
    FB_LOG_RECOVER_FORMAT,
    FB_LOG_RECOVER_NAMES,
    FB_LOG_RECOVER_HISTORY,
    FB_LOG_RECOVER_SEGMENTS,
    FB_LOG_RECOVER_AGAIN, /* writes again what may not be durable */
    FB_LOG_RECOVER_FLUSH,
    FB_LOG_RECOVER_BOOT,  /* superblock */
    FB_LOG_RECOVER_SETTLE /* FREE headers and trailers */
};

struct fb_log_recover {
    struct fb_log_meta meta;
    struct fb_log_ticket ticket;
    uint8_t step;
    bool may_format;
    bool is_starting;    /* walkers, on the stack */
    uint32_t super_copy; /* that is being read */
    struct fb_log_super supers[FB_LOG_SUPER_COPIES];
    enum fb_log_block super_found[FB_LOG_SUPER_COPIES];
    int super_errno;
    uint8_t rereads;
    uint32_t names_slot;
    uint32_t ring_block;
    uint32_t ring_count;   /* blocks that are being read */
    uint32_t ring_single;  /* below it blocks are read one by one */
    uint32_t next_segment; /* to be read */
    uint32_t scan_to;      /* segments below it are read */
    uint32_t next_rescue;  /* among the segments that were put off */
    uint32_t walking;      /* walkers at work */
    uint32_t settle;       /* segment that is looked at next */
    uint64_t incarnation_max;
    uint32_t boot_max;
    struct fb_list stage_waits;
    uint32_t stage_count;
    uint32_t stage_used; /* bits */
};

/* ---- the log ---- */

struct fb_log {
    struct fb_log_config config;
    struct fb_log_geometry geometry;
    struct fb_log_owner owner;
    struct fb_log_super super; /* in force on the device */
    uint64_t now_ns;
    uint64_t wall_ms; /* at wall_at_ns; in between it is reckoned */
    uint64_t wall_at_ns;
    uint32_t segment_blocks;
    uint32_t classes;
    uint32_t window_blocks; /* how far units go beyond what is durable, at least */
    uint32_t window_max;    /* and at most */
    uint32_t batch_blocks;
    uint32_t summary_blocks_max;
    uint32_t depth; /* of calls on the stack */
    uint8_t phase;
    bool is_fenced;
    bool is_draining;
    bool is_below_floor;
    bool is_waiting_for_segment; /* an item found no segment to go to */
    enum fb_tier_state told_state;
    uint64_t told_free;
    char start_error[FB_LOG_ERROR_TEXT];

    struct fb_sched sched;
    struct fb_log_segment *segments;
    struct fb_log_fate *fates;
    uint32_t grown;      /* segments that the file has room for */
    uint32_t free_grown; /* of those: FREE */
    uint64_t next_incarnation;
    uint32_t tombs;
    uint32_t stuck;     /* segments that are */
    uint32_t uncertain; /* segments that are lost or must go */
    uint32_t stale;     /* segments that hold what was copied from them */
    uint64_t live_blocks;

    struct fb_list copies;     /* what reclaim waits for */
    struct fb_list tombstones; /* of the owner */
    struct fb_list queues[FB_LOG_CLASSES];
    struct fb_log_writer writers[FB_LOG_WRITERS];
    struct fb_log_writer *open[FB_LOG_CLASSES];
    struct fb_log_batch *batches;
    struct fb_list free_batches;
    uint32_t batches_out; /* sent and not finished */
    uint32_t urgent_out;
    struct fb_list sending;
    struct fb_log_slice *slices;
    struct fb_list free_slices;
    struct fb_list resend;
    struct fb_list no_space; /* slices */
    struct fb_list ended;    /* slices */
    struct fb_list parked;   /* metadata writes that found no space */
    struct fb_log_buffer descs;
    uint16_t *free_descs;
    uint32_t free_desc_count;
    uint32_t desc_count;

    uint64_t flush_failures;
    struct fb_io_req flush_req;
    bool is_flushing;
    struct fb_list tickets; /* for the next flush */
    struct fb_list covered; /* by the one in flight */

    struct fb_io_req grow_req;
    bool is_growing;
    uint64_t retry_ns; /* when what found no space goes again; 0: nothing waits */
    uint64_t retry_wait_ns;
    uint64_t grow_retry_ns; /* 0: growing is not blocked */
    uint64_t grow_wait_ns;

    struct fb_list misses; /* reads that are answered without the device */
    uint32_t reads_out;    /* reads that were not answered yet */
    uint32_t meta_out;
    uint32_t errors; /* towards the fence */
    uint64_t forgive_ns;

    struct fb_log_super_op super_op;
    struct fb_log_names_op names;
    struct fb_log_history_state history;
    struct fb_log_reclaim reclaim;
    struct fb_log_free_op free_op;
    struct fb_log_tomb_copy *tomb_copies;
    struct fb_log_scan *scan;
    uint32_t scan_segment; /* that is pinned for it */
    bool is_scanning;
    bool is_scan_over;
    struct fb_log_ticket drain_ticket;
    uint8_t drained; /* enum fb_log_drained */
    struct fb_log_walker walkers[FB_LOG_WALKERS];
    struct fb_log_recover recover;
    struct fb_log_stats stats;
};

/* Walkers that have a fixed job after recovery. */
#define FB_LOG_WALKER_RECLAIM 0
#define FB_LOG_WALKER_SCAN    1

/* ---- log.c ---- */

/* Where a segment begins on the device, bytes. */
static inline uint64_t fb_log_segment_off(const struct fb_log *log, uint32_t segment)
{
    return log->geometry.segments_off + (uint64_t)segment * log->geometry.segment_bytes;
}

/* Blocks that `bytes` take. */
static inline uint32_t fb_log_blocks(uint64_t bytes)
{
    return (uint32_t)fb_div_up(bytes, FB_BLOCK_BYTES);
}

/* A time that has come; a clock that went far back counts as "not yet" for `wait_ns` at most. */
static inline bool fb_log_is_due(uint64_t now_ns, uint64_t at_ns, uint64_t wait_ns)
{
    return now_ns >= at_ns || at_ns - now_ns > wait_ns;
}

/* Ends a public call: the outermost one runs the pump. */
void fb_log_leave(struct fb_log *log);

/* The place of the life that a segment has now. */
struct fb_log_place fb_log_place_of(const struct fb_log *log, uint32_t segment);

/* Ends a start that cannot go on: says why, once, and answers the owner. */
void fb_log_start_failed(struct fb_log *log, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- log_meta.c ---- */

/* Begins a transfer between a buffer and the device. */
void fb_log_meta_start(struct fb_log *log, struct fb_log_meta *meta, enum fb_io_op op,
                       const struct fb_log_buffer *buffer, uint64_t device_off, uint32_t bytes,
                       fb_log_meta_done *done);

/* As fb_log_meta_start(), between arena memory and the device. */
void fb_log_meta_start_arena(struct fb_log *log, struct fb_log_meta *meta, enum fb_io_op op,
                             uint64_t arena_off, uint64_t device_off, uint32_t bytes,
                             fb_log_meta_done *done);

/* Takes a finished metadata request. */
void fb_log_meta_io_done(struct fb_log *log, struct fb_io_req *req);

/* True for the errors that say that the device or file system is full. */
bool fb_log_is_no_space(int64_t result);

/* Counts an error of the device; fences it at the limit. */
void fb_log_count_error(struct fb_log *log);

/* Notes that something found no space and must go again later. */
void fb_log_note_no_space(struct fb_log *log);

/* Sends again what found no space, if its time has come. */
void fb_log_resume_no_space(struct fb_log *log);

/* Gives the device up: fails what waits, and soon what is in flight. */
void fb_log_fence(struct fb_log *log);

/* ---- log_super.c ---- */

/* Writes the superblock with the given changes; `done` may be NULL. One at a time (asserted). */
void fb_log_super_write(struct fb_log *log, const struct fb_log_super *wanted,
                        void (*done)(struct fb_log *log, int result));

/* Raises the frontiers ahead of need; true if it began to. */
bool fb_log_super_pump(struct fb_log *log);

/* ---- log_names.c ---- */

/* Writes the table in log->names.writing to both slots; answers through `done`. */
void fb_log_names_start(struct fb_log *log, uint32_t bytes,
                        void (*done)(struct fb_log *log, int result));

/* Ends a request that waits, when the device is given up. */
void fb_log_names_fail(struct fb_log *log);

/* ---- log_history.c ---- */

/* How far the history reaches back: wall clock of its oldest record once the ring has come round;
 * 0: nothing was forgotten yet. */
uint64_t fb_log_history_since(const struct fb_log *log);

/* The number of the oldest record that is left, once the ring has come round; 0: nothing was
 * forgotten. */
uint64_t fb_log_history_oldest(const struct fb_log *log);

/* Begins a record of `entries` entries in the buffer. */
void fb_log_history_begin(struct fb_log *log, uint32_t segment, uint32_t incarnation,
                          enum fb_reason reason, uint32_t entries);

/* Segments that may be stuck; the next one fences the device. */
uint32_t fb_log_stuck_max(const struct fb_log *log);

/* A stuck segment whose record the next one would overwrite soon, or the count of segments. */
uint32_t fb_log_history_endangered(const struct fb_log *log);

/* Sets an entry of it. */
void fb_log_history_add(struct fb_log *log, uint32_t index,
                        const struct fb_log_history_entry *entry);

/* Writes it, flushes, takes it into memory, and calls done. */
void fb_log_history_write(struct fb_log *log, void (*done)(struct fb_log *log, int result));

/* Recovery: takes a block of the ring. */
void fb_log_history_load(struct fb_log *log, uint32_t ring_block, const void *block);

/* Recovery: the ring has been read. */
void fb_log_history_loaded(struct fb_log *log);

/* ---- log_append.c ---- */

/* Places what can be placed, and closes batches that are due; true if anything moved. */
bool fb_log_append_pump(struct fb_log *log);

/* Ends the gathering of a writer's batch, if it has one, and hands it to be written. */
void fb_log_batch_close(struct fb_log *log, struct fb_log_writer *writer);

/* The next slice of at most `bytes_max` bytes, or NULL. */
struct fb_io_req *fb_log_next_slice(struct fb_log *log, uint64_t bytes_max);

/* Ends slices and batches that are not to be sent any more; true if there were any. */
bool fb_log_send_pump(struct fb_log *log);

/* Takes a finished slice. */
void fb_log_slice_done(struct fb_log *log, struct fb_io_req *req);

/* Gives a batch back with its descriptors; it is on no list. */
void fb_log_batch_free(struct fb_log *log, struct fb_log_batch *batch);

/* Answers all items that are queued and not placed. */
void fb_log_fail_queued(struct fb_log *log, int result);

/* When an open batch wants to be closed, or an idle writer wants to prove its frontier. */
uint64_t fb_log_append_next_ns(const struct fb_log *log);

/* ---- log_flush.c ---- */

/*
 * Claims the next flush for writes of which the first began when log->flush_failures was
 * `failures`: if a flush failed since, they may be lost although the next one succeeds, and so the
 * claim fails.
 */
void fb_log_ticket_start(struct fb_log *log, struct fb_log_ticket *ticket, uint64_t failures,
                         fb_log_ticket_done *done);

/* Sends a flush if one is wanted and none is in flight; true if it did. */
bool fb_log_flush_pump(struct fb_log *log);

/* Takes the finished flush. */
void fb_log_flush_done(struct fb_log *log, int64_t result);

/* All writes of a batch are complete, or one failed. */
void fb_log_batch_written(struct fb_log *log, struct fb_log_batch *batch);

/* Looks at a writer's batches anew: which may be flushed, which have failed. */
void fb_log_writer_advance(struct fb_log *log, struct fb_log_writer *writer);

/* ---- log_segment.c ---- */

/*
 * Opens a segment for a class; NULL if none may be had now. Values leave the reserve alone,
 * tombstones the last segment. That one is opened only for copies of the present victim, as its
 * rescue: as long as the victim lives, the rescue holds nothing else, so that a start may throw it
 * away.
 */
struct fb_log_writer *fb_log_writer_open(struct fb_log *log, uint32_t class_hint,
                                         enum fb_log_claim claim);

/* Fills both copies of the header of a segment's present life. */
void fb_log_header_fill(const struct fb_log *log, uint8_t *blocks, uint32_t segment,
                        enum fb_log_header_state state, uint32_t window_blocks, uint32_t rescue);

/* The writer takes no more: it will be sealed when all is durable. */
void fb_log_writer_close(struct fb_log *log, struct fb_log_writer *writer);

/* Something of the writer failed: from batch `number` on everything fails, and it is retired. */
void fb_log_writer_break(struct fb_log *log, struct fb_log_writer *writer, uint32_t number);

/* Grows the file, seals what is complete; true if anything moved. */
bool fb_log_segment_pump(struct fb_log *log);

/* Takes the finished request to grow. */
void fb_log_grow_done(struct fb_log *log, int64_t result);

/* Segments that can still be opened, grown or not. */
uint32_t fb_log_free_segments(const struct fb_log *log);

/* True while the file cannot be grown. */
bool fb_log_is_growth_blocked(const struct fb_log *log);

/*
 * Makes a segment free on the device; one at a time. `done` gets its new state: FREE; SPARE if only
 * one copy of the header could be written; STUCK if none could.
 */
void fb_log_free_start(struct fb_log *log, uint32_t segment, uint32_t incarnation,
                       void (*done)(struct fb_log *log, enum fb_log_segment_state state));

/* Tries it again, if that is due; true if it did. */
bool fb_log_free_pump(struct fb_log *log);

/* True if the segment holds records that a tombstone may be needed for. */
bool fb_log_is_alive(const struct fb_log_segment *segment);

/* A segment has come to a state in which it holds nothing. */
void fb_log_segment_settle(struct fb_log *log, uint32_t segment, enum fb_log_segment_state state);

/* Takes a segment out of the accounts of tombstones and live bytes. */
void fb_log_segment_forget(struct fb_log *log, uint32_t segment);

/* ---- log_read.c ---- */

/* Answers reads that need no device; true if there were any. */
bool fb_log_read_pump(struct fb_log *log);

/* Takes a finished read of a value. */
void fb_log_read_io_done(struct fb_log *log, struct fb_io_req *req);

/* ---- log_walk.c ---- */

/* Begins to read the records of a closed segment whose end and frontier are known. */
void fb_log_walk_start(struct fb_log *log, struct fb_log_walker *walker, uint32_t segment,
                       bool use_summary, fb_log_walk_record *record, fb_log_walk_done *done);

/* Begins to read a segment at recovery: `trailer` is NULL if it has none. */
void fb_log_walk_recover(struct fb_log *log, struct fb_log_walker *walker, uint32_t segment,
                         const struct fb_log_trailer *trailer, uint32_t reach,
                         fb_log_walk_record *record, fb_log_walk_done *done);

/* Begins to look for the tombstones of a lost segment, block by block. */
void fb_log_walk_lost(struct fb_log *log, struct fb_log_walker *walker, uint32_t segment,
                      fb_log_walk_record *record, fb_log_walk_done *done);

/* Goes on after a record callback said stop. */
void fb_log_walk_resume(struct fb_log *log, struct fb_log_walker *walker);

/* Gives a walk up; its done is not called. Its request may still be in flight. */
void fb_log_walk_abort(struct fb_log_walker *walker);

/* True if a walker can be started. */
bool fb_log_walk_is_idle(const struct fb_log_walker *walker);

/* Takes a finished hash. */
void fb_log_walk_hash_done(struct fb_log *log, struct fb_io_req *req);

/* ---- log_reclaim.c, log_copy.c, log_scan.c ---- */

/* Begins, continues or ends the reclaim of a segment; true if anything moved. */
bool fb_log_reclaim_pump(struct fb_log *log);

/* When reclaim wants to go on by itself. */
uint64_t fb_log_reclaim_next_ns(const struct fb_log *log);

/* Gives the reclaim up, unless its record is being written or written. */
void fb_log_reclaim_abandon(struct fb_log *log);

/* True while it waits for copies forward. */
bool fb_log_reclaim_is_copying(const struct fb_log *log);

/* The reclaim may have something to do: a copy has ended. */
void fb_log_reclaim_progress(struct fb_log *log);

/* The victim is dead: what was opened as its rescue is a segment like others. */
void fb_log_rescue_over(struct fb_log *log);

/*
 * A rescue that was closed, by an error say, while its victim still lives: the tombstones in it are
 * all in the victim too. It goes before all others, and needs no place for them; otherwise an error
 * would cost the last free segment. The count of segments if there is none.
 */
uint32_t fb_log_redundant_rescue(const struct fb_log *log);

/* The writer that is the rescue of a living victim, or NULL. */
const struct fb_log_writer *fb_log_rescue(const struct fb_log *log);

/* True if a tombstone with this horizon may still be needed outside of the victim. */
bool fb_log_is_tomb_needed(const struct fb_log *log, uint64_t horizon);

/* Hands live records to be copied to the owner; true when none is left. */
bool fb_log_copy_step(struct fb_log *log, bool *moved);

/* True if the owner was asked to copy this record, so that its item may use the reserve. */
bool fb_log_is_copy(const struct fb_log *log, const struct fb_log_record *record);

/* Begins to copy a tombstone forward; false if it must wait. */
bool fb_log_tomb_copy(struct fb_log *log, const struct fb_log_record *record,
                      const struct fb_log_found *found);

/* The copy that an item belongs to, or NULL if the item is the owner's. */
struct fb_log_tomb_copy *fb_log_tomb_copy_of(struct fb_log *log, const struct fb_log_item *item);

/* A tombstone's copy is durable or failed. */
void fb_log_tomb_copied(struct fb_log *log, struct fb_log_tomb_copy *copy, int result);

/* Begins or continues a scan of key texts; true if anything moved. */
bool fb_log_scan_pump(struct fb_log *log);

/* Ends a scan when the device is given up. */
void fb_log_scan_fail(struct fb_log *log);

/* ---- log_recover.c, log_finish.c ---- */

/* Formatting: the file has, or has not, got its first length. */
void fb_log_recover_grown(struct fb_log *log, int64_t result);

/* Begins to make what was found durable, and the boot with it. */
void fb_log_finish_start(struct fb_log *log);

/* Frees a walker's stage slot, if it has one, and wakes one that waits. */
void fb_log_stage_release(struct fb_log *log, struct fb_log_walker *walker);

/* Takes a stage slot; false: the walker waits for one and is resumed. */
bool fb_log_stage_take(struct fb_log *log, struct fb_log_walker *walker);

#endif
