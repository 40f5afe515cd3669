/*
 * fault.h - wraps a backend and makes chosen requests fail: for sweeps over real backends. Only in
 * builds with FB_TEST_HOOKS.
 *
 * The script (script.h) counts requests of all devices by op. What each fault does here:
 *   EIO, ENOSPC  the request is not carried out
 *   short        the first half of its pages is moved, or of one page 512 bytes are said to be
 *   torn         a write of the first half of its pages answers success; of one page, none
 *   lost, lying  a write, or a flush, is not carried out and answers success
 *   misdirected  the request goes to the start of the device, or if it was meant for there, behind
 *   reordered    it is begun after the next few reaps
 *   delayed      it is begun after many reaps
 * `stale` needs the past of a device and is refused.
 */
#ifndef FB_IO_FAULT_H
#define FB_IO_FAULT_H

#ifdef FB_TEST_HOOKS

#include "io/io.h"
#include "io/script.h"

/*
 * Wraps `inner`, which fb_io_close() of the wrapper closes too. The script is copied. Returns 0,
 * -ENOMEM, or -EINVAL for a script with `stale`; `inner` is then still the caller's.
 */
int fb_fault_open(struct fb_io *inner, const struct fb_script *script, struct fb_io **out);

/* How many requests of an op were submitted so far: for a sweep, to know when to stop. */
uint64_t fb_fault_submitted(const struct fb_io *io, enum fb_io_op op);

/* How many faults took effect so far. */
uint64_t fb_fault_fired(const struct fb_io *io);

#endif

#endif
