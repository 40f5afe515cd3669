/*
 * shard_stand.c - see shard_stand.h.
 */
#include "test/lib/shard_stand.h"

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
#define FIELDS      "stand"

/* ---- start and end ---- */

static void fill_config(struct stand *stand)
{
    struct fb_shard_config *config = &stand->config;
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

static void on_boundary(void *context, const struct fb_sim *sim, uint64_t boundary)
{
    struct stand *stand = context;
    (void)sim;
    (void)boundary;
    if (stand->cut_at != 0 && --stand->cut_at == 0)
        stand->is_cut = true;
}

static void fill_device(struct stand *stand)
{
    struct fb_sim_config *device = &stand->device;
    if (device->seed == 0)
        device->seed = 1;
    device->arena_bytes = stand->config.pool_bytes;
    device->device_count = 1;
    device->boundary = on_boundary;
    device->boundary_context = stand;
    if (device->device_bytes[0] == 0)
        device->device_bytes[0] = fb_max_u64(stand->config.log.capacity_bytes, FB_MIB(16));
    if (device->unflushed_pages_max == 0)
        device->unflushed_pages_max = 1u << 17;
    stand->meta_bytes =
        fb_align_up(fb_max_u64(fb_shard_meta_footprint(&stand->config), FB_PAGE_BYTES),
                    FB_PAGE_BYTES);
    stand->meta = aligned_alloc(FB_PAGE_BYTES, stand->meta_bytes);
    assert_non_null(stand->meta);
    device->meta = stand->meta;
    device->meta_bytes = stand->meta_bytes;
    if (device->meta_blocks_max == 0)
        device->meta_blocks_max = 65536;
}

static void start_shard(struct stand *stand)
{
    struct fb_region region;
    fb_region_init(&region, stand->memory, stand->memory_bytes);
    stand->shard = fb_shard_init(&stand->config, &region, stand->meta);
    fb_shard_pool_faulted(stand->shard, stand->config.pool_bytes);
    fb_shard_start(stand->shard, stand->now_ns, WALL_MS + stand->now_ns / FB_MS_NS, false);
    for (unsigned i = 0; i < STAND_PEERS; i++)
        fb_shard_peer_open(stand->shard, &stand->peers[i]);
    memset(stand->ops, 0, stand->ops_max * sizeof(*stand->ops));
    stand->next_op = 0;
}

static void open_namespace(struct stand *stand)
{
    struct stand_op *op = stand_prepare(stand, FB_OP_NAMESPACE, STAND_PEERS - 1, 0);
    op->op.ns_fields = FIELDS;
    op->op.ns_fields_bytes = sizeof(FIELDS) - 1;
    memset(op->op.ns_secret, 7, sizeof(op->op.ns_secret));
    stand_go(stand, op);
    int result = stand_result(stand, op);
    if (result != FB_OK)
        print_error("namespace: %s; start: %s\n", fb_result_name(result),
                    fb_shard_start_error(stand->shard));
    assert_int_equal(result, FB_OK);
    stand->ns = op->op.ns;
    stand_end(stand, op);
    uint8_t secret[16];
    assert_true(fb_shard_namespace(stand->shard, stand->ns, stand->id, secret, &stand->epoch));
    fb_secret_derive(&stand->secret, secret, sizeof(secret));
}

void stand_open(struct stand *stand)
{
    fill_config(stand);
    fill_device(stand);
    stand->now_ns = START_NS;
    if (stand->deadline_ns == 0)
        stand->deadline_ns = DEADLINE_NS;
    stand->memory_bytes = fb_shard_footprint(&stand->config);
    stand->memory = aligned_alloc(FB_PAGE_BYTES, fb_align_up(stand->memory_bytes, FB_PAGE_BYTES));
    if (stand->ops_max == 0)
        stand->ops_max = STAND_OPS;
    stand->ops = malloc(stand->ops_max * sizeof(*stand->ops));
    assert_true(stand->memory != NULL && stand->ops != NULL);
    assert_int_equal(fb_sim_open(&stand->device, &stand->sim), 0);
    fb_sim_advance(stand->sim, stand->now_ns);
    start_shard(stand);
    open_namespace(stand);
}

void stand_close(struct stand *stand)
{
    if (fb_shard_ready(stand->shard) > 0)
        fb_shard_audit(stand->shard);
    fb_io_close(fb_sim_io(stand->sim));
    free(stand->memory);
    free(stand->meta);
    free(stand->ops);
}

void stand_crash(struct stand *stand, enum fb_sim_cut cut, uint64_t seed)
{
    stand->cut_at = 0;
    stand->is_cut = false;
    fb_sim_power_cut(stand->sim, cut, seed);
    memset(stand->meta, 0xdb, stand->meta_bytes);
    stand->now_ns += FB_MS_NS;
    fb_sim_advance(stand->sim, stand->now_ns);
    start_shard(stand);
    open_namespace(stand);
}

/* ---- clients ---- */

static uint64_t pages_of(uint64_t bytes)
{
    return fb_div_up(bytes, FB_PAGE_BYTES);
}

struct fb_digest stand_digest(const struct stand *stand, uint64_t key)
{
    uint8_t text[STAND_KEY_BYTES];
    int bytes = snprintf((char *)text, sizeof(text), "key-%llu", (unsigned long long)key);
    return fb_digest_key(&stand->secret, stand->epoch, text, (size_t)bytes);
}

static struct fb_identity identity_of(const struct stand *stand, const struct stand_op *op)
{
    uint64_t generation = op->op.generation;
    return (struct fb_identity){.namespace_id = stand->id,
                                .epoch = op->op.epoch,
                                .key = op->op.key,
                                .key_bytes = op->op.key_bytes,
                                .generation = {.boot = (uint32_t)(generation >> 40),
                                               .counter = generation & ((UINT64_C(1) << 40) - 1)},
                                .total_bytes = op->op.value_bytes};
}

/* The root of one part of a value with this version. */
static uint64_t root_of(const struct stand *stand, const struct stand_op *op, uint64_t version,
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
    struct fb_identity identity = identity_of(stand, op);
    identity.part = part;
    identity.part_bytes = part_bytes;
    return fb_root_of(&identity, leaves, leaf);
}

static void fill_grant(struct stand *stand, struct stand_op *op)
{
    static struct fb_io_vec runs[STAND_RUNS];
    struct fb_sim_page *arena = fb_sim_arena(stand->sim);
    uint64_t version = op->manner == STAND_LYING ? op->lie_version : op->version;
    uint64_t off = 0;
    uint64_t page = 0;
    size_t count;
    while ((count = fb_shard_put_runs(stand->shard, &op->op, &off, runs, STAND_RUNS)) > 0)
        for (size_t i = 0; i < count; i++)
            for (uint64_t at = 0; at < pages_of(runs[i].len); at++)
                arena[runs[i].off / FB_PAGE_BYTES + at] =
                    fb_sim_token(op->key + 1, version, page++);
    assert_int_equal(off, op->op.value_bytes);
    assert_int_equal(page, pages_of(op->op.value_bytes));
}

static void commit(struct stand *stand, struct stand_op *op)
{
    static uint64_t roots[4096];
    uint32_t chunk = fb_shard_chunk_bytes(stand->shard);
    uint32_t parts = (uint32_t)fb_div_up(op->op.value_bytes, chunk);
    assert_true(parts <= FB_ARRAY_COUNT(roots));
    for (uint32_t part = 0; part < parts; part++) {
        uint64_t off = (uint64_t)part * chunk;
        roots[part] = root_of(stand, op, op->version, part, off,
                              (uint32_t)fb_min_u64(op->op.value_bytes - off, chunk));
    }
    fb_shard_put_commit(stand->shard, stand->now_ns, &op->op, op->op.generation, roots, parts);
}

/* Checks the wanted pages of a chunk. */
static void look_at_chunk(struct stand *stand, struct stand_op *op, unsigned number)
{
    const struct fb_chunk *chunk = &op->op.chunk[number];
    static struct fb_io_vec runs[STAND_RUNS];
    const struct fb_sim_page *arena = fb_sim_arena(stand->sim);
    uint32_t off = 0;
    uint64_t page = chunk->value_off / FB_PAGE_BYTES;
    uint64_t first = (chunk->value_off + chunk->want_off) / FB_PAGE_BYTES;
    uint64_t end = pages_of(chunk->value_off + chunk->want_off + chunk->want_bytes);
    size_t count;
    while ((count = fb_shard_chunk_runs(stand->shard, &op->op, number, &off, runs, STAND_RUNS)) > 0)
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
static void read_chunks(struct stand *stand, struct stand_op *op)
{
    for (unsigned i = 0; i < FB_GET_WINDOW; i++) {
        if (op->op.chunk[i].state != FB_CHUNK_READY && op->op.chunk[i].state != FB_CHUNK_OUT)
            continue;
        look_at_chunk(stand, op, i);
        fb_shard_chunk_release(stand->shard, stand->now_ns, &op->op, i, false);
    }
}

/* A stopped reader takes its chunks all the same: they are out. */
static void hold_chunks(struct stand *stand, struct stand_op *op)
{
    struct fb_io_vec run;
    for (unsigned i = 0; i < FB_GET_WINDOW; i++) {
        uint32_t off = 0;
        if (op->op.chunk[i].state == FB_CHUNK_READY)
            (void)fb_shard_chunk_runs(stand->shard, &op->op, i, &off, &run, 1);
    }
}

void stand_go_on(struct stand *stand, struct stand_op *op)
{
    assert_true(op->manner == STAND_STOPPED);
    op->manner = STAND_HONEST;
    if (op->closed)
        return;
    if (op->op.kind == FB_OP_PUT && op->granted) {
        /* Also if its right to was revoked: the memory must still be its own. */
        fill_grant(stand, op);
        commit(stand, op);
    } else if (op->op.kind == FB_OP_GET) {
        read_chunks(stand, op);
    }
    stand_pump(stand);
}

static void on_event(struct stand *stand, struct stand_op *op, unsigned events)
{
    assert_true(op->used && !op->closed);
    if ((events & FB_EV_GRANT) != 0) {
        op->granted = true;
        op->granted_ns = stand->now_ns;
    }
    if ((events & FB_EV_DONE) != 0) {
        assert_false(op->done);
        op->done = true;
        op->done_ns = stand->now_ns;
    }
    if ((events & FB_EV_CLOSED) != 0) {
        assert_true(op->done);
        op->closed = true;
        return;
    }
    if (op->manner == STAND_STOPPED) {
        if ((events & FB_EV_CHUNK) != 0)
            hold_chunks(stand, op);
        return;
    }
    if ((events & FB_EV_GRANT) != 0 && !op->done) {
        fill_grant(stand, op);
        commit(stand, op);
    } else if (op->op.kind == FB_OP_PUT && op->granted && op->done) {
        fb_shard_put_release(stand->shard, stand->now_ns, &op->op);
    }
    if ((events & FB_EV_CHUNK) != 0)
        read_chunks(stand, op);
}

/* ---- time ---- */

static bool pump_once(struct stand *stand)
{
    struct fb_io *io = fb_sim_io(stand->sim);
    struct fb_io_req *reaped[REAP];
    size_t count = fb_io_reap(io, reaped, REAP);
    for (size_t i = 0; i < count; i++)
        fb_shard_io_done(stand->shard, stand->now_ns, reaped[i]);
    bool moved = count > 0;
    unsigned events;
    for (struct fb_op *op; (op = fb_shard_take_event(stand->shard, &events)) != NULL; moved = true)
        on_event(stand, (struct stand_op *)op, events);
    for (struct fb_io_req *req; (req = fb_shard_take_io(stand->shard, stand->now_ns)) != NULL;
         moved = true) {
        fb_io_submit(io, req);
        if (stand->is_cut)
            return false;
    }
    if (fb_shard_next_ns(stand->shard) <= stand->now_ns) {
        fb_shard_tick(stand->shard, stand->now_ns, WALL_MS + stand->now_ns / FB_MS_NS);
        moved = true;
    }
    if (stand->audits && moved && fb_shard_ready(stand->shard) > 0)
        fb_shard_audit(stand->shard);
    return moved;
}

void stand_pump(struct stand *stand)
{
    for (unsigned rounds = 0; !stand->is_cut && pump_once(stand); rounds++)
        assert_true(rounds < ROUNDS_MAX);
}

/* Goes on to the next event, at most to `end_ns`. */
static void step(struct stand *stand, uint64_t end_ns)
{
    uint64_t next = fb_min_u64(fb_sim_next_ns(stand->sim), fb_shard_next_ns(stand->shard));
    stand->now_ns = fb_max_u64(stand->now_ns, fb_min_u64(next, end_ns));
    fb_sim_advance(stand->sim, stand->now_ns);
    stand_pump(stand);
}

void stand_run(struct stand *stand, uint64_t ns)
{
    uint64_t end = stand->now_ns + ns;
    stand_pump(stand);
    while (stand->now_ns < end && !stand->is_cut)
        step(stand, end);
}

int stand_result(struct stand *stand, struct stand_op *op)
{
    uint64_t limit = fb_add_saturated(op->op.deadline_ns, GRACE_NS);
    stand_pump(stand);
    while (!op->done && !stand->is_cut) {
        assert_true(stand->now_ns < limit);
        step(stand, limit);
    }
    return op->op.result;
}

int stand_end(struct stand *stand, struct stand_op *op)
{
    int result = stand_result(stand, op);
    uint64_t limit = stand->now_ns + SETTLE_NS;
    while (!op->closed && !stand->is_cut) {
        assert_true(stand->now_ns < limit);
        step(stand, limit);
    }
    assert_false(op->is_bad);
    op->used = false;
    return result;
}

void stand_settle(struct stand *stand)
{
    uint64_t limit = stand->now_ns + SETTLE_NS;
    stand_pump(stand);
    while (stand_stats(stand).dirty_bytes > 0 && fb_shard_tier(stand->shard) != FB_TIER_FENCED) {
        assert_true(stand->now_ns < limit);
        step(stand, limit);
    }
}

/* ---- operations ---- */

struct stand_op *stand_prepare(struct stand *stand, enum fb_op_kind kind, unsigned peer,
                               uint64_t key)
{
    for (unsigned tries = 0; stand->ops[stand->next_op].used; tries++) {
        assert_true(tries < stand->ops_max);
        stand->next_op = (stand->next_op + 1) % stand->ops_max;
    }
    struct stand_op *op = &stand->ops[stand->next_op];
    stand->next_op = (stand->next_op + 1) % stand->ops_max;
    memset(op, 0, sizeof(*op));
    op->used = true;
    op->key = key;
    op->op.kind = (uint8_t)kind;
    op->op.peer = &stand->peers[peer];
    op->op.ns = stand->ns;
    op->op.epoch = stand->epoch;
    op->op.deadline_ns = stand->now_ns + stand->deadline_ns;
    op->op.key = op->text;
    op->op.key_bytes =
        (uint16_t)snprintf((char *)op->text, sizeof(op->text), "key-%llu", (unsigned long long)key);
    op->op.digest = stand_digest(stand, key);
    op->op.range_bytes = UINT64_MAX;
    return op;
}

void stand_go(struct stand *stand, struct stand_op *op)
{
    op->start_ns = stand->now_ns;
    fb_shard_start_op(stand->shard, stand->now_ns, &op->op);
    stand_pump(stand);
}

struct stand_op *stand_start(struct stand *stand, enum fb_op_kind kind, unsigned peer, uint64_t key)
{
    struct stand_op *op = stand_prepare(stand, kind, peer, key);
    stand_go(stand, op);
    return op;
}

struct stand_op *stand_put_as(struct stand *stand, enum stand_manner manner, unsigned peer,
                              uint64_t key, uint64_t bytes, unsigned flags, enum fb_persist persist)
{
    struct stand_op *op = stand_prepare(stand, FB_OP_PUT, peer, key);
    op->manner = (uint8_t)manner;
    op->version = ++stand->versions;
    op->lie_version = ++stand->versions;
    op->op.value_bytes = bytes;
    op->op.flags = (uint8_t)flags;
    op->op.persist = (uint8_t)persist;
    stand_go(stand, op);
    return op;
}

struct stand_op *stand_put(struct stand *stand, unsigned peer, uint64_t key, uint64_t bytes,
                           unsigned flags, enum fb_persist persist)
{
    return stand_put_as(stand, STAND_HONEST, peer, key, bytes, flags, persist);
}

struct stand_op *stand_get_range(struct stand *stand, enum stand_manner manner, unsigned peer,
                                 uint64_t key, uint64_t off, uint64_t bytes, unsigned flags)
{
    struct stand_op *op = stand_prepare(stand, FB_OP_GET, peer, key);
    op->manner = (uint8_t)manner;
    op->op.flags = (uint8_t)flags;
    op->op.range_off = off;
    op->op.range_bytes = bytes;
    stand_go(stand, op);
    return op;
}

struct stand_op *stand_get(struct stand *stand, unsigned peer, uint64_t key, unsigned flags)
{
    return stand_get_range(stand, STAND_HONEST, peer, key, 0, UINT64_MAX, flags);
}

uint64_t stand_must_put(struct stand *stand, uint64_t key, uint64_t bytes)
{
    struct stand_op *op = stand_put(stand, STAND_PEERS - 1, key, bytes, 0, FB_PERSIST_DEFAULT);
    uint64_t version = op->version;
    int result = stand_end(stand, op);
    if (result != FB_OK)
        print_error("put of key %llu: %s\n", (unsigned long long)key, fb_result_name(result));
    assert_int_equal(result, FB_OK);
    return version;
}

void stand_must_get(struct stand *stand, uint64_t key, uint64_t version)
{
    struct stand_op *op = stand_get(stand, STAND_PEERS - 1, key, 0);
    int result = stand_end(stand, op);
    if (result != FB_OK)
        print_error("get of key %llu: %s, %s\n", (unsigned long long)key, fb_result_name(result),
                    fb_reason_name(op->op.reason));
    assert_int_equal(result, FB_OK);
    assert_int_equal(op->seen, version);
    assert_int_equal(op->seen_bytes, op->op.value_bytes);
}

enum fb_reason stand_must_miss(struct stand *stand, uint64_t key)
{
    struct stand_op *op = stand_get(stand, STAND_PEERS - 1, key, 0);
    assert_int_equal(stand_end(stand, op), FB_MISS);
    return (enum fb_reason)op->op.reason;
}

unsigned stand_look(struct stand *stand, uint64_t key, uint32_t hold_ms, uint32_t loads)
{
    struct stand_op *op = stand_prepare(stand, FB_OP_LOOKUP, STAND_PEERS - 1, key);
    struct fb_digest digest = stand_digest(stand, key);
    uint8_t found = 0;
    op->op.digests = &digest;
    op->op.found = &found;
    op->op.n = 1;
    op->op.hold_ms = hold_ms;
    op->op.hold_loads = loads;
    stand_go(stand, op);
    assert_int_equal(stand_end(stand, op), FB_OK);
    return found;
}

void stand_bump(struct stand *stand)
{
    struct stand_op *op = stand_start(stand, FB_OP_EPOCH, STAND_PEERS - 1, 0);
    assert_int_equal(stand_end(stand, op), FB_OK);
    assert_int_equal(op->op.epoch, stand->epoch + 1);
    stand->epoch = op->op.epoch;
}

struct fb_shard_stats stand_stats(const struct stand *stand)
{
    struct fb_shard_stats stats;
    fb_shard_stats(stand->shard, &stats);
    return stats;
}

struct fb_log_stats stand_log_stats(const struct stand *stand)
{
    struct fb_log_stats stats;
    fb_shard_log_stats(stand->shard, &stats);
    return stats;
}
