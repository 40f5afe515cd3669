/*
 * bench.h - figures beside a peer, measured in alternation in one run.
 *
 * main.c    options, the table of rows, what machine this is
 * print.c   min / median / max, ratio, verdict; JSON and Markdown under build/bench
 * load.c    values, batches, a server with a client
 * peers.c   memcpy over cold memory, a small sender and receiver, fio, Redis
 * memory.c  rows: shared memory and TCP
 * disk.c    rows: SSD
 * small.c   rows: latencies, lookups, restart, index, idle
 * profile.c what limits a row, from what one more repetition shows
 */
#ifndef TEST_BENCH_BENCH_H
#define TEST_BENCH_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "forebay/forebay.h"
#include "test/lib/server.h"

#define BENCH_RUNS_MAX   15
#define BENCH_BATCH      64
#define BENCH_KEY_MAX    48 /* room for bench_key() */
#define BENCH_TEXT_MAX   768
#define BENCH_TIMEOUT_MS 120000
#define BENCH_GB         1e9

/* One row: what was measured, beside what, and what the design asks for. */
struct bench_row {
    const char *name, *unit, *peer; /* peer NULL: an absolute figure */
    double ours[BENCH_RUNS_MAX], theirs[BENCH_RUNS_MAX];
    unsigned runs;
    double target; /* of ours / theirs, or of ours if there is no peer; 0: information */
    bool less_is_better, goal;
    double cpu_s_per_gb;        /* caller and server together; 0: not measured */
    char limit[BENCH_TEXT_MAX]; /* what limits it, from what was observed */
};

/* Options of the run. */
struct bench {
    unsigned runs;
    const char *only; /* rows whose name begins so; NULL: all */
    char directory[TEST_SERVER_PATH_BYTES];
    unsigned failed, below_half;
};

/* print.c */
void bench_machine(void);
void bench_print(struct bench *bench, const struct bench_row *row);
int bench_finish(struct bench *bench);
double bench_median(const double *values, unsigned count);

/* load.c */
struct bench_load {
    struct test_server server;
    struct fb_client *client;
    uint8_t *memory; /* of the caller: as many values as the load has */
    uint64_t value_bytes;
    uint32_t values;
};

/* What a phase cost. */
struct bench_cost {
    double seconds, cpu_s;
};

struct bench_setup {
    uint64_t pool_bytes, ssd_cap_bytes, value_bytes;
    uint32_t values;
    bool tcp;
    const char *persist;
    uint32_t index_entries;
};

/* Starts a server and a client with memory for its values. Exits with a message if that fails. */
void bench_open(struct bench_load *load, const struct bench *bench,
                const struct bench_setup *setup);
void bench_close(struct bench_load *load);
/* Puts, gets (into the caller's memory) values first .. first + count - 1 in batches. */
struct bench_cost bench_put(struct bench_load *load, uint32_t first, uint32_t count,
                            uint32_t round);
struct bench_cost bench_get(struct bench_load *load, uint32_t first, uint32_t count, uint32_t round,
                            uint32_t flags);
void bench_wait_persisted(struct bench_load *load, uint32_t first, uint32_t count, uint32_t round);
void bench_drop_dram(struct bench_load *load, uint32_t first, uint32_t count, uint32_t round);
void bench_remove(struct bench_load *load, uint32_t first, uint32_t count, uint32_t round);
/* A client on the load's address; NULL namespace handle is never returned: exits. */
struct fb_client *bench_client(const struct bench_load *load, bool tcp);
/* Seconds that this process and the server have run. */
double bench_cpu_now(const struct bench_load *load);
/* Key text of a value; returns its length. */
size_t bench_key(char *out, uint32_t number, uint32_t round);
double bench_gb_per_s(const struct bench_load *load, uint32_t count, struct bench_cost cost);
void bench_die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* profile.c */
#define BENCH_THREADS_MAX 64

struct bench_thread {
    int tid;
    uint64_t ran_ns, ready_ns;
};

struct bench_use {
    struct bench_thread thread[BENCH_THREADS_MAX];
    unsigned threads;
    uint64_t process_ns;
};

struct bench_device {
    bool known;
    uint64_t read_sectors, written_sectors, busy_ms, queued_ms;
};

struct bench_profile {
    pid_t caller, node, perf;
    char comm[32], directory[TEST_SERVER_PATH_BYTES];
    char data[TEST_SERVER_PATH_BYTES], errors[TEST_SERVER_PATH_BYTES];
    char why_not[128]; /* empty: there is a profile */
    struct bench_use caller_use, node_use;
    struct bench_device device;
    bool on_device; /* set by who measures a row of the SSD: the device's figures are said */
    uint64_t begun_ns;
};

/*
 * Watches this process and the node from here to bench_profile_end(), which writes what limited
 * them, in one line. node 0: a node that this process starts in between; its id is known at the
 * end. Where perf cannot be used, the line says why, and has the other figures.
 */
void bench_profile_begin(struct bench_profile *profile, const struct bench *bench, pid_t node);
void bench_profile_end(struct bench_profile *profile, pid_t node, char *out, size_t bytes);

/* Seconds that a process has run, in steps of a tick. */
double bench_process_s(pid_t pid);
/* Part of a core that a process took in the next so many milliseconds. */
double bench_node_share(pid_t pid, unsigned ms);

/* peers.c */
double peer_memcpy_gb_per_s(uint64_t piece_bytes, uint64_t total_bytes);
/* A sender and a receiver over loopback TCP, cold memory, XXH3 at both ends. */
double peer_pump_gb_per_s(uint64_t piece_bytes, uint64_t total_bytes);
/* fio in the bench's directory, direct, a fully written file; best of some depths. */
double peer_fio_gb_per_s(const struct bench *bench, const char *rw, uint64_t block_bytes);
struct peer_redis;
struct peer_redis *peer_redis_open(const struct bench *bench);
void peer_redis_close(struct peer_redis *redis);
/* Seconds that this process and Redis have run. */
double peer_redis_cpu_s(const struct peer_redis *redis);
void peer_redis_set(struct peer_redis *redis, const char *key, const void *value, size_t bytes);
/* Microseconds of one GET. */
double peer_redis_get_us(struct peer_redis *redis, const char *key, size_t bytes);
/* Microseconds of one variadic EXISTS of so many keys "k0".. */
double peer_redis_exists_us(struct peer_redis *redis, unsigned keys);

/* rows */
void bench_memory(struct bench *bench);
void bench_disk(struct bench *bench);
void bench_small(struct bench *bench);
bool bench_wants(const struct bench *bench, const char *name);

#endif
