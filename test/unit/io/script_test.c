/*
 * Fault scripts: what is accepted, what is refused and with which words, which request meets what.
 */
#include "io/script.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "test/lib/cm.h"

#define WHY_BYTES 160

static void test_rules(void **state)
{
    (void)state;
    struct fb_script script;
    char why[WHY_BYTES];
    assert_int_equal(fb_script_parse("write:5:EIO,read:3+:short,flush:*:ENOSPC,write:6:lost",
                                     &script, why, sizeof why),
                     0);
    assert_int_equal(script.rule_count, 4);
    assert_int_equal(fb_script_fault(&script, FB_IO_WRITE, 4), FB_FAULT_NONE);
    assert_int_equal(fb_script_fault(&script, FB_IO_WRITE, 5), FB_FAULT_EIO);
    assert_int_equal(fb_script_fault(&script, FB_IO_WRITE, 6), FB_FAULT_LOST);
    assert_int_equal(fb_script_fault(&script, FB_IO_WRITE, 7), FB_FAULT_NONE);
    assert_int_equal(fb_script_fault(&script, FB_IO_READ, 2), FB_FAULT_NONE);
    assert_int_equal(fb_script_fault(&script, FB_IO_READ, 3), FB_FAULT_SHORT);
    assert_int_equal(fb_script_fault(&script, FB_IO_READ, 300), FB_FAULT_SHORT);
    assert_int_equal(fb_script_fault(&script, FB_IO_FLUSH, 1), FB_FAULT_ENOSPC);
    assert_int_equal(fb_script_fault(&script, FB_IO_GROW, 1), FB_FAULT_NONE);
    assert_int_equal(fb_script_parse("", &script, why, sizeof why), 0);
    assert_int_equal(script.rule_count, 0);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *why;
    } wrong[] = {
        {"write", "is not op:nth:fault"},
        {"write:5", "is not op:nth:fault"},
        {"wrote:5:EIO", "names no op"},
        {":5:EIO", "names no op"},
        {"write:0:EIO", "has no count"},
        {"write::EIO", "has no count"},
        {"write:+:EIO", "has no count"},
        {"write:5x:EIO", "has no count"},
        {"write:9999999999999999999:EIO", "has no count"},
        {"write:5:eio", "names no fault"},
        {"write:5:", "names no fault"},
        {"read:5:torn", "names no fault"},
        {"hash:5:EIO", "names no fault"},
        {"write:5:EIO,", NULL},
        {"write:5:EIO,,read:1:EIO", "is not op:nth:fault"},
        {"write:5:EIO:x", "names no fault"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct fb_script script;
        char why[WHY_BYTES] = "";
        const int rc = fb_script_parse(wrong[i].text, &script, why, sizeof why);
        assert_int_equal(rc, wrong[i].why ? -EINVAL : 0);
        if (wrong[i].why)
            assert_non_null(strstr(why, wrong[i].why));
    }
}

static void test_too_many_rules(void **state)
{
    (void)state;
    char text[FB_SCRIPT_RULES_MAX * 16] = "";
    char why[WHY_BYTES];
    struct fb_script script;
    static const char rule[] = "read:1:EIO,";
    for (unsigned i = 0; i < FB_SCRIPT_RULES_MAX; i++)
        memcpy(text + i * (sizeof rule - 1), rule, sizeof rule);
    assert_int_equal(fb_script_parse(text, &script, why, sizeof why), 0);
    memcpy(text + FB_SCRIPT_RULES_MAX * (sizeof rule - 1), rule, sizeof rule);
    assert_int_equal(fb_script_parse(text, &script, why, sizeof why), -EINVAL);
    assert_non_null(strstr(why, "one rule too many"));
}

/* What is printed can be read again. */
static void test_names(void **state)
{
    (void)state;
    for (unsigned op = 0; op < FB_IO_OP_COUNT; op++) {
        for (unsigned fault = FB_FAULT_NONE + 1; fault < FB_FAULT_COUNT; fault++) {
            char text[64];
            char why[WHY_BYTES];
            struct fb_script script;
            snprintf(text, sizeof text, "%s:7:%s", fb_script_op_name(op),
                     fb_script_fault_name(fault));
            const int rc = fb_script_parse(text, &script, why, sizeof why);
            assert_int_equal(rc == 0, fb_script_applies(op, fault));
            if (rc == 0)
                assert_int_equal(fb_script_fault(&script, op, 7), fault);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_too_many_rules),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
