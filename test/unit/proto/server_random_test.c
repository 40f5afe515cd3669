/*
 * The node's side of a session under random frames whose checks fit, most of them in place and some
 * not, while the fake shard grants and revokes at random: no assertion fails, no sanitizer speaks,
 * and when the session has ended nothing is left open.
 *
 * Cannot show: that answers are the right ones (server_test, server_get_test).
 */
#include "proto/server_private.h"
#include "server_harness.h"

/* ---- anything at all ---- */

static unsigned random_frames;

/* True if a frame of this type would be in place for this operation. */
static bool is_plausible(uint8_t type, uint64_t op)
{
    const struct fb_slot *slot = fb_session_find(session, op);
    switch (type) {
    case FB_MSG_DATA:
    case FB_MSG_COMMIT:
    case FB_MSG_RELEASE:
        return slot != NULL && slot->type == FB_MSG_PUT && (slot->flags & FB_SLOT_TOLD) != 0 &&
               (slot->flags & FB_SLOT_COMMITTED) == 0 && !slot->client_released &&
               (type != FB_MSG_DATA ||
                (!fb_proto_session_uses_shm(session) && slot->data_off < slot->op.value_bytes));
    case FB_MSG_CHUNK_DONE:
        return slot != NULL && slot->type == FB_MSG_GET && fb_session_chunks_are_owed(slot);
    case FB_MSG_CANCEL:
    case FB_MSG_PING:
        return true;
    default:
        return slot == NULL;
    }
}

/* A chunk that is owed for this get, or 3. */
static uint8_t owed_chunk(uint64_t op)
{
    const struct fb_slot *slot = fb_session_find(session, op);
    for (uint8_t i = 0; slot != NULL && slot->type == FB_MSG_GET && i < 3; i++)
        if (slot->chunk[i].owed)
            return i;
    return 3;
}

/* What fits a put that is under way: the next bytes, the leaves of all of them. */
static void random_put_frame(struct fb_prng *prng, uint8_t type, uint64_t op)
{
    const struct fb_slot *slot = fb_session_find(session, op);
    uint64_t bytes = slot != NULL && slot->type == FB_MSG_PUT ? slot->op.value_bytes : 5000;
    uint64_t off = slot != NULL ? slot->data_off : 0;
    if (type == FB_MSG_COMMIT) {
        uint32_t count = leaves_of(bytes);
        uint64_t generation = slot != NULL ? slot->op.generation : 1;
        if (fb_prng_below(prng, 20) == 0)
            leaves[0] ^= 1;
        fb_wire_commit_encode(&writer, &(struct fb_msg_commit){.generation =
                                                                   generation != 0 ? generation : 1,
                                                               .leaf_count = count,
                                                               .leaves = (const uint8_t *)leaves});
        return;
    }
    uint64_t len =
        fb_min_u64(fb_min_u64(bytes - fb_min_u64(off, bytes), FB_WIRE_DATA_MAX), FB_LEAF_BYTES);
    len = fb_prng_below(prng, 2) != 0 && len > 1 ? 1 + fb_prng_below(prng, len) : len;
    len = len == 0 ? 1 : len;
    fb_wire_data_encode(&writer, &(struct fb_msg_data){.off = off,
                                                       .len = (uint32_t)len,
                                                       .bytes = value + off});
}

/* The payload of what is neither a put's nor a get's request. */
static void random_other(uint8_t type, uint64_t op, const struct fb_msg_key *key)
{
    switch (type) {
    case FB_MSG_CHUNK_DONE:
        fb_wire_chunk_done_encode(&writer, &(struct fb_msg_chunk_done){.slot = owed_chunk(op)});
        break;
    case FB_MSG_LOOKUP:
    case FB_MSG_HOLD_RELEASE:
        fb_wire_lookup_encode(&writer, &(struct fb_msg_lookup){.ns = NS,
                                                               .epoch = EPOCH,
                                                               .count = 4,
                                                               .digests = value});
        break;
    case FB_MSG_LIST:
        fb_wire_list_encode(&writer, &(struct fb_msg_list){.ns = NS, .epoch = EPOCH});
        break;
    case FB_MSG_EPOCH:
        fb_wire_epoch_encode(&writer, &(struct fb_msg_epoch){.ns = NS, .epoch = EPOCH});
        break;
    case FB_MSG_REMOVE:
    case FB_MSG_EXPLAIN:
    case FB_MSG_WAIT_PERSISTED:
        fb_wire_key_encode(&writer, key);
        break;
    default:
        break;
    }
}

/* A random frame whose check fits: types and fields near what is good. */
static size_t random_frame(struct fb_prng *prng)
{
    static const uint8_t types[] = {FB_MSG_PUT,           FB_MSG_GET,     FB_MSG_DATA,
                                    FB_MSG_COMMIT,        FB_MSG_RELEASE, FB_MSG_CHUNK_DONE,
                                    FB_MSG_CANCEL,        FB_MSG_LOOKUP,  FB_MSG_HOLD_RELEASE,
                                    FB_MSG_REMOVE,        FB_MSG_EXPLAIN, FB_MSG_STATUS,
                                    FB_MSG_PING,          FB_MSG_LIST,    FB_MSG_EPOCH,
                                    FB_MSG_WAIT_PERSISTED};
    static const char *const keys[] = {"a", "b", "c"};
    uint8_t type;
    uint64_t op;
    unsigned tries = 0;
    do {
        type = types[fb_prng_below(prng, sizeof(types))];
        op = 1 + fb_prng_below(prng, 12);
    } while (!is_plausible(type, op) && ++tries < 1000 && fb_prng_below(prng, 2000) != 0);
    random_frames++;
    struct fb_msg_key key = key_of(keys[fb_prng_below(prng, 3)]);
    key.deadline_ms = (uint32_t)fb_prng_below(prng, 3000);
    uint64_t bytes = 1 + fb_prng_below(prng, fb_prng_below(prng, 2) != 0 ? 30000 : 900000);
    begin();
    switch (type) {
    case FB_MSG_PUT: {
        struct fb_msg_put put = {.key = key,
                                 .value_bytes = bytes,
                                 .put_flags = (uint8_t)fb_prng_below(prng, 2)};
        if (bytes <= FB_WIRE_INLINE_MAX && fb_prng_below(prng, 2) != 0) {
            put.inline_bytes = (uint32_t)bytes;
            put.inline_data = value;
            put.inline_leaf = fb_leaf_hash(value, bytes);
        }
        fb_wire_put_encode(&writer, &put);
        break;
    }
    case FB_MSG_GET: {
        struct fb_msg_get get = {.key = key, .range_bytes = UINT64_MAX};
        if (fb_prng_below(prng, 2) != 0) {
            get.range_off = fb_prng_below(prng, 600000);
            get.range_bytes = bytes;
        }
        fb_wire_get_encode(&writer, &get);
        break;
    }
    case FB_MSG_DATA:
    case FB_MSG_COMMIT:
        random_put_frame(prng, type, op);
        break;
    default:
        random_other(type, op, &key);
        break;
    }
    fb_wire_frame_end(&writer, 0, type, type == FB_MSG_CHUNK_DONE && op == 3 ? FB_FRAME_BAD : 0, op,
                      MAP);
    return writer.at_bytes;
}

/* What the shard may do by itself meanwhile. */
static void random_event(struct fb_prng *prng)
{
    for (unsigned i = 0; i < FAKE_VALUES; i++) {
        struct fake_value *at = &fake.values[i];
        if (!at->used || at->op == NULL || fb_prng_below(prng, 8) != 0)
            continue;
        if (at->generation == 0)
            fake_grant(at->op);
        else if (at->op->result == 0 && fb_prng_below(prng, 3) == 0)
            fake_finish(at->op, FB_DEADLINE, FB_REASON_GRANT_EXPIRED);
    }
}

static void random_session(uint64_t seed)
{
    struct fb_prng prng;
    fb_prng_seed(&prng, seed);
    setup_path(fb_prng_below(&prng, 2) != 0);
    fill_value(seed);
    start();
    fake.hold_grants = fb_prng_below(&prng, 2) != 0;
    fake.verified = fb_prng_below(&prng, 2) != 0;
    for (unsigned n = 0; n < 300 && !fb_proto_session_is_closing(session); n++) {
        size_t count = random_frame(&prng);
        size_t at = 0;
        while (at < count) {
            size_t taken = feed(frame_room + at,
                                (size_t)fb_min_u64(count - at, 1 + fb_prng_below(&prng, count)));
            if (taken == 0 &&
                (fb_proto_session_is_closing(session) || fb_proto_session_is_paused(session)))
                break;
            if (taken == 0)
                taken = feed(frame_room + at, count - at);
            at += taken;
        }
        random_event(&prng);
        if (fb_prng_below(&prng, 3) == 0)
            drain(fb_prng_below(&prng, 300000));
        if (sent_bytes > sizeof(sent) / 2)
            sent_bytes = read_bytes = 0;
        now += fb_prng_below(&prng, 10 * FB_MS_NS);
        fb_proto_server_tick(server, now);
    }
    teardown(NULL);
}

static void test_random_frames(void **state)
{
    (void)state;
    teardown(NULL);
    for (uint64_t seed = 1; seed <= 300; seed++)
        random_session(seed);
    assert_true(random_frames > 300 * 30);
    setup_path(false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        STREAM(test_random_frames),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
