/*
 * The client's side of a connection: start, frames out, frames in, loss. See client.h; the calls
 * are in client_call.c, puts and gets in files of their own.
 */
#include "proto/client.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/bits.h"
#include "base/bug.h"
#include "base/result.h"
#include "proto/client_private.h"

/* The low bits of an operation's number are its slot. */
#define SLOT_BITS 8

_Static_assert(FB_PROTO_OPS_MAX <= 1 << SLOT_BITS, "a slot fits into its bits");
_Static_assert(FB_NAMESPACE_BYTES_MAX <= FB_WIRE_FIELDS_MAX, "all fields fit into NAMESPACE");

/* ---- namespace fields ---- */

int fb_proto_namespace_fields(const struct fb_namespace_fields *ns,
                              uint8_t out[FB_NAMESPACE_BYTES_MAX], const char **why)
{
    const char *const text[FB_NAMESPACE_FIELD_COUNT] = {
        ns->model, ns->weights, ns->adapter, ns->dtype, ns->layout, ns->parallel, ns->salt,
    };
    static const char *const too_long[FB_NAMESPACE_FIELD_COUNT] = {
        "model is longer than 255 bytes",   "weights is longer than 255 bytes",
        "adapter is longer than 255 bytes", "dtype is longer than 255 bytes",
        "layout is longer than 255 bytes",  "parallel is longer than 255 bytes",
        "salt is longer than 255 bytes",
    };
    struct fb_writer writer;
    fb_writer_init(&writer, out, FB_NAMESPACE_BYTES_MAX);
    fb_writer_u8(&writer, 0);
    uint8_t given = 0;
    for (unsigned i = 0; i < FB_NAMESPACE_FIELD_COUNT; i++) {
        size_t bytes = text[i] == NULL ? 0 : strlen(text[i]);
        if (bytes > FB_NAMESPACE_FIELD_BYTES_MAX) {
            *why = too_long[i];
            return FB_BAD_ARGUMENT;
        }
        if (bytes == 0)
            continue;
        fb_writer_u8(&writer, (uint8_t)(i + 1));
        fb_writer_blob32(&writer, text[i], bytes);
        given++;
    }
    if (!fb_writer_ok(&writer)) {
        *why = "the fields of the namespace together are longer than about 1,000 bytes";
        return FB_BAD_ARGUMENT;
    }
    out[0] = given;
    if (given == 0) {
        *why = "no field of the namespace is given; name at least the model";
        return FB_BAD_ARGUMENT;
    }
    return (int)writer.at_bytes;
}

/* ---- making one ---- */

static uint32_t ops_max(const struct fb_proto_config *config)
{
    return config->ops_max == 0 ? FB_PROTO_OPS_MAX : config->ops_max;
}

static uint32_t leaves_max(const struct fb_proto_config *config)
{
    return config->leaves_max == 0 ? FB_WIRE_LEAVES_MAX : config->leaves_max;
}

/* Both for counting and for taking. */
static struct fb_proto_client *carve(const struct fb_proto_config *config, struct fb_region *region)
{
    struct fb_proto_client *client = FB_REGION_NEW(region, struct fb_proto_client, 1);
    struct fb_proto_op *ops = FB_REGION_NEW(region, struct fb_proto_op, ops_max(config));
    uint32_t *free_slots = FB_REGION_NEW(region, uint32_t, ops_max(config));
    uint64_t *big[FB_PROTO_BIG_PUTS];
    for (unsigned i = 0; i < FB_PROTO_BIG_PUTS; i++)
        big[i] =
            fb_region_take_array(region, leaves_max(config), sizeof(uint64_t), _Alignof(uint64_t));
    if (client == NULL)
        return NULL;
    client->ops = ops;
    client->free_slots = free_slots;
    memcpy(client->big_leaves, big, sizeof(big));
    return client;
}

size_t fb_proto_client_footprint(const struct fb_proto_config *config)
{
    struct fb_region region;
    fb_region_init_counting(&region);
    carve(config, &region);
    return region.used_bytes;
}

struct fb_proto_client *fb_proto_client_init(const struct fb_proto_config *config,
                                             struct fb_region *region)
{
    FB_ASSERT(ops_max(config) <= FB_PROTO_OPS_MAX);
    FB_ASSERT(leaves_max(config) >= FB_PROTO_LEAVES_MAX &&
              leaves_max(config) <= FB_WIRE_LEAVES_MAX);
    FB_ASSERT(config->inline_bytes_max <= FB_WIRE_INLINE_MAX);
    struct fb_proto_client *client = carve(config, region);
    FB_ASSERT(client != NULL);
    client->config = *config;
    if (config->name != NULL) {
        client->name_bytes = (uint32_t)fb_min_u64(strlen(config->name), FB_WIRE_NAME_MAX);
        memcpy(client->name, config->name, client->name_bytes);
        client->config.name = NULL;
    }
    fb_list_init(&client->ready);
    fb_list_init(&client->late);
    fb_list_init(&client->data);
    client->next_id = 1;
    client->op_count = ops_max(config);
    client->free_count = client->op_count;
    for (uint32_t i = 0; i < client->op_count; i++) {
        client->free_slots[i] = client->op_count - 1 - i;
        fb_link_init(&client->ops[i].ready);
        fb_link_init(&client->ops[i].wait);
    }
    return client;
}

void fb_proto_client_start(struct fb_proto_client *client, uint64_t now_ns, uint64_t deadline_ns)
{
    FB_ASSERT(client->state == FB_PROTO_IDLE);
    client->state = FB_PROTO_HELLO;
    client->send_hello = true;
    client->heard_ns = now_ns;
    client->start_deadline_ns = deadline_ns;
}

enum fb_proto_state fb_proto_client_state(const struct fb_proto_client *client)
{
    return client->state;
}

int fb_proto_client_result(const struct fb_proto_client *client)
{
    return client->result;
}

const char *fb_proto_client_why(const struct fb_proto_client *client)
{
    return client->why;
}

const struct fb_msg_welcome *fb_proto_client_welcome(const struct fb_proto_client *client)
{
    return &client->welcome;
}

uint64_t fb_proto_client_epoch(const struct fb_proto_client *client)
{
    return client->epoch;
}

bool fb_proto_client_owes_memory(const struct fb_proto_client *client)
{
    return client->owes_memory;
}

uint32_t fb_proto_client_open_ops(const struct fb_proto_client *client)
{
    return client->open_ops;
}

uint32_t fb_proto_remaining_ms(uint64_t deadline_ns, uint64_t now_ns)
{
    uint64_t left_ns = fb_sub_floored(deadline_ns, now_ns);
    uint64_t left_ms = fb_div_up(left_ns, FB_MS_NS);
    return (uint32_t)fb_min_u64(left_ms, FB_WIRE_DEADLINE_MS_MAX);
}

/* ---- operations ---- */

static uint32_t slot_of(const struct fb_proto_client *client, const struct fb_proto_op *op)
{
    return (uint32_t)(op - client->ops);
}

/* The open operation of a number from the wire, or NULL. */
static struct fb_proto_op *op_find(struct fb_proto_client *client, uint64_t id)
{
    uint64_t slot = id & ((1u << SLOT_BITS) - 1);
    if (id == 0 || slot >= client->op_count || client->ops[slot].id != id)
        return NULL;
    return &client->ops[slot];
}

struct fb_proto_op *fb_proto_op_new(struct fb_proto_client *client, struct fb_proto_call *call,
                                    size_t item, uint8_t type)
{
    FB_ASSERT(client->free_count > 0);
    uint32_t slot = client->free_slots[--client->free_count];
    struct fb_proto_op *op = &client->ops[slot];
    FB_ASSERT(op->id == 0 && !fb_link_is_linked(&op->ready) && !fb_link_is_linked(&op->wait));
    memset(op, 0, offsetof(struct fb_proto_op, leaves));
    fb_link_init(&op->ready);
    fb_link_init(&op->wait);
    op->id = client->next_id++ << SLOT_BITS | slot;
    op->call = call;
    op->item = item;
    op->type = type;
    client->open_ops++;
    if (call != NULL)
        call->open_ops++;
    return op;
}

static void op_free(struct fb_proto_client *client, struct fb_proto_op *op)
{
    FB_ASSERT(op->call == NULL && op->jobs == 0 && op->send == 0);
    if (op->type == FB_MSG_PUT)
        fb_proto_put_free(client, op);
    fb_list_remove(&op->ready);
    fb_list_remove(&op->wait);
    if (client->data_op == op)
        client->data_op = NULL;
    op->id = 0;
    client->free_slots[client->free_count++] = slot_of(client, op);
    client->open_ops--;
}

void fb_proto_op_send(struct fb_proto_client *client, struct fb_proto_op *op, uint8_t bits)
{
    op->send |= bits;
    if (!fb_link_is_linked(&op->ready))
        fb_list_push_back(&client->ready, &op->ready);
}

void fb_proto_op_settle(struct fb_proto_client *client, struct fb_proto_op *op)
{
    if (!op->is_done || op->jobs != 0)
        return;
    if (op->call != NULL)
        fb_proto_call_deliver(client, op);
    if (op->send == 0)
        op_free(client, op);
}

void fb_proto_identity(const struct fb_proto_client *client, const struct fb_proto_op *op,
                       uint64_t value_off, uint32_t part_bytes, uint64_t value_bytes,
                       struct fb_identity *identity)
{
    /* A generation on the wire: the boot counter above 40 bits of counter. */
    const unsigned counter_bits = 40;
    FB_ASSERT(op->call != NULL);
    *identity = (struct fb_identity){
        .namespace_id = client->ns_id,
        .epoch = op->call->epoch,
        .generation = {.boot = (uint32_t)(op->generation >> counter_bits),
                       .counter = op->generation & ((1ull << counter_bits) - 1)},
        .part = (uint32_t)(value_off / client->welcome.chunk_bytes),
        .total_bytes = value_bytes,
        .part_bytes = part_bytes,
    };
    fb_proto_item_key(op->call, op->item, &identity->key, &identity->key_bytes);
}

/* ---- frames out ---- */

static void end_frame(struct fb_proto_client *client, struct fb_writer *writer, size_t at,
                      uint8_t type, uint8_t flags, uint64_t op)
{
    fb_wire_frame_end(writer, at, type, flags, op, client->welcome.map_version);
}

static void write_hello(struct fb_proto_client *client, struct fb_writer *writer)
{
    const struct fb_proto_config *config = &client->config;
    struct fb_msg_hello hello = {
        .features = config->features,
        .client_nonce = config->nonce,
        .ended_session = config->ended_session,
        .pid = config->pid,
        .version_minor = FB_WIRE_VERSION_MINOR,
        .name_bytes = (uint16_t)client->name_bytes,
        .name = (const uint8_t *)client->name,
    };
    size_t at = fb_wire_frame_begin(writer);
    fb_wire_hello_encode(writer, &hello);
    end_frame(client, writer, at, FB_MSG_HELLO, 0, 0);
}

static void write_namespace(struct fb_proto_client *client, uint64_t now_ns,
                            struct fb_writer *writer)
{
    const struct fb_proto_config *config = &client->config;
    struct fb_msg_namespace message = {
        .deadline_ms = fb_proto_remaining_ms(client->start_deadline_ns, now_ns),
        .fields_bytes = config->fields_bytes,
        .fields = config->fields,
        .quota_dram_bytes = config->quota_dram_bytes,
        .quota_ssd_bytes = config->quota_ssd_bytes,
    };
    size_t at = fb_wire_frame_begin(writer);
    fb_wire_namespace_encode(writer, &message);
    if (!fb_writer_ok(writer))
        return;
    struct fb_proto_op *op = fb_proto_op_new(client, NULL, 0, FB_MSG_NAMESPACE);
    end_frame(client, writer, at, FB_MSG_NAMESPACE, 0, op->id);
}

static void write_empty(struct fb_proto_client *client, struct fb_writer *writer, uint8_t type,
                        uint64_t op)
{
    size_t at = fb_wire_frame_begin(writer);
    end_frame(client, writer, at, type, 0, op);
}

static void write_pong(struct fb_proto_client *client, struct fb_writer *writer)
{
    static const struct fb_msg_pong pong;
    size_t at = fb_wire_frame_begin(writer);
    fb_wire_pong_encode(writer, &pong);
    end_frame(client, writer, at, FB_MSG_PONG, 0, client->pong_op);
}

/* What the connection itself has to say. Returns false if nothing. */
static bool connection_frame(struct fb_proto_client *client, uint64_t now_ns,
                             struct fb_writer *writer)
{
    bool *flag = NULL;
    if (client->send_hello) {
        flag = &client->send_hello;
        write_hello(client, writer);
    } else if (client->send_namespace) {
        flag = &client->send_namespace;
        write_namespace(client, now_ns, writer);
    } else if (client->send_pong) {
        flag = &client->send_pong;
        write_pong(client, writer);
    } else if (client->send_ping) {
        flag = &client->send_ping;
        write_empty(client, writer, FB_MSG_PING, client->next_id++ << SLOT_BITS);
    }
    if (flag == NULL)
        return false;
    if (fb_writer_ok(writer))
        *flag = false;
    return true;
}

/* One frame of an operation that has something to send. */
static bool op_frame(struct fb_proto_client *client, struct fb_writer *writer)
{
    struct fb_link *link = fb_list_first(&client->ready);
    if (link == NULL)
        return false;
    struct fb_proto_op *op = FB_LIST_ITEM(link, struct fb_proto_op, ready);
    if ((op->send & FB_SEND_RELEASE) != 0) {
        write_empty(client, writer, FB_MSG_RELEASE, op->id);
        if (fb_writer_ok(writer))
            op->send &= (uint8_t)~FB_SEND_RELEASE;
    } else if ((op->send & FB_SEND_COMMIT) != 0) {
        fb_proto_put_commit(client, op, writer);
    } else if ((op->send & FB_SEND_CHUNK_DONE) != 0) {
        fb_proto_get_chunk_done(client, op, writer);
    } else if ((op->send & FB_SEND_CANCEL) != 0) {
        write_empty(client, writer, FB_MSG_CANCEL, op->id);
        if (fb_writer_ok(writer))
            op->send &= (uint8_t)~FB_SEND_CANCEL;
    }
    if (op->send == 0) {
        fb_list_remove(&op->ready);
        fb_proto_op_settle(client, op);
    }
    return true;
}

bool fb_proto_client_take_frame(struct fb_proto_client *client, uint64_t now_ns, uint8_t *room,
                                size_t room_bytes, struct fb_proto_frame *frame)
{
    memset(frame, 0, sizeof(*frame));
    if (client->state == FB_PROTO_IDLE || client->state == FB_PROTO_LOST)
        return false;
    struct fb_writer writer;
    fb_writer_init(&writer, room, room_bytes);
    bool any = connection_frame(client, now_ns, &writer) || op_frame(client, &writer);
    if (!any && client->call != NULL)
        any = fb_proto_call_request(client, now_ns, &writer);
    if (!any && fb_writer_ok(&writer))
        return fb_proto_put_data(client, now_ns, room, room_bytes, frame);
    if (!fb_writer_ok(&writer)) {
        FB_ASSERT(room_bytes < FB_FRAME_BYTES_MAX);
        frame->needs_room = true;
        return false;
    }
    frame->bytes = writer.at_bytes;
    FB_ASSERT(frame->bytes >= FB_WIRE_HEADER_BYTES);
    return true;
}

/* ---- frames in ---- */

void fb_proto_breach(struct fb_proto_client *client, uint64_t now_ns, const char *why)
{
    fb_proto_client_lost(client, now_ns, FB_PROTOCOL, why);
}

static void take_welcome(struct fb_proto_client *client, uint64_t now_ns, struct fb_reader *reader)
{
    const char *bad;
    if (client->state != FB_PROTO_HELLO) {
        fb_proto_breach(client, now_ns, "WELCOME where none was due");
        return;
    }
    if (fb_wire_welcome_decode(reader, &client->welcome, &bad) != FB_OK) {
        fb_proto_breach(client, now_ns, bad);
        return;
    }
    if ((client->welcome.features & ~client->config.features) != 0) {
        fb_proto_breach(client, now_ns, "WELCOME.features");
        return;
    }
    client->window = (uint32_t)fb_min_u64(client->welcome.op_credit, ops_max(&client->config));
    client->state = FB_PROTO_READY;
    if (client->config.fields == NULL)
        return;
    client->state = FB_PROTO_OPENING;
    client->send_namespace = true;
}

static void take_error(struct fb_proto_client *client, uint64_t now_ns, struct fb_reader *reader)
{
    struct fb_msg_error error;
    const char *bad;
    if (fb_wire_error_decode(reader, &error, &bad) != FB_OK) {
        fb_proto_breach(client, now_ns, bad);
        return;
    }
    bool said_before = client->state == FB_PROTO_LOST;
    fb_proto_client_lost(client, now_ns, error.result, "");
    if (said_before)
        return;
    memcpy(client->why, error.text, error.text_bytes);
    client->why[error.text_bytes] = '\0';
}

/* Why no namespace was opened; the text of a result alone speaks of keys and values. */
static void refused(struct fb_proto_client *client, uint64_t now_ns, int result)
{
    static const struct {
        int result;
        const char *cure;
    } cures[] = {
        {FB_QUOTA, "the node has as many as it takes, and they are kept for good; use one that is "
                   "there, or raise its --namespaces"},
        {FB_IO, "a namespace is made durable before it is used, and the node's device failed to; "
                "try again, and see tier_changed in the node's log"},
    };
    char text[FB_WIRE_TEXT_MAX];
    const char *why = result < 0 ? fb_result_text(result) : "an answer that makes no sense";
    for (size_t i = 0; i < FB_ARRAY_COUNT(cures); i++) {
        if (result == cures[i].result)
            why = cures[i].cure;
    }
    snprintf(text, sizeof(text), "the node did not open the namespace: %s: %s",
             fb_result_name(result), why);
    fb_proto_client_lost(client, now_ns, result, text);
}

static void take_namespace(struct fb_proto_client *client, uint64_t now_ns, struct fb_proto_op *op,
                           struct fb_reader *reader)
{
    struct fb_msg_namespace_done done;
    const char *bad;
    if (fb_wire_namespace_done_decode(reader, &done, &bad) != FB_OK) {
        fb_proto_breach(client, now_ns, bad);
        return;
    }
    op->is_done = true;
    op->result = done.result;
    op->answer = done.epoch;
    if (done.result == FB_OK) {
        client->ns = done.ns;
        client->epoch = done.epoch;
        memcpy(client->ns_id, done.id, sizeof(client->ns_id));
        fb_secret_derive(&client->secret, done.secret, sizeof(done.secret));
    }
    fb_proto_op_settle(client, op);
    if (client->state != FB_PROTO_OPENING)
        return;
    if (done.result == FB_OK)
        client->state = FB_PROTO_READY;
    else
        refused(client, now_ns, done.result);
}

/* Frames that belong to no operation. Returns false if it is not one of these. */
static bool connection_input(struct fb_proto_client *client, uint64_t now_ns,
                             const struct fb_wire_header *header, struct fb_reader *reader)
{
    const char *bad;
    struct fb_msg_pong pong;
    switch (header->type) {
    case FB_MSG_WELCOME:
        take_welcome(client, now_ns, reader);
        return true;
    case FB_MSG_ERROR:
        take_error(client, now_ns, reader);
        return true;
    case FB_MSG_PING:
        client->send_pong = true;
        client->pong_op = header->op;
        return true;
    case FB_MSG_PONG:
        if (fb_wire_pong_decode(reader, &pong, &bad) != FB_OK)
            fb_proto_breach(client, now_ns, bad);
        return true;
    default:
        return false;
    }
}

/* The type of request to which a type of answer belongs; 0: none. */
static bool answers(uint8_t request, uint8_t answer)
{
    static const uint8_t request_of[FB_MSG_TYPE_COUNT] = {
        [FB_MSG_NAMESPACE_DONE] = FB_MSG_NAMESPACE,
        [FB_MSG_GRANT] = FB_MSG_PUT,
        [FB_MSG_PUT_DONE] = FB_MSG_PUT,
        [FB_MSG_CHUNK] = FB_MSG_GET,
        [FB_MSG_GET_DONE] = FB_MSG_GET,
        [FB_MSG_DATA] = FB_MSG_GET,
        [FB_MSG_LOOKUP_DONE] = FB_MSG_LOOKUP,
        [FB_MSG_REMOVE_DONE] = FB_MSG_REMOVE,
        [FB_MSG_WAIT_DONE] = FB_MSG_WAIT_PERSISTED,
        [FB_MSG_EPOCH_DONE] = FB_MSG_EPOCH,
        [FB_MSG_DROP_DONE] = FB_MSG_DROP_DRAM,
        [FB_MSG_EXPLAIN_DONE] = FB_MSG_EXPLAIN,
        [FB_MSG_LIST_DONE] = FB_MSG_LIST,
        [FB_MSG_STATUS_DONE] = FB_MSG_STATUS,
    };
    if (request == FB_MSG_HOLD_RELEASE && answer == FB_MSG_LOOKUP_DONE)
        return true;
    return request_of[answer] != 0 && request_of[answer] == request;
}

static void op_input(struct fb_proto_client *client, uint64_t now_ns,
                     const struct fb_wire_header *header, struct fb_reader *reader)
{
    struct fb_proto_op *op = op_find(client, header->op);
    if (op == NULL || op->is_done || !answers(op->type, header->type)) {
        fb_proto_breach(client, now_ns, "an answer to what was not asked");
        return;
    }
    switch (header->type) {
    case FB_MSG_NAMESPACE_DONE:
        take_namespace(client, now_ns, op, reader);
        break;
    case FB_MSG_GRANT:
        fb_proto_put_grant(client, now_ns, op, header, reader);
        break;
    case FB_MSG_PUT_DONE:
        fb_proto_put_done(client, now_ns, op, header, reader);
        break;
    case FB_MSG_CHUNK:
        fb_proto_get_chunk(client, now_ns, op, reader);
        break;
    case FB_MSG_GET_DONE:
        fb_proto_get_done(client, now_ns, op, reader);
        break;
    default:
        fb_proto_call_answer(client, now_ns, op, header, reader);
        break;
    }
}

static void heard(struct fb_proto_client *client, uint64_t now_ns)
{
    client->heard_ns = now_ns;
    client->pinged_ns = 0;
}

void fb_proto_client_input(struct fb_proto_client *client, uint64_t now_ns, const uint8_t *frame,
                           size_t bytes)
{
    FB_ASSERT(bytes >= FB_WIRE_HEADER_BYTES && bytes <= FB_FRAME_BYTES_MAX);
    FB_ASSERT(client->todo.op == NULL);
    FB_ASSERT(client->state != FB_PROTO_IDLE);
    if (client->state == FB_PROTO_LOST)
        return;
    struct fb_wire_header header;
    const char *bad;
    int result = fb_wire_header_decode(frame, &header, &bad);
    if (result != FB_OK) {
        fb_proto_client_lost(client, now_ns, result, bad);
        return;
    }
    FB_ASSERT(header.type != FB_MSG_DATA && header.payload_bytes == bytes - FB_WIRE_HEADER_BYTES);
    const uint8_t *payload = frame + FB_WIRE_HEADER_BYTES;
    if (fb_wire_check(frame, payload, header.payload_bytes) != header.check) {
        fb_proto_breach(client, now_ns, "header.check");
        return;
    }
    heard(client, now_ns);
    struct fb_reader reader;
    fb_reader_init(&reader, payload, header.payload_bytes);
    if (!connection_input(client, now_ns, &header, &reader))
        op_input(client, now_ns, &header, &reader);
    fb_proto_call_check(client);
}

bool fb_proto_client_data_begin(struct fb_proto_client *client, uint64_t now_ns,
                                const uint8_t head[FB_WIRE_HEADER_BYTES + FB_WIRE_DATA_HEAD_BYTES],
                                struct fb_proto_sink *sink)
{
    FB_ASSERT(client->todo.op == NULL && client->data_op == NULL);
    if (client->state == FB_PROTO_LOST)
        return false;
    struct fb_wire_header header;
    const char *bad;
    int result = fb_wire_header_decode(head, &header, &bad);
    if (result == FB_OK) {
        FB_ASSERT(header.type == FB_MSG_DATA);
        result = fb_wire_data_head_decode(head + FB_WIRE_HEADER_BYTES, header.payload_bytes,
                                          &client->data_in, &bad);
    }
    if (result != FB_OK) {
        fb_proto_client_lost(client, now_ns, result, bad);
        return false;
    }
    bool checked = (header.flags & FB_FRAME_CHECKED) != 0;
    if (!checked &&
        fb_wire_check(head, head + FB_WIRE_HEADER_BYTES, FB_WIRE_DATA_HEAD_BYTES) != header.check) {
        fb_proto_breach(client, now_ns, "header.check");
        return false;
    }
    struct fb_proto_op *op = op_find(client, header.op);
    if (op == NULL || op->is_done || op->type != FB_MSG_GET) {
        fb_proto_breach(client, now_ns, "DATA of what was not asked");
        return false;
    }
    heard(client, now_ns);
    memcpy(client->data_head, head, sizeof(client->data_head));
    client->data_op = op;
    return fb_proto_get_sink(client, now_ns, op, &header, sink);
}

void fb_proto_client_data_end(struct fb_proto_client *client, uint64_t now_ns, bool skipped)
{
    struct fb_proto_op *op = client->data_op;
    client->data_op = NULL;
    if (client->state == FB_PROTO_LOST)
        return;
    FB_ASSERT(op != NULL);
    heard(client, now_ns);
    fb_proto_get_data(client, now_ns, op, skipped);
    fb_proto_call_check(client);
}

/* ---- jobs ---- */

bool fb_proto_client_take_job(struct fb_proto_client *client, struct fb_proto_job *job)
{
    struct fb_proto_op *op = client->todo.op;
    if (op == NULL)
        return false;
    memset(job, 0, sizeof(*job));
    job->slot = slot_of(client, op);
    job->op = op->id;
    job->item = op->item;
    job->call = op->call;
    job->generation = op->generation;
    if (op->type == FB_MSG_PUT)
        fb_proto_put_job(client, job);
    else
        fb_proto_get_job(client, job);
    job->leaf_count = (uint32_t)fb_div_up(job->part_bytes, FB_LEAF_BYTES);
    op->jobs++;
    return true;
}

static struct fb_proto_op *job_op(const struct fb_proto_client *client,
                                  const struct fb_proto_job *job)
{
    FB_ASSERT(job->slot < client->op_count);
    struct fb_proto_op *op = &client->ops[job->slot];
    FB_ASSERT(op->id == job->op && op->jobs > 0);
    return op;
}

bool fb_proto_client_job_is_wanted(const struct fb_proto_client *client,
                                   const struct fb_proto_job *job)
{
    const struct fb_proto_op *op = job_op(client, job);
    return op->call != NULL && !op->is_done && !op->gave_up;
}

void fb_proto_client_job_done(struct fb_proto_client *client, uint64_t now_ns,
                              const struct fb_proto_job *job, const uint64_t *leaves, bool moved)
{
    struct fb_proto_op *op = job_op(client, job);
    op->jobs--;
    heard(client, now_ns); /* whoever copies does not listen; that is not the node's silence */
    if (!moved) {
        op->job_dropped = true;
        leaves = NULL;
    }
    if (client->state == FB_PROTO_LOST)
        op->send = 0;
    else if (op->type == FB_MSG_PUT)
        fb_proto_put_moved(client, now_ns, op, job, leaves);
    else
        fb_proto_get_moved(client, op, job, leaves);
    fb_proto_op_settle(client, op);
    if (client->call != NULL && client->call->is_abandoned)
        fb_proto_call_tick(client, now_ns);
    fb_proto_call_check(client);
}

/* ---- time and loss ---- */

static void heartbeat(struct fb_proto_client *client, uint64_t now_ns)
{
    uint64_t beat_ns = client->welcome.heartbeat_ms * FB_MS_NS;
    if (beat_ns == 0 || client->call == NULL)
        return;
    if (client->pinged_ns != 0) {
        if (now_ns >= client->pinged_ns + beat_ns)
            fb_proto_client_lost(client, now_ns, FB_CONNECTION, "the node does not answer");
        return;
    }
    if (now_ns < client->heard_ns + beat_ns)
        return;
    client->send_ping = true;
    client->pinged_ns = now_ns;
}

void fb_proto_client_tick(struct fb_proto_client *client, uint64_t now_ns)
{
    if (client->state == FB_PROTO_LOST || client->state == FB_PROTO_IDLE)
        return;
    fb_proto_put_tick(client, now_ns);
    fb_proto_call_tick(client, now_ns);
    heartbeat(client, now_ns);
}

uint64_t fb_proto_client_next_ns(const struct fb_proto_client *client)
{
    uint64_t next_ns = UINT64_MAX;
    if (client->state == FB_PROTO_LOST)
        return next_ns;
    struct fb_link *late = fb_list_first(&client->late);
    if (late != NULL)
        next_ns = FB_LIST_ITEM(late, struct fb_proto_op, wait)->put.commit_ns;
    const struct fb_proto_call *call = client->call;
    if (call == NULL)
        return next_ns;
    if (!call->is_abandoned)
        next_ns = fb_min_u64(next_ns, call->abort_ns != 0 ? call->abort_ns : call->deadline_ns);
    uint64_t beat_ns = client->welcome.heartbeat_ms * FB_MS_NS;
    if (beat_ns != 0) {
        uint64_t from_ns = client->pinged_ns != 0 ? client->pinged_ns : client->heard_ns;
        next_ns = fb_min_u64(next_ns, from_ns + beat_ns);
    }
    return next_ns;
}

/* Ends every operation as the connection does. Those with a job out end with their job. */
static void end_all(struct fb_proto_client *client, int result)
{
    for (uint32_t i = 0; i < client->op_count; i++) {
        struct fb_proto_op *op = &client->ops[i];
        if (op->id == 0)
            continue;
        if (!op->is_done) {
            op->is_done = true;
            op->result = result;
            op->reason = 0;
        }
        op->send = 0;
        fb_list_remove(&op->ready);
        fb_list_remove(&op->wait);
        fb_proto_op_settle(client, op);
    }
}

void fb_proto_client_lost(struct fb_proto_client *client, uint64_t now_ns, int result,
                          const char *why)
{
    (void)now_ns;
    FB_ASSERT(result < 0);
    if (client->state == FB_PROTO_LOST)
        return;
    client->state = FB_PROTO_LOST;
    client->result = result;
    size_t bytes = fb_min_u64(strlen(why), FB_WIRE_TEXT_MAX);
    memcpy(client->why, why, bytes);
    client->why[bytes] = '\0';
    client->todo.op = NULL;
    client->data_op = NULL;
    /* Also with nothing open here: the last RELEASE or CHUNK_DONE may have been lost on its way. */
    client->owes_memory = (client->welcome.features & FB_FEATURE_SHM) != 0;
    if (client->call != NULL)
        fb_proto_call_skip_rest(client->call, result);
    end_all(client, result);
    fb_proto_call_check(client);
}
