/* What a server takes, seen from outside; directories of tests. See server.h. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <linux/magic.h>

#include "base/assert.h"
#include "test/lib/server.h"

#define WATCH_PERIOD_MS  10
#define BLOCK_STAT_BYTES 512 /* the unit of st_blocks */

/* ---- directories ---- */

static bool is_tmpfs(const char *path)
{
    struct statfs fs;
    return statfs(path, &fs) == 0 && (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC);
}

static void own_folder(char *out, size_t out_bytes)
{
    ssize_t n = readlink("/proc/self/exe", out, out_bytes - 1);
    out[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(out, '/');
    if (slash != NULL)
        *slash = '\0';
}

int test_directory_make(const char *name, char *out, size_t out_bytes)
{
    char base[TEST_SERVER_PATH_BYTES];
    const char *named = getenv("TEST_DIR");
    snprintf(base, sizeof(base), "%s", named != NULL && named[0] != '\0' ? named : "/var/tmp");
    if (named == NULL && (is_tmpfs(base) || access(base, W_OK) != 0))
        own_folder(base, sizeof(base));
    int n = snprintf(out, out_bytes, "%s/%s-XXXXXX", base, name);
    if (n < 0 || (size_t)n >= out_bytes)
        return -ENAMETOOLONG;
    return mkdtemp(out) != NULL ? 0 : -errno;
}

void test_directory_remove(const char *directory)
{
    DIR *dir = opendir(directory);
    if (dir == NULL)
        return;
    const struct dirent *entry;
    while ((entry = readdir(dir)) != NULL) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
            unlinkat(dirfd(dir), entry->d_name, 0) != 0 && errno == EISDIR)
            unlinkat(dirfd(dir), entry->d_name, AT_REMOVEDIR);
    }
    closedir(dir);
    rmdir(directory);
}

uint64_t test_directory_free_bytes(const char *directory)
{
    struct statvfs fs;
    return statvfs(directory, &fs) == 0 ? (uint64_t)fs.f_bavail * fs.f_frsize : 0;
}

/* ---- a look ---- */

/* The number after `label` in a /proc file; 0 if it is not there. */
static uint64_t proc_value(pid_t pid, const char *file, const char *label)
{
    char path[64], text[4096];
    snprintf(path, sizeof(path), "/proc/%d/%s", pid, file);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t n = read(fd, text, sizeof(text) - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    const char *at = strstr(text, label);
    return at != NULL ? strtoull(at + strlen(label), NULL, 10) : 0;
}

static uint64_t memory_file_bytes(const struct test_server *server)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < sizeof(server->memory_fds) / sizeof(server->memory_fds[0]); i++) {
        char path[64];
        struct stat info;
        snprintf(path, sizeof(path), "/proc/%d/fd/%d", server->pid, server->memory_fds[i]);
        if (server->memory_fds[i] >= 0 && stat(path, &info) == 0)
            bytes += (uint64_t)info.st_blocks * BLOCK_STAT_BYTES;
    }
    return bytes;
}

static uint64_t directory_bytes(const struct test_server *server)
{
    DIR *dir = opendir(server->directory);
    if (dir == NULL)
        return 0;
    uint64_t bytes = 0;
    const struct dirent *entry;
    while ((entry = readdir(dir)) != NULL) {
        struct stat info;
        if (strcmp(entry->d_name, "log") != 0 &&
            fstatat(dirfd(dir), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(info.st_mode))
            bytes += (uint64_t)info.st_blocks * BLOCK_STAT_BYTES;
    }
    closedir(dir);
    return bytes;
}

static uint64_t cpu_ms(pid_t pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t n = read(fd, text, sizeof(text) - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    const char *after = strrchr(text, ')');
    unsigned long user = 0, system = 0;
    if (after == NULL || sscanf(after + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu",
                                &user, &system) != 2)
        return 0;
    return (uint64_t)(user + system) * 1000 / (uint64_t)sysconf(_SC_CLK_TCK);
}

void test_server_look(const struct test_server *server, struct test_server_use *use)
{
    *use = (struct test_server_use){.memory_bytes = 0};
    use->ssd_bytes = directory_bytes(server);
    use->disk_free_bytes = test_directory_free_bytes(server->directory);
    if (server->pid <= 0)
        return;
    uint64_t own = proc_value(server->pid, "status", "RssAnon:") +
                   proc_value(server->pid, "status", "RssFile:");
    uint64_t mapped = proc_value(server->pid, "status", "RssShmem:") * 1024;
    uint64_t held = memory_file_bytes(server);
    use->memory_bytes = own * 1024 + (mapped > held ? mapped : held);
    use->read_bytes = proc_value(server->pid, "io", "\nread_bytes: ");
    use->write_bytes = proc_value(server->pid, "io", "\nwrite_bytes: ");
    use->cpu_ms = cpu_ms(server->pid);
}

/* ---- the watch ---- */

static void judge(struct test_watch *watch, const char *what, uint64_t bytes, uint64_t cap,
                  uint64_t *peak)
{
    if (bytes > *peak)
        *peak = bytes;
    if (cap == 0 || bytes <= cap)
        return;
    if (watch->breaches++ == 0)
        snprintf(watch->breach, sizeof(watch->breach),
                 "%s: %" PRIu64 " bytes seen, the cap is %" PRIu64, what, bytes, cap);
}

static void *watch_run(void *argument)
{
    struct test_watch *watch = argument;
    do {
        struct test_server_use use;
        test_server_look(watch->server, &use);
        judge(watch, "memory", use.memory_bytes, watch->memory_cap_bytes,
              &watch->memory_peak_bytes);
        judge(watch, "ssd", use.ssd_bytes, watch->ssd_cap_bytes, &watch->ssd_peak_bytes);
        if (watch->disk_free_least_bytes == 0 || use.disk_free_bytes < watch->disk_free_least_bytes)
            watch->disk_free_least_bytes = use.disk_free_bytes;
        watch->samples += use.memory_bytes > 0;
        test_sleep_ms(WATCH_PERIOD_MS);
    } while (!atomic_load(&watch->stop));
    return NULL;
}

void test_watch_start(struct test_watch *watch, const struct test_server *server,
                      uint64_t memory_cap_bytes, uint64_t ssd_cap_bytes)
{
    FB_ASSERT(!watch->running);
    watch->server = server;
    watch->memory_cap_bytes = memory_cap_bytes;
    watch->ssd_cap_bytes = ssd_cap_bytes;
    atomic_store(&watch->stop, false);
    watch->running = pthread_create(&watch->thread, NULL, watch_run, watch) == 0;
    FB_ASSERT(watch->running);
}

bool test_watch_stop(struct test_watch *watch)
{
    if (watch->running) {
        atomic_store(&watch->stop, true);
        pthread_join(watch->thread, NULL);
        watch->running = false;
    }
    return watch->breaches == 0 && watch->samples > 0;
}
