/*
 * The node's side of sessions, fed with frames and with events of its shard.
 *
 * An input is a list of items, below. Frames stand there as they are on the wire; their checks are
 * made good, except where the input says not. What depends on earlier answers (the next DATA of a
 * put, the leaves of its COMMIT) has items of its own. The shard is the fake one of the unit tests,
 * which grants, revokes and ends what the input says.
 *
 * Whatever comes, no assertion fails; each frame that goes out is whole, fits its check and is one
 * that a node sends; a refusal closes the session; and after the end of all sessions nothing is
 * left with the shard.
 */
#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/bits.h"
#include "base/limits.h"

#define FAKE_CHUNK_BYTES         FB_KIB(64)
#define FAKE_POOL_BYTES          FB_MIB(1)
#define FAKE_VALUES              24
#define FAKE_PARTS               3

#define assert_non_null(pointer) FB_ASSERT((pointer) != NULL)
#define assert_ptr_equal(a, b)   FB_ASSERT((a) == (b))
#define assert_int_equal(a, b)   FB_ASSERT((a) == (b))
#define assert_true(condition)   FB_ASSERT(condition)

#include "proto/server_private.h"
#include "test/fuzz/wire_check.h"
#include "test/lib/fuzz.h"
#include "test/unit/proto/fake_shard.h"

#include "test/unit/proto/fake_shard.inc"

/* What an item does. A byte that is none of these is fed as it is. */
enum item {
    ITEM_FRAME = FB_WIRE_MAGIC, /* a frame, header and payload */
    ITEM_AS_IS = 0,             /* the next frame's check is not made good */
    ITEM_TIME,                  /* u8: so many times 20 ms pass */
    ITEM_SEND,                  /* u16: so many times 16 bytes go out */
    ITEM_GRANT,                 /* u8: the shard grants that put */
    ITEM_FINISH,                /* u8 which operation, u8 result: the shard ends it */
    ITEM_END,                   /* u8: bit 0 proven; the connection is gone, the next one begins */
    ITEM_PIECES,                /* u8: bytes are fed in pieces of this size, 0: whole */
    ITEM_SHARD,                 /* u8: bits of enum shard_mode */
    ITEM_DATA,                  /* u8 op, u16: so many of the put's next bytes as DATA */
    ITEM_COMMIT,                /* u8 op: the put's COMMIT; bit 7: wrong leaves */
    ITEM_REFUSE,                /* the node ends the session by its own will */
    ITEM_COUNT
};

/* The first byte of an input. */
enum option {
    OPTION_SHM = 1,
    OPTION_STATUS = 2,  /* the node has words for STATUS and PONG */
    OPTION_SYMBOLIC = 4 /* the node cannot touch the pool */
};

enum shard_mode {
    MODE_HOLD_GRANTS = 1,
    MODE_HOLD_OPS = 2,
    MODE_VERIFIED = 4
};

#define MAP              FB_PROTO_SHARD_MAP_VERSION
#define NAMESPACES       16
#define ENDED_MAX        4
#define VALUE_BYTES      (FAKE_PARTS * FAKE_CHUNK_BYTES)
#define STEP_NS          (20 * FB_MS_NS)
#define SEND_UNIT        16
#define SLICES           5
#define OUT_BYTES        (FB_OUTBOX_BYTES * 2)
#define FIRST_GENERATION ((UINT64_C(3) << 40) + 1)

/* Memory is taken once: mapping and clearing it would be most of a run. */
struct memory {
    uint8_t *at;
    size_t bytes;
    bool used;
};

struct connection {
    struct fb_proto_session *session;
    struct memory *memory;
};

static struct memory server_memory, session_memory[ENDED_MAX + 2];
static struct fb_proto_server *server;
static struct connection live;
static struct connection ended[ENDED_MAX]; /* not proven yet */
static uint64_t now, next_session;
static size_t piece_bytes;
static uint8_t value[VALUE_BYTES];
static uint8_t frame[FB_FRAME_BYTES_MAX];
static struct wire_check out; /* what the session sends */

/* ---- the node around the session ---- */

static void entropy(void *ctx, void *bytes, size_t count)
{
    (void)ctx;
    memset(bytes, 1, count);
}

static size_t status(void *ctx, char *bytes, size_t room)
{
    (void)ctx;
    memset(bytes, 'x', room / 8);
    return room / 8;
}

static void pong(void *ctx, struct fb_msg_pong *answer)
{
    (void)ctx;
    answer->state = FB_WIRE_SERVING;
}

static void make(struct memory *memory, size_t bytes, struct fb_region *region)
{
    if (memory->at == NULL) {
        memory->bytes = fb_align_up(bytes, FB_CACHE_LINE);
        memory->at = aligned_alloc(FB_CACHE_LINE, memory->bytes);
    }
    FB_ASSERT(memory->at != NULL && memory->bytes >= bytes && !memory->used);
    memory->used = true;
    fb_region_init(region, memory->at, memory->bytes);
}

static void open_node(unsigned options)
{
    struct fb_proto_server_config config = {.shard = &fake,
                                            .pool =
                                                (options & OPTION_SYMBOLIC) != 0 ? NULL : fake.pool,
                                            .pool_bytes = FAKE_POOL_BYTES,
                                            .node_id = 11,
                                            .boot_nonce = 12,
                                            .namespaces_max = NAMESPACES,
                                            .entropy = entropy,
                                            .status =
                                                (options & OPTION_STATUS) != 0 ? status : NULL,
                                            .pong = (options & OPTION_STATUS) != 0 ? pong : NULL};
    struct fb_region region;
    make(&server_memory, fb_proto_server_footprint(&config), &region);
    server = fb_proto_server_init(&config, &region);
}

static void open_session(bool may_shm)
{
    struct fb_region region;
    live.memory = session_memory;
    while (live.memory->used)
        live.memory++;
    make(live.memory, fb_proto_session_footprint(server), &region);
    live.session = fb_proto_session_init(server, &region, next_session++, may_shm, 7);
    wire_check_begin(&out, false);
}

static void give_back(struct connection *connection)
{
    FUZZ_CHECK(fb_proto_session_is_idle(connection->session));
    fb_proto_session_fini(connection->session);
    connection->memory->used = false;
    connection->session = NULL;
}

static void prove(struct connection *connection)
{
    fb_proto_session_proven(connection->session, now);
    fb_proto_server_pump(server, now);
    give_back(connection);
}

/* Sessions that came to rest by themselves: a later HELLO named them. */
static void sweep_ended(void)
{
    for (unsigned i = 0; i < ENDED_MAX; i++)
        if (ended[i].session != NULL && fb_proto_session_is_idle(ended[i].session))
            give_back(&ended[i]);
}

static void end_session(bool proven)
{
    unsigned place = 0;
    while (!proven && place + 1 < ENDED_MAX && ended[place].session != NULL)
        place++;
    fb_proto_session_end(live.session, now, proven);
    fb_proto_server_pump(server, now);
    if (proven || fb_proto_session_is_idle(live.session)) {
        give_back(&live);
        return;
    }
    if (ended[place].session != NULL)
        prove(&ended[place]);
    ended[place] = live;
    live.session = NULL;
}

/* Takes up to `limit` bytes from the outbox, and looks at them. */
static void send_out(uint64_t limit)
{
    fb_proto_server_pump(server, now);
    while (limit > 0) {
        struct fb_slice slices[SLICES];
        size_t count = fb_proto_session_slices(live.session, slices, SLICES);
        if (count == 0)
            break;
        uint64_t moved = 0;
        for (size_t i = 0; i < count && moved < limit; i++) {
            size_t step = (size_t)fb_min_u64(slices[i].len, limit - moved);
            wire_check_bytes(&out, slices[i].at, step);
            moved += step;
        }
        fb_proto_session_sent(live.session, now, moved);
        fb_proto_server_pump(server, now);
        limit -= moved;
    }
}

/* Takes one piece of input; returns what was taken. */
static size_t feed_some(const uint8_t *bytes, size_t count)
{
    uint32_t left = fb_proto_session_data_left(live.session);
    if (left == 0)
        return fb_proto_session_input(live.session, now, bytes, count);
    struct fb_io_vec runs[3];
    size_t n = fb_proto_session_data_runs(live.session, runs, 3);
    uint32_t moved = 0;
    for (size_t i = 0; i < n && moved < count; i++) {
        uint32_t step = (uint32_t)fb_min_u64(runs[i].len, count - moved);
        memcpy(fake.pool + runs[i].off, bytes + moved, step);
        moved += step;
    }
    if (n == 0)
        moved = (uint32_t)fb_min_u64(left, count);
    fb_proto_session_data_moved(live.session, now, moved);
    return moved;
}

/* Feeds bytes as they would come over a stream, from memory of their exact length. */
static void feed(const uint8_t *bytes, size_t count)
{
    uint8_t *exact = fuzz_exact(bytes, count);
    size_t at = 0, end = 0;
    while (at < count && !fb_proto_session_is_closing(live.session)) {
        bool was_paused = fb_proto_session_is_paused(live.session);
        if (end < count)
            end = piece_bytes == 0 ? count : (size_t)fb_min_u64(count, end + piece_bytes);
        size_t taken = feed_some(exact + at, end - at);
        at += taken;
        fb_proto_server_pump(server, now);
        if (taken > 0 || end < count)
            continue;
        if (was_paused || !fb_proto_session_is_paused(live.session))
            break; /* half a frame; or nothing helps */
        send_out(UINT64_MAX);
    }
    free(exact);
}

/* ---- items ---- */

/* The put of an operation, if its grant is known to the client. */
static struct fb_slot *granted_put(uint64_t op)
{
    if (fb_proto_session_is_closing(live.session))
        return NULL;
    struct fb_slot *slot = fb_session_find(live.session, op);
    return slot != NULL && slot->type == FB_MSG_PUT && (slot->flags & FB_SLOT_TOLD) != 0 ? slot
                                                                                         : NULL;
}

static void feed_frame(struct fb_writer *writer, uint8_t type, uint64_t op)
{
    fb_wire_frame_end(writer, 0, type, 0, op, MAP);
    FUZZ_CHECK(fb_writer_ok(writer));
    feed(frame, writer->at_bytes);
}

static void item_data(struct fuzz_input *input)
{
    uint64_t op = fuzz_number(input, 1);
    uint64_t want = fuzz_number(input, 2);
    struct fb_slot *slot = granted_put(op);
    uint64_t off = slot != NULL ? slot->data_off : 0;
    uint64_t left = slot != NULL ? slot->op.value_bytes - off : VALUE_BYTES;
    struct fb_msg_data data = {.off = off, .len = (uint32_t)fb_min_u64(want, left)};
    if (data.len == 0)
        return;
    data.bytes = value + off;
    struct fb_writer writer;
    fb_writer_init(&writer, frame, sizeof(frame));
    fb_wire_frame_begin(&writer);
    fb_wire_data_encode(&writer, &data);
    feed_frame(&writer, FB_MSG_DATA, op);
}

static uint32_t leaves_of(uint64_t bytes, uint64_t *leaves)
{
    uint32_t count = 0;
    for (uint64_t off = 0; off < bytes; off += FAKE_CHUNK_BYTES) {
        size_t part = (size_t)fb_min_u64(FAKE_CHUNK_BYTES, bytes - off);
        leaves[count++] = htole64(fb_leaf_hash(value + off, part));
    }
    return count;
}

static void item_commit(struct fuzz_input *input)
{
    uint64_t op = fuzz_number(input, 1);
    struct fb_slot *slot = granted_put(op & 127);
    uint64_t bytes = slot != NULL ? slot->op.value_bytes : 1;
    uint64_t leaves[FAKE_PARTS];
    struct fb_msg_commit commit = {.generation = slot != NULL ? slot->op.generation : 1,
                                   .leaf_count = leaves_of(bytes, leaves),
                                   .leaves = (const uint8_t *)leaves};
    if ((op & 128) != 0)
        leaves[0] ^= 1;
    struct fb_writer writer;
    fb_writer_init(&writer, frame, sizeof(frame));
    fb_wire_frame_begin(&writer);
    fb_wire_commit_encode(&writer, &commit);
    feed_frame(&writer, FB_MSG_COMMIT, op & 127);
}

/* The n-th operation that the shard may still end, of all its peers. */
static struct fb_op *find_open(unsigned n)
{
    FB_LIST_FOREACH (link, &server->sessions) {
        struct fb_proto_session *session = FB_LIST_ITEM(link, struct fb_proto_session, all);
        if (!session->peer_is_open)
            continue;
        FB_LIST_FOREACH (at, &session->peer.ops) {
            struct fb_op *op = FB_LIST_ITEM(at, struct fb_op, peer_link);
            const struct fake_get *reading = op->kind == FB_OP_GET ? get_of(op) : NULL;
            bool is_over = op->result != 0 || (op->events & FB_EV_DONE) != 0 ||
                           (reading != NULL && reading->done) ||
                           (op->kind == FB_OP_PUT && value_of(op, false) == NULL);
            if (!is_over && n-- == 0)
                return op;
        }
    }
    return NULL;
}

static void item_finish(struct fuzz_input *input)
{
    struct fb_op *op = find_open(fuzz_choice(input, 8));
    unsigned choice = fuzz_choice(input, FB_RESULT_COUNT);
    int result = fb_result_at((int)choice);
    if (op == NULL)
        return;
    bool may_succeed = op->kind != FB_OP_PUT && op->kind != FB_OP_GET;
    fake_finish(op, result >= 0 && !may_succeed ? FB_DEADLINE : result, (int)choice % 8);
}

static void item_grant(struct fuzz_input *input)
{
    unsigned n = fuzz_choice(input, FAKE_VALUES);
    struct fake_value *at = &fake.values[n];
    if (at->used && at->op != NULL && at->generation == 0 && at->op->result == 0)
        fake_grant(at->op);
}

static void item_frame(struct fuzz_input *input, bool as_is)
{
    uint8_t head[FB_WIRE_HEADER_BYTES] = {FB_WIRE_MAGIC};
    fuzz_take(input, head + 1, sizeof(head) - 1);
    struct fb_wire_header header;
    const char *bad;
    memcpy(frame, head, sizeof(head));
    size_t bytes = sizeof(head);
    if (fb_wire_header_decode(head, &header, &bad) == FB_OK) {
        size_t have = (size_t)fb_min_u64(header.payload_bytes, input->left);
        fuzz_take(input, frame + bytes, have);
        memset(frame + bytes + have, 0, header.payload_bytes - have);
        bytes += header.payload_bytes;
        uint64_t check =
            htole64(fb_wire_check(frame, frame + sizeof(head), fb_wire_covered_bytes(&header)));
        if (!as_is)
            memcpy(frame + sizeof(head) - sizeof(check), &check, sizeof(check));
    }
    feed(frame, bytes);
}

static void item_shard(struct fuzz_input *input)
{
    unsigned mode = fuzz_choice(input, 8);
    fake.hold_grants = (mode & MODE_HOLD_GRANTS) != 0;
    fake.hold_ops = (mode & MODE_HOLD_OPS) != 0;
    fake.verified = (mode & MODE_VERIFIED) != 0;
}

static void do_item(struct fuzz_input *input, bool may_shm)
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
        fb_proto_server_tick(server, now);
        break;
    case ITEM_SEND:
        send_out(fuzz_number(input, 2) * SEND_UNIT);
        break;
    case ITEM_GRANT:
        item_grant(input);
        break;
    case ITEM_FINISH:
        item_finish(input);
        break;
    case ITEM_END:
        end_session((fuzz_number(input, 1) & 1) != 0);
        open_session(may_shm);
        break;
    case ITEM_PIECES:
        piece_bytes = fuzz_number(input, 1);
        break;
    case ITEM_SHARD:
        item_shard(input);
        break;
    case ITEM_DATA:
        item_data(input);
        break;
    case ITEM_COMMIT:
        item_commit(input);
        break;
    case ITEM_REFUSE:
        fb_proto_session_refuse(live.session, FB_SHUTTING_DOWN, "the node shuts down");
        break;
    default:
        feed(&what, 1);
        break;
    }
}

/* After each item: events, the refusal of a session, sessions that are over. */
static void after_item(bool may_shm)
{
    fb_proto_server_pump(server, now);
    while (fb_proto_server_next(server) != NULL) {
    }
    FUZZ_CHECK(fb_proto_session_wants(live.session) <= FB_FRAME_BYTES_MAX);
    FUZZ_CHECK(fb_proto_session_open_ops(live.session) <= FB_PROTO_OP_CREDIT);
    if (fb_proto_session_is_closing(live.session)) {
        FUZZ_CHECK(fb_proto_session_error(live.session)[0] != 0);
        send_out(UINT64_MAX);
        FUZZ_CHECK(fb_proto_session_queued(live.session) == 0);
        end_session(!fb_proto_session_uses_shm(live.session));
        open_session(may_shm);
    }
    sweep_ended();
}

static void check_nothing_left(void)
{
    for (unsigned i = 0; i < FAKE_VALUES; i++)
        FUZZ_CHECK(!fake.values[i].used || fake.values[i].committed);
    for (unsigned i = 0; i < FAKE_GETS; i++)
        FUZZ_CHECK(fake.gets[i].op == NULL);
    for (unsigned i = 0; i < FB_PROTO_LISTS; i++)
        FUZZ_CHECK(!server->lists[i].used);
    FUZZ_CHECK(server->window_used_bytes == 0);
    struct fb_proto_server_stats stats;
    fb_proto_server_stats(server, &stats);
    FUZZ_CHECK(stats.sessions_opened == stats.sessions_ended);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input input = {.at = data, .left = size};
    unsigned options = fuzz_choice(&input, OPTION_SYMBOLIC * 2);
    bool may_shm = (options & OPTION_SHM) != 0;
    fake_reset();
    now = FB_SEC_NS;
    next_session = 1;
    piece_bytes = 0;
    open_node(options);
    open_session(may_shm);
    while (input.left > 0) {
        do_item(&input, may_shm);
        after_item(may_shm);
    }
    send_out(UINT64_MAX);
    end_session(true);
    for (unsigned i = 0; i < ENDED_MAX; i++)
        if (ended[i].session != NULL)
            prove(&ended[i]);
    check_nothing_left();
    server_memory.used = false;
    return 0;
}

/* ---- seeds: dialogues ---- */

#define NS          2u
#define EPOCH       5u
#define DEADLINE_MS 1000

static struct fuzz_seed seed;
static struct fb_writer seed_writer;

static void item(uint8_t what, uint64_t argument, unsigned bytes)
{
    fuzz_add_number(&seed, what, 1);
    fuzz_add_number(&seed, argument, bytes);
}

static void begin_frame(void)
{
    fb_writer_init(&seed_writer, frame, sizeof(frame));
    fb_wire_frame_begin(&seed_writer);
}

static void end_frame(uint8_t type, uint8_t flags, uint64_t op)
{
    fb_wire_frame_end(&seed_writer, 0, type, flags, op, type == FB_MSG_HELLO ? 0 : MAP);
    FUZZ_CHECK(fb_writer_ok(&seed_writer));
    fuzz_add(&seed, frame, seed_writer.at_bytes);
}

static void say(uint8_t type, uint64_t op)
{
    begin_frame();
    end_frame(type, 0, op);
}

static void say_hello(uint64_t ended_session)
{
    struct fb_msg_hello hello = {.features = FB_FEATURE_SHM | FB_FEATURE_HOLDS,
                                 .client_nonce = 5,
                                 .ended_session = ended_session,
                                 .name_bytes = 2,
                                 .name = (const uint8_t *)"t\n"};
    begin_frame();
    fb_wire_hello_encode(&seed_writer, &hello);
    end_frame(FB_MSG_HELLO, 0, 0);
}

static void say_namespace(uint64_t op)
{
    struct fb_msg_namespace message = {.deadline_ms = DEADLINE_MS,
                                       .fields_bytes = 3,
                                       .fields = (const uint8_t *)"abc"};
    begin_frame();
    fb_wire_namespace_encode(&seed_writer, &message);
    end_frame(FB_MSG_NAMESPACE, 0, op);
}

static uint16_t seed_ns = NS; /* of the requests that follow */

static struct fb_msg_key key_of(const char *key)
{
    return (struct fb_msg_key){.ns = seed_ns,
                               .key_bytes = (uint16_t)strlen(key),
                               .deadline_ms = DEADLINE_MS,
                               .epoch = EPOCH,
                               .key = (const uint8_t *)key};
}

static void say_put(uint64_t op, const char *key, uint64_t bytes, uint32_t inline_bytes,
                    bool is_good)
{
    struct fb_msg_put put = {.key = key_of(key),
                             .value_bytes = bytes,
                             .persist = FB_PERSIST_THROUGH,
                             .inline_bytes = inline_bytes,
                             .inline_data = value,
                             .inline_leaf = fb_leaf_hash(value, inline_bytes) + !is_good};
    begin_frame();
    fb_wire_put_encode(&seed_writer, &put);
    end_frame(FB_MSG_PUT, 0, op);
}

static void say_get(uint64_t op, const char *key, uint64_t off, uint64_t bytes)
{
    struct fb_msg_get get = {.key = key_of(key), .range_off = off, .range_bytes = bytes};
    begin_frame();
    fb_wire_get_encode(&seed_writer, &get);
    end_frame(FB_MSG_GET, 0, op);
}

static void say_chunk_done(uint64_t op, uint8_t slot, bool is_bad)
{
    begin_frame();
    fb_wire_chunk_done_encode(&seed_writer, &(struct fb_msg_chunk_done){.slot = slot});
    end_frame(FB_MSG_CHUNK_DONE, is_bad ? FB_FRAME_BAD : 0, op);
}

static void say_key(uint8_t type, uint64_t op, const char *key)
{
    struct fb_msg_key message = key_of(key);
    begin_frame();
    fb_wire_key_encode(&seed_writer, &message);
    end_frame(type, 0, op);
}

static void say_lookup(uint8_t type, uint64_t op, uint32_t count, uint32_t hold_ms)
{
    struct fb_msg_lookup lookup = {.ns = seed_ns,
                                   .epoch = EPOCH,
                                   .deadline_ms = DEADLINE_MS,
                                   .hold_ms = hold_ms,
                                   .hold_loads = 1,
                                   .count = count,
                                   .digests = value};
    begin_frame();
    fb_wire_lookup_encode(&seed_writer, &lookup);
    end_frame(type, 0, op);
}

static void say_list(uint64_t op)
{
    begin_frame();
    fb_wire_list_encode(&seed_writer, &(struct fb_msg_list){.ns = seed_ns, .epoch = EPOCH});
    end_frame(FB_MSG_LIST, 0, op);
}

static void say_epoch(uint64_t op)
{
    begin_frame();
    fb_wire_epoch_encode(&seed_writer, &(struct fb_msg_epoch){.ns = seed_ns, .epoch = EPOCH});
    end_frame(FB_MSG_EPOCH, 0, op);
}

static void begin_seed(uint8_t options)
{
    seed.count = 0;
    fuzz_add(&seed, &options, 1);
    say_hello(0);
    say_namespace(1);
}

static void end_seed(const char *name)
{
    fuzz_seed(name, seed.bytes, seed.count);
}

static void put_stream(uint64_t op, const char *key, uint64_t bytes)
{
    say_put(op, key, bytes, 0, true);
    for (uint64_t off = 0; off < bytes; off += 50000) {
        item(ITEM_DATA, op, 1);
        fuzz_add_number(&seed, fb_min_u64(50000, bytes - off), 2);
    }
    item(ITEM_COMMIT, op, 1);
}

static void seed_puts(void)
{
    begin_seed(0);
    put_stream(2, "a", 5000);
    put_stream(3, "b", VALUE_BYTES);
    put_stream(4, "a", 5000);
    say_put(5, "too-big", VALUE_BYTES + 1, 0, true);
    say_put(6, "c", 3000, 3000, true);
    say_put(7, "d", 3000, 3000, false);
    item(ITEM_SEND, 65535, 2);
    end_seed("put-stream");
    begin_seed(0);
    say_put(2, "a", 100, 0, true);
    item(ITEM_DATA, 2, 1);
    fuzz_add_number(&seed, 100, 2);
    item(ITEM_COMMIT, 2 | 128, 1);
    item(ITEM_SHARD, MODE_HOLD_GRANTS, 1);
    say_put(3, "b", 100, 100, true);
    item(ITEM_GRANT, 0, 1);
    item(ITEM_GRANT, 1, 1);
    item(ITEM_FINISH, 0, 2);
    item(ITEM_DATA, 3, 1);
    fuzz_add_number(&seed, 50, 2);
    item(ITEM_COMMIT, 3, 1);
    end_seed("put-stream-revoked");
    begin_seed(OPTION_SHM);
    say_put(2, "a", 70000, 0, true);
    item(ITEM_COMMIT, 2, 1);
    say_put(3, "b", 5000, 0, true);
    item(ITEM_FINISH, 0, 2);
    say(FB_MSG_RELEASE, 3);
    say_put(4, "c", 5000, 0, true);
    say(FB_MSG_RELEASE, 4);
    say_put(5, "d", 5000, 0, true);
    item(ITEM_FINISH, 0, 2);
    item(ITEM_COMMIT, 5, 1);
    item(ITEM_SEND, 65535, 2);
    say_put(6, "e", 5000, 0, true);
    item(ITEM_END, 0, 1);
    say_hello(1);
    say_namespace(2);
    say_put(3, "f", 5000, 0, true);
    say(FB_MSG_CANCEL, 3);
    end_seed("put-shm");
}

static void seed_gets(void)
{
    begin_seed(0);
    put_stream(2, "a", VALUE_BYTES);
    say_put(3, "b", 3000, 3000, true);
    say_get(4, "b", 0, UINT64_MAX);
    say_get(5, "none", 0, UINT64_MAX);
    say_get(6, "b", 5000, 10);
    say_get(7, "a", 0, UINT64_MAX);
    item(ITEM_SEND, 65535, 2);
    for (uint8_t i = 0; i < FAKE_PARTS; i++)
        say_chunk_done(7, i, false);
    say_get(8, "a", 1000, 100000);
    item(ITEM_SEND, 65535, 2);
    say_chunk_done(8, 0, true);
    say_get(9, "a", 0, UINT64_MAX);
    item(ITEM_SEND, 10, 2);
    say(FB_MSG_CANCEL, 9);
    item(ITEM_SEND, 65535, 2);
    say_chunk_done(9, 0, false);
    end_seed("get-stream");
    begin_seed(OPTION_SHM);
    say_put(2, "a", VALUE_BYTES, 0, true);
    item(ITEM_COMMIT, 2, 1);
    for (uint64_t op = 3; op < 9; op++)
        say_get(op, "a", 0, UINT64_MAX);
    say_get(10, "a", 100, 20000);
    item(ITEM_SEND, 65535, 2);
    for (uint64_t op = 3; op < 9; op++)
        for (uint8_t i = 0; i < FAKE_PARTS; i++)
            say_chunk_done(op, i, op == 5);
    item(ITEM_TIME, 100, 1);
    say(FB_MSG_CANCEL, 10);
    item(ITEM_SEND, 65535, 2);
    item(ITEM_END, 0, 1);
    item(ITEM_END, 1, 1);
    end_seed("get-shm");
}

static void seed_others(void)
{
    begin_seed(OPTION_STATUS);
    item(ITEM_PIECES, 7, 1);
    say_lookup(FB_MSG_LOOKUP, 2, 4, 0);
    say_lookup(FB_MSG_LOOKUP, 3, 4, 100);
    say_lookup(FB_MSG_HOLD_RELEASE, 4, 4, 0);
    say_key(FB_MSG_REMOVE, 5, "a");
    say_key(FB_MSG_WAIT_PERSISTED, 6, "a");
    say_key(FB_MSG_DROP_DRAM, 7, "a");
    say_key(FB_MSG_EXPLAIN, 8, "a");
    say_list(9);
    say_epoch(10);
    say(FB_MSG_STATUS, 11);
    say(FB_MSG_PING, 12);
    say(FB_MSG_CANCEL, 13);
    begin_frame();
    fb_wire_pong_encode(&seed_writer, &(struct fb_msg_pong){0});
    end_frame(FB_MSG_PONG, 0, 14);
    item(ITEM_SHARD, MODE_HOLD_OPS, 1);
    say_key(FB_MSG_REMOVE, 15, "a");
    say(FB_MSG_CANCEL, 15);
    for (uint64_t op = 16; op < 22; op++)
        say_list(op);
    item(ITEM_FINISH, 0, 2);
    item(ITEM_FINISH, 0, 2);
    item(ITEM_SEND, 65535, 2);
    item(ITEM_REFUSE, 0, 0);
    end_seed("others");
}

/* One breach for each seed: the session must end, and the node live on. */
static void seed_breaches(void)
{
    begin_seed(0);
    end_seed("opened");
    begin_seed(0);
    say_hello(0);
    say(FB_MSG_PING, 3);
    item(ITEM_AS_IS, 0, 1);
    begin_frame();
    end_frame(FB_MSG_PING, 0, 4);
    end_seed("breach-hello-twice");
    begin_seed(0);
    say_key(FB_MSG_REMOVE, 0, "a");
    end_seed("breach-op-zero");
    begin_seed(0);
    say_put(2, "a", 100, 0, true);
    item(ITEM_COMMIT, 2, 1);
    end_seed("breach-commit-early");
    begin_seed(0);
    say_put(2, "a", 100, 0, true);
    say(FB_MSG_RELEASE, 2);
    say(FB_MSG_RELEASE, 2);
    end_seed("release-twice");
    begin_seed(0);
    say_chunk_done(9, 0, false);
    end_seed("breach-chunk-done");
    begin_seed(0);
    for (uint64_t op = 2; op < 140; op++)
        say(FB_MSG_STATUS, op);
    end_seed("credit");
    begin_seed(0);
    begin_frame();
    fb_wire_error_encode(&seed_writer, &(struct fb_msg_error){.result = FB_IO});
    end_frame(FB_MSG_ERROR, 0, 0);
    fuzz_add(&seed, "GET / HTTP/1.0\r\n", 16);
    end_seed("breach-error-text");
    begin_seed(OPTION_SHM);
    say_put(2, "a", 100, 0, true);
    item(ITEM_DATA, 2, 1);
    fuzz_add_number(&seed, 100, 2);
    end_seed("breach-data-shm");
    begin_seed(0);
    frame[1] = 9;
    fuzz_add(&seed, frame, FB_WIRE_HEADER_BYTES);
    end_seed("breach-version");
}

/* Requests that are refused, each for itself. */
static void seed_denied(void)
{
    begin_seed(0);
    seed_ns = NS + 1;
    say_put(2, "a", 100, 0, true);
    say_get(3, "a", 0, UINT64_MAX);
    say_lookup(FB_MSG_LOOKUP, 4, 1, 1);
    say_key(FB_MSG_EXPLAIN, 5, "a");
    say_list(6);
    say_epoch(7);
    seed_ns = NS;
    item(ITEM_SEND, 65535, 2);
    item(ITEM_SHARD, MODE_HOLD_OPS, 1);
    for (uint64_t op = 8; op < 150; op++)
        say_key(FB_MSG_REMOVE, op, "a");
    end_seed("denied-and-credit");
    begin_seed(OPTION_SHM | OPTION_SYMBOLIC);
    say_put(2, "a", VALUE_BYTES, 0, true);
    say_put(3, "b", 100, 100, true);
    item(ITEM_COMMIT, 2, 1);
    say_get(4, "a", 5, 5);
    say_get(5, "a", 0, UINT64_MAX);
    say_get(6, "a", 0, UINT64_MAX);
    say_get(7, "a", 0, UINT64_MAX);
    say(FB_MSG_CANCEL, 7);
    item(ITEM_SEND, 65535, 2);
    end_seed("symbolic");
    begin_seed(OPTION_SYMBOLIC);
    end_seed("symbolic-no-shm");
}

static void say_commit(uint64_t op, uint64_t generation, uint32_t leaves)
{
    struct fb_msg_commit commit = {.generation = generation, .leaf_count = leaves, .leaves = value};
    begin_frame();
    fb_wire_commit_encode(&seed_writer, &commit);
    end_frame(FB_MSG_COMMIT, 0, op);
}

static void seed_bad_puts(void)
{
    begin_seed(OPTION_SHM);
    say_put(2, "a", 100, 0, true);
    say_commit(2, FIRST_GENERATION + 1, 1);
    end_seed("breach-commit-generation");
    begin_seed(OPTION_SHM);
    say_put(2, "a", 100, 0, true);
    say_commit(2, FIRST_GENERATION, 2);
    end_seed("breach-commit-leaves");
    begin_seed(OPTION_SHM);
    item(ITEM_SHARD, MODE_HOLD_GRANTS, 1);
    say_put(2, "a", 100, 0, true);
    say_commit(2, FIRST_GENERATION, 1);
    end_seed("breach-commit-not-granted");
    begin_seed(OPTION_SHM);
    say_put(2, "a", 100, 0, true);
    say(FB_MSG_RELEASE, 2);
    say_commit(2, FIRST_GENERATION, 1);
    end_seed("late-commit");
    for (uint8_t flags = 0; flags <= FB_FRAME_CHECKED; flags += FB_FRAME_CHECKED) {
        begin_seed(0);
        say_put(2, "a", 100, 0, true);
        begin_frame();
        fb_wire_data_encode(&seed_writer,
                            &(struct fb_msg_data){.off = 5, .len = 5, .bytes = value});
        end_frame(FB_MSG_DATA, flags, 2);
        end_seed(flags == 0 ? "breach-data-order" : "breach-data-checked");
    }
    begin_seed(0);
    say_put(2, "a", VALUE_BYTES, 0, true);
    item(ITEM_DATA, 2, 1);
    fuzz_add_number(&seed, 50000, 2);
    item(ITEM_FINISH, 0, 2);
    item(ITEM_PIECES, 99, 1);
    item(ITEM_DATA, 2, 1);
    fuzz_add_number(&seed, 1000, 2);
    say(FB_MSG_RELEASE, 2);
    end_seed("data-after-the-end");
    begin_seed(0);
    begin_frame();
    fb_wire_done_encode(&seed_writer, &(struct fb_msg_done){0});
    end_frame(FB_MSG_REMOVE_DONE, 0, 2);
    end_seed("breach-not-a-client");
    begin_seed(0);
    put_stream(2, "a", VALUE_BYTES);
    say_get(3, "a", 0, UINT64_MAX);
    say_get(4, "a", 0, UINT64_MAX);
    item(ITEM_SEND, 100, 2);
    item(ITEM_FINISH, 0, 2);
    item(ITEM_SEND, 100, 2);
    say_chunk_done(4, 0, false);
    end_seed("breach-chunk-done-early");
}

static void seeds(void)
{
    seed_puts();
    seed_gets();
    seed_others();
    seed_breaches();
    seed_denied();
    seed_bad_puts();
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    for (size_t i = 0; i < sizeof(value); i++)
        value[i] = (uint8_t)(i * 7 + (i >> 9));
    return fuzz_start(argc, argv, seeds);
}
