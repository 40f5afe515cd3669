/*
 * A doubly linked list through links inside the items: no allocation, removal in O(1).
 *
 * A list owns nothing. An item must be unlinked before its memory is reused. A link that is on no
 * list points to itself (fb_link_init(), fb_list_remove()), so that fb_link_is_linked() can tell.
 * Not safe for use by several threads at once.
 */
#ifndef FB_BASE_LIST_H
#define FB_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/assert.h"

struct fb_link {
    struct fb_link *next;
    struct fb_link *previous;
};

struct fb_list {
    struct fb_link head; /* next is the first item, previous the last */
};

/* The item that contains a link: FB_LIST_ITEM(link, struct thing, link_member). */
#define FB_LIST_ITEM(link, type, member) ((type *)((uint8_t *)(link)-offsetof(type, member)))

/* Visits each link from first to last; the list must not change meanwhile. */
#define FB_LIST_FOREACH(link, list) \
    for (struct fb_link *link = (list)->head.next; link != &(list)->head; link = link->next)

/* As FB_LIST_FOREACH, but the visited link itself may be removed. */
#define FB_LIST_FOREACH_SAFE(link, following, list)                                                \
    for (struct fb_link *link = (list)->head.next, *following = link->next; link != &(list)->head; \
         link = following, following = link->next)

/* Makes a link that is on no list. */
static inline void fb_link_init(struct fb_link *link)
{
    link->next = link;
    link->previous = link;
}

/* True if the link is on a list. */
static inline bool fb_link_is_linked(const struct fb_link *link)
{
    return link->next != link;
}

/* Makes an empty list. */
static inline void fb_list_init(struct fb_list *list)
{
    fb_link_init(&list->head);
}

/* True if there is no item. */
static inline bool fb_list_is_empty(const struct fb_list *list)
{
    return list->head.next == &list->head;
}

/* Puts a link, which is on no list, behind another: an item or a head. */
static inline void fb_list_insert_after(struct fb_link *where, struct fb_link *link)
{
    FB_ASSERT(!fb_link_is_linked(link));
    link->next = where->next;
    link->previous = where;
    where->next->previous = link;
    where->next = link;
}

/* Puts a link, which is on no list, at the end. */
static inline void fb_list_push_back(struct fb_list *list, struct fb_link *link)
{
    fb_list_insert_after(list->head.previous, link);
}

/* Puts a link, which is on no list, at the front. */
static inline void fb_list_push_front(struct fb_list *list, struct fb_link *link)
{
    fb_list_insert_after(&list->head, link);
}

/* Takes a link off its list; nothing happens if it is on none. */
static inline void fb_list_remove(struct fb_link *link)
{
    link->previous->next = link->next;
    link->next->previous = link->previous;
    fb_link_init(link);
}

/* The first link, or NULL if the list is empty. */
static inline struct fb_link *fb_list_first(const struct fb_list *list)
{
    return fb_list_is_empty(list) ? NULL : list->head.next;
}

/* The last link, or NULL if the list is empty. */
static inline struct fb_link *fb_list_last(const struct fb_list *list)
{
    return fb_list_is_empty(list) ? NULL : list->head.previous;
}

/* The link behind one, or NULL if that was the last. */
static inline struct fb_link *fb_list_next(const struct fb_list *list, const struct fb_link *link)
{
    return link->next == &list->head ? NULL : link->next;
}

/* Takes the first link off and returns it, or NULL if the list is empty. */
static inline struct fb_link *fb_list_pop_front(struct fb_list *list)
{
    struct fb_link *first = fb_list_first(list);
    if (first != NULL)
        fb_list_remove(first);
    return first;
}

/* Moves all links of `from`, in order, to the end of `list`; `from` is empty afterwards. */
static inline void fb_list_append(struct fb_list *list, struct fb_list *from)
{
    if (fb_list_is_empty(from))
        return;
    from->head.next->previous = list->head.previous;
    list->head.previous->next = from->head.next;
    from->head.previous->next = &list->head;
    list->head.previous = from->head.previous;
    fb_list_init(from);
}

#endif
