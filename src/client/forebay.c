/*
 * The public calls: each becomes a call of proto/client on a borrowed connection. See
 * include/forebay/forebay.h for what they promise.
 */
#include "forebay/forebay.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/limits.h"
#include "client/clock.h"
#include "client/handle.h"

#define LOADS_MAX FB_WIRE_HOLD_LOADS_MAX

/* ---- what all calls have in common ---- */

static uint64_t bytes_of(const struct fb_buf *bufs, size_t count)
{
    uint64_t total = 0;
    if (bufs == NULL || !fb_scatter_total(bufs, count, &total))
        return 0;
    return total;
}

/* The bytes that a call moves, for its default deadline. */
static uint64_t call_bytes(const struct fb_proto_call *call)
{
    uint64_t total = 0;
    for (size_t i = 0; i < call->count; i++) {
        uint64_t bytes = 0;
        if (call->kind == FB_PROTO_PUT)
            bytes = bytes_of(call->items.put[i].bufs, call->items.put[i].buf_count);
        else if (call->kind == FB_PROTO_GET)
            bytes = bytes_of(call->items.get[i].bufs, call->items.get[i].buf_count);
        total = fb_add_saturated(total, bytes);
    }
    return total;
}

static uint64_t deadline_of(const struct fb_proto_call *call, uint32_t timeout_ms)
{
    uint64_t now_ns = fb_client_now_ns();
    if (timeout_ms != 0)
        return now_ns + timeout_ms * FB_MS_NS;
    uint64_t moving_ns = call_bytes(call) / FB_PUT_BYTES_PER_SEC_MIN * FB_SEC_NS;
    return fb_add_saturated(now_ns + FB_PUT_DEADLINE_NS, moving_ns);
}

static int fail(struct fb_proto_call *call, int result)
{
    fb_proto_call_fail(call, result);
    return result;
}

/* Room in which a put finds keys that it has twice. */
static int take_scratch(struct fb_proto_call *call)
{
    size_t words = fb_proto_call_scratch_words(call->count);
    if (call->kind != FB_PROTO_PUT || words == 0)
        return FB_OK;
    call->scratch = malloc(words * sizeof(uint32_t));
    return call->scratch == NULL ? FB_NO_MEMORY : FB_OK;
}

/* True if the node has agreed to what the call needs. */
static bool is_supported(const struct fb_client_conn *conn, const struct fb_proto_call *call)
{
    bool hold = call->kind == FB_PROTO_HOLD_RELEASE || call->hold_ms != 0;
    uint64_t features = fb_proto_client_welcome(conn->proto)->features;
    return !hold || (features & FB_FEATURE_HOLDS) != 0;
}

/* Does a call. Returns its result: 0, or why nothing was asked, which all items then have. */
static int run(struct fb_client *client, struct fb_proto_call *call, uint32_t timeout_ms)
{
    fb_client_handle_enter(client);
    if (call->count >= UINT32_MAX || (!client->has_namespace && call->kind != FB_PROTO_STATUS))
        return fail(call, FB_BAD_ARGUMENT);
    call->deadline_ns = deadline_of(call, timeout_ms);
    call->epoch = fb_client_handle_epoch(client);
    struct fb_client_conn *conn = NULL;
    int result = fb_client_handle_borrow(client, call->deadline_ns, &conn, NULL, 0);
    if (result != FB_OK)
        return fail(call, result);
    result = is_supported(conn, call) ? take_scratch(call) : FB_UNSUPPORTED;
    if (result == FB_OK) {
        fb_client_conn_run(conn, call);
        result = call->result;
    } else {
        fail(call, result);
    }
    fb_client_handle_return(client, conn);
    free(call->scratch);
    return result;
}

/* ---- put and get ---- */

int fb_put_batch(struct fb_client *client, struct fb_put_item *items, size_t count,
                 uint32_t timeout_ms)
{
    struct fb_proto_call call = {.kind = FB_PROTO_PUT, .count = count, .items.put = items};
    return run(client, &call, timeout_ms);
}

int fb_put(struct fb_client *client, const void *key, size_t key_bytes, const void *value,
           size_t value_bytes, uint32_t flags, uint32_t timeout_ms)
{
    struct fb_buf buf = {.len = value_bytes};
    memcpy(&buf.ptr, &value, sizeof(buf.ptr)); /* a put only reads it */
    struct fb_put_item item = {.key = key,
                               .key_bytes = key_bytes,
                               .bufs = &buf,
                               .buf_count = 1,
                               .flags = flags};
    int result = fb_put_batch(client, &item, 1, timeout_ms);
    return result < 0 ? result : item.result;
}

int fb_get_batch(struct fb_client *client, struct fb_get_item *items, size_t count,
                 uint32_t timeout_ms)
{
    struct fb_proto_call call = {.kind = FB_PROTO_GET, .count = count, .items.get = items};
    return run(client, &call, timeout_ms);
}

int fb_get(struct fb_client *client, const void *key, size_t key_bytes, void *buffer,
           size_t buffer_bytes, uint64_t *value_bytes, uint32_t timeout_ms)
{
    struct fb_buf buf = {.ptr = buffer, .len = buffer_bytes};
    struct fb_get_item item = {.key = key, .key_bytes = key_bytes, .bufs = &buf, .buf_count = 1};
    int result = fb_get_batch(client, &item, 1, timeout_ms);
    if (value_bytes != NULL)
        *value_bytes = item.value_bytes;
    return result < 0 ? result : item.result;
}

/* ---- lookups and holds ---- */

int fb_exists_batch(struct fb_client *client, struct fb_exists_item *items, size_t count,
                    const struct fb_hold_request *hold, uint32_t timeout_ms)
{
    struct fb_proto_call call = {.kind = FB_PROTO_EXISTS, .count = count, .items.exists = items};
    if (hold != NULL) {
        if (hold->ms == 0 || hold->loads == 0 || hold->loads > LOADS_MAX)
            return fail(&call, FB_BAD_ARGUMENT);
        call.hold_ms = hold->ms;
        call.hold_loads = hold->loads;
    }
    return run(client, &call, timeout_ms);
}

int fb_exists(struct fb_client *client, const void *key, size_t key_bytes, uint32_t timeout_ms)
{
    struct fb_exists_item item = {.key = key, .key_bytes = key_bytes};
    int result = fb_exists_batch(client, &item, 1, NULL, timeout_ms);
    return result < 0 ? result : item.result;
}

int fb_hold_release(struct fb_client *client, struct fb_key_item *items, size_t count,
                    uint32_t loads, uint32_t timeout_ms)
{
    struct fb_proto_call call = {.kind = FB_PROTO_HOLD_RELEASE,
                                 .count = count,
                                 .items.key = items,
                                 .hold_loads = loads};
    if (loads == 0 || loads > LOADS_MAX)
        return fail(&call, FB_BAD_ARGUMENT);
    return run(client, &call, timeout_ms);
}

/* ---- remove, persist, invalidate ---- */

int fb_remove_batch(struct fb_client *client, struct fb_key_item *items, size_t count,
                    uint32_t timeout_ms)
{
    struct fb_proto_call call = {.kind = FB_PROTO_REMOVE, .count = count, .items.key = items};
    return run(client, &call, timeout_ms);
}

int fb_remove(struct fb_client *client, const void *key, size_t key_bytes, uint32_t timeout_ms)
{
    struct fb_key_item item = {.key = key, .key_bytes = key_bytes};
    int result = fb_remove_batch(client, &item, 1, timeout_ms);
    return result < 0 ? result : item.result;
}

int fb_wait_persisted(struct fb_client *client, struct fb_key_item *items, size_t count,
                      uint32_t timeout_ms)
{
    struct fb_proto_call call = {.kind = FB_PROTO_WAIT, .count = count, .items.key = items};
    return run(client, &call, timeout_ms);
}

int fb_drop_dram(struct fb_client *client, struct fb_key_item *items, size_t count,
                 uint32_t timeout_ms)
{
    struct fb_proto_call call = {.kind = FB_PROTO_DROP, .count = count, .items.key = items};
    return run(client, &call, timeout_ms);
}

/* BUMP and REFRESH: the handle goes where the namespace is. */
static int move_epoch(struct fb_client *client, uint8_t kind, uint64_t *epoch, uint32_t timeout_ms)
{
    struct fb_proto_call call = {.kind = kind};
    int result = run(client, &call, timeout_ms);
    if (result == FB_OK)
        fb_client_handle_set_epoch(client, call.epoch_now);
    if (epoch != NULL)
        *epoch = fb_client_handle_epoch(client);
    return result;
}

int fb_epoch_bump(struct fb_client *client, uint64_t *epoch, uint32_t timeout_ms)
{
    return move_epoch(client, FB_PROTO_BUMP, epoch, timeout_ms);
}

int fb_epoch_refresh(struct fb_client *client, uint64_t *epoch, uint32_t timeout_ms)
{
    return move_epoch(client, FB_PROTO_REFRESH, epoch, timeout_ms);
}

/* ---- looking inside ---- */

int fb_explain(struct fb_client *client, const void *key, size_t key_bytes,
               struct fb_explanation *out, uint32_t timeout_ms)
{
    memset(out, 0, sizeof(*out));
    struct fb_key_item item = {.key = key, .key_bytes = key_bytes};
    struct fb_proto_call call = {.kind = FB_PROTO_EXPLAIN,
                                 .count = 1,
                                 .items.key = &item,
                                 .explanation = out};
    return run(client, &call, timeout_ms);
}

int fb_status(struct fb_client *client, char *text, size_t text_bytes, size_t *needed_bytes,
              uint32_t timeout_ms)
{
    struct fb_proto_call call = {.kind = FB_PROTO_STATUS, .text = text, .text_bytes = text_bytes};
    int result = run(client, &call, timeout_ms);
    if (needed_bytes != NULL)
        *needed_bytes = call.text_needed;
    return result;
}

int fb_list_keys(struct fb_client *client, fb_list_fn *each, void *context, uint32_t timeout_ms)
{
    struct fb_proto_call call = {.kind = FB_PROTO_LIST, .each = each, .each_context = context};
    int result = run(client, &call, timeout_ms);
    return result < 0 ? result : call.each_result;
}
