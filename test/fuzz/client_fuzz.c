/*
 * The client's side of a connection, fed with frames of a node that means no good.
 *
 * An input is a list of items, below: frames as they are on the wire, calls that begin, copy jobs
 * that end at some time or are dropped, time that passes. An op below 128 in a frame means "the
 * operation that is open in this slot", so that the fuzzer need not guess numbers; and the node has
 * well-meaning answers too, composed from what was asked.
 *
 * Whatever comes, no assertion fails; each frame that goes out is whole and one that a client
 * sends; a call ends once its deadline and the abort bound have passed and its jobs are done; its
 * memory is given back at once when it ends, so that the sanitizer sees who touches it afterwards;
 * and every item of it then has a result.
 */
#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/bits.h"
#include "base/limits.h"
#include "base/result.h"
#include "client/copy.h"
#include "proto/client_private.h"
#include "test/fuzz/wire_check.h"
#include "test/lib/fuzz.h"

/* What an item does. A byte that is none of these does nothing. */
enum item {
    ITEM_FRAME = FB_WIRE_MAGIC, /* a frame from the node, header and payload */
    ITEM_AS_IS = 0,             /* the next frame's check is not made good */
    ITEM_TIME,                  /* u8: so many times 50 ms pass */
    ITEM_TAKE,                  /* u8: at most so many frames are taken; 0: all there are */
    ITEM_CALL,                  /* u8 kind, u8 count, u8 shape: a call begins, if none is there */
    ITEM_JOB,                   /* u8: the copy job of this number is done; bit 7: dropped */
    ITEM_LATE,                  /* u8: jobs are kept from now on (1), or done at once (0) */
    ITEM_LOST,                  /* the connection is gone */
    ITEM_ANSWER,                /* u8 slot, u8 how: a well-meaning answer */
    ITEM_BEND,                  /* u8 at, u8 bits: so is the payload of the next answer changed */
    ITEM_SLOW_DATA,             /* u8: so many times 50 ms pass before the end of each DATA */
    ITEM_COUNT
};

/* The first byte of an input. */
enum option {
    OPTION_SHM = 1,
    OPTION_LATE_COMMIT = 2,
    OPTION_SMALL = 4, /* few operations, few leaves */
    OPTION_NO_INLINE = 8,
    OPTION_NO_SPACE = 16, /* no namespace is opened */
    OPTION_SILENT = 32,   /* the opening dialogue is the input's own business */
    OPTION_SMALL_CHUNKS = 64,
    OPTION_COUNT = 128
};

#define POOL_BYTES        FB_KIB(512)
#define CHUNK_BYTES_LARGE FB_KIB(64)
#define CHUNK_BYTES_SMALL FB_KIB(8)
#define ITEMS_MAX         8
#define JOBS_MAX          16
#define KEY_BYTES         4
#define TEXT_BYTES        64
#define STEP_NS           (50 * FB_MS_NS)
#define DEADLINE_NS       (2 * FB_SEC_NS)
#define MAP               1
#define EPOCH             7
#define NONCE             5
#define ROOM_SMALL        64
#define RUNS_MAX          16
#define GENERATION        ((UINT64_C(3) << 40) | 9)
#define VALUE_POOL_AT     FB_PAGE_BYTES /* where the node's one value lies in the pool */

/* A call and all that it points at, each in memory of its own. */
struct call {
    struct fb_proto_call call;
    struct fb_buf bufs[ITEMS_MAX][2];
    uint8_t *keys[ITEMS_MAX];
    struct fb_explanation explanation;
};

struct job {
    struct fb_proto_job job;
    uint8_t *runs;
};

static struct fb_proto_client *client;
static uint8_t *client_memory;
static size_t client_bytes;
static uint8_t *pool;
static struct call *call;
static struct job jobs[JOBS_MAX];
static unsigned job_count;
static bool keep_jobs;
static uint64_t now, data_delay_ns;
static uint32_t chunk_bytes;
static uint8_t bend_at, bend_bits; /* 0: not at all */
static uint8_t frame[FB_FRAME_BYTES_MAX];
static uint8_t room[FB_FRAME_BYTES_MAX];
static struct wire_check out;
static const uint8_t fields[] = {1, 1, 1, 0, 0, 0, 'm'};

/* ---- the caller ---- */

static void free_call(void)
{
    struct fb_proto_call *c = &call->call;
    for (unsigned i = 0; i < ITEMS_MAX; i++) {
        free(call->keys[i]);
        free(call->bufs[i][0].ptr);
        free(call->bufs[i][1].ptr);
    }
    free(c->items.put);
    free(c->scratch);
    free(c->text);
    free(call);
    call = NULL;
}

static int result_of(const struct fb_proto_call *c, size_t i)
{
    switch (c->kind) {
    case FB_PROTO_PUT:
        return c->items.put[i].result;
    case FB_PROTO_GET:
        return c->items.get[i].result;
    case FB_PROTO_EXISTS:
        return c->items.exists[i].result;
    default:
        return c->items.key[i].result;
    }
}

#define NO_RESULT 12345

/* If the call is over, all of it is checked and its memory given back. */
static void reap_call(void)
{
    if (call == NULL || !fb_proto_call_is_over(&call->call))
        return;
    const struct fb_proto_call *c = &call->call;
    FUZZ_CHECK(c->open_ops == 0);
    for (size_t i = 0; c->kind <= FB_PROTO_DROP && i < c->count; i++) {
        FUZZ_CHECK(fb_result_index(result_of(c, i)) >= 0);
        if (c->kind == FB_PROTO_GET && c->items.get[i].result == FB_OK)
            FUZZ_CHECK(c->items.get[i].bytes <= c->items.get[i].value_bytes);
    }
    if (c->kind > FB_PROTO_DROP)
        FUZZ_CHECK(fb_result_index(c->result) >= 0);
    free_call();
}

/* Buffers of so many bytes, split somewhere. */
static void make_bufs(struct fb_buf bufs[2], uint64_t bytes, unsigned shape)
{
    size_t first = (size_t)(bytes * (shape % 3) / 3);
    bufs[0].len = first;
    bufs[1].len = (size_t)bytes - first;
    for (unsigned i = 0; i < 2; i++) {
        bufs[i].ptr = malloc(bufs[i].len);
        FUZZ_CHECK(bufs[i].ptr != NULL || bufs[i].len == 0);
        memset(bufs[i].ptr, 'v', bufs[i].len);
    }
}

static const uint32_t value_sizes[] = {100, 5000, 70000, 200000, 16384, 0, 65536, 1};

static void fill_item(unsigned i, unsigned shape)
{
    struct fb_proto_call *c = &call->call;
    size_t key_bytes = (shape & 128) != 0 && i == 1 ? 0 : KEY_BYTES;
    call->keys[i] = malloc(KEY_BYTES);
    memset(call->keys[i], 'a' + (int)(i % 3), KEY_BYTES);
    uint32_t bytes = value_sizes[(shape + i) % FB_ARRAY_COUNT(value_sizes)];
    if (c->kind == FB_PROTO_PUT || c->kind == FB_PROTO_GET)
        make_bufs(call->bufs[i], bytes, shape);
    switch (c->kind) {
    case FB_PROTO_PUT:
        c->items.put[i] = (struct fb_put_item){.key = call->keys[i],
                                               .key_bytes = key_bytes,
                                               .bufs = call->bufs[i],
                                               .buf_count = 2,
                                               .flags = (shape >> 3) & FB_UPSERT,
                                               .result = NO_RESULT};
        if ((shape & 64) != 0) {
            c->items.put[i].group = call->keys[i];
            c->items.put[i].group_bytes = KEY_BYTES;
            c->items.put[i].flags |= FB_WILL_RETURN | FB_ONE_SHOT;
        }
        break;
    case FB_PROTO_GET:
        c->items.get[i] = (struct fb_get_item){.key = call->keys[i],
                                               .key_bytes = key_bytes,
                                               .bufs = call->bufs[i],
                                               .buf_count = 2,
                                               .result = NO_RESULT};
        if ((shape & 32) != 0) {
            c->items.get[i].range_off = 1000;
            c->items.get[i].range_bytes = bytes;
            c->items.get[i].flags = FB_GET_USES_HOLD | FB_GET_STAYS_COLD;
        }
        break;
    case FB_PROTO_EXISTS:
        c->items.exists[i] = (struct fb_exists_item){.key = call->keys[i],
                                                     .key_bytes = key_bytes,
                                                     .result = NO_RESULT};
        break;
    default:
        c->items.key[i] =
            (struct fb_key_item){.key = call->keys[i], .key_bytes = key_bytes, .result = NO_RESULT};
        break;
    }
}

static int each(void *context, const void *key, size_t key_bytes)
{
    (void)context;
    fuzz_touch(key, key_bytes);
    return key_bytes == 7 ? -1 : 0; /* a caller who has had enough */
}

static void item_call(struct fuzz_input *input)
{
    uint8_t kind = (uint8_t)fuzz_choice(input, FB_PROTO_CALL_KINDS);
    size_t count = fuzz_choice(input, ITEMS_MAX + 1);
    unsigned shape = (unsigned)fuzz_number(input, 1);
    if (client->config.fields == NULL)
        kind = FB_PROTO_STATUS; /* all that can be asked for without a namespace */
    if (call != NULL || fb_proto_client_state(client) != FB_PROTO_READY)
        return;
    call = calloc(1, sizeof(*call));
    FUZZ_CHECK(call != NULL);
    struct fb_proto_call *c = &call->call;
    c->kind = kind;
    c->epoch = EPOCH;
    c->deadline_ns = now + DEADLINE_NS;
    c->hold_ms = (shape & 16) != 0 ? 100 : 0;
    c->hold_loads = 1;
    c->count = kind == FB_PROTO_EXPLAIN ? 1 : count;
    c->result = kind <= FB_PROTO_DROP ? 0 : NO_RESULT;
    static const size_t item_bytes[FB_PROTO_CALL_KINDS] = {
        [FB_PROTO_PUT] = sizeof(struct fb_put_item),
        [FB_PROTO_GET] = sizeof(struct fb_get_item),
        [FB_PROTO_EXISTS] = sizeof(struct fb_exists_item),
    };
    bool is_key = item_bytes[kind] == 0;
    c->items.put = calloc(c->count, is_key ? sizeof(struct fb_key_item) : item_bytes[kind]);
    c->explanation = &call->explanation;
    c->each = each;
    c->text = malloc(TEXT_BYTES);
    c->text_bytes = TEXT_BYTES;
    size_t words = fb_proto_call_scratch_words(c->count);
    if (kind == FB_PROTO_PUT && (shape & 8) == 0)
        c->scratch = malloc(words * sizeof(uint32_t));
    for (unsigned i = 0; i < c->count; i++)
        fill_item(i, shape);
    fb_proto_client_begin(client, now, c);
}

/* ---- copy jobs ---- */

static void end_job(unsigned n, bool drop)
{
    struct job *at = &jobs[n];
    uint64_t leaves[FB_PROTO_LEAVES_MAX];
    bool wanted = fb_proto_client_job_is_wanted(client, &at->job) && !drop;
    if (wanted)
        fb_copy_job(&at->job, pool, leaves);
    free(at->runs);
    struct fb_proto_job job = at->job;
    jobs[n] = jobs[--job_count];
    fb_proto_client_job_done(client, now, &job, leaves, wanted);
}

static void take_jobs(void)
{
    struct fb_proto_job job;
    while (fb_proto_client_take_job(client, &job)) {
        if (job_count == JOBS_MAX)
            end_job(0, true);
        struct job *at = &jobs[job_count++];
        at->job = job;
        at->runs = fuzz_exact(job.runs, (size_t)job.run_count * FB_WIRE_RUN_BYTES);
        at->job.runs = at->runs;
        if (!keep_jobs)
            end_job(job_count - 1, false);
    }
}

/* ---- frames ---- */

static void take_frames(unsigned limit)
{
    struct fb_proto_frame made;
    for (unsigned n = 0; limit == 0 || n < limit; n++) {
        size_t room_bytes = ROOM_SMALL;
        if (!fb_proto_client_take_frame(client, now, room, room_bytes, &made)) {
            if (!made.needs_room)
                return;
            room_bytes = FB_FRAME_BYTES_MAX;
            if (!fb_proto_client_take_frame(client, now, room, room_bytes, &made)) {
                FUZZ_CHECK(!made.needs_room);
                return;
            }
        }
        FUZZ_CHECK(made.bytes <= room_bytes);
        wire_check_bytes(&out, room, made.bytes);
        struct fb_scatter scatter;
        if (made.payload_bytes == 0)
            continue;
        fb_scatter_begin(&scatter, made.bufs, made.buf_count, made.payload_off);
        fb_scatter_read(&scatter, room, made.payload_bytes);
        wire_check_bytes(&out, room, made.payload_bytes);
    }
}

/* A DATA frame: head, bytes into the sink, end; time may pass in between. */
static void input_data(const uint8_t *bytes, uint32_t payload_bytes)
{
    uint8_t *head = fuzz_exact(bytes, FB_WIRE_HEADER_BYTES + FB_WIRE_DATA_HEAD_BYTES);
    struct fb_proto_sink sink = {0};
    bool goes_on = fb_proto_client_data_begin(client, now, head, &sink);
    free(head);
    if (!goes_on)
        return;
    FUZZ_CHECK(sink.bytes == payload_bytes - FB_WIRE_DATA_HEAD_BYTES);
    bool skipped = sink.bufs == NULL;
    if (data_delay_ns != 0) {
        struct call *before = call;
        now += data_delay_ns;
        fb_proto_client_tick(client, now);
        reap_call();
        skipped = skipped || call != before || call == NULL;
    }
    if (!skipped) {
        struct fb_scatter scatter;
        fb_scatter_begin(&scatter, sink.bufs, sink.buf_count, sink.off);
        fb_scatter_write(&scatter, bytes + FB_WIRE_HEADER_BYTES + FB_WIRE_DATA_HEAD_BYTES,
                         sink.bytes);
    }
    fb_proto_client_data_end(client, now, skipped);
}

/* The memory that a client would have mapped is as long as ours, or it gives up. */
static void after_welcome(void)
{
    const struct fb_msg_welcome *welcome = fb_proto_client_welcome(client);
    if ((welcome->features & FB_FEATURE_SHM) != 0 && welcome->pool_bytes > POOL_BYTES)
        fb_proto_client_lost(client, now, FB_PROTOCOL, "the memory is shorter than said");
}

/* Hands a whole frame in, from memory of its exact length. */
static void input_frame(const uint8_t *bytes, size_t count)
{
    struct fb_wire_header header;
    const char *bad;
    bool is_good = fb_wire_header_decode(bytes, &header, &bad) == FB_OK;
    if (is_good && header.type == FB_MSG_DATA) {
        input_data(bytes, header.payload_bytes);
    } else {
        uint8_t *exact = fuzz_exact(bytes, count);
        fb_proto_client_input(client, now, exact, count);
        after_welcome();
        take_jobs();
        free(exact);
    }
}

static void make_check(uint8_t *bytes, const struct fb_wire_header *header)
{
    uint64_t check =
        htole64(fb_wire_check(bytes, bytes + FB_WIRE_HEADER_BYTES, fb_wire_covered_bytes(header)));
    memcpy(bytes + FB_WIRE_HEADER_BYTES - sizeof(check), &check, sizeof(check));
}

static void item_frame(struct fuzz_input *input, bool as_is)
{
    frame[0] = FB_WIRE_MAGIC;
    fuzz_take(input, frame + 1, FB_WIRE_HEADER_BYTES - 1);
    struct fb_wire_header header;
    const char *bad;
    size_t bytes = FB_WIRE_HEADER_BYTES;
    if (fb_wire_header_decode(frame, &header, &bad) == FB_OK) {
        size_t have = (size_t)fb_min_u64(header.payload_bytes, input->left);
        fuzz_take(input, frame + bytes, have);
        memset(frame + bytes + have, 0, header.payload_bytes - have);
        bytes += header.payload_bytes;
        if (header.op < client->op_count) {
            uint64_t id = htole64(client->ops[header.op].id);
            memcpy(frame + 8, &id, sizeof(id));
        }
        if (!as_is)
            make_check(frame, &header);
    }
    input_frame(frame, bytes);
}

/* ---- well-meaning answers ---- */

static struct fb_writer writer;

static void begin_answer(void)
{
    fb_writer_init(&writer, frame, sizeof(frame));
    fb_wire_frame_begin(&writer);
}

/* Changes a good answer as the input said, and makes its check good again. */
static void bend(uint8_t *bytes, size_t count)
{
    size_t at = FB_WIRE_HEADER_BYTES + bend_at;
    struct fb_wire_header header;
    const char *bad;
    if (bend_bits == 0 || at >= count)
        return;
    bytes[at] ^= bend_bits;
    bend_bits = 0;
    FUZZ_CHECK(fb_wire_header_decode(bytes, &header, &bad) == FB_OK);
    make_check(bytes, &header);
}

static void end_answer(uint8_t type, uint8_t flags, uint64_t op)
{
    fb_wire_frame_end(&writer, 0, type, flags, op, MAP);
    FUZZ_CHECK(fb_writer_ok(&writer));
    bend(frame, writer.at_bytes);
    input_frame(frame, writer.at_bytes);
}

static bool uses_shm(void)
{
    return (fb_proto_client_welcome(client)->features & FB_FEATURE_SHM) != 0;
}

/* A put: first its grant, in one frame or in many, then its end. */
static void answer_put(const struct fb_proto_op *op, unsigned how)
{
    uint64_t id = op->id;
    uint64_t bytes = op->put.value_bytes;
    uint64_t done = op->put.granted_bytes;
    begin_answer();
    if ((how & 1) != 0 || done == bytes) {
        struct fb_msg_put_done answer = {.result = fb_result_at((int)(how / 4 % FB_RESULT_COUNT)),
                                         .generation = GENERATION};
        fb_wire_put_done_encode(&writer, &answer);
        bool release = (how & 2) != 0 && op->is_granted;
        end_answer(FB_MSG_PUT_DONE, release ? FB_FRAME_RELEASE_WANTED : 0, id);
        return;
    }
    uint8_t runs[RUNS_MAX * FB_WIRE_RUN_BYTES];
    struct fb_writer encoded;
    fb_writer_init(&encoded, runs, sizeof(runs));
    struct fb_msg_grant grant = {.generation = GENERATION, .value_off = done, .runs = runs};
    if (!uses_shm()) {
        grant.window_bytes = bytes;
        done = bytes;
    }
    unsigned parts = (how & 2) != 0 ? 1 : RUNS_MAX / 2;
    for (; parts > 0 && done < bytes; parts--) {
        uint32_t part = (uint32_t)fb_min_u64(chunk_bytes, bytes - done);
        struct fb_wire_run run = {.off = done, .len = part};
        if (part > FB_PAGE_BYTES) {
            run.len = FB_PAGE_BYTES;
            fb_wire_run_encode(&encoded, &run);
            run = (struct fb_wire_run){.off = done + FB_PAGE_BYTES, .len = part - FB_PAGE_BYTES};
        }
        fb_wire_run_encode(&encoded, &run);
        done += part;
    }
    grant.run_count = (uint32_t)(encoded.at_bytes / FB_WIRE_RUN_BYTES);
    fb_wire_grant_encode(&writer, &grant);
    end_answer(FB_MSG_GRANT, done < bytes ? FB_FRAME_MORE : 0, id);
}

static uint64_t root_of(const struct fb_proto_op *op, uint32_t part, uint64_t value_bytes,
                        uint32_t part_bytes)
{
    struct fb_identity identity = {.namespace_id = client->ns_id,
                                   .epoch = EPOCH,
                                   .generation = {.boot = GENERATION >> 40,
                                                  .counter = GENERATION & 0xff},
                                   .part = part,
                                   .total_bytes = value_bytes,
                                   .part_bytes = part_bytes};
    if (op->call == NULL)
        return 0;
    fb_proto_item_key(op->call, op->item, &identity.key, &identity.key_bytes);
    uint64_t leaf = fb_leaf_hash(pool + VALUE_POOL_AT + (uint64_t)part * chunk_bytes, part_bytes);
    return fb_root_of(&identity, &leaf, 1);
}

static void answer_get_done(uint64_t id, unsigned how, uint64_t value_bytes)
{
    struct fb_msg_get_done answer = {.result = (how & 64) != 0 ? FB_MISS : FB_OK,
                                     .value_bytes = value_bytes,
                                     .generation = GENERATION,
                                     .tiers = 1};
    begin_answer();
    fb_wire_get_done_encode(&writer, &answer);
    end_answer(FB_MSG_GET_DONE, 0, id);
}

/* The bytes of a chunk, in frames of at most 32 KiB. */
static void answer_data(uint64_t id, const struct fb_msg_chunk *chunk)
{
    uint32_t off = chunk->want_off;
    while (off < chunk->want_off + chunk->want_bytes &&
           fb_proto_client_state(client) != FB_PROTO_LOST) {
        uint32_t len = (uint32_t)fb_min_u64(FB_KIB(32), chunk->want_off + chunk->want_bytes - off);
        const uint8_t *bytes = pool + VALUE_POOL_AT + chunk->value_off + off;
        bool checked = chunk->want_bytes != chunk->part_bytes;
        fb_wire_data_head(frame, id, chunk->value_off + off, len, checked ? bytes : NULL, MAP);
        memcpy(frame + FB_WIRE_HEADER_BYTES + FB_WIRE_DATA_HEAD_BYTES, bytes, len);
        bend(frame, FB_WIRE_HEADER_BYTES + FB_WIRE_DATA_HEAD_BYTES + len);
        input_data(frame, FB_WIRE_DATA_HEAD_BYTES + len);
        off += len;
    }
}

/* A chunk of the node's value: the part of number `how % 4`, in the mode that fits. */
static void answer_chunk(const struct fb_proto_op *op, unsigned how, uint64_t value_bytes)
{
    uint64_t id = op->id;
    const struct fb_proto_get_state *get = &op->get;
    struct fb_msg_chunk chunk = {.slot = how % FB_WIRE_CHUNK_SLOTS,
                                 .part = how % 4,
                                 .value_bytes = value_bytes,
                                 .generation = GENERATION,
                                 .verified = 1};
    chunk.value_off = (uint64_t)chunk.part * chunk_bytes;
    uint64_t end = fb_min_u64(value_bytes, fb_add_saturated(get->range_off, get->range_bytes));
    uint64_t from = fb_max_u64(chunk.value_off, get->range_off);
    if (chunk.value_off >= value_bytes)
        return;
    chunk.part_bytes = (uint32_t)fb_min_u64(chunk_bytes, value_bytes - chunk.value_off);
    uint64_t to = fb_min_u64(end, chunk.value_off + chunk.part_bytes);
    if (from >= to)
        return;
    chunk.want_off = (uint32_t)(from - chunk.value_off);
    chunk.want_bytes = (uint32_t)(to - from);
    chunk.root = root_of(op, chunk.part, value_bytes, chunk.part_bytes);
    uint8_t runs[FB_WIRE_RUN_BYTES];
    struct fb_writer encoded;
    fb_writer_init(&encoded, runs, sizeof(runs));
    chunk.mode = uses_shm() ? FB_WIRE_CHUNK_RUNS : FB_WIRE_CHUNK_DATA;
    if (chunk.want_bytes <= FB_WIRE_INLINE_MAX) {
        chunk.mode = FB_WIRE_CHUNK_INLINE;
        chunk.inline_bytes = chunk.want_bytes;
        chunk.inline_data = pool + VALUE_POOL_AT + from;
    } else if (chunk.mode == FB_WIRE_CHUNK_RUNS) {
        struct fb_wire_run run = {.off = VALUE_POOL_AT + chunk.value_off, .len = chunk.part_bytes};
        fb_wire_run_encode(&encoded, &run);
        chunk.run_count = 1;
        chunk.runs = runs;
    }
    begin_answer();
    fb_wire_chunk_encode(&writer, &chunk);
    end_answer(FB_MSG_CHUNK, 0, id);
    if (chunk.mode == FB_WIRE_CHUNK_DATA)
        answer_data(id, &chunk);
}

static void answer_lookup(const struct fb_proto_op *op, unsigned how)
{
    uint64_t id = op->id;
    uint8_t found[ITEMS_MAX];
    memset(found, (int)(how & 15), sizeof(found));
    struct fb_msg_lookup_done answer = {.count = op->digests, .found = found};
    if (op->type == FB_MSG_HOLD_RELEASE)
        answer.count = 0;
    if (answer.count > ITEMS_MAX)
        return;
    begin_answer();
    fb_wire_lookup_done_encode(&writer, &answer);
    end_answer(FB_MSG_LOOKUP_DONE, 0, id);
}

static void answer_text(const struct fb_proto_op *op, unsigned how)
{
    static const char text[] = "{\"a\": 1, \"b\": 2, \"c\": 3}";
    uint64_t id = op->id;
    struct fb_msg_text answer = {.text = (const uint8_t *)text, .text_bytes = how % sizeof(text)};
    begin_answer();
    fb_wire_text_encode(&writer, &answer);
    end_answer(FB_MSG_STATUS_DONE, 0, id);
}

static void answer_list(const struct fb_proto_op *op, unsigned how)
{
    static const uint8_t keys[] = "\3\0abc\2\0de\7\0ffffff";
    uint64_t id = op->id;
    struct fb_msg_list_done answer = {.cursor = (how & 1) != 0 ? 5 : UINT64_MAX,
                                      .keys = keys,
                                      .bytes = (how & 2) != 0 ? sizeof(keys) : 9};
    begin_answer();
    fb_wire_list_done_encode(&writer, &answer);
    end_answer(FB_MSG_LIST_DONE, 0, id);
}

static void answer_explain(const struct fb_proto_op *op, unsigned how)
{
    uint64_t id = op->id;
    struct fb_msg_explain_done answer = {.present = 1,
                                         .text = (const uint8_t *)"somewhere",
                                         .text_bytes = (uint16_t)(how % 9)};
    begin_answer();
    fb_wire_explain_done_encode(&writer, &answer);
    end_answer(FB_MSG_EXPLAIN_DONE, 0, id);
}

static void answer_namespace(const struct fb_proto_op *op, unsigned how)
{
    uint64_t id = op->id;
    struct fb_msg_namespace_done answer = {.ns = 3,
                                           .epoch = EPOCH,
                                           .result = (how & 1) != 0 ? FB_DENIED : FB_OK};
    begin_answer();
    fb_wire_namespace_done_encode(&writer, &answer);
    end_answer(FB_MSG_NAMESPACE_DONE, 0, id);
}

static void answer_short(const struct fb_proto_op *op, unsigned how)
{
    uint64_t id = op->id;
    uint8_t type = op->type == FB_MSG_REMOVE           ? FB_MSG_REMOVE_DONE
                   : op->type == FB_MSG_WAIT_PERSISTED ? FB_MSG_WAIT_DONE
                   : op->type == FB_MSG_EPOCH          ? FB_MSG_EPOCH_DONE
                                                       : FB_MSG_DROP_DONE;
    struct fb_msg_done answer = {.result = fb_result_at((int)(how % FB_RESULT_COUNT)), .value = 8};
    begin_answer();
    fb_wire_done_encode(&writer, &answer);
    end_answer(type, type == FB_MSG_WAIT_DONE ? FB_FRAME_PERSISTED : 0, id);
}

static void item_answer(struct fuzz_input *input)
{
    uint32_t slot = fuzz_choice(input, 128);
    unsigned how = (unsigned)fuzz_number(input, 1);
    if (slot >= client->op_count || client->ops[slot].id == 0)
        return;
    const struct fb_proto_op *op = &client->ops[slot];
    switch (op->type) {
    case FB_MSG_PUT:
        answer_put(op, how);
        break;
    case FB_MSG_GET: {
        uint64_t bytes = op->get.value_bytes != 0
                             ? op->get.value_bytes
                             : fb_max_u64(1, value_sizes[how / 4 % FB_ARRAY_COUNT(value_sizes)]);
        bytes = fb_min_u64(bytes, POOL_BYTES - VALUE_POOL_AT - chunk_bytes);
        if ((how & 128) != 0)
            answer_get_done(op->id, how, bytes);
        else
            answer_chunk(op, how, bytes);
        break;
    }
    case FB_MSG_LOOKUP:
    case FB_MSG_HOLD_RELEASE:
        answer_lookup(op, how);
        break;
    case FB_MSG_STATUS:
        answer_text(op, how);
        break;
    case FB_MSG_LIST:
        answer_list(op, how);
        break;
    case FB_MSG_EXPLAIN:
        answer_explain(op, how);
        break;
    case FB_MSG_NAMESPACE:
        answer_namespace(op, how);
        break;
    default:
        answer_short(op, how);
        break;
    }
}

/* ---- a run ---- */

static void do_item(struct fuzz_input *input)
{
    uint8_t what = (uint8_t)fuzz_number(input, 1);
    switch (what) {
    case ITEM_FRAME:
        item_frame(input, false);
        break;
    case ITEM_AS_IS:
        fuzz_number(input, 1);
        item_frame(input, true);
        break;
    case ITEM_TIME:
        now += fuzz_number(input, 1) * STEP_NS;
        fb_proto_client_tick(client, now);
        break;
    case ITEM_TAKE:
        take_frames((unsigned)fuzz_number(input, 1));
        break;
    case ITEM_CALL:
        item_call(input);
        break;
    case ITEM_JOB: {
        unsigned n = (unsigned)fuzz_number(input, 1);
        if (job_count > 0)
            end_job((n & 127) % job_count, (n & 128) != 0);
        break;
    }
    case ITEM_LATE:
        keep_jobs = fuzz_choice(input, 2) != 0;
        break;
    case ITEM_LOST:
        fb_proto_client_lost(client, now, FB_CONNECTION, "gone");
        break;
    case ITEM_ANSWER:
        item_answer(input);
        break;
    case ITEM_BEND:
        bend_at = (uint8_t)fuzz_number(input, 1);
        bend_bits = (uint8_t)fuzz_number(input, 1);
        break;
    case ITEM_SLOW_DATA:
        data_delay_ns = fuzz_number(input, 1) * STEP_NS;
        break;
    default:
        break;
    }
}

static void open_client(unsigned options)
{
    struct fb_proto_config config = {
        .features = FB_FEATURE_HOLDS | ((options & OPTION_SHM) != 0 ? FB_FEATURE_SHM : 0),
        .nonce = NONCE,
        .name = "fuzz",
        .fields = (options & OPTION_NO_SPACE) != 0 ? NULL : fields,
        .fields_bytes = (options & OPTION_NO_SPACE) != 0 ? 0 : sizeof(fields),
        .ops_max = (options & OPTION_SMALL) != 0 ? 3 : 12,
        .leaves_max = (options & OPTION_SMALL) != 0 ? FB_PROTO_LEAVES_MAX : 64,
        .inline_bytes_max = (options & OPTION_NO_INLINE) != 0 ? 0 : FB_WIRE_INLINE_MAX,
        .commit_delay_ns = (options & OPTION_LATE_COMMIT) != 0 ? 3 * STEP_NS : 0,
    };
    size_t bytes = fb_proto_client_footprint(&config);
    if (bytes > client_bytes) {
        free(client_memory);
        client_memory = malloc(bytes);
        client_bytes = bytes;
        FUZZ_CHECK(client_memory != NULL);
    }
    struct fb_region region;
    fb_region_init(&region, client_memory, client_bytes);
    client = fb_proto_client_init(&config, &region);
    fb_proto_client_start(client, now, now + FB_SEC_NS);
    wire_check_begin(&out, true);
}

/* WELCOME, and the namespace's answer. */
static void open_dialogue(unsigned options)
{
    take_frames(0);
    struct fb_msg_welcome welcome = {
        .features = FB_FEATURE_HOLDS | ((options & OPTION_SHM) != 0 ? FB_FEATURE_SHM : 0),
        .boot_nonce = 1,
        .session = 9,
        .pool_bytes = POOL_BYTES,
        .value_bytes_max = FB_VALUE_BYTES_MAX,
        .inline_credit_bytes = FB_KIB(32),
        .chunk_bytes = chunk_bytes,
        .op_credit = 128,
        .heartbeat_ms = 1000,
        .shards = 1,
        .map_version = MAP,
    };
    begin_answer();
    fb_wire_welcome_encode(&writer, &welcome);
    end_answer(FB_MSG_WELCOME, 0, 0);
    take_frames(0);
    if ((options & OPTION_NO_SPACE) == 0)
        answer_namespace(&client->ops[0], 0);
}

/* Time runs out for whatever is left: all must end. */
static void end_client(void)
{
    while (job_count > 0)
        end_job(0, job_count % 2 != 0);
    reap_call();
    if (call != NULL) {
        now = fb_max_u64(now, call->call.deadline_ns);
        fb_proto_client_tick(client, now);
        now += FB_PROTO_ABORT_NS;
        fb_proto_client_tick(client, now);
    }
    reap_call();
    FUZZ_CHECK(call == NULL);
    take_frames(0);
    fb_proto_client_lost(client, now, FB_CONNECTION, "over");
    FUZZ_CHECK(fb_proto_client_open_ops(client) == 0);
    FUZZ_CHECK(fb_proto_client_next_ns(client) == UINT64_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input input = {.at = data, .left = size};
    unsigned options = fuzz_choice(&input, OPTION_COUNT);
    now = FB_SEC_NS;
    data_delay_ns = 0;
    bend_bits = 0;
    keep_jobs = false;
    chunk_bytes =
        (uint32_t)((options & OPTION_SMALL_CHUNKS) != 0 ? CHUNK_BYTES_SMALL : CHUNK_BYTES_LARGE);
    if (pool == NULL) {
        pool = malloc(POOL_BYTES);
        FUZZ_CHECK(pool != NULL);
        for (size_t i = 0; i < POOL_BYTES; i++)
            pool[i] = (uint8_t)(i * 7 + (i >> 9));
    }
    open_client(options);
    if ((options & OPTION_SILENT) == 0)
        open_dialogue(options);
    while (input.left > 0) {
        do_item(&input);
        reap_call();
        FUZZ_CHECK(fb_proto_client_next_ns(client) != 0);
    }
    end_client();
    return 0;
}

/* ---- seeds ---- */

static struct fuzz_seed seed;

static void begin_seed(uint8_t options)
{
    seed.count = 0;
    fuzz_add(&seed, &options, 1);
}

static void item(uint8_t what, uint64_t argument, unsigned bytes)
{
    fuzz_add_number(&seed, what, 1);
    fuzz_add_number(&seed, argument, bytes);
}

/* Begins a call, sends its requests. */
static void seed_call(uint8_t kind, uint8_t count, uint8_t shape)
{
    item(ITEM_CALL, kind | (uint64_t)count << 8 | (uint64_t)shape << 16, 3);
    item(ITEM_TAKE, 0, 1);
}

static void seed_answer(uint8_t slot, uint8_t how)
{
    item(ITEM_ANSWER, slot | (uint64_t)how << 8, 2);
    item(ITEM_TAKE, 0, 1);
}

static void seed_puts(uint8_t options, const char *name)
{
    begin_seed(options);
    for (uint8_t shape = 0; shape < 4; shape++) {
        seed_call(FB_PROTO_PUT, 4, (uint8_t)(shape | (shape & 1) << 6));
        for (uint8_t slot = 0; slot < 4; slot++)
            seed_answer(slot, 2);
        for (uint8_t slot = 0; slot < 4; slot++)
            seed_answer(slot, 2);
        item(ITEM_TIME, 4, 1);
        item(ITEM_TAKE, 0, 1);
        for (uint8_t slot = 0; slot < 4; slot++)
            seed_answer(slot, slot == 0 ? 3 : 1);
        seed_answer(0, 1);
    }
    fuzz_seed(name, seed.bytes, seed.count);
}

static void seed_gets(uint8_t options, const char *name)
{
    begin_seed(options);
    for (uint8_t shape = 0; shape < 3; shape++) {
        seed_call(FB_PROTO_GET, 4, (uint8_t)(3 | (shape == 1 ? 32 : 0) | (shape == 2 ? 128 : 0)));
        for (uint8_t slot = 0; slot < 4; slot++) {
            for (uint8_t part = 0; part < 4; part++)
                seed_answer(slot, (uint8_t)(part | 3 * 4));
            seed_answer(slot, 128);
        }
    }
    seed_call(FB_PROTO_GET, 2, 3);
    seed_answer(0, 3 * 4);
    item(ITEM_TIME, 50, 1);
    item(ITEM_TAKE, 0, 1);
    seed_answer(0, 1 | 3 * 4);
    item(ITEM_TIME, 50, 1);
    seed_answer(0, 128);
    fuzz_seed(name, seed.bytes, seed.count);
}

static void seed_late_jobs(void)
{
    begin_seed(OPTION_SHM);
    item(ITEM_LATE, 1, 1);
    seed_call(FB_PROTO_PUT, 2, 2);
    seed_answer(0, 0);
    seed_answer(1, 2);
    item(ITEM_JOB, 0, 1);
    seed_answer(0, 3);
    item(ITEM_JOB, 128, 1);
    item(ITEM_TIME, 60, 1);
    item(ITEM_TAKE, 0, 1);
    item(ITEM_JOB, 0, 1);
    item(ITEM_JOB, 0, 1);
    item(ITEM_JOB, 0, 1);
    item(ITEM_TAKE, 0, 1);
    fuzz_seed("late-put", seed.bytes, seed.count);
    begin_seed(OPTION_SHM);
    item(ITEM_LATE, 1, 1);
    seed_call(FB_PROTO_GET, 1, 3);
    seed_answer(0, 0 | 3 * 4);
    seed_answer(0, 1 | 3 * 4);
    item(ITEM_JOB, 0, 1);
    item(ITEM_LOST, 0, 0);
    item(ITEM_JOB, 0, 1);
    fuzz_seed("late-get-lost", seed.bytes, seed.count);
}

/* Answers with one field changed, each in a connection of its own. */
static void seed_bent(void)
{
    static const struct {
        const char *name;
        uint8_t options, kind, how, at, bits;
    } bent[] = {
        {"grant-generation", OPTION_SHM, FB_PROTO_PUT, 2, 0, 1},
        {"grant-off", OPTION_SHM, FB_PROTO_PUT, 2, 17, 16},
        {"grant-run-far", OPTION_SHM, FB_PROTO_PUT, 2, 36, 1},
        {"grant-run-long", OPTION_SHM, FB_PROTO_PUT, 2, 40, 1},
        {"grant-window", 0, FB_PROTO_PUT, 2, 8, 1},
        {"chunk-slot", OPTION_SHM, FB_PROTO_GET, 12, 0, 1},
        {"chunk-part", OPTION_SHM, FB_PROTO_GET, 12, 4, 1},
        {"chunk-mode", OPTION_SHM, FB_PROTO_GET, 12, 3, 2},
        {"chunk-value-bytes", OPTION_SHM, FB_PROTO_GET, 12, 42, 4},
        {"chunk-root", OPTION_SHM, FB_PROTO_GET, 12, 56, 1},
        {"chunk-run-far", OPTION_SHM, FB_PROTO_GET, 12, 66, 8},
        {"chunk-run-long", OPTION_SHM, FB_PROTO_GET, 12, 72, 1},
        {"chunk-want", OPTION_SHM, FB_PROTO_GET, 12, 16, 1},
        {"chunk-root-stream", 0, FB_PROTO_GET, 12, 56, 1},
        {"chunk-inline-root", 0, FB_PROTO_GET, 1, 56, 1},
    };
    for (size_t i = 0; i < FB_ARRAY_COUNT(bent); i++) {
        char name[64];
        snprintf(name, sizeof(name), "bent-%s", bent[i].name);
        begin_seed(bent[i].options);
        seed_call(bent[i].kind, 1, 2);
        if (bent[i].at == 0)
            seed_answer(0, bent[i].how);
        item(ITEM_BEND, bent[i].at | (uint64_t)bent[i].bits << 8, 2);
        seed_answer(0, bent[i].how);
        seed_answer(0, 128);
        fuzz_seed(name, seed.bytes, seed.count);
    }
}

static void seed_others(void)
{
    begin_seed(0);
    for (uint8_t kind = FB_PROTO_EXISTS; kind < FB_PROTO_CALL_KINDS; kind++) {
        for (uint8_t shape = 0; shape < 3; shape++) {
            seed_call(kind, 3, (uint8_t)(shape == 0 ? 0 : shape == 1 ? 16 : 128));
            for (uint8_t slot = 0; slot < 3; slot++)
                seed_answer(slot, shape == 0 ? 0 : (uint8_t)(shape | 3));
            seed_answer(0, 0);
        }
        item(ITEM_TIME, 70, 1);
        item(ITEM_TIME, 70, 1);
    }
    fuzz_seed("others", seed.bytes, seed.count);
    begin_seed(OPTION_NO_SPACE);
    seed_call(FB_PROTO_STATUS, 1, 0);
    item(ITEM_TIME, 21, 1);
    item(ITEM_TAKE, 0, 1);
    item(ITEM_TIME, 21, 1);
    fuzz_seed("heartbeat", seed.bytes, seed.count);
}

/* One frame of each golden kind, as the node's, for the first operation. */
static void seed_frames(void)
{
    static const struct {
        uint8_t type;
        bool variant;
        const char *hex;
    } golden[] = {
#include "test/unit/proto/golden.inc"
    };
    for (size_t i = 0; i < sizeof(golden) / sizeof(golden[0]); i++) {
        uint8_t bytes[1024];
        size_t count = 0;
        unsigned byte;
        for (const char *hex = golden[i].hex; sscanf(hex, "%2x", &byte) == 1; hex += 2)
            bytes[count++] = (uint8_t)byte;
        memset(bytes + 8, 0, 8); /* op: slot 0 */
        static const uint8_t kinds[FB_MSG_TYPE_COUNT] = {
            [FB_MSG_GRANT] = FB_PROTO_PUT,
            [FB_MSG_PUT_DONE] = FB_PROTO_PUT,
            [FB_MSG_CHUNK] = FB_PROTO_GET,
            [FB_MSG_GET_DONE] = FB_PROTO_GET,
            [FB_MSG_LOOKUP_DONE] = FB_PROTO_EXISTS,
            [FB_MSG_DATA] = FB_PROTO_GET,
            [FB_MSG_EXPLAIN_DONE] = FB_PROTO_EXPLAIN,
            [FB_MSG_LIST_DONE] = FB_PROTO_LIST,
            [FB_MSG_STATUS_DONE] = FB_PROTO_STATUS,
            [FB_MSG_EPOCH_DONE] = FB_PROTO_BUMP,
            [FB_MSG_REMOVE_DONE] = FB_PROTO_REMOVE,
            [FB_MSG_WAIT_DONE] = FB_PROTO_WAIT,
            [FB_MSG_DROP_DONE] = FB_PROTO_DROP,
        };
        bool is_welcome = golden[i].type == FB_MSG_WELCOME;
        begin_seed(is_welcome ? OPTION_SILENT : golden[i].variant ? OPTION_SHM : 0);
        item(ITEM_TAKE, 0, 1);
        if (!is_welcome)
            seed_call(kinds[golden[i].type], 1, 1);
        fuzz_add(&seed, bytes, count);
        item(ITEM_TAKE, 0, 1);
        char name[64];
        snprintf(name, sizeof(name), "frame-%s%s", fb_wire_type_name(golden[i].type),
                 golden[i].variant ? "-2" : "");
        fuzz_seed(name, seed.bytes, seed.count);
    }
}

static void seeds(void)
{
    seed_puts(0, "put-stream");
    seed_puts(OPTION_SHM, "put-shm");
    seed_puts(OPTION_SHM | OPTION_LATE_COMMIT, "put-shm-late");
    seed_puts(OPTION_NO_INLINE | OPTION_SMALL, "put-stream-small");
    seed_gets(0, "get-stream");
    seed_gets(OPTION_SHM, "get-shm");
    seed_puts(OPTION_SHM | OPTION_SMALL_CHUNKS, "put-shm-chunks");
    seed_puts(OPTION_SMALL_CHUNKS, "put-stream-chunks");
    seed_bent();
    seed_late_jobs();
    seed_others();
    seed_frames();
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    return fuzz_start(argc, argv, seeds);
}
