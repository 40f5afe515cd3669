/*
 * keys.h - key texts of values that are in DRAM only, in chained granules of 64 bytes.
 *
 * What is on a device has its key text there; what is not needs it here, to be written some day and
 * to be listed. A text is kept with the few things that a record on a device says beside the index
 * entry. Pure; the pool is fixed, and whoever adds has asked fb_keys_granules() first.
 */
#ifndef FB_ENGINE_KEYS_H
#define FB_ENGINE_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/limits.h"
#include "base/region.h"

#define FB_KEYS_NONE          UINT32_MAX
#define FB_KEYS_GRANULE_BYTES 64
#define FB_KEYS_PAYLOAD_BYTES (FB_KEYS_GRANULE_BYTES - sizeof(uint32_t))

/* What is kept before the text. */
struct fb_keys_head {
    struct fb_digest group;
    uint16_t key_bytes;
    uint8_t pin_class;
};

struct fb_keys_granule {
    uint32_t next;
    uint8_t payload[FB_KEYS_PAYLOAD_BYTES];
};

struct fb_keys {
    struct fb_keys_granule *granules;
    uint32_t count;
    uint32_t free_count;
    uint32_t free_head;
};

/* Takes room for `count` granules from the region, or counts it. */
void fb_keys_init(struct fb_keys *keys, uint32_t count, struct fb_region *region);

/* How many granules a text of `key_bytes` takes. */
uint32_t fb_keys_granules(size_t key_bytes);

/* Keeps a text; the granules must be free (asserted). Returns its slot. */
uint32_t fb_keys_put(struct fb_keys *keys, const struct fb_keys_head *head, const uint8_t *key);

/* Copies a text out: `key` has room for FB_KEY_BYTES_MAX. */
void fb_keys_get(const struct fb_keys *keys, uint32_t slot, struct fb_keys_head *head,
                 uint8_t *key);

/* How many granules a kept text has. For audits. */
uint32_t fb_keys_kept(const struct fb_keys *keys, uint32_t slot);

/* Forgets a text. */
void fb_keys_free(struct fb_keys *keys, uint32_t slot);

#endif
