/*
 * disk.c - rows: sustained put beyond DRAM, batch read from SSD, read p99 beside writes.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/bench/bench.h"

#define POOL_BYTES (256ull << 20)
#define CAP_BYTES  (4096ull << 20)
/* Beside writes: the writer's values of one run must not push out what is read. */
#define P99_CAP_BYTES   (12288ull << 20)
#define LOAD_BYTES      (1024ull << 20)
#define SSD_TARGET      0.90
#define P99_TARGET      2.0
#define P99_READS       1500
#define SETTLE_STEP_MS  200
#define SETTLE_STEPS    150
#define FIRST_ROUND     100 /* of the writer's keys */
#define FIO_WRITE_BYTES (1024ull * 1024)

/* Seconds until all is on the device, and what it cost. */
static struct bench_cost put_through(struct bench_load *load, uint32_t round)
{
    uint64_t begin = test_now_ns();
    double cpu = bench_cpu_now(load);
    bench_put(load, 0, load->values, round);
    bench_wait_persisted(load, 0, load->values, round);
    return (struct bench_cost){.seconds = (double)(test_now_ns() - begin) / 1e9,
                               .cpu_s = bench_cpu_now(load) - cpu};
}

static uint64_t counter(const struct bench_load *load, const char *name)
{
    uint64_t value = 0;
    if (!test_server_metric(&load->server, name, &value))
        bench_die("no metric %s", name);
    return value;
}

/* One more round, not counted, that says what limits both rows. */
static void look(struct bench *bench, struct bench_load *load, struct bench_row *put,
                 struct bench_row *get)
{
    struct bench_profile profile;
    uint32_t round = bench->runs;
    bench_profile_begin(&profile, bench, load->server.pid);
    profile.on_device = true;
    uint64_t flushes = counter(load, "forebay_log_flushes_total");
    uint64_t written = counter(load, "forebay_log_written_bytes_total");
    struct bench_cost cost = put_through(load, round);
    flushes = counter(load, "forebay_log_flushes_total") - flushes;
    written = counter(load, "forebay_log_written_bytes_total") - written;
    char text[BENCH_TEXT_MAX - BENCH_KEY_MAX];
    bench_profile_end(&profile, load->server.pid, text, sizeof(text));
    snprintf(put->limit, sizeof(put->limit), "%.0f flushes/s of %.1f MB; %s",
             (double)flushes / cost.seconds, (double)written / 1e6 / (double)flushes, text);
    bench_drop_dram(load, 0, load->values, round);
    bench_profile_begin(&profile, bench, load->server.pid);
    profile.on_device = true;
    bench_get(load, 0, load->values, round, FB_GET_STAYS_COLD);
    bench_profile_end(&profile, load->server.pid, get->limit, sizeof(get->limit));
}

static void one_size(struct bench *bench, uint64_t value_bytes, const char *size)
{
    char put_name[64], get_name[64];
    snprintf(put_name, sizeof(put_name), "ssd_put_%s", size);
    snprintf(get_name, sizeof(get_name), "ssd_get_%s", size);
    if (!bench_wants(bench, put_name) && !bench_wants(bench, get_name))
        return;
    uint32_t values = (uint32_t)(LOAD_BYTES / value_bytes);
    struct bench_setup setup = {.pool_bytes = POOL_BYTES,
                                .ssd_cap_bytes = CAP_BYTES,
                                .value_bytes = value_bytes,
                                .values = values,
                                .index_entries = 1u << 20};
    struct bench_row put = {.name = put_name,
                            .unit = "GB/s",
                            .peer = "fio",
                            .target = SSD_TARGET,
                            .runs = bench->runs};
    struct bench_row get = put;
    get.name = get_name;
    double cpu[2] = {0, 0};
    struct bench_load load;
    bench_open(&load, bench, &setup);
    for (unsigned i = 0; i < bench->runs; i++) {
        put.theirs[i] = peer_fio_gb_per_s(bench, "write", FIO_WRITE_BYTES);
        struct bench_cost cost = put_through(&load, i);
        put.ours[i] = bench_gb_per_s(&load, values, cost);
        cpu[0] += cost.cpu_s;
        bench_drop_dram(&load, 0, values, i);
        get.theirs[i] = peer_fio_gb_per_s(bench, "randread", value_bytes);
        cost = bench_get(&load, 0, values, i, FB_GET_STAYS_COLD);
        get.ours[i] = bench_gb_per_s(&load, values, cost);
        cpu[1] += cost.cpu_s;
        bench_remove(&load, 0, values, i);
    }
    double gb = (double)bench->runs * (double)values * (double)value_bytes / BENCH_GB;
    put.cpu_s_per_gb = cpu[0] / gb;
    get.cpu_s_per_gb = cpu[1] / gb;
    look(bench, &load, &put, &get);
    bench_print(bench, &put);
    bench_print(bench, &get);
    bench_close(&load);
}

struct writer {
    struct bench_load *load;
    struct fb_client *client;
    atomic_bool stop;
    uint32_t round; /* whose keys are its own, */
    uint32_t count; /* and so many of them */
    atomic_ullong bytes;
};

static void *write_on(void *context)
{
    struct writer *writer = context;
    for (uint32_t i = 0; !atomic_load(&writer->stop); i++) {
        char key[64];
        size_t bytes = bench_key(key, i, writer->round);
        int result = fb_put(writer->client, key, bytes, writer->load->memory,
                            writer->load->value_bytes, 0, BENCH_TIMEOUT_MS);
        if (result < 0)
            bench_die("the writer: %s", fb_result_name(result));
        writer->count = i + 1;
        atomic_fetch_add(&writer->bytes, writer->load->value_bytes);
    }
    return NULL;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* p99 in us of single cold reads. */
static double p99_us(struct bench_load *load, uint32_t values, uint32_t seed)
{
    static double times[P99_READS];
    for (uint32_t i = 0; i < P99_READS; i++) {
        char key[64];
        size_t bytes = bench_key(key, (i * 7919u + seed * 131u) % values, 0);
        struct fb_buf buf = {load->memory, load->value_bytes};
        struct fb_get_item item = {.key = key,
                                   .key_bytes = bytes,
                                   .bufs = &buf,
                                   .buf_count = 1,
                                   .flags = FB_GET_STAYS_COLD};
        uint64_t begin = test_now_ns();
        int result = fb_get_batch(load->client, &item, 1, BENCH_TIMEOUT_MS);
        times[i] = (double)(test_now_ns() - begin) / 1e3;
        if (result != 0 || item.result != FB_OK)
            bench_die("a cold read: %s", fb_result_name(item.result));
    }
    qsort(times, P99_READS, sizeof(times[0]), by_value);
    return times[P99_READS * 99 / 100];
}

/* Waits until nothing is left to be written. */
static void settle(const struct bench_load *load)
{
    uint64_t dirty = 1;
    for (unsigned i = 0; i < SETTLE_STEPS && dirty > 0; i++) {
        test_sleep_ms(SETTLE_STEP_MS);
        if (!test_server_metric(&load->server, "forebay_pool_dirty_bytes", &dirty))
            dirty = 1;
    }
    if (dirty > 0)
        bench_die("the node did not come to rest");
}

/* The same while another client puts new values; rate: GB/s put, and written to the device. */
static double p99_beside(struct bench_load *load, uint32_t values, uint32_t run, double rate[2])
{
    struct writer writer = {.load = load,
                            .client = bench_client(load, false),
                            .round = FIRST_ROUND + run};
    struct test_server_use before, after;
    pthread_t thread;
    pthread_create(&thread, NULL, write_on, &writer);
    test_sleep_ms(SETTLE_STEP_MS);
    uint64_t begin = test_now_ns(), put = atomic_load(&writer.bytes);
    test_server_look(&load->server, &before);
    double us = p99_us(load, values, run);
    test_server_look(&load->server, &after);
    double ns = (double)(test_now_ns() - begin);
    rate[0] = (double)(atomic_load(&writer.bytes) - put) / ns;
    rate[1] = (double)(after.write_bytes - before.write_bytes) / ns;
    atomic_store(&writer.stop, true);
    pthread_join(thread, NULL);
    fb_client_close(writer.client);
    bench_remove(load, 0, writer.count, writer.round);
    return us;
}

static void beside_writes(struct bench *bench)
{
    if (!bench_wants(bench, "read_p99_beside_writes"))
        return;
    uint64_t value_bytes = 128 * 1024;
    uint32_t values = (uint32_t)(LOAD_BYTES / value_bytes);
    struct bench_setup setup = {.pool_bytes = POOL_BYTES,
                                .ssd_cap_bytes = P99_CAP_BYTES,
                                .value_bytes = value_bytes,
                                .values = values,
                                .index_entries = 1u << 20};
    struct bench_row row = {.name = "read_p99_beside_writes",
                            .unit = "us",
                            .peer = "idle",
                            .target = P99_TARGET,
                            .less_is_better = true,
                            .runs = bench->runs};
    struct bench_load load;
    bench_open(&load, bench, &setup);
    bench_put(&load, 0, values, 0);
    bench_wait_persisted(&load, 0, values, 0);
    bench_drop_dram(&load, 0, values, 0);
    double rate[2];
    for (unsigned i = 0; i < bench->runs; i++) {
        settle(&load);
        row.theirs[i] = p99_us(&load, values, i);
        row.ours[i] = p99_beside(&load, values, i, rate);
    }
    settle(&load);
    struct bench_profile profile;
    bench_profile_begin(&profile, bench, load.server.pid);
    profile.on_device = true;
    p99_beside(&load, values, bench->runs, rate);
    char text[BENCH_TEXT_MAX / 2];
    bench_profile_end(&profile, load.server.pid, text, sizeof(text));
    snprintf(row.limit, sizeof(row.limit),
             "puts %.2f GB/s, written to the device %.2f GB/s meanwhile; %s", rate[0], rate[1],
             text);
    bench_print(bench, &row);
    bench_close(&load);
}

void bench_disk(struct bench *bench)
{
    one_size(bench, 128 * 1024, "128k");
    one_size(bench, 1310720, "1.31m");
    beside_writes(bench);
}
