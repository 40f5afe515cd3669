/*
 * listing.c - key texts of a namespace, by cursor.
 *
 * First those that are not on the device yet, from the index, which has their texts; then those on
 * the device, whose texts the log reads from its descriptors, segment by segment. In this order a
 * value that is being persisted is not missed: it has its text, and is told by the first half, or
 * it is durable, and the second half, which begins later, finds it; it may be told twice. What is
 * missed is a key without text that leaves a segment in the second half for a place that was
 * passed: by an upsert, or copied forward when its segment is given up.
 *
 * Cursor: 0, or the entry to go on with plus 1; with DEVICE set, segment and ordinal of the log's
 * scan.
 */
#include "engine/shard_private.h"

#define DEVICE        (UINT64_C(1) << 62)
#define SEGMENT_SHIFT 32
#define AT_END        UINT64_MAX

void fb_listing_start(struct fb_shard *shard, struct fb_op *op)
{
    if (op->list_out == NULL || op->list_bytes < FB_KEY_BYTES_MAX + sizeof(uint16_t)) {
        fb_op_end(shard, op, FB_BUFFER_TOO_SMALL, FB_REASON_NONE);
        return;
    }
    op->state = FB_OP_STATE_LISTING;
    op->next_off = 0; /* bytes of list_out that are used */
    fb_wheel_set(&shard->wheel, &op->timer, op->deadline_ns);
    fb_list_push_back(&shard->listing, &op->link);
}

static void finish(struct fb_shard *shard, struct fb_op *op, int result)
{
    op->list_bytes = (uint32_t)op->next_off;
    fb_op_end(shard, op, result, FB_REASON_NONE);
}

/* Adds a key; false if it does not fit. */
static bool add_key(struct fb_op *op, const uint8_t *key, uint16_t key_bytes)
{
    if (op->next_off + sizeof(uint16_t) + key_bytes > op->list_bytes)
        return false;
    uint8_t *out = op->list_out + op->next_off;
    out[0] = (uint8_t)key_bytes;
    out[1] = (uint8_t)(key_bytes >> 8);
    memcpy(out + sizeof(uint16_t), key, key_bytes);
    op->next_off += sizeof(uint16_t) + key_bytes;
    return true;
}

static bool is_listed(const struct fb_shard *shard, const struct fb_op *op,
                      const struct fb_entry *head)
{
    return head->space == fb_space_namespace(shard, op->ns)->space &&
           (head->state == FB_ENTRY_LIVE || head->state == FB_ENTRY_DOOMED);
}

/* Goes on in the index. Returns false if the answer is full or the turn is over. */
static bool list_index(struct fb_shard *shard, struct fb_op *op)
{
    uint8_t key[FB_KEY_BYTES_MAX];
    for (uint32_t steps = 0; op->list_cursor < shard->index.count; steps++) {
        if (steps == FB_SHARD_TURN_LIST) {
            shard->more_work = true;
            return false;
        }
        const struct fb_entry *head = &shard->index.entries[op->list_cursor];
        bool hashed = head->state != FB_ENTRY_FREE && fb_entry_is(head, FB_ENTRY_HASHED);
        uint32_t slot =
            hashed && is_listed(shard, op, head) ? fb_index_key(&shard->index, head) : FB_KEYS_NONE;
        if (slot != FB_KEYS_NONE) {
            struct fb_keys_head text;
            fb_keys_get(&shard->keys, slot, &text, key);
            if (!add_key(op, key, text.key_bytes)) {
                fb_list_remove(&op->link);
                finish(shard, op, FB_OK);
                return false;
            }
        }
        op->list_cursor++;
    }
    op->list_cursor = shard->log != NULL ? DEVICE : AT_END;
    return true;
}

/* ---- on the device ---- */

static bool scanned(void *ctx, const struct fb_log_record *record, const struct fb_log_addr *addr)
{
    struct fb_shard *shard = ctx;
    struct fb_op *op = shard->scan_op;
    if (op == NULL)
        return false;
    const struct fb_entry *head = fb_value_find(shard, record->digest);
    bool shown = head != NULL && record->part == 0 && fb_entry_is_at(head, addr) &&
                 is_listed(shard, op, head) && fb_value_is_durable(shard, head);
    return !shown || add_key(op, record->key, record->key_bytes);
}

static void scan_done(void *ctx, struct fb_log_scan *scan, int result)
{
    struct fb_shard *shard = ctx;
    struct fb_op *op = shard->scan_op;
    shard->scan_busy = false;
    shard->scan_op = NULL;
    shard->again = true;
    if (op == NULL)
        return;
    if (scan->segment == UINT32_MAX)
        op->list_cursor = AT_END;
    else
        op->list_cursor = DEVICE | (uint64_t)scan->segment << SEGMENT_SHIFT | scan->ordinal;
    if (result != 0 || op->list_cursor == AT_END || op->next_off > 0)
        finish(shard, op, result != 0 ? FB_IO : FB_OK);
    else
        fb_list_push_back(&shard->listing, &op->link);
}

static void start_scan(struct fb_shard *shard, struct fb_op *op)
{
    fb_list_remove(&op->link);
    shard->scan_busy = true;
    shard->scan_op = op;
    shard->scan = (struct fb_log_scan){
        .segment = (uint32_t)((op->list_cursor & ~DEVICE) >> SEGMENT_SHIFT),
        .ordinal = (uint32_t)op->list_cursor,
        .record = scanned,
        .done = scan_done,
        .ctx = shard,
    };
    fb_link_init(&shard->scan.link);
    fb_log_scan(shard->log, shard->now_ns, &shard->scan);
}

void fb_listing_pump(struct fb_shard *shard)
{
    struct fb_link *link;
    while ((link = fb_list_first(&shard->listing)) != NULL) {
        struct fb_op *op = FB_LIST_ITEM(link, struct fb_op, link);
        if (op->list_cursor < DEVICE && !list_index(shard, op))
            return;
        if (op->list_cursor == AT_END) {
            fb_list_remove(link);
            finish(shard, op, FB_OK);
        } else if (!fb_tier_is_readable(shard)) {
            op->list_cursor = AT_END;
        } else if (shard->scan_busy) {
            return;
        } else {
            start_scan(shard, op);
        }
    }
}

void fb_listing_leave(struct fb_shard *shard, struct fb_op *op, int result)
{
    if (shard->scan_op == op)
        shard->scan_op = NULL;
    else
        fb_list_remove(&op->link);
    finish(shard, op, result);
}
