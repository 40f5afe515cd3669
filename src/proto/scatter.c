/* Walking scatter lists. See scatter.h. */
#include "proto/scatter.h"

#include <string.h>

#include "base/assert.h"
#include "base/bits.h"

bool fb_scatter_total(const struct fb_buf *bufs, size_t count, uint64_t *total_bytes)
{
    uint64_t total = 0;
    for (size_t i = 0; i < count; i++) {
        if (bufs[i].len != 0 && bufs[i].ptr == NULL)
            return false;
        if (bufs[i].len > UINT64_MAX - total)
            return false;
        total += bufs[i].len;
    }
    *total_bytes = total;
    return true;
}

void fb_scatter_begin(struct fb_scatter *scatter, const struct fb_buf *bufs, size_t count,
                      uint64_t off_bytes)
{
    *scatter = (struct fb_scatter){.bufs = bufs, .count = count};
    while (scatter->at < count && off_bytes >= bufs[scatter->at].len) {
        off_bytes -= bufs[scatter->at].len;
        scatter->at++;
    }
    FB_ASSERT(scatter->at < count || off_bytes == 0);
    scatter->off_bytes = (size_t)off_bytes;
}

size_t fb_scatter_next(struct fb_scatter *scatter, size_t max_bytes, uint8_t **piece)
{
    FB_ASSERT(max_bytes != 0);
    while (scatter->at < scatter->count) {
        const struct fb_buf *buf = &scatter->bufs[scatter->at];
        size_t left = buf->len - scatter->off_bytes;
        if (left == 0) {
            scatter->at++;
            scatter->off_bytes = 0;
            continue;
        }
        size_t bytes = (size_t)fb_min_u64(left, max_bytes);
        *piece = (uint8_t *)buf->ptr + scatter->off_bytes;
        scatter->off_bytes += bytes;
        return bytes;
    }
    return 0;
}

void fb_scatter_read(struct fb_scatter *scatter, void *to, size_t bytes)
{
    uint8_t *out = to;
    while (bytes != 0) {
        uint8_t *piece = NULL;
        size_t got = fb_scatter_next(scatter, bytes, &piece);
        FB_ASSERT(got != 0);
        memcpy(out, piece, got);
        out += got;
        bytes -= got;
    }
}

void fb_scatter_write(struct fb_scatter *scatter, const void *from, size_t bytes)
{
    const uint8_t *in = from;
    while (bytes != 0) {
        uint8_t *piece = NULL;
        size_t got = fb_scatter_next(scatter, bytes, &piece);
        FB_ASSERT(got != 0);
        memcpy(piece, in, got);
        in += got;
        bytes -= got;
    }
}

void fb_scatter_hash(struct fb_scatter *scatter, struct fb_hash_state *state, size_t bytes)
{
    while (bytes != 0) {
        uint8_t *piece = NULL;
        size_t got = fb_scatter_next(scatter, bytes, &piece);
        FB_ASSERT(got != 0);
        fb_hash_add(state, piece, got);
        bytes -= got;
    }
}
