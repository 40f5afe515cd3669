/*
 * What a store must hold, kept outside of it: a file that all processes of fb-crash map. It
 * survives the server, and any client that is killed at any instruction.
 *
 * Two classes of keys. A key of one's own has many contents, numbered from 1; it is written by one
 * client at a time, which owns the key meanwhile, and read by all at any time. A shared key has one
 * content, as the blocks of a prefix have, and is put by many clients at once.
 *
 * Each key of one's own has one atomic word for the newest acknowledged operation, and a few for
 * operations in doubt: begun, and not known to have ended. The order of the stores makes every
 * state in between a cautious one: in doubt before the operation begins, acknowledged before the
 * doubt is taken away. Doubts end at the next restart, when what is there is looked at.
 */
#ifndef TEST_CRASH_STATE_H
#define TEST_CRASH_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CRASH_NAMESPACES  2
#define CRASH_OWN_KEYS    160 /* of each namespace */
#define CRASH_SHARED_KEYS 48
#define CRASH_CLIENTS     4
#define CRASH_DOUBTS      4
#define CRASH_KEY_BYTES   1024
#define CRASH_VALUE_BYTES (3u << 20) /* the longest value */
#define CRASH_TEXT_BYTES  400

/* X(symbol, text, needed): counters of what a run did; `needed`: 1: a long run must show it, 2: one
 * of 100 cycles too. */
#define CRASH_COUNTER_LIST(X)                                         \
    X(CYCLES, "cycles", 1)                                            \
    X(ERAS, "fresh devices", 1)                                       \
    X(KILLS, "kill -9 of the server", 2)                              \
    X(FORGET, "cycles that forgot unflushed writes", 2)               \
    X(CLIENT_KILLS, "clients killed", 2)                              \
    X(CLIENT_STOPS, "clients stopped", 2)                             \
    X(CLIENT_STOP_KILLS, "clients killed while stopped", 1)           \
    X(PUTS, "puts stored", 1)                                         \
    X(PUTS_EXISTS, "puts answered EXISTS", 1)                         \
    X(PUTS_LARGE, "puts of 1 MiB and more", 1)                        \
    X(PUTS_TINY, "puts of less than 16 bytes", 1)                     \
    X(PUTS_OTHER, "puts with another result", 0)                      \
    X(PUTS_SHARED, "puts of shared keys", 1)                          \
    X(UPSERTS, "upserts stored", 1)                                   \
    X(REMOVES, "removes", 1)                                          \
    X(REMOVES_MISS, "removes of nothing", 1)                          \
    X(BUMPS, "epoch bumps", 1)                                        \
    X(STALE, "calls with a stale epoch", 1)                           \
    X(WAITS, "keys waited for until persisted", 1)                    \
    X(DROPS, "keys dropped from DRAM", 1)                             \
    X(HITS, "hits under load", 1)                                     \
    X(HITS_SSD, "hits from SSD under load", 1)                        \
    X(MISSES, "misses under load", 1)                                 \
    X(RANGES, "range reads", 1)                                       \
    X(HELD, "reads within a hold", 1)                                 \
    X(ACK_PERSISTED, "acknowledged as persisted", 1)                  \
    X(DOUBTS, "operations in doubt at a kill", 1)                     \
    X(CHECKED, "keys checked after a restart", 1)                     \
    X(CHECKED_PERSISTED, "acknowledged-persisted keys checked", 2)    \
    X(CHECKED_HITS, "hits after a restart", 1)                        \
    X(GIVEN_UP, "missed with a reclaim record", 1)                    \
    X(BEYOND_HISTORY, "missed, older than the kept history", 0)       \
    X(DOUBT_NEW, "doubts that had come true", 1)                      \
    X(DAMAGED, "cycles with a damaged file", 2)                       \
    X(DAMAGE_FLIP, "bits flipped", 1)                                 \
    X(DAMAGE_SWAP, "blocks swapped", 1)                               \
    X(DAMAGE_ZERO, "blocks zeroed", 1)                                \
    X(DAMAGE_CUT, "files cut short", 1)                               \
    X(DAMAGE_OLD, "old blocks put back", 1)                           \
    X(DAMAGE_MISSES, "persisted keys missed after damage", 1)         \
    X(DAMAGE_OLDER, "older or removed contents back after damage", 0) \
    X(DAMAGE_REFUSED, "starts refused after damage", 0)               \
    X(SAMPLES, "looks at memory and disk from outside", 1)

enum crash_counter {
#define X(symbol, text, needed) CRASH_N_##symbol,
    CRASH_COUNTER_LIST(X)
#undef X
    CRASH_COUNTERS
};

/* Violations. */
enum crash_failure {
    CRASH_FAIL_LOST,
    CRASH_FAIL_WRONG,
    CRASH_FAIL_REMOVED,
    CRASH_FAIL_OLDER,
    CRASH_FAIL_OTHER,
    CRASH_FAIL_KINDS
};

/* The newest acknowledged operation on a key, in one word. */
#define CRASH_PERSISTED 1u /* acknowledged as persisted */
#define CRASH_GONE      2u /* removed, or seen to be given up: must not come back */
struct crash_word {
    uint32_t content; /* 24 bits; 0: never put */
    uint16_t epoch;   /* low bits of the namespace's epoch at the put */
    uint8_t flags;
};

/* An operation in doubt: a put of a content, or a remove. */
#define CRASH_DOUBT_PUT    1u
#define CRASH_DOUBT_REMOVE 2u

/* The last things that happened to a key, to be printed with a violation. */
#define CRASH_EVENTS 24
struct crash_event {
    uint64_t ms; /* wall clock at the end of the call */
    uint32_t cycle;
    uint32_t content;
    int32_t result;
    uint8_t who; /* client; 255: the check after a restart */
    char what;   /* p put, u upsert, r remove, g get, w wait, d drop, c check */
    uint8_t persisted;
    uint8_t reason;
};
struct crash_journal {
    _Atomic uint32_t next;
    struct crash_event events[CRASH_EVENTS];
};

struct crash_key {
    struct crash_journal journal;
    _Atomic uint64_t acked;                /* crash_pack() of a struct crash_word */
    _Atomic uint64_t doubts[CRASH_DOUBTS]; /* the same; flags: CRASH_DOUBT_...; 0: free */
    _Atomic uint32_t next;                 /* contents up to this one were begun */
    _Atomic uint32_t owner;                /* client number + 1; 0: nobody */
    _Atomic uint64_t persisted_ms;         /* wall clock of that acknowledgement */
    _Atomic uint64_t generation;           /* of the newest value that was stored or seen */
};

/*
 * A shared key has no owner, so the answers to several clients may be noted in another order than
 * they were given. One that says "persisted" counts only if no put was noted since its call began
 * that had stored the value anew in memory alone (the store may do that once it has given the old
 * one up).
 */
struct crash_shared_key {
    struct crash_journal journal;
    _Atomic uint64_t acked; /* content 1 and the epoch of the newest acknowledged put */
    _Atomic uint32_t begun; /* epoch + 1 of the newest put that was begun; 0: none */
    _Atomic uint64_t persisted_ms;
    _Atomic uint64_t generation; /* of the newest value that was stored or seen */
    _Atomic uint64_t cached_ns;  /* when it was last noted as stored and not persisted */
};

struct crash_namespace {
    struct crash_key own[CRASH_OWN_KEYS];
    struct crash_shared_key shared[CRASH_SHARED_KEYS];
    _Atomic uint64_t shared_doubts; /* of clients that were killed: a bit for each shared key */
    _Atomic uint64_t epoch;         /* newest acknowledged */
};

/* One client process, as the others see it. */
struct crash_client {
    _Atomic uint64_t call_began_ns; /* 0: not in a call */
    _Atomic uint32_t call_limit_ms;
    _Atomic uint32_t calls;
    _Atomic uint64_t shared[CRASH_NAMESPACES]; /* shared keys that it is putting: a bit for each */
};

_Static_assert(CRASH_SHARED_KEYS <= 64, "a bit for each shared key");

struct crash_state {
    uint64_t seed;
    _Atomic uint32_t cycle;
    atomic_bool stop;    /* clients end */
    atomic_bool tainted; /* the file was damaged: only wrong bytes count */
    struct crash_namespace ns[CRASH_NAMESPACES];
    struct crash_client client[CRASH_CLIENTS];
    _Atomic uint64_t count[CRASH_COUNTERS];
    _Atomic uint64_t failures[CRASH_FAIL_KINDS];
    atomic_bool has_text;
    char text[CRASH_TEXT_BYTES];  /* the first failure */
    struct crash_journal journal; /* of its key */
};

/* Maps a fresh state, in a file. NULL with errno. */
struct crash_state *crash_state_map(const char *path, uint64_t seed);
void crash_state_unmap(struct crash_state *state);

/* Notes a generation of a key, if it is newer than what was noted before. */
void crash_generation(_Atomic uint64_t *newest, uint64_t generation);
void crash_count(struct crash_state *state, enum crash_counter which, uint64_t n);
/* Notes a violation; the first one's text is kept. */
void crash_fail(struct crash_state *state, enum crash_failure kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool crash_failed(const struct crash_state *state);
/* The same, of a key: its journal is kept with the text. */
void crash_fail_key(struct crash_state *state, enum crash_failure kind,
                    const struct crash_journal *journal, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Writes down what happened to a key; the time and the cycle are added. */
void crash_note(const struct crash_state *state, struct crash_journal *journal,
                struct crash_event event);

/* ---- keys and values ---- */

/* The bytes of a key; some are 1 byte and some the longest possible. Returns their number. */
size_t crash_key_name(bool shared, unsigned index, unsigned char key[CRASH_KEY_BYTES]);
/* How long a content is: 1 byte to CRASH_VALUE_BYTES, mostly short. */
uint32_t crash_value_bytes(const struct crash_state *state, unsigned ns, bool shared,
                           unsigned index, uint32_t content);
/* Writes, or compares, bytes of a content. */
void crash_value_fill(const struct crash_state *state, unsigned ns, bool shared, unsigned index,
                      uint32_t content, unsigned char *out, uint32_t bytes);
bool crash_value_check(const struct crash_state *state, unsigned ns, bool shared, unsigned index,
                       uint32_t content, uint64_t offset, const unsigned char *data,
                       uint64_t bytes);

/* ---- what may be there ---- */

uint64_t crash_pack(struct crash_word word);
struct crash_word crash_unpack(uint64_t packed);

/* What a key may hold, taken before a read begins. */
struct crash_view {
    uint32_t next;
    uint64_t doubts[CRASH_DOUBTS];
    struct crash_word acked;
};
/* Looks at a key; the order of the loads matches that of the writers' stores. */
void crash_look(const struct crash_key *key, struct crash_view *view);
bool crash_view_in_doubt(const struct crash_view *view);

/* Bytes that a get has returned. */
struct crash_found {
    unsigned ns, index;
    uint16_t epoch;       /* of the handle that read */
    uint64_t value_bytes; /* of the whole value */
    uint64_t offset, bytes;
    const unsigned char *data;
};

enum crash_verdict {
    CRASH_RIGHT,
    CRASH_WRONG_BYTES,
    CRASH_REMOVED_BACK,
    CRASH_OLDER
};
/*
 * Judges a hit on a key of one's own. `before` was taken before the read; *content is the one
 * found, 0 if the bytes are of none that was ever put.
 */
enum crash_verdict crash_judge(const struct crash_state *state, const struct crash_view *before,
                               const struct crash_found *found, uint32_t *content);
/* Judges, and notes what is wrong; `where` says who read. Returns the content or 0. */
uint32_t crash_judge_hit(struct crash_state *state, const struct crash_view *before,
                         const struct crash_found *found, const char *where);
/* The same for a shared key. */
bool crash_judge_shared(struct crash_state *state, const struct crash_found *found,
                        const char *where);

/* ---- what a client does to a key of its own ---- */

bool crash_own(struct crash_key *key, unsigned client);
void crash_disown(struct crash_key *key);
/* Notes an operation in doubt. Returns its slot, or -1 if there are too many. */
int crash_doubt(struct crash_key *key, struct crash_word what);
void crash_undoubt(struct crash_key *key, int slot);
/* The operation of this slot is acknowledged: `word` is what holds now. */
void crash_acknowledge(struct crash_key *key, int slot, struct crash_word word);

/* Wall clock in milliseconds, as the server writes it into its history. */
uint64_t crash_wall_ms(void);

#endif
