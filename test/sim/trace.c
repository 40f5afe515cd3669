/*
 * trace.c - what happened last, and what was wrong about it.
 */
#include <stdarg.h>
#include <stdio.h>

#include "test/sim/world.h"

void sim_world_say(struct sim_world *world, const char *format, ...)
{
    char *line = world->trace[world->trace_next++ % SIM_TRACE_LINES];
    int used =
        snprintf(line, SIM_TEXT_MAX, "%10llu us  ", (unsigned long long)(world->now_ns / FB_US_NS));
    va_list list;
    va_start(list, format);
    vsnprintf(line + used, SIM_TEXT_MAX - (size_t)used, format, list);
    va_end(list);
    if (world->verbose)
        fprintf(stderr, "%s\n", line);
}

void sim_world_violation(struct sim_world *world, const char *format, ...)
{
    if (world->violation[0] != '\0')
        return;
    va_list list;
    va_start(list, format);
    vsnprintf(world->violation, sizeof(world->violation), format, list);
    va_end(list);
    sim_world_say(world, "VIOLATION: %s", world->violation);
}
