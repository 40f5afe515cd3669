/*
 * For assert.c.
 */
#ifndef FB_BASE_ASSERT_H
#define FB_BASE_ASSERT_H

/* Ends the program. */
_Noreturn void fb_assert_fail(void);

#endif
