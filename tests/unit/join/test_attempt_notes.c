/* SPDX-License-Identifier: Apache-2.0 */

#include "router/join/attempt_notes.h"

#include "tests/support/loop_fixture.h"
#include "tests/support/redis_server.h"
#include "tests/support/scripted_server.h"
#include "tests/support/scripted_worker.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/http/worker_pool.h"
#include "router/join/join.h"

enum {
    WAIT_MS = 10000,
    TOKEN_COUNT = 40, /* that /tokenize says */
    BLOCK_COUNT = 6,
    CLOSED_COUNT = 5,
    HELD_COUNT_MAX = 8,
};

/* A real Redis, a scripted worker with an agent that is only said to be there, and what both got.
 */
struct notes_world {
    struct redis_server *redis;
    struct redis_link *link;
    struct worker_set *workers;
    struct worker *worker;
    struct io_deadlines idle;
    struct scripted_server *server;
    struct json_scanner *scanner;
    struct residency_index *index;
    struct residency_guess *guess;
    struct router_stats stats;
    uint8_t secret[DIGEST_SECRET_BYTES];
    struct join *join;
    struct residency_agent agent;
    struct anchor_plan plan;
    struct block blocks[BLOCK_COUNT];
    size_t exact_count;
    struct tool_layout layout;
    size_t before_tools_count;
    uint64_t before_tools_bytes;
    bool has_echo;
    /* The worker holds its answers back until they are let go. */
    bool holds;
    struct scripted_conn *held[HELD_COUNT_MAX];
    uint32_t held_count;
    uint32_t request_count;
    int status; /* instead of a count */
    /* What Redis has in the worker's stream. */
    bool is_read;
    struct residency_note notes[16];              /* their blocks are gone, */
    struct residency_note_block first_blocks[16]; /* but for these */
    uint32_t note_count;
};

static void answer_count(struct scripted_conn *conn)
{
    char text[512];
    int at = snprintf(text, sizeof text, "{\"count\":%d,\"tokens\":[", TOKEN_COUNT);

    for (int i = 0; i < TOKEN_COUNT; i++)
        at += snprintf(text + at, sizeof text - (size_t)at, "%s%d", i > 0 ? "," : "", i);
    at += snprintf(text + at, sizeof text - (size_t)at, "]}");
    scripted_conn_answer(conn, 200, slice_of(text, (size_t)at));
}

static void on_request(void *ctx, struct scripted_conn *conn,
                       const struct scripted_request *request)
{
    struct notes_world *world = ctx;

    (void)request;
    world->request_count++;
    if (world->holds)
        world->held[world->held_count++] = conn;
    else if (world->status != 0)
        scripted_conn_answer(conn, world->status, SLICE("{}"));
    else
        answer_count(conn);
}

static struct residency_agent find_agent(void *ctx, const struct worker *worker)
{
    struct notes_world *world = ctx;

    cr_assert(eq(ptr, (void *)(uintptr_t)worker, world->worker));
    return world->agent;
}

static bool is_linked(void *ctx)
{
    struct notes_world *world = ctx;

    return redis_link_state(world->link) == REDIS_LINK_READY;
}

static void on_ready(void *ctx)
{
    (void)ctx;
}

static void on_away(void *ctx, int error, const char *why)
{
    (void)ctx;
    (void)error;
    (void)why;
}

static void open_link(struct notes_world *world)
{
    struct redis_link_config config = {
        .url = redis_server_url(world->redis),
        .name = "samovar-test",
        .connect_ms = 2000,
        .command_ms = 1000,
        .back_off_ms = 10,
        .back_off_ms_max = 100,
        .pending_max = 1000,
    };

    cr_assert(
        eq(int,
           redis_link_open(loop_fixture_loop(), config,
                           (struct redis_link_callbacks){on_ready, on_away}, world, &world->link),
           0));
    cr_assert(loop_run_until(is_linked, world, WAIT_MS));
}

static void make_worker(struct notes_world *world)
{
    world->server = scripted_server_create(loop_fixture_loop(), 0, on_request, world);
    world->workers = worker_set_create();
    world->worker = scripted_worker_add(world->workers, world->server, &world->idle);
}

static void notes_world_init(struct notes_world *world)
{
    *world = (struct notes_world){
        .agent = {.is_there = true, .block_tokens = 16, .text_depth_max = 100},
        .plan = {.source = ANCHOR_SOURCE_ENGINE},
    };
    for (size_t i = 0; i < BLOCK_COUNT; i++)
        world->blocks[i] = (struct block){100 + i, 256 * (i + 1)};
    world->redis = redis_server_create((const char *const[]){NULL});
    open_link(world);
    make_worker(world);
    world->scanner = json_scanner_create();
    world->index = residency_index_create(1 << 20);
    world->guess = residency_guess_create(world->index);
    router_stats_init(&world->stats);
    world->join = join_create((struct join_config){
        .io = loop_fixture_io(),
        .link = world->link,
        .scanner = world->scanner,
        .workers = world->workers,
        .guess = world->guess,
        .stats = &world->stats,
        .secret = world->secret,
        .fingerprint = 7,
        .router = 8,
        .anchor_bytes_min = 256,
        .anchor_rate_max = 1000,
        .find_agent = find_agent,
        .ctx = world,
    });
    cr_assert(ne(ptr, world->join, NULL));
}

static void notes_world_release(struct notes_world *world)
{
    join_close(world->join);
    redis_link_close(&world->link, NULL, NULL);
    scripted_worker_close(world->worker);
    scripted_server_close(world->server);
    loop_run_for(1);
    join_destroy(world->join);
    residency_guess_destroy(world->guess);
    residency_index_destroy(world->index);
    worker_set_destroy(world->workers);
    json_scanner_destroy(world->scanner);
    redis_server_destroy(world->redis);
}

static struct attempt_notes *begin(struct notes_world *world, const char *id,
                                   enum anchor_outcome *why_not)
{
    struct attempt_notes *notes;
    struct buf body;

    *why_not = ANCHOR_OUTCOME_COUNT;
    buf_init(&body, SIZE_MAX);
    cr_assert(eq(int, buf_append(&body, SLICE("{\"prompt\":\"tea\"}")), 0));
    notes = attempt_notes_begin(world->join,
                                &(struct attempt_begun){
                                    .worker = world->worker,
                                    .attempt_id = id,
                                    .model_id = "tiny",
                                    .plan = &world->plan,
                                    .blocks = world->blocks,
                                    .block_count = BLOCK_COUNT,
                                    .closed_count = CLOSED_COUNT,
                                    .exact_count = world->exact_count,
                                    .layout = world->layout,
                                    .before_tools_count = world->before_tools_count,
                                    .before_tools_bytes = world->before_tools_bytes,
                                    .predicted_ttft_ms = 10,
                                    .body = &body,
                                    .splice_at = 1,
                                    .has_echo = world->has_echo,
                                },
                                why_not);
    buf_release(&body);
    return notes;
}

static struct attempt_notes *begin_well(struct notes_world *world, const char *id)
{
    enum anchor_outcome why_not;
    struct attempt_notes *notes = begin(world, id, &why_not);

    cr_assert(ne(ptr, notes, NULL), "%s", anchor_outcome_name(why_not));
    return notes;
}

/* A whole attempt: usage first, as of a short answer. Waits for what becomes of it. */
static bool is_settled(void *ctx)
{
    enum anchor_outcome outcome;

    return attempt_notes_outcome(ctx, &outcome);
}

static enum anchor_outcome run(struct notes_world *world, const char *id, uint64_t prompt_tokens)
{
    struct attempt_notes *notes = begin_well(world, id);
    enum anchor_outcome outcome;

    attempt_notes_usage(notes, prompt_tokens, 16);
    cr_assert(loop_run_until(is_settled, notes, WAIT_MS));
    attempt_notes_outcome(notes, &outcome);
    attempt_notes_end(&notes);
    cr_assert(eq(ptr, notes, NULL));
    return outcome;
}

static void earn_trust(struct notes_world *world)
{
    for (int i = 0; i < ANCHOR_TRUST_AGREED_MIN; i++)
        cr_assert(eq(int, run(world, "trust", TOKEN_COUNT), ANCHOR_POSTED));
}

/* ---- what Redis got ---- */

static void take_entry(struct notes_world *world, struct slice bytes)
{
    struct residency_notes notes;
    struct residency_note note;

    cr_assert(eq(int, residency_notes_open(&notes, bytes), 0));
    while (residency_notes_next(&notes, &note)) {
        cr_assert(lt(u32, world->note_count, 16));
        if (note.block_count > 0)
            world->first_blocks[world->note_count] = residency_note_block(&note, 0);
        world->notes[world->note_count++] = note;
    }
}

static void on_stream(void *ctx, int error, const struct redis_reply *reply)
{
    struct notes_world *world = ctx;

    cr_assert(eq(int, error, 0));
    world->is_read = true;
    world->note_count = 0;
    for (size_t i = 0; i < redis_reply_count(reply); i++)
        take_entry(world, redis_reply_text(
                              redis_reply_at(redis_reply_at(redis_reply_at(reply, i), 1), 1)));
}

static uint32_t read_notes(struct notes_world *world)
{
    const struct slice words[] = {SLICE("XRANGE"), SLICE("smv:{http://worker.test}:in"), SLICE("-"),
                                  SLICE("+")};

    loop_run_for(20); /* what was gathered leaves within 5 ms, on the same link */
    world->is_read = false;
    cr_assert(eq(int, redis_link_send(world->link, words, 4, on_stream, world), 0));
    cr_assert(loop_run_until_flag(&world->is_read, WAIT_MS));
    return world->note_count;
}

TestSuite(attempt_notes, .init = loop_fixture_init, .fini = loop_fixture_fini, .timeout = 60);

Test(attempt_notes, text_and_anchor_are_told_when_count_and_usage_agree)
{
    struct notes_world world;

    notes_world_init(&world);
    world.exact_count = 2;
    cr_assert(eq(int, run(&world, "req-1-abc", TOKEN_COUNT), ANCHOR_POSTED));
    cr_assert(eq(u32, read_notes(&world), 2));

    const struct residency_note *routed = &world.notes[0], *anchor = &world.notes[1];
    uint64_t key = digest_64(world.secret, DIGEST_ATTEMPT, "req-1-abc", 9);

    cr_assert(eq(int, routed->kind, RESIDENCY_NOTE_ROUTED));
    cr_assert(eq(u64, routed->attempt, key));
    cr_assert(eq(u64, routed->start, 101)); /* the last block that the map says is known */
    cr_assert(eq(sz, routed->block_count, BLOCK_COUNT - 2));
    cr_assert(eq(u64, world.first_blocks[0].hash, 102));
    cr_assert(eq(u32, world.first_blocks[0].bytes, 256));
    cr_assert(eq(int, anchor->kind, RESIDENCY_NOTE_ANCHOR));
    cr_assert(eq(u64, anchor->attempt, key));
    cr_assert(eq(u32, anchor->token_count, TOKEN_COUNT));
    cr_assert(eq(u32, anchor->cached_tokens, 16));
    cr_assert(ne(u64, anchor->last_block, 0));
    cr_assert(eq(u64, world.stats.anchors_total[ANCHOR_POSTED], 1));
    notes_world_release(&world);
}

Test(attempt_notes, where_late_tools_begin_is_told_first)
{
    struct notes_world world;

    notes_world_init(&world);
    world.exact_count = 1;
    world.layout = (struct tool_layout){TOOLS_BEHIND_LAST_USER, true, 30};
    world.before_tools_count = 3;
    world.before_tools_bytes = world.blocks[2].end + world.blocks[BLOCK_COUNT - 1].end / 8;
    cr_assert(eq(int, run(&world, "req-1", TOKEN_COUNT), ANCHOR_POSTED));
    cr_assert(eq(u32, read_notes(&world), 4));

    const struct residency_note *text = &world.notes[0], *anchor = &world.notes[1];

    cr_assert(eq(int, text->kind, RESIDENCY_NOTE_ROUTED));
    cr_assert(eq(int, anchor->kind, RESIDENCY_NOTE_ANCHOR));
    cr_assert(eq(u64, text->attempt, anchor->attempt));
    cr_assert(ne(u64, text->attempt, world.notes[2].attempt));
    cr_assert(eq(sz, text->block_count, 2));
    cr_assert(eq(u32, anchor->token_count, 30));
    cr_assert(eq(u32, anchor->tail_tokens, TOKEN_COUNT / 8)); /* an open block lies between */
    cr_assert(eq(sz, world.notes[2].block_count, BLOCK_COUNT - 1));
    cr_assert(eq(u32, world.notes[3].token_count, TOKEN_COUNT));
    cr_assert(eq(u64, world.stats.anchors_total[ANCHOR_POSTED], 1));
    notes_world_release(&world);
}

Test(attempt_notes, late_tools_are_not_told_apart_where_all_before_them_is_known_or_no_mark_is)
{
    struct notes_world world;

    notes_world_init(&world);
    world.layout = (struct tool_layout){TOOLS_BEHIND_LAST_USER, true, 30};
    world.before_tools_count = world.exact_count = 3;
    world.before_tools_bytes = world.blocks[2].end;
    cr_assert(eq(int, run(&world, "req-1", TOKEN_COUNT), ANCHOR_POSTED));
    cr_assert(eq(u32, read_notes(&world), 2));
    world.exact_count = 0;
    world.layout.mark = TOKEN_COUNT + 1;
    cr_assert(eq(int, run(&world, "req-2", TOKEN_COUNT), ANCHOR_POSTED));

    cr_assert(eq(u32, read_notes(&world), 4));
    notes_world_release(&world);
}

Test(attempt_notes, an_answer_that_says_the_ids_is_an_anchor_and_nobody_is_asked)
{
    const struct token_anchor anchor = {.token_count = TOKEN_COUNT, .last_block = 0xabc};
    struct notes_world world;
    struct attempt_notes *notes;
    enum anchor_outcome outcome;

    notes_world_init(&world);
    world.has_echo = true;
    notes = begin_well(&world, "req-1");
    cr_assert(not(attempt_notes_outcome(notes, &outcome)));
    attempt_notes_echoed(notes, &anchor);
    cr_assert(not(attempt_notes_outcome(notes, &outcome)), "it waits for usage like any count");
    attempt_notes_usage(notes, TOKEN_COUNT, 16);
    cr_assert(attempt_notes_outcome(notes, &outcome));
    attempt_notes_end(&notes);

    cr_assert(eq(int, outcome, ANCHOR_POSTED));
    cr_assert(eq(u32, read_notes(&world), 2));
    cr_assert(eq(u64, world.notes[1].last_block, 0xabc));
    cr_assert(eq(u32, world.request_count, 0));
    notes_world_release(&world);
}

Test(attempt_notes, an_answer_that_says_no_ids_settles_it)
{
    struct notes_world world;
    struct attempt_notes *notes;

    notes_world_init(&world);
    world.has_echo = true;
    notes = begin_well(&world, "req-1");
    attempt_notes_usage(notes, TOKEN_COUNT, 16);
    attempt_notes_end(&notes);

    cr_assert(eq(u64, world.stats.anchors_total[ANCHOR_FAILED], 1));
    cr_assert(eq(u32, read_notes(&world), 0));
    notes_world_release(&world);
}

Test(attempt_notes, ids_that_are_not_as_many_as_usage_says_are_not_told)
{
    const struct token_anchor anchor = {.token_count = TOKEN_COUNT, .last_block = 0xabc};
    struct notes_world world;
    struct attempt_notes *notes;

    notes_world_init(&world);
    world.has_echo = true;
    notes = begin_well(&world, "req-1");
    attempt_notes_echoed(notes, &anchor);
    attempt_notes_usage(notes, TOKEN_COUNT + 1, 16);
    attempt_notes_end(&notes);

    cr_assert(eq(u64, world.stats.anchors_total[ANCHOR_MISMATCH], 1));
    cr_assert(eq(u32, read_notes(&world), 0));
    notes_world_release(&world);
}

Test(attempt_notes, the_order_of_count_and_usage_does_not_matter)
{
    struct notes_world world;
    struct attempt_notes *notes;
    enum anchor_outcome outcome;

    notes_world_init(&world);
    notes = begin_well(&world, "a");
    loop_run_for(50); /* the count is there; nobody is trusted, so nothing is told */
    cr_assert(not(attempt_notes_outcome(notes, &outcome)));
    cr_assert(eq(u32, read_notes(&world), 0));
    attempt_notes_usage(notes, TOKEN_COUNT, UINT32_MAX);

    cr_assert(attempt_notes_outcome(notes, &outcome));
    cr_assert(eq(int, outcome, ANCHOR_POSTED));
    cr_assert(eq(u32, read_notes(&world), 2));
    cr_assert(eq(u32, world.notes[1].cached_tokens, UINT32_MAX));
    attempt_notes_end(&notes);
    notes_world_release(&world);
}

Test(attempt_notes, a_count_that_differs_is_not_told)
{
    struct notes_world world;

    notes_world_init(&world);
    cr_assert(eq(int, run(&world, "a", TOKEN_COUNT + 1), ANCHOR_MISMATCH));

    cr_assert(eq(u32, read_notes(&world), 0));
    cr_assert(eq(u64, world.stats.anchors_total[ANCHOR_MISMATCH], 1));
    notes_world_release(&world);
}

Test(attempt_notes, who_is_trusted_is_told_of_at_once_and_no_longer_when_proved_wrong)
{
    struct notes_world world;
    struct attempt_notes *notes;
    enum anchor_outcome outcome;

    notes_world_init(&world);
    earn_trust(&world);
    notes = begin_well(&world, "long answer");
    cr_assert(loop_run_until(is_settled, notes, WAIT_MS)); /* no usage yet */
    attempt_notes_outcome(notes, &outcome);
    cr_assert(eq(int, outcome, ANCHOR_POSTED));
    attempt_notes_usage(notes, TOKEN_COUNT + 3, 0);
    attempt_notes_answer(notes, world.blocks, 1, 5);
    attempt_notes_end(&notes);
    cr_assert(eq(u64, world.stats.anchors_disproved_total, 1));
    cr_assert(eq(u64, world.stats.answers_posted_total, 0)); /* nor is its answer told */

    notes = begin_well(&world, "the next one waits for usage again");
    loop_run_for(50);
    cr_assert(not(attempt_notes_outcome(notes, &outcome)));
    attempt_notes_end(&notes);
    cr_assert(eq(u64, world.stats.anchors_total[ANCHOR_UNCHECKED], 1));
    notes_world_release(&world);
}

Test(attempt_notes, an_attempt_that_is_over_first_is_told_when_the_count_comes)
{
    struct notes_world world;
    struct attempt_notes *notes;
    const struct block answer[] = {{200, 1300}, {201, 1500}};

    notes_world_init(&world);
    world.holds = true;
    notes = begin_well(&world, "a");
    attempt_notes_usage(notes, TOKEN_COUNT, 0);
    attempt_notes_answer(notes, answer, 2, 9);
    attempt_notes_end(&notes);
    loop_run_for(50);
    cr_assert(eq(u32, world.held_count, 1));
    answer_count(world.held[0]);
    loop_run_for(50);

    cr_assert(eq(u32, read_notes(&world), 3));
    cr_assert(eq(int, world.notes[2].kind, RESIDENCY_NOTE_ANSWERED));
    cr_assert(eq(u64, world.notes[2].attempt, world.notes[0].attempt));
    cr_assert(eq(u64, world.notes[2].start, 100 + CLOSED_COUNT - 1));
    cr_assert(eq(sz, world.notes[2].block_count, 2));
    cr_assert(eq(u64, world.first_blocks[2].hash, 200));
    cr_assert(eq(u32, world.first_blocks[2].bytes, 1300 - 256 * CLOSED_COUNT));
    cr_assert(world.notes[2].has_anchor);
    cr_assert(eq(u64, world.notes[2].last_block, world.notes[1].last_block));
    cr_assert(eq(u32, world.notes[2].token_count, TOKEN_COUNT + 9));
    cr_assert(eq(u64, world.stats.answers_posted_total, 1));
    notes_world_release(&world);
}

Test(attempt_notes, where_the_engine_says_anchors_itself_text_and_answer_are_told)
{
    struct notes_world world;
    struct attempt_notes *notes;
    enum anchor_outcome outcome;
    const struct block answer[] = {{200, 1300}};

    notes_world_init(&world);
    world.agent.has_anchors = true;
    world.plan = (struct anchor_plan){.why_not = ANCHOR_API}; /* no matter: nobody is asked */
    cr_assert(attempt_notes_are_due_at_send(world.join, world.worker));
    notes = begin_well(&world, "a");
    cr_assert(attempt_notes_outcome(notes, &outcome));
    cr_assert(eq(int, outcome, ANCHOR_BY_ENGINE));
    attempt_notes_usage(notes, 12345, 0);
    attempt_notes_answer(notes, answer, 1, 9);
    attempt_notes_end(&notes);

    cr_assert(eq(u32, read_notes(&world), 2));
    cr_assert(eq(int, world.notes[0].kind, RESIDENCY_NOTE_ROUTED));
    cr_assert(eq(int, world.notes[1].kind, RESIDENCY_NOTE_ANSWERED));
    cr_assert(world.notes[1].has_anchor);
    cr_assert(eq(u64, world.notes[1].last_block, 0)); /* its agent knows the prompt's */
    cr_assert(eq(u32, world.notes[1].token_count, 12345 + 9));
    cr_assert(eq(u32, world.request_count, 0));
    notes_world_release(&world);
}

Test(attempt_notes, what_is_not_asked_about_is_counted_with_its_reason)
{
    static const struct {
        struct residency_agent agent;
        struct anchor_plan plan;
        size_t exact_count;
        enum anchor_outcome why_not;
    } cases[] = {
        {{.is_there = false}, {.source = ANCHOR_SOURCE_ENGINE}, 0, ANCHOR_NO_AGENT},
        {{.is_there = true}, {.source = ANCHOR_SOURCE_ENGINE}, 0, ANCHOR_NO_AGENT},
        {{.is_there = true, .block_tokens = 16}, {.why_not = ANCHOR_MEDIA}, 0, ANCHOR_MEDIA},
        {{.is_there = true, .has_anchors = true}, {.why_not = ANCHOR_SHAPE}, 0, ANCHOR_SHAPE},
        {{.is_there = true, .block_tokens = 16}, {.source = ANCHOR_SOURCE_ENGINE}, 6, ANCHOR_KNOWN},
        {{.is_there = true, .block_tokens = 16, .text_depth_max = 5},
         {.source = ANCHOR_SOURCE_ENGINE},
         0,
         ANCHOR_LONG},
        {{.is_there = true, .block_tokens = 5000},
         {.source = ANCHOR_SOURCE_ENGINE},
         0,
         ANCHOR_LONG},
    };
    struct notes_world world;
    enum anchor_outcome why_not;

    notes_world_init(&world);
    for (size_t i = 0; i < array_count(cases); i++) {
        uint64_t before = world.stats.anchors_total[cases[i].why_not];

        world.agent = cases[i].agent;
        world.plan = cases[i].plan;
        world.exact_count = cases[i].exact_count;

        cr_assert(eq(ptr, begin(&world, "a", &why_not), NULL), "%zu", i);
        cr_assert(eq(int, why_not, cases[i].why_not), "%zu", i);
        cr_assert(eq(u64, world.stats.anchors_total[why_not], before + 1));
    }
    cr_assert(eq(u32, world.request_count, 0));
    notes_world_release(&world);
}

Test(attempt_notes, what_goes_wrong_on_the_way_is_counted_with_its_reason)
{
    struct notes_world world;

    notes_world_init(&world);
    world.agent.block_tokens = 64;
    cr_assert(eq(int, run(&world, "a", TOKEN_COUNT), ANCHOR_SHORT));
    world.agent.block_tokens = 16;
    world.status = 500;
    cr_assert(eq(int, run(&world, "b", TOKEN_COUNT), ANCHOR_FAILED));
    world.status = 404;
    cr_assert(eq(int, run(&world, "c", TOKEN_COUNT), ANCHOR_UNABLE));

    cr_assert(eq(u32, read_notes(&world), 0));
    notes_world_release(&world);
}

Test(attempt_notes, a_loop_that_is_late_asks_nobody)
{
    struct notes_world world;
    enum anchor_outcome why_not;

    notes_world_init(&world);
    join_note_lag(world.join, 200);
    cr_assert(eq(int, run(&world, "once is no trend", TOKEN_COUNT), ANCHOR_POSTED));
    join_note_lag(world.join, 200);

    cr_assert(eq(ptr, begin(&world, "a", &why_not), NULL));
    cr_assert(eq(int, why_not, ANCHOR_BUSY));
    notes_world_release(&world);
}

static bool is_unlinked(void *ctx)
{
    return !is_linked(ctx);
}

Test(attempt_notes, while_redis_is_away_nobody_is_asked)
{
    struct notes_world world;
    enum anchor_outcome why_not;

    notes_world_init(&world);
    redis_server_kill(world.redis);
    cr_assert(loop_run_until(is_unlinked, &world, WAIT_MS));

    cr_assert(eq(ptr, begin(&world, "a", &why_not), NULL));
    cr_assert(eq(int, why_not, ANCHOR_DROPPED));
    cr_assert(eq(u32, world.request_count, 0));
    notes_world_release(&world);
}

static bool has_handed_over(void *ctx)
{
    struct notes_world *world = ctx;

    return world->join->handed_over_total > 0;
}

Test(attempt_notes, what_was_told_is_left_to_the_map_after_a_while)
{
    struct notes_world world;

    notes_world_init(&world);
    world.exact_count = 2;
    residency_guess_learn(world.guess, world.worker->index,
                          &(struct guess_prompt){.blocks = world.blocks,
                                                 .block_count = BLOCK_COUNT,
                                                 .tokens_per_byte = 0.25});
    cr_assert(eq(int, run(&world, "a", TOKEN_COUNT), ANCHOR_POSTED));
    cr_assert(eq(u64, residency_guess_stats(world.guess).block_count, BLOCK_COUNT));
    cr_assert(loop_run_until(has_handed_over, &world, WAIT_MS));

    cr_assert(eq(u64, residency_guess_stats(world.guess).block_count, 2));
    cr_assert(eq(u64, world.join->handed_over_total, BLOCK_COUNT - 2));
    notes_world_release(&world);
}
