/*
 * The stream is a sequence of 64-bit words, little-endian. Word i is a cheap mix of the base and i:
 * good enough to tell any two streams and offsets apart, and several GB/s on one core.
 */
#include "test/lib/value.h"

#include <endian.h>
#include <string.h>

#include "base/hash.h"
#include "base/prng.h"

#define WORD_BYTES sizeof(uint64_t)

struct test_value test_value_of(uint64_t seed, const void *key, size_t key_bytes,
                                uint64_t generation)
{
    uint64_t base = fb_hash64(key, key_bytes, fb_mix64(seed ^ UINT64_C(0x5bd1e995)));
    return (struct test_value){.base = fb_mix64(base ^ fb_mix64(generation + 1))};
}

static inline uint64_t word_at(uint64_t base, uint64_t index)
{
    uint64_t x = base + index * UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 32)) * UINT64_C(0xd6e8feb86659fd93);
    return htole64(x ^ (x >> 32));
}

/* The part of one word that covers `bytes` bytes from `offset`; it does not cross the word. */
static void part_of_word(struct test_value value, uint64_t offset, uint8_t *out, size_t bytes)
{
    uint64_t word = word_at(value.base, offset / WORD_BYTES);
    memcpy(out, (const uint8_t *)&word + offset % WORD_BYTES, bytes);
}

/* How many bytes there are up to the next word, at most `bytes`. */
static size_t to_next_word(uint64_t offset, size_t bytes)
{
    size_t left = (size_t)(WORD_BYTES - offset % WORD_BYTES);
    return left < bytes ? left : bytes;
}

void test_value_fill(struct test_value value, uint64_t offset, void *out, size_t bytes)
{
    uint8_t *at = out;
    if (offset % WORD_BYTES != 0) {
        size_t head = to_next_word(offset, bytes);
        part_of_word(value, offset, at, head);
        at += head;
        offset += head;
        bytes -= head;
    }
    uint64_t index = offset / WORD_BYTES;
    for (; bytes >= WORD_BYTES; bytes -= WORD_BYTES, at += WORD_BYTES) {
        uint64_t word = word_at(value.base, index++);
        memcpy(at, &word, WORD_BYTES);
    }
    if (bytes != 0)
        part_of_word(value, index * WORD_BYTES, at, bytes);
}

/* The first wrong byte within one word; `bytes` if there is none. */
static size_t mismatch_in_word(struct test_value value, uint64_t offset, const uint8_t *data,
                               size_t bytes)
{
    uint8_t expected[WORD_BYTES];
    part_of_word(value, offset, expected, bytes);
    size_t i = 0;
    while (i < bytes && data[i] == expected[i])
        i++;
    return i;
}

size_t test_value_mismatch(struct test_value value, uint64_t offset, const void *data, size_t bytes)
{
    const uint8_t *bytes_at = data;
    size_t done = 0;
    if (offset % WORD_BYTES != 0) {
        size_t head = to_next_word(offset, bytes);
        done = mismatch_in_word(value, offset, bytes_at, head);
        if (done < head)
            return done;
    }
    uint64_t index = (offset + done) / WORD_BYTES;
    for (; bytes - done >= WORD_BYTES; done += WORD_BYTES) {
        uint64_t word = 0;
        memcpy(&word, bytes_at + done, WORD_BYTES);
        if (word != word_at(value.base, index))
            return done + mismatch_in_word(value, offset + done, bytes_at + done, WORD_BYTES);
        index++;
    }
    return done + mismatch_in_word(value, offset + done, bytes_at + done, bytes - done);
}

bool test_value_check(struct test_value value, uint64_t offset, const void *data, size_t bytes)
{
    return test_value_mismatch(value, offset, data, bytes) == bytes;
}
