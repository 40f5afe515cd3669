/*
 * Runs a piece of a test in a child process. See child.h.
 */
#include "test/lib/child.h"

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/lib/cm.h"

static int (*child_function)(const char *argument);
static const char *child_argument;
static int child_result;

static void call(void **state)
{
    (void)state;
    child_result = child_function(child_argument);
}

/* A group of one test of its own: so a failed assertion comes back to here. */
static int run_in_child(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(call)};
    /* Its report must not look like one of the parent's. */
    cmocka_set_message_output(CM_OUTPUT_TAP);
    if (dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
        return TEST_CHILD_FAILED;
    const int failed = cmocka_run_group_tests_name("child", tests, NULL, NULL);
    fflush(stdout);
    return failed ? TEST_CHILD_FAILED : child_result;
}

int test_child_run(int (*function)(const char *argument), const char *argument, int expected_signal)
{
    fflush(stdout);
    child_function = function;
    child_argument = argument;
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(run_in_child());
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFSIGNALED(status)) {
        assert_int_equal(WTERMSIG(status), expected_signal);
        return -expected_signal;
    }
    return WEXITSTATUS(status);
}
