/*
 * toylog_test.c - the rules of the SSD log, tried on a toy (test/lib/toylog.h), and each of them
 * shown to be needed.
 *
 * Method: random loads of puts, removes, cleaning, reclaim, failed flushes and reads on a log of
 * eight small segments. Before each step of a load the power fails or the process is killed: with
 * all, none, some, or some torn of the writes that no flush covers. Recovery may crash again
 * within, on its own writes. What was found is held against what was promised; the load goes on
 * from there and crashes again, twice. In a part of the crashes one block, durable before, rots as
 * well.
 *
 * What is held: a removed key does not come back; no generation comes back that is older than the
 * newest acknowledged one; what was answered as persisted is there, or is named in a durable
 * tombstone or reclaim record, and the history of these is honest on how far it reaches back; no
 * torn bytes and no record of an earlier life of a segment are believed; torn tails are counted
 * apart from rot; one rotten block costs no more than the values in it (or those of one unit).
 *
 * Then each rule is switched off, and the same loads must find a violation.
 *
 * `toylog_test N` runs N times as many loads.
 *
 * Not covered: values of several parts, more than one device, epochs, checkpoints, blocks that are
 * torn within by less than the whole (a checksum makes them all the same), two rotten blocks, and
 * whether a full log always finds space again.
 */
#include "test/lib/toylog.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/assert.h"
#include "test/lib/cm.h"

#define SEEDS          20
#define SEEDS_OF_RULES 400
#define STEPS          250
#define LONG_SEEDS     30
#define LONG_STEPS     1000
#define ROUNDS         2
#define MORE_STEPS_MAX 160

struct counters {
    uint64_t crashes, recoveries, reclaims, drops, failed_flushes, torn, rot, nested;
};

static struct counters counters;
static unsigned many = 1;

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Starts again, with crashes inside recovery. */
static void recover(struct toy *t, struct fb_prng *prng)
{
    counters.crashes++;
    for (unsigned n = 0; n < 3; n++) {
        t->dev.ops_left =
            n < 2 && fb_prng_below(prng, 3) == 0 ? 1 + (uint32_t)fb_prng_below(prng, 12) : 0;
        bool started = toy_recover(t);
        counters.torn += t->torn;
        counters.rot += t->rot;
        if (started)
            return;
        counters.nested++;
        toy_crash(t, (enum toy_crash)fb_prng_below(prng, TOY_CRASHES), prng);
    }
    FB_UNREACHABLE();
}

/* One crash, and what follows: more load, more crashes. */
static void try_crash(const struct toy *from, enum toy_crash how, uint64_t seed)
{
    static struct toy t;
    struct fb_prng prng;
    fb_prng_seed(&prng, seed);
    t = *from;
    for (unsigned round = 0; round <= ROUNDS && toy_violation == NULL; round++) {
        toy_crash(&t, how, &prng);
        if (how != TOY_CRASH_KILL && !t.rotten && fb_prng_below(&prng, 3) == 0)
            toy_rot(&t, &prng);
        recover(&t, &prng);
        unsigned steps = (unsigned)fb_prng_below(&prng, MORE_STEPS_MAX);
        for (unsigned i = 0; i < steps && toy_violation == NULL; i++)
            toy_step(&t, &prng);
        how = (enum toy_crash)fb_prng_below(&prng, TOY_CRASHES);
    }
    counters.recoveries += t.recoveries - from->recoveries;
    counters.reclaims += t.reclaims - from->reclaims;
    counters.drops += t.drops - from->drops;
    counters.failed_flushes += t.failed_flushes - from->failed_flushes;
}

struct point {
    uint64_t seed;
    unsigned step, how;
};

static uint64_t trial_seed(const struct point *point)
{
    return fb_mix64(point->seed * 1000003 + point->step * 16 + point->how + 1);
}

/*
 * One load with a crash at each step: of each kind, or of one kind in turn, which leaves time for a
 * longer load. Returns true if all promises were kept.
 */
static bool try_seed(uint64_t seed, unsigned steps, bool each_kind, struct point *found)
{
    static struct toy t;
    struct fb_prng prng;
    fb_prng_seed(&prng, seed);
    toy_violation = NULL;
    toy_init(&t, (enum toy_load)(seed % TOY_LOADS));
    for (unsigned step = 0; step < steps; step++) {
        for (unsigned how = 0; how < TOY_CRASHES; how++) {
            if (!each_kind && how != step % TOY_CRASHES)
                continue;
            *found = (struct point){seed, step, how};
            if (toy_violation == NULL)
                try_crash(&t, (enum toy_crash)how, trial_seed(found));
            if (toy_violation != NULL)
                return false;
        }
        toy_step(&t, &prng);
    }
    return true;
}

/* Plays one point again and prints what happens. */
static void replay(const struct point *point)
{
    static struct toy t;
    struct fb_prng prng;
    fb_prng_seed(&prng, point->seed);
    toy_violation = NULL;
    toy_is_loud = true;
    toy_init(&t, (enum toy_load)(point->seed % TOY_LOADS));
    for (unsigned step = 0; step < point->step; step++)
        toy_step(&t, &prng);
    try_crash(&t, (enum toy_crash)point->how, trial_seed(point));
    toy_is_loud = false;
}

static void promises_are_kept(void **state)
{
    (void)state;
    struct point found;
    double start = seconds();
    bool good = true;
    for (uint64_t seed = 1; good && seed <= (uint64_t)SEEDS * many; seed++)
        good = try_seed(seed, STEPS, true, &found);
    for (uint64_t seed = 1; good && seed <= (uint64_t)LONG_SEEDS * many; seed++)
        good = try_seed(seed, LONG_STEPS, false, &found);
    if (!good) {
        printf("toy log: seed %llu, step %u, crash %u: %s\n", (unsigned long long)found.seed,
               found.step, found.how, toy_violation);
        replay(&found);
    }
    printf(
        "toy log: %llu crashes, %llu in recovery, %llu reclaims, %llu failed flushes, %llu torn, "
        "%llu rot, %llu dropped, %.1f s\n",
        (unsigned long long)counters.crashes, (unsigned long long)counters.nested,
        (unsigned long long)counters.reclaims, (unsigned long long)counters.failed_flushes,
        (unsigned long long)counters.torn, (unsigned long long)counters.rot,
        (unsigned long long)counters.drops, seconds() - start);
    assert_true(good);
    assert_true(counters.nested != 0 && counters.reclaims != 0 && counters.failed_flushes != 0);
    assert_true(counters.torn != 0 && counters.rot != 0 && counters.drops != 0);
}

#define NAME(symbol, text) {#symbol, text},
static const struct {
    const char *name, *text;
} rules[] = {TOY_RULE_LIST(NAME)};
#undef NAME

/*
 * Loads that are known to find what few loads do; they are tried first, to save time. If the toy
 * changes, another load will find it, later.
 */
static const struct {
    enum toy_rule rule;
    uint16_t seed;
} hints[] = {
    {TOY_COPY_COUNTS, 250},     {TOY_FREE_BEFORE_FORGET, 58}, {TOY_STRAY_KILLED_FIRST, 29},
    {TOY_RECOVERY_REPAIRS, 15}, {TOY_RECORD_KEEPS_PLACE, 14},
};

/* Runs loads until one finds a violation; false if none does. */
static bool is_found(enum toy_rule rule, struct point *found)
{
    for (unsigned i = 0; i < sizeof hints / sizeof hints[0]; i++)
        if (hints[i].rule == rule && !try_seed(hints[i].seed, LONG_STEPS, false, found))
            return true;
    for (uint64_t seed = 1; seed <= SEEDS_OF_RULES; seed++)
        if (!try_seed(seed, LONG_STEPS, false, found))
            return true;
    return false;
}

static void every_rule_is_needed(void **state)
{
    (void)state;
    unsigned not_found = 0;
    for (unsigned i = 0; i < TOY_RULES; i++) {
        struct point found;
        double start = seconds();
        toy_rules_off = UINT64_C(1) << i;
        bool is = is_found((enum toy_rule)i, &found);
        toy_rules_off = 0;
        printf("toy log: without %-24s load %3llu, step %3u, %4.1f s: %s\n", rules[i].name,
               (unsigned long long)found.seed, found.step, seconds() - start,
               is ? toy_violation : "NOT FOUND");
        not_found += !is;
    }
    assert_int_equal(not_found, 0);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        many = (unsigned)strtoul(argv[1], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(promises_are_kept),
        cmocka_unit_test(every_rule_is_needed),
    };
    return cmocka_run_group_tests_name("toylog", tests, NULL, NULL);
}
