/*
 * Assertions. They stay on in every build: a node that has lost an invariant must stop before it
 * gives out a wrong byte.
 *
 * FB_ASSERT is for what only a fault of this program can break. What a peer, a disk or an operator
 * can break is checked with an if and answered with a result.
 */
#ifndef FB_BASE_ASSERT_H
#define FB_BASE_ASSERT_H

/* Stops the program with file, line and condition on stderr if the condition does not hold. */
#define FB_ASSERT(condition) \
    (__builtin_expect(!!(condition), 1) ? (void)0 : fb_assert_fail(#condition, __FILE__, __LINE__))

/* Stops the program: this line cannot be reached. */
#define FB_UNREACHABLE() fb_assert_fail("unreachable", __FILE__, __LINE__)

/*
 * Writes "file:line: assertion failed: condition" to stderr by write(2), with no lock and no
 * allocation, and aborts. For the macros above. Does not return.
 */
_Noreturn void fb_assert_fail(const char *condition, const char *file, int line)
    __attribute__((cold));

#endif
