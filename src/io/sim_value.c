/*
 * sim_value.c - symbolic pages of the simulator: tokens, their checksums, and what they look like
 * when they are read as bytes.
 *
 * A value's page read into metadata memory becomes 4096 bytes made from the token, with a mark in
 * front; such bytes written to a device become the token again. Real bytes that are read into the
 * arena become garbage that is derived from them: equal bytes, equal garbage, and no value's page.
 */
#include "io/sim.h"

#include <stdio.h>
#include <string.h>

#include "base/bits.h"
#include "base/hash.h"
#include "io/sim_private.h"

#define LEAF_PAGES    (FB_LEAF_BYTES / FB_PAGE_BYTES)
#define VERSION_SHIFT 20
#define TOKEN_MARK    UINT64_C(0x6e656b6f74626673) /* "sfbtoken", little-endian */
#define PAGE_WORDS    (FB_PAGE_BYTES / sizeof(uint64_t))
#define SECOND_SEED   1 /* derived garbage has two independent halves */

_Static_assert(FB_SIM_PAGE_MAX + 1 == 1u << VERSION_SHIFT, "page and version share a word");
_Static_assert(FB_VALUE_BYTES_MAX / FB_PAGE_BYTES <= FB_SIM_PAGE_MAX, "any value has page numbers");

struct fb_sim_page fb_sim_token(uint64_t key, uint64_t version, uint64_t page)
{
    FB_ASSERT(key >= 1 && key <= FB_SIM_KEY_MAX);
    FB_ASSERT(version <= FB_SIM_VERSION_MAX);
    FB_ASSERT(page <= FB_SIM_PAGE_MAX);
    return (struct fb_sim_page){key, version << VERSION_SHIFT | page};
}

void fb_sim_page_text(struct fb_sim_page page, char *text, size_t text_bytes)
{
    if (page.a == 0 && page.b == 0) {
        snprintf(text, text_bytes, "zeros");
    } else if (page.a > FB_SIM_KEY_MAX) {
        snprintf(text, text_bytes, "garbage");
    } else {
        snprintf(text, text_bytes, "key %llu version %llu page %llu", (unsigned long long)page.a,
                 (unsigned long long)(page.b >> VERSION_SHIFT),
                 (unsigned long long)(page.b & FB_SIM_PAGE_MAX));
    }
}

struct fb_sim_page fb_sim_garbage(struct fb_prng *prng)
{
    const uint64_t a = fb_prng_next(prng);
    return (struct fb_sim_page){FB_SIM_TAG_GARBAGE | a >> 2, fb_prng_next(prng)};
}

uint64_t fb_sim_leaf_hash(const struct fb_sim_page *pages, uint64_t bytes)
{
    FB_ASSERT(bytes > 0 && bytes <= FB_LEAF_BYTES);
    return fb_hash64(pages, fb_div_up(bytes, FB_PAGE_BYTES) * sizeof *pages, bytes);
}

void fb_sim_value_leaves(const struct fb_sim_value *value, uint64_t first_leaf, uint64_t count,
                         uint64_t *leaf_out)
{
    FB_ASSERT(first_leaf + count <= fb_div_up(value->bytes, FB_LEAF_BYTES));
    for (uint64_t i = 0; i < count; i++) {
        struct fb_sim_page pages[LEAF_PAGES];
        const uint64_t off = (first_leaf + i) * FB_LEAF_BYTES;
        const uint64_t bytes = fb_min_u64(value->bytes - off, FB_LEAF_BYTES);
        const uint64_t page_count = fb_div_up(bytes, FB_PAGE_BYTES);
        for (uint64_t p = 0; p < page_count; p++)
            pages[p] = fb_sim_token(value->key, value->version, off / FB_PAGE_BYTES + p);
        leaf_out[i] = fb_sim_leaf_hash(pages, bytes);
    }
}

void fb_sim_hash_request(struct fb_sim *sim, struct fb_io_req *req)
{
    struct fb_sim_place place = {req->vec, 0};
    for (uint64_t off = 0; off < req->len; off += FB_LEAF_BYTES) {
        struct fb_sim_page pages[LEAF_PAGES];
        const uint64_t bytes = fb_min_u64(req->len - off, FB_LEAF_BYTES);
        const uint64_t page_count = fb_div_up(bytes, FB_PAGE_BYTES);
        for (uint64_t p = 0; p < page_count; p++)
            pages[p] = sim->arena[fb_sim_place_next(&place).off / FB_PAGE_BYTES];
        req->leaf_out[off / FB_LEAF_BYTES] = fb_sim_leaf_hash(pages, bytes);
    }
}

void fb_sim_token_bytes(struct fb_sim_page page, uint8_t *bytes)
{
    uint64_t words[PAGE_WORDS] = {0};
    if (page.a != 0 || page.b != 0) {
        words[0] = TOKEN_MARK;
        words[1] = page.a;
        words[2] = page.b;
        const uint64_t seed = fb_mix64(page.a ^ fb_mix64(page.b));
        for (size_t i = 3; i < PAGE_WORDS; i++)
            words[i] = seed * (2 * i + 1);
    }
    memcpy(bytes, words, sizeof words);
}

bool fb_sim_bytes_are_token(const uint8_t *bytes, struct fb_sim_page *page)
{
    uint64_t head[3];
    memcpy(head, bytes, sizeof head);
    if (head[0] == 0) {
        *page = (struct fb_sim_page){0, 0};
        /* All equal to the first byte, which is 0. */
        return memcmp(bytes, bytes + 1, FB_PAGE_BYTES - 1) == 0;
    }
    if (head[0] != TOKEN_MARK)
        return false;
    uint8_t expected[FB_PAGE_BYTES];
    *page = (struct fb_sim_page){head[1], head[2]};
    fb_sim_token_bytes(*page, expected);
    return memcmp(bytes, expected, FB_PAGE_BYTES) == 0;
}

struct fb_sim_page fb_sim_bytes_token(const uint8_t *bytes)
{
    struct fb_sim_page page;
    if (fb_sim_bytes_are_token(bytes, &page))
        return page;
    return (struct fb_sim_page){FB_SIM_TAG_GARBAGE | fb_hash64(bytes, FB_PAGE_BYTES, 0) >> 2,
                                fb_hash64(bytes, FB_PAGE_BYTES, SECOND_SEED)};
}

/* Moves a place to page number `page` of the extents. */
static void place_seek(struct fb_sim_place *place, const struct fb_io_vec *vec, unsigned vec_count,
                       uint64_t page)
{
    for (unsigned i = 0; i < vec_count; i++) {
        const uint64_t pages = fb_div_up(vec[i].len, FB_PAGE_BYTES);
        if (page < pages) {
            *place = (struct fb_sim_place){&vec[i], (uint32_t)(page * FB_PAGE_BYTES)};
            return;
        }
        page -= pages;
    }
    FB_UNREACHABLE();
}

static uint64_t vec_pages(const struct fb_sim *sim, const struct fb_io_vec *vec, unsigned vec_count)
{
    uint64_t pages = 0;
    for (unsigned i = 0; i < vec_count; i++) {
        FB_ASSERT(vec[i].space == FB_IO_ARENA);
        FB_ASSERT(fb_is_aligned(vec[i].off, FB_PAGE_BYTES));
        FB_ASSERT(vec[i].off + vec[i].len <= sim->config.arena_bytes);
        pages += fb_div_up(vec[i].len, FB_PAGE_BYTES);
    }
    return pages;
}

void fb_sim_write_pages(struct fb_sim *sim, const struct fb_io_vec *vec, unsigned vec_count,
                        const struct fb_sim_value *value, uint64_t value_page, uint64_t first,
                        uint64_t count)
{
    FB_ASSERT(first + count <= vec_pages(sim, vec, vec_count));
    if (count == 0)
        return;
    struct fb_sim_place place;
    place_seek(&place, vec, vec_count, first);
    for (uint64_t i = first; i < first + count; i++) {
        const struct fb_io_vec where = fb_sim_place_next(&place);
        sim->arena[where.off / FB_PAGE_BYTES] =
            fb_sim_token(value->key, value->version, value_page + i);
    }
}

uint64_t fb_sim_check_pages(struct fb_sim *sim, const struct fb_io_vec *vec, unsigned vec_count,
                            const struct fb_sim_value *value, uint64_t value_page, uint64_t first,
                            uint64_t count, uint64_t *wrong)
{
    FB_ASSERT(first + count <= vec_pages(sim, vec, vec_count));
    if (count == 0)
        return 0;
    struct fb_sim_place place;
    place_seek(&place, vec, vec_count, first);
    uint64_t wrong_count = 0;
    for (uint64_t i = first; i < first + count; i++) {
        const struct fb_io_vec where = fb_sim_place_next(&place);
        const struct fb_sim_page expected =
            fb_sim_token(value->key, value->version, value_page + i);
        if (fb_sim_page_is_equal(sim->arena[where.off / FB_PAGE_BYTES], expected))
            continue;
        if (wrong_count++ == 0 && wrong)
            *wrong = i;
    }
    return wrong_count;
}
