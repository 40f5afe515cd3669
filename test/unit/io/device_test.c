/*
 * Opening devices: what is refused and with which words, the lock and the wait for it, growth, the
 * floor of free space, full disks.
 *
 * A full disk is a small tmpfs in a mount namespace of a child's own; where that is not to be had
 * the test says so and passes. Block devices are not tried, nor file systems with large blocks.
 */
#include "io/device.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/lib/child.h"
#include "test/lib/cm.h"
#include "test/lib/server.h"

#define PATH_BYTES  (TEST_SERVER_PATH_BYTES + 64)
#define LINES_BYTES 4096
#define NOBODY      65534

static char directory[TEST_SERVER_PATH_BYTES];
static char lines[LINES_BYTES];
static char why[FB_DEVICE_WHY_BYTES];

static void note_line(void *context, const char *line)
{
    (void)context;
    const size_t used = strlen(lines);
    snprintf(lines + used, sizeof lines - used, "%s\n", line);
}

/* The path of a file in the test's directory. */
static const char *path_of(const char *name)
{
    static char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

static struct fb_device_config config_of(const char *path)
{
    return (struct fb_device_config){.path = path, .cap_bytes = FB_MIB(8), .say = note_line};
}

static int open_device(const struct fb_device_config *config, struct fb_device *device)
{
    lines[0] = '\0';
    why[0] = '\0';
    const int rc = fb_device_open(config, device, why, sizeof why);
    assert_true(rc == 0 || device->fd == -1);
    return rc;
}

/* The config is refused with rc, and the line has all of these texts in it. */
static void assert_refused(const struct fb_device_config *config, int rc, const char *const *texts)
{
    struct fb_device device;
    assert_int_equal(open_device(config, &device), rc);
    assert_null(strchr(why, '\n'));
    for (; *texts; texts++) {
        if (!strstr(why, *texts))
            print_error("'%s' is not in: %s\n", *texts, why);
        assert_non_null(strstr(why, *texts));
    }
}

#define ASSERT_REFUSED(config, rc, ...) \
    assert_refused((config), (rc), (const char *const[]){__VA_ARGS__, NULL})

static void test_a_new_file(void **state)
{
    (void)state;
    struct fb_device_config config = config_of(path_of("new"));
    struct fb_device device;
    assert_int_equal(open_device(&config, &device), 0);
    assert_true(device.is_new && device.is_direct && !device.is_block);
    assert_true((fcntl(device.fd, F_GETFL) & O_DIRECT) != 0);
    assert_true((fcntl(device.fd, F_GETFD) & FD_CLOEXEC) != 0);
    struct stat file;
    assert_int_equal(fstat(device.fd, &file), 0);
    assert_int_equal(file.st_mode & 0777, 0600);
    assert_string_equal(lines, "");
    fb_device_close(&device);
    assert_int_equal(open_device(&config, &device), 0);
    assert_false(device.is_new);
    fb_device_close(&device);
    fb_device_close(&device); /* no harm */
}

static void test_content_is_left_alone(void **state)
{
    (void)state;
    const char *path = path_of("content");
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (unsigned i = 0; i < 5000; i++)
        fputc('x', file);
    fclose(file);
    struct fb_device_config config = config_of(path);
    struct fb_device device;
    assert_int_equal(open_device(&config, &device), 0);
    assert_int_equal(fb_device_bytes(&device), 5000);
    fb_device_close(&device);
    file = fopen(path, "r");
    assert_non_null(file);
    for (unsigned i = 0; i < 5000; i++)
        assert_int_equal(fgetc(file), 'x');
    fclose(file);
    /* A file that is shorter than a block is the log's to judge. */
    assert_int_equal(truncate(path, 100), 0);
    assert_int_equal(open_device(&config, &device), 0);
    assert_int_equal(fb_device_bytes(&device), 100);
    fb_device_close(&device);
}

static void test_growth(void **state)
{
    (void)state;
    struct fb_device_config config = config_of(path_of("growth"));
    struct fb_device device;
    assert_int_equal(open_device(&config, &device), 0);
    assert_int_equal(fb_device_grow(&device, FB_MIB(4)), 0);
    assert_int_equal(fb_device_bytes(&device), FB_MIB(4));
    struct stat file;
    assert_int_equal(fstat(device.fd, &file), 0);
    assert_true((uint64_t)file.st_blocks * 512 >= FB_MIB(4)); /* allocated, not a hole */
    assert_int_equal(fb_device_grow(&device, FB_MIB(2)), 0);  /* never shrinks */
    assert_int_equal(fb_device_bytes(&device), FB_MIB(4));
    assert_int_equal(fb_device_grow(&device, config.cap_bytes + 1), -ENOSPC);
    assert_int_equal(fb_device_bytes(&device), FB_MIB(4));
    fb_device_close(&device);
}

static void test_the_floor_is_kept(void **state)
{
    (void)state;
    struct statvfs fs;
    assert_int_equal(statvfs(directory, &fs), 0);
    struct fb_device_config config = config_of(path_of("floor"));
    config.floor_bytes = (uint64_t)fs.f_blocks * fs.f_frsize * 2; /* more than the disk has */
    struct fb_device device;
    assert_int_equal(open_device(&config, &device), 0);
    assert_non_null(strstr(lines, "the cap of 8 MiB cannot be reached"));
    assert_int_equal(fb_device_room(&device), 0);
    assert_int_equal(fb_device_grow(&device, FB_MIB(1)), -ENOSPC);
    fb_device_close(&device);
    config.floor_bytes = 0;
    assert_int_equal(open_device(&config, &device), 0);
    assert_true(fb_device_room(&device) > 0);
    assert_int_equal(fb_device_grow(&device, FB_MIB(1)), 0);
    fb_device_close(&device);
}

/* ---- refusals ---- */

static void test_file_systems_in_memory(void **state)
{
    (void)state;
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "/dev/shm/fb-device-test-%d", (int)getpid());
    struct fb_device_config config = config_of(path);
    struct fb_device device;
    config.no_direct = true;
    if (open_device(&config, &device) != 0) {
        print_message("SKIPPED: no /dev/shm: %s\n", why);
        return;
    }
    assert_non_null(strstr(lines, "O_DIRECT is off"));
    assert_false(device.is_direct);
    fb_device_close(&device);
    unlink(path);
    config.no_direct = false;
    ASSERT_REFUSED(&config, -ENOTSUP, path, "tmpfs", "--direct=off", "ext4");
    assert_int_equal(access(path, F_OK), -1); /* what was made for nothing is gone */
}

static void test_no_direct_io(void **state)
{
    (void)state;
    /* A regular file of a file system that has no O_DIRECT. */
    struct fb_device_config config = config_of("/proc/self/oom_score_adj");
    ASSERT_REFUSED(&config, -ENOTSUP, config.path, "no O_DIRECT", "--direct=off");
}

static void test_paths_that_cannot_be(void **state)
{
    (void)state;
    struct fb_device_config config = config_of(directory);
    ASSERT_REFUSED(&config, -EISDIR, directory, "Is a directory");
    config.path = path_of("no/such/file");
    ASSERT_REFUSED(&config, -ENOENT, config.path, "existing directory");
    config.path = "";
    ASSERT_REFUSED(&config, -EINVAL, "empty");
    char longest[FB_DEVICE_PATH_BYTES_MAX + 1];
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    config.path = longest;
    ASSERT_REFUSED(&config, -EINVAL, "longer than 1023 bytes");
    config.path = "/dev/null";
    ASSERT_REFUSED(&config, -EINVAL, "/dev/null", "neither a regular file nor a block device");
    config.path = path_of("caps");
    config.cap_bytes = 0;
    ASSERT_REFUSED(&config, -EINVAL, "multiple of 4096");
    config.cap_bytes = 5000;
    ASSERT_REFUSED(&config, -EINVAL, "5000");
}

static int open_without_rights(const char *argument)
{
    (void)argument;
    struct fb_device device;
    const char *path = path_of("others");
    if (close(open(path, O_CREAT | O_RDWR, 0600)) != 0 || chmod(directory, 0755) != 0)
        return 1;
    if (geteuid() == 0 ? setresuid(NOBODY, NOBODY, NOBODY) != 0 : chmod(path, 0) != 0)
        return TEST_CHILD_NOT_RUN;
    struct fb_device_config config = config_of(path);
    if (open_device(&config, &device) != -EACCES)
        return 2;
    return strstr(why, "Permission denied") && strstr(why, "may write to") ? 0 : 3;
}

static void test_no_permission(void **state)
{
    (void)state;
    const int rc = test_child_run(open_without_rights, NULL, 0);
    if (rc == TEST_CHILD_NOT_RUN)
        print_message("SKIPPED: rights cannot be given up here\n");
    assert_true(rc == 0 || rc == TEST_CHILD_NOT_RUN);
}

/* ---- the lock ---- */

static void test_locked_by_another(void **state)
{
    (void)state;
    struct fb_device_config config = config_of(path_of("locked"));
    struct fb_device first;
    struct fb_device second;
    assert_int_equal(open_device(&config, &first), 0);
    ASSERT_REFUSED(&config, -EBUSY, config.path, "has it locked", "waited 0.0 s", "another path");
    assert_string_equal(lines, "");
    config.lock_wait_ms = 60;
    ASSERT_REFUSED(&config, -EBUSY, "waited 0.1 s");
    assert_non_null(strstr(lines, "waiting up to 0.1 s for the lock"));
    assert_int_equal(access(config.path, F_OK), 0); /* it is not ours to delete */
    fb_device_close(&first);
    assert_int_equal(open_device(&config, &second), 0);
    fb_device_close(&second);
}

/* The predecessor holds the lock until it is told to die; the successor waits, then has it. */
static void test_waits_for_a_dying_predecessor(void **state)
{
    (void)state;
    struct fb_device_config config = config_of(path_of("handed-over"));
    config.lock_wait_ms = FB_DEVICE_LOCK_WAIT_MS;
    int ready[2];
    int go[2];
    assert_int_equal(pipe(ready) | pipe(go), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    char byte = 0;
    if (pid == 0) {
        struct fb_device device;
        close(go[1]); /* so that it ends if the parent does */
        const int rc = open_device(&config, &device);
        if (rc != 0 || write(ready[1], &byte, 1) != 1 || read(go[0], &byte, 1) != 1)
            _exit(1);
        _exit(0); /* as a killed process does: nothing is closed by hand */
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    struct fb_device_config impatient = config;
    impatient.lock_wait_ms = 0;
    char holder[32];
    snprintf(holder, sizeof holder, "process %d", (int)pid);
    ASSERT_REFUSED(&impatient, -EBUSY, holder);
    /* The predecessor is let go before the wait begins; whether it is gone by then is chance. */
    assert_int_equal(write(go[1], &byte, 1), 1);
    struct fb_device device;
    assert_int_equal(open_device(&config, &device), 0);
    fb_device_close(&device);
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    for (unsigned i = 0; i < 2; i++) {
        close(ready[i]);
        close(go[i]);
    }
}

/* ---- a full disk ---- */

static int fill_small_disk(const char *argument)
{
    (void)argument;
    struct fb_device device;
    if (unshare(geteuid() == 0 ? CLONE_NEWNS : CLONE_NEWUSER | CLONE_NEWNS) != 0)
        return TEST_CHILD_NOT_RUN;
    if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        return TEST_CHILD_NOT_RUN;
    if (mount("tmpfs", directory, "tmpfs", 0, "size=1M") != 0)
        return TEST_CHILD_NOT_RUN;
    struct fb_device_config config = config_of(path_of("small"));
    config.no_direct = true;
    if (open_device(&config, &device) != 0 || !strstr(lines, "cannot be reached"))
        return 1;
    if (fb_device_grow(&device, FB_MIB(4)) != -ENOSPC || fb_device_bytes(&device) != 4096)
        return 2;
    if (fb_device_grow(&device, FB_KIB(512)) != 0 || fb_device_bytes(&device) != (512 << 10))
        return 3;
    /* Somebody else fills the rest, and makes room again. */
    struct fb_device_config other_config = config_of(path_of("other"));
    struct fb_device other;
    char other_path[PATH_BYTES];
    snprintf(other_path, sizeof other_path, "%s", other_config.path);
    other_config.no_direct = true;
    if (open_device(&other_config, &other) != 0 || fb_device_grow(&other, FB_KIB(500)) != 0)
        return 4;
    if (fb_device_grow(&device, FB_KIB(640)) != -ENOSPC)
        return 5;
    fb_device_close(&other);
    if (unlink(other_path) != 0 || fb_device_grow(&device, FB_KIB(640)) != 0)
        return 6;
    fb_device_close(&device);
    return 0;
}

static void test_a_full_disk_and_its_healing(void **state)
{
    (void)state;
    const int rc = test_child_run(fill_small_disk, NULL, 0);
    if (rc == TEST_CHILD_NOT_RUN)
        print_message("SKIPPED: no mount namespaces here\n");
    else
        assert_int_equal(rc, 0);
}

static int make_directory(void **state)
{
    (void)state;
    return test_directory_make("io-device", directory, sizeof directory);
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
        cmocka_unit_test(test_a_new_file),
        cmocka_unit_test(test_content_is_left_alone),
        cmocka_unit_test(test_growth),
        cmocka_unit_test(test_the_floor_is_kept),
        cmocka_unit_test(test_file_systems_in_memory),
        cmocka_unit_test(test_no_direct_io),
        cmocka_unit_test(test_paths_that_cannot_be),
        cmocka_unit_test(test_no_permission),
        cmocka_unit_test(test_locked_by_another),
        cmocka_unit_test(test_waits_for_a_dying_predecessor),
        cmocka_unit_test(test_a_full_disk_and_its_healing),
    };
    return cmocka_run_group_tests_name("device", tests, make_directory, remove_directory);
}
