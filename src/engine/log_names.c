/*
 * The namespace table: replaced as a whole, in both slots, one after the other, under one sequence.
 * The slot that holds a table is overwritten only when the other one holds the new one durably. A
 * change counts when both do: with one slot alone a single bad block would bring the table before
 * it back, and with it old epochs.
 */
#include <errno.h>
#include <string.h>

#include "engine/log_private.h"

static void end(struct fb_log *log, int result)
{
    struct fb_log_names_op *op = &log->names;
    op->is_busy = false;
    if (result == 0) {
        struct fb_log_buffer found = op->found;
        op->found = op->writing;
        op->writing = found;
        op->bytes = op->new_bytes;
    }
    void (*done)(struct fb_log *, int) = op->done;
    op->done = NULL;
    if (done != NULL)
        done(log, result);
}

static void write_slot(struct fb_log *log);

static void table_flushed(struct fb_log *log, struct fb_log_ticket *ticket, int result)
{
    (void)ticket;
    struct fb_log_names_op *op = &log->names;
    if (result == 0) {
        op->slot = FB_LOG_NAMES_SLOTS - 1 - op->slot; /* what was just written */
        op->copies++;
    }
    if (result != 0 || op->copies == FB_LOG_NAMES_SLOTS)
        end(log, result);
    else if (log->is_fenced)
        end(log, -EIO);
    else
        write_slot(log);
}

static void table_written(struct fb_log *log, struct fb_log_meta *meta, int result)
{
    if (result != 0)
        end(log, result);
    else
        fb_log_ticket_start(log, &log->names.ticket, meta->failures, table_flushed);
}

/* Writes the new table to the slot that is not op->slot. */
static void write_slot(struct fb_log *log)
{
    struct fb_log_names_op *op = &log->names;
    const uint8_t *body = op->writing.at + FB_BLOCK_BYTES;
    uint32_t padded = (uint32_t)fb_align_up(op->new_bytes, FB_BLOCK_BYTES);
    struct fb_log_names_head head = {.sequence = op->sequence,
                                     .slot = FB_LOG_NAMES_SLOTS - 1 - op->slot,
                                     .bytes = op->new_bytes};
    head.checksum = fb_log_format_names_checksum(body, op->new_bytes, head.sequence);
    fb_log_format_names_put(op->writing.at, log->super.device_id, &head);
    uint64_t off = log->geometry.names_off + (uint64_t)head.slot * FB_LOG_NAMES_SLOT_BYTES;
    fb_log_meta_start(log, &op->meta, FB_IO_WRITE, &op->writing, off, FB_BLOCK_BYTES + padded,
                      table_written);
}

void fb_log_names_start(struct fb_log *log, uint32_t bytes,
                        void (*done)(struct fb_log *log, int result))
{
    struct fb_log_names_op *op = &log->names;
    FB_ASSERT(!op->is_busy && bytes <= FB_LOG_NAMES_BYTES_MAX);
    uint32_t padded = (uint32_t)fb_align_up(bytes, FB_BLOCK_BYTES);
    memset(op->writing.at + FB_BLOCK_BYTES + bytes, 0, padded - bytes);
    op->sequence++;
    op->copies = 0;
    op->new_bytes = bytes;
    op->is_busy = true;
    op->done = done;
    write_slot(log);
}

static void answer(struct fb_log *log, int result)
{
    struct fb_log_names *request = log->names.request;
    log->names.request = NULL;
    if (request != NULL)
        request->done(request->ctx, request, result == 0 ? FB_OK : FB_IO);
}

void fb_log_write_names(struct fb_log *log, uint64_t now_ns, struct fb_log_names *names)
{
    FB_ASSERT(log->phase == FB_LOG_PHASE_SERVING && log->names.request == NULL);
    FB_ASSERT(names->len <= FB_LOG_NAMES_BYTES_MAX);
    log->now_ns = now_ns;
    log->names.request = names;
    /* A write that was given up when the device was fenced may still hold the buffer. */
    if (log->is_fenced || log->names.is_busy) {
        answer(log, FB_IO);
        return;
    }
    memcpy(log->names.writing.at + FB_BLOCK_BYTES, names->bytes, names->len);
    fb_log_names_start(log, names->len, answer);
}

void fb_log_names_fail(struct fb_log *log)
{
    if (log->names.request == NULL)
        return;
    log->names.done = NULL;
    answer(log, FB_IO);
}

const void *fb_log_names(const struct fb_log *log, uint32_t *len)
{
    *len = log->names.bytes;
    return log->names.found.at + FB_BLOCK_BYTES;
}
