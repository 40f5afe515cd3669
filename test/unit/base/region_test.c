/*
 * Covers carving: alignment, exhaustion, and that what was counted is enough at any address.
 */
#include "base/region.h"

#include <string.h>

#include "base/prng.h"
#include "test/lib/cm.h"
#include "test/lib/dies.h"

struct odd {
    uint64_t a;
    uint8_t b;
};

static void test_takes_are_aligned_and_apart(void **state)
{
    (void)state;
    _Alignas(64) uint8_t memory[1024];
    struct fb_region region;
    fb_region_init(&region, memory, sizeof(memory));
    assert_false(fb_region_is_counting(&region));
    uint8_t *first = fb_region_take(&region, 3, 1);
    uint8_t *second = fb_region_take(&region, 100, 64);
    uint8_t *third = fb_region_take(&region, 8, 8);
    assert_ptr_equal(first, memory);
    assert_ptr_equal(second, memory + 64);
    assert_ptr_equal(third, memory + 168);
    assert_int_equal(fb_region_left(&region), 1024 - 176);
}

static void test_the_last_byte_can_be_taken(void **state)
{
    (void)state;
    uint8_t memory[16];
    struct fb_region region;
    fb_region_init(&region, memory, sizeof(memory));
    assert_non_null(fb_region_take(&region, 16, 1));
    assert_int_equal(fb_region_left(&region), 0);
    assert_non_null(fb_region_take(&region, 0, 1));
}

static void test_new_items_are_zero(void **state)
{
    (void)state;
    uint8_t memory[256];
    memset(memory, 0xee, sizeof(memory));
    struct fb_region region;
    fb_region_init(&region, memory, sizeof(memory));
    const struct odd *items = FB_REGION_NEW(&region, struct odd, 3);
    static const struct odd zero[3];
    assert_memory_equal(items, zero, sizeof(zero));
    assert_int_equal((uintptr_t)items % _Alignof(struct odd), 0);
}

/* Takes a random series; the same seed takes the same. */
static void take_series(struct fb_region *region, uint64_t seed)
{
    struct fb_prng prng;
    fb_prng_seed(&prng, seed);
    for (int i = 0; i < 20; i++) {
        size_t bytes = fb_prng_below(&prng, 100);
        size_t align = (size_t)1 << fb_prng_below(&prng, 9);
        uint8_t *piece = fb_region_take(region, bytes, align);
        if (piece == NULL)
            continue;
        assert_int_equal((uintptr_t)piece % align, 0);
        memset(piece, i, bytes);
    }
}

static void test_a_footprint_is_enough_at_any_address(void **state)
{
    (void)state;
    static uint8_t memory[16384];
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct fb_region counting;
        fb_region_init_counting(&counting);
        assert_true(fb_region_is_counting(&counting));
        take_series(&counting, seed);
        assert_true(counting.used_bytes + 300 <= sizeof(memory));
        struct fb_region region;
        fb_region_init(&region, memory + seed, counting.used_bytes);
        take_series(&region, seed);
        assert_true(region.used_bytes <= counting.used_bytes);
    }
}

static void take_too_much(void *argument)
{
    uint8_t memory[32];
    struct fb_region region;
    fb_region_init(&region, memory, sizeof(memory));
    (void)fb_region_take(&region, *(size_t *)argument, 1);
}

static void overflow_a_product(void *argument)
{
    (void)argument;
    struct fb_region region;
    fb_region_init_counting(&region);
    (void)fb_region_take_array(&region, SIZE_MAX / 2, 3, 1);
}

static void align_to_three(void *argument)
{
    (void)argument;
    struct fb_region region;
    fb_region_init_counting(&region);
    (void)fb_region_take(&region, 1, 3);
}

static void test_misuse_dies(void **state)
{
    (void)state;
    size_t one_more = 33;
    size_t wrapping = SIZE_MAX;
    assert_true(test_dies(take_too_much, &one_more, "region.c"));
    assert_true(test_dies(take_too_much, &wrapping, "region.c"));
    assert_true(test_dies(overflow_a_product, NULL, "is_too_long"));
    assert_true(test_dies(align_to_three, NULL, "power_of_two"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_takes_are_aligned_and_apart),
        cmocka_unit_test(test_the_last_byte_can_be_taken),
        cmocka_unit_test(test_new_items_are_zero),
        cmocka_unit_test(test_a_footprint_is_enough_at_any_address),
        cmocka_unit_test(test_misuse_dies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
