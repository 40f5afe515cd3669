/*
 * The helper thread: what blocks and is not I/O of values. It shares atomics with the data thread
 * and wakes it through the eventfd.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "node/node_private.h"

/* Waits until it is time, or the helper is to end; returns false then. */
static bool rest(struct fb_node_helper *helper, unsigned ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    uint64_t ns = (uint64_t)until.tv_nsec + ms * FB_MS_NS;
    until.tv_sec += (time_t)(ns / FB_SEC_NS);
    until.tv_nsec = (long)(ns % FB_SEC_NS);
    pthread_mutex_lock(&helper->lock);
    while (!helper->stop && pthread_cond_timedwait(&helper->wake, &helper->lock, &until) == 0)
        continue;
    bool go_on = !helper->stop;
    pthread_mutex_unlock(&helper->lock);
    return go_on;
}

static void look_at_disk(struct fb_node *node)
{
    int64_t room = fb_device_room(&node->device);
    int below = room == 0;
    if (room >= 0 && atomic_exchange(&node->helper.below_floor, below) != below)
        fb_node_wake(node);
}

static void *work(void *argument)
{
    struct fb_node *node = argument;
    bool faulting = true;
    while (rest(&node->helper, faulting ? 0 : FB_NODE_FLOOR_MS)) {
        if (faulting) {
            faulting = fb_node_pool_fault(&node->pool);
            fb_node_wake(node);
        } else if (node->has_device) {
            look_at_disk(node);
        }
    }
    return NULL;
}

int fb_node_helper_start(struct fb_node *node)
{
    struct fb_node_helper *helper = &node->helper;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&helper->lock, NULL);
    pthread_cond_init(&helper->wake, &attributes);
    pthread_condattr_destroy(&attributes);
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&helper->thread, NULL, work, node);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    helper->running = rc == 0;
    return -rc;
}

void fb_node_helper_stop(struct fb_node *node)
{
    struct fb_node_helper *helper = &node->helper;
    if (!helper->running)
        return;
    pthread_mutex_lock(&helper->lock);
    helper->stop = true;
    pthread_cond_signal(&helper->wake);
    pthread_mutex_unlock(&helper->lock);
    pthread_join(helper->thread, NULL);
    pthread_cond_destroy(&helper->wake);
    pthread_mutex_destroy(&helper->lock);
    helper->running = false;
}

void fb_node_helper_news(struct fb_node *node, uint64_t now_ns)
{
    uint64_t faulted = atomic_load(&node->pool.faulted);
    if (faulted != node->told_faulted) {
        node->told_faulted = faulted;
        fb_shard_pool_faulted(node->shard, faulted);
        fb_io_faulted(node->io, faulted);
    }
    int error = atomic_load(&node->pool.fault_errno);
    if (error != 0 && !node->told_fault_error) {
        node->told_fault_error = true;
        fb_shard_pool_whole(node->shard);
        struct fb_logger_line line;
        fb_logger_begin(&line, FB_LOGGER_ERROR, "pool_not_backed");
        fb_logger_text(&line, "error", strerror(error));
        fb_logger_size(&line, "backed", faulted);
        fb_logger_size(&line, "pool", node->pool.bytes);
        fb_logger_text(&line, "cure",
                       "a smaller --pool, or more memory; the rest of the pool is not used");
        fb_logger_write(&node->logger, &line, now_ns);
    }
    bool below = atomic_load(&node->helper.below_floor) != 0;
    if (below != node->told_floor) {
        node->told_floor = below;
        fb_shard_set_floor(node->shard, now_ns, below);
        struct fb_logger_line line;
        fb_logger_begin(&line, below ? FB_LOGGER_WARN : FB_LOGGER_INFO,
                        below ? "disk_floor_reached" : "disk_floor_left");
        fb_logger_text(&line, "path", node->device.path);
        fb_logger_size(&line, "floor", node->device.floor_bytes);
        fb_logger_write(&node->logger, &line, now_ns);
    }
}
