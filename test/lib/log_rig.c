/*
 * The rig of log_rig.h.
 */
#include "test/lib/log_rig.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/bits.h"
#include "base/result.h"
#include "test/lib/cm.h"

#define CAPACITY        FB_MIB(16)
#define LINGER_NS       (2 * FB_MS_NS)
#define SLOT_PAGES      16 /* a chunk of the least capacity */
#define REAP_MAX        32
#define STEPS_MAX       2000000
#define COUNTER_MASK    ((UINT64_C(1) << 40) - 1)
#define GENERATIONS_MAX (1u << 20)
#define DELAY_NS        (400 * FB_MS_NS)
#define STAGE_SLOTS     4

static uint32_t slot_number(const struct rig_slot *slot)
{
    return (uint32_t)(slot - slot->rig->slots);
}

static uint64_t chunk_pages(const struct rig *rig)
{
    return rig->geometry.chunk_bytes / FB_PAGE_BYTES;
}

/* Something that must never be. */
__attribute__((format(printf, 2, 3))) static void violation(const struct rig *rig,
                                                            const char *format, ...)
{
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    if (rig->options.is_hunt) {
        (void)fprintf(stderr, "violation: %s\n", text);
        abort();
    }
    fail_msg("seed %llu: %s", (unsigned long long)rig->options.seed, text);
}

/* ---- values ---- */

static struct fb_sim_value value_of(const struct rig *rig, uint32_t key, uint64_t generation)
{
    return (struct fb_sim_value){.key = key + 1,
                                 .version = generation & COUNTER_MASK,
                                 .bytes = rig_bytes(rig, generation)};
}

uint32_t rig_bytes(const struct rig *rig, uint64_t generation)
{
    uint64_t counter = generation & COUNTER_MASK;
    assert_true(counter > 0 && counter < GENERATIONS_MAX);
    return rig->bytes_of[counter];
}

/* The extents of a slot: its pages, cut into runs in a way that depends on the slot. */
static uint16_t make_runs(const struct rig *rig, uint32_t slot, uint32_t bytes,
                          struct fb_io_vec *vec)
{
    uint64_t base = slot * chunk_pages(rig) * FB_PAGE_BYTES;
    uint32_t pages = (uint32_t)fb_div_up(bytes, FB_PAGE_BYTES), done = 0;
    uint16_t count = 0;
    while (done < pages) {
        uint32_t run = 1 + (slot + count) % 3;
        if (run > pages - done)
            run = pages - done;
        /* Backwards, so that runs are not next to each other. */
        uint64_t first = chunk_pages(rig) - done - run;
        vec[count++] = (struct fb_io_vec){.off = base + first * FB_PAGE_BYTES,
                                          .len = run * FB_PAGE_BYTES,
                                          .space = FB_IO_ARENA};
        done += run;
    }
    return count;
}

static void fill_record(struct rig *rig, struct rig_slot *slot, uint32_t key, uint64_t generation)
{
    struct fb_log_record *record = &slot->item.record;
    int length = snprintf((char *)slot->key_text, sizeof(slot->key_text), "key-%u", key);
    *record = (struct fb_log_record){.kind = FB_LOG_VALUE,
                                     .class_hint = (uint8_t)(key % FB_LOG_CLASSES),
                                     .pin_class = 2,
                                     .key_bytes = (uint16_t)length,
                                     .depth = (uint16_t)key,
                                     .parts = 1,
                                     .epoch = 1,
                                     .digest = rig->digests[key],
                                     .group = {.hi = 0, .lo = key % 4},
                                     .origin = rig->config.node_id,
                                     .generation = generation,
                                     .root = generation * 31,
                                     .key = slot->key_text};
    memset(record->namespace_id, 7, sizeof(record->namespace_id));
}

static void fill_value(struct rig *rig, struct rig_slot *slot, bool write)
{
    struct fb_log_record *record = &slot->item.record;
    struct fb_sim_value value = value_of(rig, slot->key, slot->generation);
    record->part_bytes = (uint32_t)value.bytes;
    record->value_bytes = value.bytes;
    record->leaf_count = (uint32_t)fb_div_up(value.bytes, FB_LEAF_BYTES);
    fb_sim_value_leaves(&value, 0, record->leaf_count, record->leaves);
    slot->item.vec_count = make_runs(rig, slot_number(slot), record->part_bytes, slot->item.vec);
    if (write)
        fb_sim_write_pages(rig->sim, slot->item.vec, slot->item.vec_count, &value, 0, 0,
                           fb_div_up(value.bytes, FB_PAGE_BYTES));
}

/* ---- slots ---- */

static struct rig_slot *take_slot(struct rig *rig, enum rig_use use, uint32_t key)
{
    for (uint32_t i = 0; i < RIG_SLOTS; i++) {
        struct rig_slot *slot = &rig->slots[i];
        if (slot->use != RIG_FREE)
            continue;
        memset(&slot->item, 0, sizeof(slot->item));
        slot->use = use;
        slot->key = key;
        slot->is_done = false;
        slot->result = 1;
        slot->after = 0;
        return slot;
    }
    return NULL;
}

static bool is_key_busy(const struct rig *rig, uint32_t key)
{
    for (uint32_t i = 0; i < RIG_SLOTS; i++) {
        const struct rig_slot *slot = &rig->slots[i];
        if (slot->key == key && (slot->use == RIG_PUT || slot->use == RIG_TOMB))
            return true;
    }
    return false;
}

/* ---- the owner ---- */

static bool is_same_addr(const struct fb_log_addr *a, const struct fb_log_addr *b)
{
    return a->incarnation == b->incarnation && a->segment == b->segment && a->block == b->block;
}

static uint32_t key_of(const struct rig *rig, const struct fb_digest *digest)
{
    for (uint32_t i = 0; i < RIG_KEYS; i++) {
        if (fb_digest_is_equal(rig->digests[i], *digest))
            return i;
    }
    fail_msg("a record of no known key");
    return 0;
}

/* A put is complete: its value is durable, and what it kills is dead. */
static void put_done(struct rig *rig, struct rig_slot *slot)
{
    struct rig_promise *promise = &rig->promise[slot->key];
    if (slot->result == FB_OK) {
        if (slot->generation > promise->durable)
            promise->durable = slot->generation;
        rig->index[slot->key].generation = slot->generation;
        rig->index[slot->key].addr = slot->item.addr;
    }
    slot->use = RIG_FREE;
}

static void tomb_done(struct rig *rig, struct rig_slot *slot)
{
    struct rig_promise *promise = &rig->promise[slot->key];
    struct rig_entry *entry = &rig->index[slot->key];
    if (slot->result == FB_OK) {
        if (slot->generation > promise->removed)
            promise->removed = slot->generation;
        if (entry->maybe <= slot->generation)
            entry->maybe = 0;
    }
    struct rig_slot *put = slot->after != 0 ? &rig->slots[slot->after - 1] : NULL;
    slot->use = RIG_FREE;
    if (put == NULL)
        return;
    put->after = 0;
    if (slot->result != FB_OK) {
        put->result = slot->result;
        put->is_done = true;
        put_done(rig, put);
        return;
    }
    fb_log_append(rig->log, rig->now_ns, &put->item);
}

static void copy_over(struct rig *rig, struct rig_slot *slot)
{
    struct fb_log_addr from = slot->from;
    slot->use = RIG_FREE;
    fb_log_copied(rig->log, rig->now_ns, &from);
}

static void on_durable(void *ctx, struct fb_log_item *item, int result)
{
    struct rig *rig = ctx;
    struct rig_slot *slot = FB_LIST_ITEM(item, struct rig_slot, item);
    assert_ptr_equal(slot->rig, rig);
    assert_false(slot->is_done);
    slot->is_done = true;
    slot->result = result;
    if (result == FB_OK)
        rig->durable_calls++;
    else
        rig->failed_calls++;
    switch (slot->use) {
    case RIG_PUT:
        put_done(rig, slot);
        break;
    case RIG_TOMB:
        tomb_done(rig, slot);
        break;
    case RIG_COPY_PUT: {
        struct rig_entry *entry = &rig->index[slot->key];
        if (result == FB_OK && entry->generation == slot->generation &&
            is_same_addr(&entry->addr, &slot->from))
            entry->addr = item->addr;
        else if (result == FB_OK)
            fb_log_garbage(rig->log, &item->addr, item->record.part_bytes);
        copy_over(rig, slot);
        break;
    }
    default:
        fail_msg("durable for a slot of use %d", slot->use);
    }
}

bool rig_is_exact(struct rig *rig, const struct rig_slot *slot)
{
    struct fb_sim_value value = value_of(rig, slot->key, slot->generation);
    return fb_sim_check_pages(rig->sim, slot->read.vec, slot->read.vec_count, &value, 0, 0,
                              fb_div_up(value.bytes, FB_PAGE_BYTES), NULL) == 0;
}

static void on_read(void *ctx, struct fb_log_read *read, int result)
{
    struct rig *rig = ctx;
    struct rig_slot *slot = FB_LIST_ITEM(read, struct rig_slot, read);
    assert_false(slot->is_done);
    slot->is_done = true;
    slot->result = result;
    if (slot->use == RIG_GET_LOOSE) {
        if (result == FB_OK && !rig_is_exact(rig, slot) && !rig->is_lossy)
            violation(rig, "a read of key %u brought other bytes", slot->key);
        slot->use = RIG_FREE;
        return;
    }
    if (slot->use != RIG_COPY_READ)
        return;
    struct rig_entry *entry = &rig->index[slot->key];
    bool is_live = entry->generation == slot->generation && is_same_addr(&entry->addr, &slot->from);
    if (result != FB_OK || !is_live || !rig_is_exact(rig, slot)) {
        copy_over(rig, slot);
        return;
    }
    slot->use = RIG_COPY_PUT;
    slot->is_done = false;
    memcpy(slot->item.vec, slot->read.vec, sizeof(slot->item.vec));
    fb_log_append(rig->log, rig->now_ns, &slot->item);
}

static void on_recovered(void *ctx, const struct fb_log_record *record,
                         const struct fb_log_addr *addr)
{
    struct rig *rig = ctx;
    uint32_t key = key_of(rig, &record->digest);
    struct rig_entry *entry = &rig->index[key];
    rig->recovered++;
    if (record->kind == FB_LOG_TOMB) {
        rig->tombs[key] = fb_max_u64(rig->tombs[key], record->generation);
        return;
    }
    assert_int_equal(record->part_bytes, rig_bytes(rig, record->generation));
    assert_int_equal(record->root, record->generation * 31);
    assert_int_equal(record->origin, rig->config.node_id);
    assert_true(record->generation <= rig->promise[key].last);
    bool is_newer =
        record->generation > entry->generation ||
        (record->generation == entry->generation && addr->incarnation > entry->addr.incarnation);
    if (!is_newer)
        return;
    entry->generation = record->generation;
    entry->addr = *addr;
}

static void on_recovery_done(void *ctx, int result)
{
    struct rig *rig = ctx;
    assert_int_equal(rig->start_result, 1);
    rig->start_result = result;
    if (result != FB_OK)
        return;
    for (uint32_t i = 0; i < RIG_KEYS; i++) {
        struct rig_entry *entry = &rig->index[i];
        if (entry->generation <= rig->tombs[i])
            entry->generation = 0;
        entry->maybe = entry->generation;
        uint64_t generation, when_ms, since_ms;
        if (fb_log_history(rig->log, &rig->digests[i], &generation, &when_ms, &since_ms))
            rig->promise[i].given_up = fb_max_u64(rig->promise[i].given_up, generation);
    }
    rig->boot = fb_log_boot(rig->log);
}

static bool is_kept(const struct rig *rig, uint32_t key)
{
    return rig->options.is_heavy_copy ||
           (rig->options.keep_every != 0 && key % rig->options.keep_every == 0);
}

static enum fb_log_verdict on_judge(void *ctx, const struct fb_log_record *record,
                                    const struct fb_log_addr *addr)
{
    struct rig *rig = ctx;
    uint32_t key = key_of(rig, &record->digest);
    const struct rig_entry *entry = &rig->index[key];
    if (entry->generation != record->generation || !is_same_addr(&entry->addr, addr))
        return FB_LOG_DEAD;
    return is_kept(rig, key) ? FB_LOG_KEEP : FB_LOG_DROP;
}

static void begin_read(struct rig *rig, struct rig_slot *slot, const struct fb_log_addr *addr)
{
    uint32_t bytes = rig_bytes(rig, slot->generation);
    slot->read =
        (struct fb_log_read){.addr = *addr, .bytes = (uint32_t)fb_align_up(bytes, FB_PAGE_BYTES)};
    slot->read.vec_count = make_runs(rig, slot_number(slot), bytes, slot->read.vec);
    fb_log_read(rig->log, rig->now_ns, &slot->read);
}

static void on_copy(void *ctx, const struct fb_log_record *record, const struct fb_log_addr *addr)
{
    struct rig *rig = ctx;
    uint32_t key = key_of(rig, &record->digest);
    char text[64];
    (void)snprintf(text, sizeof(text), "key-%u", key);
    assert_int_equal(record->key_bytes, strlen(text));
    assert_memory_equal(record->key, text, record->key_bytes);
    rig->copies_asked++;
    if (rig->no_answer_to_copy)
        return;
    struct rig_slot *slot = take_slot(rig, RIG_COPY_READ, key);
    if (slot == NULL) {
        fb_log_copied(rig->log, rig->now_ns, addr); /* not copied: it will be dropped */
        return;
    }
    slot->generation = record->generation;
    slot->from = *addr;
    fill_record(rig, slot, key, record->generation);
    fill_value(rig, slot, false);
    begin_read(rig, slot, addr);
}

static void on_dropped(void *ctx, const struct fb_digest *digest, uint64_t generation,
                       const struct fb_log_addr *addr)
{
    struct rig *rig = ctx;
    struct rig_entry *entry = &rig->index[key_of(rig, digest)];
    rig->dropped++;
    struct rig_promise *promise = &rig->promise[key_of(rig, digest)];
    promise->given_up = fb_max_u64(promise->given_up, generation);
    if (entry->generation == generation && is_same_addr(&entry->addr, addr))
        entry->generation = 0;
}

static void on_changed(void *ctx)
{
    struct rig *rig = ctx;
    rig->changes++;
}

static const struct fb_log_owner owner_calls = {.durable = on_durable,
                                                .read_done = on_read,
                                                .recovered = on_recovered,
                                                .recovery_done = on_recovery_done,
                                                .judge = on_judge,
                                                .copy = on_copy,
                                                .dropped = on_dropped,
                                                .changed = on_changed};

/* ---- making ---- */

static void boundary(void *context, const struct fb_sim *sim, uint64_t number)
{
    struct rig *rig = context;
    (void)sim;
    if (rig->boundary != NULL)
        rig->boundary(rig, number);
}

static void open_sim(struct rig *rig)
{
    uint64_t arena = (RIG_SLOTS + STAGE_SLOTS) * (uint64_t)rig->geometry.chunk_bytes;
    struct fb_sim_config config = {.seed = rig->options.seed,
                                   .arena_bytes = arena,
                                   .meta = rig->meta,
                                   .meta_bytes = rig->meta_bytes,
                                   .device_count = 1,
                                   .device_bytes = {rig->config.capacity_bytes},
                                   .latency = fb_sim_latency_default(),
                                   .rates = rig->options.rates,
                                   .script = rig->options.script,
                                   .boundary = rig->options.has_boundary ? boundary : NULL,
                                   .boundary_context = rig};
    config.latency.delay_ns = DELAY_NS;
    assert_int_equal(fb_sim_open(&config, &rig->sim), 0);
}

struct rig *rig_open(const struct rig_options *options)
{
    struct rig *rig = calloc(1, sizeof(*rig));
    assert_non_null(rig);
    rig->options = *options;
    struct rig_options *o = &rig->options;
    o->capacity_bytes = o->capacity_bytes != 0 ? o->capacity_bytes : CAPACITY;
    assert_int_equal(fb_log_geometry(o->capacity_bytes, &rig->geometry), 0);
    uint64_t stage = RIG_SLOTS * (uint64_t)rig->geometry.chunk_bytes;
    rig->config =
        (struct fb_log_config){.capacity_bytes = o->capacity_bytes,
                               .shards = 1,
                               .node_id = o->node_id != 0 ? o->node_id : 42,
                               .io_errors_to_fence =
                                   o->errors_to_fence != 0 ? o->errors_to_fence : 1000000,
                               .read_depth = 16,
                               .write_depth = 8,
                               .linger_ns = o->linger_ns != 0 ? o->linger_ns : LINGER_NS,
                               .batch_bytes =
                                   o->batch_bytes != 0 ? o->batch_bytes : rig->geometry.chunk_bytes,
                               .tombs_max = o->tombs_max != 0 ? o->tombs_max : 100000,
                               .reserve_segments = 2,
                               .stage_base = stage,
                               .stage_bytes = STAGE_SLOTS * rig->geometry.chunk_bytes,
                               .device_seed = {o->seed + 1, 77}};
    rig->memory_bytes = fb_log_footprint(&rig->config);
    rig->memory = aligned_alloc(4096, fb_align_up(rig->memory_bytes, 4096));
    rig->meta_bytes = fb_log_meta_footprint(&rig->config);
    rig->meta = aligned_alloc(4096, rig->meta_bytes);
    assert_non_null(rig->memory);
    assert_non_null(rig->meta);
    for (uint32_t i = 0; i < RIG_KEYS; i++)
        rig->digests[i] = (struct fb_digest){.hi = i + 1, .lo = fb_mix64(i + 1)};
    rig->bytes_of = calloc(GENERATIONS_MAX, sizeof(*rig->bytes_of));
    assert_non_null(rig->bytes_of);
    fb_prng_seed(&rig->prng, o->seed);
    rig->wall_ms = 1000000;
    open_sim(rig);
    rig_reset_log(rig);
    return rig;
}

void rig_close(struct rig *rig)
{
    fb_io_close(fb_sim_io(rig->sim));
    free(rig->memory);
    free(rig->meta);
    free(rig->bytes_of);
    free(rig);
}

void rig_reset_log(struct rig *rig)
{
    if (fb_sim_in_flight(rig->sim) > 0)
        fb_sim_kill(rig->sim, rig->now_ns); /* the memory of its requests goes away */
    struct fb_region region;
    fb_region_init(&region, rig->memory, rig->memory_bytes);
    memset(rig->meta, 0xa5, rig->meta_bytes);
    struct fb_log_owner owner = owner_calls;
    owner.ctx = rig;
    rig->log = fb_log_init(&rig->config, &region, rig->meta, &owner);
    for (uint32_t i = 0; i < RIG_SLOTS; i++) {
        rig->slots[i].use = RIG_FREE;
        rig->slots[i].rig = rig;
    }
    memset(rig->index, 0, sizeof(rig->index));
    memset(rig->tombs, 0, sizeof(rig->tombs));
    rig->start_result = 1;
    rig->recovered = 0;
}

int rig_start(struct rig *rig, bool format)
{
    rig_reset_log(rig);
    fb_log_start(rig->log, rig->now_ns, format);
    for (uint32_t steps = 0; rig->start_result == 1; steps++) {
        assert_true(steps < STEPS_MAX);
        assert_true(rig_step(rig, 60 * FB_SEC_NS));
    }
    return rig->start_result;
}

int rig_crash(struct rig *rig, enum fb_sim_cut cut, uint64_t seed)
{
    fb_sim_power_cut(rig->sim, cut, seed);
    return rig_start(rig, false);
}

/* ---- running ---- */

void rig_submit(struct rig *rig)
{
    struct fb_io_req *req;
    while ((req = fb_log_take_io(rig->log, rig->now_ns)) != NULL)
        fb_io_submit(fb_sim_io(rig->sim), req);
}

bool rig_step(struct rig *rig, uint64_t ns)
{
    rig_submit(rig);
    uint64_t next_io = fb_sim_next_ns(rig->sim);
    uint64_t next_tick = fb_log_next_ns(rig->log);
    uint64_t next = fb_min_u64(next_io, next_tick);
    struct fb_io_req *done[REAP_MAX];
    size_t count = fb_io_reap(fb_sim_io(rig->sim), done, REAP_MAX);
    if (count == 0 && (next == UINT64_MAX || next > rig->now_ns + ns))
        return false;
    if (count == 0) {
        rig->now_ns = fb_max_u64(rig->now_ns, next);
        rig->wall_ms = 1000000 + rig->now_ns / FB_MS_NS;
        fb_sim_advance(rig->sim, rig->now_ns);
        count = fb_io_reap(fb_sim_io(rig->sim), done, REAP_MAX);
    }
    for (size_t i = 0; i < count; i++)
        fb_log_io_done(rig->log, rig->now_ns, done[i]);
    if (next_tick <= rig->now_ns)
        fb_log_tick(rig->log, rig->now_ns, rig->wall_ms);
    rig_submit(rig);
    return true;
}

void rig_run(struct rig *rig, uint64_t ns)
{
    uint64_t until = rig->now_ns + ns;
    fb_log_tick(rig->log, rig->now_ns, rig->wall_ms);
    for (uint32_t steps = 0; rig->now_ns <= until && rig_step(rig, until - rig->now_ns); steps++)
        assert_true(steps < STEPS_MAX);
    rig->now_ns = fb_max_u64(rig->now_ns, until);
    fb_sim_advance(rig->sim, rig->now_ns);
}

/* ---- operations ---- */

/* A tombstone up to a generation; whatever is queued of the key is cancelled before. */
static struct rig_slot *append_tomb(struct rig *rig, uint32_t key, uint64_t generation,
                                    uint32_t after)
{
    struct rig_slot *slot = take_slot(rig, RIG_TOMB, key);
    if (slot == NULL)
        return NULL;
    slot->generation = generation;
    slot->after = after;
    fill_record(rig, slot, key, generation);
    slot->item.record.kind = FB_LOG_TOMB;
    slot->item.record.group = (struct fb_digest){0};
    slot->item.urgent = true;
    /* A copy of it that is queued would come behind the tombstone. */
    for (uint32_t i = 0; i < RIG_SLOTS; i++) {
        struct rig_slot *other = &rig->slots[i];
        if (other->use == RIG_COPY_PUT && other->key == key && !other->is_done &&
            fb_log_cancel(rig->log, &other->item)) {
            other->is_done = true;
            copy_over(rig, other);
        }
    }
    fb_log_append(rig->log, rig->now_ns, &slot->item);
    return slot;
}

struct rig_slot *rig_put(struct rig *rig, uint32_t key, uint32_t bytes, bool urgent)
{
    assert_true(bytes > 0 && bytes <= rig->geometry.chunk_bytes);
    if (is_key_busy(rig, key))
        return NULL;
    uint32_t free_slots = 0;
    for (uint32_t i = 0; i < RIG_SLOTS; i++)
        free_slots += rig->slots[i].use == RIG_FREE;
    if (free_slots < 20) /* some are for copies */
        return NULL;
    struct rig_slot *slot = take_slot(rig, RIG_PUT, key);
    rig->counter++;
    assert_true(rig->counter < GENERATIONS_MAX);
    rig->bytes_of[rig->counter] = bytes;
    slot->generation = rig->boot << 40 | rig->counter;
    struct rig_entry *entry = &rig->index[key];
    uint64_t older = fb_max_u64(entry->maybe, entry->generation);
    assert_true(slot->generation > older && slot->generation > rig->promise[key].last);
    rig->promise[key].last = slot->generation;
    fill_record(rig, slot, key, slot->generation);
    fill_value(rig, slot, true);
    slot->item.urgent = urgent;
    entry->maybe = slot->generation;
    if (older == 0) {
        fb_log_append(rig->log, rig->now_ns, &slot->item);
        return slot;
    }
    if (entry->generation != 0)
        fb_log_garbage(rig->log, &entry->addr, rig_bytes(rig, entry->generation));
    entry->generation = 0;
    rig->promise[key].removing = fb_max_u64(rig->promise[key].removing, older);
    struct rig_slot *tomb = append_tomb(rig, key, older, slot_number(slot) + 1);
    assert_non_null(tomb);
    return slot;
}

struct rig_slot *rig_remove(struct rig *rig, uint32_t key)
{
    struct rig_entry *entry = &rig->index[key];
    if (is_key_busy(rig, key) || entry->maybe == 0)
        return NULL;
    uint64_t generation = entry->maybe;
    rig->promise[key].removing = fb_max_u64(rig->promise[key].removing, generation);
    struct rig_slot *slot = append_tomb(rig, key, generation, 0);
    if (slot == NULL)
        return NULL;
    if (entry->generation != 0)
        fb_log_garbage(rig->log, &entry->addr, rig_bytes(rig, entry->generation));
    entry->generation = 0;
    return slot;
}

struct rig_slot *rig_get_begin(struct rig *rig, uint32_t key)
{
    const struct rig_entry *entry = &rig->index[key];
    if (entry->generation == 0)
        return NULL;
    struct rig_slot *slot = take_slot(rig, RIG_GET, key);
    if (slot == NULL)
        return NULL;
    slot->generation = entry->generation;
    begin_read(rig, slot, &entry->addr);
    return slot;
}

int rig_get(struct rig *rig, uint32_t key)
{
    struct rig_slot *slot = rig_get_begin(rig, key);
    if (slot == NULL)
        return FB_MISS;
    for (uint32_t steps = 0; !slot->is_done; steps++) {
        assert_true(steps < STEPS_MAX);
        assert_true(rig_step(rig, 60 * FB_SEC_NS));
    }
    int result = slot->result;
    if (result == FB_OK && !rig_is_exact(rig, slot))
        result = FB_BAD_CHECKSUM;
    slot->use = RIG_FREE;
    return result;
}

void rig_random_op(struct rig *rig)
{
    uint32_t key = (uint32_t)fb_prng_below(&rig->prng, RIG_KEYS);
    uint32_t bytes = 1 + (uint32_t)fb_prng_below(&rig->prng, 40000);
    switch (fb_prng_below(&rig->prng, 10)) {
    case 0:
    case 1:
        (void)rig_remove(rig, key);
        break;
    case 2:
        if (fb_prng_below(&rig->prng, 4) == 0) {
            int result = rig_get(rig, key);
            if (!rig->is_lossy)
                assert_true(result == FB_OK || result == FB_MISS);
        }
        break;
    default:
        (void)rig_put(rig, key, bytes, fb_prng_below(&rig->prng, 3) == 0);
        break;
    }
    uint32_t steps = (uint32_t)fb_prng_below(&rig->prng, 6);
    while (steps-- > 0 && rig_step(rig, 10 * FB_MS_NS))
        continue;
}

/* ---- checking ---- */

static void check_key(struct rig *rig, uint32_t key)
{
    const struct rig_promise *promise = &rig->promise[key];
    uint64_t now = rig->index[key].generation;
    if (now != 0) {
        if (now <= promise->removed && !rig->is_lying)
            violation(rig, "key %u: generation %llx is back, removed up to %llx", key,
                      (unsigned long long)now, (unsigned long long)promise->removed);
        if (now < promise->durable && !rig->is_lossy)
            violation(rig, "key %u: generation %llx is older than %llx, which was durable", key,
                      (unsigned long long)now, (unsigned long long)promise->durable);
        int result = rig_get(rig, key);
        if (result != FB_OK && !rig->is_lossy)
            violation(rig, "key %u generation %llx: read gave %s", key, (unsigned long long)now,
                      fb_result_name(result));
        return;
    }
    if (promise->durable > promise->removed && promise->durable > promise->removing &&
        promise->durable > promise->given_up && !rig->is_lossy)
        violation(rig, "key %u: generation %llx was durable and is lost", key,
                  (unsigned long long)promise->durable);
}

void rig_check(struct rig *rig)
{
    for (uint32_t i = 0; i < RIG_KEYS; i++) {
        if (!is_key_busy(rig, i))
            check_key(rig, i);
    }
}

struct fb_log_stats rig_stats(const struct rig *rig)
{
    struct fb_log_stats stats;
    fb_log_stats(rig->log, &stats);
    return stats;
}

void rig_clone_cut(const struct rig *from, struct rig *to, enum fb_sim_cut cut, uint64_t seed)
{
    fb_sim_clone_cut(from->sim, to->sim, cut, seed);
    memcpy(to->promise, from->promise, sizeof(to->promise));
    memcpy(to->bytes_of, from->bytes_of, (size_t)(from->counter + 1) * sizeof(*to->bytes_of));
    to->counter = from->counter;
    to->now_ns = from->now_ns;
    to->wall_ms = from->wall_ms;
}

/* ---- a life ---- */

#define LIFE_ROUNDS 12
#define LIFE_OPS    120
#define LIFE_PUTS   400

static void add_stats(const struct rig *rig, struct fb_log_stats *sum)
{
    struct fb_log_stats stats = rig_stats(rig);
    const uint64_t *from = (const uint64_t *)&stats;
    uint64_t *to = (uint64_t *)sum;
    for (size_t i = 0; i < sizeof(stats) / sizeof(uint64_t); i++)
        to[i] += from[i];
}

static void load(struct rig *rig, bool is_long)
{
    for (uint32_t i = 0; i < LIFE_OPS; i++)
        rig_random_op(rig);
    for (uint32_t i = 0; is_long && i < LIFE_PUTS; i++) {
        (void)rig_put(rig, (uint32_t)fb_prng_below(&rig->prng, RIG_KEYS), 60000, false);
        (void)rig_step(rig, FB_MS_NS);
    }
}

/* Starts, and is killed before or soon after that has ended. */
static void start_and_die(struct rig *rig, uint64_t seed)
{
    rig_reset_log(rig);
    fb_log_start(rig->log, rig->now_ns, false);
    uint32_t steps = (uint32_t)fb_prng_below(&rig->prng, 40);
    while (steps-- > 0 && rig->start_result == 1 && rig_step(rig, FB_SEC_NS))
        continue;
    enum fb_sim_cut cut = (enum fb_sim_cut)fb_prng_below(&rig->prng, FB_SIM_CUT_COUNT);
    fb_sim_power_cut(rig->sim, cut, seed);
}

static void start_again(struct rig *rig)
{
    if (rig_start(rig, false) != FB_OK)
        violation(rig, "the start failed: %s", fb_log_start_error(rig->log));
}

void rig_live(uint64_t seed, const struct fb_sim_rates *rates, enum rig_honesty honesty,
              bool is_hunt, struct fb_log_stats *sum)
{
    struct rig_options options = {.seed = seed,
                                  .keep_every = (uint32_t)(seed % 7),
                                  .tombs_max = seed % 3 == 0 ? 40 : 0,
                                  .linger_ns = seed % 2 == 0 ? 200 * FB_US_NS : 0,
                                  .is_hunt = is_hunt};
    struct rig *rig = rig_open(&options);
    rig->is_lossy = honesty != RIG_HONEST;
    rig->is_lying = honesty == RIG_LIES;
    const struct fb_sim_rates none = {0};
    start_again(rig);
    for (uint32_t round = 0; round < LIFE_ROUNDS; round++) {
        fb_sim_set_rates(rig->sim, rates);
        load(rig, round % 4 == 1);
        add_stats(rig, sum);
        if (honesty != RIG_MISREADS) /* a start must stand misreads too */
            fb_sim_set_rates(rig->sim, &none);
        enum fb_sim_cut cut = (enum fb_sim_cut)fb_prng_below(&rig->prng, FB_SIM_CUT_COUNT);
        if (fb_prng_below(&rig->prng, 3) == 0)
            fb_sim_kill(rig->sim, seed * LIFE_ROUNDS + round);
        else
            fb_sim_power_cut(rig->sim, cut, seed * LIFE_ROUNDS + round);
        if (round % 3 == 2)
            start_and_die(rig, seed);
        start_again(rig);
        rig_check(rig);
        add_stats(rig, sum);
    }
    fb_sim_set_rates(rig->sim, &none);
    rig_run(rig, 10 * FB_SEC_NS);
    assert_true(fb_log_idle(rig->log));
    rig_check(rig);
    rig_close(rig);
}
