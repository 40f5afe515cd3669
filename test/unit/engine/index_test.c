/*
 * Covers the small tables of a shard: index, lists of parts, key texts, history, claims; each with
 * random work against a plain model. What they mean together is covered by the shard's tests.
 */
#include <stdlib.h>
#include <string.h>

#include "base/prng.h"
#include "engine/arena.h"
#include "engine/claim.h"
#include "engine/evict.h"
#include "engine/history.h"
#include "engine/index.h"
#include "engine/keys.h"
#include "test/lib/cm.h"

#define ENTRIES  128
#define GRANULES 256
#define RECORDS  32
#define KEYS     64
#define STEPS    20000

static void *take_memory(struct fb_region *region, size_t bytes)
{
    void *memory = malloc(bytes);
    assert_non_null(memory);
    fb_region_init(region, memory, bytes);
    return memory;
}

static struct fb_digest digest_of(uint64_t key)
{
    /* All in a few buckets: chains are what is to be tested. */
    return (struct fb_digest){.hi = (key % 3) << 62, .lo = key};
}

static void *make_index(struct fb_index *index)
{
    struct fb_region region;
    fb_region_init_counting(&region);
    fb_index_init(index, ENTRIES, &region);
    void *memory = take_memory(&region, region.used_bytes);
    fb_index_init(index, ENTRIES, &region);
    return memory;
}

static void test_an_entry_takes_96_bytes(void **state)
{
    (void)state;
    assert_true(FB_ENTRY_BYTES_ALL_IN <= 96);
    struct fb_region region;
    struct fb_index index;
    fb_region_init_counting(&region);
    fb_index_init(&index, 1000000, &region);
    assert_true(region.used_bytes <= 96 * (size_t)1000000 + 2 * FB_PAGE_BYTES);
}

static void test_index_against_a_model(void **state)
{
    (void)state;
    struct fb_index index;
    void *memory = make_index(&index);
    uint32_t at[KEYS];
    memset(at, 0xff, sizeof(at));
    struct fb_prng prng;
    fb_prng_seed(&prng, 5);
    for (unsigned step = 0; step < STEPS; step++) {
        unsigned key = (unsigned)fb_prng_below(&prng, KEYS);
        struct fb_entry *found = fb_index_find(&index, digest_of(key));
        if (at[key] == FB_ENTRY_NONE) {
            assert_null(found);
            struct fb_entry *head = fb_index_alloc(&index, FB_ENTRY_LIVE);
            head->digest = digest_of(key);
            fb_entry_set(head, FB_ENTRY_HEAD);
            fb_index_link(&index, head);
            at[key] = fb_index_number(&index, head);
        } else {
            assert_ptr_equal(found, fb_index_at(&index, at[key]));
            fb_index_unlink(&index, found);
            fb_index_free(&index, found);
            at[key] = FB_ENTRY_NONE;
        }
    }
    uint32_t used = 0;
    for (unsigned key = 0; key < KEYS; key++)
        used += at[key] != FB_ENTRY_NONE;
    assert_int_equal(index.used, used);
    assert_int_equal(index.keys, used);
    free(memory);
}

static void test_parts_addresses_and_key_slots(void **state)
{
    (void)state;
    struct fb_index index;
    void *memory = make_index(&index);
    struct fb_entry *head = fb_index_alloc(&index, FB_ENTRY_LIVE);
    fb_entry_set(head, FB_ENTRY_HEAD);
    head->part_bytes = 100;
    assert_int_equal(fb_index_key(&index, head), FB_KEYS_NONE);
    fb_index_set_key(&index, head, 7);
    assert_int_equal(fb_index_key(&index, head), 7);
    assert_false(fb_entry_has_addr(head));
    fb_index_set_key(&index, head, FB_KEYS_NONE);
    struct fb_log_addr addr = {.incarnation = 9,
                               .segment = (1u << 28) - 1,
                               .block = 16383,
                               .device = 3};
    fb_entry_set_addr(head, &addr);
    struct fb_log_addr back = fb_entry_addr(head);
    assert_int_equal(back.segment, addr.segment);
    assert_int_equal(back.block, addr.block);
    assert_int_equal(back.device, addr.device);
    assert_true(fb_entry_is_at(head, &addr));
    addr.block--;
    assert_false(fb_entry_is_at(head, &addr));
    assert_int_equal(fb_index_key(&index, head), FB_KEYS_NONE);
    struct fb_entry *tail = fb_index_alloc(&index, FB_ENTRY_LIVE);
    tail->part_bytes = 11;
    head->part_next = fb_index_number(&index, tail);
    tail->chain = fb_index_number(&index, head);
    assert_int_equal(fb_index_key(&index, head), FB_KEYS_NONE);
    fb_index_set_key(&index, head, 12);
    assert_int_equal(fb_index_key(&index, head), 12);
    assert_true(fb_entry_has_addr(head));
    uint32_t parts;
    assert_int_equal(fb_index_value_bytes(&index, head, &parts), 111);
    assert_int_equal(parts, 2);
    assert_ptr_equal(fb_index_part(&index, head, 1), tail);
    assert_null(fb_index_part(&index, head, 2));
    assert_ptr_equal(fb_index_head_of(&index, tail), head);
    free(memory);
}

static void test_lists_keep_their_order(void **state)
{
    (void)state;
    struct fb_index index;
    void *memory = make_index(&index);
    struct fb_lru lru;
    fb_lru_init(&lru);
    struct fb_entry *entries[4];
    for (unsigned i = 0; i < 4; i++)
        entries[i] = fb_index_alloc(&index, FB_ENTRY_LIVE);
    fb_lru_push_hot(&index, &lru, entries[0]);
    fb_lru_push_hot(&index, &lru, entries[1]);
    fb_lru_push_cold(&index, &lru, entries[2]);
    fb_lru_push_hot(&index, &lru, entries[3]);
    static const unsigned order[] = {2, 0, 1, 3};
    struct fb_entry *at = fb_lru_cold(&index, &lru);
    for (unsigned i = 0; i < 4; i++, at = fb_lru_newer(&index, at))
        assert_ptr_equal(at, entries[order[i]]);
    fb_lru_remove(&index, &lru, entries[0]);
    fb_lru_remove(&index, &lru, entries[2]);
    assert_ptr_equal(fb_lru_cold(&index, &lru), entries[1]);
    fb_lru_remove(&index, &lru, entries[3]);
    fb_lru_remove(&index, &lru, entries[1]);
    assert_null(fb_lru_cold(&index, &lru));
    assert_int_equal(lru.count, 0);
    free(memory);
}

static void test_victims_are_the_oldest(void **state)
{
    (void)state;
    struct fb_index index;
    void *memory = make_index(&index);
    struct fb_evict evict;
    fb_evict_init(&evict);
    struct fb_entry *clean = fb_index_alloc(&index, FB_ENTRY_LIVE);
    struct fb_entry *loose = fb_index_alloc(&index, FB_ENTRY_LIVE);
    clean->list = FB_ENTRY_CLEAN;
    clean->links.touched = 5;
    loose->list = FB_ENTRY_LOOSE;
    loose->links.touched = 9;
    fb_evict_insert(&index, &evict, clean);
    fb_evict_insert(&index, &evict, loose);
    assert_ptr_equal(fb_evict_victim(&index, &evict, false), clean);
    assert_ptr_equal(fb_evict_victim(&index, &evict, true), loose);
    fb_evict_remove(&index, &evict, clean);
    assert_ptr_equal(fb_evict_victim(&index, &evict, false), loose);
    fb_evict_remove(&index, &evict, loose);
    assert_null(fb_evict_victim(&index, &evict, false));
    free(memory);
}

static void test_key_texts_come_back(void **state)
{
    (void)state;
    struct fb_region region;
    struct fb_keys keys;
    fb_region_init_counting(&region);
    fb_keys_init(&keys, GRANULES, &region);
    void *memory = take_memory(&region, region.used_bytes);
    fb_keys_init(&keys, GRANULES, &region);
    struct fb_prng prng;
    fb_prng_seed(&prng, 8);
    static uint8_t texts[KEYS][FB_KEY_BYTES_MAX];
    uint32_t slots[KEYS];
    uint16_t lengths[KEYS];
    memset(slots, 0xff, sizeof(slots));
    for (unsigned step = 0; step < STEPS; step++) {
        unsigned key = (unsigned)fb_prng_below(&prng, KEYS);
        if (slots[key] != FB_KEYS_NONE) {
            struct fb_keys_head head;
            uint8_t text[FB_KEY_BYTES_MAX];
            fb_keys_get(&keys, slots[key], &head, text);
            assert_int_equal(head.key_bytes, lengths[key]);
            assert_int_equal(head.pin_class, key % 4);
            assert_int_equal(head.group.lo, key);
            assert_memory_equal(text, texts[key], lengths[key]);
            fb_keys_free(&keys, slots[key]);
            slots[key] = FB_KEYS_NONE;
            continue;
        }
        uint16_t bytes =
            (uint16_t)fb_prng_between(&prng, 1, fb_prng_chance(&prng, 100000) ? 1024 : 100);
        if (fb_keys_granules(bytes) > keys.free_count)
            continue;
        fb_prng_fill(&prng, texts[key], bytes);
        lengths[key] = bytes;
        const struct fb_keys_head head = {{0, key}, bytes, (uint8_t)(key % 4)};
        uint32_t before = keys.free_count;
        slots[key] = fb_keys_put(&keys, &head, texts[key]);
        assert_int_equal(before - keys.free_count, fb_keys_granules(bytes));
        assert_int_equal(fb_keys_kept(&keys, slots[key]), fb_keys_granules(bytes));
    }
    free(memory);
}

static void test_history_remembers_the_newest(void **state)
{
    (void)state;
    struct fb_region region;
    struct fb_history history;
    fb_region_init_counting(&region);
    fb_history_init(&history, RECORDS, &region);
    void *memory = take_memory(&region, region.used_bytes);
    fb_history_init(&history, RECORDS, &region);
    fb_history_begin(&history, 100);
    uint64_t last[KEYS] = {0};
    struct fb_prng prng;
    fb_prng_seed(&prng, 2);
    for (uint64_t step = 1; step < STEPS; step++) {
        uint64_t key = fb_prng_chance(&prng, 500000) ? 0 : fb_prng_below(&prng, KEYS);
        fb_history_add(&history, digest_of(key), step, FB_REASON_REMOVED, 100 + step);
        last[key] = step;
        key = fb_prng_below(&prng, KEYS);
        const struct fb_history_record *found = fb_history_find(&history, digest_of(key));
        bool is_kept = last[key] != 0 && last[key] + RECORDS > step;
        assert_true((found != NULL) == is_kept);
        if (found != NULL)
            assert_int_equal(found->generation, last[key]);
    }
    /* It reaches back as far as the newest record that was forgotten. */
    assert_int_equal(history.since_ms, 100 + STEPS - 1 - RECORDS);
    free(memory);
}

static void test_claims_against_a_model(void **state)
{
    (void)state;
    struct fb_region region;
    struct fb_claims claims;
    fb_region_init_counting(&region);
    fb_claims_init(&claims, KEYS / 2, &region);
    void *memory = take_memory(&region, region.used_bytes);
    fb_claims_init(&claims, KEYS / 2, &region);
    struct fb_prng prng;
    fb_prng_seed(&prng, 4);
    bool held[KEYS] = {false};
    uint32_t count = 0;
    for (unsigned step = 0; step < STEPS; step++) {
        unsigned key = (unsigned)fb_prng_below(&prng, KEYS);
        struct fb_claim *claim = fb_claim_find(&claims, digest_of(key));
        assert_true((claim != NULL) == held[key]);
        if (claim != NULL) {
            fb_claim_free(&claims, claim);
            held[key] = false;
            count--;
        } else {
            claim = fb_claim_new(&claims, digest_of(key));
            assert_true((claim == NULL) == (count == KEYS / 2));
            held[key] = claim != NULL;
            count += claim != NULL;
        }
        assert_int_equal(claims.used, count);
    }
    free(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_entry_takes_96_bytes),
        cmocka_unit_test(test_index_against_a_model),
        cmocka_unit_test(test_parts_addresses_and_key_slots),
        cmocka_unit_test(test_lists_keep_their_order),
        cmocka_unit_test(test_victims_are_the_oldest),
        cmocka_unit_test(test_key_texts_come_back),
        cmocka_unit_test(test_history_remembers_the_newest),
        cmocka_unit_test(test_claims_against_a_model),
    };
    return cmocka_run_group_tests_name("index", tests, NULL, NULL);
}
