/*
 * Copy jobs and the mapped pool. Covers: random splits of buffers and runs, both ways, whole parts
 * and pieces, against plain copying and hashing; one mapping for many connections; memory that is
 * too short; that a forked child does not have the mapping.
 *
 * Cannot show: a writer that changes the source during the copy.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/bits.h"
#include "base/prng.h"
#include "client/copy.h"
#include "client/shm.h"
#include "forebay/result.h"
#include "proto/scatter.h"
#include "test/lib/cm.h"

#define POOL_BYTES (1u << 20)
#define PIECES_MAX 64

/* Random pieces of a row of bytes; returns how many. */
static uint32_t cut(struct fb_prng *prng, uint32_t bytes, uint32_t *lengths)
{
    uint32_t count = 0;
    bool fine = fb_prng_chance(prng, 500000);
    while (bytes > 0) {
        uint32_t most = fine ? 1 + bytes / 8 : bytes;
        uint32_t step = count + 1 == PIECES_MAX ? bytes : 1 + (uint32_t)fb_prng_below(prng, most);
        step = (uint32_t)fb_min_u64(step, bytes);
        lengths[count++] = step;
        bytes -= step;
    }
    return count;
}

struct world {
    struct fb_prng prng;
    uint8_t *pool, *mine, *model;
    struct fb_proto_job job;
    struct fb_buf bufs[PIECES_MAX];
    uint8_t runs[PIECES_MAX * FB_WIRE_RUN_BYTES];
    uint64_t run_off[PIECES_MAX];
    uint32_t run_len[PIECES_MAX];
};

/* Runs in places of the pool that do not overlap: in a random order, side by side. */
static void make_runs(struct world *world)
{
    struct fb_proto_job *job = &world->job;
    job->run_count = cut(&world->prng, job->part_bytes, world->run_len);
    uint64_t at = fb_prng_below(&world->prng, POOL_BYTES - job->part_bytes + 1);
    bool backwards = fb_prng_chance(&world->prng, 500000);
    uint64_t end = at + job->part_bytes;
    struct fb_writer writer;
    fb_writer_init(&writer, world->runs, sizeof(world->runs));
    for (uint32_t i = 0; i < job->run_count; i++) {
        uint32_t len = world->run_len[i];
        world->run_off[i] = backwards ? end - len : at;
        at += len;
        end -= len;
        fb_wire_run_encode(&writer, &(struct fb_wire_run){world->run_off[i], len});
    }
    job->runs = world->runs;
}

static void make_bufs(struct world *world)
{
    struct fb_proto_job *job = &world->job;
    uint32_t lengths[PIECES_MAX];
    job->buf_off = fb_prng_below(&world->prng, 100);
    job->buf_count = cut(&world->prng, (uint32_t)job->buf_off + job->want_bytes, lengths);
    uint8_t *at = world->mine;
    for (size_t i = 0; i < job->buf_count; i++) {
        world->bufs[i] = (struct fb_buf){at, lengths[i]};
        at += lengths[i];
    }
    job->bufs = world->bufs;
}

/* The part as it lies in the pool, in one row. */
static void gather(const struct world *world, uint8_t *out)
{
    for (uint32_t i = 0; i < world->job.run_count; i++) {
        memcpy(out, world->pool + world->run_off[i], world->run_len[i]);
        out += world->run_len[i];
    }
}

static void check_leaves(const struct world *world, const uint8_t *part, const uint64_t *leaves)
{
    const struct fb_proto_job *job = &world->job;
    for (uint32_t i = 0; i < job->leaf_count; i++) {
        uint64_t off = i * FB_LEAF_BYTES;
        uint64_t bytes = fb_min_u64(FB_LEAF_BYTES, job->part_bytes - off);
        assert_true(leaves[i] == fb_leaf_hash(part + off, bytes));
    }
}

static void random_jobs(void **state)
{
    (void)state;
    struct world *world = calloc(1, sizeof(*world));
    fb_prng_seed(&world->prng, 5);
    world->pool = malloc(POOL_BYTES);
    world->mine = malloc(POOL_BYTES + 200);
    world->model = malloc(POOL_BYTES);
    uint8_t *before = malloc(POOL_BYTES + 200);
    for (unsigned round = 0; round < 400; round++) {
        struct fb_proto_job *job = &world->job;
        memset(job, 0, sizeof(*job));
        job->to_pool = round % 2 == 0;
        job->part_bytes = 1 + (uint32_t)fb_prng_below(&world->prng, round % 3 == 0 ? 700000 : 9000);
        job->want_bytes = job->part_bytes;
        if (!job->to_pool && round % 4 == 1) {
            job->want_off = (uint32_t)fb_prng_below(&world->prng, job->part_bytes);
            job->want_bytes =
                1 + (uint32_t)fb_prng_below(&world->prng, job->part_bytes - job->want_off);
        }
        job->leaf_count = (uint32_t)fb_div_up(job->part_bytes, FB_LEAF_BYTES);
        fb_prng_fill(&world->prng, world->pool, POOL_BYTES);
        fb_prng_fill(&world->prng, world->mine, POOL_BYTES + 200);
        make_runs(world);
        make_bufs(world);
        memcpy(before, world->mine, POOL_BYTES + 200);
        gather(world, world->model);
        uint64_t leaves[FB_PROTO_LEAVES_MAX];
        fb_copy_job(job, world->pool, leaves);
        if (job->to_pool) {
            gather(world, world->model);
            assert_memory_equal(world->model, world->mine + job->buf_off, job->part_bytes);
        } else {
            memcpy(before + job->buf_off, world->model + job->want_off, job->want_bytes);
        }
        check_leaves(world, world->model, leaves);
        assert_memory_equal(world->mine, before, POOL_BYTES + 200); /* nothing else was written */
    }
    free(before);
    free(world->pool);
    free(world->mine);
    free(world->model);
    free(world);
}

static int make_memory(uint64_t bytes, bool sealed)
{
    int fd = memfd_create("copy-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    if (sealed)
        assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    return fd;
}

static void mappings_are_shared(void **state)
{
    (void)state;
    struct fb_client_maps maps = {NULL};
    struct fb_client_map *one, *two, *other;
    const char *why;
    int fd = make_memory(FB_CLIENT_MAP_STEP * 3, true);
    assert_int_equal(fb_client_map_take(&maps, dup(fd), FB_CLIENT_MAP_STEP * 3, &one, &why), 0);
    assert_int_equal(fb_client_map_take(&maps, dup(fd), FB_CLIENT_MAP_STEP * 3, &two, &why), 0);
    assert_ptr_equal(one, two);
    int second = make_memory(5 * FB_PAGE_BYTES, true);
    assert_int_equal(fb_client_map_take(&maps, second, 5 * FB_PAGE_BYTES, &other, &why), 0);
    assert_ptr_not_equal(one, other);
    fb_client_map_touch(one, FB_CLIENT_MAP_STEP - 1, 2);
    assert_int_equal(one->touched[0], 3);
    fb_client_map_touch(one, 2 * FB_CLIENT_MAP_STEP, FB_CLIENT_MAP_STEP);
    assert_int_equal(one->touched[0], 7);
    fb_client_map_touch(other, 0, 5 * FB_PAGE_BYTES);
    one->base[FB_CLIENT_MAP_STEP] = 77;
    uint8_t byte = 0;
    assert_int_equal(pread(fd, &byte, 1, (off_t)FB_CLIENT_MAP_STEP), 1);
    assert_int_equal(byte, 77);
    fb_client_map_give(&maps, one);
    assert_non_null(one->base); /* the second user */
    fb_client_map_give(&maps, two);
    fb_client_map_give(&maps, other);
    assert_null(maps.first);
    close(fd);
}

static void memory_that_is_not_to_be_trusted(void **state)
{
    (void)state;
    struct fb_client_maps maps = {NULL};
    struct fb_client_map *map;
    const char *why = NULL;
    int fd = make_memory(4096, true);
    assert_int_equal(fb_client_map_take(&maps, fd, 8192, &map, &why), FB_PROTOCOL);
    assert_non_null(strstr(why, "shorter"));
    assert_int_equal(fcntl(fd, F_GETFD), -1); /* closed in any case */
    fd = make_memory(8192, false);
    assert_int_equal(fb_client_map_take(&maps, fd, 8192, &map, &why), FB_UNSUPPORTED);
    assert_non_null(strstr(why, "sealed"));
    assert_int_equal(fcntl(fd, F_GETFD), -1);
    assert_null(maps.first);
}

static void a_child_has_no_mapping(void **state)
{
    (void)state;
    struct fb_client_maps maps = {NULL};
    struct fb_client_map *map;
    const char *why;
    int fd = make_memory(8192, true);
    assert_int_equal(fb_client_map_take(&maps, fd, 8192, &map, &why), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        unsigned char resident;
        _exit(mincore(map->base, 4096, &resident) == 0 ? 1 : 0);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    fb_client_map_give(&maps, map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_jobs),
        cmocka_unit_test(mappings_are_shared),
        cmocka_unit_test(memory_that_is_not_to_be_trusted),
        cmocka_unit_test(a_child_has_no_mapping),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
