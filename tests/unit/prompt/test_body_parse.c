/* SPDX-License-Identifier: Apache-2.0 */

#include "router/prompt/body_parse.h"
#include "tests/support/leak_check.h"
#include "tests/support/prompt_world.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>

/* A body read, with all it needs. */
struct parse_world {
    struct json_scanner *scanner;
    struct arena arena;
    char *body;
    struct body_parse parse;
};

static void parse_world_init_of(struct parse_world *world, enum api api, const char *body,
                                const char *default_model)
{
    size_t len = strlen(body);

    world->scanner = json_scanner_create();
    arena_init(&world->arena, PROMPT_WORLD_ARENA_BYTES);
    world->body = calloc(1, len + JSON_PADDING);
    memcpy(world->body, body, len);
    world->parse = (struct body_parse){
        .api = api,
        .body = slice_of(world->body, len),
        .default_model = default_model != NULL ? slice_of_string(default_model) : (struct slice){0},
        .secret = prompt_world_config().secret,
        .arena = &world->arena,
    };
    body_parse_run(&world->parse, world->scanner);
}

static void parse_world_init(struct parse_world *world, const char *body, const char *default_model)
{
    parse_world_init_of(world, API_CHAT, body, default_model);
}

static void parse_world_release(struct parse_world *world)
{
    json_scanner_destroy(world->scanner);
    arena_release(&world->arena);
    free(world->body);
}

#define MESSAGES "\"messages\":[{\"role\":\"user\",\"content\":\"Where is the samovar?\"}]"

TestSuite(body_parse, .fini = leak_check);

Test(body_parse, finds_what_the_two_steps_find)
{
    const char *body = "{\"model\":\"tiny\",\"stream\":true," MESSAGES "}";
    struct parse_world world;
    struct prompt_world steps;

    parse_world_init(&world, body, NULL);
    prompt_world_init(&steps, API_CHAT, body);

    cr_assert(eq(int, world.parse.request_status, 0));
    cr_assert(eq(int, world.parse.prompt_status, 0));
    cr_assert(world.parse.request.is_stream);
    cr_assert(eq(sz, world.parse.prompt.block_count, steps.prompt.block_count));
    cr_assert(
        eq(sz, prompt_shared_count(&world.parse.prompt, &steps.prompt), steps.prompt.block_count));
    parse_world_release(&world);
    prompt_world_release(&steps);
}

Test(body_parse, what_it_found_outlives_the_body_and_the_scanners_document)
{
    const char *other =
        "{\"overwritten\":\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"}";
    struct parse_world world;
    struct json_value root;
    struct parse_error error;

    parse_world_init(&world, "{\"model\":\"tiny\",\"prompt_cache_key\":\"turn 7\"," MESSAGES "}",
                     NULL);
    memset(world.body, 'x', world.parse.body.len);
    cr_assert(eq(int, json_scan_copy(world.scanner, slice_of_string(other), &root, &error), 0));

    const struct api_request *request = &world.parse.request;

    cr_assert(eq(str, (char *)(uintptr_t)request->model.ptr, "tiny"));
    cr_assert(eq(str, (char *)(uintptr_t)request->session_key.ptr, "turn 7"));
    cr_assert(json_type(request->root) == JSON_NONE);
    parse_world_release(&world);
}

Test(body_parse, a_response_gone_on_from_is_kept_as_well)
{
    struct parse_world world;

    parse_world_init_of(&world, API_RESPONSES,
                        "{\"model\":\"tiny\",\"previous_response_id\":\"resp_1\",\"input\":\"a\"}",
                        NULL);
    memset(world.body, 'x', world.parse.body.len);

    cr_assert(eq(str, (char *)(uintptr_t)world.parse.request.previous_response_id.ptr, "resp_1"));
    cr_assert(eq(sz, world.parse.prompt.block_count, 0)); /* its prompt begins elsewhere */
    parse_world_release(&world);
}

Test(body_parse, an_absent_model_is_the_default_one_in_name_and_in_the_prompts_names)
{
    struct parse_world absent, named;

    parse_world_init(&absent, "{" MESSAGES "}", "tiny");
    parse_world_init(&named, "{\"model\":\"tiny\"," MESSAGES "}", "other");

    cr_assert(eq(str, (char *)(uintptr_t)absent.parse.request.model.ptr, "tiny"));
    cr_assert(gt(sz, named.parse.prompt.block_count, 0));
    cr_assert(eq(sz, prompt_shared_count(&absent.parse.prompt, &named.parse.prompt),
                 named.parse.prompt.block_count));
    parse_world_release(&absent);
    parse_world_release(&named);
}

Test(body_parse, without_any_model_the_prompt_has_no_names)
{
    struct parse_world world;

    parse_world_init(&world, "{" MESSAGES "}", NULL);

    cr_assert(eq(int, world.parse.request_status, 0));
    cr_assert(eq(int, world.parse.prompt_status, -ENOENT));
    cr_assert(world.parse.request.model.ptr == NULL);
    parse_world_release(&world);
}

Test(body_parse, a_fault_of_the_request_and_one_of_its_prompt_are_told_apart)
{
    struct parse_world no_json, no_messages;

    parse_world_init(&no_json, "{\"model\":", NULL);
    parse_world_init(&no_messages, "{\"model\":\"tiny\"}", NULL);

    cr_assert(eq(int, no_json.parse.request_status, -EINVAL));
    cr_assert(eq(str, (char *)(uintptr_t)no_json.parse.fault.code, "invalid_json"));
    cr_assert(eq(int, no_messages.parse.request_status, 0));
    cr_assert(eq(int, no_messages.parse.prompt_status, -EINVAL));
    cr_assert(eq(str, (char *)(uintptr_t)no_messages.parse.fault.code, "missing_field"));
    parse_world_release(&no_json);
    parse_world_release(&no_messages);
}
