/*
 * Covers a device that is smaller than the data: giving segments up, leases and second chances,
 * keys that are put anew while their old record is being given up, an index that is full, what
 * explain knows afterwards; and report B in small: 32 clients in lockstep over shared prefixes
 * while both tiers evict.
 */
#include <stdlib.h>
#include <string.h>

#include "base/prng.h"
#include "engine/log_private.h"
#include "engine/shard_private.h"
#include "test/lib/cm.h"
#include "test/lib/shard_stand.h"

#define KIB(n) FB_KIB(n)

static void open_small(struct stand *stand)
{
    memset(stand, 0, sizeof(*stand));
    stand->config.devices = 1;
    stand->config.pool_bytes = FB_MIB(4);
    stand->config.log.capacity_bytes = FB_MIB(16);
    stand_open(stand);
}

static void test_the_oldest_goes_with_a_reason(void **state)
{
    (void)state;
    static struct stand stand;
    open_small(&stand);
    enum {
        KEYS = 1500
    };
    static uint64_t versions[KEYS];
    for (uint64_t key = 0; key < KEYS; key++)
        versions[key] = stand_must_put(&stand, key, KIB(20));
    stand_settle(&stand);
    fb_shard_audit(stand.shard);
    assert_int_equal(stand_must_miss(&stand, 0), FB_REASON_RECLAIMED_SSD);
    for (uint64_t key = KEYS - 300; key < KEYS; key++)
        stand_must_get(&stand, key, versions[key]);
    unsigned hits = 0;
    for (uint64_t key = 0; key < KEYS; key++)
        hits += stand_end(&stand, stand_get(&stand, 0, key, FB_GET_NO_PROMOTE)) == FB_OK;
    print_message("%u of %u keys are left on 16 MiB\n", hits, KEYS);
    assert_true(hits > 400);
    /* After a restart the reason is still known, from the log's own history, as far as it reaches.
     */
    uint64_t gone = KEYS;
    do
        gone--;
    while (stand_end(&stand, stand_get(&stand, 0, gone, FB_GET_NO_PROMOTE)) == FB_OK);
    stand_run(&stand, FB_SEC_NS);
    stand_crash(&stand, FB_SIM_CUT_NONE, 1);
    assert_int_equal(stand_must_miss(&stand, gone), FB_REASON_RECLAIMED_SSD);
    struct fb_explain explain;
    struct fb_digest digest = stand_digest(&stand, gone);
    fb_shard_explain(stand.shard, stand.ns, &digest, &explain);
    assert_false(explain.present);
    assert_int_equal(explain.reason, FB_REASON_RECLAIMED_SSD);
    assert_true(explain.when_ms > 0);
    /* What memory knows of an older value is no answer, of a newer one it is. */
    fb_history_add(&stand.shard->history, digest, explain.generation - 1, FB_REASON_REMOVED, 0);
    assert_int_equal(stand_must_miss(&stand, gone), FB_REASON_RECLAIMED_SSD);
    fb_history_add(&stand.shard->history, digest, explain.generation + 1, FB_REASON_REMOVED, 0);
    assert_int_equal(stand_must_miss(&stand, gone), FB_REASON_REMOVED);
    stand_close(&stand);
}

/* The reason in a tombstone is believed after a restart although the history has come round, if it
 * is newer than the oldest that the history knows. That an older one is not: sim. */
static void test_a_tombstone_says_why_after_a_restart(void **state)
{
    (void)state;
    static struct stand stand;
    open_small(&stand);
    enum {
        KEYS = 1500
    };
    for (uint64_t key = 0; key < KEYS; key++)
        stand_must_put(&stand, key, KIB(20));
    stand_settle(&stand);
    assert_true(fb_log_history_since(stand.shard->log) != 0); /* it has come round */
    assert_int_equal(stand_end(&stand, stand_start(&stand, FB_OP_REMOVE, 0, KEYS - 1)), FB_OK);
    stand_crash(&stand, FB_SIM_CUT_NONE, 1);
    assert_int_equal(stand_must_miss(&stand, KEYS - 1), FB_REASON_REMOVED);
    stand_close(&stand);
}

static void test_holds_survive_the_reclaim_of_their_segments(void **state)
{
    (void)state;
    static struct stand stand;
    open_small(&stand);
    enum {
        HELD = 40
    };
    uint64_t versions[HELD];
    for (uint64_t key = 0; key < HELD; key++) {
        versions[key] = stand_must_put(&stand, key, KIB(60));
        assert_true((stand_look(&stand, key, 60000, 1) & FB_FOUND_HELD) != 0);
    }
    for (uint64_t key = 100; key < 1100; key++)
        stand_must_put(&stand, key, KIB(60));
    fb_shard_audit(stand.shard);
    assert_true(stand_log_stats(&stand).records_copied > 0);
    for (uint64_t key = 0; key < HELD; key++) {
        struct stand_op *op = stand_get(&stand, 0, key, FB_GET_HELD);
        assert_int_equal(stand_end(&stand, op), FB_OK);
        assert_int_equal(op->seen, versions[key]);
    }
    /* Read once as agreed: the holds are over, and soon the values may go. */
    stand_run(&stand, 6 * FB_SEC_NS);
    for (uint64_t key = 2000; key < 4000; key++)
        stand_must_put(&stand, key, KIB(60));
    assert_int_equal(stand_stats(&stand).leased_bytes, 0);
    fb_shard_audit(stand.shard);
    stand_close(&stand);
}

/*
 * Tombstones are too many, and the oldest segment, which they wait for, is held: it is copied
 * forward. Were it put off, they would be copied round through all the others without end.
 */
static void test_held_segments_do_not_keep_tombstones(void **state)
{
    (void)state;
    static struct stand stand;
    open_small(&stand);
    enum {
        HELD = 30
    };
    for (uint64_t key = 0; key < HELD; key++) {
        stand_must_put(&stand, key, KIB(60));
        assert_true((stand_look(&stand, key, 3600000, 1) & FB_FOUND_HELD) != 0);
    }
    stand_settle(&stand);
    for (uint64_t key = 100; key < 6100; key++) {
        stand_must_put(&stand, key, KIB(4));
        stand_settle(&stand);
        assert_int_equal(stand_end(&stand, stand_start(&stand, FB_OP_REMOVE, 0, key)), FB_OK);
    }
    struct fb_log_stats log = stand_log_stats(&stand);
    print_message("%llu tombstones written, %llu segments given up\n",
                  (unsigned long long)log.tombs_written,
                  (unsigned long long)log.segments_reclaimed);
    assert_true(log.segments_reclaimed < 500);
    for (uint64_t key = 0; key < HELD; key++)
        assert_int_equal(stand_end(&stand, stand_get(&stand, 0, key, FB_GET_HELD)), FB_OK);
    fb_shard_audit(stand.shard);
    stand_close(&stand);
}

static void test_holds_take_a_share_of_the_device(void **state)
{
    (void)state;
    static struct stand stand;
    open_small(&stand);
    unsigned held = 0;
    unsigned readable = 0;
    for (uint64_t key = 0; key < 200; key++) {
        stand_must_put(&stand, key, KIB(60));
        unsigned found = stand_look(&stand, key, 60000, 1);
        held += (found & FB_FOUND_HELD) != 0;
        readable += (found & FB_FOUND_READABLE) != 0;
    }
    assert_int_equal(readable, 200);
    assert_int_equal(held, FB_MIB(4) / KIB(60)); /* a quarter of 16 MiB */
    /* Puts go on for ever. */
    for (uint64_t key = 1000; key < 3000; key++)
        stand_must_put(&stand, key, KIB(60));
    for (uint64_t key = 0; key < 60; key++)
        assert_int_equal(stand_end(&stand, stand_get(&stand, 0, key, FB_GET_HELD)), FB_OK);
    stand_close(&stand);
}

static void test_what_is_read_gets_a_second_chance(void **state)
{
    (void)state;
    static struct stand stand;
    open_small(&stand);
    uint64_t version = stand_must_put(&stand, 0, KIB(60));
    for (uint64_t key = 100; key < 1100; key++) {
        stand_must_put(&stand, key, KIB(60));
        if (key % 50 == 0)
            stand_must_get(&stand, 0, version);
    }
    stand_must_get(&stand, 0, version);
    stand_close(&stand);
}

/* Keys are put again and again while the device gives their old records up: nothing old ever shows.
 */
static void test_puts_over_what_is_being_given_up(void **state)
{
    (void)state;
    static struct stand stand;
    open_small(&stand);
    enum {
        KEYS = 400,
        ROUNDS = 12
    };
    static uint64_t versions[KEYS];
    struct fb_prng prng;
    fb_prng_seed(&prng, 5);
    memset(versions, 0, sizeof(versions));
    for (unsigned round = 0; round < ROUNDS; round++) {
        static struct stand_op *ops[KEYS];
        for (uint64_t key = 0; key < KEYS; key++) {
            unsigned flags = fb_prng_chance(&prng, 300000) ? FB_PUT_UPSERT : 0;
            ops[key] = stand_put(&stand, key % 8, key, KIB(4) * fb_prng_between(&prng, 1, 20),
                                 flags, FB_PERSIST_DEFAULT);
        }
        for (uint64_t key = 0; key < KEYS; key++) {
            int result = stand_end(&stand, ops[key]);
            assert_true(result == FB_OK || result == FB_EXISTS);
            if (result == FB_OK)
                versions[key] = ops[key]->version;
        }
        for (uint64_t key = 0; key < KEYS; key++) {
            struct stand_op *op = stand_get(&stand, 0, key, 0);
            if (stand_end(&stand, op) == FB_OK)
                assert_int_equal(op->seen, versions[key]);
        }
        if (round % 3 == 2) {
            stand_crash(&stand, FB_SIM_CUT_RANDOM, round);
            for (uint64_t key = 0; key < KEYS; key++) {
                struct stand_op *op = stand_get(&stand, 0, key, 0);
                if (stand_end(&stand, op) == FB_OK)
                    assert_int_equal(op->seen, versions[key]);
            }
        }
        fb_shard_audit(stand.shard);
    }
    stand_close(&stand);
}

/* True if the log has a copy of the key that it has not placed yet. */
static bool is_copy_queued(const struct stand *stand, uint64_t key)
{
    struct fb_digest digest = stand_digest(stand, key);
    const struct fb_log *log = stand->shard->log;
    const struct fb_list *queues[] = {&log->copies, &log->queues[0], &log->queues[1]};
    for (size_t q = 0; q < FB_ARRAY_COUNT(queues); q++)
        FB_LIST_FOREACH (link, queues[q]) {
            const struct fb_log_item *item = FB_LIST_ITEM(link, const struct fb_log_item, link);
            const struct fb_write *slot = &stand->shard->writes[item->cookie];
            if (&slot->item == item && slot->kind == FB_WRITE_COPY &&
                fb_digest_is_equal(slot->digest, digest))
                return true;
        }
    return false;
}

/* A copy that waits for its place in the log is taken back when its value is killed: behind the
 * tombstone, in a younger segment, it would outlive it. */
static void test_no_copy_is_placed_behind_a_tombstone(void **state)
{
    (void)state;
    static struct stand stand;
    open_small(&stand);
    unsigned killed = 0;
    for (uint64_t key = 0; killed < 5; key++) {
        assert_true(key < 4000);
        stand_must_put(&stand, key, KIB(60));
        if (key % 8 == 0)
            (void)stand_look(&stand, key, 60000, 1);
        if (stand.shard->log->reclaim.copying == 0)
            continue;
        /* As if all descriptors were in use: nothing is placed. */
        uint32_t descs = stand.shard->log->free_desc_count;
        stand.shard->log->free_desc_count = 0;
        stand_run(&stand, FB_MS_NS);
        for (uint64_t old = 0; old < key; old++) {
            if (!is_copy_queued(&stand, old))
                continue;
            (void)stand_start(&stand, FB_OP_REMOVE, 0, old);
            assert_false(is_copy_queued(&stand, old));
            killed++;
        }
        stand.shard->log->free_desc_count += descs;
    }
    stand_settle(&stand);
    stand_run(&stand, FB_SEC_NS);
    fb_shard_audit(stand.shard);
    stand_close(&stand);
}

static void test_a_full_index_gives_segments_up(void **state)
{
    (void)state;
    static struct stand stand;
    memset(&stand, 0, sizeof(stand));
    stand.config.devices = 1;
    stand.config.pool_bytes = FB_MIB(4);
    stand.config.log.capacity_bytes = FB_MIB(64);
    stand.config.index_entries = 512;
    stand_open(&stand);
    uint64_t last = 0;
    for (uint64_t key = 0; key < 4000; key++)
        last = stand_must_put(&stand, key, KIB(4));
    stand_must_get(&stand, 3999, last);
    struct fb_shard_stats stats = stand_stats(&stand);
    assert_true(stats.entries <= 512);
    assert_true(stats.drops[FB_REASON_RECLAIMED_SSD] > 2000);
    stand_crash(&stand, FB_SIM_CUT_NONE, 1);
    fb_shard_audit(stand.shard);
    stand_close(&stand);
}

/* Values of several parts lie in several segments: they go as a whole. */
static void test_large_values_go_as_a_whole(void **state)
{
    (void)state;
    static struct stand stand;
    open_small(&stand);
    uint64_t versions[60];
    for (uint64_t key = 0; key < 60; key++)
        versions[key] = stand_must_put(&stand, key, KIB(700));
    stand_settle(&stand);
    unsigned hits = 0;
    for (uint64_t key = 0; key < 60; key++) {
        struct stand_op *op = stand_get(&stand, 0, key, FB_GET_NO_PROMOTE);
        if (stand_end(&stand, op) != FB_OK)
            continue;
        assert_int_equal(op->seen, versions[key]);
        hits++;
    }
    assert_true(hits >= 10);
    fb_shard_audit(stand.shard);
    stand_crash(&stand, FB_SIM_CUT_NONE, 1);
    fb_shard_audit(stand.shard);
    unsigned after = 0;
    for (uint64_t key = 0; key < 60; key++) {
        struct stand_op *op = stand_get(&stand, 0, key, 0);
        if (stand_end(&stand, op) != FB_OK)
            continue;
        assert_int_equal(op->seen, versions[key]);
        after++;
    }
    assert_int_equal(after, hits);
    stand_close(&stand);
}

/* ---- report B ---- */

enum {
    CLIENTS = 32,
    BLOCKS = 24,
    TURNS = 60
};

static uint64_t block_key(uint64_t chain, unsigned block)
{
    return 1000 + chain * 64 + block;
}

/* Looks a chain up with a hold, reads the held prefix, puts the rest. Returns reads that failed. */
static void take_turn(struct stand *stand, struct fb_prng *prng, unsigned turn, unsigned *failed,
                      unsigned *held, unsigned *duplicates)
{
    static struct stand_op *gets[CLIENTS][BLOCKS];
    static struct stand_op *puts[CLIENTS][BLOCKS];
    static uint8_t found[CLIENTS][BLOCKS];
    static struct fb_digest digests[CLIENTS][BLOCKS];
    struct stand_op *looks[CLIENTS];
    uint64_t chain[CLIENTS];
    for (unsigned c = 0; c < CLIENTS; c++) {
        chain[c] = turn + fb_prng_below(prng, 4);
        for (unsigned b = 0; b < BLOCKS; b++)
            digests[c][b] = stand_digest(stand, block_key(chain[c], b));
        looks[c] = stand_prepare(stand, FB_OP_LOOKUP, c, 0);
        looks[c]->op.digests = digests[c];
        looks[c]->op.found = found[c];
        looks[c]->op.n = BLOCKS;
        looks[c]->op.hold_ms = 30000;
        looks[c]->op.hold_loads = 1;
        stand_go(stand, looks[c]);
    }
    for (unsigned c = 0; c < CLIENTS; c++)
        assert_int_equal(stand_end(stand, looks[c]), FB_OK);
    for (unsigned c = 0; c < CLIENTS; c++)
        for (unsigned b = 0; b < BLOCKS; b++) {
            bool is_held = (found[c][b] & FB_FOUND_HELD) != 0;
            gets[c][b] = is_held ? stand_get(stand, c, block_key(chain[c], b), FB_GET_HELD) : NULL;
            puts[c][b] =
                (found[c][b] & FB_FOUND_READABLE) != 0
                    ? NULL
                    : stand_put(stand, c, block_key(chain[c], b), KIB(20), 0, FB_PERSIST_DEFAULT);
        }
    for (unsigned c = 0; c < CLIENTS; c++)
        for (unsigned b = 0; b < BLOCKS; b++) {
            if (gets[c][b] != NULL) {
                *held += 1;
                *failed += stand_end(stand, gets[c][b]) != FB_OK;
            }
            if (puts[c][b] != NULL) {
                int result = stand_end(stand, puts[c][b]);
                assert_true(result == FB_OK || result == FB_EXISTS);
                *duplicates += result == FB_EXISTS;
            }
        }
}

static void test_report_b_in_small(void **state)
{
    (void)state;
    static struct stand stand;
    open_small(&stand);
    struct fb_prng prng;
    fb_prng_seed(&prng, 9);
    unsigned failed = 0;
    unsigned held = 0;
    unsigned duplicates = 0;
    for (unsigned turn = 0; turn < TURNS; turn++)
        take_turn(&stand, &prng, turn, &failed, &held, &duplicates);
    /* Old chains come back, so that the device is read and both tiers evict. */
    for (unsigned turn = 0; turn < TURNS; turn++)
        take_turn(&stand, &prng, (unsigned)fb_prng_below(&prng, TURNS), &failed, &held,
                  &duplicates);
    struct fb_shard_stats stats = stand_stats(&stand);
    print_message("%u held reads, %u failed; %u duplicates, %llu of them met an unfinished put; "
                  "%llu given up\n",
                  held, failed, duplicates, (unsigned long long)stats.put_waited_key,
                  (unsigned long long)stats.drops[FB_REASON_RECLAIMED_SSD]);
    assert_int_equal(failed, 0);
    assert_true(stats.put_waited_key >= 1000);
    assert_true(held > 10000);
    stand_close(&stand);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_oldest_goes_with_a_reason),
        cmocka_unit_test(test_a_tombstone_says_why_after_a_restart),
        cmocka_unit_test(test_holds_survive_the_reclaim_of_their_segments),
        cmocka_unit_test(test_held_segments_do_not_keep_tombstones),
        cmocka_unit_test(test_holds_take_a_share_of_the_device),
        cmocka_unit_test(test_what_is_read_gets_a_second_chance),
        cmocka_unit_test(test_puts_over_what_is_being_given_up),
        cmocka_unit_test(test_no_copy_is_placed_behind_a_tombstone),
        cmocka_unit_test(test_a_full_index_gives_segments_up),
        cmocka_unit_test(test_large_values_go_as_a_whole),
        cmocka_unit_test(test_report_b_in_small),
    };
    return cmocka_run_group_tests_name("shard_reclaim", tests, NULL, NULL);
}
