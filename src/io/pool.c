/*
 * pool.c - threads that carry out requests by blocking calls. See pool.h.
 *
 * The eventfd is written when the list of finished requests stops being empty, and read when it
 * becomes empty again, both under the lock: so it is readable exactly while something waits.
 */
#include "io/pool.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>

#include "base/list.h"

struct fb_pool {
    pthread_mutex_t lock;
    pthread_cond_t work_there;
    struct fb_list queue; /* requests nobody has begun with */
    struct fb_list done;  /* finished, not reaped */
    uint32_t reads_running;
    uint32_t reads_most;
    bool closing;

    fb_pool_work_fn *work;
    void *context;
    int event_fd;
    unsigned thread_count;
    pthread_t threads[FB_POOL_THREADS_MAX];
};

/* The next request, or NULL when the pool closes and nothing is left. Takes and gives the lock. */
static struct fb_io_req *take(struct fb_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    while (fb_list_is_empty(&pool->queue) && !pool->closing)
        pthread_cond_wait(&pool->work_there, &pool->lock);
    struct fb_link *link = fb_list_pop_front(&pool->queue);
    struct fb_io_req *req = link ? FB_LIST_ITEM(link, struct fb_io_req, link) : NULL;
    if (req && req->op == FB_IO_READ) {
        pool->reads_running++;
        if (pool->reads_running > pool->reads_most)
            pool->reads_most = pool->reads_running;
    }
    pthread_mutex_unlock(&pool->lock);
    return req;
}

static void give(struct fb_pool *pool, struct fb_io_req *req)
{
    pthread_mutex_lock(&pool->lock);
    if (req->op == FB_IO_READ)
        pool->reads_running--;
    const bool was_empty = fb_list_is_empty(&pool->done);
    fb_list_push_back(&pool->done, &req->link);
    if (was_empty) {
        const int rc = eventfd_write(pool->event_fd, 1);
        FB_ASSERT(rc == 0);
    }
    pthread_mutex_unlock(&pool->lock);
}

static void *run(void *argument)
{
    struct fb_pool *pool = argument;
    for (struct fb_io_req *req = take(pool); req; req = take(pool)) {
        pool->work(pool->context, req);
        give(pool, req);
    }
    return NULL;
}

/* Starts the threads with all signals blocked: a signal is the business of the main thread. */
static int start(struct fb_pool *pool, unsigned threads)
{
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = 0;
    while (rc == 0 && pool->thread_count < threads) {
        rc = pthread_create(&pool->threads[pool->thread_count], NULL, run, pool);
        if (rc == 0)
            pthread_setname_np(pool->threads[pool->thread_count++], "fb-io");
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -rc;
}

int fb_pool_open(unsigned threads, fb_pool_work_fn *work, void *context, int event_fd,
                 struct fb_pool **out)
{
    FB_ASSERT(threads >= 1 && threads <= FB_POOL_THREADS_MAX);
    struct fb_pool *pool = calloc(1, sizeof *pool);
    if (!pool)
        return -ENOMEM;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work_there, NULL);
    fb_list_init(&pool->queue);
    fb_list_init(&pool->done);
    pool->work = work;
    pool->context = context;
    pool->event_fd = event_fd;
    const int rc = start(pool, threads);
    if (rc != 0) {
        fb_pool_close(pool);
        return rc;
    }
    *out = pool;
    return 0;
}

void fb_pool_submit(struct fb_pool *pool, struct fb_io_req *req)
{
    fb_link_init(&req->link);
    pthread_mutex_lock(&pool->lock);
    FB_ASSERT(!pool->closing);
    fb_list_push_back(&pool->queue, &req->link);
    pthread_cond_signal(&pool->work_there);
    pthread_mutex_unlock(&pool->lock);
}

size_t fb_pool_reap(struct fb_pool *pool, struct fb_io_req **out, size_t max)
{
    size_t count = 0;
    pthread_mutex_lock(&pool->lock);
    const bool was_empty = fb_list_is_empty(&pool->done);
    while (count < max) {
        struct fb_link *link = fb_list_pop_front(&pool->done);
        if (!link)
            break;
        out[count++] = FB_LIST_ITEM(link, struct fb_io_req, link);
    }
    if (!was_empty && fb_list_is_empty(&pool->done)) {
        /* The ring behind the same eventfd may have read it; then there is nothing to clear. */
        eventfd_t value;
        const int rc = eventfd_read(pool->event_fd, &value);
        FB_ASSERT(rc == 0 || errno == EAGAIN);
    }
    pthread_mutex_unlock(&pool->lock);
    return count;
}

void fb_pool_read_depth(struct fb_pool *pool, uint32_t *now, uint32_t *most)
{
    pthread_mutex_lock(&pool->lock);
    *now = pool->reads_running;
    *most = pool->reads_most;
    pthread_mutex_unlock(&pool->lock);
}

void fb_pool_close(struct fb_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    pool->closing = true;
    pthread_cond_broadcast(&pool->work_there);
    pthread_mutex_unlock(&pool->lock);
    for (unsigned i = 0; i < pool->thread_count; i++)
        pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->work_there);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}
