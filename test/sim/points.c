/*
 * points.c - every crash point of a scripted load: the load is run again for each I/O boundary, the
 * power is cut there in each way, the node recovers, the load goes on, and everything is read back.
 */
#include <stdio.h>

#include "test/sim/world.h"

#define SCRIPTS        3 /* loads */
#define RANDOM_CUTS    6 /* of each kind that draws, at each boundary */
#define PROGRESS_EVERY 64

static bool is_drawn(enum fb_sim_cut cut)
{
    return cut == FB_SIM_CUT_RANDOM || cut == FB_SIM_CUT_TORN;
}

static int cut_at(struct sim_world *world, uint64_t seed, uint64_t at, uint64_t *recoveries)
{
    for (int cut = 0; cut < FB_SIM_CUT_COUNT; cut++)
        for (uint64_t draw = 0; draw < (is_drawn((enum fb_sim_cut)cut) ? RANDOM_CUTS : 1); draw++) {
            uint64_t passed;
            if (sim_world_run_cut(world, seed, at, (enum fb_sim_cut)cut, at * RANDOM_CUTS + draw,
                                  &passed) != 0) {
                fprintf(stderr, "sim: script %llu, cut %s at boundary %llu, draw %llu: %s\n",
                        (unsigned long long)seed, fb_sim_cut_name((enum fb_sim_cut)cut),
                        (unsigned long long)at, (unsigned long long)draw, world->violation);
                fprintf(stderr,
                        "replay: fb-sim --crash-points --from %llu --boundary %llu --verbose\n",
                        (unsigned long long)seed, (unsigned long long)at);
                return 1;
            }
            ++*recoveries;
        }
    return 0;
}

/* Runs them all; `only`: one boundary alone, 0 for all. Returns 0, or 1 with the first violation
 * printed. */
int sim_points_run(bool verbose, struct sim_report *report, uint64_t first, uint64_t only)
{
    struct sim_world *world = sim_world_new(report);
    world->verbose = verbose;
    uint64_t recoveries = 0, points = 0;
    int result = 0;
    for (uint64_t seed = first; seed < first + SCRIPTS && result == 0; seed++) {
        uint64_t boundaries;
        result = sim_world_run_cut(world, seed, 0, FB_SIM_CUT_ALL, 0, &boundaries);
        if (result != 0)
            fprintf(stderr, "sim: script %llu without a cut: %s\n", (unsigned long long)seed,
                    world->violation);
        for (uint64_t at = only != 0 ? only : 1;
             at <= (only != 0 ? only : boundaries) && result == 0; at++, points++) {
            result = cut_at(world, seed, at, &recoveries);
            if (at % PROGRESS_EVERY == 0)
                fprintf(stderr, "sim: script %llu: boundary %llu of %llu\n",
                        (unsigned long long)seed, (unsigned long long)at,
                        (unsigned long long)boundaries);
        }
    }
    printf("crash points: %llu, recoveries: %llu, violations: %d\n", (unsigned long long)points,
           (unsigned long long)recoveries, result);
    sim_world_free(world);
    return result;
}
