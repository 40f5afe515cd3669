/* The mapped pool. See shm.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/bits.h"
#include "base/limits.h"
#include "client/shm.h"
#include "forebay/result.h"

/* Known to the kernel since 5.14, to the headers of Debian 12 as well. */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static int check_memory(int fd, uint64_t bytes, struct stat *status, const char **why)
{
    if (fstat(fd, status) < 0 || status->st_size < 0 || (uint64_t)status->st_size < bytes) {
        *why = "the node's shared memory is shorter than it says";
        return FB_PROTOCOL;
    }
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
        *why = "the node's shared memory is not sealed against shrinking";
        return FB_UNSUPPORTED;
    }
    return FB_OK;
}

static int map_memory(struct fb_client_map *map, int fd, uint64_t bytes, const char **why)
{
    uint64_t steps = fb_div_up(bytes, FB_CLIENT_MAP_STEP);
    map->touched = calloc(1, fb_div_up(steps, 8));
    if (map->touched == NULL) {
        *why = "no memory";
        return FB_NO_MEMORY;
    }
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (base == MAP_FAILED) {
        *why =
            "the node's shared memory cannot be mapped: is the address space limited (ulimit -v)?";
        return FB_UNSUPPORTED;
    }
    if (madvise(base, bytes, MADV_DONTFORK) < 0) {
        munmap(base, bytes);
        *why = "the kernel does not keep the mapping from forked children";
        return FB_UNSUPPORTED;
    }
    /* A wish: fewer and larger pages, where the node has them. */
    (void)madvise(base, bytes, MADV_HUGEPAGE);
    map->base = base;
    map->bytes = bytes;
    return FB_OK;
}

int fb_client_map_take(struct fb_client_maps *maps, int fd, uint64_t bytes,
                       struct fb_client_map **out, const char **why)
{
    struct stat status;
    int result = check_memory(fd, bytes, &status, why);
    for (struct fb_client_map *map = maps->first; result == FB_OK && map != NULL; map = map->next) {
        if (map->device != status.st_dev || map->inode != status.st_ino || map->bytes != bytes)
            continue;
        map->users++;
        *out = map;
        close(fd);
        return FB_OK;
    }
    struct fb_client_map *map = NULL;
    if (result == FB_OK) {
        map = calloc(1, sizeof(*map));
        *why = "no memory";
        result = map == NULL ? FB_NO_MEMORY : map_memory(map, fd, bytes, why);
    }
    close(fd);
    if (result != FB_OK) {
        if (map != NULL)
            free(map->touched);
        free(map);
        return result;
    }
    map->device = status.st_dev;
    map->inode = status.st_ino;
    map->users = 1;
    map->next = maps->first;
    maps->first = map;
    *out = map;
    return FB_OK;
}

static void free_map(struct fb_client_map *map)
{
    free(map->touched);
    free(map);
}

void fb_client_map_give(struct fb_client_maps *maps, struct fb_client_map *map)
{
    FB_ASSERT(map->users > 0);
    if (--map->users > 0)
        return;
    struct fb_client_map **at = &maps->first;
    while (*at != map)
        at = &(*at)->next;
    *at = map->next;
    munmap(map->base, map->bytes);
    free_map(map);
}

void fb_client_maps_forget(struct fb_client_maps *maps)
{
    while (maps->first != NULL) {
        struct fb_client_map *map = maps->first;
        maps->first = map->next;
        free_map(map);
    }
}

void fb_client_map_touch(struct fb_client_map *map, uint64_t off, uint64_t bytes)
{
    FB_ASSERT(bytes > 0 && off <= map->bytes && bytes <= map->bytes - off);
    uint64_t last = (off + bytes - 1) / FB_CLIENT_MAP_STEP;
    for (uint64_t step = off / FB_CLIENT_MAP_STEP; step <= last; step++) {
        uint8_t bit = (uint8_t)(1u << (step % 8));
        uint8_t *byte = &map->touched[step / 8];
        if ((__atomic_load_n(byte, __ATOMIC_RELAXED) & bit) != 0)
            continue;
        uint64_t from = step * FB_CLIENT_MAP_STEP;
        /* A hint: where it fails the pages are faulted in one by one, as they are touched. */
        (void)madvise(map->base + from, fb_min_u64(FB_CLIENT_MAP_STEP, map->bytes - from),
                      MADV_POPULATE_WRITE);
        __atomic_fetch_or(byte, bit, __ATOMIC_RELAXED);
    }
}
