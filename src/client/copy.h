/*
 * copy.h - does the copy jobs of a connection on real memory: one fused pass of copy and checksum
 * between a caller's scatter list and the pool.
 */
#ifndef FB_CLIENT_COPY_H
#define FB_CLIENT_COPY_H

#include <stdint.h>

#include "proto/client.h"

/*
 * Does a job. `pool` is where the node's pool is mapped; the job's runs were checked against its
 * length. Writes job->leaf_count checksums: of the bytes as they were copied, so that a writer who
 * changes the source meanwhile cannot make them differ from the copy; of bytes outside the wanted
 * range in place.
 */
void fb_copy_job(const struct fb_proto_job *job, uint8_t *pool, uint64_t *leaves);

#endif
