/*
 * The demo: both reports of lost reuse, replayed on a real forebayd through the real client
 * library. main.c decides what runs, report_a.c and report_b.c replay, rank.c is one
 * tensor-parallel rank of report A, progress.c says what goes on.
 */
#ifndef TEST_DEMO_DEMO_H
#define TEST_DEMO_DEMO_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "test/lib/server.h"

#define DEMO_SEED 20261130

/* Memory that the server may take beside its pool and its index. */
#define DEMO_MEMORY_SLACK_BYTES (UINT64_C(256) << 20)
/* What an index entry takes at most. */
#define DEMO_INDEX_ENTRY_BYTES 96
/* Left free on the disk, whatever runs. */
#define DEMO_DISK_FREE_BYTES (UINT64_C(1) << 30)
/* How long one call may take: far more than any call here needs, far less than the demo. */
#define DEMO_CALL_MS 60000

/* Names of metrics; docs/operations.md says what they mean. */
#define METRIC_HITS_SSD   "forebay_get_hits_direct_total"
#define METRIC_WAITED_KEY "forebay_put_waited_key_total"
#define METRIC_RECLAIMED  "forebay_drops_total{reason=\"reclaimed_ssd\"}"

struct demo_options {
    const char *only;   /* "a", "b" or NULL: both */
    const char *broken; /* planted bug: "nowait", "wholebatch", or NULL */
    bool quick;         /* report A in its first form only */
    bool keep;          /* leave the directories */
};

/* ---- progress.c ---- */

/* Begins a stage of `total` steps; a thread prints how far it is until progress_end(). */
void progress_begin(const char *stage, uint64_t total);
void progress_add(uint64_t steps);
void progress_end(void);
/* Seconds since the program started. */
double progress_seconds(void);
/* A line of its own, with the time before it. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- the reports: 0 if the report holds, 1 if not; the last line is written to `line` ---- */

#define DEMO_LINE_BYTES 256
int report_a(const struct demo_options *options, char line[DEMO_LINE_BYTES]);
int report_b(const struct demo_options *options, char line[DEMO_LINE_BYTES]);

/*
 * A server for one run in a directory of its own. Each call says why it failed. `name` must live as
 * long as the run. demo_run_end() is due after demo_run_make(), whatever came between.
 */
struct demo_run {
    const char *name;
    struct test_server server;
    struct test_server_options options;
    struct test_watch watch;
    char directory[TEST_SERVER_PATH_BYTES];
};
/* Makes the directory; 0 or -1. Then the caller sets pool, cap and the like, and starts. */
int demo_run_make(struct demo_run *run);
int demo_run_start(struct demo_run *run, const struct demo_options *options);
/* kill -9, and a start on the same directory. 0 or -1. */
int demo_run_restart(struct demo_run *run);
/* Stops the server and the watch, says what it took; 0 if it ended well and kept its caps. */
int demo_run_end(struct demo_run *run, const struct demo_options *options);
/* A metric that must be there: says so and returns false if not. */
bool demo_metric(struct demo_run *run, const char *series, uint64_t *value);

#endif
