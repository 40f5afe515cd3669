/*
 * log_rig.h - the SSD log on a simulated device, with a small owner in place of the shard and a
 * model of what was promised.
 *
 * The owner keeps an index of RIG_KEYS keys, puts and removes them as the shard does (whatever may
 * be on the device is killed by a tombstone before a newer value is answered), judges and copies in
 * a reclaim, and rebuilds its index at a start. The model keeps, for each key, the newest
 * generation that was answered as durable and the highest one that was answered as removed;
 * rig_check() asserts that the log kept both: bytes of a key are exactly those of a generation that
 * was put, none that was removed is back, none is older than the newest answered, and what was
 * answered is there or in the history.
 */
#ifndef TEST_LIB_LOG_RIG_H
#define TEST_LIB_LOG_RIG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/prng.h"
#include "engine/log.h"
#include "io/sim.h"

#define RIG_KEYS        64
#define RIG_SLOTS       72 /* items and reads at once */
#define RIG_DROPPED_MAX 4096

struct rig;

/* What a slot of the owner is used for. */
enum rig_use {
    RIG_FREE,
    RIG_PUT,
    RIG_TOMB,
    RIG_COPY_READ,
    RIG_COPY_PUT,
    RIG_GET,
    RIG_GET_LOOSE /* checked when it comes, nobody waits */
};

struct rig_slot {
    struct fb_log_item item;
    struct fb_log_read read;
    struct rig *rig;
    enum rig_use use;
    uint32_t key;
    uint64_t generation;
    struct fb_log_addr from; /* of a copy */
    int result;
    bool is_done;
    uint8_t key_text[64];
    uint32_t after; /* a put that waits for its tombstone: slot + 1 of it */
};

/* The index's entry of a key. */
struct rig_entry {
    uint64_t generation; /* 0: none */
    struct fb_log_addr addr;
    uint64_t maybe; /* up to this one, something of the key may be on the device */
};

/* What the model knows of a key. */
struct rig_promise {
    uint64_t durable;  /* newest generation answered as durable */
    uint64_t removed;  /* up to this one: answered as removed */
    uint64_t last;     /* newest generation ever tried */
    uint64_t given_up; /* newest generation that the log said it dropped */
    uint64_t removing; /* up to this one a removal was tried */
};

struct rig_options {
    uint64_t seed;
    uint64_t capacity_bytes; /* 0: 16 MiB */
    uint32_t errors_to_fence;
    uint32_t tombs_max;
    uint32_t batch_bytes; /* 0: a chunk */
    uint64_t linger_ns;
    uint64_t node_id;
    uint32_t keep_every; /* keys whose number is a multiple are kept in a reclaim; 0 none */
    bool is_heavy_copy;  /* keep all */
    bool is_format;
    bool has_boundary;
    bool is_hunt; /* a violation aborts with a line on stderr, for checks of the checks */
    const struct fb_script *script;
    struct fb_sim_rates rates;
};

struct rig {
    struct rig_options options;
    struct fb_sim *sim;
    struct fb_log *log;
    struct fb_log_config config;
    struct fb_log_geometry geometry;
    void *memory;
    size_t memory_bytes;
    uint8_t *meta;
    size_t meta_bytes;
    struct rig_slot slots[RIG_SLOTS];
    struct rig_entry index[RIG_KEYS];
    struct rig_promise promise[RIG_KEYS];
    struct fb_digest digests[RIG_KEYS];
    uint64_t tombs[RIG_KEYS]; /* recovery: highest tombstone found */
    uint64_t now_ns;
    uint64_t wall_ms;
    uint64_t counter;   /* of generations, over all boots */
    uint32_t *bytes_of; /* length of the value of each, shared by clones */
    uint64_t boot;
    int start_result; /* 1: not over */
    uint32_t dropped;
    uint32_t copies_asked;
    uint32_t durable_calls;
    uint32_t failed_calls;
    uint32_t changes;
    uint32_t recovered;
    bool no_answer_to_copy;
    bool is_lying; /* writes that were answered may not have happened: tombstones too */
    bool is_lossy; /* the run has faults that may lose what was durable */
    struct fb_prng prng;
    void (*boundary)(struct rig *rig, uint64_t boundary);
    void *boundary_context;
};

/* Makes a rig on an empty device; the log is not started. Asserts. */
struct rig *rig_open(const struct rig_options *options);

/* Ends it. */
void rig_close(struct rig *rig);

/* Starts the log (again): forgets everything in memory; returns the result of the start. */
int rig_start(struct rig *rig, bool format);

/* Makes the log anew without starting it. */
void rig_reset_log(struct rig *rig);

/* Cuts the power, and starts again. */
int rig_crash(struct rig *rig, enum fb_sim_cut cut, uint64_t seed);

/* Lets everything happen that is due within `ns`. */
void rig_run(struct rig *rig, uint64_t ns);

/* Lets one thing happen, the next completion or timer; false if there is none within `ns`. */
bool rig_step(struct rig *rig, uint64_t ns);

/* Hands the log's requests to the device. */
void rig_submit(struct rig *rig);

/* Puts a new generation of a key; returns its slot, or NULL if all are in use or the key is busy.
 */
struct rig_slot *rig_put(struct rig *rig, uint32_t key, uint32_t bytes, bool urgent);

/* Removes a key; the slot of its tombstone, or NULL. */
struct rig_slot *rig_remove(struct rig *rig, uint32_t key);

/* Reads a key and checks its bytes: FB_OK, FB_MISS (not in the index, or stale), FB_IO. */
int rig_get(struct rig *rig, uint32_t key);

/* Begins to read what the index says; the slot, or NULL. */
struct rig_slot *rig_get_begin(struct rig *rig, uint32_t key);

/* True if the bytes that a finished read brought are those of its generation. */
bool rig_is_exact(struct rig *rig, const struct rig_slot *slot);

/* The length of the value of a generation. */
uint32_t rig_bytes(const struct rig *rig, uint64_t generation);

/* Checks every key against the model. */
void rig_check(struct rig *rig);

/* One random operation. */
void rig_random_op(struct rig *rig);

/* How honest a device is. */
enum rig_honesty {
    RIG_HONEST,
    RIG_MISREADS, /* reads may bring something else */
    RIG_LIES      /* writes that were answered may not have happened */
};

/*
 * A life: random load, then a crash, a start and a check, several times over; sometimes killed
 * while it starts. Adds the log's figures to *sum.
 */
void rig_live(uint64_t seed, const struct fb_sim_rates *rates, enum rig_honesty honesty,
              bool is_hunt, struct fb_log_stats *sum);

/* The stats now. */
struct fb_log_stats rig_stats(const struct rig *rig);

/* Makes `to` the device and the promises of `from` after a cut, without touching `from`. */
void rig_clone_cut(const struct rig *from, struct rig *to, enum fb_sim_cut cut, uint64_t seed);

#endif
