/*
 * sim.h - the simulated I/O backend: devices, their faults and power cuts, from one seed.
 *
 * A simulated node's I/O is one `struct fb_sim`, which outlives the node's logic: cutting the power
 * (fb_sim_power_cut) or killing the process (fb_sim_kill) drops what is in flight, and the logic is
 * then started anew on the same fb_io. There is no clock, thread or system call inside: time comes
 * in by fb_sim_advance(), chance from the seed. The same seed and the same calls give the same
 * run; fb_sim_trace() is a hash of it.
 *
 * Values are symbolic. The arena has 16 bytes, a token, for each page of 4 KiB: (key, version and
 * page number within the value). A client writes tokens, the device keeps tokens, HASH is computed
 * over tokens; so any page can be checked at any place, and a run costs 1/256 of the copying.
 * Metadata (FB_IO_META) are real bytes at the caller's address. A device block is one or the other;
 * one read as the other is converted in a fixed way (see sim_value.c), so that no layer above can
 * tell, except by reading metadata into the arena and writing it back.
 *
 * The device model. A completed write is in the drive's volatile cache: reads see it, a power cut
 * may lose it. A flush that answers 0 makes durable what was reaped before it was submitted, and
 * nothing else (what is durable too soon is the power cut's choice). A failed flush loses some of
 * what it covers, the next one answers 0 all the same. Data of a write are taken at its submit or
 * at its completion, by chance: who changes memory in flight writes a mixture. Blocks of 4 KiB
 * become durable whole, except in a torn cut, where 512 byte sectors of a block do. The file length
 * made by GROW or by a write past the end is durable by a flush only.
 *
 * Limits: requests beyond `requests_max` in flight queue up. If the drive's cache is full, its
 * oldest write becomes durable by itself. Not safe for use by several threads at once.
 */
#ifndef FB_IO_SIM_H
#define FB_IO_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/limits.h"
#include "io/io.h"
#include "io/script.h"

#define FB_SIM_REQUESTS_MAX   65536 /* of requests_max */
#define FB_SIM_SECTOR_BYTES   512   /* what a torn metadata block is torn into */
#define FB_SIM_PPM            1000000
#define FB_SIM_KEY_MAX        (UINT64_MAX >> 1) /* key numbers of values: 1 to this */
#define FB_SIM_VERSION_MAX    ((UINT64_C(1) << 44) - 1)
#define FB_SIM_PAGE_MAX       ((UINT64_C(1) << 20) - 1) /* page numbers within a value */
#define FB_SIM_EVENT_TEXT_MAX 160

/* ---- values ---- */

/* A token: what the simulator keeps of a page of a value. {0, 0} is a page of zeros. */
struct fb_sim_page {
    uint64_t a; /* key number; with the top bit set: garbage of no value */
    uint64_t b; /* version << 20 | page number within the value */
};

/*
 * A value: a key number, a version that the writer chooses (say, the number of the put; it is not
 * the engine's generation), and a length.
 */
struct fb_sim_value {
    uint64_t key;     /* 1 to FB_SIM_KEY_MAX */
    uint64_t version; /* 0 to FB_SIM_VERSION_MAX */
    uint64_t bytes;
};

/* The token of page number `page` of a value. Asserts the three limits. */
struct fb_sim_page fb_sim_token(uint64_t key, uint64_t version, uint64_t page);

/* True if both are the same token. */
static inline bool fb_sim_page_is_equal(struct fb_sim_page x, struct fb_sim_page y)
{
    return x.a == y.a && x.b == y.b;
}

/* Writes what a token says, for messages ("key 5 version 2 page 0", "zeros", "garbage"). */
void fb_sim_page_text(struct fb_sim_page page, char *text, size_t text_bytes);

/*
 * The checksum of one leaf of `bytes` bytes whose pages are `pages` (ceil(bytes / 4096) of them):
 * XXH3-64 over the tokens with the length as seed. FB_IO_HASH computes this.
 */
uint64_t fb_sim_leaf_hash(const struct fb_sim_page *pages, uint64_t bytes);

/*
 * The checksums of leaves first_leaf .. first_leaf + count - 1 of a value, computed without the
 * arena: what an honest client says. Asserts that the value has these leaves.
 */
void fb_sim_value_leaves(const struct fb_sim_value *value, uint64_t first_leaf, uint64_t count,
                         uint64_t *leaf_out);

/* ---- the devices ---- */

enum fb_sim_cut {
    FB_SIM_CUT_ALL,    /* every unflushed and every running write is durable */
    FB_SIM_CUT_NONE,   /* none is */
    FB_SIM_CUT_RANDOM, /* each of them by chance, whole or not at all; running ones also in part */
    FB_SIM_CUT_TORN, /* each by chance whole, not at all, or block by block and sector by sector */
    FB_SIM_CUT_COUNT
};

/* "all", "none", "random" or "torn". */
const char *fb_sim_cut_name(enum fb_sim_cut cut);

/* How long things take. A request's time is base + bytes at the rate, plus jitter. */
struct fb_sim_latency {
    uint64_t base_ns[FB_IO_OP_COUNT];
    uint64_t read_bytes_per_s; /* of the device: requests of all kinds share it in turn */
    uint64_t write_bytes_per_s;
    uint64_t hash_bytes_per_s;
    uint32_t jitter_percent; /* of the time, evenly from 0 to this is added */
    uint32_t tail_ppm;       /* so many requests in a million take ... */
    uint32_t tail_factor;    /* ... this many times the time */
    uint64_t delay_ns;       /* FB_FAULT_DELAYED adds 1/2 to 3/2 of this */
    uint64_t reorder_ns;     /* FB_FAULT_REORDERED adds 1/2 to 3/2 of this */
};

/* How often things go wrong: so many requests in a million, by op and fault. All zero: never. */
struct fb_sim_rates {
    uint32_t ppm[FB_IO_OP_COUNT][FB_FAULT_COUNT];
};

/* What a cut, a failed flush, damage and time made happen, besides the faults of requests. */
#define FB_SIM_COUNTER_LIST(X)                                                        \
    X(SUBMITTED, "submitted")                   /* requests */                        \
    X(COMPLETED, "completed")                   /* requests */                        \
    X(OVERTAKEN, "overtaken")                   /* completed after a later one */     \
    X(READ_PAST_END, "read_past_end")           /* reads cut short by the length */   \
    X(NO_SPACE, "no_space")                     /* beyond the device's room */        \
    X(CACHE_FULL, "cache_full")                 /* oldest unflushed became durable */ \
    X(DATA_AT_SUBMIT, "data_at_submit")         /* writes that took data early */     \
    X(DATA_AT_COMPLETION, "data_at_completion") /* writes that took data late */      \
    X(FLUSHED, "flushed")                       /* writes made durable by a flush */  \
    X(FLUSH_FAILED_KEPT, "flush_failed_kept")   /* writes durable in spite of it */   \
    X(FLUSH_FAILED_GONE, "flush_failed_gone")   /* writes lost, old data read back */ \
    X(FLUSH_FAILED_GHOST, "flush_failed_ghost") /* writes lost, seen until the cut */ \
    X(CUT_POWER, "cut_power")                   /* power cuts */                      \
    X(CUT_KILL, "cut_kill")                     /* process deaths */                  \
    X(CUT_UNFLUSHED_KEPT, "cut_unflushed_kept") /* writes */                          \
    X(CUT_UNFLUSHED_LOST, "cut_unflushed_lost") /* writes */                          \
    X(CUT_UNFLUSHED_TORN, "cut_unflushed_torn") /* writes */                          \
    X(CUT_RUNNING_KEPT, "cut_running_kept")     /* writes */                          \
    X(CUT_RUNNING_LOST, "cut_running_lost")     /* writes */                          \
    X(CUT_RUNNING_TORN, "cut_running_torn")     /* writes */                          \
    X(CUT_SECTORS_TORN, "cut_sectors_torn")     /* blocks torn inside */              \
    X(CUT_LENGTH_LOST, "cut_length_lost")       /* device lengths that went back */   \
    X(DAMAGE_FLIP, "damage_flip")                                                     \
    X(DAMAGE_ZERO, "damage_zero")                                                     \
    X(DAMAGE_SWAP, "damage_swap")                                                     \
    X(DAMAGE_OLD, "damage_old")                                                       \
    X(DAMAGE_TRUNCATE, "damage_truncate")

enum fb_sim_counter {
#define X(symbol, name) FB_SIM_##symbol,
    FB_SIM_COUNTER_LIST(X)
#undef X
    FB_SIM_COUNTER_COUNT
};

/* The name of a counter. Static. */
const char *fb_sim_counter_name(enum fb_sim_counter counter);

/* Everything that was counted. Several runs are added up by fb_sim_counts_add(). */
struct fb_sim_counts {
    uint64_t fired[FB_IO_OP_COUNT][FB_FAULT_COUNT]; /* faults of requests that took effect */
    uint64_t counter[FB_SIM_COUNTER_COUNT];
};

/* Adds one run's counts to a sum. */
void fb_sim_counts_add(struct fb_sim_counts *sum, const struct fb_sim_counts *one);

struct fb_sim;

/*
 * Called at each I/O boundary: after a request was submitted, and after one took effect on its
 * device and before it can be reaped. boundary counts from 1. It may call fb_sim_clone_cut() and
 * the functions that look, and nothing that changes this sim.
 */
typedef void fb_sim_boundary_fn(void *context, const struct fb_sim *sim, uint64_t boundary);

struct fb_sim_config {
    uint64_t seed;
    uint64_t arena_bytes;  /* a multiple of 4096 */
    void *meta;            /* the caller's, outlives the sim */
    uint64_t meta_bytes;   /* a multiple of 4096 */
    uint32_t device_count; /* 0 to FB_DEVICES_MAX */
    uint64_t
        device_bytes[FB_DEVICES_MAX]; /* room of each, a multiple of 4096; its file starts empty */
    uint32_t requests_max;            /* in flight at once; 0: 1024 */
    uint32_t unflushed_pages_max;     /* of writes in flight and in the cache; 0: 64 Ki */
    uint32_t meta_blocks_max;         /* distinct real blocks on all devices; 0: 8,192 */
    struct fb_sim_latency latency;    /* all zero: fb_sim_latency_default() */
    struct fb_sim_rates rates;
    const struct fb_script *script; /* NULL: none. Borrowed */
    fb_sim_boundary_fn *boundary;   /* NULL: none */
    void *boundary_context;
};

/* A fast NVMe drive: 80 us to read, 20 us to write, 200 us to flush, 3 and 1.5 GB/s. */
struct fb_sim_latency fb_sim_latency_default(void);

/*
 * Makes a simulated backend with empty devices. Takes all its memory here; returns 0, or -ENOMEM,
 * or -EINVAL for a config outside its limits. It is closed by fb_io_close(fb_sim_io(sim)).
 */
int fb_sim_open(const struct fb_sim_config *config, struct fb_sim **out);

/* Begins anew with another seed: empty devices, nothing in flight, counts and trace at zero. */
void fb_sim_reset(struct fb_sim *sim, uint64_t seed);

/* The backend to hand to the logic under test. Its event descriptor is -1. */
struct fb_io *fb_sim_io(struct fb_sim *sim);

/* ---- time ---- */

/* The time of the next event, or UINT64_MAX if there is none. */
uint64_t fb_sim_next_ns(const struct fb_sim *sim);

/*
 * Lets everything happen that is due by now_ns; what has completed can then be reaped. Time must
 * not run backwards (the logic's own clock may: it is not this one). Submits happen at this time.
 */
void fb_sim_advance(struct fb_sim *sim, uint64_t now_ns);

/* How many requests were submitted and not reaped yet. */
uint32_t fb_sim_in_flight(const struct fb_sim *sim);

/* A hash of all that has happened so far: equal runs have equal traces. */
uint64_t fb_sim_trace(const struct fb_sim *sim);

/* The counts so far. Valid as long as the sim. */
const struct fb_sim_counts *fb_sim_get_counts(const struct fb_sim *sim);

/* How many I/O boundaries were passed so far. */
uint64_t fb_sim_boundaries(const struct fb_sim *sim);

/* Sets the fault rates from now on: say, all zero for a phase in which everything must end. */
void fb_sim_set_rates(struct fb_sim *sim, const struct fb_sim_rates *rates);

/* Sets the script from now on, borrowed, NULL for none; its counts of requests begin at 0. */
void fb_sim_set_script(struct fb_sim *sim, const struct fb_script *script);

/* Sets the room of a device, at most that of the config: a file system that fills up and heals. */
void fb_sim_set_room(struct fb_sim *sim, unsigned device, uint64_t bytes);

/* The length of a device's file as a reader sees it now, in bytes. */
uint64_t fb_sim_device_bytes(const struct fb_sim *sim, unsigned device);

/* ---- memory of the arena, for clients ---- */

/* The tokens of the arena, one for each page, for reading and writing at any time. */
struct fb_sim_page *fb_sim_arena(struct fb_sim *sim);

/*
 * Copies pages first .. first + count - 1 of the value's part that the extents hold, as a client
 * does. The extents' page 0 is page value_page of the value. A client that copies late or in pieces
 * calls this several times. Asserts that the extents have these pages.
 */
void fb_sim_write_pages(struct fb_sim *sim, const struct fb_io_vec *vec, unsigned vec_count,
                        const struct fb_sim_value *value, uint64_t value_page, uint64_t first,
                        uint64_t count);

/*
 * Checks the same pages: returns how many are not the value's. With *wrong not NULL, the first
 * wrong page's number within the extents is put there.
 */
uint64_t fb_sim_check_pages(struct fb_sim *sim, const struct fb_io_vec *vec, unsigned vec_count,
                            const struct fb_sim_value *value, uint64_t value_page, uint64_t first,
                            uint64_t count, uint64_t *wrong);

/* ---- crashes ---- */

/*
 * Cuts the power: requests in flight are dropped and never come back, unflushed writes fare as the
 * mode says, the arena is filled with garbage. Metadata memory is the caller's to treat. The chance
 * comes from `seed`, so that a cut does not change what the run would do otherwise.
 */
void fb_sim_power_cut(struct fb_sim *sim, enum fb_sim_cut cut, uint64_t seed);

/*
 * Kills the process and leaves the power on: requests in flight are dropped, running writes land
 * wholly, partly or not at all, unflushed writes stay unflushed. The arena is filled with garbage.
 */
void fb_sim_kill(struct fb_sim *sim, uint64_t seed);

/*
 * Makes `into` what `from` would be after fb_sim_power_cut(from, cut, seed), without touching
 * `from`. Both need the same geometry (device_count, device_bytes, meta_blocks_max); what was in
 * flight in `into` is dropped, its clock is set to that of `from`, its seed, rates, script and
 * counts stay. So one run of a scripted load, cut at every boundary from the boundary callback, is
 * run once.
 */
void fb_sim_clone_cut(const struct fb_sim *from, struct fb_sim *into, enum fb_sim_cut cut,
                      uint64_t seed);

/* ---- silent damage, durable and in the cache ---- */

/* What a device block holds. */
enum fb_sim_block_kind {
    FB_SIM_BLOCK_ZERO,
    FB_SIM_BLOCK_VALUE,
    FB_SIM_BLOCK_META
};

/* What block number `block` (4 KiB) holds, as a reader would see it now. */
enum fb_sim_block_kind fb_sim_block_kind(const struct fb_sim *sim, unsigned device, uint64_t block);

/*
 * True if what the block holds is not what the last write that was answered with success put there:
 * that write was lost, torn or misdirected, another one was misdirected to here, or the block was
 * damaged. A store may report such bytes as lost; it may never serve them.
 */
bool fb_sim_is_suspect(const struct fb_sim *sim, unsigned device, uint64_t block);

/* The bytes of a block as a reader would see them now; `out` has 4096 bytes. */
void fb_sim_peek(const struct fb_sim *sim, unsigned device, uint64_t block, void *out);

/* Overwrites a block, durably, with 4096 bytes of the caller's: for hand-made damage. */
void fb_sim_poke(struct fb_sim *sim, unsigned device, uint64_t block, const void *bytes);

/* Flips bit `bit` (0-7) of the byte at device_off. */
void fb_sim_damage_flip(struct fb_sim *sim, unsigned device, uint64_t device_off, unsigned bit);

/* Zeroes `count` blocks. */
void fb_sim_damage_zero(struct fb_sim *sim, unsigned device, uint64_t block, uint64_t count);

/* Swaps two blocks. */
void fb_sim_damage_swap(struct fb_sim *sim, unsigned device, uint64_t block, uint64_t other);

/* Puts back what each of `count` blocks held before its last write. */
void fb_sim_damage_old(struct fb_sim *sim, unsigned device, uint64_t block, uint64_t count);

/* Cuts the device's file off at `bytes`, a multiple of 512. */
void fb_sim_damage_truncate(struct fb_sim *sim, unsigned device, uint64_t bytes);

#endif
