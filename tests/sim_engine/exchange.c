/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/exchange.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "backends/http/http_writer.h"
#include "backends/runtime/buf.h"
#include "backends/runtime/clock.h"
#include "backends/runtime/list.h"
#include "backends/runtime/log.h"
#include "tests/sim_engine/answer_form.h"
#include "tests/sim_engine/answer_registry.h"
#include "tests/sim_engine/connection.h"
#include "tests/sim_engine/engine.h"
#include "tests/sim_engine/engine_answer.h"
#include "tests/sim_engine/generation.h"
#include "tests/sim_engine/json_text.h"
#include "tests/sim_engine/page.h"
#include "tests/sim_engine/random.h"
#include "tests/sim_engine/request_registry.h"
#include "tests/sim_engine/response_store.h"
#include "tests/sim_engine/responses_request.h"
#include "tests/sim_engine/route.h"

/*
 * DESIGN
 *
 *   on_head: keep what is needed, 100-continue, reset
 *   on_body: gather
 *   on_request: route -> parse -> choose the fault -> answer at once, or start a generation
 *   generation's events -> chunks; its end -> log, connection_finish()
 *   on_closed: a generation that is not done is aborted: the client left, the engine stops
 *
 * At most one fault acts on a request: the header's, else the first rule that hits. Heads go out
 * before the first token, as with uvicorn: a stream's status says only that the request was
 * accepted.
 */
enum { BODY_BYTES_MAX = 128 << 20, REQUEST_ID_BYTES_MAX = 128, PATH_BYTES_MAX = 256 };

struct exchange {
    struct list_node in_all; /* of the server, for its life */
    struct list *all;
    struct engine *engine;
    struct connection *connection;
    /* of the request */
    enum http_method method;
    char path[PATH_BYTES_MAX]; /* target without query; cut where longer */
    int version_minor;
    bool keep_alive;
    bool is_json;
    char request_id[REQUEST_ID_BYTES_MAX]; /* of x-request-id; "": none */
    struct buf body;
    uint64_t began_us;
    /* of the answer */
    bool has_fault;
    struct fault fault;
    struct engine_fault spec_fault; /* status 0: x-sim-fault was fine or absent */
    struct buf out;                 /* scratch */
    uint64_t event_count;           /* sent */
    bool is_mute;                   /* nothing more is sent: hanging or dying */
    uint64_t first_event_us;
    struct generation *generation;
};

static bool has_fault(const struct exchange *exchange, enum fault_kind kind)
{
    return exchange->has_fault && exchange->fault.kind == kind;
}

static enum connection_end fault_end(const struct exchange *exchange)
{
    return exchange->fault.by_reset ? CONNECTION_RST : CONNECTION_FIN;
}

static void send_out(struct exchange *exchange)
{
    if (!exchange->is_mute)
        connection_write(exchange->connection, buf_slice(&exchange->out));
    buf_clear(&exchange->out);
}

static void finish(struct exchange *exchange)
{
    if (exchange->is_mute)
        return;
    connection_finish(exchange->connection, exchange->keep_alive);
}

/* An event counts as the body here: "die after it began" and "hang after it began". */
static bool is_cut_in_body(const struct exchange *exchange)
{
    return has_fault(exchange, FAULT_DIE_AT_EVENT) || has_fault(exchange, FAULT_HANG_AT_EVENT);
}

static void answer(struct exchange *exchange, struct answer_form form, struct slice body)
{
    form.length = body.len;
    form.keep_alive = exchange->keep_alive;
    answer_form_put(&exchange->out, &form, clock_wall_ms());
    if (is_cut_in_body(exchange))
        body.len /= 2;
    text_put(&exchange->out, body);
    send_out(exchange);
    connection_flush(exchange->connection);
    exchange->is_mute = exchange->is_mute || is_cut_in_body(exchange);
    if (has_fault(exchange, FAULT_DIE_AT_EVENT))
        connection_end(exchange->connection, fault_end(exchange));
    finish(exchange);
}

static void answer_json(struct exchange *exchange, int status, struct slice body)
{
    answer(exchange, (struct answer_form){.status = status, .type = "application/json"}, body);
}

static void answer_fault(struct exchange *exchange, const struct engine_fault *fault)
{
    struct buf body;

    buf_init(&body, SIZE_MAX);
    answer_put_error(&body, fault,
                     slice_starts_with(slice_of_string(exchange->path), SLICE("/v1/messages")));
    answer(exchange,
           (struct answer_form){.status = fault->status,
                                .type = "application/json",
                                .has_retry = fault->status == 429 || fault->status == 503},
           buf_slice(&body));
    buf_release(&body);
}

static void answer_fault_status(struct exchange *exchange)
{
    struct engine_fault fault = {.status = (int)exchange->fault.arg, .type = "BadRequestError"};

    if (fault.status == 429)
        fault.type = "RateLimitError";
    else if (fault.status == 500)
        fault.type = "InternalServerError";
    else if (fault.status == 503)
        fault.type = "ServiceUnavailableError";
    snprintf(fault.message, sizeof fault.message, "The fault status=%d was asked for.",
             fault.status);
    answer_fault(exchange, &fault);
}

static void choose_fault(struct exchange *exchange, bool is_stream, bool is_early)
{
    struct engine *engine = exchange->engine;

    for (size_t i = 0; i < engine->options.fault_count && !exchange->has_fault; i++) {
        struct fault_rule *rule = &engine->rules[i];

        if (!fault_is_inner(rule->fault.kind) && (rule->fault.kind == FAULT_RESET) == is_early &&
            engine_is_aim(engine, &rule->fault) &&
            fault_rule_hits(rule, slice_of_string(exchange->path), is_stream)) {
            exchange->has_fault = true;
            exchange->fault = rule->fault;
        }
    }
    if (exchange->has_fault)
        LOG(LOG_INFO, "fault", log_text("kind", fault_name(exchange->fault.kind)),
            log_text("path", exchange->path));
}

/* Faults that take the place of an answer. false: an answer follows, perhaps maimed. */
static bool fault_acts(struct exchange *exchange)
{
    if (!exchange->has_fault)
        return false;
    switch (exchange->fault.kind) {
    case FAULT_BAD_HEAD:
        connection_write(exchange->connection, SLICE("HTTP/1.1 2OO \x01 these are\0not heads\r\n"));
        exchange->keep_alive = false;
        finish(exchange);
        return true;
    case FAULT_CLOSE_AFTER_REQUEST:
        connection_end(exchange->connection, fault_end(exchange));
        return true;
    case FAULT_EXIT:
        log_flush();
        _exit(1);
    case FAULT_HANG:
        return true;
    case FAULT_STATUS:
        answer_fault_status(exchange);
        return true;
    case FAULT_DIE_AT_BYTE:
        connection_die_after(exchange->connection, exchange->fault.arg, fault_end(exchange));
        return false;
    case FAULT_SLOW:
        connection_set_pace(exchange->connection, exchange->fault.arg);
        return false;
    default:
        return false;
    }
}

static void log_answer(const struct exchange *exchange, const char *event, const char *end)
{
    struct answer_usage usage = generation_usage(exchange->generation);
    uint64_t now_us = clock_now_us();
    bool has_ttft = exchange->first_event_us != 0; /* a stream, and it has begun */

    LOG(LOG_INFO, event, log_text("path", exchange->path), log_text("end", end),
        log_u64("prompt_tokens", usage.prompt_tokens),
        log_u64("cached_tokens", usage.cached_tokens),
        log_u64("completion_tokens", usage.completion_tokens),
        log_u64(has_ttft ? "ttft_us" : NULL, exchange->first_event_us - exchange->began_us),
        log_u64("total_us", now_us - exchange->began_us));
}

static void on_event(void *ctx, struct slice event)
{
    struct exchange *exchange = ctx;
    bool is_chunked = exchange->version_minor > 0;
    char chunk_head[HTTP_CHUNK_HEAD_BYTES_MAX];

    if (exchange->first_event_us == 0)
        exchange->first_event_us = clock_now_us();
    if (is_chunked)
        text_put(&exchange->out,
                 slice_of(chunk_head, http_write_chunk_head(chunk_head, event.len)));
    text_put(&exchange->out, event);
    if (is_chunked)
        text_put(&exchange->out, SLICE("\r\n"));
    send_out(exchange);
    connection_flush(exchange->connection);
    exchange->event_count++;
    if (is_cut_in_body(exchange) && exchange->event_count == exchange->fault.arg) {
        exchange->is_mute = true;
        if (has_fault(exchange, FAULT_DIE_AT_EVENT))
            connection_end(exchange->connection, fault_end(exchange));
    }
}

static void on_end(void *ctx, struct slice body)
{
    struct exchange *exchange = ctx;
    const char *end = generation_finish_reason(exchange->generation);

    if (strcmp(end, "length") == 0)
        exchange->engine->counts.ended_by_length++;
    else
        exchange->engine->counts.ended_by_stop++;
    exchange->engine->active_count--;
    generation_store(exchange->generation, exchange->engine->responses);
    log_answer(exchange, "answer", end);
    if (!generation_is_stream(exchange->generation)) {
        answer_json(exchange, 200, body);
        return;
    }
    if (exchange->version_minor > 0)
        text_put(&exchange->out, SLICE("0\r\n\r\n"));
    send_out(exchange);
    connection_flush(exchange->connection);
    finish(exchange);
}

static const struct generation_callbacks generation_callbacks = {on_event, on_end};

/* "chatcmpl-<x-request-id, or the body's request_id, or random>"; a response is called by its
 * request_id alone, or at random: it must be another one each time. */
static size_t make_id(struct exchange *exchange, const struct engine_request *request, char *id,
                      size_t size)
{
    bool is_response = request->api == ENGINE_RESPONSES;
    int given_len = (int)(request->id.len < 256 ? request->id.len : 256);
    const char *prefix = is_response ? "" : answer_id_prefix(request->api);
    int len;

    if (exchange->request_id[0] != '\0' && !is_response)
        len = snprintf(id, size, "%s%s", prefix, exchange->request_id);
    else if (given_len > 0)
        len = snprintf(id, size, "%s%.*s", prefix, given_len, request->id.ptr);
    else
        len = snprintf(id, size, "%s%016" PRIx64, is_response ? "resp_" : prefix,
                       random_next(&exchange->engine->random));
    assert(len >= 0 && (size_t)len < size);
    return (size_t)len;
}

static void begin_stream(struct exchange *exchange)
{
    struct answer_form form = {
        .status = 200,
        .type = "text/event-stream; charset=utf-8",
        .is_stream = true,
        .is_chunked = exchange->version_minor > 0,
    };

    if (!form.is_chunked)
        exchange->keep_alive = false;
    form.keep_alive = exchange->keep_alive;
    answer_form_put(&exchange->out, &form, clock_wall_ms());
    send_out(exchange);
    connection_flush(exchange->connection);
    if (is_cut_in_body(exchange) && exchange->fault.arg == 0) {
        exchange->is_mute = true;
        if (has_fault(exchange, FAULT_DIE_AT_EVENT))
            connection_end(exchange->connection, fault_end(exchange));
    }
}

static void generate(struct exchange *exchange, struct engine_request *request)
{
    struct engine *engine = exchange->engine;
    char id[512];
    struct generation_config config = {
        .scheduler = engine->scheduler,
        .id = slice_of(id, make_id(exchange, request, id, sizeof id)),
        .created_s = clock_wall_ms() / 1000,
        .seed = (uint64_t)engine->options.seed,
        .block_size = (uint32_t)engine->options.block_size,
        .split_share = engine->options.retokenise / 100,
        .thinks_first = engine->model.chat_template.habit == CHAT_DROP_REASONING,
        .hides_usage = has_fault(exchange, FAULT_NO_USAGE),
        .hides_done = has_fault(exchange, FAULT_NO_DONE),
    };

    if (request->is_stream)
        begin_stream(exchange);
    engine->active_count++;
    exchange->generation = generation_create(&config, request, &generation_callbacks, exchange);
    generation_open(exchange->generation);
    exchange->first_event_us = 0; /* what came now says nothing of the engine */
    engine->wake(engine->wake_ctx);
}

static void answer_page(struct exchange *exchange, const struct page *page)
{
    struct buf body;

    buf_init(&body, SIZE_MAX);
    page->put(&body, exchange->engine, clock_wall_ms() / 1000);
    answer(exchange, (struct answer_form){.status = 200, .type = page->type},
           slice_of(body.bytes, buf_len(&body)));
    buf_release(&body);
}

/* What only the tokenizer is asked. */
static void answer_tokens(struct exchange *exchange, struct engine_request *request)
{
    struct buf body;

    buf_init(&body, SIZE_MAX);
    if (request->api == ENGINE_TOKENIZE)
        answer_put_tokens(&body, &exchange->engine->model, &request->prompts[0]);
    else if (request->api == ENGINE_DETOKENIZE)
        answer_put_detokenized(&body, &request->prompts[0]);
    else
        answer_put_count(&body, &request->prompts[0]);
    engine_request_release(request);
    answer_json(exchange, 200, buf_slice(&body));
    buf_release(&body);
}

/* What has a JSON body. The fault is chosen here, where it is known how the answer is to come. */
static void handle_body(struct exchange *exchange, enum engine_api api)
{
    struct engine *engine = exchange->engine;
    struct request_reader reader = engine_reader(engine);
    struct engine_request request = {0};
    struct engine_fault fault = {0};
    struct parse_error error;
    struct json_value root = {0};
    int status;

    if (!exchange->is_json) {
        fault = (struct engine_fault){.status = 400, .type = "Bad Request", .by_schema = true};
        snprintf(fault.message, sizeof fault.message,
                 "1 validation error:\n  Unsupported Media Type: Only 'application/json' is "
                 "allowed");
        status = -1;
    } else {
        engine_set_time(engine, clock_wall_ms());
        text_put(&exchange->body, SLICE("")); /* an empty body has its padding too */
        status = json_scan(engine->scanner, buf_slice(&exchange->body), &root, &error);
        if (status < 0)
            request_refuse_json(&fault, error.offset, error.message);
        else
            status = engine_request_read(api, &reader, root, &request, &fault);
    }
    choose_fault(exchange, request.is_stream, false);
    if (fault_acts(exchange))
        engine_request_release(&request);
    else if (status < 0) {
        engine_request_release(&request);
        answer_fault(exchange, &fault);
    } else if (request.answer_tokens == 0)
        answer_tokens(exchange, &request);
    else
        generate(exchange, &request);
    json_scanner_trim(engine->scanner);
    json_scanner_trim(engine->form_scanner);
}

static void answer_method(struct exchange *exchange, enum http_method allowed)
{
    answer(exchange,
           (struct answer_form){
               .status = 405, .type = "application/json", .allow = http_method_name(allowed)},
           SLICE("{\"detail\":\"Method Not Allowed\"}"));
}

/* A response that was stored under id; cancelling is only for those that still run, which none of
 * the stored does. */
static void answer_stored(struct exchange *exchange, struct slice id, bool is_cancel)
{
    const struct stored_response *response = response_store_find(exchange->engine->responses, id);
    struct engine_fault fault;

    if (response != NULL && !is_cancel) {
        answer_json(exchange, 200, buf_slice(&response->body));
        return;
    }
    if (response == NULL) {
        (void)responses_refuse_id(&fault, id);
    } else {
        (void)request_refuse(&fault, "response_id", "Cannot cancel a synchronous response.");
        fault.type = "invalid_request_error";
    }
    answer_fault(exchange, &fault);
}

static void dispatch(struct exchange *exchange)
{
    struct route route = route_find(exchange->path);

    if (route.kind == ROUTE_BODY && exchange->method == HTTP_METHOD_POST) {
        handle_body(exchange, route.api);
        return;
    }
    choose_fault(exchange, false, false);
    if (fault_acts(exchange))
        return;
    if (route.kind == ROUTE_NONE)
        answer_json(exchange, 404, SLICE("{\"detail\":\"Not Found\"}"));
    else if (route.method != exchange->method)
        answer_method(exchange, route.method);
    else if (route.kind == ROUTE_PAGE)
        answer_page(exchange, route.page);
    else
        answer_stored(exchange, route.id, route.kind == ROUTE_CANCEL);
}

/* Forgets the request before. */
static void reset(struct exchange *exchange)
{
    generation_destroy(exchange->generation);
    exchange->generation = NULL;
    buf_release(&exchange->body);
    buf_clear(&exchange->out);
    exchange->has_fault = false;
    exchange->spec_fault.status = 0;
    exchange->event_count = 0;
    exchange->is_mute = false;
    exchange->first_event_us = 0;
}

static void copy_text(char *text, size_t size, struct slice from)
{
    snprintf(text, size, "%.*s", (int)(from.len < size ? from.len : size - 1), from.ptr);
}

static struct slice header(const struct http_head *head, struct slice name)
{
    const struct http_header *found = http_head_find(head, name);

    return found != NULL ? found->value : SLICE("");
}

static void read_fault_header(struct exchange *exchange, const struct http_head *head)
{
    struct slice spec = header(head, SLICE("x-sim-fault"));
    struct engine_fault *fault = &exchange->spec_fault;
    struct parse_error error;

    if (spec.len == 0)
        return;
    exchange->has_fault = fault_parse(spec, &exchange->fault, &error) == 0;
    if (exchange->has_fault && fault_is_inner(exchange->fault.kind)) {
        exchange->has_fault = false;
        error =
            (struct parse_error){.message = "This fault is of no request: only --fault has it."};
    } else if (exchange->has_fault) {
        exchange->has_fault = engine_is_aim(exchange->engine, &exchange->fault);
        return;
    }
    *fault = (struct engine_fault){.status = 400, .type = "BadRequestError"};
    snprintf(fault->param, sizeof fault->param, "x-sim-fault");
    snprintf(fault->message, sizeof fault->message, "x-sim-fault, at byte %zu: %s", error.offset,
             error.message);
}

static void on_head(void *ctx, const struct http_head *head)
{
    struct exchange *exchange = ctx;
    const char *query = memchr(head->target.ptr, '?', head->target.len);
    struct slice path = head->target;

    reset(exchange);
    if (query != NULL)
        path.len = (size_t)(query - path.ptr);
    copy_text(exchange->path, sizeof exchange->path, path);
    copy_text(exchange->request_id, sizeof exchange->request_id,
              header(head, SLICE("x-request-id")));
    exchange->method = head->method;
    exchange->version_minor = head->version_minor;
    exchange->keep_alive = head->keep_alive;
    exchange->is_json =
        slice_starts_with(header(head, SLICE("content-type")), SLICE("application/json"));
    exchange->began_us = clock_now_us();
    if (route_find(exchange->path).kind != ROUTE_PAGE)
        LOG(LOG_INFO, "request", log_text("path", exchange->path),
            log_text("request_id", exchange->request_id));
    read_fault_header(exchange, head);
    choose_fault(exchange, false, true);
    if (has_fault(exchange, FAULT_RESET))
        connection_end(exchange->connection, CONNECTION_RST);
    else if (head->expects_continue) {
        connection_write(exchange->connection, SLICE("HTTP/1.1 100 Continue\r\n\r\n"));
        connection_flush(exchange->connection);
    }
}

static void on_body(void *ctx, struct slice piece)
{
    struct exchange *exchange = ctx;

    text_put(&exchange->body, piece); /* the connection limits it */
}

static void on_request(void *ctx)
{
    struct exchange *exchange = ctx;

    if (exchange->spec_fault.status != 0)
        answer_fault(exchange, &exchange->spec_fault);
    else
        dispatch(exchange);
}

static void on_refused(void *ctx)
{
    struct exchange *exchange = ctx;

    reset(exchange);
    exchange->keep_alive = false;
    answer(exchange, (struct answer_form){.status = 400, .type = "text/plain; charset=utf-8"},
           SLICE("Invalid HTTP request received."));
}

static void on_closed(void *ctx)
{
    struct exchange *exchange = ctx;

    if (exchange->generation != NULL && !generation_is_done(exchange->generation)) {
        exchange->engine->counts.aborted++;
        exchange->engine->active_count--;
        log_answer(exchange, "abort", "client_left");
    }
    reset(exchange);
    buf_release(&exchange->out);
    list_remove(exchange->all, &exchange->in_all);
    free(exchange);
}

static const struct connection_callbacks connection_callbacks = {
    on_head, on_body, on_request, on_refused, on_closed,
};

void exchange_accept(uv_stream_t *listener, struct engine *engine, struct list *all)
{
    struct exchange *exchange = calloc(1, sizeof *exchange);

    assert(exchange != NULL);
    exchange->engine = engine;
    exchange->all = all;
    buf_init(&exchange->body, BODY_BYTES_MAX);
    buf_init(&exchange->out, SIZE_MAX);
    list_node_init(&exchange->in_all);
    list_append(all, &exchange->in_all);
    exchange->connection = connection_accept(listener, (uint64_t)engine->options.keep_alive_ms,
                                             &connection_callbacks, exchange);
}

void exchange_close(struct list_node *node)
{
    connection_close(container_of(node, struct exchange, in_all)->connection);
}
