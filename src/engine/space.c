/*
 * space.c - namespaces: who they are, their epochs and quotas, and the table that makes them
 * durable.
 *
 * A namespace is known by its typed fields; its id is a hash of them. Its epoch is part of every
 * digest, so a bump makes all older keys unreachable at once; what they left behind is swept a
 * slice at a time. The table is written as a whole, one change at a time, and a change counts when
 * it is durable.
 *
 * Entries name a namespace and epoch by a 16-bit number, a space. A space of an old epoch lives
 * until no entry names it.
 */
#include "engine/shard_private.h"

#include "base/cursor.h"

#define TABLE_VERSION 1
#define SPACE_NONE    UINT16_MAX

/* The seed of the secret under which fields are hashed to an id: the same everywhere. */
static const char id_seed[] = "forebay namespace id";

void fb_space_init(struct fb_shard *shard, struct fb_region *region)
{
    uint32_t max = shard->config.namespaces_max;
    shard->namespaces = FB_REGION_NEW(region, struct fb_namespace, max);
    shard->namespace_ids = fb_region_take_array(region, max, FB_NAMESPACE_ID_BYTES, 1);
    shard->spaces_max = 2 * max;
    shard->spaces = FB_REGION_NEW(region, struct fb_space, shard->spaces_max);
    shard->names_bytes = fb_region_take(region, FB_LOG_NAMES_BYTES_MAX, FB_CACHE_LINE);
}

struct fb_namespace *fb_space_namespace(const struct fb_shard *shard, uint16_t ns)
{
    if (ns >= shard->config.namespaces_max || !shard->namespaces[ns].used)
        return NULL;
    return &shard->namespaces[ns];
}

int fb_space_find(const struct fb_shard *shard, const uint8_t *id)
{
    for (uint32_t i = 0; i < shard->namespace_count; i++)
        if (memcmp(shard->namespace_ids[i], id, FB_NAMESPACE_ID_BYTES) == 0)
            return (int)i;
    return -1;
}

bool fb_shard_namespace(const struct fb_shard *shard, uint16_t ns, uint8_t id[16],
                        uint8_t secret[16], uint64_t *epoch)
{
    const struct fb_namespace *found = fb_space_namespace(shard, ns);
    if (found == NULL)
        return false;
    memcpy(id, found->id, sizeof(found->id));
    memcpy(secret, found->secret, sizeof(found->secret));
    *epoch = found->epoch;
    return true;
}

/* ---- spaces ---- */

/* A free space, or SPACE_NONE while too many old epochs are still being swept. */
static uint16_t find_space(const struct fb_shard *shard)
{
    for (uint32_t i = 0; i < shard->spaces_max; i++)
        if (!shard->spaces[i].used)
            return (uint16_t)i;
    return SPACE_NONE;
}

static void take_space(struct fb_shard *shard, uint16_t number, uint16_t ns, uint64_t epoch)
{
    struct fb_space *space = &shard->spaces[number];
    FB_ASSERT(!space->used);
    *space = (struct fb_space){.epoch = epoch, .ns = ns, .used = true};
    fb_evict_init(&space->evict);
    shard->spaces_high = (uint32_t)fb_max_u64(shard->spaces_high, number + 1u);
}

static void free_space_if_unused(struct fb_shard *shard, struct fb_space *space)
{
    if (!space->retired || space->entries > 0)
        return;
    FB_ASSERT(space->evict.clean.count == 0 && space->evict.loose.count == 0);
    space->used = false;
    space->retired = false;
    while (shard->spaces_high > 0 && !shard->spaces[shard->spaces_high - 1].used)
        shard->spaces_high--;
}

void fb_space_enter(struct fb_shard *shard, struct fb_entry *entry, uint16_t space)
{
    FB_ASSERT(space < shard->spaces_max && shard->spaces[space].used);
    entry->space = space;
    shard->spaces[space].entries++;
}

void fb_space_exit(struct fb_shard *shard, struct fb_entry *entry)
{
    struct fb_space *space = &shard->spaces[entry->space];
    FB_ASSERT(space->used && space->entries > 0);
    space->entries--;
    free_space_if_unused(shard, space);
}

struct fb_namespace *fb_space_of(const struct fb_shard *shard, const struct fb_entry *entry)
{
    return &shard->namespaces[shard->spaces[entry->space].ns];
}

/* ---- the table ---- */

static void write_one(struct fb_writer *writer, const struct fb_namespace *ns)
{
    fb_writer_bytes(writer, ns->id, sizeof(ns->id));
    fb_writer_bytes(writer, ns->secret, sizeof(ns->secret));
    fb_writer_u64(writer, ns->epoch);
    fb_writer_u64(writer, ns->quota_dram_bytes);
    fb_writer_u64(writer, ns->quota_ssd_bytes);
    fb_writer_blob16(writer, ns->fields, ns->fields_bytes);
}

/* Encodes the table as it would be with one namespace changed or added. 0 if it does not fit. */
static uint32_t encode(struct fb_shard *shard, uint16_t changed, const struct fb_namespace *as)
{
    struct fb_writer writer;
    fb_writer_init(&writer, shard->names_bytes, FB_LOG_NAMES_BYTES_MAX);
    fb_writer_u32(&writer, TABLE_VERSION);
    size_t count_at = writer.at_bytes;
    fb_writer_u32(&writer, 0);
    uint32_t count = 0;
    for (uint32_t i = 0; i <= shard->namespace_count && i < shard->config.namespaces_max; i++) {
        const struct fb_namespace *ns = i == changed ? as : &shard->namespaces[i];
        if (!ns->used)
            continue;
        write_one(&writer, ns);
        count++;
    }
    if (!fb_writer_ok(&writer))
        return 0;
    fb_writer_patch_u32(&writer, count_at, count);
    return (uint32_t)writer.at_bytes;
}

static bool read_one(struct fb_reader *reader, struct fb_namespace *ns)
{
    fb_reader_copy(reader, ns->id, sizeof(ns->id));
    fb_reader_copy(reader, ns->secret, sizeof(ns->secret));
    ns->epoch = fb_reader_u64(reader);
    ns->quota_dram_bytes = fb_reader_u64(reader);
    ns->quota_ssd_bytes = fb_reader_u64(reader);
    size_t bytes;
    const uint8_t *fields = fb_reader_blob16(reader, FB_SHARD_FIELDS_MAX, &bytes);
    if (fields == NULL)
        return false;
    memcpy(ns->fields, fields, bytes);
    ns->fields_bytes = (uint32_t)bytes;
    ns->used = true;
    return true;
}

/* The next place is taken. They are kept for good, so that there are no gaps. */
static void note_id(struct fb_shard *shard, uint16_t number)
{
    FB_ASSERT(number == shard->namespace_count && number < shard->config.namespaces_max);
    memcpy(shard->namespace_ids[number], shard->namespaces[number].id, FB_NAMESPACE_ID_BYTES);
    shard->namespace_count++;
}

/* A namespace of the table becomes known. */
static void adopt(struct fb_shard *shard, uint16_t number)
{
    struct fb_namespace *ns = &shard->namespaces[number];
    uint16_t space = find_space(shard);
    FB_ASSERT(space != SPACE_NONE);
    take_space(shard, space, number, ns->epoch);
    ns->space = space;
    note_id(shard, number);
}

int fb_space_load(struct fb_shard *shard)
{
    uint32_t len;
    const void *bytes = fb_log_names(shard->log, &len);
    shard->names_loaded = true;
    if (len == 0)
        return 0;
    struct fb_reader reader;
    fb_reader_init(&reader, bytes, len);
    if (fb_reader_u32(&reader) != TABLE_VERSION)
        return FB_UNSUPPORTED;
    uint32_t count = fb_reader_u32(&reader);
    if (count > shard->config.namespaces_max)
        return FB_TOO_BIG;
    for (uint32_t i = 0; i < count; i++) {
        if (!read_one(&reader, &shard->namespaces[i])) {
            shard->namespaces[i].used = false;
            return FB_IO;
        }
        adopt(shard, (uint16_t)i);
    }
    return fb_reader_is_done(&reader) ? 0 : FB_IO;
}

/* ---- changes ---- */

static void answer(struct fb_op *op, uint16_t number, const struct fb_namespace *ns)
{
    op->ns = number;
    op->epoch = ns->epoch;
    memcpy(op->ns_id, ns->id, sizeof(ns->id));
    memcpy(op->ns_secret, ns->secret, sizeof(ns->secret));
    op->ns_quota_dram_bytes = ns->quota_dram_bytes;
    op->ns_quota_ssd_bytes = ns->quota_ssd_bytes;
}

static void make_id(const struct fb_op *op, uint8_t id[FB_NAMESPACE_ID_BYTES])
{
    struct fb_secret secret;
    fb_secret_derive(&secret, id_seed, sizeof(id_seed) - 1);
    struct fb_digest digest = fb_digest128(&secret, op->ns_fields, op->ns_fields_bytes);
    struct fb_writer writer;
    fb_writer_init(&writer, id, FB_NAMESPACE_ID_BYTES);
    fb_writer_u64(&writer, digest.lo);
    fb_writer_u64(&writer, digest.hi);
}

/* The change that an operation asks for, in *as: the namespace as it will be. Returns its number,
 * or a negative result that ends the operation. FB_OK + number of a known one is told by `known`.
 */
static int plan(struct fb_shard *shard, struct fb_op *op, struct fb_namespace *as, bool *known)
{
    *known = false;
    if (op->kind == FB_OP_EPOCH) {
        const struct fb_namespace *ns = fb_space_namespace(shard, op->ns);
        if (ns->epoch != op->epoch) {
            op->epoch = ns->epoch; /* durable, and told */
            return FB_STALE_EPOCH;
        }
        *as = *ns;
        as->epoch++;
        return op->ns;
    }
    *as = (struct fb_namespace){.used = true,
                                .epoch = 1,
                                .quota_dram_bytes = op->ns_quota_dram_bytes,
                                .quota_ssd_bytes = op->ns_quota_ssd_bytes,
                                .fields_bytes = op->ns_fields_bytes};
    make_id(op, as->id);
    int number = fb_space_find(shard, as->id);
    if (number >= 0) {
        /* The hash can be forged, so the fields say which namespace it is. */
        const struct fb_namespace *ns = &shard->namespaces[number];
        *known = ns->fields_bytes == op->ns_fields_bytes &&
                 memcmp(ns->fields, op->ns_fields, ns->fields_bytes) == 0;
        return *known ? number : FB_DENIED;
    }
    memcpy(as->secret, op->ns_secret, sizeof(as->secret));
    memcpy(as->fields, op->ns_fields, op->ns_fields_bytes);
    bool is_full = shard->namespace_count == shard->config.namespaces_max;
    return is_full ? FB_QUOTA : (int)shard->namespace_count;
}

/* The change is durable. */
static void apply(struct fb_shard *shard, struct fb_op *op)
{
    struct fb_namespace as;
    bool known;
    int number = plan(shard, op, &as, &known);
    FB_ASSERT(number >= 0 && !known);
    struct fb_namespace *ns = &shard->namespaces[number];
    uint16_t space = find_space(shard);
    FB_ASSERT(space != SPACE_NONE);
    if (op->kind == FB_OP_EPOCH) {
        shard->spaces[ns->space].retired = true;
        free_space_if_unused(shard, &shard->spaces[ns->space]);
        shard->stats.epoch_bumps++;
        shard->sweep_left = shard->index.count;
        shard->claim_sweep_left = shard->claims.count;
    }
    *ns = as;
    take_space(shard, space, (uint16_t)number, ns->epoch);
    ns->space = space;
    if (op->kind == FB_OP_NAMESPACE)
        note_id(shard, (uint16_t)number);
    answer(op, (uint16_t)number, ns);
}

static void conclude(struct fb_shard *shard, struct fb_op *op, int result)
{
    if (result == 0)
        apply(shard, op);
    fb_op_end(shard, op, result == 0 ? FB_OK : FB_IO,
              result == 0 ? FB_REASON_NONE : FB_REASON_IO_ERROR);
}

static void table_written(void *ctx, struct fb_log_names *names, int result)
{
    struct fb_shard *shard = ctx;
    (void)names;
    struct fb_op *op = shard->names_op;
    FB_ASSERT(op != NULL);
    shard->names_op = NULL;
    conclude(shard, op, result);
}

/*
 * True if nothing has to be durable: there is no device, or it is fenced and the namespace is new.
 * Behind a fence nothing of it gets onto the device, so that a start that does not know it makes it
 * anew. A bump has to be durable always: else the old epoch would be back.
 */
static bool is_for_memory(const struct fb_shard *shard, const struct fb_op *op)
{
    return shard->log == NULL ||
           (op->kind == FB_OP_NAMESPACE && fb_tier_now(shard) == FB_TIER_FENCED);
}

/* Serves the change in front. False if it has to wait. */
static bool serve(struct fb_shard *shard)
{
    struct fb_link *link = fb_list_first(&shard->names_queue);
    if (link == NULL || shard->names_op != NULL)
        return false;
    struct fb_op *op = FB_LIST_ITEM(link, struct fb_op, link);
    bool known;
    int number = plan(shard, op, &shard->names_plan, &known);
    bool waits = number >= 0 && !known && find_space(shard) == SPACE_NONE;
    if (waits)
        return false;
    fb_list_remove(link);
    if (known)
        answer(op, (uint16_t)number, &shard->namespaces[number]);
    if (known || number < 0) {
        fb_op_end(shard, op, known ? FB_OK : number, FB_REASON_NONE);
        return true;
    }
    uint32_t len = encode(shard, (uint16_t)number, &shard->names_plan);
    if (len == 0) {
        fb_op_end(shard, op, FB_QUOTA, FB_REASON_QUOTA);
    } else if (is_for_memory(shard, op)) {
        conclude(shard, op, 0);
    } else {
        shard->names_op = op;
        shard->names = (struct fb_log_names){.bytes = shard->names_bytes,
                                             .len = len,
                                             .done = table_written,
                                             .ctx = shard};
        fb_log_write_names(shard->log, shard->now_ns, &shard->names);
    }
    return true;
}

void fb_space_pump(struct fb_shard *shard)
{
    while (serve(shard))
        ;
}

void fb_space_start(struct fb_shard *shard, struct fb_op *op)
{
    bool opens = op->kind == FB_OP_NAMESPACE;
    if (opens && (op->ns_fields_bytes == 0 || op->ns_fields_bytes > FB_SHARD_FIELDS_MAX ||
                  op->ns_fields == NULL)) {
        fb_op_end(shard, op, FB_BAD_ARGUMENT, FB_REASON_NONE);
        return;
    }
    op->state = FB_OP_STATE_NAMES;
    fb_wheel_set(&shard->wheel, &op->timer, op->deadline_ns);
    fb_list_push_back(&shard->names_queue, &op->link);
}

void fb_space_leave(struct fb_shard *shard, struct fb_op *op, int result)
{
    if (shard->names_op == op) {
        /* The table is on its way and will count: the answer is early, the end is not. */
        if ((op->marks & FB_OP_DONE) == 0)
            fb_op_done(shard, op, result, FB_REASON_NONE);
        return;
    }
    fb_list_remove(&op->link);
    fb_op_end(shard, op, result, FB_REASON_NONE);
}

/* ---- the sweep ---- */

void fb_space_sweep(struct fb_shard *shard)
{
    uint32_t steps = (uint32_t)fb_min_u64(shard->sweep_left, FB_SHARD_TURN_SWEEP);
    shard->sweep_left -= steps;
    for (; steps > 0; steps--) {
        struct fb_entry *entry = &shard->index.entries[shard->sweep];
        shard->sweep = shard->sweep + 1 < shard->index.count ? shard->sweep + 1 : 0;
        if (entry->state == FB_ENTRY_FREE || !fb_entry_is(entry, FB_ENTRY_HASHED) ||
            !shard->spaces[entry->space].retired)
            continue;
        /* The table says durably that nothing of this epoch counts: no tombstone is needed. */
        fb_entry_clear(entry, FB_ENTRY_DOUBT);
        if (entry->state == FB_ENTRY_GHOST)
            fb_value_lay_ghost(shard, entry);
        else
            fb_value_drop(shard, entry, FB_REASON_EPOCH_BUMPED, true);
    }
    if (shard->sweep_left > 0)
        shard->more_work = true;
}
