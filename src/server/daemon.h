/*
 * daemon.h - what the files of forebayd share: log lines on stderr, signals.
 */
#ifndef FB_SERVER_DAEMON_H
#define FB_SERVER_DAEMON_H

#include "node/node.h"

/* What the process ends with; docs/operations.md lists them. */
enum fb_server_exit {
    FB_SERVER_EXIT_OK = 0,
    FB_SERVER_EXIT_FAILED = 1,
    FB_SERVER_EXIT_USAGE = 2,
    FB_SERVER_EXIT_CANNOT_START = 3
};

/*
 * A sink for log lines: stderr, each with the time of day in front, each by one write. A line for
 * which stderr has no room now is dropped rather than waited for, and counted. Safe for several
 * threads.
 */
void fb_server_sink(void *context, enum fb_logger_level level, const char *text, size_t bytes);

struct fb_server_signals;

/*
 * Blocks SIGTERM, SIGINT and SIGHUP for this thread and all that it starts later, and ignores
 * SIGPIPE and SIGXFSZ. Before any thread is started. Returns 0 or -errno.
 */
int fb_server_signals_block(void);

/*
 * Starts a thread that tells the node to stop at SIGTERM and SIGINT; those that repeat the first
 * within a second are passed over. SIGHUP does nothing. 0 or -errno.
 */
int fb_server_signals_start(struct fb_node *node, struct fb_server_signals **out);

/* Ends it; NULL is allowed. */
void fb_server_signals_stop(struct fb_server_signals *signals);

#endif
