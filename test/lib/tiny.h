/*
 * tiny.h - a shard on a small simulated device, one client, and what the client was promised: for
 * runs by the ten thousand (fuzzing of recovery, the sweep of I/O faults).
 *
 * Nothing here asserts what the shard does. The first thing that must not be is kept as text in
 * `wrong`, and the caller decides. Values are tokens (io/sim.h); every page of every read is
 * checked.
 */
#ifndef TEST_LIB_TINY_H
#define TEST_LIB_TINY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "engine/shard.h"
#include "io/sim.h"

#define TINY_KEYS       48
#define TINY_OPS        128
#define TINY_VERSIONS   4096
#define TINY_RUNS       256
#define TINY_KEY_BYTES  32
#define TINY_WRONG      240
#define TINY_LIST_BYTES 2048
/* How long after its deadline an operation may still be without its answer. */
#define TINY_BOUND_NS (2 * FB_SEC_NS)

/* A put: the version of its tokens is its place in the table. */
struct tiny_version {
    uint32_t key;
    uint64_t epoch, bytes, generation;
    bool committed;
};

/* What the client knows of a key in the present epoch. */
struct tiny_key {
    uint64_t floor;     /* hits have at least this generation */
    uint64_t granted;   /* highest one that was granted */
    uint64_t persisted; /* this one was acknowledged as durable; 0: none */
    uint64_t persisted_ms;
    bool in_doubt; /* a put, remove or bump began and its end is not known to have done nothing */
};

struct tiny_op {
    struct fb_op op;
    uint32_t key;
    uint32_t version; /* of a put; of a get: what was seen */
    bool used, granted, done, closed;
    bool stopped; /* does not fill its grant, and keeps its chunks */
    bool lies;    /* writes something else than it says */
    uint64_t seen_bytes;
    uint64_t floor, persisted; /* of the key, when it began */
    uint64_t removed_above;
    uint8_t text[TINY_KEY_BYTES];
    struct fb_digest digests[TINY_KEYS];
    uint8_t found[TINY_KEYS];
    uint8_t list[TINY_LIST_BYTES];
};

/* Changes or keeps the result of a finished request, before the shard sees it. */
struct tiny;
typedef void tiny_meddle_fn(struct tiny *tiny, struct fb_io_req *req);

struct tiny {
    /* set before tiny_open(); 0: a small default */
    struct fb_shard_config config;
    struct fb_sim_config device;
    tiny_meddle_fn *meddle;
    void *context;
    /* */
    struct fb_sim *sim;
    struct fb_shard *shard;
    void *memory, *meta;
    size_t memory_bytes, meta_bytes;
    uint64_t now_ns, deadline_ns;
    struct fb_peer peer;
    bool is_up, serves; /* serves: started, and the namespace is open */
    uint16_t ns;
    uint64_t epoch;
    bool bump_in_doubt;
    uint8_t id[FB_NAMESPACE_ID_BYTES];
    struct fb_secret secret;
    struct tiny_op ops[TINY_OPS];
    struct tiny_key keys[TINY_KEYS];
    struct tiny_version versions[TINY_VERSIONS];
    uint32_t version_count;
    bool lied;    /* the device did not do what it answered, or was damaged */
    bool excused; /* reads failed: what was durable may be missed, with a reason */
    bool blind;   /* excused, and reads fail for ever: at a start nobody may know what was there */
    bool verbose;
    char wrong[TINY_WRONG]; /* "" as long as all is well */
    uint64_t hits, misses, hits_ssd;
};

/* Takes all memory. Returns false if there is none, or the config is refused (in `wrong`). */
bool tiny_open(struct tiny *tiny);
void tiny_close(struct tiny *tiny);

/* An empty device, and no promises. */
void tiny_reset(struct tiny *tiny, uint64_t seed);

/* Starts a shard on what is on the device, waits until it is ready, and opens the namespace.
 * Returns true if it serves; false if the start failed, fb_shard_start_error() says why. */
bool tiny_start(struct tiny *tiny);
/* Goes on waiting for a start that did not end, and opens the namespace. */
bool tiny_await(struct tiny *tiny);

/* The process is gone: all operations are in doubt. */
void tiny_stop(struct tiny *tiny);

/* Notes the first thing that is wrong. */
void tiny_wrong(struct tiny *tiny, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Operations begin; NULL if TINY_OPS are open. */
struct tiny_op *tiny_put(struct tiny *tiny, uint32_t key, uint64_t bytes, unsigned flags,
                         enum fb_persist persist);
struct tiny_op *tiny_get(struct tiny *tiny, uint32_t key, uint64_t off, uint64_t bytes,
                         unsigned flags);
/* REMOVE, WAIT_PERSISTED, DROP_DRAM, EPOCH, LOOKUP of all keys, HOLD_RELEASE of all keys, LIST. */
struct tiny_op *tiny_do(struct tiny *tiny, enum fb_op_kind kind, uint32_t key, uint32_t hold_ms);
/* A prepared put, for one that stops or lies: set that, then tiny_go(). */
struct tiny_op *tiny_prepare(struct tiny *tiny, enum fb_op_kind kind, uint32_t key);
void tiny_go(struct tiny *tiny, struct tiny_op *op);
/* A stopped client goes on: fills its grant and commits, or gives its chunks back. */
void tiny_go_on(struct tiny *tiny, struct tiny_op *op);

/* Takes over the epoch of the namespace, after a bump whose end is not known. */
void tiny_learn(struct tiny *tiny);

/* Everything that needs no time; then time up to `ns` from now. */
void tiny_pump(struct tiny *tiny);
void tiny_run(struct tiny *tiny, uint64_t ns);
/* Waits until it has ended, and for a while until it is closed; returns its result. */
int tiny_end(struct tiny *tiny, struct tiny_op *op);
/* Waits for all operations that are open. */
void tiny_end_all(struct tiny *tiny);
/* Waits until nothing is dirty, for at most `ns`. Returns false if something still is. */
bool tiny_settle(struct tiny *tiny, uint64_t ns);

/* Reads every key. */
void tiny_read_all(struct tiny *tiny);

/* The client goes; nothing may be left with the shard, and its books must balance. */
void tiny_leave(struct tiny *tiny);

#endif
