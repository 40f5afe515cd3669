/*
 * node_private.h - what the files of a node share.
 */
#ifndef FB_NODE_NODE_PRIVATE_H
#define FB_NODE_NODE_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "base/list.h"
#include "engine/shard.h"
#include "io/device.h"
#include "io/io.h"
#include "io/open.h"
#include "node/node.h"
#include "proto/server.h"

/* ---- limits ---- */

#define FB_NODE_EVENTS       64         /* of one epoll_wait */
#define FB_NODE_REAP         64         /* finished requests taken at once */
#define FB_NODE_SUBMIT_MAX   256        /* requests handed to the I/O seam in one turn */
#define FB_NODE_BUFFER_BYTES FB_KIB(32) /* of a connection: what frames are collected in */
#define FB_NODE_BIG_FRAMES   32u        /* frames longer than that which are collected at once */
#define FB_NODE_TAIL_BYTES   256u       /* read behind the bytes of DATA: the next frame's head */
#define FB_NODE_IOV_MAX      64u
#define FB_NODE_BACKLOG      256
#define FB_NODE_ACCEPTS      16             /* connections taken in one turn */
#define FB_NODE_SWEEP_NS     FB_SEC_NS      /* between two looks at all connections */
#define FB_NODE_PUBLISH_NS   (2 * FB_MS_NS) /* between two snapshots of a busy node */
/* After its last turn, if nobody asks sooner. To wake up sooner by itself costs each short wait the
 * setting of a timer: measured, 2 us of a get's 14. */
#define FB_NODE_PUBLISH_LATE_NS (20 * FB_MS_NS)
#define FB_NODE_HELLO_NS        (5 * FB_SEC_NS)
#define FB_NODE_FRAME_NS        (30 * FB_SEC_NS)
#define FB_NODE_OUTPUT_NS       (30 * FB_SEC_NS)
#define FB_NODE_CHUNK_NS        (30 * FB_SEC_NS) /* for a chunk that a reader was given */
#define FB_NODE_LINGER_NS       FB_SEC_NS        /* after an ERROR, until the socket is closed */
#define FB_NODE_FAREWELL_NS     (200 * FB_MS_NS) /* for the last words of a node that ends */
#define FB_NODE_STUCK_NS        (5 * FB_SEC_NS)  /* a shard whose last turn is older is stuck */
#define FB_NODE_FAULT_BYTES     FB_MIB(32)       /* pool memory faulted in at once */
#define FB_NODE_FLOOR_MS        1000             /* between two looks at the free space */
#define FB_NODE_PEER_TEXT_BYTES 96
#define FB_NODE_LOG_BURST       200
#define FB_NODE_LOG_PER_SECOND  20
#define FB_NODE_PATH_BYTES      FB_DEVICE_PATH_BYTES_MAX

/* ---- what epoll waits for ---- */

struct fb_node_watch {
    void (*ready)(struct fb_node *node, struct fb_node_watch *watch, uint32_t events);
    int fd;          /* -1: not watched */
    uint32_t events; /* armed */
};

/* ---- memory of the pool ---- */

struct fb_node_pool {
    int fd;
    uint8_t *base;
    uint64_t bytes;
    bool huge;                   /* of huge pages that were set aside */
    _Atomic uint64_t huge_bytes; /* backed by huge pages, of either kind */
    _Atomic uint64_t faulted;    /* bytes, from the start, that are backed by memory */
    _Atomic int fault_errno;     /* why faulting in ended early; 0 */
};

/* The thread for what blocks: faults the pool in, looks at the free space of the disk. */
struct fb_node_helper {
    pthread_t thread;
    bool running;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stop; /* under lock */
    _Atomic int below_floor;
};

/* ---- connections ---- */

struct fb_node_conn {
    struct fb_node_watch socket;
    struct fb_node_watch process; /* pidfd of a client with shared memory */
    struct fb_link all;           /* on node->conns, or node->zombies when the socket is closed */
    struct fb_link ready;         /* on node->ready: has work that no descriptor will tell of */
    struct fb_link waiting;       /* on node->big_waiters */
    struct fb_proto_session *session;
    void *memory; /* the session's */
    uint8_t *buffer;
    uint32_t have, room;
    bool is_unix, handed; /* handed: the pool's descriptor was sent */
    bool is_closed;
    uint64_t accepted_ns, input_ns, output_ns, closing_ns;
    uint64_t chunks_ns,
        chunks_done; /* when a chunk was last given back, or none was out; so many */
    pid_t pid;
    uid_t uid;
    char peer[FB_NODE_PEER_TEXT_BYTES];
    uint8_t small[FB_NODE_BUFFER_BYTES]; /* the last: it is not cleared */
};

struct fb_node_listener {
    struct fb_node_watch watch;
    bool is_unix;
    char address[FB_NODE_ADDRESS_BYTES];
};

/* ---- figures ---- */

/* Counters of the node itself; the data thread's. */
struct fb_node_stats {
    uint64_t accepted, refused, closed, cut_hello, cut_frame, cut_output, cut_chunk, errors;
    uint64_t turns, turn_max_ns, notices;
    uint64_t connections, zombies; /* now */
    uint64_t big_frames;           /* now */
};

/* All that /metrics, /health and STATUS say, at one moment. */
struct fb_node_snapshot {
    uint64_t taken_ns, started_ns;
    int ready; /* as fb_shard_ready() */
    bool draining;
    enum fb_tier_state tier;
    uint64_t faulted_bytes, huge_bytes;
    struct fb_shard_stats shard;
    struct fb_log_stats log;
    struct fb_io_stats io;
    struct fb_proto_server_stats proto;
    struct fb_node_stats node;
    uint64_t log_lines_suppressed;
    bool has_device, is_direct;
    uint64_t memory_plan_bytes;
};

/* What stays as it was at start; read by any thread. */
struct fb_node_facts {
    char io_name[32];
    char ssd_path[FB_NODE_PATH_BYTES];
    uint64_t ssd_cap_bytes, ssd_floor_bytes;
    uint64_t node_id, boot_nonce;
    uint64_t pool_bytes, index_bytes, plan_bytes;
    uint64_t value_bytes_max;
    enum fb_value_limit value_limit;
    uint32_t chunk_bytes, sessions_max, namespaces_max;
    bool huge_pages, is_direct, has_device;
};

struct fb_node_admin;

struct fb_node {
    struct fb_node_config config;
    struct fb_node_facts facts;
    struct fb_logger logger;
    int epoll;
    struct fb_node_watch wake; /* an eventfd: stop, or news of the helper */
    struct fb_node_watch io_ready;
    _Atomic unsigned stops; /* how often fb_node_stop() was called */
    _Atomic uint64_t last_turn_ns;

    struct fb_node_pool pool;
    struct fb_node_helper helper;
    struct fb_device device;
    bool has_device;
    struct fb_io *io;
    uint64_t io_pending; /* requests that were submitted and have not come back */
    bool io_told;        /* its descriptor became readable */
    void *shard_memory, *meta, *server_memory;
    size_t shard_bytes, meta_bytes, server_bytes;
    struct fb_shard *shard;
    struct fb_proto_server *server;
    struct fb_shard_config shard_config;

    struct fb_node_listener tcp, local;
    struct fb_list conns, zombies, ready, big_waiters;
    uint32_t big_frames;
    uint64_t next_session;

    struct fb_node_stats stats;
    uint64_t started_ns, next_sweep_ns, published_ns;
    bool unpublished;            /* turns since the last snapshot */
    atomic_bool snapshot_wanted; /* by the admin thread, which has written to the eventfd */
    uint64_t told_faulted;
    bool told_fault_error, told_floor, told_limits, was_ready;
    enum fb_tier_state told_tier;
    bool draining, finished;
    uint64_t drain_begun_ns, drain_until_ns, drain_dirty_bytes;
    enum fb_node_failure failure;
    char why[FB_NODE_WHY_BYTES];

    pthread_mutex_t snapshot_lock; /* held for a copy, never longer */
    struct fb_node_snapshot snapshot;
    struct fb_node_admin *admin;
};

/* ---- loop.c ---- */

/* Now, in nanoseconds of the monotonic clock. */
uint64_t fb_node_now_ns(void);
/* Wakes the data thread; from any thread, and from a signal. */
void fb_node_wake(struct fb_node *node);
/* Now, in milliseconds of the wall clock. */
uint64_t fb_node_wall_ms(void);
/* Has epoll wait for `events` of a descriptor; 0 events: for nothing. 0 or -errno. */
int fb_node_watch_set(struct fb_node *node, struct fb_node_watch *watch, uint32_t events);
/* Stops waiting, closes the descriptor. */
void fb_node_watch_close(struct fb_node *node, struct fb_node_watch *watch);

/* ---- conn.c ---- */

/* A connection was accepted: takes the descriptor over. */
void fb_node_conn_open(struct fb_node *node, int fd, bool is_unix);
/* Sends what waits, and takes input again if the session can. */
void fb_node_conn_news(struct fb_node *node, struct fb_node_conn *conn);
/* Goes on with what its last turn left. */
void fb_node_conn_turn(struct fb_node *node, struct fb_node_conn *conn);
/* Deadlines of one connection. */
void fb_node_conn_sweep(struct fb_node *node, struct fb_node_conn *conn, uint64_t now_ns);
/* Ends a connection; what is left of its session stays as a zombie until the shard lets go. */
void fb_node_conn_close(struct fb_node *node, struct fb_node_conn *conn);
/* Frees connections that are over. */
void fb_node_conn_bury(struct fb_node *node);
/* Frees all that are closed, whatever the shard still holds of them: the shard goes too. */
void fb_node_conn_drop(struct fb_node *node);

/* ---- listen.c ---- */

/* Opens both addresses. FB_NODE_OK, or why not. */
enum fb_node_failure fb_node_listen(struct fb_node *node, char *why, size_t why_bytes);
/* Takes no more connections. */
void fb_node_listen_stop(struct fb_node *node);
/* Parses "host:port", where host is numeric, in brackets for IPv6, or localhost. 0, or -EINVAL with
 * a clause. */
int fb_node_address_parse(const char *text, void *storage, uint32_t *storage_bytes,
                          bool *is_loopback, const char **wrong);

/* ---- shm.c ---- */

/* The pool as a sealed memfd, of huge pages where there are enough. 0 or -errno. */
int fb_node_pool_make(struct fb_node_pool *pool, uint64_t bytes);
/* Unmaps and closes it. */
void fb_node_pool_free(struct fb_node_pool *pool);
/* Backs the next piece with memory; returns false when all is, or none is to be had. Blocks. */
bool fb_node_pool_fault(struct fb_node_pool *pool);
/* A descriptor that is readable once the peer of a Unix socket is dead, or -1 if it cannot be had.
 */
int fb_node_peer_pidfd(int fd, pid_t pid);
struct iovec;
/* Sends bytes, and a descriptor (-1: none) with the first of them. As sendmsg(), never blocking. */
ssize_t fb_node_send(int fd, const struct iovec *iov, size_t count, int passed_fd);

/* ---- helper.c ---- */

/* Starts the helper thread; 0 or -errno. */
int fb_node_helper_start(struct fb_node *node);
/* Ends it. */
void fb_node_helper_stop(struct fb_node *node);
/* The data thread takes up what the helper found. */
void fb_node_helper_news(struct fb_node *node, uint64_t now_ns);

/* ---- limit.c ---- */

/* Bytes of memory that this process may have, 0 if unknown; *from says by whose limit. */
uint64_t fb_node_memory_limit(const char **from);

/* ---- start.c ---- */

/* Descriptors that the node's own things and its clients may take; those of the admin address come
 * on top. */
uint64_t fb_node_descriptors(const struct fb_node_config *config);

/* One structured line. */
void fb_node_say(struct fb_node *node, enum fb_logger_level level, const char *event,
                 const char *text);

/* ---- publish.c ---- */

/* Takes a snapshot if it is time; `force`: in any case. */
void fb_node_publish(struct fb_node *node, uint64_t now_ns, bool force);
/* The last snapshot. From any thread. */
void fb_node_snapshot_get(struct fb_node *node, struct fb_node_snapshot *out);

/* ---- text of metrics, status and health ---- */

struct fb_node_text {
    char *at;
    size_t used, room;
    bool is_cut;
};
/* Appends; what does not fit is left out whole. */
void fb_node_print(struct fb_node_text *text, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Appends a JSON string, quotes included. */
void fb_node_print_json(struct fb_node_text *text, const char *string);
/* The page of /metrics. */
void fb_node_metrics(const struct fb_node_snapshot *snapshot, const struct fb_node_facts *facts,
                     uint64_t turn_age_ns, struct fb_node_text *text);
/* The JSON of STATUS. */
void fb_node_status(const struct fb_node_snapshot *snapshot, const struct fb_node_facts *facts,
                    struct fb_node_text *text);
/* The JSON of /health; returns the HTTP status. */
unsigned fb_node_health(const struct fb_node_snapshot *snapshot, uint64_t turn_age_ns,
                        struct fb_node_text *text);
/* "on", "fenced", ... */
const char *fb_node_tier_name(enum fb_tier_state tier);
/* The setting that makes the limit of a value: "pool", "ssd-cap", ...; "format" if none does. */
const char *fb_node_value_limit_name(enum fb_value_limit limit);

/* ---- admin.c ---- */

/* Serves config.admin on a thread of its own. FB_NODE_OK, or why not. */
enum fb_node_failure fb_node_admin_start(struct fb_node *node, char *why, size_t why_bytes);
/* Ends it. */
void fb_node_admin_stop(struct fb_node *node);

#endif
