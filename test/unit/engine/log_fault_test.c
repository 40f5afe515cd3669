/*
 * log_fault_test.c - one fault at a time: no space, errors, short counts, failed flushes, and what
 * the log says and does then; also how it refuses to start. Faults by chance are in
 * log_crash_test.c.
 */
#include "test/lib/cm.h"

#include <stdio.h>
#include <string.h>

#include "base/result.h"
#include "engine/log_format.h"
#include "test/lib/log_rig.h"

static struct rig *open_started(struct rig_options options)
{
    struct rig *rig = rig_open(&options);
    assert_int_equal(rig_start(rig, false), FB_OK);
    rig_run(rig, FB_SEC_NS);
    return rig;
}

static void set_script(struct rig *rig, struct fb_script *script, const char *text)
{
    char why[128];
    assert_int_equal(fb_script_parse(text, script, why, sizeof(why)), 0);
    fb_sim_set_script(rig->sim, script);
}

/* ---- no space ---- */

static void a_full_file_system_heals(void **state)
{
    (void)state;
    struct rig_options options = {.seed = 1};
    struct rig *rig = rig_open(&options);
    assert_int_equal(rig_start(rig, false), FB_OK);
    struct fb_script script;
    set_script(rig, &script, "grow:*:ENOSPC");
    struct rig_slot *slot = rig_put(rig, 1, 5000, true);
    rig_run(rig, FB_SEC_NS);
    assert_false(slot->is_done);
    assert_int_equal(fb_log_state(rig->log), FB_TIER_FULL);
    assert_true(rig->changes > 0 && rig_stats(rig).no_space > 1);
    assert_int_equal(rig_stats(rig).write_errors, 0);
    rig_run(rig, 10 * FB_SEC_NS);
    fb_sim_set_script(rig->sim, NULL);
    rig_run(rig, FB_SEC_NS);
    assert_true(slot->is_done && slot->result == FB_OK);
    assert_int_equal(fb_log_state(rig->log), FB_TIER_ON);
    rig_check(rig);
    rig_close(rig);
}

static void a_write_that_finds_no_space_goes_again(void **state)
{
    (void)state;
    struct rig *rig = open_started((struct rig_options){.seed = 2, .errors_to_fence = 3});
    struct fb_script script;
    set_script(rig, &script, "write:*:ENOSPC");
    struct rig_slot *slots[8];
    for (uint32_t key = 0; key < 8; key++)
        slots[key] = rig_put(rig, key, 30000, true);
    rig_run(rig, 20 * FB_SEC_NS);
    assert_int_equal(fb_log_state(rig->log), FB_TIER_FULL);
    assert_int_equal(rig->durable_calls + rig->failed_calls, 0);
    fb_sim_set_script(rig->sim, NULL);
    rig_run(rig, FB_SEC_NS);
    for (uint32_t key = 0; key < 8; key++)
        assert_true(slots[key]->is_done && slots[key]->result == FB_OK);
    assert_int_equal(fb_log_state(rig->log), FB_TIER_ON);
    rig_check(rig);
    rig_close(rig);
}

static void below_the_floor_it_lives_on_what_it_has(void **state)
{
    (void)state;
    struct rig *rig = open_started((struct rig_options){.seed = 3});
    for (uint32_t i = 0; i < 60; i++) {
        (void)rig_put(rig, i % 30, 60000, true);
        rig_run(rig, 5 * FB_MS_NS);
    }
    uint64_t bytes = rig_stats(rig).file_bytes_now;
    fb_log_set_floor(rig->log, rig->now_ns, true);
    for (uint32_t i = 0; i < 300; i++) {
        (void)rig_put(rig, i % 30, 60000, true);
        rig_run(rig, 5 * FB_MS_NS);
    }
    assert_int_equal(rig_stats(rig).file_bytes_now, bytes);
    assert_true(rig_stats(rig).segments_reclaimed > 10);
    rig_run(rig, FB_SEC_NS);
    rig_check(rig);
    fb_log_set_floor(rig->log, rig->now_ns, false);
    rig_run(rig, FB_SEC_NS);
    for (uint32_t i = 0; i < 100; i++) {
        (void)rig_put(rig, i % 30, 60000, true);
        rig_run(rig, 5 * FB_MS_NS);
    }
    assert_true(rig_stats(rig).file_bytes_now > bytes);
    rig_check(rig);
    rig_close(rig);
}

/* ---- errors ---- */

static void a_failed_write_retires_its_segment(void **state)
{
    (void)state;
    struct rig *rig = open_started((struct rig_options){.seed = 4});
    struct rig_slot *before = rig_put(rig, 1, 5000, true);
    rig_run(rig, FB_SEC_NS);
    assert_int_equal(before->result, FB_OK);
    struct fb_script script;
    set_script(rig, &script, "write:1:EIO");
    struct rig_slot *failed = rig_put(rig, 3, 5000, true);
    rig_run(rig, FB_SEC_NS);
    assert_int_equal(failed->result, FB_IO);
    assert_int_equal(rig_stats(rig).segments_retired, 1);
    assert_int_equal(fb_log_state(rig->log), FB_TIER_ON);
    struct rig_slot *after = rig_put(rig, 5, 5000, true);
    rig_run(rig, FB_SEC_NS);
    assert_int_equal(after->result, FB_OK);
    assert_int_equal(rig_get(rig, 1), FB_OK);
    assert_int_equal(rig_get(rig, 5), FB_OK);
    assert_int_equal(rig_crash(rig, FB_SIM_CUT_NONE, 1), FB_OK);
    assert_int_equal(rig_get(rig, 1), FB_OK);
    assert_int_equal(rig_get(rig, 5), FB_OK);
    rig_check(rig);
    rig_close(rig);
}

static void a_failed_flush_fails_all_that_it_covers(void **state)
{
    (void)state;
    struct rig *rig = open_started((struct rig_options){.seed = 5});
    struct fb_script script;
    set_script(rig, &script, "flush:1:EIO");
    struct rig_slot *slots[6];
    for (uint32_t key = 0; key < 6; key++)
        slots[key] = rig_put(rig, key * 2, 5000, true);
    rig_run(rig, FB_SEC_NS);
    uint32_t failed = 0;
    for (uint32_t key = 0; key < 6; key++)
        failed += slots[key]->result == FB_IO;
    assert_true(failed > 0);
    assert_int_equal(rig->failed_calls, failed);
    struct fb_log_stats stats = rig_stats(rig);
    assert_int_equal(stats.flush_errors, 1);
    assert_int_equal(stats.items_failed, failed);
    assert_true(stats.segments_retired >= 1);
    for (uint32_t key = 0; key < 6; key++)
        (void)rig_put(rig, key * 2, 6000, true);
    rig_run(rig, FB_SEC_NS);
    assert_int_equal(rig_crash(rig, FB_SIM_CUT_NONE, 3), FB_OK);
    rig_check(rig);
    rig_close(rig);
}

static void so_many_errors_fence_the_device(void **state)
{
    (void)state;
    struct rig *rig = open_started((struct rig_options){.seed = 6, .errors_to_fence = 4});
    struct rig_slot *good = rig_put(rig, 1, 5000, true);
    rig_run(rig, FB_SEC_NS);
    assert_int_equal(good->result, FB_OK);
    struct fb_script script;
    set_script(rig, &script, "write:*:EIO");
    for (uint32_t i = 0; i < 8; i++) {
        struct rig_slot *slot = rig_put(rig, 10 + i, 5000, true);
        rig_run(rig, FB_SEC_NS);
        assert_true(slot->is_done);
        assert_int_equal(slot->result, FB_IO);
    }
    assert_int_equal(fb_log_state(rig->log), FB_TIER_FENCED);
    assert_int_equal(rig_get(rig, 1), FB_IO);
    struct rig_slot *late = rig_put(rig, 40, 100, false);
    assert_int_equal(late->result, FB_IO);
    rig_run(rig, 10 * FB_SEC_NS);
    assert_true(fb_log_idle(rig->log));
    fb_sim_set_script(rig->sim, NULL);
    assert_int_equal(rig_crash(rig, FB_SIM_CUT_NONE, 5), FB_OK);
    assert_int_equal(rig_get(rig, 1), FB_OK);
    rig_close(rig);
}

static void errors_are_forgiven_in_time(void **state)
{
    (void)state;
    struct rig *rig = open_started((struct rig_options){.seed = 7, .errors_to_fence = 3});
    for (uint32_t i = 0; i < 8; i++) {
        struct fb_script script;
        set_script(rig, &script, "write:1:EIO");
        (void)rig_put(rig, i, 5000, true);
        rig_run(rig, FB_SEC_NS);
        rig_run(rig, 1000 * FB_SEC_NS);
        fb_log_tick(rig->log, rig->now_ns, rig->wall_ms);
    }
    assert_int_equal(fb_log_state(rig->log), FB_TIER_ON);
    assert_true(rig_stats(rig).write_errors >= 8);
    rig_close(rig);
}

static void short_counts_are_resumed_or_refused(void **state)
{
    (void)state;
    struct rig *rig = open_started((struct rig_options){.seed = 8});
    struct fb_script script;
    set_script(rig, &script, "write:1:short,write:3:short");
    struct rig_slot *slot = rig_put(rig, 1, 60000, true);
    rig_run(rig, FB_SEC_NS);
    assert_int_equal(slot->result, FB_OK);
    set_script(rig, &script, "read:1:short,read:2:short");
    assert_int_equal(rig_get(rig, 1), FB_OK);
    assert_int_equal(rig_stats(rig).short_reads, 2);
    set_script(rig, &script, "read:*:short");
    assert_int_equal(rig_get(rig, 1), FB_IO);
    set_script(rig, &script, "write:*:short");
    slot = rig_put(rig, 2, 60000, true);
    rig_run(rig, FB_SEC_NS);
    assert_true(slot->is_done);
    fb_sim_set_script(rig->sim, NULL);
    assert_int_equal(rig_get(rig, 1), FB_OK);
    rig_close(rig);
}

/* ---- starts that are refused ---- */

static void expect_refused(struct rig *rig, const char *text)
{
    uint8_t before[2][FB_BLOCK_BYTES], after[2][FB_BLOCK_BYTES];
    for (uint32_t i = 0; i < 2; i++)
        fb_sim_peek(rig->sim, 0, fb_log_format_super_off(i) / FB_BLOCK_BYTES, before[i]);
    assert_int_equal(rig_start(rig, false), FB_IO);
    if (strstr(fb_log_start_error(rig->log), text) == NULL)
        fail_msg("\"%s\" has no \"%s\"", fb_log_start_error(rig->log), text);
    for (uint32_t i = 0; i < 2; i++) {
        fb_sim_peek(rig->sim, 0, fb_log_format_super_off(i) / FB_BLOCK_BYTES, after[i]);
        assert_memory_equal(before[i], after[i], FB_BLOCK_BYTES);
    }
    assert_int_equal(fb_log_state(rig->log), FB_TIER_FENCED);
}

static void what_is_not_ours_is_left_alone(void **state)
{
    (void)state;
    struct rig *rig = open_started((struct rig_options){.seed = 9});
    (void)rig_put(rig, 1, 5000, true);
    rig_run(rig, FB_SEC_NS);
    rig->config.node_id = 43;
    expect_refused(rig, "belongs to node 42, this is node 43");
    rig->config.node_id = 42;
    rig->config.shards = 2;
    expect_refused(rig, "shard 0 of 1");
    rig->config.shards = 1;
    assert_int_equal(rig_start(rig, true), FB_OK); /* a usable log is used, even so */
    assert_int_equal(rig_get(rig, 1), FB_OK);
    rig->config.node_id = 44;
    assert_int_equal(rig_start(rig, true), FB_OK);
    assert_int_equal(rig->index[1].generation, 0);
    assert_int_equal(rig->recovered, 0);
    rig_close(rig);
}

/* Writes until the file has so many bytes. */
static void fill_to(struct rig *rig, uint64_t bytes)
{
    for (uint32_t i = 0; i < 10000 && fb_sim_device_bytes(rig->sim, 0) < bytes; i++) {
        (void)rig_put(rig, i % RIG_KEYS, 60000, false);
        rig_run(rig, 10 * FB_MS_NS);
    }
    assert_true(fb_sim_device_bytes(rig->sim, 0) >= bytes);
}

/* The cap is halved after a kill: as long as nothing was opened beyond it, and never if it would
 * cost a value, or leave the file longer than the cap. */
static void half_the_capacity(void **state)
{
    (void)state;
    const uint64_t whole = FB_MIB(31), half = FB_MIB(16);
    struct rig *rig = open_started((struct rig_options){.seed = 15, .capacity_bytes = whole});
    fill_to(rig, half / 2);
    rig->config.capacity_bytes = half;
    assert_int_equal(rig_crash(rig, FB_SIM_CUT_RANDOM, 1), FB_OK);
    rig_check(rig);
    for (uint32_t i = 0; i < 500; i++) {
        (void)rig_put(rig, i % RIG_KEYS, 60000, false);
        rig_run(rig, 10 * FB_MS_NS);
        assert_true(fb_sim_device_bytes(rig->sim, 0) <= half);
    }
    rig->config.capacity_bytes = whole;
    assert_int_equal(rig_crash(rig, FB_SIM_CUT_RANDOM, 2), FB_OK);
    fill_to(rig, whole * 9 / 10);
    const uint64_t long_file = fb_sim_device_bytes(rig->sim, 0);
    rig->config.capacity_bytes = half;
    assert_int_equal(rig_crash(rig, FB_SIM_CUT_RANDOM, 3), FB_IO);
    expect_refused(rig, "the log was made for 32505856 bytes, configured are 16777216 bytes");
    expect_refused(rig, "start with the old capacity, or format");
    assert_true(fb_sim_device_bytes(rig->sim, 0) <= long_file);
    rig->config.capacity_bytes = whole;
    assert_int_equal(rig_start(rig, false), FB_OK);
    rig_check(rig);
    rig_close(rig);
}

static void copies_of_the_superblock(void **state)
{
    (void)state;
    struct rig *rig = open_started((struct rig_options){.seed = 10});
    (void)rig_put(rig, 1, 5000, true);
    rig_run(rig, FB_SEC_NS);
    uint64_t second = fb_log_format_super_off(1);
    for (uint32_t round = 0; round < 4; round++) {
        uint32_t before = fb_log_boot(rig->log);
        fb_sim_damage_flip(rig->sim, 0, round % 2 == 0 ? 100 : second + 100, 3);
        assert_int_equal(rig_start(rig, false), FB_OK);
        assert_true(fb_log_boot(rig->log) > before);
        assert_int_equal(rig_get(rig, 1), FB_OK);
    }
    fb_sim_damage_flip(rig->sim, 0, 100, 3);
    fb_sim_damage_flip(rig->sim, 0, second + 100, 3);
    expect_refused(rig, "both copies of the superblock are damaged");
    uint8_t text[FB_BLOCK_BYTES] = "some other file";
    fb_sim_poke(rig->sim, 0, 0, text);
    fb_sim_poke(rig->sim, 0, second / FB_BLOCK_BYTES, text);
    expect_refused(rig, "not a log of forebay");
    struct fb_script script;
    set_script(rig, &script, "read:*:EIO");
    expect_refused(rig, "cannot be read");
    assert_int_equal(rig_start(rig, true), FB_IO); /* what cannot be read is not formatted */
    fb_sim_set_script(rig->sim, NULL);
    assert_int_equal(rig_start(rig, true), FB_OK);
    assert_int_equal(fb_log_boot(rig->log), 1);
    rig_close(rig);
}

/* One copy was written alone by the newest start, and is the one that cannot be read at the next:
 * no boot number and no incarnation is given out again. */
static void the_newer_copy_is_lost(void **state)
{
    (void)state;
    struct rig *rig = open_started((struct rig_options){.seed = 12});
    enum {
        NEWER,
        OLDER
    };
    uint64_t block[FB_LOG_SUPER_COPIES];
    uint8_t old[FB_LOG_SUPER_COPIES][FB_BLOCK_BYTES];
    for (uint32_t i = 0; i < FB_LOG_SUPER_COPIES; i++) {
        block[i] = fb_log_format_super_off(i) / FB_BLOCK_BYTES;
        fb_sim_peek(rig->sim, 0, block[i], old[i]);
    }
    (void)rig_put(rig, 1, 5000, true);
    rig_run(rig, FB_SEC_NS);
    for (uint32_t round = 0; round < 6; round++)
        assert_int_equal(rig_start(rig, false), FB_OK);
    uint32_t before = fb_log_boot(rig->log);
    fb_sim_poke(rig->sim, 0, block[OLDER], old[OLDER]);
    fb_sim_damage_flip(rig->sim, 0, block[NEWER] * FB_BLOCK_BYTES + 100, 3);
    assert_int_equal(rig_start(rig, false), FB_OK);
    assert_true(fb_log_boot(rig->log) > before);
    assert_int_equal(rig_get(rig, 1), FB_OK);
    rig_close(rig);
}

static void another_version_is_named(void **state)
{
    (void)state;
    struct rig *rig = open_started((struct rig_options){.seed = 11});
    for (uint32_t i = 0; i < 2; i++) {
        uint8_t block[FB_BLOCK_BYTES];
        uint64_t at = fb_log_format_super_off(i) / FB_BLOCK_BYTES;
        fb_sim_peek(rig->sim, 0, at, block);
        block[4] = 7;
        uint64_t seed;
        memcpy(&seed, block, sizeof(seed));
        uint64_t sum = fb_hash64(block + 16, FB_BLOCK_BYTES - 16, seed);
        memcpy(block + 8, &sum, sizeof(sum));
        fb_sim_poke(rig->sim, 0, at, block);
    }
    expect_refused(rig, "format version 7, this build reads version 1");
    rig_close(rig);
}

/* ---- rot against torn tails ---- */

/* The block of the descriptor that the first unit with data of a key has. */
static uint64_t block_before(const struct rig *rig, uint32_t key)
{
    const struct fb_log_addr *addr = &rig->index[key].addr;
    return (rig->geometry.segments_off + addr->segment * rig->geometry.segment_bytes) /
               FB_BLOCK_BYTES +
           addr->block - 1;
}

static void rot_costs_one_unit_and_is_counted(void **state)
{
    (void)state;
    struct rig *rig = open_started((struct rig_options){.seed = 12});
    for (uint32_t key = 0; key < 6; key++) {
        (void)rig_put(rig, key * 2, 5000, true);
        rig_run(rig, 10 * FB_MS_NS); /* each in a batch of its own */
    }
    rig_run(rig, 5 * FB_SEC_NS); /* idle: the last one gets its witness */
    uint64_t block = block_before(rig, 4);
    fb_sim_damage_flip(rig->sim, 0, block * FB_BLOCK_BYTES + 200, 1);
    rig->is_lossy = true;
    assert_int_equal(rig_crash(rig, FB_SIM_CUT_NONE, 1), FB_OK);
    struct fb_log_stats stats = rig_stats(rig);
    assert_int_equal(stats.rot_descriptors, 1);
    assert_int_equal(stats.torn_tail, 0);
    for (uint32_t key = 0; key < 6; key++)
        assert_int_equal(rig_get(rig, key * 2), key == 2 ? FB_MISS : FB_OK);
    rig_close(rig);
}

static void a_torn_tail_is_not_rot(void **state)
{
    (void)state;
    uint64_t torn = 0;
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct rig *rig = open_started((struct rig_options){.seed = 100 + seed});
        for (uint32_t key = 0; key < 10; key++)
            (void)rig_put(rig, key * 2, 40000, true);
        for (uint32_t i = 0; i < 3 + seed % 12; i++)
            (void)rig_step(rig, FB_SEC_NS);
        assert_int_equal(rig_crash(rig, FB_SIM_CUT_TORN, seed), FB_OK);
        struct fb_log_stats stats = rig_stats(rig);
        torn += stats.torn_tail;
        assert_int_equal(stats.rot_descriptors, 0);
        rig_check(rig);
        rig_close(rig);
    }
    assert_true(torn > 0);
}

static void a_bad_summary_costs_nothing(void **state)
{
    (void)state;
    struct rig *rig = open_started((struct rig_options){.seed = 13});
    for (uint32_t key = 0; key < 40; key++)
        (void)rig_put(rig, key, 5000, false);
    rig_run(rig, FB_SEC_NS);
    fb_log_drain(rig->log, rig->now_ns);
    rig_run(rig, FB_SEC_NS);
    uint64_t first = rig->geometry.segments_off / FB_BLOCK_BYTES;
    uint64_t blocks = rig->geometry.segment_bytes / FB_BLOCK_BYTES;
    for (uint32_t damage = 0; damage < 2; damage++) {
        /* The block before the trailer is the last one of the summary; then the trailer. */
        uint64_t at = (first + blocks - 2 + damage) * FB_BLOCK_BYTES;
        fb_sim_damage_flip(rig->sim, 0, at + 500, 2);
        fb_sim_damage_flip(rig->sim, 0, at + blocks * FB_BLOCK_BYTES + 500, 2);
        assert_int_equal(rig_crash(rig, FB_SIM_CUT_NONE, 1), FB_OK);
        for (uint32_t key = 0; key < 40; key++)
            assert_int_equal(rig_get(rig, key), FB_OK);
    }
    rig_close(rig);
}

static void any_damage_gives_no_wrong_bytes(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 60; seed++) {
        struct rig *rig = open_started((struct rig_options){.seed = 200 + seed});
        for (uint32_t i = 0; i < 100; i++)
            rig_random_op(rig);
        rig_run(rig, FB_SEC_NS);
        if (seed % 3 == 0)
            fb_log_drain(rig->log, rig->now_ns);
        rig_run(rig, FB_SEC_NS);
        uint64_t blocks = fb_sim_device_bytes(rig->sim, 0) / FB_BLOCK_BYTES;
        uint64_t first = rig->geometry.names_off / FB_BLOCK_BYTES;
        for (uint32_t i = 0; i < 20; i++) {
            uint64_t block = fb_prng_between(&rig->prng, first, blocks - 2);
            uint64_t other = fb_prng_between(&rig->prng, first, blocks - 2);
            switch (fb_prng_below(&rig->prng, 5)) {
            case 0:
                fb_sim_damage_flip(rig->sim, 0, block * FB_BLOCK_BYTES + other % 4096, 1);
                break;
            case 1:
                fb_sim_damage_zero(rig->sim, 0, block, 1 + other % 3);
                break;
            case 2:
                fb_sim_damage_swap(rig->sim, 0, block, other);
                break;
            case 3:
                fb_sim_damage_old(rig->sim, 0, block, 1);
                break;
            default:
                if (i == 19)
                    fb_sim_damage_truncate(rig->sim, 0, block * FB_BLOCK_BYTES);
                break;
            }
        }
        rig->is_lossy = true;
        rig->is_lying = true;
        assert_int_equal(rig_crash(rig, FB_SIM_CUT_NONE, seed), FB_OK);
        rig_check(rig);
        rig_run(rig, FB_SEC_NS);
        for (uint32_t i = 0; i < 50; i++)
            rig_random_op(rig);
        rig_check(rig);
        rig_close(rig);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_file_system_heals),
        cmocka_unit_test(a_write_that_finds_no_space_goes_again),
        cmocka_unit_test(below_the_floor_it_lives_on_what_it_has),
        cmocka_unit_test(a_failed_write_retires_its_segment),
        cmocka_unit_test(a_failed_flush_fails_all_that_it_covers),
        cmocka_unit_test(so_many_errors_fence_the_device),
        cmocka_unit_test(errors_are_forgiven_in_time),
        cmocka_unit_test(short_counts_are_resumed_or_refused),
        cmocka_unit_test(what_is_not_ours_is_left_alone),
        cmocka_unit_test(half_the_capacity),
        cmocka_unit_test(copies_of_the_superblock),
        cmocka_unit_test(the_newer_copy_is_lost),
        cmocka_unit_test(another_version_is_named),
        cmocka_unit_test(rot_costs_one_unit_and_is_counted),
        cmocka_unit_test(a_torn_tail_is_not_rot),
        cmocka_unit_test(a_bad_summary_costs_nothing),
        cmocka_unit_test(any_damage_gives_no_wrong_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
