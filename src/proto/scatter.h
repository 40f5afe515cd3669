/*
 * scatter.h - a caller's value, scattered over many buffers, as one row of bytes.
 *
 * A position is an offset into that row. Nothing here allocates; buffers of length 0 are allowed
 * anywhere. Reads and writes that would go beyond the last buffer are a fault of the program.
 */
#ifndef FB_PROTO_SCATTER_H
#define FB_PROTO_SCATTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "forebay/forebay.h"

/* A place in a scatter list. */
struct fb_scatter {
    const struct fb_buf *bufs;
    size_t count;
    size_t at;        /* buffer; == count at the end */
    size_t off_bytes; /* into it */
};

/*
 * The bytes of all buffers together. Returns false if they are more than fit into 64 bits, or if a
 * buffer has a length and no address.
 */
bool fb_scatter_total(const struct fb_buf *bufs, size_t count, uint64_t *total_bytes);

/* Begins at `off_bytes`, which is at most the total. Cost: the buffers before it. */
void fb_scatter_begin(struct fb_scatter *scatter, const struct fb_buf *bufs, size_t count,
                      uint64_t off_bytes);

/*
 * The next contiguous piece, of at most `max_bytes` (not 0), and steps over it. Returns its length,
 * 0 at the end.
 */
size_t fb_scatter_next(struct fb_scatter *scatter, size_t max_bytes, uint8_t **piece);

/* Copies the next `bytes` bytes out to `to`. */
void fb_scatter_read(struct fb_scatter *scatter, void *to, size_t bytes);

/* Copies `bytes` bytes from `from` in. */
void fb_scatter_write(struct fb_scatter *scatter, const void *from, size_t bytes);

/* Adds the next `bytes` bytes to a running hash. */
void fb_scatter_hash(struct fb_scatter *scatter, struct fb_hash_state *state, size_t bytes);

#endif
