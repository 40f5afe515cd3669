/*
 * /metrics and /health, by libmicrohttpd on a thread of its own. It reads the last snapshot and an
 * atomic; it never asks the data thread for anything, so a stuck node still says that it is stuck.
 */
#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/bits.h"
#include "node/node_private.h"

#define PAGE_BYTES      (96u * 1024)
#define CONNECTIONS_MAX 256
#define CONNECTIONS_MIN 16
/* Without a byte. What is half sent must not keep others from /health until somebody restarts a
 * node that is well. */
#define TIMEOUT_S         3
#define CONNECTION_MEMORY (16u * 1024)
/* A page of metrics is of a moment after its request: the data thread is woken for it, and a turn
 * takes less than this. */
#define SETTLE_NS (2 * FB_NODE_PUBLISH_NS + FB_MS_NS)

struct fb_node_admin {
    struct MHD_Daemon *daemon;
    char address[FB_NODE_ADDRESS_BYTES];
};

static void settle(struct fb_node *node)
{
    atomic_store(&node->snapshot_wanted, true);
    fb_node_wake(node);
    struct timespec left = {.tv_nsec = (long)SETTLE_NS};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        continue;
}

static enum MHD_Result reply(struct MHD_Connection *connection, unsigned status, const char *type,
                             char *page, size_t bytes)
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer(bytes, page, MHD_RESPMEM_MUST_FREE);
    if (response == NULL) {
        free(page);
        return MHD_NO;
    }
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    enum MHD_Result result = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return result;
}

/* Fills a page; returns the HTTP status. */
static unsigned compose(struct fb_node *node, const char *url, struct fb_node_text *text,
                        const char **type)
{
    *type = "application/json";
    bool metrics = strcmp(url, "/metrics") == 0;
    if (!metrics && strcmp(url, "/health") != 0) {
        fb_node_print(text, "{\"error\":\"there are /metrics and /health\"}\n");
        return MHD_HTTP_NOT_FOUND;
    }
    if (metrics)
        settle(node);
    struct fb_node_snapshot snapshot;
    fb_node_snapshot_get(node, &snapshot);
    uint64_t age = fb_sub_floored(fb_node_now_ns(), atomic_load(&node->last_turn_ns));
    if (!metrics)
        return fb_node_health(&snapshot, age, text);
    *type = "text/plain; version=0.0.4";
    fb_node_metrics(&snapshot, &node->facts, age, text);
    return text->is_cut ? MHD_HTTP_INTERNAL_SERVER_ERROR : MHD_HTTP_OK;
}

static enum MHD_Result answer(void *context, struct MHD_Connection *connection, const char *url,
                              const char *method, const char *version, const char *upload,
                              size_t *upload_bytes, void **state)
{
    (void)version;
    (void)upload;
    /* The first call of a request has only its head; the page is made on the second. */
    static const char seen;
    if (*state == NULL) {
        *state = (void *)(uintptr_t)&seen;
        return MHD_YES;
    }
    if (*upload_bytes != 0) {
        *upload_bytes = 0;
        return MHD_YES;
    }
    struct fb_node_text text = {.at = malloc(PAGE_BYTES), .room = PAGE_BYTES};
    if (text.at == NULL)
        return MHD_NO;
    const char *type = "application/json";
    unsigned status = MHD_HTTP_METHOD_NOT_ALLOWED;
    if (strcmp(method, MHD_HTTP_METHOD_GET) == 0 || strcmp(method, MHD_HTTP_METHOD_HEAD) == 0)
        status = compose(context, url, &text, &type);
    else
        fb_node_print(&text, "{\"error\":\"there are GET and HEAD\"}\n");
    return reply(connection, status, type, text.at, text.used);
}

/* Where it listens, with the port that it got. */
static void note_address(struct fb_node_admin *admin, const char *text)
{
    const union MHD_DaemonInfo *info =
        MHD_get_daemon_info(admin->daemon, MHD_DAEMON_INFO_BIND_PORT);
    const char *colon = strrchr(text, ':');
    FB_ASSERT(colon != NULL);
    snprintf(admin->address, sizeof(admin->address), "%.*s:%u",
             (int)fb_min_u64((uint64_t)(colon - text), 64), text, info != NULL ? info->port : 0);
}

/* Descriptors that clients of the store are not counted on. */
static unsigned connections_max(const struct fb_node *node)
{
    struct rlimit limit;
    uint64_t others = fb_node_descriptors(&node->config);
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return CONNECTIONS_MIN;
    uint64_t left = fb_sub_floored(limit.rlim_cur, others);
    return (unsigned)fb_max_u64(fb_min_u64(left, CONNECTIONS_MAX), CONNECTIONS_MIN);
}

static struct MHD_Daemon *start(struct fb_node *node, const struct sockaddr *address, bool is_v6)
{
    unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL | (is_v6 ? MHD_USE_IPv6 : 0);
    /* The thread takes no signals: they are the daemon's. */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    struct MHD_Daemon *daemon =
        MHD_start_daemon(flags, 0, NULL, NULL, answer, node, MHD_OPTION_SOCK_ADDR, address,
                         MHD_OPTION_CONNECTION_LIMIT, connections_max(node),
                         MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)TIMEOUT_S,
                         MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY,
                         MHD_OPTION_LISTENING_ADDRESS_REUSE, 1u, MHD_OPTION_END);
    int error = errno;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    errno = error;
    return daemon;
}

/* Whether the address can be had, by trying: the library says only that it failed. */
static int try_bind(const struct sockaddr *address, uint32_t bytes)
{
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int one = 1;
    int rc = 0;
    if (fd < 0)
        return -errno;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(fd, address, bytes) != 0 || listen(fd, 1) != 0)
        rc = -errno;
    close(fd);
    return rc;
}

enum fb_node_failure fb_node_admin_start(struct fb_node *node, char *why, size_t why_bytes)
{
    const char *text = node->config.admin;
    if (text == NULL)
        return FB_NODE_OK;
    struct sockaddr_storage storage;
    uint32_t bytes;
    bool is_loopback;
    const char *wrong;
    int rc = fb_node_address_parse(text, &storage, &bytes, &is_loopback, &wrong);
    FB_ASSERT(rc == 0); /* the config was checked */
    rc = try_bind((struct sockaddr *)&storage, bytes);
    node->admin = rc == 0 ? calloc(1, sizeof(*node->admin)) : NULL;
    if (node->admin != NULL)
        node->admin->daemon =
            start(node, (struct sockaddr *)&storage, storage.ss_family == AF_INET6);
    if (node->admin != NULL && node->admin->daemon != NULL) {
        note_address(node->admin, text);
        return FB_NODE_OK;
    }
    free(node->admin);
    node->admin = NULL;
    snprintf(why, why_bytes, "--admin %s: %s; %s", text,
             rc != 0 ? strerror(-rc) : "no thread or memory for it",
             rc == -EADDRINUSE
                 ? "another process listens there: end it, or choose another port (0: a free one)"
                 : "choose an address of this machine, or none");
    return FB_NODE_CANNOT_START;
}

void fb_node_admin_stop(struct fb_node *node)
{
    if (node->admin == NULL)
        return;
    MHD_stop_daemon(node->admin->daemon);
    free(node->admin);
    node->admin = NULL;
}

const char *fb_node_admin_address(const struct fb_node *node)
{
    return node->admin != NULL ? node->admin->address : "";
}
