/*
 * toylog_device.c - the device of toylog.h: blocks, writes on their way, crashes and rot.
 */
#include "test/lib/toylog.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"

uint64_t toy_rules_off;
bool toy_is_loud;
const char *toy_violation;

bool toy_rule(enum toy_rule rule)
{
    return ((toy_rules_off >> rule) & 1) == 0;
}

bool toy_check(bool holds, const char *what)
{
    if (!holds && toy_violation == NULL) {
        toy_violation = what;
        if (toy_is_loud)
            printf("    VIOLATION: %s\n", what);
    }
    return holds;
}

void toy_say(const char *format, ...)
{
    if (!toy_is_loud)
        return;
    va_list arguments;
    va_start(arguments, format);
    printf("    ");
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
}

/* ---- the device ---------------------------------------------------------------------------- */

unsigned toy_place(unsigned segment, unsigned at)
{
    FB_ASSERT(segment < TOY_SEGMENTS && at < TOY_SEG_BLOCKS);
    return TOY_SEG_AT + segment * TOY_SEG_BLOCKS + at;
}

const struct toy_block *toy_read(const struct toy *t, unsigned place)
{
    FB_ASSERT(place < TOY_BLOCKS);
    for (unsigned i = t->dev.writes; i-- > 0;)
        if (t->dev.write[i].place == place && t->dev.write[i].done != 0)
            return &t->dev.write[i].block;
    return &t->dev.durable[place];
}

void toy_write(struct toy *t, unsigned place, const struct toy_block *block, unsigned job)
{
    FB_ASSERT(place < TOY_BLOCKS && t->dev.writes < TOY_WRITES_MAX);
    t->dev.write[t->dev.writes++] =
        (struct toy_write){.place = (uint8_t)place, .job = (uint8_t)job, .block = *block};
    if (job != TOY_NONE)
        t->job[job].left++;
}

bool toy_data_holds(const struct toy *t, const struct toy_record *rec, unsigned segment)
{
    const struct toy_block *b = toy_read(t, toy_place(segment, rec->at));
    return b->type == TOY_DATA && b->bad == 0 && b->rec[0].key == rec->key &&
           b->rec[0].gen == rec->gen;
}

void toy_drop_write(struct toy_device *dev, unsigned i)
{
    memmove(&dev->write[i], &dev->write[i + 1], (dev->writes - i - 1u) * sizeof dev->write[0]);
    dev->writes--;
}

void toy_crash(struct toy *t, enum toy_crash how, struct fb_prng *prng)
{
    struct toy_device *dev = &t->dev;
    toy_say("CRASH %d with %u unflushed writes", how, dev->writes);
    for (unsigned i = 0; i < dev->writes;) {
        struct toy_write *w = &dev->write[i];
        unsigned dice = (unsigned)fb_prng_below(prng, 3);
        if (how == TOY_CRASH_KILL) {
            w->job = TOY_NONE;
            w->covered = 0;
            if (w->done == 0 && dice == 0) {
                toy_drop_write(dev, i);
                continue;
            }
            w->done = 1;
            i++;
            continue;
        }
        bool there = how == TOY_CRASH_ALL || (how == TOY_CRASH_RANDOM && dice != 0) ||
                     (how == TOY_CRASH_TORN && dice != 0);
        if (there) {
            dev->durable[w->place] = w->block;
            if (how == TOY_CRASH_TORN && dice == 2)
                dev->durable[w->place].bad = TOY_TORN;
        }
        i++;
    }
    if (how != TOY_CRASH_KILL)
        dev->writes = 0;
    dev->flushing = false;
    dev->dead = false;

    struct toy fresh = {.load = t->load,
                        .rotten = t->rotten,
                        .reclaims = t->reclaims,
                        .recoveries = t->recoveries,
                        .drops = t->drops,
                        .failed_flushes = t->failed_flushes};
    size_t kept = offsetof(struct toy, seg);
    memcpy(fresh.oracle, t->oracle, sizeof fresh.oracle);
    memcpy((uint8_t *)t + kept, (uint8_t *)&fresh + kept, sizeof *t - kept);
}

/* True if a summary on the device tells what is in a segment, so that a descriptor may be lost. */
static bool has_summary(const struct toy *t, unsigned segment, uint16_t inc)
{
    const struct toy_block *trail = &t->dev.durable[toy_place(segment, TOY_TRAILER)];
    const struct toy_block *sum = &t->dev.durable[toy_place(segment, TOY_SUMMARY)];
    return trail->type == TOY_TRAIL && trail->bad == 0 && trail->inc == inc &&
           trail->has_sum != 0 && sum->type == TOY_SUM && sum->bad == 0 && sum->inc == inc;
}

unsigned toy_rot(struct toy *t, struct fb_prng *prng)
{
    unsigned place;
    do /* often the ring, which is small beside the rest and matters as much */
        place = fb_prng_below(prng, 4) < (t->load == TOY_LOAD_RING ? 3u : 1u)
                    ? TOY_RING_AT + (unsigned)fb_prng_below(prng, TOY_RING)
                    : (unsigned)fb_prng_below(prng, TOY_BLOCKS);
    while (t->dev.durable[place].type == TOY_ZERO || t->dev.durable[place].bad != 0);
    struct toy_block *b = &t->dev.durable[place];
    toy_say("ROT of block %u: type %u, segment %u, at %u, i%u", place, b->type, b->segment, b->at,
            b->inc);
    b->bad = TOY_ROTTEN;
    t->rotten = true;
    /* Bytes are lost with their block, and a unit of values with its only descriptor. */
    unsigned lost = b->type == TOY_DATA ? 1
                    : b->type == TOY_DESC && b->copies == 1 && !has_summary(t, b->segment, b->inc)
                        ? b->records
                        : 0;
    for (unsigned i = 0; i < lost; i++) {
        uint16_t *waived = &t->oracle[b->rec[i].key].waived;
        if (b->rec[i].kind == TOY_VALUE && b->rec[i].gen > *waived)
            *waived = b->rec[i].gen;
    }
    return place;
}
