/*
 * Composing log lines, and the rate limit. See base/logger.h for the form of a line.
 */
#include "base/logger.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/limits.h"
#include "base/result.h"
#include "base/size.h"

/* Kept free while fields are added, for what fb_logger_write() appends. */
#define TAIL_BYTES (sizeof(" cut=1 suppressed=18446744073709551615\n"))
/* The digits of a 64-bit number, a sign and the final zero. */
#define NUMBER_TEXT_BYTES 24
/* What one byte can become: \xNN. */
#define ESCAPE_BYTES_MAX 4

static const char *const level_names[] = {"debug", "info", "warn", "error"};

_Static_assert(sizeof(level_names) / sizeof(level_names[0]) == FB_LOGGER_ERROR + 1, "each level");
_Static_assert(TAIL_BYTES < FB_LOG_LINE_BYTES_MAX / 2, "a line has room for fields");

const char *fb_logger_level_name(enum fb_logger_level level)
{
    FB_ASSERT(level <= FB_LOGGER_ERROR);
    return level_names[level];
}

bool fb_logger_level_find(const char *name, enum fb_logger_level *level)
{
    for (int i = 0; i <= FB_LOGGER_ERROR; i++) {
        if (strcmp(level_names[i], name) == 0) {
            *level = (enum fb_logger_level)i;
            return true;
        }
    }
    return false;
}

/* ---- the rate limit ---- */

void fb_rate_limit_init(struct fb_rate_limit *limit, uint64_t burst, uint64_t per_second,
                        uint64_t now_ns)
{
    *limit = (struct fb_rate_limit){.burst = burst,
                                    .per_second = per_second,
                                    .tokens = burst,
                                    .filled_ns = now_ns};
}

/* Credits whole tokens for the time since the last credit; the rest of the time stays. */
static void refill(struct fb_rate_limit *limit, uint64_t now_ns)
{
    if (limit->per_second == 0 || now_ns <= limit->filled_ns)
        return;
    unsigned __int128 elapsed = now_ns - limit->filled_ns;
    unsigned __int128 earned = elapsed * limit->per_second / FB_SEC_NS;
    if (earned >= limit->burst - limit->tokens) {
        limit->tokens = limit->burst;
        limit->filled_ns = now_ns;
        return;
    }
    limit->tokens += (uint64_t)earned;
    limit->filled_ns += (uint64_t)(earned * FB_SEC_NS / limit->per_second);
}

bool fb_rate_limit_take(struct fb_rate_limit *limit, uint64_t now_ns)
{
    FB_ASSERT(limit->tokens <= limit->burst);
    refill(limit, now_ns);
    if (limit->tokens == 0) {
        limit->suppressed++;
        return false;
    }
    limit->tokens--;
    return true;
}

/* ---- lines ---- */

/* Appends if it fits before `end`; otherwise appends nothing and returns false. */
static bool append(struct fb_logger_line *line, size_t end, const char *text, size_t bytes)
{
    if (bytes > end - line->used_bytes)
        return false;
    memcpy(line->text + line->used_bytes, text, bytes);
    line->used_bytes += bytes;
    return true;
}

/* Where fields must end, so that the tail always fits. */
static size_t field_end(const struct fb_logger_line *line)
{
    return sizeof(line->text) - TAIL_BYTES;
}

/* Begins ` name=`. Returns false if the line is cut already or has no room. */
static bool begin_field(struct fb_logger_line *line, const char *name)
{
    return !line->is_cut && append(line, field_end(line), " ", 1) &&
           append(line, field_end(line), name, strlen(name)) &&
           append(line, field_end(line), "=", 1);
}

/* Ends a field: one that did not fit is taken back as a whole. */
static void end_field(struct fb_logger_line *line, size_t start, bool fitted)
{
    if (fitted)
        return;
    line->used_bytes = start;
    line->is_cut = true;
}

/* A field whose value is known to need no quotes. */
static void add_bare(struct fb_logger_line *line, const char *name, const char *value)
{
    size_t start = line->used_bytes;
    bool fitted = begin_field(line, name) && append(line, field_end(line), value, strlen(value));
    end_field(line, start, fitted);
}

static bool is_bare(uint8_t byte)
{
    return byte > ' ' && byte < 0x7f && byte != '"' && byte != '\\' && byte != '=';
}

/* A value is written without quotes if that leaves no doubt where it ends. */
static bool needs_quotes(const uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (!is_bare(bytes[i]))
            return true;
    }
    return count == 0;
}

/* Writes one byte as it stands between quotes; returns how many characters that took. */
static size_t escape(uint8_t byte, char out[ESCAPE_BYTES_MAX])
{
    static const char hex[] = "0123456789abcdef";
    char letter = 0;
    if (byte == '"' || byte == '\\')
        letter = (char)byte;
    else if (byte == '\n')
        letter = 'n';
    else if (byte == '\t')
        letter = 't';
    if (letter != 0) {
        out[0] = '\\';
        out[1] = letter;
        return 2;
    }
    if (byte >= ' ' && byte < 0x7f) {
        out[0] = (char)byte;
        return 1;
    }
    out[0] = '\\';
    out[1] = 'x';
    out[2] = hex[byte >> 4];
    out[3] = hex[byte & 0xf];
    return ESCAPE_BYTES_MAX;
}

static bool append_quoted(struct fb_logger_line *line, const uint8_t *bytes, size_t count)
{
    if (!append(line, field_end(line), "\"", 1))
        return false;
    for (size_t i = 0; i < count; i++) {
        char text[ESCAPE_BYTES_MAX];
        size_t used = escape(bytes[i], text);
        if (!append(line, field_end(line), text, used))
            return false;
    }
    return append(line, field_end(line), "\"", 1);
}

void fb_logger_begin(struct fb_logger_line *line, enum fb_logger_level level, const char *event)
{
    line->level = level;
    line->is_cut = false;
    line->used_bytes = 0;
    const char *name = fb_logger_level_name(level);
    bool fitted = append(line, field_end(line), name, strlen(name)) &&
                  append(line, field_end(line), " ", 1) &&
                  append(line, field_end(line), event, strlen(event));
    FB_ASSERT(fitted);
}

void fb_logger_bytes(struct fb_logger_line *line, const char *name, const void *bytes, size_t count)
{
    size_t start = line->used_bytes;
    bool fitted = begin_field(line, name);
    if (fitted && needs_quotes(bytes, count))
        fitted = append_quoted(line, bytes, count);
    else if (fitted)
        fitted = append(line, field_end(line), bytes, count);
    end_field(line, start, fitted);
}

void fb_logger_text(struct fb_logger_line *line, const char *name, const char *value)
{
    const char *text = value != NULL ? value : "";
    fb_logger_bytes(line, name, text, strlen(text));
}

void fb_logger_u64(struct fb_logger_line *line, const char *name, uint64_t value)
{
    char text[NUMBER_TEXT_BYTES];
    (void)snprintf(text, sizeof(text), "%" PRIu64, value);
    add_bare(line, name, text);
}

void fb_logger_i64(struct fb_logger_line *line, const char *name, int64_t value)
{
    char text[NUMBER_TEXT_BYTES];
    (void)snprintf(text, sizeof(text), "%" PRId64, value);
    add_bare(line, name, text);
}

void fb_logger_size(struct fb_logger_line *line, const char *name, uint64_t bytes)
{
    char text[FB_SIZE_TEXT_BYTES];
    fb_size_print(text, sizeof(text), bytes);
    char *blank = strchr(text, ' ');
    FB_ASSERT(blank != NULL);
    memmove(blank, blank + 1, strlen(blank));
    add_bare(line, name, text);
}

void fb_logger_result(struct fb_logger_line *line, const char *name, int code)
{
    add_bare(line, name, fb_result_name(code));
}

/* ---- the log ---- */

void fb_logger_init(struct fb_logger *log, fb_logger_sink *sink, void *context,
                    enum fb_logger_level least, uint64_t burst, uint64_t per_second,
                    uint64_t now_ns)
{
    FB_ASSERT(sink != NULL);
    FB_ASSERT(least <= FB_LOGGER_ERROR);
    *log = (struct fb_logger){.sink = sink, .context = context, .least = least};
    fb_rate_limit_init(&log->chatter, burst, per_second, now_ns);
    fb_rate_limit_init(&log->errors, burst, per_second, now_ns);
}

/* Adds what is kept free for the end of the line. */
static void append_tail(struct fb_logger_line *line, uint64_t suppressed)
{
    char text[TAIL_BYTES];
    int used = 0;
    if (line->is_cut)
        used += snprintf(text, sizeof(text), " cut=1");
    if (suppressed != 0)
        used +=
            snprintf(text + used, sizeof(text) - (size_t)used, " suppressed=%" PRIu64, suppressed);
    text[used++] = '\n';
    bool fitted = append(line, sizeof(line->text), text, (size_t)used);
    FB_ASSERT(fitted);
}

bool fb_logger_write(struct fb_logger *log, struct fb_logger_line *line, uint64_t now_ns)
{
    if (line->level < log->least)
        return false;
    struct fb_rate_limit *limit = line->level == FB_LOGGER_ERROR ? &log->errors : &log->chatter;
    if (!fb_rate_limit_take(limit, now_ns)) {
        log->suppressed_total++;
        return false;
    }
    append_tail(line, limit->suppressed);
    limit->suppressed = 0;
    log->sink(log->context, line->level, line->text, line->used_bytes);
    return true;
}
