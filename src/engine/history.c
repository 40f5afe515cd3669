/*
 * history.c - see history.h.
 */
#include "engine/history.h"

#include "base/assert.h"
#include "base/bits.h"

void fb_history_init(struct fb_history *history, uint32_t capacity, struct fb_region *region)
{
    FB_ASSERT(capacity > 0);
    history->records = FB_REGION_NEW(region, struct fb_history_record, capacity);
    history->buckets = FB_REGION_NEW(region, uint32_t, capacity);
    history->capacity = capacity;
    history->count = 0;
    history->next = 0;
    history->since_ms = 0;
    if (fb_region_is_counting(region))
        return;
    for (uint32_t i = 0; i < capacity; i++)
        history->buckets[i] = FB_HISTORY_NONE;
}

void fb_history_begin(struct fb_history *history, uint64_t wall_ms)
{
    history->since_ms = wall_ms;
}

static uint32_t *bucket_of(const struct fb_history *history, struct fb_digest digest)
{
    return &history->buckets[((unsigned __int128)digest.hi * history->capacity) >> 64];
}

/* Takes a record out of its bucket. */
static void unchain(struct fb_history *history, uint32_t number)
{
    struct fb_history_record *record = &history->records[number];
    FB_ASSERT(!record->stale);
    if (record->newer == FB_HISTORY_NONE)
        *bucket_of(history, record->digest) = record->older;
    else
        history->records[record->newer].older = record->older;
    if (record->older != FB_HISTORY_NONE)
        history->records[record->older].newer = record->newer;
    record->stale = true;
}

/* The oldest record is about to be overwritten. */
static void forget(struct fb_history *history, uint32_t number)
{
    const struct fb_history_record *record = &history->records[number];
    history->since_ms = fb_max_u64(history->since_ms, record->when_ms);
    if (!record->stale)
        unchain(history, number);
}

static uint32_t find(const struct fb_history *history, struct fb_digest digest)
{
    uint32_t number = *bucket_of(history, digest);
    while (number != FB_HISTORY_NONE &&
           !fb_digest_is_equal(history->records[number].digest, digest))
        number = history->records[number].older;
    return number;
}

void fb_history_add(struct fb_history *history, struct fb_digest digest, uint64_t generation,
                    enum fb_reason reason, uint64_t wall_ms)
{
    uint32_t before = find(history, digest);
    if (before != FB_HISTORY_NONE)
        unchain(history, before);
    uint32_t number = history->next;
    if (history->count == history->capacity)
        forget(history, number);
    else
        history->count++;
    history->next = number + 1 < history->capacity ? number + 1 : 0;
    uint32_t *bucket = bucket_of(history, digest);
    history->records[number] = (struct fb_history_record){
        .digest = digest,
        .generation = generation,
        .when_ms = wall_ms,
        .older = *bucket,
        .newer = FB_HISTORY_NONE,
        .reason = (uint8_t)reason,
    };
    if (*bucket != FB_HISTORY_NONE)
        history->records[*bucket].newer = number;
    *bucket = number;
}

const struct fb_history_record *fb_history_find(const struct fb_history *history,
                                                struct fb_digest digest)
{
    uint32_t number = find(history, digest);
    return number == FB_HISTORY_NONE ? NULL : &history->records[number];
}
