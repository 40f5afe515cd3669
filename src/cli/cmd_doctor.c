/*
 * forebay doctor: goes the whole way of a value, from the client through DRAM and the device and
 * back, and says which link is broken first.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/bits.h"
#include "base/limits.h"
#include "base/prng.h"
#include "cli/cli.h"

#define NAMESPACE    "forebay-doctor"
#define KEY_BYTES    64
#define WHY_BYTES    256

#define PAGE_BYTES   FB_KIB(4)
#define INLINE_BYTES (FB_KIB(5) - 1)           /* travels inline */
#define SHARED_BYTES FB_KIB(128)               /* does not */
#define ODD_BYTES    (FB_MIB(1) + FB_KIB(256)) /* no whole number of MiB */
#define PARTS_BYTES  FB_MIB(5)                 /* of several parts; the longest, so the last */

static const size_t sizes[] = {PAGE_BYTES, INLINE_BYTES, SHARED_BYTES, ODD_BYTES, PARTS_BYTES};
#define VALUES FB_ARRAY_COUNT(sizes)

struct check {
    const struct fb_cli_args *args;
    struct fb_client *client;
    char key[VALUES][KEY_BYTES];
    uint8_t *value[VALUES];
    uint8_t *back;
    const char *link;    /* the one that is being checked */
    char why[WHY_BYTES]; /* why it is broken */
};

static bool broken(struct check *check, const char *what, int result, uint8_t reason)
{
    snprintf(check->why, sizeof(check->why), "%s: %s: %s%s%s", what, fb_result_name(result),
             fb_result_text(result), reason != 0 ? "; " : "",
             reason != 0 ? fb_reason_text(reason) : "");
    return false;
}

static bool put_values(struct check *check)
{
    struct fb_put_item items[VALUES];
    struct fb_buf bufs[VALUES];
    for (size_t i = 0; i < VALUES; i++) {
        bufs[i] = (struct fb_buf){check->value[i], sizes[i]};
        items[i] = (struct fb_put_item){.key = check->key[i],
                                        .key_bytes = strlen(check->key[i]),
                                        .bufs = &bufs[i],
                                        .buf_count = 1};
        items[i].persist_mode =
            check->args->dram_only ? FB_PERSIST_MODE_OFF : FB_PERSIST_MODE_BEHIND;
    }
    (void)fb_put_batch(check->client, items, VALUES, check->args->timeout_ms);
    for (size_t i = 0; i < VALUES; i++) {
        if (items[i].result != FB_OK)
            return broken(check, check->key[i], items[i].result, items[i].reason);
    }
    return true;
}

/* Reads one value and compares; `tiers`: where its bytes must come from, 0 for anywhere. */
static bool read_value(struct check *check, size_t i, uint8_t tiers)
{
    struct fb_buf buf = {check->back, sizes[i]};
    struct fb_get_item item = {.key = check->key[i],
                               .key_bytes = strlen(check->key[i]),
                               .bufs = &buf,
                               .buf_count = 1,
                               .flags = FB_GET_STAYS_COLD};
    memset(check->back, 0, sizes[i]);
    (void)fb_get_batch(check->client, &item, 1, check->args->timeout_ms);
    if (item.result != FB_OK)
        return broken(check, check->key[i], item.result, item.reason);
    if (item.bytes != sizes[i] || memcmp(check->back, check->value[i], sizes[i]) != 0) {
        snprintf(check->why, sizeof(check->why), "%s: other bytes came back", check->key[i]);
        return false;
    }
    if (tiers != 0 && item.tiers != tiers) {
        snprintf(check->why, sizeof(check->why), "%s: was answered from %s", check->key[i],
                 (item.tiers & FB_TIER_DRAM) != 0 ? "DRAM" : "SSD");
        return false;
    }
    return true;
}

static bool read_from_dram(struct check *check)
{
    for (size_t i = 0; i < VALUES; i++) {
        if (!read_value(check, i, 0))
            return false;
    }
    return true;
}

static bool read_from_ssd(struct check *check)
{
    for (size_t i = 0; i < VALUES; i++) {
        if (!read_value(check, i, FB_TIER_SSD))
            return false;
    }
    return true;
}

typedef int key_call(struct fb_client *client, struct fb_key_item *items, size_t count,
                     uint32_t timeout_ms);

static bool on_keys(struct check *check, key_call *call)
{
    struct fb_key_item items[VALUES];
    for (size_t i = 0; i < VALUES; i++)
        items[i] = (struct fb_key_item){.key = check->key[i], .key_bytes = strlen(check->key[i])};
    (void)call(check->client, items, VALUES, check->args->timeout_ms);
    for (size_t i = 0; i < VALUES; i++) {
        if (items[i].result != FB_OK)
            return broken(check, check->key[i], items[i].result, items[i].reason);
    }
    return true;
}

static bool wait_persisted(struct check *check)
{
    return on_keys(check, fb_wait_persisted);
}

static bool drop_dram(struct check *check)
{
    return on_keys(check, fb_drop_dram);
}

static bool remove_values(struct check *check)
{
    return on_keys(check, fb_remove_batch);
}

static bool are_gone(struct check *check)
{
    for (size_t i = 0; i < VALUES; i++) {
        int result =
            fb_exists(check->client, check->key[i], strlen(check->key[i]), check->args->timeout_ms);
        if (result != FB_MISS)
            return broken(check, check->key[i], result, 0);
    }
    return true;
}

static const struct {
    const char *name;
    bool needs_ssd;
    bool (*run)(struct check *check);
} links[] = {
    {"put values into DRAM", false, put_values},
    {"read them back", false, read_from_dram},
    {"write them to SSD", true, wait_persisted},
    {"drop them from DRAM", true, drop_dram},
    {"read them back through the device", true, read_from_ssd},
    {"remove them", false, remove_values},
    {"see that they are gone", false, are_gone},
};

/* Values and keys that no earlier run has used. */
static bool make_values(struct check *check)
{
    uint64_t seed = 0;
    if (getrandom(&seed, sizeof(seed), 0) != (ssize_t)sizeof(seed))
        return false;
    struct fb_prng prng;
    fb_prng_seed(&prng, seed);
    check->back = malloc(sizes[VALUES - 1]);
    bool good = check->back != NULL;
    for (size_t i = 0; i < VALUES; i++) {
        snprintf(check->key[i], KEY_BYTES, "doctor-%016llx-%zu", (unsigned long long)seed,
                 sizes[i]);
        check->value[i] = malloc(sizes[i]);
        good = good && check->value[i] != NULL;
        if (check->value[i] != NULL)
            fb_prng_fill(&prng, check->value[i], sizes[i]);
    }
    return good;
}

static bool run_links(struct check *check)
{
    const struct fb_cli_args *args = check->args;
    for (size_t i = 0; i < FB_ARRAY_COUNT(links); i++) {
        if (links[i].needs_ssd && args->dram_only)
            continue;
        check->link = links[i].name;
        bool good = links[i].run(check);
        if (!args->json && !args->quiet)
            printf("%-36s %s\n", links[i].name, good ? "ok" : "BROKEN");
        fflush(stdout);
        if (!good)
            return false;
    }
    return true;
}

static int verdict(const struct check *check, bool good)
{
    if (check->args->json) {
        printf("{\"pass\":%s", good ? "true" : "false");
        if (!good) {
            printf(",\"link\":\"%s\",\"why\":", check->link);
            fb_cli_print_json(stdout, check->why, strlen(check->why));
        }
        printf("}\n");
    } else if (good) {
        printf("PASS\n");
    } else {
        printf("FAIL at: %s: %s\n", check->link, check->why);
    }
    return good ? FB_CLI_OK : FB_CLI_BROKEN;
}

int fb_cli_doctor(const struct fb_cli_args *args)
{
    struct check *check = calloc(1, sizeof(*check));
    struct fb_cli_args own = *args;
    own.ns = (struct fb_namespace_fields){.model = NAMESPACE};
    int code = FB_CLI_FAILED;
    if (check == NULL || !make_values(check)) {
        fb_cli_error("no memory");
    } else {
        check->args = args;
        check->client = fb_cli_open(&own, true, &code);
        if (check->client != NULL) {
            bool good = run_links(check);
            code = verdict(check, good);
            if (!good)
                (void)remove_values(check); /* as far as it goes: it is broken anyway */
            fb_client_close(check->client);
        } else if (code == FB_CLI_FAILED) {
            check->link = "open a namespace";
            snprintf(check->why, sizeof(check->why), "the node refuses; the line above says why");
            code = verdict(check, false);
        }
    }
    for (size_t i = 0; check != NULL && i < VALUES; i++)
        free(check->value[i]);
    if (check != NULL)
        free(check->back);
    free(check);
    return code;
}
