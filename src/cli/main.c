/* forebay: the command an operator types. Commands are in cmd_*.c, their options in options.c. */
#include <stdio.h>
#include <stdlib.h>

#include "base/limits.h"
#include "cli/cli.h"

static int run(int argc, char **argv, struct fb_cli_args *args)
{
    if (!fb_cli_read(argc, argv, args))
        return FB_CLI_USAGE;
    if (args->version) {
        printf("forebay %s\n", FB_VERSION_TEXT);
        return FB_CLI_OK;
    }
    if (args->help) {
        fb_cli_help(stdout, args->command);
        return FB_CLI_OK;
    }
    return args->command->run(args);
}

int main(int argc, char **argv)
{
    struct fb_cli_args args;
    int code = run(argc, argv, &args);
    free(args.words);
    fb_cli_progress_end();
    /* What was printed and cannot be written is a failure as well. */
    if (fflush(stdout) != 0 || ferror(stdout) != 0) {
        fb_cli_error("cannot write to standard output");
        return fb_cli_worse(code, FB_CLI_FAILED);
    }
    return code;
}
