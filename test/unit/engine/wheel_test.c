/*
 * Covers the timer wheel: never early, at most a tick late, any distance, clearing, big jumps of
 * the clock, and random work against a plain list of times.
 */
#include <string.h>

#include "base/prng.h"
#include "engine/wheel.h"
#include "test/lib/cm.h"

#define TICK_NS (UINT64_C(1) << FB_WHEEL_TICK_SHIFT)
#define START   (UINT64_C(77) * 1000 * 1000 * 1000)
#define TIMERS  300
#define STEPS   30000

static void test_fires_in_its_tick(void **state)
{
    (void)state;
    static const uint64_t after[] = {1,
                                     TICK_NS - 1,
                                     TICK_NS,
                                     TICK_NS * 255,
                                     TICK_NS * 256,
                                     TICK_NS * 257 + 5,
                                     TICK_NS * 65535,
                                     TICK_NS * 65536 + 1,
                                     TICK_NS * 16777215,
                                     TICK_NS * 16777216,
                                     TICK_NS * 40000000 + 3};
    for (unsigned i = 0; i < sizeof(after) / sizeof(after[0]); i++) {
        struct fb_wheel wheel;
        struct fb_timer timer;
        fb_wheel_init(&wheel, START);
        fb_timer_init(&timer);
        fb_wheel_set(&wheel, &timer, START + after[i]);
        assert_true(fb_timer_is_set(&timer));
        uint64_t now = START;
        unsigned looks = 0;
        while (fb_wheel_take_due(&wheel, now) == NULL) {
            uint64_t next = fb_wheel_next_ns(&wheel);
            assert_true(next > now);
            now = next;
            assert_true(++looks < 16);
        }
        assert_true(now >= START + after[i]);
        assert_true(now < START + after[i] + TICK_NS);
        assert_int_equal(fb_wheel_next_ns(&wheel), UINT64_MAX);
    }
}

static void test_what_is_past_is_due_at_once(void **state)
{
    (void)state;
    struct fb_wheel wheel;
    struct fb_timer timer;
    fb_wheel_init(&wheel, START);
    fb_timer_init(&timer);
    fb_wheel_set(&wheel, &timer, 5);
    assert_true(fb_wheel_next_ns(&wheel) <= START);
    assert_ptr_equal(fb_wheel_take_due(&wheel, START), &timer);
    assert_false(fb_timer_is_set(&timer));
    fb_wheel_set(&wheel, &timer, UINT64_MAX);
    assert_false(fb_timer_is_set(&timer));
}

static void test_a_jump_of_the_clock_loses_nothing(void **state)
{
    (void)state;
    struct fb_wheel wheel;
    static struct fb_timer timers[TIMERS];
    fb_wheel_init(&wheel, START);
    for (unsigned i = 0; i < TIMERS; i++) {
        fb_timer_init(&timers[i]);
        fb_wheel_set(&wheel, &timers[i], START + i * i * i * TICK_NS);
    }
    unsigned fired = 0;
    while (fb_wheel_take_due(&wheel, START + (UINT64_C(1) << 50)) != NULL)
        fired++;
    assert_int_equal(fired, TIMERS);
}

static void test_random_work(void **state)
{
    (void)state;
    struct fb_wheel wheel;
    static struct fb_timer timers[TIMERS];
    struct fb_prng prng;
    fb_prng_seed(&prng, 3);
    uint64_t now = START;
    fb_wheel_init(&wheel, now);
    for (unsigned i = 0; i < TIMERS; i++)
        fb_timer_init(&timers[i]);
    for (unsigned step = 0; step < STEPS; step++) {
        struct fb_timer *timer = &timers[fb_prng_below(&prng, TIMERS)];
        if (fb_prng_chance(&prng, 200000))
            fb_wheel_clear(&wheel, timer);
        else
            fb_wheel_set(&wheel, timer,
                         now + (UINT64_C(1) << fb_prng_below(&prng, 46)) +
                             fb_prng_below(&prng, TICK_NS));
        now += UINT64_C(1) << fb_prng_below(&prng, 32);
        struct fb_timer *due;
        while ((due = fb_wheel_take_due(&wheel, now)) != NULL)
            assert_true(due->at_ns <= now);
        uint64_t earliest = UINT64_MAX;
        for (unsigned i = 0; i < TIMERS; i++)
            if (fb_timer_is_set(&timers[i]) && timers[i].at_ns < earliest)
                earliest = timers[i].at_ns;
        /* Nothing that is a whole tick past is still set, and the wheel asks to be called in time.
         */
        assert_true(earliest == UINT64_MAX || earliest + TICK_NS > now);
        assert_true(fb_wheel_next_ns(&wheel) >= now - now % TICK_NS);
        if (earliest != UINT64_MAX)
            assert_true(fb_wheel_next_ns(&wheel) < earliest + TICK_NS);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fires_in_its_tick),
        cmocka_unit_test(test_what_is_past_is_due_at_once),
        cmocka_unit_test(test_a_jump_of_the_clock_loses_nothing),
        cmocka_unit_test(test_random_work),
    };
    return cmocka_run_group_tests_name("wheel", tests, NULL, NULL);
}
