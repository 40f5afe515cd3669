/*
 * Covers sizes and durations as people write them: every unit, fractions, overflow, and that an
 * error leaves the result alone and says what is wrong.
 */
#include "base/size.h"

#include <string.h>

#include "base/bits.h"
#include "base/limits.h"
#include "base/result.h"
#include "test/lib/cm.h"

static const uint64_t untouched = UINT64_C(0x1234);

static uint64_t size_of(const char *text)
{
    char error[FB_SIZE_ERROR_BYTES] = "";
    uint64_t bytes = untouched;
    int code = fb_size_parse(text, &bytes, error, sizeof(error));
    if (code != 0)
        fail_msg("%s", error);
    return bytes;
}

static uint64_t duration_of(const char *text)
{
    char error[FB_SIZE_ERROR_BYTES] = "";
    uint64_t duration_ns = untouched;
    int code = fb_duration_parse(text, &duration_ns, error, sizeof(error));
    if (code != 0)
        fail_msg("%s", error);
    return duration_ns;
}

static void test_sizes(void **state)
{
    (void)state;
    assert_true(size_of("64GB") == UINT64_C(1) << 36);
    assert_true(size_of("64GiB") == UINT64_C(1) << 36);
    assert_true(size_of("64G") == UINT64_C(1) << 36);
    assert_true(size_of("64gb") == UINT64_C(1) << 36);
    assert_true(size_of(" 64 GB") == UINT64_C(1) << 36);
    assert_true(size_of("68719476736") == UINT64_C(1) << 36);
    assert_true(size_of("0") == 0);
    assert_true(size_of("1B") == 1);
    assert_true(size_of("3kb") == 3072);
    assert_true(size_of("2MiB") == FB_MIB(2));
    assert_true(size_of("1.5GB") == FB_MIB(1536));
    assert_true(size_of("0.5K") == 512);
    assert_true(size_of("1.9B") == 1);
    assert_true(size_of("2TB") == FB_TIB(2));
    assert_true(size_of("18446744073709551615") == UINT64_MAX);
    assert_true(size_of("0.333333333333333333333333333KB") == 341);
}

static void test_durations(void **state)
{
    (void)state;
    assert_true(duration_of("30s") == 30 * FB_SEC_NS);
    assert_true(duration_of("5ms") == 5 * FB_MS_NS);
    assert_true(duration_of("200us") == 200 * FB_US_NS);
    assert_true(duration_of("7ns") == 7);
    assert_true(duration_of("1.5s") == 1500 * FB_MS_NS);
    assert_true(duration_of("2m") == 120 * FB_SEC_NS);
    assert_true(duration_of("2min") == 120 * FB_SEC_NS);
    assert_true(duration_of("1h") == 3600 * FB_SEC_NS);
    assert_true(duration_of("1 d") == 86400 * FB_SEC_NS);
    assert_true(duration_of("0") == 0);
    assert_true(duration_of("0.0") == 0);
}

struct bad {
    const char *text;
    const char *says;
};

static void check_bad(int (*parse)(const char *, uint64_t *, char *, size_t), const struct bad *bad)
{
    char error[FB_SIZE_ERROR_BYTES] = "";
    uint64_t result = untouched;
    assert_int_equal(parse(bad->text, &result, error, sizeof(error)), FB_BAD_ARGUMENT);
    assert_true(result == untouched);
    if (strstr(error, bad->says) == NULL)
        fail_msg("'%s' gave: %s", bad->text, error);
    assert_int_equal(parse(bad->text, &result, NULL, 0), FB_BAD_ARGUMENT);
}

static void test_bad_sizes(void **state)
{
    (void)state;
    static const struct bad bads[] = {
        {"", "begins with a digit"},     {"GB", "begins with a digit"},
        {".5GB", "begins with a digit"}, {"-1GB", "cannot be negative"},
        {"12XB", "unknown unit 'XB'"},   {"12GBs", "use B, KB, MB, GB or TB"},
        {"1.2.3GB", "unknown unit"},     {"18446744073709551616", "too large"},
        {"16777216TB", "too large"},     {"99999999999999999999999", "too large"},
    };
    for (size_t i = 0; i < FB_ARRAY_COUNT(bads); i++)
        check_bad(fb_size_parse, &bads[i]);
}

static void test_bad_durations(void **state)
{
    (void)state;
    static const struct bad bads[] = {
        {"30", "needs a unit"},        {"30x", "unknown unit 'x'"},
        {"30S", "unknown unit"},       {"s", "begins with a digit"},
        {"-3s", "cannot be negative"}, {"300000000000000000s", "too large"},
        {"213503.99d", "too large"},
    };
    for (size_t i = 0; i < FB_ARRAY_COUNT(bads); i++)
        check_bad(fb_duration_parse, &bads[i]);
}

static void test_a_long_input_is_cut_in_the_error(void **state)
{
    (void)state;
    char text[500];
    memset(text, '9', sizeof(text));
    text[0] = '1';
    text[1] = 'z';
    text[sizeof(text) - 1] = 0;
    char error[FB_SIZE_ERROR_BYTES];
    uint64_t result = 0;
    assert_int_equal(fb_size_parse(text, &result, error, sizeof(error)), FB_BAD_ARGUMENT);
    assert_non_null(strstr(error, "use B"));
}

static void check_print(char *(*print)(char *, size_t, uint64_t), uint64_t value, const char *text)
{
    char out[FB_SIZE_TEXT_BYTES];
    assert_string_equal(print(out, sizeof(out), value), text);
}

static void test_printed_sizes(void **state)
{
    (void)state;
    check_print(fb_size_print, 0, "0 B");
    check_print(fb_size_print, 1023, "1023 B");
    check_print(fb_size_print, 1024, "1 KiB");
    check_print(fb_size_print, FB_MIB(1536), "1.5 GiB");
    check_print(fb_size_print, UINT64_C(1) << 36, "64 GiB");
    check_print(fb_size_print, 1300000, "1.23 MiB");
    check_print(fb_size_print, FB_MIB(1) + 60000, "1.05 MiB");
    check_print(fb_size_print, UINT64_MAX, "16777215.99 TiB");
}

static void test_printed_durations(void **state)
{
    (void)state;
    check_print(fb_duration_print, 0, "0 s");
    check_print(fb_duration_print, 17, "17 ns");
    check_print(fb_duration_print, 1500 * FB_US_NS, "1.5 ms");
    check_print(fb_duration_print, 30 * FB_SEC_NS, "30 s");
    check_print(fb_duration_print, 7200 * FB_SEC_NS, "2 h");
    check_print(fb_duration_print, UINT64_MAX, "213503.98 d");
}

static void test_whole_printed_sizes_parse_back(void **state)
{
    (void)state;
    for (unsigned shift = 0; shift < 60; shift++) {
        char text[FB_SIZE_TEXT_BYTES];
        uint64_t bytes = UINT64_C(1) << shift;
        assert_true(size_of(fb_size_print(text, sizeof(text), bytes)) == bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_durations),
        cmocka_unit_test(test_bad_sizes),
        cmocka_unit_test(test_bad_durations),
        cmocka_unit_test(test_a_long_input_is_cut_in_the_error),
        cmocka_unit_test(test_printed_sizes),
        cmocka_unit_test(test_printed_durations),
        cmocka_unit_test(test_whole_printed_sizes_parse_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
