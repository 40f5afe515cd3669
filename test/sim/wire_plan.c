/*
 * wire_plan.c - what a call of a client that speaks the protocol consists of.
 */
#include <string.h>

#include "base/assert.h"
#include "base/bits.h"
#include "test/sim/wire.h"

#define HOLD_LOADS_MAX 4
#define HOLD_MS_MAX    60000
#define RANGE_PPM      250000
#define SHORT_PPM      40000
#define COLD_PPM       100000
#define TWIN_PPM       100000
#define SCRATCH_PPM    750000
#define THROUGH_PPM    100000
#define OFF_PPM        80000
#define EVICT_PPM      80000
#define STALE_PPM      700000
#define REMOVES_MAX    4
#define RELEASES_MAX   8
#define EXPLAIN_WEIGHT 12
#define STATUS_WEIGHT  4
#define AUDIT_NS       (60 * FB_SEC_NS)

_Static_assert((int)FB_PERSIST_MODE_THROUGH == FB_PERSIST_THROUGH, "one list of modes");
_Static_assert((int)FB_EXISTS_HELD == FB_FOUND_HELD, "one list of bits");

/* No buffer is ever touched: an address that nobody may use. */
static void *nowhere(void)
{
    return (void *)(uintptr_t)FB_PAGE_BYTES;
}

static uint8_t draw_kind(struct sim_world *world)
{
    const uint32_t *weight = world->knobs.weight;
    const uint32_t of[FB_PROTO_CALL_KINDS] = {
        [FB_PROTO_PUT] = weight[FB_OP_PUT],
        [FB_PROTO_GET] = weight[FB_OP_GET],
        [FB_PROTO_EXISTS] = weight[FB_OP_LOOKUP],
        [FB_PROTO_HOLD_RELEASE] = weight[FB_OP_HOLD_RELEASE],
        [FB_PROTO_REMOVE] = weight[FB_OP_REMOVE],
        [FB_PROTO_WAIT] = weight[FB_OP_WAIT_PERSISTED],
        [FB_PROTO_DROP] = weight[FB_OP_DROP_DRAM],
        [FB_PROTO_BUMP] = weight[FB_OP_EPOCH],
        [FB_PROTO_REFRESH] = weight[FB_OP_NAMESPACE],
        [FB_PROTO_EXPLAIN] = EXPLAIN_WEIGHT,
        [FB_PROTO_LIST] = weight[FB_OP_LIST],
        [FB_PROTO_STATUS] = STATUS_WEIGHT,
    };
    uint64_t sum = 0;
    for (unsigned kind = 0; kind < FB_PROTO_CALL_KINDS; kind++)
        sum += of[kind];
    uint64_t at = wire_below(world, sum);
    uint8_t kind = 0;
    for (; at >= of[kind]; kind++)
        at -= of[kind];
    return kind;
}

/* An item of the call, as the checker sees it. */
static struct sim_slot *plan_slot(struct sim_world *world, struct wire_client *client, uint32_t i,
                                  enum fb_op_kind kind, uint32_t key)
{
    struct sim_slot *slot = &client->slots[i];
    memset(slot, 0, offsetof(struct sim_slot, tick));
    slot->seen = UINT32_MAX;
    slot->space = client->space;
    slot->key = key;
    slot->op.kind = (uint8_t)kind;
    slot->op.epoch = slot->epoch = client->epoch;
    slot->op.deadline_ns = client->call.deadline_ns;
    slot->op.range_bytes = UINT64_MAX;
    slot->op.key = slot->keytext;
    slot->op.key_bytes = sim_client_key(slot->space, slot->key, slot->keytext);
    slot->start_ns = sim_world_clock(world);
    return slot;
}

static uint32_t draw_key(struct sim_world *world)
{
    return (uint32_t)wire_below(world, world->knobs.keys);
}

/* ---- puts ---- */

static void plan_version(struct sim_world *world, struct sim_slot *slot)
{
    FB_ASSERT(world->version_count < SIM_VERSIONS_MAX);
    slot->version = world->version_count++;
    slot->op.value_bytes = sim_client_bytes(world);
    if (sim_world_chance(world, world->knobs.upsert_ppm))
        slot->op.flags |= FB_PUT_UPSERT;
    if (sim_world_chance(world, THROUGH_PPM))
        slot->op.persist = FB_PERSIST_THROUGH;
    else if (sim_world_chance(world, OFF_PPM))
        slot->op.persist = FB_PERSIST_OFF;
    else if (sim_world_chance(world, EVICT_PPM))
        slot->op.persist = FB_PERSIST_EVICT;
    struct sim_version *version = &world->versions[slot->version];
    memset(version, 0, sizeof(*version));
    version->space = slot->space;
    version->key = slot->key;
    version->epoch = slot->epoch;
    version->bytes = slot->op.value_bytes;
    version->upsert = (slot->op.flags & FB_PUT_UPSERT) != 0;
    version->lie = sim_world_chance(world, world->knobs.lie_ppm);
}

static void plan_put(struct sim_world *world, struct wire_client *client, uint32_t i)
{
    bool again = i > 0 && sim_world_chance(world, TWIN_PPM);
    uint32_t key = again ? client->slots[wire_below(world, i)].key : draw_key(world);
    struct sim_slot *slot = plan_slot(world, client, i, FB_OP_PUT, key);
    plan_version(world, slot);
    client->twin[i] = WIRE_NONE;
    for (uint32_t n = 0; n < i && client->call.scratch != NULL; n++)
        if (client->slots[n].key == key && client->twin[i] == WIRE_NONE)
            client->twin[i] = n;
    slot->twin = client->twin[i] != WIRE_NONE;
    world->report->wire.twins += slot->twin;
    client->bufs[i] = (struct fb_buf){nowhere(), (size_t)slot->op.value_bytes};
    client->puts[i] = (struct fb_put_item){
        .key = slot->keytext,
        .key_bytes = slot->op.key_bytes,
        .bufs = &client->bufs[i],
        .buf_count = 1,
        .depth = (uint16_t)(key % 64),
        .persist_mode = slot->op.persist,
        .flags = (slot->op.flags & FB_PUT_UPSERT) != 0 ? FB_UPSERT : 0,
        .result = INT32_MAX,
    };
}

/* ---- gets ---- */

/* A hold that outlasts the call. */
static struct sim_hold *find_hold(struct sim_world *world, uint32_t space)
{
    uint64_t least_ns = sim_world_clock(world) + 2 * world->knobs.deadline_ns;
    for (unsigned tries = 0; tries < 8; tries++) {
        struct sim_hold *hold = &world->holds[wire_below(world, SIM_HOLDS_MAX)];
        if (hold->loads != 0 && hold->space == space && hold->until_ns > least_ns)
            return hold;
    }
    return NULL;
}

static void plan_get(struct sim_world *world, struct wire_client *client, uint32_t i)
{
    struct sim_hold *hold = client->auditor ? NULL : find_hold(world, client->space);
    uint32_t key = hold != NULL ? hold->key : draw_key(world);
    if (client->auditor)
        key = client->audit_key++;
    struct sim_slot *slot = plan_slot(world, client, i, FB_OP_GET, key);
    uint64_t room = FB_MIB(64), range_bytes = 0;
    uint32_t flags = 0;
    if (hold != NULL) {
        slot->held = true;
        slot->hold_until_ns = hold->until_ns;
        hold->loads--;
        flags |= FB_GET_USES_HOLD;
    }
    if (!client->auditor && sim_world_chance(world, RANGE_PPM)) {
        slot->op.range_off = wire_below(world, 64) * 1024;
        slot->op.range_bytes = range_bytes = 1 + wire_below(world, FB_KIB(64));
    }
    if (!client->auditor && sim_world_chance(world, SHORT_PPM)) {
        room = wire_below(world, FB_KIB(16));
        world->report->wire.short_buffers++;
    }
    if (sim_world_chance(world, COLD_PPM))
        flags |= FB_GET_STAYS_COLD;
    client->bufs[i] = (struct fb_buf){nowhere(), (size_t)room};
    client->gets[i] = (struct fb_get_item){
        .key = slot->keytext,
        .key_bytes = slot->op.key_bytes,
        .bufs = room == 0 ? NULL : &client->bufs[i],
        .buf_count = room == 0 ? 0 : 1,
        .range_off = slot->op.range_off,
        .range_bytes = range_bytes,
        .flags = flags,
        .result = INT32_MAX,
    };
}

/* ---- the others ---- */

/* One operation for all its keys. */
static void plan_lookup(struct sim_world *world, struct wire_client *client, bool release,
                        uint32_t count)
{
    static uint8_t texts[SIM_SPACES][SIM_KEYS][FB_KEY_BYTES_MAX];
    struct sim_slot *slot =
        plan_slot(world, client, 0, release ? FB_OP_HOLD_RELEASE : FB_OP_LOOKUP, UINT32_MAX);
    slot->op.n = count;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t key = slot->lookup_keys[i] = draw_key(world);
        uint8_t *text = texts[client->space][key];
        uint16_t bytes = sim_client_key(client->space, key, text);
        const struct sim_key *state = &world->spaces[client->space].keys[key];
        bool unsure = state->removes != 0 || state->committing != 0 ||
                      world->spaces[client->space].bumps != 0 ||
                      world->wire->releasing[client->space][key] != 0;
        slot->spoiled |= (unsure ? 1u : 0u) << i;
        client->exists[i] = (struct fb_exists_item){text, bytes, INT32_MAX, 0};
        client->keys[i] =
            (struct fb_key_item){.key = text, .key_bytes = bytes, .result = INT32_MAX};
    }
    client->call.hold_loads = (uint32_t)(1 + wire_below(world, HOLD_LOADS_MAX));
    if (!release && sim_world_chance(world, 500000))
        client->call.hold_ms = (uint32_t)(1 + wire_below(world, HOLD_MS_MAX));
    slot->op.hold_loads = client->call.hold_loads;
    slot->op.hold_ms = client->call.hold_ms;
}

static void plan_key(struct sim_world *world, struct wire_client *client, uint32_t i)
{
    static const uint8_t op_of[FB_PROTO_CALL_KINDS] = {
        [FB_PROTO_REMOVE] = FB_OP_REMOVE,
        [FB_PROTO_WAIT] = FB_OP_WAIT_PERSISTED,
        [FB_PROTO_DROP] = FB_OP_DROP_DRAM,
        [FB_PROTO_EXPLAIN] = FB_OP_DROP_DRAM, /* nothing to be checked of its key */
    };
    struct sim_slot *slot =
        plan_slot(world, client, i, (enum fb_op_kind)op_of[client->call.kind], draw_key(world));
    client->keys[i] = (struct fb_key_item){.key = slot->keytext,
                                           .key_bytes = slot->op.key_bytes,
                                           .result = INT32_MAX};
}

static uint32_t draw_count(struct sim_world *world, uint8_t kind)
{
    uint32_t most = world->knobs.batch_max;
    if (kind == FB_PROTO_REMOVE)
        most = (uint32_t)fb_min_u64(most, REMOVES_MAX);
    else if (kind == FB_PROTO_HOLD_RELEASE)
        most = (uint32_t)fb_min_u64(most, RELEASES_MAX);
    else if (kind == FB_PROTO_EXPLAIN || kind > FB_PROTO_DROP)
        most = 1;
    return 1 + (uint32_t)wire_below(world, most);
}

static void plan_items(struct sim_world *world, struct wire_client *client, uint32_t count)
{
    struct fb_proto_call *call = &client->call;
    client->item_count = count;
    for (uint32_t i = 0; i < count; i++) {
        if (call->kind == FB_PROTO_PUT)
            plan_put(world, client, i);
        else if (call->kind == FB_PROTO_GET)
            plan_get(world, client, i);
        else
            plan_key(world, client, i);
    }
}

void wire_plan(struct sim_world *world, struct wire_client *client)
{
    struct fb_proto_call *call = &client->call;
    memset(call, 0, sizeof(*call));
    call->kind = client->auditor ? FB_PROTO_GET : draw_kind(world);
    if (client->stale && sim_world_chance(world, STALE_PPM))
        call->kind = FB_PROTO_REFRESH;
    call->epoch = client->epoch;
    call->deadline_ns = sim_world_clock(world) + world->knobs.deadline_ns / 4 +
                        wire_below(world, world->knobs.deadline_ns);
    uint32_t count = draw_count(world, call->kind);
    if (client->auditor) {
        call->deadline_ns = sim_world_clock(world) + AUDIT_NS;
        count = (uint32_t)fb_min_u64(WIRE_ITEMS, world->knobs.keys - client->audit_key);
    }
    if (call->kind <= FB_PROTO_DROP || call->kind == FB_PROTO_EXPLAIN)
        call->count = count;
    if (call->kind == FB_PROTO_PUT && sim_world_chance(world, SCRATCH_PPM))
        call->scratch = client->scratch;
    FB_ASSERT(fb_proto_call_scratch_words(count) <= sizeof(client->scratch) / sizeof(uint32_t));
    client->item_count = 1;
    if (call->kind == FB_PROTO_EXISTS || call->kind == FB_PROTO_HOLD_RELEASE)
        plan_lookup(world, client, call->kind == FB_PROTO_HOLD_RELEASE, count);
    else if (call->kind <= FB_PROTO_DROP || call->kind == FB_PROTO_EXPLAIN)
        plan_items(world, client, count);
    else if (call->kind == FB_PROTO_BUMP)
        plan_slot(world, client, 0, FB_OP_EPOCH, 0);
    else
        plan_slot(world, client, 0, FB_OP_LIST, 0);
}
