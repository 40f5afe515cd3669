/*
 * sim.c - requests of the simulated backend: when they complete and what goes wrong with them.
 *
 * A request takes effect on its device at one point in time, its completion; so what is running is
 * a set of requests that have had no effect, apart from data that were taken early. All chance of a
 * run comes from one generator, in the order of calls and events.
 */
#include "io/sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "io/sim_private.h"

#define REQUESTS_DEFAULT    1024
#define UNFLUSHED_DEFAULT   65536
#define META_BLOCKS_DEFAULT 8192
#define META_BLOCKS_MAX     (1u << 24)
#define UNFLUSHED_MAX       (1u << 26)
/* Data taken early hold half of the room, and a whole request fits into the other half. */
#define UNFLUSHED_MIN   (4 * FB_IO_BYTES_MAX / FB_PAGE_BYTES)
#define SECTOR_MASK_ALL 0xffu
#define TEAR_MIX_PPM    100000
#define PERCENT         100

/* The usual speeds: an NVMe drive, and one core that hashes. */
#define READ_BYTES_PER_S  FB_GIB(3)
#define WRITE_BYTES_PER_S (READ_BYTES_PER_S / 2)
#define HASH_BYTES_PER_S  FB_GIB(20)

/* What a submitted request keeps in its scratch. */
enum {
    SCRATCH_WRITE,
    SCRATCH_NUMBER,
    SCRATCH_FAULT,
    SCRATCH_STAMP
};

_Static_assert(FB_BLOCK_BYTES / FB_SIM_SECTOR_BYTES == 8, "a mask of sectors has 8 bits");

static struct fb_sim *sim_of(struct fb_io *io)
{
    return (struct fb_sim *)((uint8_t *)io - offsetof(struct fb_sim, io));
}

/* ---- names and sums ---- */

const char *fb_sim_counter_name(enum fb_sim_counter counter)
{
    static const char *const names[FB_SIM_COUNTER_COUNT] = {
#define X(symbol, name) [FB_SIM_##symbol] = name,
        FB_SIM_COUNTER_LIST(X)
#undef X
    };
    FB_ASSERT(counter < FB_SIM_COUNTER_COUNT);
    return names[counter];
}

const char *fb_sim_cut_name(enum fb_sim_cut cut)
{
    static const char *const names[FB_SIM_CUT_COUNT] = {"all", "none", "random", "torn"};
    FB_ASSERT(cut < FB_SIM_CUT_COUNT);
    return names[cut];
}

void fb_sim_counts_add(struct fb_sim_counts *sum, const struct fb_sim_counts *one)
{
    for (unsigned op = 0; op < FB_IO_OP_COUNT; op++) {
        for (unsigned fault = 0; fault < FB_FAULT_COUNT; fault++)
            sum->fired[op][fault] += one->fired[op][fault];
    }
    for (unsigned i = 0; i < FB_SIM_COUNTER_COUNT; i++)
        sum->counter[i] += one->counter[i];
}

struct fb_sim_latency fb_sim_latency_default(void)
{
    return (struct fb_sim_latency){
        .base_ns = {[FB_IO_READ] = 80 * FB_US_NS,
                    [FB_IO_WRITE] = 20 * FB_US_NS,
                    [FB_IO_FLUSH] = 200 * FB_US_NS,
                    [FB_IO_HASH] = 2 * FB_US_NS,
                    [FB_IO_GROW] = FB_MS_NS},
        .read_bytes_per_s = READ_BYTES_PER_S,
        .write_bytes_per_s = WRITE_BYTES_PER_S,
        .hash_bytes_per_s = HASH_BYTES_PER_S,
        .jitter_percent = PERCENT,
        .tail_ppm = FB_SIM_PPM / 100,
        .tail_factor = 20,
        .delay_ns = FB_SEC_NS,
        .reorder_ns = FB_MS_NS,
    };
}

static void trace(struct fb_sim *sim, uint64_t a, uint64_t b)
{
    sim->trace = fb_mix64(sim->trace ^ fb_mix64(a) ^ fb_prng_rotate(b, 32));
}

static void fired(struct fb_sim *sim, const struct fb_io_req *req, enum fb_fault fault)
{
    sim->counts.fired[req->op][fault]++;
}

static void boundary(struct fb_sim *sim, const struct fb_io_req *req)
{
    if (req->op == FB_IO_HASH || req->op == FB_IO_READ)
        return;
    sim->boundaries++;
    if (sim->config.boundary)
        sim->config.boundary(sim->config.boundary_context, sim, sim->boundaries);
}

/* ---- data of writes that go wrong ---- */

static void slot_skip(struct fb_sim *sim, struct fb_sim_page *slot)
{
    fb_sim_page_drop(sim, *slot);
    *slot = (struct fb_sim_page){FB_SIM_TAG_SKIP, 0};
}

/* Of one page of a write only the sectors in `mask` arrive. */
static void slot_tear(struct fb_sim *sim, struct fb_sim_page *slot, unsigned device, uint64_t block,
                      unsigned mask)
{
    const struct fb_sim_page before = fb_sim_block_read(sim, device, block, false);
    const struct fb_sim_page mixed = fb_sim_page_mix(sim, before, *slot, mask);
    fb_sim_page_drop(sim, *slot);
    *slot = mixed;
}

/* Of a write only the first `bytes` bytes arrive, a multiple of a sector. */
static void content_prefix(struct fb_sim *sim, struct fb_sim_content *content,
                           const struct fb_io_req *req, uint64_t bytes)
{
    struct fb_sim_walk walk = fb_sim_content_walk(content);
    for (uint64_t i = 0; i < content->pages; i++) {
        struct fb_sim_page *slot = fb_sim_walk_next(sim, &walk);
        const uint64_t off = i * FB_PAGE_BYTES;
        const uint64_t left = fb_sub_floored(bytes, off) / FB_SIM_SECTOR_BYTES;
        if (left == 0)
            slot_skip(sim, slot);
        else if (off + FB_PAGE_BYTES > bytes)
            slot_tear(sim, slot, req->device, (req->device_off + off) / FB_BLOCK_BYTES,
                      (1u << left) - 1);
    }
}

/* Of a write some blocks arrive, some do not, and some arrive in part; one at least is not whole.
 */
static void content_tear(struct fb_sim *sim, struct fb_sim_content *content,
                         const struct fb_io_req *req, struct fb_prng *prng)
{
    struct fb_sim_walk walk = fb_sim_content_walk(content);
    const uint64_t sure = fb_prng_below(prng, content->pages);
    for (uint64_t i = 0; i < content->pages; i++) {
        struct fb_sim_page *slot = fb_sim_walk_next(sim, &walk);
        const uint64_t block = req->device_off / FB_BLOCK_BYTES + i;
        const bool whole = fb_prng_below(prng, 2) == 0;
        if (whole && i != sure)
            continue;
        if (content->pages == 1 || fb_prng_chance(prng, TEAR_MIX_PPM))
            slot_tear(sim, slot, req->device, block,
                      (unsigned)fb_prng_between(prng, 1, SECTOR_MASK_ALL - 1));
        else
            slot_skip(sim, slot);
    }
}

/* ---- what a request does when it completes ---- */

/* Lands the data of a write at a block. The end of the file moves with it. */
static struct fb_sim_write *land(struct fb_sim *sim, struct fb_sim_op *op, uint64_t block)
{
    struct fb_sim_device *device = &sim->devices[op->req->device];
    uint64_t end = 0;
    struct fb_sim_walk walk = fb_sim_content_walk(&op->content);
    for (uint64_t i = 0; i < op->content.pages; i++) {
        if (fb_sim_walk_next(sim, &walk)->a != FB_SIM_TAG_SKIP)
            end = (block + i + 1) * FB_BLOCK_BYTES;
    }
    device->seen_bytes = fb_max_u64(device->seen_bytes, end);
    return fb_sim_write_land(sim, op->req->device, block, &op->content);
}

static int64_t write_torn(struct fb_sim *sim, struct fb_sim_op *op, struct fb_sim_write **write)
{
    const uint64_t block = op->req->device_off / FB_BLOCK_BYTES;
    const uint32_t pages = op->content.pages;
    content_tear(sim, &op->content, op->req, &sim->prng);
    *write = land(sim, op, block);
    struct fb_sim_device *device = &sim->devices[op->req->device];
    device->seen_bytes = fb_max_u64(device->seen_bytes, op->req->device_off + op->req->len);
    fb_sim_suspect(sim, op->req->device, block, pages);
    return (int64_t)op->req->len;
}

/* Another place of the same length within the device's file; false if there is none. */
static bool misdirect(struct fb_sim *sim, const struct fb_io_req *req, uint64_t *block)
{
    const uint64_t pages = req->len / FB_BLOCK_BYTES;
    const uint64_t file = sim->devices[req->device].seen_bytes / FB_BLOCK_BYTES;
    if (file <= pages)
        return false;
    *block = fb_prng_below(&sim->prng, file - pages + 1);
    return *block != req->device_off / FB_BLOCK_BYTES;
}

static int64_t write_elsewhere(struct fb_sim *sim, struct fb_sim_op *op,
                               struct fb_sim_write **write)
{
    uint64_t block = op->req->device_off / FB_BLOCK_BYTES;
    const uint32_t pages = op->content.pages;
    const bool moved = misdirect(sim, op->req, &block);
    *write = land(sim, op, block);
    if (moved) {
        struct fb_sim_device *device = &sim->devices[op->req->device];
        device->seen_bytes = fb_max_u64(device->seen_bytes, op->req->device_off + op->req->len);
        fb_sim_suspect(sim, op->req->device, block, pages);
        fb_sim_suspect(sim, op->req->device, op->req->device_off / FB_BLOCK_BYTES, pages);
        fired(sim, op->req, FB_FAULT_MISDIRECTED);
    }
    return (int64_t)op->req->len;
}

static int64_t write_lost(struct fb_sim *sim, struct fb_sim_op *op)
{
    struct fb_sim_device *device = &sim->devices[op->req->device];
    fb_sim_suspect(sim, op->req->device, op->req->device_off / FB_BLOCK_BYTES, op->content.pages);
    fb_sim_content_free(sim, &op->content);
    device->seen_bytes = fb_max_u64(device->seen_bytes, op->req->device_off + op->req->len);
    return (int64_t)op->req->len;
}

static int64_t write_short(struct fb_sim *sim, struct fb_sim_op *op, struct fb_sim_write **write)
{
    const uint64_t sectors = op->req->len / FB_SIM_SECTOR_BYTES;
    const uint64_t moved = fb_prng_between(&sim->prng, 1, sectors - 1) * FB_SIM_SECTOR_BYTES;
    content_prefix(sim, &op->content, op->req, moved);
    *write = land(sim, op, op->req->device_off / FB_BLOCK_BYTES);
    return (int64_t)moved;
}

static int64_t write_failed(struct fb_sim *sim, struct fb_sim_op *op, struct fb_sim_write **write)
{
    const uint64_t sectors = op->req->len / FB_SIM_SECTOR_BYTES;
    content_prefix(sim, &op->content, op->req,
                   fb_prng_between(&sim->prng, 0, sectors) * FB_SIM_SECTOR_BYTES);
    *write = land(sim, op, op->req->device_off / FB_BLOCK_BYTES);
    return op->fault == FB_FAULT_EIO ? -EIO : -ENOSPC;
}

static int64_t write_apply(struct fb_sim *sim, struct fb_sim_op *op, struct fb_sim_write **write)
{
    switch (op->fault) {
    case FB_FAULT_EIO:
    case FB_FAULT_ENOSPC:
        return write_failed(sim, op, write);
    case FB_FAULT_SHORT:
        return write_short(sim, op, write);
    case FB_FAULT_TORN:
        return write_torn(sim, op, write);
    case FB_FAULT_LOST:
        return write_lost(sim, op);
    case FB_FAULT_MISDIRECTED:
        return write_elsewhere(sim, op, write);
    default:
        *write = land(sim, op, op->req->device_off / FB_BLOCK_BYTES);
        return (int64_t)op->req->len;
    }
}

static int64_t write_done(struct fb_sim *sim, struct fb_sim_op *op)
{
    struct fb_io_req *req = op->req;
    if (req->device_off + req->len > sim->devices[req->device].room_bytes) {
        fb_sim_content_free(sim, &op->content);
        fb_sim_count(sim, FB_SIM_NO_SPACE);
        return -ENOSPC;
    }
    if (op->content.first == FB_SIM_NO_CHUNK)
        fb_sim_content_take(sim, req, &op->content);
    fb_sim_count(sim, op->early ? FB_SIM_DATA_AT_SUBMIT : FB_SIM_DATA_AT_COMPLETION);
    struct fb_sim_write *write = NULL;
    const int64_t result = write_apply(sim, op, &write);
    /* Misdirection counts itself: it may find no other place. */
    if (op->fault != FB_FAULT_MISDIRECTED)
        fired(sim, req, op->fault);
    req->backend[SCRATCH_WRITE] = (uintptr_t)write;
    req->backend[SCRATCH_STAMP] = write ? write->sequence : 0;
    return result;
}

/* Puts `bytes` bytes of a page into memory; of a page of the arena a part is garbage. */
static void read_page(struct fb_sim *sim, struct fb_io_vec where, struct fb_sim_page page,
                      uint64_t bytes)
{
    if (where.space == FB_IO_ARENA) {
        struct fb_sim_page *slot = &sim->arena[where.off / FB_PAGE_BYTES];
        if (bytes < FB_PAGE_BYTES)
            *slot = fb_sim_garbage(&sim->prng);
        else if (page.a == FB_SIM_TAG_META)
            *slot = fb_sim_bytes_token(sim->meta_blocks + page.b * FB_BLOCK_BYTES);
        else
            *slot = page;
        return;
    }
    uint8_t made[FB_BLOCK_BYTES];
    const uint8_t *source = made;
    if (page.a == FB_SIM_TAG_META)
        source = sim->meta_blocks + page.b * FB_BLOCK_BYTES;
    else
        fb_sim_token_bytes(page, made);
    memcpy(sim->memory.base[FB_IO_META] + where.off, source, bytes);
}

/* Reads `bytes` bytes from a block on; true if older data than those that are seen came. */
static bool read_blocks(struct fb_sim *sim, struct fb_io_req *req, uint64_t block, uint64_t bytes,
                        bool old)
{
    bool differs = false;
    struct fb_sim_place place = {req->vec, 0};
    for (uint64_t off = 0; off < bytes; off += FB_PAGE_BYTES, block++) {
        const struct fb_sim_page page = fb_sim_block_read(sim, req->device, block, old);
        read_page(sim, fb_sim_place_next(&place), page, fb_min_u64(bytes - off, FB_PAGE_BYTES));
        if (old)
            differs |=
                !fb_sim_page_is_equal(page, fb_sim_block_read(sim, req->device, block, false));
    }
    return differs;
}

/* A failed read: some of it came, and something else. */
static int64_t read_failed(struct fb_sim *sim, struct fb_io_req *req, uint64_t block,
                           uint64_t there)
{
    const uint64_t bytes =
        fb_prng_between(&sim->prng, 0, there / FB_SIM_SECTOR_BYTES) * FB_SIM_SECTOR_BYTES;
    read_blocks(sim, req, block, bytes, false);
    return -EIO;
}

static int64_t read_done(struct fb_sim *sim, struct fb_sim_op *op)
{
    struct fb_io_req *req = op->req;
    const uint64_t file = sim->devices[req->device].seen_bytes;
    uint64_t bytes = fb_min_u64(fb_sub_floored(file, req->device_off), req->len);
    uint64_t block = req->device_off / FB_BLOCK_BYTES;
    if (bytes < req->len)
        fb_sim_count(sim, FB_SIM_READ_PAST_END);
    bool took_effect = true;
    bool old = false;
    switch (op->fault) {
    case FB_FAULT_EIO:
        fired(sim, req, FB_FAULT_EIO);
        return read_failed(sim, req, block, bytes);
    case FB_FAULT_SHORT:
        took_effect = bytes > FB_SIM_SECTOR_BYTES;
        if (took_effect)
            bytes = fb_prng_between(&sim->prng, 1, bytes / FB_SIM_SECTOR_BYTES - 1) *
                    FB_SIM_SECTOR_BYTES;
        break;
    case FB_FAULT_MISDIRECTED:
        took_effect = bytes == req->len && misdirect(sim, req, &block);
        break;
    case FB_FAULT_STALE:
        old = true;
        break;
    default:
        break;
    }
    const bool differs = read_blocks(sim, req, block, bytes, old);
    if (old ? differs : took_effect)
        fired(sim, req, op->fault);
    return (int64_t)bytes;
}

static int64_t flush_done(struct fb_sim *sim, struct fb_sim_op *op)
{
    struct fb_io_req *req = op->req;
    const uint64_t stamp = req->backend[SCRATCH_STAMP];
    fired(sim, req, op->fault);
    if (op->fault == FB_FAULT_EIO || op->fault == FB_FAULT_ENOSPC) {
        fb_sim_flush_failed(sim, req->device, stamp);
        return op->fault == FB_FAULT_EIO ? -EIO : -ENOSPC;
    }
    if (op->fault != FB_FAULT_LYING)
        fb_sim_flush_done(sim, req->device, stamp, op->flush_bytes);
    return 0;
}

static int64_t grow_done(struct fb_sim *sim, struct fb_sim_op *op)
{
    const struct fb_io_req *req = op->req;
    struct fb_sim_device *device = &sim->devices[req->device];
    fired(sim, req, op->fault);
    if (op->fault == FB_FAULT_EIO)
        return -EIO;
    if (op->fault == FB_FAULT_ENOSPC)
        return -ENOSPC;
    if (req->device_off > device->room_bytes && req->device_off > device->seen_bytes) {
        fb_sim_count(sim, FB_SIM_NO_SPACE);
        return -ENOSPC;
    }
    device->seen_bytes = fb_max_u64(device->seen_bytes, req->device_off);
    return 0;
}

static int64_t hash_done(struct fb_sim *sim, struct fb_sim_op *op)
{
    fired(sim, op->req, op->fault);
    if (!op->early)
        fb_sim_hash_request(sim, op->req);
    return 0;
}

static int64_t take_effect(struct fb_sim *sim, struct fb_sim_op *op)
{
    switch (op->req->op) {
    case FB_IO_READ:
        sim->io.stats.reads_in_flight--;
        return read_done(sim, op);
    case FB_IO_WRITE:
        return write_done(sim, op);
    case FB_IO_FLUSH:
        return flush_done(sim, op);
    case FB_IO_GROW:
        return grow_done(sim, op);
    default:
        return hash_done(sim, op);
    }
}

/* ---- starting ---- */

static enum fb_fault draw_fault(struct fb_sim *sim, enum fb_io_op op)
{
    sim->nth[op]++;
    if (sim->config.script) {
        const enum fb_fault fault = fb_script_fault(sim->config.script, op, sim->nth[op]);
        if (fault != FB_FAULT_NONE)
            return fault;
    }
    if (sim->rate_total[op] == 0)
        return FB_FAULT_NONE;
    uint64_t drawn = fb_prng_below(&sim->prng, FB_SIM_PPM);
    if (drawn >= sim->rate_total[op])
        return FB_FAULT_NONE;
    for (unsigned fault = FB_FAULT_NONE + 1; fault < FB_FAULT_COUNT; fault++) {
        if (!fb_script_applies(op, fault))
            continue;
        const uint32_t ppm = sim->config.rates.ppm[op][fault];
        if (drawn < ppm)
            return fault;
        drawn -= ppm;
    }
    FB_UNREACHABLE();
}

/* When the bytes of a request have been moved: requests of one channel follow each other. */
static uint64_t moved_ns(struct fb_sim *sim, const struct fb_io_req *req)
{
    const struct fb_sim_latency *latency = &sim->config.latency;
    uint64_t rate = latency->hash_bytes_per_s;
    uint64_t *busy_until_ns = &sim->hash_busy_until_ns;
    if (req->op == FB_IO_FLUSH || req->op == FB_IO_GROW)
        return sim->now_ns;
    if (req->op != FB_IO_HASH) {
        busy_until_ns = &sim->devices[req->device].busy_until_ns;
        rate = req->op == FB_IO_READ ? latency->read_bytes_per_s : latency->write_bytes_per_s;
    }
    *busy_until_ns = fb_max_u64(*busy_until_ns, sim->now_ns) + req->len * FB_SEC_NS / rate;
    return *busy_until_ns;
}

static uint64_t completion_ns(struct fb_sim *sim, const struct fb_io_req *req, enum fb_fault fault)
{
    const struct fb_sim_latency *latency = &sim->config.latency;
    uint64_t took_ns = moved_ns(sim, req) - sim->now_ns + latency->base_ns[req->op];
    took_ns += took_ns * fb_prng_between(&sim->prng, 0, latency->jitter_percent) / PERCENT;
    if (fb_prng_chance(&sim->prng, latency->tail_ppm))
        took_ns *= latency->tail_factor;
    if (fault == FB_FAULT_DELAYED)
        took_ns += latency->delay_ns / 2 + fb_prng_between(&sim->prng, 0, latency->delay_ns);
    if (fault == FB_FAULT_REORDERED)
        took_ns += latency->reorder_ns / 2 + fb_prng_between(&sim->prng, 0, latency->reorder_ns);
    return sim->now_ns + took_ns;
}

/* Data are taken early by chance, if that leaves half of the room for others. */
static void take_early(struct fb_sim *sim, struct fb_sim_op *op)
{
    const uint64_t chunks = fb_div_up(op->req->len / FB_PAGE_BYTES, FB_SIM_CHUNK_PAGES);
    if (op->req->op == FB_IO_WRITE) {
        op->early = fb_prng_below(&sim->prng, 2) == 0 &&
                    sim->free_chunk_count >= sim->chunk_count / 2 + chunks;
        if (op->early)
            fb_sim_content_take(sim, op->req, &op->content);
    } else if (op->req->op == FB_IO_HASH) {
        op->early = fb_prng_below(&sim->prng, 2) == 0;
        if (op->early)
            fb_sim_hash_request(sim, op->req);
    }
}

static void start(struct fb_sim *sim, struct fb_io_req *req)
{
    FB_ASSERT(sim->free_op_count > 0);
    const uint32_t index = sim->free_ops[--sim->free_op_count];
    struct fb_sim_op *op = &sim->ops[index];
    *op = (struct fb_sim_op){
        .req = req,
        .number = req->backend[SCRATCH_NUMBER],
        .flush_bytes = sim->devices[req->device].seen_bytes,
        .content = {FB_SIM_NO_CHUNK, 0},
        .fault = (uint8_t)req->backend[SCRATCH_FAULT],
    };
    take_early(sim, op);
    const uint64_t due_ns = completion_ns(sim, req, op->fault);
    const bool pushed = fb_heap_push(&sim->heap, due_ns, index);
    FB_ASSERT(pushed);
    if (req->op == FB_IO_READ) {
        struct fb_io_stats *stats = &sim->io.stats;
        stats->reads_in_flight++;
        if (stats->reads_in_flight > stats->read_depth_max)
            stats->read_depth_max = stats->reads_in_flight;
    }
}

static void complete(struct fb_sim *sim, uint32_t index)
{
    struct fb_sim_op *op = &sim->ops[index];
    struct fb_io_req *req = op->req;
    FB_ASSERT(req);
    req->result = take_effect(sim, op);
    FB_ASSERT(op->content.first == FB_SIM_NO_CHUNK);
    fb_sim_count(sim, FB_SIM_COMPLETED);
    if (op->number < sim->last_completed)
        fb_sim_count(sim, FB_SIM_OVERTAKEN);
    sim->last_completed = fb_max_u64(sim->last_completed, op->number);
    trace(sim, sim->now_ns ^ op->number, (uint64_t)req->result);
    op->req = NULL;
    sim->free_ops[sim->free_op_count++] = index;
    fb_list_push_back(&sim->done, &req->link);
    boundary(sim, req);
    struct fb_link *waiting = fb_list_pop_front(&sim->waiting);
    if (waiting)
        start(sim, FB_LIST_ITEM(waiting, struct fb_io_req, link));
}

/* ---- the backend's functions ---- */

static void sim_submit(struct fb_io *io, struct fb_io_req *req)
{
    struct fb_sim *sim = sim_of(io);
    fb_check_request(&sim->memory, req);
    fb_link_init(&req->link);
    sim->in_flight++;
    req->backend[SCRATCH_WRITE] = 0;
    req->backend[SCRATCH_NUMBER] = ++sim->submits;
    req->backend[SCRATCH_FAULT] = draw_fault(sim, req->op);
    req->backend[SCRATCH_STAMP] = sim->devices[req->device].stamp;
    fb_sim_count(sim, FB_SIM_SUBMITTED);
    trace(sim, req->device_off ^ (uint64_t)req->op << 56, req->len);
    if (sim->free_op_count > 0)
        start(sim, req);
    else
        fb_list_push_back(&sim->waiting, &req->link);
    boundary(sim, req);
}

/* A write that its owner knows to be complete can be covered by later flushes. */
static void note_reaped(struct fb_sim *sim, const struct fb_io_req *req)
{
    if (req->op != FB_IO_WRITE || req->backend[SCRATCH_WRITE] == 0)
        return;
    struct fb_sim_write *write = (struct fb_sim_write *)(uintptr_t)req->backend[SCRATCH_WRITE];
    if (write->sequence == req->backend[SCRATCH_STAMP])
        write->stamp = ++sim->devices[req->device].stamp;
}

static size_t sim_reap(struct fb_io *io, struct fb_io_req **out, size_t max)
{
    struct fb_sim *sim = sim_of(io);
    size_t count = 0;
    while (count < max) {
        struct fb_link *link = fb_list_pop_front(&sim->done);
        if (!link)
            break;
        struct fb_io_req *req = FB_LIST_ITEM(link, struct fb_io_req, link);
        FB_ASSERT(sim->in_flight > 0);
        sim->in_flight--;
        note_reaped(sim, req);
        fb_check_count(&io->stats, req, false);
        out[count++] = req;
    }
    return count;
}

static void sim_kick(struct fb_io *io)
{
    (void)io;
}

static void sim_faulted(struct fb_io *io, uint64_t arena_bytes)
{
    (void)io;
    (void)arena_bytes;
}

static int sim_event_fd(struct fb_io *io)
{
    (void)io;
    return -1;
}

static void sim_close(struct fb_io *io)
{
    struct fb_sim *sim = sim_of(io);
    fb_sim_device_close(sim);
    free(sim->arena);
    free(sim->ops);
    free(sim->free_ops);
    free(sim->heap_entries);
    free(sim);
}

static const struct fb_io_ops sim_ops = {
    .name = "sim",
    .submit = sim_submit,
    .reap = sim_reap,
    .kick = sim_kick,
    .faulted = sim_faulted,
    .event_fd = sim_event_fd,
    .close = sim_close,
};

/* ---- opening ---- */

static bool config_is_right(const struct fb_sim_config *config)
{
    bool right = config->device_count <= FB_DEVICES_MAX;
    right = right && fb_is_aligned(config->arena_bytes, FB_PAGE_BYTES);
    right = right && fb_is_aligned(config->meta_bytes, FB_PAGE_BYTES);
    right = right && (config->meta || config->meta_bytes == 0);
    right = right && config->requests_max >= 1 && config->requests_max <= FB_SIM_REQUESTS_MAX;
    right = right && config->unflushed_pages_max >= UNFLUSHED_MIN;
    right = right && config->unflushed_pages_max <= UNFLUSHED_MAX;
    right = right && config->meta_blocks_max >= 1 && config->meta_blocks_max <= META_BLOCKS_MAX;
    for (uint32_t d = 0; right && d < config->device_count; d++)
        right =
            config->device_bytes[d] > 0 && fb_is_aligned(config->device_bytes[d], FB_BLOCK_BYTES);
    const struct fb_sim_latency *latency = &config->latency;
    return right && latency->read_bytes_per_s && latency->write_bytes_per_s &&
           latency->hash_bytes_per_s;
}

static void config_defaults(struct fb_sim_config *config)
{
    static const struct fb_sim_latency none;
    if (config->requests_max == 0)
        config->requests_max = REQUESTS_DEFAULT;
    if (config->unflushed_pages_max == 0)
        config->unflushed_pages_max = UNFLUSHED_DEFAULT;
    if (config->meta_blocks_max == 0)
        config->meta_blocks_max = META_BLOCKS_DEFAULT;
    if (memcmp(&config->latency, &none, sizeof none) == 0)
        config->latency = fb_sim_latency_default();
}

static int allocate(struct fb_sim *sim)
{
    const uint32_t requests = sim->config.requests_max;
    /* One more, so that an arena of no pages is not an error. */
    sim->arena = calloc(sim->config.arena_bytes / FB_PAGE_BYTES + 1, sizeof *sim->arena);
    sim->ops = calloc(requests, sizeof *sim->ops);
    sim->free_ops = calloc(requests, sizeof *sim->free_ops);
    sim->heap_entries = calloc(requests, sizeof *sim->heap_entries);
    if (!sim->arena || !sim->ops || !sim->free_ops || !sim->heap_entries)
        return -ENOMEM;
    return fb_sim_device_open(sim);
}

int fb_sim_open(const struct fb_sim_config *config, struct fb_sim **out)
{
    struct fb_sim_config full = *config;
    config_defaults(&full);
    if (!config_is_right(&full))
        return -EINVAL;
    struct fb_sim *sim = calloc(1, sizeof *sim);
    if (!sim)
        return -ENOMEM;
    sim->config = full;
    sim->io.ops = &sim_ops;
    sim->memory.base[FB_IO_META] = full.meta;
    sim->memory.bytes[FB_IO_ARENA] = full.arena_bytes;
    sim->memory.bytes[FB_IO_META] = full.meta_bytes;
    sim->memory.device_count = full.device_count;
    const int rc = allocate(sim);
    if (rc != 0) {
        sim_close(&sim->io);
        return rc;
    }
    fb_sim_reset(sim, full.seed);
    *out = sim;
    return 0;
}

static void ops_reset(struct fb_sim *sim)
{
    fb_heap_init(&sim->heap, sim->heap_entries, sim->config.requests_max);
    sim->free_op_count = 0;
    for (uint32_t i = sim->config.requests_max; i-- > 0;) {
        sim->ops[i].req = NULL;
        sim->free_ops[sim->free_op_count++] = i;
    }
    fb_list_init(&sim->waiting);
    fb_list_init(&sim->done);
    sim->in_flight = 0;
    sim->io.stats.reads_in_flight = 0;
    sim->hash_busy_until_ns = 0;
}

void fb_sim_reset(struct fb_sim *sim, uint64_t seed)
{
    sim->config.seed = seed;
    fb_prng_seed(&sim->prng, seed);
    memset(&sim->io.stats, 0, sizeof sim->io.stats);
    memset(&sim->counts, 0, sizeof sim->counts);
    memset(sim->arena, 0, sim->config.arena_bytes / FB_PAGE_BYTES * sizeof *sim->arena);
    memset(sim->nth, 0, sizeof sim->nth);
    sim->now_ns = 0;
    sim->trace = 0;
    sim->boundaries = 0;
    sim->submits = 0;
    sim->last_completed = 0;
    sim->sequence = 0;
    ops_reset(sim);
    fb_sim_device_reset(sim);
    fb_sim_set_rates(sim, &sim->config.rates);
}

struct fb_io *fb_sim_io(struct fb_sim *sim)
{
    return &sim->io;
}

/* ---- time and settings ---- */

uint64_t fb_sim_next_ns(const struct fb_sim *sim)
{
    return fb_heap_next_ns(&sim->heap);
}

void fb_sim_advance(struct fb_sim *sim, uint64_t now_ns)
{
    FB_ASSERT(now_ns >= sim->now_ns);
    struct fb_heap_entry entry;
    while (fb_heap_pop_due(&sim->heap, now_ns, &entry)) {
        sim->now_ns = fb_max_u64(sim->now_ns, entry.time_ns);
        complete(sim, (uint32_t)entry.item);
    }
    sim->now_ns = now_ns;
}

uint32_t fb_sim_in_flight(const struct fb_sim *sim)
{
    return sim->in_flight;
}

uint64_t fb_sim_trace(const struct fb_sim *sim)
{
    return sim->trace;
}

const struct fb_sim_counts *fb_sim_get_counts(const struct fb_sim *sim)
{
    return &sim->counts;
}

uint64_t fb_sim_boundaries(const struct fb_sim *sim)
{
    return sim->boundaries;
}

void fb_sim_set_rates(struct fb_sim *sim, const struct fb_sim_rates *rates)
{
    sim->config.rates = *rates;
    for (unsigned op = 0; op < FB_IO_OP_COUNT; op++) {
        sim->rate_total[op] = 0;
        for (unsigned fault = FB_FAULT_NONE + 1; fault < FB_FAULT_COUNT; fault++) {
            if (fb_script_applies(op, fault))
                sim->rate_total[op] += rates->ppm[op][fault];
        }
        FB_ASSERT(sim->rate_total[op] <= FB_SIM_PPM);
    }
}

void fb_sim_set_script(struct fb_sim *sim, const struct fb_script *script)
{
    sim->config.script = script;
    memset(sim->nth, 0, sizeof sim->nth);
}

void fb_sim_set_room(struct fb_sim *sim, unsigned device, uint64_t bytes)
{
    FB_ASSERT(device < sim->config.device_count);
    FB_ASSERT(bytes <= sim->config.device_bytes[device] && fb_is_aligned(bytes, FB_BLOCK_BYTES));
    sim->devices[device].room_bytes = bytes;
}

uint64_t fb_sim_device_bytes(const struct fb_sim *sim, unsigned device)
{
    FB_ASSERT(device < sim->config.device_count);
    return sim->devices[device].seen_bytes;
}

struct fb_sim_page *fb_sim_arena(struct fb_sim *sim)
{
    return sim->arena;
}

/* ---- crashes ---- */

/* Forgets all requests: their owner is gone. */
static void drop_requests(struct fb_sim *sim)
{
    for (uint32_t i = 0; i < sim->config.requests_max; i++) {
        if (sim->ops[i].req)
            fb_sim_content_free(sim, &sim->ops[i].content);
    }
    ops_reset(sim);
}

static void arena_garbage(struct fb_sim *sim, struct fb_prng *prng)
{
    struct fb_sim_page page = fb_sim_garbage(prng);
    for (uint64_t i = 0; i < sim->config.arena_bytes / FB_PAGE_BYTES; i++, page.b++)
        sim->arena[i] = page;
}

void fb_sim_power_cut(struct fb_sim *sim, enum fb_sim_cut cut, uint64_t seed)
{
    FB_ASSERT(cut < FB_SIM_CUT_COUNT);
    struct fb_prng prng;
    fb_prng_seed(&prng, seed);
    fb_sim_cut_devices(sim, sim, cut, &prng);
    drop_requests(sim);
    fb_sim_cache_forget(sim);
    arena_garbage(sim, &prng);
    trace(sim, cut, seed);
}

/* What becomes of a running request of a process that dies. */
static void kill_running(struct fb_sim *sim, struct fb_sim_op *op, struct fb_prng *prng)
{
    const struct fb_io_req *req = op->req;
    struct fb_sim_device *device = &sim->devices[req->device];
    const uint64_t fate = fb_prng_below(prng, 3);
    if (req->op == FB_IO_GROW && fate == 0 && req->device_off <= device->room_bytes)
        device->seen_bytes = fb_max_u64(device->seen_bytes, req->device_off);
    if (req->op != FB_IO_WRITE || req->device_off + req->len > device->room_bytes)
        return;
    if (fate == 2) {
        fb_sim_count(sim, FB_SIM_CUT_RUNNING_LOST);
        return;
    }
    if (op->content.first == FB_SIM_NO_CHUNK)
        fb_sim_content_take(sim, req, &op->content);
    if (fate == 1)
        content_prefix(sim, &op->content, req,
                       fb_prng_below(prng, req->len / FB_SIM_SECTOR_BYTES) * FB_SIM_SECTOR_BYTES);
    fb_sim_count(sim, fate == 1 ? FB_SIM_CUT_RUNNING_TORN : FB_SIM_CUT_RUNNING_KEPT);
    land(sim, op, req->device_off / FB_BLOCK_BYTES);
}

void fb_sim_kill(struct fb_sim *sim, uint64_t seed)
{
    struct fb_prng prng;
    fb_prng_seed(&prng, seed);
    for (uint32_t i = 0; i < sim->config.requests_max; i++) {
        if (sim->ops[i].req)
            kill_running(sim, &sim->ops[i], &prng);
    }
    drop_requests(sim);
    /* The successor's first flush covers all that its predecessor has written. */
    for (unsigned d = 0; d < sim->config.device_count; d++) {
        FB_LIST_FOREACH (link, &sim->devices[d].cache) {
            struct fb_sim_write *write = FB_LIST_ITEM(link, struct fb_sim_write, link);
            if (write->stamp == 0)
                write->stamp = ++sim->devices[d].stamp;
        }
    }
    arena_garbage(sim, &prng);
    fb_sim_count(sim, FB_SIM_CUT_KILL);
    trace(sim, FB_SIM_CUT_COUNT, seed);
}

void fb_sim_clone_cut(const struct fb_sim *from, struct fb_sim *into, enum fb_sim_cut cut,
                      uint64_t seed)
{
    FB_ASSERT(from != into && cut < FB_SIM_CUT_COUNT);
    struct fb_prng prng;
    fb_prng_seed(&prng, seed);
    drop_requests(into);
    fb_sim_cache_forget(into);
    fb_sim_device_copy(from, into);
    fb_sim_cut_devices(from, into, cut, &prng);
    fb_sim_meta_recount(into);
    arena_garbage(into, &prng);
    into->now_ns = from->now_ns;
    into->sequence = from->sequence;
}
