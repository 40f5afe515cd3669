/*
 * Covers a shard without a device (tier OFF): puts and gets of all sizes, eviction, leases and
 * holds, quotas, lookups, ranges, removes, epochs, listing. Every page of every read is checked,
 * and the shard is audited after every event. Cannot cover anything that a device does.
 */
#include <stdlib.h>
#include <string.h>

#include "test/lib/cm.h"
#include "test/lib/shard_stand.h"

static void open_small(struct stand *stand)
{
    memset(stand, 0, sizeof(*stand));
    stand->audits = true;
    stand_open(stand);
}

static void test_put_and_get_of_all_sizes(void **state)
{
    (void)state;
    static struct stand stand;
    open_small(&stand);
    uint64_t chunk = fb_shard_chunk_bytes(stand.shard);
    uint64_t most = fb_shard_value_bytes_max(stand.shard);
    const uint64_t sizes[] = {1,
                              4095,
                              4096,
                              4097,
                              5000,
                              262144,
                              chunk - 1,
                              chunk,
                              chunk + 1,
                              chunk * 2,
                              chunk * 2 + 4097,
                              most - 1,
                              most};
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        uint64_t version = stand_must_put(&stand, i, sizes[i]);
        stand_must_get(&stand, i, version);
    }
    struct stand_op *op = stand_put(&stand, 0, 99, most + 1, 0, FB_PERSIST_DEFAULT);
    assert_int_equal(stand_end(&stand, op), FB_TOO_BIG);
    op = stand_put(&stand, 0, 99, 0, 0, FB_PERSIST_DEFAULT);
    assert_int_equal(stand_end(&stand, op), FB_BAD_ARGUMENT);
    stand_close(&stand);
}

static void test_duplicates_exist(void **state)
{
    (void)state;
    static struct stand stand;
    open_small(&stand);
    uint64_t version = stand_must_put(&stand, 1, 10000);
    struct stand_op *op = stand_put(&stand, 1, 1, 20000, 0, FB_PERSIST_DEFAULT);
    assert_int_equal(stand_end(&stand, op), FB_EXISTS);
    assert_false(op->granted);
    assert_int_equal(op->op.persisted, 0);
    stand_must_get(&stand, 1, version);
    op = stand_put(&stand, 1, 1, 20000, FB_PUT_UPSERT, FB_PERSIST_DEFAULT);
    version = op->version;
    assert_int_equal(stand_end(&stand, op), FB_OK);
    stand_must_get(&stand, 1, version);
    stand_close(&stand);
}

static void test_eviction_is_oldest_first(void **state)
{
    (void)state;
    static struct stand stand;
    open_small(&stand);
    const uint64_t bytes = 256 * 1024;
    uint64_t versions[64];
    for (uint64_t key = 0; key < 64; key++) {
        versions[key] = stand_must_put(&stand, key, bytes);
        stand_run(&stand, FB_SEC_NS);
        if (key >= 4)
            stand_must_get(&stand, 0, versions[0]);
    }
    /* Key 0 was read all the time and is there; the oldest of the others are not. */
    stand_must_get(&stand, 0, versions[0]);
    assert_int_equal(stand_must_miss(&stand, 1), FB_REASON_EVICTED_DRAM);
    stand_must_get(&stand, 63, versions[63]);
    struct fb_shard_stats stats = stand_stats(&stand);
    assert_true(stats.drops[FB_REASON_EVICTED_DRAM] > 30);
    assert_int_equal(stats.put_waited_space, 0);
    struct fb_explain explain;
    struct fb_digest digest = stand_digest(&stand, 1);
    fb_shard_explain(stand.shard, stand.ns, &digest, &explain);
    assert_false(explain.present);
    assert_int_equal(explain.reason, FB_REASON_EVICTED_DRAM);
    stand_close(&stand);
}

static void test_leases_keep_values_in_dram(void **state)
{
    (void)state;
    static struct stand stand;
    open_small(&stand);
    const uint64_t bytes = 512 * 1024;
    uint64_t version = stand_must_put(&stand, 0, bytes);
    unsigned found = stand_look(&stand, 0, 20000, 2);
    assert_int_equal(found, FB_FOUND_READABLE | FB_FOUND_DRAM | FB_FOUND_HELD);
    for (uint64_t key = 1; key < 40; key++)
        stand_must_put(&stand, key, bytes);
    /* Two loads, and after the second the hold ends. */
    for (unsigned load = 0; load < 2; load++) {
        struct stand_op *op = stand_get(&stand, 0, 0, FB_GET_HELD);
        assert_int_equal(stand_end(&stand, op), FB_OK);
        assert_int_equal(op->seen, version);
    }
    stand_run(&stand, 6 * FB_SEC_NS);
    for (uint64_t key = 40; key < 80; key++)
        stand_must_put(&stand, key, bytes);
    assert_int_equal(stand_must_miss(&stand, 0), FB_REASON_EVICTED_DRAM);
    stand_close(&stand);
}

static void test_leases_have_a_share(void **state)
{
    (void)state;
    static struct stand stand;
    open_small(&stand);
    const uint64_t bytes = 512 * 1024;
    unsigned held = 0;
    for (uint64_t key = 0; key < 12; key++) {
        stand_must_put(&stand, key, bytes);
        unsigned found = stand_look(&stand, key, 30000, 1);
        assert_true((found & FB_FOUND_READABLE) != 0);
        held += (found & FB_FOUND_HELD) != 0;
    }
    assert_int_equal(held, 8); /* half of 8 MiB */
    /* With half of the pool held, the other half still takes puts. */
    for (uint64_t key = 100; key < 140; key++)
        stand_must_put(&stand, key, bytes);
    stand_run(&stand, 31 * FB_SEC_NS);
    assert_int_equal(stand_stats(&stand).leased_bytes, 0);
    stand_close(&stand);
}

/* Who asks again and again does not keep a value for ever: after some time the answer is "readable,
 * not held", and once the last hold is over the next begins anew. */
static void test_leases_have_a_total_time(void **state)
{
    (void)state;
    static struct stand stand;
    open_small(&stand);
    stand_must_put(&stand, 0, 100000);
    const uint32_t hold_ms = 60000;
    unsigned held = 0, asked = 0;
    while ((stand_look(&stand, 0, hold_ms, 1) & FB_FOUND_HELD) != 0 && ++asked < 1000) {
        held++;
        stand_run(&stand, hold_ms / 2 * FB_MS_NS);
    }
    assert_in_range(held, 15, 20); /* ten holds, half of each over the one before */
    assert_true((stand_look(&stand, 0, hold_ms, 1) & FB_FOUND_READABLE) != 0);
    stand_run(&stand, hold_ms * FB_MS_NS);
    assert_true((stand_look(&stand, 0, hold_ms, 1) & FB_FOUND_HELD) != 0);
    stand_close(&stand);
}

static void test_holds_are_given_back(void **state)
{
    (void)state;
    static struct stand stand;
    open_small(&stand);
    stand_must_put(&stand, 0, 100000);
    stand_look(&stand, 0, 60000, 3);
    assert_true(stand_stats(&stand).leased_bytes > 0);
    struct stand_op *op = stand_prepare(&stand, FB_OP_HOLD_RELEASE, 0, 0);
    struct fb_digest digest = stand_digest(&stand, 0);
    op->op.digests = &digest;
    op->op.n = 1;
    op->op.hold_loads = 3;
    stand_go(&stand, op);
    assert_int_equal(stand_end(&stand, op), FB_OK);
    stand_run(&stand, FB_SEC_NS);
    assert_int_equal(stand_stats(&stand).leased_bytes, 0);
    stand_close(&stand);
}

/* Short leases get a part of the share only, so that holds can be given beside them. */
static void test_short_leases_leave_room_for_holds(void **state)
{
    (void)state;
    static struct stand stand;
    open_small(&stand);
    const uint64_t bytes = 512 * 1024;
    unsigned leased = 0, held = 0;
    for (uint64_t key = 0; key < 12; key++) {
        stand_must_put(&stand, key, bytes);
        leased += (stand_look(&stand, key, 0, 0) & FB_FOUND_HELD) != 0;
    }
    assert_int_equal(leased, 4); /* a quarter of 8 MiB */
    for (uint64_t key = 0; key < 12; key++)
        held += (stand_look(&stand, key, 30000, 1) & FB_FOUND_HELD) != 0;
    assert_int_equal(held, 8); /* half of 8 MiB */
    stand_close(&stand);
}

/* A hold ends with its last load; a short lease that was promised beside it does not. */
static void test_a_promise_outlives_a_hold(void **state)
{
    (void)state;
    for (unsigned promised = 0; promised < 2; promised++) {
        static struct stand stand;
        open_small(&stand);
        stand_must_put(&stand, 0, 100000);
        if (promised)
            stand_look(&stand, 0, 0, 0);
        stand_look(&stand, 0, 60000, 1);
        struct stand_op *op = stand_get(&stand, 0, 0, FB_GET_HELD);
        assert_int_equal(stand_end(&stand, op), FB_OK);
        stand_run(&stand, FB_SEC_NS);
        assert_int_equal(stand_stats(&stand).leased_bytes > 0, promised);
        stand_run(&stand, 6 * FB_SEC_NS);
        assert_int_equal(stand_stats(&stand).leased_bytes, 0);
        stand_close(&stand);
    }
}

static void test_ranges(void **state)
{
    (void)state;
    static struct stand stand;
    open_small(&stand);
    uint64_t chunk = fb_shard_chunk_bytes(stand.shard);
    uint64_t bytes = chunk * 2 + 5000;
    stand_must_put(&stand, 1, bytes);
    const struct {
        uint64_t off, len, expect;
    } cases[] = {{0, 1, 1},
                 {chunk - 1, 2, 2},
                 {chunk * 2 + 4096, 9999999, 904},
                 {bytes, 5, 0},
                 {bytes + 1000, UINT64_MAX, 0},
                 {4096, 4096, 4096},
                 {0, UINT64_MAX, bytes}};
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct stand_op *op =
            stand_get_range(&stand, STAND_HONEST, 0, 1, cases[i].off, cases[i].len, FB_GET_VERIFY);
        assert_int_equal(stand_end(&stand, op), FB_OK);
        assert_int_equal(op->seen_bytes, cases[i].expect);
        assert_int_equal(op->op.value_bytes, bytes);
    }
    stand_close(&stand);
}

static void test_remove(void **state)
{
    (void)state;
    static struct stand stand;
    open_small(&stand);
    stand_must_put(&stand, 1, 5000);
    assert_int_equal(stand_end(&stand, stand_start(&stand, FB_OP_REMOVE, 0, 1)), FB_OK);
    assert_int_equal(stand_must_miss(&stand, 1), FB_REASON_REMOVED);
    assert_int_equal(stand_end(&stand, stand_start(&stand, FB_OP_REMOVE, 0, 1)), FB_MISS);
    uint64_t version = stand_must_put(&stand, 1, 6000);
    stand_must_get(&stand, 1, version);
    stand_close(&stand);
}

static void test_persistence_is_refused_at_once(void **state)
{
    (void)state;
    static struct stand stand;
    open_small(&stand);
    uint64_t version = stand_must_put(&stand, 1, 5000);
    assert_int_equal(stand_end(&stand, stand_start(&stand, FB_OP_WAIT_PERSISTED, 0, 1)),
                     FB_NOT_PERSISTED);
    assert_int_equal(stand_end(&stand, stand_start(&stand, FB_OP_DROP_DRAM, 0, 1)),
                     FB_NOT_PERSISTED);
    assert_int_equal(stand_end(&stand, stand_start(&stand, FB_OP_WAIT_PERSISTED, 0, 2)), FB_MISS);
    struct stand_op *op = stand_put(&stand, 0, 2, 5000, 0, FB_PERSIST_THROUGH);
    uint64_t through = op->version;
    assert_int_equal(stand_end(&stand, op), FB_NOT_PERSISTED);
    stand_must_get(&stand, 2, through);
    op = stand_put(&stand, 0, 1, 5000, 0, FB_PERSIST_THROUGH);
    assert_int_equal(stand_end(&stand, op), FB_NOT_PERSISTED);
    stand_must_get(&stand, 1, version);
    stand_close(&stand);
}

static void test_epoch_bump(void **state)
{
    (void)state;
    static struct stand stand;
    open_small(&stand);
    for (uint64_t key = 0; key < 20; key++)
        stand_must_put(&stand, key, 20000);
    struct stand_op *stopped =
        stand_put_as(&stand, STAND_STOPPED, 1, 50, 20000, 0, FB_PERSIST_DEFAULT);
    struct stand_op *waiter = stand_put(&stand, 2, 50, 20000, 0, FB_PERSIST_DEFAULT);
    assert_true(stopped->granted && !waiter->done);
    uint64_t old_epoch = stand.epoch;
    stand_bump(&stand);
    assert_int_equal(stand_result(&stand, stopped), FB_STALE_EPOCH);
    assert_int_equal(stand_end(&stand, waiter), FB_STALE_EPOCH);
    stand_go_on(&stand, stopped);
    stand_end(&stand, stopped);
    for (uint64_t key = 0; key < 20; key++)
        stand_must_miss(&stand, key);
    struct stand_op *old = stand_prepare(&stand, FB_OP_GET, 0, 3);
    old->op.epoch = old_epoch;
    stand_go(&stand, old);
    assert_int_equal(stand_end(&stand, old), FB_STALE_EPOCH);
    stand_run(&stand, FB_SEC_NS);
    struct fb_shard_stats stats = stand_stats(&stand);
    assert_int_equal(stats.entries, 0);
    assert_int_equal(stats.drops[FB_REASON_EPOCH_BUMPED], 20);
    uint64_t version = stand_must_put(&stand, 3, 30000);
    stand_must_get(&stand, 3, version);
    stand_close(&stand);
}

/* Opens a second namespace with a quota and points the stand at it. */
static void use_quota(struct stand *stand, uint64_t dram_bytes, uint64_t ssd_bytes)
{
    struct stand_op *op = stand_prepare(stand, FB_OP_NAMESPACE, 0, 0);
    op->op.ns_fields = "other";
    op->op.ns_fields_bytes = 5;
    op->op.ns_quota_dram_bytes = dram_bytes;
    op->op.ns_quota_ssd_bytes = ssd_bytes;
    stand_go(stand, op);
    assert_int_equal(stand_end(stand, op), FB_OK);
    stand->ns = op->op.ns;
    uint8_t secret[16];
    assert_true(fb_shard_namespace(stand->shard, stand->ns, stand->id, secret, &stand->epoch));
    fb_secret_derive(&stand->secret, secret, sizeof(secret));
}

static void test_quota_drops_the_own_oldest(void **state)
{
    (void)state;
    static struct stand stand;
    open_small(&stand);
    uint64_t other = stand_must_put(&stand, 1000, 200000);
    uint16_t first_ns = stand.ns;
    uint8_t first_id[16];
    struct fb_secret first_secret = stand.secret;
    memcpy(first_id, stand.id, sizeof(first_id));
    use_quota(&stand, FB_MIB(1), 0);
    uint64_t versions[40];
    for (uint64_t key = 0; key < 40; key++) {
        versions[key] = stand_must_put(&stand, key, 100000);
        stand_run(&stand, FB_SEC_NS);
    }
    assert_int_equal(stand_must_miss(&stand, 29), FB_REASON_QUOTA);
    for (uint64_t key = 32; key < 40; key++)
        stand_must_get(&stand, key, versions[key]);
    struct stand_op *op = stand_put(&stand, 0, 41, FB_MIB(1) + 1, 0, FB_PERSIST_DEFAULT);
    assert_int_equal(stand_end(&stand, op), FB_QUOTA);
    /* What cannot be dropped makes a put wait, and then says QUOTA. */
    struct stand_op *stopped =
        stand_put_as(&stand, STAND_STOPPED, 1, 42, FB_MIB(1), 0, FB_PERSIST_DEFAULT);
    stand.deadline_ns = 2 * FB_SEC_NS;
    op = stand_put(&stand, 2, 43, 5000, 0, FB_PERSIST_DEFAULT);
    assert_int_equal(stand_end(&stand, op), FB_QUOTA);
    stand_go_on(&stand, stopped);
    assert_int_equal(stand_end(&stand, stopped), FB_OK);
    stand.ns = first_ns;
    stand.secret = first_secret;
    memcpy(stand.id, first_id, sizeof(first_id));
    stand.epoch = 1;
    stand_must_get(&stand, 1000, other);
    stand_close(&stand);
}

static void test_unknown_namespaces(void **state)
{
    (void)state;
    static struct stand stand;
    open_small(&stand);
    stand.ns = 3;
    assert_int_equal(stand_must_miss(&stand, 1), FB_REASON_NAMESPACE_UNKNOWN);
    struct stand_op *op = stand_put(&stand, 0, 1, 10, 0, FB_PERSIST_DEFAULT);
    assert_int_equal(stand_end(&stand, op), FB_BAD_ARGUMENT);
    assert_int_equal(op->op.reason, FB_REASON_NAMESPACE_UNKNOWN);
    stand_close(&stand);
}

static void test_listing(void **state)
{
    (void)state;
    static struct stand stand;
    open_small(&stand);
    for (uint64_t key = 0; key < 200; key++)
        stand_must_put(&stand, key, 100);
    bool seen[200] = {false};
    static uint8_t out[1100];
    uint64_t cursor = 0;
    while (cursor != UINT64_MAX) {
        struct stand_op *op = stand_prepare(&stand, FB_OP_LIST, 0, 0);
        op->op.list_cursor = cursor;
        op->op.list_out = out;
        op->op.list_bytes = sizeof(out);
        stand_go(&stand, op);
        assert_int_equal(stand_end(&stand, op), FB_OK);
        cursor = op->op.list_cursor;
        for (uint32_t at = 0; at < op->op.list_bytes;) {
            unsigned bytes = out[at] | out[at + 1] << 8;
            char text[32] = "";
            memcpy(text, out + at + 2, bytes);
            seen[strtoul(text + 4, NULL, 10)] = true;
            at += 2 + bytes;
        }
    }
    for (unsigned i = 0; i < 200; i++)
        assert_true(seen[i]);
    stand_close(&stand);
}

static void test_index_full_drops_values(void **state)
{
    (void)state;
    static struct stand stand;
    memset(&stand, 0, sizeof(stand));
    stand.config.index_entries = 128;
    stand_open(&stand);
    for (uint64_t key = 0; key < 1000; key++)
        stand_must_put(&stand, key, 100);
    assert_int_equal(stand_must_miss(&stand, 0), FB_REASON_INDEX_FULL);
    stand_close(&stand);
}

static void test_key_texts_are_bounded(void **state)
{
    (void)state;
    static struct stand stand;
    memset(&stand, 0, sizeof(stand));
    stand.config.key_granules = 64;
    stand_open(&stand);
    uint64_t last = 0;
    for (uint64_t key = 0; key < 300; key++)
        last = stand_must_put(&stand, key, 100);
    stand_must_get(&stand, 299, last);
    assert_int_equal(stand_must_miss(&stand, 0), FB_REASON_INDEX_FULL);
    stand_close(&stand);
}

static void test_a_gigabyte(void **state)
{
    (void)state;
    static struct stand stand;
    memset(&stand, 0, sizeof(stand));
    stand.config.pool_bytes = FB_GIB(1) + FB_MIB(256);
    stand_open(&stand);
    assert_int_equal(fb_shard_value_bytes_max(stand.shard), FB_VALUE_BYTES_MAX);
    uint64_t version = stand_must_put(&stand, 1, FB_VALUE_BYTES_MAX);
    stand_must_get(&stand, 1, version);
    version = stand_must_put(&stand, 2, FB_VALUE_BYTES_MAX);
    stand_must_get(&stand, 2, version);
    assert_int_equal(stand_must_miss(&stand, 1), FB_REASON_EVICTED_DRAM);
    stand_close(&stand);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_put_and_get_of_all_sizes),
        cmocka_unit_test(test_duplicates_exist),
        cmocka_unit_test(test_eviction_is_oldest_first),
        cmocka_unit_test(test_leases_keep_values_in_dram),
        cmocka_unit_test(test_leases_have_a_share),
        cmocka_unit_test(test_leases_have_a_total_time),
        cmocka_unit_test(test_holds_are_given_back),
        cmocka_unit_test(test_short_leases_leave_room_for_holds),
        cmocka_unit_test(test_a_promise_outlives_a_hold),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_remove),
        cmocka_unit_test(test_persistence_is_refused_at_once),
        cmocka_unit_test(test_epoch_bump),
        cmocka_unit_test(test_quota_drops_the_own_oldest),
        cmocka_unit_test(test_unknown_namespaces),
        cmocka_unit_test(test_listing),
        cmocka_unit_test(test_index_full_drops_values),
        cmocka_unit_test(test_key_texts_are_bounded),
        cmocka_unit_test(test_a_gigabyte),
    };
    return cmocka_run_group_tests_name("shard_dram", tests, NULL, NULL);
}
