/*
 * tier.c - the state of the SSD tier as the shard sees it, how much may be dirty, and how fast the
 * device is.
 *
 *   OFF         no device. Values may be dropped; `through` answers NOT_PERSISTED, with the value
 * cached. RECOVERING  operations are parked. ON          nothing dirty is dropped. `through` waits
 * for its flush. THROTTLED   as ON; puts wait for the cleaner, since the dirty limit is reached.
 * Heals by itself. FULL        no room on the file system. `through` waits to its deadline; dirty
 * values that nobody waits for may be dropped when puts need room (EVICTED_DIRTY). Heals when there
 * is room. FENCED      too many errors. The device is not used: what is on it only is a miss
 * (DEVICE_FENCED), dirty values may be dropped, `through` answers IO. Ends with a restart.
 */
#include "engine/shard_private.h"

enum fb_tier_state fb_tier_now(const struct fb_shard *shard)
{
    return shard->log == NULL ? FB_TIER_OFF : fb_log_state(shard->log);
}

enum fb_tier_state fb_shard_tier(const struct fb_shard *shard)
{
    enum fb_tier_state state = fb_tier_now(shard);
    return state == FB_TIER_ON && shard->dirty_limited ? FB_TIER_THROTTLED : state;
}

bool fb_tier_is_writable(const struct fb_shard *shard)
{
    enum fb_tier_state state = fb_tier_now(shard);
    return state != FB_TIER_OFF && state != FB_TIER_FENCED;
}

bool fb_tier_is_readable(const struct fb_shard *shard)
{
    enum fb_tier_state state = fb_tier_now(shard);
    return state != FB_TIER_OFF && state != FB_TIER_FENCED && state != FB_TIER_RECOVERING;
}

enum fb_persist fb_tier_persist(const struct fb_shard *shard, const struct fb_op *op)
{
    return (enum fb_persist)(op->persist == FB_PERSIST_DEFAULT ? shard->config.persist
                                                               : op->persist);
}

uint64_t fb_tier_dirty_limit(const struct fb_shard *shard)
{
    const uint64_t *pages = shard->pages;
    uint64_t others = pages[FB_PAGES_HELD] + pages[FB_PAGES_PINNED] + pages[FB_PAGES_QUARANTINE];
    uint64_t left = fb_sub_floored(shard->cap_pages, others);
    uint64_t drained = shard->rate_bytes_per_s / 1000 * shard->config.drain_ms / FB_PAGE_BYTES;
    uint64_t least = shard->chunk_bytes / FB_PAGE_BYTES;
    return fb_min_u64(left, fb_max_u64(drained, least));
}

void fb_tier_pulse(struct fb_shard *shard)
{
    if (shard->rate_busy)
        shard->rate_busy_ns += fb_sub_floored(shard->now_ns, shard->rate_from_ns);
    shard->rate_from_ns = shard->now_ns;
    /* Only while the device has as much as it may get does its pace say how fast it is. */
    shard->rate_busy = shard->clean_bytes_in_flight >= fb_clean_bytes_max(shard) / 2;
}

void fb_tier_measure(struct fb_shard *shard, uint64_t bytes)
{
    fb_tier_pulse(shard);
    if (!shard->rate_busy)
        return;
    shard->rate_bytes += bytes;
    if (shard->rate_busy_ns < FB_SHARD_RATE_WINDOW_NS)
        return;
    uint64_t rate =
        (uint64_t)((unsigned __int128)shard->rate_bytes * FB_SEC_NS / shard->rate_busy_ns);
    shard->rate_bytes_per_s = (shard->rate_bytes_per_s * 3 + rate) / 4;
    shard->rate_bytes = 0;
    shard->rate_busy_ns = 0;
}

void fb_tier_check(struct fb_shard *shard)
{
    if (shard->was_fenced || fb_tier_now(shard) != FB_TIER_FENCED)
        return;
    shard->was_fenced = true;
    fb_clean_give_up(shard);
    shard->claim_sweep_left = shard->claims.count;
}
