/* The check after a restart. See check.h. */
#include "test/crash/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/prng.h"
#include "base/reason.h"
#include "forebay/forebay.h"
#include "test/crash/client.h"

#define BATCH 32

struct checker {
    struct crash_state *state;
    struct fb_client *client;
    unsigned ns;
    uint64_t epoch;
    uint64_t history_ms; /* what was given up before may be forgotten */
    uint64_t shared_doubts;
    unsigned char keys[BATCH][CRASH_KEY_BYTES];
    struct fb_buf bufs[BATCH];
    struct fb_get_item gets[BATCH];
    unsigned char *memory;
};

static struct crash_found found_of(const struct checker *c, unsigned index,
                                   const struct fb_get_item *get)
{
    return (struct crash_found){.ns = c->ns,
                                .index = index,
                                .epoch = (uint16_t)c->epoch,
                                .value_bytes = get->value_bytes,
                                .offset = 0,
                                .bytes = get->bytes,
                                .data = get->bufs->ptr};
}

/* The key was missed and must not have been. */
static void missed(struct checker *c, bool shared, unsigned index, const struct fb_get_item *get,
                   uint64_t persisted_ms, uint64_t generation)
{
    struct crash_missed what = {.ns = c->ns,
                                .index = index,
                                .shared = shared,
                                .key = get->key,
                                .key_bytes = get->key_bytes,
                                .generation = generation,
                                .persisted_ms = persisted_ms,
                                .after_restart = true,
                                .history_ms = c->history_ms};
    crash_given_up(c->state, c->client, &what, "after restart");
}

/* A key that was neither hit nor missed after a restart: nothing excuses that. */
static void neither(struct checker *c, bool shared, unsigned index, const struct fb_get_item *get)
{
    crash_fail(c->state, CRASH_FAIL_OTHER, "after restart: namespace %u %s key %u: %s (%s)", c->ns,
               shared ? "shared" : "own", index, fb_result_name(get->result),
               fb_reason_name(get->reason));
}

/* ---- keys of one's own ---- */

static void count_doubts(struct checker *c, const struct crash_view *view)
{
    for (int i = 0; i < CRASH_DOUBTS; i++)
        crash_count(c->state, CRASH_N_DOUBTS, view->doubts[i] != 0);
}

/* What was seen is what holds from here on. */
static void settle(struct checker *c, struct crash_key *key, const struct crash_view *view,
                   uint32_t content, bool hit)
{
    struct crash_word word = {content, (uint16_t)c->epoch, 0};
    if (hit && content == view->acked.content && word.epoch == view->acked.epoch)
        word.flags = view->acked.flags;
    else if (hit)
        crash_count(c->state, CRASH_N_DOUBT_NEW, 1);
    else
        word = (struct crash_word){view->next, (uint16_t)c->epoch, CRASH_GONE};
    crash_note(c->state, &key->journal,
               (struct crash_event){.content = content,
                                    .result = hit ? FB_OK : FB_MISS,
                                    .who = 255,
                                    .what = 'c',
                                    .persisted = word.flags & CRASH_PERSISTED});
    if (hit)
        atomic_store(&key->persisted_ms, crash_wall_ms()); /* it was given up later than now */
    atomic_store(&key->acked, crash_pack(word));
    for (int i = 0; i < CRASH_DOUBTS; i++)
        atomic_store(&key->doubts[i], 0);
    atomic_store(&key->owner, 0);
}

static void check_own(struct checker *c, unsigned index, const struct fb_get_item *get)
{
    struct crash_key *key = &c->state->ns[c->ns].own[index];
    struct crash_view view;
    crash_look(key, &view);
    count_doubts(c, &view);
    bool must = view.acked.content > 0 && (view.acked.flags & CRASH_PERSISTED) &&
                !(view.acked.flags & CRASH_GONE) && view.acked.epoch == (uint16_t)c->epoch &&
                !crash_view_in_doubt(&view);
    crash_count(c->state, CRASH_N_CHECKED_PERSISTED, must);
    uint32_t content = 0;
    if (get->result == FB_OK) {
        struct crash_found found = found_of(c, index, get);
        content = crash_judge_hit(c->state, &view, &found, "after restart");
        crash_generation(&key->generation, get->generation);
        crash_count(c->state, CRASH_N_CHECKED_HITS, 1);
    } else if (get->result != FB_MISS || get->reason == FB_REASON_READ_DEADLINE ||
               get->reason == FB_REASON_NO_STAGING) {
        neither(c, false, index, get);
    } else if (must) {
        missed(c, false, index, get, atomic_load(&key->persisted_ms),
               atomic_load(&key->generation));
    }
    settle(c, key, &view, content, get->result == FB_OK);
}

/* ---- shared keys ---- */

static void check_shared(struct checker *c, unsigned index, const struct fb_get_item *get)
{
    struct crash_shared_key *key = &c->state->ns[c->ns].shared[index];
    struct crash_word word = crash_unpack(atomic_load(&key->acked));
    bool doubt = (c->shared_doubts >> index & 1) != 0;
    bool must = word.content > 0 && (word.flags & CRASH_PERSISTED) &&
                word.epoch == (uint16_t)c->epoch && !doubt;
    crash_count(c->state, CRASH_N_CHECKED_PERSISTED, must);
    crash_count(c->state, CRASH_N_DOUBTS, doubt);
    crash_note(c->state, &key->journal,
               (struct crash_event){.content = 1,
                                    .result = get->result,
                                    .who = 255,
                                    .what = 'c',
                                    .persisted = must,
                                    .reason = get->reason});
    if (get->result == FB_OK) {
        struct crash_found found = found_of(c, index, get);
        crash_judge_shared(c->state, &found, "after restart");
        crash_generation(&key->generation, get->generation);
        crash_count(c->state, CRASH_N_CHECKED_HITS, 1);
        atomic_store(&key->persisted_ms, crash_wall_ms());
        if (doubt) /* which of two it is cannot be told */
            atomic_store(&key->acked, 0);
        return;
    }
    if (get->result != FB_MISS)
        neither(c, true, index, get);
    else if (must)
        missed(c, true, index, get, atomic_load(&key->persisted_ms), atomic_load(&key->generation));
    atomic_store(&key->acked, 0);
}

/* ---- all ---- */

static void check_batch(struct checker *c, bool shared, unsigned first, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        c->bufs[i] = (struct fb_buf){c->memory + (size_t)i * CRASH_VALUE_BYTES, CRASH_VALUE_BYTES};
        c->gets[i] =
            (struct fb_get_item){.key = c->keys[i],
                                 .key_bytes = crash_key_name(shared, first + i, c->keys[i]),
                                 .bufs = &c->bufs[i],
                                 .buf_count = 1,
                                 .flags = FB_GET_STAYS_COLD};
    }
    fb_get_batch(c->client, c->gets, count, CRASH_CALL_MS * 4);
    for (unsigned i = 0; i < count; i++) {
        if (shared)
            check_shared(c, first + i, &c->gets[i]);
        else
            check_own(c, first + i, &c->gets[i]);
    }
    crash_count(c->state, CRASH_N_CHECKED, count);
}

static void check_keys(struct checker *c, bool shared, unsigned keys)
{
    for (unsigned first = 0; first < keys; first += BATCH)
        check_batch(c, shared, first, keys - first < BATCH ? keys - first : BATCH);
}

/* Shared keys that were being put when a client or the server was killed. */
static void gather_doubts(struct checker *c)
{
    c->shared_doubts = atomic_exchange(&c->state->ns[c->ns].shared_doubts, 0);
    for (unsigned i = 0; i < CRASH_CLIENTS; i++)
        c->shared_doubts |= atomic_exchange(&c->state->client[i].shared[c->ns], 0);
}

/* How far the durable history of the store reaches back. */
static bool check_history(struct checker *c)
{
    static char text[64 * 1024];
    static const char name[] = "\"history_since_ms\":";
    if (fb_status(c->client, text, sizeof(text), NULL, CRASH_CALL_MS) != FB_OK)
        return false;
    const char *at = strstr(text, name);
    if (at == NULL)
        return false;
    c->history_ms = strtoull(at + strlen(name), NULL, 10);
    return true;
}

/* The epoch that the store is at: never below the newest acknowledged one. */
static bool check_epoch(struct checker *c)
{
    _Atomic uint64_t *acknowledged = &c->state->ns[c->ns].epoch;
    if (fb_epoch_refresh(c->client, &c->epoch, CRASH_CALL_MS) != FB_OK)
        return false;
    if (c->epoch < atomic_load(acknowledged) && !atomic_load(&c->state->tainted))
        crash_fail(c->state, CRASH_FAIL_OLDER,
                   "after restart: namespace %u is at epoch %" PRIu64 ", acknowledged %" PRIu64,
                   c->ns, c->epoch, atomic_load(acknowledged));
    atomic_store(acknowledged, c->epoch);
    return true;
}

static bool check_namespace(struct checker *c, const char *address, bool stream)
{
    char why[FB_WHY_BYTES];
    bool good = crash_open(address, c->ns, stream, 0, &c->client, why, sizeof(why)) == 0;
    if (!good && !atomic_load(&c->state->tainted))
        crash_fail(c->state, CRASH_FAIL_OTHER, "after restart: namespace %u cannot be opened: %s",
                   c->ns, why);
    if (good && check_epoch(c) && check_history(c)) {
        gather_doubts(c);
        check_keys(c, false, CRASH_OWN_KEYS);
        check_keys(c, true, CRASH_SHARED_KEYS);
    } else if (good) {
        crash_fail(c->state, CRASH_FAIL_OTHER, "after restart: no epoch or no status");
    }
    fb_client_close(c->client);
    c->client = NULL;
    return good;
}

bool crash_check(struct crash_state *state, const char *address, uint64_t seed)
{
    static struct checker checker;
    struct checker *c = &checker;
    if (c->memory == NULL)
        c->memory = malloc((size_t)BATCH * CRASH_VALUE_BYTES);
    FB_ASSERT(c->memory != NULL);
    c->state = state;
    bool good = true;
    for (c->ns = 0; c->ns < CRASH_NAMESPACES; c->ns++)
        good = check_namespace(c, address, fb_mix64(seed + c->ns) % 3 == 0) && good;
    return good;
}
