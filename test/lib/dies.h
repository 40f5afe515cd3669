/*
 * For tests of assertions: runs a function in a child process and looks at how that ended.
 */
#ifndef TEST_LIB_DIES_H
#define TEST_LIB_DIES_H

#include <stdbool.h>

/*
 * True if `function(argument)`, called in a forked child, aborts (SIGABRT) after writing a text
 * that contains `expected` to stderr. Blocks until the child has ended; the test's own time budget
 * ends a child that does not.
 */
bool test_dies(void (*function)(void *argument), void *argument, const char *expected);

#endif
