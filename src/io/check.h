/*
 * check.h - what every backend asserts of a request at submit, and how it counts what it has done.
 */
#ifndef FB_IO_CHECK_H
#define FB_IO_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "io/io.h"

/* The two registered regions. A base of NULL is a symbolic region without bytes. */
struct fb_io_memory {
    uint8_t *base[2]; /* by enum fb_io_space */
    uint64_t bytes[2];
    uint32_t device_count;
};

/*
 * Asserts that a request keeps io.h's rules: limits, alignment, lengths that add up, memory inside
 * its region. In a build with the address sanitizer also that none of its memory is poisoned, since
 * the sanitizer does not see what the kernel writes through a ring.
 */
void fb_check_request(const struct fb_io_memory *memory, const struct fb_io_req *req);

/* The address of a vector element. Asserts that its region has bytes. */
static inline uint8_t *fb_check_address(const struct fb_io_memory *memory,
                                        const struct fb_io_vec *vec)
{
    FB_ASSERT(memory->base[vec->space]);
    return memory->base[vec->space] + vec->off;
}

/* Counts a request that is about to be returned; `direct` says that its device bypasses caches. */
void fb_check_count(struct fb_io_stats *stats, const struct fb_io_req *req, bool direct);

#endif
