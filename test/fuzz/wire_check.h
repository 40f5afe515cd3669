/*
 * wire_check.h - looks at a stream of frames as a receiver does: each is whole, has a good header
 * and the right check, comes from the side that it must come from, and its payload is decoded.
 */
#ifndef TEST_FUZZ_WIRE_CHECK_H
#define TEST_FUZZ_WIRE_CHECK_H

#include <string.h>

#include "proto/wire.h"
#include "test/lib/fuzz.h"

struct wire_check {
    bool from_client;
    size_t have;
    uint8_t bytes[FB_FRAME_BYTES_MAX];
};

static inline void wire_check_begin(struct wire_check *check, bool from_client)
{
    check->from_client = from_client;
    check->have = 0;
}

#define WIRE_CHECK_DECODE(name, type)                               \
    do {                                                            \
        struct type message_;                                       \
        result = fb_wire_##name##_decode(&reader, &message_, &bad); \
    } while (0)

/* The payload of a frame that a node sent. */
static inline void wire_check_answer(const struct fb_wire_header *header, const uint8_t *payload)
{
    struct fb_reader reader;
    fb_reader_init(&reader, payload, header->payload_bytes);
    const char *bad = NULL;
    int result = 0;
    switch (header->type) {
    case FB_MSG_WELCOME:
        WIRE_CHECK_DECODE(welcome, fb_msg_welcome);
        break;
    case FB_MSG_ERROR:
        WIRE_CHECK_DECODE(error, fb_msg_error);
        break;
    case FB_MSG_GRANT:
        WIRE_CHECK_DECODE(grant, fb_msg_grant);
        break;
    case FB_MSG_DATA:
        WIRE_CHECK_DECODE(data, fb_msg_data);
        break;
    case FB_MSG_PUT_DONE:
        WIRE_CHECK_DECODE(put_done, fb_msg_put_done);
        break;
    case FB_MSG_CHUNK:
        WIRE_CHECK_DECODE(chunk, fb_msg_chunk);
        break;
    case FB_MSG_GET_DONE:
        WIRE_CHECK_DECODE(get_done, fb_msg_get_done);
        break;
    case FB_MSG_LOOKUP_DONE:
        WIRE_CHECK_DECODE(lookup_done, fb_msg_lookup_done);
        break;
    case FB_MSG_EXPLAIN_DONE:
        WIRE_CHECK_DECODE(explain_done, fb_msg_explain_done);
        break;
    case FB_MSG_LIST_DONE:
        WIRE_CHECK_DECODE(list_done, fb_msg_list_done);
        break;
    case FB_MSG_STATUS_DONE:
        WIRE_CHECK_DECODE(text, fb_msg_text);
        break;
    default:
        break;
    }
    FUZZ_CHECK(result == 0);
}

static inline bool wire_check_is_from_node(uint8_t type)
{
    return !fb_wire_type_from_client(type) || type == FB_MSG_ERROR || type == FB_MSG_PING ||
           type == FB_MSG_PONG || type == FB_MSG_DATA;
}

/* Looks at the next bytes of the stream. */
static inline void wire_check_bytes(struct wire_check *check, const uint8_t *bytes, size_t count)
{
    while (count > 0) {
        struct fb_wire_header header = {0};
        const char *bad;
        size_t want = FB_WIRE_HEADER_BYTES;
        if (check->have >= want) {
            FUZZ_CHECK(fb_wire_header_decode(check->bytes, &header, &bad) == 0);
            want += header.payload_bytes;
        }
        size_t step = want - check->have < count ? want - check->have : count;
        memcpy(check->bytes + check->have, bytes, step);
        check->have += step;
        bytes += step;
        count -= step;
        if (check->have < want || check->have < FB_WIRE_HEADER_BYTES)
            continue;
        FUZZ_CHECK(fb_wire_header_decode(check->bytes, &header, &bad) == 0);
        if (check->have < FB_WIRE_HEADER_BYTES + header.payload_bytes)
            continue;
        const uint8_t *payload = check->bytes + FB_WIRE_HEADER_BYTES;
        FUZZ_CHECK(fb_wire_check(check->bytes, payload, fb_wire_covered_bytes(&header)) ==
                   header.check);
        FUZZ_CHECK(check->from_client ? fb_wire_type_from_client(header.type)
                                      : wire_check_is_from_node(header.type));
        if (!check->from_client)
            wire_check_answer(&header, payload);
        check->have = 0;
    }
}

#endif
