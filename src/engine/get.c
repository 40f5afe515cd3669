/*
 * get.c - reads: look up, pin or stage, hand out, release.
 *
 * A read is of one generation, found when it starts, and goes through its parts with a window of
 * chunks. Each chunk either pins the pages of a part in DRAM, or owns staging pages into which the
 * part is read from the device and checked against the root with the key that was asked for. If the
 * value goes meanwhile (replaced, removed, given up), chunks that are under way are finished and
 * the read ends as a miss: never a mixture of generations.
 *
 * Chunks that are out, or that a device is still filling, are waited for before the operation is
 * closed, whatever it ended in: their pages are never reused under a reader.
 */
#include "engine/shard_private.h"

enum load {
    LOADED,
    NO_ROOM,
    GONE
};

/* ---- the window ---- */

static bool is_taken(const struct fb_chunk *chunk)
{
    return chunk->state != FB_CHUNK_IDLE;
}

static unsigned count_taken(const struct fb_op *op)
{
    unsigned taken = 0;
    for (unsigned i = 0; i < FB_GET_WINDOW; i++)
        taken += is_taken(&op->chunk[i]);
    return taken;
}

static uint64_t end_of(const struct fb_op *op)
{
    return fb_min_u64(fb_add_saturated(op->range_off, op->range_bytes), op->value_bytes);
}

static void leave_queue(struct fb_op *op)
{
    if ((op->marks & FB_OP_STAGED) == 0)
        return;
    op->marks &= (uint8_t)~FB_OP_STAGED;
    fb_list_remove(&op->link);
}

/* What a chunk had is given back: the pin, or the staging pages. */
static void let_go(struct fb_shard *shard, struct fb_op *op, struct fb_chunk *chunk)
{
    if (chunk->source == FB_CHUNK_DRAM)
        fb_part_unpin(shard, fb_index_at(&shard->index, chunk->entry));
    else if (chunk->source == FB_CHUNK_STAGE && chunk->extent != FB_ARENA_NONE)
        fb_stage_give(shard, chunk->extent);
    if (chunk->source == FB_CHUNK_DRAM || chunk->source == FB_CHUNK_STAGE) {
        FB_ASSERT(op->peer->pinned_bytes >= chunk->part_bytes);
        op->peer->pinned_bytes -= chunk->part_bytes;
    }
    chunk->source = FB_CHUNK_NOWHERE;
    chunk->state = FB_CHUNK_IDLE;
    chunk->extent = FB_ARENA_NONE;
}

/* A read that has its result ends when nobody uses its chunks. */
static void close_if_idle(struct fb_shard *shard, struct fb_op *op)
{
    if (op->state == FB_OP_STATE_CLOSING && count_taken(op) == 0)
        fb_op_close(shard, op);
}

/* The read has its result; chunks that nobody has taken are given back. */
static void conclude(struct fb_shard *shard, struct fb_op *op, int result, enum fb_reason reason)
{
    leave_queue(op);
    fb_op_done(shard, op, result, reason);
    op->state = FB_OP_STATE_CLOSING;
    for (unsigned i = 0; i < FB_GET_WINDOW; i++) {
        struct fb_chunk *chunk = &op->chunk[i];
        if (chunk->state == FB_CHUNK_READY ||
            (chunk->state == FB_CHUNK_LOADING && chunk->source == FB_CHUNK_AGAIN))
            let_go(shard, op, chunk);
    }
    close_if_idle(shard, op);
}

static void miss(struct fb_shard *shard, struct fb_op *op, enum fb_reason reason)
{
    conclude(shard, op, FB_MISS, reason == FB_REASON_NONE ? FB_REASON_NO_RECORD : reason);
}

static void make_ready(struct fb_shard *shard, struct fb_op *op, struct fb_chunk *chunk)
{
    chunk->state = FB_CHUNK_READY;
    op->tiers |= chunk->from_ssd ? 2 : 1;
    fb_op_event(shard, op, FB_EV_CHUNK);
}

/* ---- loading a part ---- */

/* Pinning a clean part takes from what may be dropped: only up to the cap of what may not. */
static bool may_pin(const struct fb_shard *shard, const struct fb_entry *entry)
{
    if (entry->pins == FB_ENTRY_PINS_MAX)
        return false;
    if (entry->list != FB_ENTRY_CLEAN && entry->list != FB_ENTRY_LOOSE)
        return true;
    return fb_pages_stuck(shard) + fb_part_pages(entry) <= shard->cap_pages;
}

static enum load load_from_dram(struct fb_shard *shard, struct fb_op *op, unsigned number,
                                struct fb_entry *entry)
{
    struct fb_chunk *chunk = &op->chunk[number];
    if (!may_pin(shard, entry))
        return NO_ROOM;
    bool verify = (op->flags & FB_GET_VERIFY) != 0 && !fb_entry_is(entry, FB_ENTRY_VERIFIED) &&
                  !FB_BUG(FB_BUG_SKIP_CHECKSUM);
    struct fb_read *slot = NULL;
    if (verify) {
        slot = fb_read_take(shard, FB_READ_VERIFY);
        if (slot == NULL)
            return NO_ROOM;
    }
    entry->links.touched = fb_shard_beat(shard);
    fb_part_pin(shard, entry);
    op->peer->pinned_bytes += entry->part_bytes;
    chunk->source = FB_CHUNK_DRAM;
    chunk->extent = entry->extent;
    chunk->from_ssd = 0;
    chunk->verified = fb_entry_is(entry, FB_ENTRY_VERIFIED) || FB_BUG(FB_BUG_SKIP_CHECKSUM);
    if (!verify) {
        make_ready(shard, op, chunk);
        return LOADED;
    }
    chunk->state = FB_CHUNK_LOADING;
    slot->op = op;
    slot->chunk = number;
    fb_read_hash(shard, slot, entry->extent, entry->part_bytes);
    return LOADED;
}

static enum load load_from_device(struct fb_shard *shard, struct fb_op *op, unsigned number,
                                  struct fb_entry *entry)
{
    struct fb_chunk *chunk = &op->chunk[number];
    struct fb_read *slot = fb_read_take(shard, FB_READ_GET);
    if (slot == NULL)
        return NO_ROOM;
    slot->stage = fb_stage_take(shard, entry->part_bytes);
    if (slot->stage == FB_ARENA_NONE) {
        fb_read_give(shard, slot);
        return NO_ROOM;
    }
    op->peer->pinned_bytes += entry->part_bytes;
    chunk->source = FB_CHUNK_STAGE;
    chunk->state = FB_CHUNK_LOADING;
    chunk->extent = slot->stage;
    chunk->from_ssd = 1;
    chunk->verified = 1;
    slot->op = op;
    slot->chunk = number;
    fb_read_submit(shard, slot, entry);
    return LOADED;
}

static enum load load(struct fb_shard *shard, struct fb_op *op, unsigned number,
                      struct fb_entry *entry)
{
    op->chunk[number].entry = fb_index_number(&shard->index, entry);
    if (entry->extent != FB_ARENA_NONE && !fb_entry_is(entry, FB_ENTRY_SPOILED))
        return load_from_dram(shard, op, number, entry);
    if (fb_entry_has_addr(entry) && fb_tier_is_readable(shard))
        return load_from_device(shard, op, number, entry);
    return GONE;
}

/* Says in a chunk which part it is and what is wanted of it. */
static void describe(struct fb_op *op, struct fb_chunk *chunk, const struct fb_entry *entry)
{
    uint64_t from = fb_max_u64(op->next_off, op->range_off);
    uint64_t to = fb_min_u64(op->next_off + entry->part_bytes, end_of(op));
    FB_ASSERT(from < to);
    chunk->part = op->next_part;
    chunk->value_off = op->next_off;
    chunk->part_bytes = entry->part_bytes;
    chunk->want_off = (uint32_t)(from - op->next_off);
    chunk->want_bytes = (uint32_t)(to - from);
    chunk->root = entry->root;
}

/* True if a bad DRAM copy is to be read again from the device. */
static bool has_chunk_again(const struct fb_op *op)
{
    for (unsigned i = 0; i < FB_GET_WINDOW; i++)
        if (op->chunk[i].state == FB_CHUNK_LOADING && op->chunk[i].source == FB_CHUNK_AGAIN)
            return true;
    return false;
}

/* A bad DRAM copy is read again from the device. */
static enum load load_again(struct fb_shard *shard, struct fb_op *op)
{
    for (unsigned i = 0; i < FB_GET_WINDOW; i++) {
        struct fb_chunk *chunk = &op->chunk[i];
        if (chunk->state != FB_CHUNK_LOADING || chunk->source != FB_CHUNK_AGAIN)
            continue;
        enum load result = load(shard, op, i, fb_index_at(&shard->index, chunk->entry));
        if (result != LOADED)
            return result;
    }
    return LOADED;
}

/* Loads the next part into a free chunk. LOADED also if there is none of either. */
static enum load load_next(struct fb_shard *shard, struct fb_op *op, bool *more)
{
    *more = false;
    unsigned number = 0;
    while (number < FB_GET_WINDOW && is_taken(&op->chunk[number]))
        number++;
    if (number == FB_GET_WINDOW || op->next_off >= end_of(op))
        return LOADED;
    struct fb_entry *entry = fb_index_at(&shard->index, op->cursor);
    describe(op, &op->chunk[number], entry);
    enum load result = load(shard, op, number, entry);
    if (result == LOADED) {
        op->next_part++;
        op->next_off += entry->part_bytes;
        op->cursor = entry->part_next;
        *more = true;
    }
    return result;
}

static void join_queue(struct fb_shard *shard, struct fb_op *op)
{
    if ((op->marks & FB_OP_STAGED) != 0)
        return;
    op->marks |= FB_OP_STAGED;
    fb_list_push_back(&shard->staging_queue, &op->link);
}

/* True if others wait for room: then a read takes no second chunk before they have their first. */
static bool is_crowded(const struct fb_shard *shard, const struct fb_op *op)
{
    struct fb_link *first = fb_list_first(&shard->staging_queue);
    return first != NULL &&
           (first != &op->link || fb_list_next(&shard->staging_queue, first) != NULL);
}

/* Ends a read all of whose parts were moved. */
static void finish(struct fb_shard *shard, struct fb_op *op)
{
    leave_queue(op);
    struct fb_entry *head = fb_value_at(shard, op->entry, op->entry_generation);
    if (head != NULL && (op->flags & FB_GET_HELD) != 0)
        fb_lookup_loaded(shard, head);
    fb_op_end(shard, op, FB_OK, FB_REASON_NONE);
}

/* Why the value that is being read is not there any more. */
static enum fb_reason why_gone(const struct fb_shard *shard, const struct fb_op *op)
{
    enum fb_reason reason = fb_lookup_reason(shard, op->ns, op->digest);
    return reason == FB_REASON_NONE ? FB_REASON_REPLACED : reason;
}

/* Goes on as far as window and room allow. Returns false if it waits for room. */
static bool advance(struct fb_shard *shard, struct fb_op *op)
{
    enum load result = LOADED;
    for (bool more = true; more && result == LOADED;) {
        /* With all parts on their way nothing is asked of the value any more: it may even be gone.
         */
        if (op->next_off >= end_of(op) && !has_chunk_again(op)) {
            leave_queue(op);
            if (count_taken(op) == 0)
                finish(shard, op);
            return true;
        }
        struct fb_entry *head = fb_value_at(shard, op->entry, op->entry_generation);
        if (fb_space_namespace(shard, op->ns)->epoch != op->epoch) {
            miss(shard, op, FB_REASON_EPOCH_BUMPED);
            return true;
        }
        if (head == NULL) {
            miss(shard, op, why_gone(shard, op));
            return true;
        }
        unsigned taken = count_taken(op);
        if (taken > 0 && is_crowded(shard, op)) {
            leave_queue(op);
            return true;
        }
        result = load_again(shard, op);
        if (result == LOADED)
            result = load_next(shard, op, &more);
        if (result == GONE) {
            miss(shard, op, FB_REASON_DEVICE_FENCED);
            return true;
        }
    }
    if (result == NO_ROOM) {
        join_queue(shard, op);
        return false;
    }
    leave_queue(op);
    return true;
}

/* ---- beginning ---- */

/* Finds the part in which the range begins. */
static void seek(struct fb_shard *shard, struct fb_op *op, struct fb_entry *head)
{
    struct fb_entry *entry = head;
    op->next_part = 0;
    op->next_off = 0;
    while (op->next_off + entry->part_bytes <= op->range_off) {
        op->next_off += entry->part_bytes;
        op->next_part++;
        entry = fb_index_next_part(&shard->index, entry);
        FB_ASSERT(entry != NULL);
    }
    op->cursor = fb_index_number(&shard->index, entry);
}

void fb_get_start(struct fb_shard *shard, struct fb_op *op)
{
    op->state = FB_OP_STATE_READING;
    op->tiers = 0;
    op->value_bytes = 0;
    memset(op->chunk, 0, sizeof(op->chunk));
    if (op->key_bytes < FB_KEY_BYTES_MIN || op->key_bytes > FB_KEY_BYTES_MAX || op->key == NULL) {
        fb_op_end(shard, op, FB_BAD_KEY, FB_REASON_NO_RECORD);
        return;
    }
    struct fb_entry *head = fb_value_find(shard, op->digest);
    if (head == NULL) {
        fb_op_end(shard, op, FB_MISS, fb_lookup_reason(shard, op->ns, op->digest));
        return;
    }
    op->entry = fb_index_number(&shard->index, head);
    op->entry_generation = head->generation;
    op->generation = head->generation;
    op->value_bytes = fb_index_value_bytes(&shard->index, head, &op->parts);
    fb_entry_set(head, FB_ENTRY_USED);
    if (op->parts > FB_GET_WINDOW)
        fb_lookup_extend(shard, head);
    if (op->range_off >= end_of(op)) {
        op->tiers = (uint8_t)fb_value_tiers(shard, head);
        finish(shard, op);
        return;
    }
    seek(shard, op, head);
    fb_wheel_set(&shard->wheel, &op->timer, op->deadline_ns);
    if (op->deadline_ns <= shard->now_ns)
        fb_get_timer(shard, op);
    else if (fb_list_is_empty(&shard->staging_queue))
        advance(shard, op);
    else
        join_queue(shard, op);
}

/* ---- bytes have arrived, or not ---- */

static void read_done(struct fb_shard *shard, struct fb_read *slot)
{
    struct fb_op *op = slot->op;
    struct fb_chunk *chunk = &op->chunk[slot->chunk];
    int result = slot->result;
    if (op->state == FB_OP_STATE_READING && result == 0 && !FB_BUG(FB_BUG_SKIP_CHECKSUM)) {
        fb_read_hash(shard, slot, slot->stage, chunk->part_bytes);
        return;
    }
    fb_read_give(shard, slot);
    if (op->state == FB_OP_STATE_READING && result == 0) {
        chunk->verified = 1; /* a planted bug says so */
        make_ready(shard, op, chunk);
        return;
    }
    let_go(shard, op, chunk);
    if (op->state == FB_OP_STATE_CLOSING)
        close_if_idle(shard, op);
    else
        miss(shard, op, result == FB_MISS ? FB_REASON_RECLAIMED_SSD : FB_REASON_IO_ERROR);
}

/* The bytes of a chunk are bad: the value is, or only its copy in DRAM. */
static void treat_bad(struct fb_shard *shard, struct fb_op *op, struct fb_chunk *chunk)
{
    shard->stats.checksum_failures++;
    struct fb_entry *head = fb_value_at(shard, op->entry, op->entry_generation);
    if (head == NULL)
        return;
    struct fb_entry *entry = fb_index_at(&shard->index, chunk->entry);
    bool copy_only =
        chunk->source == FB_CHUNK_DRAM && fb_entry_has_addr(entry) && fb_tier_is_readable(shard);
    if (copy_only)
        fb_entry_set(entry, FB_ENTRY_SPOILED);
    else
        fb_value_bad(shard, head);
}

void fb_get_hash_done(struct fb_shard *shard, struct fb_read *slot)
{
    struct fb_op *op = slot->op;
    struct fb_chunk *chunk = &op->chunk[slot->chunk];
    const struct fb_identity what = {.key = op->key,
                                     .key_bytes = op->key_bytes,
                                     .part = chunk->part,
                                     .total_bytes = op->value_bytes,
                                     .part_bytes = chunk->part_bytes};
    bool good = fb_part_root(shard, &what, op->ns, op->epoch, op->entry_generation, slot->leaves) ==
                chunk->root;
    bool from_dram = slot->kind == FB_READ_VERIFY;
    slot->hashing = false;
    fb_read_give(shard, slot);
    if (op->state == FB_OP_STATE_CLOSING) {
        let_go(shard, op, chunk);
        close_if_idle(shard, op);
        return;
    }
    if (good) {
        chunk->verified = 1;
        if (from_dram)
            fb_entry_set(fb_index_at(&shard->index, chunk->entry), FB_ENTRY_VERIFIED);
        make_ready(shard, op, chunk);
        return;
    }
    treat_bad(shard, op, chunk);
    let_go(shard, op, chunk);
    if (from_dram && fb_value_at(shard, op->entry, op->entry_generation) != NULL) {
        chunk->state = FB_CHUNK_LOADING;
        chunk->source = FB_CHUNK_AGAIN;
        join_queue(shard, op);
        return;
    }
    miss(shard, op, FB_REASON_BAD_CHECKSUM);
}

void fb_get_pump(struct fb_shard *shard)
{
    struct fb_link *link;
    while ((link = fb_list_pop_front(&shard->reads_done)) != NULL) {
        struct fb_read *slot = FB_LIST_ITEM(link, struct fb_read, link);
        if (slot->kind == FB_READ_COPY)
            fb_reclaim_read_done(shard, slot, slot->result);
        else
            read_done(shard, slot);
    }
    while ((link = fb_list_first(&shard->staging_queue)) != NULL) {
        struct fb_op *op = FB_LIST_ITEM(link, struct fb_op, link);
        if (!advance(shard, op))
            return;
    }
}

/* ---- what the reader says ---- */

size_t fb_shard_chunk_runs(struct fb_shard *shard, const struct fb_op *op, unsigned chunk,
                           uint32_t *off, struct fb_io_vec *out, size_t max)
{
    FB_ASSERT(op->kind == FB_OP_GET && chunk < FB_GET_WINDOW);
    const struct fb_chunk *from = &op->chunk[chunk];
    bool is_there = from->state == FB_CHUNK_READY || from->state == FB_CHUNK_OUT;
    if (!is_there || *off >= from->part_bytes || max == 0)
        return 0;
    /* The state is the shard's to change, though the operation is looked at only. */
    ((struct fb_op *)(uintptr_t)op)->chunk[chunk].state = FB_CHUNK_OUT;
    uint64_t covered = 0;
    size_t count = fb_arena_runs(&shard->arena, from->extent, *off, from->part_bytes - *off, out,
                                 max, &covered);
    *off += (uint32_t)covered;
    return count;
}

/* True if the staged pages of a part should become its copy in DRAM: if there is room anyway, or if
 * it was read before, later than what would have to go for it. */
static bool is_worth_promoting(const struct fb_shard *shard, const struct fb_entry *entry)
{
    if (shard->waiting_puts > 0 || fb_pages_stuck(shard) + fb_part_pages(entry) > shard->cap_pages)
        return false;
    if (shard->arena.free_pages > shard->arena.pages / FB_SHARD_STAGING_SHARE)
        return true;
    const struct fb_entry *victim = fb_room_victim(shard);
    return victim != NULL && fb_evict_before(victim, entry);
}

/* A part that was read from the device and moved: its pages may stay. */
static void promote(struct fb_shard *shard, struct fb_op *op, struct fb_chunk *chunk)
{
    struct fb_entry *head = fb_value_at(shard, op->entry, op->entry_generation);
    if (head == NULL || (op->flags & FB_GET_NO_PROMOTE) != 0)
        return;
    struct fb_entry *entry = fb_index_at(&shard->index, chunk->entry);
    bool stays = entry->extent == FB_ARENA_NONE && head->state == FB_ENTRY_LIVE &&
                 is_worth_promoting(shard, entry);
    entry->links.touched = fb_shard_beat(shard);
    if (!stays)
        return;
    fb_stage_promote(shard, entry, chunk->extent);
    fb_entry_set(entry, FB_ENTRY_VERIFIED);
    chunk->extent = FB_ARENA_NONE;
}

void fb_shard_chunk_release(struct fb_shard *shard, uint64_t now_ns, struct fb_op *op,
                            unsigned chunk, bool bad)
{
    FB_ASSERT(op->kind == FB_OP_GET && chunk < FB_GET_WINDOW);
    shard->now_ns = now_ns;
    struct fb_chunk *from = &op->chunk[chunk];
    if (from->state != FB_CHUNK_OUT && from->state != FB_CHUNK_READY)
        return;
    if (bad)
        treat_bad(shard, op, from);
    else if (from->source == FB_CHUNK_STAGE)
        promote(shard, op, from);
    let_go(shard, op, from);
    if (op->state == FB_OP_STATE_CLOSING)
        close_if_idle(shard, op);
    else if (bad)
        miss(shard, op, FB_REASON_BAD_CHECKSUM);
    else if ((op->marks & FB_OP_STAGED) == 0)
        advance(shard, op);
    fb_shard_pump(shard);
}

/* ---- timers and losses ---- */

/* Its deadline is over; or, before that, its reader withdrew: it had asked with a buffer too small,
 * say, which is no fault of the node's. */
void fb_get_timer(struct fb_shard *shard, struct fb_op *op)
{
    bool is_late = shard->now_ns >= op->deadline_ns;
    if (op->state == FB_OP_STATE_READING)
        conclude(shard, op, FB_DEADLINE, is_late ? FB_REASON_READ_DEADLINE : FB_REASON_CANCELLED);
}

void fb_get_abandon(struct fb_shard *shard, struct fb_op *op, bool proven)
{
    if (op->state == FB_OP_STATE_READING)
        conclude(shard, op, FB_CONNECTION, FB_REASON_CANCELLED);
    if (!proven || op->state != FB_OP_STATE_CLOSING)
        return;
    for (unsigned i = 0; i < FB_GET_WINDOW; i++)
        if (op->chunk[i].state == FB_CHUNK_OUT)
            let_go(shard, op, &op->chunk[i]);
    close_if_idle(shard, op);
}
