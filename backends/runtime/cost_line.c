/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/cost_line.h"

#include <assert.h>

/*
 * DESIGN
 *
 * Least squares over notes that fade, so that the newest WINDOW or so count. Two things are added.
 *
 * What the sizes leave open. Pieces of one size fix one point, through which any line may go. So
 * the slope is drawn towards that of the prior, stretched until it goes through the middle of all
 * notes: units that are three times as dear as assumed come with a start three times as dear. It is
 * drawn by RIDGE of the mean size squared, which decides where the sizes differ by less than a
 * tenth, and is not noticed where some are twice as large as others. Whatever the line, it goes
 * through the middle of the notes: at the sizes that occur it is right.
 *
 * What is believed. What a piece took is skewed: most take about as long, some meet something else
 * (a thread that was not run, a page that was not there) and take many times that. Their mean is
 * nobody's time. So a note counts as no more than BELIEVED_FACTOR times what was expected of it,
 * and as no less than that part of it: the line stays close to the median, and no single note moves
 * it by more than a per cent or two. ODD_MAX in a row that took twice as long and more, or half and
 * less, are no accident but how it is from now on: what was before is forgotten.
 *
 * Bounds: 0 <= start <= the mean; a unit is never dearer than all by units alone would be, nor
 * nearly free (UNIT_SHARE_MIN of the stretched prior), however the notes scatter.
 */
static const double WINDOW = 25;
static const double RIDGE = 0.01;
static const double BELIEVED_FACTOR = 1.25;
static const double ODD_FACTOR = 2;
static const double EXPECTED_WEIGHT_MIN = 3; /* with fewer notes, nothing is expected */
static const double UNIT_SHARE_MIN = 0.0625;
static const double MS_MAX = 600000;

enum { ODD_MAX = 4 };

void cost_line_init(struct cost_line *line, struct cost prior)
{
    assert(prior.start_ms >= 0 && prior.unit_ms >= 0);
    assert(prior.start_ms + prior.unit_ms > 0);

    *line = (struct cost_line){.prior = prior};
}

static double between(double value, double least, double most)
{
    return value < least ? least : value > most ? most : value;
}

static void fade(struct cost_line *line, double kept)
{
    line->weight *= kept;
    line->units *= kept;
    line->ms *= kept;
    line->units_units *= kept;
    line->units_ms *= kept;
}

/* How many in a row were odd in the same way, this one too: more than 0 where they took too long.
 */
static int odd_count(const struct cost_line *line, double expected, double ms)
{
    if (ms > expected * ODD_FACTOR)
        return line->odd_count > 0 ? line->odd_count + 1 : 1;
    if (ms < expected / ODD_FACTOR)
        return line->odd_count < 0 ? line->odd_count - 1 : -1;
    return 0;
}

/* What is believed of a note. */
static double believed(struct cost_line *line, double units, double ms)
{
    const double expected = cost_ms(cost_line_cost(line), units);

    if (line->weight < EXPECTED_WEIGHT_MIN)
        return ms;
    line->odd_count = odd_count(line, expected, ms);
    if (line->odd_count == ODD_MAX || line->odd_count == -ODD_MAX) {
        cost_line_init(line, line->prior);
        return ms;
    }
    return between(ms, expected / BELIEVED_FACTOR, expected * BELIEVED_FACTOR);
}

void cost_line_note(struct cost_line *line, double units, double ms)
{
    assert(units >= 0);
    assert(ms >= 0);

    ms = between(believed(line, units, ms), 0, MS_MAX);
    fade(line, 1 - 1 / WINDOW);
    line->weight += 1;
    line->units += units;
    line->ms += ms;
    line->units_units += units * units;
    line->units_ms += units * ms;
}

struct cost cost_line_cost(const struct cost_line *line)
{
    double units, ms, stretched, spread, together, ridge, unit_ms;

    if (!cost_line_is_known(line))
        return line->prior;
    units = line->units / line->weight;
    ms = line->ms / line->weight;
    if (units <= 0)
        return (struct cost){ms, line->prior.unit_ms};
    stretched = line->prior.unit_ms * ms / cost_ms(line->prior, units);
    spread = line->units_units / line->weight - units * units;
    together = line->units_ms / line->weight - units * ms;
    ridge = RIDGE * units * units;
    unit_ms = (together + ridge * stretched) / ((spread > 0 ? spread : 0) + ridge);
    unit_ms = between(unit_ms, UNIT_SHARE_MIN * stretched, ms / units);
    return (struct cost){between(ms - units * unit_ms, 0, ms), unit_ms};
}
