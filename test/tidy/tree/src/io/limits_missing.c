/*
 * Numbers without a name, calls without a bound; io may call the system.
 */
#include "io/limits_missing.h"

#include <string.h>
#include <unistd.h>

#include "engine/x_private.h"

#define NAMED 100000

int fb_io_read(int fd, char *out)
{
    char buffer[100];
    long big = 1025;
    long hexadecimal = 0x10000;
    long shifted = 1 << 20;
    strcpy(out, "x");
    (void)read(fd, buffer, sizeof(buffer));
    return big + hexadecimal + shifted + NAMED + 1024;
}
