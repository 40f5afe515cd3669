/*
 * Requests for metadata, errors of the device, and "no space".
 *
 * A transfer may be longer than one request and may come back short; it is resumed until it is
 * complete or makes no progress. A read past the end of the file gives zeros: the file is grown by
 * segments, and what was never written is empty. A write that finds no space is parked and sent
 * again later; that is no error of the device.
 */
#include <errno.h>
#include <string.h>

#include "engine/log_private.h"

bool fb_log_is_no_space(int64_t result)
{
    return result == -ENOSPC || result == -EDQUOT || result == -EFBIG;
}

static void submit_piece(struct fb_log *log, struct fb_log_meta *meta)
{
    bool is_read = meta->op == FB_IO_READ;
    uint64_t piece = is_read ? FB_LOG_META_READ_PIECE : FB_LOG_META_WRITE_PIECE;
    uint32_t len = (uint32_t)fb_min_u64(meta->bytes - meta->moved, piece);
    meta->vec =
        (struct fb_io_vec){.off = meta->memory_off + meta->moved, .len = len, .space = meta->space};
    meta->req = (struct fb_io_req){.op = meta->op,
                                   .device = log->config.device,
                                   .vec_count = 1,
                                   .device_off = meta->device_off + meta->moved,
                                   .len = len,
                                   .vec = &meta->vec,
                                   .cookie = FB_LOG_COOKIE | FB_LOG_REQ_META};
    log->meta_out++;
    fb_sched_push(&log->sched, FB_SCHED_META, log->now_ns, &meta->req);
}

static void begin(struct fb_log *log, struct fb_log_meta *meta, enum fb_io_op op, uint8_t *at,
                  const struct fb_io_vec *run, uint64_t device_off, fb_log_meta_done *done)
{
    FB_ASSERT(!meta->is_busy && run->len > 0);
    FB_ASSERT(fb_is_aligned(run->len, FB_BLOCK_BYTES) && fb_is_aligned(device_off, FB_BLOCK_BYTES));
    *meta = (struct fb_log_meta){.done = done,
                                 .at = at,
                                 .device_off = device_off,
                                 .memory_off = run->off,
                                 .failures = log->flush_failures,
                                 .bytes = run->len,
                                 .op = (uint8_t)op,
                                 .space = (uint8_t)run->space,
                                 .is_busy = true};
    fb_link_init(&meta->parked);
    submit_piece(log, meta);
}

void fb_log_meta_start(struct fb_log *log, struct fb_log_meta *meta, enum fb_io_op op,
                       const struct fb_log_buffer *buffer, uint64_t device_off, uint32_t bytes,
                       fb_log_meta_done *done)
{
    struct fb_io_vec run = {.off = buffer->off, .len = bytes, .space = FB_IO_META};
    begin(log, meta, op, buffer->at, &run, device_off, done);
}

void fb_log_meta_start_arena(struct fb_log *log, struct fb_log_meta *meta, enum fb_io_op op,
                             uint64_t arena_off, uint64_t device_off, uint32_t bytes,
                             fb_log_meta_done *done)
{
    struct fb_io_vec run = {.off = arena_off, .len = bytes, .space = FB_IO_ARENA};
    begin(log, meta, op, NULL, &run, device_off, done);
}

static void finish(struct fb_log *log, struct fb_log_meta *meta, int result)
{
    meta->is_busy = false;
    meta->done(log, meta, result);
}

/* The file ends here: the rest of what was asked for is zero. */
static void read_past_end(struct fb_log *log, struct fb_log_meta *meta)
{
    if (meta->space != FB_IO_META) {
        finish(log, meta, -EIO);
        return;
    }
    memset(meta->at + meta->moved, 0, meta->bytes - meta->moved);
    meta->moved = meta->bytes;
    finish(log, meta, 0);
}

static void meta_failed(struct fb_log *log, struct fb_log_meta *meta, int result)
{
    if (meta->op == FB_IO_WRITE && fb_log_is_no_space(result) && !log->is_fenced) {
        fb_list_push_back(&log->parked, &meta->parked);
        fb_log_note_no_space(log);
        return;
    }
    if (meta->op == FB_IO_READ)
        log->stats.read_errors++;
    else
        log->stats.write_errors++;
    fb_log_count_error(log);
    finish(log, meta, result);
}

void fb_log_meta_io_done(struct fb_log *log, struct fb_io_req *req)
{
    struct fb_log_meta *meta = FB_LIST_ITEM(req, struct fb_log_meta, req);
    FB_ASSERT(meta->is_busy && log->meta_out > 0);
    log->meta_out--;
    fb_sched_done(&log->sched, FB_SCHED_META, log->now_ns);
    if (req->result < 0) {
        meta_failed(log, meta, (int)req->result);
        return;
    }
    uint64_t got = fb_min_u64((uint64_t)req->result, req->len);
    if (meta->op == FB_IO_READ)
        log->stats.bytes_read += got;
    else
        log->stats.bytes_written += got;
    if (got < req->len && meta->op == FB_IO_READ && FB_BUG(FB_BUG_SHORT_READ_AS_FULL))
        got = req->len;
    meta->moved += (uint32_t)fb_align_down(got, FB_BLOCK_BYTES);
    if (got < req->len) {
        if (meta->op == FB_IO_READ && got == 0) {
            read_past_end(log, meta);
            return;
        }
        if (++meta->tries > FB_LOG_TRIES_MAX) {
            meta_failed(log, meta, -EIO);
            return;
        }
    }
    if (meta->moved == meta->bytes)
        finish(log, meta, 0);
    else
        submit_piece(log, meta);
}

/* ---- no space ---- */

void fb_log_note_no_space(struct fb_log *log)
{
    log->stats.no_space++;
    if (log->retry_ns != 0)
        return;
    log->retry_wait_ns =
        fb_min_u64(fb_max_u64(2 * log->retry_wait_ns, FB_LOG_RETRY_MIN_NS), FB_LOG_SPACE_RETRY_NS);
    log->retry_ns = fb_add_saturated(log->now_ns, log->retry_wait_ns);
}

void fb_log_resume_no_space(struct fb_log *log)
{
    if (log->retry_ns == 0 || !fb_log_is_due(log->now_ns, log->retry_ns, log->retry_wait_ns))
        return;
    log->retry_ns = 0;
    fb_list_append(&log->resend, &log->no_space);
    struct fb_link *link;
    struct fb_list parked;
    fb_list_init(&parked);
    fb_list_append(&parked, &log->parked);
    while ((link = fb_list_pop_front(&parked)) != NULL)
        submit_piece(log, FB_LIST_ITEM(link, struct fb_log_meta, parked));
}

/* ---- errors ---- */

void fb_log_count_error(struct fb_log *log)
{
    log->errors++;
    log->forgive_ns = fb_add_saturated(log->now_ns, FB_LOG_FORGIVE_NS);
    if (log->errors < log->config.io_errors_to_fence || log->is_fenced)
        return;
    fb_log_fence(log);
}

/* Ends the metadata writes that wait for space. */
static void fail_parked(struct fb_log *log)
{
    struct fb_link *link;
    while ((link = fb_list_pop_front(&log->parked)) != NULL)
        finish(log, FB_LIST_ITEM(link, struct fb_log_meta, parked), -EIO);
}

void fb_log_fence(struct fb_log *log)
{
    log->is_fenced = true;
    if (log->phase != FB_LOG_PHASE_SERVING)
        return;
    for (uint32_t i = 0; i < FB_LOG_WRITERS; i++) {
        if (log->writers[i].state != FB_LOG_WRITER_IDLE)
            fb_log_writer_break(log, &log->writers[i], 0);
    }
    struct fb_io_req *req;
    while ((req = fb_sched_drop_read(&log->sched)) != NULL) {
        struct fb_log_read *read = FB_LIST_ITEM(req, struct fb_log_read, req);
        log->segments[read->addr.segment].readers--;
        fb_link_init(&read->link);
        fb_list_push_back(&log->misses, &read->link);
    }
    fb_list_append(&log->resend, &log->no_space);
    log->retry_ns = 0;
    fail_parked(log);
    fb_log_reclaim_abandon(log);
    fb_log_names_fail(log);
    fb_log_fail_queued(log, FB_IO);
}
