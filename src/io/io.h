/*
 * io.h - the I/O seam: the only way by which the engine touches a device, a hash of large slices,
 * or the passing of time.
 *
 * Shape: caller-owned requests, submit, completions drained in batches. Nothing is allocated per
 * operation, submit never fails (a failure arrives as a completion), completions are delivered only
 * by fb_io_reap(), on the thread that calls it. Requests are submitted and reaped on one thread.
 *
 * Bytes are named, not pointed at: a vector element is an offset into one of two regions that were
 * registered when the backend was opened.
 *   FB_IO_ARENA  the DRAM pool: bytes of values.
 *   FB_IO_META   the engine's metadata buffers (superblock, descriptors, summaries, history).
 * The real backends add the region's base; the simulator keeps 16 symbolic bytes for every 4 KiB
 * page of the arena and real bytes for the metadata, so that schedules run fast and no layer above
 * can tell the difference.
 *
 * Backends: uring.c (production), posix.c (a thread pool of plain calls), sim.c (seeded faults).
 * Backends may hold submitted requests back to hand them over in one go: whoever is about to sleep
 * on the event descriptor calls fb_io_reap() or fb_io_kick() after the last submit.
 */
#ifndef FB_IO_IO_H
#define FB_IO_IO_H

#include <stddef.h>
#include <stdint.h>

#include "base/limits.h"
#include "base/list.h"

enum fb_io_op {
    FB_IO_READ,  /* device -> memory */
    FB_IO_WRITE, /* memory -> device */
    FB_IO_FLUSH, /* every write of this device completed before the submit becomes durable */
    FB_IO_HASH,  /* XXH3-64 of every 256 KiB leaf of arena memory, into leaf_out */
    FB_IO_GROW,  /* make the device at least device_off bytes long, allocated; 0 or -errno */
    FB_IO_OP_COUNT
};

enum fb_io_space {
    FB_IO_ARENA,
    FB_IO_META
};

/* Limits of one request. */
#define FB_IO_VEC_MAX   1024       /* elements of one request; IOV_MAX of Linux */
#define FB_IO_BYTES_MAX (8u << 20) /* bytes of one request */

/*
 * A run of memory. `off` and `len` are multiples of 4096, except that the last element of a HASH
 * may end anywhere.
 */
struct fb_io_vec {
    uint64_t off;   /* bytes from the start of the region */
    uint32_t len;   /* bytes */
    uint32_t space; /* enum fb_io_space */
};

/*
 * A request. The submitter owns it and everything it points at, and may not touch either until
 * fb_io_reap() has returned it.
 *
 * result: READ and WRITE: bytes moved, which may be fewer than len (short), or -errno. FLUSH, GROW:
 * 0 or -errno. HASH: 0.
 */
struct fb_io_req {
    uint8_t op;          /* enum fb_io_op */
    uint8_t device;      /* which device, 0 .. FB_DEVICES_MAX-1 */
    uint16_t vec_count;  /* elements of vec, <= FB_IO_VEC_MAX */
    uint32_t leaf_count; /* HASH: room in leaf_out; ceil(len / FB_LEAF_BYTES) leaves are written */
    uint64_t device_off; /* bytes; a multiple of 4096 */
    uint64_t len;        /* bytes: sum of vec[].len */
    const struct fb_io_vec *vec;
    uint64_t *leaf_out;
    int64_t result;
    uint64_t cookie;     /* the submitter's; never read by a backend */
    struct fb_link link; /* the backend's while in flight; otherwise free for the submitter */
    uint64_t backend[4]; /* the backend's scratch */
};

struct fb_io;

/*
 * What a backend has done since it was opened. Written only by the thread that submits and reaps;
 * another thread reads a copy that this one has published.
 */
struct fb_io_stats {
    uint64_t done[FB_IO_OP_COUNT];   /* requests returned, by enum fb_io_op */
    uint64_t failed[FB_IO_OP_COUNT]; /* of those: with a negative result */
    uint64_t shorts;                 /* READ and WRITE that moved fewer bytes than asked */
    uint64_t read_bytes;             /* bytes moved, short ones counted as far as they came */
    uint64_t write_bytes;
    uint64_t read_bytes_direct;  /* of read_bytes: from a device opened with O_DIRECT */
    uint64_t write_bytes_direct; /* of write_bytes: to a device opened with O_DIRECT */
    uint32_t reads_in_flight;    /* READ requests that the device has now */
    uint32_t read_depth_max;     /* the most there ever were at once */
};

/* What a backend implements. Same contracts as the fb_io_* calls below. */
struct fb_io_ops {
    const char *name;
    void (*submit)(struct fb_io *io, struct fb_io_req *req);
    size_t (*reap)(struct fb_io *io, struct fb_io_req **out, size_t max);
    void (*kick)(struct fb_io *io);
    void (*faulted)(struct fb_io *io, uint64_t arena_bytes);
    int (*event_fd)(struct fb_io *io);
    void (*close)(struct fb_io *io);
};

/* The head of every backend's own struct. */
struct fb_io {
    const struct fb_io_ops *ops;
    struct fb_io_stats stats;
};

/*
 * Hands a request to the backend. Never blocks on the device and never fails: a request that cannot
 * be started completes with -errno. Backends queue what exceeds their depth.
 */
static inline void fb_io_submit(struct fb_io *io, struct fb_io_req *req)
{
    io->ops->submit(io, req);
}

/*
 * Takes up to max finished requests; returns how many. Never blocks. Each submitted request is
 * returned exactly once. Completion order is free, except that a FLUSH covers the writes that were
 * reaped before it was submitted.
 */
static inline size_t fb_io_reap(struct fb_io *io, struct fb_io_req **out, size_t max)
{
    return io->ops->reap(io, out, max);
}

/*
 * Hands over what the backend has held back for a batch. Never blocks. fb_io_reap() does it too, so
 * only a caller that submits after its last reap and then sleeps needs it.
 */
static inline void fb_io_kick(struct fb_io *io)
{
    io->ops->kick(io);
}

/*
 * Says that the arena's first arena_bytes bytes are backed by memory; grows only. A backend may
 * prepare them (uring registers them, in the background), and works without being told. Never
 * blocks. The memory must then stay mapped and not be punched until the backend is closed.
 */
static inline void fb_io_faulted(struct fb_io *io, uint64_t arena_bytes)
{
    io->ops->faulted(io, arena_bytes);
}

/*
 * A descriptor that polls readable while completions wait, or -1 for a backend without one (the
 * simulator). The caller need not read it: fb_io_reap() does.
 */
static inline int fb_io_event_fd(struct fb_io *io)
{
    return io->ops->event_fd(io);
}

/* Ends the backend: waits for what is in flight (bounded by the device), closes, frees. */
static inline void fb_io_close(struct fb_io *io)
{
    io->ops->close(io);
}

#endif
