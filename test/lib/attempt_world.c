/*
 * attempt_world.c - the world of attempt_world.h: events, what the caller of the table does, and
 * what must hold.
 */
#include "test/lib/attempt_world.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"

#define REMOVES_MAX        2
#define GENS_MAX           16
#define SETTLE_MAX         64
#define NONE               0xff
#define OWNER_VALUE        0xf0
#define OWNER_FLUSH        0xf1 /* no value any more, but the device still reads it */

#define NAME(symbol, text) #symbol,
static const char *const event_kind_names[] = {EVENT_LIST(NAME)};
#undef NAME

uint32_t world_duties_off;

static bool duty(enum duty which)
{
    return ((world_duties_off >> which) & 1) == 0;
}

const char *world_violation;
uint8_t world_met[FB_ATTEMPT_STATES][FB_ATTEMPT_EVENTS];

static bool check(bool holds, const char *what)
{
    if (!holds && world_violation == NULL)
        world_violation = what;
    return holds;
}

static uint16_t bit(unsigned generation)
{
    FB_ASSERT(generation < GENS_MAX);
    return (uint16_t)(1u << generation);
}

/* ---- calls into the code under test -------------------------------------------------------- */

struct call {
    struct fb_attempt_slot slot;
    struct fb_attempt attempt;
};

static struct call call_begin(const struct world *w, unsigned i)
{
    const struct op *op = &w->op[i];
    struct call call = {
        .slot = {w->waiting, w->flush_wait, w->writers, w->value, w->old_on_disk != 0},
        .attempt = {op->grant, op->state, op->kind, op->result},
    };
    return call;
}

static void recheck(struct world *w);
static void act(struct world *w, unsigned i, struct fb_attempt_todo todo);

static void call_end(struct world *w, unsigned i, const struct call *call,
                     struct fb_attempt_todo todo)
{
    struct op *op = &w->op[i];
    w->waiting = (uint8_t)call->slot.waiting;
    w->flush_wait = (uint8_t)call->slot.flush_wait;
    w->writers = call->slot.writers;
    w->value = call->slot.value;
    op->state = call->attempt.state;
    op->grant = (uint8_t)call->attempt.grant;
    op->result = call->attempt.result;
    act(w, i, todo);
}

static void step(struct world *w, unsigned i, enum fb_attempt_event event)
{
    struct call call = call_begin(w, i);
    world_met[call.attempt.state][event] = 1;
    struct fb_attempt_todo todo;
    if (event == FB_ATTEMPT_ON_DURABLE_FAILED || event == FB_ATTEMPT_ON_REFUSED)
        todo = fb_attempt_fail(&call.slot, &call.attempt, event, FB_IO);
    else
        todo = fb_attempt_step(&call.slot, &call.attempt, event);
    call_end(w, i, &call, todo);
}

static void see(struct world *w, unsigned i)
{
    struct call call = call_begin(w, i);
    unsigned before = call.attempt.state;
    struct fb_attempt_todo todo = fb_attempt_see(&call.slot, &call.attempt);
    static const uint8_t seen[FB_ATTEMPT_STATES] = {
        [FB_ATTEMPT_ENDED] = FB_ATTEMPT_ON_SEE_VALUE,
        [FB_ATTEMPT_FLUSH_WAIT] = FB_ATTEMPT_ON_SEE_DIRTY,
        [FB_ATTEMPT_WAITING] = FB_ATTEMPT_ON_SEE_WRITER,
        [FB_ATTEMPT_QUEUED] = FB_ATTEMPT_ON_SEE_TURN,
    };
    world_met[before][seen[call.attempt.state]] = 1;
    call_end(w, i, &call, todo);
}

/* The generations that may be on the device and are not durably killed. */
static void look_at_disk(struct world *w)
{
    unsigned on_disk = w->sure;
    if (duty(DUTY_FLIGHT_COUNTS))
        on_disk |= w->maybe;
    unsigned killed = w->tomb;
    if (!duty(DUTY_UNDURABLE_REMOVE_COUNTS) && w->removed > killed)
        killed = w->removed;
    w->old_on_disk = (on_disk >> (killed + 1)) != 0;
}

/*
 * A client's message about a grant. The node finds a put by session and key, the newest first, as
 * a hurried engine would: it is the table that must notice that the grant is another one's.
 */
static void message(struct world *w, unsigned i, enum fb_attempt_event event)
{
    look_at_disk(w);
    for (unsigned j = w->ops; j-- > 0;) {
        if (w->op[j].client != w->op[i].client || w->op[j].state == FB_ATTEMPT_ENDED)
            continue;
        if (w->op[j].grant == 0 && w->op[i].grant != 0)
            continue;
        struct call call = call_begin(w, j);
        unsigned before = call.attempt.state;
        struct fb_attempt_todo todo =
            fb_attempt_message(&call.slot, &call.attempt, event, w->op[i].grant);
        bool stale = i != j && todo.actions == FB_ATTEMPT_DO_LATE;
        if (!stale) {
            check(i == j, "a message was taken for another grant's");
            world_met[before]
                     [event == FB_ATTEMPT_ON_COMMIT && call.attempt.state == FB_ATTEMPT_COMMITTING
                          ? FB_ATTEMPT_ON_COMMIT_DURABLE
                          : event] = 1;
            call_end(w, j, &call, todo);
            return;
        }
    }
}

/* ---- actions ------------------------------------------------------------------------------- */

static void set_value(struct world *w, enum fb_attempt_value value)
{
    struct fb_attempt_slot slot = {w->waiting, w->flush_wait, w->writers, w->value, false};
    bool again = fb_attempt_set_value(&slot, value);
    w->value = slot.value;
    if (again)
        recheck(w);
}

/* The committed value is no more; its memory is free unless the device reads it. */
static void drop_value_memory(struct world *w)
{
    if (w->value_gen == 0)
        return;
    unsigned e = w->value_extent;
    check(w->owner[e] == OWNER_VALUE, "a value does not own its memory");
    bool flushing = w->clean_gen != 0 && w->clean_extent == e;
    if (flushing && !duty(DUTY_FLUSH_PINS))
        check(false, "memory was freed while the device reads it");
    w->owner[e] = flushing ? OWNER_FLUSH : 0;
    w->value_gen = 0;
    w->value_extent = NONE;
    w->value_epoch = 0;
}

static void install(struct world *w, unsigned i)
{
    struct op *op = &w->op[i];
    if (!check(op->extent != NONE && w->owner[op->extent] == i + 1, "installed without memory"))
        return;
    check(w->content[op->extent] == op->grant, "a value is not the bytes of one attempt");
    check(op->view == NONE, "a value was installed that its client still writes");
    check(op->epoch == w->epoch, "a value of an old epoch was installed");
    check(op->grant > w->removed, "a removed generation was installed");
    check(op->grant > w->value_gen && op->grant > w->acked, "an older generation was installed");
    drop_value_memory(w);
    w->owner[op->extent] = OWNER_VALUE;
    w->value_extent = op->extent;
    w->value_gen = op->grant;
    w->value_epoch = op->epoch;
    op->extent = NONE;
}

static void answer(struct world *w, struct op *op, int result)
{
    op->answers++;
    check(op->answers == 1, "a put was answered twice");
    bool through = (op->kind & FB_ATTEMPT_THROUGH) != 0;
    if (result == FB_EXISTS) {
        check(w->value_gen != 0 && w->value_epoch == w->epoch, "EXISTS for what is not readable");
        check((op->kind & FB_ATTEMPT_UPSERT) == 0, "an upsert ended as EXISTS");
        check(!through || (w->sure & bit(w->value_gen)) != 0, "through: EXISTS is not durable");
    } else if (result == FB_OK) {
        check(w->value_gen == op->grant, "stored is not readable");
        check(!through || (w->sure & bit(op->grant)) != 0, "through: stored is not durable");
        w->acked = op->grant;
    } else {
        check(result < 0, "a put ended in no result");
    }
}

static uint8_t newest_on_disk(const struct world *w)
{
    uint8_t g = w->gens;
    while (g > 0 && ((w->sure | w->maybe) & bit(g)) == 0)
        g--;
    return g;
}

static void act(struct world *w, unsigned i, struct fb_attempt_todo todo)
{
    struct op *op = &w->op[i];
    if ((todo.actions & FB_ATTEMPT_DO_INSTALL) != 0)
        install(w, i);
    if ((todo.actions & FB_ATTEMPT_DO_FREE) != 0 &&
        check(op->extent != NONE && w->owner[op->extent] == i + 1, "freed what it does not own")) {
        check(op->io == 0, "memory was freed while the device reads it");
        w->owner[op->extent] = 0;
        op->extent = NONE;
    }
    if ((todo.actions & FB_ATTEMPT_DO_ANSWER) != 0)
        answer(w, op, todo.result);
    if ((todo.actions & FB_ATTEMPT_DO_LATE) != 0)
        check(op->answers == 1 && todo.result < 0, "a late message got an answer of its own");
    check((todo.actions & FB_ATTEMPT_DO_BAD) == 0, "a good message was called bad");
    if ((todo.actions & FB_ATTEMPT_DO_ASK_SPACE) != 0)
        for (unsigned j = 0; j < i; j++)
            check(w->op[j].state != FB_ATTEMPT_WAITING, "a waiter was overtaken");
    if ((todo.actions & FB_ATTEMPT_DO_GRANT) != 0)
        op->view = op->extent;
    if ((todo.actions & FB_ATTEMPT_DO_MAKE_DURABLE) != 0) {
        op->io = 1;
        op->kill = duty(DUTY_COMMIT_KILLS_ALL) ? (uint8_t)(op->grant - 1) : newest_on_disk(w);
        if ((op->kind & FB_ATTEMPT_THROUGH) != 0)
            w->maybe |= bit(op->grant);
    }
    if ((todo.actions & FB_ATTEMPT_DO_RECHECK) != 0)
        recheck(w);
}

static void recheck(struct world *w)
{
    for (unsigned n = 0; n < w->ops; n++) {
        unsigned i = duty(DUTY_LINE_IN_ORDER) ? n : w->ops - 1u - n;
        if (w->op[i].state == FB_ATTEMPT_WAITING || w->op[i].state == FB_ATTEMPT_FLUSH_WAIT)
            see(w, i);
    }
}

/* ---- events -------------------------------------------------------------------------------- */

static void do_put(struct world *w, const struct event *event)
{
    unsigned i = w->ops++;
    w->puts++;
    struct op *op = &w->op[i];
    struct fb_attempt attempt;
    fb_attempt_init(&attempt, event->how);
    *op = (struct op){.state = attempt.state,
                      .kind = attempt.kind,
                      .client = event->who,
                      .extent = NONE,
                      .view = NONE,
                      .epoch = w->epoch};
    if (!duty(DUTY_GENERATION_AT_GRANT))
        op->early_gen = ++w->gens;
    see(w, i);
}

static unsigned free_extent(const struct world *w)
{
    for (unsigned e = 0; e < EXTENTS; e++)
        if (w->owner[e] == 0)
            return e;
    return NONE;
}

static void do_space(struct world *w, unsigned i)
{
    unsigned e = free_extent(w);
    FB_ASSERT(e != NONE);
    w->owner[e] = (uint8_t)(i + 1);
    w->content[e] = 0;
    w->op[i].extent = (uint8_t)e;
    uint8_t generation = w->op[i].early_gen;
    if (duty(DUTY_GENERATION_AT_GRANT))
        generation = ++w->gens;
    struct call call = call_begin(w, i);
    world_met[call.attempt.state][FB_ATTEMPT_ON_SPACE] = 1;
    struct fb_attempt_todo todo = fb_attempt_grant(&call.slot, &call.attempt, generation);
    call_end(w, i, &call, todo);
}

/* The client writes, perhaps late, and says that it is done: it touches the memory no more. */
static void do_commit(struct world *w, unsigned i)
{
    struct op *op = &w->op[i];
    w->content[op->view] = op->grant;
    op->view = NONE;
    message(w, i, FB_ATTEMPT_ON_COMMIT);
}

static void do_release(struct world *w, unsigned i)
{
    w->op[i].view = NONE;
    message(w, i, FB_ATTEMPT_ON_RELEASE);
}

static void do_durable(struct world *w, unsigned i, bool good)
{
    struct op *op = &w->op[i];
    op->io = 0;
    if (good && op->epoch == w->epoch) {
        if (op->kill > w->tomb)
            w->tomb = op->kill;
        if ((op->kind & FB_ATTEMPT_THROUGH) != 0)
            w->sure |= bit(op->grant);
    }
    step(w, i, good ? FB_ATTEMPT_ON_DURABLE : FB_ATTEMPT_ON_DURABLE_FAILED);
}

static void do_client_gone(struct world *w, unsigned c, bool proven)
{
    w->client[c] = proven ? CLIENT_DEAD : CLIENT_LOST;
    for (unsigned i = 0; i < w->ops; i++) {
        if (w->op[i].client != c)
            continue;
        if (proven)
            w->op[i].view = NONE;
        if (w->op[i].state != FB_ATTEMPT_ENDED)
            step(w, i, proven ? FB_ATTEMPT_ON_CLIENT_DEAD : FB_ATTEMPT_ON_CLIENT_LOST);
    }
}

static void step_all(struct world *w, enum fb_attempt_event event)
{
    for (unsigned i = 0; i < w->ops; i++)
        if (w->op[i].state == FB_ATTEMPT_WAITING || w->op[i].state == FB_ATTEMPT_FLUSH_WAIT)
            step(w, i, event);
    for (unsigned i = 0; i < w->ops; i++)
        if (w->op[i].state != FB_ATTEMPT_WAITING && w->op[i].state != FB_ATTEMPT_FLUSH_WAIT &&
            w->op[i].state != FB_ATTEMPT_ENDED)
            step(w, i, event);
}

static void do_remove(struct world *w)
{
    w->removes++;
    w->removed = w->remove_pending = ++w->gens;
    drop_value_memory(w);
    set_value(w, FB_ATTEMPT_VALUE_NONE);
    step_all(w, FB_ATTEMPT_ON_REMOVE);
}

static void do_remove_end(struct world *w, bool good)
{
    if (good && w->remove_pending > w->tomb)
        w->tomb = w->remove_pending;
    if (good)
        w->removed_acked = w->remove_pending;
    w->remove_pending = 0;
}

/* The digest covers the epoch: what is on the device under the old one cannot be reached any more.
 */
static void do_epoch(struct world *w)
{
    w->epoch++;
    drop_value_memory(w);
    w->value = FB_ATTEMPT_VALUE_NONE;
    step_all(w, FB_ATTEMPT_ON_EPOCH);
    w->sure = w->maybe = 0;
    w->tomb = w->removed = w->remove_pending = w->removed_acked = w->acked = 0;
}

static void do_clean(struct world *w)
{
    w->clean_gen = w->value_gen;
    w->clean_extent = w->value_extent;
    w->clean_epoch = w->epoch;
    w->maybe |= bit(w->clean_gen);
}

static void do_clean_end(struct world *w, bool good)
{
    unsigned generation = w->clean_gen;
    bool current = w->clean_epoch == w->epoch;
    if (w->owner[w->clean_extent] == OWNER_FLUSH)
        w->owner[w->clean_extent] = 0;
    w->clean_gen = w->clean_epoch = 0;
    w->clean_extent = NONE;
    if (good && current)
        w->sure |= bit(generation);
    if (!current || w->value_gen != generation)
        return;
    if (good) {
        set_value(w, FB_ATTEMPT_VALUE_CLEAN);
        return;
    }
    for (unsigned i = 0; i < w->ops; i++)
        if (w->op[i].state == FB_ATTEMPT_FLUSH_WAIT)
            step(w, i, FB_ATTEMPT_ON_DURABLE_FAILED);
}

/* A durable value is given up, with a durable record of that. */
static void do_gone(struct world *w)
{
    w->sure &= (uint16_t)~bit(w->value_gen);
    w->maybe &= (uint16_t)~bit(w->value_gen);
    drop_value_memory(w);
    set_value(w, FB_ATTEMPT_VALUE_NONE);
}

void world_play(struct world *w, const struct event *event)
{
    unsigned who = event->who;
    switch ((enum event_kind)event->kind) {
    case EV_PUT:
        do_put(w, event);
        break;
    case EV_SPACE:
        do_space(w, who);
        break;
    case EV_COMMIT:
        do_commit(w, who);
        break;
    case EV_RELEASE:
        do_release(w, who);
        break;
    case EV_DURABLE:
    case EV_FAILED:
        do_durable(w, who, event->kind == EV_DURABLE);
        break;
    case EV_EXPIRED:
        step(w, who, FB_ATTEMPT_ON_EXPIRED);
        break;
    case EV_DEADLINE:
        step(w, who, FB_ATTEMPT_ON_DEADLINE);
        break;
    case EV_LOST:
    case EV_DEAD:
        do_client_gone(w, who, event->kind == EV_DEAD);
        break;
    case EV_REMOVE:
        do_remove(w);
        break;
    case EV_REMOVE_DURABLE:
    case EV_REMOVE_FAILED:
        do_remove_end(w, event->kind == EV_REMOVE_DURABLE);
        break;
    case EV_EPOCH:
        do_epoch(w);
        break;
    case EV_CLEAN:
        do_clean(w);
        break;
    case EV_CLEAN_DONE:
    case EV_CLEAN_FAILED:
        do_clean_end(w, event->kind == EV_CLEAN_DONE);
        break;
    case EV_GONE:
        do_gone(w);
        break;
    case EVENT_KINDS:
        FB_UNREACHABLE();
    }
    w->old_on_disk = 0; /* looked up when it is needed */
}

/* ---- which events can happen --------------------------------------------------------------- */

static void add(struct events *events, enum event_kind kind, unsigned who, unsigned how)
{
    FB_ASSERT(events->count < EVENTS_MAX);
    events->event[events->count++] = (struct event){(uint8_t)kind, (uint8_t)who, (uint8_t)how};
}

/* Clients without a put are alike: one of them stands for all. */
static void add_puts(struct events *events, const struct world *w)
{
    if (w->puts == OPS_MAX)
        return;
    for (unsigned c = 0; c < CLIENTS; c++) {
        bool busy = w->client[c] != CLIENT_ALIVE, fresh = true;
        for (unsigned i = 0; i < w->ops; i++) {
            busy = busy || (w->op[i].client == c && w->op[i].answers == 0);
            fresh = fresh && w->op[i].client != c;
        }
        for (unsigned how = 0; !busy && how < KINDS; how++)
            add(events, EV_PUT, c, how);
        if (!busy && fresh)
            break;
    }
}

static void add_op(struct events *events, const struct world *w, unsigned i)
{
    const struct op *op = &w->op[i];
    bool alive = w->client[op->client] == CLIENT_ALIVE;
    if (op->state == FB_ATTEMPT_QUEUED && free_extent(w) != NONE)
        add(events, EV_SPACE, i, 0);
    if (alive && op->view != NONE)
        add(events, EV_COMMIT, i, 0);
    if (alive && (op->view != NONE || op->answers == 0))
        add(events, EV_RELEASE, i, 0);
    if (op->io != 0) {
        add(events, EV_DURABLE, i, 0);
        add(events, EV_FAILED, i, 0);
    }
    if (op->state == FB_ATTEMPT_WRITING)
        add(events, EV_EXPIRED, i, 0);
    if (op->answers == 0)
        add(events, EV_DEADLINE, i, 0);
}

void world_events(struct events *events, const struct world *w)
{
    events->count = 0;
    add_puts(events, w);
    for (unsigned i = 0; i < w->ops; i++)
        add_op(events, w, i);
    for (unsigned c = 0; c < CLIENTS; c++) {
        bool has_op = false;
        for (unsigned i = 0; i < w->ops; i++)
            has_op = has_op || (w->op[i].client == c && w->op[i].state != FB_ATTEMPT_ENDED);
        if (has_op && w->client[c] == CLIENT_ALIVE)
            add(events, EV_LOST, c, 0);
        if (has_op && w->client[c] != CLIENT_DEAD)
            add(events, EV_DEAD, c, 0);
    }
    if (w->removes < REMOVES_MAX && w->remove_pending == 0)
        add(events, EV_REMOVE, 0, 0);
    if (w->remove_pending != 0) {
        add(events, EV_REMOVE_DURABLE, 0, 0);
        add(events, EV_REMOVE_FAILED, 0, 0);
    }
    if (w->epoch == 0 && w->puts != 0)
        add(events, EV_EPOCH, 0, 0);
    if (w->value_gen != 0 && w->value == FB_ATTEMPT_VALUE_DIRTY && w->clean_gen == 0)
        add(events, EV_CLEAN, 0, 0);
    if (w->clean_gen != 0) {
        add(events, EV_CLEAN_DONE, 0, 0);
        add(events, EV_CLEAN_FAILED, 0, 0);
    }
    if (w->value_gen != 0 && w->value == FB_ATTEMPT_VALUE_CLEAN)
        add(events, EV_GONE, 0, 0);
}

/* ---- what must hold in every state --------------------------------------------------------- */

static bool holds_memory(unsigned state)
{
    return state == FB_ATTEMPT_WRITING || state == FB_ATTEMPT_COMMITTING ||
           state == FB_ATTEMPT_ORPHAN || state == FB_ATTEMPT_QUARANTINE ||
           state == FB_ATTEMPT_DRAINING;
}

static void check_op(const struct world *w, unsigned i)
{
    const struct op *op = &w->op[i];
    /* A late scribble is not an event: whoever may still write is taken to do so at any time. */
    if (op->view != NONE && w->client[op->client] != CLIENT_DEAD)
        check(w->owner[op->view] == i + 1, "a client may write into memory of somebody else");
    check(holds_memory(op->state) == (op->extent != NONE), "memory is lost, or held by a waiter");
    if (op->extent != NONE)
        check(w->owner[op->extent] == i + 1, "two owners of one extent");
    if (op->state == FB_ATTEMPT_QUARANTINE)
        check(op->view != NONE && w->client[op->client] != CLIENT_DEAD,
              "quarantine without a cause");
    if (op->state == FB_ATTEMPT_DRAINING || op->state == FB_ATTEMPT_COMMITTING ||
        op->state == FB_ATTEMPT_ORPHAN)
        check(op->io != 0, "waits for a device that is not at work");
    bool open = op->state == FB_ATTEMPT_WAITING || op->state == FB_ATTEMPT_FLUSH_WAIT ||
                op->state == FB_ATTEMPT_QUEUED || op->state == FB_ATTEMPT_WRITING ||
                op->state == FB_ATTEMPT_COMMITTING;
    check(open == (op->answers == 0), "a put without a result, or with one too early");
    if (open)
        check(op->epoch == w->epoch, "an attempt of an old epoch lives on");
}

static void check_line(const struct world *w)
{
    unsigned waiting = 0, flush_wait = 0, writers = 0;
    for (unsigned i = 0; i < w->ops; i++) {
        unsigned state = w->op[i].state;
        waiting += state == FB_ATTEMPT_WAITING;
        flush_wait += state == FB_ATTEMPT_FLUSH_WAIT;
        writers += state == FB_ATTEMPT_QUEUED || state == FB_ATTEMPT_WRITING ||
                   state == FB_ATTEMPT_COMMITTING || state == FB_ATTEMPT_ORPHAN;
    }
    check(writers <= 1, "two writers of one key");
    check(writers == w->writers && waiting == w->waiting && flush_wait == w->flush_wait,
          "the slot has lost count");
    check(writers != 0 || waiting == 0, "a waiter was left without a writer");
    check(flush_wait == 0 || w->value == FB_ATTEMPT_VALUE_DIRTY,
          "a waiter was left without a flush");
    check((w->value != FB_ATTEMPT_VALUE_NONE) == (w->value_gen != 0),
          "the slot is wrong on the value");
}

/*
 * A crash now could leave any of the generations on the device that are not certainly killed or
 * certainly outdone by a newer one. None may be older than what was acknowledged, or removed.
 */
static void check_disk(const struct world *w)
{
    for (unsigned g = w->tomb + 1u; g <= w->gens; g++) {
        if (((w->sure | w->maybe) & bit(g)) == 0 || (w->sure >> (g + 1)) != 0)
            continue;
        check(g >= w->acked, "a crash would bring an older generation back");
        check(g > w->removed_acked, "a crash would bring a removed generation back");
    }
}

void world_check(const struct world *w)
{
    for (unsigned i = 0; i < w->ops; i++)
        check_op(w, i);
    check_line(w);
    if (w->value_gen != 0) {
        check(w->owner[w->value_extent] == OWNER_VALUE, "a value does not own its memory");
        check(w->content[w->value_extent] == w->value_gen,
              "a value is not the bytes of one attempt");
        check(w->value_gen > w->removed && w->value_epoch == w->epoch,
              "a removed value is readable");
        check(w->value_gen >= w->acked, "a value older than the newest acknowledged is readable");
    }
    check_disk(w);
}

/* ---- four futures -------------------------------------------------------------------------- */

enum future {
    FUTURE_ALL_ACT,
    FUTURE_HOLDERS_STOP
};

/* Whether an event belongs to the future, given which clients have stopped. */
static bool is_in_future(const struct world *w, const struct event *event, enum future future,
                         unsigned stopped)
{
    unsigned client =
        event->kind >= EV_SPACE && event->kind <= EV_DEADLINE ? w->op[event->who].client : CLIENTS;
    const struct op *op = &w->op[event->who];
    switch (event->kind) {
    case EV_SPACE:
    case EV_DURABLE:
    case EV_REMOVE_DURABLE:
    case EV_CLEAN:
    case EV_CLEAN_DONE:
        return true;
    case EV_COMMIT:
        return ((stopped >> client) & 1) == 0;
    case EV_EXPIRED:
        return future == FUTURE_HOLDERS_STOP && ((stopped >> client) & 1) != 0;
    case EV_DEAD:
        return future == FUTURE_ALL_ACT && w->client[event->who] == CLIENT_LOST;
    case EV_GONE:
        return free_extent(w) == NONE && w->waiting + w->flush_wait + w->writers != 0;
    case EV_DEADLINE:
        /* All memory is in the hands of stopped clients: no wait can end but by its deadline. */
        return future == FUTURE_HOLDERS_STOP && op->state == FB_ATTEMPT_QUEUED &&
               free_extent(w) == NONE && w->value_gen == 0 && w->clean_gen == 0;
    default:
        return false;
    }
}

static void check_end(const struct world *w, enum future future)
{
    unsigned used = 0;
    for (unsigned i = 0; i < w->ops; i++) {
        check(w->op[i].answers == 1, "a put never ends");
        if (future == FUTURE_ALL_ACT)
            check(w->op[i].state == FB_ATTEMPT_ENDED, "an attempt never ends");
    }
    for (unsigned e = 0; e < EXTENTS; e++)
        used += w->owner[e] != 0;
    if (future == FUTURE_ALL_ACT)
        check(used == (w->value_gen != 0), "memory is lost");
    check(w->waiting + w->flush_wait + w->writers == 0, "the key stays busy");
}

static void play_future(const struct world *from, enum future future)
{
    struct world w = *from;
    unsigned stopped = 0;
    for (unsigned i = 0; future == FUTURE_HOLDERS_STOP && i < w.ops; i++)
        if (w.op[i].view != NONE)
            stopped |= 1u << w.op[i].client;
    for (unsigned n = 0; n < SETTLE_MAX && world_violation == NULL; n++) {
        struct events events;
        world_events(&events, &w);
        unsigned pick = 0;
        while (pick < events.count && !is_in_future(&w, &events.event[pick], future, stopped))
            pick++;
        if (pick == events.count)
            break;
        world_play(&w, &events.event[pick]);
    }
    if (world_violation == NULL)
        check_end(&w, future);
}

/* Every put has its result as soon as all deadlines have passed, whatever anybody does. */
static void play_deadlines(const struct world *from)
{
    struct world w = *from;
    for (unsigned i = w.ops; i-- > 0;)
        if (w.op[i].answers == 0)
            step(&w, i, FB_ATTEMPT_ON_DEADLINE);
    for (unsigned i = 0; i < w.ops; i++)
        check(w.op[i].answers == 1, "a deadline passed without a result");
}

/* A shutdown answers all but those whom the device answers. */
static void play_shutdown(const struct world *from)
{
    struct world w = *from;
    step_all(&w, FB_ATTEMPT_ON_SHUTDOWN);
    for (unsigned i = 0; i < w.ops; i++)
        check(w.op[i].answers == 1 || w.op[i].state == FB_ATTEMPT_COMMITTING,
              "a shutdown left a put without a result");
}

void world_check_futures(const struct world *w)
{
    play_future(w, FUTURE_ALL_ACT);
    play_future(w, FUTURE_HOLDERS_STOP);
    play_deadlines(w);
    play_shutdown(w);
}

/* ---- one world for all that differ in names only ------------------------------------------- */

/* Puts that have ended and can do nothing any more are forgotten. */
static void forget_ended(struct world *w)
{
    unsigned n = 0;
    uint8_t now[OPS_MAX + 1] = {0};
    for (unsigned i = 0; i < w->ops; i++) {
        const struct op *op = &w->op[i];
        if (op->state == FB_ATTEMPT_ENDED && op->view == NONE && op->io == 0)
            continue;
        now[i + 1] = (uint8_t)(n + 1);
        w->op[n++] = *op;
    }
    for (unsigned e = 0; e < EXTENTS; e++)
        if (w->owner[e] <= OPS_MAX)
            w->owner[e] = now[w->owner[e]];
    memset(&w->op[n], 0, (w->ops - n) * sizeof w->op[0]);
    w->ops = (uint8_t)n;
}

/* Clients by the order of their puts, then those that can still begin, then the others. */
static void name_clients(struct world *w)
{
    uint8_t now[CLIENTS], old[CLIENTS], n = 0;
    memset(now, NONE, sizeof now);
    memcpy(old, w->client, sizeof old);
    for (unsigned i = 0; i < w->ops; i++)
        if (now[w->op[i].client] == NONE)
            now[w->op[i].client] = n++;
    unsigned with_puts = n;
    for (unsigned c = 0; c < CLIENTS; c++)
        if (now[c] == NONE && old[c] == CLIENT_ALIVE)
            now[c] = n++;
    for (unsigned c = 0; c < CLIENTS; c++)
        if (now[c] == NONE)
            now[c] = n++;
    for (unsigned c = 0; c < CLIENTS; c++)
        w->client[now[c]] = now[c] >= with_puts && old[c] != CLIENT_ALIVE ? CLIENT_DEAD : old[c];
    for (unsigned i = 0; i < w->ops; i++)
        w->op[i].client = now[w->op[i].client];
}

static void name_extent(uint8_t *extent, uint8_t *now, uint8_t *n)
{
    if (*extent == NONE)
        return;
    if (now[*extent] == NONE)
        now[*extent] = (*n)++;
    *extent = now[*extent];
}

/* Extents by the order of who uses them; the content of free ones does not matter. */
static void name_extents(struct world *w)
{
    uint8_t now[EXTENTS], n = 0, owner[EXTENTS], content[EXTENTS];
    memset(now, NONE, sizeof now);
    memcpy(owner, w->owner, sizeof owner);
    memcpy(content, w->content, sizeof content);
    for (unsigned i = 0; i < w->ops; i++) {
        name_extent(&w->op[i].extent, now, &n);
        name_extent(&w->op[i].view, now, &n);
    }
    name_extent(&w->value_extent, now, &n);
    name_extent(&w->clean_extent, now, &n);
    for (uint8_t e = 0; e < EXTENTS; e++) {
        uint8_t to = e;
        name_extent(&to, now, &n);
        w->owner[to] = owner[e];
        w->content[to] = owner[e] != 0 ? content[e] : 0;
    }
}

/* Generations matter by their order alone. */
static void name_generations(struct world *w)
{
    uint8_t *const named[] = {&w->value_gen, &w->removed, &w->remove_pending, &w->removed_acked,
                              &w->acked,     &w->tomb,    &w->clean_gen};
    uint32_t used = 0;
    w->sure &= (uint16_t) ~(bit(w->tomb + 1u) - 1u);
    w->maybe &= (uint16_t) ~((bit(w->tomb + 1u) - 1u) | w->sure);
    for (unsigned i = 0; i < sizeof named / sizeof named[0]; i++)
        used |= bit(*named[i]);
    for (unsigned i = 0; i < w->ops; i++)
        used |= (uint32_t)(bit(w->op[i].grant) | bit(w->op[i].early_gen) | bit(w->op[i].kill));
    for (unsigned e = 0; e < EXTENTS; e++)
        used |= bit(w->content[e]);
    used |= (uint32_t)(w->sure | w->maybe);

    uint8_t now[GENS_MAX] = {0}, n = 0;
    uint16_t sure = 0, maybe = 0;
    for (unsigned g = 1; g < GENS_MAX; g++) {
        if (((used >> g) & 1) == 0)
            continue;
        now[g] = ++n;
        sure |= (w->sure & bit(g)) != 0 ? bit(n) : 0;
        maybe |= (w->maybe & bit(g)) != 0 ? bit(n) : 0;
    }
    for (unsigned i = 0; i < sizeof named / sizeof named[0]; i++)
        *named[i] = now[*named[i]];
    for (unsigned i = 0; i < w->ops; i++) {
        w->op[i].grant = now[w->op[i].grant];
        w->op[i].early_gen = now[w->op[i].early_gen];
        w->op[i].kill = now[w->op[i].kill];
    }
    for (unsigned e = 0; e < EXTENTS; e++)
        w->content[e] = now[w->content[e]];
    w->sure = sure;
    w->maybe = maybe;
    w->gens = n;
}

void world_rename(struct world *w)
{
    forget_ended(w);
    name_clients(w);
    name_extents(w);
    name_generations(w);
}

struct world world_empty(void)
{
    struct world w;
    memset(&w, 0, sizeof w);
    w.value_extent = w.clean_extent = NONE;
    return w;
}

void world_print(const struct world *w, const struct event *event)
{
    printf("    %-14s %u.%u |", event_kind_names[event->kind], event->who, event->how);
    for (unsigned i = 0; i < w->ops; i++)
        printf(" c%u:%s/g%u/k%u/r%d", w->op[i].client, fb_attempt_state_name(w->op[i].state),
               w->op[i].grant, w->op[i].kind, w->op[i].result);
    printf(" | value g%u acked g%u removed g%u/g%u disk %x/%x tomb g%u\n", w->value_gen, w->acked,
           w->removed, w->removed_acked, w->sure, w->maybe, w->tomb);
}
