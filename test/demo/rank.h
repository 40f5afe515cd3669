/*
 * Report A seen from one tensor-parallel rank: puts its objects, finds out which prefix of a prompt
 * can be reused, reads what an engine needs for it, and at last reads everything.
 *
 * A prompt is blocks; a block of a rank is one object for each cache group. To reuse a prefix of L
 * blocks an engine needs, on every rank, all L blocks of the full-attention groups and the last
 * `window_blocks` blocks of the sliding-window groups.
 */
#ifndef TEST_DEMO_RANK_H
#define TEST_DEMO_RANK_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "forebay/forebay.h"

#define RANKS_MAX 2

struct shape {
    unsigned prompts, blocks, ranks, groups, full_groups, window_blocks, block_tokens;
    uint32_t object_bytes;
    unsigned batch_keys_max; /* no batch is longer */
};

static inline uint64_t shape_objects(const struct shape *s)
{
    return (uint64_t)s->prompts * s->blocks * s->ranks * s->groups;
}

static inline uint64_t shape_tokens(const struct shape *s)
{
    return (uint64_t)s->prompts * s->blocks * s->block_tokens;
}

/* What both ranks share: the meeting point, and which objects of the prompt can be read. */
struct ranks {
    struct shape shape;
    pthread_barrier_t meet;
    bool *readable[RANKS_MAX]; /* [group * blocks + block] of the prompt in hand */
    bool again[RANKS_MAX];     /* a needed object turned out to be missing */
    uint64_t reused_tokens;
};

enum rank_stage {
    RANK_PUT,
    RANK_REPLAY,
    RANK_READ_ALL
};

struct rank {
    struct ranks *all;
    unsigned number;
    struct fb_client *client;
    enum rank_stage stage;
    bool must_persist; /* each put must say that it is on SSD */
    /* what came of it */
    uint64_t failed_puts, failed_reads, failed_calls, not_persisted, wrong_objects;
    uint64_t verified_bytes, verified_objects;
    char first_failure[200];
    /* of the batch in hand */
    struct rank_batch *batch;
};

/* Readies a rank and its batch memory; false if memory is short. */
bool rank_open(struct rank *rank, struct ranks *all, unsigned number);
void rank_close(struct rank *rank);

/* Does rank->stage; a thread's function, the argument is the rank. Returns NULL. */
void *rank_run(void *rank);

#endif
