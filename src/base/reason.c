/*
 * The tables behind base/reason.h, made from the one list.
 */
#include "base/reason.h"

#include <stddef.h>
#include <string.h>

#define REASON_LABEL(symbol, label, text) label,
#define REASON_TEXT(symbol, label, text)  text,
static const char *const labels[FB_REASON_COUNT] = {FB_REASON_LIST(REASON_LABEL)};
static const char *const texts[FB_REASON_COUNT] = {FB_REASON_LIST(REASON_TEXT)};
#undef REASON_LABEL
#undef REASON_TEXT

static bool is_known(int reason)
{
    return reason >= 0 && reason < FB_REASON_COUNT;
}

const char *fb_reason_name(int reason)
{
    return is_known(reason) ? labels[reason] : "unknown";
}

const char *fb_reason_text(int reason)
{
    return is_known(reason) ? texts[reason] : "unknown reason";
}

bool fb_reason_find(const char *label, enum fb_reason *reason)
{
    for (int i = 0; i < FB_REASON_COUNT; i++) {
        if (strcmp(labels[i], label) == 0) {
            *reason = (enum fb_reason)i;
            return true;
        }
    }
    return false;
}
