/*
 * For tests of the node's side of a session: a server with one session over the fake shard, a
 * client that composes frames and takes answers apart, and values whose roots it can compute.
 *
 * The server's outbox is emptied in odd pieces, and the bytes of DATA go in partly through the
 * buffer and partly through the runs, so that every test tries both.
 */
#ifndef TEST_UNIT_PROTO_SERVER_HARNESS_H
#define TEST_UNIT_PROTO_SERVER_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/prng.h"
#include "base/result.h"
#include "fake_shard.h"
#include "proto/server.h"

#include "fake_shard.inc"

#define MAP   FB_PROTO_SHARD_MAP_VERSION
#define NS    2u
#define EPOCH 5u

/* ---- a node with one session, and a client that sees frames ---- */

static struct fb_proto_server *server;
static struct fb_proto_session *session;
static void *server_memory, *session_memory;
static uint64_t now;
static uint8_t sent[FB_MIB(8)]; /* what the client received */
static size_t sent_bytes, read_bytes;

static inline void entropy(void *ctx, void *out, size_t bytes)
{
    (void)ctx;
    memset(out, 1, bytes);
}

static inline size_t status(void *ctx, char *out, size_t room)
{
    (void)ctx;
    memset(out, 'x', room);
    return room;
}

static inline void *make(size_t bytes, struct fb_region *region)
{
    void *memory = aligned_alloc(64, fb_align_up(bytes, 64));
    assert_non_null(memory);
    fb_region_init(region, memory, fb_align_up(bytes, 64));
    return memory;
}

static inline struct fb_proto_session *open_session(uint64_t id, bool shm, void **memory)
{
    struct fb_region region;
    *memory = make(fb_proto_session_footprint(server), &region);
    return fb_proto_session_init(server, &region, id, shm, 0);
}

static inline int setup_path(bool shm)
{
    fake_reset();
    struct fb_proto_server_config config = {
        .shard = &fake,
        .pool = fake.pool,
        .pool_bytes = FAKE_POOL_BYTES,
        .node_id = 11,
        .boot_nonce = 12,
        .namespaces_max = 16,
        .entropy = entropy,
        .status = status,
    };
    struct fb_region region;
    server_memory = make(fb_proto_server_footprint(&config), &region);
    server = fb_proto_server_init(&config, &region);
    session = open_session(1, shm, &session_memory);
    now = FB_SEC_NS;
    sent_bytes = read_bytes = 0;
    return 0;
}

static inline int setup_stream(void **state)
{
    (void)state;
    return setup_path(false);
}

static inline int setup_shm(void **state)
{
    (void)state;
    return setup_path(true);
}

static inline int teardown(void **state)
{
    (void)state;
    if (session != NULL) {
        if (!fb_proto_session_is_idle(session)) {
            fb_proto_session_end(session, now, true);
            fb_proto_server_pump(server, now);
        }
        assert_true(fb_proto_session_is_idle(session));
        fb_proto_session_fini(session);
    }
    free(session_memory);
    free(server_memory);
    return 0;
}

/* Takes up to `limit` bytes out of the outbox, in odd pieces. */
static inline void drain(uint64_t limit)
{
    fb_proto_server_pump(server, now);
    while (limit > 0) {
        struct fb_slice slices[7];
        size_t count = fb_proto_session_slices(session, slices, 7);
        if (count == 0)
            break;
        uint64_t moved = 0;
        for (size_t i = 0; i < count && moved < limit; i++) {
            size_t step = (size_t)fb_min_u64(slices[i].len, limit - moved);
            assert_true(sent_bytes + step <= sizeof(sent));
            memcpy(sent + sent_bytes, slices[i].at, step);
            sent_bytes += step;
            moved += step;
        }
        fb_proto_session_sent(session, now, moved);
        fb_proto_server_pump(server, now);
        limit -= moved;
    }
}

/* Puts bytes into the session; the payload of DATA partly by way of the runs. Returns what was
 * taken. */
static inline size_t feed(const uint8_t *bytes, size_t count)
{
    size_t at = 0;
    while (at < count) {
        uint32_t left = fb_proto_session_data_left(session);
        size_t taken;
        if (left > 0) {
            struct fb_io_vec runs[3];
            size_t n = fb_proto_session_data_runs(session, runs, 3);
            uint32_t moved = 0;
            for (size_t i = 0; i < n && at + moved < count; i++) {
                uint32_t step = (uint32_t)fb_min_u64(runs[i].len, count - at - moved);
                memcpy(fake.pool + runs[i].off, bytes + at + moved, step);
                moved += step;
            }
            if (n == 0)
                moved = (uint32_t)fb_min_u64(left, count - at);
            fb_proto_session_data_moved(session, now, moved);
            taken = moved;
        } else {
            taken = fb_proto_session_input(session, now, bytes + at, count - at);
        }
        if (taken == 0)
            break;
        at += taken;
    }
    fb_proto_server_pump(server, now);
    return at;
}

/* ---- frames from the client ---- */

static uint8_t frame_room[FB_FRAME_BYTES_MAX];
static struct fb_writer writer;

static inline void begin(void)
{
    fb_writer_init(&writer, frame_room, sizeof(frame_room));
    fb_wire_frame_begin(&writer);
}

static inline void finish(uint8_t type, uint8_t flags, uint64_t op)
{
    fb_wire_frame_end(&writer, 0, type, flags, op, type == FB_MSG_HELLO ? 0 : MAP);
    assert_true(fb_writer_ok(&writer));
    size_t taken = feed(frame_room, writer.at_bytes);
    assert_true(taken == writer.at_bytes || fb_proto_session_is_closing(session));
}

static inline void send_empty(uint8_t type, uint64_t op)
{
    begin();
    finish(type, 0, op);
}

static inline void send_hello(uint64_t ended)
{
    begin();
    fb_wire_hello_encode(&writer, &(struct fb_msg_hello){.features = UINT64_MAX,
                                                         .client_nonce = 5,
                                                         .ended_session = ended,
                                                         .name_bytes = 2,
                                                         .name = (const uint8_t *)"t\n"});
    finish(FB_MSG_HELLO, 0, 0);
}

static inline void send_namespace(uint64_t op)
{
    begin();
    fb_wire_namespace_encode(&writer, &(struct fb_msg_namespace){.deadline_ms = 1000,
                                                                 .fields_bytes = 3,
                                                                 .fields = (const uint8_t *)"abc"});
    finish(FB_MSG_NAMESPACE, 0, op);
}

static inline struct fb_msg_key key_of(const char *key)
{
    return (struct fb_msg_key){.ns = NS,
                               .key_bytes = (uint16_t)strlen(key),
                               .deadline_ms = 1000,
                               .epoch = EPOCH,
                               .key = (const uint8_t *)key};
}

static inline void send_put(uint64_t op, const char *key, uint64_t bytes,
                            const uint8_t *inline_data, uint64_t leaf)
{
    struct fb_msg_put put = {.key = key_of(key),
                             .value_bytes = bytes,
                             .persist = FB_PERSIST_THROUGH};
    if (inline_data != NULL) {
        put.inline_bytes = (uint32_t)bytes;
        put.inline_data = inline_data;
        put.inline_leaf = leaf;
    }
    begin();
    fb_wire_put_encode(&writer, &put);
    finish(FB_MSG_PUT, 0, op);
}

static inline void send_get(uint64_t op, const char *key, uint64_t off, uint64_t bytes)
{
    begin();
    fb_wire_get_encode(&writer, &(struct fb_msg_get){.key = key_of(key),
                                                     .range_off = off,
                                                     .range_bytes = bytes});
    finish(FB_MSG_GET, 0, op);
}

static inline void send_data(uint64_t op, uint64_t off, const uint8_t *bytes, uint32_t len)
{
    begin();
    fb_wire_data_encode(&writer, &(struct fb_msg_data){.off = off, .len = len, .bytes = bytes});
    finish(FB_MSG_DATA, 0, op);
}

static inline void send_chunk_done(uint64_t op, uint8_t slot, bool bad)
{
    begin();
    fb_wire_chunk_done_encode(&writer, &(struct fb_msg_chunk_done){.slot = slot});
    finish(FB_MSG_CHUNK_DONE, bad ? FB_FRAME_BAD : 0, op);
}

static inline void send_key(uint8_t type, uint64_t op, const char *key)
{
    struct fb_msg_key message = key_of(key);
    begin();
    fb_wire_key_encode(&writer, &message);
    finish(type, 0, op);
}

static inline void send_lookup(uint64_t op, uint32_t count)
{
    static uint8_t digests[FB_WIRE_DIGESTS_MAX * FB_WIRE_DIGEST_BYTES];
    for (uint32_t i = 0; i < count; i++)
        digests[i * FB_WIRE_DIGEST_BYTES] = (uint8_t)(i & 15);
    begin();
    fb_wire_lookup_encode(&writer, &(struct fb_msg_lookup){.ns = NS,
                                                           .epoch = EPOCH,
                                                           .deadline_ms = 100,
                                                           .count = count,
                                                           .digests = digests});
    finish(FB_MSG_LOOKUP, 0, op);
}

/* ---- frames to the client ---- */

struct got {
    struct fb_wire_header header;
    const uint8_t *payload;
    struct fb_reader reader;
};

/* The next frame that was sent; false if there is none. */
static inline bool next(struct got *got)
{
    drain(UINT64_MAX);
    if (sent_bytes - read_bytes == 0)
        return false;
    assert_true(sent_bytes - read_bytes >= FB_WIRE_HEADER_BYTES);
    const uint8_t *at = sent + read_bytes;
    const char *bad;
    assert_int_equal(fb_wire_header_decode(at, &got->header, &bad), FB_OK);
    assert_true(sent_bytes - read_bytes >= FB_WIRE_HEADER_BYTES + got->header.payload_bytes);
    got->payload = at + FB_WIRE_HEADER_BYTES;
    assert_true(fb_wire_check(at, got->payload, fb_wire_covered_bytes(&got->header)) ==
                got->header.check);
    fb_reader_init(&got->reader, got->payload, got->header.payload_bytes);
    read_bytes += FB_WIRE_HEADER_BYTES + got->header.payload_bytes;
    return true;
}

static inline struct got expect(int type, uint64_t op)
{
    struct got got;
    assert_true(next(&got));
    assert_string_equal(fb_wire_type_name(got.header.type), fb_wire_type_name(type));
    assert_true(got.header.op == op);
    return got;
}

static inline void expect_nothing(void)
{
    struct got got;
    assert_false(next(&got));
}

#define EXPECT(TYPE, name, op)                                                            \
    __extension__({                                                                       \
        struct got got_ = expect(FB_MSG_##TYPE, op);                                      \
        struct fb_msg_##name message_;                                                    \
        const char *bad_;                                                                 \
        assert_int_equal(fb_wire_##name##_decode(&got_.reader, &message_, &bad_), FB_OK); \
        last_flags = got_.header.flags;                                                   \
        message_;                                                                         \
    })
static uint8_t last_flags;

static inline void expect_error(const char *beginning)
{
    struct got got;
    do
        assert_true(next(&got));
    while (got.header.type != FB_MSG_ERROR);
    struct fb_msg_error error;
    const char *bad;
    assert_int_equal(fb_wire_error_decode(&got.reader, &error, &bad), FB_OK);
    char text[FB_WIRE_TEXT_MAX + 1];
    memcpy(text, error.text, error.text_bytes);
    text[error.text_bytes] = '\0';
    if (strncmp(text, beginning, strlen(beginning)) != 0)
        fail_msg("%s", text);
    assert_true(fb_proto_session_is_closing(session));
    expect_nothing();
}

static inline void start(void)
{
    send_hello(0);
    EXPECT(WELCOME, welcome, 0);
    send_namespace(1);
    struct fb_msg_namespace_done done = EXPECT(NAMESPACE_DONE, namespace_done, 1);
    assert_int_equal(done.ns, NS);
}

/* ---- values ---- */

static uint8_t value[FAKE_PARTS * FAKE_CHUNK_BYTES];
static uint64_t leaves[64];

static inline void fill_value(uint64_t seed)
{
    struct fb_prng prng;
    fb_prng_seed(&prng, seed);
    fb_prng_fill(&prng, value, sizeof(value));
}

/* Leaves of the first `bytes` of the value; returns how many. */
static inline uint32_t leaves_of(uint64_t bytes)
{
    uint32_t count = 0;
    for (uint64_t off = 0; off < bytes; off += FB_LEAF_BYTES)
        leaves[count++] =
            htole64(fb_leaf_hash(value + off, (size_t)fb_min_u64(FB_LEAF_BYTES, bytes - off)));
    assert_int_equal(count, fb_wire_leaf_count(bytes, FAKE_CHUNK_BYTES));
    return count;
}

static inline void send_commit(uint64_t op, uint64_t generation, uint64_t bytes)
{
    uint32_t count = leaves_of(bytes);
    begin();
    fb_wire_commit_encode(&writer, &(struct fb_msg_commit){.generation = generation,
                                                           .leaf_count = count,
                                                           .leaves = (const uint8_t *)leaves});
    finish(FB_MSG_COMMIT, 0, op);
}

/* The root of a part as a reader computes it. */
static inline uint64_t root_of(const char *key, const struct fb_msg_chunk *chunk,
                               const uint8_t *part)
{
    uint8_t id[16];
    memset(id, 7, sizeof(id));
    struct fb_identity identity = {.namespace_id = id,
                                   .epoch = EPOCH,
                                   .key = key,
                                   .key_bytes = strlen(key),
                                   .generation = {.boot = (uint32_t)(chunk->generation >> 40),
                                                  .counter = chunk->generation &
                                                             ((UINT64_C(1) << 40) - 1)},
                                   .part = chunk->part,
                                   .total_bytes = chunk->value_bytes,
                                   .part_bytes = chunk->part_bytes};
    uint64_t part_leaves[16];
    size_t count = 0;
    for (uint32_t off = 0; off < chunk->part_bytes; off += FB_LEAF_BYTES)
        part_leaves[count++] =
            fb_leaf_hash(part + off, (size_t)fb_min_u64(FB_LEAF_BYTES, chunk->part_bytes - off));
    return fb_root_of(&identity, part_leaves, count);
}

/* Puts the first `bytes` of the value over a stream, in DATA of `step`. */
static inline void put_stream(uint64_t op, const char *key, uint64_t bytes, uint32_t step)
{
    send_put(op, key, bytes, NULL, 0);
    struct fb_msg_grant grant = EXPECT(GRANT, grant, op);
    assert_true(grant.window_bytes == bytes && grant.run_count == 0);
    for (uint64_t off = 0; off < bytes; off += step)
        send_data(op, off, value + off, (uint32_t)fb_min_u64(step, bytes - off));
    send_commit(op, grant.generation, bytes);
    struct fb_msg_put_done done = EXPECT(PUT_DONE, put_done, op);
    assert_int_equal(done.result, FB_OK);
    assert_int_equal(last_flags, FB_FRAME_PERSISTED);
}

/* Writes the value into the runs of a grant, all frames of it; returns the generation. */
static inline uint64_t fill_grant(uint64_t op, uint64_t bytes)
{
    uint64_t off = 0;
    struct fb_msg_grant grant;
    do {
        grant = EXPECT(GRANT, grant, op);
        assert_true(grant.value_off == off && grant.window_bytes == 0);
        for (uint32_t i = 0; i < grant.run_count; i++) {
            struct fb_wire_run run = fb_wire_run_at(grant.runs, i);
            memcpy(fake.pool + run.off, value + off, run.len);
            off += run.len;
        }
        assert_true((last_flags == FB_FRAME_MORE) == (off < bytes));
    } while (off < bytes);
    assert_true(off == bytes);
    return grant.generation;
}

/* Puts a value over a stream. */
static inline void store(const char *key, uint64_t bytes)
{
    put_stream(900, key, bytes, (uint32_t)FB_KIB(128));
}

#define STREAM(test) cmocka_unit_test_setup_teardown(test, setup_stream, teardown)
#define SHM(test)    cmocka_unit_test_setup_teardown(test, setup_shm, teardown)

#endif
