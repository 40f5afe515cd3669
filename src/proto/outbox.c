/*
 * The bytes ring is used as two stretches: [head, end) and, once the writer has wrapped, [0, tail).
 * The head is where the first segment of composed bytes begins, so it needs no field of its own.
 */
#include "proto/outbox.h"

#include "base/assert.h"
#include "base/bits.h"

_Static_assert((FB_OUTBOX_SEGMENTS & (FB_OUTBOX_SEGMENTS - 1)) == 0,
               "segments are found by a mask");

static struct fb_out_segment *segment_at(const struct fb_outbox *outbox, uint32_t i)
{
    return &outbox->segments[(outbox->first + i) & (FB_OUTBOX_SEGMENTS - 1)];
}

void fb_outbox_init(struct fb_outbox *outbox, struct fb_region *region)
{
    /* Not cleared: memory that is never used is never touched. */
    uint8_t *bytes = fb_region_take(region, FB_OUTBOX_BYTES, 64);
    struct fb_out_segment *segments =
        fb_region_take_array(region, FB_OUTBOX_SEGMENTS, sizeof(*segments),
                             _Alignof(struct fb_out_segment));
    if (fb_region_is_counting(region))
        return;
    *outbox = (struct fb_outbox){.bytes = bytes, .segments = segments};
}

/* Where the oldest composed byte lies. Only if there is one. */
static uint32_t head_of(const struct fb_outbox *outbox)
{
    for (uint32_t i = 0; i < outbox->count; i++)
        if (segment_at(outbox, i)->kind == FB_OUT_BYTES)
            return (uint32_t)segment_at(outbox, i)->off;
    FB_UNREACHABLE();
}

/* Where a frame of `bytes` may begin: UINT32_MAX if nowhere now. */
static uint32_t place(const struct fb_outbox *outbox, uint32_t bytes)
{
    if (outbox->bytes_segments == 0)
        return bytes <= FB_OUTBOX_BYTES ? 0 : UINT32_MAX;
    uint32_t head = head_of(outbox);
    if (outbox->tail > head) {
        if (bytes <= FB_OUTBOX_BYTES - outbox->tail)
            return outbox->tail;
        return bytes < head ? 0 : UINT32_MAX;
    }
    return bytes < head - outbox->tail ? outbox->tail : UINT32_MAX;
}

bool fb_outbox_fits(const struct fb_outbox *outbox, uint32_t bytes, uint32_t segments)
{
    return outbox->count + segments < FB_OUTBOX_SEGMENTS && place(outbox, bytes) != UINT32_MAX;
}

uint8_t *fb_outbox_room(struct fb_outbox *outbox, uint32_t bytes)
{
    if (!fb_outbox_fits(outbox, bytes, 0))
        return NULL;
    outbox->tail = place(outbox, bytes);
    return outbox->bytes + outbox->tail;
}

static struct fb_out_segment *push(struct fb_outbox *outbox)
{
    FB_ASSERT(outbox->count < FB_OUTBOX_SEGMENTS);
    return segment_at(outbox, outbox->count++);
}

void fb_outbox_push_bytes(struct fb_outbox *outbox, uint32_t bytes)
{
    FB_ASSERT(bytes > 0 && bytes <= FB_OUTBOX_BYTES - outbox->tail);
    struct fb_out_segment *last = outbox->count > 0 ? segment_at(outbox, outbox->count - 1) : NULL;
    if (last != NULL && last->kind == FB_OUT_BYTES && last->off + last->len == outbox->tail) {
        last->len += bytes;
    } else {
        *push(outbox) =
            (struct fb_out_segment){.off = outbox->tail, .len = bytes, .kind = FB_OUT_BYTES};
        outbox->bytes_segments++;
    }
    outbox->tail += bytes;
    outbox->queued_bytes += bytes;
}

void fb_outbox_push_pool(struct fb_outbox *outbox, uint64_t off, uint32_t len, uint16_t tag,
                         uint8_t tag2)
{
    FB_ASSERT(len > 0);
    *push(outbox) = (struct fb_out_segment){.off = off,
                                            .len = len,
                                            .tag = tag,
                                            .tag2 = tag2,
                                            .kind = FB_OUT_POOL};
    outbox->queued_bytes += len;
    outbox->queued_pool_bytes += len;
}

size_t fb_outbox_slices(const struct fb_outbox *outbox, const uint8_t *pool, struct fb_slice *out,
                        size_t max)
{
    size_t count = (size_t)fb_min_u64(outbox->count, max);
    for (size_t i = 0; i < count; i++) {
        const struct fb_out_segment *segment = segment_at(outbox, (uint32_t)i);
        const uint8_t *base = segment->kind == FB_OUT_POOL ? pool : outbox->bytes;
        out[i] = (struct fb_slice){.at = base + segment->off, .len = segment->len};
    }
    return count;
}

uint64_t fb_outbox_sent(struct fb_outbox *outbox, uint64_t bytes, struct fb_out_segment *ended)
{
    *ended = (struct fb_out_segment){0};
    if (bytes == 0)
        return 0;
    FB_ASSERT(outbox->count > 0 && bytes <= outbox->queued_bytes);
    struct fb_out_segment *segment = segment_at(outbox, 0);
    uint32_t taken = (uint32_t)fb_min_u64(bytes, segment->len);
    segment->off += taken;
    segment->len -= taken;
    outbox->queued_bytes -= taken;
    if (segment->kind == FB_OUT_POOL)
        outbox->queued_pool_bytes -= taken;
    if (segment->len > 0)
        return taken;
    if (segment->kind == FB_OUT_POOL)
        *ended = (struct fb_out_segment){.len = taken,
                                         .tag = segment->tag,
                                         .tag2 = segment->tag2,
                                         .kind = FB_OUT_POOL};
    else
        outbox->bytes_segments--;
    outbox->first++;
    outbox->count--;
    return taken;
}

void fb_outbox_drop(struct fb_outbox *outbox)
{
    outbox->first = outbox->count = outbox->bytes_segments = outbox->tail = 0;
    outbox->queued_bytes = outbox->queued_pool_bytes = 0;
}
