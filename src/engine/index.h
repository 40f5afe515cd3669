/*
 * index.h - what the shard knows: one entry of fixed size for each part of each value.
 *
 * Part 0 of a value is its head: it is found by the digest of the key, through hash buckets of
 * 32-bit links. The parts behind it hang on a chain of 32-bit links. There is no key text here.
 * With its share of a bucket an entry takes 96 bytes.
 *
 * Entries are also made for values that are being written (they own the granted memory), and stay
 * as GHOST where a device may still hold something that must be killed before anything newer is
 * acknowledged. Pure; all memory is taken at start.
 */
#ifndef FB_ENGINE_INDEX_H
#define FB_ENGINE_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/limits.h"
#include "base/region.h"
#include "engine/log.h"

#define FB_ENTRY_NONE UINT32_MAX

/* What an entry is. All parts of a value are in the same state, except ZOMBIE. */
enum fb_entry_state {
    FB_ENTRY_FREE,
    FB_ENTRY_RESERVED,    /* owned by a put that was granted it; not in the hash */
    FB_ENTRY_QUARANTINED, /* the same, but the put may not commit any more */
    FB_ENTRY_LIVE,        /* committed, readable */
    FB_ENTRY_DOOMED,      /* readable, but its segment is being given up: no new lease */
    FB_ENTRY_GHOST,       /* head only: no value, but a device may hold an older one */
    FB_ENTRY_ZOMBIE,      /* out of the index; somebody still uses its pages */
    FB_ENTRY_TOMB         /* during recovery: everything up to its generation is dead */
};

/* The list that a part is on, by its links. */
enum fb_entry_list {
    FB_ENTRY_UNLISTED,
    FB_ENTRY_CLEAN,   /* on a device as well: its pages may be dropped */
    FB_ENTRY_LOOSE,   /* in DRAM only, and not to be written: the value may be dropped */
    FB_ENTRY_HELD,    /* in DRAM only, and leased */
    FB_ENTRY_DIRTY,   /* to be written as soon as the device is free */
    FB_ENTRY_LAZY,    /* to be written above the watermark only */
    FB_ENTRY_GHOSTS,  /* waits for a tombstone */
    FB_ENTRY_PARTIAL, /* during recovery: parts are missing, or a tombstone */
    FB_ENTRY_LISTS
};

enum fb_entry_flag {
    FB_ENTRY_HEAD = 1 << 0,    /* part 0 */
    FB_ENTRY_HASHED = 1 << 1,  /* head: in the hash */
    FB_ENTRY_UNSAVED = 1 << 2, /* part: of a value that is to be, and is not wholly durable */
    FB_ENTRY_BUSY = 1 << 3,    /* part: an item has it; links.newer is its slot */
    FB_ENTRY_PLACED = 1 << 4, /* head: a device may hold a part of it, even if no address says so */
    FB_ENTRY_VERIFIED = 1 << 5, /* part: its root was checked after its bytes entered DRAM */
    FB_ENTRY_SPOILED = 1 << 6,  /* part: its DRAM copy is bad; read the device's */
    FB_ENTRY_USED = 1 << 7,     /* head: read since it was last judged */
    FB_ENTRY_KILLING = 1 << 8,  /* head: a tombstone for it is under way */
    FB_ENTRY_URGENT = 1 << 9,   /* part: somebody waits until it is durable */
    FB_ENTRY_AWAITED = 1 << 10, /* head: operations wait until it is durable */
    FB_ENTRY_MISSING = 1 << 11, /* part: recovery has not seen its record */
    FB_ENTRY_UNKEPT = 1 << 12,  /* head: not written any more (quota of the device) */
    FB_ENTRY_LEASED = 1 << 14,  /* head: its lease is on the account of those on the device */
    FB_ENTRY_DOUBT = 1 << 13,   /* head: a write of it failed, and may have reached the device */
    FB_ENTRY_PROMISED = 1 << 15 /* head: its lease was asked for, or given, without loads */
};

/*
 * `place` is the device and segment if incarnation is not 0; else, for the head of a value of one
 * part, the slot of its key text. The key text of longer values hangs on part 1, whose digest field
 * is not used. Times are in beats of about 67 ms since the shard began: 32 bits last nine years.
 */
struct __attribute__((packed, aligned(4))) fb_entry {
    struct fb_digest digest;
    uint64_t root;
    uint64_t generation;
    uint32_t place;
    uint32_t incarnation; /* of the segment; 0: no address */
    uint32_t part_bytes;
    uint32_t chain;       /* head: next in its bucket. Others: the head. Free: next free */
    uint32_t part_next;   /* the next part, or FB_ENTRY_NONE */
    uint32_t extent;      /* first block of its pages, or FB_ARENA_NONE */
    uint32_t group;       /* group digest, folded; 0: none */
    uint32_t lease_until; /* in beats; 0: no lease */
    union {
        struct {
            uint32_t newer;
            uint32_t older;
            uint32_t touched;   /* when it was used last, in beats */
            uint16_t held_slot; /* on the wheel of holds: where */
            uint16_t
                leased_since; /* head: when the leases that follow each other began, in beats */
        } links;
        uint32_t retention[4]; /* what a policy keeps of a block (16 bytes) */
    };
    uint16_t block; /* 4 KiB block within the segment */
    uint16_t space; /* namespace and epoch, interned */
    uint16_t flags;
    uint16_t depth;
    uint16_t pins; /* chunks out and items under way that use the pages */
    uint8_t hold_loads;
    uint8_t state : 3;
    uint8_t list : 3;
    uint8_t persist : 2;
};

/* Values of `persist` in an entry: what is left of enum fb_persist once a put is committed. */
enum fb_entry_persist {
    FB_ENTRY_PERSIST_OFF,
    FB_ENTRY_PERSIST_EVICT,
    FB_ENTRY_PERSIST_BEHIND
};

_Static_assert(sizeof(struct fb_entry) <= 92, "96 bytes with the bucket");

#define FB_ENTRY_BYTES_ALL_IN (sizeof(struct fb_entry) + sizeof(uint32_t))
#define FB_ENTRY_PINS_MAX     UINT16_MAX

/* A segment number is below this, and a device number below FB_ENTRY_DEVICES. */
#define FB_ENTRY_DEVICE_SHIFT 28
#define FB_ENTRY_SEGMENTS_MAX (1u << FB_ENTRY_DEVICE_SHIFT)

struct fb_index {
    struct fb_entry *entries;
    uint32_t *buckets; /* as many as entries */
    uint32_t count;
    uint32_t used;
    uint32_t free_head;
    uint32_t keys; /* heads in the hash */
};

/* Takes room for `count` entries and their buckets from the region, or counts it. */
void fb_index_init(struct fb_index *index, uint32_t count, struct fb_region *region);

/* The entry of a number, which must be in use (asserted). */
struct fb_entry *fb_index_at(const struct fb_index *index, uint32_t number);

/* The number of an entry. */
uint32_t fb_index_number(const struct fb_index *index, const struct fb_entry *entry);

/* Entries that are free. */
static inline uint32_t fb_index_free_count(const struct fb_index *index)
{
    return index->count - index->used;
}

/* Takes a free entry, cleared and with no links; there must be one (asserted). */
struct fb_entry *fb_index_alloc(struct fb_index *index, enum fb_entry_state state);

/* Gives an entry back. It is on no list, in no bucket, and has no pages and no pins (asserted). */
void fb_index_free(struct fb_index *index, struct fb_entry *entry);

/* The head in the hash with this digest, or NULL. There is at most one. */
struct fb_entry *fb_index_find(const struct fb_index *index, struct fb_digest digest);

/* Tells the processor that a key will be looked for soon: first with `entry` false, for its bucket,
 * and a few keys later with true, for what the bucket names. Only a matter of speed. */
void fb_index_prefetch(const struct fb_index *index, struct fb_digest digest, bool entry);

/* Puts a head into the hash; no other has its digest (asserted). */
void fb_index_link(struct fb_index *index, struct fb_entry *head);

/* Takes a head out of the hash. */
void fb_index_unlink(struct fb_index *index, struct fb_entry *head);

/* The part behind this one, or NULL. */
struct fb_entry *fb_index_next_part(const struct fb_index *index, const struct fb_entry *entry);

/* The head of a part of a value that is in the index or reserved. */
struct fb_entry *fb_index_head_of(const struct fb_index *index, struct fb_entry *entry);

/* The part with this number, or NULL if the value has fewer. */
struct fb_entry *fb_index_part(const struct fb_index *index, struct fb_entry *head, uint32_t part);

/* Sum of the parts' bytes; *parts (may be NULL) is how many there are. */
uint64_t fb_index_value_bytes(const struct fb_index *index, const struct fb_entry *head,
                              uint32_t *parts);

/* True if the entry has an address on a device. */
static inline bool fb_entry_has_addr(const struct fb_entry *entry)
{
    return entry->incarnation != 0;
}

/* The address of an entry that has one. */
struct fb_log_addr fb_entry_addr(const struct fb_entry *entry);

/* Gives an entry an address. A key text that hung on `place` must have been taken off before. */
void fb_entry_set_addr(struct fb_entry *entry, const struct fb_log_addr *addr);

/* Takes the address away. */
void fb_entry_clear_addr(struct fb_entry *entry);

/* True if the address is that of the entry. */
bool fb_entry_is_at(const struct fb_entry *entry, const struct fb_log_addr *addr);

/* Slot of the value's key text, or FB_KEYS_NONE. */
uint32_t fb_index_key(const struct fb_index *index, const struct fb_entry *head);

/* Hangs a key text on a value, or takes it off (FB_KEYS_NONE). A value of one part that has an
 * address has no room for one (asserted). */
void fb_index_set_key(struct fb_index *index, struct fb_entry *head, uint32_t slot);

/* True if all of the flags are set. */
static inline bool fb_entry_is(const struct fb_entry *entry, unsigned flags)
{
    return (entry->flags & flags) == flags;
}

/* Sets flags. */
static inline void fb_entry_set(struct fb_entry *entry, unsigned flags)
{
    entry->flags = (uint16_t)(entry->flags | flags);
}

/* Clears flags. */
static inline void fb_entry_clear(struct fb_entry *entry, unsigned flags)
{
    entry->flags = (uint16_t)(entry->flags & ~flags);
}

#endif
