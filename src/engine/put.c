/*
 * put.c - puts: the table of attempts (attempt.h) joined to memory, index and device.
 *
 * What a put may do is decided by the table alone. Here its actions are carried out, its line of
 * waiters is kept, and what belongs to one put of one peer is added: deadlines, expiry, bytes,
 * reasons.
 *
 * One thing the table does not see: a `through` put is installed when its bytes are in place (so
 * that it serves readers at once), and is answered when its value is durable. Between the two it
 * waits like wait_persisted does. A duplicate that asks for `through` waits in the table, as
 * FLUSH_WAIT.
 */
#include "engine/shard_private.h"

/* ---- the key as the table sees it ---- */

static struct fb_claim *claim_of(const struct fb_shard *shard, const struct fb_op *op)
{
    return op->claim == FB_CLAIM_NONE ? NULL : fb_claim_at(&shard->claims, op->claim);
}

static struct fb_attempt_slot *slot_of(struct fb_claim *claim)
{
    return claim == NULL ? NULL : &claim->slot;
}

bool fb_put_is_writing(const struct fb_shard *shard, struct fb_digest digest)
{
    const struct fb_claim *claim = fb_claim_find(&shard->claims, digest);
    return claim != NULL && claim->writer != NULL &&
           claim->writer->attempt.state >= FB_ATTEMPT_WRITING;
}

/* The value of a head, which may be NULL: a doomed one counts as absent, since it cannot be
 * promised any more. */
static enum fb_attempt_value value_of(struct fb_shard *shard, struct fb_entry *head)
{
    bool there = head != NULL && (head->state == FB_ENTRY_LIVE || head->state == FB_ENTRY_DOOMED);
    if (!there || fb_value_is_doomed(shard, head) || !fb_value_is_readable(shard, head))
        return FB_ATTEMPT_VALUE_NONE;
    bool durable = fb_value_is_durable(shard, head) && fb_tier_is_readable(shard);
    return durable ? FB_ATTEMPT_VALUE_CLEAN : FB_ATTEMPT_VALUE_DIRTY;
}

static void refresh(struct fb_shard *shard, struct fb_attempt_slot *slot, struct fb_digest digest)
{
    struct fb_entry *head = fb_index_find(&shard->index, digest);
    slot->value = (uint8_t)value_of(shard, head);
    slot->old_on_disk = fb_kill_is_needed(shard, digest);
    if (FB_BUG(FB_BUG_INDEX_BEFORE_COMMIT) && head == NULL && fb_put_is_writing(shard, digest))
        slot->value = FB_ATTEMPT_VALUE_DIRTY;
}

/* ---- memory ---- */

uint64_t fb_put_bytes(const struct fb_shard *shard, const struct fb_op *op)
{
    return fb_admit_pages(shard, op->value_bytes) * FB_PAGE_BYTES;
}

static struct fb_entry *head_of(const struct fb_shard *shard, const struct fb_op *op)
{
    struct fb_entry *head = fb_index_at(&shard->index, op->entry);
    FB_ASSERT(head->generation == op->generation);
    return head;
}

/* The put's memory is not its peer's any more. */
static void uncount(struct fb_shard *shard, struct fb_op *op, const struct fb_entry *head)
{
    uint64_t bytes = fb_put_bytes(shard, op);
    uint64_t *count = head->state == FB_ENTRY_QUARANTINED ? &op->peer->quarantine_bytes
                                                          : &op->peer->granted_bytes;
    FB_ASSERT(*count >= bytes);
    *count -= bytes;
}

static void free_memory(struct fb_shard *shard, struct fb_op *op)
{
    struct fb_entry *head = head_of(shard, op);
    uncount(shard, op, head);
    fb_value_release(shard, head);
    op->entry = FB_ENTRY_NONE;
}

static void quarantine(struct fb_shard *shard, struct fb_op *op)
{
    struct fb_entry *head = head_of(shard, op);
    uncount(shard, op, head);
    op->peer->quarantine_bytes += fb_put_bytes(shard, op);
    fb_value_set_state(shard, head, FB_ENTRY_QUARANTINED);
    shard->stats.quarantined++;
}

static enum fb_entry_persist persist_of(const struct fb_shard *shard, const struct fb_op *op)
{
    if (!fb_tier_is_writable(shard))
        return FB_ENTRY_PERSIST_OFF;
    switch (fb_tier_persist(shard, op)) {
    case FB_PERSIST_OFF:
        return FB_ENTRY_PERSIST_OFF;
    case FB_PERSIST_EVICT:
        return FB_ENTRY_PERSIST_EVICT;
    default:
        return FB_ENTRY_PERSIST_BEHIND;
    }
}

/* Decides whether the parts of a value are to be written; they are lifted and settled. */
static void set_persist(struct fb_shard *shard, struct fb_entry *head,
                        enum fb_entry_persist persist)
{
    for (struct fb_entry *entry = head; entry != NULL;
         entry = fb_index_next_part(&shard->index, entry))
        entry->persist = (uint8_t)persist & 3;
    if (persist != FB_ENTRY_PERSIST_OFF)
        fb_value_count_ssd(shard, head);
    bool save = persist != FB_ENTRY_PERSIST_OFF && !fb_entry_is(head, FB_ENTRY_UNKEPT);
    for (struct fb_entry *entry = head; entry != NULL;
         entry = fb_index_next_part(&shard->index, entry)) {
        fb_part_lift(shard, entry);
        entry->state = FB_ENTRY_LIVE;
        entry->links.touched = fb_shard_beat(shard);
        if (save && !fb_entry_has_addr(entry))
            fb_entry_set(entry, FB_ENTRY_UNSAVED);
        fb_part_settle(shard, entry);
    }
}

void fb_put_note_lease(struct fb_shard *shard, const struct fb_entry *head)
{
    struct fb_claim *claim = fb_claim_find(&shard->claims, head->digest);
    if (claim == NULL || !fb_value_is_leased(shard, head))
        return;
    claim->lease_until = head->lease_until;
    claim->hold_loads = head->hold_loads;
}

/* The bytes of a put become the value of its key. A lease is on the key: it goes over to them. */
static void install(struct fb_shard *shard, struct fb_claim *claim, struct fb_op *op)
{
    struct fb_entry *head = head_of(shard, op);
    struct fb_entry *old = fb_index_find(&shard->index, op->digest);
    uncount(shard, op, head);
    if (old != NULL && old->state == FB_ENTRY_GHOST) {
        fb_value_lay_ghost(shard, old);
    } else if (old != NULL) {
        fb_put_note_lease(shard, old);
        fb_value_drop_quietly(shard, old, FB_REASON_REPLACED, true);
    }
    fb_index_link(&shard->index, head);
    set_persist(shard, head, persist_of(shard, op));
    if (claim != NULL && claim->lease_until > fb_shard_beat(shard))
        fb_lease_inherit(shard, head, claim->lease_until, claim->hold_loads);
    fb_shard_notice(shard, FB_NOTICE_ANNOUNCE, head);
    shard->stats.put_bytes += op->value_bytes;
}

/* A `through` put meets a value that was not meant to be written: it is now. */
static void upgrade(struct fb_shard *shard, struct fb_op *op)
{
    struct fb_entry *head = fb_value_find(shard, op->digest);
    if (head == NULL || fb_value_is_doomed(shard, head) || !fb_tier_is_writable(shard))
        return;
    if (head->persist == FB_ENTRY_PERSIST_OFF)
        set_persist(shard, head, FB_ENTRY_PERSIST_BEHIND);
}

/* ---- answers ---- */

static enum fb_reason reason_of(const struct fb_op *op, int result)
{
    switch (result) {
    case FB_GRANT_EXPIRED:
        return FB_REASON_GRANT_EXPIRED;
    case FB_REMOVED:
        return FB_REASON_REMOVED;
    case FB_CONNECTION:
        return FB_REASON_WRITER_DIED;
    case FB_STALE_EPOCH:
        return FB_REASON_EPOCH_BUMPED;
    case FB_SHUTTING_DOWN:
        return FB_REASON_SHUTDOWN;
    case FB_QUOTA:
        return FB_REASON_QUOTA;
    case FB_IO:
        return FB_REASON_IO_ERROR;
    case FB_BAD_CHECKSUM:
        return FB_REASON_BAD_CHECKSUM;
    default:
        return (enum fb_reason)op->reason;
    }
}

/* What a put that ended without a value leaves behind for `explain`. */
static void remember(struct fb_shard *shard, const struct fb_op *op, int result)
{
    if (result != FB_GRANT_EXPIRED && result != FB_CONNECTION && result != FB_DEADLINE &&
        result != FB_BAD_CHECKSUM)
        return;
    if (fb_index_find(&shard->index, op->digest) != NULL)
        return;
    enum fb_reason reason =
        result == FB_DEADLINE ? FB_REASON_NEVER_COMMITTED : reason_of(op, result);
    fb_history_add(&shard->history, op->digest, op->generation, reason, shard->wall_ms);
}

static void answer(struct fb_shard *shard, struct fb_op *op, int result)
{
    if (result == FB_DEADLINE && (op->marks & FB_OP_OVER_QUOTA) != 0)
        result = FB_QUOTA;
    if (result < 0) {
        remember(shard, op, result);
        fb_op_done(shard, op, result, reason_of(op, result));
        return;
    }
    struct fb_entry *head = fb_value_find(shard, op->digest);
    if (head != NULL) {
        op->generation = head->generation;
        op->persisted = value_of(shard, head) == FB_ATTEMPT_VALUE_CLEAN;
    }
    if (result == FB_OK && (op->marks & FB_OP_THROUGH) != 0 && head != NULL && !op->persisted) {
        int error = fb_value_persist_error(shard, head);
        if (error == 0) {
            fb_wait_for(shard, op, head);
            fb_wheel_set(&shard->wheel, &op->timer, op->deadline_ns);
            return;
        }
        result = error;
    }
    fb_op_done(shard, op, result, reason_of(op, result));
}

void fb_put_flush_over(struct fb_shard *shard, struct fb_op *op, int result, enum fb_reason reason)
{
    op->persisted = result == FB_OK;
    fb_op_end(shard, op, result, reason);
}

/* ---- the table's actions ---- */

static void arm(struct fb_shard *shard, struct fb_op *op)
{
    uint64_t at = op->deadline_ns;
    if (op->attempt.state == FB_ATTEMPT_WRITING) {
        uint64_t stall = fb_attempt_expiry_ns(op->value_bytes) - FB_GRANT_EXPIRY_NS +
                         (uint64_t)shard->config.grant_stall_ms * FB_MS_NS;
        at = fb_min_u64(at, fb_add_saturated(op->progress_ns, stall));
    }
    fb_wheel_set(&shard->wheel, &op->timer, at);
}

/* Keeps claim and put pointing at each other as the table's state says. */
static void sync_claim(struct fb_shard *shard, struct fb_claim *claim, struct fb_op *op)
{
    if (claim == NULL)
        return;
    bool in_line = fb_attempt_is_in_line(&op->attempt);
    if (in_line && (op->marks & FB_OP_IN_LINE) == 0) {
        op->marks |= FB_OP_IN_LINE;
        fb_list_push_back(&claim->line, &op->link);
    } else if (!in_line && (op->marks & FB_OP_IN_LINE) != 0) {
        op->marks &= (uint8_t)~FB_OP_IN_LINE;
        fb_list_remove(&op->link);
    }
    if (fb_attempt_is_writer(&op->attempt)) {
        FB_ASSERT(claim->writer == NULL || claim->writer == op);
        claim->writer = op;
    } else if (claim->writer == op) {
        claim->writer = NULL;
    }
    bool belongs = in_line || claim->writer == op;
    op->claim = belongs ? fb_claim_number(&shard->claims, claim) : FB_CLAIM_NONE;
}

/* Carries out what a step asks for, except to look at the line again. */
static void act(struct fb_shard *shard, struct fb_claim *claim, struct fb_op *op,
                struct fb_attempt_todo todo)
{
    if ((todo.actions & FB_ATTEMPT_DO_CANCEL_SPACE) != 0)
        fb_admit_leave(shard, op);
    if ((todo.actions & FB_ATTEMPT_DO_INSTALL) != 0)
        install(shard, claim, op);
    if ((todo.actions & FB_ATTEMPT_DO_FREE) != 0)
        free_memory(shard, op);
    if ((todo.actions & FB_ATTEMPT_DO_QUARANTINE) != 0)
        quarantine(shard, op);
    if ((todo.actions & FB_ATTEMPT_DO_LATE) != 0)
        shard->stats.late_commits++;
    sync_claim(shard, claim, op);
    if ((todo.actions & FB_ATTEMPT_DO_ASK_SPACE) != 0)
        fb_admit_join(shard, op);
    if ((todo.actions & FB_ATTEMPT_DO_GRANT) != 0)
        fb_op_event(shard, op, FB_EV_GRANT);
    if ((todo.actions & (FB_ATTEMPT_DO_GRANT | FB_ATTEMPT_DO_TOUCH)) != 0) {
        op->progress_ns = shard->now_ns;
        arm(shard, op);
    }
    if ((todo.actions & FB_ATTEMPT_DO_MAKE_DURABLE) != 0) {
        arm(shard, op);
        fb_kill_join(shard, op);
    }
    if ((todo.actions & FB_ATTEMPT_DO_ANSWER) != 0)
        answer(shard, op, todo.result);
    if (op->attempt.state == FB_ATTEMPT_ENDED && op->state == FB_OP_STATE_PUT)
        fb_op_close(shard, op);
}

/* A `through` duplicate waits for a flush that must be possible, and is asked for. */
static void chase_flush(struct fb_shard *shard, struct fb_claim *claim, struct fb_op *op)
{
    if (op->attempt.state != FB_ATTEMPT_FLUSH_WAIT)
        return;
    struct fb_entry *head = fb_value_find(shard, op->digest);
    int error = head == NULL ? 0 : fb_value_persist_error(shard, head);
    if (error != 0)
        act(shard, claim, op,
            fb_attempt_fail(&claim->slot, &op->attempt, FB_ATTEMPT_ON_DURABLE_FAILED, error));
    else if (head != NULL)
        fb_value_demand(shard, head);
}

static void recheck(struct fb_shard *shard, struct fb_claim *claim)
{
    FB_LIST_FOREACH_SAFE (link, following, &claim->line) {
        struct fb_op *op = FB_LIST_ITEM(link, struct fb_op, link);
        refresh(shard, &claim->slot, claim->digest);
        act(shard, claim, op, fb_attempt_see(&claim->slot, &op->attempt));
        chase_flush(shard, claim, op);
    }
}

static void free_if_empty(struct fb_shard *shard, struct fb_claim *claim)
{
    if (claim->writer == NULL && fb_list_is_empty(&claim->line))
        fb_claim_free(&shard->claims, claim);
}

/* Carries out a step as a whole. */
static void apply(struct fb_shard *shard, struct fb_claim *claim, struct fb_op *op,
                  struct fb_attempt_todo todo)
{
    act(shard, claim, op, todo);
    if (claim == NULL)
        return;
    if ((todo.actions & FB_ATTEMPT_DO_RECHECK) != 0)
        recheck(shard, claim);
    free_if_empty(shard, claim);
}

void fb_put_event(struct fb_shard *shard, struct fb_op *op, enum fb_attempt_event event)
{
    struct fb_claim *claim = claim_of(shard, op);
    apply(shard, claim, op, fb_attempt_step(slot_of(claim), &op->attempt, event));
}

/* ---- beginning ---- */

/* Why a put cannot be done at all: 0 if it can. */
static int refusal(struct fb_shard *shard, struct fb_op *op)
{
    op->reason = FB_REASON_NONE;
    if (shard->draining)
        return FB_SHUTTING_DOWN;
    if (op->key_bytes < FB_KEY_BYTES_MIN || op->key_bytes > FB_KEY_BYTES_MAX || op->key == NULL)
        return FB_BAD_KEY;
    if (op->value_bytes < FB_VALUE_BYTES_MIN || op->persist > FB_PERSIST_THROUGH)
        return FB_BAD_ARGUMENT;
    if (op->value_bytes > shard->value_bytes_max)
        return FB_TOO_BIG;
    const struct fb_namespace *ns = fb_space_namespace(shard, op->ns);
    if (ns->quota_dram_bytes != 0 && fb_put_bytes(shard, op) > ns->quota_dram_bytes)
        return FB_QUOTA;
    if (op->deadline_ns <= shard->now_ns)
        return FB_DEADLINE;
    if (op->peer->waiting >= shard->config.peer_waiting_max)
        return FB_BUSY;
    return 0;
}

void fb_put_start(struct fb_shard *shard, struct fb_op *op)
{
    op->state = FB_OP_STATE_PUT;
    op->claim = FB_CLAIM_NONE;
    op->entry = FB_ENTRY_NONE;
    op->generation = 0;
    bool through = fb_tier_persist(shard, op) == FB_PERSIST_THROUGH;
    unsigned kind = (op->flags & FB_PUT_UPSERT) != 0 ? FB_ATTEMPT_UPSERT : FB_ATTEMPT_PLAIN;
    if (through) {
        op->marks |= FB_OP_THROUGH;
        kind |= FB_ATTEMPT_THROUGH;
    }
    fb_attempt_init(&op->attempt, kind);
    int error = refusal(shard, op);
    struct fb_claim *claim = error == 0 ? fb_claim_find(&shard->claims, op->digest) : NULL;
    if (error == 0 && claim == NULL) {
        claim = fb_claim_new(&shard->claims, op->digest);
        error = claim == NULL ? FB_BUSY : 0;
    }
    if (error != 0) {
        struct fb_attempt_slot none = {0};
        act(shard, NULL, op, fb_attempt_fail(&none, &op->attempt, FB_ATTEMPT_ON_REFUSED, error));
        return;
    }
    if (through && (op->flags & FB_PUT_UPSERT) == 0)
        upgrade(shard, op);
    refresh(shard, &claim->slot, op->digest);
    struct fb_attempt_todo todo = fb_attempt_see(&claim->slot, &op->attempt);
    if (op->attempt.state == FB_ATTEMPT_WAITING)
        shard->stats.put_waited_key++;
    arm(shard, op);
    act(shard, claim, op, todo);
    chase_flush(shard, claim, op);
    free_if_empty(shard, claim);
}

void fb_put_grant(struct fb_shard *shard, struct fb_op *op)
{
    FB_ASSERT(op->attempt.state == FB_ATTEMPT_QUEUED);
    op->parts = fb_admit_parts(shard, op->value_bytes);
    op->generation = fb_shard_generation(shard);
    /* From here on durability is waited for outside of the table: see the head of this file. */
    op->attempt.kind &= (uint8_t)~FB_ATTEMPT_THROUGH;
    struct fb_entry *head = fb_value_reserve(shard, op, op->parts);
    op->entry = fb_index_number(&shard->index, head);
    op->peer->granted_bytes += fb_put_bytes(shard, op);
    struct fb_claim *claim = claim_of(shard, op);
    apply(shard, claim, op, fb_attempt_grant(&claim->slot, &op->attempt, op->generation));
}

void fb_put_refuse(struct fb_shard *shard, struct fb_op *op, int result, enum fb_reason reason)
{
    struct fb_claim *claim = claim_of(shard, op);
    op->reason = (uint8_t)reason;
    apply(shard, claim, op,
          fb_attempt_fail(slot_of(claim), &op->attempt, FB_ATTEMPT_ON_REFUSED, result));
}

/* ---- what the client says ---- */

size_t fb_shard_put_runs(const struct fb_shard *shard, const struct fb_op *op, uint64_t *off,
                         struct fb_io_vec *out, size_t max)
{
    FB_ASSERT(op->kind == FB_OP_PUT);
    if (*off >= op->value_bytes || op->entry == FB_ENTRY_NONE || max == 0)
        return 0;
    uint32_t part = (uint32_t)(*off / shard->chunk_bytes);
    uint32_t within = (uint32_t)(*off % shard->chunk_bytes);
    const struct fb_entry *entry = fb_index_part(&shard->index, head_of(shard, op), part);
    FB_ASSERT(entry != NULL && within < entry->part_bytes);
    uint64_t covered = 0;
    size_t count = fb_arena_runs(&shard->arena, entry->extent, within, entry->part_bytes - within,
                                 out, max, &covered);
    *off += covered;
    return count;
}

static bool is_put_under_way(const struct fb_op *op)
{
    return op->kind == FB_OP_PUT && op->state == FB_OP_STATE_PUT;
}

void fb_shard_put_progress(struct fb_shard *shard, uint64_t now_ns, struct fb_op *op)
{
    shard->now_ns = now_ns;
    if (!is_put_under_way(op))
        return;
    struct fb_claim *claim = claim_of(shard, op);
    apply(shard, claim, op,
          fb_attempt_message(slot_of(claim), &op->attempt, FB_ATTEMPT_ON_PROGRESS,
                             op->attempt.grant));
}

static void keep_roots(struct fb_shard *shard, struct fb_op *op, const uint64_t *roots)
{
    for (struct fb_entry *entry = head_of(shard, op); entry != NULL;
         entry = fb_index_next_part(&shard->index, entry))
        entry->root = *roots++;
}

void fb_shard_put_commit(struct fb_shard *shard, uint64_t now_ns, struct fb_op *op,
                         uint64_t generation, const uint64_t *roots, uint32_t n)
{
    shard->now_ns = now_ns;
    if (!is_put_under_way(op)) {
        shard->stats.late_commits++;
        return;
    }
    struct fb_claim *claim = claim_of(shard, op);
    bool has_memory =
        op->attempt.state == FB_ATTEMPT_WRITING || op->attempt.state == FB_ATTEMPT_QUARANTINE;
    bool complete = n == op->parts;
    if (has_memory && complete)
        keep_roots(shard, op, roots);
    if (claim != NULL)
        refresh(shard, &claim->slot, op->digest);
    struct fb_attempt_todo todo =
        fb_attempt_message(slot_of(claim), &op->attempt,
                           complete ? FB_ATTEMPT_ON_COMMIT : FB_ATTEMPT_ON_RELEASE, generation);
    if (!complete && (todo.actions & FB_ATTEMPT_DO_ANSWER) != 0)
        todo.result = FB_BAD_ARGUMENT;
    apply(shard, claim, op, todo);
    fb_shard_pump(shard);
}

static void give_back(struct fb_shard *shard, uint64_t now_ns, struct fb_op *op, int result)
{
    shard->now_ns = now_ns;
    if (!is_put_under_way(op))
        return;
    struct fb_claim *claim = claim_of(shard, op);
    struct fb_attempt_todo todo =
        fb_attempt_message(slot_of(claim), &op->attempt, FB_ATTEMPT_ON_RELEASE, op->attempt.grant);
    if ((todo.actions & FB_ATTEMPT_DO_ANSWER) != 0)
        todo.result = result;
    apply(shard, claim, op, todo);
    fb_shard_pump(shard);
}

void fb_shard_put_release(struct fb_shard *shard, uint64_t now_ns, struct fb_op *op)
{
    give_back(shard, now_ns, op, FB_DEADLINE);
}

void fb_shard_put_mismatch(struct fb_shard *shard, uint64_t now_ns, struct fb_op *op)
{
    give_back(shard, now_ns, op, FB_BAD_CHECKSUM);
}

/* ---- timers, losses, kills ---- */

void fb_put_timer(struct fb_shard *shard, struct fb_op *op)
{
    if (shard->now_ns >= op->deadline_ns) {
        fb_put_event(shard, op, FB_ATTEMPT_ON_DEADLINE);
    } else if (op->attempt.state == FB_ATTEMPT_WRITING) {
        shard->stats.grants_expired++;
        fb_put_event(shard, op, FB_ATTEMPT_ON_EXPIRED);
    }
}

void fb_put_abandon(struct fb_shard *shard, struct fb_op *op, bool proven)
{
    fb_put_event(shard, op, proven ? FB_ATTEMPT_ON_CLIENT_DEAD : FB_ATTEMPT_ON_CLIENT_LOST);
}

void fb_put_killed(struct fb_shard *shard, struct fb_op *op, int result)
{
    struct fb_claim *claim = claim_of(shard, op);
    struct fb_attempt_todo todo =
        result == 0
            ? fb_attempt_step(slot_of(claim), &op->attempt, FB_ATTEMPT_ON_DURABLE)
            : fb_attempt_fail(slot_of(claim), &op->attempt, FB_ATTEMPT_ON_DURABLE_FAILED, FB_IO);
    apply(shard, claim, op, todo);
}

bool fb_put_remove(struct fb_shard *shard, struct fb_digest digest)
{
    struct fb_claim *claim = fb_claim_find(&shard->claims, digest);
    if (claim == NULL || claim->writer == NULL)
        return false;
    bool has_memory = claim->writer->attempt.state != FB_ATTEMPT_QUEUED;
    fb_put_event(shard, claim->writer, FB_ATTEMPT_ON_REMOVE);
    return has_memory;
}

void fb_put_value_changed(struct fb_shard *shard, struct fb_digest digest)
{
    struct fb_claim *claim = shard->claims.used == 0 ? NULL : fb_claim_find(&shard->claims, digest);
    if (claim == NULL)
        return;
    refresh(shard, &claim->slot, digest);
    if (fb_attempt_set_value(&claim->slot, claim->slot.value))
        recheck(shard, claim);
    free_if_empty(shard, claim);
}

void fb_put_end_claim(struct fb_shard *shard, struct fb_claim *claim, enum fb_attempt_event event)
{
    FB_LIST_FOREACH_SAFE (link, following, &claim->line) {
        struct fb_op *op = FB_LIST_ITEM(link, struct fb_op, link);
        act(shard, claim, op, fb_attempt_step(&claim->slot, &op->attempt, event));
    }
    struct fb_op *writer = claim->writer;
    /* A shutdown lets who has a grant go on: the drain's time is theirs as well. */
    bool spare = event == FB_ATTEMPT_ON_SHUTDOWN && writer != NULL &&
                 writer->attempt.state != FB_ATTEMPT_QUEUED;
    if (writer != NULL && !spare)
        act(shard, claim, writer, fb_attempt_step(&claim->slot, &writer->attempt, event));
    free_if_empty(shard, claim);
}

/* What a claim has to hear of since the last sweep. */
static void sweep_claim(struct fb_shard *shard, struct fb_claim *claim)
{
    struct fb_link *first = fb_list_first(&claim->line);
    const struct fb_op *any =
        claim->writer != NULL ? claim->writer : FB_LIST_ITEM(first, struct fb_op, link);
    const struct fb_namespace *ns = fb_space_namespace(shard, any->ns);
    if (ns->epoch != any->epoch) {
        fb_put_end_claim(shard, claim, FB_ATTEMPT_ON_EPOCH);
        return;
    }
    if (shard->draining) {
        fb_put_end_claim(shard, claim, FB_ATTEMPT_ON_SHUTDOWN);
        return;
    }
    FB_LIST_FOREACH_SAFE (link, following, &claim->line) {
        chase_flush(shard, claim, FB_LIST_ITEM(link, struct fb_op, link));
    }
    free_if_empty(shard, claim);
}

void fb_put_sweep(struct fb_shard *shard)
{
    uint32_t steps = (uint32_t)fb_min_u64(shard->claim_sweep_left, FB_SHARD_TURN_STEPS);
    shard->claim_sweep_left -= steps;
    for (; steps > 0; steps--) {
        struct fb_claim *claim = &shard->claims.claims[shard->claim_sweep];
        shard->claim_sweep =
            shard->claim_sweep + 1 < shard->claims.count ? shard->claim_sweep + 1 : 0;
        if (claim->used)
            sweep_claim(shard, claim);
    }
    if (shard->claim_sweep_left > 0)
        shard->more_work = true;
}
