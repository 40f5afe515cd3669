/*
 * What the fuzzers share: reading an input as a list of choices, memory of exact length so that one
 * byte too far is noticed, and the seeds of a corpus.
 *
 * A fuzzer's LLVMFuzzerInitialize() calls fuzz_start(). `PROGRAM --seeds DIR` then writes the
 * corpus that its seeds function makes, and ends; FB_FUZZ_BUG=name,... switches planted bugs on.
 */
#ifndef TEST_LIB_FUZZ_H
#define TEST_LIB_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Both are called by libFuzzer. */
int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Reads the two switches above. */
int fuzz_start(int *argc, char ***argv, void (*seeds)(void));

/* Writes one file of the corpus. Aborts if it cannot. */
void fuzz_seed(const char *name, const void *bytes, size_t count);

/* Stops the fuzzer: the code under test did what it must not do. */
#define FUZZ_CHECK(condition)                                    \
    do {                                                         \
        if (!(condition))                                        \
            fuzz_fail(#condition, __FILE__, (unsigned)__LINE__); \
    } while (0)
void fuzz_fail(const char *what, const char *file, unsigned line) __attribute__((noreturn));

/* What is left of an input. Reads past the end give 0. */
struct fuzz_input {
    const uint8_t *at;
    size_t left;
};

/* The next 1, 2, 4 or 8 bytes as a number, little-endian. */
uint64_t fuzz_number(struct fuzz_input *input, unsigned bytes);
/* The next byte, below `limit` (1 to 256). */
unsigned fuzz_choice(struct fuzz_input *input, unsigned limit);
/* Copies the next `count` bytes, as far as they go, and zeros behind them. */
void fuzz_take(struct fuzz_input *input, void *out, size_t count);

/* A copy in memory of exactly `count` bytes (one that must not be touched, if 0). Free it. */
uint8_t *fuzz_exact(const void *bytes, size_t count);

/* Reads every byte, for those that only a sanitizer looks at. NULL is allowed if count is 0. */
void fuzz_touch(const void *bytes, size_t count);

/* Seeds are composed in this. */
struct fuzz_seed {
    uint8_t bytes[1 << 18];
    size_t count;
};
void fuzz_add(struct fuzz_seed *seed, const void *bytes, size_t count);
void fuzz_add_number(struct fuzz_seed *seed, uint64_t value, unsigned bytes);

#endif
