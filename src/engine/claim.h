/*
 * claim.h - which keys are being put now: one claim a key, with the table's slot and its line.
 *
 * A claim exists while a put of its key writes or waits for its turn; who only has memory in
 * quarantine has no claim. Claims are found by digest. Pure; their number is fixed.
 */
#ifndef FB_ENGINE_CLAIM_H
#define FB_ENGINE_CLAIM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/list.h"
#include "base/region.h"
#include "engine/attempt.h"

#define FB_CLAIM_NONE UINT32_MAX

struct fb_op;

struct fb_claim {
    struct fb_digest digest;
    struct fb_attempt_slot slot;
    struct fb_list line;  /* puts in WAITING and FLUSH_WAIT, in order of arrival */
    struct fb_op *writer; /* QUEUED to ORPHAN, or NULL */
    uint32_t lease_until; /* of the value that the writer replaces: its successor inherits it */
    uint8_t hold_loads;
    uint32_t chain; /* next in its bucket, or next free */
    bool used;
};

struct fb_claims {
    struct fb_claim *claims;
    uint32_t *buckets; /* as many as claims */
    uint32_t count;
    uint32_t used;
    uint32_t free_head;
};

/* Takes room for `count` claims from the region, or counts it. */
void fb_claims_init(struct fb_claims *claims, uint32_t count, struct fb_region *region);

/* The claim on a key, or NULL. */
struct fb_claim *fb_claim_find(const struct fb_claims *claims, struct fb_digest digest);

/* Makes a claim on a key that has none; NULL if all are in use. */
struct fb_claim *fb_claim_new(struct fb_claims *claims, struct fb_digest digest);

/* Gives a claim up: nobody writes and nobody waits (asserted). */
void fb_claim_free(struct fb_claims *claims, struct fb_claim *claim);

/* The number of a claim. */
uint32_t fb_claim_number(const struct fb_claims *claims, const struct fb_claim *claim);

/* The claim of a number that is in use (asserted). */
struct fb_claim *fb_claim_at(const struct fb_claims *claims, uint32_t number);

#endif
