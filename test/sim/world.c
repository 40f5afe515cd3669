/*
 * world.c - the node's life in the simulator, and the loop over events.
 *
 * One heap of client actions, the sim backend's events and the shard's own timers are merged by
 * time. After each of them the shard's outboxes are drained until nothing moves any more.
 */
#include "test/sim/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/bits.h"
#include "base/region.h"

#define ROUNDS_MAX      100000 /* of one pump: more is a live-lock */
#define STEPS_MAX       400000 /* of one seed */
#define REAP_BATCH      32
#define AUDIT_EVERY     512
#define META_MAX        FB_MIB(64)
#define MEMORY_MAX      FB_MIB(64)
#define WALL_BASE_MS    UINT64_C(1700000000000)
#define START_LIMIT_NS  (120 * FB_SEC_NS)
#define CHANCE_EVERY_NS (2 * FB_MS_NS)
#define TOP_UP          32 /* operations more, if there were too few events */

bool sim_world_chance(struct sim_world *world, uint32_t ppm)
{
    return fb_prng_chance(&world->prng, ppm);
}

uint64_t sim_world_clock(const struct sim_world *world)
{
    return world->now_ns + world->jump_ns;
}

static uint64_t wall_ms(const struct sim_world *world)
{
    return WALL_BASE_MS + sim_world_clock(world) / FB_MS_NS;
}

struct sim_world *sim_world_new(struct sim_report *report)
{
    struct sim_world *world = calloc(1, sizeof(*world));
    FB_ASSERT(world != NULL);
    world->report = report;
    world->wire = sim_wire_new();
    world->versions = calloc(SIM_VERSIONS_MAX, sizeof(*world->versions));
    world->memory_bytes = MEMORY_MAX;
    world->meta_bytes = META_MAX;
    world->memory = aligned_alloc(FB_PAGE_BYTES, world->memory_bytes);
    world->meta = aligned_alloc(FB_PAGE_BYTES, world->meta_bytes);
    FB_ASSERT(world->versions != NULL && world->memory != NULL && world->meta != NULL);
    return world;
}

void sim_world_free(struct sim_world *world)
{
    sim_wire_free(world->wire);
    free(world->versions);
    free(world->memory);
    free(world->meta);
    free(world);
}

void sim_world_later(struct sim_world *world, uint64_t delay_ns, unsigned client, unsigned slot,
                     enum sim_act act, uint32_t tick)
{
    uint64_t item =
        (uint64_t)tick << 32 | (uint64_t)client << 16 | (uint64_t)slot << 8 | (uint64_t)act;
    bool pushed = fb_heap_push(&world->heap, world->now_ns + delay_ns, item);
    FB_ASSERT(pushed);
}

void sim_world_spend(struct sim_world *world, uint64_t operations)
{
    world->operations_left = (uint32_t)fb_sub_floored(world->operations_left, operations);
    world->operations += operations;
    if (world->operations_left == 0 && world->events < SIM_EVENTS_MIN && !world->scripted &&
        world->operations < SIM_OPERATIONS_MAX)
        world->operations_left = TOP_UP;
}

static void start_node(struct sim_world *world)
{
    struct fb_region region;
    fb_region_init(&region, world->memory, world->memory_bytes);
    world->shard = fb_shard_init(&world->knobs.shard, &region, world->meta);
    fb_shard_pool_faulted(world->shard, world->knobs.shard.pool_bytes);
    fb_shard_start(world->shard, sim_world_clock(world), wall_ms(world), false);
    world->tier_before = fb_shard_tier(world->shard);
    world->up = true;
    world->draining = false;
    if (world->knobs.wire)
        sim_wire_start(world);
    for (unsigned i = 0; i <= world->knobs.clients && !world->knobs.wire; i++)
        sim_client_open(world, &world->clients[i]);
    sim_world_say(world, "node starts");
}

/* The node is gone: what was under way is in doubt, what was in memory is lost. */
static void stop_node(struct sim_world *world)
{
    sim_report_take(world);
    for (unsigned i = 0; i <= world->knobs.clients; i++)
        sim_client_crash(world, &world->clients[i]);
    sim_check_crash(world);
    world->up = false;
    world->shard = NULL;
    world->crashes++;
    if (world->knobs.wire)
        sim_wire_crash(world);
    memset(world->meta, 0xdb, world->meta_bytes < FB_MIB(1) ? world->meta_bytes : FB_MIB(1));
    sim_world_later(world, fb_prng_between(&world->prng, 1, 200) * FB_MS_NS, 0, 0, SIM_ACT_RESTART,
                    0);
}

static void crash_node(struct sim_world *world, bool power)
{
    uint64_t seed = fb_prng_next(&world->prng);
    enum fb_sim_cut cut = (enum fb_sim_cut)fb_prng_below(&world->prng, FB_SIM_CUT_COUNT);
    if (world->cut_due) {
        seed = world->cut_seed;
        cut = world->cut;
        world->cut_due = false;
    }
    sim_world_say(world, "%s", power ? "power cut" : "kill");
    stop_node(world);
    if (power)
        fb_sim_power_cut(world->sim, cut, seed);
    else
        fb_sim_kill(world->sim, seed);
    world->crashed = true;
    if (power)
        world->report->power_cuts++;
    else
        world->report->crashes++;
}

static void damage(struct sim_world *world)
{
    uint64_t blocks = fb_sim_device_bytes(world->sim, 0) / FB_BLOCK_BYTES;
    if (blocks < 16)
        return;
    uint64_t block = fb_prng_below(&world->prng, blocks);
    switch (fb_prng_below(&world->prng, 4)) {
    case 0:
        fb_sim_damage_flip(world->sim, 0,
                           block * FB_BLOCK_BYTES + fb_prng_below(&world->prng, FB_BLOCK_BYTES), 3);
        break;
    case 1:
        fb_sim_damage_zero(world->sim, 0, block, 1);
        break;
    case 2:
        fb_sim_damage_swap(world->sim, 0, block, fb_prng_below(&world->prng, blocks));
        break;
    default:
        fb_sim_damage_old(world->sim, 0, block, 1);
        break;
    }
    world->damaged = true;
    world->report->damages++;
}

/* The world's own mishaps, drawn every few milliseconds. */
static void mishaps(struct sim_world *world)
{
    const struct sim_knobs *knobs = &world->knobs;
    if (world->quiet)
        return;
    sim_world_later(world, CHANCE_EVERY_NS, 0, 0, SIM_ACT_CHANCE, 0);
    if (!world->up)
        return;
    if (sim_world_chance(world, knobs->damage_ppm))
        damage(world);
    if (sim_world_chance(world, knobs->jump_ppm)) {
        world->jump_ns += fb_prng_between(&world->prng, 1, 20) * FB_SEC_NS;
        world->report->jumps++;
        sim_world_say(world, "clock jumps");
    }
    if (knobs->shard.devices != 0 && sim_world_chance(world, knobs->room_ppm)) {
        fb_sim_set_room(world->sim, 0, fb_sim_device_bytes(world->sim, 0));
        world->report->room_episodes++;
        world->failed = true;
        sim_world_later(world, fb_prng_between(&world->prng, 10, 3000) * FB_MS_NS, 0, 0,
                        SIM_ACT_HEAL, 0);
    }
    if (knobs->shard.devices != 0 && sim_world_chance(world, knobs->floor_ppm)) {
        fb_shard_set_floor(world->shard, sim_world_clock(world), true);
        world->report->floor_episodes++;
        world->failed = true;
        sim_world_later(world, fb_prng_between(&world->prng, 10, 3000) * FB_MS_NS, 0, 0,
                        SIM_ACT_HEAL, 0);
    }
    if (!world->draining && sim_world_chance(world, knobs->drain_ppm)) {
        fb_shard_drain(world->shard, sim_world_clock(world));
        world->draining = true;
        world->report->drains++;
        sim_world_say(world, "drain");
    }
    if (sim_world_chance(world, knobs->power_ppm))
        crash_node(world, true);
    else if (sim_world_chance(world, knobs->crash_ppm))
        crash_node(world, false);
}

static void heal(struct sim_world *world)
{
    fb_sim_set_room(world->sim, 0, world->knobs.device.device_bytes[0]);
    if (world->up)
        fb_shard_set_floor(world->shard, sim_world_clock(world), false);
}

static void act(struct sim_world *world, uint64_t item)
{
    enum sim_act what = (enum sim_act)(item & 0xff);
    switch (what) {
    case SIM_ACT_RESTART:
        if (!world->up)
            start_node(world);
        break;
    case SIM_ACT_CHANCE:
        mishaps(world);
        break;
    case SIM_ACT_HEAL:
        heal(world);
        break;
    default:
        if (world->knobs.wire)
            sim_wire_act(world, (unsigned)(item >> 16 & 0xffff), (unsigned)(item >> 8 & 0xff), what,
                         (uint32_t)(item >> 32));
        else if (world->up)
            sim_client_act(world, (unsigned)(item >> 16 & 0xffff), (unsigned)(item >> 8 & 0xff),
                           what, (uint32_t)(item >> 32));
        break;
    }
}

static bool pump_once(struct sim_world *world)
{
    bool moved = false;
    struct fb_io *io = fb_sim_io(world->sim);
    struct fb_io_req *reaped[REAP_BATCH];
    size_t count = fb_io_reap(io, reaped, REAP_BATCH);
    for (size_t i = 0; i < count; i++)
        fb_shard_io_done(world->shard, sim_world_clock(world), reaped[i]);
    world->events += count;
    moved |= count != 0;
    unsigned bits;
    if (world->knobs.wire)
        moved |= sim_wire_pump(world);
    for (struct fb_op *op; (op = fb_shard_take_event(world->shard, &bits)) != NULL; moved = true) {
        FB_ASSERT(!world->knobs.wire); /* they are the server's */
        world->events++;
        sim_answer(world, op, bits);
    }
    for (struct fb_io_req *req;
         (req = fb_shard_take_io(world->shard, sim_world_clock(world))) != NULL; moved = true)
        fb_io_submit(io, req);
    struct fb_notice notice;
    while (fb_shard_take_notice(world->shard, &notice))
        moved = true;
    if (fb_shard_next_ns(world->shard) <= sim_world_clock(world)) {
        fb_shard_tick(world->shard, sim_world_clock(world), wall_ms(world));
        world->events++;
        moved = true;
    }
    return moved;
}

/* Drains the outboxes until nothing moves, or the power is to be cut. */
void sim_world_pump(struct sim_world *world)
{
    if (!world->up)
        return;
    unsigned rounds = 0;
    while (!world->cut_due && pump_once(world)) {
        if (++rounds > ROUNDS_MAX) {
            sim_world_violation(world, "the shard never comes to rest");
            return;
        }
    }
    enum fb_tier_state tier = fb_shard_tier(world->shard);
    world->report->tier[tier]++;
    if (tier != world->tier_before)
        world->report->edges[world->tier_before][tier]++;
    world->tier_before = tier;
    if (fb_shard_ready(world->shard) < 0)
        sim_world_say(world, "start failed: %s", fb_shard_start_error(world->shard));
}

static uint64_t next_ns(struct sim_world *world)
{
    uint64_t next = fb_heap_next_ns(&world->heap);
    uint64_t device = fb_sim_next_ns(world->sim);
    if (device < next)
        next = device;
    uint64_t timer = world->up ? fb_shard_next_ns(world->shard) : UINT64_MAX;
    if (world->knobs.wire)
        timer = fb_min_u64(timer, sim_wire_next_ns(world));
    if (timer != UINT64_MAX)
        next = fb_min_u64(next, fb_sub_floored(timer, world->jump_ns));
    return next < world->now_ns ? world->now_ns : next;
}

/* At each I/O boundary of a scripted load. */
static void boundary(void *context, const struct fb_sim *sim, uint64_t number)
{
    struct sim_world *world = context;
    (void)sim;
    if (number == world->cut_boundary)
        world->cut_due = true;
}

/* Goes on to the next event. False if there is none. */
static bool step(struct sim_world *world)
{
    uint64_t next = next_ns(world);
    if (next == UINT64_MAX)
        return false;
    world->now_ns = next;
    fb_sim_advance(world->sim, next);
    sim_world_pump(world);
    if (world->knobs.wire) {
        sim_wire_tick(world);
        sim_world_pump(world);
    }
    struct fb_heap_entry entry;
    if (fb_heap_pop_due(&world->heap, next, &entry)) {
        world->events++;
        act(world, entry.item);
        sim_world_pump(world);
    }
    if (world->up && world->cut_due)
        crash_node(world, true);
    if (world->up && world->events % AUDIT_EVERY == 0) {
        fb_shard_audit(world->shard);
        sim_check_accounts(world);
    }
    return true;
}

/* A start that read what a block held long ago knows as little as one whose writes were lost. */
static void note_stale(struct sim_world *world, uint64_t fired)
{
    if (fired != world->stale_reads && world->up && fb_shard_ready(world->shard) <= 0)
        world->lied = true;
    world->stale_reads = fired;
}

/* What the device did so far decides what it can be blamed for. */
void sim_world_note_faults(struct sim_world *world)
{
    const struct fb_sim_counts *counts = fb_sim_get_counts(world->sim);
    note_stale(world, counts->fired[FB_IO_READ][FB_FAULT_STALE]);
    for (int op = 0; op < FB_IO_OP_COUNT; op++)
        for (int fault = 1; fault < FB_FAULT_COUNT; fault++)
            if (counts->fired[op][fault] != 0 && fault != FB_FAULT_DELAYED &&
                fault != FB_FAULT_REORDERED) {
                bool lie = fault == FB_FAULT_TORN || fault == FB_FAULT_MISDIRECTED ||
                           fault == FB_FAULT_LOST;
                world->failed = true;
                if (op == FB_IO_READ && (fault == FB_FAULT_MISDIRECTED || fault == FB_FAULT_STALE))
                    world->misread = true;
                if (lie && op == FB_IO_WRITE)
                    world->lied = true;
            }
}

static bool run_until(struct sim_world *world, bool (*over)(struct sim_world *), uint64_t limit_ns)
{
    for (unsigned steps = 0; steps < STEPS_MAX && world->violation[0] == '\0'; steps++) {
        if (over(world))
            return true;
        if (!step(world) || world->now_ns > limit_ns)
            return over(world);
        sim_world_note_faults(world);
    }
    return world->violation[0] != '\0';
}

static bool operations_over(struct sim_world *world)
{
    return world->operations_left == 0;
}

static bool clients_quiet(struct sim_world *world)
{
    if (!world->up)
        return false;
    if (world->knobs.wire)
        return sim_wire_is_quiet(world);
    for (unsigned i = 0; i <= world->knobs.clients; i++)
        if (!sim_client_is_quiet(&world->clients[i]))
            return false;
    return true;
}

static bool peers_idle(struct sim_world *world)
{
    if (world->knobs.wire)
        return sim_wire_is_gone(world);
    for (unsigned i = 0; i <= world->knobs.clients; i++)
        if (world->clients[i].open && !fb_shard_peer_idle(&world->clients[i].peer))
            return false;
    return true;
}

/* What the device still does for nobody may end first. */
static bool memory_back(struct sim_world *world)
{
    struct fb_shard_stats stats;
    fb_shard_stats(world->shard, &stats);
    return stats.reserved_bytes == 0 && stats.quarantine_bytes == 0 && stats.pinned_bytes == 0 &&
           stats.open_ops == 0;
}

static bool auditor_free(struct sim_world *world)
{
    return world->up && world->clients[world->knobs.clients].slots[0].state == SIM_FREE;
}

/* Reads every key back: what the checker knows of each must still hold. */
static void read_back(struct sim_world *world)
{
    struct sim_client *auditor = &world->clients[world->knobs.clients];
    for (uint32_t space = 0; space < SIM_SPACES; space++)
        for (uint32_t key = 0; key < world->knobs.keys && world->spaces[space].open; key++) {
            sim_client_read(world, auditor, space, key);
            sim_world_pump(world);
            if (!run_until(world, auditor_free, world->now_ns + START_LIMIT_NS)) {
                sim_world_violation(world, "a read does not end although nothing fails");
                return;
            }
            if (world->violation[0] != '\0')
                return;
        }
}

/* The same where clients speak the protocol: first nothing may be left of what they came back
 * from. */
static void wire_read_back(struct sim_world *world)
{
    if (!run_until(world, sim_wire_is_clean, world->now_ns + START_LIMIT_NS)) {
        sim_world_violation(world, "a session, an operation or memory stays although its client "
                                   "is there and wants nothing");
        return;
    }
    sim_wire_audit(world);
    if (!run_until(world, sim_wire_is_audited, world->now_ns + START_LIMIT_NS))
        sim_world_violation(world, "a read does not end although nothing fails");
}

/* Faults off: everything must end by its deadline, and all memory must come back. */
static void liveness(struct sim_world *world)
{
    static const struct fb_sim_rates none;
    world->quiet = true;
    fb_sim_set_rates(world->sim, &none);
    heal(world);
    if (!world->up)
        start_node(world);
    uint64_t limit = world->now_ns + world->knobs.deadline_ns +
                     world->knobs.device.latency.delay_ns * 4 + START_LIMIT_NS;
    if (!run_until(world, clients_quiet, limit)) {
        sim_world_violation(world, "operations do not end although nothing fails");
        return;
    }
    if (world->knobs.wire)
        wire_read_back(world);
    else
        read_back(world);
    if (world->violation[0] != '\0')
        return;
    for (unsigned i = 0; i <= world->knobs.clients && !world->knobs.wire; i++)
        sim_client_end(world, &world->clients[i]);
    if (world->knobs.wire)
        sim_wire_end(world);
    sim_world_pump(world);
    if (!run_until(world, peers_idle, world->now_ns + START_LIMIT_NS)) {
        sim_world_violation(world, "a dead peer's memory does not come back");
        return;
    }
    if (!run_until(world, memory_back, world->now_ns + START_LIMIT_NS)) {
        struct fb_shard_stats stats;
        fb_shard_stats(world->shard, &stats);
        sim_world_violation(
            world, "left behind: reserved %llu quarantined %llu pinned %llu operations %llu",
            (unsigned long long)stats.reserved_bytes, (unsigned long long)stats.quarantine_bytes,
            (unsigned long long)stats.pinned_bytes, (unsigned long long)stats.open_ops);
    }
    fb_shard_audit(world->shard);
}

static void reset(struct sim_world *world, uint64_t seed)
{
    struct sim_report *report = world->report;
    void *memory = world->memory, *meta = world->meta;
    struct sim_version *versions = world->versions;
    bool verbose = world->verbose;
    enum sim_kind kind = world->kind;
    struct sim_wire *wire = world->wire;
    memset(world, 0, sizeof(*world));
    world->kind = kind;
    world->wire = wire;
    world->report = report;
    world->memory = memory;
    world->meta = meta;
    world->memory_bytes = MEMORY_MAX;
    world->meta_bytes = META_MAX;
    world->versions = versions;
    world->verbose = verbose;
    world->seed = seed;
    world->now_ns = FB_SEC_NS;
    fb_prng_seed(&world->prng, seed);
    fb_heap_init(&world->heap, world->entries, SIM_HEAP_MAX);
    world->version_count = 1;
}

static void prepare(struct sim_world *world)
{
    struct sim_knobs *knobs = &world->knobs;
    char why[SIM_TEXT_MAX];
    sim_knobs_draw(world);
    if (world->scripted)
        sim_knobs_script(world);
    if (fb_shard_config_check(&knobs->shard, why, sizeof(why)) != 0) {
        fprintf(stderr, "sim: seed %llu: configuration refused: %s\n",
                (unsigned long long)world->seed, why);
        abort();
    }
    FB_ASSERT(fb_shard_footprint(&knobs->shard) <= world->memory_bytes);
    FB_ASSERT(fb_shard_meta_footprint(&knobs->shard) <= world->meta_bytes);
    knobs->device.seed = fb_prng_next(&world->prng);
    knobs->device.meta = world->meta;
    knobs->device.meta_bytes = META_MAX;
    knobs->device.boundary = world->scripted ? boundary : NULL;
    knobs->device.boundary_context = world;
    int result = fb_sim_open(&knobs->device, &world->sim);
    FB_ASSERT(result == 0);
    fb_sim_advance(world->sim, world->now_ns);
    world->operations_left = knobs->operations;
    for (unsigned i = 0; i <= knobs->clients; i++)
        world->clients[i].number = i;
    if (knobs->wire)
        sim_wire_prepare(world);
}

static int run_prepared(struct sim_world *world)
{
    prepare(world);
    start_node(world);
    sim_world_later(world, CHANCE_EVERY_NS, 0, 0, SIM_ACT_CHANCE, 0);
    if (!run_until(world, operations_over, UINT64_MAX))
        sim_world_violation(world, "the load does not get done");
    if (world->violation[0] == '\0')
        liveness(world);
    if (world->events < SIM_EVENTS_MIN && !world->scripted && world->violation[0] == '\0')
        sim_world_violation(world, "the seed had %llu events, of at least %d",
                            (unsigned long long)world->events, SIM_EVENTS_MIN);
    sim_report_take(world);
    if (world->knobs.wire)
        sim_wire_close(world);
    fb_sim_counts_add(&world->report->faults, fb_sim_get_counts(world->sim));
    world->report->seeds++;
    world->report->events += world->events;
    return world->violation[0] != '\0';
}

int sim_world_run(struct sim_world *world, uint64_t seed)
{
    reset(world, seed);
    int result = run_prepared(world);
    fb_io_close(fb_sim_io(world->sim));
    return result;
}

int sim_world_run_cut(struct sim_world *world, uint64_t seed, uint64_t at, enum fb_sim_cut cut,
                      uint64_t cut_seed, uint64_t *boundaries)
{
    reset(world, seed);
    world->scripted = true;
    world->cut_boundary = at;
    world->cut = cut;
    world->cut_seed = cut_seed;
    int result = run_prepared(world);
    *boundaries = fb_sim_boundaries(world->sim);
    fb_io_close(fb_sim_io(world->sim));
    return result;
}
