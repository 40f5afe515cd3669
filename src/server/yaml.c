/*
 * The configuration file: a flat map of scalars, read by libyaml's events. What is not that is
 * refused with its line: lists, maps in maps, aliases, a second document, a key that comes twice is
 * the setter's business.
 */
#include <stdio.h>
#include <string.h>
#include <yaml.h>

#include "server/options.h"

#define KEY_BYTES 64

enum place {
    AT_START,
    IN_MAP,
    AFTER_KEY,
    AT_END
};

struct reader {
    enum place place;
    char key[KEY_BYTES];
    fb_server_yaml_fn *set;
    void *context;
    char *why;
    size_t why_bytes;
};

static int not_flat(const struct reader *reader, const yaml_event_t *event, const char *what)
{
    snprintf(reader->why, reader->why_bytes, "line %zu: %s; write one 'name: value' a line",
             event->start_mark.line + 1, what);
    return -1;
}

static int on_scalar(struct reader *reader, const yaml_event_t *event)
{
    const char *text = (const char *)event->data.scalar.value;
    unsigned line = (unsigned)event->start_mark.line + 1;
    if (strlen(text) != event->data.scalar.length)
        return not_flat(reader, event, "a value with a zero byte in it");
    if (reader->place == IN_MAP) {
        if (snprintf(reader->key, sizeof(reader->key), "%s", text) >= (int)sizeof(reader->key))
            return not_flat(reader, event, "no setting has so long a name");
        reader->place = AFTER_KEY;
        return 0;
    }
    if (reader->place != AFTER_KEY) {
        /* An empty file, or one of comments alone, gives one empty scalar in some versions. */
        return text[0] == '\0' ? 0 : not_flat(reader, event, "a value without a name");
    }
    reader->place = IN_MAP;
    return reader->set(reader->context, reader->key, text, line, reader->why, reader->why_bytes);
}

static int on_event(struct reader *reader, const yaml_event_t *event)
{
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        return on_scalar(reader, event);
    case YAML_MAPPING_START_EVENT:
        if (reader->place != AT_START)
            return not_flat(reader, event, "a map within the map");
        reader->place = IN_MAP;
        return 0;
    case YAML_MAPPING_END_EVENT:
        reader->place = AT_END;
        return 0;
    case YAML_DOCUMENT_START_EVENT:
        return reader->place == AT_END ? not_flat(reader, event, "a second document") : 0;
    case YAML_SEQUENCE_START_EVENT:
        return not_flat(reader, event, "a list");
    case YAML_ALIAS_EVENT:
        return not_flat(reader, event, "an alias");
    default:
        return 0;
    }
}

int fb_server_yaml_read(const uint8_t *bytes, size_t count, fb_server_yaml_fn *set, void *context,
                        char *why, size_t why_bytes)
{
    struct reader reader = {.set = set, .context = context, .why = why, .why_bytes = why_bytes};
    yaml_parser_t parser;
    if (!yaml_parser_initialize(&parser)) {
        snprintf(why, why_bytes, "no memory to read it");
        return -1;
    }
    yaml_parser_set_input_string(&parser, bytes, count);
    int result = 0;
    for (bool done = false; !done && result == 0;) {
        yaml_event_t event;
        if (!yaml_parser_parse(&parser, &event)) {
            snprintf(why, why_bytes, "line %zu: not YAML: %s; write one 'name: value' a line",
                     parser.problem_mark.line + 1,
                     parser.problem != NULL ? parser.problem : "unreadable");
            result = -1;
            break;
        }
        done = event.type == YAML_STREAM_END_EVENT;
        result = on_event(&reader, &event);
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    return result;
}
