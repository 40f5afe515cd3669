/*
 * A client process of fb-crash: loads the server through the client library, judges every answer
 * against the state outside of the store, and may be stopped or killed at any instruction.
 */
#ifndef TEST_CRASH_CLIENT_H
#define TEST_CRASH_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "forebay/forebay.h"
#include "test/crash/state.h"

/* How long a call of a client may take. */
#define CRASH_CALL_MS 4000

struct crash_load {
    struct crash_state *state;
    const char *address;
    unsigned number; /* of the client, below CRASH_CLIENTS */
    uint64_t seed;
};

/* The child of a fork: loads until state->stop is set. Does not return. */
void crash_client_main(const struct crash_load *load) __attribute__((noreturn));

/* Opens a handle on one of the namespaces; `stream`: without shared memory. As fb_client_open(). */
int crash_open(const char *address, unsigned ns, bool stream, uint32_t delay_ms,
               struct fb_client **out, char *why, size_t why_bytes);

/* A key that was acknowledged as persisted, and missed. */
struct crash_missed {
    unsigned ns, index;
    bool shared;
    const void *key;
    size_t key_bytes;
    uint64_t generation;   /* of the newest value that was stored or seen */
    uint64_t persisted_ms; /* when it was acknowledged, or last seen */
    /* After a restart: the store's durable history may have forgotten what was given up before
     * this; 0: nothing. Under load the answer itself says how far the store remembers. */
    bool after_restart;
    uint64_t history_ms;
};

/* The store must have noted that it gave the key up. Notes the violation if not; true if it has. */
bool crash_given_up(struct crash_state *state, struct fb_client *client,
                    const struct crash_missed *missed, const char *where);

#endif
