/*
 * sweep.h - what fails once, and what fails for ever: shared by the files of the sweep.
 *
 * loads.c   ten scripted loads on a small shard and device
 * io.c      every request of every load meets every fault
 * memory.c  every allocation of a start fails
 * main.c    options, workers, counts
 */
#ifndef TEST_SWEEP_SWEEP_H
#define TEST_SWEEP_SWEEP_H

#include <stdbool.h>
#include <stdint.h>

#include "test/lib/tiny.h"

#define SWEEP_LOADS      10
#define SWEEP_TEXT_BYTES 320

/* A load: `run` begins on a device that is empty and a shard that is not started. It must cope with
 * any result of anything: the tiny shard itself keeps what was promised. */
struct sweep_load {
    const char *name;
    void (*prepare)(struct tiny *tiny); /* sizes; before tiny_open() */
    void (*run)(struct tiny *tiny);
};
extern const struct sweep_load sweep_loads[SWEEP_LOADS];

/* What the sweep did; added up over workers. */
struct sweep_counts {
    uint64_t runs, wrong, fired, requests;
    uint64_t hits, misses;
    uint64_t tier_full, tier_fenced, starts_failed;
};

/* One run of the sweep over I/O. fault: FB_FAULT_... or SWEEP_FAULT_EAGAIN. */
#define SWEEP_FAULT_EAGAIN FB_FAULT_COUNT
#define SWEEP_FAULTS       (FB_FAULT_COUNT + 1)
struct sweep_case {
    unsigned load;
    uint8_t op, fault;
    bool forever;
    uint64_t nth;
};
/* "load:op:nth[+]:fault" */
void sweep_case_text(const struct sweep_case *at, char out[SWEEP_TEXT_BYTES]);
bool sweep_case_parse(const char *text, struct sweep_case *out);

/* How many requests of each op a load makes when nothing fails; false if it fails already. */
bool sweep_io_measure(unsigned load, uint64_t requests[FB_IO_OP_COUNT], char why[SWEEP_TEXT_BYTES]);
/* Runs one case; true if all was well. */
bool sweep_io_case(const struct sweep_case *at, bool verbose, struct sweep_counts *counts,
                   char why[SWEEP_TEXT_BYTES]);
/* True if requests of this op can meet this fault. */
bool sweep_io_applies(enum fb_io_op op, unsigned fault);

/*
 * Lets each allocation of a start fail in turn; `every`: only one in so many. Returns how many runs
 * went wrong; prints what. Adds to *runs and *failed (starts that were refused, with a word).
 */
unsigned sweep_memory(unsigned every, bool verbose, uint64_t *runs, uint64_t *failed);

#endif
