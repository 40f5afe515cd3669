/* forebay exists, rm, wait, bump, ls: commands on keys without their values. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "cli/cli.h"

/* Keys that a listing remembers. Both are powers of two: the ring goes on when its count wraps. */
#define LISTED_MAX     65536u
#define LISTED_BUCKETS 65536u

/* The keys of the command line. */
struct keys {
    size_t count;
    uint8_t **key;
    size_t *key_bytes;
};

static void free_keys(struct keys *keys)
{
    for (size_t i = 0; keys->key != NULL && i < keys->count; i++)
        free(keys->key[i]);
    free(keys->key);
    free(keys->key_bytes);
}

static bool read_keys(const struct fb_cli_args *args, struct keys *keys)
{
    keys->count = (size_t)args->word_count;
    keys->key = calloc(keys->count, sizeof(*keys->key));
    keys->key_bytes = calloc(keys->count, sizeof(*keys->key_bytes));
    bool good = keys->key != NULL && keys->key_bytes != NULL;
    for (size_t i = 0; good && i < keys->count; i++) {
        keys->key[i] = malloc(strlen(args->words[i]) + 1);
        if (keys->key[i] != NULL)
            keys->key_bytes[i] = fb_cli_key(args, args->words[i], keys->key[i]);
        good = keys->key_bytes[i] != 0;
    }
    if (!good)
        free_keys(keys);
    return good;
}

/* ---- exists ---- */

static void print_found(const struct fb_cli_args *args, const struct fb_exists_item *item,
                        bool is_first)
{
    bool dram = (item->found & FB_EXISTS_IN_DRAM) != 0;
    bool ssd = (item->found & FB_EXISTS_ON_SSD) != 0;
    if (args->json) {
        printf("%s{", is_first ? "[" : ",\n ");
        fb_cli_print_json_key(stdout, args, item->key, item->key_bytes);
        printf(",\"result\":\"%s\",\"dram\":%s,\"ssd\":%s}", fb_result_name(item->result),
               dram ? "true" : "false", ssd ? "true" : "false");
        return;
    }
    if (item->result < 0 && item->result != FB_MISS) {
        fb_cli_key_error(args, item->key, item->key_bytes, item->result, 0);
        return;
    }
    fb_cli_print_key(stdout, args, item->key, item->key_bytes);
    printf(": %s%s%s\n", item->result == FB_OK ? "yes" : "no", dram ? " dram" : "",
           ssd ? " ssd" : "");
}

static int look_up(const struct fb_cli_args *args, struct fb_client *client,
                   const struct keys *keys)
{
    struct fb_exists_item *items = calloc(keys->count, sizeof(*items));
    if (items == NULL) {
        fb_cli_error("no memory");
        return FB_CLI_FAILED;
    }
    for (size_t i = 0; i < keys->count; i++)
        items[i] = (struct fb_exists_item){.key = keys->key[i], .key_bytes = keys->key_bytes[i]};
    (void)fb_exists_batch(client, items, keys->count, NULL, args->timeout_ms);
    int code = FB_CLI_OK;
    for (size_t i = 0; i < keys->count; i++) {
        print_found(args, &items[i], i == 0);
        code = fb_cli_worse(code, fb_cli_code(items[i].result));
    }
    if (args->json)
        printf("]\n");
    free(items);
    return code;
}

int fb_cli_exists(const struct fb_cli_args *args)
{
    struct keys keys = {0};
    if (!read_keys(args, &keys))
        return FB_CLI_USAGE;
    int code = FB_CLI_FAILED;
    struct fb_client *client = fb_cli_open(args, true, &code);
    if (client != NULL)
        code = look_up(args, client, &keys);
    fb_client_close(client);
    free_keys(&keys);
    return code;
}

/* ---- rm, wait ---- */

typedef int key_call(struct fb_client *client, struct fb_key_item *items, size_t count,
                     uint32_t timeout_ms);

static int call_keys(const struct fb_cli_args *args, struct fb_client *client,
                     const struct keys *keys, key_call *call)
{
    struct fb_key_item *items = calloc(keys->count, sizeof(*items));
    if (items == NULL) {
        fb_cli_error("no memory");
        return FB_CLI_FAILED;
    }
    for (size_t i = 0; i < keys->count; i++)
        items[i] = (struct fb_key_item){.key = keys->key[i], .key_bytes = keys->key_bytes[i]};
    (void)call(client, items, keys->count, args->timeout_ms);
    int code = FB_CLI_OK;
    for (size_t i = 0; i < keys->count; i++) {
        code = fb_cli_worse(code, fb_cli_code(items[i].result));
        if (items[i].result < 0) {
            fb_cli_key_error(args, items[i].key, items[i].key_bytes, items[i].result,
                             items[i].reason);
        } else if (!args->quiet) {
            fb_cli_print_key(stdout, args, items[i].key, items[i].key_bytes);
            printf(": %s\n", fb_result_name(items[i].result));
        }
    }
    free(items);
    return code;
}

static int on_keys(const struct fb_cli_args *args, key_call *call)
{
    struct keys keys = {0};
    if (!read_keys(args, &keys))
        return FB_CLI_USAGE;
    int code = FB_CLI_FAILED;
    struct fb_client *client = fb_cli_open(args, true, &code);
    if (client != NULL)
        code = call_keys(args, client, &keys, call);
    fb_client_close(client);
    free_keys(&keys);
    return code;
}

int fb_cli_rm(const struct fb_cli_args *args)
{
    return on_keys(args, fb_remove_batch);
}

int fb_cli_wait(const struct fb_cli_args *args)
{
    return on_keys(args, fb_wait_persisted);
}

/* ---- bump, ls ---- */

static int failed(const char *what, int result)
{
    fb_cli_error("%s: %s: %s", what, fb_result_name(result), fb_result_text(result));
    return fb_cli_worse(FB_CLI_FAILED, fb_cli_code(result));
}

int fb_cli_bump(const struct fb_cli_args *args)
{
    int code = FB_CLI_FAILED;
    struct fb_client *client = fb_cli_open(args, true, &code);
    if (client == NULL)
        return code;
    uint64_t epoch = 0;
    int result = fb_epoch_bump(client, &epoch, args->timeout_ms);
    fb_client_close(client);
    if (result < 0)
        return failed("bump", result);
    if (!args->quiet)
        printf("epoch %llu\n", (unsigned long long)epoch);
    return FB_CLI_OK;
}

/*
 * A listing names a key twice if it is persisted just then. The newest LISTED_MAX keys are kept, in
 * a ring and in chains by hash, so that a repeat among them is left out.
 */
struct listing {
    const struct fb_cli_args *args;
    uint32_t count;                 /* keys kept so far; the next one's place, modulo LISTED_MAX */
    uint32_t first[LISTED_BUCKETS]; /* of a chain: place plus 1; 0: none */
    struct listed {
        uint8_t *key;
        size_t key_bytes;
        uint32_t bucket, next;
    } ring[LISTED_MAX];
};

/* Takes the oldest key out of its chain, to make room. */
static void forget(struct listing *listing, uint32_t at)
{
    struct listed *old = &listing->ring[at];
    uint32_t *link = &listing->first[old->bucket];
    while (*link != at + 1)
        link = &listing->ring[*link - 1].next;
    *link = old->next;
    free(old->key);
}

/* True if it was printed not long ago; else keeps it. Without memory it may be printed twice. */
static bool is_repeat(struct listing *listing, const void *key, size_t key_bytes)
{
    uint32_t bucket = (uint32_t)(fb_hash64(key, key_bytes, 0) % LISTED_BUCKETS);
    for (uint32_t at = listing->first[bucket]; at != 0; at = listing->ring[at - 1].next) {
        const struct listed *kept = &listing->ring[at - 1];
        if (kept->key_bytes == key_bytes && memcmp(kept->key, key, key_bytes) == 0)
            return true;
    }
    uint8_t *copy = malloc(key_bytes);
    if (copy == NULL)
        return false;
    memcpy(copy, key, key_bytes);
    uint32_t place = listing->count % LISTED_MAX;
    if (listing->ring[place].key != NULL)
        forget(listing, place);
    listing->ring[place] = (struct listed){copy, key_bytes, bucket, listing->first[bucket]};
    listing->first[bucket] = place + 1;
    listing->count++;
    return false;
}

static int print_listed(void *context, const void *key, size_t key_bytes)
{
    struct listing *listing = context;
    if (is_repeat(listing, key, key_bytes))
        return 0;
    fb_cli_print_key(stdout, listing->args, key, key_bytes);
    putchar('\n');
    return ferror(stdout) != 0;
}

int fb_cli_ls(const struct fb_cli_args *args)
{
    int code = FB_CLI_FAILED;
    struct fb_client *client = fb_cli_open(args, true, &code);
    if (client == NULL)
        return code;
    static struct listing listing;
    listing.args = args;
    int result = fb_list_keys(client, print_listed, &listing, args->timeout_ms);
    fb_client_close(client);
    for (size_t i = 0; i < LISTED_MAX; i++)
        free(listing.ring[i].key);
    return result < 0 ? failed("ls", result) : FB_CLI_OK;
}
