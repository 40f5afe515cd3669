/*
 * wire.h - the second kind of simulated client: the client's own state machine (proto/client.h)
 * against the node's sessions (proto/server.h), over connections that delay, cut, stall and break.
 *
 * wire.c         the node's side: the server, its sessions, when everything is at rest
 * wire_link.c    connections: bytes under way, breaks, the end as each side sees it
 * wire_client.c  a client's life: connecting, stopping, dying, coming back
 * wire_call.c    what it asks for, and what the checker is told of the answers
 * wire_plan.c    what a call consists of
 * wire_job.c     copies between it and the pool, late, in pieces, wanted or not
 *
 * A client is one process with one connection at a time, to one namespace. The pool is symbolic:
 * jobs move tokens. Neither machine touches a caller's buffer then, so buffers are lengths alone.
 */
#ifndef TEST_SIM_WIRE_H
#define TEST_SIM_WIRE_H

#include "proto/client.h"
#include "proto/server.h"
#include "test/sim/world.h"

#define WIRE_CLIENTS    (SIM_CLIENTS_MAX + SIM_SPACES) /* the auditors come last */
#define WIRE_ITEMS      24
#define WIRE_LINKS      96
#define WIRE_JOBS       4096
#define WIRE_PIPE_BYTES FB_KIB(128)
#define WIRE_NONE       UINT32_MAX
#define WIRE_OPENS_MAX \
    3 /* failed openings in the last phase: then the namespace is not to be had */

/* Bytes on their way: [from, to) have arrived and were not taken, [to, end) are under way. */
struct wire_pipe {
    uint8_t *bytes;
    uint32_t from, to, end;
    bool busy;   /* an arrival is due */
    bool closed; /* after the last byte comes the end */
    bool told;   /* it came */
};

/* Of operations that a client has no certain answer to: what the checker must not count on until
 * the node has let go of the session. */
struct wire_doubts {
    uint64_t epoch;
    uint16_t puts[SIM_KEYS], commits[SIM_KEYS], removes[SIM_KEYS], releases[SIM_KEYS];
    uint32_t bumps;
    bool any;
};

struct wire_link {
    bool used;
    uint32_t serial; /* makes old heap items void */
    uint32_t client, incarnation;
    uint64_t life;                    /* of the node: world->crashes */
    struct fb_proto_session *session; /* NULL: the node has let go of it */
    void *memory;
    bool node_up, client_up; /* has not seen its end */
    bool proven;
    struct wire_pipe in, out; /* to the node, to the client */
    struct wire_doubts doubts;
};

struct wire_job {
    bool used;
    bool noted; /* it was seen to go on although nobody wants it any more */
    struct fb_proto_job job;
    uint64_t life;
    uint32_t page_count, pages_done;
    uint32_t *pages;            /* of the arena */
    struct fb_sim_page *tokens; /* that were read */
};

struct wire_client {
    uint32_t number, space, incarnation;
    uint8_t life; /* enum sim_life */
    bool stopped, connecting, thinking, working, ready, auditor;
    uint32_t serial; /* of its process */
    uint64_t nonce, owed_session;
    uint32_t link;
    void *memory;
    struct fb_proto_client *proto;
    uint64_t tick_ns, open_by_ns, busy_ns;
    uint64_t epoch;
    uint32_t failed_opens;
    uint32_t audit_key; /* AUDITOR: the next to read */
    uint32_t jobs[WIRE_JOBS];
    uint32_t job_count;
    /* the call */
    bool in_call;
    uint32_t item_count;
    uint32_t call_link, call_serial;
    uint64_t jump_ns; /* the clock's when it began */
    bool stale;       /* it was told that there is a newer epoch */
    struct fb_proto_call call;
    struct fb_put_item puts[WIRE_ITEMS];
    struct fb_get_item gets[WIRE_ITEMS];
    struct fb_exists_item exists[WIRE_ITEMS];
    struct fb_key_item keys[WIRE_ITEMS];
    struct fb_buf bufs[WIRE_ITEMS];
    uint32_t twin[WIRE_ITEMS]; /* the earlier item with the same key, or WIRE_NONE */
    uint32_t scratch[WIRE_ITEMS * 6];
    struct fb_explanation explanation;
    char text[64];
    struct sim_slot slots[WIRE_ITEMS]; /* what the checker knows of each item */
};

struct sim_wire {
    struct fb_proto_server *server;
    void *server_memory;
    uint64_t session_base;
    uint32_t sessions;
    struct wire_link links[WIRE_LINKS];
    struct wire_job jobs[WIRE_JOBS];
    uint32_t free_jobs[WIRE_JOBS];
    uint32_t free_count;
    uint32_t client_count; /* the auditors included */
    bool auditing, ending;
    uint32_t releasing[SIM_SPACES][SIM_KEYS]; /* HOLD_RELEASE begun and not settled */
    struct wire_client clients[WIRE_CLIENTS];
};

/* wire.c */
/* An honest client's session is closing: that is a violation. */
void wire_note_breach(struct sim_world *world, struct wire_link *link);
/* The node has let go of the session: what it was asked for happened, or never will. */
void wire_settle_doubts(struct sim_world *world, struct wire_link *link);

/* wire_link.c */
struct wire_link *wire_link_open(struct sim_world *world, struct wire_client *client);
void wire_link_free(struct wire_link *link);
/* Lets what is under way go on. */
void wire_link_carry(struct sim_world *world, struct wire_link *link);
void wire_link_arrive(struct sim_world *world, uint32_t number, unsigned direction,
                      uint32_t serial);
/* The session may take or give bytes. */
void wire_link_news(struct sim_world *world, struct wire_link *link);
/* The client is through with it; the node sees that later. */
void wire_link_hang_up(struct sim_world *world, struct wire_link *link);
/* The node sees the end. */
void wire_link_end(struct sim_world *world, struct wire_link *link, bool proven);
/* Frames that have arrived, to the client. */
void wire_link_read(struct sim_world *world, struct wire_client *client);
/* Frames that the client has to send. */
void wire_link_write(struct sim_world *world, struct wire_client *client);

/* wire_client.c */
void wire_client_settle(struct sim_world *world, struct wire_client *client);
void wire_client_act(struct sim_world *world, uint32_t number, enum sim_act act, uint32_t serial);
void wire_client_connect_soon(struct sim_world *world, struct wire_client *client);
void wire_client_die(struct sim_world *world, struct wire_client *client, bool proven);
/* True if it stops here for a while. */
bool wire_client_stops(struct sim_world *world, struct wire_client *client);

/* wire_plan.c */
void wire_plan(struct sim_world *world, struct wire_client *client);

/* wire_call.c */
void wire_call_begin(struct sim_world *world, struct wire_client *client);
void wire_call_finish(struct sim_world *world, struct wire_client *client);
/* Nobody will hear of its results. */
void wire_call_forget(struct sim_world *world, struct wire_client *client);
/* COMMIT of the operation is on its way. */
void wire_call_committed(struct sim_world *world, struct wire_client *client, uint64_t op);
uint64_t wire_call_deadline(struct sim_world *world);

/* wire_job.c */
void wire_job_take(struct sim_world *world, struct wire_client *client);
void wire_job_work(struct sim_world *world, struct wire_client *client);
void wire_job_drop(struct sim_world *world, struct wire_client *client);

static inline uint64_t wire_below(struct sim_world *world, uint64_t n)
{
    return fb_prng_below(&world->prng, n);
}

#endif
