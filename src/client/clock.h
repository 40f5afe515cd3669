/*
 * clock.h - time and waiting of the client.
 */
#ifndef FB_CLIENT_CLOCK_H
#define FB_CLIENT_CLOCK_H

#include <stdint.h>

/* The monotonic clock. */
uint64_t fb_client_now_ns(void);

/*
 * Waits until the descriptor has one of the poll() events, or until `until_ns` (UINT64_MAX: for
 * ever). Returns the events that came, 0 at the time, or -errno. A signal ends the wait like the
 * time.
 */
int fb_client_wait(int fd, short events, uint64_t until_ns);

#endif
