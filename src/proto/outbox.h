/*
 * outbox.h - what a session has to send: composed frames, and pieces of the pool between them.
 *
 * Two fixed rings: bytes of composed frames, and segments. A segment is a run of those bytes or a
 * run of pool memory that is sent in place. The order of the segments is the order on the wire.
 *
 * Invariants: a frame is contiguous in the ring of bytes; nothing is dropped once it was pushed;
 * pool memory named by a segment stays pinned until the segment was sent, or the whole outbox was
 * dropped with its connection.
 */
#ifndef FB_PROTO_OUTBOX_H
#define FB_PROTO_OUTBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/region.h"

#define FB_OUTBOX_BYTES    (64u * 1024) /* of composed frames; the longest fits at least once */
#define FB_OUTBOX_SEGMENTS 1024u        /* a power of two */

enum fb_out_kind {
    FB_OUT_BYTES, /* composed */
    FB_OUT_POOL   /* sent in place */
};

struct fb_out_segment {
    uint64_t off; /* in the ring of bytes, or in the pool */
    uint32_t len;
    uint16_t tag; /* the owner's: which operation a piece of the pool belongs to */
    uint8_t tag2; /* the owner's: and which chunk */
    uint8_t kind; /* enum fb_out_kind */
};

/* Bytes to be sent, for a vectored write. */
struct fb_slice {
    const void *at;
    size_t len;
};

struct fb_outbox {
    uint8_t *bytes;
    struct fb_out_segment *segments;
    uint32_t tail;           /* where the next composed byte goes */
    uint32_t first, count;   /* segments; `first` runs freely and wraps */
    uint32_t bytes_segments; /* of `count`: how many are FB_OUT_BYTES */
    uint64_t queued_bytes;
    uint64_t queued_pool_bytes;
};

/* Takes the two rings from a region (or counts) and makes the outbox empty. */
void fb_outbox_init(struct fb_outbox *outbox, struct fb_region *region);

/* True if a frame of `bytes` (at most FB_OUTBOX_BYTES) and `segments` pieces of pool fit now. */
bool fb_outbox_fits(const struct fb_outbox *outbox, uint32_t bytes, uint32_t segments);

/* Room for a frame of at most `bytes`, contiguous; NULL if it does not fit now. */
uint8_t *fb_outbox_room(struct fb_outbox *outbox, uint32_t bytes);

/* The first `bytes` of the room given last are a frame (or the head of one). */
void fb_outbox_push_bytes(struct fb_outbox *outbox, uint32_t bytes);

/* Pool memory comes next. There must be room for a segment (fb_outbox_fits()). */
void fb_outbox_push_pool(struct fb_outbox *outbox, uint64_t off, uint32_t len, uint16_t tag,
                         uint8_t tag2);

/* The next bytes to send, at most `max` slices; returns how many. `pool` is the pool's address. */
size_t fb_outbox_slices(const struct fb_outbox *outbox, const uint8_t *pool, struct fb_slice *out,
                        size_t max);

/*
 * `bytes` of what fb_outbox_slices() gave were sent, at most to the end of the first segment that
 * is not finished: returns how many of them were taken off. If that finished a piece of the pool it
 * is copied to *ended (kind FB_OUT_POOL); else ended->len is 0. Call again until all are taken off.
 */
uint64_t fb_outbox_sent(struct fb_outbox *outbox, uint64_t bytes, struct fb_out_segment *ended);

/* Forgets everything: the connection is gone. */
void fb_outbox_drop(struct fb_outbox *outbox);

#endif
