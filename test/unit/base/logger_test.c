/*
 * Covers log lines and their rate limit: the form of each field, escaping, cutting, suppression.
 * The sink here keeps the last line; where a real one writes is not covered.
 */
#include "base/logger.h"

#include <string.h>

#include "base/result.h"
#include "test/lib/cm.h"

struct capture {
    char text[FB_LOG_LINE_BYTES_MAX + 1];
    enum fb_logger_level level;
    int lines;
};

static void capture_line(void *context, enum fb_logger_level level, const char *text, size_t bytes)
{
    struct capture *capture = context;
    assert_true(bytes <= FB_LOG_LINE_BYTES_MAX);
    memcpy(capture->text, text, bytes);
    capture->text[bytes] = 0;
    capture->level = level;
    capture->lines++;
}

static void test_fields(void **state)
{
    (void)state;
    struct capture capture = {.lines = 0};
    struct fb_logger log;
    struct fb_logger_line line;
    fb_logger_init(&log, capture_line, &capture, FB_LOGGER_DEBUG, 10, 10, 0);
    fb_logger_begin(&line, FB_LOGGER_WARN, "device_slow");
    fb_logger_text(&line, "path", "/data/x");
    fb_logger_text(&line, "why", "no space left");
    fb_logger_text(&line, "none", NULL);
    fb_logger_u64(&line, "count", UINT64_MAX);
    fb_logger_i64(&line, "delta", INT64_MIN);
    fb_logger_size(&line, "pool", FB_MIB(1536));
    fb_logger_result(&line, "result", FB_TOO_BIG);
    assert_true(fb_logger_write(&log, &line, 0));
    assert_string_equal(capture.text,
                        "warn device_slow path=/data/x why=\"no space left\" none=\"\""
                        " count=18446744073709551615 delta=-9223372036854775808"
                        " pool=1.5GiB result=TOO_BIG\n");
    assert_int_equal(capture.level, FB_LOGGER_WARN);
}

static void test_bytes_cannot_break_a_line(void **state)
{
    (void)state;
    struct capture capture = {.lines = 0};
    struct fb_logger log;
    struct fb_logger_line line;
    fb_logger_init(&log, capture_line, &capture, FB_LOGGER_DEBUG, 10, 10, 0);
    fb_logger_begin(&line, FB_LOGGER_INFO, "key");
    fb_logger_bytes(&line, "key", "a\nb\t\"\\\x00\xff=", 9);
    assert_true(fb_logger_write(&log, &line, 0));
    assert_string_equal(capture.text, "info key key=\"a\\nb\\t\\\"\\\\\\x00\\xff=\"\n");
}

static void test_a_long_line_is_cut_between_fields(void **state)
{
    (void)state;
    struct capture capture = {.lines = 0};
    struct fb_logger log;
    struct fb_logger_line line;
    char key[FB_KEY_BYTES_MAX];
    memset(key, 0x01, sizeof(key));
    fb_logger_init(&log, capture_line, &capture, FB_LOGGER_DEBUG, 10, 10, 0);
    fb_logger_begin(&line, FB_LOGGER_INFO, "key");
    fb_logger_u64(&line, "a", 1);
    fb_logger_bytes(&line, "key", key, sizeof(key));
    fb_logger_u64(&line, "b", 2);
    assert_true(fb_logger_write(&log, &line, 0));
    assert_string_equal(capture.text, "info key a=1 cut=1\n");
}

static void test_every_length_fits(void **state)
{
    (void)state;
    char value[FB_LOG_LINE_BYTES_MAX];
    memset(value, 'v', sizeof(value));
    for (size_t length = 0; length <= sizeof(value); length++) {
        struct capture capture = {.lines = 0};
        struct fb_logger log;
        struct fb_logger_line line;
        fb_logger_init(&log, capture_line, &capture, FB_LOGGER_DEBUG, 1, 0, 0);
        log.chatter.suppressed = UINT64_MAX;
        fb_logger_begin(&line, FB_LOGGER_INFO, "event");
        fb_logger_bytes(&line, "value", value, length);
        assert_true(fb_logger_write(&log, &line, 0));
        assert_non_null(strstr(capture.text, " suppressed=18446744073709551615\n"));
    }
}

/* Writes one short line; returns whether it passed. */
static bool say(struct fb_logger *log, enum fb_logger_level level, uint64_t now_ns)
{
    struct fb_logger_line line;
    fb_logger_begin(&line, level, "event");
    return fb_logger_write(log, &line, now_ns);
}

static void test_levels(void **state)
{
    (void)state;
    struct capture capture = {.lines = 0};
    struct fb_logger log;
    fb_logger_init(&log, capture_line, &capture, FB_LOGGER_WARN, 10, 10, 0);
    assert_false(say(&log, FB_LOGGER_DEBUG, 0));
    assert_false(say(&log, FB_LOGGER_INFO, 0));
    assert_true(say(&log, FB_LOGGER_WARN, 0));
    assert_true(say(&log, FB_LOGGER_ERROR, 0));
    assert_int_equal(capture.lines, 2);
    assert_int_equal(log.suppressed_total, 0);
    enum fb_logger_level level = FB_LOGGER_DEBUG;
    assert_true(fb_logger_level_find("error", &level));
    assert_int_equal(level, FB_LOGGER_ERROR);
    assert_false(fb_logger_level_find("loud", &level));
    assert_string_equal(fb_logger_level_name(FB_LOGGER_DEBUG), "debug");
}

static void test_suppression_is_counted_and_said(void **state)
{
    (void)state;
    struct capture capture = {.lines = 0};
    struct fb_logger log;
    fb_logger_init(&log, capture_line, &capture, FB_LOGGER_INFO, 3, 2, 0);
    for (int i = 0; i < 10; i++)
        assert_int_equal(say(&log, FB_LOGGER_INFO, 0), i < 3);
    assert_int_equal(log.suppressed_total, 7);
    assert_true(say(&log, FB_LOGGER_ERROR, 0));
    assert_string_equal(capture.text, "error event\n");
    assert_true(say(&log, FB_LOGGER_INFO, FB_SEC_NS / 2));
    assert_string_equal(capture.text, "info event suppressed=7\n");
    assert_true(say(&log, FB_LOGGER_INFO, FB_SEC_NS));
    assert_string_equal(capture.text, "info event\n");
}

static void test_rate_over_a_long_time(void **state)
{
    (void)state;
    struct fb_rate_limit limit;
    int passed = 0;
    fb_rate_limit_init(&limit, 5, 3, 1000);
    for (uint64_t ms = 0; ms < 100000; ms += 7)
        passed += fb_rate_limit_take(&limit, 1000 + ms * FB_MS_NS);
    assert_in_range(passed, 304, 305);
}

static void test_rate_limit_edges(void **state)
{
    (void)state;
    struct fb_rate_limit limit;
    fb_rate_limit_init(&limit, 2, 1, 100);
    assert_true(fb_rate_limit_take(&limit, 100));
    assert_true(fb_rate_limit_take(&limit, 50));
    assert_false(fb_rate_limit_take(&limit, 0));
    assert_true(fb_rate_limit_take(&limit, UINT64_MAX));
    assert_int_equal(limit.tokens, 1);
    fb_rate_limit_init(&limit, 1, 0, 0);
    assert_true(fb_rate_limit_take(&limit, 0));
    assert_false(fb_rate_limit_take(&limit, UINT64_MAX));
    fb_rate_limit_init(&limit, 0, 1000, 0);
    assert_false(fb_rate_limit_take(&limit, UINT64_MAX));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_bytes_cannot_break_a_line),
        cmocka_unit_test(test_a_long_line_is_cut_between_fields),
        cmocka_unit_test(test_every_length_fits),
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_suppression_is_counted_and_said),
        cmocka_unit_test(test_rate_over_a_long_time),
        cmocka_unit_test(test_rate_limit_edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
