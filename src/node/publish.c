/*
 * Snapshots: what the data thread tells all others about itself.
 *
 * The lock is held for one copy of a few KiB, by either side. The data thread never waits for it:
 * if a reader holds it, this snapshot is skipped and the next one will do.
 */
#include "node/node_private.h"

static void take(struct fb_node *node, uint64_t now_ns, struct fb_node_snapshot *out)
{
    *out = (struct fb_node_snapshot){
        .taken_ns = now_ns,
        .started_ns = node->started_ns,
        .ready = fb_shard_ready(node->shard),
        .draining = node->draining,
        .tier = fb_shard_tier(node->shard),
        .faulted_bytes = node->told_faulted,
        .huge_bytes = atomic_load(&node->pool.huge_bytes),
        .io = node->io->stats,
        .node = node->stats,
        .log_lines_suppressed = node->logger.suppressed_total,
        .has_device = node->has_device,
        .is_direct = node->has_device && node->device.is_direct,
        .memory_plan_bytes = node->facts.plan_bytes,
    };
    out->node.big_frames = node->big_frames;
    fb_shard_stats(node->shard, &out->shard);
    fb_shard_log_stats(node->shard, &out->log);
    fb_proto_server_stats(node->server, &out->proto);
}

void fb_node_publish(struct fb_node *node, uint64_t now_ns, bool force)
{
    if (!force && now_ns - node->published_ns < FB_NODE_PUBLISH_NS)
        return;
    struct fb_node_snapshot snapshot;
    take(node, now_ns, &snapshot);
    if (pthread_mutex_trylock(&node->snapshot_lock) != 0)
        return;
    node->snapshot = snapshot;
    pthread_mutex_unlock(&node->snapshot_lock);
    node->published_ns = now_ns;
    node->unpublished = false;
}

void fb_node_snapshot_get(struct fb_node *node, struct fb_node_snapshot *out)
{
    pthread_mutex_lock(&node->snapshot_lock);
    *out = node->snapshot;
    pthread_mutex_unlock(&node->snapshot_lock);
}
