/*
 * One connection: the loop that sends, receives, copies and waits. See conn.h.
 *
 * The bytes of values on a stream go straight between the socket and the caller's buffers; only
 * what happens to arrive in one read with a frame's head is copied.
 */
#include "client/conn.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/bits.h"
#include "base/region.h"
#include "base/result.h"
#include "client/clock.h"
#include "client/copy.h"

#define IOV_PIECES 64
#define DATA_HEAD  (FB_WIRE_HEADER_BYTES + FB_WIRE_DATA_HEAD_BYTES)
/* While DATA comes in, this much of what follows is read along with it. */
#define READ_AHEAD_BYTES FB_KIB(4)
/* So much is copied before answers are sent in between. */
#define COPY_TURN_BYTES FB_MIB(1)
/* Writes before answers are looked at again. */
#define WRITES_PER_TURN 32

/* ---- making and ending ---- */

int fb_client_conn_make(struct fb_client_conn *conn, const struct fb_client_setup *setup,
                        uint64_t nonce)
{
    memset(conn, 0, sizeof(*conn));
    conn->setup = setup;
    conn->fd = -1;
    conn->nonce = nonce;
    conn->memory_bytes = fb_proto_client_footprint(&setup->proto);
    conn->memory = malloc(conn->memory_bytes);
    conn->in = malloc(FB_CLIENT_BUFFER_BYTES);
    conn->out = malloc(FB_CLIENT_BUFFER_BYTES);
    if (conn->memory != NULL && conn->in != NULL && conn->out != NULL)
        return FB_OK;
    fb_client_conn_forget(conn);
    return FB_NO_MEMORY;
}

void fb_client_conn_forget(struct fb_client_conn *conn)
{
    if (conn->fd >= 0)
        close(conn->fd);
    conn->fd = -1;
    conn->map = NULL;
    free(conn->memory);
    free(conn->in);
    free(conn->out);
    conn->memory = NULL;
    conn->in = NULL;
    conn->out = NULL;
}

void fb_client_conn_free(struct fb_client_conn *conn)
{
    fb_client_conn_close(conn);
    fb_client_conn_forget(conn);
}

void fb_client_conn_close(struct fb_client_conn *conn)
{
    if (conn->fd < 0)
        return;
    if (fb_proto_client_state(conn->proto) != FB_PROTO_LOST)
        fb_proto_client_lost(conn->proto, fb_client_now_ns(), FB_CONNECTION, "closed here");
    if (fb_proto_client_owes_memory(conn->proto))
        conn->owed_session = fb_proto_client_welcome(conn->proto)->session;
    close(conn->fd);
    conn->fd = -1;
    if (conn->map == NULL)
        return;
    pthread_mutex_lock(conn->setup->lock);
    fb_client_map_give(conn->setup->maps, conn->map);
    pthread_mutex_unlock(conn->setup->lock);
    conn->map = NULL;
}

/* ---- out ---- */

static void lost(struct fb_client_conn *conn, uint64_t now_ns, const char *why)
{
    fb_proto_client_lost(conn->proto, now_ns, FB_CONNECTION, why);
}

/* Fills the buffer with frames, up to one with payload. */
static void compose(struct fb_client_conn *conn, uint64_t now_ns)
{
    while (conn->payload_left == 0 && conn->out_to < FB_CLIENT_BUFFER_BYTES) {
        struct fb_proto_frame frame;
        if (!fb_proto_client_take_frame(conn->proto, now_ns, conn->out + conn->out_to,
                                        FB_CLIENT_BUFFER_BYTES - conn->out_to, &frame)) {
            FB_ASSERT(!frame.needs_room || conn->out_to > 0);
            return;
        }
        conn->out_to += frame.bytes;
        if (frame.payload_bytes == 0)
            continue;
        conn->payload_left = frame.payload_bytes;
        fb_scatter_begin(&conn->payload, frame.bufs, frame.buf_count, frame.payload_off);
    }
}

/* Pieces of the scatter list, up to `bytes`, as a vector. Does not move it. */
static int pieces_of(const struct fb_scatter *scatter, uint32_t bytes, struct iovec *out, int max)
{
    struct fb_scatter at = *scatter;
    int count = 0;
    while (bytes > 0 && count < max) {
        uint8_t *piece = NULL;
        size_t piece_bytes = fb_scatter_next(&at, bytes, &piece);
        FB_ASSERT(piece_bytes != 0);
        out[count++] = (struct iovec){piece, piece_bytes};
        bytes -= (uint32_t)piece_bytes;
    }
    return count;
}

/* Steps over so many bytes of the scatter list. */
static void step_over(struct fb_scatter *scatter, size_t bytes)
{
    while (bytes > 0) {
        uint8_t *piece = NULL;
        size_t piece_bytes = fb_scatter_next(scatter, bytes, &piece);
        FB_ASSERT(piece_bytes != 0);
        bytes -= piece_bytes;
    }
}

/* One write. Returns false if the socket takes no more, or is gone. */
static bool write_some(struct fb_client_conn *conn, uint64_t now_ns)
{
    struct iovec pieces[IOV_PIECES];
    int count = 0;
    if (conn->out_from < conn->out_to)
        pieces[count++] = (struct iovec){conn->out + conn->out_from, conn->out_to - conn->out_from};
    count += pieces_of(&conn->payload, conn->payload_left, pieces + count, IOV_PIECES - count);
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = (size_t)count};
    ssize_t sent = sendmsg(conn->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
        if (errno != EAGAIN && errno != EINTR)
            lost(conn, now_ns, "the connection broke while sending");
        return errno == EINTR;
    }
    size_t left = (size_t)sent;
    size_t head = fb_min_u64(left, conn->out_to - conn->out_from);
    conn->out_from += head;
    left -= head;
    step_over(&conn->payload, left);
    conn->payload_left -= (uint32_t)left;
    if (conn->out_from == conn->out_to)
        conn->out_from = conn->out_to = 0;
    return true;
}

static bool has_output(const struct fb_client_conn *conn)
{
    return conn->out_from < conn->out_to || conn->payload_left > 0;
}

/*
 * Sends what there is, as far as the socket takes it and for so many writes. What is left is
 * composed, so that has_output() tells of it.
 */
static void pump_out(struct fb_client_conn *conn, uint64_t now_ns)
{
    conn->copied_bytes = 0;
    for (unsigned writes = 0; fb_proto_client_state(conn->proto) != FB_PROTO_LOST; writes++) {
        compose(conn, now_ns);
        if (!has_output(conn) || writes == WRITES_PER_TURN || !write_some(conn, now_ns))
            return;
        now_ns = fb_client_now_ns();
    }
}

/* ---- in ---- */

static void run_jobs(struct fb_client_conn *conn)
{
    struct fb_proto_job job;
    uint64_t leaves[FB_PROTO_LEAVES_MAX];
    while (fb_proto_client_take_job(conn->proto, &job)) {
        FB_ASSERT(conn->map != NULL);
        for (uint32_t i = 0; i < job.run_count; i++) {
            struct fb_wire_run run = fb_wire_run_at(job.runs, i);
            fb_client_map_touch(conn->map, run.off, run.len);
        }
        fb_copy_job(&job, conn->map->base, leaves);
        fb_proto_client_job_done(conn->proto, fb_client_now_ns(), &job, leaves, true);
        conn->copied_bytes += job.part_bytes;
        if (conn->copied_bytes >= COPY_TURN_BYTES) {
            uint64_t now_ns = fb_client_now_ns();
            fb_proto_client_tick(conn->proto, now_ns);
            pump_out(conn, now_ns);
        }
    }
}

/* Bytes of the DATA frame that have come along in the buffer. */
static void take_data(struct fb_client_conn *conn, uint64_t now_ns)
{
    uint32_t bytes = (uint32_t)fb_min_u64(conn->data_left, conn->in_to - conn->in_from);
    if (!conn->data_skip)
        fb_scatter_write(&conn->data_to, conn->in + conn->in_from, bytes);
    conn->in_from += bytes;
    conn->data_left -= bytes;
    if (conn->data_left == 0)
        fb_proto_client_data_end(conn->proto, now_ns, conn->data_skip);
}

static void begin_data(struct fb_client_conn *conn, uint64_t now_ns)
{
    struct fb_proto_sink sink;
    const uint8_t *head = conn->in + conn->in_from;
    if (!fb_proto_client_data_begin(conn->proto, now_ns, head, &sink))
        return;
    conn->in_from += DATA_HEAD;
    conn->data_left = sink.bytes;
    conn->data_skip = sink.bufs == NULL;
    if (!conn->data_skip)
        fb_scatter_begin(&conn->data_to, sink.bufs, sink.buf_count, sink.off);
    take_data(conn, now_ns);
}

/* Takes one frame, or a piece of DATA, out of the buffer. Returns false if there is no whole one.
 */
static bool take_frame(struct fb_client_conn *conn, uint64_t now_ns)
{
    size_t there = conn->in_to - conn->in_from;
    if (conn->data_left > 0) {
        take_data(conn, now_ns);
        return there > 0;
    }
    if (there < FB_WIRE_HEADER_BYTES)
        return false;
    const uint8_t *bytes = conn->in + conn->in_from;
    struct fb_wire_header header;
    const char *bad;
    int result = fb_wire_header_decode(bytes, &header, &bad);
    if (result != FB_OK) {
        fb_proto_client_lost(conn->proto, now_ns, result, bad);
        return false;
    }
    if (header.type == FB_MSG_DATA) {
        if (there < DATA_HEAD)
            return false;
        begin_data(conn, now_ns);
        return true;
    }
    size_t frame_bytes = FB_WIRE_HEADER_BYTES + header.payload_bytes;
    if (there < frame_bytes)
        return false;
    fb_proto_client_input(conn->proto, now_ns, bytes, frame_bytes);
    run_jobs(conn);
    conn->in_from += frame_bytes;
    return true;
}

static bool is_lost(const struct fb_client_conn *conn)
{
    return fb_proto_client_state(conn->proto) == FB_PROTO_LOST;
}

static void take_frames(struct fb_client_conn *conn)
{
    while (!is_lost(conn) && take_frame(conn, fb_client_now_ns()))
        continue;
    size_t left = conn->in_to - conn->in_from;
    if (conn->in_from > 0)
        memmove(conn->in, conn->in + conn->in_from, left);
    conn->in_from = 0;
    conn->in_to = left;
}

/* Where the next bytes belong: the rest of a DATA frame to its buffers, then the buffer. */
static int read_vector(struct fb_client_conn *conn, struct iovec *pieces, size_t *direct_bytes)
{
    *direct_bytes = 0;
    int count = 0;
    if (conn->data_left > 0 && !conn->data_skip) {
        FB_ASSERT(conn->in_to == 0);
        count = pieces_of(&conn->data_to, conn->data_left, pieces, IOV_PIECES - 1);
        for (int i = 0; i < count; i++)
            *direct_bytes += pieces[i].iov_len;
        if (*direct_bytes < conn->data_left)
            return count;
    }
    size_t room = FB_CLIENT_BUFFER_BYTES - conn->in_to;
    if (count > 0)
        room = READ_AHEAD_BYTES;
    pieces[count++] = (struct iovec){conn->in + conn->in_to, room};
    return count;
}

/* One read. Returns false if nothing came. `fd_out`: NULL, or where a descriptor that comes goes.
 */
static bool read_some(struct fb_client_conn *conn, uint64_t now_ns, int *fd_out)
{
    struct iovec pieces[IOV_PIECES];
    size_t direct;
    int count = read_vector(conn, pieces, &direct);
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = (size_t)count};
    if (fd_out != NULL) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof(control.bytes);
    }
    ssize_t got = recvmsg(conn->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got <= 0) {
        if (got == 0 || (errno != EAGAIN && errno != EINTR))
            lost(conn, now_ns, got == 0 ? "the node closed the connection" : strerror(errno));
        return false;
    }
    struct cmsghdr *with = fd_out != NULL ? CMSG_FIRSTHDR(&message) : NULL;
    if (with != NULL && with->cmsg_level == SOL_SOCKET && with->cmsg_type == SCM_RIGHTS &&
        with->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(fd_out, CMSG_DATA(with), sizeof(int));
    size_t left = (size_t)got;
    size_t into_data = fb_min_u64(left, direct);
    if (into_data > 0) {
        step_over(&conn->data_to, into_data);
        conn->data_left -= (uint32_t)into_data;
        if (conn->data_left == 0)
            fb_proto_client_data_end(conn->proto, fb_client_now_ns(), false);
    }
    conn->in_to += left - into_data;
    return true;
}

/* ---- waiting ---- */

/*
 * Sends and receives once, after waiting until `until_ns` at most for something to do. `call`:
 * NULL, or the call in progress, which may end without any answer.
 */
static void turn(struct fb_client_conn *conn, const struct fb_proto_call *call, uint64_t until_ns,
                 int *fd_out)
{
    uint64_t now_ns = fb_client_now_ns();
    pump_out(conn, now_ns);
    if (is_lost(conn) || (call != NULL && fb_proto_call_is_over(call)))
        return;
    if (!read_some(conn, now_ns, fd_out)) {
        if (is_lost(conn))
            return;
        uint64_t next_ns = fb_min_u64(until_ns, fb_proto_client_next_ns(conn->proto));
        short events = POLLIN;
        if (has_output(conn))
            events |= POLLOUT;
        int ready = fb_client_wait(conn->fd, events, next_ns);
        now_ns = fb_client_now_ns();
        if (ready < 0)
            lost(conn, now_ns, "the connection cannot be waited for");
        else if ((ready & (POLLIN | POLLHUP | POLLERR)) != 0)
            read_some(conn, now_ns, fd_out);
    }
    if (conn->in_to > 0)
        take_frames(conn);
    fb_proto_client_tick(conn->proto, fb_client_now_ns());
}

/* ---- opening ---- */

static int refuse(struct fb_client_conn *conn, int result, const char *what)
{
    snprintf(conn->why, sizeof(conn->why), "%.200s: %.300s", conn->setup->address.text, what);
    fb_client_conn_close(conn);
    return result;
}

static void begin_proto(struct fb_client_conn *conn, uint64_t features, uint64_t deadline_ns)
{
    struct fb_proto_config config = conn->setup->proto;
    config.features = features;
    config.nonce = conn->nonce;
    config.ended_session = conn->owed_session;
    struct fb_region region;
    fb_region_init(&region, conn->memory, conn->memory_bytes);
    conn->proto = fb_proto_client_init(&config, &region);
    conn->in_from = conn->in_to = conn->out_from = conn->out_to = 0;
    conn->data_left = conn->payload_left = 0;
    conn->why[0] = '\0';
    fb_proto_client_start(conn->proto, fb_client_now_ns(), deadline_ns);
}

/* Runs the opening dialogue up to `state`, or to the end of the connection. */
static int open_until(struct fb_client_conn *conn, enum fb_proto_state state, uint64_t deadline_ns,
                      int *fd_out)
{
    while (fb_proto_client_state(conn->proto) < state) {
        if (fb_client_now_ns() >= deadline_ns)
            return refuse(conn, FB_DEADLINE, "the node does not answer in time");
        turn(conn, NULL, deadline_ns, fd_out);
    }
    if (!is_lost(conn))
        return FB_OK;
    char why[FB_WHY_BYTES];
    snprintf(why, sizeof(why), "%s", fb_proto_client_why(conn->proto));
    return refuse(conn, fb_proto_client_result(conn->proto), why);
}

/* After WELCOME: the pool, if both sides agreed on it. */
static int take_pool(struct fb_client_conn *conn, int memory_fd)
{
    const struct fb_msg_welcome *welcome = fb_proto_client_welcome(conn->proto);
    if ((welcome->features & FB_FEATURE_SHM) == 0) {
        if (memory_fd >= 0)
            close(memory_fd);
        if (conn->setup->use_shm == FB_SHM_ON)
            return refuse(conn, FB_UNSUPPORTED,
                          "the node offers no shared memory: it does so over a Unix socket, to its "
                          "own user");
        return FB_OK;
    }
    if (memory_fd < 0)
        return refuse(conn, FB_UNSUPPORTED,
                      "the node's shared memory did not come with its answer");
    const char *why = NULL;
    pthread_mutex_lock(conn->setup->lock);
    int result =
        fb_client_map_take(conn->setup->maps, memory_fd, welcome->pool_bytes, &conn->map, &why);
    pthread_mutex_unlock(conn->setup->lock);
    if (result != FB_OK)
        return refuse(conn, result, why);
    return FB_OK;
}

static int try_open(struct fb_client_conn *conn, uint64_t features, uint64_t deadline_ns)
{
    int fd = fb_client_address_connect(&conn->setup->address, deadline_ns);
    if (fd < 0) {
        snprintf(conn->why, sizeof(conn->why),
                 "%.200s: cannot connect: %.80s; is forebayd running there?",
                 conn->setup->address.text, strerror(-fd));
        int result = fb_result_from_errno(fd);
        return result == FB_IO ? FB_CONNECTION : result;
    }
    conn->fd = fd;
    begin_proto(conn, features, deadline_ns);
    int memory_fd = -1;
    bool may_get_fd = conn->setup->address.is_unix;
    int result = open_until(conn, FB_PROTO_OPENING, deadline_ns, may_get_fd ? &memory_fd : NULL);
    if (result != FB_OK) {
        if (memory_fd >= 0)
            close(memory_fd);
        return result;
    }
    result = take_pool(conn, memory_fd);
    if (result == FB_OK)
        result = open_until(conn, FB_PROTO_READY, deadline_ns, NULL);
    if (result == FB_OK)
        conn->owed_session = 0;
    return result;
}

int fb_client_conn_open(struct fb_client_conn *conn, uint64_t deadline_ns)
{
    FB_ASSERT(conn->fd < 0);
    enum fb_shm_use use = conn->setup->use_shm;
    if (use == FB_SHM_ON && !conn->setup->address.is_unix) {
        snprintf(conn->why, sizeof(conn->why),
                 "%.200s: shared memory was asked for, and needs a Unix socket: use unix:/path",
                 conn->setup->address.text);
        return FB_UNSUPPORTED;
    }
    bool offer = use != FB_SHM_OFF && conn->setup->address.is_unix;
    int result = try_open(conn, FB_FEATURE_HOLDS | (offer ? FB_FEATURE_SHM : 0), deadline_ns);
    /* Its memory cannot be used here, and nobody insisted: over the socket then. */
    if (result == FB_UNSUPPORTED && offer && use == FB_SHM_AUTO)
        result = try_open(conn, FB_FEATURE_HOLDS, deadline_ns);
    return result;
}

/* ---- calls ---- */

bool fb_client_conn_is_usable(struct fb_client_conn *conn)
{
    if (conn->fd < 0)
        return false;
    uint64_t now_ns = fb_client_now_ns();
    while (!is_lost(conn)) {
        if (!read_some(conn, now_ns, NULL))
            break;
        take_frames(conn);
    }
    if (!is_lost(conn)) {
        pump_out(conn, now_ns);
        const struct fb_msg_welcome *welcome = fb_proto_client_welcome(conn->proto);
        /* Too much of the credit is with operations of calls that gave up. */
        if (fb_proto_client_open_ops(conn->proto) * 2 <= welcome->op_credit)
            return true;
    }
    fb_client_conn_close(conn);
    return false;
}

/* The call is over; whatever of it is still half way through the socket must not be touched. */
static void settle(struct fb_client_conn *conn, const struct fb_proto_call *call)
{
    uint64_t now_ns = fb_client_now_ns();
    pump_out(conn, now_ns);
    if (!is_lost(conn) && conn->payload_left > 0)
        lost(conn, now_ns, "a call ended in the middle of a frame");
    if (!is_lost(conn) && call->is_abandoned && fb_proto_client_open_ops(conn->proto) > 0)
        lost(conn, now_ns, "the node did not answer in time");
    if (is_lost(conn))
        fb_client_conn_close(conn);
    else
        FB_ASSERT(conn->data_left == 0); /* its get would still be open */
}

void fb_client_conn_run(struct fb_client_conn *conn, struct fb_proto_call *call)
{
    FB_ASSERT(conn->fd >= 0);
    fb_proto_client_begin(conn->proto, fb_client_now_ns(), call);
    while (!fb_proto_call_is_over(call)) {
        FB_ASSERT(!is_lost(conn));
        turn(conn, call, UINT64_MAX, NULL);
    }
    settle(conn, call);
}
