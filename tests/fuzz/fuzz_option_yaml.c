/* SPDX-License-Identifier: Apache-2.0 */

/*
 * fuzz_option_yaml: whatever the file, values stay within their rows, an error has its place, and
 * what was read without one is dumped to a text that reads back to the same dump.
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct router_option_table table;
    struct world world;

    router_option_table_init(&table, NULL);
    read_into(&world, &table, slice_of(data, size));
    check_ranges(&world, &table);
    if (!option_set_has_errors(&world.set))
        check_dump(&world, &table);
    else if (buf_len(&world.set.errors) == 0 || world.set.flag_error_count > 0)
        abort();
    option_set_release(&world.set);
    return 0;
}
