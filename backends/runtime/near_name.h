/* SPDX-License-Identifier: Apache-2.0 */

/* near_name: how far a name that somebody typed is from one that exists, for "did you mean": of
 * options, their words, commands, models. Pure, no allocation; any thread. */
#ifndef BACKENDS_RUNTIME_NEAR_NAME_H
#define BACKENDS_RUNTIME_NEAR_NAME_H

#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/slice.h"

#define NEAR_NAME_FAR SIZE_MAX

/*
 * Smaller is nearer; NEAR_NAME_FAR: not worth a mention. ASCII case does not count. Names that are
 * equal, or equal behind the last '/', cost 0; one that is a prefix of the other costs 1; else it
 * is the number of edits, at most max(2, typed.len / 4). An edit is a byte put in, left out or
 * changed, or two neighbours swapped.
 */
size_t near_name_cost(struct slice typed, struct slice name);

#endif
