/*
 * print.c - rows as people and programs read them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "test/bench/bench.h"

static FILE *json, *page;

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void sort(const double *values, unsigned count, double *out)
{
    memcpy(out, values, count * sizeof(*values));
    qsort(out, count, sizeof(*out), by_value);
}

double bench_median(const double *values, unsigned count)
{
    double sorted[BENCH_RUNS_MAX];
    sort(values, count, sorted);
    return sorted[count / 2];
}

static void first_line(const char *path, const char *begins, char *out, size_t bytes)
{
    char line[BENCH_TEXT_MAX];
    snprintf(out, bytes, "unknown");
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return;
    while (fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, begins, strlen(begins)) != 0)
            continue;
        char *colon = strchr(line, ':');
        const char *text = colon != NULL && colon[1] != '\0' ? colon + 2 : line;
        snprintf(out, bytes, "%.*s", (int)bytes - 1, text);
        out[strcspn(out, "\n")] = '\0';
        break;
    }
    fclose(file);
}

/* Says what machine this is, and opens the files that the figures go to. */
void bench_machine(void)
{
    struct utsname system;
    char cpu[128], memory[64];
    uname(&system);
    first_line("/proc/cpuinfo", "model name", cpu, sizeof(cpu));
    first_line("/proc/meminfo", "MemTotal", memory, sizeof(memory));
    mkdir("build", 0777);
    mkdir("build/bench", 0777);
    json = fopen("build/bench/rows.jsonl", "w");
    page = fopen("build/bench/rows.md", "w");
    if (json == NULL || page == NULL)
        bench_die("cannot write build/bench: run it from the top of the tree");
    double load[1] = {0};
    getloadavg(load, 1);
    printf("machine: %ld cores (%s), memory %s, Linux %s, load %.1f\n",
           sysconf(_SC_NPROCESSORS_ONLN), cpu, memory, system.release, load[0]);
    fprintf(page, "Machine: %ld cores (%s), memory %s, Linux %s, load at start %.1f.\n\n",
            sysconf(_SC_NPROCESSORS_ONLN), cpu, memory, system.release, load[0]);
    fprintf(page, "| row | ours min / median / max | peer min / median / max | ratio | target | "
                  "CPU s/GB | what limits it |\n|---|---|---|---|---|---|---|\n");
}

/* How far the row is from its target: 1 is on it, 0.5 half of it. */
static double reached(const struct bench_row *row, double value)
{
    if (row->target == 0)
        return 1;
    return row->less_is_better ? row->target / value : value / row->target;
}

void bench_print(struct bench *bench, const struct bench_row *row)
{
    double ours[BENCH_RUNS_MAX], theirs[BENCH_RUNS_MAX], ratios[BENCH_RUNS_MAX];
    unsigned n = row->runs;
    sort(row->ours, n, ours);
    sort(row->theirs, n, theirs);
    for (unsigned i = 0; i < n; i++)
        ratios[i] = row->peer != NULL ? row->ours[i] / row->theirs[i] : row->ours[i];
    double ratio = bench_median(ratios, n);
    double part = reached(row, ratio);
    const char *verdict = row->target == 0 ? "information"
                          : part >= 1      ? "at target"
                          : part >= 0.5    ? "half of target or better"
                                           : "BELOW HALF";
    bench->below_half += row->target != 0 && part < 0.5;
    printf("%-22s %8.3g / %8.3g / %8.3g %s", row->name, ours[0], ours[n / 2], ours[n - 1],
           row->unit);
    if (row->peer != NULL)
        printf("   %s %.3g / %.3g / %.3g   ratio %.2f", row->peer, theirs[0], theirs[n / 2],
               theirs[n - 1], ratio);
    if (row->target != 0)
        printf("   target %s %.3g: %s", row->less_is_better ? "<=" : ">=", row->target, verdict);
    if (row->cpu_s_per_gb != 0)
        printf("   CPU %.2f s/GB", row->cpu_s_per_gb);
    printf("\n    limited by: %s\n", row->limit);
    fflush(stdout);
    fprintf(page, "| %s (%s) | %.3g / %.3g / %.3g |", row->name, row->unit, ours[0], ours[n / 2],
            ours[n - 1]);
    if (row->peer != NULL)
        fprintf(page, " %s: %.3g / %.3g / %.3g | %.2f |", row->peer, theirs[0], theirs[n / 2],
                theirs[n - 1], ratio);
    else
        fprintf(page, " | |");
    fprintf(page, " %s %.3g%s | %.2f | %s |\n", row->less_is_better ? "<=" : ">=", row->target,
            row->goal ? " (goal)" : "", row->cpu_s_per_gb, row->limit);
    fprintf(json,
            "{\"row\":\"%s\",\"unit\":\"%s\",\"min\":%g,\"median\":%g,\"max\":%g,\"ratio\":%g,"
            "\"target\":%g}\n",
            row->name, row->unit, ours[0], ours[n / 2], ours[n - 1], ratio, row->target);
}

int bench_finish(struct bench *bench)
{
    fclose(json);
    fclose(page);
    printf("bench: %u rows below half of their target; figures in build/bench/rows.md\n",
           bench->below_half);
    return 0;
}
