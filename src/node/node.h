/*
 * node.h - a node: one shard, its device, its memory, and the connections that use them. A library:
 * the daemon in src/server is one user of it, an engine's process that lends its memory another.
 *
 * Threads: the caller of fb_node_run() is the data thread; nothing else touches shard, I/O or
 * sessions. A helper faults the pool in and watches the free space of the disk. With an admin
 * address, libmicrohttpd serves /metrics and /health on a thread of its own from what the data
 * thread published last. fb_node_stop() may be called from anywhere.
 */
#ifndef FB_NODE_NODE_H
#define FB_NODE_NODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/limits.h"
#include "base/logger.h"

#define FB_NODE_WHY_BYTES         1536 /* room that any message fits into */
#define FB_NODE_ADDRESS_BYTES     128
#define FB_NODE_POOL_BYTES_MIN    FB_MIB(16)
#define FB_NODE_POOL_STEP_BYTES   FB_MIB(2)
#define FB_NODE_SESSIONS_DEFAULT  256u
#define FB_NODE_NAMESPACES_MAX    4096u
#define FB_NODE_INDEX_DEFAULT_MIN 65536u
#define FB_NODE_HEARTBEAT_MS      5000u

/* What a node is made of. Strings are borrowed until fb_node_free(). 0 and NULL: the default, or
 * none. */
struct fb_node_config {
    const char *listen;      /* "host:port" for TCP; NULL: none */
    const char *socket_path; /* of a Unix socket; NULL: none */
    const char *admin;       /* "host:port" of /metrics and /health; NULL: none */
    bool insecure_bind;      /* listen and admin may be other than loopback, without credentials */
    bool no_shm;             /* no shared memory for clients */

    uint64_t pool_bytes;    /* a multiple of 2 MiB */
    uint32_t index_entries; /* 0: from the sizes of pool and device */

    const char *ssd_path; /* file, block device, or directory; NULL: DRAM alone */
    uint64_t ssd_cap_bytes;
    uint64_t ssd_floor_bytes;
    bool no_direct;       /* the operator allows the page cache */
    bool format;          /* the operator allows to overwrite what is there */
    const char *io;       /* "auto", "uring", "posix"; in test builds "forget" */
    const char *io_fault; /* test builds: a script of faults */
    uint8_t persist;      /* enum fb_persist */

    uint64_t node_id; /* 0: 1 */
    uint32_t drain_ms, lease_ms, hold_ms, sessions_max, watermark_pct;
    uint32_t namespaces_max;           /* 0: 1024. At most FB_NODE_NAMESPACES_MAX */
    uint64_t device_write_bytes_per_s; /* a guess to begin with */

    enum fb_logger_level log_level;
    fb_logger_sink *log_sink; /* safe for several threads; must not block for long */
    void *log_context;
    /* Called once, on the data thread, when operations are served: recovery is over. */
    void (*ready)(void *context);
    void *ready_context;
};

/* How a node's start or run can fail. */
enum fb_node_failure {
    FB_NODE_OK,
    FB_NODE_FAILED,       /* while it ran */
    FB_NODE_BAD_CONFIG,   /* the settings cannot be used */
    FB_NODE_CANNOT_START, /* the settings may be right: a device, an address, memory is not to be
                             had */
};

struct fb_node;

/*
 * Fills in what was left to the default and checks the rest without touching the system. Returns
 * FB_NODE_OK, or FB_NODE_BAD_CONFIG with one line in `why` that names the setting, its value, the
 * limit and the cure.
 */
enum fb_node_failure fb_node_config_check(struct fb_node_config *config, char *why,
                                          size_t why_bytes);

/*
 * Makes a node of a checked config: memory, device, I/O, addresses; says in one line each what was
 * chosen. Returns FB_NODE_OK and sets *out, or says why not in one line. Blocks: for a device's
 * lock up to 5 s.
 */
enum fb_node_failure fb_node_make(const struct fb_node_config *config, struct fb_node **out,
                                  char *why, size_t why_bytes);

/*
 * Serves until fb_node_stop(). Returns FB_NODE_OK after a drain, or what failed, with one line in
 * `why`: FB_NODE_CANNOT_START if what is on the device cannot be used.
 */
enum fb_node_failure fb_node_run(struct fb_node *node, char *why, size_t why_bytes);

/*
 * First call: takes no new connections and puts, persists what is dirty for up to drain_ms, then
 * ends the run. Second call: ends it at once. From any thread, and from a signal handler.
 */
void fb_node_stop(struct fb_node *node);

/* Ends everything that is left of a node, after fb_node_run() or instead of it. NULL is allowed. */
void fb_node_free(struct fb_node *node);

/* Finds a persist mode by its name: auto, off, evict, behind, through. Returns false if there is
 * none. */
bool fb_node_persist_find(const char *name, uint8_t *persist);

/* Where the node listens for TCP, as "host:port", with the port that it got; "" if it does not. */
const char *fb_node_listen_address(const struct fb_node *node);

/* Where /metrics and /health are; "" if nowhere. */
const char *fb_node_admin_address(const struct fb_node *node);

#endif
