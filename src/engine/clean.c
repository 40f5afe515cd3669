/*
 * clean.c - the cleaner: dirty parts to the device, and those who wait for it.
 *
 * Coldest first; what somebody waits for goes before everything else. Before a part is handed to
 * the log its leaves are computed and its root is compared: a client that lied about its bytes, or
 * scribbled over them later, gets its value dropped, and nothing of it written. A part is clean
 * when the log says that it is durable; one whose write failed stays dirty and is written again,
 * elsewhere.
 */
#include "engine/shard_private.h"

/* ---- write slots ---- */

uint32_t fb_write_number(const struct fb_shard *shard, const struct fb_write *slot)
{
    FB_ASSERT(slot >= shard->writes && slot < shard->writes + shard->config.write_items);
    return (uint32_t)(slot - shard->writes);
}

struct fb_write *fb_write_take(struct fb_shard *shard, enum fb_write_kind kind, bool reserve)
{
    uint32_t kept = reserve ? 0 : shard->config.write_items / FB_SHARD_WRITE_RESERVE;
    if (shard->writes_free_count <= kept)
        return NULL;
    struct fb_link *link = fb_list_pop_front(&shard->writes_free);
    struct fb_write *slot = FB_LIST_ITEM(link, struct fb_write, link);
    FB_ASSERT(slot->kind == FB_WRITE_FREE);
    shard->writes_free_count--;
    slot->kind = (uint8_t)kind;
    slot->op = NULL;
    slot->entry = FB_ENTRY_NONE;
    slot->read = FB_SLOT_NONE;
    slot->stage = FB_ARENA_NONE;
    slot->item.urgent = false;
    slot->item.cookie = fb_write_number(shard, slot);
    return slot;
}

void fb_write_give(struct fb_shard *shard, struct fb_write *slot)
{
    FB_ASSERT(slot->kind != FB_WRITE_FREE);
    slot->kind = FB_WRITE_FREE;
    fb_list_push_back(&shard->writes_free, &slot->link);
    shard->writes_free_count++;
}

void fb_write_append(struct fb_shard *shard, struct fb_write *slot)
{
    fb_link_init(&slot->item.link);
    fb_log_append(shard->log, shard->now_ns, &slot->item);
}

/* ---- a part on its way ---- */

static struct fb_entry *entry_of(const struct fb_shard *shard, const struct fb_write *slot)
{
    return fb_index_at(&shard->index, slot->entry);
}

static uint64_t slot_bytes(const struct fb_entry *entry)
{
    return (uint64_t)fb_part_pages(entry) * FB_PAGE_BYTES;
}

/* The part's item is done with: the part may be listed, dropped, written again. */
static void end_item(struct fb_shard *shard, struct fb_write *slot)
{
    struct fb_entry *entry = entry_of(shard, slot);
    FB_ASSERT(shard->clean_bytes_in_flight >= slot_bytes(entry) && shard->parts_in_flight > 0);
    fb_tier_pulse(shard);
    shard->clean_bytes_in_flight -= slot_bytes(entry);
    shard->parts_in_flight--;
    fb_write_give(shard, slot);
    fb_part_lift(shard, entry);
    fb_entry_clear(entry, FB_ENTRY_BUSY);
    entry->links.newer = FB_ENTRY_NONE;
    fb_part_settle(shard, entry);
    fb_part_unpin(shard, entry);
}

void fb_clean_taken_back(struct fb_shard *shard, struct fb_write *slot)
{
    end_item(shard, slot);
}

static void fill_record(struct fb_shard *shard, struct fb_write *slot, struct fb_entry *head,
                        struct fb_entry *entry)
{
    struct fb_log_record *record = &slot->item.record;
    const struct fb_space *space = &shard->spaces[head->space];
    struct fb_keys_head text;
    fb_keys_get(&shard->keys, fb_index_key(&shard->index, head), &text, slot->key);
    uint32_t part = 0;
    for (const struct fb_entry *at = head; at != entry; at = fb_index_next_part(&shard->index, at))
        part++;
    *record = (struct fb_log_record){
        .kind = FB_LOG_VALUE,
        .class_hint = FB_SHARD_CLASS_COLD,
        .pin_class = text.pin_class,
        .key_bytes = text.key_bytes,
        .depth = head->depth,
        .part = part,
        .part_bytes = entry->part_bytes,
        .epoch = space->epoch,
        .digest = head->digest,
        .group = text.group,
        .origin = shard->config.log.node_id,
        .generation = head->generation,
        .root = entry->root,
        .leaf_count = (uint32_t)fb_div_up(entry->part_bytes, FB_LEAF_BYTES),
        .key = slot->key,
    };
    record->value_bytes = fb_index_value_bytes(&shard->index, head, &record->parts);
    memcpy(record->namespace_id, shard->namespaces[space->ns].id, FB_NAMESPACE_ID_BYTES);
}

/* Starts a part: its leaves are computed first. */
static void start(struct fb_shard *shard, struct fb_write *slot, struct fb_entry *entry)
{
    struct fb_entry *head = fb_index_head_of(&shard->index, entry);
    uint32_t number = fb_write_number(shard, slot);
    fill_record(shard, slot, head, entry);
    slot->entry = fb_index_number(&shard->index, entry);
    slot->generation = entry->generation;
    slot->digest = head->digest;
    slot->phase = FB_WRITE_HASHING;
    slot->item.urgent = fb_entry_is(entry, FB_ENTRY_URGENT);
    fb_part_lift(shard, entry);
    fb_entry_set(entry, FB_ENTRY_BUSY);
    entry->links.newer = number;
    entry->pins++;
    fb_part_settle(shard, entry);
    fb_tier_pulse(shard);
    shard->clean_bytes_in_flight += slot_bytes(entry);
    shard->parts_in_flight++;
    uint64_t covered = 0;
    slot->item.vec_count =
        (uint16_t)fb_arena_runs(&shard->arena, entry->extent, 0, entry->part_bytes, slot->item.vec,
                                FB_LOG_VEC_MAX, &covered);
    FB_ASSERT(covered == entry->part_bytes);
    fb_shard_hash(shard, &shard->write_hashes[number], slot->item.vec, slot->item.vec_count,
                  entry->part_bytes, slot->item.record.leaves);
}

/* True if the part is still to be written. */
static bool is_wanted(const struct fb_shard *shard, const struct fb_write *slot,
                      struct fb_entry *entry)
{
    bool alive = (entry->state == FB_ENTRY_LIVE || entry->state == FB_ENTRY_DOOMED) &&
                 entry->generation == slot->generation && fb_entry_is(entry, FB_ENTRY_UNSAVED);
    return alive && !fb_entry_is(fb_index_head_of(&shard->index, entry), FB_ENTRY_KILLING);
}

/* Makes the last run whole pages: what was hashed ends with the value, what is written with a
 * block. */
static void round_up(struct fb_write *slot)
{
    struct fb_io_vec *last = &slot->item.vec[slot->item.vec_count - 1];
    last->len = (uint32_t)fb_align_up(last->len, FB_PAGE_BYTES);
}

static bool has_right_root(const struct fb_shard *shard, const struct fb_write *slot,
                           const struct fb_entry *entry)
{
    const struct fb_log_record *record = &slot->item.record;
    const struct fb_identity what = {.key = slot->key,
                                     .key_bytes = record->key_bytes,
                                     .part = record->part,
                                     .total_bytes = record->value_bytes,
                                     .part_bytes = record->part_bytes};
    const struct fb_space *space = &shard->spaces[entry->space];
    if (FB_BUG(FB_BUG_SKIP_CHECKSUM))
        return true;
    return fb_part_root(shard, &what, space->ns, space->epoch, record->generation,
                        record->leaves) == entry->root;
}

void fb_clean_hash_done(struct fb_shard *shard, struct fb_write *slot)
{
    struct fb_entry *entry = entry_of(shard, slot);
    if (!is_wanted(shard, slot, entry) || !fb_tier_is_writable(shard)) {
        end_item(shard, slot);
        return;
    }
    struct fb_entry *head = fb_index_head_of(&shard->index, entry);
    if (!has_right_root(shard, slot, entry)) {
        shard->stats.checksum_failures++;
        end_item(shard, slot);
        fb_value_bad(shard, head);
        return;
    }
    fb_entry_set(entry, FB_ENTRY_VERIFIED);
    slot->first = !fb_entry_is(head, FB_ENTRY_PLACED);
    fb_entry_set(head, FB_ENTRY_PLACED);
    round_up(slot);
    slot->phase = FB_WRITE_LOG;
    fb_write_append(shard, slot);
}

/* The part is on the device. */
static void make_clean(struct fb_shard *shard, struct fb_entry *head, struct fb_entry *entry,
                       const struct fb_log_addr *addr)
{
    /* The key text of a value of one part hangs where the address goes. */
    if (head->part_next == FB_ENTRY_NONE)
        fb_value_free_key(shard, head);
    fb_part_lift(shard, entry);
    fb_entry_clear(entry, FB_ENTRY_URGENT);
    fb_part_set_addr(shard, entry, addr);
    fb_part_settle(shard, entry);
}

void fb_clean_durable(struct fb_shard *shard, struct fb_write *slot, int result)
{
    struct fb_entry *entry = entry_of(shard, slot);
    struct fb_log_addr addr = slot->item.addr;
    bool alive = (entry->state == FB_ENTRY_LIVE || entry->state == FB_ENTRY_DOOMED) &&
                 entry->generation == slot->generation;
    struct fb_entry *head = alive ? fb_index_head_of(&shard->index, entry) : NULL;
    if (result == 0)
        fb_tier_measure(shard, slot_bytes(entry));
    if (result == 0 && !alive)
        fb_log_garbage(shard->log, &addr, entry->part_bytes);
    if (result == 0 && alive)
        make_clean(shard, head, entry, &addr);
    if (result != 0 && alive)
        fb_entry_set(head, FB_ENTRY_DOUBT);
    end_item(shard, slot);
    if (result == 0 && alive && fb_value_is_durable(shard, head))
        fb_value_made_durable(shard, head);
}

/* ---- which part goes next ---- */

static bool is_above_watermark(const struct fb_shard *shard)
{
    uint64_t used = shard->arena.faulted_pages - shard->arena.free_pages;
    return used * 100 > (uint64_t)shard->arena.pages * shard->config.watermark_pct;
}

static struct fb_entry *next_part(const struct fb_shard *shard)
{
    struct fb_entry *entry = fb_lru_cold(&shard->index, &shard->dirty);
    if (entry != NULL)
        return entry;
    if (shard->draining || shard->wants_room || is_above_watermark(shard))
        return fb_lru_cold(&shard->index, &shard->lazy);
    return NULL;
}

uint64_t fb_clean_bytes_max(const struct fb_shard *shard)
{
    return fb_max_u64(shard->config.pool_bytes / FB_SHARD_CLEAN_BYTES_SHARE, shard->chunk_bytes);
}

void fb_clean_pump(struct fb_shard *shard)
{
    if (shard->log == NULL || fb_log_state(shard->log) != FB_TIER_ON)
        return;
    for (uint32_t steps = 0;; steps++) {
        struct fb_entry *entry = next_part(shard);
        if (entry == NULL)
            return;
        if (steps == FB_SHARD_TURN_STEPS) {
            shard->more_work = true;
            return;
        }
        if (shard->clean_bytes_in_flight > 0 &&
            shard->clean_bytes_in_flight + slot_bytes(entry) > fb_clean_bytes_max(shard))
            return;
        struct fb_write *slot = fb_write_take(shard, FB_WRITE_PART, false);
        if (slot == NULL)
            return;
        start(shard, slot, entry);
    }
}

/* ---- who waits for durability ---- */

static enum fb_reason reason_of(int error)
{
    switch (error) {
    case FB_IO:
        return FB_REASON_DEVICE_FENCED;
    case FB_QUOTA:
        return FB_REASON_QUOTA;
    default:
        return FB_REASON_NONE;
    }
}

/* Drops the DRAM copy of a durable value. BUSY if somebody uses it. */
static int drop_copy(struct fb_shard *shard, struct fb_entry *head)
{
    int result = FB_OK;
    for (struct fb_entry *entry = head; entry != NULL;
         entry = fb_index_next_part(&shard->index, entry)) {
        if (entry->pins > 0)
            result = FB_BUSY;
        else if (entry->extent != FB_ARENA_NONE)
            fb_part_drop_pages(shard, entry);
    }
    return result;
}

/* What a `through` put answers whose value went before it was durable. */
static int result_of_gone(enum fb_reason reason)
{
    switch (reason) {
    case FB_REASON_EPOCH_BUMPED:
        return FB_STALE_EPOCH;
    case FB_REASON_REMOVED:
    case FB_REASON_REPLACED:
        return FB_REMOVED;
    case FB_REASON_BAD_CHECKSUM:
        return FB_BAD_CHECKSUM;
    case FB_REASON_EVICTED_DIRTY:
    case FB_REASON_IO_ERROR:
    case FB_REASON_DEVICE_FENCED:
        return FB_IO;
    default:
        return FB_NOT_PERSISTED;
    }
}

void fb_clean_wait_done(struct fb_shard *shard, struct fb_op *op, struct fb_entry *head, int result,
                        enum fb_reason reason)
{
    if (op->kind == FB_OP_PUT) {
        fb_put_flush_over(shard, op, result == FB_MISS ? result_of_gone(reason) : result, reason);
        return;
    }
    if (result == FB_OK) {
        op->persisted = 1;
        if (op->kind == FB_OP_DROP_DRAM)
            result = drop_copy(shard, head);
    } else if (result != FB_MISS) {
        result = FB_NOT_PERSISTED;
    }
    fb_op_end(shard, op, result, reason);
}

void fb_clean_wait_start(struct fb_shard *shard, struct fb_op *op)
{
    struct fb_entry *head = fb_value_find(shard, op->digest);
    if (head == NULL || fb_value_is_doomed(shard, head)) {
        enum fb_reason reason =
            head == NULL ? fb_lookup_reason(shard, op->ns, op->digest) : FB_REASON_RECLAIMED_SSD;
        fb_op_end(shard, op, FB_MISS, reason);
        return;
    }
    op->generation = head->generation;
    int error = fb_value_persist_error(shard, head);
    if (error != 0) {
        fb_clean_wait_done(shard, op, head, error, reason_of(error));
    } else if (fb_value_is_durable(shard, head)) {
        fb_clean_wait_done(shard, op, head, FB_OK, FB_REASON_NONE);
    } else {
        fb_wait_for(shard, op, head);
        fb_wheel_set(&shard->wheel, &op->timer, op->deadline_ns);
    }
}

void fb_clean_timer(struct fb_shard *shard, struct fb_op *op)
{
    fb_list_remove(&op->link);
    if (op->kind == FB_OP_PUT)
        fb_put_flush_over(shard, op, FB_NOT_PERSISTED, FB_REASON_NONE);
    else
        fb_op_end(shard, op, FB_DEADLINE, FB_REASON_NONE);
}

void fb_clean_give_up(struct fb_shard *shard)
{
    for (uint32_t i = 0; i < FB_SHARD_WAIT_BUCKETS; i++) {
        struct fb_link *link;
        while ((link = fb_list_pop_front(&shard->waits[i])) != NULL) {
            struct fb_op *op = FB_LIST_ITEM(link, struct fb_op, link);
            struct fb_entry *head = fb_value_at(shard, op->entry, op->entry_generation);
            FB_ASSERT(head != NULL);
            fb_entry_clear(head, FB_ENTRY_AWAITED);
            fb_clean_wait_done(shard, op, head, FB_IO, FB_REASON_DEVICE_FENCED);
        }
    }
}
