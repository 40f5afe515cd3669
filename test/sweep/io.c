/*
 * io.c - one request of a load, or it and all that follow, meets a fault; then nothing fails any
 * more, and the node must be well again.
 *
 * Checked in each run: every operation ends by its deadline and the bound, bytes are right, what
 * was acknowledged as durable is there or its reason is known, nothing stays pinned or reserved,
 * the books balance, the audit is clean. After the fault: the tier is ON again, unless it has met
 * enough errors to be fenced; dirty values get to the device; a put in mode through works. After a
 * kill and a start without faults: the same again.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "test/sweep/sweep.h"

#define HEAL_NS         (60 * FB_SEC_NS)
#define SETTLE_NS       (120 * FB_SEC_NS)
#define ERRORS_TO_FENCE 6
#define DELAY_NS        (9 * FB_SEC_NS)

static const char *const op_names[FB_IO_OP_COUNT] = {
    [FB_IO_READ] = "read", [FB_IO_WRITE] = "write", [FB_IO_FLUSH] = "flush",
    [FB_IO_HASH] = "hash", [FB_IO_GROW] = "grow",
};

/* ---- names ---- */

static const char *fault_name(unsigned fault)
{
    return fault == SWEEP_FAULT_EAGAIN ? "EAGAIN" : fb_script_fault_name((enum fb_fault)fault);
}

void sweep_case_text(const struct sweep_case *at, char out[SWEEP_TEXT_BYTES])
{
    snprintf(out, SWEEP_TEXT_BYTES, "%s:%s:%llu%s:%s", sweep_loads[at->load].name, op_names[at->op],
             (unsigned long long)at->nth, at->forever ? "+" : "", fault_name(at->fault));
}

bool sweep_case_parse(const char *text, struct sweep_case *out)
{
    char load[32], op[16], plus[2] = "", fault[16];
    unsigned long long nth;
    memset(out, 0, sizeof(*out));
    if (sscanf(text, "%31[^:]:%15[^:]:%llu%1[+]:%15s", load, op, &nth, plus, fault) != 5 &&
        sscanf(text, "%31[^:]:%15[^:]:%llu:%15s", load, op, &nth, fault) != 4)
        return false;
    out->nth = nth;
    out->forever = plus[0] == '+';
    out->load = SWEEP_LOADS;
    out->op = FB_IO_OP_COUNT;
    for (unsigned i = 0; i < SWEEP_LOADS; i++)
        if (strcmp(sweep_loads[i].name, load) == 0)
            out->load = i;
    for (unsigned i = 0; i < FB_IO_OP_COUNT; i++)
        if (strcmp(op_names[i], op) == 0)
            out->op = (uint8_t)i;
    for (unsigned i = 1; i < SWEEP_FAULTS; i++)
        if (strcmp(fault_name(i), fault) == 0)
            out->fault = (uint8_t)i;
    return out->load < SWEEP_LOADS && out->op < FB_IO_OP_COUNT && out->fault != 0;
}

bool sweep_io_applies(enum fb_io_op op, unsigned fault)
{
    switch (fault) {
    case SWEEP_FAULT_EAGAIN:
        return op != FB_IO_HASH;
    case FB_FAULT_EIO:
    case FB_FAULT_ENOSPC:
    case FB_FAULT_SHORT:
    case FB_FAULT_DELAYED:
        return fb_script_applies(op, (enum fb_fault)fault);
    default:
        return false; /* what a device hides is the simulator's business */
    }
}

/* ---- one world, used again and again ---- */

struct meddler {
    const struct sweep_case *at;
    uint64_t done[FB_IO_OP_COUNT];
    uint64_t fired;
    bool off;
};

static void meddle(struct tiny *tiny, struct fb_io_req *req)
{
    struct meddler *meddler = tiny->context;
    uint64_t nth = ++meddler->done[req->op];
    const struct sweep_case *at = meddler->at;
    if (at == NULL || meddler->off || at->fault != SWEEP_FAULT_EAGAIN || at->op != req->op)
        return;
    if (nth == at->nth || (at->forever && nth > at->nth)) {
        if (tiny->verbose)
            fprintf(stderr, "EAGAIN at device offset %llu, %llu bytes\n",
                    (unsigned long long)req->device_off, (unsigned long long)req->len);
        req->result = -EAGAIN;
        meddler->fired++;
    }
}

static struct tiny *worlds[SWEEP_LOADS];

static struct tiny *world_of(unsigned load, char why[SWEEP_TEXT_BYTES])
{
    if (worlds[load] != NULL)
        return worlds[load];
    struct tiny *tiny = calloc(1, sizeof(*tiny));
    FB_ASSERT(tiny != NULL);
    tiny->config.devices = 1;
    tiny->config.log.io_errors_to_fence = ERRORS_TO_FENCE;
    tiny->device.latency = fb_sim_latency_default();
    tiny->device.latency.delay_ns = DELAY_NS;
    tiny->meddle = meddle;
    sweep_loads[load].prepare(tiny);
    if (!tiny_open(tiny)) {
        snprintf(why, SWEEP_TEXT_BYTES, "cannot open: %s", tiny->wrong);
        return NULL;
    }
    worlds[load] = tiny;
    return tiny;
}

/* ---- a run ---- */

/* The node as it is must be of use now that nothing fails. */
static void be_well(struct tiny *tiny, const struct sweep_case *at, struct sweep_counts *counts)
{
    enum fb_tier_state tier = fb_shard_tier(tiny->shard);
    counts->tier_full += tier == FB_TIER_FULL;
    counts->tier_fenced += tier == FB_TIER_FENCED;
    tiny_run(tiny, HEAL_NS);
    tier = fb_shard_tier(tiny->shard);
    struct fb_log_stats log;
    fb_shard_log_stats(tiny->shard, &log);
    uint64_t errors = log.read_errors + log.write_errors + log.flush_errors;
    if (tier == FB_TIER_FENCED && errors < ERRORS_TO_FENCE)
        tiny_wrong(tiny, "fenced after %llu errors", (unsigned long long)errors);
    if (tier == FB_TIER_FENCED && !at->forever)
        tiny_wrong(tiny,
                   "one fault has fenced the device: %llu read, %llu write, %llu flush errors",
                   (unsigned long long)log.read_errors, (unsigned long long)log.write_errors,
                   (unsigned long long)log.flush_errors);
    if (tier != FB_TIER_FENCED && tier != FB_TIER_ON)
        tiny_wrong(tiny, "the tier does not heal: state %d", (int)tier);
    if (tier != FB_TIER_ON)
        return;
    if (!tiny_settle(tiny, SETTLE_NS))
        tiny_wrong(tiny, "what is dirty does not get to the device");
    tiny_learn(tiny);
    int result = tiny_end(tiny, tiny_put(tiny, 46, 5000, FB_PUT_UPSERT, FB_PERSIST_THROUGH));
    if (result != FB_OK && result != FB_SHUTTING_DOWN)
        tiny_wrong(tiny, "a put in mode through is %s when all is well again",
                   fb_result_name(result));
}

/* Starts after a kill, without faults: what is on the device must be usable. */
static void start_again(struct tiny *tiny, struct sweep_counts *counts)
{
    if (tiny->wrong[0] != '\0')
        return;
    (void)counts;
    tiny_stop(tiny);
    fb_sim_kill(tiny->sim, 99);
    if (!tiny_start(tiny)) {
        tiny_wrong(tiny, "no start after the fault: %s", fb_shard_start_error(tiny->shard));
        return;
    }
    tiny_read_all(tiny);
    tiny_end(tiny, tiny_put(tiny, 47, 70000, FB_PUT_UPSERT, FB_PERSIST_THROUGH));
    tiny_leave(tiny);
}

static void set_faults(struct tiny *tiny, const struct sweep_case *at, struct fb_script *script)
{
    *script = (struct fb_script){0};
    if (at != NULL && at->fault != SWEEP_FAULT_EAGAIN) {
        script->rule_count = 1;
        script->rules[0] = (struct fb_script_rule){.op = at->op,
                                                   .fault = at->fault,
                                                   .forever = at->forever,
                                                   .nth = at->nth};
    }
    fb_sim_set_script(tiny->sim, script);
    /* A read that fails, or an answer that is late, may cost a hit; never silently. */
    tiny->excused = at != NULL && (at->op == FB_IO_READ || at->fault == FB_FAULT_DELAYED);
    tiny->blind = at != NULL && at->op == FB_IO_READ && at->forever;
}

static uint64_t fired(const struct tiny *tiny, const struct meddler *meddler)
{
    uint64_t sum = meddler->fired;
    const struct fb_sim_counts *counts = fb_sim_get_counts(tiny->sim);
    for (unsigned op = 0; op < FB_IO_OP_COUNT; op++)
        for (unsigned fault = 0; fault < FB_FAULT_COUNT; fault++)
            sum += counts->fired[op][fault];
    return sum;
}

bool sweep_io_measure(unsigned load, uint64_t requests[FB_IO_OP_COUNT], char why[SWEEP_TEXT_BYTES])
{
    struct tiny *tiny = world_of(load, why);
    if (tiny == NULL)
        return false;
    struct meddler meddler = {0};
    struct fb_script script;
    struct sweep_counts counts = {0};
    struct sweep_case none = {.load = load};
    tiny_reset(tiny, 1);
    tiny->context = &meddler;
    set_faults(tiny, NULL, &script);
    sweep_loads[load].run(tiny);
    memcpy(requests, meddler.done, sizeof(meddler.done));
    if (tiny->wrong[0] == '\0') {
        be_well(tiny, &none, &counts);
        tiny_read_all(tiny);
        tiny_leave(tiny);
    }
    start_again(tiny, &counts);
    snprintf(why, SWEEP_TEXT_BYTES, "without any fault: %s", tiny->wrong);
    return tiny->wrong[0] == '\0';
}

bool sweep_io_case(const struct sweep_case *at, bool verbose, struct sweep_counts *counts,
                   char why[SWEEP_TEXT_BYTES])
{
    struct tiny *tiny = world_of(at->load, why);
    if (tiny == NULL)
        return false;
    struct meddler meddler = {.at = at};
    struct fb_script script, nothing = {0};
    tiny_reset(tiny, 1);
    tiny->verbose = verbose;
    tiny->context = &meddler;
    set_faults(tiny, at, &script);
    sweep_loads[at->load].run(tiny);
    if (tiny->wrong[0] == '\0')
        tiny_end_all(tiny);
    meddler.off = true;
    fb_sim_set_script(tiny->sim, &nothing);
    counts->runs++;
    counts->fired += fired(tiny, &meddler);
    if (tiny->wrong[0] == '\0' && tiny->is_up && !tiny->serves &&
        fb_shard_ready(tiny->shard) >= 0 && !tiny_await(tiny))
        tiny_wrong(tiny, "a start that was under way does not end now that nothing fails");
    if (tiny->wrong[0] == '\0' && tiny->serves) {
        be_well(tiny, at, counts);
        tiny_read_all(tiny);
        tiny_leave(tiny);
    } else if (tiny->wrong[0] == '\0') {
        counts->starts_failed++;
    }
    start_again(tiny, counts);
    counts->hits += tiny->hits;
    counts->misses += tiny->misses;
    for (unsigned op = 0; op < FB_IO_OP_COUNT; op++)
        counts->requests += meddler.done[op];
    snprintf(why, SWEEP_TEXT_BYTES, "%s", tiny->wrong);
    return tiny->wrong[0] == '\0';
}
