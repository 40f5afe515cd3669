/*
 * Puts: reserve, grant, move bytes, commit; and how a grant that was revoked comes to rest.
 *
 * Who may touch a grant's memory: the client from the first GRANT that it is told of until its
 * COMMIT or RELEASE, over shared memory; over a stream this node alone, while takes_data() holds.
 */
#include <string.h>

#include "base/assert.h"
#include "base/bits.h"
#include "base/result.h"
#include "proto/server_private.h"

/* Runs of one GRANT frame that a node sends; the format allows more. */
#define GRANT_RUNS        1024u
#define GRANT_FIXED_BYTES 32u

static bool uses_runs(const struct fb_proto_session *session)
{
    return fb_proto_session_uses_shm(session);
}

/* True if the memory of a grant is to be given back to the shard now: once. */
static bool takes_release(struct fb_slot *slot)
{
    if ((slot->flags & (FB_SLOT_STARTED | FB_SLOT_RELEASED)) != FB_SLOT_STARTED)
        return false;
    slot->flags |= FB_SLOT_RELEASED;
    return true;
}

static void release(struct fb_slot *slot, uint64_t now_ns)
{
    if (takes_release(slot))
        fb_shard_put_release(slot->session->server->config.shard, now_ns, &slot->op);
}

/* Bytes and leaves differ. */
static void refuse_bytes(struct fb_slot *slot, uint64_t now_ns)
{
    struct fb_proto_server *server = slot->session->server;
    server->stats.leaf_mismatches++;
    if (takes_release(slot))
        fb_shard_put_mismatch(server->config.shard, now_ns, &slot->op);
}

/* ---- PUT ---- */

static void fill(struct fb_slot *slot, const struct fb_msg_put *put)
{
    slot->op.kind = FB_OP_PUT;
    slot->op.persist = put->persist;
    slot->op.pin_class = put->pin_class;
    slot->op.flags = put->put_flags;
    slot->op.depth = put->depth;
    slot->op.group = put->group;
    slot->op.value_bytes = put->value_bytes;
}

bool fb_session_on_put(struct fb_proto_session *session, uint64_t now_ns,
                       const struct fb_wire_header *header, struct fb_reader *reader)
{
    struct fb_proto_server *server = session->server;
    struct fb_msg_put put;
    const char *bad;
    if (fb_wire_put_decode(reader, &put, &bad) != FB_OK) {
        fb_session_breach(session, "out of range", bad);
        return true;
    }
    if (put.inline_bytes > FB_PROTO_INLINE_CREDIT_BYTES - session->inline_open_bytes) {
        fb_session_breach(session, "more inline bytes are open than the credit",
                          "PUT.inline_bytes");
        return true;
    }
    struct fb_slot *slot = fb_session_slot(session, header);
    if (slot == NULL)
        return session->state != FB_SESSION_OPEN;
    slot->inline_bytes = put.inline_bytes;
    session->inline_open_bytes += put.inline_bytes;
    fill(slot, &put);
    if (!fb_session_key(slot, now_ns, &put.key))
        return true;
    if (put.inline_bytes > 0 && server->config.pool != NULL) {
        /* The bytes are at hand only during this call: they are taken if the grant comes at once.
         */
        server->inline_slot = slot;
        server->inline_put = &put;
    }
    fb_session_start(slot, now_ns);
    fb_server_drain(server, now_ns);
    server->stats.inline_declined += server->inline_slot != NULL;
    server->inline_slot = NULL;
    server->inline_put = NULL;
    return true;
}

/* ---- roots ---- */

/* The roots of all parts from the leaves of the value; returns how many. */
static uint32_t roots_of(const struct fb_slot *slot, const uint8_t *leaves, uint64_t *roots)
{
    struct fb_proto_server *server = slot->session->server;
    struct fb_identity identity;
    fb_session_identify(slot, &identity);
    uint32_t leaf = 0;
    for (uint64_t off = 0; off < slot->op.value_bytes; off += server->chunk_bytes) {
        identity.part_bytes = fb_min_u64(server->chunk_bytes, slot->op.value_bytes - off);
        struct fb_root root;
        fb_root_begin(&root, &identity);
        for (uint64_t n = fb_div_up(identity.part_bytes, FB_LEAF_BYTES); n > 0; n--)
            fb_root_add_leaf(&root, fb_wire_leaf_at(leaves, leaf++));
        FB_ASSERT(identity.part < FB_PROTO_PARTS_MAX);
        roots[identity.part++] = fb_root_finish(&root);
    }
    return identity.part;
}

static void commit(struct fb_slot *slot, uint64_t now_ns, uint64_t generation,
                   const uint8_t *leaves)
{
    struct fb_proto_server *server = slot->session->server;
    uint32_t parts = roots_of(slot, leaves, server->roots);
    slot->flags |= FB_SLOT_COMMITTED;
    fb_shard_put_commit(server->config.shard, now_ns, &slot->op, generation, server->roots, parts);
}

/* ---- the grant ---- */

/* The bytes that came inside PUT go into the pool while they are at hand. */
static void take_inline(struct fb_slot *slot, uint64_t now_ns)
{
    struct fb_proto_server *server = slot->session->server;
    const struct fb_msg_put *put = server->inline_put;
    server->inline_slot = NULL;
    struct fb_hash_state *state = &slot->leaf;
    fb_hash_begin(state, 0);
    uint64_t off = 0;
    uint32_t at = 0;
    while (at < put->inline_bytes) {
        struct fb_io_vec run;
        size_t runs = fb_shard_put_runs(server->config.shard, &slot->op, &off, &run, 1);
        FB_ASSERT(runs == 1);
        uint32_t step = (uint32_t)fb_min_u64(run.len, put->inline_bytes - at);
        fb_hash_add_copy(state, server->config.pool + run.off, put->inline_data + at, step);
        at += step;
    }
    server->stats.value_bytes_in += put->inline_bytes;
    server->stats.inline_taken++;
    uint64_t leaf = fb_hash_finish(state);
    if (leaf != put->inline_leaf) {
        refuse_bytes(slot, now_ns);
        return;
    }
    uint64_t little = htole64(leaf);
    commit(slot, now_ns, slot->op.generation, (const uint8_t *)&little);
}

void fb_session_put_event(struct fb_slot *slot, uint64_t now_ns, unsigned events)
{
    /* One event can say both that it was granted and that the grant was revoked: then the memory
     * waits to be given back, although nobody was told of it. */
    if ((events & FB_EV_GRANT) != 0)
        slot->flags |= FB_SLOT_GRANTED;
    if ((events & FB_EV_GRANT) != 0 && (slot->flags & FB_SLOT_DONE) == 0) {
        fb_hash_begin(&slot->leaf, 0);
        fb_hash_begin(&slot->leaves, 0);
        if (slot->session->server->inline_slot == slot)
            take_inline(slot, now_ns);
        else
            fb_session_todo(slot, FB_TODO_GRANT);
    }
    if ((events & FB_EV_DONE) == 0)
        return;
    /* Over shared memory a client that knows of the grant may still write into it. */
    bool client_may_touch =
        (slot->flags & FB_SLOT_TOLD) != 0 && (slot->flags & FB_SLOT_COMMITTED) == 0;
    if (!client_may_touch || !uses_runs(slot->session)) {
        if ((slot->flags & FB_SLOT_GRANTED) != 0 && (slot->flags & FB_SLOT_COMMITTED) == 0)
            release(slot, now_ns);
    }
    if ((slot->flags & FB_SLOT_TOLD) == 0)
        slot->todo &= (uint8_t)~FB_TODO_GRANT;
    fb_session_todo(slot, FB_TODO_DONE);
}

/*
 * Cuts runs that begin at grant_off and end at *off back to whole parts, so that the client can
 * hash a part from one frame. A part has at most GRANT_RUNS runs, so at least one is left.
 */
static size_t whole_parts(const struct fb_slot *slot, size_t runs, uint64_t *off)
{
    const struct fb_proto_server *server = slot->session->server;
    if (*off == slot->op.value_bytes)
        return runs;
    uint64_t end = *off - *off % server->chunk_bytes;
    while (*off > end)
        *off -= server->runs[--runs].len;
    FB_ASSERT(*off == end && runs > 0);
    return runs;
}

/* One GRANT frame with runs from grant_off on; false if there is no room. */
static bool tell_runs(struct fb_slot *slot)
{
    struct fb_proto_server *server = slot->session->server;
    struct fb_writer writer;
    if (!fb_session_frame_begin(slot->session, &writer,
                                GRANT_FIXED_BYTES + GRANT_RUNS * FB_WIRE_RUN_BYTES))
        return false;
    uint64_t off = slot->grant_off;
    size_t runs =
        fb_shard_put_runs(server->config.shard, &slot->op, &off, server->runs, GRANT_RUNS);
    runs = whole_parts(slot, runs, &off);
    FB_ASSERT(runs > 0 && off > slot->grant_off);
    uint8_t room[GRANT_RUNS * FB_WIRE_RUN_BYTES];
    struct fb_writer encoded;
    fb_writer_init(&encoded, room, sizeof(room));
    for (size_t i = 0; i < runs; i++)
        fb_wire_run_encode(&encoded,
                           &(struct fb_wire_run){server->runs[i].off, server->runs[i].len});
    struct fb_msg_grant grant = {
        .generation = slot->op.generation,
        .value_off = slot->grant_off,
        .run_count = (uint32_t)runs,
        .runs = room,
    };
    fb_wire_grant_encode(&writer, &grant);
    slot->grant_off = off;
    uint8_t flags = off < slot->op.value_bytes ? FB_FRAME_MORE : 0;
    fb_session_frame_end(slot->session, &writer, FB_MSG_GRANT, flags, slot->id);
    slot->flags |= FB_SLOT_TOLD;
    return true;
}

bool fb_session_tell_grant(struct fb_slot *slot)
{
    if ((slot->flags & (FB_SLOT_DONE | FB_SLOT_RELEASED)) != 0)
        return true; /* revoked before all of it was told */
    if (uses_runs(slot->session)) {
        while (slot->grant_off < slot->op.value_bytes)
            if (!tell_runs(slot))
                return false;
        return true;
    }
    struct fb_writer writer;
    if (!fb_session_frame_begin(slot->session, &writer, GRANT_FIXED_BYTES))
        return false;
    struct fb_msg_grant grant = {.generation = slot->op.generation,
                                 .window_bytes = slot->op.value_bytes};
    fb_wire_grant_encode(&writer, &grant);
    fb_session_frame_end(slot->session, &writer, FB_MSG_GRANT, 0, slot->id);
    slot->flags |= FB_SLOT_TOLD;
    return true;
}

/* ---- DATA, COMMIT, RELEASE ---- */

bool fb_session_takes_data(const struct fb_slot *slot)
{
    const uint16_t want = FB_SLOT_STARTED | FB_SLOT_TOLD;
    const uint16_t none = FB_SLOT_DONE | FB_SLOT_COMMITTED | FB_SLOT_RELEASED;
    return (slot->flags & (want | none)) == want;
}

/* The slot of a put whose grant the client knows, for a frame that only such a put may get; or a
 * breach. */
static struct fb_slot *granted(struct fb_proto_session *session,
                               const struct fb_wire_header *header)
{
    struct fb_slot *slot = fb_session_find(session, header->op);
    if (slot != NULL && slot->type == FB_MSG_PUT && (slot->flags & FB_SLOT_TOLD) != 0 &&
        (slot->flags & FB_SLOT_COMMITTED) == 0)
        return slot;
    fb_session_breach(session, "no put with a grant has this op", fb_wire_type_name(header->type));
    return NULL;
}

void fb_session_on_data(struct fb_proto_session *session, const struct fb_wire_header *header,
                        const uint8_t *head)
{
    struct fb_msg_data data;
    const char *bad;
    if (fb_wire_data_head_decode(head, header->payload_bytes, &data, &bad) != FB_OK) {
        fb_session_breach(session, "out of range", bad);
        return;
    }
    struct fb_slot *slot = granted(session, header);
    if (slot == NULL)
        return;
    if (uses_runs(session)) {
        fb_session_breach(session, "this session has shared memory", "DATA");
        return;
    }
    if (fb_session_takes_data(slot)) {
        uint64_t left = slot->op.value_bytes - slot->data_off;
        if (data.off != slot->data_off || data.len > left) {
            fb_session_breach(session, "out of order, or beyond the value", "DATA.off");
            return;
        }
    } else {
        session->server->stats.late_frames++;
    }
    session->data_slot = slot;
    session->data_left = data.len;
}

/* True if a COMMIT says what it must of this put; else a breach. */
static bool commit_fits(struct fb_slot *slot, const struct fb_msg_commit *message)
{
    struct fb_proto_session *session = slot->session;
    uint32_t chunk_bytes = session->server->chunk_bytes;
    const char *bad = NULL;
    if (message->generation != slot->op.generation)
        bad = "COMMIT.generation";
    else if (message->leaf_count != fb_wire_leaf_count(slot->op.value_bytes, chunk_bytes))
        bad = "COMMIT.leaf_count";
    else if (!uses_runs(session) && slot->data_off != slot->op.value_bytes)
        bad = "COMMIT before the last DATA";
    else if (uses_runs(session) && slot->grant_off != slot->op.value_bytes)
        bad = "COMMIT before the last GRANT";
    if (bad != NULL)
        fb_session_breach(session, "does not fit the put", bad);
    return bad == NULL;
}

/* True if the bytes that came are those of the leaves. */
static bool leaves_fit(const struct fb_slot *slot, const struct fb_msg_commit *message)
{
    if (uses_runs(slot->session))
        return true; /* checked before they are used: by the cleaner, and by each reader */
    return fb_hash_finish(&slot->leaves) ==
           fb_hash64(message->leaves, (size_t)message->leaf_count * sizeof(uint64_t), 0);
}

bool fb_session_on_commit(struct fb_proto_session *session, uint64_t now_ns,
                          const struct fb_wire_header *header, struct fb_reader *reader)
{
    struct fb_msg_commit message;
    const char *bad;
    if (fb_wire_commit_decode(reader, &message, &bad) != FB_OK) {
        fb_session_breach(session, "out of range", bad);
        return true;
    }
    struct fb_slot *slot = granted(session, header);
    if (slot == NULL)
        return true;
    if ((slot->flags & FB_SLOT_DONE) != 0) {
        /* It crossed the PUT_DONE. The client touches the memory no more, so that is free now. */
        session->server->stats.late_frames++;
        release(slot, now_ns);
    } else if ((slot->flags & FB_SLOT_RELEASED) != 0) {
        fb_session_breach(session, "after RELEASE", "COMMIT");
    } else if (!commit_fits(slot, &message)) {
        return true;
    } else if (!leaves_fit(slot, &message)) {
        slot->flags |= FB_SLOT_COMMITTED;
        refuse_bytes(slot, now_ns);
    } else {
        commit(slot, now_ns, message.generation, message.leaves);
    }
    fb_server_drain(session->server, now_ns);
    return true;
}

bool fb_session_on_release(struct fb_proto_session *session, uint64_t now_ns,
                           const struct fb_wire_header *header, struct fb_reader *reader)
{
    const char *bad;
    if (fb_wire_empty_decode(reader, &bad) != FB_OK) {
        fb_session_breach(session, "out of range", bad);
        return true;
    }
    struct fb_slot *slot = granted(session, header);
    if (slot == NULL)
        return true;
    if ((slot->flags & FB_SLOT_OWES) == 0 && slot->client_released) {
        fb_session_breach(session, "the second one", "RELEASE");
        return true;
    }
    slot->client_released = true;
    slot->flags &= (uint16_t)~FB_SLOT_OWES;
    release(slot, now_ns);
    fb_session_settle(slot);
    fb_server_drain(session->server, now_ns);
    return true;
}

/* ---- PUT_DONE ---- */

bool fb_session_tell_put_done(struct fb_slot *slot)
{
    struct fb_writer writer;
    if (!fb_session_frame_begin(slot->session, &writer, sizeof(struct fb_msg_put_done)))
        return false;
    struct fb_msg_put_done done = {.result = slot->op.result,
                                   .reason = slot->op.reason,
                                   .generation = slot->op.generation};
    uint8_t flags = slot->op.persisted ? FB_FRAME_PERSISTED : 0;
    bool committed = (slot->flags & FB_SLOT_COMMITTED) != 0;
    if ((slot->flags & FB_SLOT_TOLD) != 0 && !committed && !slot->client_released) {
        flags |= FB_FRAME_RELEASE_WANTED;
        slot->flags |= FB_SLOT_OWES;
        slot->session->server->stats.releases_wanted++;
    }
    fb_wire_put_done_encode(&writer, &done);
    fb_session_frame_end(slot->session, &writer, FB_MSG_PUT_DONE, flags, slot->id);
    return true;
}
