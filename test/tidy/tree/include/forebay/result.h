/*
 * A public header knows only public headers.
 */
#ifndef FOREBAY_RESULT_H
#define FOREBAY_RESULT_H

#include "base/good.h"
#include "forebay/other.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Inside of extern "C" the declarations are seen. */
int fb_result_good(int code);

int fb_result_bare(int code);

#ifdef __cplusplus
}
#endif

#endif
