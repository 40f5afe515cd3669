/*
 * Covers the small parts of base: bits, assertions, pseudo-random numbers, generations, limits and
 * planted bugs.
 */
#include "base/assert.h"
#include "base/bits.h"
#include "base/bug.h"
#include "base/generation.h"
#include "base/limits.h"
#include "base/prng.h"
#include "base/result.h"
#include "test/lib/cm.h"
#include "test/lib/dies.h"

static void test_bits(void **state)
{
    (void)state;
    assert_false(fb_is_power_of_two(0));
    assert_true(fb_is_power_of_two(1));
    assert_false(fb_is_power_of_two(6));
    assert_true(fb_is_power_of_two(UINT64_C(1) << 63));
    assert_int_equal(fb_align_up(0, 8), 0);
    assert_int_equal(fb_align_up(1, 8), 8);
    assert_int_equal(fb_align_up(8, 8), 8);
    assert_int_equal(fb_align_down(15, 8), 8);
    assert_true(fb_is_aligned(16, 8));
    assert_false(fb_is_aligned(12, 8));
    assert_int_equal(fb_div_up(0, 5), 0);
    assert_int_equal(fb_div_up(11, 5), 3);
    assert_true(fb_div_up(UINT64_MAX, 2) == UINT64_C(1) << 63);
    assert_int_equal(fb_log2_floor(1), 0);
    assert_int_equal(fb_log2_floor(4095), 11);
    assert_int_equal(fb_log2_ceil(4095), 12);
    assert_int_equal(fb_log2_ceil(4096), 12);
    assert_true(fb_add_saturated(UINT64_MAX, 1) == UINT64_MAX);
    assert_int_equal(fb_add_saturated(2, 3), 5);
    assert_int_equal(fb_sub_floored(2, 3), 0);
    assert_int_equal(fb_min_u64(2, 3), 2);
    assert_int_equal(fb_max_u64(2, 3), 3);
}

static void align_too_far(void *argument)
{
    (void)fb_align_up(UINT64_MAX - 3, *(uint64_t *)argument);
}

static void reach_the_unreachable(void *argument)
{
    (void)argument;
    FB_UNREACHABLE();
}

static void test_assertions_die_and_say_where(void **state)
{
    (void)state;
    uint64_t step = 8;
    assert_true(test_dies(align_too_far, &step, "bits.h:"));
    assert_true(test_dies(align_too_far, &step, "assertion failed: n <= UINT64_MAX"));
    assert_true(test_dies(reach_the_unreachable, NULL, "small_test.c:"));
    FB_ASSERT(step == 8);
}

static void fail_with_a_long_text(void *argument)
{
    fb_assert_fail(argument, "file.c", 4294967);
}

static void test_a_long_condition_is_cut(void **state)
{
    (void)state;
    static char text[5000];
    for (size_t i = 0; i + 1 < sizeof(text); i++)
        text[i] = 'x';
    assert_true(test_dies(fail_with_a_long_text, text, "file.c:4294967: assertion failed: xxx"));
}

static void test_prng_is_the_published_one(void **state)
{
    (void)state;
    /* The first three numbers of splitmix64 from 1234567, as its authors' code gives them. */
    uint64_t seed = 1234567;
    assert_true(fb_splitmix64(&seed) == UINT64_C(6457827717110365317));
    assert_true(fb_splitmix64(&seed) == UINT64_C(3203168211198807973));
    assert_true(fb_splitmix64(&seed) == UINT64_C(9817491932198370423));
    /* xoshiro256** from the state 1, 2, 3, 4. */
    struct fb_prng prng = {.state = {1, 2, 3, 4}};
    assert_true(fb_prng_next(&prng) == UINT64_C(11520));
    assert_true(fb_prng_next(&prng) == 0);
    assert_true(fb_prng_next(&prng) == UINT64_C(1509978240));
    assert_true(fb_prng_next(&prng) == UINT64_C(1215971899390074240));
}

static void test_prng_ranges(void **state)
{
    (void)state;
    struct fb_prng prng;
    unsigned seen = 0;
    int chances = 0;
    fb_prng_seed(&prng, 0);
    for (int i = 0; i < 10000; i++) {
        uint64_t number = fb_prng_between(&prng, 3, 6);
        assert_true(number >= 3 && number <= 6);
        seen |= 1u << number;
        chances += fb_prng_chance(&prng, 250000);
        assert_false(fb_prng_chance(&prng, 0));
        assert_true(fb_prng_chance(&prng, 1000000));
    }
    assert_int_equal(seen, 0x78);
    assert_true(chances > 2200 && chances < 2800);
    assert_int_equal(fb_prng_between(&prng, 7, 7), 7);
    (void)fb_prng_between(&prng, 0, UINT64_MAX);
}

static void test_prng_fill_is_exact(void **state)
{
    (void)state;
    for (size_t bytes = 0; bytes < 20; bytes++) {
        uint8_t buffer[24] = {0};
        struct fb_prng prng;
        fb_prng_seed(&prng, 5);
        fb_prng_fill(&prng, buffer + 1, bytes);
        assert_int_equal(buffer[0], 0);
        assert_int_equal(buffer[bytes + 1], 0);
    }
}

static void test_generations_are_ordered(void **state)
{
    (void)state;
    struct fb_generation none = {0};
    struct fb_generation old = {.boot = 1, .counter = 100};
    struct fb_generation later = {.boot = 1, .counter = 101};
    struct fb_generation rebooted = {.boot = 2, .counter = 0};
    assert_true(fb_generation_is_none(none));
    assert_false(fb_generation_is_none(rebooted));
    assert_true(fb_generation_compare(none, old) < 0);
    assert_true(fb_generation_compare(old, later) < 0);
    assert_true(fb_generation_compare(rebooted, later) > 0);
    assert_int_equal(fb_generation_compare(old, old), 0);
    assert_true(fb_generation_is_equal(old, old));
    assert_false(fb_generation_is_equal(old, later));
}

static void test_limits_are_those_of_the_contract(void **state)
{
    (void)state;
    assert_int_equal(FB_KEY_BYTES_MAX, 1024);
    assert_int_equal(FB_VALUE_BYTES_MAX, 1 << 30);
    assert_int_equal(FB_LEAF_BYTES, 262144);
    assert_int_equal(FB_SEGMENT_BYTES_MAX, 67108864);
    assert_int_equal(FB_VALUE_LEAVES_MAX, 4096);
}

static void test_bug_names(void **state)
{
    (void)state;
    for (int i = 0; i < FB_BUG_COUNT; i++) {
        enum fb_bug found = FB_BUG_COUNT;
        assert_true(fb_bug_find(fb_bug_name(i), &found));
        assert_int_equal(found, i);
    }
    enum fb_bug bug = FB_BUG_SKIP_CHECKSUM;
    assert_false(fb_bug_find("no_such_bug", &bug));
    assert_false(fb_bug_find("", &bug));
    assert_string_equal(fb_bug_name(FB_BUG_COUNT), "unknown");
    assert_string_equal(fb_bug_name(-1), "unknown");
}

static void test_bugs_are_switched(void **state)
{
    (void)state;
    assert_int_equal(fb_bug_enable(""), 0);
    assert_false(FB_BUG(FB_BUG_BREAK_NOWAIT));
    assert_int_equal(fb_bug_enable("nowait,no_such_bug"), FB_BAD_ARGUMENT);
    assert_false(FB_BUG(FB_BUG_BREAK_NOWAIT));
#ifdef FB_TEST_HOOKS
    assert_int_equal(fb_bug_enable("nowait,skip_checksum"), 0);
    assert_true(FB_BUG(FB_BUG_BREAK_NOWAIT));
    assert_true(FB_BUG(FB_BUG_SKIP_CHECKSUM));
    assert_false(FB_BUG(FB_BUG_TOMBSTONE_LOST));
    assert_int_equal(fb_bug_enable(""), 0);
#else
    assert_int_equal(fb_bug_enable("nowait"), FB_UNSUPPORTED);
#endif
    assert_false(FB_BUG(FB_BUG_BREAK_NOWAIT));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_assertions_die_and_say_where),
        cmocka_unit_test(test_a_long_condition_is_cut),
        cmocka_unit_test(test_prng_is_the_published_one),
        cmocka_unit_test(test_prng_ranges),
        cmocka_unit_test(test_prng_fill_is_exact),
        cmocka_unit_test(test_generations_are_ordered),
        cmocka_unit_test(test_limits_are_those_of_the_contract),
        cmocka_unit_test(test_bug_names),
        cmocka_unit_test(test_bugs_are_switched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
