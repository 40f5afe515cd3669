/*
 * Pseudo-random numbers for tests and the simulator: xoshiro256**, seeded through splitmix64, both
 * public-domain algorithms by Blackman and Vigna. The state is explicit, the numbers are the same
 * on every host. Not for secrets.
 */
#ifndef FB_BASE_PRNG_H
#define FB_BASE_PRNG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/assert.h"

struct fb_prng {
    uint64_t state[4];
};

/* Mixes 64 bits: the finisher of splitmix64, a bijection. */
static inline uint64_t fb_mix64(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* The next number of a splitmix64 stream whose state is *state. */
static inline uint64_t fb_splitmix64(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    return fb_mix64(*state);
}

/* Begins a stream; any seed will do, 0 too. */
static inline void fb_prng_seed(struct fb_prng *prng, uint64_t seed)
{
    for (int i = 0; i < 4; i++)
        prng->state[i] = fb_splitmix64(&seed);
}

/* The bits of `x` turned left by `by`, 1 to 63. */
static inline uint64_t fb_prng_rotate(uint64_t x, unsigned by)
{
    return (x << by) | (x >> (64 - by));
}

/* The next 64 random bits. */
static inline uint64_t fb_prng_next(struct fb_prng *prng)
{
    uint64_t *s = prng->state;
    uint64_t result = fb_prng_rotate(s[1] * 5, 7) * 9;
    uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = fb_prng_rotate(s[3], 45);
    return result;
}

/* A number from 0 to n - 1; n is not 0. The bias is below n / 2^64. */
static inline uint64_t fb_prng_below(struct fb_prng *prng, uint64_t n)
{
    FB_ASSERT(n != 0);
    return (uint64_t)(((unsigned __int128)fb_prng_next(prng) * n) >> 64);
}

/* A number from `low` to `high`, both included. */
static inline uint64_t fb_prng_between(struct fb_prng *prng, uint64_t low, uint64_t high)
{
    FB_ASSERT(low <= high);
    if (high - low == UINT64_MAX)
        return fb_prng_next(prng);
    return low + fb_prng_below(prng, high - low + 1);
}

/* What fb_prng_chance() counts in. */
#define FB_PRNG_MILLION 1000000

/* True `parts_per_million` times in a million. */
static inline bool fb_prng_chance(struct fb_prng *prng, uint32_t parts_per_million)
{
    return fb_prng_below(prng, FB_PRNG_MILLION) < parts_per_million;
}

/* Fills memory with random bytes. */
void fb_prng_fill(struct fb_prng *prng, void *out, size_t bytes);

#endif
