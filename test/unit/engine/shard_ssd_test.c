/*
 * Covers a shard with a device: report A in small, persist modes, dirty throttling, waiting for
 * durability, reads from the device and promotion, restarts, rot, ENOSPC, EIO and the fence, quotas
 * of the device. Every page of every read is checked. The log itself is covered by its own tests.
 */
#include <stdlib.h>
#include <string.h>

#include "test/lib/cm.h"
#include "test/lib/shard_stand.h"

#define KIB(n) FB_KIB(n)

static void open_stand(struct stand *stand, uint64_t pool, uint64_t capacity)
{
    memset(stand, 0, sizeof(*stand));
    stand->config.devices = 1;
    stand->config.pool_bytes = pool;
    stand->config.log.capacity_bytes = capacity;
    stand_open(stand);
}

/* ---- report A: data larger than DRAM ---- */

/* Puts in batches, reads everything back in order: all of it is there, byte for byte. */
static void replay(uint64_t pool, uint64_t data, uint64_t bytes)
{
    static struct stand stand;
    open_stand(&stand, pool, FB_MIB(256));
    unsigned count = (unsigned)(data / bytes);
    uint64_t *versions = calloc(count, sizeof(*versions));
    struct stand_op **ops = calloc(count, sizeof(*ops));
    for (unsigned i = 0; i < count; i++) {
        ops[i] = stand_put(&stand, i % 2, i, bytes, 0, FB_PERSIST_DEFAULT);
        versions[i] = ops[i]->version;
    }
    for (unsigned i = 0; i < count; i++)
        assert_int_equal(stand_end(&stand, ops[i]), FB_OK);
    fb_shard_audit(stand.shard);
    for (unsigned i = 0; i < count; i++)
        stand_must_get(&stand, i, versions[i]);
    struct fb_shard_stats stats = stand_stats(&stand);
    assert_int_equal(stats.get_hits, count);
    uint64_t least = (data - pool) / bytes;
    print_message("%u objects of %llu bytes, pool %llu MiB: %llu from the device, %llu waited\n",
                  count, (unsigned long long)bytes, (unsigned long long)(pool >> 20),
                  (unsigned long long)stats.get_hits_ssd,
                  (unsigned long long)stats.put_waited_space);
    assert_true(stats.get_hits_ssd >= least);
    free(versions);
    free(ops);
    stand_close(&stand);
}

static void test_report_a_in_small(void **state)
{
    (void)state;
    replay(FB_MIB(16), FB_MIB(16) * 226 / 100, KIB(20));
    replay(FB_MIB(16), FB_MIB(64), KIB(20));
    replay(FB_MIB(32), FB_MIB(32) * 226 / 100, 1310720);
    replay(FB_MIB(32), FB_MIB(32) * 107 / 100, 1310720);
}

static void test_all_sizes_through_the_device(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand, FB_MIB(16), FB_MIB(64));
    stand.audits = true;
    uint64_t chunk = fb_shard_chunk_bytes(stand.shard);
    uint64_t most = fb_shard_value_bytes_max(stand.shard);
    const uint64_t sizes[] = {1, 4096, 4097, chunk - 1, chunk, chunk + 1, chunk * 5 + 77, most};
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        uint64_t version = stand_must_put(&stand, i, sizes[i]);
        assert_int_equal(stand_end(&stand, stand_start(&stand, FB_OP_DROP_DRAM, 0, i)), FB_OK);
        struct stand_op *op = stand_get(&stand, 1, i, FB_GET_NO_PROMOTE);
        assert_int_equal(stand_end(&stand, op), FB_OK);
        assert_int_equal(op->seen, version);
        assert_int_equal(op->seen_bytes, sizes[i]);
        assert_int_equal(op->chunks_ssd, (sizes[i] + chunk - 1) / chunk);
        assert_int_equal(op->op.tiers, 2);
    }
    struct stand_op *op =
        stand_get_range(&stand, STAND_HONEST, 0, 6, chunk * 3 + 100, 50, FB_GET_NO_PROMOTE);
    assert_int_equal(stand_end(&stand, op), FB_OK);
    assert_int_equal(op->seen_bytes, 50);
    assert_int_equal(op->chunks_ssd, 1);
    stand_close(&stand);
}

static void test_a_gigabyte_through_the_device(void **state)
{
    (void)state;
    static struct stand stand;
    memset(&stand, 0, sizeof(stand));
    stand.device.unflushed_pages_max = 1u << 19;
    stand.config.devices = 1;
    stand.config.pool_bytes = FB_GIB(1) + FB_MIB(256);
    stand.config.log.capacity_bytes = FB_GIB(5);
    stand_open(&stand);
    stand.deadline_ns = 300 * FB_SEC_NS;
    uint64_t version = stand_must_put(&stand, 1, FB_VALUE_BYTES_MAX);
    assert_int_equal(stand_end(&stand, stand_start(&stand, FB_OP_DROP_DRAM, 0, 1)), FB_OK);
    stand_must_get(&stand, 1, version);
    stand_crash(&stand, FB_SIM_CUT_NONE, 1);
    stand_must_get(&stand, 1, version);
    stand_close(&stand);
}

/* ---- modes ---- */

static void test_modes(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand, FB_MIB(16), FB_MIB(64));
    stand.audits = true;
    struct stand_op *through = stand_put(&stand, 0, 1, KIB(64), 0, FB_PERSIST_THROUGH);
    assert_false(through->done);
    assert_int_equal(stand_end(&stand, through), FB_OK);
    assert_int_equal(through->op.persisted, 1);
    struct stand_op *off = stand_put(&stand, 0, 2, KIB(64), 0, FB_PERSIST_OFF);
    assert_int_equal(stand_end(&stand, off), FB_OK);
    struct stand_op *evict = stand_put(&stand, 0, 3, KIB(64), 0, FB_PERSIST_EVICT);
    assert_int_equal(stand_end(&stand, evict), FB_OK);
    struct stand_op *behind = stand_put(&stand, 0, 4, KIB(64), 0, FB_PERSIST_BEHIND);
    assert_int_equal(stand_end(&stand, behind), FB_OK);
    stand_run(&stand, FB_SEC_NS);
    /* Behind is written by now, evict is not, off never. */
    assert_int_equal(stand_stats(&stand).dirty_bytes, KIB(64));
    assert_int_equal(stand_end(&stand, stand_start(&stand, FB_OP_WAIT_PERSISTED, 0, 4)), FB_OK);
    assert_int_equal(stand_end(&stand, stand_start(&stand, FB_OP_WAIT_PERSISTED, 0, 2)),
                     FB_NOT_PERSISTED);
    assert_int_equal(stand_end(&stand, stand_start(&stand, FB_OP_WAIT_PERSISTED, 0, 3)), FB_OK);
    /* A duplicate that asks for more gets it. */
    struct stand_op *again = stand_put(&stand, 1, 2, KIB(64), 0, FB_PERSIST_THROUGH);
    assert_int_equal(stand_end(&stand, again), FB_EXISTS);
    assert_int_equal(again->op.persisted, 1);
    uint64_t versions[] = {through->version, off->version, evict->version, behind->version};
    stand_crash(&stand, FB_SIM_CUT_NONE, 1);
    for (unsigned i = 0; i < 4; i++)
        stand_must_get(&stand, i + 1, versions[i]);
    stand_close(&stand);
}

static uint64_t written_bytes(const struct stand *stand)
{
    struct fb_log_stats log;
    fb_shard_log_stats(stand->shard, &log);
    return log.bytes_written;
}

/* The node's mode is off although it has a device: DRAM alone, and what leaves it says why. */
static void test_off_writes_nothing(void **state)
{
    (void)state;
    static struct stand stand;
    memset(&stand, 0, sizeof(stand));
    stand.config.persist = FB_PERSIST_OFF;
    stand.config.pool_bytes = FB_MIB(8);
    stand.config.devices = 1;
    stand.config.log.capacity_bytes = FB_MIB(64);
    stand_open(&stand);
    stand.audits = true;
    stand_run(&stand, FB_SEC_NS);
    const uint64_t before = written_bytes(&stand);
    enum {
        KEYS = 3 * 8 * 16
    };
    uint64_t versions[KEYS];
    for (uint64_t key = 0; key < KEYS; key++)
        versions[key] = stand_must_put(&stand, key, KIB(64));
    stand_run(&stand, 30 * FB_SEC_NS);
    assert_int_equal(written_bytes(&stand), before);
    assert_int_equal(stand_stats(&stand).keys_ssd, 0);
    assert_int_equal(stand_must_miss(&stand, 0), FB_REASON_EVICTED_DRAM);
    assert_true(stand_stats(&stand).drops[FB_REASON_EVICTED_DRAM] >= KEYS - 8 * 16);
    stand_must_get(&stand, KEYS - 1, versions[KEYS - 1]);
    assert_int_equal(stand_end(&stand, stand_start(&stand, FB_OP_WAIT_PERSISTED, 0, KEYS - 1)),
                     FB_NOT_PERSISTED);
    /* A put may ask for more than the node does by itself. */
    struct stand_op *through = stand_put(&stand, 0, KEYS, KIB(64), 0, FB_PERSIST_THROUGH);
    assert_int_equal(stand_end(&stand, through), FB_OK);
    assert_true(written_bytes(&stand) > before);
    const uint64_t version = through->version;
    stand_crash(&stand, FB_SIM_CUT_NONE, 1);
    stand_must_get(&stand, KEYS, version);
    assert_int_equal(stand_must_miss(&stand, KEYS - 1), FB_REASON_NO_RECORD);
    stand_close(&stand);
}

static void test_evict_mode_writes_above_the_watermark(void **state)
{
    (void)state;
    static struct stand stand;
    memset(&stand, 0, sizeof(stand));
    stand.config.devices = 1;
    stand.config.pool_bytes = FB_MIB(16);
    stand.config.persist = FB_PERSIST_EVICT;
    stand.config.watermark_pct = 50;
    stand_open(&stand);
    for (uint64_t key = 0; key < 7; key++)
        stand_must_put(&stand, key, FB_MIB(1));
    stand_run(&stand, FB_SEC_NS);
    assert_int_equal(stand_log_stats(&stand).items_durable, 0);
    for (uint64_t key = 7; key < 40; key++)
        stand_must_put(&stand, key, FB_MIB(1));
    assert_true(stand_log_stats(&stand).items_durable > 0);
    for (uint64_t key = 0; key < 40; key++)
        assert_int_equal(stand_end(&stand, stand_get(&stand, 0, key, 0)), FB_OK);
    stand_close(&stand);
}

static void test_a_dirty_duplicate_waits_for_its_flush(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand, FB_MIB(16), FB_MIB(64));
    struct stand_op *first = stand_put(&stand, 0, 1, KIB(64), 0, FB_PERSIST_BEHIND);
    assert_true(first->done);
    struct stand_op *second = stand_put(&stand, 1, 1, KIB(64), 0, FB_PERSIST_THROUGH);
    assert_false(second->done);
    assert_int_equal(stand_end(&stand, second), FB_EXISTS);
    assert_int_equal(second->op.persisted, 1);
    stand_close(&stand);
}

/* The dirty limit follows from the drain time and the device's speed; puts go on at that speed. */
static void test_dirty_throttling(void **state)
{
    (void)state;
    static struct stand stand;
    memset(&stand, 0, sizeof(stand));
    stand.config.devices = 1;
    stand.config.pool_bytes = FB_MIB(64);
    stand.config.log.capacity_bytes = FB_MIB(256);
    stand.config.drain_ms = 1000;
    stand.config.device_write_bytes_per_s = FB_MIB(20);
    stand.device.latency = fb_sim_latency_default();
    stand.device.latency.write_bytes_per_s = FB_MIB(20);
    stand.device.latency.tail_ppm = 0;
    stand_open(&stand);
    enum {
        COUNT = 400
    };
    static struct stand_op *ops[COUNT];
    uint64_t start = stand.now_ns;
    uint64_t most = 0;
    bool throttled = false;
    for (unsigned i = 0; i < COUNT; i++)
        ops[i] = stand_put(&stand, 0, i, KIB(256), 0, FB_PERSIST_DEFAULT);
    for (unsigned i = 0; i < COUNT; i++) {
        assert_int_equal(stand_end(&stand, ops[i]), FB_OK);
        struct fb_shard_stats stats = stand_stats(&stand);
        most = stats.dirty_bytes > most ? stats.dirty_bytes : most;
        throttled |= fb_shard_tier(stand.shard) == FB_TIER_THROTTLED;
    }
    uint64_t took_ms = (stand.now_ns - start) / FB_MS_NS;
    print_message("100 MiB at 20 MiB/s: %llu ms, at most %llu KiB dirty\n",
                  (unsigned long long)took_ms, (unsigned long long)(most >> 10));
    assert_true(throttled);
    assert_true(most <= FB_MIB(32));
    assert_true(took_ms > 3000 && took_ms < 8000);
    fb_shard_drain(stand.shard, stand.now_ns);
    start = stand.now_ns;
    while (!fb_shard_drained(stand.shard))
        stand_run(&stand, 10 * FB_MS_NS);
    assert_true(stand.now_ns - start < 2 * FB_SEC_NS);
    stand_close(&stand);
}

/* ---- reads ---- */

static void test_a_slow_reader_does_not_starve_others(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand, FB_MIB(8), FB_MIB(64));
    enum {
        KEYS = 64
    };
    uint64_t versions[KEYS];
    for (uint64_t key = 0; key < KEYS; key++) {
        versions[key] = stand_must_put(&stand, key, KIB(256));
        assert_int_equal(stand_end(&stand, stand_start(&stand, FB_OP_DROP_DRAM, 0, key)), FB_OK);
    }
    struct stand_op *slow =
        stand_get_range(&stand, STAND_STOPPED, 1, 0, 0, UINT64_MAX, FB_GET_NO_PROMOTE);
    stand_run(&stand, 10 * FB_MS_NS);
    struct stand_op *ops[KEYS];
    for (uint64_t key = 1; key < KEYS; key++)
        ops[key] = stand_get(&stand, 2 + key % 16, key, FB_GET_NO_PROMOTE);
    for (uint64_t key = 1; key < KEYS; key++) {
        assert_int_equal(stand_end(&stand, ops[key]), FB_OK);
        assert_int_equal(ops[key]->seen, versions[key]);
    }
    assert_false(slow->done);
    stand_go_on(&stand, slow);
    assert_int_equal(stand_end(&stand, slow), FB_OK);
    stand_close(&stand);
}

/* All staging is out with readers that have stopped: the others end by their deadline, and go on as
 * soon as it is back. */
static void test_staging_that_does_not_come_back(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand, FB_MIB(8), FB_MIB(64));
    enum {
        KEYS = 32
    };
    for (uint64_t key = 0; key < KEYS; key++) {
        stand_must_put(&stand, key, KIB(256));
        assert_int_equal(stand_end(&stand, stand_start(&stand, FB_OP_DROP_DRAM, 0, key)), FB_OK);
    }
    struct stand_op *stopped[8];
    for (unsigned i = 0; i < 8; i++)
        stopped[i] = stand_get_range(&stand, STAND_STOPPED, 1, i, 0, UINT64_MAX, FB_GET_NO_PROMOTE);
    stand_run(&stand, 50 * FB_MS_NS);
    stand.deadline_ns = FB_SEC_NS;
    struct stand_op *late = stand_get(&stand, 2, 20, 0);
    assert_int_equal(stand_end(&stand, late), FB_DEADLINE);
    assert_int_equal(late->op.reason, FB_REASON_READ_DEADLINE);
    /* One that withdraws is told from one that was late. */
    stand.deadline_ns = 30 * FB_SEC_NS;
    struct stand_op *withdrawn = stand_get(&stand, 2, 20, 0);
    fb_shard_cancel(stand.shard, stand.now_ns, &withdrawn->op);
    assert_int_equal(stand_end(&stand, withdrawn), FB_DEADLINE);
    assert_int_equal(withdrawn->op.reason, FB_REASON_CANCELLED);
    assert_int_equal(stand_stats(&stand).get_misses[FB_REASON_READ_DEADLINE], 1);
    assert_int_equal(stand_stats(&stand).get_misses[FB_REASON_CANCELLED], 1);
    /* The stopped ones end too, and keep their pages until they say so or are dead. */
    stand_run(&stand, 40 * FB_SEC_NS);
    for (unsigned i = 0; i < 8; i++)
        assert_true(stopped[i]->done);
    assert_true(stand_stats(&stand).staging_bytes > 0);
    fb_shard_peer_gone(stand.shard, stand.now_ns, &stand.peers[1], false);
    stand_pump(&stand);
    assert_true(stand_stats(&stand).staging_bytes > 0);
    fb_shard_peer_gone(stand.shard, stand.now_ns, &stand.peers[1], true);
    stand_pump(&stand);
    assert_int_equal(stand_stats(&stand).staging_bytes, 0);
    assert_true(fb_shard_peer_idle(&stand.peers[1]));
    assert_int_equal(stand_end(&stand, stand_get(&stand, 2, 20, 0)), FB_OK);
    stand_close(&stand);
}

static void test_promotion(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand, FB_MIB(8), FB_MIB(64));
    stand.audits = true;
    uint64_t version = stand_must_put(&stand, 1, KIB(200));
    assert_int_equal(stand_end(&stand, stand_start(&stand, FB_OP_DROP_DRAM, 0, 1)), FB_OK);
    struct stand_op *op = stand_get(&stand, 0, 1, 0);
    assert_int_equal(stand_end(&stand, op), FB_OK);
    assert_int_equal(op->op.tiers, 2);
    op = stand_get(&stand, 0, 1, 0);
    assert_int_equal(stand_end(&stand, op), FB_OK);
    assert_int_equal(op->op.tiers, 1);
    assert_int_equal(op->seen, version);
    /* One-shot reads of many do not push out what is used. */
    for (uint64_t key = 100; key < 160; key++)
        stand_must_put(&stand, key, KIB(200));
    stand_settle(&stand);
    for (uint64_t key = 100; key < 160; key++) {
        stand_run(&stand, 200 * FB_MS_NS);
        assert_int_equal(stand_end(&stand, stand_get(&stand, 0, 1, 0)), FB_OK);
        assert_int_equal(stand_end(&stand, stand_get(&stand, 0, key, 0)), FB_OK);
    }
    op = stand_get(&stand, 0, 1, 0);
    assert_int_equal(stand_end(&stand, op), FB_OK);
    assert_int_equal(op->op.tiers, 1);
    stand_close(&stand);
}

static void test_a_removed_value_is_not_pulled_from_under_a_reader(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand, FB_MIB(16), FB_MIB(64));
    stand.audits = true;
    uint64_t chunk = fb_shard_chunk_bytes(stand.shard);
    uint64_t version = stand_must_put(&stand, 1, chunk * 2);
    struct stand_op *reader = stand_get_range(&stand, STAND_STOPPED, 1, 1, 0, UINT64_MAX, 0);
    assert_int_equal(stand_end(&stand, stand_start(&stand, FB_OP_REMOVE, 0, 1)), FB_OK);
    for (uint64_t key = 10; key < 40; key++)
        stand_must_put(&stand, key, chunk * 2);
    stand_go_on(&stand, reader);
    assert_int_equal(stand_end(&stand, reader), FB_OK);
    assert_int_equal(reader->seen, version);
    /* A longer value is cut short by its removal: a miss, and no mixture. */
    stand_must_put(&stand, 2, chunk * 6);
    reader = stand_get_range(&stand, STAND_STOPPED, 1, 2, 0, UINT64_MAX, 0);
    struct stand_op *upsert = stand_put(&stand, 0, 2, chunk * 6, FB_PUT_UPSERT, FB_PERSIST_DEFAULT);
    assert_int_equal(stand_end(&stand, upsert), FB_OK);
    stand_go_on(&stand, reader);
    assert_int_equal(stand_end(&stand, reader), FB_MISS);
    stand_must_get(&stand, 2, upsert->version);
    stand_close(&stand);
}

/* ---- rot ---- */

static void test_rot_costs_one_key(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand, FB_MIB(8), FB_MIB(64));
    stand.audits = true;
    uint64_t one = stand_must_put(&stand, 1, KIB(64));
    uint64_t two = stand_must_put(&stand, 2, KIB(64));
    assert_int_equal(stand_end(&stand, stand_start(&stand, FB_OP_DROP_DRAM, 0, 1)), FB_OK);
    assert_int_equal(stand_end(&stand, stand_start(&stand, FB_OP_DROP_DRAM, 0, 2)), FB_OK);
    struct fb_explain explain;
    struct fb_digest digest = stand_digest(&stand, 1);
    fb_shard_explain(stand.shard, stand.ns, &digest, &explain);
    assert_true(explain.present && explain.tiers == 2);
    struct fb_log_geometry geometry;
    fb_log_geometry(stand.config.log.capacity_bytes, &geometry);
    uint64_t at = geometry.segments_off + explain.addr.segment * geometry.segment_bytes +
                  (uint64_t)(explain.addr.block + 3) * FB_BLOCK_BYTES;
    fb_sim_damage_flip(stand.sim, 0, at + 100, 4);
    assert_int_equal(stand_must_miss(&stand, 1), FB_REASON_BAD_CHECKSUM);
    stand_must_get(&stand, 2, two);
    assert_int_equal(stand_stats(&stand).checksum_failures, 1);
    stand_run(&stand, FB_SEC_NS);
    /* Its tombstone is durable by now: it does not come back. */
    stand_crash(&stand, FB_SIM_CUT_NONE, 1);
    assert_int_equal(stand_must_miss(&stand, 1), FB_REASON_BAD_CHECKSUM);
    stand_must_get(&stand, 2, two);
    uint64_t again = stand_must_put(&stand, 1, KIB(64));
    assert_true(again != one);
    stand_must_get(&stand, 1, again);
    stand_close(&stand);
}

/* The copy in DRAM is scribbled over, the device's is good: it is read instead. */
static void test_a_spoiled_copy_is_read_from_the_device(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand, FB_MIB(8), FB_MIB(64));
    stand.audits = true;
    uint64_t version = stand_must_put(&stand, 1, KIB(64));
    stand_settle(&stand);
    assert_int_equal(stand_end(&stand, stand_start(&stand, FB_OP_DROP_DRAM, 0, 1)), FB_OK);
    stand_must_get(&stand, 1, version); /* promoted, and known to be good */
    struct stand_op *op = stand_get_range(&stand, STAND_STOPPED, 0, 1, 0, UINT64_MAX, 0);
    fb_shard_chunk_release(stand.shard, stand.now_ns, &op->op, 0, true);
    stand_pump(&stand);
    assert_int_equal(stand_end(&stand, op), FB_MISS);
    assert_int_equal(op->op.reason, FB_REASON_BAD_CHECKSUM);
    op = stand_get(&stand, 0, 1, FB_GET_NO_PROMOTE);
    assert_int_equal(stand_end(&stand, op), FB_OK);
    assert_int_equal(op->op.tiers, 2);
    assert_int_equal(op->seen, version);
    stand_close(&stand);
}

/* ---- a device that fails ---- */

static void test_enospc_heals(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand, FB_MIB(8), FB_MIB(64));
    /* Nothing to give up yet, and no room to grow: not one value can be written. */
    fb_sim_set_room(stand.sim, 0, fb_sim_device_bytes(stand.sim, 0));
    for (uint64_t key = 1; key < 200; key++)
        stand_must_put(&stand, key, KIB(64));
    stand_run(&stand, FB_SEC_NS);
    assert_int_equal(fb_shard_tier(stand.shard), FB_TIER_FULL);
    stand.deadline_ns = FB_SEC_NS;
    struct stand_op *through = stand_put(&stand, 0, 500, KIB(64), 0, FB_PERSIST_THROUGH);
    assert_int_equal(stand_end(&stand, through), FB_NOT_PERSISTED);
    stand_must_get(&stand, 500, through->version);
    stand.deadline_ns = 30 * FB_SEC_NS;
    /* Puts go on: what nobody waits for is dropped, and counted. */
    for (uint64_t key = 1000; key < 1200; key++)
        stand_must_put(&stand, key, KIB(64));
    assert_true(stand_stats(&stand).drops[FB_REASON_EVICTED_DIRTY] > 0);
    stand_run(&stand, 10 * FB_SEC_NS);
    assert_int_equal(fb_shard_tier(stand.shard), FB_TIER_FULL);
    fb_sim_set_room(stand.sim, 0, stand.device.device_bytes[0]);
    stand_run(&stand, FB_SEC_NS);
    assert_int_equal(fb_shard_tier(stand.shard), FB_TIER_ON);
    through = stand_put(&stand, 0, 501, KIB(64), 0, FB_PERSIST_THROUGH);
    assert_int_equal(stand_end(&stand, through), FB_OK);
    stand_close(&stand);
}

static void test_eio_fences_and_the_shard_goes_on(void **state)
{
    (void)state;
    static struct stand stand;
    memset(&stand, 0, sizeof(stand));
    stand.config.devices = 1;
    stand.config.log.io_errors_to_fence = 3;
    stand_open(&stand);
    uint64_t on_device = stand_must_put(&stand, 1, KIB(64));
    assert_int_equal(stand_end(&stand, stand_start(&stand, FB_OP_DROP_DRAM, 0, 1)), FB_OK);
    stand_must_get(&stand, 1, on_device);
    assert_int_equal(stand_end(&stand, stand_start(&stand, FB_OP_DROP_DRAM, 0, 1)), FB_OK);
    struct fb_sim_rates rates = {0};
    rates.ppm[FB_IO_WRITE][FB_FAULT_EIO] = 1000000;
    fb_sim_set_rates(stand.sim, &rates);
    stand.deadline_ns = 5 * FB_SEC_NS;
    struct stand_op *through = stand_put(&stand, 0, 2, KIB(64), 0, FB_PERSIST_THROUGH);
    assert_int_equal(stand_end(&stand, through), FB_IO);
    assert_int_equal(fb_shard_tier(stand.shard), FB_TIER_FENCED);
    stand_must_get(&stand, 2, through->version); /* cached all the same */
    assert_int_equal(stand_must_miss(&stand, 1), FB_REASON_DEVICE_FENCED);
    assert_int_equal(stand_look(&stand, 1, 0, 0), 0);
    /* What the device may hold cannot be replaced any more; everything else can. */
    struct stand_op *old = stand_put(&stand, 0, 1, KIB(64), 0, FB_PERSIST_DEFAULT);
    assert_int_equal(stand_end(&stand, old), FB_IO);
    assert_int_equal(stand_end(&stand, stand_start(&stand, FB_OP_REMOVE, 0, 1)), FB_IO);
    assert_int_equal(stand_end(&stand, stand_start(&stand, FB_OP_WAIT_PERSISTED, 0, 2)),
                     FB_NOT_PERSISTED);
    for (uint64_t key = 100; key < 400; key++) {
        uint64_t version = stand_must_put(&stand, key, KIB(64));
        stand_must_get(&stand, key, version);
    }
    /* New namespaces live in memory; an epoch that would be back after a start is not raised. */
    struct stand_op *space = stand_prepare(&stand, FB_OP_NAMESPACE, 0, 0);
    space->op.ns_fields = "another";
    space->op.ns_fields_bytes = 7;
    stand_go(&stand, space);
    assert_int_equal(stand_end(&stand, space), FB_OK);
    assert_int_equal(stand_end(&stand, stand_start(&stand, FB_OP_EPOCH, 0, 0)), FB_IO);
    fb_shard_audit(stand.shard);
    fb_shard_drain(stand.shard, stand.now_ns);
    stand_pump(&stand);
    assert_true(fb_shard_drained(stand.shard));
    stand_close(&stand);
}

static void test_a_failed_flush_is_written_again(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand, FB_MIB(8), FB_MIB(64));
    stand.audits = true;
    struct fb_sim_rates rates = {0};
    rates.ppm[FB_IO_FLUSH][FB_FAULT_EIO] = 1000000;
    fb_sim_set_rates(stand.sim, &rates);
    struct stand_op *op = stand_put(&stand, 0, 1, KIB(64), 0, FB_PERSIST_THROUGH);
    stand_run(&stand, 2 * FB_MS_NS);
    static const struct fb_sim_rates none;
    fb_sim_set_rates(stand.sim, &none);
    uint64_t version = op->version;
    assert_int_equal(stand_end(&stand, op), FB_OK);
    stand_crash(&stand, FB_SIM_CUT_NONE, 1);
    stand_must_get(&stand, 1, version);
    stand_close(&stand);
}

/* ---- quotas and restarts ---- */

static void test_quota_of_the_device(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand, FB_MIB(8), FB_MIB(64));
    stand.audits = true;
    struct stand_op *op = stand_prepare(&stand, FB_OP_NAMESPACE, 0, 0);
    op->op.ns_fields = "small";
    op->op.ns_fields_bytes = 5;
    op->op.ns_quota_ssd_bytes = KIB(256);
    stand_go(&stand, op);
    assert_int_equal(stand_end(&stand, op), FB_OK);
    stand.ns = op->op.ns;
    stand.epoch = op->op.epoch;
    memcpy(stand.id, op->op.ns_id, sizeof(stand.id));
    fb_secret_derive(&stand.secret, op->op.ns_secret, sizeof(op->op.ns_secret));
    for (uint64_t key = 0; key < 4; key++)
        assert_int_equal(stand_end(&stand,
                                   stand_put(&stand, 0, key, KIB(64), 0, FB_PERSIST_THROUGH)),
                         FB_OK);
    struct stand_op *over = stand_put(&stand, 0, 9, KIB(64), 0, FB_PERSIST_THROUGH);
    assert_int_equal(stand_end(&stand, over), FB_QUOTA);
    stand_must_get(&stand, 9, over->version); /* cached */
    assert_int_equal(stand_end(&stand, stand_start(&stand, FB_OP_REMOVE, 0, 0)), FB_OK);
    assert_int_equal(stand_end(&stand, stand_put(&stand, 0, 10, KIB(64), 0, FB_PERSIST_THROUGH)),
                     FB_OK);
    stand_close(&stand);
}

static void test_restart_finds_what_was_durable(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand, FB_MIB(8), FB_MIB(64));
    enum {
        KEYS = 200
    };
    uint64_t versions[KEYS];
    for (uint64_t key = 0; key < KEYS; key++)
        versions[key] = stand_must_put(&stand, key, KIB(20) + key * 100);
    stand_settle(&stand);
    stand_run(&stand, 10 * FB_MS_NS);
    uint64_t cached = stand_must_put(&stand, 5000, KIB(20));
    stand_must_get(&stand, 5000, cached);
    for (unsigned crash = 0; crash < 3; crash++) {
        stand_crash(&stand, FB_SIM_CUT_NONE, crash);
        fb_shard_audit(stand.shard);
        for (uint64_t key = 0; key < KEYS; key++)
            stand_must_get(&stand, key, versions[key]);
        assert_int_equal(stand_must_miss(&stand, 5000), FB_REASON_NO_RECORD);
    }
    bool seen[KEYS] = {false};
    static uint8_t out[4000];
    uint64_t cursor = 0;
    unsigned count = 0;
    while (cursor != UINT64_MAX) {
        struct stand_op *op = stand_prepare(&stand, FB_OP_LIST, 0, 0);
        op->op.list_cursor = cursor;
        op->op.list_out = out;
        op->op.list_bytes = sizeof(out);
        stand_go(&stand, op);
        assert_int_equal(stand_end(&stand, op), FB_OK);
        cursor = op->op.list_cursor;
        for (uint32_t at = 0; at < op->op.list_bytes; at += 2 + (out[at] | out[at + 1] << 8)) {
            char text[16] = "";
            memcpy(text, out + at + 2 + 4, (size_t)(out[at] | out[at + 1] << 8) - 4);
            unsigned long key = strtoul(text, NULL, 10);
            assert_true(key < KEYS && !seen[key]);
            seen[key] = true;
            count++;
        }
    }
    assert_int_equal(count, KEYS);
    stand_close(&stand);
}

/* Operations that come while recovery goes on wait for it; some run out of time. */
static void test_operations_wait_for_recovery(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand, FB_MIB(8), FB_MIB(64));
    uint64_t version = stand_must_put(&stand, 1, KIB(64));
    stand_settle(&stand);
    stand_run(&stand, 10 * FB_MS_NS);
    fb_sim_power_cut(stand.sim, FB_SIM_CUT_NONE, 1);
    struct fb_region region;
    fb_region_init(&region, stand.memory, stand.memory_bytes);
    stand.shard = fb_shard_init(&stand.config, &region, stand.meta);
    fb_shard_pool_faulted(stand.shard, stand.config.pool_bytes);
    fb_shard_start(stand.shard, stand.now_ns, 0, false);
    for (unsigned i = 0; i < STAND_PEERS; i++)
        fb_shard_peer_open(stand.shard, &stand.peers[i]);
    struct stand_op *get = stand_get(&stand, 0, 1, 0);
    stand.deadline_ns = 1000;
    struct stand_op *hasty = stand_get(&stand, 0, 1, 0);
    stand.deadline_ns = FB_SEC_NS;
    assert_int_equal(fb_shard_ready(stand.shard), 0);
    assert_int_equal(stand_end(&stand, get), FB_OK);
    assert_int_equal(get->seen, version);
    assert_int_equal(stand_end(&stand, hasty), FB_DEADLINE);
    stand_close(&stand);
}

static void test_an_index_too_small_is_refused(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand, FB_MIB(8), FB_MIB(64));
    for (uint64_t key = 0; key < 500; key++)
        stand_must_put(&stand, key, KIB(4));
    stand_settle(&stand);
    stand_run(&stand, 10 * FB_MS_NS);
    fb_sim_power_cut(stand.sim, FB_SIM_CUT_NONE, 1);
    stand.config.index_entries = 256;
    struct fb_region region;
    fb_region_init(&region, stand.memory, stand.memory_bytes);
    stand.shard = fb_shard_init(&stand.config, &region, stand.meta);
    fb_shard_pool_faulted(stand.shard, stand.config.pool_bytes);
    fb_shard_start(stand.shard, stand.now_ns, 0, false);
    fb_shard_peer_open(stand.shard, &stand.peers[0]);
    assert_int_equal(stand_end(&stand, stand_get(&stand, 0, 1, 0)), FB_IO);
    assert_true(fb_shard_ready(stand.shard) < 0);
    assert_non_null(strstr(fb_shard_start_error(stand.shard), "index_entries"));
    stand_close(&stand);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_report_a_in_small),
        cmocka_unit_test(test_all_sizes_through_the_device),
        cmocka_unit_test(test_a_gigabyte_through_the_device),
        cmocka_unit_test(test_modes),
        cmocka_unit_test(test_off_writes_nothing),
        cmocka_unit_test(test_evict_mode_writes_above_the_watermark),
        cmocka_unit_test(test_a_dirty_duplicate_waits_for_its_flush),
        cmocka_unit_test(test_dirty_throttling),
        cmocka_unit_test(test_a_slow_reader_does_not_starve_others),
        cmocka_unit_test(test_staging_that_does_not_come_back),
        cmocka_unit_test(test_promotion),
        cmocka_unit_test(test_a_removed_value_is_not_pulled_from_under_a_reader),
        cmocka_unit_test(test_rot_costs_one_key),
        cmocka_unit_test(test_a_spoiled_copy_is_read_from_the_device),
        cmocka_unit_test(test_enospc_heals),
        cmocka_unit_test(test_eio_fences_and_the_shard_goes_on),
        cmocka_unit_test(test_a_failed_flush_is_written_again),
        cmocka_unit_test(test_quota_of_the_device),
        cmocka_unit_test(test_restart_finds_what_was_durable),
        cmocka_unit_test(test_operations_wait_for_recovery),
        cmocka_unit_test(test_an_index_too_small_is_refused),
    };
    return cmocka_run_group_tests_name("shard_ssd", tests, NULL, NULL);
}
