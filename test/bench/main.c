/*
 * main.c - fb-bench: figures beside a peer, alternating in one run. See bench.h and
 * docs/operations.md.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/bench/bench.h"

#define RUNS_USUAL 5

static const char usage[] = "usage: fb-bench [--row NAME] [--runs N]\n"
                            "  --row NAME   only rows whose name begins so: shm_, tcp_, ssd_, "
                            "read_p99, get_, exists, restart, index, idle\n"
                            "  --runs N     alternations of each row (default 5)\n"
                            "Needs fio and redis-server (tools/setup bench). Figures go to "
                            "build/bench/rows.md and rows.jsonl.\n";

bool bench_wants(const struct bench *bench, const char *name)
{
    if (bench->only == NULL)
        return true;
    size_t n = strlen(name) < strlen(bench->only) ? strlen(name) : strlen(bench->only);
    return strncmp(name, bench->only, n) == 0;
}

int main(int argc, char **argv)
{
    static const struct option longs[] = {{"row", 1, NULL, 'r'},
                                          {"runs", 1, NULL, 'n'},
                                          {"help", 0, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    struct bench bench = {.runs = RUNS_USUAL};
    for (int c; (c = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
        switch (c) {
        case 'r':
            bench.only = optarg;
            break;
        case 'n':
            bench.runs = (unsigned)strtoul(optarg, NULL, 10);
            break;
        case 'h':
            fputs(usage, stdout);
            return 0;
        default:
            fputs(usage, stderr);
            return 2;
        }
    }
    if (bench.runs == 0 || bench.runs > BENCH_RUNS_MAX) {
        fprintf(stderr, "fb-bench: --runs must be 1 to %d\n", BENCH_RUNS_MAX);
        return 2;
    }
    if (test_directory_make("bench", bench.directory, sizeof(bench.directory)) != 0)
        bench_die("no directory to work in");
    bench_machine();
    bench_memory(&bench);
    bench_disk(&bench);
    bench_small(&bench);
    int result = bench_finish(&bench);
    test_directory_remove(bench.directory);
    return result;
}
