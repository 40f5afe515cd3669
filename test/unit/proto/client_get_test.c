/*
 * Gets on the client's side of a connection, against a scripted node. Covers: runs, inline bytes
 * and DATA; whole values and ranges; parts out of order; every way in which bytes can be wrong
 * (another root, another key, generation or epoch, a damaged checked frame, a part missing or
 * twice); buffers that are too small; deadlines with chunks out.
 *
 * Cannot show: that a real node sends these dialogues (test/e2e, the simulator).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/reason.h"
#include "base/result.h"
#include "test/lib/client_node.h"

#define GENERATION ((UINT64_C(3) << 40) | 17)
#define GUARD      64

static const uint8_t ns_fields[] = {1, 1, 1, 0, 0, 0, 'm'};

static const struct fb_proto_config plain = {
    .features = FB_FEATURE_SHM,
    .nonce = 42,
    .fields = ns_fields,
    .fields_bytes = sizeof(ns_fields),
};

/* A get of one key into two buffers. */
struct get {
    struct node node;
    struct fb_get_item item;
    struct fb_buf bufs[2];
    uint8_t *room;
    size_t room_bytes;
    struct fb_proto_call call;
    uint64_t op;
};

static void get_begin(struct get *get, uint64_t features, size_t room_bytes, uint64_t range_off,
                      uint64_t range_bytes)
{
    memset(get, 0, sizeof(*get));
    node_open(&get->node, features, 8, &plain);
    get->room_bytes = room_bytes;
    get->room = calloc(1, room_bytes + GUARD);
    assert_non_null(get->room);
    get->bufs[0] = (struct fb_buf){get->room, room_bytes / 4};
    get->bufs[1] = (struct fb_buf){get->room + room_bytes / 4, room_bytes - room_bytes / 4};
    get->item = (struct fb_get_item){
        .key = "a-key",
        .key_bytes = 5,
        .bufs = get->bufs,
        .buf_count = room_bytes == 0 ? 0 : 2,
        .range_off = range_off,
        .range_bytes = range_bytes,
        .result = 12345,
    };
    get->call = (struct fb_proto_call){
        .kind = FB_PROTO_GET,
        .count = 1,
        .items.get = &get->item,
        .epoch = NODE_EPOCH,
        .deadline_ns = get->node.now_ns + NODE_DEADLINE_NS,
    };
    fb_proto_client_begin(get->node.client, get->node.now_ns, &get->call);
    node_take(&get->node);
    get->op = node_expect(&get->node, FB_MSG_GET)->header.op;
}

static void get_end(struct get *get)
{
    for (size_t i = 0; i < GUARD; i++)
        assert_int_equal(get->room[get->room_bytes + i], 0);
    node_free(&get->node);
    free(get->room);
}

static void chunk(struct get *get, uint8_t slot, uint8_t mode, uint32_t part, uint64_t value_bytes)
{
    uint64_t range = get->item.range_bytes == 0 ? UINT64_MAX : get->item.range_bytes;
    node_chunk(&get->node, get->op, slot, mode, "a-key", part, value_bytes, 0, GENERATION,
               get->item.range_off, range);
}

/* CHUNK_DONE was sent, with or without BAD. */
static void expect_chunk_done(struct get *get, uint8_t slot, bool bad)
{
    node_take(&get->node);
    const struct node_frame *frame = node_expect(&get->node, FB_MSG_CHUNK_DONE);
    assert_int_equal(frame->payload[0], slot);
    assert_int_equal(frame->header.flags, bad ? FB_FRAME_BAD : 0);
}

static void expect_ok(struct get *get, uint64_t value_bytes, uint64_t bytes)
{
    node_send_get_done(&get->node, get->op, FB_OK, value_bytes, GENERATION);
    assert_true(fb_proto_call_is_over(&get->call));
    assert_int_equal(get->item.result, FB_OK);
    assert_int_equal(get->item.bytes, bytes);
    assert_int_equal(get->item.value_bytes, value_bytes);
    assert_true(get->item.generation == GENERATION);
    assert_memory_equal(get->room, get->node.pool + get->item.range_off, bytes);
    assert_int_equal(fb_proto_client_open_ops(get->node.client), 0);
}

static void from_shared_memory(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, 4096, 5000, 300000, NODE_CHUNK_BYTES, 2500001};
    for (unsigned i = 0; i < FB_ARRAY_COUNT(sizes); i++) {
        struct get get;
        get_begin(&get, FB_FEATURE_SHM, sizes[i] + 10, 0, 0);
        uint32_t parts = (uint32_t)fb_div_up(sizes[i], NODE_CHUNK_BYTES);
        for (uint32_t k = 0; k < parts; k++) { /* the last part comes first */
            chunk(&get, (uint8_t)(k % 4), FB_WIRE_CHUNK_RUNS, parts - 1 - k, sizes[i]);
            assert_int_equal(node_jobs(&get.node), 1);
            expect_chunk_done(&get, (uint8_t)(k % 4), false);
        }
        assert_false(fb_proto_call_is_over(&get.call));
        expect_ok(&get, sizes[i], sizes[i]);
        assert_int_equal(get.item.tiers, FB_TIER_DRAM);
        get_end(&get);
    }
}

static void ranges_from_shared_memory(void **state)
{
    (void)state;
    static const uint64_t ranges[][2] = {
        {0, 1},           {5, 100},     {FB_LEAF_BYTES - 1, 2},
        {300000, 700000}, {1000000, 0}, {NODE_CHUNK_BYTES - 50, 100},
        {2499999, 5000},
    };
    const uint64_t value = 2500001;
    for (unsigned i = 0; i < FB_ARRAY_COUNT(ranges); i++) {
        struct get get;
        uint64_t off = ranges[i][0];
        uint64_t bytes = ranges[i][1] == 0 ? value - off : fb_min_u64(ranges[i][1], value - off);
        get_begin(&get, FB_FEATURE_SHM, bytes, off, ranges[i][1]);
        for (uint32_t part = (uint32_t)(off / NODE_CHUNK_BYTES);
             part <= (off + bytes - 1) / NODE_CHUNK_BYTES; part++) {
            chunk(&get, 1, FB_WIRE_CHUNK_RUNS, part, value);
            assert_int_equal(node_jobs(&get.node), 1);
            expect_chunk_done(&get, 1, false);
        }
        expect_ok(&get, value, bytes);
        get_end(&get);
    }
}

static void inline_bytes(void **state)
{
    (void)state;
    struct get get;
    get_begin(&get, FB_FEATURE_SHM, 5000, 0, 0);
    chunk(&get, 0, FB_WIRE_CHUNK_INLINE, 0, 5000);
    node_take(&get.node);
    node_expect_nothing(&get.node);
    expect_ok(&get, 5000, 5000);
    get_end(&get);
    get_begin(&get, 0, 4096, 70000, 4096);
    chunk(&get, 0, FB_WIRE_CHUNK_INLINE, 0, 100000);
    expect_ok(&get, 100000, 4096);
    get_end(&get);
}

/* The DATA of one chunk, in frames of half a leaf. */
static void data(struct get *get, uint64_t from, uint64_t to, bool checked)
{
    while (from < to) {
        uint64_t step = fb_min_u64(FB_LEAF_BYTES / 2, FB_LEAF_BYTES - from % FB_LEAF_BYTES);
        uint32_t len = (uint32_t)fb_min_u64(step, to - from);
        node_data(&get->node, get->op, from, 0, len, checked, false);
        from += len;
    }
}

static void from_a_stream(void **state)
{
    (void)state;
    struct get get;
    const uint64_t value = NODE_CHUNK_BYTES + 300001;
    get_begin(&get, 0, value, 0, 0);
    chunk(&get, 0, FB_WIRE_CHUNK_DATA, 0, value);
    chunk(&get, 1, FB_WIRE_CHUNK_DATA, 1, value);
    data(&get, NODE_CHUNK_BYTES, value, false);
    expect_chunk_done(&get, 1, false);
    data(&get, 0, NODE_CHUNK_BYTES, false);
    expect_chunk_done(&get, 0, false);
    expect_ok(&get, value, value);
    get_end(&get);
}

static void a_range_from_a_stream(void **state)
{
    (void)state;
    struct get get;
    get_begin(&get, 0, 400000, 100001, 400000);
    chunk(&get, 2, FB_WIRE_CHUNK_DATA, 0, 900000);
    data(&get, 100001, 500001, true);
    expect_chunk_done(&get, 2, false);
    expect_ok(&get, 900000, 400000);
    get_end(&get);
}

static void expect_breach(struct get *get)
{
    assert_int_equal(fb_proto_client_state(get->node.client), FB_PROTO_LOST);
    assert_true(fb_proto_call_is_over(&get->call));
    assert_int_equal(get->item.result, FB_PROTOCOL);
    get_end(get);
}

static void a_damaged_frame_of_a_stream(void **state)
{
    (void)state;
    struct get get;
    /* A cut range: the frame is checked. */
    get_begin(&get, 0, 1000, 5, 1000);
    chunk(&get, 0, FB_WIRE_CHUNK_DATA, 0, 90000);
    node_data(&get.node, get.op, 5, 0, 1000, true, true);
    expect_breach(&get);
    /* A cut range that is not checked is not believed. */
    get_begin(&get, 0, 1000, 5, 1000);
    chunk(&get, 0, FB_WIRE_CHUNK_DATA, 0, 90000);
    node_data(&get.node, get.op, 5, 0, 1000, false, false);
    expect_breach(&get);
    /* A whole part: its root is not met. */
    get_begin(&get, 0, 90000, 0, 0);
    chunk(&get, 0, FB_WIRE_CHUNK_DATA, 0, 90000);
    node_data(&get.node, get.op, 0, 0, 90000, false, true);
    expect_chunk_done(&get, 0, true);
    node_send_get_done(&get.node, get.op, FB_MISS, 0, 0);
    assert_int_equal(get.item.result, FB_MISS);
    assert_int_equal(get.item.reason, FB_REASON_BAD_CHECKSUM);
    get_end(&get);
}

static void data_out_of_place(void **state)
{
    (void)state;
    static const struct {
        uint64_t off;
        uint32_t len;
    } bad[] = {{0, 90001}, {100, 100}, {0, FB_WIRE_DATA_MAX}};
    for (unsigned i = 0; i < FB_ARRAY_COUNT(bad); i++) {
        struct get get;
        get_begin(&get, 0, 90000, 0, 0);
        chunk(&get, 0, FB_WIRE_CHUNK_DATA, 0, 90000);
        node_data(&get.node, get.op, bad[i].off, 0, bad[i].len, false, false);
        expect_breach(&get);
    }
    struct get get;
    get_begin(&get, 0, 90000, 0, 0);
    node_data(&get.node, get.op, 0, 0, 100, false, false); /* no chunk was announced */
    expect_breach(&get);
}

/* Whatever is wrong with the bytes, the key is a miss and says so, and the node hears of it. */
static void bytes_of_something_else(void **state)
{
    (void)state;
    static const char *const keys[] = {"a-key", "b-key", "a-key", "a-key"};
    for (unsigned i = 0; i < 4; i++) {
        struct get get;
        get_begin(&get, FB_FEATURE_SHM, 300000, 0, 0);
        if (i == 2) /* as of another generation than it says */
            get.call.epoch = NODE_EPOCH + 1;
        node_chunk(&get.node, get.op, 3, FB_WIRE_CHUNK_RUNS, keys[i], 0, 300000, 0, GENERATION, 0,
                   UINT64_MAX);
        if (i == 0)
            get.node.pool[299999] ^= 1;
        if (i == 3) /* a byte that is not wanted counts as well */
            get.node.pool[4096] ^= 0x80;
        assert_int_equal(node_jobs(&get.node), 1);
        expect_chunk_done(&get, 3, true);
        node_send_get_done(&get.node, get.op, FB_MISS, 0, 0);
        assert_true(fb_proto_call_is_over(&get.call));
        assert_int_equal(get.item.result, FB_MISS);
        assert_int_equal(get.item.reason, FB_REASON_BAD_CHECKSUM);
        get_end(&get);
    }
    /* Even if the node thinks that all is well. */
    struct get get;
    get_begin(&get, 0, 3000, 0, 0);
    node_chunk(&get.node, get.op, 3, FB_WIRE_CHUNK_INLINE, "b-key", 0, 3000, 0, GENERATION, 0,
               UINT64_MAX);
    node_send_get_done(&get.node, get.op, FB_OK, 3000, GENERATION);
    assert_int_equal(get.item.result, FB_MISS);
    assert_int_equal(get.item.reason, FB_REASON_BAD_CHECKSUM);
    get_end(&get);
}

static void a_mixture_of_two_values(void **state)
{
    (void)state;
    struct get get;
    const uint64_t value = NODE_CHUNK_BYTES + 5000;
    get_begin(&get, FB_FEATURE_SHM, value, 0, 0);
    chunk(&get, 0, FB_WIRE_CHUNK_RUNS, 0, value);
    node_jobs(&get.node);
    node_chunk(&get.node, get.op, 1, FB_WIRE_CHUNK_RUNS, "a-key", 1, value, 0, GENERATION + 1, 0,
               UINT64_MAX);
    expect_breach(&get);
}

static void a_part_is_missing_or_comes_twice(void **state)
{
    (void)state;
    const uint64_t value = 3 * NODE_CHUNK_BYTES;
    for (unsigned i = 0; i < 2; i++) {
        struct get get;
        get_begin(&get, FB_FEATURE_SHM, value, 0, 0);
        static const uint32_t parts[3] = {0, 1, 1};
        for (unsigned k = 0; k < (i == 0 ? 2 : 3); k++) {
            chunk(&get, (uint8_t)k, FB_WIRE_CHUNK_RUNS, parts[k], value);
            node_jobs(&get.node);
        }
        node_send_get_done(&get.node, get.op, FB_OK, value, GENERATION);
        assert_true(fb_proto_call_is_over(&get.call));
        assert_int_equal(get.item.result, FB_PROTOCOL);
        get_end(&get);
    }
}

static void buffers_that_do_not_fit(void **state)
{
    (void)state;
    struct get get;
    get_begin(&get, FB_FEATURE_SHM, 2999, 0, 0);
    chunk(&get, 0, FB_WIRE_CHUNK_RUNS, 0, 3000);
    assert_int_equal(node_jobs(&get.node), 0);
    expect_chunk_done(&get, 0, false);
    node_expect(&get.node, FB_MSG_CANCEL);
    node_send_get_done(&get.node, get.op, FB_DEADLINE, 0, 0);
    assert_true(fb_proto_call_is_over(&get.call));
    assert_int_equal(get.item.result, FB_BUFFER_TOO_SMALL);
    assert_int_equal(get.item.value_bytes, 3000);
    assert_int_equal(get.room[0], 0);
    get_end(&get);
    /* No buffer at all: the length is asked for. */
    get_begin(&get, FB_FEATURE_SHM, 0, 0, 0);
    node_send_get_done(&get.node, get.op, FB_OK, 3000, GENERATION);
    assert_int_equal(get.item.result, FB_BUFFER_TOO_SMALL);
    assert_int_equal(get.item.value_bytes, 3000);
    get_end(&get);
    /* A range behind the end. */
    get_begin(&get, FB_FEATURE_SHM, 100, 3000, 0);
    node_send_get_done(&get.node, get.op, FB_OK, 3000, GENERATION);
    assert_int_equal(get.item.result, FB_OK);
    assert_int_equal(get.item.bytes, 0);
    get_end(&get);
    /* On a stream DATA that is on its way is skipped. */
    get_begin(&get, 0, 50000, 0, 0);
    chunk(&get, 0, FB_WIRE_CHUNK_DATA, 0, 90000);
    node_data(&get.node, get.op, 0, 0, 45000, false, false);
    node_take(&get.node);
    node_expect(&get.node, FB_MSG_CANCEL);
    node_send_get_done(&get.node, get.op, FB_DEADLINE, 0, 0);
    expect_chunk_done(&get, 0, false);
    assert_int_equal(get.item.result, FB_BUFFER_TOO_SMALL);
    assert_int_equal(get.room[0], 0);
    get_end(&get);
}

static void misses_have_reasons(void **state)
{
    (void)state;
    struct get get;
    get_begin(&get, FB_FEATURE_SHM, 100, 0, 0);
    struct fb_msg_get_done done = {.result = FB_MISS, .reason = FB_REASON_RECLAIMED_SSD};
    NODE_SEND(&get.node, get_done, FB_MSG_GET_DONE, 0, get.op, &done);
    assert_int_equal(get.item.result, FB_MISS);
    assert_int_equal(get.item.reason, FB_REASON_RECLAIMED_SSD);
    get_end(&get);
}

static void chunks_that_are_not_sound(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 7; i++) {
        struct get get;
        uint64_t features = i == 5 ? 0 : FB_FEATURE_SHM;
        get_begin(&get, features, 300000, 0, 0);
        uint8_t runs[FB_WIRE_RUN_BYTES];
        struct fb_writer writer;
        fb_writer_init(&writer, runs, sizeof(runs));
        struct fb_wire_run run = {.off = i == 0 ? NODE_POOL_BYTES - 4096 : 0,
                                  .len = i == 1 ? 4096 : 300000};
        fb_wire_run_encode(&writer, &run);
        struct fb_msg_chunk bad = {
            .verified = 1,
            .part = i == 2 ? 1 : 0,
            .part_bytes = i == 3 ? 200000 : 300000,
            .want_off = i == 4 ? 4 : 0,
            .want_bytes = i == 4 ? 299996 : 300000,
            .value_bytes = 300000,
            .generation = GENERATION,
            .run_count = 1,
            .runs = runs,
        };
        if (i == 3)
            bad.want_bytes = 200000;
        if (i == 6) {
            bad.mode = FB_WIRE_CHUNK_DATA;
            bad.run_count = 0;
        }
        NODE_SEND(&get.node, chunk, FB_MSG_CHUNK, 0, get.op, &bad);
        assert_int_equal(node_jobs(&get.node), 0);
        expect_breach(&get);
    }
}

/* The deadline passes while a copy runs: the memory is given back when it has ended, not before. */
static void deadline_with_a_copy_under_way(void **state)
{
    (void)state;
    struct get get;
    struct fb_proto_job job;
    get_begin(&get, FB_FEATURE_SHM, 4096, 0, 0);
    chunk(&get, 0, FB_WIRE_CHUNK_RUNS, 0, 4096);
    assert_true(fb_proto_client_take_job(get.node.client, &job));
    get.node.now_ns += NODE_DEADLINE_NS;
    fb_proto_client_tick(get.node.client, get.node.now_ns);
    node_take(&get.node);
    node_expect(&get.node, FB_MSG_CANCEL);
    node_send_get_done(&get.node, get.op, FB_DEADLINE, 0, 0);
    node_take(&get.node);
    node_expect_nothing(&get.node);
    assert_false(fb_proto_call_is_over(&get.call));
    fb_proto_client_job_done(get.node.client, get.node.now_ns, &job, NULL, false);
    assert_true(fb_proto_call_is_over(&get.call));
    assert_int_equal(get.item.result, FB_DEADLINE);
    expect_chunk_done(&get, 0, false);
    assert_int_equal(fb_proto_client_open_ops(get.node.client), 0);
    get_end(&get);
}

/* All bytes are there and checked, only the last word is missing when the time is over. */
static void whole_without_a_last_word(void **state)
{
    (void)state;
    struct get get;
    get_begin(&get, FB_FEATURE_SHM, 5000, 0, 0);
    chunk(&get, 0, FB_WIRE_CHUNK_RUNS, 0, 5000);
    node_jobs(&get.node);
    get.node.now_ns += NODE_DEADLINE_NS;
    fb_proto_client_tick(get.node.client, get.node.now_ns);
    get.node.now_ns += FB_PROTO_ABORT_NS;
    fb_proto_client_tick(get.node.client, get.node.now_ns);
    assert_true(fb_proto_call_is_over(&get.call));
    assert_int_equal(get.item.result, FB_OK);
    assert_int_equal(get.item.bytes, 5000);
    get_end(&get);
}

/* After a call without answers: what still comes is taken and dropped, and the memory given back.
 */
static void chunks_for_nobody(void **state)
{
    (void)state;
    for (unsigned stream = 0; stream < 2; stream++) {
        struct get get;
        get_begin(&get, stream != 0 ? 0 : FB_FEATURE_SHM, 90000, 0, 0);
        get.node.now_ns += NODE_DEADLINE_NS;
        fb_proto_client_tick(get.node.client, get.node.now_ns);
        get.node.now_ns += FB_PROTO_ABORT_NS;
        fb_proto_client_tick(get.node.client, get.node.now_ns);
        assert_true(fb_proto_call_is_over(&get.call));
        assert_int_equal(get.item.result, FB_DEADLINE);
        node_take(&get.node);
        node_expect(&get.node, FB_MSG_CANCEL);
        if (stream != 0) {
            chunk(&get, 0, FB_WIRE_CHUNK_DATA, 0, 90000);
            data(&get, 0, 90000, false);
        } else {
            chunk(&get, 0, FB_WIRE_CHUNK_RUNS, 0, 90000);
            assert_int_equal(node_jobs(&get.node), 0);
        }
        expect_chunk_done(&get, 0, false);
        node_send_get_done(&get.node, get.op, FB_OK, 90000, GENERATION);
        assert_int_equal(fb_proto_client_open_ops(get.node.client), 0);
        assert_int_equal(get.room[5], 0);
        assert_int_equal(get.item.result, FB_DEADLINE);
        get_end(&get);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(from_shared_memory),
        cmocka_unit_test(ranges_from_shared_memory),
        cmocka_unit_test(inline_bytes),
        cmocka_unit_test(from_a_stream),
        cmocka_unit_test(a_range_from_a_stream),
        cmocka_unit_test(a_damaged_frame_of_a_stream),
        cmocka_unit_test(data_out_of_place),
        cmocka_unit_test(bytes_of_something_else),
        cmocka_unit_test(a_mixture_of_two_values),
        cmocka_unit_test(a_part_is_missing_or_comes_twice),
        cmocka_unit_test(buffers_that_do_not_fit),
        cmocka_unit_test(misses_have_reasons),
        cmocka_unit_test(chunks_that_are_not_sound),
        cmocka_unit_test(deadline_with_a_copy_under_way),
        cmocka_unit_test(whole_without_a_last_word),
        cmocka_unit_test(chunks_for_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
