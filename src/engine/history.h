/*
 * history.h - why keys went: a bounded memory of reasons, newest last.
 *
 * A ring of records with hash chains over it, one record a key in the chains. When it is full the
 * oldest record goes, and the history then reaches back only to the one after it: what is not found
 * is answered "no record since T". Pure.
 */
#ifndef FB_ENGINE_HISTORY_H
#define FB_ENGINE_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/reason.h"
#include "base/region.h"

struct fb_history_record {
    struct fb_digest digest;
    uint64_t generation;
    uint64_t when_ms; /* wall time */
    uint32_t older;   /* in its bucket, or FB_HISTORY_NONE */
    uint32_t newer;   /* in its bucket, or FB_HISTORY_NONE */
    uint8_t reason;   /* enum fb_reason */
    bool stale;       /* a newer record of the same key took its place: in no bucket */
};

#define FB_HISTORY_NONE UINT32_MAX

struct fb_history {
    struct fb_history_record *records;
    uint32_t *buckets;
    uint32_t capacity;
    uint32_t count;
    uint32_t next;     /* where the next record goes */
    uint64_t since_ms; /* nothing that is older than this is known */
};

/* Takes room for `capacity` records (at least 1) from the region, or counts it. */
void fb_history_init(struct fb_history *history, uint32_t capacity, struct fb_region *region);

/* The history begins now: what was before is not known. */
void fb_history_begin(struct fb_history *history, uint64_t wall_ms);

/* Notes why a key went. */
void fb_history_add(struct fb_history *history, struct fb_digest digest, uint64_t generation,
                    enum fb_reason reason, uint64_t wall_ms);

/* The newest record of a key, or NULL. Valid until the next add. */
const struct fb_history_record *fb_history_find(const struct fb_history *history,
                                                struct fb_digest digest);

#endif
