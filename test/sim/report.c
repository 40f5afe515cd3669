/*
 * report.c - what the runs exercised. A counter that stays zero over many seeds is a hole in the
 * generator, and fails the run.
 */
#include <stdio.h>
#include <string.h>

#include "base/bits.h"
#include "test/sim/world.h"

/* Adds one report to a sum. All fields are counters. */
void sim_report_add(struct sim_report *sum, const struct sim_report *one)
{
    uint64_t *to = (uint64_t *)sum;
    const uint64_t *from = (const uint64_t *)one;
    _Static_assert(sizeof(*sum) % sizeof(uint64_t) == 0, "a report is counters alone");
    for (size_t i = 0; i < sizeof(*sum) / sizeof(uint64_t); i++)
        to[i] += from[i];
}

/* Takes what the node counted in this life. */
void sim_report_take(struct sim_world *world)
{
    struct sim_report *report = world->report;
    struct fb_shard_stats stats;
    struct fb_log_stats log;
    if (world->shard == NULL)
        return;
    if (world->knobs.wire)
        sim_wire_take_report(world);
    memset(&log, 0, sizeof(log));
    fb_shard_stats(world->shard, &stats);
    if (world->knobs.shard.devices != 0)
        fb_shard_log_stats(world->shard, &log);
    sim_world_say(world,
                  "node ends: recovered %llu, torn %llu, rot %llu, tombstones now %llu, reclaimed "
                  "%llu, lost reads %llu",
                  (unsigned long long)log.recovered_records, (unsigned long long)log.torn_tail,
                  (unsigned long long)log.rot_descriptors, (unsigned long long)log.tombs_now,
                  (unsigned long long)log.segments_reclaimed, (unsigned long long)log.read_errors);
    report->reclaimed += log.segments_reclaimed;
    world->reclaimed |= log.segments_reclaimed != 0;
    report->recovered += log.recovered_records;
    report->torn += log.torn_tail;
    report->rot += log.rot_descriptors;
    report->tombs += log.tombs_written;
    report->copied += log.records_copied;
    report->waited_key += stats.put_waited_key;
    report->waited_space += stats.put_waited_space;
    report->recoveries += log.recovered_records != 0;
    for (int i = 0; i < FB_RESULT_COUNT; i++)
        report->put_results[i] += stats.put_results[i];
    for (int i = 0; i < FB_REASON_COUNT; i++)
        report->drops[i] += stats.drops[i];
}

struct printer {
    bool all;
    bool none; /* there were no seeds of this kind of clients */
    unsigned zeros;
};

/* Prints one counter; one that must not be zero is complained of. */
static void line(struct printer *printer, const char *family, const char *name, uint64_t value,
                 bool must)
{
    if (must && value == 0 && !printer->none) {
        printer->zeros++;
        printf("  %-12s %-24s %14llu  NEVER\n", family, name, (unsigned long long)value);
    } else if (printer->all) {
        printf("  %-12s %-24s %14llu\n", family, name, (unsigned long long)value);
    }
}

static void print_faults(struct printer *printer, const struct fb_sim_counts *counts)
{
    for (int op = 0; op < FB_IO_OP_COUNT; op++)
        for (int fault = 1; fault < FB_FAULT_COUNT; fault++)
            if (fb_script_applies((enum fb_io_op)op, (enum fb_fault)fault) &&
                fault != FB_FAULT_LYING)
                line(printer, fb_script_op_name((enum fb_io_op)op),
                     fb_script_fault_name((enum fb_fault)fault), counts->fired[op][fault], true);
    for (int i = 0; i < FB_SIM_COUNTER_COUNT; i++)
        line(printer, "device", fb_sim_counter_name((enum fb_sim_counter)i), counts->counter[i],
             i != FB_SIM_CACHE_FULL && i != FB_SIM_DAMAGE_TRUNCATE);
}

/* What every operation must have ended as. */
#define MUST(kind, result)                              \
    {                                                   \
        FB_OP_##kind, FB_##result, #kind " as " #result \
    }
static const struct {
    int kind, result;
    const char *name;
} musts[] = {
    MUST(PUT, OK),
    MUST(PUT, EXISTS),
    MUST(PUT, TOO_BIG),
    MUST(PUT, STALE_EPOCH),
    MUST(PUT, IO),
    MUST(PUT, DEADLINE),
    MUST(PUT, SHUTTING_DOWN),
    MUST(PUT, REMOVED),
    MUST(PUT, NOT_PERSISTED),
    MUST(PUT, BAD_CHECKSUM),
    MUST(PUT, CONNECTION),
    MUST(PUT, GRANT_EXPIRED),
    MUST(PUT, QUOTA),
    MUST(GET, OK),
    MUST(GET, MISS),
    MUST(GET, STALE_EPOCH),
    MUST(GET, DEADLINE),
    MUST(GET, CONNECTION),
    MUST(LOOKUP, OK),
    MUST(LOOKUP, STALE_EPOCH),
    MUST(HOLD_RELEASE, OK),
    MUST(HOLD_RELEASE, STALE_EPOCH),
    MUST(REMOVE, OK),
    MUST(REMOVE, MISS),
    MUST(REMOVE, STALE_EPOCH),
    MUST(REMOVE, IO),
    MUST(REMOVE, DEADLINE),
    MUST(REMOVE, CONNECTION),
    MUST(WAIT_PERSISTED, OK),
    MUST(WAIT_PERSISTED, MISS),
    MUST(WAIT_PERSISTED, STALE_EPOCH),
    MUST(WAIT_PERSISTED, NOT_PERSISTED),
    MUST(WAIT_PERSISTED, CONNECTION),
    MUST(NAMESPACE, OK),
    MUST(NAMESPACE, IO),
    MUST(NAMESPACE, DEADLINE),
    MUST(NAMESPACE, CONNECTION),
    MUST(EPOCH, OK),
    MUST(EPOCH, STALE_EPOCH),
    MUST(EPOCH, IO),
    MUST(DROP_DRAM, OK),
    MUST(DROP_DRAM, MISS),
    MUST(DROP_DRAM, BUSY),
    MUST(DROP_DRAM, STALE_EPOCH),
    MUST(DROP_DRAM, NOT_PERSISTED),
    MUST(LIST, OK),
    MUST(LIST, STALE_EPOCH),
};
#undef MUST

/* The edges of the tier's states that must be gone: of each state, where to, as bits. */
#define TO(state) (1u << FB_TIER_##state)
static const unsigned edges[SIM_STATES] = {
    [FB_TIER_RECOVERING] = TO(ON) | TO(FENCED),
    [FB_TIER_ON] = TO(THROTTLED) | TO(FULL) | TO(FENCED),
    [FB_TIER_THROTTLED] = TO(ON) | TO(FULL),
    [FB_TIER_FULL] = TO(ON) | TO(THROTTLED),
};
#undef TO

static void print_results(struct printer *printer, const struct sim_report *report)
{
    static const char *const kinds[FB_OP_LIST + 1] = {"put",          "get",    "lookup",
                                                      "hold_release", "remove", "wait",
                                                      "namespace",    "epoch",  "drop_dram",
                                                      "list"};
    for (int kind = 0; kind <= FB_OP_LIST; kind++) {
        line(printer, kinds[kind], "started", report->started[kind], true);
        for (int i = 0; i < FB_RESULT_COUNT; i++)
            if (report->results[kind][i] != 0 || fb_result_at(i) == FB_OK)
                line(printer, kinds[kind], fb_result_name(fb_result_at(i)),
                     report->results[kind][i], true);
    }
    for (size_t i = 0; i < FB_ARRAY_COUNT(musts); i++)
        line(printer, "must", musts[i].name,
             report->results[musts[i].kind][fb_result_index(musts[i].result)], true);
    for (int i = 1; i < FB_REASON_COUNT; i++)
        line(printer, "reason", fb_reason_name(i), report->reasons[i] + report->drops[i],
             i != FB_REASON_NO_STAGING && i != FB_REASON_NAMESPACE_UNKNOWN);
}

static void print_tier(struct printer *printer, const struct sim_report *report)
{
    static const char *const names[SIM_STATES] = {"off",       "recovering", "on",
                                                  "throttled", "full",       "fenced"};
    for (int i = 0; i < SIM_STATES; i++)
        line(printer, "tier", names[i], report->tier[i], true);
    for (int from = 0; from < SIM_STATES; from++)
        for (int to = 0; to < SIM_STATES; to++) {
            char name[SIM_TEXT_MAX];
            bool must = edges[from] != 0 && (edges[from] >> to & 1) != 0;
            snprintf(name, sizeof(name), "%s to %s", names[from], names[to]);
            if (must || report->edges[from][to] != 0)
                line(printer, "edge", name, report->edges[from][to], must);
        }
}

/* clang-format off: one counter a line */
#define COUNTER_LIST(X) \
    X(crashes)          \
    X(power_cuts)       \
    X(drains)           \
    X(recoveries)       \
    X(deaths)           \
    X(stops)            \
    X(scribbles)        \
    X(late_commits)     \
    X(revoked)          \
    X(hits)             \
    X(hits_ssd)         \
    X(misses)           \
    X(holds)            \
    X(held_reads)       \
    X(reclaimed)        \
    X(waited_key)       \
    X(waited_space)     \
    X(recovered)        \
    X(torn)             \
    X(rot)              \
    X(tombs)            \
    X(copied)           \
    X(room_episodes)    \
    X(floor_episodes)   \
    X(damages)          \
    X(jumps)

/* clang-format on */

/* clang-format off: one counter a line */
#define WIRE_LIST(X)     \
    X(seeds)             \
    X(connects)          \
    X(opened)            \
    X(refused)           \
    X(open_failed)       \
    X(hung_up)           \
    X(broken_client)     \
    X(broken_node)       \
    X(broken_both)       \
    X(silent)            \
    X(named_ended)       \
    X(lost_in_call)      \
    X(proven_late)       \
    X(suspects)          \
    X(deaths)            \
    X(stops)             \
    X(jobs_put)          \
    X(jobs_get)          \
    X(jobs_unwanted)     \
    X(jobs_late)         \
    X(jobs_of_dead_node) \
    X(commits)           \
    X(frames_cut)        \
    X(stalls)            \
    X(twins)             \
    X(abandoned)         \
    X(lists_stopped)     \
    X(short_buffers)     \
    X(doubts)            \
    X(settled)           \
    X(releases_wanted)   \
    X(late_frames)       \
    X(cancels)           \
    X(gets_queued)

/* clang-format on */

/* Of clients that speak the protocol. */
static void print_wire(struct printer *printer, const struct sim_wire_report *report)
{
    static const char *const kinds[SIM_CALL_KINDS] = {"put",          "get",    "exists",
                                                      "hold_release", "remove", "wait",
                                                      "drop",         "bump",   "refresh",
                                                      "explain",      "list",   "status"};
    for (int kind = 0; kind < SIM_CALL_KINDS; kind++) {
        line(printer, "wire calls", kinds[kind], report->calls[kind], true);
        line(printer, "wire items", kinds[kind], report->items[kind], true);
        for (int i = 0; i < FB_RESULT_COUNT; i++)
            if (report->results[kind][i] != 0 || fb_result_at(i) == FB_OK)
                line(printer, kinds[kind], fb_result_name(fb_result_at(i)),
                     report->results[kind][i], true);
    }
    static const int puts[] = {FB_OK,       FB_EXISTS,        FB_TOO_BIG, FB_STALE_EPOCH,
                               FB_DEADLINE, FB_SHUTTING_DOWN, FB_REMOVED, FB_CONNECTION};
    for (size_t i = 0; i < sizeof(puts) / sizeof(puts[0]); i++)
        line(printer, "wire must", fb_result_name(puts[i]),
             report->results[0][fb_result_index(puts[i])], true);
#define X(name) line(printer, "wire", #name, report->name, true);
    WIRE_LIST(X)
#undef X
}

/* Prints it; returns how many counters that must not be zero are. */
unsigned sim_report_print(const struct sim_report *report, bool all)
{
    struct printer printer = {.all = all};
    print_faults(&printer, &report->faults);
    printer.none = report->wire.seeds == 0;
    print_wire(&printer, &report->wire);
    printer.none = report->wire.seeds == report->seeds;
    print_results(&printer, report);
    print_tier(&printer, report);
#define X(name) line(&printer, "count", #name, report->name, true);
    COUNTER_LIST(X)
#undef X
    return printer.zeros;
}
