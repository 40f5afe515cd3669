/*
 * knobs.c - what a seed decides before anything happens: sizes, latencies, weights, which faults
 * there are, and which features are off in this run. A run with few features goes deeper into them.
 */
#include <string.h>

#include "base/bits.h"
#include "base/bug.h"
#include "base/limits.h"
#include "test/sim/world.h"

#define OPERATIONS_MIN   1400
#define OPERATIONS_MAX   1700
#define HALF_PPM         500000
#define QUARTER_PPM      250000
#define SLOW_READS_PPM   100000
#define NODE_OFF_PPM     60000
#define WIRE_CLIENTS_MIN 4
#define WIRE_SALT        UINT64_C(0x77697265)

static uint64_t between(struct sim_world *world, uint64_t low, uint64_t high)
{
    return fb_prng_between(&world->prng, low, high);
}

static bool chance(struct sim_world *world, uint32_t ppm)
{
    return fb_prng_chance(&world->prng, ppm);
}

static void draw_shard(struct sim_world *world)
{
    struct fb_shard_config *shard = &world->knobs.shard;
    memset(shard, 0, sizeof(*shard));
    shard->pool_bytes = FB_MIB(2) * between(world, 1, 4);
    shard->index_entries = (uint32_t)(chance(world, QUARTER_PPM) ? between(world, 96, 400) : 2048);
    shard->devices = chance(world, 900000) ? 1 : 0;
    shard->persist = chance(world, NODE_OFF_PPM)
                         ? FB_PERSIST_OFF
                         : (uint8_t)between(world, FB_PERSIST_EVICT, FB_PERSIST_THROUGH);
    shard->drain_ms = (uint32_t)(chance(world, QUARTER_PPM) ? between(world, 1, 50) : 25000);
    shard->device_write_bytes_per_s = FB_MIB(200);
    shard->grant_stall_ms = (uint32_t)between(world, 200, 5000);
    shard->lease_ms = (uint32_t)between(world, 100, 5000);
    shard->hold_ms_max = (uint32_t)between(world, shard->lease_ms, 30000);
    shard->peers_max = SIM_CLIENTS_MAX;
    shard->history_entries = (uint32_t)between(world, 64, 1024);
    shard->namespaces_max = 4;
    shard->log.capacity_bytes = FB_MIB(16) + FB_MIB(1) * between(world, 0, 16);
    shard->log.shards = 1;
    shard->log.node_id = 7;
    shard->log.io_errors_to_fence =
        (uint32_t)(chance(world, QUARTER_PPM) ? between(world, 1, 4) : between(world, 3, 50));
    shard->log.read_depth = (uint32_t)between(world, 1, 32);
    shard->log.write_depth = (uint32_t)between(world, 1, 8);
    shard->log.linger_ns = between(world, 0, 5) * FB_MS_NS;
    shard->log.tombs_max = (uint32_t)(chance(world, HALF_PPM) ? between(world, 16, 64) : 1024);
}

static void draw_device(struct sim_world *world)
{
    struct fb_sim_config *device = &world->knobs.device;
    memset(device, 0, sizeof(*device));
    device->arena_bytes = world->knobs.shard.pool_bytes;
    device->device_count = 1;
    device->device_bytes[0] = FB_MIB(40);
    device->latency = fb_sim_latency_default();
    device->latency.jitter_percent = (uint32_t)between(world, 0, 300);
    device->latency.tail_ppm = (uint32_t)between(world, 0, 20000);
    device->latency.tail_factor = (uint32_t)between(world, 2, 200);
    device->latency.write_bytes_per_s = FB_MIB(between(world, 20, 1500));
    device->latency.delay_ns = between(world, 1, 3000) * FB_MS_NS;
    device->latency.reorder_ns = between(world, 1, 50) * FB_MS_NS;
}

static void draw_rates(struct sim_world *world)
{
    struct fb_sim_rates *rates = &world->knobs.device.rates;
    const uint32_t scale = (uint32_t)between(world, 500, 8000);
    for (int op = 0; op < FB_IO_OP_COUNT; op++)
        for (int fault = 1; fault < FB_FAULT_COUNT; fault++) {
            bool lie = fault == FB_FAULT_TORN || fault == FB_FAULT_MISDIRECTED ||
                       fault == FB_FAULT_LOST || fault == FB_FAULT_STALE;
            if (fault == FB_FAULT_LYING ||
                !fb_script_applies((enum fb_io_op)op, (enum fb_fault)fault))
                continue;
            if (lie ? !world->knobs.liars : !world->knobs.faults)
                continue;
            if (chance(world, HALF_PPM))
                rates->ppm[op][fault] = scale;
        }
}

static void draw_weights(struct sim_world *world)
{
    static const uint32_t usual[FB_OP_LIST + 1] = {
        [FB_OP_PUT] = 400,         [FB_OP_GET] = 350,   [FB_OP_LOOKUP] = 80,
        [FB_OP_HOLD_RELEASE] = 20, [FB_OP_REMOVE] = 40, [FB_OP_WAIT_PERSISTED] = 40,
        [FB_OP_NAMESPACE] = 4,     [FB_OP_EPOCH] = 3,   [FB_OP_DROP_DRAM] = 15,
        [FB_OP_LIST] = 4,
    };
    for (int kind = 0; kind <= FB_OP_LIST; kind++)
        world->knobs.weight[kind] = chance(world, 150000) && kind > FB_OP_GET ? 0 : usual[kind];
    if (chance(world, QUARTER_PPM))
        world->knobs.weight[FB_OP_REMOVE] *= 6;
}

static uint32_t sometimes(struct sim_world *world, uint32_t high_ppm)
{
    return chance(world, HALF_PPM) ? (uint32_t)between(world, 0, high_ppm) : 0;
}

static void draw_mishaps(struct sim_world *world)
{
    struct sim_knobs *knobs = &world->knobs;
    knobs->late_ppm = sometimes(world, 60000);
    knobs->late_commit_ppm = sometimes(world, 200000);
    knobs->stop_ppm = sometimes(world, 8000);
    knobs->death_ppm = sometimes(world, 8000);
    knobs->lie_ppm = sometimes(world, 10000);
    knobs->cancel_ppm = sometimes(world, 30000);
    knobs->upsert_ppm = chance(world, 700000) ? (uint32_t)between(world, 0, 400000) : 0;
    knobs->crash_ppm = sometimes(world, 2500);
    knobs->power_ppm = sometimes(world, 2500);
    knobs->drain_ppm = sometimes(world, 1200);
    knobs->room_ppm = knobs->faults ? sometimes(world, 1500) : 0;
    knobs->floor_ppm = knobs->faults ? sometimes(world, 1500) : 0;
    knobs->damage_ppm = knobs->liars ? sometimes(world, 3000) : 0;
    knobs->jump_ppm = sometimes(world, 800);
}

/*
 * A planted bug that few seeds reach is brought into reach when it is asked for: reads so slow that
 * the segment below them is given up and written again, and nothing that fails and would be an
 * excuse.
 */
static void draw_for_bug(struct sim_world *world)
{
    struct sim_knobs *knobs = &world->knobs;
    if (!FB_BUG(FB_BUG_REUSE_BEFORE_UNPIN))
        return;
    memset(&knobs->device.rates, 0, sizeof(knobs->device.rates));
    knobs->device.rates.ppm[FB_IO_READ][FB_FAULT_DELAYED] = SLOW_READS_PPM;
    knobs->faults = knobs->liars = false;
    knobs->damage_ppm = knobs->room_ppm = knobs->floor_ppm = 0;
    knobs->shard.devices = 1;
    knobs->shard.persist = FB_PERSIST_BEHIND;
}

/* A third of the seeds; drawn apart, so that the others stay what they are. */
static bool speaks(const struct sim_world *world)
{
    if (world->scripted || world->kind == SIM_KIND_DIRECT)
        return false;
    return world->kind == SIM_KIND_WIRE || fb_mix64(world->seed ^ WIRE_SALT) % 3 == 0;
}

static void draw_wire(struct sim_world *world)
{
    struct sim_knobs *knobs = &world->knobs;
    knobs->wire = speaks(world);
    if (!knobs->wire)
        return;
    knobs->break_ppm = sometimes(world, 3000);
    knobs->stall_ppm = sometimes(world, 4000);
    knobs->ask_ppm = (uint32_t)between(world, 0, 1000000);
    /* One call at a time: with few clients and small batches nothing would get done. */
    knobs->clients = (uint32_t)fb_max_u64(knobs->clients, WIRE_CLIENTS_MIN);
    knobs->batch_max = (uint32_t)between(world, 3, 24);
    knobs->ops_max = (uint32_t)between(world, 1, 32);
    knobs->window_bytes = (uint32_t)FB_KIB(between(world, 1, 64));
    knobs->heartbeat_ms = (uint32_t)(chance(world, HALF_PPM) ? between(world, 300, 10000) : 0);
    knobs->wire_ns = between(world, 1, 2000) * FB_US_NS;
    knobs->commit_delay_ns = chance(world, QUARTER_PPM) ? between(world, 1, 2500) * FB_MS_NS : 0;
}

/* Draws everything for world->seed. */
void sim_knobs_draw(struct sim_world *world)
{
    struct sim_knobs *knobs = &world->knobs;
    memset(knobs, 0, sizeof(*knobs));
    knobs->faults = chance(world, HALF_PPM);
    knobs->liars = chance(world, QUARTER_PPM);
    draw_shard(world);
    draw_device(world);
    draw_rates(world);
    draw_weights(world);
    draw_mishaps(world);
    knobs->clients = (uint32_t)between(world, 2, SIM_CLIENTS_MAX);
    knobs->slots = (uint32_t)between(world, 1, SIM_SLOTS_MAX);
    knobs->operations = (uint32_t)between(world, OPERATIONS_MIN, OPERATIONS_MAX);
    knobs->keys = (uint32_t)(chance(world, QUARTER_PPM) ? between(world, 2, 8) : SIM_KEYS);
    knobs->value_bytes_max = chance(world, QUARTER_PPM) ? knobs->shard.pool_bytes + FB_PAGE_BYTES
                                                        : FB_KIB(between(world, 8, 1024));
    knobs->think_ns = between(world, 1, 4000) * FB_US_NS;
    knobs->copy_ns = between(world, 1, 500) * FB_US_NS;
    knobs->deadline_ns = between(world, 200, 30000) * FB_MS_NS;
    if (chance(world, QUARTER_PPM / 2)) {
        knobs->quota_dram_bytes = knobs->shard.pool_bytes / between(world, 2, 6);
        knobs->quota_ssd_bytes = knobs->shard.log.capacity_bytes / between(world, 2, 12);
    }
    draw_for_bug(world);
    draw_wire(world);
}

/* A short load whose only fault is the power cut. */
void sim_knobs_script(struct sim_world *world)
{
    struct sim_knobs *knobs = &world->knobs;
    memset(&knobs->device.rates, 0, sizeof(knobs->device.rates));
    knobs->faults = knobs->liars = false;
    knobs->shard.devices = 1;
    knobs->shard.pool_bytes = FB_MIB(4);
    knobs->shard.index_entries = 1024;
    knobs->shard.log.capacity_bytes = FB_MIB(16);
    knobs->device.arena_bytes = knobs->shard.pool_bytes;
    knobs->clients = 3;
    knobs->slots = 2;
    knobs->operations = 160;
    knobs->keys = 12;
    knobs->value_bytes_max = FB_KIB(200);
    knobs->upsert_ppm = 300000;
    knobs->crash_ppm = knobs->power_ppm = knobs->drain_ppm = knobs->room_ppm = knobs->floor_ppm = 0;
    knobs->damage_ppm = knobs->jump_ppm = knobs->stop_ppm = knobs->death_ppm = knobs->lie_ppm = 0;
    knobs->weight[FB_OP_REMOVE] = 150;
    knobs->weight[FB_OP_WAIT_PERSISTED] = 150;
    knobs->weight[FB_OP_EPOCH] = 10;
}
