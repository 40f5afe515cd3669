/*
 * arena.h - the pages of the DRAM pool: which are free, and which belong together.
 *
 * Memory is handed out in chains: lists of buddy blocks of 1 to 512 pages (4 KiB to 2 MiB), largest
 * first. A chain of n pages can be had whenever n pages are free, wherever they lie: only the sum
 * counts, so nothing ever waits for contiguous memory. A chain has exactly the pages asked for.
 *
 * The arena knows pages by number and never touches them. Pages beyond the faulted part are not
 * handed out. Owner of a chain is whoever keeps its head; the arena keeps no record of owners.
 * Pure. Not safe for use by several threads at once.
 */
#ifndef FB_ENGINE_ARENA_H
#define FB_ENGINE_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/limits.h"
#include "base/region.h"
#include "io/io.h"

#define FB_ARENA_NONE       UINT32_MAX /* no chain */
#define FB_ARENA_ORDERS     FB_EXTENT_CLASSES
#define FB_ARENA_ROOT_PAGES (1u << (FB_ARENA_ORDERS - 1)) /* pages of the largest block */
#define FB_ARENA_PAGES_MAX  (UINT32_MAX / 2)

struct fb_arena {
    uint8_t *block; /* of a block's first page: order, and whether it is free; else 0 */
    uint32_t *next; /* free block: next free of its order. Used: next block of its chain */
    uint32_t *prev; /* free block: the one before it */
    uint32_t free_head[FB_ARENA_ORDERS];
    uint32_t pages;
    uint32_t faulted_pages; /* whole roots only */
    uint32_t free_pages;
};

/* Pages that hold so many bytes. */
static inline uint32_t fb_arena_pages_of(uint64_t bytes)
{
    return (uint32_t)((bytes + FB_PAGE_BYTES - 1) / FB_PAGE_BYTES);
}

/* Takes the tables for `pool_bytes` (a multiple of 2 MiB) from the region, or counts them. Nothing
 * is faulted, so nothing is free. */
void fb_arena_init(struct fb_arena *arena, uint64_t pool_bytes, struct fb_region *region);

/* The first `bytes` of the pool may be handed out from now on. Grows only; rounded down to 2 MiB.
 */
void fb_arena_faulted(struct fb_arena *arena, uint64_t bytes);

/* Takes a chain of exactly `pages` (at least 1). FB_ARENA_NONE if fewer are free. */
uint32_t fb_arena_alloc(struct fb_arena *arena, uint32_t pages);

/* Gives a whole chain back. Returns how many pages it had. */
uint32_t fb_arena_free(struct fb_arena *arena, uint32_t head);

/* How many pages a chain has. */
uint32_t fb_arena_chain_pages(const struct fb_arena *arena, uint32_t head);

/*
 * The runs of a chain that hold its bytes [off, off + bytes), neighbours joined, into out[0..max).
 * `off` is a multiple of the page size unless the run is for moving bytes only. Returns how many
 * runs were written; *covered is how many bytes they hold (less than `bytes` if `max` was too
 * small).
 */
size_t fb_arena_runs(const struct fb_arena *arena, uint32_t head, uint64_t off, uint64_t bytes,
                     struct fb_io_vec *out, size_t max, uint64_t *covered);

/* Marks every page of a chain in `bits` (one bit a page); asserts that none was marked before.
 * Audit. */
void fb_arena_mark(const struct fb_arena *arena, uint32_t head, uint64_t *bits);

/* Asserts that the free lists and the counters agree with the tables. Cost: all pages. */
void fb_arena_audit(const struct fb_arena *arena);

#endif
