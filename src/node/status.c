/*
 * STATUS and /health as JSON.
 */
#include <inttypes.h>

#include "base/bits.h"
#include "node/node_private.h"

const char *fb_node_tier_name(enum fb_tier_state tier)
{
    static const char *const names[] = {"off", "recovering", "on", "throttled", "full", "fenced"};
    return (unsigned)tier < FB_ARRAY_COUNT(names) ? names[tier] : "unknown";
}

const char *fb_node_value_limit_name(enum fb_value_limit limit)
{
    static const char *const names[] = {
        [FB_VALUE_LIMIT_FORMAT] = "format",
        [FB_VALUE_LIMIT_POOL] = "pool",
        [FB_VALUE_LIMIT_DEVICE] = "ssd-cap",
        [FB_VALUE_LIMIT_INDEX] = "index-entries",
    };
    return (unsigned)limit < FB_ARRAY_COUNT(names) ? names[limit] : "unknown";
}

static const char *state_name(const struct fb_node_snapshot *snapshot)
{
    if (snapshot->draining)
        return "draining";
    return snapshot->ready > 0 ? "serving" : snapshot->ready == 0 ? "recovering" : "failed";
}

static void number(struct fb_node_text *text, const char *name, uint64_t value)
{
    fb_node_print(text, ",\"%s\":%" PRIu64, name, value);
}

static void pool(struct fb_node_text *text, const struct fb_node_snapshot *snapshot)
{
    const struct fb_shard_stats *shard = &snapshot->shard;
    fb_node_print(text, ",\"pool\":{\"bytes\":%" PRIu64, shard->pool_bytes);
    number(text, "faulted", snapshot->faulted_bytes);
    number(text, "huge", snapshot->huge_bytes);
    number(text, "free", shard->free_bytes);
    number(text, "clean", shard->clean_bytes);
    number(text, "dirty", shard->dirty_bytes);
    number(text, "dirty_limit", shard->dirty_limit_bytes);
    number(text, "reserved", shard->reserved_bytes);
    number(text, "quarantine", shard->quarantine_bytes);
    number(text, "pinned", shard->pinned_bytes);
    number(text, "staging", shard->staging_bytes);
    number(text, "leased", shard->leased_bytes);
    fb_node_print(text, "}");
}

static void ssd(struct fb_node_text *text, const struct fb_node_snapshot *snapshot,
                const struct fb_node_facts *facts)
{
    fb_node_print(text, ",\"ssd\":{\"state\":\"%s\",\"path\":", fb_node_tier_name(snapshot->tier));
    fb_node_print_json(text, facts->ssd_path);
    fb_node_print(text, ",\"direct\":%s", facts->is_direct ? "true" : "false");
    number(text, "cap", facts->ssd_cap_bytes);
    number(text, "floor", facts->ssd_floor_bytes);
    number(text, "file_bytes", snapshot->log.file_bytes_now);
    number(text, "used_bytes", snapshot->log.used_bytes_now);
    number(text, "live_bytes", snapshot->log.live_bytes_now);
    number(text, "segments_free", snapshot->log.segments_free_now);
    number(text, "history_since_ms", snapshot->log.history_since_ms);
    number(text, "write_bytes_per_s", snapshot->shard.device_write_bytes_per_s);
    number(text, "write_errors", snapshot->log.write_errors);
    number(text, "read_errors", snapshot->log.read_errors);
    number(text, "flush_errors", snapshot->log.flush_errors);
    fb_node_print(text, "}");
}

static void traffic(struct fb_node_text *text, const struct fb_node_snapshot *snapshot)
{
    const struct fb_shard_stats *shard = &snapshot->shard;
    fb_node_print(text, ",\"traffic\":{\"gets\":%" PRIu64, shard->gets);
    number(text, "hits_dram", shard->get_hits_dram);
    number(text, "hits_ssd", shard->get_hits_ssd);
    number(text, "puts", shard->puts);
    number(text, "lookup_keys", shard->lookups);
    number(text, "lookup_hits", shard->lookup_hits);
    number(text, "checksum_failures", shard->checksum_failures);
    number(text, "waiting_puts", shard->waiting_puts);
    number(text, "open_operations", shard->open_ops);
    number(text, "connections", snapshot->node.connections);
    fb_node_print(text, "}");
}

void fb_node_status(const struct fb_node_snapshot *snapshot, const struct fb_node_facts *facts,
                    struct fb_node_text *text)
{
    fb_node_print(text, "{\"state\":\"%s\"", state_name(snapshot));
    number(text, "node_id", facts->node_id);
    number(text, "uptime_ms", (snapshot->taken_ns - snapshot->started_ns) / FB_MS_NS);
    fb_node_print(text, ",\"io\":");
    fb_node_print_json(text, facts->io_name);
    fb_node_print(text, ",\"huge_pages_set_aside\":%s", facts->huge_pages ? "true" : "false");
    number(text, "part_bytes", facts->chunk_bytes);
    number(text, "value_bytes_max", facts->value_bytes_max);
    fb_node_print(text, ",\"value_bytes_max_set_by\":\"%s\"",
                  fb_node_value_limit_name(facts->value_limit));
    number(text, "sessions_max", facts->sessions_max);
    number(text, "memory_plan_bytes", facts->plan_bytes);
    number(text, "index_entries", snapshot->shard.entries);
    number(text, "index_entries_max", snapshot->shard.entries_max);
    number(text, "keys", snapshot->shard.keys);
    number(text, "keys_dram", snapshot->shard.keys_dram);
    number(text, "keys_ssd", snapshot->shard.keys_ssd);
    number(text, "namespaces", snapshot->shard.namespaces);
    number(text, "namespaces_max", facts->namespaces_max);
    pool(text, snapshot);
    ssd(text, snapshot, facts);
    traffic(text, snapshot);
    fb_node_print(text, "}");
}

unsigned fb_node_health(const struct fb_node_snapshot *snapshot, uint64_t turn_age_ns,
                        struct fb_node_text *text)
{
    bool stuck = turn_age_ns > FB_NODE_STUCK_NS;
    const char *why = stuck                  ? "the data thread is stuck"
                      : snapshot->draining   ? "the node goes down"
                      : snapshot->ready <= 0 ? "recovery is not over"
                      : snapshot->tier == FB_TIER_FENCED
                          ? "the device is out of service; memory alone is used"
                          : NULL;
    fb_node_print(text, "{\"ok\":%s,\"state\":\"%s\",\"tier\":\"%s\"",
                  why == NULL ? "true" : "false", state_name(snapshot),
                  fb_node_tier_name(snapshot->tier));
    number(text, "turn_age_ms", turn_age_ns / FB_MS_NS);
    number(text, "faulted_bytes", snapshot->faulted_bytes);
    if (why != NULL)
        fb_node_print(text, ",\"why\":\"%s\"", why);
    fb_node_print(text, "}\n");
    return why == NULL ? 200 : 503;
}
