/* Says what goes on: one line that is written over on a terminal, a line now and then elsewhere. */
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "test/demo/demo.h"

#define TERMINAL_MS 250
#define LOG_MS      4000
#define STEP_MS     10

static struct {
    const char *stage;
    uint64_t total;
    atomic_uint_fast64_t done;
    atomic_bool stop;
    pthread_t thread;
    bool running;
} progress;

double progress_seconds(void)
{
    static uint64_t begun;
    uint64_t now = test_now_ns();
    if (begun == 0)
        begun = now;
    return (double)(now - begun) / 1e9;
}

void say(const char *format, ...)
{
    char text[512];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    printf("%s%6.1f s  %s\n", isatty(1) ? "\r\033[K" : "", progress_seconds(), text);
    fflush(stdout);
}

static void show(void)
{
    uint64_t done = atomic_load(&progress.done);
    double share = progress.total > 0 ? 100.0 * (double)done / (double)progress.total : 100.0;
    if (isatty(1))
        printf("\r\033[K%6.1f s  %s %.0f %%", progress_seconds(), progress.stage, share);
    else
        printf("%6.1f s  %s %.0f %%\n", progress_seconds(), progress.stage, share);
    fflush(stdout);
}

static void *progress_run(void *unused)
{
    (void)unused;
    unsigned period = isatty(1) ? TERMINAL_MS : LOG_MS;
    for (unsigned waited = 0; !atomic_load(&progress.stop); waited += STEP_MS) {
        if (waited >= period) {
            show();
            waited = 0;
        }
        test_sleep_ms(STEP_MS);
    }
    return NULL;
}

void progress_begin(const char *stage, uint64_t total)
{
    progress_end();
    progress.stage = stage;
    progress.total = total;
    atomic_store(&progress.done, 0);
    atomic_store(&progress.stop, false);
    progress.running = pthread_create(&progress.thread, NULL, progress_run, NULL) == 0;
}

void progress_add(uint64_t steps)
{
    atomic_fetch_add(&progress.done, steps);
}

void progress_end(void)
{
    if (!progress.running)
        return;
    atomic_store(&progress.stop, true);
    pthread_join(progress.thread, NULL);
    progress.running = false;
    if (isatty(1)) {
        printf("\r\033[K");
        fflush(stdout);
    }
}
