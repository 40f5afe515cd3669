/* A server for one run of the demo: start, restart, end, and what it took. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "test/demo/demo.h"

#define START_TRIES 3
#define STOP_MS     30000

static void watch(struct demo_run *run)
{
    const struct test_server_options *o = &run->options;
    uint64_t index_bytes = (uint64_t)o->index_entries * DEMO_INDEX_ENTRY_BYTES;
    test_watch_start(&run->watch, &run->server,
                     o->pool_bytes + index_bytes + DEMO_MEMORY_SLACK_BYTES, o->ssd_cap_bytes);
}

/* The port for metrics may be taken by another process between choice and use: try again. */
static int start(struct demo_run *run)
{
    for (int i = 0; i < START_TRIES; i++) {
        if (test_server_start(&run->server, &run->options) == 0) {
            watch(run);
            return 0;
        }
    }
    say("%s: FAILED: forebayd did not start: %s", run->name, run->server.error);
    return -1;
}

int demo_run_make(struct demo_run *run)
{
    int made = test_directory_make("forebay-demo", run->directory, sizeof(run->directory));
    if (made == 0)
        return 0;
    run->directory[0] = '\0';
    say("%s: FAILED: no directory for the data: %s; set TEST_DIR to one on a disk", run->name,
        strerror(-made));
    return -1;
}

int demo_run_start(struct demo_run *run, const struct demo_options *options)
{
    run->options.directory = run->directory;
    run->options.bugs = options->broken;
    run->options.admin = true;
    return start(run);
}

int demo_run_restart(struct demo_run *run)
{
    test_watch_stop(&run->watch);
    test_server_kill(&run->server);
    return start(run);
}

static int judge_caps(struct demo_run *run)
{
    char pool[32];
    bool kept = test_watch_stop(&run->watch);
    const struct test_watch *w = &run->watch;
    snprintf(pool, sizeof(pool), "%" PRIu64, run->options.pool_bytes >> 20);
    say("%s: server at most %" PRIu64 " MiB memory (pool %s), %" PRIu64 " of %" PRIu64
        " MiB SSD, seen %" PRIu64 " times from outside",
        run->name, w->memory_peak_bytes >> 20, pool, w->ssd_peak_bytes >> 20,
        run->options.ssd_cap_bytes >> 20, w->samples);
    if (!kept)
        say("%s: FAILED: a cap was passed: %s", run->name, w->samples > 0 ? w->breach : "not seen");
    return kept ? 0 : -1;
}

int demo_run_end(struct demo_run *run, const struct demo_options *options)
{
    int result = -1;
    if (run->server.pid > 0) {
        result = judge_caps(run);
        if (!test_server_alive(&run->server) || test_server_stop(&run->server, STOP_MS) != 0) {
            say("%s: FAILED: forebayd %s", run->name, run->server.error);
            result = -1;
        }
    }
    if (options->keep && run->directory[0] != '\0')
        say("%s: kept %s", run->name, run->directory);
    else if (run->directory[0] != '\0')
        test_directory_remove(run->directory);
    return result;
}

bool demo_metric(struct demo_run *run, const char *series, uint64_t *value)
{
    if (test_server_metric(&run->server, series, value))
        return true;
    say("%s: FAILED: /metrics has no %s", run->name, series);
    return false;
}
