/*
 * The one part of base/prng.h that is too long to be inline.
 */
#include "base/prng.h"

#include <endian.h>
#include <string.h>

void fb_prng_fill(struct fb_prng *prng, void *out, size_t bytes)
{
    uint8_t *at = out;
    while (bytes != 0) {
        uint64_t word = htole64(fb_prng_next(prng));
        size_t step = bytes < sizeof(word) ? bytes : sizeof(word);
        memcpy(at, &word, step);
        at += step;
        bytes -= step;
    }
}
