/*
 * uring.c - the backend on io_uring. See uring.h.
 *
 * Entries are filled at submit and handed to the kernel FB_URING_BATCH at a time, or at reap or
 * kick. The kernel copies the vectors of an entry when it takes it (IORING_FEAT_SUBMIT_STABLE), so
 * there is one array of vectors for each entry that was filled and not taken yet, in a circle.
 *
 * One eventfd serves ring and pool. Reap reads it before it looks at the ring, so that a completion
 * which comes meanwhile makes it readable again.
 *
 * Memory is registered so that the kernel need not pin it anew for each request, which is most of
 * the CPU time of a large one. Piece 0 is the metadata, the others are the arena in order. The pool
 * registers the arena in the background, one run of it at a time: `job` is a request of the
 * backend's own that never reaches its owner. Only requests of one run of memory that lies in one
 * piece use this; the others work as before.
 *
 * A completion with -EAGAIN or -EINTR has done nothing, and says nothing of the device; the entry
 * is filled again, RETRIES_MAX times.
 */
#include "io/uring.h"

#include <errno.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/bits.h"
#include "base/size.h"
#include "io/pool.h"

#define RETRIES_MAX  8
#define META_PIECE   0
#define PIECE_MAX    FB_GIB(1) /* the kernel registers no longer one */
#define CLOSE_WAIT_S 30
#define SETUP_FLAGS \
    (IORING_SETUP_SUBMIT_ALL | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG)
#define LINE_BYTES 256

struct uring {
    struct fb_io io;
    struct fb_execute execute;
    struct io_uring ring;
    bool has_ring;
    int event_fd;
    struct fb_pool *pool;
    uint32_t depth;
    uint32_t in_ring;                   /* entries filled and not completed */
    uint32_t untaken;                   /* of these: not handed to the kernel yet */
    uint32_t next_iov;                  /* which array the next entry uses */
    struct fb_list backlog;             /* requests beyond the depth */
    struct iovec (*iov)[FB_IO_VEC_MAX]; /* FB_URING_BATCH arrays */

    fb_device_say_fn *say;
    void *say_context;
    uint64_t piece_bytes;      /* 0: nothing is registered */
    uint64_t faulted_bytes;    /* of the arena, as the owner says */
    uint64_t registered_bytes; /* of the arena, as far as this thread knows */
    struct fb_io_req job;      /* registers from device_off to len, both bytes of the arena */
    bool job_runs;
};

static struct uring *uring_of(struct fb_io *io)
{
    return (struct uring *)((uint8_t *)io - offsetof(struct uring, io));
}

static struct iovec piece_of(const struct uring *uring, uint64_t off)
{
    const struct fb_io_memory *memory = &uring->execute.memory;
    return (struct iovec){.iov_base = memory->base[FB_IO_ARENA] + off,
                          .iov_len =
                              fb_min_u64(memory->bytes[FB_IO_ARENA] - off, uring->piece_bytes)};
}

/* Registers one piece. Returns 0 or -errno. */
static int register_piece(struct uring *uring, unsigned piece, const struct iovec *memory)
{
    const int rc = io_uring_register_buffers_update_tag(&uring->ring, piece, memory, NULL, 1);
    return rc < 0 ? rc : 0;
}

/* On a thread of the pool: pins pieces of the arena. The result is where it came to, or -errno. */
static int64_t run_job(struct uring *uring)
{
    uint64_t off = uring->job.device_off;
    for (; off < uring->job.len; off += uring->piece_bytes) {
        const struct iovec piece = piece_of(uring, off);
        const int rc =
            register_piece(uring, META_PIECE + 1 + (unsigned)(off / uring->piece_bytes), &piece);
        if (rc != 0)
            return rc;
    }
    return (int64_t)fb_min_u64(off, uring->execute.memory.bytes[FB_IO_ARENA]);
}

static void pool_work(void *context, struct fb_io_req *req)
{
    struct uring *uring = context;
    req->result = req == &uring->job ? run_job(uring) : fb_execute_request(&uring->execute, req);
}

/* ---- filling entries ---- */

/* The number of the registered piece that holds a run of memory whole, or -1. */
static int fixed_piece(const struct uring *uring, const struct fb_io_vec *vec)
{
    if (uring->piece_bytes == 0)
        return -1;
    if (vec->space == FB_IO_META)
        return META_PIECE;
    const uint64_t first = vec->off / uring->piece_bytes;
    const uint64_t last = (vec->off + vec->len - 1) / uring->piece_bytes;
    if (first != last || vec->off + vec->len > uring->registered_bytes)
        return -1;
    return META_PIECE + 1 + (int)first;
}

static void fill_single(struct uring *uring, struct io_uring_sqe *sqe, const struct fb_io_req *req)
{
    const int fd = uring->execute.devices[req->device].fd;
    uint8_t *at = fb_check_address(&uring->execute.memory, req->vec);
    const int piece = fixed_piece(uring, req->vec);
    const unsigned len = req->vec->len;
    if (req->op == FB_IO_READ && piece >= 0)
        io_uring_prep_read_fixed(sqe, fd, at, len, req->device_off, piece);
    else if (req->op == FB_IO_READ)
        io_uring_prep_read(sqe, fd, at, len, req->device_off);
    else if (piece >= 0)
        io_uring_prep_write_fixed(sqe, fd, at, len, req->device_off, piece);
    else
        io_uring_prep_write(sqe, fd, at, len, req->device_off);
}

static void fill_vector(struct uring *uring, struct io_uring_sqe *sqe, const struct fb_io_req *req)
{
    const int fd = uring->execute.devices[req->device].fd;
    struct iovec *iov = uring->iov[uring->next_iov];
    for (unsigned i = 0; i < req->vec_count; i++) {
        iov[i].iov_base = fb_check_address(&uring->execute.memory, &req->vec[i]);
        iov[i].iov_len = req->vec[i].len;
    }
    if (req->op == FB_IO_READ)
        io_uring_prep_readv(sqe, fd, iov, req->vec_count, req->device_off);
    else
        io_uring_prep_writev(sqe, fd, iov, req->vec_count, req->device_off);
}

static void wake_owner(struct uring *uring)
{
    const int rc = eventfd_write(uring->event_fd, 1);
    FB_ASSERT(rc == 0);
}

/*
 * Hands filled entries to the kernel. What it does not take, being busy or out of memory for the
 * moment, stays for the next call; the owner is woken for it, since perhaps nothing else will.
 */
static void hand_over(struct uring *uring)
{
    if (uring->untaken == 0)
        return;
    const int taken = io_uring_submit(&uring->ring);
    if (taken < 0)
        FB_ASSERT(taken == -EAGAIN || taken == -EBUSY || taken == -EINTR || taken == -ENOMEM);
    else
        uring->untaken -= (uint32_t)taken;
    FB_ASSERT(uring->untaken <= FB_URING_BATCH);
    if (uring->untaken > 0)
        wake_owner(uring);
}

static bool has_room(const struct uring *uring)
{
    return uring->in_ring < uring->depth && uring->untaken < FB_URING_BATCH;
}

static void fill(struct uring *uring, struct fb_io_req *req)
{
    FB_ASSERT(has_room(uring));
    struct io_uring_sqe *sqe = io_uring_get_sqe(&uring->ring);
    FB_ASSERT(sqe);
    if (req->op == FB_IO_FLUSH)
        io_uring_prep_fsync(sqe, uring->execute.devices[req->device].fd, IORING_FSYNC_DATASYNC);
    else if (req->vec_count == 1)
        fill_single(uring, sqe, req);
    else
        fill_vector(uring, sqe, req);
    io_uring_sqe_set_data(sqe, req);
    uring->next_iov = (uring->next_iov + 1) % FB_URING_BATCH;
    uring->in_ring++;
    uring->untaken++;
    struct fb_io_stats *stats = &uring->io.stats;
    if (req->op == FB_IO_READ && ++stats->reads_in_flight > stats->read_depth_max)
        stats->read_depth_max = stats->reads_in_flight;
    if (uring->untaken == FB_URING_BATCH)
        hand_over(uring);
}

/* Fills entries from the backlog as long as there is room, and hands them over. */
static void start_backlog(struct uring *uring)
{
    while (has_room(uring)) {
        struct fb_link *link = fb_list_pop_front(&uring->backlog);
        if (!link)
            break;
        fill(uring, FB_LIST_ITEM(link, struct fb_io_req, link));
    }
    hand_over(uring);
}

/* ---- the backend's functions ---- */

static void uring_submit(struct fb_io *io, struct fb_io_req *req)
{
    struct uring *uring = uring_of(io);
    fb_check_request(&uring->execute.memory, req);
    /* What may never be done, or blocks, goes to the pool, which answers in the usual way. */
    if (req->op == FB_IO_HASH || req->op == FB_IO_GROW ||
        !fb_execute_is_below_cap(&uring->execute, req)) {
        fb_pool_submit(uring->pool, req);
        return;
    }
    fb_link_init(&req->link);
    req->backend[0] = 0; /* how often it was tried again */
    if (has_room(uring) && fb_list_is_empty(&uring->backlog))
        fill(uring, req);
    else
        fb_list_push_back(&uring->backlog, &req->link);
}

/* Takes note of one completion; false if the request goes round again. */
static bool finish(struct uring *uring, struct fb_io_req *req, int result)
{
    FB_ASSERT(uring->in_ring > 0);
    uring->in_ring--;
    if (req->op == FB_IO_READ)
        uring->io.stats.reads_in_flight--;
    if ((result == -EAGAIN || result == -EINTR) && req->backend[0] < RETRIES_MAX) {
        req->backend[0]++;
        fb_list_push_back(&uring->backlog, &req->link);
        return false;
    }
    req->result = result < 0 ? fb_execute_error(-result) : result;
    return true;
}

static size_t reap_ring(struct uring *uring, struct fb_io_req **out, size_t max)
{
    size_t count = 0;
    struct io_uring_cqe *cqe;
    while (count < max && io_uring_peek_cqe(&uring->ring, &cqe) == 0) {
        struct fb_io_req *req = io_uring_cqe_get_data(cqe);
        const int result = cqe->res;
        io_uring_cqe_seen(&uring->ring, cqe);
        if (finish(uring, req, result))
            out[count++] = req;
    }
    return count;
}

static void say_not_fixed(const struct uring *uring, int rc)
{
    char line[LINE_BYTES];
    char limit[FB_SIZE_TEXT_BYTES];
    struct rlimit memlock = {0};
    getrlimit(RLIMIT_MEMLOCK, &memlock);
    if (memlock.rlim_cur == RLIM_INFINITY)
        snprintf(limit, sizeof limit, "none");
    else
        fb_size_print(limit, sizeof limit, memlock.rlim_cur);
    snprintf(line, sizeof line,
             "io_uring: no fixed buffers%s: %s (%s; memlock limit %s, raised with ulimit -l or "
             "LimitMEMLOCK=)",
             uring->registered_bytes > 0 ? " for the rest of the pool" : "", strerror(-rc),
             rc == -EINVAL ? "they need Linux 5.19" : "I/O works, and takes more CPU", limit);
    if (uring->say)
        uring->say(uring->say_context, line);
}

/* Has the next pieces registered that are backed by memory, if nothing is on its way already. */
static void start_job(struct uring *uring)
{
    const uint64_t arena_bytes = uring->execute.memory.bytes[FB_IO_ARENA];
    if (uring->piece_bytes == 0 || uring->job_runs)
        return;
    uint64_t end = uring->faulted_bytes - uring->faulted_bytes % uring->piece_bytes;
    if (uring->faulted_bytes == arena_bytes)
        end = arena_bytes; /* the last piece may be a shorter one */
    if (end <= uring->registered_bytes)
        return;
    uring->job =
        (struct fb_io_req){.op = FB_IO_GROW, .device_off = uring->registered_bytes, .len = end};
    uring->job_runs = true;
    fb_pool_submit(uring->pool, &uring->job);
}

/* Takes the backend's own job out of what the pool has done; returns how many are left. */
static size_t without_job(struct uring *uring, struct fb_io_req **out, size_t count)
{
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (out[i] != &uring->job) {
            out[kept++] = out[i];
            continue;
        }
        uring->job_runs = false;
        if (uring->job.result > 0) {
            uring->registered_bytes = (uint64_t)uring->job.result;
            start_job(uring);
        } else {
            say_not_fixed(uring, (int)uring->job.result);
            uring->faulted_bytes = 0; /* it would fail again */
        }
    }
    return kept;
}

static void uring_faulted(struct fb_io *io, uint64_t arena_bytes)
{
    struct uring *uring = uring_of(io);
    FB_ASSERT(arena_bytes <= uring->execute.memory.bytes[FB_IO_ARENA]);
    uring->faulted_bytes = fb_max_u64(uring->faulted_bytes, arena_bytes);
    start_job(uring);
}

static size_t uring_reap(struct fb_io *io, struct fb_io_req **out, size_t max)
{
    struct uring *uring = uring_of(io);
    eventfd_t value;
    const int rc = eventfd_read(uring->event_fd, &value);
    FB_ASSERT(rc == 0 || errno == EAGAIN);
    hand_over(uring);
    size_t count = without_job(uring, out, fb_pool_reap(uring->pool, out, max));
    count += reap_ring(uring, out + count, max - count);
    start_backlog(uring);
    if (count == max && max > 0)
        wake_owner(uring); /* there may be more, and the descriptor was cleared */
    for (size_t i = 0; i < count; i++)
        fb_check_count(&io->stats, out[i], fb_execute_is_direct(&uring->execute, out[i]));
    return count;
}

static void uring_kick(struct fb_io *io)
{
    start_backlog(uring_of(io));
}

static int uring_event_fd(struct fb_io *io)
{
    return uring_of(io)->event_fd;
}

/* Lets the ring run dry: the kernel must not write into memory that is about to be freed. */
static void run_dry(struct uring *uring)
{
    struct __kernel_timespec limit = {.tv_sec = CLOSE_WAIT_S};
    uring->depth = UINT32_MAX; /* what went round again is not started any more */
    fb_list_init(&uring->backlog);
    hand_over(uring);
    while (uring->in_ring > 0) {
        struct io_uring_cqe *cqe;
        const int rc = io_uring_wait_cqe_timeout(&uring->ring, &cqe, &limit);
        if (rc == -EINTR)
            continue;
        if (rc != 0)
            break; /* the device hangs: the kernel ends what is left when the ring goes */
        struct fb_io_req *req = io_uring_cqe_get_data(cqe);
        io_uring_cqe_seen(&uring->ring, cqe);
        finish(uring, req, -ECANCELED);
    }
}

static void uring_close(struct fb_io *io)
{
    struct uring *uring = uring_of(io);
    /* The pool first: it may be registering memory with the ring. */
    if (uring->pool)
        fb_pool_close(uring->pool);
    if (uring->has_ring) {
        run_dry(uring);
        io_uring_queue_exit(&uring->ring);
    }
    if (uring->event_fd >= 0)
        close(uring->event_fd);
    free(uring->iov);
    free(uring);
}

static const struct fb_io_ops uring_ops = {
    .name = "uring",
    .submit = uring_submit,
    .reap = uring_reap,
    .kick = uring_kick,
    .faulted = uring_faulted,
    .event_fd = uring_event_fd,
    .close = uring_close,
};

/* ---- opening ---- */

static int set_up_ring(struct uring *uring, char *why, size_t why_bytes)
{
    struct io_uring_params params = {.flags = SETUP_FLAGS};
    int rc = io_uring_queue_init_params(uring->depth, &uring->ring, &params);
    if (rc == -EINVAL) {
        /* An older kernel: these flags only save work. */
        memset(&params, 0, sizeof params);
        rc = io_uring_queue_init_params(uring->depth, &uring->ring, &params);
    }
    if (rc != 0) {
        snprintf(why, why_bytes, "io_uring cannot be set up: %s; %s, or set --io=posix",
                 strerror(-rc),
                 rc == -EPERM || rc == -EACCES
                     ? "allow it (kernel.io_uring_disabled, seccomp profile of the container)"
                 : rc == -ENOMEM ? "raise the memlock limit"
                                 : "use Linux 5.10 or later");
        return rc;
    }
    uring->has_ring = true;
    const unsigned needed = IORING_FEAT_SUBMIT_STABLE | IORING_FEAT_NODROP;
    if ((params.features & needed) == needed)
        return 0;
    snprintf(why, why_bytes,
             "io_uring of this kernel is too old; use Linux 5.10 or later, or set --io=posix");
    return -EINVAL;
}

/* What this backend asks of a ring. */
static const struct {
    uint8_t code;
    const char *name;
} needed_ops[] = {
    {IORING_OP_READ, "READ"},   {IORING_OP_READ_FIXED, "READ_FIXED"},
    {IORING_OP_WRITE, "WRITE"}, {IORING_OP_WRITE_FIXED, "WRITE_FIXED"},
    {IORING_OP_READV, "READV"}, {IORING_OP_WRITEV, "WRITEV"},
    {IORING_OP_FSYNC, "FSYNC"},
};

/*
 * Asks the kernel which operations it has: one that is missing would fail each request, for as long
 * as the process lives. Returns 0 or -errno with one line in `why`.
 */
static int probe_ops(struct uring *uring, const struct fb_uring_config *config, char *why,
                     size_t why_bytes)
{
    struct io_uring_probe *probe = io_uring_get_probe_ring(&uring->ring);
    if (!probe) {
        snprintf(
            why, why_bytes,
            "io_uring does not say what it can do; use Linux 5.10 or later, or set --io=posix");
        return -EOPNOTSUPP;
    }
    int rc = 0;
    for (size_t i = 0; i < FB_ARRAY_COUNT(needed_ops) && rc == 0; i++)
        if (!io_uring_opcode_supported(probe, needed_ops[i].code) ||
            (config->missing_ops >> needed_ops[i].code & 1) != 0) {
            snprintf(
                why, why_bytes,
                "io_uring of this kernel has no %s; use Linux 5.10 or later, or set --io=posix",
                needed_ops[i].name);
            rc = -EOPNOTSUPP;
        }
    io_uring_free_probe(probe);
    return rc;
}

/* Prepares the table of pieces and registers the metadata; or says why not. */
static void set_up_fixed(struct uring *uring, const struct fb_uring_config *config)
{
    const struct fb_io_memory *memory = &uring->execute.memory;
    uint64_t piece_bytes = config->piece_bytes ? config->piece_bytes : FB_URING_PIECE_BYTES;
    while (fb_div_up(memory->bytes[FB_IO_ARENA], piece_bytes) > FB_URING_PIECES_MAX)
        piece_bytes *= 2;
    if (config->no_fixed || piece_bytes > PIECE_MAX || memory->bytes[FB_IO_META] > PIECE_MAX)
        return;
    const unsigned pieces = 1 + (unsigned)fb_div_up(memory->bytes[FB_IO_ARENA], piece_bytes);
    int rc = io_uring_register_buffers_sparse(&uring->ring, META_PIECE + pieces);
    if (rc == 0 && memory->bytes[FB_IO_META] > 0) {
        const struct iovec meta = {memory->base[FB_IO_META], memory->bytes[FB_IO_META]};
        rc = register_piece(uring, META_PIECE, &meta);
    }
    if (rc == 0)
        uring->piece_bytes = piece_bytes;
    else
        say_not_fixed(uring, rc);
}

static int set_up_rest(struct uring *uring, char *why, size_t why_bytes)
{
    uring->iov = calloc(FB_URING_BATCH, sizeof *uring->iov);
    uring->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = !uring->iov ? -ENOMEM : uring->event_fd < 0 ? -errno : 0;
    if (rc == 0)
        rc = io_uring_register_eventfd(&uring->ring, uring->event_fd);
    if (rc == 0)
        rc = fb_pool_open(FB_URING_THREADS, pool_work, uring, uring->event_fd, &uring->pool);
    if (rc != 0)
        snprintf(why, why_bytes, "io_uring: eventfd or helper threads: %s; set --io=posix",
                 strerror(-rc));
    return rc;
}

int fb_uring_open(const struct fb_execute *execute, const struct fb_uring_config *config,
                  struct fb_io **out, char *why, size_t why_bytes)
{
    FB_ASSERT(config->depth <= FB_URING_DEPTH_MAX);
    struct uring *uring = calloc(1, sizeof *uring);
    if (!uring) {
        snprintf(why, why_bytes, "io_uring: no memory");
        return -ENOMEM;
    }
    uring->io.ops = &uring_ops;
    uring->execute = *execute;
    uring->depth = config->depth ? config->depth : FB_URING_DEPTH_DEFAULT;
    uring->event_fd = -1;
    uring->say = config->say;
    uring->say_context = config->say_context;
    fb_list_init(&uring->backlog);
    int rc = set_up_ring(uring, why, why_bytes);
    if (rc == 0)
        rc = probe_ops(uring, config, why, why_bytes);
    if (rc == 0)
        rc = set_up_rest(uring, why, why_bytes);
    if (rc != 0) {
        uring_close(&uring->io);
        return rc;
    }
    set_up_fixed(uring, config);
    *out = &uring->io;
    return 0;
}
