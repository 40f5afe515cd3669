/*
 * Numbers without a name, calls without a bound; io may call the system.
 */
#include "io/limits_missing.h"

#include <string.h>
#include <unistd.h>

#include "engine/x_private.h"

#define NAMED     100000
#define NAMED_TOO (FB_MIB(7) + (1 << 20))

int fb_io_read(int fd, char *out)
{
    char buffer[100];
    long big = 1025;
    long hexadecimal = 0x10000;
    long shifted = 1 << 20;
    strcpy(out, "x");
    (void)read(fd, buffer, sizeof(buffer));
    long sized = FB_MIB(7);
    long shifted_wide = UINT64_C(1) << 40;
    return big + hexadecimal + shifted + sized + shifted_wide + NAMED + (1 << 10) + 1024;
}
