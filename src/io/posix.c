/*
 * posix.c - the backend of plain calls. See posix.h.
 */
#include "io/posix.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "io/pool.h"

struct posix {
    struct fb_io io;
    struct fb_execute execute;
    struct fb_pool *pool;
    int event_fd;
};

static struct posix *posix_of(struct fb_io *io)
{
    return (struct posix *)((uint8_t *)io - offsetof(struct posix, io));
}

static void work(void *context, struct fb_io_req *req)
{
    const struct posix *posix = context;
    req->result = fb_execute_request(&posix->execute, req);
}

static void posix_submit(struct fb_io *io, struct fb_io_req *req)
{
    struct posix *posix = posix_of(io);
    fb_check_request(&posix->execute.memory, req);
    fb_pool_submit(posix->pool, req);
}

static size_t posix_reap(struct fb_io *io, struct fb_io_req **out, size_t max)
{
    struct posix *posix = posix_of(io);
    const size_t count = fb_pool_reap(posix->pool, out, max);
    for (size_t i = 0; i < count; i++)
        fb_check_count(&io->stats, out[i], fb_execute_is_direct(&posix->execute, out[i]));
    fb_pool_read_depth(posix->pool, &io->stats.reads_in_flight, &io->stats.read_depth_max);
    return count;
}

static void posix_kick(struct fb_io *io)
{
    (void)io;
}

static void posix_faulted(struct fb_io *io, uint64_t arena_bytes)
{
    (void)io;
    (void)arena_bytes;
}

static int posix_event_fd(struct fb_io *io)
{
    return posix_of(io)->event_fd;
}

static void posix_close(struct fb_io *io)
{
    struct posix *posix = posix_of(io);
    if (posix->pool)
        fb_pool_close(posix->pool);
    if (posix->event_fd >= 0)
        close(posix->event_fd);
    free(posix);
}

static const struct fb_io_ops posix_ops = {
    .name = "posix",
    .submit = posix_submit,
    .reap = posix_reap,
    .kick = posix_kick,
    .faulted = posix_faulted,
    .event_fd = posix_event_fd,
    .close = posix_close,
};

int fb_posix_open(const struct fb_execute *execute, unsigned threads, struct fb_io **out)
{
    struct posix *posix = calloc(1, sizeof *posix);
    if (!posix)
        return -ENOMEM;
    posix->io.ops = &posix_ops;
    posix->execute = *execute;
    posix->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = posix->event_fd < 0 ? -errno : 0;
    if (rc == 0)
        rc = fb_pool_open(threads, work, posix, posix->event_fd, &posix->pool);
    if (rc != 0) {
        posix_close(&posix->io);
        return rc;
    }
    *out = &posix->io;
    return 0;
}
