/* SPDX-License-Identifier: Apache-2.0 */

/*
 * prompt_world: a request body parsed and named, with all it needs, for tests of router/prompt.
 */
#ifndef TESTS_SUPPORT_PROMPT_WORLD_H
#define TESTS_SUPPORT_PROMPT_WORLD_H

#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

#include "router/prompt/prompt_stream.h"

enum { PROMPT_WORLD_BLOCK_COUNT_MAX = 4096, PROMPT_WORLD_ARENA_BYTES = 16 << 20 };

struct prompt_world {
    struct json_scanner *scanner;
    struct arena arena;
    char *body; /* padded */
    struct api_request request;
    struct api_fault fault;
    struct prompt_blocks prompt;
};

static inline struct prompt_stream_config prompt_world_config(void)
{
    static uint8_t secret[BLOCK_CHAIN_SECRET_BYTES];

    for (size_t i = 0; i < sizeof secret; i++)
        secret[i] = (uint8_t)(i * 7 + 1);
    return (struct prompt_stream_config){secret, 256, 64, TOOLS_FIRST};
}

/* Returns what parsing, or else naming, returned. Release it whatever that was. */
static inline int prompt_world_try_at(struct prompt_world *world, enum api api, struct slice body,
                                      enum tool_place tool_place)
{
    struct prompt_stream_config config = prompt_world_config();
    int status;

    config.tool_place = tool_place;

    memset(world, 0, sizeof *world);
    world->scanner = json_scanner_create();
    arena_init(&world->arena, PROMPT_WORLD_ARENA_BYTES);
    world->body = calloc(1, body.len + JSON_PADDING);
    memcpy(world->body, body.ptr, body.len);
    status = api_request_parse(api, world->scanner, slice_of(world->body, body.len),
                               &world->request, &world->fault);
    if (status < 0)
        return status;
    return prompt_stream_write(config, &world->request, &world->arena, PROMPT_WORLD_BLOCK_COUNT_MAX,
                               &world->prompt, &world->fault);
}

static inline int prompt_world_try(struct prompt_world *world, enum api api, struct slice body)
{
    return prompt_world_try_at(world, api, body, TOOLS_FIRST);
}

static inline void prompt_world_init(struct prompt_world *world, enum api api, const char *body)
{
    int status = prompt_world_try(world, api, slice_of_string(body));

    cr_assert(status == 0, "%s: %s: %s", body, world->fault.param, world->fault.message);
}

static inline void prompt_world_release(struct prompt_world *world)
{
    json_scanner_destroy(world->scanner);
    arena_release(&world->arena);
    free(world->body);
    memset(world, 0, sizeof *world);
}

/* How many blocks two prompts share from the start, end nodes included. */
static inline size_t prompt_shared_count(const struct prompt_blocks *a,
                                         const struct prompt_blocks *b)
{
    size_t count = 0;

    while (count < a->block_count && count < b->block_count &&
           a->blocks[count].hash == b->blocks[count].hash)
        count++;
    return count;
}

/* Blocks that two prompts share, of how many each has. */
struct prompt_overlap {
    size_t shared;
    size_t a_count;
    size_t b_count;
};

static inline struct prompt_overlap prompt_world_compare(enum api a_api, const char *a,
                                                         enum api b_api, const char *b)
{
    struct prompt_world first, second;
    struct prompt_overlap overlap;

    prompt_world_init(&first, a_api, a);
    prompt_world_init(&second, b_api, b);
    overlap = (struct prompt_overlap){prompt_shared_count(&first.prompt, &second.prompt),
                                      first.prompt.block_count, second.prompt.block_count};
    prompt_world_release(&first);
    prompt_world_release(&second);
    return overlap;
}

#endif
