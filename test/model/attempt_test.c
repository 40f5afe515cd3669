/*
 * attempt_test.c - the table of attempts on one key (engine/attempt.h), searched exhaustively.
 *
 * Method: breadth-first over all orders of events of three clients, the device, timers, removes and
 * an epoch bump, to a fixed depth, from an empty key. The code under test is the engine's own. What
 * is modelled around it is small: three extents of memory with an owner and a content each, one
 * committed value, and what a device may hold after a crash. A value takes one extent. Clients stop
 * by not being chosen; they write into memory that they were granted for as long as they may, and
 * may be late with everything. Each visited state is checked, and from each one four futures are
 * played to their end: everybody acts, the clients that hold memory stop, deadlines pass, shutdown.
 *
 * Then every rule is switched off in turn, those of the table and those that the table leaves to
 * its caller, and the search must find a violation each time.
 *
 * Not covered: values of several extents, space shared by several keys, messages that break the
 * protocol (the structure test has them), more than OPS_MAX puts, more than one epoch bump.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/assert.h"
#include "base/bug.h"
#include "base/prng.h"
#include "engine/attempt.h"
#include "test/lib/attempt_world.h"
#include "test/lib/cm.h"

#define DEPTH             10
#define DEPTH_OF_SWITCHES 9

/* ---- the search ---------------------------------------------------------------------------- */

struct visited {
    struct world world;
    uint32_t parent;
    struct event event;
};

struct search {
    struct visited *state;
    uint64_t *table; /* hashes of visited worlds, open addressing; 0 is free */
    size_t count, room, slots;
    unsigned depth; /* reached */
};

static uint64_t hash_world(const struct world *w)
{
    uint8_t bytes[sizeof *w + 8] = {0};
    memcpy(bytes, w, sizeof *w);
    uint64_t h = 0;
    for (size_t i = 0; i + 8 <= sizeof bytes; i += 8) {
        uint64_t x;
        memcpy(&x, bytes + i, 8);
        h = fb_mix64(h ^ x) + UINT64_C(0x9e3779b97f4a7c15);
    }
    return h == 0 ? 1 : h;
}

static void grow_table(struct search *s)
{
    uint64_t *old = s->table;
    size_t old_slots = s->slots;
    s->slots *= 2;
    s->table = calloc(s->slots, sizeof *s->table);
    FB_ASSERT(s->table != NULL);
    for (size_t i = 0; i < old_slots; i++) {
        if (old[i] == 0)
            continue;
        size_t j = old[i] & (s->slots - 1);
        while (s->table[j] != 0)
            j = (j + 1) & (s->slots - 1);
        s->table[j] = old[i];
    }
    free(old);
}

/* Adds a world if it is new. */
static bool visit(struct search *s, const struct world *w, uint32_t parent, struct event event)
{
    uint64_t h = hash_world(w);
    size_t j = h & (s->slots - 1);
    while (s->table[j] != 0) {
        if (s->table[j] == h)
            return false;
        j = (j + 1) & (s->slots - 1);
    }
    s->table[j] = h;
    if (s->count == s->room) {
        s->room *= 2;
        s->state = realloc(s->state, s->room * sizeof *s->state);
        FB_ASSERT(s->state != NULL);
    }
    s->state[s->count++] = (struct visited){*w, parent, event};
    if (s->count * 2 > s->slots)
        grow_table(s);
    return true;
}

/* Prints the events that led to the violation. */
static void print_trace(const struct search *s, uint32_t at, const struct event *last)
{
    uint32_t path[DEPTH + 1];
    unsigned n = 0;
    for (uint32_t i = at; i != 0; i = s->state[i].parent)
        path[n++] = i;
    struct world w = world_empty();
    while (n-- > 0) {
        world_play(&w, &s->state[path[n]].event);
        world_print(&w, &s->state[path[n]].event);
        world_rename(&w);
    }
    if (last != NULL) {
        world_play(&w, last);
        world_print(&w, last);
    }
}

/* Expands one state; returns false on a violation, which is then printed if asked. */
static bool expand(struct search *s, uint32_t at, bool loud)
{
    struct events events;
    world_events(&events, &s->state[at].world);
    for (unsigned n = 0; n < events.count; n++) {
        struct world w = s->state[at].world;
        world_play(&w, &events.event[n]);
        world_check(&w);
        world_rename(&w);
        if (world_violation == NULL && visit(s, &w, at, events.event[n]))
            world_check_futures(&w);
        if (world_violation != NULL) {
            const char *found = world_violation;
            if (loud)
                print_trace(s, at, &events.event[n]);
            world_violation = found;
            return false;
        }
    }
    return true;
}

/* Searches to a depth. Returns the violation, or NULL. */
static const char *search(struct search *s, unsigned depth, bool loud)
{
    *s = (struct search){.room = 1 << 10, .slots = 1 << 12};
    s->state = malloc(s->room * sizeof *s->state);
    s->table = calloc(s->slots, sizeof *s->table);
    FB_ASSERT(s->state != NULL && s->table != NULL);
    world_violation = NULL;
    struct world start = world_empty();
    visit(s, &start, 0, (struct event){0, 0, 0});
    size_t from = 0;
    bool good = true;
    while (good && s->depth < depth) {
        size_t to = s->count;
        s->depth++;
        for (size_t i = from; good && i < to; i++)
            good = expand(s, (uint32_t)i, loud);
        from = to;
    }
    free(s->state);
    free(s->table);
    return world_violation;
}

/* ---- the structure of the table ------------------------------------------------------------ */

struct call {
    struct fb_attempt_slot slot;
    struct fb_attempt attempt;
};

static bool holds_memory(unsigned state)
{
    return state >= FB_ATTEMPT_WRITING && state <= FB_ATTEMPT_DRAINING;
}

static bool is_answered(unsigned state)
{
    return state >= FB_ATTEMPT_ORPHAN;
}

static bool is_writer(unsigned state)
{
    return state >= FB_ATTEMPT_QUEUED && state <= FB_ATTEMPT_ORPHAN;
}

/* A key with others in line, in which an attempt in this state can meet this event. */
static struct call call_make(unsigned state, unsigned event, unsigned kind)
{
    struct call call = {.attempt = {holds_memory(state) ? 7 : 0, (uint8_t)state, (uint8_t)kind, 0}};
    call.attempt.result = is_answered(state) ? FB_REMOVED : 0;
    call.slot.waiting = 1u + (state == FB_ATTEMPT_WAITING);
    call.slot.flush_wait = state == FB_ATTEMPT_FLUSH_WAIT;
    call.slot.writers = is_writer(state) || event == FB_ATTEMPT_ON_SEE_WRITER;
    call.slot.old_on_disk = event == FB_ATTEMPT_ON_COMMIT_DURABLE;
    if (event == FB_ATTEMPT_ON_SEE_VALUE)
        call.slot.value = FB_ATTEMPT_VALUE_CLEAN;
    if (event == FB_ATTEMPT_ON_SEE_DIRTY)
        call.slot.value = FB_ATTEMPT_VALUE_DIRTY;
    if (event == FB_ATTEMPT_ON_SEE_TURN && state == FB_ATTEMPT_NEW)
        call.slot.waiting = 0;
    return call;
}

static struct fb_attempt_todo call_event(struct call *call, enum fb_attempt_event event)
{
    switch (event) {
    case FB_ATTEMPT_ON_SEE_VALUE:
    case FB_ATTEMPT_ON_SEE_DIRTY:
    case FB_ATTEMPT_ON_SEE_WRITER:
    case FB_ATTEMPT_ON_SEE_TURN:
        return fb_attempt_see(&call->slot, &call->attempt);
    case FB_ATTEMPT_ON_SPACE:
        return fb_attempt_grant(&call->slot, &call->attempt, 7);
    case FB_ATTEMPT_ON_COMMIT_DURABLE:
        event = FB_ATTEMPT_ON_COMMIT;
        /* fall through */
    case FB_ATTEMPT_ON_COMMIT:
    case FB_ATTEMPT_ON_PROGRESS:
    case FB_ATTEMPT_ON_RELEASE:
        return fb_attempt_message(&call->slot, &call->attempt, event, call->attempt.grant);
    case FB_ATTEMPT_ON_DURABLE_FAILED:
    case FB_ATTEMPT_ON_REFUSED:
        return fb_attempt_fail(&call->slot, &call->attempt, event, FB_TOO_BIG);
    default:
        return fb_attempt_step(&call->slot, &call->attempt, event);
    }
}

static void check_pair(unsigned state, unsigned event, unsigned kind)
{
    struct call call = call_make(state, event, kind);
    struct fb_attempt_todo todo = call_event(&call, event);
    unsigned next = call.attempt.state;
    bool freed = (todo.actions & FB_ATTEMPT_DO_FREE) != 0;
    bool installed = (todo.actions & FB_ATTEMPT_DO_INSTALL) != 0;
    bool answered = (todo.actions & FB_ATTEMPT_DO_ANSWER) != 0;
    bool rechecks = (todo.actions & FB_ATTEMPT_DO_RECHECK) != 0;
    bool told_all = event == FB_ATTEMPT_ON_EPOCH || event == FB_ATTEMPT_ON_SHUTDOWN;

    assert_int_equal(answered, !is_answered(state) && is_answered(next));
    if (answered)
        assert_int_equal(call.attempt.result, todo.result);
    assert_int_equal(answered && todo.result == FB_OK, answered && installed);
    assert_false(freed && installed);
    assert_int_equal(freed || installed, holds_memory(state) && !holds_memory(next));
    if (installed)
        assert_true(is_writer(state));
    assert_int_equal((todo.actions & FB_ATTEMPT_DO_GRANT) != 0,
                     !holds_memory(state) && holds_memory(next));
    assert_int_equal((todo.actions & FB_ATTEMPT_DO_QUARANTINE) != 0,
                     state != FB_ATTEMPT_QUARANTINE && next == FB_ATTEMPT_QUARANTINE);
    assert_int_equal((todo.actions & FB_ATTEMPT_DO_MAKE_DURABLE) != 0,
                     state != FB_ATTEMPT_COMMITTING && next == FB_ATTEMPT_COMMITTING);
    assert_int_equal((todo.actions & FB_ATTEMPT_DO_ASK_SPACE) != 0,
                     state != FB_ATTEMPT_QUEUED && next == FB_ATTEMPT_QUEUED);
    assert_int_equal((todo.actions & FB_ATTEMPT_DO_CANCEL_SPACE) != 0,
                     state == FB_ATTEMPT_QUEUED && next == FB_ATTEMPT_ENDED);
    assert_int_equal(rechecks, is_writer(state) && !is_writer(next) && !told_all);
    assert_int_equal(call.slot.writers, is_writer(next) || event == FB_ATTEMPT_ON_SEE_WRITER);
    assert_int_equal(call.slot.flush_wait, next == FB_ATTEMPT_FLUSH_WAIT);
    if ((todo.actions & FB_ATTEMPT_DO_LATE) != 0)
        assert_int_equal(todo.result, FB_REMOVED);
    if (is_answered(state))
        assert_int_equal(call.attempt.result, FB_REMOVED);
}

static void every_cell_keeps_the_structure(void **state)
{
    (void)state;
    for (unsigned s = 0; s < FB_ATTEMPT_STATES; s++)
        for (unsigned e = 0; e < FB_ATTEMPT_EVENTS; e++)
            for (unsigned kind = 0; kind < KINDS; kind++) {
                bool upsert = (kind & FB_ATTEMPT_UPSERT) != 0;
                bool through = (kind & FB_ATTEMPT_THROUGH) != 0;
                bool cannot_be = (e == FB_ATTEMPT_ON_SEE_VALUE && upsert) ||
                                 (e == FB_ATTEMPT_ON_SEE_DIRTY && (upsert || !through)) ||
                                 (e == FB_ATTEMPT_ON_COMMIT && through);
                if (fb_attempt_is_possible(s, e) && !cannot_be)
                    check_pair(s, e, kind);
            }
}

/* Whatever the state, a message that names another grant changes nothing. */
static void a_message_for_another_grant_is_late(void **state)
{
    (void)state;
    const enum fb_attempt_event messages[] = {FB_ATTEMPT_ON_PROGRESS, FB_ATTEMPT_ON_COMMIT,
                                              FB_ATTEMPT_ON_RELEASE};
    for (unsigned s = 0; s < FB_ATTEMPT_STATES; s++)
        for (unsigned m = 0; m < 3; m++) {
            struct call call = call_make(s, messages[m], FB_ATTEMPT_PLAIN);
            struct call before = call;
            struct fb_attempt_todo todo =
                fb_attempt_message(&call.slot, &call.attempt, messages[m], 8);
            assert_int_equal(todo.actions, FB_ATTEMPT_DO_LATE);
            assert_int_equal(todo.result, FB_GRANT_EXPIRED);
            assert_memory_equal(&call, &before, sizeof call);
        }
}

/* An attempt that has been answered and writes no more needs no slot: its key may be gone. */
static void an_answered_attempt_needs_no_slot(void **state)
{
    (void)state;
    struct call call = call_make(FB_ATTEMPT_QUARANTINE, FB_ATTEMPT_ON_COMMIT, FB_ATTEMPT_PLAIN);
    struct fb_attempt_todo todo =
        fb_attempt_message(NULL, &call.attempt, FB_ATTEMPT_ON_COMMIT, call.attempt.grant);
    assert_int_equal(todo.actions, FB_ATTEMPT_DO_FREE | FB_ATTEMPT_DO_LATE);
    assert_int_equal(call.attempt.state, FB_ATTEMPT_ENDED);
    call = call_make(FB_ATTEMPT_DRAINING, FB_ATTEMPT_ON_DURABLE, FB_ATTEMPT_PLAIN);
    todo = fb_attempt_step(NULL, &call.attempt, FB_ATTEMPT_ON_DURABLE);
    assert_int_equal(todo.actions, FB_ATTEMPT_DO_FREE);
}

static void names_and_times(void **state)
{
    (void)state;
    assert_string_equal(fb_attempt_state_name(FB_ATTEMPT_QUARANTINE), "QUARANTINE");
    assert_string_equal(fb_attempt_event_name(FB_ATTEMPT_ON_REFUSED), "REFUSED");
    assert_string_equal(fb_attempt_state_name(FB_ATTEMPT_STATES), "?");
    assert_string_equal(fb_attempt_event_name(FB_ATTEMPT_EVENTS), "?");
    assert_true(fb_attempt_expiry_ns(0) == 5 * FB_SEC_NS);
    assert_true(fb_attempt_expiry_ns(50000000) == 6 * FB_SEC_NS);
    assert_true(fb_attempt_expiry_ns(FB_VALUE_BYTES_MAX) < FB_PUT_DEADLINE_NS);
}

/* ---- tests --------------------------------------------------------------------------------- */

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void all_orders_of_events_keep_the_rules(void **state)
{
    (void)state;
    struct search s;
    double start = seconds();
    const char *found = search(&s, DEPTH, true);
    printf("attempts: depth %u, %zu states, %.1f s: %s\n", s.depth, s.count, seconds() - start,
           found == NULL ? "no violation" : found);
    assert_null(found);
}

/*
 * Pairs that the search need not meet, since its clients keep to the protocol and its timers are
 * never late. The structure test meets them all.
 */
static bool is_beyond_search(unsigned state, unsigned event)
{
    bool granted = state == FB_ATTEMPT_WRITING || state == FB_ATTEMPT_QUARANTINE;
    bool answered = state > FB_ATTEMPT_COMMITTING;
    switch (event) {
    case FB_ATTEMPT_ON_PROGRESS:
    case FB_ATTEMPT_ON_REFUSED:
        return true;
    case FB_ATTEMPT_ON_COMMIT:
        return !granted;
    case FB_ATTEMPT_ON_COMMIT_DURABLE:
    case FB_ATTEMPT_ON_EXPIRED:
        return state != FB_ATTEMPT_WRITING;
    case FB_ATTEMPT_ON_DEADLINE:
        return answered;
    case FB_ATTEMPT_ON_RELEASE:
        return answered && !granted;
    case FB_ATTEMPT_ON_REMOVE:
        return state == FB_ATTEMPT_FLUSH_WAIT || state == FB_ATTEMPT_ENDED;
    case FB_ATTEMPT_ON_EPOCH:
    case FB_ATTEMPT_ON_SHUTDOWN:
        return state == FB_ATTEMPT_NEW || state == FB_ATTEMPT_ENDED;
    default:
        return state == FB_ATTEMPT_ENDED;
    }
}

static void the_search_meets_the_whole_table(void **state)
{
    (void)state;
    unsigned unmet = 0;
    for (unsigned s = 0; s < FB_ATTEMPT_STATES; s++)
        for (unsigned e = 0; e < FB_ATTEMPT_EVENTS; e++) {
            if (!fb_attempt_is_possible(s, e) || world_met[s][e] != 0 || is_beyond_search(s, e))
                continue;
            printf("attempts: never met %s in %s\n", fb_attempt_event_name(e),
                   fb_attempt_state_name(s));
            unmet++;
        }
    assert_int_equal(unmet, 0);
}

#ifdef FB_TEST_HOOKS
#define NAME(symbol, text) {#symbol, text},
static const struct {
    const char *name, *text;
} rules[] = {FB_ATTEMPT_RULE_LIST(NAME) DUTY_LIST(NAME)};
#undef NAME

/* Searches until the first violation and says what it was; returns false if there was none. */
static bool is_found(const char *what, const char *name)
{
    struct search s;
    double start = seconds();
    const char *found = search(&s, DEPTH_OF_SWITCHES, false);
    printf("attempts: %s %-23s depth %u, %6zu states, %.1f s: %s\n", what, name, s.depth, s.count,
           seconds() - start, found == NULL ? "NOT FOUND" : found);
    return found != NULL;
}

static void every_rule_is_needed(void **state)
{
    (void)state;
    unsigned not_found = 0;
    for (unsigned i = 0; i < FB_ATTEMPT_RULES; i++) {
        fb_attempt_rules_off = UINT64_C(1) << i;
        not_found += !is_found("without", rules[i].name);
    }
    fb_attempt_rules_off = 0;
    for (unsigned i = 0; i < DUTIES; i++) {
        world_duties_off = 1u << i;
        not_found += !is_found("without", rules[FB_ATTEMPT_RULES + i].name);
    }
    world_duties_off = 0;
    assert_int_equal(not_found, 0);
}

static void planted_bugs_are_found(void **state)
{
    (void)state;
    const enum fb_bug bugs[] = {FB_BUG_WAITER_NOT_FREED, FB_BUG_STALE_ATTEMPT_ACCEPTED};
    for (unsigned i = 0; i < 2; i++) {
        fb_bug_mask = UINT64_C(1) << bugs[i];
        bool found = is_found("with", fb_bug_name(bugs[i]));
        fb_bug_mask = 0;
        assert_true(found);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cell_keeps_the_structure),
        cmocka_unit_test(a_message_for_another_grant_is_late),
        cmocka_unit_test(an_answered_attempt_needs_no_slot),
        cmocka_unit_test(names_and_times),
        cmocka_unit_test(all_orders_of_events_keep_the_rules),
        cmocka_unit_test(the_search_meets_the_whole_table),
#ifdef FB_TEST_HOOKS
        cmocka_unit_test(every_rule_is_needed),
        cmocka_unit_test(planted_bugs_are_found),
#endif
    };
    return cmocka_run_group_tests_name("attempt", tests, NULL, NULL);
}
