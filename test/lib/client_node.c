/* A scripted node. See client_node.h. */
#include "test/lib/client_node.h"

#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/region.h"
#include "client/copy.h"
#include "proto/scatter.h"

#define NODE_MAP 1

/* A pattern that differs from page to page; made once, since tests make many nodes. */
static void fill_pool(uint8_t *pool)
{
    static uint8_t pattern[NODE_POOL_BYTES];
    if (pattern[1] == 0) {
        for (size_t i = 0; i < NODE_POOL_BYTES; i++)
            pattern[i] = (uint8_t)(i * 7 + (i >> 9));
    }
    memcpy(pool, pattern, NODE_POOL_BYTES);
}

void node_make(struct node *node, uint64_t features, uint32_t op_credit,
               const struct fb_proto_config *config)
{
    memset(node, 0, sizeof(*node));
    node->now_ns = FB_SEC_NS;
    node->pool = malloc(NODE_POOL_BYTES);
    node->room = malloc(FB_FRAME_BYTES_MAX);
    node->frames = calloc(NODE_FRAMES_MAX, sizeof(*node->frames));
    assert_non_null(node->pool);
    assert_non_null(node->room);
    assert_non_null(node->frames);
    fill_pool(node->pool);
    memset(node->ns_id, 0x5a, sizeof(node->ns_id));
    node->welcome = (struct fb_msg_welcome){
        .features = features,
        .boot_nonce = 1,
        .session = 9,
        .node_id = 2,
        .pool_bytes = NODE_POOL_BYTES,
        .value_bytes_max = FB_VALUE_BYTES_MAX,
        .inline_credit_bytes = 1u << 20,
        .chunk_bytes = NODE_CHUNK_BYTES,
        .op_credit = op_credit,
        .shards = 1,
        .map_version = NODE_MAP,
    };
    size_t bytes = fb_proto_client_footprint(config);
    node->memory = malloc(bytes);
    assert_non_null(node->memory);
    struct fb_region region;
    fb_region_init(&region, node->memory, bytes);
    node->client = fb_proto_client_init(config, &region);
    fb_proto_client_start(node->client, node->now_ns, node->now_ns + FB_SEC_NS);
}

void node_open(struct node *node, uint64_t features, uint32_t op_credit,
               const struct fb_proto_config *config)
{
    node_make(node, features, op_credit, config);
    node_take(node);
    node_expect(node, FB_MSG_HELLO);
    NODE_SEND(node, welcome, FB_MSG_WELCOME, 0, 0, &node->welcome);
    node_take(node);
    const struct node_frame *frame = node_expect(node, FB_MSG_NAMESPACE);
    struct fb_msg_namespace_done done = {.ns = 3, .epoch = NODE_EPOCH};
    memcpy(done.id, node->ns_id, sizeof(done.id));
    memset(done.secret, 0x11, sizeof(done.secret));
    NODE_SEND(node, namespace_done, FB_MSG_NAMESPACE_DONE, 0, frame->header.op, &done);
    assert_int_equal(fb_proto_client_state(node->client), FB_PROTO_READY);
}

void node_free(struct node *node)
{
    for (size_t i = 0; i < node->count; i++)
        free(node->frames[i].payload);
    free(node->frames);
    free(node->room);
    free(node->pool);
    free(node->memory);
}

static void keep_frame(struct node *node, const struct fb_proto_frame *out)
{
    assert_true(node->count < NODE_FRAMES_MAX);
    struct node_frame *frame = &node->frames[node->count++];
    const char *bad;
    assert_int_equal(fb_wire_header_decode(node->room, &frame->header, &bad), FB_OK);
    frame->bytes = frame->header.payload_bytes;
    frame->payload = malloc(frame->bytes + 1);
    assert_non_null(frame->payload);
    size_t head = out->bytes - FB_WIRE_HEADER_BYTES;
    memcpy(frame->payload, node->room + FB_WIRE_HEADER_BYTES, head);
    assert_int_equal(head + out->payload_bytes, frame->bytes);
    if (out->payload_bytes != 0) {
        struct fb_scatter scatter;
        fb_scatter_begin(&scatter, out->bufs, out->buf_count, out->payload_off);
        fb_scatter_read(&scatter, frame->payload + head, out->payload_bytes);
    }
    uint32_t covered = fb_wire_covered_bytes(&frame->header);
    assert_true(fb_wire_check(node->room, frame->payload, covered) == frame->header.check);
    assert_true(fb_wire_type_from_client(frame->header.type));
}

void node_take(struct node *node)
{
    struct fb_proto_frame frame;
    size_t room = 64;
    for (;;) {
        if (fb_proto_client_take_frame(node->client, node->now_ns, node->room, room, &frame)) {
            keep_frame(node, &frame);
            room = 64;
        } else if (frame.needs_room) {
            assert_true(room < FB_FRAME_BYTES_MAX);
            room = FB_FRAME_BYTES_MAX;
        } else {
            return;
        }
    }
}

const struct node_frame *node_expect(struct node *node, int type)
{
    assert_true(node->first < node->count);
    const struct node_frame *frame = &node->frames[node->first++];
    assert_string_equal(fb_wire_type_name(frame->header.type), fb_wire_type_name(type));
    return frame;
}

void node_expect_nothing(struct node *node)
{
    if (node->first < node->count)
        fail_msg("%s was sent", fb_wire_type_name(node->frames[node->first].header.type));
}

struct fb_reader node_reader(const struct node_frame *frame)
{
    struct fb_reader reader;
    fb_reader_init(&reader, frame->payload, frame->bytes);
    return reader;
}

void node_send_put_done(struct node *node, uint64_t op, int result, uint8_t flags)
{
    struct fb_msg_put_done done = {.result = result, .generation = result == FB_OK ? 77 : 0};
    NODE_SEND(node, put_done, FB_MSG_PUT_DONE, flags, op, &done);
}

void node_send_get_done(struct node *node, uint64_t op, int result, uint64_t value_bytes,
                        uint64_t generation)
{
    struct fb_msg_get_done done = {.result = result,
                                   .value_bytes = value_bytes,
                                   .generation = generation,
                                   .tiers = 1};
    NODE_SEND(node, get_done, FB_MSG_GET_DONE, 0, op, &done);
}

void node_send_done(struct node *node, int type, uint64_t op, int result, uint64_t value,
                    uint8_t flags)
{
    struct fb_msg_done done = {.result = result, .value = value};
    NODE_SEND(node, done, (uint8_t)type, flags, op, &done);
}

void node_grant(struct node *node, uint64_t op, uint64_t value_bytes, uint64_t pool_off,
                uint32_t run_bytes, uint64_t generation)
{
    uint8_t *runs = malloc(FB_WIRE_RUNS_MAX * FB_WIRE_RUN_BYTES);
    struct fb_writer writer;
    fb_writer_init(&writer, runs, FB_WIRE_RUNS_MAX * FB_WIRE_RUN_BYTES);
    struct fb_msg_grant grant = {.generation = generation, .runs = runs};
    for (uint64_t off = 0; off < value_bytes;) {
        uint64_t part_end =
            fb_min_u64(off - off % NODE_CHUNK_BYTES + NODE_CHUNK_BYTES, value_bytes);
        struct fb_wire_run run = {.off = pool_off + off,
                                  .len = (uint32_t)fb_min_u64(run_bytes, part_end - off)};
        fb_wire_run_encode(&writer, &run);
        off += run.len;
        grant.run_count++;
    }
    NODE_SEND(node, grant, FB_MSG_GRANT, 0, op, &grant);
    node_jobs(node);
    free(runs);
}

uint64_t node_root(const struct node *node, const char *key, uint64_t generation, uint32_t part,
                   uint64_t value_bytes, const uint8_t *bytes, uint32_t part_bytes)
{
    struct fb_identity identity = {
        .namespace_id = node->ns_id,
        .epoch = NODE_EPOCH,
        .key = key,
        .key_bytes = strlen(key),
        .generation = {.boot = (uint32_t)(generation >> 40),
                       .counter = generation & ((1ull << 40) - 1)},
        .part = part,
        .total_bytes = value_bytes,
        .part_bytes = part_bytes,
    };
    uint64_t leaves[FB_PROTO_LEAVES_MAX];
    uint32_t count = 0;
    for (uint32_t off = 0; off < part_bytes; off += FB_LEAF_BYTES)
        leaves[count++] = fb_leaf_hash(bytes + off, fb_min_u64(FB_LEAF_BYTES, part_bytes - off));
    return fb_root_of(&identity, leaves, count);
}

void node_chunk(struct node *node, uint64_t op, uint8_t slot, uint8_t mode, const char *key,
                uint32_t part, uint64_t value_bytes, uint64_t pool_off, uint64_t generation,
                uint64_t range_off, uint64_t range_bytes)
{
    uint64_t value_off = (uint64_t)part * NODE_CHUNK_BYTES;
    uint32_t part_bytes = (uint32_t)fb_min_u64(NODE_CHUNK_BYTES, value_bytes - value_off);
    uint64_t range_end = fb_min_u64(fb_add_saturated(range_off, range_bytes), value_bytes);
    uint64_t from = fb_max_u64(range_off, value_off);
    uint64_t to = fb_min_u64(range_end, value_off + part_bytes);
    const uint8_t *bytes = node->pool + pool_off + value_off;
    uint8_t runs[2 * FB_WIRE_RUN_BYTES];
    struct fb_writer writer;
    fb_writer_init(&writer, runs, sizeof(runs));
    struct fb_wire_run run = {.off = pool_off + value_off, .len = part_bytes};
    if (part_bytes > FB_PAGE_BYTES) { /* two runs, so that a seam is crossed */
        struct fb_wire_run first = {.off = run.off, .len = FB_PAGE_BYTES};
        fb_wire_run_encode(&writer, &first);
        run.off += FB_PAGE_BYTES;
        run.len -= FB_PAGE_BYTES;
    }
    fb_wire_run_encode(&writer, &run);
    struct fb_msg_chunk chunk = {
        .slot = slot,
        .verified = 1,
        .mode = mode,
        .part = part,
        .part_bytes = part_bytes,
        .want_off = (uint32_t)(from - value_off),
        .want_bytes = (uint32_t)(to - from),
        .value_off = value_off,
        .value_bytes = value_bytes,
        .generation = generation,
        .root = node_root(node, key, generation, part, value_bytes, bytes, part_bytes),
    };
    if (mode == FB_WIRE_CHUNK_RUNS) {
        chunk.runs = runs;
        chunk.run_count = (uint32_t)(writer.at_bytes / FB_WIRE_RUN_BYTES);
    } else if (mode == FB_WIRE_CHUNK_INLINE) {
        chunk.inline_bytes = chunk.want_bytes;
        chunk.inline_data = node->pool + pool_off + from;
    }
    NODE_SEND(node, chunk, FB_MSG_CHUNK, 0, op, &chunk);
}

void node_data(struct node *node, uint64_t op, uint64_t value_off, uint64_t pool_off, uint32_t len,
               bool checked, bool damage)
{
    uint8_t head[FB_WIRE_HEADER_BYTES + FB_WIRE_DATA_HEAD_BYTES];
    const uint8_t *bytes = node->pool + pool_off + value_off;
    fb_wire_data_head(head, op, value_off, len, checked ? bytes : NULL, NODE_MAP);
    struct fb_proto_sink sink;
    if (!fb_proto_client_data_begin(node->client, node->now_ns, head, &sink))
        return;
    assert_int_equal(sink.bytes, len);
    if (sink.bufs != NULL) {
        uint8_t *copy = malloc(len);
        memcpy(copy, bytes, len);
        if (damage)
            copy[len / 2] ^= 1;
        struct fb_scatter scatter;
        fb_scatter_begin(&scatter, sink.bufs, sink.buf_count, sink.off);
        fb_scatter_write(&scatter, copy, len);
        free(copy);
    }
    fb_proto_client_data_end(node->client, node->now_ns, sink.bufs == NULL);
}

unsigned node_jobs(struct node *node)
{
    struct fb_proto_job job;
    uint64_t leaves[FB_PROTO_LEAVES_MAX];
    unsigned count = 0;
    while (fb_proto_client_take_job(node->client, &job)) {
        fb_copy_job(&job, node->pool, leaves);
        fb_proto_client_job_done(node->client, node->now_ns, &job, leaves, true);
        count++;
    }
    return count;
}
