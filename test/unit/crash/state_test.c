/*
 * The checker of fb-crash, checked: which bytes it lets pass after which history, and which not.
 * Covers the judgement of one reader against one writer, and the order of the stores by looking at
 * every state in between. Cannot cover what real processes do at once; fb-crash does.
 */
#include "test/lib/cm.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test/crash/state.c"

#define NS    1
#define INDEX 7
#define EPOCH 3

struct fixture {
    struct crash_state *state;
    struct crash_key *key;
    char path[64];
};

static struct fixture fx;

static int begin(void **unused)
{
    (void)unused;
    snprintf(fx.path, sizeof(fx.path), "/tmp/state-test-XXXXXX");
    int fd = mkstemp(fx.path);
    assert_true(fd >= 0);
    close(fd);
    fx.state = crash_state_map(fx.path, 42);
    assert_non_null(fx.state);
    fx.key = &fx.state->ns[NS].own[INDEX];
    return 0;
}

static int end(void **unused)
{
    (void)unused;
    crash_state_unmap(fx.state);
    unlink(fx.path);
    return 0;
}

static int put_begin(uint32_t content)
{
    int slot = crash_doubt(fx.key, (struct crash_word){content, EPOCH, CRASH_DOUBT_PUT});
    assert_true(slot >= 0);
    return slot;
}

static void put_end(int slot, uint32_t content, uint8_t flags)
{
    crash_acknowledge(fx.key, slot, (struct crash_word){content, EPOCH, flags});
}

static struct crash_view look(void)
{
    struct crash_view view;
    crash_look(fx.key, &view);
    return view;
}

/* A hit with the bytes of a content, `spoil` of them wrong, read under `epoch`. */
static enum crash_verdict hit(const struct crash_view *view, uint32_t content, uint16_t epoch,
                              bool spoil)
{
    static unsigned char bytes[CRASH_VALUE_BYTES];
    uint32_t n = crash_value_bytes(fx.state, NS, false, INDEX, content), found_content;
    crash_value_fill(fx.state, NS, false, INDEX, content, bytes, n);
    if (spoil)
        bytes[n / 2] ^= 0x10;
    struct crash_found found =
        {.ns = NS, .index = INDEX, .epoch = epoch, .value_bytes = n, .bytes = n, .data = bytes};
    return crash_judge(fx.state, view, &found, &found_content);
}

static void newest_is_right(void **unused)
{
    (void)unused;
    put_end(put_begin(1), 1, 0);
    put_end(put_begin(2), 2, CRASH_PERSISTED);
    struct crash_view view = look();
    assert_int_equal(hit(&view, 2, EPOCH, false), CRASH_RIGHT);
    assert_int_equal(hit(&view, 1, EPOCH, false), CRASH_OLDER);
    assert_int_equal(hit(&view, 2, EPOCH, true), CRASH_WRONG_BYTES);
    assert_int_equal(hit(&view, 2, EPOCH + 1, false), CRASH_OLDER);
}

static void doubt_allows_both(void **unused)
{
    (void)unused;
    put_end(put_begin(1), 1, CRASH_PERSISTED);
    put_begin(2);
    struct crash_view view = look();
    assert_true(crash_view_in_doubt(&view));
    assert_int_equal(hit(&view, 1, EPOCH, false), CRASH_RIGHT);
    assert_int_equal(hit(&view, 2, EPOCH, false), CRASH_RIGHT);
    assert_int_equal(hit(&view, 2, EPOCH + 1, false), CRASH_OLDER);
}

static void removed_stays_removed(void **unused)
{
    (void)unused;
    put_end(put_begin(1), 1, 0);
    int slot = crash_doubt(fx.key, (struct crash_word){0, EPOCH, CRASH_DOUBT_REMOVE});
    struct crash_view during = look();
    assert_int_equal(hit(&during, 1, EPOCH, false), CRASH_RIGHT);
    crash_acknowledge(fx.key, slot, (struct crash_word){1, EPOCH, CRASH_GONE});
    struct crash_view after = look();
    assert_int_equal(hit(&after, 1, EPOCH, false), CRASH_REMOVED_BACK);
}

static void later_put_is_allowed_to_an_earlier_reader(void **unused)
{
    (void)unused;
    put_end(put_begin(1), 1, 0);
    struct crash_view view = look();
    put_end(put_begin(2), 2, 0);
    assert_int_equal(hit(&view, 2, EPOCH, false), CRASH_RIGHT);
    assert_int_equal(hit(&view, 1, EPOCH, false), CRASH_RIGHT);
}

/* A reader that looks between any two stores of a put must let the new content pass. */
static void no_gap_in_a_put(void **unused)
{
    (void)unused;
    put_end(put_begin(1), 1, 0);
    atomic_store(&fx.key->doubts[0], crash_pack((struct crash_word){2, EPOCH, CRASH_DOUBT_PUT}));
    struct crash_view one = look();
    atomic_store(&fx.key->next, 2);
    struct crash_view two = look();
    atomic_store(&fx.key->acked, crash_pack((struct crash_word){2, EPOCH, 0}));
    struct crash_view three = look();
    atomic_store(&fx.key->doubts[0], 0);
    struct crash_view four = look();
    assert_int_equal(hit(&one, 2, EPOCH, false), CRASH_RIGHT);
    assert_int_equal(hit(&two, 2, EPOCH, false), CRASH_RIGHT);
    assert_int_equal(hit(&three, 2, EPOCH, false), CRASH_RIGHT);
    assert_int_equal(hit(&four, 2, EPOCH, false), CRASH_RIGHT);
    assert_int_equal(hit(&four, 1, EPOCH, false), CRASH_OLDER);
}

static void doubts_are_bounded(void **unused)
{
    (void)unused;
    for (uint32_t i = 1; i <= CRASH_DOUBTS; i++)
        put_begin(i);
    assert_int_equal(crash_doubt(fx.key, (struct crash_word){9, EPOCH, CRASH_DOUBT_PUT}), -1);
    assert_int_equal(atomic_load(&fx.key->next), CRASH_DOUBTS);
}

static void shared_keys_know_their_epoch(void **unused)
{
    (void)unused;
    static unsigned char bytes[CRASH_VALUE_BYTES];
    struct crash_shared_key *key = &fx.state->ns[NS].shared[INDEX];
    uint32_t n = crash_value_bytes(fx.state, NS, true, INDEX, 1);
    crash_value_fill(fx.state, NS, true, INDEX, 1, bytes, n);
    struct crash_found found =
        {.ns = NS, .index = INDEX, .epoch = EPOCH, .value_bytes = n, .bytes = n, .data = bytes};
    assert_false(crash_judge_shared(fx.state, &found, "test"));
    atomic_store(&key->begun, EPOCH + 1);
    assert_true(crash_judge_shared(fx.state, &found, "test"));
    bytes[n - 1] ^= 1;
    assert_false(crash_judge_shared(fx.state, &found, "test"));
    assert_int_equal(atomic_load(&fx.state->failures[CRASH_FAIL_WRONG]), 1);
    assert_int_equal(atomic_load(&fx.state->failures[CRASH_FAIL_OLDER]), 1);
}

static void keys_are_apart(void **unused)
{
    (void)unused;
    static unsigned char keys[CRASH_OWN_KEYS + CRASH_SHARED_KEYS][CRASH_KEY_BYTES];
    static size_t lengths[CRASH_OWN_KEYS + CRASH_SHARED_KEYS];
    unsigned n = 0;
    bool longest = false, shortest = false;
    for (unsigned i = 0; i < CRASH_OWN_KEYS; i++, n++)
        lengths[n] = crash_key_name(false, i, keys[n]);
    for (unsigned i = 0; i < CRASH_SHARED_KEYS; i++, n++)
        lengths[n] = crash_key_name(true, i, keys[n]);
    for (unsigned i = 0; i < n; i++) {
        longest = longest || lengths[i] == CRASH_KEY_BYTES;
        shortest = shortest || lengths[i] == 1;
        for (unsigned j = 0; j < i; j++)
            assert_false(lengths[i] == lengths[j] && memcmp(keys[i], keys[j], lengths[i]) == 0);
    }
    assert_true(longest && shortest);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(newest_is_right, begin, end),
        cmocka_unit_test_setup_teardown(doubt_allows_both, begin, end),
        cmocka_unit_test_setup_teardown(removed_stays_removed, begin, end),
        cmocka_unit_test_setup_teardown(later_put_is_allowed_to_an_earlier_reader, begin, end),
        cmocka_unit_test_setup_teardown(no_gap_in_a_put, begin, end),
        cmocka_unit_test_setup_teardown(doubts_are_bounded, begin, end),
        cmocka_unit_test_setup_teardown(shared_keys_know_their_epoch, begin, end),
        cmocka_unit_test_setup_teardown(keys_are_apart, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
