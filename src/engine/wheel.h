/*
 * wheel.h - timers: a hierarchical wheel of three levels of 256 slots, a tick of about a
 * millisecond.
 *
 * Timers are links inside the caller's structs: adding and removing is O(1), nothing is allocated,
 * and a struct that ends takes its timer out. A timer never fires early, and at most a tick late.
 * Times further away than the wheel reaches are put off and looked at again. Pure.
 */
#ifndef FB_ENGINE_WHEEL_H
#define FB_ENGINE_WHEEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"

#define FB_WHEEL_TICK_SHIFT 20 /* a tick is 2^20 ns */
#define FB_WHEEL_SLOT_SHIFT 8
#define FB_WHEEL_SLOTS      (1u << FB_WHEEL_SLOT_SHIFT)
#define FB_WHEEL_LEVELS     3
#define FB_WHEEL_WORDS      (FB_WHEEL_SLOTS / 64)

struct fb_timer {
    struct fb_link link;
    uint64_t at_ns;
    uint16_t slot; /* level and slot, while it is linked */
};

struct fb_wheel {
    struct fb_list slots[FB_WHEEL_LEVELS][FB_WHEEL_SLOTS];
    uint64_t used[FB_WHEEL_LEVELS][FB_WHEEL_WORDS]; /* slots that are not empty */
    struct fb_list due;
    uint64_t tick; /* the last one that was worked off */
};

/* Begins at a time; nothing is due. */
void fb_wheel_init(struct fb_wheel *wheel, uint64_t now_ns);

/* Makes a timer that is not set. */
void fb_timer_init(struct fb_timer *timer);

/* True while the timer is set or due. */
bool fb_timer_is_set(const struct fb_timer *timer);

/* Sets a timer, also one that is set already. UINT64_MAX: never, it is only taken out. */
void fb_wheel_set(struct fb_wheel *wheel, struct fb_timer *timer, uint64_t at_ns);

/* Takes a timer out; nothing happens if it is not set. */
void fb_wheel_clear(struct fb_wheel *wheel, struct fb_timer *timer);

/* The next timer that is due, taken out, or NULL. The caller goes on until NULL, or stops to go on
 * later. */
struct fb_timer *fb_wheel_take_due(struct fb_wheel *wheel, uint64_t now_ns);

/* When fb_wheel_take_due() should be called next; UINT64_MAX if no timer is set. May be earlier
 * than the next timer, never later than its tick. */
uint64_t fb_wheel_next_ns(const struct fb_wheel *wheel);

#endif
