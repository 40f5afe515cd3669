/*
 * A priority queue of (time, item) in an array of the caller's: timers, and the events of the
 * simulator. Items of equal time come out in the order in which they went in, so that a run
 * depends on nothing but its inputs.
 *
 * There is no removal from the middle. Who wants to cancel keeps a number in its own struct, puts
 * it into the item, and ignores an entry whose number is out of date.
 * Not safe for use by several threads at once.
 */
#ifndef FB_BASE_HEAP_H
#define FB_BASE_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fb_heap_entry {
    uint64_t time_ns;
    uint64_t sequence; /* set by fb_heap_push() */
    uint64_t item;     /* the caller's: an index, a packed number, or a pointer as uintptr_t */
};

struct fb_heap {
    struct fb_heap_entry *entries;
    size_t count;
    size_t capacity;
    uint64_t next_sequence;
};

/* Makes an empty heap over `capacity` entries, which stay the caller's. */
void fb_heap_init(struct fb_heap *heap, struct fb_heap_entry *entries, size_t capacity);

/* Adds an item in O(log n). Returns false, and changes nothing, if the heap is full. */
bool fb_heap_push(struct fb_heap *heap, uint64_t time_ns, uint64_t item);

/* Takes the earliest entry out, in O(log n), into *entry. Returns false if the heap is empty. */
bool fb_heap_pop(struct fb_heap *heap, struct fb_heap_entry *entry);

/* Takes the earliest entry out only if its time is <= now_ns. Returns false if there is none. */
bool fb_heap_pop_due(struct fb_heap *heap, uint64_t now_ns, struct fb_heap_entry *entry);

/* The earliest entry in place, or NULL if the heap is empty. Valid until the next change. */
const struct fb_heap_entry *fb_heap_peek(const struct fb_heap *heap);

/* The time of the earliest entry, or UINT64_MAX if the heap is empty. */
uint64_t fb_heap_next_ns(const struct fb_heap *heap);

#endif
