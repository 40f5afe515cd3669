/*
 * The tables behind base/result.h, both made from the one list.
 */
#include "base/result.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "base/assert.h"

struct result_row {
    int code;
    bool is_retryable;
    const char *name;
    const char *text;
};

#define RESULT_ROW(symbol, value, name, retry, text) {symbol, retry, name, text},
static const struct result_row rows[] = {FB_RESULT_LIST(RESULT_ROW)};
#undef RESULT_ROW

/* The successes come first in the list, then the failures without a gap. */
#define SUCCESSES     2
#define FIRST_FAILURE (-1001)

_Static_assert(sizeof(rows) / sizeof(rows[0]) == FB_RESULT_COUNT, "one row for each code");
_Static_assert(FB_OK == 0 && FB_EXISTS == 1 && FB_MISS == FIRST_FAILURE, "the order of the list");
_Static_assert(FB_GRANT_EXPIRED == FIRST_FAILURE - (FB_RESULT_COUNT - SUCCESSES - 1),
               "failures have no gap; the last one of the list stands here");

int fb_result_index(int code)
{
    int index = -1;
    if (code >= 0 && code < SUCCESSES)
        index = code;
    else if (code <= FIRST_FAILURE && code > FIRST_FAILURE - (FB_RESULT_COUNT - SUCCESSES))
        index = SUCCESSES + (FIRST_FAILURE - code);
    FB_ASSERT(index == -1 || rows[index].code == code);
    return index;
}

int fb_result_at(int index)
{
    FB_ASSERT(index >= 0 && index < FB_RESULT_COUNT);
    return rows[index].code;
}

bool fb_result_find(const char *name, int *code)
{
    for (int i = 0; i < FB_RESULT_COUNT; i++) {
        if (strcmp(rows[i].name, name) == 0) {
            *code = rows[i].code;
            return true;
        }
    }
    return false;
}

const char *fb_result_name(int code)
{
    int index = fb_result_index(code);
    return index >= 0 ? rows[index].name : "UNKNOWN";
}

const char *fb_result_text(int code)
{
    int index = fb_result_index(code);
    return index >= 0 ? rows[index].text : "unknown result code";
}

bool fb_result_is_retryable(int code)
{
    int index = fb_result_index(code);
    return index >= 0 && rows[index].is_retryable;
}

int fb_result_from_errno(int negative_errno)
{
    if (negative_errno >= 0)
        return FB_OK;
    switch (-negative_errno) {
    case ENOMEM:
    case ENOBUFS:
        return FB_NO_MEMORY;
    case ETIMEDOUT:
        return FB_DEADLINE;
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case ENOTCONN:
    case EPIPE:
    case EHOSTUNREACH:
    case ENETUNREACH:
        return FB_CONNECTION;
    case EACCES:
    case EPERM:
        return FB_DENIED;
    case ENOSYS:
    case EOPNOTSUPP:
        return FB_UNSUPPORTED;
    default:
        return FB_IO;
    }
}
