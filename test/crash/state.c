/* The state outside of the store. See state.h. */
#include "test/crash/state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/prng.h"
#include "test/lib/value.h"

#define CONTENT_MASK   0xffffffu
#define SHORT_KEYS     4 /* keys of one byte */
#define LONG_KEY_EVERY 8 /* of so many keys one is of the longest kind */
#define LONG_KEY_PLACE 5
#define LENGTH_CLASSES 100

struct crash_state *crash_state_map(const char *path, uint64_t seed)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return NULL;
    struct crash_state *state = MAP_FAILED;
    if (ftruncate(fd, sizeof(*state)) == 0)
        state = mmap(NULL, sizeof(*state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    int error = errno;
    close(fd);
    errno = error;
    if (state == MAP_FAILED)
        return NULL;
    state->seed = seed;
    return state;
}

void crash_state_unmap(struct crash_state *state)
{
    munmap(state, sizeof(*state));
}

void crash_generation(_Atomic uint64_t *newest, uint64_t generation)
{
    uint64_t now = atomic_load(newest);
    while (now < generation && !atomic_compare_exchange_weak(newest, &now, generation))
        continue;
}

void crash_count(struct crash_state *state, enum crash_counter which, uint64_t n)
{
    atomic_fetch_add(&state->count[which], n);
}

/* Counts a violation. True for the first one, whose text is to be kept. */
static bool fail_first(struct crash_state *state, enum crash_failure kind)
{
    atomic_fetch_add(&state->failures[kind], 1);
    return !atomic_exchange(&state->has_text, true);
}

void crash_fail(struct crash_state *state, enum crash_failure kind, const char *format, ...)
{
    if (!fail_first(state, kind))
        return;
    va_list list;
    va_start(list, format);
    vsnprintf(state->text, sizeof(state->text), format, list);
    va_end(list);
}

void crash_fail_key(struct crash_state *state, enum crash_failure kind,
                    const struct crash_journal *journal, const char *format, ...)
{
    if (!fail_first(state, kind))
        return;
    state->journal = *journal;
    va_list list;
    va_start(list, format);
    vsnprintf(state->text, sizeof(state->text), format, list);
    va_end(list);
}

void crash_note(const struct crash_state *state, struct crash_journal *journal,
                struct crash_event event)
{
    uint32_t at = atomic_fetch_add(&journal->next, 1) % CRASH_EVENTS;
    event.ms = crash_wall_ms();
    event.cycle = atomic_load(&state->cycle);
    journal->events[at] = event;
}

bool crash_failed(const struct crash_state *state)
{
    for (int i = 0; i < CRASH_FAIL_KINDS; i++)
        if (atomic_load(&state->failures[i]) != 0)
            return true;
    return false;
}

uint64_t crash_wall_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* ---- keys and values ---- */

size_t crash_key_name(bool shared, unsigned index, unsigned char key[CRASH_KEY_BYTES])
{
    if (!shared && index < SHORT_KEYS) {
        key[0] = (unsigned char)(index * 85); /* 0 and 255 among them: keys are bytes, not text */
        return 1;
    }
    int n = snprintf((char *)key, CRASH_KEY_BYTES, "%s/%05u", shared ? "shared" : "own", index);
    FB_ASSERT(n > 0 && n < CRASH_KEY_BYTES);
    if (index % LONG_KEY_EVERY != LONG_KEY_PLACE)
        return (size_t)n;
    memset(key + n, 0, CRASH_KEY_BYTES - (size_t)n);
    return CRASH_KEY_BYTES;
}

static uint64_t name_number(unsigned ns, bool shared, unsigned index)
{
    return ((uint64_t)ns << 40) | ((uint64_t)shared << 32) | index;
}

uint32_t crash_value_bytes(const struct crash_state *state, unsigned ns, bool shared,
                           unsigned index, uint32_t content)
{
    struct fb_prng prng;
    fb_prng_seed(&prng, state->seed ^ fb_mix64(name_number(ns, shared, index) * 31 + content));
    uint64_t class = fb_prng_below(&prng, LENGTH_CLASSES);
    if (class < 10)
        return (uint32_t)fb_prng_between(&prng, 1, 15);
    if (class < 35)
        return (uint32_t)fb_prng_between(&prng, 16, 5000);
    if (class < 75)
        return (uint32_t)fb_prng_between(&prng, 4096, 65536);
    if (class < 96)
        return (uint32_t)fb_prng_between(&prng, 65536, 524288);
    return (uint32_t)fb_prng_between(&prng, 1u << 20, CRASH_VALUE_BYTES);
}

static struct test_value stream(const struct crash_state *state, unsigned ns, bool shared,
                                unsigned index, uint32_t content)
{
    uint64_t number = name_number(ns, shared, index);
    return test_value_of(state->seed, &number, sizeof(number), content);
}

void crash_value_fill(const struct crash_state *state, unsigned ns, bool shared, unsigned index,
                      uint32_t content, unsigned char *out, uint32_t bytes)
{
    test_value_fill(stream(state, ns, shared, index, content), 0, out, bytes);
}

bool crash_value_check(const struct crash_state *state, unsigned ns, bool shared, unsigned index,
                       uint32_t content, uint64_t offset, const unsigned char *data, uint64_t bytes)
{
    return test_value_check(stream(state, ns, shared, index, content), offset, data, bytes);
}

/* ---- words ---- */

uint64_t crash_pack(struct crash_word word)
{
    FB_ASSERT(word.content <= CONTENT_MASK);
    return word.content | (uint64_t)word.epoch << 24 | (uint64_t)word.flags << 40;
}

struct crash_word crash_unpack(uint64_t packed)
{
    return (struct crash_word){.content = (uint32_t)packed & CONTENT_MASK,
                               .epoch = (uint16_t)(packed >> 24),
                               .flags = (uint8_t)(packed >> 40)};
}

/*
 * A writer stores its doubt, then the number of contents, and later the acknowledgement, then takes
 * the doubt away. Read in the order numbers, doubts, acknowledgement, no content can be missed: one
 * that is counted was seen in doubt, or is acknowledged by then.
 */
void crash_look(const struct crash_key *key, struct crash_view *view)
{
    view->next = atomic_load(&key->next);
    for (int i = 0; i < CRASH_DOUBTS; i++)
        view->doubts[i] = atomic_load(&key->doubts[i]);
    view->acked = crash_unpack(atomic_load(&key->acked));
}

bool crash_view_in_doubt(const struct crash_view *view)
{
    for (int i = 0; i < CRASH_DOUBTS; i++)
        if (view->doubts[i] != 0)
            return true;
    return false;
}

/* ---- judgement ---- */

/* True if a reader that began at `view` and read under `epoch` may see this content. */
static bool allowed(const struct crash_view *view, uint16_t epoch, uint32_t content)
{
    const struct crash_word *acked = &view->acked;
    if (content > view->next)
        return true; /* begun after the read had begun */
    if (content == acked->content && !(acked->flags & CRASH_GONE) && acked->epoch == epoch)
        return true;
    for (int i = 0; i < CRASH_DOUBTS; i++) {
        struct crash_word doubt = crash_unpack(view->doubts[i]);
        if ((doubt.flags & CRASH_DOUBT_PUT) && doubt.content == content && doubt.epoch == epoch)
            return true;
    }
    return false;
}

enum crash_verdict crash_judge(const struct crash_state *state, const struct crash_view *before,
                               const struct crash_found *found, uint32_t *content)
{
    const struct crash_key *key = &state->ns[found->ns].own[found->index];
    *content = 0;
    for (uint32_t c = atomic_load(&key->next); c > 0; c--) {
        if (crash_value_bytes(state, found->ns, false, found->index, c) != found->value_bytes ||
            !crash_value_check(state, found->ns, false, found->index, c, found->offset, found->data,
                               found->bytes))
            continue;
        if (*content == 0)
            *content = c;
        if (allowed(before, found->epoch, c)) {
            *content = c;
            return CRASH_RIGHT;
        }
    }
    if (*content == 0)
        return CRASH_WRONG_BYTES;
    return before->acked.flags & CRASH_GONE ? CRASH_REMOVED_BACK : CRASH_OLDER;
}

uint32_t crash_judge_hit(struct crash_state *state, const struct crash_view *before,
                         const struct crash_found *found, const char *where)
{
    static const enum crash_failure kinds[] = {[CRASH_WRONG_BYTES] = CRASH_FAIL_WRONG,
                                               [CRASH_REMOVED_BACK] = CRASH_FAIL_REMOVED,
                                               [CRASH_OLDER] = CRASH_FAIL_OLDER};
    static const char *const names[] = {[CRASH_WRONG_BYTES] = "wrong bytes",
                                        [CRASH_REMOVED_BACK] = "a removed content",
                                        [CRASH_OLDER] = "an older content"};
    uint32_t content;
    enum crash_verdict verdict = crash_judge(state, before, found, &content);
    if (verdict == CRASH_RIGHT)
        return content;
    if (atomic_load(&state->tainted) && verdict != CRASH_WRONG_BYTES) {
        crash_count(state, CRASH_N_DAMAGE_OLDER, 1);
        return content;
    }
    crash_fail_key(
        state, kinds[verdict], &state->ns[found->ns].own[found->index].journal,
        "%s: %s: namespace %u key %u epoch %u: content %u of %u, %llu bytes; acknowledged "
        "%u epoch %u flags %u",
        where, names[verdict], found->ns, found->index, found->epoch, content, before->next,
        (unsigned long long)found->value_bytes, before->acked.content, before->acked.epoch,
        before->acked.flags);
    return 0;
}

bool crash_judge_shared(struct crash_state *state, const struct crash_found *found,
                        const char *where)
{
    const struct crash_shared_key *key = &state->ns[found->ns].shared[found->index];
    if (found->value_bytes != crash_value_bytes(state, found->ns, true, found->index, 1) ||
        !crash_value_check(state, found->ns, true, found->index, 1, found->offset, found->data,
                           found->bytes)) {
        crash_fail(state, CRASH_FAIL_WRONG, "%s: wrong bytes: namespace %u shared key %u epoch %u",
                   where, found->ns, found->index, found->epoch);
        return false;
    }
    if (atomic_load(&key->begun) >= found->epoch + 1u || atomic_load(&state->tainted))
        return true;
    crash_fail(state, CRASH_FAIL_OLDER,
               "%s: of an earlier epoch: namespace %u shared key %u epoch %u", where, found->ns,
               found->index, found->epoch);
    return false;
}

/* ---- writers ---- */

bool crash_own(struct crash_key *key, unsigned client)
{
    uint32_t nobody = 0;
    return atomic_compare_exchange_strong(&key->owner, &nobody, client + 1);
}

void crash_disown(struct crash_key *key)
{
    atomic_store(&key->owner, 0);
}

int crash_doubt(struct crash_key *key, struct crash_word what)
{
    for (int i = 0; i < CRASH_DOUBTS; i++) {
        if (atomic_load(&key->doubts[i]) != 0)
            continue;
        atomic_store(&key->doubts[i], crash_pack(what));
        if (what.content > atomic_load(&key->next))
            atomic_store(&key->next, what.content);
        return i;
    }
    return -1;
}

void crash_undoubt(struct crash_key *key, int slot)
{
    FB_ASSERT(slot >= 0 && slot < CRASH_DOUBTS);
    atomic_store(&key->doubts[slot], 0);
}

void crash_acknowledge(struct crash_key *key, int slot, struct crash_word word)
{
    atomic_store(&key->acked, crash_pack(word));
    crash_undoubt(key, slot);
}
