/*
 * stats.c - figures, and what became of one key.
 */
#include "engine/shard_private.h"

static uint64_t bytes_of(uint64_t pages)
{
    return pages * FB_PAGE_BYTES;
}

void fb_shard_stats(const struct fb_shard *shard, struct fb_shard_stats *out)
{
    const uint64_t *pages = shard->pages;
    *out = shard->stats;
    out->pool_bytes = shard->config.pool_bytes;
    out->free_bytes = bytes_of(shard->arena.free_pages);
    out->clean_bytes = bytes_of(pages[FB_PAGES_CLEAN]);
    out->dirty_bytes = bytes_of(pages[FB_PAGES_DIRTY]);
    out->reserved_bytes = bytes_of(pages[FB_PAGES_RESERVED]);
    out->quarantine_bytes = bytes_of(pages[FB_PAGES_QUARANTINE]);
    out->pinned_bytes = bytes_of(pages[FB_PAGES_PINNED]);
    out->staging_bytes = bytes_of(pages[FB_PAGES_STAGING]);
    out->leased_bytes = bytes_of(pages[FB_PAGES_HELD]);
    out->dirty_limit_bytes = bytes_of(fb_tier_dirty_limit(shard));
    out->entries = shard->index.used;
    out->entries_max = shard->index.count;
    out->keys = shard->index.keys;
    out->waiting_puts = shard->waiting_puts;
    out->open_ops = shard->open_ops;
    out->namespaces = shard->namespace_count;
    out->device_write_bytes_per_s = shard->log == NULL ? 0 : shard->rate_bytes_per_s;
    out->keys_dram = shard->keys_dram;
    out->keys_ssd = shard->keys_ssd;
}

void fb_shard_log_stats(const struct fb_shard *shard, struct fb_log_stats *out)
{
    if (shard->log == NULL)
        *out = (struct fb_log_stats){0};
    else
        fb_log_stats(shard->log, out);
}

/* ---- explain ---- */

static void explain_present(const struct fb_shard *shard, struct fb_entry *head,
                            struct fb_explain *out)
{
    unsigned tiers = fb_value_tiers(shard, head);
    tiers |= fb_value_is_durable(shard, head) ? 0 : 1 << 2;
    tiers |= fb_value_is_leased(shard, head) ? 1 << 4 : 0;
    out->present = true;
    out->reason = FB_REASON_NONE;
    out->tiers = (uint8_t)tiers;
    out->value_bytes = fb_index_value_bytes(&shard->index, head, NULL);
    out->generation = head->generation;
    if (fb_entry_has_addr(head))
        out->addr = fb_entry_addr(head);
}

static void explain_absent(const struct fb_shard *shard, const struct fb_digest *digest,
                           struct fb_explain *out)
{
    struct fb_past past;
    (void)fb_lookup_past(shard, *digest, &past);
    out->since_ms = shard->history.since_ms;
    out->reason = past.reason;
    out->generation = past.generation;
    out->when_ms = past.when_ms;
}

void fb_shard_explain(const struct fb_shard *shard, uint16_t ns, const struct fb_digest *digest,
                      struct fb_explain *out)
{
    *out = (struct fb_explain){.reason = FB_REASON_NO_RECORD};
    if (fb_space_namespace(shard, ns) == NULL) {
        out->reason = FB_REASON_NAMESPACE_UNKNOWN;
        return;
    }
    struct fb_entry *head = fb_value_find(shard, *digest);
    if (head != NULL)
        explain_present(shard, head, out);
    else
        explain_absent(shard, digest, out);
    if (fb_put_is_writing(shard, *digest)) {
        out->tiers |= 1 << 3;
        if (!out->present && out->reason == FB_REASON_NO_RECORD)
            out->reason = FB_REASON_BEING_WRITTEN;
    }
}
