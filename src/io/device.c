/*
 * device.c - opening the file or block device that an SSD tier lives in. See device.h.
 *
 * Order: open, look what it is, lock, set O_DIRECT, probe. Nothing is written before the lock is
 * held. O_DIRECT is set on the open description by fcntl, which fails without having made anything
 * where the file system does not know it.
 */
#include "io/device.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/bits.h"
#include "base/size.h"

#define LOCK_POLL_MS     20
#define HOLDER_TEXT_MAX  64
#define PROC_NAME_MAX    16
#define PROC_PATH_MAX    64
#define PROC_ENTRIES_MAX 100000 /* how much of /proc is looked through for a lock's holder */
#define EINTR_MAX        100
#define FILE_MODE        0600

/* Writes the message and returns rc, so that errors are one line where they are found. */
static int fail(char *why, size_t why_bytes, int rc, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static int fail(char *why, size_t why_bytes, int rc, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(why, why_bytes, format, args);
    va_end(args);
    FB_ASSERT(rc < 0);
    return rc;
}

static void say(const struct fb_device_config *config, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void say(const struct fb_device_config *config, const char *format, ...)
{
    char line[FB_DEVICE_WHY_BYTES];
    if (!config->say)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    config->say(config->say_context, line);
}

/* ---- the lock ---- */

/* True if the process has the file open. */
static bool process_has(const char *pid, const struct stat *file)
{
    char path[PROC_PATH_MAX];
    snprintf(path, sizeof path, "/proc/%.16s/fd", pid);
    DIR *fds = opendir(path);
    if (!fds)
        return false;
    bool found = false;
    unsigned entries = 0;
    for (struct dirent *fd = readdir(fds); fd && !found; fd = readdir(fds)) {
        struct stat other;
        if (entries++ == PROC_ENTRIES_MAX)
            break;
        if (fstatat(dirfd(fds), fd->d_name, &other, 0) == 0)
            found = other.st_dev == file->st_dev && other.st_ino == file->st_ino;
    }
    closedir(fds);
    return found;
}

/*
 * Finds another process that has the file open: a lock of an open file description does not say
 * whose it is. The answer is only for a message.
 */
static void find_holder(int fd, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, "another process");
    struct stat file;
    char own[PROC_NAME_MAX];
    snprintf(own, sizeof own, "%d", (int)getpid());
    DIR *proc = opendir("/proc");
    if (!proc)
        return;
    unsigned entries = 0;
    for (struct dirent *entry = readdir(proc); entry && fstat(fd, &file) == 0;
         entry = readdir(proc)) {
        if (!isdigit((unsigned char)entry->d_name[0]) || strcmp(entry->d_name, own) == 0)
            continue;
        if (entries++ == PROC_ENTRIES_MAX)
            break;
        if (process_has(entry->d_name, &file)) {
            snprintf(text, text_bytes, "process %.16s", entry->d_name);
            break;
        }
    }
    closedir(proc);
}

static int try_lock(int fd)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return fcntl(fd, F_OFD_SETLK, &lock) == 0 ? 0 : -errno;
}

/* A predecessor may be dying, its last writes still on their way: wait, and say for what. */
static int lock_device(const struct fb_device_config *config, int fd, char *why, size_t why_bytes)
{
    const struct timespec pause = {.tv_nsec = LOCK_POLL_MS * (long)FB_MS_NS};
    char holder[HOLDER_TEXT_MAX] = "another process";
    int rc = try_lock(fd);
    for (uint32_t waited_ms = 0; rc == -EAGAIN || rc == -EACCES; waited_ms += LOCK_POLL_MS) {
        if (waited_ms == 0 || waited_ms >= config->lock_wait_ms)
            find_holder(fd, holder, sizeof holder);
        if (waited_ms >= config->lock_wait_ms)
            return fail(why, why_bytes, -EBUSY,
                        "ssd path %s: %s has it locked (waited %.1f s); stop that process, or name "
                        "another path",
                        config->path, holder, waited_ms / 1e3);
        if (waited_ms == 0)
            say(config, "ssd path %s: waiting up to %.1f s for the lock that %s holds",
                config->path, config->lock_wait_ms / 1e3, holder);
        nanosleep(&pause, NULL);
        rc = try_lock(fd);
    }
    if (rc != 0)
        return fail(why, why_bytes, rc,
                    "ssd path %s: cannot be locked: %s; use a local file system (ext4, XFS)",
                    config->path, strerror(-rc));
    return 0;
}

/* ---- the probe ---- */

static const char *memory_file_system(int fd)
{
    struct statfs fs;
    if (fstatfs(fd, &fs) != 0)
        return NULL;
    switch ((unsigned long)fs.f_type) {
    case TMPFS_MAGIC:
        return "tmpfs";
    case RAMFS_MAGIC:
        return "ramfs";
    default:
        return NULL;
    }
}

static int check_block_size(const struct fb_device_config *config, const struct fb_device *device,
                            char *why, size_t why_bytes)
{
    struct statfs fs;
    if (device->is_block || config->no_direct || fstatfs(device->fd, &fs) != 0)
        return 0;
    if (fs.f_bsize <= FB_DEVICE_DIRECT_BYTES)
        return 0;
    return fail(why, why_bytes, -ENOTSUP,
                "ssd path %s: its file system has blocks of %ld bytes and %d is the most; use one "
                "made with blocks of 4096 bytes (mkfs.ext4 -b 4096, mkfs.xfs -b size=4096)",
                config->path, (long)fs.f_bsize, FB_DEVICE_DIRECT_BYTES);
}

static int set_direct(const struct fb_device_config *config, struct fb_device *device, char *why,
                      size_t why_bytes)
{
    const char *fs = memory_file_system(device->fd);
    if (config->no_direct) {
        say(config, "ssd path %s: O_DIRECT is off: data pass through the page cache", config->path);
        return 0;
    }
    /* Its O_DIRECT succeeds and means nothing. */
    if (fs && !device->is_block)
        return fail(why, why_bytes, -ENOTSUP,
                    "ssd path %s: %s keeps files in memory; name a path on a disk (ext4, XFS), or, "
                    "for tests, set --direct=off",
                    config->path, fs);
    const int flags = fcntl(device->fd, F_GETFL);
    if (flags < 0 || fcntl(device->fd, F_SETFL, flags | O_DIRECT) != 0)
        return fail(why, why_bytes, -ENOTSUP,
                    "ssd path %s: its file system has no O_DIRECT (%s); name a path on ext4 or "
                    "XFS, or, for tests, set --direct=off",
                    config->path, strerror(errno));
    device->is_direct = true;
    return 0;
}

/* One aligned block through the device: what mount options and layers below really allow. */
static int probe(const struct fb_device_config *config, const struct fb_device *device, char *why,
                 size_t why_bytes)
{
    uint8_t *block = aligned_alloc(FB_DEVICE_DIRECT_BYTES, FB_DEVICE_DIRECT_BYTES);
    if (!block)
        return fail(why, why_bytes, -ENOMEM, "ssd path %s: no memory for a probe", config->path);
    memset(block, 0, FB_DEVICE_DIRECT_BYTES);
    const char *what = "written";
    ssize_t moved = FB_DEVICE_DIRECT_BYTES;
    errno = 0;
    if (fb_device_bytes(device) == 0)
        moved = pwrite(device->fd, block, FB_DEVICE_DIRECT_BYTES, 0);
    if (moved == FB_DEVICE_DIRECT_BYTES) {
        what = "read";
        moved = pread(device->fd, block, FB_DEVICE_DIRECT_BYTES, 0);
    }
    const int error = errno;
    free(block);
    /* A file that is not empty and shorter than a block is damaged, and the log's to judge. */
    if (moved >= 0 && (moved == FB_DEVICE_DIRECT_BYTES || strcmp(what, "read") == 0))
        return 0;
    return fail(
        why, why_bytes, error ? -error : -EIO,
        "ssd path %s: one block of %d bytes cannot be %s%s: %s; check the disk and its free "
        "space, or name a path on another one",
        config->path, FB_DEVICE_DIRECT_BYTES, what, device->is_direct ? " by O_DIRECT" : "",
        moved < 0 ? strerror(error) : "short");
}

/* ---- opening ---- */

/* Makes a new file's name durable: without this a power cut may take the whole file away. */
static int sync_directory(const struct fb_device_config *config, const struct fb_device *device,
                          char *why, size_t why_bytes)
{
    char directory[FB_DEVICE_PATH_BYTES_MAX];
    const char *slash = strrchr(device->path, '/');
    const size_t len = slash ? (size_t)(slash - device->path) : 0;
    memcpy(directory, device->path, len);
    directory[len] = '\0';
    const char *name = !slash ? "." : len == 0 ? "/" : directory;
    const int fd = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool synced = fd >= 0 && fsync(device->fd) == 0 && fsync(fd) == 0;
    const int error = errno;
    if (fd >= 0)
        close(fd);
    if (synced)
        return 0;
    return fail(why, why_bytes, -error,
                "ssd path %s: its directory cannot be synced: %s; use a local file system",
                config->path, strerror(error));
}

static int open_file(const struct fb_device_config *config, struct fb_device *device, char *why,
                     size_t why_bytes)
{
    const int flags = O_RDWR | O_CLOEXEC;
    device->fd = open(config->path, flags);
    if (device->fd < 0 && errno == ENOENT) {
        device->fd = open(config->path, flags | O_CREAT | O_EXCL, FILE_MODE);
        device->is_new = device->fd >= 0;
        if (device->fd < 0 && errno == EEXIST) /* somebody was faster: the lock decides */
            device->fd = open(config->path, flags);
    }
    if (device->fd < 0) {
        const int error = errno;
        return fail(why, why_bytes, -error,
                    "ssd path %s: cannot be opened for reading and writing: %s; name a file in an "
                    "existing directory that this user may write to",
                    config->path, strerror(error));
    }
    struct stat file;
    if (fstat(device->fd, &file) != 0)
        return fail(why, why_bytes, -errno, "ssd path %s: fstat: %s", config->path,
                    strerror(errno));
    device->is_block = S_ISBLK(file.st_mode);
    if (!S_ISREG(file.st_mode) && !device->is_block)
        return fail(why, why_bytes, -EINVAL,
                    "ssd path %s: is neither a regular file nor a block device; name one",
                    config->path);
    return 0;
}

/* Says early what will stop growth later. */
static void say_room(const struct fb_device_config *config, const struct fb_device *device)
{
    const int64_t bytes = fb_device_bytes(device);
    const int64_t room = fb_device_room(device);
    if (bytes < 0 || room < 0 || device->is_block)
        return;
    if ((uint64_t)bytes + (uint64_t)room >= device->cap_bytes)
        return;
    char cap[FB_SIZE_TEXT_BYTES];
    char reach[FB_SIZE_TEXT_BYTES];
    char floor[FB_SIZE_TEXT_BYTES];
    say(config,
        "ssd path %s: the cap of %s cannot be reached: free space above the floor of %s allows %s",
        config->path, fb_size_print(cap, sizeof cap, device->cap_bytes),
        fb_size_print(floor, sizeof floor, device->floor_bytes),
        fb_size_print(reach, sizeof reach, (uint64_t)bytes + (uint64_t)room));
}

static int set_up(const struct fb_device_config *config, struct fb_device *device, char *why,
                  size_t why_bytes)
{
    int rc = open_file(config, device, why, why_bytes);
    if (rc == 0)
        rc = set_direct(config, device, why, why_bytes);
    if (rc == 0)
        rc = check_block_size(config, device, why, why_bytes);
    if (rc == 0)
        rc = lock_device(config, device->fd, why, why_bytes);
    if (rc == 0)
        rc = probe(config, device, why, why_bytes);
    if (rc == 0 && device->is_new)
        rc = sync_directory(config, device, why, why_bytes);
    return rc;
}

int fb_device_open(const struct fb_device_config *config, struct fb_device *device, char *why,
                   size_t why_bytes)
{
    FB_ASSERT(why_bytes > 0);
    *device = (struct fb_device){.fd = -1,
                                 .cap_bytes = config->cap_bytes,
                                 .floor_bytes = config->floor_bytes};
    if (!config->path || config->path[0] == '\0' || strlen(config->path) >= sizeof device->path)
        return fail(why, why_bytes, -EINVAL,
                    "ssd path: empty or longer than %d bytes; name a shorter one",
                    FB_DEVICE_PATH_BYTES_MAX - 1);
    memcpy(device->path, config->path, strlen(config->path) + 1);
    if (config->cap_bytes == 0 || !fb_is_aligned(config->cap_bytes, FB_DEVICE_DIRECT_BYTES))
        return fail(why, why_bytes, -EINVAL,
                    "ssd cap of %s: %llu bytes is not a multiple of %d above 0", config->path,
                    (unsigned long long)config->cap_bytes, FB_DEVICE_DIRECT_BYTES);
    const int rc = set_up(config, device, why, why_bytes);
    if (rc != 0) {
        /* A file that was made for nothing goes again; it is still empty or one block of zeros. */
        if (device->is_new && rc != -EBUSY)
            unlink(config->path);
        fb_device_close(device);
        return rc;
    }
    say_room(config, device);
    return 0;
}

void fb_device_close(struct fb_device *device)
{
    if (device->fd >= 0)
        close(device->fd);
    device->fd = -1;
}

/* ---- length and space ---- */

int64_t fb_device_bytes(const struct fb_device *device)
{
    struct stat file;
    if (device->is_block) {
        const off_t end = lseek(device->fd, 0, SEEK_END);
        return end < 0 ? -errno : end;
    }
    return fstat(device->fd, &file) == 0 ? file.st_size : -errno;
}

int64_t fb_device_room(const struct fb_device *device)
{
    struct statvfs fs;
    if (fstatvfs(device->fd, &fs) != 0)
        return -errno;
    const uint64_t free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    return (int64_t)fb_sub_floored(free_bytes, device->floor_bytes);
}

int fb_device_grow(const struct fb_device *device, uint64_t bytes)
{
    const int64_t now = fb_device_bytes(device);
    if (now < 0)
        return (int)now;
    if (bytes <= (uint64_t)now)
        return 0;
    if (device->is_block || bytes > device->cap_bytes)
        return -ENOSPC;
    const uint64_t more = bytes - (uint64_t)now;
    const int64_t room = fb_device_room(device);
    if (room < 0)
        return (int)room;
    if ((uint64_t)room < more)
        return -ENOSPC;
    int rc = -1;
    for (unsigned i = 0; i < EINTR_MAX && rc != 0; i++) {
        rc = fallocate(device->fd, 0, now, (off_t)more);
        if (rc != 0 && errno != EINTR)
            break;
    }
    if (rc == 0)
        return 0;
    /* A quota and a limit of file sizes are full disks too, and heal like them. */
    return errno == EDQUOT || errno == EFBIG ? -ENOSPC : -errno;
}
