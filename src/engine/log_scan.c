/*
 * Listing keys: their text is in the descriptors only. One segment at a time; it is pinned like by
 * a read, so that it is not opened anew under the walk.
 */
#include "engine/log_private.h"

/* The first segment from `from` on that has records, or UINT32_MAX. */
static uint32_t next_segment(const struct fb_log *log, uint32_t from)
{
    for (uint32_t i = from; i < log->grown; i++) {
        const struct fb_log_segment *segment = &log->segments[i];
        if (segment->state >= FB_LOG_SEG_FREEING)
            continue; /* given up, or without records */
        if (fb_log_is_alive(segment) && segment->end > FB_LOG_HEADER_BLOCKS)
            return i;
    }
    return UINT32_MAX;
}

static void answer(struct fb_log *log, int result)
{
    struct fb_log_scan *scan = log->scan;
    log->scan = NULL;
    if (log->is_scanning) {
        log->is_scanning = false;
        FB_ASSERT(log->segments[log->scan_segment].readers > 0);
        log->segments[log->scan_segment].readers--;
    }
    scan->done(scan->ctx, scan, result);
}

static bool scan_record(struct fb_log *log, struct fb_log_walker *walker,
                        const struct fb_log_record *record, const struct fb_log_found *found)
{
    struct fb_log_scan *scan = log->scan;
    if (record->kind != FB_LOG_VALUE || found->ordinal < scan->ordinal)
        return true;
    struct fb_log_addr addr = {.incarnation = (uint32_t)walker->place.incarnation,
                               .segment = log->scan_segment,
                               .block = found->data_block,
                               .device = log->config.device};
    if (scan->record(scan->ctx, record, &addr))
        return true;
    scan->segment = log->scan_segment;
    scan->ordinal = found->ordinal;
    fb_log_walk_abort(walker);
    log->is_scan_over = true;
    return false;
}

static void walked(struct fb_log *log, struct fb_log_walker *walker)
{
    (void)walker;
    log->scan->segment = next_segment(log, log->scan_segment + 1);
    log->scan->ordinal = 0;
    log->is_scan_over = true;
}

bool fb_log_scan_pump(struct fb_log *log)
{
    struct fb_log_walker *walker = &log->walkers[FB_LOG_WALKER_SCAN];
    if (log->scan == NULL || !fb_log_walk_is_idle(walker))
        return false;
    if (log->is_scanning || log->is_scan_over) {
        if (!log->is_scan_over)
            return false;
        answer(log, FB_OK);
        return true;
    }
    uint32_t segment =
        log->scan->segment == UINT32_MAX ? UINT32_MAX : next_segment(log, log->scan->segment);
    if (segment == UINT32_MAX) {
        log->scan->segment = UINT32_MAX;
        answer(log, FB_OK);
        return true;
    }
    if (segment != log->scan->segment)
        log->scan->ordinal = 0;
    log->scan_segment = segment;
    log->segments[segment].readers++;
    log->is_scanning = true;
    fb_log_walk_start(log, walker, segment, false, scan_record, walked);
    return true;
}

void fb_log_scan_fail(struct fb_log *log)
{
    if (log->scan == NULL)
        return;
    fb_log_walk_abort(&log->walkers[FB_LOG_WALKER_SCAN]);
    answer(log, FB_IO);
}

void fb_log_scan(struct fb_log *log, uint64_t now_ns, struct fb_log_scan *scan)
{
    FB_ASSERT(log->phase == FB_LOG_PHASE_SERVING && log->scan == NULL);
    log->now_ns = now_ns;
    log->depth++;
    fb_link_init(&scan->link);
    log->scan = scan;
    log->is_scan_over = false;
    if (log->is_fenced)
        fb_log_scan_fail(log);
    fb_log_leave(log);
}
