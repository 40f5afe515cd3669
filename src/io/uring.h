/*
 * uring.h - the production backend: one io_uring, and a small pool for what a ring cannot do.
 */
#ifndef FB_IO_URING_H
#define FB_IO_URING_H

#include "io/execute.h"

#define FB_URING_DEPTH_MAX     4096
#define FB_URING_DEPTH_DEFAULT 256
#define FB_URING_THREADS       4          /* of the pool: hashes and growth */
#define FB_URING_BATCH         16         /* requests that are handed to the kernel in one call */
#define FB_URING_PIECE_BYTES   FB_MIB(16) /* memory that is registered in one go */
#define FB_URING_PIECES_MAX    8192       /* a larger arena has larger pieces */

struct fb_uring_config {
    uint32_t depth;        /* requests in the ring at once; 0: FB_URING_DEPTH_DEFAULT */
    bool no_fixed;         /* do not register the memory */
    uint64_t missing_ops;  /* tests: bit n says that IORING_OP number n is not there */
    uint64_t piece_bytes;  /* a multiple of 4096; 0: FB_URING_PIECE_BYTES */
    fb_device_say_fn *say; /* NULL: say nothing */
    void *say_context;
};

/*
 * Opens the backend. Memory and devices stay the caller's and must outlive it; registered memory
 * must not be unmapped or punched meanwhile. Returns 0, or -errno with one line in `why`:
 *   -EPERM, -ENOSYS, -EINVAL   io_uring is forbidden, absent, or too old here
 *   -EOPNOTSUPP                it lacks an operation that is needed
 *   others                     what the system said
 * The metadata are registered here, the arena piece by piece by a helper thread as fb_io_faulted()
 * lets it. That memory could not be registered is said in one line, and no error.
 */
int fb_uring_open(const struct fb_execute *execute, const struct fb_uring_config *config,
                  struct fb_io **out, char *why, size_t why_bytes);

#endif
