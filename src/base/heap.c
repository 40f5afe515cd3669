/*
 * A binary heap: the parent of entry i is entry (i - 1) / 2 and is not later than it.
 */
#include "base/heap.h"

#include "base/assert.h"

void fb_heap_init(struct fb_heap *heap, struct fb_heap_entry *entries, size_t capacity)
{
    FB_ASSERT(entries != NULL || capacity == 0);
    *heap = (struct fb_heap){.entries = entries, .capacity = capacity};
}

static bool is_earlier(const struct fb_heap_entry *a, const struct fb_heap_entry *b)
{
    if (a->time_ns != b->time_ns)
        return a->time_ns < b->time_ns;
    return a->sequence < b->sequence;
}

bool fb_heap_push(struct fb_heap *heap, uint64_t time_ns, uint64_t item)
{
    FB_ASSERT(heap->count <= heap->capacity);
    if (heap->count == heap->capacity)
        return false;
    struct fb_heap_entry entry = {.time_ns = time_ns,
                                  .sequence = heap->next_sequence++,
                                  .item = item};
    size_t hole = heap->count++;
    while (hole > 0) {
        size_t parent = (hole - 1) / 2;
        if (!is_earlier(&entry, &heap->entries[parent]))
            break;
        heap->entries[hole] = heap->entries[parent];
        hole = parent;
    }
    heap->entries[hole] = entry;
    return true;
}

/* Puts `entry` into the heap from the root downwards; the root is a hole. */
static void sink(struct fb_heap *heap, const struct fb_heap_entry *entry)
{
    size_t hole = 0;
    for (;;) {
        size_t child = 2 * hole + 1;
        if (child >= heap->count)
            break;
        if (child + 1 < heap->count && is_earlier(&heap->entries[child + 1], &heap->entries[child]))
            child++;
        if (is_earlier(entry, &heap->entries[child]))
            break;
        heap->entries[hole] = heap->entries[child];
        hole = child;
    }
    heap->entries[hole] = *entry;
}

bool fb_heap_pop(struct fb_heap *heap, struct fb_heap_entry *entry)
{
    FB_ASSERT(heap->count <= heap->capacity);
    if (heap->count == 0)
        return false;
    *entry = heap->entries[0];
    struct fb_heap_entry last = heap->entries[--heap->count];
    if (heap->count > 0)
        sink(heap, &last);
    FB_ASSERT(heap->count == 0 || !is_earlier(&heap->entries[0], entry));
    return true;
}

bool fb_heap_pop_due(struct fb_heap *heap, uint64_t now_ns, struct fb_heap_entry *entry)
{
    return heap->count > 0 && heap->entries[0].time_ns <= now_ns && fb_heap_pop(heap, entry);
}

const struct fb_heap_entry *fb_heap_peek(const struct fb_heap *heap)
{
    return heap->count > 0 ? &heap->entries[0] : NULL;
}

uint64_t fb_heap_next_ns(const struct fb_heap *heap)
{
    return heap->count > 0 ? heap->entries[0].time_ns : UINT64_MAX;
}
