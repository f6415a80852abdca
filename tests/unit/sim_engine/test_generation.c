/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/generation.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "backends/runtime/buf.h"
#include "tests/sim_engine/json_text.h"
#include "tests/sim_engine/request_registry.h"
#include "tests/sim_engine/response_store.h"
#include "tests/support/leak_check.h"

#define CHAT                                                                                       \
    "{\"messages\":[{\"role\":\"system\",\"content\":\"You know everything that there is to know " \
    "about tea, water, wood, coal and brass, and say it in one sentence.\"},"                      \
    "{\"role\":\"user\",\"content\":\"Where is the samovar?\"}],\"max_tokens\":5"

static const struct engine_model model = {.name = SLICE("tiny"), .context_tokens_max = 1024};

/* An engine without sockets: what it says is gathered. */
struct world {
    struct prefix_cache *cache;
    struct scheduler *scheduler;
    struct json_scanner *scanner;
    struct json_scanner *form_scanner;
    struct response_store *store;
    struct generation *generation;
    struct buf events;
    size_t event_count;
    struct buf body;
    size_t end_count;
};

static void on_token(void *ctx, struct sequence *sequence, bool is_last)
{
    (void)ctx;
    generation_on_token(sequence, is_last);
}

static void on_event(void *ctx, struct slice event)
{
    struct world *world = ctx;

    text_put(&world->events, event);
    world->event_count++;
}

static void on_end(void *ctx, struct slice body)
{
    struct world *world = ctx;

    text_put(&world->body, body);
    world->end_count++;
}

static void world_init(struct world *world)
{
    struct scheduler_config config = {
        .time = {.prefill_tokens_per_s = 1000, .speedup = 1},
        .running_count_max = 8,
    };

    *world = (struct world){
        .cache = prefix_cache_create(64, 16),
        .scanner = json_scanner_create(),
        .form_scanner = json_scanner_create(),
        .store = response_store_create(4),
    };
    world->scheduler = scheduler_create(config, world->cache, on_token, world);
    buf_init(&world->events, SIZE_MAX);
    buf_init(&world->body, SIZE_MAX);
}

static void world_start(struct world *world, enum engine_api api, const char *text,
                        struct generation_config config)
{
    static const struct generation_callbacks callbacks = {on_event, on_end};
    struct request_reader reader = {
        .model = &model, .form_scanner = world->form_scanner, .store = world->store};
    struct engine_request request;
    struct engine_fault fault;
    struct json_value root;
    struct parse_error error;

    cr_assert(eq(int, json_scan_copy(world->scanner, slice_of_string(text), &root, &error), 0));
    cr_assert(eq(int, engine_request_read(api, &reader, root, &request, &fault), 0), "%s",
              fault.message);
    config.scheduler = world->scheduler;
    config.id = SLICE("id-1");
    config.block_size = 16;
    world->generation = generation_create(&config, &request, &callbacks, world);
    generation_open(world->generation);
}

/* Runs it to its end. */
static void world_ask(struct world *world, enum engine_api api, const char *text,
                      struct generation_config config)
{
    uint64_t now_us = 0;

    buf_clear(&world->events);
    buf_clear(&world->body);
    world->event_count = world->end_count = 0;
    generation_destroy(world->generation);
    world_start(world, api, text, config);
    do
        now_us = scheduler_step(world->scheduler, now_us);
    while (now_us != 0);
    cr_assert(generation_is_done(world->generation));
    cr_assert(eq(sz, world->end_count, 1));
}

static void world_release(struct world *world)
{
    generation_destroy(world->generation);
    cr_assert(eq(sz, scheduler_running_count(world->scheduler), 0));
    scheduler_destroy(world->scheduler);
    prefix_cache_destroy(world->cache);
    json_scanner_destroy(world->scanner);
    json_scanner_destroy(world->form_scanner);
    response_store_destroy(world->store);
    buf_release(&world->events);
    buf_release(&world->body);
}

static size_t occurrences(struct slice text, const char *word)
{
    size_t count = 0, len = strlen(word);

    for (size_t i = 0; i + len <= text.len; i++)
        count += memcmp(text.ptr + i, word, len) == 0;
    return count;
}

TestSuite(generation, .fini = leak_check);

Test(generation, a_stream_opens_tells_each_token_and_ends_with_done)
{
    struct world world;
    world_init(&world);

    world_ask(&world, ENGINE_CHAT, CHAT ",\"stream\":true}", (struct generation_config){0});

    struct slice events = buf_slice(&world.events);
    cr_assert(eq(sz, world.event_count, 1 + 5 + 1));
    cr_assert(eq(sz, occurrences(events, "\"role\":\"assistant\""), 1));
    cr_assert(eq(sz, occurrences(events, "\"content\":\" "), 5));
    cr_assert(eq(sz, occurrences(events, "\"finish_reason\":\"length\""), 1));
    cr_assert(eq(sz, occurrences(events, "\"usage\""), 0));
    cr_assert(eq(sz, occurrences(events, "data: [DONE]\n\n"), 1));
    world_release(&world);
}

Test(generation, usage_is_told_once_at_the_end_or_always)
{
    struct world world;
    world_init(&world);

    world_ask(&world, ENGINE_CHAT,
              CHAT ",\"stream\":true,\"stream_options\":{\"include_usage\":true}}",
              (struct generation_config){0});
    cr_assert(eq(sz, occurrences(buf_slice(&world.events), "\"usage\""), 1));
    cr_assert(eq(sz, occurrences(buf_slice(&world.events), "\"choices\":[]"), 1));

    world_ask(&world, ENGINE_CHAT,
              CHAT ",\"stream\":true,\"stream_options\":{\"include_usage\":true,"
                   "\"continuous_usage_stats\":true}}",
              (struct generation_config){0});
    cr_assert(eq(sz, occurrences(buf_slice(&world.events), "\"usage\""), 1 + 5 + 1));
    cr_assert(eq(sz, occurrences(buf_slice(&world.events), "cached_tokens"), 1));
    world_release(&world);
}

Test(generation, faults_take_usage_and_done_away)
{
    struct world world;
    world_init(&world);

    world_ask(&world, ENGINE_CHAT,
              CHAT ",\"stream\":true,\"stream_options\":{\"include_usage\":true}}",
              (struct generation_config){.hides_usage = true, .hides_done = true});

    cr_assert(eq(sz, occurrences(buf_slice(&world.events), "\"usage\""), 0));
    cr_assert(eq(sz, occurrences(buf_slice(&world.events), "[DONE]"), 0));
    world_release(&world);
}

Test(generation, the_second_time_the_prompt_is_cached_but_not_with_another_salt)
{
    struct world world;
    world_init(&world);
    world_ask(&world, ENGINE_CHAT, CHAT "}", (struct generation_config){0});
    size_t prompt_tokens = generation_usage(world.generation).prompt_tokens;
    cr_assert(eq(sz, generation_usage(world.generation).cached_tokens, 0));

    world_ask(&world, ENGINE_CHAT, CHAT "}", (struct generation_config){0});
    cr_assert(
        eq(sz, generation_usage(world.generation).cached_tokens, (prompt_tokens - 1) / 16 * 16));

    world_ask(&world, ENGINE_CHAT, CHAT ",\"cache_salt\":\"tenant\"}",
              (struct generation_config){0});
    cr_assert(eq(sz, generation_usage(world.generation).cached_tokens, 0));
    world_release(&world);
}

Test(generation, the_same_prompt_gives_the_same_answer_streamed_or_not)
{
    struct world world;
    struct json_scanner *scanner = json_scanner_create();
    struct json_value root, choice;
    struct json_iterator choices;
    struct parse_error error;
    struct slice content, events;
    world_init(&world);
    world_ask(&world, ENGINE_CHAT, CHAT "}", (struct generation_config){0});
    cr_assert(eq(int, json_scan_copy(scanner, buf_slice(&world.body), &root, &error), 0));
    choices = json_iterate(json_get(root, "choices"));
    cr_assert(json_next_element(&choices, &choice));
    content = json_string(json_get(json_get(choice, "message"), "content"));

    world_ask(&world, ENGINE_CHAT, CHAT ",\"stream\":true}", (struct generation_config){0});

    events = buf_slice(&world.events);
    while (events.len > 0 && content.len > 0) {
        const char *delta = memmem(events.ptr, events.len, "\"content\":\" ", 12);
        const char *end = memchr(delta + 12, '"', 32);
        struct slice word = slice_of(delta + 11, (size_t)(end - delta - 11));

        cr_assert(slice_starts_with(content, word));
        content = slice_skip(content, word.len);
        events = slice_skip(events, (size_t)(end - events.ptr));
    }
    cr_assert(eq(sz, content.len, 0));
    json_scanner_destroy(scanner);
    world_release(&world);
}

Test(generation, several_prompts_and_choices_come_as_indexed_choices)
{
    struct world world;
    world_init(&world);

    world_ask(&world, ENGINE_COMPLETIONS,
              "{\"prompt\":[\"hello there\",\"good bye\"],\"n\":2,\"max_tokens\":3}",
              (struct generation_config){0});

    cr_assert(eq(sz, occurrences(buf_slice(&world.body), "\"index\":"), 4));
    cr_assert(eq(sz, occurrences(buf_slice(&world.body), "\"index\":3"), 1));
    cr_assert(eq(sz, generation_usage(world.generation).prompt_tokens, 4));
    cr_assert(eq(sz, generation_usage(world.generation).completion_tokens, 12));
    world_release(&world);
}

Test(generation, destroying_one_in_progress_takes_it_out_of_the_engine)
{
    struct world world;
    world_init(&world);
    world_start(&world, ENGINE_CHAT, CHAT ",\"stream\":true}", (struct generation_config){0});
    uint64_t first_end_us = scheduler_step(world.scheduler, 0);
    (void)scheduler_step(world.scheduler, first_end_us);
    cr_assert(eq(sz, scheduler_running_count(world.scheduler), 1));

    generation_destroy(world.generation);
    world.generation = NULL;

    cr_assert(eq(sz, scheduler_running_count(world.scheduler), 0));
    cr_assert(eq(sz, prefix_cache_free_count(world.cache), prefix_cache_usable_count(world.cache)));
    cr_assert(eq(sz, world.end_count, 0));
    world_release(&world);
}

#define QUESTION                                                                                   \
    "Tell me at length where the old brass samovar of the house stands, and since when."
#define RESPONSES "{\"input\":\"" QUESTION "\",\"max_output_tokens\":5"
#define MESSAGES                                                                                   \
    "{\"model\":\"tiny\",\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":"           \
    "\"" QUESTION "\"}]"

Test(generation, a_response_opens_before_any_token_and_numbers_its_events)
{
    struct world world;
    world_init(&world);

    world_start(&world, ENGINE_RESPONSES, RESPONSES ",\"stream\":true}",
                (struct generation_config){0});
    cr_assert(eq(sz, world.event_count, 2)); /* created, in_progress */
    world_release(&world);

    world_init(&world);
    world_ask(&world, ENGINE_RESPONSES, RESPONSES ",\"stream\":true}",
              (struct generation_config){0});

    struct slice events = buf_slice(&world.events);
    cr_assert(eq(sz, world.event_count, 2 + 2 + 5 + 3 + 1));
    cr_assert(eq(sz, occurrences(events, "\"sequence_number\":12,"), 1)); /* the last */
    cr_assert(eq(sz, occurrences(events, "event: response.output_text.delta\n"), 5));
    cr_assert(eq(sz, occurrences(events, "event: response.completed\n"), 1));
    cr_assert(eq(sz, occurrences(events, "[DONE]"), 0));
    world_release(&world);
}

Test(generation, a_message_is_told_in_blocks)
{
    struct world world;
    world_init(&world);

    world_ask(&world, ENGINE_MESSAGES, MESSAGES ",\"stream\":true}", (struct generation_config){0});

    struct slice events = buf_slice(&world.events);
    cr_assert(eq(sz, world.event_count, 1 + 1 + 5 + 1 + 1 + 1));
    cr_assert(slice_starts_with(events, SLICE("event: message_start\n")));
    cr_assert(eq(sz, occurrences(events, "\"type\":\"text_delta\""), 5));
    cr_assert(eq(sz, occurrences(events, "\"stop_reason\":\"max_tokens\""), 1));
    cr_assert(eq(sz, occurrences(events, "event: message_stop\n"), 1));
    world_release(&world);
}

Test(generation, thinking_is_a_block_or_an_item_of_its_own)
{
    const struct generation_config config = {.thinks_first = true};
    struct world world;
    world_init(&world);

    world_ask(&world, ENGINE_MESSAGES,
              "{\"model\":\"tiny\",\"max_tokens\":12,\"stream\":true,\"messages\":[{\"role\":"
              "\"user\",\"content\":\"" QUESTION "\"}]}",
              config);
    cr_assert(eq(sz, occurrences(buf_slice(&world.events), "content_block_start\n"), 2));
    cr_assert(eq(sz, occurrences(buf_slice(&world.events), "signature_delta"), 1));

    world_ask(&world, ENGINE_RESPONSES,
              "{\"input\":\"" QUESTION "\",\"max_output_tokens\":12,\"stream\":true}", config);
    cr_assert(eq(sz, occurrences(buf_slice(&world.events), "response.output_item.done\n"), 2));
    cr_assert(eq(sz, occurrences(buf_slice(&world.events), "response.reasoning_text.done\n"), 1));
    world_release(&world);
}

Test(generation, the_same_conversation_is_cached_across_the_families)
{
    struct world world;
    world_init(&world);

    world_ask(&world, ENGINE_RESPONSES, RESPONSES "}", (struct generation_config){0});
    cr_assert(eq(sz, generation_usage(world.generation).cached_tokens, 0));
    world_ask(&world, ENGINE_MESSAGES, MESSAGES "}", (struct generation_config){0});

    cr_assert(eq(sz, generation_usage(world.generation).cached_tokens, 16));
    cr_assert(eq(sz, occurrences(buf_slice(&world.body), "\"cache_read_input_tokens\":16"), 1));
    world_release(&world);
}

Test(generation, a_stored_response_is_continued_from_the_cache)
{
    struct world world;
    world_init(&world);
    world_ask(&world, ENGINE_RESPONSES, RESPONSES ",\"stream\":true}",
              (struct generation_config){0});
    generation_store(world.generation, world.store);

    world_ask(&world, ENGINE_RESPONSES,
              "{\"input\":\"" QUESTION "\",\"previous_response_id\":\"id-1\"}",
              (struct generation_config){0});

    cr_assert(response_store_find(world.store, SLICE("id-1")) != NULL);
    cr_assert(ge(sz, generation_usage(world.generation).cached_tokens, 16));
    world_release(&world);
}

Test(generation, without_done_a_stream_ends_without_the_last_word_of_its_family)
{
    const struct generation_config config = {.hides_done = true};
    struct world world;
    world_init(&world);

    world_ask(&world, ENGINE_RESPONSES, RESPONSES ",\"stream\":true}", config);
    cr_assert(eq(sz, occurrences(buf_slice(&world.events), "response.completed"), 0));
    world_ask(&world, ENGINE_MESSAGES, MESSAGES ",\"stream\":true}", config);
    cr_assert(eq(sz, occurrences(buf_slice(&world.events), "message_stop"), 0));
    world_release(&world);
}

Test(generation, a_ranking_is_sorted_and_cut)
{
    struct world world;
    world_init(&world);

    world_ask(&world, ENGINE_RERANK,
              "{\"query\":\"tea\",\"documents\":[\"a\",\"b\",\"c\",\"d\"],\"top_n\":2}",
              (struct generation_config){0});

    cr_assert(eq(sz, occurrences(buf_slice(&world.body), "\"relevance_score\""), 2));
    world_release(&world);
}
