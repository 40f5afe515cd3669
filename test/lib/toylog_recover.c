/*
 * toylog_recover.c - how the toy log starts again, and what it is held to: see toylog.h.
 */
#include "test/lib/toylog.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"

#define FOUND_MAX (TOY_SEGMENTS * TOY_SEG_RECS)

struct found {
    struct toy_record rec;
    uint8_t segment;
    uint16_t inc;
};

struct recovery {
    struct found found[FOUND_MAX];
    unsigned count;
    uint16_t dead[TOY_SEGMENTS];      /* incarnations up to this one have a reclaim record */
    bool needs_trailer[TOY_SEGMENTS]; /* found open, or without a summary that holds */
    bool lost[TOY_SEGMENTS];          /* no header that holds */
    uint16_t newest_inc;
    uint16_t ring_least; /* the history reaches back to the record of this number */
};

/* ---- device operations of recovery, each of which may be the last -------------------------- */

static bool is_over(struct toy *t)
{
    if (t->dev.ops_left != 0 && --t->dev.ops_left == 0)
        t->dev.dead = true;
    return t->dev.dead;
}

static void write_now(struct toy *t, unsigned place, const struct toy_block *block)
{
    if (is_over(t))
        return;
    toy_write(t, place, block, TOY_NONE);
    t->dev.write[t->dev.writes - 1].done = 1;
}

/* Without the rule only the superblock is made durable, as if it were written with force. */
static void flush_now(struct toy *t)
{
    if (is_over(t))
        return;
    unsigned left = 0;
    for (unsigned i = 0; i < t->dev.writes; i++) {
        struct toy_write *w = &t->dev.write[i];
        if (toy_rule(TOY_RECOVERY_FLUSHES) || w->place < TOY_RING_AT)
            t->dev.durable[w->place] = w->block;
        else
            t->dev.write[left++] = *w;
    }
    t->dev.writes = (uint8_t)left;
}

/* ---- reading ------------------------------------------------------------------------------- */

static const struct toy_block *read_super(const struct toy *t)
{
    const struct toy_block *best = NULL;
    for (unsigned place = 0; place < 2; place++) {
        const struct toy_block *b = toy_read(t, place);
        if (b->type == TOY_SUPER && b->bad == 0 && (best == NULL || b->seq > best->seq))
            best = b;
    }
    FB_ASSERT(best != NULL);
    return best;
}

static void read_ring(struct toy *t, struct recovery *r)
{
    r->ring_least = UINT16_MAX;
    for (unsigned i = 0; i < TOY_RING; i++) {
        const struct toy_block *b = toy_read(t, TOY_RING_AT + i);
        if (b->type != TOY_HISTORY || b->bad != 0)
            continue;
        if (b->inc > r->dead[b->segment] && toy_rule(TOY_RECORD_KILLS))
            r->dead[b->segment] = b->inc;
        if (b->inc > r->newest_inc)
            r->newest_inc = b->inc;
        if (b->seq > t->ring_seq)
            t->ring_seq = b->seq;
        if (b->seq < r->ring_least)
            r->ring_least = b->seq;
        for (unsigned n = 0; n < b->records; n++) {
            struct toy_oracle_key *o = &t->oracle[b->rec[n].key];
            if (b->rec[n].gen >= o->given && b->seq != o->void_given) {
                o->given = b->rec[n].gen;
                o->given_seq = b->seq;
            }
        }
    }
}

static bool is_in_ring(const struct toy *t, uint16_t seq)
{
    for (unsigned i = 0; i < TOY_RING; i++) {
        const struct toy_block *b = toy_read(t, TOY_RING_AT + i);
        if (b->type == TOY_HISTORY && b->bad == 0 && b->seq == seq)
            return true;
    }
    return false;
}

/* The copy of a segment's header that counts, or NULL. */
static const struct toy_block *read_header(const struct toy *t, unsigned s)
{
    const struct toy_block *best = NULL;
    for (unsigned at = 0; at < 2; at++) {
        const struct toy_block *b = toy_read(t, toy_place(s, at));
        if (b->type != TOY_HEADER || b->bad != 0)
            continue;
        if (best == NULL || b->inc > best->inc || (b->inc == best->inc && b->state == TOY_FREE))
            best = b;
    }
    return best;
}

static bool is_desc(const struct toy *t, unsigned s, unsigned at)
{
    const struct toy_block *b = toy_read(t, toy_place(s, at));
    return b->type == TOY_DESC && b->bad == 0 && b->segment == s && b->at == at &&
           (b->inc == t->seg[s].inc || !toy_rule(TOY_INC_CHECKED));
}

static unsigned next_desc(const struct toy *t, unsigned s, unsigned at)
{
    while (at < TOY_UNIT_END && !is_desc(t, s, at))
        at++;
    return at;
}

static void report(struct toy *t, struct recovery *r, unsigned s, const struct toy_record *rec,
                   unsigned inc)
{
    struct toy_segment *seg = &t->seg[s];
    toy_check(inc == seg->inc, "a record of an earlier life of a segment was believed");
    if (seg->records == TOY_SEG_RECS)
        return;
    seg->rec[seg->records++] = *rec;
    FB_ASSERT(r->count < FOUND_MAX);
    r->found[r->count++] = (struct found){*rec, (uint8_t)s, (uint16_t)inc};
}

/* A place that should hold a descriptor and does not. */
static void count_bad(struct toy *t, unsigned s, unsigned at, unsigned frontier)
{
    bool is_rot = at < frontier && toy_rule(TOY_ROT_COUNTED);
    bool was_rot = toy_read(t, toy_place(s, at))->bad == TOY_ROTTEN;
    t->rot += is_rot;
    t->torn += !is_rot;
    toy_check(was_rot || !is_rot, "a torn tail was counted as rot");
    toy_check(!was_rot || is_rot || at >= frontier, "rot was counted as a torn tail");
}

static void read_unit(struct toy *t, struct recovery *r, unsigned s, const struct toy_block *desc,
                      bool is_proven)
{
    for (unsigned i = 0; i < desc->records; i++) {
        const struct toy_record *rec = &desc->rec[i];
        if (rec->kind == TOY_VALUE && !is_proven && toy_rule(TOY_TAIL_VERIFIED) &&
            !toy_data_holds(t, rec, s)) {
            t->torn++;
            continue;
        }
        report(t, r, s, rec, desc->inc);
    }
}

static const struct toy_block *read_trailer(const struct toy *t, unsigned s)
{
    const struct toy_block *b = toy_read(t, toy_place(s, TOY_TRAILER));
    bool mine = b->inc == t->seg[s].inc || !toy_rule(TOY_SUMMARY_INC_CHECKED);
    return b->type == TOY_TRAIL && b->bad == 0 && mine ? b : NULL;
}

static const struct toy_block *read_summary(const struct toy *t, unsigned s)
{
    const struct toy_block *trail = read_trailer(t, s);
    const struct toy_block *b = toy_read(t, toy_place(s, TOY_SUMMARY));
    bool mine = b->inc == t->seg[s].inc || !toy_rule(TOY_SUMMARY_INC_CHECKED);
    return trail != NULL && trail->has_sum != 0 && b->type == TOY_SUM && b->bad == 0 && mine ? b
                                                                                             : NULL;
}

/* All blocks of the segment below this one were durable when something in it was written. */
static unsigned find_frontier(const struct toy *t, unsigned s)
{
    const struct toy_block *trail = read_trailer(t, s);
    unsigned frontier = trail != NULL ? trail->flushed : 0;
    for (unsigned at = next_desc(t, s, TOY_UNIT_FIRST); at < TOY_UNIT_END;
         at = next_desc(t, s, at + 1)) {
        const struct toy_block *b = toy_read(t, toy_place(s, at));
        if (b->flushed > frontier)
            frontier = b->flushed;
    }
    return frontier;
}

static void walk_segment(struct toy *t, struct recovery *r, unsigned s)
{
    unsigned frontier = find_frontier(t, s);
    unsigned at = TOY_UNIT_FIRST, end = at, hole = TOY_UNIT_END;
    while (at < TOY_UNIT_END) {
        unsigned next = next_desc(t, s, at);
        if (next != at) {
            bool damaged = toy_read(t, toy_place(s, at))->bad != 0;
            if (at < frontier || next < TOY_UNIT_END || damaged)
                count_bad(t, s, at, frontier);
            hole = hole < at ? hole : at;
            at = next;
            continue;
        }
        const struct toy_block *desc = toy_read(t, toy_place(s, at));
        unsigned begin = at - desc->state;
        end = begin + desc->copies + desc->data;
        read_unit(t, r, s, desc, end <= frontier);
        at = end;
    }
    t->seg[s].end = (uint8_t)(toy_rule(TOY_OPEN_IS_SEALED) || hole > end ? end : hole);
    t->seg[s].durable = (uint8_t)frontier;
    r->needs_trailer[s] = read_trailer(t, s) == NULL || toy_rule(TOY_RECOVERY_SUMS);
}

static void read_segment(struct toy *t, struct recovery *r, unsigned s)
{
    struct toy_segment *seg = &t->seg[s];
    const struct toy_block *header = read_header(t, s);
    seg->state = TOY_S_FREE;
    if (header == NULL) {
        r->lost[s] = toy_read(t, toy_place(s, 0))->type != TOY_ZERO ||
                     toy_read(t, toy_place(s, 1))->type != TOY_ZERO;
        return;
    }
    seg->inc = header->inc;
    if (seg->inc > r->newest_inc)
        r->newest_inc = seg->inc;
    if (header->state == TOY_FREE)
        return;
    seg->state = TOY_S_SEALED;
    if (seg->inc <= r->dead[s]) {
        seg->state = TOY_S_DEAD;
        return;
    }
    const struct toy_block *sum = read_summary(t, s);
    if (sum == NULL) {
        walk_segment(t, r, s);
        return;
    }
    seg->end = read_trailer(t, s)->data;
    seg->durable = read_trailer(t, s)->flushed;
    for (unsigned i = 0; i < sum->records; i++)
        report(t, r, s, &sum->rec[i], sum->inc);
}

/* ---- repairing ----------------------------------------------------------------------------- */

static void free_dead(struct toy *t, const struct recovery *r, unsigned s)
{
    struct toy_segment *seg = &t->seg[s];
    if (seg->state != TOY_S_DEAD && !r->lost[s])
        return;
    for (unsigned at = 0; at < (toy_rule(TOY_HEADER_TWICE) ? 2u : 1u); at++) {
        struct toy_block b = {.type = TOY_HEADER,
                              .segment = (uint8_t)s,
                              .at = (uint8_t)at,
                              .inc = r->lost[s] ? r->newest_inc : seg->inc,
                              .state = TOY_FREE};
        write_now(t, toy_place(s, at), &b);
    }
    seg->state = TOY_S_FREE;
    seg->records = 0;
}

/* A header of which one copy is missing, damaged or behind gets that copy again, and only that. */
static void repair_header(struct toy *t, unsigned s)
{
    const struct toy_block *header = read_header(t, s);
    if (header == NULL || !toy_rule(TOY_RECOVERY_REPAIRS) || !toy_rule(TOY_HEADER_TWICE))
        return;
    struct toy_block good = *header;
    for (unsigned at = 0; at < 2; at++) {
        const struct toy_block *b = toy_read(t, toy_place(s, at));
        if (b->type == TOY_HEADER && b->bad == 0 && b->inc == good.inc && b->state == good.state)
            continue;
        good.at = (uint8_t)at;
        write_now(t, toy_place(s, at), &good);
    }
}

/* A segment found open gets a summary of what is believed, and a trailer; without the rule it is
 * opened again. */
static void seal_open(struct toy *t, const struct recovery *r, unsigned s)
{
    struct toy_segment *seg = &t->seg[s];
    if (seg->state != TOY_S_SEALED || !r->needs_trailer[s])
        return;
    for (unsigned c = 0; !toy_rule(TOY_OPEN_IS_SEALED) && c < TOY_CLASSES; c++)
        if (t->open[c] == TOY_NONE) {
            t->open[c] = (uint8_t)s;
            seg->state = TOY_S_OPEN;
            return;
        }
    bool with_sum = toy_rule(TOY_RECOVERY_SUMS);
    struct toy_block sum = {.type = TOY_SUM,
                            .segment = (uint8_t)s,
                            .inc = seg->inc,
                            .records = seg->records};
    memcpy(sum.rec, seg->rec, sizeof sum.rec);
    if (with_sum)
        write_now(t, toy_place(s, TOY_SUMMARY), &sum);
    struct toy_block b = {.type = TOY_TRAIL,
                          .segment = (uint8_t)s,
                          .inc = seg->inc,
                          .has_sum = with_sum,
                          .data = seg->end,
                          .flushed = seg->durable};
    write_now(t, toy_place(s, TOY_TRAILER), &b);
}

/* First over the copy that is not believed: a torn write must not hit the only good one. */
static void write_super(struct toy *t)
{
    struct toy_block b = {.type = TOY_SUPER,
                          .seq = ++t->super_seq,
                          .frontier = t->frontier,
                          .boot = t->boot};
    unsigned first = read_super(t) == toy_read(t, 0) ? 1 : 0;
    for (unsigned n = 0; n < 2; n++) {
        write_now(t, n == 0 ? first : 1 - first, &b);
        flush_now(t);
    }
}

/* ---- the index ----------------------------------------------------------------------------- */

static uint16_t find_tomb(const struct recovery *r, unsigned k)
{
    uint16_t tomb = 0;
    for (unsigned i = 0; i < r->count; i++)
        if (r->found[i].rec.kind == TOY_TOMB && r->found[i].rec.key == k &&
            r->found[i].rec.gen > tomb)
            tomb = r->found[i].rec.gen;
    return tomb;
}

/* By generation; among copies of one generation, the one in the younger segment. */
static const struct found *find_value(const struct recovery *r, unsigned k, uint16_t tomb)
{
    const struct found *best = NULL;
    for (unsigned i = 0; i < r->count; i++) {
        const struct found *f = &r->found[i];
        if (f->rec.kind != TOY_VALUE || f->rec.key != k || f->rec.gen <= tomb)
            continue;
        if (best == NULL || f->rec.gen > best->rec.gen ||
            (f->rec.gen == best->rec.gen && f->inc > best->inc))
            best = f;
    }
    return best;
}

/* What recovery without an order would take: the last word that it reads. */
static const struct found *find_last(const struct recovery *r, unsigned k)
{
    const struct found *last = NULL;
    for (unsigned i = 0; i < r->count; i++)
        if (r->found[i].rec.key == k)
            last = r->found[i].rec.kind == TOY_VALUE ? &r->found[i] : NULL;
    return last;
}

static void index_key(struct toy *t, const struct recovery *r, unsigned k)
{
    struct toy_key *key = &t->key[k];
    key->tomb = find_tomb(r, k);
    const struct found *best =
        toy_rule(TOY_GEN_ORDER) ? find_value(r, k, key->tomb) : find_last(r, k);
    if (best != NULL) {
        key->disk = best->rec.gen;
        key->segment = best->segment;
        key->at = best->rec.at;
        key->inc = best->inc;
    }
    for (unsigned i = 0; toy_rule(TOY_TWIN_COUNTS) && i < r->count; i++) {
        const struct found *f = &r->found[i];
        if (f != best && f->rec.kind == TOY_VALUE && f->rec.key == k && f->rec.gen > key->tomb &&
            f->rec.gen > key->stray)
            key->stray = f->rec.gen;
    }
}

/* ---- what was promised --------------------------------------------------------------------- */

static bool is_excused(const struct toy *t, const struct toy_oracle_key *o,
                       const struct recovery *r)
{
    bool recorded = o->given >= o->persisted &&
                    (t->rotten || o->given_seq < r->ring_least || is_in_ring(t, o->given_seq));
    return o->killed >= o->persisted || recorded || o->waived >= o->persisted ||
           o->removed >= o->persisted || o->acked > o->persisted;
}

static void check_key(struct toy *t, const struct recovery *r, unsigned k)
{
    struct toy_oracle_key *o = &t->oracle[k];
    const struct toy_key *key = &t->key[k];
    struct toy_record rec = {.kind = TOY_VALUE, .key = (uint8_t)k, .at = key->at, .gen = key->disk};
    if (key->tomb > o->killed && key->tomb != o->void_kill)
        o->killed = key->tomb;
    if (toy_is_loud)
        printf("    key %u: found g%u (tomb g%u); acked g%u persisted g%u removed g%u killed g%u "
               "given g%u\n",
               k, key->disk, key->tomb, o->acked, o->persisted, o->removed, o->killed, o->given);
    if (key->disk != 0) {
        toy_check(key->disk > o->removed, "a removed key came back");
        toy_check(key->disk >= o->acked, "an older generation came back");
        toy_check(t->rotten || toy_data_holds(t, &rec, key->segment), "a torn record was indexed");
    }
    if (key->disk < o->persisted)
        toy_check(is_excused(t, o, r), "a persisted key is lost without a record");
    /* From now on this is what clients are told: EXISTS, persisted. */
    if (key->disk > o->acked)
        o->acked = key->disk;
    if (key->disk > o->persisted)
        o->persisted = key->disk;
}

/* ---- start --------------------------------------------------------------------------------- */

bool toy_recover(struct toy *t)
{
    struct recovery r = {.count = 0};
    if (toy_is_loud)
        printf("    recovery\n");
    t->torn = t->rot = 0;
    for (unsigned c = 0; c < TOY_CLASSES; c++)
        t->open[c] = TOY_NONE;
    const struct toy_block *super = read_super(t);
    t->boot = (uint16_t)(super->boot + 1);
    t->super_seq = super->seq;
    t->gen = (uint16_t)(t->boot << TOY_BOOT_SHIFT);
    uint16_t frontier = super->frontier;
    read_ring(t, &r);
    for (unsigned s = 0; s < TOY_SEGMENTS; s++)
        read_segment(t, &r, s);
    t->inc = r.newest_inc;
    if (toy_rule(TOY_INC_NEVER_REUSED) && frontier > t->inc)
        t->inc = frontier;
    t->frontier = (uint16_t)(t->inc + TOY_INC_STEP);
    flush_now(t);
    for (unsigned s = 0; s < TOY_SEGMENTS; s++) {
        repair_header(t, s);
        free_dead(t, &r, s);
        seal_open(t, &r, s);
    }
    write_super(t);
    if (t->dev.dead)
        return false;
    t->dev.ops_left = 0;
    t->recoveries++;
    for (unsigned k = 0; k < TOY_KEYS; k++)
        index_key(t, &r, k);
    for (unsigned k = 0; k < TOY_KEYS; k++)
        check_key(t, &r, k);
    return true;
}

void toy_init(struct toy *t, enum toy_load load)
{
    memset(t, 0, sizeof *t);
    t->load = (uint8_t)load;
    for (unsigned place = 0; place < 2; place++)
        t->dev.durable[place] = (struct toy_block){.type = TOY_SUPER, .seq = 1};
    bool good = toy_recover(t);
    FB_ASSERT(good);
}
