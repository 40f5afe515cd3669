/*
 * server.h - the node's side of the native protocol: sessions that turn frames into operations of a
 * shard, and what becomes of them into frames. docs/protocol.md has the dialogues.
 *
 * Pure: `now_ns` and bytes in, bytes out. The owner (the node, or the simulator) moves the bytes:
 *
 *   in    fb_proto_session_input() takes whole frames out of a buffer; how many bytes it must have
 *         at hand says fb_proto_session_wants(). The payload of DATA frames is not collected first:
 *         while fb_proto_session_data_left() is not 0 the next bytes of the stream belong where
 *         fb_proto_session_data_runs() says, straight in the pool.
 *   out   fb_proto_session_slices(), fb_proto_session_sent(): composed frames and pool memory.
 *   work  fb_proto_server_pump() after every call into the shard; then fb_proto_server_next() names
 *         the sessions that have something to send, or can take input again.
 *
 * Invariants:
 *  - an operation is answered exactly once, in the order of its own frames;
 *  - memory of a grant is given back to the shard only when the client has said that it touches it
 *    no more, or is proven dead; on a stream only the owner touches it, so at once;
 *  - pool memory in the outbox is pinned until it was sent or the session has ended;
 *  - no input of a client can exhaust anything but its own credits, and none can fail an assertion.
 */
#ifndef FB_PROTO_SERVER_H
#define FB_PROTO_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/limits.h"
#include "base/list.h"
#include "base/region.h"
#include "engine/shard.h"
#include "proto/outbox.h"
#include "proto/wire.h"

/* Operations that a session may have open: what WELCOME tells. */
#define FB_PROTO_OP_CREDIT 128
/* Operations that a session can hold, those included that the shard has not let go of yet. */
#define FB_PROTO_SLOTS 160
/* Inline bytes of open puts: what WELCOME tells. */
#define FB_PROTO_INLINE_CREDIT_BYTES FB_MIB(1)
/* Bytes of values that the gets of one session may have pinned; the rest of its gets wait. */
#define FB_PROTO_WINDOW_BYTES_MAX FB_MIB(32)
#define FB_PROTO_WINDOW_BYTES_MIN FB_MIB(4)
/* All sessions together: this part of the pool, so that readers who stop leave room for others. */
#define FB_PROTO_WINDOW_SHARE 2
/* And this part of that more for sessions that have nothing pinned yet. */
#define FB_PROTO_WINDOW_FIRST 2
/* Bytes of DATA that are queued before other work of the session gets a turn. */
#define FB_PROTO_DATA_QUEUE_BYTES FB_KIB(512)
/* Payload of one DATA frame that a node sends: never across a leaf. */
#define FB_PROTO_DATA_STEP_BYTES FB_KIB(128)
/* Lookups, lists and openings of all sessions that may be under way, and those of one session, so
 * that none can take them all; usually they are over at once. */
#define FB_PROTO_LISTS      16
#define FB_PROTO_LISTS_EACH 4
/* Frames that one call of fb_proto_session_input() takes at most. */
#define FB_PROTO_FRAMES_PER_TURN   64
#define FB_PROTO_SHARD_MAP_VERSION 1

struct fb_proto_session;

struct fb_proto_server_config {
    struct fb_shard *shard;
    uint8_t *pool; /* address of the arena; NULL: symbolic, then only runs are granted and sent */
    uint64_t pool_bytes;
    uint64_t node_id, boot_nonce;
    uint32_t heartbeat_ms;
    uint32_t namespaces_max; /* as of the shard */
    void *ctx;
    /* Fills `out` with unpredictable bytes: secrets of new namespaces. */
    void (*entropy)(void *ctx, void *out, size_t bytes);
    /* Writes the JSON text of STATUS; returns its length, at most `room`. NULL: "{}". */
    size_t (*status)(void *ctx, char *out, size_t room);
    /* Fills a PONG. NULL: zeros. */
    void (*pong)(void *ctx, struct fb_msg_pong *out);
};

/* Plain counters, monotonic. */
struct fb_proto_server_stats {
    uint64_t sessions_opened, sessions_ended;
    uint64_t frames_in, frames_out;
    uint64_t value_bytes_in,
        value_bytes_out; /* over streams and inline; shared memory is the clients' */
    uint64_t inline_taken, inline_declined;
    uint64_t leaf_mismatches; /* puts whose bytes were not those of their leaves */
    uint64_t misreads;        /* chunks that a reader found bad and that are good here */
    uint64_t breaches;        /* sessions ended by ERROR PROTOCOL or UNSUPPORTED */
    uint64_t releases_wanted;
    uint64_t cancels;
    uint64_t late_frames; /* for operations that had ended: they crossed the answer */
    uint64_t gets_queued; /* waited for the session's window */
};

struct fb_proto_server;

/* Bytes that fb_proto_server_init() takes from a region. */
size_t fb_proto_server_footprint(const struct fb_proto_server_config *config);

/* Makes a server over a shard. The config is copied; what it points at stays the caller's. */
struct fb_proto_server *fb_proto_server_init(const struct fb_proto_server_config *config,
                                             struct fb_region *region);

/* Takes what the shard has to say of operations and composes answers. After every call into the
 * shard. */
void fb_proto_server_pump(struct fb_proto_server *server, uint64_t now_ns);

/* Ends gets that wait for their session's window beyond their deadline. */
void fb_proto_server_tick(struct fb_proto_server *server, uint64_t now_ns);

/* When the tick wants to be called next; UINT64_MAX: not. */
uint64_t fb_proto_server_next_ns(const struct fb_proto_server *server);

/* A session that has bytes to send, or that may take input again; NULL if there is none. Each is
 * named once until there is news again. */
struct fb_proto_session *fb_proto_server_next(struct fb_proto_server *server);

/* Counters up to now. */
void fb_proto_server_stats(const struct fb_proto_server *server, struct fb_proto_server_stats *out);

/* Bytes that fb_proto_session_init() takes from a region. Most are touched only when needed. */
size_t fb_proto_session_footprint(const struct fb_proto_server *server);

/*
 * Begins a session on a fresh connection. `id` is not 0 and unique within the boot. `may_shm`: the
 * connection can carry a descriptor, and the peer is of the node's own user. `cookie` is the
 * owner's. The memory must stay until fb_proto_session_is_idle() after fb_proto_session_end().
 */
struct fb_proto_session *fb_proto_session_init(struct fb_proto_server *server,
                                               struct fb_region *region, uint64_t id, bool may_shm,
                                               uint64_t cookie);

/* The owner's cookie. */
uint64_t fb_proto_session_cookie(const struct fb_proto_session *session);

/* The number that WELCOME told. */
uint64_t fb_proto_session_id(const struct fb_proto_session *session);

/* True once HELLO was taken: WELCOME is in the outbox or sent. */
bool fb_proto_session_is_open(const struct fb_proto_session *session);

/* True if WELCOME answered SHM: the pool's descriptor goes with the first byte that is sent. */
bool fb_proto_session_uses_shm(const struct fb_proto_session *session);

/* The name that the client gave itself, "" before HELLO. Printable ASCII only. */
const char *fb_proto_session_name(const struct fb_proto_session *session);

/* True after an ERROR was composed: nothing is taken in any more; the connection ends once the
 * outbox is empty. The text of the ERROR is in fb_proto_session_error(). */
bool fb_proto_session_is_closing(const struct fb_proto_session *session);

/* Why the session is closing, "" if it is not. */
const char *fb_proto_session_error(const struct fb_proto_session *session);

/* Operations that are open: those that owe an answer or are owed a RELEASE. */
uint32_t fb_proto_session_open_ops(const struct fb_proto_session *session);

/* True if the client owes a CHUNK_DONE for chunks that it was given; *done: how many have come so
 * far. Who owes for long and gives none has stopped, and keeps memory of the pool pinned. */
bool fb_proto_session_owes_chunks(const struct fb_proto_session *session, uint64_t *done);

/* How many bytes must be at hand before fb_proto_session_input() gets any further (32 or more, at
 * most a whole frame); 0 while DATA is expected in the pool. */
uint32_t fb_proto_session_wants(const struct fb_proto_session *session);

/*
 * Takes frames from the start of `bytes`; returns how many bytes were taken. Fewer than a frame are
 * left for the next call. Takes nothing while the session is paused (its outbox is full, or its
 * lists are in use), closing, or ended; fb_proto_server_next() names it when it goes on.
 */
size_t fb_proto_session_input(struct fb_proto_session *session, uint64_t now_ns,
                              const uint8_t *bytes, size_t count);

/* True if frames are not taken for want of room. */
bool fb_proto_session_is_paused(const struct fb_proto_session *session);

/* Bytes of a DATA frame's payload that come next on the stream. */
uint32_t fb_proto_session_data_left(const struct fb_proto_session *session);

/*
 * Where those bytes go: runs of the pool, at most `max`, together at most data_left bytes. 0 runs
 * while data_left is not 0: they are to be read and thrown away.
 */
size_t fb_proto_session_data_runs(const struct fb_proto_session *session, struct fb_io_vec *out,
                                  size_t max);

/* `bytes` of them were read, into the first of the runs that fb_proto_session_data_runs() gives
 * now. */
void fb_proto_session_data_moved(struct fb_proto_session *session, uint64_t now_ns, uint32_t bytes);

/* What is to be sent next: at most `max` slices. */
size_t fb_proto_session_slices(const struct fb_proto_session *session, struct fb_slice *out,
                               size_t max);

/* `bytes` of that were sent. */
void fb_proto_session_sent(struct fb_proto_session *session, uint64_t now_ns, uint64_t bytes);

/* Bytes that wait to be sent. */
uint64_t fb_proto_session_queued(const struct fb_proto_session *session);

/* Composes an ERROR and closes: the owner's reasons (deadline, shutting down, too many). */
void fb_proto_session_refuse(struct fb_proto_session *session, int result, const char *text);

/*
 * The connection is gone. `proven`: no memory of the pool can be touched by the peer any more: it
 * never had the shared memory, or its process is dead. Nothing is sent or taken afterwards.
 */
void fb_proto_session_end(struct fb_proto_session *session, uint64_t now_ns, bool proven);

/* After fb_proto_session_end() without proof: now there is one. */
void fb_proto_session_proven(struct fb_proto_session *session, uint64_t now_ns);

/* True when the shard holds nothing of an ended session: its memory may be used again. */
bool fb_proto_session_is_idle(const struct fb_proto_session *session);

/* Takes an idle session off the server's lists, before its memory is given back. */
void fb_proto_session_fini(struct fb_proto_session *session);

#endif
