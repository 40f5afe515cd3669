/* A small node. See small_node.h. */
#include "test/lib/small_node.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/bits.h"
#include "base/reason.h"
#include "base/result.h"
#include "proto/wire.h"

#define KEYS_MAX   4096
#define PUTS_MAX   64
#define GENERATION (UINT64_C(1) << 40)

struct value {
    uint8_t key[FB_KEY_BYTES_MAX];
    size_t key_bytes;
    struct fb_digest digest;
    uint64_t generation;
    uint8_t *bytes;
    uint64_t value_bytes;
};

struct put {
    uint64_t op;
    uint8_t key[FB_KEY_BYTES_MAX];
    size_t key_bytes;
    uint64_t value_bytes;
    uint64_t generation;
    uint8_t *bytes; /* stream, and the copy of what lies in the pool */
    uint64_t pool_off;
};

struct conn {
    struct small_node *node;
    pthread_t thread;
    int fd;
    bool used, shares;
    struct put put[PUTS_MAX];
};

struct small_node {
    struct small_node_options options;
    int listener;
    pthread_t acceptor;
    atomic_int mood;
    atomic_bool stop;
    atomic_uint sessions, ended, open;
    pthread_mutex_t lock;
    struct value *values;
    size_t count;
    uint64_t generation;
    uint64_t epoch;
    int memory_fd;
    uint8_t *pool;
    uint64_t pool_used;
    struct conn conns[SMALL_NODE_CONNS_MAX];
    uint8_t ns_id[16];
    uint8_t secret[16];
};

/* ---- bytes ---- */

static bool send_all(struct conn *conn, const void *bytes, size_t count)
{
    const uint8_t *at = bytes;
    while (count > 0) {
        bool dribble = atomic_load(&conn->node->mood) == SMALL_NODE_DRIBBLES;
        size_t step = dribble ? fb_min_u64(count, 1 + count % 977) : count;
        ssize_t sent = send(conn->fd, at, step, MSG_NOSIGNAL);
        if (sent <= 0)
            return false;
        at += sent;
        count -= (size_t)sent;
    }
    return true;
}

static bool receive_all(struct conn *conn, void *bytes, size_t count)
{
    uint8_t *at = bytes;
    while (count > 0) {
        ssize_t got = recv(conn->fd, at, count, 0);
        if (got <= 0)
            return false;
        at += got;
        count -= (size_t)got;
    }
    return true;
}

/* Reads and ignores until the other end closes. */
static bool be_silent(struct conn *conn)
{
    uint8_t bytes[4096];
    while (recv(conn->fd, bytes, sizeof(bytes), 0) > 0)
        continue;
    return false;
}

/* Does nothing until the other end closes. */
static bool stop_reading(struct conn *conn)
{
    struct pollfd wanted = {.fd = conn->fd, .events = POLLRDHUP};
    while (!atomic_load(&conn->node->stop) && poll(&wanted, 1, 50) == 0)
        continue;
    return false;
}

#define SEND(conn, kind, type_, flags_, op_, message_)           \
    ({                                                           \
        uint8_t *room_ = malloc(FB_FRAME_BYTES_MAX);             \
        struct fb_writer writer_;                                \
        fb_writer_init(&writer_, room_, FB_FRAME_BYTES_MAX);     \
        size_t at_ = fb_wire_frame_begin(&writer_);              \
        fb_wire_##kind##_encode(&writer_, message_);             \
        fb_wire_frame_end(&writer_, at_, type_, flags_, op_, 1); \
        FB_ASSERT(fb_writer_ok(&writer_));                       \
        bool sent_ = send_all(conn, room_, writer_.at_bytes);    \
        free(room_);                                             \
        sent_;                                                   \
    })

#define DECODE(kind, message)                                     \
    ({                                                            \
        const char *bad_;                                         \
        fb_wire_##kind##_decode(reader, message, &bad_) == FB_OK; \
    })

/* ---- values ---- */

static struct value *find(struct small_node *node, const void *key, size_t key_bytes)
{
    for (size_t i = 0; i < node->count; i++) {
        struct value *value = &node->values[i];
        if (value->key_bytes == key_bytes && memcmp(value->key, key, key_bytes) == 0)
            return value;
    }
    return NULL;
}

static void drop(struct small_node *node, struct value *value)
{
    free(value->bytes);
    *value = node->values[--node->count];
}

static void store(struct small_node *node, const struct put *put)
{
    struct value *old = find(node, put->key, put->key_bytes);
    if (old != NULL)
        drop(node, old);
    FB_ASSERT(node->count < KEYS_MAX);
    struct value *value = &node->values[node->count++];
    memcpy(value->key, put->key, put->key_bytes);
    value->key_bytes = put->key_bytes;
    struct fb_secret secret;
    fb_secret_derive(&secret, node->secret, sizeof(node->secret));
    value->digest = fb_digest_key(&secret, node->epoch, put->key, put->key_bytes);
    value->generation = put->generation;
    value->bytes = put->bytes;
    value->value_bytes = put->value_bytes;
}

static void forget_all(struct small_node *node)
{
    while (node->count > 0)
        drop(node, &node->values[0]);
    node->pool_used = 0;
}

static uint64_t root_of(const struct small_node *node, const struct value *value, uint32_t part,
                        uint32_t part_bytes)
{
    const uint8_t *bytes = value->bytes + (uint64_t)part * SMALL_NODE_CHUNK_BYTES;
    struct fb_identity identity = {
        .namespace_id = node->ns_id,
        .epoch = node->epoch,
        .key = value->key,
        .key_bytes = value->key_bytes,
        .generation = {.boot = (uint32_t)(value->generation >> 40),
                       .counter = value->generation & (GENERATION - 1)},
        .part = part,
        .total_bytes = value->value_bytes,
        .part_bytes = part_bytes,
    };
    uint64_t leaves[SMALL_NODE_CHUNK_BYTES / FB_LEAF_BYTES];
    size_t count = 0;
    for (uint32_t off = 0; off < part_bytes; off += FB_LEAF_BYTES)
        leaves[count++] = fb_leaf_hash(bytes + off, fb_min_u64(FB_LEAF_BYTES, part_bytes - off));
    return fb_root_of(&identity, leaves, count);
}

/* ---- puts ---- */

static struct put *put_of(struct conn *conn, uint64_t op)
{
    for (size_t i = 0; i < PUTS_MAX; i++) {
        if (conn->put[i].op == op)
            return &conn->put[i];
    }
    return NULL;
}

static bool put_done(struct conn *conn, uint64_t op, int result, uint64_t generation)
{
    struct fb_msg_put_done done = {.result = result, .generation = generation};
    return SEND(conn, put_done, FB_MSG_PUT_DONE, 0, op, &done);
}

/* Room in the pool; the small node never takes any back but by a reset. */
static uint64_t take_pool(struct small_node *node, uint64_t bytes)
{
    uint64_t off = node->pool_used;
    if (off + bytes > SMALL_NODE_POOL_BYTES)
        off = 0; /* values are copied out at commit, so the pool can be used again */
    node->pool_used = off + fb_align_up(bytes, FB_PAGE_BYTES);
    return off;
}

static bool grant(struct conn *conn, struct put *put)
{
    struct fb_msg_grant message = {.generation = put->generation};
    uint8_t runs[64 * FB_WIRE_RUN_BYTES];
    if (!conn->shares) {
        message.window_bytes = put->value_bytes;
        return SEND(conn, grant, FB_MSG_GRANT, 0, put->op, &message);
    }
    struct fb_writer writer;
    fb_writer_init(&writer, runs, sizeof(runs));
    message.runs = runs;
    for (uint64_t off = 0; off < put->value_bytes; off += SMALL_NODE_CHUNK_BYTES) {
        uint64_t len = fb_min_u64(SMALL_NODE_CHUNK_BYTES, put->value_bytes - off);
        fb_wire_run_encode(&writer, &(struct fb_wire_run){put->pool_off + off, (uint32_t)len});
        message.run_count++;
    }
    return SEND(conn, grant, FB_MSG_GRANT, 0, put->op, &message);
}

static bool on_put(struct conn *conn, uint64_t op, struct fb_reader *reader)
{
    struct small_node *node = conn->node;
    struct fb_msg_put message;
    if (!DECODE(put, &message))
        return false;
    if (message.key.epoch != node->epoch)
        return put_done(conn, op, FB_STALE_EPOCH, 0);
    if ((message.put_flags & FB_WIRE_PUT_UPSERT) == 0 &&
        find(node, message.key.key, message.key.key_bytes) != NULL)
        return put_done(conn, op, FB_EXISTS, 0);
    struct put *put = put_of(conn, 0);
    FB_ASSERT(put != NULL);
    *put = (struct put){.op = op,
                        .key_bytes = message.key.key_bytes,
                        .value_bytes = message.value_bytes,
                        .generation = GENERATION | ++node->generation,
                        .bytes = malloc(message.value_bytes)};
    memcpy(put->key, message.key.key, message.key.key_bytes);
    if (message.inline_bytes > 0) {
        memcpy(put->bytes, message.inline_data, message.inline_bytes);
        FB_ASSERT(fb_leaf_hash(put->bytes, message.inline_bytes) == message.inline_leaf);
        store(node, put);
        put->op = 0;
        return put_done(conn, op, FB_OK, put->generation);
    }
    put->pool_off = take_pool(node, put->value_bytes);
    return grant(conn, put);
}

static bool on_commit(struct conn *conn, uint64_t op, struct fb_reader *reader)
{
    struct fb_msg_commit message;
    struct put *put = put_of(conn, op);
    if (!DECODE(commit, &message) || put == NULL)
        return false;
    if (conn->shares)
        memcpy(put->bytes, conn->node->pool + put->pool_off, put->value_bytes);
    uint32_t leaf = 0;
    int result = FB_OK;
    for (uint64_t off = 0; off < put->value_bytes; off += FB_LEAF_BYTES, leaf++) {
        uint64_t bytes = fb_min_u64(FB_LEAF_BYTES, put->value_bytes - off);
        if (fb_leaf_hash(put->bytes + off, bytes) != fb_wire_leaf_at(message.leaves, leaf))
            result = FB_BAD_CHECKSUM;
    }
    FB_ASSERT(leaf == message.leaf_count);
    if (result == FB_OK)
        store(conn->node, put);
    else
        free(put->bytes);
    put->op = 0;
    return put_done(conn, op, result, put->generation);
}

static bool on_data(struct conn *conn, const struct fb_wire_header *header)
{
    uint8_t head[FB_WIRE_DATA_HEAD_BYTES];
    struct fb_msg_data data;
    const char *bad;
    if (atomic_load(&conn->node->mood) == SMALL_NODE_STOPS_READING)
        return stop_reading(conn);
    if (atomic_load(&conn->node->mood) == SMALL_NODE_REVOKES) {
        struct fb_msg_put_done done = {.result = FB_REMOVED};
        return SEND(conn, put_done, FB_MSG_PUT_DONE, FB_FRAME_RELEASE_WANTED, header->op, &done) &&
               stop_reading(conn);
    }
    if (!receive_all(conn, head, sizeof(head)) ||
        fb_wire_data_head_decode(head, header->payload_bytes, &data, &bad) != FB_OK)
        return false;
    struct put *put = put_of(conn, header->op);
    FB_ASSERT(put != NULL && data.off + data.len <= put->value_bytes);
    return receive_all(conn, put->bytes + data.off, data.len);
}

static bool on_release(struct conn *conn, uint64_t op)
{
    struct put *put = put_of(conn, op);
    if (put == NULL)
        return true;
    free(put->bytes);
    put->op = 0;
    return put_done(conn, op, FB_DEADLINE, 0);
}

/* ---- gets ---- */

static bool send_data(struct conn *conn, uint64_t op, const struct value *value, uint64_t from,
                      uint64_t to, bool checked)
{
    while (from < to) {
        uint64_t step = fb_min_u64(FB_LEAF_BYTES / 2, FB_LEAF_BYTES - from % FB_LEAF_BYTES);
        uint32_t len = (uint32_t)fb_min_u64(step, to - from);
        uint8_t head[FB_WIRE_HEADER_BYTES + FB_WIRE_DATA_HEAD_BYTES];
        const uint8_t *bytes = value->bytes + from;
        fb_wire_data_head(head, op, from, len, checked ? bytes : NULL, 1);
        if (!send_all(conn, head, sizeof(head)))
            return false;
        if (atomic_load(&conn->node->mood) == SMALL_NODE_HALF_DATA) {
            send_all(conn, bytes, len / 2);
            return stop_reading(conn);
        }
        if (!send_all(conn, bytes, len))
            return false;
        from += len;
    }
    return true;
}

static bool send_part(struct conn *conn, uint64_t op, const struct value *value, uint32_t part,
                      uint64_t from, uint64_t to)
{
    struct small_node *node = conn->node;
    uint64_t value_off = (uint64_t)part * SMALL_NODE_CHUNK_BYTES;
    uint32_t part_bytes =
        (uint32_t)fb_min_u64(SMALL_NODE_CHUNK_BYTES, value->value_bytes - value_off);
    struct fb_msg_chunk chunk = {
        .verified = 1,
        .part = part,
        .part_bytes = part_bytes,
        .want_off = (uint32_t)(from - value_off),
        .want_bytes = (uint32_t)(to - from),
        .value_off = value_off,
        .value_bytes = value->value_bytes,
        .generation = value->generation,
        .root = root_of(node, value, part, part_bytes),
    };
    uint8_t run[FB_WIRE_RUN_BYTES];
    if (chunk.want_bytes <= FB_WIRE_INLINE_MAX) {
        chunk.mode = FB_WIRE_CHUNK_INLINE;
        chunk.inline_bytes = chunk.want_bytes;
        chunk.inline_data = value->bytes + from;
        return SEND(conn, chunk, FB_MSG_CHUNK, 0, op, &chunk);
    }
    if (conn->shares) {
        struct fb_writer writer;
        fb_writer_init(&writer, run, sizeof(run));
        uint64_t off = take_pool(node, part_bytes);
        memcpy(node->pool + off, value->bytes + value_off, part_bytes);
        fb_wire_run_encode(&writer, &(struct fb_wire_run){off, part_bytes});
        chunk.runs = run;
        chunk.run_count = 1;
        chunk.slot = (uint8_t)(part % FB_WIRE_CHUNK_SLOTS);
        return SEND(conn, chunk, FB_MSG_CHUNK, 0, op, &chunk);
    }
    chunk.mode = FB_WIRE_CHUNK_DATA;
    chunk.slot = (uint8_t)(part % FB_WIRE_CHUNK_SLOTS);
    bool checked = chunk.want_bytes < part_bytes;
    return SEND(conn, chunk, FB_MSG_CHUNK, 0, op, &chunk) &&
           send_data(conn, op, value, from, to, checked);
}

static bool on_get(struct conn *conn, uint64_t op, struct fb_reader *reader)
{
    struct fb_msg_get message;
    if (!DECODE(get, &message))
        return false;
    const struct value *value = find(conn->node, message.key.key, message.key.key_bytes);
    struct fb_msg_get_done done = {.result = FB_OK, .tiers = 1};
    if (message.key.epoch != conn->node->epoch)
        done.result = FB_STALE_EPOCH;
    else if (value == NULL)
        done = (struct fb_msg_get_done){.result = FB_MISS, .reason = FB_REASON_NO_RECORD};
    if (done.result != FB_OK)
        return SEND(conn, get_done, FB_MSG_GET_DONE, 0, op, &done);
    uint64_t end =
        fb_min_u64(value->value_bytes, fb_add_saturated(message.range_off, message.range_bytes));
    for (uint64_t from = message.range_off; from < end;) {
        uint32_t part = (uint32_t)(from / SMALL_NODE_CHUNK_BYTES);
        uint64_t to = fb_min_u64(end, (part + 1) * (uint64_t)SMALL_NODE_CHUNK_BYTES);
        if (!send_part(conn, op, value, part, from, to))
            return false;
        from = to;
    }
    done.value_bytes = value->value_bytes;
    done.generation = value->generation;
    return SEND(conn, get_done, FB_MSG_GET_DONE, 0, op, &done);
}

/* ---- the rest ---- */

static bool on_lookup(struct conn *conn, uint64_t op, struct fb_reader *reader, bool release)
{
    struct fb_msg_lookup message;
    if (!DECODE(lookup, &message))
        return false;
    static const uint8_t none[1];
    struct fb_msg_lookup_done done = {.count = release ? 0 : message.count, .found = none};
    uint8_t found[FB_WIRE_DIGESTS_MAX];
    memset(found, 0, sizeof(found));
    for (uint32_t i = 0; i < done.count; i++) {
        struct fb_digest digest = fb_wire_digest_at(message.digests, i);
        for (size_t k = 0; k < conn->node->count; k++)
            if (fb_digest_is_equal(conn->node->values[k].digest, digest))
                found[i] = FB_WIRE_FOUND_READABLE | FB_WIRE_FOUND_DRAM;
    }
    done.found = found;
    return SEND(conn, lookup_done, FB_MSG_LOOKUP_DONE, 0, op, &done);
}

static bool on_remove(struct conn *conn, uint64_t op, struct fb_reader *reader)
{
    struct fb_msg_key message;
    if (!DECODE(key, &message))
        return false;
    struct value *value = find(conn->node, message.key, message.key_bytes);
    struct fb_msg_done done = {.result = value == NULL ? FB_MISS : FB_OK};
    if (value != NULL)
        drop(conn->node, value);
    return SEND(conn, done, FB_MSG_REMOVE_DONE, 0, op, &done);
}

static bool on_epoch(struct conn *conn, uint64_t op, struct fb_reader *reader)
{
    struct fb_msg_epoch message;
    if (!DECODE(epoch, &message))
        return false;
    struct small_node *node = conn->node;
    struct fb_msg_done done = {.result = FB_STALE_EPOCH, .value = node->epoch};
    if (message.epoch == node->epoch) {
        done = (struct fb_msg_done){.value = ++node->epoch};
        forget_all(node);
    }
    return SEND(conn, done, FB_MSG_EPOCH_DONE, 0, op, &done);
}

static bool on_namespace(struct conn *conn, uint64_t op)
{
    struct fb_msg_namespace_done done = {.ns = 1, .epoch = conn->node->epoch};
    memcpy(done.id, conn->node->ns_id, sizeof(done.id));
    memcpy(done.secret, conn->node->secret, sizeof(done.secret));
    return SEND(conn, namespace_done, FB_MSG_NAMESPACE_DONE, 0, op, &done);
}

static bool on_list(struct conn *conn, uint64_t op)
{
    struct small_node *node = conn->node;
    uint8_t *keys = malloc(FB_WIRE_LIST_BYTES_MAX);
    struct fb_writer writer;
    fb_writer_init(&writer, keys, FB_WIRE_LIST_BYTES_MAX);
    for (size_t i = 0; i < node->count; i++)
        fb_writer_blob16(&writer, node->values[i].key, node->values[i].key_bytes);
    struct fb_msg_list_done done = {.cursor = UINT64_MAX,
                                    .bytes = (uint32_t)writer.at_bytes,
                                    .keys = keys};
    bool sent = SEND(conn, list_done, FB_MSG_LIST_DONE, 0, op, &done);
    free(keys);
    return sent;
}

static bool on_simple(struct conn *conn, const struct fb_wire_header *header)
{
    struct fb_msg_done done = {.result = FB_NOT_PERSISTED};
    struct fb_msg_text text = {.text = (const uint8_t *)"{}", .text_bytes = 2};
    struct fb_msg_explain_done explain = {.reason = FB_REASON_NO_RECORD, .text = NULL};
    struct fb_msg_pong pong = {.state = FB_WIRE_SERVING};
    switch (header->type) {
    case FB_MSG_WAIT_PERSISTED:
        return SEND(conn, done, FB_MSG_WAIT_DONE, 0, header->op, &done);
    case FB_MSG_DROP_DRAM:
        return SEND(conn, done, FB_MSG_DROP_DONE, 0, header->op, &done);
    case FB_MSG_STATUS:
        return SEND(conn, text, FB_MSG_STATUS_DONE, 0, header->op, &text);
    case FB_MSG_EXPLAIN:
        return SEND(conn, explain_done, FB_MSG_EXPLAIN_DONE, 0, header->op, &explain);
    case FB_MSG_PING:
        return SEND(conn, pong, FB_MSG_PONG, 0, header->op, &pong);
    default:
        return header->type == FB_MSG_CANCEL || header->type == FB_MSG_CHUNK_DONE;
    }
}

static bool on_frame(struct conn *conn, const struct fb_wire_header *header,
                     struct fb_reader *reader)
{
    switch (header->type) {
    case FB_MSG_NAMESPACE:
        return on_namespace(conn, header->op);
    case FB_MSG_PUT:
        return on_put(conn, header->op, reader);
    case FB_MSG_COMMIT:
        return on_commit(conn, header->op, reader);
    case FB_MSG_RELEASE:
        return on_release(conn, header->op);
    case FB_MSG_GET:
        return on_get(conn, header->op, reader);
    case FB_MSG_LOOKUP:
    case FB_MSG_HOLD_RELEASE:
        return on_lookup(conn, header->op, reader, header->type == FB_MSG_HOLD_RELEASE);
    case FB_MSG_REMOVE:
        return on_remove(conn, header->op, reader);
    case FB_MSG_EPOCH:
        return on_epoch(conn, header->op, reader);
    case FB_MSG_LIST:
        return on_list(conn, header->op);
    default:
        return on_simple(conn, header);
    }
}

/* ---- connections ---- */

static bool send_welcome(struct conn *conn, const struct fb_msg_welcome *welcome)
{
    uint8_t room[FB_WIRE_HEADER_BYTES + 80];
    struct fb_writer writer;
    fb_writer_init(&writer, room, sizeof(room));
    size_t at = fb_wire_frame_begin(&writer);
    fb_wire_welcome_encode(&writer, welcome);
    fb_wire_frame_end(&writer, at, FB_MSG_WELCOME, 0, 0, 1);
    if (!conn->shares)
        return send_all(conn, room, writer.at_bytes);
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.bytes = {0}};
    struct iovec piece = {room, 1};
    struct msghdr message = {.msg_iov = &piece,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    struct cmsghdr *with = CMSG_FIRSTHDR(&message);
    with->cmsg_level = SOL_SOCKET;
    with->cmsg_type = SCM_RIGHTS;
    with->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(with), &conn->node->memory_fd, sizeof(int));
    return sendmsg(conn->fd, &message, MSG_NOSIGNAL) == 1 &&
           send_all(conn, room + 1, writer.at_bytes - 1);
}

static bool on_hello(struct conn *conn, struct fb_reader *reader)
{
    struct small_node *node = conn->node;
    struct fb_msg_hello hello;
    if (!DECODE(hello, &hello))
        return false;
    if (atomic_load(&node->mood) == SMALL_NODE_NO_WELCOME)
        return be_silent(conn);
    if (atomic_load(&node->mood) == SMALL_NODE_REFUSES) {
        static const char text[] = "too many sessions";
        struct fb_msg_error error = {.result = FB_BUSY,
                                     .text = (const uint8_t *)text,
                                     .text_bytes = sizeof(text) - 1};
        SEND(conn, error, FB_MSG_ERROR, 0, 0, &error);
        return false;
    }
    if (hello.ended_session != 0)
        atomic_fetch_add(&node->ended, 1);
    conn->shares = node->options.share && (hello.features & FB_FEATURE_SHM) != 0;
    uint32_t credit = node->options.op_credit;
    struct fb_msg_welcome welcome = {
        .features = (hello.features & FB_FEATURE_HOLDS) | (conn->shares ? FB_FEATURE_SHM : 0),
        .boot_nonce = 1,
        .session = atomic_fetch_add(&node->sessions, 1) + 1,
        .pool_bytes = SMALL_NODE_POOL_BYTES,
        .value_bytes_max = SMALL_NODE_POOL_BYTES,
        .inline_credit_bytes = node->options.inline_credit_bytes,
        .chunk_bytes = SMALL_NODE_CHUNK_BYTES,
        .op_credit = credit == 0 ? 16 : credit,
        .heartbeat_ms = 1000,
        .shards = 1,
        .map_version = 1,
    };
    return send_welcome(conn, &welcome);
}

/* Takes one frame; false ends the connection. */
static bool take_frame(struct conn *conn, uint8_t *room)
{
    struct fb_wire_header header;
    const char *bad;
    if (!receive_all(conn, room, FB_WIRE_HEADER_BYTES) ||
        fb_wire_header_decode(room, &header, &bad) != FB_OK)
        return false;
    if (header.type == FB_MSG_DATA)
        return on_data(conn, &header);
    uint8_t *payload = room + FB_WIRE_HEADER_BYTES;
    if (!receive_all(conn, payload, header.payload_bytes))
        return false;
    FB_ASSERT(fb_wire_check(room, payload, header.payload_bytes) == header.check);
    struct fb_reader reader;
    fb_reader_init(&reader, payload, header.payload_bytes);
    if (header.type == FB_MSG_HELLO)
        return on_hello(conn, &reader);
    int mood = header.type == FB_MSG_NAMESPACE ? SMALL_NODE_WELL : atomic_load(&conn->node->mood);
    if (mood == SMALL_NODE_SILENT)
        return be_silent(conn);
    if (mood == SMALL_NODE_CLOSES)
        return false;
    if (mood == SMALL_NODE_GARBAGE)
        return send_all(conn, "garbage, garbage, garbage, garbage", 34) && be_silent(conn);
    pthread_mutex_lock(&conn->node->lock);
    bool goes_on = on_frame(conn, &header, &reader);
    pthread_mutex_unlock(&conn->node->lock);
    return goes_on;
}

static void *serve(void *argument)
{
    struct conn *conn = argument;
    uint8_t *room = malloc(FB_FRAME_BYTES_MAX);
    while (take_frame(conn, room))
        continue;
    free(room);
    for (size_t i = 0; i < PUTS_MAX; i++) {
        if (conn->put[i].op != 0)
            free(conn->put[i].bytes);
    }
    shutdown(conn->fd, SHUT_RDWR);
    atomic_fetch_sub(&conn->node->open, 1);
    return NULL;
}

static void *accept_all(void *argument)
{
    struct small_node *node = argument;
    for (;;) {
        int fd = accept4(node->listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            return NULL;
        struct conn *conn = NULL;
        for (size_t i = 0; i < SMALL_NODE_CONNS_MAX && conn == NULL; i++) {
            if (!node->conns[i].used)
                conn = &node->conns[i];
        }
        FB_ASSERT(conn != NULL);
        *conn = (struct conn){.node = node, .fd = fd, .used = true};
        atomic_fetch_add(&node->open, 1);
        int failed = pthread_create(&conn->thread, NULL, serve, conn);
        FB_ASSERT(failed == 0);
    }
}

/* ---- the node ---- */

struct small_node *small_node_start(const char *path, const struct small_node_options *options)
{
    struct small_node *node = calloc(1, sizeof(*node));
    node->options = *options;
    node->epoch = 1;
    pthread_mutex_init(&node->lock, NULL);
    node->values = calloc(KEYS_MAX, sizeof(*node->values));
    memset(node->ns_id, 0x33, sizeof(node->ns_id));
    memset(node->secret, 0x44, sizeof(node->secret));
    node->memory_fd = memfd_create("small-node", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    FB_ASSERT(node->memory_fd >= 0 && ftruncate(node->memory_fd, SMALL_NODE_POOL_BYTES) == 0);
    if (!options->unsealed)
        FB_ASSERT(fcntl(node->memory_fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    node->pool =
        mmap(NULL, SMALL_NODE_POOL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, node->memory_fd, 0);
    FB_ASSERT(node->pool != MAP_FAILED);
    node->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    unlink(path);
    if (bind(node->listener, (struct sockaddr *)&address, sizeof(address)) < 0 ||
        listen(node->listener, SMALL_NODE_CONNS_MAX) < 0)
        return NULL;
    int failed = pthread_create(&node->acceptor, NULL, accept_all, node);
    FB_ASSERT(failed == 0);
    return node;
}

void small_node_set_mood(struct small_node *node, enum small_node_mood mood)
{
    atomic_store(&node->mood, mood);
}

void small_node_reset(struct small_node *node)
{
    for (size_t i = 0; i < SMALL_NODE_CONNS_MAX; i++) {
        if (node->conns[i].used)
            shutdown(node->conns[i].fd, SHUT_RDWR);
    }
    while (atomic_load(&node->open) > 0)
        usleep(1000);
    pthread_mutex_lock(&node->lock);
    forget_all(node);
    pthread_mutex_unlock(&node->lock);
}

unsigned small_node_sessions(const struct small_node *node)
{
    return atomic_load(&node->sessions);
}

unsigned small_node_ended_sessions(const struct small_node *node)
{
    return atomic_load(&node->ended);
}

unsigned small_node_open(const struct small_node *node)
{
    return atomic_load(&node->open);
}

void small_node_stop(struct small_node *node)
{
    atomic_store(&node->stop, true);
    shutdown(node->listener, SHUT_RDWR);
    pthread_join(node->acceptor, NULL);
    close(node->listener);
    small_node_reset(node);
    for (size_t i = 0; i < SMALL_NODE_CONNS_MAX; i++) {
        if (!node->conns[i].used)
            continue;
        pthread_join(node->conns[i].thread, NULL);
        close(node->conns[i].fd);
    }
    munmap(node->pool, SMALL_NODE_POOL_BYTES);
    close(node->memory_fd);
    free(node->values);
    pthread_mutex_destroy(&node->lock);
    free(node);
}
