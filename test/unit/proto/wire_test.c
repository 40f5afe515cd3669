/*
 * The messages of the wire as bytes. Covers: golden frames (golden.inc) of every type, so that no
 * field moves unnoticed; a decoded message encodes to the same bytes; a frame cut at any byte or
 * with a byte too many is refused; any single damaged byte of a checked frame is noticed; random
 * payloads never crash a decoder, and one that it takes is canonical; reserved fields and ranges
 * are refused by name.
 *
 * Cannot show: that the meaning of fields is the same at both ends (client and server tests do).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/prng.h"
#include "base/result.h"
#include "proto/wire.h"

#define MAP 7u
#define OP  UINT64_C(0x1122334455667788)

union any_message {
    struct fb_msg_hello hello;
    struct fb_msg_welcome welcome;
    struct fb_msg_error error;
    struct fb_msg_pong pong;
    struct fb_msg_namespace namespace;
    struct fb_msg_namespace_done namespace_done;
    struct fb_msg_put put;
    struct fb_msg_grant grant;
    struct fb_msg_data data;
    struct fb_msg_commit commit;
    struct fb_msg_put_done put_done;
    struct fb_msg_get get;
    struct fb_msg_chunk chunk;
    struct fb_msg_chunk_done chunk_done;
    struct fb_msg_get_done get_done;
    struct fb_msg_lookup lookup;
    struct fb_msg_lookup_done lookup_done;
    struct fb_msg_key key;
    struct fb_msg_done done;
    struct fb_msg_epoch epoch;
    struct fb_msg_explain_done explain_done;
    struct fb_msg_list list;
    struct fb_msg_list_done list_done;
    struct fb_msg_text text;
};

static const uint8_t bytes_0_63[64] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12,
                                       13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25,
                                       26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38,
                                       39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51,
                                       52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};

/* Two runs: (0x1000, 0x2000), (0xabc000, 5). */
static const uint8_t two_runs[24] = {0, 0x10, 0,    0, 0, 0, 0, 0, 0, 0x20, 0, 0,
                                     0, 0xc0, 0xab, 0, 0, 0, 0, 0, 5, 0,    0, 0};
static const uint8_t two_keys[9] = {1, 0, 'a', 4, 0, 'b', 'c', 0, 0xff};

static const struct fb_msg_key some_key = {.ns = 3,
                                           .key_bytes = 5,
                                           .deadline_ms = 1500,
                                           .epoch = 9,
                                           .key = (const uint8_t *)"key-1"};

/* ---- one sample of every type ---- */

static void sample_start(int type, union any_message *m)
{
    switch (type) {
    case FB_MSG_HELLO:
        m->hello = (struct fb_msg_hello){.features = 3,
                                         .client_nonce = 0xa1a2a3a4a5a6a7a8,
                                         .ended_session = 6,
                                         .pid = 4321,
                                         .name_bytes = 4,
                                         .name = (const uint8_t *)"test"};
        break;
    case FB_MSG_WELCOME:
        m->welcome = (struct fb_msg_welcome){.features = 1,
                                             .boot_nonce = 2,
                                             .session = 3,
                                             .node_id = 4,
                                             .pool_bytes = 5 << 20,
                                             .value_bytes_max = 1 << 30,
                                             .inline_credit_bytes = 1 << 20,
                                             .chunk_bytes = 4 << 20,
                                             .op_credit = 128,
                                             .heartbeat_ms = 5000,
                                             .shards = 1,
                                             .map_version = MAP};
        break;
    case FB_MSG_ERROR:
        m->error = (struct fb_msg_error){.result = FB_PROTOCOL,
                                         .text_bytes = 3,
                                         .text = (const uint8_t *)"why"};
        break;
    case FB_MSG_PONG:
        m->pong = (struct fb_msg_pong){.turn_age_us = 250, .tier = 2, .state = FB_WIRE_SERVING};
        break;
    case FB_MSG_NAMESPACE:
        m->namespace = (struct fb_msg_namespace){.deadline_ms = 30000,
                                                 .fields_bytes = 6,
                                                 .fields = bytes_0_63,
                                                 .quota_dram_bytes = 1,
                                                 .quota_ssd_bytes = 2};
        break;
    case FB_MSG_NAMESPACE_DONE:
        m->namespace_done = (struct fb_msg_namespace_done){.result = FB_OK, .ns = 3, .epoch = 9};
        memcpy(m->namespace_done.id, bytes_0_63, 16);
        memcpy(m->namespace_done.secret, bytes_0_63 + 16, 16);
        break;
    case FB_MSG_EPOCH:
        m->epoch = (struct fb_msg_epoch){.ns = 3, .deadline_ms = 77, .epoch = 9};
        break;
    case FB_MSG_LIST:
        m->list = (struct fb_msg_list){.ns = 3, .epoch = 9, .cursor = 11, .deadline_ms = 77};
        break;
    case FB_MSG_LIST_DONE:
        m->list_done =
            (struct fb_msg_list_done){.result = FB_OK, .cursor = 12, .bytes = 9, .keys = two_keys};
        break;
    case FB_MSG_STATUS_DONE:
        m->text =
            (struct fb_msg_text){.result = FB_OK, .text_bytes = 2, .text = (const uint8_t *)"{}"};
        break;
    }
}

static void sample_put(int type, union any_message *m)
{
    switch (type) {
    case FB_MSG_PUT:
        m->put = (struct fb_msg_put){.key = some_key,
                                     .value_bytes = 10,
                                     .group = {.hi = 5, .lo = 6},
                                     .depth = 17,
                                     .persist = 4,
                                     .pin_class = 2,
                                     .put_flags = FB_WIRE_PUT_UPSERT,
                                     .inline_bytes = 10,
                                     .inline_leaf = 0xfeed,
                                     .inline_data = bytes_0_63};
        break;
    case FB_MSG_GRANT:
        m->grant = (struct fb_msg_grant){.generation = 99,
                                         .value_off = 4096,
                                         .run_count = 2,
                                         .runs = two_runs};
        break;
    case FB_MSG_DATA:
        m->data = (struct fb_msg_data){.off = 262144, .len = 20, .bytes = bytes_0_63};
        break;
    case FB_MSG_COMMIT:
        m->commit = (struct fb_msg_commit){.generation = 99, .leaf_count = 3, .leaves = bytes_0_63};
        break;
    case FB_MSG_PUT_DONE:
        m->put_done = (struct fb_msg_put_done){.result = FB_EXISTS, .reason = 2, .generation = 98};
        break;
    case FB_MSG_EXPLAIN_DONE:
        m->explain_done = (struct fb_msg_explain_done){.result = FB_OK,
                                                       .present = 1,
                                                       .tiers = 3,
                                                       .reason = 1,
                                                       .value_bytes = 10,
                                                       .generation = 98,
                                                       .when_ms = 1,
                                                       .since_ms = 2,
                                                       .text_bytes = 2,
                                                       .text = (const uint8_t *)"at"};
        break;
    case FB_MSG_REMOVE:
    case FB_MSG_WAIT_PERSISTED:
    case FB_MSG_DROP_DRAM:
    case FB_MSG_EXPLAIN:
        m->key = some_key;
        break;
    case FB_MSG_REMOVE_DONE:
    case FB_MSG_WAIT_DONE:
    case FB_MSG_EPOCH_DONE:
    case FB_MSG_DROP_DONE:
        m->done = (struct fb_msg_done){.result = FB_MISS, .reason = 4, .value = 10};
        break;
    }
}

static void sample_get(int type, union any_message *m)
{
    switch (type) {
    case FB_MSG_GET:
        m->get = (struct fb_msg_get){.key = some_key,
                                     .range_off = 4096,
                                     .range_bytes = UINT64_MAX,
                                     .get_flags = FB_WIRE_GET_HELD};
        break;
    case FB_MSG_CHUNK:
        m->chunk = (struct fb_msg_chunk){.slot = 2,
                                         .verified = 1,
                                         .from_ssd = 1,
                                         .mode = FB_WIRE_CHUNK_RUNS,
                                         .part = 1,
                                         .part_bytes = 8197,
                                         .want_off = 1,
                                         .want_bytes = 8196,
                                         .value_off = 8197,
                                         .value_bytes = 16394,
                                         .generation = 98,
                                         .root = 0xabcd,
                                         .run_count = 2,
                                         .runs = two_runs};
        break;
    case FB_MSG_CHUNK_DONE:
        m->chunk_done = (struct fb_msg_chunk_done){.slot = 3};
        break;
    case FB_MSG_GET_DONE:
        m->get_done = (struct fb_msg_get_done){.result = FB_OK,
                                               .tiers = 2,
                                               .value_bytes = 16394,
                                               .generation = 98};
        break;
    case FB_MSG_LOOKUP:
    case FB_MSG_HOLD_RELEASE:
        m->lookup = (struct fb_msg_lookup){.ns = 3,
                                           .epoch = 9,
                                           .hold_ms = 100,
                                           .hold_loads = 2,
                                           .deadline_ms = 50,
                                           .count = 2,
                                           .digests = bytes_0_63};
        break;
    case FB_MSG_LOOKUP_DONE:
        m->lookup_done =
            (struct fb_msg_lookup_done){.result = FB_OK, .count = 2, .found = bytes_0_63};
        break;
    }
}

/* Samples that differ from the first of their type in what may be absent. */
static void sample_variant(int type, union any_message *m)
{
    if (type == FB_MSG_PUT) {
        m->put.inline_bytes = 0;
        m->put.inline_data = NULL;
        m->put.value_bytes = FB_GIB(1);
    } else if (type == FB_MSG_GRANT) {
        m->grant = (struct fb_msg_grant){.generation = 99, .window_bytes = FB_GIB(1)};
    } else if (type == FB_MSG_CHUNK) {
        m->chunk.mode = FB_WIRE_CHUNK_INLINE;
        m->chunk.run_count = 0;
        m->chunk.want_bytes = m->chunk.inline_bytes = 11;
        m->chunk.inline_data = bytes_0_63;
    } else if (type == FB_MSG_LOOKUP_DONE) {
        m->lookup_done.count = 0;
    }
}

#define DISPATCH(verb, with)                        \
    switch (type) {                                 \
        verb(HELLO, hello, with);                   \
        verb(WELCOME, welcome, with);               \
        verb(ERROR, error, with);                   \
        verb(PONG, pong, with);                     \
        verb(NAMESPACE, namespace, with);           \
        verb(NAMESPACE_DONE, namespace_done, with); \
        verb(PUT, put, with);                       \
        verb(GRANT, grant, with);                   \
        verb(DATA, data, with);                     \
        verb(COMMIT, commit, with);                 \
        verb(PUT_DONE, put_done, with);             \
        verb(GET, get, with);                       \
        verb(CHUNK, chunk, with);                   \
        verb(CHUNK_DONE, chunk_done, with);         \
        verb(GET_DONE, get_done, with);             \
        verb(LOOKUP, lookup, with);                 \
        verb(HOLD_RELEASE, lookup, with);           \
        verb(LOOKUP_DONE, lookup_done, with);       \
        verb(REMOVE, key, with);                    \
        verb(WAIT_PERSISTED, key, with);            \
        verb(DROP_DRAM, key, with);                 \
        verb(EXPLAIN, key, with);                   \
        verb(REMOVE_DONE, done, with);              \
        verb(WAIT_DONE, done, with);                \
        verb(EPOCH_DONE, done, with);               \
        verb(DROP_DONE, done, with);                \
        verb(EPOCH, epoch, with);                   \
        verb(EXPLAIN_DONE, explain_done, with);     \
        verb(LIST, list, with);                     \
        verb(LIST_DONE, list_done, with);           \
        verb(STATUS_DONE, text, with);              \
    }

#define ENCODE(TYPE, name, m)                        \
    case FB_MSG_##TYPE:                              \
        fb_wire_##name##_encode(writer, &(m)->name); \
        break
#define DECODE(TYPE, name, m) \
    case FB_MSG_##TYPE:       \
        return fb_wire_##name##_decode(reader, &(m)->name, bad)

static void encode(int type, struct fb_writer *writer, const union any_message *m)
{
    DISPATCH(ENCODE, m)
}

static int decode(int type, struct fb_reader *reader, union any_message *m, const char **bad)
{
    DISPATCH(DECODE, m)
    return fb_wire_empty_decode(reader, bad);
}

static void sample(int type, bool variant, union any_message *m)
{
    memset(m, 0, sizeof(*m));
    sample_start(type, m);
    sample_put(type, m);
    sample_get(type, m);
    if (variant)
        sample_variant(type, m);
}

static bool has_variant(int type)
{
    return type == FB_MSG_PUT || type == FB_MSG_GRANT || type == FB_MSG_CHUNK ||
           type == FB_MSG_LOOKUP_DONE;
}

/* A whole frame of a type; returns its length. */
static size_t frame(int type, bool variant, uint8_t *out, size_t room)
{
    union any_message m;
    sample(type, variant, &m);
    struct fb_writer writer;
    fb_writer_init(&writer, out, room);
    size_t at = fb_wire_frame_begin(&writer);
    encode(type, &writer, &m);
    fb_wire_frame_end(&writer, at, (uint8_t)type, 0, OP, MAP);
    assert_true(fb_writer_ok(&writer));
    return writer.at_bytes;
}

/* ---- golden frames ---- */

struct golden {
    int type;
    bool variant;
    const char *hex;
};

static const struct golden goldens[] = {
#include "golden.inc"
};

static void to_hex(const uint8_t *bytes, size_t count, char *hex)
{
    for (size_t i = 0; i < count; i++)
        snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
}

/* WIRE_GOLDEN=1 prints what golden.inc should hold: to be looked at before it is kept. */
static void print_goldens(void)
{
    static uint8_t bytes[4096];
    static char hex[8193];
    for (int type = 1; type < FB_MSG_TYPE_COUNT; type++) {
        for (int variant = 0; variant <= has_variant(type); variant++) {
            size_t count = frame(type, variant != 0, bytes, sizeof(bytes));
            to_hex(bytes, count, hex);
            printf("    {FB_MSG_%s, %s,\n", fb_wire_type_name(type), variant ? "true" : "false");
            for (size_t at = 0; at < 2 * count; at += 64)
                printf("     \"%.64s\"%s\n", hex + at, at + 64 < 2 * count ? "" : "},");
        }
    }
}

static void test_golden_frames(void **state)
{
    (void)state;
    if (getenv("WIRE_GOLDEN") != NULL)
        print_goldens();
    static uint8_t bytes[4096];
    static char hex[8193];
    size_t expected = 0;
    for (int type = 1; type < FB_MSG_TYPE_COUNT; type++)
        expected += 1 + has_variant(type);
    assert_int_equal(expected, sizeof(goldens) / sizeof(goldens[0]));
    for (size_t i = 0; i < sizeof(goldens) / sizeof(goldens[0]); i++) {
        size_t count = frame(goldens[i].type, goldens[i].variant, bytes, sizeof(bytes));
        to_hex(bytes, count, hex);
        assert_string_equal(hex, goldens[i].hex);
    }
}

/* ---- round trips ---- */

static void round_trip(int type, bool variant)
{
    static uint8_t bytes[4096];
    static uint8_t again[4096];
    size_t count = frame(type, variant, bytes, sizeof(bytes));
    struct fb_wire_header header;
    const char *bad = NULL;
    assert_int_equal(fb_wire_header_decode(bytes, &header, &bad), FB_OK);
    assert_null(bad);
    assert_int_equal(header.type, type);
    assert_true(header.op == OP);
    assert_int_equal(header.map_version, MAP);
    assert_int_equal(header.payload_bytes, count - FB_WIRE_HEADER_BYTES);
    uint32_t covered = fb_wire_covered_bytes(&header);
    assert_true(fb_wire_check(bytes, bytes + FB_WIRE_HEADER_BYTES, covered) == header.check);

    union any_message m;
    struct fb_reader reader;
    fb_reader_init(&reader, bytes + FB_WIRE_HEADER_BYTES, header.payload_bytes);
    assert_int_equal(decode(type, &reader, &m, &bad), FB_OK);
    struct fb_writer writer;
    fb_writer_init(&writer, again, sizeof(again));
    encode(type, &writer, &m);
    assert_true(fb_writer_ok(&writer));
    assert_int_equal(writer.at_bytes, header.payload_bytes);
    assert_memory_equal(again, bytes + FB_WIRE_HEADER_BYTES, header.payload_bytes);
}

static void test_round_trips(void **state)
{
    (void)state;
    for (int type = 1; type < FB_MSG_TYPE_COUNT; type++)
        for (int variant = 0; variant <= has_variant(type); variant++)
            round_trip(type, variant != 0);
}

/* The payload is copied to a block of its exact length, so that a sanitizer sees a read beyond it.
 */
static int decode_exact(int type, const uint8_t *payload, size_t count, const char **bad)
{
    uint8_t *copy = malloc(count + 1);
    assert_non_null(copy);
    uint8_t *begin = copy + 1; /* and at an odd address */
    memcpy(begin, payload, count);
    struct fb_reader reader;
    fb_reader_init(&reader, begin, count);
    union any_message m;
    int result = decode(type, &reader, &m, bad);
    if (result == FB_OK) {
        static uint8_t again[FB_FRAME_BYTES_MAX];
        struct fb_writer writer;
        fb_writer_init(&writer, again, sizeof(again));
        encode(type, &writer, &m);
        assert_int_equal(writer.at_bytes, count);
        assert_memory_equal(again, begin, count);
    } else {
        assert_int_equal(result, FB_PROTOCOL);
        assert_non_null(*bad);
    }
    free(copy);
    return result;
}

static void test_truncation_at_every_byte(void **state)
{
    (void)state;
    static uint8_t bytes[4096];
    const char *bad;
    for (int type = 1; type < FB_MSG_TYPE_COUNT; type++) {
        for (int variant = 0; variant <= has_variant(type); variant++) {
            size_t count = frame(type, variant != 0, bytes, sizeof(bytes)) - FB_WIRE_HEADER_BYTES;
            const uint8_t *payload = bytes + FB_WIRE_HEADER_BYTES;
            for (size_t cut = 0; cut < count; cut++)
                assert_int_equal(decode_exact(type, payload, cut, &bad), FB_PROTOCOL);
            assert_int_equal(decode_exact(type, payload, count, &bad), FB_OK);
            assert_int_equal(decode_exact(type, payload, count + 1, &bad), FB_PROTOCOL);
        }
    }
}

/* ---- damage ---- */

static void test_every_damaged_byte_is_noticed(void **state)
{
    (void)state;
    static uint8_t bytes[4096];
    for (int type = 1; type < FB_MSG_TYPE_COUNT; type++) {
        size_t count = frame(type, false, bytes, sizeof(bytes));
        struct fb_wire_header header;
        const char *bad;
        assert_int_equal(fb_wire_header_decode(bytes, &header, &bad), FB_OK);
        size_t covered = FB_WIRE_HEADER_BYTES + fb_wire_covered_bytes(&header);
        assert_true(covered == count || type == FB_MSG_DATA);
        for (size_t bit = 0; bit < covered * 8; bit++) {
            bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
            int result = fb_wire_header_decode(bytes, &header, &bad);
            bool noticed = result != FB_OK ||
                           header.payload_bytes != count - FB_WIRE_HEADER_BYTES ||
                           fb_wire_check(bytes, bytes + FB_WIRE_HEADER_BYTES,
                                         fb_wire_covered_bytes(&header)) != header.check;
            assert_true(noticed);
            bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        }
    }
}

static void test_random_damage_never_crashes(void **state)
{
    (void)state;
    static uint8_t bytes[4096];
    struct fb_prng prng;
    fb_prng_seed(&prng, 4);
    const char *bad;
    unsigned taken = 0;
    for (int round = 0; round < 40000; round++) {
        int type = 1 + (int)fb_prng_below(&prng, FB_MSG_TYPE_COUNT - 1);
        bool variant = has_variant(type) && fb_prng_below(&prng, 2) != 0;
        size_t count = frame(type, variant, bytes, sizeof(bytes)) - FB_WIRE_HEADER_BYTES;
        uint8_t *payload = bytes + FB_WIRE_HEADER_BYTES;
        for (uint64_t n = fb_prng_below(&prng, 4); n > 0 && count > 0; n--) {
            uint8_t *at = &payload[fb_prng_below(&prng, count)];
            *at = fb_prng_below(&prng, 2) != 0 ? (uint8_t)fb_prng_next(&prng) : (uint8_t)(*at + 1);
        }
        count -= fb_prng_below(&prng, 8) == 0 && count > 0 ? fb_prng_below(&prng, count) : 0;
        taken += decode_exact(type, payload, count, &bad) == FB_OK;
    }
    assert_true(taken > 1000);
}

static void test_random_headers(void **state)
{
    (void)state;
    struct fb_prng prng;
    fb_prng_seed(&prng, 5);
    for (int round = 0; round < 100000; round++) {
        uint8_t bytes[FB_WIRE_HEADER_BYTES];
        fb_prng_fill(&prng, bytes, sizeof(bytes));
        if (round % 2 == 0) {
            bytes[0] = FB_WIRE_MAGIC;
            bytes[1] = FB_WIRE_VERSION;
            bytes[3] = 0;
            memset(bytes + 6, 0, 2);
            memset(bytes + 20, 0, 4);
        }
        struct fb_wire_header header;
        const char *bad = NULL;
        int result = fb_wire_header_decode(bytes, &header, &bad);
        if (result == FB_OK)
            assert_true(header.payload_bytes <= FB_WIRE_PAYLOAD_MAX &&
                        fb_wire_covered_bytes(&header) <= header.payload_bytes);
        else
            assert_non_null(bad);
    }
}

/* ---- refusals by name ---- */

static void test_header_refusals(void **state)
{
    (void)state;
    uint8_t good[4096], bytes[FB_WIRE_HEADER_BYTES];
    frame(FB_MSG_PUT, false, good, sizeof(good));
    static const struct {
        unsigned at;
        uint8_t value;
        int result;
        const char *field;
    } cases[] = {
        {0, 0x16, FB_PROTOCOL, "header.magic"},
        {1, 2, FB_UNSUPPORTED, "header.version"},
        {2, 0, FB_PROTOCOL, "header.type"},
        {2, FB_MSG_TYPE_COUNT, FB_PROTOCOL, "header.type"},
        {3, 1, FB_PROTOCOL, "header.flags"},
        {4, 3, FB_PROTOCOL, "header.payload_bytes"},
        {7, 0xff, FB_PROTOCOL, "header.payload_bytes"},
        {20, 1, FB_PROTOCOL, "header.reserved"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        memcpy(bytes, good, sizeof(bytes));
        bytes[cases[i].at] = cases[i].value;
        struct fb_wire_header header;
        const char *bad = NULL;
        assert_int_equal(fb_wire_header_decode(bytes, &header, &bad), cases[i].result);
        assert_string_equal(bad, cases[i].field);
    }
}

static void test_field_refusals(void **state)
{
    (void)state;
    static const struct {
        int type;
        unsigned at;
        uint8_t value;
        const char *field;
    } cases[] = {
        {FB_MSG_HELLO, 32, 65, "HELLO.name_bytes"},
        {FB_MSG_HELLO, 34, 1, "HELLO.reserved"},
        {FB_MSG_WELCOME, 59, 1, "WELCOME.chunk_bytes"},
        {FB_MSG_WELCOME, 16, 0, "WELCOME.session"},
        {FB_MSG_ERROR, 0, 0, "ERROR.result"},
        {FB_MSG_NAMESPACE, 3, 0xff, "NAMESPACE.deadline_ms"},
        {FB_MSG_PUT, 2, 0, "key.key_bytes"},
        {FB_MSG_PUT, 3, 8, "key.key_bytes"},
        {FB_MSG_PUT, 16, 0, "PUT.value_bytes"},
        {FB_MSG_PUT, 42, 5, "PUT.persist"},
        {FB_MSG_PUT, 44, 2, "PUT.put_flags"},
        {FB_MSG_PUT, 47, 1, "PUT.reserved"},
        {FB_MSG_PUT, 48, 9, "PUT.inline_bytes"},
        {FB_MSG_GRANT, 0, 0, "GRANT.generation"},
        {FB_MSG_GRANT, 8, 1, "GRANT.run_count"},
        {FB_MSG_GRANT, 24, 1, "GRANT.run_count"},
        {FB_MSG_GRANT, 41, 0, "GRANT.runs"},
        {FB_MSG_DATA, 8, 21, "DATA.len"},
        {FB_MSG_COMMIT, 8, 0, "COMMIT.leaf_count"},
        {FB_MSG_GET, 32, 1, "GET.get_flags"},
        {FB_MSG_CHUNK, 0, 4, "CHUNK.slot"},
        {FB_MSG_CHUNK, 3, 3, "CHUNK.mode"},
        {FB_MSG_CHUNK, 12, 2, "CHUNK.want_bytes"},
        {FB_MSG_CHUNK, 32, 6, "CHUNK.value_off"},
        {FB_MSG_CHUNK_DONE, 0, 4, "CHUNK_DONE.slot"},
        {FB_MSG_LOOKUP, 28, 1, "LOOKUP.reserved"},
        {FB_MSG_LOOKUP, 24, 0, "LOOKUP.count"},
        {FB_MSG_LOOKUP, 21, 1, "LOOKUP.hold_loads"},
        {FB_MSG_LIST_DONE, 16, 2, "LIST_DONE.keys"},
        {FB_MSG_EXPLAIN_DONE, 4, 2, "EXPLAIN_DONE.present"},
    };
    static uint8_t bytes[4096];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t count = frame(cases[i].type, false, bytes, sizeof(bytes)) - FB_WIRE_HEADER_BYTES;
        uint8_t *payload = bytes + FB_WIRE_HEADER_BYTES;
        payload[cases[i].at] = cases[i].value;
        const char *bad = NULL;
        assert_int_equal(decode_exact(cases[i].type, payload, count, &bad), FB_PROTOCOL);
        assert_string_equal(bad, cases[i].field);
    }
}

/* ---- helpers ---- */

static void test_data_heads(void **state)
{
    (void)state;
    uint8_t whole[48], pieces[48], plain[48];
    fb_wire_data_head(whole, OP, 5, 64, bytes_0_63, MAP);
    struct fb_wire_data_check check;
    fb_wire_data_check_begin(&check, pieces, OP, 5, 64, MAP);
    fb_wire_data_check_add(&check, bytes_0_63, 10);
    fb_wire_data_check_add(&check, bytes_0_63 + 10, 54);
    fb_wire_data_check_end(&check, pieces);
    assert_memory_equal(whole, pieces, sizeof(whole));
    fb_wire_data_head(plain, OP, 5, 64, NULL, MAP);
    assert_memory_not_equal(whole, plain, sizeof(whole));

    struct fb_wire_header header;
    const char *bad;
    assert_int_equal(fb_wire_header_decode(whole, &header, &bad), FB_OK);
    assert_int_equal(header.flags, FB_FRAME_CHECKED);
    uint8_t frame_bytes[48 + 64];
    memcpy(frame_bytes, whole, 48);
    memcpy(frame_bytes + 48, bytes_0_63, 64);
    assert_int_equal(fb_wire_covered_bytes(&header), 80);
    assert_true(fb_wire_check(frame_bytes, frame_bytes + 32, 80) == header.check);
    struct fb_msg_data data;
    assert_int_equal(fb_wire_data_head_decode(whole + 32, 80, &data, &bad), FB_OK);
    assert_true(data.off == 5 && data.len == 64 && data.bytes == NULL);
    assert_int_equal(fb_wire_data_head_decode(whole + 32, 81, &data, &bad), FB_PROTOCOL);
}

static void test_leaf_counts(void **state)
{
    (void)state;
    assert_int_equal(fb_wire_leaf_count(1, 4 << 20), 1);
    assert_int_equal(fb_wire_leaf_count(256 << 10, 4 << 20), 1);
    assert_int_equal(fb_wire_leaf_count((256 << 10) + 1, 4 << 20), 2);
    assert_int_equal(fb_wire_leaf_count(FB_GIB(1), 4 << 20), 4096);
    assert_int_equal(fb_wire_leaf_count(FB_GIB(1), 64 << 10), 16384);
    /* Parts of 320 KiB: a leaf of 256 and one of 64. */
    assert_int_equal(fb_wire_leaf_count(640 << 10, 320 << 10), 4);
    assert_int_equal(fb_wire_leaf_count((640 << 10) + 1, 320 << 10), 5);
}

static void test_arrays(void **state)
{
    (void)state;
    struct fb_wire_run run = fb_wire_run_at(two_runs, 1);
    assert_true(run.off == 0xabc000 && run.len == 5);
    uint8_t out[28];
    struct fb_writer writer;
    fb_writer_init(&writer, out, sizeof(out));
    fb_wire_run_encode(&writer, &run);
    assert_memory_equal(out, two_runs + 12, 12);
    struct fb_digest digest = fb_wire_digest_at(bytes_0_63, 1);
    assert_true(digest.lo == UINT64_C(0x1716151413121110) &&
                digest.hi == UINT64_C(0x1f1e1d1c1b1a1918));
    fb_wire_digest_encode(&writer, &digest);
    assert_memory_equal(out + 12, bytes_0_63 + 16, 16);
    assert_true(fb_wire_leaf_at(bytes_0_63, 2) == digest.lo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_frames),
        cmocka_unit_test(test_round_trips),
        cmocka_unit_test(test_truncation_at_every_byte),
        cmocka_unit_test(test_every_damaged_byte_is_noticed),
        cmocka_unit_test(test_random_damage_never_crashes),
        cmocka_unit_test(test_random_headers),
        cmocka_unit_test(test_header_refusals),
        cmocka_unit_test(test_field_refusals),
        cmocka_unit_test(test_data_heads),
        cmocka_unit_test(test_leaf_counts),
        cmocka_unit_test(test_arrays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
