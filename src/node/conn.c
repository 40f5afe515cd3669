/*
 * Connections: bytes between sockets, sessions and the pool, in bounded turns.
 *
 * A connection that has more to do than its turn allows goes to the end of node->ready; one whose
 * session is paused is not read from; one whose client does not read is not written to until epoll
 * says so. So neither a fast client nor a stuck one takes the thread from the others.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/bits.h"
#include "base/result.h"
#include "node/node_private.h"

#define SOCKET_BUFFER_BYTES (512 * 1024) /* of a Unix socket; TCP finds its own */
#define SCRATCH_BYTES       (16 * 1024)  /* what is thrown away is read in such pieces */

_Static_assert(FB_NODE_BUFFER_BYTES >
                   FB_WIRE_HEADER_BYTES + FB_WIRE_DATA_HEAD_BYTES + FB_NODE_TAIL_BYTES,
               "any head fits, and a tail behind it");

/* ---- big frames ---- */

/* Room for a frame of `bytes`; false if it must wait for another connection's. */
static bool make_room(struct fb_node *node, struct fb_node_conn *conn, uint32_t bytes)
{
    if (bytes <= conn->room)
        return true;
    FB_ASSERT(bytes <= FB_FRAME_BYTES_MAX && conn->buffer == conn->small);
    uint8_t *big = node->big_frames < FB_NODE_BIG_FRAMES ? malloc(FB_FRAME_BYTES_MAX) : NULL;
    if (big == NULL) {
        if (!fb_link_is_linked(&conn->waiting))
            fb_list_push_back(&node->big_waiters, &conn->waiting);
        return false;
    }
    fb_list_remove(&conn->waiting);
    node->big_frames++;
    memcpy(big, conn->small, conn->have);
    conn->buffer = big;
    conn->room = FB_FRAME_BYTES_MAX;
    return true;
}

static void drop_big(struct fb_node *node, struct fb_node_conn *conn)
{
    if (conn->buffer == conn->small)
        return;
    free(conn->buffer);
    conn->buffer = conn->small;
    conn->room = sizeof(conn->small);
    node->big_frames--;
    struct fb_link *link = fb_list_pop_front(&node->big_waiters);
    if (link != NULL) {
        struct fb_node_conn *next = FB_LIST_ITEM(link, struct fb_node_conn, waiting);
        if (!fb_link_is_linked(&next->ready))
            fb_list_push_back(&node->ready, &next->ready);
    }
}

/* The long frame was taken: back to the small buffer, if what is left fits there. */
static void shrink(struct fb_node *node, struct fb_node_conn *conn)
{
    if (conn->buffer == conn->small || conn->have > sizeof(conn->small))
        return;
    memcpy(conn->small, conn->buffer, conn->have);
    drop_big(node, conn);
}

/* ---- what epoll is to wait for ---- */

static void arm(struct fb_node *node, struct fb_node_conn *conn)
{
    if (conn->is_closed)
        return;
    bool wants_in =
        !fb_proto_session_is_paused(conn->session) && !fb_link_is_linked(&conn->waiting);
    bool wants_out = fb_proto_session_queued(conn->session) > 0;
    uint32_t events = (wants_in ? EPOLLIN : 0) | (wants_out ? EPOLLOUT : 0);
    if (events != conn->socket.events && fb_node_watch_set(node, &conn->socket, events) != 0)
        fb_node_conn_close(node, conn);
}

static void again(struct fb_node *node, struct fb_node_conn *conn)
{
    if (!fb_link_is_linked(&conn->ready))
        fb_list_push_back(&node->ready, &conn->ready);
}

/* ---- out ---- */

/* The last bytes of an ERROR are out: the peer gets the time to read them before the socket goes.
 */
static void half_close(struct fb_node_conn *conn, uint64_t now_ns)
{
    if (conn->closing_ns == 0) {
        conn->closing_ns = now_ns;
        shutdown(conn->socket.fd, SHUT_WR);
    }
}

/* Sends until the socket or the turn is full. */
static void flush(struct fb_node *node, struct fb_node_conn *conn)
{
    uint64_t now = fb_node_now_ns();
    uint64_t budget = FB_TURN_BYTES_MAX;
    while (budget > 0) {
        struct fb_slice slices[FB_NODE_IOV_MAX];
        struct iovec iov[FB_NODE_IOV_MAX];
        size_t count = fb_proto_session_slices(conn->session, slices, FB_NODE_IOV_MAX);
        if (count == 0)
            break;
        for (size_t i = 0; i < count; i++)
            iov[i] = (struct iovec){.iov_base = (void *)(uintptr_t)slices[i].at,
                                    .iov_len = slices[i].len};
        bool hand = !conn->handed && fb_proto_session_uses_shm(conn->session);
        ssize_t sent = fb_node_send(conn->socket.fd, iov, count, hand ? node->pool.fd : -1);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (sent < 0) {
            fb_node_conn_close(node, conn);
            return;
        }
        conn->handed = conn->handed || hand;
        conn->output_ns = now;
        fb_proto_session_sent(conn->session, now, (uint64_t)sent);
        budget -= fb_min_u64(budget, (uint64_t)sent);
    }
    if (budget == 0)
        again(node, conn);
    else if (fb_proto_session_is_closing(conn->session))
        half_close(conn, now);
}

/* ---- in ---- */

enum step {
    STEP_ON,
    STEP_WAIT,
    STEP_END
};

/* What one connection may do before others get their turn. */
struct turn {
    uint64_t budget; /* bytes */
    bool is_empty;   /* the last read gave less than was asked: there is nothing more now */
};

static enum step read_result(struct fb_node_conn *conn, ssize_t got, uint64_t now)
{
    if (got > 0) {
        conn->input_ns = now;
        return STEP_ON;
    }
    if (got < 0 && errno == EINTR)
        return STEP_ON;
    return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? STEP_WAIT : STEP_END;
}

/* Bytes of DATA, from the socket straight into the pool; the head of the next frame comes with
 * them. */
static enum step read_data(const struct fb_node *node, struct fb_node_conn *conn, uint64_t now,
                           struct turn *turn)
{
    struct fb_io_vec runs[FB_NODE_IOV_MAX - 1];
    struct iovec iov[FB_NODE_IOV_MAX];
    uint8_t scratch[SCRATCH_BYTES];
    uint32_t left = fb_proto_session_data_left(conn->session);
    size_t count = fb_proto_session_data_runs(conn->session, runs, FB_NODE_IOV_MAX - 1);
    uint64_t wanted = 0;
    FB_ASSERT(conn->have == 0);
    for (size_t i = 0; i < count; i++) {
        iov[i] = (struct iovec){.iov_base = node->pool.base + runs[i].off, .iov_len = runs[i].len};
        wanted += runs[i].len;
    }
    if (count == 0) {
        wanted = fb_min_u64(left, sizeof(scratch));
        iov[count++] = (struct iovec){.iov_base = scratch, .iov_len = wanted};
    }
    if (wanted == left)
        iov[count++] = (struct iovec){.iov_base = conn->buffer, .iov_len = FB_NODE_TAIL_BYTES};
    uint64_t asked = wanted == left ? wanted + FB_NODE_TAIL_BYTES : wanted;
    ssize_t got = readv(conn->socket.fd, iov, (int)count);
    enum step step = read_result(conn, got, now);
    if (step != STEP_ON || got <= 0)
        return step;
    uint64_t moved = fb_min_u64((uint64_t)got, wanted);
    conn->have = (uint32_t)((uint64_t)got - moved);
    fb_proto_session_data_moved(conn->session, now, (uint32_t)moved);
    turn->budget -= fb_min_u64(turn->budget, (uint64_t)got);
    turn->is_empty = (uint64_t)got < asked;
    return STEP_ON;
}

/* Frames that are at hand, then more bytes. */
static enum step read_frames(struct fb_node *node, struct fb_node_conn *conn, uint64_t now,
                             struct turn *turn)
{
    if (conn->have > 0) {
        size_t taken = fb_proto_session_input(conn->session, now, conn->buffer, conn->have);
        if (taken > 0) {
            conn->have -= (uint32_t)taken;
            memmove(conn->buffer, conn->buffer + taken, conn->have);
            shrink(node, conn);
            turn->budget -= fb_min_u64(turn->budget, taken);
            return STEP_ON;
        }
        if (fb_proto_session_is_paused(conn->session) || fb_proto_session_is_closing(conn->session))
            return STEP_WAIT;
    }
    uint32_t wants =
        (uint32_t)fb_max_u64(fb_proto_session_wants(conn->session), FB_WIRE_HEADER_BYTES);
    if (!make_room(node, conn, wants))
        return STEP_WAIT;
    if (conn->have >= wants)
        return STEP_ON; /* it was paused, and is not any more */
    if (turn->is_empty)
        return STEP_WAIT; /* epoll tells of more */
    uint32_t room = conn->room - conn->have;
    ssize_t got = read(conn->socket.fd, conn->buffer + conn->have, room);
    enum step step = read_result(conn, got, now);
    turn->is_empty = got > 0 && (uint32_t)got < room;
    if (got > 0)
        conn->have += (uint32_t)got;
    return step;
}

/* After an ERROR nothing is taken any more; what still comes is read, so that the peer is not cut
 * off by a reset before it has read the ERROR. */
static enum step throw_away(struct fb_node_conn *conn, uint64_t now, struct turn *turn)
{
    uint8_t scratch[SCRATCH_BYTES];
    conn->have = 0;
    ssize_t got = read(conn->socket.fd, scratch, sizeof(scratch));
    turn->budget -= fb_min_u64(turn->budget, got > 0 ? (uint64_t)got : 0);
    return read_result(conn, got, now);
}

static void take_input(struct fb_node *node, struct fb_node_conn *conn)
{
    uint64_t begun = fb_node_now_ns();
    uint64_t now = begun;
    struct turn turn = {.budget = FB_TURN_BYTES_MAX};
    enum step step = STEP_ON;
    while (step == STEP_ON) {
        if (turn.budget == 0 || now - begun > FB_TURN_NS_MAX) {
            again(node, conn);
            break;
        }
        if (fb_proto_session_is_closing(conn->session))
            step = throw_away(conn, now, &turn);
        else if (fb_proto_session_data_left(conn->session) > 0)
            step = read_data(node, conn, now, &turn);
        else
            step = read_frames(node, conn, now, &turn);
        now = fb_node_now_ns();
    }
    if (step == STEP_END)
        fb_node_conn_close(node, conn);
}

void fb_node_conn_turn(struct fb_node *node, struct fb_node_conn *conn)
{
    if (!conn->is_closed)
        take_input(node, conn);
    fb_proto_server_pump(node->server, fb_node_now_ns());
    fb_node_conn_news(node, conn);
}

void fb_node_conn_news(struct fb_node *node, struct fb_node_conn *conn)
{
    if (!conn->is_closed)
        flush(node, conn);
    /* Frames that were refused for want of room lie in the buffer: no descriptor will tell of them.
     */
    if (!conn->is_closed && conn->have > 0 && !fb_proto_session_is_paused(conn->session) &&
        !fb_link_is_linked(&conn->waiting) && conn->have >= fb_proto_session_wants(conn->session))
        again(node, conn);
    arm(node, conn);
}

static void on_socket(struct fb_node *node, struct fb_node_watch *watch, uint32_t events)
{
    struct fb_node_conn *conn = FB_LIST_ITEM(watch, struct fb_node_conn, socket);
    bool is_over = (events & (EPOLLHUP | EPOLLERR)) != 0;
    /* Epoll tells of a peer that is gone whether asked or not: who may not be read from cannot
     * wait. */
    if (is_over && !conn->is_closed && (conn->socket.events & EPOLLIN) == 0)
        fb_node_conn_close(node, conn);
    if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0)
        fb_node_conn_turn(node, conn);
    else
        fb_node_conn_news(node, conn);
}

/* ---- the start ---- */

static void on_process(struct fb_node *node, struct fb_node_watch *watch, uint32_t events)
{
    (void)events;
    struct fb_node_conn *conn = FB_LIST_ITEM(watch, struct fb_node_conn, process);
    fb_node_watch_close(node, watch);
    uint64_t now = fb_node_now_ns();
    /* Dead, though a child may hold a copy of the socket. */
    if (!conn->is_closed)
        fb_node_conn_close(node, conn);
    fb_proto_session_proven(conn->session, now);
}

/* Who is at the other end; a pidfd if it may share memory. */
static void identify(struct fb_node *node, struct fb_node_conn *conn)
{
    int fd = conn->socket.fd;
    if (!conn->is_unix) {
        int on = 1;
        unsigned ms = (unsigned)(FB_NODE_OUTPUT_NS / FB_MS_NS);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
        setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof(ms));
        snprintf(conn->peer, sizeof(conn->peer), "tcp");
        return;
    }
    int bytes = SOCKET_BUFFER_BYTES;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
    struct ucred peer = {.pid = 0, .uid = (uid_t)-1};
    socklen_t length = sizeof(peer);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0)
        return;
    conn->pid = peer.pid;
    conn->uid = peer.uid;
    snprintf(conn->peer, sizeof(conn->peer), "pid %d, uid %u", (int)peer.pid, (unsigned)peer.uid);
    if (!node->config.no_shm && peer.uid == geteuid())
        conn->process.fd = fb_node_peer_pidfd(fd, peer.pid);
}

static void free_conn(struct fb_node_conn *conn)
{
    free(conn->memory);
    free(conn);
}

static struct fb_node_conn *new_conn(struct fb_node *node, int fd, bool is_unix)
{
    struct fb_node_conn *conn =
        aligned_alloc(FB_CACHE_LINE, fb_align_up(sizeof(*conn), FB_CACHE_LINE));
    size_t bytes = fb_align_up(fb_proto_session_footprint(node->server), FB_CACHE_LINE);
    void *memory = conn != NULL ? aligned_alloc(FB_CACHE_LINE, bytes) : NULL;
    if (memory == NULL) {
        free(conn);
        return NULL;
    }
    memset(conn, 0, offsetof(struct fb_node_conn, small));
    conn->memory = memory;
    conn->socket = (struct fb_node_watch){.fd = fd, .ready = on_socket};
    conn->process = (struct fb_node_watch){.fd = -1, .ready = on_process};
    conn->buffer = conn->small;
    conn->room = sizeof(conn->small);
    conn->is_unix = is_unix;
    conn->accepted_ns = conn->input_ns = conn->output_ns = fb_node_now_ns();
    fb_link_init(&conn->all);
    fb_link_init(&conn->ready);
    fb_link_init(&conn->waiting);
    return conn;
}

/* One ERROR, without a session: there is no room for one. */
static void turn_away(struct fb_node *node, int fd, int result, const char *text)
{
    uint8_t frame[FB_WIRE_HEADER_BYTES + FB_WIRE_TEXT_MAX];
    struct fb_writer writer;
    fb_writer_init(&writer, frame, sizeof(frame));
    size_t at = fb_wire_frame_begin(&writer);
    struct fb_msg_error error = {.result = result,
                                 .text_bytes = (uint16_t)strlen(text),
                                 .text = (const uint8_t *)text};
    fb_wire_error_encode(&writer, &error);
    fb_wire_frame_end(&writer, at, FB_MSG_ERROR, 0, 0, 0);
    ssize_t n = send(fd, frame, writer.at_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)n; /* a courtesy */
    shutdown(fd, SHUT_WR);
    close(fd);
    node->stats.refused++;
}

void fb_node_conn_open(struct fb_node *node, int fd, bool is_unix)
{
    if (node->stats.connections + node->stats.zombies >= node->config.sessions_max) {
        turn_away(node, fd, FB_BUSY, "the node has as many sessions as --sessions allows");
        return;
    }
    struct fb_node_conn *conn = new_conn(node, fd, is_unix);
    if (conn == NULL) {
        turn_away(node, fd, FB_NO_MEMORY, "no memory for a session");
        return;
    }
    identify(node, conn);
    struct fb_region region;
    fb_region_init(&region, conn->memory, fb_proto_session_footprint(node->server));
    conn->session = fb_proto_session_init(node->server, &region, node->next_session++,
                                          conn->process.fd >= 0, (uint64_t)(uintptr_t)conn);
    node->stats.accepted++;
    node->stats.connections++;
    fb_list_push_back(&node->conns, &conn->all);
    if (fb_node_watch_set(node, &conn->socket, EPOLLIN) != 0 ||
        (conn->process.fd >= 0 && fb_node_watch_set(node, &conn->process, EPOLLIN) != 0))
        fb_node_conn_close(node, conn);
}

/* ---- the end ---- */

void fb_node_conn_close(struct fb_node *node, struct fb_node_conn *conn)
{
    if (conn->is_closed)
        return;
    conn->is_closed = true;
    const char *error = fb_proto_session_error(conn->session);
    if (error[0] != '\0') {
        struct fb_logger_line line;
        fb_logger_begin(&line, FB_LOGGER_WARN, "session_refused");
        fb_logger_text(&line, "peer", conn->peer);
        fb_logger_text(&line, "name", fb_proto_session_name(conn->session));
        fb_logger_text(&line, "why", error);
        fb_logger_write(&node->logger, &line, fb_node_now_ns());
        node->stats.errors++;
    }
    drop_big(node, conn);
    fb_list_remove(&conn->waiting);
    fb_list_remove(&conn->ready);
    fb_node_watch_close(node, &conn->socket);
    /* Whoever never had the memory cannot touch it. */
    bool proven = !fb_proto_session_uses_shm(conn->session);
    fb_proto_session_end(conn->session, fb_node_now_ns(), proven);
    if (proven)
        fb_node_watch_close(node, &conn->process);
    fb_list_remove(&conn->all);
    fb_list_push_back(&node->zombies, &conn->all);
    node->stats.closed++;
    node->stats.connections--;
    node->stats.zombies++;
}

void fb_node_conn_bury(struct fb_node *node)
{
    FB_LIST_FOREACH_SAFE (link, next, &node->zombies) {
        struct fb_node_conn *conn = FB_LIST_ITEM(link, struct fb_node_conn, all);
        if (!fb_proto_session_is_idle(conn->session))
            continue;
        fb_node_watch_close(node, &conn->process);
        fb_proto_session_fini(conn->session);
        fb_list_remove(&conn->all);
        node->stats.zombies--;
        free_conn(conn);
    }
}

void fb_node_conn_drop(struct fb_node *node)
{
    struct fb_link *link;
    while ((link = fb_list_pop_front(&node->zombies)) != NULL) {
        struct fb_node_conn *conn = FB_LIST_ITEM(link, struct fb_node_conn, all);
        fb_node_watch_close(node, &conn->process);
        free_conn(conn);
    }
}

/* True if the client was given chunks of a value, and has given none back for too long: it is
 * stopped, or forgets, and keeps memory and a part of the readers' window from others. */
static bool is_sitting_on_chunks(struct fb_node_conn *conn, uint64_t now_ns)
{
    uint64_t done;
    bool owes = fb_proto_session_owes_chunks(conn->session, &done);
    if (!owes || done != conn->chunks_done)
        conn->chunks_ns = now_ns;
    conn->chunks_done = done;
    return now_ns - conn->chunks_ns > FB_NODE_CHUNK_NS;
}

void fb_node_conn_sweep(struct fb_node *node, struct fb_node_conn *conn, uint64_t now_ns)
{
    struct fb_proto_session *session = conn->session;
    if (conn->closing_ns != 0) {
        if (now_ns - conn->closing_ns > FB_NODE_LINGER_NS)
            fb_node_conn_close(node, conn);
        return;
    }
    const char *why = NULL;
    if (fb_proto_session_queued(session) == 0)
        conn->output_ns = now_ns;
    bool in_frame = conn->have > 0 || fb_proto_session_data_left(session) > 0;
    if (fb_proto_session_queued(session) > 0 && now_ns - conn->output_ns > FB_NODE_OUTPUT_NS) {
        node->stats.cut_output++;
        fb_node_conn_close(node, conn); /* it does not read: no words would reach it */
        return;
    }
    if (is_sitting_on_chunks(conn, now_ns)) {
        why = "a chunk that was given was not given back for 30 s";
        node->stats.cut_chunk++;
    } else if (!fb_proto_session_is_open(session) &&
               now_ns - conn->accepted_ns > FB_NODE_HELLO_NS) {
        why = "no HELLO within 5 s";
        node->stats.cut_hello++;
    } else if (in_frame && !fb_proto_session_is_paused(session) &&
               !fb_link_is_linked(&conn->waiting) && now_ns - conn->input_ns > FB_NODE_FRAME_NS) {
        why = "a frame that was begun did not go on for 30 s";
        node->stats.cut_frame++;
    }
    if (why != NULL)
        fb_proto_session_refuse(session, FB_DEADLINE, why);
}
