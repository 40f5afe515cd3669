/*
 * value.c - entries as values: their pages, the lists they are on, the accounts, and how they go.
 *
 * Every page of DRAM is counted in one class, and every part is on at most one list. Both follow
 * from the entry's state alone: whoever changes it lifts the part, changes it, and settles it
 * again.
 */
#include "engine/shard_private.h"

/* ---- accounts and lists ---- */

uint32_t fb_part_pages(const struct fb_entry *entry)
{
    return fb_arena_pages_of(entry->part_bytes);
}

static enum fb_pages class_of(const struct fb_entry *entry)
{
    switch (entry->state) {
    case FB_ENTRY_RESERVED:
        return FB_PAGES_RESERVED;
    case FB_ENTRY_QUARANTINED:
        return FB_PAGES_QUARANTINE;
    case FB_ENTRY_LIVE:
    case FB_ENTRY_DOOMED:
        if (fb_entry_is(entry, FB_ENTRY_UNSAVED))
            return FB_PAGES_DIRTY;
        if (entry->pins > 0)
            return FB_PAGES_PINNED;
        return entry->list == FB_ENTRY_HELD ? FB_PAGES_HELD : FB_PAGES_CLEAN;
    default:
        return FB_PAGES_PINNED;
    }
}

/* True if the value is leased: for one in DRAM only, this means that its parts stay. */
static bool is_held(const struct fb_shard *shard, struct fb_entry *entry)
{
    return fb_value_is_leased(shard, fb_index_head_of(&shard->index, entry));
}

static enum fb_entry_list list_of(const struct fb_shard *shard, struct fb_entry *entry)
{
    if (fb_entry_is(entry, FB_ENTRY_BUSY))
        return FB_ENTRY_UNLISTED;
    if (entry->state == FB_ENTRY_GHOST)
        return fb_entry_is(entry, FB_ENTRY_KILLING) ? FB_ENTRY_UNLISTED : FB_ENTRY_GHOSTS;
    if (entry->state != FB_ENTRY_LIVE && entry->state != FB_ENTRY_DOOMED)
        return FB_ENTRY_UNLISTED;
    if (entry->extent == FB_ARENA_NONE)
        return FB_ENTRY_UNLISTED;
    if (fb_entry_is(entry, FB_ENTRY_UNSAVED)) {
        /* What is durable of a value waits for the rest: it may have to be written again. */
        if (fb_entry_has_addr(entry))
            return FB_ENTRY_UNLISTED;
        if (fb_entry_is(fb_index_head_of(&shard->index, entry), FB_ENTRY_KILLING))
            return FB_ENTRY_UNLISTED;
        bool lazy =
            entry->persist == FB_ENTRY_PERSIST_EVICT && !fb_entry_is(entry, FB_ENTRY_URGENT);
        return lazy ? FB_ENTRY_LAZY : FB_ENTRY_DIRTY;
    }
    if (entry->pins > 0)
        return FB_ENTRY_UNLISTED;
    if (fb_entry_has_addr(entry))
        return FB_ENTRY_CLEAN;
    return is_held(shard, entry) ? FB_ENTRY_HELD : FB_ENTRY_LOOSE;
}

static struct fb_lru *lru_of(struct fb_shard *shard, const struct fb_entry *entry)
{
    switch (entry->list) {
    case FB_ENTRY_HELD:
        return &shard->held[entry->links.held_slot];
    case FB_ENTRY_DIRTY:
        return &shard->dirty;
    case FB_ENTRY_LAZY:
        return &shard->lazy;
    case FB_ENTRY_GHOSTS:
        return &shard->ghosts;
    case FB_ENTRY_PARTIAL:
        return &shard->partial;
    default:
        FB_UNREACHABLE();
    }
}

static struct fb_evict *evict_of(struct fb_shard *shard, const struct fb_entry *entry)
{
    return &shard->spaces[entry->space].evict;
}

/* Adds a head to the counts of keys by tier, or takes it out. */
static void count_key(struct fb_shard *shard, const struct fb_entry *entry, bool add)
{
    if (!fb_entry_is(entry, FB_ENTRY_HEAD) ||
        (entry->state != FB_ENTRY_LIVE && entry->state != FB_ENTRY_DOOMED))
        return;
    uint64_t in_dram = entry->extent != FB_ARENA_NONE;
    uint64_t on_ssd = fb_entry_has_addr(entry);
    shard->keys_dram = add ? shard->keys_dram + in_dram : shard->keys_dram - in_dram;
    shard->keys_ssd = add ? shard->keys_ssd + on_ssd : shard->keys_ssd - on_ssd;
}

void fb_part_lift(struct fb_shard *shard, struct fb_entry *entry)
{
    count_key(shard, entry, false);
    if (entry->extent != FB_ARENA_NONE) {
        uint64_t *pages = &shard->pages[class_of(entry)];
        FB_ASSERT(*pages >= fb_part_pages(entry));
        *pages -= fb_part_pages(entry);
    }
    if (entry->list == FB_ENTRY_CLEAN || entry->list == FB_ENTRY_LOOSE)
        fb_evict_remove(&shard->index, evict_of(shard, entry), entry);
    else if (entry->list != FB_ENTRY_UNLISTED)
        fb_lru_remove(&shard->index, lru_of(shard, entry), entry);
    entry->list = FB_ENTRY_UNLISTED;
}

void fb_part_settle(struct fb_shard *shard, struct fb_entry *entry)
{
    FB_ASSERT(entry->list == FB_ENTRY_UNLISTED);
    enum fb_entry_list list = list_of(shard, entry);
    entry->list = (uint8_t)list & 7;
    if (list == FB_ENTRY_CLEAN || list == FB_ENTRY_LOOSE) {
        fb_evict_insert(&shard->index, evict_of(shard, entry), entry);
    } else if (list == FB_ENTRY_DIRTY && fb_entry_is(entry, FB_ENTRY_URGENT)) {
        fb_lru_push_cold(&shard->index, &shard->dirty, entry);
    } else if (list != FB_ENTRY_UNLISTED) {
        if (list == FB_ENTRY_HELD)
            entry->links.held_slot =
                (uint16_t)(fb_index_head_of(&shard->index, entry)->lease_until %
                           FB_SHARD_HELD_SLOTS);
        fb_lru_push_hot(&shard->index, lru_of(shard, entry), entry);
    }
    if (entry->extent != FB_ARENA_NONE)
        shard->pages[class_of(entry)] += fb_part_pages(entry);
    count_key(shard, entry, true);
}

void fb_part_touch(struct fb_shard *shard, struct fb_entry *entry)
{
    fb_part_lift(shard, entry);
    entry->links.touched = fb_shard_beat(shard);
    fb_part_settle(shard, entry);
}

/* Attaches a chain to a part that has been lifted. */
static void attach_pages(struct fb_shard *shard, struct fb_entry *entry, uint32_t chain)
{
    FB_ASSERT(entry->extent == FB_ARENA_NONE && entry->list == FB_ENTRY_UNLISTED);
    entry->extent = chain;
    fb_space_of(shard, entry)->dram_pages += fb_part_pages(entry);
}

/* Frees the pages of a part that has been lifted. */
static void free_pages(struct fb_shard *shard, struct fb_entry *entry)
{
    FB_ASSERT(entry->pins == 0 && entry->list == FB_ENTRY_UNLISTED);
    if (entry->extent == FB_ARENA_NONE)
        return;
    uint32_t pages = fb_arena_free(&shard->arena, entry->extent);
    FB_ASSERT(pages == fb_part_pages(entry));
    struct fb_namespace *ns = fb_space_of(shard, entry);
    FB_ASSERT(ns->dram_pages >= pages);
    ns->dram_pages -= pages;
    entry->extent = FB_ARENA_NONE;
    fb_entry_clear(entry, FB_ENTRY_VERIFIED | FB_ENTRY_SPOILED);
}

void fb_part_attach(struct fb_shard *shard, struct fb_entry *entry, uint32_t chain)
{
    fb_part_lift(shard, entry);
    attach_pages(shard, entry, chain);
    fb_part_settle(shard, entry);
}

void fb_part_drop_pages(struct fb_shard *shard, struct fb_entry *entry)
{
    FB_ASSERT(entry->pins == 0 && !fb_entry_is(entry, FB_ENTRY_UNSAVED));
    fb_part_lift(shard, entry);
    free_pages(shard, entry);
    fb_part_settle(shard, entry);
}

/* Gives back an entry that was lifted and has no pages. */
static void free_entry(struct fb_shard *shard, struct fb_entry *entry)
{
    fb_space_exit(shard, entry);
    fb_index_free(&shard->index, entry);
}

void fb_part_pin(struct fb_shard *shard, struct fb_entry *entry)
{
    FB_ASSERT(entry->extent != FB_ARENA_NONE && entry->pins < FB_ENTRY_PINS_MAX);
    fb_part_lift(shard, entry);
    entry->pins++;
    fb_part_settle(shard, entry);
}

void fb_part_unpin(struct fb_shard *shard, struct fb_entry *entry)
{
    FB_ASSERT(entry->pins > 0);
    fb_part_lift(shard, entry);
    entry->pins--;
    if (entry->pins == 0) {
        bool spoiled = fb_entry_is(entry, FB_ENTRY_SPOILED) && fb_entry_has_addr(entry);
        if (spoiled)
            fb_entry_clear(entry, FB_ENTRY_UNSAVED);
        if (entry->state == FB_ENTRY_ZOMBIE || entry->state == FB_ENTRY_GHOST || spoiled)
            free_pages(shard, entry);
        if (entry->state == FB_ENTRY_ZOMBIE) {
            free_entry(shard, entry);
            return;
        }
    }
    fb_part_settle(shard, entry);
}

void fb_part_set_addr(struct fb_shard *shard, struct fb_entry *entry,
                      const struct fb_log_addr *addr)
{
    shard->placed_entries += !fb_entry_has_addr(entry);
    fb_entry_set_addr(entry, addr);
}

/* Takes the address away; the record there is garbage. */
static void clear_addr(struct fb_shard *shard, struct fb_entry *entry)
{
    if (!fb_entry_has_addr(entry))
        return;
    struct fb_log_addr addr = fb_entry_addr(entry);
    fb_log_garbage(shard->log, &addr, entry->part_bytes);
    fb_entry_clear_addr(entry);
    FB_ASSERT(shard->placed_entries > 0);
    shard->placed_entries--;
}

bool fb_part_redirty(struct fb_shard *shard, struct fb_entry *entry)
{
    if (!fb_entry_is(entry, FB_ENTRY_UNSAVED) || entry->extent == FB_ARENA_NONE)
        return false;
    fb_part_lift(shard, entry);
    clear_addr(shard, entry);
    fb_part_settle(shard, entry);
    return true;
}

uint64_t fb_pages_stuck(const struct fb_shard *shard)
{
    const uint64_t *pages = shard->pages;
    uint64_t stuck = pages[FB_PAGES_HELD] + pages[FB_PAGES_PINNED] + pages[FB_PAGES_RESERVED] +
                     pages[FB_PAGES_QUARANTINE];
    return fb_tier_now(shard) == FB_TIER_FENCED ? stuck : stuck + pages[FB_PAGES_DIRTY];
}

uint32_t fb_stage_take(struct fb_shard *shard, uint32_t bytes)
{
    uint32_t pages = fb_arena_pages_of(bytes);
    if (shard->pages[FB_PAGES_STAGING] + pages > shard->staging_pages)
        return FB_ARENA_NONE;
    if (fb_room_pages(shard, pages) != FB_ROOM_OK)
        return FB_ARENA_NONE;
    uint32_t head = fb_arena_alloc(&shard->arena, pages);
    if (head != FB_ARENA_NONE)
        shard->pages[FB_PAGES_STAGING] += pages;
    return head;
}

void fb_stage_give(struct fb_shard *shard, uint32_t head)
{
    uint32_t pages = fb_arena_free(&shard->arena, head);
    FB_ASSERT(shard->pages[FB_PAGES_STAGING] >= pages);
    shard->pages[FB_PAGES_STAGING] -= pages;
}

void fb_stage_promote(struct fb_shard *shard, struct fb_entry *entry, uint32_t head)
{
    FB_ASSERT(shard->pages[FB_PAGES_STAGING] >= fb_part_pages(entry));
    shard->pages[FB_PAGES_STAGING] -= fb_part_pages(entry);
    fb_part_attach(shard, entry, head);
}

/* ---- leases on values in DRAM only ---- */

void fb_value_relist(struct fb_shard *shard, struct fb_entry *head)
{
    for (struct fb_entry *entry = head; entry != NULL;
         entry = fb_index_next_part(&shard->index, entry)) {
        fb_part_lift(shard, entry);
        fb_part_settle(shard, entry);
    }
}

void fb_held_tick(struct fb_shard *shard)
{
    uint32_t now = fb_shard_beat(shard);
    uint32_t steps = now - shard->held_beat;
    if (steps > FB_SHARD_HELD_SLOTS) {
        shard->held_beat = now - FB_SHARD_HELD_SLOTS;
        steps = FB_SHARD_HELD_SLOTS;
    }
    for (uint32_t i = 0; i < steps; i++) {
        shard->held_beat++;
        struct fb_lru *lru = &shard->held[shard->held_beat % FB_SHARD_HELD_SLOTS];
        for (uint32_t left = lru->count; left > 0; left--) {
            struct fb_entry *entry = fb_lru_cold(&shard->index, lru);
            fb_part_lift(shard, entry);
            fb_part_settle(shard, entry);
        }
    }
}

/* ---- looking at values ---- */

static bool is_readable_state(const struct fb_entry *head)
{
    return head->state == FB_ENTRY_LIVE || head->state == FB_ENTRY_DOOMED;
}

struct fb_entry *fb_value_find(const struct fb_shard *shard, struct fb_digest digest)
{
    struct fb_entry *head = fb_index_find(&shard->index, digest);
    return head != NULL && is_readable_state(head) ? head : NULL;
}

struct fb_entry *fb_value_at(const struct fb_shard *shard, uint32_t head, uint64_t generation)
{
    FB_ASSERT(head < shard->index.count);
    struct fb_entry *entry = &shard->index.entries[head];
    bool same = is_readable_state(entry) && entry->generation == generation &&
                fb_entry_is(entry, FB_ENTRY_HEAD);
    return same ? entry : NULL;
}

bool fb_value_is_durable(const struct fb_shard *shard, const struct fb_entry *head)
{
    for (const struct fb_entry *entry = head; entry != NULL;
         entry = fb_index_next_part(&shard->index, entry))
        if (!fb_entry_has_addr(entry))
            return false;
    return true;
}

int fb_value_persist_error(const struct fb_shard *shard, const struct fb_entry *head)
{
    if (fb_tier_now(shard) == FB_TIER_FENCED)
        return FB_IO;
    if (fb_value_is_durable(shard, head))
        return 0;
    if (shard->log == NULL)
        return FB_NOT_PERSISTED;
    if (fb_entry_is(head, FB_ENTRY_UNKEPT))
        return FB_QUOTA;
    return head->persist == FB_ENTRY_PERSIST_OFF ? FB_NOT_PERSISTED : 0;
}

static bool is_in_dram(const struct fb_entry *entry)
{
    return entry->extent != FB_ARENA_NONE && !fb_entry_is(entry, FB_ENTRY_SPOILED);
}

bool fb_part_is_readable(const struct fb_shard *shard, const struct fb_entry *entry)
{
    return is_in_dram(entry) || (fb_entry_has_addr(entry) && fb_tier_is_readable(shard));
}

bool fb_value_is_readable(const struct fb_shard *shard, struct fb_entry *head)
{
    for (struct fb_entry *entry = head; entry != NULL;
         entry = fb_index_next_part(&shard->index, entry))
        if (!fb_part_is_readable(shard, entry))
            return false;
    return true;
}

unsigned fb_value_tiers(const struct fb_shard *shard, struct fb_entry *head)
{
    unsigned tiers = fb_tier_is_readable(shard) ? 3 : 1;
    for (struct fb_entry *entry = head; entry != NULL;
         entry = fb_index_next_part(&shard->index, entry)) {
        if (!is_in_dram(entry))
            tiers &= ~1u;
        if (!fb_entry_has_addr(entry))
            tiers &= ~2u;
    }
    return tiers;
}

/* ---- making values ---- */

static uint32_t fold(struct fb_digest group)
{
    uint64_t mixed = group.hi ^ group.lo;
    return (uint32_t)(mixed ^ mixed >> 32);
}

struct fb_entry *fb_value_reserve(struct fb_shard *shard, const struct fb_op *op, uint32_t parts)
{
    FB_ASSERT(parts > 0 && parts <= fb_index_free_count(&shard->index));
    struct fb_entry *head = NULL;
    struct fb_entry *last = NULL;
    uint64_t left = op->value_bytes;
    uint16_t space = fb_space_namespace(shard, op->ns)->space;
    for (uint32_t part = 0; part < parts; part++) {
        struct fb_entry *entry = fb_index_alloc(&shard->index, FB_ENTRY_RESERVED);
        entry->part_bytes = (uint32_t)fb_min_u64(left, shard->chunk_bytes);
        left -= entry->part_bytes;
        entry->generation = op->generation;
        entry->depth = op->depth;
        entry->group = fold(op->group);
        fb_space_enter(shard, entry, space);
        uint32_t chain = fb_arena_alloc(&shard->arena, fb_part_pages(entry));
        FB_ASSERT(chain != FB_ARENA_NONE);
        attach_pages(shard, entry, chain);
        if (last == NULL) {
            head = entry;
            head->digest = op->digest;
            fb_entry_set(head, FB_ENTRY_HEAD);
        } else {
            last->part_next = fb_index_number(&shard->index, entry);
            entry->chain = fb_index_number(&shard->index, head);
        }
        last = entry;
        fb_part_settle(shard, entry);
    }
    FB_ASSERT(left == 0);
    const struct fb_keys_head text = {op->group, op->key_bytes, op->pin_class};
    fb_index_set_key(&shard->index, head, fb_keys_put(&shard->keys, &text, op->key));
    return head;
}

void fb_value_set_state(struct fb_shard *shard, struct fb_entry *head, enum fb_entry_state state)
{
    for (struct fb_entry *entry = head; entry != NULL;
         entry = fb_index_next_part(&shard->index, entry)) {
        fb_part_lift(shard, entry);
        entry->state = (uint8_t)state & 7;
        fb_part_settle(shard, entry);
    }
}

static void free_key(struct fb_shard *shard, struct fb_entry *head)
{
    uint32_t slot = fb_index_key(&shard->index, head);
    if (slot == FB_KEYS_NONE)
        return;
    fb_keys_free(&shard->keys, slot);
    fb_index_set_key(&shard->index, head, FB_KEYS_NONE);
}

void fb_value_free_key(struct fb_shard *shard, struct fb_entry *head)
{
    free_key(shard, head);
}

/* ---- how values go ---- */

/* A part leaves the index: it is freed, or is a zombie until nobody uses it. */
static void bury_part(struct fb_shard *shard, struct fb_entry *entry)
{
    fb_part_lift(shard, entry);
    clear_addr(shard, entry);
    entry->state = FB_ENTRY_ZOMBIE;
    entry->part_next = FB_ENTRY_NONE;
    fb_entry_clear(entry, FB_ENTRY_UNSAVED | FB_ENTRY_URGENT | FB_ENTRY_HEAD);
    if (entry->pins > 0) {
        fb_part_settle(shard, entry);
        return;
    }
    free_pages(shard, entry);
    free_entry(shard, entry);
}

/* Buries all parts behind the head. */
static void bury_tail(struct fb_shard *shard, struct fb_entry *head)
{
    struct fb_entry *entry = fb_index_next_part(&shard->index, head);
    head->part_next = FB_ENTRY_NONE;
    while (entry != NULL) {
        struct fb_entry *next = fb_index_next_part(&shard->index, entry);
        bury_part(shard, entry);
        entry = next;
    }
}

void fb_value_release(struct fb_shard *shard, struct fb_entry *head)
{
    FB_ASSERT(!fb_entry_is(head, FB_ENTRY_HASHED));
    free_key(shard, head);
    bury_tail(shard, head);
    bury_part(shard, head);
}

/* The head stays as a ghost: a tombstone must kill what the device may hold. */
static void make_ghost(struct fb_shard *shard, struct fb_entry *head)
{
    fb_part_lift(shard, head);
    clear_addr(shard, head);
    head->state = FB_ENTRY_GHOST;
    head->lease_until = 0;
    head->hold_loads = 0;
    fb_entry_clear(head, FB_ENTRY_UNSAVED | FB_ENTRY_URGENT | FB_ENTRY_AWAITED | FB_ENTRY_USED);
    fb_entry_set(head, FB_ENTRY_PLACED);
    if (head->pins == 0)
        free_pages(shard, head);
    fb_part_settle(shard, head);
    shard->again = true;
}

void fb_value_forget(struct fb_shard *shard, struct fb_entry *head)
{
    fb_index_unlink(&shard->index, head);
    bury_tail(shard, head);
    bury_part(shard, head);
}

/* Bytes of the device that the value counts for in its namespace. */
static uint64_t counted_ssd_bytes(const struct fb_shard *shard, const struct fb_entry *head)
{
    if (head->persist == FB_ENTRY_PERSIST_OFF || fb_entry_is(head, FB_ENTRY_UNKEPT))
        return 0;
    uint64_t bytes = 0;
    for (const struct fb_entry *entry = head; entry != NULL;
         entry = fb_index_next_part(&shard->index, entry))
        bytes += (uint64_t)fb_part_pages(entry) * FB_PAGE_BYTES;
    return bytes;
}

void fb_value_count_ssd(struct fb_shard *shard, struct fb_entry *head)
{
    struct fb_namespace *ns = fb_space_of(shard, head);
    uint64_t bytes = counted_ssd_bytes(shard, head);
    if (ns->quota_ssd_bytes != 0 && ns->ssd_bytes + bytes > ns->quota_ssd_bytes) {
        fb_entry_set(head, FB_ENTRY_UNKEPT);
        return;
    }
    ns->ssd_bytes += bytes;
}

void fb_value_drop_quietly(struct fb_shard *shard, struct fb_entry *head, enum fb_reason reason,
                           bool settled)
{
    FB_ASSERT(is_readable_state(head) && fb_entry_is(head, FB_ENTRY_HASHED));
    fb_shard_notice(shard, FB_NOTICE_WITHDRAW, head);
    fb_history_add(&shard->history, head->digest, head->generation, reason, shard->wall_ms);
    shard->stats.drops[reason]++;
    if (fb_entry_is(head, FB_ENTRY_AWAITED))
        fb_wait_over(shard, head, FB_MISS, reason);
    fb_lease_forget(shard, head);
    fb_value_cancel_writes(shard, head);
    fb_space_of(shard, head)->ssd_bytes -= counted_ssd_bytes(shard, head);
    head->persist = FB_ENTRY_PERSIST_OFF;
    free_key(shard, head);
    bool keep_ghost =
        fb_entry_is(head, FB_ENTRY_DOUBT) || (fb_entry_is(head, FB_ENTRY_PLACED) && !settled);
    bury_tail(shard, head);
    if (keep_ghost) {
        make_ghost(shard, head);
        return;
    }
    fb_index_unlink(&shard->index, head);
    bury_part(shard, head);
}

void fb_value_drop(struct fb_shard *shard, struct fb_entry *head, enum fb_reason reason,
                   bool settled)
{
    struct fb_digest digest = head->digest;
    fb_value_drop_quietly(shard, head, reason, settled);
    fb_put_value_changed(shard, digest);
}

void fb_value_lay_ghost(struct fb_shard *shard, struct fb_entry *ghost)
{
    FB_ASSERT(ghost->state == FB_ENTRY_GHOST);
    FB_ASSERT(ghost->part_next == FB_ENTRY_NONE && !fb_entry_has_addr(ghost));
    fb_index_unlink(&shard->index, ghost);
    bury_part(shard, ghost);
}

void fb_value_cancel_writes(struct fb_shard *shard, struct fb_entry *head)
{
    bool all = true;
    bool first = false;
    struct fb_entry *next;
    for (struct fb_entry *entry = head; entry != NULL; entry = next) {
        next = fb_index_next_part(&shard->index, entry);
        if (!fb_entry_is(entry, FB_ENTRY_BUSY))
            continue;
        struct fb_write *slot = &shard->writes[entry->links.newer];
        FB_ASSERT(slot->kind == FB_WRITE_PART);
        if (slot->phase == FB_WRITE_LOG && fb_log_cancel(shard->log, &slot->item)) {
            first |= slot->first;
            fb_clean_taken_back(shard, slot);
        } else if (slot->phase == FB_WRITE_LOG) {
            all = false;
        }
    }
    fb_reclaim_cancel(shard, head);
    /* Nothing of a value whose only items were taken back has reached a device. */
    if (all && first)
        fb_entry_clear(head, FB_ENTRY_PLACED);
}

void fb_value_demand(struct fb_shard *shard, struct fb_entry *head)
{
    for (struct fb_entry *entry = head; entry != NULL;
         entry = fb_index_next_part(&shard->index, entry)) {
        if (!fb_entry_is(entry, FB_ENTRY_UNSAVED) || fb_entry_has_addr(entry))
            continue;
        fb_part_lift(shard, entry);
        fb_entry_set(entry, FB_ENTRY_URGENT);
        if (fb_entry_is(entry, FB_ENTRY_BUSY))
            shard->writes[entry->links.newer].item.urgent = true;
        fb_part_settle(shard, entry);
    }
}

void fb_value_made_durable(struct fb_shard *shard, struct fb_entry *head)
{
    FB_ASSERT(fb_value_is_durable(shard, head));
    free_key(shard, head);
    for (struct fb_entry *entry = head; entry != NULL;
         entry = fb_index_next_part(&shard->index, entry)) {
        fb_part_lift(shard, entry);
        fb_entry_clear(entry, FB_ENTRY_UNSAVED | FB_ENTRY_URGENT);
        fb_part_settle(shard, entry);
    }
    if (fb_entry_is(head, FB_ENTRY_AWAITED))
        fb_wait_over(shard, head, FB_OK, FB_REASON_NONE);
    fb_put_value_changed(shard, head->digest);
}

/* ---- who waits for durability ---- */

static struct fb_list *wait_bucket(struct fb_shard *shard, uint32_t head)
{
    return &shard->waits[head & (FB_SHARD_WAIT_BUCKETS - 1)];
}

void fb_wait_for(struct fb_shard *shard, struct fb_op *op, struct fb_entry *head)
{
    op->state = FB_OP_STATE_FLUSHING;
    op->entry = fb_index_number(&shard->index, head);
    op->entry_generation = head->generation;
    fb_list_push_back(wait_bucket(shard, op->entry), &op->link);
    fb_entry_set(head, FB_ENTRY_AWAITED);
    fb_value_demand(shard, head);
}

void fb_wait_over(struct fb_shard *shard, struct fb_entry *head, int result, enum fb_reason reason)
{
    uint32_t number = fb_index_number(&shard->index, head);
    struct fb_list mine;
    fb_list_init(&mine);
    FB_LIST_FOREACH_SAFE (link, following, wait_bucket(shard, number)) {
        struct fb_op *op = FB_LIST_ITEM(link, struct fb_op, link);
        if (op->entry == number && op->entry_generation == head->generation) {
            fb_list_remove(link);
            fb_list_push_back(&mine, link);
        }
    }
    fb_entry_clear(head, FB_ENTRY_AWAITED);
    struct fb_link *link;
    while ((link = fb_list_pop_front(&mine)) != NULL)
        fb_clean_wait_done(shard, FB_LIST_ITEM(link, struct fb_op, link), head, result, reason);
}
