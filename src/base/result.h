/*
 * Result codes inside the store: the public list, its size, and dense indexes for counters.
 */
#ifndef FB_BASE_RESULT_H
#define FB_BASE_RESULT_H

#include "forebay/result.h"

#define FB_RESULT_COUNT_ONE(symbol, value, name, retry, text) +1
/* How many codes there are; indexes from fb_result_index() are below it. */
#define FB_RESULT_COUNT (0 FB_RESULT_LIST(FB_RESULT_COUNT_ONE))

/*
 * The place of a code in the list, 0 to FB_RESULT_COUNT - 1, for arrays of counters; -1 for a
 * number that is not in the list.
 */
int fb_result_index(int code);

/* The code at a place of the list. `index` must be in 0 to FB_RESULT_COUNT - 1 (asserted). */
int fb_result_at(int index);

/*
 * Finds a code by its exact name and stores it in *code. Returns true if there is one; otherwise
 * *code is left alone.
 */
bool fb_result_find(const char *name, int *code);

/*
 * The result that stands for a negative errno of the I/O edge: -ENOMEM is FB_NO_MEMORY, -ETIMEDOUT
 * is FB_DEADLINE, lost or refused connections are FB_CONNECTION, -EACCES and -EPERM are FB_DENIED,
 * -ENOSYS and -EOPNOTSUPP are FB_UNSUPPORTED, everything else is FB_IO. Numbers >= 0 are FB_OK.
 */
int fb_result_from_errno(int negative_errno);

#endif
