/*
 * world.h - one simulated node with its clients, its device and everything that goes wrong, from
 * one seed; shared by the files of the simulator.
 *
 * world.c    the node's life: start, pump, kill, power cut, restart; the loop over events
 * knobs.c    what is drawn for a seed: sizes, latencies, faults, weights, which features are off
 * client.c   clients: operations, late copies, stops, deaths
 * answer.c   what a client does with each event of the shard
 * checker.c  the contract, from calls and answers alone
 * trace.c    the last lines of what happened, and the violation
 * wire*.c    the second kind of clients: they speak the protocol to the node's sessions
 * report.c   counters over many seeds
 * points.c   every crash point of a scripted load
 * main.c     options, workers, replay lines
 */
#ifndef TEST_SIM_WORLD_H
#define TEST_SIM_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/heap.h"
#include "base/prng.h"
#include "engine/shard.h"
#include "io/sim.h"

#define SIM_CLIENTS_MAX    16
#define SIM_SLOTS_MAX      6
#define SIM_SPACES         2
#define SIM_KEYS           96 /* of a namespace */
#define SIM_VERSIONS_MAX   16384
#define SIM_LOOKUP_MAX     32
#define SIM_RUNS_MAX       512
#define SIM_HEAP_MAX       4096
#define SIM_HOLDS_MAX      512
#define SIM_PARTS_MAX      512
#define SIM_TEXT_MAX       256
#define SIM_TRACE_LINES    400
#define SIM_EVENTS_MIN     10000
#define SIM_OPERATIONS_MAX 16000
#define SIM_STATES         6 /* of the tier */
#define SIM_CALL_KINDS     12

/* How long after its deadline an operation may still be without its answer. */
#define SIM_BOUND_NS (2 * FB_SEC_NS)

/* A put and its bytes: the version number of its tokens is its place in this table. */
struct sim_version {
    uint32_t space, key;
    uint64_t epoch, bytes, generation;
    uint64_t granted_ns;
    bool granted, committed, done, upsert, lie;
    int result;
};

/* What the checker knows of one key in the present epoch of its namespace. */
struct sim_key {
    uint64_t floor;      /* hits have at least this generation */
    uint64_t granted;    /* highest generation ever granted */
    uint64_t persisted;  /* generation that must be found; 0: none */
    uint64_t stored;     /* generation that was acknowledged as stored, persisted or not */
    bool stored_off;     /* with persist off */
    uint32_t removes;    /* begun and not ended */
    uint32_t committing; /* puts whose commit was sent and that have no answer yet */
    uint32_t puts;       /* begun and not ended */
    uint32_t puts_begun; /* ever */
    bool masked;         /* a put began since: misses may name that, not why the value is gone */
    bool lied;           /* a client lied about what it wrote here: misses are its own doing */
};

struct sim_space {
    uint16_t handle;
    bool open;
    uint64_t epoch;
    uint8_t id[16];
    struct fb_secret secret;
    uint32_t bumps; /* begun and not ended */
    struct sim_key keys[SIM_KEYS];
};

enum sim_slot_state {
    SIM_FREE,
    SIM_WAITING, /* for the shard */
    SIM_WRITING, /* copying into a grant */
    SIM_COMMITTED,
    SIM_REVOKED, /* answered, and still at it */
    SIM_RELEASED /* waits for CLOSED */
};

struct sim_slot {
    struct fb_op op;
    uint8_t state;
    bool started, done;
    uint64_t start_ns;
    uint64_t epoch; /* that it was begun with: the shard may say a newer one in the operation */
    uint32_t space, key, version;
    uint64_t written_pages;
    uint64_t floor_at_start, persisted_at_start, stored_at_start;
    uint32_t puts_begun; /* of its key, with this one */
    bool was_beside;     /* another put of its key was under way */
    uint32_t removes_at_start, crash;
    uint64_t removed_above; /* REMOVE: highest generation granted when it began */
    bool held;              /* GET inside a hold */
    bool touched;           /* a commit, remove or bump of this key began since */
    uint32_t seen;          /* GET: version that the bytes show; UINT32_MAX: none yet */
    uint64_t seen_bytes;
    bool seen_bad;
    struct fb_sim_page wrong; /* seen_bad: what was there instead */
    bool twin;                /* PUT: stands for an earlier item of its batch */
    uint64_t hold_until_ns;   /* GET: held */
    uint32_t spoiled;         /* LOOKUP: keys whose hold may be gone before the answer comes */
    uint64_t wire_op;         /* its number on the wire, once known */
    uint8_t keytext[FB_KEY_BYTES_MAX];
    uint32_t lookup_keys[SIM_LOOKUP_MAX];
    struct fb_digest digests[SIM_LOOKUP_MAX];
    uint8_t found[SIM_LOOKUP_MAX];
    /* ---- from here on it is not cleared between operations ---- */
    uint32_t tick;         /* makes old heap items void */
    struct sim_room *room; /* of a client that drives the shard itself */
};

/* What such a client needs memory for. */
struct sim_room {
    uint8_t list[8192];
    struct fb_io_vec runs[FB_GET_WINDOW][SIM_RUNS_MAX];
    unsigned run_count[FB_GET_WINDOW];
};

enum sim_life {
    SIM_ALIVE,
    SIM_STOPPED,
    SIM_SUSPECT,
    SIM_DEAD
};

struct sim_client {
    struct fb_peer peer;
    uint8_t life;
    bool open;
    uint32_t number;
    struct sim_slot slots[SIM_SLOTS_MAX];
    struct sim_room rooms[SIM_SLOTS_MAX];
};

struct sim_hold {
    uint32_t space, key, loads;
    uint64_t until_ns, generation;
};

struct sim_knobs {
    struct fb_shard_config shard;
    struct fb_sim_config device;
    uint32_t clients, slots, operations;
    uint32_t weight[FB_OP_LIST + 1];
    uint64_t value_bytes_max;
    uint32_t keys;
    uint32_t late_ppm, stop_ppm, death_ppm, lie_ppm, upsert_ppm, cancel_ppm, late_commit_ppm;
    uint32_t crash_ppm, power_ppm, drain_ppm, room_ppm, floor_ppm, damage_ppm, jump_ppm;
    uint64_t think_ns, copy_ns, deadline_ns;
    uint64_t quota_dram_bytes, quota_ssd_bytes; /* of each namespace; 0: none */
    /* clients that speak the protocol */
    bool wire;
    uint32_t break_ppm, stall_ppm, ask_ppm, batch_max, ops_max, window_bytes, heartbeat_ms;
    uint64_t wire_ns, commit_delay_ns;
    bool faults; /* the device fails */
    bool liars;  /* the device does not do what it answered */
};

/* What clients that speak the protocol exercised. */
struct sim_wire_report {
    uint64_t seeds;
    uint64_t calls[SIM_CALL_KINDS], items[SIM_CALL_KINDS];
    uint64_t results[SIM_CALL_KINDS][FB_RESULT_COUNT];
    uint64_t connects, opened, refused, open_failed, hung_up, broken_client, broken_node,
        broken_both, silent, named_ended, lost_in_call, proven_late, suspects, deaths, stops;
    uint64_t jobs_put, jobs_get, jobs_unwanted, jobs_late, jobs_of_dead_node, commits, late_commits;
    uint64_t frames_cut, stalls, twins, abandoned, lists_stopped, doubts, settled, releases_wanted,
        late_frames, cancels, gets_queued, short_buffers;
};

/* What a run, and the sum of many, exercised. */
struct sim_report {
    uint64_t seeds, events, operations, violations;
    uint64_t started[FB_OP_LIST + 1];
    uint64_t results[FB_OP_LIST + 1][FB_RESULT_COUNT];
    uint64_t reasons[FB_REASON_COUNT];
    uint64_t tier[SIM_STATES];
    uint64_t edges[SIM_STATES][SIM_STATES]; /* of the tier: from, to */
    uint64_t crashes, power_cuts, drains, recoveries, deaths, stops, scribbles, late_commits,
        revoked;
    uint64_t hits, hits_ssd, hits_checked_pages, misses, holds, held_reads, reclaimed, waited_key,
        waited_space;
    uint64_t put_results[FB_RESULT_COUNT], drops[FB_REASON_COUNT];
    uint64_t recovered, torn, rot, tombs, copied, room_episodes, floor_episodes, damages, jumps;
    struct fb_sim_counts faults;
    struct sim_wire_report wire;
};

/* Which kind of clients a seed has. */
enum sim_kind {
    SIM_KIND_DRAWN,
    SIM_KIND_DIRECT,
    SIM_KIND_WIRE
};

struct sim_wire;

struct sim_world {
    uint64_t seed;
    bool verbose;
    enum sim_kind kind;
    struct sim_wire *wire; /* of seeds whose clients speak the protocol */
    struct fb_prng prng;
    struct sim_knobs knobs;
    uint64_t now_ns;  /* of the simulation */
    uint64_t jump_ns; /* the shard's clock is ahead by this */
    struct fb_sim *sim;
    struct fb_shard *shard;
    bool scripted;         /* a crash point is looked for: see points.c */
    uint64_t cut_boundary; /* cut the power there; 0: not */
    enum fb_sim_cut cut;
    uint64_t cut_seed;
    bool cut_due;
    bool reclaimed;           /* by a node that is gone */
    bool up, draining, quiet; /* quiet: the last phase, no new faults and operations */
    void *memory, *meta;
    size_t memory_bytes, meta_bytes;
    struct fb_heap heap;
    struct fb_heap_entry entries[SIM_HEAP_MAX];
    struct sim_client clients[SIM_CLIENTS_MAX + 1]; /* knobs.clients of them, then the auditor */
    struct sim_space spaces[SIM_SPACES];
    struct sim_version *versions;
    uint32_t version_count;
    struct sim_hold holds[SIM_HOLDS_MAX];
    uint32_t hold_next;
    uint32_t operations_left;
    uint64_t operations; /* begun */
    uint64_t crashes;
    uint64_t stale_reads;           /* so far */
    enum fb_tier_state tier_before; /* at the last turn of this life */
    bool misread;                   /* a read gave bytes of another place, or of earlier */
    bool lied, damaged, failed,
        crashed; /* the device lied, was damaged, failed; the node crashed */
    uint64_t events;
    struct sim_report *report;
    char violation[SIM_TEXT_MAX];
    char trace[SIM_TRACE_LINES][SIM_TEXT_MAX];
    uint32_t trace_next;
};

/* What a heap item says: client, slot, what to do, and the slot's tick. */
enum sim_act {
    SIM_ACT_THINK,
    SIM_ACT_COPY,
    SIM_ACT_COMMIT,
    SIM_ACT_RELEASE,
    SIM_ACT_READ,
    SIM_ACT_CANCEL,
    SIM_ACT_PROVEN,
    SIM_ACT_RETURN,
    SIM_ACT_RESTART,
    SIM_ACT_CHANCE,
    SIM_ACT_HEAL,
    /* of clients that speak the protocol */
    SIM_ACT_ARRIVE,
    SIM_ACT_CONNECT,
    SIM_ACT_CALL,
    SIM_ACT_WORK,
    SIM_ACT_RESUME,
    SIM_ACT_BURY,
    SIM_ACT_REBIRTH
};

/* knobs.c */
void sim_knobs_draw(struct sim_world *world);
/* Then, for crash points: a short load without faults of its own, with removes, upserts and
 * reclaim. */
void sim_knobs_script(struct sim_world *world);

/* world.c */
struct sim_world *sim_world_new(struct sim_report *report);
void sim_world_free(struct sim_world *world);
/* Runs one seed; returns 0, or 1 with world->violation set. */
int sim_world_run(struct sim_world *world, uint64_t seed);
/* Runs the scripted load of `seed`, with the power cut at I/O boundary `boundary` (0: nowhere).
 * Returns as sim_world_run(); *boundaries: how many the load passed. */
int sim_world_run_cut(struct sim_world *world, uint64_t seed, uint64_t boundary,
                      enum fb_sim_cut cut, uint64_t cut_seed, uint64_t *boundaries);
void sim_world_later(struct sim_world *world, uint64_t delay_ns, unsigned client, unsigned slot,
                     enum sim_act act, uint32_t tick);
void sim_world_pump(struct sim_world *world);
void sim_world_note_faults(struct sim_world *world);
uint64_t sim_world_clock(const struct sim_world *world);
void sim_world_say(struct sim_world *world, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void sim_world_violation(struct sim_world *world, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* So many operations have begun. A seed goes on until it had SIM_EVENTS_MIN events. */
void sim_world_spend(struct sim_world *world, uint64_t operations);
bool sim_world_chance(struct sim_world *world, uint32_t ppm);

/* client.c */
void sim_client_open(struct sim_world *world, struct sim_client *client);
void sim_client_act(struct sim_world *world, unsigned client, unsigned slot, enum sim_act act,
                    uint32_t tick);
void sim_client_crash(struct sim_world *world, struct sim_client *client);
void sim_client_read(struct sim_world *world, struct sim_client *client, uint32_t space,
                     uint32_t key);
bool sim_client_is_quiet(const struct sim_client *client);
void sim_client_end(struct sim_world *world, struct sim_client *client);
/* What clients of both kinds draw. */
uint16_t sim_client_key(uint32_t space, uint32_t key, uint8_t *text);
uint64_t sim_client_bytes(struct sim_world *world);
uint64_t sim_client_leaves(const struct fb_sim_value *value, uint64_t off, uint64_t bytes,
                           uint64_t *leaves);

/* answer.c */
void sim_answer(struct sim_world *world, struct fb_op *op, unsigned events);
void sim_answer_read(struct sim_world *world, struct sim_client *client, struct sim_slot *slot);

/* checker.c */
void sim_check_start(struct sim_world *world, struct sim_slot *slot);
void sim_check_grant(struct sim_world *world, struct sim_slot *slot);
void sim_check_commit(struct sim_world *world, struct sim_slot *slot);
void sim_check_done(struct sim_world *world, struct sim_slot *slot);
void sim_check_crash(struct sim_world *world);
void sim_check_page(struct sim_world *world, struct sim_slot *slot, struct fb_sim_page page,
                    uint64_t value_page);
void sim_check_accounts(struct sim_world *world);
/* sim_check_done() but for the deadline. */
void sim_check_result(struct sim_world *world, struct sim_slot *slot);
/* A page that a reader was given, who may yet find it bad: it counts if the get ends well. */
void sim_check_note(struct sim_world *world, struct sim_slot *slot, struct fb_sim_page page,
                    uint64_t value_page);
/* The epoch that a client was told. `first`: since the node started. */
void sim_check_epoch(struct sim_world *world, uint32_t space, uint64_t epoch, bool first);
/* Operations without a certain answer can change nothing any more. */
void sim_check_settle(struct sim_world *world, uint32_t space, uint32_t key, uint32_t puts,
                      uint32_t commits, uint32_t removes);
/* Loads of the holds on a key are about to be given back. */
void sim_check_release(struct sim_world *world, uint32_t space, uint32_t key);

/* wire.c */
struct sim_wire *sim_wire_new(void);
void sim_wire_free(struct sim_wire *wire);
/* Before the first start, and after the end, of a seed. */
void sim_wire_prepare(struct sim_world *world);
void sim_wire_close(struct sim_world *world);
/* The node starts, is gone. */
void sim_wire_start(struct sim_world *world);
void sim_wire_crash(struct sim_world *world);
void sim_wire_take_report(struct sim_world *world);
/* True if anything moved. */
bool sim_wire_pump(struct sim_world *world);
/* Clients' timers; they run on while the node is away. */
void sim_wire_tick(struct sim_world *world);
uint64_t sim_wire_next_ns(const struct sim_world *world);
void sim_wire_act(struct sim_world *world, unsigned client, unsigned slot, enum sim_act act,
                  uint32_t tick);
/* A key's state is about to change: marks operations under way. */
void sim_wire_touch(struct sim_world *world, uint32_t space, uint32_t key);
/* The last phase: quiet clients; sessions that clients came back from are gone; everything is read
 * back; all end. */
bool sim_wire_is_quiet(struct sim_world *world);
bool sim_wire_is_clean(struct sim_world *world);
void sim_wire_audit(struct sim_world *world);
bool sim_wire_is_audited(struct sim_world *world);
void sim_wire_end(struct sim_world *world);
bool sim_wire_is_gone(struct sim_world *world);

/* report.c */
void sim_report_add(struct sim_report *sum, const struct sim_report *one);
void sim_report_take(struct sim_world *world);
/* Prints it; returns how many counters that must not be zero are. */
unsigned sim_report_print(const struct sim_report *report, bool all);

/* points.c */
int sim_points_run(bool verbose, struct sim_report *report, uint64_t first, uint64_t only);

#endif
