/*
 * Carving memory that the caller gives, once, at start.
 *
 * A module that needs memory has two functions: fb_x_footprint() takes from a counting region and
 * says how many bytes it needs, fb_x_init() takes the same from a real one. If both use the same
 * static function for the taking, they cannot disagree.
 *
 * A footprint holds for memory at any address: counting adds the worst padding of each piece.
 * There is no giving back. A region is not safe for use by several threads at once.
 */
#ifndef FB_BASE_REGION_H
#define FB_BASE_REGION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fb_region {
    uint8_t *base;     /* NULL: only counting */
    size_t size_bytes; /* SIZE_MAX when counting */
    size_t used_bytes; /* padding included */
};

/* Begins to carve `bytes` at `memory`, which stays the caller's and must outlive what is carved. */
void fb_region_init(struct fb_region *region, void *memory, size_t bytes);

/* Begins to count: takes return NULL and add up. */
void fb_region_init_counting(struct fb_region *region);

/* True if the region only counts, so that what was taken must not be touched. */
bool fb_region_is_counting(const struct fb_region *region);

/*
 * Takes `bytes` (0 is allowed) at a multiple of `align_bytes`, a power of two. The content is what
 * the caller's memory held. Returns NULL when counting. Asserts that the region is long enough: a
 * footprint that was too small is a fault of the program.
 */
void *fb_region_take(struct fb_region *region, size_t bytes, size_t align_bytes);

/* fb_region_take() for `count` items of `item_bytes`; asserts that the product does not overflow.
 */
void *fb_region_take_array(struct fb_region *region, size_t count, size_t item_bytes,
                           size_t align_bytes);

/* fb_region_take_array() with every byte set to 0. */
void *fb_region_take_zeroed(struct fb_region *region, size_t count, size_t item_bytes,
                            size_t align_bytes);

/* Bytes that are left; SIZE_MAX less what was counted when counting. */
size_t fb_region_left(const struct fb_region *region);

/* Zeroed room for `count` items of `type`, as a `type *`; NULL when counting. */
#define FB_REGION_NEW(region, type, count) \
    ((type *)fb_region_take_zeroed((region), (count), sizeof(type), _Alignof(type)))

#endif
