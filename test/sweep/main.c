/*
 * main.c - fb-sweep: everything fails once, and for ever.
 *
 *   fb-sweep                   all of it
 *   fb-sweep --short           a part: about 30 s
 *   fb-sweep --io | --memory   one half alone
 *   fb-sweep --case load:op:nth[+]:fault [--verbose]
 *
 * Each worker is a process, so that an assertion that fails costs one run and its name is known.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/bits.h"
#include "test/sweep/sweep.h"

#define WORKERS_MAX  16
#define SHORT_RUNS   900 /* of the sweep over I/O, about */
#define SHORT_MEMORY 5   /* one allocation in so many */
#define WRONG_SHOWN  20
#define HANG_S       120 /* of one run, by the wall */

struct options {
    bool is_short, io, memory, verbose;
    const char *only;
};

/* What a worker tells, in memory that outlives it. */
struct desk {
    struct sweep_case at;
    uint64_t next; /* the case after that one */
    struct sweep_counts counts;
};

/* ---- the list of cases ---- */

struct list {
    struct sweep_case *cases;
    size_t count, room;
};

static void add_case(struct list *list, struct sweep_case at)
{
    if (list->count == list->room) {
        list->room = list->room * 2 + 1024;
        list->cases = realloc(list->cases, list->room * sizeof(at));
        FB_ASSERT(list->cases != NULL);
    }
    list->cases[list->count++] = at;
}

/* Every request of a load under every fault, once and for ever. */
static void add_load(struct list *list, unsigned load, const uint64_t *requests)
{
    for (uint8_t op = 0; op < FB_IO_OP_COUNT; op++)
        for (unsigned fault = 1; fault < SWEEP_FAULTS; fault++)
            for (uint64_t nth = 1; nth <= requests[op]; nth++)
                for (unsigned forever = 0; forever < 2; forever++)
                    if (sweep_io_applies((enum fb_io_op)op, fault))
                        add_case(list, (struct sweep_case){.load = load,
                                                           .op = op,
                                                           .fault = (uint8_t)fault,
                                                           .nth = nth,
                                                           .forever = forever != 0});
}

static bool list_cases(struct list *list)
{
    for (unsigned load = 0; load < SWEEP_LOADS; load++) {
        uint64_t requests[FB_IO_OP_COUNT];
        char why[SWEEP_TEXT_BYTES];
        if (!sweep_io_measure(load, requests, why)) {
            printf("sweep: load %s, %s\n", sweep_loads[load].name, why);
            return false;
        }
        size_t before = list->count;
        add_load(list, load, requests);
        printf("sweep: load %-9s %4llu reads %4llu writes %4llu flushes %3llu grows %4llu hashes: "
               "%6zu cases\n",
               sweep_loads[load].name, (unsigned long long)requests[FB_IO_READ],
               (unsigned long long)requests[FB_IO_WRITE], (unsigned long long)requests[FB_IO_FLUSH],
               (unsigned long long)requests[FB_IO_GROW], (unsigned long long)requests[FB_IO_HASH],
               list->count - before);
        fflush(stdout);
    }
    return true;
}

/* ---- workers ---- */

static void work(const struct list *list, struct desk *desk, size_t stride, bool verbose)
{
    while (desk->next < list->count) {
        desk->at = list->cases[desk->next];
        desk->next += stride;
        char why[SWEEP_TEXT_BYTES], name[SWEEP_TEXT_BYTES];
        alarm(HANG_S);
        if (!sweep_io_case(&desk->at, verbose, &desk->counts, why)) {
            desk->counts.wrong++;
            sweep_case_text(&desk->at, name);
            if (desk->counts.wrong <= WRONG_SHOWN)
                printf("sweep: %s: %s\n", name, why);
            fflush(stdout);
        }
    }
}

static pid_t start_worker(const struct list *list, struct desk *desk, size_t stride, bool verbose)
{
    fflush(stdout);
    pid_t pid = fork();
    FB_ASSERT(pid >= 0);
    if (pid != 0)
        return pid;
    work(list, desk, stride, verbose);
    exit(0);
}

static void add_counts(struct sweep_counts *sum, const struct sweep_counts *one)
{
    sum->runs += one->runs;
    sum->wrong += one->wrong;
    sum->fired += one->fired;
    sum->requests += one->requests;
    sum->hits += one->hits;
    sum->misses += one->misses;
    sum->tier_full += one->tier_full;
    sum->tier_fenced += one->tier_fenced;
    sum->starts_failed += one->starts_failed;
}

/* A worker that died has failed its case; another one goes on behind it. */
static void run_workers(const struct list *list, size_t stride, bool verbose,
                        struct sweep_counts *sum)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned workers = cores < 1 ? 1 : cores > WORKERS_MAX ? WORKERS_MAX : (unsigned)cores;
    struct desk *desks = mmap(NULL, WORKERS_MAX * sizeof(*desks), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    FB_ASSERT(desks != MAP_FAILED);
    pid_t pids[WORKERS_MAX];
    for (unsigned i = 0; i < workers; i++) {
        desks[i].next = i * stride;
        pids[i] = start_worker(list, &desks[i], stride * workers, verbose);
    }
    for (unsigned left = workers; left > 0;) {
        int status;
        pid_t pid = wait(&status);
        FB_ASSERT(pid > 0);
        unsigned i = 0;
        while (i < workers && pids[i] != pid)
            i++;
        if (i == workers)
            continue;
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
            left--;
            continue;
        }
        char name[SWEEP_TEXT_BYTES];
        sweep_case_text(&desks[i].at, name);
        printf("sweep: %s: the process ended (%s %d)\n", name,
               WIFSIGNALED(status) ? "signal" : "code",
               WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        desks[i].counts.wrong++;
        desks[i].counts.runs++;
        pids[i] = start_worker(list, &desks[i], stride * workers, verbose);
    }
    for (unsigned i = 0; i < workers; i++)
        add_counts(sum, &desks[i].counts);
    munmap(desks, WORKERS_MAX * sizeof(*desks));
}

/* ---- the two halves ---- */

static uint64_t sweep_io(const struct options *options)
{
    struct list list = {0};
    struct sweep_counts sum = {0};
    if (!list_cases(&list)) {
        free(list.cases);
        return 1;
    }
    size_t stride = options->is_short ? fb_max_u64(1, list.count / SHORT_RUNS) | 1 : 1;
    run_workers(&list, stride, options->verbose, &sum);
    printf("sweep: %llu runs of %zu cases, %llu faults, %llu requests, %llu hits, %llu misses; "
           "tier full %llu, fenced %llu, starts refused %llu; %llu wrong\n",
           (unsigned long long)sum.runs, list.count, (unsigned long long)sum.fired,
           (unsigned long long)sum.requests, (unsigned long long)sum.hits,
           (unsigned long long)sum.misses, (unsigned long long)sum.tier_full,
           (unsigned long long)sum.tier_fenced, (unsigned long long)sum.starts_failed,
           (unsigned long long)sum.wrong);
    free(list.cases);
    return sum.wrong;
}

static int one_case(const struct options *options)
{
    struct sweep_case at;
    struct sweep_counts counts = {0};
    char why[SWEEP_TEXT_BYTES];
    if (!sweep_case_parse(options->only, &at)) {
        fprintf(stderr, "fb-sweep: '%s' is no load:op:nth[+]:fault\n", options->only);
        return 2;
    }
    bool is_well = sweep_io_case(&at, options->verbose, &counts, why);
    printf("%s: %s\n", options->only, is_well ? "well" : why);
    return is_well ? 0 : 1;
}

static const char usage[] =
    "fb-sweep [--short] [--io | --memory] [--verbose] [--case load:op:nth[+]:fault]\n"
    "  --short    a part of it, as make test does\n"
    "  --io       faults of I/O alone\n"
    "  --memory   failing allocations alone\n"
    "  --verbose  each case\n"
    "  --case     one case again, as a failure prints it\n";

static bool read_options(int argc, char **argv, struct options *options)
{
    *options = (struct options){.io = true, .memory = true};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0)
            exit(fputs(usage, stdout) < 0);
        else if (strcmp(argv[i], "--short") == 0)
            options->is_short = true;
        else if (strcmp(argv[i], "--io") == 0)
            options->memory = false;
        else if (strcmp(argv[i], "--memory") == 0)
            options->io = false;
        else if (strcmp(argv[i], "--verbose") == 0)
            options->verbose = true;
        else if (strcmp(argv[i], "--case") == 0 && i + 1 < argc)
            options->only = argv[++i];
        else
            return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    struct options options;
    if (!read_options(argc, argv, &options)) {
        fputs(usage, stderr);
        return 2;
    }
    if (options.only != NULL)
        return one_case(&options);
    uint64_t wrong = 0, runs = 0, refused = 0;
    if (options.memory) {
        wrong +=
            sweep_memory(options.is_short ? SHORT_MEMORY : 1, options.verbose, &runs, &refused);
        printf("sweep: memory: %llu runs, %llu starts refused, %llu wrong\n",
               (unsigned long long)runs, (unsigned long long)refused, (unsigned long long)wrong);
    }
    if (options.io)
        wrong += sweep_io(&options);
    printf("%d passed, %d failed\n", wrong == 0, wrong != 0);
    return wrong == 0 ? 0 : 1;
}
