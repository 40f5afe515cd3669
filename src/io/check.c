/*
 * check.c - assertions on requests, and counting. See check.h.
 */
#include "io/check.h"

#include "base/bits.h"

#if defined(__SANITIZE_ADDRESS__)
#define HAS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAS_ASAN 1
#endif
#endif

#ifdef HAS_ASAN
#include <sanitizer/asan_interface.h>

static void check_poison(const void *memory, size_t bytes)
{
    FB_ASSERT(!__asan_region_is_poisoned((void *)(uintptr_t)memory, bytes));
}
#else
static void check_poison(const void *memory, size_t bytes)
{
    (void)memory;
    (void)bytes;
}
#endif

static void check_vec(const struct fb_io_memory *memory, const struct fb_io_req *req,
                      const struct fb_io_vec *vec)
{
    FB_ASSERT(vec->space <= FB_IO_META);
    FB_ASSERT(vec->len > 0);
    FB_ASSERT(vec->off <= memory->bytes[vec->space]);
    FB_ASSERT(vec->len <= memory->bytes[vec->space] - vec->off);
    FB_ASSERT(fb_is_aligned(vec->off, FB_PAGE_BYTES));
    if (req->op == FB_IO_HASH)
        FB_ASSERT(vec->space == FB_IO_ARENA);
    else
        FB_ASSERT(fb_is_aligned(vec->len, FB_PAGE_BYTES));
    if (memory->base[vec->space])
        check_poison(memory->base[vec->space] + vec->off, vec->len);
}

void fb_check_request(const struct fb_io_memory *memory, const struct fb_io_req *req)
{
    FB_ASSERT(req->op < FB_IO_OP_COUNT);
    if (req->op != FB_IO_HASH)
        FB_ASSERT(req->device < memory->device_count);
    if (req->op == FB_IO_FLUSH || req->op == FB_IO_GROW)
        return;
    FB_ASSERT(req->vec_count >= 1 && req->vec_count <= FB_IO_VEC_MAX);
    FB_ASSERT(fb_is_aligned(req->device_off, FB_BLOCK_BYTES));
    uint64_t sum = 0;
    for (unsigned i = 0; i < req->vec_count; i++) {
        check_vec(memory, req, &req->vec[i]);
        sum += req->vec[i].len;
        /* Only the last element of a hash ends inside a page. */
        FB_ASSERT(i + 1 == req->vec_count || fb_is_aligned(req->vec[i].len, FB_PAGE_BYTES));
    }
    FB_ASSERT(sum == req->len && sum <= FB_IO_BYTES_MAX);
    if (req->op == FB_IO_HASH) {
        FB_ASSERT(req->leaf_count >= fb_div_up(req->len, FB_LEAF_BYTES));
        check_poison(req->leaf_out, req->leaf_count * sizeof *req->leaf_out);
    }
}

void fb_check_count(struct fb_io_stats *stats, const struct fb_io_req *req, bool direct)
{
    FB_ASSERT(req->op < FB_IO_OP_COUNT);
    stats->done[req->op]++;
    if (req->result < 0) {
        stats->failed[req->op]++;
        return;
    }
    const uint64_t moved = (uint64_t)req->result;
    if (req->op == FB_IO_READ) {
        stats->read_bytes += moved;
        stats->read_bytes_direct += direct ? moved : 0;
    } else if (req->op == FB_IO_WRITE) {
        stats->write_bytes += moved;
        stats->write_bytes_direct += direct ? moved : 0;
    } else {
        return;
    }
    FB_ASSERT(moved <= req->len);
    stats->shorts += moved < req->len;
}
