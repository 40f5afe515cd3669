/*
 * open.c - choosing and opening a real backend. See open.h.
 */
#include "io/open.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/bits.h"
#include "io/fault.h"
#include "io/forget.h"
#include "io/pool.h"
#include "io/posix.h"
#include "io/uring.h"

#define LINE_BYTES 512

static void say(const struct fb_io_config *config, const char *line)
{
    if (config->say)
        config->say(config->say_context, line);
}

static struct fb_execute execute_of(const struct fb_io_config *config)
{
    FB_ASSERT(config->device_count <= FB_DEVICES_MAX);
    FB_ASSERT(fb_is_aligned((uintptr_t)config->arena, FB_PAGE_BYTES));
    FB_ASSERT(fb_is_aligned((uintptr_t)config->meta, FB_PAGE_BYTES));
    struct fb_execute execute = {.devices = config->devices};
    execute.memory.base[FB_IO_ARENA] = config->arena;
    execute.memory.bytes[FB_IO_ARENA] = config->arena_bytes;
    execute.memory.base[FB_IO_META] = config->meta;
    execute.memory.bytes[FB_IO_META] = config->meta_bytes;
    execute.memory.device_count = config->device_count;
    return execute;
}

static int open_posix(const struct fb_io_config *config, struct fb_io **out, char *why,
                      size_t why_bytes)
{
    const struct fb_execute execute = execute_of(config);
    const unsigned threads = config->threads ? config->threads : FB_POOL_THREADS_DEFAULT;
    char line[LINE_BYTES];
    const int rc = fb_posix_open(&execute, threads, out);
    if (rc != 0) {
        snprintf(why, why_bytes, "posix I/O with %u threads: %s; raise the limit of processes",
                 threads, strerror(-rc));
        return rc;
    }
    snprintf(line, sizeof line, "I/O by posix calls: %u threads", threads);
    say(config, line);
    return 0;
}

static int open_uring(const struct fb_io_config *config, struct fb_io **out, char *why,
                      size_t why_bytes)
{
    const struct fb_execute execute = execute_of(config);
    const struct fb_uring_config uring = {.depth = config->depth,
                                          .no_fixed = config->no_fixed,
                                          .missing_ops = config->missing_ops,
                                          .say = config->say,
                                          .say_context = config->say_context};
    char line[LINE_BYTES];
    const int rc = fb_uring_open(&execute, &uring, out, why, why_bytes);
    if (rc != 0)
        return rc;
    snprintf(line, sizeof line, "I/O by io_uring: depth %u",
             config->depth ? config->depth : FB_URING_DEPTH_DEFAULT);
    say(config, line);
    return 0;
}

static int open_auto(const struct fb_io_config *config, struct fb_io **out, char *why,
                     size_t why_bytes)
{
    char reason[LINE_BYTES / 2];
    char line[LINE_BYTES];
    if (open_uring(config, out, reason, sizeof reason) == 0)
        return 0;
    snprintf(line, sizeof line, "going on without io_uring: %s", reason);
    say(config, line);
    return open_posix(config, out, why, why_bytes);
}

#ifdef FB_TEST_HOOKS

static int open_forget(const struct fb_io_config *config, struct fb_io **out, char *why,
                       size_t why_bytes)
{
    const struct fb_execute execute = execute_of(config);
    const unsigned threads = config->threads ? config->threads : FB_POOL_THREADS_DEFAULT;
    const int rc = fb_forget_open(&execute, threads, out);
    if (rc != 0)
        snprintf(why, why_bytes, "forgetful I/O: %s", strerror(-rc));
    else
        say(config, "I/O that forgets unflushed writes when killed: for tests only");
    return rc;
}

static int wrap(const struct fb_io_config *config, struct fb_io **io, char *why, size_t why_bytes)
{
    struct fb_script script;
    struct fb_io *inner = *io;
    int rc = fb_script_parse(config->fault_script, &script, why, why_bytes);
    if (rc == 0) {
        rc = fb_fault_open(inner, &script, io);
        if (rc != 0)
            snprintf(why, why_bytes, "fault script '%s': %s", config->fault_script,
                     rc == -EINVAL ? "'stale' is for the simulator alone" : strerror(-rc));
    }
    if (rc != 0)
        fb_io_close(inner);
    else
        say(config, "I/O with faults by script: for tests only");
    return rc;
}

#else

static int open_forget(const struct fb_io_config *config, struct fb_io **out, char *why,
                       size_t why_bytes)
{
    (void)config;
    (void)out;
    snprintf(why, why_bytes, "--io=forget is for test builds; use auto, uring or posix");
    return -EINVAL;
}

static int wrap(const struct fb_io_config *config, struct fb_io **io, char *why, size_t why_bytes)
{
    (void)config;
    fb_io_close(*io);
    snprintf(why, why_bytes, "a fault script needs a test build; leave it out");
    return -EINVAL;
}

#endif

int fb_io_open(const struct fb_io_config *config, struct fb_io **out, char *why, size_t why_bytes)
{
    const char *backend = config->backend ? config->backend : "auto";
    FB_ASSERT(config->threads <= FB_POOL_THREADS_MAX);
    int rc = -EINVAL;
    if (strcmp(backend, "auto") == 0)
        rc = open_auto(config, out, why, why_bytes);
    else if (strcmp(backend, "uring") == 0)
        rc = open_uring(config, out, why, why_bytes);
    else if (strcmp(backend, "posix") == 0)
        rc = open_posix(config, out, why, why_bytes);
    else if (strcmp(backend, "forget") == 0)
        rc = open_forget(config, out, why, why_bytes);
    else
        snprintf(why, why_bytes, "--io=%s is not known; use auto, uring or posix", backend);
    if (rc == 0 && config->fault_script && config->fault_script[0] != '\0')
        rc = wrap(config, out, why, why_bytes);
    return rc;
}
