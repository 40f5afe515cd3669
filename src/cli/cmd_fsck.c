/* forebay fsck: superblock, namespace table, history ring, then every segment. See fsck.h. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bits.h"
#include "base/limits.h"
#include "base/size.h"
#include "cli/fsck.h"

#define DEFAULT_FILE "forebay.ssd"
#define PATH_BYTES   4096

/* ---- reading and reporting ---- */

bool fb_fsck_read(struct fb_fsck *fsck, uint64_t off, void *out, uint64_t bytes)
{
    uint8_t *at = out;
    if (off >= fsck->file_bytes || bytes > fsck->file_bytes - off) {
        memset(out, 0, bytes); /* behind the end of the file everything is zero */
        bytes = off >= fsck->file_bytes ? 0 : fsck->file_bytes - off;
    }
    while (bytes > 0) {
        ssize_t got = pread(fsck->fd, at, bytes, (off_t)off);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            fb_fsck_found(fsck, &fsck->unreadable, "byte %" PRIu64 ": cannot be read: %s", off,
                          got == 0 ? "the file ends" : strerror(errno));
            return false;
        }
        at += got;
        off += (uint64_t)got;
        bytes -= (uint64_t)got;
    }
    return true;
}

static uint64_t faults_of(const struct fb_fsck *fsck)
{
    return fsck->damaged_blocks + fsck->rot + fsck->lost_segments + fsck->disagreements +
           fsck->bad_data + fsck->unreadable;
}

void fb_fsck_found(struct fb_fsck *fsck, uint64_t *counter, const char *format, ...)
{
    uint64_t before = faults_of(fsck);
    ++*counter;
    if (fsck->args->json || before > FB_FSCK_LINES_MAX)
        return;
    fb_cli_progress_end();
    if (before == FB_FSCK_LINES_MAX) {
        printf("... further findings are only counted\n");
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
}

/* ---- the parts before the segments ---- */

/* The superblock that counts. False, with a line: nothing can be said of this file. */
static bool read_super(struct fb_fsck *fsck)
{
    uint8_t block[FB_BLOCK_BYTES];
    bool any = false;
    unsigned zero = 0;
    for (uint32_t copy = 0; copy < FB_LOG_SUPER_COPIES; copy++) {
        struct fb_log_super super;
        if (!fb_fsck_read(fsck, fb_log_format_super_off(copy), block, sizeof(block)))
            continue;
        enum fb_log_block is = fb_log_format_super_get(block, copy, &super);
        if (is == FB_LOG_BLOCK_VERSION) {
            fb_cli_error("%s: format version %u, this forebay knows version %u", fsck->path,
                         super.version, FB_LOG_VERSION);
            return false;
        }
        if (is == FB_LOG_BLOCK_GOOD) {
            fsck->super_good++;
            if (!any || super.sequence > fsck->super.sequence)
                fsck->super = super;
            any = true;
            continue;
        }
        zero += is == FB_LOG_BLOCK_ZERO;
        fb_fsck_found(fsck, &fsck->damaged_blocks, "copy %u of the superblock is %s", copy,
                      is == FB_LOG_BLOCK_ZERO ? "empty" : "damaged");
    }
    if (!any)
        fb_cli_error(
            "%s: %s", fsck->path,
            zero == FB_LOG_SUPER_COPIES
                ? "no superblock: the file is empty, or was never used by forebayd"
                : "no superblock is whole: this is no SSD tier of forebayd, or it is lost");
    return any;
}

static void read_names(struct fb_fsck *fsck)
{
    uint8_t block[FB_BLOCK_BYTES];
    uint8_t *body = malloc(FB_LOG_NAMES_BYTES_MAX);
    unsigned zero = 0;
    for (uint32_t slot = 0; body != NULL && slot < FB_LOG_NAMES_SLOTS; slot++) {
        struct fb_log_names_head head;
        uint64_t off = fsck->super.geometry.names_off + (uint64_t)slot * FB_LOG_NAMES_SLOT_BYTES;
        if (!fb_fsck_read(fsck, off, block, sizeof(block)))
            continue;
        enum fb_log_block is = fb_log_format_names_get(block, fsck->super.device_id, slot, &head);
        zero += is == FB_LOG_BLOCK_ZERO;
        if (is == FB_LOG_BLOCK_GOOD && head.bytes <= FB_LOG_NAMES_BYTES_MAX &&
            fb_fsck_read(fsck, off + FB_BLOCK_BYTES, body, head.bytes) &&
            fb_log_format_names_checksum(body, head.bytes, head.sequence) == head.checksum)
            fsck->names_good++;
    }
    free(body);
    if (fsck->names_good < FB_LOG_NAMES_SLOTS && zero < FB_LOG_NAMES_SLOTS)
        fb_fsck_found(fsck, &fsck->damaged_blocks, "%u of %u slots of the namespace table are good",
                      fsck->names_good, FB_LOG_NAMES_SLOTS);
}

/* A record of the history is in force only if all its blocks are there, one behind the other. */
static void read_history(struct fb_fsck *fsck)
{
    uint8_t block[FB_BLOCK_BYTES];
    uint32_t blocks = (uint32_t)(fsck->super.geometry.history_bytes / FB_BLOCK_BYTES);
    struct fb_log_history_head begun = {.count = 0};
    uint32_t have = 0;
    uint32_t entries = 0;
    for (uint32_t i = 0; i < blocks; i++) {
        struct fb_log_history_head head;
        uint64_t off = fsck->super.geometry.history_off + (uint64_t)i * FB_BLOCK_BYTES;
        enum fb_log_block is = FB_LOG_BLOCK_FOREIGN;
        if (fb_fsck_read(fsck, off, block, sizeof(block)))
            is = fb_log_format_history_get(block, fsck->super.device_id, i, &head);
        if (is == FB_LOG_BLOCK_DAMAGED)
            fb_fsck_found(fsck, &fsck->damaged_blocks, "block %u of the history is damaged", i);
        if (is != FB_LOG_BLOCK_GOOD) {
            have = 0;
            continue;
        }
        bool goes_on = have > 0 && head.index == have && head.segment == begun.segment &&
                       head.incarnation == begun.incarnation && head.count == begun.count;
        if (!goes_on) {
            have = 0;
            entries = 0;
            begun = head;
            if (head.index != 0)
                continue;
        }
        have++;
        entries += head.entries;
        if (have < head.count || head.segment >= fsck->super.geometry.segments)
            continue;
        fsck->history_records++;
        fsck->history_entries += entries;
        fsck->dead[head.segment] = fb_max_u64(fsck->dead[head.segment], head.incarnation);
        have = 0;
    }
}

static void read_segments(struct fb_fsck *fsck)
{
    const struct fb_log_geometry *geometry = &fsck->super.geometry;
    for (uint32_t i = 0; i < geometry->segments; i++) {
        if (geometry->segments_off + i * geometry->segment_bytes >= fsck->file_bytes)
            return; /* the file is grown as segments are needed */
        fb_cli_progress(fsck->args, "segment %u of %u", i, geometry->segments);
        fb_fsck_segment(fsck, i);
    }
}

/* ---- output ---- */

static void print_text(const struct fb_fsck *fsck)
{
    char bytes[FB_SIZE_TEXT_BYTES], cap[FB_SIZE_TEXT_BYTES], values[FB_SIZE_TEXT_BYTES];
    fb_size_print(bytes, sizeof(bytes), fsck->file_bytes);
    fb_size_print(cap, sizeof(cap), fsck->super.capacity_bytes);
    fb_size_print(values, sizeof(values), fsck->value_bytes);
    printf("%s: %s of at most %s, format %u, node %" PRIu64 ", started %u times\n", fsck->path,
           bytes, cap, fsck->super.version, fsck->super.node_id, fsck->super.boot);
    printf("superblock: %u of %d copies good\n", fsck->super_good, FB_LOG_SUPER_COPIES);
    printf("history: %u segments given up, with %u values\n", fsck->history_records,
           fsck->history_entries);
    printf("segments: %u in use (%u sealed, %u open), %u free\n", fsck->segments_used,
           fsck->segments_sealed, fsck->segments_open, fsck->segments_free);
    printf("records: %" PRIu64 " parts of values with %s, %" PRIu64 " tombstones\n", fsck->values,
           values, fsck->tombstones);
    if (fsck->args->data)
        printf("bytes of %" PRIu64 " parts were checked\n", fsck->parts_checked);
    if (fsck->torn > 0)
        printf("torn at the last crash (never acknowledged, no fault): %" PRIu64 "\n", fsck->torn);
    if (fsck->is_locked_by_other)
        printf("note: a node has this file open; what it is writing may look damaged\n");
    printf("faults: %" PRIu64 " damaged blocks, %" PRIu64 " lost descriptors, %" PRIu64
           " lost segments, %" PRIu64 " disagreements, %" PRIu64
           " values with wrong bytes, %" PRIu64 " unreadable places\n",
           fsck->damaged_blocks, fsck->rot, fsck->lost_segments, fsck->disagreements,
           fsck->bad_data, fsck->unreadable);
    printf("%s\n", faults_of(fsck) == 0 ? "clean" : "damaged");
}

static void print_json(const struct fb_fsck *fsck)
{
    printf("{\"path\":");
    fb_cli_print_json(stdout, fsck->path, strlen(fsck->path));
    printf(",\"clean\":%s,\"in_use\":%s,\"file_bytes\":%" PRIu64 ",\"capacity_bytes\":%" PRIu64
           ",\"node_id\":%" PRIu64 ",\"boot\":%u,\"superblocks_good\":%u,\"names_good\":%u",
           faults_of(fsck) == 0 ? "true" : "false", fsck->is_locked_by_other ? "true" : "false",
           fsck->file_bytes, fsck->super.capacity_bytes, fsck->super.node_id, fsck->super.boot,
           fsck->super_good, fsck->names_good);
    printf(",\"history_records\":%u,\"history_entries\":%u,\"segments_used\":%u,"
           "\"segments_sealed\":%u,\"segments_open\":%u,\"segments_free\":%u",
           fsck->history_records, fsck->history_entries, fsck->segments_used, fsck->segments_sealed,
           fsck->segments_open, fsck->segments_free);
    printf(",\"units\":%" PRIu64 ",\"values\":%" PRIu64 ",\"value_bytes\":%" PRIu64
           ",\"tombstones\":%" PRIu64 ",\"parts_checked\":%" PRIu64 ",\"torn\":%" PRIu64,
           fsck->units, fsck->values, fsck->value_bytes, fsck->tombstones, fsck->parts_checked,
           fsck->torn);
    printf(",\"damaged_blocks\":%" PRIu64 ",\"rot\":%" PRIu64 ",\"lost_segments\":%" PRIu64
           ",\"disagreements\":%" PRIu64 ",\"bad_data\":%" PRIu64 ",\"unreadable\":%" PRIu64 "}\n",
           fsck->damaged_blocks, fsck->rot, fsck->lost_segments, fsck->disagreements,
           fsck->bad_data, fsck->unreadable);
}

/* ---- the command ---- */

/* Opens the file, or the one in a directory, and says whether somebody else has it locked. */
static bool open_file(struct fb_fsck *fsck, char path[PATH_BYTES])
{
    const char *given = fsck->args->words[0];
    struct stat status;
    bool is_directory = stat(given, &status) == 0 && S_ISDIR(status.st_mode);
    snprintf(path, PATH_BYTES, "%s%s", given, is_directory ? "/" DEFAULT_FILE : "");
    fsck->path = path;
    fsck->fd = open(path, O_RDONLY | O_CLOEXEC);
    off_t end = fsck->fd < 0 ? -1 : lseek(fsck->fd, 0, SEEK_END);
    if (end < 0) {
        fb_cli_error("%s: cannot open: %s", path, strerror(errno));
        return false;
    }
    fsck->file_bytes = (uint64_t)end;
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    fsck->is_locked_by_other = fcntl(fsck->fd, F_OFD_SETLK, &lock) < 0;
    return true;
}

static int check_file(struct fb_fsck *fsck)
{
    if (!read_super(fsck))
        return FB_CLI_BROKEN;
    fsck->dead = calloc(fsck->super.geometry.segments, sizeof(*fsck->dead));
    fsck->data = malloc(FB_CHUNK_BYTES_MAX);
    if (fsck->dead == NULL || fsck->data == NULL) {
        fb_cli_error("no memory");
        return FB_CLI_FAILED;
    }
    read_names(fsck);
    read_history(fsck);
    read_segments(fsck);
    fb_cli_progress_end();
    if (fsck->args->json)
        print_json(fsck);
    else
        print_text(fsck);
    return faults_of(fsck) == 0 ? FB_CLI_OK : FB_CLI_BROKEN;
}

int fb_cli_fsck(const struct fb_cli_args *args)
{
    char path[PATH_BYTES];
    struct fb_fsck fsck = {.args = args, .fd = -1};
    int code = FB_CLI_FAILED;
    if (open_file(&fsck, path))
        code = check_file(&fsck);
    if (fsck.fd >= 0)
        close(fsck.fd);
    free(fsck.dead);
    free(fsck.data);
    return code;
}
