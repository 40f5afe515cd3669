/*
 * execute.h - carries out one request by plain blocking calls: what the threads of a pool do.
 */
#ifndef FB_IO_EXECUTE_H
#define FB_IO_EXECUTE_H

#include "io/check.h"
#include "io/device.h"
#include "io/io.h"

/* What requests are carried out on. The devices are borrowed. */
struct fb_execute {
    struct fb_io_memory memory;
    const struct fb_device *devices;
};

/*
 * Carries out a request of any kind and returns its result, as io.h has it. Blocks. A full quota
 * and a limit of file sizes are -ENOSPC. Several threads may call it at once.
 */
int64_t fb_execute_request(const struct fb_execute *execute, const struct fb_io_req *req);

/* The result that an errno of a transfer stands for, negative. */
int fb_execute_error(int error);

/* True if the request moves bytes from or to a device that is opened with O_DIRECT. */
bool fb_execute_is_direct(const struct fb_execute *execute, const struct fb_io_req *req);

/* False if a write would make its device longer than its cap; its result is then -ENOSPC. */
bool fb_execute_is_below_cap(const struct fb_execute *execute, const struct fb_io_req *req);

#endif
