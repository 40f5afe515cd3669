/*
 * audit.c - every invariant of the shard's memory, recomputed from the entries and compared.
 *
 * Pages: each is free, staging, or belongs to exactly one entry. Lists: each part is on the list
 * that its state asks for, and on no other. Accounts: pages by class, by namespace, entries by
 * space, key texts, slots. Claims: writer and line agree with the table's counts.
 */
#include "engine/shard_private.h"

/* What is counted while all entries are visited. */
struct tally {
    uint64_t pages[FB_PAGES_CLASSES];
    uint64_t listed[FB_ENTRY_LISTS];
    uint64_t used, keys, placed, granules, busy, pins;
    uint64_t keys_dram, keys_ssd;
};

static enum fb_pages class_of(const struct fb_entry *entry)
{
    if (entry->state == FB_ENTRY_RESERVED)
        return FB_PAGES_RESERVED;
    if (entry->state == FB_ENTRY_QUARANTINED)
        return FB_PAGES_QUARANTINE;
    if (entry->state != FB_ENTRY_LIVE && entry->state != FB_ENTRY_DOOMED)
        return FB_PAGES_PINNED;
    if (fb_entry_is(entry, FB_ENTRY_UNSAVED))
        return FB_PAGES_DIRTY;
    if (entry->pins > 0)
        return FB_PAGES_PINNED;
    return entry->list == FB_ENTRY_HELD ? FB_PAGES_HELD : FB_PAGES_CLEAN;
}

static void check_head(const struct fb_shard *shard, struct fb_entry *head, struct tally *tally)
{
    if (fb_entry_is(head, FB_ENTRY_HASHED)) {
        FB_ASSERT(fb_index_find(&shard->index, head->digest) == head);
        tally->keys++;
    }
    bool readable = head->state == FB_ENTRY_LIVE || head->state == FB_ENTRY_DOOMED;
    FB_ASSERT(!readable || fb_entry_is(head, FB_ENTRY_HASHED));
    if (readable) {
        tally->keys_dram += head->extent != FB_ARENA_NONE;
        tally->keys_ssd += fb_entry_has_addr(head);
    }
    bool has_key = head->state != FB_ENTRY_GHOST && head->state != FB_ENTRY_TOMB;
    uint32_t slot = has_key ? fb_index_key(&shard->index, head) : FB_KEYS_NONE;
    if (slot != FB_KEYS_NONE)
        tally->granules += fb_keys_kept(&shard->keys, slot);
    /* What may have to be written needs its key text. */
    FB_ASSERT(!readable || fb_value_is_durable(shard, head) || slot != FB_KEYS_NONE);
    for (struct fb_entry *entry = fb_index_next_part(&shard->index, head); entry != NULL;
         entry = fb_index_next_part(&shard->index, entry)) {
        FB_ASSERT(fb_index_head_of(&shard->index, entry) == head);
        FB_ASSERT(entry->state == head->state && entry->space == head->space);
    }
}

static void check_entry(struct fb_shard *shard, struct fb_entry *entry, struct tally *tally)
{
    tally->used++;
    tally->listed[entry->list]++;
    tally->pins += entry->pins;
    tally->placed += fb_entry_has_addr(entry);
    FB_ASSERT(shard->spaces[entry->space].used);
    if (entry->extent != FB_ARENA_NONE) {
        FB_ASSERT(fb_arena_chain_pages(&shard->arena, entry->extent) == fb_part_pages(entry));
        fb_arena_mark(&shard->arena, entry->extent, shard->audit_bits);
        tally->pages[class_of(entry)] += fb_part_pages(entry);
    } else {
        FB_ASSERT(entry->pins == 0 && !fb_entry_is(entry, FB_ENTRY_UNSAVED));
    }
    if (fb_entry_is(entry, FB_ENTRY_BUSY)) {
        tally->busy++;
        FB_ASSERT(entry->pins > 0 && entry->list == FB_ENTRY_UNLISTED);
        const struct fb_write *slot = &shard->writes[entry->links.newer];
        FB_ASSERT(slot->kind == FB_WRITE_PART &&
                  slot->entry == fb_index_number(&shard->index, entry));
    }
    if (entry->state == FB_ENTRY_ZOMBIE)
        FB_ASSERT(entry->pins > 0 && !fb_entry_is(entry, FB_ENTRY_HASHED));
    if (fb_entry_is(entry, FB_ENTRY_HEAD))
        check_head(shard, entry, tally);
}

/* Walks a list; every part on it says that it is on this list. */
static uint32_t check_list(const struct fb_shard *shard, const struct fb_lru *lru,
                           enum fb_entry_list list)
{
    uint32_t count = 0;
    uint32_t before = FB_ENTRY_NONE;
    for (struct fb_entry *entry = fb_lru_cold(&shard->index, lru); entry != NULL;
         entry = fb_lru_newer(&shard->index, entry)) {
        FB_ASSERT(entry->list == list && entry->links.older == before);
        before = fb_index_number(&shard->index, entry);
        FB_ASSERT(++count <= lru->count);
    }
    FB_ASSERT(count == lru->count && lru->hot == before);
    return count;
}

static void check_lists(const struct fb_shard *shard, const struct tally *tally)
{
    uint64_t listed[FB_ENTRY_LISTS] = {0};
    listed[FB_ENTRY_UNLISTED] = tally->listed[FB_ENTRY_UNLISTED];
    listed[FB_ENTRY_DIRTY] = check_list(shard, &shard->dirty, FB_ENTRY_DIRTY);
    listed[FB_ENTRY_LAZY] = check_list(shard, &shard->lazy, FB_ENTRY_LAZY);
    listed[FB_ENTRY_GHOSTS] = check_list(shard, &shard->ghosts, FB_ENTRY_GHOSTS);
    listed[FB_ENTRY_PARTIAL] = check_list(shard, &shard->partial, FB_ENTRY_PARTIAL);
    for (unsigned i = 0; i < FB_SHARD_HELD_SLOTS; i++)
        listed[FB_ENTRY_HELD] += check_list(shard, &shard->held[i], FB_ENTRY_HELD);
    for (uint32_t i = 0; i < shard->spaces_max; i++) {
        if (!shard->spaces[i].used)
            continue;
        const struct fb_evict *evict = &shard->spaces[i].evict;
        listed[FB_ENTRY_CLEAN] += check_list(shard, &evict->clean, FB_ENTRY_CLEAN);
        listed[FB_ENTRY_LOOSE] += check_list(shard, &evict->loose, FB_ENTRY_LOOSE);
    }
    for (unsigned i = 0; i < FB_ENTRY_LISTS; i++)
        FB_ASSERT(listed[i] == tally->listed[i]);
}

static bool counts_for_ssd(const struct fb_entry *head)
{
    bool readable = head->state == FB_ENTRY_LIVE || head->state == FB_ENTRY_DOOMED;
    return readable && head->persist != FB_ENTRY_PERSIST_OFF && !fb_entry_is(head, FB_ENTRY_UNKEPT);
}

/* Pages, device bytes and entries of each namespace and space. Cost: entries x namespaces in use.
 */
static void check_namespace(const struct fb_shard *shard, uint32_t number)
{
    const struct fb_namespace *ns = &shard->namespaces[number];
    uint64_t dram_pages = 0;
    uint64_t ssd_bytes = 0;
    for (uint32_t i = 0; i < shard->index.count; i++) {
        struct fb_entry *entry = &shard->index.entries[i];
        if (entry->state == FB_ENTRY_FREE || fb_space_of(shard, entry) != ns)
            continue;
        if (entry->extent != FB_ARENA_NONE)
            dram_pages += fb_part_pages(entry);
        struct fb_entry *head =
            entry->state == FB_ENTRY_ZOMBIE ? NULL : fb_index_head_of(&shard->index, entry);
        if (head != NULL && counts_for_ssd(head))
            ssd_bytes += (uint64_t)fb_part_pages(entry) * FB_PAGE_BYTES;
    }
    FB_ASSERT(dram_pages == ns->dram_pages);
    FB_ASSERT(ssd_bytes == ns->ssd_bytes);
}

static void check_spaces(const struct fb_shard *shard)
{
    for (uint32_t i = 0; i < shard->config.namespaces_max; i++)
        if (shard->namespaces[i].used)
            check_namespace(shard, i);
    for (uint32_t s = 0; s < shard->spaces_max; s++) {
        uint32_t entries = 0;
        for (uint32_t i = 0; shard->spaces[s].used && i < shard->index.count; i++)
            entries += shard->index.entries[i].state != FB_ENTRY_FREE &&
                       shard->index.entries[i].space == s;
        FB_ASSERT(entries == (shard->spaces[s].used ? shard->spaces[s].entries : 0));
    }
}

static void check_claims(const struct fb_shard *shard)
{
    uint32_t used = 0;
    for (uint32_t i = 0; i < shard->claims.count; i++) {
        const struct fb_claim *claim = &shard->claims.claims[i];
        if (!claim->used)
            continue;
        used++;
        FB_ASSERT(fb_claim_find(&shard->claims, claim->digest) == claim);
        uint32_t waiting = 0;
        uint32_t flush_wait = 0;
        FB_LIST_FOREACH (link, &claim->line) {
            const struct fb_op *op = FB_LIST_ITEM(link, struct fb_op, link);
            FB_ASSERT(op->claim == i && (op->marks & FB_OP_IN_LINE) != 0);
            waiting += op->attempt.state == FB_ATTEMPT_WAITING;
            flush_wait += op->attempt.state == FB_ATTEMPT_FLUSH_WAIT;
        }
        FB_ASSERT(waiting == claim->slot.waiting && flush_wait == claim->slot.flush_wait);
        FB_ASSERT(claim->slot.writers == (claim->writer != NULL));
        FB_ASSERT(claim->writer == NULL || claim->writer->claim == i);
        FB_ASSERT(claim->writer != NULL || waiting + flush_wait > 0);
        /* Nobody waits for a writer that is not there. */
        FB_ASSERT(claim->writer != NULL || waiting == 0);
    }
    FB_ASSERT(used == shard->claims.used);
}

static void check_slots(const struct fb_shard *shard, const struct tally *tally)
{
    uint32_t free_writes = 0;
    uint32_t parts = 0;
    uint64_t slot_pins = 0;
    uint64_t staged = 0;
    for (uint32_t i = 0; i < shard->config.write_items; i++) {
        const struct fb_write *slot = &shard->writes[i];
        free_writes += slot->kind == FB_WRITE_FREE;
        parts += slot->kind == FB_WRITE_PART;
        bool copies_dram = slot->kind == FB_WRITE_COPY && slot->stage == FB_ARENA_NONE &&
                           slot->entry != FB_ENTRY_NONE;
        slot_pins += slot->kind == FB_WRITE_PART || copies_dram;
        if (slot->kind == FB_WRITE_COPY && slot->stage != FB_ARENA_NONE)
            staged += fb_arena_chain_pages(&shard->arena, slot->stage);
    }
    FB_ASSERT(free_writes == shard->writes_free_count);
    FB_ASSERT(parts == shard->parts_in_flight && parts == tally->busy);
    FB_ASSERT(slot_pins <= tally->pins);
    FB_ASSERT(staged <= shard->pages[FB_PAGES_STAGING]);
    uint32_t free_reads = 0;
    for (uint32_t i = 0; i < shard->config.read_slots; i++)
        free_reads += shard->reads[i].kind == FB_READ_FREE;
    FB_ASSERT(free_reads == shard->reads_free_count);
    /* With no operation open, nothing but the shard's own work pins and stages. */
    if (shard->open_ops == 0) {
        FB_ASSERT(slot_pins == tally->pins);
        FB_ASSERT(staged == shard->pages[FB_PAGES_STAGING]);
        FB_ASSERT(shard->claims.used == 0 && shard->turn_peers == 0 && shard->waiting_puts == 0);
        FB_ASSERT(shard->pages[FB_PAGES_RESERVED] == 0 && shard->pages[FB_PAGES_QUARANTINE] == 0);
    }
}

void fb_shard_audit(const struct fb_shard *shard)
{
    struct tally tally = {0};
    fb_arena_audit(&shard->arena);
    /* The bits are the audit's own; nothing else of the shard is changed. */
    struct fb_shard *mine = (struct fb_shard *)(uintptr_t)shard;
    uint64_t words = fb_div_up(shard->arena.pages, FB_SHARD_AUDIT_WORD_BITS);
    memset(mine->audit_bits, 0, words * sizeof(mine->audit_bits[0]));
    for (uint32_t i = 0; i < shard->index.count; i++)
        if (shard->index.entries[i].state != FB_ENTRY_FREE)
            check_entry(mine, &mine->index.entries[i], &tally);
    FB_ASSERT(tally.used == shard->index.used);
    FB_ASSERT(tally.keys == shard->index.keys);
    FB_ASSERT(tally.keys_dram == shard->keys_dram && tally.keys_ssd == shard->keys_ssd);
    FB_ASSERT(tally.placed == shard->placed_entries);
    FB_ASSERT(tally.granules + shard->keys.free_count == shard->keys.count);
    uint64_t used_pages = shard->pages[FB_PAGES_STAGING];
    for (unsigned i = 0; i < FB_PAGES_CLASSES; i++) {
        FB_ASSERT(i == FB_PAGES_STAGING || tally.pages[i] == shard->pages[i]);
        used_pages += tally.pages[i];
    }
    FB_ASSERT(used_pages + shard->arena.free_pages == shard->arena.faulted_pages);
    check_lists(shard, &tally);
    check_spaces(shard);
    check_claims(shard);
    check_slots(shard, &tally);
}
