/*
 * The closed list of results: what a call, or one key of a batch, ended in.
 *
 * One list gives code, name, whether it can be retried, and text, so that no second table can
 * disagree with it. Successes are zero or positive. Failures are negative and start below every
 * negative errno, so that the two can never be taken for each other. The numbers are part of the
 * wire format and of the ABI: a new code goes to the end, an old one is never reused.
 *
 * Retry says: the same call, made again later and unchanged, may succeed.
 */
#ifndef FOREBAY_RESULT_H
#define FOREBAY_RESULT_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(symbol, value, name, retry, text) */
#define FB_RESULT_LIST(X)                                                                         \
    X(FB_OK, 0, "OK", false, "stored, or done as asked")                                          \
    X(FB_EXISTS, 1, "EXISTS", false, "a readable value is already there; nothing was written")    \
    X(FB_MISS, -1001, "MISS", false, "no value under this key; the reason says why")              \
    X(FB_BUSY, -1002, "BUSY", true, "a resource that others hold did not come free in time")      \
    X(FB_QUOTA, -1003, "QUOTA", true, "the namespace is at its quota and can drop nothing")       \
    X(FB_TOO_BIG, -1004, "TOO_BIG", false, "can never fit, however long one waits")               \
    X(FB_BAD_KEY, -1005, "BAD_KEY", false, "a key has 1 to 1024 bytes")                           \
    X(FB_STALE_EPOCH, -1006, "STALE_EPOCH", false, "the namespace has moved to a later epoch")    \
    X(FB_IO, -1007, "IO", true, "the device or the file system failed")                           \
    X(FB_DEADLINE, -1008, "DEADLINE", true, "the caller's deadline passed first")                 \
    X(FB_SHUTTING_DOWN, -1009, "SHUTTING_DOWN", true, "the node is going down")                   \
    X(FB_NOT_PERSISTED, -1010, "NOT_PERSISTED", false, "in memory only; it was not made durable") \
    X(FB_BUFFER_TOO_SMALL, -1011, "BUFFER_TOO_SMALL", false, "the caller's buffer is too small")  \
    X(FB_BAD_ARGUMENT, -1012, "BAD_ARGUMENT", false, "an argument is outside its stated range")   \
    X(FB_REMOVED, -1013, "REMOVED", true, "a remove or an epoch bump killed this attempt")        \
    X(FB_BAD_CHECKSUM, -1014, "BAD_CHECKSUM", true, "the bytes are not those of the checksum")    \
    X(FB_PROTOCOL, -1015, "PROTOCOL", false, "the peer broke the protocol")                       \
    X(FB_CONNECTION, -1016, "CONNECTION", true, "the connection is lost or was refused")          \
    X(FB_DENIED, -1017, "DENIED", false, "the caller has no right to do this")                    \
    X(FB_UNSUPPORTED, -1018, "UNSUPPORTED", false, "not available in this build or on this host") \
    X(FB_NO_MEMORY, -1019, "NO_MEMORY", true, "no memory for the work itself")                    \
    X(FB_NOT_HELD, -1020, "NOT_HELD", false, "readable, but the hold was not given")              \
    X(FB_INTERNAL, -1021, "INTERNAL", false, "a fault of the store itself; please report it")     \
    X(FB_GRANT_EXPIRED, -1022, "GRANT_EXPIRED", true, "the writer made no progress for too long")

#define FB_RESULT_ENUM_MEMBER(symbol, value, name, retry, text) symbol = (value),
enum fb_result {
    FB_RESULT_LIST(FB_RESULT_ENUM_MEMBER)
};
#undef FB_RESULT_ENUM_MEMBER

/*
 * The name of a result code, say "STALE_EPOCH"; "UNKNOWN" for a number that is not in the list.
 * The string is static. Never blocks.
 */
const char *fb_result_name(int code);

/*
 * One sentence on a result code, without a full stop; "unknown result code" for a number that is
 * not in the list. The string is static. Never blocks.
 */
const char *fb_result_text(int code);

/*
 * True if the same call, made again later and unchanged, may succeed. False for successes and for
 * numbers that are not in the list. Never blocks.
 */
bool fb_result_is_retryable(int code);

#ifdef __cplusplus
}
#endif

#endif
