/*
 * recover.c - records to index, at start.
 *
 * Records come in any order. Of each key the newest generation counts; a tombstone is kept as an
 * entry until all records are in, since what it kills may come later. A value is live only if all
 * of its parts were found; until then its parts are RESERVED and its head is on the list of what is
 * partial. What is not taken is garbage, and the log is told so.
 */
#include "engine/shard_private.h"

static void reject(struct fb_shard *shard, const struct fb_log_record *record,
                   const struct fb_log_addr *addr)
{
    if (record->kind == FB_LOG_VALUE)
        fb_log_garbage(shard->log, addr, record->part_bytes);
}

/* The space of the record if it is of a current epoch, or NULL. */
static const struct fb_namespace *current(const struct fb_shard *shard,
                                          const struct fb_log_record *record)
{
    int number = fb_space_find(shard, record->namespace_id);
    if (number < 0 || shard->namespaces[number].epoch != record->epoch)
        return NULL;
    return &shard->namespaces[number];
}

/* Puts an entry on the list of what is not complete. */
static void list_partial(struct fb_shard *shard, struct fb_entry *head)
{
    FB_ASSERT(head->list == FB_ENTRY_UNLISTED && head->state != FB_ENTRY_LIVE);
    head->list = FB_ENTRY_PARTIAL;
    fb_lru_push_hot(&shard->index, &shard->partial, head);
}

static void count_ssd(struct fb_shard *shard, struct fb_entry *head, bool add)
{
    struct fb_namespace *ns = fb_space_of(shard, head);
    uint64_t bytes = 0;
    for (const struct fb_entry *entry = head; entry != NULL;
         entry = fb_index_next_part(&shard->index, entry))
        bytes += (uint64_t)fb_part_pages(entry) * FB_PAGE_BYTES;
    ns->ssd_bytes = add ? ns->ssd_bytes + bytes : ns->ssd_bytes - bytes;
}

/* Something newer is known: what is in the index goes. */
static void forget(struct fb_shard *shard, struct fb_entry *head)
{
    if (head->state == FB_ENTRY_LIVE)
        count_ssd(shard, head, false);
    fb_value_forget(shard, head);
}

static struct fb_entry *new_entry(struct fb_shard *shard, const struct fb_log_record *record,
                                  const struct fb_namespace *ns, enum fb_entry_state state)
{
    struct fb_entry *entry = fb_index_alloc(&shard->index, state);
    entry->generation = record->generation;
    entry->depth = record->depth;
    entry->persist = FB_ENTRY_PERSIST_BEHIND;
    fb_space_enter(shard, entry, ns->space);
    return entry;
}

static void take_tomb(struct fb_shard *shard, const struct fb_log_record *record,
                      const struct fb_namespace *ns)
{
    struct fb_entry *head = fb_index_find(&shard->index, record->digest);
    if (head != NULL && head->generation > record->generation)
        return;
    bool is_known = head != NULL && head->state == FB_ENTRY_TOMB &&
                    head->generation == record->generation && !fb_entry_is(head, FB_ENTRY_DOUBT);
    if (is_known)
        return;
    if (head != NULL)
        forget(shard, head);
    if (fb_index_free_count(&shard->index) == 0) {
        shard->is_index_short = true;
        return;
    }
    struct fb_entry *tomb = new_entry(shard, record, ns, FB_ENTRY_TOMB);
    tomb->digest = record->digest;
    tomb->hold_loads = record->pin_class; /* why: there is nothing to hold */
    fb_entry_set(tomb, record->is_unproven ? FB_ENTRY_HEAD | FB_ENTRY_DOUBT : FB_ENTRY_HEAD);
    fb_index_link(&shard->index, tomb);
    list_partial(shard, tomb);
}

/* Makes entries for all parts of a value, none of them seen yet. */
static struct fb_entry *new_value(struct fb_shard *shard, const struct fb_log_record *record,
                                  const struct fb_namespace *ns)
{
    struct fb_entry *head = NULL;
    struct fb_entry *last = NULL;
    for (uint32_t part = 0; part < record->parts; part++) {
        struct fb_entry *entry = new_entry(shard, record, ns, FB_ENTRY_RESERVED);
        fb_entry_set(entry, FB_ENTRY_MISSING);
        if (last == NULL) {
            head = entry;
            head->digest = record->digest;
            uint64_t mixed = record->group.hi ^ record->group.lo;
            head->group = (uint32_t)(mixed ^ mixed >> 32);
            fb_entry_set(head, FB_ENTRY_HEAD | FB_ENTRY_PLACED);
        } else {
            last->part_next = fb_index_number(&shard->index, entry);
            entry->chain = fb_index_number(&shard->index, head);
        }
        last = entry;
    }
    fb_index_link(&shard->index, head);
    return head;
}

/* The record tells where a part is. */
static void take_part(struct fb_shard *shard, struct fb_entry *head,
                      const struct fb_log_record *record, const struct fb_log_addr *addr)
{
    uint32_t parts;
    (void)fb_index_value_bytes(&shard->index, head, &parts);
    struct fb_entry *entry = fb_index_part(&shard->index, head, record->part);
    if (entry == NULL || parts != record->parts) {
        reject(shard, record, addr);
        return;
    }
    if (!fb_entry_is(entry, FB_ENTRY_MISSING)) {
        /* Twice there, by a copy forward that a crash cut short. Both are the same bytes. One of
         * them is not known of any more, so the value must not go without a tombstone. */
        fb_entry_set(head, FB_ENTRY_DOUBT);
        if (entry->incarnation >= addr->incarnation || entry->root != record->root) {
            reject(shard, record, addr);
            return;
        }
        struct fb_log_addr old = fb_entry_addr(entry);
        fb_log_garbage(shard->log, &old, entry->part_bytes);
    }
    fb_entry_clear(entry, FB_ENTRY_MISSING);
    entry->part_bytes = record->part_bytes;
    entry->root = record->root;
    fb_part_set_addr(shard, entry, addr);
}

/* All parts are there. */
static void come_alive(struct fb_shard *shard, struct fb_entry *head)
{
    fb_value_set_state(shard, head, FB_ENTRY_LIVE);
    count_ssd(shard, head, true);
}

static bool is_sane(const struct fb_shard *shard, const struct fb_log_record *record)
{
    return record->parts > 0 && record->parts <= FB_SHARD_PARTS_MAX &&
           record->part < record->parts && record->part_bytes > 0 &&
           record->part_bytes <= shard->chunk_bytes;
}

static void take_value(struct fb_shard *shard, const struct fb_log_record *record,
                       const struct fb_log_addr *addr, const struct fb_namespace *ns)
{
    struct fb_entry *head = fb_index_find(&shard->index, record->digest);
    bool older =
        head != NULL && (head->generation > record->generation ||
                         (head->state == FB_ENTRY_TOMB && head->generation == record->generation));
    if (!is_sane(shard, record) || older) {
        reject(shard, record, addr);
        return;
    }
    if (head != NULL && head->generation < record->generation) {
        forget(shard, head);
        head = NULL;
    }
    if (head == NULL) {
        if (fb_index_free_count(&shard->index) < record->parts) {
            shard->is_index_short = true;
            return;
        }
        head = new_value(shard, record, ns);
        take_part(shard, head, record, addr);
        if (record->parts > 1)
            list_partial(shard, head);
        else
            come_alive(shard, head);
        return;
    }
    take_part(shard, head, record, addr);
}

void fb_recover_record(void *ctx, const struct fb_log_record *record,
                       const struct fb_log_addr *addr)
{
    struct fb_shard *shard = ctx;
    if (!shard->names_loaded)
        shard->load_error = fb_space_load(shard);
    const struct fb_namespace *ns = current(shard, record);
    if (ns == NULL)
        reject(shard, record, addr);
    else if (record->kind == FB_LOG_TOMB)
        take_tomb(shard, record, ns);
    else
        take_value(shard, record, addr, ns);
}

/* ---- the end ---- */

static bool is_complete(const struct fb_shard *shard, const struct fb_entry *head)
{
    for (const struct fb_entry *entry = head; entry != NULL;
         entry = fb_index_next_part(&shard->index, entry))
        if (fb_entry_is(entry, FB_ENTRY_MISSING))
            return false;
    return true;
}

/*
 * Parts of a value are missing: it was torn, or a segment with some of its parts was given up. The
 * log's history knows the second; where that has come round it may have known it once, and then
 * nothing is claimed ("no record since").
 */
static void note_torn(struct fb_shard *shard, const struct fb_entry *head)
{
    uint64_t generation;
    uint64_t when_ms;
    uint64_t since_ms;
    const struct fb_digest digest = head->digest;
    bool given_up = fb_log_history(shard->log, &digest, &generation, &when_ms, &since_ms) &&
                    generation >= head->generation;
    if (!given_up && since_ms == 0)
        fb_history_add(&shard->history, digest, head->generation, FB_REASON_TORN, 0);
}

/* A tombstone of which one block may be all there is: it is written again before its key is put. */
static void haunt(struct fb_shard *shard, struct fb_entry *tomb)
{
    fb_part_lift(shard, tomb);
    tomb->state = FB_ENTRY_GHOST;
    tomb->hold_loads = 0;
    fb_entry_set(tomb, FB_ENTRY_PLACED);
    fb_part_settle(shard, tomb);
}

/* A tombstone says why its key is gone, if the log believes that nothing came after it. */
static void note_tomb(struct fb_shard *shard, const struct fb_entry *head)
{
    bool says_why = head->hold_loads != FB_REASON_NONE && head->hold_loads < FB_REASON_COUNT;
    if (says_why)
        fb_history_add(&shard->history, head->digest, head->generation,
                       (enum fb_reason)head->hold_loads, 0);
}

/* What is on the list of partial things is settled: tombstones and torn values go. */
static void settle_partial(struct fb_shard *shard)
{
    struct fb_entry *head;
    while ((head = fb_lru_cold(&shard->index, &shard->partial)) != NULL) {
        if (head->state == FB_ENTRY_TOMB) {
            note_tomb(shard, head);
            if (fb_entry_is(head, FB_ENTRY_DOUBT))
                haunt(shard, head);
            else
                fb_value_forget(shard, head);
        } else if (!is_complete(shard, head)) {
            note_torn(shard, head);
            fb_value_forget(shard, head);
        } else {
            come_alive(shard, head);
        }
    }
}

/* What could not be started, in one line. */
static const char *why_not(const struct fb_shard *shard, int result)
{
    if (result != 0)
        return fb_log_start_error(shard->log);
    if (shard->is_index_short)
        return "the device holds more parts of values than index_entries allows; raise "
               "index_entries, or format the device";
    if (shard->load_error == FB_TOO_BIG)
        return "the device knows more namespaces than --namespaces allows; raise it, or "
               "format the device";
    return "the namespace table of the device cannot be read; format the device";
}

void fb_recover_done(void *ctx, int result)
{
    struct fb_shard *shard = ctx;
    if (result == 0 && !shard->names_loaded)
        shard->load_error = fb_space_load(shard);
    shard->again = true;
    if (result != 0 || shard->is_index_short || shard->load_error != 0) {
        shard->start_error = why_not(shard, result);
        shard->ready = result != 0 ? result : FB_IO;
        return;
    }
    settle_partial(shard);
    shard->boot = fb_log_boot(shard->log);
    shard->ready = 1;
}
