/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/answer_plan.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "tests/sim_engine/tokenizer.h"
#include "tests/support/leak_check.h"

/* A plan for a tool given as JSON text, or for talk where that is NULL. */
struct plan_world {
    struct json_scanner *scanner;
    struct answer_plan plan;
};

static void plan_world_init(struct plan_world *world, struct answer_wish wish, const char *tool)
{
    struct parse_error error;

    world->scanner = json_scanner_create();
    if (tool != NULL)
        cr_assert(
            eq(int, json_scan_copy(world->scanner, slice_of_string(tool), &wish.tool, &error), 0));
    answer_plan_init(&world->plan, &wish);
}

static void plan_world_release(struct plan_world *world)
{
    answer_plan_release(&world->plan);
    json_scanner_destroy(world->scanner);
}

static struct slice content_of(const struct plan_world *world)
{
    return answer_plan_text(&world->plan, ANSWER_CONTENT, world->plan.ids.count);
}

static const char tea_tool[] =
    "{\"type\":\"function\",\"function\":{\"name\":\"get_tea\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"cups\":{\"type\":\"integer\"},\"kind\":{\"enum\":[\"green\",\"black\"]},"
    "\"sugar\":{\"type\":\"boolean\"},\"note\":{\"type\":\"string\"}}}}}";

TestSuite(answer_plan, .fini = leak_check);

Test(answer_plan, the_same_seed_gives_the_same_answer_and_another_another)
{
    struct plan_world a, b, c;
    plan_world_init(&a, (struct answer_wish){.seed = 5, .token_count = 40}, NULL);
    plan_world_init(&b, (struct answer_wish){.seed = 5, .token_count = 40}, NULL);
    plan_world_init(&c, (struct answer_wish){.seed = 6, .token_count = 40}, NULL);

    cr_assert(slice_eq(content_of(&a), content_of(&b)));
    cr_assert(not(slice_eq(content_of(&a), content_of(&c))));
    plan_world_release(&a);
    plan_world_release(&b);
    plan_world_release(&c);
}

Test(answer_plan, text_sent_back_tokenises_to_the_ids_it_was_made_of)
{
    struct plan_world world;
    struct token_list ids = {0};
    plan_world_init(&world, (struct answer_wish){.seed = 5, .token_count = 300}, NULL);

    tokenizer_encode(content_of(&world), &ids);

    cr_assert(eq(sz, world.plan.ids.count, 300));
    cr_assert(eq(sz, ids.count, 300));
    cr_assert(eq(int, memcmp(ids.ids, world.plan.ids.ids, 300 * sizeof *ids.ids), 0));
    token_list_release(&ids);
    plan_world_release(&world);
}

Test(answer_plan, the_pieces_put_together_are_the_text)
{
    struct plan_world world;
    struct slice text;
    size_t len = 0;
    plan_world_init(&world, (struct answer_wish){.seed = 1, .token_count = 20}, NULL);
    text = content_of(&world);

    for (size_t i = 0; i < world.plan.ids.count; i++) {
        struct answer_piece piece = answer_plan_piece(&world.plan, i);

        cr_assert(eq(int, piece.kind, ANSWER_CONTENT));
        cr_assert(eq(int, memcmp(text.ptr + len, piece.text.ptr, piece.text.len), 0));
        len += piece.text.len;
    }
    cr_assert(eq(sz, len, text.len));
    plan_world_release(&world);
}

Test(answer_plan, reasoning_comes_first_between_marks)
{
    struct plan_world world;
    plan_world_init(&world,
                    (struct answer_wish){.seed = 1, .token_count = 40, .thinks_first = true}, NULL);
    const struct answer_plan *plan = &world.plan;

    cr_assert(eq(sz, plan->ids.count, 40));
    cr_assert(eq(u32, plan->ids.ids[0], TOKEN_THINK_BEGIN));
    cr_assert(eq(u32, plan->ids.ids[plan->reasoning_count - 1], TOKEN_THINK_END));
    cr_assert(eq(int, answer_plan_piece(plan, 0).kind, ANSWER_SILENT));
    cr_assert(eq(int, answer_plan_piece(plan, 1).kind, ANSWER_REASONING));
    cr_assert(eq(int, answer_plan_piece(plan, plan->reasoning_count).kind, ANSWER_CONTENT));
    cr_assert(gt(sz, answer_plan_text(plan, ANSWER_REASONING, 40).len, 0));
    plan_world_release(&world);
}

Test(answer_plan, a_tool_call_has_the_name_and_arguments_that_fit_the_schema)
{
    struct plan_world world;
    struct json_scanner *scanner = json_scanner_create();
    struct json_value arguments;
    struct parse_error error;
    plan_world_init(&world, (struct answer_wish){.seed = 1, .token_count = 100}, tea_tool);
    size_t count = world.plan.ids.count;

    struct slice name = answer_plan_text(&world.plan, ANSWER_TOOL_NAME, count);
    struct slice text = answer_plan_text(&world.plan, ANSWER_TOOL_ARGUMENTS, count);

    cr_assert(answer_plan_is_tool_call(&world.plan));
    cr_assert(slice_eq(name, SLICE("get_tea")));
    cr_assert(eq(int, json_scan_copy(scanner, text, &arguments, &error), 0), "%.*s", (int)text.len,
              text.ptr);
    cr_assert(eq(int, json_type(json_get(arguments, "cups")), JSON_INT64));
    cr_assert(slice_eq(json_string(json_get(arguments, "kind")), SLICE("green")));
    cr_assert(json_bool(json_get(arguments, "sugar")));
    cr_assert(eq(int, json_type(json_get(arguments, "note")), JSON_STRING));
    json_scanner_destroy(scanner);
    plan_world_release(&world);
}

Test(answer_plan, a_tool_call_cut_short_is_shown_as_text)
{
    struct plan_world world;
    plan_world_init(&world, (struct answer_wish){.seed = 1, .token_count = 6}, tea_tool);

    cr_assert(not(answer_plan_is_tool_call(&world.plan)));
    cr_assert(eq(sz, world.plan.ids.count, 6));
    cr_assert(slice_starts_with(content_of(&world), SLICE("get_tea{")));
    plan_world_release(&world);
}

Test(answer_plan, a_split_word_is_the_same_text_and_other_tokens_from_there_on)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct plan_world world;
        struct token_list again = {0};
        size_t shared = 0;
        plan_world_init(&world,
                        (struct answer_wish){.seed = seed, .token_count = 40, .splits_word = true},
                        NULL);

        tokenizer_encode(content_of(&world), &again);

        cr_assert(eq(sz, world.plan.ids.count, 40));
        cr_assert(eq(sz, again.count, 39));
        while (shared < again.count && again.ids[shared] == world.plan.ids.ids[shared])
            shared++;
        cr_assert(lt(sz, shared, (size_t)39));
        for (size_t i = shared + 1; i < again.count; i++) /* one further back */
            cr_assert(eq(u32, again.ids[i], world.plan.ids.ids[i + 1]));
        token_list_release(&again);
        plan_world_release(&world);
    }
}

Test(answer_plan, an_answer_of_one_token_has_nothing_to_split)
{
    struct plan_world world;

    plan_world_init(&world, (struct answer_wish){.seed = 1, .token_count = 1, .splits_word = true},
                    NULL);

    cr_assert(eq(sz, world.plan.ids.count, 1));
    plan_world_release(&world);
}
