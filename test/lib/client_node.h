/*
 * A scripted node for tests of the client's connection: takes the client's frames apart, and sends
 * what the test says. It knows nothing by itself.
 */
#ifndef TEST_LIB_CLIENT_NODE_H
#define TEST_LIB_CLIENT_NODE_H

#include "proto/client.h"
#include "test/lib/cm.h"

#define NODE_POOL_BYTES  (4u << 20)
#define NODE_CHUNK_BYTES (1u << 20)
#define NODE_FRAMES_MAX  4096
#define NODE_EPOCH       7
#define NODE_DEADLINE_NS (10 * FB_SEC_NS)

struct node_frame {
    struct fb_wire_header header;
    size_t bytes;
    uint8_t *payload;
};

struct node {
    struct fb_proto_client *client;
    void *memory;
    uint64_t now_ns;
    uint8_t *pool;
    struct fb_msg_welcome welcome;
    uint8_t ns_id[FB_NAMESPACE_ID_BYTES];
    struct node_frame *frames; /* taken and not expected yet */
    size_t first, count;
    uint8_t *room;
};

/* A client that has been started and not answered. */
void node_make(struct node *node, uint64_t features, uint32_t op_credit,
               const struct fb_proto_config *config);
/* make, and the opening dialogue. */
void node_open(struct node *node, uint64_t features, uint32_t op_credit,
               const struct fb_proto_config *config);
void node_free(struct node *node);

/* Takes all frames that the client has. */
void node_take(struct node *node);
/* The next frame is of this type; returns it. Valid until node_free(). */
const struct node_frame *node_expect(struct node *node, int type);
/* There is no further frame. */
void node_expect_nothing(struct node *node);
/* A reader of a frame's payload. */
struct fb_reader node_reader(const struct node_frame *frame);

/* Sends a payload that `encode` has written. */
#define NODE_SEND(node, kind, type_, flags_, op_, message_)                                    \
    do {                                                                                       \
        struct fb_writer writer_;                                                              \
        fb_writer_init(&writer_, (node)->room, FB_FRAME_BYTES_MAX);                            \
        size_t at_ = fb_wire_frame_begin(&writer_);                                            \
        fb_wire_##kind##_encode(&writer_, message_);                                           \
        fb_wire_frame_end(&writer_, at_, type_, flags_, op_, 1);                               \
        assert_true(fb_writer_ok(&writer_));                                                   \
        fb_proto_client_input((node)->client, (node)->now_ns, (node)->room, writer_.at_bytes); \
    } while (0)

void node_send_put_done(struct node *node, uint64_t op, int result, uint8_t flags);
void node_send_get_done(struct node *node, uint64_t op, int result, uint64_t value_bytes,
                        uint64_t generation);
void node_send_done(struct node *node, int type, uint64_t op, int result, uint64_t value,
                    uint8_t flags);

/* Grants a put memory from `pool_off` on, in runs of `run_bytes`, cut at parts, in one frame. */
void node_grant(struct node *node, uint64_t op, uint64_t value_bytes, uint64_t pool_off,
                uint32_t run_bytes, uint64_t generation);

/* The root of a part that lies in `bytes`. */
uint64_t node_root(const struct node *node, const char *key, uint64_t generation, uint32_t part,
                   uint64_t value_bytes, const uint8_t *bytes, uint32_t part_bytes);

/* Sends the chunk of `part` of a value that lies in the pool from `pool_off` on in one piece, for a
 * get of the range. mode RUNS, INLINE, or DATA (without the DATA frames). */
void node_chunk(struct node *node, uint64_t op, uint8_t slot, uint8_t mode, const char *key,
                uint32_t part, uint64_t value_bytes, uint64_t pool_off, uint64_t generation,
                uint64_t range_off, uint64_t range_bytes);

/* Sends bytes of the pool as a DATA frame, and does what a connection does with it. */
void node_data(struct node *node, uint64_t op, uint64_t value_off, uint64_t pool_off, uint32_t len,
               bool checked, bool damage);

/* Does all jobs that wait. Returns how many. */
unsigned node_jobs(struct node *node);

#endif
