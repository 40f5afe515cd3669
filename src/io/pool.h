/*
 * pool.h - threads that carry out requests by plain blocking calls.
 *
 * The posix backend gives them everything, the uring backend what a ring cannot do without blocking
 * (hashes, growth). One thread submits and reaps; the pool's threads share nothing with it but two
 * lists under one lock.
 */
#ifndef FB_IO_POOL_H
#define FB_IO_POOL_H

#include <stddef.h>
#include <stdint.h>

#include "io/io.h"

#define FB_POOL_THREADS_MAX     64
#define FB_POOL_THREADS_DEFAULT 16

struct fb_pool;

/* Carries out one request and sets its result. Runs on a thread of the pool; may block. */
typedef void fb_pool_work_fn(void *context, struct fb_io_req *req);

/*
 * Starts `threads` threads (1 to FB_POOL_THREADS_MAX), with all signals blocked. event_fd is an
 * eventfd of the caller's, which the pool makes readable while finished requests wait. Returns 0 or
 * -errno.
 */
int fb_pool_open(unsigned threads, fb_pool_work_fn *work, void *context, int event_fd,
                 struct fb_pool **out);

/* Queues a request; never blocks for long and never fails. */
void fb_pool_submit(struct fb_pool *pool, struct fb_io_req *req);

/* Takes up to max finished requests; never blocks. Clears the eventfd when none is left. */
size_t fb_pool_reap(struct fb_pool *pool, struct fb_io_req **out, size_t max);

/* READ requests being carried out now, and the most there ever were at once. */
void fb_pool_read_depth(struct fb_pool *pool, uint32_t *now, uint32_t *most);

/* Waits until all that was queued is done, ends the threads, frees. Finished requests are dropped.
 */
void fb_pool_close(struct fb_pool *pool);

#endif
