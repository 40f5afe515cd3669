/*
 * client.c - simulated clients: what they ask for, and how they misbehave.
 *
 * A client copies in slices with pauses between them, commits late, stops in the middle, goes on
 * writing after its right to was revoked (until it acknowledges), dies with and without proof, and
 * lies about what it wrote. Nothing of this may hurt anybody but itself.
 */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "test/sim/world.h"

#define LATE_NS_MAX     (12 * FB_SEC_NS)
#define SUSPECT_NS_MAX  (3 * FB_SEC_NS)
#define RETURN_NS_MAX   (500 * FB_MS_NS)
#define LONG_KEY_PPM    50000
#define RANGE_PPM       250000
#define HOLD_LOADS_MAX  4
#define THROUGH_PPM     100000
#define OFF_PPM         80000
#define EVICT_PPM       80000
#define WIRE_VERIFY_PPM 200000
#define READ_BACK_NS    (60 * FB_SEC_NS)

static uint64_t below(struct sim_world *world, uint64_t n)
{
    return fb_prng_below(&world->prng, n);
}

/* Opens the client's session, and the namespaces if nobody has. */
void sim_client_open(struct sim_world *world, struct sim_client *client)
{
    memset(&client->peer, 0, sizeof(client->peer));
    fb_shard_peer_open(world->shard, &client->peer);
    client->open = true;
    client->life = SIM_ALIVE;
    for (unsigned i = 0; i < world->knobs.slots; i++) {
        client->slots[i].state = SIM_FREE;
        client->slots[i].tick++;
        client->slots[i].room = &client->rooms[i];
        if (!world->quiet && client->number < world->knobs.clients)
            sim_world_later(world, below(world, world->knobs.think_ns) + 1, client->number, i,
                            SIM_ACT_THINK, client->slots[i].tick);
    }
}

/* The node died: nothing that it knew of this client is left. */
void sim_client_crash(struct sim_world *world, struct sim_client *client)
{
    (void)world;
    client->open = false;
    for (unsigned i = 0; i < SIM_SLOTS_MAX; i++) {
        client->slots[i].state = SIM_FREE;
        client->slots[i].tick++;
    }
}

/* True if no operation of it waits for an answer. */
bool sim_client_is_quiet(const struct sim_client *client)
{
    for (unsigned i = 0; i < SIM_SLOTS_MAX; i++)
        if (client->slots[i].state != SIM_FREE && !client->slots[i].done)
            return false;
    return true;
}

/* The last act: proven dead. */
void sim_client_end(struct sim_world *world, struct sim_client *client)
{
    if (!client->open)
        return;
    client->life = SIM_DEAD;
    for (unsigned i = 0; i < SIM_SLOTS_MAX; i++)
        client->slots[i].tick++;
    fb_shard_peer_gone(world->shard, sim_world_clock(world), &client->peer, true);
}

static enum fb_op_kind draw_kind(struct sim_world *world)
{
    uint64_t sum = 0;
    for (int kind = 0; kind <= FB_OP_LIST; kind++)
        sum += world->knobs.weight[kind];
    uint64_t at = below(world, sum);
    for (int kind = 0; kind < FB_OP_LIST; kind++) {
        if (at < world->knobs.weight[kind])
            return (enum fb_op_kind)kind;
        at -= world->knobs.weight[kind];
    }
    return FB_OP_LIST;
}

/* The text of a key: short for most, of the greatest length for some. */
uint16_t sim_client_key(uint32_t space, uint32_t key, uint8_t *text)
{
    int used = snprintf((char *)text, FB_KEY_BYTES_MAX, "space-%u/key-%u", space, key);
    if (key % 20 != 7)
        return (uint16_t)used;
    memset(text + used, 'x', (size_t)(FB_KEY_BYTES_MAX - used));
    return FB_KEY_BYTES_MAX;
}

static struct fb_digest key_digest(struct sim_world *world, uint32_t space, uint32_t key)
{
    uint8_t text[FB_KEY_BYTES_MAX];
    uint16_t bytes = sim_client_key(space, key, text);
    return fb_digest_key(&world->spaces[space].secret, world->spaces[space].epoch, text, bytes);
}

/* The length of a value. */
uint64_t sim_client_bytes(struct sim_world *world)
{
    uint64_t most = world->knobs.value_bytes_max;
    switch (below(world, 4)) {
    case 0:
        return 1 + below(world, FB_PAGE_BYTES * 2);
    case 1:
        return FB_PAGE_BYTES * (1 + below(world, 16));
    case 2:
        return 1 + below(world, most / 8 + 1);
    default:
        return 1 + below(world, most);
    }
}

static void plan_put(struct sim_world *world, struct sim_slot *slot)
{
    struct fb_op *op = &slot->op;
    FB_ASSERT(world->version_count < SIM_VERSIONS_MAX);
    slot->version = world->version_count++;
    op->value_bytes = sim_client_bytes(world);
    op->depth = (uint16_t)(slot->key % 64);
    if (sim_world_chance(world, world->knobs.upsert_ppm))
        op->flags |= FB_PUT_UPSERT;
    if (sim_world_chance(world, THROUGH_PPM))
        op->persist = FB_PERSIST_THROUGH;
    else if (sim_world_chance(world, OFF_PPM))
        op->persist = FB_PERSIST_OFF;
    else if (sim_world_chance(world, EVICT_PPM))
        op->persist = FB_PERSIST_EVICT;
    struct sim_version *version = &world->versions[slot->version];
    memset(version, 0, sizeof(*version));
    version->space = slot->space;
    version->key = slot->key;
    version->epoch = op->epoch;
    version->bytes = op->value_bytes;
    version->upsert = (op->flags & FB_PUT_UPSERT) != 0;
    version->lie = sim_world_chance(world, world->knobs.lie_ppm);
}

static struct sim_hold *find_hold(struct sim_world *world)
{
    for (unsigned tries = 0; tries < 8; tries++) {
        struct sim_hold *hold = &world->holds[below(world, SIM_HOLDS_MAX)];
        if (hold->loads != 0 && hold->until_ns > sim_world_clock(world) + world->knobs.deadline_ns)
            return hold;
    }
    return NULL;
}

static void plan_get(struct sim_world *world, struct sim_slot *slot)
{
    struct fb_op *op = &slot->op;
    op->range_bytes = UINT64_MAX;
    struct sim_hold *hold = find_hold(world);
    if (hold != NULL) {
        slot->space = hold->space;
        slot->key = hold->key;
        slot->held = true;
        op->flags |= FB_GET_HELD;
        hold->loads--;
    }
    if (sim_world_chance(world, RANGE_PPM)) {
        op->range_off = below(world, 64) * 1024;
        op->range_bytes = 1 + below(world, FB_KIB(64));
    }
    if (sim_world_chance(world, WIRE_VERIFY_PPM))
        op->flags |= FB_GET_VERIFY;
    if (sim_world_chance(world, 100000))
        op->flags |= FB_GET_NO_PROMOTE;
}

static void plan_lookup(struct sim_world *world, struct sim_slot *slot)
{
    struct fb_op *op = &slot->op;
    op->n = (uint32_t)(1 + below(world, SIM_LOOKUP_MAX));
    for (uint32_t i = 0; i < op->n; i++) {
        slot->lookup_keys[i] = (uint32_t)below(world, world->knobs.keys);
        slot->digests[i] = key_digest(world, slot->space, slot->lookup_keys[i]);
    }
    op->digests = slot->digests;
    op->found = slot->found;
    op->hold_loads = (uint32_t)(1 + below(world, HOLD_LOADS_MAX));
    if (op->kind == FB_OP_LOOKUP && sim_world_chance(world, 500000))
        op->hold_ms = (uint32_t)(1 + below(world, 60000));
}

static void plan_space(struct sim_world *world, struct sim_slot *slot)
{
    struct fb_op *op = &slot->op;
    int used =
        snprintf((char *)slot->room->list, sizeof(slot->room->list), "model-%u", slot->space);
    op->ns_fields = slot->room->list;
    op->ns_fields_bytes = (uint32_t)used;
    op->ns_quota_dram_bytes = world->knobs.quota_dram_bytes;
    op->ns_quota_ssd_bytes = world->knobs.quota_ssd_bytes;
    fb_prng_fill(&world->prng, op->ns_secret, sizeof(op->ns_secret));
}

static void plan(struct sim_world *world, struct sim_slot *slot)
{
    struct fb_op *op = &slot->op;
    switch (op->kind) {
    case FB_OP_PUT:
        plan_put(world, slot);
        break;
    case FB_OP_GET:
        plan_get(world, slot);
        break;
    case FB_OP_LOOKUP:
    case FB_OP_HOLD_RELEASE:
        plan_lookup(world, slot);
        break;
    case FB_OP_NAMESPACE:
        plan_space(world, slot);
        break;
    case FB_OP_LIST:
        op->list_out = slot->room->list;
        op->list_bytes = sizeof(slot->room->list);
        break;
    default:
        break;
    }
}

static void begin(struct sim_world *world, struct sim_client *client, struct sim_slot *slot)
{
    struct fb_op *op = &slot->op;
    memset(slot, 0, offsetof(struct sim_slot, tick));
    memset(slot->room->run_count, 0, sizeof(slot->room->run_count));
    slot->seen = UINT32_MAX;
    slot->space = (uint32_t)below(world, SIM_SPACES);
    slot->key = (uint32_t)below(world, world->knobs.keys);
    struct sim_space *space = &world->spaces[slot->space];
    op->kind = (uint8_t)(space->open ? draw_kind(world) : FB_OP_NAMESPACE);
    op->peer = &client->peer;
    op->deadline_ns = sim_world_clock(world) + world->knobs.deadline_ns / 4 +
                      below(world, world->knobs.deadline_ns);
    op->epoch = space->epoch;
    op->ns = space->handle;
    op->cookie = (uint64_t)client->number << 8 | (uint64_t)(slot - client->slots);
    plan(world, slot);
    space = &world->spaces[slot->space];
    op->ns = space->handle;
    op->epoch = space->epoch;
    op->key = slot->keytext;
    op->key_bytes = sim_client_key(slot->space, slot->key, slot->keytext);
    if (space->open)
        op->digest = fb_digest_key(&space->secret, op->epoch, op->key, op->key_bytes);
    slot->state = SIM_WAITING;
    slot->started = true;
    slot->start_ns = sim_world_clock(world);
    slot->epoch = op->epoch;
    sim_check_start(world, slot);
    sim_world_spend(world, 1);
    world->report->operations++;
    world->report->started[op->kind]++;
    sim_world_say(world, "client %u: op %u key %u/%u version %u bytes %llu", client->number,
                  op->kind, slot->space, slot->key, slot->version,
                  (unsigned long long)op->value_bytes);
    fb_shard_start_op(world->shard, sim_world_clock(world), op);
    if (sim_world_chance(world, world->knobs.cancel_ppm))
        sim_world_later(world, below(world, world->knobs.deadline_ns), client->number,
                        (unsigned)(slot - client->slots), SIM_ACT_CANCEL, slot->tick);
}

/* One plain get of a key by the auditor: the last phase reads everything back. */
void sim_client_read(struct sim_world *world, struct sim_client *client, uint32_t space,
                     uint32_t key)
{
    struct sim_slot *slot = &client->slots[0];
    struct fb_op *op = &slot->op;
    memset(slot, 0, offsetof(struct sim_slot, tick));
    memset(slot->room->run_count, 0, sizeof(slot->room->run_count));
    slot->seen = UINT32_MAX;
    slot->space = space;
    slot->key = key;
    op->kind = FB_OP_GET;
    op->peer = &client->peer;
    op->range_bytes = UINT64_MAX;
    op->deadline_ns = sim_world_clock(world) + READ_BACK_NS;
    op->ns = world->spaces[space].handle;
    op->epoch = world->spaces[space].epoch;
    op->cookie = (uint64_t)client->number << 8;
    op->key = slot->keytext;
    op->key_bytes = sim_client_key(space, key, slot->keytext);
    op->digest = fb_digest_key(&world->spaces[space].secret, op->epoch, op->key, op->key_bytes);
    slot->state = SIM_WAITING;
    slot->started = true;
    slot->start_ns = sim_world_clock(world);
    slot->epoch = op->epoch;
    sim_check_start(world, slot);
    fb_shard_start_op(world->shard, sim_world_clock(world), op);
}

static uint64_t pause_ns(struct sim_world *world)
{
    if (sim_world_chance(world, world->knobs.late_ppm))
        return below(world, LATE_NS_MAX);
    return 1 + below(world, world->knobs.copy_ns);
}

/* Writes some pages of the grant, revoked or not. */
static void copy(struct sim_world *world, struct sim_client *client, struct sim_slot *slot)
{
    const struct sim_version *version = &world->versions[slot->version];
    uint64_t pages = (version->bytes + FB_PAGE_BYTES - 1) / FB_PAGE_BYTES;
    uint64_t count = 1 + below(world, pages - slot->written_pages);
    struct fb_sim_value value = {.key = (uint64_t)slot->space * SIM_KEYS + slot->key + 1,
                                 .version = slot->version,
                                 .bytes = version->bytes};
    uint64_t off = slot->written_pages * FB_PAGE_BYTES;
    uint64_t end = off + count * FB_PAGE_BYTES;
    while (off < end) {
        struct fb_io_vec runs[SIM_RUNS_MAX];
        uint64_t from = off;
        size_t n = fb_shard_put_runs(world->shard, &slot->op, &off, runs, SIM_RUNS_MAX);
        if (n == 0)
            break;
        uint64_t have = (off - from + FB_PAGE_BYTES - 1) / FB_PAGE_BYTES;
        uint64_t want = (end - from + FB_PAGE_BYTES - 1) / FB_PAGE_BYTES;
        fb_sim_write_pages(world->sim, runs, (unsigned)n, &value, from / FB_PAGE_BYTES, 0,
                           have < want ? have : want);
    }
    slot->written_pages += count;
    unsigned number = (unsigned)(slot - client->slots);
    if (slot->state == SIM_REVOKED) {
        world->report->scribbles++;
        sim_world_later(world, pause_ns(world), client->number, number, SIM_ACT_RELEASE,
                        slot->tick);
    } else if (slot->written_pages < pages) {
        fb_shard_put_progress(world->shard, sim_world_clock(world), &slot->op);
        sim_world_later(world, pause_ns(world), client->number, number, SIM_ACT_COPY, slot->tick);
    } else {
        uint64_t late =
            sim_world_chance(world, world->knobs.late_commit_ppm) ? below(world, LATE_NS_MAX) : 0;
        sim_world_later(world, late + pause_ns(world), client->number, number, SIM_ACT_COMMIT,
                        slot->tick);
    }
}

/* The identity of one part of what the slot writes. */
static struct fb_identity identity(struct sim_world *world, struct sim_slot *slot, uint32_t part,
                                   uint32_t part_bytes)
{
    uint64_t generation = slot->op.generation;
    return (struct fb_identity){
        .namespace_id = world->spaces[slot->space].id,
        .epoch = slot->epoch,
        .key = slot->op.key,
        .key_bytes = slot->op.key_bytes,
        .generation = {.boot = (uint32_t)(generation >> 40),
                       .counter = generation & ((UINT64_C(1) << 40) - 1)},
        .part = part,
        .total_bytes = slot->op.value_bytes,
        .part_bytes = part_bytes,
    };
}

/* The leaves of one part. Leaves never span parts, and a part may be shorter than a leaf. */
uint64_t sim_client_leaves(const struct fb_sim_value *value, uint64_t off, uint64_t bytes,
                           uint64_t *leaves)
{
    static struct fb_sim_page pages[FB_LEAF_BYTES / FB_PAGE_BYTES];
    uint64_t count = 0;
    for (uint64_t at = 0; at < bytes; at += FB_LEAF_BYTES, count++) {
        uint64_t leaf_bytes = bytes - at < FB_LEAF_BYTES ? bytes - at : FB_LEAF_BYTES;
        for (uint64_t i = 0; i * FB_PAGE_BYTES < leaf_bytes; i++)
            pages[i] = fb_sim_token(value->key, value->version, (off + at) / FB_PAGE_BYTES + i);
        leaves[count] = fb_sim_leaf_hash(pages, leaf_bytes);
    }
    return count;
}

static void commit(struct sim_world *world, struct sim_slot *slot)
{
    const struct sim_version *version = &world->versions[slot->version];
    uint32_t chunk = fb_shard_chunk_bytes(world->shard);
    struct fb_sim_value value = {.key = (uint64_t)slot->space * SIM_KEYS + slot->key + 1,
                                 .version = slot->version,
                                 .bytes = version->bytes};
    uint64_t roots[SIM_PARTS_MAX];
    uint32_t parts = 0;
    for (uint64_t off = 0; off < value.bytes; off += chunk, parts++) {
        FB_ASSERT(parts < SIM_PARTS_MAX);
        uint64_t leaves[FB_LOG_LEAVES_MAX];
        uint32_t bytes = (uint32_t)(value.bytes - off < chunk ? value.bytes - off : chunk);
        uint64_t count = sim_client_leaves(&value, off, bytes, leaves);
        if (version->lie)
            leaves[0] ^= 1;
        struct fb_identity id = identity(world, slot, parts, bytes);
        roots[parts] = fb_root_of(&id, leaves, count);
    }
    if (slot->state == SIM_REVOKED) {
        world->report->late_commits++;
        slot->state = SIM_RELEASED;
    } else {
        slot->state = SIM_COMMITTED;
        sim_check_commit(world, slot);
    }
    fb_shard_put_commit(world->shard, sim_world_clock(world), &slot->op, slot->op.generation, roots,
                        parts);
}

/* Death: proven at once, or only suspected and proven later; meanwhile it may still write. */
static void die(struct sim_world *world, struct sim_client *client)
{
    bool proven = sim_world_chance(world, 500000);
    world->report->deaths++;
    sim_world_say(world, "client %u dies, %s", client->number, proven ? "proven" : "suspected");
    client->life = proven ? SIM_DEAD : SIM_SUSPECT;
    for (unsigned i = 0; proven && i < SIM_SLOTS_MAX; i++)
        client->slots[i].tick++;
    fb_shard_peer_gone(world->shard, sim_world_clock(world), &client->peer, proven);
    if (!proven)
        sim_world_later(world, below(world, SUSPECT_NS_MAX), client->number, 0, SIM_ACT_PROVEN, 0);
    else
        sim_world_later(world, below(world, RETURN_NS_MAX), client->number, 0, SIM_ACT_RETURN, 0);
}

static void proven(struct sim_world *world, struct sim_client *client)
{
    if (client->life != SIM_SUSPECT)
        return;
    client->life = SIM_DEAD;
    for (unsigned i = 0; i < SIM_SLOTS_MAX; i++)
        client->slots[i].tick++;
    fb_shard_peer_gone(world->shard, sim_world_clock(world), &client->peer, true);
    sim_world_later(world, below(world, RETURN_NS_MAX), client->number, 0, SIM_ACT_RETURN, 0);
}

/* A dead client's successor: only when nothing of the dead one is left. */
static void come_back(struct sim_world *world, struct sim_client *client)
{
    if (client->life != SIM_DEAD || !client->open)
        return;
    if (!fb_shard_peer_idle(&client->peer)) {
        sim_world_later(world, RETURN_NS_MAX, client->number, 0, SIM_ACT_RETURN, 0);
        return;
    }
    sim_client_open(world, client);
}

static void think(struct sim_world *world, struct sim_client *client, struct sim_slot *slot)
{
    if (client->life != SIM_ALIVE || slot->state != SIM_FREE || world->operations_left == 0)
        return;
    if (sim_world_chance(world, world->knobs.death_ppm)) {
        die(world, client);
        return;
    }
    begin(world, client, slot);
}

static void slot_act(struct sim_world *world, struct sim_client *client, struct sim_slot *slot,
                     enum sim_act act)
{
    switch (act) {
    case SIM_ACT_COPY:
        if (slot->state == SIM_WRITING || slot->state == SIM_REVOKED)
            copy(world, client, slot);
        break;
    case SIM_ACT_COMMIT:
        if (slot->state == SIM_WRITING || slot->state == SIM_REVOKED)
            commit(world, slot);
        break;
    case SIM_ACT_RELEASE:
        if (slot->state != SIM_REVOKED || client->life != SIM_ALIVE)
            break;
        slot->state = SIM_RELEASED;
        fb_shard_put_release(world->shard, sim_world_clock(world), &slot->op);
        break;
    case SIM_ACT_READ:
        sim_answer_read(world, client, slot);
        break;
    case SIM_ACT_CANCEL:
        if (!slot->done && client->life == SIM_ALIVE)
            fb_shard_cancel(world->shard, sim_world_clock(world), &slot->op);
        break;
    default:
        break;
    }
}

/* Something that the client had planned is due. */
void sim_client_act(struct sim_world *world, unsigned number, unsigned slot_number,
                    enum sim_act act, uint32_t tick)
{
    struct sim_client *client = &world->clients[number];
    if (act == SIM_ACT_PROVEN) {
        proven(world, client);
        return;
    }
    if (act == SIM_ACT_RETURN) {
        come_back(world, client);
        return;
    }
    struct sim_slot *slot = &client->slots[slot_number];
    if (slot->tick != tick || !client->open || client->life == SIM_DEAD)
        return;
    if (act == SIM_ACT_THINK) {
        think(world, client, slot);
        return;
    }
    if (slot->state == SIM_FREE)
        return;
    if (!world->quiet && sim_world_chance(world, world->knobs.stop_ppm)) {
        world->report->stops++;
        sim_world_later(world, below(world, LATE_NS_MAX), number, slot_number, act, tick);
        return;
    }
    slot_act(world, client, slot, act);
}
