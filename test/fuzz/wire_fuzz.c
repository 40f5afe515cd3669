/*
 * One frame: its header, and its payload under the decoder of its type.
 *
 * The payload lies in memory of its exact length. What is decoded is encoded again and must give
 * the same bytes, since the encoding is canonical; and the frame made of it must have a good header
 * and the right check. Lengths beyond what a header allows are tried too: a decoder must not rely
 * on who called it.
 *
 * Cannot show: that the messages make sense one after the other (session_fuzz, client_fuzz).
 */
#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/result.h"
#include "proto/wire.h"
#include "test/lib/fuzz.h"

#define ROOM_BYTES (FB_FRAME_BYTES_MAX + FB_WIRE_HEADER_BYTES)
#define OP         UINT64_C(0x1122334455667788)
#define MAP        7

static uint8_t room[ROOM_BYTES];

/* ---- what was decoded must be what is encoded ---- */

static void check_frame(struct fb_writer *writer, uint8_t type, const uint8_t *payload,
                        size_t bytes)
{
    FUZZ_CHECK(fb_writer_ok(writer));
    FUZZ_CHECK(writer->at_bytes == FB_WIRE_HEADER_BYTES + bytes);
    FUZZ_CHECK(bytes == 0 || memcmp(room + FB_WIRE_HEADER_BYTES, payload, bytes) == 0);
    fb_wire_frame_end(writer, 0, type, 0, OP, MAP);
    struct fb_wire_header header;
    const char *bad;
    FUZZ_CHECK(fb_wire_header_decode(room, &header, &bad) == FB_OK);
    FUZZ_CHECK(header.type == type && header.payload_bytes == bytes && header.op == OP);
    FUZZ_CHECK(fb_wire_check(room, payload, fb_wire_covered_bytes(&header)) == header.check);
}

/* Decodes the payload as `kind`, and encodes it again. */
#define TRY(kind, message_type)                                                \
    static void try_##kind(uint8_t type, const uint8_t *payload, size_t bytes) \
    {                                                                          \
        struct message_type message;                                           \
        const char *bad;                                                       \
        struct fb_reader reader;                                               \
        fb_reader_init(&reader, payload, bytes);                               \
        int result = fb_wire_##kind##_decode(&reader, &message, &bad);         \
        FUZZ_CHECK(result == FB_OK || (result == FB_PROTOCOL && bad != NULL)); \
        if (result != FB_OK)                                                   \
            return;                                                            \
        extra_##kind(&message);                                                \
        struct fb_writer writer;                                               \
        fb_writer_init(&writer, room, sizeof(room));                           \
        fb_wire_frame_begin(&writer);                                          \
        fb_wire_##kind##_encode(&writer, &message);                            \
        check_frame(&writer, type, payload, bytes);                            \
    }
#define TRY_PLAIN(kind, message_type)                      \
    static void extra_##kind(struct message_type *message) \
    {                                                      \
        (void)message;                                     \
    }                                                      \
    TRY(kind, message_type)

TRY_PLAIN(hello, fb_msg_hello)
TRY_PLAIN(welcome, fb_msg_welcome)
TRY_PLAIN(error, fb_msg_error)
TRY_PLAIN(pong, fb_msg_pong)
TRY_PLAIN(namespace, fb_msg_namespace)
TRY_PLAIN(namespace_done, fb_msg_namespace_done)
TRY_PLAIN(put, fb_msg_put)
TRY_PLAIN(put_done, fb_msg_put_done)
TRY_PLAIN(get, fb_msg_get)
TRY_PLAIN(chunk_done, fb_msg_chunk_done)
TRY_PLAIN(get_done, fb_msg_get_done)
TRY_PLAIN(lookup_done, fb_msg_lookup_done)
TRY_PLAIN(key, fb_msg_key)
TRY_PLAIN(done, fb_msg_done)
TRY_PLAIN(epoch, fb_msg_epoch)
TRY_PLAIN(explain_done, fb_msg_explain_done)
TRY_PLAIN(list, fb_msg_list)
TRY_PLAIN(list_done, fb_msg_list_done)
TRY_PLAIN(text, fb_msg_text)

/* Runs come out one by one, and back in. */
static void check_runs(const uint8_t *runs, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint8_t again[FB_WIRE_RUN_BYTES];
        struct fb_writer writer;
        fb_writer_init(&writer, again, sizeof(again));
        struct fb_wire_run run = fb_wire_run_at(runs, i);
        fb_wire_run_encode(&writer, &run);
        FUZZ_CHECK(memcmp(again, runs + (size_t)i * sizeof(again), sizeof(again)) == 0);
    }
}

static void extra_grant(struct fb_msg_grant *grant)
{
    check_runs(grant->runs, grant->run_count);
}
TRY(grant, fb_msg_grant)

static void extra_chunk(struct fb_msg_chunk *chunk)
{
    check_runs(chunk->runs, chunk->run_count);
    FUZZ_CHECK((uint64_t)chunk->want_off + chunk->want_bytes <= chunk->part_bytes);
}
TRY(chunk, fb_msg_chunk)

static void extra_commit(struct fb_msg_commit *commit)
{
    uint64_t all = 0;
    for (uint32_t i = 0; i < commit->leaf_count; i++)
        all ^= fb_wire_leaf_at(commit->leaves, i);
    fuzz_touch(&all, sizeof(all));
    uint64_t leaves = fb_wire_leaf_count(commit->generation, FB_PAGE_BYTES);
    FUZZ_CHECK(leaves >= fb_wire_leaf_count(commit->generation, FB_CHUNK_BYTES_MAX));
}
TRY(commit, fb_msg_commit)

static void extra_lookup(struct fb_msg_lookup *lookup)
{
    for (uint32_t i = 0; i < lookup->count; i++) {
        uint8_t again[FB_WIRE_DIGEST_BYTES];
        struct fb_writer writer;
        fb_writer_init(&writer, again, sizeof(again));
        struct fb_digest digest = fb_wire_digest_at(lookup->digests, i);
        fb_wire_digest_encode(&writer, &digest);
        FUZZ_CHECK(memcmp(again, lookup->digests + (size_t)i * sizeof(again), sizeof(again)) == 0);
    }
}
TRY(lookup, fb_msg_lookup)

/* The head of DATA alone says the same as the whole frame, and so does a checked one in pieces. */
static void extra_data(struct fb_msg_data *data)
{
    uint8_t head[FB_WIRE_HEADER_BYTES + FB_WIRE_DATA_HEAD_BYTES];
    uint8_t whole[sizeof(head)];
    fb_wire_data_head(whole, OP, data->off, data->len, data->bytes, MAP);
    struct fb_wire_data_check check;
    fb_wire_data_check_begin(&check, head, OP, data->off, data->len, MAP);
    fb_wire_data_check_add(&check, data->bytes, data->len / 2);
    fb_wire_data_check_add(&check, data->bytes + data->len / 2, data->len - data->len / 2);
    fb_wire_data_check_end(&check, head);
    FUZZ_CHECK(memcmp(head, whole, sizeof(head)) == 0);
    fb_wire_data_head(whole, OP, data->off, data->len, NULL, MAP);
    struct fb_msg_data alone;
    const char *bad;
    uint32_t payload_bytes = FB_WIRE_DATA_HEAD_BYTES + data->len;
    FUZZ_CHECK(fb_wire_data_head_decode(whole + FB_WIRE_HEADER_BYTES, payload_bytes, &alone,
                                        &bad) == FB_OK);
    FUZZ_CHECK(alone.off == data->off && alone.len == data->len);
}

static void try_data(uint8_t type, const uint8_t *payload, size_t bytes)
{
    struct fb_msg_data message;
    const char *bad;
    struct fb_reader reader;
    fb_reader_init(&reader, payload, bytes);
    if (fb_wire_data_decode(&reader, &message, &bad) != FB_OK || message.len > FB_WIRE_DATA_MAX)
        return;
    extra_data(&message);
    struct fb_writer writer;
    fb_writer_init(&writer, room, sizeof(room));
    fb_wire_frame_begin(&writer);
    fb_wire_data_encode(&writer, &message);
    check_frame(&writer, type, payload, bytes);
}

static void try_empty(uint8_t type, const uint8_t *payload, size_t bytes)
{
    const char *bad;
    struct fb_reader reader;
    fb_reader_init(&reader, payload, bytes);
    FUZZ_CHECK((fb_wire_empty_decode(&reader, &bad) == FB_OK) == (bytes == 0));
    struct fb_writer writer;
    fb_writer_init(&writer, room, sizeof(room));
    fb_wire_frame_begin(&writer);
    if (bytes == 0)
        check_frame(&writer, type, payload, 0);
}

static void try_payload(uint8_t type, const uint8_t *payload, size_t bytes)
{
    static void (*const by_type[FB_MSG_TYPE_COUNT])(uint8_t, const uint8_t *, size_t) = {
        [FB_MSG_HELLO] = try_hello,
        [FB_MSG_WELCOME] = try_welcome,
        [FB_MSG_ERROR] = try_error,
        [FB_MSG_PING] = try_empty,
        [FB_MSG_PONG] = try_pong,
        [FB_MSG_NAMESPACE] = try_namespace,
        [FB_MSG_NAMESPACE_DONE] = try_namespace_done,
        [FB_MSG_PUT] = try_put,
        [FB_MSG_GRANT] = try_grant,
        [FB_MSG_DATA] = try_data,
        [FB_MSG_COMMIT] = try_commit,
        [FB_MSG_PUT_DONE] = try_put_done,
        [FB_MSG_RELEASE] = try_empty,
        [FB_MSG_GET] = try_get,
        [FB_MSG_CHUNK] = try_chunk,
        [FB_MSG_CHUNK_DONE] = try_chunk_done,
        [FB_MSG_GET_DONE] = try_get_done,
        [FB_MSG_LOOKUP] = try_lookup,
        [FB_MSG_LOOKUP_DONE] = try_lookup_done,
        [FB_MSG_HOLD_RELEASE] = try_lookup,
        [FB_MSG_REMOVE] = try_key,
        [FB_MSG_REMOVE_DONE] = try_done,
        [FB_MSG_WAIT_PERSISTED] = try_key,
        [FB_MSG_WAIT_DONE] = try_done,
        [FB_MSG_EPOCH] = try_epoch,
        [FB_MSG_EPOCH_DONE] = try_done,
        [FB_MSG_DROP_DRAM] = try_key,
        [FB_MSG_DROP_DONE] = try_done,
        [FB_MSG_EXPLAIN] = try_key,
        [FB_MSG_EXPLAIN_DONE] = try_explain_done,
        [FB_MSG_LIST] = try_list,
        [FB_MSG_LIST_DONE] = try_list_done,
        [FB_MSG_STATUS] = try_empty,
        [FB_MSG_STATUS_DONE] = try_text,
        [FB_MSG_CANCEL] = try_empty,
    };
    if (type < FB_MSG_TYPE_COUNT && by_type[type] != NULL)
        by_type[type](type, payload, bytes);
}

/* ---- the header ---- */

static void try_header(const uint8_t bytes[FB_WIRE_HEADER_BYTES])
{
    struct fb_wire_header header;
    const char *bad = NULL;
    int result = fb_wire_header_decode(bytes, &header, &bad);
    FUZZ_CHECK(result == FB_OK || bad != NULL);
    fuzz_touch(fb_wire_type_name(header.type), 1);
    if (fb_wire_type_from_client(header.type))
        FUZZ_CHECK(header.type != FB_MSG_WELCOME);
    if (result != FB_OK)
        return;
    FUZZ_CHECK(header.payload_bytes <= FB_WIRE_PAYLOAD_MAX);
    FUZZ_CHECK(fb_wire_covered_bytes(&header) <= header.payload_bytes);
    uint8_t again[FB_WIRE_HEADER_BYTES];
    struct fb_writer writer;
    fb_writer_init(&writer, again, sizeof(again));
    fb_wire_header_encode(&writer, &header);
    FUZZ_CHECK(memcmp(again, bytes, sizeof(again)) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input input = {.at = data, .left = size};
    uint8_t head[FB_WIRE_HEADER_BYTES];
    fuzz_take(&input, head, sizeof(head));
    uint8_t *exact = fuzz_exact(head, sizeof(head));
    try_header(exact);
    free(exact);
    if (input.left > FB_WIRE_PAYLOAD_MAX)
        return 0;
    uint8_t *payload = fuzz_exact(input.at, input.left);
    try_payload(head[2], payload, input.left);
    free(payload);
    return 0;
}

/* ---- seeds: the golden frames, and frames that are refused ---- */

struct golden {
    uint8_t type;
    bool variant;
    const char *hex;
};

static const struct golden golden[] = {
#include "test/unit/proto/golden.inc"
};

static size_t from_hex(const char *hex, uint8_t *out)
{
    size_t count = 0;
    unsigned byte;
    for (; sscanf(hex, "%2x", &byte) == 1; hex += 2)
        out[count++] = (uint8_t)byte;
    return count;
}

/* The golden frame with byte `at` set to `value`. */
static void seed_bent(const char *name, size_t index, size_t at, uint8_t value)
{
    uint8_t bytes[1024];
    size_t count = from_hex(golden[index].hex, bytes);
    bytes[at] = value;
    fuzz_seed(name, bytes, count);
}

static void seeds(void)
{
    for (size_t i = 0; i < sizeof(golden) / sizeof(golden[0]); i++) {
        uint8_t bytes[1024];
        char name[64];
        size_t count = from_hex(golden[i].hex, bytes);
        snprintf(name, sizeof(name), "%s%s", fb_wire_type_name(golden[i].type),
                 golden[i].variant ? "-2" : "");
        fuzz_seed(name, bytes, count);
    }
    seed_bent("bad-magic", 0, 0, 0x16);
    seed_bent("bad-version", 0, 1, 9);
    seed_bent("bad-type", 0, 2, FB_MSG_TYPE_COUNT);
    seed_bent("bad-flags", 0, 3, 0x40);
    seed_bent("bad-length", 0, 6, 1);
    seed_bent("bad-reserved", 0, 20, 1);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    return fuzz_start(argc, argv, seeds);
}
