/*
 * Sizes and durations as text. Both are a number, perhaps with a fraction, and a unit out of a
 * table; the arithmetic is exact and every overflow is an error.
 */
#include "base/size.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/assert.h"
#include "base/bits.h"
#include "base/limits.h"
#include "base/result.h"

/* More digits of a fraction than this say nothing about a whole byte or nanosecond. */
#define FRACTION_DIGITS_MAX 18
/* How much of a bad input an error message repeats. */
#define ERROR_ECHO_CHARS 40

#define MINUTE_NS        (60 * FB_SEC_NS)
#define HOUR_NS          (60 * MINUTE_NS)
#define DAY_NS           (24 * HOUR_NS)

struct unit {
    const char *name;
    uint64_t scale;
};

struct kind {
    const char *what; /* for messages */
    const char *units_text;
    const struct unit *units;
    size_t count;
    bool needs_unit;
    bool ignores_case;
};

static const struct unit size_units[] = {
    {"", 1},           {"B", 1},           {"K", FB_KIB(1)},
    {"KB", FB_KIB(1)}, {"KiB", FB_KIB(1)}, {"M", FB_MIB(1)},
    {"MB", FB_MIB(1)}, {"MiB", FB_MIB(1)}, {"G", FB_GIB(1)},
    {"GB", FB_GIB(1)}, {"GiB", FB_GIB(1)}, {"T", FB_TIB(1)},
    {"TB", FB_TIB(1)}, {"TiB", FB_TIB(1)},
};

static const struct unit duration_units[] = {
    {"ns", 1},          {"us", FB_US_NS}, {"ms", FB_MS_NS}, {"s", FB_SEC_NS},
    {"min", MINUTE_NS}, {"m", MINUTE_NS}, {"h", HOUR_NS},   {"d", DAY_NS},
};

static const struct kind size_kind = {
    .what = "size",
    .units_text = "B, KB, MB, GB or TB",
    .units = size_units,
    .count = FB_ARRAY_COUNT(size_units),
    .ignores_case = true,
};

static const struct kind duration_kind = {
    .what = "duration",
    .units_text = "ns, us, ms, s, m, h or d",
    .units = duration_units,
    .count = FB_ARRAY_COUNT(duration_units),
    .needs_unit = true,
};

/* A decimal number: whole + fraction / scale, where scale is a power of ten. */
struct decimal {
    uint64_t whole;
    uint64_t fraction;
    uint64_t scale;
};

static int fail(char *error, size_t error_bytes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static int fail(char *error, size_t error_bytes, const char *format, ...)
{
    if (error != NULL && error_bytes != 0) {
        va_list arguments;
        va_start(arguments, format);
        (void)vsnprintf(error, error_bytes, format, arguments);
        va_end(arguments);
    }
    return FB_BAD_ARGUMENT;
}

/* Reads the digits at *at, which it moves. Returns false if the number is too large. */
static bool read_decimal(const char **at, struct decimal *number)
{
    *number = (struct decimal){.scale = 1};
    for (; isdigit((unsigned char)**at); (*at)++) {
        uint64_t digit = (uint64_t)(**at - '0');
        if (__builtin_mul_overflow(number->whole, 10, &number->whole) ||
            __builtin_add_overflow(number->whole, digit, &number->whole))
            return false;
    }
    if (**at != '.')
        return true;
    (*at)++;
    for (int digits = 0; isdigit((unsigned char)**at); (*at)++, digits++) {
        if (digits >= FRACTION_DIGITS_MAX)
            continue;
        number->fraction = number->fraction * 10 + (uint64_t)(**at - '0');
        number->scale *= 10;
    }
    return true;
}

static const struct unit *find_unit(const struct kind *kind, const char *name)
{
    for (size_t i = 0; i < kind->count; i++) {
        const struct unit *unit = &kind->units[i];
        int order = kind->ignores_case ? strcasecmp(unit->name, name) : strcmp(unit->name, name);
        if (order == 0)
            return unit;
    }
    return NULL;
}

/* number * scale, cut to a whole. Returns false if it does not fit. */
static bool multiply(const struct decimal *number, uint64_t scale, uint64_t *out)
{
    uint64_t part = (uint64_t)((unsigned __int128)number->fraction * scale / number->scale);
    uint64_t result = 0;
    if (__builtin_mul_overflow(number->whole, scale, &result) ||
        __builtin_add_overflow(result, part, &result))
        return false;
    *out = result;
    return true;
}

static bool is_zero(const struct decimal *number)
{
    return number->whole == 0 && number->fraction == 0;
}

static int parse(const struct kind *kind, const char *text, uint64_t *out, char *error,
                 size_t error_bytes)
{
    const char *at = text;
    struct decimal number;
    while (*at == ' ')
        at++;
    if (*at == '-')
        return fail(error, error_bytes, "'%.*s': a %s cannot be negative", ERROR_ECHO_CHARS, text,
                    kind->what);
    if (!isdigit((unsigned char)*at))
        return fail(error, error_bytes, "'%.*s': a %s begins with a digit", ERROR_ECHO_CHARS, text,
                    kind->what);
    if (!read_decimal(&at, &number))
        return fail(error, error_bytes, "'%.*s': too large", ERROR_ECHO_CHARS, text);
    while (*at == ' ')
        at++;
    if (*at == 0 && kind->needs_unit) {
        if (!is_zero(&number))
            return fail(error, error_bytes, "'%.*s': a %s needs a unit: %s", ERROR_ECHO_CHARS, text,
                        kind->what, kind->units_text);
        *out = 0;
        return 0;
    }
    const struct unit *unit = find_unit(kind, at);
    if (unit == NULL)
        return fail(error, error_bytes, "'%.*s': unknown unit '%.*s'; use %s", ERROR_ECHO_CHARS,
                    text, ERROR_ECHO_CHARS, at, kind->units_text);
    if (!multiply(&number, unit->scale, out))
        return fail(error, error_bytes, "'%.*s': too large", ERROR_ECHO_CHARS, text);
    return 0;
}

int fb_size_parse(const char *text, uint64_t *bytes, char *error, size_t error_bytes)
{
    return parse(&size_kind, text, bytes, error, error_bytes);
}

int fb_duration_parse(const char *text, uint64_t *duration_ns, char *error, size_t error_bytes)
{
    return parse(&duration_kind, text, duration_ns, error, error_bytes);
}

/* Prints value / scale with at most two decimals, rounded down, and the unit. */
static char *print(char *out, size_t out_bytes, uint64_t value, uint64_t scale, const char *unit)
{
    FB_ASSERT(out_bytes != 0);
    unsigned long long whole = value / scale;
    unsigned hundredths = (unsigned)((unsigned __int128)(value % scale) * 100 / scale);
    if (hundredths == 0)
        (void)snprintf(out, out_bytes, "%llu %s", whole, unit);
    else if (hundredths % 10 == 0)
        (void)snprintf(out, out_bytes, "%llu.%u %s", whole, hundredths / 10, unit);
    else
        (void)snprintf(out, out_bytes, "%llu.%02u %s", whole, hundredths, unit);
    return out;
}

/* Prints with the last unit of a rising table that is not larger than the value, or the first. */
static char *print_in(const struct unit *units, size_t count, char *out, size_t out_bytes,
                      uint64_t value)
{
    size_t chosen = 0;
    while (chosen + 1 < count && value >= units[chosen + 1].scale)
        chosen++;
    return print(out, out_bytes, value, units[chosen].scale, units[chosen].name);
}

char *fb_size_print(char *out, size_t out_bytes, uint64_t bytes)
{
    static const struct unit units[] = {
        {"B", 1}, {"KiB", FB_KIB(1)}, {"MiB", FB_MIB(1)}, {"GiB", FB_GIB(1)}, {"TiB", FB_TIB(1)},
    };
    return print_in(units, FB_ARRAY_COUNT(units), out, out_bytes, bytes);
}

char *fb_duration_print(char *out, size_t out_bytes, uint64_t duration_ns)
{
    static const struct unit units[] = {
        {"ns", 1},          {"us", FB_US_NS}, {"ms", FB_MS_NS}, {"s", FB_SEC_NS},
        {"min", MINUTE_NS}, {"h", HOUR_NS},   {"d", DAY_NS},
    };
    if (duration_ns == 0)
        return print(out, out_bytes, 0, 1, "s");
    return print_in(units, FB_ARRAY_COUNT(units), out, out_bytes, duration_ns);
}
