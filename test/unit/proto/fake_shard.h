/*
 * A shard that does what a test tells it: it grants puts at once or when asked, keeps committed
 * values in a small pool of scattered pages, and serves them in parts. It replaces the engine in
 * tests of the protocol's server; the definitions of fb_shard_... are in fake_shard.inc, which one
 * test includes.
 */
#ifndef TEST_UNIT_PROTO_FAKE_SHARD_H
#define TEST_UNIT_PROTO_FAKE_SHARD_H

#include "engine/shard.h"

/* A fuzzer makes it smaller before it includes this. */
#ifndef FAKE_CHUNK_BYTES
#define FAKE_CHUNK_BYTES FB_KIB(512)
#define FAKE_POOL_BYTES  FB_MIB(16)
#define FAKE_VALUES      64
#define FAKE_PARTS       8
#endif
#define FAKE_PAGES (FAKE_POOL_BYTES / FB_PAGE_BYTES)
#define FAKE_GETS  512

/* A value, or a put under way: its pages in order. */
struct fake_value {
    bool used, committed;
    struct fb_digest digest;
    struct fb_op *op; /* the put; NULL once committed */
    uint64_t bytes, generation;
    uint64_t roots[FAKE_PARTS];
    uint32_t pages[FAKE_PARTS * FAKE_CHUNK_BYTES / FB_PAGE_BYTES];
};

struct fake_get {
    struct fb_op *op; /* NULL: free */
    struct fake_value *value;
    uint64_t next, end; /* bytes of the value that are not in a chunk yet */
    unsigned out;       /* chunks ready or out */
    bool done;
};

struct fb_shard {
    uint8_t pool[FAKE_POOL_BYTES];
    uint32_t next_page;
    uint64_t next_generation;
    struct fake_value values[FAKE_VALUES];
    struct fake_get gets[FAKE_GETS];
    unsigned gets_used; /* the others were never touched */
    struct fb_list events;
    /* what the test tells it */
    bool hold_grants; /* puts wait until fake_grant() */
    bool hold_ops;    /* other operations wait until fake_finish() */
    bool verified;    /* chunks are known to be good */
    /* what the test may look at */
    unsigned grants_waiting, releases, chunk_releases, bad_releases, progress, cancels;
    struct fb_op *last_op;
    bool gone, gone_proven;
    unsigned gets_started;
};

/* The one shard of a test; reset by fake_reset(). */
extern struct fb_shard fake;

/* Forgets everything. */
void fake_reset(void);
/* Grants the put that waits. */
void fake_grant(struct fb_op *op);
/* Ends an operation by itself: a put's revocation, or anything that hold_ops holds. */
void fake_finish(struct fb_op *op, int result, int reason);

#endif
