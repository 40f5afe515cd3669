/*
 * The command line: one table of commands, one of options, from which parsing and help are made.
 */
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/limits.h"
#include "base/size.h"
#include "cli/cli.h"

enum command_bit {
    PUT = 1 << 0,
    GET = 1 << 1,
    EXISTS = 1 << 2,
    RM = 1 << 3,
    LS = 1 << 4,
    WAIT = 1 << 5,
    BUMP = 1 << 6,
    STATUS = 1 << 7,
    EXPLAIN = 1 << 8,
    DOCTOR = 1 << 9,
    FSCK = 1 << 10
};

#define ANY             0xffffu
#define WITH_NODE       (ANY & ~(unsigned)FSCK)
#define WITH_KEYS       (PUT | GET | EXISTS | RM | WAIT | EXPLAIN | LS)
#define WITH_NS         (WITH_KEYS | BUMP)

#define HELP_COLUMN     24
#define HELP_WIDTH      96
#define HELP_TEXT_BYTES 256

#define MANY            1000000

const struct fb_cli_command fb_cli_commands[] = {
    {"put", PUT, "KEY [FILE] [KEY FILE]...", 1, MANY, "store values",
     "Reads each value from its FILE; '-' or nothing is standard input. A key that is there "
     "already is "
     "left as it is (EXISTS), unless --upsert is given.",
     fb_cli_put},
    {"get", GET, "KEY [FILE]", 1, 2, "read a value",
     "Writes the value to FILE, '-' or nothing is standard output. Every byte is checked before it "
     "is "
     "written.",
     fb_cli_get},
    {"exists", EXISTS, "KEY...", 1, MANY, "say whether keys are there, and in which tier",
     "Prints a line for each key. The exit code is 3 if one is not there.", fb_cli_exists},
    {"rm", RM, "KEY...", 1, MANY, "remove keys",
     "A removed key does not come back, also not by a crash.", fb_cli_rm},
    {"ls", LS, "", 0, 0, "list the keys of the namespace",
     "In no order; a repeat among the newest 65,536 keys is left out. Bytes that "
     "cannot be printed are written as \\xNN; --hex prints all keys in "
     "hex.",
     fb_cli_ls},
    {"wait", WAIT, "KEY...", 1, MANY, "wait until keys are on SSD",
     "Asks the node to write them, and waits.", fb_cli_wait},
    {"bump", BUMP, "", 0, 0, "invalidate the namespace",
     "Moves the namespace to a new epoch: none of its values can be reached any more. Clients that "
     "have it open get STALE_EPOCH until they open it anew.",
     fb_cli_bump},
    {"status", STATUS, "", 0, 0, "show the state of the node",
     "One line for each figure; --json prints what the node says.", fb_cli_status},
    {"explain", EXPLAIN, "KEY", 1, 1, "say where a key is, or what became of it",
     "The node remembers a bounded history; beyond it the answer is 'no record since'.",
     fb_cli_explain},
    {"doctor", DOCTOR, "", 0, 0, "check the whole path through the device",
     "Puts values of several sizes, waits until they are on SSD, drops them from DRAM, reads them "
     "back "
     "through the device, compares, removes them. Prints PASS, or FAIL and the first broken link "
     "(exit "
     "code 5). Uses a namespace of its own.",
     fb_cli_doctor},
    {"fsck", FSCK, "PATH", 1, 1, "check the file or device of an SSD tier, offline",
     "Only reads. Checks every structure, and that the two witnesses of each record agree; with "
     "--data "
     "the bytes of the values as well. Exit code 5 if something is damaged, or the file is no log "
     "of "
     "forebayd; 1 if it cannot be opened.",
     fb_cli_fsck},
    {NULL, 0, NULL, 0, 0, NULL, NULL, NULL},
};

/* ---- options ---- */

struct option_row {
    const char *name;
    const char *value; /* what it takes; NULL: nothing */
    uint32_t commands;
    bool (*take)(struct fb_cli_args *args, const char *value, char *why, size_t why_bytes);
    const char *environment; /* where the default comes from */
    const char *help;
};

static bool say(char *why, size_t why_bytes, const char *text)
{
    snprintf(why, why_bytes, "%s", text);
    return false;
}

static bool take_address(struct fb_cli_args *args, const char *value, char *why, size_t why_bytes)
{
    if (strlen(value) >= sizeof(args->address))
        return say(why, why_bytes, "it is too long");
    snprintf(args->address, sizeof(args->address), "%s", value);
    return true;
}

static bool take_socket(struct fb_cli_args *args, const char *value, char *why, size_t why_bytes)
{
    if (strlen(value) + sizeof("unix:") > sizeof(args->address))
        return say(why, why_bytes, "it is too long");
    snprintf(args->address, sizeof(args->address), "unix:%s", value);
    return true;
}

static bool take_timeout(struct fb_cli_args *args, const char *value, char *why, size_t why_bytes)
{
    uint64_t ns;
    if (fb_duration_parse(value, &ns, why, why_bytes) != 0)
        return false;
    uint64_t ms = fb_div_up(ns, FB_MS_NS);
    if (ms == 0 || ms > UINT32_MAX / 2)
        return say(why, why_bytes, "a deadline is 1 ms to 24 days");
    args->timeout_ms = (uint32_t)ms;
    return true;
}

/* One of some words; its number, or -1. */
static int one_of(const char *value, const char *const *words)
{
    for (int i = 0; words[i] != NULL; i++) {
        if (strcmp(value, words[i]) == 0)
            return i;
    }
    return -1;
}

static bool take_shm(struct fb_cli_args *args, const char *value, char *why, size_t why_bytes)
{
    static const char *const words[] = {"auto", "on", "off", NULL};
    int found = one_of(value, words);
    if (found < 0)
        return say(why, why_bytes, "it is one of auto, on, off");
    args->use_shm = (enum fb_shm_use)found;
    return true;
}

static bool take_persist(struct fb_cli_args *args, const char *value, char *why, size_t why_bytes)
{
    static const char *const words[] = {"default", "off", "evict", "behind", "through", NULL};
    int found = one_of(value, words);
    if (found < 0)
        return say(why, why_bytes, "it is one of default, off, evict, behind, through");
    args->persist_mode = (uint8_t)found;
    return true;
}

static bool take_pin(struct fb_cli_args *args, const char *value, char *why, size_t why_bytes)
{
    static const char *const words[] = {"normal", "soft", "hard", NULL};
    int found = one_of(value, words);
    if (found < 0)
        return say(why, why_bytes, "it is one of normal, soft, hard");
    args->pin_class = (uint8_t)found;
    return true;
}

static bool take_number(const char *value, uint64_t most, uint64_t *out, char *why,
                        size_t why_bytes)
{
    char *end;
    uint64_t number = strtoull(value, &end, 10);
    if (value[0] < '0' || value[0] > '9' || *end != '\0' || number > most) {
        snprintf(why, why_bytes, "it is a number up to %llu", (unsigned long long)most);
        return false;
    }
    *out = number;
    return true;
}

static bool take_depth(struct fb_cli_args *args, const char *value, char *why, size_t why_bytes)
{
    uint64_t number;
    if (!take_number(value, UINT16_MAX, &number, why, why_bytes))
        return false;
    args->depth = (uint16_t)number;
    return true;
}

static bool take_offset(struct fb_cli_args *args, const char *value, char *why, size_t why_bytes)
{
    return fb_size_parse(value, &args->range_off, why, why_bytes) == 0;
}

static bool take_length(struct fb_cli_args *args, const char *value, char *why, size_t why_bytes)
{
    if (fb_size_parse(value, &args->range_bytes, why, why_bytes) != 0)
        return false;
    return args->range_bytes != 0 || say(why, why_bytes, "it is at least 1 byte");
}

#define FLAG(name, statement)                                                                    \
    static bool take_##name(struct fb_cli_args *args, const char *value, char *why, size_t room) \
    {                                                                                            \
        (void)value;                                                                             \
        (void)why;                                                                               \
        (void)room;                                                                              \
        statement;                                                                               \
        return true;                                                                             \
    }

FLAG(json, args->json = true)
FLAG(quiet, args->quiet = true)
FLAG(hex, args->hex = true)
FLAG(help, args->help = true)
FLAG(version, args->version = true)
FLAG(upsert, args->put_flags |= FB_UPSERT)
FLAG(will_return, args->put_flags |= FB_WILL_RETURN)
FLAG(one_shot, args->put_flags |= FB_ONE_SHOT)
FLAG(data, args->data = true)
FLAG(dram_only, args->dram_only = true)
FLAG(group, args->group = value)
FLAG(model, args->ns.model = value)
FLAG(weights, args->ns.weights = value)
FLAG(adapter, args->ns.adapter = value)
FLAG(dtype, args->ns.dtype = value)
FLAG(layout, args->ns.layout = value)
FLAG(parallel, args->ns.parallel = value)
FLAG(salt, args->ns.salt = value)

static const struct option_row options[] = {
    {"address", "ADDRESS", WITH_NODE, take_address, "FOREBAY_ADDRESS",
     "where the node listens: unix:/path or tcp:host:port"},
    {"socket", "PATH", WITH_NODE, take_socket, NULL, "the same as --address unix:PATH"},
    {"model", "TEXT", WITH_NS, take_model, "FOREBAY_MODEL",
     "namespace: the model. At least one field of the namespace must be given"},
    {"weights", "TEXT", WITH_NS, take_weights, "FOREBAY_WEIGHTS",
     "namespace: digest of the weights"},
    {"adapter", "TEXT", WITH_NS, take_adapter, "FOREBAY_ADAPTER", "namespace: adapter and version"},
    {"dtype", "TEXT", WITH_NS, take_dtype, "FOREBAY_DTYPE", "namespace: type of the tensors"},
    {"layout", "TEXT", WITH_NS, take_layout, "FOREBAY_LAYOUT", "namespace: layout of a block"},
    {"parallel", "TEXT", WITH_NS, take_parallel, "FOREBAY_PARALLEL", "namespace: parallel shape"},
    {"salt", "TEXT", WITH_NS, take_salt, "FOREBAY_SALT", "namespace: tenant or session"},
    {"timeout", "TIME", WITH_NODE, take_timeout, NULL,
     "deadline of each call, say 5s; default 30 s and more for long values"},
    {"shm", "auto|on|off", WITH_NODE, take_shm, NULL, "use of shared memory"},
    {"hex", NULL, WITH_KEYS, take_hex, NULL, "keys are given, and printed, in hex"},
    {"upsert", NULL, PUT, take_upsert, NULL, "replace a value that is there"},
    {"persist", "MODE", PUT, take_persist, NULL,
     "when it goes to SSD: default, off, evict, behind, through"},
    {"pin", "CLASS", PUT, take_pin, NULL, "how much to keep it: normal, soft, hard"},
    {"group", "NAME", PUT, take_group, NULL, "what is useful only together"},
    {"depth", "N", PUT, take_depth, NULL, "the block's place in its prefix"},
    {"will-return", NULL, PUT, take_will_return, NULL, "its session is expected back"},
    {"one-shot", NULL, PUT, take_one_shot, NULL, "its session is not expected back"},
    {"offset", "SIZE", GET, take_offset, NULL, "first byte that is wanted"},
    {"length", "SIZE", GET, take_length, NULL, "how many bytes at most"},
    {"data", NULL, FSCK, take_data, NULL, "check the bytes of all values too"},
    {"dram-only", NULL, DOCTOR, take_dram_only, NULL, "leave the SSD out: for a node without one"},
    {"json", NULL, STATUS | EXPLAIN | EXISTS | FSCK | DOCTOR, take_json, NULL,
     "print JSON; a key that is no UTF-8 is null there, and key_hex has it in hex"},
    {"quiet", NULL, ANY, take_quiet, NULL, "print nothing but results and faults"},
    {"help", NULL, ANY, take_help, NULL, "print this"},
    {"version", NULL, ANY, take_version, NULL, "print the version"},
};

/* ---- help ---- */

/* Prints words behind a column, broken at the width. */
static void print_wrapped(FILE *out, int column, const char *text)
{
    int at = column;
    while (*text != '\0') {
        size_t word = strcspn(text, " ");
        if (at > column && at + 1 + (int)word > HELP_WIDTH) {
            fprintf(out, "\n%*s", column, "");
            at = column;
        } else if (at > column) {
            fputc(' ', out);
            at++;
        }
        fprintf(out, "%.*s", (int)word, text);
        at += (int)word;
        text += word;
        text += strspn(text, " ");
    }
    fputc('\n', out);
}

static void help_of_option(FILE *out, const struct option_row *row)
{
    char name[64];
    snprintf(name, sizeof(name), "  --%s%s%s", row->name, row->value != NULL ? " " : "",
             row->value != NULL ? row->value : "");
    fprintf(out, "%-*s", HELP_COLUMN, name);
    char text[HELP_TEXT_BYTES];
    snprintf(text, sizeof(text), "%s%s%s%s", row->help, row->environment != NULL ? " [" : "",
             row->environment != NULL ? row->environment : "", row->environment != NULL ? "]" : "");
    print_wrapped(out, HELP_COLUMN, text);
}

static void help_of_exits(FILE *out)
{
    fprintf(out, "\nExit codes: 0 done, 1 failed, 2 wrong command line, 3 a key is not there,\n"
                 "4 no node can be reached, 5 doctor or fsck found something broken.\n");
}

void fb_cli_help(FILE *out, const struct fb_cli_command *command)
{
    if (command == NULL) {
        fprintf(out, "Usage: forebay COMMAND [OPTION]... [WORD]...\n\n");
        for (const struct fb_cli_command *one = fb_cli_commands; one->name != NULL; one++)
            fprintf(out, "  %-10s %s\n", one->name, one->summary);
        fprintf(out, "\n'forebay COMMAND --help' says more, 'forebay --version' which one it is.\n"
                     "Options may be written --name=value too; what stands behind '--' is no "
                     "option.\n");
        help_of_exits(out);
        return;
    }
    fprintf(out, "Usage: forebay %s [OPTION]... %s\n\n", command->name, command->words);
    print_wrapped(out, 0, command->details);
    fprintf(out, "\nOptions (in brackets: the variable that gives the default):\n");
    for (size_t i = 0; i < FB_ARRAY_COUNT(options); i++) {
        if ((options[i].commands & command->bit) != 0)
            help_of_option(out, &options[i]);
    }
    help_of_exits(out);
}

/* ---- reading ---- */

static const struct fb_cli_command *find_command(const char *name)
{
    for (const struct fb_cli_command *one = fb_cli_commands; one->name != NULL; one++) {
        if (strcmp(one->name, name) == 0)
            return one;
    }
    return NULL;
}

static const struct option_row *find_option(const char *name, size_t bytes)
{
    for (size_t i = 0; i < FB_ARRAY_COUNT(options); i++) {
        if (strlen(options[i].name) == bytes && strncmp(options[i].name, name, bytes) == 0)
            return &options[i];
    }
    return NULL;
}

static bool take_value(struct fb_cli_args *args, const struct option_row *row, const char *value,
                       const char *from)
{
    char why[FB_SIZE_ERROR_BYTES] = "";
    if (row->take(args, value, why, sizeof(why)))
        return true;
    fb_cli_error("%s '%s': %s", from, value, why);
    return false;
}

/* Takes argv[*at], an option, and its value, which may be the next one. */
static bool read_option(int argc, char **argv, int *at, struct fb_cli_args *args, uint32_t *given)
{
    const char *word = argv[*at];
    if (strcmp(word, "-h") == 0)
        word = "--help";
    size_t bytes = strcspn(word + 2, "=");
    const struct option_row *row = word[1] == '-' ? find_option(word + 2, bytes) : NULL;
    if (row == NULL) {
        fb_cli_error("unknown option '%s'; 'forebay --help' lists all", word);
        return false;
    }
    const char *value = word[2 + bytes] == '=' ? word + 2 + bytes + 1 : NULL;
    if (row->value == NULL && value != NULL) {
        fb_cli_error("--%s takes no value", row->name);
        return false;
    }
    if (row->value != NULL && value == NULL) {
        if (*at + 1 >= argc) {
            fb_cli_error("--%s needs a value: %s", row->name, row->value);
            return false;
        }
        value = argv[++*at];
    }
    char from[64];
    snprintf(from, sizeof(from), "--%s", row->name);
    *given |= 1u << (row - options);
    return take_value(args, row, value, from);
}

/* Options that the environment gives, for those that the command line did not. */
static bool read_environment(struct fb_cli_args *args, uint32_t given)
{
    for (size_t i = 0; i < FB_ARRAY_COUNT(options); i++) {
        const struct option_row *row = &options[i];
        if (row->environment == NULL || (given & (1u << i)) != 0 || args->command == NULL ||
            (row->commands & args->command->bit) == 0)
            continue;
        if (row->take == take_address && args->address[0] != '\0')
            continue; /* --socket */
        const char *value = getenv(row->environment);
        if (value != NULL && value[0] != '\0' && !take_value(args, row, value, row->environment))
            return false;
    }
    return true;
}

/* What was given fits the command. */
static bool check(const struct fb_cli_args *args, uint32_t given)
{
    const struct fb_cli_command *command = args->command;
    for (size_t i = 0; i < FB_ARRAY_COUNT(options); i++) {
        if ((given & (1u << i)) != 0 && (options[i].commands & command->bit) == 0) {
            fb_cli_error("'%s' does not take --%s", command->name, options[i].name);
            return false;
        }
    }
    if (args->word_count < command->words_min || args->word_count > command->words_max) {
        fb_cli_error("usage: forebay %s [OPTION]... %s", command->name, command->words);
        return false;
    }
    return true;
}

/* The first word is the command, the others are its words. */
static bool take_word(struct fb_cli_args *args, char *word)
{
    if (args->command != NULL) {
        args->words[args->word_count++] = word;
        return true;
    }
    if (strcmp(word, "help") == 0) {
        args->help = true;
        return true;
    }
    args->command = find_command(word);
    if (args->command == NULL)
        fb_cli_error("unknown command '%s'; 'forebay --help' lists all", word);
    return args->command != NULL;
}

_Static_assert(FB_ARRAY_COUNT(options) <= 32, "options that were given are bits");

bool fb_cli_read(int argc, char **argv, struct fb_cli_args *args)
{
    memset(args, 0, sizeof(*args));
    args->words = calloc((size_t)argc + 1, sizeof(*args->words));
    if (args->words == NULL) {
        fb_cli_error("no memory");
        return false;
    }
    uint32_t given = 0;
    bool only_words = false;
    for (int at = 1; at < argc; at++) {
        bool is_option = !only_words && argv[at][0] == '-' && argv[at][1] != '\0';
        if (is_option && strcmp(argv[at], "--") == 0)
            only_words = true;
        else if (is_option ? !read_option(argc, argv, &at, args, &given)
                           : !take_word(args, argv[at]))
            return false;
    }
    if (args->help || args->version)
        return true;
    if (args->command == NULL) {
        fb_cli_help(stderr, NULL);
        return false;
    }
    return check(args, given) && read_environment(args, given);
}
