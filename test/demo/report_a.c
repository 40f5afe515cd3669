/*
 * Report A: three long prompts are stored one after the other and then replayed, with more data
 * than DRAM. What a full cache would reuse must be reused, and every byte must be right.
 *
 * The forms: the report's number of objects (small ones), and its size of objects (shorter
 * prompts) with 2.26, 1.07 and 4 times as much data as DRAM, and with kill -9 before the replay.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/demo/demo.h"
#include "test/demo/rank.h"

#define REPORT_PROMPTS      3
#define REPORT_BLOCKS       781 /* full blocks of 64 in 50,000 tokens */
#define REPORT_OBJECT_BYTES 1310720
#define REPORT_OVER         2.26 /* the report's data over its DRAM */
#define SMALL_OBJECT_BYTES  20480
#define LARGE_POOL_BYTES    (UINT64_C(1536) << 20)
#define RESTART_POOL_BYTES  (UINT64_C(768) << 20)
#define POOL_STEP_BYTES     (UINT64_C(2) << 20)
#define POOL_LEAST_BYTES    (UINT64_C(64) << 20)
#define PAGE_BYTES          4096
#define BATCH_KEYS_SMALL    2400
#define BATCH_KEYS_LARGE    240

struct form {
    const char *name;
    uint32_t object_bytes;
    uint64_t pool_bytes; /* 0: from the data and `over` */
    double over;         /* data over pool */
    bool restart;
};

static const struct form forms[] = {
    {"report A, its count of objects", SMALL_OBJECT_BYTES, 0, REPORT_OVER, false},
    {"report A, its size of objects, 1.07x", REPORT_OBJECT_BYTES, LARGE_POOL_BYTES, 1.07, false},
    {"report A, its size of objects, 2.26x", REPORT_OBJECT_BYTES, LARGE_POOL_BYTES, REPORT_OVER,
     false},
    {"report A, its size of objects, 4x", REPORT_OBJECT_BYTES, LARGE_POOL_BYTES, 4, false},
    {"report A, kill -9 before the replay", REPORT_OBJECT_BYTES, RESTART_POOL_BYTES, REPORT_OVER,
     true},
};
#define FORMS (sizeof(forms) / sizeof(forms[0]))

/* What one form came to. */
struct outcome {
    uint64_t tokens, reused_tokens, failed_puts, failed_else, wrong, verified_bytes, from_ssd;
    bool good;
};

struct replay {
    const struct form *form;
    struct demo_run run;
    struct ranks all;
    struct rank rank[RANKS_MAX];
    struct outcome out;
    double put_seconds, read_seconds;
};

/* ---- shape ---- */

static uint64_t pages_of(uint64_t bytes)
{
    return (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

static void make_shape(struct replay *r, uint64_t pool_bytes)
{
    const struct form *f = r->form;
    struct shape *s = &r->all.shape;
    *s = (struct shape){.prompts = REPORT_PROMPTS,
                        .blocks = REPORT_BLOCKS,
                        .ranks = 2,
                        .groups = 12,
                        .full_groups = 2,
                        .window_blocks = 17,
                        .block_tokens = 64,
                        .object_bytes = f->object_bytes,
                        .batch_keys_max = BATCH_KEYS_SMALL};
    if (f->object_bytes == REPORT_OBJECT_BYTES) {
        double blocks =
            f->over * (double)pool_bytes / f->object_bytes / (s->prompts * s->ranks * s->groups);
        s->blocks = (unsigned)(blocks + 0.5);
        s->batch_keys_max = BATCH_KEYS_LARGE;
    }
}

static uint64_t data_bytes(const struct shape *s)
{
    return shape_objects(s) * pages_of(s->object_bytes);
}

/* What the data will take on disk: descriptors and segments that are not full come on top. */
static uint64_t disk_for(uint64_t data)
{
    return data + data / 4 + (UINT64_C(256) << 20);
}

/* The report had far more SSD than data; twice as much leaves room to hold a whole prompt. */
static uint64_t cap_for(uint64_t data)
{
    return (2 * data + (UINT64_C(256) << 20)) / POOL_STEP_BYTES * POOL_STEP_BYTES;
}

/* Chooses pool, cap and shape; makes the pool smaller where the disk is short of space. */
static bool fit(struct replay *r, const char *directory)
{
    uint64_t room = test_directory_free_bytes(directory);
    uint64_t pool = r->form->pool_bytes;
    for (;;) {
        make_shape(r, pool);
        uint64_t data = data_bytes(&r->all.shape);
        /* Prompts are whole blocks: the pool is what the data makes it, near what was wanted. */
        r->run.options.pool_bytes =
            (uint64_t)((double)data / r->form->over) / POOL_STEP_BYTES * POOL_STEP_BYTES;
        r->run.options.ssd_cap_bytes = cap_for(data);
        r->run.options.index_entries = (uint32_t)(shape_objects(&r->all.shape) * 2 + 4096);
        r->run.options.persist = r->form->restart ? "through" : NULL;
        if (disk_for(data) + DEMO_DISK_FREE_BYTES <= room)
            break;
        if (r->form->pool_bytes == 0 || pool / 2 < POOL_LEAST_BYTES) {
            say("%s: FAILED: %" PRIu64 " MiB of disk are free, %" PRIu64
                " MiB are needed; set TEST_DIR to a directory with more",
                r->form->name, room >> 20, (disk_for(data) + DEMO_DISK_FREE_BYTES) >> 20);
            return false;
        }
        pool = pool / 2 / POOL_STEP_BYTES * POOL_STEP_BYTES;
    }
    if (r->form->pool_bytes != 0 && pool != r->form->pool_bytes)
        say("%s: only %" PRIu64 " MiB of disk are free: pool made smaller, %" PRIu64
            " instead of %" PRIu64 " MiB",
            r->form->name, room >> 20, r->run.options.pool_bytes >> 20, r->form->pool_bytes >> 20);
    return true;
}

/* ---- clients ---- */

static bool open_rank(struct replay *r, unsigned number)
{
    char why[FB_WHY_BYTES];
    struct fb_client_options options;
    fb_client_options_init(&options);
    options.address = r->run.server.address;
    options.ns.model = "demo-hybrid";
    options.ns.layout = "64 tokens a block, 2 full + 10 window groups";
    options.ns.parallel = "tp2";
    options.name = "fb-demo";
    if (fb_client_open(&options, &r->rank[number].client, why, sizeof(why)) == 0)
        return true;
    say("%s: FAILED: client: %s", r->form->name, why);
    return false;
}

static bool open_ranks(struct replay *r)
{
    bool good = true;
    for (unsigned i = 0; i < r->all.shape.ranks; i++)
        good = good && open_rank(r, i);
    return good;
}

static void close_ranks(struct replay *r)
{
    for (unsigned i = 0; i < r->all.shape.ranks; i++) {
        fb_client_close(r->rank[i].client);
        r->rank[i].client = NULL;
    }
}

static bool make_ranks(struct replay *r)
{
    const struct shape *s = &r->all.shape;
    bool good = pthread_barrier_init(&r->all.meet, NULL, s->ranks) == 0;
    for (unsigned i = 0; i < s->ranks; i++) {
        good = rank_open(&r->rank[i], &r->all, i) && good;
        r->rank[i].must_persist = r->form->restart;
        r->all.readable[i] = calloc((size_t)s->groups * s->blocks, sizeof(bool));
        good = good && r->all.readable[i] != NULL;
    }
    if (!good)
        say("%s: FAILED: no memory for the clients", r->form->name);
    return good;
}

static void free_ranks(struct replay *r)
{
    for (unsigned i = 0; i < r->all.shape.ranks; i++) {
        rank_close(&r->rank[i]);
        free(r->all.readable[i]);
    }
    pthread_barrier_destroy(&r->all.meet);
}

/* Both ranks do one stage, each in its thread. Returns the seconds it took. */
static double both(struct replay *r, enum rank_stage stage, const char *what, uint64_t total)
{
    double begun = progress_seconds();
    pthread_t threads[RANKS_MAX];
    char text[96];
    snprintf(text, sizeof(text), "%s: %s", r->form->name, what);
    progress_begin(text, total);
    for (unsigned i = 0; i < r->all.shape.ranks; i++) {
        r->rank[i].stage = stage;
        if (pthread_create(&threads[i], NULL, rank_run, &r->rank[i]) != 0)
            abort();
    }
    for (unsigned i = 0; i < r->all.shape.ranks; i++)
        pthread_join(threads[i], NULL);
    progress_end();
    return progress_seconds() - begun;
}

/* ---- judgement ---- */

static void collect(struct replay *r)
{
    struct outcome *out = &r->out;
    out->tokens = shape_tokens(&r->all.shape);
    out->reused_tokens = r->all.reused_tokens;
    for (unsigned i = 0; i < r->all.shape.ranks; i++) {
        const struct rank *rank = &r->rank[i];
        out->failed_puts += rank->failed_puts;
        out->failed_else += rank->failed_reads + rank->failed_calls + rank->not_persisted;
        out->wrong += rank->wrong_objects;
        out->verified_bytes += rank->verified_bytes;
        if (rank->first_failure[0] != '\0')
            say("%s: FAILED: first failure of %s", r->form->name, rank->first_failure);
    }
}

/*
 * The server's count of hits by O_DIRECT reads, against what it must be at least (objects that
 * cannot have been in DRAM) and what the kernel says was read at most.
 */
static bool judge_ssd(struct replay *r, uint64_t hits_before_all)
{
    struct test_server_use use;
    uint64_t hits = 0;
    const struct shape *s = &r->all.shape;
    test_server_look(&r->run.server, &use);
    if (!demo_metric(&r->run, METRIC_HITS_SSD, &hits))
        return false;
    r->out.from_ssd = hits;
    uint64_t in_dram = r->run.options.pool_bytes / pages_of(s->object_bytes);
    uint64_t objects = shape_objects(s), least = objects > in_dram ? objects - in_dram : 0;
    bool good = hits - hits_before_all >= least;
    if (r->form->restart)
        good = good && hits >= objects;
    if (!good)
        say("%s: FAILED: %" PRIu64 " hits from SSD in the last pass, %" PRIu64 " in all; %" PRIu64
            " objects cannot have been in DRAM",
            r->form->name, hits - hits_before_all, hits, r->form->restart ? objects : least);
    if (hits * s->object_bytes > use.read_bytes) {
        say("%s: FAILED: %" PRIu64 " hits from SSD are %" PRIu64
            " bytes, but the kernel counted %" PRIu64 " bytes read",
            r->form->name, hits, hits * s->object_bytes, use.read_bytes);
        good = false;
    }
    return good;
}

static void outcome_line(const struct outcome *out, const char *name, char *line)
{
    snprintf(line, DEMO_LINE_BYTES,
             "%s: reused %" PRIu64 " of %" PRIu64 " tokens (%.1f %%), %" PRIu64
             " failed puts, %" PRIu64 " bytes verified, %" PRIu64 " from SSD",
             name, out->reused_tokens, out->tokens,
             100.0 * (double)out->reused_tokens / (double)out->tokens, out->failed_puts,
             out->verified_bytes, out->from_ssd);
}

static void report_form(struct replay *r)
{
    char line[DEMO_LINE_BYTES];
    struct outcome *out = &r->out;
    uint64_t data = shape_objects(&r->all.shape) * r->all.shape.object_bytes;
    outcome_line(out, r->form->name, line);
    say("%s", line);
    say("%s: %" PRIu64 " objects, %.2f times the pool of %" PRIu64
        " MiB; put %.1f s (%.2f GB/s), replay and read %.1f s (%.2f GB/s)",
        r->form->name, shape_objects(&r->all.shape),
        (double)data / (double)r->run.options.pool_bytes, r->run.options.pool_bytes >> 20,
        r->put_seconds, (double)data / 1e9 / r->put_seconds, r->read_seconds,
        (double)out->verified_bytes / 1e9 / r->read_seconds);
    bool good = out->reused_tokens == out->tokens && out->failed_puts == 0 &&
                out->failed_else == 0 && out->wrong == 0;
    if (!good)
        say("%s: FAILED: %" PRIu64 " tokens lost, %" PRIu64 " failed puts, %" PRIu64
            " other failures, %" PRIu64 " wrong objects",
            r->form->name, out->tokens - out->reused_tokens, out->failed_puts, out->failed_else,
            out->wrong);
    out->good = out->good && good;
}

/* ---- one form ---- */

static bool restart(struct replay *r)
{
    close_ranks(r);
    if (demo_run_restart(&r->run) != 0)
        return false;
    say("%s: killed, and serving again after %u ms", r->form->name, r->run.server.start_ms);
    return open_ranks(r);
}

static bool stages(struct replay *r)
{
    uint64_t objects = shape_objects(&r->all.shape), hits = 0;
    if (!open_ranks(r))
        return false;
    r->put_seconds = both(r, RANK_PUT, "put", objects);
    if (r->form->restart && !restart(r))
        return false;
    const struct shape *s = &r->all.shape;
    uint64_t window = s->window_blocks < s->blocks ? s->window_blocks : s->blocks;
    uint64_t need = s->full_groups * s->blocks + (s->groups - s->full_groups) * window;
    r->read_seconds = both(r, RANK_REPLAY, "replay", need * s->prompts * s->ranks);
    bool good = demo_metric(&r->run, METRIC_HITS_SSD, &hits);
    r->read_seconds += both(r, RANK_READ_ALL, "read everything", objects);
    collect(r);
    return judge_ssd(r, hits) && good;
}

static void run_form(struct replay *r, const struct demo_options *options)
{
    r->run.name = r->form->name;
    if (demo_run_make(&r->run) == 0 && fit(r, r->run.directory) &&
        demo_run_start(&r->run, options) == 0) {
        if (make_ranks(r)) {
            r->out.good = stages(r);
            report_form(r);
        }
        close_ranks(r);
        free_ranks(r);
    }
    r->out.good = demo_run_end(&r->run, options) == 0 && r->out.good;
}

int report_a(const struct demo_options *options, char line[DEMO_LINE_BYTES])
{
    bool good = true;
    snprintf(line, DEMO_LINE_BYTES, "report A: did not run");
    for (size_t i = 0; i < FORMS; i++) {
        if (i > 0 && (options->quick || options->broken != NULL))
            break;
        struct replay *r = calloc(1, sizeof(*r));
        if (r == NULL)
            abort();
        r->form = &forms[i];
        run_form(r, options);
        good = good && r->out.good;
        if (i == 0 && r->out.tokens > 0)
            outcome_line(&r->out, "report A", line);
        free(r);
    }
    return good ? 0 : 1;
}
