/*
 * answer.c - what a client does with the shard's events: grants are filled, chunks are read (late),
 * results go to the checker, closed operations make room for the next.
 */
#include <string.h>

#include "base/assert.h"
#include "test/sim/world.h"

#define READ_LATE_NS_MAX (8 * FB_SEC_NS)

static uint64_t soon_ns(struct sim_world *world, uint64_t most_ns)
{
    return 1 + fb_prng_below(&world->prng, most_ns);
}

static void granted(struct sim_world *world, struct sim_client *client, struct sim_slot *slot)
{
    slot->state = SIM_WRITING;
    sim_check_grant(world, slot);
    if (client->life == SIM_DEAD)
        return;
    sim_world_later(world, soon_ns(world, world->knobs.copy_ns), client->number,
                    (unsigned)(slot - client->slots), SIM_ACT_COPY, slot->tick);
}

/* Chunks that came ready: their runs are taken at once, their bytes are looked at later. */
static void take_chunks(struct sim_world *world, struct sim_client *client, struct sim_slot *slot)
{
    if (client->life == SIM_DEAD)
        return;
    for (unsigned i = 0; i < FB_GET_WINDOW; i++) {
        if (slot->op.chunk[i].state != FB_CHUNK_READY)
            continue;
        uint32_t off = 0;
        slot->room->run_count[i] = (unsigned)fb_shard_chunk_runs(world->shard, &slot->op, i, &off,
                                                                 slot->room->runs[i], SIM_RUNS_MAX);
        FB_ASSERT(off >= slot->op.chunk[i].part_bytes);
        bool late = sim_world_chance(world, world->knobs.late_ppm);
        sim_world_later(world, soon_ns(world, late ? READ_LATE_NS_MAX : world->knobs.copy_ns),
                        client->number, (unsigned)(slot - client->slots), SIM_ACT_READ, slot->tick);
    }
}

static struct fb_sim_page page_at(struct sim_world *world, const struct fb_io_vec *runs,
                                  unsigned count, uint64_t page)
{
    for (unsigned i = 0; i < count; i++) {
        uint64_t pages = (runs[i].len + FB_PAGE_BYTES - 1) / FB_PAGE_BYTES;
        if (page < pages)
            return fb_sim_arena(world->sim)[runs[i].off / FB_PAGE_BYTES + page];
        page -= pages;
    }
    FB_UNREACHABLE();
}

/* The root of what lies in the chunk now, as a reader over shared memory computes it. */
static uint64_t chunk_root(struct sim_world *world, struct sim_slot *slot, unsigned number)
{
    const struct fb_chunk *chunk = &slot->op.chunk[number];
    struct fb_sim_page pages[FB_CHUNK_BYTES_MAX / FB_PAGE_BYTES];
    uint64_t leaves[FB_LOG_LEAVES_MAX];
    uint64_t count = (chunk->part_bytes + FB_PAGE_BYTES - 1) / FB_PAGE_BYTES;
    for (uint64_t i = 0; i < count; i++)
        pages[i] = page_at(world, slot->room->runs[number], slot->room->run_count[number], i);
    uint64_t leaf = 0;
    for (uint64_t off = 0; off < chunk->part_bytes; off += FB_LEAF_BYTES, leaf++) {
        uint64_t bytes =
            chunk->part_bytes - off < FB_LEAF_BYTES ? chunk->part_bytes - off : FB_LEAF_BYTES;
        leaves[leaf] = fb_sim_leaf_hash(pages + off / FB_PAGE_BYTES, bytes);
    }
    uint64_t generation = slot->op.generation;
    struct fb_identity identity = {
        .namespace_id = world->spaces[slot->space].id,
        .epoch = slot->epoch,
        .key = slot->op.key,
        .key_bytes = slot->op.key_bytes,
        .generation = {.boot = (uint32_t)(generation >> 40),
                       .counter = generation & ((UINT64_C(1) << 40) - 1)},
        .part = chunk->part,
        .total_bytes = slot->op.value_bytes,
        .part_bytes = chunk->part_bytes,
    };
    return fb_root_of(&identity, leaves, leaf);
}

static void check_chunk(struct sim_world *world, struct sim_slot *slot, unsigned number)
{
    const struct fb_chunk *chunk = &slot->op.chunk[number];
    uint64_t first = chunk->want_off / FB_PAGE_BYTES;
    uint64_t last =
        ((uint64_t)chunk->want_off + chunk->want_bytes + FB_PAGE_BYTES - 1) / FB_PAGE_BYTES;
    for (uint64_t i = first; i < last; i++)
        sim_check_page(world, slot,
                       page_at(world, slot->room->runs[number], slot->room->run_count[number], i),
                       chunk->value_off / FB_PAGE_BYTES + i);
    slot->seen_bytes += chunk->want_bytes;
}

/* Reads one chunk that is out, checks it, and gives it back. */
void sim_answer_read(struct sim_world *world, struct sim_client *client, struct sim_slot *slot)
{
    (void)client;
    for (unsigned i = 0; i < FB_GET_WINDOW; i++) {
        struct fb_chunk *chunk = &slot->op.chunk[i];
        if (chunk->state != FB_CHUNK_OUT || slot->room->run_count[i] == 0)
            continue;
        bool bad = !chunk->verified && chunk_root(world, slot, i) != chunk->root;
        if (bad)
            slot->seen_bad = true;
        else
            check_chunk(world, slot, i);
        slot->room->run_count[i] = 0;
        fb_shard_chunk_release(world->shard, sim_world_clock(world), &slot->op, i, bad);
        return;
    }
}

static void learn_space(struct sim_world *world, struct sim_slot *slot)
{
    struct sim_space *space = &world->spaces[slot->space];
    uint8_t id[16], secret[16];
    uint64_t epoch;
    if (slot->op.result < 0)
        return;
    bool known = fb_shard_namespace(world->shard, slot->op.ns, id, secret, &epoch);
    FB_ASSERT(known);
    memcpy(space->id, id, sizeof(id));
    fb_secret_derive(&space->secret, secret, sizeof(secret));
    if (space->epoch != epoch)
        memset(space->keys, 0, sizeof(space->keys));
    space->epoch = epoch;
    space->handle = slot->op.ns;
    space->open = true;
}

static void done(struct sim_world *world, struct sim_client *client, struct sim_slot *slot)
{
    struct fb_op *op = &slot->op;
    if (slot->done)
        sim_world_violation(world, "client %u: two results for one operation", client->number);
    sim_world_say(world, "client %u: op %u key %u/%u version %u ends %s, %s, generation %llx%s",
                  client->number, op->kind, slot->space, slot->key, slot->version,
                  fb_result_name(op->result), fb_reason_name(op->reason),
                  (unsigned long long)op->generation, op->persisted ? ", persisted" : "");
    if (op->kind == FB_OP_NAMESPACE)
        learn_space(world, slot);
    sim_check_done(world, slot);
    slot->done = true;
    int index = fb_result_index(op->result);
    FB_ASSERT(index >= 0);
    world->report->results[op->kind][index]++;
    world->report->reasons[op->reason]++;
    if (slot->state == SIM_WRITING) {
        slot->state = SIM_REVOKED;
        world->report->revoked++;
        if (client->life != SIM_DEAD)
            sim_world_later(world, soon_ns(world, world->knobs.copy_ns * 4), client->number,
                            (unsigned)(slot - client->slots), SIM_ACT_RELEASE, slot->tick);
    }
}

static void closed(struct sim_world *world, struct sim_client *client, struct sim_slot *slot)
{
    if (!slot->done)
        sim_world_violation(world, "client %u: closed without a result", client->number);
    slot->state = SIM_FREE;
    slot->tick++;
    if (client->life == SIM_ALIVE && world->operations_left != 0)
        sim_world_later(world, soon_ns(world, world->knobs.think_ns), client->number,
                        (unsigned)(slot - client->slots), SIM_ACT_THINK, slot->tick);
}

/* One event of the shard. */
void sim_answer(struct sim_world *world, struct fb_op *op, unsigned events)
{
    struct sim_client *client = &world->clients[op->cookie >> 8];
    struct sim_slot *slot = &client->slots[op->cookie & 0xff];
    if (slot->state == SIM_FREE) {
        sim_world_violation(world, "client %u: an event after CLOSED", client->number);
        return;
    }
    if (events & FB_EV_GRANT)
        granted(world, client, slot);
    if (events & FB_EV_CHUNK)
        take_chunks(world, client, slot);
    if (events & FB_EV_DONE)
        done(world, client, slot);
    if (events & FB_EV_CLOSED)
        closed(world, client, slot);
}
