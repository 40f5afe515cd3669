/*
 * libforebay: the C API of Forebay.
 *
 * A handle (struct fb_client) speaks for one namespace with one node. All calls block, each with a
 * deadline, and use the caller's thread alone: the library starts no thread and installs no signal
 * handler. Several threads may use one handle at once; each call in progress borrows a connection.
 *
 * Batches. A call takes an array of items, one a key, with an "in" part that the caller fills and
 * an "out" part that the call fills. Zero the array first: every field's zero is its default. A
 * batch may hold any number of keys and be many times larger than the store's memory: it is worked
 * through with a window.
 *
 * Results are per key and come from the closed list of forebay/result.h. The call's own return is 0
 * when every key has its result, good or bad. It is negative only when nothing could be asked: the
 * node cannot be reached, an argument is wrong. Then every key carries that same result.
 *
 * Deadlines. `timeout_ms` is for the whole call; 0 asks for the default, 30 s + the batch's bytes
 * at 50 MB/s. A call returns by its deadline plus FB_ABORT_BOUND_MS; keys without an answer are
 * then FB_DEADLINE. When a call has returned, nothing reads or writes the caller's buffers any
 * more.
 *
 * Memory. Keys, buffers and texts are the caller's and are borrowed for the duration of the call.
 * What a get has written into the buffers of a key that did not end in FB_OK is not defined.
 *
 * Fork. A child may go on using a handle that it inherited: it opens connections of its own at the
 * first call and closes what it inherited, without disturbing the parent. A call that another
 * thread had in progress at the time of the fork is the parent's alone.
 */
#ifndef FOREBAY_FOREBAY_H
#define FOREBAY_FOREBAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "forebay/result.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How long after its deadline a call may still take to end. */
#define FB_ABORT_BOUND_MS 1000

/* Connections that a handle may have at once, unless told otherwise, and at most. */
#define FB_CONNECTIONS_DEFAULT 8
#define FB_CONNECTIONS_MAX     64

/* Room for any text that fb_client_open() and others put into a `why` buffer. */
#define FB_WHY_BYTES 512

/* Where a node listens unless told otherwise: the default of clients and of forebayd. */
#define FB_DEFAULT_ADDRESS "unix:/tmp/forebay.sock"

/* ---- the handle ---- */

struct fb_client;

/*
 * What a namespace is made of. Two handles see each other's keys only if all fields are the same
 * bytes: name everything here on which the bytes of a value depend. NULL and "" are the same and
 * mean "not given". At least one field must be given. Each has at most FB_NAMESPACE_FIELD_BYTES_MAX
 * bytes, all together about 980.
 */
struct fb_namespace_fields {
    const char *model;    /* name of the model */
    const char *weights;  /* digest or revision of its weights */
    const char *adapter;  /* LoRA or other adapter, with its version */
    const char *dtype;    /* of the cached tensors */
    const char *layout;   /* of a block: tokens a block, order of axes, cache groups */
    const char *parallel; /* parallel shape and rank, say "tp2.pp1/0" */
    const char *salt;     /* tenant or session separation */
};
#define FB_NAMESPACE_FIELD_BYTES_MAX 255

enum fb_shm_use {
    FB_SHM_AUTO, /* shared memory where the node offers it, else a stream */
    FB_SHM_ON,   /* shared memory, or fb_client_open() fails and says why */
    FB_SHM_OFF   /* a stream, always */
};

/* Zero it (fb_client_options_init()), then set what differs from the default. */
struct fb_client_options {
    size_t struct_bytes; /* sizeof(struct fb_client_options), set by fb_client_options_init() */
    /* "unix:/path" or "tcp:host:port"; NULL: $FOREBAY_ADDRESS, else FB_DEFAULT_ADDRESS. */
    const char *address;
    struct fb_namespace_fields ns;
    bool no_namespace; /* a handle for fb_status() only; `ns` must then be empty */
    const char *name;  /* who this is, for the node's log; NULL: the program's name */
    enum fb_shm_use use_shm;
    uint32_t connections_max;    /* 0: FB_CONNECTIONS_DEFAULT */
    uint32_t connect_timeout_ms; /* of one connection's set-up; 0: 5,000 */
    /* Used only if this open creates the namespace; 0: no quota. */
    uint64_t quota_dram_bytes;
    uint64_t quota_ssd_bytes;
    /* For tests: each put's commit is held back by this long after its bytes were moved. */
    uint32_t commit_delay_ms;
};

/* Fills in the defaults. */
static inline void fb_client_options_init(struct fb_client_options *options)
{
    memset(options, 0, sizeof(*options));
    options->struct_bytes = sizeof(*options);
}

/*
 * Opens a handle: connects once, opens (or creates) the namespace and learns its epoch.
 *
 * Returns 0 and sets *out; or FB_BAD_ARGUMENT (an option, or an empty namespace), FB_CONNECTION,
 * FB_DEADLINE, FB_PROTOCOL (a node of another version), FB_UNSUPPORTED (shared memory was asked for
 * and is not to be had), FB_DENIED, FB_NO_MEMORY, or what the node answered. Then *out is NULL and
 * `why` (NULL, or `why_bytes` long) holds one line that names the value, the limit and the cure.
 * Blocks up to connect_timeout_ms, and before that for as long as the resolver takes if the address
 * has a host name other than localhost.
 */
int fb_client_open(const struct fb_client_options *options, struct fb_client **out, char *why,
                   size_t why_bytes);

/*
 * Closes a handle and its connections; NULL is allowed. No other call may be in progress on it.
 * Holds that were taken and not released end by their time. Does not block.
 */
void fb_client_close(struct fb_client *client);

/* True if the handle's newest connection uses shared memory. Never blocks on the node. */
bool fb_client_uses_shm(struct fb_client *client);

/*
 * The largest value, in bytes, that the node takes: above it a put is FB_TOO_BIG. As the node said
 * to the handle's newest connection; a restart with other settings changes it. Never blocks.
 */
uint64_t fb_client_value_bytes_max(struct fb_client *client);

/* ---- put ---- */

/* A piece of memory. A value may lie in many of them; the split at put and at get may differ. */
struct fb_buf {
    void *ptr; /* only read by puts */
    size_t len;
};

/* When a value is written to SSD. */
enum fb_persist_mode {
    FB_PERSIST_MODE_DEFAULT, /* the node's */
    FB_PERSIST_MODE_OFF,     /* never: it lives in DRAM and may be dropped from there */
    FB_PERSIST_MODE_EVICT,   /* when DRAM becomes short */
    FB_PERSIST_MODE_BEHIND,  /* soon, behind the caller's back */
    FB_PERSIST_MODE_THROUGH  /* before the put is answered */
};

/* How much a value should be kept; a wish that eviction weighs, not a promise. */
enum fb_pin_class {
    FB_PIN_NORMAL,
    FB_PIN_SOFT, /* drop it after normal ones */
    FB_PIN_HARD  /* drop it last of all */
};

enum fb_put_flag {
    FB_UPSERT = 1u << 0,      /* replace a value that is there; without it the put ends as EXISTS */
    FB_WILL_RETURN = 1u << 1, /* the session that made it is expected back */
    FB_ONE_SHOT = 1u << 2     /* it is not */
};

/*
 * One key of a put. A value has 1 byte to 1 GiB, and no more than the node's limit, which
 * fb_client_value_bytes_max() tells: the least of the pool without a sixteenth or more for reads, a
 * quarter of the SSD's cap, and half of the index's entries, one for each part of the value.
 */
struct fb_put_item {
    /* in */
    const void *key;
    size_t key_bytes; /* 1 to 1,024 */
    const struct fb_buf *bufs;
    size_t buf_count;
    const void *group; /* name of what is useful only together, say one block's ranks; NULL: none */
    size_t group_bytes;
    uint16_t depth;       /* the block's place in its prefix, from 0 */
    uint8_t persist_mode; /* enum fb_persist_mode */
    uint8_t pin_class;    /* enum fb_pin_class */
    uint32_t flags;       /* enum fb_put_flag */
    /* out */
    int result;          /* FB_OK: stored. FB_EXISTS: a value is there. Else negative */
    uint8_t reason;      /* fb_reason_name() says what; 0: none */
    bool persisted;      /* FB_OK, FB_EXISTS: on SSD at the time of the answer */
    uint64_t generation; /* FB_OK: of this value */
};

/*
 * Puts a batch. Waits for space, for an unfinished put of the same key, and in mode "through" for
 * the SSD, up to the deadline. The same key twice in a batch is one put: the first item's value
 * counts, the later items get FB_EXISTS if it ended well, and its result if not.
 *
 * Results of a key: FB_OK, FB_EXISTS, FB_BUSY, FB_QUOTA, FB_TOO_BIG, FB_BAD_KEY, FB_BAD_ARGUMENT
 * (no bytes; a mode, class or flag that does not exist), FB_STALE_EPOCH, FB_IO, FB_DEADLINE,
 * FB_NOT_PERSISTED ("through", and the SSD did not take it in time: it is cached), FB_REMOVED,
 * FB_BAD_CHECKSUM (the caller changed the bytes meanwhile), FB_GRANT_EXPIRED (the bytes did not
 * come for too long), FB_SHUTTING_DOWN, FB_CONNECTION, FB_PROTOCOL, FB_INTERNAL.
 *
 * Returns 0 when each key has its result; or, with nothing asked, what fb_client_open() can return
 * for a connection, or FB_BAD_ARGUMENT (a handle without namespace), FB_DEADLINE (no connection
 * came free), FB_NO_MEMORY: then every key has it too.
 */
int fb_put_batch(struct fb_client *client, struct fb_put_item *items, size_t count,
                 uint32_t timeout_ms);

/*
 * Puts one key with a value that lies in one piece. Returns the key's result as above: FB_OK,
 * FB_EXISTS or negative. `timeout_ms` as everywhere.
 */
int fb_put(struct fb_client *client, const void *key, size_t key_bytes, const void *value,
           size_t value_bytes, uint32_t flags, uint32_t timeout_ms);

/* ---- get ---- */

enum fb_get_flag {
    FB_GET_USES_HOLD = 1u << 0, /* counts as one load of a hold on the key */
    FB_GET_STAYS_COLD = 1u << 1 /* do not move it into DRAM because of this read */
};

enum fb_tier {
    FB_TIER_DRAM = 1u << 0,
    FB_TIER_SSD = 1u << 1
};

/* One key of a get. */
struct fb_get_item {
    /* in */
    const void *key;
    size_t key_bytes;
    const struct fb_buf *bufs; /* filled from the front */
    size_t buf_count;
    uint64_t range_off;   /* first byte of the value that is wanted */
    uint64_t range_bytes; /* how many at most; 0: up to the value's end */
    uint32_t flags;       /* enum fb_get_flag */
    /* out */
    int result;           /* FB_OK, FB_MISS with a reason, or another negative result */
    uint8_t reason;       /* fb_reason_name() says what; 0: none */
    uint8_t tiers;        /* FB_OK: enum fb_tier, where the bytes came from */
    uint64_t bytes;       /* FB_OK: bytes written into the buffers */
    uint64_t value_bytes; /* FB_OK, FB_BUFFER_TOO_SMALL: length of the whole value */
    uint64_t generation;  /* FB_OK: of the value */
};

/*
 * Gets a batch. Every byte is checked against the key that was asked for before the key's result is
 * FB_OK; each key's bytes come from one value. The same key twice fills both destinations.
 *
 * The bytes from range_off on are wanted, at most range_bytes of them. If the buffers together are
 * shorter than that, the result is FB_BUFFER_TOO_SMALL and value_bytes tells what there is: never a
 * part passed off as the whole. Buffers that are longer are filled at the front. A range that
 * begins at or behind the end gives FB_OK with 0 bytes. An item without buffers asks for the length
 * alone: FB_BUFFER_TOO_SMALL, value_bytes.
 *
 * Results of a key: FB_OK, FB_MISS (reason), FB_BUFFER_TOO_SMALL, FB_BAD_KEY, FB_BAD_ARGUMENT,
 * FB_STALE_EPOCH, FB_IO, FB_DEADLINE, FB_SHUTTING_DOWN, FB_CONNECTION, FB_PROTOCOL, FB_INTERNAL.
 * Returns as fb_put_batch().
 */
int fb_get_batch(struct fb_client *client, struct fb_get_item *items, size_t count,
                 uint32_t timeout_ms);

/*
 * Gets one whole value into one piece of memory. Returns the key's result; with FB_OK and
 * FB_BUFFER_TOO_SMALL, *value_bytes (may be NULL) is the length of the value.
 */
int fb_get(struct fb_client *client, const void *key, size_t key_bytes, void *buffer,
           size_t buffer_bytes, uint64_t *value_bytes, uint32_t timeout_ms);

/* ---- lookups and holds ---- */

enum fb_exists_bit {
    FB_EXISTS_READABLE = 1u << 0,
    FB_EXISTS_IN_DRAM = 1u << 1,
    FB_EXISTS_ON_SSD = 1u << 2,
    FB_EXISTS_HELD = 1u << 3 /* the hold that was asked for was given */
};

/* One key of a lookup. */
struct fb_exists_item {
    /* in */
    const void *key;
    size_t key_bytes;
    /* out */
    int result; /* FB_OK: readable. FB_NOT_HELD: readable, hold not given. FB_MISS. Else negative */
    uint8_t found; /* enum fb_exists_bit */
};

/*
 * What a lookup holds. A held key stays readable, in some tier, until it was read `loads` times
 * with FB_GET_USES_HOLD, was given back, or `ms` have passed. A hold belongs to the key and not to
 * the handle: who looks up and who reads may be different processes.
 */
struct fb_hold_request {
    uint32_t ms;    /* capped by the node */
    uint32_t loads; /* 1 to 255 */
};

/*
 * Looks a list of keys up, in order. `hold` NULL: only look; a readable key then has the node's
 * short lease. With a hold, keys behind the first unreadable one may be held too: give back what is
 * of no use (fb_hold_release()).
 *
 * Results of a key: FB_OK, FB_NOT_HELD, FB_MISS, FB_BAD_KEY, FB_STALE_EPOCH, FB_DEADLINE,
 * FB_SHUTTING_DOWN, FB_CONNECTION, FB_PROTOCOL, FB_INTERNAL. Returns as fb_put_batch(), and
 * FB_UNSUPPORTED if the node has no holds and one was asked for.
 */
int fb_exists_batch(struct fb_client *client, struct fb_exists_item *items, size_t count,
                    const struct fb_hold_request *hold, uint32_t timeout_ms);

/* Looks one key up. Returns FB_OK if it is readable, FB_MISS, or another negative result. */
int fb_exists(struct fb_client *client, const void *key, size_t key_bytes, uint32_t timeout_ms);

/* One key of the calls that need no more than a key. */
struct fb_key_item {
    /* in */
    const void *key;
    size_t key_bytes;
    /* out */
    int result;
    uint8_t reason;      /* fb_reason_name() says what; 0: none */
    uint64_t generation; /* fb_remove_batch(), FB_OK: up to which the key is gone */
};

/*
 * Gives back `loads` loads (1 to 255) of the hold on each key; a key that is not held is FB_OK too.
 * Results and return as fb_exists_batch().
 */
int fb_hold_release(struct fb_client *client, struct fb_key_item *items, size_t count,
                    uint32_t loads, uint32_t timeout_ms);

/* ---- remove, persist, invalidate ---- */

/*
 * Removes keys: all that was put under them before, also what is being put now. Durable before it
 * is answered. A key that is not there is FB_MISS. Results of a key else: FB_OK, FB_BAD_KEY,
 * FB_STALE_EPOCH, FB_IO, FB_DEADLINE, FB_SHUTTING_DOWN, FB_CONNECTION, FB_PROTOCOL, FB_INTERNAL.
 * Returns as fb_put_batch().
 */
int fb_remove_batch(struct fb_client *client, struct fb_key_item *items, size_t count,
                    uint32_t timeout_ms);

/* Removes one key. Returns its result. */
int fb_remove(struct fb_client *client, const void *key, size_t key_bytes, uint32_t timeout_ms);

/*
 * Waits until the values are on SSD, and asks for it. Results of a key: FB_OK; FB_NOT_PERSISTED, at
 * once, if it is not going to be; FB_MISS; FB_IO; others as fb_remove_batch(). Returns as
 * fb_put_batch().
 */
int fb_wait_persisted(struct fb_client *client, struct fb_key_item *items, size_t count,
                      uint32_t timeout_ms);

/*
 * Writes the values to SSD and drops their copies in DRAM, so that the next get reads the device:
 * for `doctor` and tests. Results and return as fb_wait_persisted(); also FB_BUSY: the value is in
 * use.
 */
int fb_drop_dram(struct fb_client *client, struct fb_key_item *items, size_t count,
                 uint32_t timeout_ms);

/*
 * Invalidates the whole namespace by moving it to a later epoch: O(1), durable before it is
 * answered. This handle moves to the new epoch too; every other handle gets FB_STALE_EPOCH from
 * then on, until it is opened anew or calls fb_epoch_refresh(): whoever still computes with old
 * weights must not put their results into the new epoch by accident. *epoch (may be NULL) is the
 * new one.
 *
 * Returns 0, FB_STALE_EPOCH (somebody else has bumped it), FB_IO, FB_DEADLINE, FB_CONNECTION, ...
 */
int fb_epoch_bump(struct fb_client *client, uint64_t *epoch, uint32_t timeout_ms);

/*
 * Moves this handle to the namespace's newest epoch. Calls in progress on other threads end with
 * the epoch that they began with. *epoch (may be NULL) is the one the handle has now. Returns 0 or
 * why not.
 */
int fb_epoch_refresh(struct fb_client *client, uint64_t *epoch, uint32_t timeout_ms);

/* ---- looking inside ---- */

enum fb_explain_bit {
    FB_EXPLAIN_DRAM = 1u << 0,
    FB_EXPLAIN_SSD = 1u << 1,
    FB_EXPLAIN_DIRTY = 1u << 2,
    FB_EXPLAIN_WRITING = 1u << 3,
    FB_EXPLAIN_LEASED = 1u << 4
};

#define FB_EXPLAIN_TEXT_BYTES 1025

/* What has become of a key. */
struct fb_explanation {
    bool present;
    uint8_t where;  /* enum fb_explain_bit */
    uint8_t reason; /* absent: why; "no_record": nothing is known since since_ms */
    uint64_t value_bytes;
    uint64_t generation;
    uint64_t when_ms;  /* wall clock of the reason, milliseconds since 1970; 0: not known */
    uint64_t since_ms; /* how far the node's history reaches back */
    char text[FB_EXPLAIN_TEXT_BYTES]; /* where it lies, in words */
};

/* Asks what became of a key. Returns 0 and fills *out, or why nothing could be said. */
int fb_explain(struct fb_client *client, const void *key, size_t key_bytes,
               struct fb_explanation *out, uint32_t timeout_ms);

/*
 * The node's state as JSON text, with a final zero, into `text`. *needed_bytes (may be NULL) is the
 * length with the zero. Returns 0; FB_BUFFER_TOO_SMALL with as much as fits; or why not.
 */
int fb_status(struct fb_client *client, char *text, size_t text_bytes, size_t *needed_bytes,
              uint32_t timeout_ms);

/* Called for each key of a listing; returns 0 to go on, anything else to stop. */
typedef int fb_list_fn(void *context, const void *key, size_t key_bytes);

/*
 * Lists the keys of the namespace, in no order; this is no snapshot. A key that is put, replaced or
 * removed meanwhile may be seen or not. One that is there all the time is seen at least once, also
 * while it is being persisted; it can be missed only if the node moves it on the SSD just then, to
 * make room. `each` must not call back into the handle. Returns 0 at the end, what `each` returned
 * if that was not 0, or why it stopped.
 */
int fb_list_keys(struct fb_client *client, fb_list_fn *each, void *context, uint32_t timeout_ms);

/* ---- names ---- */

/*
 * The label of a miss or drop reason, say "evicted_dram"; "unknown" for a number of a newer node.
 * The string is static.
 */
const char *fb_reason_name(int reason);

/* One sentence on a reason, without a full stop. The string is static. */
const char *fb_reason_text(int reason);

#ifdef __cplusplus
}
#endif

#endif
