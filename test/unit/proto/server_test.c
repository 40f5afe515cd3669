/*
 * The node's side of a session, against a fake shard that does what it is told: the start of a
 * connection and its refusals; puts over shared memory, over a stream and inline, each with a
 * revoked grant and with wrong leaves; other requests; the end with and without proof.
 *
 * Cannot show: what a real shard decides, and when (engine tests, simulator), nor sockets.
 */
#include "server_harness.h"

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
        STREAM(test_other_requests),
        SHM(test_end_without_proof),
        SHM(test_the_next_connection_says_that_memory_is_left),
        STREAM(test_end_in_the_middle_of_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
