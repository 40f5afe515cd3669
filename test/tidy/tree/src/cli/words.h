/*
 * Words, and a guard that guards nothing.
 */
#ifndef FB_CLI_WORDS_H
#define FB_CLI_OTHER_H

#include "base/good.h"
#include "client/client.h"

/* TODO: later. */
/* FIXME and XXX; but mkstemp wants XXXXXX. */

#endif
