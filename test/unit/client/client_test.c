/*
 * The client library, through its public header, against a small node over a Unix socket. Covers:
 * both paths of bytes, whole and in dribbles; batches, duplicates, ranges, holds; several threads
 * on one handle; a fork; nodes that are silent, close, stop in the middle of a frame or speak
 * nonsense; that a call ends in time and leaves the caller's memory alone afterwards (it is freed
 * at once, under ASan); reconnecting; what an open refuses.
 *
 * Cannot show: the real node's behaviour (test/e2e), speed, TCP over a network.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/bits.h"
#include "base/hash.h"
#include "base/reason.h"
#include "client/clock.h"
#include "forebay/forebay.h"
#include "test/lib/cm.h"
#include "test/lib/small_node.h"
#include "test/lib/value.h"

#define BOUND_NS ((FB_ABORT_BOUND_MS + 500) * (uint64_t)1000000)

static char socket_path[100];
static char address[120];

static struct small_node *start(bool share)
{
    struct small_node_options options = {.share = share, .inline_credit_bytes = 64 << 10};
    struct small_node *node = small_node_start(socket_path, &options);
    assert_non_null(node);
    return node;
}

static void options_of(struct fb_client_options *options)
{
    fb_client_options_init(options);
    options->address = address;
    options->ns.model = "test";
    options->connect_timeout_ms = 3000;
}

static struct fb_client *open_client(uint32_t connections)
{
    struct fb_client_options options;
    options_of(&options);
    options.connections_max = connections;
    struct fb_client *client = NULL;
    char why[FB_WHY_BYTES] = "";
    int result = fb_client_open(&options, &client, why, sizeof(why));
    if (result != FB_OK)
        fail_msg("open: %s", why);
    return client;
}

/* ---- opening ---- */

static void expect_refusal(const struct fb_client_options *options, int result, const char *word)
{
    struct fb_client *client;
    char why[FB_WHY_BYTES] = "";
    assert_int_equal(fb_client_open(options, &client, why, sizeof(why)), result);
    assert_null(client);
    if (strstr(why, word) == NULL)
        fail_msg("'%s' does not say '%s'", why, word);
    assert_int_equal(fb_client_open(options, &client, NULL, 0), result);
}

static void what_an_open_refuses(void **state)
{
    (void)state;
    struct fb_client_options options;
    options_of(&options);
    unlink(socket_path);
    expect_refusal(&options, FB_CONNECTION, "forebayd");
    options.ns.model = NULL;
    expect_refusal(&options, FB_BAD_ARGUMENT, "namespace");
    options_of(&options);
    options.struct_bytes = 5;
    expect_refusal(&options, FB_BAD_ARGUMENT, "fb_client_options_init");
    options_of(&options);
    options.connections_max = FB_CONNECTIONS_MAX + 1;
    expect_refusal(&options, FB_BAD_ARGUMENT, "64");
    options_of(&options);
    options.no_namespace = true;
    expect_refusal(&options, FB_BAD_ARGUMENT, "no_namespace");
    static const char *const bad[] = {"nonsense",    "tcp:nowhere", "tcp:h:0",
                                      "tcp:h:99999", "tcp:h:12x",   "tcp::1",
                                      "unix:",       "tcp:[::1:80", "tcp:h:+80"};
    for (unsigned i = 0; i < FB_ARRAY_COUNT(bad); i++) {
        options_of(&options);
        options.address = bad[i];
        expect_refusal(&options, FB_BAD_ARGUMENT, bad[i]);
    }
    char long_path[300] = "unix:";
    memset(long_path + 5, 'x', 200);
    options.address = long_path;
    expect_refusal(&options, FB_BAD_ARGUMENT, "107");
    options.address = "tcp:127.0.0.1:1";
    expect_refusal(&options, FB_CONNECTION, "tcp:127.0.0.1:1");
    options.use_shm = FB_SHM_ON;
    expect_refusal(&options, FB_UNSUPPORTED, "unix:");
}

static void nodes_that_refuse(void **state)
{
    (void)state;
    struct small_node *node = start(false);
    struct fb_client_options options;
    options_of(&options);
    small_node_set_mood(node, SMALL_NODE_REFUSES);
    expect_refusal(&options, FB_BUSY, "too many sessions");
    small_node_set_mood(node, SMALL_NODE_NO_WELCOME);
    options.connect_timeout_ms = 50;
    expect_refusal(&options, FB_DEADLINE, "in time");
    small_node_set_mood(node, SMALL_NODE_WELL);
    options.connect_timeout_ms = 3000;
    options.use_shm = FB_SHM_ON;
    expect_refusal(&options, FB_UNSUPPORTED, "shared memory");
    small_node_stop(node);
}

static void memory_that_could_shrink(void **state)
{
    (void)state;
    struct small_node_options unsealed = {.share = true, .unsealed = true};
    struct small_node *node = small_node_start(socket_path, &unsealed);
    struct fb_client_options options;
    options_of(&options);
    options.use_shm = FB_SHM_ON;
    expect_refusal(&options, FB_UNSUPPORTED, "sealed");
    struct fb_client *client = open_client(1); /* AUTO: over the socket */
    assert_false(fb_client_uses_shm(client));
    assert_int_equal(fb_put(client, "k", 1, "value", 5, 0, 0), FB_OK);
    fb_client_close(client);
    small_node_stop(node);
}

/* ---- values ---- */

/* Buffers of unequal length over one piece of memory. */
static size_t split(uint8_t *bytes, size_t count, struct fb_buf *bufs, size_t max, unsigned seed)
{
    size_t used = 0;
    size_t at = 0;
    while (at < count) {
        size_t step = used + 1 == max ? count - at : 1 + (seed * 7919 + at * 31) % (count / 3 + 1);
        step = fb_min_u64(step, count - at);
        bufs[used++] = (struct fb_buf){bytes + at, step};
        at += step;
    }
    return used;
}

static void round_trip(struct fb_client *client, const char *key, size_t bytes, unsigned seed)
{
    struct test_value value = test_value_of(seed, key, strlen(key), 1);
    uint8_t *from = malloc(bytes);
    uint8_t *to = malloc(bytes + 16);
    struct fb_buf put_bufs[20], get_bufs[20];
    test_value_fill(value, 0, from, bytes);
    struct fb_put_item put = {.key = key,
                              .key_bytes = strlen(key),
                              .bufs = put_bufs,
                              .buf_count = split(from, bytes, put_bufs, 20, seed)};
    assert_int_equal(fb_put_batch(client, &put, 1, 0), FB_OK);
    assert_int_equal(put.result, FB_OK);
    free(from); /* nobody may read it any more */
    memset(to, 0xaa, bytes + 16);
    struct fb_get_item get = {.key = key,
                              .key_bytes = strlen(key),
                              .bufs = get_bufs,
                              .buf_count = split(to, bytes + 16, get_bufs, 20, seed + 1)};
    assert_int_equal(fb_get_batch(client, &get, 1, 0), FB_OK);
    assert_int_equal(get.result, FB_OK);
    assert_int_equal(get.bytes, bytes);
    assert_int_equal(get.value_bytes, bytes);
    assert_true(test_value_check(value, 0, to, bytes));
    for (unsigned i = 0; i < 16; i++)
        assert_int_equal(to[bytes + i], 0xaa);
    uint64_t off = bytes / 3;
    uint64_t range = fb_min_u64(bytes - off, 40000);
    get.range_off = off;
    get.range_bytes = range;
    assert_int_equal(fb_get_batch(client, &get, 1, 0), FB_OK);
    assert_int_equal(get.result, FB_OK);
    assert_int_equal(get.bytes, range);
    assert_true(test_value_check(value, off, to, range));
    free(to);
}

static void values_of_many_sizes(void **state)
{
    (void)state;
    static const size_t sizes[] = {1,      100,    4095,    4096,          16384,  16385,
                                   262144, 262145, 1 << 20, (1 << 20) + 1, 3333333};
    for (unsigned way = 0; way < 4; way++) {
        struct small_node *node = start(way % 2 == 0);
        if (way >= 2)
            small_node_set_mood(node, SMALL_NODE_DRIBBLES);
        struct fb_client *client = open_client(1);
        assert_true(fb_client_uses_shm(client) == (way % 2 == 0));
        for (unsigned i = 0; i < FB_ARRAY_COUNT(sizes); i++) {
            char key[32];
            snprintf(key, sizeof(key), "key-%u", i);
            round_trip(client, key, sizes[i], way * 100 + i);
        }
        fb_client_close(client);
        small_node_stop(node);
    }
}

static void single_keys(void **state)
{
    (void)state;
    struct small_node *node = start(true);
    struct fb_client *client = open_client(2);
    char buffer[10] = "";
    uint64_t bytes = 7;
    assert_int_equal(fb_exists(client, "k", 1, 0), FB_MISS);
    assert_int_equal(fb_get(client, "k", 1, buffer, 10, &bytes, 0), FB_MISS);
    assert_int_equal(bytes, 0);
    assert_int_equal(fb_put(client, "k", 1, "value", 5, 0, 0), FB_OK);
    assert_int_equal(fb_put(client, "k", 1, "other", 5, 0, 0), FB_EXISTS);
    assert_int_equal(fb_exists(client, "k", 1, 0), FB_OK);
    assert_int_equal(fb_get(client, "k", 1, buffer, 10, &bytes, 0), FB_OK);
    assert_int_equal(bytes, 5);
    assert_memory_equal(buffer, "value", 5);
    assert_int_equal(fb_get(client, "k", 1, buffer, 4, &bytes, 0), FB_BUFFER_TOO_SMALL);
    assert_int_equal(bytes, 5);
    assert_int_equal(fb_get(client, "k", 1, NULL, 0, &bytes, 0), FB_BUFFER_TOO_SMALL);
    assert_int_equal(bytes, 5);
    assert_int_equal(fb_put(client, "k", 1, "newer", 5, FB_UPSERT, 0), FB_OK);
    assert_int_equal(fb_get(client, "k", 1, buffer, 10, NULL, 0), FB_OK);
    assert_memory_equal(buffer, "newer", 5);
    assert_int_equal(fb_remove(client, "k", 1, 0), FB_OK);
    assert_int_equal(fb_remove(client, "k", 1, 0), FB_MISS);
    assert_int_equal(fb_put(client, "", 0, "value", 5, 0, 0), FB_BAD_KEY);
    assert_int_equal(fb_put(client, "k", 1, "value", 0, 0, 0), FB_BAD_ARGUMENT);
    fb_client_close(client);
    small_node_stop(node);
}

/* Hundreds of keys in one call, some of them twice. */
static void a_batch(void **state)
{
    (void)state;
    enum {
        COUNT = 600,
        BYTES = 20000
    };
    for (unsigned way = 0; way < 2; way++) {
        struct small_node *node = start(way == 0);
        struct fb_client *client = open_client(1);
        struct fb_put_item *puts = calloc(COUNT, sizeof(*puts));
        struct fb_get_item *gets = calloc(COUNT, sizeof(*gets));
        struct fb_exists_item *looks = calloc(COUNT, sizeof(*looks));
        struct fb_buf *bufs = calloc(2 * COUNT, sizeof(*bufs));
        char(*keys)[16] = calloc(COUNT, sizeof(*keys));
        uint8_t *from = malloc(COUNT * BYTES);
        uint8_t *to = calloc(COUNT, BYTES);
        for (unsigned i = 0; i < COUNT; i++) {
            snprintf(keys[i], sizeof(keys[i]), "k%u", i % 10 == 9 ? i - 1 : i);
            struct test_value value = test_value_of(1, keys[i], strlen(keys[i]), 1);
            test_value_fill(value, 0, from + i * BYTES, BYTES);
            bufs[2 * i] = (struct fb_buf){from + i * BYTES, BYTES};
            bufs[2 * i + 1] = (struct fb_buf){to + i * BYTES, BYTES};
            puts[i] = (struct fb_put_item){.key = keys[i],
                                           .key_bytes = strlen(keys[i]),
                                           .bufs = &bufs[2 * i],
                                           .buf_count = 1};
            gets[i] = (struct fb_get_item){.key = keys[i],
                                           .key_bytes = strlen(keys[i]),
                                           .bufs = &bufs[2 * i + 1],
                                           .buf_count = 1};
            looks[i] = (struct fb_exists_item){.key = keys[i], .key_bytes = strlen(keys[i])};
        }
        assert_int_equal(fb_put_batch(client, puts, COUNT, 0), FB_OK);
        assert_int_equal(fb_get_batch(client, gets, COUNT, 0), FB_OK);
        looks[5].key = "absent";
        looks[5].key_bytes = 6;
        assert_int_equal(fb_exists_batch(client, looks, COUNT, NULL, 0), FB_OK);
        for (unsigned i = 0; i < COUNT; i++) {
            assert_int_equal(puts[i].result, i % 10 == 9 ? FB_EXISTS : FB_OK);
            assert_int_equal(gets[i].result, FB_OK);
            assert_int_equal(looks[i].result, i == 5 ? FB_MISS : FB_OK);
            assert_memory_equal(from + i * BYTES, to + i * BYTES, BYTES);
        }
        assert_int_equal(fb_put_batch(client, puts, 0, 0), FB_OK); /* no keys, no trouble */
        free(puts);
        free(gets);
        free(looks);
        free(bufs);
        free(keys);
        free(from);
        free(to);
        fb_client_close(client);
        small_node_stop(node);
    }
}

static int count_key(void *context, const void *key, size_t key_bytes)
{
    (void)key;
    (void)key_bytes;
    unsigned *count = context;
    return ++*count == 3 ? 99 : 0;
}

static void looking_inside(void **state)
{
    (void)state;
    struct small_node *node = start(false);
    struct fb_client_options options;
    options_of(&options);
    options.ns.model = NULL;
    options.no_namespace = true;
    struct fb_client *bare;
    assert_int_equal(fb_client_open(&options, &bare, NULL, 0), FB_OK);
    char text[100];
    size_t needed;
    assert_int_equal(fb_status(bare, text, sizeof(text), &needed, 0), FB_OK);
    assert_string_equal(text, "{}");
    assert_int_equal(needed, 3);
    assert_int_equal(fb_put(bare, "k", 1, "v", 1, 0, 0), FB_BAD_ARGUMENT);
    fb_client_close(bare);

    struct fb_client *client = open_client(1);
    struct fb_explanation out;
    assert_int_equal(fb_explain(client, "k", 1, &out, 0), FB_OK);
    assert_false(out.present);
    assert_string_equal(fb_reason_name(out.reason), "no_record");
    for (char key = 'a'; key < 'f'; key++)
        assert_int_equal(fb_put(client, &key, 1, "v", 1, 0, 0), FB_OK);
    unsigned count = 10;
    assert_int_equal(fb_list_keys(client, count_key, &count, 0), FB_OK);
    assert_int_equal(count, 15);
    count = 0;
    assert_int_equal(fb_list_keys(client, count_key, &count, 0), 99);
    struct fb_key_item item = {.key = "a", .key_bytes = 1};
    assert_int_equal(fb_wait_persisted(client, &item, 1, 0), FB_OK);
    assert_int_equal(item.result, FB_NOT_PERSISTED);
    assert_int_equal(fb_drop_dram(client, &item, 1, 0), FB_OK);
    assert_int_equal(fb_hold_release(client, &item, 1, 1, 0), FB_OK);
    assert_int_equal(item.result, FB_OK);
    assert_int_equal(fb_hold_release(client, &item, 1, 256, 0), FB_BAD_ARGUMENT);
    assert_int_equal(item.result, FB_BAD_ARGUMENT);
    struct fb_exists_item look = {.key = "a", .key_bytes = 1};
    struct fb_hold_request hold = {.ms = 1000, .loads = 1};
    assert_int_equal(fb_exists_batch(client, &look, 1, &hold, 0), FB_OK);
    assert_int_equal(look.result, FB_NOT_HELD); /* the small node gives none */
    hold.loads = 0;
    assert_int_equal(fb_exists_batch(client, &look, 1, &hold, 0), FB_BAD_ARGUMENT);
    fb_client_close(client);
    small_node_stop(node);
}

static void epochs(void **state)
{
    (void)state;
    struct small_node *node = start(true);
    struct fb_client *one = open_client(2);
    struct fb_client *two = open_client(2);
    uint64_t epoch = 0;
    assert_int_equal(fb_put(one, "k", 1, "v", 1, 0, 0), FB_OK);
    assert_int_equal(fb_epoch_bump(one, &epoch, 0), FB_OK);
    assert_int_equal(epoch, 2);
    assert_int_equal(fb_exists(one, "k", 1, 0), FB_MISS);
    assert_int_equal(fb_put(one, "k", 1, "w", 1, 0, 0), FB_OK);
    /* The other handle still stands for the old weights: it must not mix them in. */
    assert_int_equal(fb_put(two, "x", 1, "v", 1, 0, 0), FB_STALE_EPOCH);
    char byte;
    assert_int_equal(fb_get(two, "k", 1, &byte, 1, NULL, 0), FB_STALE_EPOCH);
    assert_int_equal(fb_epoch_bump(two, &epoch, 0), FB_STALE_EPOCH);
    assert_int_equal(epoch, 1);
    small_node_reset(node); /* a new connection does not move the handle either */
    assert_int_equal(fb_put(two, "x", 1, "v", 1, 0, 0), FB_STALE_EPOCH);
    assert_int_equal(fb_epoch_refresh(two, &epoch, 0), FB_OK);
    assert_int_equal(epoch, 2);
    assert_int_equal(fb_put(two, "x", 1, "v", 1, 0, 0), FB_OK);
    fb_client_close(one);
    fb_client_close(two);
    small_node_stop(node);
}

/* ---- threads and forks ---- */

struct worker {
    struct fb_client *client;
    unsigned number;
};

static void *work(void *argument)
{
    struct worker *worker = argument;
    for (unsigned i = 0; i < 30; i++) {
        char key[32];
        snprintf(key, sizeof(key), "w%u-%u", worker->number, i);
        round_trip(worker->client, key, 1 + (i * 7919 + worker->number * 131) % 60000, i);
    }
    return NULL;
}

static void many_threads_on_one_handle(void **state)
{
    (void)state;
    enum {
        THREADS = 8
    };
    struct small_node *node = start(true);
    struct fb_client *client = open_client(3);
    pthread_t threads[THREADS];
    struct worker workers[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){client, i};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_true(small_node_sessions(node) <= 3);
    fb_client_close(client);
    small_node_stop(node);
}

/* Runs in a child: 0 if all is well. */
static int child_of_a_fork(struct fb_client *client)
{
    char buffer[8] = "";
    if (fb_get(client, "parent", 6, buffer, 8, NULL, 2000) != FB_OK)
        return 1;
    if (memcmp(buffer, "value", 5) != 0)
        return 2;
    if (fb_put(client, "child", 5, "other", 5, 0, 2000) != FB_OK)
        return 3;
    if (!fb_client_uses_shm(client))
        return 4;
    fb_client_close(client);
    return 0;
}

static void a_fork_after_connect(void **state)
{
    (void)state;
    struct small_node *node = start(true);
    struct fb_client *client = open_client(2);
    assert_int_equal(fb_put(client, "parent", 6, "value", 5, 0, 0), FB_OK);
    assert_int_equal(small_node_sessions(node), 1);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(child_of_a_fork(client));
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(small_node_sessions(node), 2); /* one of its own */
    /* The parent's connection is as it was. */
    char buffer[8];
    assert_int_equal(fb_get(client, "child", 5, buffer, 8, NULL, 0), FB_OK);
    assert_int_equal(small_node_sessions(node), 2);
    fb_client_close(client);
    small_node_stop(node);
}

/* ---- trouble ---- */

/* A put and a get that cannot end well end in time, and their memory is free afterwards. */
static void expect_trouble(struct fb_client *client, const char *key, int put_result,
                           int get_result, uint32_t timeout_ms)
{
    size_t bytes = 3 << 20;
    uint8_t *value = malloc(bytes);
    memset(value, 1, bytes);
    uint64_t began_ns = fb_client_now_ns();
    if (put_result != 1) {
        assert_int_equal(fb_put(client, key, strlen(key), value, bytes, 0, timeout_ms), put_result);
        assert_true(fb_client_now_ns() - began_ns < timeout_ms * (uint64_t)1000000 + BOUND_NS);
    }
    began_ns = fb_client_now_ns();
    if (get_result != 1) {
        assert_int_equal(fb_get(client, key, strlen(key), value, bytes, NULL, timeout_ms),
                         get_result);
        assert_true(fb_client_now_ns() - began_ns < timeout_ms * (uint64_t)1000000 + BOUND_NS);
    }
    free(value);
}

static void expect_well(struct small_node *node, struct fb_client *client, const char *key)
{
    small_node_set_mood(node, SMALL_NODE_WELL);
    round_trip(client, key, 200000, 5);
}

static void nodes_in_trouble(void **state)
{
    (void)state;
    for (unsigned share = 0; share < 2; share++) {
        struct small_node *node = start(share != 0);
        struct fb_client *client = open_client(1);
        round_trip(client, "big", 3 << 20, 1);
        small_node_set_mood(node, SMALL_NODE_SILENT);
        expect_trouble(client, "a", FB_DEADLINE, FB_DEADLINE, 30);
        expect_well(node, client, "a");
        small_node_set_mood(node, SMALL_NODE_CLOSES);
        expect_trouble(client, "b", FB_CONNECTION, FB_CONNECTION, 1000);
        expect_well(node, client, "b");
        small_node_set_mood(node, SMALL_NODE_GARBAGE);
        expect_trouble(client, "c", FB_PROTOCOL, FB_PROTOCOL, 1000);
        expect_well(node, client, "c");
        if (share == 0) {
            small_node_set_mood(node, SMALL_NODE_STOPS_READING);
            expect_trouble(client, "d", FB_DEADLINE, 1, 30);
            expect_well(node, client, "d");
            small_node_set_mood(node, SMALL_NODE_REVOKES);
            expect_trouble(client, "f", FB_REMOVED, 1, 5000);
            expect_well(node, client, "f");
            small_node_set_mood(node, SMALL_NODE_HALF_DATA);
            expect_trouble(client, "big", 1, FB_DEADLINE, 30);
            expect_well(node, client, "e");
        }
        fb_client_close(client);
        small_node_stop(node);
    }
}

static void a_node_that_restarts_between_calls(void **state)
{
    (void)state;
    struct small_node *node = start(true);
    struct fb_client *client = open_client(2);
    for (unsigned i = 0; i < 3; i++) {
        round_trip(client, "k", 50000, i);
        small_node_reset(node);
    }
    assert_int_equal(small_node_sessions(node), 3);
    fb_client_close(client);
    small_node_stop(node);
}

/* Memory that was out when a connection broke is given back by its successor; and since the last
 * word about it may have been lost on its way, also where nothing seems to be out. */
static void a_session_that_was_lost_is_named(void **state)
{
    (void)state;
    struct small_node *node = start(true);
    struct fb_client *client = open_client(4);
    round_trip(client, "k", 50000, 1);
    small_node_set_mood(node, SMALL_NODE_SILENT);
    expect_trouble(client, "x", FB_DEADLINE, 1, 20);
    assert_int_equal(small_node_ended_sessions(node), 0);
    expect_well(node, client, "y");
    assert_int_equal(small_node_ended_sessions(node), 1);
    small_node_reset(node);
    expect_well(node, client, "z");
    assert_int_equal(small_node_ended_sessions(node), 2);
    fb_client_close(client);
    small_node_stop(node);
}

static void late_commits(void **state)
{
    (void)state;
    struct small_node *node = start(true);
    struct fb_client_options options;
    options_of(&options);
    options.commit_delay_ms = 30;
    struct fb_client *client;
    assert_int_equal(fb_client_open(&options, &client, NULL, 0), FB_OK);
    uint64_t began_ns = fb_client_now_ns();
    assert_int_equal(fb_put(client, "k", 1, "value", 5, 0, 0), FB_OK);
    assert_true(fb_client_now_ns() - began_ns >= 30 * (uint64_t)1000000);
    fb_client_close(client);
    small_node_stop(node);
}

static int make_path(void **state)
{
    (void)state;
    snprintf(socket_path, sizeof(socket_path), "/tmp/fb-client-test-%d.sock", (int)getpid());
    snprintf(address, sizeof(address), "unix:%s", socket_path);
    return 0;
}

static int remove_path(void **state)
{
    (void)state;
    unlink(socket_path);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_an_open_refuses),
        cmocka_unit_test(nodes_that_refuse),
        cmocka_unit_test(memory_that_could_shrink),
        cmocka_unit_test(values_of_many_sizes),
        cmocka_unit_test(single_keys),
        cmocka_unit_test(a_batch),
        cmocka_unit_test(looking_inside),
        cmocka_unit_test(epochs),
        cmocka_unit_test(many_threads_on_one_handle),
        cmocka_unit_test(a_fork_after_connect),
        cmocka_unit_test(nodes_in_trouble),
        cmocka_unit_test(a_node_that_restarts_between_calls),
        cmocka_unit_test(a_session_that_was_lost_is_named),
        cmocka_unit_test(late_commits),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
