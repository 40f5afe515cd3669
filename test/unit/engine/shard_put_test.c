/*
 * Covers who gets to write: duplicates, waiters, clients that stop, die, come late or lie at each
 * step of a put; waiting for space, its order, its limits and its deadlines; batches that would
 * deadlock a store that gives half of what is asked. The table of attempts itself is searched in
 * test/model/attempt_test.c.
 */
#include <string.h>

#include "base/bug.h"
#include "test/lib/cm.h"
#include "test/lib/shard_stand.h"

#define KIB(n) FB_KIB(n)

static void open_stand(struct stand *stand, bool device)
{
    memset(stand, 0, sizeof(*stand));
    stand->config.devices = device;
    stand->config.log.capacity_bytes = FB_MIB(64);
    stand->audits = true;
    stand_open(stand);
}

static void gone(struct stand *stand, unsigned peer, bool proven)
{
    fb_shard_peer_gone(stand->shard, stand->now_ns, &stand->peers[peer], proven);
    stand_pump(stand);
}

/* ---- duplicates ---- */

static void test_a_duplicate_waits_and_exists(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand, true);
    struct stand_op *writer =
        stand_put_as(&stand, STAND_STOPPED, 0, 1, 5000, 0, FB_PERSIST_DEFAULT);
    struct stand_op *waiters[8];
    for (unsigned i = 0; i < 8; i++)
        waiters[i] = stand_put(&stand, i + 1, 1, 5000, 0, FB_PERSIST_DEFAULT);
    struct fb_shard_stats stats = stand_stats(&stand);
    assert_int_equal(stats.reserved_bytes, 8192);
    assert_int_equal(stats.put_waited_key, 8);
    assert_int_equal(stand_must_miss(&stand, 1), FB_REASON_BEING_WRITTEN);
    uint64_t version = writer->version;
    stand_go_on(&stand, writer);
    assert_int_equal(stand_end(&stand, writer), FB_OK);
    for (unsigned i = 0; i < 8; i++) {
        assert_int_equal(stand_end(&stand, waiters[i]), FB_EXISTS);
        assert_false(waiters[i]->granted);
        assert_int_equal(waiters[i]->op.generation, writer->op.generation);
    }
    stand_must_get(&stand, 1, version);
    stand_close(&stand);
}

static void test_the_first_waiter_follows_a_dead_writer(void **state)
{
    (void)state;
    for (int proven = 0; proven < 2; proven++) {
        static struct stand stand;
        open_stand(&stand, true);
        struct stand_op *writer =
            stand_put_as(&stand, STAND_STOPPED, 0, 1, KIB(64), 0, FB_PERSIST_DEFAULT);
        struct stand_op *first =
            stand_put_as(&stand, STAND_STOPPED, 1, 1, KIB(64), 0, FB_PERSIST_DEFAULT);
        struct stand_op *second = stand_put(&stand, 2, 1, KIB(64), 0, FB_PERSIST_DEFAULT);
        gone(&stand, 0, proven);
        assert_true(writer->done);
        assert_int_equal(writer->op.result, FB_CONNECTION);
        assert_int_equal(stand_stats(&stand).quarantine_bytes, proven ? 0 : KIB(64));
        assert_int_equal(writer->closed, proven);
        assert_true(first->granted && !second->granted);
        assert_true(first->op.generation > writer->op.generation);
        stand_go_on(&stand, first);
        assert_int_equal(stand_end(&stand, first), FB_OK);
        assert_int_equal(stand_end(&stand, second), FB_EXISTS);
        gone(&stand, 0, true);
        assert_true(writer->closed && fb_shard_peer_idle(&stand.peers[0]));
        stand_must_get(&stand, 1, first->version);
        stand_close(&stand);
    }
}

static void test_an_upsert_waits_its_turn(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand, true);
    struct stand_op *writer =
        stand_put_as(&stand, STAND_STOPPED, 0, 1, 5000, 0, FB_PERSIST_DEFAULT);
    struct stand_op *upsert = stand_put(&stand, 1, 1, 9000, FB_PUT_UPSERT, FB_PERSIST_DEFAULT);
    struct stand_op *plain = stand_put(&stand, 2, 1, 5000, 0, FB_PERSIST_DEFAULT);
    assert_false(upsert->granted);
    stand_go_on(&stand, writer);
    assert_int_equal(stand_end(&stand, upsert), FB_OK);
    assert_int_equal(stand_end(&stand, plain), FB_EXISTS);
    assert_true(upsert->op.generation > writer->op.generation);
    stand_must_get(&stand, 1, upsert->version);
    stand_close(&stand);
}

static void test_the_same_key_twice_from_one_peer(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand, true);
    struct stand_op *ops[6];
    for (unsigned i = 0; i < 6; i++)
        ops[i] = stand_put(&stand, 0, i / 2, 5000, 0, FB_PERSIST_DEFAULT);
    for (unsigned i = 0; i < 6; i++)
        assert_int_equal(stand_end(&stand, ops[i]), i % 2 == 0 ? FB_OK : FB_EXISTS);
    stand_close(&stand);
}

/* A peer whose waiters wait for its own writer goes: all of them end, and nobody else's. */
static void test_a_peer_goes_with_writer_and_waiters(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand, true);
    struct stand_op *mine[4];
    for (unsigned i = 0; i < 4; i++)
        mine[i] = stand_put_as(&stand, STAND_STOPPED, 0, 1, 5000, 0, FB_PERSIST_DEFAULT);
    struct stand_op *other = stand_put(&stand, 1, 1, 5000, 0, FB_PERSIST_DEFAULT);
    gone(&stand, 0, true);
    for (unsigned i = 0; i < 4; i++)
        assert_true(mine[i]->closed && mine[i]->op.result == FB_CONNECTION);
    assert_int_equal(stand_end(&stand, other), FB_OK);
    stand_close(&stand);
}

/* ---- clients that come late ---- */

static void test_expiry_revokes_and_keeps_the_memory(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand, true);
    struct stand_op *writer =
        stand_put_as(&stand, STAND_STOPPED, 0, 1, KIB(32), 0, FB_PERSIST_DEFAULT);
    struct stand_op *waiter = stand_put(&stand, 1, 1, KIB(32), 0, FB_PERSIST_DEFAULT);
    stand_run(&stand, 4 * FB_SEC_NS);
    fb_shard_put_progress(stand.shard, stand.now_ns, &writer->op);
    stand_run(&stand, 4 * FB_SEC_NS);
    assert_false(writer->done);
    stand_run(&stand, 2 * FB_SEC_NS);
    assert_true(writer->done && !writer->closed);
    assert_int_equal(writer->op.result, FB_GRANT_EXPIRED);
    assert_int_equal(writer->op.reason, FB_REASON_GRANT_EXPIRED);
    assert_int_equal(stand_stats(&stand).quarantine_bytes, KIB(32));
    assert_int_equal(stand_end(&stand, waiter), FB_OK);
    /* The late commit is answered, and installs nothing. */
    stand_go_on(&stand, writer);
    assert_true(writer->closed);
    struct fb_shard_stats stats = stand_stats(&stand);
    assert_int_equal(stats.quarantine_bytes, 0);
    assert_int_equal(stats.late_commits, 1);
    assert_int_equal(stats.grants_expired, 1);
    stand_must_get(&stand, 1, waiter->version);
    stand_close(&stand);
}

static void test_a_deadline_ends_a_put_in_every_state(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand, false);
    stand.deadline_ns = FB_SEC_NS;
    struct stand_op *writer =
        stand_put_as(&stand, STAND_STOPPED, 0, 1, FB_MIB(3), 0, FB_PERSIST_DEFAULT);
    struct stand_op *waiter = stand_put(&stand, 1, 1, 5000, 0, FB_PERSIST_DEFAULT);
    struct stand_op *holder =
        stand_put_as(&stand, STAND_STOPPED, 2, 2, FB_MIB(3), 0, FB_PERSIST_DEFAULT);
    struct stand_op *queued = stand_put(&stand, 3, 3, FB_MIB(3), 0, FB_PERSIST_DEFAULT);
    assert_true(writer->granted && holder->granted && !queued->granted);
    stand_run(&stand, FB_SEC_NS + 2 * FB_MS_NS);
    struct stand_op *ops[] = {writer, waiter, holder, queued};
    for (unsigned i = 0; i < 4; i++) {
        assert_true(ops[i]->done);
        assert_int_equal(ops[i]->op.result, FB_DEADLINE);
        assert_true(ops[i]->done_ns <= ops[i]->op.deadline_ns + 2 * FB_MS_NS);
    }
    assert_true(waiter->closed && queued->closed && !writer->closed && !holder->closed);
    assert_int_equal(stand_stats(&stand).quarantine_bytes, FB_MIB(6));
    gone(&stand, 0, true);
    gone(&stand, 2, true);
    assert_int_equal(stand_stats(&stand).quarantine_bytes, 0);
    stand_close(&stand);
}

static void test_cancel_in_every_state(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand, false);
    struct stand_op *writer =
        stand_put_as(&stand, STAND_STOPPED, 0, 1, FB_MIB(3), 0, FB_PERSIST_DEFAULT);
    struct stand_op *waiter = stand_put(&stand, 1, 1, 5000, 0, FB_PERSIST_DEFAULT);
    struct stand_op *holder =
        stand_put_as(&stand, STAND_STOPPED, 2, 2, FB_MIB(3), 0, FB_PERSIST_DEFAULT);
    struct stand_op *queued = stand_put(&stand, 3, 3, FB_MIB(3), 0, FB_PERSIST_DEFAULT);
    struct stand_op *ops[] = {queued, waiter, writer, holder};
    for (unsigned i = 0; i < 4; i++) {
        fb_shard_cancel(stand.shard, stand.now_ns, &ops[i]->op);
        stand_pump(&stand);
        assert_int_equal(ops[i]->op.result, FB_DEADLINE);
        fb_shard_cancel(stand.shard, stand.now_ns, &ops[i]->op);
    }
    fb_shard_put_release(stand.shard, stand.now_ns, &writer->op);
    fb_shard_put_release(stand.shard, stand.now_ns, &holder->op);
    stand_pump(&stand);
    for (unsigned i = 0; i < 4; i++)
        assert_true(ops[i]->closed);
    stand_close(&stand);
}

static void test_a_release_gives_a_grant_up(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand, false);
    struct stand_op *writer =
        stand_put_as(&stand, STAND_STOPPED, 0, 1, 5000, 0, FB_PERSIST_DEFAULT);
    struct stand_op *waiter = stand_put(&stand, 1, 1, 5000, 0, FB_PERSIST_DEFAULT);
    fb_shard_put_release(stand.shard, stand.now_ns, &writer->op);
    stand_pump(&stand);
    assert_true(writer->closed);
    assert_int_equal(writer->op.result, FB_DEADLINE);
    assert_int_equal(stand_end(&stand, waiter), FB_OK);
    stand_close(&stand);
}

static void test_a_commit_of_another_grant_is_late(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand, false);
    struct stand_op *writer =
        stand_put_as(&stand, STAND_STOPPED, 0, 1, 5000, 0, FB_PERSIST_DEFAULT);
    uint64_t root = 1;
    fb_shard_put_commit(stand.shard, stand.now_ns, &writer->op, writer->op.generation + 1, &root,
                        1);
    stand_pump(&stand);
    assert_false(writer->done);
    assert_int_equal(stand_stats(&stand).late_commits, 1);
    /* With the wrong number of roots it is given up. */
    uint64_t roots[2] = {1, 2};
    fb_shard_put_commit(stand.shard, stand.now_ns, &writer->op, writer->op.generation, roots, 2);
    stand_pump(&stand);
    assert_int_equal(stand_end(&stand, writer), FB_BAD_ARGUMENT);
    stand_close(&stand);
}

static void test_a_remove_kills_the_attempt_in_flight(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand, true);
    struct stand_op *writer =
        stand_put_as(&stand, STAND_STOPPED, 0, 1, 5000, 0, FB_PERSIST_DEFAULT);
    struct stand_op *waiter = stand_put(&stand, 1, 1, 5000, 0, FB_PERSIST_DEFAULT);
    assert_int_equal(stand_end(&stand, stand_start(&stand, FB_OP_REMOVE, 2, 1)), FB_OK);
    assert_true(writer->done && !writer->closed);
    assert_int_equal(writer->op.result, FB_REMOVED);
    assert_int_equal(stand_end(&stand, waiter), FB_OK);
    stand_go_on(&stand, writer);
    assert_true(writer->closed);
    stand_must_get(&stand, 1, waiter->version);
    stand_close(&stand);
}

/* A client that lies about its bytes hurts only its own key. */
static void test_a_liar_is_found_before_its_bytes_are_used(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand, true);
    uint64_t honest = stand_must_put(&stand, 2, 5000);
    struct stand_op *liar = stand_put_as(&stand, STAND_LYING, 0, 1, 5000, 0, FB_PERSIST_DEFAULT);
    assert_int_equal(stand_end(&stand, liar), FB_OK);
    stand_settle(&stand);
    assert_int_equal(stand_must_miss(&stand, 1), FB_REASON_BAD_CHECKSUM);
    stand_must_get(&stand, 2, honest);
    struct fb_shard_stats stats = stand_stats(&stand);
    assert_int_equal(stats.checksum_failures, 1);
    assert_int_equal(stand_log_stats(&stand).items_durable, 1);
    struct stand_op *through = stand_put_as(&stand, STAND_LYING, 0, 3, 5000, 0, FB_PERSIST_THROUGH);
    assert_int_equal(stand_end(&stand, through), FB_BAD_CHECKSUM);
    stand_close(&stand);
}

/* Bytes that came over a stream and were not those of their checksums: the put says so, the
 * counters say the same, and its memory is free. */
static void test_a_mismatch_is_counted_as_what_it_is(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand, true);
    struct stand_op *put = stand_put_as(&stand, STAND_STOPPED, 0, 1, 5000, 0, FB_PERSIST_DEFAULT);
    stand_pump(&stand);
    assert_true(put->granted);
    fb_shard_put_mismatch(stand.shard, stand.now_ns, &put->op);
    assert_int_equal(stand_end(&stand, put), FB_BAD_CHECKSUM);
    struct fb_shard_stats stats = stand_stats(&stand);
    assert_int_equal(stats.put_results[fb_result_index(FB_BAD_CHECKSUM)], 1);
    assert_int_equal(stats.put_results[fb_result_index(FB_DEADLINE)], 0);
    assert_int_equal(stats.reserved_bytes, 0);
    assert_int_equal(stand_must_miss(&stand, 1), FB_REASON_BAD_CHECKSUM);
    stand_close(&stand);
}

/* ---- space ---- */

static void test_more_than_the_pool_in_one_go(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand, true);
    stand.audits = false;
    enum {
        COUNT = 1024
    };
    static struct stand_op *ops[COUNT];
    uint64_t versions[COUNT];
    for (unsigned i = 0; i < COUNT; i++) {
        ops[i] = stand_put(&stand, i % 4, i, KIB(32), 0, FB_PERSIST_DEFAULT);
        versions[i] = ops[i]->version;
    }
    for (unsigned i = 0; i < COUNT; i++)
        assert_int_equal(stand_end(&stand, ops[i]), FB_OK);
    for (unsigned i = 0; i < COUNT; i++)
        stand_must_get(&stand, i, versions[i]);
    assert_true(stand_stats(&stand).get_hits_ssd > COUNT / 2);
    assert_true(stand_stats(&stand).put_waited_space > 0);
    stand_close(&stand);
}

static void test_two_thirds_of_the_pool_each(void **state)
{
    (void)state;
    for (int device = 0; device < 2; device++) {
        static struct stand stand;
        open_stand(&stand, device);
        uint64_t bytes = fb_shard_value_bytes_max(stand.shard) * 2 / 3;
        struct stand_op *a =
            stand_put_as(&stand, STAND_STOPPED, 0, 1, bytes, 0, FB_PERSIST_DEFAULT);
        struct stand_op *b = stand_put(&stand, 1, 2, bytes, 0, FB_PERSIST_DEFAULT);
        assert_true(a->granted && !b->granted);
        stand_go_on(&stand, a);
        assert_int_equal(stand_end(&stand, a), FB_OK);
        assert_int_equal(stand_end(&stand, b), FB_OK);
        stand_must_get(&stand, 2, b->version);
        if (device)
            stand_must_get(&stand, 1, a->version);
        stand_close(&stand);
    }
}

/* 32 clients with a batch of one pool each, all keys the same, every other client in opposite
 * order. */
/* What a stopped client keeps can keep a large value out for as long as it may wait; small ones of
 * other clients go by. */
static void test_nobody_waits_behind_what_cannot_be(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand, false);
    uint64_t bytes = fb_shard_value_bytes_max(stand.shard) / 3 * 2;
    stand.deadline_ns = 600 * FB_SEC_NS;
    struct stand_op *stopped =
        stand_put_as(&stand, STAND_STOPPED, 0, 1, bytes, 0, FB_PERSIST_DEFAULT);
    stand_run(&stand, 30 * FB_SEC_NS); /* its grant expires */
    assert_true(stand_stats(&stand).quarantine_bytes >= bytes);
    struct stand_op *large = stand_put(&stand, 1, 2, bytes, 0, FB_PERSIST_DEFAULT);
    for (uint64_t key = 10; key < 30; key++) {
        struct stand_op *small = stand_put(&stand, 2, key, 5000, 0, FB_PERSIST_DEFAULT);
        stand_run(&stand, FB_MS_NS);
        assert_true(small->done);
        assert_int_equal(stand_end(&stand, small), FB_OK);
    }
    assert_false(large->granted);
    stand_go_on(&stand, stopped);
    assert_int_equal(stand_end(&stand, large), FB_OK);
    stand_close(&stand);
}

static void test_batches_in_opposite_order(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand, true);
    stand.audits = false;
    stand.deadline_ns = 300 * FB_SEC_NS;
    enum {
        CLIENTS = 32,
        KEYS = 128
    };
    static struct stand_op *ops[CLIENTS][KEYS];
    for (unsigned c = 0; c < CLIENTS; c++)
        for (unsigned k = 0; k < KEYS; k++)
            ops[c][k] =
                stand_put(&stand, c, c % 2 == 0 ? k : KEYS - 1 - k, KIB(64), 0, FB_PERSIST_DEFAULT);
    unsigned stored = 0;
    for (unsigned c = 0; c < CLIENTS; c++)
        for (unsigned k = 0; k < KEYS; k++) {
            int result = stand_end(&stand, ops[c][k]);
            assert_true(result == FB_OK || result == FB_EXISTS);
            stored += result == FB_OK;
        }
    assert_int_equal(stored, KEYS);
    stand_close(&stand);
}

/* The same without common keys: 32 pools in flight. */
static void test_batches_of_a_pool_each(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand, true);
    stand.audits = false;
    stand.deadline_ns = 300 * FB_SEC_NS;
    enum {
        CLIENTS = 32,
        KEYS = 16
    };
    static struct stand_op *ops[CLIENTS][KEYS];
    for (unsigned c = 0; c < CLIENTS; c++)
        for (unsigned k = 0; k < KEYS; k++)
            ops[c][k] = stand_put(&stand, c, c * KEYS + k, KIB(512), 0, FB_PERSIST_DEFAULT);
    for (unsigned c = 0; c < CLIENTS; c++)
        for (unsigned k = 0; k < KEYS; k++)
            assert_int_equal(stand_end(&stand, ops[c][k]), FB_OK);
    stand_close(&stand);
}

/* 64 writers, four pools in flight: nobody's time from submission to its last grant is more than
 * three times the mean. Half of the writers have large values, the others small ones. */
static void test_fairness(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand, true);
    stand.audits = false;
    stand.deadline_ns = 300 * FB_SEC_NS;
    enum {
        WRITERS = 64
    };
    uint64_t each = stand.config.pool_bytes * 4 / WRITERS;
    static struct stand_op *ops[WRITERS][64];
    unsigned counts[WRITERS];
    for (unsigned w = 0; w < WRITERS; w++) {
        uint64_t bytes = w % 2 == 0 ? KIB(16) : KIB(256);
        counts[w] = (unsigned)(each / bytes);
        for (unsigned i = 0; i < counts[w]; i++)
            ops[w][i] = stand_put(&stand, w, w * 64 + i, bytes, 0, FB_PERSIST_DEFAULT);
    }
    uint64_t sum = 0;
    uint64_t worst = 0;
    for (unsigned w = 0; w < WRITERS; w++) {
        uint64_t last = 0;
        for (unsigned i = 0; i < counts[w]; i++) {
            assert_int_equal(stand_end(&stand, ops[w][i]), FB_OK);
            uint64_t took = ops[w][i]->granted_ns - ops[w][i]->start_ns;
            last = took > last ? took : last;
        }
        sum += last;
        worst = last > worst ? last : worst;
    }
    print_message("last grant: mean %llu us, worst %llu us\n",
                  (unsigned long long)(sum / WRITERS / 1000), (unsigned long long)(worst / 1000));
    assert_true(worst <= 3 * (sum / WRITERS));
    stand_close(&stand);
}

/* A newcomer with one small value is served long before a flood that was there first. */
static void test_a_flood_does_not_keep_others_out(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand, true);
    stand.audits = false;
    enum {
        COUNT = 2048
    };
    static struct stand_op *flood[COUNT];
    for (unsigned i = 0; i < COUNT; i++)
        flood[i] = stand_put(&stand, 0, i, KIB(32), 0, FB_PERSIST_DEFAULT);
    struct stand_op *small = stand_put(&stand, 1, 99999, 5000, 0, FB_PERSIST_DEFAULT);
    assert_int_equal(stand_end(&stand, small), FB_OK);
    unsigned before = 0;
    for (unsigned i = 0; i < COUNT; i++)
        before += flood[i]->granted;
    assert_true(before < COUNT / 3);
    for (unsigned i = 0; i < COUNT; i++)
        assert_int_equal(stand_end(&stand, flood[i]), FB_OK);
    stand_close(&stand);
}

static void test_a_peer_takes_half_at_most(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand, false);
    struct stand_op *greedy[16];
    for (unsigned i = 0; i < 16; i++)
        greedy[i] = stand_put_as(&stand, STAND_STOPPED, 0, i, FB_MIB(1), 0, FB_PERSIST_DEFAULT);
    unsigned granted = 0;
    for (unsigned i = 0; i < 16; i++)
        granted += greedy[i]->granted;
    assert_true(granted >= 2 && granted <= 4);
    struct stand_op *other = stand_put(&stand, 1, 100, FB_MIB(1), 0, FB_PERSIST_DEFAULT);
    assert_int_equal(stand_end(&stand, other), FB_OK);
    stand_close(&stand);
}

static void test_the_queue_of_a_peer_is_bounded(void **state)
{
    (void)state;
    static struct stand stand;
    memset(&stand, 0, sizeof(stand));
    stand.config.peer_waiting_max = 4;
    stand_open(&stand);
    struct stand_op *stopped =
        stand_put_as(&stand, STAND_STOPPED, 0, 0, FB_MIB(4), 0, FB_PERSIST_DEFAULT);
    struct stand_op *ops[8];
    for (unsigned i = 0; i < 8; i++)
        ops[i] = stand_put(&stand, 0, i + 1, FB_MIB(4), 0, FB_PERSIST_DEFAULT);
    for (unsigned i = 4; i < 8; i++)
        assert_int_equal(stand_end(&stand, ops[i]), FB_BUSY);
    stand_go_on(&stand, stopped);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(stand_end(&stand, ops[i]), FB_OK);
    stand_close(&stand);
}

static void test_only_faulted_memory_is_granted(void **state)
{
    (void)state;
    static struct stand stand;
    memset(&stand, 0, sizeof(stand));
    stand_open(&stand);
    /* A second shard by hand: nothing is faulted at first. */
    struct fb_region region;
    fb_region_init(&region, stand.memory, stand.memory_bytes);
    stand.shard = fb_shard_init(&stand.config, &region, stand.meta);
    fb_shard_start(stand.shard, stand.now_ns, 0, false);
    for (unsigned i = 0; i < STAND_PEERS; i++)
        fb_shard_peer_open(stand.shard, &stand.peers[i]);
    struct stand_op *op = stand_prepare(&stand, FB_OP_NAMESPACE, 0, 0);
    op->op.ns_fields = "stand";
    op->op.ns_fields_bytes = 3;
    stand_go(&stand, op);
    assert_int_equal(stand_end(&stand, op), FB_OK);
    stand.epoch = op->op.epoch;
    struct stand_op *put = stand_put(&stand, 0, 1, 5000, 0, FB_PERSIST_DEFAULT);
    assert_false(put->granted);
    fb_shard_pool_faulted(stand.shard, FB_MIB(4));
    stand_pump(&stand);
    assert_true(put->granted);
    assert_int_equal(stand_end(&stand, put), FB_OK);
    /* More than there is: it waits for the rest of the pool, and takes nothing from others. */
    struct stand_op *first = stand_put(&stand, 0, 2, FB_MIB(2), 0, FB_PERSIST_OFF);
    assert_int_equal(stand_end(&stand, first), FB_OK);
    struct stand_op *more = stand_put(&stand, 0, 3, FB_MIB(2), 0, FB_PERSIST_OFF);
    stand_run(&stand, FB_MS_NS);
    assert_false(more->granted);
    fb_shard_pool_faulted(stand.shard, FB_MIB(6));
    assert_int_equal(stand_end(&stand, more), FB_OK);
    stand_must_get(&stand, 2, first->version);
    struct stand_op *last = stand_put(&stand, 0, 4, FB_MIB(2), 0, FB_PERSIST_OFF);
    stand_run(&stand, FB_MS_NS);
    assert_false(last->granted);
    /* No more comes: others give way. */
    fb_shard_pool_whole(stand.shard);
    assert_int_equal(stand_end(&stand, last), FB_OK);
    stand_close(&stand);
}

/* ---- planted bugs ---- */

#ifdef FB_TEST_HOOKS
static void test_nowait_breaks_the_promise(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand, true);
    fb_bug_mask = UINT64_C(1) << FB_BUG_BREAK_NOWAIT;
    unsigned busy = 0;
    for (unsigned i = 0; i < 200; i++)
        busy +=
            stand_end(&stand, stand_put(&stand, 0, i, KIB(256), 0, FB_PERSIST_DEFAULT)) == FB_BUSY;
    fb_bug_mask = 0;
    assert_true(busy > 0);
    stand_close(&stand);
}

static void test_a_forgotten_waiter_hangs(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand, true);
    stand.audits = false; /* the audit finds it at once */
    fb_bug_mask = UINT64_C(1) << FB_BUG_WAITER_NOT_FREED;
    stand_put_as(&stand, STAND_STOPPED, 0, 1, 5000, 0, FB_PERSIST_DEFAULT);
    struct stand_op *waiter = stand_put(&stand, 1, 1, 5000, 0, FB_PERSIST_DEFAULT);
    gone(&stand, 0, true);
    assert_int_equal(stand_end(&stand, waiter), FB_DEADLINE);
    fb_bug_mask = 0;
    stand_close(&stand);
}

static void test_a_stale_attempt_puts_its_bytes_in(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand, false);
    struct stand_op *writer =
        stand_put_as(&stand, STAND_STOPPED, 0, 1, 5000, 0, FB_PERSIST_DEFAULT);
    struct stand_op *waiter = stand_put(&stand, 1, 1, 5000, 0, FB_PERSIST_DEFAULT);
    stand_run(&stand, 6 * FB_SEC_NS);
    assert_int_equal(stand_end(&stand, waiter), FB_OK);
    uint64_t stale = writer->version;
    fb_bug_mask = UINT64_C(1) << FB_BUG_STALE_ATTEMPT_ACCEPTED;
    stand_go_on(&stand, writer);
    fb_bug_mask = 0;
    stand_must_get(&stand, 1, stale);
    stand_close(&stand);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_duplicate_waits_and_exists),
        cmocka_unit_test(test_the_first_waiter_follows_a_dead_writer),
        cmocka_unit_test(test_an_upsert_waits_its_turn),
        cmocka_unit_test(test_the_same_key_twice_from_one_peer),
        cmocka_unit_test(test_a_peer_goes_with_writer_and_waiters),
        cmocka_unit_test(test_expiry_revokes_and_keeps_the_memory),
        cmocka_unit_test(test_a_deadline_ends_a_put_in_every_state),
        cmocka_unit_test(test_cancel_in_every_state),
        cmocka_unit_test(test_a_release_gives_a_grant_up),
        cmocka_unit_test(test_a_commit_of_another_grant_is_late),
        cmocka_unit_test(test_a_remove_kills_the_attempt_in_flight),
        cmocka_unit_test(test_a_liar_is_found_before_its_bytes_are_used),
        cmocka_unit_test(test_a_mismatch_is_counted_as_what_it_is),
        cmocka_unit_test(test_more_than_the_pool_in_one_go),
        cmocka_unit_test(test_two_thirds_of_the_pool_each),
        cmocka_unit_test(test_nobody_waits_behind_what_cannot_be),
        cmocka_unit_test(test_batches_in_opposite_order),
        cmocka_unit_test(test_batches_of_a_pool_each),
        cmocka_unit_test(test_fairness),
        cmocka_unit_test(test_a_flood_does_not_keep_others_out),
        cmocka_unit_test(test_a_peer_takes_half_at_most),
        cmocka_unit_test(test_the_queue_of_a_peer_is_bounded),
        cmocka_unit_test(test_only_faulted_memory_is_granted),
#ifdef FB_TEST_HOOKS
        cmocka_unit_test(test_nowait_breaks_the_promise),
        cmocka_unit_test(test_a_forgotten_waiter_hangs),
        cmocka_unit_test(test_a_stale_attempt_puts_its_bytes_in),
#endif
    };
    return cmocka_run_group_tests_name("shard_put", tests, NULL, NULL);
}
