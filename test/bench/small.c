/*
 * small.c - rows: latencies and lookups beside Redis, restart with many keys, index, idle.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/shard.h"
#include "test/bench/bench.h"

#define READS           4000
#define READS_LARGE     1000
#define EXISTS_KEYS     10000
#define EXISTS_ROUNDS   20
#define RESTART_KEYS    1000000
#define RESTART_PUT     (64u * 4)
#define INDEX_STEP      (1u << 20)
#define IDLE_MS         5000
#define PROFILE_ROUNDS  5
#define CPU_VALUE_BYTES (1024u * 1024)

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

/* Times of so many gets, in us. */
static void time_gets(struct bench_load *load, double *times, unsigned reads)
{
    char key[BENCH_KEY_MAX];
    for (unsigned i = 0; i < reads; i++) {
        size_t bytes = bench_key(key, i * 37 % load->values, 0);
        uint64_t begin = test_now_ns();
        int result = fb_get(load->client, key, bytes, load->memory, load->value_bytes, NULL,
                            BENCH_TIMEOUT_MS);
        times[i] = (double)(test_now_ns() - begin) / 1e3;
        if (result != FB_OK)
            bench_die("get: %s", fb_result_name(result));
    }
}

static void time_redis(struct peer_redis *redis, const struct bench_load *load, double *times,
                       unsigned reads)
{
    char key[BENCH_KEY_MAX];
    for (unsigned i = 0; i < reads; i++) {
        bench_key(key, i * 37 % load->values, 0);
        times[i] = peer_redis_get_us(redis, key, load->value_bytes);
    }
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
    /* Of caller and store together, where it takes many steps of the clock that counts it. */
    struct bench_row cpu = p50;
    cpu.name = "get_1m_cpu";
    cpu.unit = "CPU s/GB";
    double gb = (double)reads * (double)value_bytes / BENCH_GB;
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
        double cpu_s = peer_redis_cpu_s(redis);
        time_redis(redis, &load, times, reads);
        cpu.theirs[run] = (peer_redis_cpu_s(redis) - cpu_s) / gb;
        struct latencies theirs = percentiles(times, reads);
        cpu_s = bench_cpu_now(&load);
        time_gets(&load, times, reads);
        cpu.ours[run] = (bench_cpu_now(&load) - cpu_s) / gb;
        struct latencies ours = percentiles(times, reads);
        p50.ours[run] = ours.p50;
        p50.theirs[run] = theirs.p50;
        p99.ours[run] = ours.p99;
        p99.theirs[run] = theirs.p99;
    }
    struct bench_profile profile;
    bench_profile_begin(&profile, bench, load.server.pid);
    for (unsigned i = 0; i < PROFILE_ROUNDS; i++)
        time_gets(&load, times, reads);
    bench_profile_end(&profile, load.server.pid, p50.limit, sizeof(p50.limit));
    memcpy(p99.limit, p50.limit, sizeof(p99.limit));
    memcpy(cpu.limit, p50.limit, sizeof(cpu.limit));
    bench_print(bench, &p50);
    bench_print(bench, &p99);
    if (value_bytes >= CPU_VALUE_BYTES)
        bench_print(bench, &cpu);
    free(times);
    peer_redis_close(redis);
    bench_close(&load);
}

/* The least of some lookups of all keys, in us. */
static double exists_us(struct bench_load *load, struct fb_exists_item *items)
{
    double least = 1e18;
    for (unsigned i = 0; i < EXISTS_ROUNDS; i++) {
        uint64_t begin = test_now_ns();
        if (fb_exists_batch(load->client, items, EXISTS_KEYS, NULL, BENCH_TIMEOUT_MS) != 0)
            bench_die("exists failed");
        double us = (double)(test_now_ns() - begin) / 1e3;
        least = us < least ? us : least;
    }
    return least;
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
        double theirs = 1e18;
        for (unsigned i = 0; i < EXISTS_ROUNDS; i++) {
            double us = peer_redis_exists_us(redis, EXISTS_KEYS);
            theirs = us < theirs ? us : theirs;
        }
        double ours = exists_us(&load, items);
        row.ours[run] = EXISTS_KEYS / ours;
        row.theirs[run] = EXISTS_KEYS / theirs;
    }
    struct bench_profile profile;
    bench_profile_begin(&profile, bench, load.server.pid);
    for (unsigned i = 0; i < PROFILE_ROUNDS * 2; i++)
        exists_us(&load, items);
    bench_profile_end(&profile, load.server.pid, row.limit, sizeof(row.limit));
    bench_print(bench, &row);
    peer_redis_close(redis);
    bench_close(&load);
}

/* Starts the load's server again on its file; returns how long until it knew all. */
static double start_again(struct bench *bench, struct bench_load *load,
                          const struct bench_setup *setup)
{
    struct test_server_options options = {.directory = bench->directory,
                                          .pool_bytes = setup->pool_bytes,
                                          .ssd_cap_bytes = setup->ssd_cap_bytes,
                                          .index_entries = setup->index_entries,
                                          .admin = true};
    uint64_t begin = test_now_ns();
    if (test_server_start(&load->server, &options) != 0)
        bench_die("restart: %s", load->server.error);
    return (double)(test_now_ns() - begin) / 1e9;
}

/* Puts the keys, all durable, and kills the server. */
static void fill_and_kill(struct bench_load *load)
{
    uint64_t begin = test_now_ns();
    bench_put(load, 0, RESTART_KEYS, 0);
    bench_wait_persisted(load, 0, RESTART_KEYS, 0);
    printf("    put %d keys of 4 KiB in %.1f s\n", RESTART_KEYS,
           (double)(test_now_ns() - begin) / 1e9);
    fb_client_close(load->client);
    test_server_kill(&load->server);
}

/* One more restart, not counted, that says what limits it. */
static void look_at_restart(struct bench *bench, struct bench_load *load,
                            const struct bench_setup *setup, struct bench_row *known,
                            struct bench_row *share)
{
    struct bench_profile profile;
    test_server_kill(&load->server);
    bench_profile_begin(&profile, bench, 0);
    profile.on_device = true;
    start_again(bench, load, setup);
    bench_profile_end(&profile, load->server.pid, known->limit, sizeof(known->limit));
    uint64_t records = 0, bytes = 0;
    test_server_metric(&load->server, "forebay_log_recovered_records", &records);
    test_server_metric(&load->server, "forebay_log_recovery_read_bytes", &bytes);
    snprintf(share->limit, sizeof(share->limit),
             "the log read %.1f MB for %llu records, %.1f bytes each; the process %.2f %%",
             (double)bytes / 1e6, (unsigned long long)records, (double)bytes / (double)records,
             share->ours[0]);
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
                              .runs = bench->runs};
    struct bench_row share = {.name = "restart_read_share",
                              .unit = "% of data",
                              .target = 2,
                              .less_is_better = true,
                              .runs = bench->runs};
    struct bench_load load;
    bench_open(&load, bench, &setup);
    fill_and_kill(&load);
    for (unsigned run = 0; run < bench->runs; run++) {
        known.ours[run] = start_again(bench, &load, &setup);
        struct test_server_use use;
        test_server_look(&load.server, &use);
        share.ours[run] = (double)use.read_bytes / ((double)RESTART_KEYS * 4096) * 100;
        load.client = bench_client(&load, false);
        bench_get(&load, run * BENCH_BATCH, BENCH_BATCH, 0, FB_GET_STAYS_COLD);
        fb_client_close(load.client);
        test_server_kill(&load.server);
    }
    start_again(bench, &load, &setup);
    look_at_restart(bench, &load, &setup, &known, &share);
    load.client = bench_client(&load, false);
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
             "no profile: not a run, but what the shard's memory grows by with one entry more");
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
                            .runs = bench->runs};
    struct bench_load load;
    bench_open(&load, bench, &setup);
    bench_put(&load, 0, 64, 0);
    test_sleep_ms(1500);
    for (unsigned run = 0; run < bench->runs; run++)
        row.ours[run] = bench_node_share(load.server.pid, IDLE_MS) * 100;
    struct bench_profile profile;
    bench_profile_begin(&profile, bench, load.server.pid);
    test_sleep_ms(IDLE_MS);
    bench_profile_end(&profile, load.server.pid, row.limit, sizeof(row.limit));
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
