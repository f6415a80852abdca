/* SPDX-License-Identifier: Apache-2.0 */

/*
 * cost_line: what a piece of work takes by its size, start + units * unit, learned from what such
 * pieces took. It knows neither a clock nor what the units are. Pure; one thread at a time.
 */
#ifndef BACKENDS_RUNTIME_COST_LINE_H
#define BACKENDS_RUNTIME_COST_LINE_H

#include <stdbool.h>

struct cost {
    double start_ms; /* of any size */
    double unit_ms;  /* of each unit more */
};

/* Caller's storage, nothing to release. */
struct cost_line {
    struct cost prior;
    /* Sums over what was noted, older ones fading. */
    double weight;
    double units, ms, units_units, units_ms;
    int odd_count; /* notes in a row that took far longer than expected; negative: far shorter */
};

/* prior: what is assumed until something is noted, and how what the notes leave open is divided: of
 * pieces that are all of one size nobody can tell start from units. Not both of it are 0. */
void cost_line_init(struct cost_line *line, struct cost prior);

/* A piece of so many units took so long. Both are at least 0. */
void cost_line_note(struct cost_line *line, double units, double ms);

static inline bool cost_line_is_known(const struct cost_line *line)
{
    return line->weight > 0;
}

/* As learned, or the prior. Neither is ever negative. */
struct cost cost_line_cost(const struct cost_line *line);

static inline double cost_ms(struct cost cost, double units)
{
    return cost.start_ms + units * cost.unit_ms;
}

#endif
