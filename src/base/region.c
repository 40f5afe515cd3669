/*
 * Carving memory: see base/region.h.
 */
#include "base/region.h"

#include <string.h>

#include "base/assert.h"
#include "base/bits.h"

void fb_region_init(struct fb_region *region, void *memory, size_t bytes)
{
    FB_ASSERT(memory != NULL);
    *region = (struct fb_region){.base = memory, .size_bytes = bytes};
}

void fb_region_init_counting(struct fb_region *region)
{
    *region = (struct fb_region){.base = NULL, .size_bytes = SIZE_MAX};
}

bool fb_region_is_counting(const struct fb_region *region)
{
    return region->base == NULL;
}

size_t fb_region_left(const struct fb_region *region)
{
    FB_ASSERT(region->used_bytes <= region->size_bytes);
    return region->size_bytes - region->used_bytes;
}

void *fb_region_take(struct fb_region *region, size_t bytes, size_t align_bytes)
{
    FB_ASSERT(fb_is_power_of_two(align_bytes));
    size_t padding = align_bytes - 1;
    if (region->base != NULL)
        padding &= -((uintptr_t)region->base + region->used_bytes);
    FB_ASSERT(padding <= fb_region_left(region));
    FB_ASSERT(bytes <= fb_region_left(region) - padding);
    size_t start = region->used_bytes + padding;
    region->used_bytes = start + bytes;
    return region->base != NULL ? region->base + start : NULL;
}

void *fb_region_take_array(struct fb_region *region, size_t count, size_t item_bytes,
                           size_t align_bytes)
{
    size_t bytes = 0;
    bool is_too_long = __builtin_mul_overflow(count, item_bytes, &bytes);
    FB_ASSERT(!is_too_long);
    return fb_region_take(region, bytes, align_bytes);
}

void *fb_region_take_zeroed(struct fb_region *region, size_t count, size_t item_bytes,
                            size_t align_bytes)
{
    void *items = fb_region_take_array(region, count, item_bytes, align_bytes);
    if (items != NULL)
        memset(items, 0, count * item_bytes);
    return items;
}
