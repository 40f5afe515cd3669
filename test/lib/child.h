/*
 * Runs a piece of a test in a child process: for limits, rights and filters that cannot be taken
 * back. A cmocka assertion that fails there fails the child alone, and not by going on with the
 * parent's tests.
 */
#ifndef TEST_LIB_CHILD_H
#define TEST_LIB_CHILD_H

#define TEST_CHILD_NOT_RUN 77  /* for the function to return: what it needs is not to be had */
#define TEST_CHILD_FAILED  125 /* an assertion failed in the child */

/*
 * Calls function(argument) in a forked child, which reports in TAP to standard error, and returns
 * what it returned (0 to 124), or TEST_CHILD_FAILED. A child that a signal kills fails the parent's
 * test, unless the signal is `expected_signal` (0: none), which is then returned negative.
 */
int test_child_run(int (*function)(const char *argument), const char *argument,
                   int expected_signal);

#endif
