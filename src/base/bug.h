/*
 * Planted bugs: places where a test build can be told to do the wrong thing, so that a test can
 * show that it would notice. In release builds FB_BUG() is the constant false and the wrong code is
 * compiled out.
 */
#ifndef FB_BASE_BUG_H
#define FB_BASE_BUG_H

#include <stdbool.h>
#include <stdint.h>

/* X(symbol, name, what goes wrong) */
#define FB_BUG_LIST(X)                                                                         \
    X(SKIP_CHECKSUM, "skip_checksum", "bytes are used without their check")                    \
    X(ACK_BEFORE_FLUSH, "ack_before_flush", "persisted is answered before the flush")          \
    X(INDEX_BEFORE_COMMIT, "index_before_commit", "a key is readable before it is all there")  \
    X(REUSE_BEFORE_UNPIN, "reuse_before_unpin", "memory is reused while it is still pinned")   \
    X(RETRY_FAILED_FLUSH, "retry_failed_flush", "a failed flush is repeated and believed")     \
    X(TRUST_STALE_INCARNATION, "trust_stale_incarnation", "records of a reused segment count") \
    X(SHORT_READ_AS_FULL, "short_read_as_full", "a short read passes for a whole one")         \
    X(WAITER_NOT_FREED, "waiter_not_freed", "a waiter is forgotten when its writer ends")      \
    X(TOMBSTONE_LOST, "tombstone_lost", "a remove is answered and not written")                \
    X(STALE_ATTEMPT_ACCEPTED, "stale_attempt_accepted", "a revoked attempt may commit")        \
    X(PARSER_OVERREAD, "parser_overread", "a parser believes a length or a number")            \
    X(BREAK_NOWAIT, "nowait", "a put that finds no space fails at once")                       \
    X(BREAK_WHOLEBATCH, "wholebatch", "one duplicate fails its whole batch")

#define FB_BUG_ENUM_MEMBER(symbol, name, text) FB_BUG_##symbol,
enum fb_bug {
    FB_BUG_LIST(FB_BUG_ENUM_MEMBER) /* one member for each line above, from 0 */
    FB_BUG_COUNT
};
#undef FB_BUG_ENUM_MEMBER

_Static_assert(FB_BUG_COUNT <= 64, "the bugs are bits of one mask");

#ifdef FB_TEST_HOOKS
/* The bugs that are on, one bit each. Set before threads start. */
extern uint64_t fb_bug_mask;
/* True if the planted bug is on. */
#define FB_BUG(bug) (((fb_bug_mask >> (bug)) & 1) != 0)
#else
#define FB_BUG(bug) ((void)(bug), false)
#endif

/* The name of a bug, or "unknown". Static. */
const char *fb_bug_name(int bug);

/* Finds a bug by its name. Returns true and sets *bug, or false and leaves it. */
bool fb_bug_find(const char *name, enum fb_bug *bug);

/*
 * Switches on the bugs named in a comma-separated list ("" is none) and off all others. Returns 0;
 * FB_BAD_ARGUMENT, with nothing changed, for an unknown name; FB_UNSUPPORTED in a release build,
 * unless the list is empty.
 */
int fb_bug_enable(const char *names);

#endif
