/* SPDX-License-Identifier: Apache-2.0 */

#include "router/prompt/anchor_plan.h"
#include "tests/support/leak_check.h"
#include "tests/support/prompt_world.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

/* The plan for a body; its salt is copied out. */
struct planned {
    struct anchor_plan plan;
    char salt[32];
};

static struct planned plan_of(enum api api, const char *body)
{
    struct planned planned = {0};
    struct prompt_world world;

    cr_assert(eq(int, prompt_world_try(&world, api, slice_of_string(body)), 0), "%s", body);
    cr_assert(eq(int,
                 anchor_plan_make(prompt_world_config().secret, &world.request, &world.prompt,
                                  &world.arena, &planned.plan),
                 0));
    if (planned.plan.salt.len > 0)
        memcpy(planned.salt, planned.plan.salt.ptr, planned.plan.salt.len);
    prompt_world_release(&world);
    return planned;
}

#define MESSAGES   "\"messages\":[{\"role\":\"user\",\"content\":\"Where is the samovar?\"}]"
#define CHAT(more) "{\"model\":\"tiny\"," MESSAGES more "}"

TestSuite(anchor_plan, .fini = leak_check);

Test(anchor_plan, chat_and_texts_are_asked_about_and_ids_speak_for_themselves)
{
    struct planned chat = plan_of(API_CHAT, CHAT(""));
    struct planned text = plan_of(API_COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":\"tea\"}");
    struct planned ids = plan_of(API_COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":[1,2,3]}");

    cr_assert(eq(int, chat.plan.source, ANCHOR_SOURCE_ENGINE));
    cr_assert(eq(int, text.plan.source, ANCHOR_SOURCE_ENGINE));
    cr_assert(eq(int, ids.plan.source, ANCHOR_SOURCE_IDS));
    cr_assert(ne(u64, chat.plan.template_name, 0));
    cr_assert(chat.plan.may_ask_tail);
    cr_assert(eq(u64, text.plan.template_name, 0));
    cr_assert(eq(u64, ids.plan.template_name, 0));
}

Test(anchor_plan, what_might_be_read_otherwise_is_not_asked_about)
{
    static const struct {
        enum api api;
        const char *body;
        enum anchor_outcome why_not;
    } cases[] = {
        {API_RESPONSES, "{\"model\":\"tiny\",\"input\":\"tea\",\"background\":true}", ANCHOR_API},
        {API_RESPONSES, "{\"model\":\"tiny\",\"input\":\"tea\",\"truncation\":\"auto\"}",
         ANCHOR_FIELDS},
        {API_CHAT, CHAT(",\"n\":2"), ANCHOR_SHAPE},
        {API_COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":[\"a\",\"b\"]}", ANCHOR_SHAPE},
        {API_COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":[[1],[2]]}", ANCHOR_SHAPE},
        {API_COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":\"a\",\"best_of\":3}", ANCHOR_SHAPE},
        {API_COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":\"a\",\"echo\":true}", ANCHOR_SHAPE},
        {API_COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":\"a\",\"suffix\":\"b\"}", ANCHOR_FIELDS},
        {API_COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":\"a\",\"truncate_prompt_tokens\":9}",
         ANCHOR_FIELDS},
        {API_COMPLETIONS, "{\"model\":\"tiny\",\"prompt_embeds\":\"AAAA\"}", ANCHOR_FIELDS},
        {API_CHAT, CHAT(",\"lora_path\":\"a\""), ANCHOR_FIELDS},
        {API_CHAT,
         "{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":"
         "\"image_url\",\"image_url\":{\"url\":\"data:,\"}}]}]}",
         ANCHOR_MEDIA},
    };

    for (size_t i = 0; i < array_count(cases); i++) {
        struct planned planned = plan_of(cases[i].api, cases[i].body);

        cr_assert(eq(int, planned.plan.source, ANCHOR_SOURCE_NONE), "%s", cases[i].body);
        cr_assert(eq(int, planned.plan.why_not, cases[i].why_not), "%s", cases[i].body);
    }
}

Test(anchor_plan, where_it_is_asked_depends_on_the_api_and_on_what_tokenize_passes_over)
{
    static const struct {
        enum api api;
        const char *body;
        enum anchor_target target;
    } cases[] = {
        {API_CHAT, CHAT(""), ANCHOR_TARGET_CHAT},
        {API_CHAT, CHAT(",\"reasoning_effort\":\"low\""), ANCHOR_TARGET_RENDER_CHAT},
        {API_CHAT, CHAT(",\"documents\":[{\"text\":\"a\"}]"), ANCHOR_TARGET_RENDER_CHAT},
        {API_CHAT, CHAT(",\"tools\":[{\"type\":\"function\"}],\"tool_choice\":\"none\""),
         ANCHOR_TARGET_RENDER_CHAT},
        {API_COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":\"tea\"}", ANCHOR_TARGET_TEXT},
        {API_COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":\"tea\",\"thinking\":true}",
         ANCHOR_TARGET_RENDER_TEXT},
        {API_RESPONSES, "{\"model\":\"tiny\",\"input\":\"tea\",\"reasoning\":{\"effort\":\"low\"}}",
         ANCHOR_TARGET_RENDER_RESPONSES},
        {API_MESSAGES, CHAT(",\"max_tokens\":4"), ANCHOR_TARGET_RENDER_MESSAGES},
    };

    for (size_t i = 0; i < array_count(cases); i++) {
        struct planned planned = plan_of(cases[i].api, cases[i].body);

        cr_assert(eq(int, planned.plan.source, ANCHOR_SOURCE_ENGINE), "%s", cases[i].body);
        cr_assert(eq(int, planned.plan.target, cases[i].target), "%s", cases[i].body);
    }
    cr_assert(eq(str, (char *)(uintptr_t)anchor_target_path(ANCHOR_TARGET_CHAT), "/tokenize"));
    cr_assert(eq(str, (char *)(uintptr_t)anchor_target_path(ANCHOR_TARGET_RENDER_MESSAGES),
                 "/v1/messages/render"));
}

Test(anchor_plan, an_effort_may_have_a_tail_of_its_own)
{
    struct planned plain = plan_of(API_CHAT, CHAT(""));
    struct planned low = plan_of(API_CHAT, CHAT(",\"reasoning_effort\":\"low\""));
    struct planned messages = plan_of(API_MESSAGES, CHAT(",\"max_tokens\":4"));

    cr_assert(ne(u64, low.plan.template_name, plain.plan.template_name));
    cr_assert(low.plan.may_ask_tail);
    cr_assert(eq(u64, messages.plan.template_name, plain.plan.template_name));
    cr_assert(not(messages.plan.may_ask_tail));
    cr_assert(not(messages.plan.must_ask_tail));
}

Test(anchor_plan, what_changes_no_prompt_is_no_hindrance)
{
    static const char *const bodies[] = {
        CHAT(",\"temperature\":0,\"seed\":7,\"logprobs\":true,\"stop\":[\"x\"],\"user\":\"anna\""),
        CHAT(",\"documents\":null,\"reasoning_effort\":null,\"truncate_prompt_tokens\":null"),
        CHAT(",\"tools\":[{\"type\":\"function\"}],\"tool_choice\":\"auto\""),
        CHAT(",\"tools\":[],\"tool_choice\":\"none\""),
        CHAT(",\"n\":1,\"echo\":false"),
    };

    for (size_t i = 0; i < array_count(bodies); i++)
        cr_assert(eq(int, plan_of(API_CHAT, bodies[i]).plan.source, ANCHOR_SOURCE_ENGINE), "%s",
                  bodies[i]);
}

Test(anchor_plan, the_salt_is_kept)
{
    struct planned planned = plan_of(API_CHAT, CHAT(",\"cache_salt\":\"tenant\""));

    cr_assert(eq(str, planned.salt, "tenant"));
}

Test(anchor_plan, templates_with_other_arguments_have_other_names)
{
    uint64_t plain = plan_of(API_CHAT, CHAT("")).plan.template_name;
    uint64_t longer = plan_of(API_CHAT, CHAT(",\"temperature\":1")).plan.template_name;
    uint64_t argued =
        plan_of(API_CHAT, CHAT(",\"chat_template_kwargs\":{\"thinking\":true}")).plan.template_name;
    uint64_t own = plan_of(API_CHAT, CHAT(",\"chat_template\":\"{{ x }}\"")).plan.template_name;

    cr_assert(eq(u64, longer, plain));
    cr_assert(ne(u64, argued, plain));
    cr_assert(ne(u64, own, plain));
    cr_assert(ne(u64, own, argued));
}

Test(anchor_plan, a_message_left_open_has_nothing_behind_it)
{
    struct planned open =
        plan_of(API_CHAT, CHAT(",\"continue_final_message\":true,\"add_generation_prompt\":false"));
    struct planned bare = plan_of(API_CHAT, CHAT(",\"add_generation_prompt\":false"));
    struct planned said = plan_of(API_CHAT, CHAT(",\"add_generation_prompt\":true"));

    cr_assert(eq(u64, open.plan.template_name, 0));
    cr_assert(eq(u64, bare.plan.template_name, 0));
    cr_assert(ne(u64, said.plan.template_name, 0));
    cr_assert(not(said.plan.may_ask_tail)); /* its own word would stand against ours */
}

Test(anchor_plan, every_outcome_has_a_name)
{
    for (int i = 0; i < ANCHOR_OUTCOME_COUNT; i++)
        cr_assert(gt(sz, strlen(anchor_outcome_name((enum anchor_outcome)i)), 0));
}
