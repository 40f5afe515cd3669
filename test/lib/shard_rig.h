/*
 * shard_rig.h - one shard on a simulated device, with clients that do as they are told: for unit
 * tests of the engine. Values are tokens (io/sim.h), so that every page of every read is checked,
 * and gigabytes cost little.
 *
 * Operations run until they are waited for, or time is let pass. Honest clients fill their grants
 * and read their chunks at once; others stop, come late, or lie (enum rig_manner).
 */
#ifndef TEST_LIB_SHARD_RIG_H
#define TEST_LIB_SHARD_RIG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/hash.h"
#include "engine/shard.h"
#include "io/sim.h"

#define RIG_PEERS     64
#define RIG_OPS       16384
#define RIG_KEY_BYTES 32
#define RIG_RUNS      1024

enum rig_manner {
    RIG_HONEST,  /* fills its grant and commits; reads its chunks and gives them back */
    RIG_STOPPED, /* does nothing with grant or chunk until rig_go_on() */
    RIG_LYING    /* writes something else than it says */
};

struct rig_op {
    struct fb_op op;
    uint8_t text[RIG_KEY_BYTES];
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

struct rig {
    struct fb_shard_config config;
    struct fb_sim_config device;
    struct fb_sim *sim;
    struct fb_shard *shard;
    void *memory, *meta;
    size_t memory_bytes, meta_bytes;
    uint64_t now_ns;
    uint64_t deadline_ns; /* what operations get from now */
    struct fb_peer peers[RIG_PEERS];
    uint16_t ns;
    uint64_t epoch;
    uint8_t id[16];
    struct fb_secret secret;
    struct rig_op *ops;
    uint32_t next_op;
    uint64_t versions;
    bool audits; /* after every event */
};

/* Fills what is 0 in rig->config and rig->device with small defaults, opens the device, starts the
 * shard, opens the peers and a namespace. Call with a zeroed rig, or one whose config was set. */
void rig_open(struct rig *rig);
void rig_close(struct rig *rig);

/* The power goes: a new shard starts on what the device has kept. Operations that were open are
 * forgotten. */
void rig_crash(struct rig *rig, enum fb_sim_cut cut, uint64_t seed);

/* Starts operations; peer is a number below RIG_PEERS. */
struct rig_op *rig_put(struct rig *rig, unsigned peer, uint64_t key, uint64_t bytes, unsigned flags,
                       enum fb_persist persist);
struct rig_op *rig_put_as(struct rig *rig, enum rig_manner manner, unsigned peer, uint64_t key,
                          uint64_t bytes, unsigned flags, enum fb_persist persist);
struct rig_op *rig_get(struct rig *rig, unsigned peer, uint64_t key, unsigned flags);
struct rig_op *rig_get_range(struct rig *rig, enum rig_manner manner, unsigned peer, uint64_t key,
                             uint64_t off, uint64_t bytes, unsigned flags);
struct rig_op *rig_start(struct rig *rig, enum fb_op_kind kind, unsigned peer, uint64_t key);
/* A prepared operation, not started yet: for special requests. */
struct rig_op *rig_prepare(struct rig *rig, enum fb_op_kind kind, unsigned peer, uint64_t key);
void rig_go(struct rig *rig, struct rig_op *op);

/* A stopped client goes on. */
void rig_go_on(struct rig *rig, struct rig_op *op);

struct fb_digest rig_digest(const struct rig *rig, uint64_t key);

/* Lets everything happen that needs no time. */
void rig_pump(struct rig *rig);
/* Lets time pass. */
void rig_run(struct rig *rig, uint64_t ns);
/* Waits until the operation has its result; asserts that this happens by its deadline and a bit.
 * Returns it. */
int rig_result(struct rig *rig, struct rig_op *op);
/* Waits until it is closed, and gives it back. Returns its result. */
int rig_end(struct rig *rig, struct rig_op *op);
/* Waits until nothing is dirty any more (or the device is of no use). */
void rig_settle(struct rig *rig);

/* Puts, waits, expects FB_OK. Returns the version. */
uint64_t rig_must_put(struct rig *rig, uint64_t key, uint64_t bytes);
/* Gets, waits, and expects this version, whole. */
void rig_must_get(struct rig *rig, uint64_t key, uint64_t version);
/* Gets, waits, and expects a miss; returns the reason. */
enum fb_reason rig_must_miss(struct rig *rig, uint64_t key);
/* Looks one key up, with a hold if ms is not 0: enum fb_found. */
unsigned rig_look(struct rig *rig, uint64_t key, uint32_t hold_ms, uint32_t loads);
/* Bumps the epoch. */
void rig_bump(struct rig *rig);

struct fb_shard_stats rig_stats(const struct rig *rig);
struct fb_log_stats rig_log_stats(const struct rig *rig);

#endif
