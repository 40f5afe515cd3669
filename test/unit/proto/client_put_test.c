/*
 * Puts on the client's side of a connection, against a scripted node. Covers: runs in one and many
 * frames, leaves of what was copied, window, inline and its credit, DATA, late commits, duplicates
 * in a batch, revoked grants with and without a copy under way, deadlines at each step and with
 * answers that cross, grants that are not sound, loss of the connection.
 *
 * Cannot show: that a real node sends these dialogues (test/e2e, the simulator).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/bug.h"
#include "base/reason.h"
#include "base/result.h"
#include "test/lib/client_node.h"

#define SHM        FB_FEATURE_SHM
#define GENERATION ((UINT64_C(3) << 40) | 17)

static const uint8_t ns_fields[] = {1, 1, 1, 0, 0, 0, 'm'};

static const struct fb_proto_config plain = {
    .features = FB_FEATURE_SHM,
    .nonce = 42,
    .name = "test",
    .fields = ns_fields,
    .fields_bytes = sizeof(ns_fields),
};

/* A batch of values in the caller's memory. */
struct batch {
    struct fb_put_item *items;
    struct fb_buf *bufs;
    char (*keys)[32];
    uint8_t *bytes;
    uint32_t *scratch;
    struct fb_proto_call call;
};

static void batch_make(struct batch *batch, struct node *node, size_t count, size_t value_bytes)
{
    memset(batch, 0, sizeof(*batch));
    batch->items = calloc(count, sizeof(*batch->items));
    batch->bufs = calloc(count * 2, sizeof(*batch->bufs));
    batch->keys = calloc(count, sizeof(*batch->keys));
    batch->bytes = malloc(count * value_bytes);
    batch->scratch = calloc(fb_proto_call_scratch_words(count) + 1, sizeof(uint32_t));
    for (size_t i = 0; i < count * value_bytes; i++)
        batch->bytes[i] = (uint8_t)(i * 31 + (i >> 8) * 5 + 1);
    for (size_t i = 0; i < count; i++) {
        snprintf(batch->keys[i], sizeof(batch->keys[i]), "key-%zu", i);
        /* Two buffers of unequal length. */
        size_t first = value_bytes / 3;
        batch->bufs[2 * i] = (struct fb_buf){batch->bytes + i * value_bytes, first};
        batch->bufs[2 * i + 1] =
            (struct fb_buf){batch->bytes + i * value_bytes + first, value_bytes - first};
        batch->items[i] = (struct fb_put_item){
            .key = batch->keys[i],
            .key_bytes = strlen(batch->keys[i]),
            .bufs = &batch->bufs[2 * i],
            .buf_count = 2,
            .result = 12345,
        };
    }
    batch->call = (struct fb_proto_call){
        .kind = FB_PROTO_PUT,
        .count = count,
        .items.put = batch->items,
        .epoch = NODE_EPOCH,
        .deadline_ns = node->now_ns + NODE_DEADLINE_NS,
        .scratch = batch->scratch,
    };
}

static void batch_free(struct batch *batch)
{
    free(batch->items);
    free(batch->bufs);
    free(batch->keys);
    free(batch->bytes);
    free(batch->scratch);
}

/* COMMIT carries the leaves of these bytes. */
static void expect_commit(struct node *node, uint64_t op, const uint8_t *bytes, size_t value_bytes)
{
    node_take(node);
    const struct node_frame *frame = node_expect(node, FB_MSG_COMMIT);
    struct fb_reader reader = node_reader(frame);
    struct fb_msg_commit commit;
    const char *bad;
    assert_int_equal(fb_wire_commit_decode(&reader, &commit, &bad), FB_OK);
    assert_true(frame->header.op == op && commit.generation == GENERATION);
    assert_int_equal(commit.leaf_count, fb_wire_leaf_count(value_bytes, NODE_CHUNK_BYTES));
    for (uint32_t i = 0; i < commit.leaf_count; i++) {
        size_t off = i * FB_LEAF_BYTES; /* chunks are whole leaves here */
        uint64_t leaf = fb_leaf_hash(bytes + off, fb_min_u64(FB_LEAF_BYTES, value_bytes - off));
        assert_true(fb_wire_leaf_at(commit.leaves, i) == leaf);
    }
}

static struct fb_msg_put read_put(const struct node_frame *frame)
{
    struct fb_reader reader = node_reader(frame);
    struct fb_msg_put put;
    const char *bad;
    assert_int_equal(fb_wire_put_decode(&reader, &put, &bad), FB_OK);
    return put;
}

static void put_over_shared_memory(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 4096, 5000, 300000, NODE_CHUNK_BYTES, 2500001};
    for (unsigned i = 0; i < FB_ARRAY_COUNT(sizes); i++) {
        struct node node;
        struct batch batch;
        node_open(&node, SHM, 8, &plain);
        batch_make(&batch, &node, 1, sizes[i]);
        batch.items[0].flags = FB_UPSERT | FB_WILL_RETURN;
        batch.items[0].depth = 5;
        batch.items[0].persist_mode = FB_PERSIST_MODE_THROUGH;
        fb_proto_client_begin(node.client, node.now_ns, &batch.call);
        node_take(&node);
        const struct node_frame *frame = node_expect(&node, FB_MSG_PUT);
        struct fb_msg_put put = read_put(frame);
        assert_int_equal(put.value_bytes, sizes[i]);
        assert_int_equal(put.put_flags, FB_WIRE_PUT_UPSERT);
        assert_int_equal(put.pin_class, 16);
        assert_int_equal(put.depth, 5);
        assert_int_equal(put.persist, 4);
        assert_int_equal(put.key.epoch, NODE_EPOCH);
        assert_int_equal(put.key.deadline_ms, NODE_DEADLINE_NS / FB_MS_NS);
        assert_int_equal(put.inline_bytes, 0);
        uint64_t op = frame->header.op;
        memset(node.pool, 0, NODE_POOL_BYTES);
        node_grant(&node, op, sizes[i], 8192, 3 * 4096, GENERATION);
        assert_memory_equal(node.pool + 8192, batch.bytes, sizes[i]);
        assert_int_equal(node.pool[8192 + sizes[i]], 0);
        expect_commit(&node, op, batch.bytes, sizes[i]);
        assert_false(fb_proto_call_is_over(&batch.call));
        node_send_put_done(&node, op, FB_OK, FB_FRAME_PERSISTED);
        assert_true(fb_proto_call_is_over(&batch.call));
        assert_int_equal(batch.items[0].result, FB_OK);
        assert_true(batch.items[0].persisted);
        assert_int_equal(batch.items[0].generation, 77);
        assert_int_equal(fb_proto_client_open_ops(node.client), 0);
        batch_free(&batch);
        node_free(&node);
    }
}

static void grant_in_many_frames(void **state)
{
    (void)state;
    struct node node;
    struct batch batch;
    node_open(&node, SHM, 8, &plain);
    batch_make(&batch, &node, 1, 3 * NODE_CHUNK_BYTES);
    fb_proto_client_begin(node.client, node.now_ns, &batch.call);
    node_take(&node);
    uint64_t op = node_expect(&node, FB_MSG_PUT)->header.op;
    for (uint32_t part = 0; part < 3; part++) {
        uint8_t run[FB_WIRE_RUN_BYTES];
        struct fb_writer writer;
        fb_writer_init(&writer, run, sizeof(run));
        /* The parts lie in the pool back to front. */
        fb_wire_run_encode(&writer, &(struct fb_wire_run){(2 - part) * (uint64_t)NODE_CHUNK_BYTES,
                                                          NODE_CHUNK_BYTES});
        struct fb_msg_grant grant = {.generation = GENERATION,
                                     .value_off = (uint64_t)part * NODE_CHUNK_BYTES,
                                     .run_count = 1,
                                     .runs = run};
        NODE_SEND(&node, grant, FB_MSG_GRANT, part < 2 ? FB_FRAME_MORE : 0, op, &grant);
        node_take(&node);
        node_expect_nothing(&node);
        assert_int_equal(node_jobs(&node), 1);
    }
    assert_memory_equal(node.pool, batch.bytes + 2 * NODE_CHUNK_BYTES, NODE_CHUNK_BYTES);
    expect_commit(&node, op, batch.bytes, 3 * NODE_CHUNK_BYTES);
    node_send_put_done(&node, op, FB_OK, 0);
    assert_true(fb_proto_call_is_over(&batch.call));
    batch_free(&batch);
    node_free(&node);
}

/* Grants that a client must not believe: it would copy outside the pool, or too little, or twice.
 */
static void grants_that_are_not_sound(void **state)
{
    (void)state;
    static const struct {
        struct fb_wire_run run[2];
        uint32_t runs;
        uint64_t value_off, window;
        uint8_t flags;
    } bad[] = {
        {{{NODE_POOL_BYTES - 4096, 8192}}, 1, 0, 0, 0}, /* over the end of the pool */
        {{{UINT64_MAX - 8192, 8192}}, 1, 0, 0, 0},      /* far outside */
        {{{0, 4096}}, 1, 0, 0, 0},                      /* too short */
        {{{0, 8192}, {8192, 1}}, 2, 0, 0, 0},           /* too long */
        {{{0, 8192}}, 1, 4096, 0, 0},                   /* a gap */
        {{{0, 8192}}, 1, 0, 0, FB_FRAME_MORE},          /* more of what is complete */
        {{{0, 0}}, 0, 0, 4096, 0},                      /* a window of another length */
    };
    for (unsigned i = 0; i < FB_ARRAY_COUNT(bad); i++) {
        struct node node;
        struct batch batch;
        node_open(&node, SHM, 8, &plain);
        batch_make(&batch, &node, 2, 8192);
        fb_proto_client_begin(node.client, node.now_ns, &batch.call);
        node_take(&node);
        uint64_t op = node_expect(&node, FB_MSG_PUT)->header.op;
        uint8_t runs[2 * FB_WIRE_RUN_BYTES];
        struct fb_writer writer;
        fb_writer_init(&writer, runs, sizeof(runs));
        for (uint32_t r = 0; r < bad[i].runs; r++)
            fb_wire_run_encode(&writer, &bad[i].run[r]);
        struct fb_msg_grant grant = {.generation = GENERATION,
                                     .value_off = bad[i].value_off,
                                     .window_bytes = bad[i].window,
                                     .run_count = bad[i].runs,
                                     .runs = runs};
        NODE_SEND(&node, grant, FB_MSG_GRANT, bad[i].flags, op, &grant);
        assert_int_equal(node_jobs(&node), 0);
        assert_int_equal(fb_proto_client_state(node.client), FB_PROTO_LOST);
        assert_true(fb_proto_call_is_over(&batch.call));
        assert_int_equal(batch.items[0].result, FB_PROTOCOL);
        assert_int_equal(batch.items[1].result, FB_PROTOCOL);
        batch_free(&batch);
        node_free(&node);
    }
}

/* The same key twice is one put; the later items end as the first. */
static void duplicates_in_a_batch(void **state)
{
    (void)state;
    static const int outcomes[] = {FB_OK, FB_EXISTS, FB_QUOTA};
    for (unsigned i = 0; i < FB_ARRAY_COUNT(outcomes); i++) {
        struct node node;
        struct batch batch;
        node_open(&node, SHM, 8, &plain);
        batch_make(&batch, &node, 4, 4096);
        memcpy(batch.keys[2], "key-0", sizeof("key-0"));
        memcpy(batch.keys[3], "key-0", sizeof("key-0"));
        fb_proto_client_begin(node.client, node.now_ns, &batch.call);
        node_take(&node);
        uint64_t first = node_expect(&node, FB_MSG_PUT)->header.op;
        uint64_t second = node_expect(&node, FB_MSG_PUT)->header.op;
        node_expect_nothing(&node);
        node_send_put_done(&node, second, FB_EXISTS, 0);
        node_send_put_done(&node, first, outcomes[i], FB_FRAME_PERSISTED);
        assert_true(fb_proto_call_is_over(&batch.call));
        assert_int_equal(batch.items[0].result, outcomes[i]);
        assert_int_equal(batch.items[1].result, FB_EXISTS);
        int twin = outcomes[i] >= 0 ? FB_EXISTS : outcomes[i];
        assert_int_equal(batch.items[2].result, twin);
        assert_int_equal(batch.items[3].result, twin);
        assert_true(batch.items[3].persisted);
        batch_free(&batch);
        node_free(&node);
    }
}

static void one_bad_key_fails_its_batch_only_if_the_bug_is_on(void **state)
{
    (void)state;
    static const char *const bugs[] = {"", "wholebatch"};
    for (unsigned i = 0; i < 2; i++) {
        if (fb_bug_enable(bugs[i]) != 0)
            return; /* a release build */
        struct node node;
        struct batch batch;
        node_open(&node, SHM, 8, &plain);
        batch_make(&batch, &node, 3, 100);
        fb_proto_client_begin(node.client, node.now_ns, &batch.call);
        node_take(&node);
        for (unsigned k = 0; k < 3; k++)
            node_send_put_done(&node, node_expect(&node, FB_MSG_PUT)->header.op,
                               k == 1 ? FB_EXISTS : FB_OK, 0);
        assert_int_equal(batch.items[0].result, i == 0 ? FB_OK : FB_BUSY);
        assert_int_equal(batch.items[1].result, i == 0 ? FB_EXISTS : FB_BUSY);
        batch_free(&batch);
        node_free(&node);
    }
    assert_int_equal(fb_bug_enable(""), 0);
}

static void arguments_are_checked_here(void **state)
{
    (void)state;
    struct node node;
    struct batch batch;
    node_open(&node, SHM, 8, &plain);
    batch_make(&batch, &node, 10, 100);
    struct fb_buf hole = {NULL, 5};
    struct fb_buf huge = {batch.bytes, SIZE_MAX};
    struct fb_buf two_huge[2] = {huge, huge};
    struct fb_buf too_big = {batch.bytes, FB_VALUE_BYTES_MAX + 1};
    batch.items[0].key_bytes = 0;
    batch.items[1].key_bytes = FB_KEY_BYTES_MAX + 1;
    batch.items[2].key = NULL;
    batch.items[3].buf_count = 0;
    batch.items[4].bufs = &hole;
    batch.items[4].buf_count = 1;
    batch.items[5].bufs = two_huge;
    batch.items[6].bufs = &too_big;
    batch.items[6].buf_count = 1;
    batch.items[7].persist_mode = 5;
    batch.items[8].flags = 8;
    batch.items[9].pin_class = 3;
    fb_proto_client_begin(node.client, node.now_ns, &batch.call);
    node_take(&node);
    node_expect_nothing(&node);
    assert_true(fb_proto_call_is_over(&batch.call));
    for (unsigned i = 0; i < 10; i++) {
        int want = i <= 2 ? FB_BAD_KEY : i == 6 ? FB_TOO_BIG : FB_BAD_ARGUMENT;
        assert_int_equal(batch.items[i].result, want);
    }
    batch_free(&batch);
    node_free(&node);
}

static void the_window_is_the_credit(void **state)
{
    (void)state;
    struct node node;
    struct batch batch;
    node_open(&node, SHM, 4, &plain);
    batch_make(&batch, &node, 300, 50);
    fb_proto_client_begin(node.client, node.now_ns, &batch.call);
    for (unsigned i = 0; i < 300; i++) {
        node_take(&node);
        assert_true(node.count - node.first <= 4);
        assert_true(node.count - node.first == fb_min_u64(4, 300 - i));
        node_send_put_done(&node, node_expect(&node, FB_MSG_PUT)->header.op, FB_EXISTS, 0);
    }
    assert_true(fb_proto_call_is_over(&batch.call));
    for (unsigned i = 0; i < 300; i++)
        assert_int_equal(batch.items[i].result, FB_EXISTS);
    batch_free(&batch);
    node_free(&node);
}

/* Values of many parts need room for their leaves: as many are open as there is. */
static void big_puts_take_turns(void **state)
{
    (void)state;
    struct node node;
    struct batch batch;
    node_open(&node, SHM, 64, &plain);
    batch_make(&batch, &node, 6, 100);
    /* 17 leaves each; the bytes are never read. */
    struct fb_buf big = {batch.bytes, 17 * FB_LEAF_BYTES};
    for (unsigned i = 0; i < 6; i++) {
        batch.items[i].bufs = &big;
        batch.items[i].buf_count = 1;
    }
    fb_proto_client_begin(node.client, node.now_ns, &batch.call);
    node_take(&node);
    assert_int_equal(node.count - node.first, FB_PROTO_BIG_PUTS);
    for (unsigned i = 0; i < 6; i++) {
        node_send_put_done(&node, node_expect(&node, FB_MSG_PUT)->header.op, FB_BUSY, 0);
        node_take(&node);
    }
    assert_true(fb_proto_call_is_over(&batch.call));
    assert_int_equal(batch.items[5].result, FB_BUSY);
    batch_free(&batch);
    node_free(&node);
}

static void inline_values_and_their_credit(void **state)
{
    (void)state;
    struct node node;
    struct batch batch;
    struct fb_proto_config config = plain;
    config.inline_bytes_max = FB_WIRE_INLINE_MAX;
    node_make(&node, 0, 64, &config);
    node.welcome.inline_credit_bytes = 10000;
    node_take(&node);
    node_expect(&node, FB_MSG_HELLO);
    NODE_SEND(&node, welcome, FB_MSG_WELCOME, 0, 0, &node.welcome);
    node_take(&node);
    struct fb_msg_namespace_done done = {.ns = 3, .epoch = NODE_EPOCH};
    NODE_SEND(&node, namespace_done, FB_MSG_NAMESPACE_DONE, 0,
              node_expect(&node, FB_MSG_NAMESPACE)->header.op, &done);
    batch_make(&batch, &node, 4, 4000);
    fb_proto_client_begin(node.client, node.now_ns, &batch.call);
    node_take(&node);
    uint64_t op[4];
    for (unsigned i = 0; i < 4; i++) {
        const struct node_frame *frame = node_expect(&node, FB_MSG_PUT);
        struct fb_msg_put put = read_put(frame);
        op[i] = frame->header.op;
        assert_int_equal(put.inline_bytes, i < 2 ? 4000 : 0);
        if (i >= 2)
            continue;
        assert_memory_equal(put.inline_data, batch.bytes + i * 4000, 4000);
        assert_true(put.inline_leaf == fb_leaf_hash(batch.bytes + i * 4000, 4000));
    }
    node_send_put_done(&node, op[0], FB_OK, 0);
    /* The offer was not taken: the bytes are asked for like those of any put. */
    struct fb_msg_grant grant = {.generation = GENERATION, .window_bytes = 4000};
    NODE_SEND(&node, grant, FB_MSG_GRANT, 0, op[1], &grant);
    node_take(&node);
    struct fb_reader reader = node_reader(node_expect(&node, FB_MSG_DATA));
    struct fb_msg_data data;
    const char *bad;
    assert_int_equal(fb_wire_data_decode(&reader, &data, &bad), FB_OK);
    assert_memory_equal(data.bytes, batch.bytes + 4000, 4000);
    expect_commit(&node, op[1], batch.bytes + 4000, 4000);
    for (unsigned i = 1; i < 4; i++)
        node_send_put_done(&node, op[i], FB_OK, 0);
    assert_true(fb_proto_call_is_over(&batch.call));
    batch_free(&batch);
    node_free(&node);
}

static void put_over_a_stream(void **state)
{
    (void)state;
    const size_t bytes = 2 * NODE_CHUNK_BYTES + 300001;
    struct node node;
    struct batch batch;
    node_open(&node, 0, 8, &plain);
    batch_make(&batch, &node, 1, bytes);
    fb_proto_client_begin(node.client, node.now_ns, &batch.call);
    node_take(&node);
    uint64_t op = node_expect(&node, FB_MSG_PUT)->header.op;
    struct fb_msg_grant grant = {.generation = GENERATION, .window_bytes = bytes};
    NODE_SEND(&node, grant, FB_MSG_GRANT, 0, op, &grant);
    node_take(&node);
    for (size_t off = 0; off < bytes;) {
        struct fb_reader reader = node_reader(node_expect(&node, FB_MSG_DATA));
        struct fb_msg_data data;
        const char *bad;
        assert_int_equal(fb_wire_data_decode(&reader, &data, &bad), FB_OK);
        assert_int_equal(data.off, off);
        assert_true(data.len <= FB_LEAF_BYTES - off % FB_LEAF_BYTES);
        assert_memory_equal(data.bytes, batch.bytes + off, data.len);
        off += data.len;
    }
    expect_commit(&node, op, batch.bytes, bytes);
    node_send_put_done(&node, op, FB_OK, 0);
    assert_true(fb_proto_call_is_over(&batch.call));
    batch_free(&batch);
    node_free(&node);
}

static void a_late_commit(void **state)
{
    (void)state;
    struct node node;
    struct batch batch;
    struct fb_proto_config config = plain;
    config.commit_delay_ns = 5 * FB_MS_NS;
    config.inline_bytes_max = FB_WIRE_INLINE_MAX;
    node_open(&node, SHM, 8, &config);
    batch_make(&batch, &node, 1, 4096);
    fb_proto_client_begin(node.client, node.now_ns, &batch.call);
    node_take(&node);
    const struct node_frame *frame = node_expect(&node, FB_MSG_PUT);
    assert_int_equal(read_put(frame).inline_bytes, 0);
    uint64_t op = frame->header.op;
    node_grant(&node, op, 4096, 0, 4096, GENERATION);
    node_take(&node);
    node_expect_nothing(&node);
    uint64_t due_ns = node.now_ns + 5 * FB_MS_NS;
    assert_true(fb_proto_client_next_ns(node.client) == due_ns);
    node.now_ns = due_ns - 1;
    fb_proto_client_tick(node.client, node.now_ns);
    node_take(&node);
    node_expect_nothing(&node);
    node.now_ns = due_ns;
    fb_proto_client_tick(node.client, node.now_ns);
    expect_commit(&node, op, batch.bytes, 4096);
    node_send_put_done(&node, op, FB_OK, 0);
    assert_true(fb_proto_call_is_over(&batch.call));
    batch_free(&batch);
    node_free(&node);
}

/* Takes the grant's jobs without doing them. */
static size_t grant_without_copy(struct node *node, uint64_t op, struct fb_proto_job *job)
{
    uint8_t run[FB_WIRE_RUN_BYTES];
    struct fb_writer writer;
    fb_writer_init(&writer, run, sizeof(run));
    fb_wire_run_encode(&writer, &(struct fb_wire_run){0, 4096});
    struct fb_msg_grant grant = {.generation = GENERATION, .run_count = 1, .runs = run};
    NODE_SEND(node, grant, FB_MSG_GRANT, 0, op, &grant);
    return fb_proto_client_take_job(node->client, job) ? 1 : 0;
}

static void revoked_in_mid_copy(void **state)
{
    (void)state;
    for (int moved = 0; moved < 2; moved++) {
        struct node node;
        struct batch batch;
        struct fb_proto_job job;
        node_open(&node, SHM, 8, &plain);
        batch_make(&batch, &node, 1, 4096);
        fb_proto_client_begin(node.client, node.now_ns, &batch.call);
        node_take(&node);
        uint64_t op = node_expect(&node, FB_MSG_PUT)->header.op;
        assert_int_equal(grant_without_copy(&node, op, &job), 1);
        assert_true(fb_proto_client_job_is_wanted(node.client, &job));
        node_send_put_done(&node, op, FB_REMOVED, FB_FRAME_RELEASE_WANTED);
        /* The copy still runs: the memory is not given back, and the call is not over. */
        assert_false(fb_proto_client_job_is_wanted(node.client, &job));
        node_take(&node);
        node_expect_nothing(&node);
        assert_false(fb_proto_call_is_over(&batch.call));
        uint64_t leaf = 1;
        fb_proto_client_job_done(node.client, node.now_ns, &job, &leaf, moved != 0);
        assert_true(fb_proto_call_is_over(&batch.call));
        assert_int_equal(batch.items[0].result, FB_REMOVED);
        node_take(&node);
        assert_int_equal(node_expect(&node, FB_MSG_RELEASE)->header.op, op);
        node_expect_nothing(&node);
        assert_int_equal(fb_proto_client_open_ops(node.client), 0);
        /* That RELEASE may never arrive: whoever comes next must name the session. */
        fb_proto_client_lost(node.client, node.now_ns, FB_CONNECTION, "closed");
        assert_true(fb_proto_client_owes_memory(node.client));
        batch_free(&batch);
        node_free(&node);
    }
}

static void revoked_after_commit_was_sent(void **state)
{
    (void)state;
    struct node node;
    struct batch batch;
    node_open(&node, SHM, 8, &plain);
    batch_make(&batch, &node, 1, 4096);
    fb_proto_client_begin(node.client, node.now_ns, &batch.call);
    node_take(&node);
    uint64_t op = node_expect(&node, FB_MSG_PUT)->header.op;
    node_grant(&node, op, 4096, 0, 4096, GENERATION);
    expect_commit(&node, op, batch.bytes, 4096);
    node_send_put_done(&node, op, FB_DEADLINE, FB_FRAME_RELEASE_WANTED);
    node_take(&node);
    node_expect(&node, FB_MSG_RELEASE);
    assert_true(fb_proto_call_is_over(&batch.call));
    assert_int_equal(batch.items[0].result, FB_DEADLINE);
    batch_free(&batch);
    node_free(&node);
}

static void pass_deadline(struct node *node)
{
    node->now_ns += NODE_DEADLINE_NS;
    fb_proto_client_tick(node->client, node->now_ns);
    node_take(node);
}

static void deadline_before_the_grant(void **state)
{
    (void)state;
    struct node node;
    struct batch batch;
    node_open(&node, SHM, 1, &plain);
    batch_make(&batch, &node, 2, 4096);
    fb_proto_client_begin(node.client, node.now_ns, &batch.call);
    node_take(&node);
    uint64_t op = node_expect(&node, FB_MSG_PUT)->header.op;
    assert_true(fb_proto_client_next_ns(node.client) <= batch.call.deadline_ns);
    pass_deadline(&node);
    assert_int_equal(node_expect(&node, FB_MSG_CANCEL)->header.op, op);
    node_expect_nothing(&node);
    /* The grant crosses the CANCEL: nothing is copied any more. */
    struct fb_proto_job job;
    assert_int_equal(grant_without_copy(&node, op, &job), 0);
    node_take(&node);
    node_expect_nothing(&node);
    node_send_put_done(&node, op, FB_DEADLINE, FB_FRAME_RELEASE_WANTED);
    node_take(&node);
    node_expect(&node, FB_MSG_RELEASE);
    assert_true(fb_proto_call_is_over(&batch.call));
    assert_int_equal(batch.items[0].result, FB_DEADLINE);
    assert_int_equal(batch.items[1].result, FB_DEADLINE);
    batch_free(&batch);
    node_free(&node);
}

static void deadline_in_mid_copy(void **state)
{
    (void)state;
    for (int crossing = 0; crossing < 2; crossing++) {
        struct node node;
        struct batch batch;
        struct fb_proto_job job;
        node_open(&node, SHM, 8, &plain);
        batch_make(&batch, &node, 1, 4096);
        fb_proto_client_begin(node.client, node.now_ns, &batch.call);
        node_take(&node);
        uint64_t op = node_expect(&node, FB_MSG_PUT)->header.op;
        assert_int_equal(grant_without_copy(&node, op, &job), 1);
        pass_deadline(&node);
        node_expect_nothing(&node);
        /* Even when the time for answers is over: a copy that runs keeps the call. */
        node.now_ns += FB_PROTO_ABORT_NS;
        fb_proto_client_tick(node.client, node.now_ns);
        assert_false(fb_proto_call_is_over(&batch.call));
        assert_false(fb_proto_client_job_is_wanted(node.client, &job));
        fb_proto_client_job_done(node.client, node.now_ns, &job, NULL, false);
        assert_true(fb_proto_call_is_over(&batch.call));
        assert_int_equal(batch.items[0].result, FB_DEADLINE);
        node_take(&node);
        node_expect(&node, FB_MSG_RELEASE);
        /* The last answer, perhaps written before RELEASE was read: no second RELEASE. */
        node_send_put_done(&node, op, FB_DEADLINE, crossing != 0 ? FB_FRAME_RELEASE_WANTED : 0);
        node_take(&node);
        node_expect_nothing(&node);
        assert_int_equal(fb_proto_client_open_ops(node.client), 0);
        batch_free(&batch);
        node_free(&node);
    }
}

static void deadline_while_the_commit_is_held_back(void **state)
{
    (void)state;
    struct node node;
    struct batch batch;
    struct fb_proto_config config = plain;
    config.commit_delay_ns = 2 * NODE_DEADLINE_NS;
    node_open(&node, SHM, 8, &config);
    batch_make(&batch, &node, 1, 4096);
    fb_proto_client_begin(node.client, node.now_ns, &batch.call);
    node_take(&node);
    uint64_t op = node_expect(&node, FB_MSG_PUT)->header.op;
    node_grant(&node, op, 4096, 0, 4096, GENERATION);
    pass_deadline(&node);
    node_expect(&node, FB_MSG_RELEASE);
    node_send_put_done(&node, op, FB_DEADLINE, 0);
    assert_true(fb_proto_call_is_over(&batch.call));
    batch_free(&batch);
    node_free(&node);
}

static void deadline_after_the_commit(void **state)
{
    (void)state;
    struct node node;
    struct batch batch;
    node_open(&node, SHM, 8, &plain);
    batch_make(&batch, &node, 1, 4096);
    fb_proto_client_begin(node.client, node.now_ns, &batch.call);
    node_take(&node);
    uint64_t op = node_expect(&node, FB_MSG_PUT)->header.op;
    node_grant(&node, op, 4096, 0, 4096, GENERATION);
    expect_commit(&node, op, batch.bytes, 4096);
    pass_deadline(&node);
    node_expect(&node, FB_MSG_CANCEL);
    /* It was stored all the same, and the answer comes in time to be believed. */
    node_send_put_done(&node, op, FB_OK, 0);
    assert_true(fb_proto_call_is_over(&batch.call));
    assert_int_equal(batch.items[0].result, FB_OK);
    batch_free(&batch);
    node_free(&node);
}

/* A node that does not answer: the call ends, its operations go on without it, the next call works.
 */
static void a_call_ends_without_answers(void **state)
{
    (void)state;
    struct node node;
    struct batch batch, next;
    node_open(&node, SHM, 2, &plain);
    batch_make(&batch, &node, 2, 4096);
    fb_proto_client_begin(node.client, node.now_ns, &batch.call);
    node_take(&node);
    uint64_t first = node_expect(&node, FB_MSG_PUT)->header.op;
    uint64_t second = node_expect(&node, FB_MSG_PUT)->header.op;
    node_grant(&node, first, 4096, 0, 4096, GENERATION);
    expect_commit(&node, first, batch.bytes, 4096);
    pass_deadline(&node);
    node_expect(&node, FB_MSG_CANCEL);
    node_expect(&node, FB_MSG_CANCEL);
    node.now_ns += FB_PROTO_ABORT_NS - 1;
    fb_proto_client_tick(node.client, node.now_ns);
    assert_false(fb_proto_call_is_over(&batch.call));
    node.now_ns++;
    fb_proto_client_tick(node.client, node.now_ns);
    assert_true(fb_proto_call_is_over(&batch.call));
    assert_int_equal(batch.items[0].result, FB_DEADLINE);
    assert_int_equal(batch.items[1].result, FB_DEADLINE);
    batch_free(&batch); /* nobody may touch it any more */
    assert_int_equal(fb_proto_client_open_ops(node.client), 2);

    batch_make(&next, &node, 1, 4096);
    fb_proto_client_begin(node.client, node.now_ns, &next.call);
    node_take(&node);
    node_expect_nothing(&node); /* no credit yet */
    struct fb_proto_job job;
    assert_int_equal(grant_without_copy(&node, second, &job), 0);
    node_send_put_done(&node, second, FB_DEADLINE, FB_FRAME_RELEASE_WANTED);
    node_send_put_done(&node, first, FB_OK, 0);
    node_take(&node);
    node_expect(&node, FB_MSG_RELEASE);
    node_send_put_done(&node, node_expect(&node, FB_MSG_PUT)->header.op, FB_OK, 0);
    assert_true(fb_proto_call_is_over(&next.call));
    assert_int_equal(next.items[0].result, FB_OK);
    batch_free(&next);
    node_free(&node);
}

/* A copy that takes long is not the node's silence. */
static void a_long_copy_is_no_silence(void **state)
{
    (void)state;
    struct node node;
    struct batch batch;
    struct fb_proto_job job;
    node_make(&node, SHM, 8, &plain);
    node.welcome.heartbeat_ms = 100;
    NODE_SEND(&node, welcome, FB_MSG_WELCOME, 0, 0, &node.welcome);
    node_take(&node);
    node_expect(&node, FB_MSG_HELLO);
    struct fb_msg_namespace_done done = {.ns = 3, .epoch = NODE_EPOCH};
    NODE_SEND(&node, namespace_done, FB_MSG_NAMESPACE_DONE, 0,
              node_expect(&node, FB_MSG_NAMESPACE)->header.op, &done);
    batch_make(&batch, &node, 1, 4096);
    fb_proto_client_begin(node.client, node.now_ns, &batch.call);
    node_take(&node);
    uint64_t op = node_expect(&node, FB_MSG_PUT)->header.op;
    assert_int_equal(grant_without_copy(&node, op, &job), 1);
    node.now_ns += FB_SEC_NS;
    uint64_t leaf = 1;
    fb_proto_client_job_done(node.client, node.now_ns, &job, &leaf, true);
    fb_proto_client_tick(node.client, node.now_ns);
    node_take(&node);
    node_expect(&node, FB_MSG_COMMIT);
    node_expect_nothing(&node);
    node_send_put_done(&node, op, FB_OK, 0);
    assert_true(fb_proto_call_is_over(&batch.call));
    batch_free(&batch);
    node_free(&node);
}

static void a_lost_connection(void **state)
{
    (void)state;
    struct node node;
    struct batch batch;
    struct fb_proto_job job;
    node_open(&node, SHM, 2, &plain);
    batch_make(&batch, &node, 3, 4096);
    fb_proto_client_begin(node.client, node.now_ns, &batch.call);
    node_take(&node);
    uint64_t op = node_expect(&node, FB_MSG_PUT)->header.op;
    assert_int_equal(grant_without_copy(&node, op, &job), 1);
    fb_proto_client_lost(node.client, node.now_ns, FB_CONNECTION, "closed");
    assert_false(fb_proto_call_is_over(&batch.call)); /* the copy */
    assert_int_equal(batch.items[1].result, FB_CONNECTION);
    assert_int_equal(batch.items[2].result, FB_CONNECTION);
    assert_true(fb_proto_client_owes_memory(node.client));
    uint64_t leaf = 0;
    fb_proto_client_job_done(node.client, node.now_ns, &job, &leaf, true);
    assert_true(fb_proto_call_is_over(&batch.call));
    assert_int_equal(batch.items[0].result, FB_CONNECTION);
    node_take(&node);
    node.first++; /* the second PUT */
    node_expect_nothing(&node);
    batch_free(&batch);
    node_free(&node);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(put_over_shared_memory),
        cmocka_unit_test(grant_in_many_frames),
        cmocka_unit_test(grants_that_are_not_sound),
        cmocka_unit_test(duplicates_in_a_batch),
        cmocka_unit_test(one_bad_key_fails_its_batch_only_if_the_bug_is_on),
        cmocka_unit_test(arguments_are_checked_here),
        cmocka_unit_test(the_window_is_the_credit),
        cmocka_unit_test(big_puts_take_turns),
        cmocka_unit_test(inline_values_and_their_credit),
        cmocka_unit_test(put_over_a_stream),
        cmocka_unit_test(a_late_commit),
        cmocka_unit_test(revoked_in_mid_copy),
        cmocka_unit_test(revoked_after_commit_was_sent),
        cmocka_unit_test(deadline_before_the_grant),
        cmocka_unit_test(deadline_in_mid_copy),
        cmocka_unit_test(deadline_while_the_commit_is_held_back),
        cmocka_unit_test(deadline_after_the_commit),
        cmocka_unit_test(a_call_ends_without_answers),
        cmocka_unit_test(a_long_copy_is_no_silence),
        cmocka_unit_test(a_lost_connection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
