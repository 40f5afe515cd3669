/*
 * fetch.c - read slots: parts on their way from the device into staging pages, and the check of
 * bytes against the root in the index.
 */
#include "engine/shard_private.h"

uint32_t fb_read_number(const struct fb_shard *shard, const struct fb_read *slot)
{
    FB_ASSERT(slot >= shard->reads && slot < shard->reads + shard->config.read_slots);
    return (uint32_t)(slot - shard->reads);
}

struct fb_read *fb_read_take(struct fb_shard *shard, enum fb_read_kind kind)
{
    /* A share is for copies forward alone: else readers could stop the log from making room. */
    uint32_t reserve = kind == FB_READ_COPY ? 0 : shard->config.read_slots / FB_SHARD_READ_RESERVE;
    if (shard->reads_free_count <= reserve)
        return NULL;
    struct fb_link *link = fb_list_pop_front(&shard->reads_free);
    struct fb_read *slot = FB_LIST_ITEM(link, struct fb_read, link);
    shard->reads_free_count--;
    FB_ASSERT(slot->kind == FB_READ_FREE);
    slot->kind = (uint8_t)kind;
    slot->op = NULL;
    slot->stage = FB_ARENA_NONE;
    slot->write = FB_SLOT_NONE;
    slot->hashing = false;
    slot->result = 0;
    return slot;
}

void fb_read_give(struct fb_shard *shard, struct fb_read *slot)
{
    FB_ASSERT(slot->kind != FB_READ_FREE && !slot->hashing);
    slot->kind = FB_READ_FREE;
    fb_list_push_back(&shard->reads_free, &slot->link);
    shard->reads_free_count++;
}

void fb_read_submit(struct fb_shard *shard, struct fb_read *slot, const struct fb_entry *entry)
{
    struct fb_log_read *read = &slot->read;
    read->addr = fb_entry_addr(entry);
    read->bytes = fb_part_pages(entry) * FB_PAGE_BYTES;
    read->block_offset = 0;
    read->cookie = fb_read_number(shard, slot);
    uint64_t covered = 0;
    read->vec_count = (uint16_t)fb_arena_runs(&shard->arena, slot->stage, 0, read->bytes, read->vec,
                                              FB_LOG_VEC_MAX, &covered);
    FB_ASSERT(covered == read->bytes);
    fb_log_read(shard->log, shard->now_ns, read);
}

void fb_read_hash(struct fb_shard *shard, struct fb_read *slot, uint32_t chain, uint32_t bytes)
{
    uint64_t covered = 0;
    size_t count =
        fb_arena_runs(&shard->arena, chain, 0, bytes, slot->vec, FB_LOG_VEC_MAX, &covered);
    FB_ASSERT(covered == bytes);
    slot->hashing = true;
    fb_shard_hash(shard, &shard->read_hashes[fb_read_number(shard, slot)], slot->vec,
                  (uint32_t)count, bytes, slot->leaves);
}

uint64_t fb_part_root(const struct fb_shard *shard, const struct fb_identity *what, uint16_t ns,
                      uint64_t epoch, uint64_t generation, const uint64_t *leaves)
{
    struct fb_identity identity = *what;
    identity.namespace_id = shard->namespaces[ns].id;
    identity.epoch = epoch;
    identity.generation = (struct fb_generation){
        .boot = (uint32_t)(generation >> FB_GENERATION_BOOT_SHIFT),
        .counter = generation & FB_GENERATION_COUNTER_MAX,
    };
    return fb_root_of(&identity, leaves, fb_div_up(identity.part_bytes, FB_LEAF_BYTES));
}

void fb_value_bad(struct fb_shard *shard, struct fb_entry *head)
{
    fb_value_drop(shard, head, FB_REASON_BAD_CHECKSUM, false);
}
