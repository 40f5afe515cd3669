/*
 * attempt.c - the table of attempts. Every pair of state and event is either in the table or
 * impossible; attempt.h says why each rule is there.
 */
#include "engine/attempt.h"

#include <stddef.h>

#include "base/assert.h"
#include "base/bug.h"

/* A result that the caller of fb_attempt_fail() gives. Not a code of the closed list. */
#define GIVEN INT16_MAX

struct cell {
    uint8_t next;
    uint8_t possible;
    uint16_t actions;
    int16_t result;
};

#define DO_(verb) FB_ATTEMPT_DO_##verb
#define ON(event) [FB_ATTEMPT_ON_##event]
#define IN(state) [FB_ATTEMPT_##state]
#define GO(state, what, code)                 \
    {                                         \
        FB_ATTEMPT_##state, 1, (what), (code) \
    }
#define STAY(state)         GO(state, 0, 0)
#define END(what, code)     GO(ENDED, (what), (code))
#define ANSWER              DO_(ANSWER)
#define ANSWER_WAKE         (DO_(ANSWER) | DO_(RECHECK))
#define LEAVE_QUEUE         (DO_(CANCEL_SPACE) | DO_(ANSWER))
#define LEAVE_QUEUE_WAKE    (DO_(CANCEL_SPACE) | DO_(ANSWER) | DO_(RECHECK))
#define REVOKE              (DO_(QUARANTINE) | DO_(ANSWER))
#define REVOKE_WAKE         (DO_(QUARANTINE) | DO_(ANSWER) | DO_(RECHECK))
#define FREE_WAKE           (DO_(FREE) | DO_(RECHECK))
#define FREE_ANSWER_WAKE    (DO_(FREE) | DO_(ANSWER) | DO_(RECHECK))
#define INSTALL_WAKE        (DO_(INSTALL) | DO_(RECHECK))
#define INSTALL_ANSWER_WAKE (DO_(INSTALL) | DO_(ANSWER) | DO_(RECHECK))

/* Both kinds of waiters look at the key again and again; they differ in what they wait for. */
#define IN_LINE(state)                                                                     \
    ON(SEE_VALUE) = END(ANSWER, FB_EXISTS), ON(SEE_DIRTY) = GO(FLUSH_WAIT, 0, 0),          \
    ON(SEE_WRITER) = GO(WAITING, 0, 0), ON(SEE_TURN) = GO(QUEUED, DO_(ASK_SPACE), 0),      \
    ON(PROGRESS) = GO(state, DO_(BAD), FB_PROTOCOL),                                       \
    ON(COMMIT) = GO(state, DO_(BAD), FB_PROTOCOL),                                         \
    ON(COMMIT_DURABLE) = GO(state, DO_(BAD), FB_PROTOCOL), ON(EXPIRED) = STAY(state),      \
    ON(RELEASE) = END(ANSWER, FB_DEADLINE), ON(CLIENT_LOST) = END(ANSWER, FB_CONNECTION),  \
    ON(CLIENT_DEAD) = END(ANSWER, FB_CONNECTION), ON(DEADLINE) = END(ANSWER, FB_DEADLINE), \
    ON(REMOVE) = STAY(state), ON(EPOCH) = END(ANSWER, FB_STALE_EPOCH),                     \
    ON(SHUTDOWN) = END(ANSWER, FB_SHUTTING_DOWN), ON(REFUSED) = END(ANSWER, GIVEN)

/* Timers and losses that find nothing left to do; with DEAF_TO_KILLS, kills as well. */
#define DEAF(state)                                                                       \
    ON(EXPIRED) = STAY(state), ON(CLIENT_LOST) = STAY(state), ON(DEADLINE) = STAY(state), \
    ON(SHUTDOWN) = STAY(state), ON(PROGRESS) = STAY(state)
#define DEAF_TO_KILLS(state) DEAF(state), ON(REMOVE) = STAY(state), ON(EPOCH) = STAY(state)

static const struct cell table[FB_ATTEMPT_STATES][FB_ATTEMPT_EVENTS] =
    {
        IN(NEW) =
            {
                ON(SEE_VALUE) = END(ANSWER, FB_EXISTS),
                ON(SEE_DIRTY) = GO(FLUSH_WAIT, 0, 0),
                ON(SEE_WRITER) = GO(WAITING, 0, 0),
                ON(SEE_TURN) = GO(QUEUED, DO_(ASK_SPACE), 0),
                ON(EPOCH) = END(ANSWER, FB_STALE_EPOCH),
                ON(SHUTDOWN) = END(ANSWER, FB_SHUTTING_DOWN),
                ON(REFUSED) = END(ANSWER, GIVEN),
            },
        IN(WAITING) = {IN_LINE(WAITING)},
        IN(FLUSH_WAIT) = {IN_LINE(FLUSH_WAIT), ON(DURABLE_FAILED) = END(ANSWER, GIVEN)},
        IN(QUEUED) =
            {
                ON(SPACE) = GO(WRITING, DO_(GRANT), 0),
                ON(PROGRESS) = GO(QUEUED, DO_(BAD), FB_PROTOCOL),
                ON(COMMIT) = GO(QUEUED, DO_(BAD), FB_PROTOCOL),
                ON(COMMIT_DURABLE) = GO(QUEUED, DO_(BAD), FB_PROTOCOL),
                ON(EXPIRED) = STAY(QUEUED),
                ON(RELEASE) = END(LEAVE_QUEUE_WAKE, FB_DEADLINE),
                ON(CLIENT_LOST) = END(LEAVE_QUEUE_WAKE, FB_CONNECTION),
                ON(CLIENT_DEAD) = END(LEAVE_QUEUE_WAKE, FB_CONNECTION),
                ON(DEADLINE) = END(LEAVE_QUEUE_WAKE, FB_DEADLINE),
                ON(REMOVE) = STAY(QUEUED),
                ON(EPOCH) = END(LEAVE_QUEUE, FB_STALE_EPOCH),
                ON(SHUTDOWN) = END(LEAVE_QUEUE, FB_SHUTTING_DOWN),
                ON(REFUSED) = END(LEAVE_QUEUE_WAKE, GIVEN),
            },
        IN(WRITING) =
            {
                ON(PROGRESS) = GO(WRITING, DO_(TOUCH), 0),
                ON(COMMIT) = END(INSTALL_ANSWER_WAKE, FB_OK),
                ON(COMMIT_DURABLE) = GO(COMMITTING, DO_(MAKE_DURABLE), 0),
                ON(EXPIRED) = GO(QUARANTINE, REVOKE_WAKE, FB_GRANT_EXPIRED),
                ON(RELEASE) = END(FREE_ANSWER_WAKE, FB_DEADLINE),
                ON(CLIENT_LOST) = GO(QUARANTINE, REVOKE_WAKE, FB_CONNECTION),
                ON(CLIENT_DEAD) = END(FREE_ANSWER_WAKE, FB_CONNECTION),
                ON(DEADLINE) = GO(QUARANTINE, REVOKE_WAKE, FB_DEADLINE),
                ON(REMOVE) = GO(QUARANTINE, REVOKE_WAKE, FB_REMOVED),
                ON(EPOCH) = GO(QUARANTINE, REVOKE, FB_STALE_EPOCH),
                ON(SHUTDOWN) = GO(QUARANTINE, REVOKE, FB_SHUTTING_DOWN),
            },
        /* The client has let go of the memory: only the device keeps it from being free. */
        IN(COMMITTING) =
            {
                ON(PROGRESS) = STAY(COMMITTING),
                ON(COMMIT) = GO(COMMITTING, DO_(BAD), FB_PROTOCOL),
                ON(COMMIT_DURABLE) = GO(COMMITTING, DO_(BAD), FB_PROTOCOL),
                ON(DURABLE) = END(INSTALL_ANSWER_WAKE, FB_OK),
                ON(DURABLE_FAILED) = END(FREE_ANSWER_WAKE, GIVEN),
                ON(EXPIRED) = STAY(COMMITTING),
                ON(RELEASE) = GO(ORPHAN, ANSWER, FB_DEADLINE),
                ON(CLIENT_LOST) = GO(ORPHAN, ANSWER, FB_CONNECTION),
                ON(CLIENT_DEAD) = GO(ORPHAN, ANSWER, FB_CONNECTION),
                ON(DEADLINE) = GO(ORPHAN, ANSWER, FB_DEADLINE),
                ON(REMOVE) = GO(DRAINING, ANSWER_WAKE, FB_REMOVED),
                ON(EPOCH) = GO(DRAINING, ANSWER, FB_STALE_EPOCH),
                ON(SHUTDOWN) = STAY(COMMITTING),
            },
        IN(ORPHAN) =
            {
                DEAF(ORPHAN),
                ON(COMMIT) = GO(ORPHAN, DO_(LATE), 0),
                ON(COMMIT_DURABLE) = GO(ORPHAN, DO_(LATE), 0),
                ON(DURABLE) = END(INSTALL_WAKE, 0),
                ON(DURABLE_FAILED) = END(FREE_WAKE, 0),
                ON(RELEASE) = STAY(ORPHAN),
                ON(CLIENT_DEAD) = STAY(ORPHAN),
                ON(REMOVE) = GO(DRAINING, DO_(RECHECK), 0),
                ON(EPOCH) = GO(DRAINING, 0, 0),
            },
        /* A late commit says "I touch this memory no more", as a release does. */
        IN(QUARANTINE) =
            {
                DEAF_TO_KILLS(QUARANTINE),
                ON(COMMIT) = END(DO_(FREE) | DO_(LATE), 0),
                ON(COMMIT_DURABLE) = END(DO_(FREE) | DO_(LATE), 0),
                ON(RELEASE) = END(DO_(FREE), 0),
                ON(CLIENT_DEAD) = END(DO_(FREE), 0),
            },
        IN(DRAINING) =
            {
                DEAF_TO_KILLS(DRAINING),
                ON(COMMIT) = GO(DRAINING, DO_(LATE), 0),
                ON(COMMIT_DURABLE) = GO(DRAINING, DO_(LATE), 0),
                ON(DURABLE) = END(DO_(FREE), 0),
                ON(DURABLE_FAILED) = END(DO_(FREE), 0),
                ON(RELEASE) = STAY(DRAINING),
                ON(CLIENT_DEAD) = STAY(DRAINING),
            },
        IN(ENDED) =
            {
                DEAF_TO_KILLS(ENDED),
                ON(COMMIT) = END(DO_(LATE), 0),
                ON(COMMIT_DURABLE) = END(DO_(LATE), 0),
                ON(RELEASE) = STAY(ENDED),
                ON(CLIENT_DEAD) = STAY(ENDED),
            },
};

#ifdef FB_TEST_HOOKS
uint64_t fb_attempt_rules_off;

/* What the table says where a rule is switched off. */
struct patch {
    uint8_t rule, state, event;
    struct cell cell;
};

#define OFF(rule, state, event, ...)                                                   \
    {                                                                                  \
        FB_ATTEMPT_RULE_##rule, FB_ATTEMPT_##state, FB_ATTEMPT_ON_##event, __VA_ARGS__ \
    }

static const struct patch patches[] = {
    OFF(COMMIT_WAKES, WRITING, COMMIT, END(DO_(INSTALL) | ANSWER, FB_OK)),
    OFF(DURABLE_WAKES, COMMITTING, DURABLE, END(DO_(INSTALL) | ANSWER, FB_OK)),
    OFF(DURABLE_WAKES, ORPHAN, DURABLE, END(DO_(INSTALL), 0)),
    OFF(FAILURE_WAKES, COMMITTING, DURABLE_FAILED, END(DO_(FREE) | ANSWER, GIVEN)),
    OFF(FAILURE_WAKES, ORPHAN, DURABLE_FAILED, END(DO_(FREE), 0)),
    OFF(EXPIRY_WAKES, WRITING, EXPIRED, GO(QUARANTINE, REVOKE, FB_GRANT_EXPIRED)),
    OFF(DEATH_WAKES, WRITING, CLIENT_DEAD, END(DO_(FREE) | ANSWER, FB_CONNECTION)),
    OFF(DEATH_WAKES, QUEUED, CLIENT_DEAD, END(LEAVE_QUEUE, FB_CONNECTION)),
    OFF(LOSS_WAKES, WRITING, CLIENT_LOST, GO(QUARANTINE, REVOKE, FB_CONNECTION)),
    OFF(LOSS_WAKES, QUEUED, CLIENT_LOST, END(LEAVE_QUEUE, FB_CONNECTION)),
    OFF(REMOVE_WAKES, WRITING, REMOVE, GO(QUARANTINE, REVOKE, FB_REMOVED)),
    OFF(REMOVE_WAKES, COMMITTING, REMOVE, GO(DRAINING, ANSWER, FB_REMOVED)),
    OFF(REMOVE_WAKES, ORPHAN, REMOVE, GO(DRAINING, 0, 0)),
    OFF(DEADLINE_WAKES, WRITING, DEADLINE, GO(QUARANTINE, REVOKE, FB_DEADLINE)),
    OFF(DEADLINE_WAKES, QUEUED, DEADLINE, END(LEAVE_QUEUE, FB_DEADLINE)),
    OFF(RELEASE_WAKES, WRITING, RELEASE, END(DO_(FREE) | ANSWER, FB_DEADLINE)),
    OFF(RELEASE_WAKES, QUEUED, RELEASE, END(LEAVE_QUEUE, FB_DEADLINE)),
    OFF(EXPIRY_REVOKES, WRITING, EXPIRED, STAY(WRITING)),
    OFF(EXPIRY_QUARANTINES, WRITING, EXPIRED, END(FREE_ANSWER_WAKE, FB_GRANT_EXPIRED)),
    OFF(DEADLINE_QUARANTINES, WRITING, DEADLINE, END(FREE_ANSWER_WAKE, FB_DEADLINE)),
    OFF(LOSS_QUARANTINES, WRITING, CLIENT_LOST, END(FREE_ANSWER_WAKE, FB_CONNECTION)),
    OFF(LOSS_QUARANTINES, QUARANTINE, CLIENT_LOST, END(DO_(FREE), 0)),
    OFF(REMOVE_QUARANTINES, WRITING, REMOVE, END(FREE_ANSWER_WAKE, FB_REMOVED)),
    OFF(EPOCH_QUARANTINES, WRITING, EPOCH, END(DO_(FREE) | ANSWER, FB_STALE_EPOCH)),
    OFF(ACK_FREES, QUARANTINE, RELEASE, END(0, 0)),
    OFF(LATE_COMMIT_FREES, QUARANTINE, COMMIT, END(DO_(LATE), 0)),
    OFF(LATE_COMMIT_FREES, QUARANTINE, COMMIT_DURABLE, END(DO_(LATE), 0)),
    OFF(DEATH_FREES, QUARANTINE, CLIENT_DEAD, STAY(QUARANTINE)),
    OFF(DEATH_FREES_GRANT, WRITING, CLIENT_DEAD, GO(QUARANTINE, REVOKE_WAKE, FB_CONNECTION)),
    OFF(LATE_COMMIT_REFUSED, QUARANTINE, COMMIT, END(INSTALL_WAKE, 0)),
    OFF(LATE_COMMIT_REFUSED, QUARANTINE, COMMIT_DURABLE, END(INSTALL_WAKE, 0)),
    OFF(LATE_IS_NO_ANSWER, QUARANTINE, COMMIT, END(DO_(FREE) | ANSWER, FB_GRANT_EXPIRED)),
    OFF(REMOVE_KILLS, WRITING, REMOVE, STAY(WRITING)),
    OFF(REMOVE_KILLS_COMMITTING, COMMITTING, REMOVE, STAY(COMMITTING)),
    OFF(REMOVE_KILLS_COMMITTING, ORPHAN, REMOVE, STAY(ORPHAN)),
    OFF(EPOCH_KILLS_WRITER, WRITING, EPOCH, STAY(WRITING)),
    OFF(EPOCH_KILLS_WRITER, COMMITTING, EPOCH, STAY(COMMITTING)),
    OFF(EPOCH_KILLS_WRITER, ORPHAN, EPOCH, STAY(ORPHAN)),
    OFF(EPOCH_KILLS_WRITER, QUEUED, EPOCH, STAY(QUEUED)),
    OFF(EPOCH_KILLS_LINE, WAITING, EPOCH, STAY(WAITING)),
    OFF(EPOCH_KILLS_LINE, FLUSH_WAIT, EPOCH, STAY(FLUSH_WAIT)),
    OFF(FAILED_IS_FAILED, COMMITTING, DURABLE_FAILED, END(INSTALL_ANSWER_WAKE, FB_OK)),
    OFF(FAILED_IS_FAILED, ORPHAN, DURABLE_FAILED, END(INSTALL_WAKE, 0)),
    OFF(REMOVE_DRAINS, COMMITTING, REMOVE, END(FREE_ANSWER_WAKE, FB_REMOVED)),
    OFF(EPOCH_DRAINS, COMMITTING, EPOCH, END(DO_(FREE) | ANSWER, FB_STALE_EPOCH)),
    OFF(ORPHAN_GOES_ON, COMMITTING, CLIENT_DEAD, END(FREE_ANSWER_WAKE, FB_CONNECTION)),
    OFF(DEADLINE_IN_LINE, WAITING, DEADLINE, STAY(WAITING)),
    OFF(DEADLINE_IN_LINE, FLUSH_WAIT, DEADLINE, STAY(FLUSH_WAIT)),
    OFF(DEADLINE_IN_QUEUE, QUEUED, DEADLINE, STAY(QUEUED)),
    OFF(DEADLINE_COMMITTING, COMMITTING, DEADLINE, STAY(COMMITTING)),
    OFF(SHUTDOWN_ANSWERS, WAITING, SHUTDOWN, STAY(WAITING)),
    OFF(SHUTDOWN_ANSWERS, QUEUED, SHUTDOWN, STAY(QUEUED)),
};

/* The rules that are off, those behind the planted bugs included. */
static uint64_t rules_off(void)
{
    uint64_t off = fb_attempt_rules_off;
    if (FB_BUG(FB_BUG_WAITER_NOT_FREED))
        off |= UINT64_C(1) << FB_ATTEMPT_RULE_DEATH_WAKES | UINT64_C(1)
                                                                << FB_ATTEMPT_RULE_LOSS_WAKES;
    if (FB_BUG(FB_BUG_STALE_ATTEMPT_ACCEPTED))
        off |= UINT64_C(1) << FB_ATTEMPT_RULE_LATE_COMMIT_REFUSED |
               UINT64_C(1) << FB_ATTEMPT_RULE_GRANT_NAMED;
    return off;
}

#define IS_OFF(rule) (((rules_off() >> FB_ATTEMPT_RULE_##rule) & 1) != 0)

static const struct cell *find_cell(unsigned state, unsigned event)
{
    uint64_t off = rules_off();
    if (off == 0)
        return &table[state][event];
    for (unsigned i = 0; i < sizeof patches / sizeof patches[0]; i++)
        if (((off >> patches[i].rule) & 1) != 0 && patches[i].state == state &&
            patches[i].event == event)
            return &patches[i].cell;
    return &table[state][event];
}
#else
#define IS_OFF(rule) false

static const struct cell *find_cell(unsigned state, unsigned event)
{
    return &table[state][event];
}
#endif

static bool is_writing_state(unsigned state)
{
    return state == FB_ATTEMPT_QUEUED || state == FB_ATTEMPT_WRITING ||
           state == FB_ATTEMPT_COMMITTING || state == FB_ATTEMPT_ORPHAN;
}

bool fb_attempt_is_writer(const struct fb_attempt *attempt)
{
    return is_writing_state(attempt->state);
}

bool fb_attempt_is_in_line(const struct fb_attempt *attempt)
{
    return attempt->state == FB_ATTEMPT_WAITING || attempt->state == FB_ATTEMPT_FLUSH_WAIT;
}

/* True for the states that a slot counts. */
static bool is_active(unsigned state)
{
    return state == FB_ATTEMPT_WAITING || state == FB_ATTEMPT_FLUSH_WAIT || is_writing_state(state);
}

/* Keeps the slot's counts equal to the states of its attempts. */
static void count(struct fb_attempt_slot *slot, unsigned state, int by)
{
    if (state == FB_ATTEMPT_WAITING)
        slot->waiting += (uint32_t)by;
    else if (state == FB_ATTEMPT_FLUSH_WAIT)
        slot->flush_wait += (uint32_t)by;
    else if (is_writing_state(state))
        slot->writers = (uint8_t)(slot->writers + by);
}

static struct fb_attempt_todo apply(struct fb_attempt_slot *slot, struct fb_attempt *attempt,
                                    unsigned event, int given)
{
    FB_ASSERT(attempt->state < FB_ATTEMPT_STATES);
    FB_ASSERT(event < FB_ATTEMPT_EVENTS);
    const struct cell *cell = find_cell(attempt->state, event);
    FB_ASSERT(cell->possible);

    struct fb_attempt_todo todo = {cell->actions, cell->result == GIVEN ? given : cell->result};
    if ((todo.actions & FB_ATTEMPT_DO_LATE) != 0)
        todo.result = attempt->result;
    if ((todo.actions & FB_ATTEMPT_DO_ANSWER) != 0)
        attempt->result = (int16_t)todo.result;
    FB_ASSERT(slot != NULL || (!is_active(attempt->state) && !is_active(cell->next)));
    if (slot != NULL && (todo.actions & FB_ATTEMPT_DO_INSTALL) != 0)
        slot->value = (attempt->kind & FB_ATTEMPT_THROUGH) != 0 ? FB_ATTEMPT_VALUE_CLEAN
                                                                : FB_ATTEMPT_VALUE_DIRTY;
    count(slot, attempt->state, -1);
    attempt->state = cell->next;
    count(slot, attempt->state, 1);
    FB_ASSERT(slot == NULL || slot->writers <= 1 || IS_OFF(ONE_WRITER));
    if (slot == NULL || (slot->waiting == 0 && slot->flush_wait == 0))
        todo.actions &= ~(uint32_t)FB_ATTEMPT_DO_RECHECK;
    return todo;
}

void fb_attempt_init(struct fb_attempt *attempt, unsigned kind)
{
    FB_ASSERT((kind & ~(unsigned)(FB_ATTEMPT_UPSERT | FB_ATTEMPT_THROUGH)) == 0);
    *attempt = (struct fb_attempt){.state = FB_ATTEMPT_NEW, .kind = (uint8_t)kind};
}

/* What this attempt sees when it looks at its key now. */
static enum fb_attempt_event look(const struct fb_attempt_slot *slot,
                                  const struct fb_attempt *attempt)
{
    bool through = (attempt->kind & FB_ATTEMPT_THROUGH) != 0 && !IS_OFF(THROUGH_WAITS);
    bool upsert = (attempt->kind & FB_ATTEMPT_UPSERT) != 0 && !IS_OFF(UPSERT_WRITES);
    if (!upsert && slot->value != FB_ATTEMPT_VALUE_NONE)
        return through && slot->value == FB_ATTEMPT_VALUE_DIRTY ? FB_ATTEMPT_ON_SEE_DIRTY
                                                                : FB_ATTEMPT_ON_SEE_VALUE;
    if (slot->writers != 0 && !upsert && IS_OFF(NO_EARLY_EXISTS))
        return FB_ATTEMPT_ON_SEE_VALUE;
    if (slot->writers != 0)
        return IS_OFF(ONE_WRITER) ? FB_ATTEMPT_ON_SEE_TURN : FB_ATTEMPT_ON_SEE_WRITER;
    /* The line goes first; it is empty here if the engine rechecks as it owes. */
    if (attempt->state == FB_ATTEMPT_NEW && slot->waiting != 0)
        return FB_ATTEMPT_ON_SEE_WRITER;
    return FB_ATTEMPT_ON_SEE_TURN;
}

struct fb_attempt_todo fb_attempt_see(struct fb_attempt_slot *slot, struct fb_attempt *attempt)
{
    FB_ASSERT(attempt->state == FB_ATTEMPT_NEW || fb_attempt_is_in_line(attempt));
    return apply(slot, attempt, look(slot, attempt), 0);
}

struct fb_attempt_todo fb_attempt_grant(struct fb_attempt_slot *slot, struct fb_attempt *attempt,
                                        uint64_t generation)
{
    FB_ASSERT(generation != 0);
    FB_ASSERT(attempt->grant == 0);
    attempt->grant = generation;
    return apply(slot, attempt, FB_ATTEMPT_ON_SPACE, 0);
}

struct fb_attempt_todo fb_attempt_message(struct fb_attempt_slot *slot, struct fb_attempt *attempt,
                                          enum fb_attempt_event event, uint64_t generation)
{
    FB_ASSERT(event == FB_ATTEMPT_ON_PROGRESS || event == FB_ATTEMPT_ON_COMMIT ||
              event == FB_ATTEMPT_ON_RELEASE);
    if (generation != attempt->grant && !IS_OFF(GRANT_NAMED))
        return (struct fb_attempt_todo){FB_ATTEMPT_DO_LATE, FB_GRANT_EXPIRED};
    if (event == FB_ATTEMPT_ON_COMMIT) {
        bool through = (attempt->kind & FB_ATTEMPT_THROUGH) != 0 && !IS_OFF(THROUGH_FIRST);
        bool old_on_disk = slot != NULL && slot->old_on_disk && !IS_OFF(OLD_KILLED_FIRST);
        if (through || old_on_disk)
            event = FB_ATTEMPT_ON_COMMIT_DURABLE;
    }
    return apply(slot, attempt, event, 0);
}

struct fb_attempt_todo fb_attempt_step(struct fb_attempt_slot *slot, struct fb_attempt *attempt,
                                       enum fb_attempt_event event)
{
    FB_ASSERT(event == FB_ATTEMPT_ON_DURABLE ||
              (event >= FB_ATTEMPT_ON_EXPIRED && event < FB_ATTEMPT_ON_REFUSED));
    return apply(slot, attempt, event, 0);
}

struct fb_attempt_todo fb_attempt_fail(struct fb_attempt_slot *slot, struct fb_attempt *attempt,
                                       enum fb_attempt_event event, int result)
{
    FB_ASSERT(event == FB_ATTEMPT_ON_DURABLE_FAILED || event == FB_ATTEMPT_ON_REFUSED);
    FB_ASSERT(result < 0 && result > INT16_MIN);
    return apply(slot, attempt, event, result);
}

bool fb_attempt_set_value(struct fb_attempt_slot *slot, enum fb_attempt_value value)
{
    slot->value = (uint8_t)value;
    return slot->flush_wait != 0 && value != FB_ATTEMPT_VALUE_DIRTY;
}

uint64_t fb_attempt_expiry_ns(uint64_t bytes)
{
    FB_ASSERT(bytes <= FB_VALUE_BYTES_MAX);
    return FB_GRANT_EXPIRY_NS + bytes * FB_SEC_NS / FB_PUT_BYTES_PER_SEC_MIN;
}

bool fb_attempt_is_possible(unsigned state, unsigned event)
{
    return state < FB_ATTEMPT_STATES && event < FB_ATTEMPT_EVENTS &&
           table[state][event].possible != 0;
}

#define FB_ATTEMPT_NAME(symbol, text) #symbol,
static const char *const state_names[] = {FB_ATTEMPT_STATE_LIST(FB_ATTEMPT_NAME)};
static const char *const event_names[] = {FB_ATTEMPT_EVENT_LIST(FB_ATTEMPT_NAME)};
#undef FB_ATTEMPT_NAME

_Static_assert(FB_VALUE_BYTES_MAX <= UINT64_MAX / FB_SEC_NS, "the expiry of any value fits");

const char *fb_attempt_state_name(unsigned state)
{
    return state < FB_ATTEMPT_STATES ? state_names[state] : "?";
}

const char *fb_attempt_event_name(unsigned event)
{
    return event < FB_ATTEMPT_EVENTS ? event_names[event] : "?";
}
