/*
 * The start on a damaged device: a small image that a real load has left is damaged as the input
 * says, and a shard recovers on it.
 *
 * Damage is bits, blocks that are zero, swapped, old, copied, a file cut short; and blocks that
 * were changed and sealed again, so that their checksums are good and what they say is wrong.
 * Afterwards every key is read, and the node is used. Whatever was done: no assertion fails, the
 * start ends, bytes are those of a value of that key, nothing is left open, the books balance.
 */
#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/hash.h"
#include "engine/log_format.h"
#include "test/lib/fuzz.h"
#include "test/lib/tiny.h"

enum item {
    ITEM_FLIP,        /* block, u16 bit */
    ITEM_ZERO,        /* block, u8 count */
    ITEM_SWAP,        /* block, block */
    ITEM_OLD,         /* block, u8 count */
    ITEM_TRUNCATE,    /* block */
    ITEM_PATCH,       /* block, u16 offset, u8 count, bytes; sealed again */
    ITEM_PATCH_PLAIN, /* the same, not sealed */
    ITEM_COPY,        /* block, block: the first over the second */
    ITEM_NAMES,       /* u8 slot, u16 offset, u8 count, bytes: the namespace table, sealed again */
    ITEM_COUNT
};

#define ITEMS_MAX   16
#define PATCH_MAX   64
#define BLOCKS_MAX  8192
#define CHECKED_AT  16
#define FIELD_BLOCK 2 /* bytes of a block's number in an input */

static struct tiny base; /* the image, and what its client was promised */
static struct tiny work;
static uint32_t blocks[BLOCKS_MAX]; /* those of the image that hold metadata */
static uint32_t block_count;
static uint32_t device_blocks;
static struct fb_log_geometry geometry;

/* ---- the image ---- */

static void put_many(struct tiny *tiny, uint32_t first, uint32_t count, uint64_t bytes)
{
    for (uint32_t i = 0; i < count; i++)
        tiny_put(tiny, (first + i) % TINY_KEYS, bytes + 3000 * i, FB_PUT_UPSERT, FB_PERSIST_BEHIND);
    tiny_end_all(tiny);
}

/* Puts, removes, a bump, a restart, more than fits (so that segments are given up), a kill. */
static void make_image(void)
{
    base.config.devices = work.config.devices = 1;
    base.config.log.tombs_max = work.config.log.tombs_max = 32;
    base.verbose = getenv("FB_FUZZ_VERBOSE") != NULL;
    FUZZ_CHECK(tiny_open(&base) && tiny_open(&work));
    tiny_reset(&base, 1);
    tiny_reset(&work, 2);
    FUZZ_CHECK(tiny_start(&base));
    put_many(&base, 0, 8, 20000);
    tiny_settle(&base, 10 * FB_SEC_NS);
    tiny_end(&base, tiny_do(&base, FB_OP_EPOCH, 0, 0));
    for (unsigned round = 0; round < 12; round++)
        put_many(&base, round * 5, 16, 1000 + round * 8000);
    for (uint32_t key = 0; key < 6; key++)
        tiny_end(&base, tiny_do(&base, FB_OP_REMOVE, key * 3, 0));
    tiny_settle(&base, 10 * FB_SEC_NS);
    tiny_stop(&base);
    fb_sim_kill(base.sim, 5);
    FUZZ_CHECK(tiny_start(&base));
    put_many(&base, 2, 12, 500);
    tiny_end(&base, tiny_put(&base, 40, 150000, FB_PUT_UPSERT, FB_PERSIST_THROUGH));
    tiny_end(&base, tiny_do(&base, FB_OP_REMOVE, 2, 0));
    tiny_stop(&base);
    fb_sim_kill(base.sim, 6);
    FUZZ_CHECK(base.wrong[0] == '\0');
    device_blocks = (uint32_t)(fb_sim_device_bytes(base.sim, 0) / FB_BLOCK_BYTES);
    for (uint32_t i = 0; i < device_blocks && block_count < BLOCKS_MAX; i++)
        if (fb_sim_block_kind(base.sim, 0, i) == FB_SIM_BLOCK_META)
            blocks[block_count++] = i;
    FUZZ_CHECK(fb_log_geometry(base.config.log.capacity_bytes, &geometry) == 0 && block_count > 20);
}

/* ---- damage ---- */

/* One of the blocks with metadata, or with the top bit any block. */
static uint32_t pick(struct fuzz_input *input)
{
    uint32_t n = (uint32_t)fuzz_number(input, FIELD_BLOCK);
    if ((n & 0x8000) != 0)
        return (n & 0x7fff) % device_blocks;
    return blocks[n % block_count];
}

static void seal(uint8_t *block)
{
    uint64_t prefix;
    memcpy(&prefix, block, sizeof(prefix));
    uint64_t sum =
        htole64(fb_hash64(block + CHECKED_AT, FB_BLOCK_BYTES - CHECKED_AT, le64toh(prefix)));
    memcpy(block + 8, &sum, sizeof(sum));
}

static void patch(struct fuzz_input *input, bool sealed)
{
    uint32_t block = pick(input);
    uint32_t at = (uint32_t)fuzz_number(input, 2) % FB_BLOCK_BYTES;
    uint32_t count = fuzz_choice(input, PATCH_MAX + 1);
    uint8_t bytes[FB_BLOCK_BYTES];
    fb_sim_peek(work.sim, 0, block, bytes);
    fuzz_take(input, bytes + at, fb_min_u64(count, FB_BLOCK_BYTES - at));
    if (sealed)
        seal(bytes);
    fb_sim_poke(work.sim, 0, block, bytes);
}

/* Changes the body of a slot of the namespace table, and makes both of its checksums good. */
static void patch_names(struct fuzz_input *input)
{
    uint32_t slot = fuzz_choice(input, FB_LOG_NAMES_SLOTS);
    uint32_t at = (uint32_t)fuzz_number(input, 2) % FB_BLOCK_BYTES;
    uint32_t count = fuzz_choice(input, PATCH_MAX + 1);
    uint8_t head[FB_BLOCK_BYTES], body[FB_BLOCK_BYTES];
    uint64_t first = geometry.names_off / FB_BLOCK_BYTES +
                     (uint64_t)slot * FB_LOG_NAMES_SLOT_BYTES / FB_BLOCK_BYTES;
    if (first + 1 >= device_blocks)
        return;
    fb_sim_peek(work.sim, 0, first, head);
    fb_sim_peek(work.sim, 0, first + 1, body);
    fuzz_take(input, body + at, fb_min_u64(count, FB_BLOCK_BYTES - at));
    struct fb_log_super super;
    struct fb_log_names_head names;
    uint8_t block[FB_BLOCK_BYTES];
    fb_sim_peek(base.sim, 0, 0, block);
    if (fb_log_format_super_get(block, 0, &super) != FB_LOG_BLOCK_GOOD ||
        fb_log_format_names_get(head, super.device_id, slot, &names) != FB_LOG_BLOCK_GOOD)
        return;
    if ((at & 1) != 0)
        names.bytes = (uint32_t)fb_min_u64(FB_BLOCK_BYTES, names.bytes + at % 7);
    if (names.bytes > FB_BLOCK_BYTES)
        return;
    names.checksum = fb_log_format_names_checksum(body, names.bytes, names.sequence);
    fb_log_format_names_put(head, super.device_id, &names);
    fb_sim_poke(work.sim, 0, first, head);
    fb_sim_poke(work.sim, 0, first + 1, body);
}

static void copy_block(struct fuzz_input *input)
{
    uint8_t bytes[FB_BLOCK_BYTES];
    uint32_t from = pick(input);
    uint32_t to = pick(input);
    fb_sim_peek(work.sim, 0, from, bytes);
    fb_sim_poke(work.sim, 0, to, bytes);
}

static void do_item(struct fuzz_input *input)
{
    enum item what = (enum item)fuzz_choice(input, ITEM_COUNT);
    uint32_t block;
    switch (what) {
    case ITEM_FLIP: {
        block = pick(input);
        uint32_t bit = (uint32_t)fuzz_number(input, 2) % (FB_BLOCK_BYTES * 8);
        fb_sim_damage_flip(work.sim, 0, (uint64_t)block * FB_BLOCK_BYTES + bit / 8, bit % 8);
        break;
    }
    case ITEM_ZERO:
        block = pick(input);
        fb_sim_damage_zero(work.sim, 0, block,
                           fb_min_u64(1 + fuzz_number(input, 1), device_blocks - block));
        break;
    case ITEM_SWAP:
        block = pick(input);
        fb_sim_damage_swap(work.sim, 0, block, pick(input));
        break;
    case ITEM_OLD:
        block = pick(input);
        fb_sim_damage_old(work.sim, 0, block,
                          fb_min_u64(1 + fuzz_number(input, 1), device_blocks - block));
        break;
    case ITEM_TRUNCATE:
        fb_sim_damage_truncate(work.sim, 0, (uint64_t)pick(input) * FB_BLOCK_BYTES);
        break;
    case ITEM_PATCH:
        patch(input, true);
        break;
    case ITEM_PATCH_PLAIN:
        patch(input, false);
        break;
    case ITEM_COPY:
        copy_block(input);
        break;
    default:
        patch_names(input);
        break;
    }
}

/* ---- a run ---- */

/* The image again, with its promises; nobody is held to them, since the device will be damaged. */
static void restore(void)
{
    tiny_reset(&work, 2);
    fb_sim_clone_cut(base.sim, work.sim, FB_SIM_CUT_ALL, 0);
    work.now_ns = base.now_ns;
    work.epoch = base.epoch;
    memcpy(work.versions, base.versions, base.version_count * sizeof(base.versions[0]));
    work.version_count = base.version_count;
    memcpy(work.keys, base.keys, sizeof(base.keys));
    work.lied = true;
}

static void use(void)
{
    tiny_read_all(&work);
    tiny_end(&work, tiny_do(&work, FB_OP_LOOKUP, 0, 50));
    tiny_end(&work, tiny_do(&work, FB_OP_LIST, 0, 0));
    tiny_put(&work, 1, 70000, FB_PUT_UPSERT, FB_PERSIST_THROUGH);
    tiny_put(&work, 47, 100, 0, FB_PERSIST_BEHIND);
    tiny_do(&work, FB_OP_REMOVE, 40, 0);
    tiny_do(&work, FB_OP_DROP_DRAM, 1, 0);
    tiny_end_all(&work);
    tiny_end(&work, tiny_get(&work, 1, 0, UINT64_MAX, 0));
    tiny_leave(&work);
}

static void check_nothing_wrong(void)
{
    if (work.wrong[0] == '\0')
        return;
    fprintf(stderr, "recover_fuzz: %s\n", work.wrong);
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input input = {.at = data, .left = size};
    restore();
    for (unsigned i = 0; i < ITEMS_MAX && input.left > 0; i++)
        do_item(&input);
    bool serves = tiny_start(&work);
    if (!serves && fb_shard_ready(work.shard) == 0)
        tiny_wrong(&work, "the start does not end");
    if (serves)
        use();
    check_nothing_wrong();
    tiny_stop(&work);
    return 0;
}

/* ---- seeds ---- */

static struct fuzz_seed out;

static void item(uint8_t what, uint32_t block, uint64_t rest, unsigned rest_bytes)
{
    fuzz_add_number(&out, what, 1);
    fuzz_add_number(&out, block, FIELD_BLOCK);
    fuzz_add_number(&out, rest, rest_bytes);
}

static void end_seed(const char *name)
{
    fuzz_seed(name, out.bytes, out.count);
    out.count = 0;
}

/* The place in the list of the first block with this magic at or behind `from`. */
static uint32_t find_magic(const char *magic, uint32_t from)
{
    for (uint32_t i = from; i < block_count; i++) {
        uint8_t bytes[FB_BLOCK_BYTES];
        fb_sim_peek(base.sim, 0, blocks[i], bytes);
        if (memcmp(bytes, magic, 4) == 0)
            return i;
    }
    return 0;
}

static void seeds(void)
{
    static const char *const magics[] = {"FBSB", "FBNM", "FBHI", "FBSG", "FBTR", "FBDE", "FBSU"};
    fuzz_seed("untouched", "", 0);
    for (size_t i = 0; i < FB_ARRAY_COUNT(magics); i++) {
        char name[32];
        uint32_t at = find_magic(magics[i], 0);
        uint32_t next = find_magic(magics[i], at + 1);
        snprintf(name, sizeof(name), "%s-flip", magics[i]);
        item(ITEM_FLIP, at, 40 * 8, 2);
        end_seed(name);
        snprintf(name, sizeof(name), "%s-zero", magics[i]);
        item(ITEM_ZERO, at, 0, 1);
        end_seed(name);
        snprintf(name, sizeof(name), "%s-both-old", magics[i]);
        item(ITEM_OLD, at, 1, 1);
        item(ITEM_OLD, next, 1, 1);
        end_seed(name);
        snprintf(name, sizeof(name), "%s-swap", magics[i]);
        item(ITEM_SWAP, at, next, FIELD_BLOCK);
        end_seed(name);
        for (unsigned field = 32; field < 128; field += 8) {
            snprintf(name, sizeof(name), "%s-field-%u", magics[i], field);
            item(ITEM_PATCH, at, field | UINT64_C(2) << 16 | UINT64_C(0x1234) << 24, 5);
            if (i < 2)
                item(ITEM_PATCH, next, field | UINT64_C(2) << 16 | UINT64_C(0x1234) << 24, 5);
            end_seed(name);
        }
    }
    item(ITEM_TRUNCATE, block_count / 2, 0, 0);
    end_seed("truncated");
    item(ITEM_COPY, find_magic("FBDE", 0), find_magic("FBDE", block_count / 2), FIELD_BLOCK);
    end_seed("copied");
    for (unsigned at = 0; at < 100; at += 12) {
        char name[32];
        snprintf(name, sizeof(name), "names-%u", at);
        for (unsigned slot = 0; slot < FB_LOG_NAMES_SLOTS; slot++) {
            fuzz_add_number(&out, ITEM_NAMES, 1);
            fuzz_add_number(&out, slot, 1);
            fuzz_add_number(&out, at | 4 << 16 | UINT64_C(0xffffffff) << 24, 7);
        }
        end_seed(name);
    }
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    make_image();
    return fuzz_start(argc, argv, seeds);
}
