/*
 * Gets on a connection of the client. Every part that comes is checked before it counts: its leaves
 * are hashed from the bytes that the caller has, or has copied, and its root is computed over the
 * key that was asked for. See client.h.
 */
#include <string.h>

#include "base/assert.h"
#include "base/bits.h"
#include "base/bug.h"
#include "base/prng.h"
#include "base/reason.h"
#include "base/result.h"
#include "proto/client.h"
#include "proto/client_private.h"

#define GET_FLAGS (FB_GET_USES_HOLD | FB_GET_STAYS_COLD)

/* ---- the request ---- */

static int check_item(const struct fb_get_item *item, uint64_t *room_bytes)
{
    if (item->key == NULL || item->key_bytes < FB_KEY_BYTES_MIN ||
        item->key_bytes > FB_KEY_BYTES_MAX)
        return FB_BAD_KEY;
    if ((item->buf_count != 0 && item->bufs == NULL) ||
        !fb_scatter_total(item->bufs, item->buf_count, room_bytes) ||
        (item->flags & ~(uint32_t)GET_FLAGS) != 0)
        return FB_BAD_ARGUMENT;
    return FB_OK;
}

bool fb_proto_get_request(struct fb_proto_client *client, uint64_t now_ns, struct fb_writer *writer)
{
    struct fb_proto_call *call = client->call;
    const struct fb_get_item *item = &call->items.get[call->next];
    uint64_t room_bytes = 0;
    int result = check_item(item, &room_bytes);
    if (result != FB_OK) {
        fb_proto_item_result(call, call->next++, result, 0);
        return false;
    }
    uint64_t range_bytes = item->range_bytes == 0 ? UINT64_MAX : item->range_bytes;
    struct fb_msg_get get = {
        .key = {.ns = client->ns,
                .epoch = call->epoch,
                .deadline_ms = fb_proto_remaining_ms(call->deadline_ns, now_ns),
                .key = item->key,
                .key_bytes = (uint16_t)item->key_bytes},
        /* Without a buffer only the length is wanted: no byte lies that far behind. */
        .range_off = room_bytes == 0 ? FB_VALUE_BYTES_MAX : item->range_off,
        .range_bytes = range_bytes,
    };
    if ((item->flags & FB_GET_USES_HOLD) != 0)
        get.get_flags |= FB_WIRE_GET_HELD;
    if ((item->flags & FB_GET_STAYS_COLD) != 0)
        get.get_flags |= FB_WIRE_GET_NO_PROMOTE;
    size_t at = fb_wire_frame_begin(writer);
    fb_wire_get_encode(writer, &get);
    if (!fb_writer_ok(writer))
        return false;
    struct fb_proto_op *op = fb_proto_op_new(client, call, call->next++, FB_MSG_GET);
    op->get.range_off = item->range_off;
    op->get.range_bytes = range_bytes;
    op->get.room_bytes = room_bytes;
    op->get.data_chunk = FB_NO_CHUNK;
    fb_wire_frame_end(writer, at, FB_MSG_GET, 0, op->id, client->welcome.map_version);
    return true;
}

/* ---- what is wanted ---- */

static uint64_t range_of(const struct fb_proto_get_state *get, uint64_t value_bytes)
{
    uint64_t left = fb_sub_floored(value_bytes, get->range_off);
    return fb_min_u64(left, get->range_bytes);
}

/* The value's length is known now. */
static void learn_value(struct fb_proto_client *client, struct fb_proto_op *op,
                        uint64_t value_bytes)
{
    struct fb_proto_get_state *get = &op->get;
    get->value_bytes = value_bytes;
    get->want_bytes = range_of(get, value_bytes);
    get->is_too_small = get->want_bytes > get->room_bytes;
    if (get->is_too_small && !op->gave_up) {
        op->gave_up = true;
        fb_proto_op_send(client, op, FB_SEND_CANCEL);
    }
}

/* A part counts once: the sum over the wanted parts tells if one is missing or came twice. */
static uint64_t part_mark(uint64_t part)
{
    return fb_mix64(part + 1);
}

bool fb_proto_get_is_whole(const struct fb_proto_op *op, uint32_t chunk_bytes)
{
    const struct fb_proto_get_state *get = &op->get;
    if (get->value_bytes == 0 || get->is_bad || get->is_too_small ||
        get->got_bytes != get->want_bytes)
        return false;
    if (get->want_bytes == 0)
        return true;
    uint64_t mix = 0;
    uint64_t last = (get->range_off + get->want_bytes - 1) / chunk_bytes;
    for (uint64_t part = get->range_off / chunk_bytes; part <= last; part++)
        mix += part_mark(part);
    return mix == get->parts_mix;
}

/* ---- chunks ---- */

/* What a chunk must be, seen from what was asked and what came before. NULL, or what is wrong. */
static const char *check_chunk(const struct fb_proto_client *client, const struct fb_proto_op *op,
                               const struct fb_msg_chunk *chunk)
{
    const struct fb_proto_get_state *get = &op->get;
    uint64_t part_size = client->welcome.chunk_bytes;
    if (get->value_bytes != 0 &&
        (chunk->value_bytes != get->value_bytes || chunk->generation != op->generation))
        return "CHUNK of another value";
    if (get->chunk[chunk->slot].out)
        return "CHUNK.slot";
    if (chunk->value_off != chunk->part * part_size ||
        chunk->part_bytes != fb_min_u64(part_size, chunk->value_bytes - chunk->value_off))
        return "CHUNK.value_off";
    uint64_t want_end = fb_add_saturated(get->range_off, range_of(get, chunk->value_bytes));
    uint64_t from = fb_max_u64(chunk->value_off, get->range_off);
    uint64_t to = fb_min_u64(chunk->value_off + chunk->part_bytes, want_end);
    if (from >= to || chunk->value_off + chunk->want_off != from || chunk->want_bytes != to - from)
        return "CHUNK.want_off";
    bool shm = (client->welcome.features & FB_FEATURE_SHM) != 0;
    if ((chunk->mode == FB_WIRE_CHUNK_RUNS && !shm) || (chunk->mode == FB_WIRE_CHUNK_DATA && shm))
        return "CHUNK.mode";
    if (chunk->mode != FB_WIRE_CHUNK_RUNS && chunk->want_bytes < chunk->part_bytes &&
        !chunk->verified)
        return "CHUNK.verified";
    return NULL;
}

static bool are_runs_sound(const struct fb_proto_client *client, const struct fb_msg_chunk *chunk)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < chunk->run_count; i++) {
        struct fb_wire_run run = fb_wire_run_at(chunk->runs, i);
        if (run.off > client->welcome.pool_bytes || run.len > client->welcome.pool_bytes - run.off)
            return false;
        bytes += run.len;
    }
    return bytes == chunk->part_bytes;
}

/* The part's root, from its leaves, is the one that the index had. */
static bool is_root(const struct fb_proto_client *client, const struct fb_proto_op *op,
                    const struct fb_proto_chunk *chunk, const uint64_t *leaves)
{
    if (FB_BUG(FB_BUG_SKIP_CHECKSUM))
        return true;
    struct fb_identity identity;
    fb_proto_identity(client, op, chunk->value_off, chunk->part_bytes, op->get.value_bytes,
                      &identity);
    return fb_root_of(&identity, leaves, fb_div_up(chunk->part_bytes, FB_LEAF_BYTES)) ==
           chunk->root;
}

/* The wanted piece of a part is with the caller, checked. */
static void count_part(struct fb_proto_op *op, const struct fb_proto_chunk *chunk)
{
    op->get.got_bytes += chunk->want_bytes;
    op->get.parts_mix += part_mark(chunk->part);
}

/* A chunk's memory at the node is not needed any more. */
static void end_chunk(struct fb_proto_client *client, struct fb_proto_op *op, unsigned slot,
                      bool bad)
{
    struct fb_proto_get_state *get = &op->get;
    get->chunk[slot].out = false;
    get->chunk_done |= (uint8_t)(1u << slot);
    if (bad) {
        get->chunk_bad |= (uint8_t)(1u << slot);
        get->is_bad = true;
    }
    fb_proto_op_send(client, op, FB_SEND_CHUNK_DONE);
}

static const struct fb_get_item *item_of(const struct fb_proto_op *op)
{
    return &op->call->items.get[op->item];
}

/* True if the bytes still have somewhere to go. */
static bool is_wanted(const struct fb_proto_op *op)
{
    return op->call != NULL && !op->gave_up;
}

/* Bytes that came in the frame itself. The node has checked them; we do where we can. */
static void take_inline(struct fb_proto_client *client, struct fb_proto_op *op,
                        const struct fb_proto_chunk *chunk, const uint8_t *bytes)
{
    struct fb_scatter scatter;
    const struct fb_get_item *item = item_of(op);
    fb_scatter_begin(&scatter, item->bufs, item->buf_count,
                     chunk->value_off + chunk->want_off - op->get.range_off);
    fb_scatter_write(&scatter, bytes, chunk->want_bytes);
    if (chunk->want_bytes == chunk->part_bytes) {
        uint64_t leaf = fb_leaf_hash(bytes, chunk->want_bytes);
        if (!is_root(client, op, chunk, &leaf)) {
            op->get.is_bad = true;
            return;
        }
    }
    count_part(op, chunk);
}

void fb_proto_get_chunk(struct fb_proto_client *client, uint64_t now_ns, struct fb_proto_op *op,
                        struct fb_reader *reader)
{
    struct fb_msg_chunk message;
    const char *bad = NULL;
    if (fb_wire_chunk_decode(reader, &message, &bad) == FB_OK)
        bad = check_chunk(client, op, &message);
    if (bad == NULL && message.mode == FB_WIRE_CHUNK_RUNS && !are_runs_sound(client, &message))
        bad = "CHUNK.runs";
    if (bad != NULL) {
        fb_proto_breach(client, now_ns, bad);
        return;
    }
    op->generation = message.generation;
    if (op->get.value_bytes == 0)
        learn_value(client, op, message.value_bytes);
    struct fb_proto_chunk *chunk = &op->get.chunk[message.slot];
    *chunk = (struct fb_proto_chunk){
        .out = message.mode != FB_WIRE_CHUNK_INLINE,
        .mode = message.mode,
        .part = message.part,
        .part_bytes = message.part_bytes,
        .want_off = message.want_off,
        .want_bytes = message.want_bytes,
        .value_off = message.value_off,
        .root = message.root,
    };
    if (message.mode == FB_WIRE_CHUNK_DATA)
        return;
    if (message.mode == FB_WIRE_CHUNK_INLINE) {
        if (is_wanted(op))
            take_inline(client, op, chunk, message.inline_data);
        return;
    }
    if (!is_wanted(op)) {
        end_chunk(client, op, message.slot, false);
        return;
    }
    client->todo = (struct fb_proto_todo){
        .op = op,
        .chunk = message.slot,
        .runs = message.runs,
        .run_count = message.run_count,
    };
}

void fb_proto_get_job(struct fb_proto_client *client, struct fb_proto_job *job)
{
    struct fb_proto_todo *todo = &client->todo;
    const struct fb_proto_op *op = todo->op;
    const struct fb_proto_chunk *chunk = &op->get.chunk[todo->chunk];
    const struct fb_get_item *item = item_of(op);
    job->chunk = todo->chunk;
    job->bufs = item->bufs;
    job->buf_count = item->buf_count;
    job->buf_off = chunk->value_off + chunk->want_off - op->get.range_off;
    job->value_off = chunk->value_off;
    job->part_bytes = chunk->part_bytes;
    job->want_off = chunk->want_off;
    job->want_bytes = chunk->want_bytes;
    job->runs = todo->runs;
    job->run_count = todo->run_count;
    todo->op = NULL;
}

void fb_proto_get_moved(struct fb_proto_client *client, struct fb_proto_op *op,
                        const struct fb_proto_job *job, const uint64_t *leaves)
{
    const struct fb_proto_chunk *chunk = &op->get.chunk[job->chunk];
    FB_ASSERT(chunk->out && chunk->mode == FB_WIRE_CHUNK_RUNS);
    bool bad = false;
    if (leaves != NULL) {
        FB_ASSERT(op->call != NULL);
        bad = !is_root(client, op, chunk, leaves);
        if (!bad)
            count_part(op, chunk);
    }
    end_chunk(client, op, job->chunk, bad);
}

void fb_proto_get_chunk_done(struct fb_proto_client *client, struct fb_proto_op *op,
                             struct fb_writer *writer)
{
    struct fb_proto_get_state *get = &op->get;
    FB_ASSERT(get->chunk_done != 0);
    struct fb_msg_chunk_done done = {.slot = (uint8_t)__builtin_ctz(get->chunk_done)};
    uint8_t bit = (uint8_t)(1u << done.slot);
    uint8_t flags = (get->chunk_bad & bit) != 0 ? FB_FRAME_BAD : 0;
    size_t at = fb_wire_frame_begin(writer);
    fb_wire_chunk_done_encode(writer, &done);
    fb_wire_frame_end(writer, at, FB_MSG_CHUNK_DONE, flags, op->id, client->welcome.map_version);
    if (!fb_writer_ok(writer))
        return;
    get->chunk_done &= (uint8_t)~bit;
    get->chunk_bad &= (uint8_t)~bit;
    if (get->chunk_done == 0)
        op->send &= (uint8_t)~FB_SEND_CHUNK_DONE;
}

/* ---- DATA ---- */

/* The chunk that goes on at `off` in the value. */
static uint8_t chunk_at(const struct fb_proto_op *op, uint64_t off)
{
    for (uint8_t i = 0; i < FB_WIRE_CHUNK_SLOTS; i++) {
        const struct fb_proto_chunk *chunk = &op->get.chunk[i];
        if (chunk->out && chunk->mode == FB_WIRE_CHUNK_DATA &&
            chunk->value_off + chunk->want_off + chunk->data_bytes == off)
            return i;
    }
    return FB_NO_CHUNK;
}

bool fb_proto_get_sink(struct fb_proto_client *client, uint64_t now_ns, struct fb_proto_op *op,
                       const struct fb_wire_header *header, struct fb_proto_sink *sink)
{
    const struct fb_msg_data *data = &client->data_in;
    uint8_t at = chunk_at(op, data->off);
    if (at == FB_NO_CHUNK || (op->get.data_chunk != FB_NO_CHUNK && op->get.data_chunk != at)) {
        fb_proto_breach(client, now_ns, "DATA.off");
        return false;
    }
    const struct fb_proto_chunk *chunk = &op->get.chunk[at];
    uint32_t in_leaf = (chunk->want_off + chunk->data_bytes) % FB_LEAF_BYTES;
    if (data->len > chunk->want_bytes - chunk->data_bytes || data->len > FB_LEAF_BYTES - in_leaf) {
        fb_proto_breach(client, now_ns, "DATA.len");
        return false;
    }
    bool whole = chunk->want_bytes == chunk->part_bytes;
    if (!whole && (header->flags & FB_FRAME_CHECKED) == 0) {
        fb_proto_breach(client, now_ns, "DATA of a cut range is not checked");
        return false;
    }
    op->get.data_chunk = at;
    *sink = (struct fb_proto_sink){.bytes = data->len};
    if (!is_wanted(op))
        return true;
    sink->bufs = item_of(op)->bufs;
    sink->buf_count = item_of(op)->buf_count;
    sink->off = data->off - op->get.range_off;
    return true;
}

/* True if a checked frame's bytes, which are with the caller now, are those that were sent. */
static bool is_frame_good(struct fb_proto_client *client, const struct fb_wire_header *header,
                          const struct fb_proto_op *op)
{
    uint8_t head[sizeof(client->data_head)];
    struct fb_wire_data_check check;
    const struct fb_msg_data *data = &client->data_in;
    fb_wire_data_check_begin(&check, head, header->op, data->off, data->len, header->map_version);
    struct fb_scatter scatter;
    fb_scatter_begin(&scatter, item_of(op)->bufs, item_of(op)->buf_count,
                     data->off - op->get.range_off);
    fb_scatter_hash(&scatter, &check.state, data->len);
    fb_wire_data_check_end(&check, head);
    return memcmp(head, client->data_head, sizeof(head)) == 0;
}

/* Adds the frame's bytes to the leaves of their part, which comes whole. */
static void hash_data(struct fb_proto_client *client, struct fb_proto_op *op,
                      const struct fb_proto_chunk *chunk)
{
    const struct fb_msg_data *data = &client->data_in;
    uint32_t at = chunk->data_bytes;
    if (at % FB_LEAF_BYTES == 0)
        fb_hash_begin(&op->hash, 0);
    struct fb_scatter scatter;
    fb_scatter_begin(&scatter, item_of(op)->bufs, item_of(op)->buf_count,
                     data->off - op->get.range_off);
    fb_scatter_hash(&scatter, &op->hash, data->len);
    uint32_t end = at + data->len;
    if (end % FB_LEAF_BYTES == 0 || end == chunk->part_bytes)
        op->leaves[at / FB_LEAF_BYTES] = fb_hash_finish(&op->hash);
}

void fb_proto_get_data(struct fb_proto_client *client, uint64_t now_ns, struct fb_proto_op *op,
                       bool skipped)
{
    uint8_t at = op->get.data_chunk;
    FB_ASSERT(at != FB_NO_CHUNK);
    struct fb_proto_chunk *chunk = &op->get.chunk[at];
    struct fb_wire_header header;
    const char *bad;
    int decoded = fb_wire_header_decode(client->data_head, &header, &bad);
    FB_ASSERT(decoded == FB_OK);
    bool whole = chunk->want_bytes == chunk->part_bytes;
    bool wanted = is_wanted(op) && !skipped;
    if (wanted && (header.flags & FB_FRAME_CHECKED) != 0 && !is_frame_good(client, &header, op)) {
        fb_proto_breach(client, now_ns, "header.check");
        return;
    }
    if (wanted && whole)
        hash_data(client, op, chunk);
    op->job_dropped = op->job_dropped || !wanted;
    chunk->data_bytes += client->data_in.len;
    if (chunk->data_bytes < chunk->want_bytes)
        return;
    op->get.data_chunk = FB_NO_CHUNK;
    bool bad_root = false;
    if (is_wanted(op) && !op->job_dropped) {
        bad_root = whole && !is_root(client, op, chunk, op->leaves);
        if (!bad_root)
            count_part(op, chunk);
    }
    end_chunk(client, op, at, bad_root);
}

/* ---- the end ---- */

/* GET_DONE came instead of the rest of a chunk's DATA; the chunk is answered all the same. */
static void end_data_chunks(struct fb_proto_client *client, struct fb_proto_op *op)
{
    for (unsigned slot = 0; slot < FB_WIRE_CHUNK_SLOTS; slot++) {
        const struct fb_proto_chunk *chunk = &op->get.chunk[slot];
        if (chunk->out && chunk->mode == FB_WIRE_CHUNK_DATA)
            end_chunk(client, op, slot, false);
    }
    op->get.data_chunk = FB_NO_CHUNK;
}

void fb_proto_get_done(struct fb_proto_client *client, uint64_t now_ns, struct fb_proto_op *op,
                       struct fb_reader *reader)
{
    struct fb_msg_get_done done;
    const char *bad;
    if (fb_wire_get_done_decode(reader, &done, &bad) != FB_OK) {
        fb_proto_breach(client, now_ns, bad);
        return;
    }
    struct fb_proto_get_state *get = &op->get;
    if (done.result == FB_OK && get->value_bytes != 0 &&
        (done.value_bytes != get->value_bytes || done.generation != op->generation)) {
        fb_proto_breach(client, now_ns, "GET_DONE of another value");
        return;
    }
    op->is_done = true;
    op->result = done.result;
    op->reason = done.reason;
    op->tiers = done.tiers;
    op->send &= (uint8_t)~FB_SEND_CANCEL;
    if (done.result == FB_OK && get->value_bytes == 0 && done.value_bytes != 0) {
        op->generation = done.generation;
        get->value_bytes = done.value_bytes;
        get->want_bytes = range_of(get, done.value_bytes);
        get->is_too_small = get->want_bytes > get->room_bytes;
    }
    if (op->send == 0)
        fb_list_remove(&op->ready);
    end_data_chunks(client, op);
    fb_proto_op_settle(client, op);
}

/* What the node's result means once we have looked at what came. */
static int finish_result(const struct fb_proto_client *client, const struct fb_proto_op *op,
                         uint8_t *reason)
{
    const struct fb_proto_get_state *get = &op->get;
    if (get->is_too_small) {
        *reason = 0;
        return FB_BUFFER_TOO_SMALL;
    }
    if (get->is_bad && (op->result == FB_OK || op->result == FB_MISS)) {
        *reason = FB_REASON_BAD_CHECKSUM;
        return FB_MISS;
    }
    if (op->result == FB_OK && !fb_proto_get_is_whole(op, client->welcome.chunk_bytes))
        return op->job_dropped ? FB_DEADLINE : FB_PROTOCOL;
    return op->result;
}

void fb_proto_get_finish(const struct fb_proto_client *client, const struct fb_proto_op *op,
                         struct fb_get_item *item)
{
    item->result = finish_result(client, op, &item->reason);
    if (item->result != FB_OK && item->result != FB_BUFFER_TOO_SMALL)
        return;
    item->tiers = op->tiers;
    item->value_bytes = op->get.value_bytes;
    item->generation = op->generation;
    if (item->result == FB_OK)
        item->bytes = op->get.want_bytes;
}
