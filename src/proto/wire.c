/*
 * The messages of the native protocol as bytes: docs/protocol.md is the same in words.
 *
 * Decoders read every field in order through a reader whose bounds are checked, remember the first
 * field that is not as it must be, and at the end want nothing left. A frame's length was bounded
 * by its type before its payload was read (fb_wire_header_decode), so no number inside a message
 * can ask for memory.
 */
#include "proto/wire.h"

#include <string.h>

#include "base/assert.h"
#include "base/bits.h"
#include "base/bug.h"
#include "base/result.h"

#define HEADER_CHECK_AT 24

/* ---- what the types allow ---- */

struct type_rule {
    const char *name;
    uint32_t least, most; /* payload bytes */
    uint8_t flags;        /* that may be set */
    bool client, node;    /* who sends it */
};

#define KEY_HEAD  16u
#define KEY_MOST  (KEY_HEAD + FB_KEY_BYTES_MAX)
#define KEY_LEAST (KEY_HEAD + FB_KEY_BYTES_MIN)

static const struct type_rule rules[FB_MSG_TYPE_COUNT] = {
    [FB_MSG_HELLO] = {"HELLO", 36, 36 + FB_WIRE_NAME_MAX, 0, true, false},
    [FB_MSG_WELCOME] = {"WELCOME", 80, 80, 0, false, true},
    [FB_MSG_ERROR] = {"ERROR", 8, 8 + FB_WIRE_TEXT_MAX, 0, true, true},
    [FB_MSG_PING] = {"PING", 0, 0, 0, true, true},
    [FB_MSG_PONG] = {"PONG", 16, 16, 0, true, true},
    [FB_MSG_NAMESPACE] = {"NAMESPACE", 25, 24 + FB_WIRE_FIELDS_MAX, 0, true, false},
    [FB_MSG_NAMESPACE_DONE] = {"NAMESPACE_DONE", 48, 48, 0, false, true},
    [FB_MSG_PUT] = {"PUT", 64 + FB_KEY_BYTES_MIN, 64 + FB_KEY_BYTES_MAX + FB_WIRE_INLINE_MAX, 0,
                    true, false},
    [FB_MSG_GRANT] = {"GRANT", 32, 32 + FB_WIRE_RUNS_MAX *FB_WIRE_RUN_BYTES, FB_FRAME_MORE, false,
                      true},
    [FB_MSG_DATA] = {"DATA", FB_WIRE_DATA_HEAD_BYTES + 1, FB_WIRE_PAYLOAD_MAX, FB_FRAME_CHECKED,
                     true, true},
    [FB_MSG_COMMIT] = {"COMMIT", 16 + 8, 16 + FB_WIRE_LEAVES_MAX * 8, 0, true, false},
    [FB_MSG_PUT_DONE] = {"PUT_DONE", 16, 16, FB_FRAME_RELEASE_WANTED | FB_FRAME_PERSISTED, false,
                         true},
    [FB_MSG_RELEASE] = {"RELEASE", 0, 0, 0, true, false},
    [FB_MSG_GET] = {"GET", 40 + FB_KEY_BYTES_MIN, 40 + FB_KEY_BYTES_MAX, 0, true, false},
    [FB_MSG_CHUNK] = {"CHUNK", 64, 64 + FB_WIRE_RUNS_MAX *FB_WIRE_RUN_BYTES, 0, false, true},
    [FB_MSG_CHUNK_DONE] = {"CHUNK_DONE", 8, 8, FB_FRAME_BAD, true, false},
    [FB_MSG_GET_DONE] = {"GET_DONE", 24, 24, 0, false, true},
    [FB_MSG_LOOKUP] = {"LOOKUP", 48, 32 + FB_WIRE_DIGESTS_MAX *FB_WIRE_DIGEST_BYTES, 0, true,
                       false},
    [FB_MSG_LOOKUP_DONE] = {"LOOKUP_DONE", 8, 8 + FB_WIRE_DIGESTS_MAX, 0, false, true},
    [FB_MSG_HOLD_RELEASE] = {"HOLD_RELEASE", 48, 32 + FB_WIRE_DIGESTS_MAX *FB_WIRE_DIGEST_BYTES, 0,
                             true, false},
    [FB_MSG_REMOVE] = {"REMOVE", KEY_LEAST, KEY_MOST, 0, true, false},
    [FB_MSG_REMOVE_DONE] = {"REMOVE_DONE", 16, 16, 0, false, true},
    [FB_MSG_WAIT_PERSISTED] = {"WAIT_PERSISTED", KEY_LEAST, KEY_MOST, 0, true, false},
    [FB_MSG_WAIT_DONE] = {"WAIT_DONE", 16, 16, FB_FRAME_PERSISTED, false, true},
    [FB_MSG_EPOCH] = {"EPOCH", 16, 16, 0, true, false},
    [FB_MSG_EPOCH_DONE] = {"EPOCH_DONE", 16, 16, 0, false, true},
    [FB_MSG_DROP_DRAM] = {"DROP_DRAM", KEY_LEAST, KEY_MOST, 0, true, false},
    [FB_MSG_DROP_DONE] = {"DROP_DONE", 16, 16, 0, false, true},
    [FB_MSG_EXPLAIN] = {"EXPLAIN", KEY_LEAST, KEY_MOST, 0, true, false},
    [FB_MSG_EXPLAIN_DONE] = {"EXPLAIN_DONE", 48, 48 + FB_WIRE_TEXT_MAX, 0, false, true},
    [FB_MSG_LIST] = {"LIST", 24, 24, 0, true, false},
    [FB_MSG_LIST_DONE] = {"LIST_DONE", 16, 16 + FB_WIRE_LIST_BYTES_MAX, 0, false, true},
    [FB_MSG_STATUS] = {"STATUS", 0, 0, 0, true, false},
    [FB_MSG_STATUS_DONE] = {"STATUS_DONE", 8, 8 + FB_WIRE_STATUS_BYTES_MAX, 0, false, true},
    [FB_MSG_CANCEL] = {"CANCEL", 0, 0, 0, true, false},
};

const char *fb_wire_type_name(int type)
{
    return type > 0 && type < FB_MSG_TYPE_COUNT ? rules[type].name : "unknown";
}

bool fb_wire_type_from_client(int type)
{
    return type > 0 && type < FB_MSG_TYPE_COUNT && rules[type].client;
}

/* ---- decoding helpers ---- */

/* Remembers the first field that is wrong; the reader has failed from then on. */
static void want(struct fb_reader *reader, bool good, const char *field, const char **bad)
{
    if (reader->failed || good)
        return;
    fb_reader_fail(reader);
    *bad = field;
}

/* Ends a decoder: all read, nothing left. `message` names the message for a length that does not
 * fit. */
static int finish(struct fb_reader *reader, const char *length_field, const char **bad)
{
    if (fb_reader_is_done(reader))
        return FB_OK;
    if (*bad == NULL)
        *bad = length_field;
    return FB_PROTOCOL;
}

/* A begin for decoders: nothing is wrong yet, and the message is all zeros if it stays unread. */
#define DECODE_BEGIN(message, bad)                \
    do {                                          \
        memset((message), 0, sizeof(*(message))); \
        *(bad) = NULL;                            \
    } while (0)

static bool is_result(int32_t code)
{
    return fb_result_index(code) >= 0;
}

static bool is_deadline(uint32_t deadline_ms)
{
    return deadline_ms <= FB_WIRE_DEADLINE_MS_MAX;
}

static bool is_key_length(uint32_t bytes)
{
    return bytes >= FB_KEY_BYTES_MIN && bytes <= FB_KEY_BYTES_MAX;
}

static int32_t read_i32(struct fb_reader *reader)
{
    return (int32_t)fb_reader_u32(reader);
}

static void read_reserved(struct fb_reader *reader, size_t bytes, const char *field,
                          const char **bad)
{
    const uint8_t *at = fb_reader_bytes(reader, bytes);
    uint8_t any = 0;
    for (size_t i = 0; at != NULL && i < bytes; i++)
        any |= at[i];
    want(reader, any == 0, field, bad);
}

/* ---- header and frames ---- */

void fb_wire_header_encode(struct fb_writer *writer, const struct fb_wire_header *header)
{
    FB_ASSERT(header->type > 0 && header->type < FB_MSG_TYPE_COUNT);
    FB_ASSERT(header->payload_bytes <= FB_WIRE_PAYLOAD_MAX);
    fb_writer_u8(writer, FB_WIRE_MAGIC);
    fb_writer_u8(writer, FB_WIRE_VERSION);
    fb_writer_u8(writer, header->type);
    fb_writer_u8(writer, header->flags);
    fb_writer_u32(writer, header->payload_bytes);
    fb_writer_u64(writer, header->op);
    fb_writer_u32(writer, header->map_version);
    fb_writer_u32(writer, 0);
    fb_writer_u64(writer, header->check);
}

/* The part of a header's check that needs no payload, apart from magic and version. */
static int header_rules(const struct fb_wire_header *header, uint32_t reserved, const char **bad)
{
    *bad = NULL;
    if (header->type == 0 || header->type >= FB_MSG_TYPE_COUNT) {
        *bad = "header.type";
        return FB_PROTOCOL;
    }
    const struct type_rule *rule = &rules[header->type];
    if ((header->flags & ~rule->flags) != 0)
        *bad = "header.flags";
    else if (header->payload_bytes < rule->least || header->payload_bytes > rule->most)
        *bad = "header.payload_bytes";
    else if (reserved != 0)
        *bad = "header.reserved";
    return *bad == NULL ? FB_OK : FB_PROTOCOL;
}

int fb_wire_header_decode(const uint8_t bytes[FB_WIRE_HEADER_BYTES], struct fb_wire_header *header,
                          const char **bad)
{
    struct fb_reader reader;
    fb_reader_init(&reader, bytes, FB_WIRE_HEADER_BYTES);
    memset(header, 0, sizeof(*header));
    uint8_t magic = fb_reader_u8(&reader);
    uint8_t version = fb_reader_u8(&reader);
    header->type = fb_reader_u8(&reader);
    header->flags = fb_reader_u8(&reader);
    header->payload_bytes = fb_reader_u32(&reader);
    header->op = fb_reader_u64(&reader);
    header->map_version = fb_reader_u32(&reader);
    uint32_t reserved = fb_reader_u32(&reader);
    header->check = fb_reader_u64(&reader);
    FB_ASSERT(fb_reader_is_done(&reader));
    if (magic != FB_WIRE_MAGIC) {
        *bad = "header.magic";
        return FB_PROTOCOL;
    }
    if (version != FB_WIRE_VERSION) {
        *bad = "header.version";
        return FB_UNSUPPORTED;
    }
    return header_rules(header, reserved, bad);
}

uint32_t fb_wire_covered_bytes(const struct fb_wire_header *header)
{
    if (header->type == FB_MSG_DATA && (header->flags & FB_FRAME_CHECKED) == 0)
        return FB_WIRE_DATA_HEAD_BYTES;
    return header->payload_bytes;
}

static void check_begin(struct fb_hash_state *state, const uint8_t *header)
{
    uint8_t copy[FB_WIRE_HEADER_BYTES];
    memcpy(copy, header, HEADER_CHECK_AT);
    memset(copy + HEADER_CHECK_AT, 0, sizeof(copy) - HEADER_CHECK_AT);
    fb_hash_begin(state, 0);
    fb_hash_add(state, copy, sizeof(copy));
}

uint64_t fb_wire_check(const uint8_t bytes[FB_WIRE_HEADER_BYTES], const void *payload,
                       uint32_t covered)
{
    struct fb_hash_state state;
    check_begin(&state, bytes);
    fb_hash_add(&state, payload, covered);
    return fb_hash_finish(&state);
}

static void put_check(uint8_t *header, uint64_t check)
{
    struct fb_writer writer;
    fb_writer_init(&writer, header + HEADER_CHECK_AT, sizeof(check));
    fb_writer_u64(&writer, check);
}

size_t fb_wire_frame_begin(struct fb_writer *writer)
{
    size_t at = writer->at_bytes;
    fb_writer_zeros(writer, FB_WIRE_HEADER_BYTES);
    return at;
}

void fb_wire_frame_end(struct fb_writer *writer, size_t at, uint8_t type, uint8_t flags,
                       uint64_t op, uint32_t map_version)
{
    if (writer->failed)
        return;
    FB_ASSERT(writer->at_bytes >= at + FB_WIRE_HEADER_BYTES);
    struct fb_wire_header header = {
        .type = type,
        .flags = flags,
        .op = op,
        .map_version = map_version,
        .payload_bytes = (uint32_t)(writer->at_bytes - at - FB_WIRE_HEADER_BYTES),
    };
    const char *bad;
    int result = header_rules(&header, 0, &bad);
    FB_ASSERT(result == FB_OK);
    uint8_t *bytes = writer->bytes + at;
    struct fb_writer head;
    fb_writer_init(&head, bytes, FB_WIRE_HEADER_BYTES);
    fb_wire_header_encode(&head, &header);
    put_check(bytes,
              fb_wire_check(bytes, bytes + FB_WIRE_HEADER_BYTES, fb_wire_covered_bytes(&header)));
}

/* Header (check 0) and preamble of a DATA frame. */
static void data_head(uint8_t *out, uint8_t flags, uint64_t op, uint64_t off, uint32_t len,
                      uint32_t map_version)
{
    FB_ASSERT(len > 0 && len <= FB_WIRE_DATA_MAX);
    struct fb_wire_header header = {
        .type = FB_MSG_DATA,
        .flags = flags,
        .op = op,
        .map_version = map_version,
        .payload_bytes = FB_WIRE_DATA_HEAD_BYTES + len,
    };
    struct fb_writer writer;
    fb_writer_init(&writer, out, FB_WIRE_HEADER_BYTES + FB_WIRE_DATA_HEAD_BYTES);
    fb_wire_header_encode(&writer, &header);
    fb_writer_u64(&writer, off);
    fb_writer_u32(&writer, len);
    fb_writer_u32(&writer, 0);
    FB_ASSERT(fb_writer_ok(&writer) && fb_writer_left(&writer) == 0);
}

void fb_wire_data_head(uint8_t out[FB_WIRE_HEADER_BYTES + FB_WIRE_DATA_HEAD_BYTES], uint64_t op,
                       uint64_t off, uint32_t len, const uint8_t *bytes, uint32_t map_version)
{
    if (bytes != NULL) {
        struct fb_wire_data_check check;
        fb_wire_data_check_begin(&check, out, op, off, len, map_version);
        fb_wire_data_check_add(&check, bytes, len);
        fb_wire_data_check_end(&check, out);
        return;
    }
    data_head(out, 0, op, off, len, map_version);
    put_check(out, fb_wire_check(out, out + FB_WIRE_HEADER_BYTES, FB_WIRE_DATA_HEAD_BYTES));
}

void fb_wire_data_check_begin(struct fb_wire_data_check *check, uint8_t *head, uint64_t op,
                              uint64_t off, uint32_t len, uint32_t map_version)
{
    data_head(head, FB_FRAME_CHECKED, op, off, len, map_version);
    check_begin(&check->state, head);
    fb_hash_add(&check->state, head + FB_WIRE_HEADER_BYTES, FB_WIRE_DATA_HEAD_BYTES);
}

void fb_wire_data_check_add(struct fb_wire_data_check *check, const void *bytes, size_t count)
{
    fb_hash_add(&check->state, bytes, count);
}

void fb_wire_data_check_end(struct fb_wire_data_check *check, uint8_t *head)
{
    put_check(head, fb_hash_finish(&check->state));
}

/* ---- arrays ---- */

struct fb_wire_run fb_wire_run_at(const uint8_t *runs, uint32_t i)
{
    struct fb_reader reader;
    fb_reader_init(&reader, runs + (size_t)i * FB_WIRE_RUN_BYTES, FB_WIRE_RUN_BYTES);
    struct fb_wire_run run = {.off = fb_reader_u64(&reader)};
    run.len = fb_reader_u32(&reader);
    return run;
}

void fb_wire_run_encode(struct fb_writer *writer, const struct fb_wire_run *run)
{
    FB_ASSERT(run->len > 0);
    fb_writer_u64(writer, run->off);
    fb_writer_u32(writer, run->len);
}

struct fb_digest fb_wire_digest_at(const uint8_t *digests, uint32_t i)
{
    struct fb_reader reader;
    fb_reader_init(&reader, digests + (size_t)i * FB_WIRE_DIGEST_BYTES, FB_WIRE_DIGEST_BYTES);
    struct fb_digest digest = {.lo = fb_reader_u64(&reader)};
    digest.hi = fb_reader_u64(&reader);
    return digest;
}

void fb_wire_digest_encode(struct fb_writer *writer, const struct fb_digest *digest)
{
    fb_writer_u64(writer, digest->lo);
    fb_writer_u64(writer, digest->hi);
}

uint64_t fb_wire_leaf_at(const uint8_t *leaves, uint32_t i)
{
    struct fb_reader reader;
    fb_reader_init(&reader, leaves + (size_t)i * sizeof(uint64_t), sizeof(uint64_t));
    return fb_reader_u64(&reader);
}

uint64_t fb_wire_leaf_count(uint64_t value_bytes, uint32_t chunk_bytes)
{
    FB_ASSERT(chunk_bytes != 0);
    uint64_t whole = value_bytes / chunk_bytes;
    uint64_t rest = value_bytes % chunk_bytes;
    return whole * fb_div_up(chunk_bytes, FB_LEAF_BYTES) + fb_div_up(rest, FB_LEAF_BYTES);
}

/* All runs must have a length, and their sum may be no more than a value. */
static void want_runs(struct fb_reader *reader, const uint8_t *runs, uint32_t count,
                      const char *field, const char **bad)
{
    uint64_t sum = 0;
    bool good = true;
    for (uint32_t i = 0; runs != NULL && i < count; i++) {
        struct fb_wire_run run = fb_wire_run_at(runs, i);
        good = good && run.len > 0 && run.off <= UINT64_MAX - run.len;
        sum += run.len;
    }
    want(reader, good && sum <= FB_VALUE_BYTES_MAX, field, bad);
}

int fb_wire_empty_decode(struct fb_reader *reader, const char **bad)
{
    *bad = NULL;
    return finish(reader, "header.payload_bytes", bad);
}

/* ---- the start of a connection ---- */

void fb_wire_hello_encode(struct fb_writer *writer, const struct fb_msg_hello *message)
{
    FB_ASSERT(message->name_bytes <= FB_WIRE_NAME_MAX);
    fb_writer_u64(writer, message->features);
    fb_writer_u64(writer, message->client_nonce);
    fb_writer_u64(writer, message->ended_session);
    fb_writer_u32(writer, message->pid);
    fb_writer_u32(writer, message->version_minor);
    fb_writer_u16(writer, message->name_bytes);
    fb_writer_u16(writer, 0);
    fb_writer_bytes(writer, message->name, message->name_bytes);
}

int fb_wire_hello_decode(struct fb_reader *reader, struct fb_msg_hello *message, const char **bad)
{
    DECODE_BEGIN(message, bad);
    message->features = fb_reader_u64(reader);
    message->client_nonce = fb_reader_u64(reader);
    message->ended_session = fb_reader_u64(reader);
    message->pid = fb_reader_u32(reader);
    message->version_minor = fb_reader_u32(reader);
    message->name_bytes = fb_reader_u16(reader);
    want(reader, message->name_bytes <= FB_WIRE_NAME_MAX, "HELLO.name_bytes", bad);
    read_reserved(reader, 2, "HELLO.reserved", bad);
    if (FB_BUG(FB_BUG_PARSER_OVERREAD) && fb_reader_ok(reader)) {
        message->name = reader->bytes + reader->at_bytes;
        reader->at_bytes = fb_min_u64(reader->size_bytes, reader->at_bytes + message->name_bytes);
    } else {
        message->name = fb_reader_bytes(reader, message->name_bytes);
    }
    return finish(reader, "HELLO.name_bytes", bad);
}

void fb_wire_welcome_encode(struct fb_writer *writer, const struct fb_msg_welcome *message)
{
    fb_writer_u64(writer, message->features);
    fb_writer_u64(writer, message->boot_nonce);
    fb_writer_u64(writer, message->session);
    fb_writer_u64(writer, message->node_id);
    fb_writer_u64(writer, message->pool_bytes);
    fb_writer_u64(writer, message->value_bytes_max);
    fb_writer_u64(writer, message->inline_credit_bytes);
    fb_writer_u32(writer, message->chunk_bytes);
    fb_writer_u32(writer, message->op_credit);
    fb_writer_u32(writer, message->heartbeat_ms);
    fb_writer_u32(writer, message->shards);
    fb_writer_u32(writer, message->map_version);
    fb_writer_u32(writer, message->version_minor);
}

int fb_wire_welcome_decode(struct fb_reader *reader, struct fb_msg_welcome *message,
                           const char **bad)
{
    DECODE_BEGIN(message, bad);
    message->features = fb_reader_u64(reader);
    message->boot_nonce = fb_reader_u64(reader);
    message->session = fb_reader_u64(reader);
    message->node_id = fb_reader_u64(reader);
    message->pool_bytes = fb_reader_u64(reader);
    message->value_bytes_max = fb_reader_u64(reader);
    message->inline_credit_bytes = fb_reader_u64(reader);
    message->chunk_bytes = fb_reader_u32(reader);
    message->op_credit = fb_reader_u32(reader);
    message->heartbeat_ms = fb_reader_u32(reader);
    message->shards = fb_reader_u32(reader);
    message->map_version = fb_reader_u32(reader);
    message->version_minor = fb_reader_u32(reader);
    want(reader, message->session != 0, "WELCOME.session", bad);
    want(reader, message->value_bytes_max <= FB_VALUE_BYTES_MAX, "WELCOME.value_bytes_max", bad);
    want(reader,
         message->chunk_bytes >= FB_PAGE_BYTES && message->chunk_bytes <= FB_CHUNK_BYTES_MAX &&
             message->chunk_bytes % FB_PAGE_BYTES == 0,
         "WELCOME.chunk_bytes", bad);
    want(reader, message->op_credit != 0, "WELCOME.op_credit", bad);
    want(reader, message->shards != 0, "WELCOME.shards", bad);
    return finish(reader, "WELCOME", bad);
}

void fb_wire_error_encode(struct fb_writer *writer, const struct fb_msg_error *message)
{
    FB_ASSERT(is_result(message->result) && message->text_bytes <= FB_WIRE_TEXT_MAX);
    fb_writer_u32(writer, (uint32_t)message->result);
    fb_writer_u16(writer, message->text_bytes);
    fb_writer_u16(writer, 0);
    fb_writer_bytes(writer, message->text, message->text_bytes);
}

int fb_wire_error_decode(struct fb_reader *reader, struct fb_msg_error *message, const char **bad)
{
    DECODE_BEGIN(message, bad);
    message->result = read_i32(reader);
    want(reader, is_result(message->result) && message->result < 0, "ERROR.result", bad);
    message->text_bytes = fb_reader_u16(reader);
    want(reader, message->text_bytes <= FB_WIRE_TEXT_MAX, "ERROR.text_bytes", bad);
    read_reserved(reader, 2, "ERROR.reserved", bad);
    message->text = fb_reader_bytes(reader, message->text_bytes);
    return finish(reader, "ERROR.text_bytes", bad);
}

void fb_wire_pong_encode(struct fb_writer *writer, const struct fb_msg_pong *message)
{
    FB_ASSERT(message->state < FB_WIRE_NODE_STATES);
    fb_writer_u64(writer, message->turn_age_us);
    fb_writer_u8(writer, message->tier);
    fb_writer_u8(writer, message->state);
    fb_writer_zeros(writer, 6);
}

int fb_wire_pong_decode(struct fb_reader *reader, struct fb_msg_pong *message, const char **bad)
{
    DECODE_BEGIN(message, bad);
    message->turn_age_us = fb_reader_u64(reader);
    message->tier = fb_reader_u8(reader);
    message->state = fb_reader_u8(reader);
    want(reader, message->state < FB_WIRE_NODE_STATES, "PONG.state", bad);
    read_reserved(reader, 6, "PONG.reserved", bad);
    return finish(reader, "PONG", bad);
}

/* ---- namespaces ---- */

void fb_wire_namespace_encode(struct fb_writer *writer, const struct fb_msg_namespace *message)
{
    FB_ASSERT(message->fields_bytes > 0 && message->fields_bytes <= FB_WIRE_FIELDS_MAX);
    FB_ASSERT(is_deadline(message->deadline_ms));
    fb_writer_u32(writer, message->deadline_ms);
    fb_writer_u32(writer, message->fields_bytes);
    fb_writer_u64(writer, message->quota_dram_bytes);
    fb_writer_u64(writer, message->quota_ssd_bytes);
    fb_writer_bytes(writer, message->fields, message->fields_bytes);
}

int fb_wire_namespace_decode(struct fb_reader *reader, struct fb_msg_namespace *message,
                             const char **bad)
{
    DECODE_BEGIN(message, bad);
    message->deadline_ms = fb_reader_u32(reader);
    want(reader, is_deadline(message->deadline_ms), "NAMESPACE.deadline_ms", bad);
    message->fields_bytes = fb_reader_u32(reader);
    want(reader, message->fields_bytes > 0 && message->fields_bytes <= FB_WIRE_FIELDS_MAX,
         "NAMESPACE.fields_bytes", bad);
    message->quota_dram_bytes = fb_reader_u64(reader);
    message->quota_ssd_bytes = fb_reader_u64(reader);
    message->fields = fb_reader_bytes(reader, message->fields_bytes);
    return finish(reader, "NAMESPACE.fields_bytes", bad);
}

void fb_wire_namespace_done_encode(struct fb_writer *writer,
                                   const struct fb_msg_namespace_done *message)
{
    FB_ASSERT(is_result(message->result));
    fb_writer_u32(writer, (uint32_t)message->result);
    fb_writer_u16(writer, message->ns);
    fb_writer_u16(writer, 0);
    fb_writer_u64(writer, message->epoch);
    fb_writer_bytes(writer, message->id, sizeof(message->id));
    fb_writer_bytes(writer, message->secret, sizeof(message->secret));
}

int fb_wire_namespace_done_decode(struct fb_reader *reader, struct fb_msg_namespace_done *message,
                                  const char **bad)
{
    DECODE_BEGIN(message, bad);
    message->result = read_i32(reader);
    want(reader, is_result(message->result), "NAMESPACE_DONE.result", bad);
    message->ns = fb_reader_u16(reader);
    read_reserved(reader, 2, "NAMESPACE_DONE.reserved", bad);
    message->epoch = fb_reader_u64(reader);
    fb_reader_copy(reader, message->id, sizeof(message->id));
    fb_reader_copy(reader, message->secret, sizeof(message->secret));
    return finish(reader, "NAMESPACE_DONE", bad);
}

void fb_wire_epoch_encode(struct fb_writer *writer, const struct fb_msg_epoch *message)
{
    FB_ASSERT(is_deadline(message->deadline_ms));
    fb_writer_u16(writer, message->ns);
    fb_writer_u16(writer, 0);
    fb_writer_u32(writer, message->deadline_ms);
    fb_writer_u64(writer, message->epoch);
}

int fb_wire_epoch_decode(struct fb_reader *reader, struct fb_msg_epoch *message, const char **bad)
{
    DECODE_BEGIN(message, bad);
    message->ns = fb_reader_u16(reader);
    read_reserved(reader, 2, "EPOCH.reserved", bad);
    message->deadline_ms = fb_reader_u32(reader);
    want(reader, is_deadline(message->deadline_ms), "EPOCH.deadline_ms", bad);
    message->epoch = fb_reader_u64(reader);
    return finish(reader, "EPOCH", bad);
}

/* ---- requests on one key ---- */

/* The 16 bytes with which every request on a key begins; the key itself ends the message, or stands
 * before inline bytes. */
static void key_head_encode(struct fb_writer *writer, const struct fb_msg_key *key)
{
    FB_ASSERT(is_key_length(key->key_bytes) && is_deadline(key->deadline_ms));
    fb_writer_u16(writer, key->ns);
    fb_writer_u16(writer, key->key_bytes);
    fb_writer_u32(writer, key->deadline_ms);
    fb_writer_u64(writer, key->epoch);
}

static void key_head_decode(struct fb_reader *reader, struct fb_msg_key *key, const char **bad)
{
    key->ns = fb_reader_u16(reader);
    key->key_bytes = fb_reader_u16(reader);
    want(reader, is_key_length(key->key_bytes), "key.key_bytes", bad);
    key->deadline_ms = fb_reader_u32(reader);
    want(reader, is_deadline(key->deadline_ms), "key.deadline_ms", bad);
    key->epoch = fb_reader_u64(reader);
}

void fb_wire_key_encode(struct fb_writer *writer, const struct fb_msg_key *message)
{
    key_head_encode(writer, message);
    fb_writer_bytes(writer, message->key, message->key_bytes);
}

int fb_wire_key_decode(struct fb_reader *reader, struct fb_msg_key *message, const char **bad)
{
    DECODE_BEGIN(message, bad);
    key_head_decode(reader, message, bad);
    message->key = fb_reader_bytes(reader, message->key_bytes);
    return finish(reader, "key.key_bytes", bad);
}

static bool is_value_length(uint64_t bytes)
{
    return bytes >= FB_VALUE_BYTES_MIN;
}

/* Inline bytes are none, or the whole value if that is short. */
static bool is_inline_length(uint32_t inline_bytes, uint64_t value_bytes)
{
    return inline_bytes == 0 || (inline_bytes <= FB_WIRE_INLINE_MAX && inline_bytes == value_bytes);
}

void fb_wire_put_encode(struct fb_writer *writer, const struct fb_msg_put *message)
{
    FB_ASSERT(is_value_length(message->value_bytes));
    FB_ASSERT(is_inline_length(message->inline_bytes, message->value_bytes));
    FB_ASSERT((message->put_flags & ~FB_WIRE_PUT_UPSERT) == 0 &&
              message->persist < FB_WIRE_PERSIST_MODES);
    key_head_encode(writer, &message->key);
    fb_writer_u64(writer, message->value_bytes);
    fb_wire_digest_encode(writer, &message->group);
    fb_writer_u16(writer, message->depth);
    fb_writer_u8(writer, message->persist);
    fb_writer_u8(writer, message->pin_class);
    fb_writer_u8(writer, message->put_flags);
    fb_writer_zeros(writer, 3);
    fb_writer_u32(writer, message->inline_bytes);
    fb_writer_u32(writer, 0);
    fb_writer_u64(writer, message->inline_leaf);
    fb_writer_bytes(writer, message->key.key, message->key.key_bytes);
    fb_writer_bytes(writer, message->inline_data, message->inline_bytes);
}

int fb_wire_put_decode(struct fb_reader *reader, struct fb_msg_put *message, const char **bad)
{
    DECODE_BEGIN(message, bad);
    key_head_decode(reader, &message->key, bad);
    message->value_bytes = fb_reader_u64(reader);
    want(reader, is_value_length(message->value_bytes), "PUT.value_bytes", bad);
    message->group.lo = fb_reader_u64(reader);
    message->group.hi = fb_reader_u64(reader);
    message->depth = fb_reader_u16(reader);
    message->persist = fb_reader_u8(reader);
    want(reader, message->persist < FB_WIRE_PERSIST_MODES, "PUT.persist", bad);
    message->pin_class = fb_reader_u8(reader);
    message->put_flags = fb_reader_u8(reader);
    want(reader, (message->put_flags & ~FB_WIRE_PUT_UPSERT) == 0, "PUT.put_flags", bad);
    read_reserved(reader, 3, "PUT.reserved", bad);
    message->inline_bytes = fb_reader_u32(reader);
    want(reader, is_inline_length(message->inline_bytes, message->value_bytes), "PUT.inline_bytes",
         bad);
    read_reserved(reader, 4, "PUT.reserved", bad);
    message->inline_leaf = fb_reader_u64(reader);
    message->key.key = fb_reader_bytes(reader, message->key.key_bytes);
    message->inline_data = fb_reader_bytes(reader, message->inline_bytes);
    return finish(reader, "PUT.inline_bytes", bad);
}

void fb_wire_grant_encode(struct fb_writer *writer, const struct fb_msg_grant *message)
{
    FB_ASSERT(message->run_count <= FB_WIRE_RUNS_MAX);
    FB_ASSERT((message->window_bytes != 0) != (message->run_count != 0));
    fb_writer_u64(writer, message->generation);
    fb_writer_u64(writer, message->window_bytes);
    fb_writer_u64(writer, message->value_off);
    fb_writer_u32(writer, message->run_count);
    fb_writer_u32(writer, 0);
    fb_writer_bytes(writer, message->runs, (size_t)message->run_count * FB_WIRE_RUN_BYTES);
}

int fb_wire_grant_decode(struct fb_reader *reader, struct fb_msg_grant *message, const char **bad)
{
    DECODE_BEGIN(message, bad);
    message->generation = fb_reader_u64(reader);
    want(reader, message->generation != 0, "GRANT.generation", bad);
    message->window_bytes = fb_reader_u64(reader);
    want(reader, message->window_bytes <= FB_VALUE_BYTES_MAX, "GRANT.window_bytes", bad);
    message->value_off = fb_reader_u64(reader);
    want(reader, message->value_off < FB_VALUE_BYTES_MAX, "GRANT.value_off", bad);
    message->run_count = fb_reader_u32(reader);
    want(reader, message->run_count <= FB_WIRE_RUNS_MAX, "GRANT.run_count", bad);
    want(reader, (message->run_count != 0) != (message->window_bytes != 0), "GRANT.run_count", bad);
    read_reserved(reader, 4, "GRANT.reserved", bad);
    message->runs = fb_reader_bytes(reader, (size_t)message->run_count * FB_WIRE_RUN_BYTES);
    want_runs(reader, message->runs, message->run_count, "GRANT.runs", bad);
    return finish(reader, "GRANT.run_count", bad);
}

void fb_wire_data_encode(struct fb_writer *writer, const struct fb_msg_data *message)
{
    FB_ASSERT(message->len > 0 && message->len <= FB_WIRE_DATA_MAX);
    fb_writer_u64(writer, message->off);
    fb_writer_u32(writer, message->len);
    fb_writer_u32(writer, 0);
    fb_writer_bytes(writer, message->bytes, message->len);
}

/* The preamble; the bytes follow if they are there. */
static void data_fields(struct fb_reader *reader, uint32_t payload_bytes,
                        struct fb_msg_data *message, const char **bad)
{
    message->off = fb_reader_u64(reader);
    want(reader, message->off < FB_VALUE_BYTES_MAX, "DATA.off", bad);
    message->len = fb_reader_u32(reader);
    want(reader,
         message->len > 0 && payload_bytes >= FB_WIRE_DATA_HEAD_BYTES &&
             message->len == payload_bytes - FB_WIRE_DATA_HEAD_BYTES,
         "DATA.len", bad);
    want(reader, message->len <= FB_VALUE_BYTES_MAX - message->off, "DATA.len", bad);
    read_reserved(reader, 4, "DATA.reserved", bad);
}

int fb_wire_data_decode(struct fb_reader *reader, struct fb_msg_data *message, const char **bad)
{
    DECODE_BEGIN(message, bad);
    data_fields(reader, (uint32_t)fb_min_u64(fb_reader_left(reader), UINT32_MAX), message, bad);
    message->bytes = fb_reader_bytes(reader, message->len);
    return finish(reader, "DATA.len", bad);
}

int fb_wire_data_head_decode(const uint8_t head[FB_WIRE_DATA_HEAD_BYTES], uint32_t payload_bytes,
                             struct fb_msg_data *message, const char **bad)
{
    struct fb_reader reader;
    fb_reader_init(&reader, head, FB_WIRE_DATA_HEAD_BYTES);
    DECODE_BEGIN(message, bad);
    data_fields(&reader, payload_bytes, message, bad);
    return finish(&reader, "DATA.len", bad);
}

void fb_wire_commit_encode(struct fb_writer *writer, const struct fb_msg_commit *message)
{
    FB_ASSERT(message->leaf_count > 0 && message->leaf_count <= FB_WIRE_LEAVES_MAX);
    fb_writer_u64(writer, message->generation);
    fb_writer_u32(writer, message->leaf_count);
    fb_writer_u32(writer, 0);
    fb_writer_bytes(writer, message->leaves, (size_t)message->leaf_count * sizeof(uint64_t));
}

int fb_wire_commit_decode(struct fb_reader *reader, struct fb_msg_commit *message, const char **bad)
{
    DECODE_BEGIN(message, bad);
    message->generation = fb_reader_u64(reader);
    want(reader, message->generation != 0, "COMMIT.generation", bad);
    message->leaf_count = fb_reader_u32(reader);
    want(reader, message->leaf_count > 0 && message->leaf_count <= FB_WIRE_LEAVES_MAX,
         "COMMIT.leaf_count", bad);
    read_reserved(reader, 4, "COMMIT.reserved", bad);
    message->leaves = fb_reader_bytes(reader, (size_t)message->leaf_count * sizeof(uint64_t));
    return finish(reader, "COMMIT.leaf_count", bad);
}

void fb_wire_put_done_encode(struct fb_writer *writer, const struct fb_msg_put_done *message)
{
    FB_ASSERT(is_result(message->result));
    fb_writer_u32(writer, (uint32_t)message->result);
    fb_writer_u8(writer, message->reason);
    fb_writer_zeros(writer, 3);
    fb_writer_u64(writer, message->generation);
}

int fb_wire_put_done_decode(struct fb_reader *reader, struct fb_msg_put_done *message,
                            const char **bad)
{
    DECODE_BEGIN(message, bad);
    message->result = read_i32(reader);
    want(reader, is_result(message->result), "PUT_DONE.result", bad);
    message->reason = fb_reader_u8(reader);
    read_reserved(reader, 3, "PUT_DONE.reserved", bad);
    message->generation = fb_reader_u64(reader);
    return finish(reader, "PUT_DONE", bad);
}

/* ---- get ---- */

#define GET_FLAGS (FB_WIRE_GET_VERIFY | FB_WIRE_GET_HELD | FB_WIRE_GET_NO_PROMOTE)

void fb_wire_get_encode(struct fb_writer *writer, const struct fb_msg_get *message)
{
    FB_ASSERT(message->range_bytes > 0 && (message->get_flags & ~GET_FLAGS) == 0);
    key_head_encode(writer, &message->key);
    fb_writer_u64(writer, message->range_off);
    fb_writer_u64(writer, message->range_bytes);
    fb_writer_u8(writer, message->get_flags);
    fb_writer_zeros(writer, 7);
    fb_writer_bytes(writer, message->key.key, message->key.key_bytes);
}

int fb_wire_get_decode(struct fb_reader *reader, struct fb_msg_get *message, const char **bad)
{
    DECODE_BEGIN(message, bad);
    key_head_decode(reader, &message->key, bad);
    message->range_off = fb_reader_u64(reader);
    message->range_bytes = fb_reader_u64(reader);
    want(reader, message->range_bytes > 0, "GET.range_bytes", bad);
    message->get_flags = fb_reader_u8(reader);
    want(reader, (message->get_flags & ~GET_FLAGS) == 0, "GET.get_flags", bad);
    read_reserved(reader, 7, "GET.reserved", bad);
    message->key.key = fb_reader_bytes(reader, message->key.key_bytes);
    return finish(reader, "key.key_bytes", bad);
}

void fb_wire_chunk_encode(struct fb_writer *writer, const struct fb_msg_chunk *message)
{
    FB_ASSERT(message->slot < FB_WIRE_CHUNK_SLOTS && message->mode < FB_WIRE_CHUNK_MODES);
    FB_ASSERT((message->run_count != 0) == (message->mode == FB_WIRE_CHUNK_RUNS));
    FB_ASSERT((message->inline_bytes != 0) == (message->mode == FB_WIRE_CHUNK_INLINE));
    fb_writer_u8(writer, message->slot);
    fb_writer_u8(writer, message->verified);
    fb_writer_u8(writer, message->from_ssd);
    fb_writer_u8(writer, message->mode);
    fb_writer_u32(writer, message->part);
    fb_writer_u32(writer, message->part_bytes);
    fb_writer_u32(writer, message->want_off);
    fb_writer_u32(writer, message->want_bytes);
    fb_writer_u32(writer, message->run_count);
    fb_writer_u32(writer, message->inline_bytes);
    fb_writer_u32(writer, 0);
    fb_writer_u64(writer, message->value_off);
    fb_writer_u64(writer, message->value_bytes);
    fb_writer_u64(writer, message->generation);
    fb_writer_u64(writer, message->root);
    fb_writer_bytes(writer, message->runs, (size_t)message->run_count * FB_WIRE_RUN_BYTES);
    fb_writer_bytes(writer, message->inline_data, message->inline_bytes);
}

/* What the numbers of a CHUNK must be to each other. */
static void chunk_relations(struct fb_reader *reader, const struct fb_msg_chunk *chunk,
                            const char **bad)
{
    want(reader, chunk->slot < FB_WIRE_CHUNK_SLOTS, "CHUNK.slot", bad);
    want(reader, chunk->verified <= 1, "CHUNK.verified", bad);
    want(reader, chunk->from_ssd <= 1, "CHUNK.from_ssd", bad);
    want(reader, chunk->mode < FB_WIRE_CHUNK_MODES, "CHUNK.mode", bad);
    want(reader, chunk->part_bytes > 0 && chunk->part_bytes <= FB_CHUNK_BYTES_MAX,
         "CHUNK.part_bytes", bad);
    want(reader, chunk->want_off < chunk->part_bytes, "CHUNK.want_off", bad);
    want(reader, chunk->want_bytes > 0 && chunk->want_bytes <= chunk->part_bytes - chunk->want_off,
         "CHUNK.want_bytes", bad);
    bool runs = chunk->mode == FB_WIRE_CHUNK_RUNS;
    want(reader,
         runs ? chunk->run_count > 0 && chunk->run_count <= FB_WIRE_RUNS_MAX
              : chunk->run_count == 0,
         "CHUNK.run_count", bad);
    bool in_frame = chunk->mode == FB_WIRE_CHUNK_INLINE;
    want(reader,
         in_frame
             ? chunk->inline_bytes == chunk->want_bytes && chunk->inline_bytes <= FB_WIRE_INLINE_MAX
             : chunk->inline_bytes == 0,
         "CHUNK.inline_bytes", bad);
    want(reader, chunk->value_bytes > 0 && chunk->value_bytes <= FB_VALUE_BYTES_MAX,
         "CHUNK.value_bytes", bad);
    want(reader,
         chunk->value_off < chunk->value_bytes &&
             chunk->part_bytes <= chunk->value_bytes - chunk->value_off,
         "CHUNK.value_off", bad);
    want(reader, chunk->generation != 0, "CHUNK.generation", bad);
}

int fb_wire_chunk_decode(struct fb_reader *reader, struct fb_msg_chunk *message, const char **bad)
{
    DECODE_BEGIN(message, bad);
    message->slot = fb_reader_u8(reader);
    message->verified = fb_reader_u8(reader);
    message->from_ssd = fb_reader_u8(reader);
    message->mode = fb_reader_u8(reader);
    message->part = fb_reader_u32(reader);
    message->part_bytes = fb_reader_u32(reader);
    message->want_off = fb_reader_u32(reader);
    message->want_bytes = fb_reader_u32(reader);
    message->run_count = fb_reader_u32(reader);
    message->inline_bytes = fb_reader_u32(reader);
    read_reserved(reader, 4, "CHUNK.reserved", bad);
    message->value_off = fb_reader_u64(reader);
    message->value_bytes = fb_reader_u64(reader);
    message->generation = fb_reader_u64(reader);
    message->root = fb_reader_u64(reader);
    chunk_relations(reader, message, bad);
    message->runs = fb_reader_bytes(reader, (size_t)message->run_count * FB_WIRE_RUN_BYTES);
    want_runs(reader, message->runs, message->run_count, "CHUNK.runs", bad);
    message->inline_data = fb_reader_bytes(reader, message->inline_bytes);
    return finish(reader, "CHUNK.run_count", bad);
}

void fb_wire_chunk_done_encode(struct fb_writer *writer, const struct fb_msg_chunk_done *message)
{
    FB_ASSERT(message->slot < FB_WIRE_CHUNK_SLOTS);
    fb_writer_u8(writer, message->slot);
    fb_writer_zeros(writer, 7);
}

int fb_wire_chunk_done_decode(struct fb_reader *reader, struct fb_msg_chunk_done *message,
                              const char **bad)
{
    DECODE_BEGIN(message, bad);
    message->slot = fb_reader_u8(reader);
    want(reader, message->slot < FB_WIRE_CHUNK_SLOTS, "CHUNK_DONE.slot", bad);
    read_reserved(reader, 7, "CHUNK_DONE.reserved", bad);
    return finish(reader, "CHUNK_DONE", bad);
}

void fb_wire_get_done_encode(struct fb_writer *writer, const struct fb_msg_get_done *message)
{
    FB_ASSERT(is_result(message->result));
    fb_writer_u32(writer, (uint32_t)message->result);
    fb_writer_u8(writer, message->reason);
    fb_writer_u8(writer, message->tiers);
    fb_writer_u16(writer, 0);
    fb_writer_u64(writer, message->value_bytes);
    fb_writer_u64(writer, message->generation);
}

int fb_wire_get_done_decode(struct fb_reader *reader, struct fb_msg_get_done *message,
                            const char **bad)
{
    DECODE_BEGIN(message, bad);
    message->result = read_i32(reader);
    want(reader, is_result(message->result), "GET_DONE.result", bad);
    message->reason = fb_reader_u8(reader);
    message->tiers = fb_reader_u8(reader);
    read_reserved(reader, 2, "GET_DONE.reserved", bad);
    message->value_bytes = fb_reader_u64(reader);
    message->generation = fb_reader_u64(reader);
    return finish(reader, "GET_DONE", bad);
}

/* ---- lists of digests ---- */

void fb_wire_lookup_encode(struct fb_writer *writer, const struct fb_msg_lookup *message)
{
    FB_ASSERT(message->count > 0 && message->count <= FB_WIRE_DIGESTS_MAX);
    FB_ASSERT(message->hold_loads <= FB_WIRE_HOLD_LOADS_MAX && is_deadline(message->deadline_ms));
    fb_writer_u16(writer, message->ns);
    fb_writer_u16(writer, 0);
    fb_writer_u32(writer, message->deadline_ms);
    fb_writer_u64(writer, message->epoch);
    fb_writer_u32(writer, message->hold_ms);
    fb_writer_u32(writer, message->hold_loads);
    fb_writer_u32(writer, message->count);
    fb_writer_u32(writer, 0);
    fb_writer_bytes(writer, message->digests, (size_t)message->count * FB_WIRE_DIGEST_BYTES);
}

int fb_wire_lookup_decode(struct fb_reader *reader, struct fb_msg_lookup *message, const char **bad)
{
    DECODE_BEGIN(message, bad);
    message->ns = fb_reader_u16(reader);
    read_reserved(reader, 2, "LOOKUP.reserved", bad);
    message->deadline_ms = fb_reader_u32(reader);
    want(reader, is_deadline(message->deadline_ms), "LOOKUP.deadline_ms", bad);
    message->epoch = fb_reader_u64(reader);
    message->hold_ms = fb_reader_u32(reader);
    message->hold_loads = fb_reader_u32(reader);
    want(reader, message->hold_loads <= FB_WIRE_HOLD_LOADS_MAX, "LOOKUP.hold_loads", bad);
    message->count = fb_reader_u32(reader);
    want(reader, message->count > 0 && message->count <= FB_WIRE_DIGESTS_MAX, "LOOKUP.count", bad);
    read_reserved(reader, 4, "LOOKUP.reserved", bad);
    message->digests = fb_reader_bytes(reader, (size_t)message->count * FB_WIRE_DIGEST_BYTES);
    return finish(reader, "LOOKUP.count", bad);
}

void fb_wire_lookup_done_encode(struct fb_writer *writer, const struct fb_msg_lookup_done *message)
{
    FB_ASSERT(is_result(message->result) && message->count <= FB_WIRE_DIGESTS_MAX);
    fb_writer_u32(writer, (uint32_t)message->result);
    fb_writer_u32(writer, message->count);
    fb_writer_bytes(writer, message->found, message->count);
}

int fb_wire_lookup_done_decode(struct fb_reader *reader, struct fb_msg_lookup_done *message,
                               const char **bad)
{
    DECODE_BEGIN(message, bad);
    message->result = read_i32(reader);
    want(reader, is_result(message->result), "LOOKUP_DONE.result", bad);
    message->count = fb_reader_u32(reader);
    want(reader, message->count <= FB_WIRE_DIGESTS_MAX, "LOOKUP_DONE.count", bad);
    message->found = fb_reader_bytes(reader, message->count);
    return finish(reader, "LOOKUP_DONE.count", bad);
}

/* ---- short answers ---- */

void fb_wire_done_encode(struct fb_writer *writer, const struct fb_msg_done *message)
{
    FB_ASSERT(is_result(message->result));
    fb_writer_u32(writer, (uint32_t)message->result);
    fb_writer_u8(writer, message->reason);
    fb_writer_zeros(writer, 3);
    fb_writer_u64(writer, message->value);
}

int fb_wire_done_decode(struct fb_reader *reader, struct fb_msg_done *message, const char **bad)
{
    DECODE_BEGIN(message, bad);
    message->result = read_i32(reader);
    want(reader, is_result(message->result), "DONE.result", bad);
    message->reason = fb_reader_u8(reader);
    read_reserved(reader, 3, "DONE.reserved", bad);
    message->value = fb_reader_u64(reader);
    return finish(reader, "DONE", bad);
}

void fb_wire_explain_done_encode(struct fb_writer *writer,
                                 const struct fb_msg_explain_done *message)
{
    FB_ASSERT(is_result(message->result) && message->text_bytes <= FB_WIRE_TEXT_MAX);
    fb_writer_u32(writer, (uint32_t)message->result);
    fb_writer_u8(writer, message->present);
    fb_writer_u8(writer, message->tiers);
    fb_writer_u8(writer, message->reason);
    fb_writer_u8(writer, 0);
    fb_writer_u64(writer, message->value_bytes);
    fb_writer_u64(writer, message->generation);
    fb_writer_u64(writer, message->when_ms);
    fb_writer_u64(writer, message->since_ms);
    fb_writer_u16(writer, message->text_bytes);
    fb_writer_zeros(writer, 6);
    fb_writer_bytes(writer, message->text, message->text_bytes);
}

int fb_wire_explain_done_decode(struct fb_reader *reader, struct fb_msg_explain_done *message,
                                const char **bad)
{
    DECODE_BEGIN(message, bad);
    message->result = read_i32(reader);
    want(reader, is_result(message->result), "EXPLAIN_DONE.result", bad);
    message->present = fb_reader_u8(reader);
    want(reader, message->present <= 1, "EXPLAIN_DONE.present", bad);
    message->tiers = fb_reader_u8(reader);
    message->reason = fb_reader_u8(reader);
    read_reserved(reader, 1, "EXPLAIN_DONE.reserved", bad);
    message->value_bytes = fb_reader_u64(reader);
    message->generation = fb_reader_u64(reader);
    message->when_ms = fb_reader_u64(reader);
    message->since_ms = fb_reader_u64(reader);
    message->text_bytes = fb_reader_u16(reader);
    want(reader, message->text_bytes <= FB_WIRE_TEXT_MAX, "EXPLAIN_DONE.text_bytes", bad);
    read_reserved(reader, 6, "EXPLAIN_DONE.reserved", bad);
    message->text = fb_reader_bytes(reader, message->text_bytes);
    return finish(reader, "EXPLAIN_DONE.text_bytes", bad);
}

void fb_wire_list_encode(struct fb_writer *writer, const struct fb_msg_list *message)
{
    FB_ASSERT(is_deadline(message->deadline_ms));
    fb_writer_u16(writer, message->ns);
    fb_writer_u16(writer, 0);
    fb_writer_u32(writer, message->deadline_ms);
    fb_writer_u64(writer, message->epoch);
    fb_writer_u64(writer, message->cursor);
}

int fb_wire_list_decode(struct fb_reader *reader, struct fb_msg_list *message, const char **bad)
{
    DECODE_BEGIN(message, bad);
    message->ns = fb_reader_u16(reader);
    read_reserved(reader, 2, "LIST.reserved", bad);
    message->deadline_ms = fb_reader_u32(reader);
    want(reader, is_deadline(message->deadline_ms), "LIST.deadline_ms", bad);
    message->epoch = fb_reader_u64(reader);
    message->cursor = fb_reader_u64(reader);
    return finish(reader, "LIST", bad);
}

/* True if the bytes are whole entries: a length and so many bytes, again and again. */
static bool are_keys(const uint8_t *keys, uint32_t bytes)
{
    struct fb_reader reader;
    fb_reader_init(&reader, keys, bytes);
    while (fb_reader_left(&reader) > 0) {
        uint32_t key_bytes = fb_reader_u16(&reader);
        fb_reader_skip(&reader, key_bytes);
        if (!fb_reader_ok(&reader) || !is_key_length(key_bytes))
            return false;
    }
    return fb_reader_is_done(&reader);
}

void fb_wire_list_done_encode(struct fb_writer *writer, const struct fb_msg_list_done *message)
{
    FB_ASSERT(is_result(message->result) && message->bytes <= FB_WIRE_LIST_BYTES_MAX);
    fb_writer_u32(writer, (uint32_t)message->result);
    fb_writer_u32(writer, message->bytes);
    fb_writer_u64(writer, message->cursor);
    fb_writer_bytes(writer, message->keys, message->bytes);
}

int fb_wire_list_done_decode(struct fb_reader *reader, struct fb_msg_list_done *message,
                             const char **bad)
{
    DECODE_BEGIN(message, bad);
    message->result = read_i32(reader);
    want(reader, is_result(message->result), "LIST_DONE.result", bad);
    message->bytes = fb_reader_u32(reader);
    want(reader, message->bytes <= FB_WIRE_LIST_BYTES_MAX, "LIST_DONE.bytes", bad);
    message->cursor = fb_reader_u64(reader);
    message->keys = fb_reader_bytes(reader, message->bytes);
    want(reader, message->keys == NULL || are_keys(message->keys, message->bytes), "LIST_DONE.keys",
         bad);
    return finish(reader, "LIST_DONE.bytes", bad);
}

void fb_wire_text_encode(struct fb_writer *writer, const struct fb_msg_text *message)
{
    FB_ASSERT(is_result(message->result) && message->text_bytes <= FB_WIRE_STATUS_BYTES_MAX);
    fb_writer_u32(writer, (uint32_t)message->result);
    fb_writer_u32(writer, message->text_bytes);
    fb_writer_bytes(writer, message->text, message->text_bytes);
}

int fb_wire_text_decode(struct fb_reader *reader, struct fb_msg_text *message, const char **bad)
{
    DECODE_BEGIN(message, bad);
    message->result = read_i32(reader);
    want(reader, is_result(message->result), "STATUS_DONE.result", bad);
    message->text_bytes = fb_reader_u32(reader);
    want(reader, message->text_bytes <= FB_WIRE_STATUS_BYTES_MAX, "STATUS_DONE.text_bytes", bad);
    message->text = fb_reader_bytes(reader, message->text_bytes);
    return finish(reader, "STATUS_DONE.text_bytes", bad);
}
