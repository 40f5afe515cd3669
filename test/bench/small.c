/*
 * small.c - rows: latencies and lookups beside Redis, restart with many keys, index, idle.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/shard.h"
#include "test/bench/bench.h"

#define READS         4000
#define READS_LARGE   1000
#define EXISTS_KEYS   10000
#define EXISTS_ROUNDS 20
#define RESTART_KEYS  1000000
#define RESTART_PUT   (64u * 4)
#define INDEX_STEP    (1u << 20)
#define IDLE_MS       5000

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

struct latencies {
    double p50, p99;
};

static struct latencies percentiles(double *times, unsigned count)
{
    qsort(times, count, sizeof(*times), by_value);
    return (struct latencies){times[count / 2], times[(size_t)count * 99 / 100]};
}

static void one_latency(struct bench *bench, uint64_t value_bytes, const char *size, unsigned reads)
{
    char p50_name[64], p99_name[64];
    snprintf(p50_name, sizeof(p50_name), "get_%s_p50", size);
    snprintf(p99_name, sizeof(p99_name), "get_%s_p99", size);
    if (!bench_wants(bench, p50_name) && !bench_wants(bench, p99_name))
        return;
    uint32_t values = 200;
    struct bench_setup setup = {.pool_bytes = 512ull << 20,
                                .value_bytes = value_bytes,
                                .values = values,
                                .index_entries = 65536};
    struct bench_row p50 = {.name = p50_name,
                            .unit = "us",
                            .peer = "redis",
                            .target = 1,
                            .less_is_better = true,
                            .runs = bench->runs};
    struct bench_row p99 = p50;
    p99.name = p99_name;
    struct bench_load load;
    bench_open(&load, bench, &setup);
    struct peer_redis *redis = peer_redis_open(bench);
    bench_put(&load, 0, values, 0);
    char key[64];
    for (uint32_t i = 0; i < values; i++) {
        bench_key(key, i, 0);
        peer_redis_set(redis, key, load.memory + i * value_bytes, value_bytes);
    }
    double *times = calloc(reads, sizeof(*times));
    for (unsigned run = 0; run < bench->runs; run++) {
        for (unsigned i = 0; i < reads; i++) {
            bench_key(key, i * 37 % values, 0);
            times[i] = peer_redis_get_us(redis, key, value_bytes);
        }
        struct latencies theirs = percentiles(times, reads);
        for (unsigned i = 0; i < reads; i++) {
            size_t bytes = bench_key(key, i * 37 % values, 0);
            uint64_t begin = test_now_ns();
            int result =
                fb_get(load.client, key, bytes, load.memory, value_bytes, NULL, BENCH_TIMEOUT_MS);
            times[i] = (double)(test_now_ns() - begin) / 1e3;
            if (result != FB_OK)
                bench_die("get: %s", fb_result_name(result));
        }
        struct latencies ours = percentiles(times, reads);
        p50.ours[run] = ours.p50;
        p50.theirs[run] = theirs.p50;
        p99.ours[run] = ours.p99;
        p99.theirs[run] = theirs.p99;
    }
    snprintf(p50.limit, sizeof(p50.limit),
             "one round trip over the Unix socket, and the copy with hash");
    snprintf(p99.limit, sizeof(p99.limit), "the scheduler of a machine with two cores");
    bench_print(bench, &p50);
    bench_print(bench, &p99);
    free(times);
    peer_redis_close(redis);
    bench_close(&load);
}

static void exists(struct bench *bench)
{
    if (!bench_wants(bench, "exists_10000"))
        return;
    struct bench_setup setup = {.pool_bytes = 256ull << 20,
                                .value_bytes = 4096,
                                .values = EXISTS_KEYS,
                                .index_entries = 65536};
    struct bench_row row = {.name = "exists_10000",
                            .unit = "M keys/s",
                            .peer = "redis",
                            .target = 3,
                            .runs = bench->runs};
    struct bench_load load;
    bench_open(&load, bench, &setup);
    struct peer_redis *redis = peer_redis_open(bench);
    bench_put(&load, 0, EXISTS_KEYS, 0);
    static char keys[EXISTS_KEYS][48];
    static struct fb_exists_item items[EXISTS_KEYS];
    for (unsigned i = 0; i < EXISTS_KEYS; i++) {
        items[i].key = keys[i];
        items[i].key_bytes = bench_key(keys[i], i, 0);
        peer_redis_set(redis, keys[i], "x", 1);
    }
    for (unsigned run = 0; run < bench->runs; run++) {
        double theirs = 1e18, ours = 1e18;
        for (unsigned i = 0; i < EXISTS_ROUNDS; i++) {
            double us = peer_redis_exists_us(redis, EXISTS_KEYS);
            theirs = us < theirs ? us : theirs;
            uint64_t begin = test_now_ns();
            if (fb_exists_batch(load.client, items, EXISTS_KEYS, NULL, BENCH_TIMEOUT_MS) != 0)
                bench_die("exists failed");
            us = (double)(test_now_ns() - begin) / 1e3;
            ours = us < ours ? us : ours;
        }
        row.ours[run] = EXISTS_KEYS / ours;
        row.theirs[run] = EXISTS_KEYS / theirs;
    }
    snprintf(row.limit, sizeof(row.limit),
             "digests at the client, cache misses in the index at the node");
    bench_print(bench, &row);
    peer_redis_close(redis);
    bench_close(&load);
}

static void restart(struct bench *bench)
{
    if (!bench_wants(bench, "restart"))
        return;
    struct bench_setup setup = {.pool_bytes = 512ull << 20,
                                .ssd_cap_bytes = 6ull << 30,
                                .value_bytes = 4096,
                                .values = RESTART_PUT,
                                .index_entries = 1500000};
    struct bench_row known = {.name = "restart_1m_keys",
                              .unit = "s",
                              .target = 5,
                              .less_is_better = true,
                              .runs = 1};
    struct bench_row share = {.name = "restart_read_share",
                              .unit = "% of data",
                              .target = 2,
                              .less_is_better = true,
                              .runs = 1};
    struct bench_load load;
    bench_open(&load, bench, &setup);
    uint64_t begin = test_now_ns();
    bench_put(&load, 0, RESTART_KEYS, 0);
    bench_wait_persisted(&load, RESTART_KEYS - 1000, 1000, 0);
    printf("    put %d keys of 4 KiB in %.1f s\n", RESTART_KEYS,
           (double)(test_now_ns() - begin) / 1e9);
    fb_client_close(load.client);
    test_server_kill(&load.server);
    struct test_server_options options = {.directory = bench->directory,
                                          .pool_bytes = setup.pool_bytes,
                                          .ssd_cap_bytes = setup.ssd_cap_bytes,
                                          .index_entries = setup.index_entries,
                                          .admin = true};
    options.extra[0] = "--listen=127.0.0.1:0";
    begin = test_now_ns();
    if (test_server_start(&load.server, &options) != 0)
        bench_die("restart: %s", load.server.error);
    known.ours[0] = (double)(test_now_ns() - begin) / 1e9;
    struct test_server_use use;
    test_server_look(&load.server, &use);
    share.ours[0] = (double)use.read_bytes / ((double)RESTART_KEYS * 4096) * 100;
    load.client = bench_client(&load, false);
    struct bench_cost cost = bench_get(&load, 0, 64, 0, 0);
    snprintf(known.limit, sizeof(known.limit),
             "reading summaries at depth 16; the first 64 keys were then read in %.1f ms",
             cost.seconds * 1e3);
    snprintf(share.limit, sizeof(share.limit), "summaries, 49 bytes a key, and what was open");
    bench_print(bench, &known);
    bench_print(bench, &share);
    bench_close(&load);
}

static void index_bytes(struct bench *bench)
{
    if (!bench_wants(bench, "index_bytes"))
        return;
    char why[BENCH_TEXT_MAX];
    size_t bytes[2];
    for (unsigned i = 0; i < 2; i++) {
        struct fb_shard_config config = {.pool_bytes = 64ull << 20,
                                         .index_entries = INDEX_STEP * (i + 1),
                                         .peers_max = 16};
        if (fb_shard_config_check(&config, why, sizeof(why)) != 0)
            bench_die("index: %s", why);
        bytes[i] = fb_shard_footprint(&config);
    }
    struct bench_row row = {.name = "index_bytes_a_key",
                            .unit = "bytes",
                            .target = 96,
                            .less_is_better = true,
                            .runs = 1};
    row.ours[0] = (double)(bytes[1] - bytes[0]) / INDEX_STEP;
    snprintf(row.limit, sizeof(row.limit),
             "all that the shard's memory grows by with one entry more");
    bench_print(bench, &row);
}

static void idle(struct bench *bench)
{
    if (!bench_wants(bench, "idle"))
        return;
    struct bench_setup setup = {.pool_bytes = 256ull << 20,
                                .ssd_cap_bytes = 1ull << 30,
                                .value_bytes = 4096,
                                .values = 64,
                                .index_entries = 65536};
    struct bench_row row = {.name = "idle_cpu",
                            .unit = "% of a core",
                            .target = 1,
                            .less_is_better = true,
                            .runs = 1};
    struct bench_load load;
    bench_open(&load, bench, &setup);
    bench_put(&load, 0, 64, 0);
    test_sleep_ms(1500);
    struct test_server_use before, after;
    test_server_look(&load.server, &before);
    test_sleep_ms(IDLE_MS);
    test_server_look(&load.server, &after);
    row.ours[0] = (double)(after.cpu_ms - before.cpu_ms) * 100 / IDLE_MS;
    snprintf(row.limit, sizeof(row.limit), "timers of the loop, one client connected");
    bench_print(bench, &row);
    bench_close(&load);
}

void bench_small(struct bench *bench)
{
    one_latency(bench, 4096, "4k", READS);
    one_latency(bench, 1024 * 1024, "1m", READS_LARGE);
    exists(bench);
    restart(bench);
    index_bytes(bench);
    idle(bench);
}
