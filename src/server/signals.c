/*
 * Signals arrive as data on a signalfd, read by a thread that does nothing else. There is no
 * handler.
 *
 * What tells a node to end often tells it twice: timeout(1) signals the process and its group, a
 * terminal and a supervisor both pass ^C on. A repeated signal so soon is not the wish to give the
 * dirty values up, and is passed over.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "base/limits.h"
#include "server/daemon.h"

#define REPEAT_NS FB_SEC_NS /* after the first signal: others mean the same one */

struct fb_server_signals {
    pthread_t thread;
    int signal_fd, stop_fd;
    uint64_t first_ns; /* when the first one came; 0: none has */
    struct fb_node *node;
};

static void set_of(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGHUP);
}

int fb_server_signals_block(void)
{
    sigset_t set;
    set_of(&set);
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    /* A write beyond the limit of a file's size fails with EFBIG then, as any other error of the
     * device. */
    if (sigaction(SIGPIPE, &ignore, NULL) != 0 || sigaction(SIGXFSZ, &ignore, NULL) != 0)
        return -errno;
    return -pthread_sigmask(SIG_BLOCK, &set, NULL);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * FB_SEC_NS + (uint64_t)now.tv_nsec;
}

/* A wish to end came in. */
static void take_stop(struct fb_server_signals *signals)
{
    uint64_t now = now_ns();
    if (signals->first_ns != 0 && now - signals->first_ns < REPEAT_NS)
        return;
    if (signals->first_ns == 0)
        signals->first_ns = now;
    fb_node_stop(signals->node);
}

static void *wait_for_signals(void *argument)
{
    struct fb_server_signals *signals = argument;
    struct pollfd fds[2] = {{.fd = signals->signal_fd, .events = POLLIN},
                            {.fd = signals->stop_fd, .events = POLLIN}};
    for (;;) {
        int count = poll(fds, 2, -1);
        if (count < 0 && errno != EINTR)
            return NULL;
        if (count > 0 && fds[1].revents != 0)
            return NULL;
        struct signalfd_siginfo info;
        if (count > 0 && fds[0].revents != 0 &&
            read(signals->signal_fd, &info, sizeof(info)) == sizeof(info) &&
            info.ssi_signo != SIGHUP)
            take_stop(signals);
    }
}

int fb_server_signals_start(struct fb_node *node, struct fb_server_signals **out)
{
    struct fb_server_signals *signals = calloc(1, sizeof(*signals));
    sigset_t set;
    if (signals == NULL)
        return -ENOMEM;
    set_of(&set);
    signals->node = node;
    signals->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    signals->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = signals->signal_fd < 0 || signals->stop_fd < 0 ? errno : 0;
    if (rc == 0)
        rc = pthread_create(&signals->thread, NULL, wait_for_signals, signals);
    if (rc == 0) {
        *out = signals;
        return 0;
    }
    if (signals->signal_fd >= 0)
        close(signals->signal_fd);
    if (signals->stop_fd >= 0)
        close(signals->stop_fd);
    free(signals);
    return -rc;
}

void fb_server_signals_stop(struct fb_server_signals *signals)
{
    if (signals == NULL)
        return;
    uint64_t one = 1;
    ssize_t n = write(signals->stop_fd, &one, sizeof(one)); /* a fresh eventfd has room */
    (void)n;
    pthread_join(signals->thread, NULL);
    close(signals->signal_fd);
    close(signals->stop_fd);
    free(signals);
}
