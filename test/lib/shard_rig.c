/*
 * shard_rig.c - see shard_rig.h.
 */
#include "test/lib/shard_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/bits.h"
#include "test/lib/cm.h"

#define START_NS    FB_SEC_NS
#define WALL_MS     UINT64_C(1700000000000)
#define DEADLINE_NS (30 * FB_SEC_NS)
#define GRACE_NS    (2 * FB_SEC_NS)
#define ROUNDS_MAX  200000
#define REAP        32
#define SETTLE_NS   (600 * FB_SEC_NS)
#define FIELDS      "rig"

/* ---- start and end ---- */

static void fill_config(struct rig *rig)
{
    struct fb_shard_config *config = &rig->config;
    if (config->pool_bytes == 0)
        config->pool_bytes = FB_MIB(8);
    if (config->devices != 0 && config->log.capacity_bytes == 0)
        config->log.capacity_bytes = FB_MIB(64);
    if (config->index_entries == 0)
        config->index_entries = 8192;
    if (config->history_entries == 0)
        config->history_entries = 4096;
    if (config->namespaces_max == 0)
        config->namespaces_max = 4;
    config->log.node_id = 1;
    char why[256] = "";
    int result = fb_shard_config_check(config, why, sizeof(why));
    if (result != 0)
        print_error("config refused: %s\n", why);
    assert_int_equal(result, 0);
}

static void fill_device(struct rig *rig)
{
    struct fb_sim_config *device = &rig->device;
    if (device->seed == 0)
        device->seed = 1;
    device->arena_bytes = rig->config.pool_bytes;
    device->device_count = 1;
    if (device->device_bytes[0] == 0)
        device->device_bytes[0] = fb_max_u64(rig->config.log.capacity_bytes, FB_MIB(16));
    if (device->unflushed_pages_max == 0)
        device->unflushed_pages_max = 1u << 17;
    rig->meta_bytes = fb_align_up(fb_max_u64(fb_shard_meta_footprint(&rig->config), FB_PAGE_BYTES),
                                  FB_PAGE_BYTES);
    rig->meta = aligned_alloc(FB_PAGE_BYTES, rig->meta_bytes);
    assert_non_null(rig->meta);
    device->meta = rig->meta;
    device->meta_bytes = rig->meta_bytes;
    if (device->meta_blocks_max == 0)
        device->meta_blocks_max = 65536;
}

static void start_shard(struct rig *rig)
{
    struct fb_region region;
    memset(rig->memory, 0xa5, rig->memory_bytes);
    fb_region_init(&region, rig->memory, rig->memory_bytes);
    rig->shard = fb_shard_init(&rig->config, &region, rig->meta);
    fb_shard_pool_faulted(rig->shard, rig->config.pool_bytes);
    fb_shard_start(rig->shard, rig->now_ns, WALL_MS + rig->now_ns / FB_MS_NS, false);
    for (unsigned i = 0; i < RIG_PEERS; i++)
        fb_shard_peer_open(rig->shard, &rig->peers[i]);
    memset(rig->ops, 0, RIG_OPS * sizeof(*rig->ops));
    rig->next_op = 0;
}

static void open_namespace(struct rig *rig)
{
    struct rig_op *op = rig_prepare(rig, FB_OP_NAMESPACE, 0, 0);
    op->op.ns_fields = FIELDS;
    op->op.ns_fields_bytes = sizeof(FIELDS) - 1;
    memset(op->op.ns_secret, 7, sizeof(op->op.ns_secret));
    rig_go(rig, op);
    int result = rig_result(rig, op);
    if (result != FB_OK)
        print_error("namespace: %s; start: %s\n", fb_result_name(result),
                    fb_shard_start_error(rig->shard));
    assert_int_equal(result, FB_OK);
    rig->ns = op->op.ns;
    rig_end(rig, op);
    uint8_t secret[16];
    assert_true(fb_shard_namespace(rig->shard, rig->ns, rig->id, secret, &rig->epoch));
    fb_secret_derive(&rig->secret, secret, sizeof(secret));
}

void rig_open(struct rig *rig)
{
    fill_config(rig);
    fill_device(rig);
    rig->now_ns = START_NS;
    if (rig->deadline_ns == 0)
        rig->deadline_ns = DEADLINE_NS;
    rig->memory_bytes = fb_shard_footprint(&rig->config);
    rig->memory = aligned_alloc(FB_PAGE_BYTES, fb_align_up(rig->memory_bytes, FB_PAGE_BYTES));
    rig->ops = malloc(RIG_OPS * sizeof(*rig->ops));
    assert_true(rig->memory != NULL && rig->ops != NULL);
    assert_int_equal(fb_sim_open(&rig->device, &rig->sim), 0);
    fb_sim_advance(rig->sim, rig->now_ns);
    start_shard(rig);
    open_namespace(rig);
}

void rig_close(struct rig *rig)
{
    if (fb_shard_ready(rig->shard) > 0)
        fb_shard_audit(rig->shard);
    fb_io_close(fb_sim_io(rig->sim));
    free(rig->memory);
    free(rig->meta);
    free(rig->ops);
}

void rig_crash(struct rig *rig, enum fb_sim_cut cut, uint64_t seed)
{
    fb_sim_power_cut(rig->sim, cut, seed);
    memset(rig->meta, 0xdb, rig->meta_bytes);
    rig->now_ns += FB_MS_NS;
    fb_sim_advance(rig->sim, rig->now_ns);
    start_shard(rig);
    open_namespace(rig);
}

/* ---- clients ---- */

static uint64_t pages_of(uint64_t bytes)
{
    return fb_div_up(bytes, FB_PAGE_BYTES);
}

struct fb_digest rig_digest(const struct rig *rig, uint64_t key)
{
    uint8_t text[RIG_KEY_BYTES];
    int bytes = snprintf((char *)text, sizeof(text), "key-%llu", (unsigned long long)key);
    return fb_digest_key(&rig->secret, rig->epoch, text, (size_t)bytes);
}

static struct fb_identity identity_of(const struct rig *rig, const struct rig_op *op)
{
    uint64_t generation = op->op.generation;
    return (struct fb_identity){.namespace_id = rig->id,
                                .epoch = op->op.epoch,
                                .key = op->op.key,
                                .key_bytes = op->op.key_bytes,
                                .generation = {.boot = (uint32_t)(generation >> 40),
                                               .counter = generation & ((UINT64_C(1) << 40) - 1)},
                                .total_bytes = op->op.value_bytes};
}

/* The root of one part of a value with this version. */
static uint64_t root_of(const struct rig *rig, const struct rig_op *op, uint64_t version,
                        uint32_t part, uint64_t off, uint32_t part_bytes)
{
    static struct fb_sim_page tokens[FB_CHUNK_BYTES_MAX / FB_PAGE_BYTES];
    uint64_t leaves[FB_LOG_LEAVES_MAX];
    uint64_t count = pages_of(part_bytes);
    for (uint64_t i = 0; i < count; i++)
        tokens[i] = fb_sim_token(op->key + 1, version, off / FB_PAGE_BYTES + i);
    unsigned leaf = 0;
    for (uint64_t at = 0; at < part_bytes; at += FB_LEAF_BYTES, leaf++)
        leaves[leaf] = fb_sim_leaf_hash(tokens + at / FB_PAGE_BYTES,
                                        fb_min_u64(part_bytes - at, FB_LEAF_BYTES));
    struct fb_identity identity = identity_of(rig, op);
    identity.part = part;
    identity.part_bytes = part_bytes;
    return fb_root_of(&identity, leaves, leaf);
}

static void fill_grant(struct rig *rig, struct rig_op *op)
{
    static struct fb_io_vec runs[RIG_RUNS];
    struct fb_sim_page *arena = fb_sim_arena(rig->sim);
    uint64_t version = op->manner == RIG_LYING ? op->lie_version : op->version;
    uint64_t off = 0;
    uint64_t page = 0;
    size_t count;
    while ((count = fb_shard_put_runs(rig->shard, &op->op, &off, runs, RIG_RUNS)) > 0)
        for (size_t i = 0; i < count; i++)
            for (uint64_t at = 0; at < pages_of(runs[i].len); at++)
                arena[runs[i].off / FB_PAGE_BYTES + at] =
                    fb_sim_token(op->key + 1, version, page++);
    assert_int_equal(off, op->op.value_bytes);
    assert_int_equal(page, pages_of(op->op.value_bytes));
}

static void commit(struct rig *rig, struct rig_op *op)
{
    static uint64_t roots[4096];
    uint32_t chunk = fb_shard_chunk_bytes(rig->shard);
    uint32_t parts = (uint32_t)fb_div_up(op->op.value_bytes, chunk);
    assert_true(parts <= FB_ARRAY_COUNT(roots));
    for (uint32_t part = 0; part < parts; part++) {
        uint64_t off = (uint64_t)part * chunk;
        roots[part] = root_of(rig, op, op->version, part, off,
                              (uint32_t)fb_min_u64(op->op.value_bytes - off, chunk));
    }
    fb_shard_put_commit(rig->shard, rig->now_ns, &op->op, op->op.generation, roots, parts);
}

/* Checks the wanted pages of a chunk. */
static void look_at_chunk(struct rig *rig, struct rig_op *op, unsigned number)
{
    const struct fb_chunk *chunk = &op->op.chunk[number];
    static struct fb_io_vec runs[RIG_RUNS];
    const struct fb_sim_page *arena = fb_sim_arena(rig->sim);
    uint32_t off = 0;
    uint64_t page = chunk->value_off / FB_PAGE_BYTES;
    uint64_t first = (chunk->value_off + chunk->want_off) / FB_PAGE_BYTES;
    uint64_t end = pages_of(chunk->value_off + chunk->want_off + chunk->want_bytes);
    size_t count;
    while ((count = fb_shard_chunk_runs(rig->shard, &op->op, number, &off, runs, RIG_RUNS)) > 0)
        for (size_t i = 0; i < count; i++)
            for (uint64_t at = 0; at < pages_of(runs[i].len); at++, page++) {
                if (page < first || page >= end)
                    continue;
                struct fb_sim_page token = arena[runs[i].off / FB_PAGE_BYTES + at];
                if (op->seen == 0)
                    op->seen = token.b >> 20;
                if (!fb_sim_page_is_equal(token, fb_sim_token(op->key + 1, op->seen, page)))
                    op->is_bad = true;
            }
    assert_int_equal(off, chunk->part_bytes);
    op->seen_bytes += chunk->want_bytes;
    op->chunks_ssd += chunk->from_ssd;
}

/* Reads the chunks that are ready and gives them back. */
static void read_chunks(struct rig *rig, struct rig_op *op)
{
    for (unsigned i = 0; i < FB_GET_WINDOW; i++) {
        if (op->op.chunk[i].state != FB_CHUNK_READY && op->op.chunk[i].state != FB_CHUNK_OUT)
            continue;
        look_at_chunk(rig, op, i);
        fb_shard_chunk_release(rig->shard, rig->now_ns, &op->op, i, false);
    }
}

/* A stopped reader takes its chunks all the same: they are out. */
static void hold_chunks(struct rig *rig, struct rig_op *op)
{
    struct fb_io_vec run;
    for (unsigned i = 0; i < FB_GET_WINDOW; i++) {
        uint32_t off = 0;
        if (op->op.chunk[i].state == FB_CHUNK_READY)
            (void)fb_shard_chunk_runs(rig->shard, &op->op, i, &off, &run, 1);
    }
}

void rig_go_on(struct rig *rig, struct rig_op *op)
{
    assert_true(op->manner == RIG_STOPPED);
    op->manner = RIG_HONEST;
    if (op->closed)
        return;
    if (op->op.kind == FB_OP_PUT && op->granted) {
        if (!op->done)
            fill_grant(rig, op);
        commit(rig, op);
    } else if (op->op.kind == FB_OP_GET) {
        read_chunks(rig, op);
    }
    rig_pump(rig);
}

static void on_event(struct rig *rig, struct rig_op *op, unsigned events)
{
    assert_true(op->used && !op->closed);
    if ((events & FB_EV_GRANT) != 0) {
        op->granted = true;
        op->granted_ns = rig->now_ns;
    }
    if ((events & FB_EV_DONE) != 0) {
        assert_false(op->done);
        op->done = true;
        op->done_ns = rig->now_ns;
    }
    if ((events & FB_EV_CLOSED) != 0) {
        assert_true(op->done);
        op->closed = true;
        return;
    }
    if (op->manner == RIG_STOPPED) {
        if ((events & FB_EV_CHUNK) != 0)
            hold_chunks(rig, op);
        return;
    }
    if ((events & FB_EV_GRANT) != 0 && !op->done) {
        fill_grant(rig, op);
        commit(rig, op);
    } else if (op->op.kind == FB_OP_PUT && op->granted && op->done) {
        fb_shard_put_release(rig->shard, rig->now_ns, &op->op);
    }
    if ((events & FB_EV_CHUNK) != 0)
        read_chunks(rig, op);
}

/* ---- time ---- */

static bool pump_once(struct rig *rig)
{
    struct fb_io *io = fb_sim_io(rig->sim);
    struct fb_io_req *reaped[REAP];
    size_t count = fb_io_reap(io, reaped, REAP);
    for (size_t i = 0; i < count; i++)
        fb_shard_io_done(rig->shard, rig->now_ns, reaped[i]);
    bool moved = count > 0;
    unsigned events;
    for (struct fb_op *op; (op = fb_shard_take_event(rig->shard, &events)) != NULL; moved = true)
        on_event(rig, (struct rig_op *)op, events);
    for (struct fb_io_req *req; (req = fb_shard_take_io(rig->shard, rig->now_ns)) != NULL;
         moved = true)
        fb_io_submit(io, req);
    if (fb_shard_next_ns(rig->shard) <= rig->now_ns) {
        fb_shard_tick(rig->shard, rig->now_ns, WALL_MS + rig->now_ns / FB_MS_NS);
        moved = true;
    }
    if (rig->audits && moved && fb_shard_ready(rig->shard) > 0)
        fb_shard_audit(rig->shard);
    return moved;
}

void rig_pump(struct rig *rig)
{
    for (unsigned rounds = 0; pump_once(rig); rounds++)
        assert_true(rounds < ROUNDS_MAX);
}

/* Goes on to the next event, at most to `end_ns`. */
static void step(struct rig *rig, uint64_t end_ns)
{
    uint64_t next = fb_min_u64(fb_sim_next_ns(rig->sim), fb_shard_next_ns(rig->shard));
    rig->now_ns = fb_max_u64(rig->now_ns, fb_min_u64(next, end_ns));
    fb_sim_advance(rig->sim, rig->now_ns);
    rig_pump(rig);
}

void rig_run(struct rig *rig, uint64_t ns)
{
    uint64_t end = rig->now_ns + ns;
    rig_pump(rig);
    while (rig->now_ns < end)
        step(rig, end);
}

int rig_result(struct rig *rig, struct rig_op *op)
{
    uint64_t limit = fb_add_saturated(op->op.deadline_ns, GRACE_NS);
    rig_pump(rig);
    while (!op->done) {
        assert_true(rig->now_ns < limit);
        step(rig, limit);
    }
    return op->op.result;
}

int rig_end(struct rig *rig, struct rig_op *op)
{
    int result = rig_result(rig, op);
    uint64_t limit = rig->now_ns + SETTLE_NS;
    while (!op->closed) {
        assert_true(rig->now_ns < limit);
        step(rig, limit);
    }
    assert_false(op->is_bad);
    op->used = false;
    return result;
}

void rig_settle(struct rig *rig)
{
    uint64_t limit = rig->now_ns + SETTLE_NS;
    rig_pump(rig);
    while (rig_stats(rig).dirty_bytes > 0 && fb_shard_tier(rig->shard) != FB_TIER_FENCED) {
        assert_true(rig->now_ns < limit);
        step(rig, limit);
    }
}

/* ---- operations ---- */

struct rig_op *rig_prepare(struct rig *rig, enum fb_op_kind kind, unsigned peer, uint64_t key)
{
    for (unsigned tries = 0; rig->ops[rig->next_op].used; tries++) {
        assert_true(tries < RIG_OPS);
        rig->next_op = (rig->next_op + 1) % RIG_OPS;
    }
    struct rig_op *op = &rig->ops[rig->next_op];
    rig->next_op = (rig->next_op + 1) % RIG_OPS;
    memset(op, 0, sizeof(*op));
    op->used = true;
    op->key = key;
    op->op.kind = (uint8_t)kind;
    op->op.peer = &rig->peers[peer];
    op->op.ns = rig->ns;
    op->op.epoch = rig->epoch;
    op->op.deadline_ns = rig->now_ns + rig->deadline_ns;
    op->op.key = op->text;
    op->op.key_bytes =
        (uint16_t)snprintf((char *)op->text, sizeof(op->text), "key-%llu", (unsigned long long)key);
    op->op.digest = rig_digest(rig, key);
    op->op.range_bytes = UINT64_MAX;
    return op;
}

void rig_go(struct rig *rig, struct rig_op *op)
{
    op->start_ns = rig->now_ns;
    fb_shard_start_op(rig->shard, rig->now_ns, &op->op);
    rig_pump(rig);
}

struct rig_op *rig_start(struct rig *rig, enum fb_op_kind kind, unsigned peer, uint64_t key)
{
    struct rig_op *op = rig_prepare(rig, kind, peer, key);
    rig_go(rig, op);
    return op;
}

struct rig_op *rig_put_as(struct rig *rig, enum rig_manner manner, unsigned peer, uint64_t key,
                          uint64_t bytes, unsigned flags, enum fb_persist persist)
{
    struct rig_op *op = rig_prepare(rig, FB_OP_PUT, peer, key);
    op->manner = (uint8_t)manner;
    op->version = ++rig->versions;
    op->lie_version = ++rig->versions;
    op->op.value_bytes = bytes;
    op->op.flags = (uint8_t)flags;
    op->op.persist = (uint8_t)persist;
    rig_go(rig, op);
    return op;
}

struct rig_op *rig_put(struct rig *rig, unsigned peer, uint64_t key, uint64_t bytes, unsigned flags,
                       enum fb_persist persist)
{
    return rig_put_as(rig, RIG_HONEST, peer, key, bytes, flags, persist);
}

struct rig_op *rig_get_range(struct rig *rig, enum rig_manner manner, unsigned peer, uint64_t key,
                             uint64_t off, uint64_t bytes, unsigned flags)
{
    struct rig_op *op = rig_prepare(rig, FB_OP_GET, peer, key);
    op->manner = (uint8_t)manner;
    op->op.flags = (uint8_t)flags;
    op->op.range_off = off;
    op->op.range_bytes = bytes;
    rig_go(rig, op);
    return op;
}

struct rig_op *rig_get(struct rig *rig, unsigned peer, uint64_t key, unsigned flags)
{
    return rig_get_range(rig, RIG_HONEST, peer, key, 0, UINT64_MAX, flags);
}

uint64_t rig_must_put(struct rig *rig, uint64_t key, uint64_t bytes)
{
    struct rig_op *op = rig_put(rig, 0, key, bytes, 0, FB_PERSIST_DEFAULT);
    uint64_t version = op->version;
    int result = rig_end(rig, op);
    if (result != FB_OK)
        print_error("put of key %llu: %s\n", (unsigned long long)key, fb_result_name(result));
    assert_int_equal(result, FB_OK);
    return version;
}

void rig_must_get(struct rig *rig, uint64_t key, uint64_t version)
{
    struct rig_op *op = rig_get(rig, 0, key, 0);
    int result = rig_end(rig, op);
    if (result != FB_OK)
        print_error("get of key %llu: %s, %s\n", (unsigned long long)key, fb_result_name(result),
                    fb_reason_name(op->op.reason));
    assert_int_equal(result, FB_OK);
    assert_int_equal(op->seen, version);
    assert_int_equal(op->seen_bytes, op->op.value_bytes);
}

enum fb_reason rig_must_miss(struct rig *rig, uint64_t key)
{
    struct rig_op *op = rig_get(rig, 0, key, 0);
    assert_int_equal(rig_end(rig, op), FB_MISS);
    return (enum fb_reason)op->op.reason;
}

unsigned rig_look(struct rig *rig, uint64_t key, uint32_t hold_ms, uint32_t loads)
{
    struct rig_op *op = rig_prepare(rig, FB_OP_LOOKUP, 0, key);
    struct fb_digest digest = rig_digest(rig, key);
    uint8_t found = 0;
    op->op.digests = &digest;
    op->op.found = &found;
    op->op.n = 1;
    op->op.hold_ms = hold_ms;
    op->op.hold_loads = loads;
    rig_go(rig, op);
    assert_int_equal(rig_end(rig, op), FB_OK);
    return found;
}

void rig_bump(struct rig *rig)
{
    struct rig_op *op = rig_start(rig, FB_OP_EPOCH, 0, 0);
    assert_int_equal(rig_end(rig, op), FB_OK);
    assert_int_equal(op->op.epoch, rig->epoch + 1);
    rig->epoch = op->op.epoch;
}

struct fb_shard_stats rig_stats(const struct rig *rig)
{
    struct fb_shard_stats stats;
    fb_shard_stats(rig->shard, &stats);
    return stats;
}

struct fb_log_stats rig_log_stats(const struct rig *rig)
{
    struct fb_log_stats stats;
    fb_shard_log_stats(rig->shard, &stats);
    return stats;
}
