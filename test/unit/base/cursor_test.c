/*
 * Covers the bounds-checked cursors: byte order, exact ends, sticky failure, hostile lengths.
 * Buffers come from malloc and have exactly the length that is claimed, so that the address
 * sanitizer sees any step outside.
 */
#include "base/cursor.h"

#include <stdlib.h>

#include "base/prng.h"
#include "test/lib/cm.h"
#include "test/lib/dies.h"

static void test_numbers_are_little_endian(void **state)
{
    (void)state;
    uint8_t bytes[15];
    struct fb_writer writer;
    fb_writer_init(&writer, bytes, sizeof(bytes));
    fb_writer_u8(&writer, 0x01);
    fb_writer_u16(&writer, 0x0302);
    fb_writer_u32(&writer, 0x07060504);
    fb_writer_u64(&writer, UINT64_C(0x0f0e0d0c0b0a0908));
    assert_true(fb_writer_ok(&writer));
    assert_int_equal(fb_writer_left(&writer), 0);
    for (int i = 0; i < 15; i++)
        assert_int_equal(bytes[i], i + 1);
    struct fb_reader reader;
    fb_reader_init(&reader, bytes, sizeof(bytes));
    assert_int_equal(fb_reader_u8(&reader), 0x01);
    assert_int_equal(fb_reader_u16(&reader), 0x0302);
    assert_int_equal(fb_reader_u32(&reader), 0x07060504);
    assert_false(fb_reader_is_done(&reader));
    assert_int_equal(fb_reader_u64(&reader), UINT64_C(0x0f0e0d0c0b0a0908));
    assert_true(fb_reader_is_done(&reader));
}

static void test_a_failed_read_gives_zero_and_sticks(void **state)
{
    (void)state;
    uint8_t *bytes = malloc(3);
    assert_non_null(bytes);
    memset(bytes, 0xff, 3);
    struct fb_reader reader;
    fb_reader_init(&reader, bytes, 3);
    assert_int_equal(fb_reader_u32(&reader), 0);
    assert_false(fb_reader_ok(&reader));
    assert_int_equal(fb_reader_left(&reader), 0);
    assert_int_equal(reader.at_bytes, 0);
    assert_int_equal(fb_reader_u8(&reader), 0);
    assert_null(fb_reader_bytes(&reader, 0));
    assert_false(fb_reader_is_done(&reader));
    free(bytes);
}

static void test_huge_steps_do_not_wrap(void **state)
{
    (void)state;
    uint8_t bytes[8] = {0};
    struct fb_reader reader;
    fb_reader_init(&reader, bytes, sizeof(bytes));
    (void)fb_reader_u32(&reader);
    assert_null(fb_reader_bytes(&reader, SIZE_MAX - 2));
    struct fb_writer writer;
    fb_writer_init(&writer, bytes, sizeof(bytes));
    fb_writer_u32(&writer, 1);
    assert_null(fb_writer_room(&writer, SIZE_MAX - 2));
    assert_false(fb_writer_ok(&writer));
}

static void test_empty_input(void **state)
{
    (void)state;
    struct fb_reader reader;
    size_t length = 9;
    fb_reader_init(&reader, NULL, 0);
    assert_true(fb_reader_is_done(&reader));
    assert_non_null(fb_reader_bytes(&reader, 0));
    assert_true(fb_reader_copy(&reader, NULL, 0));
    assert_null(fb_reader_blob16(&reader, 100, &length));
    assert_int_equal(length, 0);
}

static void test_copy_fills_with_zeros_on_failure(void **state)
{
    (void)state;
    const uint8_t bytes[4] = {1, 2, 3, 4};
    uint8_t out[5] = {9, 9, 9, 9, 9};
    struct fb_reader reader;
    fb_reader_init(&reader, bytes, sizeof(bytes));
    assert_true(fb_reader_copy(&reader, out, 2));
    assert_int_equal(out[1], 2);
    assert_false(fb_reader_copy(&reader, out, 5));
    static const uint8_t zeros[5];
    assert_memory_equal(out, zeros, 5);
}

static void test_blobs_come_back(void **state)
{
    (void)state;
    uint8_t bytes[64];
    struct fb_writer writer;
    fb_writer_init(&writer, bytes, sizeof(bytes));
    fb_writer_blob16(&writer, "hello", 5);
    fb_writer_blob32(&writer, "", 0);
    fb_writer_blob32(&writer, "world", 5);
    assert_int_equal(writer.at_bytes, 2 + 5 + 4 + 4 + 5);
    struct fb_reader reader;
    size_t length = 0;
    fb_reader_init(&reader, bytes, writer.at_bytes);
    const uint8_t *blob = fb_reader_blob16(&reader, 5, &length);
    assert_int_equal(length, 5);
    assert_memory_equal(blob, "hello", 5);
    assert_non_null(fb_reader_blob32(&reader, 10, &length));
    assert_int_equal(length, 0);
    blob = fb_reader_blob32(&reader, 10, &length);
    assert_memory_equal(blob, "world", 5);
    assert_true(fb_reader_is_done(&reader));
}

static void test_a_blob_above_its_limit_fails(void **state)
{
    (void)state;
    uint8_t bytes[16] = {5, 0, 'h', 'e', 'l', 'l', 'o'};
    struct fb_reader reader;
    size_t length = 1;
    fb_reader_init(&reader, bytes, sizeof(bytes));
    assert_null(fb_reader_blob16(&reader, 4, &length));
    assert_int_equal(length, 0);
    assert_int_equal(reader.at_bytes, 0);
    memset(bytes, 0xff, sizeof(bytes));
    fb_reader_init(&reader, bytes, sizeof(bytes));
    assert_null(fb_reader_blob32(&reader, SIZE_MAX, &length));
    assert_int_equal(length, 0);
}

static void test_a_blob_is_written_whole_or_not(void **state)
{
    (void)state;
    uint8_t *bytes = malloc(6);
    assert_non_null(bytes);
    struct fb_writer writer;
    fb_writer_init(&writer, bytes, 6);
    fb_writer_blob16(&writer, "hello", 5);
    assert_false(fb_writer_ok(&writer));
    assert_int_equal(writer.at_bytes, 0);
    fb_writer_init(&writer, bytes, 6);
    fb_writer_blob32(&writer, "hello", 5);
    assert_int_equal(writer.at_bytes, 0);
    fb_writer_init(&writer, bytes, 6);
    fb_writer_blob16(&writer, bytes, (size_t)UINT16_MAX + 1);
    assert_false(fb_writer_ok(&writer));
    free(bytes);
}

static void test_sub_reader(void **state)
{
    (void)state;
    const uint8_t bytes[6] = {1, 2, 3, 4, 5, 6};
    struct fb_reader reader;
    fb_reader_init(&reader, bytes, sizeof(bytes));
    struct fb_reader sub = fb_reader_sub(&reader, 4);
    (void)fb_reader_u16(&sub);
    assert_int_equal(fb_reader_u16(&sub), 0x0403);
    assert_int_equal(fb_reader_u8(&sub), 0);
    assert_false(fb_reader_ok(&sub));
    assert_true(fb_reader_ok(&reader));
    assert_int_equal(fb_reader_u8(&reader), 5);
    struct fb_reader none = fb_reader_sub(&reader, 2);
    assert_false(fb_reader_ok(&none));
    assert_false(fb_reader_ok(&reader));
}

static void test_padding(void **state)
{
    (void)state;
    uint8_t bytes[16];
    memset(bytes, 0xee, sizeof(bytes));
    struct fb_writer writer;
    fb_writer_init(&writer, bytes, sizeof(bytes));
    fb_writer_u8(&writer, 1);
    fb_writer_align(&writer, 8);
    fb_writer_align(&writer, 8);
    assert_int_equal(writer.at_bytes, 8);
    fb_writer_u8(&writer, 2);
    struct fb_reader reader;
    fb_reader_init(&reader, bytes, sizeof(bytes));
    assert_int_equal(fb_reader_u8(&reader), 1);
    fb_reader_align(&reader, 8);
    assert_int_equal(fb_reader_u8(&reader), 2);
    fb_reader_align(&reader, 8);
    assert_false(fb_reader_ok(&reader));
    assert_int_equal(reader.at_bytes, 9);
}

static void test_patches(void **state)
{
    (void)state;
    uint8_t bytes[16];
    struct fb_writer writer;
    fb_writer_init(&writer, bytes, sizeof(bytes));
    fb_writer_zeros(&writer, 13);
    fb_writer_patch_u32(&writer, 1, 0x04030201);
    fb_writer_patch_u64(&writer, 5, 7);
    assert_int_equal(bytes[4], 4);
    assert_int_equal(bytes[5], 7);
    assert_int_equal(writer.at_bytes, 13);
}

static void patch_behind_the_end(void *argument)
{
    uint8_t bytes[16];
    struct fb_writer writer;
    fb_writer_init(&writer, bytes, sizeof(bytes));
    fb_writer_zeros(&writer, 10);
    fb_writer_patch_u32(&writer, *(size_t *)argument, 1);
}

static void test_a_patch_outside_dies(void **state)
{
    (void)state;
    size_t behind = 7;
    size_t far_away = SIZE_MAX - 1;
    assert_true(test_dies(patch_behind_the_end, &behind, "cursor.c"));
    assert_true(test_dies(patch_behind_the_end, &far_away, "cursor.c"));
}

/* One random step; returns false once the reader has failed. */
static bool random_step(struct fb_reader *reader, struct fb_prng *prng)
{
    size_t length = 0;
    switch (fb_prng_below(prng, 6)) {
    case 0:
        (void)fb_reader_u8(reader);
        break;
    case 1:
        (void)fb_reader_u64(reader);
        break;
    case 2:
        (void)fb_reader_blob16(reader, fb_prng_below(prng, 64), &length);
        break;
    case 3:
        (void)fb_reader_blob32(reader, SIZE_MAX, &length);
        break;
    case 4:
        fb_reader_align(reader, 8);
        break;
    default:
        fb_reader_skip(reader, fb_prng_below(prng, 9));
        break;
    }
    assert_true(reader->at_bytes <= reader->size_bytes);
    return fb_reader_ok(reader);
}

static void test_random_steps_stay_inside(void **state)
{
    (void)state;
    struct fb_prng prng;
    fb_prng_seed(&prng, 42);
    for (int i = 0; i < 2000; i++) {
        size_t size = fb_prng_below(&prng, 80);
        uint8_t *bytes = malloc(size + 1);
        assert_non_null(bytes);
        fb_prng_fill(&prng, bytes, size);
        for (size_t j = 0; j < size; j++)
            bytes[j] &= (uint8_t)(fb_prng_below(&prng, 2) != 0 ? 0x07 : 0x00);
        uint8_t *exact = malloc(size != 0 ? size : 1);
        assert_non_null(exact);
        memcpy(exact, bytes, size);
        struct fb_reader reader;
        fb_reader_init(&reader, exact, size);
        for (int step = 0; step < 100 && random_step(&reader, &prng); step++)
            continue;
        free(exact);
        free(bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers_are_little_endian),
        cmocka_unit_test(test_a_failed_read_gives_zero_and_sticks),
        cmocka_unit_test(test_huge_steps_do_not_wrap),
        cmocka_unit_test(test_empty_input),
        cmocka_unit_test(test_copy_fills_with_zeros_on_failure),
        cmocka_unit_test(test_blobs_come_back),
        cmocka_unit_test(test_a_blob_above_its_limit_fails),
        cmocka_unit_test(test_a_blob_is_written_whole_or_not),
        cmocka_unit_test(test_sub_reader),
        cmocka_unit_test(test_padding),
        cmocka_unit_test(test_patches),
        cmocka_unit_test(test_a_patch_outside_dies),
        cmocka_unit_test(test_random_steps_stay_inside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
