/* Help for the fuzzers; see fuzz.h. */
#include "test/lib/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bug.h"

#define PATH_BYTES 512

static const char *seed_directory;
static volatile uint8_t touched;

int fuzz_start(int *argc, char ***argv, void (*seeds)(void))
{
    const char *bugs = getenv("FB_FUZZ_BUG");
    if (bugs != NULL && fb_bug_enable(bugs) != 0) {
        fprintf(stderr, "FB_FUZZ_BUG=%s: no such bug\n", bugs);
        exit(2);
    }
    if (*argc == 3 && strcmp((*argv)[1], "--seeds") == 0) {
        seed_directory = (*argv)[2];
        seeds();
        exit(0);
    }
    return 0;
}

void fuzz_seed(const char *name, const void *bytes, size_t count)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof(path), "%s/%s", seed_directory, name);
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(bytes, 1, count, file) != count || fclose(file) != 0) {
        perror(path);
        exit(2);
    }
}

void fuzz_fail(const char *what, const char *file, unsigned line)
{
    fprintf(stderr, "%s:%u: not true: %s\n", file, line, what);
    abort();
}

uint64_t fuzz_number(struct fuzz_input *input, unsigned bytes)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes && input->left > 0; i++) {
        value |= (uint64_t)*input->at++ << (8 * i);
        input->left--;
    }
    return value;
}

unsigned fuzz_choice(struct fuzz_input *input, unsigned limit)
{
    return (unsigned)fuzz_number(input, 1) % limit;
}

void fuzz_take(struct fuzz_input *input, void *out, size_t count)
{
    size_t have = input->left < count ? input->left : count;
    if (have > 0)
        memcpy(out, input->at, have);
    if (count > have)
        memset((uint8_t *)out + have, 0, count - have);
    input->at += have;
    input->left -= have;
}

uint8_t *fuzz_exact(const void *bytes, size_t count)
{
    uint8_t *copy = malloc(count);
    if (copy == NULL && count != 0)
        abort();
    if (count != 0)
        memcpy(copy, bytes, count);
    return copy;
}

void fuzz_touch(const void *bytes, size_t count)
{
    const uint8_t *at = bytes;
    uint8_t all = 0;
    for (size_t i = 0; i < count; i++)
        all ^= at[i];
    touched = all;
}

void fuzz_add(struct fuzz_seed *seed, const void *bytes, size_t count)
{
    if (count > sizeof(seed->bytes) - seed->count)
        abort();
    if (count != 0)
        memcpy(seed->bytes + seed->count, bytes, count);
    seed->count += count;
}

void fuzz_add_number(struct fuzz_seed *seed, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++) {
        uint8_t byte = (uint8_t)(value >> (8 * i));
        fuzz_add(seed, &byte, 1);
    }
}
