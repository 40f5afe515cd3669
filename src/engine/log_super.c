/*
 * The superblock: two copies, written one after the other with a flush between, the weaker one
 * first, so that at any time one whole copy is not being written. Its frontiers are raised ahead of
 * need and used only when the raise is durable.
 */
#include "engine/log_private.h"

static void write_copy(struct fb_log *log);

/* Both copies were tried: one that holds the new content is enough, and the other goes first next.
 */
static void end(struct fb_log *log, int result)
{
    struct fb_log_super_op *op = &log->super_op;
    op->is_busy = false;
    if (result == 0)
        log->super = op->wanted;
    else
        op->retry_ns = fb_add_saturated(log->now_ns, FB_LOG_RETRY_MIN_NS);
    void (*done)(struct fb_log *, int) = op->done;
    op->done = NULL;
    if (done != NULL)
        done(log, result);
}

static void next_copy(struct fb_log *log, int result)
{
    struct fb_log_super_op *op = &log->super_op;
    if (++op->tried < FB_LOG_SUPER_COPIES) {
        op->copy = FB_LOG_SUPER_COPIES - 1 - op->copy;
        write_copy(log);
    } else {
        end(log, op->written > 0 ? 0 : result);
    }
}

static void copy_flushed(struct fb_log *log, struct fb_log_ticket *ticket, int result)
{
    struct fb_log_super_op *op = FB_LIST_ITEM(ticket, struct fb_log_super_op, ticket);
    if (result != 0) {
        end(log, result);
        return;
    }
    op->written++;
    next_copy(log, 0);
}

static void copy_written(struct fb_log *log, struct fb_log_meta *meta, int result)
{
    struct fb_log_super_op *op = FB_LIST_ITEM(meta, struct fb_log_super_op, meta);
    if (result == 0) {
        fb_log_ticket_start(log, &op->ticket, meta->failures, copy_flushed);
        return;
    }
    op->weaker = op->copy;
    next_copy(log, result);
}

static void write_copy(struct fb_log *log)
{
    struct fb_log_super_op *op = &log->super_op;
    struct fb_log_super super = op->wanted;
    super.copy = op->copy;
    fb_log_format_super_put(op->buffer.at, &super);
    fb_log_meta_start(log, &op->meta, FB_IO_WRITE, &op->buffer, fb_log_format_super_off(op->copy),
                      FB_BLOCK_BYTES, copy_written);
}

void fb_log_super_write(struct fb_log *log, const struct fb_log_super *wanted,
                        void (*done)(struct fb_log *log, int result))
{
    struct fb_log_super_op *op = &log->super_op;
    FB_ASSERT(!op->is_busy);
    uint64_t sequence = fb_max_u64(op->wanted.sequence, log->super.sequence) + 1;
    op->wanted = *wanted;
    op->wanted.sequence = sequence;
    op->is_busy = true;
    op->copy = op->weaker;
    op->tried = 0;
    op->written = 0;
    op->done = done;
    write_copy(log);
}

bool fb_log_super_pump(struct fb_log *log)
{
    struct fb_log_super_op *op = &log->super_op;
    if (log->phase != FB_LOG_PHASE_SERVING || log->is_fenced || op->is_busy)
        return false;
    if (!fb_log_is_due(log->now_ns, op->retry_ns, FB_LOG_RETRY_MIN_NS))
        return false;
    struct fb_log_super wanted = log->super;
    if (log->next_incarnation + FB_LOG_INCARNATION_LOW > wanted.incarnation_frontier)
        wanted.incarnation_frontier = log->next_incarnation + FB_LOG_INCARNATION_STEP;
    if (log->grown + FB_LOG_SEGMENT_LOW > wanted.segment_frontier)
        wanted.segment_frontier =
            (uint32_t)fb_min_u64(log->grown + FB_LOG_SEGMENT_STEP, log->geometry.segments);
    if (wanted.incarnation_frontier > UINT32_MAX)
        wanted.incarnation_frontier = UINT32_MAX;
    if (wanted.incarnation_frontier == log->super.incarnation_frontier &&
        wanted.segment_frontier == log->super.segment_frontier)
        return false;
    fb_log_super_write(log, &wanted, NULL);
    return true;
}
