/*
 * A real forebayd on a device that fails: by a script of faults in its I/O layer (test build).
 * Covers: a device that fails for good is fenced, the node goes on with memory and says so; a disk
 * that is full for a while heals without restart; a drain that cannot persist says what is lost;
 * the same values again after a restart; and a script that is no script.
 *
 * Cannot show: what each single failure does at each place (the sweep and the simulator do).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/limits.h"
#include "forebay/forebay.h"
#include "test/lib/server.h"

#define VALUE_BYTES FB_KIB(100)
#define WAIT_MS     10000

static struct test_server server;
static char directory[TEST_SERVER_PATH_BYTES], program[TEST_SERVER_PATH_BYTES];
static uint8_t value[VALUE_BYTES], got[VALUE_BYTES];

static int prepare(void **state)
{
    (void)state;
    char self[TEST_SERVER_PATH_BYTES];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    assert_true(n > 0);
    self[n] = '\0';
    /* build/X/test/e2e/device_test -> build/X/forebayd */
    for (int i = 0; i < 3; i++)
        *strrchr(self, '/') = '\0';
    snprintf(program, sizeof(program), "%.400s/forebayd", self);
    return test_directory_make("device", directory, sizeof(directory));
}

static int finish(void **state)
{
    (void)state;
    test_directory_remove(directory);
    return 0;
}

static int kill_server(void **state)
{
    (void)state;
    test_server_kill(&server);
    unlink(server.ssd_path);
    return 0;
}

static struct test_server_options options_of(const char *faults, const char *persist)
{
    static char fault[256];
    struct test_server_options options = {.program = program,
                                          .directory = directory,
                                          .admin = true,
                                          .pool_bytes = FB_MIB(64),
                                          .ssd_cap_bytes = FB_MIB(512),
                                          .persist = persist};
    if (faults != NULL) {
        snprintf(fault, sizeof(fault), "--io-fault=%s", faults);
        options.extra[0] = fault;
    }
    return options;
}

static void start(const char *faults, const char *persist)
{
    struct test_server_options options = options_of(faults, persist);
    if (test_server_start(&server, &options) != 0)
        fail_msg("%s", server.error);
}

static struct fb_client *connect_to_server(void)
{
    struct fb_client_options options;
    fb_client_options_init(&options);
    options.address = server.address;
    options.ns.model = "device_test";
    struct fb_client *client;
    char why[512];
    if (fb_client_open(&options, &client, why, sizeof(why)) != 0)
        fail_msg("%s", why);
    return client;
}

static int put(struct fb_client *client, int number)
{
    char key[32];
    int length = snprintf(key, sizeof(key), "key-%d", number);
    memset(value, number, sizeof(value));
    return fb_put(client, key, (size_t)length, value, sizeof(value), 0, 5000);
}

static int get(struct fb_client *client, int number)
{
    char key[32];
    int length = snprintf(key, sizeof(key), "key-%d", number);
    int result = fb_get(client, key, (size_t)length, got, sizeof(got), NULL, 5000);
    memset(value, number, sizeof(value));
    if (result == FB_OK)
        assert_memory_equal(got, value, sizeof(value));
    return result;
}

/* Waits until the tier is in a state; false if it does not come. */
static bool tier_becomes(const char *state)
{
    char series[64];
    snprintf(series, sizeof(series), "forebay_tier_state{state=\"%s\"}", state);
    uint64_t until = test_now_ns() + WAIT_MS * FB_MS_NS;
    uint64_t is = 0;
    while (test_now_ns() < until && is == 0) {
        assert_true(test_server_metric(&server, series, &is));
        test_sleep_ms(5);
    }
    return is != 0;
}

static int health(char *page, size_t room)
{
    return test_server_fetch(&server, "/health", page, room, 5000);
}

static void test_a_device_that_fails_is_fenced(void **state)
{
    (void)state;
    char page[1024], line[512];
    start("write:20+:EIO", NULL);
    struct fb_client *client = connect_to_server();
    assert_int_equal(health(page, sizeof(page)), 200);
    /* More than the pool: what cannot be written is dropped once there is no other way. */
    for (int i = 0; i < 1000; i++)
        assert_int_equal(put(client, i), FB_OK);
    assert_true(tier_becomes("fenced"));
    assert_int_equal(health(page, sizeof(page)), 503);
    assert_non_null(strstr(page, "device"));
    /* The node goes on: the newest values are there, the oldest are misses. */
    for (int i = 900; i < 1000; i++)
        assert_int_equal(get(client, i), FB_OK);
    /* Which of them reached the device before it failed depends on how they were batched. */
    int missed = 0;
    for (int i = 0; i < 900; i++)
        missed += get(client, i) == FB_MISS;
    assert_true(missed > 0);
    for (int i = 1000; i < 1100; i++)
        assert_int_equal(put(client, i), FB_OK);
    fb_client_close(client);
    assert_int_equal(test_server_stop(&server, 20000), 0);
    test_server_line(&server, "drain_ended", line, sizeof(line));
    assert_non_null(strstr(line, "drain_ended"));
    assert_null(strstr(line, "left_in_memory_only=0B"));
}

static void test_through_is_not_answered_by_a_device_that_fails(void **state)
{
    (void)state;
    start("flush:6+:EIO", "through");
    struct fb_client *client = connect_to_server();
    int stored = 0;
    int failed = 0;
    for (int i = 0; i < 20; i++) {
        int result = put(client, i);
        assert_true(result == FB_OK || result == FB_IO || result == FB_NOT_PERSISTED);
        stored += result == FB_OK;
        failed += result != FB_OK;
    }
    assert_true(failed > 0);
    fb_client_close(client);
    /* What was acknowledged is there after a kill; it is the first ones. */
    test_server_kill(&server);
    start(NULL, "through");
    client = connect_to_server();
    for (int i = 0; i < stored; i++)
        assert_int_equal(get(client, i), FB_OK);
    fb_client_close(client);
}

static void test_a_full_disk_heals(void **state)
{
    (void)state;
    char page[1024];
    start("grow:3:ENOSPC,grow:4:ENOSPC,grow:5:ENOSPC,grow:6:ENOSPC", NULL);
    struct fb_client *client = connect_to_server();
    for (int i = 0; i < 600; i++)
        assert_int_equal(put(client, i), FB_OK);
    assert_true(tier_becomes("on"));
    uint64_t refused;
    assert_true(test_server_metric(&server, "forebay_log_no_space_total", &refused));
    assert_true(refused >= 4);
    assert_int_equal(health(page, sizeof(page)), 200);
    for (int i = 600; i < 1200; i++)
        assert_int_equal(put(client, i), FB_OK);
    for (int i = 600; i < 1200; i++)
        assert_int_equal(get(client, i), FB_OK);
    fb_client_close(client);
    assert_int_equal(test_server_stop(&server, 20000), 0);
}

static void test_a_script_that_is_none(void **state)
{
    (void)state;
    struct test_server_options options = options_of("write:sometimes:EIO", NULL);
    assert_int_equal(test_server_start(&server, &options), -1);
    assert_non_null(strstr(server.error, "sometimes"));
}

#define TEST(name) cmocka_unit_test_teardown(name, kill_server)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_device_that_fails_is_fenced),
        TEST(test_through_is_not_answered_by_a_device_that_fails),
        TEST(test_a_full_disk_heals),
        TEST(test_a_script_that_is_none),
    };
    return cmocka_run_group_tests(tests, prepare, finish);
}
