/* SPDX-License-Identifier: Apache-2.0 */

#include "router/join/place_asker.h"

#include <assert.h>
#include <stdlib.h>

#include "backends/http/worker_call.h"
#include "backends/runtime/log.h"
#include "hashing/digest.h"
#include "router/prompt/tool_survey.h"

/*
 * DESIGN
 *
 *   note --> question 0 --call--> read --> question 1 ... --> question 3 --> conclude
 *                     `-- fails --> the model rests: what was known stays
 *
 * One survey at a time: it is four calls of a few hundred bytes, and the next request with tools
 * notes the next model. All workers of a model are taken to have one template; an engine may come
 * back with another one, so a worker that ends makes its models due, and time does.
 *
 * A model takes another one's place in the table only when that one is due, so that however many
 * there are, no more than ASKED_COUNT surveys are made in UNABLE_MS; restarts of workers aside.
 */
enum {
    CALL_MS = 5000,
    ANSWER_BYTES_MAX = 256 << 10,
    BODY_BYTES_MAX = 16 << 10,
    KNOWN_MS = 600000, /* asked again after that */
    UNABLE_MS = 60000, /* after no answer that makes sense */
    ASKED_COUNT = 256, /* models whose next survey is remembered, by name */
};

/* When a model is next to be asked about. */
struct asked_model {
    uint64_t name; /* a digest */
    uint64_t worker_id;
    uint64_t due_ms; /* 0: at once; so is what is free */
};

struct place_asker {
    struct place_asker_config config;
    struct io_deadlines calls;
    struct tool_places places;
    struct asked_model asked[ASKED_COUNT];
    /* The survey under way. */
    struct worker_call *call; /* NULL: there is none */
    struct asked_model *subject;
    struct buf model; /* its name */
    struct buf body;
    unsigned question;
    struct tool_survey survey;
};

/* The model's, else the one that is due first: a free one, if there is any. */
static struct asked_model *find_asked(struct place_asker *asker, uint64_t name)
{
    struct asked_model *first = &asker->asked[0];

    for (size_t i = 0; i < array_count(asker->asked); i++) {
        struct asked_model *asked = &asker->asked[i];

        if (asked->name == name)
            return asked;
        if (asked->due_ms < first->due_ms)
            first = asked;
    }
    return first;
}

static uint64_t now_ms_of(const struct place_asker *asker)
{
    return io_loop_now_ms(asker->config.io);
}

static void end_survey(struct place_asker *asker, uint64_t rest_ms)
{
    asker->subject->due_ms = now_ms_of(asker) + rest_ms;
    buf_clear(&asker->body);
    buf_clear(&asker->model);
}

static void conclude(struct place_asker *asker)
{
    const struct slice model = buf_slice(&asker->model);
    const struct tool_layout layout = tool_survey_conclude(&asker->survey);

    if (layout.place != tool_places_find(&asker->places, asker->config.secret, model).place)
        LOG(LOG_INFO, "tool_place_learned", log_slice("model", model),
            log_text("place", tool_place_name(layout.place)));
    tool_places_set(&asker->places, asker->config.secret, model, layout);
    end_survey(asker, KNOWN_MS);
}

static void ask(struct place_asker *asker);

static void on_called(void *ctx, int error, int status, struct buf *body)
{
    struct place_asker *asker = ctx;

    asker->call = NULL;
    if (error < 0 || status != 200 ||
        tool_survey_read(&asker->survey, asker->question, asker->config.scanner, buf_slice(body)) <
            0)
        end_survey(asker, UNABLE_MS);
    else if (++asker->question == TOOL_SURVEY_QUESTION_COUNT)
        conclude(asker);
    else
        ask(asker);
}

/* The next question, or an end of it. */
static void ask(struct place_asker *asker)
{
    struct worker *worker = worker_set_find(asker->config.workers, asker->subject->worker_id);
    struct worker_call_request request = {
        .io = asker->config.io,
        .deadlines = &asker->calls,
        .target = "/tokenize",
        .authorization = asker->config.authorization,
        .piece_count = 1,
        .answer_bytes_max = ANSWER_BYTES_MAX,
    };

    buf_clear(&asker->body);
    if (tool_survey_ask(asker->question, buf_slice(&asker->model), &asker->body) == 0 &&
        worker != NULL && worker->pool != NULL) {
        request.pieces[0] = buf_slice(&asker->body);
        if (worker_call_start(worker, &request, on_called, asker, &asker->call) == 0)
            return;
    }
    end_survey(asker, UNABLE_MS);
}

void place_asker_note(struct place_asker *asker, const struct worker *worker, const char *model)
{
    const struct slice name = slice_of_string(model);
    struct asked_model *subject;
    uint64_t digest;

    if (asker->call != NULL)
        return;
    digest = digest_64(asker->config.secret, DIGEST_ROOT, name.ptr, name.len);
    subject = find_asked(asker, digest);
    if (now_ms_of(asker) < subject->due_ms)
        return;
    *subject = (struct asked_model){.name = digest, .worker_id = worker->id};
    asker->subject = subject;
    asker->question = 0;
    if (buf_append(&asker->model, name) < 0)
        end_survey(asker, UNABLE_MS);
    else
        ask(asker);
}

const struct tool_places *place_asker_places(const struct place_asker *asker)
{
    return &asker->places;
}

void place_asker_forget_worker(struct place_asker *asker, const struct worker *worker)
{
    for (size_t i = 0; i < array_count(asker->asked); i++)
        if (asker->asked[i].worker_id == worker->id)
            asker->asked[i].due_ms = 0;
}

struct place_asker *place_asker_create(struct place_asker_config config)
{
    struct place_asker *asker = calloc(1, sizeof *asker);

    if (asker == NULL)
        return NULL;
    asker->config = config;
    io_deadlines_init(&asker->calls, config.io, CALL_MS, worker_call_expired);
    buf_init(&asker->model, BODY_BYTES_MAX / 2);
    buf_init(&asker->body, BODY_BYTES_MAX);
    return asker;
}

void place_asker_close(struct place_asker *asker)
{
    if (asker->call == NULL)
        return;
    worker_call_cancel(asker->call);
    asker->call = NULL;
    end_survey(asker, UNABLE_MS);
}

void place_asker_destroy(struct place_asker *asker)
{
    if (asker == NULL)
        return;
    assert(asker->call == NULL);

    buf_release(&asker->model);
    buf_release(&asker->body);
    free(asker);
}
