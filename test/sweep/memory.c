/*
 * memory.c - every allocation of a start fails once: of the settings, of a node with and without a
 * device, of a client and its first calls.
 *
 * Each try is a process of its own, so that the sanitizer looks for leaks in it alone and a crash
 * costs one try. What was refused must say why in one line; what went on in spite of the failure
 * must serve. Descriptors and threads must be as many as before.
 */
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/limits.h"
#include "base/result.h"
#include "forebay/forebay.h"
#include "node/node.h"
#include "server/daemon.h"
#include "server/options.h"
#include "test/lib/server.h"
#include "test/sweep/hooks.h"
#include "test/sweep/sweep.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#define LEAKS() (__lsan_do_recoverable_leak_check() != 0)
#else
#define LEAKS() false
#endif

#define TRIES_MAX    5000 /* of one start: more calls it does not make */
#define READY_MAX_MS 15000
#define TRY_MAX_S    60
#define POOL_BYTES   FB_MIB(16)
#define SSD_BYTES    FB_MIB(32)
#define TEXT_BYTES   600

/* How a try ends, as an exit code. */
enum outcome {
    REFUSED = 10, /* with a word */
    SERVED,       /* in spite of it */
    UNTOUCHED,    /* the start makes fewer calls: the last one was reached */
    SILENT,       /* refused without a word */
    USELESS,      /* went on, and does not serve */
    LEAKED,
    LEFT_OPEN /* descriptors or threads */
};

static char directory[TEST_SERVER_PATH_BYTES];

/* ---- what must not grow ---- */

static unsigned count_entries(const char *path)
{
    unsigned count = 0;
    DIR *dir = opendir(path);
    FB_ASSERT(dir != NULL);
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

static unsigned count_fds(void)
{
    return count_entries("/proc/self/fd");
}

static unsigned count_threads(void)
{
    return count_entries("/proc/self/task");
}

/* A thread that was joined may be listed for a moment longer. */
static bool is_as_before(unsigned fds, unsigned threads)
{
    for (unsigned ms = 0; ms < 500 && count_threads() > threads; ms++)
        test_sleep_ms(1);
    return count_fds() == fds && count_threads() == threads;
}

/* ---- the settings ---- */

static const char config_text[] = "# a file\npool: 64MiB\nssd-path: /tmp/x\n"
                                  "ssd_cap: 1 GB\npersist: through\nlog-level: warn\n";

static enum outcome try_settings(uint64_t nth, char *why, size_t why_bytes)
{
    static struct fb_server_settings settings;
    char path[TEST_SERVER_PATH_BYTES + 32], config[TEST_SERVER_PATH_BYTES + 64];
    snprintf(path, sizeof(path), "%s/config.yaml", directory);
    snprintf(config, sizeof(config), "--config=%s", path);
    char program[] = "forebayd", flag[] = "--sessions=7";
    char *argv[] = {program, config, flag, NULL};
    char environment_text[] = "FOREBAY_DRAIN_MS=100";
    char *environment[] = {environment_text, NULL};
    FILE *file = fopen(path, "w");
    FB_ASSERT(file != NULL && fputs(config_text, file) >= 0 && fclose(file) == 0);
    hooks_arm(nth);
    int result = fb_server_options_read(&settings, 3, argv, environment, why, why_bytes);
    bool reached = hooks_disarm() >= nth;
    if (!reached)
        return UNTOUCHED;
    if (result != 0)
        return why[0] != '\0' ? REFUSED : SILENT;
    return settings.node.pool_bytes == FB_MIB(64) && settings.node.sessions_max == 7 ? SERVED
                                                                                     : USELESS;
}

/* ---- a node ---- */

struct running {
    struct fb_node *node;
    pthread_t thread;
    enum fb_node_failure failure;
    char why[FB_NODE_WHY_BYTES];
    atomic_bool is_ready, is_over;
    char socket_path[TEST_SERVER_PATH_BYTES + 16];
};

static void on_ready(void *context)
{
    struct running *running = context;
    atomic_store(&running->is_ready, true);
}

static void *run(void *context)
{
    struct running *running = context;
    running->failure = fb_node_run(running->node, running->why, sizeof(running->why));
    atomic_store(&running->is_over, true);
    return NULL;
}

static void no_log(void *context, enum fb_logger_level level, const char *text, size_t bytes)
{
    (void)context;
    (void)level;
    (void)text;
    (void)bytes;
}

static struct fb_node_config config_of(struct running *running, const char *io)
{
    memset(running, 0, sizeof(*running));
    snprintf(running->socket_path, sizeof(running->socket_path), "%s/s", directory);
    return (struct fb_node_config){
        .socket_path = running->socket_path,
        .listen = "127.0.0.1:0",
        .admin = "127.0.0.1:0",
        .pool_bytes = POOL_BYTES,
        .index_entries = 4096,
        .ssd_path = io != NULL ? directory : NULL,
        .ssd_cap_bytes = io != NULL ? SSD_BYTES : 0,
        .io = io,
        .drain_ms = 2000,
        .sessions_max = 4,
        .log_level = FB_LOGGER_ERROR,
        .log_sink = no_log,
        .ready = on_ready,
        .ready_context = running,
    };
}

/* Puts a value and gets it back. */
static bool serves(const char *socket_path, char *why, size_t why_bytes)
{
    char address[TEST_SERVER_PATH_BYTES + 32];
    snprintf(address, sizeof(address), "unix:%s", socket_path);
    struct fb_client_options options;
    fb_client_options_init(&options);
    options.address = address;
    options.ns.model = "sweep";
    struct fb_client *client;
    if (fb_client_open(&options, &client, why, why_bytes) != 0)
        return false;
    static char value[70000], back[sizeof(value)];
    memset(value, 'v', sizeof(value));
    uint64_t bytes = 0;
    int put = fb_put(client, "key", 3, value, sizeof(value), FB_UPSERT, 5000);
    int get = fb_get(client, "key", 3, back, sizeof(back), &bytes, 5000);
    fb_client_close(client);
    snprintf(why, why_bytes, "put %s, get %s", fb_result_name(put), fb_result_name(get));
    return put == FB_OK && get == FB_OK && bytes == sizeof(value) &&
           memcmp(value, back, sizeof(value)) == 0;
}

/* A made node runs, until it is ready or has ended. False if it could not run. */
static bool run_to_ready(struct running *running)
{
    if (pthread_create(&running->thread, NULL, run, running) != 0)
        return false;
    for (unsigned ms = 0; ms < READY_MAX_MS && !atomic_load(&running->is_ready); ms++) {
        if (atomic_load(&running->is_over))
            break;
        test_sleep_ms(1);
    }
    return true;
}

static enum outcome try_node(const char *io, uint64_t nth, char *why, size_t why_bytes)
{
    static struct running running;
    struct fb_node_config config = config_of(&running, io);
    FB_ASSERT(fb_node_config_check(&config, why, why_bytes) == FB_NODE_OK);
    hooks_arm(nth);
    enum fb_node_failure failure = fb_node_make(&config, &running.node, why, why_bytes);
    bool is_made = failure == FB_NODE_OK;
    bool is_run = is_made && run_to_ready(&running);
    bool reached = hooks_disarm() >= nth;
    if (!is_made)
        return why[0] != '\0' ? REFUSED : SILENT;
    if (!is_run) { /* it was this test's own thread that failed */
        fb_node_free(running.node);
        return reached ? REFUSED : UNTOUCHED;
    }
    bool is_ready = atomic_load(&running.is_ready);
    bool is_well = is_ready && serves(running.socket_path, why, why_bytes);
    fb_node_stop(running.node);
    pthread_join(running.thread, NULL);
    fb_node_free(running.node);
    if (!is_ready) {
        snprintf(why, why_bytes, "%.500s", running.why);
        return why[0] != '\0' ? REFUSED : SILENT;
    }
    if (!is_well)
        return USELESS;
    return reached ? SERVED : UNTOUCHED;
}

static enum outcome try_node_dram(uint64_t nth, char *why, size_t why_bytes)
{
    return try_node(NULL, nth, why, why_bytes);
}

static enum outcome try_node_posix(uint64_t nth, char *why, size_t why_bytes)
{
    return try_node("posix", nth, why, why_bytes);
}

static enum outcome try_node_uring(uint64_t nth, char *why, size_t why_bytes)
{
    return try_node("uring", nth, why, why_bytes);
}

static enum outcome try_node_auto(uint64_t nth, char *why, size_t why_bytes)
{
    return try_node("auto", nth, why, why_bytes);
}

/* ---- a client ---- */

/* Results that a call may have when memory is short. */
static bool is_told(int result)
{
    return result == FB_OK || result == FB_NO_MEMORY || result == FB_CONNECTION ||
           result == FB_EXISTS || result == FB_MISS || result == FB_UNSUPPORTED;
}

static enum outcome use_client(struct fb_client *client, char *why, size_t why_bytes)
{
    static char value[70000];
    struct fb_buf buf = {value, sizeof(value)};
    struct fb_put_item items[3] = {{.key = "a", .key_bytes = 1, .bufs = &buf, .buf_count = 1},
                                   {.key = "b", .key_bytes = 1, .bufs = &buf, .buf_count = 1},
                                   {.key = "a", .key_bytes = 1, .bufs = &buf, .buf_count = 1}};
    int put = fb_put_batch(client, items, 3, 5000);
    uint64_t bytes;
    int get = fb_get(client, "a", 1, value, sizeof(value), &bytes, 5000);
    int exists = fb_exists(client, "a", 1, 5000);
    snprintf(why, why_bytes, "put %s, get %s, exists %s", fb_result_name(put), fb_result_name(get),
             fb_result_name(exists));
    return is_told(put) && is_told(get) && is_told(exists) ? SERVED : USELESS;
}

static enum outcome try_client(enum fb_shm_use shm, uint64_t nth, char *why, size_t why_bytes)
{
    /* The node is of a process of its own: nothing of it fails. */
    static struct running running;
    int ready[2], over[2];
    FB_ASSERT(pipe(ready) == 0 && pipe(over) == 0);
    pid_t pid = fork();
    FB_ASSERT(pid >= 0);
    if (pid == 0) {
        struct fb_node_config config = config_of(&running, NULL);
        char byte = 0;
        FB_ASSERT(fb_node_config_check(&config, why, why_bytes) == FB_NODE_OK);
        FB_ASSERT(fb_node_make(&config, &running.node, why, why_bytes) == FB_NODE_OK);
        FB_ASSERT(run_to_ready(&running) && atomic_load(&running.is_ready));
        FB_ASSERT(write(ready[1], "r", 1) == 1);
        close(over[1]);
        ssize_t n = read(over[0], &byte, 1); /* until the other end closes */
        (void)n;
        _exit(0);
    }
    char byte = 0;
    close(ready[1]);
    close(over[0]);
    FB_ASSERT(read(ready[0], &byte, 1) == 1);
    close(ready[0]);
    char address[TEST_SERVER_PATH_BYTES + 32];
    snprintf(address, sizeof(address), "unix:%s/s", directory);
    struct fb_client_options options;
    fb_client_options_init(&options);
    options.address = address;
    options.ns.model = "sweep";
    options.use_shm = shm;
    struct fb_client *client = NULL;
    hooks_arm_thread(nth);
    int result = fb_client_open(&options, &client, why, why_bytes);
    enum outcome outcome = result == 0      ? use_client(client, why, why_bytes)
                           : why[0] != '\0' ? REFUSED
                                            : SILENT;
    bool reached = hooks_disarm() >= nth;
    /* The same handle, now that nothing fails. */
    uint64_t bytes = 0;
    static char back[70000];
    if (outcome == SERVED && (fb_put(client, "c", 1, "value", 5, FB_UPSERT, 5000) != FB_OK ||
                              fb_get(client, "c", 1, back, sizeof(back), &bytes, 5000) != FB_OK ||
                              bytes != 5 || memcmp(back, "value", 5) != 0))
        outcome = USELESS;
    fb_client_close(client);
    close(over[1]);
    int status;
    waitpid(pid, &status, 0);
    return outcome == SERVED && !reached ? UNTOUCHED : outcome;
}

static enum outcome try_client_shm(uint64_t nth, char *why, size_t why_bytes)
{
    return try_client(FB_SHM_AUTO, nth, why, why_bytes);
}

static enum outcome try_client_stream(uint64_t nth, char *why, size_t why_bytes)
{
    return try_client(FB_SHM_OFF, nth, why, why_bytes);
}

/* ---- tries ---- */

struct start {
    const char *name;
    enum outcome (*try_it)(uint64_t nth, char *why, size_t why_bytes);
};

static const struct start starts[] = {
    {"settings", try_settings},
    {"node, memory alone", try_node_dram},
    {"node, posix", try_node_posix},
    {"node, uring", try_node_uring},
    {"node, auto", try_node_auto},
    {"client, shared memory", try_client_shm},
    {"client, stream", try_client_stream},
};

static const char *outcome_text(int outcome)
{
    switch (outcome) {
    case SILENT:
        return "refused without a word";
    case USELESS:
        return "went on and does not serve";
    case LEAKED:
        return "memory is left";
    case LEFT_OPEN:
        return "descriptors or threads are left";
    default:
        return "the process ended";
    }
}

/* In the child: one try, and what is left of it. */
static void try_and_exit(const struct start *start, uint64_t nth, bool verbose)
{
    char why[FB_NODE_WHY_BYTES] = "";
    char path[TEST_SERVER_PATH_BYTES + 16];
    snprintf(path, sizeof(path), "%s/forebay.ssd", directory);
    unlink(path); /* each try begins with nothing */
    unsigned fds = count_fds(), threads = count_threads();
    alarm(TRY_MAX_S);
    enum outcome outcome = start->try_it(nth, why, sizeof(why));
    bool is_bad = outcome == SILENT || outcome == USELESS;
    if (verbose || is_bad)
        printf("sweep: %s, call %llu (%s): %s%s\n", start->name, (unsigned long long)nth,
               hooks_failed(),
               is_bad               ? ""
               : outcome == REFUSED ? "refused: "
                                    : "went on: ",
               why);
    fflush(stdout);
    if (!is_as_before(fds, threads))
        outcome = LEFT_OPEN;
    if (LEAKS())
        outcome = LEAKED;
    _exit((int)outcome);
}

/* One try in a process of its own; its exit code, or -1 if a signal ended it. */
static int try_once(const struct start *start, uint64_t nth, bool verbose)
{
    fflush(stdout);
    pid_t pid = fork();
    FB_ASSERT(pid >= 0);
    if (pid == 0)
        try_and_exit(start, nth, verbose);
    int status;
    FB_ASSERT(waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static unsigned sweep_start(const struct start *start, unsigned every, bool verbose, uint64_t *runs,
                            uint64_t *failed)
{
    unsigned wrong = 0;
    uint64_t refused = 0, served = 0, nth = 1;
    for (;; nth += every) {
        int outcome = try_once(start, nth, verbose);
        if (outcome == UNTOUCHED || nth > TRIES_MAX)
            break;
        ++*runs;
        refused += outcome == REFUSED;
        served += outcome == SERVED;
        if (outcome == REFUSED || outcome == SERVED)
            continue;
        wrong++;
        printf("sweep: %s, call %llu: %s (%d)\n", start->name, (unsigned long long)nth,
               outcome_text(outcome), outcome);
    }
    *failed += refused;
    printf("sweep: %-22s %4llu calls: %llu refused with a word, %llu went on, %u wrong\n",
           start->name, (unsigned long long)nth - 1, (unsigned long long)refused,
           (unsigned long long)served, wrong);
    fflush(stdout);
    return wrong;
}

unsigned sweep_memory(unsigned every, bool verbose, uint64_t *runs, uint64_t *failed)
{
    unsigned wrong = 0;
    hooks_start();
    signal(SIGPIPE, SIG_IGN);
    FB_ASSERT(test_directory_make("sweep", directory, sizeof(directory)) == 0);
    for (size_t i = 0; i < sizeof(starts) / sizeof(starts[0]); i++)
        wrong += sweep_start(&starts[i], every, verbose, runs, failed);
    test_directory_remove(directory);
    return wrong;
}
