/*
 * shm.h - the node's pool, mapped into this process.
 *
 * One mapping serves all connections to one life of a node; it goes when the last of them does. It
 * is not inherited by a forked child (MADV_DONTFORK). The memory cannot shrink under us, since the
 * node has sealed it: a node that has not is not trusted with our reads, which would end in SIGBUS.
 */
#ifndef FB_CLIENT_SHM_H
#define FB_CLIENT_SHM_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct fb_client_map {
    uint8_t *base; /* NULL: none */
    uint64_t bytes;
    dev_t device;
    ino_t inode;
    uint32_t users;
    uint8_t *touched; /* a bit for each FB_CLIENT_MAP_STEP: its pages were faulted in here */
    struct fb_client_map *next;
};

/* Pages are faulted in by steps of this, before the first copy that touches them. */
#define FB_CLIENT_MAP_STEP FB_MIB(2)

/* The mappings of a handle. All zero to begin with. */
struct fb_client_maps {
    struct fb_client_map *first;
};

/*
 * Maps the memory behind `fd`, which is `bytes` long, or finds it mapped already. The descriptor is
 * closed in any case. The caller holds the lock that guards `maps`. Returns 0, or FB_UNSUPPORTED,
 * FB_NO_MEMORY or FB_PROTOCOL with one line in *why (static).
 */
int fb_client_map_take(struct fb_client_maps *maps, int fd, uint64_t bytes,
                       struct fb_client_map **out, const char **why);

/* Gives it back; the last user unmaps. The caller holds the lock. */
void fb_client_map_give(struct fb_client_maps *maps, struct fb_client_map *map);

/* In a forked child: the mappings are not there; forgets them without unmapping what may lie at
 * their addresses now. */
void fb_client_maps_forget(struct fb_client_maps *maps);

/* Faults the pages of a run in, in one go, if that has not been done yet. Any number of threads. */
void fb_client_map_touch(struct fb_client_map *map, uint64_t off, uint64_t bytes);

#endif
