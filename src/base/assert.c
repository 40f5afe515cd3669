/*
 * How a failed assertion ends the program. It may run in any state, so it takes no lock, allocates
 * nothing, and writes with one system call. It is the one place in the pure folders that does.
 */
#include "base/assert.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Long enough for any path and condition of this program; what is longer is cut. */
#define MESSAGE_BYTES_MAX 512
/* The digits of a 32-bit number. */
#define DIGITS_MAX 10

struct message {
    char text[MESSAGE_BYTES_MAX];
    size_t used_bytes;
};

static void append(struct message *message, const char *text)
{
    size_t bytes = strlen(text);
    size_t room = sizeof(message->text) - message->used_bytes;
    if (bytes > room)
        bytes = room;
    memcpy(message->text + message->used_bytes, text, bytes);
    message->used_bytes += bytes;
}

static void append_number(struct message *message, unsigned number)
{
    char digits[DIGITS_MAX + 1];
    char *at = digits + DIGITS_MAX;
    *at = 0;
    do {
        *--at = (char)('0' + number % 10);
        number /= 10;
    } while (number != 0);
    append(message, at);
}

_Noreturn void fb_assert_fail(const char *condition, const char *file, int line)
{
    struct message message = {.used_bytes = 0};
    append(&message, file);
    append(&message, ":");
    append_number(&message, (unsigned)line);
    append(&message, ": assertion failed: ");
    append(&message, condition);
    append(&message, "\n");
    /* Nothing can be done if this fails: the abort below says the rest. */
    ssize_t written = write(STDERR_FILENO, message.text, message.used_bytes);
    (void)written;
    abort();
}
