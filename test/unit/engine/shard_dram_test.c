/*
 * Covers a shard without a device (tier OFF): puts and gets of all sizes, eviction, leases and
 * holds, quotas, lookups, ranges, removes, epochs, listing. Every page of every read is checked,
 * and the shard is audited after every event. Cannot cover anything that a device does.
 */
#include <stdlib.h>
#include <string.h>

#include "test/lib/cm.h"
#include "test/lib/shard_rig.h"

static void open_small(struct rig *rig)
{
    memset(rig, 0, sizeof(*rig));
    rig->audits = true;
    rig_open(rig);
}

static void test_put_and_get_of_all_sizes(void **state)
{
    (void)state;
    static struct rig rig;
    open_small(&rig);
    uint64_t chunk = fb_shard_chunk_bytes(rig.shard);
    uint64_t most = fb_shard_value_bytes_max(rig.shard);
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
        uint64_t version = rig_must_put(&rig, i, sizes[i]);
        rig_must_get(&rig, i, version);
    }
    struct rig_op *op = rig_put(&rig, 0, 99, most + 1, 0, FB_PERSIST_DEFAULT);
    assert_int_equal(rig_end(&rig, op), FB_TOO_BIG);
    op = rig_put(&rig, 0, 99, 0, 0, FB_PERSIST_DEFAULT);
    assert_int_equal(rig_end(&rig, op), FB_BAD_ARGUMENT);
    rig_close(&rig);
}

static void test_duplicates_exist(void **state)
{
    (void)state;
    static struct rig rig;
    open_small(&rig);
    uint64_t version = rig_must_put(&rig, 1, 10000);
    struct rig_op *op = rig_put(&rig, 1, 1, 20000, 0, FB_PERSIST_DEFAULT);
    assert_int_equal(rig_end(&rig, op), FB_EXISTS);
    assert_false(op->granted);
    assert_int_equal(op->op.persisted, 0);
    rig_must_get(&rig, 1, version);
    op = rig_put(&rig, 1, 1, 20000, FB_PUT_UPSERT, FB_PERSIST_DEFAULT);
    version = op->version;
    assert_int_equal(rig_end(&rig, op), FB_OK);
    rig_must_get(&rig, 1, version);
    rig_close(&rig);
}

static void test_eviction_is_oldest_first(void **state)
{
    (void)state;
    static struct rig rig;
    open_small(&rig);
    const uint64_t bytes = 256 * 1024;
    uint64_t versions[64];
    for (uint64_t key = 0; key < 64; key++) {
        versions[key] = rig_must_put(&rig, key, bytes);
        rig_run(&rig, FB_SEC_NS);
        if (key >= 4)
            rig_must_get(&rig, 0, versions[0]);
    }
    /* Key 0 was read all the time and is there; the oldest of the others are not. */
    rig_must_get(&rig, 0, versions[0]);
    assert_int_equal(rig_must_miss(&rig, 1), FB_REASON_EVICTED_DRAM);
    rig_must_get(&rig, 63, versions[63]);
    struct fb_shard_stats stats = rig_stats(&rig);
    assert_true(stats.drops[FB_REASON_EVICTED_DRAM] > 30);
    assert_int_equal(stats.put_waited_space, 0);
    struct fb_explain explain;
    struct fb_digest digest = rig_digest(&rig, 1);
    fb_shard_explain(rig.shard, rig.ns, &digest, &explain);
    assert_false(explain.present);
    assert_int_equal(explain.reason, FB_REASON_EVICTED_DRAM);
    rig_close(&rig);
}

static void test_leases_keep_values_in_dram(void **state)
{
    (void)state;
    static struct rig rig;
    open_small(&rig);
    const uint64_t bytes = 512 * 1024;
    uint64_t version = rig_must_put(&rig, 0, bytes);
    unsigned found = rig_look(&rig, 0, 20000, 2);
    assert_int_equal(found, FB_FOUND_READABLE | FB_FOUND_DRAM | FB_FOUND_HELD);
    for (uint64_t key = 1; key < 40; key++)
        rig_must_put(&rig, key, bytes);
    /* Two loads, and after the second the hold ends; a short lease is left. */
    for (unsigned load = 0; load < 2; load++) {
        struct rig_op *op = rig_get(&rig, 0, 0, FB_GET_HELD);
        assert_int_equal(rig_end(&rig, op), FB_OK);
        assert_int_equal(op->seen, version);
    }
    rig_run(&rig, 6 * FB_SEC_NS);
    for (uint64_t key = 40; key < 80; key++)
        rig_must_put(&rig, key, bytes);
    assert_int_equal(rig_must_miss(&rig, 0), FB_REASON_EVICTED_DRAM);
    rig_close(&rig);
}

static void test_leases_have_a_share(void **state)
{
    (void)state;
    static struct rig rig;
    open_small(&rig);
    const uint64_t bytes = 512 * 1024;
    unsigned held = 0;
    for (uint64_t key = 0; key < 12; key++) {
        rig_must_put(&rig, key, bytes);
        unsigned found = rig_look(&rig, key, 30000, 1);
        assert_true((found & FB_FOUND_READABLE) != 0);
        held += (found & FB_FOUND_HELD) != 0;
    }
    assert_int_equal(held, 8); /* half of 8 MiB */
    /* With half of the pool held, the other half still takes puts. */
    for (uint64_t key = 100; key < 140; key++)
        rig_must_put(&rig, key, bytes);
    rig_run(&rig, 31 * FB_SEC_NS);
    assert_int_equal(rig_stats(&rig).leased_bytes, 0);
    rig_close(&rig);
}

static void test_holds_are_given_back(void **state)
{
    (void)state;
    static struct rig rig;
    open_small(&rig);
    rig_must_put(&rig, 0, 100000);
    rig_look(&rig, 0, 60000, 3);
    assert_true(rig_stats(&rig).leased_bytes > 0);
    struct rig_op *op = rig_prepare(&rig, FB_OP_HOLD_RELEASE, 0, 0);
    struct fb_digest digest = rig_digest(&rig, 0);
    op->op.digests = &digest;
    op->op.n = 1;
    op->op.hold_loads = 3;
    rig_go(&rig, op);
    assert_int_equal(rig_end(&rig, op), FB_OK);
    rig_run(&rig, 6 * FB_SEC_NS);
    assert_int_equal(rig_stats(&rig).leased_bytes, 0);
    rig_close(&rig);
}

static void test_ranges(void **state)
{
    (void)state;
    static struct rig rig;
    open_small(&rig);
    uint64_t chunk = fb_shard_chunk_bytes(rig.shard);
    uint64_t bytes = chunk * 2 + 5000;
    rig_must_put(&rig, 1, bytes);
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
        struct rig_op *op =
            rig_get_range(&rig, RIG_HONEST, 0, 1, cases[i].off, cases[i].len, FB_GET_VERIFY);
        assert_int_equal(rig_end(&rig, op), FB_OK);
        assert_int_equal(op->seen_bytes, cases[i].expect);
        assert_int_equal(op->op.value_bytes, bytes);
    }
    rig_close(&rig);
}

static void test_remove(void **state)
{
    (void)state;
    static struct rig rig;
    open_small(&rig);
    rig_must_put(&rig, 1, 5000);
    assert_int_equal(rig_end(&rig, rig_start(&rig, FB_OP_REMOVE, 0, 1)), FB_OK);
    assert_int_equal(rig_must_miss(&rig, 1), FB_REASON_REMOVED);
    assert_int_equal(rig_end(&rig, rig_start(&rig, FB_OP_REMOVE, 0, 1)), FB_MISS);
    uint64_t version = rig_must_put(&rig, 1, 6000);
    rig_must_get(&rig, 1, version);
    rig_close(&rig);
}

static void test_persistence_is_refused_at_once(void **state)
{
    (void)state;
    static struct rig rig;
    open_small(&rig);
    uint64_t version = rig_must_put(&rig, 1, 5000);
    assert_int_equal(rig_end(&rig, rig_start(&rig, FB_OP_WAIT_PERSISTED, 0, 1)), FB_NOT_PERSISTED);
    assert_int_equal(rig_end(&rig, rig_start(&rig, FB_OP_DROP_DRAM, 0, 1)), FB_NOT_PERSISTED);
    assert_int_equal(rig_end(&rig, rig_start(&rig, FB_OP_WAIT_PERSISTED, 0, 2)), FB_MISS);
    struct rig_op *op = rig_put(&rig, 0, 2, 5000, 0, FB_PERSIST_THROUGH);
    uint64_t through = op->version;
    assert_int_equal(rig_end(&rig, op), FB_NOT_PERSISTED);
    rig_must_get(&rig, 2, through);
    op = rig_put(&rig, 0, 1, 5000, 0, FB_PERSIST_THROUGH);
    assert_int_equal(rig_end(&rig, op), FB_NOT_PERSISTED);
    rig_must_get(&rig, 1, version);
    rig_close(&rig);
}

static void test_epoch_bump(void **state)
{
    (void)state;
    static struct rig rig;
    open_small(&rig);
    for (uint64_t key = 0; key < 20; key++)
        rig_must_put(&rig, key, 20000);
    struct rig_op *stopped = rig_put_as(&rig, RIG_STOPPED, 1, 50, 20000, 0, FB_PERSIST_DEFAULT);
    struct rig_op *waiter = rig_put(&rig, 2, 50, 20000, 0, FB_PERSIST_DEFAULT);
    assert_true(stopped->granted && !waiter->done);
    uint64_t old_epoch = rig.epoch;
    rig_bump(&rig);
    assert_int_equal(rig_result(&rig, stopped), FB_STALE_EPOCH);
    assert_int_equal(rig_end(&rig, waiter), FB_STALE_EPOCH);
    rig_go_on(&rig, stopped);
    rig_end(&rig, stopped);
    for (uint64_t key = 0; key < 20; key++)
        rig_must_miss(&rig, key);
    struct rig_op *old = rig_prepare(&rig, FB_OP_GET, 0, 3);
    old->op.epoch = old_epoch;
    rig_go(&rig, old);
    assert_int_equal(rig_end(&rig, old), FB_STALE_EPOCH);
    rig_run(&rig, FB_SEC_NS);
    struct fb_shard_stats stats = rig_stats(&rig);
    assert_int_equal(stats.entries, 0);
    assert_int_equal(stats.drops[FB_REASON_EPOCH_BUMPED], 20);
    uint64_t version = rig_must_put(&rig, 3, 30000);
    rig_must_get(&rig, 3, version);
    rig_close(&rig);
}

/* Opens a second namespace with a quota and points the rig at it. */
static void use_quota(struct rig *rig, uint64_t dram_bytes, uint64_t ssd_bytes)
{
    struct rig_op *op = rig_prepare(rig, FB_OP_NAMESPACE, 0, 0);
    op->op.ns_fields = "other";
    op->op.ns_fields_bytes = 5;
    op->op.ns_quota_dram_bytes = dram_bytes;
    op->op.ns_quota_ssd_bytes = ssd_bytes;
    rig_go(rig, op);
    assert_int_equal(rig_end(rig, op), FB_OK);
    rig->ns = op->op.ns;
    uint8_t secret[16];
    assert_true(fb_shard_namespace(rig->shard, rig->ns, rig->id, secret, &rig->epoch));
    fb_secret_derive(&rig->secret, secret, sizeof(secret));
}

static void test_quota_drops_the_own_oldest(void **state)
{
    (void)state;
    static struct rig rig;
    open_small(&rig);
    uint64_t other = rig_must_put(&rig, 1000, 200000);
    uint16_t first_ns = rig.ns;
    uint8_t first_id[16];
    struct fb_secret first_secret = rig.secret;
    memcpy(first_id, rig.id, sizeof(first_id));
    use_quota(&rig, FB_MIB(1), 0);
    uint64_t versions[40];
    for (uint64_t key = 0; key < 40; key++) {
        versions[key] = rig_must_put(&rig, key, 100000);
        rig_run(&rig, FB_SEC_NS);
    }
    assert_int_equal(rig_must_miss(&rig, 29), FB_REASON_QUOTA);
    for (uint64_t key = 32; key < 40; key++)
        rig_must_get(&rig, key, versions[key]);
    struct rig_op *op = rig_put(&rig, 0, 41, FB_MIB(1) + 1, 0, FB_PERSIST_DEFAULT);
    assert_int_equal(rig_end(&rig, op), FB_QUOTA);
    /* What cannot be dropped makes a put wait, and then says QUOTA. */
    struct rig_op *stopped = rig_put_as(&rig, RIG_STOPPED, 1, 42, FB_MIB(1), 0, FB_PERSIST_DEFAULT);
    rig.deadline_ns = 2 * FB_SEC_NS;
    op = rig_put(&rig, 2, 43, 5000, 0, FB_PERSIST_DEFAULT);
    assert_int_equal(rig_end(&rig, op), FB_QUOTA);
    rig_go_on(&rig, stopped);
    assert_int_equal(rig_end(&rig, stopped), FB_OK);
    rig.ns = first_ns;
    rig.secret = first_secret;
    memcpy(rig.id, first_id, sizeof(first_id));
    rig.epoch = 1;
    rig_must_get(&rig, 1000, other);
    rig_close(&rig);
}

static void test_unknown_namespaces(void **state)
{
    (void)state;
    static struct rig rig;
    open_small(&rig);
    rig.ns = 3;
    assert_int_equal(rig_must_miss(&rig, 1), FB_REASON_NAMESPACE_UNKNOWN);
    struct rig_op *op = rig_put(&rig, 0, 1, 10, 0, FB_PERSIST_DEFAULT);
    assert_int_equal(rig_end(&rig, op), FB_BAD_ARGUMENT);
    assert_int_equal(op->op.reason, FB_REASON_NAMESPACE_UNKNOWN);
    rig_close(&rig);
}

static void test_listing(void **state)
{
    (void)state;
    static struct rig rig;
    open_small(&rig);
    for (uint64_t key = 0; key < 200; key++)
        rig_must_put(&rig, key, 100);
    bool seen[200] = {false};
    static uint8_t out[1100];
    uint64_t cursor = 0;
    while (cursor != UINT64_MAX) {
        struct rig_op *op = rig_prepare(&rig, FB_OP_LIST, 0, 0);
        op->op.list_cursor = cursor;
        op->op.list_out = out;
        op->op.list_bytes = sizeof(out);
        rig_go(&rig, op);
        assert_int_equal(rig_end(&rig, op), FB_OK);
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
    rig_close(&rig);
}

static void test_index_full_drops_values(void **state)
{
    (void)state;
    static struct rig rig;
    memset(&rig, 0, sizeof(rig));
    rig.config.index_entries = 128;
    rig_open(&rig);
    for (uint64_t key = 0; key < 1000; key++)
        rig_must_put(&rig, key, 100);
    assert_int_equal(rig_must_miss(&rig, 0), FB_REASON_INDEX_FULL);
    rig_close(&rig);
}

static void test_key_texts_are_bounded(void **state)
{
    (void)state;
    static struct rig rig;
    memset(&rig, 0, sizeof(rig));
    rig.config.key_granules = 64;
    rig_open(&rig);
    uint64_t last = 0;
    for (uint64_t key = 0; key < 300; key++)
        last = rig_must_put(&rig, key, 100);
    rig_must_get(&rig, 299, last);
    assert_int_equal(rig_must_miss(&rig, 0), FB_REASON_INDEX_FULL);
    rig_close(&rig);
}

static void test_a_gigabyte(void **state)
{
    (void)state;
    static struct rig rig;
    memset(&rig, 0, sizeof(rig));
    rig.config.pool_bytes = FB_GIB(1) + FB_MIB(256);
    rig_open(&rig);
    assert_int_equal(fb_shard_value_bytes_max(rig.shard), FB_VALUE_BYTES_MAX);
    uint64_t version = rig_must_put(&rig, 1, FB_VALUE_BYTES_MAX);
    rig_must_get(&rig, 1, version);
    version = rig_must_put(&rig, 2, FB_VALUE_BYTES_MAX);
    rig_must_get(&rig, 2, version);
    assert_int_equal(rig_must_miss(&rig, 1), FB_REASON_EVICTED_DRAM);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_put_and_get_of_all_sizes),
        cmocka_unit_test(test_duplicates_exist),
        cmocka_unit_test(test_eviction_is_oldest_first),
        cmocka_unit_test(test_leases_keep_values_in_dram),
        cmocka_unit_test(test_leases_have_a_share),
        cmocka_unit_test(test_holds_are_given_back),
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
