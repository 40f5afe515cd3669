/*
 * load.c - a server with a client, and batches of values whose memory is cold: each run goes over
 * more memory than any cache has.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "test/bench/bench.h"

#define POOL_STEP_MS 20
#define POOL_STEPS   1500

void bench_die(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fprintf(stderr, "fb-bench: ");
    vfprintf(stderr, format, list);
    fprintf(stderr, "\n");
    va_end(list);
    exit(1);
}

size_t bench_key(char *out, uint32_t number, uint32_t round)
{
    return (size_t)snprintf(out, BENCH_KEY_MAX, "bench/%u/block-%08u", round, number);
}

struct fb_client *bench_client(const struct bench_load *load, bool tcp)
{
    struct fb_client_options options;
    fb_client_options_init(&options);
    options.address = load->server.address;
    options.ns.model = "bench";
    options.use_shm = tcp ? FB_SHM_OFF : FB_SHM_ON;
    char why[BENCH_TEXT_MAX], address[BENCH_TEXT_MAX];
    if (tcp) {
        uint64_t port = 0;
        char line[BENCH_TEXT_MAX];
        FILE *log = fopen(load->server.log_path, "r");
        while (log != NULL && fgets(line, sizeof(line), log) != NULL) {
            const char *at = strstr(line, "tcp=127.0.0.1:");
            if (at != NULL)
                port = strtoull(at + strlen("tcp=127.0.0.1:"), NULL, 10);
        }
        if (log != NULL)
            fclose(log);
        if (port == 0)
            bench_die("the server did not say its TCP port");
        snprintf(address, sizeof(address), "tcp:127.0.0.1:%llu", (unsigned long long)port);
        options.address = address;
    }
    struct fb_client *client;
    if (fb_client_open(&options, &client, why, sizeof(why)) != 0)
        bench_die("no client: %s", why);
    return client;
}

/* Values go only where the pool is backed already; until all of it is, the first would be evicted
 * for the next. */
static void await_pool(const struct test_server *server, uint64_t pool_bytes)
{
    uint64_t faulted = 0;
    for (unsigned i = 0; i < POOL_STEPS; i++) {
        if (test_server_metric(server, "forebay_pool_faulted_bytes", &faulted) &&
            faulted >= pool_bytes)
            return;
        test_sleep_ms(POOL_STEP_MS);
    }
    bench_die("the pool was not backed in time");
}

/* The command by which the server runs. */
static void print_command(const struct test_server *server)
{
    char path[64], text[4 * BENCH_TEXT_MAX];
    snprintf(path, sizeof(path), "/proc/%d/cmdline", server->pid);
    FILE *file = fopen(path, "r");
    size_t n = file != NULL ? fread(text, 1, sizeof(text) - 1, file) : 0;
    if (file != NULL)
        fclose(file);
    for (size_t i = 0; i < n; i++)
        text[i] = text[i] == '\0' ? ' ' : text[i];
    text[n] = '\0';
    printf("    $ %s\n", text);
}

void bench_open(struct bench_load *load, const struct bench *bench, const struct bench_setup *setup)
{
    memset(load, 0, sizeof(*load));
    struct test_server_options options = {.directory = bench->directory,
                                          .pool_bytes = setup->pool_bytes,
                                          .ssd_cap_bytes = setup->ssd_cap_bytes,
                                          .persist = setup->persist,
                                          .index_entries = setup->index_entries,
                                          .admin = true};
    unsigned at = 0;
    if (setup->tcp)
        options.extra[at++] = "--listen=127.0.0.1:0";
    if (setup->ssd_cap_bytes != 0)
        options.extra[at++] = "--format=on";
    if (test_server_start(&load->server, &options) != 0)
        bench_die("no server: %s", load->server.error);
    print_command(&load->server);
    await_pool(&load->server, setup->pool_bytes);
    load->value_bytes = setup->value_bytes;
    load->values = setup->values;
    load->memory = mmap(NULL, setup->values * setup->value_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (load->memory == MAP_FAILED)
        bench_die("no memory for %u values", setup->values);
    /* Else each fork, of a peer or of the profiler, makes every page fault once more. */
    if (madvise(load->memory, setup->values * setup->value_bytes, MADV_DONTFORK) != 0)
        bench_die("no MADV_DONTFORK");
    for (uint64_t i = 0; i < setup->values * setup->value_bytes; i += 64)
        memcpy(load->memory + i, &i, sizeof(i));
    load->client = bench_client(load, setup->tcp);
}

void bench_close(struct bench_load *load)
{
    fb_client_close(load->client);
    if (load->server.pid != 0)
        test_server_stop(&load->server, 30000);
    munmap(load->memory, load->values * load->value_bytes);
    unlink(load->server.ssd_path);
}

double bench_cpu_now(const struct bench_load *load)
{
    struct rusage usage;
    struct test_server_use use;
    getrusage(RUSAGE_SELF, &usage);
    test_server_look(&load->server, &use);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6 +
           (double)use.cpu_ms / 1e3;
}

struct batch {
    char keys[BENCH_BATCH][64];
    struct fb_buf bufs[BENCH_BATCH];
    struct fb_put_item puts[BENCH_BATCH];
    struct fb_get_item gets[BENCH_BATCH];
    struct fb_key_item names[BENCH_BATCH];
};

static uint32_t fill(struct batch *batch, struct bench_load *load, uint32_t first, uint32_t left,
                     uint32_t round, uint32_t flags)
{
    uint32_t count = left < BENCH_BATCH ? left : BENCH_BATCH;
    memset(batch->puts, 0, sizeof(batch->puts));
    memset(batch->gets, 0, sizeof(batch->gets));
    memset(batch->names, 0, sizeof(batch->names));
    for (uint32_t i = 0; i < count; i++) {
        size_t bytes = bench_key(batch->keys[i], first + i, round);
        batch->bufs[i] = (struct fb_buf){load->memory + (uint64_t)((first + i) % load->values) *
                                                            load->value_bytes,
                                         load->value_bytes};
        batch->puts[i].key = batch->gets[i].key = batch->names[i].key = batch->keys[i];
        batch->puts[i].key_bytes = batch->gets[i].key_bytes = batch->names[i].key_bytes = bytes;
        batch->puts[i].bufs = batch->gets[i].bufs = &batch->bufs[i];
        batch->puts[i].buf_count = batch->gets[i].buf_count = 1;
        batch->gets[i].flags = flags;
    }
    return count;
}

enum phase {
    PHASE_PUT,
    PHASE_GET,
    PHASE_WAIT,
    PHASE_DROP,
    PHASE_REMOVE
};

static void check(enum phase phase, const struct batch *batch, uint32_t count, int result)
{
    if (result != 0)
        bench_die("a batch ended with %s", fb_result_name(result));
    for (uint32_t i = 0; i < count; i++) {
        int one = phase == PHASE_PUT   ? batch->puts[i].result
                  : phase == PHASE_GET ? batch->gets[i].result
                                       : batch->names[i].result;
        int reason = phase == PHASE_PUT   ? batch->puts[i].reason
                     : phase == PHASE_GET ? batch->gets[i].reason
                                          : batch->names[i].reason;
        if (one < 0 && !(phase == PHASE_REMOVE && one == FB_MISS))
            bench_die("phase %d, %s: %s, %s", (int)phase, batch->keys[i], fb_result_name(one),
                      fb_reason_name(reason));
    }
}

static struct bench_cost run(enum phase phase, struct bench_load *load, uint32_t first,
                             uint32_t count, uint32_t round, uint32_t flags)
{
    static struct batch batch;
    double cpu = bench_cpu_now(load);
    uint64_t begin = test_now_ns();
    for (uint32_t at = 0, n; at < count; at += n) {
        n = fill(&batch, load, first + at, count - at, round, flags);
        int result =
            phase == PHASE_PUT   ? fb_put_batch(load->client, batch.puts, n, BENCH_TIMEOUT_MS)
            : phase == PHASE_GET ? fb_get_batch(load->client, batch.gets, n, BENCH_TIMEOUT_MS)
            : phase == PHASE_WAIT
                ? fb_wait_persisted(load->client, batch.names, n, BENCH_TIMEOUT_MS)
            : phase == PHASE_DROP ? fb_drop_dram(load->client, batch.names, n, BENCH_TIMEOUT_MS)
                                  : fb_remove_batch(load->client, batch.names, n, BENCH_TIMEOUT_MS);
        check(phase, &batch, n, result);
    }
    return (struct bench_cost){.seconds = (double)(test_now_ns() - begin) / 1e9,
                               .cpu_s = bench_cpu_now(load) - cpu};
}

struct bench_cost bench_put(struct bench_load *load, uint32_t first, uint32_t count, uint32_t round)
{
    return run(PHASE_PUT, load, first, count, round, 0);
}

struct bench_cost bench_get(struct bench_load *load, uint32_t first, uint32_t count, uint32_t round,
                            uint32_t flags)
{
    return run(PHASE_GET, load, first, count, round, flags);
}

void bench_wait_persisted(struct bench_load *load, uint32_t first, uint32_t count, uint32_t round)
{
    run(PHASE_WAIT, load, first, count, round, 0);
}

void bench_drop_dram(struct bench_load *load, uint32_t first, uint32_t count, uint32_t round)
{
    run(PHASE_DROP, load, first, count, round, 0);
}

void bench_remove(struct bench_load *load, uint32_t first, uint32_t count, uint32_t round)
{
    run(PHASE_REMOVE, load, first, count, round, 0);
}

double bench_gb_per_s(const struct bench_load *load, uint32_t count, struct bench_cost cost)
{
    return (double)count * (double)load->value_bytes / BENCH_GB / cost.seconds;
}
