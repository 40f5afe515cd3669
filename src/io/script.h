/*
 * script.h - kinds of I/O faults, and scripts that say which request meets which.
 *
 * Used by the simulator (sim.h) and by the wrapper that injects faults on real devices (fault.h).
 * A script is a list of rules `op:nth:fault`, separated by commas, as in
 *   write:5:EIO,read:3:short,flush:*:ENOSPC,grow:2+:ENOSPC
 * nth counts the requests of that op from 1; `5` means the fifth alone, `5+` the fifth and all
 * later ones, `*` every one.
 */
#ifndef FB_IO_SCRIPT_H
#define FB_IO_SCRIPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "io/io.h"

/*
 * The faults: symbol, name in scripts, and the ops that can meet it (bits 1 << enum fb_io_op).
 *   EIO          the request fails; of a write any part may have been done
 *   ENOSPC       the same with the other errno
 *   SHORT        fewer bytes are moved than asked, and the result says so
 *   DELAYED      the answer comes very late
 *   REORDERED    requests submitted later overtake this one
 *   TORN         a write answers success, and only some of its blocks were written
 *   MISDIRECTED  a write or read goes to another place, and answers success
 *   LOST         a write answers success and does nothing
 *   STALE        a read returns what the blocks held one write earlier
 *   LYING        a flush answers success and makes nothing durable (no honest device does it)
 */
#define FB_FAULT_ON_READ  (1u << FB_IO_READ)
#define FB_FAULT_ON_WRITE (1u << FB_IO_WRITE)
#define FB_FAULT_ON_RW    (FB_FAULT_ON_READ | FB_FAULT_ON_WRITE)
#define FB_FAULT_ON_FLUSH (1u << FB_IO_FLUSH)
#define FB_FAULT_ON_GROW  (1u << FB_IO_GROW)
#define FB_FAULT_ON_DISK  (FB_FAULT_ON_RW | FB_FAULT_ON_FLUSH | FB_FAULT_ON_GROW)
#define FB_FAULT_ON_ALL   (FB_FAULT_ON_DISK | (1u << FB_IO_HASH))

#define FB_FAULT_LIST(X)                                                          \
    X(EIO, "EIO", FB_FAULT_ON_DISK)                                               \
    X(ENOSPC, "ENOSPC", FB_FAULT_ON_WRITE | FB_FAULT_ON_FLUSH | FB_FAULT_ON_GROW) \
    X(SHORT, "short", FB_FAULT_ON_RW)                                             \
    X(DELAYED, "delayed", FB_FAULT_ON_ALL)                                        \
    X(REORDERED, "reordered", FB_FAULT_ON_ALL)                                    \
    X(TORN, "torn", FB_FAULT_ON_WRITE)                                            \
    X(MISDIRECTED, "misdirected", FB_FAULT_ON_RW)                                 \
    X(LOST, "lost", FB_FAULT_ON_WRITE)                                            \
    X(STALE, "stale", FB_FAULT_ON_READ)                                           \
    X(LYING, "lying", FB_FAULT_ON_FLUSH)

enum fb_fault {
    FB_FAULT_NONE,
#define X(symbol, name, ops) FB_FAULT_##symbol,
    FB_FAULT_LIST(X)
#undef X
    FB_FAULT_COUNT
};

#define FB_SCRIPT_RULES_MAX 64 /* rules of one script */

/* One rule: the requests number nth (or nth and later) of `op` meet `fault`. */
struct fb_script_rule {
    uint8_t op;    /* enum fb_io_op */
    uint8_t fault; /* enum fb_fault */
    bool forever;  /* nth and all later ones; otherwise nth alone */
    uint64_t nth;  /* from 1 */
};

/* A script. Plain data; all zero is the empty script. */
struct fb_script {
    uint32_t rule_count;
    struct fb_script_rule rules[FB_SCRIPT_RULES_MAX];
};

/* Name of a fault in scripts and reports ("EIO", "short"); "none" for FB_FAULT_NONE. Never NULL. */
const char *fb_script_fault_name(enum fb_fault fault);

/* Name of an op in scripts and reports ("read", "write", "flush", "hash", "grow"). Never NULL. */
const char *fb_script_op_name(enum fb_io_op op);

/* True if requests of this op can meet this fault. */
bool fb_script_applies(enum fb_io_op op, enum fb_fault fault);

/*
 * Reads a script from text; an empty text is an empty script. Returns 0, or -EINVAL with one line
 * in why that names the wrong rule; *script is then undefined. Never blocks.
 */
int fb_script_parse(const char *text, struct fb_script *script, char *why, size_t why_bytes);

/*
 * The fault that request number nth (from 1) of `op` meets: the first rule that fits, or
 * FB_FAULT_NONE.
 */
enum fb_fault fb_script_fault(const struct fb_script *script, enum fb_io_op op, uint64_t nth);

#endif
