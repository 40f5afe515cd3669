/* One cycle of start, check, load and kill. See cycle.h. */
#include "test/crash/cycle.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/limits.h"
#include "test/crash/check.h"
#include "test/crash/damage.h"

#define ERA_CYCLES_MIN     8
#define ERA_CYCLES_MAX     36
#define SSD_MIB_MIN        48
#define SSD_MIB_MAX        288
#define DAMAGED_CYCLES     2
#define LOAD_MS_MIN        20
#define LOAD_MS_MAX        220
#define TICK_MS            4
#define NEMESIS_PPM        30000 /* a tick: somebody is stopped or killed */
#define RESUME_PPM         120000
#define HANG_SLACK_MS      3000
#define CLIENTS_END_MS     15000
#define START_MS           20000
#define INDEX_ENTRY_BYTES  96
#define MEMORY_SLACK_BYTES FB_MIB(256)

/* ---- eras ---- */

static uint64_t cycle_seed(const struct crash_run *run, uint32_t cycle, uint32_t what)
{
    return fb_mix64(run->seed ^ fb_mix64(((uint64_t)what << 32) | cycle));
}

int crash_era_begin(struct crash_run *run, uint32_t first)
{
    static const char *const persist[] = {"behind", "through", "evict"};
    static const char *const io[] = {"uring", "posix"};
    struct crash_era *era = &run->era;
    struct fb_prng prng;
    fb_prng_seed(&prng, cycle_seed(run, first, 1));
    *era = (struct crash_era){.first = first};
    era->cycles = (uint32_t)fb_prng_between(&prng, ERA_CYCLES_MIN, ERA_CYCLES_MAX);
    era->damaged = first + era->cycles - DAMAGED_CYCLES;
    int made = test_directory_make("forebay-crash", era->directory, sizeof(era->directory));
    if (made != 0) {
        crash_fail(run->state, CRASH_FAIL_OTHER, "no directory: %s", strerror(-made));
        return -1;
    }
    era->options = (struct test_server_options){
        .directory = era->directory,
        .pool_bytes = FB_MIB(16) << fb_prng_below(&prng, 3),
        .ssd_cap_bytes = FB_MIB(fb_prng_between(&prng, SSD_MIB_MIN / 2, SSD_MIB_MAX / 2) * 2),
        .index_entries = (uint32_t)fb_prng_between(&prng, 2048, 6144),
        .persist = persist[fb_prng_below(&prng, 3)],
        .io = io[fb_prng_below(&prng, 2)],
        .bugs = run->bug,
        .ready_ms = START_MS,
        .extra = {"--ssd-floor=0"},
    };
    if (run->ssd_mib != 0)
        era->options.ssd_cap_bytes = FB_MIB(run->ssd_mib);
    memset(run->state->ns, 0, sizeof(run->state->ns));
    memset(run->state->client, 0, sizeof(run->state->client));
    atomic_store(&run->state->tainted, false);
    crash_count(run->state, CRASH_N_ERAS, 1);
    return 0;
}

void crash_era_end(struct crash_run *run, bool keep)
{
    if (run->era.directory[0] != '\0' && !keep)
        test_directory_remove(run->era.directory);
    if (!keep)
        run->era.directory[0] = '\0';
}

/* ---- clients ---- */

static void client_start(struct crash_run *run, unsigned i, uint64_t seed)
{
    run->loads[i] = (struct crash_load){.state = run->state,
                                        .address = run->server.address,
                                        .number = i,
                                        .seed = seed};
    atomic_store(&run->state->client[i].call_began_ns, 0);
    pid_t pid = fork();
    if (pid == 0)
        crash_client_main(&run->loads[i]);
    run->clients[i] = pid > 0 ? pid : 0;
    run->stopped[i] = false;
    if (pid < 0)
        crash_fail(run->state, CRASH_FAIL_OTHER, "fork: %s", strerror(errno));
}

/* A client is gone: nobody owns what it owned. Its operations stay in doubt. */
static void client_forget(struct crash_run *run, unsigned i)
{
    for (unsigned ns = 0; ns < CRASH_NAMESPACES; ns++) {
        uint64_t doubts = atomic_exchange(&run->state->client[i].shared[ns], 0);
        atomic_fetch_or(&run->state->ns[ns].shared_doubts, doubts);
        for (unsigned k = 0; k < CRASH_OWN_KEYS; k++) {
            uint32_t owner = i + 1;
            atomic_compare_exchange_strong(&run->state->ns[ns].own[k].owner, &owner, 0);
        }
    }
    run->clients[i] = 0;
    run->stopped[i] = false;
}

static void client_kill(struct crash_run *run, unsigned i)
{
    int status;
    kill(run->clients[i], SIGKILL);
    waitpid(run->clients[i], &status, 0);
    crash_count(run->state, run->stopped[i] ? CRASH_N_CLIENT_STOP_KILLS : CRASH_N_CLIENT_KILLS, 1);
    client_forget(run, i);
}

/* Reaps a client that has ended by itself; an abnormal end is a violation. False if it runs. */
static bool client_ended(struct crash_run *run, unsigned i)
{
    int status;
    if (run->clients[i] == 0)
        return true;
    if (waitpid(run->clients[i], &status, WNOHANG) != run->clients[i])
        return false;
    if (status != 0)
        crash_fail(run->state, CRASH_FAIL_OTHER, "client %u ended with status %#x", i, status);
    client_forget(run, i);
    return true;
}

static void client_resume(struct crash_run *run, unsigned i)
{
    kill(run->clients[i], SIGCONT);
    run->stopped[i] = false;
}

static void clients_start(struct crash_run *run, uint32_t cycle)
{
    atomic_store(&run->state->stop, false);
    for (unsigned i = 0; i < CRASH_CLIENTS; i++) {
        run->was_stopped[i] = false;
        client_start(run, i, cycle_seed(run, cycle, 100 + i));
    }
}

/* After the server has gone, every call ends at once, and every client with it. */
static void clients_end(struct crash_run *run, struct fb_prng *prng)
{
    atomic_store(&run->state->stop, true);
    for (unsigned i = 0; i < CRASH_CLIENTS; i++) {
        if (run->clients[i] != 0 && run->stopped[i] && fb_prng_below(prng, 2))
            client_kill(run, i);
        else if (run->clients[i] != 0 && run->stopped[i])
            client_resume(run, i);
    }
    uint64_t until = test_now_ns() + CLIENTS_END_MS * FB_MS_NS;
    for (unsigned i = 0; i < CRASH_CLIENTS; i++) {
        while (!client_ended(run, i) && test_now_ns() < until)
            test_sleep_ms(1);
        if (run->clients[i] == 0)
            continue;
        crash_fail(run->state, CRASH_FAIL_OTHER,
                   "client %u still in a call %u ms after the server was killed", i,
                   CLIENTS_END_MS);
        client_kill(run, i);
    }
}

/* ---- load ---- */

/* Stops or kills somebody now and then; who was killed comes back as a new process. */
static void nemesis(struct crash_run *run, struct fb_prng *prng)
{
    unsigned i = (unsigned)fb_prng_below(prng, CRASH_CLIENTS);
    if (run->clients[i] == 0)
        return;
    if (run->stopped[i]) {
        if (fb_prng_chance(prng, RESUME_PPM)) {
            client_resume(run, i);
        } else if (fb_prng_chance(prng, NEMESIS_PPM)) {
            client_kill(run, i);
            client_start(run, i, fb_prng_next(prng));
        }
        return;
    }
    if (!fb_prng_chance(prng, NEMESIS_PPM))
        return;
    if (fb_prng_below(prng, 2)) {
        kill(run->clients[i], SIGSTOP);
        run->stopped[i] = run->was_stopped[i] = true;
        crash_count(run->state, CRASH_N_CLIENT_STOPS, 1);
    } else {
        client_kill(run, i);
        client_start(run, i, fb_prng_next(prng));
    }
}

static void look_for_hangs(struct crash_run *run)
{
    for (unsigned i = 0; i < CRASH_CLIENTS; i++) {
        const struct crash_client *c = &run->state->client[i];
        uint64_t began = atomic_load(&c->call_began_ns), now = test_now_ns();
        uint64_t limit = (atomic_load(&c->call_limit_ms) + HANG_SLACK_MS) * FB_MS_NS;
        if (run->clients[i] != 0 && !run->was_stopped[i] && began != 0 && now > began &&
            now - began > limit)
            crash_fail(run->state, CRASH_FAIL_OTHER,
                       "client %u: a call has not ended by its deadline", i);
    }
}

static void look_at_caps(struct crash_run *run)
{
    struct test_server_use use;
    const struct test_server_options *o = &run->era.options;
    uint64_t cap =
        o->pool_bytes + (uint64_t)o->index_entries * INDEX_ENTRY_BYTES + MEMORY_SLACK_BYTES;
    test_server_look(&run->server, &use);
    crash_count(run->state, CRASH_N_SAMPLES, 1);
    if (use.memory_bytes > run->memory_peak_bytes)
        run->memory_peak_bytes = use.memory_bytes;
    if (use.ssd_bytes > run->ssd_peak_bytes)
        run->ssd_peak_bytes = use.ssd_bytes;
    if (use.memory_bytes > cap)
        crash_fail(run->state, CRASH_FAIL_OTHER, "memory %" PRIu64 " passes its cap %" PRIu64,
                   use.memory_bytes, cap);
    if (use.ssd_bytes > o->ssd_cap_bytes)
        crash_fail(run->state, CRASH_FAIL_OTHER, "SSD %" PRIu64 " passes its cap %" PRIu64,
                   use.ssd_bytes, o->ssd_cap_bytes);
}

static void load(struct crash_run *run, uint32_t cycle)
{
    struct fb_prng prng;
    fb_prng_seed(&prng, cycle_seed(run, cycle, 3));
    uint64_t ms = fb_prng_between(&prng, LOAD_MS_MIN, LOAD_MS_MAX);
    uint64_t until = test_now_ns() + (run->load_ms ? run->load_ms : ms) * FB_MS_NS;
    clients_start(run, cycle);
    while (test_now_ns() < until && !crash_failed(run->state)) {
        test_sleep_ms(TICK_MS);
        nemesis(run, &prng);
        look_at_caps(run);
        look_for_hangs(run);
        for (unsigned i = 0; i < CRASH_CLIENTS; i++)
            if (run->clients[i] != 0 && !run->stopped[i])
                client_ended(run, i);
        if (!test_server_alive(&run->server)) {
            crash_fail(run->state, CRASH_FAIL_OTHER, "forebayd %s", run->server.error);
            break;
        }
    }
    test_server_kill(&run->server);
    crash_count(run->state, CRASH_N_KILLS, 1);
    clients_end(run, &prng);
}

/* ---- the cycle ---- */

static bool start(struct crash_run *run, uint32_t cycle)
{
    struct crash_era *era = &run->era;
    struct test_server_options options = era->options;
    bool forget = run->forget >= 0 ? run->forget != 0 : (cycle_seed(run, cycle, 2) & 1) != 0;
    if (forget)
        options.io = "forget";
    if (run->io_fault != NULL) {
        snprintf(run->fault_argument, sizeof(run->fault_argument), "--io-fault=%s", run->io_fault);
        options.extra[1] = run->fault_argument;
    }
    crash_count(run->state, CRASH_N_FORGET, forget);
    if (test_server_start(&run->server, &options) == 0) {
        if (run->server.start_ms > run->start_ms_max)
            run->start_ms_max = run->server.start_ms;
        return true;
    }
    if (atomic_load(&run->state->tainted))
        crash_count(run->state, CRASH_N_DAMAGE_REFUSED, 1);
    else
        crash_fail(run->state, CRASH_FAIL_OTHER, "start: %s", run->server.error);
    return false;
}

static void hurt(struct crash_run *run, uint32_t cycle)
{
    struct fb_prng prng;
    fb_prng_seed(&prng, cycle_seed(run, cycle, 4));
    atomic_store(&run->state->tainted, true);
    crash_count(run->state, CRASH_N_DAMAGED, 1);
    crash_damage(run->state, &prng, run->server.ssd_path, run->copy_path);
}

bool crash_cycle(struct crash_run *run, uint32_t cycle)
{
    const struct crash_era *era = &run->era;
    atomic_store(&run->state->cycle, cycle);
    crash_count(run->state, CRASH_N_CYCLES, 1);
    if (cycle >= era->damaged)
        hurt(run, cycle);
    if (!start(run, cycle))
        return false;
    if (cycle > era->first)
        crash_check(run->state, run->server.address, cycle_seed(run, cycle, 5));
    if (crash_failed(run->state)) {
        test_server_kill(&run->server);
        return false;
    }
    load(run, cycle);
    if (cycle + 2 == era->damaged)
        crash_damage_remember(run->server.ssd_path, run->copy_path);
    return true;
}
