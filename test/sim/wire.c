/*
 * wire.c - the node's side where clients speak the protocol: the server over the world's shard, its
 * sessions, and when everything is at rest.
 */
#include "test/sim/wire.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/bits.h"

struct sim_wire *sim_wire_new(void)
{
    struct sim_wire *wire = calloc(1, sizeof(*wire));
    FB_ASSERT(wire != NULL);
    return wire;
}

static void free_server(struct sim_wire *wire)
{
    free(wire->server_memory);
    wire->server_memory = NULL;
    wire->server = NULL;
}

/* After the end of a seed: nothing of it is left. */
void sim_wire_close(struct sim_world *world)
{
    struct sim_wire *wire = world->wire;
    for (uint32_t i = 0; i < wire->client_count; i++) {
        wire_job_drop(world, &wire->clients[i]);
        free(wire->clients[i].memory);
        wire->clients[i].memory = NULL;
    }
    for (uint32_t i = 0; i < WIRE_LINKS; i++)
        wire_link_free(&wire->links[i]);
    free_server(wire);
}

void sim_wire_free(struct sim_wire *wire)
{
    free(wire);
}

void sim_wire_prepare(struct sim_world *world)
{
    struct sim_wire *wire = world->wire;
    world->report->wire.seeds++;
    memset(wire->links, 0, sizeof(wire->links));
    memset(wire->releasing, 0, sizeof(wire->releasing));
    wire->auditing = wire->ending = false;
    wire->client_count = world->knobs.clients + SIM_SPACES;
    wire->free_count = WIRE_JOBS;
    for (uint32_t i = 0; i < WIRE_JOBS; i++)
        wire->free_jobs[i] = WIRE_JOBS - 1 - i;
    for (uint32_t i = 0; i < wire->client_count; i++) {
        struct wire_client *client = &wire->clients[i];
        memset(client, 0, offsetof(struct wire_client, jobs));
        client->job_count = client->item_count = 0;
        client->in_call = false;
        client->number = i;
        client->auditor = i >= world->knobs.clients;
        client->space = client->auditor ? i - world->knobs.clients : i % SIM_SPACES;
        client->link = WIRE_NONE;
        client->tick_ns = UINT64_MAX;
        client->nonce = fb_prng_next(&world->prng);
        if (!client->auditor)
            wire_client_connect_soon(world, client);
    }
}

static void entropy(void *ctx, void *out, size_t bytes)
{
    struct sim_world *world = ctx;
    fb_prng_fill(&world->prng, out, bytes);
}

void sim_wire_start(struct sim_world *world)
{
    struct sim_wire *wire = world->wire;
    struct fb_proto_server_config config = {
        .shard = world->shard,
        .pool_bytes = world->knobs.shard.pool_bytes,
        .node_id = world->knobs.shard.log.node_id,
        .boot_nonce = fb_prng_next(&world->prng),
        .heartbeat_ms = world->knobs.heartbeat_ms,
        .namespaces_max = world->knobs.shard.namespaces_max,
        .ctx = world,
        .entropy = entropy,
    };
    size_t bytes = fb_align_up(fb_proto_server_footprint(&config), FB_CACHE_LINE);
    struct fb_region region;
    wire->server_memory = aligned_alloc(FB_CACHE_LINE, bytes);
    FB_ASSERT(wire->server_memory != NULL);
    fb_region_init(&region, wire->server_memory, bytes);
    wire->server = fb_proto_server_init(&config, &region);
    wire->session_base = fb_prng_next(&world->prng) << 32;
}

/* What the server counted in this life; honest clients break no rule. */
void sim_wire_take_report(struct sim_world *world)
{
    struct sim_wire *wire = world->wire;
    struct sim_wire_report *report = &world->report->wire;
    struct fb_proto_server_stats stats;
    if (wire->server == NULL)
        return;
    fb_proto_server_stats(wire->server, &stats);
    report->releases_wanted += stats.releases_wanted;
    report->late_frames += stats.late_frames;
    report->cancels += stats.cancels;
    report->gets_queued += stats.gets_queued;
    if (stats.breaches != 0)
        sim_world_violation(world, "the node found %llu breaches of honest clients",
                            (unsigned long long)stats.breaches);
}

/* The process is gone, its memory and its sockets with it. */
void sim_wire_crash(struct sim_world *world)
{
    struct sim_wire *wire = world->wire;
    memset(wire->releasing, 0, sizeof(wire->releasing));
    for (uint32_t i = 0; i < WIRE_LINKS; i++) {
        struct wire_link *link = &wire->links[i];
        if (!link->used)
            continue;
        link->session = NULL;
        link->node_up = false;
        link->out.closed = true;
        memset(&link->doubts, 0, sizeof(link->doubts));
        free(link->memory);
        link->memory = NULL;
        if (link->client_up)
            wire_link_carry(world, link);
        else
            wire_link_free(link);
    }
    free_server(wire);
}

void wire_note_breach(struct sim_world *world, struct wire_link *link)
{
    if (fb_proto_session_is_closing(link->session))
        sim_world_violation(world, "client %u: the node ends the session: %s", link->client,
                            fb_proto_session_error(link->session));
}

void wire_settle_doubts(struct sim_world *world, struct wire_link *link)
{
    struct wire_doubts *doubts = &link->doubts;
    uint32_t number = world->wire->clients[link->client].space;
    struct sim_space *space = &world->spaces[number];
    if (!doubts->any)
        return;
    world->report->wire.settled++;
    for (uint32_t key = 0; key < SIM_KEYS; key++) {
        if (doubts->releases[key] != 0)
            world->wire->releasing[number][key] -= doubts->releases[key];
        if (doubts->epoch == space->epoch &&
            (doubts->puts[key] | doubts->commits[key] | doubts->removes[key]) != 0)
            sim_check_settle(world, number, key, doubts->puts[key], doubts->commits[key],
                             doubts->removes[key]);
    }
    space->bumps -= doubts->bumps < space->bumps ? doubts->bumps : space->bumps;
    memset(doubts, 0, sizeof(*doubts));
}

static void bury(struct sim_world *world)
{
    for (uint32_t i = 0; i < WIRE_LINKS; i++) {
        struct wire_link *link = &world->wire->links[i];
        if (!link->used || link->session == NULL || link->node_up ||
            !fb_proto_session_is_idle(link->session))
            continue;
        fb_proto_session_fini(link->session);
        link->session = NULL;
        free(link->memory);
        link->memory = NULL;
        wire_settle_doubts(world, link);
        if (!link->client_up)
            wire_link_free(link);
    }
}

bool sim_wire_pump(struct sim_world *world)
{
    struct fb_proto_server *server = world->wire->server;
    bool moved = false;
    fb_proto_server_pump(server, sim_world_clock(world));
    if (fb_proto_server_next_ns(server) <= sim_world_clock(world)) {
        fb_proto_server_tick(server, sim_world_clock(world));
        moved = true;
    }
    for (struct fb_proto_session *session; (session = fb_proto_server_next(server)) != NULL;) {
        wire_link_news(world, &world->wire->links[fb_proto_session_cookie(session)]);
        world->events++;
        moved = true;
    }
    bury(world);
    return moved;
}

void sim_wire_tick(struct sim_world *world)
{
    struct sim_wire *wire = world->wire;
    for (uint32_t i = 0; i < wire->client_count; i++) {
        struct wire_client *client = &wire->clients[i];
        if (client->tick_ns > sim_world_clock(world) || client->stopped)
            continue;
        if (client->proto != NULL)
            fb_proto_client_tick(client->proto, sim_world_clock(world));
        wire_client_settle(world, client);
    }
}

uint64_t sim_wire_next_ns(const struct sim_world *world)
{
    const struct sim_wire *wire = world->wire;
    uint64_t next = world->up ? fb_proto_server_next_ns(wire->server) : UINT64_MAX;
    for (uint32_t i = 0; i < wire->client_count; i++)
        next = fb_min_u64(next, wire->clients[i].tick_ns);
    return next;
}

void sim_wire_act(struct sim_world *world, unsigned client, unsigned slot, enum sim_act act,
                  uint32_t tick)
{
    if (act == SIM_ACT_ARRIVE)
        wire_link_arrive(world, client, slot, tick);
    else
        wire_client_act(world, client, act, tick);
}

void sim_wire_touch(struct sim_world *world, uint32_t space, uint32_t key)
{
    struct sim_wire *wire = world->wire;
    for (uint32_t i = 0; i < wire->client_count; i++) {
        struct wire_client *client = &wire->clients[i];
        if (!client->in_call || client->space != space)
            continue;
        for (uint32_t n = 0; n < client->item_count; n++) {
            struct sim_slot *slot = &client->slots[n];
            if (slot->op.kind == FB_OP_LOOKUP) {
                for (uint32_t k = 0; k < slot->op.n; k++)
                    slot->spoiled |= (slot->lookup_keys[k] == key ? 1u : 0u) << k;
            } else if (slot->key == key) {
                slot->touched = true;
                slot->held = false;
            }
        }
    }
}

/* ---- the last phase ---- */

bool sim_wire_is_quiet(struct sim_world *world)
{
    struct sim_wire *wire = world->wire;
    if (!world->up)
        return false;
    for (uint32_t i = 0; i < world->knobs.clients; i++) {
        const struct wire_client *client = &wire->clients[i];
        bool is_open = client->ready || client->failed_opens >= WIRE_OPENS_MAX;
        if (client->in_call || client->job_count != 0 || client->stopped || !is_open ||
            client->life != SIM_ALIVE)
            return false;
    }
    return true;
}

/* No session is left of those that clients came back from, and nothing is open on the others. */
bool sim_wire_is_clean(struct sim_world *world)
{
    struct sim_wire *wire = world->wire;
    bool all_ready = true;
    for (uint32_t i = 0; i < WIRE_LINKS; i++) {
        const struct wire_link *link = &wire->links[i];
        if (!link->used)
            continue;
        const struct wire_client *client = &wire->clients[link->client];
        all_ready &= client->ready;
        if (client->ready && (!link->client_up || link->session == NULL ||
                              fb_proto_session_open_ops(link->session) != 0 ||
                              fb_proto_client_open_ops(client->proto) != 0))
            return false;
    }
    struct fb_shard_stats stats;
    fb_shard_stats(world->shard, &stats);
    return !all_ready || (stats.reserved_bytes == 0 && stats.quarantine_bytes == 0 &&
                          stats.pinned_bytes == 0 && stats.open_ops == 0);
}

void sim_wire_audit(struct sim_world *world)
{
    struct sim_wire *wire = world->wire;
    wire->auditing = true;
    for (uint32_t i = world->knobs.clients; i < wire->client_count; i++)
        wire_client_connect_soon(world, &wire->clients[i]);
}

bool sim_wire_is_audited(struct sim_world *world)
{
    struct sim_wire *wire = world->wire;
    for (uint32_t i = world->knobs.clients; i < wire->client_count; i++) {
        const struct wire_client *client = &wire->clients[i];
        if (client->failed_opens < WIRE_OPENS_MAX &&
            (client->audit_key < world->knobs.keys || client->in_call))
            return false;
    }
    return true;
}

/* All processes end, proven. */
void sim_wire_end(struct sim_world *world)
{
    world->wire->ending = true;
    for (uint32_t i = 0; i < world->wire->client_count; i++)
        wire_client_die(world, &world->wire->clients[i], true);
}

bool sim_wire_is_gone(struct sim_world *world)
{
    for (uint32_t i = 0; i < WIRE_LINKS; i++)
        if (world->wire->links[i].used)
            return false;
    return true;
}
