/* A shard, a device and a client in little; see tiny.h. */
#include "test/lib/tiny.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/bits.h"
#include "base/region.h"

#define START_NS     FB_SEC_NS
#define WALL_MS      UINT64_C(1700000000000)
#define DEADLINE_NS  (10 * FB_SEC_NS)
#define START_MAX_NS (300 * FB_SEC_NS)
#define CLOSE_MAX_NS (60 * FB_SEC_NS)
#define LEAVE_MAX_NS (60 * FB_SEC_NS)
#define ROUNDS_MAX   20000
#define REAP         32
#define FIELDS       "tiny"
#define COUNTER_BITS 40
#define NO_VERSION   0

void tiny_wrong(struct tiny *tiny, const char *format, ...)
{
    if (tiny->wrong[0] != '\0')
        return;
    va_list list;
    va_start(list, format);
    vsnprintf(tiny->wrong, sizeof(tiny->wrong), format, list);
    va_end(list);
    if (tiny->verbose)
        fprintf(stderr, "WRONG: %s\n", tiny->wrong);
}

static uint64_t wall_ms(const struct tiny *tiny)
{
    return WALL_MS + tiny->now_ns / FB_MS_NS;
}

/* ---- making one ---- */

static void fill_config(struct tiny *tiny)
{
    struct fb_shard_config *config = &tiny->config;
    if (config->pool_bytes == 0)
        config->pool_bytes = FB_MIB(2);
    if (config->index_entries == 0)
        config->index_entries = 512;
    if (config->history_entries == 0)
        config->history_entries = 128;
    if (config->namespaces_max == 0)
        config->namespaces_max = 4;
    if (config->devices != 0 && config->log.capacity_bytes == 0)
        config->log.capacity_bytes = FB_MIB(16);
    config->peers_max = 4;
    config->log.node_id = 7;
    config->log.shards = 1;
    struct fb_sim_config *device = &tiny->device;
    device->arena_bytes = config->pool_bytes;
    device->device_count = 1;
    if (device->device_bytes[0] == 0)
        device->device_bytes[0] = FB_MIB(24);
    if (device->meta_blocks_max == 0)
        device->meta_blocks_max = 8192;
    if (tiny->deadline_ns == 0)
        tiny->deadline_ns = DEADLINE_NS;
}

bool tiny_open(struct tiny *tiny)
{
    fill_config(tiny);
    if (fb_shard_config_check(&tiny->config, tiny->wrong, sizeof(tiny->wrong)) != 0)
        return false;
    tiny->memory_bytes = fb_align_up(fb_shard_footprint(&tiny->config), FB_PAGE_BYTES);
    tiny->meta_bytes =
        fb_align_up(fb_max_u64(fb_shard_meta_footprint(&tiny->config), FB_PAGE_BYTES),
                    FB_PAGE_BYTES);
    tiny->memory = aligned_alloc(FB_PAGE_BYTES, tiny->memory_bytes);
    tiny->meta = aligned_alloc(FB_PAGE_BYTES, tiny->meta_bytes);
    tiny->device.meta = tiny->meta;
    tiny->device.meta_bytes = tiny->meta_bytes;
    if (tiny->memory == NULL || tiny->meta == NULL || fb_sim_open(&tiny->device, &tiny->sim) != 0)
        return false;
    memset(tiny->memory, 0, tiny->memory_bytes);
    memset(tiny->meta, 0, tiny->meta_bytes);
    return true;
}

void tiny_close(struct tiny *tiny)
{
    if (tiny->sim != NULL)
        fb_io_close(fb_sim_io(tiny->sim));
    free(tiny->memory);
    free(tiny->meta);
    tiny->sim = NULL;
    tiny->memory = tiny->meta = NULL;
}

void tiny_reset(struct tiny *tiny, uint64_t seed)
{
    fb_sim_reset(tiny->sim, seed);
    tiny->now_ns = START_NS;
    fb_sim_advance(tiny->sim, tiny->now_ns);
    tiny->is_up = tiny->serves = tiny->bump_in_doubt = tiny->lied = tiny->excused = tiny->blind =
        false;
    tiny->epoch = 0;
    memset(tiny->ops, 0, sizeof(tiny->ops));
    memset(tiny->keys, 0, sizeof(tiny->keys));
    tiny->version_count = 1;
    tiny->wrong[0] = '\0';
    tiny->hits = tiny->misses = tiny->hits_ssd = 0;
}

static struct fb_digest digest_of(const struct tiny *tiny, const uint8_t *text, size_t bytes)
{
    return fb_digest_key(&tiny->secret, tiny->epoch, text, bytes);
}

static uint16_t key_text(uint32_t key, uint8_t text[TINY_KEY_BYTES])
{
    return (uint16_t)snprintf((char *)text, TINY_KEY_BYTES, "key-%u", key);
}

/* The namespace as it is now; another epoch than was known ends all promises. */
void tiny_learn(struct tiny *tiny)
{
    uint8_t secret[16];
    uint64_t epoch = 0;
    if (!fb_shard_namespace(tiny->shard, tiny->ns, tiny->id, secret, &epoch)) {
        tiny_wrong(tiny, "the namespace's handle is unknown after it was opened");
        return;
    }
    fb_secret_derive(&tiny->secret, secret, sizeof(secret));
    if (epoch < tiny->epoch && !tiny->lied)
        tiny_wrong(tiny, "the epoch was %llu and is %llu", (unsigned long long)tiny->epoch,
                   (unsigned long long)epoch);
    if (epoch != tiny->epoch) {
        if (tiny->epoch != 0 && !tiny->bump_in_doubt && !tiny->lied)
            tiny_wrong(tiny, "the epoch rose by itself");
        memset(tiny->keys, 0, sizeof(tiny->keys));
    }
    tiny->epoch = epoch;
}

bool tiny_await(struct tiny *tiny)
{
    uint64_t limit = tiny->now_ns + START_MAX_NS;
    while (fb_shard_ready(tiny->shard) == 0 && tiny->now_ns < limit && tiny->wrong[0] == '\0')
        tiny_run(tiny, FB_MS_NS);
    if (fb_shard_ready(tiny->shard) < 0 && fb_shard_start_error(tiny->shard)[0] == '\0')
        tiny_wrong(tiny, "the start failed without a word");
    if (fb_shard_ready(tiny->shard) <= 0)
        return false;
    struct tiny_op *op = tiny_prepare(tiny, FB_OP_NAMESPACE, 0);
    op->op.ns_fields = FIELDS;
    op->op.ns_fields_bytes = sizeof(FIELDS) - 1;
    memset(op->op.ns_secret, 7, sizeof(op->op.ns_secret));
    tiny_go(tiny, op);
    if (tiny_end(tiny, op) != FB_OK)
        return false;
    tiny->ns = op->op.ns;
    tiny->serves = true;
    tiny_learn(tiny);
    return tiny->wrong[0] == '\0';
}

bool tiny_start(struct tiny *tiny)
{
    struct fb_region region;
    fb_region_init(&region, tiny->memory, tiny->memory_bytes);
    tiny->shard = fb_shard_init(&tiny->config, &region, tiny->meta);
    fb_shard_pool_faulted(tiny->shard, tiny->config.pool_bytes);
    fb_shard_start(tiny->shard, tiny->now_ns, wall_ms(tiny), false);
    memset(&tiny->peer, 0, sizeof(tiny->peer));
    fb_shard_peer_open(tiny->shard, &tiny->peer);
    tiny->is_up = true;
    tiny->serves = false;
    return tiny_await(tiny);
}

void tiny_stop(struct tiny *tiny)
{
    for (unsigned i = 0; i < TINY_OPS; i++) {
        struct tiny_op *op = &tiny->ops[i];
        bool changes = op->op.kind == FB_OP_PUT || op->op.kind == FB_OP_REMOVE;
        if (op->used && !op->done && changes)
            tiny->keys[op->key].in_doubt = true;
        if (op->used && !op->done && op->op.kind == FB_OP_EPOCH)
            tiny->bump_in_doubt = true;
        op->used = false;
    }
    tiny->is_up = tiny->serves = false;
    tiny->shard = NULL;
}

/* ---- the client ---- */

static uint64_t pages_of(uint64_t bytes)
{
    return fb_div_up(bytes, FB_PAGE_BYTES);
}

static struct fb_sim_value value_of(const struct tiny *tiny, const struct tiny_op *op,
                                    uint32_t version)
{
    return (struct fb_sim_value){.key = op->key + 1,
                                 .version = version,
                                 .bytes = tiny->versions[op->version].bytes};
}

static void fill_grant(struct tiny *tiny, struct tiny_op *op)
{
    struct fb_sim_value value = value_of(tiny, op, op->version);
    struct fb_sim_page *arena = fb_sim_arena(tiny->sim);
    uint64_t off = 0, page = 0;
    struct fb_io_vec runs[TINY_RUNS];
    size_t count;
    while ((count = fb_shard_put_runs(tiny->shard, &op->op, &off, runs, TINY_RUNS)) > 0)
        for (size_t i = 0; i < count; i++)
            for (uint64_t at = 0; at < pages_of(runs[i].len); at++, page++)
                arena[runs[i].off / FB_PAGE_BYTES + at] =
                    fb_sim_token(value.key, op->lies ? 0 : value.version, page);
    if (off != value.bytes || page != pages_of(value.bytes))
        tiny_wrong(tiny, "a grant of %llu bytes has %llu", (unsigned long long)value.bytes,
                   (unsigned long long)off);
}

static struct fb_identity identity_of(const struct tiny *tiny, const struct tiny_op *op)
{
    uint64_t generation = op->op.generation;
    return (struct fb_identity){
        .namespace_id = tiny->id,
        .epoch = op->op.epoch,
        .key = op->op.key,
        .key_bytes = op->op.key_bytes,
        .generation = {.boot = (uint32_t)(generation >> COUNTER_BITS),
                       .counter = generation & ((UINT64_C(1) << COUNTER_BITS) - 1)},
        .total_bytes = op->op.value_bytes,
    };
}

static void commit(struct tiny *tiny, struct tiny_op *op)
{
    uint64_t roots[64];
    uint32_t chunk = fb_shard_chunk_bytes(tiny->shard);
    struct fb_sim_value value = value_of(tiny, op, op->version);
    struct fb_identity identity = identity_of(tiny, op);
    uint32_t parts = 0;
    for (uint64_t off = 0; off < value.bytes; off += chunk, parts++) {
        FB_ASSERT(parts < FB_ARRAY_COUNT(roots));
        uint64_t leaves[FB_LOG_LEAVES_MAX];
        identity.part = parts;
        identity.part_bytes = fb_min_u64(value.bytes - off, chunk);
        struct fb_sim_page pages[FB_LEAF_BYTES / FB_PAGE_BYTES];
        FB_ASSERT(identity.part_bytes <= FB_LEAF_BYTES); /* a chunk of a small device */
        for (uint64_t i = 0; i < pages_of(identity.part_bytes); i++)
            pages[i] = fb_sim_token(value.key, value.version, off / FB_PAGE_BYTES + i);
        leaves[0] = fb_sim_leaf_hash(pages, identity.part_bytes);
        roots[parts] = fb_root_of(&identity, leaves, 1);
    }
    tiny->versions[op->version].committed = true;
    fb_shard_put_commit(tiny->shard, tiny->now_ns, &op->op, op->op.generation, roots, parts);
}

/* One page that a reader was given. */
static void look_at_page(struct tiny *tiny, struct tiny_op *op, struct fb_sim_page page,
                         uint64_t number)
{
    uint64_t version = page.b >> 20;
    if (op->version == NO_VERSION)
        op->version = (uint32_t)version;
    bool is_right = version != NO_VERSION && version < tiny->version_count &&
                    page.a == op->key + 1 && (page.b & FB_SIM_PAGE_MAX) == number;
    if (is_right && version == op->version)
        return;
    char text[96];
    fb_sim_page_text(page, text, sizeof(text));
    tiny_wrong(tiny, "key %u page %llu (version %u): wrong bytes: %s", op->key,
               (unsigned long long)number, op->version, text);
}

/* The root of what lies in the chunk, as a reader over shared memory computes it; then its pages.
 */
static void read_chunk(struct tiny *tiny, struct tiny_op *op, unsigned i)
{
    const struct fb_chunk *chunk = &op->op.chunk[i];
    const struct fb_sim_page *arena = fb_sim_arena(tiny->sim);
    struct fb_sim_page pages[FB_LEAF_BYTES / FB_PAGE_BYTES];
    struct fb_io_vec runs[TINY_RUNS];
    uint32_t off = 0, page = 0;
    size_t count;
    while ((count = fb_shard_chunk_runs(tiny->shard, &op->op, i, &off, runs, TINY_RUNS)) > 0)
        for (size_t n = 0; n < count; n++)
            for (uint64_t at = 0; at < pages_of(runs[n].len); at++, page++)
                if (page < FB_ARRAY_COUNT(pages))
                    pages[page] = arena[runs[n].off / FB_PAGE_BYTES + at];
    if (off != chunk->part_bytes || page != pages_of(chunk->part_bytes)) {
        tiny_wrong(tiny, "a part of %u bytes has %u", chunk->part_bytes, off);
        return;
    }
    struct fb_identity identity = identity_of(tiny, op);
    identity.part = chunk->part;
    identity.part_bytes = chunk->part_bytes;
    uint64_t leaf = fb_sim_leaf_hash(pages, chunk->part_bytes);
    bool is_bad = fb_root_of(&identity, &leaf, 1) != chunk->root;
    if (is_bad && chunk->verified)
        tiny_wrong(tiny, "key %u: a part said to be verified has another root", op->key);
    uint32_t first = chunk->want_off / FB_PAGE_BYTES;
    uint32_t end = (uint32_t)pages_of((uint64_t)chunk->want_off + chunk->want_bytes);
    for (page = first; !is_bad && page < end; page++)
        look_at_page(tiny, op, pages[page], chunk->value_off / FB_PAGE_BYTES + page);
    op->seen_bytes += is_bad ? 0 : chunk->want_bytes;
    fb_shard_chunk_release(tiny->shard, tiny->now_ns, &op->op, i, is_bad);
}

static void read_chunks(struct tiny *tiny, struct tiny_op *op)
{
    for (unsigned i = 0; i < FB_GET_WINDOW; i++)
        if (op->op.chunk[i].state == FB_CHUNK_READY || op->op.chunk[i].state == FB_CHUNK_OUT)
            read_chunk(tiny, op, i);
}

void tiny_go_on(struct tiny *tiny, struct tiny_op *op)
{
    op->stopped = false;
    if (op->closed || !op->used)
        return;
    if (op->op.kind == FB_OP_PUT && op->granted) {
        fill_grant(tiny, op);
        commit(tiny, op);
    } else if (op->op.kind == FB_OP_GET) {
        read_chunks(tiny, op);
    }
    tiny_pump(tiny);
}

/* ---- what an answer means ---- */

static void raise(uint64_t *value, uint64_t least)
{
    if (*value < least)
        *value = least;
}

static void check_hit(struct tiny *tiny, struct tiny_op *op)
{
    const struct fb_op *at = &op->op;
    tiny->hits++;
    tiny->hits_ssd += (at->tiers & 2) != 0;
    uint64_t from = fb_min_u64(at->range_off, at->value_bytes);
    uint64_t want = fb_min_u64(at->range_bytes, at->value_bytes - from);
    if (op->seen_bytes != want)
        tiny_wrong(tiny, "key %u: a hit of %llu bytes gave %llu", op->key, (unsigned long long)want,
                   (unsigned long long)op->seen_bytes);
    const struct tiny_version *version = &tiny->versions[op->version];
    if (want > 0 && (version->key != op->key || version->epoch != at->epoch))
        tiny_wrong(tiny, "key %u: version %u is of another key or epoch", op->key, op->version);
    if (want > 0 && !version->committed)
        tiny_wrong(tiny, "key %u: version %u is read and was never committed", op->key,
                   op->version);
    if (want > 0 && version->bytes != at->value_bytes)
        tiny_wrong(tiny, "key %u: version %u has %llu bytes, the hit says %llu", op->key,
                   op->version, (unsigned long long)version->bytes,
                   (unsigned long long)at->value_bytes);
    if (at->generation < op->floor && !tiny->lied)
        tiny_wrong(tiny, "key %u: generation %llx is read, %llx was acknowledged", op->key,
                   (unsigned long long)at->generation, (unsigned long long)op->floor);
    raise(&tiny->keys[op->key].floor, at->generation);
}

/* True if this reason may explain that something durable is not read. */
static bool excuses(const struct tiny *tiny, const struct tiny_op *op)
{
    uint8_t reason = op->op.reason;
    struct fb_log_stats log;
    fb_shard_log_stats(tiny->shard, &log);
    /* The ring of records is bounded, and says how far back it reaches. */
    if (reason == FB_REASON_NO_RECORD && log.history_since_ms > tiny->keys[op->key].persisted_ms)
        return true;
    if (reason == FB_REASON_RECLAIMED_SSD || reason == FB_REASON_READ_DEADLINE ||
        reason == FB_REASON_NO_STAGING)
        return true;
    if (reason == FB_REASON_DEVICE_FENCED && fb_shard_tier(tiny->shard) == FB_TIER_FENCED)
        return true;
    return tiny->excused && (reason != FB_REASON_NO_RECORD || tiny->blind);
}

static void check_miss(struct tiny *tiny, const struct tiny_op *op)
{
    const struct tiny_key *key = &tiny->keys[op->key];
    tiny->misses++;
    if (op->op.reason == FB_REASON_NONE)
        tiny_wrong(tiny, "key %u: a miss without a reason", op->key);
    if (op->persisted != 0 && key->persisted == op->persisted && !key->in_doubt && !tiny->lied &&
        op->op.epoch == tiny->epoch && !excuses(tiny, op))
        tiny_wrong(tiny, "key %u: generation %llx was persisted and is a miss: %s", op->key,
                   (unsigned long long)op->persisted, fb_reason_name(op->op.reason));
}

static void put_done(struct tiny *tiny, struct tiny_op *op)
{
    struct tiny_key *key = &tiny->keys[op->key];
    const struct tiny_version *version = &tiny->versions[op->version];
    if (op->op.epoch != tiny->epoch)
        return;
    if (op->op.result == FB_OK) {
        if (!version->committed)
            tiny_wrong(tiny, "version %u is stored and was never committed", op->version);
        raise(&key->floor, op->op.generation);
        key->persisted = op->op.persisted && !op->lies ? op->op.generation : 0;
        key->persisted_ms = wall_ms(tiny);
    } else if (op->op.result == FB_EXISTS) {
        if ((op->op.flags & FB_PUT_UPSERT) != 0)
            tiny_wrong(tiny, "an upsert ends as EXISTS");
    } else if (version->committed) {
        key->in_doubt = true; /* nobody knows */
    }
}

static void check_done(struct tiny *tiny, struct tiny_op *op)
{
    struct tiny_key *key = &tiny->keys[op->key];
    if (tiny->now_ns > op->op.deadline_ns + TINY_BOUND_NS)
        tiny_wrong(tiny, "an operation of kind %u ends %llu ms after its deadline", op->op.kind,
                   (unsigned long long)((tiny->now_ns - op->op.deadline_ns) / FB_MS_NS));
    int result = op->op.result;
    switch (op->op.kind) {
    case FB_OP_PUT:
        put_done(tiny, op);
        break;
    case FB_OP_GET:
        if (result == FB_OK)
            check_hit(tiny, op);
        else if (result == FB_MISS)
            check_miss(tiny, op);
        break;
    case FB_OP_REMOVE:
        if (op->op.epoch != tiny->epoch)
            break;
        if (result == FB_OK || result == FB_MISS) {
            raise(&key->floor, op->removed_above + 1);
            key->persisted = 0;
        } else {
            key->in_doubt = true;
        }
        break;
    case FB_OP_EPOCH:
        if (result == FB_OK || result == FB_STALE_EPOCH)
            tiny_learn(tiny);
        tiny->bump_in_doubt = result != FB_OK;
        break;
    case FB_OP_WAIT_PERSISTED:
        if (result == FB_OK && op->floor != 0 && op->floor == key->floor && !key->in_doubt)
            key->persisted = key->floor;
        key->persisted_ms = wall_ms(tiny);
        break;
    default:
        break;
    }
    if (tiny->verbose)
        fprintf(stderr, "%8llu us op %u key %u: %s, %s\n",
                (unsigned long long)(tiny->now_ns / FB_US_NS), op->op.kind, op->key,
                fb_result_name(result), fb_reason_name(op->op.reason));
}

static void granted(struct tiny *tiny, struct tiny_op *op)
{
    struct tiny_version *version = &tiny->versions[op->version];
    struct tiny_key *key = &tiny->keys[op->key];
    if (op->granted || op->done)
        tiny_wrong(tiny, "version %u is granted twice, or after its end", op->version);
    op->granted = true;
    version->generation = op->op.generation;
    if (op->op.epoch == tiny->epoch && op->op.generation <= key->granted && !tiny->lied)
        tiny_wrong(tiny, "key %u: generation %llx is granted after %llx", op->key,
                   (unsigned long long)op->op.generation, (unsigned long long)key->granted);
    raise(&key->granted, op->op.generation);
}

static void on_event(struct tiny *tiny, struct tiny_op *op, unsigned events)
{
    if (!op->used || op->closed) {
        tiny_wrong(tiny, "an event of an operation that is closed");
        return;
    }
    if ((events & FB_EV_GRANT) != 0)
        granted(tiny, op);
    if ((events & FB_EV_CHUNK) != 0 && !op->stopped)
        read_chunks(tiny, op);
    if ((events & FB_EV_DONE) != 0) {
        if (op->done)
            tiny_wrong(tiny, "two results for one operation");
        op->done = true;
        check_done(tiny, op);
    }
    if ((events & FB_EV_CLOSED) != 0) {
        if (!op->done)
            tiny_wrong(tiny, "closed without a result");
        op->closed = true;
        return;
    }
    if (op->stopped)
        return;
    if ((events & FB_EV_GRANT) != 0 && !op->done) {
        fill_grant(tiny, op);
        commit(tiny, op);
    } else if (op->op.kind == FB_OP_PUT && op->granted && op->done) {
        fb_shard_put_release(tiny->shard, tiny->now_ns, &op->op);
    }
}

/* ---- time ---- */

static bool pump_once(struct tiny *tiny)
{
    struct fb_io *io = fb_sim_io(tiny->sim);
    struct fb_io_req *reaped[REAP];
    size_t count = fb_io_reap(io, reaped, REAP);
    for (size_t i = 0; i < count; i++) {
        if (tiny->meddle != NULL)
            tiny->meddle(tiny, reaped[i]);
        fb_shard_io_done(tiny->shard, tiny->now_ns, reaped[i]);
    }
    bool moved = count > 0;
    unsigned events;
    struct fb_op *op;
    while ((op = fb_shard_take_event(tiny->shard, &events)) != NULL) {
        on_event(tiny, &tiny->ops[op->cookie], events);
        moved = true;
    }
    struct fb_io_req *req;
    while ((req = fb_shard_take_io(tiny->shard, tiny->now_ns)) != NULL) {
        fb_io_submit(io, req);
        moved = true;
    }
    struct fb_notice notice;
    while (fb_shard_take_notice(tiny->shard, &notice))
        moved = true;
    if (fb_shard_next_ns(tiny->shard) <= tiny->now_ns) {
        fb_shard_tick(tiny->shard, tiny->now_ns, wall_ms(tiny));
        moved = true;
    }
    return moved;
}

void tiny_pump(struct tiny *tiny)
{
    unsigned rounds = 0;
    while (tiny->wrong[0] == '\0' && pump_once(tiny))
        if (++rounds > ROUNDS_MAX)
            tiny_wrong(tiny, "the shard never comes to rest");
}

static void step(struct tiny *tiny, uint64_t end_ns)
{
    uint64_t next = fb_min_u64(fb_sim_next_ns(tiny->sim), fb_shard_next_ns(tiny->shard));
    tiny->now_ns = fb_max_u64(tiny->now_ns, fb_min_u64(next, end_ns));
    fb_sim_advance(tiny->sim, tiny->now_ns);
    tiny_pump(tiny);
}

void tiny_run(struct tiny *tiny, uint64_t ns)
{
    uint64_t end = tiny->now_ns + ns;
    tiny_pump(tiny);
    while (tiny->now_ns < end && tiny->wrong[0] == '\0')
        step(tiny, end);
}

int tiny_end(struct tiny *tiny, struct tiny_op *op)
{
    uint64_t limit = op->op.deadline_ns + TINY_BOUND_NS;
    tiny_pump(tiny);
    while (!op->done && tiny->wrong[0] == '\0') {
        if (tiny->now_ns >= limit)
            tiny_wrong(tiny, "an operation of kind %u, key %u, does not end", op->op.kind, op->key);
        step(tiny, limit);
    }
    limit = tiny->now_ns + CLOSE_MAX_NS;
    while (!op->closed && tiny->now_ns < limit && tiny->wrong[0] == '\0')
        step(tiny, limit);
    op->used = !op->closed; /* a device that fails may keep it; tiny_leave() wants it closed */
    return op->op.result;
}

void tiny_end_all(struct tiny *tiny)
{
    for (unsigned i = 0; i < TINY_OPS; i++)
        if (tiny->ops[i].used && !tiny->ops[i].done && !tiny->ops[i].stopped)
            tiny_end(tiny, &tiny->ops[i]);
}

bool tiny_settle(struct tiny *tiny, uint64_t ns)
{
    uint64_t limit = tiny->now_ns + ns;
    for (;;) {
        struct fb_shard_stats stats;
        tiny_pump(tiny);
        fb_shard_stats(tiny->shard, &stats);
        if (stats.dirty_bytes == 0)
            return true;
        if (tiny->now_ns >= limit || tiny->wrong[0] != '\0')
            return false;
        step(tiny, limit);
    }
}

/* ---- operations ---- */

struct tiny_op *tiny_prepare(struct tiny *tiny, enum fb_op_kind kind, uint32_t key)
{
    unsigned i = 0;
    while (i < TINY_OPS && tiny->ops[i].used && !tiny->ops[i].closed)
        i++;
    FB_ASSERT(i < TINY_OPS && key < TINY_KEYS);
    struct tiny_op *op = &tiny->ops[i];
    memset(op, 0, sizeof(*op));
    op->used = true;
    op->key = key;
    op->floor = tiny->keys[key].floor;
    op->persisted = tiny->keys[key].persisted;
    op->removed_above = tiny->keys[key].granted;
    op->op.kind = (uint8_t)kind;
    op->op.peer = &tiny->peer;
    op->op.ns = tiny->ns;
    op->op.epoch = tiny->epoch;
    op->op.deadline_ns = tiny->now_ns + tiny->deadline_ns;
    op->op.key = op->text;
    op->op.key_bytes = key_text(key, op->text);
    op->op.digest = digest_of(tiny, op->text, op->op.key_bytes);
    op->op.range_bytes = UINT64_MAX;
    op->op.cookie = i;
    return op;
}

void tiny_go(struct tiny *tiny, struct tiny_op *op)
{
    if (tiny->wrong[0] != '\0') {
        op->done = op->closed = true;
        op->op.result = FB_INTERNAL;
        return;
    }
    bool changes = op->op.kind == FB_OP_PUT || op->op.kind == FB_OP_REMOVE;
    if (op->op.kind == FB_OP_EPOCH)
        tiny->bump_in_doubt = true;
    if (op->op.kind == FB_OP_PUT) {
        FB_ASSERT(tiny->version_count < TINY_VERSIONS);
        op->version = tiny->version_count++;
        tiny->versions[op->version] = (struct tiny_version){.key = op->key,
                                                            .epoch = op->op.epoch,
                                                            .bytes = op->op.value_bytes};
    }
    if (changes && (op->op.kind == FB_OP_REMOVE || (op->op.flags & FB_PUT_UPSERT) != 0))
        tiny->keys[op->key].persisted = 0;
    fb_shard_start_op(tiny->shard, tiny->now_ns, &op->op);
    tiny_pump(tiny);
}

struct tiny_op *tiny_put(struct tiny *tiny, uint32_t key, uint64_t bytes, unsigned flags,
                         enum fb_persist persist)
{
    struct tiny_op *op = tiny_prepare(tiny, FB_OP_PUT, key);
    op->op.value_bytes = bytes;
    op->op.flags = (uint8_t)flags;
    op->op.persist = (uint8_t)persist;
    tiny_go(tiny, op);
    return op;
}

struct tiny_op *tiny_get(struct tiny *tiny, uint32_t key, uint64_t off, uint64_t bytes,
                         unsigned flags)
{
    struct tiny_op *op = tiny_prepare(tiny, FB_OP_GET, key);
    op->op.range_off = off;
    op->op.range_bytes = bytes;
    op->op.flags = (uint8_t)flags;
    tiny_go(tiny, op);
    return op;
}

struct tiny_op *tiny_do(struct tiny *tiny, enum fb_op_kind kind, uint32_t key, uint32_t hold_ms)
{
    struct tiny_op *op = tiny_prepare(tiny, kind, key);
    if (kind == FB_OP_LOOKUP || kind == FB_OP_HOLD_RELEASE) {
        for (uint32_t i = 0; i < TINY_KEYS; i++) {
            uint8_t text[TINY_KEY_BYTES];
            op->digests[i] = digest_of(tiny, text, key_text(i, text));
        }
        op->op.digests = op->digests;
        op->op.found = op->found;
        op->op.n = TINY_KEYS;
        op->op.hold_ms = hold_ms;
        op->op.hold_loads = 1;
    } else if (kind == FB_OP_LIST) {
        op->op.list_out = op->list;
        op->op.list_bytes = sizeof(op->list);
    }
    tiny_go(tiny, op);
    return op;
}

void tiny_read_all(struct tiny *tiny)
{
    for (uint32_t key = 0; key < TINY_KEYS && tiny->wrong[0] == '\0'; key++)
        tiny_end(tiny, tiny_get(tiny, key, 0, UINT64_MAX, 0));
}

/* ---- the end ---- */

/* True if nobody has memory of the pool any more; work in the background may for a while. */
static bool is_all_back(struct tiny *tiny)
{
    struct fb_shard_stats stats;
    fb_shard_stats(tiny->shard, &stats);
    return stats.reserved_bytes == 0 && stats.quarantine_bytes == 0 && stats.pinned_bytes == 0 &&
           stats.open_ops == 0;
}

static void check_books(struct tiny *tiny)
{
    struct fb_shard_stats stats;
    fb_shard_stats(tiny->shard, &stats);
    uint64_t misses = 0, puts = 0;
    for (int i = 0; i < FB_REASON_COUNT; i++)
        misses += stats.get_misses[i];
    for (int i = 0; i < FB_RESULT_COUNT; i++)
        puts += stats.put_results[i];
    if (stats.get_hits + misses != stats.gets || puts != stats.puts)
        tiny_wrong(tiny, "the books do not balance: gets %llu = %llu + %llu, puts %llu = %llu",
                   (unsigned long long)stats.gets, (unsigned long long)stats.get_hits,
                   (unsigned long long)misses, (unsigned long long)stats.puts,
                   (unsigned long long)puts);
    if (!is_all_back(tiny))
        tiny_wrong(tiny, "left: reserved %llu, quarantined %llu, pinned %llu, operations %llu",
                   (unsigned long long)stats.reserved_bytes,
                   (unsigned long long)stats.quarantine_bytes,
                   (unsigned long long)stats.pinned_bytes, (unsigned long long)stats.open_ops);
}

void tiny_leave(struct tiny *tiny)
{
    if (tiny->wrong[0] != '\0' || !tiny->is_up)
        return;
    fb_shard_peer_gone(tiny->shard, tiny->now_ns, &tiny->peer, true);
    uint64_t limit = tiny->now_ns + LEAVE_MAX_NS;
    tiny_pump(tiny);
    while (!fb_shard_peer_idle(&tiny->peer) && tiny->wrong[0] == '\0') {
        if (tiny->now_ns >= limit)
            tiny_wrong(tiny, "what a dead client had does not come back");
        step(tiny, limit);
    }
    while (!is_all_back(tiny) && tiny->now_ns < limit && tiny->wrong[0] == '\0')
        step(tiny, limit);
    if (tiny->wrong[0] != '\0')
        return;
    fb_shard_audit(tiny->shard);
    check_books(tiny);
}
