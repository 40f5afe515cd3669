/*
 * forget.c - a backend that keeps unflushed writes in memory. See forget.h.
 *
 * Two locks, taken in this order: `flushing` (one flush at a time), `held_lock` (the list of held
 * writes). A read holds held_lock for reading over the file's read and the look at the list: a
 * flush removes a write from the list, under the lock for writing, only after it is in the file, so
 * a read finds it in one of the two.
 */
#include "io/forget.h"

#ifdef FB_TEST_HOOKS

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/bits.h"
#include "base/list.h"
#include "io/pool.h"

/* A completed write that is not in the file. */
struct held {
    struct fb_link link; /* of struct forget, oldest first */
    uint64_t sequence;
    uint64_t off;
    uint64_t len;
    uint8_t device;
    uint8_t *bytes;
};

struct forget {
    struct fb_io io;
    struct fb_execute execute;
    struct fb_pool *pool;
    int event_fd;
    pthread_mutex_t flushing;
    pthread_rwlock_t held_lock;
    struct fb_list held;
    uint64_t held_bytes;
    uint64_t sequence;
};

static struct forget *forget_of(struct fb_io *io)
{
    return (struct forget *)((uint8_t *)io - offsetof(struct forget, io));
}

/* Copies between a piece of the device and the request's memory that it belongs to. */
static void copy_piece(const struct forget *forget, const struct fb_io_req *req, uint64_t req_off,
                       uint8_t *bytes, uint64_t len, bool into_memory)
{
    for (unsigned i = 0; i < req->vec_count && len > 0; i++) {
        const struct fb_io_vec *vec = &req->vec[i];
        if (req_off >= vec->len) {
            req_off -= vec->len;
            continue;
        }
        const uint64_t piece = fb_min_u64(vec->len - req_off, len);
        uint8_t *memory = fb_check_address(&forget->execute.memory, vec) + req_off;
        if (into_memory)
            memcpy(memory, bytes, piece);
        else
            memcpy(bytes, memory, piece);
        bytes += piece;
        len -= piece;
        req_off = 0;
    }
}

/* ---- reading ---- */

/* Zeroes what the file did not have, for held writes may lie beyond its end. */
static void zero_rest(const struct forget *forget, const struct fb_io_req *req, uint64_t from)
{
    uint8_t zeros[FB_PAGE_BYTES] = {0};
    for (uint64_t off = from; off < req->len; off += sizeof zeros)
        copy_piece(forget, req, off, zeros, fb_min_u64(sizeof zeros, req->len - off), true);
}

static int64_t read_through(struct forget *forget, const struct fb_io_req *req)
{
    pthread_rwlock_rdlock(&forget->held_lock);
    int64_t result = fb_execute_request(&forget->execute, req);
    uint64_t end = result < 0 ? 0 : (uint64_t)result;
    if (result >= 0 && end < req->len)
        zero_rest(forget, req, end);
    FB_LIST_FOREACH (link, &forget->held) {
        struct held *held = FB_LIST_ITEM(link, struct held, link);
        const uint64_t from = fb_max_u64(held->off, req->device_off);
        const uint64_t to = fb_min_u64(held->off + held->len, req->device_off + req->len);
        if (result < 0 || held->device != req->device || from >= to)
            continue;
        copy_piece(forget, req, from - req->device_off, held->bytes + (from - held->off), to - from,
                   true);
        end = fb_max_u64(end, to - req->device_off);
    }
    pthread_rwlock_unlock(&forget->held_lock);
    return result < 0 ? result : (int64_t)end;
}

/* ---- flushing ---- */

static bool is_covered(const struct held *held, unsigned device, uint64_t sequence)
{
    return held->device == device && held->sequence <= sequence;
}

static int write_out(const struct forget *forget, const struct held *held)
{
    const int fd = forget->execute.devices[held->device].fd;
    for (uint64_t done = 0; done < held->len;) {
        const ssize_t wrote =
            pwrite(fd, held->bytes + done, held->len - done, (off_t)(held->off + done));
        if (wrote <= 0)
            return wrote == 0 ? -EIO : fb_execute_error(errno);
        done += (uint64_t)wrote;
    }
    return 0;
}

static void drop_covered(struct forget *forget, unsigned device, uint64_t sequence)
{
    pthread_rwlock_wrlock(&forget->held_lock);
    FB_LIST_FOREACH_SAFE (link, following, &forget->held) {
        struct held *held = FB_LIST_ITEM(link, struct held, link);
        if (!is_covered(held, device, sequence))
            continue;
        fb_list_remove(&held->link);
        forget->held_bytes -= held->len;
        free(held->bytes);
        free(held);
    }
    pthread_rwlock_unlock(&forget->held_lock);
}

/* Writes out what was held up to a sequence. Only flushes take items off, and they exclude each
 * other, so an item that was found stays; the list around it may grow, hence the lock. */
static int flush_to(struct forget *forget, unsigned device, uint64_t sequence)
{
    pthread_mutex_lock(&forget->flushing);
    pthread_rwlock_rdlock(&forget->held_lock);
    struct fb_link *link = fb_list_first(&forget->held);
    pthread_rwlock_unlock(&forget->held_lock);
    int rc = 0;
    while (rc == 0 && link) {
        const struct held *held = FB_LIST_ITEM(link, struct held, link);
        if (is_covered(held, device, sequence))
            rc = write_out(forget, held);
        pthread_rwlock_rdlock(&forget->held_lock);
        link = fb_list_next(&forget->held, link);
        pthread_rwlock_unlock(&forget->held_lock);
    }
    if (rc == 0 && fdatasync(forget->execute.devices[device].fd) != 0)
        rc = fb_execute_error(errno);
    drop_covered(forget, device, sequence);
    pthread_mutex_unlock(&forget->flushing);
    return rc;
}

/* ---- writing ---- */

static struct held *held_new(const struct fb_io_req *req)
{
    struct held *held = calloc(1, sizeof *held);
    if (!held)
        return NULL;
    held->bytes = aligned_alloc(FB_BLOCK_BYTES, req->len);
    if (!held->bytes) {
        free(held);
        return NULL;
    }
    fb_link_init(&held->link);
    held->device = req->device;
    held->off = req->device_off;
    held->len = req->len;
    return held;
}

static int64_t hold(struct forget *forget, const struct fb_io_req *req)
{
    if (!fb_execute_is_below_cap(&forget->execute, req))
        return -ENOSPC;
    pthread_rwlock_rdlock(&forget->held_lock);
    const bool is_full = forget->held_bytes + req->len > FB_FORGET_BYTES_MAX;
    const uint64_t sequence = forget->sequence;
    pthread_rwlock_unlock(&forget->held_lock);
    /* A drive whose cache is full writes back. */
    if (is_full) {
        const int rc = flush_to(forget, req->device, sequence);
        if (rc != 0)
            return rc;
    }
    struct held *held = held_new(req);
    if (!held)
        return -ENOMEM;
    copy_piece(forget, req, 0, held->bytes, held->len, false);
    pthread_rwlock_wrlock(&forget->held_lock);
    held->sequence = ++forget->sequence;
    forget->held_bytes += held->len;
    fb_list_push_back(&forget->held, &held->link);
    pthread_rwlock_unlock(&forget->held_lock);
    return (int64_t)req->len;
}

static void work(void *context, struct fb_io_req *req)
{
    struct forget *forget = context;
    switch (req->op) {
    case FB_IO_READ:
        req->result = read_through(forget, req);
        break;
    case FB_IO_WRITE:
        req->result = hold(forget, req);
        break;
    case FB_IO_FLUSH:
        req->result = flush_to(forget, req->device, req->backend[0]);
        break;
    default:
        req->result = fb_execute_request(&forget->execute, req);
        break;
    }
}

/* ---- the backend's functions ---- */

static void forget_submit(struct fb_io *io, struct fb_io_req *req)
{
    struct forget *forget = forget_of(io);
    fb_check_request(&forget->execute.memory, req);
    pthread_rwlock_rdlock(&forget->held_lock);
    req->backend[0] = forget->sequence; /* FLUSH: covers what has completed by now */
    pthread_rwlock_unlock(&forget->held_lock);
    fb_pool_submit(forget->pool, req);
}

static size_t forget_reap(struct fb_io *io, struct fb_io_req **out, size_t max)
{
    struct forget *forget = forget_of(io);
    const size_t count = fb_pool_reap(forget->pool, out, max);
    for (size_t i = 0; i < count; i++)
        fb_check_count(&io->stats, out[i], fb_execute_is_direct(&forget->execute, out[i]));
    fb_pool_read_depth(forget->pool, &io->stats.reads_in_flight, &io->stats.read_depth_max);
    return count;
}

static void forget_kick(struct fb_io *io)
{
    (void)io;
}

static void forget_faulted(struct fb_io *io, uint64_t arena_bytes)
{
    (void)io;
    (void)arena_bytes;
}

static int forget_event_fd(struct fb_io *io)
{
    return forget_of(io)->event_fd;
}

/* What was not flushed is lost, as it would be by a kill. */
static void forget_close(struct fb_io *io)
{
    struct forget *forget = forget_of(io);
    if (forget->pool)
        fb_pool_close(forget->pool);
    if (forget->event_fd >= 0)
        close(forget->event_fd);
    for (unsigned d = 0; d < forget->execute.memory.device_count; d++)
        drop_covered(forget, d, UINT64_MAX);
    pthread_rwlock_destroy(&forget->held_lock);
    pthread_mutex_destroy(&forget->flushing);
    free(forget);
}

static const struct fb_io_ops forget_ops = {
    .name = "forget",
    .submit = forget_submit,
    .reap = forget_reap,
    .kick = forget_kick,
    .faulted = forget_faulted,
    .event_fd = forget_event_fd,
    .close = forget_close,
};

int fb_forget_open(const struct fb_execute *execute, unsigned threads, struct fb_io **out)
{
    struct forget *forget = calloc(1, sizeof *forget);
    if (!forget)
        return -ENOMEM;
    forget->io.ops = &forget_ops;
    forget->execute = *execute;
    pthread_mutex_init(&forget->flushing, NULL);
    pthread_rwlock_init(&forget->held_lock, NULL);
    fb_list_init(&forget->held);
    forget->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = forget->event_fd < 0 ? -errno : 0;
    if (rc == 0)
        rc = fb_pool_open(threads, work, forget, forget->event_fd, &forget->pool);
    if (rc != 0) {
        forget_close(&forget->io);
        return rc;
    }
    *out = &forget->io;
    return 0;
}

#endif
