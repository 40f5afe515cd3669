/*
 * Reads of values. A read pins its segment from the call to the answer, so that the segment cannot
 * be opened anew meanwhile; the incarnation is checked before the device is asked and again when
 * the bytes have come. A short read is repeated whole, and is never taken for a full one.
 */
#include "engine/log_private.h"

/*
 * True if an address points into what its segment holds now. A segment that was given up while it
 * was read still holds it: the pin keeps it from being opened anew.
 */
static bool is_current(const struct fb_log *log, const struct fb_log_addr *addr)
{
    if (addr->segment >= log->geometry.segments || addr->device != log->config.device)
        return false;
    const struct fb_log_segment *segment = &log->segments[addr->segment];
    if (FB_BUG(FB_BUG_TRUST_STALE_INCARNATION))
        return segment->state != FB_LOG_SEG_UNUSED;
    return addr->incarnation != 0 && segment->incarnation == addr->incarnation;
}

static void send(struct fb_log *log, struct fb_log_read *read)
{
    uint64_t block = (uint64_t)read->addr.block + read->block_offset;
    read->req = (struct fb_io_req){.op = FB_IO_READ,
                                   .device = log->config.device,
                                   .vec_count = read->vec_count,
                                   .device_off = fb_log_segment_off(log, read->addr.segment) +
                                                 block * FB_BLOCK_BYTES,
                                   .len = read->bytes,
                                   .vec = read->vec,
                                   .cookie = FB_LOG_COOKIE | FB_LOG_REQ_READ};
    fb_sched_push(&log->sched, FB_SCHED_READ, log->now_ns, &read->req);
}

/* True if the read lies within its segment: what the owner asks for is its own index's word. */
static bool is_in_segment(const struct fb_log *log, const struct fb_log_read *read)
{
    uint64_t end = (uint64_t)read->addr.block + read->block_offset + fb_log_blocks(read->bytes);
    return read->addr.block >= FB_LOG_HEADER_BLOCKS && end <= log->segment_blocks;
}

void fb_log_read(struct fb_log *log, uint64_t now_ns, struct fb_log_read *read)
{
    FB_ASSERT(read->bytes > 0 && fb_is_aligned(read->bytes, FB_BLOCK_BYTES));
    FB_ASSERT(read->vec_count > 0 && read->vec_count <= FB_LOG_VEC_MAX);
    log->now_ns = now_ns;
    log->depth++;
    log->stats.reads++;
    log->reads_out++;
    read->retries = 0;
    fb_link_init(&read->link);
    bool is_given_up = read->addr.segment < log->geometry.segments &&
                       !fb_log_is_alive(&log->segments[read->addr.segment]) &&
                       !FB_BUG(FB_BUG_TRUST_STALE_INCARNATION);
    if (log->is_fenced || is_given_up || !is_current(log, &read->addr) ||
        !is_in_segment(log, read)) {
        fb_list_push_back(&log->misses, &read->link);
    } else {
        log->segments[read->addr.segment].readers++;
        send(log, read);
    }
    fb_log_leave(log);
}

static void answer(struct fb_log *log, struct fb_log_read *read, int result)
{
    FB_ASSERT(log->reads_out > 0);
    log->reads_out--;
    log->owner.read_done(log->owner.ctx, read, result);
}

static void unpin(struct fb_log *log, const struct fb_log_read *read)
{
    struct fb_log_segment *segment = &log->segments[read->addr.segment];
    if (FB_BUG(FB_BUG_REUSE_BEFORE_UNPIN) && segment->readers == 0)
        return;
    FB_ASSERT(segment->readers > 0);
    segment->readers--;
}

bool fb_log_read_pump(struct fb_log *log)
{
    struct fb_link *link;
    bool moved = false;
    while ((link = fb_list_pop_front(&log->misses)) != NULL) {
        struct fb_log_read *read = FB_LIST_ITEM(link, struct fb_log_read, link);
        moved = true;
        if (log->is_fenced) {
            answer(log, read, FB_IO);
        } else {
            log->stats.stale_incarnation++;
            answer(log, read, FB_MISS);
        }
    }
    return moved;
}

/* The result of a finished request: true if the read goes again. */
static bool is_repeated(struct fb_log *log, struct fb_log_read *read, int *result)
{
    const struct fb_io_req *req = &read->req;
    *result = 0;
    if (req->result < 0) {
        log->stats.read_errors++;
        fb_log_count_error(log);
        *result = FB_IO;
        return false;
    }
    log->stats.bytes_read += (uint64_t)req->result;
    if ((uint64_t)req->result >= req->len)
        return false;
    log->stats.short_reads++;
    if (FB_BUG(FB_BUG_SHORT_READ_AS_FULL))
        return false;
    if (read->retries < FB_LOG_READ_RETRIES && !log->is_fenced) {
        read->retries++;
        return true;
    }
    log->stats.read_errors++;
    *result = FB_IO;
    return false;
}

void fb_log_read_io_done(struct fb_log *log, struct fb_io_req *req)
{
    struct fb_log_read *read = FB_LIST_ITEM(req, struct fb_log_read, req);
    fb_sched_done(&log->sched, FB_SCHED_READ, log->now_ns);
    int result;
    if (is_repeated(log, read, &result)) {
        send(log, read);
        return;
    }
    unpin(log, read);
    if (result == 0 && !is_current(log, &read->addr) && !FB_BUG(FB_BUG_REUSE_BEFORE_UNPIN)) {
        log->stats.stale_incarnation++;
        result = FB_MISS;
    }
    answer(log, read, result);
}
