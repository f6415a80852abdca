/* SPDX-License-Identifier: Apache-2.0 */

/*
 * body_parse: all that is made of one complete request body, in one step: the fields that the
 * router acts on, and the names of its prompt's blocks. Knows nothing but what it is given, so that
 * a small body is read on the loop thread and a large one on another by the same function. Pure;
 * any thread.
 */
#ifndef ROUTER_PROMPT_BODY_PARSE_H
#define ROUTER_PROMPT_BODY_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/json/json_scan.h"
#include "backends/runtime/arena.h"
#include "backends/runtime/slice.h"
#include "router/api/api_request.h"
#include "router/prompt/anchor_plan.h"
#include "router/prompt/prompt_stream.h"

enum {
    BODY_PARSE_BLOCK_COUNT_MAX = 1 << 18, /* 64 MiB of text */
};

struct body_parse {
    /* Given, and borrowed while body_parse_run() runs. */
    enum api api;
    struct slice body;          /* with JSON_PADDING readable bytes behind it */
    struct slice default_model; /* of a body that names none; {NULL, 0}: there is no such model */
    const uint8_t *secret;      /* BLOCK_CHAIN_SECRET_BYTES */
    struct arena *arena;        /* everything found lies in it */
    bool wants_plan;            /* somebody will ask for plan */
    const struct tool_places *tool_places; /* NULL: all models' tools stand first */

    /* Found. */
    int request_status; /* 0; -EINVAL: fault says why; -ENOMEM. If < 0, all below is void */
    int prompt_status;  /* of the prompt's blocks: 0, -ENOBUFS: of its first part only;
                           -EINVAL: fault says why; -ENOMEM; -ENOENT: it has no model */
    struct api_fault fault;
    struct api_request request;  /* its root is dead; its model is default_model where absent */
    struct prompt_blocks prompt; /* no blocks: its prompt has no names */
    bool has_tools;              /* and the model is shown them */
    struct tool_layout layout;   /* where */
    struct anchor_plan plan;     /* of a prompt with all its names, where it was wanted */
};

/* Fills what is to be found. The scanner is left with bounded memory. */
void body_parse_run(struct body_parse *parse, struct json_scanner *scanner);

#endif
