/*
 * lookup.c - lookups, leases and holds; and why a key is not there.
 *
 * A lease says "readable in some tier until then". On what is on a device it keeps no DRAM busy:
 * the record is copied forward if its segment is given up. What is in DRAM only stays there while
 * it is leased, up to a share of the pool; beyond it the answer is "readable, not held".
 */
#include "engine/shard_private.h"

bool fb_lookup_past(const struct fb_shard *shard, struct fb_digest digest, struct fb_past *out)
{
    const struct fb_history_record *record = fb_history_find(&shard->history, digest);
    *out = (struct fb_past){.reason = FB_REASON_NO_RECORD};
    if (record != NULL)
        *out = (struct fb_past){.reason = (enum fb_reason)record->reason,
                                .generation = record->generation,
                                .when_ms = record->when_ms};
    uint64_t generation;
    uint64_t when_ms;
    uint64_t since_ms;
    bool given_up = shard->log != NULL && shard->ready > 0 &&
                    fb_log_history(shard->log, &digest, &generation, &when_ms, &since_ms);
    if (given_up && (record == NULL || generation > record->generation))
        *out = (struct fb_past){.reason = FB_REASON_RECLAIMED_SSD,
                                .generation = generation,
                                .when_ms = when_ms};
    return record != NULL || given_up;
}

enum fb_reason fb_lookup_reason(const struct fb_shard *shard, uint16_t ns, struct fb_digest digest)
{
    (void)ns;
    struct fb_past past;
    if (fb_put_is_writing(shard, digest))
        return FB_REASON_BEING_WRITTEN;
    (void)fb_lookup_past(shard, digest, &past);
    return past.reason;
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

static struct fb_lease_sum sum_of(const struct fb_shard *shard, const struct fb_entry *head)
{
    struct fb_lease_sum sum = {0, 0};
    for (const struct fb_entry *entry = head; entry != NULL;
         entry = fb_index_next_part(&shard->index, entry)) {
        sum.pages += fb_part_pages(entry);
        sum.parts++;
    }
    return sum;
}

static void add(struct fb_lease_sum *to, struct fb_lease_sum sum)
{
    to->pages += sum.pages;
    to->parts += sum.parts;
}

static void subtract(struct fb_lease_sum *from, struct fb_lease_sum sum)
{
    FB_ASSERT(from->pages >= sum.pages && from->parts >= sum.parts);
    from->pages -= sum.pages;
    from->parts -= sum.parts;
}

/* ---- the account of leases on what is, or will be, on the device ---- */

static struct fb_lease_sum *lease_bucket(struct fb_shard *shard, uint32_t beat)
{
    return &shard->lease_sums[beat % shard->lease_beats];
}

void fb_lease_forget(struct fb_shard *shard, struct fb_entry *head)
{
    if (!fb_entry_is(head, FB_ENTRY_LEASED))
        return;
    fb_entry_clear(head, FB_ENTRY_LEASED);
    /* A lease that is over was taken off the account when its beat had passed. */
    if (head->lease_until <= shard->lease_beat)
        return;
    struct fb_lease_sum sum = sum_of(shard, head);
    subtract(lease_bucket(shard, head->lease_until), sum);
    subtract(&shard->leased, sum);
}

static void count_lease(struct fb_shard *shard, struct fb_entry *head)
{
    struct fb_lease_sum sum = sum_of(shard, head);
    FB_ASSERT(head->lease_until > shard->lease_beat &&
              head->lease_until - shard->lease_beat < shard->lease_beats);
    fb_entry_set(head, FB_ENTRY_LEASED);
    add(lease_bucket(shard, head->lease_until), sum);
    add(&shard->leased, sum);
}

void fb_lease_tick(struct fb_shard *shard)
{
    uint32_t now = fb_shard_beat(shard);
    if (now - shard->lease_beat > shard->lease_beats)
        shard->lease_beat = now - shard->lease_beats;
    while (shard->lease_beat < now) {
        struct fb_lease_sum *bucket = lease_bucket(shard, ++shard->lease_beat);
        subtract(&shard->leased, *bucket);
        *bucket = (struct fb_lease_sum){0, 0};
    }
}

/*
 * True if the leases and `sum` more fit into their share: of the pool for what is in DRAM only,
 * else of the device and of the index. Leases that nobody asked for get a part of the share alone,
 * so that many short ones cannot keep a hold from being given.
 */
static bool fits_share(const struct fb_shard *shard, struct fb_lease_sum sum, bool loose,
                       bool is_hold)
{
    uint64_t part = is_hold ? 1 : FB_SHARD_LEASED_UNASKED;
    if (loose)
        return shard->pages[FB_PAGES_HELD] + sum.pages <=
               shard->arena.pages / (FB_SHARD_LEASED_SHARE * part);
    uint64_t device_pages = shard->config.log.capacity_bytes / FB_PAGE_BYTES;
    add(&sum, shard->leased);
    return sum.pages <= device_pages / (FB_SHARD_LEASED_SHARE_SSD * part) &&
           sum.parts <= shard->index.count / (FB_SHARD_LEASED_SHARE_SSD * part);
}

/* Leases that follow each other begin here. */
static void begin_leases(const struct fb_shard *shard, struct fb_entry *head)
{
    head->links.leased_since = (uint16_t)fb_shard_beat(shard);
}

/* True if a lease until then keeps to the total time for which a value may be leased without a gap:
 * else whoever asks again and again would keep it for ever. */
static bool fits_total(const struct fb_shard *shard, const struct fb_entry *head, uint32_t until)
{
    uint32_t now = fb_shard_beat(shard);
    uint32_t so_far = (uint16_t)((uint16_t)now - head->links.leased_since);
    uint64_t longest =
        fb_min_u64((uint64_t)shard->lease_beats * FB_SHARD_LEASE_TOTAL, FB_SHARD_LEASE_TOTAL_BEATS);
    return so_far + (uint64_t)(until - now) <= longest;
}

static void set_lease(struct fb_shard *shard, struct fb_entry *head, uint32_t until, bool loose)
{
    fb_lease_forget(shard, head);
    head->lease_until = until;
    if (loose)
        fb_value_relist(shard, head);
    else if (until > shard->lease_beat)
        count_lease(shard, head);
}

void fb_lease_inherit(struct fb_shard *shard, struct fb_entry *head, uint32_t until, uint8_t loads)
{
    head->hold_loads = loads;
    begin_leases(shard, head);
    fb_entry_set(head, FB_ENTRY_PROMISED); /* whose lease it was is not known any more */
    set_lease(shard, head, until, is_loose(shard, head));
}

/* Leases a value for so long, with so many expected loads. False if the share of leases is used up,
 * or the time for which one value may be leased. */
static bool lease(struct fb_shard *shard, struct fb_entry *head, uint32_t ms, uint32_t loads)
{
    fb_lease_tick(shard);
    bool loose = is_loose(shard, head);
    uint32_t until = fb_shard_beat_at(shard, shard->now_ns + (uint64_t)ms * FB_MS_NS) + 1;
    if (!fb_value_is_leased(shard, head)) {
        if (fb_value_is_being_given_up(shard, head))
            return false;
        if (!fits_share(shard, sum_of(shard, head), loose, loads > 0))
            return false;
        fb_entry_clear(head, FB_ENTRY_PROMISED);
        begin_leases(shard, head);
    }
    if (until > head->lease_until && !fits_total(shard, head, until))
        return false;
    if (loads == 0)
        fb_entry_set(head, FB_ENTRY_PROMISED);
    head->hold_loads = (uint8_t)fb_min_u64(head->hold_loads + (uint64_t)loads, UINT8_MAX);
    if (until > head->lease_until)
        set_lease(shard, head, until, loose);
    return true;
}

void fb_lookup_extend(struct fb_shard *shard, struct fb_entry *head)
{
    (void)lease(shard, head, shard->config.lease_ms, 0);
}

/* So many loads of a hold are over or given back. With the last one the hold ends; a short lease is
 * left only if one was promised to somebody else. */
static void unload(struct fb_shard *shard, struct fb_entry *head, uint32_t loads)
{
    if (head->hold_loads == 0)
        return;
    head->hold_loads = (uint8_t)fb_sub_floored(head->hold_loads, loads);
    if (head->hold_loads > 0)
        return;
    fb_lease_tick(shard);
    uint32_t until = fb_shard_beat(shard);
    if (fb_entry_is(head, FB_ENTRY_PROMISED))
        until =
            fb_shard_beat_at(shard, shard->now_ns + (uint64_t)shard->config.lease_ms * FB_MS_NS) +
            1;
    if (until < head->lease_until)
        set_lease(shard, head, until, is_loose(shard, head));
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
        if (op->n - op->next_part > FB_SHARD_PREFETCH_BUCKETS)
            fb_index_prefetch(&shard->index, op->digests[op->next_part + FB_SHARD_PREFETCH_BUCKETS],
                              false);
        if (op->n - op->next_part > FB_SHARD_PREFETCH_ENTRIES)
            fb_index_prefetch(&shard->index, op->digests[op->next_part + FB_SHARD_PREFETCH_ENTRIES],
                              true);
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
