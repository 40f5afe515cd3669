/*
 * attempt_world.h - a small world around the attempts on one key: three clients, three extents of
 * memory, one value, one device. For test/model/attempt_test.c, which says what is modelled.
 *
 * A world is a plain value without padding: copied, compared and hashed by its bytes.
 */
#ifndef FB_TEST_ATTEMPT_WORLD_H
#define FB_TEST_ATTEMPT_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/attempt.h"

#define CLIENTS    3
#define EXTENTS    3
#define OPS_MAX    4
#define KINDS      4 /* plain, upsert, and both with `through` */
#define EVENTS_MAX 96

enum client_state {
    CLIENT_ALIVE,
    CLIENT_LOST,
    CLIENT_DEAD
};

struct op {
    int16_t result;
    uint8_t state, kind, grant; /* struct fb_attempt, narrowed */
    uint8_t client;
    uint8_t extent;  /* memory it holds, or NONE */
    uint8_t view;    /* memory that its client thinks it may touch, or NONE */
    uint8_t answers; /* results given */
    uint8_t io;      /* the device is at work for it */
    uint8_t epoch;
    uint8_t early_gen; /* generation given on arrival, if that duty is off */
    uint8_t kill;      /* its commit durably kills all generations up to this one */
    uint8_t pad;
};

struct world {
    struct op op[OPS_MAX];
    uint16_t sure, maybe; /* generations on the device: for certain, perhaps; one bit each */
    uint8_t ops;          /* puts that have not ended, or whose client may still write */
    uint8_t puts;         /* puts so far */
    uint8_t client[CLIENTS];
    uint8_t owner[EXTENTS];   /* 0 free, op number + 1, or OWNER_... */
    uint8_t content[EXTENTS]; /* grant of the attempt whose bytes they are */
    uint8_t waiting, flush_wait, writers, value, old_on_disk; /* struct fb_attempt_slot, narrowed */
    uint8_t value_extent, value_gen, value_epoch;
    uint8_t gens, epoch;
    uint8_t removed;        /* generation of the newest remove */
    uint8_t remove_pending; /* its tombstone is on its way */
    uint8_t removed_acked;
    uint8_t removes;
    uint8_t acked; /* newest generation answered as stored */
    uint8_t tomb;  /* all generations up to this one are durably killed */
    uint8_t clean_gen, clean_extent, clean_epoch;
    uint8_t pad;
};

_Static_assert(sizeof(struct op) == 14, "no padding: worlds are compared by their bytes");
_Static_assert(sizeof(struct world) == 14 * OPS_MAX + 4 + 32, "the same");

/* Duties of the caller of the table that can be switched off (attempt.h, "what the engine owes").
 */
#define DUTY_LIST(X)                                                                        \
    X(LINE_IN_ORDER, "the line is rechecked from first to last")                            \
    X(GENERATION_AT_GRANT, "a generation is given with the grant, not on arrival")          \
    X(FLIGHT_COUNTS, "writes in flight and failed ones count as older ones on disk")        \
    X(UNDURABLE_REMOVE_COUNTS, "what a remove hides counts until its tombstone is durable") \
    X(COMMIT_KILLS_ALL, "a commit kills what the cleaner lays out meanwhile as well")       \
    X(FLUSH_PINS, "memory that is being flushed is not freed")

#define MEMBER(symbol, text) DUTY_##symbol,
enum duty {
    DUTY_LIST(MEMBER) DUTIES
};
#undef MEMBER

/* X(symbol, what happens) */
#define EVENT_LIST(X)                                         \
    X(PUT, "a client puts")                                   \
    X(SPACE, "memory for the writer")                         \
    X(COMMIT, "a client writes, perhaps late, and commits")   \
    X(RELEASE, "a client gives up, or acknowledges")          \
    X(DURABLE, "the device has done what a commit waits for") \
    X(FAILED, "the device has failed at it")                  \
    X(EXPIRED, "a grant runs out")                            \
    X(DEADLINE, "a put runs out of time")                     \
    X(LOST, "a session ends")                                 \
    X(DEAD, "a client is proven dead")                        \
    X(REMOVE, "a remove arrives")                             \
    X(REMOVE_DURABLE, "its tombstone is durable")             \
    X(REMOVE_FAILED, "its tombstone has failed")              \
    X(EPOCH, "the epoch is bumped")                           \
    X(CLEAN, "the cleaner lays the value out")                \
    X(CLEAN_DONE, "that is durable")                          \
    X(CLEAN_FAILED, "that has failed")                        \
    X(GONE, "a durable value is given up")

#define MEMBER(symbol, text) EV_##symbol,
enum event_kind {
    EVENT_LIST(MEMBER) EVENT_KINDS
};
#undef MEMBER
struct event {
    uint8_t kind;
    uint8_t who; /* op or client */
    uint8_t how; /* kind of a put */
};

struct events {
    unsigned count;
    struct event event[EVENTS_MAX];
};

/* The duties that are switched off, one bit each. */
extern uint32_t world_duties_off;
/* The first violation that was seen, or NULL. */
extern const char *world_violation;
/* Pairs of state and event that were met. */
extern uint8_t world_met[FB_ATTEMPT_STATES][FB_ATTEMPT_EVENTS];

/* A key without value and without puts. */
struct world world_empty(void);

/* All events that can happen now. */
void world_events(struct events *events, const struct world *w);

/* Lets an event happen; may set world_violation. */
void world_play(struct world *w, const struct event *event);

/* Checks what must hold in every state; may set world_violation. */
void world_check(const struct world *w);

/* Plays four futures to their ends, on copies; may set world_violation. */
void world_check_futures(const struct world *w);

/* Gives all worlds that differ in names only the same bytes. */
void world_rename(struct world *w);

/* Prints an event and the world after it, on one line. */
void world_print(const struct world *w, const struct event *event);

#endif
