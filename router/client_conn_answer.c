/* SPDX-License-Identifier: Apache-2.0 */

#include "router/client_conn.h"

#include <string.h>

#include "backends/http/http_writer.h"
#include "backends/runtime/buf.h"
#include "backends/worker_set.h"
#include "router/api/api_error.h"
#include "router/cors.h"
#include "router/endpoint.h"
#include "router/relay.h"

enum {
    ANSWER_HEAD_BYTES_MAX = 4096,
    ERROR_BODY_BYTES_MAX = 16 * 1024,
    NEAR_MODEL_COUNT = 3,
    MODEL_SHOWN_BYTES = 128,
};

/* Anthropic's clients read the id from a header of its own name. */
int client_conn_write_request_id(struct buf *head, const struct client_conn *conn)
{
    struct slice id = slice_of_string(conn->record.request_id);
    int status = http_write_header(head, SLICE("x-request-id"), id);

    if (status == 0 && api_family(conn->record.api) == API_FAMILY_ANTHROPIC)
        status = http_write_header(head, SLICE("request-id"), id);
    return status;
}

static int write_answer_head(struct buf *head, const struct client_conn *conn,
                             const struct client_answer *answer, bool keep_alive)
{
    int status = http_write_status_line(head, answer->status);

    if (status == 0 && answer->content_type != NULL)
        status =
            http_write_header(head, SLICE("content-type"), slice_of_string(answer->content_type));
    if (status == 0 && answer->content_type != NULL)
        status = http_write_header_u64(head, SLICE("content-length"), answer->body.len);
    if (status == 0)
        status = client_conn_write_request_id(head, conn);
    if (status == 0 && answer->allow != NULL)
        status = http_write_header(head, SLICE("allow"), slice_of_string(answer->allow));
    if (status == 0)
        status = cors_write_headers(head, &conn->relay->config.cors_origins, conn->head);
    if (status == 0 && conn->record.method == HTTP_METHOD_OPTIONS && answer->status == 204)
        status = cors_write_preflight(head, &conn->relay->config.cors_origins, conn->head,
                                      answer->allow);
    if (status == 0 && answer->retry_after_s > 0)
        status = http_write_header_u64(head, SLICE("retry-after"), answer->retry_after_s);
    if (status == 0 && answer->should_not_retry)
        status = http_write_header(head, SLICE("x-should-retry"), SLICE("false"));
    if (status == 0 && !keep_alive)
        status = http_write_header(head, SLICE("connection"), SLICE("close"));
    return status < 0 ? status : http_write_head_end(head);
}

void client_conn_answer(struct client_conn *conn, const struct client_answer *answer,
                        enum end_reason reason)
{
    bool keep_alive = !answer->must_close && conn->may_live_on && conn->has_request_end &&
                      !conn->relay->is_draining;
    bool has_body = conn->record.method != HTTP_METHOD_HEAD && answer->body.len > 0;
    struct slice pieces[2];
    struct buf head;
    int status;

    client_conn_begin_answer(conn);
    conn->record.status = answer->status;
    buf_init(&head, ANSWER_HEAD_BYTES_MAX);
    status = write_answer_head(&head, conn, answer, keep_alive);
    if (status == 0) {
        pieces[0] = buf_slice(&head);
        pieces[1] = answer->body;
        status = client_conn_write(conn, pieces, has_body ? 2 : 1);
    }
    buf_release(&head);
    if (status < 0)
        client_conn_cut(conn, status == -ENOMEM ? END_INTERNAL : END_CLIENT_ABORT);
    else
        client_conn_answer_end(conn, keep_alive, reason);
}

/* Before a request's endpoint is known, as in a fault of its framing, it has no family: OpenAI's
 * form then, which is the default of API_OTHER. */
static struct api_error_form form_of(const struct client_conn *conn, uint64_t sequence_number)
{
    return (struct api_error_form){
        .family = api_family(conn->record.api),
        .request_id = conn->record.request_id,
        .sequence_number = sequence_number,
    };
}

void client_conn_answer_error(struct client_conn *conn, const struct api_error *error,
                              const struct client_answer *more, enum end_reason reason)
{
    struct api_error_form form = form_of(conn, 0);
    struct client_answer answer = more != NULL ? *more : (struct client_answer){0};
    struct buf body;

    buf_init(&body, ERROR_BODY_BYTES_MAX);
    if (api_error_write(&body, error, &form) < 0)
        buf_clear(&body); /* the status still says what happened */
    conn->record.error = error->code;
    answer.status = error->status;
    answer.content_type = "application/json";
    answer.body = buf_slice(&body);
    client_conn_answer(conn, &answer, reason);
    buf_release(&body);
}

static void write_model_refusal(struct buf *text, const struct worker_set *workers, struct slice id)
{
    const struct model *near[NEAR_MODEL_COUNT];
    size_t count = worker_set_near_models(workers, id, near, NEAR_MODEL_COUNT);
    int status = buf_printf(text, "There is no model '%.*s' here.",
                            (int)(id.len < MODEL_SHOWN_BYTES ? id.len : MODEL_SHOWN_BYTES), id.ptr);

    for (size_t i = 0; status == 0 && i < count; i++)
        status = buf_printf(text, "%s'%s'", i == 0 ? " Did you mean " : ", ", near[i]->id);
    if (status == 0)
        status = buf_append(text, count > 0 ? SLICE("?") : SLICE(" See /v1/models."));
    if (status < 0 || buf_append(text, slice_of("", 1)) < 0)
        buf_clear(text);
}

void client_conn_refuse_model(struct client_conn *conn, struct slice id, enum end_reason reason)
{
    struct buf text;

    buf_init(&text, 4096);
    write_model_refusal(&text, conn->relay->workers, id);
    client_conn_answer_error(
        conn,
        &(struct api_error){404, "model_not_found", "model",
                            buf_len(&text) > 0 ? text.bytes : "There is no such model here."},
        NULL, reason);
    buf_release(&text);
}

static void write_path_refusal(struct buf *text, const struct client_conn *conn)
{
    const char *near = endpoint_near(conn->endpoints, conn->head->target);
    int status = near != NULL
                     ? buf_printf(text, "There is nothing at this path. Did you mean %s?", near)
                     : buf_append(text, SLICE("There is nothing at this path. Served are "));

    for (size_t i = 0; near == NULL && status == 0 && i < conn->endpoints->count; i++) {
        if (!conn->endpoints->endpoints[i].is_prefix)
            status =
                buf_printf(text, "%s%s", i > 0 ? ", " : "", conn->endpoints->endpoints[i].path);
    }
    if (status < 0 || buf_append(text, slice_of("", 1)) < 0)
        buf_clear(text);
}

/* Only paths of ours are written: the client's own may hold anything. */
void client_conn_refuse_path(struct client_conn *conn, const struct client_answer *more)
{
    struct buf text;

    buf_init(&text, 4096);
    write_path_refusal(&text, conn);
    client_conn_refuse(
        conn, REJECT_NOT_FOUND,
        &(struct api_error){404, "not_found", NULL,
                            buf_len(&text) > 0 ? text.bytes : "There is nothing at this path."},
        more);
    buf_release(&text);
}

void client_conn_end_stream(struct client_conn *conn, const struct api_error *error,
                            uint64_t sequence_number, enum end_reason reason)
{
    struct api_error_form form = form_of(conn, sequence_number);
    char chunk_head[HTTP_CHUNK_HEAD_BYTES_MAX];
    bool is_chunked = !conn->is_close_delimited;
    struct slice pieces[3];
    struct buf event;
    int status;

    buf_init(&event, ERROR_BODY_BYTES_MAX);
    status = api_error_write_event(&event, error, &form);
    if (status == 0) {
        pieces[0] = slice_of(chunk_head, http_write_chunk_head(chunk_head, buf_len(&event)));
        pieces[1] = buf_slice(&event);
        pieces[2] = SLICE("\r\n0\r\n\r\n");
        status = client_conn_write(conn, is_chunked ? pieces : pieces + 1, is_chunked ? 3 : 1);
    }
    buf_release(&event);
    if (status < 0)
        client_conn_cut(conn, reason);
    else
        client_conn_answer_end(conn, is_chunked, reason);
}

void client_conn_refuse(struct client_conn *conn, enum reject_reason reject,
                        const struct api_error *error, const struct client_answer *more)
{
    conn->relay->stats.rejected_total[reject]++;
    conn->record.phase = ABORT_READ;
    client_conn_answer_error(conn, error, more,
                             reject == REJECT_DRAINING || reject == REJECT_OVERLOADED
                                 ? END_OVERLOADED
                                 : END_CLIENT_ERROR);
}
