/*
 * wire_job.c - copies between clients and the pool. A client works on one of its jobs at a time, a
 * few pages in a turn, in any order, as late as it happens; sometimes it asks before a turn if the
 * job is still wanted, sometimes it does not know better.
 */
#include <stdlib.h>

#include "base/assert.h"
#include "base/bits.h"
#include "test/sim/wire.h"

/* The pages of the pool that a job is about, from its runs: those are valid only now. */
static void note_pages(struct wire_job *job)
{
    uint32_t count = (uint32_t)fb_div_up(job->job.part_bytes, FB_PAGE_BYTES);
    job->pages = malloc(count * sizeof(*job->pages));
    job->tokens = calloc(count, sizeof(*job->tokens));
    FB_ASSERT(job->pages != NULL && job->tokens != NULL);
    job->page_count = 0;
    for (uint32_t i = 0; i < job->job.run_count; i++) {
        struct fb_wire_run run = fb_wire_run_at(job->job.runs, i);
        FB_ASSERT(run.off % FB_PAGE_BYTES == 0);
        for (uint32_t off = 0; off < run.len; off += FB_PAGE_BYTES) {
            FB_ASSERT(job->page_count < count);
            job->pages[job->page_count++] = (uint32_t)((run.off + off) / FB_PAGE_BYTES);
        }
    }
    FB_ASSERT(job->page_count == count);
}

/* The node has granted the item's put. */
static void granted(struct sim_world *world, struct sim_slot *slot, const struct fb_proto_job *job)
{
    slot->wire_op = job->op;
    if (slot->state != SIM_WAITING)
        return;
    slot->state = SIM_WRITING;
    slot->op.generation = job->generation;
    sim_check_grant(world, slot);
}

/* Takes the jobs of the frame that came last. */
void wire_job_take(struct sim_world *world, struct wire_client *client)
{
    struct sim_wire *wire = world->wire;
    struct fb_proto_job taken;
    while (fb_proto_client_take_job(client->proto, &taken)) {
        FB_ASSERT(wire->free_count > 0 && taken.call == &client->call);
        uint32_t number = wire->free_jobs[--wire->free_count];
        struct wire_job *job = &wire->jobs[number];
        *job = (struct wire_job){.used = true,
                                 .job = taken,
                                 .life = world->wire->links[client->link].life};
        note_pages(job);
        job->job.runs = NULL;
        client->jobs[client->job_count++] = number;
        if (taken.to_pool) {
            granted(world, &client->slots[taken.item], &taken);
            world->report->wire.jobs_put++;
        } else {
            world->report->wire.jobs_get++;
        }
    }
}

static void free_job(struct sim_world *world, struct wire_client *client, uint32_t place)
{
    struct sim_wire *wire = world->wire;
    uint32_t number = client->jobs[place];
    struct wire_job *job = &wire->jobs[number];
    free(job->pages);
    free(job->tokens);
    job->used = false;
    wire->free_jobs[wire->free_count++] = number;
    client->jobs[place] = client->jobs[--client->job_count];
}

/* The process is dead: none of its copies goes on. */
void wire_job_drop(struct sim_world *world, struct wire_client *client)
{
    while (client->job_count > 0)
        free_job(world, client, client->job_count - 1);
}

static struct fb_sim_value value_of(const struct sim_world *world, const struct sim_slot *slot)
{
    return (struct fb_sim_value){.key = (uint64_t)slot->space * SIM_KEYS + slot->key + 1,
                                 .version = slot->version,
                                 .bytes = world->versions[slot->version].bytes};
}

/* Moves some pages. A node that is gone took its pool along: then they go nowhere. */
static void move_pages(struct sim_world *world, struct wire_client *client, struct wire_job *job,
                       uint32_t count)
{
    const struct sim_slot *slot = &client->slots[job->job.item];
    struct fb_sim_page *arena = fb_sim_arena(world->sim);
    bool is_there = world->up && job->life == world->crashes;
    world->report->wire.jobs_of_dead_node += !is_there;
    struct fb_sim_value value = value_of(world, slot);
    uint64_t first = job->job.value_off / FB_PAGE_BYTES;
    for (uint32_t i = job->pages_done; i < job->pages_done + count && is_there; i++) {
        if (job->job.to_pool)
            arena[job->pages[i]] = fb_sim_token(value.key, value.version, first + i);
        else
            job->tokens[i] = arena[job->pages[i]];
    }
    job->pages_done += count;
}

/* Notes what a get was given of the part that it wanted, and hashes all of the part. */
static void read_part(struct sim_world *world, struct sim_slot *slot, const struct wire_job *job,
                      uint64_t *leaves)
{
    const struct fb_proto_job *copy = &job->job;
    uint64_t first = copy->want_off / FB_PAGE_BYTES;
    uint64_t last = fb_div_up((uint64_t)copy->want_off + copy->want_bytes, FB_PAGE_BYTES);
    for (uint64_t i = first; i < last; i++)
        sim_check_note(world, slot, job->tokens[i], copy->value_off / FB_PAGE_BYTES + i);
    slot->seen_bytes += copy->want_bytes;
    for (uint64_t off = 0, leaf = 0; off < copy->part_bytes; off += FB_LEAF_BYTES, leaf++)
        leaves[leaf] = fb_sim_leaf_hash(job->tokens + off / FB_PAGE_BYTES,
                                        fb_min_u64(FB_LEAF_BYTES, copy->part_bytes - off));
}

/* All its pages were moved. */
static void end_job(struct sim_world *world, struct wire_client *client, uint32_t place)
{
    struct wire_job *job = &world->wire->jobs[client->jobs[place]];
    struct sim_slot *slot = &client->slots[job->job.item];
    uint64_t leaves[FB_PROTO_LEAVES_MAX];
    FB_ASSERT(job->job.leaf_count <= FB_PROTO_LEAVES_MAX);
    if (job->job.to_pool) {
        struct fb_sim_value value = value_of(world, slot);
        uint64_t count = sim_client_leaves(&value, job->job.value_off, job->job.part_bytes, leaves);
        FB_ASSERT(count == job->job.leaf_count);
        if (world->versions[slot->version].lie)
            leaves[0] ^= 1;
    } else {
        read_part(world, slot, job, leaves);
    }
    fb_proto_client_job_done(client->proto, sim_world_clock(world), &job->job, leaves, true);
    client->busy_ns = sim_world_clock(world);
    free_job(world, client, place);
}

/* One turn on one of the client's jobs. */
void wire_job_work(struct sim_world *world, struct wire_client *client)
{
    struct sim_wire_report *report = &world->report->wire;
    if (client->job_count == 0)
        return;
    uint32_t place = (uint32_t)wire_below(world, client->job_count);
    struct wire_job *job = &world->wire->jobs[client->jobs[place]];
    bool is_wanted = fb_proto_client_job_is_wanted(client->proto, &job->job);
    if (!is_wanted && sim_world_chance(world, world->knobs.ask_ppm)) {
        report->jobs_unwanted++;
        fb_proto_client_job_done(client->proto, sim_world_clock(world), &job->job, NULL, false);
        client->busy_ns = sim_world_clock(world);
        free_job(world, client, place);
        return;
    }
    if (!is_wanted && !job->noted) {
        job->noted = true;
        report->jobs_late++;
    }
    uint32_t left = job->page_count - job->pages_done;
    move_pages(world, client, job, 1 + (uint32_t)wire_below(world, left));
    if (job->pages_done == job->page_count)
        end_job(world, client, place);
}
