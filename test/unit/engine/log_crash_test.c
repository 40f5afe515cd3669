/*
 * log_crash_test.c - what was answered survives.
 *
 * A random load of puts, upserts, removes and reads with reclaim under way, cut off
 *   - at every I/O boundary of a scripted load, in each of the four ways of the simulated device,
 * and then started, checked against what had been answered at that moment, used on, and cut again;
 *   - at random moments over many restarts, on devices that fail flushes, are full for a while,
 *     answer short, late or out of order.
 * And each planted bug of the log is found by these very runs. What it cannot show: timing, and
 * what a real file system does.
 */
#include "test/lib/cm.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/bug.h"
#include "base/result.h"
#include "test/lib/dies.h"
#include "test/lib/log_rig.h"

#define SEEDS       25
#define ROUNDS      12
#define OPS         120
#define CLONE_EVERY 1

/* ---- every boundary ---- */

static struct rig *shadow;
static uint64_t clones;

static void crash_here(struct rig *rig, uint64_t boundary)
{
    if (boundary % CLONE_EVERY != 0)
        return;
    for (enum fb_sim_cut cut = 0; cut < FB_SIM_CUT_COUNT; cut++) {
        rig_clone_cut(rig, shadow, cut, boundary);
        if (rig_start(shadow, false) != FB_OK)
            fail_msg("boundary %llu, cut %s: start failed: %s", (unsigned long long)boundary,
                     fb_sim_cut_name(cut), fb_log_start_error(shadow->log));
        rig_check(shadow);
        clones++;
        if (boundary % 16 != cut)
            continue;
        /* And it goes on from there, to be cut again. */
        for (uint32_t i = 0; i < 10; i++)
            rig_random_op(shadow);
        assert_int_equal(rig_crash(shadow, FB_SIM_CUT_RANDOM, boundary), FB_OK);
        rig_check(shadow);
    }
}

static void a_cut_at_every_boundary_loses_nothing(void **state)
{
    (void)state;
    struct rig_options options = {.seed = 11,
                                  .keep_every = 5,
                                  .tombs_max = 60,
                                  .has_boundary = true};
    struct rig *rig = rig_open(&options);
    options.has_boundary = false;
    options.seed = 12;
    shadow = rig_open(&options);
    assert_int_equal(rig_start(rig, false), FB_OK);
    rig_run(rig, FB_SEC_NS);
    /* Fill the log, so that reclaim is at work when it is looked at closely. */
    for (uint32_t i = 0; rig_stats(rig).segments_reclaimed < 4; i++) {
        assert_true(i < 20000);
        uint32_t key = i % RIG_KEYS;
        if (key % options.keep_every != 0 || i < RIG_KEYS)
            (void)rig_put(rig, key, key % options.keep_every != 0 ? 65536 : 9000, false);
        (void)rig_step(rig, FB_SEC_NS);
    }
    rig->boundary = crash_here;
    for (uint32_t i = 0; i < 250; i++)
        rig_random_op(rig);
    rig_run(rig, FB_SEC_NS);
    rig->boundary = NULL;
    rig_check(rig);
    struct fb_log_stats stats = rig_stats(rig);
    assert_true(stats.segments_reclaimed > 5 && stats.records_copied > 5);
    assert_true(clones > 2000);
    printf("%llu crashes, %llu segments reclaimed, %llu copied forward\n",
           (unsigned long long)clones, (unsigned long long)stats.segments_reclaimed,
           (unsigned long long)stats.records_copied);
    rig_close(rig);
    rig_close(shadow);
}

/* ---- random ---- */

static struct fb_log_stats sum;

static void set_rate(struct fb_sim_rates *rates, enum fb_io_op op, enum fb_fault fault,
                     uint32_t ppm)
{
    rates->ppm[op][fault] = ppm;
}

static void random_crashes_lose_nothing(void **state)
{
    (void)state;
    struct fb_sim_rates rates = {0};
    for (uint64_t seed = 100; seed < 100 + SEEDS; seed++)
        rig_live(seed, &rates, RIG_HONEST, false, &sum);
}

static void random_crashes_and_faults_lose_nothing(void **state)
{
    (void)state;
    struct fb_sim_rates rates = {0};
    set_rate(&rates, FB_IO_FLUSH, FB_FAULT_EIO, 10000);
    set_rate(&rates, FB_IO_WRITE, FB_FAULT_EIO, 2000);
    set_rate(&rates, FB_IO_WRITE, FB_FAULT_ENOSPC, 5000);
    set_rate(&rates, FB_IO_GROW, FB_FAULT_ENOSPC, 200000);
    set_rate(&rates, FB_IO_WRITE, FB_FAULT_SHORT, 20000);
    set_rate(&rates, FB_IO_READ, FB_FAULT_SHORT, 20000);
    set_rate(&rates, FB_IO_WRITE, FB_FAULT_DELAYED, 5000);
    set_rate(&rates, FB_IO_WRITE, FB_FAULT_REORDERED, 20000);
    for (uint64_t seed = 300; seed < 300 + SEEDS; seed++)
        rig_live(seed, &rates, RIG_HONEST, false, &sum);
}

static void misreads_bring_nothing_back(void **state)
{
    (void)state;
    struct fb_sim_rates rates = {0};
    set_rate(&rates, FB_IO_READ, FB_FAULT_EIO, 2000);
    set_rate(&rates, FB_IO_READ, FB_FAULT_STALE, 500);
    set_rate(&rates, FB_IO_READ, FB_FAULT_MISDIRECTED, 500);
    for (uint64_t seed = 500; seed < 500 + SEEDS; seed++)
        rig_live(seed, &rates, RIG_MISREADS, false, &sum);
}

static void lost_writes_never_give_wrong_bytes(void **state)
{
    (void)state;
    struct fb_sim_rates rates = {0};
    set_rate(&rates, FB_IO_WRITE, FB_FAULT_TORN, 1000);
    set_rate(&rates, FB_IO_WRITE, FB_FAULT_LOST, 1000);
    set_rate(&rates, FB_IO_WRITE, FB_FAULT_MISDIRECTED, 1000);
    for (uint64_t seed = 700; seed < 700 + SEEDS; seed++)
        rig_live(seed, &rates, RIG_LIES, false, &sum);
}

static void every_path_was_taken(void **state)
{
    (void)state;
    const struct {
        const char *name;
        uint64_t count;
    } seen[] = {{"flush errors", sum.flush_errors},
                {"write errors", sum.write_errors},
                {"short reads", sum.short_reads},
                {"no space", sum.no_space},
                {"torn tail", sum.torn_tail},
                {"sealed", sum.segments_sealed},
                {"retired", sum.segments_retired},
                {"reclaimed", sum.segments_reclaimed},
                {"dropped", sum.records_dropped},
                {"copied", sum.records_copied},
                {"tombstones dropped", sum.tombs_dropped},
                {"recovered", sum.recovered_records},
                {"failed", sum.items_failed}};
    for (size_t i = 0; i < sizeof(seen) / sizeof(seen[0]); i++) {
        printf("%-20s %llu\n", seen[i].name, (unsigned long long)seen[i].count);
        assert_true(seen[i].count > 0);
    }
}

/* A read that takes long, while the log is written round and round. */
static void read_slowly(bool is_hunt)
{
    struct rig_options options = {.seed = 21, .is_hunt = is_hunt};
    struct rig *rig = rig_open(&options);
    assert_int_equal(rig_start(rig, false), FB_OK);
    for (uint32_t key = 0; key < 20; key++)
        assert_non_null(rig_put(rig, key, 60000, false));
    rig_run(rig, FB_SEC_NS);
    struct fb_sim_rates rates = {0};
    set_rate(&rates, FB_IO_READ, FB_FAULT_DELAYED, FB_SIM_PPM);
    fb_sim_set_rates(rig->sim, &rates);
    struct rig_slot *slot = rig_get_begin(rig, 7);
    assert_non_null(slot);
    slot->use = RIG_GET_LOOSE;
    rig_submit(rig);
    fb_sim_set_rates(rig->sim, &(struct fb_sim_rates){0});
    for (uint32_t key = 0; key < 20; key++)
        (void)rig_remove(rig, key); /* nothing but the read keeps the segment */
    uint32_t puts = 0;
    while (slot->use == RIG_GET_LOOSE) {
        (void)rig_put(rig, 20 + puts++ % 40, 60000, true);
        assert_true(rig_step(rig, FB_SEC_NS));
    }
    assert_true(rig_stats(rig).segments_reclaimed > 10);
    rig_check(rig);
    rig_close(rig);
}

static void a_read_pins_its_segment(void **state)
{
    (void)state;
    read_slowly(false);
}

/* ---- the checks themselves ---- */

static void hunt(void *argument)
{
    enum fb_bug bug = *(enum fb_bug *)argument;
    fb_bug_mask = UINT64_C(1) << bug;
    struct fb_sim_rates rates = {0};
    set_rate(&rates, FB_IO_FLUSH, FB_FAULT_EIO, bug == FB_BUG_RETRY_FAILED_FLUSH ? 50000 : 0);
    set_rate(&rates, FB_IO_READ, FB_FAULT_SHORT, bug == FB_BUG_SHORT_READ_AS_FULL ? 50000 : 0);
    if (bug == FB_BUG_REUSE_BEFORE_UNPIN)
        read_slowly(true);
    struct fb_log_stats ignored = {0};
    for (uint64_t seed = 900; seed < 900 + SEEDS; seed++)
        rig_live(seed, &rates, RIG_HONEST, true, &ignored);
    exit(0);
}

static void each_planted_bug_is_found(void **state)
{
    (void)state;
    enum fb_bug bugs[] = {FB_BUG_ACK_BEFORE_FLUSH,   FB_BUG_REUSE_BEFORE_UNPIN,
                          FB_BUG_RETRY_FAILED_FLUSH, FB_BUG_TRUST_STALE_INCARNATION,
                          FB_BUG_SHORT_READ_AS_FULL, FB_BUG_TOMBSTONE_LOST};
    for (size_t i = 0; i < sizeof(bugs) / sizeof(bugs[0]); i++) {
        if (!test_dies(hunt, &bugs[i], "violation: "))
            fail_msg("%s was not found", fb_bug_name(bugs[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cut_at_every_boundary_loses_nothing),
        cmocka_unit_test(random_crashes_lose_nothing),
        cmocka_unit_test(random_crashes_and_faults_lose_nothing),
        cmocka_unit_test(misreads_bring_nothing_back),
        cmocka_unit_test(lost_writes_never_give_wrong_bytes),
        cmocka_unit_test(a_read_pins_its_segment),
        cmocka_unit_test(every_path_was_taken),
        cmocka_unit_test(each_planted_bug_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
