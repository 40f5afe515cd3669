/*
 * Gets on the node's side of a session, by runs, inline and by DATA, whole and in ranges, with bad
 * chunks and cancelled in the middle; the window of pinned bytes; credits, and input that pauses
 * and goes on.
 *
 * Cannot show: what a real shard decides, and when (engine tests, simulator), nor sockets.
 */
#include "server_harness.h"

/* ---- gets ---- */

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
        uint64_t done;
        assert_true(fb_proto_session_owes_chunks(session, &done));
        assert_int_equal(done, chunk.value_off / FAKE_CHUNK_BYTES);
        send_chunk_done(6, chunk.slot, false);
    }
    assert_int_equal(EXPECT(GET_DONE, get_done, 6).result, FB_OK);
    assert_int_equal(fake.chunk_releases, 6);
    uint64_t all;
    assert_false(fb_proto_session_owes_chunks(session, &all));
    assert_int_equal(all, 6);
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
    fake.pool[fb_wire_run_at(first.runs, 0).off] ^= 1; /* it is bad here too */
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

static void test_misread_chunk_costs_no_value(void **state)
{
    (void)state;
    start();
    fill_value(15);
    uint64_t bytes = 2 * FAKE_CHUNK_BYTES - 5;
    send_put(5, "a", bytes, NULL, 0);
    send_commit(5, fill_grant(5, bytes), bytes);
    EXPECT(PUT_DONE, put_done, 5);
    send_get(6, "a", 0, UINT64_MAX);
    struct fb_msg_chunk first = EXPECT(CHUNK, chunk, 6);
    struct fb_msg_chunk second = EXPECT(CHUNK, chunk, 6);
    send_chunk_done(6, second.slot, true); /* the reader is wrong */
    struct fb_msg_get_done done = EXPECT(GET_DONE, get_done, 6);
    assert_true(done.result == FB_MISS && done.reason == FB_REASON_BAD_CHECKSUM);
    assert_int_equal(fake.bad_releases, 0);
    send_chunk_done(6, first.slot, true); /* late: nothing is asked any more */
    assert_int_equal(fake.bad_releases, 0);
    assert_int_equal(fb_proto_session_open_ops(session), 0);
    struct fb_proto_server_stats stats;
    fb_proto_server_stats(server, &stats);
    assert_int_equal(stats.misreads, 1);
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
    unsigned of_short = 0, switches = 0;
    uint64_t last = 0;
    struct got got;
    while (of_short < 4 && next(&got)) {
        if (got.header.type != FB_MSG_DATA)
            continue;
        switches += got.header.op != last;
        last = got.header.op;
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
    struct fb_op *ops[FB_PROTO_LISTS_EACH];
    for (unsigned i = 0; i < FB_PROTO_LISTS_EACH; i++) {
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
    for (unsigned i = 0; i < FB_PROTO_LISTS_EACH; i++)
        if (i != 3)
            fake_finish(ops[i], FB_OK, 0);
    fake_finish(fake.last_op, FB_OK, 0);
    for (unsigned i = 0; i < FB_PROTO_LISTS_EACH; i++) {
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        SHM(test_get_over_shared_memory),
        STREAM(test_get_over_a_stream),
        STREAM(test_ranges_over_a_stream),
        SHM(test_bad_chunk),
        SHM(test_misread_chunk_costs_no_value),
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
