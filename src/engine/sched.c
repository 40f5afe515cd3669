/*
 * The scheduler of one device. See sched.h.
 */
#include "engine/sched.h"

#include "base/assert.h"

void fb_sched_init(struct fb_sched *sched, uint32_t read_depth, uint32_t write_depth)
{
    FB_ASSERT(read_depth > 0 && write_depth > 0);
    *sched = (struct fb_sched){.read_depth = read_depth, .write_depth = write_depth};
    fb_list_init(&sched->urgent);
    fb_list_init(&sched->reads);
    fb_list_init(&sched->meta);
}

void fb_sched_push(struct fb_sched *sched, enum fb_sched_class class, uint64_t now_ns,
                   struct fb_io_req *req)
{
    fb_link_init(&req->link);
    if (class == FB_SCHED_URGENT) {
        fb_list_push_back(&sched->urgent, &req->link);
    } else if (class == FB_SCHED_META) {
        fb_list_push_back(&sched->meta, &req->link);
    } else {
        FB_ASSERT(class == FB_SCHED_READ);
        fb_list_push_back(&sched->reads, &req->link);
        sched->reads_queued++;
        sched->last_read_ns = now_ns;
        sched->has_read = true;
    }
}

static struct fb_io_req *pop(struct fb_list *list)
{
    struct fb_link *link = fb_list_pop_front(list);
    return link != NULL ? FB_LIST_ITEM(link, struct fb_io_req, link) : NULL;
}

struct fb_io_req *fb_sched_take(struct fb_sched *sched, enum fb_sched_class *class)
{
    struct fb_io_req *req = pop(&sched->urgent);
    *class = FB_SCHED_URGENT;
    if (req != NULL)
        return req;
    if (sched->reads_in_flight < sched->read_depth && (req = pop(&sched->reads)) != NULL) {
        *class = FB_SCHED_READ;
        FB_ASSERT(sched->reads_queued > 0);
        sched->reads_queued--;
        sched->reads_in_flight++;
        if (sched->reads_in_flight > sched->reads_in_flight_max)
            sched->reads_in_flight_max = sched->reads_in_flight;
        return req;
    }
    if (sched->meta_in_flight < FB_SCHED_META_DEPTH && (req = pop(&sched->meta)) != NULL) {
        *class = FB_SCHED_META;
        sched->meta_in_flight++;
    }
    return req;
}

/* A clock that went back makes "not long ago" of any time; writes then yield for one quiet time. */
static bool are_reads_active(const struct fb_sched *sched, uint64_t now_ns)
{
    if (sched->reads_queued > 0 || sched->reads_in_flight > 0)
        return true;
    return sched->has_read && now_ns - sched->last_read_ns < FB_SCHED_READ_QUIET_NS;
}

uint64_t fb_sched_write_room(const struct fb_sched *sched, uint64_t now_ns)
{
    if (are_reads_active(sched, now_ns))
        return sched->writes_in_flight == 0 ? FB_SCHED_SLICE_BYTES_BESIDE_READS : 0;
    return sched->writes_in_flight < sched->write_depth ? FB_SCHED_SLICE_BYTES : 0;
}

void fb_sched_write_started(struct fb_sched *sched)
{
    sched->writes_in_flight++;
}

void fb_sched_done(struct fb_sched *sched, enum fb_sched_class class, uint64_t now_ns)
{
    if (class == FB_SCHED_READ) {
        FB_ASSERT(sched->reads_in_flight > 0);
        sched->reads_in_flight--;
        sched->last_read_ns = now_ns;
    } else if (class == FB_SCHED_META) {
        FB_ASSERT(sched->meta_in_flight > 0);
        sched->meta_in_flight--;
    } else if (class == FB_SCHED_WRITE) {
        FB_ASSERT(sched->writes_in_flight > 0);
        sched->writes_in_flight--;
    }
}

struct fb_io_req *fb_sched_drop_read(struct fb_sched *sched)
{
    struct fb_io_req *req = pop(&sched->reads);
    if (req != NULL) {
        FB_ASSERT(sched->reads_queued > 0);
        sched->reads_queued--;
    }
    return req;
}
