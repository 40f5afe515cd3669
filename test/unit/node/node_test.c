/*
 * A node as a library, in the process of the test: made and freed at each step that can fail (the
 * sanitizer sees what is left), run on a thread beside clients, stopped; two nodes in one process.
 * What its figures add up to, what its texts look like, how addresses are read.
 *
 * Cannot show: what depends on a process of its own (test/e2e), or takes long deadlines.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/reason.h"
#include "base/result.h"
#include "forebay/forebay.h"
#include "node/node.h"
#include "node/node_private.h"
#include "test/lib/server.h"

#define WAIT_MS 20000

static char directory[TEST_SERVER_PATH_BYTES];
static char log_text[64 * 1024];
static size_t log_used;
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;

static void sink(void *context, enum fb_logger_level level, const char *text, size_t bytes)
{
    (void)context;
    (void)level;
    pthread_mutex_lock(&log_lock);
    if (log_used + bytes < sizeof(log_text)) {
        memcpy(log_text + log_used, text, bytes);
        log_used += bytes;
    }
    pthread_mutex_unlock(&log_lock);
}

/* ---- a node on a thread ---- */

struct running {
    struct fb_node *node;
    pthread_t thread;
    enum fb_node_failure failure;
    char why[FB_NODE_WHY_BYTES];
    _Atomic bool is_ready;
    char socket_path[TEST_SERVER_PATH_BYTES], ssd_path[TEST_SERVER_PATH_BYTES];
};

static void on_ready(void *context)
{
    struct running *running = context;
    running->is_ready = true;
}

static void *run(void *context)
{
    struct running *running = context;
    running->failure = fb_node_run(running->node, running->why, sizeof(running->why));
    return NULL;
}

static struct fb_node_config config_of(struct running *running, const char *name)
{
    memset(running, 0, sizeof(*running));
    snprintf(running->socket_path, sizeof(running->socket_path), "%.90s/%s.s", directory, name);
    snprintf(running->ssd_path, sizeof(running->ssd_path), "%.400s/%s", directory, name);
    return (struct fb_node_config){
        .socket_path = running->socket_path,
        .listen = "127.0.0.1:0",
        .pool_bytes = FB_MIB(32),
        .ssd_path = running->ssd_path,
        .ssd_cap_bytes = FB_MIB(128),
        .log_level = FB_LOGGER_INFO,
        .log_sink = sink,
        .ready = on_ready,
        .ready_context = running,
    };
}

static void start(struct running *running, struct fb_node_config *config)
{
    char why[FB_NODE_WHY_BYTES] = "";
    assert_int_equal(fb_node_config_check(config, why, sizeof(why)), FB_NODE_OK);
    if (fb_node_make(config, &running->node, why, sizeof(why)) != FB_NODE_OK)
        fail_msg("%s", why);
    assert_int_equal(pthread_create(&running->thread, NULL, run, running), 0);
    for (unsigned ms = 0; !running->is_ready && ms < WAIT_MS; ms++)
        test_sleep_ms(1);
    assert_true(running->is_ready);
}

static void stop(struct running *running)
{
    fb_node_stop(running->node);
    pthread_join(running->thread, NULL);
    assert_int_equal(running->failure, FB_NODE_OK);
    fb_node_free(running->node);
}

static struct fb_client *connect_to(const struct running *running)
{
    char address[TEST_SERVER_PATH_BYTES + 8], why[512];
    snprintf(address, sizeof(address), "unix:%.500s", running->socket_path);
    struct fb_client_options options;
    fb_client_options_init(&options);
    options.address = address;
    options.ns.model = "node_test";
    struct fb_client *client;
    if (fb_client_open(&options, &client, why, sizeof(why)) != 0)
        fail_msg("%s", why);
    return client;
}

/* A snapshot that has everything that was answered before this call. */
static void look(struct running *running, struct fb_node_snapshot *out)
{
    test_sleep_ms(20);
    fb_node_snapshot_get(running->node, out);
}

/* ---- tests ---- */

static void test_made_and_freed_without_a_run(void **state)
{
    (void)state;
    struct running running;
    struct fb_node_config config = config_of(&running, "unused");
    config.admin = "127.0.0.1:0";
    char why[FB_NODE_WHY_BYTES];
    assert_int_equal(fb_node_config_check(&config, why, sizeof(why)), FB_NODE_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(fb_node_make(&config, &running.node, why, sizeof(why)), FB_NODE_OK);
        assert_true(strlen(fb_node_listen_address(running.node)) > strlen("127.0.0.1:"));
        assert_true(strlen(fb_node_admin_address(running.node)) > strlen("127.0.0.1:"));
        fb_node_free(running.node);
        assert_int_equal(access(running.socket_path, F_OK), -1);
    }
    fb_node_free(NULL);
}

static void expect_failure(struct fb_node_config *config, enum fb_node_failure expected,
                           const char *word)
{
    char why[FB_NODE_WHY_BYTES] = "";
    struct fb_node *node = NULL;
    enum fb_node_failure failure = fb_node_config_check(config, why, sizeof(why));
    if (failure == FB_NODE_OK)
        failure = fb_node_make(config, &node, why, sizeof(why));
    assert_int_equal(failure, expected);
    assert_null(node);
    if (strstr(why, word) == NULL)
        fail_msg("'%s' is not in: %s", word, why);
}

static void test_each_step_can_fail_and_leaves_nothing(void **state)
{
    (void)state;
    struct running running, other;
    struct fb_node_config config = config_of(&running, "one");
    start(&running, &config);

    struct fb_node_config next = config_of(&other, "one"); /* the same file: its lock is held */
    next.socket_path = NULL;
    expect_failure(&next, FB_NODE_CANNOT_START, "lock");
    next = config_of(&other, "two");
    next.ssd_path = "/nowhere/at/all";
    expect_failure(&next, FB_NODE_CANNOT_START, "/nowhere/at/all");
    next = config_of(&other, "two");
    next.socket_path = running.socket_path;
    expect_failure(&next, FB_NODE_CANNOT_START, "--socket");
    next = config_of(&other, "two");
    next.listen = fb_node_listen_address(running.node);
    expect_failure(&next, FB_NODE_CANNOT_START, "--listen");
    next = config_of(&other, "two");
    next.admin = fb_node_listen_address(running.node);
    expect_failure(&next, FB_NODE_CANNOT_START, "--admin");
    next = config_of(&other, "two");
    next.sessions_max = 2000;
    expect_failure(&next, FB_NODE_BAD_CONFIG, "--sessions");
    stop(&running);
}

static void test_two_nodes_in_one_process(void **state)
{
    (void)state;
    struct running one, two;
    struct fb_node_config config_one = config_of(&one, "one"), config_two = config_of(&two, "two");
    start(&one, &config_one);
    start(&two, &config_two);
    struct fb_client *to_one = connect_to(&one), *to_two = connect_to(&two);
    char got[8];
    uint64_t bytes;
    assert_int_equal(fb_put(to_one, "k", 1, "first", 5, 0, 0), FB_OK);
    assert_int_equal(fb_put(to_two, "k", 1, "second", 6, 0, 0), FB_OK);
    assert_int_equal(fb_get(to_one, "k", 1, got, sizeof(got), &bytes, 0), FB_OK);
    assert_true(bytes == 5 && memcmp(got, "first", 5) == 0);
    assert_int_equal(fb_get(to_two, "k", 1, got, sizeof(got), &bytes, 0), FB_OK);
    assert_true(bytes == 6 && memcmp(got, "second", 6) == 0);
    fb_client_close(to_one);
    fb_client_close(to_two);
    stop(&one);
    stop(&two);
}

static uint64_t sum(const uint64_t *counts, int count)
{
    uint64_t total = 0;
    for (int i = 0; i < count; i++)
        total += counts[i];
    return total;
}

static void expect_sums(const struct fb_shard_stats *stats)
{
    assert_true(stats->gets == stats->get_hits + sum(stats->get_misses, FB_REASON_COUNT));
    assert_true(stats->get_hits == stats->get_hits_dram + stats->get_hits_ssd);
    assert_true(stats->lookups == stats->lookup_hits + sum(stats->lookup_misses, FB_REASON_COUNT));
    assert_true(stats->puts == sum(stats->put_results, FB_RESULT_COUNT));
    assert_true(stats->pool_bytes == stats->free_bytes + stats->clean_bytes + stats->dirty_bytes +
                                         stats->reserved_bytes + stats->quarantine_bytes +
                                         stats->pinned_bytes + stats->staging_bytes +
                                         stats->leased_bytes);
}

static void test_figures_add_up(void **state)
{
    (void)state;
    struct running running;
    struct fb_node_config config = config_of(&running, "sums");
    start(&running, &config);
    struct fb_client *client = connect_to(&running);
    static uint8_t value[300000], got[300000];
    /* More than the pool, so that some come from the device. */
    for (int i = 0; i < 200; i++) {
        char key[16];
        int length = snprintf(key, sizeof(key), "key-%d", i);
        memset(value, i, sizeof(value));
        assert_int_equal(fb_put(client, key, (size_t)length, value, sizeof(value), 0, 0), FB_OK);
        assert_int_equal(fb_put(client, key, (size_t)length, value, sizeof(value), 0, 0),
                         FB_EXISTS);
    }
    unsigned hits = 0;
    for (int i = 0; i < 250; i++) {
        char key[16];
        int length = snprintf(key, sizeof(key), "key-%d", i);
        uint64_t bytes;
        int result = fb_get(client, key, (size_t)length, got, sizeof(got), &bytes, 0);
        assert_int_equal(result, i < 200 ? FB_OK : FB_MISS);
        hits += result == FB_OK;
        memset(value, i, sizeof(value));
        if (result == FB_OK)
            assert_memory_equal(got, value, sizeof(value));
    }
    struct fb_node_snapshot snapshot;
    look(&running, &snapshot);
    expect_sums(&snapshot.shard);
    assert_int_equal(snapshot.shard.gets, 250);
    assert_int_equal(snapshot.shard.get_hits, hits);
    assert_int_equal(snapshot.shard.get_misses[FB_REASON_NO_RECORD], 50);
    assert_int_equal(snapshot.shard.puts, 400);
    assert_int_equal(snapshot.shard.put_results[fb_result_index(FB_EXISTS)], 200);
    assert_true(snapshot.shard.get_hits_ssd > 0);
    assert_true(snapshot.io.read_bytes >= snapshot.shard.get_hits_ssd * sizeof(value));
    assert_int_equal(snapshot.node.connections, 1);
    fb_client_close(client);
    stop(&running);
    /* The next start finds them all. */
    config = config_of(&running, "sums");
    start(&running, &config);
    client = connect_to(&running);
    for (int i = 0; i < 200; i++) {
        char key[16];
        int length = snprintf(key, sizeof(key), "key-%d", i);
        assert_int_equal(fb_get(client, key, (size_t)length, got, sizeof(got), NULL, 0), FB_OK);
    }
    fb_client_close(client);
    stop(&running);
}

/* ---- texts ---- */

static void test_addresses(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool good, loopback;
    } cases[] = {
        {"127.0.0.1:7700", true, true},   {"127.255.0.9:0", true, true},
        {"localhost:1", true, true},      {"[::1]:7700", true, true},
        {"0.0.0.0:7700", true, false},    {"[::]:1", true, false},
        {"10.0.0.1:65535", true, false},  {"10.0.0.1:65536", false, false},
        {"10.0.0.1", false, false},       {":80", false, false},
        {"10.0.0.1:", false, false},      {"10.0.0.1:+5", false, false},
        {"example.org:80", false, false}, {"", false, false},
        {"[::1:80", false, false},        {"1.2.3.4:5 ", false, false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct sockaddr_storage storage;
        uint32_t bytes;
        bool loopback = false;
        const char *wrong = NULL;
        int rc = fb_node_address_parse(cases[i].text, &storage, &bytes, &loopback, &wrong);
        assert_int_equal(rc, cases[i].good ? 0 : -EINVAL);
        assert_true(cases[i].good || wrong != NULL);
        if (cases[i].good)
            assert_int_equal(loopback, cases[i].loopback);
    }
}

static void test_json_escapes_and_cuts(void **state)
{
    (void)state;
    char room[64];
    struct fb_node_text text = {.at = room, .room = sizeof(room)};
    fb_node_print_json(&text, "a\"b\\c\n\x80");
    assert_string_equal(room, "\"a\\\"b\\\\c\\u000a\\u0080\"");
    assert_false(text.is_cut);
    fb_node_print(&text, "%64s", "x");
    assert_true(text.is_cut);
    assert_string_equal(room, "\"a\\\"b\\\\c\\u000a\\u0080\""); /* left out whole */
}

static unsigned health(int ready, bool draining, enum fb_tier_state tier, uint64_t age_ns,
                       char *out, size_t room)
{
    struct fb_node_snapshot snapshot = {.ready = ready, .draining = draining, .tier = tier};
    struct fb_node_text text = {.at = out, .room = room};
    return fb_node_health(&snapshot, age_ns, &text);
}

static void test_health(void **state)
{
    (void)state;
    char page[512];
    assert_int_equal(health(1, false, FB_TIER_ON, 0, page, sizeof(page)), 200);
    assert_non_null(strstr(page, "\"ok\":true"));
    assert_int_equal(health(1, false, FB_TIER_OFF, 0, page, sizeof(page)), 200);
    assert_int_equal(health(1, false, FB_TIER_FULL, 0, page, sizeof(page)), 200);
    assert_int_equal(health(0, false, FB_TIER_RECOVERING, 0, page, sizeof(page)), 503);
    assert_non_null(strstr(page, "recovery"));
    assert_int_equal(health(1, true, FB_TIER_ON, 0, page, sizeof(page)), 503);
    assert_int_equal(health(1, false, FB_TIER_FENCED, 0, page, sizeof(page)), 503);
    assert_non_null(strstr(page, "device"));
    assert_int_equal(health(1, false, FB_TIER_ON, FB_NODE_STUCK_NS + 1, page, sizeof(page)), 503);
    assert_non_null(strstr(page, "stuck"));
}

/* A page of the node's admin address; it must answer within a second. Returns the HTTP status. */
static int fetch(const struct running *running, const char *page, char *out, size_t room)
{
    const char *port = strrchr(fb_node_admin_address(running->node), ':');
    struct test_server server = {.admin_port = (uint16_t)strtoul(port + 1, NULL, 10)};
    return test_server_fetch(&server, page, out, room, 1000);
}

static pthread_mutex_t stalled = PTHREAD_MUTEX_INITIALIZER;

/* On the data thread: waits for as long as the test has the lock. */
static void stall(void *context)
{
    on_ready(context);
    pthread_mutex_lock(&stalled);
    pthread_mutex_unlock(&stalled);
}

/* The data thread hangs in a call that does not return: /health and /metrics are answered. */
static void test_a_stalled_data_thread(void **state)
{
    (void)state;
    static char page[128 * 1024];
    struct running running;
    struct fb_node_config config = config_of(&running, "stalled");
    config.admin = "127.0.0.1:0";
    config.ready = stall;
    pthread_mutex_lock(&stalled);
    start(&running, &config);
    assert_int_equal(fetch(&running, "/health", page, sizeof(page)), 200); /* not for long enough */
    uint64_t until = test_now_ns() + FB_NODE_STUCK_NS + FB_SEC_NS;
    int status;
    while ((status = fetch(&running, "/health", page, sizeof(page))) == 200 &&
           test_now_ns() < until)
        test_sleep_ms(20);
    assert_int_equal(status, 503);
    assert_non_null(strstr(page, "stuck"));
    assert_int_equal(fetch(&running, "/metrics", page, sizeof(page)), 200);
    const char *age = strstr(page, "\nforebay_turn_age_seconds ");
    assert_non_null(age);
    assert_true(strtod(age + strlen("\nforebay_turn_age_seconds "), NULL) > 5);
    pthread_mutex_unlock(&stalled);
    until = test_now_ns() + WAIT_MS * FB_MS_NS;
    while (fetch(&running, "/health", page, sizeof(page)) != 200 && test_now_ns() < until)
        test_sleep_ms(20);
    assert_non_null(strstr(page, "\"ok\":true"));
    stop(&running);
}

static void test_memory_limit(void **state)
{
    (void)state;
    const char *from = NULL;
    uint64_t limit = fb_node_memory_limit(&from);
    assert_non_null(from);
    assert_true(limit > FB_MIB(64));
}

static int make_directory(void **state)
{
    (void)state;
    return test_directory_make("node", directory, sizeof(directory));
}

static int remove_directory(void **state)
{
    (void)state;
    test_directory_remove(directory);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_made_and_freed_without_a_run),
        cmocka_unit_test(test_each_step_can_fail_and_leaves_nothing),
        cmocka_unit_test(test_two_nodes_in_one_process),
        cmocka_unit_test(test_figures_add_up),
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_json_escapes_and_cuts),
        cmocka_unit_test(test_health),
        cmocka_unit_test(test_memory_limit),
        cmocka_unit_test(test_a_stalled_data_thread),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
