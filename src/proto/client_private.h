/*
 * client_private.h - what the files of the client's connection share. Nobody else includes it.
 *
 * client.c       the connection: start, frames out, frames in, loss
 * client_call.c  the call: cursor, windows, duplicates, deadlines, results
 * client_put.c   grants, jobs, DATA out, commit, release
 * client_get.c   chunks, jobs, DATA in, checks
 */
#ifndef FB_PROTO_CLIENT_PRIVATE_H
#define FB_PROTO_CLIENT_PRIVATE_H

#include "base/list.h"
#include "proto/client.h"
#include "proto/scatter.h"

/* What an operation still has to send. */
enum fb_proto_send {
    FB_SEND_RELEASE = 1 << 0,
    FB_SEND_COMMIT = 1 << 1,
    FB_SEND_CANCEL = 1 << 2,
    FB_SEND_CHUNK_DONE = 1 << 3
};

#define FB_NO_CHUNK 255

/* A part that a get has out. */
struct fb_proto_chunk {
    bool out;
    uint8_t mode; /* enum fb_wire_chunk_mode */
    uint32_t part, part_bytes, want_off, want_bytes;
    uint32_t data_bytes; /* of the wanted piece: that came by DATA */
    uint64_t value_off, root;
};

struct fb_proto_put_state {
    uint64_t value_bytes;
    uint64_t granted_bytes; /* runs that were named so far */
    uint64_t moved_bytes;   /* by jobs or DATA */
    uint64_t commit_ns;     /* not before */
    uint32_t inline_bytes;  /* of the credit */
    uint32_t leaf_count;
    uint64_t *leaves; /* op->leaves, or a big one */
};

struct fb_proto_get_state {
    uint64_t range_off, range_bytes; /* as the caller asked; UINT64_MAX: to the end */
    uint64_t room_bytes;             /* of the buffers */
    uint64_t value_bytes;            /* 0: not known yet */
    uint64_t want_bytes;             /* once value_bytes is known */
    uint64_t got_bytes;
    uint64_t parts_mix; /* sum of a bijection of the parts that came: none twice, none missing */
    uint8_t data_chunk; /* the one whose DATA comes; FB_NO_CHUNK */
    uint8_t chunk_done, chunk_bad; /* bits: CHUNK_DONE to be sent, with BAD */
    bool is_bad;                   /* a part had another root */
    bool is_too_small;
    struct fb_proto_chunk chunk[FB_WIRE_CHUNK_SLOTS];
};

/* An operation that is open at the node. */
struct fb_proto_op {
    uint64_t id;                /* on the wire; 0: the slot is free */
    struct fb_proto_call *call; /* NULL: nobody waits for its result */
    size_t item;
    uint32_t span;                 /* LOOKUP: items from `item` on that it covers */
    uint32_t digests;              /* LOOKUP: of them with a key that can be asked for */
    uint32_t jobs;                 /* copies that are out */
    uint8_t type;                  /* enum fb_wire_type of the request */
    uint8_t send;                  /* enum fb_proto_send */
    bool is_granted, is_committed; /* PUT; committed: COMMIT is on its way */
    bool is_released;              /* PUT: RELEASE is on its way */
    bool owes_release;             /* PUT: RELEASE once the last job has ended */
    bool gave_up;                  /* the call does not want it any more */
    bool is_done;                  /* its last answer came */
    bool job_dropped;
    struct fb_link ready; /* has something to send */
    struct fb_link wait;  /* PUT: waits to commit, or to send DATA */
    uint64_t generation;
    /* its result, until the last job has ended */
    int result;
    uint8_t reason, tiers;
    bool is_persisted;
    uint64_t answer; /* generation or epoch, as the answer says */
    union {
        struct fb_proto_put_state put;
        struct fb_proto_get_state get;
    };
    uint64_t leaves[FB_PROTO_LEAVES_MAX];
    struct fb_hash_state hash; /* of the leaf that DATA is in */
};

/* What the last input asks to be copied. */
struct fb_proto_todo {
    struct fb_proto_op *op; /* NULL: nothing */
    uint8_t chunk;
    const uint8_t *runs;
    uint32_t run_count;
    uint64_t value_off;
};

struct fb_proto_client {
    struct fb_proto_config config;
    char name[FB_WIRE_NAME_MAX];
    uint32_t name_bytes;
    enum fb_proto_state state;
    int result;
    char why[FB_WIRE_TEXT_MAX + 1];
    struct fb_msg_welcome welcome;
    uint64_t start_deadline_ns;
    /* namespace */
    uint16_t ns;
    uint64_t epoch;
    uint8_t ns_id[FB_NAMESPACE_ID_BYTES];
    struct fb_secret secret;
    /* to be sent by the connection itself */
    bool send_hello, send_namespace, send_ping, send_pong;
    uint64_t pong_op;
    /* heartbeat */
    uint64_t heard_ns;
    uint64_t pinged_ns; /* 0: no PING is out */
    /* operations */
    uint32_t window;
    uint32_t open_ops;
    uint64_t next_id;
    uint64_t inline_used;
    bool owes_memory;
    struct fb_list ready;
    struct fb_list late; /* puts whose commit is held back, in order of time */
    struct fb_list data; /* puts that send DATA, one after the other */
    struct fb_proto_op *ops;
    uint32_t op_count;
    uint32_t *free_slots;
    uint32_t free_count;
    uint64_t *big_leaves[FB_PROTO_BIG_PUTS];
    bool big_taken[FB_PROTO_BIG_PUTS];
    struct fb_proto_call *call;
    struct fb_proto_todo todo;
    /* the DATA frame that comes in */
    struct fb_proto_op *data_op;
    struct fb_msg_data data_in;
    uint8_t data_head[FB_WIRE_HEADER_BYTES + FB_WIRE_DATA_HEAD_BYTES];
    /* inline bytes, or digests, while a frame is made */
    uint8_t gather[FB_WIRE_INLINE_MAX];
};

/* ---- client.c ---- */

/* An unused operation for a call's item, open from now on; the window has room (asserted). */
struct fb_proto_op *fb_proto_op_new(struct fb_proto_client *client, struct fb_proto_call *call,
                                    size_t item, uint8_t type);

/* Queues what `bits` say to be sent. */
void fb_proto_op_send(struct fb_proto_client *client, struct fb_proto_op *op, uint8_t bits);

/*
 * After any change: if the last answer is there and no job is out, hands the result to the call;
 * and frees the operation once nothing is left to be sent. The operation must not be used
 * afterwards.
 */
void fb_proto_op_settle(struct fb_proto_client *client, struct fb_proto_op *op);

/* Ends the connection: the node broke the protocol. `why` is static. */
void fb_proto_breach(struct fb_proto_client *client, uint64_t now_ns, const char *why);

/* The time that is left until a deadline, as the wire wants it. */
uint32_t fb_proto_remaining_ms(uint64_t deadline_ns, uint64_t now_ns);

/* The identity of a part, for its root, under the key of the operation's item. */
void fb_proto_identity(const struct fb_proto_client *client, const struct fb_proto_op *op,
                       uint64_t value_off, uint32_t part_bytes, uint64_t value_bytes,
                       struct fb_identity *identity);

/* ---- client_call.c ---- */

/* The key of an item. */
void fb_proto_item_key(const struct fb_proto_call *call, size_t item, const void **key,
                       size_t *key_bytes);

/* Gives one item of a batch its result. */
void fb_proto_item_result(const struct fb_proto_call *call, size_t item, int result,
                          uint8_t reason);

/* Begins the next operations' worth of one frame: writes a request. Returns false if there is none,
 * or if it does not fit (the writer has failed). */
bool fb_proto_call_request(struct fb_proto_client *client, uint64_t now_ns,
                           struct fb_writer *writer);

/* Sets the results of what an operation stood for, and takes it off its call. */
void fb_proto_call_deliver(struct fb_proto_client *client, struct fb_proto_op *op);

/* Ends the call if every item has its result. */
void fb_proto_call_check(struct fb_proto_client *client);

/* The call's deadline and what follows from it. */
void fb_proto_call_tick(struct fb_proto_client *client, uint64_t now_ns);

/* Takes an answer of a kind that the other files do not take. */
void fb_proto_call_answer(struct fb_proto_client *client, uint64_t now_ns, struct fb_proto_op *op,
                          const struct fb_wire_header *header, struct fb_reader *reader);

/* Items that were not begun end as `result`. */
void fb_proto_call_skip_rest(struct fb_proto_call *call, int result);

/* ---- client_put.c ---- */

/* Makes the request of a put, or the item's result. Returns false if it has to wait or does not
 * fit. */
bool fb_proto_put_request(struct fb_proto_client *client, uint64_t now_ns,
                          struct fb_writer *writer);
/* GRANT. */
void fb_proto_put_grant(struct fb_proto_client *client, uint64_t now_ns, struct fb_proto_op *op,
                        const struct fb_wire_header *header, struct fb_reader *reader);
/* PUT_DONE. */
void fb_proto_put_done(struct fb_proto_client *client, uint64_t now_ns, struct fb_proto_op *op,
                       const struct fb_wire_header *header, struct fb_reader *reader);
/* A copy job of a put has ended. */
void fb_proto_put_moved(struct fb_proto_client *client, uint64_t now_ns, struct fb_proto_op *op,
                        const struct fb_proto_job *job, const uint64_t *leaves);
/* The next DATA frame of the first put that has one. */
bool fb_proto_put_data(struct fb_proto_client *client, uint64_t now_ns, uint8_t *room,
                       size_t room_bytes, struct fb_proto_frame *frame);
/* The frame of COMMIT. */
void fb_proto_put_commit(struct fb_proto_client *client, struct fb_proto_op *op,
                         struct fb_writer *writer);
/* The call does not want it any more. */
void fb_proto_put_give_up(struct fb_proto_client *client, struct fb_proto_op *op);
/* Frees what a put took apart from its slot. */
void fb_proto_put_free(struct fb_proto_client *client, struct fb_proto_op *op);
/* Commits whose time has come. */
void fb_proto_put_tick(struct fb_proto_client *client, uint64_t now_ns);
/* The next job of a grant. */
void fb_proto_put_job(struct fb_proto_client *client, struct fb_proto_job *job);

/* ---- client_get.c ---- */

/* Makes the request of a get, or the item's result. Returns false if it does not fit. */
bool fb_proto_get_request(struct fb_proto_client *client, uint64_t now_ns,
                          struct fb_writer *writer);
/* CHUNK. */
void fb_proto_get_chunk(struct fb_proto_client *client, uint64_t now_ns, struct fb_proto_op *op,
                        struct fb_reader *reader);
/* GET_DONE. */
void fb_proto_get_done(struct fb_proto_client *client, uint64_t now_ns, struct fb_proto_op *op,
                       struct fb_reader *reader);
/* The job of a chunk has ended. */
void fb_proto_get_moved(struct fb_proto_client *client, struct fb_proto_op *op,
                        const struct fb_proto_job *job, const uint64_t *leaves);
/* The frame of CHUNK_DONE. */
void fb_proto_get_chunk_done(struct fb_proto_client *client, struct fb_proto_op *op,
                             struct fb_writer *writer);
/* The job of a chunk. */
void fb_proto_get_job(struct fb_proto_client *client, struct fb_proto_job *job);
/* Where a DATA frame's bytes go; false after a breach. */
bool fb_proto_get_sink(struct fb_proto_client *client, uint64_t now_ns, struct fb_proto_op *op,
                       const struct fb_wire_header *header, struct fb_proto_sink *sink);
/* A DATA frame's bytes are there. */
void fb_proto_get_data(struct fb_proto_client *client, uint64_t now_ns, struct fb_proto_op *op,
                       bool skipped);
/* Fills in what the item is told at the end, and may turn an OK into what it really is. */
void fb_proto_get_finish(const struct fb_proto_client *client, const struct fb_proto_op *op,
                         struct fb_get_item *item);
/* True if every wanted byte is there and checked. */
bool fb_proto_get_is_whole(const struct fb_proto_op *op, uint32_t chunk_bytes);

#endif
