/*
 * Log lines: `level event key=value key="value with blanks" ...`, one line each, composed in a
 * buffer of fixed size and handed to a sink. What does not fit is cut between fields, and the line
 * says so (`cut=1`). Bytes that would break a line are escaped: \n, \t, \", \\, \xNN.
 *
 * A log has a rate limit: a burst of lines, and so many a second after that. Lines that go over it
 * are dropped and counted, and the next line that passes carries `suppressed=N`. Errors have an
 * allowance of their own, so that chatter cannot drown them.
 *
 * Not safe for use by several threads at once: one log per thread, and a sink that is safe.
 */
#ifndef FB_BASE_LOGGER_H
#define FB_BASE_LOGGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/limits.h"

enum fb_logger_level {
    FB_LOGGER_DEBUG,
    FB_LOGGER_INFO,
    FB_LOGGER_WARN,
    FB_LOGGER_ERROR,
};

/* A line being composed: on the stack of who logs. */
struct fb_logger_line {
    enum fb_logger_level level;
    bool is_cut;
    size_t used_bytes;
    char text[FB_LOG_LINE_BYTES_MAX];
};

/* A bucket of tokens. Time comes from outside and may stand still, but never runs back. */
struct fb_rate_limit {
    uint64_t burst;      /* tokens in a full bucket */
    uint64_t per_second; /* how fast it fills */
    uint64_t tokens;
    uint64_t filled_ns;  /* up to when tokens were credited */
    uint64_t suppressed; /* refused since the last one that passed */
};

/* Where lines go: called with a whole line, its newline included. Must not block for long. */
typedef void fb_logger_sink(void *context, enum fb_logger_level level, const char *text,
                            size_t bytes);

struct fb_logger {
    fb_logger_sink *sink;
    void *context;
    enum fb_logger_level least;   /* lines below this are not written */
    struct fb_rate_limit chatter; /* for debug, info and warn */
    struct fb_rate_limit errors;
    uint64_t suppressed_total; /* ever, for a metric */
};

/* "debug", "info", "warn" or "error". Static. */
const char *fb_logger_level_name(enum fb_logger_level level);

/* Finds a level by name. Returns true and sets *level, or false and leaves it. */
bool fb_logger_level_find(const char *name, enum fb_logger_level *level);

/* Makes a full bucket. `per_second` may be 0: the burst is then all there is. */
void fb_rate_limit_init(struct fb_rate_limit *limit, uint64_t burst, uint64_t per_second,
                        uint64_t now_ns);

/* Takes a token and returns true, or counts a suppressed line and returns false. */
bool fb_rate_limit_take(struct fb_rate_limit *limit, uint64_t now_ns);

/* Makes a log over a sink, with `burst` lines at once and `per_second` lines on end. */
void fb_logger_init(struct fb_logger *log, fb_logger_sink *sink, void *context,
                    enum fb_logger_level least, uint64_t burst, uint64_t per_second,
                    uint64_t now_ns);

/* Begins a line. The event is a short fixed name with underscores, say "put_refused". */
void fb_logger_begin(struct fb_logger_line *line, enum fb_logger_level level, const char *event);

/* Adds a text field; NULL is written as an empty one. */
void fb_logger_text(struct fb_logger_line *line, const char *name, const char *value);

/* Adds a field of any bytes, say a key. */
void fb_logger_bytes(struct fb_logger_line *line, const char *name, const void *bytes,
                     size_t count);

/* Adds an unsigned number. */
void fb_logger_u64(struct fb_logger_line *line, const char *name, uint64_t value);

/* Adds a signed number. */
void fb_logger_i64(struct fb_logger_line *line, const char *name, int64_t value);

/* Adds a size, as fb_size_print() writes it but without the blank: 1.5GiB. */
void fb_logger_size(struct fb_logger_line *line, const char *name, uint64_t bytes);

/* Adds a result code by its name. */
void fb_logger_result(struct fb_logger_line *line, const char *name, int code);

/*
 * Ends the line and hands it to the sink, unless its level is too low or the rate limit says no.
 * Returns true if it was handed over. The line must not be used afterwards.
 */
bool fb_logger_write(struct fb_logger *log, struct fb_logger_line *line, uint64_t now_ns);

#endif
