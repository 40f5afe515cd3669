/*
 * One test for every backend of the I/O seam. See io_conform.h.
 */
#include "test/lib/io_conform.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/hash.h"
#include "base/prng.h"
#include "test/lib/cm.h"

#define WAIT_MS_MAX 30000
#define RUN_PAGES   70 /* pages of one request at most */
#define LEAVES_MAX  4
#define SHORTS_MAX  64 /* a request is gone on with so often at most */

/* A request in flight and what is expected of it. */
struct slot {
    struct fb_io_req req;
    struct fb_io_vec vec[RUN_PAGES + TEST_IO_META_PAGES];
    struct fb_sim_page written[RUN_PAGES + TEST_IO_META_PAGES];
    uint64_t leaves[LEAVES_MAX];
    uint64_t block;
    uint64_t pages;
    uint64_t moved; /* pages that earlier pieces of a short request have moved */
    unsigned shorts;
    bool running;
};

struct run {
    struct test_io *test;
    struct fb_prng prng;
    struct fb_sim_page *model[FB_DEVICES_MAX];
    bool *busy[FB_DEVICES_MAX];
    struct slot slots[TEST_IO_SLOTS];
    unsigned running;
    uint64_t next_key;
    uint64_t check_pages; /* so many pages of a read have arrived */
};

void test_io_bytes(struct fb_sim_page page, uint8_t *bytes)
{
    uint64_t words[FB_PAGE_BYTES / sizeof(uint64_t)] = {0};
    if (page.a != 0 || page.b != 0) {
        const uint64_t seed = fb_mix64(page.a ^ fb_mix64(page.b));
        for (size_t i = 0; i < FB_ARRAY_COUNT(words); i++)
            words[i] = seed * (2 * i + 1);
        words[0] = page.a;
        words[1] = page.b;
    }
    memcpy(bytes, words, sizeof words);
}

void test_io_put(struct test_io *test, uint64_t arena_off, struct fb_sim_page page)
{
    if (test->sim)
        fb_sim_arena(test->sim)[arena_off / FB_PAGE_BYTES] = page;
    else
        test_io_bytes(page, test->arena + arena_off);
}

bool test_io_is(const struct test_io *test, uint64_t arena_off, struct fb_sim_page page)
{
    if (test->sim)
        return fb_sim_page_is_equal(fb_sim_arena(test->sim)[arena_off / FB_PAGE_BYTES], page);
    uint8_t bytes[FB_PAGE_BYTES];
    test_io_bytes(page, bytes);
    return memcmp(bytes, test->arena + arena_off, FB_PAGE_BYTES) == 0;
}

static void poll_event(struct test_io *test)
{
    struct pollfd fd = {.fd = fb_io_event_fd(test->io), .events = POLLIN};
    assert_int_equal(poll(&fd, 1, WAIT_MS_MAX), 1);
}

void test_io_wait(struct test_io *test)
{
    if (test->sim) {
        assert_true(fb_sim_next_ns(test->sim) != UINT64_MAX);
        test->now_ns = fb_sim_next_ns(test->sim);
        fb_sim_advance(test->sim, test->now_ns);
        return;
    }
    fb_io_kick(test->io);
    poll_event(test);
}

int64_t test_io_run(struct test_io *test, struct fb_io_req *req)
{
    struct fb_io_req *out[2];
    fb_io_submit(test->io, req);
    size_t count = fb_io_reap(test->io, out, 2);
    while (count == 0) {
        test_io_wait(test);
        count = fb_io_reap(test->io, out, 2);
    }
    assert_int_equal(count, 1);
    assert_ptr_equal(out[0], req);
    return req->result;
}

int64_t test_io_move(struct test_io *test, enum fb_io_op op, unsigned device, uint64_t device_off,
                     uint64_t arena_off, uint64_t pages)
{
    const struct fb_io_vec vec = {arena_off, (uint32_t)(pages * FB_PAGE_BYTES), FB_IO_ARENA};
    struct fb_io_req req = {.op = (uint8_t)op,
                            .device = (uint8_t)device,
                            .vec_count = 1,
                            .device_off = device_off,
                            .len = vec.len,
                            .vec = &vec};
    return test_io_run(test, &req);
}

int64_t test_io_flush(struct test_io *test, unsigned device)
{
    struct fb_io_req req = {.op = FB_IO_FLUSH, .device = (uint8_t)device};
    return test_io_run(test, &req);
}

/* ---- one request ---- */

/* Cuts `pages` pages into random runs of the slot's own memory, the pages of metadata among them.
 */
static void draw_vec(struct run *run, unsigned index, uint64_t pages, bool with_meta)
{
    struct slot *slot = &run->slots[index];
    const uint64_t arena = (uint64_t)index * TEST_IO_SLOT_PAGES * FB_PAGE_BYTES;
    const uint64_t meta = (uint64_t)index * TEST_IO_META_PAGES * FB_PAGE_BYTES;
    uint64_t arena_page = fb_prng_below(&run->prng, TEST_IO_SLOT_PAGES - RUN_PAGES + 1);
    uint64_t meta_page = 0;
    const uint64_t pieces = fb_prng_below(&run->prng, 3) ? 1 : 1 + fb_prng_below(&run->prng, 9);
    slot->req.vec_count = 0;
    for (uint64_t done = 0; done < pages;) {
        struct fb_io_vec *vec = &slot->vec[slot->req.vec_count++];
        uint64_t count = fb_min_u64(pages - done, fb_div_up(pages, pieces));
        const bool is_meta =
            with_meta && meta_page < TEST_IO_META_PAGES && fb_prng_below(&run->prng, 3) == 0;
        if (is_meta) {
            count = 1;
            *vec =
                (struct fb_io_vec){meta + meta_page++ * FB_PAGE_BYTES, FB_PAGE_BYTES, FB_IO_META};
        } else {
            *vec = (struct fb_io_vec){arena + arena_page * FB_PAGE_BYTES,
                                      (uint32_t)(count * FB_PAGE_BYTES), FB_IO_ARENA};
            arena_page += count;
        }
        done += count;
    }
    slot->req.vec = slot->vec;
    slot->req.len = pages * FB_PAGE_BYTES;
}

/* Calls `visit` for each page of a slot's request, in order. */
typedef void visit_fn(struct run *run, struct slot *slot, const struct fb_io_vec *page, uint64_t i);

static void visit_pages(struct run *run, struct slot *slot, visit_fn *visit)
{
    uint64_t number = 0;
    for (unsigned v = 0; v < slot->req.vec_count; v++) {
        for (uint32_t off = 0; off < slot->req.vec[v].len; off += FB_PAGE_BYTES) {
            const struct fb_io_vec page = {slot->req.vec[v].off + off, FB_PAGE_BYTES,
                                           slot->req.vec[v].space};
            visit(run, slot, &page, number++);
        }
    }
}

static void fill_page(struct run *run, struct slot *slot, const struct fb_io_vec *page, uint64_t i)
{
    const struct fb_sim_page token = fb_sim_token(run->next_key, 1, i);
    slot->written[i] = token;
    if (page->space == FB_IO_ARENA)
        test_io_put(run->test, page->off, token);
    else if (run->test->sim)
        /* Metadata as the simulator itself would make it of a token: so it is read as one. */
        memset(run->test->meta + page->off, (int)(token.a & 0x7f) + 1, FB_PAGE_BYTES);
    else
        test_io_bytes(token, run->test->meta + page->off);
}

/* Metadata bytes of the simulator are not a token's; their page is known by what they were. */
static void note_meta(struct run *run, struct slot *slot, const struct fb_io_vec *page, uint64_t i)
{
    if (page->space == FB_IO_META && run->test->sim)
        slot->written[i] = (struct fb_sim_page){UINT64_MAX, run->test->meta[page->off]};
}

static void spoil_page(struct run *run, struct slot *slot, const struct fb_io_vec *page, uint64_t i)
{
    (void)slot;
    (void)i;
    if (page->space == FB_IO_META)
        memset(run->test->meta + page->off, 0xee, FB_PAGE_BYTES);
    else
        test_io_put(run->test, page->off, (struct fb_sim_page){1, 1});
}

static bool all_bytes_are(const uint8_t *bytes, uint8_t value)
{
    return bytes[0] == value && memcmp(bytes, bytes + 1, FB_PAGE_BYTES - 1) == 0;
}

static void check_page(struct run *run, struct slot *slot, const struct fb_io_vec *page, uint64_t i)
{
    if (i >= run->check_pages)
        return;
    const struct fb_sim_page token = run->model[slot->req.device][slot->block + slot->moved + i];
    uint8_t bytes[FB_PAGE_BYTES];
    if (run->test->sim && token.a == UINT64_MAX) {
        /* Real bytes of the simulator: readable as such in metadata only. */
        if (page->space == FB_IO_META)
            assert_true(all_bytes_are(run->test->meta + page->off, (uint8_t)token.b));
    } else if (page->space == FB_IO_ARENA) {
        assert_true(test_io_is(run->test, page->off, token));
    } else if (!run->test->sim) {
        test_io_bytes(token, bytes);
        assert_memory_equal(bytes, run->test->meta + page->off, FB_PAGE_BYTES);
    }
}

static bool claim_blocks(struct run *run, struct slot *slot, unsigned device, uint64_t pages)
{
    const uint64_t blocks = run->test->file_bytes / FB_BLOCK_BYTES;
    slot->block = fb_prng_below(&run->prng, blocks - pages + 1);
    slot->pages = pages;
    for (uint64_t i = 0; i < pages; i++) {
        if (run->busy[device][slot->block + i])
            return false;
    }
    memset(run->busy[device] + slot->block, 1, pages);
    slot->req.device_off = slot->block * FB_BLOCK_BYTES;
    return true;
}

static bool draw_transfer(struct run *run, unsigned index, unsigned device, bool is_write)
{
    struct slot *slot = &run->slots[index];
    const uint64_t pages = fb_prng_below(&run->prng, 2) ? 1 + fb_prng_below(&run->prng, RUN_PAGES)
                                                        : 1 + fb_prng_below(&run->prng, 4);
    if (!claim_blocks(run, slot, device, pages))
        return false;
    draw_vec(run, index, pages, true);
    run->next_key++;
    if (is_write) {
        visit_pages(run, slot, fill_page);
        visit_pages(run, slot, note_meta);
    } else {
        visit_pages(run, slot, spoil_page);
    }
    return true;
}

static void draw_hash(struct run *run, unsigned index)
{
    struct slot *slot = &run->slots[index];
    const uint64_t pages = 1 + fb_prng_below(&run->prng, RUN_PAGES);
    draw_vec(run, index, pages, false);
    run->next_key++;
    visit_pages(run, slot, fill_page);
    /* The last page is not always whole. */
    const uint32_t cut =
        (uint32_t)fb_prng_below(&run->prng, 2) * (uint32_t)fb_prng_below(&run->prng, FB_PAGE_BYTES);
    slot->vec[slot->req.vec_count - 1].len -= cut;
    slot->req.len -= cut;
    slot->req.leaf_out = slot->leaves;
    slot->req.leaf_count = LEAVES_MAX;
    slot->pages = pages;
    memset(slot->leaves, 0, sizeof slot->leaves);
}

static bool draw_request(struct run *run, unsigned index)
{
    struct slot *slot = &run->slots[index];
    const unsigned device = (unsigned)fb_prng_below(&run->prng, run->test->devices);
    const uint64_t kind = fb_prng_below(&run->prng, 20);
    memset(&slot->req, 0, sizeof slot->req);
    slot->moved = 0;
    slot->shorts = 0;
    slot->pages = 0;
    slot->req.device = (uint8_t)device;
    slot->req.cookie = index;
    if (kind < 8) {
        slot->req.op = FB_IO_READ;
        return draw_transfer(run, index, device, false);
    }
    if (kind < 15) {
        slot->req.op = FB_IO_WRITE;
        return draw_transfer(run, index, device, true);
    }
    if (kind < 17) {
        slot->req.op = FB_IO_HASH;
        draw_hash(run, index);
    } else if (kind < 19) {
        slot->req.op = FB_IO_FLUSH;
    } else {
        slot->req.op = FB_IO_GROW;
        slot->req.device_off = run->test->file_bytes;
    }
    return true;
}

/* ---- its answer ---- */

/* What the backend must have computed for a leaf. */
static uint64_t expected_leaf(struct run *run, const struct slot *slot, uint64_t leaf)
{
    const uint64_t off = leaf * FB_LEAF_BYTES;
    const uint64_t bytes = fb_min_u64(slot->req.len - off, FB_LEAF_BYTES);
    if (run->test->sim)
        return fb_sim_leaf_hash(slot->written + off / FB_PAGE_BYTES, bytes);
    uint8_t *copy = malloc(FB_LEAF_BYTES);
    assert_non_null(copy);
    for (uint64_t i = 0; i < fb_div_up(bytes, FB_PAGE_BYTES); i++)
        test_io_bytes(slot->written[off / FB_PAGE_BYTES + i], copy + i * FB_PAGE_BYTES);
    const uint64_t hash = fb_leaf_hash(copy, bytes);
    free(copy);
    return hash;
}

/* Drops the first `bytes` bytes of a request's vector; what they moved is whole pages. */
static void go_on(struct slot *slot, uint64_t bytes)
{
    struct fb_io_req *req = &slot->req;
    struct fb_io_vec *vec = slot->vec + (req->vec - slot->vec);
    req->len -= bytes;
    req->device_off += bytes;
    slot->moved += bytes / FB_PAGE_BYTES;
    while (bytes > 0) {
        const uint64_t piece = fb_min_u64(bytes, vec->len);
        vec->off += piece;
        vec->len -= (uint32_t)piece;
        bytes -= piece;
        if (vec->len == 0) {
            vec++;
            req->vec_count--;
        }
    }
    req->vec = vec;
}

/* Takes note of a transfer. Returns false if it was short and was submitted again. */
static bool finish_transfer(struct run *run, struct slot *slot)
{
    struct fb_io_req *req = &slot->req;
    assert_true(req->result > 0 && (uint64_t)req->result <= req->len);
    const uint64_t whole = fb_align_down((uint64_t)req->result, FB_PAGE_BYTES);
    run->check_pages = whole / FB_PAGE_BYTES;
    if (req->op == FB_IO_READ)
        visit_pages(run, slot, check_page);
    if (whole < req->len) {
        assert_true(++slot->shorts < SHORTS_MAX);
        go_on(slot, whole);
        fb_io_submit(run->test->io, req);
        return false;
    }
    if (req->op == FB_IO_WRITE)
        memcpy(run->model[req->device] + slot->block, slot->written,
               slot->pages * sizeof *slot->written);
    memset(run->busy[req->device] + slot->block, 0, slot->pages);
    return true;
}

static void finish(struct run *run, struct fb_io_req *req)
{
    struct slot *slot = &run->slots[req->cookie];
    assert_ptr_equal(&slot->req, req);
    assert_true(slot->running);
    if (req->op == FB_IO_READ || req->op == FB_IO_WRITE) {
        if (!finish_transfer(run, slot))
            return;
    } else {
        assert_int_equal(req->result, 0);
    }
    if (req->op == FB_IO_HASH) {
        const uint64_t leaves = fb_div_up(req->len, FB_LEAF_BYTES);
        for (uint64_t i = 0; i < leaves; i++)
            assert_true(slot->leaves[i] == expected_leaf(run, slot, i));
        assert_true(slot->leaves[leaves] == 0);
    }
    slot->running = false;
    run->running--;
}

/* Nothing was submitted since the last reap, so a kick is not needed. */
static void wait_after_reap(struct test_io *test)
{
    if (test->sim)
        test_io_wait(test);
    else
        poll_event(test);
}

static void reap_some(struct run *run)
{
    struct fb_io_req *out[TEST_IO_SLOTS];
    /* Small batches too: what is left over must still be announced. */
    const size_t max = 1 + fb_prng_below(&run->prng, TEST_IO_SLOTS);
    if (!run->test->sim && fb_prng_below(&run->prng, 2))
        test_io_wait(run->test);
    size_t count = fb_io_reap(run->test->io, out, max);
    while (count == 0) {
        wait_after_reap(run->test);
        count = fb_io_reap(run->test->io, out, max);
    }
    assert_true(count <= max);
    for (size_t i = 0; i < count; i++)
        finish(run, out[i]);
}

/* Gives every device its length, and every block a token. */
static void fill_devices(struct run *run)
{
    struct test_io *test = run->test;
    const uint64_t blocks = test->file_bytes / FB_BLOCK_BYTES;
    for (unsigned d = 0; d < test->devices; d++) {
        struct fb_io_req grow = {.op = FB_IO_GROW,
                                 .device = (uint8_t)d,
                                 .device_off = test->file_bytes};
        assert_int_equal(test_io_run(test, &grow), 0);
        run->model[d] = calloc(blocks, sizeof *run->model[d]);
        run->busy[d] = calloc(blocks, sizeof *run->busy[d]);
        assert_true(run->model[d] && run->busy[d]);
        for (uint64_t b = 0; b < blocks; b++) {
            run->model[d][b] = fb_sim_token(++run->next_key, 1, 0);
            test_io_put(test, 0, run->model[d][b]);
            while (test_io_move(test, FB_IO_WRITE, d, b * FB_BLOCK_BYTES, 0, 1) != FB_BLOCK_BYTES)
                test_io_put(test, 0, run->model[d][b]);
        }
    }
}

void test_io_conform(struct test_io *test, uint64_t seed, unsigned steps)
{
    struct run *run = calloc(1, sizeof *run);
    assert_non_null(run);
    run->test = test;
    fb_prng_seed(&run->prng, seed);
    fill_devices(run);
    for (unsigned step = 0; step < steps;) {
        const unsigned index = (unsigned)fb_prng_below(&run->prng, TEST_IO_SLOTS);
        struct slot *slot = &run->slots[index];
        if (!slot->running && draw_request(run, index)) {
            slot->running = true;
            run->running++;
            step++;
            fb_io_submit(test->io, &slot->req);
        } else if (run->running > 0) {
            reap_some(run);
        }
    }
    while (run->running > 0)
        reap_some(run);
    struct fb_io_req *extra;
    assert_int_equal(fb_io_reap(test->io, &extra, 1), 0);
    for (unsigned d = 0; d < test->devices; d++) {
        free(run->model[d]);
        free(run->busy[d]);
    }
    free(run);
}
