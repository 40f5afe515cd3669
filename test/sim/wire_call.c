/*
 * wire_call.c - calls of clients that speak the protocol: their beginning, and what the checker is
 * told of their answers.
 *
 * An answer that leaves open what happened (the connection was lost, the deadline passed) is in
 * doubt until the node has let go of the session: see struct wire_doubts.
 */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/bits.h"
#include "test/sim/wire.h"

#define SLACK_NS      FB_MS_NS
#define LIST_STOP_PPM 5000
#define ABANDON_PPM   500000

_Static_assert(SIM_CALL_KINDS == FB_PROTO_CALL_KINDS, "a counter for each kind");

/* ---- the beginning ---- */

/* A key that LIST names: one of this namespace. */
static int listed(void *context, const void *key, size_t key_bytes)
{
    struct sim_world *world = context;
    uint8_t text[FB_KEY_BYTES_MAX];
    char head[32] = "";
    unsigned space = SIM_SPACES, number = SIM_KEYS;
    memcpy(head, key, fb_min_u64(key_bytes, sizeof(head) - 1));
    if (sscanf(head, "space-%u/key-%u", &space, &number) != 2 || space >= SIM_SPACES ||
        number >= world->knobs.keys || sim_client_key(space, number, text) != key_bytes ||
        memcmp(text, key, key_bytes) != 0)
        sim_world_violation(world, "a listing names a key that nobody put: %s", head);
    bool stops = sim_world_chance(world, LIST_STOP_PPM);
    world->report->wire.lists_stopped += stops;
    return stops;
}

static void point_at_items(struct sim_world *world, struct wire_client *client)
{
    struct fb_proto_call *call = &client->call;
    if (call->kind == FB_PROTO_PUT)
        call->items.put = client->puts;
    else if (call->kind == FB_PROTO_GET)
        call->items.get = client->gets;
    else if (call->kind == FB_PROTO_EXISTS)
        call->items.exists = client->exists;
    else
        call->items.key = client->keys;
    call->explanation = &client->explanation;
    call->each = listed;
    call->each_context = world;
    call->text = client->text;
    call->text_bytes = sizeof(client->text);
}

static void begin_slot(struct sim_world *world, struct wire_client *client, uint32_t i)
{
    struct sim_slot *slot = &client->slots[i];
    slot->state = SIM_WAITING;
    slot->crash = (uint32_t)world->crashes;
    if (slot->op.kind == FB_OP_LOOKUP)
        return;
    if (slot->op.kind == FB_OP_HOLD_RELEASE) {
        for (uint32_t k = 0; k < slot->op.n; k++) {
            world->wire->releasing[slot->space][slot->lookup_keys[k]]++;
            sim_check_release(world, slot->space, slot->lookup_keys[k]);
            sim_wire_touch(world, slot->space, slot->lookup_keys[k]);
        }
        return;
    }
    sim_check_start(world, slot);
    slot->touched |= slot->op.kind == FB_OP_PUT && slot->removes_at_start != 0;
    (void)client;
}

void wire_call_begin(struct sim_world *world, struct wire_client *client)
{
    struct fb_proto_call *call = &client->call;
    const struct wire_link *link = &world->wire->links[client->link];
    wire_plan(world, client);
    point_at_items(world, client);
    client->in_call = true;
    client->call_link = client->link;
    client->call_serial = link->serial;
    client->jump_ns = world->jump_ns;
    client->busy_ns = 0;
    for (uint32_t i = 0; i < client->item_count; i++)
        begin_slot(world, client, i);
    sim_world_spend(world, client->item_count);
    world->report->operations += client->item_count;
    world->report->wire.calls[call->kind]++;
    world->report->wire.items[call->kind] += client->item_count;
    sim_world_say(world, "client %u: call %u of %zu, epoch %llu", client->number, call->kind,
                  call->count, (unsigned long long)call->epoch);
    fb_proto_client_begin(client->proto, sim_world_clock(world), call);
}

void wire_call_committed(struct sim_world *world, struct wire_client *client, uint64_t op)
{
    for (uint32_t i = 0; client->in_call && i < client->item_count; i++) {
        struct sim_slot *slot = &client->slots[i];
        if (slot->op.kind != FB_OP_PUT || slot->wire_op != op || slot->state != SIM_WRITING)
            continue;
        slot->state = SIM_COMMITTED;
        world->report->wire.commits++;
        sim_check_commit(world, slot);
        return;
    }
    sim_world_violation(world, "client %u commits what it has no call for", client->number);
}

/* ---- doubts ---- */

/* What the checker must go on reckoning with, on account of one item. */
static void doubt(struct sim_world *world, struct wire_client *client, struct sim_slot *slot,
                  uint32_t puts, uint32_t commits, uint32_t removes)
{
    struct wire_link *link = &world->wire->links[client->call_link];
    struct sim_space *space = &world->spaces[slot->space];
    if (slot->crash != (uint32_t)world->crashes || slot->epoch != space->epoch)
        return;
    if (!link->used || link->serial != client->call_serial || link->session == NULL) {
        sim_check_settle(world, slot->space, slot->key, puts, commits, removes);
        return;
    }
    struct wire_doubts *doubts = &link->doubts;
    if (doubts->epoch != slot->epoch) {
        memset(doubts->puts, 0, sizeof(doubts->puts));
        memset(doubts->commits, 0, sizeof(doubts->commits));
        memset(doubts->removes, 0, sizeof(doubts->removes));
        doubts->epoch = slot->epoch;
    }
    doubts->any = true;
    doubts->puts[slot->key] += (uint16_t)puts;
    doubts->commits[slot->key] += (uint16_t)commits;
    doubts->removes[slot->key] += (uint16_t)removes;
    world->report->wire.doubts++;
}

static struct wire_link *live_link(struct sim_world *world, const struct wire_client *client)
{
    struct wire_link *link = &world->wire->links[client->call_link];
    bool lives = link->used && link->serial == client->call_serial && link->session != NULL;
    return lives ? link : NULL;
}

static bool is_open_end(int result)
{
    return result == FB_CONNECTION || result == FB_DEADLINE;
}

static void doubt_release(struct sim_world *world, struct wire_client *client,
                          const struct sim_slot *slot, int result)
{
    struct wire_link *link = live_link(world, client);
    if (slot->crash != (uint32_t)world->crashes)
        return;
    for (uint32_t k = 0; k < slot->op.n; k++) {
        uint32_t key = slot->lookup_keys[k];
        if (is_open_end(result) && link != NULL) {
            link->doubts.releases[key]++;
            link->doubts.any = true;
        } else {
            world->wire->releasing[slot->space][key]--;
        }
    }
}

static void doubt_bump(struct sim_world *world, struct wire_client *client,
                       const struct sim_slot *slot, int result)
{
    struct wire_link *link = live_link(world, client);
    struct sim_space *space = &world->spaces[slot->space];
    if (slot->crash != (uint32_t)world->crashes)
        return;
    if (result != FB_OK && result != FB_STALE_EPOCH && link != NULL) {
        link->doubts.bumps++;
        link->doubts.any = true;
    } else {
        space->bumps -= space->bumps != 0;
    }
}

static void doubt_slot(struct sim_world *world, struct wire_client *client, struct sim_slot *slot,
                       int result)
{
    bool committed = slot->op.kind == FB_OP_PUT && world->versions[slot->version].committed;
    if (slot->op.kind == FB_OP_PUT && result < 0)
        doubt(world, client, slot, 1, committed, 0);
    else if (slot->op.kind == FB_OP_REMOVE && is_open_end(result))
        doubt(world, client, slot, 0, 0, 1);
    else if (slot->op.kind == FB_OP_HOLD_RELEASE)
        doubt_release(world, client, slot, result);
    else if (slot->op.kind == FB_OP_EPOCH)
        doubt_bump(world, client, slot, result);
}

void wire_call_forget(struct sim_world *world, struct wire_client *client)
{
    client->in_call = false;
    for (uint32_t i = 0; i < client->item_count; i++) {
        doubt_slot(world, client, &client->slots[i], FB_CONNECTION);
        client->slots[i].state = SIM_FREE;
    }
}

/* ---- answers ---- */

/* The closed lists of forebay.h; what only a broken peer can cause is in none of them. */
static bool fits(uint8_t kind, int result)
{
    if (result == FB_OK || result == FB_CONNECTION || result == FB_DEADLINE ||
        result == FB_SHUTTING_DOWN)
        return true;
    if (result == FB_STALE_EPOCH)
        return kind != FB_PROTO_STATUS && kind != FB_PROTO_REFRESH;
    switch (kind) {
    case FB_PROTO_PUT:
        return result == FB_EXISTS || result == FB_BUSY || result == FB_QUOTA ||
               result == FB_TOO_BIG || result == FB_IO || result == FB_NOT_PERSISTED ||
               result == FB_REMOVED || result == FB_BAD_CHECKSUM || result == FB_GRANT_EXPIRED;
    case FB_PROTO_GET:
        return result == FB_MISS || result == FB_BUFFER_TOO_SMALL || result == FB_IO;
    case FB_PROTO_EXISTS:
        return result == FB_MISS || result == FB_NOT_HELD;
    case FB_PROTO_REMOVE:
        return result == FB_MISS || result == FB_IO;
    case FB_PROTO_DROP:
        if (result == FB_BUSY)
            return true;
        __attribute__((fallthrough));
    case FB_PROTO_WAIT:
        return result == FB_MISS || result == FB_IO || result == FB_NOT_PERSISTED;
    case FB_PROTO_BUMP:
    case FB_PROTO_REFRESH:
        return result == FB_IO;
    default:
        return false;
    }
}

static void count_result(struct sim_world *world, struct wire_client *client, int result)
{
    uint8_t kind = client->call.kind;
    int index = result == INT32_MAX ? -1 : fb_result_index(result);
    if (index < 0 || !fits(kind, result))
        sim_world_violation(world, "client %u: a call of kind %u ends as %s (%d)", client->number,
                            kind, fb_result_name(result), result);
    else
        world->report->wire.results[kind][index]++;
    if (result == FB_STALE_EPOCH)
        client->stale = true;
}

static void put_result(struct sim_world *world, struct wire_client *client, uint32_t i)
{
    const struct fb_put_item *item = &client->puts[i];
    struct sim_slot *slot = &client->slots[i];
    const struct sim_version *version = &world->versions[slot->version];
    slot->op.generation = item->generation;
    slot->op.persisted = item->persisted;
    if (item->result == FB_OK && version->granted && item->generation != version->generation)
        sim_world_violation(world, "version %u: granted as %llx, stored as %llx", slot->version,
                            (unsigned long long)version->generation,
                            (unsigned long long)item->generation);
    bool refused =
        item->result == FB_EXISTS || item->result == FB_BUSY || item->result == FB_TOO_BIG;
    if (refused && version->committed)
        sim_world_violation(world, "version %u ends as %s after its commit", slot->version,
                            fb_result_name(item->result));
    if (!slot->twin)
        return;
    int first = client->puts[client->twin[i]].result;
    if (item->result != (first >= 0 ? FB_EXISTS : first))
        sim_world_violation(world, "version %u: %s, its twin %s", slot->version,
                            fb_result_name(item->result), fb_result_name(first));
}

static void get_result(struct sim_world *world, struct wire_client *client, uint32_t i)
{
    const struct fb_get_item *item = &client->gets[i];
    struct sim_slot *slot = &client->slots[i];
    slot->op.generation = item->generation;
    slot->op.value_bytes = item->value_bytes;
    slot->op.tiers = item->tiers;
    if (item->result != FB_OK && item->result != FB_BUFFER_TOO_SMALL)
        return;
    uint64_t room = item->buf_count == 0 ? 0 : item->bufs[0].len;
    uint64_t left = fb_sub_floored(item->value_bytes, item->range_off);
    uint64_t want = item->range_bytes == 0 ? left : fb_min_u64(left, item->range_bytes);
    if ((item->result == FB_OK) != (want <= room) || (item->result == FB_OK && item->bytes != want))
        sim_world_violation(world, "key %u/%u: %s: %llu of %llu bytes in a buffer of %llu",
                            slot->space, slot->key, fb_result_name(item->result),
                            (unsigned long long)item->bytes, (unsigned long long)want,
                            (unsigned long long)room);
}

/* Takes one item's answer over into what the checker knows. Returns its result. */
static int take_result(struct sim_world *world, struct wire_client *client, uint32_t i)
{
    const struct fb_proto_call *call = &client->call;
    struct sim_slot *slot = &client->slots[i];
    if (call->kind == FB_PROTO_PUT) {
        put_result(world, client, i);
        slot->op.reason = client->puts[i].reason;
        return client->puts[i].result;
    }
    if (call->kind == FB_PROTO_GET) {
        get_result(world, client, i);
        slot->op.reason = client->gets[i].reason;
        return client->gets[i].result;
    }
    if (call->kind <= FB_PROTO_DROP) {
        slot->op.reason = client->keys[i].reason;
        slot->op.generation = client->keys[i].generation;
        return client->keys[i].result;
    }
    return call->result;
}

/* A lookup's answers are one record for the checker. */
static int take_found(struct sim_world *world, struct wire_client *client)
{
    struct sim_slot *slot = &client->slots[0];
    bool release = client->call.kind == FB_PROTO_HOLD_RELEASE;
    int result = FB_OK;
    for (uint32_t i = 0; i < slot->op.n; i++) {
        int one = release ? client->keys[i].result : client->exists[i].result;
        count_result(world, client, one);
        slot->found[i] = release ? 0 : client->exists[i].found;
        if (one != FB_OK && one != FB_MISS && one != FB_NOT_HELD)
            result = one;
        if (!release && one == FB_OK && (slot->found[i] & FB_FOUND_READABLE) == 0)
            sim_world_violation(world, "a lookup ends as OK with found %x", slot->found[i]);
    }
    return result;
}

static void check_time(struct sim_world *world, const struct wire_client *client)
{
    uint64_t from_ns = fb_max_u64(client->call.deadline_ns, client->busy_ns);
    uint64_t limit_ns = from_ns + FB_PROTO_ABORT_NS + SLACK_NS + (world->jump_ns - client->jump_ns);
    if (sim_world_clock(world) > limit_ns)
        sim_world_violation(world, "client %u: a call of kind %u ends %llu ms after its deadline",
                            client->number, client->call.kind,
                            (unsigned long long)((sim_world_clock(world) -
                                                  client->call.deadline_ns) /
                                                 FB_MS_NS));
}

static void take_epoch(struct sim_world *world, struct wire_client *client)
{
    const struct fb_proto_call *call = &client->call;
    const struct sim_slot *slot = &client->slots[0];
    if (call->result != FB_OK || (call->kind != FB_PROTO_BUMP && call->kind != FB_PROTO_REFRESH))
        return;
    if (call->kind == FB_PROTO_BUMP && call->epoch_now <= call->epoch)
        sim_world_violation(world, "a bump of epoch %llu was acknowledged as %llu",
                            (unsigned long long)call->epoch, (unsigned long long)call->epoch_now);
    client->epoch = call->epoch_now;
    client->stale = false;
    bool same_node = slot->crash == (uint32_t)world->crashes;
    if (same_node || world->knobs.shard.devices != 0)
        sim_check_epoch(world, client->space, call->epoch_now, false);
}

static void finish_slot(struct sim_world *world, struct wire_client *client, uint32_t i)
{
    struct sim_slot *slot = &client->slots[i];
    uint8_t kind = client->call.kind;
    bool lookup = kind == FB_PROTO_EXISTS || kind == FB_PROTO_HOLD_RELEASE;
    slot->op.result = lookup ? take_found(world, client) : take_result(world, client, i);
    if (!lookup)
        count_result(world, client, slot->op.result);
    sim_world_say(world, "client %u: op %u key %u/%u version %u ends %s, %s, generation %llx%s",
                  client->number, slot->op.kind, slot->space, slot->key, slot->version,
                  fb_result_name(slot->op.result), fb_reason_name(slot->op.reason),
                  (unsigned long long)slot->op.generation, slot->op.persisted ? ", persisted" : "");
    world->report->reasons[slot->op.reason]++;
    bool same_life = slot->crash == (uint32_t)world->crashes;
    /* Without a device nothing of the node before is left, generations begin anew. */
    bool counts = kind != FB_PROTO_EXPLAIN && (same_life || world->knobs.shard.devices != 0);
    if (slot->twin && slot->op.result >= 0)
        sim_check_settle(world, slot->space, slot->key,
                         same_life && slot->epoch == world->spaces[slot->space].epoch, 0, 0);
    else if (!slot->twin && counts && !(lookup && !same_life))
        sim_check_result(world, slot);
    doubt_slot(world, client, slot, slot->op.result);
    slot->state = SIM_FREE;
}

void wire_call_finish(struct sim_world *world, struct wire_client *client)
{
    struct fb_proto_call *call = &client->call;
    check_time(world, client);
    for (uint32_t i = 0; i < client->item_count; i++)
        finish_slot(world, client, i);
    client->in_call = false;
    take_epoch(world, client);
    if (!call->is_abandoned)
        return;
    world->report->wire.abandoned++;
    if (fb_proto_client_state(client->proto) == FB_PROTO_READY &&
        fb_proto_client_open_ops(client->proto) > 0 && sim_world_chance(world, ABANDON_PPM))
        fb_proto_client_lost(client->proto, sim_world_clock(world), FB_CONNECTION,
                             "the node did not answer in time");
}
