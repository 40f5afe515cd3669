/*
 * wire_link.c - connections: two queues of bytes that arrive late, in pieces and in order; that
 * stall; and that break, as seen by one end first or by both.
 */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/bits.h"
#include "test/sim/wire.h"

#define STALL_NS_MAX (3 * FB_SEC_NS)
#define WHOLE_PPM    600000
#define RESET_PPM    500000
#define FRAME_ROOM   FB_KIB(8)
#define SLICES       16

#define TO_NODE      0
#define TO_CLIENT    1

static uint32_t number_of(const struct sim_world *world, const struct wire_link *link)
{
    return (uint32_t)(link - world->wire->links);
}

/* ---- making and freeing ---- */

struct wire_link *wire_link_open(struct sim_world *world, struct wire_client *client)
{
    struct sim_wire *wire = world->wire;
    uint32_t number = 0;
    while (number < WIRE_LINKS && wire->links[number].used)
        number++;
    if (number == WIRE_LINKS)
        return NULL;
    struct wire_link *link = &wire->links[number];
    uint32_t serial = link->serial + 1;
    memset(link, 0, sizeof(*link));
    link->used = link->node_up = link->client_up = true;
    link->serial = serial;
    link->client = client->number;
    link->incarnation = client->incarnation;
    link->life = world->crashes;
    link->in.bytes = malloc(WIRE_PIPE_BYTES);
    link->out.bytes = malloc(WIRE_PIPE_BYTES);
    size_t bytes = fb_align_up(fb_proto_session_footprint(wire->server), FB_CACHE_LINE);
    link->memory = aligned_alloc(FB_CACHE_LINE, bytes);
    FB_ASSERT(link->in.bytes != NULL && link->out.bytes != NULL && link->memory != NULL);
    struct fb_region region;
    fb_region_init(&region, link->memory, bytes);
    link->session = fb_proto_session_init(wire->server, &region,
                                          wire->session_base + ++wire->sessions, true, number);
    return link;
}

void wire_link_free(struct wire_link *link)
{
    free(link->in.bytes);
    free(link->out.bytes);
    free(link->memory);
    link->in.bytes = link->out.bytes = NULL;
    link->memory = NULL;
    link->used = false;
    link->serial++;
}

/* ---- bytes under way ---- */

/* What has arrived moves to the front, if room is short. Returns the room behind it. */
static uint32_t make_room(struct wire_pipe *pipe)
{
    if (pipe->from == pipe->end) {
        pipe->from = pipe->to = pipe->end = 0;
    } else if (pipe->from > WIRE_PIPE_BYTES / 2) {
        memmove(pipe->bytes, pipe->bytes + pipe->from, pipe->end - pipe->from);
        pipe->to -= pipe->from;
        pipe->end -= pipe->from;
        pipe->from = 0;
    }
    return (uint32_t)WIRE_PIPE_BYTES - pipe->end;
}

static void carry(struct sim_world *world, struct wire_link *link, unsigned direction)
{
    struct wire_pipe *pipe = direction == TO_NODE ? &link->in : &link->out;
    if (pipe->busy || (pipe->to == pipe->end && (!pipe->closed || pipe->told)))
        return;
    uint64_t delay_ns = 1 + wire_below(world, world->knobs.wire_ns);
    if (!world->quiet && sim_world_chance(world, world->knobs.stall_ppm)) {
        delay_ns += wire_below(world, STALL_NS_MAX);
        world->report->wire.stalls++;
    }
    pipe->busy = true;
    sim_world_later(world, delay_ns, number_of(world, link), direction, SIM_ACT_ARRIVE,
                    link->serial);
}

void wire_link_carry(struct sim_world *world, struct wire_link *link)
{
    if (link->node_up)
        carry(world, link, TO_NODE);
    if (link->client_up)
        carry(world, link, TO_CLIENT);
}

/* ---- the node's end ---- */

/* What the session has to send, as far as it is taken. */
static void send_answers(struct sim_world *world, struct wire_link *link)
{
    struct wire_pipe *pipe = &link->out;
    while (link->node_up && link->client_up) {
        struct fb_slice slices[SLICES];
        size_t count = fb_proto_session_slices(link->session, slices, SLICES);
        uint32_t window = world->knobs.window_bytes;
        uint32_t under_way = pipe->end - pipe->to;
        uint32_t room =
            (uint32_t)fb_min_u64(make_room(pipe), window - fb_min_u64(window, under_way));
        uint32_t moved = 0;
        for (size_t i = 0; i < count && moved < room; i++) {
            uint32_t step = (uint32_t)fb_min_u64(slices[i].len, room - moved);
            memcpy(pipe->bytes + pipe->end, slices[i].at, step);
            pipe->end += step;
            moved += step;
        }
        if (moved == 0)
            break;
        fb_proto_session_sent(link->session, sim_world_clock(world), moved);
    }
    wire_link_carry(world, link);
}

static void take_frames(struct sim_world *world, struct wire_link *link)
{
    struct wire_pipe *pipe = &link->in;
    while (link->node_up && pipe->from < pipe->to) {
        size_t taken = fb_proto_session_input(link->session, sim_world_clock(world),
                                              pipe->bytes + pipe->from, pipe->to - pipe->from);
        pipe->from += (uint32_t)taken;
        if (taken == 0)
            break;
    }
    if (link->node_up)
        wire_note_breach(world, link);
}

void wire_link_news(struct sim_world *world, struct wire_link *link)
{
    if (!link->node_up)
        return;
    if (!fb_proto_session_is_paused(link->session))
        take_frames(world, link);
    send_answers(world, link);
}

void wire_link_end(struct sim_world *world, struct wire_link *link, bool proven)
{
    if (link->session == NULL)
        return;
    if (link->node_up) {
        link->node_up = false;
        fb_proto_session_end(link->session, sim_world_clock(world), proven);
        /* Of what was under way some may still come. */
        struct wire_pipe *pipe = &link->out;
        pipe->end = pipe->to + (uint32_t)wire_below(world, pipe->end - pipe->to + 1);
        pipe->closed = true;
        wire_link_carry(world, link);
    } else if (proven && !link->proven) {
        world->report->wire.proven_late++;
        fb_proto_session_proven(link->session, sim_world_clock(world));
    }
    link->proven |= proven;
}

/* ---- the client's end ---- */

void wire_link_read(struct sim_world *world, struct wire_client *client)
{
    struct wire_link *link = &world->wire->links[client->link];
    struct wire_pipe *pipe = &link->out;
    while (fb_proto_client_state(client->proto) != FB_PROTO_LOST &&
           pipe->to - pipe->from >= FB_WIRE_HEADER_BYTES) {
        struct fb_wire_header header;
        const char *bad = "";
        int result = fb_wire_header_decode(pipe->bytes + pipe->from, &header, &bad);
        if (result != FB_OK) {
            sim_world_violation(world, "client %u: a header that cannot be read: %s",
                                client->number, bad);
            return;
        }
        uint32_t bytes = FB_WIRE_HEADER_BYTES + header.payload_bytes;
        if (pipe->to - pipe->from < bytes)
            break;
        fb_proto_client_input(client->proto, sim_world_clock(world), pipe->bytes + pipe->from,
                              bytes);
        wire_job_take(world, client);
        pipe->from += bytes;
    }
    if (pipe->closed && pipe->to == pipe->end)
        fb_proto_client_lost(client->proto, sim_world_clock(world), FB_CONNECTION,
                             "the node closed the connection");
}

void wire_link_write(struct sim_world *world, struct wire_client *client)
{
    struct wire_link *link = &world->wire->links[client->link];
    struct wire_pipe *pipe = &link->in;
    while (pipe->end - pipe->to < world->knobs.window_bytes && make_room(pipe) >= FRAME_ROOM) {
        struct fb_proto_frame frame;
        uint8_t *at = pipe->bytes + pipe->end;
        if (!fb_proto_client_take_frame(client->proto, sim_world_clock(world), at, FRAME_ROOM,
                                        &frame)) {
            FB_ASSERT(!frame.needs_room);
            break;
        }
        FB_ASSERT(frame.payload_bytes == 0);
        struct fb_wire_header header;
        const char *bad = "";
        int result = fb_wire_header_decode(at, &header, &bad);
        FB_ASSERT(result == FB_OK);
        if (header.type == FB_MSG_COMMIT)
            wire_call_committed(world, client, header.op);
        pipe->end += (uint32_t)frame.bytes;
    }
    if (!link->node_up)
        pipe->from = pipe->to = pipe->end = 0; /* nobody is there to take it */
    wire_link_carry(world, link);
}

void wire_link_hang_up(struct sim_world *world, struct wire_link *link)
{
    struct wire_pipe *pipe = &link->in;
    link->client_up = false;
    pipe->closed = true;
    if (sim_world_chance(world, RESET_PPM))
        pipe->end = pipe->to + (uint32_t)wire_below(world, pipe->end - pipe->to + 1);
    if (link->session == NULL)
        wire_link_free(link);
    else
        wire_link_carry(world, link);
}

/* ---- arrivals ---- */

/* It breaks here. */
static void snap(struct sim_world *world, struct wire_link *link)
{
    struct wire_client *client = &world->wire->clients[link->client];
    struct sim_wire_report *report = &world->report->wire;
    uint64_t how = wire_below(world, 3);
    sim_world_say(world, "client %u: the connection breaks (%llu)", link->client,
                  (unsigned long long)how);
    report->broken_client += how == 0;
    report->broken_node += how == 1;
    report->broken_both += how == 2;
    if (how != 0)
        wire_link_end(world, link, false);
    if (how != 1 && !client->stopped) {
        fb_proto_client_lost(client->proto, sim_world_clock(world), FB_CONNECTION,
                             "the connection broke");
        wire_client_settle(world, client);
    }
}

void wire_link_arrive(struct sim_world *world, uint32_t number, unsigned direction, uint32_t serial)
{
    struct wire_link *link = &world->wire->links[number];
    if (!link->used || link->serial != serial)
        return;
    struct wire_pipe *pipe = direction == TO_NODE ? &link->in : &link->out;
    uint32_t under_way = pipe->end - pipe->to;
    pipe->busy = false;
    if (!world->quiet && link->node_up && link->client_up &&
        sim_world_chance(world, world->knobs.break_ppm)) {
        snap(world, link);
        return;
    }
    bool whole = under_way < 2 || sim_world_chance(world, WHOLE_PPM);
    pipe->to += whole ? under_way : 1 + (uint32_t)wire_below(world, under_way - 1);
    world->report->wire.frames_cut += !whole;
    pipe->told = pipe->closed && pipe->to == pipe->end;
    if (direction == TO_NODE) {
        take_frames(world, link);
        if (pipe->closed && pipe->to == pipe->end && link->node_up)
            wire_link_end(world, link, false);
    }
    struct wire_client *client = &world->wire->clients[link->client];
    if (link->node_up)
        send_answers(world, link);
    if (link->client_up && !client->stopped && !wire_client_stops(world, client)) {
        if (direction == TO_CLIENT)
            wire_link_read(world, client);
        wire_client_settle(world, client);
    }
    if (link->used && link->serial == serial)
        wire_link_carry(world, link);
}
