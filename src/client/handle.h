/*
 * handle.h - what struct fb_client is: a setup, and connections that are lent to calls.
 *
 * The lock guards the connections' states and the mappings, and is never held while waiting for a
 * node. A connection that is lent belongs to its borrower alone.
 *
 * A handle belongs to one process. A child that finds itself with its parent's handle takes it over
 * at its first call: descriptors are closed (the parent's stay open), mappings are not there, the
 * lock is made anew, since a thread that the child does not have may have held it.
 */
#ifndef FB_CLIENT_HANDLE_H
#define FB_CLIENT_HANDLE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/conn.h"
#include "forebay/forebay.h"

struct fb_client_lent {
    struct fb_client_conn *conn; /* NULL: was never needed */
    bool busy;
};

struct fb_client {
    _Atomic int owner; /* pid; negative while that process takes it over */
    pthread_mutex_t lock;
    pthread_cond_t freed;
    struct fb_client_setup setup;
    struct fb_client_maps maps;
    uint64_t nonce; /* of this process */
    uint32_t connect_timeout_ms;
    bool has_namespace;
    uint64_t epoch;
    _Atomic uint64_t value_bytes_max; /* as the newest connection's node said */
    uint32_t connections_max;
    struct fb_client_lent lent[FB_CONNECTIONS_MAX];
};

/* Makes the handle this process' own, if a fork has come between. Before anything else. */
void fb_client_handle_enter(struct fb_client *client);

/*
 * Borrows a connection that is open. Waits for one up to `deadline_ns`. Returns 0, or
 * FB_CONNECTION, FB_DEADLINE, FB_NO_MEMORY, ...; `why` (may be NULL) has a line then.
 */
int fb_client_handle_borrow(struct fb_client *client, uint64_t deadline_ns,
                            struct fb_client_conn **out, char *why, size_t why_bytes);

/* Gives it back. */
void fb_client_handle_return(struct fb_client *client, struct fb_client_conn *conn);

/* The epoch for which calls of this handle are made. */
uint64_t fb_client_handle_epoch(struct fb_client *client);

/* Moves the handle to an epoch. */
void fb_client_handle_set_epoch(struct fb_client *client, uint64_t epoch);

#endif
