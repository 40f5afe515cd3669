/*
 * script.c - names of the faults and the parser of fault scripts. See script.h.
 */
#include "io/script.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"

#define DECIMAL_DIGITS_MAX 18 /* fits 64 bits without a check for overflow */

struct fault_entry {
    const char *name;
    unsigned ops;
};

static const struct fault_entry fault_table[FB_FAULT_COUNT] = {[FB_FAULT_NONE] = {"none",
                                                                                  FB_FAULT_ON_ALL},
#define X(symbol, text, bits) [FB_FAULT_##symbol] = {text, bits},
                                                               FB_FAULT_LIST(X)
#undef X
};

static const char *const op_table[FB_IO_OP_COUNT] = {
    [FB_IO_READ] = "read", [FB_IO_WRITE] = "write", [FB_IO_FLUSH] = "flush",
    [FB_IO_HASH] = "hash", [FB_IO_GROW] = "grow",
};

const char *fb_script_fault_name(enum fb_fault fault)
{
    FB_ASSERT(fault < FB_FAULT_COUNT);
    return fault_table[fault].name;
}

const char *fb_script_op_name(enum fb_io_op op)
{
    FB_ASSERT(op < FB_IO_OP_COUNT);
    return op_table[op];
}

bool fb_script_applies(enum fb_io_op op, enum fb_fault fault)
{
    FB_ASSERT(op < FB_IO_OP_COUNT && fault < FB_FAULT_COUNT);
    return (fault_table[fault].ops & (1u << op)) != 0;
}

/* True if the text of `len` bytes is exactly `name`. */
static bool equals(const char *text, size_t len, const char *name)
{
    return strlen(name) == len && memcmp(text, name, len) == 0;
}

static bool parse_op(const char *text, size_t len, struct fb_script_rule *rule)
{
    for (unsigned op = 0; op < FB_IO_OP_COUNT; op++) {
        if (equals(text, len, op_table[op])) {
            rule->op = (uint8_t)op;
            return true;
        }
    }
    return false;
}

static bool parse_nth(const char *text, size_t len, struct fb_script_rule *rule)
{
    rule->nth = 1;
    rule->forever = true;
    if (equals(text, len, "*"))
        return true;
    rule->forever = len > 1 && text[len - 1] == '+';
    if (rule->forever)
        len--;
    if (len == 0 || len > DECIMAL_DIGITS_MAX)
        return false;
    rule->nth = 0;
    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        rule->nth = rule->nth * 10 + (uint64_t)(text[i] - '0');
    }
    return rule->nth > 0;
}

static bool parse_fault(const char *text, size_t len, struct fb_script_rule *rule)
{
    for (unsigned fault = FB_FAULT_NONE + 1; fault < FB_FAULT_COUNT; fault++) {
        if (equals(text, len, fault_table[fault].name)) {
            rule->fault = (uint8_t)fault;
            return fb_script_applies(rule->op, fault);
        }
    }
    return false;
}

/* One rule of `len` bytes; NULL if it is right, otherwise what is wrong with it. */
static const char *parse_rule(const char *text, size_t len, struct fb_script_rule *rule)
{
    const char *nth = memchr(text, ':', len);
    if (!nth)
        return "is not op:nth:fault";
    const size_t op_len = (size_t)(nth - text);
    nth++;
    const char *fault = memchr(nth, ':', len - op_len - 1);
    if (!fault)
        return "is not op:nth:fault";
    const size_t nth_len = (size_t)(fault - nth);
    fault++;
    if (!parse_op(text, op_len, rule))
        return "names no op (read, write, flush, hash, grow)";
    if (!parse_nth(nth, nth_len, rule))
        return "has no count (5, 5+ or *)";
    if (!parse_fault(fault, len - op_len - nth_len - 2, rule))
        return "names no fault that this op can meet";
    return NULL;
}

int fb_script_parse(const char *text, struct fb_script *script, char *why, size_t why_bytes)
{
    FB_ASSERT(text && script);
    memset(script, 0, sizeof *script);
    while (*text) {
        const size_t len = strcspn(text, ",");
        const char *wrong = "is one rule too many";
        if (script->rule_count < FB_SCRIPT_RULES_MAX)
            wrong = parse_rule(text, len, &script->rules[script->rule_count]);
        if (wrong) {
            snprintf(why, why_bytes, "fault script: '%.*s' %s", (int)len, text, wrong);
            return -EINVAL;
        }
        script->rule_count++;
        text += len;
        text += *text == ',';
    }
    return 0;
}

enum fb_fault fb_script_fault(const struct fb_script *script, enum fb_io_op op, uint64_t nth)
{
    FB_ASSERT(script->rule_count <= FB_SCRIPT_RULES_MAX);
    for (uint32_t i = 0; i < script->rule_count; i++) {
        const struct fb_script_rule *rule = &script->rules[i];
        if (rule->op == op && (rule->nth == nth || (rule->forever && nth > rule->nth)))
            return rule->fault;
    }
    return FB_FAULT_NONE;
}
