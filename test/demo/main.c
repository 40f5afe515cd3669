/*
 * fb-demo: replays both reports. Shows that a real server under a real load keeps what it took and
 * gives it back byte for byte; cannot show what happens under faults (the simulator and fb-crash
 * do).
 *
 * Exit code: 0 both reports hold, 1 one does not, 2 usage.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "test/demo/demo.h"

static const char usage[] =
    "fb-demo [--only a|b] [--quick] [--keep] [--break nowait|wholebatch]\n"
    "  --only    one report\n"
    "  --quick   report A in its first form only\n"
    "  --keep    leave the data directories\n"
    "  --break   an old behaviour, in a test build: the demo must then fail\n"
    "The data goes to a fresh directory below $TEST_DIR, or /var/tmp.\n";

static int parse(int argc, char **argv, struct demo_options *options)
{
    static const struct option list[] = {{"only", required_argument, NULL, 'o'},
                                         {"quick", no_argument, NULL, 'q'},
                                         {"keep", no_argument, NULL, 'k'},
                                         {"break", required_argument, NULL, 'b'},
                                         {"help", no_argument, NULL, 'h'},
                                         {NULL, 0, NULL, 0}};
    int c;
    while ((c = getopt_long(argc, argv, "", list, NULL)) != -1) {
        if (c == 'o' && (strcmp(optarg, "a") == 0 || strcmp(optarg, "b") == 0))
            options->only = optarg;
        else if (c == 'b' && (strcmp(optarg, "nowait") == 0 || strcmp(optarg, "wholebatch") == 0))
            options->broken = optarg;
        else if (c == 'h')
            exit(fputs(usage, stdout) < 0);
        else if (c == 'q')
            options->quick = true;
        else if (c == 'k')
            options->keep = true;
        else
            return -1;
    }
    return optind == argc ? 0 : -1;
}

/* An old behaviour is switched on here too, since one of them is the client library's. The report
 * that it broke is enough then. */
static int break_something(struct demo_options *options)
{
    if (options->broken == NULL)
        return 0;
    if (fb_bug_enable(options->broken) != 0) {
        fprintf(stderr, "fb-demo: --break %s needs a test build: BUILD=hooks\n", options->broken);
        return -1;
    }
    if (options->only == NULL)
        options->only = strcmp(options->broken, "nowait") == 0 ? "a" : "b";
    return 0;
}

int main(int argc, char **argv)
{
    struct demo_options options = {.only = NULL};
    char a[DEMO_LINE_BYTES] = "", b[DEMO_LINE_BYTES] = "";
    if (parse(argc, argv, &options) != 0) {
        fputs(usage, stderr);
        return 2;
    }
    if (break_something(&options) != 0)
        return 2;
    progress_seconds();
    int result = 0;
    if (options.only == NULL || options.only[0] == 'a')
        result |= report_a(&options, a);
    if (options.only == NULL || options.only[0] == 'b')
        result |= report_b(&options, b);
    if (result != 0)
        say("a report does not hold: see FAILED above");
    if (a[0] != '\0')
        puts(a);
    if (b[0] != '\0')
        puts(b);
    return result;
}
