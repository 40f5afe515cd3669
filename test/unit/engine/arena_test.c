/*
 * Covers the arena: exact chains out of any free pages, joining of buddies, runs, faulting in
 * steps, and random work against a model that knows the owner of each page. Cannot cover what
 * clients do with the memory: no byte is touched here.
 */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/prng.h"
#include "engine/arena.h"
#include "test/lib/cm.h"

#define POOL_BYTES FB_MIB(16)
#define POOL_PAGES (POOL_BYTES / FB_PAGE_BYTES)
#define CHAINS     256
#define STEPS      20000
#define RUNS       1024

struct bench {
    struct fb_arena arena;
    struct fb_region region;
    void *memory;
};

static void setup(struct bench *bench, uint64_t faulted)
{
    struct fb_region counting;
    fb_region_init_counting(&counting);
    fb_arena_init(&bench->arena, POOL_BYTES, &counting);
    bench->memory = malloc(counting.used_bytes);
    assert_non_null(bench->memory);
    fb_region_init(&bench->region, bench->memory, counting.used_bytes);
    fb_arena_init(&bench->arena, POOL_BYTES, &bench->region);
    fb_arena_faulted(&bench->arena, faulted);
}

static void teardown(struct bench *bench)
{
    free(bench->memory);
}

static void test_only_faulted_pages_are_given(void **state)
{
    (void)state;
    struct bench bench;
    setup(&bench, 0);
    assert_int_equal(fb_arena_alloc(&bench.arena, 1), FB_ARENA_NONE);
    fb_arena_faulted(&bench.arena, FB_MIB(2) + FB_PAGE_BYTES);
    assert_int_equal(bench.arena.free_pages, FB_ARENA_ROOT_PAGES);
    uint32_t all = fb_arena_alloc(&bench.arena, FB_ARENA_ROOT_PAGES);
    assert_int_equal(all, 0);
    assert_int_equal(fb_arena_alloc(&bench.arena, 1), FB_ARENA_NONE);
    fb_arena_faulted(&bench.arena, POOL_BYTES);
    assert_int_equal(bench.arena.free_pages, POOL_PAGES - FB_ARENA_ROOT_PAGES);
    fb_arena_free(&bench.arena, all);
    fb_arena_audit(&bench.arena);
    teardown(&bench);
}

static void test_chains_are_exact(void **state)
{
    (void)state;
    struct bench bench;
    setup(&bench, POOL_BYTES);
    for (uint32_t pages = 1; pages <= 1025; pages += 7) {
        uint32_t head = fb_arena_alloc(&bench.arena, pages);
        assert_int_equal(fb_arena_chain_pages(&bench.arena, head), pages);
        assert_int_equal(bench.arena.free_pages, POOL_PAGES - pages);
        assert_int_equal(fb_arena_free(&bench.arena, head), pages);
    }
    fb_arena_audit(&bench.arena);
    /* Everything was joined again: the largest blocks are whole. */
    for (unsigned i = 0; i < POOL_PAGES / FB_ARENA_ROOT_PAGES; i++) {
        uint32_t head = fb_arena_alloc(&bench.arena, FB_ARENA_ROOT_PAGES);
        assert_int_equal(bench.arena.next[head], FB_ARENA_NONE);
    }
    teardown(&bench);
}

static void test_any_free_page_is_usable(void **state)
{
    (void)state;
    struct bench bench;
    setup(&bench, POOL_BYTES);
    static uint32_t single[POOL_PAGES];
    for (unsigned i = 0; i < POOL_PAGES; i++)
        single[i] = fb_arena_alloc(&bench.arena, 1);
    for (unsigned i = 0; i < POOL_PAGES; i += 2)
        fb_arena_free(&bench.arena, single[i]);
    /* No two free pages are neighbours, and still they make one chain. */
    uint32_t head = fb_arena_alloc(&bench.arena, POOL_PAGES / 2);
    assert_int_not_equal(head, FB_ARENA_NONE);
    assert_int_equal(bench.arena.free_pages, 0);
    static struct fb_io_vec runs[RUNS];
    uint64_t covered;
    size_t count = fb_arena_runs(&bench.arena, head, 0, RUNS * FB_PAGE_BYTES, runs, RUNS, &covered);
    assert_int_equal(count, RUNS);
    assert_int_equal(covered, RUNS * FB_PAGE_BYTES);
    fb_arena_free(&bench.arena, head);
    fb_arena_audit(&bench.arena);
    teardown(&bench);
}

static void test_runs_cover_what_was_asked(void **state)
{
    (void)state;
    struct bench bench;
    setup(&bench, POOL_BYTES);
    uint32_t hole = fb_arena_alloc(&bench.arena, 3);
    uint32_t head = fb_arena_alloc(&bench.arena, 700);
    uint64_t bytes = 700 * FB_PAGE_BYTES - 123;
    for (size_t max = 1; max < 4; max++) {
        uint64_t off = 0;
        while (off < bytes) {
            struct fb_io_vec runs[4];
            uint64_t covered;
            size_t count = fb_arena_runs(&bench.arena, head, off, bytes - off, runs, max, &covered);
            assert_true(count > 0 && count <= max);
            uint64_t sum = 0;
            for (size_t i = 0; i < count; i++) {
                assert_int_equal(runs[i].space, FB_IO_ARENA);
                assert_true(runs[i].off + runs[i].len <= POOL_BYTES);
                sum += runs[i].len;
            }
            assert_int_equal(sum, covered);
            off += covered;
        }
        assert_int_equal(off, bytes);
    }
    fb_arena_free(&bench.arena, hole);
    fb_arena_free(&bench.arena, head);
    teardown(&bench);
}

/* Takes ownership of a chain's pages in the model; no page may have an owner. */
static void own(struct bench *bench, uint32_t head, uint16_t *owners, uint16_t owner)
{
    static struct fb_io_vec runs[POOL_PAGES];
    uint64_t covered;
    size_t count =
        fb_arena_runs(&bench->arena, head, 0,
                      (uint64_t)fb_arena_chain_pages(&bench->arena, head) * FB_PAGE_BYTES, runs,
                      POOL_PAGES, &covered);
    for (size_t i = 0; i < count; i++)
        for (uint64_t page = runs[i].off / FB_PAGE_BYTES;
             page < (runs[i].off + runs[i].len) / FB_PAGE_BYTES; page++) {
            assert_true(owner == 0 || owners[page] == 0);
            owners[page] = owner;
        }
}

static void test_random_work_never_shares_a_page(void **state)
{
    (void)state;
    struct bench bench;
    setup(&bench, FB_MIB(6));
    struct fb_prng prng;
    fb_prng_seed(&prng, 11);
    static uint16_t owners[POOL_PAGES];
    uint32_t heads[CHAINS];
    memset(owners, 0, sizeof(owners));
    memset(heads, 0xff, sizeof(heads));
    for (unsigned step = 0; step < STEPS; step++) {
        unsigned at = (unsigned)fb_prng_below(&prng, CHAINS);
        if (step == STEPS / 2)
            fb_arena_faulted(&bench.arena, POOL_BYTES);
        if (heads[at] != FB_ARENA_NONE) {
            own(&bench, heads[at], owners, 0);
            fb_arena_free(&bench.arena, heads[at]);
            heads[at] = FB_ARENA_NONE;
            continue;
        }
        uint32_t pages =
            (uint32_t)fb_prng_between(&prng, 1, fb_prng_chance(&prng, 50000) ? 600 : 30);
        uint32_t before = bench.arena.free_pages;
        heads[at] = fb_arena_alloc(&bench.arena, pages);
        assert_true((heads[at] == FB_ARENA_NONE) == (before < pages));
        if (heads[at] != FB_ARENA_NONE)
            own(&bench, heads[at], owners, (uint16_t)(at + 1));
        if (step % 1024 == 0)
            fb_arena_audit(&bench.arena);
    }
    fb_arena_audit(&bench.arena);
    teardown(&bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_faulted_pages_are_given),
        cmocka_unit_test(test_chains_are_exact),
        cmocka_unit_test(test_any_free_page_is_usable),
        cmocka_unit_test(test_runs_cover_what_was_asked),
        cmocka_unit_test(test_random_work_never_shares_a_page),
    };
    return cmocka_run_group_tests_name("arena", tests, NULL, NULL);
}
