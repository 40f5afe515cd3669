/*
 * What puts and gets share with all other requests, and those other requests: each is one frame in,
 * one operation of the shard (or a question that needs none), one frame out.
 */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/bits.h"
#include "base/result.h"
#include "proto/server_private.h"

#define COUNTER_BITS 40 /* generations on the wire: boot counter, then counter */
/* Payload of the answers that have no list and no text. */
#define SHORT_PAYLOAD 64u

/* ---- shared by all requests ---- */

static uint64_t deadline_of(uint64_t now_ns, uint32_t deadline_ms)
{
    return fb_add_saturated(now_ns, deadline_ms * FB_MS_NS);
}

bool fb_session_may_use(const struct fb_proto_session *session, uint16_t ns)
{
    return ns < session->server->config.namespaces_max &&
           (session->namespaces[ns / 8] >> (ns % 8) & 1) != 0;
}

void fb_session_answer(struct fb_slot *slot, int result)
{
    slot->op.result = result;
    slot->flags |= FB_SLOT_DONE;
    fb_session_todo(slot, FB_TODO_DONE);
}

void fb_session_start(struct fb_slot *slot, uint64_t now_ns)
{
    FB_ASSERT((slot->flags & (FB_SLOT_STARTED | FB_SLOT_DONE)) == 0);
    slot->flags |= FB_SLOT_STARTED;
    fb_shard_start_op(slot->session->server->config.shard, now_ns, &slot->op);
}

bool fb_session_key(struct fb_slot *slot, uint64_t now_ns, const struct fb_msg_key *key)
{
    struct fb_proto_session *session = slot->session;
    const struct fb_proto_namespace *namespace =
        fb_session_may_use(session, key->ns) ? fb_session_namespace(session->server, key->ns)
                                             : NULL;
    if (namespace == NULL) {
        fb_session_answer(slot, FB_DENIED);
        return false;
    }
    memcpy(slot->key, key->key, key->key_bytes);
    slot->op.ns = key->ns;
    slot->op.key = slot->key;
    slot->op.key_bytes = key->key_bytes;
    slot->op.epoch = key->epoch;
    slot->op.deadline_ns = deadline_of(now_ns, key->deadline_ms);
    slot->op.digest = fb_digest_key(&namespace->secret, key->epoch, slot->key, key->key_bytes);
    return true;
}

void fb_session_identify(const struct fb_slot *slot, struct fb_identity *identity)
{
    const struct fb_proto_namespace *namespace =
        fb_session_namespace(slot->session->server, slot->op.ns);
    FB_ASSERT(namespace != NULL); /* the key was taken with it */
    *identity = (struct fb_identity){
        .namespace_id = namespace->id,
        .epoch = slot->op.epoch,
        .key = slot->key,
        .key_bytes = slot->op.key_bytes,
        .generation = {.boot = (uint32_t)(slot->op.generation >> COUNTER_BITS),
                       .counter = slot->op.generation & ((UINT64_C(1) << COUNTER_BITS) - 1)},
        .total_bytes = slot->op.value_bytes,
    };
}

/* Room for a list; there is some (may_take_list()). */
static struct fb_proto_list *list_take(struct fb_proto_session *session)
{
    struct fb_proto_server *server = session->server;
    for (unsigned i = 0; i < FB_PROTO_LISTS; i++) {
        if (!server->lists[i].used) {
            server->lists[i].used = true;
            session->lists_used++;
            return &server->lists[i];
        }
    }
    FB_UNREACHABLE();
}

/*
 * True if one of the lists is free, the session has not its share, and an answer of so many bytes
 * fits into the outbox now: a client that does not read must not keep a list that others need.
 */
static bool may_take_list(const struct fb_proto_session *session, uint32_t answer_bytes)
{
    if (session->lists_used >= FB_PROTO_LISTS_EACH)
        return false;
    if (!fb_outbox_fits(&session->out, FB_WIRE_HEADER_BYTES + SHORT_PAYLOAD + answer_bytes, 1))
        return false;
    for (unsigned i = 0; i < FB_PROTO_LISTS; i++)
        if (!session->server->lists[i].used)
            return true;
    return false;
}

/* ---- requests ---- */

/* A decoder's verdict: a breach if it is bad. */
static bool decoded(struct fb_proto_session *session, int result, const char *const *bad)
{
    if (result != FB_OK)
        fb_session_breach(session, "out of range", *bad);
    return result == FB_OK;
}

/* A slot; `*again` if the session must wait for one. */
static struct fb_slot *slot_for(struct fb_proto_session *session,
                                const struct fb_wire_header *header, bool *again)
{
    struct fb_slot *slot = fb_session_slot(session, header);
    *again = slot == NULL && session->state == FB_SESSION_OPEN;
    return slot;
}

/* REMOVE, WAIT_PERSISTED, DROP_DRAM, EXPLAIN. */
static bool on_key(struct fb_proto_session *session, uint64_t now_ns,
                   const struct fb_wire_header *header, struct fb_reader *reader)
{
    struct fb_msg_key key;
    const char *bad;
    bool again;
    if (!decoded(session, fb_wire_key_decode(reader, &key, &bad), &bad))
        return true;
    struct fb_slot *slot = slot_for(session, header, &again);
    if (slot == NULL)
        return !again;
    if (!fb_session_key(slot, now_ns, &key))
        return true;
    if (header->type == FB_MSG_EXPLAIN) {
        fb_session_answer(slot, FB_OK);
        return true;
    }
    slot->op.kind = header->type == FB_MSG_REMOVE           ? FB_OP_REMOVE
                    : header->type == FB_MSG_WAIT_PERSISTED ? FB_OP_WAIT_PERSISTED
                                                            : FB_OP_DROP_DRAM;
    fb_session_start(slot, now_ns);
    return true;
}

/* LOOKUP and HOLD_RELEASE: the digests are kept, since a node that recovers answers later. */
static bool on_lookup(struct fb_proto_session *session, uint64_t now_ns,
                      const struct fb_wire_header *header, struct fb_reader *reader)
{
    struct fb_msg_lookup message;
    const char *bad;
    bool again;
    if (!decoded(session, fb_wire_lookup_decode(reader, &message, &bad), &bad))
        return true;
    if (!may_take_list(session, message.count))
        return false;
    struct fb_slot *slot = slot_for(session, header, &again);
    if (slot == NULL)
        return !again;
    bool may_hold = (session->features & FB_FEATURE_HOLDS) != 0;
    bool asks_hold = message.hold_ms > 0 || header->type == FB_MSG_HOLD_RELEASE;
    if (!fb_session_may_use(session, message.ns) || (asks_hold && !may_hold)) {
        fb_session_answer(slot, may_hold || !asks_hold ? FB_DENIED : FB_UNSUPPORTED);
        return true;
    }
    slot->list = list_take(session);
    for (uint32_t i = 0; i < message.count; i++)
        slot->list->room.lookup.digests[i] = fb_wire_digest_at(message.digests, i);
    memset(slot->list->room.lookup.found, 0, message.count);
    slot->op.kind = header->type == FB_MSG_LOOKUP ? FB_OP_LOOKUP : FB_OP_HOLD_RELEASE;
    slot->op.ns = message.ns;
    slot->op.epoch = message.epoch;
    slot->op.deadline_ns = deadline_of(now_ns, message.deadline_ms);
    slot->op.digests = slot->list->room.lookup.digests;
    slot->op.found = slot->list->room.lookup.found;
    slot->op.n = message.count;
    slot->op.hold_ms = message.hold_ms;
    slot->op.hold_loads = message.hold_loads;
    fb_session_start(slot, now_ns);
    return true;
}

static bool on_namespace(struct fb_proto_session *session, uint64_t now_ns,
                         const struct fb_wire_header *header, struct fb_reader *reader)
{
    struct fb_proto_server *server = session->server;
    struct fb_msg_namespace message;
    const char *bad;
    bool again;
    if (!decoded(session, fb_wire_namespace_decode(reader, &message, &bad), &bad))
        return true;
    if (!may_take_list(session, 0))
        return false;
    struct fb_slot *slot = slot_for(session, header, &again);
    if (slot == NULL)
        return !again;
    slot->list = list_take(session);
    memcpy(slot->list->room.fields, message.fields, message.fields_bytes);
    slot->op.kind = FB_OP_NAMESPACE;
    slot->op.ns_fields = slot->list->room.fields;
    slot->op.ns_fields_bytes = message.fields_bytes;
    slot->op.ns_quota_dram_bytes = message.quota_dram_bytes;
    slot->op.ns_quota_ssd_bytes = message.quota_ssd_bytes;
    slot->op.deadline_ns = deadline_of(now_ns, message.deadline_ms);
    server->config.entropy(server->config.ctx, slot->op.ns_secret, sizeof(slot->op.ns_secret));
    fb_session_start(slot, now_ns);
    return true;
}

static bool on_epoch(struct fb_proto_session *session, uint64_t now_ns,
                     const struct fb_wire_header *header, struct fb_reader *reader)
{
    struct fb_msg_epoch message;
    const char *bad;
    bool again;
    if (!decoded(session, fb_wire_epoch_decode(reader, &message, &bad), &bad))
        return true;
    struct fb_slot *slot = slot_for(session, header, &again);
    if (slot == NULL)
        return !again;
    if (!fb_session_may_use(session, message.ns)) {
        fb_session_answer(slot, FB_DENIED);
        return true;
    }
    slot->op.kind = FB_OP_EPOCH;
    slot->op.ns = message.ns;
    slot->op.epoch = message.epoch;
    slot->op.deadline_ns = deadline_of(now_ns, message.deadline_ms);
    fb_session_start(slot, now_ns);
    return true;
}

static bool on_list(struct fb_proto_session *session, uint64_t now_ns,
                    const struct fb_wire_header *header, struct fb_reader *reader)
{
    struct fb_msg_list message;
    const char *bad;
    bool again;
    if (!decoded(session, fb_wire_list_decode(reader, &message, &bad), &bad))
        return true;
    if (!may_take_list(session, FB_WIRE_LIST_BYTES_MAX))
        return false;
    struct fb_slot *slot = slot_for(session, header, &again);
    if (slot == NULL)
        return !again;
    if (!fb_session_may_use(session, message.ns)) {
        fb_session_answer(slot, FB_DENIED);
        return true;
    }
    slot->list = list_take(session);
    slot->op.kind = FB_OP_LIST;
    slot->op.ns = message.ns;
    slot->op.epoch = message.epoch;
    slot->op.deadline_ns = deadline_of(now_ns, message.deadline_ms);
    slot->op.list_cursor = message.cursor;
    slot->op.list_out = slot->list->room.keys;
    slot->op.list_bytes = FB_WIRE_LIST_BYTES_MAX;
    fb_session_start(slot, now_ns);
    return true;
}

static bool on_status(struct fb_proto_session *session, const struct fb_wire_header *header)
{
    bool again;
    struct fb_slot *slot = slot_for(session, header, &again);
    if (slot != NULL)
        fb_session_answer(slot, FB_OK);
    return slot != NULL || !again;
}

bool fb_session_on_request(struct fb_proto_session *session, uint64_t now_ns,
                           const struct fb_wire_header *header, struct fb_reader *reader)
{
    bool taken;
    switch (header->type) {
    case FB_MSG_REMOVE:
    case FB_MSG_WAIT_PERSISTED:
    case FB_MSG_DROP_DRAM:
    case FB_MSG_EXPLAIN:
        taken = on_key(session, now_ns, header, reader);
        break;
    case FB_MSG_LOOKUP:
    case FB_MSG_HOLD_RELEASE:
        taken = on_lookup(session, now_ns, header, reader);
        break;
    case FB_MSG_NAMESPACE:
        taken = on_namespace(session, now_ns, header, reader);
        break;
    case FB_MSG_EPOCH:
        taken = on_epoch(session, now_ns, header, reader);
        break;
    case FB_MSG_LIST:
        taken = on_list(session, now_ns, header, reader);
        break;
    case FB_MSG_STATUS:
        taken = on_status(session, header);
        break;
    default: /* ERROR: the client has something against us */
        fb_session_breach(session, "the client ends the connection",
                          fb_wire_type_name(header->type));
        return true;
    }
    fb_server_drain(session->server, now_ns);
    return taken;
}

void fb_session_misc_done(struct fb_slot *slot)
{
    if (slot->type == FB_MSG_NAMESPACE && slot->op.result >= 0 &&
        slot->op.ns < slot->session->server->config.namespaces_max)
        slot->session->namespaces[slot->op.ns / 8] |= (uint8_t)(1u << (slot->op.ns % 8));
    fb_session_todo(slot, FB_TODO_DONE);
}

/* ---- last messages ---- */

static bool tell_short(struct fb_slot *slot, uint8_t type, uint64_t value, uint8_t flags)
{
    struct fb_writer writer;
    if (!fb_session_frame_begin(slot->session, &writer, SHORT_PAYLOAD))
        return false;
    struct fb_msg_done done = {.result = slot->op.result,
                               .reason = slot->op.reason,
                               .value = value};
    fb_wire_done_encode(&writer, &done);
    fb_session_frame_end(slot->session, &writer, type, flags, slot->id);
    return true;
}

static bool tell_namespace(struct fb_slot *slot)
{
    struct fb_writer writer;
    if (!fb_session_frame_begin(slot->session, &writer, SHORT_PAYLOAD))
        return false;
    struct fb_msg_namespace_done done = {.result = slot->op.result};
    if (slot->op.result >= 0) {
        done.ns = slot->op.ns;
        done.epoch = slot->op.epoch;
        memcpy(done.id, slot->op.ns_id, sizeof(done.id));
        memcpy(done.secret, slot->op.ns_secret, sizeof(done.secret));
    }
    fb_wire_namespace_done_encode(&writer, &done);
    fb_session_frame_end(slot->session, &writer, FB_MSG_NAMESPACE_DONE, 0, slot->id);
    return true;
}

static bool tell_lookup(struct fb_slot *slot)
{
    struct fb_writer writer;
    if (!fb_session_frame_begin(slot->session, &writer, SHORT_PAYLOAD + slot->op.n))
        return false;
    struct fb_msg_lookup_done done = {.result = slot->op.result};
    if (slot->op.result >= 0 && slot->type == FB_MSG_LOOKUP) {
        done.count = slot->op.n;
        done.found = slot->op.found;
    }
    fb_wire_lookup_done_encode(&writer, &done);
    fb_session_frame_end(slot->session, &writer, FB_MSG_LOOKUP_DONE, 0, slot->id);
    return true;
}

static bool tell_list(struct fb_slot *slot)
{
    struct fb_writer writer;
    if (!fb_session_frame_begin(slot->session, &writer, SHORT_PAYLOAD + FB_WIRE_LIST_BYTES_MAX))
        return false;
    struct fb_msg_list_done done = {.result = slot->op.result, .cursor = slot->op.list_cursor};
    if (slot->op.result >= 0) {
        done.bytes = slot->op.list_bytes;
        done.keys = slot->op.list_out;
    }
    fb_wire_list_done_encode(&writer, &done);
    fb_session_frame_end(slot->session, &writer, FB_MSG_LIST_DONE, 0, slot->id);
    return true;
}

/* Where a value lies, in words. */
static uint16_t place_text(const struct fb_explain *explain, char *out, size_t room)
{
    int count = 0;
    if (explain->present && explain->addr.incarnation != 0)
        count = snprintf(out, room, "device %u, segment %u, incarnation %u, block %u",
                         explain->addr.device, explain->addr.segment, explain->addr.incarnation,
                         explain->addr.block);
    return (uint16_t)(count > 0 ? count : 0);
}

/* Explains the key of a request. One that nothing is known of may have been there before the
 * namespace's epoch was raised: under the digest that it had then. */
static void explain(const struct fb_slot *slot, struct fb_explain *out)
{
    const struct fb_shard *shard = slot->session->server->config.shard;
    const struct fb_op *op = &slot->op;
    fb_shard_explain(shard, op->ns, &op->digest, out);
    const struct fb_proto_namespace *namespace =
        fb_session_namespace(slot->session->server, op->ns);
    if (out->present || out->reason != FB_REASON_NO_RECORD || op->epoch <= 1 || namespace == NULL)
        return;
    const struct fb_digest before =
        fb_digest_key(&namespace->secret, op->epoch - 1, slot->key, op->key_bytes);
    struct fb_explain then;
    fb_shard_explain(shard, op->ns, &before, &then);
    if (!then.present && then.reason != FB_REASON_EPOCH_BUMPED)
        return;
    out->reason = FB_REASON_EPOCH_BUMPED;
    out->generation = then.generation;
    out->when_ms = then.present ? 0 : then.when_ms;
}

static bool tell_explain(struct fb_slot *slot)
{
    struct fb_writer writer;
    if (!fb_session_frame_begin(slot->session, &writer, SHORT_PAYLOAD + FB_WIRE_TEXT_MAX))
        return false;
    struct fb_msg_explain_done done = {.result = slot->op.result};
    char text[FB_SESSION_ERROR_BYTES];
    if (slot->op.result >= 0) {
        struct fb_explain found;
        explain(slot, &found);
        done.present = found.present;
        done.tiers = found.tiers;
        done.reason = found.reason;
        done.value_bytes = found.value_bytes;
        done.generation = found.generation;
        done.when_ms = found.when_ms;
        done.since_ms = found.since_ms;
        done.text_bytes = place_text(&found, text, sizeof(text));
        done.text = (const uint8_t *)text;
    }
    fb_wire_explain_done_encode(&writer, &done);
    fb_session_frame_end(slot->session, &writer, FB_MSG_EXPLAIN_DONE, 0, slot->id);
    return true;
}

static bool tell_status(struct fb_slot *slot)
{
    const struct fb_proto_server_config *config = &slot->session->server->config;
    static const char nothing[] = "{}";
    struct fb_writer writer;
    if (!fb_session_frame_begin(slot->session, &writer, SHORT_PAYLOAD + FB_WIRE_STATUS_BYTES_MAX))
        return false;
    struct fb_msg_text done = {.result = FB_OK, .text = (const uint8_t *)nothing, .text_bytes = 2};
    if (config->status != NULL) {
        /* Composed where it will be sent from, behind header and lengths. */
        char *at = (char *)writer.bytes + FB_WIRE_HEADER_BYTES + SHORT_PAYLOAD;
        done.text_bytes = (uint32_t)config->status(config->ctx, at, FB_WIRE_STATUS_BYTES_MAX);
        FB_ASSERT(done.text_bytes <= FB_WIRE_STATUS_BYTES_MAX);
        memmove((char *)writer.bytes + FB_WIRE_HEADER_BYTES + 8, at, done.text_bytes);
        fb_writer_u32(&writer, 0);
        fb_writer_u32(&writer, done.text_bytes);
        uint8_t *room = fb_writer_room(&writer, done.text_bytes);
        FB_ASSERT(room != NULL);
    } else {
        fb_wire_text_encode(&writer, &done);
    }
    fb_session_frame_end(slot->session, &writer, FB_MSG_STATUS_DONE, 0, slot->id);
    return true;
}

bool fb_session_tell_done(struct fb_slot *slot)
{
    const struct fb_op *op = &slot->op;
    switch (slot->type) {
    case FB_MSG_NAMESPACE:
        return tell_namespace(slot);
    case FB_MSG_LOOKUP:
    case FB_MSG_HOLD_RELEASE:
        return tell_lookup(slot);
    case FB_MSG_REMOVE:
        return tell_short(slot, FB_MSG_REMOVE_DONE, op->generation, 0);
    case FB_MSG_WAIT_PERSISTED: {
        uint8_t flags = op->result == FB_OK || op->persisted ? FB_FRAME_PERSISTED : 0;
        return tell_short(slot, FB_MSG_WAIT_DONE, op->generation, flags);
    }
    case FB_MSG_EPOCH:
        return tell_short(slot, FB_MSG_EPOCH_DONE, op->epoch, 0);
    case FB_MSG_DROP_DRAM:
        return tell_short(slot, FB_MSG_DROP_DONE, op->generation, 0);
    case FB_MSG_EXPLAIN:
        return tell_explain(slot);
    case FB_MSG_LIST:
        return tell_list(slot);
    case FB_MSG_STATUS:
        return tell_status(slot);
    default:
        FB_UNREACHABLE();
    }
}
