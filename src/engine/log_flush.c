/*
 * The flush sequencer, and what follows from a flush or a failure.
 *
 * One flush is in flight at a time. It covers the tickets that were there when it was sent; whoever
 * comes later gathers for the next one. A batch gets its ticket only when it and all batches before
 * it in its segment are written, so that "durable" is one block number per segment. A failed flush
 * fails everything that it covered, and everything that comes later in the same segments; it is
 * never repeated for them.
 */
#include <errno.h>

#include "engine/log_private.h"

void fb_log_ticket_start(struct fb_log *log, struct fb_log_ticket *ticket, uint64_t failures,
                         fb_log_ticket_done *done)
{
    fb_link_init(&ticket->link);
    ticket->done = done;
    ticket->failures = failures;
    fb_list_push_back(&log->tickets, &ticket->link);
}

static void send_flush(struct fb_log *log)
{
    log->flush_req = (struct fb_io_req){.op = FB_IO_FLUSH,
                                        .device = log->config.device,
                                        .cookie = FB_LOG_COOKIE | FB_LOG_REQ_FLUSH};
    log->is_flushing = true;
    fb_sched_push(&log->sched, FB_SCHED_URGENT, log->now_ns, &log->flush_req);
}

bool fb_log_flush_pump(struct fb_log *log)
{
    if (log->is_flushing || fb_list_is_empty(&log->tickets))
        return false;
    FB_ASSERT(fb_list_is_empty(&log->covered));
    fb_list_append(&log->covered, &log->tickets);
    send_flush(log);
    return true;
}

/*
 * A flush failed: what any writer has written and does not know to be durable may be lost, although
 * a later flush would succeed. That includes headers, and batches that did not ask for this flush.
 */
static void break_writers(struct fb_log *log)
{
    for (uint32_t i = 0; i < FB_LOG_WRITERS; i++) {
        struct fb_log_writer *writer = &log->writers[i];
        const struct fb_log_segment *segment = &log->segments[writer->segment];
        bool takes = writer->state == FB_LOG_WRITER_OPEN || writer->state == FB_LOG_WRITER_CLOSING;
        if (takes &&
            (segment->durable < writer->next_block || segment->durable == FB_LOG_HEADER_BLOCKS))
            fb_log_writer_break(log, writer, 0);
    }
}

void fb_log_flush_done(struct fb_log *log, int64_t result)
{
    FB_ASSERT(log->is_flushing);
    fb_sched_done(&log->sched, FB_SCHED_URGENT, log->now_ns);
    log->stats.flushes++;
    if (result < 0) {
        log->stats.flush_errors++;
        log->flush_failures++;
        if (FB_BUG(FB_BUG_RETRY_FAILED_FLUSH)) {
            log->flush_failures--;
            send_flush(log);
            return;
        }
        if (log->phase == FB_LOG_PHASE_SERVING)
            break_writers(log);
    }
    log->is_flushing = false;
    struct fb_list covered;
    fb_list_init(&covered);
    fb_list_append(&covered, &log->covered);
    struct fb_link *link;
    while ((link = fb_list_pop_front(&covered)) != NULL) {
        struct fb_log_ticket *ticket = FB_LIST_ITEM(link, struct fb_log_ticket, link);
        int outcome = result < 0 ? (int)result : 0;
        if (outcome == 0 && ticket->failures != log->flush_failures)
            outcome = -EIO; /* a flush failed since, and may have lost what this one stands for */
        ticket->done(log, ticket, outcome);
    }
    if (result < 0 && !fb_log_is_no_space(result))
        fb_log_count_error(log);
}

/* ---- batches ---- */

/* A record that failed does not count in its segment. */
static void unaccount(struct fb_log *log, const struct fb_log_item *item)
{
    struct fb_log_segment *segment = &log->segments[item->addr.segment];
    log->stats.items_failed++;
    if (item->record.kind == FB_LOG_TOMB) {
        FB_ASSERT(segment->tombs > 0 && log->tombs > 0);
        segment->tombs--;
        log->tombs--;
        return;
    }
    uint32_t blocks =
        (uint32_t)fb_min_u64(fb_log_blocks(item->record.part_bytes), segment->live_blocks);
    segment->live_values -= segment->live_values > 0;
    segment->live_blocks -= blocks;
    log->live_blocks -= blocks;
}

/* Answers every item of a batch. */
static void answer_items(struct fb_log *log, struct fb_log_batch *batch, int result)
{
    struct fb_link *link;
    while ((link = fb_list_pop_front(&batch->items)) != NULL) {
        struct fb_log_item *item = FB_LIST_ITEM(link, struct fb_log_item, link);
        if (result != 0)
            unaccount(log, item);
        else
            log->stats.items_durable++;
        if (result == 0 && item->record.kind == FB_LOG_VALUE)
            log->stats.data_bytes_written += item->record.part_bytes;
        struct fb_log_tomb_copy *copy = fb_log_tomb_copy_of(log, item);
        if (copy != NULL)
            fb_log_tomb_copied(log, copy, result);
        else
            log->owner.durable(log->owner.ctx, item, result);
    }
}

/* A batch has come to its end: takes it out of the accounts and answers its items. */
static void end_batch(struct fb_log *log, struct fb_log_batch *batch, int result)
{
    fb_list_remove(&batch->link);
    FB_ASSERT(log->batches_out > 0 && log->urgent_out >= batch->is_urgent);
    log->batches_out--;
    log->urgent_out -= batch->is_urgent;
    answer_items(log, batch, result);
    fb_log_batch_free(log, batch);
}

static void batch_flushed(struct fb_log *log, struct fb_log_ticket *ticket, int result)
{
    struct fb_log_batch *batch = FB_LIST_ITEM(ticket, struct fb_log_batch, ticket);
    struct fb_log_writer *writer = batch->writer;
    FB_ASSERT(batch->state == FB_LOG_BATCH_TICKET);
    if (result != 0) {
        log->stats.flush_failed_items += batch->unit_count;
        fb_log_writer_break(log, writer, batch->number);
    }
    bool is_durable = !writer->is_broken || batch->number < writer->broken_from;
    if (is_durable) {
        struct fb_log_segment *segment = &log->segments[writer->segment];
        FB_ASSERT(segment->durable < batch->end_block);
        segment->durable = batch->end_block;
        segment->end = batch->end_block;
        writer->durable_ns = log->now_ns;
        writer->reach = (uint32_t)fb_max_u64(writer->reach, batch->reach);
    }
    end_batch(log, batch, is_durable ? 0 : FB_IO);
    fb_log_writer_advance(log, writer);
}

/* Looks at one batch; true if the next one may be looked at. */
static bool advance_batch(struct fb_log *log, struct fb_log_writer *writer,
                          struct fb_log_batch *batch)
{
    switch (batch->state) {
    case FB_LOG_BATCH_TICKET:
        return true;
    case FB_LOG_BATCH_WRITTEN:
        if (writer->is_broken && batch->number >= writer->broken_from) {
            end_batch(log, batch, FB_IO);
            return true;
        }
        if (!writer->is_header_written)
            return false;
        batch->state = FB_LOG_BATCH_TICKET;
        fb_log_ticket_start(log, &batch->ticket, batch->failures, batch_flushed);
        return true;
    case FB_LOG_BATCH_FAILED:
        fb_log_writer_break(log, writer, batch->number);
        end_batch(log, batch, FB_IO);
        return true;
    default:
        /* Those behind one that is still being sent are looked at if they must fail anyway. */
        return writer->is_broken;
    }
}

void fb_log_writer_advance(struct fb_log *log, struct fb_log_writer *writer)
{
    FB_LIST_FOREACH_SAFE (link, following, &writer->batches) {
        if (!advance_batch(log, writer, FB_LIST_ITEM(link, struct fb_log_batch, link)))
            break;
    }
}

void fb_log_batch_written(struct fb_log *log, struct fb_log_batch *batch)
{
    FB_ASSERT(batch->state == FB_LOG_BATCH_SENDING && batch->slices_out == 0);
    batch->state = batch->error != 0 ? FB_LOG_BATCH_FAILED : FB_LOG_BATCH_WRITTEN;
    if (FB_BUG(FB_BUG_ACK_BEFORE_FLUSH) && batch->error == 0)
        answer_items(log, batch, 0);
    fb_log_writer_advance(log, batch->writer);
}
