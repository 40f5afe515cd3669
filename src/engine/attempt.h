/*
 * attempt.h - the life of the puts ("attempts") on one key, as a table: state and event in, next
 * state and actions out. It decides who may write a key, who waits, who is answered what, and when
 * memory may be used again. It moves no bytes, owns no memory and reads no clock.
 *
 * One key has one struct fb_attempt_slot while a put of it is under way, and one struct fb_attempt
 * in each put. The engine keeps the line of the slot: the attempts in WAITING and FLUSH_WAIT, in
 * the order of their arrival. test/model/attempt_test.c searches this very code exhaustively, and
 * shows for each rule below what breaks without it.
 *
 * Life of an attempt:
 *
 *   NEW --> ENDED                              EXISTS, or refused at once
 *   NEW --> WAITING or FLUSH_WAIT              another one writes the key, or its value is dirty
 *   NEW, WAITING, FLUSH_WAIT --> QUEUED        it is its turn: the writer of the key, without
 * memory QUEUED --> WRITING --> ENDED               space, grant, commit: stored WRITING -->
 * COMMITTING --> ENDED    as above, when something must be durable first COMMITTING --> ORPHAN its
 * caller has an answer; the commit goes on WRITING --> QUARANTINE --> ENDED    right to commit
 * revoked; memory not yet safe COMMITTING --> DRAINING killed while the device still reads its
 * memory
 *
 * Rules, and why:
 *  1. One writer a key. Writers are QUEUED, WRITING, COMMITTING and ORPHAN. Everybody else waits
 *     and holds no memory, so that duplicates cannot fill the pool and cannot deadlock.
 *  2. A plain put ends as EXISTS only while a value is readable. A `through` put only while that
 *     value is durable, else it waits for the flush. An upsert never: it waits its turn and writes.
 *  3. When a writer ends, however it ends, the line is looked at again (RECHECK). A waiter sees the
 *     key as it is now and decides afresh: no edge can be lost, since no edge is remembered.
 *  4. A generation is given with the grant, never on arrival. So a remove leaves alone whoever
 * holds no memory: they will write a later generation. And order of commits is order of
 * generations.
 *  5. Expiry, deadline, remove, epoch bump, shutdown and a lost session revoke the right to commit.
 *     None of them frees memory that a client was given: that is quarantined until the client says
 *     that it has stopped (release, or a late commit, which says the same), or is proven dead.
 *  6. A put is answered once, at the moment its fate is known: on revocation, not on the late
 *     commit. What arrives later gets a LATE reply, which changes nothing.
 *  7. A commit names the grant that it is for. A commit of another grant is LATE, even if it comes
 *     from the same session and for the same key.
 *  8. Before a commit is installed, all older generations that may be on a device are durably
 *     killed (slot->old_on_disk), and a `through` value is durable. Else a crash would bring a
 *     value back that is older than the newest acknowledged one. "May be" counts writes that are
 *     in flight or failed, and whatever a remove has hidden but not yet durably killed.
 *  9. While COMMITTING, ORPHAN or DRAINING the store's own device writes may read the memory: it is
 *     freed only when they have ended (DURABLE or DURABLE_FAILED), whoever dies meanwhile.
 * 10. A failed durability is a failed put, never a stored one.
 *
 * What the engine owes:
 *  a. After a step that returned RECHECK, and before the next event of this key, it calls
 *     fb_attempt_see() for each attempt of the line, from first to last, and acts on the answers.
 *     The line is walked by a cursor, since a visited attempt may leave it.
 *  b. When the committed value goes (remove, eviction, epoch bump) or is flushed, it calls
 *     fb_attempt_set_value() before the next event of this key, and rechecks if that says so. What
 *     a flush still reads of a value that is gone is not freed before the flush has ended.
 *  c. A remove takes a generation when it arrives, drops the value and steps the writer at once,
 *     and is answered when its tombstone is durable. If that fails, old_on_disk stays set.
 *  d. An epoch bump and a shutdown step every attempt of the key, the line before the writer.
 *  e. old_on_disk is true from the moment a write of an older generation is laid out, whether that
 *     write is in flight, has failed, or is hidden by a remove that is not durable yet. The kill
 *     that a commit makes durable covers every generation below the attempt's own, so that it also
 *     covers what the cleaner lays out for the old value while the commit is under way.
 *  f. Memory that the client cannot reach by itself (a TCP window that the node fills) is released
 *     by the engine, with RELEASE, as soon as no receive into it is in flight.
 */
#ifndef FB_ENGINE_ATTEMPT_H
#define FB_ENGINE_ATTEMPT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/limits.h"
#include "base/result.h"

/* X(symbol, what it means) */
#define FB_ATTEMPT_STATE_LIST(X)                                                      \
    X(NEW, "a put that has not looked at its key yet")                                \
    X(WAITING, "in line behind the writer of the key; no memory")                     \
    X(FLUSH_WAIT, "`through` duplicate: waits until the value is durable; no memory") \
    X(QUEUED, "the writer of the key; waits for space; no memory")                    \
    X(WRITING, "holds a grant; its client may touch the memory")                      \
    X(COMMITTING, "its client is done; something is being made durable")              \
    X(ORPHAN, "as COMMITTING, but the put has been answered")                         \
    X(QUARANTINE, "answered, may not commit; its client may still touch the memory")  \
    X(DRAINING, "answered, may not commit; the device may still read the memory")     \
    X(ENDED, "answered, no memory: the struct may be reused")

/* X(symbol, what happened) */
#define FB_ATTEMPT_EVENT_LIST(X)                                                             \
    X(SEE_VALUE, "looked at the key: a value that answers this put is readable")             \
    X(SEE_DIRTY, "looked at the key: readable, but not yet as durable as asked")             \
    X(SEE_WRITER, "looked at the key: somebody else writes it, or is first in line")         \
    X(SEE_TURN, "looked at the key: nobody writes it")                                       \
    X(SPACE, "memory has been reserved, a generation given")                                 \
    X(PROGRESS, "the client says that it is still at work")                                  \
    X(COMMIT, "the client is done with the memory; nothing has to be durable first")         \
    X(COMMIT_DURABLE, "the client is done with the memory; something has to be durable")     \
    X(DURABLE, "what had to be durable is; the device reads this memory no more")            \
    X(DURABLE_FAILED, "it could not be made durable; the device reads this memory no more")  \
    X(EXPIRED, "the grant's time without progress is over")                                  \
    X(RELEASE, "the client gives the put up, or acknowledges its end: it touches no memory") \
    X(CLIENT_LOST, "the session is gone, the process perhaps not")                           \
    X(CLIENT_DEAD, "proven: nothing of this client can touch memory any more")               \
    X(DEADLINE, "the put's own deadline has passed")                                         \
    X(REMOVE, "a remove kills all generations up to its own")                                \
    X(EPOCH, "the namespace has moved on (also: arrived with a stale epoch)")                \
    X(SHUTDOWN, "the node is going down")                                                    \
    X(REFUSED, "cannot be done: too big, over quota, bytes do not match their checksum")

#define FB_ATTEMPT_MEMBER(symbol, text) FB_ATTEMPT_##symbol,
enum fb_attempt_state {
    FB_ATTEMPT_STATE_LIST(FB_ATTEMPT_MEMBER) /* from 0 */
    FB_ATTEMPT_STATES
};
#undef FB_ATTEMPT_MEMBER

#define FB_ATTEMPT_MEMBER(symbol, text) FB_ATTEMPT_ON_##symbol,
enum fb_attempt_event {
    FB_ATTEMPT_EVENT_LIST(FB_ATTEMPT_MEMBER) /* from 0 */
    FB_ATTEMPT_EVENTS
};
#undef FB_ATTEMPT_MEMBER

/* What the engine has to do after a step, in this order. */
enum fb_attempt_action {
    FB_ATTEMPT_DO_CANCEL_SPACE = 1 << 0, /* take the request out of the queue for space */
    FB_ATTEMPT_DO_INSTALL = 1 << 1,    /* make the bytes the value of the key; the memory is its */
    FB_ATTEMPT_DO_FREE = 1 << 2,       /* give the memory back to the arena */
    FB_ATTEMPT_DO_QUARANTINE = 1 << 3, /* account the memory as quarantined */
    FB_ATTEMPT_DO_ANSWER = 1 << 4,     /* the put has ended in `result`; exactly once a put */
    FB_ATTEMPT_DO_LATE = 1 << 5,       /* reply to this message alone: `result`, too late */
    FB_ATTEMPT_DO_BAD = 1 << 6,        /* the message makes no sense here: FB_PROTOCOL */
    FB_ATTEMPT_DO_ASK_SPACE = 1 << 7,  /* queue for space; leads to SPACE or REFUSED */
    FB_ATTEMPT_DO_GRANT = 1 << 8,      /* tell the client where to write; start the expiry */
    FB_ATTEMPT_DO_TOUCH = 1 << 9,      /* start the expiry anew */
    FB_ATTEMPT_DO_MAKE_DURABLE = 1 << 10, /* kill older generations, and write the value if asked;
                                             leads to DURABLE or DURABLE_FAILED, always */
    FB_ATTEMPT_DO_RECHECK = 1 << 11       /* fb_attempt_see() for the whole line, before all else */
};

/* How a put differs from a plain one. */
enum fb_attempt_kind {
    FB_ATTEMPT_PLAIN = 0,
    FB_ATTEMPT_UPSERT = 1 << 0, /* writes a later generation over what is there */
    FB_ATTEMPT_THROUGH = 1 << 1 /* is answered when the value is durable */
};

/* The committed value of a key, as far as a put needs to know. */
enum fb_attempt_value {
    FB_ATTEMPT_VALUE_NONE,  /* not readable */
    FB_ATTEMPT_VALUE_DIRTY, /* readable, not durable */
    FB_ATTEMPT_VALUE_CLEAN  /* readable and durable */
};

/* What the attempts of one key share. All zero is a key without value and without attempts. */
struct fb_attempt_slot {
    uint32_t waiting;    /* attempts in WAITING */
    uint32_t flush_wait; /* attempts in FLUSH_WAIT */
    uint8_t writers;     /* attempts in QUEUED, WRITING, COMMITTING, ORPHAN: 0 or 1 */
    uint8_t value;       /* enum fb_attempt_value; set by the engine, and by an install */
    bool old_on_disk;    /* an older generation may be on a device, not durably killed (rule 8) */
};

/* One put of one key. */
struct fb_attempt {
    uint64_t grant; /* generation given with the grant; names it in messages; 0 before */
    uint8_t state;  /* enum fb_attempt_state */
    uint8_t kind;   /* enum fb_attempt_kind */
    int16_t result; /* once answered: what the put ended in */
};

/* What to do after a step. */
struct fb_attempt_todo {
    uint32_t actions; /* enum fb_attempt_action */
    int result;       /* with ANSWER and LATE */
};

/* Makes an attempt in NEW. `kind` is of enum fb_attempt_kind. */
void fb_attempt_init(struct fb_attempt *attempt, unsigned kind);

/*
 * In all calls below `slot` may be NULL once the attempt is in QUARANTINE, DRAINING or ENDED: it
 * has no part in the key any more and may outlive it.
 */

/*
 * Looks at the key: for an attempt in NEW (it arrives) and for those in line (after RECHECK). It
 * ends as EXISTS, becomes the writer (ASK_SPACE), or waits.
 */
struct fb_attempt_todo fb_attempt_see(struct fb_attempt_slot *slot, struct fb_attempt *attempt);

/*
 * Space has been reserved for an attempt in QUEUED. `generation` is later than all that were given
 * on this key before, to attempts and to removes. Leads to GRANT.
 */
struct fb_attempt_todo fb_attempt_grant(struct fb_attempt_slot *slot, struct fb_attempt *attempt,
                                        uint64_t generation);

/*
 * A client's message about a grant: PROGRESS, COMMIT or RELEASE, with the generation that it names.
 * Whether a commit must wait for durability is decided here, by kind and slot. Any message in any
 * state is answered, since a client can send any: LATE for a grant that is not the attempt's, BAD
 * for what makes no sense. A put that has no grant yet is given up with generation 0.
 */
struct fb_attempt_todo fb_attempt_message(struct fb_attempt_slot *slot, struct fb_attempt *attempt,
                                          enum fb_attempt_event event, uint64_t generation);

/*
 * Any other event. An event that cannot happen in the attempt's state is a fault of the engine and
 * stops the program; timers, kills and deaths are allowed in every state but NEW.
 */
struct fb_attempt_todo fb_attempt_step(struct fb_attempt_slot *slot, struct fb_attempt *attempt,
                                       enum fb_attempt_event event);

/*
 * As fb_attempt_step(), for the events whose result is the engine's to say: REFUSED and
 * DURABLE_FAILED. `result` is negative.
 */
struct fb_attempt_todo fb_attempt_fail(struct fb_attempt_slot *slot, struct fb_attempt *attempt,
                                       enum fb_attempt_event event, int result);

/*
 * The committed value changed other than by an install: cleaned, evicted, removed. Returns true if
 * the line must be looked at again, as after RECHECK.
 */
bool fb_attempt_set_value(struct fb_attempt_slot *slot, enum fb_attempt_value value);

/* How long a grant of so many bytes may be without progress, in ns: 5 s + bytes / 50 MB/s (R3). */
uint64_t fb_attempt_expiry_ns(uint64_t bytes);

/* True for an attempt that has the right to write the key: QUEUED to ORPHAN, see rule 1. */
bool fb_attempt_is_writer(const struct fb_attempt *attempt);

/* True for an attempt that is on the line of its slot: WAITING or FLUSH_WAIT. */
bool fb_attempt_is_in_line(const struct fb_attempt *attempt);

/* The name of a state, say "QUARANTINE"; "?" outside the list. Static. */
const char *fb_attempt_state_name(unsigned state);

/* The name of an event, say "COMMIT"; "?" outside the list. Static. */
const char *fb_attempt_event_name(unsigned event);

/* True if the table has an answer for this event in this state. For tests. */
bool fb_attempt_is_possible(unsigned state, unsigned event);

#ifdef FB_TEST_HOOKS
/* X(symbol, what is kept by the rule): each can be switched off to show that its loss is found. */
#define FB_ATTEMPT_RULE_LIST(X)                                                         \
    X(ONE_WRITER, "a duplicate waits while another writes")                             \
    X(NO_EARLY_EXISTS, "a duplicate is not told EXISTS before the commit")              \
    X(COMMIT_WAKES, "a commit wakes the line")                                          \
    X(DURABLE_WAKES, "a commit that waited for the device wakes the line")              \
    X(FAILURE_WAKES, "a failed commit wakes the line")                                  \
    X(EXPIRY_WAKES, "an expired grant wakes the line")                                  \
    X(DEATH_WAKES, "a dead writer wakes the line")                                      \
    X(LOSS_WAKES, "a lost session wakes the line")                                      \
    X(REMOVE_WAKES, "a remove that kills the writer wakes the line")                    \
    X(DEADLINE_WAKES, "a writer's deadline wakes the line")                             \
    X(RELEASE_WAKES, "a writer that gives up wakes the line")                           \
    X(EXPIRY_REVOKES, "a grant expires")                                                \
    X(EXPIRY_QUARANTINES, "expiry does not free memory")                                \
    X(DEADLINE_QUARANTINES, "a deadline does not free memory")                          \
    X(LOSS_QUARANTINES, "a lost session does not free memory")                          \
    X(REMOVE_QUARANTINES, "a remove does not free memory")                              \
    X(EPOCH_QUARANTINES, "an epoch bump does not free memory")                          \
    X(ACK_FREES, "an acknowledgement frees quarantined memory")                         \
    X(LATE_COMMIT_FREES, "a late commit is an acknowledgement")                         \
    X(DEATH_FREES, "proven death frees quarantined memory")                             \
    X(DEATH_FREES_GRANT, "proven death frees granted memory")                           \
    X(LATE_COMMIT_REFUSED, "a revoked attempt never installs")                          \
    X(LATE_IS_NO_ANSWER, "a late commit is not a second result")                        \
    X(GRANT_NAMED, "a commit is for the grant that it names")                           \
    X(REMOVE_KILLS, "a remove kills the attempt in flight")                             \
    X(REMOVE_KILLS_COMMITTING, "a remove kills an attempt that is being made durable")  \
    X(EPOCH_KILLS_WRITER, "an epoch bump kills the attempt in flight")                  \
    X(EPOCH_KILLS_LINE, "an epoch bump kills who waits")                                \
    X(UPSERT_WRITES, "an upsert is never EXISTS")                                       \
    X(THROUGH_WAITS, "a `through` duplicate waits for the flush")                       \
    X(THROUGH_FIRST, "a `through` value is durable before it is answered")              \
    X(OLD_KILLED_FIRST, "older generations are durably killed before a commit")         \
    X(FAILED_IS_FAILED, "a failed durability is not stored")                            \
    X(REMOVE_DRAINS, "a killed attempt's memory waits for the device")                  \
    X(EPOCH_DRAINS, "the same for an epoch bump")                                       \
    X(ORPHAN_GOES_ON, "a dead client's commit keeps its memory while the device reads") \
    X(DEADLINE_IN_LINE, "who waits is answered at the deadline")                        \
    X(DEADLINE_IN_QUEUE, "who waits for space is answered at the deadline")             \
    X(DEADLINE_COMMITTING, "who waits for the device is answered at the deadline")      \
    X(SHUTDOWN_ANSWERS, "a shutdown answers who waits")

#define FB_ATTEMPT_MEMBER(symbol, text) FB_ATTEMPT_RULE_##symbol,
enum fb_attempt_rule {
    FB_ATTEMPT_RULE_LIST(FB_ATTEMPT_MEMBER) /* from 0 */
    FB_ATTEMPT_RULES
};
#undef FB_ATTEMPT_MEMBER

_Static_assert(FB_ATTEMPT_RULES <= 64, "rules are bits of one mask");

/* Rules that are switched off, one bit each: for the search in test/model alone. */
extern uint64_t fb_attempt_rules_off;
#endif

#endif
