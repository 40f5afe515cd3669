/*
 * hooks.h - calls that take something from the system, and one of them that fails: malloc and its
 * like, mmap, memfd_create, threads, descriptors.
 */
#ifndef TEST_SWEEP_HOOKS_H
#define TEST_SWEEP_HOOKS_H

#include <stdbool.h>
#include <stdint.h>

/* Finds the calls that stand behind the hooks; before anything else. */
void hooks_start(void);

/* From now on the calls of this process are counted from 1, and number `nth` fails; 0: none. */
void hooks_arm(uint64_t nth);
/* The same, for the calling thread alone. */
void hooks_arm_thread(uint64_t nth);
/* Ends it; returns how many calls there were. */
uint64_t hooks_disarm(void);
/* What failed: "malloc", ...; "" if nothing has. */
const char *hooks_failed(void);

#endif
