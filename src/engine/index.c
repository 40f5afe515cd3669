/*
 * index.c - the table of entries, its free list and its hash. See index.h.
 */
#include "engine/index.h"

#include <string.h>

#include "base/assert.h"
#include "engine/arena.h"
#include "engine/keys.h"

_Static_assert(FB_KEYS_NONE == FB_ENTRY_NONE, "an empty place is no key text");

void fb_index_init(struct fb_index *index, uint32_t count, struct fb_region *region)
{
    FB_ASSERT(count > 0 && count < FB_ENTRY_NONE);
    index->entries = FB_REGION_NEW(region, struct fb_entry, count);
    index->buckets = FB_REGION_NEW(region, uint32_t, count);
    index->count = count;
    index->used = 0;
    index->keys = 0;
    index->free_head = 0;
    if (fb_region_is_counting(region))
        return;
    for (uint32_t i = 0; i < count; i++) {
        index->entries[i].chain = i + 1 < count ? i + 1 : FB_ENTRY_NONE;
        index->buckets[i] = FB_ENTRY_NONE;
    }
}

struct fb_entry *fb_index_at(const struct fb_index *index, uint32_t number)
{
    FB_ASSERT(number < index->count);
    struct fb_entry *entry = &index->entries[number];
    FB_ASSERT(entry->state != FB_ENTRY_FREE);
    return entry;
}

uint32_t fb_index_number(const struct fb_index *index, const struct fb_entry *entry)
{
    FB_ASSERT(entry >= index->entries && entry < index->entries + index->count);
    return (uint32_t)(entry - index->entries);
}

struct fb_entry *fb_index_alloc(struct fb_index *index, enum fb_entry_state state)
{
    uint32_t number = index->free_head;
    FB_ASSERT(number != FB_ENTRY_NONE);
    FB_ASSERT(state != FB_ENTRY_FREE);
    struct fb_entry *entry = &index->entries[number];
    FB_ASSERT(entry->state == FB_ENTRY_FREE);
    index->free_head = entry->chain;
    index->used++;
    memset(entry, 0, sizeof(*entry));
    entry->state = (uint8_t)state & 7;
    entry->digest.lo = FB_KEYS_NONE; /* of part 1: no key text yet */
    entry->chain = FB_ENTRY_NONE;
    entry->part_next = FB_ENTRY_NONE;
    entry->extent = FB_ARENA_NONE;
    entry->place = FB_KEYS_NONE;
    entry->links.newer = FB_ENTRY_NONE;
    entry->links.older = FB_ENTRY_NONE;
    return entry;
}

void fb_index_free(struct fb_index *index, struct fb_entry *entry)
{
    FB_ASSERT(entry->state != FB_ENTRY_FREE);
    FB_ASSERT(entry->pins == 0 && entry->extent == FB_ARENA_NONE);
    FB_ASSERT(entry->list == FB_ENTRY_UNLISTED && !fb_entry_is(entry, FB_ENTRY_HASHED));
    entry->state = FB_ENTRY_FREE;
    entry->generation = 0;
    entry->chain = index->free_head;
    index->free_head = fb_index_number(index, entry);
    FB_ASSERT(index->used > 0);
    index->used--;
}

static uint32_t *bucket_of(const struct fb_index *index, struct fb_digest digest)
{
    /* The digest is keyed and mixed already: its upper half picks the bucket. */
    return &index->buckets[((unsigned __int128)digest.hi * index->count) >> 64];
}

struct fb_entry *fb_index_find(const struct fb_index *index, struct fb_digest digest)
{
    uint32_t number = *bucket_of(index, digest);
    while (number != FB_ENTRY_NONE) {
        struct fb_entry *entry = &index->entries[number];
        if (fb_digest_is_equal(entry->digest, digest))
            return entry;
        number = entry->chain;
    }
    return NULL;
}

void fb_index_prefetch(const struct fb_index *index, struct fb_digest digest, bool entry)
{
    const uint32_t *bucket = bucket_of(index, digest);
    if (!entry) {
        __builtin_prefetch(bucket);
        return;
    }
    if (*bucket == FB_ENTRY_NONE)
        return;
    const uint8_t *at = (const uint8_t *)&index->entries[*bucket];
    __builtin_prefetch(at);
    __builtin_prefetch(at + sizeof(struct fb_entry) - 1);
}

void fb_index_link(struct fb_index *index, struct fb_entry *head)
{
    FB_ASSERT(fb_entry_is(head, FB_ENTRY_HEAD) && !fb_entry_is(head, FB_ENTRY_HASHED));
    FB_ASSERT(fb_index_find(index, head->digest) == NULL);
    uint32_t *bucket = bucket_of(index, head->digest);
    head->chain = *bucket;
    *bucket = fb_index_number(index, head);
    fb_entry_set(head, FB_ENTRY_HASHED);
    index->keys++;
}

void fb_index_unlink(struct fb_index *index, struct fb_entry *head)
{
    FB_ASSERT(fb_entry_is(head, FB_ENTRY_HASHED));
    uint32_t number = fb_index_number(index, head);
    uint32_t *bucket = bucket_of(index, head->digest);
    if (*bucket == number) {
        *bucket = head->chain;
    } else {
        struct fb_entry *before = fb_index_at(index, *bucket);
        while (before->chain != number)
            before = fb_index_at(index, before->chain);
        before->chain = head->chain;
    }
    head->chain = FB_ENTRY_NONE;
    fb_entry_clear(head, FB_ENTRY_HASHED);
    index->keys--;
}

struct fb_entry *fb_index_next_part(const struct fb_index *index, const struct fb_entry *entry)
{
    return entry->part_next == FB_ENTRY_NONE ? NULL : fb_index_at(index, entry->part_next);
}

struct fb_entry *fb_index_head_of(const struct fb_index *index, struct fb_entry *entry)
{
    if (fb_entry_is(entry, FB_ENTRY_HEAD))
        return entry;
    struct fb_entry *head = fb_index_at(index, entry->chain);
    FB_ASSERT(fb_entry_is(head, FB_ENTRY_HEAD) && head->generation == entry->generation);
    return head;
}

struct fb_entry *fb_index_part(const struct fb_index *index, struct fb_entry *head, uint32_t part)
{
    struct fb_entry *entry = head;
    for (; part > 0 && entry != NULL; part--)
        entry = fb_index_next_part(index, entry);
    return entry;
}

uint64_t fb_index_value_bytes(const struct fb_index *index, const struct fb_entry *head,
                              uint32_t *parts)
{
    uint64_t bytes = 0;
    uint32_t count = 0;
    for (const struct fb_entry *entry = head; entry != NULL;
         entry = fb_index_next_part(index, entry)) {
        bytes += entry->part_bytes;
        count++;
    }
    if (parts != NULL)
        *parts = count;
    return bytes;
}

struct fb_log_addr fb_entry_addr(const struct fb_entry *entry)
{
    FB_ASSERT(fb_entry_has_addr(entry));
    return (struct fb_log_addr){
        .incarnation = entry->incarnation,
        .segment = entry->place & (FB_ENTRY_SEGMENTS_MAX - 1),
        .block = entry->block,
        .device = (uint8_t)(entry->place >> FB_ENTRY_DEVICE_SHIFT),
    };
}

void fb_entry_set_addr(struct fb_entry *entry, const struct fb_log_addr *addr)
{
    FB_ASSERT(addr->incarnation != 0);
    FB_ASSERT(addr->segment < FB_ENTRY_SEGMENTS_MAX && addr->block <= UINT16_MAX);
    FB_ASSERT(fb_entry_has_addr(entry) || entry->place == FB_KEYS_NONE);
    entry->place = (uint32_t)addr->device << FB_ENTRY_DEVICE_SHIFT | addr->segment;
    entry->incarnation = addr->incarnation;
    entry->block = (uint16_t)addr->block;
}

void fb_entry_clear_addr(struct fb_entry *entry)
{
    if (!fb_entry_has_addr(entry))
        return;
    entry->incarnation = 0;
    entry->place = FB_KEYS_NONE;
}

bool fb_entry_is_at(const struct fb_entry *entry, const struct fb_log_addr *addr)
{
    if (!fb_entry_has_addr(entry) || entry->incarnation != addr->incarnation)
        return false;
    struct fb_log_addr mine = fb_entry_addr(entry);
    return mine.segment == addr->segment && mine.block == addr->block &&
           mine.device == addr->device;
}

uint32_t fb_index_key(const struct fb_index *index, const struct fb_entry *head)
{
    if (head->part_next != FB_ENTRY_NONE)
        return (uint32_t)fb_index_at(index, head->part_next)->digest.lo;
    return fb_entry_has_addr(head) ? FB_KEYS_NONE : head->place;
}

void fb_index_set_key(struct fb_index *index, struct fb_entry *head, uint32_t slot)
{
    if (head->part_next != FB_ENTRY_NONE) {
        fb_index_at(index, head->part_next)->digest = (struct fb_digest){0, slot};
        return;
    }
    FB_ASSERT(!fb_entry_has_addr(head));
    head->place = slot;
}
