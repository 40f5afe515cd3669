/*
 * device.h - opening the file or block device that an SSD tier lives in.
 *
 * One open file description a device: it holds the lock and does the I/O, so that a process which
 * dies keeps the lock until its writes are over. All functions here block; none belongs on a data
 * thread (growth goes through FB_IO_GROW).
 */
#ifndef FB_IO_DEVICE_H
#define FB_IO_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/limits.h"

#define FB_DEVICE_PATH_BYTES_MAX 1024
#define FB_DEVICE_WHY_BYTES      1536           /* room that any message fits into */
#define FB_DEVICE_LOCK_WAIT_MS   5000           /* for a predecessor that is dying */
#define FB_DEVICE_DIRECT_BYTES   FB_BLOCK_BYTES /* unit and alignment of all I/O */

/* One line for the operator, without a newline. */
typedef void fb_device_say_fn(void *context, const char *line);

struct fb_device_config {
    const char *path;      /* of a regular file, made if it is not there, or of a block device */
    uint64_t cap_bytes;    /* it never becomes longer; a multiple of 4096, not 0 */
    uint64_t floor_bytes;  /* of free space of its file system that growth leaves alone */
    bool no_direct;        /* through the page cache: for tests, and only if the operator says so */
    uint32_t lock_wait_ms; /* how long to wait for another process's lock; 0: not at all */
    fb_device_say_fn *say; /* NULL: say nothing */
    void *say_context;
};

struct fb_device {
    int fd;
    bool is_direct;
    bool is_block; /* a block device: its length is what it is */
    bool is_new;   /* this call made the file */
    uint64_t cap_bytes;
    uint64_t floor_bytes;
    char path[FB_DEVICE_PATH_BYTES_MAX];
};

/*
 * Opens, locks and probes a device. Returns 0; or -errno with one line in `why` that names the
 * value, the limit and the cure. Blocks: for a lock up to lock_wait_ms, saying what it waits for.
 *   -ENOTSUP  its file system keeps no data (tmpfs, ramfs), or has no O_DIRECT of 4096 bytes
 *   -EBUSY    another process holds the lock
 *   -EINVAL   neither a regular file nor a block device, or a path or cap outside its limits
 *   others    what open, read or write said
 * A file made here is durable in its directory. Content is never changed, except that a file that
 * is empty gets one block of zeros.
 */
int fb_device_open(const struct fb_device_config *config, struct fb_device *device, char *why,
                   size_t why_bytes);

/* Closes the device and so gives up its lock. */
void fb_device_close(struct fb_device *device);

/* The length of a device in bytes, or -errno. */
int64_t fb_device_bytes(const struct fb_device *device);

/*
 * Makes the device at least `bytes` long, with its space allocated. Returns 0; -ENOSPC if the cap,
 * the floor of free space, a quota, a limit of file sizes or the disk says no; or -errno. Blocks.
 */
int fb_device_grow(const struct fb_device *device, uint64_t bytes);

/* Free bytes of its file system above the floor, 0 if it is below; or -errno. Blocks. */
int64_t fb_device_room(const struct fb_device *device);

#endif
