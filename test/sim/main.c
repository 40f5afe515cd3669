/*
 * main.c - fb-sim: runs seeds of the simulator, in one or several processes, and says how to replay
 * what it found. See README.md in this folder.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/bug.h"
#include "test/sim/world.h"

#define JOBS_MAX       16
#define PROGRESS_S     10
#define TAIL_LINES     60
#define MANY_SEEDS     1000 /* from here on a counter that stays zero is a failure */
#define EXIT_VIOLATION 1
#define EXIT_USAGE     2

struct options {
    uint64_t seeds, from, seed, boundary;
    unsigned jobs;
    uint64_t seconds;
    bool one, verbose, points, all;
    enum sim_kind kind;
    const char *bug;
};

/* What a worker sends back. */
struct outcome {
    struct sim_report report;
    uint64_t first_bad; /* UINT64_MAX: none */
    char violation[SIM_TEXT_MAX];
};

static const char usage[] =
    "usage: fb-sim [--seeds N] [--from S] [--jobs J] [--seconds T] [--bug NAME] [--all]\n"
    "              [--clients wire|direct]\n"
    "       fb-sim --seed S [--verbose] [--bug NAME] [--clients wire|direct]\n"
    "       fb-sim --crash-points [--from S] [--boundary B] [--verbose]\n"
    "  --seeds N       how many seeds (default 2000)\n"
    "  --from S        the first of them (default 1)\n"
    "  --jobs J        processes (default: the processors of this machine)\n"
    "  --seconds T     stop after so long and say how many seeds were run\n"
    "  --seed S        one seed; with --verbose all that happens in it\n"
    "  --crash-points  cut a scripted load at every I/O boundary\n"
    "  --bug NAME      switch a planted bug on (test-hook builds): the run should find it\n"
    "  --all           print every counter, not just those that are zero\n"
    "  --clients KIND  wire: clients speak the protocol in all seeds; direct: in none\n"
    "                  (else in a third of them)\n"
    "exit codes: 0 nothing found, 1 a violation, 2 usage\n";

static uint64_t number(const char *name, const char *text)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || *end != '\0' || end == text) {
        fprintf(stderr, "fb-sim: --%s=%s is not a number\n", name, text);
        exit(EXIT_USAGE);
    }
    return value;
}

static enum sim_kind kind_of(const char *text)
{
    if (strcmp(text, "wire") == 0)
        return SIM_KIND_WIRE;
    if (strcmp(text, "direct") == 0)
        return SIM_KIND_DIRECT;
    fprintf(stderr, "fb-sim: --clients=%s is neither wire nor direct\n", text);
    exit(EXIT_USAGE);
}

static void parse(int argc, char **argv, struct options *options)
{
    static const struct option longs[] = {
        {"seeds", 1, NULL, 'n'},
        {"from", 1, NULL, 'f'},
        {"seed", 1, NULL, 's'},
        {"jobs", 1, NULL, 'j'},
        {"bug", 1, NULL, 'b'},
        {"verbose", 0, NULL, 'v'},
        {"crash-points", 0, NULL, 'p'},
        {"all", 0, NULL, 'a'},
        {"seconds", 1, NULL, 't'},
        {"boundary", 1, NULL, 'B'},
        {"help", 0, NULL, 'h'},
        {"clients", 1, NULL, 'c'},
        {NULL, 0, NULL, 0},
    };
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    *options = (struct options){.seeds = 2000, .from = 1, .jobs = cores > 0 ? (unsigned)cores : 1};
    for (int c; (c = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
        switch (c) {
        case 'n':
            options->seeds = number("seeds", optarg);
            break;
        case 'f':
            options->from = number("from", optarg);
            break;
        case 's':
            options->seed = number("seed", optarg);
            options->one = true;
            break;
        case 'j':
            options->jobs = (unsigned)number("jobs", optarg);
            break;
        case 't':
            options->seconds = number("seconds", optarg);
            break;
        case 'B':
            options->boundary = number("boundary", optarg);
            break;
        case 'b':
            options->bug = optarg;
            break;
        case 'v':
            options->verbose = true;
            break;
        case 'p':
            options->points = true;
            break;
        case 'a':
            options->all = true;
            break;
        case 'c':
            options->kind = kind_of(optarg);
            break;
        case 'h':
            fputs(usage, stdout);
            exit(0);
        default:
            fputs(usage, stderr);
            exit(EXIT_USAGE);
        }
    }
    if (options->jobs == 0 || options->jobs > JOBS_MAX)
        options->jobs = options->jobs == 0 ? 1 : JOBS_MAX;
}

static void print_tail(const struct sim_world *world)
{
    uint32_t from = world->trace_next > TAIL_LINES ? world->trace_next - TAIL_LINES : 0;
    for (uint32_t i = from; i < world->trace_next; i++)
        fprintf(stderr, "  %s\n", world->trace[i % SIM_TRACE_LINES]);
}

static int run_one(const struct options *options)
{
    struct sim_report report;
    memset(&report, 0, sizeof(report));
    struct sim_world *world = sim_world_new(&report);
    world->verbose = options->verbose;
    world->kind = options->kind;
    int result = sim_world_run(world, options->seed);
    if (result != 0) {
        if (!options->verbose)
            print_tail(world);
        fprintf(stderr, "violation: %s\n", world->violation);
    }
    if (options->all)
        sim_report_print(&report, true);
    printf("sim: seed %llu, %llu events, %llu operations, %d violations\n",
           (unsigned long long)options->seed, (unsigned long long)report.events,
           (unsigned long long)report.operations, result);
    sim_world_free(world);
    return result;
}

static uint64_t seconds_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec;
}

/* The seed that each worker is at, in memory shared with the parent: in case of an assertion. */
static volatile uint64_t *seeds_at;

/* Every jobs-th seed, until the first violation; the outcome goes into the pipe. */
static void work(const struct options *options, unsigned job, int out)
{
    static struct outcome outcome;
    outcome.first_bad = UINT64_MAX;
    struct sim_world *world = sim_world_new(&outcome.report);
    world->kind = options->kind;
    uint64_t begin = seconds_now(), said = begin;
    for (uint64_t i = job; i < options->seeds; i += options->jobs) {
        uint64_t seed = options->from + i;
        seeds_at[job] = seed;
        if (sim_world_run(world, seed) != 0) {
            outcome.first_bad = seed;
            memcpy(outcome.violation, world->violation, sizeof(outcome.violation));
            break;
        }
        uint64_t now = seconds_now();
        if (job == 0 && now - said >= PROGRESS_S) {
            fprintf(stderr, "sim: %llu of %llu seeds, %llu s\n", (unsigned long long)(i + 1),
                    (unsigned long long)options->seeds, (unsigned long long)(now - begin));
            said = now;
        }
        if (options->seconds != 0 && now - begin >= options->seconds)
            break;
    }
    if (write(out, &outcome, sizeof(outcome)) != (ssize_t)sizeof(outcome))
        _exit(EXIT_USAGE);
    _exit(0);
}

static bool read_all(int in, void *to, size_t bytes)
{
    for (size_t got = 0; got < bytes;) {
        ssize_t n = read(in, (uint8_t *)to + got, bytes - got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        got += (size_t)n;
    }
    return true;
}

/* The line that replays a seed. */
static void print_replay(const struct options *options, uint64_t seed)
{
    static const char *const kinds[] = {"", " CLIENTS=direct", " CLIENTS=wire"};
    fprintf(stderr, "replay: make sim SEED=%llu%s%s%s\n", (unsigned long long)seed,
            kinds[options->kind], options->bug != NULL ? " BUG=" : "",
            options->bug != NULL ? options->bug : "");
}

/* Collects one worker. Returns 0, or 1 with the failure printed. */
static int collect(const struct options *options, unsigned job, int in, struct sim_report *sum)
{
    static struct outcome outcome;
    if (!read_all(in, &outcome, sizeof(outcome))) {
        uint64_t last = seeds_at[job];
        fprintf(stderr,
                "violation: a worker ended in seed %llu (assertion or sanitizer, see above)\n",
                (unsigned long long)last);
        print_replay(options, last);
        return 1;
    }
    sim_report_add(sum, &outcome.report);
    if (outcome.first_bad == UINT64_MAX)
        return 0;
    fprintf(stderr, "violation: seed %llu: %s\n", (unsigned long long)outcome.first_bad,
            outcome.violation);
    print_replay(options, outcome.first_bad);
    return 1;
}

static int run_many(const struct options *options)
{
    static struct sim_report sum;
    int pipes[JOBS_MAX][2];
    seeds_at = mmap(NULL, JOBS_MAX * sizeof(*seeds_at), PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (seeds_at == MAP_FAILED) {
        perror("fb-sim: mmap");
        return EXIT_USAGE;
    }
    for (unsigned job = 0; job < options->jobs; job++) {
        if (pipe(pipes[job]) != 0) {
            perror("fb-sim: pipe");
            return EXIT_USAGE;
        }
        pid_t pid = fork();
        if (pid < 0) {
            perror("fb-sim: fork");
            return EXIT_USAGE;
        }
        if (pid == 0) {
            close(pipes[job][0]);
            work(options, job, pipes[job][1]);
        }
        close(pipes[job][1]);
    }
    unsigned bad = 0;
    for (unsigned job = 0; job < options->jobs; job++) {
        bad += (unsigned)collect(options, job, pipes[job][0], &sum);
        close(pipes[job][0]);
    }
    while (wait(NULL) > 0)
        continue;
    unsigned zeros = sim_report_print(&sum, options->all);
    if (sum.seeds >= MANY_SEEDS && zeros != 0 && bad == 0) {
        fprintf(stderr, "sim: %u counters are zero after %llu seeds\n", zeros,
                (unsigned long long)sum.seeds);
        bad++;
    }
    printf("sim: %llu seeds, %llu events, %llu operations, %llu recoveries, %u violations\n",
           (unsigned long long)sum.seeds, (unsigned long long)sum.events,
           (unsigned long long)sum.operations, (unsigned long long)sum.recoveries, bad);
    return bad != 0 ? EXIT_VIOLATION : 0;
}

int main(int argc, char **argv)
{
    struct options options;
    parse(argc, argv, &options);
    if (options.bug != NULL && fb_bug_enable(options.bug) != 0) {
        fprintf(stderr,
                "fb-sim: --bug=%s: no such bug, or this build has no test hooks (use build/asan or "
                "build/hooks)\n",
                options.bug);
        return EXIT_USAGE;
    }
    if (options.points) {
        static struct sim_report report;
        return sim_points_run(options.verbose, &report, options.from, options.boundary);
    }
    return options.one ? run_one(&options) : run_many(&options);
}
