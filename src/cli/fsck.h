/*
 * fsck.h - looks through the file of an SSD tier without changing it.
 *
 * It goes by docs/format.md and engine/log_format.h alone, not by the code that a node runs at its
 * start, so that the two can be held against each other.
 */
#ifndef FB_CLI_FSCK_H
#define FB_CLI_FSCK_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/cli.h"
#include "engine/log_format.h"

/* Findings that are printed one by one; beyond that they are only counted. */
#define FB_FSCK_LINES_MAX 40

struct fb_fsck {
    const struct fb_cli_args *args;
    const char *path;
    int fd;
    uint64_t file_bytes;
    bool is_locked_by_other;
    struct fb_log_super super;
    /* by segment: the highest incarnation that the history says is dead; 0: none */
    uint64_t *dead;
    uint8_t *data; /* room for one part */
    /* what there is */
    uint32_t super_good, names_good, history_records, history_entries;
    uint32_t segments_used, segments_open, segments_sealed, segments_free;
    uint64_t values, tombstones, value_bytes, units, torn;
    uint64_t parts_checked;
    /* what is wrong */
    uint64_t damaged_blocks; /* superblock, names, history, headers, trailers, summaries */
    uint64_t rot;            /* descriptors that were durable and are gone */
    uint64_t lost_segments, disagreements, bad_data, unreadable;
};

/* Reads `count` blocks at `block_off` bytes of the file; a line and false if they cannot be read.
 */
bool fb_fsck_read(struct fb_fsck *fsck, uint64_t off, void *out, uint64_t bytes);

/* Counts a finding and prints it, as long as there are few. */
void fb_fsck_found(struct fb_fsck *fsck, uint64_t *counter, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Looks through one segment. */
void fb_fsck_segment(struct fb_fsck *fsck, uint32_t segment);

#endif
