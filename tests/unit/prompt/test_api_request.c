/* SPDX-License-Identifier: Apache-2.0 */

#include "router/api/api_request.h"
#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdio.h>

struct request_world {
    struct json_scanner *scanner;
    char body[1024];
    struct api_request request;
    struct api_fault fault;
};

static int parse(struct request_world *world, enum api api, const char *body)
{
    memset(world, 0, sizeof *world);
    world->scanner = json_scanner_create();
    snprintf(world->body, sizeof world->body - JSON_PADDING, "%s", body);
    return api_request_parse(api, world->scanner, slice_of_string(world->body), &world->request,
                             &world->fault);
}

static void release(struct request_world *world)
{
    json_scanner_destroy(world->scanner);
}

TestSuite(api_request, .fini = leak_check);

Test(api_request, reads_what_the_router_acts_on)
{
    struct request_world world;

    int status = parse(&world, API_CHAT,
                       " {\"model\":\"tiny\",\"stream\":true,\"stream_options\":"
                       "{\"include_usage\":true},\"n\":2,\"max_tokens\":9,\"messages\":[]}");

    cr_assert(eq(int, status, 0));
    cr_assert(slice_eq(world.request.model, SLICE("tiny")));
    cr_assert(world.request.is_stream);
    cr_assert(world.request.has_stream_options);
    cr_assert(world.request.wants_usage);
    cr_assert(eq(u32, world.request.choice_count, 2));
    cr_assert(eq(u32, world.request.prompt_count, 1));
    cr_assert(eq(u64, world.request.answer_tokens_max, 9));
    cr_assert(eq(sz, world.request.object_start, 1));
    cr_assert(not(world.request.is_object_empty));
    cr_assert(not(world.request.is_answer_learnable));
    release(&world);
}

Test(api_request, nulls_and_unknown_fields_are_as_good_as_absent)
{
    struct request_world world;

    int status = parse(&world, API_CHAT,
                       "{\"model\":null,\"stream\":null,\"n\":null,\"max_tokens\":null,"
                       "\"messages\":null,\"tools\":null,\"brand_new\":{\"a\":[1]}}");

    cr_assert(eq(int, status, 0));
    cr_assert(world.request.model.ptr == NULL);
    cr_assert(not(world.request.is_stream));
    cr_assert(eq(u32, world.request.choice_count, 1));
    cr_assert(eq(u64, world.request.answer_tokens_max, 0));
    cr_assert(world.request.is_answer_learnable);
    release(&world);
}

Test(api_request, an_empty_object_is_known_as_such)
{
    struct request_world world;

    cr_assert(eq(int, parse(&world, API_CHAT, "\n{ }"), 0));

    cr_assert(world.request.is_object_empty);
    cr_assert(eq(sz, world.request.object_start, 1));
    release(&world);
}

Test(api_request, what_cannot_be_meant_is_refused_with_its_field)
{
    static const struct {
        const char *body;
        const char *code;
        const char *param;
    } rows[] = {
        {"{\"model\":", "invalid_json", ""},
        {"", "invalid_json", ""},
        {"[]", "invalid_type", ""},
        {"\"text\"", "invalid_type", ""},
        {"{\"model\":7}", "invalid_type", "model"},
        {"{\"stream\":\"true\"}", "invalid_type", "stream"},
        {"{\"stream\":1}", "invalid_type", "stream"},
        {"{\"messages\":{}}", "invalid_type", "messages"},
        {"{\"messages\":\"hi\"}", "invalid_type", "messages"},
        {"{\"stream_options\":[]}", "invalid_type", "stream_options"},
        {"{\"stream_options\":{\"include_usage\":1}}", "invalid_type",
         "stream_options.include_usage"},
        {"{\"n\":\"2\"}", "invalid_type", "n"},
        {"{\"cache_salt\":7}", "invalid_type", "cache_salt"},
        {"{\"tools\":{}}", "invalid_type", "tools"},
        {"{\"model\":\"a\",\"model\":\"b\"}", "duplicate_field", "model"},
        {"{\"model\":\"a\",\"\\u006dodel\":\"b\"}", "duplicate_field", "model"},
        {"{\"stream\":true,\"stream\":false}", "duplicate_field", "stream"},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        struct request_world world;

        int status = parse(&world, API_CHAT, rows[i].body);

        cr_assert(eq(int, status, -EINVAL), "%s", rows[i].body);
        cr_assert(eq(str, (char *)world.fault.code, (char *)rows[i].code), "%s", rows[i].body);
        cr_assert(eq(str, world.fault.param, (char *)rows[i].param), "%s", rows[i].body);
        cr_assert(gt(sz, strlen(world.fault.message), 10));
        release(&world);
    }
}

Test(api_request, a_fault_says_where_and_never_quotes_the_input)
{
    struct request_world world;

    int status = parse(&world, API_CHAT, "{\"model\":\"canary-7361\" x}");

    cr_assert(eq(int, status, -EINVAL));
    cr_assert(strstr(world.fault.message, "byte 23") != NULL, "%s", world.fault.message);
    cr_assert(strstr(world.fault.message, "canary") == NULL);
    release(&world);
}

Test(api_request, prompts_are_counted_in_all_four_forms)
{
    static const struct {
        const char *body;
        uint32_t prompt_count;
        bool is_token_prompt;
        bool is_learnable;
    } rows[] = {
        {"{\"prompt\":\"a\"}", 1, false, true},
        {"{\"prompt\":[\"a\"]}", 1, false, true},
        {"{\"prompt\":[\"a\",\"b\"]}", 2, false, false},
        {"{\"prompt\":[1,2,3]}", 1, true, false},
        {"{\"prompt\":[[1,2],[3]]}", 2, true, false},
        {"{\"prompt\":\"a\",\"echo\":true}", 1, false, false},
        {"{\"prompt\":\"a\",\"suffix\":\"b\"}", 1, false, false},
        {"{\"prompt\":\"a\",\"best_of\":3}", 1, false, false},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        struct request_world world;

        cr_assert(eq(int, parse(&world, API_COMPLETIONS, rows[i].body), 0));

        cr_assert(eq(u32, world.request.prompt_count, rows[i].prompt_count), "%s", rows[i].body);
        cr_assert(eq(int, world.request.is_token_prompt, rows[i].is_token_prompt));
        cr_assert(eq(int, world.request.is_answer_learnable, rows[i].is_learnable), "%s",
                  rows[i].body);
        release(&world);
    }
}

Test(api_request, usage_is_asked_for_only_where_the_client_left_the_question_open)
{
    static const struct {
        const char *body;
        bool wants_splice;
    } rows[] = {
        {"{\"stream\":true}", true},
        {"{\"stream\":false}", false},
        {"{}", false},
        {"{\"stream\":true,\"stream_options\":null}", false},
        {"{\"stream\":true,\"stream_options\":{}}", false},
        {"{\"stream\":true,\"stream_options\":{\"include_usage\":true}}", false},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        struct request_world world;
        struct request_world spliced;
        cr_assert(eq(int, parse(&world, API_CHAT, rows[i].body), 0));

        struct slice splice = api_request_usage_splice(&world.request);

        cr_assert(eq(int, splice.len > 0, rows[i].wants_splice), "%s", rows[i].body);
        if (splice.len > 0) {
            char body[256];
            snprintf(body, sizeof body, "{%.*s%s", (int)splice.len, splice.ptr, rows[i].body + 1);
            cr_assert(eq(int, parse(&spliced, API_CHAT, body), 0));
            cr_assert(spliced.request.wants_usage);
            cr_assert(spliced.request.is_stream);
            release(&spliced);
        }
        release(&world);
    }
}
