/*
 * The longer steps of base/cursor.h; the short ones are inline in the header.
 */
#include "base/cursor.h"

#include "base/assert.h"
#include "base/bits.h"

void fb_reader_init(struct fb_reader *reader, const void *bytes, size_t size_bytes)
{
    FB_ASSERT(bytes != NULL || size_bytes == 0);
    *reader = (struct fb_reader){.bytes = bytes, .size_bytes = size_bytes};
}

bool fb_reader_copy(struct fb_reader *reader, void *out, size_t bytes)
{
    const uint8_t *from = fb_reader_bytes(reader, bytes);
    if (bytes == 0)
        return from != NULL;
    if (from != NULL)
        memcpy(out, from, bytes);
    else
        memset(out, 0, bytes);
    return from != NULL;
}

void fb_reader_align(struct fb_reader *reader, size_t align_bytes)
{
    size_t padding = fb_align_up(reader->at_bytes, align_bytes) - reader->at_bytes;
    const uint8_t *at = fb_reader_bytes(reader, padding);
    for (size_t i = 0; at != NULL && i < padding; i++) {
        if (at[i] != 0) {
            reader->at_bytes -= padding;
            reader->failed = true;
            return;
        }
    }
}

/* The bytes behind a length field that was just read; on failure goes back before the field. */
static const uint8_t *read_blob(struct fb_reader *reader, size_t field_start, size_t length,
                                size_t bytes_max, size_t *bytes)
{
    if (length > bytes_max)
        fb_reader_fail(reader);
    const uint8_t *blob = fb_reader_bytes(reader, length);
    if (blob == NULL)
        reader->at_bytes = field_start;
    *bytes = blob != NULL ? length : 0;
    return blob;
}

const uint8_t *fb_reader_blob16(struct fb_reader *reader, size_t bytes_max, size_t *bytes)
{
    size_t start = reader->at_bytes;
    size_t length = fb_reader_u16(reader);
    return read_blob(reader, start, length, bytes_max, bytes);
}

const uint8_t *fb_reader_blob32(struct fb_reader *reader, size_t bytes_max, size_t *bytes)
{
    size_t start = reader->at_bytes;
    size_t length = fb_reader_u32(reader);
    return read_blob(reader, start, length, bytes_max, bytes);
}

struct fb_reader fb_reader_sub(struct fb_reader *reader, size_t bytes)
{
    struct fb_reader sub = {.failed = true};
    const uint8_t *from = fb_reader_bytes(reader, bytes);
    if (from != NULL)
        fb_reader_init(&sub, from, bytes);
    return sub;
}

void fb_writer_init(struct fb_writer *writer, void *bytes, size_t size_bytes)
{
    FB_ASSERT(bytes != NULL || size_bytes == 0);
    *writer = (struct fb_writer){.bytes = bytes, .size_bytes = size_bytes};
}

void fb_writer_bytes(struct fb_writer *writer, const void *from, size_t bytes)
{
    if (bytes == 0)
        return;
    uint8_t *room = fb_writer_room(writer, bytes);
    if (room != NULL)
        memcpy(room, from, bytes);
}

void fb_writer_zeros(struct fb_writer *writer, size_t bytes)
{
    if (bytes == 0)
        return;
    uint8_t *room = fb_writer_room(writer, bytes);
    if (room != NULL)
        memset(room, 0, bytes);
}

void fb_writer_align(struct fb_writer *writer, size_t align_bytes)
{
    fb_writer_zeros(writer, fb_align_up(writer->at_bytes, align_bytes) - writer->at_bytes);
}

void fb_writer_blob16(struct fb_writer *writer, const void *from, size_t bytes)
{
    if (bytes > UINT16_MAX || bytes + sizeof(uint16_t) > fb_writer_left(writer)) {
        writer->failed = true;
        return;
    }
    fb_writer_u16(writer, (uint16_t)bytes);
    fb_writer_bytes(writer, from, bytes);
}

void fb_writer_blob32(struct fb_writer *writer, const void *from, size_t bytes)
{
    if (bytes > UINT32_MAX || bytes + sizeof(uint32_t) > fb_writer_left(writer)) {
        writer->failed = true;
        return;
    }
    fb_writer_u32(writer, (uint32_t)bytes);
    fb_writer_bytes(writer, from, bytes);
}

void fb_writer_patch_u32(struct fb_writer *writer, size_t at_bytes, uint32_t value)
{
    uint32_t little = htole32(value);
    FB_ASSERT(writer->at_bytes >= sizeof(little));
    FB_ASSERT(at_bytes <= writer->at_bytes - sizeof(little));
    memcpy(writer->bytes + at_bytes, &little, sizeof(little));
}

void fb_writer_patch_u64(struct fb_writer *writer, size_t at_bytes, uint64_t value)
{
    uint64_t little = htole64(value);
    FB_ASSERT(writer->at_bytes >= sizeof(little));
    FB_ASSERT(at_bytes <= writer->at_bytes - sizeof(little));
    memcpy(writer->bytes + at_bytes, &little, sizeof(little));
}
