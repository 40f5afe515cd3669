/*
 * Hashes, checksums and digests: all of the XXH3 family.
 *
 *   hash64   64 bits, for tables and for blocks of metadata.
 *   leaf     64 bits with seed 0 over up to FB_LEAF_BYTES of a value.
 *   root     64 bits over the identity of a value's part and its leaves. Who reads computes it
 *            with the key that was asked for: bytes of another key, generation or epoch do not fit.
 *   digest   128 bits of epoch and key under the secret of a namespace; the index knows keys by it.
 *
 * All results are the same on every host. Several threads may call these at once.
 */
#ifndef FB_BASE_HASH_H
#define FB_BASE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/generation.h"
#include "base/limits.h"

/* ---- 64 bits ---- */

/* The hash of `bytes` bytes at `data` with a seed. */
uint64_t fb_hash64(const void *data, size_t bytes, uint64_t seed);

/* The checksum of one leaf: fb_hash64() with seed 0. Asserts bytes <= FB_LEAF_BYTES. */
uint64_t fb_leaf_hash(const void *data, size_t bytes);

/*
 * Copies `bytes` bytes from `from` to `to`, which do not overlap, and returns fb_hash64() of them
 * with seed 0: of what was copied, even if another process writes to `from` meanwhile.
 */
uint64_t fb_copy_hash64(void *to, const void *from, size_t bytes);

/* The size of the state of a running hash. */
#define FB_HASH_STATE_BYTES 576

/* A running hash, on the stack or inside another struct; its content is private to hash.c. */
struct fb_hash_state {
    _Alignas(FB_CACHE_LINE) uint8_t opaque[FB_HASH_STATE_BYTES];
};

/* Begins a running hash. */
void fb_hash_begin(struct fb_hash_state *state, uint64_t seed);

/* Adds bytes to it; any split gives the same result. */
void fb_hash_add(struct fb_hash_state *state, const void *data, size_t bytes);

/* Adds bytes to it while copying them from `from` to `to`, as fb_copy_hash64() does. */
void fb_hash_add_copy(struct fb_hash_state *state, void *to, const void *from, size_t bytes);

/* The hash of all bytes that were added: fb_hash64() of them. More may be added afterwards. */
uint64_t fb_hash_finish(const struct fb_hash_state *state);

/* ---- digests ---- */

struct fb_digest {
    uint64_t hi;
    uint64_t lo;
};

/* The size of an expanded secret: the default of XXH3, and more than its least. */
#define FB_SECRET_BYTES 192

/* A secret in the form that hashing needs. Derived, so never stored: what is stored is its seed. */
struct fb_secret {
    _Alignas(FB_CACHE_LINE) uint8_t bytes[FB_SECRET_BYTES];
};

/* Expands a seed of any length: the word i, little-endian, is fb_hash64(seed, i). */
void fb_secret_derive(struct fb_secret *secret, const void *seed, size_t seed_bytes);

/* The 128-bit digest of `bytes` bytes under a secret. */
struct fb_digest fb_digest128(const struct fb_secret *secret, const void *data, size_t bytes);

/*
 * The digest by which the index knows a key: of the epoch, as 8 bytes little-endian, followed by
 * the key. So keys of an older epoch cannot be reached. Asserts 1 <= key_bytes <= FB_KEY_BYTES_MAX.
 */
struct fb_digest fb_digest_key(const struct fb_secret *secret, uint64_t epoch, const void *key,
                               size_t key_bytes);

/* True if the two are the same. */
static inline bool fb_digest_is_equal(struct fb_digest a, struct fb_digest b)
{
    return a.hi == b.hi && a.lo == b.lo;
}

/* Less than 0, 0 or more than 0: the order by hi, then by lo. */
static inline int fb_digest_compare(struct fb_digest a, struct fb_digest b)
{
    if (a.hi != b.hi)
        return a.hi < b.hi ? -1 : 1;
    if (a.lo != b.lo)
        return a.lo < b.lo ? -1 : 1;
    return 0;
}

/* ---- the identity root ---- */

/* What a part of a value is, apart from its bytes. Pointers are borrowed for the call. */
struct fb_identity {
    const uint8_t *namespace_id; /* FB_NAMESPACE_ID_BYTES */
    uint64_t epoch;
    const void *key;
    size_t key_bytes; /* 1 to FB_KEY_BYTES_MAX */
    struct fb_generation generation;
    uint32_t part;        /* from 0 */
    uint64_t total_bytes; /* of the whole value */
    uint64_t part_bytes;  /* of this part */
};

/* A running root; private to hash.c. */
struct fb_root {
    struct fb_hash_state state;
    uint64_t leaves;
};

/*
 * Begins a root. It is the XXH3-64 (seed 0) of these, little-endian and without padding:
 * the 8 characters "FBroot01"; the namespace id, 16 bytes; u64 epoch; u64 boot counter; u64 counter
 * (the generation); u32 part; u32 key length; u64 total length; u64 part length; the key;
 * one u64 for each leaf in order; u64 number of leaves.
 */
void fb_root_begin(struct fb_root *root, const struct fb_identity *identity);

/* Adds the checksum of the next leaf. Asserts that there are not more than a value can have. */
void fb_root_add_leaf(struct fb_root *root, uint64_t leaf);

/* The root; no leaf may be added afterwards. */
uint64_t fb_root_finish(struct fb_root *root);

/* The root of a part all of whose leaves are at hand. */
uint64_t fb_root_of(const struct fb_identity *identity, const uint64_t *leaves, size_t count);

#endif
