/*
 * execute.c - carries out requests by plain calls. See execute.h.
 */
#include "io/execute.h"

#include <errno.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/bits.h"
#include "base/hash.h"

#define EINTR_MAX 100

int fb_execute_error(int error)
{
    FB_ASSERT(error > 0);
    return error == EDQUOT || error == EFBIG ? -ENOSPC : -error;
}

bool fb_execute_is_direct(const struct fb_execute *execute, const struct fb_io_req *req)
{
    const bool moves = req->op == FB_IO_READ || req->op == FB_IO_WRITE;
    return moves && execute->devices[req->device].is_direct;
}

bool fb_execute_is_below_cap(const struct fb_execute *execute, const struct fb_io_req *req)
{
    const uint64_t cap_bytes = execute->devices[req->device].cap_bytes;
    return req->op != FB_IO_WRITE ||
           (req->device_off <= cap_bytes && req->len <= cap_bytes - req->device_off);
}

static int64_t transfer(const struct fb_execute *execute, const struct fb_io_req *req)
{
    struct iovec iov[FB_IO_VEC_MAX];
    const int fd = execute->devices[req->device].fd;
    if (!fb_execute_is_below_cap(execute, req))
        return -ENOSPC;
    for (unsigned i = 0; i < req->vec_count; i++) {
        iov[i].iov_base = fb_check_address(&execute->memory, &req->vec[i]);
        iov[i].iov_len = req->vec[i].len;
    }
    ssize_t moved = -1;
    errno = EINTR;
    for (unsigned i = 0; i < EINTR_MAX && moved < 0 && errno == EINTR; i++)
        moved = req->op == FB_IO_READ ? preadv(fd, iov, req->vec_count, (off_t)req->device_off)
                                      : pwritev(fd, iov, req->vec_count, (off_t)req->device_off);
    return moved >= 0 ? moved : fb_execute_error(errno);
}

/* Leaves lie across the runs of memory as they like. */
static void hash(const struct fb_execute *execute, const struct fb_io_req *req)
{
    unsigned v = 0;
    uint32_t vec_off = 0;
    for (uint64_t off = 0; off < req->len; off += FB_LEAF_BYTES) {
        struct fb_hash_state state;
        fb_hash_begin(&state, 0);
        uint64_t left = fb_min_u64(req->len - off, FB_LEAF_BYTES);
        while (left > 0) {
            const struct fb_io_vec *vec = &req->vec[v];
            const uint64_t piece = fb_min_u64(left, vec->len - vec_off);
            fb_hash_add(&state, fb_check_address(&execute->memory, vec) + vec_off, piece);
            left -= piece;
            vec_off += (uint32_t)piece;
            if (vec_off == vec->len) {
                v++;
                vec_off = 0;
            }
        }
        req->leaf_out[off / FB_LEAF_BYTES] = fb_hash_finish(&state);
    }
}

int64_t fb_execute_request(const struct fb_execute *execute, const struct fb_io_req *req)
{
    switch (req->op) {
    case FB_IO_READ:
    case FB_IO_WRITE:
        return transfer(execute, req);
    case FB_IO_FLUSH:
        return fdatasync(execute->devices[req->device].fd) == 0 ? 0 : fb_execute_error(errno);
    case FB_IO_GROW:
        return fb_device_grow(&execute->devices[req->device], req->device_off);
    case FB_IO_HASH:
        hash(execute, req);
        return 0;
    default:
        FB_UNREACHABLE();
    }
}
