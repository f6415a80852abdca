/* SPDX-License-Identifier: Apache-2.0 */

#include "router/join/token_asker.h"

#include "tests/support/loop_fixture.h"
#include "tests/support/scripted_server.h"
#include "tests/support/scripted_worker.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "backends/http/worker_pool.h"
#include "backends/thread_pool.h"

enum { WAIT_MS = 5000, TOKEN_COUNT = 20, TAIL_TOKENS = 4, REQUEST_COUNT_MAX = 128 };

/* One worker, scripted, and the asker that asks it. */
struct asker_world {
    struct worker_set *workers;
    struct worker *worker;
    struct io_deadlines idle;
    struct scripted_server *server;
    struct json_scanner *scanner;
    struct thread_pool *threads;
    void *contexts[1];
    struct token_asker *asker;
    struct anchor_plan plan;
    uint8_t secret[DIGEST_SECRET_BYTES];
    /* What the server does: an answer in place of the right one, 0 for none; its count of tokens.
     */
    int status;
    const char *body;
    uint32_t token_count;
    bool is_silent;
    char last_body[512];
    struct scripted_conn *held[REQUEST_COUNT_MAX]; /* of a silent one: who waits */
    uint32_t held_count;
};

struct asked {
    bool is_answered;
    struct token_answer answer;
};

static void answer_tokens(struct asker_world *world, struct scripted_conn *conn, uint32_t count)
{
    size_t size = 64 + 4 * (size_t)count, at;
    char *text = malloc(size);

    at = (size_t)snprintf(text, size, "{\"count\":%" PRIu32 ",\"tokens\":[", count);
    for (uint32_t i = 0; i < count; i++)
        at += (size_t)snprintf(text + at, size - at, "%s%" PRIu32, i > 0 ? "," : "", i % 100);
    at += (size_t)snprintf(text + at, size - at, "]}");
    scripted_conn_answer(conn, 200, slice_of(text, at));
    free(text);
    (void)world;
}

static void on_request(void *ctx, struct scripted_conn *conn,
                       const struct scripted_request *request)
{
    struct asker_world *world = ctx;
    bool is_open;

    snprintf(world->last_body, sizeof world->last_body, "%.*s", (int)request->body.len,
             request->body.ptr);
    is_open = strstr(world->last_body, "\"add_generation_prompt\":false") != NULL;
    cr_assert(slice_eq(request->target, SLICE("/tokenize")));
    if (world->is_silent)
        world->held[world->held_count++] = conn;
    else if (world->status != 0)
        scripted_conn_answer(conn, world->status, slice_of_string(world->body));
    else
        answer_tokens(world, conn, world->token_count - (is_open ? TAIL_TOKENS : 0));
}

static void asker_world_init(struct asker_world *world, uint32_t rate_max)
{
    *world = (struct asker_world){.token_count = TOKEN_COUNT, .body = "{}"};
    world->server = scripted_server_create(loop_fixture_loop(), 0, on_request, world);
    world->workers = worker_set_create();
    world->worker = scripted_worker_add(world->workers, world->server, &world->idle);
    world->scanner = json_scanner_create();
    world->contexts[0] = json_scanner_create();
    world->threads = thread_pool_create(loop_fixture_loop(),
                                        (struct thread_pool_config){1, 16, world->contexts});
    world->plan = (struct anchor_plan){.source = ANCHOR_SOURCE_ENGINE};
    world->asker = token_asker_create((struct token_asker_config){
        .io = loop_fixture_io(),
        .workers = world->workers,
        .threads = world->threads,
        .scanner = world->scanner,
        .secret = world->secret,
        .rate_max = rate_max,
    });
    cr_assert(ne(ptr, world->asker, NULL));
}

static void asker_world_release(struct asker_world *world)
{
    token_asker_close(world->asker);
    thread_pool_close(world->threads);
    scripted_worker_close(world->worker);
    scripted_server_close(world->server);
    loop_run_for(1);
    token_asker_destroy(world->asker);
    worker_set_destroy(world->workers);
    json_scanner_destroy(world->scanner);
    json_scanner_destroy(world->contexts[0]);
}

static void on_answered(void *ctx, const struct token_answer *answer)
{
    struct asked *asked = ctx;

    cr_assert(not(asked->is_answered), "answered twice");
    asked->is_answered = true;
    asked->answer = *answer;
}

static enum anchor_outcome ask_with(struct asker_world *world, struct asked *asked,
                                    const char *text)
{
    struct buf body;
    enum anchor_outcome outcome;

    buf_init(&body, SIZE_MAX);
    cr_assert(eq(int, buf_append(&body, slice_of_string(text)), 0));
    outcome = token_asker_ask(
        world->asker,
        &(struct token_question){
            .worker = world->worker,
            .plan = &world->plan,
            .naming = {world->secret, token_name_root(world->secret, NULL, 0, NULL, 0), 16, {0}},
            .model = 1,
            .splice_at = 1,
            .body = &body,
        },
        on_answered, asked);
    buf_release(&body);
    return outcome;
}

static enum anchor_outcome ask(struct asker_world *world, struct asked *asked)
{
    return ask_with(world, asked, "{\"prompt\":\"tea\"}");
}

/* Asks and waits for what comes of it. */
static struct token_answer run(struct asker_world *world)
{
    struct asked asked = {0};

    cr_assert(eq(int, ask(world, &asked), ANCHOR_POSTED));
    cr_assert(loop_run_until_flag(&asked.is_answered, WAIT_MS));
    return asked.answer;
}

TestSuite(token_asker, .init = loop_fixture_init, .fini = loop_fixture_fini);

Test(token_asker, asks_with_the_same_body_and_counts)
{
    struct asker_world world;
    struct token_answer answer;

    asker_world_init(&world, 100);
    answer = run(&world);

    cr_assert(eq(int, answer.outcome, ANCHOR_POSTED));
    cr_assert(eq(u32, answer.anchor.token_count, TOKEN_COUNT));
    cr_assert(ne(u64, answer.anchor.last_block, 0));
    cr_assert(eq(u32, answer.tail_tokens, 0)); /* a text has none */
    cr_assert(eq(str, world.last_body, "{\"prompt\":\"tea\"}"));
    cr_assert(eq(u64, token_asker_stats(world.asker).body_bytes, 0));
    asker_world_release(&world);
}

Test(token_asker, a_templates_tail_is_asked_for_once)
{
    struct asker_world world;
    struct token_answer first, second;

    asker_world_init(&world, 100);
    world.plan.template_name = 1;
    world.plan.may_ask_tail = true;
    first = run(&world);
    cr_assert(eq(str, world.last_body, "{\"add_generation_prompt\":false,\"prompt\":\"tea\"}"));
    second = run(&world);

    cr_assert(eq(u32, first.anchor.token_count, TOKEN_COUNT));
    cr_assert(eq(u32, first.tail_tokens, TAIL_TOKENS));
    cr_assert(eq(u32, second.tail_tokens, TAIL_TOKENS));
    cr_assert(eq(u32, scripted_server_stats(world.server).request_count, 3));
    asker_world_release(&world);
}

Test(token_asker, a_tail_that_cannot_be_asked_for_leaves_no_anchor)
{
    struct asker_world world;

    asker_world_init(&world, 100);
    world.plan.template_name = 1;
    world.plan.must_ask_tail = true;
    cr_assert(eq(int, run(&world).outcome, ANCHOR_FIELDS));
    world.plan.must_ask_tail = false; /* as of APIs that cannot: what chats showed, or none */

    cr_assert(eq(int, run(&world).outcome, ANCHOR_POSTED));
    asker_world_release(&world);
}

Test(token_asker, ids_are_counted_without_a_call)
{
    struct asker_world world;
    struct asked asked = {0};

    asker_world_init(&world, 100);
    world.plan.source = ANCHOR_SOURCE_IDS;

    cr_assert(eq(int, ask_with(&world, &asked, "{\"prompt\":[1,2,3]}"), ANCHOR_POSTED));
    cr_assert(asked.is_answered);
    cr_assert(eq(int, asked.answer.outcome, ANCHOR_POSTED));
    cr_assert(eq(u32, asked.answer.anchor.token_count, 3));
    cr_assert(eq(u32, scripted_server_stats(world.server).request_count, 0));
    asker_world_release(&world);
}

Test(token_asker, a_large_reply_is_read_by_a_thread)
{
    struct asker_world world;
    char *prompt = malloc(120001);
    char *body = malloc(120100);
    struct asked asked = {0};

    memset(prompt, 'a', 120000);
    prompt[120000] = '\0';
    snprintf(body, 120100, "{\"prompt\":\"%s\"}", prompt);
    asker_world_init(&world, 100);
    world.token_count = 100000;

    cr_assert(eq(int, ask_with(&world, &asked, body), ANCHOR_POSTED));
    cr_assert(loop_run_until_flag(&asked.is_answered, WAIT_MS));
    cr_assert(eq(int, asked.answer.outcome, ANCHOR_POSTED));
    cr_assert(eq(u32, asked.answer.anchor.token_count, 100000));
    asker_world_release(&world);
    free(prompt);
    free(body);
}

Test(token_asker, given_up_while_a_thread_reads_nothing_is_lost)
{
    struct asker_world world;
    struct asked asked = {0};
    char *body = malloc(400100);

    memset(body, ' ', 400100);
    memcpy(body, "{\"prompt\":[1", 12);
    for (size_t i = 0; i < 190000; i++)
        memcpy(body + 12 + 2 * i, ",1", 2);
    memcpy(body + 12 + 380000, "]}", 3);
    asker_world_init(&world, 100);
    world.plan.source = ANCHOR_SOURCE_IDS;

    cr_assert(eq(int, ask_with(&world, &asked, body), ANCHOR_POSTED));
    cr_assert(not(asked.is_answered));
    asker_world_release(&world);

    cr_assert(asked.is_answered);
    cr_assert(eq(int, asked.answer.outcome, ANCHOR_FAILED));
    free(body);
}

Test(token_asker, who_has_no_such_endpoint_is_not_asked_again)
{
    static const int statuses[] = {401, 403, 404, 405, 501};
    struct asker_world world;

    asker_world_init(&world, 100);
    for (uint32_t i = 0; i < array_count(statuses); i++) {
        struct asked asked = {0};

        token_asker_forget_worker(world.asker, world.worker->index);
        world.status = statuses[i];

        cr_assert(eq(int, run(&world).outcome, ANCHOR_UNABLE));
        cr_assert(eq(int, ask(&world, &asked), ANCHOR_UNABLE));
        cr_assert(not(asked.is_answered));
        cr_assert(eq(u32, scripted_server_stats(world.server).request_count, i + 1));
    }
    asker_world_release(&world);
}

Test(token_asker, what_holds_for_texts_does_not_for_chats_and_not_for_its_next_process)
{
    struct asker_world world;
    struct asked asked = {0};

    asker_world_init(&world, 100);
    world.status = 404;
    cr_assert(eq(int, run(&world).outcome, ANCHOR_UNABLE));
    world.status = 0;
    world.plan.target = ANCHOR_TARGET_CHAT;
    cr_assert(eq(int, run(&world).outcome, ANCHOR_POSTED));
    world.plan.target = ANCHOR_TARGET_TEXT;
    cr_assert(eq(int, ask(&world, &asked), ANCHOR_UNABLE));
    token_asker_forget_worker(world.asker, world.worker->index);

    cr_assert(eq(int, run(&world).outcome, ANCHOR_POSTED));
    asker_world_release(&world);
}

Test(token_asker, failures_in_a_row_bring_a_pause)
{
    struct asker_world world;
    struct asked asked = {0};

    asker_world_init(&world, 100);
    world.status = 200;
    world.body = "not a count";
    for (int i = 0; i < 3; i++)
        cr_assert(eq(int, run(&world).outcome, ANCHOR_FAILED));

    cr_assert(eq(int, ask(&world, &asked), ANCHOR_FAILED));
    cr_assert(not(asked.is_answered));
    cr_assert(eq(u32, scripted_server_stats(world.server).request_count, 3));
    cr_assert(eq(u64, token_asker_stats(world.asker).failed_total, 3));
    asker_world_release(&world);
}

Test(token_asker, asks_no_faster_than_it_may)
{
    struct asker_world world;
    struct asked asked = {0};

    asker_world_init(&world, 2);
    cr_assert(eq(int, run(&world).outcome, ANCHOR_POSTED));
    cr_assert(eq(int, run(&world).outcome, ANCHOR_POSTED));

    cr_assert(eq(int, ask(&world, &asked), ANCHOR_RATE));
    asker_world_release(&world);
}

static bool has_calls(void *ctx)
{
    struct asker_world *world = ctx;

    return world->held_count >= 4;
}

Test(token_asker, a_burst_waits_and_what_is_too_much_is_refused)
{
    enum { BURST = 80, TAKEN = 4 + 64 };
    struct asker_world world;
    struct asked asked[BURST] = {0};
    uint32_t answered = 0;

    asker_world_init(&world, 1000);
    world.is_silent = true;
    for (int i = 0; i < BURST; i++)
        cr_assert(eq(int, ask(&world, &asked[i]), i < TAKEN ? ANCHOR_POSTED : ANCHOR_BUSY));
    cr_assert(loop_run_until(has_calls, &world, WAIT_MS));
    cr_assert(eq(u32, token_asker_stats(world.asker).call_count, 4));
    cr_assert(eq(u32, token_asker_stats(world.asker).wait_count, 64));
    world.is_silent = false;
    for (int i = 0; i < 4; i++)
        answer_tokens(&world, world.held[i], TOKEN_COUNT);
    cr_assert(loop_run_until_flag(&asked[TAKEN - 1].is_answered, WAIT_MS));
    for (int i = 0; i < TAKEN; i++)
        cr_assert(loop_run_until_flag(&asked[i].is_answered, WAIT_MS));

    for (int i = 0; i < BURST; i++)
        answered += asked[i].is_answered && asked[i].answer.outcome == ANCHOR_POSTED;
    cr_assert(eq(u32, answered, TAKEN));
    asker_world_release(&world);
}

Test(token_asker, closed_it_answers_everybody)
{
    struct asker_world world;
    struct asked asked[6] = {0};

    asker_world_init(&world, 100);
    world.is_silent = true;
    for (int i = 0; i < 6; i++) /* four are called about, two wait */
        cr_assert(eq(int, ask(&world, &asked[i]), ANCHOR_POSTED));
    loop_run_for(20);
    asker_world_release(&world);

    for (int i = 0; i < 6; i++)
        cr_assert(eq(int, asked[i].answer.outcome, ANCHOR_FAILED));
}
