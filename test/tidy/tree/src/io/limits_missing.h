#ifndef FB_IO_LIMITS_MISSING_H
#define FB_IO_LIMITS_MISSING_H

#define IO_NAMED 5

struct io_thing {
    int number;
};

enum io_kind {
    IO_ONE,
};

typedef struct fb_io_hidden fb_io_hidden;

extern int io_number;

int fb_io_read(int fd, char *out);

/* The comment is not directly above. */

int fb_io_write(int fd);

/* A pointer comes back. */
const char *io_name(int number, int (*call)(int number));

static inline int fb_io_twice(int number)
{
    return number * 2;
}

#endif
