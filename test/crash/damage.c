/* Silent damage to a file. See damage.h. */
#include "test/crash/damage.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/limits.h"

#define ACTS_MAX       12
#define RUN_BLOCKS_MAX 64
#define FLIPS_MAX      24
#define COPY_BYTES     (1u << 20)
/* Superblock, names, history and first headers: a small part of the file that matters much. */
#define FRONT_BLOCKS  400
#define FRONT_PERCENT 25

struct patient {
    struct crash_state *state;
    struct fb_prng *prng;
    int fd, old;
    uint64_t blocks;
};

int crash_damage_remember(const char *path, const char *copy)
{
    static unsigned char bytes[COPY_BYTES];
    int in = open(path, O_RDONLY | O_CLOEXEC);
    int out = open(copy, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    int result = in < 0 || out < 0 ? -errno : 0;
    ssize_t n = 1;
    while (result == 0 && (n = read(in, bytes, sizeof(bytes))) > 0)
        if (write(out, bytes, (size_t)n) != n)
            result = -EIO;
    if (n < 0)
        result = -errno;
    if (in >= 0)
        close(in);
    if (out >= 0)
        close(out);
    return result;
}

static uint64_t any_block(struct patient *p)
{
    uint64_t front = p->blocks < FRONT_BLOCKS ? p->blocks : FRONT_BLOCKS;
    bool in_front = fb_prng_below(p->prng, 100) < FRONT_PERCENT;
    return fb_prng_below(p->prng, in_front ? front : p->blocks);
}

static bool get_block(int fd, uint64_t block, unsigned char *bytes)
{
    return pread(fd, bytes, FB_BLOCK_BYTES, (off_t)(block * FB_BLOCK_BYTES)) == FB_BLOCK_BYTES;
}

static bool set_block(struct patient *p, uint64_t block, const unsigned char *bytes)
{
    return pwrite(p->fd, bytes, FB_BLOCK_BYTES, (off_t)(block * FB_BLOCK_BYTES)) == FB_BLOCK_BYTES;
}

static void flip(struct patient *p)
{
    unsigned char bytes[FB_BLOCK_BYTES];
    uint64_t flips = fb_prng_between(p->prng, 1, FLIPS_MAX);
    for (uint64_t i = 0; i < flips; i++) {
        uint64_t block = any_block(p), bit = fb_prng_below(p->prng, FB_BLOCK_BYTES * 8);
        if (!get_block(p->fd, block, bytes))
            continue;
        bytes[bit / 8] ^= (unsigned char)(1u << (bit % 8));
        if (set_block(p, block, bytes))
            crash_count(p->state, CRASH_N_DAMAGE_FLIP, 1);
    }
}

static void swap(struct patient *p)
{
    unsigned char a[FB_BLOCK_BYTES], b[FB_BLOCK_BYTES];
    uint64_t first = any_block(p), second = any_block(p);
    if (get_block(p->fd, first, a) && get_block(p->fd, second, b) && set_block(p, first, b) &&
        set_block(p, second, a))
        crash_count(p->state, CRASH_N_DAMAGE_SWAP, 1);
}

static void zero(struct patient *p)
{
    static const unsigned char nothing[FB_BLOCK_BYTES];
    uint64_t first = any_block(p), n = fb_prng_between(p->prng, 1, RUN_BLOCKS_MAX);
    for (uint64_t i = 0; i < n && first + i < p->blocks; i++)
        if (set_block(p, first + i, nothing))
            crash_count(p->state, CRASH_N_DAMAGE_ZERO, 1);
}

static void put_back(struct patient *p)
{
    unsigned char bytes[FB_BLOCK_BYTES];
    uint64_t first = any_block(p), n = fb_prng_between(p->prng, 1, RUN_BLOCKS_MAX);
    for (uint64_t i = 0; i < n && first + i < p->blocks; i++)
        if (p->old >= 0 && get_block(p->old, first + i, bytes) && set_block(p, first + i, bytes))
            crash_count(p->state, CRASH_N_DAMAGE_OLD, 1);
}

static void cut(struct patient *p)
{
    uint64_t blocks = fb_prng_between(p->prng, p->blocks / 2, p->blocks);
    uint64_t bytes = blocks * FB_BLOCK_BYTES - (fb_prng_below(p->prng, 2) ? 512 : 0);
    if (blocks > 1 && ftruncate(p->fd, (off_t)bytes) == 0) {
        crash_count(p->state, CRASH_N_DAMAGE_CUT, 1);
        p->blocks = bytes / FB_BLOCK_BYTES;
    }
}

int crash_damage(struct crash_state *state, struct fb_prng *prng, const char *path,
                 const char *copy)
{
    struct patient p = {.state = state, .prng = prng};
    struct stat info;
    p.fd = open(path, O_RDWR | O_CLOEXEC);
    if (p.fd < 0)
        return -errno;
    p.old = open(copy, O_RDONLY | O_CLOEXEC);
    if (fstat(p.fd, &info) == 0)
        p.blocks = (uint64_t)info.st_size / FB_BLOCK_BYTES;
    uint64_t acts = fb_prng_between(prng, 1, ACTS_MAX);
    for (uint64_t i = 0; i < acts && p.blocks > 1; i++) {
        uint64_t dice = fb_prng_below(prng, 100);
        if (dice < 35)
            flip(&p);
        else if (dice < 55)
            swap(&p);
        else if (dice < 72)
            zero(&p);
        else if (dice < 96)
            put_back(&p);
        else
            cut(&p);
    }
    close(p.fd);
    if (p.old >= 0)
        close(p.old);
    return 0;
}
