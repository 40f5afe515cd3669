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
#include "node/node_private.h"

/* Newer than the headers that we build with. */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21u << 26)
#endif

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* One try; the mapping of huge pages fails at once if there are not enough. */
static int pool_try(struct fb_node_pool *pool, uint64_t bytes, bool huge)
{
    unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge ? MFD_HUGETLB | MFD_HUGE_2MB : 0);
    int fd = memfd_create("forebay-pool", flags);
    if (fd < 0)
        return -errno;
    void *base = MAP_FAILED;
    if (ftruncate(fd, (off_t)bytes) == 0 && fcntl(fd, F_ADD_SEALS, SEALS) == 0)
        base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
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
    if (pool_try(pool, bytes, true) == 0)
        return 0;
    int rc = pool_try(pool, bytes, false);
    if (rc == 0)
        madvise(pool->base, bytes,
                MADV_HUGEPAGE); /* a wish: the kernel may not know it for memfds */
    return rc;
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

/* For kernels without MADV_POPULATE_WRITE: a write to each page, which nobody else uses yet. */
static void touch(uint8_t *at, uint64_t bytes)
{
    for (uint64_t off = 0; off < bytes; off += FB_PAGE_BYTES)
        *(volatile uint8_t *)(at + off) = 0;
}

bool fb_node_pool_fault(struct fb_node_pool *pool)
{
    uint64_t done = atomic_load(&pool->faulted);
    uint64_t step = fb_min_u64(FB_NODE_FAULT_BYTES, pool->bytes - done);
    if (step == 0)
        return false;
    int rc;
    do
        rc = madvise(pool->base + done, step, MADV_POPULATE_WRITE);
    while (rc != 0 && (errno == EINTR || errno == EAGAIN));
    if (rc != 0 && errno == EINVAL) {
        touch(pool->base + done, step);
        rc = 0;
    }
    if (rc != 0) {
        atomic_store(&pool->fault_errno, errno);
        return false;
    }
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
