/* SPDX-License-Identifier: Apache-2.0 */

/*
 * edit_distance: how far one word is from another, for "did you mean". Pure; any thread.
 */
#ifndef BACKENDS_RUNTIME_EDIT_DISTANCE_H
#define BACKENDS_RUNTIME_EDIT_DISTANCE_H

#include <stdbool.h>
#include <stddef.h>

#include "backends/runtime/slice.h"

enum { EDIT_DISTANCE_BYTES_MAX = 128 };

/* Insertions, deletions, replacements and swaps of neighbours that turn a into b (optimal string
 * alignment). SIZE_MAX where one of them is longer than EDIT_DISTANCE_BYTES_MAX. */
size_t edit_distance(struct slice a, struct slice b);

/* Whether typed is near enough to word to be a slip of it, and how near: 0 is best. A word that
 * begins with what was typed is always near. */
bool edit_distance_is_near(struct slice typed, struct slice word, size_t *distance);

#endif
