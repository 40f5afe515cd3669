/*
 * log_basic_test.c - the log on a healthy simulated device: formatting, puts, reads, removes,
 * order, batches and flushes, restart. What a device does wrong is in log_fault_test.c and
 * log_crash_test.c.
 */
#include "test/lib/cm.h"

#include "base/result.h"
#include "test/lib/log_rig.h"

static struct rig *open_started(struct rig_options options)
{
    struct rig *rig = rig_open(&options);
    assert_int_equal(rig_start(rig, false), FB_OK);
    rig_run(rig, FB_SEC_NS); /* the file gets its first segments */
    return rig;
}

static void an_empty_device_is_formatted(void **state)
{
    (void)state;
    struct rig *rig = open_started((struct rig_options){.seed = 1});
    assert_int_equal(fb_log_state(rig->log), FB_TIER_ON);
    assert_int_equal(fb_log_boot(rig->log), 1);
    assert_string_equal(fb_log_start_error(rig->log), "");
    uint32_t len;
    (void)fb_log_names(rig->log, &len);
    assert_int_equal(len, 0);
    rig_run(rig, FB_SEC_NS);
    assert_true(fb_log_idle(rig->log));
    assert_int_equal(rig_start(rig, false), FB_OK);
    assert_int_equal(fb_log_boot(rig->log), 2);
    rig_close(rig);
}

static void what_is_put_is_read(void **state)
{
    (void)state;
    struct rig *rig = open_started((struct rig_options){.seed = 2});
    for (uint32_t key = 0; key < 40; key++)
        assert_non_null(rig_put(rig, key, 1 + key * 1600, false));
    rig_run(rig, FB_SEC_NS);
    for (uint32_t key = 0; key < 40; key++) {
        assert_true(rig->promise[key].durable != 0);
        assert_int_equal(rig_get(rig, key), FB_OK);
    }
    assert_int_equal(rig_get(rig, 50), FB_MISS);
    struct fb_log_stats stats = rig_stats(rig);
    assert_int_equal(stats.items_durable, 40);
    assert_int_equal(stats.items_failed, 0);
    assert_true(stats.flushes < 40);
    rig_check(rig);
    rig_close(rig);
}

static void a_restart_finds_everything(void **state)
{
    (void)state;
    struct rig *rig = open_started((struct rig_options){.seed = 3});
    for (uint32_t key = 0; key < 40; key++)
        (void)rig_put(rig, key, 1 + key * 1000, false);
    rig_run(rig, FB_SEC_NS);
    for (uint32_t key = 0; key < 40; key += 3)
        assert_non_null(rig_remove(rig, key));
    rig_run(rig, FB_SEC_NS);
    for (unsigned round = 0; round < 3; round++) {
        assert_int_equal(rig_start(rig, false), FB_OK);
        for (uint32_t key = 0; key < 40; key++)
            assert_int_equal(rig_get(rig, key), key % 3 == 0 ? FB_MISS : FB_OK);
        rig_check(rig);
        struct fb_log_stats stats = rig_stats(rig);
        assert_int_equal(stats.rot_descriptors, 0);
        assert_int_equal(stats.torn_tail, 0);
    }
    rig_close(rig);
}

static void a_drained_log_is_sealed(void **state)
{
    (void)state;
    struct rig *rig = open_started((struct rig_options){.seed = 4, .linger_ns = 10 * FB_SEC_NS});
    struct rig_slot *placed = rig_put(rig, 1, 5000, false);
    rig_run(rig, FB_MS_NS);
    assert_false(placed->is_done);
    fb_log_drain(rig->log, rig->now_ns);
    assert_false(fb_log_idle(rig->log));
    rig_run(rig, FB_SEC_NS);
    assert_true(fb_log_idle(rig->log));
    assert_int_equal(placed->result, FB_OK);
    assert_int_equal(rig_stats(rig).segments_sealed, 1);
    struct rig_slot *late = rig_put(rig, 2, 5000, false);
    assert_int_equal(late->result, FB_SHUTTING_DOWN);
    assert_int_equal(rig_start(rig, false), FB_OK);
    assert_int_equal(rig_get(rig, 1), FB_OK);
    assert_int_equal(rig->index[2].generation, 0);
    rig_close(rig);
}

static void lingering_gathers_and_urgency_does_not_wait(void **state)
{
    (void)state;
    struct rig *rig = open_started((struct rig_options){.seed = 5, .linger_ns = 50 * FB_MS_NS});
    for (uint32_t key = 0; key < 8; key++)
        (void)rig_put(rig, key * 2, 4096, false);
    rig_run(rig, 20 * FB_MS_NS);
    assert_int_equal(rig->durable_calls, 0);
    rig_run(rig, 40 * FB_MS_NS);
    assert_int_equal(rig->durable_calls, 8);
    assert_int_equal(rig_stats(rig).batches, 1);
    struct rig_slot *urgent = rig_put(rig, 20, 4096, true);
    rig_run(rig, 5 * FB_MS_NS);
    assert_true(urgent->is_done);
    rig_close(rig);
}

static void the_unplaced_can_be_cancelled(void **state)
{
    (void)state;
    struct rig_options options = {.seed = 6};
    struct rig *rig = rig_open(&options);
    assert_int_equal(rig_start(rig, false), FB_OK);
    struct rig_slot *slot = rig_put(rig, 1, 4096, false);
    assert_true(fb_log_cancel(rig->log, &slot->item)); /* no segment is open yet */
    rig_run(rig, FB_SEC_NS);
    assert_false(slot->is_done);
    fb_log_append(rig->log, rig->now_ns, &slot->item);
    rig_submit(rig);
    assert_false(fb_log_cancel(rig->log, &slot->item));
    rig_run(rig, FB_SEC_NS);
    assert_true(slot->is_done);
    rig_close(rig);
}

static int names_result;
static void names_done(void *ctx, struct fb_log_names *names, int result)
{
    (void)ctx;
    (void)names;
    names_result = result;
}

static void names_are_replaced_as_a_whole(void **state)
{
    (void)state;
    struct rig *rig = open_started((struct rig_options){.seed = 7});
    static uint8_t table[FB_LOG_NAMES_BYTES_MAX];
    for (uint32_t round = 1; round < 6; round++) {
        uint32_t len = round * 50000;
        for (uint32_t i = 0; i < len; i++)
            table[i] = (uint8_t)(i * round);
        struct fb_log_names names = {.bytes = table, .len = len, .done = names_done};
        names_result = 1;
        fb_log_write_names(rig->log, rig->now_ns, &names);
        assert_int_equal(names_result, 1);
        rig_run(rig, FB_SEC_NS);
        assert_int_equal(names_result, FB_OK);
        assert_int_equal(rig_crash(rig, FB_SIM_CUT_NONE, round), FB_OK);
        uint32_t found;
        const void *bytes = fb_log_names(rig->log, &found);
        assert_int_equal(found, len);
        assert_memory_equal(bytes, table, len);
    }
    rig_close(rig);
}

static bool keep_record(void *ctx, const struct fb_log_record *record,
                        const struct fb_log_addr *addr)
{
    uint32_t *seen = ctx;
    assert_true(addr->incarnation != 0 && record->key_bytes > 4);
    assert_memory_equal(record->key, "key-", 4);
    seen[record->digest.hi - 1]++;
    seen[RIG_KEYS]++;
    return seen[RIG_KEYS] % 7 != 0; /* stops now and then, and goes on there */
}

static int scan_result;
static void scan_done(void *ctx, struct fb_log_scan *scan, int result)
{
    (void)ctx;
    (void)scan;
    scan_result = result;
}

static void a_scan_gives_all_keys(void **state)
{
    (void)state;
    struct rig *rig = open_started((struct rig_options){.seed = 8});
    for (uint32_t key = 0; key < 45; key++) {
        while (rig_put(rig, key, 30000, false) == NULL)
            rig_run(rig, 10 * FB_MS_NS);
    }
    rig_run(rig, FB_SEC_NS);
    uint32_t seen[RIG_KEYS + 1] = {0};
    struct fb_log_scan scan = {.record = keep_record, .done = scan_done, .ctx = seen};
    uint32_t turns = 0;
    while (scan.segment != UINT32_MAX) {
        scan_result = 1;
        fb_log_scan(rig->log, rig->now_ns, &scan);
        rig_run(rig, FB_SEC_NS);
        assert_int_equal(scan_result, FB_OK);
        assert_true(++turns < 200);
    }
    for (uint32_t key = 0; key < 45; key++)
        assert_true(seen[key] >= 1);
    for (uint32_t key = 45; key < RIG_KEYS; key++)
        assert_int_equal(seen[key], 0);
    rig_close(rig);
}

static void reads_go_at_depth_and_before_writes(void **state)
{
    (void)state;
    struct rig *rig = open_started((struct rig_options){.seed = 9});
    for (uint32_t key = 0; key < 30; key++)
        (void)rig_put(rig, key, 60000, false);
    rig_run(rig, FB_SEC_NS);
    struct rig_slot *reads[30];
    for (uint32_t key = 0; key < 30; key++)
        reads[key] = rig_get_begin(rig, key);
    rig_run(rig, FB_SEC_NS);
    for (uint32_t key = 0; key < 30; key++) {
        assert_true(reads[key]->is_done);
        assert_int_equal(reads[key]->result, FB_OK);
        assert_true(rig_is_exact(rig, reads[key]));
    }
    assert_int_equal(rig_stats(rig).reads_in_flight_max, 16);
    rig_close(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_device_is_formatted),
        cmocka_unit_test(what_is_put_is_read),
        cmocka_unit_test(a_restart_finds_everything),
        cmocka_unit_test(a_drained_log_is_sealed),
        cmocka_unit_test(lingering_gathers_and_urgency_does_not_wait),
        cmocka_unit_test(the_unplaced_can_be_cancelled),
        cmocka_unit_test(names_are_replaced_as_a_whole),
        cmocka_unit_test(a_scan_gives_all_keys),
        cmocka_unit_test(reads_go_at_depth_and_before_writes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
