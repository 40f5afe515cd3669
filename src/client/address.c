/* Addresses of nodes. See address.h. */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/bits.h"
#include "base/limits.h"
#include "client/address.h"
#include "client/clock.h"
#include "forebay/result.h"

#define UNIX_PREFIX "unix:"
#define TCP_PREFIX  "tcp:"
/* A listener's queue is full: how long until the next try. */
#define RETRY_NS (2 * FB_MS_NS)
/* How long the kernel tries to have bytes acknowledged. */
#define USER_TIMEOUT_MS 30000u

static int refuse(char *why, size_t why_bytes, const char *text, const char *what)
{
    if (why != NULL)
        snprintf(why, why_bytes, "address '%.300s': %s", text, what);
    return FB_BAD_ARGUMENT;
}

static int parse_unix(const char *path, struct fb_client_address *out, char *why, size_t why_bytes)
{
    struct sockaddr_un *to = (struct sockaddr_un *)&out->to;
    size_t bytes = strlen(path);
    if (bytes == 0 || bytes >= sizeof(to->sun_path))
        return refuse(why, why_bytes, out->text, "the path of a socket has 1 to 107 bytes");
    to->sun_family = AF_UNIX;
    memcpy(to->sun_path, path, bytes + 1);
    out->to_bytes = sizeof(*to);
    out->is_unix = true;
    return FB_OK;
}

static int look_up(const char *host, const char *port, struct fb_client_address *out, char *why,
                   size_t why_bytes)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    if (strcmp(host, "localhost") == 0)
        host = "127.0.0.1";
    int failed = getaddrinfo(host, port, &hints, &found);
    if (failed == EAI_NONAME) {
        hints.ai_flags = AI_NUMERICSERV;
        failed = getaddrinfo(host, port, &hints, &found);
    }
    if (failed != 0) {
        refuse(why, why_bytes, out->text, gai_strerror(failed));
        return FB_CONNECTION;
    }
    FB_ASSERT(found->ai_addrlen <= sizeof(out->to));
    memcpy(&out->to, found->ai_addr, found->ai_addrlen);
    out->to_bytes = found->ai_addrlen;
    freeaddrinfo(found);
    return FB_OK;
}

static int parse_tcp(const char *rest, struct fb_client_address *out, char *why, size_t why_bytes)
{
    static const char shape[] = "write tcp:host:port, and brackets around an IPv6 number";
    char host[FB_ADDRESS_TEXT_BYTES];
    const char *colon = strrchr(rest, ':');
    if (colon == NULL || colon == rest)
        return refuse(why, why_bytes, out->text, shape);
    size_t bytes = (size_t)(colon - rest);
    const char *from = rest;
    if (rest[0] == '[') {
        if (bytes < 3 || rest[bytes - 1] != ']')
            return refuse(why, why_bytes, out->text, shape);
        from = rest + 1;
        bytes -= 2;
    }
    memcpy(host, from, bytes);
    host[bytes] = '\0';
    char *end;
    unsigned long port = strtoul(colon + 1, &end, 10);
    if (colon[1] < '0' || colon[1] > '9' || *end != '\0' || port == 0 || port > UINT16_MAX)
        return refuse(why, why_bytes, out->text, "a port is a number from 1 to 65535");
    return look_up(host, colon + 1, out, why, why_bytes);
}

int fb_client_address_parse(const char *text, struct fb_client_address *out, char *why,
                            size_t why_bytes)
{
    memset(out, 0, sizeof(*out));
    size_t bytes = strlen(text);
    if (bytes >= sizeof(out->text))
        return refuse(why, why_bytes, text, "it is too long");
    memcpy(out->text, text, bytes + 1);
    if (strncmp(text, UNIX_PREFIX, strlen(UNIX_PREFIX)) == 0)
        return parse_unix(text + strlen(UNIX_PREFIX), out, why, why_bytes);
    if (strncmp(text, TCP_PREFIX, strlen(TCP_PREFIX)) == 0)
        return parse_tcp(text + strlen(TCP_PREFIX), out, why, why_bytes);
    return refuse(why, why_bytes, text, "write unix:/path or tcp:host:port");
}

/* ---- connecting ---- */

static void set_options(int fd, bool is_unix)
{
    if (is_unix)
        return;
    /* None of these is needed for a right answer; a kernel that refuses one is slower to notice. */
    int on = 1;
    unsigned timeout_ms = USER_TIMEOUT_MS;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof(timeout_ms));
}

/* The connection is on its way: waits for it. */
static int finish_connect(int fd, uint64_t deadline_ns)
{
    for (;;) {
        int events = fb_client_wait(fd, POLLOUT, deadline_ns);
        if (events < 0)
            return events;
        if (events != 0)
            break;
        if (fb_client_now_ns() >= deadline_ns)
            return -ETIMEDOUT;
    }
    int error = 0;
    socklen_t bytes = sizeof(error);
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) < 0)
        return -errno;
    return -error;
}

static int try_connect(int fd, const struct fb_client_address *address, uint64_t deadline_ns)
{
    for (;;) {
        if (connect(fd, (const struct sockaddr *)&address->to, address->to_bytes) == 0)
            return 0;
        if (errno == EINPROGRESS || errno == EINTR)
            return finish_connect(fd, deadline_ns);
        if (errno != EAGAIN)
            return -errno;
        /* A Unix socket whose queue is full: there is nothing to wait on but time. */
        uint64_t now_ns = fb_client_now_ns();
        if (now_ns >= deadline_ns)
            return -ETIMEDOUT;
        int waited = fb_client_wait(-1, 0, fb_min_u64(deadline_ns, now_ns + RETRY_NS));
        if (waited < 0)
            return waited;
    }
}

int fb_client_address_connect(const struct fb_client_address *address, uint64_t deadline_ns)
{
    int fd = socket(address->to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    set_options(fd, address->is_unix);
    int result = try_connect(fd, address, deadline_ns);
    if (result < 0) {
        close(fd);
        return result;
    }
    return fd;
}
