/*
 * fb-crash: kill -9 of a real server under load, again and again; half of the time on a backend
 * that loses unflushed writes when it is killed, as power loss does. Clients are processes of their
 * own, and are stopped and killed too. What must hold is kept outside of all of them (state.h).
 *
 * Shows: what was acknowledged as persisted is there, or the store says why not; no wrong bytes; no
 * removed key and no older content comes back; caps hold; calls end. Cannot show: what a device
 * does that answers a flush and did not do it, nor faults while the server runs (the simulator
 * does).
 *
 * Exit code: 0 all holds, 1 a violation, 2 usage.
 */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bug.h"
#include "test/crash/cycle.h"

#define CYCLES_DEFAULT 100
#define SEED_DEFAULT   1
#define SHORT_RUN      100  /* cycles from which on the main counters must have moved */
#define LONG_RUN       1000 /* and from which on every counter must have */
/*
 * The excuse "older than the kept history" may hide a key that was lost, so few may need it. Of
 * 100 cycles it takes 0 to 0.7 % of the persisted keys that are checked. A fault that loses 3 keys
 * in each kill makes 2.5 %. Where all devices have 50 MiB 1.2 to 2.6 % need it, rightly: a run with
 * --ssd-mib is not bound.
 */
#define BEYOND_ONE_IN 50
#define REPORT_NS     (UINT64_C(10) * 1000 * 1000 * 1000)

struct options {
    uint32_t cycles, first, load_ms, ssd_mib;
    uint64_t seed;
    const char *bug, *io_fault;
    int forget;
    bool keep;
};

static const char usage[] =
    "fb-crash [--cycles N] [--seed S] [--first F] [--bug NAME] [--load-ms "
    "N] [--forget 0|1] [--keep]\n"
    "  --cycles   how many (100)\n"
    "  --seed     what everything is drawn from (1)\n"
    "  --first    number of the first cycle, to replay an era\n"
    "  --bug      a planted bug, in a test build: the run must then fail\n"
    "  --io-fault a script of I/O faults for each server, see forebayd --help\n"
    "  --load-ms  how long each load takes, instead of 20 to 220 ms\n"
    "  --ssd-mib  the cap of the SSD file, instead of 48 to 288 MiB\n"
    "  --forget   always, or never, forget unflushed writes\n"
    "  --keep     keep the directory of a run that held, too\n";

static bool number(const char *text, uint64_t most, uint64_t *out)
{
    char *end;
    *out = strtoull(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && *end == '\0' && *out <= most;
}

static int parse(int argc, char **argv, struct options *o)
{
    static const struct option list[] = {{"cycles", required_argument, NULL, 'c'},
                                         {"seed", required_argument, NULL, 's'},
                                         {"first", required_argument, NULL, 'f'},
                                         {"bug", required_argument, NULL, 'b'},
                                         {"io-fault", required_argument, NULL, 'i'},
                                         {"load-ms", required_argument, NULL, 'l'},
                                         {"ssd-mib", required_argument, NULL, 'm'},
                                         {"forget", required_argument, NULL, 'g'},
                                         {"keep", no_argument, NULL, 'k'},
                                         {"help", no_argument, NULL, 'h'},
                                         {NULL, 0, NULL, 0}};
    uint64_t value = 0;
    int c;
    while ((c = getopt_long(argc, argv, "", list, NULL)) != -1) {
        if (c == 'h')
            exit(fputs(usage, stdout) < 0);
        else if (c == 'k')
            o->keep = true;
        else if (c == 'b')
            o->bug = optarg;
        else if (c == 'i')
            o->io_fault = optarg;
        else if (c == '?' || !number(optarg, c == 's' ? UINT64_MAX : UINT32_MAX / 2, &value))
            return -1;
        else if (c == 'c')
            o->cycles = (uint32_t)value;
        else if (c == 's')
            o->seed = value;
        else if (c == 'f')
            o->first = (uint32_t)value;
        else if (c == 'l')
            o->load_ms = (uint32_t)value;
        else if (c == 'm')
            o->ssd_mib = (uint32_t)value;
        else
            o->forget = value != 0;
    }
    return optind == argc ? 0 : -1;
}

/* ---- what came of it ---- */

static const struct {
    const char *text;
    int needed;
} counters[CRASH_COUNTERS] = {
#define X(symbol, text, needed) [CRASH_N_##symbol] = {text, needed},
    CRASH_COUNTER_LIST(X)
#undef X
};

static uint64_t counted(const struct crash_run *run, enum crash_counter which)
{
    return atomic_load(&run->state->count[which]);
}

/* True if a run of so many cycles must have moved this counter. */
static bool is_needed(int counter, const struct options *o)
{
    int needed = counters[counter].needed;
    if (counter == CRASH_N_FORGET && o->forget == 0)
        return false;
    return (needed > 0 && o->cycles >= LONG_RUN) || (needed > 1 && o->cycles >= SHORT_RUN);
}

/* Prints what the run has exercised. Returns how many counters are zero that may not be. */
static int print_counters(const struct crash_run *run, const struct options *o)
{
    int missing = 0;
    for (int i = 0; i < CRASH_COUNTERS; i++) {
        uint64_t n = counted(run, i);
        bool bad = n == 0 && is_needed(i, o);
        missing += bad;
        printf("  %10" PRIu64 "  %s%s\n", n, counters[i].text, bad ? "  <- never happened" : "");
    }
    printf("  %10u  ms, the longest start\n", run->start_ms_max);
    printf("  %10" PRIu64 "  MiB, the most memory; %" PRIu64 " MiB, the most on SSD\n",
           run->memory_peak_bytes >> 20, run->ssd_peak_bytes >> 20);
    return missing;
}

/* Prints how many keys the end of the history excused. Returns whether they are too many. */
static bool print_beyond(const struct crash_run *run, const struct options *o)
{
    uint64_t beyond = counted(run, CRASH_N_BEYOND_HISTORY);
    uint64_t checked = counted(run, CRASH_N_CHECKED_PERSISTED);
    bool bad = o->cycles >= SHORT_RUN && o->ssd_mib == 0 && beyond * BEYOND_ONE_IN > checked;
    printf("crash: missed and older than the kept history: %" PRIu64 " of %" PRIu64
           " checked, %.3f %%%s\n",
           beyond, checked, checked > 0 ? 100.0 * (double)beyond / (double)checked : 0,
           bad ? "  <- too many: what was lost would pass for it" : "");
    return bad;
}

static void print_journal(const struct crash_journal *journal)
{
    uint32_t end = atomic_load(&journal->next);
    for (uint32_t i = end > CRASH_EVENTS ? end - CRASH_EVENTS : 0; i < end; i++) {
        const struct crash_event *e = &journal->events[i % CRASH_EVENTS];
        printf("crash:   cycle %u at %" PRIu64 ": %c by %u, content %u: %s (%s)%s\n", e->cycle,
               e->ms, e->what, e->who, e->content, fb_result_name(e->result),
               fb_reason_name(e->reason), e->persisted ? ", persisted" : "");
    }
}

static void print_failure(const struct crash_run *run, const struct options *o)
{
    uint32_t cycle = atomic_load(&run->state->cycle);
    printf("crash: FAILED in cycle %u: %s\n", cycle, run->state->text);
    print_journal(&run->state->journal);
    printf("crash: kept %s and %s\n", run->era.directory, run->state_path);
    printf("crash: replay (the timing is the machine's): fb-crash --seed %" PRIu64
           " --first %u --cycles %u%s%s and the same other options\n",
           run->seed, run->era.first, cycle - run->era.first + 1, o->bug ? " --bug " : "",
           o->bug ? o->bug : "");
}

static int finish(const struct crash_run *run, const struct options *o)
{
    const struct crash_state *state = run->state;
    int result = 0;
    bool failed = crash_failed(state);
    if (print_counters(run, o) > 0 && !failed) {
        printf("crash: the run did not do what it is for: see above\n");
        result = 1;
    }
    if (print_beyond(run, o))
        result = 1;
    if (failed) {
        print_failure(run, o);
        result = 1;
    }
    printf("crash: %" PRIu64 " cycles, %" PRIu64 " acknowledged-persisted keys checked, %" PRIu64
           " lost, %" PRIu64 " wrong bytes, %" PRIu64 " removed back, %" PRIu64 " older\n",
           counted(run, CRASH_N_CYCLES), counted(run, CRASH_N_CHECKED_PERSISTED),
           atomic_load(&state->failures[CRASH_FAIL_LOST]),
           atomic_load(&state->failures[CRASH_FAIL_WRONG]),
           atomic_load(&state->failures[CRASH_FAIL_REMOVED]),
           atomic_load(&state->failures[CRASH_FAIL_OLDER]));
    return result;
}

/* ---- the run ---- */

static void report(const struct crash_run *run, const struct options *o)
{
    static uint64_t next;
    uint64_t now = test_now_ns();
    if (next == 0)
        next = now + REPORT_NS;
    if (now < next)
        return;
    next = now + REPORT_NS;
    printf("crash: %" PRIu64 " of %u cycles, %" PRIu64 " persisted keys checked, %" PRIu64
           " given up with a record\n",
           counted(run, CRASH_N_CYCLES), o->cycles, counted(run, CRASH_N_CHECKED_PERSISTED),
           counted(run, CRASH_N_GIVEN_UP));
    fflush(stdout);
}

static void run_cycles(struct crash_run *run, const struct options *o)
{
    uint32_t end = o->first + o->cycles, over = o->first;
    for (uint32_t cycle = o->first; cycle < end && !crash_failed(run->state); cycle++) {
        if (cycle == over) {
            crash_era_end(run, false);
            if (crash_era_begin(run, cycle) != 0)
                return;
            over = cycle + run->era.cycles;
        }
        if (!crash_cycle(run, cycle))
            over = cycle + 1;
        report(run, o);
    }
}

static int prepare(struct crash_run *run, const struct options *o, char *directory, size_t bytes)
{
    int made = test_directory_make("forebay-crash-state", directory, bytes);
    if (made != 0) {
        fprintf(stderr, "fb-crash: no directory: %s; set TEST_DIR to one on a disk\n",
                strerror(-made));
        return -1;
    }
    snprintf(run->state_path, sizeof(run->state_path), "%.400s/state", directory);
    snprintf(run->copy_path, sizeof(run->copy_path), "%.400s/old", directory);
    run->state = crash_state_map(run->state_path, o->seed);
    run->seed = o->seed;
    run->bug = o->bug;
    run->load_ms = o->load_ms;
    run->forget = o->forget;
    run->ssd_mib = o->ssd_mib;
    run->io_fault = o->io_fault;
    if (run->state != NULL)
        return 0;
    perror("fb-crash: state");
    return -1;
}

int main(int argc, char **argv)
{
    static struct crash_run run;
    char directory[TEST_SERVER_PATH_BYTES];
    struct options o = {.cycles = CYCLES_DEFAULT, .first = 0, .seed = SEED_DEFAULT, .forget = -1};
    if (parse(argc, argv, &o) != 0) {
        fputs(usage, stderr);
        return 2;
    }
    if (o.bug != NULL && fb_bug_enable(o.bug) != 0) {
        fprintf(stderr, "fb-crash: --bug %s: no such bug, or not a test build\n", o.bug);
        return 2;
    }
    if (prepare(&run, &o, directory, sizeof(directory)) != 0)
        return 2;
    run_cycles(&run, &o);
    bool keep = o.keep || crash_failed(run.state);
    int result = finish(&run, &o);
    crash_era_end(&run, keep);
    if (!keep)
        test_directory_remove(directory);
    return result;
}
