/*
 * One test for every backend of the I/O seam: random requests against a model in memory.
 *
 * The test knows nothing of the backend but io.h; memory is reached through struct test_io, since
 * the simulator's arena has tokens where others have bytes. A page of real bytes is made from a
 * token, so that both are compared the same way.
 */
#ifndef TEST_LIB_IO_CONFORM_H
#define TEST_LIB_IO_CONFORM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "io/io.h"
#include "io/sim.h"

#define TEST_IO_SLOTS      32 /* requests in flight at once */
#define TEST_IO_SLOT_PAGES 80 /* pages of arena of one slot: a leaf and a piece */
#define TEST_IO_META_PAGES 4  /* pages of metadata of one slot */

/* What a backend's memory must have for the test. */
#define TEST_IO_ARENA_BYTES ((uint64_t)TEST_IO_SLOTS * TEST_IO_SLOT_PAGES * FB_PAGE_BYTES)
#define TEST_IO_META_BYTES  ((uint64_t)TEST_IO_SLOTS * TEST_IO_META_PAGES * FB_PAGE_BYTES)

struct test_io {
    struct fb_io *io;
    uint8_t *arena;      /* real memory, or NULL if sim is set */
    uint8_t *meta;       /* real memory */
    struct fb_sim *sim;  /* the simulator, or NULL */
    uint64_t now_ns;     /* the simulator's time */
    uint32_t devices;    /* devices 0 .. devices-1 are used */
    uint64_t file_bytes; /* each device's length, fully written by the test */
};

/* Writes a token's page into the arena at a page-aligned offset. */
void test_io_put(struct test_io *test, uint64_t arena_off, struct fb_sim_page page);

/* True if the arena's page is the token's, byte for byte. */
bool test_io_is(const struct test_io *test, uint64_t arena_off, struct fb_sim_page page);

/* The 4096 bytes that stand for a token in real memory. */
void test_io_bytes(struct fb_sim_page page, uint8_t *bytes);

/*
 * Waits until something has completed, or until the test's own limit of 30 s is over; then the
 * cmocka test fails. The simulator's time goes to its next event.
 */
void test_io_wait(struct test_io *test);

/* Submits one request and waits for it; nothing else may be in flight. Returns its result. */
int64_t test_io_run(struct test_io *test, struct fb_io_req *req);

/* Reads or writes `pages` pages of one device from or to one run of arena, and waits. */
int64_t test_io_move(struct test_io *test, enum fb_io_op op, unsigned device, uint64_t device_off,
                     uint64_t arena_off, uint64_t pages);

/* Flushes a device and waits. */
int64_t test_io_flush(struct test_io *test, unsigned device);

/*
 * The test: fills every device, then `steps` random requests with up to TEST_IO_SLOTS in flight:
 * reads and writes of one or many runs of arena and metadata, flushes, hashes, growth; each answer
 * is checked. Short counts are gone on with; any other failure fails the cmocka test.
 */
void test_io_conform(struct test_io *test, uint64_t seed, unsigned steps);

#endif
