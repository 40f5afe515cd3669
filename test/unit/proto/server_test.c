/*
 * The node's side of a session, against a fake shard that does what it is told. Covers: the start
 * of a connection and its refusals; puts over shared memory, over a stream and inline, each with a
 * revoked grant and with wrong leaves; gets by runs, inline and by DATA, whole and in ranges, bad
 * chunks, cancelled in the middle; credits, the window, paused input; the end with and without
 * proof; and random frames, which must never fail an assertion or leave anything open.
 *
 * Cannot show: what a real shard decides, and when (engine tests, simulator), nor sockets.
 */
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
#include "proto/server_private.h"

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

static void entropy(void *ctx, void *out, size_t bytes)
{
    (void)ctx;
    memset(out, 1, bytes);
}

static size_t status(void *ctx, char *out, size_t room)
{
    (void)ctx;
    memset(out, 'x', room);
    return room;
}

static void *make(size_t bytes, struct fb_region *region)
{
    void *memory = aligned_alloc(64, fb_align_up(bytes, 64));
    assert_non_null(memory);
    fb_region_init(region, memory, fb_align_up(bytes, 64));
    return memory;
}

static struct fb_proto_session *open_session(uint64_t id, bool shm, void **memory)
{
    struct fb_region region;
    *memory = make(fb_proto_session_footprint(server), &region);
    return fb_proto_session_init(server, &region, id, shm, 0);
}

static int setup_path(bool shm)
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

static int setup_stream(void **state)
{
    (void)state;
    return setup_path(false);
}

static int setup_shm(void **state)
{
    (void)state;
    return setup_path(true);
}

static int teardown(void **state)
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
static void drain(uint64_t limit)
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
static size_t feed(const uint8_t *bytes, size_t count)
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

static void begin(void)
{
    fb_writer_init(&writer, frame_room, sizeof(frame_room));
    fb_wire_frame_begin(&writer);
}

static void finish(uint8_t type, uint8_t flags, uint64_t op)
{
    fb_wire_frame_end(&writer, 0, type, flags, op, type == FB_MSG_HELLO ? 0 : MAP);
    assert_true(fb_writer_ok(&writer));
    size_t taken = feed(frame_room, writer.at_bytes);
    assert_true(taken == writer.at_bytes || fb_proto_session_is_closing(session));
}

static void send_empty(uint8_t type, uint64_t op)
{
    begin();
    finish(type, 0, op);
}

static void send_hello(uint64_t ended)
{
    begin();
    fb_wire_hello_encode(&writer, &(struct fb_msg_hello){.features = UINT64_MAX,
                                                         .client_nonce = 5,
                                                         .ended_session = ended,
                                                         .name_bytes = 2,
                                                         .name = (const uint8_t *)"t\n"});
    finish(FB_MSG_HELLO, 0, 0);
}

static void send_namespace(uint64_t op)
{
    begin();
    fb_wire_namespace_encode(&writer, &(struct fb_msg_namespace){.deadline_ms = 1000,
                                                                 .fields_bytes = 3,
                                                                 .fields = (const uint8_t *)"abc"});
    finish(FB_MSG_NAMESPACE, 0, op);
}

static struct fb_msg_key key_of(const char *key)
{
    return (struct fb_msg_key){.ns = NS,
                               .key_bytes = (uint16_t)strlen(key),
                               .deadline_ms = 1000,
                               .epoch = EPOCH,
                               .key = (const uint8_t *)key};
}

static void send_put(uint64_t op, const char *key, uint64_t bytes, const uint8_t *inline_data,
                     uint64_t leaf)
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

static void send_get(uint64_t op, const char *key, uint64_t off, uint64_t bytes)
{
    begin();
    fb_wire_get_encode(&writer, &(struct fb_msg_get){.key = key_of(key),
                                                     .range_off = off,
                                                     .range_bytes = bytes});
    finish(FB_MSG_GET, 0, op);
}

static void send_data(uint64_t op, uint64_t off, const uint8_t *bytes, uint32_t len)
{
    begin();
    fb_wire_data_encode(&writer, &(struct fb_msg_data){.off = off, .len = len, .bytes = bytes});
    finish(FB_MSG_DATA, 0, op);
}

static void send_chunk_done(uint64_t op, uint8_t slot, bool bad)
{
    begin();
    fb_wire_chunk_done_encode(&writer, &(struct fb_msg_chunk_done){.slot = slot});
    finish(FB_MSG_CHUNK_DONE, bad ? FB_FRAME_BAD : 0, op);
}

static void send_key(uint8_t type, uint64_t op, const char *key)
{
    struct fb_msg_key message = key_of(key);
    begin();
    fb_wire_key_encode(&writer, &message);
    finish(type, 0, op);
}

static void send_lookup(uint64_t op, uint32_t count)
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
static bool next(struct got *got)
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

static struct got expect(int type, uint64_t op)
{
    struct got got;
    assert_true(next(&got));
    assert_string_equal(fb_wire_type_name(got.header.type), fb_wire_type_name(type));
    assert_true(got.header.op == op);
    return got;
}

static void expect_nothing(void)
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

static void expect_error(const char *beginning)
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

static void start(void)
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

static void fill_value(uint64_t seed)
{
    struct fb_prng prng;
    fb_prng_seed(&prng, seed);
    fb_prng_fill(&prng, value, sizeof(value));
}

/* Leaves of the first `bytes` of the value; returns how many. */
static uint32_t leaves_of(uint64_t bytes)
{
    uint32_t count = 0;
    for (uint64_t off = 0; off < bytes; off += FB_LEAF_BYTES)
        leaves[count++] =
            htole64(fb_leaf_hash(value + off, (size_t)fb_min_u64(FB_LEAF_BYTES, bytes - off)));
    assert_int_equal(count, fb_wire_leaf_count(bytes, FAKE_CHUNK_BYTES));
    return count;
}

static void send_commit(uint64_t op, uint64_t generation, uint64_t bytes)
{
    uint32_t count = leaves_of(bytes);
    begin();
    fb_wire_commit_encode(&writer, &(struct fb_msg_commit){.generation = generation,
                                                           .leaf_count = count,
                                                           .leaves = (const uint8_t *)leaves});
    finish(FB_MSG_COMMIT, 0, op);
}

/* The root of a part as a reader computes it. */
static uint64_t root_of(const char *key, const struct fb_msg_chunk *chunk, const uint8_t *part)
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
static void put_stream(uint64_t op, const char *key, uint64_t bytes, uint32_t step)
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
static uint64_t fill_grant(uint64_t op, uint64_t bytes)
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

/* ---- the start ---- */

static void test_welcome(void **state)
{
    (void)state;
    send_hello(0);
    struct fb_msg_welcome welcome = EXPECT(WELCOME, welcome, 0);
    assert_true(welcome.session == 1 && welcome.node_id == 11 && welcome.boot_nonce == 12);
    assert_int_equal(welcome.features, FB_FEATURE_HOLDS);
    assert_int_equal(welcome.op_credit, FB_PROTO_OP_CREDIT);
    assert_int_equal(welcome.chunk_bytes, FAKE_CHUNK_BYTES);
    assert_false(fb_proto_session_uses_shm(session));
    assert_string_equal(fb_proto_session_name(session), "t?");
    send_empty(FB_MSG_PING, 77);
    expect(FB_MSG_PONG, 77);
    expect_nothing();
}

static void test_welcome_with_shared_memory(void **state)
{
    (void)state;
    send_hello(0);
    struct fb_msg_welcome welcome = EXPECT(WELCOME, welcome, 0);
    assert_int_equal(welcome.features, FB_FEATURE_HOLDS | FB_FEATURE_SHM);
    assert_true(fb_proto_session_uses_shm(session));
}

static void test_another_version_is_refused_with_both_numbers(void **state)
{
    (void)state;
    begin();
    fb_wire_hello_encode(&writer, &(struct fb_msg_hello){0});
    fb_wire_frame_end(&writer, 0, FB_MSG_HELLO, 0, 0, 0);
    frame_room[1] = 9;
    feed(frame_room, writer.at_bytes);
    expect_error("header.version: 9 is not spoken here, 1 is");
}

static void test_garbage_is_refused_by_its_first_byte(void **state)
{
    (void)state;
    assert_int_equal(fb_proto_session_input(session, now, (const uint8_t *)"G", 1), 0);
    expect_error("header.magic");
}

static void test_requests_before_hello(void **state)
{
    (void)state;
    begin();
    fb_wire_frame_end(&writer, 0, FB_MSG_STATUS, 0, 1, 0);
    feed(frame_room, writer.at_bytes);
    expect_error("header.type: HELLO comes first");
}

static void test_hello_twice(void **state)
{
    (void)state;
    start();
    begin();
    fb_wire_hello_encode(&writer, &(struct fb_msg_hello){0});
    fb_wire_frame_end(&writer, 0, FB_MSG_HELLO, 0, 0, MAP);
    feed(frame_room, writer.at_bytes);
    expect_error("header.type: HELLO comes once");
}

static void test_another_shard_map(void **state)
{
    (void)state;
    start();
    begin();
    fb_wire_frame_end(&writer, 0, FB_MSG_STATUS, 0, 1, MAP + 1);
    feed(frame_room, writer.at_bytes);
    expect_error("header.map_version");
}

static void test_damage_is_noticed(void **state)
{
    (void)state;
    start();
    struct fb_msg_key key = key_of("k");
    begin();
    fb_wire_key_encode(&writer, &key);
    fb_wire_frame_end(&writer, 0, FB_MSG_REMOVE, 0, 3, MAP);
    frame_room[writer.at_bytes - 1] ^= 1;
    feed(frame_room, writer.at_bytes);
    expect_error("header.check");
}

static void test_frames_in_pieces(void **state)
{
    (void)state;
    send_hello(0);
    EXPECT(WELCOME, welcome, 0);
    struct fb_msg_key key = key_of("some key");
    begin();
    fb_wire_key_encode(&writer, &key);
    fb_wire_frame_end(&writer, 0, FB_MSG_EXPLAIN, 0, 3, MAP);
    size_t total = writer.at_bytes;
    for (size_t have = 0; have < total; have++) {
        assert_int_equal(fb_proto_session_input(session, now, frame_room, have), 0);
        uint32_t wants = fb_proto_session_wants(session);
        assert_int_equal(wants, have < FB_WIRE_HEADER_BYTES ? FB_WIRE_HEADER_BYTES : total);
    }
    assert_int_equal(fb_proto_session_input(session, now, frame_room, total), total);
    /* The namespace was not opened here. */
    struct fb_msg_explain_done done = EXPECT(EXPLAIN_DONE, explain_done, 3);
    assert_int_equal(done.result, FB_DENIED);
}

/* ---- puts ---- */

static void test_put_over_shared_memory(void **state)
{
    (void)state;
    start();
    fill_value(1);
    /* Pages lie scattered: more runs than one frame brings. */
    uint64_t bytes = FAKE_PARTS * FAKE_CHUNK_BYTES - 77;
    send_put(5, "key", bytes, NULL, 0);
    uint64_t generation = fill_grant(5, bytes);
    send_commit(5, generation, bytes);
    struct fb_msg_put_done done = EXPECT(PUT_DONE, put_done, 5);
    assert_int_equal(done.result, FB_OK);
    assert_int_equal(last_flags, FB_FRAME_PERSISTED);
    assert_int_equal(fb_proto_session_open_ops(session), 0);

    /* The roots are those of the bytes and the identity. */
    struct fb_msg_chunk part = {.generation = generation,
                                .part = 3,
                                .value_bytes = bytes,
                                .part_bytes = FAKE_CHUNK_BYTES};
    assert_true(fake.values[0].roots[3] == root_of("key", &part, value + 3 * FAKE_CHUNK_BYTES));
    send_put(5, "key", 10, NULL, 0);
    done = EXPECT(PUT_DONE, put_done, 5);
    assert_int_equal(done.result, FB_EXISTS);
}

static void test_put_over_a_stream(void **state)
{
    (void)state;
    start();
    fill_value(2);
    put_stream(5, "a", 1, 1);
    put_stream(6, "b", FB_LEAF_BYTES, (uint32_t)FB_KIB(128));
    put_stream(7, "c", FAKE_CHUNK_BYTES + 5, 100001);
    put_stream(8, "d", 3 * FAKE_CHUNK_BYTES, FB_WIRE_DATA_MAX);
    assert_true(fake.progress > 8);
    assert_int_equal(fb_proto_session_open_ops(session), 0);
    struct fb_proto_server_stats stats;
    fb_proto_server_stats(server, &stats);
    assert_int_equal(stats.leaf_mismatches, 0);
}

static void test_wrong_leaves_over_a_stream(void **state)
{
    (void)state;
    start();
    fill_value(3);
    send_put(5, "a", 100, NULL, 0);
    struct fb_msg_grant grant = EXPECT(GRANT, grant, 5);
    send_data(5, 0, value + 1, 100);
    send_commit(5, grant.generation, 100);
    struct fb_msg_put_done done = EXPECT(PUT_DONE, put_done, 5);
    assert_int_equal(done.result, FB_BAD_CHECKSUM);
    assert_int_equal(last_flags, 0);
    assert_int_equal(fake.releases, 1);
    send_get(6, "a", 0, UINT64_MAX);
    assert_int_equal(EXPECT(GET_DONE, get_done, 6).result, FB_MISS);
}

static void test_data_out_of_order(void **state)
{
    (void)state;
    start();
    send_put(5, "a", 100, NULL, 0);
    EXPECT(GRANT, grant, 5);
    send_data(5, 0, value, 10);
    send_data(5, 20, value, 10);
    expect_error("DATA.off");
}

static void test_data_beyond_the_value(void **state)
{
    (void)state;
    start();
    send_put(5, "a", 100, NULL, 0);
    EXPECT(GRANT, grant, 5);
    send_data(5, 0, value, 101);
    expect_error("DATA.off");
}

static void test_data_without_a_grant(void **state)
{
    (void)state;
    start();
    fake.hold_grants = true;
    send_put(5, "a", 100, NULL, 0);
    send_data(5, 0, value, 10);
    expect_error("DATA: no put with a grant");
}

static void test_commit_before_the_last_byte(void **state)
{
    (void)state;
    start();
    send_put(5, "a", 100, NULL, 0);
    struct fb_msg_grant grant = EXPECT(GRANT, grant, 5);
    send_data(5, 0, value, 99);
    send_commit(5, grant.generation, 100);
    expect_error("COMMIT before the last DATA");
}

static void test_inline_put(void **state)
{
    (void)state;
    start();
    fill_value(4);
    send_put(5, "a", 5000, value, fb_leaf_hash(value, 5000));
    assert_int_equal(EXPECT(PUT_DONE, put_done, 5).result, FB_OK);
    send_put(6, "b", 5000, value, fb_leaf_hash(value, 4999));
    assert_int_equal(EXPECT(PUT_DONE, put_done, 6).result, FB_BAD_CHECKSUM);
    assert_int_equal(last_flags, 0);
    send_get(7, "a", 0, UINT64_MAX);
    struct fb_msg_chunk chunk = EXPECT(CHUNK, chunk, 7);
    assert_int_equal(chunk.mode, FB_WIRE_CHUNK_INLINE);
    assert_memory_equal(chunk.inline_data, value, 5000);
    assert_true(root_of("a", &chunk, chunk.inline_data) == chunk.root);
    assert_int_equal(EXPECT(GET_DONE, get_done, 7).result, FB_OK);
    assert_int_equal(fb_proto_session_open_ops(session), 0);
}

static void test_inline_put_that_must_wait_is_granted_later(void **state)
{
    (void)state;
    start();
    fill_value(5);
    fake.hold_grants = true;
    send_put(5, "a", 5000, value, fb_leaf_hash(value, 5000));
    expect_nothing();
    fake_grant(fake.last_op);
    struct fb_msg_grant grant = EXPECT(GRANT, grant, 5);
    send_data(5, 0, value, 5000);
    send_commit(5, grant.generation, 5000);
    assert_int_equal(EXPECT(PUT_DONE, put_done, 5).result, FB_OK);
    struct fb_proto_server_stats stats;
    fb_proto_server_stats(server, &stats);
    assert_true(stats.inline_declined == 1 && stats.inline_taken == 0);
}

static void test_revoked_put_over_shared_memory(void **state)
{
    (void)state;
    start();
    fill_value(6);
    send_put(5, "a", 10000, NULL, 0);
    uint64_t generation = fill_grant(5, 10000);
    fake_finish(fake.last_op, FB_DEADLINE, FB_REASON_GRANT_EXPIRED);
    struct fb_msg_put_done done = EXPECT(PUT_DONE, put_done, 5);
    assert_int_equal(done.result, FB_DEADLINE);
    assert_int_equal(done.reason, FB_REASON_GRANT_EXPIRED);
    assert_int_equal(last_flags, FB_FRAME_RELEASE_WANTED);
    assert_int_equal(fake.releases, 0); /* in quarantine */
    assert_int_equal(fb_proto_session_open_ops(session), 1);
    /* A commit that crossed installs nothing; it says that the memory is left. */
    send_commit(5, generation, 10000);
    expect_nothing();
    assert_int_equal(fake.releases, 1);
    assert_int_equal(fb_proto_session_open_ops(session), 1);
    send_empty(FB_MSG_RELEASE, 5);
    assert_int_equal(fake.releases, 1);
    assert_int_equal(fb_proto_session_open_ops(session), 0);
    send_empty(FB_MSG_RELEASE, 5);
    expect_error("RELEASE");
}

static void test_revoked_before_the_client_knew(void **state)
{
    (void)state;
    start();
    fake.hold_grants = true;
    send_put(5, "a", 10000, NULL, 0);
    struct fb_op *op = fake.last_op;
    fake_grant(op);
    fake_finish(op, FB_STALE_EPOCH, FB_REASON_EPOCH_BUMPED);
    struct fb_msg_put_done done = EXPECT(PUT_DONE, put_done, 5);
    assert_int_equal(done.result, FB_STALE_EPOCH);
    assert_int_equal(last_flags, 0);
    assert_int_equal(fake.releases, 1);
    assert_int_equal(fb_proto_session_open_ops(session), 0);
}

static void test_revoked_put_over_a_stream(void **state)
{
    (void)state;
    start();
    fill_value(7);
    send_put(5, "a", 10000, NULL, 0);
    EXPECT(GRANT, grant, 5);
    send_data(5, 0, value, 3000);
    struct fb_op *op = fake.last_op;
    /* In the middle of a frame. */
    begin();
    fb_wire_data_encode(&writer,
                        &(struct fb_msg_data){.off = 3000, .len = 3000, .bytes = value + 3000});
    fb_wire_frame_end(&writer, 0, FB_MSG_DATA, 0, 5, MAP);
    feed(frame_room, 1000);
    fake_finish(op, FB_REMOVED, FB_REASON_REMOVED);
    assert_int_equal(feed(frame_room + 1000, writer.at_bytes - 1000), writer.at_bytes - 1000);
    assert_int_equal(EXPECT(PUT_DONE, put_done, 5).result, FB_REMOVED);
    assert_int_equal(last_flags, FB_FRAME_RELEASE_WANTED);
    assert_int_equal(fake.releases, 1); /* nobody else touches it */
    send_data(5, 6000, value, 4000);
    assert_int_equal(fb_proto_session_open_ops(session), 1);
    send_empty(FB_MSG_RELEASE, 5);
    assert_int_equal(fb_proto_session_open_ops(session), 0);
    /* The stream goes on. */
    put_stream(5, "b", 70000, 65536);
}

static void test_client_gives_a_put_up(void **state)
{
    (void)state;
    start();
    send_put(5, "a", 10000, NULL, 0);
    fill_grant(5, 10000);
    send_empty(FB_MSG_RELEASE, 5);
    assert_int_equal(EXPECT(PUT_DONE, put_done, 5).result, FB_DEADLINE);
    assert_int_equal(last_flags, 0);
    assert_int_equal(fb_proto_session_open_ops(session), 0);
}

/* ---- gets ---- */

static void store(const char *key, uint64_t bytes)
{
    put_stream(900, key, bytes, (uint32_t)FB_KIB(128));
}

static void test_get_over_shared_memory(void **state)
{
    (void)state;
    start();
    fill_value(8);
    uint64_t bytes = 6 * FAKE_CHUNK_BYTES - 9;
    send_put(5, "a", bytes, NULL, 0);
    send_commit(5, fill_grant(5, bytes), bytes);
    EXPECT(PUT_DONE, put_done, 5);
    send_get(6, "a", 0, UINT64_MAX);
    uint64_t seen = 0;
    static uint8_t part[FAKE_CHUNK_BYTES];
    for (unsigned n = 0; n < 6; n++) {
        struct fb_msg_chunk chunk = EXPECT(CHUNK, chunk, 6);
        assert_int_equal(chunk.mode, FB_WIRE_CHUNK_RUNS);
        uint32_t at = 0;
        for (uint32_t i = 0; i < chunk.run_count; i++) {
            struct fb_wire_run run = fb_wire_run_at(chunk.runs, i);
            memcpy(part + at, fake.pool + run.off, run.len);
            at += run.len;
        }
        assert_int_equal(at, chunk.part_bytes);
        assert_memory_equal(part, value + chunk.value_off, at);
        assert_true(root_of("a", &chunk, part) == chunk.root);
        seen += at;
        send_chunk_done(6, chunk.slot, false);
    }
    assert_true(seen == bytes);
    struct fb_msg_get_done done = EXPECT(GET_DONE, get_done, 6);
    assert_int_equal(done.result, FB_OK);
    assert_true(done.value_bytes == bytes);
    assert_int_equal(fb_proto_session_open_ops(session), 0);
}

/* Takes the DATA of a chunk; returns what came. */
static uint32_t take_data(uint64_t op, const struct fb_msg_chunk *chunk, bool checked)
{
    uint32_t at = 0;
    while (at < chunk->want_bytes) {
        struct fb_msg_data data = EXPECT(DATA, data, op);
        assert_int_equal(last_flags, checked ? FB_FRAME_CHECKED : 0);
        assert_true(data.off == chunk->value_off + chunk->want_off + at);
        uint64_t in_part = data.off - chunk->value_off;
        assert_true(in_part / FB_LEAF_BYTES == (in_part + data.len - 1) / FB_LEAF_BYTES);
        assert_memory_equal(data.bytes, value + data.off, data.len);
        at += data.len;
    }
    return at;
}

static void test_get_over_a_stream(void **state)
{
    (void)state;
    start();
    fill_value(9);
    uint64_t bytes = 6 * FAKE_CHUNK_BYTES - 100001;
    store("a", bytes);
    send_get(6, "a", 0, UINT64_MAX);
    uint64_t seen = 0;
    while (seen < bytes) {
        struct fb_msg_chunk chunk = EXPECT(CHUNK, chunk, 6);
        assert_int_equal(chunk.mode, FB_WIRE_CHUNK_DATA);
        assert_true(root_of("a", &chunk, value + chunk.value_off) == chunk.root);
        seen += take_data(6, &chunk, false);
        send_chunk_done(6, chunk.slot, false);
    }
    assert_int_equal(EXPECT(GET_DONE, get_done, 6).result, FB_OK);
    assert_int_equal(fake.chunk_releases, 6);
    assert_int_equal(fb_proto_session_open_ops(session), 0);
}

static void test_ranges_over_a_stream(void **state)
{
    (void)state;
    start();
    fill_value(10);
    store("a", 3 * FAKE_CHUNK_BYTES);
    /* Short: inline. */
    send_get(6, "a", FAKE_CHUNK_BYTES + 4096, 4096);
    struct fb_msg_chunk chunk = EXPECT(CHUNK, chunk, 6);
    assert_true(chunk.mode == FB_WIRE_CHUNK_INLINE && chunk.verified == 1);
    assert_memory_equal(chunk.inline_data, value + FAKE_CHUNK_BYTES + 4096, 4096);
    EXPECT(GET_DONE, get_done, 6);
    /* Over the border of two parts. */
    send_get(7, "a", FAKE_CHUNK_BYTES - 30001, 100000);
    for (unsigned n = 0; n < 2; n++) {
        chunk = EXPECT(CHUNK, chunk, 7);
        assert_true(chunk.mode == FB_WIRE_CHUNK_DATA && chunk.verified == 1);
        take_data(7, &chunk, true);
        send_chunk_done(7, chunk.slot, false);
    }
    EXPECT(GET_DONE, get_done, 7);
    /* Beyond the end. */
    send_get(8, "a", 4 * FAKE_CHUNK_BYTES, 10);
    struct fb_msg_get_done done = EXPECT(GET_DONE, get_done, 8);
    assert_true(done.result == FB_OK && done.value_bytes == 3 * FAKE_CHUNK_BYTES);
}

static void test_bad_chunk(void **state)
{
    (void)state;
    start();
    fill_value(11);
    uint64_t bytes = 2 * FAKE_CHUNK_BYTES;
    send_put(5, "a", bytes, NULL, 0);
    send_commit(5, fill_grant(5, bytes), bytes);
    EXPECT(PUT_DONE, put_done, 5);
    send_get(6, "a", 0, UINT64_MAX);
    struct fb_msg_chunk first = EXPECT(CHUNK, chunk, 6);
    struct fb_msg_chunk second = EXPECT(CHUNK, chunk, 6);
    send_chunk_done(6, first.slot, true);
    struct fb_msg_get_done done = EXPECT(GET_DONE, get_done, 6);
    assert_true(done.result == FB_MISS && done.reason == FB_REASON_BAD_CHECKSUM);
    assert_int_equal(fake.bad_releases, 1);
    /* The other chunk is still pinned, and the number taken, until it is answered. */
    assert_int_equal(fb_proto_session_open_ops(session), 1);
    send_chunk_done(6, second.slot, false);
    assert_int_equal(fb_proto_session_open_ops(session), 0);
    send_chunk_done(6, second.slot, false);
    expect_error("CHUNK_DONE.slot");
}

static void test_bad_bytes_are_never_sent_inline(void **state)
{
    (void)state;
    start();
    fill_value(12);
    send_put(5, "a", 5000, value, fb_leaf_hash(value, 5000));
    EXPECT(PUT_DONE, put_done, 5);
    fake.pool[fake.values[0].pages[0] * (uint64_t)FB_PAGE_BYTES] ^= 1;
    send_get(6, "a", 0, UINT64_MAX);
    struct fb_msg_get_done done = EXPECT(GET_DONE, get_done, 6);
    assert_true(done.result == FB_MISS && done.reason == FB_REASON_BAD_CHECKSUM);
    assert_int_equal(fake.bad_releases, 1);
}

static void test_get_cancelled_in_the_middle_of_a_chunk(void **state)
{
    (void)state;
    start();
    fill_value(13);
    store("a", 6 * FAKE_CHUNK_BYTES);
    sent_bytes = read_bytes = 0;
    send_get(6, "a", 0, UINT64_MAX);
    drain(200000); /* CHUNK, and a part of its DATA */
    send_empty(FB_MSG_CANCEL, 6);
    struct got got;
    unsigned frames = 0, chunks = 0;
    while (next(&got) && got.header.type != FB_MSG_GET_DONE) {
        frames += got.header.type == FB_MSG_DATA;
        chunks += got.header.type == FB_MSG_CHUNK;
    }
    assert_in_range(frames, 1, 8);
    assert_in_range(chunks, 1, 2);
    assert_int_equal(got.header.type, FB_MSG_GET_DONE);
    assert_int_equal(fake.chunk_releases, chunks);
    assert_int_equal(fb_proto_session_open_ops(session), 1);
    for (uint8_t slot = 0; slot < chunks; slot++)
        send_chunk_done(6, slot, false);
    assert_int_equal(fb_proto_session_open_ops(session), 0);
    expect_nothing();
}

static void test_chunk_done_before_its_data(void **state)
{
    (void)state;
    start();
    store("a", 3 * FAKE_CHUNK_BYTES);
    sent_bytes = read_bytes = 0;
    send_get(6, "a", 0, UINT64_MAX);
    send_chunk_done(6, 0, false);
    expect_error("CHUNK_DONE.slot");
}

static void test_two_values_take_turns_on_a_stream(void **state)
{
    (void)state;
    start();
    fill_value(14);
    store("long", 8 * FAKE_CHUNK_BYTES);
    store("short", FAKE_CHUNK_BYTES);
    sent_bytes = read_bytes = 0;
    send_get(6, "long", 0, UINT64_MAX);
    send_get(7, "short", 0, UINT64_MAX);
    unsigned of_long = 0, of_short = 0, switches = 0;
    uint64_t last = 0;
    struct got got;
    while (of_short < 4 && next(&got)) {
        if (got.header.type != FB_MSG_DATA)
            continue;
        switches += got.header.op != last;
        last = got.header.op;
        of_long += got.header.op == 6;
        of_short += got.header.op == 7;
    }
    assert_int_equal(of_short, 4);
    assert_true(switches >= 6);
}

/* ---- credits, windows, pauses ---- */

static void test_more_operations_than_the_credit(void **state)
{
    (void)state;
    start();
    fake.hold_grants = true;
    for (uint64_t op = 1; op <= FB_PROTO_OP_CREDIT; op++) {
        char key[16];
        snprintf(key, sizeof(key), "k%d", (int)op % 60);
        if (op <= 60)
            send_put(op, key, 10, NULL, 0);
        else
            send_key(FB_MSG_EXPLAIN, op, key);
    }
    while (fb_proto_session_open_ops(session) > 60) {
        struct got got;
        assert_true(next(&got));
    }
    fake.hold_ops = true;
    for (uint64_t op = 61; op <= FB_PROTO_OP_CREDIT; op++)
        send_key(FB_MSG_REMOVE, op, "k");
    assert_int_equal(fb_proto_session_open_ops(session), FB_PROTO_OP_CREDIT);
    send_key(FB_MSG_REMOVE, 9999, "k");
    expect_error("header.op: more operations");
}

static void test_an_op_that_is_open(void **state)
{
    (void)state;
    start();
    fake.hold_ops = true;
    send_key(FB_MSG_REMOVE, 5, "k");
    send_key(FB_MSG_REMOVE, 5, "k");
    expect_error("header.op: the op is 0, or that of an open");
}

static void test_gets_wait_for_the_window(void **state)
{
    (void)state;
    start();
    uint64_t bytes = 4 * FAKE_CHUNK_BYTES;
    send_put(5, "a", bytes, NULL, 0);
    send_commit(5, fill_grant(5, bytes), bytes);
    EXPECT(PUT_DONE, put_done, 5);
    fake.gets_started = 0;
    for (uint64_t op = 10; op < 30; op++)
        send_get(op, "a", 0, UINT64_MAX);
    /* The window is 4 MiB here, a value 2 MiB. */
    assert_in_range(fake.gets_started, 2, 4);
    unsigned before = fake.gets_started;
    /* Time ends those that wait, through the shard. */
    now += 2 * FB_SEC_NS;
    assert_true(fb_proto_server_next_ns(server) <= now);
    fb_proto_server_tick(server, now);
    assert_int_equal(fake.gets_started, 20);
    unsigned ended = 0;
    struct got got;
    while (next(&got))
        ended += got.header.type == FB_MSG_GET_DONE;
    assert_int_equal(ended, 20 - before);
    assert_true(fb_proto_server_next_ns(server) == UINT64_MAX);
}

static void test_gets_go_on_when_the_window_has_room(void **state)
{
    (void)state;
    start();
    uint64_t bytes = 4 * FAKE_CHUNK_BYTES;
    send_put(5, "a", bytes, NULL, 0);
    send_commit(5, fill_grant(5, bytes), bytes);
    EXPECT(PUT_DONE, put_done, 5);
    for (uint64_t op = 10; op < 30; op++)
        send_get(op, "a", 0, UINT64_MAX);
    unsigned ended = 0;
    struct got got;
    while (next(&got)) {
        if (got.header.type == FB_MSG_GET_DONE) {
            ended++;
            continue;
        }
        struct fb_msg_chunk chunk;
        const char *bad;
        assert_int_equal(fb_wire_chunk_decode(&got.reader, &chunk, &bad), FB_OK);
        send_chunk_done(got.header.op, chunk.slot, false);
    }
    assert_int_equal(ended, 20);
}

static void test_lists_in_use_pause_and_go_on(void **state)
{
    (void)state;
    start();
    fake.hold_ops = true;
    struct fb_op *ops[FB_PROTO_LISTS];
    for (unsigned i = 0; i < FB_PROTO_LISTS; i++) {
        send_lookup(10 + i, 8192);
        ops[i] = fake.last_op;
    }
    begin();
    fb_wire_lookup_encode(&writer,
                          &(struct fb_msg_lookup){.ns = NS,
                                                  .epoch = EPOCH,
                                                  .count = 1,
                                                  .digests = (const uint8_t *)"0123456789abcdef"});
    fb_wire_frame_end(&writer, 0, FB_MSG_LOOKUP, 0, 99, MAP);
    assert_int_equal(feed(frame_room, writer.at_bytes), 0);
    assert_true(fb_proto_session_is_paused(session));
    while (fb_proto_server_next(server) != NULL)
        ;
    fake_finish(ops[3], FB_OK, 0);
    struct fb_msg_lookup_done done = EXPECT(LOOKUP_DONE, lookup_done, 13);
    assert_int_equal(done.count, 8192);
    for (uint32_t i = 0; i < done.count; i++)
        assert_int_equal(done.found[i], i & 15);
    assert_ptr_equal(fb_proto_server_next(server), session);
    assert_false(fb_proto_session_is_paused(session));
    assert_int_equal(feed(frame_room, writer.at_bytes), writer.at_bytes);
    for (unsigned i = 0; i < FB_PROTO_LISTS; i++)
        if (i != 3)
            fake_finish(ops[i], FB_OK, 0);
    fake_finish(fake.last_op, FB_OK, 0);
    for (unsigned i = 0; i < FB_PROTO_LISTS; i++) {
        struct got got;
        assert_true(next(&got));
        assert_int_equal(got.header.type, FB_MSG_LOOKUP_DONE);
    }
    expect_nothing();
}

static void test_a_client_that_does_not_read(void **state)
{
    (void)state;
    start();
    /* Each answer is 48 KiB, the outbox 64. */
    for (uint64_t op = 10; op < 40; op++)
        send_empty(FB_MSG_STATUS, op);
    assert_int_equal(fb_proto_session_open_ops(session), 29);
    for (uint64_t op = 10; op < 40; op++) {
        struct fb_msg_text text = EXPECT(STATUS_DONE, text, op);
        assert_int_equal(text.text_bytes, FB_WIRE_STATUS_BYTES_MAX);
    }
    assert_int_equal(fb_proto_session_open_ops(session), 0);
}

static void test_pings_of_a_client_that_does_not_read(void **state)
{
    (void)state;
    start();
    begin();
    fb_wire_frame_end(&writer, 0, FB_MSG_PING, 0, 1, MAP);
    unsigned taken = 0;
    while (feed(frame_room, writer.at_bytes) > 0)
        taken++;
    assert_in_range(taken, 1000, 2000);
    assert_true(fb_proto_session_is_paused(session));
    drain(UINT64_MAX);
    assert_false(fb_proto_session_is_paused(session));
    assert_true(feed(frame_room, writer.at_bytes) > 0);
}

/* ---- other requests ---- */

static void test_other_requests(void **state)
{
    (void)state;
    start();
    send_key(FB_MSG_REMOVE, 3, "k");
    EXPECT(REMOVE_DONE, done, 3);
    send_key(FB_MSG_WAIT_PERSISTED, 4, "k");
    EXPECT(WAIT_DONE, done, 4);
    assert_int_equal(last_flags, FB_FRAME_PERSISTED);
    send_key(FB_MSG_DROP_DRAM, 5, "k");
    EXPECT(DROP_DONE, done, 5);
    send_key(FB_MSG_EXPLAIN, 6, "k");
    struct fb_msg_explain_done explain = EXPECT(EXPLAIN_DONE, explain_done, 6);
    assert_int_equal(explain.tiers, 2);
    assert_memory_equal(explain.text, "device 0, segment 0, incarnation 4", 34);
    begin();
    fb_wire_epoch_encode(&writer, &(struct fb_msg_epoch){.ns = NS, .epoch = EPOCH});
    finish(FB_MSG_EPOCH, 0, 7);
    EXPECT(EPOCH_DONE, done, 7);
    begin();
    fb_wire_list_encode(&writer, &(struct fb_msg_list){.ns = NS, .epoch = EPOCH});
    finish(FB_MSG_LIST, 0, 8);
    assert_true(EXPECT(LIST_DONE, list_done, 8).cursor == UINT64_MAX);
    begin();
    fb_wire_epoch_encode(&writer, &(struct fb_msg_epoch){.ns = NS + 1, .epoch = EPOCH});
    finish(FB_MSG_EPOCH, 0, 9);
    assert_int_equal(EXPECT(EPOCH_DONE, done, 9).result, FB_DENIED);
    assert_int_equal(fb_proto_session_open_ops(session), 0);
}

/* ---- the end ---- */

static void test_end_without_proof(void **state)
{
    (void)state;
    start();
    send_put(5, "a", 10000, NULL, 0);
    fill_grant(5, 10000);
    fake.hold_ops = true;
    send_key(FB_MSG_REMOVE, 6, "k");
    fb_proto_session_end(session, now, false);
    assert_true(fake.gone && !fake.gone_proven);
    assert_false(fb_proto_session_is_idle(session));
    fb_proto_session_proven(session, now);
    assert_true(fake.gone_proven);
    assert_true(fb_proto_session_is_idle(session));
}

static void test_the_next_connection_says_that_memory_is_left(void **state)
{
    (void)state;
    start();
    send_put(5, "a", 10000, NULL, 0);
    fill_grant(5, 10000);
    struct fb_proto_session *old = session;
    void *old_memory = session_memory;
    fb_proto_session_end(old, now, false);
    assert_false(fb_proto_session_is_idle(old));
    session = open_session(2, true, &session_memory);
    sent_bytes = read_bytes = 0;
    send_hello(1);
    EXPECT(WELCOME, welcome, 0);
    assert_true(fb_proto_session_is_idle(old));
    fb_proto_session_fini(old);
    free(old_memory);
}

static void test_end_in_the_middle_of_everything(void **state)
{
    (void)state;
    start();
    store("a", 6 * FAKE_CHUNK_BYTES);
    sent_bytes = read_bytes = 0;
    fake.hold_grants = true;
    send_get(6, "a", 0, UINT64_MAX);
    send_get(7, "a", 0, UINT64_MAX);
    drain(300000);
    send_put(8, "b", 10, NULL, 0);
    send_lookup(9, 100);
    fb_proto_session_end(session, now, true);
    fb_proto_server_pump(server, now);
    assert_true(fb_proto_session_is_idle(session));
}

/* ---- anything at all ---- */

static unsigned random_frames;

/* True if a frame of this type would be in place for this operation. */
static bool is_plausible(uint8_t type, uint64_t op)
{
    const struct fb_slot *slot = fb_session_find(session, op);
    switch (type) {
    case FB_MSG_DATA:
    case FB_MSG_COMMIT:
    case FB_MSG_RELEASE:
        return slot != NULL && slot->type == FB_MSG_PUT && (slot->flags & FB_SLOT_TOLD) != 0 &&
               (slot->flags & FB_SLOT_COMMITTED) == 0 && !slot->client_released &&
               (type != FB_MSG_DATA ||
                (!fb_proto_session_uses_shm(session) && slot->data_off < slot->op.value_bytes));
    case FB_MSG_CHUNK_DONE:
        return slot != NULL && slot->type == FB_MSG_GET && fb_session_chunks_are_owed(slot);
    case FB_MSG_CANCEL:
    case FB_MSG_PING:
        return true;
    default:
        return slot == NULL;
    }
}

/* A chunk that is owed for this get, or 3. */
static uint8_t owed_chunk(uint64_t op)
{
    const struct fb_slot *slot = fb_session_find(session, op);
    for (uint8_t i = 0; slot != NULL && slot->type == FB_MSG_GET && i < 3; i++)
        if (slot->chunk[i].owed)
            return i;
    return 3;
}

/* What fits a put that is under way: the next bytes, the leaves of all of them. */
static void random_put_frame(struct fb_prng *prng, uint8_t type, uint64_t op)
{
    const struct fb_slot *slot = fb_session_find(session, op);
    uint64_t bytes = slot != NULL && slot->type == FB_MSG_PUT ? slot->op.value_bytes : 5000;
    uint64_t off = slot != NULL ? slot->data_off : 0;
    if (type == FB_MSG_COMMIT) {
        uint32_t count = leaves_of(bytes);
        uint64_t generation = slot != NULL ? slot->op.generation : 1;
        if (fb_prng_below(prng, 20) == 0)
            leaves[0] ^= 1;
        fb_wire_commit_encode(&writer, &(struct fb_msg_commit){.generation =
                                                                   generation != 0 ? generation : 1,
                                                               .leaf_count = count,
                                                               .leaves = (const uint8_t *)leaves});
        return;
    }
    uint64_t len =
        fb_min_u64(fb_min_u64(bytes - fb_min_u64(off, bytes), FB_WIRE_DATA_MAX), FB_LEAF_BYTES);
    len = fb_prng_below(prng, 2) != 0 && len > 1 ? 1 + fb_prng_below(prng, len) : len;
    len = len == 0 ? 1 : len;
    fb_wire_data_encode(&writer, &(struct fb_msg_data){.off = off,
                                                       .len = (uint32_t)len,
                                                       .bytes = value + off});
}

/* A random frame whose check fits: types and fields near what is good. */
static size_t random_frame(struct fb_prng *prng)
{
    static const uint8_t types[] = {FB_MSG_PUT,           FB_MSG_GET,     FB_MSG_DATA,
                                    FB_MSG_COMMIT,        FB_MSG_RELEASE, FB_MSG_CHUNK_DONE,
                                    FB_MSG_CANCEL,        FB_MSG_LOOKUP,  FB_MSG_HOLD_RELEASE,
                                    FB_MSG_REMOVE,        FB_MSG_EXPLAIN, FB_MSG_STATUS,
                                    FB_MSG_PING,          FB_MSG_LIST,    FB_MSG_EPOCH,
                                    FB_MSG_WAIT_PERSISTED};
    static const char *const keys[] = {"a", "b", "c"};
    uint8_t type;
    uint64_t op;
    unsigned tries = 0;
    do {
        type = types[fb_prng_below(prng, sizeof(types))];
        op = 1 + fb_prng_below(prng, 12);
    } while (!is_plausible(type, op) && ++tries < 1000 && fb_prng_below(prng, 2000) != 0);
    random_frames++;
    struct fb_msg_key key = key_of(keys[fb_prng_below(prng, 3)]);
    key.deadline_ms = (uint32_t)fb_prng_below(prng, 3000);
    uint64_t bytes = 1 + fb_prng_below(prng, fb_prng_below(prng, 2) != 0 ? 30000 : 900000);
    begin();
    switch (type) {
    case FB_MSG_PUT: {
        struct fb_msg_put put = {.key = key,
                                 .value_bytes = bytes,
                                 .put_flags = (uint8_t)fb_prng_below(prng, 2)};
        if (bytes <= FB_WIRE_INLINE_MAX && fb_prng_below(prng, 2) != 0) {
            put.inline_bytes = (uint32_t)bytes;
            put.inline_data = value;
            put.inline_leaf = fb_leaf_hash(value, bytes);
        }
        fb_wire_put_encode(&writer, &put);
        break;
    }
    case FB_MSG_GET: {
        struct fb_msg_get get = {.key = key, .range_bytes = UINT64_MAX};
        if (fb_prng_below(prng, 2) != 0) {
            get.range_off = fb_prng_below(prng, 600000);
            get.range_bytes = bytes;
        }
        fb_wire_get_encode(&writer, &get);
        break;
    }
    case FB_MSG_DATA:
    case FB_MSG_COMMIT:
        random_put_frame(prng, type, op);
        break;
    case FB_MSG_CHUNK_DONE:
        fb_wire_chunk_done_encode(&writer, &(struct fb_msg_chunk_done){.slot = owed_chunk(op)});
        break;
    case FB_MSG_LOOKUP:
    case FB_MSG_HOLD_RELEASE:
        fb_wire_lookup_encode(&writer, &(struct fb_msg_lookup){.ns = NS,
                                                               .epoch = EPOCH,
                                                               .count = 4,
                                                               .digests = value});
        break;
    case FB_MSG_LIST:
        fb_wire_list_encode(&writer, &(struct fb_msg_list){.ns = NS, .epoch = EPOCH});
        break;
    case FB_MSG_EPOCH:
        fb_wire_epoch_encode(&writer, &(struct fb_msg_epoch){.ns = NS, .epoch = EPOCH});
        break;
    case FB_MSG_REMOVE:
    case FB_MSG_EXPLAIN:
    case FB_MSG_WAIT_PERSISTED:
        fb_wire_key_encode(&writer, &key);
        break;
    default:
        break;
    }
    fb_wire_frame_end(&writer, 0, type, type == FB_MSG_CHUNK_DONE && op == 3 ? FB_FRAME_BAD : 0, op,
                      MAP);
    return writer.at_bytes;
}

/* What the shard may do by itself meanwhile. */
static void random_event(struct fb_prng *prng)
{
    for (unsigned i = 0; i < FAKE_VALUES; i++) {
        struct fake_value *at = &fake.values[i];
        if (!at->used || at->op == NULL || fb_prng_below(prng, 8) != 0)
            continue;
        if (at->generation == 0)
            fake_grant(at->op);
        else if (at->op->result == 0 && fb_prng_below(prng, 3) == 0)
            fake_finish(at->op, FB_DEADLINE, FB_REASON_GRANT_EXPIRED);
    }
}

static void random_session(uint64_t seed)
{
    struct fb_prng prng;
    fb_prng_seed(&prng, seed);
    setup_path(fb_prng_below(&prng, 2) != 0);
    fill_value(seed);
    start();
    fake.hold_grants = fb_prng_below(&prng, 2) != 0;
    fake.verified = fb_prng_below(&prng, 2) != 0;
    for (unsigned n = 0; n < 300 && !fb_proto_session_is_closing(session); n++) {
        size_t count = random_frame(&prng);
        size_t at = 0;
        while (at < count) {
            size_t taken = feed(frame_room + at,
                                (size_t)fb_min_u64(count - at, 1 + fb_prng_below(&prng, count)));
            if (taken == 0 &&
                (fb_proto_session_is_closing(session) || fb_proto_session_is_paused(session)))
                break;
            if (taken == 0)
                taken = feed(frame_room + at, count - at);
            at += taken;
        }
        random_event(&prng);
        if (fb_prng_below(&prng, 3) == 0)
            drain(fb_prng_below(&prng, 300000));
        if (sent_bytes > sizeof(sent) / 2)
            sent_bytes = read_bytes = 0;
        now += fb_prng_below(&prng, 10 * FB_MS_NS);
        fb_proto_server_tick(server, now);
    }
    teardown(NULL);
}

static void test_random_frames(void **state)
{
    (void)state;
    teardown(NULL);
    for (uint64_t seed = 1; seed <= 600; seed++)
        random_session(seed);
    assert_true(random_frames > 600 * 30);
    setup_path(false);
}

#define STREAM(test) cmocka_unit_test_setup_teardown(test, setup_stream, teardown)
#define SHM(test)    cmocka_unit_test_setup_teardown(test, setup_shm, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        STREAM(test_welcome),
        SHM(test_welcome_with_shared_memory),
        STREAM(test_another_version_is_refused_with_both_numbers),
        STREAM(test_garbage_is_refused_by_its_first_byte),
        STREAM(test_requests_before_hello),
        STREAM(test_hello_twice),
        STREAM(test_another_shard_map),
        STREAM(test_damage_is_noticed),
        STREAM(test_frames_in_pieces),
        SHM(test_put_over_shared_memory),
        STREAM(test_put_over_a_stream),
        STREAM(test_wrong_leaves_over_a_stream),
        STREAM(test_data_out_of_order),
        STREAM(test_data_beyond_the_value),
        STREAM(test_data_without_a_grant),
        STREAM(test_commit_before_the_last_byte),
        STREAM(test_inline_put),
        STREAM(test_inline_put_that_must_wait_is_granted_later),
        SHM(test_revoked_put_over_shared_memory),
        SHM(test_revoked_before_the_client_knew),
        STREAM(test_revoked_put_over_a_stream),
        SHM(test_client_gives_a_put_up),
        SHM(test_get_over_shared_memory),
        STREAM(test_get_over_a_stream),
        STREAM(test_ranges_over_a_stream),
        SHM(test_bad_chunk),
        STREAM(test_bad_bytes_are_never_sent_inline),
        STREAM(test_get_cancelled_in_the_middle_of_a_chunk),
        STREAM(test_chunk_done_before_its_data),
        STREAM(test_two_values_take_turns_on_a_stream),
        SHM(test_more_operations_than_the_credit),
        STREAM(test_an_op_that_is_open),
        SHM(test_gets_wait_for_the_window),
        SHM(test_gets_go_on_when_the_window_has_room),
        STREAM(test_lists_in_use_pause_and_go_on),
        STREAM(test_a_client_that_does_not_read),
        STREAM(test_pings_of_a_client_that_does_not_read),
        STREAM(test_other_requests),
        SHM(test_end_without_proof),
        SHM(test_the_next_connection_says_that_memory_is_left),
        STREAM(test_end_in_the_middle_of_everything),
        STREAM(test_random_frames),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
