/*
 * A node in a few hundred lines, for tests of the client library: a thread for each connection, a
 * mutex, values in malloc'ed memory. It speaks the protocol over a Unix socket, shares a pool if
 * asked to, and can be told to misbehave. Nothing here is the code of the real node, apart from the
 * wire format.
 */
#ifndef TEST_LIB_SMALL_NODE_H
#define TEST_LIB_SMALL_NODE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SMALL_NODE_POOL_BYTES  (16u << 20)
#define SMALL_NODE_CHUNK_BYTES (1u << 20)
#define SMALL_NODE_CONNS_MAX   64

enum small_node_mood {
    SMALL_NODE_WELL,
    SMALL_NODE_DRIBBLES,      /* sends a few bytes at a time */
    SMALL_NODE_SILENT,        /* answers nothing after NAMESPACE_DONE */
    SMALL_NODE_NO_WELCOME,    /* answers nothing at all */
    SMALL_NODE_CLOSES,        /* closes at the first request after NAMESPACE */
    SMALL_NODE_STOPS_READING, /* at the first DATA */
    SMALL_NODE_REVOKES,       /* ends a put at its first DATA, and reads no more of it */
    SMALL_NODE_HALF_DATA,     /* stops in the middle of a DATA frame of a get */
    SMALL_NODE_REFUSES,       /* ERROR instead of WELCOME */
    SMALL_NODE_GARBAGE        /* instead of answers */
};

struct small_node_options {
    bool share;                   /* offer the pool */
    bool unsealed;                /* ... as memory that could shrink */
    uint32_t op_credit;           /* 0: 16 */
    uint64_t inline_credit_bytes; /* 0: none */
};

struct small_node;

/* Listens at `path`. NULL on failure. */
struct small_node *small_node_start(const char *path, const struct small_node_options *options);
/* From now on. */
void small_node_set_mood(struct small_node *node, enum small_node_mood mood);
/* Closes all connections, as a killed node does; it goes on listening, and forgets its values. */
void small_node_reset(struct small_node *node);
/* Sessions that were opened so far, and those that named an ended one. */
unsigned small_node_sessions(const struct small_node *node);
unsigned small_node_ended_sessions(const struct small_node *node);
/* Connections that are open now. */
unsigned small_node_open(const struct small_node *node);
void small_node_stop(struct small_node *node);

#endif
