/*
 * Generations order the values that one key has had on one node: first by the node's boot counter,
 * which is durable before the first put after a start, then by a counter within that boot.
 * Generation {0, 0} is "none" and older than all others.
 */
#ifndef FB_BASE_GENERATION_H
#define FB_BASE_GENERATION_H

#include <stdbool.h>
#include <stdint.h>

struct fb_generation {
    uint64_t counter;
    uint32_t boot;
};

/* Less than 0, 0 or more than 0, as `a` is older than, the same as, or newer than `b`. */
static inline int fb_generation_compare(struct fb_generation a, struct fb_generation b)
{
    if (a.boot != b.boot)
        return a.boot < b.boot ? -1 : 1;
    if (a.counter != b.counter)
        return a.counter < b.counter ? -1 : 1;
    return 0;
}

/* True if the two are the same generation. */
static inline bool fb_generation_is_equal(struct fb_generation a, struct fb_generation b)
{
    return a.boot == b.boot && a.counter == b.counter;
}

/* True if it stands for "no generation". */
static inline bool fb_generation_is_none(struct fb_generation a)
{
    return a.boot == 0 && a.counter == 0;
}

#endif
