/*
 * Sizes, durations, fault scripts and names of planted bugs as people write them.
 *
 * The text lies in memory of its exact length. What was read is printed and read again: printing
 * rounds down to two decimals, so what comes back is at most one part in a hundred less.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "base/result.h"
#include "base/size.h"
#include "io/script.h"
#include "test/lib/fuzz.h"

typedef int parse_fn(const char *, uint64_t *, char *, size_t);
typedef char *print_fn(char *, size_t, uint64_t);

#define UNTOUCHED UINT64_C(0x5a5a5a5a5a5a5a5a)

static void try_number(const char *text, parse_fn *parse, print_fn *print)
{
    uint64_t value = UNTOUCHED;
    char error[FB_SIZE_ERROR_BYTES];
    int result = parse(text, &value, error, sizeof(error));
    FUZZ_CHECK(parse(text, &(uint64_t){0}, NULL, 0) == result);
    if (result != 0) {
        FUZZ_CHECK(result == FB_BAD_ARGUMENT && value == UNTOUCHED);
        FUZZ_CHECK(memchr(error, 0, sizeof(error)) != NULL && error[0] != 0);
        return;
    }
    char printed[FB_SIZE_TEXT_BYTES];
    uint64_t back = 0;
    print(printed, sizeof(printed), value);
    FUZZ_CHECK(strlen(printed) + 1 < sizeof(printed));
    FUZZ_CHECK(parse(printed, &back, NULL, 0) == 0);
    FUZZ_CHECK(back <= value && value - back <= value / 100 + 1);
    char tiny[4];
    print(tiny, sizeof(tiny), value);
    FUZZ_CHECK(memchr(tiny, 0, sizeof(tiny)) != NULL);
}

static void try_script(const char *text)
{
    struct fb_script script;
    char why[80];
    if (fb_script_parse(text, &script, why, sizeof(why)) != 0) {
        FUZZ_CHECK(memchr(why, 0, sizeof(why)) != NULL && why[0] != 0);
        return;
    }
    FUZZ_CHECK(script.rule_count <= FB_SCRIPT_RULES_MAX);
    for (uint32_t i = 0; i < script.rule_count; i++) {
        const struct fb_script_rule *rule = &script.rules[i];
        FUZZ_CHECK(rule->nth > 0);
        FUZZ_CHECK(fb_script_applies((enum fb_io_op)rule->op, (enum fb_fault)rule->fault));
        FUZZ_CHECK(fb_script_fault(&script, (enum fb_io_op)rule->op, rule->nth) != FB_FAULT_NONE);
    }
}

static void try_bugs(const char *text)
{
    uint64_t kept = fb_bug_mask;
    int result = fb_bug_enable(text);
    FUZZ_CHECK(result == 0 || (result == FB_BAD_ARGUMENT && fb_bug_mask == kept));
    fb_bug_mask = kept;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    /* Up to the first zero, in memory that ends with it. */
    size_t length = size > 0 ? strnlen((const char *)data, size) : 0;
    char *exact = malloc(length + 1);
    if (exact == NULL)
        abort();
    if (length > 0)
        memcpy(exact, data, length);
    exact[length] = 0;
    try_number(exact, fb_size_parse, fb_size_print);
    try_number(exact, fb_duration_parse, fb_duration_print);
    try_script(exact);
    try_bugs(exact);
    free(exact);
    return 0;
}

static void seeds(void)
{
    static const char *const texts[] = {
        "0",
        "64GB",
        "64 GiB",
        "1.5m",
        "2^36",
        "-3",
        "12ns",
        "30s",
        "1.25 h",
        "7d",
        "18446744073709551615",
        "18446744073709551616",
        "16777216TB",
        "0.0000000000000000000001K",
        "90071992547409930.5 ms",
        "5 parsecs",
        "3",
        "1 min",
        "1.999999MiB",
        "write:5:EIO,read:3:short,flush:*:ENOSPC,grow:2+:ENOSPC",
        "hash:1:delayed",
        "read:0:EIO",
        "write:1:stale",
        "skip_checksum,tombstone_lost",
        "1023B",
        "1024",
        "999us",
        "",
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        char name[16];
        snprintf(name, sizeof(name), "text-%02zu", i);
        fuzz_seed(name, texts[i], strlen(texts[i]));
    }
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    return fuzz_start(argc, argv, seeds);
}
