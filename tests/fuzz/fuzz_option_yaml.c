/* SPDX-License-Identifier: Apache-2.0 */

/*
 * fuzz_option_yaml: whatever the file, values stay within their rows, an error has its place, what
 * is shown of it is bounded, printable and points into its line, and what was read without one is
 * dumped to a text that reads back to the same dump.
 */

#include "router/options.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/fuzz/fuzz_input.h"

struct world {
    struct option_set set;
    struct router_options options;
};

static void read_into(struct world *world, const struct router_option_table *table,
                      struct slice text)
{
    option_set_init(&world->set, &table->table, &world->options);
    option_set_read_yaml(&world->set, "f.yaml", text);
}

/* The dump without its comments, which name lines of the file. */
static void dump(const struct world *world, struct buf *out)
{
    if (option_set_dump(&world->set, out) < 0)
        abort();
}

static void check_ranges(const struct world *world, const struct router_option_table *table)
{
    for (size_t i = 0; i < table->table.count; i++) {
        const struct option *option = &table->options[i];
        const char *field = (const char *)&world->options + option->offset;
        uint64_t number;

        if (option->kind != OPTION_INTEGER && option->kind != OPTION_DURATION &&
            option->kind != OPTION_BYTES)
            continue;
        memcpy(&number, field, sizeof number);
        if (number < option->min || number > option->max)
            abort();
    }
}

/* Dumps of equal values are equal once both come from the same text. */
static void check_dump(const struct world *world, const struct router_option_table *table)
{
    struct world again, third;
    struct buf first, second, last;

    buf_init(&first, 16 << 20);
    buf_init(&second, 16 << 20);
    buf_init(&last, 16 << 20);
    dump(world, &first);
    read_into(&again, table, buf_slice(&first));
    if (option_set_has_errors(&again.set))
        abort();
    dump(&again, &second);
    read_into(&third, table, buf_slice(&second));
    dump(&third, &last);
    if (!slice_eq(buf_slice(&second), buf_slice(&last)))
        abort();
    option_set_release(&again.set);
    option_set_release(&third.set);
    buf_release(&first);
    buf_release(&second);
    buf_release(&last);
}

/* The two lines of an excerpt: bounded, without control characters, carets not behind the end of
 * what is shown. A character takes at least one byte a column, so that bytes bound columns. */
static void check_excerpt(const char *excerpt)
{
    size_t len = strlen(excerpt), first_len = strcspn(excerpt, "\n");
    const char *second = excerpt + first_len + 1;

    if (len == 0)
        return;
    if (len > EXCERPT_BYTES_MAX || first_len == len || strchr(second, '^') == NULL)
        abort();
    for (size_t i = 0; i < len; i++)
        if (((unsigned char)excerpt[i] < 0x20 && excerpt[i] != '\n') || excerpt[i] == 0x7f)
            abort();
    if (strlen(second) > 8 + 3 + EXCERPT_COLUMNS_MAX + 2 || strcspn(second, "^") > first_len)
        abort();
}

static void check_errors(const struct option_set *set)
{
    struct buf text;

    if (set->error_count == 0 || set->flag_error_count > 0)
        abort();
    for (size_t i = 0; i < set->error_count; i++) {
        const struct option_error *error = &set->errors[i];

        if (strncmp(error->where, "f.yaml", 6) != 0 || error->what[0] == '\0')
            abort();
        check_excerpt(error->excerpt);
    }
    buf_init(&text, OPTION_ERROR_COUNT_MAX * 4096);
    if (option_set_write_errors(set, &text) < 0)
        abort();
    buf_release(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct router_option_table table;
    struct world world;

    router_option_table_init(&table, NULL);
    read_into(&world, &table, slice_of(data, size));
    check_ranges(&world, &table);
    if (!option_set_has_errors(&world.set))
        check_dump(&world, &table);
    else
        check_errors(&world.set);
    option_set_release(&world.set);
    return 0;
}
