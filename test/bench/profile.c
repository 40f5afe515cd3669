/*
 * profile.c - what limits a row, from what is seen while one more repetition of it runs, which is
 * not counted: how much of the time each process ran or was ready and had no core (/proc), how
 * much of it the device had work and how deep its queue was (/sys), and where the running time
 * went (perf, by the clock: no counters of the processor are needed).
 *
 * Nothing is concluded beyond these figures. The device's figures are of the whole device, so
 * other users of it show in them.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/bench/bench.h"

#define ATTACH_STEP_MS  30
#define ATTACH_STEPS    100
#define PERF_HZ         "2999"
#define BUSY            0.85 /* of a core, or of the time: what is called busy */
#define TAKES_PART      0.10
#define SYMBOLS_SHOWN   3
#define PROC_TEXT_MAX   256
#define REPORT_LINE_MAX 256

/* ---- shares of processes ---- */

static unsigned long long tick_ns(void)
{
    return 1000000000ull / (unsigned long long)sysconf(_SC_CLK_TCK);
}

static size_t slurp(const char *path, char *out, size_t bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, out, bytes - 1) : -1;
    if (fd >= 0)
        close(fd);
    out[n > 0 ? n : 0] = '\0';
    return n > 0 ? (size_t)n : 0;
}

/* Time in which a process ran, its ended threads counted, in steps of a tick. */
static uint64_t process_ns(pid_t pid)
{
    char path[PROC_TEXT_MAX], text[4 * PROC_TEXT_MAX];
    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    unsigned long long user = 0, kernel = 0;
    slurp(path, text, sizeof(text));
    const char *at = strrchr(text, ')');
    if (at == NULL || sscanf(at + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu",
                             &user, &kernel) != 2)
        return 0;
    return (user + kernel) * tick_ns();
}

double bench_process_s(pid_t pid)
{
    return (double)process_ns(pid) / 1e9;
}

static void look_at_threads(struct bench_use *use, pid_t pid)
{
    char path[PROC_TEXT_MAX], text[PROC_TEXT_MAX];
    *use = (struct bench_use){.process_ns = process_ns(pid)};
    snprintf(path, sizeof(path), "/proc/%d/task", pid);
    DIR *dir = opendir(path);
    if (dir == NULL)
        return;
    const struct dirent *entry;
    while ((entry = readdir(dir)) != NULL && use->threads < BENCH_THREADS_MAX) {
        if (entry->d_name[0] == '.')
            continue;
        struct bench_thread *thread = &use->thread[use->threads];
        unsigned long long ran = 0, ready = 0;
        snprintf(path, sizeof(path), "/proc/%d/task/%.32s/schedstat", pid, entry->d_name);
        if (slurp(path, text, sizeof(text)) == 0 || sscanf(text, "%llu %llu", &ran, &ready) != 2)
            continue;
        *thread = (struct bench_thread){(int)strtol(entry->d_name, NULL, 10), ran, ready};
        use->threads++;
    }
    closedir(dir);
}

/* Of the time between two looks, as parts of it: may be above 1 where several threads ran. */
struct share {
    double ran, ready, busiest; /* busiest: the thread that ran most */
};

static struct share share_of(const struct bench_use *before, const struct bench_use *after,
                             double ns)
{
    struct share share = {0, 0, 0};
    for (unsigned i = 0; i < after->threads; i++) {
        struct bench_thread then = {0, 0, 0};
        for (unsigned j = 0; j < before->threads; j++)
            if (before->thread[j].tid == after->thread[i].tid)
                then = before->thread[j];
        double ran = (double)(after->thread[i].ran_ns - then.ran_ns) / ns;
        share.ran += ran;
        share.ready += (double)(after->thread[i].ready_ns - then.ready_ns) / ns;
        share.busiest = ran > share.busiest ? ran : share.busiest;
    }
    /* Threads that have ended are in the process's ticks alone. */
    double all = (double)(after->process_ns - before->process_ns) / ns;
    if (after->threads == 0 || all > share.ran + 2.0 * (double)tick_ns() / ns)
        share.ran = all;
    return share;
}

double bench_node_share(pid_t pid, unsigned ms)
{
    struct bench_use before, after;
    uint64_t begin = test_now_ns();
    look_at_threads(&before, pid);
    test_sleep_ms(ms);
    look_at_threads(&after, pid);
    return share_of(&before, &after, (double)(test_now_ns() - begin)).ran;
}

/* ---- the device ---- */

static bool look_at_device(struct bench_device *device, const char *directory)
{
    struct stat info;
    char path[PROC_TEXT_MAX], text[2 * PROC_TEXT_MAX];
    memset(device, 0, sizeof(*device));
    if (stat(directory, &info) != 0)
        return false;
    snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/stat", major(info.st_dev),
             minor(info.st_dev));
    unsigned long long read, written, busy, queued;
    if (slurp(path, text, sizeof(text)) == 0 ||
        sscanf(text, "%*u %*u %llu %*u %*u %*u %llu %*u %*u %llu %llu", &read, &written, &busy,
               &queued) != 4)
        return false;
    *device = (struct bench_device){true, read, written, busy, queued};
    return true;
}

/* ---- perf ---- */

static void perf_exec(const struct bench_profile *profile)
{
    char pids[64];
    int out = open(profile->errors, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (out < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0)
        _exit(126);
    snprintf(pids, sizeof(pids), "%d,%d", profile->caller, profile->node);
    /* What starts later is seen by watching everything. */
    if (profile->node > 0)
        execlp("perf", "perf", "record", "-q", "-e", "cpu-clock", "-F", PERF_HZ, "-o",
               profile->data, "-p", pids, (char *)NULL);
    else
        execlp("perf", "perf", "record", "-q", "-a", "-e", "cpu-clock", "-F", PERF_HZ, "-o",
               profile->data, (char *)NULL);
    dprintf(2, "perf: %s\n", strerror(errno));
    _exit(127);
}

/* Keeps the beginning of what perf wrote, as the reason why there is no profile. */
static void perf_reason(struct bench_profile *profile, const char *otherwise)
{
    char text[BENCH_TEXT_MAX];
    size_t n = slurp(profile->errors, text, sizeof(text));
    for (char *at = text; *at != '\0'; at++)
        *at = (char)(*at == '\n' || *at == '|' ? ' ' : *at);
    snprintf(profile->why_not, sizeof(profile->why_not), "%.100s",
             n > 0 && text[0] != '\0' ? text : otherwise);
}

static void perf_end(struct bench_profile *profile)
{
    if (profile->perf <= 0)
        return;
    kill(profile->perf, SIGINT);
    waitpid(profile->perf, NULL, 0);
    profile->perf = 0;
}

/* Starts perf and waits until it counts: it writes whom it watches into its file before. */
static void perf_begin(struct bench_profile *profile)
{
    profile->perf = fork();
    if (profile->perf == 0)
        perf_exec(profile);
    for (unsigned i = 0; i < ATTACH_STEPS; i++) {
        struct stat info;
        test_sleep_ms(ATTACH_STEP_MS);
        if (stat(profile->data, &info) == 0 && info.st_size > 0) {
            test_sleep_ms(ATTACH_STEP_MS);
            return;
        }
        if (waitpid(profile->perf, NULL, WNOHANG) == profile->perf) {
            profile->perf = 0;
            break;
        }
    }
    perf_end(profile);
    perf_reason(profile, "perf did not begin");
}

/* One line of the report: share, name of the thread, library or program, [k] or [.], symbol. What
 * has no symbol is named by its library. */
static bool symbol(const struct bench_profile *profile, char *line, char *out, size_t bytes)
{
    char *rest = NULL;
    const char *share = strtok_r(line, ";", &rest), *who = strtok_r(NULL, ";", &rest);
    char *object = strtok_r(NULL, ";", &rest);
    const char *name = strtok_r(NULL, ";\n", &rest);
    if (name == NULL || strlen(name) < 5 || strtod(share, NULL) <= 0)
        return false;
    who += strspn(who, " ");
    object += strspn(object, " ");
    object[strcspn(object, " ")] = '\0';
    const char *text = strncmp(name + 4, "0x", 2) == 0 ? object : name + 4;
    const char *side = strncmp(who, profile->comm, strlen(profile->comm)) == 0 ? "caller" : "node";
    snprintf(out, bytes, "%s %s%.48s %.0f %%", side, name[1] == 'k' ? "kernel:" : "", text,
             strtod(share, NULL));
    out[strcspn(out, "\n")] = '\0';
    return true;
}

static void perf_symbols(struct bench_profile *profile, char *out, size_t bytes)
{
    char command[2 * BENCH_TEXT_MAX], line[REPORT_LINE_MAX];
    snprintf(command, sizeof(command),
             "perf report -q -i %s --no-children --stdio --pid=%d,%d --percentage relative "
             "-F overhead,comm,dso,sym -t ';' 2>%s",
             profile->data, profile->caller, profile->node, profile->errors);
    FILE *pipe = popen(command, "r");
    unsigned shown = 0;
    size_t at = 0;
    while (pipe != NULL && fgets(line, sizeof(line), pipe) != NULL) {
        char one[REPORT_LINE_MAX];
        if (shown == SYMBOLS_SHOWN || !symbol(profile, line, one, sizeof(one)))
            continue;
        int n = snprintf(out + at, bytes - at, "%s%s", shown > 0 ? ", " : "", one);
        at += n > 0 && (size_t)n < bytes - at ? (size_t)n : 0;
        shown++;
    }
    if (pipe != NULL)
        pclose(pipe);
    if (shown == 0)
        snprintf(profile->why_not, sizeof(profile->why_not), "perf saw none of them run");
}

/* ---- what is said ---- */

void bench_profile_begin(struct bench_profile *profile, const struct bench *bench, pid_t node)
{
    memset(profile, 0, sizeof(*profile));
    profile->caller = getpid();
    profile->node = node;
    snprintf(profile->directory, sizeof(profile->directory), "%s", bench->directory);
    snprintf(profile->data, sizeof(profile->data), "%.400s/perf.data", bench->directory);
    snprintf(profile->errors, sizeof(profile->errors), "%.400s/perf.log", bench->directory);
    if (slurp("/proc/self/comm", profile->comm, sizeof(profile->comm)) > 0)
        profile->comm[strcspn(profile->comm, "\n")] = '\0';
    perf_begin(profile);
    look_at_threads(&profile->caller_use, profile->caller);
    if (node > 0)
        look_at_threads(&profile->node_use, node);
    look_at_device(&profile->device, profile->directory);
    profile->begun_ns = test_now_ns();
}

/* Who was at work, in words: the first that was busy nearly all the time, or all that took part. */
static void conclude(const struct share *caller, const struct share *node, double device, char *out,
                     size_t bytes)
{
    if (device >= BUSY) {
        snprintf(out, bytes, "the device is busy");
    } else if (node->busiest >= BUSY || caller->busiest >= BUSY) {
        snprintf(out, bytes, "the %s's thread is busy", node->busiest >= BUSY ? "node" : "caller");
    } else {
        bool parts[] = {caller->ran >= TAKES_PART, node->ran >= TAKES_PART, device >= TAKES_PART};
        static const char *const names[] = {"caller", "node", "device"};
        size_t n = (size_t)snprintf(out, bytes, "none is busy all the time");
        unsigned said = 0;
        for (unsigned i = 0; i < 3; i++)
            if (parts[i] && n < bytes)
                n += (size_t)snprintf(out + n, bytes - n, "%s%s", said++ > 0 ? ", " : ": ",
                                      names[i]);
        if (said > 1 && n < bytes)
            snprintf(out + n, bytes - n, " wait for each other");
    }
}

void bench_profile_end(struct bench_profile *profile, pid_t node, char *out, size_t bytes)
{
    double ns = (double)(test_now_ns() - profile->begun_ns);
    struct bench_use use;
    struct bench_device device;
    look_at_threads(&use, profile->caller);
    struct share caller = share_of(&profile->caller_use, &use, ns);
    look_at_threads(&use, node);
    struct share server = share_of(&profile->node_use, &use, ns);
    look_at_device(&device, profile->directory);
    perf_end(profile);
    char symbols[BENCH_TEXT_MAX] = "";
    profile->node = node;
    if (profile->why_not[0] == '\0')
        perf_symbols(profile, symbols, sizeof(symbols));
    double ms = ns / 1e6;
    double busy = (double)(device.busy_ms - profile->device.busy_ms) / ms;
    double depth = (double)(device.queued_ms - profile->device.queued_ms) / ms;
    double moved = (double)(device.read_sectors - profile->device.read_sectors +
                            device.written_sectors - profile->device.written_sectors) *
                   512 / ns;
    bool disk = device.known && profile->on_device;
    char who[BENCH_KEY_MAX * 2];
    conclude(&caller, &server, disk ? busy : 0, who, sizeof(who));
    int n = snprintf(out, bytes, "%s; ran: node %.0f %% of a core, caller %.0f %%", who,
                     100 * server.ran, 100 * caller.ran);
    if (caller.ready + server.ready >= 0.05)
        n += snprintf(out + n, bytes - (size_t)n, "; had to wait for a core: %.0f %%, %.0f %%",
                      100 * server.ready, 100 * caller.ready);
    if (disk)
        n += snprintf(out + n, bytes - (size_t)n, "; device busy %.0f %% at depth %.1f, %.2f GB/s",
                      100 * busy, depth, moved);
    if (profile->why_not[0] != '\0')
        snprintf(out + n, bytes - (size_t)n, "; no profile: %s", profile->why_not);
    else
        snprintf(out + n, bytes - (size_t)n, "; top: %s", symbols);
    unlink(profile->data);
    unlink(profile->errors);
}
