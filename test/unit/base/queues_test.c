/*
 * Covers the three queues of base: list, ring and heap, each against a simple model. The ring is
 * also run between two threads; that cannot prove the memory order, only catch gross mistakes.
 */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "base/heap.h"
#include "base/list.h"
#include "base/prng.h"
#include "base/ring.h"
#include "test/lib/cm.h"
#include "test/lib/dies.h"

/* ---- list ---- */

struct item {
    int number;
    struct fb_link link;
};

static int number_of(const struct fb_link *link)
{
    return FB_LIST_ITEM(link, const struct item, link)->number;
}

static void make_items(struct item *items, int count)
{
    for (int i = 0; i < count; i++) {
        items[i].number = i;
        fb_link_init(&items[i].link);
    }
}

static void test_list_keeps_order(void **state)
{
    (void)state;
    struct item items[4];
    struct fb_list list;
    make_items(items, 4);
    fb_list_init(&list);
    assert_true(fb_list_is_empty(&list));
    assert_null(fb_list_first(&list));
    assert_null(fb_list_last(&list));
    assert_null(fb_list_pop_front(&list));
    fb_list_push_back(&list, &items[1].link);
    fb_list_push_back(&list, &items[3].link);
    fb_list_push_front(&list, &items[0].link);
    fb_list_insert_after(&items[1].link, &items[2].link);
    int expected = 0;
    FB_LIST_FOREACH (link, &list) {
        assert_int_equal(number_of(link), expected);
        expected++;
    }
    assert_int_equal(expected, 4);
    assert_int_equal(number_of(fb_list_last(&list)), 3);
    assert_ptr_equal(fb_list_next(&list, &items[0].link), &items[1].link);
    assert_null(fb_list_next(&list, &items[3].link));
    assert_int_equal(number_of(fb_list_pop_front(&list)), 0);
    assert_false(fb_link_is_linked(&items[0].link));
    assert_true(fb_link_is_linked(&items[1].link));
}

static void test_list_removal(void **state)
{
    (void)state;
    struct item items[6];
    struct fb_list list;
    make_items(items, 6);
    fb_list_init(&list);
    for (int i = 0; i < 6; i++)
        fb_list_push_back(&list, &items[i].link);
    FB_LIST_FOREACH_SAFE (link, following, &list) {
        if (number_of(link) % 2 == 0)
            fb_list_remove(link);
    }
    fb_list_remove(&items[0].link);
    int count = 0;
    FB_LIST_FOREACH (link, &list) {
        assert_int_equal(number_of(link), 2 * count + 1);
        count++;
    }
    assert_int_equal(count, 3);
}

static void test_list_append(void **state)
{
    (void)state;
    struct item items[4];
    struct fb_list list;
    struct fb_list tail;
    make_items(items, 4);
    fb_list_init(&list);
    fb_list_init(&tail);
    fb_list_append(&list, &tail);
    assert_true(fb_list_is_empty(&list));
    for (int i = 0; i < 2; i++) {
        fb_list_push_back(&list, &items[i].link);
        fb_list_push_back(&tail, &items[i + 2].link);
    }
    fb_list_append(&list, &tail);
    assert_true(fb_list_is_empty(&tail));
    assert_ptr_equal(fb_list_last(&list), &items[3].link);
    for (int i = 0; i < 4; i++)
        assert_int_equal(number_of(fb_list_pop_front(&list)), i);
    assert_true(fb_list_is_empty(&list));
}

static void link_twice(void *argument)
{
    struct fb_list list;
    struct item item;
    (void)argument;
    fb_list_init(&list);
    make_items(&item, 1);
    fb_list_push_back(&list, &item.link);
    fb_list_push_back(&list, &item.link);
}

static void test_linking_twice_dies(void **state)
{
    (void)state;
    assert_true(test_dies(link_twice, NULL, "list.h"));
}

/* ---- ring ---- */

static void test_ring_fills_and_empties(void **state)
{
    (void)state;
    struct fb_ring ring;
    uint32_t slot = 99;
    fb_ring_init(&ring, 4);
    assert_false(fb_ring_consume(&ring, &slot));
    for (uint32_t i = 0; i < 4; i++) {
        assert_true(fb_ring_produce(&ring, &slot));
        assert_int_equal(slot, i);
        fb_ring_publish(&ring);
    }
    assert_int_equal(fb_ring_count(&ring), 4);
    assert_false(fb_ring_produce(&ring, &slot));
    assert_true(fb_ring_consume(&ring, &slot));
    assert_int_equal(slot, 0);
    assert_false(fb_ring_produce(&ring, &slot));
    fb_ring_release(&ring);
    assert_true(fb_ring_produce(&ring, &slot));
    assert_int_equal(slot, 0);
}

static void test_ring_counts_wrap(void **state)
{
    (void)state;
    struct fb_ring ring;
    fb_ring_init(&ring, 2);
    atomic_store(&ring.produced, UINT32_MAX);
    atomic_store(&ring.consumed, UINT32_MAX);
    for (uint32_t i = 0; i < 5; i++) {
        uint32_t in = 0;
        uint32_t out = 0;
        assert_true(fb_ring_produce(&ring, &in));
        fb_ring_publish(&ring);
        assert_int_equal(fb_ring_count(&ring), 1);
        assert_true(fb_ring_consume(&ring, &out));
        assert_int_equal(in, out);
        fb_ring_release(&ring);
    }
}

#define RING_SLOTS 8
#define RING_ITEMS 20000

struct pipe_line {
    struct fb_ring ring;
    uint64_t slots[RING_SLOTS];
};

static void *produce_all(void *argument)
{
    struct pipe_line *line = argument;
    for (uint64_t i = 0; i < RING_ITEMS;) {
        uint32_t slot = 0;
        if (!fb_ring_produce(&line->ring, &slot)) {
            sched_yield();
            continue;
        }
        line->slots[slot] = fb_mix64(i++);
        fb_ring_publish(&line->ring);
    }
    return NULL;
}

static void test_ring_between_threads(void **state)
{
    (void)state;
    static struct pipe_line line;
    pthread_t producer;
    fb_ring_init(&line.ring, RING_SLOTS);
    assert_int_equal(pthread_create(&producer, NULL, produce_all, &line), 0);
    for (uint64_t i = 0; i < RING_ITEMS;) {
        uint32_t slot = 0;
        if (!fb_ring_consume(&line.ring, &slot)) {
            sched_yield();
            continue;
        }
        assert_true(line.slots[slot] == fb_mix64(i));
        i++;
        fb_ring_release(&line.ring);
    }
    assert_int_equal(pthread_join(producer, NULL), 0);
}

/* ---- heap ---- */

#define HEAP_ENTRIES 64

static void test_heap_order_is_stable(void **state)
{
    (void)state;
    struct fb_heap_entry entries[8];
    struct fb_heap_entry entry;
    struct fb_heap heap;
    fb_heap_init(&heap, entries, 8);
    assert_null(fb_heap_peek(&heap));
    assert_true(fb_heap_next_ns(&heap) == UINT64_MAX);
    assert_false(fb_heap_pop(&heap, &entry));
    static const uint64_t times[8] = {5, 1, 5, 3, 1, 5, 1, 3};
    static const uint64_t order[8] = {1, 4, 6, 3, 7, 0, 2, 5};
    for (uint64_t i = 0; i < 8; i++)
        assert_true(fb_heap_push(&heap, times[i], i));
    assert_false(fb_heap_push(&heap, 0, 8));
    for (int i = 0; i < 8; i++) {
        assert_true(fb_heap_next_ns(&heap) == times[order[i]]);
        assert_true(fb_heap_pop(&heap, &entry));
        assert_int_equal(entry.item, order[i]);
        assert_int_equal(entry.time_ns, times[order[i]]);
    }
    assert_false(fb_heap_pop(&heap, &entry));
}

static void test_heap_pop_due(void **state)
{
    (void)state;
    struct fb_heap_entry entries[2];
    struct fb_heap_entry entry;
    struct fb_heap heap;
    fb_heap_init(&heap, entries, 2);
    assert_false(fb_heap_pop_due(&heap, 100, &entry));
    assert_true(fb_heap_push(&heap, 10, 1));
    assert_false(fb_heap_pop_due(&heap, 9, &entry));
    assert_true(fb_heap_pop_due(&heap, 10, &entry));
    assert_int_equal(entry.item, 1);
}

/* Removes the earliest of a plain array, the first put in among equals. */
static uint64_t model_pop(uint64_t *times, uint64_t *items, size_t *count)
{
    size_t best = 0;
    for (size_t i = 1; i < *count; i++) {
        if (times[i] < times[best])
            best = i;
    }
    uint64_t item = items[best];
    (*count)--;
    for (size_t i = best; i < *count; i++) {
        times[i] = times[i + 1];
        items[i] = items[i + 1];
    }
    return item;
}

static void test_heap_against_a_model(void **state)
{
    (void)state;
    struct fb_heap_entry entries[HEAP_ENTRIES];
    uint64_t times[HEAP_ENTRIES + 1];
    uint64_t items[HEAP_ENTRIES + 1];
    size_t count = 0;
    struct fb_heap heap;
    struct fb_prng prng;
    fb_heap_init(&heap, entries, HEAP_ENTRIES);
    fb_prng_seed(&prng, 11);
    for (uint64_t i = 0; i < 20000; i++) {
        if (count < HEAP_ENTRIES && fb_prng_below(&prng, 100) < 52) {
            times[count] = fb_prng_below(&prng, 20);
            items[count] = i;
            assert_true(fb_heap_push(&heap, times[count], i));
            count++;
        } else if (count > 0) {
            struct fb_heap_entry entry;
            assert_true(fb_heap_pop(&heap, &entry));
            assert_int_equal(entry.item, model_pop(times, items, &count));
        }
        assert_int_equal(heap.count, count);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list_keeps_order),
        cmocka_unit_test(test_list_removal),
        cmocka_unit_test(test_list_append),
        cmocka_unit_test(test_linking_twice_dies),
        cmocka_unit_test(test_ring_fills_and_empties),
        cmocka_unit_test(test_ring_counts_wrap),
        cmocka_unit_test(test_ring_between_threads),
        cmocka_unit_test(test_heap_order_is_stable),
        cmocka_unit_test(test_heap_pop_due),
        cmocka_unit_test(test_heap_against_a_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
