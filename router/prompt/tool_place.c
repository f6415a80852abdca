/* SPDX-License-Identifier: Apache-2.0 */

#include "router/prompt/tool_place.h"

#include <assert.h>

#include "backends/runtime/must_check.h"
#include "hashing/digest.h"

static const char *const place_names[] = {
    [TOOLS_FIRST] = "first",
    [TOOLS_BEFORE_LAST_USER] = "before_last_user",
    [TOOLS_BEHIND_LAST_USER] = "behind_last_user",
};
_Static_assert(array_count(place_names) == TOOL_PLACE_COUNT, "every place has a name");

const char *tool_place_name(enum tool_place place)
{
    assert(place < TOOL_PLACE_COUNT);

    return place_names[place];
}

/* The model's entry, or count: it has none. */
static uint32_t find(const struct tool_places *places, uint64_t model)
{
    uint32_t i = 0;

    while (i < places->count && places->entries[i].model != model)
        i++;
    return i;
}

static uint64_t name_of(const uint8_t *secret, struct slice model)
{
    return digest_64(secret, DIGEST_ROOT, model.ptr, model.len);
}

struct tool_layout tool_places_find(const struct tool_places *places, const uint8_t *secret,
                                    struct slice model)
{
    const struct tool_layout first = {.place = TOOLS_FIRST};
    uint32_t i;

    if (places == NULL || places->count == 0) /* as in most fleets: nothing is hashed for it */
        return first;
    i = find(places, name_of(secret, model));
    return i < places->count ? places->entries[i].layout : first;
}

void tool_places_set(struct tool_places *places, const uint8_t *secret, struct slice model,
                     struct tool_layout layout)
{
    const uint64_t name = name_of(secret, model);
    uint32_t i = find(places, name);

    if (i == places->count && layout.place == TOOLS_FIRST)
        return;
    if (layout.place == TOOLS_FIRST) {
        places->entries[i] = places->entries[--places->count];
        return;
    }
    if (i == TOOL_PLACES_MAX)
        i = (uint32_t)(name % TOOL_PLACES_MAX);
    else if (i == places->count)
        places->count++;
    places->entries[i].model = name;
    places->entries[i].layout = layout;
}
