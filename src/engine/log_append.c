/*
 * Placing records. An item gets its place at once, in the order given, in the open segment of its
 * class; placed items gather in a batch, which is closed when it is full, when somebody waits, or
 * after lingering. A closed batch is sent in slices, as long as the scheduler allows.
 *
 * Data go from the arena to the device by vectors, never copied; descriptors are filled in meta
 * buffers while items are placed. A waiting item finds its batch closed at once if no batch with
 * such an item is under way; else it gathers with others until that one has ended (group commit).
 */
#include <errno.h>
#include <string.h>

#include "engine/log_private.h"

enum fit {
    FIT_NOW,
    FIT_SEGMENT_FULL,
    FIT_BATCH_FULL,
    FIT_REACH,
    FIT_WAIT
};

static uint32_t data_blocks_of(const struct fb_log_item *item)
{
    return item->record.kind == FB_LOG_VALUE ? fb_log_blocks(item->record.part_bytes) : 0;
}

static uint8_t *desc_at(const struct fb_log *log, uint16_t desc)
{
    return log->descs.at + (size_t)desc * FB_BLOCK_BYTES;
}

static bool is_tomb(const struct fb_log_item *item)
{
    return item->record.kind == FB_LOG_TOMB;
}

/*
 * Descriptors that a record begins: 0 if it fits the last one of the batch. Tombstones stand in
 * units of their own, and each such unit is written twice: a lost value is a miss, but a lost
 * tombstone would bring a removed value back.
 */
static uint32_t new_descs(const struct fb_log_batch *batch, const struct fb_log_item *item)
{
    if (batch != NULL && batch->unit_count > 0) {
        const struct fb_log_unit *unit = &batch->units[batch->unit_count - 1];
        if ((unit->twin != FB_LOG_NO_DESC) == is_tomb(item) &&
            unit->used + fb_log_format_record_bytes(&item->record) <= FB_BLOCK_BYTES)
            return 0;
    }
    return is_tomb(item) ? 2 : 1;
}

/* True if the summary has room for one more record, whatever its kind. */
static bool has_summary_room(const struct fb_log_writer *writer)
{
    const struct fb_log_sum_writer *sum = &writer->sum;
    return sum->used_blocks < sum->capacity_blocks || sum->at_bytes + FB_LOG_SUM_PART_BYTES +
                                                              FB_LOG_SUM_IDENT_BYTES +
                                                              FB_LOG_SUM_GROUP_BYTES <=
                                                          FB_BLOCK_BYTES;
}

/* Can `blocks` more be taken by the segment, with the summary that will then be needed? */
static bool has_segment_room(const struct fb_log *log, const struct fb_log_writer *writer,
                             uint32_t blocks)
{
    uint32_t tail = writer->sum.used_blocks + 1 + FB_LOG_TRAILER_BLOCKS;
    return writer->next_block + blocks + tail <= log->segment_blocks && has_summary_room(writer);
}

static enum fit fit(const struct fb_log *log, const struct fb_log_writer *writer,
                    const struct fb_log_item *item)
{
    const struct fb_log_batch *batch = writer->gather;
    uint32_t data = data_blocks_of(item);
    uint32_t descs = new_descs(batch, item);
    if (!has_segment_room(log, writer, data + descs))
        return FIT_SEGMENT_FULL;
    if (batch != NULL && batch->unit_count > 0) {
        if (batch->vec_count + item->vec_count + descs > FB_LOG_BATCH_VECS ||
            batch->unit_count + (descs > 0) > FB_LOG_BATCH_UNITS ||
            batch->data_blocks + data > log->batch_blocks)
            return FIT_BATCH_FULL;
    }
    if (writer->next_block + data + descs > writer->reach)
        return FIT_REACH;
    if (descs > log->free_desc_count)
        return FIT_WAIT;
    return batch == NULL && fb_list_is_empty(&log->free_batches) ? FIT_WAIT : FIT_NOW;
}

/* ---- building a batch ---- */

static struct fb_log_batch *begin_batch(struct fb_log *log, struct fb_log_writer *writer)
{
    struct fb_link *link = fb_list_pop_front(&log->free_batches);
    FB_ASSERT(link != NULL);
    struct fb_log_batch *batch = FB_LIST_ITEM(link, struct fb_log_batch, link);
    FB_ASSERT(batch->state == FB_LOG_BATCH_IDLE && fb_list_is_empty(&batch->items));
    batch->writer = writer;
    batch->opened_ns = log->now_ns;
    batch->number = writer->next_batch++;
    batch->first_block = writer->next_block;
    batch->end_block = writer->next_block;
    batch->data_blocks = 0;
    batch->vec_at = 0;
    batch->vec_off = 0;
    batch->sent_bytes = 0;
    batch->slices_out = 0;
    batch->vec_count = 0;
    batch->unit_count = 0;
    batch->is_urgent = false;
    batch->error = 0;
    batch->state = FB_LOG_BATCH_GATHERING;
    fb_list_push_back(&writer->batches, &batch->link);
    writer->gather = batch;
    return batch;
}

/* Appends a run of memory, joined to the one before where that is possible. */
static void add_vec(struct fb_log_batch *batch, struct fb_io_vec vec)
{
    if (batch->vec_count > 0) {
        struct fb_io_vec *last = &batch->vec[batch->vec_count - 1];
        if (last->space == vec.space && last->off + last->len == vec.off &&
            (uint64_t)last->len + vec.len <= FB_SCHED_SLICE_BYTES) {
            last->len += vec.len;
            return;
        }
    }
    FB_ASSERT(batch->vec_count < FB_LOG_BATCH_VECS);
    batch->vec[batch->vec_count++] = vec;
}

/* Takes a descriptor buffer and a block of the segment for it. */
static uint16_t take_desc(struct fb_log *log, struct fb_log_writer *writer,
                          struct fb_log_batch *batch)
{
    FB_ASSERT(log->free_desc_count > 0);
    uint16_t desc = log->free_descs[--log->free_desc_count];
    add_vec(batch, (struct fb_io_vec){.off = log->descs.off + (uint64_t)desc * FB_BLOCK_BYTES,
                                      .len = FB_BLOCK_BYTES,
                                      .space = FB_IO_META});
    writer->next_block++;
    return desc;
}

/* Begins a unit, of one descriptor or of two that say the same. */
static struct fb_log_unit *begin_unit(struct fb_log *log, struct fb_log_writer *writer,
                                      struct fb_log_batch *batch, uint32_t descs)
{
    FB_ASSERT(batch->unit_count < FB_LOG_BATCH_UNITS);
    struct fb_log_unit *unit = &batch->units[batch->unit_count++];
    *unit = (struct fb_log_unit){.head = {.block = writer->next_block,
                                          .batch = batch->number,
                                          .ordinal = log->segments[writer->segment].records},
                                 .used = FB_LOG_DESC_HEAD_BYTES};
    unit->desc = take_desc(log, writer, batch);
    unit->twin = descs > 1 ? take_desc(log, writer, batch) : FB_LOG_NO_DESC;
    return unit;
}

/* The bytes of a value become part of the batch. */
static void add_data(struct fb_log_batch *batch, const struct fb_log_item *item, uint32_t blocks)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < item->vec_count; i++) {
        FB_ASSERT(item->vec[i].space == FB_IO_ARENA && item->vec[i].len % FB_BLOCK_BYTES == 0);
        add_vec(batch, item->vec[i]);
        bytes += item->vec[i].len;
    }
    FB_ASSERT(bytes == (uint64_t)blocks * FB_BLOCK_BYTES);
    batch->data_blocks += blocks;
}

/* Counts a placed record in the tables of its segment. */
static void account(struct fb_log *log, struct fb_log_writer *writer,
                    const struct fb_log_item *item, uint32_t blocks)
{
    struct fb_log_segment *segment = &log->segments[writer->segment];
    segment->records++;
    if (item->record.kind == FB_LOG_TOMB) {
        segment->tombs++;
        log->tombs++;
        log->stats.tombs_written++;
        return;
    }
    segment->live_values++;
    segment->live_blocks += blocks;
    log->live_blocks += blocks;
    writer->data_bytes += item->record.part_bytes;
}

/* The horizon of a tombstone: what a copy forward already has, or the present. */
static uint64_t horizon_of(struct fb_log *log, const struct fb_log_item *item)
{
    if (item->record.kind != FB_LOG_TOMB)
        return 0;
    if (fb_log_tomb_copy_of(log, item) != NULL)
        return item->record.value_bytes;
    return log->next_incarnation - 1;
}

static void put(struct fb_log *log, struct fb_log_writer *writer, struct fb_log_item *item)
{
    struct fb_log_batch *batch = writer->gather;
    if (batch == NULL)
        batch = begin_batch(log, writer);
    uint32_t descs = new_descs(batch, item);
    struct fb_log_unit *unit =
        descs > 0 ? begin_unit(log, writer, batch, descs) : &batch->units[batch->unit_count - 1];
    uint32_t blocks = data_blocks_of(item);
    struct fb_log_found found = {.ordinal = log->segments[writer->segment].records,
                                 .desc_block = unit->head.block,
                                 .data_block = blocks > 0 ? writer->next_block : 0,
                                 .horizon = horizon_of(log, item)};
    uint32_t used = fb_log_format_record_put(desc_at(log, unit->desc), unit->used, &item->record,
                                             found.data_block, found.horizon);
    FB_ASSERT(used != 0);
    unit->used = (uint16_t)used;
    unit->head.records++;
    unit->head.data_blocks += blocks;
    if (blocks > 0)
        add_data(batch, item, blocks);
    writer->next_block += blocks;
    bool is_added = fb_log_format_sum_add(&writer->sum, &item->record, &found);
    FB_ASSERT(is_added);
    account(log, writer, item, blocks);
    item->addr = (struct fb_log_addr){.incarnation = log->segments[writer->segment].incarnation,
                                      .segment = writer->segment,
                                      .block = blocks > 0 ? found.data_block : found.desc_block,
                                      .device = log->config.device};
    batch->end_block = writer->next_block;
    writer->last_end = writer->next_block;
    batch->is_urgent = batch->is_urgent || item->urgent;
    fb_list_push_back(&batch->items, &item->link);
}

/*
 * How far units may go once this batch is durable. A start must search that far behind a gap, so it
 * is short, unless the device's flushes are so slow that it holds writes up.
 */
static uint32_t promise(const struct fb_log *log, struct fb_log_writer *writer, uint32_t end_block)
{
    if (writer->is_short)
        writer->window = (uint32_t)fb_min_u64(2 * (uint64_t)writer->window, log->window_max);
    else if (writer->window > log->window_blocks)
        writer->window =
            (uint32_t)fb_max_u64(writer->window - writer->window / 8, log->window_blocks);
    writer->is_short = false;
    return (uint32_t)fb_min_u64((uint64_t)end_block + writer->window, log->segment_blocks);
}

void fb_log_batch_close(struct fb_log *log, struct fb_log_writer *writer)
{
    struct fb_log_batch *batch = writer->gather;
    if (batch == NULL)
        return;
    struct fb_log_place place = fb_log_place_of(log, writer->segment);
    uint32_t durable = log->segments[writer->segment].durable;
    batch->reach = promise(log, writer, batch->end_block);
    for (uint32_t i = 0; i < batch->unit_count; i++) {
        struct fb_log_unit *unit = &batch->units[i];
        unit->head.flushed_up_to = durable;
        unit->head.reach = batch->reach;
        fb_log_format_desc_put(desc_at(log, unit->desc), unit->used, &place, &unit->head);
        if (unit->twin == FB_LOG_NO_DESC)
            continue;
        unit->head.block++;
        memcpy(desc_at(log, unit->twin), desc_at(log, unit->desc), FB_BLOCK_BYTES);
        fb_log_format_desc_put(desc_at(log, unit->twin), unit->used, &place, &unit->head);
    }
    writer->proven = durable;
    writer->gather = NULL;
    batch->state = FB_LOG_BATCH_SENDING;
    batch->failures = log->flush_failures;
    log->batches_out++;
    log->urgent_out += batch->is_urgent;
    log->stats.batches++;
    fb_list_push_back(&log->sending, &batch->send_link);
}

void fb_log_batch_free(struct fb_log *log, struct fb_log_batch *batch)
{
    FB_ASSERT(!fb_link_is_linked(&batch->link) && fb_list_is_empty(&batch->items));
    for (uint32_t i = 0; i < batch->unit_count; i++) {
        log->free_descs[log->free_desc_count++] = batch->units[i].desc;
        if (batch->units[i].twin != FB_LOG_NO_DESC)
            log->free_descs[log->free_desc_count++] = batch->units[i].twin;
    }
    FB_ASSERT(log->free_desc_count <= log->desc_count);
    batch->unit_count = 0;
    batch->state = FB_LOG_BATCH_IDLE;
    fb_list_push_back(&log->free_batches, &batch->link);
}

/* ---- placing ---- */

/* True if an open segment may take an item. */
static bool may_take(const struct fb_log_writer *writer, enum fb_log_claim claim)
{
    return writer != NULL && (writer->rescue_of == 0 || claim == FB_LOG_CLAIM_COPY);
}

/* The open writer where an item goes, opening one if need be; NULL if there is none now. */
static struct fb_log_writer *writer_for(struct fb_log *log, uint32_t class_hint,
                                        enum fb_log_claim claim)
{
    if (log->open[class_hint] == NULL)
        log->open[class_hint] = fb_log_writer_open(log, class_hint, claim);
    if (may_take(log->open[class_hint], claim))
        return log->open[class_hint];
    /* What others wait for takes any open segment. */
    for (uint32_t i = 0; claim != FB_LOG_CLAIM_VALUE && i < log->classes; i++) {
        if (may_take(log->open[i], claim))
            return log->open[i];
    }
    return NULL;
}

/* Places an item, or says that it must wait. */
static bool place(struct fb_log *log, struct fb_log_item *item, enum fb_log_claim claim)
{
    uint32_t class_hint = item->record.class_hint < log->classes ? item->record.class_hint : 0;
    for (unsigned tries = 0; tries < FB_LOG_WRITERS * 2; tries++) {
        struct fb_log_writer *writer = writer_for(log, class_hint, claim);
        if (writer == NULL) {
            log->is_waiting_for_segment = true;
            return false;
        }
        switch (fit(log, writer, item)) {
        case FIT_NOW:
            fb_list_remove(&item->link);
            put(log, writer, item);
            return true;
        case FIT_SEGMENT_FULL:
            fb_log_writer_close(log, writer);
            break;
        case FIT_BATCH_FULL:
            fb_log_batch_close(log, writer);
            break;
        case FIT_REACH:
            writer->is_short = true;
            fb_log_batch_close(log, writer);
            return false;
        case FIT_WAIT:
            fb_log_batch_close(log, writer);
            return false;
        }
    }
    return false;
}

/* Places a queue's items from its front; true if any was placed. */
static bool place_queue(struct fb_log *log, struct fb_list *queue, enum fb_log_claim claim)
{
    bool moved = false;
    FB_LIST_FOREACH_SAFE (link, following, queue) {
        struct fb_log_item *item = FB_LIST_ITEM(link, struct fb_log_item, link);
        if (claim == FB_LOG_CLAIM_TOMB && log->tombs >= log->config.tombs_max)
            break; /* reclaim makes room */
        if (!place(log, item, claim))
            break;
        moved = true;
    }
    return moved;
}

/* True if a gathering batch should go now. */
static bool is_batch_due(const struct fb_log *log, const struct fb_log_batch *batch)
{
    if (batch->data_blocks >= log->batch_blocks || log->is_draining)
        return true;
    if (batch->is_urgent && log->urgent_out == 0)
        return true;
    uint64_t due = fb_add_saturated(batch->opened_ns, log->config.linger_ns);
    return fb_log_is_due(log->now_ns, due, log->config.linger_ns);
}

static bool close_due_batches(struct fb_log *log)
{
    bool moved = false;
    for (uint32_t i = 0; i < FB_LOG_WRITERS; i++) {
        struct fb_log_writer *writer = &log->writers[i];
        if (writer->gather != NULL && is_batch_due(log, writer->gather)) {
            fb_log_batch_close(log, writer);
            moved = true;
        }
    }
    return moved;
}

/* True if a writer is idle and its last records have no witness on the device yet. */
static bool wants_proof(const struct fb_log *log, const struct fb_log_writer *writer)
{
    return writer->state == FB_LOG_WRITER_OPEN && fb_list_is_empty(&writer->batches) &&
           writer->proven < writer->last_end &&
           log->segments[writer->segment].durable >= writer->last_end;
}

/* Writes an empty unit that says what is durable. */
static bool prove(struct fb_log *log, struct fb_log_writer *writer)
{
    uint64_t due = fb_add_saturated(writer->durable_ns, FB_LOG_PROOF_NS);
    if (!wants_proof(log, writer) || !fb_log_is_due(log->now_ns, due, FB_LOG_PROOF_NS))
        return false;
    if (log->free_desc_count == 0 || fb_list_is_empty(&log->free_batches))
        return false;
    if (!has_segment_room(log, writer, 1)) {
        fb_log_writer_close(log, writer); /* its trailer will say it */
        return true;
    }
    struct fb_log_batch *batch = begin_batch(log, writer);
    (void)begin_unit(log, writer, batch, 1);
    batch->end_block = writer->next_block;
    /* Nothing is on its way, so the promise may shrink, from now on: one batch may come next. */
    writer->window = (log->window_blocks + 1) / 2;
    fb_log_batch_close(log, writer);
    writer->reach = (uint32_t)fb_min_u64(writer->reach, batch->reach);
    return true;
}

bool fb_log_append_pump(struct fb_log *log)
{
    if (log->phase != FB_LOG_PHASE_SERVING || log->is_fenced)
        return false;
    log->is_waiting_for_segment = false;
    bool moved = place_queue(log, &log->copies, FB_LOG_CLAIM_COPY);
    moved = place_queue(log, &log->tombstones, FB_LOG_CLAIM_TOMB) || moved;
    for (uint32_t i = 0; i < FB_LOG_CLASSES; i++)
        moved = place_queue(log, &log->queues[i], FB_LOG_CLAIM_VALUE) || moved;
    moved = close_due_batches(log) || moved;
    for (uint32_t i = 0; i < FB_LOG_WRITERS; i++)
        moved = prove(log, &log->writers[i]) || moved;
    return moved;
}

uint64_t fb_log_append_next_ns(const struct fb_log *log)
{
    uint64_t next = UINT64_MAX;
    for (uint32_t i = 0; i < FB_LOG_WRITERS; i++) {
        const struct fb_log_writer *writer = &log->writers[i];
        if (writer->gather != NULL)
            next = fb_min_u64(next,
                              fb_add_saturated(writer->gather->opened_ns, log->config.linger_ns));
        if (wants_proof(log, writer))
            next = fb_min_u64(next, fb_add_saturated(writer->durable_ns, FB_LOG_PROOF_NS));
    }
    return next;
}

void fb_log_fail_queued(struct fb_log *log, int result)
{
    struct fb_list *queues[] = {&log->copies, &log->tombstones, &log->queues[0], &log->queues[1]};
    for (size_t q = 0; q < FB_ARRAY_COUNT(queues); q++) {
        struct fb_list taken;
        fb_list_init(&taken);
        fb_list_append(&taken, queues[q]);
        struct fb_link *link;
        while ((link = fb_list_pop_front(&taken)) != NULL) {
            struct fb_log_item *item = FB_LIST_ITEM(link, struct fb_log_item, link);
            struct fb_log_tomb_copy *copy = fb_log_tomb_copy_of(log, item);
            log->stats.items_failed++;
            if (copy != NULL)
                fb_log_tomb_copied(log, copy, result);
            else
                log->owner.durable(log->owner.ctx, item, result);
        }
    }
}

/* ---- slices ---- */

/* Fills a slice from the batch's next vectors; returns its bytes. */
static uint64_t cut_slice(struct fb_log_batch *batch, struct fb_log_slice *slice,
                          uint64_t bytes_max)
{
    uint64_t bytes = 0;
    slice->vec_count = 0;
    while (batch->vec_at < batch->vec_count && slice->vec_count < FB_LOG_SLICE_VECS &&
           bytes < bytes_max) {
        struct fb_io_vec vec = batch->vec[batch->vec_at];
        uint32_t len = (uint32_t)fb_min_u64(vec.len - batch->vec_off, bytes_max - bytes);
        slice->vec[slice->vec_count++] =
            (struct fb_io_vec){.off = vec.off + batch->vec_off, .len = len, .space = vec.space};
        bytes += len;
        batch->vec_off += len;
        if (batch->vec_off == vec.len) {
            batch->vec_at++;
            batch->vec_off = 0;
        }
    }
    return bytes;
}

/* Sets the request of a slice whose vectors are set. */
static void set_request(struct fb_log *log, struct fb_log_slice *slice, uint64_t device_off,
                        uint64_t bytes)
{
    slice->req = (struct fb_io_req){.op = FB_IO_WRITE,
                                    .device = log->config.device,
                                    .vec_count = slice->vec_count,
                                    .device_off = device_off,
                                    .len = bytes,
                                    .vec = slice->vec,
                                    .cookie = FB_LOG_COOKIE | FB_LOG_REQ_SLICE};
    fb_link_init(&slice->req.link);
}

/* A batch whose slices are all handed out and back is written. */
static void check_written(struct fb_log *log, struct fb_log_batch *batch)
{
    if (batch->slices_out == 0 && !fb_link_is_linked(&batch->send_link))
        fb_log_batch_written(log, batch);
}

static void slice_ended(struct fb_log *log, struct fb_log_slice *slice)
{
    struct fb_log_batch *batch = slice->batch;
    fb_list_push_back(&log->free_slices, &slice->link);
    FB_ASSERT(batch->slices_out > 0);
    batch->slices_out--;
    if (batch->error != 0)
        fb_list_remove(&batch->send_link); /* the rest is not sent */
    check_written(log, batch);
}

/* Ends slices and batches that are not to be sent any more; true if there were any. */
bool fb_log_send_pump(struct fb_log *log)
{
    bool moved = false;
    FB_LIST_FOREACH_SAFE (link, following, &log->resend) {
        struct fb_log_slice *slice = FB_LIST_ITEM(link, struct fb_log_slice, link);
        if (slice->batch->error == 0 && !log->is_fenced)
            continue;
        fb_list_remove(&slice->link);
        slice->batch->error = -EIO;
        fb_list_push_back(&log->ended, &slice->link);
    }
    struct fb_link *link;
    while ((link = fb_list_pop_front(&log->ended)) != NULL) {
        slice_ended(log, FB_LIST_ITEM(link, struct fb_log_slice, link));
        moved = true;
    }
    for (uint32_t i = 0; i < FB_LOG_BATCHES_MAX; i++) {
        struct fb_log_batch *batch = &log->batches[i];
        if (!fb_link_is_linked(&batch->send_link) || (batch->error == 0 && !log->is_fenced))
            continue;
        batch->error = -EIO;
        fb_list_remove(&batch->send_link);
        check_written(log, batch);
        moved = true;
    }
    return moved;
}

struct fb_io_req *fb_log_next_slice(struct fb_log *log, uint64_t bytes_max)
{
    struct fb_link *link = log->is_fenced ? NULL : fb_list_pop_front(&log->resend);
    if (link != NULL) {
        fb_sched_write_started(&log->sched);
        return &FB_LIST_ITEM(link, struct fb_log_slice, link)->req;
    }
    if (log->is_fenced || fb_list_is_empty(&log->sending) || fb_list_is_empty(&log->free_slices))
        return NULL;
    struct fb_log_batch *batch =
        FB_LIST_ITEM(fb_list_first(&log->sending), struct fb_log_batch, send_link);
    struct fb_log_slice *slice =
        FB_LIST_ITEM(fb_list_pop_front(&log->free_slices), struct fb_log_slice, link);
    slice->batch = batch;
    slice->tries = 0;
    uint64_t off = fb_log_segment_off(log, batch->writer->segment) +
                   (uint64_t)batch->first_block * FB_BLOCK_BYTES + batch->sent_bytes;
    uint64_t bytes = cut_slice(batch, slice, bytes_max);
    FB_ASSERT(bytes > 0);
    batch->sent_bytes += bytes;
    batch->slices_out++;
    if (batch->vec_at == batch->vec_count)
        fb_list_remove(&batch->send_link);
    set_request(log, slice, off, bytes);
    fb_sched_write_started(&log->sched);
    return &slice->req;
}

/* Drops the first `bytes` from a slice and sends the rest again. */
static void resume_slice(struct fb_log *log, struct fb_log_slice *slice, uint64_t bytes)
{
    uint64_t off = slice->req.device_off + bytes;
    uint64_t left = slice->req.len - bytes;
    uint16_t gone = 0;
    while (bytes > 0 && bytes >= slice->vec[gone].len)
        bytes -= slice->vec[gone++].len;
    slice->vec[gone].off += bytes;
    slice->vec[gone].len -= (uint32_t)bytes;
    for (uint16_t i = gone; i < slice->vec_count; i++)
        slice->vec[i - gone] = slice->vec[i];
    slice->vec_count = (uint16_t)(slice->vec_count - gone);
    set_request(log, slice, off, left);
    fb_list_push_back(&log->resend, &slice->link);
}

void fb_log_slice_done(struct fb_log *log, struct fb_io_req *req)
{
    struct fb_log_slice *slice = FB_LIST_ITEM(req, struct fb_log_slice, req);
    fb_sched_done(&log->sched, FB_SCHED_WRITE, log->now_ns);
    if (fb_log_is_no_space(req->result) && !log->is_fenced) {
        fb_list_push_back(&log->no_space, &slice->link);
        fb_log_note_no_space(log);
        return;
    }
    uint64_t got = req->result > 0 ? fb_min_u64((uint64_t)req->result, req->len) : 0;
    log->stats.bytes_written += got;
    if (req->result >= 0 && got < req->len && ++slice->tries <= FB_LOG_TRIES_MAX) {
        resume_slice(log, slice, fb_align_down(got, FB_BLOCK_BYTES));
        return;
    }
    if (got < req->len) {
        slice->batch->error = req->result < 0 ? (int)req->result : -EIO;
        log->stats.write_errors++;
        fb_log_count_error(log);
    } else {
        log->retry_wait_ns = 0;
    }
    slice_ended(log, slice);
}
