/*
 * What one session can take from the others. Covers: the lists that lookups, listings and openings
 * need, held by a session whose operations last, and by one that does not read its answers; and the
 * part of the pool that all readers together may have pinned.
 *
 * Cannot show: how long a connection that does not read is kept (the node cuts it).
 */
#include "server_harness.h"

/* ---- two sessions of one server ---- */

static struct fb_proto_session *other;
static void *other_memory;

static void swap_sessions(void)
{
    struct fb_proto_session *was = session;
    session = other;
    other = was;
}

/* Opens a second session and lets the helpers act for it. */
static void open_other(void)
{
    other = open_session(2, false, &other_memory);
    swap_sessions();
    start();
}

static void close_other(void)
{
    swap_sessions();
    fb_proto_session_end(other, now, true);
    fb_proto_server_pump(server, now);
    assert_true(fb_proto_session_is_idle(other));
    fb_proto_session_fini(other);
    free(other_memory);
    other = NULL;
}

/* Gives the session a lookup; returns false if it was not taken. */
static bool try_lookup(uint64_t op, uint32_t count)
{
    static uint8_t digests[FB_WIRE_DIGESTS_MAX * FB_WIRE_DIGEST_BYTES];
    struct fb_msg_lookup lookup = {.ns = NS, .epoch = EPOCH, .count = count, .digests = digests};
    begin();
    fb_wire_lookup_encode(&writer, &lookup);
    fb_wire_frame_end(&writer, 0, FB_MSG_LOOKUP, 0, op, MAP);
    return feed(frame_room, writer.at_bytes) == writer.at_bytes;
}

static void test_one_session_has_its_share_of_the_lists(void **state)
{
    (void)state;
    start();
    fake.hold_ops = true;
    struct fb_op *ops[FB_PROTO_LISTS_EACH];
    for (unsigned i = 0; i < FB_PROTO_LISTS_EACH; i++) {
        assert_true(try_lookup(10 + i, 8192));
        ops[i] = fake.last_op;
    }
    assert_false(try_lookup(99, 1));
    assert_true(fb_proto_session_is_paused(session));
    fake.hold_ops = false;
    open_other();
    assert_true(try_lookup(10, 8192));
    struct fb_msg_lookup_done done = EXPECT(LOOKUP_DONE, lookup_done, 10);
    assert_int_equal(done.count, 8192);
    close_other();
    for (unsigned i = 0; i < FB_PROTO_LISTS_EACH; i++)
        fake_finish(ops[i], FB_OK, 0);
    for (unsigned i = 0; i < FB_PROTO_LISTS_EACH; i++)
        (void)EXPECT(LOOKUP_DONE, lookup_done, 10 + i);
    assert_true(try_lookup(99, 1));
    (void)EXPECT(LOOKUP_DONE, lookup_done, 99);
}

static void test_who_does_not_read_keeps_no_list(void **state)
{
    (void)state;
    start();
    uint64_t op = 10;
    while (op < 100 && try_lookup(op, 8192))
        op++;
    assert_in_range(op, 12, 20); /* the outbox has 64 KiB */
    assert_true(fb_proto_session_is_paused(session));
    open_other();
    for (uint64_t n = 10; n < 40; n++) {
        assert_true(try_lookup(n, 8192));
        (void)EXPECT(LOOKUP_DONE, lookup_done, n);
    }
    close_other();
    for (uint64_t n = 10; n < op; n++)
        (void)EXPECT(LOOKUP_DONE, lookup_done, n);
    assert_true(try_lookup(op, 8192));
    (void)EXPECT(LOOKUP_DONE, lookup_done, op);
}

/* Starts two gets that fill the window of the session; nobody answers their chunks. */
static void fill_window(void)
{
    send_get(10, "a", 0, UINT64_MAX);
    send_get(11, "a", 0, UINT64_MAX);
}

static void test_readers_who_stop_leave_a_part_of_the_pool(void **state)
{
    (void)state;
    start();
    store("a", 4 * FAKE_CHUNK_BYTES); /* a quarter of the share, half of a window */
    fake.gets_started = 0;
    fill_window();
    struct fb_proto_session *first = session;
    open_other();
    fill_window();
    assert_int_equal(fake.gets_started, 4);
    struct fb_proto_session *second = session;
    void *second_memory = other_memory;
    session = open_session(3, false, &other_memory);
    start();
    /* Who has nothing pinned reads all the same, one value at a time. */
    send_get(10, "a", 0, UINT64_MAX);
    assert_int_equal(fake.gets_started, 5);
    send_get(11, "a", 0, UINT64_MAX);
    assert_int_equal(fake.gets_started, 5);
    assert_true(fb_proto_server_next_ns(server) != 0);
    /* One of those who stopped is gone: there is room. */
    fb_proto_session_end(second, now, true);
    fb_proto_server_pump(server, now);
    assert_int_equal(fb_proto_server_next_ns(server), 0);
    fb_proto_server_tick(server, now);
    assert_int_equal(fake.gets_started, 6);
    fb_proto_session_fini(second);
    free(second_memory);
    other = first;
    close_other();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        STREAM(test_one_session_has_its_share_of_the_lists),
        STREAM(test_who_does_not_read_keeps_no_list),
        STREAM(test_readers_who_stop_leave_a_part_of_the_pool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
