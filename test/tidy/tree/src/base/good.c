/*
 * A source without a breach.
 */
#include "base/good.h"

#include <stdio.h>

static const uint64_t step_bytes = 65536;

enum limits {
    LIMIT_LARGE = 100000,
};

/* A function of one's own may be called as one of the system is. */
static int accept(struct fb_good_thing *thing)
{
    thing->free(thing);
    return snprintf((char *)thing->few, sizeof(thing->few), "printf(%d)", 5);
}

int fb_good_say(const char *text, void (*done)(void *context))
{
    struct fb_good_thing thing = {0};
    done(&thing);
    return text[0] + accept(&thing) + (int)step_bytes + LIMIT_LARGE;
}
