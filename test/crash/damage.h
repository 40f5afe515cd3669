/*
 * Silent damage to the file of a server that is not running: what disks, controllers and operators
 * do to data at rest.
 */
#ifndef TEST_CRASH_DAMAGE_H
#define TEST_CRASH_DAMAGE_H

#include "base/prng.h"
#include "test/crash/state.h"

/* Copies the file, for old blocks to put back later. 0 or -errno. */
int crash_damage_remember(const char *path, const char *copy);

/*
 * Does a few things to the file, chosen by the seed: flips bits, swaps and zeroes blocks, puts old
 * blocks from `copy` back, cuts the end off. Counts each. 0 or -errno.
 */
int crash_damage(struct crash_state *state, struct fb_prng *prng, const char *path,
                 const char *copy);

#endif
