/* Time and waiting of the client. See clock.h. */
#include "client/clock.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <time.h>

#include "base/assert.h"
#include "base/bits.h"
#include "base/limits.h"

uint64_t fb_client_now_ns(void)
{
    struct timespec now;
    int failed = clock_gettime(CLOCK_MONOTONIC, &now);
    FB_ASSERT(failed == 0);
    return (uint64_t)now.tv_sec * FB_SEC_NS + (uint64_t)now.tv_nsec;
}

int fb_client_wait(int fd, short events, uint64_t until_ns)
{
    struct pollfd wanted = {.fd = fd, .events = events};
    struct timespec left;
    struct timespec *timeout = NULL;
    if (until_ns != UINT64_MAX) {
        uint64_t left_ns = fb_sub_floored(until_ns, fb_client_now_ns());
        left.tv_sec = (time_t)(left_ns / FB_SEC_NS);
        left.tv_nsec = (long)(left_ns % FB_SEC_NS);
        timeout = &left;
    }
    int ready = ppoll(&wanted, 1, timeout, NULL);
    if (ready < 0)
        return errno == EINTR ? 0 : -errno;
    return ready == 0 ? 0 : wanted.revents;
}
