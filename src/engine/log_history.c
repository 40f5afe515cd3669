/*
 * The ring of reclaim records, and its image in memory by which a key's fate is found.
 *
 * The image has room for each block of the ring, so that both forget the same records: when a block
 * of the ring is overwritten, what it said leaves the memory too.
 */
#include <string.h>

#include "engine/log_private.h"

#define NONE UINT32_MAX

static uint32_t *bucket_of(struct fb_log_history_state *history, const struct fb_digest *digest)
{
    return &history->buckets[digest->lo & (history->bucket_count - 1)];
}

/* Forgets what a block of the ring said. */
static void forget_block(struct fb_log_history_state *history, uint32_t block)
{
    uint32_t first = block * FB_LOG_HISTORY_ENTRIES_MAX;
    for (uint32_t i = first; i < first + FB_LOG_HISTORY_ENTRIES_MAX; i++) {
        struct fb_log_past *past = &history->past[i];
        if (past->used == 0)
            break;
        uint32_t *link = bucket_of(history, &past->digest);
        while (*link != i) {
            FB_ASSERT(*link != NONE);
            link = &history->past[*link].next;
        }
        *link = past->next;
        past->used = 0;
    }
    history->when_ms[block] = 0;
}

/* Takes what a good block says into memory. */
static void take_block(struct fb_log_history_state *history, uint32_t block, const void *bytes,
                       const struct fb_log_history_head *head)
{
    forget_block(history, block);
    history->when_ms[block] = fb_max_u64(head->when_ms, 1);
    history->issued[block] = head->issued;
    for (uint32_t i = 0; i < head->entries; i++) {
        struct fb_log_history_entry entry = fb_log_format_history_entry(bytes, i);
        uint32_t index = block * FB_LOG_HISTORY_ENTRIES_MAX + i;
        struct fb_log_past *past = &history->past[index];
        uint32_t *bucket = bucket_of(history, &entry.digest);
        *past = (struct fb_log_past){.digest = entry.digest,
                                     .generation = entry.generation,
                                     .next = *bucket,
                                     .used = 1};
        *bucket = index;
    }
}

/* The block of the oldest record that is left, once the ring has come round; else NONE: then
 * nothing was forgotten. */
static uint32_t oldest_block(const struct fb_log_history_state *history)
{
    bool is_round = history->next_sequence > history->blocks;
    for (uint32_t i = 0; is_round && i < history->blocks; i++) {
        uint32_t block = (history->next_block + i) % history->blocks;
        if (history->when_ms[block] != 0)
            return block;
    }
    return NONE;
}

uint64_t fb_log_history_since(const struct fb_log *log)
{
    uint32_t oldest = oldest_block(&log->history);
    return oldest == NONE ? 0 : log->history.when_ms[oldest];
}

uint64_t fb_log_history_oldest(const struct fb_log *log)
{
    uint32_t oldest = oldest_block(&log->history);
    return oldest == NONE ? 0 : log->history.issued[oldest];
}

/* A number for a record: what is written from now on has a horizon that is not below it. */
static uint64_t take_number(struct fb_log *log)
{
    return log->next_incarnation < UINT32_MAX ? log->next_incarnation++ : UINT32_MAX;
}

bool fb_log_history(const struct fb_log *log, const struct fb_digest *digest, uint64_t *generation,
                    uint64_t *when_ms, uint64_t *since_ms)
{
    const struct fb_log_history_state *history = &log->history;
    *since_ms = fb_log_history_since(log);
    bool is_found = false;
    uint32_t i = history->buckets[digest->lo & (history->bucket_count - 1)];
    for (; i != NONE; i = history->past[i].next) {
        const struct fb_log_past *past = &history->past[i];
        if (!fb_digest_is_equal(past->digest, *digest))
            continue;
        if (is_found && past->generation <= *generation)
            continue;
        is_found = true;
        *generation = past->generation;
        *when_ms = history->when_ms[i / FB_LOG_HISTORY_ENTRIES_MAX];
    }
    return is_found;
}

/* ---- writing ---- */

/* The wall clock now: the last tick may be some time ago. */
static uint64_t wall_ms(const struct fb_log *log)
{
    return log->wall_ms + fb_sub_floored(log->now_ns, log->wall_at_ns) / FB_MS_NS;
}

/* Where a record of `count` blocks would go. */
static uint32_t place_for(const struct fb_log_history_state *history, uint32_t count)
{
    return history->next_block + count <= history->blocks ? history->next_block : 0;
}

void fb_log_history_begin(struct fb_log *log, uint32_t segment, uint32_t incarnation,
                          enum fb_reason reason, uint32_t entries)
{
    struct fb_log_history_state *history = &log->history;
    uint32_t count = (uint32_t)fb_max_u64(fb_div_up(entries, FB_LOG_HISTORY_ENTRIES_MAX), 1);
    FB_ASSERT(!history->meta.is_busy && count <= history->record_blocks_max);
    history->count = count;
    history->at = place_for(history, count);
    history->run = (struct fb_log_history_head){.segment = segment,
                                                .incarnation = incarnation,
                                                .count = count,
                                                .when_ms = wall_ms(log),
                                                .issued = take_number(log),
                                                .reason = (uint16_t)reason,
                                                .entries = 0};
    history->run_length = entries;
}

uint32_t fb_log_stuck_max(const struct fb_log *log)
{
    const struct fb_log_history_state *history = &log->history;
    /* What is repeated must not come to lie where the ring is about to go on. */
    return (uint32_t)fb_min_u64(FB_LOG_STUCK_MAX,
                                (history->blocks - history->record_blocks_max - 1) / 2);
}

uint32_t fb_log_history_endangered(const struct fb_log *log)
{
    const struct fb_log_history_state *history = &log->history;
    /* Room for the longest record and for one more about each stuck segment. */
    uint32_t reach = history->record_blocks_max + log->stuck + 1;
    uint32_t at = place_for(history, reach);
    for (uint32_t i = 0; log->stuck > 0 && i < log->grown; i++) {
        const struct fb_log_fate *fate = &log->fates[i];
        if (log->segments[i].state == FB_LOG_SEG_STUCK && fate->ring_count > 0 &&
            fate->ring_block < at + reach && fate->ring_block + fate->ring_count > at)
            return i;
    }
    return log->geometry.segments;
}

void fb_log_history_add(struct fb_log *log, uint32_t index,
                        const struct fb_log_history_entry *entry)
{
    struct fb_log_history_state *history = &log->history;
    FB_ASSERT(index < history->run_length);
    uint8_t *block =
        history->buffer.at + (size_t)(index / FB_LOG_HISTORY_ENTRIES_MAX) * FB_BLOCK_BYTES;
    fb_log_format_history_set(block, index % FB_LOG_HISTORY_ENTRIES_MAX, entry);
}

static void end(struct fb_log *log, int result)
{
    struct fb_log_history_state *history = &log->history;
    void (*done)(struct fb_log *, int) = history->done;
    if (result == 0) {
        for (uint32_t i = 0; i < history->count; i++) {
            struct fb_log_history_head head;
            const uint8_t *block = history->buffer.at + (size_t)i * FB_BLOCK_BYTES;
            enum fb_log_block found =
                fb_log_format_history_get(block, log->super.device_id, history->at + i, &head);
            FB_ASSERT(found == FB_LOG_BLOCK_GOOD);
            take_block(history, history->at + i, block, &head);
        }
        history->next_block = (history->at + history->count) % history->blocks;
        log->fates[history->run.segment] =
            (struct fb_log_fate){.dead_incarnation = (uint32_t)history->run.incarnation,
                                 .ring_block = history->at,
                                 .ring_count = history->count};
    }
    done(log, result);
}

static void record_flushed(struct fb_log *log, struct fb_log_ticket *ticket, int result)
{
    (void)ticket;
    end(log, result);
}

static void record_written(struct fb_log *log, struct fb_log_meta *meta, int result)
{
    if (result != 0)
        end(log, result);
    else
        fb_log_ticket_start(log, &log->history.ticket, meta->failures, record_flushed);
}

/*
 * A record that failed is written again to the same place under later numbers. What the failed
 * write left there may count at the next start: then the segment is dead, and everything live of it
 * is named.
 */
void fb_log_history_write(struct fb_log *log, void (*done)(struct fb_log *log, int result))
{
    struct fb_log_history_state *history = &log->history;
    struct fb_log_history_head head = history->run;
    uint32_t left = history->run_length;
    for (uint32_t i = 0; i < history->count; i++) {
        head.sequence = history->next_sequence++;
        head.ring_block = history->at + i;
        head.index = i;
        head.entries = (uint16_t)fb_min_u64(left, FB_LOG_HISTORY_ENTRIES_MAX);
        left -= head.entries;
        fb_log_format_history_put(history->buffer.at + (size_t)i * FB_BLOCK_BYTES,
                                  log->super.device_id, &head);
    }
    FB_ASSERT(left == 0);
    history->run_length = 0;
    history->done = done;
    fb_log_meta_start(log, &history->meta, FB_IO_WRITE, &history->buffer,
                      log->geometry.history_off + (uint64_t)history->at * FB_BLOCK_BYTES,
                      history->count * FB_BLOCK_BYTES, record_written);
}

/* ---- recovery ---- */

/* The run of blocks that is being read does not go on: unless complete it was never in force. */
static void break_run(struct fb_log_history_state *history)
{
    for (uint32_t i = 0; i < history->run_length; i++)
        forget_block(history, history->run.ring_block + i);
    history->run_length = 0;
}

/* A record is complete, so it is in force. */
static void record_in_force(struct fb_log *log)
{
    struct fb_log_history_state *history = &log->history;
    const struct fb_log_history_head *run = &history->run;
    history->run_length = 0;
    log->recover.incarnation_max = fb_max_u64(log->recover.incarnation_max, run->incarnation);
    if (run->segment >= log->geometry.segments)
        return;
    struct fb_log_fate *fate = &log->fates[run->segment];
    if (run->incarnation > fate->dead_incarnation) {
        *fate = (struct fb_log_fate){.dead_incarnation = (uint32_t)run->incarnation,
                                     .ring_block = run->ring_block,
                                     .ring_count = run->count};
    }
    if (run->sequence >= history->newest_sequence) {
        history->newest_sequence = run->sequence;
        history->newest_segment = run->segment;
    }
}

void fb_log_history_load(struct fb_log *log, uint32_t ring_block, const void *block)
{
    struct fb_log_history_state *history = &log->history;
    struct fb_log_history_head head, *run = &history->run;
    if (fb_log_format_history_get(block, log->super.device_id, ring_block, &head) !=
        FB_LOG_BLOCK_GOOD) {
        break_run(history);
        return;
    }
    if (head.sequence >= history->next_sequence) {
        history->next_sequence = head.sequence + 1;
        history->next_block = (ring_block + 1) % history->blocks;
    }
    bool goes_on = history->run_length > 0 && head.index == history->run_length &&
                   head.sequence == run->sequence + head.index && head.count == run->count &&
                   head.segment == run->segment && head.incarnation == run->incarnation;
    if (!goes_on) {
        break_run(history);
        if (head.index != 0)
            return;
        *run = head;
    }
    take_block(history, ring_block, block, &head);
    history->run_length++;
    if (history->run_length == run->count)
        record_in_force(log);
}

void fb_log_history_loaded(struct fb_log *log)
{
    break_run(&log->history);
}
