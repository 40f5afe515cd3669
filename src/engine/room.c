/*
 * room.c - making room: which clean pages, values and entries leave when somebody needs theirs.
 *
 * What is on a device as well loses its pages only. What is in DRAM only goes as a whole, with a
 * reason. While the tier is ON nothing dirty goes. Behind a fence dirty values go (they can never
 * be written); while the tier is FULL they go when puts wait and nobody waits for them to become
 * durable.
 */
#include "engine/shard_private.h"

/* The part of all sets, or of those of one namespace, that should go first. */
static struct fb_entry *find_victim(const struct fb_shard *shard, int ns, bool loose_only)
{
    struct fb_entry *best = NULL;
    for (uint32_t i = 0; i < shard->spaces_high; i++) {
        const struct fb_space *space = &shard->spaces[i];
        if (!space->used || (ns >= 0 && space->ns != ns))
            continue;
        struct fb_entry *entry = fb_evict_victim(&shard->index, &space->evict, loose_only);
        if (entry != NULL && (best == NULL || fb_evict_before(entry, best)))
            best = entry;
    }
    return best;
}

struct fb_entry *fb_room_victim(const struct fb_shard *shard)
{
    return find_victim(shard, -1, false);
}

/* The coldest dirty value that may be given up, or NULL. */
static struct fb_entry *find_dirty_victim(const struct fb_shard *shard)
{
    enum fb_tier_state tier = fb_tier_now(shard);
    if (tier != FB_TIER_FENCED && tier != FB_TIER_FULL)
        return NULL;
    const struct fb_lru *lists[] = {&shard->dirty, &shard->lazy};
    for (unsigned i = 0; i < FB_ARRAY_COUNT(lists); i++) {
        struct fb_entry *entry = fb_lru_cold(&shard->index, lists[i]);
        for (unsigned looks = 0; entry != NULL && looks < FB_SHARD_DIRTY_LOOKS; looks++) {
            struct fb_entry *head = fb_index_head_of(&shard->index, entry);
            if (tier == FB_TIER_FENCED || !fb_entry_is(head, FB_ENTRY_AWAITED))
                return head;
            entry = fb_lru_newer(&shard->index, entry);
        }
    }
    return NULL;
}

/* Drops a part's pages, or its value if it has nothing else. */
static void drop(struct fb_shard *shard, struct fb_entry *entry, enum fb_reason reason)
{
    struct fb_entry *head = fb_index_head_of(&shard->index, entry);
    if (!fb_entry_has_addr(entry))
        fb_value_drop(shard, head, reason, false);
    else if (fb_tier_is_readable(shard))
        fb_part_drop_pages(shard, entry);
    else
        fb_value_drop(shard, head, FB_REASON_DEVICE_FENCED, false);
}

/* One step: true if something was dropped. */
static bool drop_one(struct fb_shard *shard, bool loose_only)
{
    struct fb_entry *entry = find_victim(shard, -1, loose_only);
    if (entry != NULL) {
        drop(shard, entry, loose_only ? FB_REASON_INDEX_FULL : FB_REASON_EVICTED_DRAM);
        return true;
    }
    struct fb_entry *head = find_dirty_victim(shard);
    if (head == NULL)
        return false;
    fb_value_drop(shard, head, FB_REASON_EVICTED_DIRTY, false);
    return true;
}

/* Takes one step of this turn's allowance; false if it is used up. */
static bool may_step(struct fb_shard *shard)
{
    if (shard->evicts_left == 0) {
        shard->more_work = true;
        return false;
    }
    shard->evicts_left--;
    return true;
}

/* True if what would go is nowhere else, and the pool is still growing: memory comes by itself. */
static bool waits_for_pool(const struct fb_shard *shard)
{
    if (shard->pool_is_whole || shard->arena.faulted_pages == shard->arena.pages)
        return false;
    const struct fb_entry *entry = find_victim(shard, -1, false);
    return entry == NULL || !fb_entry_has_addr(entry);
}

enum fb_room fb_room_pages(struct fb_shard *shard, uint64_t pages)
{
    while (shard->arena.free_pages < pages) {
        if (waits_for_pool(shard))
            return FB_ROOM_WAIT;
        if (!may_step(shard))
            return FB_ROOM_MORE;
        if (!drop_one(shard, false))
            return FB_ROOM_WAIT;
    }
    return FB_ROOM_OK;
}

enum fb_room fb_room_quota(struct fb_shard *shard, uint16_t ns, uint64_t pages)
{
    const struct fb_namespace *space = fb_space_namespace(shard, ns);
    while (space->dram_pages > pages) {
        if (!may_step(shard))
            return FB_ROOM_MORE;
        struct fb_entry *entry = find_victim(shard, ns, false);
        if (entry == NULL)
            return FB_ROOM_WAIT;
        drop(shard, entry, FB_REASON_QUOTA);
    }
    return FB_ROOM_OK;
}

/* Asks the log to give up a segment, at a bounded rate: its entries are what the index needs. If it
 * does not help (all is leased, and copied forward), the next wish waits longer. */
static void ask_reclaim(struct fb_shard *shard)
{
    if (shard->log == NULL || shard->now_ns < shard->reclaim_asked_ns + shard->reclaim_wait_ns)
        return;
    uint32_t free_now = fb_index_free_count(&shard->index);
    bool helped = free_now > shard->reclaim_free || shard->reclaim_wait_ns == 0;
    shard->reclaim_wait_ns = helped
                                 ? FB_SHARD_RECLAIM_NS
                                 : fb_min_u64(shard->reclaim_wait_ns * 2, FB_SHARD_RECLAIM_NS_MAX);
    shard->reclaim_free = free_now;
    shard->reclaim_asked_ns = shard->now_ns;
    fb_log_reclaim_one(shard->log, shard->now_ns);
}

enum fb_room fb_room_entries(struct fb_shard *shard, uint32_t entries, uint32_t granules)
{
    uint32_t slack = shard->index.count / FB_SHARD_INDEX_SLACK;
    if (fb_index_free_count(&shard->index) < shard->index.count / FB_SHARD_INDEX_LOW &&
        shard->placed_entries > shard->index.count / 2)
        ask_reclaim(shard);
    while (fb_index_free_count(&shard->index) < entries + slack ||
           shard->keys.free_count < granules) {
        if (!may_step(shard))
            return FB_ROOM_MORE;
        if (!drop_one(shard, true)) {
            shard->index_waits = fb_index_free_count(&shard->index) < entries + slack;
            if (shard->index_waits)
                ask_reclaim(shard);
            return FB_ROOM_WAIT;
        }
    }
    return FB_ROOM_OK;
}

enum fb_room fb_room_stuck(struct fb_shard *shard, uint64_t pages)
{
    while (fb_pages_stuck(shard) > pages) {
        if (!may_step(shard))
            return FB_ROOM_MORE;
        struct fb_entry *head = find_dirty_victim(shard);
        if (head == NULL)
            return FB_ROOM_WAIT;
        fb_value_drop(shard, head, FB_REASON_EVICTED_DIRTY, false);
    }
    return FB_ROOM_OK;
}
