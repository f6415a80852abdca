/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/cost_line.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <math.h>

#include "backends/runtime/random.h"
#include "tests/support/leak_check.h"

TestSuite(cost_line, .fini = leak_check);

static const struct cost prior = {.start_ms = 1, .unit_ms = 0.5};

static struct cost_line line_of(void)
{
    struct cost_line line;

    cost_line_init(&line, prior);
    return line;
}

/* count pieces of what costs truth, of least to most units, each off by noise of it at most. */
struct pieces {
    struct cost truth;
    unsigned count;
    double least, most;
    double noise;
};

static double share(uint64_t *random)
{
    return (double)(random_next(random) >> 11) * 0x1p-53;
}

static void note_pieces(struct cost_line *line, uint64_t *random, const struct pieces *pieces)
{
    for (unsigned i = 0; i < pieces->count; i++) {
        const double units = pieces->least + share(random) * (pieces->most - pieces->least);
        const double factor = 1 + pieces->noise * (2 * share(random) - 1);

        cost_line_note(line, units, cost_ms(pieces->truth, units) * factor);
    }
}

Test(cost_line, what_is_not_known_is_the_prior)
{
    const struct cost_line line = line_of();

    cr_assert(not(cost_line_is_known(&line)));
    cr_assert(eq(dbl, cost_line_cost(&line).start_ms, 1));
    cr_assert(eq(dbl, cost_line_cost(&line).unit_ms, 0.5));
}

Test(cost_line, sizes_that_differ_tell_start_from_units)
{
    struct cost_line line = line_of();
    uint64_t random = 1;

    note_pieces(&line, &random,
                &(struct pieces){{.start_ms = 30, .unit_ms = 0.2}, 200, 1, 400, 0.1});

    cr_assert(cost_line_is_known(&line));
    cr_assert(epsilon_eq(dbl, cost_line_cost(&line).start_ms, 30, 3));
    cr_assert(epsilon_eq(dbl, cost_line_cost(&line).unit_ms, 0.2, 0.02));
}

Test(cost_line, one_piece_is_believed_at_its_size)
{
    struct cost_line line = line_of();

    cost_line_note(&line, 8, 50); /* ten times the prior's 5 */

    cr_assert(epsilon_eq(dbl, cost_line_cost(&line).start_ms, 10, 1e-9));
    cr_assert(epsilon_eq(dbl, cost_line_cost(&line).unit_ms, 5, 1e-9));
}

Test(cost_line, pieces_of_one_size_are_divided_as_the_prior_is)
{
    struct cost_line line = line_of();
    uint64_t random = 2;

    note_pieces(&line, &random, &(struct pieces){{10, 2}, 500, 100, 100, 0.2});

    const struct cost cost = cost_line_cost(&line);
    cr_assert(epsilon_eq(dbl, cost_ms(cost, 100), 210, 10));
    cr_assert(epsilon_eq(dbl, cost.start_ms / cost.unit_ms, prior.start_ms / prior.unit_ms, 0.1));
}

Test(cost_line, pieces_without_units_are_a_start)
{
    struct cost_line line = line_of();

    for (unsigned i = 0; i < 100; i++)
        cost_line_note(&line, 0, 7);

    cr_assert(epsilon_eq(dbl, cost_line_cost(&line).start_ms, 7, 1e-9));
    cr_assert(eq(dbl, cost_line_cost(&line).unit_ms, prior.unit_ms));
}

/* One in eight takes fifty times as long: a mean would be off by a factor of seven. */
Test(cost_line, what_is_odd_now_and_then_hardly_moves_it)
{
    struct cost_line line = line_of();
    uint64_t random = 3;
    const struct pieces usual = {{2, 0.1}, 7, 10, 200, 0.1};
    const struct pieces odd = {{100, 5}, 1, 10, 200, 0.1};

    for (unsigned i = 0; i < 40; i++) {
        note_pieces(&line, &random, &usual);
        note_pieces(&line, &random, &odd);
    }

    cr_assert(epsilon_eq(dbl, cost_ms(cost_line_cost(&line), 100), 12, 12 * 0.25));
}

/* Of the same size half take 12 ms at most, and the mean is 27. */
Test(cost_line, what_is_skewed_is_learned_near_its_median)
{
    struct cost_line line = line_of();
    uint64_t random = 7;
    double sum = 0;
    unsigned count = 0;

    for (unsigned i = 0; i < 2000; i++) {
        const double units = 10 + 190 * share(&random);
        const double factor = 0.457 * exp(4.2 * share(&random) * share(&random));

        cost_line_note(&line, units, (2 + 0.1 * units) * factor);
        if (i >= 100) {
            sum += cost_ms(cost_line_cost(&line), 100) / 12;
            count++;
        }
    }

    cr_assert(epsilon_eq(dbl, sum / count, 1, 0.3));
}

Test(cost_line, an_odd_first_piece_is_forgotten)
{
    struct cost_line line = line_of();
    uint64_t random = 4;

    cost_line_note(&line, 100, 5000);
    note_pieces(&line, &random, &(struct pieces){{2, 0.1}, 30, 10, 200, 0.1});

    cr_assert(epsilon_eq(dbl, cost_ms(cost_line_cost(&line), 100), 12, 2.4));
}

Test(cost_line, what_is_so_from_now_on_is_learned_in_ten_pieces)
{
    struct cost_line line = line_of();
    uint64_t random = 5;

    note_pieces(&line, &random, &(struct pieces){{2, 0.1}, 500, 10, 200, 0.1});
    note_pieces(&line, &random, &(struct pieces){{40, 3}, 10, 10, 200, 0.1});
    cr_assert(epsilon_eq(dbl, cost_ms(cost_line_cost(&line), 100), 340, 340 * 0.2));

    note_pieces(&line, &random, &(struct pieces){{2, 0.1}, 10, 10, 200, 0.1});
    cr_assert(epsilon_eq(dbl, cost_ms(cost_line_cost(&line), 100), 12, 12 * 0.25));
}

Test(cost_line, whatever_is_noted_nothing_is_negative_or_without_bound)
{
    uint64_t random = 6;

    for (unsigned life = 0; life < 300; life++) {
        struct cost_line line = line_of();

        for (unsigned i = 0; i < 200; i++) {
            const double units = random_next(&random) % 3 == 0 ? 0 : pow(10, 10 * share(&random));
            const double ms = random_next(&random) % 5 == 0 ? 0 : pow(10, 20 * share(&random) - 8);

            cost_line_note(&line, units, ms);

            const struct cost cost = cost_line_cost(&line);
            cr_assert(ge(dbl, cost.start_ms, 0));
            cr_assert(le(dbl, cost.start_ms, 600000));
            cr_assert(ge(dbl, cost.unit_ms, 0));
            cr_assert(le(dbl, cost.unit_ms, 1e16));
        }
    }
}
