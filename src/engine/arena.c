/*
 * arena.c - buddy blocks over page numbers, and chains of them. See arena.h.
 *
 * A block of order k begins at a multiple of 2^k pages. block[] of its first page says its order
 * and state; of all other pages it is 0. So the buddy of a freed block is found by one look.
 */
#include "engine/arena.h"

#include "base/assert.h"
#include "base/bits.h"

#define ORDER_BITS 0x0f
#define IS_FREE    0x10
#define IS_USED    0x20

_Static_assert(FB_ARENA_ORDERS <= ORDER_BITS + 1, "an order fits into its bits");
_Static_assert((uint64_t)FB_ARENA_ROOT_PAGES *FB_PAGE_BYTES == FB_EXTENT_BYTES_MAX,
               "the largest block is the largest extent");

void fb_arena_init(struct fb_arena *arena, uint64_t pool_bytes, struct fb_region *region)
{
    FB_ASSERT(pool_bytes % FB_EXTENT_BYTES_MAX == 0);
    FB_ASSERT(pool_bytes / FB_PAGE_BYTES <= FB_ARENA_PAGES_MAX);
    arena->pages = (uint32_t)(pool_bytes / FB_PAGE_BYTES);
    arena->faulted_pages = 0;
    arena->free_pages = 0;
    arena->block = FB_REGION_NEW(region, uint8_t, arena->pages);
    arena->next = FB_REGION_NEW(region, uint32_t, arena->pages);
    arena->prev = FB_REGION_NEW(region, uint32_t, arena->pages);
    for (unsigned order = 0; order < FB_ARENA_ORDERS; order++)
        arena->free_head[order] = FB_ARENA_NONE;
}

static unsigned order_of(const struct fb_arena *arena, uint32_t page)
{
    return arena->block[page] & ORDER_BITS;
}

static void push_free(struct fb_arena *arena, uint32_t page, unsigned order)
{
    uint32_t head = arena->free_head[order];
    arena->block[page] = (uint8_t)(IS_FREE | order);
    arena->next[page] = head;
    arena->prev[page] = FB_ARENA_NONE;
    if (head != FB_ARENA_NONE)
        arena->prev[head] = page;
    arena->free_head[order] = page;
}

static void unlink_free(struct fb_arena *arena, uint32_t page, unsigned order)
{
    FB_ASSERT(arena->block[page] == (IS_FREE | order));
    uint32_t next = arena->next[page];
    uint32_t prev = arena->prev[page];
    if (prev == FB_ARENA_NONE)
        arena->free_head[order] = next;
    else
        arena->next[prev] = next;
    if (next != FB_ARENA_NONE)
        arena->prev[next] = prev;
    arena->block[page] = 0;
}

void fb_arena_faulted(struct fb_arena *arena, uint64_t bytes)
{
    uint64_t pages = fb_min_u64(bytes / FB_PAGE_BYTES, arena->pages);
    uint32_t roots_end = (uint32_t)fb_align_down(pages, FB_ARENA_ROOT_PAGES);
    while (arena->faulted_pages < roots_end) {
        push_free(arena, arena->faulted_pages, FB_ARENA_ORDERS - 1);
        arena->faulted_pages += FB_ARENA_ROOT_PAGES;
        arena->free_pages += FB_ARENA_ROOT_PAGES;
    }
}

/* Takes a block of the order wanted by splitting the smallest larger one, or the largest smaller
 * one if there is none. Something is free. Sets *order to what it got. */
static uint32_t take_block(struct fb_arena *arena, unsigned *order)
{
    unsigned found = *order;
    while (found < FB_ARENA_ORDERS && arena->free_head[found] == FB_ARENA_NONE)
        found++;
    if (found == FB_ARENA_ORDERS) {
        found = *order;
        do {
            FB_ASSERT(found > 0);
            found--;
        } while (arena->free_head[found] == FB_ARENA_NONE);
        *order = found;
    }
    uint32_t page = arena->free_head[found];
    unlink_free(arena, page, found);
    while (found > *order) {
        found--;
        push_free(arena, page + (1u << found), found);
    }
    arena->block[page] = (uint8_t)(IS_USED | *order);
    return page;
}

uint32_t fb_arena_alloc(struct fb_arena *arena, uint32_t pages)
{
    FB_ASSERT(pages > 0);
    if (pages > arena->free_pages)
        return FB_ARENA_NONE;
    arena->free_pages -= pages;
    uint32_t head = FB_ARENA_NONE;
    uint32_t last = FB_ARENA_NONE;
    while (pages > 0) {
        unsigned order = fb_log2_floor(pages);
        if (order >= FB_ARENA_ORDERS)
            order = FB_ARENA_ORDERS - 1;
        uint32_t page = take_block(arena, &order);
        arena->next[page] = FB_ARENA_NONE;
        if (last == FB_ARENA_NONE)
            head = page;
        else
            arena->next[last] = page;
        last = page;
        pages -= 1u << order;
    }
    return head;
}

/* Joins a freed block with its free buddy as long as there is one. */
static void free_block(struct fb_arena *arena, uint32_t page, unsigned order)
{
    while (order + 1 < FB_ARENA_ORDERS) {
        uint32_t buddy = page ^ (1u << order);
        if (arena->block[buddy] != (IS_FREE | order))
            break;
        unlink_free(arena, buddy, order);
        arena->block[page] = 0;
        page = page < buddy ? page : buddy;
        order++;
    }
    push_free(arena, page, order);
}

uint32_t fb_arena_free(struct fb_arena *arena, uint32_t head)
{
    uint32_t pages = 0;
    while (head != FB_ARENA_NONE) {
        FB_ASSERT(head < arena->pages && (arena->block[head] & IS_USED) != 0);
        uint32_t next = arena->next[head];
        unsigned order = order_of(arena, head);
        arena->block[head] = 0;
        free_block(arena, head, order);
        pages += 1u << order;
        head = next;
    }
    arena->free_pages += pages;
    FB_ASSERT(arena->free_pages <= arena->faulted_pages);
    return pages;
}

uint32_t fb_arena_chain_pages(const struct fb_arena *arena, uint32_t head)
{
    uint32_t pages = 0;
    for (; head != FB_ARENA_NONE; head = arena->next[head])
        pages += 1u << order_of(arena, head);
    return pages;
}

size_t fb_arena_runs(const struct fb_arena *arena, uint32_t head, uint64_t off, uint64_t bytes,
                     struct fb_io_vec *out, size_t max, uint64_t *covered)
{
    size_t count = 0;
    uint64_t end = off + bytes;
    uint64_t at = 0;
    *covered = 0;
    for (; head != FB_ARENA_NONE && at < end; head = arena->next[head]) {
        FB_ASSERT((arena->block[head] & IS_USED) != 0);
        uint64_t block_bytes = (uint64_t)FB_PAGE_BYTES << order_of(arena, head);
        uint64_t from = fb_max_u64(at, off);
        uint64_t to = fb_min_u64(at + block_bytes, end);
        if (from < to) {
            uint64_t where = (uint64_t)head * FB_PAGE_BYTES + (from - at);
            if (count > 0 && out[count - 1].off + out[count - 1].len == where) {
                out[count - 1].len += (uint32_t)(to - from);
            } else {
                if (count == max)
                    return count;
                out[count++] = (struct fb_io_vec){where, (uint32_t)(to - from), FB_IO_ARENA};
            }
            *covered += to - from;
        }
        at += block_bytes;
    }
    return count;
}

void fb_arena_mark(const struct fb_arena *arena, uint32_t head, uint64_t *bits)
{
    for (; head != FB_ARENA_NONE; head = arena->next[head]) {
        FB_ASSERT((arena->block[head] & IS_USED) != 0);
        uint32_t end = head + (1u << order_of(arena, head));
        for (uint32_t page = head; page < end; page++) {
            FB_ASSERT((bits[page / 64] >> (page % 64) & 1) == 0);
            bits[page / 64] |= UINT64_C(1) << (page % 64);
        }
    }
}

void fb_arena_audit(const struct fb_arena *arena)
{
    uint64_t free_pages = 0;
    uint64_t listed = 0;
    for (uint32_t page = 0; page < arena->faulted_pages;) {
        unsigned state = arena->block[page];
        unsigned order = order_of(arena, page);
        FB_ASSERT((state & IS_FREE) != 0 || (state & IS_USED) != 0);
        FB_ASSERT(page % (1u << order) == 0);
        if ((state & IS_FREE) != 0)
            free_pages += 1u << order;
        page += 1u << order;
    }
    for (unsigned order = 0; order < FB_ARENA_ORDERS; order++)
        for (uint32_t page = arena->free_head[order]; page != FB_ARENA_NONE;
             page = arena->next[page]) {
            FB_ASSERT(arena->block[page] == (IS_FREE | order));
            listed += 1u << order;
        }
    FB_ASSERT(free_pages == arena->free_pages);
    FB_ASSERT(listed == arena->free_pages);
}
