/*
 * wire.h - the native protocol: frames and messages. docs/protocol.md has the bytes and the dialogues.
 *
 * Pure: encodes into and decodes from caller memory, every length bounded before use. One struct per
 * message; pointers inside a decoded message point into the frame.
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

#define FB_WIRE_MAGIC 0xFB        /* first byte: neither TLS (0x16) nor text */
#define FB_WIRE_VERSION 1         /* major; another major is refused with both numbers */
#define FB_WIRE_HEADER_BYTES 32
#define FB_WIRE_PAYLOAD_MAX (FB_FRAME_BYTES_MAX - FB_WIRE_HEADER_BYTES)
#define FB_WIRE_INLINE_MAX (16u * 1024) /* a value up to this travels inside PUT and CHUNK */
#define FB_WIRE_DIGESTS_MAX 8192        /* of one LOOKUP frame; longer lists are sent as several */
#define FB_WIRE_RUNS_MAX 8192           /* extent runs of one GRANT or CHUNK frame; more follow in further frames */
#define FB_WIRE_TEXT_MAX 1024           /* error and explanation texts */
#define FB_WIRE_DATA_MAX (FB_FRAME_BYTES_MAX - FB_WIRE_HEADER_BYTES - 16)

enum fb_wire_type {
    FB_MSG_HELLO = 1,
    FB_MSG_WELCOME,
    FB_MSG_ERROR,          /* the connection ends after it; result + text */
    FB_MSG_PING,           /* either way; answered by PONG with the same op */
    FB_MSG_PONG,           /* carries the age of the shard's last turn, tier state */
    FB_MSG_NAMESPACE,      /* typed fields -> handle, id, secret, epoch, quotas */
    FB_MSG_NAMESPACE_DONE,
    FB_MSG_PUT,            /* key, size, hints; small values inline with their leaf */
    FB_MSG_GRANT,          /* generation; runs (shared memory) or a window (stream) */
    FB_MSG_DATA,           /* op, offset, bytes: client -> node for a put, node -> client for a get */
    FB_MSG_COMMIT,         /* op, generation, leaves */
    FB_MSG_PUT_DONE,       /* result; flag RELEASE_WANTED: memory is in quarantine until RELEASE */
    FB_MSG_RELEASE,        /* client will not touch the grant's memory any more */
    FB_MSG_GET,            /* key, range */
    FB_MSG_CHUNK,          /* one part: identity, root, runs or inline bytes, or DATA frames follow */
    FB_MSG_CHUNK_DONE,     /* client has moved a chunk: credit; flag BAD: another root found */
    FB_MSG_GET_DONE,       /* result, reason, value bytes, generation, tiers */
    FB_MSG_LOOKUP,         /* digests -> found bits, with hold */
    FB_MSG_LOOKUP_DONE,
    FB_MSG_HOLD_RELEASE,   /* digests; no answer but LOOKUP_DONE with n = 0 */
    FB_MSG_REMOVE,
    FB_MSG_REMOVE_DONE,
    FB_MSG_WAIT_PERSISTED,
    FB_MSG_WAIT_DONE,
    FB_MSG_EPOCH,          /* bump */
    FB_MSG_EPOCH_DONE,
    FB_MSG_DROP_DRAM,
    FB_MSG_DROP_DONE,
    FB_MSG_EXPLAIN,
    FB_MSG_EXPLAIN_DONE,
    FB_MSG_LIST,
    FB_MSG_LIST_DONE,
    FB_MSG_STATUS,         /* JSON text of the node */
    FB_MSG_STATUS_DONE,
    FB_MSG_CANCEL,         /* the caller's deadline passed */
    FB_MSG_TYPE_COUNT
};

/* Feature bits: a client offers, the node answers the intersection. */
#define FB_FEATURE_SHM (1ull << 0)  /* same host, same user: the pool's memfd comes beside WELCOME (SCM_RIGHTS) */
#define FB_FEATURE_HOLDS (1ull << 1)

/* Frame flags. */
#define FB_FRAME_MORE (1u << 0)           /* the same message goes on in the next frame of this op */
#define FB_FRAME_RELEASE_WANTED (1u << 1) /* PUT_DONE */
#define FB_FRAME_BAD (1u << 2)            /* CHUNK_DONE */
#define FB_FRAME_PERSISTED (1u << 3)      /* PUT_DONE, WAIT_DONE */

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
    uint64_t client_nonce; /* random per process and fork */
    uint32_t pid;
    uint32_t version_minor;
    uint16_t name_bytes;   /* who, for logs */
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

struct fb_msg_namespace { /* fields: canonical bytes of docs/format.md */
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
    const uint8_t *runs;   /* encoded, fb_wire_run_at() */
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
    uint32_t run_count;    /* runs of the whole part */
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
    uint64_t value; /* EPOCH_DONE: the new epoch; REMOVE_DONE: generation */
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

#endif
