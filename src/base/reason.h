/*
 * Reasons: why a lookup missed, and why a key was dropped or refused. Every miss carries one, and
 * each has a counter, so that hits + misses by reason = lookups.
 *
 * The numbers are written to disk (reclaim records) and to the wire: a new reason goes to the end.
 */
#ifndef FB_BASE_REASON_H
#define FB_BASE_REASON_H

#include <stdbool.h>

/* X(symbol, label, text); the label is what metrics and `forebay explain` print. */
#define FB_REASON_LIST(X)                                                                         \
    X(NONE, "none", "no reason: the key is there")                                                \
    X(NO_RECORD, "no_record", "nothing is known of this key in the kept history")                 \
    X(NEVER_COMMITTED, "never_committed", "a put began and did not end in a commit")              \
    X(BEING_WRITTEN, "being_written", "a put is under way")                                       \
    X(REMOVED, "removed", "removed on request")                                                   \
    X(REPLACED, "replaced", "an upsert put a newer value in its place")                           \
    X(EPOCH_BUMPED, "epoch_bumped", "the namespace was invalidated")                              \
    X(EVICTED_DRAM, "evicted_dram", "dropped from memory to make room; it had no copy on disk")   \
    X(EVICTED_DIRTY, "evicted_dirty", "dropped from memory before it could be written to disk")   \
    X(RECLAIMED_SSD, "reclaimed_ssd", "its disk segment was given up to make room")               \
    X(INDEX_FULL, "index_full", "dropped because the index had no free entry")                    \
    X(BAD_CHECKSUM, "bad_checksum", "the bytes did not match their checksum")                     \
    X(TORN, "torn", "written when power or process went away, before its flush")                  \
    X(IO_ERROR, "io_error", "the device failed on it")                                            \
    X(DEVICE_FENCED, "device_fenced", "its device is out of service")                             \
    X(READ_DEADLINE, "read_deadline", "there, but not read within the deadline")                  \
    X(NO_STAGING, "no_staging", "there, but no memory came free to read it into")                 \
    X(NAMESPACE_UNKNOWN, "namespace_unknown", "the node does not know this namespace")            \
    X(QUOTA, "quota", "dropped to keep its namespace within its quota")                           \
    X(WRITER_DIED, "writer_died", "its writer's process or connection ended first")               \
    X(GRANT_EXPIRED, "grant_expired", "its writer made no progress in the time that was granted") \
    X(SHUTDOWN, "shutdown", "in memory only when the node went down")                             \
    X(CANCELLED, "cancelled", "there, but its reader withdrew or went away")

#define FB_REASON_ENUM_MEMBER(symbol, label, text) FB_REASON_##symbol,
enum fb_reason {
    FB_REASON_LIST(FB_REASON_ENUM_MEMBER) /* one member for each line above, from 0 */
    FB_REASON_COUNT
};
#undef FB_REASON_ENUM_MEMBER

/*
 * The label of a reason in lower case, say "evicted_dram"; "unknown" for a number outside the
 * list, which may come from a newer peer. The string is static.
 */
const char *fb_reason_name(int reason);

/* One sentence on a reason, without a full stop; "unknown reason" outside the list. Static. */
const char *fb_reason_text(int reason);

/* Finds a reason by its exact label. Returns true and sets *reason, or false and leaves it. */
bool fb_reason_find(const char *label, enum fb_reason *reason);

#endif
