/*
 * Small arithmetic on sizes. Nothing here overflows silently: what could is asserted.
 */
#ifndef FB_BASE_BITS_H
#define FB_BASE_BITS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/assert.h"

/* How many elements an array has; only for arrays, not for pointers. */
#define FB_ARRAY_COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* The smaller of two numbers. */
static inline uint64_t fb_min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The larger of two numbers. */
static inline uint64_t fb_max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* True if `n` is 1, 2, 4, 8, ... */
static inline bool fb_is_power_of_two(uint64_t n)
{
    return n != 0 && (n & (n - 1)) == 0;
}

/* `n` rounded up to a multiple of `step`, a power of two. */
static inline uint64_t fb_align_up(uint64_t n, uint64_t step)
{
    FB_ASSERT(fb_is_power_of_two(step));
    FB_ASSERT(n <= UINT64_MAX - (step - 1));
    return (n + step - 1) & ~(step - 1);
}

/* `n` rounded down to a multiple of `step`, a power of two. */
static inline uint64_t fb_align_down(uint64_t n, uint64_t step)
{
    FB_ASSERT(fb_is_power_of_two(step));
    return n & ~(step - 1);
}

/* True if `n` is a multiple of `step`, a power of two. */
static inline bool fb_is_aligned(uint64_t n, uint64_t step)
{
    FB_ASSERT(fb_is_power_of_two(step));
    return (n & (step - 1)) == 0;
}

/* `n / step`, rounded up; `step` is not 0. */
static inline uint64_t fb_div_up(uint64_t n, uint64_t step)
{
    FB_ASSERT(step != 0);
    return n / step + (n % step != 0);
}

/* The largest k with 2^k <= n; `n` is not 0. */
static inline unsigned fb_log2_floor(uint64_t n)
{
    FB_ASSERT(n != 0);
    return 63 - (unsigned)__builtin_clzll(n);
}

/* The smallest k with 2^k >= n; `n` is not 0. */
static inline unsigned fb_log2_ceil(uint64_t n)
{
    return fb_log2_floor(n) + !fb_is_power_of_two(n);
}

/* a + b, or UINT64_MAX if that is more than fits: for deadlines ("never" stays never). */
static inline uint64_t fb_add_saturated(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* a - b, or 0 if b is larger. */
static inline uint64_t fb_sub_floored(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

#endif
