/*
 * Covers what must never come back: older generations, removed keys, old epochs, bad records; with
 * the power cut at every I/O boundary of short scripts, and every way in which unflushed writes can
 * fare. And removes, upserts and bumps against writes that are in flight.
 *
 * The rule that is checked: what was acknowledged last counts; what was under way counts or not;
 * and nothing older.
 */
#include <stdlib.h>
#include <string.h>

#include "base/prng.h"
#include "engine/log_private.h"
#include "engine/shard_private.h"
#include "test/lib/cm.h"
#include "test/lib/shard_stand.h"

#define KIB(n)   FB_KIB(n)
#define KEY      7
#define CUTS_MAX 4000
#define RANDOMS  3 /* seeds of cuts that depend on chance */

/* What a script has been told so far. */
struct told {
    uint64_t stored;    /* version that was acknowledged last; 0: none, or removed */
    bool persisted;     /* and is durable */
    uint64_t under_way; /* version of a put that has no answer yet */
    bool removing;      /* a remove or a bump that has no answer yet */
};

typedef void script_fn(struct stand *stand, struct told *told);

static void open_stand(struct stand *stand)
{
    memset(stand, 0, sizeof(*stand));
    stand->config.devices = 1;
    stand->config.pool_bytes = FB_MIB(4);
    stand->config.log.capacity_bytes = FB_MIB(16);
    stand->config.index_entries = 1024;
    stand->config.history_entries = 256;
    stand->config.write_items = 64;
    stand->config.read_slots = 16;
    stand->ops_max = 512;
    stand->device.device_bytes[0] = FB_MIB(16);
    stand->device.unflushed_pages_max = 1u << 13;
    stand->device.meta_blocks_max = 4096;
    stand->device.latency = fb_sim_latency_default();
    stand->device.latency.jitter_percent = 100;
    stand_open(stand);
}

static void put(struct stand *stand, struct told *told, uint64_t bytes, unsigned flags,
                enum fb_persist persist)
{
    if (stand->is_cut)
        return;
    struct stand_op *op = stand_put(stand, 0, KEY, bytes, flags, persist);
    told->under_way = op->version;
    stand_end(stand, op);
    if (!op->done)
        return;
    assert_int_equal(op->op.result, FB_OK);
    told->stored = op->version;
    told->persisted = op->op.persisted;
    told->under_way = 0;
}

static void wait_persisted(struct stand *stand, struct told *told)
{
    if (stand->is_cut)
        return;
    struct stand_op *op = stand_start(stand, FB_OP_WAIT_PERSISTED, 0, KEY);
    stand_end(stand, op);
    if (op->done && op->op.result == FB_OK)
        told->persisted = true;
}

static void remove_key(struct stand *stand, struct told *told)
{
    if (stand->is_cut)
        return;
    told->removing = true;
    struct stand_op *op = stand_start(stand, FB_OP_REMOVE, 0, KEY);
    stand_end(stand, op);
    if (!op->done)
        return;
    assert_int_equal(op->op.result, FB_OK);
    *told = (struct told){0};
}

static void script_upsert(struct stand *stand, struct told *told)
{
    put(stand, told, KIB(20), 0, FB_PERSIST_THROUGH);
    put(stand, told, KIB(20), FB_PUT_UPSERT, FB_PERSIST_OFF);
    put(stand, told, KIB(150), FB_PUT_UPSERT, FB_PERSIST_THROUGH);
    put(stand, told, KIB(20), FB_PUT_UPSERT, FB_PERSIST_BEHIND);
    wait_persisted(stand, told);
}

/* Upserts while the older value is still on its way to the device. */
static void script_upsert_in_flight(struct stand *stand, struct told *told)
{
    for (unsigned i = 0; i < 5; i++) {
        put(stand, told, KIB(20) + i * KIB(100), i == 0 ? 0 : FB_PUT_UPSERT, FB_PERSIST_BEHIND);
        if (!stand->is_cut)
            stand_run(stand, i * 70 * FB_US_NS);
    }
    wait_persisted(stand, told);
}

static void script_remove(struct stand *stand, struct told *told)
{
    put(stand, told, KIB(200), 0, FB_PERSIST_THROUGH);
    remove_key(stand, told);
    put(stand, told, KIB(20), 0, FB_PERSIST_OFF);
    remove_key(stand, told);
    put(stand, told, KIB(20), 0, FB_PERSIST_THROUGH);
    wait_persisted(stand, told);
}

static void script_remove_in_flight(struct stand *stand, struct told *told)
{
    for (unsigned i = 0; i < 4; i++) {
        put(stand, told, KIB(100), 0, FB_PERSIST_BEHIND);
        if (!stand->is_cut)
            stand_run(stand, i * 60 * FB_US_NS);
        remove_key(stand, told);
    }
}

static void script_bump(struct stand *stand, struct told *told)
{
    put(stand, told, KIB(20), 0, FB_PERSIST_THROUGH);
    for (unsigned i = 0; i < 2 && !stand->is_cut; i++) {
        struct stand_op *op = stand_start(stand, FB_OP_EPOCH, 0, 0);
        told->removing = true;
        stand_end(stand, op);
        if (!op->done)
            return;
        assert_int_equal(op->op.result, FB_OK);
        stand->epoch = op->op.epoch;
        *told = (struct told){0};
        put(stand, told, KIB(20), 0, i == 0 ? FB_PERSIST_BEHIND : FB_PERSIST_THROUGH);
    }
}

/* A value is dropped from DRAM while its newer record exists, other keys keep the log busy. */
static void script_busy(struct stand *stand, struct told *told)
{
    for (unsigned i = 0; i < 4; i++) {
        put(stand, told, KIB(40), i == 0 ? 0 : FB_PUT_UPSERT, FB_PERSIST_BEHIND);
        for (uint64_t key = 100; key < 108 && !stand->is_cut; key++)
            stand_put(stand, 1, key + i * 10, KIB(40), 0, FB_PERSIST_BEHIND);
        wait_persisted(stand, told);
    }
    remove_key(stand, told);
}

/* After the crash: what is found is what was told, or what was under way. */
static void check(struct stand *stand, const struct told *told, uint64_t boundary,
                  enum fb_sim_cut cut)
{
    struct stand_op *op = stand_get(stand, 0, KEY, 0);
    int result = stand_end(stand, op);
    bool ok;
    if (result == FB_OK)
        ok = op->seen == told->stored || op->seen == told->under_way;
    else
        ok = result == FB_MISS && !(told->persisted && told->under_way == 0 && !told->removing);
    if (!ok)
        print_error("boundary %llu, cut %s: %s, version %llu; told %llu%s, under way %llu%s\n",
                    (unsigned long long)boundary, fb_sim_cut_name(cut), fb_result_name(result),
                    (unsigned long long)op->seen, (unsigned long long)told->stored,
                    told->persisted ? " (persisted)" : "", (unsigned long long)told->under_way,
                    told->removing ? ", removing" : "");
    assert_true(ok);
}

/* Runs a script with the power cut at one boundary. True if it got there. */
static bool run_cut(script_fn *script, uint64_t boundary, enum fb_sim_cut cut, uint64_t seed)
{
    static struct stand stand;
    open_stand(&stand);
    struct told told = {0};
    stand.cut_at = boundary;
    script(&stand, &told);
    bool was_cut = stand.is_cut;
    stand_crash(&stand, cut, seed);
    check(&stand, &told, boundary, cut);
    /* And once more: what recovery did is as durable as it should be. */
    struct stand_op *op = stand_get(&stand, 0, KEY, 0);
    int before = stand_end(&stand, op);
    uint64_t seen = op->seen;
    stand_crash(&stand, FB_SIM_CUT_NONE, seed);
    op = stand_get(&stand, 0, KEY, 0);
    assert_int_equal(stand_end(&stand, op), before);
    assert_int_equal(op->seen, seen);
    stand_close(&stand);
    return was_cut;
}

static void run_script(script_fn *script)
{
    uint64_t boundary = 1;
    for (bool going = true; going; boundary++) {
        assert_true(boundary < CUTS_MAX);
        going = false;
        for (int cut = 0; cut < FB_SIM_CUT_COUNT; cut++) {
            bool by_chance = cut == FB_SIM_CUT_RANDOM || cut == FB_SIM_CUT_TORN;
            for (unsigned seed = 0; seed < (by_chance ? RANDOMS : 1); seed++)
                going |= run_cut(script, boundary, (enum fb_sim_cut)cut, boundary * 10 + seed);
        }
    }
    print_message("%llu boundaries\n", (unsigned long long)boundary - 1);
}

static void test_upserts(void **state)
{
    (void)state;
    run_script(script_upsert);
    run_script(script_upsert_in_flight);
}

static void test_removes(void **state)
{
    (void)state;
    run_script(script_remove);
    run_script(script_remove_in_flight);
}

static void test_bumps(void **state)
{
    (void)state;
    run_script(script_bump);
}

static void test_others_keep_the_log_busy(void **state)
{
    (void)state;
    run_script(script_busy);
}

/* ---- a torn tombstone, and rot ---- */

/* The segment's first block with tombstones; 0 if there is none. */
static uint32_t first_tomb_block(const struct stand *stand, uint32_t segment)
{
    const struct fb_log *log = stand->shard->log;
    struct fb_log_place place = fb_log_place_of(log, segment);
    static uint8_t block[FB_BLOCK_BYTES];
    for (uint32_t at = FB_LOG_HEADER_BLOCKS; at < log->segment_blocks; at++) {
        uint64_t number = fb_log_segment_off(log, segment) / FB_BLOCK_BYTES + at;
        if (fb_sim_block_kind(stand->sim, 0, number) != FB_SIM_BLOCK_META)
            continue;
        fb_sim_peek(stand->sim, 0, number, block);
        struct fb_log_desc desc;
        struct fb_log_record record;
        struct fb_log_found found;
        if (fb_log_format_desc_get(block, &place, at, &desc) == FB_LOG_BLOCK_GOOD &&
            fb_log_format_desc_next(&desc, &record, &found) == 1 && record.kind == FB_LOG_TOMB)
            return at;
    }
    return 0;
}

/* Damages what a start before this one has found of tombstones: one block. */
static void damage_tomb(struct stand *stand)
{
    static const uint8_t bad[FB_BLOCK_BYTES] = {1};
    const struct fb_log *log = stand->shard->log;
    for (uint32_t segment = 0; segment < log->grown; segment++) {
        uint32_t at = first_tomb_block(stand, segment);
        if (at == 0)
            continue;
        fb_sim_poke(stand->sim, 0, fb_log_segment_off(log, segment) / FB_BLOCK_BYTES + at, bad);
        return;
    }
}

/*
 * The power goes during a remove, and of its two blocks one is torn. The other is believed, so the
 * key can be put anew; that value is cached only, and the power goes again. Then the block rots.
 */
static bool run_rot(uint64_t boundary, uint64_t seed)
{
    static struct stand stand;
    open_stand(&stand);
    struct told told = {0};
    put(&stand, &told, KIB(20), 0, FB_PERSIST_THROUGH);
    uint64_t removed = told.stored;
    stand.cut_at = boundary;
    remove_key(&stand, &told);
    bool was_cut = stand.is_cut;
    stand_crash(&stand, FB_SIM_CUT_TORN, seed);
    struct stand_op *op = stand_get(&stand, 0, KEY, 0);
    if (stand_end(&stand, op) == FB_MISS) {
        put(&stand, &told, KIB(20), 0, FB_PERSIST_OFF);
        damage_tomb(&stand);
        stand_crash(&stand, FB_SIM_CUT_NONE, seed);
        op = stand_get(&stand, 0, KEY, 0);
        if (stand_end(&stand, op) == FB_OK)
            assert_true(op->seen != removed);
        fb_shard_audit(stand.shard);
    }
    stand_close(&stand);
    return was_cut;
}

static void test_a_torn_tombstone_gets_its_second_block_again(void **state)
{
    (void)state;
    bool going = true;
    for (uint64_t boundary = 1; going; boundary++) {
        assert_true(boundary < CUTS_MAX);
        going = false;
        for (uint64_t seed = 0; seed < 20; seed++)
            going |= run_rot(boundary, boundary * 100 + seed);
    }
}

/* ---- without a crash ---- */

/* While the older value is being killed it is still served, and a remove meanwhile wins over both.
 */
static void test_a_remove_meets_a_commit_that_waits(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand);
    stand.audits = true;
    uint64_t old = stand_must_put(&stand, KEY, KIB(20));
    stand_settle(&stand);
    struct stand_op *upsert = stand_put(&stand, 0, KEY, KIB(20), FB_PUT_UPSERT, FB_PERSIST_DEFAULT);
    assert_true(upsert->granted && !upsert->done);
    stand_must_get(&stand, KEY, old);
    struct stand_op *remove = stand_start(&stand, FB_OP_REMOVE, 1, KEY);
    assert_int_equal(stand_end(&stand, remove), FB_OK);
    assert_int_equal(stand_end(&stand, upsert), FB_REMOVED);
    assert_int_equal(stand_must_miss(&stand, KEY), FB_REASON_REMOVED);
    uint64_t again = stand_must_put(&stand, KEY, KIB(20));
    stand_must_get(&stand, KEY, again);
    stand_close(&stand);
}

/* A client dies between its commit and the answer: the commit goes on, or not, and nothing leaks.
 */
static void test_a_client_dies_while_its_commit_waits(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand);
    stand.audits = true;
    stand_must_put(&stand, KEY, KIB(20));
    stand_settle(&stand);
    struct stand_op *upsert = stand_put(&stand, 0, KEY, KIB(20), FB_PUT_UPSERT, FB_PERSIST_DEFAULT);
    assert_false(upsert->done);
    fb_shard_peer_gone(stand.shard, stand.now_ns, &stand.peers[0], true);
    stand_pump(&stand);
    assert_true(upsert->done && !upsert->closed);
    stand_run(&stand, FB_SEC_NS);
    assert_true(upsert->closed && fb_shard_peer_idle(&stand.peers[0]));
    stand_must_get(&stand, KEY, upsert->version);
    stand_close(&stand);
}

static void test_a_through_put_is_removed_while_it_waits(void **state)
{
    (void)state;
    static struct stand stand;
    open_stand(&stand);
    stand.audits = true;
    struct stand_op *through = stand_put(&stand, 0, KEY, KIB(20), 0, FB_PERSIST_THROUGH);
    struct stand_op *duplicate = stand_put(&stand, 1, KEY, KIB(20), 0, FB_PERSIST_THROUGH);
    struct stand_op *waiter = stand_start(&stand, FB_OP_WAIT_PERSISTED, 2, KEY);
    assert_false(through->done || duplicate->done || waiter->done);
    assert_int_equal(stand_end(&stand, stand_start(&stand, FB_OP_REMOVE, 3, KEY)), FB_OK);
    assert_int_equal(stand_end(&stand, through), FB_REMOVED);
    assert_int_equal(stand_end(&stand, waiter), FB_MISS);
    /* The duplicate has become the writer. */
    assert_int_equal(stand_end(&stand, duplicate), FB_OK);
    stand_must_get(&stand, KEY, duplicate->version);
    stand_close(&stand);
}

/* Overwrites, removes and reads of few keys at random, crash after crash, against a plain model. */
static void test_random_work_and_crashes(void **state)
{
    (void)state;
    enum {
        KEYS = 6,
        ROUNDS = 40,
        STEPS = 60
    };
    static struct stand stand;
    open_stand(&stand);
    struct fb_prng prng;
    fb_prng_seed(&prng, 77);
    uint64_t floor[KEYS] = {0}; /* versions below are dead */
    uint64_t persisted[KEYS] = {0};
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (unsigned step = 0; step < STEPS; step++) {
            uint64_t key = fb_prng_below(&prng, KEYS);
            switch (fb_prng_below(&prng, 5)) {
            case 0: {
                uint64_t next = stand.versions + 1;
                int result = stand_end(&stand, stand_start(&stand, FB_OP_REMOVE, 0, key));
                assert_true(result == FB_OK || result == FB_MISS);
                floor[key] = next;
                persisted[key] = 0;
                break;
            }
            case 1: {
                struct stand_op *op = stand_get(&stand, 1, key, 0);
                int result = stand_end(&stand, op);
                assert_true(result == FB_OK ? op->seen >= floor[key] : result == FB_MISS);
                break;
            }
            default: {
                enum fb_persist persist =
                    (enum fb_persist)fb_prng_between(&prng, FB_PERSIST_OFF, FB_PERSIST_THROUGH);
                struct stand_op *op = stand_put(&stand, 0, key, fb_prng_between(&prng, 1, KIB(200)),
                                                FB_PUT_UPSERT, persist);
                assert_int_equal(stand_end(&stand, op), FB_OK);
                floor[key] = op->version;
                persisted[key] = op->op.persisted ? op->version : 0;
            }
            }
        }
        stand_crash(&stand, (enum fb_sim_cut)fb_prng_below(&prng, FB_SIM_CUT_COUNT), round);
        fb_shard_audit(stand.shard);
        for (uint64_t key = 0; key < KEYS; key++) {
            struct stand_op *op = stand_get(&stand, 0, key, 0);
            int result = stand_end(&stand, op);
            assert_true(result == FB_OK ? op->seen >= floor[key] : result == FB_MISS);
            bool given_up = result == FB_MISS && op->op.reason == FB_REASON_RECLAIMED_SSD;
            assert_true(persisted[key] == 0 || result == FB_OK || given_up);
        }
    }
    stand_close(&stand);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_upserts),
        cmocka_unit_test(test_removes),
        cmocka_unit_test(test_bumps),
        cmocka_unit_test(test_others_keep_the_log_busy),
        cmocka_unit_test(test_a_torn_tombstone_gets_its_second_block_again),
        cmocka_unit_test(test_a_remove_meets_a_commit_that_waits),
        cmocka_unit_test(test_a_client_dies_while_its_commit_waits),
        cmocka_unit_test(test_a_through_put_is_removed_while_it_waits),
        cmocka_unit_test(test_random_work_and_crashes),
    };
    return cmocka_run_group_tests_name("shard_kill", tests, NULL, NULL);
}
