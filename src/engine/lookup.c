/*
 * lookup.c - lookups, leases and holds; and why a key is not there.
 *
 * A lease says "readable in some tier until then". On what is on a device it keeps no DRAM busy:
 * the record is copied forward if its segment is given up. What is in DRAM only stays there while
 * it is leased, up to a share of the pool; beyond it the answer is "readable, not held".
 */
#include "engine/shard_private.h"

enum fb_reason fb_lookup_reason(const struct fb_shard *shard, uint16_t ns, struct fb_digest digest)
{
    (void)ns;
    if (fb_put_is_writing(shard, digest))
        return FB_REASON_BEING_WRITTEN;
    const struct fb_history_record *record = fb_history_find(&shard->history, digest);
    if (record != NULL)
        return (enum fb_reason)record->reason;
    uint64_t generation;
    uint64_t when_ms;
    uint64_t since_ms;
    if (shard->log != NULL && fb_log_history(shard->log, &digest, &generation, &when_ms, &since_ms))
        return FB_REASON_RECLAIMED_SSD;
    return FB_REASON_NO_RECORD;
}

bool fb_value_is_leased(const struct fb_shard *shard, const struct fb_entry *head)
{
    return head->lease_until > fb_shard_beat(shard);
}

/* True if nothing but a lease keeps the value: it is in DRAM only, and not to be written. */
static bool is_loose(const struct fb_shard *shard, const struct fb_entry *head)
{
    for (const struct fb_entry *entry = head; entry != NULL;
         entry = fb_index_next_part(&shard->index, entry))
        if (!fb_entry_has_addr(entry) && !fb_entry_is(entry, FB_ENTRY_UNSAVED))
            return true;
    return false;
}

static uint64_t value_pages(const struct fb_shard *shard, const struct fb_entry *head)
{
    uint64_t pages = 0;
    for (const struct fb_entry *entry = head; entry != NULL;
         entry = fb_index_next_part(&shard->index, entry))
        pages += fb_part_pages(entry);
    return pages;
}

/* Leases a value for so long, with so many expected loads more. False if the share of leases is
 * used up, or more loads are expected than can be counted: then it has a plain lease. */
static bool lease(struct fb_shard *shard, struct fb_entry *head, uint32_t ms, uint32_t loads)
{
    bool loose = is_loose(shard, head);
    bool is_leased = fb_value_is_leased(shard, head);
    if (!is_leased)
        head->hold_loads = 0; /* of a hold that ended by time */
    bool fits = head->hold_loads + (uint64_t)loads <= UINT8_MAX;
    if (!fits) {
        ms = shard->config.lease_ms;
        loads = 0;
    }
    if (loose && !is_leased &&
        shard->pages[FB_PAGES_HELD] + value_pages(shard, head) >
            shard->arena.pages / FB_SHARD_LEASED_SHARE)
        return false;
    uint32_t until = fb_shard_beat_at(shard, shard->now_ns + (uint64_t)ms * FB_MS_NS) + 1;
    if (until > head->lease_until)
        head->lease_until = until;
    head->hold_loads = (uint8_t)(head->hold_loads + loads);
    if (loose)
        fb_value_relist(shard, head);
    return fits;
}

void fb_lookup_extend(struct fb_shard *shard, struct fb_entry *head)
{
    (void)lease(shard, head, shard->config.lease_ms, 0);
}

/* So many loads of a hold are over or given back. With the last one only a short lease is left. */
static void unload(struct fb_shard *shard, struct fb_entry *head, uint32_t loads)
{
    if (head->hold_loads == 0)
        return;
    head->hold_loads = (uint8_t)fb_sub_floored(head->hold_loads, loads);
    if (head->hold_loads > 0)
        return;
    uint32_t until =
        fb_shard_beat_at(shard, shard->now_ns + (uint64_t)shard->config.lease_ms * FB_MS_NS) + 1;
    if (until < head->lease_until)
        head->lease_until = until;
    if (is_loose(shard, head))
        fb_value_relist(shard, head);
}

void fb_lookup_loaded(struct fb_shard *shard, struct fb_entry *head)
{
    unload(shard, head, 1);
}

/* ---- lookups ---- */

static void count_miss(struct fb_shard *shard, enum fb_reason reason)
{
    shard->stats.lookup_misses[reason == FB_REASON_NONE ? FB_REASON_NO_RECORD : reason]++;
}

/* A client can ask for any digest: only values of its namespace and epoch are there for it. */
static struct fb_entry *find(const struct fb_shard *shard, const struct fb_op *op,
                             struct fb_digest digest)
{
    struct fb_entry *head = fb_value_find(shard, digest);
    bool is_its = head != NULL && head->space == fb_space_namespace(shard, op->ns)->space;
    return is_its ? head : NULL;
}

/* Answers for one key. */
static uint8_t look(struct fb_shard *shard, const struct fb_op *op, struct fb_digest digest)
{
    shard->stats.lookups++;
    struct fb_entry *head = find(shard, op, digest);
    if (head == NULL && FB_BUG(FB_BUG_INDEX_BEFORE_COMMIT) && fb_put_is_writing(shard, digest)) {
        shard->stats.lookup_hits++;
        return FB_FOUND_READABLE | FB_FOUND_DRAM | FB_FOUND_HELD;
    }
    if (head == NULL) {
        count_miss(shard, fb_lookup_reason(shard, op->ns, digest));
        return 0;
    }
    bool doomed = fb_value_is_doomed(shard, head);
    if (doomed || !fb_value_is_readable(shard, head)) {
        count_miss(shard, doomed ? FB_REASON_RECLAIMED_SSD : FB_REASON_DEVICE_FENCED);
        return 0;
    }
    shard->stats.lookup_hits++;
    uint8_t found = FB_FOUND_READABLE;
    unsigned tiers = fb_value_tiers(shard, head);
    found |= (tiers & 1) != 0 ? FB_FOUND_DRAM : 0;
    found |= (tiers & 2) != 0 ? FB_FOUND_SSD : 0;
    bool hold = op->hold_ms > 0;
    uint32_t ms = hold ? (uint32_t)fb_min_u64(op->hold_ms, shard->config.hold_ms_max)
                       : shard->config.lease_ms;
    uint32_t loads = hold ? (uint32_t)fb_max_u64(op->hold_loads, 1) : 0;
    if (lease(shard, head, ms, loads))
        found |= FB_FOUND_HELD;
    return found;
}

static void give_back(struct fb_shard *shard, const struct fb_op *op, struct fb_digest digest)
{
    struct fb_entry *head = find(shard, op, digest);
    if (head != NULL)
        unload(shard, head, (uint32_t)fb_max_u64(op->hold_loads, 1));
}

void fb_lookup_start(struct fb_shard *shard, struct fb_op *op)
{
    bool is_lookup = op->kind == FB_OP_LOOKUP;
    if (op->n > 0 && (op->digests == NULL || (is_lookup && op->found == NULL))) {
        fb_op_end(shard, op, FB_BAD_ARGUMENT, FB_REASON_NONE);
        return;
    }
    op->state = FB_OP_STATE_LOOKING;
    op->next_part = 0;
    fb_list_push_back(&shard->looking, &op->link);
}

/* A slice of the lookup in front. Returns how many keys it looked at. */
static uint32_t look_on(struct fb_shard *shard, struct fb_op *op, uint32_t steps)
{
    uint32_t end = (uint32_t)fb_min_u64(op->n, (uint64_t)op->next_part + steps);
    uint32_t begin = op->next_part;
    for (; op->next_part < end; op->next_part++) {
        struct fb_digest digest = op->digests[op->next_part];
        if (op->kind == FB_OP_LOOKUP)
            op->found[op->next_part] = look(shard, op, digest);
        else
            give_back(shard, op, digest);
    }
    return end - begin;
}

void fb_lookup_pump(struct fb_shard *shard)
{
    uint32_t left = FB_SHARD_TURN_LOOKUP;
    struct fb_link *link;
    while ((link = fb_list_first(&shard->looking)) != NULL) {
        struct fb_op *op = FB_LIST_ITEM(link, struct fb_op, link);
        if (left == 0) {
            shard->more_work = true;
            return;
        }
        if (op->next_part > 0 && fb_space_namespace(shard, op->ns)->epoch != op->epoch) {
            fb_list_remove(link);
            fb_op_end(shard, op, FB_STALE_EPOCH, FB_REASON_EPOCH_BUMPED);
            continue;
        }
        left -= look_on(shard, op, left);
        if (op->next_part == op->n) {
            fb_list_remove(link);
            fb_op_end(shard, op, FB_OK, FB_REASON_NONE);
        }
    }
}
