/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/option.h"

#include <stdio.h>

#include "backends/runtime/option_value.h"

/*
 * DESIGN
 *
 * What the table says to people: --help, the dump of what is in force, and what was wrong. All
 * append to a buf and remember the first failure instead of checking each append.
 */

enum { HELP_COLUMNS = 88, HELP_INDENT = 6, PARAGRAPH_BYTES = 1024, ERRORS_BYTES_MAX = 1 << 20 };

struct text {
    const struct option_table *table;
    struct buf *out;
    int status;
};

/* How a piece gets into the text: as it is, or as a man page spells it. */
typedef int write_fn(struct slice piece, struct buf *out);

static void put_by(struct text *text, write_fn *write, const char *format, va_list args)
{
    char piece[PARAGRAPH_BYTES];

    if (text->status < 0)
        return;
    vsnprintf(piece, sizeof piece, format, args);
    text->status = write(slice_of_string(piece), text->out);
}

static int write_plain(struct slice piece, struct buf *out)
{
    return buf_append(out, piece);
}

static void put(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void put(struct text *text, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    put_by(text, write_plain, format, args);
    va_end(args);
}

/* Words of paragraph, in lines of at most HELP_COLUMNS. */
static void put_wrapped(struct text *text, const char *paragraph)
{
    size_t column = 0;

    while (*paragraph != '\0') {
        size_t len = strcspn(paragraph, " ");

        if (column == 0 || column + 1 + len > HELP_COLUMNS) {
            put(text, "%s%*s", column == 0 ? "" : "\n", HELP_INDENT, "");
            column = HELP_INDENT;
        } else {
            put(text, " ");
            column++;
        }
        put(text, "%.*s", (int)len, paragraph);
        column += len;
        paragraph += len;
        paragraph += strspn(paragraph, " ");
    }
    put(text, "\n");
}

/* What stands for the value: "TIME", "ttft|random", "" of a switch. */
static void put_form(struct text *text, const struct option *option)
{
    static const char *const forms[] = {
        [OPTION_TEXT] = "TEXT",     [OPTION_WORD] = "WORD",     [OPTION_ENUM] = "WORD",
        [OPTION_INTEGER] = "COUNT", [OPTION_DURATION] = "TIME", [OPTION_BYTES] = "SIZE",
        [OPTION_BOOL] = "",         [OPTION_LIST] = "ITEM ...",
    };

    if (option->words == NULL)
        put(text, "%s", forms[option->kind]);
    for (size_t i = 0; option->words != NULL && option->words[i] != NULL; i++)
        put(text, "%s%s", i == 0 ? "" : "|", option->words[i]);
}

static void put_flag(struct text *text, const struct option *option)
{
    if (option->kind == OPTION_BOOL && option->phase != OPTION_COMMAND)
        put(text, "  --[no-]%s", option->name);
    else
        put(text, "  --%s%s", option->name, option->kind == OPTION_BOOL ? "" : " ");
    put_form(text, option);
    put(text, "\n");
}

static bool is_number(enum option_kind kind)
{
    return kind == OPTION_INTEGER || kind == OPTION_DURATION || kind == OPTION_BYTES;
}

static void put_option(struct text *text, const struct option *option)
{
    char paragraph[PARAGRAPH_BYTES], env[96], least[32], most[32];
    bool has_env = option->phase != OPTION_COMMAND || option->kind != OPTION_BOOL;
    const char *value = option->default_text == NULL || option->default_text[0] == '\0'
                            ? "none"
                            : option->default_text;
    size_t len = (size_t)snprintf(paragraph, sizeof paragraph, "%s", option->help);

    put_flag(text, option);
    option_env_name(text->table, option, env);
    if (has_env)
        len += (size_t)snprintf(paragraph + len, sizeof paragraph - len, " [%s, default %s", env,
                                value);
    if (is_number(option->kind) && option->max != UINT64_MAX) {
        option_value_write(option, option->min, least);
        option_value_write(option, option->max, most);
        len += (size_t)snprintf(paragraph + len, sizeof paragraph - len, ", %s to %s", least, most);
    }
    if (has_env)
        snprintf(paragraph + len, sizeof paragraph - len, "]");
    put_wrapped(text, paragraph);
}

/* Whether an earlier row has the group of row i. */
static bool is_group_known(const struct option_table *table, size_t i)
{
    for (size_t j = 0; j < i; j++)
        if (strcmp(table->options[j].group, table->options[i].group) == 0)
            return true;
    return false;
}

int option_table_help(const struct option_table *table, struct buf *out)
{
    struct text text = {.table = table, .out = out};

    for (size_t i = 0; i < table->count; i++) {
        if (is_group_known(table, i))
            continue;
        put(&text, "\n%s\n", table->options[i].group);
        for (size_t j = i; j < table->count; j++)
            if (strcmp(table->options[j].group, table->options[i].group) == 0)
                put_option(&text, &table->options[j]);
    }
    return text.status;
}

int option_man_text(struct slice text, struct buf *out)
{
    int status = 0;

    for (size_t i = 0; status == 0 && i < text.len; i++) {
        bool begins_line = i == 0 || text.ptr[i - 1] == '\n';

        if (begins_line && (text.ptr[i] == '.' || text.ptr[i] == '\''))
            status = buf_append(out, SLICE("\\&"));
        if (status != 0)
            break;
        if (text.ptr[i] == '-')
            status = buf_append(out, SLICE("\\-"));
        else if (text.ptr[i] == '\\')
            status = buf_append(out, SLICE("\\e"));
        else
            status = buf_append(out, slice_of(text.ptr + i, 1));
    }
    return status;
}

static void put_man(struct text *text, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void put_man(struct text *text, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    put_by(text, option_man_text, format, args);
    va_end(args);
}

static void put_man_option(struct text *text, const struct option *option)
{
    bool is_command = option->phase == OPTION_COMMAND && option->kind == OPTION_BOOL;
    bool has_default = option->default_text != NULL && option->default_text[0] != '\0';
    char env[96], least[32], most[32];

    put(text, ".TP\n.B \"");
    put_man(text, option->kind == OPTION_BOOL && !is_command ? "--[no-]%s" : "--%s", option->name);
    put(text, "%s", option->kind == OPTION_BOOL ? "" : " ");
    put_form(text, option); /* has no character that roff reads */
    put(text, "\"\n");
    put_man(text, "%s\n", option->help);
    if (is_command)
        return;
    option_env_name(text->table, option, env);
    put_man(text, "Environment: %s. Default: %s.\n", env,
            has_default ? option->default_text : "none");
    if (is_number(option->kind) && option->max != UINT64_MAX) {
        option_value_write(option, option->min, least);
        option_value_write(option, option->max, most);
        put_man(text, "From %s to %s.\n", least, most);
    }
    if (option->phase != OPTION_COMMAND)
        put_man(text, "%s\n",
                option->phase == OPTION_BOOT ? "A change needs a restart."
                                             : "A change takes effect at SIGHUP.");
}

int option_table_man(const struct option_table *table, struct buf *out)
{
    struct text text = {.table = table, .out = out};

    put(&text, ".SH OPTIONS\n");
    for (size_t i = 0; i < table->count; i++) {
        if (is_group_known(table, i))
            continue;
        put(&text, ".SS %s\n", table->options[i].group);
        for (size_t j = i; j < table->count; j++)
            if (strcmp(table->options[j].group, table->options[i].group) == 0)
                put_man_option(&text, &table->options[j]);
    }
    return text.status;
}

/* As a YAML scalar in double quotes. Values hold no control characters: assign refused them. */
static void put_quoted(struct text *text, const char *value)
{
    put(text, "\"");
    for (; *value != '\0' && text->status == 0; value++) {
        if (*value == '"' || *value == '\\')
            text->status = buf_append(text->out, SLICE("\\"));
        if (text->status == 0)
            text->status = buf_append(text->out, slice_of(value, 1));
    }
    put(text, "\"");
}

static void put_value(struct text *text, const struct option *option, const void *field)
{
    const struct option_list *list = field;
    const char *const *string = field;
    char number[32];

    switch (option->kind) {
    case OPTION_TEXT:
    case OPTION_WORD:
        put_quoted(text, *string);
        break;
    case OPTION_LIST:
        put(text, "[");
        for (size_t i = 0; i < list->count; i++) {
            put(text, "%s", i == 0 ? "" : ", ");
            put_quoted(text, list->items[i]);
        }
        put(text, "]");
        break;
    case OPTION_BOOL:
        put(text, "%s", *(const bool *)field ? "true" : "false");
        break;
    case OPTION_ENUM:
        put(text, "%s", option->words[*(const int *)field]);
        break;
    case OPTION_INTEGER:
    case OPTION_DURATION:
    case OPTION_BYTES:
        option_value_write(option, *(const uint64_t *)field, number);
        put(text, "%s", number);
        break;
    }
}

static void put_origin(struct text *text, const struct option *option, struct option_origin origin)
{
    char env[96];

    switch (origin.source) {
    case OPTION_FROM_DEFAULT:
        put(text, "default");
        break;
    case OPTION_FROM_FILE:
        put(text, "%s:%u", origin.file, origin.line);
        break;
    case OPTION_FROM_ENV:
        option_env_name(text->table, option, env);
        put(text, "%s", env);
        break;
    case OPTION_FROM_FLAG:
        put(text, "--%s", option->name);
        break;
    }
}

int option_set_write_value(const struct option_set *set, const struct option *option,
                           struct buf *out)
{
    struct text text = {.table = set->table, .out = out};

    put_value(&text, option, (const char *)set->target + option->offset);
    return text.status;
}

int option_set_write_origin(const struct option_set *set, const struct option *option,
                            struct buf *out)
{
    struct text text = {.table = set->table, .out = out};

    put_origin(&text, option, set->origins[option - set->table->options]);
    return text.status;
}

/*
 *    router.yaml:3:7: port: "70000" is out of range
 *        3 | port: 70000
 *          |       ^^^^^
 *          = write 0 to 65535; the default is 8080
 *
 * What has no line to show takes one line, with the advice behind a semicolon.
 */
static void put_error(struct text *text, const struct option_error *error)
{
    bool has_excerpt = error->excerpt[0] != '\0', has_advice = error->advice[0] != '\0';

    put(text, "%s: %s", error->where, error->what);
    if (has_excerpt) {
        put(text, "\n");
        if (text->status == 0)
            text->status = buf_append(text->out, slice_of_string(error->excerpt));
    }
    if (has_advice)
        put(text, "%s%s", has_excerpt ? "      = " : "; ", error->advice);
    if (has_advice || !has_excerpt)
        put(text, "\n");
}

int option_set_write_errors(const struct option_set *set, struct buf *out)
{
    struct text text = {.table = set->table, .out = out};

    for (size_t i = 0; i < set->error_count; i++)
        put_error(&text, &set->errors[i]);
    if (set->error_count == OPTION_ERROR_COUNT_MAX)
        put(&text, "There may be more: these are the first %d.\n", OPTION_ERROR_COUNT_MAX);
    return text.status;
}

void option_set_print_errors(const struct option_set *set)
{
    struct buf text;

    buf_init(&text, ERRORS_BYTES_MAX);
    (void)!option_set_write_errors(set, &text);
    fwrite(buf_slice(&text).ptr, 1, buf_len(&text), stderr);
    buf_release(&text);
}

int option_set_dump(const struct option_set *set, struct buf *out)
{
    struct text text = {.table = set->table, .out = out};

    for (size_t i = 0; i < set->table->count; i++) {
        const struct option *option = &set->table->options[i];
        size_t start = buf_len(out);
        const char *field = (const char *)set->target + option->offset;

        if (option->phase == OPTION_COMMAND)
            continue;
        put(&text, "%s: ", option->name);
        put_value(&text, option, field);
        /* The origins stand in one column, where the values leave room. */
        put(&text, "%*s # ", (int)(buf_len(out) - start < 40 ? 40 - (buf_len(out) - start) : 0),
            "");
        put_origin(&text, option, set->origins[i]);
        put(&text, "\n");
    }
    return text.status;
}
