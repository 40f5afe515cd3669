/*
 * The client's side of a connection apart from puts and gets, against a scripted node. Covers: the
 * opening dialogue and its refusals, namespaces in canonical form, lookups with and without holds,
 * calls on keys, single calls, listing, heartbeat, frames that were not asked for, random damage,
 * scatter lists.
 *
 * Cannot show: that a real node answers so (test/e2e, the simulator).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/prng.h"
#include "base/reason.h"
#include "base/result.h"
#include "proto/scatter.h"
#include "test/lib/client_node.h"

static const uint8_t ns_fields[] = {1, 1, 1, 0, 0, 0, 'm'};

static const struct fb_proto_config plain = {
    .features = FB_FEATURE_SHM | FB_FEATURE_HOLDS,
    .nonce = 42,
    .pid = 4711,
    .ended_session = 5,
    .name = "a name that is longer than the sixty-four bytes that go over the wire, by far",
    .fields = ns_fields,
    .fields_bytes = sizeof(ns_fields),
    .quota_dram_bytes = 1000,
    .quota_ssd_bytes = 2000,
};

static void namespaces_in_canonical_form(void **state)
{
    (void)state;
    uint8_t out[FB_NAMESPACE_BYTES_MAX];
    const char *why = NULL;
    struct fb_namespace_fields ns = {.salt = "s", .model = "mm", .dtype = ""};
    static const uint8_t want[] = {2, 1, 2, 0, 0, 0, 'm', 'm', 7, 1, 0, 0, 0, 's'};
    assert_int_equal(fb_proto_namespace_fields(&ns, out, &why), sizeof(want));
    assert_memory_equal(out, want, sizeof(want));
    struct fb_namespace_fields none = {.model = ""};
    assert_int_equal(fb_proto_namespace_fields(&none, out, &why), FB_BAD_ARGUMENT);
    assert_non_null(why);
    char text[300];
    memset(text, 'x', sizeof(text));
    text[256] = '\0';
    struct fb_namespace_fields too_long = {.layout = text};
    assert_int_equal(fb_proto_namespace_fields(&too_long, out, &why), FB_BAD_ARGUMENT);
    assert_non_null(strstr(why, "layout"));
    text[255] = '\0';
    struct fb_namespace_fields all = {text, text, text, text, text, NULL, NULL};
    assert_int_equal(fb_proto_namespace_fields(&all, out, &why), FB_BAD_ARGUMENT);
    assert_non_null(strstr(why, "together"));
    assert_int_equal(fb_proto_namespace_fields(&too_long, out, &why), 1 + 5 + 255);
}

static void hello_and_namespace(void **state)
{
    (void)state;
    struct node node;
    const char *bad;
    node_make(&node, FB_FEATURE_SHM, 8, &plain);
    node_take(&node);
    struct fb_reader reader = node_reader(node_expect(&node, FB_MSG_HELLO));
    struct fb_msg_hello hello;
    assert_int_equal(fb_wire_hello_decode(&reader, &hello, &bad), FB_OK);
    assert_true(hello.features == plain.features && hello.client_nonce == 42);
    assert_true(hello.ended_session == 5 && hello.pid == 4711);
    assert_int_equal(hello.name_bytes, FB_WIRE_NAME_MAX);
    node_take(&node);
    node_expect_nothing(&node);
    NODE_SEND(&node, welcome, FB_MSG_WELCOME, 0, 0, &node.welcome);
    assert_int_equal(fb_proto_client_state(node.client), FB_PROTO_OPENING);
    assert_true(fb_proto_client_welcome(node.client)->session == 9);
    node_take(&node);
    const struct node_frame *frame = node_expect(&node, FB_MSG_NAMESPACE);
    reader = node_reader(frame);
    struct fb_msg_namespace message;
    assert_int_equal(fb_wire_namespace_decode(&reader, &message, &bad), FB_OK);
    assert_memory_equal(message.fields, ns_fields, sizeof(ns_fields));
    assert_true(message.quota_dram_bytes == 1000 && message.quota_ssd_bytes == 2000);
    assert_int_equal(message.deadline_ms, 1000);
    assert_int_equal(frame->header.map_version, 1);
    struct fb_msg_namespace_done done = {.ns = 3, .epoch = 99};
    NODE_SEND(&node, namespace_done, FB_MSG_NAMESPACE_DONE, 0, frame->header.op, &done);
    assert_int_equal(fb_proto_client_state(node.client), FB_PROTO_READY);
    assert_true(fb_proto_client_epoch(node.client) == 99);
    assert_int_equal(fb_proto_client_open_ops(node.client), 0);
    node_free(&node);
}

static void a_client_without_namespace(void **state)
{
    (void)state;
    struct node node;
    struct fb_proto_config config = {.nonce = 1};
    node_make(&node, 0, 8, &config);
    node_take(&node);
    node_expect(&node, FB_MSG_HELLO);
    NODE_SEND(&node, welcome, FB_MSG_WELCOME, 0, 0, &node.welcome);
    assert_int_equal(fb_proto_client_state(node.client), FB_PROTO_READY);
    node_free(&node);
}

static void refusals(void **state)
{
    (void)state;
    struct node node;
    node_make(&node, 0, 8, &plain);
    static const char text[] = "version 2 is spoken here, yours is 1";
    struct fb_msg_error error = {.result = FB_UNSUPPORTED,
                                 .text = (const uint8_t *)text,
                                 .text_bytes = sizeof(text) - 1};
    NODE_SEND(&node, error, FB_MSG_ERROR, 0, 0, &error);
    assert_int_equal(fb_proto_client_state(node.client), FB_PROTO_LOST);
    assert_int_equal(fb_proto_client_result(node.client), FB_UNSUPPORTED);
    assert_string_equal(fb_proto_client_why(node.client), text);
    assert_false(fb_proto_client_owes_memory(node.client));
    node_free(&node);

    node_make(&node, 1u << 5, 8, &plain); /* a feature that was not offered */
    NODE_SEND(&node, welcome, FB_MSG_WELCOME, 0, 0, &node.welcome);
    assert_int_equal(fb_proto_client_result(node.client), FB_PROTOCOL);
    node_free(&node);

    node_make(&node, 0, 8, &plain);
    NODE_SEND(&node, welcome, FB_MSG_WELCOME, 0, 0, &node.welcome);
    node_take(&node);
    node_expect(&node, FB_MSG_HELLO);
    struct fb_msg_namespace_done done = {.result = FB_QUOTA};
    NODE_SEND(&node, namespace_done, FB_MSG_NAMESPACE_DONE, 0,
              node_expect(&node, FB_MSG_NAMESPACE)->header.op, &done);
    assert_int_equal(fb_proto_client_result(node.client), FB_QUOTA);
    node_free(&node);

    node_open(&node, 0, 8, &plain);
    NODE_SEND(&node, welcome, FB_MSG_WELCOME, 0, 0, &node.welcome); /* twice */
    assert_int_equal(fb_proto_client_result(node.client), FB_PROTOCOL);
    node_free(&node);
}

static struct fb_proto_call call_of(const struct node *node, uint8_t kind)
{
    return (struct fb_proto_call){.kind = kind,
                                  .epoch = NODE_EPOCH,
                                  .deadline_ns = node->now_ns + NODE_DEADLINE_NS};
}

static void lookups(void **state)
{
    (void)state;
    enum {
        COUNT = FB_PROTO_LOOKUP_KEYS + 100
    };
    for (unsigned hold = 0; hold < 2; hold++) {
        struct node node;
        node_open(&node, FB_FEATURE_HOLDS, 8, &plain);
        struct fb_exists_item *items = calloc(COUNT, sizeof(*items));
        char(*keys)[32] = calloc(COUNT, sizeof(*keys));
        assert_true(items != NULL && keys != NULL);
        for (int i = 0; i < COUNT; i++) {
            snprintf(keys[i], sizeof(keys[i]), "k%d", i);
            items[i] = (struct fb_exists_item){.key = keys[i],
                                               .key_bytes = strlen(keys[i]),
                                               .result = 12345};
        }
        items[1].key_bytes = 0; /* costs itself only */
        struct fb_proto_call call = call_of(&node, FB_PROTO_EXISTS);
        call.count = COUNT;
        call.items.exists = items;
        call.hold_ms = hold * 500;
        call.hold_loads = hold * 2;
        fb_proto_client_begin(node.client, node.now_ns, &call);
        node_take(&node);
        struct fb_secret secret;
        uint8_t seed[16];
        memset(seed, 0x11, sizeof(seed));
        fb_secret_derive(&secret, seed, sizeof(seed));
        int at = 0;
        for (unsigned f = 0; f < 2; f++) {
            const struct node_frame *frame = node_expect(&node, FB_MSG_LOOKUP);
            struct fb_reader reader = node_reader(frame);
            struct fb_msg_lookup lookup;
            const char *bad;
            assert_int_equal(fb_wire_lookup_decode(&reader, &lookup, &bad), FB_OK);
            assert_int_equal(lookup.count,
                             f == 0 ? FB_PROTO_LOOKUP_KEYS : COUNT - 1 - FB_PROTO_LOOKUP_KEYS);
            assert_true(lookup.hold_ms == call.hold_ms && lookup.hold_loads == call.hold_loads);
            uint8_t found[FB_PROTO_LOOKUP_KEYS];
            for (uint32_t i = 0; i < lookup.count; i++, at++) {
                if (at == 1)
                    at++;
                struct fb_digest digest =
                    fb_digest_key(&secret, NODE_EPOCH, keys[at], strlen(keys[at]));
                assert_true(fb_digest_is_equal(fb_wire_digest_at(lookup.digests, i), digest));
                found[i] = at % 3 == 0   ? 0
                           : at % 3 == 1 ? FB_WIRE_FOUND_READABLE | FB_WIRE_FOUND_SSD
                                         : FB_WIRE_FOUND_READABLE | FB_WIRE_FOUND_HELD;
            }
            struct fb_msg_lookup_done done = {.count = lookup.count, .found = found};
            NODE_SEND(&node, lookup_done, FB_MSG_LOOKUP_DONE, 0, frame->header.op, &done);
        }
        assert_true(fb_proto_call_is_over(&call));
        for (int i = 0; i < COUNT; i++) {
            int want = i == 1 ? FB_BAD_KEY : i % 3 == 0 ? FB_MISS : FB_OK;
            if (hold != 0 && i % 3 == 1 && i != 1)
                want = FB_NOT_HELD;
            assert_int_equal(items[i].result, want);
        }
        assert_int_equal(items[4].found, FB_EXISTS_READABLE | FB_EXISTS_ON_SSD);
        free(items);
        free(keys);
        node_free(&node);
    }
}

static void lookups_that_fail(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        struct node node;
        node_open(&node, FB_FEATURE_HOLDS, 8, &plain);
        struct fb_exists_item items[2] = {{.key = "a", .key_bytes = 1},
                                          {.key = "b", .key_bytes = 1}};
        struct fb_proto_call call = call_of(&node, FB_PROTO_EXISTS);
        call.count = 2;
        call.items.exists = items;
        fb_proto_client_begin(node.client, node.now_ns, &call);
        node_take(&node);
        uint64_t op = node_expect(&node, FB_MSG_LOOKUP)->header.op;
        static const uint8_t found[3];
        struct fb_msg_lookup_done done = {.result = i == 0 ? FB_STALE_EPOCH : FB_OK,
                                          .count = i == 0 ? 0 : 3,
                                          .found = found};
        if (i < 2) {
            NODE_SEND(&node, lookup_done, FB_MSG_LOOKUP_DONE, 0, op, &done);
        } else {
            node.now_ns += NODE_DEADLINE_NS;
            fb_proto_client_tick(node.client, node.now_ns);
            node.now_ns += FB_PROTO_ABORT_NS;
            fb_proto_client_tick(node.client, node.now_ns);
        }
        static const int want[] = {FB_STALE_EPOCH, FB_PROTOCOL, FB_DEADLINE};
        assert_true(fb_proto_call_is_over(&call));
        assert_int_equal(items[0].result, want[i]);
        assert_int_equal(items[1].result, want[i]);
        node_free(&node);
    }
}

static void calls_on_keys(void **state)
{
    (void)state;
    static const struct {
        uint8_t kind, request, answer;
    } kinds[] = {
        {FB_PROTO_REMOVE, FB_MSG_REMOVE, FB_MSG_REMOVE_DONE},
        {FB_PROTO_WAIT, FB_MSG_WAIT_PERSISTED, FB_MSG_WAIT_DONE},
        {FB_PROTO_DROP, FB_MSG_DROP_DRAM, FB_MSG_DROP_DONE},
    };
    for (unsigned i = 0; i < FB_ARRAY_COUNT(kinds); i++) {
        struct node node;
        node_open(&node, 0, 8, &plain);
        struct fb_key_item items[3] = {{.key = "a", .key_bytes = 1},
                                       {.key = "b", .key_bytes = FB_KEY_BYTES_MAX + 1},
                                       {.key = "c", .key_bytes = 1}};
        struct fb_proto_call call = call_of(&node, kinds[i].kind);
        call.count = 3;
        call.items.key = items;
        fb_proto_client_begin(node.client, node.now_ns, &call);
        node_take(&node);
        uint64_t first = node_expect(&node, kinds[i].request)->header.op;
        uint64_t second = node_expect(&node, kinds[i].request)->header.op;
        node_send_done(&node, kinds[i].answer, second, FB_MISS, 0, 0);
        node_send_done(&node, kinds[i].answer, first, FB_OK, 55, 0);
        assert_true(fb_proto_call_is_over(&call));
        assert_int_equal(items[0].result, FB_OK);
        assert_int_equal(items[0].generation, 55);
        assert_int_equal(items[1].result, FB_BAD_KEY);
        assert_int_equal(items[2].result, FB_MISS);
        node_free(&node);
    }
}

static void holds_are_given_back(void **state)
{
    (void)state;
    struct node node;
    node_open(&node, FB_FEATURE_HOLDS, 8, &plain);
    struct fb_key_item items[2] = {{.key = "a", .key_bytes = 1, .result = 12345},
                                   {.key = "c", .key_bytes = 1, .result = 12345}};
    struct fb_proto_call call = call_of(&node, FB_PROTO_HOLD_RELEASE);
    call.count = 2;
    call.items.key = items;
    call.hold_loads = 3;
    fb_proto_client_begin(node.client, node.now_ns, &call);
    node_take(&node);
    uint64_t op = node_expect(&node, FB_MSG_HOLD_RELEASE)->header.op;
    struct fb_msg_lookup_done done = {.count = 0};
    NODE_SEND(&node, lookup_done, FB_MSG_LOOKUP_DONE, 0, op, &done);
    assert_true(fb_proto_call_is_over(&call));
    assert_int_equal(items[0].result, FB_OK);
    assert_int_equal(items[1].result, FB_OK);
    node_free(&node);
}

static void bump_and_refresh(void **state)
{
    (void)state;
    struct node node;
    node_open(&node, 0, 8, &plain);
    struct fb_proto_call call = call_of(&node, FB_PROTO_BUMP);
    fb_proto_client_begin(node.client, node.now_ns, &call);
    node_take(&node);
    const struct node_frame *frame = node_expect(&node, FB_MSG_EPOCH);
    struct fb_reader reader = node_reader(frame);
    struct fb_msg_epoch epoch;
    const char *bad;
    assert_int_equal(fb_wire_epoch_decode(&reader, &epoch, &bad), FB_OK);
    assert_true(epoch.epoch == NODE_EPOCH && epoch.ns == 3);
    node_send_done(&node, FB_MSG_EPOCH_DONE, frame->header.op, FB_OK, 8, 0);
    assert_true(fb_proto_call_is_over(&call));
    assert_int_equal(call.result, FB_OK);
    assert_int_equal(call.epoch_now, 8);
    call = call_of(&node, FB_PROTO_REFRESH);
    fb_proto_client_begin(node.client, node.now_ns, &call);
    node_take(&node);
    struct fb_msg_namespace_done done = {.ns = 3, .epoch = 9};
    NODE_SEND(&node, namespace_done, FB_MSG_NAMESPACE_DONE, 0,
              node_expect(&node, FB_MSG_NAMESPACE)->header.op, &done);
    assert_true(fb_proto_call_is_over(&call));
    assert_int_equal(call.epoch_now, 9);
    assert_int_equal(fb_proto_client_state(node.client), FB_PROTO_READY);
    node_free(&node);
}

static void explain_and_status(void **state)
{
    (void)state;
    struct node node;
    node_open(&node, 0, 8, &plain);
    struct fb_explanation out;
    struct fb_key_item key = {.key = "k", .key_bytes = 1};
    struct fb_proto_call call = call_of(&node, FB_PROTO_EXPLAIN);
    call.count = 1;
    call.items.key = &key;
    call.explanation = &out;
    fb_proto_client_begin(node.client, node.now_ns, &call);
    node_take(&node);
    struct fb_msg_explain_done explain = {.present = 1,
                                          .tiers = 3,
                                          .value_bytes = 12,
                                          .when_ms = 5,
                                          .text = (const uint8_t *)"segment 4",
                                          .text_bytes = 9};
    NODE_SEND(&node, explain_done, FB_MSG_EXPLAIN_DONE, 0,
              node_expect(&node, FB_MSG_EXPLAIN)->header.op, &explain);
    assert_true(fb_proto_call_is_over(&call));
    assert_int_equal(call.result, FB_OK);
    assert_true(out.present && out.where == 3 && out.value_bytes == 12 && out.when_ms == 5);
    assert_string_equal(out.text, "segment 4");
    key.key_bytes = 0;
    call = call_of(&node, FB_PROTO_EXPLAIN);
    call.count = 1;
    call.items.key = &key;
    call.explanation = &out;
    fb_proto_client_begin(node.client, node.now_ns, &call);
    node_take(&node);
    assert_true(fb_proto_call_is_over(&call));
    assert_int_equal(call.result, FB_BAD_KEY);

    for (unsigned room = 0; room < 12; room++) {
        char text[12] = "unwritten";
        call = call_of(&node, FB_PROTO_STATUS);
        call.text = text;
        call.text_bytes = room;
        fb_proto_client_begin(node.client, node.now_ns, &call);
        node_take(&node);
        struct fb_msg_text status = {.text = (const uint8_t *)"{\"a\": 1}", .text_bytes = 8};
        NODE_SEND(&node, text, FB_MSG_STATUS_DONE, 0, node_expect(&node, FB_MSG_STATUS)->header.op,
                  &status);
        assert_true(fb_proto_call_is_over(&call));
        assert_int_equal(call.text_needed, 9);
        assert_int_equal(call.result, room < 9 ? FB_BUFFER_TOO_SMALL : FB_OK);
        assert_int_equal(strlen(text), room == 0 ? 9 : fb_min_u64(room - 1, 8));
    }
    node_free(&node);
}

struct listing {
    unsigned count;
    unsigned stop_at;
};

static int count_key(void *context, const void *key, size_t key_bytes)
{
    struct listing *listing = context;
    assert_int_equal(key_bytes, 2);
    assert_memory_equal(key, "k", 1);
    listing->count++;
    return listing->count == listing->stop_at ? 17 : 0;
}

static void listings(void **state)
{
    (void)state;
    static const uint8_t entries[] = {2, 0, 'k', '1', 2, 0, 'k', '2'};
    for (unsigned stop_at = 0; stop_at < 5; stop_at++) {
        struct node node;
        node_open(&node, 0, 8, &plain);
        struct listing listing = {.stop_at = stop_at};
        struct fb_proto_call call = call_of(&node, FB_PROTO_LIST);
        call.each = count_key;
        call.each_context = &listing;
        fb_proto_client_begin(node.client, node.now_ns, &call);
        uint64_t cursor = 0;
        for (unsigned page = 0; page < 2 && !fb_proto_call_is_over(&call); page++) {
            node_take(&node);
            const struct node_frame *frame = node_expect(&node, FB_MSG_LIST);
            struct fb_reader reader = node_reader(frame);
            struct fb_msg_list list;
            const char *bad;
            assert_int_equal(fb_wire_list_decode(&reader, &list, &bad), FB_OK);
            assert_true(list.cursor == cursor);
            cursor = 100;
            struct fb_msg_list_done done = {.cursor = page == 1 ? UINT64_MAX : cursor,
                                            .bytes = sizeof(entries),
                                            .keys = entries};
            NODE_SEND(&node, list_done, FB_MSG_LIST_DONE, 0, frame->header.op, &done);
        }
        assert_true(fb_proto_call_is_over(&call));
        assert_int_equal(call.result, FB_OK);
        assert_int_equal(call.each_result, stop_at == 0 ? 0 : 17);
        assert_int_equal(listing.count, stop_at == 0 ? 4 : stop_at);
        node_free(&node);
    }
}

static void a_listing_that_runs_out_of_time(void **state)
{
    (void)state;
    struct node node;
    node_open(&node, 0, 8, &plain);
    struct listing listing = {.stop_at = 0};
    struct fb_proto_call call = call_of(&node, FB_PROTO_LIST);
    call.each = count_key;
    call.each_context = &listing;
    fb_proto_client_begin(node.client, node.now_ns, &call);
    node_take(&node);
    uint64_t op = node_expect(&node, FB_MSG_LIST)->header.op;
    node.now_ns += NODE_DEADLINE_NS;
    fb_proto_client_tick(node.client, node.now_ns);
    struct fb_msg_list_done done = {.cursor = 5};
    NODE_SEND(&node, list_done, FB_MSG_LIST_DONE, 0, op, &done);
    assert_true(fb_proto_call_is_over(&call));
    assert_int_equal(call.result, FB_DEADLINE);
    node_free(&node);
}

static void heartbeat(void **state)
{
    (void)state;
    struct node node;
    node_make(&node, 0, 8, &plain);
    node.welcome.heartbeat_ms = 100;
    NODE_SEND(&node, welcome, FB_MSG_WELCOME, 0, 0, &node.welcome);
    node_take(&node);
    node_expect(&node, FB_MSG_HELLO);
    struct fb_msg_namespace_done done = {.ns = 3, .epoch = NODE_EPOCH};
    NODE_SEND(&node, namespace_done, FB_MSG_NAMESPACE_DONE, 0,
              node_expect(&node, FB_MSG_NAMESPACE)->header.op, &done);
    /* Nobody waits: no beat, however long. */
    node.now_ns += FB_SEC_NS;
    fb_proto_client_tick(node.client, node.now_ns);
    node_take(&node);
    node_expect_nothing(&node);
    struct fb_key_item key = {.key = "k", .key_bytes = 1};
    struct fb_proto_call call = call_of(&node, FB_PROTO_WAIT);
    call.count = 1;
    call.items.key = &key;
    fb_proto_client_begin(node.client, node.now_ns, &call);
    node_take(&node);
    node_expect(&node, FB_MSG_WAIT_PERSISTED);
    for (unsigned beat = 0; beat < 2; beat++) {
        assert_true(fb_proto_client_next_ns(node.client) == node.now_ns + 100 * FB_MS_NS);
        node.now_ns += 100 * FB_MS_NS;
        fb_proto_client_tick(node.client, node.now_ns);
        node_take(&node);
        uint64_t op = node_expect(&node, FB_MSG_PING)->header.op;
        assert_int_equal(fb_proto_client_open_ops(node.client), 1);
        if (beat == 1)
            break;
        struct fb_msg_pong pong = {.state = FB_WIRE_SERVING};
        NODE_SEND(&node, pong, FB_MSG_PONG, 0, op, &pong);
    }
    node.now_ns += 100 * FB_MS_NS;
    fb_proto_client_tick(node.client, node.now_ns);
    assert_true(fb_proto_call_is_over(&call));
    assert_int_equal(key.result, FB_CONNECTION);
    node_free(&node);
}

static void a_ping_of_the_node_is_answered(void **state)
{
    (void)state;
    struct node node;
    node_open(&node, 0, 8, &plain);
    struct fb_writer writer;
    fb_writer_init(&writer, node.room, FB_FRAME_BYTES_MAX);
    size_t at = fb_wire_frame_begin(&writer);
    fb_wire_frame_end(&writer, at, FB_MSG_PING, 0, 31337, 1);
    fb_proto_client_input(node.client, node.now_ns, node.room, writer.at_bytes);
    node_take(&node);
    assert_int_equal(node_expect(&node, FB_MSG_PONG)->header.op, 31337);
    node_free(&node);
}

static void frames_that_were_not_asked_for(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        struct node node;
        node_open(&node, 0, 8, &plain);
        struct fb_key_item key = {.key = "k", .key_bytes = 1};
        struct fb_proto_call call = call_of(&node, FB_PROTO_REMOVE);
        call.count = 1;
        call.items.key = &key;
        fb_proto_client_begin(node.client, node.now_ns, &call);
        node_take(&node);
        uint64_t op = node_expect(&node, FB_MSG_REMOVE)->header.op;
        if (i == 0)
            node_send_done(&node, FB_MSG_REMOVE_DONE, op + 256, FB_OK, 0, 0);
        else if (i == 1)
            node_send_done(&node, FB_MSG_WAIT_DONE, op, FB_OK, 0, 0);
        else if (i == 2)
            node_data(&node, op, 0, 0, 10, false, false);
        else
            NODE_SEND(&node, namespace_done, FB_MSG_NAMESPACE_DONE, 0, 1,
                      &(struct fb_msg_namespace_done){.ns = 1});
        assert_int_equal(fb_proto_client_state(node.client), FB_PROTO_LOST);
        assert_int_equal(key.result, FB_PROTOCOL);
        /* What comes later is not looked at. */
        node_send_done(&node, FB_MSG_REMOVE_DONE, op, FB_OK, 0, 0);
        assert_int_equal(key.result, FB_PROTOCOL);
        node_free(&node);
    }
}

/* A frame with one wrong bit anywhere is not believed. */
static void damaged_frames(void **state)
{
    (void)state;
    for (size_t at = 0; at < FB_WIRE_HEADER_BYTES + 16; at++) {
        struct node node;
        node_open(&node, 0, 8, &plain);
        struct fb_key_item key = {.key = "k", .key_bytes = 1};
        struct fb_proto_call call = call_of(&node, FB_PROTO_REMOVE);
        call.count = 1;
        call.items.key = &key;
        fb_proto_client_begin(node.client, node.now_ns, &call);
        node_take(&node);
        struct fb_writer writer;
        fb_writer_init(&writer, node.room, FB_FRAME_BYTES_MAX);
        size_t from = fb_wire_frame_begin(&writer);
        fb_wire_done_encode(&writer, &(struct fb_msg_done){.value = 5});
        fb_wire_frame_end(&writer, from, FB_MSG_REMOVE_DONE, 0,
                          node_expect(&node, FB_MSG_REMOVE)->header.op, 1);
        /* Length and type decide which function takes it; the owner reads these first. */
        if (at == 2 || (at >= 4 && at < 8)) {
            node_free(&node);
            continue;
        }
        node.room[at] ^= 1;
        fb_proto_client_input(node.client, node.now_ns, node.room, writer.at_bytes);
        assert_int_equal(fb_proto_client_state(node.client), FB_PROTO_LOST);
        assert_true(fb_proto_call_is_over(&call));
        assert_true(key.result < 0);
        node_free(&node);
    }
}

/* Random frames of random types, with a right check: no crash, each call ends once. */
static void random_answers(void **state)
{
    (void)state;
    struct fb_prng prng;
    fb_prng_seed(&prng, 1);
    static const uint8_t types[] = {FB_MSG_GRANT, FB_MSG_PUT_DONE, FB_MSG_CHUNK, FB_MSG_GET_DONE};
    for (unsigned round = 0; round < 300; round++) {
        struct node node;
        node_open(&node, round % 2 == 0 ? FB_FEATURE_SHM : 0, 8, &plain);
        uint8_t bytes[9000];
        memset(bytes, 3, sizeof(bytes));
        struct fb_buf buf = {bytes, sizeof(bytes)};
        struct fb_put_item put = {.key = "k", .key_bytes = 1, .bufs = &buf, .buf_count = 1};
        struct fb_get_item get = {.key = "k", .key_bytes = 1, .bufs = &buf, .buf_count = 1};
        bool is_put = fb_prng_chance(&prng, 500000);
        struct fb_proto_call call = call_of(&node, is_put ? FB_PROTO_PUT : FB_PROTO_GET);
        call.count = 1;
        if (is_put)
            call.items.put = &put;
        else
            call.items.get = &get;
        fb_proto_client_begin(node.client, node.now_ns, &call);
        node_take(&node);
        uint64_t op = node_expect(&node, is_put ? FB_MSG_PUT : FB_MSG_GET)->header.op;
        for (unsigned i = 0; i < 20 && fb_proto_client_state(node.client) != FB_PROTO_LOST; i++) {
            uint8_t type = types[fb_prng_below(&prng, FB_ARRAY_COUNT(types))];
            uint8_t payload[200];
            size_t payload_bytes = type == FB_MSG_GRANT      ? 32 + 12 * fb_prng_below(&prng, 4)
                                   : type == FB_MSG_PUT_DONE ? 16
                                   : type == FB_MSG_CHUNK    ? 64 + 12 * fb_prng_below(&prng, 4)
                                                             : 24;
            for (size_t k = 0; k < payload_bytes; k++)
                payload[k] = fb_prng_chance(&prng, 700000) ? 0 : (uint8_t)fb_prng_below(&prng, 256);
            struct fb_writer writer;
            fb_writer_init(&writer, node.room, FB_FRAME_BYTES_MAX);
            size_t at = fb_wire_frame_begin(&writer);
            fb_writer_bytes(&writer, payload, payload_bytes);
            uint8_t flags = type == FB_MSG_PUT_DONE ? (uint8_t)(fb_prng_below(&prng, 2) * 2) : 0;
            fb_wire_frame_end(&writer, at, type, flags, op, 1);
            fb_proto_client_input(node.client, node.now_ns, node.room, writer.at_bytes);
            node_jobs(&node);
            node_take(&node);
            if (fb_proto_call_is_over(&call))
                break;
        }
        if (!fb_proto_call_is_over(&call))
            fb_proto_client_lost(node.client, node.now_ns, FB_CONNECTION, "test");
        assert_true(fb_proto_call_is_over(&call));
        assert_true((is_put ? put.result : get.result) != 12345);
        node_free(&node);
    }
}

static void scatter_lists(void **state)
{
    (void)state;
    uint8_t memory[100];
    for (unsigned i = 0; i < sizeof(memory); i++)
        memory[i] = (uint8_t)i;
    struct fb_buf bufs[] = {{memory, 0},
                            {memory, 10},
                            {NULL, 0},
                            {memory + 10, 1},
                            {memory + 11, 89}};
    uint64_t total;
    assert_true(fb_scatter_total(bufs, 5, &total));
    assert_int_equal(total, 100);
    for (unsigned off = 0; off <= 100; off++) {
        uint8_t out[100];
        struct fb_scatter scatter;
        fb_scatter_begin(&scatter, bufs, 5, off);
        fb_scatter_read(&scatter, out, 100 - off);
        assert_memory_equal(out, memory + off, 100 - off);
        uint8_t *piece;
        assert_int_equal(fb_scatter_next(&scatter, 5, &piece), 0);
        struct fb_hash_state hash;
        fb_hash_begin(&hash, 0);
        fb_scatter_begin(&scatter, bufs, 5, off);
        fb_scatter_hash(&scatter, &hash, 100 - off);
        assert_true(fb_hash_finish(&hash) == fb_hash64(memory + off, 100 - off, 0));
    }
    uint8_t in[50];
    memset(in, 0xee, sizeof(in));
    struct fb_scatter scatter;
    fb_scatter_begin(&scatter, bufs, 5, 5);
    fb_scatter_write(&scatter, in, 50);
    assert_int_equal(memory[4], 4);
    assert_int_equal(memory[5], 0xee);
    assert_int_equal(memory[54], 0xee);
    assert_int_equal(memory[55], 55);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(namespaces_in_canonical_form),
        cmocka_unit_test(hello_and_namespace),
        cmocka_unit_test(a_client_without_namespace),
        cmocka_unit_test(refusals),
        cmocka_unit_test(lookups),
        cmocka_unit_test(lookups_that_fail),
        cmocka_unit_test(calls_on_keys),
        cmocka_unit_test(holds_are_given_back),
        cmocka_unit_test(bump_and_refresh),
        cmocka_unit_test(explain_and_status),
        cmocka_unit_test(listings),
        cmocka_unit_test(a_listing_that_runs_out_of_time),
        cmocka_unit_test(heartbeat),
        cmocka_unit_test(a_ping_of_the_node_is_answered),
        cmocka_unit_test(frames_that_were_not_asked_for),
        cmocka_unit_test(damaged_frames),
        cmocka_unit_test(random_answers),
        cmocka_unit_test(scatter_lists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
