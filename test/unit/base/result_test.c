/*
 * Covers result codes and reasons: that each list and its look-ups agree, and that numbers which
 * other programs may send do no harm. Cannot show that a caller picks the right code.
 */
#include "base/result.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

#include "base/reason.h"
#include "test/lib/cm.h"
#include "test/lib/dies.h"

static void test_numbers_are_fixed(void **state)
{
    (void)state;
    assert_int_equal(FB_OK, 0);
    assert_int_equal(FB_EXISTS, 1);
    assert_int_equal(FB_MISS, -1001);
    assert_int_equal(FB_REMOVED, -1013);
    assert_int_equal(FB_INTERNAL, -1021);
    assert_int_equal(fb_result_at(FB_RESULT_COUNT - 1), -1001 - (FB_RESULT_COUNT - 3));
}

static void test_every_code_is_found_by_number_and_name(void **state)
{
    (void)state;
    for (int i = 0; i < FB_RESULT_COUNT; i++) {
        int code = fb_result_at(i);
        int found = 12345;
        assert_int_equal(fb_result_index(code), i);
        assert_true(fb_result_find(fb_result_name(code), &found));
        assert_int_equal(found, code);
        assert_true(strlen(fb_result_text(code)) > 5);
        assert_true(code >= 0 || code < -1000);
    }
}

static void test_foreign_numbers_are_unknown(void **state)
{
    (void)state;
    static const int foreign[] = {
        2, 1000, -1, -1000, -1001 - (FB_RESULT_COUNT - 2), -5000, INT_MAX, INT_MIN,
    };
    for (size_t i = 0; i < sizeof(foreign) / sizeof(foreign[0]); i++) {
        assert_int_equal(fb_result_index(foreign[i]), -1);
        assert_string_equal(fb_result_name(foreign[i]), "UNKNOWN");
        assert_string_equal(fb_result_text(foreign[i]), "unknown result code");
        assert_false(fb_result_is_retryable(foreign[i]));
    }
    int code = 7;
    assert_false(fb_result_find("ok", &code));
    assert_int_equal(code, 7);
}

static void test_retry(void **state)
{
    (void)state;
    assert_false(fb_result_is_retryable(FB_OK));
    assert_false(fb_result_is_retryable(FB_EXISTS));
    assert_false(fb_result_is_retryable(FB_TOO_BIG));
    assert_false(fb_result_is_retryable(FB_STALE_EPOCH));
    assert_true(fb_result_is_retryable(FB_BUSY));
    assert_true(fb_result_is_retryable(FB_DEADLINE));
}

static void test_errno_becomes_a_result(void **state)
{
    (void)state;
    assert_int_equal(fb_result_from_errno(0), FB_OK);
    assert_int_equal(fb_result_from_errno(4096), FB_OK);
    assert_int_equal(fb_result_from_errno(-EIO), FB_IO);
    assert_int_equal(fb_result_from_errno(-ENOSPC), FB_IO);
    assert_int_equal(fb_result_from_errno(-ENOMEM), FB_NO_MEMORY);
    assert_int_equal(fb_result_from_errno(-ETIMEDOUT), FB_DEADLINE);
    assert_int_equal(fb_result_from_errno(-ECONNRESET), FB_CONNECTION);
    assert_int_equal(fb_result_from_errno(-EPIPE), FB_CONNECTION);
    assert_int_equal(fb_result_from_errno(-EPERM), FB_DENIED);
    assert_int_equal(fb_result_from_errno(-ENOSYS), FB_UNSUPPORTED);
}

static void take_a_place_outside(void *argument)
{
    (void)fb_result_at(*(int *)argument);
}

static void test_a_place_outside_the_list_dies(void **state)
{
    (void)state;
    int above = FB_RESULT_COUNT;
    int below = -1;
    assert_true(test_dies(take_a_place_outside, &above, "index < "));
    assert_true(test_dies(take_a_place_outside, &below, "index >= 0"));
}

static void test_every_reason_is_found_by_label(void **state)
{
    (void)state;
    assert_int_equal(FB_REASON_NONE, 0);
    assert_int_equal(FB_REASON_CANCELLED, FB_REASON_COUNT - 1);
    for (int i = 0; i < FB_REASON_COUNT; i++) {
        enum fb_reason found = FB_REASON_COUNT;
        assert_true(fb_reason_find(fb_reason_name(i), &found));
        assert_int_equal(found, i);
        assert_true(strlen(fb_reason_text(i)) > 5);
    }
}

static void test_foreign_reasons_are_unknown(void **state)
{
    (void)state;
    enum fb_reason reason = FB_REASON_TORN;
    assert_string_equal(fb_reason_name(FB_REASON_COUNT), "unknown");
    assert_string_equal(fb_reason_name(-1), "unknown");
    assert_string_equal(fb_reason_text(1 << 20), "unknown reason");
    assert_false(fb_reason_find("TORN", &reason));
    assert_int_equal(reason, FB_REASON_TORN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers_are_fixed),
        cmocka_unit_test(test_every_code_is_found_by_number_and_name),
        cmocka_unit_test(test_foreign_numbers_are_unknown),
        cmocka_unit_test(test_retry),
        cmocka_unit_test(test_errno_becomes_a_result),
        cmocka_unit_test(test_a_place_outside_the_list_dies),
        cmocka_unit_test(test_every_reason_is_found_by_label),
        cmocka_unit_test(test_foreign_reasons_are_unknown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
