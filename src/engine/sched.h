/*
 * sched.h - the order in which requests go to one device: what people wait for comes first.
 *
 *   urgent  flushes, growing, hashing: always allowed, at once
 *   reads   of values: up to read_depth at a time, before everything else but urgent
 *   meta    small reads and writes of the log itself: behind reads, up to a depth of their own
 *   writes  of batches: the owner cuts them into slices; this module says when and how long. Alone
 *           they go in long slices at depth. While reads are active (queued, in flight, or not
 *           FB_SCHED_READ_QUIET_NS ago) one short slice at a time: measured, that keeps the reads'
 *           p99 near idle at half of the write rate, where long slices at depth made it tenfold.
 *           One slice is always allowed, so that writes never starve.
 *
 * Pure; no memory of its own; requests are linked by their own links.
 */
#ifndef FB_ENGINE_SCHED_H
#define FB_ENGINE_SCHED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "io/io.h"

#define FB_SCHED_META_DEPTH               32
#define FB_SCHED_READ_QUIET_NS            (100 * FB_MS_NS)
#define FB_SCHED_SLICE_BYTES              FB_MIB(1)
#define FB_SCHED_SLICE_BYTES_BESIDE_READS FB_KIB(256)

enum fb_sched_class {
    FB_SCHED_URGENT,
    FB_SCHED_READ,
    FB_SCHED_META,
    FB_SCHED_WRITE
};

struct fb_sched {
    struct fb_list urgent, reads, meta; /* of fb_io_req.link */
    uint32_t read_depth, write_depth;
    uint32_t reads_queued, reads_in_flight, reads_in_flight_max;
    uint32_t meta_in_flight, writes_in_flight;
    uint64_t last_read_ns; /* when a read was last queued or finished */
    bool has_read;         /* since init */
};

/* Begins with nothing queued; both depths are at least 1 (asserted). */
void fb_sched_init(struct fb_sched *sched, uint32_t read_depth, uint32_t write_depth);

/* Queues a request of any class but WRITE. */
void fb_sched_push(struct fb_sched *sched, enum fb_sched_class class, uint64_t now_ns,
                   struct fb_io_req *req);

/* The next queued request that may go now, counted as in flight; *class is its class. Or NULL. */
struct fb_io_req *fb_sched_take(struct fb_sched *sched, enum fb_sched_class *class);

/* How long a slice of a write may be now; 0: none may go. */
uint64_t fb_sched_write_room(const struct fb_sched *sched, uint64_t now_ns);

/* Counts a slice as in flight. */
void fb_sched_write_started(struct fb_sched *sched);

/* Counts a request as finished. */
void fb_sched_done(struct fb_sched *sched, enum fb_sched_class class, uint64_t now_ns);

/* Takes a queued read back out, for a device that is given up; NULL if there is none. */
struct fb_io_req *fb_sched_drop_read(struct fb_sched *sched);

#endif
