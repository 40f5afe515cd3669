/*
 * conn.h - one connection of a handle: a socket around proto/client.
 *
 * Used by one thread at a time, which does everything: sends, receives, copies, waits. Nothing
 * happens on a connection between calls. After a loss it can be opened again, as its own successor:
 * the node then knows that the memory it had out is not touched any more.
 */
#ifndef FB_CLIENT_CONN_H
#define FB_CLIENT_CONN_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/address.h"
#include "client/shm.h"
#include "proto/client.h"
#include "proto/scatter.h"

#define FB_CLIENT_BUFFER_BYTES FB_FRAME_BYTES_MAX

/* What all connections of a handle have in common. */
struct fb_client_setup {
    struct fb_client_address address;
    struct fb_proto_config proto;
    uint8_t fields[FB_NAMESPACE_BYTES_MAX];
    char name[FB_WIRE_NAME_MAX + 1];
    enum fb_shm_use use_shm;
    pthread_mutex_t *lock; /* guards `maps` */
    struct fb_client_maps *maps;
};

struct fb_client_conn {
    const struct fb_client_setup *setup;
    int fd; /* -1: not open */
    struct fb_proto_client *proto;
    void *memory; /* of proto */
    size_t memory_bytes;
    uint64_t nonce;
    uint64_t owed_session; /* to be named when it is opened again; 0: none */
    struct fb_client_map *map;
    /* in: bytes [in_from, in_to) were received and not taken */
    uint8_t *in;
    size_t in_from, in_to;
    /* the DATA frame that is being received */
    uint32_t data_left;
    bool data_skip;
    struct fb_scatter data_to;
    /* out: bytes [out_from, out_to), then payload of the caller's */
    uint8_t *out;
    size_t out_from, out_to;
    uint32_t payload_left;
    struct fb_scatter payload;
    uint64_t copied_bytes; /* since the last look at what is to be sent */
    char why[FB_WHY_BYTES];
};

/* Makes a connection that is not open. Returns 0 or FB_NO_MEMORY. */
int fb_client_conn_make(struct fb_client_conn *conn, const struct fb_client_setup *setup,
                        uint64_t nonce);

/* Closes and frees it. The caller does not hold the lock of the setup. */
void fb_client_conn_free(struct fb_client_conn *conn);

/*
 * In a forked child: closes the descriptor and frees the memory, and does nothing that the parent's
 * connection could notice.
 */
void fb_client_conn_forget(struct fb_client_conn *conn);

/*
 * Connects, says HELLO, maps the pool, opens the namespace. Returns 0, or why not, with one line in
 * conn->why. Blocks up to `deadline_ns`.
 */
int fb_client_conn_open(struct fb_client_conn *conn, uint64_t deadline_ns);

/* Closes the socket. */
void fb_client_conn_close(struct fb_client_conn *conn);

/* True if it is open and the node has not closed its end. Takes what the node has sent meanwhile.
 */
bool fb_client_conn_is_usable(struct fb_client_conn *conn);

/*
 * Does a call. Every key has its result when this returns, and nothing touches the caller's memory
 * any more. The connection may be closed afterwards. Blocks up to the call's deadline and
 * FB_ABORT_BOUND_MS.
 */
void fb_client_conn_run(struct fb_client_conn *conn, struct fb_proto_call *call);

#endif
