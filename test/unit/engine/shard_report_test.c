/*
 * shard_report_test.c - what operators reported of others, as tests of one shard: the rows of
 * docs/reports.md that no other test is about. Covers figures and orders on a simulated device.
 *
 * Cannot show: how long anything takes on a real one.
 */
#include "test/lib/cm.h"

#include <stdlib.h>
#include <string.h>

#include "base/reason.h"
#include "base/result.h"
#include "test/lib/shard_stand.h"

#define KIB(n) FB_KIB(n)

static void drop_dram(struct stand *stand, uint64_t key)
{
    assert_int_equal(stand_end(stand, stand_start(stand, FB_OP_DROP_DRAM, 0, key)), FB_OK);
}

/* Row 5: what a put drops follows from what it needs, however much lies on the device alone. */
static void test_a_put_drops_what_it_needs(void **state)
{
    (void)state;
    enum {
        COLD = 2000,
        HOT = 1500,
        BYTES = 8192,
        FILL = 1100
    };
    static struct stand stand;
    memset(&stand, 0, sizeof(stand));
    stand.config.devices = 1;
    stand.config.pool_bytes = FB_MIB(8);
    stand.config.log.capacity_bytes = FB_MIB(64);
    stand_open(&stand);
    for (uint64_t key = 0; key < COLD; key++)
        stand_must_put(&stand, key, BYTES);
    stand_settle(&stand);
    for (uint64_t key = 0; key < COLD; key++)
        drop_dram(&stand, key);
    assert_int_equal(stand_stats(&stand).keys_dram, 0);
    assert_int_equal(stand_stats(&stand).keys_ssd, COLD);
    uint64_t most = 0, dropped = 0;
    for (uint64_t key = 0; key < HOT; key++) {
        uint64_t before = stand_stats(&stand).keys_dram;
        stand_must_put(&stand, COLD + key, BYTES);
        stand_settle(&stand);
        uint64_t now = before + 1 - stand_stats(&stand).keys_dram;
        dropped += now;
        most = now > most ? now : most;
    }
    print_message("%llu dropped by %d puts, at most %llu by one\n", (unsigned long long)dropped,
                  HOT, (unsigned long long)most);
    assert_true(dropped > HOT - FILL);
    assert_in_range(most, 1, 2);
    assert_int_equal(stand_stats(&stand).keys_ssd, COLD + HOT);
    stand_close(&stand);
}

/* Row 6: a tenth of the writes fails. All are made again and counted, and nothing is lost. */
static void test_a_tenth_of_the_writes_fails(void **state)
{
    (void)state;
    enum {
        KEYS = 300
    };
    static struct stand stand;
    memset(&stand, 0, sizeof(stand));
    stand.config.devices = 1;
    stand.config.pool_bytes = FB_MIB(8);
    stand.config.log.capacity_bytes = FB_MIB(64);
    stand.config.log.io_errors_to_fence = 1000000;
    stand_open(&stand);
    struct fb_sim_rates rates = {0};
    rates.ppm[FB_IO_WRITE][FB_FAULT_EIO] = 100000;
    fb_sim_set_rates(stand.sim, &rates);
    uint64_t versions[KEYS];
    for (uint64_t key = 0; key < KEYS; key++) {
        versions[key] = stand_must_put(&stand, key, KIB(20));
        stand_run(&stand, 10 * FB_MS_NS);
    }
    stand_settle(&stand);
    struct fb_log_stats log;
    fb_shard_log_stats(stand.shard, &log);
    print_message("%llu writes failed\n", (unsigned long long)log.write_errors);
    assert_true(log.write_errors > 5);
    assert_int_equal(stand_stats(&stand).drops[FB_REASON_EVICTED_DIRTY], 0);
    static const struct fb_sim_rates none;
    fb_sim_set_rates(stand.sim, &none);
    for (uint64_t key = 0; key < KEYS; key++)
        drop_dram(&stand, key);
    assert_int_equal(stand_stats(&stand).keys_dram, 0);
    for (uint64_t key = 0; key < KEYS; key++)
        stand_must_get(&stand, key, versions[key]);
    stand_close(&stand);
}

/* Row 7: a tenth of what is queued for the device goes before it is written. */
static void test_removed_before_it_was_written(void **state)
{
    (void)state;
    enum {
        KEYS = 1000,
        REMOVED = 100
    };
    static struct stand stand;
    memset(&stand, 0, sizeof(stand));
    stand.config.devices = 1;
    stand.config.pool_bytes = FB_MIB(16);
    stand.config.log.capacity_bytes = FB_MIB(64);
    stand.config.log.linger_ns = 400 * FB_MS_NS;
    stand_open(&stand);
    uint64_t versions[KEYS];
    for (uint64_t key = 0; key < KEYS; key++)
        versions[key] = stand_must_put(&stand, key, 4096);
    assert_true(stand_stats(&stand).dirty_bytes > 0);
    for (uint64_t key = 0; key < KEYS; key += KEYS / REMOVED)
        assert_int_equal(stand_end(&stand, stand_start(&stand, FB_OP_REMOVE, 0, key)), FB_OK);
    stand_run(&stand, FB_SEC_NS);
    struct fb_shard_stats stats = stand_stats(&stand);
    assert_int_equal(stats.keys_ssd, KEYS - REMOVED);
    assert_int_equal(stats.dirty_bytes + stats.pinned_bytes + stats.reserved_bytes, 0);
    fb_shard_audit(stand.shard);
    for (uint64_t key = 0; key < KEYS; key++) {
        if (key % (KEYS / REMOVED) == 0)
            assert_int_equal(stand_must_miss(&stand, key), FB_REASON_REMOVED);
        else
            stand_must_get(&stand, key, versions[key]);
    }
    stand_close(&stand);
}

/* Row 19: ten times the quota is written: what was acknowledged is there at that moment, the oldest
 * go, and each is counted. */
static void test_ten_times_the_quota(void **state)
{
    (void)state;
    enum {
        BYTES = 65536,
        KEPT = 16,
        KEYS = 10 * KEPT
    };
    static struct stand stand;
    memset(&stand, 0, sizeof(stand));
    stand.config.pool_bytes = FB_MIB(16);
    stand_open(&stand);
    struct stand_op *op = stand_prepare(&stand, FB_OP_NAMESPACE, 0, 0);
    op->op.ns_fields = "small";
    op->op.ns_fields_bytes = 5;
    op->op.ns_quota_dram_bytes = (uint64_t)KEPT * BYTES;
    stand_go(&stand, op);
    assert_int_equal(stand_end(&stand, op), FB_OK);
    stand.ns = op->op.ns;
    uint8_t secret[16];
    assert_true(fb_shard_namespace(stand.shard, stand.ns, stand.id, secret, &stand.epoch));
    fb_secret_derive(&stand.secret, secret, sizeof(secret));
    uint64_t versions[KEYS];
    for (uint64_t key = 0; key < KEYS; key++) {
        versions[key] = stand_must_put(&stand, key, BYTES);
        stand_must_get(&stand, key, versions[key]);
        stand_run(&stand, FB_SEC_NS);
    }
    assert_int_equal(stand_stats(&stand).drops[FB_REASON_QUOTA], KEYS - KEPT);
    for (uint64_t key = 0; key < KEYS; key++) {
        if (key < KEYS - KEPT)
            assert_int_equal(stand_must_miss(&stand, key), FB_REASON_QUOTA);
        else
            stand_must_get(&stand, key, versions[key]);
    }
    stand_close(&stand);
}

/* Row 26: many put one key with different bytes. One whole value is there, the others hear so. */
static void test_one_key_with_other_bytes_from_many(void **state)
{
    (void)state;
    enum {
        CLIENTS = 16,
        BYTES = 300000
    };
    static struct stand stand;
    memset(&stand, 0, sizeof(stand));
    stand.config.devices = 1;
    stand.config.log.capacity_bytes = FB_MIB(64);
    stand.audits = true;
    stand_open(&stand);
    for (uint64_t key = 0; key < 20; key++) {
        struct stand_op *ops[CLIENTS];
        uint64_t versions[CLIENTS], winner = 0;
        for (unsigned i = 0; i < CLIENTS; i++) {
            unsigned peer = (i + (unsigned)key) % CLIENTS;
            ops[i] = stand_put(&stand, peer, key, BYTES + 1000 * i, 0, FB_PERSIST_DEFAULT);
            versions[i] = ops[i]->version;
        }
        unsigned stored = 0;
        for (unsigned i = 0; i < CLIENTS; i++) {
            int result = stand_end(&stand, ops[i]);
            assert_true(result == FB_OK || result == FB_EXISTS);
            if (result == FB_OK)
                winner = versions[i];
            stored += result == FB_OK;
        }
        assert_int_equal(stored, 1);
        stand_must_get(&stand, key, winner);
    }
    stand_close(&stand);
}

/* Row 84: the device takes a request and never answers. Whoever waits hears of it by its deadline.
 */
static void test_a_completion_that_never_comes(void **state)
{
    (void)state;
    static struct stand stand;
    memset(&stand, 0, sizeof(stand));
    stand.config.devices = 1;
    stand.config.log.capacity_bytes = FB_MIB(64);
    stand.device.latency = fb_sim_latency_default();
    stand.device.latency.delay_ns = 24 * 3600 * FB_SEC_NS;
    stand_open(&stand);
    stand_must_put(&stand, 1, KIB(64));
    stand_settle(&stand);
    drop_dram(&stand, 1);
    struct fb_sim_rates rates = {0};
    rates.ppm[FB_IO_READ][FB_FAULT_DELAYED] = 1000000;
    rates.ppm[FB_IO_WRITE][FB_FAULT_DELAYED] = 1000000;
    fb_sim_set_rates(stand.sim, &rates);
    stand.deadline_ns = 2 * FB_SEC_NS;
    struct stand_op *get = stand_get(&stand, 0, 1, 0);
    struct stand_op *through = stand_put(&stand, 1, 2, KIB(64), 0, FB_PERSIST_THROUGH);
    assert_int_equal(stand_result(&stand, get), FB_DEADLINE);
    assert_int_equal(get->op.reason, FB_REASON_READ_DEADLINE);
    assert_int_equal(stand_result(&stand, through), FB_NOT_PERSISTED);
    assert_true(get->done_ns - get->start_ns <= stand.deadline_ns + FB_SEC_NS / 10);
    assert_true(through->done_ns - through->start_ns <= stand.deadline_ns + FB_SEC_NS / 10);
    stand_must_get(&stand, 2, through->version);
    /* Memory alone goes on. */
    for (uint64_t key = 10; key < 20; key++)
        stand_must_get(&stand, key, stand_must_put(&stand, key, KIB(16)));
    stand_close(&stand);
}

/* Row 96: a batch that takes longer than three leases: each key's lease is its own. */
static void test_a_batch_slower_than_its_leases(void **state)
{
    (void)state;
    enum {
        KEYS = 24,
        LEASE_MS = 200
    };
    static struct stand stand;
    memset(&stand, 0, sizeof(stand));
    stand.config.devices = 1;
    stand.config.pool_bytes = FB_MIB(16);
    stand.config.lease_ms = LEASE_MS;
    stand.config.log.capacity_bytes = FB_MIB(64);
    stand.config.log.read_depth = 1;
    stand.device.latency = fb_sim_latency_default();
    stand.device.latency.read_bytes_per_s = FB_MIB(8);
    stand_open(&stand);
    uint64_t versions[KEYS];
    for (uint64_t key = 0; key < KEYS; key++)
        versions[key] = stand_must_put(&stand, key, KIB(512));
    stand_settle(&stand);
    for (uint64_t key = 0; key < KEYS; key++)
        drop_dram(&stand, key);
    const uint64_t begun_ns = stand.now_ns;
    struct stand_op *ops[KEYS];
    for (uint64_t key = 0; key < KEYS; key++) {
        (void)stand_look(&stand, key, LEASE_MS, 1);
        ops[key] = stand_get(&stand, 0, key, 0);
    }
    for (uint64_t key = 0; key < KEYS; key++) {
        int result = stand_result(&stand, ops[key]);
        if (result != FB_OK)
            fail_msg("key %llu: %s, %s", (unsigned long long)key, fb_result_name(result),
                     fb_reason_name(ops[key]->op.reason));
        assert_int_equal(ops[key]->seen, versions[key]);
        /* Others put meanwhile. */
        stand_must_put(&stand, 1000 + key, KIB(512));
    }
    assert_true(stand.now_ns - begun_ns > 3 * LEASE_MS * FB_MS_NS);
    stand_close(&stand);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_put_drops_what_it_needs),
        cmocka_unit_test(test_a_tenth_of_the_writes_fails),
        cmocka_unit_test(test_removed_before_it_was_written),
        cmocka_unit_test(test_ten_times_the_quota),
        cmocka_unit_test(test_one_key_with_other_bytes_from_many),
        cmocka_unit_test(test_a_completion_that_never_comes),
        cmocka_unit_test(test_a_batch_slower_than_its_leases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
