/* SPDX-License-Identifier: Apache-2.0 */

#include "router/prompt/tool_place.h"
#include "tests/support/leak_check.h"
#include "tests/support/prompt_world.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <stdio.h>

/* Each message: 400 bytes of text, so that each closes a block. */
#define TEN              "abcdefghij"
#define HUNDRED          TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN
#define LONG             HUNDRED HUNDRED HUNDRED HUNDRED
#define SAYS(role, text) "{\"role\":\"" role "\",\"content\":\"" text LONG "\"}"
#define TOOL             "{\"type\":\"function\",\"function\":{\"name\":\"tea\",\"description\":\"" LONG "\"}}"
#define CHAT(messages)   "{\"tools\":[" TOOL "],\"messages\":[" messages "]}"
#define ITEMS(items)     "{\"tools\":[" TOOL "],\"input\":[" items "]}"
#define FLAT_TOOL        "{\"name\":\"tea\",\"description\":\"" LONG "\",\"input_schema\":{}}"
#define BLOCKS(messages) "{\"tools\":[" FLAT_TOOL "],\"messages\":[" messages "]}"
#define SYSTEM           SAYS("system", "s")
#define FIRST_USER       SAYS("user", "u")
#define ANSWER           SAYS("assistant", "a")
#define SECOND_USER      SAYS("user", "v")
#define CALL                                                                                       \
    "{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":"    \
    "{\"name\":\"tea\",\"arguments\":\"{}\"}}]}"
#define RESULT "{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"" LONG "\"}"

/* Blocks that the next turn shares, of how many of the turn's closed ones. */
struct carried {
    size_t shared;
    size_t closed;
    uint64_t shared_bytes;
};

static struct carried carry(enum api api, enum tool_place place, const char *turn, const char *next)
{
    struct prompt_world a, b;
    struct carried carried;

    cr_assert(eq(int, prompt_world_try_at(&a, api, slice_of_string(turn), place), 0));
    cr_assert(eq(int, prompt_world_try_at(&b, api, slice_of_string(next), place), 0));
    carried = (struct carried){prompt_shared_count(&a.prompt, &b.prompt), a.prompt.closed_count, 0};
    if (carried.shared > 0)
        carried.shared_bytes = a.prompt.blocks[carried.shared - 1].end;
    prompt_world_release(&a);
    prompt_world_release(&b);
    return carried;
}

/* Of turn with and without its tools, both with a stream of their own. */
static uint64_t bytes_of(enum api api, const char *body)
{
    struct prompt_world world;
    uint64_t bytes;

    prompt_world_init(&world, api, body);
    bytes = world.prompt.bytes;
    prompt_world_release(&world);
    return bytes;
}

TestSuite(tool_place, .fini = leak_check);

Test(tool_place, tools_in_front_leave_a_turn_whole_in_the_next_one)
{
    struct carried carried = carry(API_CHAT, TOOLS_FIRST, CHAT(SYSTEM "," FIRST_USER),
                                   CHAT(SYSTEM "," FIRST_USER "," ANSWER "," SECOND_USER));

    cr_assert(eq(sz, carried.shared, carried.closed));
}

Test(tool_place, before_the_last_user_a_turn_is_shared_up_to_its_own)
{
    struct carried carried = carry(API_CHAT, TOOLS_BEFORE_LAST_USER, CHAT(SYSTEM "," FIRST_USER),
                                   CHAT(SYSTEM "," FIRST_USER "," ANSWER "," SECOND_USER));

    cr_assert(eq(u64, carried.shared_bytes, bytes_of(API_CHAT, "{\"messages\":[" SYSTEM "]}")));
}

Test(tool_place, behind_the_last_user_its_message_is_shared_too)
{
    struct carried carried = carry(API_CHAT, TOOLS_BEHIND_LAST_USER, CHAT(SYSTEM "," FIRST_USER),
                                   CHAT(SYSTEM "," FIRST_USER "," ANSWER "," SECOND_USER));

    cr_assert(eq(u64, carried.shared_bytes,
                 bytes_of(API_CHAT, "{\"messages\":[" SYSTEM "," FIRST_USER "]}")));
}

Test(tool_place, rounds_of_tools_go_on_wherever_tools_stand)
{
    for (enum tool_place place = TOOLS_FIRST; place < TOOL_PLACE_COUNT; place++) {
        struct carried carried =
            carry(API_CHAT, place, CHAT(SYSTEM "," FIRST_USER "," ANSWER "," SECOND_USER),
                  CHAT(SYSTEM "," FIRST_USER "," ANSWER "," SECOND_USER "," CALL "," RESULT));

        cr_assert(eq(sz, carried.shared, carried.closed), "%s", tool_place_name(place));
    }
}

Test(tool_place, where_late_tools_begin_is_said)
{
    static const char body[] = CHAT(SYSTEM "," FIRST_USER "," ANSWER "," SECOND_USER);
    const uint64_t front =
        bytes_of(API_CHAT, "{\"messages\":[" SYSTEM "," FIRST_USER "," ANSWER "]}");
    struct prompt_world first, before;

    prompt_world_init(&first, API_CHAT, body);
    cr_assert(eq(
        int, prompt_world_try_at(&before, API_CHAT, slice_of_string(body), TOOLS_BEFORE_LAST_USER),
        0));

    cr_assert(eq(sz, first.prompt.before_tools_count, 0));
    cr_assert(eq(u64, before.prompt.before_tools_bytes, front));
    cr_assert(eq(u64, before.prompt.blocks[before.prompt.before_tools_count - 1].end, front));
    prompt_world_release(&first);
    prompt_world_release(&before);
}

Test(tool_place, without_tools_or_without_a_user_it_does_not_matter)
{
    static const char *const bodies[] = {"{\"messages\":[" SYSTEM "," FIRST_USER "]}", CHAT(SYSTEM),
                                         CHAT(ANSWER)};

    for (size_t i = 0; i < array_count(bodies); i++) {
        for (enum tool_place place = TOOLS_FIRST; place < TOOL_PLACE_COUNT; place++) {
            struct prompt_world first, late;
            struct slice body = slice_of_string(bodies[i]);

            cr_assert(eq(int, prompt_world_try(&first, API_CHAT, body), 0));
            cr_assert(eq(int, prompt_world_try_at(&late, API_CHAT, body, place), 0));

            cr_assert(
                eq(sz, prompt_shared_count(&first.prompt, &late.prompt), first.prompt.block_count));
            prompt_world_release(&first);
            prompt_world_release(&late);
        }
    }
}

/* All three APIs are printed by one template. */
Test(tool_place, other_apis_have_the_names_of_chat)
{
    static const char chat[] = CHAT(FIRST_USER "," ANSWER "," SECOND_USER);
    static const char messages[] =
        "{\"tools\":[{\"name\":\"tea\",\"description\":\"" LONG
        "\",\"input_schema\":{}}],\"messages\":[" FIRST_USER "," ANSWER "," SECOND_USER "]}";
    static const char chat_of_messages[] =
        "{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"tea\",\"description\":\"" LONG
        "\",\"parameters\":{}}}],\"messages\":[" FIRST_USER "," ANSWER "," SECOND_USER "]}";

    for (enum tool_place place = TOOLS_FIRST; place < TOOL_PLACE_COUNT; place++) {
        struct prompt_world a, b;

        cr_assert(eq(int, prompt_world_try_at(&a, API_CHAT, slice_of_string(chat), place), 0));
        cr_assert(eq(int,
                     prompt_world_try_at(
                         &b, API_RESPONSES,
                         slice_of_string(ITEMS(FIRST_USER "," ANSWER "," SECOND_USER)), place),
                     0));
        cr_assert(eq(sz, prompt_shared_count(&a.prompt, &b.prompt), a.prompt.block_count));
        prompt_world_release(&a);
        prompt_world_release(&b);

        cr_assert(eq(
            int, prompt_world_try_at(&a, API_CHAT, slice_of_string(chat_of_messages), place), 0));
        cr_assert(
            eq(int, prompt_world_try_at(&b, API_MESSAGES, slice_of_string(messages), place), 0));
        cr_assert(eq(sz, prompt_shared_count(&a.prompt, &b.prompt), a.prompt.block_count));
        prompt_world_release(&a);
        prompt_world_release(&b);
    }
}

/* In /v1/messages results of tools come in a user's message, but are none of his. */
Test(tool_place, results_of_tools_are_no_message_of_a_user)
{
#define USED                                                                                       \
    "{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"1\",\"name\":\"tea\","   \
    "\"input\":{}}]}"
#define GOT  "{\"type\":\"tool_result\",\"tool_use_id\":\"1\",\"content\":\"" LONG "\"}"
#define MORE "{\"type\":\"text\",\"text\":\"" LONG "\"}"
    struct carried round =
        carry(API_MESSAGES, TOOLS_BEFORE_LAST_USER, BLOCKS(FIRST_USER "," ANSWER "," SECOND_USER),
              BLOCKS(FIRST_USER "," ANSWER "," SECOND_USER "," USED
                                ",{\"role\":\"user\",\"content\":[" GOT "]}"));
    struct carried said =
        carry(API_MESSAGES, TOOLS_BEFORE_LAST_USER,
              BLOCKS(FIRST_USER "," USED ",{\"role\":\"user\",\"content\":[" GOT "," MORE "]}"),
              BLOCKS(FIRST_USER "," USED ",{\"role\":\"user\",\"content\":[" GOT "," MORE
                                "]}," ANSWER "," SECOND_USER));

    cr_assert(eq(sz, round.shared, round.closed));
    cr_assert(eq(u64, said.shared_bytes, /* the results stand in front of the tools */
                 bytes_of(API_MESSAGES, "{\"messages\":[" FIRST_USER "," USED
                                        ",{\"role\":\"user\",\"content\":[" GOT "]}]}")));
}

Test(tool_place, an_input_of_text_is_a_message_of_a_user)
{
    static const char body[] = "{\"tools\":[" TOOL "],\"input\":\"" LONG "\"}";
    struct prompt_world before, behind;

    cr_assert(eq(
        int,
        prompt_world_try_at(&before, API_RESPONSES, slice_of_string(body), TOOLS_BEFORE_LAST_USER),
        0));
    cr_assert(eq(
        int,
        prompt_world_try_at(&behind, API_RESPONSES, slice_of_string(body), TOOLS_BEHIND_LAST_USER),
        0));

    cr_assert(eq(sz, prompt_shared_count(&before.prompt, &behind.prompt), 0));
    cr_assert(eq(u64, before.prompt.bytes, behind.prompt.bytes));
    prompt_world_release(&before);
    prompt_world_release(&behind);
}

Test(tool_place, a_model_has_its_place_until_another_is_found)
{
    const uint8_t *secret = prompt_world_config().secret;
    struct tool_places places = {0};

    tool_places_set(&places, secret, SLICE("a"),
                    (struct tool_layout){.place = TOOLS_BEFORE_LAST_USER});
    tool_places_set(&places, secret, SLICE("b"),
                    (struct tool_layout){.place = TOOLS_BEHIND_LAST_USER});
    tool_places_set(&places, secret, SLICE("c"), (struct tool_layout){.place = TOOLS_FIRST});

    cr_assert(eq(u32, places.count, 2)); /* what is usual takes no room */
    cr_assert(eq(int, tool_places_find(&places, secret, SLICE("a")).place, TOOLS_BEFORE_LAST_USER));
    cr_assert(eq(int, tool_places_find(&places, secret, SLICE("b")).place, TOOLS_BEHIND_LAST_USER));
    cr_assert(eq(int, tool_places_find(&places, secret, SLICE("c")).place, TOOLS_FIRST));
    cr_assert(eq(int, tool_places_find(NULL, secret, SLICE("a")).place, TOOLS_FIRST));

    tool_places_set(&places, secret, SLICE("a"), (struct tool_layout){.place = TOOLS_FIRST});
    tool_places_set(&places, secret, SLICE("b"),
                    (struct tool_layout){.place = TOOLS_BEFORE_LAST_USER});

    cr_assert(eq(u32, places.count, 1));
    cr_assert(eq(int, tool_places_find(&places, secret, SLICE("a")).place, TOOLS_FIRST));
    cr_assert(eq(int, tool_places_find(&places, secret, SLICE("b")).place, TOOLS_BEFORE_LAST_USER));
}

Test(tool_place, more_models_than_there_is_room_for_take_each_others)
{
    const uint8_t *secret = prompt_world_config().secret;
    struct tool_places places = {0};
    char name[16];

    for (int i = 0; i < 3 * TOOL_PLACES_MAX; i++) {
        snprintf(name, sizeof name, "m%d", i);
        tool_places_set(&places, secret, slice_of_string(name),
                        (struct tool_layout){.place = TOOLS_BEHIND_LAST_USER});

        cr_assert(eq(int, tool_places_find(&places, secret, slice_of_string(name)).place,
                     TOOLS_BEHIND_LAST_USER));
    }
    cr_assert(eq(u32, places.count, TOOL_PLACES_MAX));
}
