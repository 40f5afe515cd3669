/*
 * checker.c - the contract of the store, checked from calls and answers alone. It shares no code
 * with what it checks.
 *
 * What it holds, per key of a namespace's present epoch:
 *   floor      a hit has at least this generation: of the newest acknowledged put, of the newest
 *              hit, and above everything that was granted before an acknowledged remove began;
 *   persisted  this generation was acknowledged as durable: it must be found, unless the store
 *              names a reason that can be true.
 * A put whose commit was never sent must never be seen. A put that was answered with a failure
 * after its commit was sent may be seen (its answer says that nobody knows).
 *
 * A device that lied about a write (torn, misdirected, lost, or damaged behind its back) can make
 * any durable fact go away, a tombstone too; then only this is held: bytes are exactly those of
 * one value that was put under this key in this epoch. What a device could not hide (EIO, short,
 * ENOSPC) excuses misses, and nothing else.
 */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "test/sim/world.h"

static struct sim_key *key_of(struct sim_world *world, const struct sim_slot *slot)
{
    return &world->spaces[slot->space].keys[slot->key];
}

static void raise_to(uint64_t *value, uint64_t least)
{
    if (*value < least)
        *value = least;
}

/* A key's holds end, and protect no operation that is under way; `touched`: nor does its value. */
static void end_holds(struct sim_world *world, uint32_t space, uint32_t key, bool touched)
{
    for (unsigned i = 0; i < SIM_HOLDS_MAX; i++)
        if (world->holds[i].space == space && world->holds[i].key == key)
            world->holds[i].loads = 0;
    for (unsigned c = 0; c < world->knobs.clients; c++)
        for (unsigned s = 0; s < SIM_SLOTS_MAX; s++) {
            struct sim_slot *slot = &world->clients[c].slots[s];
            if (slot->state == SIM_FREE || slot->space != space || slot->key != key)
                continue;
            slot->held = false;
            slot->touched |= touched;
        }
}

/* The loads of a key's holds are given back, by whoever: a hold belongs to the key, so reads that
 * are under way are not protected by it any more either. */
void sim_check_release(struct sim_world *world, uint32_t space, uint32_t key)
{
    end_holds(world, space, key, false);
}

/* Something that can take the present value of a key away has begun. */
static void unsettle(struct sim_world *world, uint32_t space, uint32_t key)
{
    struct sim_key *state = &world->spaces[space].keys[key];
    state->persisted = 0;
    state->stored = 0;
    end_holds(world, space, key, true);
    if (world->knobs.wire)
        sim_wire_touch(world, space, key);
}

/* An operation begins. */
void sim_check_start(struct sim_world *world, struct sim_slot *slot)
{
    struct sim_key *key = key_of(world, slot);
    slot->floor_at_start = key->floor;
    slot->persisted_at_start = key->persisted;
    slot->stored_at_start = key->stored;
    slot->removes_at_start = key->removes;
    slot->touched = key->committing != 0 || world->spaces[slot->space].bumps != 0;
    slot->crash = (uint32_t)world->crashes;
    if (slot->op.kind == FB_OP_PUT && slot->epoch == world->spaces[slot->space].epoch) {
        slot->was_beside = key->puts++ != 0;
        slot->puts_begun = ++key->puts_begun;
        key->masked = true;
    } else if (slot->op.kind == FB_OP_REMOVE) {
        slot->removed_above = key->granted;
        key->removes++;
        unsettle(world, slot->space, slot->key);
    } else if (slot->op.kind == FB_OP_EPOCH) {
        world->spaces[slot->space].bumps++;
        for (uint32_t i = 0; i < SIM_KEYS; i++)
            unsettle(world, slot->space, i);
    }
}

/* A put was granted memory and a generation. */
void sim_check_grant(struct sim_world *world, struct sim_slot *slot)
{
    struct sim_version *version = &world->versions[slot->version];
    struct sim_key *key = key_of(world, slot);
    if (version->granted)
        sim_world_violation(world, "version %u was granted twice", slot->version);
    if (slot->done)
        sim_world_violation(world, "version %u was granted after its result", slot->version);
    version->granted = true;
    version->generation = slot->op.generation;
    version->granted_ns = world->now_ns;
    if (slot->epoch != world->spaces[slot->space].epoch)
        return;
    /* Over connections the news of two grants may cross. */
    if (slot->op.generation <= key->granted && !world->lied && !world->damaged &&
        !world->knobs.wire)
        sim_world_violation(world, "key %u/%u: generation %llx is granted after %llx", slot->space,
                            slot->key, (unsigned long long)slot->op.generation,
                            (unsigned long long)key->granted);
    raise_to(&key->granted, slot->op.generation);
}

/* The client says that the bytes are in place. */
void sim_check_commit(struct sim_world *world, struct sim_slot *slot)
{
    world->versions[slot->version].committed = true;
    if (world->versions[slot->version].lie)
        key_of(world, slot)->lied = true;
    if (slot->epoch == world->spaces[slot->space].epoch)
        key_of(world, slot)->committing++;
    /* Of its own commit it does not know less itself. */
    bool touched = slot->touched;
    if (slot->epoch == world->spaces[slot->space].epoch)
        unsettle(world, slot->space, slot->key);
    slot->touched = touched;
}

static bool is_sound(const struct sim_world *world)
{
    return !world->lied && !world->damaged;
}

/* A page that a reader was given, who may yet find it bad: it counts if the get ends well. */
void sim_check_note(struct sim_world *world, struct sim_slot *slot, struct fb_sim_page page,
                    uint64_t value_page)
{
    uint64_t number = page.b >> 20;
    uint64_t key = (uint64_t)slot->space * SIM_KEYS + slot->key + 1;
    world->report->hits_checked_pages++;
    bool wrong =
        page.a != key || number >= world->version_count || (page.b & FB_SIM_PAGE_MAX) != value_page;
    if (!wrong && slot->seen == UINT32_MAX)
        slot->seen = (uint32_t)number;
    if (wrong || slot->seen != number) {
        slot->seen_bad = true;
        slot->wrong = page;
    }
}

static void check_pages(struct sim_world *world, struct sim_slot *slot)
{
    char text[SIM_TEXT_MAX / 2];
    if (!slot->seen_bad)
        return;
    fb_sim_page_text(slot->wrong, text, sizeof(text));
    sim_world_violation(world, "key %u/%u: wrong bytes, or a mixture with version %u: %s",
                        slot->space, slot->key, slot->seen, text);
}

/* A page that a reader was given. */
void sim_check_page(struct sim_world *world, struct sim_slot *slot, struct fb_sim_page page,
                    uint64_t value_page)
{
    sim_check_note(world, slot, page, value_page);
    check_pages(world, slot);
}

static void check_hit_version(struct sim_world *world, struct sim_slot *slot)
{
    const struct fb_op *op = &slot->op;
    const struct sim_version *version = &world->versions[slot->seen];
    if (version->space != slot->space || version->key != slot->key || version->epoch != slot->epoch)
        sim_world_violation(world, "version %u is of another key or epoch", slot->seen);
    else if (!version->committed)
        sim_world_violation(world, "key %u/%u: version %u is read and was never committed",
                            slot->space, slot->key, slot->seen);
    else if (version->bytes != op->value_bytes)
        sim_world_violation(world, "version %u has %llu bytes, the hit says %llu", slot->seen,
                            (unsigned long long)version->bytes,
                            (unsigned long long)op->value_bytes);
    else if (version->generation != op->generation && is_sound(world))
        sim_world_violation(world, "version %u has generation %llx, the hit says %llx", slot->seen,
                            (unsigned long long)version->generation,
                            (unsigned long long)op->generation);
}

static void check_hit(struct sim_world *world, struct sim_slot *slot)
{
    const struct fb_op *op = &slot->op;
    struct sim_space *space = &world->spaces[slot->space];
    world->report->hits++;
    world->report->hits_ssd += (op->tiers & 2) != 0;
    uint64_t end =
        op->range_bytes > op->value_bytes ? op->value_bytes : op->range_off + op->range_bytes;
    if (end > op->value_bytes)
        end = op->value_bytes;
    uint64_t want = op->range_off < end ? end - op->range_off : 0;
    if (slot->seen_bytes != want)
        sim_world_violation(world, "key %u/%u: a hit of %llu bytes gave %llu", slot->space,
                            slot->key, (unsigned long long)want,
                            (unsigned long long)slot->seen_bytes);
    if (world->knobs.wire)
        check_pages(world, slot);
    if (slot->seen != UINT32_MAX)
        check_hit_version(world, slot);
    if (slot->epoch != space->epoch || !is_sound(world))
        return;
    if (op->generation < slot->floor_at_start)
        sim_world_violation(world,
                            "key %u/%u: generation %llx is read, %llx was acknowledged before",
                            slot->space, slot->key, (unsigned long long)op->generation,
                            (unsigned long long)slot->floor_at_start);
    raise_to(&key_of(world, slot)->floor, op->generation);
}

/* In this run: the sums of a report are those of other runs too. */
static bool has_reclaimed(const struct sim_world *world)
{
    struct fb_log_stats log;
    memset(&log, 0, sizeof(log));
    if (world->up && world->knobs.shard.devices != 0)
        fb_shard_log_stats(world->shard, &log);
    return world->reclaimed || log.segments_reclaimed != 0;
}

/*
 * Reasons that explain the loss of something that was durable, when nothing touched the key. A put
 * that began since gives the key a newer reason, which hides why the value before it was given up.
 */
static bool excuses_persisted(const struct sim_world *world, bool masked, uint8_t reason)
{
    switch (reason) {
    case FB_REASON_BEING_WRITTEN:
    case FB_REASON_NEVER_COMMITTED:
    case FB_REASON_GRANT_EXPIRED:
    case FB_REASON_WRITER_DIED:
    case FB_REASON_SHUTDOWN:
        return masked || world->failed;
    case FB_REASON_RECLAIMED_SSD:
    case FB_REASON_READ_DEADLINE:
    case FB_REASON_NO_STAGING:
        return true;
    case FB_REASON_QUOTA:
        return world->knobs.quota_dram_bytes != 0 || world->failed;
    case FB_REASON_NO_RECORD:
        return world->crashed || world->failed || has_reclaimed(world);
    default:
        return world->failed;
    }
}

static void check_miss(struct sim_world *world, struct sim_slot *slot)
{
    const struct fb_op *op = &slot->op;
    world->report->misses++;
    if (op->reason == FB_REASON_NONE)
        sim_world_violation(world, "key %u/%u: a miss without a reason", slot->space, slot->key);
    if (slot->touched || slot->removes_at_start != 0 || slot->crash != world->crashes ||
        !is_sound(world))
        return;
    if (key_of(world, slot)->lied)
        return;
    if (slot->epoch != world->spaces[slot->space].epoch)
        return;
    /* Requests that fail, or move less than was asked, say so: bytes are bad only if somebody lied.
     */
    if (op->reason == FB_REASON_BAD_CHECKSUM && !world->misread)
        sim_world_violation(world, "key %u/%u: bad bytes, and nobody lied", slot->space, slot->key);
    if (slot->persisted_at_start != 0 &&
        !excuses_persisted(world, key_of(world, slot)->masked, op->reason))
        sim_world_violation(world, "key %u/%u: generation %llx was persisted and is a miss: %s",
                            slot->space, slot->key, (unsigned long long)slot->persisted_at_start,
                            fb_reason_name(op->reason));
    if (slot->stored_at_start != 0 && op->reason == FB_REASON_EVICTED_DIRTY && !world->failed)
        sim_world_violation(world, "key %u/%u: dropped unpersisted although nothing failed",
                            slot->space, slot->key);
    bool held = slot->held && (!world->knobs.wire || slot->hold_until_ns > sim_world_clock(world));
    if (held && op->result == FB_MISS && op->reason != FB_REASON_READ_DEADLINE && !world->failed)
        sim_world_violation(world, "key %u/%u: a miss inside its hold: %s", slot->space, slot->key,
                            fb_reason_name(op->reason));
}

static void get_done(struct sim_world *world, struct sim_slot *slot)
{
    if (slot->held)
        world->report->held_reads++;
    if (slot->op.result == FB_OK)
        check_hit(world, slot);
    else if (slot->op.result == FB_MISS)
        check_miss(world, slot);
}

static void check_exists(struct sim_world *world, struct sim_slot *slot)
{
    struct fb_explain explain;
    fb_shard_explain(world->shard, slot->op.ns, &slot->op.digest, &explain);
    /* The answer names the generation that was there; it may have made room since, in the same
     * turn. */
    bool was_there =
        explain.generation == slot->op.generation &&
        (explain.reason == FB_REASON_EVICTED_DRAM || explain.reason == FB_REASON_RECLAIMED_SSD);
    if (!explain.present && !was_there && !slot->touched && !key_of(world, slot)->lied &&
        !world->failed && is_sound(world))
        sim_world_violation(world, "key %u/%u: EXISTS, and not readable: %s", slot->space,
                            slot->key, fb_reason_name(explain.reason));
}

static void put_done(struct sim_world *world, struct sim_slot *slot)
{
    const struct fb_op *op = &slot->op;
    struct sim_version *version = &world->versions[slot->version];
    struct sim_key *key = key_of(world, slot);
    bool current = slot->epoch == world->spaces[slot->space].epoch;
    version->done = true;
    version->result = op->result;
    bool same_life = slot->crash == (uint32_t)world->crashes;
    if (current && same_life && key->puts != 0 && (op->result >= 0 || !world->knobs.wire))
        key->puts--;
    /* After a failure it may still be installed, at any time: the key stays unsettled. */
    if (current && same_life && version->committed && op->result >= 0 && key->committing != 0)
        key->committing--;
    if (op->result == FB_OK) {
        if (!version->committed)
            sim_world_violation(world, "version %u is stored and was never committed",
                                slot->version);
        if (!current)
            return;
        raise_to(&key->floor, op->generation);
        if (slot->touched || version->lie || key->removes != 0 ||
            world->spaces[slot->space].bumps != 0)
            return;
        bool is_off = op->persist == FB_PERSIST_OFF || world->knobs.shard.persist == FB_PERSIST_OFF;
        key->stored = is_off || !same_life ? 0 : op->generation;
        if (op->persisted) {
            key->persisted = op->generation;
            /* One beside it can have ended already, where answers travel. */
            key->masked = key->puts != 0 || slot->was_beside || key->puts_begun != slot->puts_begun;
        }
        if (op->persist == FB_PERSIST_THROUGH && !op->persisted)
            sim_world_violation(world, "version %u: through, stored, and not persisted",
                                slot->version);
    } else if (op->result == FB_EXISTS) {
        if (!world->knobs.wire)
            check_exists(world, slot);
        if (version->upsert)
            sim_world_violation(world, "version %u: an upsert ends as EXISTS", slot->version);
    }
}

static void remove_done(struct sim_world *world, struct sim_slot *slot)
{
    struct sim_key *key = key_of(world, slot);
    if (slot->epoch != world->spaces[slot->space].epoch)
        return;
    bool doubt =
        world->knobs.wire && (slot->op.result == FB_CONNECTION || slot->op.result == FB_DEADLINE);
    if (key->removes != 0 && slot->crash == (uint32_t)world->crashes && !doubt)
        key->removes--;
    if (slot->op.result == FB_OK || slot->op.result == FB_MISS)
        raise_to(&key->floor, slot->removed_above + 1);
}

static void wait_done(struct sim_world *world, struct sim_slot *slot)
{
    struct sim_key *key = key_of(world, slot);
    if (slot->op.result != FB_OK || slot->touched ||
        slot->epoch != world->spaces[slot->space].epoch)
        return;
    if (slot->stored_at_start != 0 && key->stored == slot->stored_at_start && key->removes == 0)
        key->persisted = key->stored;
}

/* Other keys count from here on. */
static void move_epoch(struct sim_world *world, uint32_t number, uint64_t epoch)
{
    struct sim_space *space = &world->spaces[number];
    for (uint32_t i = 0; i < SIM_KEYS; i++)
        unsettle(world, number, i);
    memset(space->keys, 0, sizeof(space->keys));
    space->epoch = epoch;
}

static void epoch_done(struct sim_world *world, struct sim_slot *slot)
{
    struct sim_space *space = &world->spaces[slot->space];
    if (world->knobs.wire)
        return; /* its client is told the epoch: sim_check_epoch() */
    /* A bump that failed may be durable all the same, and seen after a restart. */
    if (space->bumps != 0 && slot->op.result == FB_OK)
        space->bumps--;
    uint8_t id[16], secret[16];
    uint64_t epoch;
    if (!fb_shard_namespace(world->shard, space->handle, id, secret, &epoch))
        return;
    if (slot->op.result == FB_OK && epoch <= slot->epoch)
        sim_world_violation(world, "a bump was acknowledged and the epoch is still %llu",
                            (unsigned long long)epoch);
    if (epoch != space->epoch)
        move_epoch(world, slot->space, epoch);
}

void sim_check_epoch(struct sim_world *world, uint32_t number, uint64_t epoch, bool first)
{
    struct sim_space *space = &world->spaces[number];
    bool is_new = first && world->knobs.shard.devices == 0;
    if (first && !is_new && epoch < space->epoch && is_sound(world))
        sim_world_violation(world, "space %u: epoch %llu after a start, %llu before it", number,
                            (unsigned long long)epoch, (unsigned long long)space->epoch);
    space->open = true;
    if (epoch > space->epoch || (first && epoch != space->epoch))
        move_epoch(world, number, epoch);
}

void sim_check_settle(struct sim_world *world, uint32_t space, uint32_t number, uint32_t puts,
                      uint32_t commits, uint32_t removes)
{
    struct sim_key *key = &world->spaces[space].keys[number];
    if (commits != 0 || removes != 0)
        unsettle(world, space, number);
    key->puts -= puts < key->puts ? puts : key->puts;
    key->committing -= commits < key->committing ? commits : key->committing;
    key->removes -= removes < key->removes ? removes : key->removes;
}

static void lookup_done(struct sim_world *world, struct sim_slot *slot)
{
    const struct fb_op *op = &slot->op;
    if (op->result != FB_OK || op->hold_ms == 0)
        return;
    uint32_t hold_ms =
        op->hold_ms < world->knobs.shard.hold_ms_max ? op->hold_ms : world->knobs.shard.hold_ms_max;
    for (uint32_t i = 0; i < op->n; i++) {
        if (!(slot->found[i] & FB_FOUND_HELD) || (slot->spoiled >> i & 1) != 0)
            continue;
        if (!(slot->found[i] & FB_FOUND_READABLE))
            sim_world_violation(world, "a lookup holds what is not readable");
        world->report->holds++;
        sim_world_say(world, "  held: key %u/%u for %u ms, %u loads, found %x", slot->space,
                      slot->lookup_keys[i], hold_ms, op->hold_loads, slot->found[i]);
        struct sim_hold *hold = &world->holds[world->hold_next++ % SIM_HOLDS_MAX];
        hold->space = slot->space;
        hold->key = slot->lookup_keys[i];
        hold->loads =
            op->hold_loads > 1 ? 1 : op->hold_loads; /* others may read or release the rest */
        hold->until_ns = slot->start_ns + hold_ms * FB_MS_NS;
    }
}

static void check_deadline(struct sim_world *world, const struct sim_slot *slot)
{
    uint64_t slack = world->knobs.device.latency.delay_ns * 2 + SIM_BOUND_NS + world->jump_ns;
    if (sim_world_clock(world) > slot->op.deadline_ns + slack)
        sim_world_violation(world, "an operation of kind %u ends %llu ms after its deadline",
                            slot->op.kind,
                            (unsigned long long)((sim_world_clock(world) - slot->op.deadline_ns) /
                                                 FB_MS_NS));
}

/* An operation has its result. */
void sim_check_done(struct sim_world *world, struct sim_slot *slot)
{
    check_deadline(world, slot);
    sim_check_result(world, slot);
}

void sim_check_result(struct sim_world *world, struct sim_slot *slot)
{
    sim_world_note_faults(world);
    switch (slot->op.kind) {
    case FB_OP_PUT:
        put_done(world, slot);
        break;
    case FB_OP_GET:
        get_done(world, slot);
        break;
    case FB_OP_REMOVE:
        remove_done(world, slot);
        break;
    case FB_OP_WAIT_PERSISTED:
        wait_done(world, slot);
        break;
    case FB_OP_EPOCH:
        epoch_done(world, slot);
        break;
    case FB_OP_LOOKUP:
        lookup_done(world, slot);
        break;
    case FB_OP_HOLD_RELEASE:
        for (uint32_t i = 0; i < slot->op.n; i++)
            sim_check_release(world, slot->space, slot->lookup_keys[i]);
        break;
    default:
        break;
    }
}

/* The node went down: holds and what was only cached are gone; what was under way is in doubt. */
void sim_check_crash(struct sim_world *world)
{
    memset(world->holds, 0, sizeof(world->holds));
    for (unsigned s = 0; s < SIM_SPACES; s++) {
        struct sim_space *space = &world->spaces[s];
        space->open = false;
        space->bumps = 0;
        for (uint32_t k = 0; k < SIM_KEYS; k++) {
            space->keys[k].stored = 0;
            space->keys[k].removes = 0;
            space->keys[k].puts = 0;
            space->keys[k].committing = 0;
            if (world->knobs.shard.devices == 0)
                memset(&space->keys[k], 0, sizeof(space->keys[k]));
        }
    }
}

/* Accounts add up, caps hold. */
void sim_check_accounts(struct sim_world *world)
{
    struct fb_shard_stats stats;
    struct fb_log_stats log;
    memset(&log, 0, sizeof(log));
    fb_shard_stats(world->shard, &stats);
    if (world->knobs.shard.devices != 0)
        fb_shard_log_stats(world->shard, &log);
    uint64_t misses = 0, lookups = 0;
    for (int i = 0; i < FB_REASON_COUNT; i++) {
        misses += stats.get_misses[i];
        lookups += stats.lookup_misses[i];
    }
    if (stats.get_hits + misses != stats.gets)
        sim_world_violation(world, "gets %llu are not hits %llu + misses %llu",
                            (unsigned long long)stats.gets, (unsigned long long)stats.get_hits,
                            (unsigned long long)misses);
    if (stats.lookup_hits + lookups != stats.lookups)
        sim_world_violation(world, "lookups %llu are not hits %llu + misses %llu",
                            (unsigned long long)stats.lookups,
                            (unsigned long long)stats.lookup_hits, (unsigned long long)lookups);
    if (stats.free_bytes > stats.pool_bytes)
        sim_world_violation(world, "more free than there is");
    if (log.file_bytes_now > world->knobs.shard.log.capacity_bytes)
        sim_world_violation(world, "the file is longer than its cap");
}
