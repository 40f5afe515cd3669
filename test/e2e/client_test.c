/*
 * The client library against a real forebayd. Covers, over shared memory, over a Unix socket
 * without it and over TCP: values of many sizes, batches several times larger than the pool, the
 * same keys from many clients and in opposite orders, values that fill most of the pool, ranges,
 * holds, removes, upserts, epochs, quotas; kill -9 and restart; a client that is killed in the
 * middle of a put, and one that is stopped.
 *
 * Cannot show: faults of the device (simulator, sweep), power loss (crash tests), speed (bench).
 */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/bits.h"
#include "base/limits.h"
#include "base/reason.h"
#include "forebay/forebay.h"
#include "test/lib/cm.h"
#include "test/lib/server.h"
#include "test/lib/value.h"

#define POOL_BYTES FB_MIB(32)
#define SSD_BYTES  FB_MIB(512)
#define SEED       11

static char directory[256];
static char program[TEST_SERVER_PATH_BYTES];
static struct test_server server;

/* ---- the server ---- */

static int try_start(uint64_t ssd_bytes, const char *persist, const char *extra)
{
    test_server_kill(&server); /* left by a test that failed */
    struct test_server_options options = {
        .admin = true,
        .program = program,
        .directory = directory,
        .pool_bytes = POOL_BYTES,
        .ssd_cap_bytes = ssd_bytes,
        .persist = persist,
        .extra = {"--ssd-floor=0", "--listen=127.0.0.1:0", extra},
    };
    return test_server_start(&server, &options);
}

static void start(uint64_t ssd_bytes, const char *persist, const char *extra)
{
    if (try_start(ssd_bytes, persist, extra) != 0)
        fail_msg("forebayd: %s", server.error);
}

static void stop(void)
{
    assert_int_equal(test_server_stop(&server, 20000), 0);
}

/* The TCP address that the log names. */
static void tcp_address(char *out, size_t out_bytes)
{
    char log[65536];
    int fd = open(server.log_path, O_RDONLY);
    assert_true(fd >= 0);
    ssize_t bytes = read(fd, log, sizeof(log) - 1);
    close(fd);
    assert_true(bytes > 0);
    log[bytes] = '\0';
    const char *at = NULL;
    for (const char *next = log; (next = strstr(next, " tcp=")) != NULL; next++)
        at = next + strlen(" tcp=");
    assert_non_null(at);
    snprintf(out, out_bytes, "tcp:%.*s", (int)strcspn(at, " \n"), at);
}

enum way {
    WAY_SHM,
    WAY_UNIX,
    WAY_TCP,
    WAYS
};

/* Opens a handle with options of which the way's are set here. */
static struct fb_client *open_with(enum way way, struct fb_client_options *options)
{
    char address[TEST_SERVER_ADDRESS_BYTES];
    char why[FB_WHY_BYTES] = "";
    options->ns.model = "e2e";
    options->use_shm = way == WAY_SHM ? FB_SHM_ON : FB_SHM_OFF;
    options->address = server.address;
    if (way == WAY_TCP) {
        tcp_address(address, sizeof(address));
        options->address = address;
    }
    struct fb_client *client = NULL;
    if (fb_client_open(options, &client, why, sizeof(why)) != FB_OK)
        fail_msg("open: %s", why);
    assert_true(fb_client_uses_shm(client) == (way == WAY_SHM));
    return client;
}

static struct fb_client *open_way(enum way way, const char *salt, uint32_t commit_delay_ms)
{
    struct fb_client_options options;
    fb_client_options_init(&options);
    options.ns.salt = salt;
    options.commit_delay_ms = commit_delay_ms;
    return open_with(way, &options);
}

static struct fb_client *open_quota(const char *salt, uint64_t dram_bytes, uint64_t ssd_bytes)
{
    struct fb_client_options options;
    fb_client_options_init(&options);
    options.ns.salt = salt;
    options.quota_dram_bytes = dram_bytes;
    options.quota_ssd_bytes = ssd_bytes;
    return open_with(WAY_SHM, &options);
}

/* ---- batches ---- */

/* Keys "<name>-<i>" with values of test streams, in memory of their own. */
struct batch {
    size_t count;
    size_t value_bytes;
    struct fb_put_item *puts;
    struct fb_get_item *gets;
    struct fb_key_item *keys;
    struct fb_buf *bufs;
    char (*names)[48];
    uint8_t *bytes;
};

static void batch_make(struct batch *batch, const char *name, size_t count, size_t value_bytes)
{
    *batch = (struct batch){.count = count, .value_bytes = value_bytes};
    batch->puts = calloc(count, sizeof(*batch->puts));
    batch->gets = calloc(count, sizeof(*batch->gets));
    batch->keys = calloc(count, sizeof(*batch->keys));
    batch->bufs = calloc(count, sizeof(*batch->bufs));
    batch->names = calloc(count, sizeof(*batch->names));
    batch->bytes = malloc(count * value_bytes);
    assert_non_null(batch->bytes);
    for (size_t i = 0; i < count; i++) {
        snprintf(batch->names[i], sizeof(batch->names[i]), "%.20s-%zu", name, i);
        size_t key_bytes = strlen(batch->names[i]);
        batch->bufs[i] = (struct fb_buf){batch->bytes + i * value_bytes, value_bytes};
        batch->puts[i] = (struct fb_put_item){.key = batch->names[i],
                                              .key_bytes = key_bytes,
                                              .bufs = &batch->bufs[i],
                                              .buf_count = 1};
        batch->gets[i] = (struct fb_get_item){.key = batch->names[i],
                                              .key_bytes = key_bytes,
                                              .bufs = &batch->bufs[i],
                                              .buf_count = 1};
        batch->keys[i] = (struct fb_key_item){.key = batch->names[i], .key_bytes = key_bytes};
    }
}

static void batch_fill(struct batch *batch)
{
    for (size_t i = 0; i < batch->count; i++)
        test_value_fill(test_value_of(SEED, batch->names[i], strlen(batch->names[i]),
                                      batch->value_bytes),
                        0, batch->bufs[i].ptr, batch->value_bytes);
}

/* Gets all and compares every byte. Returns how many came from SSD. */
static size_t batch_check(struct batch *batch, struct fb_client *client)
{
    size_t from_ssd = 0;
    memset(batch->bytes, 0, batch->count * batch->value_bytes);
    assert_int_equal(fb_get_batch(client, batch->gets, batch->count, 0), FB_OK);
    for (size_t i = 0; i < batch->count; i++) {
        if (batch->gets[i].result != FB_OK)
            fail_msg("%s: %s (%s)", batch->names[i], fb_result_name(batch->gets[i].result),
                     fb_reason_name(batch->gets[i].reason));
        assert_int_equal(batch->gets[i].bytes, batch->value_bytes);
        assert_true(test_value_check(test_value_of(SEED, batch->names[i], strlen(batch->names[i]),
                                                   batch->value_bytes),
                                     0, batch->bufs[i].ptr, batch->value_bytes));
        from_ssd += batch->gets[i].tiers == FB_TIER_SSD;
    }
    return from_ssd;
}

static void batch_free(struct batch *batch)
{
    free(batch->puts);
    free(batch->gets);
    free(batch->keys);
    free(batch->bufs);
    free(batch->names);
    free(batch->bytes);
}

/* Fills and puts; every key must end as FB_OK or FB_EXISTS. Returns how many were FB_EXISTS. */
static size_t batch_put(struct batch *batch, struct fb_client *client)
{
    size_t exists = 0;
    assert_int_equal(fb_put_batch(client, batch->puts, batch->count, 0), FB_OK);
    for (size_t i = 0; i < batch->count; i++) {
        if (batch->puts[i].result < 0)
            fail_msg("%s: %s (%s)", batch->names[i], fb_result_name(batch->puts[i].result),
                     fb_reason_name(batch->puts[i].reason));
        exists += batch->puts[i].result == FB_EXISTS;
    }
    return exists;
}

/* ---- values ---- */

static void values_of_many_sizes(void **state)
{
    (void)state;
    static const size_t sizes[] = {1,      4095,   4096,    16384,   16385,         262143,
                                   262144, 262145, 1 << 20, 4 << 20, (4 << 20) + 1, 9000000};
    start(SSD_BYTES, NULL, NULL);
    for (int way = 0; way < WAYS; way++) {
        struct fb_client *client = open_way((enum way)way, "sizes", 0);
        for (unsigned i = 0; i < FB_ARRAY_COUNT(sizes); i++) {
            struct batch batch;
            char name[32];
            snprintf(name, sizeof(name), "w%d-s%u", way, i);
            batch_make(&batch, name, 1, sizes[i]);
            batch_fill(&batch);
            assert_int_equal(batch_put(&batch, client), 0);
            batch_check(&batch, client);
            /* From the device, too. */
            assert_int_equal(fb_drop_dram(client, batch.keys, 1, 0), FB_OK);
            assert_int_equal(batch.keys[0].result, FB_OK);
            batch.gets[0].flags = FB_GET_STAYS_COLD;
            assert_int_equal(batch_check(&batch, client), 1);
            /* A range, from the device and cut at odd places. */
            uint64_t off = sizes[i] / 3;
            uint64_t range = fb_min_u64(sizes[i] - off, 1 + sizes[i] / 2);
            batch.gets[0].range_off = off;
            batch.gets[0].range_bytes = range;
            assert_int_equal(fb_get_batch(client, batch.gets, 1, 0), FB_OK);
            assert_int_equal(batch.gets[0].result, FB_OK);
            assert_int_equal(batch.gets[0].bytes, range);
            assert_true(test_value_check(test_value_of(SEED, batch.names[0], strlen(batch.names[0]),
                                                       sizes[i]),
                                         off, batch.bytes, range));
            batch_free(&batch);
        }
        fb_client_close(client);
    }
    stop();
}

/*
 * More than a connection writes in one go, and again and again: nothing may be left lying until the
 * heartbeat (5 s) wakes somebody up. The node reads faster than the small one of the unit tests,
 * which is what it takes.
 */
static void long_values_without_a_pause(void **state)
{
    (void)state;
    start(SSD_BYTES, NULL, NULL);
    struct fb_client *client = open_way(WAY_UNIX, "long", 0);
    for (unsigned i = 0; i < 8; i++) {
        struct batch batch;
        char name[32];
        snprintf(name, sizeof(name), "long-%u", i);
        batch_make(&batch, name, 1, 9000000);
        batch_fill(&batch);
        uint64_t began_ns = test_now_ns();
        batch_put(&batch, client);
        assert_true(test_now_ns() - began_ns < 4 * FB_SEC_NS);
        batch_free(&batch);
    }
    fb_client_close(client);
    stop();
}

static void a_batch_of_four_pools(void **state)
{
    (void)state;
    for (int way = 0; way < WAYS; way += 2) {
        start(SSD_BYTES, NULL, NULL);
        struct fb_client *client = open_way((enum way)way, "four", 0);
        struct batch batch;
        batch_make(&batch, "k", 4 * POOL_BYTES / 40000, 40000);
        batch_fill(&batch);
        assert_int_equal(batch_put(&batch, client), 0);
        size_t from_ssd = batch_check(&batch, client);
        assert_true(from_ssd * 40000 >= 2 * POOL_BYTES);
        /* Once more: all are there. */
        batch_fill(&batch);
        assert_int_equal(batch_put(&batch, client), batch.count);
        batch_free(&batch);
        fb_client_close(client);
        stop();
        assert_int_equal(unlink(server.ssd_path), 0);
    }
}

/* ---- many clients ---- */

struct writer {
    unsigned number;
    enum way way;
    bool backwards;
    size_t exists;
    pthread_t thread;
};

enum {
    WRITERS = 6,
    SHARED_KEYS = 400,
    SHARED_BYTES = 30000
};

static void reverse(struct fb_put_item *items, size_t count)
{
    for (size_t i = 0; i < count / 2; i++) {
        struct fb_put_item kept = items[i];
        items[i] = items[count - 1 - i];
        items[count - 1 - i] = kept;
    }
}

static void *write_shared_keys(void *argument)
{
    struct writer *writer = argument;
    struct fb_client *client = open_way(writer->way, "shared", writer->number % 3 == 2 ? 1 : 0);
    struct batch batch;
    batch_make(&batch, "shared", SHARED_KEYS, SHARED_BYTES);
    batch_fill(&batch);
    if (writer->backwards)
        reverse(batch.puts, batch.count);
    writer->exists = batch_put(&batch, client);
    batch_check(&batch, client);
    batch_free(&batch);
    fb_client_close(client);
    return NULL;
}

/* The same keys, in opposite orders, some committing late: each is written once, all writers
 * succeed. */
static void the_same_keys_from_many(void **state)
{
    (void)state;
    start(SSD_BYTES, NULL, NULL);
    struct writer writers[WRITERS];
    for (unsigned i = 0; i < WRITERS; i++) {
        writers[i] = (struct writer){.number = i,
                                     .way = i % 2 == 0 ? WAY_SHM : WAY_TCP,
                                     .backwards = i % 4 >= 2};
        assert_int_equal(pthread_create(&writers[i].thread, NULL, write_shared_keys, &writers[i]),
                         0);
    }
    size_t exists = 0;
    for (unsigned i = 0; i < WRITERS; i++) {
        pthread_join(writers[i].thread, NULL);
        exists += writers[i].exists;
    }
    assert_int_equal(exists, (WRITERS - 1) * SHARED_KEYS);
    stop();
}

static void *write_big_value(void *argument)
{
    struct writer *writer = argument;
    struct fb_client *client = open_way(writer->way, "big", 0);
    for (unsigned round = 0; round < 3; round++) {
        struct batch batch;
        char name[32];
        snprintf(name, sizeof(name), "big-%u-%u", writer->number, round);
        batch_make(&batch, name, 1, POOL_BYTES / 3 * 2);
        batch_fill(&batch);
        batch_put(&batch, client);
        batch_free(&batch);
    }
    fb_client_close(client);
    return NULL;
}

/* Values of two thirds of the pool: two of them never fit at once, and all finish. */
static void values_that_fill_the_pool(void **state)
{
    (void)state;
    start(SSD_BYTES, NULL, NULL);
    struct writer writers[2];
    for (unsigned i = 0; i < 2; i++) {
        writers[i] = (struct writer){.number = i, .way = i == 0 ? WAY_SHM : WAY_TCP};
        assert_int_equal(pthread_create(&writers[i].thread, NULL, write_big_value, &writers[i]), 0);
    }
    for (unsigned i = 0; i < 2; i++)
        pthread_join(writers[i].thread, NULL);
    struct fb_client *client = open_way(WAY_SHM, "big", 0);
    for (unsigned i = 0; i < 6; i++) {
        struct batch batch;
        char name[32];
        snprintf(name, sizeof(name), "big-%u-%u", i % 2, i / 2);
        batch_make(&batch, name, 1, POOL_BYTES / 3 * 2);
        batch_check(&batch, client);
        batch_free(&batch);
    }
    uint64_t most = fb_client_value_bytes_max(client);
    assert_true(most >= POOL_BYTES / 4 * 3 && most < POOL_BYTES);
    for (unsigned above = 0; above < 2; above++) {
        struct batch huge;
        batch_make(&huge, "huge", 1, most + above);
        assert_int_equal(fb_put_batch(client, huge.puts, 1, 0), FB_OK);
        assert_int_equal(huge.puts[0].result, above == 0 ? FB_OK : FB_TOO_BIG);
        batch_free(&huge);
    }
    fb_client_close(client);
    stop();
}

/* ---- the life of a key ---- */

static void remove_upsert_and_epoch(void **state)
{
    (void)state;
    start(SSD_BYTES, NULL, NULL);
    struct fb_client *one = open_way(WAY_SHM, "life", 0);
    struct fb_client *two = open_way(WAY_TCP, "life", 0);
    char got[8] = "";
    assert_int_equal(fb_put(one, "k", 1, "first", 5, 0, 0), FB_OK);
    assert_int_equal(fb_put(two, "k", 1, "other", 5, 0, 0), FB_EXISTS);
    assert_int_equal(fb_put(two, "k", 1, "newer", 5, FB_UPSERT, 0), FB_OK);
    assert_int_equal(fb_get(one, "k", 1, got, 8, NULL, 0), FB_OK);
    assert_memory_equal(got, "newer", 5);
    assert_int_equal(fb_remove(one, "k", 1, 0), FB_OK);
    assert_int_equal(fb_remove(one, "k", 1, 0), FB_MISS);
    struct fb_get_item item = {.key = "k", .key_bytes = 1};
    assert_int_equal(fb_get_batch(two, &item, 1, 0), FB_OK);
    assert_int_equal(item.result, FB_MISS);
    assert_int_equal(item.reason, FB_REASON_REMOVED);
    struct fb_explanation why;
    assert_int_equal(fb_explain(two, "k", 1, &why, 0), FB_OK);
    assert_false(why.present);
    assert_int_equal(why.reason, FB_REASON_REMOVED);
    assert_int_equal(fb_put(one, "k", 1, "again", 5, 0, 0), FB_OK);
    uint64_t epoch = 0;
    assert_int_equal(fb_epoch_bump(one, &epoch, 0), FB_OK);
    assert_int_equal(fb_exists(one, "k", 1, 0), FB_MISS);
    assert_int_equal(fb_get(two, "k", 1, got, 8, NULL, 0), FB_STALE_EPOCH);
    assert_int_equal(fb_put(two, "k", 1, "stale", 5, 0, 0), FB_STALE_EPOCH);
    uint64_t now = 0;
    assert_int_equal(fb_epoch_refresh(two, &now, 0), FB_OK);
    assert_int_equal(now, epoch);
    assert_int_equal(fb_put(two, "k", 1, "fresh", 5, 0, 0), FB_OK);
    assert_int_equal(fb_get(one, "k", 1, got, 8, NULL, 0), FB_OK);
    assert_memory_equal(got, "fresh", 5);
    fb_client_close(one);
    fb_client_close(two);
    stop();
}

static void namespaces_do_not_meet(void **state)
{
    (void)state;
    start(0, NULL, NULL);
    struct fb_client *one = open_way(WAY_SHM, "tenant-1", 0);
    struct fb_client *two = open_way(WAY_SHM, "tenant-2", 0);
    assert_int_equal(fb_put(one, "k", 1, "value", 5, 0, 0), FB_OK);
    assert_int_equal(fb_exists(two, "k", 1, 0), FB_MISS);
    assert_int_equal(fb_put(two, "k", 1, "other", 5, 0, 0), FB_OK);
    char got[8];
    assert_int_equal(fb_get(one, "k", 1, got, 8, NULL, 0), FB_OK);
    assert_memory_equal(got, "value", 5);
    fb_client_close(one);
    fb_client_close(two);
    stop();
}

/* ---- quotas ---- */

enum {
    QUOTA_VALUE_BYTES = 100000,
    QUOTA_VALUE_PAGES_BYTES = 102400,
    QUOTA_ON_SSD = 20, /* of them fit into 2 MiB, */
    QUOTA_IN_DRAM = 40 /* and so many into 4 MiB */
};

/* Puts a value of its own. Returns its result. */
static int quota_put(struct fb_client *client, const char *key, enum fb_persist_mode mode)
{
    struct batch batch;
    batch_make(&batch, key, 1, QUOTA_VALUE_BYTES);
    batch_fill(&batch);
    batch.puts[0].persist_mode = (uint8_t)mode;
    assert_int_equal(fb_put_batch(client, batch.puts, 1, 20000), FB_OK);
    int result = batch.puts[0].result;
    batch_free(&batch);
    return result;
}

/* How many of the keys "<name>-<i>" the lookup finds with this bit. */
static unsigned quota_count(struct fb_client *client, const char *name, unsigned count,
                            enum fb_exists_bit bit)
{
    unsigned found = 0;
    for (unsigned i = 0; i < count; i++) {
        char key[48];
        snprintf(key, sizeof(key), "%.20s%u-0", name, i);
        struct fb_exists_item item = {.key = key, .key_bytes = strlen(key)};
        assert_int_equal(fb_exists_batch(client, &item, 1, NULL, 0), FB_OK);
        found += (item.found & bit) != 0;
    }
    return found;
}

/* Each namespace stays below its own quotas, at the cost of its own values alone. */
static void quotas(void **state)
{
    (void)state;
    unlink(server.ssd_path);
    start(SSD_BYTES, NULL, NULL);
    struct fb_client *other = open_way(WAY_SHM, "no quota", 0);
    struct fb_client *client = open_quota("quota", FB_MIB(4), FB_MIB(2));
    assert_int_equal(quota_put(other, "other", FB_PERSIST_MODE_OFF), FB_OK);
    char key[32];
    for (unsigned i = 0; i < QUOTA_ON_SSD; i++) {
        snprintf(key, sizeof(key), "ssd%u", i);
        assert_int_equal(quota_put(client, key, FB_PERSIST_MODE_THROUGH), FB_OK);
    }
    assert_int_equal(quota_put(client, "over", FB_PERSIST_MODE_THROUGH), FB_QUOTA);
    assert_int_equal(fb_exists(client, "over-0", 6, 0), FB_OK); /* it is cached */
    for (unsigned i = 0; i < 3 * QUOTA_IN_DRAM; i++) {
        snprintf(key, sizeof(key), "dram%u", i);
        assert_int_equal(quota_put(client, key, FB_PERSIST_MODE_OFF), FB_OK);
    }
    unsigned in_dram = quota_count(client, "dram", 3 * QUOTA_IN_DRAM, FB_EXISTS_IN_DRAM);
    assert_true(in_dram > 0 && in_dram <= QUOTA_IN_DRAM);
    in_dram += quota_count(client, "ssd", QUOTA_ON_SSD, FB_EXISTS_IN_DRAM);
    assert_true((uint64_t)in_dram * QUOTA_VALUE_PAGES_BYTES <= FB_MIB(4));
    assert_int_equal(quota_count(client, "ssd", QUOTA_ON_SSD, FB_EXISTS_READABLE), QUOTA_ON_SSD);
    struct fb_explanation why;
    assert_int_equal(fb_explain(client, "dram0-0", 7, &why, 0), FB_OK);
    assert_true(!why.present && why.reason == FB_REASON_QUOTA);
    struct batch huge;
    batch_make(&huge, "huge", 1, FB_MIB(4) + 1);
    assert_int_equal(fb_put_batch(client, huge.puts, 1, 0), FB_OK);
    assert_int_equal(huge.puts[0].result, FB_QUOTA);
    batch_free(&huge);
    /* Room on SSD that was given back can be used, and the quota is known after a restart. */
    assert_int_equal(fb_remove(client, "ssd0-0", 6, 0), FB_OK);
    assert_int_equal(quota_put(client, "ssd0", FB_PERSIST_MODE_THROUGH), FB_OK);
    assert_int_equal(fb_exists(other, "other-0", 7, 0), FB_OK);
    stop();
    start(SSD_BYTES, NULL, NULL);
    assert_int_equal(quota_count(client, "ssd", QUOTA_ON_SSD, FB_EXISTS_ON_SSD), QUOTA_ON_SSD);
    assert_int_equal(quota_put(client, "again", FB_PERSIST_MODE_THROUGH), FB_QUOTA);
    assert_int_equal(quota_put(other, "again", FB_PERSIST_MODE_THROUGH), FB_OK);
    fb_client_close(client);
    fb_client_close(other);
    stop();
}

/* ---- reads side by side ---- */

/* One batch of cold values has many reads in the device at once. */
static void expect_depth(const char *io, uint64_t least)
{
    unlink(server.ssd_path);
    if (try_start(SSD_BYTES, NULL, io) != 0) {
        if (strstr(server.error, "io_uring") == NULL)
            fail_msg("forebayd: %s", server.error);
        printf("SKIPPED reads_side_by_side: %s: %s\n", io, server.error);
        return;
    }
    struct fb_client *client = open_way(WAY_SHM, "depth", 0);
    struct batch batch;
    batch_make(&batch, "k", 512, FB_KIB(64));
    batch_fill(&batch);
    batch_put(&batch, client);
    assert_int_equal(fb_drop_dram(client, batch.keys, batch.count, 0), FB_OK);
    for (size_t i = 0; i < batch.count; i++) {
        assert_int_equal(batch.keys[i].result, FB_OK);
        batch.gets[i].flags = FB_GET_STAYS_COLD;
    }
    assert_int_equal(batch_check(&batch, client), batch.count);
    uint64_t depth = 0;
    assert_true(test_server_metric(&server, "forebay_io_read_depth_max", &depth));
    if (depth < least)
        fail_msg("%s: at most %u reads at once, not %u", io, (unsigned)depth, (unsigned)least);
    batch_free(&batch);
    fb_client_close(client);
    stop();
}

static void reads_side_by_side(void **state)
{
    (void)state;
    expect_depth("--io=uring", 16);
    expect_depth("--io=posix", 2);
}

/* ---- the floor of the disk ---- */

/*
 * A file system that nobody else writes to: a tmpfs, seen by this process and its children alone.
 * False if it is not to be had.
 */
static bool mount_small_disk(const char *where, unsigned mib)
{
    char size[32];
    snprintf(size, sizeof(size), "size=%um", mib);
    return mkdir(where, 0700) == 0 && unshare(CLONE_NEWNS) == 0 &&
           mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("tmpfs", where, "tmpfs", 0, size) == 0;
}

static bool log_has(const char *words)
{
    static char log[FB_KIB(256)];
    int fd = open(server.log_path, O_RDONLY);
    assert_true(fd >= 0);
    ssize_t bytes = read(fd, log, sizeof(log) - 1);
    close(fd);
    assert_true(bytes >= 0);
    log[bytes] = '\0';
    return strstr(log, words) != NULL;
}

static void expect_line(const char *words)
{
    uint64_t until = test_now_ns() + 10 * FB_SEC_NS;
    while (!log_has(words) && test_now_ns() < until)
        test_sleep_ms(50);
    assert_true(log_has(words));
}

static void load_to_the_floor(const char *disk, uint64_t floor_bytes)
{
    char floor[64];
    snprintf(floor, sizeof(floor), "--ssd-floor=%lluB", (unsigned long long)floor_bytes);
    struct test_server_options options = {
        .program = program,
        .directory = disk,
        .pool_bytes = POOL_BYTES,
        .ssd_cap_bytes = FB_MIB(1024),
        .admin = true,
        .extra = {floor, "--listen=127.0.0.1:0", "--direct=off"},
    };
    if (test_server_start(&server, &options) != 0)
        fail_msg("forebayd: %s", server.error);
    struct test_watch watch = {.samples = 0};
    test_watch_start(&watch, &server, 0, FB_MIB(1024));
    struct fb_client *client = open_way(WAY_SHM, "floor", 0);
    for (unsigned round = 0; round < 10; round++) {
        struct batch batch;
        char name[32];
        snprintf(name, sizeof(name), "r%u", round);
        batch_make(&batch, name, 400, 100000);
        batch_fill(&batch);
        assert_int_equal(batch_put(&batch, client), 0); /* also when the disk has no more room */
        batch_free(&batch);
    }
    assert_true(test_watch_stop(&watch));
    print_message("floor %llu, least free %llu\n", (unsigned long long)floor_bytes,
                  (unsigned long long)watch.disk_free_least_bytes);
    /* The node's log lies there too, and is not the tier's. */
    assert_true(watch.disk_free_least_bytes + FB_MIB(1) >= floor_bytes);
    assert_true(watch.disk_free_least_bytes <= floor_bytes + FB_MIB(64));
    /* Somebody else takes what is left above the floor, and gives it back. */
    char other[400];
    snprintf(other, sizeof(other), "%s/other", disk);
    int fd = open(other, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    uint64_t taken_bytes = test_directory_free_bytes(disk) - floor_bytes + FB_MIB(1);
    assert_int_equal(posix_fallocate(fd, 0, (off_t)taken_bytes), 0);
    expect_line(" warn disk_floor_reached ");
    assert_int_equal(fb_put(client, "after", 5, "value", 5, 0, 0), FB_OK);
    close(fd);
    assert_int_equal(unlink(other), 0);
    expect_line(" info disk_floor_left ");
    fb_client_close(client);
    stop();
}

/* The tier takes the free space down to the floor and no further, and puts go on. */
static void the_floor_of_the_disk(void **state)
{
    (void)state;
    char disk[300];
    snprintf(disk, sizeof(disk), "%s/disk", directory);
    test_server_kill(&server);
    if (!mount_small_disk(disk, 512)) {
        printf("SKIPPED the_floor_of_the_disk: no file system of one's own can be mounted\n");
        return;
    }
    load_to_the_floor(disk, test_directory_free_bytes(disk) - FB_MIB(200));
    assert_int_equal(umount(disk), 0);
    assert_int_equal(rmdir(disk), 0);
}

/* A key that is held is readable although far more than the pool is written meanwhile. */
static void holds_are_kept(void **state)
{
    (void)state;
    enum {
        HELD = 100,
        BYTES = 40000
    };
    unlink(server.ssd_path);
    start(FB_MIB(64), NULL, NULL); /* the SSD tier evicts as well */
    struct fb_client *client = open_way(WAY_SHM, "holds", 0);
    struct batch held, others;
    batch_make(&held, "held", HELD, BYTES);
    batch_fill(&held);
    batch_put(&held, client);
    struct fb_exists_item looks[HELD + 1];
    for (unsigned i = 0; i < HELD; i++)
        looks[i] =
            (struct fb_exists_item){.key = held.names[i], .key_bytes = strlen(held.names[i])};
    looks[HELD] = (struct fb_exists_item){.key = "absent", .key_bytes = 6};
    struct fb_hold_request hold = {.ms = 60000, .loads = 2};
    assert_int_equal(fb_exists_batch(client, looks, HELD + 1, &hold, 0), FB_OK);
    for (unsigned i = 0; i < HELD; i++) {
        assert_int_equal(looks[i].result, FB_OK);
        assert_true((looks[i].found & FB_EXISTS_HELD) != 0);
        held.gets[i].flags = FB_GET_USES_HOLD;
    }
    assert_int_equal(looks[HELD].result, FB_MISS);
    for (unsigned round = 0; round < 4; round++) {
        char name[32];
        snprintf(name, sizeof(name), "other-%u", round);
        batch_make(&others, name, FB_MIB(40) / BYTES, BYTES);
        batch_fill(&others);
        batch_put(&others, client);
        batch_free(&others);
    }
    batch_check(&held, client);
    assert_int_equal(fb_hold_release(client, held.keys, HELD, 1, 0), FB_OK);
    for (unsigned i = 0; i < HELD; i++)
        assert_int_equal(held.keys[i].result, FB_OK);
    batch_free(&held);
    fb_client_close(client);
    stop();
    assert_int_equal(unlink(server.ssd_path), 0);
}

/* Keys "k-<i>", each at least once. */
static int note_key(void *context, const void *key, size_t key_bytes)
{
    bool *seen = context;
    char text[16] = "";
    assert_true(key_bytes > 2 && key_bytes < sizeof(text));
    memcpy(text, key, key_bytes);
    seen[strtoul(text + 2, NULL, 10)] = true;
    return 0;
}

/*
 * Listings while the values are being written to SSD, and a batch with far more keys than the node
 * has credit for, every tenth of them twice.
 */
static void many_small_values(void **state)
{
    (void)state;
    enum {
        COUNT = 30000,
        BYTES = 100,
        EVERY = 10
    };
    start(SSD_BYTES, NULL, NULL);
    struct fb_client *client = open_way(WAY_SHM, "small", 0);
    struct batch batch;
    batch_make(&batch, "k", COUNT, BYTES);
    batch_fill(&batch);
    for (size_t i = EVERY; i < COUNT; i += EVERY) { /* the key before it, once more */
        batch.puts[i].key = batch.puts[i - 1].key;
        batch.puts[i].key_bytes = batch.puts[i - 1].key_bytes;
        batch.gets[i].key = batch.gets[i - 1].key;
        batch.gets[i].key_bytes = batch.gets[i - 1].key_bytes;
    }
    assert_int_equal(batch_put(&batch, client), COUNT / EVERY - 1);
    for (unsigned round = 0; round < 3; round++) {
        static bool seen[COUNT];
        memset(seen, 0, sizeof(seen));
        assert_int_equal(fb_list_keys(client, note_key, seen, 0), FB_OK);
        for (size_t i = 0; i < COUNT; i++)
            assert_true(seen[i] == (i == 0 || i % EVERY != 0));
    }
    /* Each has the bytes of the first that was put under it. */
    memset(batch.bytes, 0, COUNT * BYTES);
    assert_int_equal(fb_get_batch(client, batch.gets, COUNT, 0), FB_OK);
    for (size_t i = 0; i < COUNT; i++) {
        const char *name = i > 0 && i % EVERY == 0 ? batch.names[i - 1] : batch.names[i];
        assert_int_equal(batch.gets[i].result, FB_OK);
        assert_int_equal(batch.gets[i].bytes, BYTES);
        assert_true(test_value_check(test_value_of(SEED, name, strlen(name), BYTES), 0,
                                     batch.bufs[i].ptr, BYTES));
    }
    batch_free(&batch);
    fb_client_close(client);
    stop();
}

static void listing_and_persistence(void **state)
{
    (void)state;
    start(SSD_BYTES, NULL, NULL);
    struct fb_client *client = open_way(WAY_SHM, "list", 0);
    struct batch batch;
    batch_make(&batch, "k", 1500, 30000); /* more than the pool: some are on SSD only */
    batch_fill(&batch);
    batch_put(&batch, client);
    bool seen[1500] = {false};
    assert_int_equal(fb_list_keys(client, note_key, seen, 0), FB_OK);
    for (size_t i = 0; i < batch.count; i++)
        assert_true(seen[i]);
    assert_int_equal(fb_wait_persisted(client, batch.keys, batch.count, 0), FB_OK);
    for (size_t i = 0; i < batch.count; i++)
        assert_int_equal(batch.keys[i].result, FB_OK);
    /* kill -9: what was acknowledged as persisted is there. */
    test_server_kill(&server);
    assert_int_equal(fb_exists(client, "k-0", 3, 2000), FB_CONNECTION);
    start(SSD_BYTES, NULL, NULL);
    assert_int_equal(batch_check(&batch, client), batch.count); /* the same handle */
    batch_free(&batch);
    fb_client_close(client);
    stop();
}

static void what_is_not_to_be_persisted(void **state)
{
    (void)state;
    start(0, NULL, NULL);
    struct fb_client *client = open_way(WAY_SHM, "dram", 0);
    struct fb_key_item item = {.key = "k", .key_bytes = 1};
    assert_int_equal(fb_put(client, "k", 1, "value", 5, 0, 0), FB_OK);
    assert_int_equal(fb_wait_persisted(client, &item, 1, 5000), FB_OK);
    assert_int_equal(item.result, FB_NOT_PERSISTED);
    fb_client_close(client);
    stop();
}

/* ---- clients in trouble ---- */

/* In a child: grants of a batch that is never committed; tells by a byte that they are there. */
static void put_and_wait_for_death(int tell)
{
    struct fb_client *client = open_way(WAY_SHM, "death", 20000);
    struct batch batch;
    batch_make(&batch, "k", 40, 200000);
    batch_fill(&batch);
    pid_t self = getpid();
    pid_t teller = fork(); /* the put blocks: somebody else tells that it is under way */
    if (teller == 0) {
        usleep(300000);
        ssize_t told = write(tell, "x", 1);
        _exit(told == 1 && self != 0 ? 0 : 1);
    }
    (void)fb_put_batch(client, batch.puts, batch.count, 20000);
    _exit(0);
}

static pid_t start_victim(void)
{
    int tell[2];
    assert_int_equal(pipe2(tell, O_CLOEXEC), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        put_and_wait_for_death(tell[1]);
    close(tell[1]);
    char byte;
    assert_int_equal(read(tell[0], &byte, 1), 1);
    close(tell[0]);
    return child;
}

/* Whoever waits for the same keys goes on as soon as the writer is dead. */
static void a_writer_that_is_killed(void **state)
{
    (void)state;
    start(0, NULL, NULL);
    pid_t victim = start_victim();
    struct fb_client *client = open_way(WAY_SHM, "death", 0);
    assert_int_equal(fb_exists(client, "k-0", 3, 0), FB_MISS);
    assert_int_equal(kill(victim, SIGKILL), 0);
    struct batch batch;
    batch_make(&batch, "k", 40, 200000);
    batch_fill(&batch);
    uint64_t began_ns = test_now_ns();
    assert_int_equal(batch_put(&batch, client), 0);
    assert_true(test_now_ns() - began_ns < 4 * FB_SEC_NS); /* less than a grant's expiry */
    batch_check(&batch, client);
    batch_free(&batch);
    fb_client_close(client);
    assert_int_equal(waitpid(victim, NULL, 0), victim);
    stop();
}

/* A writer that is stopped loses its grants, and when it goes on it harms nobody. */
static void a_writer_that_is_stopped(void **state)
{
    (void)state;
    start(0, NULL, NULL);
    pid_t victim = start_victim();
    assert_int_equal(kill(victim, SIGSTOP), 0);
    struct fb_client *client = open_way(WAY_SHM, "death", 0);
    struct batch batch;
    batch_make(&batch, "k", 40, 200000);
    batch_fill(&batch);
    assert_int_equal(batch_put(&batch, client), 0); /* after 5 s, when the grants expire */
    batch_check(&batch, client);
    assert_int_equal(kill(victim, SIGCONT), 0);
    assert_int_equal(waitpid(victim, NULL, 0), victim);
    batch_check(&batch, client);
    batch_free(&batch);
    fb_client_close(client);
    stop();
}

static void a_fork_after_connect(void **state)
{
    (void)state;
    start(SSD_BYTES, NULL, NULL);
    struct fb_client *client = open_way(WAY_SHM, "fork", 0);
    assert_int_equal(fb_put(client, "k", 1, "value", 5, 0, 0), FB_OK);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        char got[8] = "";
        bool good = fb_get(client, "k", 1, got, 8, NULL, 5000) == FB_OK &&
                    memcmp(got, "value", 5) == 0 &&
                    fb_put(client, "child", 5, "value", 5, 0, 5000) == FB_OK;
        fb_client_close(client);
        _exit(good ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(fb_exists(client, "child", 5, 0), FB_OK);
    fb_client_close(client);
    stop();
}

/* ---- around the tests ---- */

static int make_directory(void **state)
{
    (void)state;
    char self[TEST_SERVER_PATH_BYTES] = "";
    ssize_t bytes = readlink("/proc/self/exe", self, sizeof(self) - 1);
    for (int up = 0; bytes > 0 && up < 3; up++)
        *strrchr(self, '/') = '\0';
    snprintf(program, sizeof(program), "%.400s/forebayd", self);
    return test_directory_make("e2e", directory, sizeof(directory));
}

static int remove_directory(void **state)
{
    (void)state;
    test_server_kill(&server);
    test_directory_remove(directory);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_of_many_sizes),
        cmocka_unit_test(long_values_without_a_pause),
        cmocka_unit_test(a_batch_of_four_pools),
        cmocka_unit_test(the_same_keys_from_many),
        cmocka_unit_test(values_that_fill_the_pool),
        cmocka_unit_test(remove_upsert_and_epoch),
        cmocka_unit_test(namespaces_do_not_meet),
        cmocka_unit_test(holds_are_kept),
        cmocka_unit_test(listing_and_persistence),
        cmocka_unit_test(what_is_not_to_be_persisted),
        cmocka_unit_test(a_writer_that_is_killed),
        cmocka_unit_test(a_writer_that_is_stopped),
        cmocka_unit_test(a_fork_after_connect),
        cmocka_unit_test(many_small_values),
        cmocka_unit_test(quotas),
        cmocka_unit_test(reads_side_by_side),
        cmocka_unit_test(the_floor_of_the_disk),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
