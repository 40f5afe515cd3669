/*
 * A session: its memory, its table of operations, frames in and frames out.
 */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/bits.h"
#include "proto/server_private.h"

#define HEAD_AND_PREAMBLE   (FB_WIRE_HEADER_BYTES + FB_WIRE_DATA_HEAD_BYTES)
#define TYPICAL_BYTES_FIRST FB_MIB(1) /* of a value, before the session has seen one */

/* ---- memory ---- */

static struct fb_proto_session *carve(const struct fb_proto_server *server,
                                      struct fb_region *region)
{
    struct fb_proto_session *session = FB_REGION_NEW(region, struct fb_proto_session, 1);
    uint8_t *namespaces =
        FB_REGION_NEW(region, uint8_t, fb_div_up(server->config.namespaces_max, 8));
    struct fb_outbox out;
    fb_outbox_init(&out, region);
    /* Not cleared: a slot is touched when it is first used, so that a quiet session costs little.
     */
    struct fb_slot *slots =
        fb_region_take_array(region, FB_PROTO_SLOTS, sizeof(*slots), _Alignof(struct fb_slot));
    if (fb_region_is_counting(region))
        return NULL;
    session->namespaces = namespaces;
    session->out = out;
    session->slots = slots;
    return session;
}

size_t fb_proto_session_footprint(const struct fb_proto_server *server)
{
    struct fb_region region;
    fb_region_init_counting(&region);
    carve(server, &region);
    return region.used_bytes;
}

struct fb_proto_session *fb_proto_session_init(struct fb_proto_server *server,
                                               struct fb_region *region, uint64_t id, bool may_shm,
                                               uint64_t cookie)
{
    FB_ASSERT(id != 0);
    struct fb_proto_session *session = carve(server, region);
    session->server = server;
    session->id = id;
    session->cookie = cookie;
    session->may_shm = may_shm;
    session->free = FB_SLOT_NONE;
    session->want = FB_WIRE_HEADER_BYTES;
    session->typical_bytes = TYPICAL_BYTES_FIRST;
    session->window_max_bytes =
        fb_max_u64(FB_PROTO_WINDOW_BYTES_MIN,
                   fb_min_u64(FB_PROTO_WINDOW_BYTES_MAX, server->config.pool_bytes / 32));
    for (unsigned i = 0; i < FB_SLOT_BUCKETS; i++)
        session->buckets[i] = FB_SLOT_NONE;
    fb_list_init(&session->pending);
    fb_list_init(&session->streaming);
    fb_list_init(&session->gets);
    fb_link_init(&session->all);
    fb_link_init(&session->dirty);
    fb_list_push_back(&server->sessions, &session->all);
    server->stats.sessions_opened++;
    return session;
}

/* ---- what the owner may ask ---- */

uint64_t fb_proto_session_cookie(const struct fb_proto_session *session)
{
    return session->cookie;
}

uint64_t fb_proto_session_id(const struct fb_proto_session *session)
{
    return session->id;
}

bool fb_proto_session_is_open(const struct fb_proto_session *session)
{
    return session->state == FB_SESSION_OPEN;
}

bool fb_proto_session_uses_shm(const struct fb_proto_session *session)
{
    return (session->features & FB_FEATURE_SHM) != 0;
}

const char *fb_proto_session_name(const struct fb_proto_session *session)
{
    return session->name;
}

bool fb_proto_session_is_closing(const struct fb_proto_session *session)
{
    return session->state == FB_SESSION_CLOSING;
}

const char *fb_proto_session_error(const struct fb_proto_session *session)
{
    return session->error;
}

uint32_t fb_proto_session_open_ops(const struct fb_proto_session *session)
{
    return session->open_ops;
}

bool fb_proto_session_is_paused(const struct fb_proto_session *session)
{
    return session->paused;
}

uint64_t fb_proto_session_queued(const struct fb_proto_session *session)
{
    return session->out.queued_bytes;
}

void fb_session_mark(struct fb_proto_session *session)
{
    if (session->state != FB_SESSION_ENDED && !fb_link_is_linked(&session->dirty))
        fb_list_push_back(&session->server->dirty, &session->dirty);
}

/* Input that was refused for want of room may be tried again. */
static void resume(struct fb_proto_session *session)
{
    if (session->paused) {
        session->paused = false;
        fb_session_mark(session);
    }
}

/* ---- the table of operations ---- */

static uint16_t *bucket_of(struct fb_proto_session *session, uint64_t id)
{
    return &session->buckets[fb_hash64(&id, sizeof(id), 0) & (FB_SLOT_BUCKETS - 1)];
}

struct fb_slot *fb_session_find(struct fb_proto_session *session, uint64_t id)
{
    for (uint16_t i = *bucket_of(session, id); i != FB_SLOT_NONE; i = session->slots[i].next)
        if (session->slots[i].id == id)
            return &session->slots[i];
    return NULL;
}

static void table_remove(struct fb_slot *slot)
{
    uint16_t *at = bucket_of(slot->session, slot->id);
    while (*at != slot->index)
        at = &slot->session->slots[*at].next;
    *at = slot->next;
}

static struct fb_slot *slot_take(struct fb_proto_session *session)
{
    struct fb_slot *slot;
    if (session->free != FB_SLOT_NONE) {
        slot = &session->slots[session->free];
        session->free = slot->next;
    } else if (session->slots_used < FB_PROTO_SLOTS) {
        slot = &session->slots[session->slots_used];
        slot->index = session->slots_used++;
    } else {
        return NULL;
    }
    uint16_t index = slot->index;
    memset(slot, 0, offsetof(struct fb_slot, leaf)); /* the hashes are begun when needed */
    slot->index = index;
    slot->session = session;
    slot->sending = FB_CHUNK_NONE;
    fb_link_init(&slot->pending);
    fb_link_init(&slot->streaming);
    slot->op.peer = &session->peer;
    slot->op.cookie = (uint64_t)(uintptr_t)slot;
    return slot;
}

struct fb_slot *fb_session_slot(struct fb_proto_session *session,
                                const struct fb_wire_header *header)
{
    if (header->op == 0 || fb_session_find(session, header->op) != NULL) {
        fb_session_breach(session, "the op is 0, or that of an open operation", "header.op");
        return NULL;
    }
    if (session->open_ops >= FB_PROTO_OP_CREDIT) {
        fb_session_breach(session, "more operations are open than op_credit", "header.op");
        return NULL;
    }
    struct fb_slot *slot = slot_take(session);
    if (slot == NULL)
        return NULL;
    slot->id = header->op;
    slot->type = header->type;
    slot->flags = FB_SLOT_OPEN;
    uint16_t *bucket = bucket_of(session, slot->id);
    slot->next = *bucket;
    *bucket = slot->index;
    session->open_ops++;
    return slot;
}

/* A list has come free: whoever waits for one may try again. */
static void list_free(struct fb_slot *slot)
{
    slot->list->used = false;
    slot->list = NULL;
    FB_ASSERT(slot->session->lists_used > 0);
    slot->session->lists_used--;
    FB_LIST_FOREACH (link, &slot->session->server->sessions)
        resume(FB_LIST_ITEM(link, struct fb_proto_session, all));
}

/* The operation's number is not needed any more. */
static void close_number(struct fb_slot *slot)
{
    struct fb_proto_session *session = slot->session;
    table_remove(slot);
    slot->flags &= (uint16_t)~FB_SLOT_OPEN;
    FB_ASSERT(session->open_ops > 0 && session->inline_open_bytes >= slot->inline_bytes);
    session->open_ops--;
    session->inline_open_bytes -= slot->inline_bytes;
}

void fb_session_settle(struct fb_slot *slot)
{
    struct fb_proto_session *session = slot->session;
    bool ended = session->state == FB_SESSION_ENDED;
    bool answered = (slot->flags & FB_SLOT_ANSWERED) != 0 && (slot->flags & FB_SLOT_OWES) == 0 &&
                    !fb_session_chunks_are_owed(slot);
    if ((slot->flags & FB_SLOT_OPEN) != 0 && (answered || ended))
        close_number(slot);
    bool in_use = (slot->flags & (FB_SLOT_OPEN | FB_SLOT_STARTED | FB_SLOT_PENDING |
                                  FB_SLOT_STREAMING | FB_SLOT_QUEUED)) != 0;
    if (slot->list != NULL && (slot->flags & FB_SLOT_STARTED) == 0 &&
        ((slot->flags & FB_SLOT_ANSWERED) != 0 || ended))
        list_free(slot);
    if (in_use || fb_session_chunks_are_queued(slot) || session->data_slot == slot)
        return;
    fb_session_window_free(slot);
    slot->flags = 0;
    slot->next = session->free;
    session->free = slot->index;
    resume(session);
}

/* ---- composing ---- */

bool fb_session_frame_begin(struct fb_proto_session *session, struct fb_writer *writer,
                            uint32_t payload_max)
{
    uint32_t bytes = FB_WIRE_HEADER_BYTES + payload_max;
    FB_ASSERT(bytes <= FB_OUTBOX_BYTES);
    uint8_t *room =
        fb_outbox_fits(&session->out, bytes, 1) ? fb_outbox_room(&session->out, bytes) : NULL;
    if (room == NULL)
        return false;
    fb_writer_init(writer, room, bytes);
    size_t at = fb_wire_frame_begin(writer);
    FB_ASSERT(at == 0);
    return true;
}

void fb_session_frame_end(struct fb_proto_session *session, struct fb_writer *writer, uint8_t type,
                          uint8_t flags, uint64_t op)
{
    FB_ASSERT(fb_writer_ok(writer));
    fb_wire_frame_end(writer, 0, type, flags, op, FB_PROTO_SHARD_MAP_VERSION);
    fb_outbox_push_bytes(&session->out, (uint32_t)writer->at_bytes);
    session->server->stats.frames_out++;
    fb_session_mark(session);
}

void fb_session_todo(struct fb_slot *slot, uint8_t todo)
{
    slot->todo |= todo;
    if ((slot->flags & FB_SLOT_PENDING) == 0) {
        slot->flags |= FB_SLOT_PENDING;
        fb_list_push_back(&slot->session->pending, &slot->pending);
    }
}

/* The last message of an operation; false if there is no room. */
static bool tell_done(struct fb_slot *slot)
{
    if (slot->type == FB_MSG_PUT)
        return fb_session_tell_put_done(slot);
    if (slot->type == FB_MSG_GET)
        return fb_session_tell_get_done(slot);
    return fb_session_tell_done(slot);
}

/* Composes what is to be composed for one slot, in its order; false if the outbox is full. */
static bool compose_slot(struct fb_slot *slot, uint64_t now_ns)
{
    if ((slot->todo & FB_TODO_GRANT) != 0 && !fb_session_tell_grant(slot))
        return false;
    slot->todo &= (uint8_t)~FB_TODO_GRANT;
    if ((slot->todo & FB_TODO_CHUNKS) != 0 && !fb_session_tell_chunks(slot, now_ns))
        return false;
    slot->todo &= (uint8_t)~FB_TODO_CHUNKS;
    if ((slot->todo & FB_TODO_DONE) != 0) {
        if (!tell_done(slot))
            return false;
        slot->flags |= FB_SLOT_ANSWERED;
    }
    slot->todo = 0;
    return true;
}

/* Composes what is pending; false if the outbox is full. */
static bool compose_pending(struct fb_proto_session *session, uint64_t now_ns)
{
    struct fb_link *link;
    while ((link = fb_list_first(&session->pending)) != NULL) {
        struct fb_slot *slot = FB_LIST_ITEM(link, struct fb_slot, pending);
        if (!compose_slot(slot, now_ns))
            return false;
        fb_list_remove(&slot->pending);
        slot->flags &= (uint16_t)~FB_SLOT_PENDING;
        fb_session_settle(slot);
    }
    return true;
}

void fb_session_compose(struct fb_proto_session *session, uint64_t now_ns)
{
    if (session->state != FB_SESSION_OPEN)
        return;
    while (compose_pending(session, now_ns) && fb_session_stream(session)) {
    }
}

/* ---- errors ---- */

void fb_proto_session_refuse(struct fb_proto_session *session, int result, const char *text)
{
    if (session->state == FB_SESSION_CLOSING || session->state == FB_SESSION_ENDED)
        return;
    snprintf(session->error, sizeof(session->error), "%s", text);
    struct fb_msg_error error = {
        .result = result,
        .text = (const uint8_t *)session->error,
        .text_bytes = (uint16_t)strlen(session->error),
    };
    struct fb_writer writer;
    /* If there is no room the client does not read: it is closed without words. */
    if (fb_session_frame_begin(session, &writer, FB_WIRE_TEXT_MAX)) {
        fb_wire_error_encode(&writer, &error);
        fb_session_frame_end(session, &writer, FB_MSG_ERROR, 0, 0);
    }
    session->state = FB_SESSION_CLOSING;
    session->data_slot = NULL;
    session->data_left = 0;
    fb_list_remove(&session->dirty);
    fb_list_push_back(&session->server->dirty, &session->dirty);
}

void fb_session_breach(struct fb_proto_session *session, const char *text, const char *field)
{
    char line[FB_SESSION_ERROR_BYTES];
    snprintf(line, sizeof(line), "%s: %s", field, text);
    session->server->stats.breaches++;
    fb_proto_session_refuse(session, FB_PROTOCOL, line);
}

/* ---- the start ---- */

static void take_name(struct fb_proto_session *session, const struct fb_msg_hello *hello)
{
    for (unsigned i = 0; i < hello->name_bytes; i++)
        session->name[i] =
            hello->name[i] >= ' ' && hello->name[i] <= '~' ? (char)hello->name[i] : '?';
    session->name[hello->name_bytes] = '\0';
}

/* The client touches nothing of an earlier session's memory any more. */
static void take_ended(struct fb_proto_session *session, uint64_t now_ns, uint64_t ended)
{
    FB_LIST_FOREACH (link, &session->server->sessions) {
        struct fb_proto_session *other = FB_LIST_ITEM(link, struct fb_proto_session, all);
        if (other->id != ended || other == session || other->nonce != session->nonce)
            continue;
        other->memory_is_left = true;
        if (other->state == FB_SESSION_ENDED)
            fb_proto_session_proven(other, now_ns);
        return;
    }
}

static void welcome(struct fb_proto_session *session)
{
    const struct fb_proto_server_config *config = &session->server->config;
    struct fb_msg_welcome message = {
        .features = session->features,
        .boot_nonce = config->boot_nonce,
        .session = session->id,
        .node_id = config->node_id,
        .pool_bytes = config->pool_bytes,
        .value_bytes_max = fb_min_u64(fb_shard_value_bytes_max(config->shard), FB_VALUE_BYTES_MAX),
        .inline_credit_bytes = FB_PROTO_INLINE_CREDIT_BYTES,
        .chunk_bytes = session->server->chunk_bytes,
        .op_credit = FB_PROTO_OP_CREDIT,
        .heartbeat_ms = config->heartbeat_ms,
        .shards = 1,
        .map_version = FB_PROTO_SHARD_MAP_VERSION,
        .version_minor = FB_WIRE_VERSION_MINOR,
    };
    struct fb_writer writer;
    bool fits = fb_session_frame_begin(session, &writer, sizeof(message));
    FB_ASSERT(fits); /* nothing was sent before */
    fb_wire_welcome_encode(&writer, &message);
    fb_session_frame_end(session, &writer, FB_MSG_WELCOME, 0, 0);
}

static void on_hello(struct fb_proto_session *session, uint64_t now_ns, struct fb_reader *reader)
{
    struct fb_msg_hello hello;
    const char *bad;
    if (fb_wire_hello_decode(reader, &hello, &bad) != FB_OK) {
        fb_session_breach(session, "out of range", bad);
        return;
    }
    take_name(session, &hello);
    session->nonce = hello.client_nonce;
    if (session->server->config.pool == NULL &&
        (!session->may_shm || (hello.features & FB_FEATURE_SHM) == 0)) {
        fb_proto_session_refuse(session, FB_UNSUPPORTED, "only shared memory is served here");
        return;
    }
    uint64_t has = FB_FEATURE_HOLDS | (session->may_shm ? FB_FEATURE_SHM : 0);
    session->features = hello.features & has;
    fb_shard_peer_open(session->server->config.shard, &session->peer);
    session->peer.cookie = (uint64_t)(uintptr_t)session;
    session->peer_is_open = true;
    session->state = FB_SESSION_OPEN;
    if (hello.ended_session != 0)
        take_ended(session, now_ns, hello.ended_session);
    welcome(session);
}

/* ---- frames in ---- */

static bool on_ping(struct fb_proto_session *session, const struct fb_wire_header *header)
{
    struct fb_msg_pong pong = {0};
    struct fb_writer writer;
    if (!fb_session_frame_begin(session, &writer, sizeof(pong)))
        return false;
    const struct fb_proto_server_config *config = &session->server->config;
    if (config->pong != NULL)
        config->pong(config->ctx, &pong);
    fb_wire_pong_encode(&writer, &pong);
    fb_session_frame_end(session, &writer, FB_MSG_PONG, 0, header->op);
    return true;
}

static void on_cancel(struct fb_proto_session *session, uint64_t now_ns,
                      const struct fb_wire_header *header)
{
    struct fb_slot *slot = fb_session_find(session, header->op);
    session->server->stats.cancels++;
    if (slot == NULL || (slot->flags & FB_SLOT_DONE) != 0) {
        session->server->stats.late_frames++;
        return;
    }
    if ((slot->flags & FB_SLOT_QUEUED) != 0)
        fb_session_get_cancel(slot, now_ns);
    else if ((slot->flags & FB_SLOT_STARTED) != 0)
        fb_shard_cancel(session->server->config.shard, now_ns, &slot->op);
}

/* One whole frame; false if it must come again because something has no room. */
static bool dispatch(struct fb_proto_session *session, uint64_t now_ns,
                     const struct fb_wire_header *header, struct fb_reader *reader)
{
    switch (header->type) {
    case FB_MSG_PUT:
        return fb_session_on_put(session, now_ns, header, reader);
    case FB_MSG_COMMIT:
        return fb_session_on_commit(session, now_ns, header, reader);
    case FB_MSG_RELEASE:
        return fb_session_on_release(session, now_ns, header, reader);
    case FB_MSG_GET:
        return fb_session_on_get(session, now_ns, header, reader);
    case FB_MSG_CHUNK_DONE:
        return fb_session_on_chunk_done(session, now_ns, header, reader);
    case FB_MSG_PING:
        return on_ping(session, header);
    case FB_MSG_CANCEL:
        on_cancel(session, now_ns, header);
        return true;
    case FB_MSG_PONG:
        return true;
    default:
        return fb_session_on_request(session, now_ns, header, reader);
    }
}

/* What is wrong with a good header at this moment, or NULL. */
static const char *out_of_place(const struct fb_proto_session *session,
                                const struct fb_wire_header *header, const char **field)
{
    bool is_new = session->state == FB_SESSION_NEW;
    *field = "header.type";
    if (!fb_wire_type_from_client(header->type))
        return "no client sends this";
    if ((header->type == FB_MSG_HELLO) != is_new)
        return is_new ? "HELLO comes first" : "HELLO comes once";
    *field = "header.map_version";
    if (header->map_version != (is_new ? 0 : FB_PROTO_SHARD_MAP_VERSION))
        return "not the one in WELCOME (0 in HELLO)";
    return NULL;
}

/* What must be true of a header before its payload is looked at. */
static bool header_is_good(struct fb_proto_session *session, const uint8_t *bytes,
                           struct fb_wire_header *header)
{
    const char *bad;
    int result = fb_wire_header_decode(bytes, header, &bad);
    if (result == FB_UNSUPPORTED) {
        char line[FB_SESSION_ERROR_BYTES];
        snprintf(line, sizeof(line), "header.version: %u is not spoken here, %u is", bytes[1],
                 FB_WIRE_VERSION);
        session->server->stats.breaches++;
        fb_proto_session_refuse(session, FB_UNSUPPORTED, line);
        return false;
    }
    const char *why = "out of range";
    if (result == FB_OK)
        why = out_of_place(session, header, &bad);
    if (why != NULL)
        fb_session_breach(session, why, bad);
    return why == NULL;
}

static bool check_holds(struct fb_proto_session *session, const uint8_t *bytes,
                        const struct fb_wire_header *header)
{
    uint32_t covered = fb_wire_covered_bytes(header);
    if (fb_wire_check(bytes, bytes + FB_WIRE_HEADER_BYTES, covered) == header->check)
        return true;
    fb_session_breach(session, "does not fit the frame", "header.check");
    return false;
}

/* Bytes of DATA that came in the buffer: hashed while they are copied. */
static void move_data(struct fb_proto_session *session, uint64_t now_ns, const uint8_t *from,
                      uint32_t count);

/* A DATA frame begins; what is at hand of its bytes is moved. Returns what was taken. */
static size_t take_data(struct fb_proto_session *session, uint64_t now_ns, const uint8_t *bytes,
                        size_t count, const struct fb_wire_header *header)
{
    session->want = HEAD_AND_PREAMBLE;
    if (count < HEAD_AND_PREAMBLE)
        return 0;
    if ((header->flags & FB_FRAME_CHECKED) != 0) {
        fb_session_breach(session, "CHECKED is for the node's DATA", "header.flags");
        return 0;
    }
    if (!check_holds(session, bytes, header))
        return 0;
    fb_session_on_data(session, header, bytes + FB_WIRE_HEADER_BYTES);
    uint32_t here = (uint32_t)fb_min_u64(session->data_left, count - HEAD_AND_PREAMBLE);
    move_data(session, now_ns, bytes + HEAD_AND_PREAMBLE, here);
    return HEAD_AND_PREAMBLE + here;
}

/* One frame at the start of `bytes`; returns what was taken, 0 if nothing. */
static size_t take_frame(struct fb_proto_session *session, uint64_t now_ns, const uint8_t *bytes,
                         size_t count)
{
    session->want = FB_WIRE_HEADER_BYTES;
    /* What is no frame of ours is refused by its first byte, without waiting for a header. */
    if (count > 0 && bytes[0] != FB_WIRE_MAGIC) {
        fb_session_breach(session, "not the first byte of a frame", "header.magic");
        return 0;
    }
    struct fb_wire_header header;
    if (count < FB_WIRE_HEADER_BYTES || !header_is_good(session, bytes, &header))
        return 0;
    if (header.type == FB_MSG_DATA)
        return take_data(session, now_ns, bytes, count, &header);
    size_t total = FB_WIRE_HEADER_BYTES + header.payload_bytes;
    session->want = (uint32_t)total;
    if (count < total || !check_holds(session, bytes, &header))
        return 0;
    struct fb_reader reader;
    fb_reader_init(&reader, bytes + FB_WIRE_HEADER_BYTES, header.payload_bytes);
    if (header.type == FB_MSG_HELLO) {
        on_hello(session, now_ns, &reader);
    } else if (!dispatch(session, now_ns, &header, &reader)) {
        session->paused = session->state == FB_SESSION_OPEN;
        return 0;
    }
    return total;
}

size_t fb_proto_session_input(struct fb_proto_session *session, uint64_t now_ns,
                              const uint8_t *bytes, size_t count)
{
    size_t at = 0;
    session->paused = false;
    for (unsigned frames = 0; frames < FB_PROTO_FRAMES_PER_TURN; frames++) {
        if (session->state >= FB_SESSION_CLOSING || session->data_left > 0)
            break;
        size_t taken = take_frame(session, now_ns, bytes + at, count - at);
        if (taken == 0)
            break;
        at += taken;
        session->want = FB_WIRE_HEADER_BYTES;
        session->server->stats.frames_in++;
    }
    fb_session_compose(session, now_ns);
    return at;
}

bool fb_proto_session_owes_chunks(const struct fb_proto_session *session, uint64_t *done)
{
    *done = session->chunks_done;
    return session->chunks_owed > 0;
}

uint32_t fb_proto_session_wants(const struct fb_proto_session *session)
{
    return session->data_left > 0 ? 0 : session->want;
}

/* ---- the bytes of DATA ---- */

uint32_t fb_proto_session_data_left(const struct fb_proto_session *session)
{
    return session->data_left;
}

size_t fb_proto_session_data_runs(const struct fb_proto_session *session, struct fb_io_vec *out,
                                  size_t max)
{
    const struct fb_slot *slot = session->data_slot;
    if (session->data_left == 0 || slot == NULL || !fb_session_takes_data(slot))
        return 0;
    uint64_t off = slot->data_off;
    size_t count = fb_shard_put_runs(session->server->config.shard, &slot->op, &off, out, max);
    uint64_t left = session->data_left;
    size_t used = 0;
    while (used < count && left > 0) {
        out[used].len = (uint32_t)fb_min_u64(out[used].len, left);
        left -= out[used].len;
        used++;
    }
    FB_ASSERT(used > 0);
    return used;
}

/* Adds `count` bytes of the value, which lie (or are copied to) `at`, to the put's leaves. */
static void add_to_leaves(struct fb_slot *slot, uint32_t chunk_bytes, uint8_t *at,
                          const uint8_t *from, uint32_t count)
{
    while (count > 0) {
        uint64_t in_part = slot->data_off % chunk_bytes;
        uint64_t leaf_left =
            fb_min_u64(FB_LEAF_BYTES - in_part % FB_LEAF_BYTES, chunk_bytes - in_part);
        leaf_left = fb_min_u64(leaf_left, slot->op.value_bytes - slot->data_off);
        uint32_t step = (uint32_t)fb_min_u64(count, leaf_left);
        if (from != NULL) {
            fb_hash_add_copy(&slot->leaf, at, from, step);
            from += step;
        } else {
            fb_hash_add(&slot->leaf, at, step);
        }
        slot->data_off += step;
        at += step;
        count -= step;
        if (step == leaf_left) {
            uint64_t leaf = htole64(fb_hash_finish(&slot->leaf));
            fb_hash_add(&slot->leaves, &leaf, sizeof(leaf));
            fb_hash_begin(&slot->leaf, 0);
        }
    }
}

static void move_data(struct fb_proto_session *session, uint64_t now_ns, const uint8_t *from,
                      uint32_t count)
{
    struct fb_proto_server *server = session->server;
    FB_ASSERT(count <= session->data_left);
    server->stats.value_bytes_in += count;
    while (count > 0) {
        size_t runs = fb_proto_session_data_runs(session, server->runs, FB_IO_VEC_MAX);
        if (runs == 0) {
            session->data_left -= count; /* thrown away */
            break;
        }
        for (size_t i = 0; i < runs && count > 0; i++) {
            uint32_t step = (uint32_t)fb_min_u64(server->runs[i].len, count);
            add_to_leaves(session->data_slot, server->chunk_bytes,
                          server->config.pool + server->runs[i].off, from, step);
            from = from != NULL ? from + step : NULL;
            count -= step;
            session->data_left -= step;
        }
    }
    if (session->data_left > 0)
        return;
    struct fb_slot *slot = session->data_slot;
    session->data_slot = NULL;
    if (slot != NULL && fb_session_takes_data(slot))
        fb_shard_put_progress(server->config.shard, now_ns, &slot->op);
    else if (slot != NULL)
        fb_session_settle(slot);
}

void fb_proto_session_data_moved(struct fb_proto_session *session, uint64_t now_ns, uint32_t bytes)
{
    if (bytes > 0 && session->data_left > 0)
        move_data(session, now_ns, NULL, bytes);
}

/* ---- out ---- */

size_t fb_proto_session_slices(const struct fb_proto_session *session, struct fb_slice *out,
                               size_t max)
{
    return fb_outbox_slices(&session->out, session->server->config.pool, out, max);
}

void fb_proto_session_sent(struct fb_proto_session *session, uint64_t now_ns, uint64_t bytes)
{
    if (session->state == FB_SESSION_ENDED)
        return;
    while (bytes > 0) {
        struct fb_out_segment ended;
        bytes -= fb_outbox_sent(&session->out, bytes, &ended);
        if (ended.len > 0)
            fb_session_piece_sent(&session->slots[ended.tag], now_ns, ended.tag2);
    }
    fb_session_compose(session, now_ns);
    resume(session);
}

/* ---- the end ---- */

void fb_proto_session_end(struct fb_proto_session *session, uint64_t now_ns, bool proven)
{
    struct fb_proto_server *server = session->server;
    FB_ASSERT(session->state != FB_SESSION_ENDED);
    session->state = FB_SESSION_ENDED;
    session->data_slot = NULL;
    session->data_left = 0;
    fb_list_remove(&session->dirty);
    fb_outbox_drop(&session->out);
    for (uint16_t i = 0; i < session->slots_used; i++) {
        struct fb_slot *slot = &session->slots[i];
        bool in_use = slot->flags != 0;
        fb_list_remove(&slot->pending);
        fb_list_remove(&slot->streaming);
        slot->flags &= (uint16_t) ~(FB_SLOT_PENDING | FB_SLOT_STREAMING | FB_SLOT_QUEUED);
        for (unsigned c = 0; c < FB_GET_WINDOW; c++)
            slot->chunk[c] = (struct fb_slot_chunk){0};
        if (in_use)
            fb_session_settle(slot);
    }
    server->stats.sessions_ended++;
    session->is_proven = proven || session->memory_is_left;
    if (session->peer_is_open)
        fb_shard_peer_gone(server->config.shard, now_ns, &session->peer, session->is_proven);
    fb_server_drain(server, now_ns);
}

void fb_proto_session_proven(struct fb_proto_session *session, uint64_t now_ns)
{
    FB_ASSERT(session->state == FB_SESSION_ENDED);
    if (session->is_proven)
        return;
    session->is_proven = true;
    if (session->peer_is_open)
        fb_shard_peer_gone(session->server->config.shard, now_ns, &session->peer, true);
    fb_server_drain(session->server, now_ns);
}

bool fb_proto_session_is_idle(const struct fb_proto_session *session)
{
    if (session->state != FB_SESSION_ENDED)
        return false;
    for (uint16_t i = 0; i < session->slots_used; i++)
        if ((session->slots[i].flags & FB_SLOT_STARTED) != 0)
            return false;
    return !session->peer_is_open || fb_shard_peer_idle(&session->peer);
}

void fb_proto_session_fini(struct fb_proto_session *session)
{
    FB_ASSERT(fb_proto_session_is_idle(session));
    fb_list_remove(&session->all);
    fb_list_remove(&session->dirty);
}
