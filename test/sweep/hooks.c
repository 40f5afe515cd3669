/*
 * hooks.c - the definitions here take the place of the C library's, for this program and all
 * libraries that it uses, and hand on to what stands behind them: the sanitizer's, so that leaks
 * and misuse are seen, or the C library's.
 */
#include "test/sweep/hooks.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>

#ifdef __SANITIZE_ADDRESS__
#define BEHIND(name) __interceptor_##name
#else
#define BEHIND(name) __libc_##name
#endif

void *BEHIND(malloc)(size_t bytes);
void *BEHIND(calloc)(size_t count, size_t bytes);
void *BEHIND(realloc)(void *memory, size_t bytes);
void *BEHIND(memalign)(size_t align, size_t bytes);

static void *(*real_mmap)(void *, size_t, int, int, int, off_t);
static int (*real_memfd_create)(const char *, unsigned);
static int (*real_epoll_create1)(int);
static int (*real_eventfd)(unsigned, int);
static int (*real_signalfd)(int, const sigset_t *, int);
static int (*real_socket)(int, int, int);
static int (*real_pthread_create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

static atomic_bool is_armed, is_of_thread;
static _Thread_local bool is_this_thread;
/* Not yet in a thread that the sanitizer is still setting up. */
static _Thread_local bool is_running;
static atomic_ullong calls, fails_at;
static _Atomic(const char *) failed = "";

/* The pointer to what stands behind a hook. */
#define FIND(name) (*(void **)&real_##name = dlsym(RTLD_NEXT, #name))

void hooks_start(void)
{
    FIND(mmap);
    FIND(memfd_create);
    FIND(epoll_create1);
    FIND(eventfd);
    FIND(signalfd);
    FIND(socket);
    FIND(pthread_create);
}

static void arm(uint64_t nth, bool of_thread)
{
    atomic_store(&calls, 0);
    atomic_store(&fails_at, nth);
    atomic_store(&failed, "");
    is_this_thread = is_running = true;
    atomic_store(&is_of_thread, of_thread);
    atomic_store(&is_armed, true);
}

void hooks_arm(uint64_t nth)
{
    arm(nth, false);
}

void hooks_arm_thread(uint64_t nth)
{
    arm(nth, true);
}

uint64_t hooks_disarm(void)
{
    atomic_store(&is_armed, false);
    return atomic_load(&calls);
}

const char *hooks_failed(void)
{
    return atomic_load(&failed);
}

/* True if this call is the one that fails. */
static bool fails(const char *name)
{
    if (!atomic_load(&is_armed) || !is_running || (atomic_load(&is_of_thread) && !is_this_thread))
        return false;
    if (atomic_fetch_add(&calls, 1) + 1 != atomic_load(&fails_at))
        return false;
    atomic_store(&failed, name);
    return true;
}

/* ---- memory ---- */

void *malloc(size_t bytes)
{
    if (!fails("malloc"))
        return BEHIND(malloc)(bytes);
    errno = ENOMEM;
    return NULL;
}

void *calloc(size_t count, size_t bytes)
{
    if (!fails("calloc"))
        return BEHIND(calloc)(count, bytes);
    errno = ENOMEM;
    return NULL;
}

void *realloc(void *memory, size_t bytes)
{
    if (!fails("realloc"))
        return BEHIND(realloc)(memory, bytes);
    errno = ENOMEM;
    return NULL;
}

void *aligned_alloc(size_t align, size_t bytes)
{
    if (!fails("aligned_alloc"))
        return BEHIND(memalign)(align, bytes);
    errno = ENOMEM;
    return NULL;
}

int posix_memalign(void **out, size_t align, size_t bytes)
{
    void *memory = fails("posix_memalign") ? NULL : BEHIND(memalign)(align, bytes);
    if (memory == NULL)
        return ENOMEM;
    *out = memory;
    return 0;
}

void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t off)
{
    if (real_mmap == NULL)
        FIND(mmap); /* a constructor of a library was first */
    if (!fails("mmap"))
        return real_mmap(at, bytes, protection, flags, fd, off);
    errno = ENOMEM;
    return MAP_FAILED;
}

int memfd_create(const char *name, unsigned flags)
{
    if (!fails("memfd_create"))
        return real_memfd_create(name, flags);
    errno = ENFILE;
    return -1;
}

/* ---- descriptors and threads ---- */

int epoll_create1(int flags)
{
    if (!fails("epoll_create1"))
        return real_epoll_create1(flags);
    errno = EMFILE;
    return -1;
}

int eventfd(unsigned count, int flags)
{
    if (!fails("eventfd"))
        return real_eventfd(count, flags);
    errno = EMFILE;
    return -1;
}

int signalfd(int fd, const sigset_t *mask, int flags)
{
    if (!fails("signalfd"))
        return real_signalfd(fd, mask, flags);
    errno = EMFILE;
    return -1;
}

int socket(int domain, int type, int protocol)
{
    if (real_socket == NULL)
        FIND(socket);
    if (!fails("socket"))
        return real_socket(domain, type, protocol);
    errno = EMFILE;
    return -1;
}

/* What a new thread is to do. */
struct errand {
    void *(*run)(void *);
    void *argument;
};

static void *begin(void *argument)
{
    struct errand errand = *(struct errand *)argument;
    free(argument);
    is_running = true;
    return errand.run(errand.argument);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                   void *argument)
{
    if (real_pthread_create == NULL)
        FIND(pthread_create);
    if (fails("pthread_create"))
        return EAGAIN;
    struct errand *errand = BEHIND(malloc)(sizeof(*errand));
    if (errand == NULL)
        return EAGAIN;
    *errand = (struct errand){.run = run, .argument = argument};
    int result = real_pthread_create(thread, attributes, begin, errand);
    if (result != 0)
        free(errand);
    return result;
}
