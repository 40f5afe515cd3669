/*
 * See dies.h. The child's stderr goes to a pipe, so that a test that passes prints nothing.
 */
#include "test/lib/dies.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define OUTPUT_BYTES_MAX 4096

/* Reads to the end, keeps what fits, and ends it with a zero. */
static void read_all(int fd, char *out, size_t out_bytes)
{
    size_t used = 0;
    char piece[256];
    ssize_t got = 0;
    while ((got = read(fd, piece, sizeof(piece))) > 0) {
        size_t room = out_bytes - 1 - used;
        size_t kept = (size_t)got < room ? (size_t)got : room;
        memcpy(out + used, piece, kept);
        used += kept;
    }
    out[used] = 0;
}

bool test_dies(void (*function)(void *argument), void *argument, const char *expected)
{
    int ends[2];
    if (pipe(ends) != 0)
        return false;
    (void)fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        const struct rlimit no_core = {0, 0};
        (void)setrlimit(RLIMIT_CORE, &no_core);
        (void)signal(SIGABRT, SIG_DFL);
        (void)dup2(ends[1], STDERR_FILENO);
        (void)close(ends[0]);
        (void)close(ends[1]);
        function(argument);
        _exit(0);
    }
    (void)close(ends[1]);
    char output[OUTPUT_BYTES_MAX];
    read_all(ends[0], output, sizeof(output));
    (void)close(ends[0]);
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child)
        return false;
    bool aborted = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
    bool said = strstr(output, expected) != NULL;
    if (!aborted || !said)
        (void)fprintf(stderr, "test_dies: status %d, expected '%s', output: %s\n", status, expected,
                      output);
    return aborted && said;
}
