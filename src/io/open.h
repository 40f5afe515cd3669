/*
 * open.h - choosing and opening a real backend.
 */
#ifndef FB_IO_OPEN_H
#define FB_IO_OPEN_H

#include "io/device.h"
#include "io/io.h"

struct fb_io_config {
    /*
     * "auto" or NULL: io_uring where it is to be had, else posix. "uring", "posix": that one, or an
     * error. In test builds also "forget", which loses unflushed writes when killed (forget.h).
     */
    const char *backend;
    uint8_t *arena;                  /* the DRAM pool */
    uint64_t arena_bytes;            /* a multiple of 4096 */
    uint8_t *meta;                   /* the engine's metadata buffers */
    uint64_t meta_bytes;             /* a multiple of 4096 */
    const struct fb_device *devices; /* opened; device_count of them, 0 for DRAM alone */
    uint32_t device_count;           /* <= FB_DEVICES_MAX */
    uint32_t depth;                  /* uring: requests in the ring; 0: its default */
    uint32_t threads;                /* posix: threads; 0: FB_POOL_THREADS_DEFAULT */
    bool no_fixed;                   /* uring: do not register memory */
    uint64_t missing_ops;            /* tests: bit n says that io_uring has no operation number n */
    const char *fault_script; /* test builds: requests that fail (fault.h); NULL or "": none */
    fb_device_say_fn *say;    /* NULL: say nothing */
    void *say_context;
};

/*
 * Opens a backend and says in one line which. Memory and devices stay the caller's and must outlive
 * it; fb_io_close() ends it. Returns 0, or -errno with one line in `why` that names the value and
 * the cure: -EINVAL for a value that is not known, else what the operator's choice failed with.
 * Blocks for a moment (threads, registration of memory).
 */
int fb_io_open(const struct fb_io_config *config, struct fb_io **out, char *why, size_t why_bytes);

#endif
