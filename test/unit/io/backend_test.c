/*
 * The real backends (posix, uring, and in this build the forgetful one) on real files: the same
 * test as the simulator's, and what only they have: depth, limits of the system, io_uring that is
 * forbidden, writes lost by a kill, faults by script.
 *
 * It cannot show that flushed bytes survive a power cut. Tests that need rights or system calls
 * which are not to be had say SKIPPED and why.
 */
#include "io/open.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/hash.h"
#include "io/fault.h"
#include "io/uring.h"
#include "test/lib/child.h"
#include "test/lib/cm.h"
#include "test/lib/dies.h"
#include "test/lib/io_conform.h"
#include "test/lib/server.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#define PAGE        ((uint64_t)FB_PAGE_BYTES)
#define CAP_BYTES   FB_MIB(16)
#define DEVICES     2
#define PATH_BYTES  (TEST_SERVER_PATH_BYTES + 32)
#define LINES_BYTES 4096
#define NOBODY      65534

static char directory[TEST_SERVER_PATH_BYTES];

/* A backend on two files, and all that it has said. */
struct box {
    struct test_io test;
    struct fb_device devices[DEVICES];
    struct fb_io_config config;
    char lines[LINES_BYTES];
    char why[FB_DEVICE_WHY_BYTES];
};

static void note_line(void *context, const char *line)
{
    struct box *box = context;
    const size_t used = strlen(box->lines);
    snprintf(box->lines + used, sizeof box->lines - used, "%s\n", line);
}

static void *memory_new(uint64_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    return memory;
}

static void open_devices(struct box *box)
{
    for (unsigned d = 0; d < DEVICES; d++) {
        char path[PATH_BYTES];
        snprintf(path, sizeof path, "%s/device-%u", directory, d);
        const struct fb_device_config config = {.path = path, .cap_bytes = CAP_BYTES};
        const int rc = fb_device_open(&config, &box->devices[d], box->why, sizeof box->why);
        if (rc != 0)
            print_error("%s\n", box->why);
        assert_int_equal(rc, 0);
    }
}

/* Opens files and memory, and fills in what fb_io_open() needs. */
static void box_prepare(struct box *box, const char *backend)
{
    memset(box, 0, sizeof *box);
    open_devices(box);
    box->test.arena = memory_new(TEST_IO_ARENA_BYTES);
    box->test.meta = memory_new(TEST_IO_META_BYTES);
    box->test.devices = DEVICES;
    box->test.file_bytes = FB_MIB(2);
    box->config = (struct fb_io_config){.backend = backend,
                                        .arena = box->test.arena,
                                        .arena_bytes = TEST_IO_ARENA_BYTES,
                                        .meta = box->test.meta,
                                        .meta_bytes = TEST_IO_META_BYTES,
                                        .devices = box->devices,
                                        .device_count = DEVICES,
                                        .say = note_line,
                                        .say_context = box};
}

static int box_start(struct box *box)
{
    return fb_io_open(&box->config, &box->test.io, box->why, sizeof box->why);
}

static void box_open(struct box *box, const char *backend)
{
    box_prepare(box, backend);
    const int rc = box_start(box);
    if (rc != 0)
        print_error("%s\n", box->why);
    assert_int_equal(rc, 0);
}

static void box_close(struct box *box)
{
    if (box->test.io)
        fb_io_close(box->test.io);
    munmap(box->test.arena, TEST_IO_ARENA_BYTES);
    munmap(box->test.meta, TEST_IO_META_BYTES);
    for (unsigned d = 0; d < DEVICES; d++)
        fb_device_close(&box->devices[d]);
}

static bool has_uring(void)
{
    struct box box;
    box_prepare(&box, "uring");
    const bool has = box_start(&box) == 0;
    if (!has)
        print_message("SKIPPED: %s\n", box.why);
    box_close(&box);
    return has;
}

/* ---- the same test for all ---- */

static void conform(struct box *box, uint64_t seed, unsigned steps)
{
    test_io_conform(&box->test, seed, steps);
    const struct fb_io_stats *stats = &box->test.io->stats;
    assert_true(stats->read_bytes > 0 && stats->write_bytes > 0);
    assert_true(stats->read_bytes == stats->read_bytes_direct);
    assert_true(stats->write_bytes == stats->write_bytes_direct);
    assert_int_equal(stats->reads_in_flight, 0);
    assert_true(stats->read_depth_max >= 1);
    for (unsigned op = 0; op < FB_IO_OP_COUNT; op++) {
        assert_true(stats->done[op] > 0);
        assert_int_equal(stats->failed[op], 0);
    }
}

static void test_posix_conforms(void **state)
{
    (void)state;
    struct box box;
    box_open(&box, "posix");
    assert_string_equal(box.test.io->ops->name, "posix");
    conform(&box, 1, 1500);
    box_close(&box);
    box_prepare(&box, "posix");
    box.config.threads = 1;
    assert_int_equal(box_start(&box), 0);
    conform(&box, 2, 500);
    box_close(&box);
}

static void test_uring_conforms(void **state)
{
    (void)state;
    if (!has_uring())
        return;
    struct box box;
    box_open(&box, "uring");
    conform(&box, 3, 1500);
    box_close(&box);
    for (unsigned depth = 1; depth <= 3; depth++) {
        box_prepare(&box, "uring");
        box.config.depth = depth; /* most requests wait in the backlog */
        box.config.no_fixed = true;
        assert_int_equal(box_start(&box), 0);
        conform(&box, 3 + depth, 500);
        assert_true(box.test.io->stats.read_depth_max <= depth);
        box_close(&box);
    }
}

static void test_forget_conforms(void **state)
{
    (void)state;
    struct box box;
    box_open(&box, "forget");
    conform(&box, 7, 1500);
    box_close(&box);
}

static void test_faults_that_heal_conform(void **state)
{
    (void)state;
    struct box box;
    box_prepare(&box, "posix");
    box.config.fault_script =
        "read:20:short,read:30:delayed,read:40:reordered,write:5000:short,"
        "write:5005:delayed,flush:3:reordered,hash:5:delayed,grow:2:delayed,"
        "write:4000:reordered,write:1200:short,write:1201:delayed,read:1:short";
    assert_int_equal(box_start(&box), 0);
    test_io_conform(&box.test, 8, 1500);
    assert_true(fb_fault_fired(box.test.io) >= 6);
    assert_true(fb_fault_submitted(box.test.io, FB_IO_READ) > 40);
    box_close(&box);
}

/* Registered memory, in pieces so small that many runs lie across two of them. */
static void test_uring_with_registered_memory(void **state)
{
    (void)state;
    if (!has_uring())
        return;
    struct box box;
    box_prepare(&box, "uring");
    struct fb_execute execute = {.devices = box.devices};
    execute.memory = (struct fb_io_memory){.base = {box.test.arena, box.test.meta},
                                           .bytes = {TEST_IO_ARENA_BYTES, TEST_IO_META_BYTES},
                                           .device_count = DEVICES};
    const struct fb_uring_config config = {.piece_bytes = 7 * PAGE * 3,
                                           .say = note_line,
                                           .say_context = &box};
    assert_int_equal(fb_uring_open(&execute, &config, &box.test.io, box.why, sizeof box.why), 0);
    /* As the pool is faulted in, bit by bit, while requests run. */
    for (unsigned i = 1; i <= 4; i++) {
        fb_io_faulted(box.test.io, TEST_IO_ARENA_BYTES * i / 4);
        test_io_conform(&box.test, 20 + i, 400);
    }
    assert_string_equal(box.lines, "");
    box_close(&box);
}

/* ---- depth ---- */

#define READS 64

static uint32_t depth_of_many_reads(struct box *box)
{
    struct fb_io_req reqs[READS];
    struct fb_io_vec vecs[READS];
    struct fb_io_req *out[READS];
    struct fb_io_req grow = {.op = FB_IO_GROW, .device_off = CAP_BYTES};
    assert_int_equal(test_io_run(&box->test, &grow), 0);
    for (unsigned i = 0; i < READS; i++) {
        vecs[i] = (struct fb_io_vec){i * 16 * PAGE, 16 * FB_PAGE_BYTES, FB_IO_ARENA};
        reqs[i] = (struct fb_io_req){.op = FB_IO_READ,
                                     .vec = &vecs[i],
                                     .vec_count = 1,
                                     .len = vecs[i].len,
                                     .device_off = i * 32 * PAGE};
        fb_io_submit(box->test.io, &reqs[i]);
    }
    for (size_t done = 0; done < READS;) {
        const size_t count = fb_io_reap(box->test.io, out, READS);
        for (size_t i = 0; i < count; i++)
            assert_int_equal(out[i]->result, 16 * PAGE);
        done += count;
        if (count == 0)
            test_io_wait(&box->test);
    }
    return box->test.io->stats.read_depth_max;
}

static void test_reads_are_in_flight_together(void **state)
{
    (void)state;
    struct box box;
    box_open(&box, "posix");
    /* The scheduler decides how many threads get going before the first is done. */
    assert_true(depth_of_many_reads(&box) <= 16);
    box_close(&box);
    if (!has_uring())
        return;
    box_open(&box, "uring");
    assert_int_equal(depth_of_many_reads(&box), READS);
    box_close(&box);
}

/* ---- limits ---- */

static void check_limits(const char *backend)
{
    struct box box;
    box_open(&box, backend);
    struct fb_io_req grow = {.op = FB_IO_GROW, .device_off = CAP_BYTES};
    assert_int_equal(test_io_run(&box.test, &grow), 0);
    assert_int_equal(fb_device_bytes(&box.devices[0]), CAP_BYTES);
    grow.device_off = CAP_BYTES + PAGE;
    assert_int_equal(test_io_run(&box.test, &grow), -ENOSPC);
    assert_int_equal(test_io_move(&box.test, FB_IO_WRITE, 0, CAP_BYTES, 0, 1), -ENOSPC);
    assert_int_equal(test_io_move(&box.test, FB_IO_WRITE, 0, CAP_BYTES - PAGE, 0, 2), -ENOSPC);
    assert_int_equal(test_io_move(&box.test, FB_IO_WRITE, 0, CAP_BYTES - PAGE, 0, 1), PAGE);
    assert_int_equal(test_io_move(&box.test, FB_IO_READ, 0, CAP_BYTES - PAGE, 0, 2), PAGE);
    assert_int_equal(test_io_move(&box.test, FB_IO_READ, 0, CAP_BYTES, 0, 2), 0);
    assert_int_equal(box.test.io->stats.failed[FB_IO_WRITE], 2);
    assert_int_equal(box.test.io->stats.shorts, 2);
    assert_int_equal(fb_device_bytes(&box.devices[0]), CAP_BYTES);
    box_close(&box);
}

static void test_nothing_goes_beyond_the_cap(void **state)
{
    (void)state;
    check_limits("posix");
    check_limits("forget");
    if (has_uring())
        check_limits("uring");
}

static int grow_above_file_limit(const char *backend)
{
    struct box box;
    const struct rlimit limit = {FB_MIB(1), FB_MIB(1)};
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/device-0", directory);
    if (truncate(path, 0) != 0 && errno != ENOENT)
        return 1;
    box_open(&box, backend);
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0)
        return 2;
    struct fb_io_req grow = {.op = FB_IO_GROW, .device_off = FB_MIB(4)};
    if (test_io_run(&box.test, &grow) != -ENOSPC)
        return 3;
    grow.device_off = FB_MIB(1);
    if (test_io_run(&box.test, &grow) != 0)
        return 4;
    box_close(&box);
    return 0;
}

static void test_a_limit_of_file_sizes_is_a_full_disk(void **state)
{
    (void)state;
    assert_int_equal(test_child_run(grow_above_file_limit, "posix", 0), 0);
    assert_int_equal(test_child_run(grow_above_file_limit, "uring", 0), 0);
}

/* ---- choosing ---- */

#define ANY UINT32_MAX

/* From here on this system call fails with EPERM: with this second argument, or with ANY. */
static int forbid(uint32_t call, uint32_t argument)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, argument, 0, argument == ANY ? 0 : 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {sizeof code / sizeof code[0], code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return -errno;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0 ? 0 : -errno;
}

static int choose_without_uring(const char *backend)
{
    struct box box;
    (void)backend;
    if (forbid(SYS_io_uring_setup, ANY) != 0)
        return TEST_CHILD_NOT_RUN;
    box_prepare(&box, "uring");
    if (box_start(&box) != -EPERM || !strstr(box.why, "kernel.io_uring_disabled") ||
        !strstr(box.why, "--io=posix") || strchr(box.why, '\n'))
        return 1;
    box_close(&box);
    box_prepare(&box, NULL);
    if (box_start(&box) != 0 || strcmp(box.test.io->ops->name, "posix") != 0)
        return 2;
    if (!strstr(box.lines, "going on without io_uring") || !strstr(box.lines, "by posix calls"))
        return 3;
    test_io_conform(&box.test, 9, 100);
    box_close(&box);
    return 0;
}

static void test_uring_forbidden(void **state)
{
    (void)state;
    const int rc = test_child_run(choose_without_uring, NULL, 0);
    if (rc == TEST_CHILD_NOT_RUN)
        print_message("SKIPPED: no seccomp filters here\n");
    else
        assert_int_equal(rc, 0);
}

/* Without an operation that is needed, and then on a kernel that cannot be asked. */
static void test_uring_without_an_operation(void **state)
{
    (void)state;
    if (!has_uring())
        return;
    static const unsigned needed[] = {IORING_OP_READ,        IORING_OP_READ_FIXED, IORING_OP_WRITE,
                                      IORING_OP_WRITE_FIXED, IORING_OP_READV,      IORING_OP_WRITEV,
                                      IORING_OP_FSYNC};
    struct box box;
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        box_prepare(&box, "uring");
        box.config.missing_ops = UINT64_C(1) << needed[i];
        assert_int_equal(box_start(&box), -EOPNOTSUPP);
        assert_non_null(strstr(box.why, "io_uring of this kernel has no "));
        assert_non_null(strstr(box.why, "--io=posix"));
        assert_string_equal(box.lines, "");
        box_close(&box);
    }
    box_prepare(&box, NULL);
    box.config.missing_ops = UINT64_C(1) << IORING_OP_READ_FIXED;
    assert_int_equal(box_start(&box), 0);
    assert_string_equal(box.test.io->ops->name, "posix");
    assert_string_equal(
        box.lines,
        "going on without io_uring: io_uring of this kernel has no READ_FIXED; use Linux 5.10 or "
        "later, or set --io=posix\nI/O by posix calls: 16 threads\n");
    test_io_conform(&box.test, 11, 100);
    box_close(&box);
    /* One that is not needed does not matter. */
    box_prepare(&box, "uring");
    box.config.missing_ops = UINT64_C(1) << IORING_OP_ACCEPT;
    assert_int_equal(box_start(&box), 0);
    box_close(&box);
}

static int choose_without_probe(const char *backend)
{
    struct box box;
    (void)backend;
    if (forbid(SYS_io_uring_register, IORING_REGISTER_PROBE) != 0)
        return TEST_CHILD_NOT_RUN;
    box_prepare(&box, "uring");
    if (box_start(&box) != -EOPNOTSUPP || !strstr(box.why, "does not say what it can do"))
        return 1;
    box_close(&box);
    box_prepare(&box, NULL);
    if (box_start(&box) != 0 || strcmp(box.test.io->ops->name, "posix") != 0)
        return 2;
    box_close(&box);
    return 0;
}

/* The ring is there, and the next step of setting it up fails. */
static int choose_half_built(const char *backend)
{
    struct box box;
    (void)backend;
    if (forbid(SYS_io_uring_register, IORING_REGISTER_EVENTFD) != 0)
        return TEST_CHILD_NOT_RUN;
    box_prepare(&box, "uring");
    if (box_start(&box) != -EPERM || !strstr(box.why, "--io=posix") || strchr(box.why, '\n'))
        return 1;
    box_close(&box);
    box_prepare(&box, NULL);
    if (box_start(&box) != 0 || strcmp(box.test.io->ops->name, "posix") != 0 ||
        !strstr(box.lines, "going on without io_uring"))
        return 2;
    test_io_conform(&box.test, 12, 100);
    box_close(&box);
    return 0;
}

static void test_uring_half_built(void **state)
{
    (void)state;
    if (!has_uring())
        return;
    const int rc = test_child_run(choose_half_built, NULL, 0);
    if (rc == TEST_CHILD_NOT_RUN)
        print_message("SKIPPED: no seccomp filters here\n");
    else
        assert_int_equal(rc, 0);
}

static void test_uring_that_cannot_be_asked(void **state)
{
    (void)state;
    if (!has_uring())
        return;
    const int rc = test_child_run(choose_without_probe, NULL, 0);
    if (rc == TEST_CHILD_NOT_RUN)
        print_message("SKIPPED: no seccomp filters here\n");
    else
        assert_int_equal(rc, 0);
}

static int register_without_memlock(const char *backend)
{
    struct box box;
    const struct rlimit limit = {FB_KIB(64), FB_KIB(64)};
    box_prepare(&box, backend);
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0)
        return TEST_CHILD_NOT_RUN;
    if (geteuid() == 0 && setresuid(NOBODY, NOBODY, NOBODY) != 0)
        return TEST_CHILD_NOT_RUN;
    if (box_start(&box) != 0)
        return 1;
    if (!strstr(box.lines, "no fixed buffers") || !strstr(box.lines, "memlock limit 64 KiB"))
        return 2;
    test_io_conform(&box.test, 10, 200);
    box_close(&box);
    return 0;
}

static void test_memory_that_cannot_be_registered(void **state)
{
    (void)state;
    if (!has_uring())
        return;
    const int rc = test_child_run(register_without_memlock, "uring", 0);
    if (rc == TEST_CHILD_NOT_RUN)
        print_message("SKIPPED: rights cannot be given up here\n");
    else
        assert_int_equal(rc, 0);
}

static void test_one_line_says_what_was_chosen(void **state)
{
    (void)state;
    struct box box;
    box_open(&box, "posix");
    assert_string_equal(box.lines, "I/O by posix calls: 16 threads\n");
    box_close(&box);
    box_prepare(&box, "aio");
    assert_int_equal(box_start(&box), -EINVAL);
    assert_string_equal(box.why, "--io=aio is not known; use auto, uring or posix");
    box_close(&box);
    box_prepare(&box, "posix");
    box.config.fault_script = "write:1:stale";
    assert_int_equal(box_start(&box), -EINVAL);
    assert_non_null(strstr(box.why, "'write:1:stale'"));
    box.config.fault_script = "read:1:stale";
    assert_int_equal(box_start(&box), -EINVAL);
    assert_non_null(strstr(box.why, "simulator"));
    box.test.io = NULL;
    box_close(&box);
}

/* ---- DRAM alone ---- */

static void check_no_devices(const char *backend)
{
    struct box box;
    box_prepare(&box, backend);
    box.config.devices = NULL;
    box.config.device_count = 0;
    assert_int_equal(box_start(&box), 0);
    uint64_t leaf = 0;
    const struct fb_io_vec vec = {0, 5000, FB_IO_ARENA};
    struct fb_io_req hash = {.op = FB_IO_HASH,
                             .vec = &vec,
                             .vec_count = 1,
                             .len = vec.len,
                             .leaf_out = &leaf,
                             .leaf_count = 1};
    assert_int_equal(test_io_run(&box.test, &hash), 0);
    assert_true(leaf == fb_leaf_hash(box.test.arena, vec.len));
    box_close(&box);
}

static void test_without_devices(void **state)
{
    (void)state;
    check_no_devices("posix");
    if (has_uring())
        check_no_devices("uring");
}

/* ---- a kill loses what was not flushed ---- */

static int write_and_die(const char *backend)
{
    struct box box;
    box_open(&box, backend);
    /* To the other device, which is not flushed. */
    test_io_put(&box.test, 0, fb_sim_token(9, 2, 0));
    if (test_io_move(&box.test, FB_IO_WRITE, 1, 0, 0, 1) != (int64_t)PAGE)
        return 6;
    for (unsigned i = 0; i < 4; i++) {
        test_io_put(&box.test, 0, fb_sim_token(i + 1, 2, 0));
        if (test_io_move(&box.test, FB_IO_WRITE, 0, i * PAGE, 0, 1) != (int64_t)PAGE)
            return 1;
        if (i == 1 && test_io_flush(&box.test, 0) != 0)
            return 2;
    }
    if (test_io_move(&box.test, FB_IO_READ, 0, 0, 0, 4) != (int64_t)(4 * PAGE))
        return 3;
    for (unsigned i = 0; i < 4; i++) {
        if (!test_io_is(&box.test, i * PAGE, fb_sim_token(i + 1, 2, 0)))
            return 4;
    }
    kill(getpid(), SIGKILL);
    return 5;
}

/* How many of five blocks, two of them flushed, hold version 2 after a process has written them and
 * was killed. */
static unsigned version_2_after_kill(const char *backend)
{
    struct box box;
    box_open(&box, "posix");
    for (unsigned i = 0; i < 4; i++) {
        test_io_put(&box.test, 0, fb_sim_token(i + 1, 1, 0));
        assert_int_equal(test_io_move(&box.test, FB_IO_WRITE, 0, i * PAGE, 0, 1), PAGE);
    }
    test_io_put(&box.test, 0, fb_sim_token(9, 1, 0));
    assert_int_equal(test_io_move(&box.test, FB_IO_WRITE, 1, 0, 0, 1), PAGE);
    assert_int_equal(test_io_flush(&box.test, 0), 0);
    box_close(&box);
    assert_int_equal(test_child_run(write_and_die, backend, SIGKILL), -SIGKILL);
    box_open(&box, "posix");
    assert_int_equal(test_io_move(&box.test, FB_IO_READ, 0, 0, 0, 4), 4 * PAGE);
    unsigned found = 0;
    for (unsigned i = 0; i < 4; i++) {
        const bool is_new = test_io_is(&box.test, i * PAGE, fb_sim_token(i + 1, 2, 0));
        assert_true(is_new || test_io_is(&box.test, i * PAGE, fb_sim_token(i + 1, 1, 0)));
        assert_true(is_new || i >= 2); /* the flushed ones */
        found += is_new;
    }
    assert_int_equal(test_io_move(&box.test, FB_IO_READ, 1, 0, 0, 1), PAGE);
    found += test_io_is(&box.test, 0, fb_sim_token(9, 2, 0));
    box_close(&box);
    return found;
}

static void test_a_kill_loses_unflushed_writes(void **state)
{
    (void)state;
    assert_int_equal(version_2_after_kill("forget"), 2);
    assert_int_equal(version_2_after_kill("posix"), 5); /* and it is this backend that does it */
}

/* ---- faults by script ---- */

static int64_t put(struct box *box, uint64_t block, uint64_t pages, uint64_t version)
{
    for (uint64_t i = 0; i < pages; i++)
        test_io_put(&box->test, i * PAGE, fb_sim_token(block + i + 1, version, 0));
    return test_io_move(&box->test, FB_IO_WRITE, 0, block * PAGE, 0, pages);
}

static unsigned count_version(struct box *box, uint64_t block, uint64_t pages, uint64_t version)
{
    assert_int_equal(test_io_move(&box->test, FB_IO_READ, 0, block * PAGE, 0, pages), pages * PAGE);
    unsigned found = 0;
    for (uint64_t i = 0; i < pages; i++)
        found += test_io_is(&box->test, i * PAGE, fb_sim_token(block + i + 1, version, 0));
    return found;
}

static void test_each_fault_by_script(void **state)
{
    (void)state;
    struct box box;
    box_prepare(&box, "posix");
    box.config.fault_script = "write:2:EIO,write:3:ENOSPC,write:4:short,write:5:torn,write:6:lost,"
                              "write:7:misdirected,write:8:short,write:9:torn,read:8:EIO,"
                              "read:9:short,read:10:misdirected,flush:1:EIO,flush:2:ENOSPC,"
                              "flush:3:lying,grow:1:ENOSPC,grow:2:EIO";
    assert_int_equal(box_start(&box), 0);
    assert_int_equal(put(&box, 0, 8, 1), 8 * PAGE);
    assert_int_equal(put(&box, 0, 8, 2), -EIO);
    assert_int_equal(put(&box, 0, 8, 3), -ENOSPC);
    assert_int_equal(count_version(&box, 0, 8, 1), 8); /* read 1 */
    assert_int_equal(put(&box, 0, 8, 4), 4 * PAGE);
    assert_int_equal(count_version(&box, 0, 8, 4), 4);
    assert_int_equal(put(&box, 0, 8, 5), 8 * PAGE);
    assert_int_equal(count_version(&box, 0, 8, 5), 4);
    assert_int_equal(put(&box, 0, 8, 6), 8 * PAGE);
    assert_int_equal(count_version(&box, 0, 8, 6), 0);
    assert_int_equal(put(&box, 4, 2, 7), 2 * PAGE);
    assert_int_equal(count_version(&box, 4, 2, 7), 0);
    assert_int_equal(count_version(&box, 0, 2, 5), 0); /* these two were hit */
    assert_int_equal(put(&box, 0, 1, 8), 512);
    assert_int_equal(put(&box, 0, 1, 9), PAGE);
    assert_int_equal(count_version(&box, 0, 1, 9), 0); /* read 7 */
    assert_int_equal(test_io_move(&box.test, FB_IO_READ, 0, 0, 0, 8), -EIO);
    assert_int_equal(test_io_move(&box.test, FB_IO_READ, 0, 0, 0, 8), 4 * PAGE);
    assert_int_equal(put(&box, 6, 1, 10), PAGE);
    assert_int_equal(count_version(&box, 6, 1, 10), 0);
    assert_int_equal(count_version(&box, 6, 1, 10), 1);
    assert_int_equal(test_io_flush(&box.test, 0), -EIO);
    assert_int_equal(test_io_flush(&box.test, 0), -ENOSPC);
    assert_int_equal(test_io_flush(&box.test, 0), 0);
    struct fb_io_req grow = {.op = FB_IO_GROW, .device_off = FB_MIB(1)};
    assert_int_equal(test_io_run(&box.test, &grow), -ENOSPC);
    assert_int_equal(test_io_run(&box.test, &grow), -EIO);
    assert_int_equal(test_io_run(&box.test, &grow), 0);
    assert_int_equal(fb_fault_fired(box.test.io), 16);
    box_close(&box);
}

/* ---- assertions ---- */

static void submit_wrong(void *argument)
{
    struct box *box = argument;
    const struct fb_io_vec vec = {512, FB_PAGE_BYTES, FB_IO_ARENA};
    struct fb_io_req req = {.op = FB_IO_READ, .vec = &vec, .vec_count = 1, .len = vec.len};
    fb_io_submit(box->test.io, &req);
}

static void submit_wrong_sum(void *argument)
{
    struct box *box = argument;
    const struct fb_io_vec vec = {0, FB_PAGE_BYTES, FB_IO_ARENA};
    struct fb_io_req req = {.op = FB_IO_READ, .vec = &vec, .vec_count = 1, .len = 2 * PAGE};
    fb_io_submit(box->test.io, &req);
}

static void submit_outside(void *argument)
{
    struct box *box = argument;
    const struct fb_io_vec vec = {TEST_IO_META_BYTES, FB_PAGE_BYTES, FB_IO_META};
    struct fb_io_req req = {.op = FB_IO_READ, .vec = &vec, .vec_count = 1, .len = PAGE};
    fb_io_submit(box->test.io, &req);
}

static void submit_poisoned(void *argument)
{
    struct box *box = argument;
    const struct fb_io_vec vec = {0, 2 * FB_PAGE_BYTES, FB_IO_ARENA};
    struct fb_io_req req = {.op = FB_IO_READ, .vec = &vec, .vec_count = 1, .len = vec.len};
#if defined(__SANITIZE_ADDRESS__)
    ASAN_POISON_MEMORY_REGION(box->test.arena + PAGE, PAGE);
#endif
    fb_io_submit(box->test.io, &req);
}

static void test_requests_against_the_rules(void **state)
{
    (void)state;
    struct box box;
    box_open(&box, "posix");
    assert_true(test_dies(submit_wrong, &box, "fb_is_aligned"));
    assert_true(test_dies(submit_wrong_sum, &box, "sum == req->len"));
    assert_true(test_dies(submit_outside, &box, "vec->len <="));
#if defined(__SANITIZE_ADDRESS__)
    assert_true(test_dies(submit_poisoned, &box, "poisoned"));
    struct box ring;
    box_close(&box);
    if (has_uring()) {
        box_open(&ring, "uring");
        assert_true(test_dies(submit_poisoned, &ring, "poisoned"));
        box_close(&ring);
    }
#else
    (void)submit_poisoned;
    box_close(&box);
#endif
}

static int make_directory(void **state)
{
    (void)state;
    return test_directory_make("io-backend", directory, sizeof directory);
}

static int remove_directory(void **state)
{
    (void)state;
    test_directory_remove(directory);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_posix_conforms),
        cmocka_unit_test(test_uring_conforms),
        cmocka_unit_test(test_uring_with_registered_memory),
        cmocka_unit_test(test_forget_conforms),
        cmocka_unit_test(test_faults_that_heal_conform),
        cmocka_unit_test(test_reads_are_in_flight_together),
        cmocka_unit_test(test_nothing_goes_beyond_the_cap),
        cmocka_unit_test(test_a_limit_of_file_sizes_is_a_full_disk),
        cmocka_unit_test(test_uring_forbidden),
        cmocka_unit_test(test_uring_without_an_operation),
        cmocka_unit_test(test_uring_that_cannot_be_asked),
        cmocka_unit_test(test_uring_half_built),
        cmocka_unit_test(test_memory_that_cannot_be_registered),
        cmocka_unit_test(test_one_line_says_what_was_chosen),
        cmocka_unit_test(test_without_devices),
        cmocka_unit_test(test_a_kill_loses_unflushed_writes),
        cmocka_unit_test(test_each_fault_by_script),
        cmocka_unit_test(test_requests_against_the_rules),
    };
    return cmocka_run_group_tests_name("backend", tests, make_directory, remove_directory);
}
