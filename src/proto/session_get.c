/*
 * Gets: chunks of a value on their way to a reader, one part each, pinned until they are there.
 *
 * A session's gets share a window of bytes, and all sessions' a part of the pool. A get takes its
 * share before it is started: a guess, from the sizes of the values read last, until its first
 * chunk says how long the value is. So a reader that is slow, or asks for much, has a few parts
 * pinned, and not all it asked for.
 */
#include <string.h>

#include "base/assert.h"
#include "base/bits.h"
#include "base/result.h"
#include "proto/server_private.h"

#define CHUNK_FIXED_BYTES 64u
#define HEAD_AND_PREAMBLE (FB_WIRE_HEADER_BYTES + FB_WIRE_DATA_HEAD_BYTES)
/* Runs of the longest part in the smallest extents. */
#define PART_RUNS_MAX (FB_CHUNK_BYTES_MAX / FB_PAGE_BYTES)
/* Pieces of one DATA frame: its pages, and one more if it begins within one. */
#define STEP_PIECES (FB_PROTO_DATA_STEP_BYTES / FB_PAGE_BYTES + 1)

_Static_assert(PART_RUNS_MAX <= FB_IO_VEC_MAX, "the runs of a part fit into the scratch array");
_Static_assert(STEP_PIECES < FB_OUTBOX_SEGMENTS, "a DATA frame fits into an empty outbox");

/* ---- the window ---- */

/* Bytes that a get may have pinned: all that it wants, as far as that is known, or four parts. */
static uint64_t share_of(const struct fb_slot *slot, uint64_t value_bytes)
{
    uint64_t most = (uint64_t)FB_GET_WINDOW * slot->session->server->chunk_bytes;
    return fb_min_u64(fb_min_u64(value_bytes, slot->op.range_bytes), most);
}

/* A session that has nothing pinned may go beyond the part of all: readers who stopped keep others
 * from reading much at a time, not from reading at all. */
static bool window_has(const struct fb_proto_session *session, uint64_t bytes)
{
    struct fb_proto_server *server = session->server;
    uint64_t most = server->window_max_bytes;
    if (session->window_used_bytes == 0)
        most += most / FB_PROTO_WINDOW_FIRST;
    if (server->window_used_bytes != 0 && server->window_used_bytes + bytes > most) {
        server->gets_wait = true;
        return false;
    }
    return session->window_used_bytes == 0 ||
           session->window_used_bytes + bytes <= session->window_max_bytes;
}

static void window_set(struct fb_slot *slot, uint64_t bytes)
{
    struct fb_proto_session *session = slot->session;
    struct fb_proto_server *server = session->server;
    FB_ASSERT(session->window_used_bytes >= slot->window_bytes &&
              server->window_used_bytes >= slot->window_bytes);
    if (bytes < slot->window_bytes && server->gets_wait) {
        server->gets_wait = false;
        server->gets_next_ns = 0; /* the next tick looks at all sessions */
    }
    session->window_used_bytes += bytes - slot->window_bytes;
    server->window_used_bytes += bytes - slot->window_bytes;
    slot->window_bytes = bytes;
}

void fb_session_window_free(struct fb_slot *slot)
{
    if (slot->window_bytes > 0)
        window_set(slot, 0);
}

static void start(struct fb_slot *slot, uint64_t now_ns)
{
    slot->flags &= (uint16_t)~FB_SLOT_QUEUED;
    fb_list_remove(&slot->streaming);
    window_set(slot, share_of(slot, slot->session->typical_bytes));
    fb_session_start(slot, now_ns);
}

void fb_session_start_gets(struct fb_proto_session *session, uint64_t now_ns)
{
    struct fb_proto_server *server = session->server;
    bool in_order = true; /* nobody overtakes who waits for the window */
    FB_LIST_FOREACH_SAFE (link, next, &session->gets) {
        struct fb_slot *slot = FB_LIST_ITEM(link, struct fb_slot, streaming);
        in_order = in_order && window_has(session, share_of(slot, session->typical_bytes));
        if (in_order || slot->op.deadline_ns <= now_ns)
            start(slot, now_ns); /* beyond its deadline the shard ends it, and counts it */
        else
            server->gets_next_ns = fb_min_u64(server->gets_next_ns, slot->op.deadline_ns);
    }
}

void fb_session_get_cancel(struct fb_slot *slot, uint64_t now_ns)
{
    slot->op.deadline_ns = now_ns;
    start(slot, now_ns);
    fb_server_drain(slot->session->server, now_ns);
}

/* ---- GET ---- */

/* On a path where a reader cannot check a piece of a part by itself, the shard checks the part. */
static bool must_verify(const struct fb_proto_session *session, const struct fb_msg_get *get)
{
    bool whole = get->range_off == 0 && get->range_bytes == UINT64_MAX;
    if (whole || session->server->config.pool == NULL)
        return false;
    return !fb_proto_session_uses_shm(session) || get->range_bytes <= FB_WIRE_INLINE_MAX;
}

bool fb_session_on_get(struct fb_proto_session *session, uint64_t now_ns,
                       const struct fb_wire_header *header, struct fb_reader *reader)
{
    struct fb_msg_get get;
    const char *bad;
    if (fb_wire_get_decode(reader, &get, &bad) != FB_OK) {
        fb_session_breach(session, "out of range", bad);
        return true;
    }
    struct fb_slot *slot = fb_session_slot(session, header);
    if (slot == NULL)
        return session->state != FB_SESSION_OPEN;
    slot->op.kind = FB_OP_GET;
    slot->op.flags = get.get_flags | (must_verify(session, &get) ? FB_GET_VERIFY : 0);
    slot->op.range_off = get.range_off;
    slot->op.range_bytes = get.range_bytes;
    if (!fb_session_key(slot, now_ns, &get.key))
        return true;
    slot->flags |= FB_SLOT_QUEUED;
    fb_list_push_back(&session->gets, &slot->streaming);
    fb_session_start_gets(session, now_ns);
    session->server->stats.gets_queued += (slot->flags & FB_SLOT_QUEUED) != 0;
    fb_server_drain(session->server, now_ns);
    return true;
}

/* ---- chunks ---- */

bool fb_session_chunks_are_owed(const struct fb_slot *slot)
{
    for (unsigned i = 0; i < FB_GET_WINDOW; i++)
        if (slot->chunk[i].owed)
            return true;
    return false;
}

bool fb_session_chunks_are_queued(const struct fb_slot *slot)
{
    for (unsigned i = 0; i < FB_GET_WINDOW; i++)
        if (slot->chunk[i].segments > 0)
            return true;
    return false;
}

/* Gives a chunk back to the shard, once, and only when none of it is in the outbox. */
static void release(struct fb_slot *slot, uint64_t now_ns, unsigned i, bool bad)
{
    struct fb_slot_chunk *chunk = &slot->chunk[i];
    if (!chunk->out || chunk->segments > 0)
        return;
    chunk->out = false;
    fb_shard_chunk_release(slot->session->server->config.shard, now_ns, &slot->op, i, bad);
}

static bool is_whole(const struct fb_chunk *chunk)
{
    return chunk->want_off == 0 && chunk->want_bytes == chunk->part_bytes;
}

static enum fb_wire_chunk_mode mode_of(const struct fb_proto_session *session,
                                       const struct fb_chunk *chunk)
{
    if (session->server->config.pool == NULL)
        return FB_WIRE_CHUNK_RUNS;
    if (chunk->want_bytes <= FB_WIRE_INLINE_MAX && (is_whole(chunk) || chunk->verified))
        return FB_WIRE_CHUNK_INLINE;
    return fb_proto_session_uses_shm(session) ? FB_WIRE_CHUNK_RUNS : FB_WIRE_CHUNK_DATA;
}

/* What a CHUNK says whatever its mode. */
static void describe(const struct fb_slot *slot, unsigned i, struct fb_msg_chunk *message)
{
    const struct fb_chunk *chunk = &slot->op.chunk[i];
    *message = (struct fb_msg_chunk){
        .slot = (uint8_t)i,
        .verified = chunk->verified != 0,
        .from_ssd = chunk->from_ssd != 0,
        .part = chunk->part,
        .part_bytes = chunk->part_bytes,
        .want_off = chunk->want_off,
        .want_bytes = chunk->want_bytes,
        .value_off = chunk->value_off,
        .value_bytes = slot->op.value_bytes,
        .generation = slot->op.generation,
        .root = chunk->root,
    };
}

static bool tell_runs(struct fb_slot *slot, unsigned i)
{
    struct fb_proto_server *server = slot->session->server;
    struct fb_writer writer;
    uint32_t most = CHUNK_FIXED_BYTES + PART_RUNS_MAX * FB_WIRE_RUN_BYTES;
    if (!fb_session_frame_begin(slot->session, &writer, most))
        return false;
    uint32_t off = 0;
    size_t runs =
        fb_shard_chunk_runs(server->config.shard, &slot->op, i, &off, server->runs, PART_RUNS_MAX);
    FB_ASSERT(runs > 0 && off == slot->op.chunk[i].part_bytes);
    uint8_t room[PART_RUNS_MAX * FB_WIRE_RUN_BYTES];
    struct fb_writer encoded;
    fb_writer_init(&encoded, room, sizeof(room));
    for (size_t n = 0; n < runs; n++)
        fb_wire_run_encode(&encoded,
                           &(struct fb_wire_run){server->runs[n].off, server->runs[n].len});
    struct fb_msg_chunk message;
    describe(slot, i, &message);
    message.mode = FB_WIRE_CHUNK_RUNS;
    message.run_count = (uint32_t)runs;
    message.runs = room;
    fb_wire_chunk_encode(&writer, &message);
    fb_session_frame_end(slot->session, &writer, FB_MSG_CHUNK, 0, slot->id);
    slot->chunk[i] = (struct fb_slot_chunk){.out = true, .owed = true};
    slot->session->chunks_owed++;
    return true;
}

/* True if these bytes, a whole part of one leaf, are those of the part's root. */
static bool root_fits(const struct fb_slot *slot, const struct fb_chunk *chunk, uint64_t leaf)
{
    struct fb_identity identity;
    fb_session_identify(slot, &identity);
    identity.part = chunk->part;
    identity.part_bytes = chunk->part_bytes;
    return fb_root_of(&identity, &leaf, 1) == chunk->root;
}

/* Copies the wanted piece to `to`; returns its hash. */
static uint64_t copy_wanted(struct fb_slot *slot, unsigned i, uint8_t *to)
{
    struct fb_proto_server *server = slot->session->server;
    const struct fb_chunk *chunk = &slot->op.chunk[i];
    uint32_t off = chunk->want_off;
    uint32_t left = chunk->want_bytes;
    struct fb_hash_state *state = &slot->leaf; /* a put's; free here */
    fb_hash_begin(state, 0);
    while (left > 0) {
        struct fb_io_vec run;
        size_t runs = fb_shard_chunk_runs(server->config.shard, &slot->op, i, &off, &run, 1);
        FB_ASSERT(runs == 1);
        uint32_t step = (uint32_t)fb_min_u64(run.len, left);
        fb_hash_add_copy(state, to, server->config.pool + run.off, step);
        to += step;
        left -= step;
    }
    return fb_hash_finish(state);
}

static bool tell_inline(struct fb_slot *slot, uint64_t now_ns, unsigned i)
{
    const struct fb_chunk *chunk = &slot->op.chunk[i];
    struct fb_writer writer;
    if (!fb_session_frame_begin(slot->session, &writer, CHUNK_FIXED_BYTES + FB_WIRE_INLINE_MAX))
        return false;
    uint8_t bytes[FB_WIRE_INLINE_MAX];
    uint64_t leaf = copy_wanted(slot, i, bytes);
    slot->chunk[i] = (struct fb_slot_chunk){.out = true};
    bool fits = chunk->verified || root_fits(slot, chunk, leaf);
    if (fits) {
        struct fb_msg_chunk message;
        describe(slot, i, &message);
        message.verified = 1;
        message.mode = FB_WIRE_CHUNK_INLINE;
        message.inline_bytes = chunk->want_bytes;
        message.inline_data = bytes;
        fb_wire_chunk_encode(&writer, &message);
        slot->session->server->stats.value_bytes_out += chunk->want_bytes;
        fb_session_frame_end(slot->session, &writer, FB_MSG_CHUNK, 0, slot->id);
    }
    release(slot, now_ns, i, !fits);
    return true;
}

/* Announces a chunk whose DATA is composed by fb_session_stream(). */
static bool tell_stream(struct fb_slot *slot, unsigned i)
{
    struct fb_proto_session *session = slot->session;
    const struct fb_chunk *chunk = &slot->op.chunk[i];
    struct fb_writer writer;
    if (!fb_session_frame_begin(session, &writer, CHUNK_FIXED_BYTES))
        return false;
    /* A piece of a part is checked by its frames, so its part was checked here: must_verify(). */
    FB_ASSERT(is_whole(chunk) || chunk->verified);
    uint32_t off = chunk->want_off;
    struct fb_io_vec run;
    size_t runs = fb_shard_chunk_runs(session->server->config.shard, &slot->op, i, &off, &run, 1);
    FB_ASSERT(runs == 1);
    struct fb_msg_chunk message;
    describe(slot, i, &message);
    message.mode = FB_WIRE_CHUNK_DATA;
    fb_wire_chunk_encode(&writer, &message);
    fb_session_frame_end(session, &writer, FB_MSG_CHUNK, 0, slot->id);
    slot->chunk[i] = (struct fb_slot_chunk){.out = true, .owed = true, .sent_to = chunk->want_off};
    slot->session->chunks_owed++;
    slot->sending = (uint8_t)i;
    slot->flags |= FB_SLOT_STREAMING;
    fb_list_push_back(&session->streaming, &slot->streaming);
    return true;
}

/* The first chunk of a get says how much it will have pinned. */
static void learn_size(struct fb_slot *slot, uint64_t now_ns)
{
    struct fb_proto_session *session = slot->session;
    uint64_t off = fb_min_u64(slot->op.range_off, slot->op.value_bytes);
    uint64_t wanted = fb_min_u64(slot->op.value_bytes - off, slot->op.range_bytes);
    uint64_t share = share_of(slot, wanted);
    if (share == slot->window_bytes)
        return;
    window_set(slot, share);
    uint64_t slow = session->typical_bytes - session->typical_bytes / 4 + share / 4;
    session->typical_bytes = fb_max_u64(share, slow);
    fb_session_start_gets(session, now_ns);
}

bool fb_session_tell_chunks(struct fb_slot *slot, uint64_t now_ns)
{
    if ((slot->flags & FB_SLOT_DONE) != 0)
        return true; /* it ended before they were announced */
    for (unsigned i = 0; i < FB_GET_WINDOW; i++) {
        const struct fb_chunk *chunk = &slot->op.chunk[i];
        if (chunk->state != FB_CHUNK_READY || slot->chunk[i].out)
            continue;
        enum fb_wire_chunk_mode mode = mode_of(slot->session, chunk);
        bool told = true;
        if (mode == FB_WIRE_CHUNK_RUNS)
            told = tell_runs(slot, i);
        else if (mode == FB_WIRE_CHUNK_INLINE)
            told = tell_inline(slot, now_ns, i);
        else if (slot->sending == FB_CHUNK_NONE)
            told = tell_stream(slot, i); /* else it comes when the one before was composed */
        if (!told)
            return false;
    }
    return true;
}

void fb_session_get_event(struct fb_slot *slot, uint64_t now_ns, unsigned events)
{
    if ((events & FB_EV_CHUNK) != 0) {
        learn_size(slot, now_ns);
        fb_session_todo(slot, FB_TODO_CHUNKS);
    }
    if ((events & FB_EV_DONE) != 0) {
        slot->todo &= (uint8_t)~FB_TODO_CHUNKS;
        if ((slot->flags & FB_SLOT_STREAMING) != 0) {
            slot->flags &= (uint16_t)~FB_SLOT_STREAMING;
            fb_list_remove(&slot->streaming);
        }
        slot->sending = FB_CHUNK_NONE;
        /* On a stream nobody but this node reads the memory: what is not in the outbox is free now.
         */
        for (unsigned i = 0; i < FB_GET_WINDOW && !fb_proto_session_uses_shm(slot->session); i++)
            release(slot, now_ns, i, false);
        fb_session_todo(slot, FB_TODO_DONE);
    }
    if ((events & FB_EV_CLOSED) != 0) {
        fb_session_window_free(slot);
        fb_session_start_gets(slot->session, now_ns);
    }
}

/* ---- DATA ---- */

/* The pieces of pool of one frame: how many, into server->runs; their lengths add up to `len`. */
static size_t step_pieces(struct fb_slot *slot, unsigned i, uint32_t from, uint32_t len)
{
    struct fb_proto_server *server = slot->session->server;
    uint32_t off = from;
    size_t runs =
        fb_shard_chunk_runs(server->config.shard, &slot->op, i, &off, server->runs, STEP_PIECES);
    size_t used = 0;
    while (len > 0) {
        FB_ASSERT(used < runs);
        server->runs[used].len = (uint32_t)fb_min_u64(server->runs[used].len, len);
        len -= server->runs[used].len;
        used++;
    }
    return used;
}

/* Header and preamble; with a check over the bytes where no root covers them. */
static void write_head(struct fb_slot *slot, unsigned i, uint8_t *head, uint32_t from, uint32_t len,
                       size_t pieces)
{
    const struct fb_proto_server *server = slot->session->server;
    const struct fb_chunk *chunk = &slot->op.chunk[i];
    uint64_t off = chunk->value_off + from;
    if (is_whole(chunk)) {
        fb_wire_data_head(head, slot->id, off, len, NULL, FB_PROTO_SHARD_MAP_VERSION);
        return;
    }
    struct fb_wire_data_check check;
    fb_wire_data_check_begin(&check, head, slot->id, off, len, FB_PROTO_SHARD_MAP_VERSION);
    for (size_t n = 0; n < pieces; n++)
        fb_wire_data_check_add(&check, server->config.pool + server->runs[n].off,
                               server->runs[n].len);
    fb_wire_data_check_end(&check, head);
}

/* Composes the next DATA frame of a get; false if there is no room. */
static bool step(struct fb_slot *slot)
{
    struct fb_proto_session *session = slot->session;
    struct fb_proto_server *server = session->server;
    unsigned i = slot->sending;
    struct fb_slot_chunk *state = &slot->chunk[i];
    const struct fb_chunk *chunk = &slot->op.chunk[i];
    if (!fb_outbox_fits(&session->out, HEAD_AND_PREAMBLE, STEP_PIECES + 1))
        return false;
    uint32_t from = state->sent_to;
    uint32_t end = chunk->want_off + chunk->want_bytes;
    uint32_t len = (uint32_t)fb_min_u64(end - from,
                                        FB_PROTO_DATA_STEP_BYTES - from % FB_PROTO_DATA_STEP_BYTES);
    size_t pieces = step_pieces(slot, i, from, len);
    uint8_t *head = fb_outbox_room(&session->out, HEAD_AND_PREAMBLE);
    FB_ASSERT(head != NULL);
    write_head(slot, i, head, from, len, pieces);
    fb_outbox_push_bytes(&session->out, HEAD_AND_PREAMBLE);
    for (size_t n = 0; n < pieces; n++)
        fb_outbox_push_pool(&session->out, server->runs[n].off, server->runs[n].len, slot->index,
                            (uint8_t)i);
    state->segments += (uint16_t)pieces;
    state->sent_to += len;
    server->stats.frames_out++;
    server->stats.value_bytes_out += len;
    fb_session_mark(session);
    if (state->sent_to == end)
        slot->sending = FB_CHUNK_NONE;
    return true;
}

bool fb_session_stream(struct fb_proto_session *session)
{
    struct fb_link *link = fb_list_first(&session->streaming);
    if (link == NULL || session->out.queued_pool_bytes >= FB_PROTO_DATA_QUEUE_BYTES)
        return false;
    struct fb_slot *slot = FB_LIST_ITEM(link, struct fb_slot, streaming);
    if (!step(slot))
        return false;
    /* To the end of the turn, so that a long value does not block a short one. */
    fb_list_remove(&slot->streaming);
    if (slot->sending != FB_CHUNK_NONE) {
        fb_list_push_back(&session->streaming, &slot->streaming);
        return true;
    }
    slot->flags &= (uint16_t)~FB_SLOT_STREAMING;
    fb_session_todo(slot, FB_TODO_CHUNKS); /* the next part may be ready already */
    return true;
}

void fb_session_piece_sent(struct fb_slot *slot, uint64_t now_ns, unsigned chunk)
{
    FB_ASSERT(slot->chunk[chunk].segments > 0);
    slot->chunk[chunk].segments--;
    if ((slot->flags & FB_SLOT_DONE) == 0)
        return; /* pinned until CHUNK_DONE, which may find it bad */
    release(slot, now_ns, chunk, false);
    fb_session_settle(slot);
}

/* ---- CHUNK_DONE, GET_DONE ---- */

/* The hash of one leaf of a chunk, which begins at *off; moves *off behind it. */
static uint64_t own_leaf(struct fb_slot *slot, unsigned i, uint32_t *off)
{
    struct fb_proto_server *server = slot->session->server;
    uint32_t left = (uint32_t)fb_min_u64(FB_LEAF_BYTES, slot->op.chunk[i].part_bytes - *off);
    fb_hash_begin(&slot->leaf, 0);
    while (left > 0) {
        struct fb_io_vec run;
        uint32_t from = *off;
        size_t runs = fb_shard_chunk_runs(server->config.shard, &slot->op, i, &from, &run, 1);
        FB_ASSERT(runs == 1);
        uint32_t step = (uint32_t)fb_min_u64(run.len, left);
        fb_hash_add(&slot->leaf, server->config.pool + run.off, step);
        *off += step;
        left -= step;
    }
    return fb_hash_finish(&slot->leaf);
}

/* True if the node's own copy of a part is that of its root. Costs a pass over the part. */
static bool own_copy_fits(struct fb_slot *slot, unsigned i)
{
    const struct fb_chunk *chunk = &slot->op.chunk[i];
    struct fb_identity identity;
    fb_session_identify(slot, &identity);
    identity.part = chunk->part;
    identity.part_bytes = chunk->part_bytes;
    struct fb_root root;
    fb_root_begin(&root, &identity);
    for (uint32_t off = 0; off < chunk->part_bytes;)
        fb_root_add_leaf(&root, own_leaf(slot, i, &off));
    return fb_root_finish(&root) == chunk->root;
}

/*
 * The reader found another root. Where the node's own copy is good the fault is the wire's or the
 * reader's, and one broken client must not empty the store: the get is a miss, the value stays.
 */
static void chunk_is_bad(struct fb_slot *slot, uint64_t now_ns, unsigned i)
{
    struct fb_proto_server *server = slot->session->server;
    bool is_done = (slot->flags & FB_SLOT_DONE) != 0;
    if (is_done || !slot->chunk[i].out || server->config.pool == NULL || !own_copy_fits(slot, i)) {
        release(slot, now_ns, i, !is_done);
        return;
    }
    server->stats.misreads++;
    slot->flags |= FB_SLOT_MISREAD;
    fb_shard_cancel(server->config.shard, now_ns, &slot->op);
    release(slot, now_ns, i, false);
}

bool fb_session_on_chunk_done(struct fb_proto_session *session, uint64_t now_ns,
                              const struct fb_wire_header *header, struct fb_reader *reader)
{
    struct fb_msg_chunk_done message;
    const char *bad;
    if (fb_wire_chunk_done_decode(reader, &message, &bad) != FB_OK) {
        fb_session_breach(session, "out of range", bad);
        return true;
    }
    struct fb_slot *slot = fb_session_find(session, header->op);
    if (slot == NULL || slot->type != FB_MSG_GET || !slot->chunk[message.slot].owed) {
        fb_session_breach(session, "no such chunk was sent and not answered", "CHUNK_DONE.slot");
        return true;
    }
    struct fb_slot_chunk *chunk = &slot->chunk[message.slot];
    if ((chunk->segments > 0 || slot->sending == message.slot) &&
        (slot->flags & FB_SLOT_DONE) == 0) {
        fb_session_breach(session, "before the last DATA of the chunk", "CHUNK_DONE.slot");
        return true;
    }
    chunk->owed = false;
    FB_ASSERT(session->chunks_owed > 0);
    session->chunks_owed--;
    session->chunks_done++;
    if ((header->flags & FB_FRAME_BAD) != 0)
        chunk_is_bad(slot, now_ns, message.slot);
    else
        release(slot, now_ns, message.slot, false);
    fb_session_settle(slot);
    fb_server_drain(session->server, now_ns);
    return true;
}

bool fb_session_tell_get_done(struct fb_slot *slot)
{
    struct fb_writer writer;
    if (!fb_session_frame_begin(slot->session, &writer, sizeof(struct fb_msg_get_done)))
        return false;
    struct fb_msg_get_done done = {
        .result = slot->op.result,
        .reason = slot->op.reason,
        .tiers = slot->op.tiers,
        .value_bytes = slot->op.value_bytes,
        .generation = slot->op.generation,
    };
    if ((slot->flags & FB_SLOT_MISREAD) != 0) {
        done.result = FB_MISS;
        done.reason = FB_REASON_BAD_CHECKSUM;
    }
    fb_wire_get_done_encode(&writer, &done);
    fb_session_frame_end(slot->session, &writer, FB_MSG_GET_DONE, 0, slot->id);
    return true;
}
