/*
 * fault.c - wraps a backend and makes chosen requests fail. See fault.h.
 *
 * A request that is changed before it reaches the inner backend travels as a shadow: a copy with
 * its own vector, whose cookie finds the way back. A request that is not carried out, or later,
 * waits in a list here; while one does, the event descriptor is kept readable.
 */
#include "io/fault.h"

#ifdef FB_TEST_HOOKS

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "base/bits.h"

#define SHADOWS         64
#define REORDERED_REAPS 4
#define DELAYED_REAPS   256
#define SHORT_BYTES     512 /* what a short request of one page says it has moved */

struct shadow {
    struct fb_io_req req; /* first, so that a shadow is found by its request */
    struct fb_io_req *real;
    int64_t result; /* that the real one gets if the shadow succeeds */
    bool used;
    struct fb_io_vec vec[FB_IO_VEC_MAX];
};

struct fault {
    struct fb_io io;
    struct fb_io *inner;
    struct fb_script script;
    uint64_t submitted[FB_IO_OP_COUNT];
    uint64_t fired;
    uint64_t reaps;
    struct fb_list done;  /* answered here */
    struct fb_list later; /* to be begun when reaps reach backend[0] */
    struct shadow shadows[SHADOWS];
};

static struct fault *fault_of(const struct fb_io *io)
{
    return (struct fault *)((uintptr_t)io - offsetof(struct fault, io));
}

static void wake(struct fault *fault)
{
    const int fd = fb_io_event_fd(fault->inner);
    if (fd >= 0) {
        const int rc = eventfd_write(fd, 1);
        FB_ASSERT(rc == 0);
    }
}

static void answer(struct fault *fault, struct fb_io_req *req, int64_t result)
{
    req->result = result;
    fb_list_push_back(&fault->done, &req->link);
    wake(fault);
}

static void put_off(struct fault *fault, struct fb_io_req *req, uint64_t reaps)
{
    req->backend[0] = fault->reaps + reaps;
    fb_list_push_back(&fault->later, &req->link);
    wake(fault);
}

/* ---- shadows ---- */

static struct shadow *shadow_new(struct fault *fault, struct fb_io_req *real)
{
    for (unsigned i = 0; i < SHADOWS; i++) {
        struct shadow *shadow = &fault->shadows[i];
        if (shadow->used)
            continue;
        shadow->used = true;
        shadow->real = real;
        shadow->req = *real;
        shadow->result = (int64_t)real->len;
        return shadow;
    }
    FB_UNREACHABLE(); /* more faults at once than any script asks for */
}

/* The shadow whose request this is, or NULL. */
static struct shadow *shadow_of(struct fault *fault, struct fb_io_req *req)
{
    const uintptr_t at = (uintptr_t)req;
    const uintptr_t first = (uintptr_t)fault->shadows;
    if (at < first || at >= first + sizeof fault->shadows)
        return NULL;
    return (struct shadow *)req;
}

/* A copy of the request with only its first `pages` pages. */
static struct shadow *shadow_of_pages(struct fault *fault, struct fb_io_req *real, uint64_t pages)
{
    struct shadow *shadow = shadow_new(fault, real);
    uint64_t left = pages * FB_PAGE_BYTES;
    shadow->req.vec = shadow->vec;
    shadow->req.vec_count = 0;
    shadow->req.len = left;
    for (unsigned i = 0; left > 0; i++) {
        struct fb_io_vec *vec = &shadow->vec[shadow->req.vec_count++];
        *vec = real->vec[i];
        vec->len = (uint32_t)fb_min_u64(vec->len, left);
        left -= vec->len;
    }
    return shadow;
}

static void submit_half(struct fault *fault, struct fb_io_req *req, bool is_short)
{
    const uint64_t pages = req->len / FB_PAGE_BYTES;
    struct shadow *shadow = NULL;
    if (pages > 1) {
        shadow = shadow_of_pages(fault, req, pages / 2);
        if (is_short)
            shadow->result = (int64_t)shadow->req.len;
    } else if (is_short) {
        shadow = shadow_new(fault, req);
        shadow->result = SHORT_BYTES;
    } else {
        answer(fault, req, (int64_t)req->len);
        return;
    }
    fb_io_submit(fault->inner, &shadow->req);
}

static void submit_elsewhere(struct fault *fault, struct fb_io_req *req)
{
    struct shadow *shadow = shadow_new(fault, req);
    shadow->req.device_off = req->device_off > 0 ? 0 : req->len;
    fb_io_submit(fault->inner, &shadow->req);
}

/* ---- the backend's functions ---- */

static void submit_faulty(struct fault *fault, struct fb_io_req *req, enum fb_fault kind)
{
    fault->fired++;
    switch (kind) {
    case FB_FAULT_EIO:
        answer(fault, req, -EIO);
        break;
    case FB_FAULT_ENOSPC:
        answer(fault, req, -ENOSPC);
        break;
    case FB_FAULT_LOST:
        answer(fault, req, (int64_t)req->len);
        break;
    case FB_FAULT_LYING:
        answer(fault, req, 0);
        break;
    case FB_FAULT_SHORT:
    case FB_FAULT_TORN:
        submit_half(fault, req, kind == FB_FAULT_SHORT);
        break;
    case FB_FAULT_MISDIRECTED:
        submit_elsewhere(fault, req);
        break;
    case FB_FAULT_REORDERED:
        put_off(fault, req, REORDERED_REAPS);
        break;
    case FB_FAULT_DELAYED:
        put_off(fault, req, DELAYED_REAPS);
        break;
    default:
        FB_UNREACHABLE();
    }
}

static void fault_submit(struct fb_io *io, struct fb_io_req *req)
{
    struct fault *fault = fault_of(io);
    const enum fb_fault kind =
        fb_script_fault(&fault->script, req->op, ++fault->submitted[req->op]);
    fb_link_init(&req->link);
    if (kind == FB_FAULT_NONE)
        fb_io_submit(fault->inner, req);
    else
        submit_faulty(fault, req, kind);
}

/* The real request of a shadow that has come back. */
static struct fb_io_req *unmask(struct fault *fault, struct fb_io_req *req)
{
    struct shadow *shadow = shadow_of(fault, req);
    if (!shadow)
        return req;
    struct fb_io_req *real = shadow->real;
    real->result = req->result < 0 ? req->result : shadow->result;
    /* It could move less than the script wanted: the end of the file. */
    if (req->result >= 0 && req->result < (int64_t)req->len)
        real->result = (int64_t)fb_min_u64((uint64_t)req->result, (uint64_t)shadow->result);
    shadow->used = false;
    return real;
}

static void begin_later(struct fault *fault)
{
    FB_LIST_FOREACH_SAFE (link, following, &fault->later) {
        struct fb_io_req *req = FB_LIST_ITEM(link, struct fb_io_req, link);
        if (req->backend[0] > fault->reaps)
            continue;
        fb_list_remove(link);
        fb_io_submit(fault->inner, req);
    }
}

static size_t fault_reap(struct fb_io *io, struct fb_io_req **out, size_t max)
{
    struct fault *fault = fault_of(io);
    size_t count = 0;
    fault->reaps++;
    begin_later(fault);
    while (count < max) {
        struct fb_link *link = fb_list_pop_front(&fault->done);
        if (!link)
            break;
        out[count++] = FB_LIST_ITEM(link, struct fb_io_req, link);
    }
    const size_t own = count;
    count += fb_io_reap(fault->inner, out + count, max - count);
    for (size_t i = own; i < count; i++)
        out[i] = unmask(fault, out[i]);
    io->stats = fault->inner->stats;
    if (!fb_list_is_empty(&fault->done) || !fb_list_is_empty(&fault->later))
        wake(fault);
    return count;
}

static void fault_kick(struct fb_io *io)
{
    fb_io_kick(fault_of(io)->inner);
}

static void fault_faulted(struct fb_io *io, uint64_t arena_bytes)
{
    fb_io_faulted(fault_of(io)->inner, arena_bytes);
}

static int fault_event_fd(struct fb_io *io)
{
    return fb_io_event_fd(fault_of(io)->inner);
}

static void fault_close(struct fb_io *io)
{
    struct fault *fault = fault_of(io);
    fb_io_close(fault->inner);
    free(fault);
}

static const struct fb_io_ops fault_ops = {
    .name = "fault",
    .submit = fault_submit,
    .reap = fault_reap,
    .kick = fault_kick,
    .faulted = fault_faulted,
    .event_fd = fault_event_fd,
    .close = fault_close,
};

int fb_fault_open(struct fb_io *inner, const struct fb_script *script, struct fb_io **out)
{
    for (uint32_t i = 0; i < script->rule_count; i++) {
        if (script->rules[i].fault == FB_FAULT_STALE)
            return -EINVAL;
    }
    struct fault *fault = calloc(1, sizeof *fault);
    if (!fault)
        return -ENOMEM;
    fault->io.ops = &fault_ops;
    fault->inner = inner;
    fault->script = *script;
    fb_list_init(&fault->done);
    fb_list_init(&fault->later);
    *out = &fault->io;
    return 0;
}

uint64_t fb_fault_submitted(const struct fb_io *io, enum fb_io_op op)
{
    FB_ASSERT(io->ops == &fault_ops && op < FB_IO_OP_COUNT);
    return fault_of(io)->submitted[op];
}

uint64_t fb_fault_fired(const struct fb_io *io)
{
    FB_ASSERT(io->ops == &fault_ops);
    return fault_of(io)->fired;
}

#endif
