/*
 * memory.c - backing the DRAM pool by memory. See memory.h.
 *
 * Each huge page is allocated as small ones and collapsed at once, while they are in the CPU's
 * cache: that is as fast as faulting small pages in, and three times as fast as collapsing later.
 */
#include "io/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>

#include "base/assert.h"
#include "base/bits.h"

/* Newer than the C library's headers. */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

/* Maps pages that exist, on kernels that cannot be asked to: reading is enough, and harmless. */
static void touch(const uint8_t *at, uint64_t bytes)
{
    for (uint64_t off = 0; off < bytes; off += FB_PAGE_BYTES)
        (void)*(const volatile uint8_t *)(at + off);
}

static int back_piece(int fd, uint8_t *at, uint64_t off, uint64_t bytes, uint64_t *huge_bytes)
{
    /* An error here is an error; touching a page that cannot be had would be SIGBUS. */
    if (fallocate(fd, 0, (off_t)off, (off_t)bytes) != 0)
        return -errno;
    if (bytes == FB_MEMORY_HUGE_BYTES && madvise(at, bytes, MADV_COLLAPSE) == 0) {
        *huge_bytes += bytes;
        return 0;
    }
    if (madvise(at, bytes, MADV_POPULATE_WRITE) == 0)
        return 0;
    if (errno != EINVAL)
        return -errno;
    touch(at, bytes);
    return 0;
}

int fb_memory_fault(int fd, uint8_t *base, uint64_t off, uint64_t bytes, uint64_t *huge_bytes)
{
    FB_ASSERT(fb_is_aligned((uintptr_t)base, FB_PAGE_BYTES));
    FB_ASSERT(fb_is_aligned(off, FB_PAGE_BYTES) && fb_is_aligned(bytes, FB_PAGE_BYTES));
    while (bytes > 0) {
        /* Up to the next border of a huge page, so that the rest is whole ones. */
        const uint64_t at = (uintptr_t)base + off;
        const uint64_t border = fb_align_up(at + 1, FB_MEMORY_HUGE_BYTES) - at;
        const uint64_t piece = fb_min_u64(border, bytes);
        const int rc = back_piece(fd, base + off, off, piece, huge_bytes);
        if (rc != 0)
            return rc;
        off += piece;
        bytes -= piece;
    }
    return 0;
}
