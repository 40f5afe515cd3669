/*
 * What is looked at after each restart, before any client is there: every key of every namespace
 * against the state outside. Afterwards nothing is in doubt: what was seen is what is expected from
 * then on.
 */
#ifndef TEST_CRASH_CHECK_H
#define TEST_CRASH_CHECK_H

#include <stdbool.h>
#include <stdint.h>

#include "test/crash/state.h"

/*
 * Checks all keys of the server at `address`. Violations are noted in the state. Returns false only
 * if the server could not be asked at all (a violation too, unless the state is tainted).
 */
bool crash_check(struct crash_state *state, const char *address, uint64_t seed);

#endif
