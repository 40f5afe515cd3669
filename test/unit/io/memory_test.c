/*
 * Backing a pool by memory: all of it is there afterwards, content is kept, errors are errors and
 * not a signal. How much is in huge pages depends on the kernel, and is only printed.
 */
#include "io/memory.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/bits.h"
#include "test/lib/child.h"
#include "test/lib/cm.h"

#define POOL_BYTES (5 * FB_MEMORY_HUGE_BYTES + 3 * FB_PAGE_BYTES)

struct pool {
    int fd;
    uint8_t *mapped;
    uint8_t *base; /* at a border of a huge page */
};

static void pool_open(struct pool *pool)
{
    const uint64_t room = POOL_BYTES + FB_MEMORY_HUGE_BYTES;
    pool->fd = memfd_create("test-pool", MFD_CLOEXEC);
    assert_true(pool->fd >= 0);
    assert_int_equal(ftruncate(pool->fd, POOL_BYTES), 0);
    pool->mapped = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(pool->mapped != MAP_FAILED);
    const uint64_t skip =
        fb_align_up((uintptr_t)pool->mapped, FB_MEMORY_HUGE_BYTES) - (uintptr_t)pool->mapped;
    pool->base = mmap(pool->mapped + skip, POOL_BYTES, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_FIXED, pool->fd, 0);
    assert_true(pool->base != MAP_FAILED);
}

static void pool_close(struct pool *pool)
{
    munmap(pool->mapped, POOL_BYTES + FB_MEMORY_HUGE_BYTES);
    close(pool->fd);
}

static bool is_resident(const struct pool *pool, uint64_t off, uint64_t bytes)
{
    unsigned char pages[POOL_BYTES / FB_PAGE_BYTES];
    assert_int_equal(mincore(pool->base + off, bytes, pages), 0);
    for (uint64_t i = 0; i < bytes / FB_PAGE_BYTES; i++) {
        if (!(pages[i] & 1))
            return false;
    }
    return true;
}

static void test_all_is_backed(void **state)
{
    (void)state;
    struct pool pool;
    uint64_t huge_bytes = 0;
    pool_open(&pool);
    pool.base[0] = 1;
    pool.base[FB_MEMORY_HUGE_BYTES + 5] = 2;
    pool.base[POOL_BYTES - 1] = 3;
    /* In pieces that do not end at borders. */
    const uint64_t first = FB_MEMORY_HUGE_BYTES + 7 * FB_PAGE_BYTES;
    assert_int_equal(fb_memory_fault(pool.fd, pool.base, 0, first, &huge_bytes), 0);
    assert_true(is_resident(&pool, 0, first));
    assert_false(is_resident(&pool, 0, POOL_BYTES));
    assert_int_equal(fb_memory_fault(pool.fd, pool.base, first, POOL_BYTES - first, &huge_bytes),
                     0);
    assert_true(is_resident(&pool, 0, POOL_BYTES));
    assert_true(huge_bytes <= 4 * FB_MEMORY_HUGE_BYTES); /* one was done in two pieces */
    print_message("%u of 4 huge pages were had\n", (unsigned)(huge_bytes / FB_MEMORY_HUGE_BYTES));
    assert_int_equal(pool.base[0], 1);
    assert_int_equal(pool.base[FB_MEMORY_HUGE_BYTES + 5], 2);
    assert_int_equal(pool.base[POOL_BYTES - 1], 3);
    for (uint64_t off = 1; off < FB_MEMORY_HUGE_BYTES; off++)
        assert_int_equal(pool.base[off], 0);
    pool_close(&pool);
}

static int fault_above_limit(const char *argument)
{
    struct pool pool;
    uint64_t huge_bytes = 0;
    (void)argument;
    const struct rlimit limit = {FB_MEMORY_HUGE_BYTES, FB_MEMORY_HUGE_BYTES};
    pool_open(&pool);
    signal(SIGXFSZ, SIG_IGN);
    /* The file has this length already, but its pages may not be had: the nearest thing to memory
     * that is short, which a test cannot make. */
    if (ftruncate(pool.fd, FB_MEMORY_HUGE_BYTES) != 0 || setrlimit(RLIMIT_FSIZE, &limit) != 0)
        return TEST_CHILD_NOT_RUN;
    if (fb_memory_fault(pool.fd, pool.base, 0, FB_MEMORY_HUGE_BYTES, &huge_bytes) != 0)
        return 1;
    const int rc = fb_memory_fault(pool.fd, pool.base, FB_MEMORY_HUGE_BYTES, FB_MEMORY_HUGE_BYTES,
                                   &huge_bytes);
    pool_close(&pool);
    return rc == -EFBIG ? 0 : 2;
}

static void test_an_error_is_no_signal(void **state)
{
    (void)state;
    assert_int_equal(test_child_run(fault_above_limit, NULL, 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_is_backed),
        cmocka_unit_test(test_an_error_is_no_signal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
