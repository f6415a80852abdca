/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/option.h"

#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#include "backends/runtime/near_name.h"
#include "backends/runtime/option_value.h"

/*
 * DESIGN
 *
 *    flags ---+
 *    env -----+--> option_set_assign(row, text, place) --> field of the target, origin of the row
 *    file ----+
 *
 * The readers know syntax, the rows know types; assign is where they meet, the only writer of the
 * target. Each row remembers the source that set it, and a lower source never overwrites it: so the
 * flags may be read first, which have to name the file. A value that loses is still checked, since
 * a wrong line in a file is wrong also while a flag hides it.
 */

enum {
    ARENA_BYTES_MAX = 4 << 20,
    ERROR_BYTES_MAX = 256 << 10,
    LIST_COUNT_MAX = 4096,
    SHOWN_BYTES_MAX = 80,
};

static void *field_of(const struct option_set *set, const struct option *option)
{
    return (char *)set->target + option->offset;
}

static struct option_origin *origin_of(const struct option_set *set, const struct option *option)
{
    return &set->origins[option - set->table->options];
}

void option_set_error(struct option_set *set, const struct option_place *place, const char *format,
                      ...)
{
    char sentence[640];
    va_list args;

    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    /* Past the limit errors are still counted; nobody reads that many. */
    (void)!buf_printf(&set->errors, "%s: %s\n", place->text, sentence);
    if (place->origin.source == OPTION_FROM_FLAG)
        set->flag_error_count++;
    else
        set->config_error_count++;
}

/* value as it may be shown on a terminal: short and without control characters. */
static const char *shown(struct slice value, char text[SHOWN_BYTES_MAX + 4])
{
    size_t len = value.len < SHOWN_BYTES_MAX ? value.len : SHOWN_BYTES_MAX;

    for (size_t i = 0; i < len; i++)
        text[i] = (unsigned char)value.ptr[i] < 0x20 || value.ptr[i] == 0x7f ? '?' : value.ptr[i];
    memcpy(text + len, "...", 4);
    if (len == value.len)
        text[len] = '\0';
    return text;
}

/* A NUL-terminated copy that lives as long as the set. Start of a process: no memory, no start. */
static const char *keep(struct option_set *set, struct slice text)
{
    struct slice copy = arena_copy(&set->arena, text);

    if (copy.ptr == NULL) {
        fprintf(stderr, "out of memory while reading options\n");
        abort();
    }
    return copy.ptr;
}

/* Lists grow by doubling: at every power of two the items move to an array twice as long. */
static void append_item(struct option_set *set, struct option_list *list, struct slice item)
{
    size_t count = list->count;
    const char **items = list->items;

    if ((count & (count - 1)) == 0) {
        items = arena_alloc(&set->arena, (count == 0 ? 1 : 2 * count) * sizeof *items);
        assert(items != NULL); /* LIST_COUNT_MAX keeps it within the arena */
        if (count > 0)
            memcpy(items, list->items, count * sizeof *items);
    }
    items[count] = keep(set, item);
    list->items = items;
    list->count = count + 1;
}

static bool is_separator(char c)
{
    return c == ',' || c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static void assign_list(struct option_set *set, const struct option *option, struct slice value,
                        const struct option_place *place)
{
    struct option_list *list = field_of(set, option);

    if (origin_of(set, option)->source != place->origin.source)
        *list = (struct option_list){NULL, 0};
    for (size_t start = 0, end; start < value.len; start = end + 1) {
        for (end = start; end < value.len && !is_separator(value.ptr[end]); end++)
            ;
        if (end == start)
            continue;
        if (list->count == LIST_COUNT_MAX) {
            option_set_error(set, place, "more than %d items", LIST_COUNT_MAX);
            return;
        }
        append_item(set, list, slice_of(value.ptr + start, end - start));
    }
}

static void store_number(void *field, enum option_kind kind, uint64_t number)
{
    if (kind == OPTION_BOOL)
        *(bool *)field = number != 0;
    else if (kind == OPTION_ENUM)
        *(int *)field = (int)number;
    else
        *(uint64_t *)field = number;
}

static bool is_text(enum option_kind kind)
{
    return kind == OPTION_TEXT || kind == OPTION_WORD;
}

static bool has_control_character(struct slice value)
{
    for (size_t i = 0; i < value.len; i++)
        if ((unsigned char)value.ptr[i] < 0x20 || value.ptr[i] == 0x7f)
            return true;
    return false;
}

/* Kubernetes gives every container <SERVICE>_PORT=tcp://... of services in its namespace, which for
 * a service called "samovar" is the name of an option. */
static const char *kubernetes_hint(struct slice value, const struct option_place *place)
{
    if (place->origin.source == OPTION_FROM_ENV && slice_starts_with(value, SLICE("tcp://")))
        return " (Kubernetes sets this for a service of that name: set enableServiceLinks: false "
               "in the pod, or rename the service)";
    return "";
}

void option_set_assign(struct option_set *set, const struct option *option, struct slice value,
                       const struct option_place *place)
{
    struct option_origin *origin = origin_of(set, option);
    char why[OPTION_WHY_BYTES], text[SHOWN_BYTES_MAX + 4];
    uint64_t number = 0;
    int status = 0;

    if (option->kind != OPTION_LIST && has_control_character(value)) {
        option_set_error(set, place, "the value has a control character in it");
        return;
    }
    if (is_text(option->kind))
        status = option_value_check_word(option, value, why);
    else if (option->kind != OPTION_LIST)
        status = option_value_read(option, value, &number, why);
    if (status < 0) {
        option_set_error(set, place, "\"%s\" %s%s", shown(value, text), why,
                         kubernetes_hint(value, place));
        return;
    }
    if (place->origin.source < origin->source)
        return;

    if (option->kind == OPTION_LIST)
        assign_list(set, option, value, place);
    else if (is_text(option->kind))
        *(const char **)field_of(set, option) = keep(set, value);
    else
        store_number(field_of(set, option), option->kind, number);
    *origin = place->origin;
}

void option_set_init(struct option_set *set, const struct option_table *table, void *target)
{
    const struct option_place place = {.text = "default"};

    *set = (struct option_set){.table = table, .target = target};
    arena_init(&set->arena, ARENA_BYTES_MAX);
    buf_init(&set->errors, ERROR_BYTES_MAX);
    set->origins = calloc(table->count, sizeof *set->origins);
    assert(set->origins != NULL);
    for (size_t i = 0; i < table->count; i++) {
        const struct option *option = &table->options[i];
        const char *text = option->default_text == NULL ? "" : option->default_text;

        assert(i == 0 || strcmp(table->options[i - 1].name, option->name) < 0);
        if (option->kind == OPTION_LIST)
            *(struct option_list *)field_of(set, option) = (struct option_list){NULL, 0};
        option_set_assign(set, option, slice_of_string(text), &place);
    }
    assert(!option_set_has_errors(set)); /* a default that its own row refuses */
}

/* How name and the row's name compare, with underscores as dashes. */
static int compare(struct slice name, const char *other)
{
    for (size_t i = 0; i < name.len; i++) {
        char c = name.ptr[i] == '_' ? '-' : name.ptr[i];

        if (c != other[i])
            return (unsigned char)c < (unsigned char)other[i] ? -1 : 1;
    }
    return other[name.len] == '\0' ? 0 : -1;
}

const struct option *option_table_find(const struct option_table *table, struct slice name)
{
    size_t low = 0, high = table->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = compare(name, table->options[middle].name);

        if (order == 0)
            return &table->options[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

void option_table_hint(const struct option_table *table, struct slice name, const char *dashes,
                       char hint[128])
{
    const char *nearest = NULL;
    size_t nearest_cost = NEAR_NAME_FAR;

    for (size_t i = 0; i < table->count; i++) {
        size_t cost = near_name_cost(name, slice_of_string(table->options[i].name));

        if (cost < nearest_cost) {
            nearest = table->options[i].name;
            nearest_cost = cost;
        }
    }
    hint[0] = '\0';
    if (nearest != NULL)
        snprintf(hint, 128, "; did you mean %s%s?", dashes, nearest);
}

void option_env_name(const struct option_table *table, const struct option *option, char name[96])
{
    size_t len = (size_t)snprintf(name, 96, "%s%s", table->env_prefix, option->name);

    assert(len < 96);
    for (size_t i = 0; i < len; i++)
        name[i] = name[i] == '-' ? '_' : (char)toupper((unsigned char)name[i]);
}

struct option_origin option_set_origin(const struct option_set *set, const char *name)
{
    const struct option *option = option_table_find(set->table, slice_of_string(name));

    assert(option != NULL);

    return *origin_of(set, option);
}

bool option_set_has_errors(const struct option_set *set)
{
    return set->flag_error_count + set->config_error_count > 0;
}

void option_set_release(struct option_set *set)
{
    arena_release(&set->arena);
    buf_release(&set->errors);
    free(set->origins);
    set->origins = NULL;
}
