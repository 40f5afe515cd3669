/*
 * evict.c - see evict.h.
 */
#include "engine/evict.h"

#include <stddef.h>

#include "base/assert.h"

void fb_lru_init(struct fb_lru *lru)
{
    *lru = (struct fb_lru){FB_ENTRY_NONE, FB_ENTRY_NONE, 0};
}

void fb_lru_push_hot(struct fb_index *index, struct fb_lru *lru, struct fb_entry *entry)
{
    uint32_t number = fb_index_number(index, entry);
    entry->links.newer = FB_ENTRY_NONE;
    entry->links.older = lru->hot;
    if (lru->hot == FB_ENTRY_NONE)
        lru->cold = number;
    else
        fb_index_at(index, lru->hot)->links.newer = number;
    lru->hot = number;
    lru->count++;
}

void fb_lru_push_cold(struct fb_index *index, struct fb_lru *lru, struct fb_entry *entry)
{
    uint32_t number = fb_index_number(index, entry);
    entry->links.older = FB_ENTRY_NONE;
    entry->links.newer = lru->cold;
    if (lru->cold == FB_ENTRY_NONE)
        lru->hot = number;
    else
        fb_index_at(index, lru->cold)->links.older = number;
    lru->cold = number;
    lru->count++;
}

void fb_lru_remove(struct fb_index *index, struct fb_lru *lru, struct fb_entry *entry)
{
    FB_ASSERT(lru->count > 0);
    if (entry->links.newer == FB_ENTRY_NONE)
        lru->hot = entry->links.older;
    else
        fb_index_at(index, entry->links.newer)->links.older = entry->links.older;
    if (entry->links.older == FB_ENTRY_NONE)
        lru->cold = entry->links.newer;
    else
        fb_index_at(index, entry->links.older)->links.newer = entry->links.newer;
    entry->links.newer = FB_ENTRY_NONE;
    entry->links.older = FB_ENTRY_NONE;
    lru->count--;
}

struct fb_entry *fb_lru_cold(const struct fb_index *index, const struct fb_lru *lru)
{
    return lru->cold == FB_ENTRY_NONE ? NULL : fb_index_at(index, lru->cold);
}

struct fb_entry *fb_lru_newer(const struct fb_index *index, const struct fb_entry *entry)
{
    return entry->links.newer == FB_ENTRY_NONE ? NULL : fb_index_at(index, entry->links.newer);
}

void fb_evict_init(struct fb_evict *evict)
{
    fb_lru_init(&evict->clean);
    fb_lru_init(&evict->loose);
}

static struct fb_lru *lru_of(struct fb_evict *evict, const struct fb_entry *entry)
{
    FB_ASSERT(entry->list == FB_ENTRY_CLEAN || entry->list == FB_ENTRY_LOOSE);
    return entry->list == FB_ENTRY_LOOSE ? &evict->loose : &evict->clean;
}

void fb_evict_insert(struct fb_index *index, struct fb_evict *evict, struct fb_entry *entry)
{
    fb_lru_push_hot(index, lru_of(evict, entry), entry);
}

void fb_evict_remove(struct fb_index *index, struct fb_evict *evict, struct fb_entry *entry)
{
    fb_lru_remove(index, lru_of(evict, entry), entry);
}

bool fb_evict_before(const struct fb_entry *a, const struct fb_entry *b)
{
    return a->links.touched < b->links.touched;
}

struct fb_entry *fb_evict_victim(const struct fb_index *index, const struct fb_evict *evict,
                                 bool loose_only)
{
    struct fb_entry *loose = fb_lru_cold(index, &evict->loose);
    struct fb_entry *clean = loose_only ? NULL : fb_lru_cold(index, &evict->clean);
    if (loose == NULL || clean == NULL)
        return loose != NULL ? loose : clean;
    return fb_evict_before(clean, loose) ? clean : loose;
}
