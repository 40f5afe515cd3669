/*
 * log_reclaim_test.c - giving segments up: what is kept is copied, what is dropped is named, what
 * is removed stays removed, and the history says so, also after a restart. Then the incarnations:
 * no number is ever given out twice. Crashes in the middle of all this are in log_crash_test.c.
 */
#include "test/lib/cm.h"

#include "base/result.h"
#include "engine/log_format.h"
#include "engine/log_private.h"
#include "engine/sched.h"
#include "test/lib/log_rig.h"

static struct rig *open_started(struct rig_options options)
{
    struct rig *rig = rig_open(&options);
    assert_int_equal(rig_start(rig, false), FB_OK);
    rig_run(rig, FB_SEC_NS);
    return rig;
}

/* Puts other keys until so many segments were given up. */
static void churn(struct rig *rig, uint32_t first_key, uint64_t segments)
{
    uint64_t until = rig_stats(rig).segments_reclaimed + segments;
    for (uint32_t i = 0; rig_stats(rig).segments_reclaimed < until; i++) {
        assert_true(i < 20000);
        uint32_t key = first_key + i % (RIG_KEYS - first_key);
        if (rig->options.keep_every == 0 || key % rig->options.keep_every != 0)
            (void)rig_put(rig, key, 60000, true);
        (void)rig_step(rig, FB_SEC_NS);
    }
    rig_run(rig, FB_SEC_NS);
}

static void what_is_kept_is_copied_forward(void **state)
{
    (void)state;
    struct rig *rig =
        open_started((struct rig_options){.seed = 1, .keep_every = 8, .tombs_max = 40});
    for (uint32_t key = 0; key < RIG_KEYS; key += 8)
        (void)rig_put(rig, key, 1000 + key * 300, true);
    rig_run(rig, FB_SEC_NS);
    struct fb_log_addr before[RIG_KEYS];
    for (uint32_t key = 0; key < RIG_KEYS; key += 8)
        before[key] = rig->index[key].addr;
    churn(rig, 0, 120);
    struct fb_log_stats stats = rig_stats(rig);
    assert_true(stats.records_copied >= 8);
    for (uint32_t key = 0; key < RIG_KEYS; key += 8) {
        assert_int_equal(rig_get(rig, key), FB_OK);
        assert_true(rig->index[key].addr.incarnation > before[key].incarnation);
    }
    assert_int_equal(rig_crash(rig, FB_SIM_CUT_NONE, 1), FB_OK);
    for (uint32_t key = 0; key < RIG_KEYS; key += 8)
        assert_int_equal(rig_get(rig, key), FB_OK);
    rig_check(rig);
    rig_close(rig);
}

static void what_is_dropped_is_named(void **state)
{
    (void)state;
    struct rig *rig = open_started((struct rig_options){.seed = 2, .tombs_max = 40});
    uint64_t generations[8];
    for (uint32_t key = 0; key < 8; key++)
        generations[key] = rig_put(rig, key, 3000, true)->generation;
    rig_run(rig, FB_SEC_NS);
    uint64_t generation, when_ms, since_ms;
    assert_false(fb_log_history(rig->log, &rig->digests[0], &generation, &when_ms, &since_ms));
    assert_int_equal(since_ms, 0);
    for (uint32_t i = 0; rig->index[0].generation != 0; i++) {
        assert_true(i < 20000);
        (void)rig_put(rig, 8 + i % 50, 60000, true);
        (void)rig_step(rig, FB_SEC_NS);
    }
    for (unsigned round = 0; round < 2; round++) {
        assert_true(fb_log_history(rig->log, &rig->digests[0], &generation, &when_ms, &since_ms));
        assert_int_equal(generation, generations[0]);
        assert_true(when_ms >= 1000000);
        assert_int_equal(rig_crash(rig, FB_SIM_CUT_NONE, 1), FB_OK);
        assert_int_equal(rig->index[0].generation, 0);
    }
    rig_check(rig);
    rig_close(rig);
}

static void a_copy_that_is_not_answered_is_given_up(void **state)
{
    (void)state;
    struct rig *rig = open_started(
        (struct rig_options){.seed = 3, .keep_every = 2, .tombs_max = 30, .is_heavy_copy = true});
    rig->no_answer_to_copy = true;
    for (uint32_t i = 0; rig_stats(rig).reclaims_given_up == 0; i++) {
        assert_true(i < 20000);
        (void)rig_put(rig, i % RIG_KEYS, 30000, true);
        if (!rig_step(rig, FB_SEC_NS))
            rig_run(rig, 20 * FB_SEC_NS);
    }
    assert_true(rig->copies_asked > 0);
    rig->no_answer_to_copy = false;
    rig_run(rig, 60 * FB_SEC_NS);
    rig_check(rig);
    rig_close(rig);
}

static void one_segment_can_be_asked_for(void **state)
{
    (void)state;
    struct rig *rig = open_started((struct rig_options){.seed = 4});
    fb_log_reclaim_one(rig->log, rig->now_ns); /* none is closed: nothing happens */
    for (uint32_t key = 0; key < 20; key++)
        (void)rig_put(rig, key, 60000, false);
    rig_run(rig, FB_SEC_NS);
    assert_int_equal(rig_stats(rig).segments_reclaimed, 0);
    fb_log_reclaim_one(rig->log, rig->now_ns);
    rig_run(rig, FB_SEC_NS);
    assert_int_equal(rig_stats(rig).segments_reclaimed, 1);
    assert_true(rig->dropped > 0);
    rig_check(rig);
    rig_close(rig);
}

/* ---- tombstones ---- */

static void a_tombstone_lives_as_long_as_what_it_kills(void **state)
{
    (void)state;
    /* Many removes: reclaim goes strictly from the oldest on, and copies tombstones forward. */
    struct rig *rig = open_started((struct rig_options){.seed = 5, .tombs_max = 50});
    uint64_t dropped = 0;
    for (uint32_t round = 0; round < 400; round++) {
        uint32_t key = round % 40;
        (void)rig_put(rig, key, 20000, true);
        rig_run(rig, 2 * FB_MS_NS);
        (void)rig_remove(rig, key);
        rig_run(rig, 2 * FB_MS_NS);
        if (round % 50 == 49) {
            dropped += rig_stats(rig).tombs_dropped;
            assert_int_equal(rig_crash(rig, FB_SIM_CUT_NONE, round), FB_OK);
            for (uint32_t i = 0; i < 40; i++) {
                if (rig->promise[i].removed == rig->promise[i].last)
                    assert_int_equal(rig->index[i].generation, 0);
            }
            rig_check(rig);
        }
    }
    rig_run(rig, 10 * FB_SEC_NS);
    assert_true(dropped > 100);
    assert_true(rig_stats(rig).tombs_now <= 50 + FB_LOG_CLASSES * 16);
    rig_close(rig);
}

static void two_witnesses_of_a_tombstone(void **state)
{
    (void)state;
    for (uint32_t bad = 0; bad < 2; bad++) {
        struct rig *rig = open_started((struct rig_options){.seed = 6});
        (void)rig_put(rig, 2, 5000, true);
        rig_run(rig, FB_SEC_NS);
        struct rig_slot *tomb = rig_remove(rig, 2);
        rig_run(rig, FB_SEC_NS);
        assert_int_equal(tomb->result, FB_OK);
        uint64_t block =
            (rig->geometry.segments_off + tomb->item.addr.segment * rig->geometry.segment_bytes) /
                FB_BLOCK_BYTES +
            tomb->item.addr.block;
        fb_sim_damage_flip(rig->sim, 0, (block + bad) * FB_BLOCK_BYTES + 150, 4);
        assert_int_equal(rig_crash(rig, FB_SIM_CUT_NONE, 1), FB_OK);
        assert_int_equal(rig->index[2].generation, 0);
        assert_true(rig->tombs[2] != 0);
        rig_close(rig);
    }
}

/* ---- lost segments ---- */

static void a_segment_without_header_keeps_its_tombstones(void **state)
{
    (void)state;
    struct rig *rig = open_started((struct rig_options){.seed = 7});
    for (uint32_t key = 0; key < 4; key++)
        (void)rig_put(rig, key * 2, 60000, true);
    rig_run(rig, FB_SEC_NS);
    struct rig_slot *tomb = rig_remove(rig, 2);
    assert_non_null(tomb);
    rig_run(rig, FB_SEC_NS);
    struct fb_log_addr addr = tomb->item.addr;
    uint64_t header =
        (rig->geometry.segments_off + addr.segment * rig->geometry.segment_bytes) / FB_BLOCK_BYTES;
    bool is_apart = addr.segment != rig->index[0].addr.segment;
    fb_sim_damage_zero(rig->sim, 0, header, 2);
    rig->is_lossy = true;
    for (unsigned round = 0; round < 3; round++) {
        assert_int_equal(rig_crash(rig, FB_SIM_CUT_NONE, round), FB_OK);
        assert_int_equal(rig->index[2].generation, 0);
        if (is_apart)
            assert_int_equal(rig_get(rig, 0), FB_OK);
        assert_int_equal(rig_stats(rig).segments_lost, round == 0);
        assert_int_equal(fb_log_is_uncertain(rig->log), round == 0);
        rig_run(rig, FB_SEC_NS); /* it is given up, and its tombstones are carried on */
        assert_false(fb_log_is_uncertain(rig->log));
    }
    rig_close(rig);
}

/* Damages one copy of a header, starts, damages the other, and starts again. */
static void damage_in_turn(struct rig *rig, uint32_t segment, uint32_t first)
{
    for (uint32_t i = 0; i < FB_LOG_HEADER_BLOCKS; i++) {
        uint64_t off = rig->geometry.segments_off + segment * rig->geometry.segment_bytes;
        uint32_t copy = (first + i) % FB_LOG_HEADER_BLOCKS;
        fb_sim_damage_flip(rig->sim, 0, off + copy * FB_BLOCK_BYTES + 40, 3);
        assert_int_equal(rig_crash(rig, FB_SIM_CUT_NONE, i), FB_OK);
        assert_int_equal(rig_stats(rig).segments_lost, 0);
        rig_check(rig);
    }
}

static void one_copy_of_a_header_gets_its_other_again(void **state)
{
    (void)state;
    for (uint32_t first = 0; first < FB_LOG_HEADER_BLOCKS; first++) {
        struct rig *rig = open_started((struct rig_options){.seed = 9});
        for (uint32_t key = 0; key < 20; key++)
            (void)rig_put(rig, key, 60000, false);
        rig_run(rig, FB_SEC_NS);
        uint32_t freed[2];
        for (uint32_t i = 0; i < 2; i++) {
            fb_log_reclaim_one(rig->log, rig->now_ns);
            rig_run(rig, FB_SEC_NS);
            for (uint32_t at = 0; at < rig->log->grown; at++)
                if (rig->log->segments[at].state == FB_LOG_SEG_FREE &&
                    rig->log->segments[at].incarnation != 0 && (i == 0 || at != freed[0]))
                    freed[i] = at;
        }
        /* The segment that was given up last is made free again at each start, this one is not. */
        damage_in_turn(rig, freed[0], first);
        /* Now all are sealed that were open. */
        for (uint32_t at = 0; at < rig->log->grown; at++)
            if (rig->log->segments[at].state == FB_LOG_SEG_SEALED)
                damage_in_turn(rig, at, first);
        rig_close(rig);
    }
}

/* ---- incarnations ---- */

static void no_incarnation_is_given_out_twice(void **state)
{
    (void)state;
    struct rig *rig = open_started((struct rig_options){.seed = 8});
    uint64_t highest = 0;
    for (uint32_t round = 0; round < 60; round++) {
        uint64_t lowest_now = UINT64_MAX, highest_now = 0;
        for (uint32_t i = 0; i < 12; i++) {
            struct rig_slot *slot = rig_put(rig, i * 2 + round % 2, 60000, true);
            if (slot == NULL)
                continue;
            (void)rig_step(rig, FB_SEC_NS);
            (void)rig_step(rig, FB_SEC_NS);
            uint64_t incarnation = slot->item.addr.incarnation;
            if (incarnation == 0)
                continue;
            lowest_now = incarnation < lowest_now ? incarnation : lowest_now;
            highest_now = incarnation > highest_now ? incarnation : highest_now;
        }
        if (highest_now != 0) {
            assert_true(lowest_now > highest);
            highest = highest_now;
        }
        /* Whatever of it reached the device: the next life begins above. */
        enum fb_sim_cut cut = round % FB_SIM_CUT_COUNT;
        assert_int_equal(rig_crash(rig, cut, round), FB_OK);
        rig_check(rig);
    }
    rig_close(rig);
}

/* ---- the scheduler ---- */

static void reads_go_before_writes(void **state)
{
    (void)state;
    struct fb_sched sched;
    struct fb_io_req reads[4], metas[2], flush, *req;
    enum fb_sched_class class;
    fb_sched_init(&sched, 2, 4);
    assert_int_equal(fb_sched_write_room(&sched, 0), FB_SCHED_SLICE_BYTES);
    for (uint32_t i = 0; i < 2; i++)
        fb_sched_push(&sched, FB_SCHED_META, 0, &metas[i]);
    for (uint32_t i = 0; i < 4; i++)
        fb_sched_push(&sched, FB_SCHED_READ, 1000, &reads[i]);
    fb_sched_push(&sched, FB_SCHED_URGENT, 0, &flush);
    struct fb_io_req *order[] = {&flush, &reads[0], &reads[1], &metas[0], &metas[1], NULL};
    for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++)
        assert_ptr_equal(fb_sched_take(&sched, &class), order[i]);
    /* Beside reads one short slice at a time; never none. */
    assert_int_equal(fb_sched_write_room(&sched, 1000), FB_SCHED_SLICE_BYTES_BESIDE_READS);
    fb_sched_write_started(&sched);
    assert_int_equal(fb_sched_write_room(&sched, 1000), 0);
    fb_sched_done(&sched, FB_SCHED_WRITE, 1000);
    for (uint32_t i = 0; i < 4; i++) {
        fb_sched_done(&sched, FB_SCHED_READ, 2000);
        req = fb_sched_take(&sched, &class);
        assert_ptr_equal(req, i < 2 ? &reads[2 + i] : NULL);
    }
    assert_int_equal(fb_sched_write_room(&sched, 2000 + FB_SCHED_READ_QUIET_NS - 1),
                     FB_SCHED_SLICE_BYTES_BESIDE_READS);
    assert_int_equal(fb_sched_write_room(&sched, 2000 + FB_SCHED_READ_QUIET_NS),
                     FB_SCHED_SLICE_BYTES);
    for (uint32_t i = 0; i < 4; i++)
        fb_sched_write_started(&sched);
    assert_int_equal(fb_sched_write_room(&sched, FB_SEC_NS), 0);
    assert_int_equal(sched.reads_in_flight_max, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_kept_is_copied_forward),
        cmocka_unit_test(what_is_dropped_is_named),
        cmocka_unit_test(a_copy_that_is_not_answered_is_given_up),
        cmocka_unit_test(one_segment_can_be_asked_for),
        cmocka_unit_test(a_tombstone_lives_as_long_as_what_it_kills),
        cmocka_unit_test(two_witnesses_of_a_tombstone),
        cmocka_unit_test(a_segment_without_header_keeps_its_tombstones),
        cmocka_unit_test(one_copy_of_a_header_gets_its_other_again),
        cmocka_unit_test(no_incarnation_is_given_out_twice),
        cmocka_unit_test(reads_go_before_writes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
