/*
 * forebayd: reads its settings, makes a node, serves until a signal, and ends with a code that says
 * how.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/bug.h"
#include "server/daemon.h"
#include "server/options.h"

#define STAMP_BYTES 40

extern char **environ;

void fb_server_sink(void *context, enum fb_logger_level level, const char *text, size_t bytes)
{
    (void)context;
    (void)level;
    char line[STAMP_BYTES + FB_LOG_LINE_BYTES_MAX + 1];
    struct timespec now;
    struct tm parts;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    size_t used = strftime(line, STAMP_BYTES, "%Y-%m-%dT%H:%M:%S", &parts);
    used +=
        (size_t)snprintf(line + used, STAMP_BYTES - used, ".%03ldZ ", now.tv_nsec / (long)FB_MS_NS);
    if (bytes > sizeof(line) - used)
        bytes = sizeof(line) - used;
    memcpy(line + used, text, bytes);
    /* A reader that has stopped must not stop the data thread. */
    struct pollfd room = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (poll(&room, 1, 0) == 1 && (room.revents & POLLOUT) != 0) {
        ssize_t n = write(STDERR_FILENO, line, used + bytes);
        (void)n; /* there is nowhere else to say it */
    }
}

/* Tells whoever started us that operations are served. */
static void tell_ready(void *context)
{
    int *fd = context;
    static const char line[] = "ready\n";
    if (*fd < 0)
        return;
    ssize_t n = write(*fd, line, sizeof(line) - 1);
    (void)n; /* who does not listen does not care */
    /* The next descriptor that is opened takes the number of a closed one: if that were stderr, the
     * log would go into a connection or a file. */
    if (*fd > STDERR_FILENO)
        close(*fd);
    *fd = -1;
}

/* The same trap at the start: without stdin, stdout or stderr the device could get their numbers.
 */
static int fill_standard_fds(void)
{
    int fd;
    do {
        fd = open("/dev/null", O_RDWR);
    } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd < 0)
        return -errno;
    close(fd);
    return 0;
}

/* Each connection takes one or two descriptors, and the usual soft limit is for programs that use
 * select(). If it cannot be raised, the node says what it lacks. */
static void raise_descriptors(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max)
        return;
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        fprintf(stderr, "forebayd: the limit of open files stays as it is: %s\n", strerror(errno));
}

static int fail(const char *why, int code)
{
    fprintf(stderr, "forebayd: %s\n", why);
    return code;
}

static int exit_of(enum fb_node_failure failure)
{
    switch (failure) {
    case FB_NODE_OK:
        return FB_SERVER_EXIT_OK;
    case FB_NODE_BAD_CONFIG:
        return FB_SERVER_EXIT_USAGE;
    case FB_NODE_CANNOT_START:
        return FB_SERVER_EXIT_CANNOT_START;
    case FB_NODE_FAILED:
        break;
    }
    return FB_SERVER_EXIT_FAILED;
}

static int serve(struct fb_server_settings *settings)
{
    char why[FB_NODE_WHY_BYTES] = "";
    struct fb_node *node = NULL;
    struct fb_server_signals *signals = NULL;
    raise_descriptors();
    if (fill_standard_fds() != 0)
        return fail("/dev/null cannot be opened: it takes the place of a standard descriptor that "
                    "is closed",
                    FB_SERVER_EXIT_CANNOT_START);
    if (fb_server_signals_block() != 0)
        return fail("signals cannot be blocked", FB_SERVER_EXIT_CANNOT_START);
    settings->node.ready = tell_ready;
    settings->node.ready_context = &settings->ready_fd;
    settings->node.log_sink = fb_server_sink;
    enum fb_node_failure failure = fb_node_make(&settings->node, &node, why, sizeof(why));
    if (failure != FB_NODE_OK)
        return fail(why, exit_of(failure));
    int rc = fb_server_signals_start(node, &signals);
    if (rc != 0) {
        fb_node_free(node);
        snprintf(why, sizeof(why), "a thread for signals: %s", strerror(-rc));
        return fail(why, FB_SERVER_EXIT_CANNOT_START);
    }
    failure = fb_node_run(node, why, sizeof(why));
    fb_server_signals_stop(signals);
    fb_node_free(node);
    return failure == FB_NODE_OK ? FB_SERVER_EXIT_OK : fail(why, exit_of(failure));
}

int main(int argc, char **argv)
{
    static struct fb_server_settings settings;
    char why[FB_NODE_WHY_BYTES] = "";
    if (fb_server_options_read(&settings, argc, argv, environ, why, sizeof(why)) != 0)
        return fail(why, FB_SERVER_EXIT_USAGE);
    if (settings.action == FB_SERVER_HELP) {
        fb_server_options_help(stdout);
        return fflush(stdout) == 0 ? FB_SERVER_EXIT_OK : FB_SERVER_EXIT_FAILED;
    }
    if (settings.action == FB_SERVER_VERSION) {
        printf("forebayd %s\n", FB_VERSION_TEXT);
        return fflush(stdout) == 0 ? FB_SERVER_EXIT_OK : FB_SERVER_EXIT_FAILED;
    }
    if (fb_bug_enable(settings.bugs) != 0) {
        snprintf(why, sizeof(why),
                 "--bug '%.200s': there is no such planted bug; src/base/bug.h has their names",
                 settings.bugs);
        return fail(why, FB_SERVER_EXIT_USAGE);
    }
    if (fb_node_config_check(&settings.node, why, sizeof(why)) != FB_NODE_OK)
        return fail(why, FB_SERVER_EXIT_USAGE);
    if (settings.action == FB_SERVER_PRINT_CONFIG) {
        fb_server_options_print(&settings, stdout);
        return fflush(stdout) == 0 ? FB_SERVER_EXIT_OK : FB_SERVER_EXIT_FAILED;
    }
    for (const char *line = settings.warnings; *line != '\0';) {
        size_t bytes = strcspn(line, "\n");
        fprintf(stderr, "forebayd: %.*s\n", (int)bytes, line);
        line += bytes + (line[bytes] == '\n');
    }
    return serve(&settings);
}
