/*
 * How much memory this process may have: the least limit of its control groups, or the machine's.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bits.h"
#include "node/node_private.h"

#define PATH_ROOM  4096
#define LINE_ROOM  4096
#define GROUP_ROOT "/sys/fs/cgroup"

/* A number in a file, or 0: no such file, or "max". */
static uint64_t number_in(const char *path)
{
    char line[64];
    FILE *file = fopen(path, "re");
    uint64_t value = 0;
    if (file == NULL)
        return 0;
    if (fgets(line, sizeof(line), file) != NULL && line[0] >= '0' && line[0] <= '9')
        value = strtoull(line, NULL, 10);
    fclose(file);
    return value;
}

/* The path of this process in the unified hierarchy; false if there is none. */
static bool group_path(char *out, size_t room)
{
    char line[LINE_ROOM];
    FILE *file = fopen("/proc/self/cgroup", "re");
    bool found = false;
    if (file == NULL)
        return false;
    while (!found && fgets(line, sizeof(line), file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "0::", 3) == 0)
            found = (size_t)snprintf(out, room, "%s%s", GROUP_ROOT, line + 3) < room;
    }
    fclose(file);
    return found;
}

static uint64_t group_limit(void)
{
    char group[PATH_ROOM], path[PATH_ROOM + 32];
    uint64_t least =
        number_in(GROUP_ROOT "/memory/memory.limit_in_bytes"); /* the older hierarchy */
    if (!group_path(group, sizeof(group)))
        return least;
    /* A group is bound by the limits of all groups around it. */
    while (strlen(group) >= strlen(GROUP_ROOT)) {
        snprintf(path, sizeof(path), "%s/memory.max", group);
        uint64_t limit = number_in(path);
        if (limit != 0 && (least == 0 || limit < least))
            least = limit;
        char *slash = strrchr(group, '/');
        *slash = '\0';
    }
    return least;
}

uint64_t fb_node_memory_limit(const char **from)
{
    long pages = sysconf(_SC_PHYS_PAGES);
    long page_bytes = sysconf(_SC_PAGESIZE);
    uint64_t machine = pages > 0 && page_bytes > 0 ? (uint64_t)pages * (uint64_t)page_bytes : 0;
    uint64_t group = group_limit();
    *from = "the machine";
    if (group != 0 && (machine == 0 || group < machine)) {
        *from = "the control group";
        return group;
    }
    return machine;
}
