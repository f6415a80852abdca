/* SPDX-License-Identifier: Apache-2.0 */

#include "router/exchange.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "backends/runtime/clock.h"
#include "backends/thread_pool.h"
#include "router/client_conn.h"
#include "router/join/place_asker.h"
#include "router/policy/affinity.h"
#include "router/prompt/body_parse.h"
#include "router/relay.h"

/*
 * DESIGN
 *
 *   body complete --+-- small: body_parse_run() at once ---------------------+--> judge, ROUTE
 *                   |                                                        |
 *                   '-- large: submit --> body_parse_run() on a thread --> on_parsed
 *
 * A large body takes the time of many events of other streams, so it is read on a thread. What the
 * thread touches (body, arena, what is found) belongs to the job meanwhile: an exchange that ends
 * leaves it to the job, which frees it when it comes back.
 */
enum {
    INLINE_BODY_BYTES_MAX = 256 * 1024, /* about 0.1 ms */
};

struct parse_job {
    struct thread_job job;
    struct exchange *exchange; /* NULL: it has ended */
    struct relay *relay;
    struct buf body;
    struct arena arena;
    struct tool_places tool_places; /* a copy: the loop may learn others meanwhile */
    struct body_parse parse;
};

/* ---- refusals ---- */

static void refuse_body(struct exchange *exchange, const struct api_fault *fault)
{
    exchange_refuse(exchange, REJECT_BAD_REQUEST,
                    &(struct api_error){400, fault->code,
                                        fault->param[0] != '\0' ? fault->param : NULL,
                                        fault->message});
}

static void refuse_memory(struct exchange *exchange)
{
    exchange_refuse(
        exchange, REJECT_OVERLOADED,
        &(struct api_error){503, "overloaded", NULL,
                            "The router has no memory for this request. Try again later."});
}

/* Writes up to count names as "'a', 'b'". */
static void list_names(struct buf *text, const struct model *const *models, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (buf_printf(text, "%s'%s'", i > 0 ? ", " : "", models[i]->id) < 0)
            return; /* the list may end early */
    }
}

static void refuse_model(struct exchange *exchange, struct slice id)
{
    struct client_conn *client = exchange->client;
    struct arena arena = exchange->arena; /* where id lies */

    arena_init(&exchange->arena, 0);
    exchange->relay->stats.rejected_total[REJECT_UNKNOWN_MODEL]++;
    client->record.phase = ABORT_PARSE;
    exchange_destroy(exchange);
    client_conn_refuse_model(client, id, END_CLIENT_ERROR);
    arena_release(&arena);
}

static void refuse_absent_model(struct exchange *exchange)
{
    const struct model *models[8];
    size_t count = worker_set_model_count(exchange->relay->workers);
    struct buf text;

    if (count > array_count(models))
        count = array_count(models);
    for (size_t i = 0; i < count; i++)
        models[i] = worker_set_model_at(exchange->relay->workers, i);
    buf_init(&text, 2048);
    if (buf_append(&text, SLICE("Several models are served here: name one as 'model', for "
                                "example ")) == 0)
        list_names(&text, models, count);
    if (buf_append(&text, slice_of(".", 2)) < 0)
        buf_clear(&text);
    exchange_refuse(
        exchange, REJECT_BAD_REQUEST,
        &(struct api_error){400, "missing_field", "model",
                            buf_len(&text) > 0 ? text.bytes : "Name a model as 'model'."});
    buf_release(&text);
}

/* The model of a body that names none: the only one there is. */
static struct slice default_model(const struct relay *relay)
{
    if (worker_set_model_count(relay->workers) != 1)
        return slice_of(NULL, 0);
    return slice_of_string(worker_set_model_at(relay->workers, 0)->id);
}

/* Whether the model asked for is served here. False: the exchange has ended. */
static bool check_model(struct exchange *exchange, struct slice id)
{
    const struct worker_set *workers = exchange->relay->workers;

    if (worker_set_model_count(workers) == 0)
        exchange_refuse(exchange, REJECT_NO_WORKER,
                        &(struct api_error){503, "no_worker_available", NULL,
                                            "No worker has come up yet. Try again later."});
    else if (id.ptr == NULL)
        refuse_absent_model(exchange);
    else if (worker_set_find_model(workers, id) == NULL)
        refuse_model(exchange, id);
    else
        return true;
    return false;
}

/* Bodies are JSON, plain. True: they are; else the exchange has ended. */
static bool check_content_headers(struct exchange *exchange)
{
    const struct http_head *head = exchange->client->head;
    const struct http_header *type = http_head_find(head, SLICE("Content-Type"));
    const struct http_header *encoding = http_head_find(head, SLICE("Content-Encoding"));
    struct slice json = SLICE("application/json");
    const char *message = NULL;

    if (encoding != NULL && !slice_eq_nocase(encoding->value, SLICE("identity")))
        message = "Compressed request bodies are not supported; send it without Content-Encoding.";
    else if (type != NULL && (type->value.len < json.len ||
                              !slice_eq_nocase(slice_of(type->value.ptr, json.len), json)))
        message = "The body must be JSON: send Content-Type: application/json.";
    if (message == NULL)
        return true;
    exchange_refuse(exchange, REJECT_BAD_REQUEST,
                    &(struct api_error){415, "unsupported_media_type", NULL, message});
    return false;
}

/* ---- what was found ---- */

static void keep_request(struct exchange *exchange, const struct api_request *request)
{
    exchange->model_id = (char *)(uintptr_t)request->model.ptr;
    request_record_copy(exchange->client->record.model, REQUEST_MODEL_BYTES_MAX + 1,
                        request->model);
    exchange->wants_usage = request->wants_usage;
    exchange->answer_tokens_max = request->answer_tokens_max;
    if (request->session_key.len > 0)
        exchange->body_session =
            affinity_session(request->session_key.ptr, request->session_key.len);
    exchange->splice = slice_of(NULL, 0);
    if (exchange->relay->config.usage_ask)
        exchange->splice = api_request_usage_splice(request);
    exchange->splice_at = request->object_start + 1;
    exchange->may_ask_ids = (request->api == API_CHAT || request->api == API_COMPLETIONS) &&
                            !request->has_return_token_ids && !request->is_object_empty;
}

/* Of a body whose prompt has no names: what it may cost an engine. */
static double unnamed_tokens(const struct exchange *exchange)
{
    switch (exchange->api) {
    case API_COUNT_TOKENS:
    case API_TOKENIZE:
    case API_DETOKENIZE:
        return 0; /* never comes to the model */
    default:
        return (double)buf_len(&exchange->body) * exchange->relay->tokens_per_byte;
    }
}

static void keep_prompt(struct exchange *exchange, const struct body_parse *parse)
{
    const struct prompt_blocks *prompt = &parse->prompt;
    bool is_named = prompt->block_count > 0;

    exchange->blocks = prompt->blocks;
    exchange->block_count = prompt->block_count;
    exchange->closed_count = prompt->closed_count;
    exchange->prompt_bytes = prompt->bytes;
    exchange->has_exact_tokens = prompt->token_ids > 0;
    exchange->has_tools = parse->has_tools;
    exchange->layout = parse->layout;
    exchange->before_tools_count = prompt->before_tools_count;
    exchange->before_tools_bytes = prompt->before_tools_bytes;
    exchange->has_one_prompt = parse->request.prompt_count == 1;
    exchange->prompt_tokens = exchange->has_exact_tokens ? (double)prompt->token_ids
                              : is_named ? (double)prompt->bytes * exchange->relay->tokens_per_byte
                                         : unnamed_tokens(exchange);
    exchange->plan = parse->plan;
    exchange->client->record.prompt_block_count = (uint32_t)prompt->block_count;
    /* Of a prompt that was named in part only, the answer continues nothing. */
    answer_stream_init(&exchange->answer, &parse->request,
                       parse->prompt_status == 0 && is_named ? &prompt->chain : NULL);
    exchange->has_answer = true;
}

/* Takes what was found, or refuses. False: the exchange has ended. */
static bool judge(struct exchange *exchange, const struct body_parse *parse)
{
    int status = parse->request_status;

    if (status == 0) {
        if (!check_model(exchange, parse->request.model))
            return false;
        status = parse->prompt_status;
    }
    if (status == -EINVAL) {
        refuse_body(exchange, &parse->fault);
        return false;
    }
    if (status == -ENOMEM) {
        refuse_memory(exchange);
        return false;
    }
    assert(status == 0 || status == -ENOBUFS); /* without a model it has ended by now */
    keep_request(exchange, &parse->request);
    keep_prompt(exchange, parse);
    exchange->stores_response = parse->request.is_stored;
    return parse->request.previous_response_id.ptr == NULL ||
           exchange_pin_to_previous(exchange, parse->request.previous_response_id);
}

static void name_body(struct exchange *exchange)
{
    struct slice body = buf_slice(&exchange->body);
    uint64_t prompt =
        exchange->block_count > 0 ? exchange->blocks[exchange->block_count - 1].hash : 0;

    exchange->body_name = poison_body_name(exchange->relay->secret, prompt, body.ptr, body.len);
}

/* False: it is poison, and refused. */
static bool pass_poison(struct exchange *exchange)
{
    struct relay *relay = exchange->relay;
    enum poison_verdict verdict =
        poison_table_ask(&relay->poison, exchange->body_name, io_loop_now_ms(relay->io));

    if (verdict == POISON_TRIAL) /* one more death, and it goes to nobody else */
        exchange->history.death_count = POISON_VICTIM_COUNT - 1;
    if (verdict != POISON_REFUSED)
        return true;
    exchange->history.was_begun = true; /* by others: it is not to be sent again */
    exchange_refuse(exchange, REJECT_POISON,
                    &(struct api_error){502, "query_of_death", NULL,
                                        "Two workers died while they served this very request, so "
                                        "that no other one gets it for now (option "
                                        "--poison-memory-ms). Change it, or ask the operator."});
    return false;
}

static void take_parse(struct exchange *exchange, const struct body_parse *parse)
{
    struct request_record *record = &exchange->client->record;
    struct relay *relay = exchange->relay;

    if (!judge(exchange, parse))
        return;
    name_body(exchange);
    if (!pass_poison(exchange))
        return;
    record->parsed_us = clock_now_us();
    histogram_observe(&relay->stats.body_parse_seconds,
                      (double)(record->parsed_us - record->read_us) / 1e6);
    exchange_move(exchange, EXCHANGE_EVENT_PARSED);
    exchange_route(exchange);
}

/* ---- on a thread ---- */

static void free_job(struct parse_job *job)
{
    arena_release(&job->arena);
    buf_release(&job->body);
    free(job);
}

static void run_parse(struct thread_job *thread_job, void *scanner)
{
    struct parse_job *job = container_of(thread_job, struct parse_job, job);

    body_parse_run(&job->parse, scanner);
    if (job->parse.request_status < 0) /* giving back a large mapping takes the loop's time too */
        buf_release(&job->body);
}

static void on_parsed(struct thread_job *thread_job)
{
    struct parse_job *job = container_of(thread_job, struct parse_job, job);
    struct exchange *exchange = job->exchange;

    job->relay->stats.parse_jobs--;
    if (exchange != NULL) {
        exchange->parse_job = NULL;
        exchange->body = job->body;
        exchange->arena = job->arena;
        buf_init(&job->body, 0);
        arena_init(&job->arena, 0);
        take_parse(exchange, &job->parse);
    }
    free_job(job);
}

void exchange_leave_parse(struct exchange *exchange)
{
    struct parse_job *job = exchange->parse_job;

    if (job == NULL)
        return;
    exchange->parse_job = NULL;
    job->exchange = NULL;
    if (thread_pool_cancel(job->relay->parse_threads, &job->job)) {
        job->relay->stats.parse_jobs--;
        free_job(job);
    }
}

static struct parse_job *make_job(struct exchange *exchange)
{
    struct relay *relay = exchange->relay;
    struct parse_job *job = calloc(1, sizeof *job);
    struct slice model = default_model(relay);

    if (job != NULL && model.ptr != NULL) /* its own copy: models come and go on the loop */
        model = arena_copy(&exchange->arena, model);
    if (job == NULL || (model.ptr == NULL && worker_set_model_count(relay->workers) == 1)) {
        free(job);
        return NULL;
    }
    thread_job_init(&job->job, run_parse, on_parsed);
    job->exchange = exchange;
    job->relay = relay;
    job->body = exchange->body;
    job->arena = exchange->arena;
    buf_init(&exchange->body, 0);
    arena_init(&exchange->arena, 0);
    job->tool_places = *place_asker_places(relay->place_asker);
    job->parse = (struct body_parse){.api = exchange->api,
                                     .body = buf_slice(&job->body),
                                     .default_model = model,
                                     .secret = relay->secret,
                                     .tool_places = &job->tool_places,
                                     .arena = &job->arena,
                                     .wants_plan = relay->join != NULL};
    return job;
}

static void parse_on_thread(struct exchange *exchange)
{
    static const struct api_error queue_is_full = {
        503, "overloaded", NULL,
        "Too many large bodies wait to be read (option --parse-queue-max). Try again later."};
    static const struct api_error has_no_thread = {
        503, "overloaded", NULL,
        "The system gives the router no thread to read a large body with. Try again later."};
    struct relay *relay = exchange->relay;
    struct parse_job *job = make_job(exchange);
    int status = job != NULL ? thread_pool_submit(relay->parse_threads, &job->job) : -ENOMEM;

    if (job == NULL) {
        refuse_memory(exchange);
    } else if (status < 0) {
        free_job(job);
        relay->stats.parse_jobs_refused_total++;
        exchange_refuse(exchange, REJECT_OVERLOADED,
                        status == -EBUSY ? &queue_is_full : &has_no_thread);
    } else {
        exchange->parse_job = job;
        relay->stats.parse_jobs++;
        relay->stats.parse_jobs_total++;
    }
}

void exchange_parse(struct exchange *exchange)
{
    static const struct api_fault empty = {"invalid_json", "",
                                           "The body is empty. Send a JSON object."};
    struct relay *relay = exchange->relay;

    exchange_move(exchange, EXCHANGE_EVENT_READ);
    if (!check_content_headers(exchange))
        return;
    if (buf_len(&exchange->body) == 0) {
        refuse_body(exchange, &empty);
    } else if (relay->parse_threads != NULL && buf_len(&exchange->body) > INLINE_BODY_BYTES_MAX) {
        parse_on_thread(exchange);
    } else {
        struct body_parse parse = {.api = exchange->api,
                                   .body = buf_slice(&exchange->body),
                                   .default_model = default_model(relay),
                                   .secret = relay->secret,
                                   .tool_places = place_asker_places(relay->place_asker),
                                   .arena = &exchange->arena,
                                   .wants_plan = relay->join != NULL};

        body_parse_run(&parse, relay->scanner);
        take_parse(exchange, &parse);
    }
}
