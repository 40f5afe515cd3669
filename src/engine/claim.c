/*
 * claim.c - see claim.h.
 */
#include "engine/claim.h"

#include <string.h>

#include "base/assert.h"

void fb_claims_init(struct fb_claims *claims, uint32_t count, struct fb_region *region)
{
    FB_ASSERT(count > 0 && count < FB_CLAIM_NONE);
    claims->claims = FB_REGION_NEW(region, struct fb_claim, count);
    claims->buckets = FB_REGION_NEW(region, uint32_t, count);
    claims->count = count;
    claims->used = 0;
    claims->free_head = 0;
    if (fb_region_is_counting(region))
        return;
    for (uint32_t i = 0; i < count; i++) {
        claims->claims[i].chain = i + 1 < count ? i + 1 : FB_CLAIM_NONE;
        claims->buckets[i] = FB_CLAIM_NONE;
    }
}

static uint32_t *bucket_of(const struct fb_claims *claims, struct fb_digest digest)
{
    return &claims->buckets[((unsigned __int128)digest.hi * claims->count) >> 64];
}

struct fb_claim *fb_claim_find(const struct fb_claims *claims, struct fb_digest digest)
{
    if (claims->used == 0)
        return NULL;
    uint32_t number = *bucket_of(claims, digest);
    while (number != FB_CLAIM_NONE) {
        struct fb_claim *claim = &claims->claims[number];
        if (fb_digest_is_equal(claim->digest, digest))
            return claim;
        number = claim->chain;
    }
    return NULL;
}

struct fb_claim *fb_claim_new(struct fb_claims *claims, struct fb_digest digest)
{
    FB_ASSERT(fb_claim_find(claims, digest) == NULL);
    uint32_t number = claims->free_head;
    if (number == FB_CLAIM_NONE)
        return NULL;
    struct fb_claim *claim = &claims->claims[number];
    claims->free_head = claim->chain;
    claims->used++;
    memset(claim, 0, sizeof(*claim));
    claim->digest = digest;
    claim->used = true;
    fb_list_init(&claim->line);
    uint32_t *bucket = bucket_of(claims, digest);
    claim->chain = *bucket;
    *bucket = number;
    return claim;
}

void fb_claim_free(struct fb_claims *claims, struct fb_claim *claim)
{
    FB_ASSERT(claim->used && claim->writer == NULL && fb_list_is_empty(&claim->line));
    FB_ASSERT(claim->slot.writers == 0 && claim->slot.waiting == 0 && claim->slot.flush_wait == 0);
    uint32_t number = fb_claim_number(claims, claim);
    uint32_t *link = bucket_of(claims, claim->digest);
    while (*link != number) {
        FB_ASSERT(*link != FB_CLAIM_NONE);
        link = &claims->claims[*link].chain;
    }
    *link = claim->chain;
    claim->used = false;
    claim->chain = claims->free_head;
    claims->free_head = number;
    claims->used--;
}

uint32_t fb_claim_number(const struct fb_claims *claims, const struct fb_claim *claim)
{
    FB_ASSERT(claim >= claims->claims && claim < claims->claims + claims->count);
    return (uint32_t)(claim - claims->claims);
}

struct fb_claim *fb_claim_at(const struct fb_claims *claims, uint32_t number)
{
    FB_ASSERT(number < claims->count && claims->claims[number].used);
    return &claims->claims[number];
}
