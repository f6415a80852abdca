/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/option.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <yaml.h>

/*
 * DESIGN
 *
 * The file is one flat mapping from option names to scalars, or to a sequence of scalars where the
 * option is a list:
 *
 *    port: 8080
 *    worker-urls:
 *      - http://10.0.0.1:8000
 *      - http://10.0.0.2:8000
 *
 * It is read as a stream of events with a small state machine, never as a tree: so anchors, tags
 * and nesting, where YAML keeps its surprises, are refused in one place each, and a mistake is
 * known with the line and column of its own token. After a mistake the offending value is skipped
 * and reading goes on; only a syntax error of YAML itself ends it. libyaml is named here only.
 */

enum { FILE_BYTES_MAX = 1 << 20, PLACE_BYTES_MAX = 512 };

enum yaml_state {
    YAML_BEFORE_MAPPING, /* nothing read yet */
    YAML_KEY,            /* at a key, or the mapping's end */
    YAML_VALUE,          /* at the value of option */
    YAML_ITEM,           /* in the sequence of option */
    YAML_SKIP,           /* within a value that was refused; depth counts what is open */
    YAML_END,            /* behind the mapping */
};

struct yaml_reader {
    struct option_set *set;
    const char *path;
    enum yaml_state state;
    const struct option *option; /* whose value is read; NULL: it is skipped without a word */
    unsigned depth;              /* collections open in YAML_SKIP */
    enum yaml_state after_skip;  /* where YAML_SKIP leads */
    bool *is_seen;               /* one per row */
    char place_text[PLACE_BYTES_MAX];
};

/* "path:line:column", and ": name" where a known key is being read. */
static struct option_place place_at(struct yaml_reader *reader, yaml_mark_t mark)
{
    snprintf(reader->place_text, sizeof reader->place_text, "%s:%zu:%zu%s%s", reader->path,
             mark.line + 1, mark.column + 1, reader->option == NULL ? "" : ": ",
             reader->option == NULL ? "" : reader->option->name);
    return (struct option_place){
        .origin = {OPTION_FROM_FILE, reader->path, (unsigned)mark.line + 1},
        .text = reader->place_text,
    };
}

static void refuse(struct yaml_reader *reader, const yaml_event_t *event, const char *sentence)
{
    struct option_place place = place_at(reader, event->start_mark);

    option_set_error(reader->set, &place, "%s", sentence);
}

static struct slice scalar_of(const yaml_event_t *event)
{
    return slice_of(event->data.scalar.value, event->data.scalar.length);
}

/* What YAML calls null, when it is not in quotes. */
static bool is_null(const yaml_event_t *event)
{
    struct slice value = scalar_of(event);

    return event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (value.len == 0 || slice_eq(value, SLICE("~")) || slice_eq_nocase(value, SLICE("null")));
}

/* The key's option, or NULL after saying why its value cannot be taken. */
static const struct option *find_key(struct yaml_reader *reader, const yaml_event_t *event)
{
    const struct option_table *table = reader->set->table;
    struct slice key = scalar_of(event);
    const struct option *option = option_table_find(table, key);
    struct option_place place = place_at(reader, event->start_mark);
    char hint[128];

    if (option == NULL) {
        option_table_hint(table, key, "", hint);
        option_set_error(reader->set, &place, "there is no option of this name%s", hint);
        return NULL;
    }
    if (option->phase == OPTION_COMMAND) {
        option_set_error(reader->set, &place, "%s belongs on the command line, not in a file",
                         option->name);
        return NULL;
    }
    if (reader->is_seen[option - table->options]) {
        option_set_error(reader->set, &place, "%s is given twice in this file", option->name);
        return NULL;
    }
    reader->is_seen[option - table->options] = true;
    return option;
}

/* Passes over what is in depth open collections, to state next. */
static void skip(struct yaml_reader *reader, unsigned depth, enum yaml_state next)
{
    reader->depth = depth;
    reader->after_skip = next;
    reader->state = YAML_SKIP;
}

static void on_key(struct yaml_reader *reader, const yaml_event_t *event)
{
    reader->option = NULL;
    switch (event->type) {
    case YAML_MAPPING_END_EVENT:
        reader->state = YAML_END;
        break;
    case YAML_SCALAR_EVENT:
        reader->option = find_key(reader, event);
        reader->state = YAML_VALUE;
        break;
    case YAML_ALIAS_EVENT:
        refuse(reader, event, "aliases are not supported; write the value out");
        reader->state = YAML_VALUE;
        break;
    default:
        refuse(reader, event, "a key must be the name of an option");
        skip(reader, 1, YAML_VALUE);
        break;
    }
}

static void assign(struct yaml_reader *reader, const yaml_event_t *event)
{
    struct option_place place = place_at(reader, event->start_mark);

    if (reader->option == NULL)
        return;
    if (is_null(event))
        option_set_error(reader->set, &place, "has no value; remove the line to use the default");
    else
        option_set_assign(reader->set, reader->option, scalar_of(event), &place);
}

/* A collection where its key wants another form. A refused key was reason enough. */
static void refuse_value(struct yaml_reader *reader, const yaml_event_t *event, const char *why)
{
    if (reader->option != NULL)
        refuse(reader, event, why);
    skip(reader, 1, YAML_KEY);
}

static void on_value(struct yaml_reader *reader, const yaml_event_t *event)
{
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        assign(reader, event);
        reader->state = YAML_KEY;
        break;
    case YAML_SEQUENCE_START_EVENT:
        if (reader->option != NULL && reader->option->kind == OPTION_LIST)
            reader->state = YAML_ITEM;
        else
            refuse_value(reader, event, "takes one value, not a list");
        break;
    case YAML_MAPPING_START_EVENT:
        refuse_value(reader, event, "takes a value, not a mapping; check the indentation");
        break;
    default:
        if (reader->option != NULL)
            refuse(reader, event, "aliases are not supported; write the value out");
        reader->state = YAML_KEY;
        break;
    }
}

static void on_item(struct yaml_reader *reader, const yaml_event_t *event)
{
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        assign(reader, event);
        break;
    case YAML_SEQUENCE_END_EVENT:
        reader->state = YAML_KEY;
        break;
    case YAML_ALIAS_EVENT:
        refuse(reader, event, "aliases are not supported; write the value out");
        break;
    default:
        refuse(reader, event, "takes a flat list of values");
        skip(reader, 2, YAML_KEY); /* the rest of the sequence goes with it */
        break;
    }
}

static void on_skip(struct yaml_reader *reader, const yaml_event_t *event)
{
    assert(reader->depth > 0);

    if (event->type == YAML_SEQUENCE_START_EVENT || event->type == YAML_MAPPING_START_EVENT)
        reader->depth++;
    if (event->type == YAML_SEQUENCE_END_EVENT || event->type == YAML_MAPPING_END_EVENT)
        reader->depth--;
    if (reader->depth == 0)
        reader->state = reader->after_skip;
}

static bool is_framing(yaml_event_type_t type)
{
    return type == YAML_STREAM_START_EVENT || type == YAML_STREAM_END_EVENT ||
           type == YAML_DOCUMENT_START_EVENT || type == YAML_DOCUMENT_END_EVENT;
}

/* The file's outermost value: a mapping, or nothing at all. */
static void on_root(struct yaml_reader *reader, const yaml_event_t *event)
{
    if (event->type == YAML_MAPPING_START_EVENT) {
        reader->state = YAML_KEY;
    } else if (event->type == YAML_SCALAR_EVENT && is_null(event)) {
        reader->state = YAML_END;
    } else {
        refuse(reader, event, "the file must hold lines of the form `name: value`");
        if (event->type == YAML_SEQUENCE_START_EVENT)
            skip(reader, 1, YAML_END);
        else
            reader->state = YAML_END;
    }
}

/* False: there is nothing sensible to read behind this event. */
static bool on_event(struct yaml_reader *reader, const yaml_event_t *event)
{
    if (event->type == YAML_DOCUMENT_START_EVENT && reader->state == YAML_END) {
        reader->option = NULL;
        refuse(reader, event, "a second document begins here; only one is read");
        return false;
    }
    if (is_framing(event->type))
        return event->type != YAML_STREAM_END_EVENT;
    switch (reader->state) {
    case YAML_BEFORE_MAPPING:
        on_root(reader, event);
        break;
    case YAML_KEY:
        on_key(reader, event);
        break;
    case YAML_VALUE:
        on_value(reader, event);
        break;
    case YAML_ITEM:
        on_item(reader, event);
        break;
    case YAML_SKIP:
        on_skip(reader, event);
        break;
    case YAML_END:
        abort(); /* a document has one root */
    }
    return true;
}

static void report_syntax_error(struct yaml_reader *reader, const yaml_parser_t *parser)
{
    const char *hint = parser->problem != NULL && strstr(parser->problem, "cannot start any token")
                           ? " (indent with spaces, and put the value in quotes)"
                           : "";
    struct option_place place;

    reader->option = NULL;
    place = place_at(reader, parser->problem_mark);
    option_set_error(reader->set, &place, "not YAML: %s%s",
                     parser->problem == NULL ? "no memory" : parser->problem, hint);
}

void option_set_read_yaml(struct option_set *set, const char *path, struct slice text)
{
    struct yaml_reader reader = {.set = set, .state = YAML_BEFORE_MAPPING};
    struct slice kept_path = arena_copy(&set->arena, slice_of_string(path)); /* for origins */
    yaml_parser_t parser;
    yaml_event_t event;
    bool goes_on = true;

    reader.is_seen = calloc(set->table->count, sizeof *reader.is_seen);
    assert(kept_path.ptr != NULL && reader.is_seen != NULL);
    reader.path = kept_path.ptr;
    if (yaml_parser_initialize(&parser) == 0)
        abort(); /* no memory, at the start of a process */
    yaml_parser_set_input_string(&parser, (const unsigned char *)text.ptr, text.len);
    while (goes_on) {
        if (yaml_parser_parse(&parser, &event) == 0) {
            report_syntax_error(&reader, &parser);
            break;
        }
        goes_on = on_event(&reader, &event);
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    free(reader.is_seen);
}

/* Reads all of fd, at most FILE_BYTES_MAX. */
static int read_all(int fd, struct buf *bytes)
{
    for (;;) {
        ssize_t count;
        int status = buf_reserve(bytes, 4096);

        if (status < 0)
            return status == -ENOBUFS ? -EFBIG : status;
        count = read(fd, bytes->bytes + bytes->end, 4096);
        if (count < 0 && errno != EINTR)
            return -errno;
        if (count == 0)
            return 0;
        if (count > 0)
            bytes->end += (size_t)count;
    }
}

void option_set_read_file(struct option_set *set, const char *path)
{
    const struct option_place place = {.origin = {.source = OPTION_FROM_FILE}, .text = path};
    struct buf bytes;
    int status;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0) {
        option_set_error(set, &place, "cannot be opened: %s", strerror(errno));
        return;
    }
    buf_init(&bytes, FILE_BYTES_MAX);
    status = read_all(fd, &bytes);
    if (status < 0)
        option_set_error(set, &place, "cannot be read: %s", strerror(-status));
    else
        option_set_read_yaml(set, path, buf_slice(&bytes));
    buf_release(&bytes);
    close(fd);
}
