/*
 * remove.c - removes, and kills: tombstones that must be durable before something is acknowledged.
 *
 * Whenever a device may hold an older generation of a key, it is killed durably before a newer one
 * is acknowledged, and before a remove is. What is to be killed is in the index as a ghost, or (for
 * an upsert) as the value that is still served, marked KILLING: nothing of it is written any more.
 * A ghost that nobody waits for (a bad record, a value dropped while its device failed) is killed
 * in the background.
 */
#include "engine/shard_private.h"

bool fb_kill_is_needed(const struct fb_shard *shard, struct fb_digest digest)
{
    const struct fb_entry *head = fb_index_find(&shard->index, digest);
    if (head != NULL)
        return fb_entry_is(head, FB_ENTRY_PLACED);
    /* Of a key that is not known the device may hold what the start could not read, and a later
     * start may. */
    return shard->log != NULL && fb_log_is_uncertain(shard->log);
}

/* ---- the queue ---- */

void fb_kill_join(struct fb_shard *shard, struct fb_op *op)
{
    FB_ASSERT((op->marks & FB_OP_KILLQ) == 0);
    op->marks |= FB_OP_KILLQ;
    op->cursor = FB_SLOT_NONE;
    fb_list_push_back(&shard->kill_queue, &op->link);
}

static void leave_queue(struct fb_op *op)
{
    op->marks &= (uint8_t)~FB_OP_KILLQ;
    fb_list_remove(&op->link);
}

void fb_kill_leave(struct fb_shard *shard, struct fb_op *op)
{
    if ((op->marks & FB_OP_KILLQ) != 0) {
        leave_queue(op);
    } else if (op->cursor != FB_SLOT_NONE) {
        FB_ASSERT(shard->writes[op->cursor].op == op);
        shard->writes[op->cursor].op = NULL;
        op->cursor = FB_SLOT_NONE;
    }
}

/* Tells who asked for a kill how it ended. */
static void tell(struct fb_shard *shard, struct fb_op *op, int result)
{
    op->cursor = FB_SLOT_NONE;
    if (op->kind == FB_OP_PUT)
        fb_put_killed(shard, op, result);
    else
        fb_op_end(shard, op, result == 0 ? op->result : FB_IO,
                  result == 0 ? (enum fb_reason)op->reason : FB_REASON_IO_ERROR);
}

/* ---- one kill ---- */

/* What a tombstone says of its reason, for those who ask after a restart. */
static enum fb_reason why(const struct fb_shard *shard, const struct fb_entry *head,
                          const struct fb_op *op)
{
    if (op != NULL)
        return op->kind == FB_OP_PUT ? FB_REASON_REPLACED : FB_REASON_REMOVED;
    const struct fb_history_record *record = fb_history_find(&shard->history, head->digest);
    return record != NULL ? (enum fb_reason)record->reason : FB_REASON_NONE;
}

/* Writes a tombstone: everything of a key up to a generation is dead. The head may be NULL if
 * somebody asks for it: then nothing is known of the key. */
static void start(struct fb_shard *shard, struct fb_write *slot, struct fb_entry *head,
                  uint64_t up_to, struct fb_op *op)
{
    FB_ASSERT(head == NULL ? op != NULL : head->generation <= up_to);
    uint16_t number = head == NULL ? fb_space_namespace(shard, op->ns)->space : head->space;
    const struct fb_space *space = &shard->spaces[number];
    struct fb_log_record *record = &slot->item.record;
    memset(record, 0, sizeof(*record));
    record->kind = FB_LOG_TOMB;
    record->class_hint = FB_SHARD_CLASS_COLD;
    memcpy(record->namespace_id, shard->namespaces[space->ns].id, FB_NAMESPACE_ID_BYTES);
    record->epoch = space->epoch;
    record->digest = head == NULL ? op->digest : head->digest;
    record->origin = shard->config.log.node_id;
    record->generation = up_to;
    record->pin_class = (uint8_t)why(shard, head, op);
    record->key = slot->key;
    if (op != NULL) {
        memcpy(slot->key, op->key, op->key_bytes);
        record->key_bytes = op->key_bytes;
        op->cursor = fb_write_number(shard, slot);
    }
    slot->op = op;
    slot->digest = record->digest;
    slot->generation = up_to;
    slot->item.vec_count = 0;
    slot->item.urgent = true;
    slot->phase = FB_WRITE_LOG;
    if (head != NULL) {
        /* What the tombstone kills must not be placed behind it. */
        fb_value_cancel_writes(shard, head);
        fb_entry_set(head, FB_ENTRY_KILLING | FB_ENTRY_PLACED);
        fb_value_relist(shard, head);
    }
    fb_write_append(shard, slot);
}

/* The value that an upsert replaces is durably dead; its lease waits for its successor. */
static void replace(struct fb_shard *shard, struct fb_entry *head)
{
    fb_put_note_lease(shard, head);
    fb_value_drop(shard, head, FB_REASON_REPLACED, true);
}

void fb_kill_durable(struct fb_shard *shard, struct fb_write *slot, int result)
{
    struct fb_op *op = slot->op;
    uint64_t up_to = slot->generation;
    struct fb_entry *head = fb_index_find(&shard->index, slot->digest);
    fb_write_give(shard, slot);
    if (head != NULL && head->generation <= up_to) {
        fb_entry_clear(head, FB_ENTRY_KILLING | FB_ENTRY_DOUBT);
        bool ghost = head->state == FB_ENTRY_GHOST;
        if (result == 0 && ghost)
            fb_value_lay_ghost(shard, head);
        else if (result == 0)
            replace(shard, head);
        else if (!ghost)
            fb_value_drop(shard, head, FB_REASON_IO_ERROR, false);
        else
            fb_value_relist(shard, head);
        if (result != 0)
            shard->ghost_retry_ns = shard->now_ns + FB_SHARD_RETRY_NS;
    }
    if (op != NULL)
        tell(shard, op, result);
}

/* The generation up to which an operation kills: a put everything before its own. */
static uint64_t up_to_of(const struct fb_op *op)
{
    return op->kind == FB_OP_PUT ? op->generation - 1 : op->generation;
}

/* Serves the operation in front of the queue. False if it has to wait. */
static bool serve_queue(struct fb_shard *shard)
{
    struct fb_link *link = fb_list_first(&shard->kill_queue);
    if (link == NULL)
        return false;
    struct fb_op *op = FB_LIST_ITEM(link, struct fb_op, link);
    struct fb_entry *head = fb_index_find(&shard->index, op->digest);
    if (head != NULL)
        fb_value_cancel_writes(shard, head);
    bool needed = fb_kill_is_needed(shard, op->digest);
    if (!needed || !fb_tier_is_writable(shard)) {
        leave_queue(op);
        tell(shard, op, needed ? FB_IO : 0);
        return true;
    }
    struct fb_write *slot = fb_write_take(shard, FB_WRITE_KILL, true);
    if (slot == NULL)
        return false;
    leave_queue(op);
    start(shard, slot, head, up_to_of(op), op);
    return true;
}

/* Kills a ghost that nobody waits for. False if there is none, or it has to wait. */
static bool serve_ghost(struct fb_shard *shard)
{
    struct fb_entry *ghost = fb_lru_cold(&shard->index, &shard->ghosts);
    if (ghost == NULL || !fb_tier_is_writable(shard) || shard->ghost_retry_ns != 0)
        return false;
    struct fb_write *slot = fb_write_take(shard, FB_WRITE_KILL, false);
    if (slot == NULL)
        return false;
    start(shard, slot, ghost, ghost->generation, NULL);
    return true;
}

void fb_kill_pump(struct fb_shard *shard)
{
    if (shard->now_ns >= shard->ghost_retry_ns)
        shard->ghost_retry_ns = 0;
    for (uint32_t steps = 0; steps < FB_SHARD_TURN_STEPS; steps++)
        if (!serve_queue(shard) && !serve_ghost(shard))
            return;
    shard->more_work = true;
}

/* ---- removes ---- */

void fb_remove_start(struct fb_shard *shard, struct fb_op *op)
{
    if (op->key_bytes < FB_KEY_BYTES_MIN || op->key_bytes > FB_KEY_BYTES_MAX || op->key == NULL) {
        fb_op_end(shard, op, FB_BAD_KEY, FB_REASON_NONE);
        return;
    }
    shard->stats.removes++;
    op->generation = fb_shard_generation(shard);
    struct fb_entry *head = fb_index_find(&shard->index, op->digest);
    bool found = head != NULL;
    enum fb_reason reason = found ? FB_REASON_NONE : fb_lookup_reason(shard, op->ns, op->digest);
    if (head != NULL && head->state != FB_ENTRY_GHOST) {
        fb_value_cancel_writes(shard, head);
        fb_value_drop(shard, head, FB_REASON_REMOVED, false);
    }
    if (fb_put_remove(shard, op->digest))
        found = true;
    op->result = found ? FB_OK : FB_MISS;
    op->reason = (uint8_t)(found ? FB_REASON_NONE : reason);
    if (!fb_kill_is_needed(shard, op->digest)) {
        fb_op_end(shard, op, op->result, (enum fb_reason)op->reason);
        return;
    }
    op->state = FB_OP_STATE_KILLING;
    fb_wheel_set(&shard->wheel, &op->timer, op->deadline_ns);
    fb_kill_join(shard, op);
}

void fb_remove_timer(struct fb_shard *shard, struct fb_op *op)
{
    fb_kill_leave(shard, op);
    fb_op_end(shard, op, FB_DEADLINE, FB_REASON_NONE);
}
