/* Handles: opening, closing, lending connections, forks. See handle.h. */
#include "client/handle.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/bits.h"
#include "base/prng.h"
#include "base/result.h"
#include "client/clock.h"

#define CONNECT_TIMEOUT_MS     5000u
#define CONNECT_TIMEOUT_MS_MAX 3600000u
#define COMMIT_DELAY_MS_MAX    600000u

/* ---- options ---- */

static int refuse(char *why, size_t why_bytes, const char *text)
{
    if (why != NULL)
        snprintf(why, why_bytes, "%s", text);
    return FB_BAD_ARGUMENT;
}

static bool is_empty(const struct fb_namespace_fields *ns)
{
    const char *const fields[] = {ns->model,  ns->weights,  ns->adapter, ns->dtype,
                                  ns->layout, ns->parallel, ns->salt};
    for (size_t i = 0; i < FB_ARRAY_COUNT(fields); i++) {
        if (fields[i] != NULL && fields[i][0] != '\0')
            return false;
    }
    return true;
}

static int check_options(const struct fb_client_options *options, char *why, size_t why_bytes)
{
    if (options->struct_bytes != sizeof(*options))
        return refuse(why, why_bytes,
                      "struct_bytes is not the size of the options: call fb_client_options_init(), "
                      "and build against the header of this library");
    if (options->use_shm > FB_SHM_OFF)
        return refuse(why, why_bytes, "use_shm is none of auto, on and off");
    if (options->connections_max > FB_CONNECTIONS_MAX)
        return refuse(why, why_bytes, "connections_max is above the limit of 64");
    if (options->connect_timeout_ms > CONNECT_TIMEOUT_MS_MAX)
        return refuse(why, why_bytes, "connect_timeout_ms is above the limit of one hour");
    if (options->commit_delay_ms > COMMIT_DELAY_MS_MAX)
        return refuse(why, why_bytes, "commit_delay_ms is above the limit of ten minutes");
    if (options->no_namespace && !is_empty(&options->ns))
        return refuse(why, why_bytes, "no_namespace is set, and a namespace is given");
    return FB_OK;
}

static int set_namespace(struct fb_client *client, const struct fb_client_options *options,
                         char *why, size_t why_bytes)
{
    client->has_namespace = !options->no_namespace;
    if (options->no_namespace)
        return FB_OK;
    const char *what = NULL;
    int bytes = fb_proto_namespace_fields(&options->ns, client->setup.fields, &what);
    if (bytes < 0) {
        refuse(why, why_bytes, what);
        return bytes;
    }
    client->setup.proto.fields = client->setup.fields;
    client->setup.proto.fields_bytes = (uint32_t)bytes;
    client->setup.proto.quota_dram_bytes = options->quota_dram_bytes;
    client->setup.proto.quota_ssd_bytes = options->quota_ssd_bytes;
    return FB_OK;
}

static int set_address(struct fb_client *client, const struct fb_client_options *options, char *why,
                       size_t why_bytes)
{
    const char *address = options->address;
    if (address == NULL || address[0] == '\0')
        address = getenv("FOREBAY_ADDRESS");
    if (address == NULL || address[0] == '\0')
        address = FB_DEFAULT_ADDRESS;
    return fb_client_address_parse(address, &client->setup.address, why, why_bytes);
}

/* ---- this process ---- */

static void make_lock(struct fb_client *client)
{
    pthread_condattr_t attributes;
    int failed = pthread_mutex_init(&client->lock, NULL);
    failed |= pthread_condattr_init(&attributes);
    failed |= pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    failed |= pthread_cond_init(&client->freed, &attributes);
    FB_ASSERT(failed == 0);
    pthread_condattr_destroy(&attributes);
}

/* A number that no other process has; not a secret. */
static uint64_t make_nonce(void)
{
    uint64_t nonce = 0;
    if (getrandom(&nonce, sizeof(nonce), GRND_NONBLOCK) != (ssize_t)sizeof(nonce))
        nonce = fb_mix64(fb_client_now_ns()) ^ fb_mix64((uint64_t)getpid());
    return nonce;
}

/* What of the parent's the child has got. */
static void drop_inherited(struct fb_client *client)
{
    for (uint32_t i = 0; i < client->connections_max; i++) {
        struct fb_client_conn *conn = client->lent[i].conn;
        client->lent[i] = (struct fb_client_lent){.conn = NULL};
        if (conn == NULL)
            continue;
        fb_client_conn_forget(conn);
        free(conn);
    }
    fb_client_maps_forget(&client->maps);
}

void fb_client_handle_enter(struct fb_client *client)
{
    int self = (int)getpid();
    int owner = atomic_load_explicit(&client->owner, memory_order_acquire);
    while (owner != self) {
        if (owner == -self) { /* another thread is at it */
            sched_yield();
            owner = atomic_load_explicit(&client->owner, memory_order_acquire);
            continue;
        }
        if (!atomic_compare_exchange_strong(&client->owner, &owner, -self))
            continue;
        make_lock(client);
        drop_inherited(client);
        client->nonce = make_nonce();
        client->setup.proto.pid = (uint32_t)self;
        atomic_store_explicit(&client->owner, self, memory_order_release);
        return;
    }
}

/* ---- lending ---- */

/*
 * The place to take: one that owes memory first, so that it is given back; then one that is open;
 * then one that is not. -1 if all are busy.
 */
static int pick(const struct fb_client *client)
{
    int best = -1;
    int best_rank = -1;
    for (uint32_t i = 0; i < client->connections_max; i++) {
        const struct fb_client_lent *lent = &client->lent[i];
        if (lent->busy)
            continue;
        int rank = 0;
        if (lent->conn != NULL)
            rank = lent->conn->owed_session != 0 ? 3 : lent->conn->fd >= 0 ? 2 : 1;
        if (rank > best_rank) {
            best = (int)i;
            best_rank = rank;
        }
    }
    return best;
}

/* Takes a place for this thread. Returns its number, or FB_DEADLINE. */
static int take_place(struct fb_client *client, uint64_t deadline_ns)
{
    struct timespec until = {.tv_sec = (time_t)(deadline_ns / FB_SEC_NS),
                             .tv_nsec = (long)(deadline_ns % FB_SEC_NS)};
    pthread_mutex_lock(&client->lock);
    int place;
    while ((place = pick(client)) < 0) {
        if (pthread_cond_timedwait(&client->freed, &client->lock, &until) == ETIMEDOUT) {
            place = pick(client);
            break;
        }
    }
    if (place >= 0)
        client->lent[place].busy = true;
    pthread_mutex_unlock(&client->lock);
    return place >= 0 ? place : FB_DEADLINE;
}

static void give_place(struct fb_client *client, int place)
{
    pthread_mutex_lock(&client->lock);
    FB_ASSERT(client->lent[place].busy);
    client->lent[place].busy = false;
    pthread_cond_signal(&client->freed);
    pthread_mutex_unlock(&client->lock);
}

static int make_conn(struct fb_client *client, int place)
{
    struct fb_client_conn *conn = calloc(1, sizeof(*conn));
    if (conn == NULL)
        return FB_NO_MEMORY;
    /* A number of its own, so that a successor can only ever name this connection's session. */
    uint64_t nonce = fb_mix64(client->nonce + (uint64_t)place + 1);
    int result = fb_client_conn_make(conn, &client->setup, nonce);
    if (result != FB_OK) {
        free(conn);
        return result;
    }
    pthread_mutex_lock(&client->lock);
    client->lent[place].conn = conn;
    pthread_mutex_unlock(&client->lock);
    return FB_OK;
}

static int open_conn(struct fb_client *client, struct fb_client_conn *conn, uint64_t deadline_ns)
{
    if (fb_client_conn_is_usable(conn))
        return FB_OK;
    uint64_t limit_ns = fb_client_now_ns() + client->connect_timeout_ms * FB_MS_NS;
    return fb_client_conn_open(conn, fb_min_u64(limit_ns, deadline_ns));
}

int fb_client_handle_borrow(struct fb_client *client, uint64_t deadline_ns,
                            struct fb_client_conn **out, char *why, size_t why_bytes)
{
    int place = take_place(client, deadline_ns);
    if (place < 0) {
        if (why != NULL)
            snprintf(why, why_bytes, "all connections are in use");
        return place;
    }
    int result = FB_OK;
    if (client->lent[place].conn == NULL)
        result = make_conn(client, place);
    if (result == FB_OK)
        result = open_conn(client, client->lent[place].conn, deadline_ns);
    if (result == FB_OK) {
        *out = client->lent[place].conn;
        atomic_store(&client->value_bytes_max,
                     fb_proto_client_welcome((*out)->proto)->value_bytes_max);
        return FB_OK;
    }
    const struct fb_client_conn *conn = client->lent[place].conn;
    if (why != NULL)
        snprintf(why, why_bytes, "%s", conn == NULL ? "no memory" : conn->why);
    give_place(client, place);
    return result;
}

void fb_client_handle_return(struct fb_client *client, struct fb_client_conn *conn)
{
    pthread_mutex_lock(&client->lock);
    uint32_t place = 0;
    while (client->lent[place].conn != conn) {
        place++;
        FB_ASSERT(place < client->connections_max);
    }
    FB_ASSERT(client->lent[place].busy);
    client->lent[place].busy = false;
    pthread_cond_signal(&client->freed);
    pthread_mutex_unlock(&client->lock);
}

uint64_t fb_client_handle_epoch(struct fb_client *client)
{
    pthread_mutex_lock(&client->lock);
    uint64_t epoch = client->epoch;
    pthread_mutex_unlock(&client->lock);
    return epoch;
}

void fb_client_handle_set_epoch(struct fb_client *client, uint64_t epoch)
{
    pthread_mutex_lock(&client->lock);
    client->epoch = epoch;
    pthread_mutex_unlock(&client->lock);
}

/* ---- opening and closing ---- */

static int setup(struct fb_client *client, const struct fb_client_options *options, char *why,
                 size_t why_bytes)
{
    int result = check_options(options, why, why_bytes);
    if (result == FB_OK)
        result = set_namespace(client, options, why, why_bytes);
    if (result == FB_OK)
        result = set_address(client, options, why, why_bytes);
    if (result != FB_OK)
        return result;
    const char *name = options->name != NULL ? options->name : program_invocation_short_name;
    snprintf(client->setup.name, sizeof(client->setup.name), "%s", name);
    client->setup.proto.name = client->setup.name;
    client->setup.proto.pid = (uint32_t)getpid();
    client->setup.proto.inline_bytes_max = FB_WIRE_INLINE_MAX;
    client->setup.proto.commit_delay_ns = options->commit_delay_ms * FB_MS_NS;
    client->setup.use_shm = options->use_shm;
    client->setup.lock = &client->lock;
    client->setup.maps = &client->maps;
    client->connections_max =
        options->connections_max == 0 ? FB_CONNECTIONS_DEFAULT : options->connections_max;
    client->connect_timeout_ms =
        options->connect_timeout_ms == 0 ? CONNECT_TIMEOUT_MS : options->connect_timeout_ms;
    client->nonce = make_nonce();
    return FB_OK;
}

int fb_client_open(const struct fb_client_options *options, struct fb_client **out, char *why,
                   size_t why_bytes)
{
    *out = NULL;
    if (why_bytes == 0)
        why = NULL;
    struct fb_client *client = calloc(1, sizeof(*client));
    if (client == NULL) {
        refuse(why, why_bytes, "no memory");
        return FB_NO_MEMORY;
    }
    atomic_init(&client->owner, (int)getpid());
    make_lock(client);
    struct fb_client_conn *conn = NULL;
    int result = setup(client, options, why, why_bytes);
    if (result == FB_OK) {
        uint64_t limit_ns = fb_client_now_ns() + client->connect_timeout_ms * FB_MS_NS;
        result = fb_client_handle_borrow(client, limit_ns, &conn, why, why_bytes);
    }
    if (result != FB_OK) {
        fb_client_close(client);
        return result;
    }
    client->epoch = fb_proto_client_epoch(conn->proto);
    fb_client_handle_return(client, conn);
    *out = client;
    return FB_OK;
}

void fb_client_close(struct fb_client *client)
{
    if (client == NULL)
        return;
    fb_client_handle_enter(client);
    for (uint32_t i = 0; i < client->connections_max; i++) {
        struct fb_client_lent *lent = &client->lent[i];
        FB_ASSERT(!lent->busy);
        if (lent->conn == NULL)
            continue;
        fb_client_conn_free(lent->conn);
        free(lent->conn);
    }
    FB_ASSERT(client->maps.first == NULL);
    pthread_cond_destroy(&client->freed);
    pthread_mutex_destroy(&client->lock);
    free(client);
}

bool fb_client_uses_shm(struct fb_client *client)
{
    fb_client_handle_enter(client);
    pthread_mutex_lock(&client->lock);
    bool uses = client->maps.first != NULL;
    pthread_mutex_unlock(&client->lock);
    return uses;
}

uint64_t fb_client_value_bytes_max(struct fb_client *client)
{
    return atomic_load(&client->value_bytes_max);
}
