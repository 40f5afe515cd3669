/*
 * Test values: a pseudo-random stream that is named by (seed, key, generation) and can be made or
 * checked at any offset. So any process can tell of any byte whether it is right, without shared
 * state, and a byte of another key, generation or offset is wrong with a chance of 255 in 256.
 */
#ifndef TEST_LIB_VALUE_H
#define TEST_LIB_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct test_value {
    uint64_t base;
};

/* Names a stream. `generation` is any number that tells the values of one key apart. */
struct test_value test_value_of(uint64_t seed, const void *key, size_t key_bytes,
                                uint64_t generation);

/* Writes the bytes from `offset` to `offset + bytes` of the stream to `out`. */
void test_value_fill(struct test_value value, uint64_t offset, void *out, size_t bytes);

/*
 * Compares memory with the stream from `offset`. Returns `bytes` if all is right, otherwise the
 * place of the first wrong byte, counted from `data`.
 */
size_t test_value_mismatch(struct test_value value, uint64_t offset, const void *data,
                           size_t bytes);

/* True if all bytes are right. */
bool test_value_check(struct test_value value, uint64_t offset, const void *data, size_t bytes);

#endif
