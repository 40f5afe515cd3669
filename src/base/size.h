/*
 * Sizes and durations as people write them. GB and GiB are the same here, 2^30, and so on for the
 * other units: a configured size is memory or blocks, and nobody means 10^9 of those.
 */
#ifndef FB_BASE_SIZE_H
#define FB_BASE_SIZE_H

#include <stddef.h>
#include <stdint.h>

/* Room that any printed size or duration fits into, the final zero included. */
#define FB_SIZE_TEXT_BYTES 32
/* Room that any parse error fits into; longer inputs are cut in it. */
#define FB_SIZE_ERROR_BYTES 160

/*
 * Parses a size: digits, perhaps with a decimal fraction, perhaps a blank, and a unit out of B, K,
 * KB, KiB, M, MB, MiB, G, GB, GiB, T, TB, TiB in any case; no unit means bytes. "64GB" is 2^36.
 * Returns 0 and sets *bytes (a fraction of a byte is cut off), or returns FB_BAD_ARGUMENT, leaves
 * *bytes, and writes one clause on what is wrong into `error` (may be NULL), which has
 * `error_bytes` bytes.
 */
int fb_size_parse(const char *text, uint64_t *bytes, char *error, size_t error_bytes);

/*
 * Prints a size with the largest unit that leaves 1 or more, with at most two decimals and without
 * those that are zero: "0 B", "1.5 GiB", "64 GiB". Returns `out`, cut if it has too few bytes.
 */
char *fb_size_print(char *out, size_t out_bytes, uint64_t bytes);

/*
 * Parses a duration: digits, perhaps with a decimal fraction, perhaps a blank, and a unit out of
 * ns, us, ms, s, m, min, h, d. A unit must be given, except for 0. Results as in fb_size_parse().
 */
int fb_duration_parse(const char *text, uint64_t *duration_ns, char *error, size_t error_bytes);

/* Prints a duration as fb_size_print() prints sizes: "0 s", "1.5 ms", "30 s", "2 h". */
char *fb_duration_print(char *out, size_t out_bytes, uint64_t duration_ns);

#endif
