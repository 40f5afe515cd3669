/*
 * sim_private.h - what the files of the simulated backend share.
 *
 *   sim.c         requests: time, faults, completions
 *   sim_device.c  blocks, the drive's cache, cuts, damage
 *   sim_value.c   tokens, and what they look like as bytes
 */
#ifndef FB_IO_SIM_PRIVATE_H
#define FB_IO_SIM_PRIVATE_H

#include "base/heap.h"
#include "base/prng.h"
#include "io/check.h"
#include "io/sim.h"

/* Tags in the `a` of a page inside the devices; no value and no garbage has them. */
#define FB_SIM_TAG_META    UINT64_MAX       /* b is the number of a real block */
#define FB_SIM_TAG_SKIP    (UINT64_MAX - 1) /* of a write: leaves the block as it is */
#define FB_SIM_TAG_GARBAGE (UINT64_C(1) << 63)

#define FB_SIM_CHUNK_PAGES 31 /* with its link a chunk has 512 bytes */
#define FB_SIM_NO_CHUNK    UINT32_MAX

/* A piece of the data of a write. */
struct fb_sim_chunk {
    uint32_t next;
    uint32_t unused[3];
    struct fb_sim_page pages[FB_SIM_CHUNK_PAGES];
};

/* The data of a write, apart from memory: `pages` pages in a chain of chunks. */
struct fb_sim_content {
    uint32_t first; /* FB_SIM_NO_CHUNK: none */
    uint32_t pages;
};

/* Goes through the pages of a content. */
struct fb_sim_walk {
    uint32_t chunk;
    uint32_t index;
};

/* One 4 KiB block of a device. Sequences order the writes of a device. */
struct fb_sim_block {
    struct fb_sim_page seen;    /* what a read returns */
    struct fb_sim_page durable; /* what a power cut leaves */
    struct fb_sim_page old;     /* what was seen before the last write */
    uint32_t seen_sequence;
    uint32_t durable_sequence;
    bool suspect; /* an acknowledged write did not arrive here, or another one's did, or damage */
};

/* A completed write that is not durable yet. */
struct fb_sim_write {
    struct fb_link link; /* of the device's cache, oldest first; or of the free list */
    struct fb_sim_content content;
    uint64_t block;
    uint64_t stamp; /* the reap that made it coverable by a flush; 0: not reaped yet */
    uint32_t sequence;
};

struct fb_sim_device {
    struct fb_sim_block *blocks;
    uint64_t block_count; /* the config's room */
    uint64_t used_blocks; /* no block from here on was ever touched */
    uint64_t room_bytes;  /* now */
    uint64_t seen_bytes;  /* length of the file */
    uint64_t durable_bytes;
    uint64_t busy_until_ns;
    uint64_t stamp;       /* of the last reaped write */
    uint32_t sequence;    /* of the write that completed last */
    struct fb_list cache; /* of struct fb_sim_write */
};

/* A request that is running. */
struct fb_sim_op {
    struct fb_io_req *req; /* NULL: free */
    uint64_t number;       /* of the submit, from 1 */
    uint64_t flush_bytes;  /* FLUSH: the length that becomes durable */
    struct fb_sim_content content;
    uint8_t fault; /* enum fb_fault */
    bool early;    /* data are taken, or hashes computed, at submit */
};

struct fb_sim {
    struct fb_io io;
    struct fb_sim_config config;
    struct fb_io_memory memory;
    struct fb_prng prng;
    uint64_t now_ns;
    uint64_t trace;
    uint64_t boundaries;
    uint64_t submits;
    uint64_t last_completed; /* highest number of a submit that has completed */
    uint64_t hash_busy_until_ns;
    uint32_t sequence;            /* of completed writes, over all devices */
    uint64_t nth[FB_IO_OP_COUNT]; /* requests counted for the script */
    uint32_t rate_total[FB_IO_OP_COUNT];
    uint32_t in_flight; /* submitted, not reaped */

    struct fb_sim_page *arena;
    struct fb_sim_op *ops;
    uint32_t *free_ops;
    uint32_t free_op_count;
    struct fb_heap heap;
    struct fb_heap_entry *heap_entries;
    struct fb_list waiting; /* requests that found no op */
    struct fb_list done;    /* requests to be reaped */

    struct fb_sim_device devices[FB_DEVICES_MAX];
    struct fb_sim_write *writes;
    uint32_t write_count;
    struct fb_list free_writes;
    struct fb_sim_chunk *chunks;
    uint32_t chunk_count;
    uint32_t free_chunk;
    uint32_t free_chunk_count;

    uint8_t *meta_blocks; /* real blocks, FB_BLOCK_BYTES each */
    uint32_t *meta_refs;
    uint32_t *meta_free;
    uint32_t meta_free_count;
    uint32_t meta_high; /* no block from here on was ever used */

    struct fb_sim_counts counts;
};

/* Goes page by page through the memory of a request. */
struct fb_sim_place {
    const struct fb_io_vec *vec;
    uint32_t off;
};

/* Counts one event. */
static inline void fb_sim_count(struct fb_sim *sim, enum fb_sim_counter counter)
{
    sim->counts.counter[counter]++;
}

/* ---- sim_value.c ---- */

/* A page of garbage that no value has. */
struct fb_sim_page fb_sim_garbage(struct fb_prng *prng);

/* The token that real bytes are read into the arena as: the one they stand for, or derived. */
struct fb_sim_page fb_sim_bytes_token(const uint8_t *bytes);

/* The 4096 bytes that a token is read into metadata memory as. */
void fb_sim_token_bytes(struct fb_sim_page page, uint8_t *bytes);

/* True if the bytes are what fb_sim_token_bytes() makes of a token, which is then put into *page.
 */
bool fb_sim_bytes_are_token(const uint8_t *bytes, struct fb_sim_page *page);

/* Computes the leaf hashes of a HASH request. */
void fb_sim_hash_request(struct fb_sim *sim, struct fb_io_req *req);

/* The page that the place stands at, as (space, page-aligned offset), and goes to the next. */
static inline struct fb_io_vec fb_sim_place_next(struct fb_sim_place *place)
{
    struct fb_io_vec page = {place->vec->off + place->off, FB_PAGE_BYTES, place->vec->space};
    place->off += FB_PAGE_BYTES;
    if (place->off >= place->vec->len) {
        place->vec++;
        place->off = 0;
    }
    return page;
}

/* ---- sim_device.c ---- */

/* Allocates the devices and their stores; -ENOMEM leaves what fb_sim_device_close() frees. */
int fb_sim_device_open(struct fb_sim *sim);

/* Frees what fb_sim_device_open() has allocated. */
void fb_sim_device_close(struct fb_sim *sim);

/* Empties all devices. */
void fb_sim_device_reset(struct fb_sim *sim);

/* Takes a page out of memory, to be kept; drop it with fb_sim_page_drop(). */
struct fb_sim_page fb_sim_page_take(struct fb_sim *to, const struct fb_sim *from,
                                    struct fb_io_vec where);

/* Lets go of a page that may be a real block. */
void fb_sim_page_drop(struct fb_sim *sim, struct fb_sim_page page);

/* The page a read of this block would see, or saw one write before. Borrowed. */
struct fb_sim_page fb_sim_block_read(const struct fb_sim *sim, unsigned device, uint64_t block,
                                     bool old);

/* A page of which the sectors in `mask` are fresh and the others are as in `before`. To be kept. */
struct fb_sim_page fb_sim_page_mix(struct fb_sim *sim, struct fb_sim_page before,
                                   struct fb_sim_page fresh, unsigned mask);

/*
 * Takes the data of a write out of memory; the oldest writes of the cache are made durable if there
 * is no room. Asserts that this is enough: data taken early hold half of the room at most.
 */
void fb_sim_content_take(struct fb_sim *sim, const struct fb_io_req *req,
                         struct fb_sim_content *content);

/* Frees a content and lets go of its pages. */
void fb_sim_content_free(struct fb_sim *sim, struct fb_sim_content *content);

/* Begins to go through the pages of a content. */
struct fb_sim_walk fb_sim_content_walk(const struct fb_sim_content *content);

/* The next page of a content, in place. Asserts that there is one. */
struct fb_sim_page *fb_sim_walk_next(const struct fb_sim *sim, struct fb_sim_walk *walk);

/*
 * Lands a content on a device at a block: reads see it from now on, and the cache has it. Takes the
 * content over, and returns the cached write.
 */
struct fb_sim_write *fb_sim_write_land(struct fb_sim *sim, unsigned device, uint64_t block,
                                       struct fb_sim_content *content);

/* Marks blocks as ones whose content an acknowledged write does not vouch for. */
void fb_sim_suspect(struct fb_sim *sim, unsigned device, uint64_t block, uint64_t count);

/* Makes durable what was reaped up to `stamp`, and a length of the file. */
void fb_sim_flush_done(struct fb_sim *sim, unsigned device, uint64_t stamp, uint64_t bytes);

/* A flush has failed: of the writes that it covers some are durable, some are lost. */
void fb_sim_flush_failed(struct fb_sim *sim, unsigned device, uint64_t stamp);

/* What running writes and the cache become at a power cut, from `from` onto the blocks of `to`. */
void fb_sim_cut_devices(const struct fb_sim *from, struct fb_sim *to, enum fb_sim_cut cut,
                        struct fb_prng *prng);

/* Makes the blocks of `to` those of `from`. The cache of `to` must be empty and stays so. */
void fb_sim_device_copy(const struct fb_sim *from, struct fb_sim *to);

/* Counts anew which real blocks are in use; nothing may be in flight or in a cache. */
void fb_sim_meta_recount(struct fb_sim *sim);

/* Empties the caches of all devices without an effect on blocks. */
void fb_sim_cache_forget(struct fb_sim *sim);

#endif
