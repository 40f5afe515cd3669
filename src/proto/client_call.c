/*
 * The call on a connection: a cursor over the caller's items, a window of operations, one result
 * per item, the deadline. See client.h.
 */
#include <string.h>

#include "base/assert.h"
#include "base/bits.h"
#include "base/bug.h"
#include "base/reason.h"
#include "base/result.h"
#include "proto/client.h"
#include "proto/client_private.h"

_Static_assert(FB_PROTO_LOOKUP_KEYS *FB_WIRE_DIGEST_BYTES <= FB_WIRE_INLINE_MAX,
               "the digests of a LOOKUP fit into the gather buffer");
_Static_assert(FB_PROTO_LOOKUP_KEYS <= FB_WIRE_DIGESTS_MAX, "and into one frame");

/* ---- items ---- */

static bool is_key_length(size_t bytes)
{
    return bytes >= FB_KEY_BYTES_MIN && bytes <= FB_KEY_BYTES_MAX;
}

void fb_proto_item_key(const struct fb_proto_call *call, size_t item, const void **key,
                       size_t *key_bytes)
{
    switch (call->kind) {
    case FB_PROTO_PUT:
        *key = call->items.put[item].key;
        *key_bytes = call->items.put[item].key_bytes;
        break;
    case FB_PROTO_GET:
        *key = call->items.get[item].key;
        *key_bytes = call->items.get[item].key_bytes;
        break;
    case FB_PROTO_EXISTS:
        *key = call->items.exists[item].key;
        *key_bytes = call->items.exists[item].key_bytes;
        break;
    default:
        *key = call->items.key[item].key;
        *key_bytes = call->items.key[item].key_bytes;
        break;
    }
}

void fb_proto_item_result(const struct fb_proto_call *call, size_t item, int result, uint8_t reason)
{
    switch (call->kind) {
    case FB_PROTO_PUT:
        call->items.put[item].result = result;
        call->items.put[item].reason = reason;
        call->items.put[item].persisted = false;
        call->items.put[item].generation = 0;
        break;
    case FB_PROTO_GET:
        call->items.get[item].result = result;
        call->items.get[item].reason = reason;
        call->items.get[item].tiers = 0;
        call->items.get[item].bytes = 0;
        call->items.get[item].value_bytes = 0;
        call->items.get[item].generation = 0;
        break;
    case FB_PROTO_EXISTS:
        call->items.exists[item].result = result;
        call->items.exists[item].found = 0;
        break;
    default:
        call->items.key[item].result = result;
        call->items.key[item].reason = reason;
        call->items.key[item].generation = 0;
        break;
    }
}

static bool is_batch(const struct fb_proto_call *call)
{
    return call->kind <= FB_PROTO_DROP;
}

/* How far the cursor goes. */
static size_t units(const struct fb_proto_call *call)
{
    return is_batch(call) ? call->count : 1;
}

void fb_proto_call_fail(struct fb_proto_call *call, int result)
{
    call->result = result;
    call->ended = true;
    for (size_t i = 0; is_batch(call) && i < call->count; i++)
        fb_proto_item_result(call, i, result, 0);
}

void fb_proto_call_skip_rest(struct fb_proto_call *call, int result)
{
    if (!is_batch(call) && call->next < units(call))
        call->result = result;
    for (; call->next < units(call); call->next++) {
        if (is_batch(call))
            fb_proto_item_result(call, call->next, result, 0);
    }
}

/* ---- the same key twice in a put ---- */

/*
 * Scratch: a table of item numbers + 1 by the hash of their key (0: empty), then for each item the
 * number of the earlier item with its key + 1 (0: none).
 */
static size_t table_words(size_t count)
{
    return (size_t)1 << fb_log2_ceil(fb_max_u64(count, 1) * 2);
}

size_t fb_proto_call_scratch_words(size_t count)
{
    return count < 2 ? 0 : table_words(count) + count;
}

static uint32_t *twins(const struct fb_proto_call *call)
{
    if (call->kind != FB_PROTO_PUT || call->scratch == NULL || call->count < 2)
        return NULL;
    return call->scratch + table_words(call->count);
}

static void find_twins(const struct fb_proto_client *client, struct fb_proto_call *call)
{
    uint32_t *twin = twins(call);
    if (twin == NULL)
        return;
    uint32_t *table = call->scratch;
    size_t mask = table_words(call->count) - 1;
    memset(table, 0, fb_proto_call_scratch_words(call->count) * sizeof(uint32_t));
    for (size_t i = 0; i < call->count; i++) {
        const struct fb_put_item *item = &call->items.put[i];
        if (!is_key_length(item->key_bytes) || item->key == NULL)
            continue;
        size_t at = fb_hash64(item->key, item->key_bytes, client->config.nonce) & mask;
        for (; table[at] != 0; at = (at + 1) & mask) {
            const struct fb_put_item *other = &call->items.put[table[at] - 1];
            if (other->key_bytes == item->key_bytes &&
                memcmp(other->key, item->key, item->key_bytes) == 0)
                break;
        }
        if (table[at] != 0)
            twin[i] = table[at];
        else
            table[at] = (uint32_t)i + 1;
    }
}

/* Items that are not put themselves end as their twin did: a put that went well is there for them.
 */
static void settle_twins(struct fb_proto_call *call)
{
    uint32_t *twin = twins(call);
    for (size_t i = 0; twin != NULL && i < call->count; i++) {
        if (twin[i] == 0)
            continue;
        struct fb_put_item *item = &call->items.put[i];
        const struct fb_put_item *first = &call->items.put[twin[i] - 1];
        item->result = first->result >= 0 ? FB_EXISTS : first->result;
        item->reason = first->reason;
        item->persisted = first->persisted;
        item->generation = first->generation;
    }
}

/* The planted bug: one key that is there already, or fails, fails its whole batch. */
static void break_whole_batch(struct fb_proto_call *call)
{
    if (!FB_BUG(FB_BUG_BREAK_WHOLEBATCH) || call->kind != FB_PROTO_PUT)
        return;
    bool all_stored = true;
    for (size_t i = 0; i < call->count; i++)
        all_stored = all_stored && call->items.put[i].result == FB_OK;
    for (size_t i = 0; !all_stored && i < call->count; i++)
        fb_proto_item_result(call, i, FB_BUSY, 0);
}

/* ---- begin and end ---- */

void fb_proto_client_begin(struct fb_proto_client *client, uint64_t now_ns,
                           struct fb_proto_call *call)
{
    FB_ASSERT(client->state == FB_PROTO_READY && client->call == NULL);
    FB_ASSERT(call->kind < FB_PROTO_CALL_KINDS && call->next == 0 && call->open_ops == 0);
    FB_ASSERT(call->count < UINT32_MAX);
    client->call = call;
    client->heard_ns = now_ns;
    client->pinged_ns = 0;
    find_twins(client, call);
    fb_proto_call_check(client);
    fb_proto_call_tick(client, now_ns);
}

void fb_proto_call_check(struct fb_proto_client *client)
{
    struct fb_proto_call *call = client->call;
    if (call == NULL || call->next < units(call) || call->open_ops > 0)
        return;
    settle_twins(call);
    break_whole_batch(call);
    call->ended = true;
    client->call = NULL;
}

static void give_up(struct fb_proto_client *client, struct fb_proto_op *op)
{
    op->gave_up = true;
    if (op->is_done)
        return;
    if (op->type == FB_MSG_PUT)
        fb_proto_put_give_up(client, op);
    else
        fb_proto_op_send(client, op, FB_SEND_CANCEL);
}

/* The deadline has passed: nothing new is begun, and what is open is cancelled. */
static void expire(struct fb_proto_client *client, struct fb_proto_call *call, uint64_t now_ns)
{
    call->abort_ns = fb_add_saturated(now_ns, FB_PROTO_ABORT_NS);
    fb_proto_call_skip_rest(call, FB_DEADLINE);
    for (uint32_t i = 0; i < client->op_count && call->open_ops > 0; i++) {
        struct fb_proto_op *op = &client->ops[i];
        if (op->id != 0 && op->call == call)
            give_up(client, op);
    }
}

/* The last answers did not come: the call ends without them. A job that is still out keeps its
 * operation, and so the call, until it has ended. */
static void abandon(struct fb_proto_client *client, struct fb_proto_call *call)
{
    call->is_abandoned = true;
    for (uint32_t i = 0; i < client->op_count && call->open_ops > 0; i++) {
        struct fb_proto_op *op = &client->ops[i];
        if (op->id == 0 || op->call != call || op->jobs > 0)
            continue;
        if (!op->is_done) {
            op->result = FB_DEADLINE;
            if (op->type == FB_MSG_GET && fb_proto_get_is_whole(op, client->welcome.chunk_bytes))
                op->result = FB_OK;
        }
        fb_proto_call_deliver(client, op);
    }
}

void fb_proto_call_tick(struct fb_proto_client *client, uint64_t now_ns)
{
    struct fb_proto_call *call = client->call;
    if (call == NULL)
        return;
    if (call->abort_ns == 0 && now_ns >= call->deadline_ns)
        expire(client, call, now_ns);
    else if (call->is_abandoned || (call->abort_ns != 0 && now_ns >= call->abort_ns))
        abandon(client, call);
    fb_proto_call_check(client);
}

/* ---- requests ---- */

static void end_request(struct fb_proto_client *client, struct fb_writer *writer, size_t at,
                        size_t item, uint8_t type, struct fb_proto_op **op)
{
    *op = NULL;
    if (!fb_writer_ok(writer))
        return;
    *op = fb_proto_op_new(client, client->call, item, type);
    fb_wire_frame_end(writer, at, type, 0, (*op)->id, client->welcome.map_version);
}

/* Digests of the next keys; keys that no digest can be made of have their result at once. */
static bool lookup_request(struct fb_proto_client *client, uint64_t now_ns,
                           struct fb_writer *writer)
{
    struct fb_proto_call *call = client->call;
    struct fb_writer digests;
    fb_writer_init(&digests, client->gather, sizeof(client->gather));
    size_t first = call->next;
    size_t at = first;
    uint32_t count = 0;
    for (; at < call->count && count < FB_PROTO_LOOKUP_KEYS; at++) {
        const void *key;
        size_t key_bytes;
        fb_proto_item_key(call, at, &key, &key_bytes);
        if (!is_key_length(key_bytes) || key == NULL) {
            fb_proto_item_result(call, at, FB_BAD_KEY, 0);
            continue;
        }
        struct fb_digest digest = fb_digest_key(&client->secret, call->epoch, key, key_bytes);
        fb_wire_digest_encode(&digests, &digest);
        count++;
    }
    FB_ASSERT(fb_writer_ok(&digests));
    if (count == 0) {
        call->next = at;
        return false;
    }
    struct fb_msg_lookup lookup = {
        .ns = client->ns,
        .epoch = call->epoch,
        .hold_ms = call->hold_ms,
        .hold_loads = call->hold_loads,
        .deadline_ms = fb_proto_remaining_ms(call->deadline_ns, now_ns),
        .count = count,
        .digests = client->gather,
    };
    size_t frame = fb_wire_frame_begin(writer);
    fb_wire_lookup_encode(writer, &lookup);
    struct fb_proto_op *op;
    end_request(client, writer, frame, first,
                call->kind == FB_PROTO_EXISTS ? FB_MSG_LOOKUP : FB_MSG_HOLD_RELEASE, &op);
    if (op == NULL)
        return false;
    op->span = (uint32_t)(at - first);
    op->digests = count;
    call->next = at;
    return true;
}

/* Requests that are nothing but a key. */
static bool key_request(struct fb_proto_client *client, uint64_t now_ns, struct fb_writer *writer)
{
    static const uint8_t type_of[FB_PROTO_CALL_KINDS] = {
        [FB_PROTO_REMOVE] = FB_MSG_REMOVE,
        [FB_PROTO_WAIT] = FB_MSG_WAIT_PERSISTED,
        [FB_PROTO_DROP] = FB_MSG_DROP_DRAM,
        [FB_PROTO_EXPLAIN] = FB_MSG_EXPLAIN,
    };
    struct fb_proto_call *call = client->call;
    struct fb_msg_key message = {
        .ns = client->ns,
        .epoch = call->epoch,
        .deadline_ms = fb_proto_remaining_ms(call->deadline_ns, now_ns),
    };
    const void *key;
    size_t key_bytes;
    fb_proto_item_key(call, call->next, &key, &key_bytes);
    if (!is_key_length(key_bytes) || key == NULL) {
        if (is_batch(call))
            fb_proto_item_result(call, call->next, FB_BAD_KEY, 0);
        else
            call->result = FB_BAD_KEY;
        call->next++;
        return false;
    }
    message.key = key;
    message.key_bytes = (uint16_t)key_bytes;
    size_t at = fb_wire_frame_begin(writer);
    fb_wire_key_encode(writer, &message);
    struct fb_proto_op *op;
    end_request(client, writer, at, call->next, type_of[call->kind], &op);
    if (op == NULL)
        return false;
    call->next++;
    return true;
}

/* BUMP, REFRESH, LIST, STATUS. */
static bool single_request(struct fb_proto_client *client, uint64_t now_ns,
                           struct fb_writer *writer)
{
    struct fb_proto_call *call = client->call;
    uint32_t left_ms = fb_proto_remaining_ms(call->deadline_ns, now_ns);
    size_t at = fb_wire_frame_begin(writer);
    uint8_t type = FB_MSG_STATUS;
    if (call->kind == FB_PROTO_BUMP) {
        struct fb_msg_epoch message = {.ns = client->ns,
                                       .deadline_ms = left_ms,
                                       .epoch = call->epoch};
        fb_wire_epoch_encode(writer, &message);
        type = FB_MSG_EPOCH;
    } else if (call->kind == FB_PROTO_REFRESH) {
        struct fb_msg_namespace message = {.deadline_ms = left_ms,
                                           .fields = client->config.fields,
                                           .fields_bytes = client->config.fields_bytes};
        fb_wire_namespace_encode(writer, &message);
        type = FB_MSG_NAMESPACE;
    } else if (call->kind == FB_PROTO_LIST) {
        struct fb_msg_list message = {.ns = client->ns,
                                      .deadline_ms = left_ms,
                                      .epoch = call->epoch,
                                      .cursor = call->cursor};
        fb_wire_list_encode(writer, &message);
        type = FB_MSG_LIST;
    }
    struct fb_proto_op *op;
    end_request(client, writer, at, 0, type, &op);
    if (op == NULL)
        return false;
    call->next = 1;
    return true;
}

static bool one_request(struct fb_proto_client *client, uint64_t now_ns, struct fb_writer *writer)
{
    switch (client->call->kind) {
    case FB_PROTO_PUT:
        return fb_proto_put_request(client, now_ns, writer);
    case FB_PROTO_GET:
        return fb_proto_get_request(client, now_ns, writer);
    case FB_PROTO_EXISTS:
    case FB_PROTO_HOLD_RELEASE:
        return lookup_request(client, now_ns, writer);
    case FB_PROTO_REMOVE:
    case FB_PROTO_WAIT:
    case FB_PROTO_DROP:
    case FB_PROTO_EXPLAIN:
        return key_request(client, now_ns, writer);
    default:
        return single_request(client, now_ns, writer);
    }
}

bool fb_proto_call_request(struct fb_proto_client *client, uint64_t now_ns,
                           struct fb_writer *writer)
{
    struct fb_proto_call *call = client->call;
    if (client->state != FB_PROTO_READY)
        return false;
    uint32_t *twin = twins(call);
    while (call->next < units(call) && client->open_ops < client->window) {
        if (twin != NULL && twin[call->next] != 0) {
            call->next++;
            continue;
        }
        size_t before = call->next;
        if (one_request(client, now_ns, writer))
            return true;
        if (!fb_writer_ok(writer) || call->next == before)
            return false;
    }
    fb_proto_call_check(client);
    return false;
}

/* ---- results ---- */

static void deliver_lookup(const struct fb_proto_op *op)
{
    for (uint32_t i = 0; i < op->span; i++) {
        const void *key;
        size_t key_bytes;
        fb_proto_item_key(op->call, op->item + i, &key, &key_bytes);
        if (is_key_length(key_bytes) && key != NULL)
            fb_proto_item_result(op->call, op->item + i, op->result, op->reason);
    }
}

static void deliver_single(const struct fb_proto_op *op)
{
    struct fb_proto_call *call = op->call;
    call->result = op->result;
    call->epoch_now = op->answer;
}

void fb_proto_call_deliver(struct fb_proto_client *client, struct fb_proto_op *op)
{
    struct fb_proto_call *call = op->call;
    FB_ASSERT(call != NULL && call == client->call && call->open_ops > 0);
    FB_ASSERT(op->jobs == 0);
    if (call->kind == FB_PROTO_PUT) {
        fb_proto_item_result(call, op->item, op->result, op->reason);
        call->items.put[op->item].persisted = op->is_persisted;
        call->items.put[op->item].generation = op->answer;
    } else if (call->kind == FB_PROTO_GET) {
        fb_proto_item_result(call, op->item, op->result, op->reason);
        fb_proto_get_finish(client, op, &call->items.get[op->item]);
    } else if (op->type == FB_MSG_LOOKUP || op->type == FB_MSG_HOLD_RELEASE) {
        /* LOOKUP_DONE has set the items of a lookup itself, unless it failed or did not come. */
        if (op->result < 0 || op->type == FB_MSG_HOLD_RELEASE)
            deliver_lookup(op);
    } else if (is_batch(call)) {
        fb_proto_item_result(call, op->item, op->result, op->reason);
        call->items.key[op->item].generation = op->answer;
    } else {
        deliver_single(op);
    }
    op->call = NULL;
    call->open_ops--;
}

/* ---- answers ---- */

static int found_result(uint8_t found, bool hold)
{
    if ((found & FB_WIRE_FOUND_READABLE) == 0)
        return FB_MISS;
    return hold && (found & FB_WIRE_FOUND_HELD) == 0 ? FB_NOT_HELD : FB_OK;
}

/* LOOKUP_DONE. Returns false if its count does not fit. */
static bool take_found(struct fb_proto_op *op, const struct fb_msg_lookup_done *done)
{
    op->result = done->result;
    if (done->result < 0)
        return done->count == 0;
    if (op->type == FB_MSG_HOLD_RELEASE)
        return done->count == 0;
    if (done->count != op->digests)
        return false;
    uint32_t digest = 0;
    for (uint32_t i = 0; op->call != NULL && i < op->span; i++) {
        struct fb_exists_item *item = &op->call->items.exists[op->item + i];
        if (!is_key_length(item->key_bytes) || item->key == NULL)
            continue;
        item->found = done->found[digest++];
        item->result = found_result(item->found, op->call->hold_ms != 0);
    }
    return true;
}

static void take_explanation(struct fb_proto_op *op, const struct fb_msg_explain_done *done)
{
    op->result = done->result;
    if (op->call == NULL)
        return;
    struct fb_explanation *out = op->call->explanation;
    *out = (struct fb_explanation){
        .present = done->present != 0,
        .where = done->tiers,
        .reason = done->reason,
        .value_bytes = done->value_bytes,
        .generation = done->generation,
        .when_ms = done->when_ms,
        .since_ms = done->since_ms,
    };
    memcpy(out->text, done->text, done->text_bytes);
    out->text[done->text_bytes] = '\0';
}

static void take_text(struct fb_proto_op *op, const struct fb_msg_text *done)
{
    op->result = done->result;
    struct fb_proto_call *call = op->call;
    if (call == NULL)
        return;
    call->text_needed = (size_t)done->text_bytes + 1;
    if (call->text_bytes > 0) {
        size_t bytes = fb_min_u64(done->text_bytes, call->text_bytes - 1);
        memcpy(call->text, done->text, bytes);
        call->text[bytes] = '\0';
    }
    if (done->result == FB_OK && call->text_bytes < call->text_needed)
        op->result = FB_BUFFER_TOO_SMALL;
}

/* LIST_DONE: hands the keys over; asks for more unless that was the end. */
static void take_keys(struct fb_proto_op *op, const struct fb_msg_list_done *done)
{
    op->result = done->result;
    struct fb_proto_call *call = op->call;
    if (call == NULL || done->result < 0)
        return;
    struct fb_reader reader;
    fb_reader_init(&reader, done->keys, done->bytes);
    while (fb_reader_left(&reader) > 0) {
        size_t key_bytes;
        const uint8_t *key = fb_reader_blob16(&reader, FB_KEY_BYTES_MAX, &key_bytes);
        FB_ASSERT(key != NULL);
        call->each_result = call->each(call->each_context, key, key_bytes);
        if (call->each_result != 0)
            return;
    }
    if (done->cursor == UINT64_MAX)
        return;
    if (call->abort_ns != 0) {
        op->result = FB_DEADLINE;
        return;
    }
    call->cursor = done->cursor;
    call->next = 0;
}

static int read_done(struct fb_proto_op *op, const struct fb_wire_header *header,
                     struct fb_reader *reader, const char **bad)
{
    struct fb_msg_done done;
    int result = fb_wire_done_decode(reader, &done, bad);
    op->result = done.result;
    op->reason = done.reason;
    op->answer = done.value;
    op->is_persisted = (header->flags & FB_FRAME_PERSISTED) != 0;
    return result;
}

/* Reads an answer into the operation. Returns FB_PROTOCOL, and *bad, if it is not sound. */
static int read_answer(struct fb_proto_op *op, const struct fb_wire_header *header,
                       struct fb_reader *reader, const char **bad)
{
    union {
        struct fb_msg_lookup_done lookup;
        struct fb_msg_explain_done explain;
        struct fb_msg_list_done list;
        struct fb_msg_text text;
    } done;
    int result;
    switch (header->type) {
    case FB_MSG_LOOKUP_DONE:
        result = fb_wire_lookup_done_decode(reader, &done.lookup, bad);
        if (result == FB_OK && !take_found(op, &done.lookup)) {
            *bad = "LOOKUP_DONE.count";
            return FB_PROTOCOL;
        }
        return result;
    case FB_MSG_EXPLAIN_DONE:
        result = fb_wire_explain_done_decode(reader, &done.explain, bad);
        if (result == FB_OK)
            take_explanation(op, &done.explain);
        return result;
    case FB_MSG_LIST_DONE:
        result = fb_wire_list_done_decode(reader, &done.list, bad);
        if (result == FB_OK)
            take_keys(op, &done.list);
        return result;
    case FB_MSG_STATUS_DONE:
        result = fb_wire_text_decode(reader, &done.text, bad);
        if (result == FB_OK)
            take_text(op, &done.text);
        return result;
    default:
        return read_done(op, header, reader, bad);
    }
}

void fb_proto_call_answer(struct fb_proto_client *client, uint64_t now_ns, struct fb_proto_op *op,
                          const struct fb_wire_header *header, struct fb_reader *reader)
{
    const char *bad;
    if (read_answer(op, header, reader, &bad) != FB_OK) {
        fb_proto_breach(client, now_ns, bad);
        return;
    }
    op->is_done = true;
    fb_proto_op_settle(client, op);
}
