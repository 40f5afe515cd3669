/*
 * posix.h - the backend of plain calls: a pool of threads. For machines where io_uring is not to be
 * had, and for sanitizers and valgrind, which do not see what a ring does.
 */
#ifndef FB_IO_POSIX_H
#define FB_IO_POSIX_H

#include "io/execute.h"

/*
 * Opens the backend with `threads` threads; so many requests are carried out at once. Memory and
 * devices stay the caller's and must outlive it. Returns 0 or -errno.
 */
int fb_posix_open(const struct fb_execute *execute, unsigned threads, struct fb_io **out);

#endif
