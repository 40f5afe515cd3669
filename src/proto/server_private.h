/*
 * server_private.h - what the files of the node's side share: a slot for each operation, the
 * session around them, the server around the sessions.
 */
#ifndef FB_PROTO_SERVER_PRIVATE_H
#define FB_PROTO_SERVER_PRIVATE_H

#include "proto/server.h"

/* What is true of an operation. */
enum fb_slot_flag {
    FB_SLOT_OPEN = 1 << 0,       /* its number is taken */
    FB_SLOT_STARTED = 1 << 1,    /* the shard has it, and has not said CLOSED */
    FB_SLOT_DONE = 1 << 2,       /* its result is known */
    FB_SLOT_ANSWERED = 1 << 3,   /* its last message was composed */
    FB_SLOT_GRANTED = 1 << 4,    /* PUT: memory is reserved */
    FB_SLOT_TOLD = 1 << 5,       /* PUT: the client has seen a GRANT, and may write */
    FB_SLOT_COMMITTED = 1 << 6,  /* PUT: handed to the shard */
    FB_SLOT_OWES = 1 << 7,       /* PUT: RELEASE is owed */
    FB_SLOT_RELEASED = 1 << 8,   /* PUT: the memory was given back to the shard */
    FB_SLOT_QUEUED = 1 << 9,     /* GET: waits for the session's window */
    FB_SLOT_PENDING = 1 << 10,   /* on the session's list of what must be composed */
    FB_SLOT_STREAMING = 1 << 11, /* GET: on the session's list of chunks that are sent */
    FB_SLOT_MISREAD = 1 << 12    /* GET: the reader found bytes bad that are good here */
};

/* What must be composed. */
enum fb_slot_todo {
    FB_TODO_GRANT = 1 << 0,
    FB_TODO_CHUNKS = 1 << 1,
    FB_TODO_DONE = 1 << 2
};

#define FB_SLOT_NONE    UINT16_MAX
#define FB_CHUNK_NONE   UINT8_MAX
#define FB_SLOT_BUCKETS 128 /* of the table of operation numbers; a power of two */

/* A chunk that was announced. */
struct fb_slot_chunk {
    bool out;          /* the shard has it pinned for us */
    bool owed;         /* CHUNK_DONE is owed */
    uint16_t segments; /* pieces in the outbox */
    uint32_t sent_to;  /* DATA composed so far, as an offset in the part */
};

struct fb_slot {
    struct fb_op op;
    struct fb_proto_session *session;
    struct fb_link pending;   /* on session->pending */
    struct fb_link streaming; /* on session->streaming, or on session->gets */
    uint64_t id;
    uint16_t index;
    uint16_t next;   /* in its bucket, or on the free list */
    uint16_t flags;  /* enum fb_slot_flag */
    uint8_t type;    /* of the request */
    uint8_t todo;    /* enum fb_slot_todo */
    uint8_t sending; /* GET: the chunk whose DATA is composed, or FB_CHUNK_NONE */
    struct fb_slot_chunk chunk[FB_GET_WINDOW];
    uint64_t window_bytes; /* GET: of the session's window */
    uint64_t grant_off;    /* PUT: GRANT told so far */
    uint64_t data_off;     /* PUT over a stream: the next byte that is expected */
    uint32_t inline_bytes; /* PUT: of the session's credit */
    bool client_released;  /* PUT: it has sent RELEASE */
    struct fb_proto_list *list;
    struct fb_hash_state leaf;   /* PUT over a stream: of the leaf that is being received */
    struct fb_hash_state leaves; /* of the leaves before it */
    uint8_t key[FB_KEY_BYTES_MAX];
};

/* Room for what a lookup or a list needs for longer than a frame lasts. */
struct fb_proto_list {
    bool used;
    union {
        struct {
            struct fb_digest digests[FB_WIRE_DIGESTS_MAX];
            uint8_t found[FB_WIRE_DIGESTS_MAX];
        } lookup;
        uint8_t keys[FB_WIRE_LIST_BYTES_MAX];
        uint8_t fields[FB_WIRE_FIELDS_MAX];
    } room;
};

enum fb_session_state {
    FB_SESSION_NEW,
    FB_SESSION_OPEN,
    FB_SESSION_CLOSING,
    FB_SESSION_ENDED
};

/* Namespaces that a session may use: a bit for each handle. */
#define FB_SESSION_NAMESPACES_MAX 65536
#define FB_SESSION_ERROR_BYTES    160

struct fb_proto_session {
    struct fb_proto_server *server;
    struct fb_peer peer;
    struct fb_link all;   /* on server->sessions */
    struct fb_link dirty; /* on server->dirty */
    struct fb_outbox out;
    struct fb_list pending;
    struct fb_list streaming;
    struct fb_list gets; /* that wait for the window */
    struct fb_slot *slots;
    uint16_t slots_used; /* slots from here on were never touched */
    uint16_t free;
    uint16_t buckets[FB_SLOT_BUCKETS];
    uint8_t *namespaces; /* bits */
    uint8_t state;       /* enum fb_session_state */
    bool may_shm, paused;
    bool peer_is_open;   /* the shard knows the peer: from HELLO on */
    bool memory_is_left; /* the client said, by ended_session, that it touches no memory any more */
    bool is_proven;      /* so was the shard told */
    uint32_t want;       /* bytes that the next frame needs at least */
    uint32_t open_ops;
    uint32_t lists_used; /* of server->lists */
    uint64_t inline_open_bytes;
    uint64_t window_used_bytes, window_max_bytes;
    uint32_t chunks_owed;   /* CHUNK_DONEs that are */
    uint64_t chunks_done;   /* and those that came */
    uint64_t typical_bytes; /* a guess at the size of the next value that is read */
    uint64_t id, cookie, nonce, features;
    struct fb_slot *data_slot; /* whose DATA arrives; NULL: it is thrown away */
    uint32_t data_left;
    char name[FB_WIRE_NAME_MAX + 1];
    char error[FB_SESSION_ERROR_BYTES];
};

/* What is known of a namespace handle; made when it is first used. */
struct fb_proto_namespace {
    bool known;
    uint8_t id[FB_NAMESPACE_ID_BYTES];
    struct fb_secret secret;
};

/* Parts of the longest value in the shortest chunks. */
#define FB_PROTO_CHUNK_BYTES_MIN FB_KIB(64)
#define FB_PROTO_PARTS_MAX       (FB_VALUE_BYTES_MAX / FB_PROTO_CHUNK_BYTES_MIN)

struct fb_proto_server {
    struct fb_proto_server_config config;
    struct fb_proto_server_stats stats;
    struct fb_list sessions, dirty;
    struct fb_proto_list *lists;
    struct fb_proto_namespace *namespaces;
    uint64_t *roots;        /* scratch: of one commit */
    struct fb_io_vec *runs; /* scratch: of one part */
    uint64_t
        gets_next_ns; /* the first deadline of a get that waits for a window; 0: there is room */
    uint64_t window_used_bytes, window_max_bytes; /* of all sessions */
    bool gets_wait;                               /* for bytes of all sessions */
    uint32_t chunk_bytes;
    /* The inline put that is being started: its bytes are at hand only now. */
    struct fb_slot *inline_slot;
    const struct fb_msg_put *inline_put;
};

/* ---- session.c ---- */

/* Puts a session on the list that fb_proto_server_next() reads. */
void fb_session_mark(struct fb_proto_session *session);
/* Something is to be composed for a slot. */
void fb_session_todo(struct fb_slot *slot, uint8_t todo);
/* Composes what is to be composed, as far as the outbox has room. */
void fb_session_compose(struct fb_proto_session *session, uint64_t now_ns);
/* Ends the session by ERROR PROTOCOL; `text` names what was wrong. */
void fb_session_breach(struct fb_proto_session *session, const char *text, const char *field);
/* A slot for a new operation, its number taken; NULL if there is none (the session pauses). */
struct fb_slot *fb_session_slot(struct fb_proto_session *session,
                                const struct fb_wire_header *header);
/* The slot of an open operation, or NULL. */
struct fb_slot *fb_session_find(struct fb_proto_session *session, uint64_t id);
/* Frees the number, and the slot, as far as nothing needs them any more. */
void fb_session_settle(struct fb_slot *slot);
/* A result that needs no shard. */
void fb_session_answer(struct fb_slot *slot, int result);
/* Hands an operation to the shard. */
void fb_session_start(struct fb_slot *slot, uint64_t now_ns);
/* Fills the part of an operation that every request on a key has; false if the key is answered
 * already. */
bool fb_session_key(struct fb_slot *slot, uint64_t now_ns, const struct fb_msg_key *key);
/* The identity of a value of this operation, but for part and part_bytes. */
void fb_session_identify(const struct fb_slot *slot, struct fb_identity *identity);
/* True if the session has opened this namespace. */
bool fb_session_may_use(const struct fb_proto_session *session, uint16_t ns);
/* What is known of a namespace, or NULL for a handle that is not. */
const struct fb_proto_namespace *fb_session_namespace(struct fb_proto_server *server, uint16_t ns);
/* Begins a frame in the outbox; false if there is no room for so much payload. */
bool fb_session_frame_begin(struct fb_proto_session *session, struct fb_writer *writer,
                            uint32_t payload_max);
/* Ends it. */
void fb_session_frame_end(struct fb_proto_session *session, struct fb_writer *writer, uint8_t type,
                          uint8_t flags, uint64_t op);
/* Takes what the shard says of operations, of all sessions. */
void fb_server_drain(struct fb_proto_server *server, uint64_t now_ns);

/* ---- session_put.c ---- */

/* PUT. Like all of its kind: false if the frame must come again later, for want of room. */
bool fb_session_on_put(struct fb_proto_session *session, uint64_t now_ns,
                       const struct fb_wire_header *header, struct fb_reader *reader);
/* COMMIT. */
bool fb_session_on_commit(struct fb_proto_session *session, uint64_t now_ns,
                          const struct fb_wire_header *header, struct fb_reader *reader);
/* RELEASE. */
bool fb_session_on_release(struct fb_proto_session *session, uint64_t now_ns,
                           const struct fb_wire_header *header, struct fb_reader *reader);
/* The head of a DATA frame: sets data_slot and data_left. */
void fb_session_on_data(struct fb_proto_session *session, const struct fb_wire_header *header,
                        const uint8_t *head);
/* True if the bytes of DATA for this slot still go into the pool. */
bool fb_session_takes_data(const struct fb_slot *slot);
/* What an event means for a put. */
void fb_session_put_event(struct fb_slot *slot, uint64_t now_ns, unsigned events);
/* Composes GRANT frames; false if there is no room. */
bool fb_session_tell_grant(struct fb_slot *slot);
/* Composes PUT_DONE; false if there is no room. */
bool fb_session_tell_put_done(struct fb_slot *slot);

/* ---- session_get.c ---- */

/* GET. */
bool fb_session_on_get(struct fb_proto_session *session, uint64_t now_ns,
                       const struct fb_wire_header *header, struct fb_reader *reader);
/* CHUNK_DONE. */
bool fb_session_on_chunk_done(struct fb_proto_session *session, uint64_t now_ns,
                              const struct fb_wire_header *header, struct fb_reader *reader);
/* What an event means for a get. */
void fb_session_get_event(struct fb_slot *slot, uint64_t now_ns, unsigned events);
/* Composes CHUNK frames; false if there is no room. */
bool fb_session_tell_chunks(struct fb_slot *slot, uint64_t now_ns);
/* Composes GET_DONE; false if there is no room. */
bool fb_session_tell_get_done(struct fb_slot *slot);
/* Composes one DATA frame of the chunks that are being sent, in turns; false if there is none, no
 * room, or enough in the outbox. */
bool fb_session_stream(struct fb_proto_session *session);
/* A piece of a chunk was sent. */
void fb_session_piece_sent(struct fb_slot *slot, uint64_t now_ns, unsigned chunk);
/* Starts gets that wait for the window, as far as it goes; those beyond their deadline in any case.
 */
void fb_session_start_gets(struct fb_proto_session *session, uint64_t now_ns);
/* Gives a get's share of the window back. */
void fb_session_window_free(struct fb_slot *slot);
/* Starts a get that waits, whatever the window: it was cancelled. */
void fb_session_get_cancel(struct fb_slot *slot, uint64_t now_ns);
/* True if a chunk was announced and not answered by CHUNK_DONE. */
bool fb_session_chunks_are_owed(const struct fb_slot *slot);
/* True if a piece of a chunk is in the outbox. */
bool fb_session_chunks_are_queued(const struct fb_slot *slot);

/* ---- session_misc.c: all other requests ---- */

/* Every request but PUT and GET. */
bool fb_session_on_request(struct fb_proto_session *session, uint64_t now_ns,
                           const struct fb_wire_header *header, struct fb_reader *reader);
/* Composes the last message of anything but a put or a get; false if there is no room. */
bool fb_session_tell_done(struct fb_slot *slot);
/* What the end of such an operation means for the session. */
void fb_session_misc_done(struct fb_slot *slot);

#endif
