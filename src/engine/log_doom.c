/*
 * What the owner has to know of a reclaim that is under way: whether it still is.
 */
#include "engine/log_private.h"

bool fb_log_is_giving_up(const struct fb_log *log, const struct fb_log_addr *addr)
{
    if (addr->segment >= log->geometry.segments)
        return false;
    const struct fb_log_segment *segment = &log->segments[addr->segment];
    return segment->incarnation == addr->incarnation &&
           (segment->state == FB_LOG_SEG_RECLAIM || segment->state == FB_LOG_SEG_FREEING);
}
