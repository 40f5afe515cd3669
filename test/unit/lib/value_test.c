/*
 * Covers the value stream that other tests stand on: any split gives the same bytes, each wrong
 * byte is found at its place, and streams of other names differ. Speed is not tested.
 */
#include "test/lib/value.h"

#include <string.h>

#include "base/prng.h"
#include "test/lib/cm.h"
#include "test/lib/dies.h"

#define STREAM_BYTES 4096

static void test_any_split_is_the_same(void **state)
{
    (void)state;
    static uint8_t whole[STREAM_BYTES];
    static uint8_t pieces[STREAM_BYTES];
    struct test_value value = test_value_of(1, "key", 3, 7);
    struct fb_prng prng;
    fb_prng_seed(&prng, 1);
    test_value_fill(value, 5, whole, sizeof(whole));
    for (int i = 0; i < 50; i++) {
        memset(pieces, 0, sizeof(pieces));
        for (size_t at = 0; at < STREAM_BYTES;) {
            size_t step = fb_prng_between(&prng, 0, 40);
            if (step > STREAM_BYTES - at)
                step = STREAM_BYTES - at;
            test_value_fill(value, 5 + at, pieces + at, step);
            assert_true(test_value_check(value, 5 + at, pieces + at, step));
            at += step;
        }
        assert_memory_equal(whole, pieces, STREAM_BYTES);
    }
}

static void test_each_wrong_byte_is_found(void **state)
{
    (void)state;
    uint8_t bytes[50];
    struct test_value value = test_value_of(1, "key", 3, 7);
    for (uint64_t offset = 0; offset < 9; offset++) {
        test_value_fill(value, offset, bytes, sizeof(bytes));
        assert_int_equal(test_value_mismatch(value, offset, bytes, sizeof(bytes)), sizeof(bytes));
        for (size_t i = 0; i < sizeof(bytes); i++) {
            bytes[i] ^= 0x10;
            assert_int_equal(test_value_mismatch(value, offset, bytes, sizeof(bytes)), i);
            assert_false(test_value_check(value, offset, bytes, sizeof(bytes)));
            bytes[i] ^= 0x10;
        }
    }
}

/* How many bytes two streams have in common, place by place. */
static int same_bytes(struct test_value a, uint64_t a_offset, struct test_value b)
{
    static uint8_t left[STREAM_BYTES];
    static uint8_t right[STREAM_BYTES];
    int same = 0;
    test_value_fill(a, a_offset, left, sizeof(left));
    test_value_fill(b, 0, right, sizeof(right));
    for (size_t i = 0; i < STREAM_BYTES; i++)
        same += left[i] == right[i];
    return same;
}

static void test_other_names_are_other_streams(void **state)
{
    (void)state;
    struct test_value value = test_value_of(1, "key", 3, 7);
    int limit = STREAM_BYTES / 256 * 3;
    assert_int_equal(same_bytes(value, 0, value), STREAM_BYTES);
    assert_true(same_bytes(value, 0, test_value_of(2, "key", 3, 7)) < limit);
    assert_true(same_bytes(value, 0, test_value_of(1, "kez", 3, 7)) < limit);
    assert_true(same_bytes(value, 0, test_value_of(1, "key", 3, 8)) < limit);
    assert_true(same_bytes(value, 8, value) < limit);
    assert_true(same_bytes(value, 4096, value) < limit);
}

static void return_quietly(void *argument)
{
    (void)argument;
}

static void test_who_does_not_die_is_noticed(void **state)
{
    (void)state;
    assert_false(test_dies(return_quietly, NULL, ""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_split_is_the_same),
        cmocka_unit_test(test_each_wrong_byte_is_found),
        cmocka_unit_test(test_other_names_are_other_streams),
        cmocka_unit_test(test_who_does_not_die_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
