/*
 * forget.h - a backend on real files that loses unflushed writes when the process is killed.
 *
 * Completed writes stay in this process's memory, where reads see them, and go to the file when a
 * flush covers them. So `kill -9` of a real server does to its file what a power cut does to a
 * drive's cache. Only in builds with FB_TEST_HOOKS.
 *
 * A flush writes oldest first; killed in the middle, it leaves some of what it covers. If a write
 * of it fails, all that it covers is forgotten, and the next flush knows nothing of it.
 */
#ifndef FB_IO_FORGET_H
#define FB_IO_FORGET_H

#ifdef FB_TEST_HOOKS

#include "io/execute.h"

#define FB_FORGET_BYTES_MAX FB_MIB(512) /* beyond this a write goes through to the file */

/* Opens the backend with `threads` threads, as fb_posix_open() does. Returns 0 or -errno. */
int fb_forget_open(const struct fb_execute *execute, unsigned threads, struct fb_io **out);

#endif

#endif
