/*
 * evict.h - lists of parts in order of use, and the choice of what leaves DRAM.
 *
 * The lists (struct fb_lru) use the links inside the entries. The choice is behind three calls:
 * fb_evict_insert(), fb_evict_remove() and fb_evict_victim(). Today it is LRU over the droppable
 * parts of each namespace; a policy that values parts otherwise replaces these, with 16 bytes an
 * entry to remember by (struct fb_entry, retention). Pure.
 */
#ifndef FB_ENGINE_EVICT_H
#define FB_ENGINE_EVICT_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/index.h"

/* A list of parts, by entry numbers: cold is the one that was used longest ago. */
struct fb_lru {
    uint32_t cold;
    uint32_t hot;
    uint32_t count;
};

/* Makes an empty list. */
void fb_lru_init(struct fb_lru *lru);

/* Puts a part, which is on no list, at the hot end. */
void fb_lru_push_hot(struct fb_index *index, struct fb_lru *lru, struct fb_entry *entry);

/* Puts a part, which is on no list, at the cold end. */
void fb_lru_push_cold(struct fb_index *index, struct fb_lru *lru, struct fb_entry *entry);

/* Takes a part off its list. */
void fb_lru_remove(struct fb_index *index, struct fb_lru *lru, struct fb_entry *entry);

/* The coldest part, or NULL. */
struct fb_entry *fb_lru_cold(const struct fb_index *index, const struct fb_lru *lru);

/* The next part towards the hot end, or NULL. */
struct fb_entry *fb_lru_newer(const struct fb_index *index, const struct fb_entry *entry);

/* The droppable parts of one namespace and epoch, as the policy orders them. */
struct fb_evict {
    struct fb_lru clean; /* on a device as well: only pages go */
    struct fb_lru loose; /* in DRAM only: the value goes, with its entries */
};

/* Makes an empty set. */
void fb_evict_init(struct fb_evict *evict);

/* A part became droppable; entry->list says which kind, links.touched when it was used last. */
void fb_evict_insert(struct fb_index *index, struct fb_evict *evict, struct fb_entry *entry);

/* A part may not be dropped any more. */
void fb_evict_remove(struct fb_index *index, struct fb_evict *evict, struct fb_entry *entry);

/* The part of this set that should go first, or NULL. It stays in the set. `loose_only`: one whose
 * value goes with it, since entries are wanted. */
struct fb_entry *fb_evict_victim(const struct fb_index *index, const struct fb_evict *evict,
                                 bool loose_only);

/* True if `a` should go before `b`: to compare the victims of two sets. */
bool fb_evict_before(const struct fb_entry *a, const struct fb_entry *b);

#endif
