/*
 * Giving segments up: choose, judge, copy forward, write the record, forget, make free.
 *
 * Order, and why: the record is durable before the owner's index forgets, so that after a crash
 * "given up" differs from "lost"; the FREE header is durable before the segment is opened again and
 * before the next record is written, so that the ring never wraps past a record whose segment could
 * look alive. Up to the record everything can be abandoned and tried again.
 */
#include "engine/log_private.h"

#define TOMB_PRESSURE(max) ((uint64_t)(max)*7 / 8)

/* ---- choosing ---- */

static bool is_tomb_pressure(const struct fb_log *log)
{
    return log->tombs > 0 && log->tombs >= TOMB_PRESSURE(log->config.tombs_max);
}

/*
 * Too many tombstones wait for the oldest segment to go. Putting it off would only send them round
 * through all the others: where there is room, it is copied forward whole.
 */
static bool is_oldest_due(const struct fb_log *log)
{
    return is_tomb_pressure(log) && fb_log_free_segments(log) > log->config.reserve_segments;
}

/* True if another segment should be given up. */
static bool is_wanted(const struct fb_log *log)
{
    if (log->is_draining || !fb_log_is_due(log->now_ns, log->reclaim.retry_ns, FB_LOG_RETRY_MAX_NS))
        return false;
    if (log->reclaim.is_asked || log->uncertain > 0 || is_tomb_pressure(log))
        return true;
    /* As long as a rescue is open, nothing else goes to its class: its victim must be over with. */
    if (fb_log_rescue(log) != NULL)
        return true;
    /* A file that cannot grow is no reason to give up ahead of need. */
    if (fb_log_is_growth_blocked(log))
        return log->is_waiting_for_segment;
    return fb_log_free_segments(log) <= log->config.reserve_segments + FB_LOG_FREE_AHEAD;
}

/* A segment that is read is not given up: the reads would find nothing. */
static bool is_pinned(const struct fb_log_segment *segment)
{
    return segment->readers > 0 && !FB_BUG(FB_BUG_REUSE_BEFORE_UNPIN);
}

/* Its tombstones found no place: another one has to make it first. */
static bool is_in_want(const struct fb_log *log, const struct fb_log_segment *segment)
{
    return segment->deferred == log->reclaim.round && fb_log_free_segments(log) == 0;
}

/* True if it goes before older ones: it costs nothing. Under pressure of tombstones only the oldest
 * helps, as long as there is a place for what has to be copied. */
static bool is_gain(const struct fb_log *log, const struct fb_log_segment *segment)
{
    if (segment->live_values > 0)
        return false;
    return !is_tomb_pressure(log) || (segment->tombs == 0 && fb_log_free_segments(log) == 0);
}

/* A rescue is open: it is for one victim, and no other may be taken. */
static uint32_t rescued(const struct fb_log *log)
{
    for (uint32_t i = 0; i < log->grown; i++) {
        const struct fb_log_segment *segment = &log->segments[i];
        if (segment->incarnation == fb_log_rescue(log)->rescue_of && segment->readers == 0 &&
            (segment->state == FB_LOG_SEG_SEALED || segment->state == FB_LOG_SEG_RETIRED))
            return i;
    }
    return log->geometry.segments;
}

/*
 * The policy, behind one small function: which closed segment goes next; or the count of segments.
 * What could not be read goes first. Then first in, first out by incarnation, but a gain before.
 */
static uint32_t choose_victim(const struct fb_log *log)
{
    uint32_t redundant = fb_log_redundant_rescue(log);
    if (redundant < log->geometry.segments)
        return log->segments[redundant].readers == 0 ? redundant : log->geometry.segments;
    if (fb_log_rescue(log) != NULL)
        return rescued(log);
    uint32_t best = log->geometry.segments;
    bool best_is_empty = false;
    for (uint32_t i = 0; i < log->grown; i++) {
        const struct fb_log_segment *segment = &log->segments[i];
        if (segment->state == FB_LOG_SEG_LOST && !is_in_want(log, segment))
            return i;
        if (segment->state != FB_LOG_SEG_SEALED && segment->state != FB_LOG_SEG_RETIRED)
            continue;
        bool is_deferred = segment->deferred == log->reclaim.round && !is_oldest_due(log);
        if (is_pinned(segment) || is_deferred)
            continue;
        if (segment->must_go)
            return i;
        bool is_empty = is_gain(log, segment);
        bool is_better =
            best == log->geometry.segments || (is_empty && !best_is_empty) ||
            (is_empty == best_is_empty && segment->incarnation < log->segments[best].incarnation);
        if (is_better) {
            best = i;
            best_is_empty = is_empty;
        }
    }
    return best;
}

/* The lowest incarnation that is alive outside of a segment. A stuck one is dead by its record. */
static uint32_t lowest_alive(const struct fb_log *log, uint32_t except)
{
    uint32_t lowest = UINT32_MAX;
    for (uint32_t i = 0; i < log->grown; i++) {
        const struct fb_log_segment *segment = &log->segments[i];
        if (i == except || !fb_log_is_alive(segment) || segment->state == FB_LOG_SEG_STUCK)
            continue;
        uint32_t incarnation = segment->incarnation; /* of a lost one: 0, older than all */
        if (incarnation < lowest)
            lowest = incarnation;
    }
    return lowest;
}

bool fb_log_is_tomb_needed(const struct fb_log *log, uint64_t horizon)
{
    return log->reclaim.lowest_other <= horizon;
}

/*
 * An open segment that is older than the victim keeps its tombstones alive: it is closed, and must
 * be sealed before the turn is at the victim. True if there is one.
 */
static bool close_older(struct fb_log *log, uint32_t victim)
{
    bool is_older = false;
    for (uint32_t i = 0; i < FB_LOG_WRITERS; i++) {
        struct fb_log_writer *writer = &log->writers[i];
        if (writer->state == FB_LOG_WRITER_IDLE ||
            log->segments[writer->segment].incarnation > log->segments[victim].incarnation)
            continue;
        is_older = true;
        fb_log_writer_close(log, writer);
    }
    return is_older;
}

/* Nothing is closed, and the tombstones that are too many lie in open segments: closes the oldest.
 */
static void close_oldest(struct fb_log *log)
{
    struct fb_log_writer *oldest = NULL;
    for (uint32_t i = 0; i < FB_LOG_WRITERS; i++) {
        struct fb_log_writer *writer = &log->writers[i];
        if (writer->state == FB_LOG_WRITER_IDLE)
            continue;
        if (oldest == NULL ||
            log->segments[writer->segment].incarnation < log->segments[oldest->segment].incarnation)
            oldest = writer;
    }
    if (oldest != NULL)
        fb_log_writer_close(log, oldest);
}

/* ---- judging ---- */

static struct fb_log_addr victim_addr(const struct fb_log *log, uint32_t block)
{
    return (struct fb_log_addr){.incarnation = log->segments[log->reclaim.victim].incarnation,
                                .segment = log->reclaim.victim,
                                .block = block,
                                .device = log->config.device};
}

static enum fb_log_victim_state state_of(enum fb_log_verdict verdict)
{
    switch (verdict) {
    case FB_LOG_KEEP:
        return FB_LOG_VICTIM_KEEP;
    case FB_LOG_WISH:
        return FB_LOG_VICTIM_WISH;
    default:
        return FB_LOG_VICTIM_DROP;
    }
}

static bool judge_record(struct fb_log *log, struct fb_log_walker *walker,
                         const struct fb_log_record *record, const struct fb_log_found *found)
{
    (void)walker;
    struct fb_log_reclaim *reclaim = &log->reclaim;
    if (record->kind != FB_LOG_VALUE)
        return true;
    struct fb_log_addr addr = victim_addr(log, found->data_block);
    enum fb_log_verdict verdict = log->owner.judge(log->owner.ctx, record, &addr);
    if (verdict == FB_LOG_DEAD)
        return true;
    if (reclaim->record_count == log->segment_blocks)
        return true; /* more values than blocks: a summary that lies; their reads will miss */
    uint32_t blocks = fb_log_blocks(record->part_bytes);
    reclaim->records[reclaim->record_count++] =
        (struct fb_log_victim){.digest = record->digest,
                               .generation = record->generation,
                               .part = record->part,
                               .data_block = (uint16_t)found->data_block,
                               .desc_block = (uint16_t)found->desc_block,
                               .blocks = (uint16_t)blocks,
                               .state = (uint8_t)state_of(verdict)};
    if (verdict == FB_LOG_KEEP)
        reclaim->keep_blocks += blocks;
    return true;
}

static bool has_copies(const struct fb_log_reclaim *reclaim)
{
    for (uint32_t i = 0; i < reclaim->record_count; i++)
        if (reclaim->records[i].state >= FB_LOG_VICTIM_COPYING)
            return true;
    return false;
}

/* Puts the victim back among the others. */
static void release_victim(struct fb_log *log)
{
    struct fb_log_reclaim *reclaim = &log->reclaim;
    struct fb_log_segment *segment = &log->segments[reclaim->victim];
    FB_ASSERT(segment->state == FB_LOG_SEG_RECLAIM);
    if (!segment->has_stale && has_copies(reclaim)) {
        segment->has_stale = true;
        log->stale++;
    }
    segment->state = reclaim->was_state;
    reclaim->step = FB_LOG_RECLAIM_IDLE;
}

/* What is only worth copying gets what promises leave of half the usual budget. */
static void apply_wishes(struct fb_log *log, uint64_t kept)
{
    struct fb_log_reclaim *reclaim = &log->reclaim;
    uint64_t most = (uint64_t)log->segment_blocks * FB_LOG_WISH_PERCENT / 100;
    if (fb_log_free_segments(log) == 0)
        most = 0;
    for (uint32_t i = 0; i < reclaim->record_count; i++) {
        struct fb_log_victim *victim = &reclaim->records[i];
        if (victim->state != FB_LOG_VICTIM_WISH)
            continue;
        bool fits = kept + victim->blocks <= most;
        victim->state = fits ? FB_LOG_VICTIM_KEEP : FB_LOG_VICTIM_DROP;
        kept += fits ? victim->blocks : 0;
    }
}

/* Makes drops of what is over the budget for copying, or of all if there is no room for copies. */
static void apply_budget(struct fb_log *log, uint64_t budget)
{
    struct fb_log_reclaim *reclaim = &log->reclaim;
    if (fb_log_free_segments(log) == 0 && fb_log_rescue(log) == NULL)
        budget = 0;
    /* Every other victim was put off, and there is room for a whole segment of copies: nothing that
     * the owner has promised to keep is given up. */
    if (reclaim->is_forced && fb_log_free_segments(log) > log->config.reserve_segments)
        budget = log->segment_blocks;
    /* With the reserve alone there is room too, but each turn must gain something. */
    else if (reclaim->is_forced && fb_log_free_segments(log) > 0)
        budget = (uint64_t)log->segment_blocks * FB_LOG_FORCED_PERCENT / 100;
    uint64_t kept = 0;
    for (uint32_t i = 0; i < reclaim->record_count; i++) {
        struct fb_log_victim *victim = &reclaim->records[i];
        if (victim->state != FB_LOG_VICTIM_KEEP)
            continue;
        kept += victim->blocks;
        if (kept > budget)
            victim->state = FB_LOG_VICTIM_DROP;
    }
    apply_wishes(log, kept);
}

static void judged(struct fb_log *log, struct fb_log_walker *walker)
{
    (void)walker;
    struct fb_log_reclaim *reclaim = &log->reclaim;
    uint64_t budget = (uint64_t)log->segment_blocks * FB_LOG_COPY_PERCENT / 100;
    reclaim->is_forced |= is_oldest_due(log);
    if (reclaim->keep_blocks > budget && !reclaim->is_forced) {
        log->segments[reclaim->victim].deferred = reclaim->round;
        release_victim(log);
        return;
    }
    reclaim->is_round_fruitful |= !reclaim->is_forced;
    reclaim->round_count++;
    apply_budget(log, budget);
    reclaim->step = FB_LOG_RECLAIM_COPY;
    reclaim->next = 0;
    reclaim->has_read = false;
    reclaim->deadline_ns = fb_add_saturated(log->now_ns, FB_LOG_COPY_WAIT_NS);
}

/* Begins with a victim; false if a lost one must wait for a number. */
static bool begin_victim(struct fb_log *log, uint32_t victim)
{
    struct fb_log_reclaim *reclaim = &log->reclaim;
    struct fb_log_segment *segment = &log->segments[victim];
    reclaim->is_lost = segment->state == FB_LOG_SEG_LOST;
    if (reclaim->is_lost && log->next_incarnation >= log->super.incarnation_frontier)
        return false;
    reclaim->incarnation =
        reclaim->is_lost ? (uint32_t)log->next_incarnation++ : segment->incarnation;
    reclaim->victim = victim;
    reclaim->was_state = segment->state;
    segment->state = FB_LOG_SEG_RECLAIM;
    reclaim->record_count = 0;
    reclaim->next = 0;
    reclaim->copying = 0;
    reclaim->tombs_copying = 0;
    reclaim->keep_blocks = 0;
    reclaim->is_tombs_walked = false;
    reclaim->deadline_ns = fb_add_saturated(log->now_ns, FB_LOG_COPY_WAIT_NS);
    reclaim->step = FB_LOG_RECLAIM_JUDGE;
    if (reclaim->is_lost)
        reclaim->step = FB_LOG_RECLAIM_COPY; /* nothing of it is believed but tombstones */
    else
        fb_log_walk_start(log, &log->walkers[FB_LOG_WALKER_RECLAIM], victim, true, judge_record,
                          judged);
    return true;
}

/*
 * A rescue whose victim is not there any more under that number (a lost segment gets another one
 * with each try) is an ordinary open segment. Without this it would wait for its victim for ever.
 */
static void release_rescue(struct fb_log *log)
{
    const struct fb_log_writer *rescue = fb_log_rescue(log);
    if (rescue == NULL)
        return;
    for (uint32_t i = 0; i < log->grown; i++) {
        const struct fb_log_segment *segment = &log->segments[i];
        if (segment->incarnation == rescue->rescue_of && fb_log_is_alive(segment))
            return;
    }
    fb_log_rescue_over(log);
}

/* Begins with the next victim; false if there is none. */
static bool begin(struct fb_log *log)
{
    struct fb_log_reclaim *reclaim = &log->reclaim;
    struct fb_log_walker *walker = &log->walkers[FB_LOG_WALKER_RECLAIM];
    if (!fb_log_walk_is_idle(walker) || reclaim->read.is_busy)
        return false;
    release_rescue(log);
    /* What was put off is looked at again after a while, even if newer segments are to be had: else
     * it would stay for ever, and the others would come round faster and faster. */
    if (reclaim->round_count > log->grown / FB_LOG_ROUND_SHARE) {
        reclaim->round++;
        reclaim->round_count = 0;
    }
    uint32_t victim = choose_victim(log);
    reclaim->is_forced = false;
    if (victim == log->geometry.segments) {
        /* Those that were put off are looked at again: leases may be over by now. Only when a
         * whole round found nothing else is one of them taken all the same. */
        reclaim->round++;
        reclaim->round_count = 0;
        reclaim->is_forced = !reclaim->is_round_fruitful;
        reclaim->is_round_fruitful = false;
        victim = choose_victim(log);
    }
    if (victim == log->geometry.segments) {
        reclaim->is_asked = false;
        if (is_tomb_pressure(log))
            close_oldest(log);
        return false;
    }
    if (is_tomb_pressure(log) && close_older(log, victim))
        return false;
    return begin_victim(log, victim);
}

/* ---- tombstones ---- */

static bool copy_tomb(struct fb_log *log, struct fb_log_walker *walker,
                      const struct fb_log_record *record, const struct fb_log_found *found)
{
    (void)walker;
    if (record->kind != FB_LOG_TOMB || !fb_log_is_tomb_needed(log, found->horizon))
        return true;
    return fb_log_tomb_copy(log, record, found);
}

static void tombs_walked(struct fb_log *log, struct fb_log_walker *walker)
{
    (void)walker;
    log->reclaim.is_tombs_walked = true;
}

static void begin_tombs(struct fb_log *log)
{
    struct fb_log_reclaim *reclaim = &log->reclaim;
    reclaim->step = FB_LOG_RECLAIM_TOMBS;
    reclaim->lowest_other = lowest_alive(log, reclaim->victim);
    reclaim->deadline_ns = fb_add_saturated(log->now_ns, FB_LOG_COPY_WAIT_NS);
    struct fb_log_walker *walker = &log->walkers[FB_LOG_WALKER_RECLAIM];
    const struct fb_log_segment *segment = &log->segments[reclaim->victim];
    if (segment->tombs == 0 || segment->rescue_of != 0)
        reclaim->is_tombs_walked = true; /* none, or none that its own victim has not */
    else if (reclaim->is_lost)
        fb_log_walk_lost(log, walker, reclaim->victim, copy_tomb, tombs_walked);
    else
        fb_log_walk_start(log, walker, reclaim->victim, true, copy_tomb, tombs_walked);
}

void fb_log_reclaim_progress(struct fb_log *log)
{
    struct fb_log_reclaim *reclaim = &log->reclaim;
    if (reclaim->step != FB_LOG_RECLAIM_TOMBS)
        return;
    reclaim->deadline_ns = fb_add_saturated(log->now_ns, FB_LOG_COPY_WAIT_NS);
    struct fb_log_walker *walker = &log->walkers[FB_LOG_WALKER_RECLAIM];
    if (walker->is_paused)
        fb_log_walk_resume(log, walker);
}

/* ---- asking again, the record, forgetting ---- */

/* What should have been copied and is still what the index points at was not copied: drop. */
static bool ask(struct fb_log *log)
{
    struct fb_log_reclaim *reclaim = &log->reclaim;
    uint32_t end = (uint32_t)fb_min_u64(reclaim->next + FB_LOG_TURN_RECORDS, reclaim->record_count);
    for (; reclaim->next < end; reclaim->next++) {
        struct fb_log_victim *victim = &reclaim->records[reclaim->next];
        if (victim->state != FB_LOG_VICTIM_COPIED)
            continue;
        struct fb_log_record record = {.kind = FB_LOG_VALUE,
                                       .part = victim->part,
                                       .digest = victim->digest,
                                       .generation = victim->generation};
        struct fb_log_addr addr = victim_addr(log, victim->data_block);
        if (log->owner.judge(log->owner.ctx, &record, &addr) != FB_LOG_DEAD)
            victim->state = FB_LOG_VICTIM_DROP;
    }
    return reclaim->next == reclaim->record_count;
}

/* Parts of one value have one entry. */
static bool is_new_entry(const struct fb_log_reclaim *reclaim, uint32_t index, uint32_t last)
{
    const struct fb_log_victim *victim = &reclaim->records[index];
    if (victim->state != FB_LOG_VICTIM_DROP)
        return false;
    return last == UINT32_MAX || reclaim->records[last].generation != victim->generation ||
           !fb_digest_is_equal(reclaim->records[last].digest, victim->digest);
}

static void record_done(struct fb_log *log, int result)
{
    struct fb_log_reclaim *reclaim = &log->reclaim;
    if (result != 0) {
        reclaim->retry_ns = fb_add_saturated(log->now_ns, FB_LOG_RETRY_MIN_NS);
        log->stats.reclaims_given_up++;
        release_victim(log);
        return;
    }
    fb_log_rescue_over(log);
    reclaim->step = FB_LOG_RECLAIM_DROP;
    reclaim->next = 0;
}

static void write_record(struct fb_log *log);

/* A stuck segment was named again; now for the record itself. */
static void named_again(struct fb_log *log, int result)
{
    if (result != 0)
        record_done(log, result);
    else
        write_record(log);
}

/* Before the ring passes the record of a stuck segment, it is named again. True if that is done. */
static bool name_stuck(struct fb_log *log)
{
    uint32_t stuck = fb_log_history_endangered(log);
    if (stuck == log->geometry.segments)
        return false;
    fb_log_history_begin(log, stuck, log->fates[stuck].dead_incarnation, FB_REASON_RECLAIMED_SSD,
                         0);
    fb_log_history_write(log, named_again);
    return true;
}

static void write_record(struct fb_log *log)
{
    struct fb_log_reclaim *reclaim = &log->reclaim;
    reclaim->step = FB_LOG_RECLAIM_HISTORY;
    if (name_stuck(log))
        return;
    uint32_t entries = 0, last = UINT32_MAX;
    for (uint32_t i = 0; i < reclaim->record_count; i++) {
        if (is_new_entry(reclaim, i, last)) {
            entries++;
            last = i;
        }
    }
    enum fb_reason reason = (enum fb_reason)log->segments[reclaim->victim].reason;
    fb_log_history_begin(log, reclaim->victim, reclaim->incarnation,
                         reason != FB_REASON_NONE ? reason : FB_REASON_RECLAIMED_SSD, entries);
    last = UINT32_MAX;
    for (uint32_t i = 0, at = 0; i < reclaim->record_count; i++) {
        if (!is_new_entry(reclaim, i, last))
            continue;
        struct fb_log_history_entry entry = {.digest = reclaim->records[i].digest,
                                             .generation = reclaim->records[i].generation};
        fb_log_history_add(log, at++, &entry);
        last = i;
    }
    fb_log_history_write(log, record_done);
}

static bool drop(struct fb_log *log)
{
    struct fb_log_reclaim *reclaim = &log->reclaim;
    uint32_t end = (uint32_t)fb_min_u64(reclaim->next + FB_LOG_TURN_RECORDS, reclaim->record_count);
    for (; reclaim->next < end; reclaim->next++) {
        struct fb_log_victim *victim = &reclaim->records[reclaim->next];
        if (victim->state != FB_LOG_VICTIM_DROP)
            continue;
        struct fb_log_addr addr = victim_addr(log, victim->data_block);
        log->stats.records_dropped++;
        log->owner.dropped(log->owner.ctx, &victim->digest, victim->generation, &addr);
    }
    return reclaim->next == reclaim->record_count;
}

static void segment_free(struct fb_log *log, enum fb_log_segment_state state)
{
    struct fb_log_reclaim *reclaim = &log->reclaim;
    reclaim->step = FB_LOG_RECLAIM_IDLE;
    reclaim->is_asked = false;
    log->stats.segments_reclaimed += state == FB_LOG_SEG_FREE;
    fb_log_segment_settle(log, reclaim->victim, state);
}

static void begin_free(struct fb_log *log)
{
    struct fb_log_reclaim *reclaim = &log->reclaim;
    struct fb_log_segment *segment = &log->segments[reclaim->victim];
    log->stats.tombs_dropped += segment->tombs;
    fb_log_segment_forget(log, reclaim->victim);
    segment->state = FB_LOG_SEG_FREEING;
    reclaim->step = FB_LOG_RECLAIM_FREE;
    segment->incarnation = reclaim->incarnation;
    fb_log_free_start(log, reclaim->victim, reclaim->incarnation, segment_free);
}

/* ---- the machine ---- */

void fb_log_reclaim_abandon(struct fb_log *log)
{
    struct fb_log_reclaim *reclaim = &log->reclaim;
    if (reclaim->step == FB_LOG_RECLAIM_IDLE || reclaim->step >= FB_LOG_RECLAIM_HISTORY)
        return;
    fb_log_walk_abort(&log->walkers[FB_LOG_WALKER_RECLAIM]);
    for (uint32_t i = 0; i < FB_LOG_TOMB_COPIES; i++) {
        struct fb_log_tomb_copy *copy = &log->tomb_copies[i];
        copy->is_wanted = false;
        /* What has no place yet must not take one from the next reclaim. */
        if (copy->is_busy && fb_log_cancel(log, &copy->item))
            copy->is_busy = false;
    }
    reclaim->copying = 0;
    reclaim->tombs_copying = 0;
    reclaim->retry_ns = fb_add_saturated(log->now_ns, FB_LOG_RETRY_MIN_NS);
    log->stats.reclaims_given_up++;
    release_victim(log);
}

bool fb_log_reclaim_is_copying(const struct fb_log *log)
{
    return log->reclaim.step == FB_LOG_RECLAIM_COPY || log->reclaim.step == FB_LOG_RECLAIM_TOMBS;
}

/* True if the owner, or the place for tombstones, took too long. */
static bool is_late(const struct fb_log *log)
{
    const struct fb_log_reclaim *reclaim = &log->reclaim;
    return fb_log_reclaim_is_copying(log) &&
           fb_log_is_due(log->now_ns, reclaim->deadline_ns, FB_LOG_COPY_WAIT_NS);
}

static bool step(struct fb_log *log)
{
    struct fb_log_reclaim *reclaim = &log->reclaim;
    bool moved = false;
    switch (reclaim->step) {
    case FB_LOG_RECLAIM_IDLE:
        return !log->is_fenced && is_wanted(log) && begin(log);
    case FB_LOG_RECLAIM_COPY:
        if (!fb_log_copy_step(log, &moved))
            return moved;
        begin_tombs(log);
        return true;
    case FB_LOG_RECLAIM_TOMBS:
        if (!reclaim->is_tombs_walked || reclaim->tombs_copying > 0)
            return false;
        reclaim->step = FB_LOG_RECLAIM_ASK;
        reclaim->next = 0;
        return true;
    case FB_LOG_RECLAIM_ASK:
        if (ask(log))
            write_record(log);
        else
            reclaim->is_turn_over = true;
        return true;
    case FB_LOG_RECLAIM_DROP:
        if (drop(log))
            begin_free(log);
        else
            reclaim->is_turn_over = true;
        return true;
    default:
        return false;
    }
}

bool fb_log_reclaim_pump(struct fb_log *log)
{
    struct fb_log_reclaim *reclaim = &log->reclaim;
    if (log->phase != FB_LOG_PHASE_SERVING || reclaim->is_turn_over)
        return false;
    if (is_late(log)) {
        if (reclaim->step == FB_LOG_RECLAIM_TOMBS)
            log->segments[reclaim->victim].deferred = reclaim->round;
        fb_log_reclaim_abandon(log);
        reclaim->retry_ns = fb_add_saturated(log->now_ns, FB_LOG_RETRY_MAX_NS);
        return true;
    }
    return step(log);
}

uint64_t fb_log_reclaim_next_ns(const struct fb_log *log)
{
    const struct fb_log_reclaim *reclaim = &log->reclaim;
    if (reclaim->is_turn_over)
        return log->now_ns;
    if (fb_log_reclaim_is_copying(log))
        return reclaim->deadline_ns;
    if (reclaim->step == FB_LOG_RECLAIM_IDLE && reclaim->retry_ns > log->now_ns)
        return reclaim->retry_ns;
    return UINT64_MAX;
}

void fb_log_reclaim_one(struct fb_log *log, uint64_t now_ns)
{
    log->now_ns = now_ns;
    log->depth++;
    if (log->reclaim.step == FB_LOG_RECLAIM_IDLE)
        log->reclaim.is_asked = true;
    fb_log_leave(log);
}
