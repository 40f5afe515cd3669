/*
 * The pool's memory, and how it is shared with clients: a memfd that nobody can shrink (a client
 * that could would kill this process by SIGBUS), handed over a Unix socket to processes of the same
 * user whose death the kernel will tell of.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/bits.h"
#include "io/memory.h"
#include "node/node_private.h"

/* Newer than the headers that we build with. */
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21u << 26)
#endif

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/*
 * Maps the pool at a multiple of the size of a huge page: only there can its pages be huge.
 * MAP_FAILED and errno on failure.
 */
static void *map_aligned(int fd, uint64_t bytes)
{
    size_t room = bytes + FB_MEMORY_HUGE_BYTES;
    uint8_t *space =
        mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED)
        return MAP_FAILED;
    uint8_t *base = (uint8_t *)fb_align_up((uintptr_t)space, FB_MEMORY_HUGE_BYTES);
    void *pool = mmap(base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    int error = errno;
    if (pool == MAP_FAILED) {
        munmap(space, room);
    } else {
        if (base > space)
            munmap(space, (size_t)(base - space));
        munmap(base + bytes, room - bytes - (size_t)(base - space));
    }
    errno = error;
    return pool;
}

/* One try; the mapping of huge pages fails at once if there are not enough. */
static int pool_try(struct fb_node_pool *pool, uint64_t bytes, bool huge)
{
    unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge ? MFD_HUGETLB | MFD_HUGE_2MB : 0);
    int fd = memfd_create("forebay-pool", flags);
    if (fd < 0)
        return -errno;
    void *base = MAP_FAILED;
    if (ftruncate(fd, (off_t)bytes) == 0 && fcntl(fd, F_ADD_SEALS, SEALS) == 0)
        base = map_aligned(fd, bytes);
    if (base == MAP_FAILED) {
        int error = errno;
        close(fd);
        return -error;
    }
    pool->fd = fd;
    pool->base = base;
    pool->bytes = bytes;
    pool->huge = huge;
    return 0;
}

int fb_node_pool_make(struct fb_node_pool *pool, uint64_t bytes)
{
    FB_ASSERT(bytes % FB_NODE_POOL_STEP_BYTES == 0);
    pool->fd = -1;
    atomic_store(&pool->faulted, 0);
    atomic_store(&pool->fault_errno, 0);
    atomic_store(&pool->huge_bytes, 0);
    /* Pages set aside by the operator first; else ordinary ones, made huge as they are backed. */
    return pool_try(pool, bytes, true) == 0 ? 0 : pool_try(pool, bytes, false);
}

void fb_node_pool_free(struct fb_node_pool *pool)
{
    if (pool->base != NULL)
        munmap(pool->base, pool->bytes);
    if (pool->fd >= 0)
        close(pool->fd);
    pool->base = NULL;
    pool->fd = -1;
}

bool fb_node_pool_fault(struct fb_node_pool *pool)
{
    uint64_t done = atomic_load(&pool->faulted);
    uint64_t step = fb_min_u64(FB_NODE_FAULT_BYTES, pool->bytes - done);
    if (step == 0)
        return false;
    uint64_t huge_bytes = 0;
    int rc = fb_memory_fault(pool->fd, pool->base, done, step, &huge_bytes);
    if (rc != 0) {
        atomic_store(&pool->fault_errno, -rc);
        return false;
    }
    atomic_fetch_add(&pool->huge_bytes, pool->huge ? step : huge_bytes);
    atomic_store(&pool->faulted, done + step);
    return true;
}

/* ---- peers ---- */

int fb_node_peer_pidfd(int fd, pid_t pid)
{
    int pidfd = -1;
    socklen_t bytes = sizeof(pidfd);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &bytes) == 0)
        return pidfd;
    if (pid <= 0)
        return -1;
    pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (pidfd < 0)
        return -1;
    fcntl(pidfd, F_SETFD, FD_CLOEXEC);
    /* The number may have been used again between connect and now. If the socket is still open its
     * process was alive all the time, so the number is its own. */
    struct pollfd state = {.fd = fd, .events = POLLRDHUP};
    if (poll(&state, 1, 0) == 0)
        return pidfd;
    close(pidfd);
    return -1;
}

ssize_t fb_node_send(int fd, const struct iovec *iov, size_t count, int passed_fd)
{
    union {
        struct cmsghdr head;
        uint8_t room[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)iov, .msg_iovlen = count};
    if (passed_fd >= 0) {
        memset(&control, 0, sizeof(control));
        message.msg_control = &control;
        message.msg_controllen = sizeof(control.room);
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(head), &passed_fd, sizeof(int));
    }
    return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}
