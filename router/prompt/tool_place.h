/* SPDX-License-Identifier: Apache-2.0 */

/*
 * tool_place: where a model's template prints the tools, and for which models that is not in front:
 * what decides where their text stands in the stream that names a prompt. Who found it out:
 * tool_survey. A plain value that may be copied; pure.
 */
#ifndef ROUTER_PROMPT_TOOL_PLACE_H
#define ROUTER_PROMPT_TOOL_PLACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/slice.h"

enum tool_place {
    TOOLS_FIRST,            /* behind leading instructions: turn N goes on in turn N+1 */
    TOOLS_BEFORE_LAST_USER, /* in front of the last user message, from turn to turn another one */
    TOOLS_BEHIND_LAST_USER, /* behind it */
    TOOL_PLACE_COUNT,
};

/* "first", "before_last_user", "behind_last_user". */
const char *tool_place_name(enum tool_place place);

struct tool_layout {
    enum tool_place place;
    bool has_mark; /* of tools that do not stand first, */
    uint32_t mark; /* the token that they begin with, which is nowhere else */
};

enum { TOOL_PLACES_MAX = 128 };

/* Of models whose tools do not stand first; all zero is empty. */
struct tool_places {
    uint32_t count;
    struct {
        uint64_t model; /* a digest of its name */
        struct tool_layout layout;
    } entries[TOOL_PLACES_MAX];
};

/* TOOLS_FIRST where nothing else is known, and where places is NULL. */
struct tool_layout tool_places_find(const struct tool_places *places, const uint8_t *secret,
                                    struct slice model);

/* From now on. Where there is no room another model is forgotten. */
void tool_places_set(struct tool_places *places, const uint8_t *secret, struct slice model,
                     struct tool_layout layout);

#endif
