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
    ARENA_BYTES_MAX = 16 << 20, /* more than a file, an argument list and 64 errors can fill */
    LIST_COUNT_MAX = 4096,
    SHOWN_BYTES_MAX = 80,
};

struct option *option_row(struct option *rows, const char *name)
{
    while (strcmp(rows->name, name) != 0)
        rows++;
    return rows;
}

static void *field_of(const struct option_set *set, const struct option *option)
{
    return (char *)set->target + option->offset;
}

static struct option_origin *origin_of(const struct option_set *set, const struct option *option)
{
    return &set->origins[option - set->table->options];
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

static const char *keep_excerpt(struct option_set *set, const struct excerpt *excerpt)
{
    struct buf lines;
    const char *kept = "";

    if (excerpt == NULL)
        return kept;
    buf_init(&lines, EXCERPT_BYTES_MAX);
    if (excerpt_write(excerpt, &lines) == 0)
        kept = keep(set, buf_slice(&lines));
    buf_release(&lines);
    return kept;
}

void option_set_error(struct option_set *set, const struct option_place *place, const char *advice,
                      const char *format, ...)
{
    char sentence[512];
    va_list args;

    if (place->origin.source == OPTION_FROM_FLAG)
        set->flag_error_count++;
    else
        set->config_error_count++;
    if (set->error_count == OPTION_ERROR_COUNT_MAX)
        return;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    set->errors[set->error_count++] = (struct option_error){
        .where = keep(set, slice_of_string(place->text)),
        .what = keep(set, slice_of_string(sentence)),
        .advice = keep(set, slice_of_string(advice)),
        .excerpt = keep_excerpt(set, place->excerpt),
    };
}

/* value as it may be shown on a terminal: short and without control characters. */
static const char *shown(struct slice value, char text[SHOWN_BYTES_MAX + 4])
{
    size_t len = value.len < SHOWN_BYTES_MAX ? value.len : SHOWN_BYTES_MAX;

    /* Cut between characters, so that the rest is still text. */
    while (len < value.len && len > 0 && ((unsigned char)value.ptr[len] & 0xc0) == 0x80)
        len--;
    for (size_t i = 0; i < len; i++)
        text[i] = (unsigned char)value.ptr[i] < 0x20 || value.ptr[i] == 0x7f ? '?' : value.ptr[i];
    memcpy(text + len, "...", 4);
    if (len == value.len)
        text[len] = '\0';
    return text;
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

/* Whether the row takes text; else that was noted as an error. What stands before an @ may be a
 * password: then neither the text nor its line is shown. */
static bool check_text(struct option_set *set, const struct option *option, struct slice text,
                       const struct option_place *place)
{
    struct option_place bare = {.origin = place->origin, .text = place->text};
    char why[OPTION_WHY_BYTES], copy[SHOWN_BYTES_MAX + 4];

    if (option->check == NULL || option->check(text, why) == 0)
        return true;
    if (memchr(text.ptr, '@', text.len) != NULL)
        option_set_error(set, &bare, "", "%s", why);
    else if (memmem(why, strlen(why), text.ptr, text.len) != NULL)
        option_set_error(set, place, "", "%s", why);
    else
        option_set_error(set, place, "", "\"%s\": %s", shown(text, copy), why);
    return false;
}

static bool is_separator(char c)
{
    return c == ',' || c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Items that lose against a higher source are still checked, as any value is. */
static void assign_list(struct option_set *set, const struct option *option, struct slice value,
                        const struct option_place *place)
{
    struct option_list *list = field_of(set, option);
    bool is_kept = place->origin.source >= origin_of(set, option)->source;

    if (place->origin.source > origin_of(set, option)->source)
        *list = (struct option_list){NULL, 0};
    for (size_t start = 0, end; start < value.len; start = end + 1) {
        for (end = start; end < value.len && !is_separator(value.ptr[end]); end++)
            ;
        if (end == start ||
            !check_text(set, option, slice_of(value.ptr + start, end - start), place) || !is_kept)
            continue;
        if (list->count == LIST_COUNT_MAX) {
            option_set_error(set, place, "", "more than %d items", LIST_COUNT_MAX);
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
static const char *advice_for(struct slice value, const struct option_place *place,
                              const struct option_complaint *complaint)
{
    if (place->origin.source == OPTION_FROM_ENV && slice_starts_with(value, SLICE("tcp://")))
        return "Kubernetes sets this for a service of that name: set enableServiceLinks: false in "
               "the pod, or rename the service";
    return complaint->advice;
}

/* Checks value against its row; number is set where it is one. False: it was noted as an error. */
static bool read_value(struct option_set *set, const struct option *option, struct slice value,
                       const struct option_place *place, uint64_t *number)
{
    struct option_complaint complaint;
    char text[SHOWN_BYTES_MAX + 4];
    int status = 0;

    if (option->kind != OPTION_LIST && has_control_character(value)) {
        option_set_error(set, place, "take it out", "the value has a control character in it");
        return false;
    }
    if (is_text(option->kind))
        status = option_value_check_word(option, value, &complaint);
    else if (option->kind != OPTION_LIST)
        status = option_value_read(option, value, number, &complaint);
    if (status < 0)
        option_set_error(set, place, advice_for(value, place, &complaint), "\"%s\" %s",
                         shown(value, text), complaint.what);
    return status == 0 && (option->kind != OPTION_TEXT || check_text(set, option, value, place));
}

void option_set_assign(struct option_set *set, const struct option *option, struct slice value,
                       const struct option_place *place)
{
    struct option_origin *origin = origin_of(set, option);
    uint64_t number = 0;

    if (!read_value(set, option, value, place, &number))
        return;
    if (option->kind == OPTION_LIST)
        assign_list(set, option, value, place);
    if (place->origin.source < origin->source)
        return;

    if (is_text(option->kind))
        *(const char **)field_of(set, option) = keep(set, value);
    else if (option->kind != OPTION_LIST)
        store_number(field_of(set, option), option->kind, number);
    *origin = place->origin;
}

void option_set_init(struct option_set *set, const struct option_table *table, void *target)
{
    const struct option_place place = {.text = "default"};

    *set = (struct option_set){.table = table, .target = target};
    arena_init(&set->arena, ARENA_BYTES_MAX);
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

void option_table_advise(const struct option_table *table, struct slice name, const char *dashes,
                         const char *unknown, char advice[160])
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
    if (nearest != NULL)
        snprintf(advice, 160, "did you mean %s%s?", dashes, nearest);
    else
        snprintf(advice, 160, "%s", unknown);
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

static bool is_same_list(const struct option_list *a, const struct option_list *b)
{
    if (a->count != b->count)
        return false;
    for (size_t i = 0; i < a->count; i++)
        if (strcmp(a->items[i], b->items[i]) != 0)
            return false;
    return true;
}

bool option_set_is_same(const struct option_set *set, const struct option_set *other,
                        const struct option *option)
{
    const void *a = field_of(set, option), *b = field_of(other, option);

    assert(set->table == other->table);

    switch (option->kind) {
    case OPTION_TEXT:
    case OPTION_WORD:
        return strcmp(*(const char *const *)a, *(const char *const *)b) == 0;
    case OPTION_ENUM:
        return *(const int *)a == *(const int *)b;
    case OPTION_BOOL:
        return *(const bool *)a == *(const bool *)b;
    case OPTION_LIST:
        return is_same_list(a, b);
    case OPTION_INTEGER:
    case OPTION_DURATION:
    case OPTION_BYTES:
        break;
    }
    return *(const uint64_t *)a == *(const uint64_t *)b;
}

static void carry_list(struct option_set *set, struct option_list *target,
                       const struct option_list *source)
{
    *target = (struct option_list){NULL, 0};
    for (size_t i = 0; i < source->count; i++)
        append_item(set, target, slice_of_string(source->items[i]));
}

void option_set_carry(struct option_set *set, const struct option_set *source,
                      const struct option *option)
{
    void *target = field_of(set, option);
    const void *value = field_of(source, option);
    struct option_origin *origin = origin_of(set, option);

    assert(set->table == source->table);

    if (option->kind == OPTION_LIST)
        carry_list(set, target, value);
    else if (is_text(option->kind))
        *(const char **)target = keep(set, slice_of_string(*(const char *const *)value));
    else if (option->kind == OPTION_BOOL)
        *(bool *)target = *(const bool *)value;
    else if (option->kind == OPTION_ENUM)
        *(int *)target = *(const int *)value;
    else
        *(uint64_t *)target = *(const uint64_t *)value;
    *origin = *origin_of(source, option);
    if (origin->file != NULL)
        origin->file = keep(set, slice_of_string(origin->file));
}

bool option_set_has_errors(const struct option_set *set)
{
    return set->flag_error_count + set->config_error_count > 0;
}

int option_set_exit_code(const struct option_set *set)
{
    if (set->flag_error_count > 0)
        return EXIT_CODE_USAGE;
    return set->config_error_count > 0 ? EXIT_CODE_CONFIG : EXIT_CODE_OK;
}

void option_set_refuse(struct option_set *set, const char *name, const char *what,
                       const char *advice)
{
    struct option_place place = {.origin = option_set_origin(set, name), .text = name};

    if (place.origin.source == OPTION_FROM_DEFAULT)
        place.origin.source = OPTION_FROM_FLAG;
    option_set_error(set, &place, advice, "%s", what);
}

void option_set_release(struct option_set *set)
{
    arena_release(&set->arena);
    set->error_count = 0; /* their texts were the arena's */
    free(set->origins);
    set->origins = NULL;
}
