/*
 * Addresses: TCP on loopback, unless the operator says plainly that others may come in without
 * credentials; and a Unix socket, which is the way to shared memory.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/assert.h"
#include "node/node_private.h"

#define HOST_BYTES 64
#define PORT_MAX   65535

/* ---- parsing ---- */

/* Cuts "host:port" into its halves; brackets around the host are left out. 0 or -EINVAL. */
static int split(const char *text, char host[HOST_BYTES], unsigned *port, const char **wrong)
{
    const char *colon = strrchr(text, ':');
    *wrong = "is not of the form host:port";
    if (colon == NULL || colon == text || colon[1] == '\0')
        return -EINVAL;
    size_t bytes = (size_t)(colon - text);
    const char *from = text;
    if (text[0] == '[' && bytes >= 2 && text[bytes - 1] == ']') {
        from++;
        bytes -= 2;
    }
    if (bytes == 0 || bytes >= HOST_BYTES)
        return -EINVAL;
    memcpy(host, from, bytes);
    host[bytes] = '\0';
    char *end;
    errno = 0;
    unsigned long number = strtoul(colon + 1, &end, 10);
    *wrong = "has a port that is not 0 to 65535";
    if (colon[1] < '0' || colon[1] > '9' || *end != '\0' || errno != 0 || number > PORT_MAX)
        return -EINVAL;
    *port = (unsigned)number;
    return 0;
}

int fb_node_address_parse(const char *text, void *storage, uint32_t *storage_bytes,
                          bool *is_loopback, const char **wrong)
{
    char host[HOST_BYTES];
    unsigned port;
    if (split(text, host, &port, wrong) != 0)
        return -EINVAL;
    struct sockaddr_in *v4 = storage;
    struct sockaddr_in6 *v6 = storage;
    memset(storage, 0, sizeof(struct sockaddr_storage));
    const char *number = strcmp(host, "localhost") == 0 ? "127.0.0.1" : host;
    if (inet_pton(AF_INET, number, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons((uint16_t)port);
        *storage_bytes = sizeof(*v4);
        *is_loopback = (ntohl(v4->sin_addr.s_addr) >> 24) == IN_LOOPBACKNET;
        return 0;
    }
    memset(storage, 0, sizeof(struct sockaddr_storage));
    if (inet_pton(AF_INET6, number, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons((uint16_t)port);
        *storage_bytes = sizeof(*v6);
        *is_loopback = IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
        return 0;
    }
    *wrong = "has a host that is neither a numeric address nor localhost";
    return -EINVAL;
}

/* The address that a socket got, as "host:port". */
static void print_address(int fd, char *out, size_t room)
{
    struct sockaddr_storage storage;
    socklen_t bytes = sizeof(storage);
    char host[HOST_BYTES] = "?";
    out[0] = '\0';
    if (getsockname(fd, (struct sockaddr *)&storage, &bytes) != 0)
        return;
    if (storage.ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)&storage;
        inet_ntop(AF_INET, &v4->sin_addr, host, sizeof(host));
        snprintf(out, room, "%s:%u", host, ntohs(v4->sin_port));
    } else {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&storage;
        inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof(host));
        snprintf(out, room, "[%s]:%u", host, ntohs(v6->sin6_port));
    }
}

/* ---- accepting ---- */

static void on_listener(struct fb_node *node, struct fb_node_watch *watch, uint32_t events)
{
    (void)events;
    struct fb_node_listener *listener = FB_LIST_ITEM(watch, struct fb_node_listener, watch);
    for (unsigned i = 0; i < FB_NODE_ACCEPTS; i++) {
        int fd = accept4(watch->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            fb_node_conn_open(node, fd, listener->is_unix);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
            /* Nothing can be done for the caller: it waits in the backlog. The next sweep looks
             * again. */
            fb_node_watch_set(node, watch, 0);
            node->stats.refused++;
            fb_node_say(node, FB_LOGGER_WARN, "accept_failed", strerror(errno));
        }
        return;
    }
}

static enum fb_node_failure cannot(char *why, size_t why_bytes, const char *what, const char *value,
                                   const char *cure)
{
    snprintf(why, why_bytes, "%s %s: %s; %s", what, value, strerror(errno), cure);
    return FB_NODE_CANNOT_START;
}

static int begin(struct fb_node *node, struct fb_node_listener *listener, int fd, bool is_unix)
{
    listener->watch = (struct fb_node_watch){.fd = fd, .ready = on_listener};
    listener->is_unix = is_unix;
    if (listen(fd, FB_NODE_BACKLOG) != 0)
        return -errno;
    return fb_node_watch_set(node, &listener->watch, EPOLLIN);
}

static enum fb_node_failure listen_tcp(struct fb_node *node, char *why, size_t why_bytes)
{
    const char *text = node->config.listen;
    struct sockaddr_storage storage;
    uint32_t bytes;
    bool is_loopback;
    const char *wrong;
    int rc = fb_node_address_parse(text, &storage, &bytes, &is_loopback, &wrong);
    FB_ASSERT(rc == 0); /* the config was checked */
    int fd = socket(storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int one = 1;
    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (fd < 0 || bind(fd, (struct sockaddr *)&storage, bytes) != 0 ||
        begin(node, &node->tcp, fd, false) != 0) {
        enum fb_node_failure failure = cannot(
            why, why_bytes, "--listen", text,
            errno == EADDRINUSE
                ? "another process listens there: end it, or choose another port (0: a free one)"
                : "choose an address of this machine");
        if (fd >= 0)
            close(fd);
        node->tcp.watch.fd = -1;
        return failure;
    }
    print_address(fd, node->tcp.address, sizeof(node->tcp.address));
    return FB_NODE_OK;
}

static bool is_socket(const char *path)
{
    struct stat status;
    int error = errno;
    bool is = lstat(path, &status) == 0 && S_ISSOCK(status.st_mode);
    errno = error;
    return is;
}

/* A socket file that nobody listens on is what a killed node left: it may go. */
static bool is_left_over(const struct sockaddr_un *address)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return false;
    int rc = connect(fd, (const struct sockaddr *)address, sizeof(*address));
    bool refused = rc != 0 && errno == ECONNREFUSED;
    close(fd);
    return refused && is_socket(address->sun_path);
}

static enum fb_node_failure listen_unix(struct fb_node *node, char *why, size_t why_bytes)
{
    const char *path = node->config.socket_path;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    FB_ASSERT(strlen(path) < sizeof(address.sun_path)); /* the config was checked */
    memcpy(address.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return cannot(why, why_bytes, "--socket", path, "raise the limit of open files");
    /* Only this user may connect: made so before the name is there. */
    mode_t old = umask(S_IRWXG | S_IRWXO);
    int rc = bind(fd, (struct sockaddr *)&address, sizeof(address));
    int error = errno;
    if (rc != 0 && error == EADDRINUSE && is_left_over(&address)) {
        unlink(path);
        rc = bind(fd, (struct sockaddr *)&address, sizeof(address));
        error = errno;
    }
    umask(old);
    errno = error;
    if (rc == 0 && begin(node, &node->local, fd, true) == 0) {
        snprintf(node->local.address, sizeof(node->local.address), "%s", path);
        return FB_NODE_OK;
    }
    const char *cure =
        errno == EADDRINUSE
            ? is_socket(path) ? "another process listens there: end it, or choose another path"
                              : "what is there is no socket: choose another path, or move it away"
        : errno == ENOENT ? "make its directory"
                          : "choose a path that this user may write";
    enum fb_node_failure failure = cannot(why, why_bytes, "--socket", path, cure);
    close(fd);
    node->local.watch.fd = -1;
    return failure;
}

enum fb_node_failure fb_node_listen(struct fb_node *node, char *why, size_t why_bytes)
{
    enum fb_node_failure failure = FB_NODE_OK;
    if (node->config.listen != NULL)
        failure = listen_tcp(node, why, why_bytes);
    if (failure == FB_NODE_OK && node->config.socket_path != NULL)
        failure = listen_unix(node, why, why_bytes);
    return failure;
}

void fb_node_listen_stop(struct fb_node *node)
{
    if (node->local.watch.fd >= 0 && node->local.address[0] != '\0')
        unlink(node->local.address);
    fb_node_watch_close(node, &node->tcp.watch);
    fb_node_watch_close(node, &node->local.watch);
}

const char *fb_node_listen_address(const struct fb_node *node)
{
    return node->tcp.address;
}
