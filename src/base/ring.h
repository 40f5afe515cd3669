/*
 * A bounded queue between one thread that produces and one that consumes: the indexes only. The
 * slots are an array of the caller's, of a power of two, and belong
 *   to the producer from fb_ring_produce() until fb_ring_publish(),
 *   to the consumer from fb_ring_consume() until fb_ring_release().
 * What the producer wrote to a slot before publishing is seen by the consumer (release, acquire),
 * and a slot is given back only after the consumer has done with it.
 */
#ifndef FB_BASE_RING_H
#define FB_BASE_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/bits.h"
#include "base/limits.h"

/* The counts run freely and wrap; their difference is the number of full slots. */
struct fb_ring {
    uint32_t mask;
    _Alignas(FB_CACHE_LINE) _Atomic uint32_t produced;
    _Alignas(FB_CACHE_LINE) _Atomic uint32_t consumed;
};

/* Makes an empty ring of `slots` slots: a power of two, at most 2^31. Before any thread uses it. */
static inline void fb_ring_init(struct fb_ring *ring, uint32_t slots)
{
    FB_ASSERT(fb_is_power_of_two(slots));
    ring->mask = slots - 1;
    atomic_init(&ring->produced, 0);
    atomic_init(&ring->consumed, 0);
}

/* Producer: sets *slot to the next free slot and returns true, or returns false if all are full. */
static inline bool fb_ring_produce(const struct fb_ring *ring, uint32_t *slot)
{
    uint32_t produced = atomic_load_explicit(&ring->produced, memory_order_relaxed);
    uint32_t consumed = atomic_load_explicit(&ring->consumed, memory_order_acquire);
    if (produced - consumed > ring->mask)
        return false;
    *slot = produced & ring->mask;
    return true;
}

/* Producer: hands the slot of the last fb_ring_produce() to the consumer. */
static inline void fb_ring_publish(struct fb_ring *ring)
{
    uint32_t produced = atomic_load_explicit(&ring->produced, memory_order_relaxed);
    atomic_store_explicit(&ring->produced, produced + 1, memory_order_release);
}

/* Consumer: sets *slot to the oldest full slot and returns true, or returns false if none is. */
static inline bool fb_ring_consume(const struct fb_ring *ring, uint32_t *slot)
{
    uint32_t consumed = atomic_load_explicit(&ring->consumed, memory_order_relaxed);
    uint32_t produced = atomic_load_explicit(&ring->produced, memory_order_acquire);
    if (produced == consumed)
        return false;
    *slot = consumed & ring->mask;
    return true;
}

/* Consumer: gives the slot of the last fb_ring_consume() back to the producer. */
static inline void fb_ring_release(struct fb_ring *ring)
{
    uint32_t consumed = atomic_load_explicit(&ring->consumed, memory_order_relaxed);
    atomic_store_explicit(&ring->consumed, consumed + 1, memory_order_release);
}

/* How many slots are full: exact for a thread that stands still, a hint otherwise. */
static inline uint32_t fb_ring_count(const struct fb_ring *ring)
{
    uint32_t consumed = atomic_load_explicit(&ring->consumed, memory_order_acquire);
    uint32_t produced = atomic_load_explicit(&ring->produced, memory_order_acquire);
    return produced - consumed;
}

#endif
