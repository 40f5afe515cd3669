/*
 * config.c - the configuration of a shard: defaults, checks, and the memory that follows from it.
 */
#include <stdarg.h>
#include <stdio.h>

#include "engine/shard_private.h"

/* ---- checks ---- */

__attribute__((format(printf, 3, 4))) static int refuse(char *why, size_t why_bytes,
                                                        const char *format, ...)
{
    if (why != NULL && why_bytes > 0) {
        va_list args;
        va_start(args, format);
        vsnprintf(why, why_bytes, format, args);
        va_end(args);
    }
    return FB_BAD_ARGUMENT;
}

static void set_default_u32(uint32_t *field, uint64_t value)
{
    if (*field == 0)
        *field = (uint32_t)value;
}

static uint64_t clamp(uint64_t value, uint64_t least, uint64_t most)
{
    return fb_min_u64(fb_max_u64(value, least), most);
}

uint32_t fb_config_chunk_bytes(const struct fb_shard_config *config)
{
    struct fb_log_geometry geometry;
    if (config->devices > 0) {
        if (fb_log_geometry(config->log.capacity_bytes, &geometry) != 0)
            return 0;
        return geometry.chunk_bytes;
    }
    uint64_t share = config->pool_bytes / FB_SHARD_POOL_CHUNKS_MIN;
    if (share < FB_PAGE_BYTES)
        return 0;
    return (uint32_t)fb_min_u64(FB_CHUNK_BYTES_MAX, UINT64_C(1) << fb_log2_floor(share));
}

static void fill_limits(struct fb_shard_config *config)
{
    uint64_t pool = config->pool_bytes;
    uint64_t device = config->devices > 0 ? config->log.capacity_bytes : 0;
    set_default_u32(&config->index_entries, clamp((pool + device) / FB_SHARD_ENTRY_SHARE,
                                                  FB_SHARD_HISTORY, FB_SHARD_ENTRIES_MAX));
    set_default_u32(&config->drain_ms, FB_SHUTDOWN_NS / FB_MS_NS);
    set_default_u32(&config->watermark_pct, FB_SHARD_WATERMARK_PCT);
    set_default_u32(&config->grant_stall_ms, FB_GRANT_EXPIRY_NS / FB_MS_NS);
    set_default_u32(&config->lease_ms, FB_SHARD_LEASE_MS);
    set_default_u32(&config->hold_ms_max, FB_SHARD_HOLD_MS);
    set_default_u32(&config->peers_max, FB_SHARD_PEERS);
    set_default_u32(&config->history_entries, FB_SHARD_HISTORY);
    set_default_u32(&config->namespaces_max, FB_SHARD_NAMESPACES);
    set_default_u32(&config->puts_open_max,
                    clamp(pool / FB_PAGE_BYTES, FB_SHARD_PUTS_OPEN_MIN, FB_SHARD_PUTS_OPEN));
    set_default_u32(&config->key_granules, clamp(pool / FB_SHARD_KEY_SHARE, FB_SHARD_KEY_BYTES_MIN,
                                                 FB_SHARD_KEY_BYTES_MAX) /
                                               FB_KEYS_GRANULE_BYTES);
    set_default_u32(&config->write_items,
                    clamp(pool / FB_SHARD_ITEM_SHARE, FB_SHARD_WRITE_ITEMS_MIN,
                          FB_SHARD_WRITE_ITEMS_MAX));
    set_default_u32(&config->read_slots, FB_SHARD_READ_SLOTS);
    set_default_u32(&config->peer_waiting_max, FB_SHARD_PEER_WAITING);
    if (config->device_write_bytes_per_s == 0)
        config->device_write_bytes_per_s = FB_SHARD_DEVICE_RATE;
    if (config->persist == FB_PERSIST_DEFAULT)
        config->persist = config->devices > 0 ? FB_PERSIST_BEHIND : FB_PERSIST_OFF;
}

static void fill_log(struct fb_shard_config *config, uint32_t chunk_bytes)
{
    struct fb_log_config *log = &config->log;
    set_default_u32(&log->io_errors_to_fence, FB_SHARD_LOG_ERRORS);
    set_default_u32(&log->read_depth, FB_SHARD_LOG_READ_DEPTH);
    set_default_u32(&log->write_depth, FB_SHARD_LOG_WRITE_DEPTH);
    set_default_u32(&log->batch_bytes, fb_max_u64(FB_SHARD_LOG_BATCH_BYTES, chunk_bytes));
    set_default_u32(&log->tombs_max, clamp(config->index_entries / FB_SHARD_INDEX_SLACK,
                                           FB_SHARD_LOG_TOMBS_MIN, FB_SHARD_LOG_TOMBS_MAX));
    set_default_u32(&log->reserve_segments, FB_SHARD_LOG_RESERVE);
    if (log->linger_ns == 0)
        log->linger_ns = FB_SHARD_LOG_LINGER_NS;
    if (log->shards == 0)
        log->shards = 1;
    /* The pool is not granted from before recovery is over, so that its beginning is free for it.
     */
    log->stage_base = 0;
    log->stage_bytes =
        (uint32_t)fb_min_u64((uint64_t)FB_LOG_WALKERS * chunk_bytes, config->pool_bytes);
    log->stage_bytes -= log->stage_bytes % chunk_bytes;
}

static int check_pool(const struct fb_shard_config *config, uint32_t chunk_bytes, char *why,
                      size_t why_bytes)
{
    if (config->pool_bytes == 0 || config->pool_bytes % FB_EXTENT_BYTES_MAX != 0 ||
        config->pool_bytes > FB_SHARD_POOL_BYTES_MAX)
        return refuse(
            why, why_bytes,
            "--pool of %llu bytes: must be a multiple of 2 MiB, from 2 MiB to 4 TiB; choose one",
            (unsigned long long)config->pool_bytes);
    if (chunk_bytes == 0)
        return refuse(why, why_bytes,
                      "--ssd-cap of %llu bytes: at least 16 MiB is needed, in multiples of "
                      "4 KiB",
                      (unsigned long long)config->log.capacity_bytes);
    if (config->pool_bytes < (uint64_t)FB_SHARD_POOL_CHUNKS_MIN * chunk_bytes)
        return refuse(
            why, why_bytes,
            "--pool of %llu bytes: a --ssd-cap of this size moves values in parts of %u "
            "bytes, and the pool must hold at least %u of them; make the pool larger, or the "
            "capacity smaller",
            (unsigned long long)config->pool_bytes, chunk_bytes, FB_SHARD_POOL_CHUNKS_MIN);
    return 0;
}

static int check_limits(const struct fb_shard_config *config, char *why, size_t why_bytes)
{
    if (config->index_entries < FB_SHARD_ENTRIES_MIN ||
        config->index_entries > FB_SHARD_ENTRIES_MAX)
        return refuse(why, why_bytes,
                      "--index-entries is %u: must be from %u to %u; choose a number there, or 0",
                      config->index_entries, FB_SHARD_ENTRIES_MIN, FB_SHARD_ENTRIES_MAX);
    if (config->watermark_pct > 100)
        return refuse(why, why_bytes, "--watermark is %u %%: must be at most 100",
                      config->watermark_pct);
    if (config->hold_ms_max > FB_SHARD_HOLD_MS_MAX || config->lease_ms > config->hold_ms_max)
        return refuse(why, why_bytes,
                      "--lease-ms is %u and --hold-ms %u: a lease must not be longer than a "
                      "hold, and a hold at most %u ms; make the lease shorter or the holds longer",
                      config->lease_ms, config->hold_ms_max, FB_SHARD_HOLD_MS_MAX);
    if (config->namespaces_max > FB_SHARD_NAMESPACES_MAX)
        return refuse(why, why_bytes, "--namespaces is %u: must be at most %u; choose fewer",
                      config->namespaces_max, FB_SHARD_NAMESPACES_MAX);
    if (config->write_items < FB_SHARD_WRITE_ITEMS_MIN ||
        config->read_slots < FB_SHARD_READ_SLOTS_MIN)
        return refuse(why, why_bytes, "write_items %u, read_slots %u: at least %u and %u",
                      config->write_items, config->read_slots, FB_SHARD_WRITE_ITEMS_MIN,
                      FB_SHARD_READ_SLOTS_MIN);
    if (config->key_granules < fb_keys_granules(FB_KEY_BYTES_MAX))
        return refuse(why, why_bytes, "key_granules %u: one key of %u bytes needs %u",
                      config->key_granules, FB_KEY_BYTES_MAX, fb_keys_granules(FB_KEY_BYTES_MAX));
    return 0;
}

int fb_shard_config_check(struct fb_shard_config *config, char *why, size_t why_bytes)
{
    if (config->devices > 1)
        return refuse(why, why_bytes, "%u devices: a shard has one at most today", config->devices);
    if (config->persist > FB_PERSIST_THROUGH)
        return refuse(why, why_bytes, "persist mode %u is unknown", config->persist);
    uint32_t chunk_bytes = fb_config_chunk_bytes(config);
    int result = check_pool(config, chunk_bytes, why, why_bytes);
    if (result != 0)
        return result;
    fill_limits(config);
    if (config->devices > 0)
        fill_log(config, chunk_bytes);
    return check_limits(config, why, why_bytes);
}

/* ---- memory ---- */

static void make_writes(struct fb_shard *shard, struct fb_region *region)
{
    uint32_t count = shard->config.write_items;
    /* Slots are large and mostly vectors that are written before they are read: not cleared. */
    shard->writes =
        fb_region_take_array(region, count, sizeof(struct fb_write), _Alignof(struct fb_write));
    shard->write_hashes = FB_REGION_NEW(region, struct fb_io_req, count);
    fb_list_init(&shard->writes_free);
    fb_list_init(&shard->copies);
    fb_list_init(&shard->copies_out);
    shard->writes_free_count = count;
    for (uint32_t i = 0; i < count && !fb_region_is_counting(region); i++) {
        shard->writes[i].kind = FB_WRITE_FREE;
        fb_link_init(&shard->writes[i].link);
        fb_list_push_back(&shard->writes_free, &shard->writes[i].link);
    }
}

static void make_reads(struct fb_shard *shard, struct fb_region *region)
{
    uint32_t count = shard->config.read_slots;
    shard->reads =
        fb_region_take_array(region, count, sizeof(struct fb_read), _Alignof(struct fb_read));
    shard->read_hashes = FB_REGION_NEW(region, struct fb_io_req, count);
    fb_list_init(&shard->reads_free);
    fb_list_init(&shard->reads_done);
    shard->reads_free_count = count;
    for (uint32_t i = 0; i < count && !fb_region_is_counting(region); i++) {
        shard->reads[i].kind = FB_READ_FREE;
        shard->reads[i].hashing = false;
        fb_link_init(&shard->reads[i].link);
        fb_list_push_back(&shard->reads_free, &shard->reads[i].link);
    }
}

static void make_lists(struct fb_shard *shard, struct fb_region *region)
{
    fb_lru_init(&shard->dirty);
    fb_lru_init(&shard->lazy);
    fb_lru_init(&shard->ghosts);
    fb_lru_init(&shard->partial);
    for (unsigned i = 0; i < FB_SHARD_HELD_SLOTS; i++)
        fb_lru_init(&shard->held[i]);
    struct fb_list *lists[] = {&shard->turns,         &shard->parked,      &shard->events,
                               &shard->staging_queue, &shard->looking,     &shard->listing,
                               &shard->kill_queue,    &shard->names_queue, &shard->hash_out};
    for (unsigned i = 0; i < FB_ARRAY_COUNT(lists); i++)
        fb_list_init(lists[i]);
    shard->audit_bits =
        FB_REGION_NEW(region, uint64_t, fb_div_up(shard->arena.pages, FB_SHARD_AUDIT_WORD_BITS));
    /* As long as the longest hold, and a bit for rounding. */
    shard->lease_beats =
        (uint32_t)(((uint64_t)shard->config.hold_ms_max * FB_MS_NS >> FB_BEAT_SHIFT) +
                   FB_SHARD_LEASE_SPARE);
    shard->lease_sums = FB_REGION_NEW(region, struct fb_lease_sum, shard->lease_beats);
    shard->waits = FB_REGION_NEW(region, struct fb_list, FB_SHARD_WAIT_BUCKETS);
    shard->notices = FB_REGION_NEW(region, struct fb_notice, FB_SHARD_NOTICES);
    for (unsigned i = 0; i < FB_SHARD_WAIT_BUCKETS && !fb_region_is_counting(region); i++)
        fb_list_init(&shard->waits[i]);
}

/* A limit on values counts if it is below those before it. */
static void limit_values(struct fb_shard *shard, uint64_t bytes, enum fb_value_limit limit)
{
    if (bytes >= shard->value_bytes_max)
        return;
    shard->value_bytes_max = bytes;
    shard->value_limit = limit;
}

static void make_sizes(struct fb_shard *shard)
{
    const struct fb_shard_config *config = &shard->config;
    uint64_t pool = config->pool_bytes;
    shard->chunk_bytes = fb_config_chunk_bytes(config);
    uint64_t staging = fb_max_u64((uint64_t)FB_SHARD_STAGING_CHUNKS * shard->chunk_bytes,
                                  pool / FB_SHARD_STAGING_SHARE);
    staging = fb_min_u64(staging, pool / FB_SHARD_STAGING_SHARE_MAX);
    shard->staging_pages = (uint32_t)(staging / FB_PAGE_BYTES);
    FB_ASSERT(staging >= shard->chunk_bytes && staging < pool);
    shard->value_bytes_max = FB_VALUE_BYTES_MAX;
    shard->value_limit = FB_VALUE_LIMIT_FORMAT;
    limit_values(shard, pool - (uint64_t)shard->staging_pages * FB_PAGE_BYTES, FB_VALUE_LIMIT_POOL);
    shard->value_bytes_of_pool = shard->value_bytes_max;
    if (config->devices > 0)
        limit_values(shard, config->log.capacity_bytes / FB_SHARD_VALUE_SSD_SHARE,
                     FB_VALUE_LIMIT_DEVICE);
    uint64_t parts = config->index_entries / 2;
    limit_values(shard, parts * shard->chunk_bytes, FB_VALUE_LIMIT_INDEX);
    /* The parts that a value can have at all come from the device's geometry, or the pool's. */
    limit_values(shard, (uint64_t)FB_SHARD_PARTS_MAX * shard->chunk_bytes,
                 config->devices > 0 ? FB_VALUE_LIMIT_DEVICE : FB_VALUE_LIMIT_POOL);
    shard->rate_bytes_per_s = config->device_write_bytes_per_s;
}

/* Takes what a shard has besides its struct and its log. */
static void take_tables(struct fb_shard *shard, struct fb_region *region)
{
    const struct fb_shard_config *config = &shard->config;
    fb_index_init(&shard->index, config->index_entries, region);
    fb_arena_init(&shard->arena, config->pool_bytes, region);
    fb_keys_init(&shard->keys, config->key_granules, region);
    fb_history_init(&shard->history, config->history_entries, region);
    fb_claims_init(&shard->claims, config->puts_open_max, region);
    fb_space_init(shard, region);
    make_writes(shard, region);
    make_reads(shard, region);
    make_lists(shard, region);
}

struct fb_shard *fb_shard_carve(const struct fb_shard_config *config, struct fb_region *region,
                                void *meta, const struct fb_log_owner *owner)
{
    struct fb_shard *shard = FB_REGION_NEW(region, struct fb_shard, 1);
    shard->config = *config;
    make_sizes(shard);
    take_tables(shard, region);
    if (config->devices > 0) {
        struct fb_log_owner mine = *owner;
        mine.ctx = shard;
        size_t bytes = fb_log_footprint(&config->log);
        struct fb_region part;
        fb_region_init(&part, fb_region_take(region, bytes, FB_CACHE_LINE), bytes);
        shard->log = fb_log_init(&config->log, &part, meta, &mine);
    }
    return shard;
}

size_t fb_shard_footprint(const struct fb_shard_config *config)
{
    struct fb_region region;
    struct fb_shard counting;
    memset(&counting, 0, sizeof(counting));
    counting.config = *config;
    fb_region_init_counting(&region);
    (void)FB_REGION_NEW(&region, struct fb_shard, 1);
    take_tables(&counting, &region);
    if (config->devices > 0)
        (void)fb_region_take(&region, fb_log_footprint(&config->log), FB_CACHE_LINE);
    return region.used_bytes;
}

size_t fb_shard_meta_footprint(const struct fb_shard_config *config)
{
    return config->devices > 0 ? fb_log_meta_footprint(&config->log) : 0;
}
