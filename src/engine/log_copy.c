/*
 * Copying forward: live records by the owner, tombstones by the log itself.
 *
 * The owner needs the whole record with its key, so its descriptor is read first. A descriptor that
 * does not hold costs the record: it is dropped, and named.
 */
#include <string.h>

#include "engine/log_private.h"

/* ---- values ---- */

bool fb_log_is_copy(const struct fb_log *log, const struct fb_log_record *record)
{
    const struct fb_log_reclaim *reclaim = &log->reclaim;
    for (uint32_t i = 0; i < reclaim->copying; i++) {
        const struct fb_log_victim *victim = &reclaim->records[reclaim->active[i]];
        if (victim->generation == record->generation && victim->part == record->part &&
            fb_digest_is_equal(victim->digest, record->digest))
            return true;
    }
    return false;
}

void fb_log_copied(struct fb_log *log, uint64_t now_ns, const struct fb_log_addr *from)
{
    struct fb_log_reclaim *reclaim = &log->reclaim;
    log->now_ns = now_ns;
    log->depth++;
    bool is_victim = reclaim->step == FB_LOG_RECLAIM_COPY && from->segment == reclaim->victim &&
                     from->incarnation == log->segments[reclaim->victim].incarnation;
    for (uint32_t i = 0; is_victim && i < reclaim->copying; i++) {
        struct fb_log_victim *victim = &reclaim->records[reclaim->active[i]];
        if (victim->data_block != from->block)
            continue;
        victim->state = FB_LOG_VICTIM_COPIED;
        reclaim->active[i] = reclaim->active[--reclaim->copying];
        reclaim->deadline_ns = fb_add_saturated(log->now_ns, FB_LOG_COPY_WAIT_NS);
        log->stats.records_copied++;
        break;
    }
    fb_log_leave(log);
}

static void desc_read(struct fb_log *log, struct fb_log_meta *meta, int result)
{
    (void)meta;
    log->reclaim.has_read = true;
    if (result != 0)
        memset(log->reclaim.read_buffer.at, 0, FB_BLOCK_BYTES);
}

/* Finds the victim's record in its descriptor. */
static bool find_record(struct fb_log *log, const struct fb_log_victim *victim,
                        struct fb_log_record *record)
{
    struct fb_log_place place = fb_log_place_of(log, log->reclaim.victim);
    struct fb_log_desc desc;
    struct fb_log_found found;
    if (fb_log_format_desc_get(log->reclaim.read_buffer.at, &place, victim->desc_block, &desc) !=
        FB_LOG_BLOCK_GOOD)
        return false;
    int got;
    while ((got = fb_log_format_desc_next(&desc, record, &found)) != 0) {
        if (got == 1 && record->kind == FB_LOG_VALUE && found.data_block == victim->data_block)
            return record->generation == victim->generation &&
                   fb_digest_is_equal(record->digest, victim->digest);
    }
    return false;
}

/* Asks the owner to copy a record whose descriptor is at hand. */
static void hand_over(struct fb_log *log, uint32_t index)
{
    struct fb_log_reclaim *reclaim = &log->reclaim;
    struct fb_log_victim *victim = &reclaim->records[index];
    struct fb_log_record record;
    if (!find_record(log, victim, &record)) {
        log->stats.rot_descriptors++;
        victim->state = FB_LOG_VICTIM_DROP;
        return;
    }
    struct fb_log_addr addr = {.incarnation = log->segments[reclaim->victim].incarnation,
                               .segment = reclaim->victim,
                               .block = victim->data_block,
                               .device = log->config.device};
    victim->state = FB_LOG_VICTIM_COPYING;
    reclaim->active[reclaim->copying++] = index;
    log->owner.copy(log->owner.ctx, &record, &addr);
}

bool fb_log_copy_step(struct fb_log *log, bool *moved)
{
    struct fb_log_reclaim *reclaim = &log->reclaim;
    while (reclaim->next < reclaim->record_count) {
        struct fb_log_victim *victim = &reclaim->records[reclaim->next];
        if (victim->state != FB_LOG_VICTIM_KEEP) {
            reclaim->next++;
            continue;
        }
        if (reclaim->copying == FB_LOG_COPIES_MAX || reclaim->read.is_busy)
            return false;
        *moved = true;
        if (!reclaim->has_read || reclaim->read_block != victim->desc_block) {
            reclaim->has_read = false;
            reclaim->read_block = victim->desc_block;
            fb_log_meta_start(log, &reclaim->read, FB_IO_READ, &reclaim->read_buffer,
                              fb_log_segment_off(log, reclaim->victim) +
                                  (uint64_t)victim->desc_block * FB_BLOCK_BYTES,
                              FB_BLOCK_BYTES, desc_read);
            return false;
        }
        hand_over(log, reclaim->next++);
    }
    return reclaim->copying == 0 && !reclaim->read.is_busy;
}

/* ---- tombstones ---- */

struct fb_log_tomb_copy *fb_log_tomb_copy_of(struct fb_log *log, const struct fb_log_item *item)
{
    uintptr_t at = (uintptr_t)item, first = (uintptr_t)log->tomb_copies;
    if (at < first || at >= (uintptr_t)(log->tomb_copies + FB_LOG_TOMB_COPIES))
        return NULL;
    return &log->tomb_copies[(at - first) / sizeof(log->tomb_copies[0])];
}

bool fb_log_tomb_copy(struct fb_log *log, const struct fb_log_record *record,
                      const struct fb_log_found *found)
{
    static const uint8_t no_key[1];
    for (uint32_t i = 0; i < FB_LOG_TOMB_COPIES; i++) {
        struct fb_log_tomb_copy *copy = &log->tomb_copies[i];
        if (copy->is_busy)
            continue;
        copy->is_busy = true;
        copy->is_wanted = true;
        copy->item.record = *record;
        copy->item.record.key = no_key;
        copy->item.record.key_bytes = 0;
        copy->item.record.value_bytes = found->horizon; /* log_append.c takes it from there */
        copy->item.vec_count = 0;
        copy->item.urgent = true;
        fb_link_init(&copy->item.link);
        fb_list_push_back(&log->copies, &copy->item.link);
        log->reclaim.tombs_copying++;
        return true;
    }
    return false;
}

void fb_log_tomb_copied(struct fb_log *log, struct fb_log_tomb_copy *copy, int result)
{
    copy->is_busy = false;
    if (!copy->is_wanted)
        return;
    copy->is_wanted = false;
    FB_ASSERT(log->reclaim.tombs_copying > 0);
    log->reclaim.tombs_copying--;
    if (result != 0)
        fb_log_reclaim_abandon(log);
    else
        fb_log_reclaim_progress(log);
}
