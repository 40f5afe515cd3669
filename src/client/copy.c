/* Copy jobs on real memory. See copy.h. */
#include "client/copy.h"

#include "base/assert.h"
#include "base/bits.h"
#include "base/hash.h"
#include "proto/scatter.h"

/* A place in the runs of a part. */
struct run_cursor {
    const struct fb_proto_job *job;
    uint8_t *pool;
    struct fb_wire_run run; /* what is left of the current one */
    uint32_t next;
};

static uint8_t *run_piece(struct run_cursor *cursor, uint64_t max_bytes, uint64_t *bytes)
{
    if (cursor->run.len == 0) {
        FB_ASSERT(cursor->next < cursor->job->run_count);
        cursor->run = fb_wire_run_at(cursor->job->runs, cursor->next++);
    }
    *bytes = fb_min_u64(cursor->run.len, max_bytes);
    uint8_t *piece = cursor->pool + cursor->run.off;
    cursor->run.off += *bytes;
    cursor->run.len -= (uint32_t)*bytes;
    return piece;
}

/* A leaf being hashed: in one go if it lies in one piece, else step by step. */
struct leaf {
    struct fb_hash_state state;
    uint64_t bytes; /* of the whole leaf */
    uint64_t done;
    uint64_t hash; /* of a leaf in one piece */
};

/* Hashes a piece, and copies it if `to` is not NULL. */
static void leaf_piece(struct leaf *leaf, uint8_t *to, const uint8_t *from, uint64_t bytes)
{
    if (bytes == leaf->bytes) {
        leaf->hash = to != NULL ? fb_copy_hash64(to, from, bytes) : fb_leaf_hash(from, bytes);
    } else {
        if (leaf->done == 0)
            fb_hash_begin(&leaf->state, 0);
        if (to != NULL)
            fb_hash_add_copy(&leaf->state, to, from, bytes);
        else
            fb_hash_add(&leaf->state, from, bytes);
    }
    leaf->done += bytes;
    if (bytes != leaf->bytes && leaf->done == leaf->bytes)
        leaf->hash = fb_hash_finish(&leaf->state);
}

/* Bytes between the caller's buffers and the runs, `bytes` of them, one way or the other. */
static void copy_bytes(struct leaf *leaf, struct run_cursor *cursor, struct fb_scatter *scatter,
                       uint64_t bytes)
{
    while (bytes != 0) {
        uint64_t in_pool;
        uint8_t *pool = run_piece(cursor, bytes, &in_pool);
        bytes -= in_pool;
        while (in_pool != 0) {
            uint8_t *mine = NULL;
            size_t piece = fb_scatter_next(scatter, in_pool, &mine);
            FB_ASSERT(piece != 0);
            if (cursor->job->to_pool)
                leaf_piece(leaf, pool, mine, piece);
            else
                leaf_piece(leaf, mine, pool, piece);
            pool += piece;
            in_pool -= piece;
        }
    }
}

/* Bytes of the part that are hashed in place and not wanted. */
static void hash_bytes(struct leaf *leaf, struct run_cursor *cursor, uint64_t bytes)
{
    while (bytes != 0) {
        uint64_t piece;
        const uint8_t *pool = run_piece(cursor, bytes, &piece);
        leaf_piece(leaf, NULL, pool, piece);
        bytes -= piece;
    }
}

void fb_copy_job(const struct fb_proto_job *job, uint8_t *pool, uint64_t *leaves)
{
    struct run_cursor cursor = {.job = job, .pool = pool};
    struct fb_scatter scatter;
    fb_scatter_begin(&scatter, job->bufs, job->buf_count, job->buf_off);
    uint64_t want_end = (uint64_t)job->want_off + job->want_bytes;
    struct leaf leaf;
    for (uint32_t i = 0; i < job->leaf_count; i++) {
        uint64_t begin = i * FB_LEAF_BYTES;
        uint64_t end = fb_min_u64(begin + FB_LEAF_BYTES, job->part_bytes);
        leaf.bytes = end - begin;
        leaf.done = 0;
        uint64_t from = fb_min_u64(fb_max_u64(begin, job->want_off), end);
        uint64_t to = fb_max_u64(fb_min_u64(end, want_end), from);
        hash_bytes(&leaf, &cursor, from - begin);
        copy_bytes(&leaf, &cursor, &scatter, to - from);
        hash_bytes(&leaf, &cursor, end - to);
        FB_ASSERT(leaf.done == leaf.bytes);
        leaves[i] = leaf.hash;
    }
}
