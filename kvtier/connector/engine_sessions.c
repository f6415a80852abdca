/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/connector/engine_sessions.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/runtime/log.h"
#include "backends/runtime/system_random.h"
#include "kvtier/connector/engine_sessions_parts.h"

/*
 * DESIGN
 *
 * An engine is several processes: the scheduler's says what is wanted, the worker's has the memory.
 * They speak over sockets of their own, so what the scheduler said before its worker acted on it
 * may still lie unread: therefore the scheduler is read first whenever its worker wants something.
 *
 * A worker's connection is not closed while a load or a save of it is under way: an engine that
 * reads end of file takes its pages for its own again. Until then it is ENDING, and not heard. A
 * load or save of several ranks is of each of their connections.
 */

enum {
    SWEEP_MS = 1000,
    STRANGER_MS_MAX = 10000, /* to say HELLO in */
    QUEUE_BYTES_MAX = 1 << 20,
};

const char *ipc_found_why_name(enum ipc_found_why why)
{
    static const char *const names[] = {[IPC_FOUND_HIT] = "hit",
                                        [IPC_FOUND_MISS] = "miss",
                                        [IPC_FOUND_SLOWER] = "slower",
                                        [IPC_FOUND_LATER] = "later",
                                        [IPC_FOUND_NO_ROOM] = "no_room"};

    return names[why];
}

const char *ipc_refusal_name(enum ipc_refusal code)
{
    static const char *const names[] = {"",
                                        [IPC_REFUSED_VERSION] = "version",
                                        [IPC_REFUSED_BROKEN] = "broken",
                                        [IPC_REFUSED_WORKER] = "worker",
                                        [IPC_REFUSED_LAYOUT] = "layout",
                                        [IPC_REFUSED_RANKS] = "ranks",
                                        [IPC_REFUSED_BUSY] = "busy"};

    return names[code];
}

/* ---- answers ---- */

void engine_conn_answer(struct engine_conn *conn, struct ipc_message *message)
{
    struct buf *answer = &conn->sessions->answer;
    int status;

    message->boot = conn->sessions->boot;
    buf_clear(answer);
    status = ipc_message_write(answer, message);
    assert(status == 0); /* it has the room, and keeps it */
    ipc_conn_send(conn->ipc, buf_slice(answer));
}

void engine_conn_refuse(struct engine_conn *conn, enum ipc_refusal code, const char *why)
{
    struct ipc_message message = {.kind = IPC_REFUSED, .as.refused = {code, slice_of_string(why)}};

    conn->sessions->stats.refused_total[code]++;
    LOG(LOG_WARN, "engine_refused", log_text("code", ipc_refusal_name(code)), log_text("why", why));
    engine_conn_answer(conn, &message);
    engine_conn_end(conn);
}

/* ---- ends ---- */

void engine_session_leave(struct engine_session *session)
{
    assert(session->use_count > 0);

    if (--session->use_count > 0)
        return;
    assert(session->scheduler == NULL && session->present_count == 0);
    engine_requests_release(&session->requests);
    list_remove(&session->sessions->all, &session->in_all);
    free(session);
}

/* Where nothing touches its memory any more. */
static void close_conn(struct engine_conn *conn)
{
    if (conn->job_count > 0)
        return;
    ipc_conn_close(&conn->ipc);
    if (conn->session != NULL)
        engine_session_leave(conn->session);
    free(conn);
}

void engine_session_close_request(struct engine_session *session, struct engine_request *request)
{
    engine_request_let_go(request);
    engine_requests_close(&session->requests, request);
    session->sessions->stats.request_count--;
}

static void end_scheduler(struct engine_session *session)
{
    struct engine_request *request;

    engine_session_stop_reset(session);
    session->scheduler = NULL;
    session->scheduler_count++;
    while ((request = engine_requests_oldest(&session->requests)) != NULL)
        engine_session_close_request(session, request);
}

void engine_conn_end(struct engine_conn *conn)
{
    struct engine_session *session = conn->session;
    const enum engine_conn_state before = conn->state;

    if (before == ENGINE_CONN_ENDING)
        return;
    conn->state = ENGINE_CONN_ENDING;
    ipc_conn_mute(conn->ipc);
    if (before == ENGINE_CONN_NEW)
        list_remove(&conn->sessions->strangers, &conn->in_strangers);
    else if (before == ENGINE_CONN_SCHEDULER)
        end_scheduler(session);
    else
        engine_session_drop_rank(session, conn);
    close_conn(conn);
}

void engine_conn_end_job(struct engine_conn *conn)
{
    assert(conn->job_count > 0);

    conn->job_count--;
    if (conn->state == ENGINE_CONN_ENDING)
        close_conn(conn);
}

/* ---- messages ---- */

static void serve(struct engine_conn *conn, const struct ipc_message *message,
                  const struct ipc_packet *packet)
{
    struct ipc_message pong = {.kind = IPC_PONG, .as.number = message->as.number};

    switch (message->kind) {
    case IPC_HELLO:
        engine_serve_hello(conn, &message->as.hello, packet);
        break;
    case IPC_OPEN:
        engine_serve_open(conn, &message->as.open);
        break;
    case IPC_TOKENS:
        engine_serve_tokens(conn, &message->as.tokens);
        break;
    case IPC_LOOKUP:
        engine_serve_lookup(conn, &message->as.lookup);
        break;
    case IPC_TAKE:
        engine_serve_take(conn, &message->as.take);
        break;
    case IPC_CLOSE:
        engine_serve_close(conn, message->as.number.number);
        break;
    case IPC_RESET:
        engine_serve_reset(conn, message->as.number.number);
        break;
    case IPC_LOAD:
        engine_serve_load(conn, &message->as.load);
        break;
    case IPC_SAVE:
        engine_serve_save(conn, &message->as.save);
        break;
    case IPC_PING:
        engine_conn_answer(conn, &pong);
        break;
    default:
        abort(); /* engine_conn_judge() lets nothing else through */
    }
}

/* What is wrong with a message that could be read, or NULL. */
static const char *fault_of(const struct engine_conn *conn, const struct ipc_message *message,
                            const struct ipc_packet *packet)
{
    const bool is_hello = message->kind == IPC_HELLO;

    if (engine_conn_judge(conn->state, message->kind) == ENGINE_CONN_REFUSE)
        return conn->state == ENGINE_CONN_NEW ? "the first message is HELLO, and no other"
                                              : "this kind of message does not belong here";
    if (packet->fd_count > 0 && !is_hello)
        return "descriptors come with HELLO alone";
    if (message->boot != (is_hello ? 0 : conn->sessions->boot))
        return "the message is of another life of this agent: register anew";
    return NULL;
}

static void on_packet(void *ctx, struct ipc_conn *ipc, const struct ipc_packet *packet)
{
    struct engine_conn *conn = ipc_conn_data(ipc);
    struct ipc_message message;
    const char *fault;
    int status;

    (void)ctx;
    status = packet->is_cut ? -EPROTO : ipc_message_read(packet->bytes, &message);
    if (status == -EPROTONOSUPPORT) {
        engine_conn_refuse(conn, IPC_REFUSED_VERSION,
                           "this agent speaks version 1: install the connector that came with it");
        return;
    }
    fault = status < 0 ? "this is no message of the connector" : fault_of(conn, &message, packet);
    if (fault != NULL) {
        engine_conn_refuse(conn, IPC_REFUSED_BROKEN, fault);
        return;
    }
    if (conn->state == ENGINE_CONN_WORKER && conn->session->scheduler != NULL)
        ipc_conn_read(conn->session->scheduler->ipc);
    serve(conn, &message, packet);
}

static void on_end(void *ctx, struct ipc_conn *ipc)
{
    (void)ctx;
    engine_conn_end(ipc_conn_data(ipc));
}

static void on_open(void *ctx, struct ipc_conn *ipc)
{
    struct engine_sessions *sessions = ctx;
    struct engine_conn *conn = calloc(1, sizeof *conn);

    if (conn == NULL || sessions->is_closing) {
        free(conn);
        ipc_conn_close(&ipc);
        return;
    }
    *conn = (struct engine_conn){.sessions = sessions,
                                 .ipc = ipc,
                                 .state = ENGINE_CONN_NEW,
                                 .since_ms = io_loop_now_ms(sessions->config.io)};
    list_node_init(&conn->in_strangers);
    tier_clear_init(&conn->clear, engine_conn_reset_done);
    list_append(&sessions->strangers, &conn->in_strangers);
    ipc_conn_set_data(ipc, conn);
}

static const struct ipc_server_callbacks server_callbacks = {on_open, on_packet, on_end};

static struct engine_conn *first_stranger(const struct engine_sessions *sessions)
{
    return sessions->strangers.count > 0
               ? container_of(sessions->strangers.head.next, struct engine_conn, in_strangers)
               : NULL;
}

/* Who says nothing only takes a place. */
static void on_sweep(uv_timer_t *timer)
{
    struct engine_sessions *sessions = timer->data;
    const uint64_t now_ms = io_loop_now_ms(sessions->config.io);
    struct engine_conn *conn;

    while ((conn = first_stranger(sessions)) != NULL && now_ms >= conn->since_ms + STRANGER_MS_MAX)
        engine_conn_end(conn);
}

/* ---- life ---- */

static int prepare_answers(struct engine_sessions *sessions)
{
    const struct ipc_message busy = {
        .kind = IPC_REFUSED,
        .boot = sessions->boot,
        .as.refused = {IPC_REFUSED_BUSY, SLICE("too many connections: raise --ipc-clients-max")}};
    int status;

    buf_init(&sessions->answer, ENGINE_ANSWER_BYTES_MAX);
    buf_init(&sessions->busy, ENGINE_ANSWER_BYTES_MAX);
    status = buf_reserve(&sessions->answer, ENGINE_ANSWER_BYTES_MAX);
    return status == 0 ? ipc_message_write(&sessions->busy, &busy) : status;
}

static void free_sessions(struct engine_sessions *sessions)
{
    buf_release(&sessions->answer);
    buf_release(&sessions->busy);
    free(sessions);
}

int engine_sessions_create(struct engine_sessions_config config,
                           const struct engine_sessions_callbacks *callbacks, void *ctx,
                           struct engine_sessions **created, char why[IPC_SOCKET_WHY_BYTES])
{
    struct engine_sessions *sessions = calloc(1, sizeof *sessions);
    int status;

    *created = NULL;
    snprintf(why, IPC_SOCKET_WHY_BYTES, "no memory");
    if (sessions == NULL)
        return -ENOMEM;
    sessions->config = config;
    sessions->callbacks = callbacks;
    sessions->ctx = ctx;
    sessions->boot = system_random_id();
    list_init(&sessions->strangers);
    list_init(&sessions->all);
    status = prepare_answers(sessions);
    if (status == 0)
        status = ipc_server_open(config.io,
                                 (struct ipc_server_config){.path = config.path,
                                                            .group = config.group,
                                                            .conn_count_max = config.conn_count_max,
                                                            .queue_bytes_max = QUEUE_BYTES_MAX,
                                                            .busy = buf_slice(&sessions->busy)},
                                 &server_callbacks, sessions, &sessions->server, why);
    if (status < 0) {
        free_sessions(sessions);
        return status;
    }
    uv_timer_init(&config.io->loop, &sessions->sweep);
    sessions->sweep.data = sessions;
    uv_timer_start(&sessions->sweep, on_sweep, SWEEP_MS, SWEEP_MS);
    uv_timer_init(&config.io->loop, &sessions->deadline);
    sessions->deadline.data = sessions;
    *created = sessions;
    return 0;
}

/* A long prompt is computed in steps as large as the engine makes them, and each has its start. */
static double prefill_ms_per_token(const struct engine_session *session)
{
    const double tokens = session->step_tokens_max;

    return tokens > 0 ? cost_ms(cost_line_cost(&session->step), tokens) / tokens : 0;
}

struct engine_session_costs engine_session_costs(const struct engine_session *session)
{
    return (struct engine_session_costs){
        .turn_ms = cost_line_cost(&session->turn).start_ms,
        .prefill_ms_per_token = prefill_ms_per_token(session),
    };
}

struct engine_sessions_stats engine_sessions_stats(const struct engine_sessions *sessions)
{
    struct engine_sessions_stats stats = sessions->stats;

    stats.server = ipc_server_stats(sessions->server);
    for (const struct list_node *node = sessions->all.head.next; node != &sessions->all.head;
         node = node->next) {
        const struct engine_session *session = container_of(node, struct engine_session, in_all);

        stats.partial_count += session->present_count > 0 && session->layout == NULL;
    }
    return stats;
}

static void on_sweep_closed(uv_handle_t *handle)
{
    struct engine_sessions *sessions = handle->data;
    void (*on_closed)(void *ctx) = sessions->on_closed;
    void *ctx = sessions->closed_ctx;

    free_sessions(sessions);
    if (on_closed != NULL)
        on_closed(ctx);
}

static void on_deadline_closed(uv_handle_t *handle)
{
    struct engine_sessions *sessions = handle->data;

    uv_close((uv_handle_t *)&sessions->sweep, on_sweep_closed);
}

/* The last connection has gone, and with it the last session. */
static void on_server_closed(void *ctx)
{
    struct engine_sessions *sessions = ctx;

    assert(sessions->all.count == 0 && sessions->strangers.count == 0);

    uv_close((uv_handle_t *)&sessions->deadline, on_deadline_closed);
}

static void end_all(struct engine_sessions *sessions)
{
    struct engine_conn *conn;

    while ((conn = first_stranger(sessions)) != NULL)
        engine_conn_end(conn);
    for (struct list_node *node = sessions->all.head.next, *next; node != &sessions->all.head;
         node = next) {
        struct engine_session *session = container_of(node, struct engine_session, in_all);

        session->use_count++; /* it outlives the end of its conns here */
        if (session->scheduler != NULL)
            engine_conn_end(session->scheduler);
        for (uint32_t rank = 0; rank < session->rank_count; rank++) {
            if (session->ranks[rank].conn != NULL)
                engine_conn_end(session->ranks[rank].conn);
        }
        next = node->next;
        engine_session_leave(session);
    }
}

void engine_sessions_close(struct engine_sessions **closed, void (*on_closed)(void *ctx), void *ctx)
{
    struct engine_sessions *sessions = *closed;

    if (sessions == NULL)
        return;
    *closed = NULL;
    sessions->is_closing = true;
    sessions->on_closed = on_closed;
    sessions->closed_ctx = ctx;
    ipc_server_close(&sessions->server, on_server_closed, sessions);
    end_all(sessions);
}
