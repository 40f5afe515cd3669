/* A real forebayd as a child of a test: start, stop, kill, metrics. See server.h. */
#include "test/lib/server.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <netinet/in.h>

#include "base/assert.h"

#define READY_MS_DEFAULT 20000
#define ARGUMENTS_MAX    48
#define METRICS_BYTES    (256 * 1024)

uint64_t test_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void test_sleep_ms(unsigned ms)
{
    struct timespec left = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        continue;
}

/* ---- arguments ---- */

struct arguments {
    char *list[ARGUMENTS_MAX + 1];
    int count;
};

static void add(struct arguments *args, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void add(struct arguments *args, const char *format, ...)
{
    FB_ASSERT(args->count < ARGUMENTS_MAX);
    va_list list;
    va_start(list, format);
    int n = vasprintf(&args->list[args->count], format, list);
    va_end(list);
    FB_ASSERT(n >= 0);
    args->list[++args->count] = NULL;
}

static void arguments_free(struct arguments *args)
{
    for (int i = 0; i < args->count; i++)
        free(args->list[i]);
    args->count = 0;
}

/* A TCP port of the loopback that is free now. Another process may take it first; then the server
 * says so and the test starts it again. */
static uint16_t free_port(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(any);
    uint16_t port = 0;
    if (fd >= 0 && bind(fd, (struct sockaddr *)&any, sizeof(any)) == 0 &&
        getsockname(fd, (struct sockaddr *)&any, &bytes) == 0)
        port = ntohs(any.sin_port);
    if (fd >= 0)
        close(fd);
    return port;
}

/* The program `name` in the folder of the running one. */
static void beside(const char *name, char *out, size_t out_bytes)
{
    char self[TEST_SERVER_PATH_BYTES];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    self[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(self, '/');
    if (slash != NULL)
        *slash = '\0';
    snprintf(out, out_bytes, "%.400s/%.100s", slash != NULL ? self : ".", name);
}

static void compose(struct test_server *server, const struct test_server_options *options,
                    int ready_fd, struct arguments *args)
{
    char program[TEST_SERVER_PATH_BYTES];
    beside("forebayd", program, sizeof(program));
    add(args, "%s", options->program != NULL ? options->program : program);
    add(args, "--socket=%s", server->address + strlen("unix:"));
    add(args, "--listen=none");
    if (options->admin)
        add(args, "--admin=127.0.0.1:%u", server->admin_port);
    else
        add(args, "--admin=none");
    add(args, "--pool=%" PRIu64, options->pool_bytes);
    if (options->ssd_cap_bytes > 0) {
        add(args, "--ssd-path=%s", server->ssd_path);
        add(args, "--ssd-cap=%" PRIu64, options->ssd_cap_bytes);
    }
    if (options->index_entries > 0)
        add(args, "--index-entries=%u", options->index_entries);
    if (options->persist != NULL)
        add(args, "--persist=%s", options->persist);
    if (options->io != NULL)
        add(args, "--io=%s", options->io);
    if (options->bugs != NULL)
        add(args, "--bug=%s", options->bugs);
    for (int i = 0; i < TEST_SERVER_EXTRA_MAX && options->extra[i] != NULL; i++)
        add(args, "%s", options->extra[i]);
    add(args, "--ready-fd=%d", ready_fd);
}

/* ---- start ---- */

/* In the child: descriptors in order, signals as new, then the server. Only calls that are safe
 * after a fork from a process with threads. */
static void become_server(struct arguments *args, pid_t parent, int log_fd)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    int nothing = open("/dev/null", O_RDONLY);
    if (getppid() != parent || nothing < 0 || dup2(nothing, 0) < 0 || dup2(log_fd, 1) < 0 ||
        dup2(log_fd, 2) < 0)
        _exit(127);
    execv(args->list[0], args->list);
    static const char text[] = "test: the server's program cannot be run\n";
    ssize_t n = write(2, text, sizeof(text) - 1);
    _exit(n > 0 ? 127 : 126);
}

static bool reap(struct test_server *server, int flags)
{
    pid_t pid = waitpid(server->pid, &server->exit_status, flags);
    if (pid != server->pid)
        return false;
    server->pid = 0;
    return true;
}

/* Waits for a word on the ready descriptor. 0, or -1 with the error set and the server gone. */
static int await_ready(struct test_server *server, int fd, unsigned timeout_ms)
{
    char word[64];
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    int n;
    do
        n = poll(&wait, 1, (int)timeout_ms);
    while (n < 0 && errno == EINTR);
    if (n == 1 && read(fd, word, sizeof(word)) > 0)
        return 0;
    char line[400];
    if (n == 0)
        test_server_kill(server);
    else
        reap(server, 0);
    test_server_last_line(server, line, sizeof(line));
    if (n == 0)
        snprintf(server->error, sizeof(server->error), "not ready after %u ms; last line: %s",
                 timeout_ms, line);
    else
        snprintf(server->error, sizeof(server->error), "ended at start (status %#x): %s",
                 (unsigned)server->exit_status, line);
    return -1;
}

/* Finds the memfds of the server, so that a look need not search them. */
static void find_memory(struct test_server *server)
{
    size_t found = 0, room = sizeof(server->memory_fds) / sizeof(server->memory_fds[0]);
    for (size_t i = 0; i < room; i++)
        server->memory_fds[i] = -1;
    for (int fd = 3; fd < 128 && found < room; fd++) {
        char path[64], target[128];
        snprintf(path, sizeof(path), "/proc/%d/fd/%d", server->pid, fd);
        ssize_t n = readlink(path, target, sizeof(target) - 1);
        if (n <= 0)
            continue;
        target[n] = '\0';
        if (strncmp(target, "/memfd:", 7) == 0)
            server->memory_fds[found++] = fd;
    }
}

static int prepare(struct test_server *server, const struct test_server_options *options)
{
    FB_ASSERT(options->directory != NULL && server->pid == 0);
    const char *d = options->directory;
    snprintf(server->directory, sizeof(server->directory), "%s", d);
    snprintf(server->ssd_path, sizeof(server->ssd_path), "%.400s/ssd", d);
    snprintf(server->log_path, sizeof(server->log_path), "%.400s/log", d);
    int n = snprintf(server->address, sizeof(server->address), "unix:%s/sock", d);
    server->error[0] = '\0';
    server->admin_port = options->admin ? free_port() : 0;
    if (n < 0 || (size_t)n >= 108 + strlen("unix:")) {
        snprintf(server->error, sizeof(server->error),
                 "%.300s/sock is too long for a socket (107 bytes); set TEST_DIR to a shorter path",
                 d);
        return -1;
    }
    return 0;
}

int test_server_start(struct test_server *server, const struct test_server_options *options)
{
    if (prepare(server, options) != 0)
        return -1;
    int ready[2];
    int log_fd = open(server->log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (log_fd < 0 || pipe2(ready, O_CLOEXEC) != 0) {
        snprintf(server->error, sizeof(server->error), "%.400s: %s", server->log_path,
                 strerror(errno));
        if (log_fd >= 0)
            close(log_fd);
        return -1;
    }
    uint64_t begun = test_now_ns();
    struct arguments args = {.count = 0};
    compose(server, options, ready[1], &args);
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid == 0) {
        fcntl(ready[1], F_SETFD, 0);
        become_server(&args, parent, log_fd);
    }
    arguments_free(&args);
    close(ready[1]);
    close(log_fd);
    int result = -1;
    if (pid > 0) {
        server->pid = pid;
        result =
            await_ready(server, ready[0], options->ready_ms ? options->ready_ms : READY_MS_DEFAULT);
    } else {
        snprintf(server->error, sizeof(server->error), "fork: %s", strerror(errno));
    }
    close(ready[0]);
    server->start_ms = (unsigned)((test_now_ns() - begun) / 1000000);
    if (result == 0)
        find_memory(server);
    return result;
}

/* ---- end ---- */

void test_server_kill(struct test_server *server)
{
    if (server->pid <= 0)
        return;
    kill(server->pid, SIGKILL);
    reap(server, 0);
}

int test_server_stop(struct test_server *server, unsigned timeout_ms)
{
    if (server->pid <= 0)
        return -1;
    kill(server->pid, SIGTERM);
    uint64_t until = test_now_ns() + (uint64_t)timeout_ms * 1000000;
    while (!reap(server, WNOHANG)) {
        if (test_now_ns() >= until) {
            snprintf(server->error, sizeof(server->error), "did not end %u ms after SIGTERM",
                     timeout_ms);
            test_server_kill(server);
            return -1;
        }
        test_sleep_ms(2);
    }
    if (WIFEXITED(server->exit_status) && WEXITSTATUS(server->exit_status) == 0)
        return 0;
    char line[400];
    test_server_last_line(server, line, sizeof(line));
    snprintf(server->error, sizeof(server->error), "ended with status %#x: %s",
             (unsigned)server->exit_status, line);
    return -1;
}

bool test_server_alive(struct test_server *server)
{
    if (server->pid <= 0)
        return false;
    if (!reap(server, WNOHANG))
        return true;
    char line[400];
    test_server_last_line(server, line, sizeof(line));
    snprintf(server->error, sizeof(server->error), "ended by itself (status %#x): %s",
             (unsigned)server->exit_status, line);
    return false;
}

void test_server_line(const struct test_server *server, const char *word, char *out,
                      size_t out_bytes)
{
    FB_ASSERT(out_bytes > 0);
    out[0] = '\0';
    char tail[2048];
    int fd = open(server->log_path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    off_t end = lseek(fd, 0, SEEK_END);
    off_t from = end > (off_t)sizeof(tail) - 1 ? end - ((off_t)sizeof(tail) - 1) : 0;
    ssize_t n = pread(fd, tail, sizeof(tail) - 1, from);
    close(fd);
    tail[n > 0 ? n : 0] = '\0';
    char *at = NULL;
    for (char *line = strtok_r(tail, "\n", &at); line != NULL; line = strtok_r(NULL, "\n", &at)) {
        if (strstr(line, word) != NULL)
            snprintf(out, out_bytes, "%s", line);
    }
}

void test_server_last_line(const struct test_server *server, char *out, size_t out_bytes)
{
    test_server_line(server, "", out, out_bytes);
}

/* ---- metrics ---- */

static int connect_admin(const struct test_server *server, unsigned timeout_ms)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    struct timeval limit = {.tv_sec = timeout_ms / 1000, .tv_usec = (timeout_ms % 1000) * 1000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons(server->admin_port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0)
        return fd;
    close(fd);
    return -1;
}

int test_server_fetch(const struct test_server *server, const char *page, char *out,
                      size_t out_bytes, unsigned timeout_ms)
{
    FB_ASSERT(out_bytes > 0);
    out[0] = '\0';
    int fd = connect_admin(server, timeout_ms);
    if (fd < 0)
        return -1;
    char ask[256];
    int n = snprintf(ask, sizeof(ask), "GET %s HTTP/1.0\r\nHost: localhost\r\n\r\n", page);
    size_t have = 0;
    if (send(fd, ask, (size_t)n, MSG_NOSIGNAL) == n) {
        ssize_t got;
        while (have + 1 < out_bytes && (got = recv(fd, out + have, out_bytes - 1 - have, 0)) > 0)
            have += (size_t)got;
    }
    close(fd);
    out[have] = '\0';
    int status = -1;
    if (sscanf(out, "HTTP/%*s %d", &status) != 1)
        return -1;
    const char *body = strstr(out, "\r\n\r\n");
    if (body != NULL)
        memmove(out, body + 4, strlen(body + 4) + 1);
    return status;
}

/* Goes through the lines of /metrics that begin with `name`; adds up those that match. */
static bool metric(const struct test_server *server, const char *name, bool any_label,
                   uint64_t *value)
{
    char *text = malloc(METRICS_BYTES);
    bool found = false;
    *value = 0;
    if (text != NULL && test_server_fetch(server, "/metrics", text, METRICS_BYTES, 5000) == 200) {
        char *rest = NULL;
        for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
            size_t n = strlen(name);
            if (strncmp(line, name, n) != 0)
                continue;
            if (line[n] == '{' && any_label)
                n = (size_t)(strrchr(line, '}') != NULL ? strrchr(line, '}') + 1 - line : 0);
            if (n == 0 || line[n] != ' ')
                continue;
            *value += (uint64_t)strtod(line + n, NULL);
            found = true;
        }
    }
    free(text);
    return found;
}

bool test_server_metric(const struct test_server *server, const char *series, uint64_t *value)
{
    return metric(server, series, false, value);
}

bool test_server_metric_sum(const struct test_server *server, const char *name, uint64_t *value)
{
    return metric(server, name, true, value);
}
