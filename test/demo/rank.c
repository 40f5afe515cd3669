/* One rank of report A. See rank.h. */
#include "test/demo/rank.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/prng.h"
#include "test/demo/demo.h"
#include "test/lib/value.h"

#define KEY_BYTES   64
#define PUT_PIECES  10 /* a value is gathered from so many buffers, like the layers of a model */
#define GET_PIECES  3  /* and comes back in so many */
#define HOLD_MS     60000
#define LOOKUPS_MAX 4096 /* keys of one lookup */
#define ROUNDS_MAX  8

/* Which object: of a prompt, a block and a cache group. The rank is known. */
struct object {
    uint32_t prompt, block, group;
};

/* Memory for the longest batch. */
struct rank_batch {
    unsigned count;
    struct object *objects;
    char (*keys)[KEY_BYTES];
    unsigned char *bytes;
    struct fb_buf (*bufs)[PUT_PIECES];
    struct fb_put_item *puts;
    struct fb_get_item *gets;
    /* of lookups */
    struct object *asked;
    char (*asked_keys)[KEY_BYTES];
    struct fb_exists_item *exists;
};

bool rank_open(struct rank *rank, struct ranks *all, unsigned number)
{
    unsigned n = all->shape.batch_keys_max;
    *rank = (struct rank){.all = all, .number = number};
    struct rank_batch *b = calloc(1, sizeof(*b));
    rank->batch = b;
    if (b == NULL)
        return false;
    b->objects = calloc(n, sizeof(*b->objects));
    b->keys = calloc(n, sizeof(*b->keys));
    b->bytes = malloc((size_t)n * all->shape.object_bytes);
    b->bufs = calloc(n, sizeof(*b->bufs));
    b->puts = calloc(n, sizeof(*b->puts));
    b->gets = calloc(n, sizeof(*b->gets));
    b->asked = calloc(LOOKUPS_MAX, sizeof(*b->asked));
    b->asked_keys = calloc(LOOKUPS_MAX, sizeof(*b->asked_keys));
    b->exists = calloc(LOOKUPS_MAX, sizeof(*b->exists));
    return b->objects && b->keys && b->bytes && b->bufs && b->puts && b->gets && b->asked &&
           b->asked_keys && b->exists;
}

void rank_close(struct rank *rank)
{
    struct rank_batch *b = rank->batch;
    if (b == NULL)
        return;
    free(b->objects);
    free(b->keys);
    free(b->bytes);
    free(b->bufs);
    free(b->puts);
    free(b->gets);
    free(b->asked);
    free(b->asked_keys);
    free(b->exists);
    free(b);
    rank->batch = NULL;
}

static void failure(struct rank *rank, const char *what, const char *key, int result, int reason)
{
    if (rank->first_failure[0] != '\0')
        return;
    snprintf(rank->first_failure, sizeof(rank->first_failure), "rank %u: %s of %s: %s (%s)",
             rank->number, what, key, fb_result_name(result), fb_reason_name(reason));
}

static size_t name_object(const struct rank *rank, struct object o, char key[KEY_BYTES])
{
    int n = snprintf(key, KEY_BYTES, "rank=%u group=%02u prompt=%u block=%05u", rank->number,
                     o.group, o.prompt, o.block);
    FB_ASSERT(n > 0 && n < KEY_BYTES);
    return (size_t)n;
}

static struct test_value value_of(const char *key, size_t key_bytes)
{
    return test_value_of(DEMO_SEED, key, key_bytes, 1);
}

/* Cuts the memory of a value into pieces of uneven length. */
static void cut(struct fb_buf *bufs, unsigned pieces, unsigned char *bytes, uint32_t length)
{
    uint32_t off = 0;
    for (unsigned i = 0; i < pieces; i++) {
        uint32_t rest = length - off;
        uint32_t part = i + 1 == pieces ? rest : length / pieces + (i & 1);
        bufs[i] = (struct fb_buf){.ptr = bytes + off, .len = part};
        off += part;
    }
    FB_ASSERT(off == length);
}

/* ---- batches ---- */

static unsigned char *batch_bytes(const struct rank *rank, unsigned i)
{
    return rank->batch->bytes + (size_t)i * rank->all->shape.object_bytes;
}

static bool batch_full(const struct rank *rank, unsigned limit)
{
    return rank->batch->count >= limit || rank->batch->count >= rank->all->shape.batch_keys_max;
}

static void batch_add(struct rank *rank, struct object o)
{
    struct rank_batch *b = rank->batch;
    FB_ASSERT(b->count < rank->all->shape.batch_keys_max);
    b->objects[b->count++] = o;
}

static void batch_put(struct rank *rank)
{
    struct rank_batch *b = rank->batch;
    uint32_t bytes = rank->all->shape.object_bytes;
    for (unsigned i = 0; i < b->count; i++) {
        size_t n = name_object(rank, b->objects[i], b->keys[i]);
        test_value_fill(value_of(b->keys[i], n), 0, batch_bytes(rank, i), bytes);
        cut(b->bufs[i], PUT_PIECES, batch_bytes(rank, i), bytes);
        b->puts[i] = (struct fb_put_item){.key = b->keys[i],
                                          .key_bytes = n,
                                          .bufs = b->bufs[i],
                                          .buf_count = PUT_PIECES,
                                          .depth = (uint16_t)b->objects[i].block};
    }
    rank->failed_calls += fb_put_batch(rank->client, b->puts, b->count, DEMO_CALL_MS) != 0;
    for (unsigned i = 0; i < b->count; i++) {
        const struct fb_put_item *put = &b->puts[i];
        bool good = put->result == FB_OK || put->result == FB_EXISTS;
        if (!good) {
            rank->failed_puts++;
            failure(rank, "put", b->keys[i], put->result, put->reason);
        }
        rank->not_persisted += rank->must_persist && good && !put->persisted;
    }
    progress_add(b->count);
    b->count = 0;
}

/* Reads and checks the batch. An object that fails is no longer readable (in `readable`, if given).
 */
static void batch_get(struct rank *rank, uint32_t flags, bool *readable)
{
    struct rank_batch *b = rank->batch;
    uint32_t bytes = rank->all->shape.object_bytes;
    for (unsigned i = 0; i < b->count; i++) {
        size_t n = name_object(rank, b->objects[i], b->keys[i]);
        cut(b->bufs[i], GET_PIECES, batch_bytes(rank, i), bytes);
        b->gets[i] = (struct fb_get_item){.key = b->keys[i],
                                          .key_bytes = n,
                                          .bufs = b->bufs[i],
                                          .buf_count = GET_PIECES,
                                          .flags = flags};
    }
    rank->failed_calls += fb_get_batch(rank->client, b->gets, b->count, DEMO_CALL_MS) != 0;
    for (unsigned i = 0; i < b->count; i++) {
        const struct fb_get_item *get = &b->gets[i];
        bool right =
            get->result == FB_OK && get->bytes == bytes &&
            test_value_check(value_of(b->keys[i], get->key_bytes), 0, batch_bytes(rank, i), bytes);
        rank->wrong_objects += get->result == FB_OK && !right;
        rank->failed_reads += get->result != FB_OK;
        rank->verified_objects += right;
        rank->verified_bytes += right ? bytes : 0;
        if (!right)
            failure(rank, get->result == FB_OK ? "wrong bytes" : "get", b->keys[i], get->result,
                    get->reason);
        if (!right && readable != NULL)
            readable[b->objects[i].group * rank->all->shape.blocks + b->objects[i].block] = false;
    }
    progress_add(b->count);
    b->count = 0;
}

/* Hundreds to thousands of keys, another number each time. */
static unsigned next_limit(struct fb_prng *prng, const struct shape *s)
{
    unsigned low = s->batch_keys_max < 400 ? s->batch_keys_max / 2 : 200;
    return (unsigned)fb_prng_between(prng, low, s->batch_keys_max);
}

/* Every object of the rank, prompt after prompt, block after block: puts it, or reads it. */
static void walk(struct rank *rank, bool put)
{
    const struct shape *s = &rank->all->shape;
    struct fb_prng prng;
    fb_prng_seed(&prng, DEMO_SEED + rank->number);
    unsigned limit = next_limit(&prng, s);
    for (uint32_t p = 0; p < s->prompts; p++) {
        for (uint32_t i = 0; i < s->blocks * s->groups; i++) {
            batch_add(rank, (struct object){p, i / s->groups, i % s->groups});
            bool last = p + 1 == s->prompts && i + 1 == s->blocks * s->groups;
            if (!last && !batch_full(rank, limit))
                continue;
            if (put)
                batch_put(rank);
            else
                batch_get(rank, 0, NULL);
            limit = next_limit(&prng, s);
        }
    }
}

/* ---- the replay of a prompt ---- */

/* True if the block of the group is needed to reuse a prefix of `prefix` blocks. */
static bool needed(const struct shape *s, uint32_t group, uint32_t block, uint32_t prefix)
{
    if (block >= prefix)
        return false;
    return group < s->full_groups || block + s->window_blocks >= prefix;
}

/* The longest prefix for which all ranks can read all that is needed. */
static uint32_t longest_prefix(const struct ranks *all)
{
    const struct shape *s = &all->shape;
    for (uint32_t prefix = s->blocks; prefix > 0; prefix--) {
        bool whole = true;
        for (uint32_t i = 0; whole && i < s->ranks * s->groups * prefix; i++) {
            uint32_t rank = i / (s->groups * prefix), group = i / prefix % s->groups;
            uint32_t block = i % prefix;
            whole =
                !needed(s, group, block, prefix) || all->readable[rank][group * s->blocks + block];
        }
        if (whole)
            return prefix;
    }
    return 0;
}

/* Looks up what is in `asked`, and notes what cannot be read; with a hold, what is not held. */
static bool ask(struct rank *rank, unsigned count, const struct fb_hold_request *hold)
{
    struct rank_batch *b = rank->batch;
    const struct shape *s = &rank->all->shape;
    bool all = true;
    for (unsigned i = 0; i < count; i++) {
        size_t n = name_object(rank, b->asked[i], b->asked_keys[i]);
        b->exists[i] = (struct fb_exists_item){.key = b->asked_keys[i], .key_bytes = n};
    }
    rank->failed_calls += fb_exists_batch(rank->client, b->exists, count, hold, DEMO_CALL_MS) != 0;
    for (unsigned i = 0; i < count; i++) {
        int result = b->exists[i].result;
        bool good = result == FB_OK || (hold == NULL && result == FB_NOT_HELD);
        rank->all->readable[rank->number][b->asked[i].group * s->blocks + b->asked[i].block] = good;
        if (!good)
            failure(rank, "lookup", b->asked_keys[i], result, 0);
        all = all && good;
    }
    return all;
}

/* Looks up the objects of a prompt: all, or with a hold those that are needed for a prefix. */
static bool look_up(struct rank *rank, uint32_t prompt, uint32_t prefix,
                    const struct fb_hold_request *hold)
{
    const struct shape *s = &rank->all->shape;
    unsigned count = 0;
    bool all = true;
    for (uint32_t i = 0; i < s->groups * s->blocks; i++) {
        struct object o = {prompt, i % s->blocks, i / s->blocks};
        if (hold != NULL && !needed(s, o.group, o.block, prefix))
            continue;
        rank->batch->asked[count++] = o;
        if (count == LOOKUPS_MAX) {
            all = ask(rank, count, hold) && all;
            count = 0;
        }
    }
    return (count == 0 || ask(rank, count, hold)) && all;
}

static void read_needed(struct rank *rank, uint32_t prompt, uint32_t prefix)
{
    const struct shape *s = &rank->all->shape;
    for (uint32_t i = 0; i < s->groups * s->blocks; i++) {
        struct object o = {prompt, i % s->blocks, i / s->blocks};
        if (!needed(s, o.group, o.block, prefix))
            continue;
        batch_add(rank, o);
        if (batch_full(rank, s->batch_keys_max))
            batch_get(rank, FB_GET_USES_HOLD, rank->all->readable[rank->number]);
    }
    if (rank->batch->count > 0)
        batch_get(rank, FB_GET_USES_HOLD, rank->all->readable[rank->number]);
}

/* The ranks agree on a prefix that all of them can hold: the whole prompt, as it should be; if an
 * object is missing they look at everything and agree on less. */
static uint32_t hold_prefix(struct rank *rank, uint32_t prompt)
{
    const struct fb_hold_request hold = {.ms = HOLD_MS, .loads = 1};
    struct ranks *all = rank->all;
    uint32_t prefix = all->shape.blocks;
    for (unsigned round = 0; round < ROUNDS_MAX; round++) {
        all->again[rank->number] = !look_up(rank, prompt, prefix, &hold);
        pthread_barrier_wait(&all->meet);
        if (!all->again[0] && !all->again[all->shape.ranks - 1])
            break;
        if (round == 0)
            look_up(rank, prompt, prefix, NULL);
        pthread_barrier_wait(&all->meet);
        prefix = longest_prefix(all);
        pthread_barrier_wait(&all->meet);
    }
    return prefix;
}

/* What can be reused is what was read: the prefix is measured again after the reads. */
static void replay_prompt(struct rank *rank, uint32_t prompt)
{
    struct ranks *all = rank->all;
    uint32_t prefix = hold_prefix(rank, prompt);
    read_needed(rank, prompt, prefix);
    pthread_barrier_wait(&all->meet);
    if (rank->number == 0)
        all->reused_tokens += (uint64_t)longest_prefix(all) * all->shape.block_tokens;
    pthread_barrier_wait(&all->meet);
}

void *rank_run(void *argument)
{
    struct rank *rank = argument;
    if (rank->stage == RANK_PUT)
        walk(rank, true);
    else if (rank->stage == RANK_READ_ALL)
        walk(rank, false);
    else
        for (uint32_t p = 0; p < rank->all->shape.prompts; p++)
            replay_prompt(rank, p);
    return NULL;
}
