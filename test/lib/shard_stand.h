/*
 * shard_stand.h - one shard on a simulated device, with clients that do as they are told: for unit
 * tests of the engine. Values are tokens (io/sim.h), so that every page of every read is checked,
 * and gigabytes cost little.
 *
 * Operations run until they are waited for, or time is let pass. Honest clients fill their grants
 * and read their chunks at once; others stop, come late, or lie (enum stand_manner).
 */
#ifndef TEST_LIB_SHARD_STAND_H
#define TEST_LIB_SHARD_STAND_H

#include <stdbool.h>
#include <stdint.h>

#include "base/hash.h"
#include "engine/shard.h"
#include "io/sim.h"

#define STAND_PEERS     64
#define STAND_OPS       16384 /* at once, by default */
#define STAND_KEY_BYTES 32
#define STAND_RUNS      1024

enum stand_manner {
    STAND_HONEST,  /* fills its grant and commits; reads its chunks and gives them back */
    STAND_STOPPED, /* does nothing with grant or chunk until stand_go_on() */
    STAND_LYING    /* writes something else than it says */
};

struct stand_op {
    struct fb_op op;
    uint8_t text[STAND_KEY_BYTES];
    uint64_t key, version;
    uint64_t start_ns, granted_ns, done_ns;
    uint8_t manner;
    bool used, granted, done, closed;
    bool is_bad;   /* GET: pages were not of one version of the key, or a root did not fit */
    uint64_t seen; /* GET: the version that was read; 0: none */
    uint64_t seen_bytes;
    unsigned chunks_ssd; /* GET: chunks that came from the device */
    uint64_t lie_version;
};

struct stand {
    struct fb_shard_config config;
    struct fb_sim_config device;
    struct fb_sim *sim;
    struct fb_shard *shard;
    void *memory, *meta;
    size_t memory_bytes, meta_bytes;
    uint64_t now_ns;
    uint64_t deadline_ns; /* what operations get from now */
    struct fb_peer peers[STAND_PEERS];
    uint16_t ns;
    uint64_t epoch;
    uint8_t id[16];
    struct fb_secret secret;
    struct stand_op *ops;
    uint32_t ops_max; /* 0: STAND_OPS */
    uint32_t next_op;
    uint64_t versions;
    bool audits; /* after every event */
    uint64_t
        cut_at;  /* the power goes at this I/O boundary of the device, counted from now; 0: never */
    bool is_cut; /* it is gone: every wait ends at once, until stand_crash() */
};

/* Fills what is 0 in stand->config and stand->device with small defaults, opens the device, starts
 * the shard, opens the peers and a namespace. Call with a zeroed stand, or one whose config was
 * set. */
void stand_open(struct stand *stand);
void stand_close(struct stand *stand);

/* The power goes: a new shard starts on what the device has kept. Operations that were open are
 * forgotten. */
void stand_crash(struct stand *stand, enum fb_sim_cut cut, uint64_t seed);

/* Starts operations; peer is a number below STAND_PEERS. */
struct stand_op *stand_put(struct stand *stand, unsigned peer, uint64_t key, uint64_t bytes,
                           unsigned flags, enum fb_persist persist);
struct stand_op *stand_put_as(struct stand *stand, enum stand_manner manner, unsigned peer,
                              uint64_t key, uint64_t bytes, unsigned flags,
                              enum fb_persist persist);
struct stand_op *stand_get(struct stand *stand, unsigned peer, uint64_t key, unsigned flags);
struct stand_op *stand_get_range(struct stand *stand, enum stand_manner manner, unsigned peer,
                                 uint64_t key, uint64_t off, uint64_t bytes, unsigned flags);
struct stand_op *stand_start(struct stand *stand, enum fb_op_kind kind, unsigned peer,
                             uint64_t key);
/* A prepared operation, not started yet: for special requests. */
struct stand_op *stand_prepare(struct stand *stand, enum fb_op_kind kind, unsigned peer,
                               uint64_t key);
void stand_go(struct stand *stand, struct stand_op *op);

/* A stopped client goes on. */
void stand_go_on(struct stand *stand, struct stand_op *op);

struct fb_digest stand_digest(const struct stand *stand, uint64_t key);

/* Lets everything happen that needs no time. */
void stand_pump(struct stand *stand);
/* Lets time pass. */
void stand_run(struct stand *stand, uint64_t ns);
/* Waits until the operation has its result; asserts that this happens by its deadline and a bit.
 * Returns it. */
int stand_result(struct stand *stand, struct stand_op *op);
/* Waits until it is closed, and gives it back. Returns its result. */
int stand_end(struct stand *stand, struct stand_op *op);
/* Waits until nothing is dirty any more (or the device is of no use). */
void stand_settle(struct stand *stand);

/* Puts, waits, expects FB_OK. Returns the version. */
uint64_t stand_must_put(struct stand *stand, uint64_t key, uint64_t bytes);
/* Gets, waits, and expects this version, whole. */
void stand_must_get(struct stand *stand, uint64_t key, uint64_t version);
/* Gets, waits, and expects a miss; returns the reason. */
enum fb_reason stand_must_miss(struct stand *stand, uint64_t key);
/* Looks one key up, with a hold if ms is not 0: enum fb_found. */
unsigned stand_look(struct stand *stand, uint64_t key, uint32_t hold_ms, uint32_t loads);
/* Bumps the epoch. */
void stand_bump(struct stand *stand);

struct fb_shard_stats stand_stats(const struct stand *stand);
struct fb_log_stats stand_log_stats(const struct stand *stand);

#endif
