/*
 * loads.c - ten loads, each of which uses another part of the engine. What they get for an answer
 * does not matter to them; what they were promised is kept by the tiny shard.
 */
#include "test/sweep/sweep.h"

#define EVERY_KEY TINY_KEYS

static void put_many(struct tiny *tiny, uint32_t first, uint32_t count, uint64_t bytes,
                     enum fb_persist persist)
{
    for (uint32_t i = 0; i < count; i++)
        tiny_put(tiny, (first + i) % TINY_KEYS, bytes + 3001 * i, FB_PUT_UPSERT, persist);
    tiny_end_all(tiny);
}

/* Values of many sizes, written behind, read from memory and from the device. */
static void mixed(struct tiny *tiny)
{
    static const uint32_t sizes[] = {1, 4096, 4097, 30000, 65536, 65537, 150000, 262144, 400000};
    if (!tiny_start(tiny))
        return;
    for (uint32_t i = 0; i < 18; i++)
        tiny_put(tiny, i, sizes[i % 9], 0, FB_PERSIST_DEFAULT);
    tiny_end_all(tiny);
    tiny_settle(tiny, FB_SEC_NS);
    for (uint32_t i = 0; i < 18; i++)
        tiny_get(tiny, i, 0, UINT64_MAX, 0);
    tiny_end_all(tiny);
}

/* Puts that are answered when durable, and others of the same key that wait for them. */
static void through(struct tiny *tiny)
{
    if (!tiny_start(tiny))
        return;
    for (uint32_t i = 0; i < 10; i++) {
        tiny_put(tiny, i, 20000 + i * 9000, 0, FB_PERSIST_THROUGH);
        tiny_put(tiny, i, 500, 0, FB_PERSIST_THROUGH);
        tiny_put(tiny, i, 700, FB_PUT_UPSERT, FB_PERSIST_THROUGH);
    }
    tiny_end_all(tiny);
    for (uint32_t i = 0; i < 10; i++) {
        tiny_put(tiny, i + 10, 8000, 0, FB_PERSIST_BEHIND);
        tiny_do(tiny, FB_OP_WAIT_PERSISTED, i + 10, 0);
    }
    tiny_end_all(tiny);
}

/* Four times the pool: puts at the speed of the device, eviction, reads from it. */
static void pressure(struct tiny *tiny)
{
    if (!tiny_start(tiny))
        return;
    for (uint32_t i = 0; i < TINY_KEYS; i++)
        tiny_put(tiny, i, 160000, 0, FB_PERSIST_DEFAULT);
    tiny_end_all(tiny);
    for (uint32_t i = 0; i < TINY_KEYS; i += 3)
        tiny_get(tiny, i, 0, UINT64_MAX, 0);
    tiny_end_all(tiny);
}

/* Removes, of what is durable and of what is not yet; the same keys anew. */
static void removes(struct tiny *tiny)
{
    if (!tiny_start(tiny))
        return;
    put_many(tiny, 0, 12, 5000, FB_PERSIST_THROUGH);
    for (uint32_t i = 0; i < 12; i += 2)
        tiny_do(tiny, FB_OP_REMOVE, i, 0);
    put_many(tiny, 20, 6, 90000, FB_PERSIST_BEHIND);
    for (uint32_t i = 20; i < 26; i++)
        tiny_do(tiny, FB_OP_REMOVE, i, 0);
    tiny_end_all(tiny);
    put_many(tiny, 0, 6, 3000, FB_PERSIST_THROUGH);
    put_many(tiny, 0, 6, 3500, FB_PERSIST_BEHIND);
    tiny_settle(tiny, FB_SEC_NS);
}

/* Bumps of the epoch, also while puts are under way. */
static void epochs(struct tiny *tiny)
{
    if (!tiny_start(tiny))
        return;
    for (unsigned round = 0; round < 4; round++) {
        put_many(tiny, 0, 6, 10000, FB_PERSIST_THROUGH);
        tiny_put(tiny, 30, 50000, 0, FB_PERSIST_THROUGH);
        tiny_do(tiny, FB_OP_EPOCH, 0, 0);
        tiny_put(tiny, 31, 50000, 0, FB_PERSIST_BEHIND);
        tiny_end_all(tiny);
    }
    put_many(tiny, 0, 3, 10000, FB_PERSIST_BEHIND);
}

/* More than the device holds: segments are given up, what is held is copied forward. */
static void reclaim(struct tiny *tiny)
{
    if (!tiny_start(tiny))
        return;
    put_many(tiny, 40, 8, 30000, FB_PERSIST_THROUGH);
    for (unsigned round = 0; round < 9; round++) {
        tiny_end(tiny, tiny_do(tiny, FB_OP_LOOKUP, 0, 20000));
        put_many(tiny, round * 7, 22, 60000, FB_PERSIST_BEHIND);
        tiny_end(tiny, tiny_do(tiny, FB_OP_REMOVE, round * 3, 0));
    }
    tiny_settle(tiny, FB_SEC_NS);
}

/* The process dies in mid-load and starts again, twice. */
static void restart(struct tiny *tiny)
{
    for (unsigned boot = 0; boot < 3; boot++) {
        if (!tiny_start(tiny)) {
            tiny_stop(tiny);
            fb_sim_kill(tiny->sim, boot);
            continue;
        }
        put_many(tiny, boot * 9, 12, 20000, FB_PERSIST_BEHIND);
        tiny_do(tiny, FB_OP_REMOVE, boot * 9 + 1, 0);
        tiny_end(tiny, tiny_put(tiny, boot, 1000, FB_PUT_UPSERT, FB_PERSIST_THROUGH));
        tiny_read_all(tiny);
        tiny_put(tiny, 45, 200000, FB_PUT_UPSERT, FB_PERSIST_THROUGH);
        if (boot == 2)
            break;
        tiny_stop(tiny);
        fb_sim_kill(tiny->sim, boot);
    }
}

/* A client that stops with a grant, one that stops with chunks, one that lies about its bytes. */
static void stopped(struct tiny *tiny)
{
    if (!tiny_start(tiny))
        return;
    put_many(tiny, 0, 10, 60000, FB_PERSIST_THROUGH);
    struct tiny_op *writer = tiny_prepare(tiny, FB_OP_PUT, 20);
    writer->op.value_bytes = 300000;
    writer->stopped = true;
    tiny_go(tiny, writer);
    struct tiny_op *reader = tiny_prepare(tiny, FB_OP_GET, 3);
    reader->stopped = true;
    tiny_go(tiny, reader);
    struct tiny_op *liar = tiny_prepare(tiny, FB_OP_PUT, 21);
    liar->op.value_bytes = 100000;
    liar->lies = true;
    tiny_go(tiny, liar);
    tiny_put(tiny, 20, 4000, 0, FB_PERSIST_BEHIND);
    put_many(tiny, 30, 12, 100000, FB_PERSIST_BEHIND);
    tiny_run(tiny, 6 * FB_SEC_NS);
    tiny_go_on(tiny, writer);
    tiny_go_on(tiny, reader);
    tiny_end_all(tiny);
    tiny_get(tiny, 21, 0, UINT64_MAX, 0);
    tiny_end_all(tiny);
}

/* Shutting down while much is dirty. */
static void drain(struct tiny *tiny)
{
    if (!tiny_start(tiny))
        return;
    for (uint32_t i = 0; i < 12; i++)
        tiny_put(tiny, i, 90000, 0, FB_PERSIST_EVICT);
    tiny_end_all(tiny);
    fb_shard_drain(tiny->shard, tiny->now_ns);
    tiny_put(tiny, 20, 100, 0, FB_PERSIST_DEFAULT);
    tiny_get(tiny, 1, 0, UINT64_MAX, 0);
    tiny_end_all(tiny);
    uint64_t limit = tiny->now_ns + 25 * FB_SEC_NS;
    while (!fb_shard_drained(tiny->shard) && tiny->now_ns < limit && tiny->wrong[0] == '\0')
        tiny_run(tiny, 10 * FB_MS_NS);
    tiny_stop(tiny);
    fb_sim_kill(tiny->sim, 1);
    tiny_start(tiny);
}

/* Ranges, checked reads, drops from memory, holds, lists. */
static void odds(struct tiny *tiny)
{
    if (!tiny_start(tiny))
        return;
    put_many(tiny, 0, 10, 40000, FB_PERSIST_BEHIND);
    for (uint32_t i = 0; i < 10; i++)
        tiny_do(tiny, FB_OP_DROP_DRAM, i, 0);
    tiny_end_all(tiny);
    tiny_end(tiny, tiny_do(tiny, FB_OP_LOOKUP, 0, 1000));
    for (uint32_t i = 0; i < 10; i++) {
        tiny_get(tiny, i, 5000 * i, 10000, FB_GET_VERIFY);
        tiny_get(tiny, i, 0, UINT64_MAX, FB_GET_HELD | FB_GET_NO_PROMOTE);
    }
    tiny_do(tiny, FB_OP_LIST, 0, 0);
    tiny_end_all(tiny);
    tiny_end(tiny, tiny_do(tiny, FB_OP_HOLD_RELEASE, 0, 0));
    tiny_end(tiny, tiny_do(tiny, FB_OP_LIST, 0, 0));
}

static void as_it_is(struct tiny *tiny)
{
    (void)tiny;
}

static void short_of_index(struct tiny *tiny)
{
    tiny->config.index_entries = 160;
    tiny->config.log.tombs_max = 16;
}

const struct sweep_load sweep_loads[SWEEP_LOADS] = {
    {"mixed", as_it_is, mixed},       {"through", as_it_is, through},
    {"pressure", as_it_is, pressure}, {"removes", short_of_index, removes},
    {"epochs", as_it_is, epochs},     {"reclaim", short_of_index, reclaim},
    {"restart", as_it_is, restart},   {"stopped", as_it_is, stopped},
    {"drain", as_it_is, drain},       {"odds", as_it_is, odds},
};
