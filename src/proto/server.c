/*
 * The server around the sessions: memory, the events of the shard, time, and who has news.
 */
#include "proto/server.h"

#include <string.h>

#include "base/assert.h"
#include "base/bits.h"
#include "proto/server_private.h"

_Static_assert((int)FB_WIRE_PUT_UPSERT == FB_PUT_UPSERT, "flags go through as they are");
_Static_assert((int)FB_WIRE_GET_VERIFY == FB_GET_VERIFY, "flags go through as they are");
_Static_assert((int)FB_WIRE_GET_HELD == FB_GET_HELD, "flags go through as they are");
_Static_assert((int)FB_WIRE_GET_NO_PROMOTE == FB_GET_NO_PROMOTE, "flags go through as they are");
_Static_assert((int)FB_WIRE_FOUND_READABLE == FB_FOUND_READABLE, "bits go through as they are");
_Static_assert((int)FB_WIRE_FOUND_HELD == FB_FOUND_HELD, "bits go through as they are");
_Static_assert(FB_WIRE_PERSIST_MODES == FB_PERSIST_THROUGH + 1, "modes go through as they are");
_Static_assert(FB_WIRE_CHUNK_SLOTS == FB_GET_WINDOW, "a chunk's number goes through as it is");
_Static_assert(FB_PROTO_SLOTS > FB_PROTO_OP_CREDIT,
               "an operation that the shard keeps takes no credit");
_Static_assert(FB_PROTO_SLOTS < FB_SLOT_NONE, "slots are numbered by 16 bits");
_Static_assert(FB_LEAF_BYTES % FB_PROTO_DATA_STEP_BYTES == 0, "no step spans two leaves");
_Static_assert(FB_PROTO_DATA_STEP_BYTES <= FB_WIRE_DATA_MAX, "a step is one frame");

/* Takes the server's memory from a region, or counts it. */
static struct fb_proto_server *carve(const struct fb_proto_server_config *config,
                                     struct fb_region *region)
{
    struct fb_proto_server *server = FB_REGION_NEW(region, struct fb_proto_server, 1);
    struct fb_proto_namespace *namespaces =
        FB_REGION_NEW(region, struct fb_proto_namespace, config->namespaces_max);
    uint64_t *roots =
        fb_region_take_array(region, FB_PROTO_PARTS_MAX, sizeof(*roots), sizeof(*roots));
    struct fb_io_vec *runs =
        fb_region_take_array(region, FB_IO_VEC_MAX, sizeof(*runs), _Alignof(struct fb_io_vec));
    struct fb_proto_list *lists = fb_region_take_array(region, FB_PROTO_LISTS, sizeof(*lists),
                                                       _Alignof(struct fb_proto_list));
    if (fb_region_is_counting(region))
        return NULL;
    for (unsigned i = 0; i < FB_PROTO_LISTS; i++)
        lists[i].used = false;
    server->namespaces = namespaces;
    server->roots = roots;
    server->runs = runs;
    server->lists = lists;
    return server;
}

size_t fb_proto_server_footprint(const struct fb_proto_server_config *config)
{
    struct fb_region region;
    fb_region_init_counting(&region);
    carve(config, &region);
    return region.used_bytes;
}

struct fb_proto_server *fb_proto_server_init(const struct fb_proto_server_config *config,
                                             struct fb_region *region)
{
    FB_ASSERT(config->shard != NULL && config->entropy != NULL);
    FB_ASSERT(config->namespaces_max > 0 && config->namespaces_max <= FB_SESSION_NAMESPACES_MAX);
    struct fb_proto_server *server = carve(config, region);
    server->config = *config;
    server->chunk_bytes = fb_shard_chunk_bytes(config->shard);
    FB_ASSERT(server->chunk_bytes >= FB_PROTO_CHUNK_BYTES_MIN &&
              server->chunk_bytes <= FB_CHUNK_BYTES_MAX);
    fb_list_init(&server->sessions);
    fb_list_init(&server->dirty);
    server->gets_next_ns = UINT64_MAX;
    server->window_max_bytes = config->pool_bytes / FB_PROTO_WINDOW_SHARE;
    return server;
}

/* What an event means. The shard's CLOSED is the last thing it says of an operation. */
static void on_event(struct fb_slot *slot, uint64_t now_ns, unsigned events)
{
    struct fb_proto_session *session = slot->session;
    FB_ASSERT((slot->flags & FB_SLOT_STARTED) != 0);
    if ((events & FB_EV_DONE) != 0)
        slot->flags |= FB_SLOT_DONE;
    if ((events & FB_EV_CLOSED) != 0)
        slot->flags &= (uint16_t)~FB_SLOT_STARTED;
    if (session->state != FB_SESSION_ENDED) {
        if (slot->type == FB_MSG_PUT)
            fb_session_put_event(slot, now_ns, events);
        else if (slot->type == FB_MSG_GET)
            fb_session_get_event(slot, now_ns, events);
        else if ((events & FB_EV_DONE) != 0)
            fb_session_misc_done(slot);
    }
    fb_session_settle(slot);
    if (session->state != FB_SESSION_ENDED)
        fb_session_compose(session, now_ns);
}

void fb_server_drain(struct fb_proto_server *server, uint64_t now_ns)
{
    struct fb_op *op;
    unsigned events;
    while ((op = fb_shard_take_event(server->config.shard, &events)) != NULL)
        on_event((struct fb_slot *)(uintptr_t)op->cookie, now_ns, events);
}

void fb_proto_server_pump(struct fb_proto_server *server, uint64_t now_ns)
{
    FB_ASSERT(server->inline_slot == NULL);
    fb_server_drain(server, now_ns);
}

void fb_proto_server_tick(struct fb_proto_server *server, uint64_t now_ns)
{
    if (now_ns < server->gets_next_ns)
        return;
    server->gets_next_ns = UINT64_MAX;
    FB_LIST_FOREACH (link, &server->sessions) {
        struct fb_proto_session *session = FB_LIST_ITEM(link, struct fb_proto_session, all);
        if (session->state != FB_SESSION_ENDED)
            fb_session_start_gets(session, now_ns);
    }
    fb_server_drain(server, now_ns);
}

uint64_t fb_proto_server_next_ns(const struct fb_proto_server *server)
{
    return server->gets_next_ns;
}

struct fb_proto_session *fb_proto_server_next(struct fb_proto_server *server)
{
    struct fb_link *link = fb_list_pop_front(&server->dirty);
    return link != NULL ? FB_LIST_ITEM(link, struct fb_proto_session, dirty) : NULL;
}

void fb_proto_server_stats(const struct fb_proto_server *server, struct fb_proto_server_stats *out)
{
    *out = server->stats;
}

const struct fb_proto_namespace *fb_session_namespace(struct fb_proto_server *server, uint16_t ns)
{
    if (ns >= server->config.namespaces_max)
        return NULL;
    struct fb_proto_namespace *namespace = &server->namespaces[ns];
    if (!namespace->known) {
        uint8_t secret[16];
        uint64_t epoch;
        if (!fb_shard_namespace(server->config.shard, ns, namespace->id, secret, &epoch))
            return NULL;
        fb_secret_derive(&namespace->secret, secret, sizeof(secret));
        namespace->known = true;
    }
    return namespace;
}
