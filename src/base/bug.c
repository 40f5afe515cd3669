/*
 * Names of the planted bugs, and the mask that switches them on in test builds.
 */
#include "base/bug.h"

#include <stddef.h>
#include <string.h>

#include "base/result.h"

#define BUG_NAME(symbol, name, text) name,
static const char *const names_of[FB_BUG_COUNT] = {FB_BUG_LIST(BUG_NAME)};
#undef BUG_NAME

#ifdef FB_TEST_HOOKS
uint64_t fb_bug_mask;
#endif

const char *fb_bug_name(int bug)
{
    return bug >= 0 && bug < FB_BUG_COUNT ? names_of[bug] : "unknown";
}

/* Finds the bug whose name is the `bytes` characters at `name`. */
static bool find(const char *name, size_t bytes, enum fb_bug *bug)
{
    for (int i = 0; i < FB_BUG_COUNT; i++) {
        if (strlen(names_of[i]) == bytes && memcmp(names_of[i], name, bytes) == 0) {
            *bug = (enum fb_bug)i;
            return true;
        }
    }
    return false;
}

bool fb_bug_find(const char *name, enum fb_bug *bug)
{
    return find(name, strlen(name), bug);
}

int fb_bug_enable(const char *names)
{
    uint64_t mask = 0;
    const char *at = names;
    while (*at != 0) {
        size_t bytes = strcspn(at, ",");
        enum fb_bug bug = FB_BUG_COUNT;
        if (!find(at, bytes, &bug))
            return FB_BAD_ARGUMENT;
        mask |= UINT64_C(1) << bug;
        at += bytes;
        if (*at == ',')
            at++;
    }
#ifdef FB_TEST_HOOKS
    fb_bug_mask = mask;
    return 0;
#else
    return mask == 0 ? 0 : FB_UNSUPPORTED;
#endif
}
