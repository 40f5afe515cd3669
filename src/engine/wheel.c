/*
 * wheel.c - see wheel.h. Level 0 has the next 256 ticks, level 1 the next 256 x 256, level 2 the
 * next 2^24. When the clock reaches the beginning of a slot of level 1 or 2, its timers move down.
 */
#include "engine/wheel.h"

#include "base/assert.h"
#include "base/bits.h"

#define SLOT_MASK  (FB_WHEEL_SLOTS - 1)
#define TICK_NS    (UINT64_C(1) << FB_WHEEL_TICK_SHIFT)
#define SPAN_TICKS (UINT64_C(1) << (FB_WHEEL_SLOT_SHIFT * FB_WHEEL_LEVELS))
#define SLOT_NONE  UINT16_MAX

void fb_wheel_init(struct fb_wheel *wheel, uint64_t now_ns)
{
    for (unsigned level = 0; level < FB_WHEEL_LEVELS; level++) {
        for (unsigned slot = 0; slot < FB_WHEEL_SLOTS; slot++)
            fb_list_init(&wheel->slots[level][slot]);
        for (unsigned word = 0; word < FB_WHEEL_WORDS; word++)
            wheel->used[level][word] = 0;
    }
    fb_list_init(&wheel->due);
    wheel->tick = now_ns >> FB_WHEEL_TICK_SHIFT;
}

void fb_timer_init(struct fb_timer *timer)
{
    fb_link_init(&timer->link);
    timer->at_ns = UINT64_MAX;
    timer->slot = SLOT_NONE;
}

bool fb_timer_is_set(const struct fb_timer *timer)
{
    return fb_link_is_linked(&timer->link);
}

static unsigned shift_of(unsigned level)
{
    return level * FB_WHEEL_SLOT_SHIFT;
}

/* Puts a timer into the slot for its time, as seen from the current tick. */
static void place(struct fb_wheel *wheel, struct fb_timer *timer)
{
    uint64_t tick = timer->at_ns / TICK_NS + (timer->at_ns % TICK_NS != 0);
    if (tick <= wheel->tick) {
        timer->slot = SLOT_NONE;
        fb_list_push_back(&wheel->due, &timer->link);
        return;
    }
    uint64_t ahead = tick - wheel->tick;
    if (ahead >= SPAN_TICKS)
        tick = wheel->tick + SPAN_TICKS - 1;
    unsigned level = 0;
    while (level + 1 < FB_WHEEL_LEVELS && ahead >> shift_of(level + 1) != 0)
        level++;
    unsigned slot = (unsigned)(tick >> shift_of(level)) & SLOT_MASK;
    /* A slot of an upper level that has begun is the one that comes round last. */
    timer->slot = (uint16_t)(level << FB_WHEEL_SLOT_SHIFT | slot);
    fb_list_push_back(&wheel->slots[level][slot], &timer->link);
    wheel->used[level][slot / 64] |= UINT64_C(1) << (slot % 64);
}

void fb_wheel_set(struct fb_wheel *wheel, struct fb_timer *timer, uint64_t at_ns)
{
    fb_wheel_clear(wheel, timer);
    timer->at_ns = at_ns;
    if (at_ns != UINT64_MAX)
        place(wheel, timer);
}

void fb_wheel_clear(struct fb_wheel *wheel, struct fb_timer *timer)
{
    fb_list_remove(&timer->link);
    if (timer->slot == SLOT_NONE)
        return;
    unsigned level = timer->slot >> FB_WHEEL_SLOT_SHIFT;
    unsigned slot = timer->slot & SLOT_MASK;
    if (fb_list_is_empty(&wheel->slots[level][slot]))
        wheel->used[level][slot / 64] &= ~(UINT64_C(1) << (slot % 64));
    timer->slot = SLOT_NONE;
}

/* Steps from slot `from` (not included) to the next one in use, going round: 1 to 256, or 0 if
 * there is none. */
static unsigned steps_to_used(const uint64_t *used, unsigned from)
{
    for (unsigned step = 1; step <= FB_WHEEL_SLOTS;) {
        unsigned slot = (from + step) & SLOT_MASK;
        uint64_t rest = used[slot / 64] >> (slot % 64);
        if (rest != 0) {
            unsigned found = step + (unsigned)__builtin_ctzll(rest);
            return found <= FB_WHEEL_SLOTS ? found : 0;
        }
        step += 64 - slot % 64;
    }
    return 0;
}

/* The next tick at which a slot has to be looked at; UINT64_MAX if all are empty. */
static uint64_t next_tick(const struct fb_wheel *wheel)
{
    uint64_t best = UINT64_MAX;
    for (unsigned level = 0; level < FB_WHEEL_LEVELS; level++) {
        uint64_t at = wheel->tick >> shift_of(level);
        unsigned steps = steps_to_used(wheel->used[level], (unsigned)at & SLOT_MASK);
        if (steps != 0)
            best = fb_min_u64(best, (at + steps) << shift_of(level));
    }
    return best;
}

/* The timers of a slot move on: down a level, or to the list of what is due. */
static void empty_slot(struct fb_wheel *wheel, unsigned level, unsigned slot)
{
    struct fb_list moved;
    fb_list_init(&moved);
    fb_list_append(&moved, &wheel->slots[level][slot]);
    wheel->used[level][slot / 64] &= ~(UINT64_C(1) << (slot % 64));
    struct fb_link *link;
    while ((link = fb_list_pop_front(&moved)) != NULL)
        place(wheel, FB_LIST_ITEM(link, struct fb_timer, link));
}

struct fb_timer *fb_wheel_take_due(struct fb_wheel *wheel, uint64_t now_ns)
{
    uint64_t now_tick = now_ns >> FB_WHEEL_TICK_SHIFT;
    while (fb_list_is_empty(&wheel->due)) {
        uint64_t tick = next_tick(wheel);
        if (tick > now_tick) {
            if (now_tick > wheel->tick)
                wheel->tick = now_tick;
            return NULL;
        }
        wheel->tick = tick;
        for (unsigned level = FB_WHEEL_LEVELS; level-- > 0;)
            if ((tick & ((UINT64_C(1) << shift_of(level)) - 1)) == 0)
                empty_slot(wheel, level, (unsigned)(tick >> shift_of(level)) & SLOT_MASK);
    }
    struct fb_timer *timer = FB_LIST_ITEM(fb_list_pop_front(&wheel->due), struct fb_timer, link);
    timer->slot = SLOT_NONE;
    return timer;
}

uint64_t fb_wheel_next_ns(const struct fb_wheel *wheel)
{
    if (!fb_list_is_empty(&wheel->due))
        return wheel->tick << FB_WHEEL_TICK_SHIFT;
    uint64_t tick = next_tick(wheel);
    return tick == UINT64_MAX ? UINT64_MAX : tick << FB_WHEEL_TICK_SHIFT;
}
