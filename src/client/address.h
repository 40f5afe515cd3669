/*
 * address.h - where a node listens: "unix:/path" or "tcp:host:port".
 */
#ifndef FB_CLIENT_ADDRESS_H
#define FB_CLIENT_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#define FB_ADDRESS_TEXT_BYTES 512

struct fb_client_address {
    char text[FB_ADDRESS_TEXT_BYTES]; /* as it was given */
    bool is_unix;
    struct sockaddr_storage to;
    socklen_t to_bytes;
};

/*
 * Reads an address. A host name is looked up here, once, which may block for as long as the
 * resolver takes; numbers and "localhost" never block. IPv6 numbers stand in brackets. Returns 0,
 * or FB_BAD_ARGUMENT or FB_CONNECTION (a name that nobody knows) with one line in `why`.
 */
int fb_client_address_parse(const char *text, struct fb_client_address *out, char *why,
                            size_t why_bytes);

/*
 * A connected socket, non-blocking, closed on exec. Waits up to `deadline_ns` of the monotonic
 * clock. Returns the descriptor, or -errno (-ETIMEDOUT at the deadline).
 */
int fb_client_address_connect(const struct fb_client_address *address, uint64_t deadline_ns);

#endif
