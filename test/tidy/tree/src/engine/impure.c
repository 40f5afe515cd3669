/*
 * Each kind of impurity in a pure folder, and each wrong arrow.
 */
#include "base/good.h"
#include "io/io.h"

#include <pthread.h>
#include <sys/socket.h>
#include <time.h>

#include "good.h"
#include "io/sim.h"
#include "node/node.h"

int fb_impure(void)
{
    long now = time(NULL);
    void *memory = malloc(10);
    int number = rand();
    int fd = socket(1, 2, 3);
    pthread_create(NULL, NULL, NULL, memory);
    printf("%ld %d %d\n", now, number, fd);
    return 0;
}
