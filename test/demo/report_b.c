/*
 * Report B: many clients go in lockstep over overlapping prefixes, so the same block is put by many
 * of them at once, while memory and disk are both too small for all of it. No key may fail because
 * of another, and what a lookup held must be readable.
 *
 * A client's chain of one step has four levels: blocks that all clients share over some steps,
 * blocks that all share in this step, blocks that four share, and blocks of its own. Now and then
 * the clients return to an earlier step, parts of which have gone meanwhile.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/bug.h"
#include "forebay/forebay.h"
#include "test/demo/demo.h"
#include "test/lib/value.h"

#define CLIENTS        32
#define STEPS          50
#define DOCUMENT       8 /* blocks that all share for DOCUMENT_STEPS steps */
#define SYSTEM         8 /* blocks that all share in one step */
#define TEAM           8 /* blocks that TEAM_CLIENTS share */
#define OWN            6
#define CHAIN          (DOCUMENT + SYSTEM + TEAM + OWN)
#define DOCUMENT_STEPS 4
#define TEAM_CLIENTS   4
#define RETURN_EVERY   5 /* every so many steps an old one comes again */
#define RETURN_BY      11
#define LATE_EVERY     8 /* of so many clients one commits late */
#define LATE_MS        25
#define OBJECT_BYTES   65536
#define KEY_BYTES      48
#define POOL_BYTES     (UINT64_C(128) << 20)
#define CAP_BYTES      (UINT64_C(320) << 20)
#define INDEX_ENTRIES  16384
#define HOLD_MS        60000
#define DUPLICATES_MIN 1000

static const char name[] = "report B";

struct one {
    unsigned number;
    pthread_barrier_t *meet;
    struct fb_client *client;
    char keys[CHAIN][KEY_BYTES];
    struct fb_exists_item exists[CHAIN];
    struct fb_get_item gets[CHAIN];
    struct fb_put_item puts[CHAIN];
    struct fb_buf bufs[CHAIN];
    unsigned char *bytes;
    uint64_t stored, duplicates, failed_keys, failed_reads, not_held, reads, failed_calls, wrong;
    char first_failure[200];
};

static void failure(struct one *c, const char *what, const void *key, int result, int reason)
{
    if (c->first_failure[0] == '\0')
        snprintf(c->first_failure, sizeof(c->first_failure), "client %u: %s of %s: %s (%s)",
                 c->number, what, (const char *)key, fb_result_name(result),
                 fb_reason_name(reason));
}

/* ---- the chain ---- */

static void name_block(unsigned client, unsigned step, unsigned block, char key[KEY_BYTES])
{
    if (block < DOCUMENT)
        snprintf(key, KEY_BYTES, "document=%u block=%u", step / DOCUMENT_STEPS, block);
    else if (block < DOCUMENT + SYSTEM)
        snprintf(key, KEY_BYTES, "step=%u block=%u", step, block);
    else if (block < DOCUMENT + SYSTEM + TEAM)
        snprintf(key, KEY_BYTES, "step=%u team=%u block=%u", step, client / TEAM_CLIENTS, block);
    else
        snprintf(key, KEY_BYTES, "step=%u client=%u block=%u", step, client, block);
}

/* Which prompts are asked in this step: now and then those of an earlier one. */
static unsigned asked_step(unsigned step)
{
    return step % RETURN_EVERY == RETURN_EVERY - 1 && step >= RETURN_BY ? step - RETURN_BY : step;
}

static struct test_value value_of(const char *key)
{
    return test_value_of(DEMO_SEED, key, strlen(key), 1);
}

/* ---- one step of one client ---- */

static unsigned look_up(struct one *c, unsigned step)
{
    const struct fb_hold_request hold = {.ms = HOLD_MS, .loads = 1};
    for (unsigned i = 0; i < CHAIN; i++) {
        name_block(c->number, asked_step(step), i, c->keys[i]);
        c->exists[i] = (struct fb_exists_item){.key = c->keys[i], .key_bytes = strlen(c->keys[i])};
    }
    c->failed_calls += fb_exists_batch(c->client, c->exists, CHAIN, &hold, DEMO_CALL_MS) != 0;
    unsigned held = 0;
    for (unsigned i = 0; i < CHAIN; i++) {
        const struct fb_exists_item *e = &c->exists[i];
        held += e->result == FB_OK;
        c->not_held += e->result == FB_NOT_HELD;
        c->failed_calls += e->result != FB_OK && e->result != FB_NOT_HELD && e->result != FB_MISS;
        if (e->result != FB_OK && e->result != FB_MISS)
            failure(c, "lookup", c->keys[i], e->result, 0);
    }
    return held;
}

/* Reads every key that the lookup held, within its hold, and checks the bytes. */
static void read_held(struct one *c)
{
    unsigned n = 0;
    for (unsigned i = 0; i < CHAIN; i++) {
        if (c->exists[i].result != FB_OK)
            continue;
        c->bufs[n] = (struct fb_buf){c->bytes + (size_t)n * OBJECT_BYTES, OBJECT_BYTES};
        c->gets[n] = (struct fb_get_item){.key = c->keys[i],
                                          .key_bytes = strlen(c->keys[i]),
                                          .bufs = &c->bufs[n],
                                          .buf_count = 1,
                                          .flags = FB_GET_USES_HOLD};
        n++;
    }
    if (n == 0)
        return;
    c->failed_calls += fb_get_batch(c->client, c->gets, n, DEMO_CALL_MS) != 0;
    for (unsigned i = 0; i < n; i++) {
        const struct fb_get_item *g = &c->gets[i];
        bool right = g->result == FB_OK && g->bytes == OBJECT_BYTES &&
                     test_value_check(value_of(g->key), 0, g->bufs->ptr, OBJECT_BYTES);
        c->reads += right;
        c->failed_reads += g->result != FB_OK;
        c->wrong += g->result == FB_OK && !right;
        if (!right)
            failure(c, "read in its hold", g->key, g->result, g->reason);
    }
}

static void put_missing(struct one *c)
{
    unsigned n = 0;
    for (unsigned i = 0; i < CHAIN; i++) {
        if (c->exists[i].result == FB_OK || c->exists[i].result == FB_NOT_HELD)
            continue;
        unsigned char *bytes = c->bytes + (size_t)n * OBJECT_BYTES;
        test_value_fill(value_of(c->keys[i]), 0, bytes, OBJECT_BYTES);
        c->bufs[n] = (struct fb_buf){bytes, OBJECT_BYTES};
        c->puts[n] = (struct fb_put_item){.key = c->keys[i],
                                          .key_bytes = strlen(c->keys[i]),
                                          .bufs = &c->bufs[n],
                                          .buf_count = 1,
                                          .depth = (uint16_t)i};
        n++;
    }
    /* Values are ready everywhere before the first is put, so that the puts meet. */
    pthread_barrier_wait(c->meet);
    if (n == 0)
        return;
    c->failed_calls += fb_put_batch(c->client, c->puts, n, DEMO_CALL_MS) != 0;
    for (unsigned i = 0; i < n; i++) {
        const struct fb_put_item *p = &c->puts[i];
        c->stored += p->result == FB_OK;
        c->duplicates += p->result == FB_EXISTS;
        c->failed_keys += p->result < 0;
        if (p->result < 0)
            failure(c, "put", p->key, p->result, p->reason);
    }
}

static void *client_run(void *argument)
{
    struct one *c = argument;
    for (unsigned step = 0; step < STEPS; step++) {
        pthread_barrier_wait(c->meet);
        look_up(c, step);
        pthread_barrier_wait(c->meet);
        read_held(c);
        put_missing(c);
        progress_add(1);
    }
    return NULL;
}

/* ---- the run ---- */

static bool open_client(struct one *c, const struct demo_run *run)
{
    char why[FB_WHY_BYTES];
    struct fb_client_options options;
    fb_client_options_init(&options);
    options.address = run->server.address;
    options.ns.model = "demo-shared-prefixes";
    options.name = "fb-demo";
    options.commit_delay_ms = c->number % LATE_EVERY == 0 ? LATE_MS : 0;
    c->bytes = malloc((size_t)CHAIN * OBJECT_BYTES);
    if (c->bytes != NULL && fb_client_open(&options, &c->client, why, sizeof(why)) == 0)
        return true;
    say("%s: FAILED: client %u: %s", name, c->number, c->bytes ? why : "no memory");
    return false;
}

static void add_up(struct one *sum, const struct one *c)
{
    sum->stored += c->stored;
    sum->duplicates += c->duplicates;
    sum->failed_keys += c->failed_keys;
    sum->failed_reads += c->failed_reads;
    sum->not_held += c->not_held;
    sum->reads += c->reads;
    sum->failed_calls += c->failed_calls;
    sum->wrong += c->wrong;
    if (c->first_failure[0] != '\0' && sum->first_failure[0] == '\0') {
        memcpy(sum->first_failure, c->first_failure, sizeof(sum->first_failure));
        say("%s: FAILED: first failure of %s", name, c->first_failure);
    }
}

/* Both tiers must have evicted, and enough puts must have met an unfinished one. */
static bool judge_server(struct demo_run *run, const struct one *sum)
{
    uint64_t waited = 0, reclaimed = 0, from_ssd = 0;
    bool good = demo_metric(run, METRIC_WAITED_KEY, &waited) &&
                demo_metric(run, METRIC_RECLAIMED, &reclaimed) &&
                demo_metric(run, METRIC_HITS_SSD, &from_ssd);
    if (!good)
        return false;
    say("%s: %" PRIu64 " puts of %u bytes stored (pool and SSD hold %" PRIu64 "), %" PRIu64
        " met an unfinished put of their key, %" PRIu64 " reads in a hold, %" PRIu64
        " from SSD, %" PRIu64 " keys given up on SSD",
        name, sum->stored, OBJECT_BYTES, (POOL_BYTES + CAP_BYTES) / OBJECT_BYTES, waited,
        sum->reads, from_ssd, reclaimed);
    if (waited < DUPLICATES_MIN || reclaimed == 0 || from_ssd == 0 ||
        sum->stored * OBJECT_BYTES <= POOL_BYTES + CAP_BYTES) {
        say("%s: FAILED: the load did not do what it is for", name);
        good = false;
    }
    return good;
}

static bool judge(const struct one *sum, char *line)
{
    snprintf(line, DEMO_LINE_BYTES,
             "%s: %" PRIu64 " failed keys, %" PRIu64
             " reads failed after a positive lookup, %" PRIu64 " duplicates, %" PRIu64 " not held",
             name, sum->failed_keys, sum->failed_reads + sum->wrong, sum->duplicates,
             sum->not_held);
    bool good = sum->failed_keys == 0 && sum->failed_reads == 0 && sum->wrong == 0 &&
                sum->not_held == 0 && sum->failed_calls == 0;
    if (sum->failed_calls > 0 || sum->wrong > 0)
        say("%s: FAILED: %" PRIu64 " failed calls, %" PRIu64 " wrong values", name,
            sum->failed_calls, sum->wrong);
    return good;
}

static bool load(struct demo_run *run, struct one *clients, struct one *sum)
{
    pthread_t threads[CLIENTS];
    pthread_barrier_t meet;
    bool good = pthread_barrier_init(&meet, NULL, CLIENTS) == 0;
    for (unsigned i = 0; i < CLIENTS; i++) {
        clients[i].number = i;
        clients[i].meet = &meet;
        good = good && open_client(&clients[i], run);
    }
    if (good) {
        progress_begin("report B: 32 clients in lockstep", (uint64_t)STEPS * CLIENTS);
        for (unsigned i = 0; i < CLIENTS; i++)
            if (pthread_create(&threads[i], NULL, client_run, &clients[i]) != 0)
                abort();
        for (unsigned i = 0; i < CLIENTS; i++)
            pthread_join(threads[i], NULL);
        progress_end();
    }
    for (unsigned i = 0; i < CLIENTS; i++) {
        add_up(sum, &clients[i]);
        fb_client_close(clients[i].client);
        free(clients[i].bytes);
    }
    pthread_barrier_destroy(&meet);
    return good;
}

int report_b(const struct demo_options *options, char line[DEMO_LINE_BYTES])
{
    struct demo_run run = {.name = name};
    run.options.pool_bytes = POOL_BYTES;
    run.options.ssd_cap_bytes = CAP_BYTES;
    run.options.index_entries = INDEX_ENTRIES;
    struct one *clients = calloc(CLIENTS, sizeof(*clients));
    struct one *sum = calloc(1, sizeof(*sum));
    if (clients == NULL || sum == NULL)
        abort();
    snprintf(line, DEMO_LINE_BYTES, "%s: did not run", name);
    bool good = false;
    if (demo_run_make(&run) == 0 && demo_run_start(&run, options) == 0 &&
        load(&run, clients, sum)) {
        good = judge(sum, line);
        good = judge_server(&run, sum) && good;
    }
    good = demo_run_end(&run, options) == 0 && good;
    free(clients);
    free(sum);
    return good ? 0 : 1;
}
