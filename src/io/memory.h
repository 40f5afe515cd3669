/*
 * memory.h - backing the DRAM pool by memory, in huge pages where the system has them.
 *
 * A pool of 4 KiB pages costs the device path dearly: a transfer of 1 MiB is 256 segments, which
 * the kernel pins one by one and the block layer splits into several commands. In huge pages it is
 * one. Shared memory gets them by MADV_COLLAPSE only (Linux 6.1), whatever
 * /sys/kernel/mm/transparent_hugepage/shmem_enabled says; elsewhere the pages stay small.
 */
#ifndef FB_IO_MEMORY_H
#define FB_IO_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "base/limits.h"

#define FB_MEMORY_HUGE_BYTES FB_MIB(2)

/*
 * Backs bytes off .. off + bytes - 1 of a shared mapping of the memfd `fd` at `base` by memory, so
 * that later touches do not fault. base, off and bytes are multiples of 4096; huge pages need base
 * and off to be multiples of FB_MEMORY_HUGE_BYTES. Adds to *huge_bytes how much is in huge pages.
 * Content is kept. Returns 0, or -errno (-ENOSPC, -ENOMEM: there is no such memory) with the
 * mapping as usable as before. Blocks, about 0.6 s a GiB: call it on a thread that may, in pieces.
 */
int fb_memory_fault(int fd, uint8_t *base, uint64_t off, uint64_t bytes, uint64_t *huge_bytes);

#endif
