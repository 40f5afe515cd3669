/*
 * How fast the simulator is with a stub in place of the engine, and that a seed fixes a run.
 *
 * The stub does what an engine cannot do without: clients copy values in pieces, late; each value
 * is hashed and compared with what its client says; a descriptor block is filled and hashed; value
 * and descriptor are written in one request; a flush; the value is read back and hashed again. It
 * keeps no index, and it retries what failed from the beginning. Faults are on at a low rate.
 *
 * An event is a step of a client or a completed request. Figures are printed, for the build that
 * this is; nothing is asserted about time, only that the same seed gives the same run.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/bits.h"
#include "base/hash.h"
#include "base/heap.h"
#include "base/prng.h"
#include "io/sim.h"
#include "test/lib/cm.h"

#define SLOTS        48
#define SLOT_PAGES   320
#define RUNS         2 /* extents of a value */
#define LEAVES_MAX   (SLOT_PAGES * FB_PAGE_BYTES / FB_LEAF_BYTES + 1)
#define DEVICE_BYTES FB_MIB(128)
#define EVENTS       10000 /* a seed of the simulator proper */
#define SEEDS        20
#define THINK_NS     (200 * FB_US_NS)
#define REAP_MAX     32

#if defined(__SANITIZE_ADDRESS__)
#define BUILD "ASan"
#else
#define BUILD "plain"
#endif

enum step {
    COPY,
    HASH,
    WRITE,
    FLUSH,
    READ,
    CHECK
};

/* One client's value on its way. */
struct slot {
    enum step step;
    struct fb_io_req req;
    struct fb_io_vec vec[1 + RUNS]; /* the descriptor and the value's extents */
    struct fb_sim_value value;
    uint64_t pages;
    uint64_t copied;
    uint64_t device_off;
    uint64_t said[LEAVES_MAX]; /* by the client */
    uint64_t leaves[LEAVES_MAX];
};

struct stub {
    struct fb_sim *sim;
    struct fb_io *io;
    uint8_t *meta;
    struct fb_prng prng;
    struct fb_heap heap;
    struct fb_heap_entry entries[SLOTS];
    struct slot slots[SLOTS];
    uint64_t now_ns;
    uint64_t head; /* where the log goes on */
    uint64_t pages_max;
    uint64_t events;
    uint64_t operations; /* values that went all the way */
    uint64_t failures;
    uint64_t trace;
};

static void later(struct stub *stub, unsigned index, uint64_t delay_ns)
{
    const uint64_t due_ns = stub->now_ns + fb_prng_between(&stub->prng, 1, delay_ns);
    assert_true(fb_heap_push(&stub->heap, due_ns, index));
}

/* A client begins with a new value: sizes from one page to the most, small ones more often. */
static void begin(struct stub *stub, unsigned index)
{
    struct slot *slot = &stub->slots[index];
    slot->pages = 1 + fb_prng_below(&stub->prng, 1 + fb_prng_below(&stub->prng, stub->pages_max));
    slot->value.key = 1 + fb_prng_below(&stub->prng, 1000);
    slot->value.version = stub->operations;
    slot->value.bytes = slot->pages * FB_PAGE_BYTES - fb_prng_below(&stub->prng, FB_PAGE_BYTES);
    slot->copied = 0;
    slot->step = COPY;
    const uint64_t first = slot->pages / 2;
    const uint64_t base = (uint64_t)index * SLOT_PAGES * FB_PAGE_BYTES;
    slot->vec[0] = (struct fb_io_vec){(uint64_t)index * FB_PAGE_BYTES, FB_PAGE_BYTES, FB_IO_META};
    slot->vec[1] =
        (struct fb_io_vec){base + first * FB_PAGE_BYTES,
                           (uint32_t)((slot->pages - first) * FB_PAGE_BYTES), FB_IO_ARENA};
    slot->vec[2] = (struct fb_io_vec){base, (uint32_t)(first * FB_PAGE_BYTES), FB_IO_ARENA};
    later(stub, index, THINK_NS);
}

static unsigned extents(const struct slot *slot)
{
    return slot->pages > 1 ? RUNS : 1;
}

static void submit_hash(struct stub *stub, unsigned index)
{
    struct slot *slot = &stub->slots[index];
    struct fb_io_vec *last = &slot->vec[extents(slot)];
    /* The last page need not be whole; for writing it is made so again. */
    last->len -= (uint32_t)(slot->pages * FB_PAGE_BYTES - slot->value.bytes);
    slot->req = (struct fb_io_req){.op = FB_IO_HASH,
                                   .vec = slot->vec + 1,
                                   .vec_count = (uint16_t)extents(slot),
                                   .len = slot->value.bytes,
                                   .leaf_out = slot->leaves,
                                   .leaf_count = LEAVES_MAX,
                                   .cookie = index};
    fb_io_submit(stub->io, &slot->req);
}

/* The client has copied all and says so: its leaves are what the engine must find. */
static void commit(struct stub *stub, unsigned index)
{
    struct slot *slot = &stub->slots[index];
    const uint64_t leaves = fb_div_up(slot->value.bytes, FB_LEAF_BYTES);
    fb_sim_value_leaves(&slot->value, 0, leaves, slot->said);
    slot->step = HASH;
    submit_hash(stub, index);
}

static void client_step(struct stub *stub, unsigned index)
{
    struct slot *slot = &stub->slots[index];
    stub->events++;
    assert_int_equal(slot->step, COPY);
    const uint64_t left = slot->pages - slot->copied;
    const uint64_t piece = left <= 8 ? left : fb_prng_between(&stub->prng, left / 2, left);
    fb_sim_write_pages(stub->sim, slot->vec + 1, extents(slot), &slot->value, 0, slot->copied,
                       piece);
    slot->copied += piece;
    if (slot->copied < slot->pages)
        later(stub, index, THINK_NS);
    else
        commit(stub, index);
}

static void submit_transfer(struct stub *stub, unsigned index, enum fb_io_op op)
{
    struct slot *slot = &stub->slots[index];
    slot->req = (struct fb_io_req){.op = (uint8_t)op,
                                   .vec = slot->vec,
                                   .vec_count = (uint16_t)(1 + extents(slot)),
                                   .len = (1 + slot->pages) * FB_PAGE_BYTES,
                                   .device_off = slot->device_off,
                                   .cookie = index};
    fb_io_submit(stub->io, &slot->req);
}

static bool leaves_are_right(const struct slot *slot)
{
    const uint64_t leaves = fb_div_up(slot->value.bytes, FB_LEAF_BYTES);
    return memcmp(slot->said, slot->leaves, leaves * sizeof slot->leaves[0]) == 0;
}

static void append(struct stub *stub, unsigned index)
{
    struct slot *slot = &stub->slots[index];
    const uint64_t bytes = (1 + slot->pages) * FB_PAGE_BYTES;
    uint8_t *descriptor = stub->meta + slot->vec[0].off;
    if (stub->head + bytes > DEVICE_BYTES)
        stub->head = 0;
    slot->device_off = stub->head;
    stub->head += bytes;
    memset(descriptor, 0, FB_PAGE_BYTES);
    memcpy(descriptor + sizeof(uint64_t), &slot->value, sizeof slot->value);
    memcpy(descriptor + 64, slot->said, sizeof slot->said);
    const uint64_t hash = fb_hash64(descriptor + sizeof hash, FB_PAGE_BYTES - sizeof hash, 0);
    memcpy(descriptor, &hash, sizeof hash);
    slot->step = WRITE;
    submit_transfer(stub, index, FB_IO_WRITE);
}

static void completed(struct stub *stub, struct fb_io_req *req)
{
    const unsigned index = (unsigned)req->cookie;
    struct slot *slot = &stub->slots[index];
    stub->events++;
    stub->trace = fb_mix64(stub->trace ^ stub->now_ns ^ (uint64_t)req->result ^ index);
    const bool moves = req->op == FB_IO_READ || req->op == FB_IO_WRITE;
    if (req->op == FB_IO_HASH) {
        struct fb_io_vec *last = &slot->vec[extents(slot)];
        last->len = (uint32_t)fb_align_up(last->len, FB_PAGE_BYTES);
    }
    if (moves ? req->result != (int64_t)req->len : req->result != 0) {
        stub->failures++;
        begin(stub, index);
        return;
    }
    switch (slot->step) {
    case HASH:
        assert_true(leaves_are_right(slot));
        append(stub, index);
        break;
    case WRITE:
        slot->step = FLUSH;
        slot->req = (struct fb_io_req){.op = FB_IO_FLUSH, .cookie = index};
        fb_io_submit(stub->io, &slot->req);
        break;
    case FLUSH:
        slot->step = READ;
        submit_transfer(stub, index, FB_IO_READ);
        break;
    case READ:
        slot->step = CHECK;
        submit_hash(stub, index);
        break;
    default:
        /* With lost and misdirected writes about, what comes back may be wrong, and is seen. */
        stub->failures += !leaves_are_right(slot);
        stub->operations++;
        begin(stub, index);
        break;
    }
}

static void turn(struct stub *stub)
{
    struct fb_io_req *out[REAP_MAX];
    struct fb_heap_entry entry;
    stub->now_ns = fb_min_u64(fb_heap_next_ns(&stub->heap), fb_sim_next_ns(stub->sim));
    assert_true(stub->now_ns != UINT64_MAX);
    fb_sim_advance(stub->sim, stub->now_ns);
    for (size_t n = fb_io_reap(stub->io, out, REAP_MAX); n > 0;
         n = fb_io_reap(stub->io, out, REAP_MAX)) {
        for (size_t i = 0; i < n; i++)
            completed(stub, out[i]);
    }
    while (fb_heap_pop_due(&stub->heap, stub->now_ns, &entry))
        client_step(stub, (unsigned)entry.item);
}

static struct fb_sim_rates low_rates(void)
{
    struct fb_sim_rates rates = {0};
    for (unsigned op = 0; op < FB_IO_OP_COUNT; op++) {
        for (unsigned fault = FB_FAULT_NONE + 1; fault < FB_FAULT_LYING; fault++)
            rates.ppm[op][fault] = 300;
    }
    return rates;
}

static void stub_open(struct stub *stub)
{
    struct fb_sim_config config = {.arena_bytes = (uint64_t)SLOTS * SLOT_PAGES * FB_PAGE_BYTES,
                                   .meta_bytes = (uint64_t)SLOTS * FB_PAGE_BYTES,
                                   .device_count = 1,
                                   .device_bytes = {DEVICE_BYTES},
                                   .rates = low_rates()};
    config.meta = stub->meta = calloc(1, config.meta_bytes);
    assert_non_null(stub->meta);
    assert_int_equal(fb_sim_open(&config, &stub->sim), 0);
    stub->io = fb_sim_io(stub->sim);
}

/* One seed: returns the hash of the run. */
static uint64_t run_seed(struct stub *stub, uint64_t seed, uint64_t pages_max)
{
    fb_sim_reset(stub->sim, seed);
    fb_prng_seed(&stub->prng, seed);
    fb_heap_init(&stub->heap, stub->entries, SLOTS);
    stub->pages_max = pages_max;
    stub->now_ns = 0;
    stub->head = 0;
    stub->events = 0;
    stub->operations = 0;
    stub->trace = 0;
    for (unsigned i = 0; i < SLOTS; i++)
        begin(stub, i);
    while (stub->events < EVENTS)
        turn(stub);
    return fb_mix64(stub->trace ^ fb_sim_trace(stub->sim));
}

static uint64_t cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * FB_SEC_NS + (uint64_t)now.tv_nsec;
}

static void print_speed(struct stub *stub, const char *what, uint64_t pages_max)
{
    uint64_t events = 0;
    uint64_t operations = 0;
    const uint64_t begin_ns = cpu_ns();
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        run_seed(stub, seed, pages_max);
        events += stub->events;
        operations += stub->operations;
    }
    const double us = (double)(cpu_ns() - begin_ns) / 1e3;
    print_message("%s, %s: %.2f us an event, %.1f us a value written and read back, %.1f ms a seed "
                  "of %d events\n",
                  BUILD, what, us / (double)events, us / (double)operations, us / SEEDS / 1e3,
                  EVENTS);
}

static void test_speed(void **state)
{
    (void)state;
    struct stub *stub = calloc(1, sizeof *stub);
    assert_non_null(stub);
    stub_open(stub);
    print_speed(stub, "values up to 20 KiB", 5);
    print_speed(stub, "values up to 128 KiB", 32);
    print_speed(stub, "values up to 1.3 MB", SLOT_PAGES);
    fb_io_close(stub->io);
    free(stub->meta);
    free(stub);
}

static void test_cost_of_a_crash(void **state)
{
    (void)state;
    struct stub *stub = calloc(1, sizeof *stub);
    struct stub *other = calloc(1, sizeof *other);
    assert_true(stub && other);
    stub_open(stub);
    stub_open(other);
    uint64_t clone_ns = 0;
    uint64_t cut_ns = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        run_seed(stub, seed, 32);
        const uint64_t begin_ns = cpu_ns();
        fb_sim_clone_cut(stub->sim, other->sim, seed % FB_SIM_CUT_COUNT, seed);
        const uint64_t cloned_ns = cpu_ns();
        fb_sim_power_cut(stub->sim, seed % FB_SIM_CUT_COUNT, seed);
        clone_ns += cloned_ns - begin_ns;
        cut_ns += cpu_ns() - cloned_ns;
    }
    print_message("%s, a device of %u MiB: %.0f us to clone it as a cut leaves it, %.0f us to cut "
                  "its power\n",
                  BUILD, (unsigned)(DEVICE_BYTES >> 20), (double)clone_ns / SEEDS / 1e3,
                  (double)cut_ns / SEEDS / 1e3);
    fb_io_close(stub->io);
    fb_io_close(other->io);
    free(stub->meta);
    free(other->meta);
    free(stub);
    free(other);
}

static void test_a_seed_fixes_a_run(void **state)
{
    (void)state;
    struct stub *stub = calloc(1, sizeof *stub);
    assert_non_null(stub);
    uint64_t traces[4];
    for (unsigned i = 0; i < 4; i++) {
        stub_open(stub);
        traces[i] = run_seed(stub, i / 2, 32);
        assert_true(stub->operations > EVENTS / 20);
        /* In a simulator that has run before as well. */
        run_seed(stub, 77, 5);
        assert_true(run_seed(stub, i / 2, 32) == traces[i]);
        fb_io_close(stub->io);
        free(stub->meta);
    }
    free(stub);
    assert_true(traces[0] == traces[1]);
    assert_true(traces[2] == traces[3]);
    assert_true(traces[0] != traces[2]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_seed_fixes_a_run),
        cmocka_unit_test(test_speed),
        cmocka_unit_test(test_cost_of_a_crash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
