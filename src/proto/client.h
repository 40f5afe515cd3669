/*
 * client.h - the client's side of one connection: operations, windows, credits, deadlines, checks.
 *
 * Pure: `now_ns` and an event in, frames and copy jobs out. The owner (src/client, or the
 * simulator) moves the bytes: frames out   fb_proto_client_take_frame() writes the next frame, if
 * there is one; frames in    fb_proto_client_input(), and for DATA fb_proto_client_data_begin() and
 * _end(); copy jobs    fb_proto_client_take_job() after each input: bytes to be moved between the
 * caller's buffers and the pool, at any speed and in any order, fb_proto_client_job_done(). time
 * fb_proto_client_tick(), at the latest at fb_proto_client_next_ns().
 *
 * One call (a batch) is in progress on a connection at a time; it is a cursor over the caller's
 * items and has as many operations open as the credit allows. Each key gets one result. A call ends
 * by its deadline plus FB_PROTO_ABORT_NS; what is then still open at the node goes on as an
 * operation without a call, whose answers are taken and dropped.
 *
 * Invariants:
 *  - a call that has ended has no copy job and no DATA frame that touches its caller's buffers;
 *  - RELEASE or CHUNK_DONE for memory is sent only when no job on that memory is out;
 *  - a get ends as FB_OK only if every wanted byte came, each part of one generation, each part's
 *    root computed over the key that was asked for.
 *
 * The pool itself is never touched here, nor are the caller's buffers over shared memory without
 * inline values: a simulator may name bytes that are not there. Bytes of streams and inline values
 * are hashed and copied here, since they lie in memory that is the caller's or the frame's.
 */
#ifndef FB_PROTO_CLIENT_H
#define FB_PROTO_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/limits.h"
#include "base/region.h"
#include "forebay/forebay.h"
#include "proto/wire.h"

/* Operations that a connection may have open, whatever credit the node gives. */
#define FB_PROTO_OPS_MAX 128
/* Puts of more than one part that may be open at once. */
#define FB_PROTO_BIG_PUTS 4
/* Leaves of one part. */
#define FB_PROTO_LEAVES_MAX (FB_CHUNK_BYTES_MAX / FB_LEAF_BYTES)
/* How long a call waits for last answers after its deadline. */
#define FB_PROTO_ABORT_NS (FB_ABORT_BOUND_MS / 2 * FB_MS_NS)
/* Bytes of one DATA frame: half a leaf, so that no frame spans two. */
#define FB_PROTO_DATA_BYTES (FB_LEAF_BYTES / 2)
/* Keys of one LOOKUP; a longer list goes as several, all at once. */
#define FB_PROTO_LOOKUP_KEYS     1024

#define FB_NAMESPACE_FIELD_COUNT 7
/* A namespace's fields in canonical form: u8 count, then u8 id, u32 length, bytes of each given
 * one, ids rising. A node takes this many bytes. */
#define FB_NAMESPACE_BYTES_MAX 1024

struct fb_proto_config {
    uint64_t features;      /* offered: FB_FEATURE_... */
    uint64_t nonce;         /* random, of this connection and its successors after a loss */
    uint64_t ended_session; /* the session of the predecessor, 0 for none */
    uint32_t pid;
    const char *name; /* for the node's log; cut at FB_WIRE_NAME_MAX; borrowed until init ends */
    const uint8_t *fields; /* canonical; NULL: no namespace is opened; borrowed for good */
    uint32_t fields_bytes;
    uint64_t quota_dram_bytes, quota_ssd_bytes;
    uint32_t ops_max;          /* 1 to FB_PROTO_OPS_MAX; 0: that */
    uint32_t leaves_max;       /* of one put; 0: FB_WIRE_LEAVES_MAX */
    uint32_t inline_bytes_max; /* values up to this are put inline; 0: never */
    uint64_t commit_delay_ns;  /* tests: each commit is held back so long */
};

/* ---- calls ---- */

enum fb_proto_call_kind {
    FB_PROTO_PUT,
    FB_PROTO_GET,
    FB_PROTO_EXISTS,
    FB_PROTO_HOLD_RELEASE,
    FB_PROTO_REMOVE,
    FB_PROTO_WAIT,
    FB_PROTO_DROP,
    FB_PROTO_BUMP,    /* single ones: no items */
    FB_PROTO_REFRESH, /* the namespace is opened again, for its epoch */
    FB_PROTO_EXPLAIN, /* one item of kind key */
    FB_PROTO_LIST,
    FB_PROTO_STATUS,
    FB_PROTO_CALL_KINDS
};

/* A call. The caller owns it and what it points at, until fb_proto_call_is_over(). */
struct fb_proto_call {
    /* ---- in ---- */
    uint8_t kind; /* enum fb_proto_call_kind */
    size_t count; /* items */
    union {
        struct fb_put_item *put;
        struct fb_get_item *get;
        struct fb_exists_item *exists;
        struct fb_key_item *key;
    } items;
    uint64_t epoch;
    uint64_t deadline_ns;
    uint32_t hold_ms, hold_loads;       /* EXISTS; loads also HOLD_RELEASE */
    uint32_t *scratch;                  /* PUT: fb_proto_call_scratch_words(count) words, or NULL */
    struct fb_explanation *explanation; /* EXPLAIN */
    fb_list_fn *each;                   /* LIST; called from inside fb_proto_client_input() */
    void *each_context;
    char *text; /* STATUS: room for the text and a final zero */
    size_t text_bytes;
    /* ---- out ---- */
    int result;         /* of single calls; of a batch: 0, or why nothing could be asked */
    int each_result;    /* LIST: what stopped it */
    uint64_t epoch_now; /* BUMP, REFRESH */
    size_t text_needed; /* STATUS */
    /* ---- the machine's ---- */
    size_t next;       /* the first item that was not begun */
    uint32_t open_ops; /* operations that may still set a result */
    uint64_t cursor;   /* LIST */
    uint64_t abort_ns; /* 0 until the deadline has passed */
    bool is_abandoned; /* the time for last answers has passed as well */
    bool ended;
};

/* ---- frames and jobs ---- */

/* A frame to be sent: `bytes` in the room that was given, then perhaps bytes of the caller's. */
struct fb_proto_frame {
    size_t bytes;
    bool needs_room;           /* nothing was written: try again with FB_FRAME_BYTES_MAX */
    const struct fb_buf *bufs; /* payload: `payload_bytes` bytes from `payload_off` on */
    size_t buf_count;
    uint64_t payload_off;
    uint32_t payload_bytes; /* 0: none */
};

/* Where the bytes of an incoming DATA frame go. */
struct fb_proto_sink {
    const struct fb_buf *bufs; /* NULL: nowhere, they are skipped */
    size_t buf_count;
    uint64_t off; /* into the buffers */
    uint32_t bytes;
};

/*
 * A copy between the caller's buffers and one part of a value in the pool.
 *
 * To the pool (a put): the buffers' bytes from buf_off on, want_bytes of them, into the runs. From
 * the pool (a get): of the runs, bytes [want_off, want_off + want_bytes) into the buffers from
 * buf_off on. In both cases the leaves are those of the whole part: of the bytes as they were
 * copied, and of the rest in place.
 */
struct fb_proto_job {
    bool to_pool;
    uint8_t chunk; /* get: slot */
    uint32_t slot; /* the operation's */
    uint64_t op;
    size_t item;
    const struct fb_proto_call *call;
    const struct fb_buf *bufs;
    size_t buf_count;
    uint64_t buf_off;
    uint64_t value_off; /* of the part */
    uint32_t part_bytes, want_off, want_bytes;
    uint64_t generation;
    const uint8_t *runs; /* encoded: fb_wire_run_at(); valid until the next input */
    uint32_t run_count;
    uint32_t leaf_count; /* ceil(part_bytes / FB_LEAF_BYTES) */
};

/* ---- the connection ---- */

enum fb_proto_state {
    FB_PROTO_IDLE,    /* not started */
    FB_PROTO_HELLO,   /* waits for WELCOME */
    FB_PROTO_OPENING, /* waits for the namespace */
    FB_PROTO_READY,
    FB_PROTO_LOST /* fb_proto_client_result() says why */
};

struct fb_proto_client;

/*
 * Writes the canonical bytes of a namespace's fields. Returns their number; FB_BAD_ARGUMENT if no
 * field is given, one is too long or all together are, and then *why says so.
 */
int fb_proto_namespace_fields(const struct fb_namespace_fields *ns,
                              uint8_t out[FB_NAMESPACE_BYTES_MAX], const char **why);

/* Bytes of memory for a connection. */
size_t fb_proto_client_footprint(const struct fb_proto_config *config);

/* Makes a connection in memory of the caller. The region must outlive it. */
struct fb_proto_client *fb_proto_client_init(const struct fb_proto_config *config,
                                             struct fb_region *region);

/* Begins: HELLO, then the namespace, which is to be open by `deadline_ns`. */
void fb_proto_client_start(struct fb_proto_client *client, uint64_t now_ns, uint64_t deadline_ns);

/* Where the connection stands. */
enum fb_proto_state fb_proto_client_state(const struct fb_proto_client *client);

/* FB_PROTO_LOST: the result that stands for it. Else FB_OK. */
int fb_proto_client_result(const struct fb_proto_client *client);

/* FB_PROTO_LOST: what the node or the decoder said, may be empty. Static or the client's. */
const char *fb_proto_client_why(const struct fb_proto_client *client);

/* What the node told in WELCOME; all zero before it. */
const struct fb_msg_welcome *fb_proto_client_welcome(const struct fb_proto_client *client);

/* The epoch that the namespace had when this connection opened it. */
uint64_t fb_proto_client_epoch(const struct fb_proto_client *client);

/* True if a successor must name this connection's session in `ended_session`: memory of the pool
 * may have been in its hands when it was lost, as the node sees it. */
bool fb_proto_client_owes_memory(const struct fb_proto_client *client);

/* ---- events ---- */

/*
 * Begins a call; the connection is READY and has no other. `call` must be zeroed apart from its
 * "in" part.
 */
void fb_proto_client_begin(struct fb_proto_client *client, uint64_t now_ns,
                           struct fb_proto_call *call);

/* True once every item has its result and nothing touches the caller's memory any more. */
static inline bool fb_proto_call_is_over(const struct fb_proto_call *call)
{
    return call->ended;
}

/* Words of scratch memory with which a put of `count` keys finds its duplicates. */
size_t fb_proto_call_scratch_words(size_t count);

/* Gives every item of the call, and the call itself, the same result. */
void fb_proto_call_fail(struct fb_proto_call *call, int result);

/*
 * Writes the next frame into `room`. Returns false if there is none, or if it needs more room
 * (frame->needs_room). A frame with payload is followed by nothing before its payload was sent.
 */
bool fb_proto_client_take_frame(struct fb_proto_client *client, uint64_t now_ns, uint8_t *room,
                                size_t room_bytes, struct fb_proto_frame *frame);

/*
 * Takes a whole frame other than DATA, header and payload. All jobs of the frame before must have
 * been taken. A frame that breaks the protocol ends the connection (FB_PROTO_LOST).
 */
void fb_proto_client_input(struct fb_proto_client *client, uint64_t now_ns, const uint8_t *frame,
                           size_t bytes);

/*
 * Takes header and preamble of a DATA frame and says where its bytes go. After they are there (or
 * were skipped) fb_proto_client_data_end() is called. Returns false if the connection has ended.
 */
bool fb_proto_client_data_begin(struct fb_proto_client *client, uint64_t now_ns,
                                const uint8_t head[FB_WIRE_HEADER_BYTES + FB_WIRE_DATA_HEAD_BYTES],
                                struct fb_proto_sink *sink);

/* The bytes of the DATA frame are there. `skipped`: they were not written into the sink, since the
 * call ended meanwhile. */
void fb_proto_client_data_end(struct fb_proto_client *client, uint64_t now_ns, bool skipped);

/* Takes the next copy job of the last input. Returns false if there is none. */
bool fb_proto_client_take_job(struct fb_proto_client *client, struct fb_proto_job *job);

/* True as long as it makes sense to do the job: false if the grant was revoked or the call gave up.
 * Whoever copies late asks before each piece; a job that makes no sense is ended with `moved`
 * false. */
bool fb_proto_client_job_is_wanted(const struct fb_proto_client *client,
                                   const struct fb_proto_job *job);

/*
 * The job has ended, and does not touch any memory any more. `leaves`: job->leaf_count checksums,
 * if `moved`.
 */
void fb_proto_client_job_done(struct fb_proto_client *client, uint64_t now_ns,
                              const struct fb_proto_job *job, const uint64_t *leaves, bool moved);

/* Time has passed: commits that were held back, heartbeat, deadlines. */
void fb_proto_client_tick(struct fb_proto_client *client, uint64_t now_ns);

/* When fb_proto_client_tick() is due next; UINT64_MAX: never. */
uint64_t fb_proto_client_next_ns(const struct fb_proto_client *client);

/* The connection is gone: every open operation ends as `result`, FB_CONNECTION as a rule. `why`:
 * static. */
void fb_proto_client_lost(struct fb_proto_client *client, uint64_t now_ns, int result,
                          const char *why);

/* Operations that are open at the node. Without a call these are left over from calls that gave up.
 */
uint32_t fb_proto_client_open_ops(const struct fb_proto_client *client);

#endif
