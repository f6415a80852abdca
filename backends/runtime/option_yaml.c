/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/option.h"

#include "backends/runtime/utf8.h"

#include <yaml.h>

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

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
 * and reading goes on. A syntax error of YAML ends libyaml's parser for good; since the file is
 * flat, a new one begins at the next line that starts with a letter in column 1, which is where an
 * option begins. So one broken line hides no other mistake. What is no file of options at all is
 * given up after as many mistakes as are kept. libyaml is named here only.
 */

enum {
    FILE_BYTES_MAX = 1 << 20,
    READ_BYTES = 4096,
    PLACE_BYTES_MAX = 512,
    SYNTAX_ERROR_COUNT_MAX = 16, /* each reads the rest of the file anew */
};

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
    struct slice text; /* the whole file */
    size_t first_line; /* of the file, from 0, where the parser at work began */
    enum yaml_state state;
    const struct option *option; /* whose value is read; NULL: it is skipped without a word */
    unsigned depth;              /* collections open in YAML_SKIP */
    enum yaml_state after_skip;  /* where YAML_SKIP leads */
    size_t *seen_lines;          /* one per row: where its key was, from 1; 0: not yet */
    struct excerpt_cursor cursor;
    struct excerpt excerpt; /* of the place last made */
    char place_text[PLACE_BYTES_MAX];
};

/* "path:line:column", and ": name" where a known key is being read, of the excerpt. */
static struct option_place place_of_excerpt(struct yaml_reader *reader, size_t column)
{
    snprintf(reader->place_text, sizeof reader->place_text, "%s:%zu:%zu%s%s", reader->path,
             reader->excerpt.number, column, reader->option == NULL ? "" : ": ",
             reader->option == NULL ? "" : reader->option->name);
    return (struct option_place){
        .origin = {OPTION_FROM_FILE, reader->path, (unsigned)reader->excerpt.number},
        .text = reader->place_text,
        .excerpt = &reader->excerpt,
    };
}

static struct option_place place_at(struct yaml_reader *reader, yaml_mark_t start, yaml_mark_t end)
{
    reader->excerpt = excerpt_find_span(&reader->cursor,
                                        (size_t[]){reader->first_line + start.line, start.column},
                                        (size_t[]){reader->first_line + end.line, end.column});
    return place_of_excerpt(reader, start.column + 1);
}

/* A scalar is marked whole; of a collection, where it begins. */
static struct option_place place_of_event(struct yaml_reader *reader, const yaml_event_t *event)
{
    return place_at(reader, event->start_mark, event->end_mark);
}

static void refuse(struct yaml_reader *reader, const yaml_event_t *event, const char *sentence,
                   const char *advice)
{
    struct option_place place = place_of_event(reader, event);

    option_set_error(reader->set, &place, advice, "%s", sentence);
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
    struct option_place place = place_of_event(reader, event);
    char advice[160];
    size_t *seen_line;

    if (option == NULL) {
        option_table_advise(table, key, "", "--help lists all options", advice);
        option_set_error(reader->set, &place, advice, "there is no option of this name");
        return NULL;
    }
    if (option->phase == OPTION_COMMAND) {
        option_set_error(reader->set, &place, "remove the line",
                         "%s belongs on the command line, not in a file", option->name);
        return NULL;
    }
    seen_line = &reader->seen_lines[option - table->options];
    if (*seen_line > 0) {
        option_set_error(reader->set, &place, "keep one of the two",
                         "%s is given twice in this file, first in line %zu", option->name,
                         *seen_line);
        return NULL;
    }
    *seen_line = reader->excerpt.number;
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
        refuse(reader, event, "aliases are not supported", "write the name out");
        reader->state = YAML_VALUE;
        break;
    default:
        refuse(reader, event, "a key must be the name of an option", "write `name: value`");
        skip(reader, 1, YAML_VALUE);
        break;
    }
}

static void assign(struct yaml_reader *reader, const yaml_event_t *event)
{
    struct option_place place;

    if (reader->option == NULL)
        return;
    place = place_of_event(reader, event);
    if (is_null(event))
        option_set_error(reader->set, &place, "write one, or remove the line to use the default",
                         "has no value");
    else
        option_set_assign(reader->set, reader->option, scalar_of(event), &place);
}

/* A collection where its key wants another form. A refused key was reason enough. */
static void refuse_value(struct yaml_reader *reader, const yaml_event_t *event, const char *why,
                         const char *advice)
{
    if (reader->option != NULL)
        refuse(reader, event, why, advice);
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
            refuse_value(reader, event, "takes one value, not a list", "write `name: value`");
        break;
    case YAML_MAPPING_START_EVENT:
        refuse_value(reader, event, "takes a value, not a mapping",
                     "write `name: value`, each option in the first column");
        break;
    default:
        if (reader->option != NULL)
            refuse(reader, event, "aliases are not supported", "write the value out");
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
        refuse(reader, event, "aliases are not supported", "write the value out");
        break;
    default:
        refuse(reader, event, "takes a flat list of values", "write one `- value` a line");
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
        refuse(reader, event, "this is no option", "write lines of the form `name: value`");
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
        refuse(reader, event, "a second document begins here", "only one is read: remove the ---");
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

/* What libyaml says, and what it means for a file of options. */
static const struct complaint {
    const char *context; /* that the parser was in; "": any */
    const char *problem; /* how it begins */
    bool is_at_context;  /* the mistake is where the context began, not where it was noticed */
    const char *what;
    const char *advice;
} complaints[] = {
    {"", "found character that cannot start any token", false, "nothing can begin like this",
     "indent with spaces, not tabs, and put values with special characters in quotes"},
    {"", "found a tab character that violates indentation", false, "a tab cannot indent",
     "indent with spaces, and begin every option in the first column"},
    {"", "mapping values are not allowed in this context", false, "a second colon in one line",
     "put the value in quotes, and begin every option in the first column"},
    {"while scanning a simple key", "could not find expected ':'", true, "there is no colon",
     "write `name: value`, with a space behind the colon"},
    {"while scanning a quoted scalar", "found unexpected end of stream", true,
     "the quotes are never closed", "close them in the same line"},
    {"while parsing a flow sequence", "", true, "the list is never closed, or lacks a comma",
     "write [a, b], or one `- value` a line"},
    {"while parsing a flow mapping", "", true, "the braces are never closed, or lack a comma",
     "take them out, and write one `name: value` a line"},
    {"while parsing a block mapping", "did not find expected key", false,
     "the indentation fits no line above", "begin every option in the first column"},
    {"while parsing a block collection", "did not find expected '-' indicator", false,
     "this is no item of the list above", "indent its items alike, each behind a `- `"},
    {"", "found undefined tag handle", true, "tags (!) are not supported",
     "put the value in quotes"},
    {"", "found undefined alias", false, "aliases are not supported", "write the value out"},
};

static const struct complaint *find_complaint(const yaml_parser_t *parser)
{
    for (size_t i = 0; i < array_count(complaints); i++) {
        const struct complaint *complaint = &complaints[i];

        if ((complaint->context[0] == '\0' ||
             (parser->context != NULL && strcmp(parser->context, complaint->context) == 0)) &&
            parser->problem != NULL &&
            strncmp(parser->problem, complaint->problem, strlen(complaint->problem)) == 0)
            return complaint;
    }
    return NULL;
}

static void report_syntax_error(struct yaml_reader *reader, const yaml_parser_t *parser)
{
    const struct complaint *complaint = find_complaint(parser);
    bool is_at_context = complaint != NULL && complaint->is_at_context && parser->context != NULL;
    yaml_mark_t mark = is_at_context ? parser->context_mark : parser->problem_mark;
    struct option_place place;

    /* Words without a colon, which were refused as a whole, ran into the next line. */
    if (reader->state == YAML_END)
        return;
    reader->option = NULL;
    place = place_at(reader, mark, mark);
    if (complaint != NULL)
        option_set_error(reader->set, &place, complaint->advice, "not YAML: %s", complaint->what);
    else
        option_set_error(reader->set, &place, "", "not YAML: %s",
                         parser->problem == NULL ? "no memory" : parser->problem);
}

static void report_wrong_byte(struct yaml_reader *reader, size_t offset)
{
    struct option_place place;

    reader->option = NULL;
    reader->excerpt = excerpt_at_byte(reader->text, offset);
    place = place_of_excerpt(reader, excerpt_column(&reader->excerpt));
    option_set_error(reader->set, &place, "save the file as UTF-8, without control characters",
                     "not YAML: this byte is no text");
}

/* The first byte from start on that YAML takes for no text; the text's end where all are. */
static size_t find_wrong_byte(struct slice text, size_t start)
{
    size_t at = start;

    while (at < text.len) {
        unsigned char byte = (unsigned char)text.ptr[at];
        bool is_plain =
            (byte >= 0x20 && byte < 0x7f) || byte == '\t' || byte == '\n' || byte == '\r';
        size_t len = is_plain ? 1 : utf8_sequence_len(slice_skip(text, at));
        unsigned char next = len > 1 ? (unsigned char)text.ptr[at + 1] : 0;

        if (len == 0 || (byte == 0xc2 && next < 0xa0 && next != 0x85))
            return at;
        at += len;
    }
    return at;
}

/* Reads the text between two bytes. False: libyaml gave up, and an error was noted. */
static bool parse_piece(struct yaml_reader *reader, size_t start, size_t end)
{
    yaml_parser_t parser;
    yaml_event_t event;
    bool goes_on = true, is_well = true;

    if (yaml_parser_initialize(&parser) == 0)
        abort(); /* no memory, at the start of a process */
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser, (const unsigned char *)reader->text.ptr + start,
                                 end - start);
    reader->first_line = excerpt_at_byte(reader->text, start).number - 1;
    reader->state = YAML_BEFORE_MAPPING;
    reader->option = NULL;
    while (goes_on && is_well) {
        is_well = yaml_parser_parse(&parser, &event) != 0;
        if (is_well) {
            goes_on = on_event(reader, &event) && reader->set->error_count < OPTION_ERROR_COUNT_MAX;
            yaml_event_delete(&event);
        } else if (parser.error == YAML_READER_ERROR) {
            report_wrong_byte(reader, start + parser.problem_offset);
        } else {
            report_syntax_error(reader, &parser);
        }
    }
    yaml_parser_delete(&parser);
    return is_well;
}

/* The byte behind the line of the last error where the next option begins; the text's end where
 * none does. */
static size_t find_next_option(const struct yaml_reader *reader)
{
    const char *end = reader->text.ptr + reader->text.len;
    const char *at = reader->excerpt.line.ptr;

    while ((at = memchr(at, '\n', (size_t)(end - at))) != NULL && ++at < end)
        if (isalpha((unsigned char)*at))
            return (size_t)(at - reader->text.ptr);
    return reader->text.len;
}

/* The whole text, in pieces that end at what libyaml cannot pass over. */
static void read_text(struct yaml_reader *reader)
{
    size_t start = 0;

    for (int i = 0; i < SYNTAX_ERROR_COUNT_MAX && start < reader->text.len &&
                    reader->set->error_count < OPTION_ERROR_COUNT_MAX;
         i++) {
        size_t wrong = find_wrong_byte(reader->text, start);
        struct slice line = excerpt_at_byte(reader->text, wrong).line;
        bool is_whole = wrong == reader->text.len;
        size_t end = is_whole ? wrong : (size_t)(line.ptr - reader->text.ptr);

        if (parse_piece(reader, start, end > start ? end : start)) {
            if (is_whole)
                return;
            report_wrong_byte(reader, wrong);
        }
        start = find_next_option(reader);
    }
}

static bool is_utf16(struct slice text)
{
    return slice_starts_with(text, SLICE("\xff\xfe")) || slice_starts_with(text, SLICE("\xfe\xff"));
}

void option_set_read_yaml(struct option_set *set, const char *path, struct slice text)
{
    const struct option_place place = {.origin = {.source = OPTION_FROM_FILE}, .text = path};
    struct slice kept_path = arena_copy(&set->arena, slice_of_string(path)); /* for origins */
    struct yaml_reader reader = {.set = set, .path = kept_path.ptr, .text = text};

    if (is_utf16(text)) {
        option_set_error(set, &place, "save it as UTF-8", "this is UTF-16 text");
        return;
    }
    if (slice_starts_with(text, SLICE("\ufeff"))) /* a byte order mark, as Windows writes it */
        reader.text = slice_skip(text, 3);
    excerpt_cursor_init(&reader.cursor, reader.text);
    reader.seen_lines = calloc(set->table->count, sizeof *reader.seen_lines);
    assert(reader.path != NULL && reader.seen_lines != NULL);
    read_text(&reader);
    free(reader.seen_lines);
}

/* Reads all of fd, if it fits. */
static int read_all(int fd, struct buf *bytes)
{
    for (;;) {
        ssize_t count;
        int status = buf_reserve(bytes, READ_BYTES);

        if (status < 0)
            return status == -ENOBUFS ? -EFBIG : status;
        count = read(fd, bytes->bytes + bytes->end, READ_BYTES);
        if (count < 0 && errno != EINTR)
            return -errno;
        if (count == 0)
            return 0;
        if (count > 0)
            bytes->end += (size_t)count;
    }
}

/* Opens path for reading: 0, or an error was noted. A pipe must not make the opening wait. */
static int open_file(struct option_set *set, const struct option_place *place, int *fd)
{
    struct stat found;

    *fd = open(place->text, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0 && errno == EACCES) {
        option_set_error(set, place, "let this user read it, and enter the folders above it",
                         "user %u may not read it", (unsigned)geteuid());
    } else if (*fd < 0) {
        option_set_error(set, place, "", "cannot be opened: %s", strerror(errno));
    } else if (fstat(*fd, &found) < 0 || !S_ISREG(found.st_mode)) {
        option_set_error(set, place, "name a file of lines `name: value`", "is %s",
                         S_ISDIR(found.st_mode) ? "a folder" : "not a regular file");
    } else {
        return 0;
    }
    return -1;
}

void option_set_read_file(struct option_set *set, const char *path)
{
    const struct option_place place = {.origin = {.source = OPTION_FROM_FILE}, .text = path};
    struct buf bytes;
    int fd, status;

    buf_init(&bytes, FILE_BYTES_MAX + READ_BYTES);
    if (open_file(set, &place, &fd) == 0) {
        status = read_all(fd, &bytes);
        if (status == -EFBIG || buf_len(&bytes) > FILE_BYTES_MAX)
            option_set_error(set, &place, "options need a few lines: is this the right file?",
                             "is larger than 1MiB");
        else if (status < 0)
            option_set_error(set, &place, "", "cannot be read: %s", strerror(-status));
        else if (buf_len(&bytes) == 0) /* as a copy that is being written looks */
            option_set_error(set, &place, "write options into it, or a comment if it is meant so",
                             "is empty");
        else
            option_set_read_yaml(set, path, buf_slice(&bytes));
    }
    if (fd >= 0)
        close(fd);
    buf_release(&bytes);
}
