/*
 * A header without a breach: what looks like one here must not be reported.
 */
#ifndef FB_BASE_GOOD_H
#define FB_BASE_GOOD_H

#include <stddef.h>
#include <stdint.h>

#include "forebay/result.h"

#define FB_GOOD_BYTES 4096

#define FB_GOOD_LIST(X) \
    X(ONE, 2000)        \
    X(TWO, 3000)

#define X(name, value) FB_GOOD_##name = value,
enum fb_good {
    FB_GOOD_LIST(X) FB_GOOD_LAST = 5000,
};
#undef X

/* time() and malloc() in a comment are no calls, and 100000 here is no limit. */
struct fb_good_thing {
    void (*free)(void *); /* a member of that name is no call */
    uint8_t bytes[FB_GOOD_BYTES];
    uint8_t few[64];
};

typedef void fb_good_function(void *context, int code);

_Static_assert(FB_GOOD_BYTES == 4096, "a relation");

extern int fb_good_number;

/* Says something. */
int fb_good_say(const char *text, void (*done)(void *context));

/*
 * Does something at once.
 */
static inline uint64_t fb_good_mask(uint64_t x)
{
    return (x & 0xffff) ^ UINT64_C(0x9e3779b97f4a7c15) ^ ((uint64_t)1 << 10);
}

/* Does not come back. */
_Noreturn void fb_good_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
