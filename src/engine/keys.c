/*
 * keys.c - see keys.h. The head is laid before the text, and both run on from granule to granule.
 */
#include "engine/keys.h"

#include <string.h>

#include "base/assert.h"

void fb_keys_init(struct fb_keys *keys, uint32_t count, struct fb_region *region)
{
    keys->granules = FB_REGION_NEW(region, struct fb_keys_granule, count);
    keys->count = count;
    keys->free_count = count;
    keys->free_head = count > 0 ? 0 : FB_KEYS_NONE;
    if (fb_region_is_counting(region))
        return;
    for (uint32_t i = 0; i < count; i++)
        keys->granules[i].next = i + 1 < count ? i + 1 : FB_KEYS_NONE;
}

uint32_t fb_keys_granules(size_t key_bytes)
{
    size_t bytes = sizeof(struct fb_keys_head) + key_bytes;
    return (uint32_t)((bytes + FB_KEYS_PAYLOAD_BYTES - 1) / FB_KEYS_PAYLOAD_BYTES);
}

static uint32_t take(struct fb_keys *keys)
{
    uint32_t slot = keys->free_head;
    FB_ASSERT(slot != FB_KEYS_NONE);
    keys->free_head = keys->granules[slot].next;
    keys->free_count--;
    keys->granules[slot].next = FB_KEYS_NONE;
    return slot;
}

/* Appends bytes at *used within *slot, taking further granules. */
static void append(struct fb_keys *keys, uint32_t *slot, size_t *used, const void *from,
                   size_t bytes)
{
    const uint8_t *at = from;
    while (bytes > 0) {
        if (*used == FB_KEYS_PAYLOAD_BYTES) {
            uint32_t next = take(keys);
            keys->granules[*slot].next = next;
            *slot = next;
            *used = 0;
        }
        size_t step = FB_KEYS_PAYLOAD_BYTES - *used;
        step = step < bytes ? step : bytes;
        memcpy(keys->granules[*slot].payload + *used, at, step);
        *used += step;
        at += step;
        bytes -= step;
    }
}

uint32_t fb_keys_put(struct fb_keys *keys, const struct fb_keys_head *head, const uint8_t *key)
{
    FB_ASSERT(head->key_bytes >= FB_KEY_BYTES_MIN && head->key_bytes <= FB_KEY_BYTES_MAX);
    FB_ASSERT(fb_keys_granules(head->key_bytes) <= keys->free_count);
    uint32_t first = take(keys);
    uint32_t slot = first;
    size_t used = 0;
    append(keys, &slot, &used, head, sizeof(*head));
    append(keys, &slot, &used, key, head->key_bytes);
    return first;
}

/* Copies bytes out from *used within *slot. */
static void extract(const struct fb_keys *keys, uint32_t *slot, size_t *used, void *to,
                    size_t bytes)
{
    uint8_t *at = to;
    while (bytes > 0) {
        if (*used == FB_KEYS_PAYLOAD_BYTES) {
            *slot = keys->granules[*slot].next;
            FB_ASSERT(*slot != FB_KEYS_NONE);
            *used = 0;
        }
        size_t step = FB_KEYS_PAYLOAD_BYTES - *used;
        step = step < bytes ? step : bytes;
        memcpy(at, keys->granules[*slot].payload + *used, step);
        *used += step;
        at += step;
        bytes -= step;
    }
}

void fb_keys_get(const struct fb_keys *keys, uint32_t slot, struct fb_keys_head *head, uint8_t *key)
{
    FB_ASSERT(slot < keys->count);
    size_t used = 0;
    extract(keys, &slot, &used, head, sizeof(*head));
    FB_ASSERT(head->key_bytes >= FB_KEY_BYTES_MIN && head->key_bytes <= FB_KEY_BYTES_MAX);
    extract(keys, &slot, &used, key, head->key_bytes);
}

void fb_keys_free(struct fb_keys *keys, uint32_t slot)
{
    FB_ASSERT(slot < keys->count);
    while (slot != FB_KEYS_NONE) {
        uint32_t next = keys->granules[slot].next;
        keys->granules[slot].next = keys->free_head;
        keys->free_head = slot;
        keys->free_count++;
        slot = next;
    }
    FB_ASSERT(keys->free_count <= keys->count);
}

uint32_t fb_keys_kept(const struct fb_keys *keys, uint32_t slot)
{
    uint32_t count = 0;
    for (; slot != FB_KEYS_NONE; slot = keys->granules[slot].next)
        count++;
    FB_ASSERT(count <= keys->count);
    return count;
}
