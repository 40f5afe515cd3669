/*
 * reclaim.c - what the log asks when it gives a segment up: which records are worth keeping,
 * copying those forward, and forgetting the others.
 *
 * Kept is what is leased. A part of a value that is not wholly durable yet is just written again:
 * nobody was told that it is. What was read since it was last
 * judged is worth a second chance, if the log has budget left. Everything else is doomed from the
 * moment of the verdict: still readable, but nothing is promised about it any more, and who puts
 * its key anew kills it first. If the log changes its mind, a doomed value is an ordinary one
 * again. No new lease is given on anything in the segment.
 *
 * Before the log writes its record it judges what was copied a second time. So a copy that failed,
 * or whose value is being killed meanwhile, is just ended: what still stands then is named in the
 * record.
 */
#include "engine/shard_private.h"

static struct fb_entry *find_part(struct fb_shard *shard, const struct fb_log_record *record,
                                  const struct fb_log_addr *addr, struct fb_entry **head)
{
    *head = fb_value_find(shard, record->digest);
    if (*head == NULL || (*head)->generation != record->generation)
        return NULL;
    struct fb_entry *entry = fb_index_part(&shard->index, *head, record->part);
    return entry != NULL && fb_entry_is_at(entry, addr) ? entry : NULL;
}

enum fb_log_verdict fb_reclaim_judge(void *ctx, const struct fb_log_record *record,
                                     const struct fb_log_addr *addr)
{
    struct fb_shard *shard = ctx;
    struct fb_entry *head;
    struct fb_entry *entry = find_part(shard, record, addr, &head);
    if (entry == NULL) {
        /* What a ghost stands for is not durably dead yet: it goes, but not silently. */
        const struct fb_entry *ghost = fb_index_find(&shard->index, record->digest);
        bool haunted = ghost != NULL && ghost->state == FB_ENTRY_GHOST &&
                       record->generation <= ghost->generation;
        return haunted ? FB_LOG_DROP : FB_LOG_DEAD;
    }
    if (fb_value_is_doomed(shard, head))
        return FB_LOG_DROP;
    if (fb_entry_is(head, FB_ENTRY_KILLING))
        return fb_value_is_leased(shard, head) ? FB_LOG_KEEP : FB_LOG_DROP;
    if (!fb_value_is_durable(shard, head))
        return fb_part_redirty(shard, entry) ? FB_LOG_DEAD : FB_LOG_KEEP;
    if (fb_value_is_leased(shard, head))
        return FB_LOG_KEEP;
    if (fb_entry_is(head, FB_ENTRY_USED)) {
        fb_entry_clear(head, FB_ENTRY_USED);
        return FB_LOG_WISH;
    }
    fb_value_set_state(shard, head, FB_ENTRY_DOOMED);
    fb_put_value_changed(shard, head->digest);
    return FB_LOG_DROP;
}

bool fb_value_is_being_given_up(const struct fb_shard *shard, const struct fb_entry *head)
{
    for (const struct fb_entry *entry = head; entry != NULL;
         entry = fb_index_next_part(&shard->index, entry)) {
        if (!fb_entry_has_addr(entry))
            continue;
        struct fb_log_addr addr = fb_entry_addr(entry);
        if (fb_log_is_giving_up(shard->log, &addr))
            return true;
    }
    return false;
}

bool fb_value_is_doomed(struct fb_shard *shard, struct fb_entry *head)
{
    if (head->state != FB_ENTRY_DOOMED)
        return false;
    if (fb_value_is_being_given_up(shard, head))
        return true;
    fb_value_set_state(shard, head, FB_ENTRY_LIVE);
    return false;
}

void fb_reclaim_dropped(void *ctx, const struct fb_digest *digest, uint64_t generation,
                        const struct fb_log_addr *addr)
{
    struct fb_shard *shard = ctx;
    struct fb_entry *head = fb_value_find(shard, *digest);
    if (head == NULL || head->generation != generation)
        return;
    for (const struct fb_entry *entry = head; entry != NULL;
         entry = fb_index_next_part(&shard->index, entry))
        if (fb_entry_is_at(entry, addr)) {
            /* An upsert may be killing it: the lease is on the key, and waits for what comes. */
            fb_put_note_lease(shard, head);
            fb_value_drop(shard, head, FB_REASON_RECLAIMED_SSD, !fb_log_is_stale(shard->log));
            return;
        }
}

/* ---- copying forward ---- */

/* The part that is being copied, or NULL if it is not where it was. */
static struct fb_entry *part_of(struct fb_shard *shard, const struct fb_write *slot,
                                struct fb_entry **head)
{
    return find_part(shard, &slot->item.record, &slot->from, head);
}

/* The copy is over: its pages and slots are given back, and the log is told. */
static void finish(struct fb_shard *shard, struct fb_write *slot)
{
    struct fb_log_addr from = slot->from;
    if (slot->stage != FB_ARENA_NONE)
        fb_stage_give(shard, slot->stage);
    else if (slot->entry != FB_ENTRY_NONE)
        fb_part_unpin(shard, fb_index_at(&shard->index, slot->entry));
    fb_write_give(shard, slot);
    fb_log_copied(shard->log, shard->now_ns, &from);
}

void fb_reclaim_copy(void *ctx, const struct fb_log_record *record, const struct fb_log_addr *addr)
{
    struct fb_shard *shard = ctx;
    struct fb_entry *head;
    /* The log asks for few at a time, and a reserve of slots is kept for this. */
    struct fb_write *slot = fb_write_take(shard, FB_WRITE_COPY, true);
    if (slot == NULL)
        return; /* not answered: the log gives the segment up later */
    slot->item.record = *record;
    FB_ASSERT(record->key_bytes <= FB_KEY_BYTES_MAX);
    memcpy(slot->key, record->key, record->key_bytes);
    slot->item.record.key = slot->key;
    slot->item.record.class_hint = FB_SHARD_CLASS_HOT;
    slot->from = *addr;
    slot->generation = record->generation;
    slot->digest = record->digest;
    slot->phase = FB_WRITE_READING;
    slot->until_ns = fb_add_saturated(shard->now_ns, FB_SHARD_COPY_WAIT_NS);
    if (find_part(shard, record, addr, &head) == NULL) {
        fb_write_give(shard, slot);
        fb_log_copied(shard->log, shard->now_ns, addr);
        return;
    }
    fb_list_push_back(&shard->copies, &slot->link);
}

/* Gets the bytes: from DRAM if they are there, else from the device. False if it has to wait. */
static bool fetch(struct fb_shard *shard, struct fb_write *slot, struct fb_entry *entry)
{
    uint32_t number = fb_write_number(shard, slot);
    bool in_dram = entry->extent != FB_ARENA_NONE && !fb_entry_is(entry, FB_ENTRY_SPOILED);
    if (in_dram) {
        if (entry->pins == FB_ENTRY_PINS_MAX)
            return false;
        slot->entry = fb_index_number(&shard->index, entry);
        fb_part_pin(shard, entry);
    } else {
        struct fb_read *read = fb_read_take(shard, FB_READ_COPY);
        if (read == NULL)
            return false;
        read->stage = fb_stage_take(shard, entry->part_bytes);
        if (read->stage == FB_ARENA_NONE) {
            fb_read_give(shard, read);
            return false;
        }
        slot->stage = read->stage;
        slot->read = fb_read_number(shard, read);
        read->write = number;
        fb_read_submit(shard, read, entry);
        return true;
    }
    uint64_t covered = 0;
    slot->phase = FB_WRITE_HASHING;
    slot->item.vec_count =
        (uint16_t)fb_arena_runs(&shard->arena, entry->extent, 0, entry->part_bytes, slot->item.vec,
                                FB_LOG_VEC_MAX, &covered);
    fb_shard_hash(shard, &shard->write_hashes[number], slot->item.vec, slot->item.vec_count,
                  entry->part_bytes, slot->leaves);
    return true;
}

void fb_reclaim_read_done(struct fb_shard *shard, struct fb_read *read, int result)
{
    struct fb_write *slot = &shard->writes[read->write];
    FB_ASSERT(slot->kind == FB_WRITE_COPY && slot->stage == read->stage);
    slot->read = FB_SLOT_NONE;
    fb_read_give(shard, read);
    struct fb_entry *head;
    struct fb_entry *entry = part_of(shard, slot, &head);
    if (result != 0 || entry == NULL) {
        if (entry != NULL)
            fb_value_drop(shard, head, FB_REASON_IO_ERROR, false);
        finish(shard, slot);
        return;
    }
    uint64_t covered = 0;
    slot->phase = FB_WRITE_HASHING;
    slot->item.vec_count = (uint16_t)fb_arena_runs(&shard->arena, slot->stage, 0, entry->part_bytes,
                                                   slot->item.vec, FB_LOG_VEC_MAX, &covered);
    fb_shard_hash(shard, &shard->write_hashes[fb_write_number(shard, slot)], slot->item.vec,
                  slot->item.vec_count, entry->part_bytes, slot->leaves);
}

/* The bytes that were fetched are not the value's. */
static void treat_bad(struct fb_shard *shard, struct fb_write *slot, struct fb_entry *head,
                      struct fb_entry *entry)
{
    shard->stats.checksum_failures++;
    if (slot->stage == FB_ARENA_NONE) {
        /* Only the copy in DRAM is bad: the device's is read instead. */
        fb_entry_set(entry, FB_ENTRY_SPOILED);
        fb_part_unpin(shard, entry);
        slot->entry = FB_ENTRY_NONE;
        slot->phase = FB_WRITE_READING;
        fb_list_push_back(&shard->copies, &slot->link);
        return;
    }
    fb_value_bad(shard, head);
    finish(shard, slot);
}

void fb_reclaim_hash_done(struct fb_shard *shard, struct fb_write *slot)
{
    struct fb_entry *head;
    struct fb_entry *entry = part_of(shard, slot, &head);
    if (entry == NULL) {
        finish(shard, slot);
        return;
    }
    const struct fb_log_record *record = &slot->item.record;
    const struct fb_identity what = {.key = slot->key,
                                     .key_bytes = record->key_bytes,
                                     .part = record->part,
                                     .total_bytes = record->value_bytes,
                                     .part_bytes = record->part_bytes};
    const struct fb_space *space = &shard->spaces[head->space];
    bool good = FB_BUG(FB_BUG_SKIP_CHECKSUM) ||
                fb_part_root(shard, &what, space->ns, space->epoch, record->generation,
                             slot->leaves) == entry->root;
    if (!good) {
        treat_bad(shard, slot, head, entry);
        return;
    }
    slot->item.record.leaf_count = (uint32_t)fb_div_up(record->part_bytes, FB_LEAF_BYTES);
    memcpy(slot->item.record.leaves, slot->leaves,
           slot->item.record.leaf_count * sizeof(slot->leaves[0]));
    struct fb_io_vec *last = &slot->item.vec[slot->item.vec_count - 1];
    last->len = (uint32_t)fb_align_up(last->len, FB_PAGE_BYTES);
    slot->phase = FB_WRITE_READY;
    fb_list_push_back(&shard->copies, &slot->link);
}

void fb_reclaim_durable(struct fb_shard *shard, struct fb_write *slot, int result)
{
    struct fb_entry *head;
    struct fb_entry *entry = part_of(shard, slot, &head);
    fb_list_remove(&slot->link);
    if (result == 0 && entry != NULL) {
        fb_part_set_addr(shard, entry, &slot->item.addr);
    } else if (result == 0) {
        fb_log_garbage(shard->log, &slot->item.addr, slot->item.record.part_bytes);
    } else if (entry != NULL) {
        /* The copy may have reached the device all the same; it is written again while that makes
         * sense. */
        fb_entry_set(head, FB_ENTRY_DOUBT);
        if (fb_tier_is_writable(shard) && !shard->log_draining) {
            slot->phase = FB_WRITE_READY;
            fb_list_push_back(&shard->copies, &slot->link);
            return;
        }
    }
    finish(shard, slot);
}

void fb_reclaim_cancel(struct fb_shard *shard, const struct fb_entry *head)
{
    FB_LIST_FOREACH_SAFE (link, following, &shard->copies_out) {
        struct fb_write *slot = FB_LIST_ITEM(link, struct fb_write, link);
        if (slot->generation != head->generation ||
            !fb_digest_is_equal(slot->digest, head->digest) ||
            !fb_log_cancel(shard->log, &slot->item))
            continue;
        /* What becomes of it is seen in the next turn: the log must not be told in this one. */
        fb_list_remove(link);
        slot->phase = FB_WRITE_READY;
        fb_list_push_back(&shard->copies, link);
        shard->again = true;
    }
}

/* Takes a copy a step further, or leaves it where it is until there is room. */
static void step(struct fb_shard *shard, struct fb_write *slot)
{
    struct fb_entry *head;
    struct fb_entry *entry = part_of(shard, slot, &head);
    bool killing = entry != NULL && fb_entry_is(head, FB_ENTRY_KILLING);
    if (killing && shard->now_ns < slot->until_ns)
        return; /* it is leased: it stays readable until its successor is there */
    if (entry == NULL || killing) {
        /* The log asks again before it writes the record, and names it if it is not durably dead.
         */
        fb_list_remove(&slot->link);
        finish(shard, slot);
    } else if (slot->phase == FB_WRITE_READY) {
        fb_list_remove(&slot->link);
        slot->phase = FB_WRITE_LOG;
        fb_list_push_back(&shard->copies_out, &slot->link);
        fb_write_append(shard, slot);
    } else if (fetch(shard, slot, entry)) {
        fb_list_remove(&slot->link);
    }
}

void fb_reclaim_pump(struct fb_shard *shard)
{
    FB_LIST_FOREACH_SAFE (link, following, &shard->copies) {
        step(shard, FB_LIST_ITEM(link, struct fb_write, link));
    }
}
