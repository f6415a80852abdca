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

Test(api_request, each_api_calls_the_bound_of_its_answer_by_its_own_name)
{
    static const struct {
        enum api api;
        const char *body;
        uint64_t expected;
    } rows[] = {
        {API_CHAT, "{\"max_tokens\":3,\"max_completion_tokens\":5}", 5},
        {API_COMPLETIONS, "{\"max_tokens\":3}", 3},
        {API_RESPONSES, "{\"max_output_tokens\":7,\"max_tokens\":3}", 7},
        {API_RESPONSES, "{\"max_tokens\":3}", 0},
        {API_MESSAGES, "{\"max_tokens\":9,\"max_output_tokens\":3}", 9},
        {API_EMBEDDINGS, "{\"max_tokens\":9}", 0},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        struct request_world world;

        cr_assert(eq(int, parse(&world, rows[i].api, rows[i].body), 0));

        cr_assert(eq(u64, world.request.answer_tokens_max, rows[i].expected), "%s", rows[i].body);
        release(&world);
    }
}

Test(api_request, what_ties_requests_together_is_the_narrowest_key_there_is)
{
    static const struct {
        enum api api;
        const char *body;
        const char *expected; /* NULL: none */
    } rows[] = {
        {API_CHAT,
         "{\"user\":\"u\",\"safety_identifier\":\"f\",\"session_params\":{\"session_id\":\"p\"},"
         "\"session_id\":\"s\",\"prompt_cache_key\":\"k\"}",
         "k"},
        {API_CHAT,
         "{\"user\":\"u\",\"safety_identifier\":\"f\",\"session_params\":{\"session_id\":\"p\"},"
         "\"session_id\":\"s\",\"prompt_cache_key\":null}",
         "s"},
        {API_COMPLETIONS,
         "{\"user\":\"u\",\"safety_identifier\":\"f\",\"session_params\":{\"session_id\":\"p\"},"
         "\"session_id\":\"\"}",
         "p"},
        {API_RESPONSES, "{\"user\":\"u\",\"safety_identifier\":\"f\",\"session_params\":{}}", "f"},
        {API_RESPONSES, "{\"user\":\"u\"}", "u"},
        {API_MESSAGES, "{\"metadata\":{\"user_id\":\"m\"}}", "m"},
        {API_MESSAGES, "{\"metadata\":{\"user_id\":null}}", NULL},
        {API_CHAT, "{\"metadata\":{\"user_id\":\"m\"}}", NULL},
        {API_CHAT, "{}", NULL},
        {API_EMBEDDINGS, "{\"user\":\"u\"}", NULL},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        struct request_world world;

        cr_assert(eq(int, parse(&world, rows[i].api, rows[i].body), 0));

        if (rows[i].expected == NULL)
            cr_assert(eq(sz, world.request.session_key.len, 0), "%s", rows[i].body);
        else
            cr_assert(slice_eq(world.request.session_key, slice_of_string(rows[i].expected)), "%s",
                      rows[i].body);
        release(&world);
    }
}

Test(api_request, state_that_an_engine_holds_is_told_apart_from_state_in_the_body)
{
    static const struct {
        const char *body;
        const char *previous;
        bool continues_state;
        bool is_background;
        bool is_stored;
    } rows[] = {
        {"{\"input\":\"x\"}", "", false, false, true},
        {"{\"input\":\"x\",\"store\":null,\"previous_response_id\":null,\"background\":null}", "",
         false, false, true},
        {"{\"input\":\"x\",\"store\":false}", "", false, false, false},
        {"{\"input\":\"x\",\"previous_response_id\":\"resp_1\",\"background\":true}", "resp_1",
         true, true, true},
        {"{\"input\":\"x\",\"conversation\":{\"id\":\"conv_1\"}}", "", true, false, true},
        {"{\"input\":\"x\",\"conversation\":\"conv_1\"}", "", true, false, true},
        {"{\"prompt\":{\"id\":\"pmpt_1\"}}", "", true, false, true},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        struct request_world world;

        cr_assert(eq(int, parse(&world, API_RESPONSES, rows[i].body), 0));

        cr_assert(slice_eq(world.request.previous_response_id, slice_of_string(rows[i].previous)));
        cr_assert(eq(int, world.request.continues_state, rows[i].continues_state), "%s",
                  rows[i].body);
        cr_assert(eq(int, world.request.is_background, rows[i].is_background), "%s", rows[i].body);
        cr_assert(eq(int, world.request.is_stored, rows[i].is_stored), "%s", rows[i].body);
        cr_assert(eq(int, world.request.is_answer_learnable, !rows[i].continues_state));
        release(&world);
    }
}

Test(api_request, an_answer_that_the_next_prompt_will_not_hold_is_not_learnable)
{
    static const struct {
        enum api api;
        const char *body;
        bool is_learnable;
    } rows[] = {
        {API_CHAT, "{\"messages\":[]}", true},
        {API_CHAT, "{\"include_reasoning\":true}", true},
        {API_CHAT, "{\"include_reasoning\":false}", false},
        {API_CHAT, "{\"continue_final_message\":true}", false},
        {API_CHAT, "{\"add_generation_prompt\":false}", false},
        {API_RESPONSES, "{\"input\":[{\"role\":\"user\",\"content\":\"x\"}]}", true},
        {API_RESPONSES, "{\"input\":[],\"include_reasoning\":false}", false},
        {API_RESPONSES,
         "{\"input\":[{\"role\":\"assistant\",\"content\":\"x\",\"status\":\"incomplete\"}]}",
         false},
        {API_RESPONSES, "{\"input\":[{\"type\":\"reasoning\",\"status\":\"in_progress\"}]}", false},
        {API_RESPONSES, "{\"input\":[{\"type\":\"function_call\",\"status\":\"in_progress\"}]}",
         true},
        {API_RESPONSES,
         "{\"input\":[{\"role\":\"assistant\",\"content\":\"x\",\"status\":\"incomplete\"},"
         "{\"role\":\"user\",\"content\":\"x\"}]}",
         true},
        {API_MESSAGES, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", true},
        {API_MESSAGES,
         "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},"
         "{\"role\":\"assistant\",\"content\":\"x\"}]}",
         false},
        {API_COUNT_TOKENS, "{\"messages\":[]}", false},
        {API_EMBEDDINGS, "{\"input\":\"x\"}", false},
        {API_RERANK, "{\"query\":\"x\",\"documents\":[]}", false},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        struct request_world world;

        cr_assert(eq(int, parse(&world, rows[i].api, rows[i].body), 0));

        cr_assert(eq(int, world.request.is_answer_learnable, rows[i].is_learnable), "%s",
                  rows[i].body);
        release(&world);
    }
}

Test(api_request, a_wrong_type_is_refused_only_in_the_api_that_has_the_field)
{
    static const struct {
        enum api api;
        const char *body;
        const char *param; /* NULL: fine */
    } rows[] = {
        {API_RESPONSES, "{\"input\":7}", "input"},
        {API_RESPONSES, "{\"input\":{}}", "input"},
        {API_RESPONSES, "{\"instructions\":[]}", "instructions"},
        {API_RESPONSES, "{\"previous_response_id\":7}", "previous_response_id"},
        {API_RESPONSES, "{\"background\":\"yes\"}", "background"},
        {API_RESPONSES, "{\"store\":0}", "store"},
        {API_RESPONSES, "{\"max_output_tokens\":\"many\"}", "max_output_tokens"},
        {API_RESPONSES, "{\"store\":true,\"store\":false}", "store"},
        {API_RESPONSES, "{\"messages\":7,\"system\":7,\"n\":\"x\",\"stream_options\":7}", NULL},
        {API_MESSAGES, "{\"system\":{}}", "system"},
        {API_MESSAGES, "{\"messages\":\"hi\"}", "messages"},
        {API_MESSAGES, "{\"metadata\":[]}", "metadata"},
        {API_MESSAGES, "{\"metadata\":{\"user_id\":7}}", "metadata.user_id"},
        {API_MESSAGES, "{\"input\":7,\"previous_response_id\":7,\"store\":\"x\"}", NULL},
        {API_CHAT, "{\"user\":7}", "user"},
        {API_CHAT, "{\"prompt_cache_key\":{}}", "prompt_cache_key"},
        {API_CHAT, "{\"session_params\":{\"session_id\":[]}}", "session_params.session_id"},
        {API_CHAT, "{\"metadata\":7,\"input\":7,\"prompt\":7}", NULL},
        {API_EMBEDDINGS, "{\"model\":7}", "model"},
        {API_EMBEDDINGS, "{\"input\":7,\"user\":7,\"stream\":\"x\",\"messages\":7}", NULL},
        {API_TOKENIZE, "{\"prompt\":7}", NULL},
        {API_DETOKENIZE, "[]", ""},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        struct request_world world;

        int status = parse(&world, rows[i].api, rows[i].body);

        cr_assert(eq(int, status, rows[i].param == NULL ? 0 : -EINVAL), "%s", rows[i].body);
        if (rows[i].param != NULL)
            cr_assert(eq(str, world.fault.param, (char *)rows[i].param), "%s", rows[i].body);
        release(&world);
    }
}

Test(api_request, only_chat_and_completions_have_to_be_asked_for_usage)
{
    for (enum api api = API_CHAT; api <= API_DETOKENIZE; api++) {
        struct request_world world;

        cr_assert(eq(int, parse(&world, api, "{\"stream\":true}"), 0));

        cr_assert(eq(int, api_request_usage_splice(&world.request).len > 0,
                     api == API_CHAT || api == API_COMPLETIONS),
                  "%s", api_name(api));
        release(&world);
    }
}
