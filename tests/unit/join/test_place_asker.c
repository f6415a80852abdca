/* SPDX-License-Identifier: Apache-2.0 */

#include "router/join/place_asker.h"

#include "tests/support/loop_fixture.h"
#include "tests/support/scripted_server.h"
#include "tests/support/scripted_worker.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <stdio.h>
#include <string.h>

#include "backends/http/worker_pool.h"
#include "hashing/digest.h"

enum { WAIT_MS = 5000, QUESTION_COUNT = 4 };

/* One worker, scripted, and the asker that asks it. */
struct place_world {
    struct worker_set *workers;
    struct worker *worker;
    struct io_deadlines idle;
    struct scripted_server *server;
    struct json_scanner *scanner;
    struct place_asker *asker;
    uint8_t secret[DIGEST_SECRET_BYTES];
    char model[24]; /* that the last note was of */
    int status;     /* what the server answers with */
    bool is_late;   /* its tools stand behind the last user message */
    bool is_silent; /* it answers nothing */
    bool is_done;   /* it has answered all questions, or one by another status than 200 */
    uint32_t asked_count;
};

static bool says(const struct scripted_request *request, const char *text)
{
    return memmem(request->body.ptr, request->body.len, text, strlen(text)) != NULL;
}

/* Each message a token of its own, the tools 9. */
static const char *tokens_of(const struct place_world *world,
                             const struct scripted_request *request)
{
    bool has_tools = says(request, "\"tools\"");

    if (says(request, "Thank you"))
        return world->is_late ? "{\"tokens\":[1,2,3,4,5,9]}" : "{\"tokens\":[9,1,2,3,4,5]}";
    if (says(request, "lake"))
        return "{\"tokens\":[1,2,6]}";
    if (!has_tools)
        return "{\"tokens\":[1,2,3]}";
    return world->is_late ? "{\"tokens\":[1,2,3,9]}" : "{\"tokens\":[9,1,2,3]}";
}

static void on_request(void *ctx, struct scripted_conn *conn,
                       const struct scripted_request *request)
{
    struct place_world *world = ctx;
    char model[40];

    snprintf(model, sizeof model, "\"model\":\"%s\"", world->model);
    cr_assert(slice_eq(request->target, SLICE("/tokenize")));
    cr_assert(says(request, model));
    world->asked_count++;
    if (world->is_silent)
        return;
    scripted_conn_answer(conn, world->status, slice_of_string(tokens_of(world, request)));
    world->is_done = world->status != 200 || world->asked_count % QUESTION_COUNT == 0;
}

static void place_world_init(struct place_world *world)
{
    *world = (struct place_world){.model = "tiny", .status = 200, .is_late = true};
    world->server = scripted_server_create(loop_fixture_loop(), 0, on_request, world);
    world->workers = worker_set_create();
    world->worker = scripted_worker_add(world->workers, world->server, &world->idle);
    world->scanner = json_scanner_create();
    world->asker = place_asker_create((struct place_asker_config){
        .io = loop_fixture_io(),
        .workers = world->workers,
        .scanner = world->scanner,
        .secret = world->secret,
    });
    cr_assert(ne(ptr, world->asker, NULL));
}

static void place_world_release(struct place_world *world)
{
    place_asker_close(world->asker);
    scripted_worker_close(world->worker);
    scripted_server_close(world->server);
    loop_run_for(1);
    place_asker_destroy(world->asker);
    worker_set_destroy(world->workers);
    json_scanner_destroy(world->scanner);
}

static enum tool_place place_of(const struct place_world *world)
{
    return tool_places_find(place_asker_places(world->asker), world->secret, SLICE("tiny")).place;
}

/* A prompt with tools was read; runs until what comes of it is over. */
static void note(struct place_world *world)
{
    world->is_done = false;
    place_asker_note(world->asker, world->worker, world->model);
    cr_assert(loop_run_until_flag(&world->is_done, WAIT_MS));
    loop_run_for(50); /* the last answer's way back */
}

TestSuite(place_asker, .init = loop_fixture_init, .fini = loop_fixture_fini);

Test(place_asker, asks_once_and_knows)
{
    struct place_world world;

    place_world_init(&world);
    cr_assert(eq(int, place_of(&world), TOOLS_FIRST));
    note(&world);
    cr_assert(eq(int, place_of(&world), TOOLS_BEHIND_LAST_USER));
    place_asker_note(world.asker, world.worker, "tiny");
    loop_run_for(50);

    cr_assert(eq(u32, world.asked_count, QUESTION_COUNT));
    place_world_release(&world);
}

Test(place_asker, many_models_are_each_asked_once)
{
    enum { MODEL_COUNT = 24 };
    struct place_world world;

    place_world_init(&world);
    for (int i = 0; i < MODEL_COUNT; i++) {
        snprintf(world.model, sizeof world.model, "tiny-%d", i);
        note(&world);
    }
    for (int i = 0; i < MODEL_COUNT; i++) {
        snprintf(world.model, sizeof world.model, "tiny-%d", i);
        place_asker_note(world.asker, world.worker, world.model);
        loop_run_for(5);
    }

    cr_assert(eq(u32, world.asked_count, MODEL_COUNT * QUESTION_COUNT));
    place_world_release(&world);
}

Test(place_asker, another_process_may_have_another_template)
{
    struct place_world world;

    place_world_init(&world);
    note(&world);
    world.is_late = false;
    place_asker_forget_worker(world.asker, world.worker);
    cr_assert(eq(int, place_of(&world), TOOLS_BEHIND_LAST_USER)); /* until it is known better */
    note(&world);

    cr_assert(eq(int, place_of(&world), TOOLS_FIRST));
    place_world_release(&world);
}

Test(place_asker, who_cannot_say_is_left_alone_and_what_was_known_stays)
{
    struct place_world world;

    place_world_init(&world);
    note(&world);
    world.status = 404;
    place_asker_forget_worker(world.asker, world.worker);
    note(&world);
    place_asker_note(world.asker, world.worker, "tiny");
    loop_run_for(50);

    cr_assert(eq(u32, world.asked_count, QUESTION_COUNT + 1));
    cr_assert(eq(int, place_of(&world), TOOLS_BEHIND_LAST_USER));
    place_world_release(&world);
}

Test(place_asker, one_survey_at_a_time_and_it_may_be_given_up)
{
    struct place_world world;

    place_world_init(&world);
    world.is_silent = true;
    place_asker_note(world.asker, world.worker, "tiny");
    place_asker_note(world.asker, world.worker, "other");
    loop_run_for(50);

    cr_assert(eq(u32, world.asked_count, 1));
    cr_assert(eq(int, place_of(&world), TOOLS_FIRST));
    place_world_release(&world);
}
