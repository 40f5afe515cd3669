/*
 * wire.h - the native protocol: frames and messages. docs/protocol.md has the bytes and the
 * dialogues.
 *
 * Pure: encodes into and decodes from caller memory, every length bounded before use. One struct
 * per message; pointers inside a decoded message point into the frame.
 *
 * Both ends speak first-come: a client opens with HELLO, the node answers WELCOME (or ERROR and
 * closes). After that every request names an `op` of the client's choosing (unique among its open
 * operations), and every answer repeats it. Any number of operations up to the credit are open.
 */
#ifndef FB_PROTO_WIRE_H
#define FB_PROTO_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cursor.h"
#include "base/hash.h"
#include "base/limits.h"

#define FB_WIRE_MAGIC        0xFB /* first byte: neither TLS (0x16) nor text */
#define FB_WIRE_VERSION      1    /* major; another major is refused with both numbers */
#define FB_WIRE_HEADER_BYTES 32
#define FB_WIRE_PAYLOAD_MAX  (FB_FRAME_BYTES_MAX - FB_WIRE_HEADER_BYTES)
#define FB_WIRE_INLINE_MAX   (16u * 1024) /* a value up to this travels inside PUT and CHUNK */
#define FB_WIRE_DIGESTS_MAX  8192 /* of one LOOKUP frame; longer lists are sent as several */
#define FB_WIRE_RUNS_MAX \
    8192 /* extent runs of one GRANT or CHUNK frame; more follow in further frames */
#define FB_WIRE_TEXT_MAX         1024 /* error and explanation texts */
#define FB_WIRE_DATA_HEAD_BYTES  16   /* what stands before the bytes of a DATA frame */
#define FB_WIRE_DATA_MAX         (FB_WIRE_PAYLOAD_MAX - FB_WIRE_DATA_HEAD_BYTES)
#define FB_WIRE_VERSION_MINOR    0         /* told in HELLO and WELCOME, never refused */
#define FB_WIRE_NAME_MAX         64        /* who a client says it is */
#define FB_WIRE_FIELDS_MAX       4096      /* canonical bytes of a namespace's fields */
#define FB_WIRE_DEADLINE_MS_MAX  86400000u /* one day; a remaining time is at most this */
#define FB_WIRE_HOLD_LOADS_MAX   255
#define FB_WIRE_CHUNK_SLOTS      4     /* chunks of one get that may be out at once */
#define FB_WIRE_LEAVES_MAX       32760 /* what one COMMIT can carry */
#define FB_WIRE_RUN_BYTES        12    /* u64 offset, u32 length */
#define FB_WIRE_DIGEST_BYTES     16
#define FB_WIRE_LIST_BYTES_MAX   (32u * 1024) /* keys of one LIST_DONE */
#define FB_WIRE_STATUS_BYTES_MAX (48u * 1024) /* text of STATUS_DONE */

enum fb_wire_type {
    FB_MSG_HELLO = 1,
    FB_MSG_WELCOME,
    FB_MSG_ERROR,     /* the connection ends after it; result + text */
    FB_MSG_PING,      /* either way; answered by PONG with the same op */
    FB_MSG_PONG,      /* carries the age of the shard's last turn, tier state */
    FB_MSG_NAMESPACE, /* typed fields -> handle, id, secret, epoch, quotas */
    FB_MSG_NAMESPACE_DONE,
    FB_MSG_PUT,        /* key, size, hints; small values inline with their leaf */
    FB_MSG_GRANT,      /* generation; runs (shared memory) or a window (stream) */
    FB_MSG_DATA,       /* op, offset, bytes: client -> node for a put, node -> client for a get */
    FB_MSG_COMMIT,     /* op, generation, leaves */
    FB_MSG_PUT_DONE,   /* result; flag RELEASE_WANTED: memory is in quarantine until RELEASE */
    FB_MSG_RELEASE,    /* client will not touch the grant's memory any more */
    FB_MSG_GET,        /* key, range */
    FB_MSG_CHUNK,      /* one part: identity, root, runs or inline bytes, or DATA frames follow */
    FB_MSG_CHUNK_DONE, /* client has moved a chunk: credit; flag BAD: another root found */
    FB_MSG_GET_DONE,   /* result, reason, value bytes, generation, tiers */
    FB_MSG_LOOKUP,     /* digests -> found bits, with hold */
    FB_MSG_LOOKUP_DONE,
    FB_MSG_HOLD_RELEASE, /* digests; no answer but LOOKUP_DONE with n = 0 */
    FB_MSG_REMOVE,
    FB_MSG_REMOVE_DONE,
    FB_MSG_WAIT_PERSISTED,
    FB_MSG_WAIT_DONE,
    FB_MSG_EPOCH, /* bump */
    FB_MSG_EPOCH_DONE,
    FB_MSG_DROP_DRAM,
    FB_MSG_DROP_DONE,
    FB_MSG_EXPLAIN,
    FB_MSG_EXPLAIN_DONE,
    FB_MSG_LIST,
    FB_MSG_LIST_DONE,
    FB_MSG_STATUS, /* JSON text of the node */
    FB_MSG_STATUS_DONE,
    FB_MSG_CANCEL, /* the caller's deadline passed */
    FB_MSG_TYPE_COUNT
};

/* Feature bits: a client offers, the node answers the intersection. */
#define FB_FEATURE_SHM \
    (1ull << 0) /* same host, same user: the pool's memfd comes beside WELCOME (SCM_RIGHTS) */
#define FB_FEATURE_HOLDS (1ull << 1)

/* Frame flags. */
#define FB_FRAME_MORE           (1u << 0) /* the same message goes on in the next frame of this op */
#define FB_FRAME_RELEASE_WANTED (1u << 1) /* PUT_DONE */
#define FB_FRAME_BAD            (1u << 2) /* CHUNK_DONE */
#define FB_FRAME_PERSISTED      (1u << 3) /* PUT_DONE, WAIT_DONE */
#define FB_FRAME_CHECKED \
    (1u << 4) /* DATA: check covers the bytes too, since no root does: a cut range */

/* Flags of requests; the same bits as the engine's. */
#define FB_WIRE_PUT_UPSERT     (1u << 0)
#define FB_WIRE_GET_VERIFY     (1u << 1)
#define FB_WIRE_GET_HELD       (1u << 2)
#define FB_WIRE_GET_NO_PROMOTE (1u << 3)

#define FB_WIRE_PERSIST_MODES \
    5 /* PUT.persist is below: the node's default, off, evict, behind, through */

/* Bits of a lookup's answer per key. */
#define FB_WIRE_FOUND_READABLE (1u << 0)
#define FB_WIRE_FOUND_DRAM     (1u << 1)
#define FB_WIRE_FOUND_SSD      (1u << 2)
#define FB_WIRE_FOUND_HELD     (1u << 3)

/* How the bytes of a CHUNK come. */
enum fb_wire_chunk_mode {
    FB_WIRE_CHUNK_RUNS,   /* lie in the pool, at the runs; CHUNK_DONE is awaited */
    FB_WIRE_CHUNK_INLINE, /* are in the frame; no CHUNK_DONE */
    FB_WIRE_CHUNK_DATA,   /* follow in DATA frames; CHUNK_DONE is awaited */
    FB_WIRE_CHUNK_MODES
};

/* State of a node in PONG. */
enum fb_wire_node_state {
    FB_WIRE_RECOVERING,
    FB_WIRE_SERVING,
    FB_WIRE_DRAINING,
    FB_WIRE_NODE_STATES
};

/*
 * The header of every frame, little-endian, 32 bytes:
 *   0 u8 magic, 1 u8 version, 2 u8 type, 3 u8 flags, 4 u32 payload bytes, 8 u64 op,
 *   16 u32 shard-map version, 20 u32 reserved (0), 24 u64 check
 * check = XXH3-64 over the header with check = 0, and over the payload too except for DATA, whose
 * bytes the value's root covers end to end (its 16-byte preamble is covered).
 */
struct fb_wire_header {
    uint8_t type, flags;
    uint32_t payload_bytes;
    uint32_t map_version;
    uint64_t op;
    uint64_t check;
};

struct fb_msg_hello {
    uint64_t features;
    uint64_t client_nonce;  /* random per process and fork */
    uint64_t ended_session; /* an earlier session of this process, of whose memory it touches none
                               any more; 0: none */
    uint32_t pid;
    uint32_t version_minor;
    uint16_t name_bytes; /* who, for logs */
    const uint8_t *name;
};

struct fb_msg_welcome {
    uint64_t features, boot_nonce, session, node_id;
    uint64_t pool_bytes, value_bytes_max, inline_credit_bytes;
    uint32_t chunk_bytes, op_credit, heartbeat_ms, shards, map_version, version_minor;
};

struct fb_msg_error {
    int32_t result;
    uint16_t text_bytes;
    const uint8_t *text;
};

struct fb_msg_pong {
    uint64_t turn_age_us; /* since the shard's last turn */
    uint8_t tier;         /* enum fb_tier_state */
    uint8_t state;        /* enum fb_wire_node_state */
};

struct fb_msg_namespace { /* fields: canonical bytes of docs/format.md */
    uint32_t deadline_ms;
    uint32_t fields_bytes;
    const uint8_t *fields;
    uint64_t quota_dram_bytes, quota_ssd_bytes;
};

struct fb_msg_namespace_done {
    int32_t result;
    uint16_t ns;
    uint8_t id[16], secret[16];
    uint64_t epoch;
};

/* Head of every request on one key. deadline_ms: remaining time, so that clocks need not agree. */
struct fb_msg_key {
    uint16_t ns;
    uint16_t key_bytes;
    uint32_t deadline_ms;
    uint64_t epoch;
    const uint8_t *key;
};

struct fb_msg_put {
    struct fb_msg_key key;
    uint64_t value_bytes;
    struct fb_digest group;
    uint16_t depth;
    uint8_t persist, pin_class, put_flags;
    uint32_t inline_bytes; /* 0, or value_bytes <= FB_WIRE_INLINE_MAX */
    uint64_t inline_leaf;  /* XXH3-64 of the bytes */
    const uint8_t *inline_data;
};

/* Runs of arena memory, in the order of the value's bytes. */
struct fb_wire_run {
    uint64_t off; /* bytes into the pool */
    uint32_t len;
};

struct fb_msg_grant {
    uint64_t generation;
    uint64_t window_bytes; /* stream: DATA may be sent up to the value's length; 0 with runs */
    uint64_t value_off;    /* where the runs of this frame begin */
    uint32_t run_count;
    const uint8_t *runs; /* encoded, fb_wire_run_at() */
};

struct fb_msg_data {
    uint64_t off; /* in the value */
    uint32_t len;
    const uint8_t *bytes;
};

struct fb_msg_commit {
    uint64_t generation;
    uint32_t leaf_count; /* ceil per part: leaves never span parts */
    const uint8_t *leaves;
};

struct fb_msg_put_done {
    int32_t result;
    uint8_t reason;
    uint64_t generation;
};

struct fb_msg_get {
    struct fb_msg_key key;
    uint64_t range_off, range_bytes;
    uint8_t get_flags;
};

struct fb_msg_chunk {
    uint8_t slot; /* which of the window's chunks, repeated in CHUNK_DONE */
    uint8_t verified, from_ssd;
    uint8_t mode; /* 0 runs, 1 inline, 2 DATA frames follow */
    uint32_t part, part_bytes, want_off, want_bytes;
    uint64_t value_off, value_bytes, generation, root;
    uint32_t run_count; /* runs of the whole part */
    const uint8_t *runs;
    uint32_t inline_bytes; /* the wanted range */
    const uint8_t *inline_data;
};

struct fb_msg_chunk_done {
    uint8_t slot;
};

struct fb_msg_get_done {
    int32_t result;
    uint8_t reason, tiers;
    uint64_t value_bytes, generation;
};

struct fb_msg_epoch { /* EPOCH: bumps the namespace if `epoch` is still its epoch */
    uint16_t ns;
    uint32_t deadline_ms;
    uint64_t epoch;
};

struct fb_msg_lookup { /* also HOLD_RELEASE */
    uint16_t ns;
    uint64_t epoch;
    uint32_t hold_ms, hold_loads, deadline_ms;
    uint32_t count;
    const uint8_t *digests; /* 16 bytes each, lo then hi */
};

struct fb_msg_lookup_done {
    int32_t result;
    uint32_t count;
    const uint8_t *found; /* one byte a key, enum fb_found */
};

struct fb_msg_done { /* REMOVE_DONE, WAIT_DONE, EPOCH_DONE, DROP_DONE */
    int32_t result;
    uint8_t reason;
    uint64_t value; /* EPOCH_DONE: the epoch that holds now; others: generation, or 0 */
};

struct fb_msg_explain_done {
    int32_t result;
    uint8_t present, tiers, reason;
    uint64_t value_bytes, generation, when_ms, since_ms;
    uint16_t text_bytes; /* where it lies, in words */
    const uint8_t *text;
};

struct fb_msg_list { /* LIST */
    uint16_t ns;
    uint64_t epoch, cursor;
    uint32_t deadline_ms;
};

struct fb_msg_list_done {
    int32_t result;
    uint64_t cursor;
    uint32_t bytes;
    const uint8_t *keys; /* (u16 length, key) repeated */
};

struct fb_msg_text { /* STATUS_DONE */
    int32_t result;
    uint32_t text_bytes;
    const uint8_t *text;
};

/* ---- frames ---- */

/* What stands for an error of decoding: FB_OK or FB_PROTOCOL. `*bad` then names the field, in a
 * static text ("PUT.key_bytes"). */

/* Writes the 32 bytes of a header as they are in `header`, its check included. */
void fb_wire_header_encode(struct fb_writer *writer, const struct fb_wire_header *header);

/*
 * Reads a header and checks what it says of itself: magic, version, type, flags allowed for the
 * type, payload within the bounds of the type, reserved field 0. Does not look at the check.
 * Returns FB_OK, FB_UNSUPPORTED for another major version, or FB_PROTOCOL; `*bad` names the field.
 */
int fb_wire_header_decode(const uint8_t bytes[FB_WIRE_HEADER_BYTES], struct fb_wire_header *header,
                          const char **bad);

/*
 * How many bytes of a frame's payload its check covers: all, or the preamble alone for DATA that is
 * not flagged CHECKED.
 */
uint32_t fb_wire_covered_bytes(const struct fb_wire_header *header);

/* The check over a header (whose own check field counts as 0) and `covered` bytes of payload. */
uint64_t fb_wire_check(const uint8_t bytes[FB_WIRE_HEADER_BYTES], const void *payload,
                       uint32_t covered);

/* Begins a frame: room for its header. The payload is encoded next, then fb_wire_frame_end().
 * Returns where it began. */
size_t fb_wire_frame_begin(struct fb_writer *writer);

/* Ends the frame that began at `at`: fills in the header. Nothing happens if the writer has failed.
 */
void fb_wire_frame_end(struct fb_writer *writer, size_t at, uint8_t type, uint8_t flags,
                       uint64_t op, uint32_t map_version);

/*
 * Header and preamble of a DATA frame for `len` bytes (1 to FB_WIRE_DATA_MAX) at `off` in the
 * value; the bytes follow on the wire. `bytes`: NULL, or the bytes, contiguous, to be checked with
 * the frame (CHECKED).
 */
void fb_wire_data_head(uint8_t out[FB_WIRE_HEADER_BYTES + FB_WIRE_DATA_HEAD_BYTES], uint64_t op,
                       uint64_t off, uint32_t len, const uint8_t *bytes, uint32_t map_version);

/* A checked DATA frame whose bytes come in pieces. */
struct fb_wire_data_check {
    struct fb_hash_state state;
};

/* Writes header and preamble of a checked frame to `head` (as fb_wire_data_head()), without check.
 */
void fb_wire_data_check_begin(struct fb_wire_data_check *check, uint8_t *head, uint64_t op,
                              uint64_t off, uint32_t len, uint32_t map_version);

/* Adds the next of the frame's bytes. */
void fb_wire_data_check_add(struct fb_wire_data_check *check, const void *bytes, size_t count);

/* All bytes were added: fills in the check of `head`. */
void fb_wire_data_check_end(struct fb_wire_data_check *check, uint8_t *head);

/* "PUT", "GET_DONE"...; "unknown" outside the list. Static. */
const char *fb_wire_type_name(int type);

/* True for the types that a client sends; PING and PONG go either way. */
bool fb_wire_type_from_client(int type);

/* ---- arrays inside messages ---- */

/* Run `i` of encoded runs. The caller has checked the index against run_count. */
struct fb_wire_run fb_wire_run_at(const uint8_t *runs, uint32_t i);
/* Appends a run. */
void fb_wire_run_encode(struct fb_writer *writer, const struct fb_wire_run *run);
/* Digest `i` of encoded digests. */
struct fb_digest fb_wire_digest_at(const uint8_t *digests, uint32_t i);
/* Appends a digest: lo, then hi. */
void fb_wire_digest_encode(struct fb_writer *writer, const struct fb_digest *digest);
/* Leaf `i` of encoded leaves. */
uint64_t fb_wire_leaf_at(const uint8_t *leaves, uint32_t i);

/*
 * Leaves of a value of `value_bytes` in parts of `chunk_bytes`: ceil per part. Asserts chunk_bytes
 * != 0.
 */
uint64_t fb_wire_leaf_count(uint64_t value_bytes, uint32_t chunk_bytes);

/* ---- messages ----
 *
 * Encoders append the payload and nothing else; what is out of range is a fault of the program and
 * asserted, what does not fit makes the writer fail. Decoders want the payload and nothing behind
 * it: trailing bytes, a reserved field that is not 0 or a number out of its range give FB_PROTOCOL
 * and the field's name. Pointers in the decoded message point into the payload.
 */
#define FB_WIRE_CODEC(name, type)                                                       \
    void fb_wire_##name##_encode(struct fb_writer *writer, const struct type *message); \
    int fb_wire_##name##_decode(struct fb_reader *reader, struct type *message, const char **bad)

FB_WIRE_CODEC(hello, fb_msg_hello);
FB_WIRE_CODEC(welcome, fb_msg_welcome);
FB_WIRE_CODEC(error, fb_msg_error);
FB_WIRE_CODEC(pong, fb_msg_pong);
FB_WIRE_CODEC(namespace, fb_msg_namespace);
FB_WIRE_CODEC(namespace_done, fb_msg_namespace_done);
FB_WIRE_CODEC(put, fb_msg_put);
FB_WIRE_CODEC(grant, fb_msg_grant);
FB_WIRE_CODEC(data, fb_msg_data); /* preamble and bytes; a receiver that streams reads the preamble
                                     with data_head */
FB_WIRE_CODEC(commit, fb_msg_commit);
FB_WIRE_CODEC(put_done, fb_msg_put_done);
FB_WIRE_CODEC(get, fb_msg_get);
FB_WIRE_CODEC(chunk, fb_msg_chunk);
FB_WIRE_CODEC(chunk_done, fb_msg_chunk_done);
FB_WIRE_CODEC(get_done, fb_msg_get_done);
FB_WIRE_CODEC(lookup, fb_msg_lookup); /* and HOLD_RELEASE */
FB_WIRE_CODEC(lookup_done, fb_msg_lookup_done);
FB_WIRE_CODEC(key, fb_msg_key); /* REMOVE, WAIT_PERSISTED, DROP_DRAM, EXPLAIN */
FB_WIRE_CODEC(done, fb_msg_done);
FB_WIRE_CODEC(epoch, fb_msg_epoch);
FB_WIRE_CODEC(explain_done, fb_msg_explain_done);
FB_WIRE_CODEC(list, fb_msg_list);
FB_WIRE_CODEC(list_done, fb_msg_list_done);
FB_WIRE_CODEC(text, fb_msg_text);

/* PING, RELEASE, STATUS and CANCEL have no payload: FB_OK, or FB_PROTOCOL if there is one. */
int fb_wire_empty_decode(struct fb_reader *reader, const char **bad);

/* The 16 bytes before the bytes of a DATA frame with `payload_bytes` of payload; message->bytes is
 * NULL. */
int fb_wire_data_head_decode(const uint8_t head[FB_WIRE_DATA_HEAD_BYTES], uint32_t payload_bytes,
                             struct fb_msg_data *message, const char **bad);

_Static_assert(FB_WIRE_PAYLOAD_MAX >= 32 + FB_WIRE_DIGESTS_MAX * FB_WIRE_DIGEST_BYTES,
               "a full LOOKUP is one frame");
_Static_assert(FB_WIRE_PAYLOAD_MAX >= 64 + FB_WIRE_RUNS_MAX * FB_WIRE_RUN_BYTES,
               "a full GRANT or CHUNK is one frame");
_Static_assert(FB_WIRE_PAYLOAD_MAX >= 16 + FB_WIRE_LEAVES_MAX * 8,
               "all leaves of a value fit into one COMMIT");
_Static_assert(FB_WIRE_LEAVES_MAX >= FB_VALUE_LEAVES_MAX,
               "a value of 1 GiB in full leaves can be committed");
_Static_assert(FB_WIRE_PAYLOAD_MAX >= 64 + FB_KEY_BYTES_MAX + FB_WIRE_INLINE_MAX,
               "an inline PUT is one frame");

#endif
