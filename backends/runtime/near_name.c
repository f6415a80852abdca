/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/near_name.h"

/*
 * DESIGN
 *
 * Edit distance by rows (optimal string alignment), of which only the cells nearer to the diagonal
 * than the limit are computed, and given up as soon as no later cell can come below it. Anybody can
 * ask for an unknown model, so the work of one call is bounded; longer names are compared by
 * equality and prefix only.
 */

enum { EDIT_BYTES_MAX = 64, EDITS_MIN = 2 };

static char to_lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static bool is_same(char a, char b)
{
    return to_lower(a) == to_lower(b);
}

static size_t min(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Three rows of the table suffice: a swap looks back two. Cell j of the row of i is the distance
 * between the first i bytes of a and the first j of b. */
struct edit_rows {
    size_t cells[3][EDIT_BYTES_MAX + 1];
    size_t *older, *old, *row;
};

/* Fills the row of i > 0 within limit of the diagonal; returns its least cell. */
static size_t fill_row(struct edit_rows *rows, struct slice a, struct slice b, size_t i,
                       size_t limit)
{
    size_t first = i > limit ? i - limit : 1;
    size_t last = min(b.len, i + limit);
    size_t least = rows->row[first - 1] = first == 1 ? i : limit + 1;

    for (size_t j = first; j <= last; j++) {
        size_t cell = rows->old[j - 1] + !is_same(a.ptr[i - 1], b.ptr[j - 1]);

        cell = min(cell, min(rows->old[j], rows->row[j - 1]) + 1);
        if (i > 1 && j > 1 && is_same(a.ptr[i - 1], b.ptr[j - 2]) &&
            is_same(a.ptr[i - 2], b.ptr[j - 1]))
            cell = min(cell, rows->older[j - 2] + 1);
        rows->row[j] = cell;
        least = min(least, cell);
    }
    if (last < b.len)
        rows->row[last + 1] = limit + 1; /* the next row looks here */
    return least;
}

/* Edits between a and b; when they are more than limit: any number above it. */
static size_t edit_distance(struct slice a, struct slice b, size_t limit)
{
    struct edit_rows rows = {.older = rows.cells[0], .old = rows.cells[1], .row = rows.cells[2]};
    size_t least_before = 0;

    if (a.len > b.len + limit || b.len > a.len + limit)
        return limit + 1;
    for (size_t j = 0; j <= b.len; j++)
        rows.old[j] = j;
    for (size_t i = 1; i <= a.len; i++) {
        size_t *recycled = rows.older;
        size_t least = fill_row(&rows, a, b, i, limit);

        if (least > limit && least_before >= limit) /* a swap comes from two rows back */
            return least;
        least_before = least;
        rows.older = rows.old;
        rows.old = rows.row;
        rows.row = recycled;
    }
    return rows.old[b.len];
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
