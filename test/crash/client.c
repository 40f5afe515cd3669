/* What a client does to the server, and what it makes of the answers. See client.h. */
#include "test/crash/client.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/prng.h"
#include "base/reason.h"
#include "test/lib/server.h"

#define BATCH          8
#define BATCH_BYTES    (8u << 20)
#define LARGE_BYTES    (1u << 20)
#define TINY_BYTES     16
#define HOLD_MS        10000
#define SHARED_PERCENT 30
#define RANGE_PERCENT  25
#define DELAY_MS_MAX   12
#define CLOCK_SLACK_MS 100 /* the store reads the wall clock now and then only */

struct item {
    bool shared;
    unsigned index;
    uint32_t content;
    int doubt;
    struct crash_view before;
    unsigned char key[CRASH_KEY_BYTES];
    size_t key_bytes;
    unsigned char *bytes;
    struct fb_buf bufs[2];
};

struct worker {
    const struct crash_load *load;
    struct crash_state *state;
    struct fb_prng prng;
    struct fb_client *client[CRASH_NAMESPACES];
    uint64_t epoch[CRASH_NAMESPACES];
    bool stale[CRASH_NAMESPACES];
    unsigned ns; /* of the call in hand */
    unsigned count;
    struct item items[BATCH];
    unsigned char *memory; /* BATCH values */
    uint64_t call_wall_ms, call_ns;
};

static struct crash_key *own_key(struct worker *w, unsigned index)
{
    return &w->state->ns[w->ns].own[index];
}

/* ---- calls ---- */

static void call_begin(struct worker *w)
{
    struct crash_client *self = &w->state->client[w->load->number];
    w->call_wall_ms = crash_wall_ms();
    atomic_store(&self->call_limit_ms, CRASH_CALL_MS + FB_ABORT_BOUND_MS);
    w->call_ns = test_now_ns();
    atomic_store(&self->call_began_ns, w->call_ns);
}

static void call_end(struct worker *w)
{
    struct crash_client *self = &w->state->client[w->load->number];
    atomic_store(&self->call_began_ns, 0);
    atomic_fetch_add(&self->calls, 1);
}

/* What every result may mean, whatever the call. */
static void note_result(struct worker *w, int result, const char *call)
{
    if (result == FB_STALE_EPOCH && !w->stale[w->ns]) {
        w->stale[w->ns] = true;
        crash_count(w->state, CRASH_N_STALE, 1);
    }
    /* No load is so long, nor is anybody stopped so long, that a call may reach its deadline. */
    if (result == FB_DEADLINE || result == FB_INTERNAL || result == FB_PROTOCOL ||
        result == FB_BAD_KEY || result == FB_BAD_ARGUMENT || result == FB_BUFFER_TOO_SMALL ||
        result == FB_TOO_BIG)
        crash_fail(w->state, CRASH_FAIL_OTHER, "client %u: %s answered %s", w->load->number, call,
                   fb_result_name(result));
}

static void note(struct worker *w, const struct item *item, char what, int result, bool persisted,
                 uint8_t reason)
{
    struct crash_namespace *ns = &w->state->ns[w->ns];
    struct crash_journal *journal =
        item->shared ? &ns->shared[item->index].journal : &ns->own[item->index].journal;
    crash_note(w->state, journal,
               (struct crash_event){.content = item->content,
                                    .result = result,
                                    .who = (uint8_t)w->load->number,
                                    .what = what,
                                    .persisted = persisted,
                                    .reason = reason});
}

/* ---- the batch in hand ---- */

static void batch_begin(struct worker *w)
{
    w->ns = (unsigned)fb_prng_below(&w->prng, CRASH_NAMESPACES);
    w->count = 0;
}

static struct item *batch_add(struct worker *w, bool shared, unsigned index)
{
    FB_ASSERT(w->count < BATCH);
    struct item *item = &w->items[w->count];
    item->shared = shared;
    item->index = index;
    item->content = 1;
    item->doubt = -1;
    item->key_bytes = crash_key_name(shared, index, item->key);
    item->bytes = w->memory + (size_t)w->count * CRASH_VALUE_BYTES;
    w->count++;
    return item;
}

/* Takes a random key of one's own for a change; NULL if another client has it. */
static struct item *batch_own(struct worker *w)
{
    unsigned index = (unsigned)fb_prng_below(&w->prng, CRASH_OWN_KEYS);
    if (!crash_own(own_key(w, index), w->load->number))
        return NULL;
    return batch_add(w, false, index);
}

/* A batch of a few keys of one's own; `shared`: and of shared ones. */
static void batch_some(struct worker *w, unsigned most, bool shared)
{
    unsigned n = (unsigned)fb_prng_between(&w->prng, 1, most);
    batch_begin(w);
    for (unsigned i = 0; i < n; i++) {
        if (shared && fb_prng_below(&w->prng, 100) < SHARED_PERCENT)
            batch_add(w, true, (unsigned)fb_prng_below(&w->prng, CRASH_SHARED_KEYS));
        else
            batch_own(w);
    }
}

static void batch_disown(struct worker *w)
{
    for (unsigned i = 0; i < w->count; i++)
        if (!w->items[i].shared)
            crash_disown(own_key(w, w->items[i].index));
    w->count = 0;
}

/* ---- put ---- */

static void raise_begun(struct crash_shared_key *key, uint64_t epoch)
{
    uint32_t mine = (uint16_t)epoch + 1u, now = atomic_load(&key->begun);
    while (now < mine && !atomic_compare_exchange_weak(&key->begun, &now, mine))
        continue;
}

/* Adds a put of a random key; false if the batch has bytes enough. */
static bool put_add(struct worker *w, uint32_t *bytes)
{
    uint16_t epoch = (uint16_t)w->epoch[w->ns];
    bool shared = fb_prng_below(&w->prng, 100) < SHARED_PERCENT;
    struct item *item;
    if (shared) {
        item = batch_add(w, true, (unsigned)fb_prng_below(&w->prng, CRASH_SHARED_KEYS));
        atomic_fetch_or(&w->state->client[w->load->number].shared[w->ns], UINT64_C(1)
                                                                              << item->index);
        raise_begun(&w->state->ns[w->ns].shared[item->index], epoch);
    } else {
        item = batch_own(w);
        if (item == NULL)
            return true;
        struct crash_key *key = own_key(w, item->index);
        item->content = atomic_load(&key->next) + 1;
        item->doubt = crash_doubt(key, (struct crash_word){item->content, epoch, CRASH_DOUBT_PUT});
        if (item->doubt < 0) {
            crash_disown(key);
            w->count--;
            return true;
        }
    }
    uint32_t n = crash_value_bytes(w->state, w->ns, shared, item->index, item->content);
    crash_value_fill(w->state, w->ns, shared, item->index, item->content, item->bytes, n);
    uint32_t first = (uint32_t)fb_prng_between(&w->prng, 0, n);
    item->bufs[0] = (struct fb_buf){item->bytes, first};
    item->bufs[1] = (struct fb_buf){item->bytes + first, n - first};
    *bytes += n;
    return *bytes < BATCH_BYTES;
}

/* Results after which a put is certain to have stored nothing. */
static bool stored_nothing(int result)
{
    return result == FB_STALE_EPOCH || result == FB_REMOVED || result == FB_QUOTA ||
           result == FB_BUSY || result == FB_TOO_BIG || result == FB_BAD_KEY ||
           result == FB_BAD_ARGUMENT || result == FB_SHUTTING_DOWN;
}

/* The key is readable, said the store: so it must be known, or in doubt. Learns `persisted`. */
static void settle_readable(struct worker *w, struct item *item, bool persisted, const char *call)
{
    struct crash_key *key = own_key(w, item->index);
    struct crash_view view;
    crash_look(key, &view);
    struct crash_word word = view.acked;
    bool known =
        word.content > 0 && !(word.flags & CRASH_GONE) && word.epoch == (uint16_t)w->epoch[w->ns];
    if (crash_view_in_doubt(&view))
        return;
    if (!known && !atomic_load(&w->state->tainted)) {
        crash_fail_key(
            w->state, CRASH_FAIL_REMOVED, &key->journal,
            "client %u: %s says that namespace %u key %u is there; acknowledged %u epoch %u "
            "flags %u, now epoch %u",
            w->load->number, call, w->ns, item->index, word.content, word.epoch, word.flags,
            (unsigned)w->epoch[w->ns]);
    } else if (known && persisted) {
        if (!(word.flags & CRASH_PERSISTED)) {
            atomic_store(&key->persisted_ms, w->call_wall_ms);
            crash_count(w->state, CRASH_N_ACK_PERSISTED, 1);
        }
        word.flags |= CRASH_PERSISTED;
        atomic_store(&key->acked, crash_pack(word));
    }
}

static void settle_own(struct worker *w, struct item *item, const struct fb_put_item *put)
{
    struct crash_key *key = own_key(w, item->index);
    struct crash_word word = {item->content, (uint16_t)w->epoch[w->ns], 0};
    if (put->result == FB_OK || put->result == FB_NOT_PERSISTED) {
        if (put->result == FB_OK && put->persisted) {
            word.flags = CRASH_PERSISTED;
            atomic_store(&key->persisted_ms, w->call_wall_ms);
            crash_count(w->state, CRASH_N_ACK_PERSISTED, 1);
        } else if (put->result == FB_OK && put->persist_mode == FB_PERSIST_MODE_THROUGH) {
            crash_fail(w->state, CRASH_FAIL_OTHER, "client %u: \"through\" stored, not persisted",
                       w->load->number);
        }
        crash_generation(&key->generation, put->generation);
        crash_acknowledge(key, item->doubt, word);
        crash_count(w->state, (put->flags & FB_UPSERT) ? CRASH_N_UPSERTS : CRASH_N_PUTS, 1);
    } else if (put->result == FB_EXISTS) {
        crash_undoubt(key, item->doubt);
        settle_readable(w, item, put->persisted, "EXISTS");
    } else if (stored_nothing(put->result)) {
        crash_undoubt(key, item->doubt);
    }
}

static void settle_shared(struct worker *w, struct item *item, const struct fb_put_item *put)
{
    struct crash_shared_key *key = &w->state->ns[w->ns].shared[item->index];
    bool persisted = put->persisted;
    if (put->result != FB_OK && put->result != FB_EXISTS)
        return;
    if (put->result == FB_OK)
        crash_generation(&key->generation, put->generation);
    if (put->result == FB_OK && !persisted)
        atomic_store(&key->cached_ns, test_now_ns());
    if (persisted && atomic_load(&key->cached_ns) >= w->call_ns)
        persisted = false;
    struct crash_word mine = {1, (uint16_t)w->epoch[w->ns], persisted ? CRASH_PERSISTED : 0};
    uint64_t now = atomic_load(&key->acked);
    for (;;) {
        struct crash_word word = crash_unpack(now);
        struct crash_word next = mine;
        if (word.epoch > mine.epoch)
            return;
        if (word.epoch == mine.epoch && put->result == FB_EXISTS)
            next.flags |= word.flags & CRASH_PERSISTED;
        if (next.flags & ~word.flags & CRASH_PERSISTED)
            atomic_store(&key->persisted_ms, w->call_wall_ms);
        if (atomic_compare_exchange_weak(&key->acked, &now, crash_pack(next)))
            break;
    }
    crash_count(w->state, CRASH_N_PUTS_SHARED, 1);
    crash_count(w->state, CRASH_N_ACK_PERSISTED, persisted);
}

/* Whatever the answers were, and if none could be had: what is known now of the puts. */
static void settle_puts(struct worker *w, struct fb_put_item *puts, bool asked)
{
    for (unsigned i = 0; i < w->count; i++) {
        struct item *item = &w->items[i];
        size_t length = item->bufs[0].len + item->bufs[1].len;
        int result = puts[i].result;
        if (item->shared && asked && result < 0 && !stored_nothing(result))
            atomic_fetch_or(&w->state->ns[w->ns].shared_doubts, UINT64_C(1) << item->index);
        note_result(w, result, "put");
        note(w, item, puts[i].flags & FB_UPSERT ? 'u' : 'p', result, puts[i].persisted,
             puts[i].reason);
        if (item->shared)
            settle_shared(w, item, &puts[i]);
        else if (!asked)
            crash_undoubt(own_key(w, item->index), item->doubt);
        else
            settle_own(w, item, &puts[i]);
        crash_count(w->state, CRASH_N_PUTS_EXISTS, result == FB_EXISTS);
        crash_count(w->state, CRASH_N_PUTS_OTHER, asked && result < 0);
        crash_count(w->state, CRASH_N_PUTS_LARGE, result == FB_OK && length >= LARGE_BYTES);
        crash_count(w->state, CRASH_N_PUTS_TINY, result == FB_OK && length < TINY_BYTES);
    }
    atomic_store(&w->state->client[w->load->number].shared[w->ns], 0);
    batch_disown(w);
}

static void do_put(struct worker *w)
{
    struct fb_put_item puts[BATCH] = {{.key = NULL}};
    uint32_t bytes = 0;
    unsigned n = (unsigned)fb_prng_between(&w->prng, 1, BATCH);
    batch_begin(w);
    while (n-- > 0 && put_add(w, &bytes))
        continue;
    for (unsigned i = 0; i < w->count; i++) {
        struct item *item = &w->items[i];
        puts[i].key = item->key;
        puts[i].key_bytes = item->key_bytes;
        puts[i].bufs = item->bufs;
        puts[i].buf_count = 2;
        puts[i].persist_mode = (uint8_t)fb_prng_below(&w->prng, FB_PERSIST_MODE_THROUGH + 1);
        puts[i].flags = !item->shared && fb_prng_below(&w->prng, 2) ? FB_UPSERT : 0;
    }
    call_begin(w);
    bool asked = fb_put_batch(w->client[w->ns], puts, w->count, CRASH_CALL_MS) == 0;
    call_end(w);
    settle_puts(w, puts, asked);
}

/* ---- remove ---- */

static void settle_remove(struct worker *w, struct item *item, int result)
{
    struct crash_key *key = own_key(w, item->index);
    if (item->doubt < 0)
        return;
    if (result == FB_OK || result == FB_MISS) {
        struct crash_word gone = {atomic_load(&key->next), (uint16_t)w->epoch[w->ns], CRASH_GONE};
        crash_acknowledge(key, item->doubt, gone);
        crash_count(w->state, result == FB_OK ? CRASH_N_REMOVES : CRASH_N_REMOVES_MISS, 1);
    } else if (result == FB_STALE_EPOCH) {
        crash_undoubt(key, item->doubt);
    }
}

static void do_remove(struct worker *w)
{
    struct fb_key_item keys[BATCH] = {{.key = NULL}};
    batch_some(w, 4, false);
    unsigned n = 0;
    for (unsigned i = 0; i < w->count; i++) {
        struct item *item = &w->items[i];
        const struct crash_word what = {0, (uint16_t)w->epoch[w->ns], CRASH_DOUBT_REMOVE};
        item->doubt = crash_doubt(own_key(w, item->index), what);
        keys[i] = (struct fb_key_item){.key = item->key, .key_bytes = item->key_bytes};
        n += item->doubt >= 0;
    }
    bool asked = false;
    if (n == w->count && n > 0) {
        call_begin(w);
        asked = fb_remove_batch(w->client[w->ns], keys, n, CRASH_CALL_MS) == 0;
        call_end(w);
    }
    for (unsigned i = 0; i < w->count; i++) {
        if (n == w->count)
            note_result(w, keys[i].result, "remove");
        note(w, &w->items[i], 'r', asked ? keys[i].result : FB_CONNECTION, false, keys[i].reason);
        /* Not asked is as good as refused: nothing was done. */
        settle_remove(w, &w->items[i], asked ? keys[i].result : FB_STALE_EPOCH);
    }
    batch_disown(w);
}

/* ---- get ---- */

/* True if the store says that it gave the key up, durably. */
static bool is_given_up(const struct fb_explanation *why)
{
    return why->reason == FB_REASON_RECLAIMED_SSD || why->reason == FB_REASON_INDEX_FULL;
}

/* True if the store says nothing about this value, and that it does not remember so far back. What
 * it knows of an older value (a remove, say) does not count. */
static bool is_beyond(const struct fb_explanation *why, const struct crash_missed *missed)
{
    uint64_t since_ms = missed->after_restart ? missed->history_ms : why->since_ms;
    bool unknown = why->reason == FB_REASON_NO_RECORD ||
                   (why->generation != 0 && why->generation < missed->generation);
    return unknown && since_ms + CLOCK_SLACK_MS > missed->persisted_ms;
}

bool crash_given_up(struct crash_state *state, struct fb_client *client,
                    const struct crash_missed *missed, const char *where)
{
    static struct fb_explanation why;
    if (atomic_load(&state->tainted)) {
        crash_count(state, CRASH_N_DAMAGE_MISSES, 1);
        return true;
    }
    if (fb_explain(client, missed->key, missed->key_bytes, &why, CRASH_CALL_MS) != FB_OK)
        return true; /* the server has been killed meanwhile; the next check asks again */
    if (!missed->after_restart && why.reason == FB_REASON_EPOCH_BUMPED)
        return true; /* somebody has bumped it while the get was under way */
    if (!why.present && (is_given_up(&why) || is_beyond(&why, missed))) {
        crash_count(state, is_given_up(&why) ? CRASH_N_GIVEN_UP : CRASH_N_BEYOND_HISTORY, 1);
        return true;
    }
    const struct crash_namespace *ns = &state->ns[missed->ns];
    const struct crash_journal *journal =
        missed->shared ? &ns->shared[missed->index].journal : &ns->own[missed->index].journal;
    crash_fail_key(state, CRASH_FAIL_LOST, journal,
                   "%s: namespace %u %s key %u: generation %" PRIx64 " persisted at %" PRIu64
                   ", missed; present %d, reason %s of generation %" PRIx64 ", since %" PRIu64
                   " and %" PRIu64 "; %s",
                   where, missed->ns, missed->shared ? "shared" : "own", missed->index,
                   missed->generation, missed->persisted_ms, why.present,
                   fb_reason_name(why.reason), why.generation, why.since_ms, missed->history_ms,
                   why.text);
    return false;
}

/* True if the word says: this content must be there, in this epoch. */
static bool must_be_there(struct crash_word word, uint64_t epoch)
{
    return word.content > 0 && (word.flags & CRASH_PERSISTED) && !(word.flags & CRASH_GONE) &&
           word.epoch == (uint16_t)epoch;
}

/* A miss under load. Only of a key that nobody changes can be said that it must be there. */
static void judge_miss(struct worker *w, struct item *item)
{
    crash_count(w->state, CRASH_N_MISSES, 1);
    struct crash_key *key = own_key(w, item->index);
    struct crash_view now;
    if (!must_be_there(item->before.acked, w->epoch[w->ns]) || w->stale[w->ns] ||
        !crash_own(key, w->load->number))
        return;
    crash_look(key, &now);
    bool same = crash_pack(now.acked) == crash_pack(item->before.acked) &&
                now.next == item->before.next && !crash_view_in_doubt(&now) &&
                !crash_view_in_doubt(&item->before);
    struct crash_missed missed = {.ns = w->ns,
                                  .index = item->index,
                                  .key = item->key,
                                  .key_bytes = item->key_bytes,
                                  .generation = atomic_load(&key->generation),
                                  .persisted_ms = atomic_load(&key->persisted_ms)};
    if (same)
        crash_given_up(w->state, w->client[w->ns], &missed, "under load");
    crash_disown(key);
}

static void judge_get(struct worker *w, struct item *item, const struct fb_get_item *get)
{
    note_result(w, get->result, "get");
    if (get->result == FB_MISS)
        note(w, item, 'g', get->result, false, get->reason);
    if (get->result == FB_MISS && !item->shared)
        judge_miss(w, item);
    if (get->result != FB_OK)
        return;
    struct crash_found found = {.ns = w->ns,
                                .index = item->index,
                                .epoch = (uint16_t)w->epoch[w->ns],
                                .value_bytes = get->value_bytes,
                                .offset = get->range_off,
                                .bytes = get->bytes,
                                .data = item->bytes};
    crash_count(w->state, CRASH_N_HITS, 1);
    crash_count(w->state, CRASH_N_HITS_SSD, (get->tiers & FB_TIER_SSD) != 0);
    if (item->shared)
        crash_judge_shared(w->state, &found, "under load");
    else
        crash_judge_hit(w->state, &item->before, &found, "under load");
}

static void get_item(struct worker *w, struct item *item, struct fb_get_item *get)
{
    item->bufs[0] = (struct fb_buf){item->bytes, CRASH_VALUE_BYTES};
    *get = (struct fb_get_item){.key = item->key,
                                .key_bytes = item->key_bytes,
                                .bufs = item->bufs,
                                .buf_count = 1};
    if (!item->shared)
        crash_look(own_key(w, item->index), &item->before);
}

static void do_get(struct worker *w)
{
    struct fb_get_item gets[BATCH];
    unsigned n = (unsigned)fb_prng_between(&w->prng, 1, BATCH);
    batch_begin(w);
    for (unsigned i = 0; i < n; i++) {
        bool shared = fb_prng_below(&w->prng, 100) < SHARED_PERCENT;
        unsigned keys = shared ? CRASH_SHARED_KEYS : CRASH_OWN_KEYS;
        struct item *item = batch_add(w, shared, (unsigned)fb_prng_below(&w->prng, keys));
        get_item(w, item, &gets[i]);
        if (fb_prng_below(&w->prng, 100) < RANGE_PERCENT) {
            gets[i].range_off = fb_prng_below(&w->prng, 100000);
            gets[i].range_bytes = fb_prng_between(&w->prng, 1, 100000);
            crash_count(w->state, CRASH_N_RANGES, 1);
        }
    }
    call_begin(w);
    fb_get_batch(w->client[w->ns], gets, n, CRASH_CALL_MS);
    call_end(w);
    for (unsigned i = 0; i < n; i++)
        judge_get(w, &w->items[i], &gets[i]);
    w->count = 0;
}

/* ---- reads in a hold ---- */

/* Nobody else changes what is owned, and shared keys are never removed: what is held must be there,
 * unless somebody bumps the epoch, or a killed client's operation is still under way. */
static void judge_held(struct worker *w, struct item *item, const struct fb_get_item *get)
{
    crash_count(w->state, CRASH_N_HELD, get->result == FB_OK);
    if (get->result != FB_MISS || get->reason == FB_REASON_EPOCH_BUMPED ||
        atomic_load(&w->state->tainted) || (!item->shared && crash_view_in_doubt(&item->before)))
        return;
    struct crash_namespace *ns = &w->state->ns[w->ns];
    crash_fail_key(w->state, CRASH_FAIL_OTHER,
                   item->shared ? &ns->shared[item->index].journal : &ns->own[item->index].journal,
                   "client %u: namespace %u %s key %u missed within its hold: %s", w->load->number,
                   w->ns, item->shared ? "shared" : "own", item->index,
                   fb_reason_name(get->reason));
}

static void do_hold(struct worker *w)
{
    const struct fb_hold_request hold = {.ms = HOLD_MS, .loads = 1};
    struct fb_exists_item asked[BATCH] = {{.key = NULL}};
    struct fb_get_item gets[BATCH];
    batch_some(w, BATCH, true);
    for (unsigned i = 0; i < w->count; i++)
        asked[i] =
            (struct fb_exists_item){.key = w->items[i].key, .key_bytes = w->items[i].key_bytes};
    if (w->count == 0)
        return;
    call_begin(w);
    fb_exists_batch(w->client[w->ns], asked, w->count, &hold, CRASH_CALL_MS);
    call_end(w);
    for (unsigned i = 0; i < w->count; i++) {
        struct item *item = &w->items[i];
        note_result(w, asked[i].result, "lookup");
        if (asked[i].result != FB_OK)
            continue;
        get_item(w, item, &gets[i]);
        gets[i].flags = FB_GET_USES_HOLD;
        call_begin(w);
        fb_get_batch(w->client[w->ns], &gets[i], 1, CRASH_CALL_MS);
        call_end(w);
        judge_get(w, item, &gets[i]);
        judge_held(w, item, &gets[i]);
    }
    batch_disown(w);
}

/* ---- persist, drop, bump ---- */

static void do_wait_or_drop(struct worker *w, bool drop)
{
    struct fb_key_item keys[BATCH] = {{.key = NULL}};
    batch_some(w, BATCH, false);
    for (unsigned i = 0; i < w->count; i++)
        keys[i] = (struct fb_key_item){.key = w->items[i].key, .key_bytes = w->items[i].key_bytes};
    if (w->count == 0)
        return;
    call_begin(w);
    if (drop)
        fb_drop_dram(w->client[w->ns], keys, w->count, CRASH_CALL_MS);
    else
        fb_wait_persisted(w->client[w->ns], keys, w->count, CRASH_CALL_MS);
    call_end(w);
    for (unsigned i = 0; i < w->count; i++) {
        note_result(w, keys[i].result, drop ? "drop" : "wait");
        note(w, &w->items[i], drop ? 'd' : 'w', keys[i].result, keys[i].result == FB_OK,
             keys[i].reason);
        if (keys[i].result != FB_OK)
            continue;
        crash_count(w->state, drop ? CRASH_N_DROPS : CRASH_N_WAITS, 1);
        settle_readable(w, &w->items[i], true, drop ? "drop" : "wait");
    }
    batch_disown(w);
}

static void learn_epoch(struct worker *w, unsigned ns, uint64_t acknowledged)
{
    uint64_t epoch = 0;
    call_begin(w);
    int result = fb_epoch_refresh(w->client[ns], &epoch, CRASH_CALL_MS);
    call_end(w);
    if (result != FB_OK)
        return;
    w->epoch[ns] = epoch;
    w->stale[ns] = false;
    if (epoch < acknowledged && !atomic_load(&w->state->tainted))
        crash_fail(w->state, CRASH_FAIL_OLDER,
                   "client %u: namespace %u is at epoch %" PRIu64 ", acknowledged %" PRIu64,
                   w->load->number, ns, epoch, acknowledged);
}

static void do_bump(struct worker *w)
{
    batch_begin(w);
    uint64_t epoch = 0;
    call_begin(w);
    int result = fb_epoch_bump(w->client[w->ns], &epoch, CRASH_CALL_MS);
    call_end(w);
    note_result(w, result, "bump");
    if (result != FB_OK) {
        w->stale[w->ns] = true; /* it may have happened */
        return;
    }
    crash_count(w->state, CRASH_N_BUMPS, 1);
    w->epoch[w->ns] = epoch;
    _Atomic uint64_t *newest = &w->state->ns[w->ns].epoch;
    uint64_t now = atomic_load(newest);
    while (now < epoch && !atomic_compare_exchange_weak(newest, &now, epoch))
        continue;
}

/* ---- the loop ---- */

int crash_open(const char *address, unsigned ns, bool stream, uint32_t delay_ms,
               struct fb_client **out, char *why, size_t why_bytes)
{
    char salt[16];
    struct fb_client_options options;
    fb_client_options_init(&options);
    snprintf(salt, sizeof(salt), "%u", ns);
    options.address = address;
    options.ns.model = "crash";
    options.ns.salt = salt;
    options.name = "fb-crash";
    options.use_shm = stream ? FB_SHM_OFF : FB_SHM_AUTO;
    options.commit_delay_ms = delay_ms;
    return fb_client_open(&options, out, why, why_bytes);
}

static bool open_all(struct worker *w)
{
    char why[FB_WHY_BYTES];
    bool stream = fb_prng_below(&w->prng, 4) == 0;
    uint32_t delay =
        fb_prng_below(&w->prng, 4) == 0 ? (uint32_t)fb_prng_below(&w->prng, DELAY_MS_MAX) : 0;
    for (unsigned ns = 0; ns < CRASH_NAMESPACES; ns++) {
        uint64_t acknowledged = atomic_load(&w->state->ns[ns].epoch);
        if (w->client[ns] == NULL &&
            crash_open(w->load->address, ns, stream, delay, &w->client[ns], why, sizeof(why)) != 0)
            return false;
        w->ns = ns;
        w->stale[ns] = true;
        learn_epoch(w, ns, acknowledged);
    }
    return true;
}

static void step(struct worker *w)
{
    for (unsigned ns = 0; ns < CRASH_NAMESPACES; ns++) {
        if (w->stale[ns]) {
            test_sleep_ms(1);
            learn_epoch(w, ns, atomic_load(&w->state->ns[ns].epoch));
        }
        if (w->stale[ns])
            return;
    }
    uint64_t dice = fb_prng_below(&w->prng, 1000);
    if (dice < 450)
        do_put(w);
    else if (dice < 750)
        do_get(w);
    else if (dice < 850)
        do_remove(w);
    else if (dice < 920)
        do_hold(w);
    else if (dice < 970)
        do_wait_or_drop(w, false);
    else if (dice < 997)
        do_wait_or_drop(w, true);
    else
        do_bump(w);
}

void crash_client_main(const struct crash_load *load)
{
    static struct worker worker;
    struct worker *w = &worker;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    w->load = load;
    w->state = load->state;
    fb_prng_seed(&w->prng, load->seed);
    w->memory = malloc((size_t)BATCH * CRASH_VALUE_BYTES);
    if (w->memory == NULL)
        _exit(1);
    while (!atomic_load(&w->state->stop) && !open_all(w))
        test_sleep_ms(2);
    while (!atomic_load(&w->state->stop))
        step(w);
    _exit(0);
}
