/*
 * memory.c - rows: put and get of values in DRAM, over shared memory and over TCP, cold.
 */
#include <stdio.h>
#include <string.h>

#include "test/bench/bench.h"

#define TOTAL_BYTES (768ull << 20)
#define POOL_BYTES  (1024ull << 20)
#define SHM_TARGET  0.85
#define TCP_TARGET  0.90

/* One more round, not counted, that says what limits both rows. */
static void look(struct bench *bench, struct bench_load *load, struct bench_row *put,
                 struct bench_row *get)
{
    struct bench_profile profile;
    uint32_t round = bench->runs;
    bench_profile_begin(&profile, bench, load->server.pid);
    bench_put(load, 0, load->values, round);
    bench_profile_end(&profile, load->server.pid, put->limit, sizeof(put->limit));
    bench_profile_begin(&profile, bench, load->server.pid);
    bench_get(load, 0, load->values, round, 0);
    bench_profile_end(&profile, load->server.pid, get->limit, sizeof(get->limit));
}

static void one_size(struct bench *bench, uint64_t value_bytes, const char *size, bool tcp)
{
    char put_name[64], get_name[64];
    snprintf(put_name, sizeof(put_name), "%s_put_%s", tcp ? "tcp" : "shm", size);
    snprintf(get_name, sizeof(get_name), "%s_get_%s", tcp ? "tcp" : "shm", size);
    if (!bench_wants(bench, put_name) && !bench_wants(bench, get_name))
        return;
    uint32_t values = (uint32_t)(TOTAL_BYTES / value_bytes);
    struct bench_setup setup = {.pool_bytes = POOL_BYTES,
                                .value_bytes = value_bytes,
                                .values = values,
                                .tcp = tcp,
                                .index_entries = 65536};
    struct bench_load load;
    bench_open(&load, bench, &setup);
    struct bench_row put = {.name = put_name,
                            .unit = "GB/s",
                            .peer = tcp ? "pump" : "memcpy",
                            .target = tcp ? TCP_TARGET : SHM_TARGET,
                            .runs = bench->runs};
    struct bench_row get = put;
    get.name = get_name;
    double cpu[2] = {0, 0};
    for (unsigned i = 0; i < bench->runs; i++) {
        double peer = tcp ? peer_pump_gb_per_s(value_bytes, TOTAL_BYTES)
                          : peer_memcpy_gb_per_s(value_bytes, TOTAL_BYTES);
        struct bench_cost cost = bench_put(&load, 0, values, i);
        put.ours[i] = bench_gb_per_s(&load, values, cost);
        cpu[0] += cost.cpu_s;
        cost = bench_get(&load, 0, values, i, 0);
        get.ours[i] = bench_gb_per_s(&load, values, cost);
        cpu[1] += cost.cpu_s;
        put.theirs[i] = get.theirs[i] = peer;
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

void bench_memory(struct bench *bench)
{
    one_size(bench, 128 * 1024, "128k", false);
    one_size(bench, 1310720, "1.31m", false);
    one_size(bench, 128 * 1024, "128k", true);
    one_size(bench, 1310720, "1.31m", true);
}
