/*
 * The simulated backend: that it does what an honest device does, that each fault is observed from
 * outside when it is asked for, and what power cuts, process deaths and damage leave.
 *
 * It cannot show that real devices fail in these ways and no others.
 */
#include "io/sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/prng.h"
#include "test/lib/cm.h"
#include "test/lib/io_conform.h"

#define DEVICE_BYTES FB_MIB(8)
#define SEEDS        200
#define PAGE         ((uint64_t)FB_PAGE_BYTES)
#define SECTOR       FB_SIM_SECTOR_BYTES

/* A simulator with its metadata memory. */
struct box {
    struct test_io test;
    struct fb_sim *sim;
    uint8_t *meta;
    struct fb_script script;
};

static void box_open(struct box *box, struct fb_sim_config config)
{
    memset(box, 0, sizeof *box);
    box->meta = calloc(1, TEST_IO_META_BYTES);
    assert_non_null(box->meta);
    config.arena_bytes = TEST_IO_ARENA_BYTES;
    config.meta = box->meta;
    config.meta_bytes = TEST_IO_META_BYTES;
    /* Little memory: a test opens hundreds of these. */
    if (config.meta_blocks_max == 0)
        config.meta_blocks_max = 1024;
    if (config.unflushed_pages_max == 0)
        config.unflushed_pages_max = 16384;
    if (config.device_count == 0)
        config.device_count = 1;
    for (unsigned d = 0; d < config.device_count; d++)
        config.device_bytes[d] = DEVICE_BYTES;
    assert_int_equal(fb_sim_open(&config, &box->sim), 0);
    box->test = (struct test_io){.io = fb_sim_io(box->sim),
                                 .meta = box->meta,
                                 .sim = box->sim,
                                 .devices = config.device_count,
                                 .file_bytes = DEVICE_BYTES / 4};
}

static void box_close(struct box *box)
{
    fb_io_close(box->test.io);
    free(box->meta);
}

static void box_script(struct box *box, const char *text)
{
    char why[FB_SIM_EVENT_TEXT_MAX];
    assert_int_equal(fb_script_parse(text, &box->script, why, sizeof why), 0);
    fb_sim_set_script(box->sim, &box->script);
}

/* The page of version v that these tests put into block b. */
static struct fb_sim_page page_of(uint64_t block, uint64_t version)
{
    return fb_sim_token(block + 1, version, 0);
}

/* Writes version v to blocks first .. first+count-1 in one request. */
static int64_t put(struct box *box, uint64_t first, uint64_t count, uint64_t version)
{
    for (uint64_t i = 0; i < count; i++)
        test_io_put(&box->test, i * PAGE, page_of(first + i, version));
    return test_io_move(&box->test, FB_IO_WRITE, 0, first * PAGE, 0, count);
}

static int64_t load(struct box *box, uint64_t first, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        test_io_put(&box->test, i * PAGE, fb_sim_token(UINT32_MAX, 0, 0));
    return test_io_move(&box->test, FB_IO_READ, 0, first * PAGE, 0, count);
}

/* How many of these blocks hold version v, as a read tells. */
static uint64_t count_version(struct box *box, uint64_t first, uint64_t count, uint64_t version)
{
    assert_int_equal(load(box, first, count), count * PAGE);
    uint64_t found = 0;
    for (uint64_t i = 0; i < count; i++)
        found += test_io_is(&box->test, i * PAGE, page_of(first + i, version));
    return found;
}

static uint64_t fired(const struct box *box, enum fb_io_op op, enum fb_fault fault)
{
    return fb_sim_get_counts(box->sim)->fired[op][fault];
}

static uint64_t counted(const struct box *box, enum fb_sim_counter counter)
{
    return fb_sim_get_counts(box->sim)->counter[counter];
}

/* ---- an honest device ---- */

static void test_conforms(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct box box;
        box_open(&box, (struct fb_sim_config){.seed = seed, .device_count = 2});
        test_io_conform(&box.test, seed, 1000);
        assert_true(counted(&box, FB_SIM_OVERTAKEN) > 0);
        assert_true(counted(&box, FB_SIM_DATA_AT_SUBMIT) > 0);
        assert_true(counted(&box, FB_SIM_DATA_AT_COMPLETION) > 0);
        assert_true(box.test.io->stats.read_depth_max > 1);
        assert_int_equal(fb_sim_in_flight(box.sim), 0);
        box_close(&box);
    }
}

static void test_conforms_with_short_and_late_answers(void **state)
{
    (void)state;
    struct fb_sim_config config = {.requests_max = 4, .device_count = 2};
    for (unsigned op = 0; op < FB_IO_OP_COUNT; op++) {
        config.rates.ppm[op][FB_FAULT_SHORT] = 100000;
        config.rates.ppm[op][FB_FAULT_DELAYED] = 100000;
        config.rates.ppm[op][FB_FAULT_REORDERED] = 100000;
    }
    struct box box;
    box_open(&box, config);
    test_io_conform(&box.test, 1, 3000);
    assert_true(fired(&box, FB_IO_READ, FB_FAULT_SHORT) > 0);
    assert_true(fired(&box, FB_IO_WRITE, FB_FAULT_SHORT) > 0);
    for (unsigned op = 0; op < FB_IO_OP_COUNT; op++) {
        assert_true(fired(&box, op, FB_FAULT_DELAYED) > 0);
        assert_true(fired(&box, op, FB_FAULT_REORDERED) > 0);
    }
    box_close(&box);
}

static uint64_t trace_of(uint64_t seed)
{
    struct fb_sim_config config = {.seed = seed};
    config.rates.ppm[FB_IO_READ][FB_FAULT_SHORT] = 50000;
    struct box box;
    box_open(&box, config);
    test_io_conform(&box.test, 7, 500);
    const uint64_t trace = fb_sim_trace(box.sim);
    fb_sim_reset(box.sim, seed);
    box.test.now_ns = 0;
    test_io_conform(&box.test, 7, 500);
    assert_true(trace == fb_sim_trace(box.sim)); /* a reset begins the very same run */
    box_close(&box);
    return trace;
}

static void test_same_seed_same_run(void **state)
{
    (void)state;
    assert_true(trace_of(1) == trace_of(1));
    assert_true(trace_of(1) != trace_of(2));
}

static void test_a_full_cache_writes_back(void **state)
{
    (void)state;
    struct box box;
    box_open(&box, (struct fb_sim_config){.unflushed_pages_max = 8192});
    const uint64_t blocks = DEVICE_BYTES / PAGE;
    for (uint64_t round = 1; round <= 10; round++) {
        for (uint64_t block = 0; block + 64 <= blocks; block += 64)
            assert_int_equal(put(&box, block, 64, round), 64 * PAGE);
    }
    assert_true(counted(&box, FB_SIM_CACHE_FULL) > 0);
    for (uint64_t block = 0; block + 64 <= blocks; block += 64)
        assert_int_equal(count_version(&box, block, 64, 10), 64);
    box_close(&box);
}

static void test_room_runs_out_and_comes_back(void **state)
{
    (void)state;
    struct box box;
    box_open(&box, (struct fb_sim_config){0});
    fb_sim_set_room(box.sim, 0, 8 * PAGE);
    assert_int_equal(put(&box, 0, 8, 1), 8 * PAGE);
    assert_int_equal(fb_sim_device_bytes(box.sim, 0), 8 * PAGE);
    assert_int_equal(put(&box, 8, 1, 1), -ENOSPC);
    struct fb_io_req grow = {.op = FB_IO_GROW, .device_off = 9 * PAGE};
    assert_int_equal(test_io_run(&box.test, &grow), -ENOSPC);
    assert_int_equal(load(&box, 7, 2), PAGE); /* the end of the file */
    assert_int_equal(load(&box, 8, 2), 0);
    fb_sim_set_room(box.sim, 0, 16 * PAGE);
    assert_int_equal(test_io_run(&box.test, &grow), 0);
    assert_int_equal(load(&box, 8, 1), PAGE);
    assert_true(test_io_is(&box.test, 0, (struct fb_sim_page){0, 0}));
    assert_int_equal(counted(&box, FB_SIM_NO_SPACE), 2);
    assert_int_equal(counted(&box, FB_SIM_READ_PAST_END), 2);
    box_close(&box);
}

static void test_config_outside_limits(void **state)
{
    (void)state;
    struct fb_sim *sim = NULL;
    struct fb_sim_config config = {.device_count = 1, .device_bytes = {DEVICE_BYTES}};
    struct fb_sim_config wrong = config;
    wrong.device_count = FB_DEVICES_MAX + 1;
    assert_int_equal(fb_sim_open(&wrong, &sim), -EINVAL);
    wrong = config;
    wrong.device_bytes[0] = 100;
    assert_int_equal(fb_sim_open(&wrong, &sim), -EINVAL);
    wrong = config;
    wrong.meta_bytes = PAGE; /* and no memory */
    assert_int_equal(fb_sim_open(&wrong, &sim), -EINVAL);
    wrong = config;
    wrong.unflushed_pages_max = 100; /* a request would not fit */
    assert_int_equal(fb_sim_open(&wrong, &sim), -EINVAL);
    assert_int_equal(fb_sim_open(&config, &sim), 0);
    fb_io_close(fb_sim_io(sim));
}

/* ---- values ---- */

static void test_leaves_of_a_value(void **state)
{
    (void)state;
    struct box box;
    box_open(&box, (struct fb_sim_config){0});
    /* 300 KiB and a bit in three runs that do not lie in order. */
    const struct fb_sim_value value = {.key = 9, .version = 4, .bytes = 75 * PAGE + 17};
    const struct fb_io_vec vec[] = {{40 * PAGE, 10 * PAGE, FB_IO_ARENA},
                                    {0, 30 * PAGE, FB_IO_ARENA},
                                    {60 * PAGE, 35 * PAGE + 17, FB_IO_ARENA}};
    uint64_t leaves[2];
    uint64_t honest[2];
    struct fb_io_req req = {.op = FB_IO_HASH,
                            .vec = vec,
                            .vec_count = 3,
                            .len = value.bytes,
                            .leaf_out = leaves,
                            .leaf_count = 2};
    fb_sim_value_leaves(&value, 0, 2, honest);
    fb_sim_write_pages(box.sim, vec, 3, &value, 0, 0, 50);
    uint64_t wrong = 0;
    assert_int_equal(fb_sim_check_pages(box.sim, vec, 3, &value, 0, 0, 76, &wrong), 26);
    assert_int_equal(wrong, 50);
    assert_int_equal(test_io_run(&box.test, &req), 0);
    assert_true(leaves[0] != honest[0] && leaves[1] != honest[1]);
    /* The late rest of the copy. */
    fb_sim_write_pages(box.sim, vec, 3, &value, 0, 50, 26);
    assert_int_equal(fb_sim_check_pages(box.sim, vec, 3, &value, 0, 0, 76, NULL), 0);
    assert_int_equal(test_io_run(&box.test, &req), 0);
    assert_true(leaves[0] == honest[0] && leaves[1] == honest[1]);
    /* The length is part of it. */
    const struct fb_sim_value longer = {.key = 9, .version = 4, .bytes = value.bytes + 1};
    fb_sim_value_leaves(&longer, 0, 2, leaves);
    assert_true(leaves[0] == honest[0] && leaves[1] != honest[1]);
    char text[FB_SIM_EVENT_TEXT_MAX];
    fb_sim_page_text(fb_sim_token(9, 4, 75), text, sizeof text);
    assert_string_equal(text, "key 9 version 4 page 75");
    box_close(&box);
}

/* Moves one page between metadata memory and a block. */
static void move_meta(struct box *box, enum fb_io_op op, uint64_t block)
{
    const struct fb_io_vec vec = {0, FB_PAGE_BYTES, FB_IO_META};
    struct fb_io_req req = {.op = (uint8_t)op,
                            .vec = &vec,
                            .vec_count = 1,
                            .len = PAGE,
                            .device_off = block * PAGE};
    assert_int_equal(test_io_run(&box->test, &req), PAGE);
}

static void test_values_and_metadata_read_as_each_other(void **state)
{
    (void)state;
    struct box box;
    box_open(&box, (struct fb_sim_config){0});
    assert_int_equal(put(&box, 0, 1, 1), PAGE);
    assert_int_equal(fb_sim_block_kind(box.sim, 0, 0), FB_SIM_BLOCK_VALUE);
    move_meta(&box, FB_IO_READ, 0);
    move_meta(&box, FB_IO_WRITE, 1);
    assert_int_equal(load(&box, 1, 1), PAGE);
    assert_true(test_io_is(&box.test, 0, page_of(0, 1))); /* through metadata and back */
    memset(box.meta, 7, PAGE);
    move_meta(&box, FB_IO_WRITE, 2);
    assert_int_equal(fb_sim_block_kind(box.sim, 0, 2), FB_SIM_BLOCK_META);
    assert_int_equal(load(&box, 2, 1), PAGE);
    assert_true(fb_sim_arena(box.sim)[0].a > FB_SIM_KEY_MAX); /* garbage, but always the same */
    const struct fb_sim_page first = fb_sim_arena(box.sim)[0];
    assert_int_equal(load(&box, 2, 1), PAGE);
    assert_true(test_io_is(&box.test, 0, first));
    memset(box.meta, 0, PAGE);
    move_meta(&box, FB_IO_WRITE, 3);
    assert_int_equal(fb_sim_block_kind(box.sim, 0, 3), FB_SIM_BLOCK_ZERO);
    memset(box.meta, 1, PAGE);
    move_meta(&box, FB_IO_READ, 3);
    for (unsigned i = 0; i < PAGE; i++)
        assert_int_equal(box.meta[i], 0);
    box_close(&box);
}

/* ---- each fault ---- */

static void test_failed_transfers(void **state)
{
    (void)state;
    bool some[2] = {false, false}; /* of a failed write: something arrived, something did not */
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct box box;
        box_open(&box, (struct fb_sim_config){.seed = seed});
        assert_int_equal(put(&box, 0, 8, 1), 8 * PAGE);
        box_script(&box, "write:1:EIO,write:2:ENOSPC,read:1:EIO");
        assert_int_equal(load(&box, 0, 8), -EIO);
        assert_int_equal(put(&box, 0, 8, 2), -EIO);
        assert_int_equal(put(&box, 0, 8, 3), -ENOSPC);
        const uint64_t arrived = count_version(&box, 0, 8, 3);
        some[0] |= arrived > 0;
        some[1] |= arrived < 8;
        assert_int_equal(fired(&box, FB_IO_WRITE, FB_FAULT_EIO), 1);
        assert_int_equal(fired(&box, FB_IO_WRITE, FB_FAULT_ENOSPC), 1);
        assert_int_equal(fired(&box, FB_IO_READ, FB_FAULT_EIO), 1);
        assert_false(fb_sim_is_suspect(box.sim, 0, 0)); /* who got an error knows */
        box_close(&box);
    }
    assert_true(some[0] && some[1]);
}

static void test_short_transfers(void **state)
{
    (void)state;
    bool partial_block = false;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct box box;
        box_open(&box, (struct fb_sim_config){.seed = seed});
        assert_int_equal(put(&box, 0, 8, 1), 8 * PAGE);
        box_script(&box, "write:1:short,read:1:short");
        const int64_t read = load(&box, 0, 8);
        assert_true(read > 0 && read < (int64_t)(8 * PAGE) && read % SECTOR == 0);
        for (uint64_t i = 0; i < 8; i++)
            assert_true(test_io_is(&box.test, i * PAGE, page_of(i, 1)) ==
                        ((i + 1) * PAGE <= (uint64_t)read));
        const int64_t wrote = put(&box, 0, 8, 2);
        assert_true(wrote > 0 && wrote < (int64_t)(8 * PAGE) && wrote % SECTOR == 0);
        assert_int_equal(count_version(&box, 0, 8, 2), (uint64_t)wrote / PAGE);
        partial_block |= (uint64_t)wrote % PAGE != 0;
        box_close(&box);
    }
    assert_true(partial_block);
}

static void test_torn_write_answers_success(void **state)
{
    (void)state;
    struct box box;
    box_open(&box, (struct fb_sim_config){0});
    for (uint64_t round = 1; round <= SEEDS; round++) {
        const uint64_t pages = 1 + round % 8;
        assert_int_equal(put(&box, 0, pages, 2 * round), pages * PAGE);
        box_script(&box, "write:1:torn");
        assert_int_equal(put(&box, 0, pages, 2 * round + 1), pages * PAGE);
        assert_true(count_version(&box, 0, pages, 2 * round + 1) < pages);
        assert_true(fb_sim_is_suspect(box.sim, 0, 0));
    }
    assert_int_equal(fired(&box, FB_IO_WRITE, FB_FAULT_TORN), SEEDS);
    box_script(&box, "");
    assert_int_equal(put(&box, 0, 8, 1), 8 * PAGE);
    assert_false(fb_sim_is_suspect(box.sim, 0, 0)); /* healed by the next write */
    box_close(&box);
}

static void test_lost_write(void **state)
{
    (void)state;
    struct box box;
    box_open(&box, (struct fb_sim_config){0});
    assert_int_equal(put(&box, 0, 8, 1), 8 * PAGE);
    box_script(&box, "write:1:lost");
    assert_int_equal(put(&box, 0, 8, 2), 8 * PAGE);
    assert_int_equal(count_version(&box, 0, 8, 1), 8);
    assert_int_equal(fired(&box, FB_IO_WRITE, FB_FAULT_LOST), 1);
    assert_true(fb_sim_is_suspect(box.sim, 0, 7) && !fb_sim_is_suspect(box.sim, 0, 8));
    box_close(&box);
}

static void test_misdirected(void **state)
{
    (void)state;
    unsigned written = 0;
    unsigned read = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct box box;
        box_open(&box, (struct fb_sim_config){.seed = seed});
        assert_int_equal(put(&box, 0, 64, 1), 64 * PAGE);
        box_script(&box, "write:1:misdirected,read:1:misdirected");
        assert_int_equal(load(&box, 8, 4), 4 * PAGE);
        if (fired(&box, FB_IO_READ, FB_FAULT_MISDIRECTED)) {
            read++;
            assert_false(test_io_is(&box.test, 0, page_of(8, 1)));
        }
        assert_int_equal(put(&box, 8, 4, 2), 4 * PAGE);
        if (fired(&box, FB_IO_WRITE, FB_FAULT_MISDIRECTED)) {
            written++;
            assert_true(count_version(&box, 8, 4, 2) < 4);
            assert_true(count_version(&box, 0, 64, 1) <= 60); /* somebody else was hit */
            assert_true(fb_sim_is_suspect(box.sim, 0, 8));
        }
        box_close(&box);
    }
    assert_true(written > SEEDS / 2 && read > SEEDS / 2);
}

static void test_stale_read(void **state)
{
    (void)state;
    struct box box;
    box_open(&box, (struct fb_sim_config){0});
    assert_int_equal(put(&box, 0, 4, 1), 4 * PAGE);
    assert_int_equal(put(&box, 0, 4, 2), 4 * PAGE);
    box_script(&box, "read:1:stale");
    assert_int_equal(count_version(&box, 0, 4, 1), 4);
    assert_int_equal(count_version(&box, 0, 4, 2), 4);
    assert_int_equal(fired(&box, FB_IO_READ, FB_FAULT_STALE), 1);
    box_close(&box);
}

static void test_delayed_and_reordered(void **state)
{
    (void)state;
    struct box box;
    struct fb_sim_config config = {.latency = fb_sim_latency_default()};
    config.latency.tail_ppm = 0;
    box_open(&box, config);
    box_script(&box, "flush:1:delayed,flush:2:reordered");
    assert_int_equal(test_io_flush(&box.test, 0), 0);
    assert_true(box.test.now_ns >= config.latency.delay_ns / 2);
    struct fb_io_req reqs[2] = {{.op = FB_IO_FLUSH}, {.op = FB_IO_FLUSH}};
    struct fb_io_req *out[2];
    fb_io_submit(box.test.io, &reqs[0]);
    fb_io_submit(box.test.io, &reqs[1]);
    while (fb_io_reap(box.test.io, out, 2) == 0)
        test_io_wait(&box.test);
    assert_ptr_equal(out[0], &reqs[1]); /* the later one came first */
    assert_int_equal(counted(&box, FB_SIM_OVERTAKEN), 0);
    test_io_wait(&box.test);
    assert_int_equal(fb_io_reap(box.test.io, out, 2), 1);
    assert_int_equal(counted(&box, FB_SIM_OVERTAKEN), 1);
    box_close(&box);
}

static void test_failed_flush_never_heals(void **state)
{
    (void)state;
    unsigned kept = 0;
    unsigned gone = 0;
    unsigned ghost = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct box box;
        box_open(&box, (struct fb_sim_config){.seed = seed});
        assert_int_equal(put(&box, 0, 1, 1), PAGE);
        assert_int_equal(test_io_flush(&box.test, 0), 0);
        assert_int_equal(put(&box, 0, 1, 2), PAGE);
        box_script(&box, seed % 2 ? "flush:1:EIO" : "flush:1:ENOSPC");
        assert_int_equal(test_io_flush(&box.test, 0), seed % 2 ? -EIO : -ENOSPC);
        assert_int_equal(test_io_flush(&box.test, 0), 0); /* says nothing of it any more */
        const bool seen = count_version(&box, 0, 1, 2) == 1;
        fb_sim_power_cut(box.sim, FB_SIM_CUT_ALL, seed);
        const bool there = count_version(&box, 0, 1, 2) == 1;
        assert_true(there || count_version(&box, 0, 1, 1) == 1);
        assert_true(seen || !there);
        kept += there;
        gone += !seen;
        ghost += seen && !there;
        box_close(&box);
    }
    assert_true(kept > 0 && gone > 0 && ghost > 0);
}

static void test_lying_flush(void **state)
{
    (void)state;
    struct box box;
    box_open(&box, (struct fb_sim_config){0});
    box_script(&box, "flush:1:lying");
    assert_int_equal(put(&box, 0, 4, 1), 4 * PAGE);
    assert_int_equal(test_io_flush(&box.test, 0), 0);
    fb_sim_power_cut(box.sim, FB_SIM_CUT_NONE, 0);
    assert_int_equal(fb_sim_device_bytes(box.sim, 0), 0);
    assert_int_equal(fired(&box, FB_IO_FLUSH, FB_FAULT_LYING), 1);
    box_close(&box);
}

static void test_failed_growth(void **state)
{
    (void)state;
    struct box box;
    box_open(&box, (struct fb_sim_config){0});
    box_script(&box, "grow:1:EIO,grow:2:ENOSPC");
    struct fb_io_req grow = {.op = FB_IO_GROW, .device_off = 9 * PAGE};
    assert_int_equal(test_io_run(&box.test, &grow), -EIO);
    assert_int_equal(test_io_run(&box.test, &grow), -ENOSPC);
    assert_int_equal(fb_sim_device_bytes(box.sim, 0), 0);
    assert_int_equal(test_io_run(&box.test, &grow), 0);
    assert_int_equal(fb_sim_device_bytes(box.sim, 0), 9 * PAGE);
    box_close(&box);
}

/* Every fault that an op can meet fires by rates too, and none that it cannot. */
static void test_rates(void **state)
{
    (void)state;
    struct fb_sim_config config = {.seed = 3};
    for (unsigned op = 0; op < FB_IO_OP_COUNT; op++) {
        for (unsigned fault = 1; fault < FB_FAULT_COUNT; fault++)
            config.rates.ppm[op][fault] = 50000;
    }
    struct box box;
    box_open(&box, config);
    struct fb_prng prng;
    fb_prng_seed(&prng, 3);
    for (unsigned i = 0; i < 4000; i++) {
        uint64_t leaf;
        const struct fb_io_vec vec = {0, 4 * FB_PAGE_BYTES, FB_IO_ARENA};
        struct fb_io_req req = {.op = (uint8_t)fb_prng_below(&prng, FB_IO_OP_COUNT),
                                .vec = &vec,
                                .vec_count = 1,
                                .len = vec.len,
                                .leaf_out = &leaf,
                                .leaf_count = 1,
                                .device_off = fb_prng_below(&prng, 256) * PAGE};
        test_io_put(&box.test, 0, page_of(1, i));
        test_io_run(&box.test, &req);
    }
    for (unsigned op = 0; op < FB_IO_OP_COUNT; op++) {
        for (unsigned fault = 0; fault < FB_FAULT_COUNT; fault++)
            assert_true((fired(&box, op, fault) > 0) == fb_script_applies(op, fault));
    }
    static const struct fb_sim_rates none;
    fb_sim_set_rates(box.sim, &none);
    for (unsigned i = 0; i < 200; i++)
        assert_int_equal(put(&box, 0, 1, i), PAGE);
    box_close(&box);
}

/* ---- durability ---- */

static void test_cut_modes(void **state)
{
    (void)state;
    for (unsigned cut = 0; cut < FB_SIM_CUT_COUNT; cut++) {
        uint64_t whole = 0;
        uint64_t none = 0;
        uint64_t part = 0;
        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            struct box box;
            box_open(&box, (struct fb_sim_config){.seed = seed});
            assert_int_equal(put(&box, 0, 8, 1), 8 * PAGE);
            assert_int_equal(test_io_flush(&box.test, 0), 0);
            assert_int_equal(put(&box, 0, 8, 2), 8 * PAGE);
            fb_sim_power_cut(box.sim, cut, seed);
            const uint64_t fresh = count_version(&box, 0, 8, 2);
            whole += fresh == 8;
            none += count_version(&box, 0, 8, 1) == 8;
            part += fresh > 0 && fresh < 8;
            box_close(&box);
        }
        assert_true((whole > 0) == (cut != FB_SIM_CUT_NONE));
        assert_true((none > 0) == (cut != FB_SIM_CUT_ALL));
        assert_true((part > 0) == (cut == FB_SIM_CUT_TORN));
    }
}

static void test_flushed_survives_every_cut(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct box box;
        box_open(&box, (struct fb_sim_config){.seed = seed});
        assert_int_equal(put(&box, 0, 8, 1), 8 * PAGE);
        assert_int_equal(put(&box, 4, 8, 2), 8 * PAGE);
        assert_int_equal(test_io_flush(&box.test, 0), 0);
        fb_sim_power_cut(box.sim, seed % FB_SIM_CUT_COUNT, seed);
        assert_int_equal(count_version(&box, 0, 4, 1), 4);
        assert_int_equal(count_version(&box, 4, 8, 2), 8);
        box_close(&box);
    }
}

/* Starts a write of version v to blocks, without waiting for it. */
static void put_start(struct box *box, struct fb_io_req *req, struct fb_io_vec *vec,
                      uint64_t arena_page, uint64_t first, uint64_t count, uint64_t version)
{
    for (uint64_t i = 0; i < count; i++)
        test_io_put(&box->test, (arena_page + i) * PAGE, page_of(first + i, version));
    *vec = (struct fb_io_vec){arena_page * PAGE, (uint32_t)(count * PAGE), FB_IO_ARENA};
    *req = (struct fb_io_req){.op = FB_IO_WRITE,
                              .vec = vec,
                              .vec_count = 1,
                              .len = vec->len,
                              .device_off = first * PAGE};
    fb_io_submit(box->test.io, req);
}

static void test_flush_covers_only_what_was_reaped(void **state)
{
    (void)state;
    struct box box;
    box_open(&box, (struct fb_sim_config){0});
    assert_int_equal(put(&box, 0, 2, 1), 2 * PAGE);
    assert_int_equal(test_io_flush(&box.test, 0), 0);
    struct fb_io_req write;
    struct fb_io_vec vec;
    put_start(&box, &write, &vec, 10, 0, 2, 2);
    test_io_wait(&box.test); /* complete, but its owner does not know */
    struct fb_io_req flush = {.op = FB_IO_FLUSH};
    fb_io_submit(box.test.io, &flush);
    test_io_wait(&box.test);
    struct fb_io_req *out[2];
    assert_int_equal(fb_io_reap(box.test.io, out, 2), 2);
    fb_sim_power_cut(box.sim, FB_SIM_CUT_NONE, 0);
    assert_int_equal(count_version(&box, 0, 2, 1), 2);
    box_close(&box);
}

/* A flush that covers the later of two overlapping writes: the earlier one does not come back. */
static void test_older_write_never_returns(void **state)
{
    (void)state;
    for (unsigned cut = 0; cut < FB_SIM_CUT_COUNT; cut++) {
        struct box box;
        box_open(&box, (struct fb_sim_config){0});
        struct fb_io_req writes[2];
        struct fb_io_vec vecs[2];
        struct fb_io_req *out[2];
        put_start(&box, &writes[0], &vecs[0], 10, 0, 2, 1);
        test_io_wait(&box.test);
        put_start(&box, &writes[1], &vecs[1], 20, 0, 2, 2);
        test_io_wait(&box.test);
        assert_int_equal(fb_io_reap(box.test.io, out, 1), 1);
        assert_ptr_equal(out[0], &writes[0]);
        assert_int_equal(fb_io_reap(box.test.io, out, 1), 1);
        assert_int_equal(test_io_flush(&box.test, 0), 0);
        fb_sim_power_cut(box.sim, cut, 5);
        assert_int_equal(count_version(&box, 0, 2, 2), 2);
        box_close(&box);
    }
}

static void test_running_writes_land_somehow(void **state)
{
    (void)state;
    uint64_t whole = 0;
    uint64_t none = 0;
    uint64_t part = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct box box;
        box_open(&box, (struct fb_sim_config){.seed = seed});
        assert_int_equal(put(&box, 0, 8, 1), 8 * PAGE);
        assert_int_equal(test_io_flush(&box.test, 0), 0);
        struct fb_io_req write;
        struct fb_io_vec vec;
        put_start(&box, &write, &vec, 10, 0, 8, 2);
        if (seed % 3 == 2)
            fb_sim_kill(box.sim, seed);
        else
            fb_sim_power_cut(box.sim, seed % 3 ? FB_SIM_CUT_RANDOM : FB_SIM_CUT_TORN, seed);
        assert_int_equal(fb_sim_in_flight(box.sim), 0);
        assert_int_equal(fb_sim_next_ns(box.sim), UINT64_MAX);
        const uint64_t fresh = count_version(&box, 0, 8, 2);
        whole += fresh == 8;
        none += fresh == 0;
        part += fresh > 0 && fresh < 8;
        box_close(&box);
    }
    assert_true(whole > 0 && none > 0 && part > 0);
}

static void test_torn_metadata_has_whole_sectors(void **state)
{
    (void)state;
    uint64_t torn = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct box box;
        box_open(&box, (struct fb_sim_config){.seed = seed});
        memset(box.meta, 1, PAGE);
        move_meta(&box, FB_IO_WRITE, 0);
        assert_int_equal(test_io_flush(&box.test, 0), 0);
        memset(box.meta, 2, PAGE);
        move_meta(&box, FB_IO_WRITE, 0);
        fb_sim_power_cut(box.sim, FB_SIM_CUT_TORN, seed);
        move_meta(&box, FB_IO_READ, 0);
        unsigned changed = 0;
        for (unsigned off = 0; off < PAGE; off += SECTOR) {
            assert_true(box.meta[off] == 1 || box.meta[off] == 2);
            assert_memory_equal(box.meta + off, box.meta + off + 1, SECTOR - 1);
            changed += box.meta[off] == 2;
        }
        torn += changed > 0 && changed < PAGE / SECTOR;
        box_close(&box);
    }
    assert_true(torn > SEEDS / 10);
}

static void test_length_is_durable_by_flush(void **state)
{
    (void)state;
    struct box box;
    box_open(&box, (struct fb_sim_config){0});
    struct fb_io_req grow = {.op = FB_IO_GROW, .device_off = 16 * PAGE};
    assert_int_equal(test_io_run(&box.test, &grow), 0);
    fb_sim_power_cut(box.sim, FB_SIM_CUT_NONE, 0);
    assert_int_equal(fb_sim_device_bytes(box.sim, 0), 0);
    assert_int_equal(counted(&box, FB_SIM_CUT_LENGTH_LOST), 1);
    assert_int_equal(test_io_run(&box.test, &grow), 0);
    assert_int_equal(test_io_flush(&box.test, 0), 0);
    assert_int_equal(put(&box, 14, 4, 1), 4 * PAGE);
    fb_sim_power_cut(box.sim, FB_SIM_CUT_NONE, 0);
    assert_int_equal(fb_sim_device_bytes(box.sim, 0), 16 * PAGE);
    box_close(&box);
}

static void test_a_kill_leaves_the_cache(void **state)
{
    (void)state;
    struct box box;
    box_open(&box, (struct fb_sim_config){0});
    assert_int_equal(put(&box, 0, 4, 1), 4 * PAGE);
    fb_sim_kill(box.sim, 1);
    assert_int_equal(count_version(&box, 0, 4, 1), 4);
    fb_sim_kill(box.sim, 1);
    assert_int_equal(test_io_flush(&box.test, 0), 0); /* the successor's flush covers it */
    fb_sim_power_cut(box.sim, FB_SIM_CUT_NONE, 0);
    assert_int_equal(count_version(&box, 0, 4, 1), 4);
    assert_int_equal(put(&box, 0, 4, 2), 4 * PAGE);
    fb_sim_kill(box.sim, 1);
    fb_sim_power_cut(box.sim, FB_SIM_CUT_NONE, 0);
    assert_int_equal(count_version(&box, 0, 4, 1), 4);
    box_close(&box);
}

/* ---- clones ---- */

/* Blocks of both are the same, byte for byte. */
static void assert_same_device(struct fb_sim *one, struct fb_sim *two)
{
    assert_int_equal(fb_sim_device_bytes(one, 0), fb_sim_device_bytes(two, 0));
    for (uint64_t block = 0; block < DEVICE_BYTES / PAGE; block++) {
        uint8_t a[FB_PAGE_BYTES];
        uint8_t b[FB_PAGE_BYTES];
        fb_sim_peek(one, 0, block, a);
        fb_sim_peek(two, 0, block, b);
        assert_memory_equal(a, b, PAGE);
    }
}

/* A load with metadata, values, flushes, and something in flight at the end. */
static void run_load(struct box *box, struct fb_io_req *reqs, struct fb_io_vec *vecs)
{
    for (uint64_t i = 0; i < 40; i++) {
        assert_int_equal(put(box, i * 8 % 64, 8, i), 8 * PAGE);
        memset(box->meta, (int)i + 1, PAGE);
        move_meta(box, FB_IO_WRITE, 64 + i % 16);
        if (i % 5 == 0)
            assert_int_equal(test_io_flush(&box->test, 0), 0);
    }
    for (unsigned i = 0; i < 4; i++)
        put_start(box, &reqs[i], &vecs[i], 100 + 10 * i, 8 * i, 8, 100 + i);
}

static void test_clone_is_what_a_cut_leaves(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 40; seed++) {
        struct box box;
        struct box other;
        struct fb_io_req reqs[4];
        struct fb_io_vec vecs[4];
        const enum fb_sim_cut cut = seed % FB_SIM_CUT_COUNT;
        box_open(&box, (struct fb_sim_config){.seed = seed});
        box_open(&other, (struct fb_sim_config){.seed = seed + 1});
        /* What the clone had before must not matter. */
        struct fb_io_req other_reqs[4];
        struct fb_io_vec other_vecs[4];
        run_load(&other, other_reqs, other_vecs);
        run_load(&box, reqs, vecs);
        fb_sim_clone_cut(box.sim, other.sim, cut, seed);
        const uint64_t trace = fb_sim_trace(box.sim);
        assert_int_equal(fb_sim_in_flight(box.sim), 4); /* untouched */
        assert_true(trace == fb_sim_trace(box.sim));
        fb_sim_power_cut(box.sim, cut, seed);
        assert_same_device(box.sim, other.sim);
        /* And the clone lives on. */
        other.test.now_ns = box.test.now_ns;
        assert_int_equal(put(&other, 0, 8, 500), 8 * PAGE);
        assert_int_equal(test_io_flush(&other.test, 0), 0);
        fb_sim_power_cut(other.sim, FB_SIM_CUT_NONE, 1);
        assert_int_equal(count_version(&other, 0, 8, 500), 8);
        box_close(&box);
        box_close(&other);
    }
}

/* A clone owns nothing that only the original's lost writes need. */
static void test_clone_has_all_its_room(void **state)
{
    (void)state;
    struct box box;
    struct box other;
    box_open(&box, (struct fb_sim_config){.meta_blocks_max = 64});
    box_open(&other, (struct fb_sim_config){.meta_blocks_max = 64});
    for (unsigned i = 1; i <= 40; i++) {
        memset(box.meta, (int)i, PAGE);
        move_meta(&box, FB_IO_WRITE, 0);
    }
    fb_sim_clone_cut(box.sim, other.sim, FB_SIM_CUT_NONE, 0);
    other.test.now_ns = box.test.now_ns;
    for (unsigned i = 1; i <= 60; i++) {
        memset(other.meta, (int)i, PAGE);
        move_meta(&other, FB_IO_WRITE, i);
    }
    box_close(&box);
    box_close(&other);
}

struct boundary_note {
    struct fb_sim *clone;
    uint64_t called;
    uint64_t flushed_version; /* acknowledged by a flush */
};

static void at_boundary(void *context, const struct fb_sim *sim, uint64_t number)
{
    struct boundary_note *note = context;
    assert_int_equal(number, ++note->called);
    for (unsigned cut = 0; cut < FB_SIM_CUT_COUNT; cut++) {
        fb_sim_clone_cut(sim, note->clone, cut, number);
        uint8_t bytes[FB_PAGE_BYTES];
        uint8_t least[FB_PAGE_BYTES];
        memset(least, (int)note->flushed_version, sizeof least);
        fb_sim_peek(note->clone, 0, 0, bytes);
        assert_true(memcmp(bytes, least, SECTOR) >= 0);
    }
}

/* One scripted load, cut at every boundary in every mode: what a flush has covered is there. */
static void test_every_boundary(void **state)
{
    (void)state;
    struct box clone;
    box_open(&clone, (struct fb_sim_config){0});
    struct boundary_note note = {.clone = clone.sim};
    struct box box;
    box_open(&box, (struct fb_sim_config){.boundary = at_boundary, .boundary_context = &note});
    for (unsigned i = 1; i <= 20; i++) {
        memset(box.meta, (int)i, PAGE);
        move_meta(&box, FB_IO_WRITE, 0);
        assert_int_equal(test_io_flush(&box.test, 0), 0);
        note.flushed_version = i;
    }
    assert_int_equal(note.called, 20 * 4); /* two requests, each submitted and completed */
    assert_int_equal(fb_sim_boundaries(box.sim), note.called);
    box_close(&box);
    box_close(&clone);
}

/* ---- damage ---- */

static void test_damage(void **state)
{
    (void)state;
    struct box box;
    box_open(&box, (struct fb_sim_config){0});
    assert_int_equal(put(&box, 0, 16, 1), 16 * PAGE);
    assert_int_equal(put(&box, 0, 16, 2), 16 * PAGE);
    memset(box.meta, 5, PAGE);
    move_meta(&box, FB_IO_WRITE, 16);
    fb_sim_damage_flip(box.sim, 0, 0 * PAGE + 100, 3);
    fb_sim_damage_flip(box.sim, 0, 16 * PAGE + 100, 3);
    fb_sim_damage_zero(box.sim, 0, 1, 2);
    fb_sim_damage_swap(box.sim, 0, 3, 4);
    fb_sim_damage_old(box.sim, 0, 5, 1);
    assert_int_equal(test_io_flush(&box.test, 0), 0); /* the cache does not repair it */
    fb_sim_power_cut(box.sim, FB_SIM_CUT_ALL, 0);
    assert_int_equal(count_version(&box, 0, 16, 2), 10);
    assert_int_equal(count_version(&box, 0, 16, 1), 1);
    assert_int_equal(load(&box, 1, 4), 4 * PAGE);
    assert_true(test_io_is(&box.test, 0, (struct fb_sim_page){0, 0}));
    assert_true(test_io_is(&box.test, 2 * PAGE, page_of(4, 2)));
    assert_true(test_io_is(&box.test, 3 * PAGE, page_of(3, 2)));
    move_meta(&box, FB_IO_READ, 16);
    assert_int_equal(box.meta[100], 5 ^ 8);
    assert_int_equal(box.meta[99], 5);
    fb_sim_damage_truncate(box.sim, 0, 8 * PAGE + SECTOR);
    assert_int_equal(fb_sim_device_bytes(box.sim, 0), 8 * PAGE + SECTOR);
    assert_int_equal(load(&box, 7, 4), PAGE + SECTOR);
    uint8_t bytes[FB_PAGE_BYTES];
    memset(bytes, 9, sizeof bytes);
    fb_sim_poke(box.sim, 0, 0, bytes);
    move_meta(&box, FB_IO_READ, 0);
    assert_memory_equal(box.meta, bytes, PAGE);
    for (unsigned i = FB_SIM_DAMAGE_FLIP; i <= FB_SIM_DAMAGE_TRUNCATE; i++)
        assert_true(counted(&box, i) > 0);
    box_close(&box);
}

static void test_counts_add_up(void **state)
{
    (void)state;
    struct box box;
    box_open(&box, (struct fb_sim_config){0});
    assert_int_equal(put(&box, 0, 1, 1), PAGE);
    struct fb_sim_counts sum = {0};
    fb_sim_counts_add(&sum, fb_sim_get_counts(box.sim));
    fb_sim_counts_add(&sum, fb_sim_get_counts(box.sim));
    assert_int_equal(sum.counter[FB_SIM_COMPLETED], 2);
    assert_int_equal(sum.fired[FB_IO_WRITE][FB_FAULT_NONE], 2);
    fb_sim_power_cut(box.sim, FB_SIM_CUT_ALL, 0);
    fb_sim_kill(box.sim, 0);
    assert_int_equal(counted(&box, FB_SIM_CUT_POWER), 1);
    assert_int_equal(counted(&box, FB_SIM_CUT_KILL), 1);
    for (unsigned i = 0; i < FB_SIM_COUNTER_COUNT; i++)
        assert_non_null(fb_sim_counter_name(i));
    box_close(&box);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conforms),
        cmocka_unit_test(test_conforms_with_short_and_late_answers),
        cmocka_unit_test(test_same_seed_same_run),
        cmocka_unit_test(test_a_full_cache_writes_back),
        cmocka_unit_test(test_room_runs_out_and_comes_back),
        cmocka_unit_test(test_config_outside_limits),
        cmocka_unit_test(test_leaves_of_a_value),
        cmocka_unit_test(test_values_and_metadata_read_as_each_other),
        cmocka_unit_test(test_failed_transfers),
        cmocka_unit_test(test_short_transfers),
        cmocka_unit_test(test_torn_write_answers_success),
        cmocka_unit_test(test_lost_write),
        cmocka_unit_test(test_misdirected),
        cmocka_unit_test(test_stale_read),
        cmocka_unit_test(test_delayed_and_reordered),
        cmocka_unit_test(test_failed_flush_never_heals),
        cmocka_unit_test(test_lying_flush),
        cmocka_unit_test(test_failed_growth),
        cmocka_unit_test(test_rates),
        cmocka_unit_test(test_cut_modes),
        cmocka_unit_test(test_flushed_survives_every_cut),
        cmocka_unit_test(test_flush_covers_only_what_was_reaped),
        cmocka_unit_test(test_older_write_never_returns),
        cmocka_unit_test(test_running_writes_land_somehow),
        cmocka_unit_test(test_torn_metadata_has_whole_sectors),
        cmocka_unit_test(test_length_is_durable_by_flush),
        cmocka_unit_test(test_a_kill_leaves_the_cache),
        cmocka_unit_test(test_clone_is_what_a_cut_leaves),
        cmocka_unit_test(test_clone_has_all_its_room),
        cmocka_unit_test(test_every_boundary),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_counts_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
