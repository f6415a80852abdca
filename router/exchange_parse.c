/* SPDX-License-Identifier: Apache-2.0 */

#include "router/exchange.h"

#include <errno.h>

#include "backends/runtime/clock.h"
#include "router/client_conn.h"
#include "router/relay.h"

/*
 * DESIGN
 *
 * Of a complete body three things are made: what the relay acts on (model, stream, where usage may
 * be spliced in), the names of its prefix, and the state that reads the answer. The scanner's
 * document and all slices into it end here; what lives longer is copied into the exchange's arena.
 */
enum {
    BODY_DOC_TRIM_BYTES = 1 << 20, /* larger documents leave their memory behind */
    BLOCK_BYTES = 256,
    CUT_BYTES_MIN = 64,
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

    exchange->relay->stats.rejected_total[REJECT_UNKNOWN_MODEL]++;
    client->record.phase = ABORT_ROUTE;
    exchange_destroy(exchange);
    client_conn_refuse_model(client, id, END_CLIENT_ERROR);
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

/* The model asked for, or the only one there is. NULL: the exchange has ended. */
static const struct model *find_model(struct exchange *exchange, struct slice id)
{
    const struct worker_set *workers = exchange->relay->workers;
    size_t count = worker_set_model_count(workers);
    const struct model *model;

    if (count == 0) {
        exchange_refuse(exchange, REJECT_NO_WORKER,
                        &(struct api_error){503, "no_worker_available", NULL,
                                            "No worker has come up yet. Try again later."});
        return NULL;
    }
    if (id.ptr == NULL && count == 1)
        return worker_set_model_at(workers, 0);
    if (id.ptr == NULL) {
        refuse_absent_model(exchange);
        return NULL;
    }
    model = worker_set_find_model(workers, id);
    if (model == NULL)
        refuse_model(exchange, id);
    return model;
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

/* Keeps of the request what lives longer than the scanner's document. */
static int keep_request(struct exchange *exchange, const struct api_request *request,
                        struct slice model_id)
{
    struct slice copy = arena_copy(&exchange->arena, model_id);

    if (copy.ptr == NULL)
        return -ENOMEM;
    exchange->model_id = (char *)(uintptr_t)copy.ptr;
    request_record_copy(exchange->client->record.model, REQUEST_MODEL_BYTES_MAX + 1, copy);
    exchange->wants_usage = request->wants_usage;
    exchange->answer_tokens_max = request->answer_tokens_max;
    exchange->splice = slice_of(NULL, 0);
    if (exchange->relay->config.usage_ask)
        exchange->splice = api_request_usage_splice(request);
    exchange->splice_at = request->object_start + 1;
    return 0;
}

/* Names the prompt's blocks. False: the exchange has ended. */
static bool name_prompt(struct exchange *exchange, const struct api_request *request)
{
    struct relay *relay = exchange->relay;
    struct prompt_stream_config config = {relay->secret, BLOCK_BYTES, CUT_BYTES_MIN};
    struct api_fault fault;
    struct prompt_blocks prompt;
    int status = prompt_stream_write(config, request, &exchange->arena,
                                     EXCHANGE_PROMPT_BLOCK_COUNT_MAX, &prompt, &fault);

    if (status == -EINVAL) {
        refuse_body(exchange, &fault);
        return false;
    }
    if (status == -ENOMEM) {
        refuse_memory(exchange);
        return false;
    }
    exchange->blocks = prompt.blocks;
    exchange->block_count = prompt.block_count;
    exchange->closed_count = prompt.closed_count;
    exchange->prompt_bytes = prompt.bytes;
    exchange->has_exact_tokens = prompt.token_ids > 0;
    exchange->has_one_prompt = request->prompt_count == 1;
    exchange->prompt_tokens = exchange->has_exact_tokens
                                  ? (double)prompt.token_ids
                                  : (double)prompt.bytes * relay->tokens_per_byte;
    exchange->client->record.prompt_block_count = (uint32_t)prompt.block_count;
    answer_stream_init(&exchange->answer, request, status == 0 ? &prompt.chain : NULL);
    exchange->has_answer = true;
    return true;
}

/* Reads the body and names its prefix. False: the exchange has ended. */
static bool understand(struct exchange *exchange)
{
    struct relay *relay = exchange->relay;
    struct api_request request;
    struct api_fault fault;
    const struct model *model;
    int status = api_request_parse(exchange->api, relay->scanner, buf_slice(&exchange->body),
                                   &request, &fault);

    if (status == -EINVAL) {
        refuse_body(exchange, &fault);
        return false;
    }
    if (status < 0) {
        refuse_memory(exchange);
        return false;
    }
    model = find_model(exchange, request.model);
    if (model == NULL)
        return false;
    request.model = slice_of_string(model->id); /* an absent one means the only one there is */
    if (keep_request(exchange, &request, request.model) < 0) {
        refuse_memory(exchange);
        return false;
    }
    return name_prompt(exchange, &request);
}

static void name_body(struct exchange *exchange)
{
    struct slice body = buf_slice(&exchange->body);
    uint64_t prompt =
        exchange->block_count > 0 ? exchange->blocks[exchange->block_count - 1].hash : 0;

    exchange->body_name = poison_body_name(exchange->relay->secret, prompt, body.ptr, body.len);
}

static void refuse_poison(struct exchange *exchange)
{
    exchange->history.was_begun = true; /* by others: it is not to be sent again */
    exchange_refuse(exchange, REJECT_POISON,
                    &(struct api_error){502, "query_of_death", NULL,
                                        "Two workers died while they served this very request, so "
                                        "that no other one gets it for now (option "
                                        "--poison-memory-ms). Change it, or ask the operator."});
}

void exchange_parse(struct exchange *exchange)
{
    struct relay *relay = exchange->relay;
    struct request_record *record = &exchange->client->record;
    bool is_large = buf_len(&exchange->body) > BODY_DOC_TRIM_BYTES;
    bool is_understood;

    if (!check_content_headers(exchange))
        return;
    if (buf_reserve(&exchange->body, 0) < 0 || exchange->body.bytes == NULL) {
        static const struct api_fault fault = {"invalid_json", "",
                                               "The body is empty. Send a JSON object."};

        refuse_body(exchange, &fault);
        return;
    }
    is_understood = understand(exchange);
    if (is_large)
        json_scanner_trim(relay->scanner);
    if (!is_understood)
        return;
    name_body(exchange);
    if (poison_table_has(&relay->poison, exchange->body_name, io_loop_now_ms(relay->io))) {
        refuse_poison(exchange);
        return;
    }
    record->parsed_us = clock_now_us();
    histogram_observe(&relay->stats.body_parse_seconds,
                      (double)(record->parsed_us - record->read_us) / 1e6);
    exchange_move(exchange, EXCHANGE_EVENT_READ);
    exchange_route(exchange);
}
