/*
 * Puts on a connection of the client. A put over shared memory is granted runs, which become one
 * copy job for each part; over a stream it is granted a window, and its bytes go out in DATA
 * frames. When all bytes are where they belong, COMMIT takes the leaves along. See client.h.
 */
#include <string.h>

#include "base/assert.h"
#include "base/bits.h"
#include "base/bug.h"
#include "base/reason.h"
#include "base/result.h"
#include "proto/client.h"
#include "proto/client_private.h"

/* Hints travel above the pin class. */
#define PIN_WILL_RETURN (1u << 4)
#define PIN_ONE_SHOT    (1u << 5)

#define PUT_FLAGS       (FB_UPSERT | FB_WILL_RETURN | FB_ONE_SHOT)

_Static_assert((int)FB_UPSERT == (int)FB_WIRE_PUT_UPSERT, "the public flag is the wire's");
_Static_assert(FB_PERSIST_MODE_THROUGH + 1 == FB_WIRE_PERSIST_MODES, "and so are the modes");

/* ---- the request ---- */

/* What can be said of a put without asking the node: FB_OK, or its result. */
static int check_item(const struct fb_proto_client *client, const struct fb_put_item *item,
                      uint64_t *value_bytes)
{
    if (item->key == NULL || item->key_bytes < FB_KEY_BYTES_MIN ||
        item->key_bytes > FB_KEY_BYTES_MAX)
        return FB_BAD_KEY;
    if ((item->buf_count != 0 && item->bufs == NULL) ||
        !fb_scatter_total(item->bufs, item->buf_count, value_bytes) || *value_bytes == 0)
        return FB_BAD_ARGUMENT;
    if (item->persist_mode > FB_PERSIST_MODE_THROUGH || item->pin_class > FB_PIN_HARD ||
        (item->flags & ~(uint32_t)PUT_FLAGS) != 0 ||
        (item->group == NULL && item->group_bytes != 0))
        return FB_BAD_ARGUMENT;
    if (*value_bytes > client->welcome.value_bytes_max)
        return FB_TOO_BIG;
    return FB_OK;
}

/* Room for the leaves of a value of more than one part; NULL: all are taken. */
static uint64_t *take_big(struct fb_proto_client *client)
{
    for (unsigned i = 0; i < FB_PROTO_BIG_PUTS; i++) {
        if (client->big_taken[i])
            continue;
        client->big_taken[i] = true;
        return client->big_leaves[i];
    }
    return NULL;
}

static void give_big(struct fb_proto_client *client, const uint64_t *leaves)
{
    for (unsigned i = 0; i < FB_PROTO_BIG_PUTS; i++) {
        if (client->big_leaves[i] == leaves)
            client->big_taken[i] = false;
    }
}

void fb_proto_put_free(struct fb_proto_client *client, struct fb_proto_op *op)
{
    client->inline_used -= op->put.inline_bytes;
    op->put.inline_bytes = 0;
    give_big(client, op->put.leaves);
}

/* Small values go along with the request, as long as there is credit. */
static void add_inline(struct fb_proto_client *client, const struct fb_put_item *item,
                       struct fb_msg_put *put)
{
    uint64_t bytes = put->value_bytes;
    if (bytes > client->config.inline_bytes_max || client->config.commit_delay_ns != 0 ||
        bytes > fb_sub_floored(client->welcome.inline_credit_bytes, client->inline_used))
        return;
    struct fb_scatter scatter;
    fb_scatter_begin(&scatter, item->bufs, item->buf_count, 0);
    fb_scatter_read(&scatter, client->gather, bytes);
    put->inline_bytes = (uint32_t)bytes;
    put->inline_data = client->gather;
    put->inline_leaf = fb_leaf_hash(client->gather, bytes);
}

static void fill_request(const struct fb_proto_client *client, uint64_t now_ns,
                         const struct fb_put_item *item, struct fb_msg_put *put)
{
    const struct fb_proto_call *call = client->call;
    put->key = (struct fb_msg_key){
        .ns = client->ns,
        .epoch = call->epoch,
        .deadline_ms = fb_proto_remaining_ms(call->deadline_ns, now_ns),
        .key = item->key,
        .key_bytes = (uint16_t)item->key_bytes,
    };
    if (item->group_bytes != 0)
        put->group = fb_digest128(&client->secret, item->group, item->group_bytes);
    put->depth = item->depth;
    put->persist = item->persist_mode;
    put->pin_class = item->pin_class;
    if ((item->flags & FB_WILL_RETURN) != 0)
        put->pin_class |= PIN_WILL_RETURN;
    if ((item->flags & FB_ONE_SHOT) != 0)
        put->pin_class |= PIN_ONE_SHOT;
    put->put_flags = (item->flags & FB_UPSERT) != 0 ? FB_WIRE_PUT_UPSERT : 0;
}

/* What can be said of the next item of the call at once, or how many leaves it has. */
static int check_next(const struct fb_proto_client *client, const struct fb_put_item *item,
                      uint64_t *value_bytes, uint64_t *leaf_count)
{
    int result = check_item(client, item, value_bytes);
    if (result != FB_OK)
        return result;
    uint32_t most = client->config.leaves_max;
    *leaf_count = fb_wire_leaf_count(*value_bytes, client->welcome.chunk_bytes);
    return *leaf_count > (most == 0 ? FB_WIRE_LEAVES_MAX : most) ? FB_TOO_BIG : FB_OK;
}

bool fb_proto_put_request(struct fb_proto_client *client, uint64_t now_ns, struct fb_writer *writer)
{
    struct fb_proto_call *call = client->call;
    const struct fb_put_item *item = &call->items.put[call->next];
    struct fb_msg_put put = {.value_bytes = 0};
    uint64_t leaf_count = 0;
    int result = check_next(client, item, &put.value_bytes, &leaf_count);
    if (result != FB_OK) {
        fb_proto_item_result(call, call->next++, result, 0);
        return false;
    }
    bool is_big = leaf_count > FB_PROTO_LEAVES_MAX;
    uint64_t *leaves = is_big ? take_big(client) : NULL;
    if (is_big && leaves == NULL)
        return false;
    fill_request(client, now_ns, item, &put);
    add_inline(client, item, &put);
    size_t at = fb_wire_frame_begin(writer);
    fb_wire_put_encode(writer, &put);
    if (!fb_writer_ok(writer)) {
        give_big(client, leaves);
        return false;
    }
    struct fb_proto_op *op = fb_proto_op_new(client, call, call->next++, FB_MSG_PUT);
    op->put.value_bytes = put.value_bytes;
    op->put.leaf_count = (uint32_t)leaf_count;
    op->put.leaves = is_big ? leaves : op->leaves;
    op->put.inline_bytes = put.inline_bytes;
    client->inline_used += put.inline_bytes;
    fb_wire_frame_end(writer, at, FB_MSG_PUT, 0, op->id, client->welcome.map_version);
    return true;
}

/* ---- grant ---- */

/* The part's length where `value_off` is its beginning. */
static uint32_t part_bytes_at(const struct fb_proto_client *client, const struct fb_proto_op *op,
                              uint64_t value_off)
{
    return (uint32_t)fb_min_u64(client->welcome.chunk_bytes, op->put.value_bytes - value_off);
}

/*
 * Runs must lie in the pool, and those of a frame must be whole parts. Returns how many bytes of
 * the value they hold, 0 if they are not sound.
 */
static uint64_t check_runs(const struct fb_proto_client *client, const struct fb_proto_op *op,
                           const struct fb_msg_grant *grant)
{
    uint64_t at = grant->value_off;
    uint64_t part_end = at;
    for (uint32_t i = 0; i < grant->run_count; i++) {
        struct fb_wire_run run = fb_wire_run_at(grant->runs, i);
        if (at == part_end) {
            if (at >= op->put.value_bytes)
                return 0;
            part_end = at + part_bytes_at(client, op, at);
        }
        if (run.len > part_end - at || run.off > client->welcome.pool_bytes ||
            run.len > client->welcome.pool_bytes - run.off)
            return 0;
        at += run.len;
    }
    return at == part_end ? at - grant->value_off : 0;
}

static void take_runs(struct fb_proto_client *client, uint64_t now_ns, struct fb_proto_op *op,
                      const struct fb_msg_grant *grant, bool more)
{
    if ((client->welcome.features & FB_FEATURE_SHM) == 0 ||
        grant->value_off != op->put.granted_bytes) {
        fb_proto_breach(client, now_ns, "GRANT.value_off");
        return;
    }
    uint64_t bytes = check_runs(client, op, grant);
    op->put.granted_bytes += bytes;
    if (bytes == 0 || more != (op->put.granted_bytes < op->put.value_bytes)) {
        fb_proto_breach(client, now_ns, "GRANT.runs");
        return;
    }
    if (op->call == NULL || op->gave_up)
        return;
    client->todo = (struct fb_proto_todo){
        .op = op,
        .runs = grant->runs,
        .run_count = grant->run_count,
        .value_off = grant->value_off,
    };
}

void fb_proto_put_grant(struct fb_proto_client *client, uint64_t now_ns, struct fb_proto_op *op,
                        const struct fb_wire_header *header, struct fb_reader *reader)
{
    struct fb_msg_grant grant;
    const char *bad;
    if (fb_wire_grant_decode(reader, &grant, &bad) != FB_OK) {
        fb_proto_breach(client, now_ns, bad);
        return;
    }
    bool more = (header->flags & FB_FRAME_MORE) != 0;
    if (op->is_granted &&
        (op->put.granted_bytes == op->put.value_bytes || grant.generation != op->generation)) {
        fb_proto_breach(client, now_ns, "GRANT of what is granted");
        return;
    }
    op->is_granted = true;
    op->generation = grant.generation;
    if (grant.run_count > 0) {
        take_runs(client, now_ns, op, &grant, more);
        return;
    }
    if (more || grant.window_bytes != op->put.value_bytes || grant.value_off != 0) {
        fb_proto_breach(client, now_ns, "GRANT.window_bytes");
        return;
    }
    op->put.granted_bytes = op->put.value_bytes;
    if (op->call != NULL && !op->gave_up)
        fb_list_push_back(&client->data, &op->wait);
}

void fb_proto_put_job(struct fb_proto_client *client, struct fb_proto_job *job)
{
    struct fb_proto_todo *todo = &client->todo;
    const struct fb_proto_op *op = todo->op;
    const struct fb_put_item *item = &op->call->items.put[op->item];
    job->to_pool = true;
    job->bufs = item->bufs;
    job->buf_count = item->buf_count;
    job->buf_off = todo->value_off;
    job->value_off = todo->value_off;
    job->part_bytes = part_bytes_at(client, op, todo->value_off);
    job->want_bytes = job->part_bytes;
    job->runs = todo->runs;
    uint32_t bytes = 0;
    while (bytes < job->part_bytes) {
        FB_ASSERT(job->run_count < todo->run_count);
        bytes += fb_wire_run_at(todo->runs, job->run_count).len;
        job->run_count++;
    }
    FB_ASSERT(bytes == job->part_bytes);
    todo->value_off += bytes;
    todo->runs += (size_t)job->run_count * FB_WIRE_RUN_BYTES;
    todo->run_count -= job->run_count;
    if (todo->run_count == 0)
        todo->op = NULL;
}

/* ---- commit ---- */

/* All bytes are in place: COMMIT now, or in a while if it is to be late. */
static void ready_to_commit(struct fb_proto_client *client, uint64_t now_ns, struct fb_proto_op *op)
{
    if (client->config.commit_delay_ns == 0) {
        fb_proto_op_send(client, op, FB_SEND_COMMIT);
        return;
    }
    op->put.commit_ns = now_ns + client->config.commit_delay_ns;
    fb_list_push_back(&client->late, &op->wait);
}

void fb_proto_put_tick(struct fb_proto_client *client, uint64_t now_ns)
{
    struct fb_link *link;
    while ((link = fb_list_first(&client->late)) != NULL) {
        struct fb_proto_op *op = FB_LIST_ITEM(link, struct fb_proto_op, wait);
        if (op->put.commit_ns > now_ns)
            return;
        fb_list_remove(link);
        fb_proto_op_send(client, op, FB_SEND_COMMIT);
    }
}

void fb_proto_put_commit(struct fb_proto_client *client, struct fb_proto_op *op,
                         struct fb_writer *writer)
{
    /* The leaves as the wire wants them: little-endian, in place. */
    uint64_t *leaves = op->put.leaves;
    struct fb_msg_commit commit = {
        .generation = op->generation,
        .leaf_count = op->put.leaf_count,
        .leaves = (const uint8_t *)leaves,
    };
    size_t at = fb_wire_frame_begin(writer);
    fb_wire_commit_encode(writer, &commit);
    fb_wire_frame_end(writer, at, FB_MSG_COMMIT, 0, op->id, client->welcome.map_version);
    if (!fb_writer_ok(writer))
        return;
    op->send &= (uint8_t)~FB_SEND_COMMIT;
    op->is_committed = true;
}

/* The grant's memory is not touched any more. */
static void send_release(struct fb_proto_client *client, struct fb_proto_op *op)
{
    FB_ASSERT(op->jobs == 0 && !op->is_released);
    op->is_released = true;
    op->owes_release = false;
    fb_proto_op_send(client, op, FB_SEND_RELEASE);
}

void fb_proto_put_moved(struct fb_proto_client *client, uint64_t now_ns, struct fb_proto_op *op,
                        const struct fb_proto_job *job, const uint64_t *leaves)
{
    if (leaves != NULL) {
        uint64_t leaf = fb_wire_leaf_count(job->value_off, client->welcome.chunk_bytes);
        FB_ASSERT(leaf + job->leaf_count <= op->put.leaf_count);
        for (uint32_t i = 0; i < job->leaf_count; i++)
            op->put.leaves[leaf + i] = htole64(leaves[i]);
        op->put.moved_bytes += job->part_bytes;
    }
    if (op->is_done) {
        if (op->owes_release && op->jobs == 0)
            send_release(client, op);
        return;
    }
    if (op->gave_up || op->job_dropped) {
        if (op->jobs == 0 && !op->is_released)
            fb_proto_put_give_up(client, op);
        return;
    }
    if (op->put.moved_bytes == op->put.value_bytes)
        ready_to_commit(client, now_ns, op);
}

void fb_proto_put_give_up(struct fb_proto_client *client, struct fb_proto_op *op)
{
    fb_list_remove(&op->wait);
    op->gave_up = true;
    if (client->todo.op == op)
        client->todo.op = NULL;
    if (!op->is_granted || op->is_committed) {
        fb_proto_op_send(client, op, FB_SEND_CANCEL);
        return;
    }
    op->send &= (uint8_t)~FB_SEND_COMMIT;
    if (op->jobs == 0 && !op->is_released)
        send_release(client, op);
}

void fb_proto_put_done(struct fb_proto_client *client, uint64_t now_ns, struct fb_proto_op *op,
                       const struct fb_wire_header *header, struct fb_reader *reader)
{
    struct fb_msg_put_done done;
    const char *bad;
    if (fb_wire_put_done_decode(reader, &done, &bad) != FB_OK) {
        fb_proto_breach(client, now_ns, bad);
        return;
    }
    bool release = (header->flags & FB_FRAME_RELEASE_WANTED) != 0;
    if (release && !op->is_granted) {
        fb_proto_breach(client, now_ns, "PUT_DONE wants back what was not granted");
        return;
    }
    op->is_done = true;
    op->result = done.result;
    op->reason = done.reason;
    op->answer = done.generation;
    op->is_persisted = (header->flags & FB_FRAME_PERSISTED) != 0;
    fb_list_remove(&op->wait);
    op->send &= (uint8_t) ~(FB_SEND_COMMIT | FB_SEND_CANCEL);
    if (client->todo.op == op)
        client->todo.op = NULL;
    op->owes_release = release && !op->is_released;
    if (op->owes_release && op->jobs == 0)
        send_release(client, op);
    if (op->send == 0)
        fb_list_remove(&op->ready);
    fb_proto_op_settle(client, op);
}

/* ---- DATA ---- */

/* The end of the leaf that begins at or before `off`, in the value. */
static uint64_t leaf_end(const struct fb_proto_client *client, const struct fb_proto_op *op,
                         uint64_t off, bool *begins)
{
    uint64_t part_off = off % client->welcome.chunk_bytes;
    uint64_t in_leaf = part_off % FB_LEAF_BYTES;
    *begins = in_leaf == 0;
    uint64_t part_end = off - part_off + client->welcome.chunk_bytes;
    uint64_t end = fb_min_u64(part_end, off - in_leaf + FB_LEAF_BYTES);
    return fb_min_u64(end, op->put.value_bytes);
}

/* Hashes the next `bytes` bytes of the value, which are about to be sent, into its leaves. */
static void hash_piece(const struct fb_proto_client *client, struct fb_proto_op *op,
                       const struct fb_put_item *item, uint32_t bytes)
{
    uint64_t off = op->put.moved_bytes;
    bool begins;
    uint64_t end = leaf_end(client, op, off, &begins);
    if (begins)
        fb_hash_begin(&op->hash, 0);
    struct fb_scatter scatter;
    fb_scatter_begin(&scatter, item->bufs, item->buf_count, off);
    fb_scatter_hash(&scatter, &op->hash, bytes);
    if (off + bytes < end)
        return;
    uint64_t leaf = fb_wire_leaf_count(end, client->welcome.chunk_bytes) - 1;
    FB_ASSERT(leaf < op->put.leaf_count);
    op->put.leaves[leaf] = htole64(fb_hash_finish(&op->hash));
}

bool fb_proto_put_data(struct fb_proto_client *client, uint64_t now_ns, uint8_t *room,
                       size_t room_bytes, struct fb_proto_frame *frame)
{
    struct fb_link *link = fb_list_first(&client->data);
    if (link == NULL)
        return false;
    if (room_bytes < FB_WIRE_HEADER_BYTES + FB_WIRE_DATA_HEAD_BYTES) {
        frame->needs_room = true;
        return false;
    }
    struct fb_proto_op *op = FB_LIST_ITEM(link, struct fb_proto_op, wait);
    const struct fb_put_item *item = &op->call->items.put[op->item];
    uint64_t off = op->put.moved_bytes;
    bool begins;
    uint64_t left = leaf_end(client, op, off, &begins) - off;
    uint32_t bytes = (uint32_t)fb_min_u64(left, FB_PROTO_DATA_BYTES);
    fb_wire_data_head(room, op->id, off, bytes, NULL, client->welcome.map_version);
    *frame = (struct fb_proto_frame){
        .bytes = FB_WIRE_HEADER_BYTES + FB_WIRE_DATA_HEAD_BYTES,
        .bufs = item->bufs,
        .buf_count = item->buf_count,
        .payload_off = off,
        .payload_bytes = bytes,
    };
    hash_piece(client, op, item, bytes);
    op->put.moved_bytes += bytes;
    if (op->put.moved_bytes == op->put.value_bytes) {
        fb_list_remove(&op->wait);
        ready_to_commit(client, now_ns, op);
    }
    return true;
}
