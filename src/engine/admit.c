/*
 * admit.c - who gets space next: peers in round robin by bytes, and first in first out within a
 * peer.
 *
 * A put is accounted whole (pages, index entries, key text) before its first page is reserved, and
 * holds nothing while it waits. The put whose turn it is waits for space with everybody behind it:
 * no later, smaller one overtakes it, so none starves. Only who cannot be helped by space alone
 * (its own peer holds its share, its own namespace is at its quota) is passed over.
 *
 * Round robin by bytes: a peer is served while it owes less than a quantum; what it gets is added
 * to what it owes, and each turn pays a quantum back. A peer that comes back owes what it owed,
 * less the turns that have passed meanwhile.
 */
#include "engine/shard_private.h"

uint32_t fb_admit_parts(const struct fb_shard *shard, uint64_t value_bytes)
{
    return (uint32_t)fb_div_up(value_bytes, shard->chunk_bytes);
}

uint64_t fb_admit_pages(const struct fb_shard *shard, uint64_t value_bytes)
{
    /* A chunk is whole pages, so only the last part is rounded. */
    FB_ASSERT(shard->chunk_bytes % FB_PAGE_BYTES == 0);
    return fb_div_up(value_bytes, FB_PAGE_BYTES);
}

static uint64_t quantum(const struct fb_shard *shard)
{
    return shard->chunk_bytes;
}

/* A peer takes its place in the round. */
static void enter_round(struct fb_shard *shard, struct fb_peer *peer)
{
    if (fb_link_is_linked(&peer->turn))
        return;
    if (shard->turn_peers == 0) {
        peer->deficit_bytes = 0;
    } else {
        uint64_t turns = (shard->round - peer->deficit_round) / shard->turn_peers;
        uint64_t paid = turns > peer->deficit_bytes / quantum(shard) ? peer->deficit_bytes
                                                                     : turns * quantum(shard);
        peer->deficit_bytes -= paid;
    }
    fb_list_push_back(&shard->turns, &peer->turn);
    shard->turn_peers++;
}

static void leave_round(struct fb_shard *shard, struct fb_peer *peer)
{
    FB_ASSERT(shard->turn_peers > 0);
    fb_list_remove(&peer->turn);
    shard->turn_peers--;
    peer->deficit_round = shard->round;
}

static void count_waiting(struct fb_shard *shard, struct fb_op *op)
{
    if ((op->marks & FB_OP_WAITED) != 0)
        return;
    op->marks |= FB_OP_WAITED;
    shard->stats.put_waited_space++;
}

void fb_admit_join(struct fb_shard *shard, struct fb_op *op)
{
    FB_ASSERT((op->marks & FB_OP_QUEUED) == 0);
    if (shard->turn_peers > 0)
        count_waiting(shard, op);
    op->marks |= FB_OP_QUEUED;
    fb_list_push_back(&op->peer->queue, &op->link);
    op->peer->waiting++;
    shard->waiting_puts++;
    enter_round(shard, op->peer);
}

void fb_admit_leave(struct fb_shard *shard, struct fb_op *op)
{
    FB_ASSERT((op->marks & FB_OP_QUEUED) != 0);
    op->marks &= (uint8_t)~FB_OP_QUEUED;
    fb_list_remove(&op->link);
    FB_ASSERT(op->peer->waiting > 0 && shard->waiting_puts > 0);
    op->peer->waiting--;
    shard->waiting_puts--;
    if (op->peer->waiting == 0)
        leave_round(shard, op->peer);
}

/* What becomes of the put whose turn it is. */
enum verdict {
    GRANT,
    WAIT,
    PASS_OVER
};

static enum verdict verdict_of(enum fb_room room)
{
    return room == FB_ROOM_OK ? GRANT : WAIT;
}

static enum verdict check_quota(struct fb_shard *shard, struct fb_op *op, uint64_t pages)
{
    const struct fb_namespace *ns = fb_space_namespace(shard, op->ns);
    uint64_t quota = ns->quota_dram_bytes / FB_PAGE_BYTES;
    if (ns->quota_dram_bytes == 0)
        return GRANT;
    FB_ASSERT(pages <= fb_max_u64(quota, 1));
    enum fb_room room = fb_room_quota(shard, op->ns, fb_sub_floored(quota, pages));
    if (room != FB_ROOM_WAIT)
        return verdict_of(room);
    op->marks |= FB_OP_OVER_QUOTA;
    return PASS_OVER;
}

static bool peer_has_its_share(const struct fb_shard *shard, const struct fb_peer *peer,
                               uint64_t pages)
{
    uint64_t cap = (uint64_t)shard->cap_pages * FB_PAGE_BYTES / FB_SHARD_PEER_SHARE;
    /* What is in quarantine counts: else a stopped client's queue would turn into quarantine, grant
     * after grant. */
    uint64_t has = peer->granted_bytes + peer->quarantine_bytes;
    return has > 0 && has + pages * FB_PAGE_BYTES > cap;
}

/* True if the value would be written some day, and too much waits for that already. */
static bool is_throttled(const struct fb_shard *shard, const struct fb_op *op, uint64_t pages)
{
    if (!fb_tier_is_writable(shard) || fb_tier_persist(shard, op) == FB_PERSIST_OFF)
        return false;
    uint64_t dirty = shard->pages[FB_PAGES_DIRTY] + shard->pages[FB_PAGES_RESERVED];
    return dirty > 0 && dirty + pages > fb_tier_dirty_limit(shard);
}

/* Looks for space for a put, and makes it where that is possible. */
static enum verdict find_space(struct fb_shard *shard, struct fb_op *op)
{
    uint64_t pages = fb_admit_pages(shard, op->value_bytes);
    op->marks &= (uint8_t)~FB_OP_OVER_QUOTA;
    op->reason = FB_REASON_NONE;
    enum verdict verdict = check_quota(shard, op, pages);
    if (verdict != GRANT)
        return verdict;
    if (peer_has_its_share(shard, op->peer, pages))
        return PASS_OVER;
    /* Whatever else goes, what is in quarantine stays until its holder lets go or is proven dead:
     * this one waits for that, and others need not wait behind it. */
    if (pages + shard->pages[FB_PAGES_QUARANTINE] > shard->cap_pages)
        return PASS_OVER;
    bool throttled = is_throttled(shard, op, pages);
    bool full = fb_tier_now(shard) == FB_TIER_FULL;
    if (throttled && !full) {
        shard->dirty_limited = true;
        return WAIT;
    }
    uint64_t room = fb_sub_floored(shard->cap_pages, pages);
    if (throttled)
        room = fb_min_u64(room, fb_sub_floored(fb_tier_dirty_limit(shard), pages));
    verdict = verdict_of(fb_room_stuck(shard, room));
    if (verdict != GRANT)
        return verdict;
    verdict = verdict_of(fb_room_entries(shard, fb_admit_parts(shard, op->value_bytes),
                                         fb_keys_granules(op->key_bytes)));
    if (verdict != GRANT) {
        op->reason = FB_REASON_INDEX_FULL;
        return verdict;
    }
    return verdict_of(fb_room_pages(shard, pages));
}

/* A put of an old epoch is not served any more; the sweep would end it later. */
static bool end_stale(struct fb_shard *shard, struct fb_op *op)
{
    if (fb_space_namespace(shard, op->ns)->epoch == op->epoch)
        return false;
    fb_put_event(shard, op, FB_ATTEMPT_ON_EPOCH);
    return true;
}

static void rotate(struct fb_shard *shard, struct fb_peer *peer)
{
    fb_list_remove(&peer->turn);
    fb_list_push_back(&shard->turns, &peer->turn);
    shard->round++;
}

/* Serves the peer in front once. Returns false if everybody waits. */
static bool serve(struct fb_shard *shard, uint32_t *passed)
{
    struct fb_peer *peer = FB_LIST_ITEM(fb_list_first(&shard->turns), struct fb_peer, turn);
    if (shard->turn_peers == 1)
        peer->deficit_bytes = 0;
    if (peer->deficit_bytes >= quantum(shard)) {
        peer->deficit_bytes -= quantum(shard);
        rotate(shard, peer);
        return true;
    }
    struct fb_op *op = FB_LIST_ITEM(fb_list_first(&peer->queue), struct fb_op, link);
    if (end_stale(shard, op))
        return true;
    enum verdict verdict = find_space(shard, op);
    if (verdict == GRANT) {
        *passed = 0;
        peer->deficit_bytes += fb_put_bytes(shard, op);
        fb_admit_leave(shard, op);
        fb_put_grant(shard, op);
        return true;
    }
    if (FB_BUG(FB_BUG_BREAK_NOWAIT)) {
        fb_put_refuse(shard, op, FB_BUSY, FB_REASON_NONE);
        return true;
    }
    count_waiting(shard, op);
    shard->wants_room = true;
    if (verdict == WAIT)
        return false;
    rotate(shard, peer);
    return ++*passed < shard->turn_peers;
}

void fb_admit_pump(struct fb_shard *shard)
{
    shard->wants_room = false;
    shard->dirty_limited = false;
    shard->index_waits = false;
    uint32_t passed = 0;
    for (uint32_t step = 0; shard->turn_peers > 0; step++) {
        if (step == FB_SHARD_TURN_STEPS) {
            shard->more_work = true;
            return;
        }
        if (!serve(shard, &passed))
            return;
    }
}
