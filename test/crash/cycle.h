/*
 * A cycle: start the server, check what it holds, load it, kill it. An era: some cycles on one
 * device, at the end of which its file is damaged. Everything that is drawn comes from the seed and
 * the number of the cycle, so an era can be replayed; the timing is the machine's.
 */
#ifndef TEST_CRASH_CYCLE_H
#define TEST_CRASH_CYCLE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/prng.h"
#include "test/crash/client.h"
#include "test/crash/state.h"
#include "test/lib/server.h"

struct crash_era {
    uint32_t first, cycles; /* numbers of its cycles */
    uint32_t damaged;       /* the file is damaged before this one and all later ones */
    char directory[TEST_SERVER_PATH_BYTES];
    struct test_server_options options;
};

struct crash_run {
    struct crash_state *state;
    uint64_t seed;
    const char *io_fault; /* NULL: none */
    const char *bug;      /* NULL: none */
    uint32_t load_ms;     /* 0: drawn */
    uint32_t ssd_mib;     /* 0: drawn */
    int forget;           /* -1: drawn; else 0 or 1 */
    char state_path[TEST_SERVER_PATH_BYTES];
    char copy_path[TEST_SERVER_PATH_BYTES]; /* an old copy of the file */
    char fault_argument[128];
    struct crash_era era;
    struct test_server server;
    struct crash_load loads[CRASH_CLIENTS];
    pid_t clients[CRASH_CLIENTS]; /* 0: not running */
    bool stopped[CRASH_CLIENTS];
    bool was_stopped[CRASH_CLIENTS]; /* in this cycle: its calls may take longer */
    unsigned start_ms_max;
    uint64_t memory_peak_bytes, ssd_peak_bytes;
};

/* Draws the era that begins with a cycle, on a fresh directory. 0 or -1 with a violation noted. */
int crash_era_begin(struct crash_run *run, uint32_t first);
/* Deletes its directory, unless `keep`. */
void crash_era_end(struct crash_run *run, bool keep);

/* One cycle. Returns false if the era is over early (damage that the server refuses). */
bool crash_cycle(struct crash_run *run, uint32_t cycle);

#endif
