/*
 * toylog.c - the engine of toylog.h: items, jobs, units, reclaim, and a random load.
 */
#include "test/lib/toylog.h"

#include <stddef.h>
#include <string.h>

#include "base/assert.h"

static uint16_t max16(uint16_t a, uint16_t b)
{
    return a > b ? a : b;
}

/* ---- items: records on their way ----------------------------------------------------------- */

static struct toy_item *add_item(struct toy *t, enum toy_why why, struct toy_record rec,
                                 unsigned class)
{
    for (unsigned i = 0; i < TOY_ITEMS_MAX; i++)
        if (t->item[i].used == 0) {
            t->item[i] = (struct toy_item){.used = 1,
                                           .why = (uint8_t)why,
                                           .job = TOY_NONE,
                                           .class = (uint8_t) class,
                                           .rec = rec};
            return &t->item[i];
        }
    FB_UNREACHABLE();
}

static unsigned free_items(const struct toy *t)
{
    unsigned n = 0;
    for (unsigned i = 0; i < TOY_ITEMS_MAX; i++)
        n += t->item[i].used == 0;
    return n;
}

static void add_tomb(struct toy *t, enum toy_why why, unsigned key, unsigned gen, unsigned class)
{
    struct toy_record rec = {.kind = TOY_TOMB, .key = (uint8_t)key, .gen = (uint16_t)gen};
    add_item(t, why, rec, class);
}

/* A record of this generation may be on the device, and the index does not point at it. */
static void mark_stray(struct toy_key *key, enum toy_rule rule, unsigned gen)
{
    if (toy_rule(rule) && gen > key->tomb)
        key->stray = max16(key->stray, (uint16_t)gen);
}

/* True if an older generation may be on the device and is not durably killed. */
static bool is_old_on_disk(const struct toy_key *key)
{
    return key->disk != 0 || key->stray != 0 || key->victim != 0 ||
           (toy_rule(TOY_FLIGHT_COUNTS) && key->inflight != 0);
}

static void install(struct toy *t, unsigned k, uint16_t gen, bool dirty)
{
    struct toy_key *key = &t->key[k];
    key->dram = gen;
    key->dirty = dirty;
    t->oracle[k].acked = max16(t->oracle[k].acked, gen);
    if (!dirty)
        t->oracle[k].persisted = max16(t->oracle[k].persisted, gen);
    toy_say("key %u: g%u stored, %s", k, gen, dirty ? "cached" : "persisted");
}

static void point_at(struct toy_key *key, const struct toy_record *rec, unsigned segment,
                     unsigned inc)
{
    key->disk = rec->gen;
    key->segment = (uint8_t)segment;
    key->at = rec->at;
    key->inc = (uint16_t)inc;
}

static bool points_at(const struct toy_key *key, const struct toy_record *rec, unsigned segment)
{
    return key->disk == rec->gen && key->segment == segment && key->at == rec->at;
}

static void tomb_durable(struct toy *t, unsigned k, uint16_t gen)
{
    struct toy_key *key = &t->key[k];
    key->tomb = max16(key->tomb, gen);
    t->oracle[k].killed = max16(t->oracle[k].killed, gen);
    if (key->stray <= gen)
        key->stray = 0;
    if (key->victim <= gen)
        key->victim = 0;
    if (key->disk <= gen)
        key->disk = 0;
    if (key->drop <= gen)
        key->drop = 0;
}

static void value_durable(struct toy *t, const struct toy_item *item, const struct toy_record *rec,
                          unsigned segment)
{
    unsigned k = item->rec.key;
    struct toy_key *key = &t->key[k];
    unsigned inc = t->seg[segment].inc;
    key->inflight--;
    if (item->why == TOY_PUT) {
        bool killed = key->put_killed;
        key->put = 0;
        if (killed) {
            mark_stray(key, TOY_STALE_COUNTS, rec->gen);
        } else {
            point_at(key, rec, segment, inc);
            install(t, k, rec->gen, false);
        }
    } else if (item->why == TOY_CLEAN) {
        key->cleaning = false;
        if (key->dram == rec->gen && key->dirty && key->dram > key->tomb) {
            point_at(key, rec, segment, inc);
            key->dirty = false;
            t->oracle[k].persisted = max16(t->oracle[k].persisted, rec->gen);
            toy_say("key %u: g%u cleaned", k, rec->gen);
        } else {
            mark_stray(key, TOY_STALE_COUNTS, rec->gen);
        }
    } else if (key->disk == rec->gen && key->segment == t->reclaim.segment) {
        point_at(key, rec, segment, inc);
        if (toy_rule(TOY_COPY_COUNTS))
            key->victim = rec->gen;
    } else {
        mark_stray(key, TOY_STALE_COUNTS, rec->gen);
    }
}

/* The kill of a put has failed: it may be there or not. So its victim can be promised no more. */
static void kill_failed(struct toy *t, unsigned k, uint16_t gen)
{
    struct toy_key *key = &t->key[k];
    if (!toy_rule(TOY_FAILED_KILL_DROPS)) {
        if (key->disk != 0)
            t->oracle[k].void_kill = gen;
        return;
    }
    mark_stray(key, TOY_HIDDEN_COUNTS, key->disk);
    key->drop = max16(key->drop, max16(key->disk, key->stray));
    key->disk = 0;
    if (key->dram <= gen)
        key->dram = 0;
    toy_say("key %u: given up, its kill up to g%u is in doubt", k, gen);
}

static void reclaim_item_ended(struct toy *t, bool good)
{
    if (t->reclaim.left == 0)
        return;
    t->reclaim.left--;
    t->reclaim.failed = t->reclaim.failed || !good;
}

/* The record of an item as it was laid out: with its place. */
static const struct toy_record *placed_record(const struct toy_segment *seg,
                                              const struct toy_item *item)
{
    for (unsigned i = seg->records; i-- > 0;)
        if (seg->rec[i].kind == item->rec.kind && seg->rec[i].key == item->rec.key &&
            seg->rec[i].gen == item->rec.gen && seg->rec[i].at == item->rec.at)
            return &seg->rec[i];
    FB_UNREACHABLE();
}

static void item_durable(struct toy *t, struct toy_item *item, unsigned segment)
{
    unsigned k = item->rec.key;
    struct toy_key *key = &t->key[k];
    struct toy_record rec = *placed_record(&t->seg[segment], item);
    item->used = 0;
    toy_say("durable: key %u %s g%u in segment %u", k, rec.kind == TOY_TOMB ? "tomb" : "value",
            rec.gen, segment);
    if (rec.kind == TOY_TOMB || item->kill)
        tomb_durable(t, k, rec.kind == TOY_TOMB ? rec.gen : (uint16_t)(rec.gen - 1));
    if (rec.kind == TOY_VALUE)
        value_durable(t, item, &rec, segment);
    else if (item->why == TOY_PUT) {
        uint16_t gen = key->put;
        key->put = 0;
        if (!key->put_killed)
            install(t, k, gen, true);
    } else if (item->why == TOY_REMOVE) {
        t->oracle[k].removed = max16(t->oracle[k].removed, rec.gen);
        key->removing = 0;
        toy_say("key %u: remove g%u answered", k, rec.gen);
    } else if (item->why == TOY_DROP) {
        key->dropping = false;
    }
    if (item->why == TOY_COPY || item->why == TOY_GIVEUP)
        reclaim_item_ended(t, true);
}

static void item_failed(struct toy *t, struct toy_item *item)
{
    unsigned k = item->rec.key;
    struct toy_key *key = &t->key[k];
    item->used = 0;
    toy_say("failed: key %u %s g%u", k, item->rec.kind == TOY_TOMB ? "tomb" : "value",
            item->rec.gen);
    if (item->rec.kind == TOY_VALUE) {
        key->inflight--;
        mark_stray(key, TOY_FAILED_COUNTS, item->rec.gen);
    }
    if (item->why == TOY_PUT) {
        key->put = 0;
        if (item->kill || item->rec.kind == TOY_TOMB)
            kill_failed(t, k, (uint16_t)(item->rec.gen - (item->rec.kind == TOY_VALUE)));
    } else if (item->why == TOY_REMOVE) {
        key->removing = 0;
    } else if (item->why == TOY_CLEAN) {
        key->cleaning = false;
    } else if (item->why == TOY_DROP) {
        key->dropping = false;
    } else {
        if (item->why == TOY_GIVEUP)
            kill_failed(t, k, item->rec.gen);
        reclaim_item_ended(t, false);
    }
}

/* ---- jobs: writes that become durable together --------------------------------------------- */

static unsigned new_job(struct toy *t, enum toy_job_kind kind, unsigned segment)
{
    for (unsigned i = 0; i < TOY_JOBS_MAX; i++)
        if (t->job[i].kind == 0) {
            t->job[i] = (struct toy_job){.kind = (uint8_t)kind,
                                         .segment = (uint8_t)segment,
                                         .order = t->order++};
            return i;
        }
    FB_UNREACHABLE();
}

static bool has_room(const struct toy *t)
{
    unsigned n = 0;
    for (unsigned i = 0; i < TOY_JOBS_MAX; i++)
        n += t->job[i].kind == 0;
    return n >= 3 && t->dev.writes + 2 * TOY_SEG_BLOCKS < TOY_WRITES_MAX;
}

/* All blocks of a segment below this one are durable. */
static unsigned durable_frontier(const struct toy *t, unsigned segment)
{
    return t->seg[segment].durable;
}

/* The first block of the segment that is not known to be durable: units end in any order. */
static void raise_frontier(struct toy *t, unsigned segment)
{
    struct toy_segment *seg = &t->seg[segment];
    unsigned least = seg->end;
    if (seg->state == TOY_S_RETIRED)
        return;
    for (unsigned i = 0; i < TOY_JOBS_MAX; i++) {
        const struct toy_job *job = &t->job[i];
        if (job->kind == TOY_UNIT && job->segment == segment && job->end <= least)
            least = seg->durable;
    }
    seg->durable = (uint8_t)least;
}

static void reclaim_recorded(struct toy *t);
static void reclaim_freed(struct toy *t);
static void reclaim_record_failed(struct toy *t);
static void write_free_header(struct toy *t, unsigned segment);

static void retire(struct toy *t, unsigned segment)
{
    t->seg[segment].state = TOY_S_RETIRED;
    for (unsigned c = 0; c < TOY_CLASSES; c++)
        if (t->open[c] == segment)
            t->open[c] = TOY_NONE;
}

static void job_ended(struct toy *t, unsigned j, bool good)
{
    struct toy_job job = t->job[j];
    t->job[j].kind = 0;
    for (unsigned i = 0; i < t->dev.writes; i++)
        if (t->dev.write[i].job == j)
            t->dev.write[i].job = TOY_NONE;
    if (job.kind == TOY_UNIT) {
        if (!good)
            retire(t, job.segment);
        for (unsigned i = 0; !good && toy_rule(TOY_UNIT_ORDER) && i < TOY_JOBS_MAX; i++)
            if (t->job[i].kind == TOY_UNIT && t->job[i].segment == job.segment)
                t->job[i].doomed = 1;
        for (unsigned i = 0; i < TOY_ITEMS_MAX; i++) {
            if (t->item[i].used == 0 || t->item[i].job != j)
                continue;
            if (good)
                item_durable(t, &t->item[i], job.segment);
            else
                item_failed(t, &t->item[i]);
        }
        raise_frontier(t, job.segment);
    } else if (job.kind == TOY_RECORD) {
        if (good)
            reclaim_recorded(t);
        else
            reclaim_record_failed(t);
    } else if (job.kind == TOY_FREEING) {
        if (good)
            reclaim_freed(t);
        else
            write_free_header(t, job.segment);
    }
}

/* True if an older unit of the same segment is not durable yet. */
static bool has_elder(const struct toy *t, const struct toy_job *job)
{
    if (job->kind != TOY_UNIT || !toy_rule(TOY_UNIT_ORDER))
        return false;
    for (unsigned i = 0; i < TOY_JOBS_MAX; i++)
        if (t->job[i].kind == TOY_UNIT && t->job[i].segment == job->segment &&
            t->job[i].order < job->order)
            return true;
    return false;
}

/* The oldest job for which `wanted` holds, or TOY_NONE. */
static unsigned oldest_job(const struct toy *t,
                           bool (*wanted)(const struct toy *t, const struct toy_job *job))
{
    unsigned found = TOY_NONE;
    for (unsigned i = 0; i < TOY_JOBS_MAX; i++)
        if (t->job[i].kind != 0 && wanted(t, &t->job[i]) &&
            (found == TOY_NONE || t->job[i].order < t->job[found].order))
            found = i;
    return found;
}

static bool is_flushed(const struct toy *t, const struct toy_job *job)
{
    return job->flushed != 0 && job->doomed == 0 && !has_elder(t, job);
}

static bool is_doomed_and_over(const struct toy *t, const struct toy_job *job)
{
    (void)t;
    return job->doomed != 0 && job->left == 0;
}

static bool is_written(const struct toy *t, const struct toy_job *job)
{
    (void)t;
    return job->left == 0 && job->doomed == 0;
}

static void end_jobs(struct toy *t, bool (*wanted)(const struct toy *t, const struct toy_job *job),
                     bool good)
{
    for (unsigned j = oldest_job(t, wanted); j != TOY_NONE; j = oldest_job(t, wanted))
        job_ended(t, j, good);
}

static void complete_write(struct toy *t, unsigned i)
{
    struct toy_write *w = &t->dev.write[i];
    w->done = 1;
    if (w->job == TOY_NONE)
        return;
    t->job[w->job].left--;
    if (!toy_rule(TOY_ACK_AFTER_FLUSH))
        end_jobs(t, is_written, true);
    end_jobs(t, is_doomed_and_over, false);
}

static void begin_flush(struct toy *t)
{
    t->dev.flushing = true;
    for (unsigned i = 0; i < t->dev.writes; i++)
        t->dev.write[i].covered = t->dev.write[i].done;
    for (unsigned i = 0; i < TOY_JOBS_MAX; i++)
        t->job[i].covered =
            t->job[i].kind != 0 && (t->job[i].left == 0 || !toy_rule(TOY_FLUSH_COVERS_DONE));
    toy_say("flush begins");
}

static void end_flush(struct toy *t)
{
    struct toy_device *dev = &t->dev;
    dev->flushing = false;
    for (unsigned i = 0; i < dev->writes;) {
        if (dev->write[i].covered == 0) {
            i++;
            continue;
        }
        dev->durable[dev->write[i].place] = dev->write[i].block;
        toy_drop_write(dev, i);
    }
    toy_say("flush ends");
    for (unsigned i = 0; i < TOY_JOBS_MAX; i++)
        t->job[i].flushed |= t->job[i].covered;
    end_jobs(t, is_flushed, true);
}

/* The device has dropped what it had in its cache, or some of it. */
static void fail_flush(struct toy *t, struct fb_prng *prng)
{
    struct toy_device *dev = &t->dev;
    dev->flushing = false;
    t->failed_flushes++;
    toy_say("flush FAILS");
    for (unsigned i = 0; i < dev->writes;) {
        struct toy_write *w = &dev->write[i];
        if (w->done == 0) {
            i++;
            continue;
        }
        bool fails = w->covered != 0 ? toy_rule(TOY_FAILED_FLUSH_FAILS)
                                     : toy_rule(TOY_FAILED_FLUSH_FAILS_LATER);
        if (w->job != TOY_NONE && fails)
            t->job[w->job].doomed = 1;
        if (fb_prng_below(prng, 2) == 0)
            dev->durable[w->place] = w->block;
        toy_drop_write(dev, i);
    }
    for (unsigned i = 0; i < TOY_JOBS_MAX; i++)
        t->job[i].covered = 0;
    end_jobs(t, is_doomed_and_over, false);
}

/* ---- laying out ---------------------------------------------------------------------------- */

enum verdict {
    LAY,
    DEAD,
    WAIT
};

/* What was alive when it was queued may be dead when its turn comes. */
static enum verdict judge_item(const struct toy *t, const struct toy_item *item)
{
    const struct toy_key *key = &t->key[item->rec.key];
    if (item->rec.kind != TOY_VALUE)
        return LAY;
    bool alive = item->why == TOY_PUT ? !key->put_killed
                 : item->why == TOY_CLEAN
                     ? key->dram == item->rec.gen && key->dram > key->tomb
                     : key->disk == item->rec.gen && key->segment == t->reclaim.segment;
    if (!alive)
        return toy_rule(TOY_LAYOUT_CHECKS) ? DEAD : LAY;
    if (item->why != TOY_PUT && key->put != 0 && toy_rule(TOY_CLEAN_WAITS))
        return WAIT;
    return LAY;
}

static void item_is_moot(struct toy *t, struct toy_item *item)
{
    struct toy_key *key = &t->key[item->rec.key];
    item->used = 0;
    if (item->why == TOY_PUT)
        key->put = 0;
    else if (item->why == TOY_CLEAN)
        key->cleaning = false;
    else
        reclaim_item_ended(t, true);
}

static unsigned count_free(const struct toy *t)
{
    unsigned n = 0;
    for (unsigned s = 0; s < TOY_SEGMENTS; s++)
        n += t->seg[s].state == TOY_S_FREE;
    return n;
}

/* Opens a segment for a class; the last free ones are kept for what a reclaim copies. */
static bool open_segment(struct toy *t, unsigned class, unsigned job)
{
    bool reclaiming = t->reclaim.phase == TOY_R_COPY || t->reclaim.phase == TOY_R_TOMB;
    if (count_free(t) < (reclaiming ? 1u : 3u) || t->inc + 1 >= t->frontier)
        return false;
    unsigned s = 0;
    while (t->seg[s].state != TOY_S_FREE)
        s++;
    t->seg[s] = (struct toy_segment){.state = TOY_S_OPEN,
                                     .end = TOY_UNIT_FIRST,
                                     .durable = TOY_UNIT_FIRST,
                                     .inc = ++t->inc};
    t->open[class] = (uint8_t)s;
    for (unsigned at = 0; at < (toy_rule(TOY_HEADER_TWICE) ? 2u : 1u); at++) {
        struct toy_block header = {.type = TOY_HEADER,
                                   .segment = (uint8_t)s,
                                   .at = (uint8_t)at,
                                   .inc = t->inc,
                                   .state = TOY_OPEN};
        toy_write(t, toy_place(s, at), &header, job);
    }
    toy_say("segment %u opened as i%u", s, t->inc);
    return true;
}

struct unit {
    struct toy_item *item[TOY_UNIT_RECS];
    unsigned items, records, values, copies;
};

static void pick_items(struct toy *t, unsigned class, struct unit *unit)
{
    bool tombs = false;
    for (unsigned i = 0; i < TOY_ITEMS_MAX; i++) {
        struct toy_item *item = &t->item[i];
        if (item->used == 0 || item->job != TOY_NONE || item->class != class)
            continue;
        enum verdict verdict = judge_item(t, item);
        unsigned records = 1u + item->kill;
        if (verdict == DEAD)
            item_is_moot(t, item);
        if (verdict != LAY || unit->records + records > TOY_UNIT_RECS)
            continue;
        unit->item[unit->items++] = item;
        unit->records += records;
        unit->values += item->rec.kind == TOY_VALUE;
        tombs = tombs || item->kill || item->rec.kind == TOY_TOMB;
    }
    unit->copies = tombs && toy_rule(TOY_TOMB_TWICE) ? 2 : 1;
}

static void add_record(struct toy_segment *seg, struct toy_block *desc, struct toy_record rec)
{
    FB_ASSERT(seg->records < TOY_SEG_RECS);
    seg->rec[seg->records++] = rec;
    desc->rec[desc->records++] = rec;
}

/* Puts one item into a unit whose next data block is `at`; returns the one behind it. */
static unsigned lay_item(struct toy *t, struct toy_item *item, struct toy_block *desc, unsigned at,
                         unsigned job)
{
    struct toy_segment *seg = &t->seg[desc->segment];
    struct toy_key *key = &t->key[item->rec.key];
    uint16_t horizon = toy_rule(TOY_TOMB_HORIZON) ? t->inc : seg->inc;
    item->job = (uint8_t)job;
    if (item->why == TOY_PUT && (item->kill || item->rec.kind == TOY_TOMB))
        key->put_placed = true;
    if (item->rec.kind == TOY_TOMB) {
        if (item->rec.horizon == 0)
            item->rec.horizon = horizon;
        add_record(seg, desc, item->rec);
        return at;
    }
    item->rec.at = (uint8_t)at;
    key->inflight++;
    if (item->kill) {
        struct toy_record tomb = {.kind = TOY_TOMB,
                                  .key = item->rec.key,
                                  .gen = (uint16_t)(item->rec.gen - 1),
                                  .horizon = horizon};
        add_record(seg, desc, tomb);
    }
    add_record(seg, desc, item->rec);
    struct toy_block data = {.type = TOY_DATA};
    data.rec[0] = item->rec;
    toy_write(t, toy_place(desc->segment, at), &data, job);
    return at + 1;
}

static void lay_unit(struct toy *t, unsigned s, const struct unit *unit, unsigned job)
{
    struct toy_segment *seg = &t->seg[s];
    unsigned begin = seg->end;
    struct toy_block desc = {.type = TOY_DESC,
                             .segment = (uint8_t)s,
                             .inc = seg->inc,
                             .copies = (uint8_t)unit->copies,
                             .data = (uint8_t)unit->values};
    desc.flushed = (uint8_t)(toy_rule(TOY_FRONTIER_HONEST) ? durable_frontier(t, s) : begin);
    unsigned at = begin + unit->copies;
    for (unsigned i = 0; i < unit->items; i++)
        at = lay_item(t, unit->item[i], &desc, at, job);
    seg->end = (uint8_t)at;
    t->job[job].end = (uint8_t)at;
    for (unsigned copy = 0; copy < unit->copies; copy++) {
        desc.at = (uint8_t)(begin + copy);
        desc.state = (uint8_t)copy;
        toy_write(t, toy_place(s, begin + copy), &desc, job);
    }
    toy_say("unit of %u records in segment %u at %u, flushed up to %u", desc.records, s, begin,
            desc.flushed);
    for (unsigned i = 0; i < desc.records; i++)
        toy_say("  key %u %s g%u horizon i%u", desc.rec[i].key,
                desc.rec[i].kind == TOY_TOMB ? "tomb" : "value", desc.rec[i].gen,
                desc.rec[i].horizon);
}

static void lay_out(struct toy *t, unsigned class)
{
    struct unit unit = {.items = 0};
    pick_items(t, class, &unit);
    if (unit.items == 0)
        return;
    unsigned s = t->open[class];
    if (s != TOY_NONE && (t->seg[s].end + unit.copies + unit.values > TOY_UNIT_END ||
                          t->seg[s].records + unit.records > TOY_SEG_RECS)) {
        t->seg[s].state = TOY_S_FULL;
        t->open[class] = TOY_NONE;
    }
    unsigned job = new_job(t, TOY_UNIT, 0);
    if (t->open[class] == TOY_NONE && !open_segment(t, class, job)) {
        t->job[job].kind = 0;
        return;
    }
    t->job[job].segment = t->open[class];
    lay_unit(t, t->open[class], &unit, job);
}

static bool is_busy(const struct toy *t, unsigned segment)
{
    for (unsigned i = 0; i < TOY_JOBS_MAX; i++)
        if (t->job[i].kind != 0 && t->job[i].segment == segment)
            return true;
    return false;
}

static void seal_segments(struct toy *t)
{
    for (unsigned s = 0; s < TOY_SEGMENTS; s++) {
        struct toy_segment *seg = &t->seg[s];
        if (seg->state != TOY_S_FULL || (toy_rule(TOY_SEAL_WAITS) && is_busy(t, s)) || !has_room(t))
            continue;
        unsigned job = new_job(t, TOY_SEAL, s);
        struct toy_block sum = {.type = TOY_SUM,
                                .segment = (uint8_t)s,
                                .inc = seg->inc,
                                .records = seg->records};
        memcpy(sum.rec, seg->rec, sizeof sum.rec);
        struct toy_block trail = {.type = TOY_TRAIL,
                                  .segment = (uint8_t)s,
                                  .inc = seg->inc,
                                  .has_sum = 1,
                                  .data = seg->end,
                                  .flushed = seg->end};
        toy_write(t, toy_place(s, TOY_SUMMARY), &sum, job);
        toy_write(t, toy_place(s, TOY_TRAILER), &trail, job);
        seg->state = TOY_S_SEALED;
        toy_say("segment %u sealed", s);
    }
}

/* ---- reclaim ------------------------------------------------------------------------------- */

static bool is_tomb_needed(const struct toy *t, const struct toy_record *tomb, unsigned victim)
{
    /* A newer durable one kills all that this one does, and stays for longer. */
    if (tomb->gen < t->key[tomb->key].tomb)
        return false;
    for (unsigned s = 0; s < TOY_SEGMENTS; s++)
        if (s != victim && t->seg[s].state != TOY_S_FREE && t->seg[s].inc <= tomb->horizon)
            return toy_rule(TOY_TOMB_COPIED);
    return false;
}

static void begin_reclaim(struct toy *t, struct fb_prng *prng)
{
    unsigned s = (unsigned)fb_prng_below(prng, TOY_SEGMENTS);
    struct toy_segment *seg = &t->seg[s];
    if ((seg->state != TOY_S_SEALED && seg->state != TOY_S_RETIRED) || is_busy(t, s))
        return;
    bool may_copy = count_free(t) != 0;
    if (count_free(t) > 5)
        return;
    for (unsigned i = 0; !may_copy && i < seg->records; i++)
        if (seg->rec[i].kind == TOY_TOMB && is_tomb_needed(t, &seg->rec[i], s))
            return;
    toy_say("reclaim of segment %u i%u", s, seg->inc);
    t->reclaim = (struct toy_reclaim){.phase = TOY_R_COPY, .segment = (uint8_t)s};
    for (unsigned i = 0; i < seg->records; i++) {
        struct toy_record rec = seg->rec[i];
        bool live = rec.kind == TOY_TOMB
                        ? is_tomb_needed(t, &rec, s)
                        : points_at(&t->key[rec.key], &rec, s) && fb_prng_below(prng, 2) == 0;
        if (!live)
            continue;
        add_item(t, TOY_COPY, rec, (unsigned)fb_prng_below(prng, TOY_CLASSES));
        t->reclaim.left++;
    }
}

static void reclaim_abort(struct toy *t)
{
    toy_say("reclaim of segment %u given up", t->reclaim.segment);
    for (unsigned k = 0; k < TOY_KEYS; k++) {
        mark_stray(&t->key[k], TOY_COPY_COUNTS, t->key[k].victim);
        t->key[k].victim = 0;
    }
    t->reclaim.phase = TOY_R_IDLE;
}

/*
 * True if giving this record up could bring an older one back: the index points at it and strays
 * of its key may lie elsewhere; or the index points at nothing, since a kill of it is on its way or
 * has failed. In both cases a durable tombstone must come first.
 */
static bool must_be_killed(const struct toy *t, const struct toy_record *rec)
{
    const struct toy_key *key = &t->key[rec->key];
    if (rec->kind != TOY_VALUE || rec->gen <= key->tomb)
        return false;
    if (points_at(key, rec, t->reclaim.segment))
        return key->stray != 0 && toy_rule(TOY_STRAY_KILLED_FIRST);
    return key->disk == 0 && toy_rule(TOY_HIDDEN_KILLED_FIRST);
}

/* Writes the tombstones that must come first. Returns false if there is none left to write. */
static bool kill_first(struct toy *t)
{
    const struct toy_segment *seg = &t->seg[t->reclaim.segment];
    uint16_t kill[TOY_KEYS] = {0};
    t->reclaim.phase = TOY_R_TOMB;
    for (unsigned i = 0; i < seg->records; i++)
        if (must_be_killed(t, &seg->rec[i]))
            kill[seg->rec[i].key] = max16(kill[seg->rec[i].key], seg->rec[i].gen);
    for (unsigned k = 0; k < TOY_KEYS; k++) {
        if (kill[k] == 0)
            continue;
        add_tomb(t, TOY_GIVEUP, k, max16(kill[k], t->key[k].stray), 0);
        t->reclaim.left++;
    }
    return t->reclaim.left != 0;
}

/*
 * The index forgets what the reclaim record names. A record of it is still there until the header
 * is FREE, and would be back if the reclaim record rotted: so it counts until then.
 */
static void forget(struct toy *t, bool counts)
{
    for (unsigned k = 0; k < TOY_KEYS; k++) {
        struct toy_key *key = &t->key[k];
        if (key->disk == 0 || key->segment != t->reclaim.segment ||
            key->inc != t->seg[t->reclaim.segment].inc)
            continue;
        toy_say("key %u: g%u forgotten", k, key->disk);
        if (key->dram == key->disk)
            key->dirty = true;
        if (counts)
            key->victim = max16(key->victim, key->disk);
        key->disk = 0;
    }
}

static void submit_record(struct toy *t, bool again)
{
    struct toy_reclaim *r = &t->reclaim;
    t->ring_seq += !again || !toy_rule(TOY_RECORD_KEEPS_PLACE);
    struct toy_block block = {.type = TOY_HISTORY,
                              .segment = r->segment,
                              .inc = t->seg[r->segment].inc,
                              .seq = t->ring_seq,
                              .records = r->records};
    memcpy(block.rec, r->rec, sizeof block.rec);
    unsigned job = new_job(t, TOY_RECORD, r->segment);
    toy_write(t, TOY_RING_AT + block.seq % TOY_RING, &block, job);
    toy_say("reclaim record %u: segment %u, %u keys", block.seq, r->segment, block.records);
    if (toy_rule(TOY_RECORD_BEFORE_REUSE))
        return;
    t->job[job].kind = 0;
    for (unsigned i = 0; i < t->dev.writes; i++)
        if (t->dev.write[i].job == job)
            t->dev.write[i].job = TOY_NONE;
    t->seg[r->segment].state = TOY_S_FREE;
    r->phase = TOY_R_IDLE;
}

static void write_record(struct toy *t)
{
    struct toy_reclaim *r = &t->reclaim;
    r->phase = TOY_R_RECORD;
    r->records = 0;
    for (unsigned k = 0; k < TOY_KEYS; k++)
        if (t->key[k].disk != 0 && t->key[k].segment == r->segment)
            r->rec[r->records++] = (struct toy_record){.key = (uint8_t)k, .gen = t->key[k].disk};
    if (!toy_rule(TOY_RECORD_BEFORE_FORGET) || !toy_rule(TOY_RECORD_BEFORE_REUSE))
        forget(t, false);
    submit_record(t, false);
}

/* The record may be there or not: what it names can be promised no more, so it is written again. */
static void reclaim_record_failed(struct toy *t)
{
    if (toy_rule(TOY_FAILED_RECORD_STANDS)) {
        forget(t, true);
        submit_record(t, true);
        return;
    }
    for (unsigned k = 0; k < TOY_KEYS; k++)
        if (t->key[k].disk != 0 && t->key[k].segment == t->reclaim.segment)
            t->oracle[k].void_given = t->ring_seq;
    reclaim_abort(t);
}

static void write_free_header(struct toy *t, unsigned segment)
{
    unsigned job = new_job(t, TOY_FREEING, segment);
    for (unsigned at = 0; at < (toy_rule(TOY_HEADER_TWICE) ? 2u : 1u); at++) {
        struct toy_block header = {.type = TOY_HEADER,
                                   .segment = (uint8_t)segment,
                                   .at = (uint8_t)at,
                                   .inc = t->seg[segment].inc,
                                   .state = TOY_FREE};
        toy_write(t, toy_place(segment, at), &header, job);
    }
}

static void reclaim_recorded(struct toy *t)
{
    struct toy_reclaim *r = &t->reclaim;
    for (unsigned i = 0; i < r->records; i++) {
        struct toy_oracle_key *o = &t->oracle[r->rec[i].key];
        if (r->rec[i].gen >= o->given) {
            o->given = r->rec[i].gen;
            o->given_seq = t->ring_seq;
        }
    }
    t->seg[r->segment].state = TOY_S_DEAD;
    r->phase = TOY_R_FREE;
    forget(t, toy_rule(TOY_FREE_BEFORE_FORGET) && toy_rule(TOY_RECORD_KILLS));
    if (toy_rule(TOY_FREE_BEFORE_WRAP))
        write_free_header(t, r->segment);
    else
        reclaim_freed(t);
}

static void reclaim_freed(struct toy *t)
{
    toy_say("segment %u is free", t->reclaim.segment);
    for (unsigned k = 0; k < TOY_KEYS; k++)
        t->key[k].victim = 0;
    t->seg[t->reclaim.segment].state = TOY_S_FREE;
    t->reclaim.phase = TOY_R_IDLE;
    t->reclaims++;
}

/* There is no segment left to copy into: another victim may need less. */
static void give_up_copying(struct toy *t)
{
    for (unsigned i = 0; i < TOY_ITEMS_MAX; i++) {
        struct toy_item *item = &t->item[i];
        if (item->used == 0 || item->job != TOY_NONE ||
            (item->why != TOY_COPY && item->why != TOY_GIVEUP))
            continue;
        item->used = 0;
        reclaim_item_ended(t, false);
    }
}

static void step_reclaim(struct toy *t, struct fb_prng *prng)
{
    struct toy_reclaim *r = &t->reclaim;
    if (r->phase == TOY_R_IDLE) {
        begin_reclaim(t, prng);
        return;
    }
    if (r->phase != TOY_R_COPY && r->phase != TOY_R_TOMB)
        return;
    if (r->left != 0 && toy_rule(TOY_COPY_BEFORE_RECORD)) {
        if (count_free(t) == 0)
            give_up_copying(t);
        return;
    }
    r->left = 0;
    /* A reclaim may also be abandoned for no fault of its own. */
    if (r->failed || fb_prng_below(prng, t->load == TOY_LOAD_RECLAIM ? 2 : 8) == 0)
        reclaim_abort(t);
    else if (!kill_first(t))
        write_record(t);
}

/* ---- what clients and the cleaner ask for -------------------------------------------------- */

/* A kill or a reclaim record of what the index points at is on its way: it is not promised anew. */
static bool is_leaving(const struct toy *t, unsigned k)
{
    const struct toy_key *key = &t->key[k];
    bool given = (t->reclaim.phase == TOY_R_TOMB || t->reclaim.phase == TOY_R_RECORD) &&
                 key->segment == t->reclaim.segment;
    return given || (key->put != 0 && key->put_placed);
}

static void do_put(struct toy *t, unsigned k, struct fb_prng *prng)
{
    struct toy_key *key = &t->key[k];
    if (key->put != 0)
        return;
    unsigned upserts = t->load == TOY_LOAD_RECLAIM ? 8 : 2;
    if ((key->dram != 0 || key->disk != 0) && fb_prng_below(prng, upserts) != 0) {
        /* A plain duplicate: EXISTS, and PERSISTED if the index points at a record. */
        if (key->disk != 0 && !is_leaving(t, k))
            t->oracle[k].persisted = max16(t->oracle[k].persisted, key->disk);
        return;
    }
    uint16_t gen = ++t->gen;
    bool through = fb_prng_below(prng, 2) == 0;
    bool kill = is_old_on_disk(key) && toy_rule(through ? TOY_KILL_OLD_THROUGH : TOY_KILL_OLD);
    unsigned class = (unsigned)fb_prng_below(prng, TOY_CLASSES);
    key->put_killed = key->put_placed = false;
    toy_say("key %u: put g%u%s%s", k, gen, through ? " through" : "", kill ? " with a kill" : "");
    if (through) {
        struct toy_record rec = {.kind = TOY_VALUE, .key = (uint8_t)k, .gen = gen};
        add_item(t, TOY_PUT, rec, class)->kill = kill;
        key->put = gen;
    } else if (kill) {
        add_tomb(t, TOY_PUT, k, gen - 1u, class);
        key->put = gen;
    } else {
        key->disk = 0;
        install(t, k, gen, true);
    }
}

static void do_remove(struct toy *t, unsigned k, struct fb_prng *prng)
{
    struct toy_key *key = &t->key[k];
    if (key->removing != 0)
        return;
    key->removing = ++t->gen;
    toy_say("key %u: remove g%u", k, key->removing);
    mark_stray(key, TOY_HIDDEN_COUNTS, key->disk);
    key->dram = key->disk = 0;
    key->dirty = false;
    key->put_killed = key->put != 0;
    add_tomb(t, TOY_REMOVE, k, key->removing, (unsigned)fb_prng_below(prng, TOY_CLASSES));
    if (!toy_rule(TOY_TOMB_DURABLE))
        t->oracle[k].removed = max16(t->oracle[k].removed, key->removing);
}

static void do_clean(struct toy *t, unsigned k, struct fb_prng *prng)
{
    struct toy_key *key = &t->key[k];
    if (key->dram == 0 || !key->dirty || key->cleaning || key->dram <= key->tomb)
        return;
    if (key->put != 0 && toy_rule(TOY_CLEAN_WAITS))
        return;
    struct toy_record rec = {.kind = TOY_VALUE, .key = (uint8_t)k, .gen = key->dram};
    add_item(t, TOY_CLEAN, rec, (unsigned)fb_prng_below(prng, TOY_CLASSES));
    key->cleaning = true;
}

/* Reads a key; a bad record is dropped, and what is to be killed is killed. */
static void do_read(struct toy *t, unsigned k)
{
    struct toy_key *key = &t->key[k];
    struct toy_record rec = {.kind = TOY_VALUE, .key = (uint8_t)k, .at = key->at, .gen = key->disk};
    if (key->disk != 0 && key->dram == 0 && !toy_data_holds(t, &rec, key->segment)) {
        toy_check(t->rotten, "a record that was indexed cannot be read");
        t->drops++;
        toy_say("key %u: bad record of g%u dropped", k, key->disk);
        if (toy_rule(TOY_BAD_DROP_TOMB)) {
            mark_stray(key, TOY_HIDDEN_COUNTS, key->disk);
            key->drop = max16(key->drop, key->disk);
        }
        t->oracle[k].waived = max16(t->oracle[k].waived, key->disk);
        key->disk = 0;
    }
    if (key->drop != 0 && !key->dropping) {
        add_tomb(t, TOY_DROP, k, key->drop, 0);
        key->dropping = true;
    }
}

static void do_evict(struct toy *t, unsigned k)
{
    struct toy_key *key = &t->key[k];
    if (key->dram != 0 && !key->dirty && key->disk == key->dram)
        key->dram = 0;
}

/* ---- steps --------------------------------------------------------------------------------- */

static void step_writes(struct toy *t, struct fb_prng *prng)
{
    if (t->dev.writes == 0)
        return;
    unsigned i = (unsigned)fb_prng_below(prng, t->dev.writes);
    unsigned job = t->dev.write[i].job;
    bool all = fb_prng_below(prng, 4) != 0;
    for (unsigned n = 0; n < t->dev.writes; n++) {
        struct toy_write *w = &t->dev.write[n];
        if (w->done == 0 && (n == i || (all && job != TOY_NONE && w->job == job)))
            complete_write(t, n);
    }
}

static unsigned flushes_a_failure(const struct toy *t)
{
    if (t->load == TOY_LOAD_RING && t->reclaim.phase == TOY_R_RECORD)
        return 3;
    return t->reclaim.phase == TOY_R_COPY ? 8 : 48;
}

static void step_flush(struct toy *t, struct fb_prng *prng)
{
    if (!t->dev.flushing)
        begin_flush(t);
    else if (fb_prng_below(prng, flushes_a_failure(t)) == 0)
        fail_flush(t, prng);
    else
        end_flush(t);
}

/* Shares of what a step does, by load. */
enum action {
    PUT,
    REMOVE,
    CLEAN,
    EVICT,
    READ,
    LAY_OUT,
    WRITES,
    FLUSH,
    SEALING,
    RECLAIM,
    ACTIONS
};

static const uint8_t shares[TOY_LOADS][ACTIONS] = {
    [TOY_LOAD_EVEN] = {[PUT] = 16, 4, 10, 3, 3, 18, 18, 18, 3, 7},
    [TOY_LOAD_RECLAIM] = {[PUT] = 8, 2, 8, 3, 3, 22, 18, 20, 4, 12},
    [TOY_LOAD_RING] = {[PUT] = 12, 3, 8, 3, 3, 20, 17, 19, 3, 12},
};

static enum action pick_action(const struct toy *t, struct fb_prng *prng)
{
    unsigned dice = (unsigned)fb_prng_below(prng, 100);
    unsigned action = 0;
    while (action + 1 < ACTIONS && dice >= shares[t->load][action])
        dice -= shares[t->load][action++];
    return (enum action)action;
}

void toy_step(struct toy *t, struct fb_prng *prng)
{
    enum action action = pick_action(t, prng);
    unsigned k = (unsigned)fb_prng_below(prng, TOY_KEYS);
    bool may_ask = free_items(t) > TOY_SEG_RECS + TOY_KEYS;
    if (action <= READ && !may_ask)
        return;
    if ((action == LAY_OUT || action == RECLAIM) && !has_room(t))
        return;
    if (action == PUT)
        do_put(t, k, prng);
    else if (action == REMOVE)
        do_remove(t, k, prng);
    else if (action == CLEAN)
        do_clean(t, k, prng);
    else if (action == EVICT)
        do_evict(t, k);
    else if (action == READ)
        do_read(t, k);
    else if (action == LAY_OUT)
        lay_out(t, (unsigned)fb_prng_below(prng, TOY_CLASSES));
    else if (action == WRITES)
        step_writes(t, prng);
    else if (action == FLUSH)
        step_flush(t, prng);
    else if (action == SEALING)
        seal_segments(t);
    else
        step_reclaim(t, prng);
}
