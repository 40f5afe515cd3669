/*
 * wire_client.c - the life of a client that speaks the protocol: it connects, asks, is stopped for
 * a while without knowing, loses its connection and comes back, dies (proven, or first suspected)
 * and is followed by another process.
 */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/bits.h"
#include "test/sim/wire.h"

#define LATE_NS_MAX     (12 * FB_SEC_NS)
#define SUSPECT_NS_MAX  (3 * FB_SEC_NS)
#define REBIRTH_NS_MAX  (500 * FB_MS_NS)
#define CONNECT_NS_MAX  (50 * FB_MS_NS)
#define PATIENCE_MAX    20
#define OPEN_NS_MIN     (2 * FB_SEC_NS)
#define OPEN_NS_MAX     (20 * FB_SEC_NS)
#define QUIET_OPEN_NS   (60 * FB_SEC_NS)
#define WORK_DEATH_PART 8 /* death in the middle of a copy, as a part of that between calls */
#define LATE_PART       8 /* there are more turns than a client that drives the shard has */
#define STOP_PART       4
#define CLOSE_PPM       8000
#define DOUBT_FACTOR    8
#define FIRST_WORK_PPM  700000
#define LEAVES_MAX      256

static void later(struct sim_world *world, struct wire_client *client, uint64_t delay_ns,
                  enum sim_act act)
{
    sim_world_later(world, delay_ns, client->number, 0, act, client->serial);
}

/* ---- connecting ---- */

void wire_client_connect_soon(struct sim_world *world, struct wire_client *client)
{
    if (client->connecting || (client->auditor && !world->wire->auditing))
        return;
    client->connecting = true;
    /* The more often it failed the longer it waits. */
    uint64_t most_ns = CONNECT_NS_MAX * (1 + fb_min_u64(client->failed_opens, PATIENCE_MAX));
    later(world, client, 1 + wire_below(world, most_ns), SIM_ACT_CONNECT);
}

/* The two namespaces of the simulation, as the wire wants them. */
static uint32_t fields_of(uint32_t space, const uint8_t **fields)
{
    static uint8_t canonical[SIM_SPACES][FB_NAMESPACE_BYTES_MAX];
    const char *const models[SIM_SPACES] = {"model-0", "model-1"};
    const char *why;
    struct fb_namespace_fields names = {.model = models[space]};
    int bytes = fb_proto_namespace_fields(&names, canonical[space], &why);
    FB_ASSERT(bytes > 0);
    *fields = canonical[space];
    return (uint32_t)bytes;
}

static void make_machine(struct sim_world *world, struct wire_client *client)
{
    struct fb_proto_config config = {
        .features = FB_FEATURE_SHM | FB_FEATURE_HOLDS,
        .nonce = client->nonce,
        .ended_session = client->owed_session,
        .pid = client->number + 1,
        .name = "sim",
        .ops_max = world->knobs.ops_max,
        .leaves_max = LEAVES_MAX,
        .commit_delay_ns = world->knobs.commit_delay_ns,
        .quota_dram_bytes = world->knobs.quota_dram_bytes,
        .quota_ssd_bytes = world->knobs.quota_ssd_bytes,
    };
    config.fields_bytes = fields_of(client->space, &config.fields);
    size_t bytes = fb_align_up(fb_proto_client_footprint(&config), FB_CACHE_LINE);
    free(client->memory);
    client->memory = aligned_alloc(FB_CACHE_LINE, bytes);
    FB_ASSERT(client->memory != NULL);
    struct fb_region region;
    fb_region_init(&region, client->memory, bytes);
    client->proto = fb_proto_client_init(&config, &region);
    client->open_by_ns =
        sim_world_clock(world) +
        (world->quiet ? QUIET_OPEN_NS : fb_prng_between(&world->prng, OPEN_NS_MIN, OPEN_NS_MAX));
    fb_proto_client_start(client->proto, sim_world_clock(world), client->open_by_ns);
}

static void connect(struct sim_world *world, struct wire_client *client)
{
    client->connecting = false;
    if (client->life != SIM_ALIVE || client->link != WIRE_NONE || client->stopped)
        return;
    struct wire_link *link = world->up ? wire_link_open(world, client) : NULL;
    if (link == NULL) {
        world->report->wire.refused++;
        wire_client_connect_soon(world, client);
        return;
    }
    FB_ASSERT(!client->in_call && client->job_count == 0);
    world->report->wire.connects++;
    world->report->wire.named_ended += client->owed_session != 0;
    client->link = (uint32_t)(link - world->wire->links);
    make_machine(world, client);
    wire_client_settle(world, client);
}

static void on_ready(struct sim_world *world, struct wire_client *client)
{
    const struct wire_link *link = &world->wire->links[client->link];
    client->ready = true;
    client->owed_session = 0;
    client->failed_opens = 0;
    client->epoch = fb_proto_client_epoch(client->proto);
    client->stale = false;
    world->report->wire.opened++;
    sim_world_say(world, "client %u: open, epoch %llu", client->number,
                  (unsigned long long)client->epoch);
    if (link->life == world->crashes)
        sim_check_epoch(world, client->space, client->epoch, !world->spaces[client->space].open);
}

/* ---- the end of a connection ---- */

static void on_lost(struct sim_world *world, struct wire_client *client)
{
    struct sim_wire_report *report = &world->report->wire;
    int result = fb_proto_client_result(client->proto);
    const char *why = fb_proto_client_why(client->proto);
    sim_world_say(world, "client %u: connection lost: %s, %s", client->number,
                  fb_result_name(result), why);
    if (result == FB_PROTOCOL || result == FB_UNSUPPORTED || result == FB_INTERNAL ||
        result == FB_DENIED || result == FB_BAD_ARGUMENT)
        sim_world_violation(world, "client %u: an honest node is refused: %s, %s", client->number,
                            fb_result_name(result), why);
    report->lost_in_call += client->in_call;
    report->silent += strcmp(why, "the node does not answer") == 0;
    if (!client->ready) {
        report->open_failed++;
        client->failed_opens++;
        sim_world_spend(world, 1);
    }
    if (fb_proto_client_owes_memory(client->proto))
        client->owed_session = fb_proto_client_welcome(client->proto)->session;
    wire_link_hang_up(world, &world->wire->links[client->link]);
    client->link = WIRE_NONE;
    client->ready = false;
}

/* What comes next of what it wants by itself. */
static void go_on(struct sim_world *world, struct wire_client *client)
{
    if (client->job_count != 0) {
        uint64_t pause_ns =
            world->quiet || !sim_world_chance(world, world->knobs.late_ppm / LATE_PART)
                ? world->knobs.copy_ns
                : LATE_NS_MAX;
        if (!client->working)
            later(world, client, 1 + wire_below(world, pause_ns), SIM_ACT_WORK);
        client->working = true;
        return;
    }
    if (client->in_call || client->life != SIM_ALIVE)
        return;
    if (client->link == WIRE_NONE) {
        wire_client_connect_soon(world, client);
    } else if (client->ready && !client->thinking) {
        client->thinking = true;
        later(world, client, 1 + wire_below(world, world->knobs.think_ns), SIM_ACT_CALL);
    }
}

/* After anything that happened to it: frames go out, results are taken, timers are set. */
void wire_client_settle(struct sim_world *world, struct wire_client *client)
{
    struct fb_proto_client *proto = client->proto;
    client->tick_ns = UINT64_MAX;
    if (client->stopped || proto == NULL)
        return;
    if (client->link != WIRE_NONE && fb_proto_client_state(proto) < FB_PROTO_READY &&
        sim_world_clock(world) >= client->open_by_ns)
        fb_proto_client_lost(proto, sim_world_clock(world), FB_DEADLINE,
                             "the node does not open in time");
    if (client->link != WIRE_NONE && fb_proto_client_state(proto) != FB_PROTO_LOST)
        wire_link_write(world, client);
    if (client->in_call && fb_proto_call_is_over(&client->call))
        wire_call_finish(world, client);
    if (client->link != WIRE_NONE && fb_proto_client_state(proto) == FB_PROTO_LOST)
        on_lost(world, client);
    if (!client->ready && fb_proto_client_state(proto) == FB_PROTO_READY)
        on_ready(world, client);
    go_on(world, client);
    client->tick_ns = fb_proto_client_next_ns(proto);
    if (fb_proto_client_state(proto) < FB_PROTO_READY)
        client->tick_ns = fb_min_u64(client->tick_ns, client->open_by_ns);
}

/* ---- stops and death ---- */

bool wire_client_stops(struct sim_world *world, struct wire_client *client)
{
    if (world->quiet || client->auditor || client->life == SIM_DEAD ||
        !sim_world_chance(world, world->knobs.stop_ppm / STOP_PART))
        return false;
    client->stopped = true;
    client->tick_ns = UINT64_MAX;
    world->report->wire.stops++;
    later(world, client, wire_below(world, LATE_NS_MAX), SIM_ACT_RESUME);
    return true;
}

/* It runs again, and first goes on with what it was doing, in ignorance of what happened. */
static void resume(struct sim_world *world, struct wire_client *client)
{
    client->stopped = false;
    client->busy_ns = sim_world_clock(world);
    while (client->job_count != 0 && sim_world_chance(world, FIRST_WORK_PPM))
        wire_job_work(world, client);
    bool tick_first = sim_world_chance(world, 500000);
    if (tick_first && client->proto != NULL)
        fb_proto_client_tick(client->proto, sim_world_clock(world));
    if (client->link != WIRE_NONE)
        wire_link_read(world, client);
    if (client->proto != NULL)
        fb_proto_client_tick(client->proto, sim_world_clock(world));
    wire_client_settle(world, client);
}

/* The node learns that the process is dead: all its sessions are proven. */
static void prove(struct sim_world *world, struct wire_client *client)
{
    for (uint32_t i = 0; i < WIRE_LINKS; i++) {
        struct wire_link *link = &world->wire->links[i];
        if (!link->used || link->client != client->number ||
            link->incarnation != client->incarnation)
            continue;
        link->client_up = false;
        if (sim_world_chance(world, 500000))
            wire_link_end(world, link, false);
        wire_link_end(world, link, true);
        if (link->session == NULL)
            wire_link_free(link);
    }
}

void wire_client_die(struct sim_world *world, struct wire_client *client, bool proven)
{
    if (client->life == SIM_DEAD)
        return;
    sim_world_say(world, "client %u dies, %s", client->number, proven ? "proven" : "suspected");
    if (!proven) {
        client->life = SIM_SUSPECT;
        world->report->wire.suspects++;
        if (client->proto != NULL)
            fb_proto_client_lost(client->proto, sim_world_clock(world), FB_CONNECTION, "dying");
        wire_client_settle(world, client);
        later(world, client, wire_below(world, SUSPECT_NS_MAX), SIM_ACT_BURY);
        return;
    }
    client->life = SIM_DEAD;
    world->report->wire.deaths++;
    wire_job_drop(world, client);
    if (client->in_call)
        wire_call_forget(world, client);
    free(client->memory);
    client->memory = NULL;
    client->proto = NULL;
    client->link = WIRE_NONE;
    client->ready = client->stopped = client->working = false;
    client->thinking = client->connecting = false;
    client->tick_ns = UINT64_MAX;
    client->serial++;
    prove(world, client);
    if (!world->wire->ending)
        later(world, client, wire_below(world, REBIRTH_NS_MAX), SIM_ACT_REBIRTH);
}

static void rebirth(struct sim_world *world, struct wire_client *client)
{
    client->life = SIM_ALIVE;
    client->incarnation++;
    client->nonce = fb_prng_next(&world->prng);
    client->owed_session = 0;
    client->failed_opens = 0;
    wire_client_connect_soon(world, client);
}

static bool dies(struct sim_world *world, struct wire_client *client, uint32_t part)
{
    if (world->quiet || client->auditor || client->life != SIM_ALIVE ||
        !sim_world_chance(world, world->knobs.death_ppm / part))
        return false;
    wire_client_die(world, client, sim_world_chance(world, 500000));
    return true;
}

/* ---- what is due ---- */

static void work(struct sim_world *world, struct wire_client *client)
{
    client->working = false;
    if (client->stopped || wire_client_stops(world, client) || dies(world, client, WORK_DEATH_PART))
        return;
    wire_job_work(world, client);
    wire_client_settle(world, client);
}

/* It closes its connection now and then, sooner if something is in doubt. */
static bool closes(struct sim_world *world, struct wire_client *client)
{
    bool in_doubt = world->wire->links[client->link].doubts.any;
    if (world->quiet || !sim_world_chance(world, in_doubt ? CLOSE_PPM * DOUBT_FACTOR : CLOSE_PPM))
        return false;
    world->report->wire.hung_up++;
    fb_proto_client_lost(client->proto, sim_world_clock(world), FB_CONNECTION, "closed here");
    wire_client_settle(world, client);
    return true;
}

static void call(struct sim_world *world, struct wire_client *client)
{
    client->thinking = false;
    if (client->stopped || !client->ready || client->in_call || client->life != SIM_ALIVE ||
        fb_proto_client_state(client->proto) != FB_PROTO_READY)
        return;
    bool is_over = client->auditor ? client->audit_key >= world->knobs.keys
                                   : world->quiet || world->operations_left == 0;
    if (is_over || wire_client_stops(world, client) || dies(world, client, 1) ||
        closes(world, client))
        return;
    wire_call_begin(world, client);
    wire_client_settle(world, client);
}

void wire_client_act(struct sim_world *world, uint32_t number, enum sim_act act, uint32_t serial)
{
    struct wire_client *client = &world->wire->clients[number];
    if (client->serial != serial)
        return;
    switch (act) {
    case SIM_ACT_CONNECT:
        connect(world, client);
        break;
    case SIM_ACT_CALL:
        call(world, client);
        break;
    case SIM_ACT_WORK:
        work(world, client);
        break;
    case SIM_ACT_RESUME:
        resume(world, client);
        break;
    case SIM_ACT_BURY:
        wire_client_die(world, client, true);
        break;
    case SIM_ACT_REBIRTH:
        rebirth(world, client);
        break;
    default:
        break;
    }
}
