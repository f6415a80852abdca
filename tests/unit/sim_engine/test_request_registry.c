/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/request_registry.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>

#include "tests/sim_engine/response_store.h"
#include "tests/support/leak_check.h"

#define MESSAGES "\"messages\":[{\"role\":\"user\",\"content\":\"hello there\"}]"
#define TOOLS                                                                                      \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\"}},"                            \
    "{\"type\":\"function\",\"function\":{\"name\":\"b\"}}]"

static const struct engine_model model = {
    .name = SLICE("tiny"),
    .loras = {SLICE("tiny-lora")},
    .lora_count = 1,
    .context_tokens_max = 1024,
};

/* One read; release with world_release(). */
struct world {
    struct json_scanner *scanner;
    struct json_scanner *form_scanner;
    struct engine_request request;
    struct engine_fault fault;
    int status;
};

static struct world read_body(enum engine_api api, const char *body)
{
    struct world world = {
        .scanner = json_scanner_create(),
        .form_scanner = json_scanner_create(),
    };
    struct request_reader reader = {.model = &model, .form_scanner = world.form_scanner};
    struct json_value root;
    struct parse_error error;

    cr_assert(eq(int, json_scan_copy(world.scanner, slice_of_string(body), &root, &error), 0), "%s",
              body);
    world.status = engine_request_read(api, &reader, root, &world.request, &world.fault);
    return world;
}

static void world_release(struct world *world)
{
    engine_request_release(&world->request);
    json_scanner_destroy(world->scanner);
    json_scanner_destroy(world->form_scanner);
}

TestSuite(request_registry, .fini = leak_check);

Test(request_registry, defaults_are_one_choice_and_sixteen_tokens_of_the_served_model)
{
    struct world world = read_body(ENGINE_CHAT, "{" MESSAGES "}");

    cr_assert(eq(int, world.status, 0));
    cr_assert(slice_eq(world.request.model, SLICE("tiny")));
    cr_assert(eq(u32, world.request.choice_count, 1));
    cr_assert(eq(sz, world.request.answer_tokens, 16));
    cr_assert(not(world.request.has_length_limit));
    cr_assert(not(world.request.is_stream));
    cr_assert(eq(sz, world.request.prompt_count, 1));
    world_release(&world);
}

Test(request_registry, every_field_is_read)
{
    struct world world =
        read_body(ENGINE_CHAT,
                  "{\"model\":\"tiny-lora\"," MESSAGES ",\"stream\":true,\"n\":2,\"max_tokens\":3,"
                  "\"max_completion_tokens\":5,\"stream_options\":{\"include_usage\":true,"
                  "\"continuous_usage_stats\":true},\"return_token_ids\":true,\"cache_salt\":\"s\","
                  "\"request_id\":\"r\",\"temperature\":0,\"nobody_knows\":[]}");

    cr_assert(eq(int, world.status, 0), "%s", world.fault.message);
    cr_assert(slice_eq(world.request.model, SLICE("tiny-lora")));
    cr_assert(world.request.is_stream && world.request.wants_usage);
    cr_assert(world.request.wants_usage_always && world.request.wants_ids);
    cr_assert(eq(u32, world.request.choice_count, 2));
    cr_assert(eq(sz, world.request.answer_tokens, 5));
    cr_assert(slice_eq(world.request.salt, SLICE("s")));
    cr_assert(slice_eq(world.request.id, SLICE("r")));
    world_release(&world);
}

Test(request_registry, tokenize_gives_the_ids_of_the_prompt_that_is_cached)
{
    static const struct {
        enum engine_api api;
        const char *body;
    } cases[] = {
        {ENGINE_CHAT, "{" MESSAGES "}"},
        {ENGINE_CHAT, "{" MESSAGES ",\"add_generation_prompt\":false}"},
        {ENGINE_CHAT, "{" MESSAGES "," TOOLS "}"},
        {ENGINE_CHAT, "{" MESSAGES ",\"chat_template_kwargs\":{\"enable_thinking\":false}}"},
        {ENGINE_COMPLETIONS, "{\"prompt\":\"hello there\"}"},
    };
    size_t counts[array_count(cases)];

    for (size_t i = 0; i < array_count(cases); i++) {
        struct world asked = read_body(cases[i].api, cases[i].body);
        struct world told = read_body(ENGINE_TOKENIZE, cases[i].body);
        const struct token_list *prompt = &asked.request.prompts[0];

        cr_assert(eq(int, asked.status, 0));
        cr_assert(eq(int, told.status, 0));
        cr_assert(eq(sz, told.request.prompts[0].count, prompt->count));
        cr_assert(eq(
            int,
            memcmp(told.request.prompts[0].ids, prompt->ids, prompt->count * sizeof *prompt->ids),
            0));
        counts[i] = prompt->count;
        world_release(&asked);
        world_release(&told);
    }
    cr_assert(eq(sz, counts[1], counts[0] - 2)); /* each of them makes the prompt another one */
    cr_assert(gt(sz, counts[2], counts[0]));
    cr_assert(eq(sz, counts[3], counts[0] + 2));
}

Test(request_registry, a_prompt_has_four_forms)
{
    static const struct {
        const char *body;
        size_t prompt_count, first_count;
    } cases[] = {
        {"{\"prompt\":\"hello there\"}", 1, 2},
        {"{\"prompt\":[\"hello there\",\"good\"]}", 2, 2},
        {"{\"prompt\":[5,6,7]}", 1, 3},
        {"{\"prompt\":[[5,6,7,8],[9]]}", 2, 4},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct world world = read_body(ENGINE_COMPLETIONS, cases[i].body);

        cr_assert(eq(int, world.status, 0), "%s", world.fault.message);
        cr_assert(eq(sz, world.request.prompt_count, cases[i].prompt_count));
        cr_assert(eq(sz, world.request.prompts[0].count, cases[i].first_count));
        world_release(&world);
    }
}

Test(request_registry, tool_choice_picks_the_first_or_the_named_tool)
{
    static const struct {
        const char *body;
        struct slice name; /* of the tool that must be called */
        bool is_named;
    } cases[] = {
        {"{" MESSAGES "," TOOLS "}", SLICE(""), false},
        {"{" MESSAGES "," TOOLS ",\"tool_choice\":\"none\"}", SLICE(""), false},
        {"{" MESSAGES "," TOOLS ",\"tool_choice\":\"required\"}", SLICE("a"), false},
        {"{" MESSAGES "," TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":"
         "{\"name\":\"b\"}}}",
         SLICE("b"), true},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct world world = read_body(ENGINE_CHAT, cases[i].body);

        cr_assert(eq(int, world.status, 0));
        cr_assert(slice_eq(json_string(json_get(json_get(world.request.tool, "function"), "name")),
                           cases[i].name));
        cr_assert(eq(int, world.request.is_tool_named, cases[i].is_named));
        world_release(&world);
    }
}

Test(request_registry, truncation_keeps_the_last_ids)
{
    struct world world =
        read_body(ENGINE_COMPLETIONS, "{\"prompt\":[5,6,7,8],\"truncate_prompt_tokens\":2}");

    cr_assert(eq(int, world.status, 0));
    cr_assert(eq(sz, world.request.prompts[0].count, 2));
    cr_assert(eq(u32, world.request.prompts[0].ids[0], 7));
    world_release(&world);
}

Test(request_registry, what_vllm_refuses_is_refused_in_its_words)
{
    static const struct {
        enum engine_api api;
        const char *body;
        int status;
        const char *type, *param, *word;
    } cases[] = {
        {ENGINE_CHAT, "[]", 400, "Bad Request", "body.", "object"},
        {ENGINE_CHAT, "{}", 400, "Bad Request", "body.messages", "Field required"},
        {ENGINE_CHAT, "{\"messages\":5}", 400, "Bad Request", "body.messages", "valid list"},
        {ENGINE_CHAT, "{\"messages\":[]}", 400, "BadRequestError", "", "empty conversation"},
        {ENGINE_CHAT, "{" MESSAGES ",\"model\":\"nope\"}", 404, "NotFoundError", "model",
         "The model `nope` does not exist."},
        {ENGINE_CHAT, "{" MESSAGES ",\"temperature\":\"hot\"}", 400, "Bad Request",
         "body.temperature", "valid number"},
        {ENGINE_CHAT, "{" MESSAGES ",\"stream\":1}", 400, "Bad Request", "body.stream", "boolean"},
        {ENGINE_CHAT, "{" MESSAGES ",\"n\":0}", 400, "BadRequestError", "n", "from 1"},
        {ENGINE_CHAT, "{" MESSAGES ",\"n\":2000000000}", 400, "BadRequestError", "n", "to 128"},
        {ENGINE_CHAT, "{" MESSAGES ",\"max_tokens\":0}", 400, "BadRequestError", "max_tokens",
         "at least 1"},
        {ENGINE_CHAT, "{" MESSAGES ",\"max_tokens\":100000}", 400, "BadRequestError", "max_tokens",
         "max_model_len=1024"},
        {ENGINE_CHAT, "{" MESSAGES ",\"max_tokens\":1024}", 400, "BadRequestError", "input_tokens",
         "maximum context length is 1024"},
        {ENGINE_CHAT, "{" MESSAGES ",\"cache_salt\":\"\"}", 400, "BadRequestError", "cache_salt",
         "non-empty string"},
        {ENGINE_CHAT, "{" MESSAGES ",\"cache_salt\":5}", 400, "BadRequestError", "cache_salt",
         "non-empty string"},
        {ENGINE_CHAT, "{" MESSAGES ",\"stream_options\":{}}", 400, "Bad Request",
         "body.stream_options", "stream=True"},
        {ENGINE_CHAT, "{" MESSAGES ",\"tool_choice\":\"required\"}", 400, "Bad Request",
         "body.tool_choice", "tools"},
        {ENGINE_COMPLETIONS, "{}", 400, "Bad Request", "body.prompt", "Field required"},
        {ENGINE_COMPLETIONS, "{\"prompt\":[]}", 400, "BadRequestError", "prompt", "must be"},
        {ENGINE_COMPLETIONS, "{\"prompt\":\"\"}", 400, "BadRequestError", "prompt", "empty"},
        {ENGINE_COMPLETIONS, "{\"prompt\":[1,-2]}", 400, "Bad Request", "body.prompt", "token id"},
        {ENGINE_COMPLETIONS, "{\"prompt\":[1,\"x\"]}", 400, "Bad Request", "body.prompt",
         "token id"},
        {ENGINE_COMPLETIONS, "{\"prompt\":[[1],{}]}", 400, "Bad Request", "body.prompt", "string"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct world world = read_body(cases[i].api, cases[i].body);

        cr_assert(eq(int, world.status, -EINVAL), "%s", cases[i].body);
        cr_assert(eq(int, world.fault.status, cases[i].status), "%s", cases[i].body);
        cr_assert(eq(str, (char *)world.fault.type, (char *)cases[i].type), "%s", cases[i].body);
        cr_assert(eq(str, world.fault.param, (char *)cases[i].param), "%s", cases[i].body);
        cr_assert(strstr(world.fault.message, cases[i].word) != NULL, "%s: %s", cases[i].body,
                  world.fault.message);
        world_release(&world);
    }
}

Test(request_registry, a_prompt_longer_than_the_context_is_refused)
{
    char body[8192] = "{\"prompt\":[1";
    for (int i = 1; i < 1100; i++)
        strncat(body, ",1", sizeof body - strlen(body) - 1);
    strncat(body, "]}", sizeof body - strlen(body) - 1);

    struct world world = read_body(ENGINE_COMPLETIONS, body);

    cr_assert(eq(int, world.status, -EINVAL));
    cr_assert(eq(str, world.fault.param, (char *)"input_tokens"));
    cr_assert(strstr(world.fault.message, "contains 1100 input tokens") != NULL);
    world_release(&world);
}

Test(request_registry, one_conversation_is_one_prompt_in_every_family)
{
#define HELLO "{\"role\":\"user\",\"content\":\"hello there\"}"
#define RAIN  "\"rain\""
    static const struct {
        enum engine_api api;
        const char *body;
    } spellings[] = {
        {ENGINE_CHAT,
         "{\"messages\":[{\"role\":\"system\",\"content\":\"Be kind.\"}," HELLO
         ",{\"role\":\"assistant\",\"content\":\"Let me see.\",\"tool_calls\":[{\"id\":\"c\","
         "\"function\":{\"name\":\"a\",\"arguments\":\"{\\\"city\\\": \\\"Tula\\\", "
         "\\\"days\\\": [1, 2]}\"}}]},{\"role\":\"tool\",\"content\":" RAIN "}]}"},
        {ENGINE_RESPONSES,
         "{\"instructions\":\"Be kind.\",\"input\":[" HELLO
         ",{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\","
         "\"text\":\"Let me see.\"}]},{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"a\","
         "\"arguments\":\"{\\\"city\\\": \\\"Tula\\\", \\\"days\\\": [1, 2]}\"},"
         "{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":" RAIN "}]}"},
        {ENGINE_MESSAGES,
         "{\"model\":\"tiny\",\"max_tokens\":9,\"system\":[{\"type\":\"text\",\"text\":"
         "\"x-anthropic-billing-header: 1\"},{\"type\":\"text\",\"text\":\"Be kind.\","
         "\"cache_control\":{\"type\":\"ephemeral\"}}],\"messages\":[" HELLO
         ",{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"Let me see.\"},"
         "{\"type\":\"tool_use\",\"id\":\"c\",\"name\":\"a\",\"input\":{\"city\":\"Tula\","
         "\"days\":[1,2]}}]},{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\","
         "\"tool_use_id\":\"c\",\"content\":" RAIN "}]}]}"},
    };
    struct world chat = read_body(spellings[0].api, spellings[0].body);

    cr_assert(eq(int, chat.status, 0), "%s", chat.fault.message);
    for (size_t i = 1; i < array_count(spellings); i++) {
        struct world other = read_body(spellings[i].api, spellings[i].body);
        const struct token_list *a = chat.request.prompts, *b = other.request.prompts;

        cr_assert(eq(int, other.status, 0), "%s", other.fault.message);
        cr_assert(eq(sz, a->count, b->count), "spelling %zu", i);
        cr_assert(eq(int, memcmp(a->ids, b->ids, a->count * sizeof *a->ids), 0));
        world_release(&other);
    }
    world_release(&chat);
}

Test(request_registry, reasoning_that_is_sent_back_joins_its_turn)
{
    struct world chat = read_body(
        ENGINE_CHAT,
        "{\"messages\":[{\"role\":\"assistant\",\"reasoning\":\"hm\",\"content\":\"yes\"}," HELLO
        "]}");
    struct world responses =
        read_body(ENGINE_RESPONSES, "{\"input\":[{\"type\":\"reasoning\",\"content\":[{\"type\":"
                                    "\"reasoning_text\",\"text\":\"hm\"}]},"
                                    "{\"role\":\"assistant\",\"content\":\"yes\"}," HELLO "]}");
    struct world messages = read_body(
        ENGINE_MESSAGES,
        "{\"model\":\"tiny\",\"max_tokens\":9,\"messages\":[{\"role\":\"assistant\",\"content\":["
        "{\"type\":\"thinking\",\"thinking\":\"hm\"},{\"type\":\"text\",\"text\":\"yes\"}]}," HELLO
        "]}");

    cr_assert(eq(int, chat.status | responses.status | messages.status, 0));
    cr_assert(eq(sz, chat.request.prompts[0].count, responses.request.prompts[0].count));
    cr_assert(eq(sz, chat.request.prompts[0].count, messages.request.prompts[0].count));
    world_release(&chat);
    world_release(&responses);
    world_release(&messages);
}

Test(request_registry, a_tool_is_chosen_in_the_words_of_each_family)
{
    static const struct {
        enum engine_api api;
        const char *body;
    } bodies[] = {
        {ENGINE_RESPONSES, "{\"input\":\"hi\",\"tools\":[{\"type\":\"function\",\"name\":\"a\"},"
                           "{\"type\":\"function\",\"name\":\"b\"}],\"tool_choice\":"
                           "{\"type\":\"function\",\"name\":\"b\"}}"},
        {ENGINE_MESSAGES, "{\"model\":\"tiny\",\"max_tokens\":9,\"messages\":[" HELLO
                          "],\"tools\":[{\"name\":\"a\"},{\"name\":\"b\"}],\"tool_choice\":"
                          "{\"type\":\"tool\",\"name\":\"b\"}}"},
    };

    for (size_t i = 0; i < array_count(bodies); i++) {
        struct world world = read_body(bodies[i].api, bodies[i].body);
        struct json_value function = json_get(world.request.tool, "function");

        cr_assert(eq(int, world.status, 0), "%s", world.fault.message);
        cr_assert(slice_eq(json_string(json_get(function, "name")), SLICE("b")));
        world_release(&world);
    }
}

Test(request_registry, a_previous_response_brings_its_conversation_but_not_its_instructions)
{
    struct response_store *store = response_store_create(4);
    struct json_scanner *scanner = json_scanner_create(), *forms = json_scanner_create();
    struct request_reader reader = {.model = &model, .form_scanner = forms, .store = store};
    struct engine_request request;
    struct engine_fault fault;
    struct json_value root;
    struct parse_error error;
    struct world whole =
        read_body(ENGINE_CHAT, "{\"messages\":[" HELLO
                               ",{\"role\":\"assistant\",\"content\":\"yes\"}," HELLO "]}");

    response_store_put(store, SLICE("resp_1"), SLICE("{}"),
                       SLICE(HELLO ",{\"role\":\"assistant\",\"content\":\"yes\"}"));
    cr_assert(eq(int,
                 json_scan_copy(scanner,
                                SLICE("{\"input\":\"hello there\","
                                      "\"previous_response_id\":\"resp_1\"}"),
                                &root, &error),
                 0));
    cr_assert(eq(int, engine_request_read(ENGINE_RESPONSES, &reader, root, &request, &fault), 0));

    cr_assert(eq(sz, request.prompts[0].count, whole.request.prompts[0].count));
    cr_assert(eq(int,
                 memcmp(request.prompts[0].ids, whole.request.prompts[0].ids,
                        request.prompts[0].count * sizeof *request.prompts[0].ids),
                 0));
    engine_request_release(&request);
    world_release(&whole);
    response_store_destroy(store);
    json_scanner_destroy(scanner);
    json_scanner_destroy(forms);
}

Test(request_registry, score_pairs_one_with_many_or_each_with_its_own)
{
    struct world one =
        read_body(ENGINE_SCORE, "{\"text_1\":\"tea\",\"text_2\":[\"a cup\",\"a horse\"]}");
    struct world each = read_body(
        ENGINE_SCORE, "{\"queries\":[\"tea\",\"hay\"],\"documents\":[\"a cup\",\"a horse\"]}");
    struct world odd =
        read_body(ENGINE_SCORE, "{\"text_1\":[\"tea\",\"hay\"],\"text_2\":[\"a\",\"b\",\"c\"]}");

    cr_assert(eq(sz, one.request.prompt_count, 2));
    cr_assert(eq(sz, each.request.prompt_count, 2));
    cr_assert(eq(int, odd.status, -EINVAL));
    world_release(&one);
    world_release(&each);
    world_release(&odd);
}
