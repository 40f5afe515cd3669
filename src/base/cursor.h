/*
 * Reading and writing flat bytes with every bound checked. Parsers use these instead of pointer
 * arithmetic.
 *
 * Numbers are little-endian at any alignment. The error is sticky: after the first step past the
 * end a reader gives zeros and NULL, a writer writes nothing, and `failed` stays true. So a parser
 * reads all fields in a row and asks once. A failed step does not move the cursor.
 */
#ifndef FB_BASE_CURSOR_H
#define FB_BASE_CURSOR_H

#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Reads from bytes that it does not own; they must outlive it. */
struct fb_reader {
    const uint8_t *bytes;
    size_t size_bytes;
    size_t at_bytes; /* <= size_bytes, always */
    bool failed;
};

/* Writes into bytes that it does not own; they must outlive it. */
struct fb_writer {
    uint8_t *bytes;
    size_t size_bytes;
    size_t at_bytes; /* <= size_bytes, always */
    bool failed;
};

/* ---- reader ---- */

/* Begins to read `size_bytes` at `bytes` (which may be NULL if there are none). */
void fb_reader_init(struct fb_reader *reader, const void *bytes, size_t size_bytes);

/* Bytes not read yet; 0 after a failure. */
static inline size_t fb_reader_left(const struct fb_reader *reader)
{
    return reader->failed ? 0 : reader->size_bytes - reader->at_bytes;
}

/* True if nothing failed so far. */
static inline bool fb_reader_ok(const struct fb_reader *reader)
{
    return !reader->failed;
}

/* True if nothing failed and every byte was read: what most messages must be at their end. */
static inline bool fb_reader_is_done(const struct fb_reader *reader)
{
    return !reader->failed && reader->at_bytes == reader->size_bytes;
}

/* Marks the input as bad, for a field whose value is not allowed. */
static inline void fb_reader_fail(struct fb_reader *reader)
{
    reader->failed = true;
}

/*
 * The next `bytes` bytes in place, or NULL if there are fewer. For 0 bytes the result is not NULL,
 * and must not be read.
 */
static inline const uint8_t *fb_reader_bytes(struct fb_reader *reader, size_t bytes)
{
    if (reader->failed || bytes > reader->size_bytes - reader->at_bytes) {
        reader->failed = true;
        return NULL;
    }
    static const uint8_t nothing[1];
    const uint8_t *found = bytes != 0 ? reader->bytes + reader->at_bytes : nothing;
    reader->at_bytes += bytes;
    return found;
}

/* Copies the next `bytes` bytes to `out`; on failure fills `out` with zeros and returns false. */
bool fb_reader_copy(struct fb_reader *reader, void *out, size_t bytes);

/* Steps over `bytes` bytes. */
static inline void fb_reader_skip(struct fb_reader *reader, size_t bytes)
{
    (void)fb_reader_bytes(reader, bytes);
}

/* Steps over padding up to a multiple of `align_bytes`, a power of two, from the start; the
 * padding must be zeros. */
void fb_reader_align(struct fb_reader *reader, size_t align_bytes);

/* The next 8-bit number, or 0 on failure. */
static inline uint8_t fb_reader_u8(struct fb_reader *reader)
{
    const uint8_t *at = fb_reader_bytes(reader, sizeof(uint8_t));
    return at != NULL ? *at : 0;
}

/* The next 16-bit number, or 0 on failure. */
static inline uint16_t fb_reader_u16(struct fb_reader *reader)
{
    uint16_t value = 0;
    const uint8_t *at = fb_reader_bytes(reader, sizeof(value));
    if (at != NULL)
        memcpy(&value, at, sizeof(value));
    return le16toh(value);
}

/* The next 32-bit number, or 0 on failure. */
static inline uint32_t fb_reader_u32(struct fb_reader *reader)
{
    uint32_t value = 0;
    const uint8_t *at = fb_reader_bytes(reader, sizeof(value));
    if (at != NULL)
        memcpy(&value, at, sizeof(value));
    return le32toh(value);
}

/* The next 64-bit number, or 0 on failure. */
static inline uint64_t fb_reader_u64(struct fb_reader *reader)
{
    uint64_t value = 0;
    const uint8_t *at = fb_reader_bytes(reader, sizeof(value));
    if (at != NULL)
        memcpy(&value, at, sizeof(value));
    return le64toh(value);
}

/*
 * A run of bytes behind its 16-bit length. Sets *bytes to the length and returns the bytes in
 * place, not NULL even if the length is 0. If the input is too short, or the length is more than
 * `bytes_max`: fails, returns NULL and sets *bytes to 0.
 */
const uint8_t *fb_reader_blob16(struct fb_reader *reader, size_t bytes_max, size_t *bytes);

/* As fb_reader_blob16(), with a 32-bit length. */
const uint8_t *fb_reader_blob32(struct fb_reader *reader, size_t bytes_max, size_t *bytes);

/*
 * A reader of the next `bytes` bytes alone, over which the outer one has stepped. If there are
 * fewer, both have failed.
 */
struct fb_reader fb_reader_sub(struct fb_reader *reader, size_t bytes);

/* ---- writer ---- */

/* Begins to write into `size_bytes` at `bytes`. */
void fb_writer_init(struct fb_writer *writer, void *bytes, size_t size_bytes);

/* Bytes that can still be written; 0 after a failure. */
static inline size_t fb_writer_left(const struct fb_writer *writer)
{
    return writer->failed ? 0 : writer->size_bytes - writer->at_bytes;
}

/* True if everything fitted so far. */
static inline bool fb_writer_ok(const struct fb_writer *writer)
{
    return !writer->failed;
}

/*
 * Room for `bytes` bytes, to be filled by the caller (all of it: it is not cleared), or NULL if it
 * does not fit.
 */
static inline uint8_t *fb_writer_room(struct fb_writer *writer, size_t bytes)
{
    if (writer->failed || bytes > writer->size_bytes - writer->at_bytes) {
        writer->failed = true;
        return NULL;
    }
    uint8_t *room = writer->bytes + writer->at_bytes;
    writer->at_bytes += bytes;
    return room;
}

/* Appends `bytes` bytes. */
void fb_writer_bytes(struct fb_writer *writer, const void *from, size_t bytes);

/* Appends `bytes` zeros. */
void fb_writer_zeros(struct fb_writer *writer, size_t bytes);

/* Appends zeros up to a multiple of `align_bytes`, a power of two, counted from the start. */
void fb_writer_align(struct fb_writer *writer, size_t align_bytes);

/* Appends an 8-bit number. */
static inline void fb_writer_u8(struct fb_writer *writer, uint8_t value)
{
    fb_writer_bytes(writer, &value, sizeof(value));
}

/* Appends a 16-bit number. */
static inline void fb_writer_u16(struct fb_writer *writer, uint16_t value)
{
    uint16_t little = htole16(value);
    fb_writer_bytes(writer, &little, sizeof(little));
}

/* Appends a 32-bit number. */
static inline void fb_writer_u32(struct fb_writer *writer, uint32_t value)
{
    uint32_t little = htole32(value);
    fb_writer_bytes(writer, &little, sizeof(little));
}

/* Appends a 64-bit number. */
static inline void fb_writer_u64(struct fb_writer *writer, uint64_t value)
{
    uint64_t little = htole64(value);
    fb_writer_bytes(writer, &little, sizeof(little));
}

/* Appends a 16-bit length and that many bytes, or nothing if either does not fit. */
void fb_writer_blob16(struct fb_writer *writer, const void *from, size_t bytes);

/* Appends a 32-bit length and that many bytes, or nothing if either does not fit. */
void fb_writer_blob32(struct fb_writer *writer, const void *from, size_t bytes);

/*
 * Overwrites the 32-bit number at `at_bytes`, which was written before (asserted): for lengths and
 * checksums that are known only at the end.
 */
void fb_writer_patch_u32(struct fb_writer *writer, size_t at_bytes, uint32_t value);

/* As fb_writer_patch_u32(), with 64 bits. */
void fb_writer_patch_u64(struct fb_writer *writer, size_t at_bytes, uint64_t value);

#endif
