/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/edit_distance.h"

#include <stdint.h>

enum { PREFIX_BYTES_MIN = 3 };

static size_t min_of(size_t a, size_t b)
{
    return a < b ? a : b;
}

size_t edit_distance(struct slice a, struct slice b)
{
    /* Three rows of the table suffice: a swap looks back two. */
    size_t rows[3][EDIT_DISTANCE_BYTES_MAX + 1];
    size_t *older = rows[0], *old = rows[1], *row = rows[2];

    if (a.len > EDIT_DISTANCE_BYTES_MAX || b.len > EDIT_DISTANCE_BYTES_MAX)
        return SIZE_MAX;
    for (size_t j = 0; j <= b.len; j++)
        old[j] = j;
    for (size_t i = 1; i <= a.len; i++) {
        size_t *recycled = older;

        row[0] = i;
        for (size_t j = 1; j <= b.len; j++) {
            row[j] =
                min_of(min_of(old[j], row[j - 1]) + 1, old[j - 1] + (a.ptr[i - 1] != b.ptr[j - 1]));
            if (i > 1 && j > 1 && a.ptr[i - 1] == b.ptr[j - 2] && a.ptr[i - 2] == b.ptr[j - 1])
                row[j] = min_of(row[j], older[j - 2] + 1);
        }
        older = old;
        old = row;
        row = recycled;
    }
    return old[b.len];
}

bool edit_distance_is_near(struct slice typed, struct slice word, size_t *distance)
{
    if (typed.len >= PREFIX_BYTES_MIN && slice_starts_with(word, typed)) {
        *distance = 0;
        return true;
    }
    *distance = edit_distance(typed, word);
    return *distance <= 1 + word.len / 5 && *distance < word.len;
}
