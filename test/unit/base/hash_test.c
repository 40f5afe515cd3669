/*
 * Covers hashes, digests and roots: that they are XXH3 (known values, and the plain entry points of
 * the library beside its dispatcher), that the forms on disk and wire do not change (fixed values),
 * that any split gives the same result, and that each field of an identity counts. Cannot cover
 * other processors than the one it runs on.
 */
#include "base/hash.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/bits.h"
#include "base/prng.h"
#include "test/lib/cm.h"
#include "test/lib/dies.h"

#define LONG_BYTES (FB_KIB(300) + 7)

static uint8_t *random_bytes(size_t bytes)
{
    uint8_t *data = malloc(bytes);
    struct fb_prng prng;
    assert_non_null(data);
    fb_prng_seed(&prng, bytes);
    fb_prng_fill(&prng, data, bytes);
    return data;
}

static void test_is_xxh3(void **state)
{
    (void)state;
    assert_true(fb_hash64(NULL, 0, 0) == UINT64_C(0x2d06800538d394c2));
    uint8_t *data = random_bytes(LONG_BYTES);
    static const size_t lengths[] = {1, 3, 8, 16, 17, 128, 129, 240, 241, 1024, 4096, 65536};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        assert_true(fb_hash64(data, lengths[i], 0) == XXH3_64bits(data, lengths[i]));
        assert_true(fb_hash64(data, lengths[i], 77) == XXH3_64bits_withSeed(data, lengths[i], 77));
        assert_true(fb_leaf_hash(data, lengths[i]) == XXH3_64bits(data, lengths[i]));
    }
    assert_true(fb_hash64(data, LONG_BYTES, 5) == XXH3_64bits_withSeed(data, LONG_BYTES, 5));
    free(data);
}

static void test_any_split_is_the_same(void **state)
{
    (void)state;
    uint8_t *data = random_bytes(LONG_BYTES);
    uint64_t expected = fb_hash64(data, LONG_BYTES, 9);
    struct fb_prng prng;
    fb_prng_seed(&prng, 3);
    for (int i = 0; i < 20; i++) {
        struct fb_hash_state hash;
        fb_hash_begin(&hash, 9);
        for (size_t at = 0; at < LONG_BYTES;) {
            size_t step = fb_min_u64(fb_prng_below(&prng, 20000), LONG_BYTES - at);
            fb_hash_add(&hash, data + at, step);
            at += step;
        }
        assert_true(fb_hash_finish(&hash) == expected);
    }
    free(data);
}

static void test_copy_copies_and_hashes(void **state)
{
    (void)state;
    static const size_t lengths[] = {0, 1, 100, 8191, 8192, 8193, 65536, LONG_BYTES};
    uint8_t *data = random_bytes(LONG_BYTES);
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        size_t bytes = lengths[i];
        uint8_t *copy = malloc(bytes + 1);
        assert_non_null(copy);
        copy[bytes] = 0xa5;
        assert_true(fb_copy_hash64(copy, data, bytes) == fb_hash64(data, bytes, 0));
        assert_memory_equal(copy, data, bytes);
        assert_int_equal(copy[bytes], 0xa5);
        free(copy);
    }
    free(data);
}

static void test_copy_in_pieces(void **state)
{
    (void)state;
    uint8_t *data = random_bytes(LONG_BYTES);
    uint8_t *copy = malloc(LONG_BYTES);
    assert_non_null(copy);
    struct fb_hash_state hash;
    fb_hash_begin(&hash, 0);
    fb_hash_add_copy(&hash, copy, data, 12345);
    fb_hash_add_copy(&hash, copy + 12345, data + 12345, 0);
    fb_hash_add_copy(&hash, copy + 12345, data + 12345, LONG_BYTES - 12345);
    assert_true(fb_hash_finish(&hash) == fb_hash64(data, LONG_BYTES, 0));
    assert_memory_equal(copy, data, LONG_BYTES);
    free(copy);
    free(data);
}

static void test_secrets_and_digests_are_fixed(void **state)
{
    (void)state;
    struct fb_secret secret;
    fb_secret_derive(&secret, "seed", 4);
    uint64_t third = 0;
    memcpy(&third, secret.bytes + 16, sizeof(third));
    assert_true(le64toh(third) == fb_hash64("seed", 4, 2));
    struct fb_digest digest = fb_digest_key(&secret, 7, "key", 3);
    assert_true(digest.hi == UINT64_C(0xb8ec7a61e349359f));
    assert_true(digest.lo == UINT64_C(0x6e0c12079ad74b71));
}

static void test_digest_covers_secret_epoch_and_key(void **state)
{
    (void)state;
    struct fb_secret secret;
    struct fb_secret other;
    fb_secret_derive(&secret, "seed", 4);
    fb_secret_derive(&other, "seee", 4);
    struct fb_digest digest = fb_digest_key(&secret, 1, "key", 3);
    assert_true(fb_digest_is_equal(digest, fb_digest_key(&secret, 1, "key", 3)));
    assert_false(fb_digest_is_equal(digest, fb_digest_key(&other, 1, "key", 3)));
    assert_false(fb_digest_is_equal(digest, fb_digest_key(&secret, 2, "key", 3)));
    assert_false(fb_digest_is_equal(digest, fb_digest_key(&secret, 1, "kez", 3)));
    assert_false(fb_digest_is_equal(digest, fb_digest_key(&secret, 1, "key\0", 4)));
    uint8_t *longest = random_bytes(FB_KEY_BYTES_MAX);
    digest = fb_digest_key(&secret, 1, longest, FB_KEY_BYTES_MAX);
    longest[FB_KEY_BYTES_MAX - 1] ^= 1;
    assert_int_not_equal(fb_digest_compare(digest,
                                           fb_digest_key(&secret, 1, longest, FB_KEY_BYTES_MAX)),
                         0);
    free(longest);
}

static void test_digest_order(void **state)
{
    (void)state;
    struct fb_digest low = {.hi = 1, .lo = 9};
    struct fb_digest high = {.hi = 2, .lo = 0};
    struct fb_digest higher = {.hi = 2, .lo = 1};
    assert_true(fb_digest_compare(low, high) < 0);
    assert_true(fb_digest_compare(higher, high) > 0);
    assert_int_equal(fb_digest_compare(high, high), 0);
}

static const uint8_t test_namespace[FB_NAMESPACE_ID_BYTES] = "0123456789abcde";

static struct fb_identity identity(void)
{
    return (struct fb_identity){
        .namespace_id = test_namespace,
        .epoch = 3,
        .key = "some key",
        .key_bytes = 8,
        .generation = {.boot = 5, .counter = 6},
        .part = 1,
        .total_bytes = FB_MIB(5),
        .part_bytes = FB_MIB(1),
    };
}

static void test_root_is_fixed(void **state)
{
    (void)state;
    const uint64_t leaves[4] = {1, 2, 3, UINT64_C(0x123456789abcdef0)};
    struct fb_identity who = identity();
    uint64_t root = fb_root_of(&who, leaves, 4);
    assert_true(root == UINT64_C(0xa48f71c1c7066268));
}

/* The root of an identity with the leaves 1, 2. */
static uint64_t root_of(const struct fb_identity *who)
{
    const uint64_t leaves[2] = {1, 2};
    return fb_root_of(who, leaves, 2);
}

static void test_root_covers_each_field(void **state)
{
    (void)state;
    static const uint8_t other_namespace[FB_NAMESPACE_ID_BYTES] = "0123456789abcdf";
    struct fb_identity who = identity();
    uint64_t root = root_of(&who);
    assert_true(root == root_of(&who));
    struct fb_identity changed[9];
    for (int i = 0; i < 9; i++)
        changed[i] = who;
    changed[0].namespace_id = other_namespace;
    changed[1].epoch++;
    changed[2].key = "some kez";
    changed[3].key_bytes--;
    changed[4].generation.boot++;
    changed[5].generation.counter++;
    changed[6].part++;
    changed[7].total_bytes++;
    changed[8].part_bytes++;
    for (int i = 0; i < 9; i++)
        assert_true(root != root_of(&changed[i]));
}

static void test_root_covers_leaves_and_their_order(void **state)
{
    (void)state;
    struct fb_identity who = identity();
    const uint64_t leaves[3] = {1, 2, 0};
    const uint64_t swapped[2] = {2, 1};
    uint64_t root = root_of(&who);
    assert_true(root != fb_root_of(&who, swapped, 2));
    assert_true(root != fb_root_of(&who, leaves, 3));
    assert_true(root != fb_root_of(&who, leaves, 1));
    assert_true(root != fb_root_of(&who, leaves, 0));
}

static void hash_a_long_leaf(void *argument)
{
    (void)fb_leaf_hash(argument, FB_LEAF_BYTES + 1);
}

static void digest_a_long_key(void *argument)
{
    struct fb_secret secret;
    fb_secret_derive(&secret, "s", 1);
    (void)fb_digest_key(&secret, 0, argument, FB_KEY_BYTES_MAX + 1);
}

static void test_misuse_dies(void **state)
{
    (void)state;
    uint8_t *data = random_bytes(LONG_BYTES);
    assert_true(test_dies(hash_a_long_leaf, data, "FB_LEAF_BYTES"));
    assert_true(test_dies(digest_a_long_key, data, "FB_KEY_BYTES_MAX"));
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_is_xxh3),
        cmocka_unit_test(test_any_split_is_the_same),
        cmocka_unit_test(test_copy_copies_and_hashes),
        cmocka_unit_test(test_copy_in_pieces),
        cmocka_unit_test(test_secrets_and_digests_are_fixed),
        cmocka_unit_test(test_digest_covers_secret_epoch_and_key),
        cmocka_unit_test(test_digest_order),
        cmocka_unit_test(test_root_is_fixed),
        cmocka_unit_test(test_root_covers_each_field),
        cmocka_unit_test(test_root_covers_leaves_and_their_order),
        cmocka_unit_test(test_misuse_dies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
