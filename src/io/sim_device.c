/*
 * sim_device.c - the devices of the simulator: blocks, the drive's volatile cache, power cuts,
 * damage.
 *
 * Each block has three pages: what reads see, what a power cut leaves, and what was seen one write
 * before. The cache is a list of completed writes with their data. Writes are numbered when they
 * complete; a block is never given older data than it has, so that a flush which covers
 * the later of two overlapping writes, and not the earlier one, cannot bring the earlier one back.
 *
 * Real blocks are counted by reference: three pages of a block and the data of writes may share
 * one.
 */
#include "io/sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "io/sim_private.h"

#define SECTORS       (FB_BLOCK_BYTES / FB_SIM_SECTOR_BYTES)
#define ALL_SECTORS   ((1u << SECTORS) - 1)
#define TOKEN_BITS    128
#define BITS_OF_BYTE  8
#define TORN_MIX_PPM  100000 /* blocks of values torn inside, of those in a torn write */
#define TORN_META_PPM 500000 /* the same for metadata blocks */

_Static_assert(sizeof(struct fb_sim_block) == FB_CACHE_LINE, "one block, one cache line");
_Static_assert(sizeof(struct fb_sim_chunk) == 512, "no padding");

/* ---- pages ---- */

static bool is_meta(struct fb_sim_page page)
{
    return page.a == FB_SIM_TAG_META;
}

static bool is_skip(struct fb_sim_page page)
{
    return page.a == FB_SIM_TAG_SKIP;
}

static uint8_t *meta_bytes(const struct fb_sim *sim, struct fb_sim_page page)
{
    FB_ASSERT(is_meta(page) && page.b < sim->meta_high);
    return sim->meta_blocks + page.b * FB_BLOCK_BYTES;
}

static struct fb_sim_page meta_new(struct fb_sim *sim)
{
    uint32_t number;
    if (sim->meta_free_count > 0) {
        number = sim->meta_free[--sim->meta_free_count];
    } else {
        FB_ASSERT(sim->meta_high < sim->config.meta_blocks_max);
        number = sim->meta_high++;
    }
    sim->meta_refs[number] = 1;
    return (struct fb_sim_page){FB_SIM_TAG_META, number};
}

static struct fb_sim_page page_keep(struct fb_sim *sim, struct fb_sim_page page)
{
    if (is_meta(page))
        sim->meta_refs[page.b]++;
    return page;
}

void fb_sim_page_drop(struct fb_sim *sim, struct fb_sim_page page)
{
    if (!is_meta(page))
        return;
    FB_ASSERT(sim->meta_refs[page.b] > 0);
    if (--sim->meta_refs[page.b] == 0)
        sim->meta_free[sim->meta_free_count++] = (uint32_t)page.b;
}

/* Replaces what a slot keeps by a page that is kept already. */
static void page_set(struct fb_sim *sim, struct fb_sim_page *slot, struct fb_sim_page page)
{
    fb_sim_page_drop(sim, *slot);
    *slot = page;
}

/* A page, to be kept, of 4096 real bytes. */
static struct fb_sim_page page_of_bytes(struct fb_sim *sim, const uint8_t *bytes)
{
    struct fb_sim_page page;
    if (fb_sim_bytes_are_token(bytes, &page))
        return page;
    page = meta_new(sim);
    memcpy(meta_bytes(sim, page), bytes, FB_BLOCK_BYTES);
    return page;
}

static void page_bytes(const struct fb_sim *sim, struct fb_sim_page page, uint8_t *bytes)
{
    if (is_meta(page))
        memcpy(bytes, meta_bytes(sim, page), FB_BLOCK_BYTES);
    else
        fb_sim_token_bytes(page, bytes);
}

struct fb_sim_page fb_sim_page_take(struct fb_sim *to, const struct fb_sim *from,
                                    struct fb_io_vec where)
{
    if (where.space == FB_IO_ARENA)
        return from->arena[where.off / FB_PAGE_BYTES];
    return page_of_bytes(to, from->memory.base[FB_IO_META] + where.off);
}

struct fb_sim_page fb_sim_page_mix(struct fb_sim *sim, struct fb_sim_page before,
                                   struct fb_sim_page fresh, unsigned mask)
{
    FB_ASSERT(mask <= ALL_SECTORS);
    if (mask == ALL_SECTORS || fb_sim_page_is_equal(before, fresh))
        return page_keep(sim, fresh);
    if (mask == 0)
        return page_keep(sim, before);
    if (!is_meta(before) && !is_meta(fresh)) {
        const uint64_t a = fb_mix64(before.a ^ fb_mix64(fresh.a + mask));
        return (struct fb_sim_page){FB_SIM_TAG_GARBAGE | a >> 2, fb_mix64(before.b ^ fresh.b)};
    }
    uint8_t bytes[FB_BLOCK_BYTES];
    uint8_t fresh_bytes[FB_BLOCK_BYTES];
    page_bytes(sim, before, bytes);
    page_bytes(sim, fresh, fresh_bytes);
    for (unsigned i = 0; i < SECTORS; i++) {
        if (mask & 1u << i)
            memcpy(bytes + i * FB_SIM_SECTOR_BYTES, fresh_bytes + i * FB_SIM_SECTOR_BYTES,
                   FB_SIM_SECTOR_BYTES);
    }
    return page_of_bytes(sim, bytes);
}

/* ---- opening and closing ---- */

static int stores_open(struct fb_sim *sim)
{
    const struct fb_sim_config *config = &sim->config;
    sim->chunk_count = (uint32_t)fb_div_up(config->unflushed_pages_max, FB_SIM_CHUNK_PAGES);
    sim->write_count = sim->chunk_count;
    sim->chunks = calloc(sim->chunk_count, sizeof *sim->chunks);
    sim->writes = calloc(sim->write_count, sizeof *sim->writes);
    sim->meta_blocks = calloc(config->meta_blocks_max, FB_BLOCK_BYTES);
    sim->meta_refs = calloc(config->meta_blocks_max, sizeof *sim->meta_refs);
    sim->meta_free = calloc(config->meta_blocks_max, sizeof *sim->meta_free);
    const bool all = sim->chunks && sim->writes && sim->meta_blocks && sim->meta_refs;
    return all && sim->meta_free ? 0 : -ENOMEM;
}

int fb_sim_device_open(struct fb_sim *sim)
{
    for (unsigned d = 0; d < sim->config.device_count; d++) {
        struct fb_sim_device *device = &sim->devices[d];
        device->block_count = sim->config.device_bytes[d] / FB_BLOCK_BYTES;
        device->blocks = calloc(device->block_count, sizeof *device->blocks);
        if (!device->blocks)
            return -ENOMEM;
    }
    const int rc = stores_open(sim);
    if (rc == 0)
        fb_sim_device_reset(sim);
    return rc;
}

void fb_sim_device_close(struct fb_sim *sim)
{
    for (unsigned d = 0; d < sim->config.device_count; d++)
        free(sim->devices[d].blocks);
    free(sim->chunks);
    free(sim->writes);
    free(sim->meta_blocks);
    free(sim->meta_refs);
    free(sim->meta_free);
}

void fb_sim_device_reset(struct fb_sim *sim)
{
    for (unsigned d = 0; d < sim->config.device_count; d++) {
        struct fb_sim_device *device = &sim->devices[d];
        struct fb_sim_block *blocks = device->blocks;
        const uint64_t count = device->block_count;
        memset(blocks, 0, device->used_blocks * sizeof *blocks);
        *device = (struct fb_sim_device){.blocks = blocks,
                                         .block_count = count,
                                         .room_bytes = count * FB_BLOCK_BYTES};
        fb_list_init(&device->cache);
    }
    sim->meta_high = 0;
    sim->meta_free_count = 0;
    fb_list_init(&sim->free_writes);
    for (uint32_t i = 0; i < sim->write_count; i++) {
        fb_link_init(&sim->writes[i].link);
        fb_list_push_back(&sim->free_writes, &sim->writes[i].link);
    }
    sim->free_chunk = FB_SIM_NO_CHUNK;
    for (uint32_t i = sim->chunk_count; i-- > 0;) {
        sim->chunks[i].next = sim->free_chunk;
        sim->free_chunk = i;
    }
    sim->free_chunk_count = sim->chunk_count;
}

/* ---- data of writes ---- */

static uint32_t chunk_new(struct fb_sim *sim)
{
    const uint32_t chunk = sim->free_chunk;
    FB_ASSERT(chunk != FB_SIM_NO_CHUNK);
    sim->free_chunk = sim->chunks[chunk].next;
    sim->chunks[chunk].next = FB_SIM_NO_CHUNK;
    sim->free_chunk_count--;
    return chunk;
}

struct fb_sim_walk fb_sim_content_walk(const struct fb_sim_content *content)
{
    return (struct fb_sim_walk){content->first, 0};
}

struct fb_sim_page *fb_sim_walk_next(const struct fb_sim *sim, struct fb_sim_walk *walk)
{
    if (walk->index == FB_SIM_CHUNK_PAGES) {
        walk->chunk = sim->chunks[walk->chunk].next;
        walk->index = 0;
    }
    FB_ASSERT(walk->chunk != FB_SIM_NO_CHUNK);
    return &sim->chunks[walk->chunk].pages[walk->index++];
}

void fb_sim_content_free(struct fb_sim *sim, struct fb_sim_content *content)
{
    struct fb_sim_walk walk = fb_sim_content_walk(content);
    for (uint32_t i = 0; i < content->pages; i++)
        fb_sim_page_drop(sim, *fb_sim_walk_next(sim, &walk));
    uint32_t chunk = content->first;
    while (chunk != FB_SIM_NO_CHUNK) {
        const uint32_t next = sim->chunks[chunk].next;
        sim->chunks[chunk].next = sim->free_chunk;
        sim->free_chunk = chunk;
        sim->free_chunk_count++;
        chunk = next;
    }
    *content = (struct fb_sim_content){FB_SIM_NO_CHUNK, 0};
}

static struct fb_sim_block *block_at(struct fb_sim_device *device, uint64_t block)
{
    FB_ASSERT(block < device->block_count);
    device->used_blocks = fb_max_u64(device->used_blocks, block + 1);
    return &device->blocks[block];
}

static void write_free(struct fb_sim *sim, struct fb_sim_write *write)
{
    fb_list_remove(&write->link);
    fb_sim_content_free(sim, &write->content);
    write->sequence = 0;
    fb_list_push_front(&sim->free_writes, &write->link);
}

static void write_make_durable(struct fb_sim *sim, struct fb_sim_device *device,
                               const struct fb_sim_write *write)
{
    struct fb_sim_walk walk = fb_sim_content_walk(&write->content);
    for (uint32_t i = 0; i < write->content.pages; i++) {
        const struct fb_sim_page page = *fb_sim_walk_next(sim, &walk);
        struct fb_sim_block *block = block_at(device, write->block + i);
        if (is_skip(page) || block->durable_sequence >= write->sequence)
            continue;
        page_set(sim, &block->durable, page_keep(sim, page));
        block->durable_sequence = write->sequence;
    }
    const uint64_t end = (write->block + write->content.pages) * FB_BLOCK_BYTES;
    device->durable_bytes = fb_max_u64(device->durable_bytes, fb_min_u64(end, device->seen_bytes));
}

/* Makes the oldest write of some cache durable, as a drive does whose cache is full. */
static bool cache_shrink(struct fb_sim *sim)
{
    for (unsigned d = 0; d < sim->config.device_count; d++) {
        struct fb_link *link = fb_list_first(&sim->devices[d].cache);
        if (!link)
            continue;
        struct fb_sim_write *write = FB_LIST_ITEM(link, struct fb_sim_write, link);
        write_make_durable(sim, &sim->devices[d], write);
        write_free(sim, write);
        fb_sim_count(sim, FB_SIM_CACHE_FULL);
        return true;
    }
    return false;
}

void fb_sim_content_take(struct fb_sim *sim, const struct fb_io_req *req,
                         struct fb_sim_content *content)
{
    const uint32_t pages = (uint32_t)(req->len / FB_PAGE_BYTES);
    const uint32_t chunks = (uint32_t)fb_div_up(pages, FB_SIM_CHUNK_PAGES);
    while (sim->free_chunk_count < chunks)
        FB_ASSERT(cache_shrink(sim));
    struct fb_sim_place place = {req->vec, 0};
    uint32_t *link = &content->first;
    *content = (struct fb_sim_content){FB_SIM_NO_CHUNK, pages};
    for (uint32_t i = 0; i < pages; i++) {
        if (i % FB_SIM_CHUNK_PAGES == 0) {
            *link = chunk_new(sim);
            link = &sim->chunks[*link].next;
        }
        struct fb_sim_chunk *chunk =
            (struct fb_sim_chunk *)((uint8_t *)link - offsetof(struct fb_sim_chunk, next));
        chunk->pages[i % FB_SIM_CHUNK_PAGES] =
            fb_sim_page_take(sim, sim, fb_sim_place_next(&place));
    }
}

/* ---- landing and flushing ---- */

struct fb_sim_write *fb_sim_write_land(struct fb_sim *sim, unsigned d, uint64_t block,
                                       struct fb_sim_content *content)
{
    struct fb_sim_device *device = &sim->devices[d];
    const uint32_t sequence = device->sequence = ++sim->sequence;
    struct fb_sim_walk walk = fb_sim_content_walk(content);
    for (uint32_t i = 0; i < content->pages; i++) {
        const struct fb_sim_page page = *fb_sim_walk_next(sim, &walk);
        if (is_skip(page))
            continue;
        struct fb_sim_block *at = block_at(device, block + i);
        fb_sim_page_drop(sim, at->old);
        at->old = at->seen;
        at->seen = page_keep(sim, page);
        at->seen_sequence = sequence;
        at->suspect = false;
    }
    struct fb_link *link = fb_list_pop_front(&sim->free_writes);
    FB_ASSERT(link);
    struct fb_sim_write *write = FB_LIST_ITEM(link, struct fb_sim_write, link);
    write->content = *content;
    write->block = block;
    write->stamp = 0;
    write->sequence = sequence;
    fb_list_push_back(&device->cache, &write->link);
    *content = (struct fb_sim_content){FB_SIM_NO_CHUNK, 0};
    return write;
}

void fb_sim_suspect(struct fb_sim *sim, unsigned d, uint64_t block, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        block_at(&sim->devices[d], block + i)->suspect = true;
}

static bool is_covered(const struct fb_sim_write *write, uint64_t stamp)
{
    return write->stamp != 0 && write->stamp <= stamp;
}

void fb_sim_flush_done(struct fb_sim *sim, unsigned d, uint64_t stamp, uint64_t bytes)
{
    struct fb_sim_device *device = &sim->devices[d];
    FB_LIST_FOREACH_SAFE (link, following, &device->cache) {
        struct fb_sim_write *write = FB_LIST_ITEM(link, struct fb_sim_write, link);
        if (!is_covered(write, stamp))
            continue;
        write_make_durable(sim, device, write);
        write_free(sim, write);
        fb_sim_count(sim, FB_SIM_FLUSHED);
    }
    device->durable_bytes = fb_max_u64(device->durable_bytes, bytes);
}

/* Reads see again what is durable, where this write was the last. */
static void write_unsee(struct fb_sim *sim, struct fb_sim_device *device,
                        const struct fb_sim_write *write)
{
    for (uint32_t i = 0; i < write->content.pages; i++) {
        struct fb_sim_block *block = block_at(device, write->block + i);
        if (block->seen_sequence != write->sequence)
            continue;
        page_set(sim, &block->seen, page_keep(sim, block->durable));
        block->seen_sequence = block->durable_sequence;
    }
}

void fb_sim_flush_failed(struct fb_sim *sim, unsigned d, uint64_t stamp)
{
    struct fb_sim_device *device = &sim->devices[d];
    FB_LIST_FOREACH_SAFE (link, following, &device->cache) {
        struct fb_sim_write *write = FB_LIST_ITEM(link, struct fb_sim_write, link);
        if (!is_covered(write, stamp))
            continue;
        switch (fb_prng_below(&sim->prng, 3)) {
        case 0:
            write_make_durable(sim, device, write);
            fb_sim_count(sim, FB_SIM_FLUSH_FAILED_KEPT);
            break;
        case 1:
            write_unsee(sim, device, write);
            fb_sim_count(sim, FB_SIM_FLUSH_FAILED_GONE);
            break;
        default:
            fb_sim_count(sim, FB_SIM_FLUSH_FAILED_GHOST);
            break;
        }
        write_free(sim, write);
    }
}

struct fb_sim_page fb_sim_block_read(const struct fb_sim *sim, unsigned d, uint64_t block, bool old)
{
    const struct fb_sim_device *device = &sim->devices[d];
    if (block >= device->used_blocks)
        return (struct fb_sim_page){0, 0};
    return old ? device->blocks[block].old : device->blocks[block].seen;
}

/* ---- cuts ---- */

enum fate {
    KEEP,
    LOSE,
    PART,
    TEAR
};

static enum fate fate_of(enum fb_sim_cut cut, bool running, struct fb_prng *prng)
{
    switch (cut) {
    case FB_SIM_CUT_ALL:
        return KEEP;
    case FB_SIM_CUT_NONE:
        return LOSE;
    case FB_SIM_CUT_RANDOM:
        return running ? (enum fate)fb_prng_below(prng, 3) : (enum fate)fb_prng_below(prng, 2);
    default:
        return fb_prng_below(prng, 2) ? TEAR : (enum fate)fb_prng_below(prng, 2);
    }
}

/* Which sectors of a page arrive: all, none, or in a torn write some. */
static unsigned sectors_of(enum fate fate, struct fb_sim_page page, struct fb_prng *prng)
{
    if (fate == KEEP)
        return ALL_SECTORS;
    if (fate == LOSE)
        return 0;
    const uint32_t mix_ppm = is_meta(page) ? TORN_META_PPM : TORN_MIX_PPM;
    if (fate == TEAR && fb_prng_chance(prng, mix_ppm))
        return (unsigned)fb_prng_between(prng, 1, ALL_SECTORS - 1);
    return fb_prng_below(prng, 2) ? ALL_SECTORS : 0;
}

static void count_fate(struct fb_sim *sim, enum fate fate, bool running)
{
    static const enum fb_sim_counter counter[2][4] = {
        {FB_SIM_CUT_UNFLUSHED_KEPT, FB_SIM_CUT_UNFLUSHED_LOST, FB_SIM_CUT_UNFLUSHED_TORN,
         FB_SIM_CUT_UNFLUSHED_TORN},
        {FB_SIM_CUT_RUNNING_KEPT, FB_SIM_CUT_RUNNING_LOST, FB_SIM_CUT_RUNNING_TORN,
         FB_SIM_CUT_RUNNING_TORN},
    };
    fb_sim_count(sim, counter[running][fate]);
}

/* One page of a write arrives, as far as its fate lets it. The page is borrowed. */
static void cut_page(struct fb_sim *to, struct fb_sim_device *device, uint64_t number,
                     struct fb_sim_page page, enum fate fate, struct fb_prng *prng)
{
    if (is_skip(page) || number >= device->block_count)
        return;
    const unsigned mask = sectors_of(fate, page, prng);
    if (mask == 0)
        return;
    struct fb_sim_block *block = block_at(device, number);
    if (mask != ALL_SECTORS)
        fb_sim_count(to, FB_SIM_CUT_SECTORS_TORN);
    page_set(to, &block->durable, fb_sim_page_mix(to, block->durable, page, mask));
    device->durable_bytes = fb_max_u64(device->durable_bytes, (number + 1) * FB_BLOCK_BYTES);
}

static void cut_cached(const struct fb_sim *from, struct fb_sim *to, unsigned d,
                       enum fb_sim_cut cut, struct fb_prng *prng)
{
    struct fb_sim_device *device = &to->devices[d];
    FB_LIST_FOREACH (link, &from->devices[d].cache) {
        const struct fb_sim_write *write = FB_LIST_ITEM(link, struct fb_sim_write, link);
        const enum fate fate = fate_of(cut, false, prng);
        count_fate(to, fate, false);
        struct fb_sim_walk walk = fb_sim_content_walk(&write->content);
        for (uint32_t i = 0; i < write->content.pages; i++) {
            const struct fb_sim_page page = *fb_sim_walk_next(from, &walk);
            if (block_at(device, write->block + i)->durable_sequence < write->sequence)
                cut_page(to, device, write->block + i, page, fate, prng);
        }
    }
}

static void cut_running_write(const struct fb_sim *from, struct fb_sim *to,
                              const struct fb_sim_op *op, enum fb_sim_cut cut, struct fb_prng *prng)
{
    const enum fate fate = fate_of(cut, true, prng);
    count_fate(to, fate, true);
    const uint64_t block = op->req->device_off / FB_BLOCK_BYTES;
    struct fb_sim_place place = {op->req->vec, 0};
    struct fb_sim_walk walk = fb_sim_content_walk(&op->content);
    for (uint64_t i = 0; i < op->req->len / FB_PAGE_BYTES; i++) {
        struct fb_sim_page page;
        const bool taken = op->content.first != FB_SIM_NO_CHUNK;
        if (taken)
            page = *fb_sim_walk_next(from, &walk);
        else
            page = fb_sim_page_take(to, from, fb_sim_place_next(&place));
        cut_page(to, &to->devices[op->req->device], block + i, page, fate, prng);
        if (!taken)
            fb_sim_page_drop(to, page);
    }
}

static void cut_running(const struct fb_sim *from, struct fb_sim *to, enum fb_sim_cut cut,
                        struct fb_prng *prng)
{
    for (uint32_t i = 0; i < from->config.requests_max; i++) {
        const struct fb_sim_op *op = &from->ops[i];
        if (!op->req)
            continue;
        struct fb_sim_device *device = &to->devices[op->req->device];
        if (op->req->op == FB_IO_WRITE && op->req->device_off + op->req->len <= device->room_bytes)
            cut_running_write(from, to, op, cut, prng);
        else if (op->req->op == FB_IO_GROW && fate_of(cut, true, prng) == KEEP)
            device->seen_bytes =
                fb_max_u64(device->seen_bytes, fb_min_u64(op->req->device_off, device->room_bytes));
    }
}

/* What is durable becomes what is seen. */
static void settle(struct fb_sim *sim, struct fb_sim_device *device, enum fb_sim_cut cut,
                   struct fb_prng *prng)
{
    const bool keep_length = fate_of(cut, false, prng) == KEEP;
    if (keep_length || device->durable_bytes > device->seen_bytes)
        device->durable_bytes = fb_max_u64(device->durable_bytes, device->seen_bytes);
    else if (device->durable_bytes < device->seen_bytes)
        fb_sim_count(sim, FB_SIM_CUT_LENGTH_LOST);
    device->seen_bytes = device->durable_bytes;
    for (uint64_t i = 0; i < device->used_blocks; i++) {
        struct fb_sim_block *block = &device->blocks[i];
        if (i * FB_BLOCK_BYTES >= device->durable_bytes)
            page_set(sim, &block->durable, (struct fb_sim_page){0, 0});
        if (!fb_sim_page_is_equal(block->seen, block->durable))
            page_set(sim, &block->seen, page_keep(sim, block->durable));
        block->seen_sequence = 0;
        block->durable_sequence = 0;
    }
}

void fb_sim_cut_devices(const struct fb_sim *from, struct fb_sim *to, enum fb_sim_cut cut,
                        struct fb_prng *prng)
{
    for (unsigned d = 0; d < from->config.device_count; d++)
        cut_cached(from, to, d, cut, prng);
    cut_running(from, to, cut, prng);
    for (unsigned d = 0; d < to->config.device_count; d++) {
        settle(to, &to->devices[d], cut, prng);
        to->devices[d].busy_until_ns = 0;
    }
    fb_sim_count(to, FB_SIM_CUT_POWER);
}

void fb_sim_cache_forget(struct fb_sim *sim)
{
    for (unsigned d = 0; d < sim->config.device_count; d++) {
        FB_LIST_FOREACH_SAFE (link, following, &sim->devices[d].cache) {
            write_free(sim, FB_LIST_ITEM(link, struct fb_sim_write, link));
        }
    }
}

void fb_sim_device_copy(const struct fb_sim *from, struct fb_sim *to)
{
    FB_ASSERT(from->config.device_count == to->config.device_count);
    FB_ASSERT(from->config.meta_blocks_max == to->config.meta_blocks_max);
    for (unsigned d = 0; d < from->config.device_count; d++) {
        const struct fb_sim_device *source = &from->devices[d];
        struct fb_sim_device *target = &to->devices[d];
        FB_ASSERT(source->block_count == target->block_count);
        FB_ASSERT(fb_list_is_empty(&target->cache));
        const size_t size = sizeof *target->blocks;
        memcpy(target->blocks, source->blocks, source->used_blocks * size);
        if (target->used_blocks > source->used_blocks)
            memset(target->blocks + source->used_blocks, 0,
                   (target->used_blocks - source->used_blocks) * size);
        target->used_blocks = source->used_blocks;
        target->room_bytes = source->room_bytes;
        target->seen_bytes = source->seen_bytes;
        target->durable_bytes = source->durable_bytes;
        target->sequence = source->sequence;
    }
    to->meta_high = from->meta_high;
    to->meta_free_count = from->meta_free_count;
    memcpy(to->meta_free, from->meta_free, from->meta_free_count * sizeof *from->meta_free);
    memcpy(to->meta_refs, from->meta_refs, from->meta_high * sizeof *from->meta_refs);
    for (uint64_t i = 0; i < from->meta_high; i++) {
        if (from->meta_refs[i] > 0)
            memcpy(to->meta_blocks + i * FB_BLOCK_BYTES, from->meta_blocks + i * FB_BLOCK_BYTES,
                   FB_BLOCK_BYTES);
    }
}

/* Counts anew which real blocks are in use: those that blocks of devices name. */
void fb_sim_meta_recount(struct fb_sim *sim)
{
    memset(sim->meta_refs, 0, sim->meta_high * sizeof *sim->meta_refs);
    for (unsigned d = 0; d < sim->config.device_count; d++) {
        struct fb_sim_device *device = &sim->devices[d];
        for (uint64_t i = 0; i < device->used_blocks; i++) {
            page_keep(sim, device->blocks[i].seen);
            page_keep(sim, device->blocks[i].durable);
            page_keep(sim, device->blocks[i].old);
        }
    }
    sim->meta_free_count = 0;
    for (uint32_t i = sim->meta_high; i-- > 0;) {
        if (sim->meta_refs[i] == 0)
            sim->meta_free[sim->meta_free_count++] = i;
    }
}

/* ---- looking, and damage ---- */

static struct fb_sim_page page_at(const struct fb_sim *sim, unsigned d, uint64_t block)
{
    FB_ASSERT(d < sim->config.device_count && block < sim->devices[d].block_count);
    return fb_sim_block_read(sim, d, block, false);
}

enum fb_sim_block_kind fb_sim_block_kind(const struct fb_sim *sim, unsigned d, uint64_t block)
{
    const struct fb_sim_page page = page_at(sim, d, block);
    if (is_meta(page))
        return FB_SIM_BLOCK_META;
    return page.a == 0 && page.b == 0 ? FB_SIM_BLOCK_ZERO : FB_SIM_BLOCK_VALUE;
}

bool fb_sim_is_suspect(const struct fb_sim *sim, unsigned d, uint64_t block)
{
    FB_ASSERT(d < sim->config.device_count);
    return block < sim->devices[d].used_blocks && sim->devices[d].blocks[block].suspect;
}

void fb_sim_peek(const struct fb_sim *sim, unsigned d, uint64_t block, void *out)
{
    page_bytes(sim, page_at(sim, d, block), out);
}

/* Puts a page, which is kept already, in place of what a block holds, for reads and for good. */
static void damage(struct fb_sim *sim, unsigned d, uint64_t number, struct fb_sim_page page)
{
    FB_ASSERT(d < sim->config.device_count);
    struct fb_sim_device *device = &sim->devices[d];
    struct fb_sim_block *block = block_at(device, number);
    page_set(sim, &block->seen, page);
    page_set(sim, &block->durable, page_keep(sim, page));
    /* Nothing that is still in the cache repairs it. */
    block->seen_sequence = device->sequence;
    block->durable_sequence = device->sequence;
    block->suspect = true;
}

void fb_sim_poke(struct fb_sim *sim, unsigned d, uint64_t block, const void *bytes)
{
    damage(sim, d, block, page_of_bytes(sim, bytes));
}

void fb_sim_damage_flip(struct fb_sim *sim, unsigned d, uint64_t device_off, unsigned bit)
{
    FB_ASSERT(bit < BITS_OF_BYTE);
    const uint64_t number = device_off / FB_BLOCK_BYTES;
    struct fb_sim_page page = page_at(sim, d, number);
    if (is_meta(page)) {
        uint8_t bytes[FB_BLOCK_BYTES];
        page_bytes(sim, page, bytes);
        bytes[device_off % FB_BLOCK_BYTES] ^= (uint8_t)(1u << bit);
        page = page_of_bytes(sim, bytes);
    } else {
        const unsigned at = (unsigned)((device_off * BITS_OF_BYTE + bit) % TOKEN_BITS);
        uint64_t *half = at < TOKEN_BITS / 2 ? &page.a : &page.b;
        *half ^= UINT64_C(1) << at % (TOKEN_BITS / 2);
        FB_ASSERT(!is_meta(page) && !is_skip(page));
    }
    damage(sim, d, number, page);
    fb_sim_count(sim, FB_SIM_DAMAGE_FLIP);
}

void fb_sim_damage_zero(struct fb_sim *sim, unsigned d, uint64_t block, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        damage(sim, d, block + i, (struct fb_sim_page){0, 0});
    fb_sim_count(sim, FB_SIM_DAMAGE_ZERO);
}

void fb_sim_damage_swap(struct fb_sim *sim, unsigned d, uint64_t block, uint64_t other)
{
    const struct fb_sim_page one = page_keep(sim, page_at(sim, d, block));
    const struct fb_sim_page two = page_keep(sim, page_at(sim, d, other));
    damage(sim, d, block, two);
    damage(sim, d, other, one);
    fb_sim_count(sim, FB_SIM_DAMAGE_SWAP);
}

void fb_sim_damage_old(struct fb_sim *sim, unsigned d, uint64_t block, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        damage(sim, d, block + i, page_keep(sim, fb_sim_block_read(sim, d, block + i, true)));
    fb_sim_count(sim, FB_SIM_DAMAGE_OLD);
}

void fb_sim_damage_truncate(struct fb_sim *sim, unsigned d, uint64_t bytes)
{
    FB_ASSERT(d < sim->config.device_count);
    FB_ASSERT(bytes % FB_SIM_SECTOR_BYTES == 0);
    struct fb_sim_device *device = &sim->devices[d];
    device->seen_bytes = fb_min_u64(device->seen_bytes, bytes);
    device->durable_bytes = fb_min_u64(device->durable_bytes, bytes);
    const unsigned left = (unsigned)(bytes % FB_BLOCK_BYTES / FB_SIM_SECTOR_BYTES);
    uint64_t first = bytes / FB_BLOCK_BYTES;
    const struct fb_sim_page zero = {0, 0};
    if (left > 0 && first < device->used_blocks) {
        damage(sim, d, first, fb_sim_page_mix(sim, zero, page_at(sim, d, first), (1u << left) - 1));
        first++;
    }
    for (; first < device->used_blocks; first++)
        damage(sim, d, first, zero);
    fb_sim_count(sim, FB_SIM_DAMAGE_TRUNCATE);
}
