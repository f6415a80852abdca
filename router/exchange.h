/* SPDX-License-Identifier: Apache-2.0 */

/*
 * exchange: one client request that an engine answers, and its answer: parse, choose, attempt,
 * relay, and the one place where it ends. exchange.c has its life and its end, exchange_parse.c the
 * body, exchange_route.c the choice, exchange_stored.c what belongs to one worker, exchange_relay.c
 * what a worker sends, exchange_learn.c what that teaches, exchange_join.c what agents are told of
 * it, exchange_keepalive.c what its client gets while the worker is silent. Loop thread only.
 */
#ifndef ROUTER_EXCHANGE_H
#define ROUTER_EXCHANGE_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/http/http_message.h"
#include "backends/runtime/arena.h"
#include "backends/runtime/buf.h"
#include "backends/runtime/deadline_list.h"
#include "backends/runtime/must_check.h"
#include "router/api/api_error.h"
#include "router/api/api_request.h"
#include "router/end_reason.h"
#include "router/metrics.h"
#include "router/poison_table.h"
#include "router/prompt/anchor_plan.h"
#include "router/prompt/answer_stream.h"
#include "router/prompt/echo_strip.h"
#include "router/prompt/prompt_stream.h"
#include "router/prompt/token_anchor.h"
#include "router/residency/residency_sync.h"
#include "router/retry.h"
#include "router/stream_filter.h"

struct attempt_notes;
struct client_conn;
struct client_handler;
struct parse_job;
struct relay;
struct worker;
struct worker_conn;

enum exchange_state {
    EXCHANGE_READ,    /* the body is arriving */
    EXCHANGE_PARSE,   /* the body is complete and being read, on a thread if it is large */
    EXCHANGE_ROUTE,   /* understood; a worker is being chosen, at first or again */
    EXCHANGE_CONNECT, /* waits for a connection to the chosen worker */
    EXCHANGE_SEND,    /* the request is on its way; no byte of an answer was passed on */
    EXCHANGE_RELAY,   /* the answer's head was passed on */
    EXCHANGE_DONE,    /* ended, whatever the outcome: nothing counts it any more */
    EXCHANGE_STATE_COUNT
};

enum exchange_event {
    EXCHANGE_EVENT_READ,     /* the body is complete */
    EXCHANGE_EVENT_PARSED,   /* and understood */
    EXCHANGE_EVENT_CHOSEN,   /* a worker is chosen and a connection on its way */
    EXCHANGE_EVENT_SENT,     /* the request was handed to a connection */
    EXCHANGE_EVENT_ANSWERED, /* the answer's head goes to the client */
    EXCHANGE_EVENT_RETRY,    /* the attempt failed and another one is due */
    EXCHANGE_EVENT_END,      /* answer complete, refused, failed, or the client left */
    EXCHANGE_EVENT_COUNT
};

/* The table of moves: the state after event, or -1 where it cannot happen. Pure. */
int exchange_state_after(enum exchange_state state, enum exchange_event event);

enum {
    EXCHANGE_TRIED_COUNT_MAX = 17,            /* retry-count-max is at most 16 */
    EXCHANGE_ANSWER_BODY_BYTES_MAX = 1 << 20, /* of an unstreamed answer kept to be read, on the
                                                 loop: text takes 0.2 ms, logprobs 1.2 */
};

/* What a worker's answer turned out to be, while its head is read. */
enum answer_kind {
    ANSWER_RELAYED,       /* goes to the client */
    ANSWER_BUSY,          /* 429 or 503: may be asked elsewhere */
    ANSWER_REFUSED_USAGE, /* 400 to a request that we had spliced */
};

struct exchange {
    struct client_conn *client;
    struct relay *relay;
    enum exchange_state state;
    struct deadline deadline; /* connect, upstream header, upstream idle: one at a time */
    struct deadline silence;  /* of the worker, as the client sees it: early head, keepalive */

    /* The request. */
    struct arena arena;          /* what lives as long as the exchange */
    struct buf body;             /* the client's bytes, until no retry is possible */
    struct parse_job *parse_job; /* has arena and body while a thread reads them; or NULL */
    struct buf request_head;     /* as sent to the worker; until it is sent */
    enum api api;
    bool wants_usage;    /* the client asked for it */
    struct slice splice; /* text put in behind the first '{', or empty */
    size_t splice_at;
    char *model_id; /* in the arena */
    uint64_t answer_tokens_max;
    struct block *blocks; /* the prompt's, end node included */
    size_t block_count;
    size_t closed_count;
    uint64_t prompt_bytes; /* of the canonical stream */
    double prompt_tokens;  /* estimated; exact for a prompt of token ids */
    bool has_exact_tokens;
    uint64_t body_session;     /* key of the session that the body names; 0: none */
    bool has_tools;            /* the model is shown some, */
    struct tool_layout layout; /* where, and what stands in front of them where that is late */
    size_t before_tools_count;
    uint64_t before_tools_bytes;
    bool has_one_prompt;     /* usage counts this prompt alone */
    bool is_pinned;          /* one worker has what it needs: exchange_stored.c */
    uint32_t pinned_worker;  /* its index */
    bool stores_response;    /* the id in its answer is to be remembered, once it is known */
    uint64_t body_name;      /* by which relay->poison knows it */
    struct anchor_plan plan; /* how it can be learned how many tokens the prompt is */

    /* The attempt at hand. */
    struct worker *worker;
    struct worker_conn *conn;
    double matched_tokens;
    uint32_t matched_count;
    double promised_tokens; /* of them: its agent, which was believed, says that they are cached and
                             * at hand. What has to be brought near may be left where it is, so
                             * nobody is blamed for it */
    uint32_t claimed_count; /* blocks that its agent claims, believed or not */
    enum residency_doubt doubt; /* why its agent was not believed */
    uint32_t making;            /* what is new in the prompt, as the guess numbers it; 0: nothing */
    double queued_tokens;       /* what worker->own.queued_tokens holds for us */
    bool is_counted;            /* worker->own counts us */
    bool is_decoding;           /* in own.decoding, not in queued_tokens any more */
    bool asks_usage;            /* this attempt's request has the splice */
    bool may_ask_ids;           /* the client says nothing of return_token_ids */
    bool asks_ids;              /* this attempt's request has that splice */
    bool were_ids_refused;      /* this worker answered 400 to it */
    struct exchange_echo *echo; /* reads and strips the ids; NULL: none were asked for */
    bool was_usage_refused;     /* this worker answered 400 to the splice */
    bool is_fresh_only;         /* after a stale connection */
    uint64_t attempt_us;
    uint32_t trial;              /* of worker_begin_attempt() */
    double given_ms;             /* what the policy noted as given to worker */
    struct attempt_notes *notes; /* what its agent is told; NULL: nothing */
    bool has_begun_notes;        /* it was decided whether */

    /* All attempts. */
    uint64_t tried[EXCHANGE_TRIED_COUNT_MAX]; /* ids of workers not to ask again */
    uint32_t tried_count;
    uint64_t hinted_id; /* worker whose agent was sent a hint last; 0: none was */
    bool has_paused;    /* a worker, which asked for it */
    struct retry_history history;
    enum attempt_failure last_failure;
    uint32_t retry_after_s; /* of a 503 of ours */
    bool has_stale_victim;  /* on a reused connection, so that it may have died by itself */
    struct poison_victim stale_victim;

    /* The answer. */
    enum answer_kind answer_kind;
    bool has_answer;        /* answer and filter are set up */
    bool has_answer_head;   /* of the attempt at hand */
    bool is_ok;             /* its status is 200 */
    bool has_events;        /* and it is a stream that can be read */
    bool has_broken_off;    /* the worker ended it where no answer ends */
    bool is_body_too_large; /* of an unstreamed answer: not kept */
    bool has_answer_end;    /* the worker's answer is complete */
    bool is_sse;
    bool is_kept_alive;  /* silence is broken by us: exchange_keepalive.c */
    bool has_pings;      /* the worker breaks it by events of its own */
    bool is_chunked;     /* towards the client */
    bool is_client_lost; /* a write failed: nothing more is written */
    bool has_no_memory;
    struct answer_stream answer;
    struct stream_filter filter;
    struct buf answer_body; /* of an unstreamed answer, to be read at its end */
    struct buf head;        /* the client's head, until the next write */
    uint64_t batch_us;      /* when the bytes being relayed came; 0: not measured */
};

/* How a client_conn hands a request over: begin() makes an exchange. */
extern const struct client_handler exchange_handler;

/* One of its waits is over (io_deadlines). */
void exchange_expired(struct deadline *deadline);

/* Its worker has been silent for long: the held head goes out; a stream is kept alive. */
void exchange_early_head_due(struct deadline *silence);
void exchange_keepalive_due(struct deadline *silence);

/* Private to exchange*.c. */

/* Moves by event; asserts that the table allows it. */
void exchange_move(struct exchange *exchange, enum exchange_event event);

/* The client left: stops the engine, frees the exchange. The caller ends the request. True: the
 * client had got the whole answer, of which only the worker's end of it was still to come. */
bool exchange_abandon(struct exchange *exchange);

/* Reads the complete body and routes it, or refuses it; a large one later. The exchange may be
 * gone. */
void exchange_parse(struct exchange *exchange);

/* It ends: what a thread is reading for it is freed when that comes back. */
void exchange_leave_parse(struct exchange *exchange);

/* Refuses it before a worker was asked: counted under reject. The exchange is gone. */
void exchange_refuse(struct exchange *exchange, enum reject_reason reject,
                     const struct api_error *error);

/* Takes from the answer what it teaches: usage, speed of tokens, the next turn's prefix. */
void exchange_learn(struct exchange *exchange);

/* Of an answer that broke off: what usage it told by then. */
void exchange_learn_usage(struct exchange *exchange);

/* Has agents told of the attempt at hand: as it is sent, where the engine itself says anchors, else
 * when its answer has begun. Each but once; later calls do nothing. */
void exchange_tell_sent(struct exchange *exchange);
void exchange_tell_begun(struct exchange *exchange);

/* The request's body will be asked about yet: it is to be kept. */
bool exchange_keeps_body(const struct exchange *exchange);

/* exchange_echo.c: whether the answer of the attempt at hand is asked for the prompt's token ids.
 * The text to splice in; empty: it is not. */
struct slice exchange_echo_splice(struct exchange *exchange);

/* Its body is to go through exchange_feed_echo() (an echo_out_fn), and without ids to on_out.
 * -ENOMEM. */
MUST_CHECK int exchange_begin_echo(struct exchange *exchange, echo_out_fn *on_out);
MUST_CHECK int exchange_feed_echo(void *exchange, struct slice bytes);

/* Has its agent told, once the ids are there. */
void exchange_tell_echo(struct exchange *exchange);
void exchange_end_echo(struct exchange *exchange);

/* For it: whether an agent is waiting for an anchor that no side call can bring, and how that agent
 * names tokens. */
bool exchange_wants_echo(struct exchange *exchange);
struct token_naming exchange_echo_naming(struct exchange *exchange);

/* What its answer said of its tokens, and what it was. */
void exchange_tell_usage(struct exchange *exchange);
void exchange_tell_answer(struct exchange *exchange, const struct block *blocks, size_t count);

/* The attempt is over: what is still being found out goes on without it. */
void exchange_end_notes(struct exchange *exchange);

/* The connection of the attempt at hand died while the worker was at work on it. */
void exchange_note_death(struct exchange *exchange);

/* The client was told no length of the answer: it may end anywhere. */
bool exchange_is_open_ended(const struct exchange *exchange);

/* Passes the answer's head on with nothing behind it yet. */
void exchange_pass_head(struct exchange *exchange);

/* Writes text of ours into a stream that stands between two events. */
void exchange_write_own(struct exchange *exchange, struct slice text);

/* Whether silence in this answer may be broken by us, of all that its head tells. */
bool exchange_may_be_kept_alive(const struct exchange *exchange);

/* Starts anew to wait until the worker has been silent for too long for its client. */
void exchange_await_silence(struct exchange *exchange);

/* The client has taken what was queued: the worker may go on. */
void exchange_client_drained(struct exchange *exchange);

/* Chooses a worker among those not tried and starts an attempt there; fails where none is left. */
void exchange_route(struct exchange *exchange);

/* A request about a stored response, by the id in its path: pins it to the worker that stores it
 * and routes it there, or refuses it. The exchange may be gone. */
void exchange_find_stored(struct exchange *exchange);

/* The request goes on from the response of that id: pins it to the worker that stores it. False: no
 * one is known to, and the exchange has ended. */
MUST_CHECK bool exchange_pin_to_previous(struct exchange *exchange, struct slice id);

/* Starts an attempt on the worker that a request is pinned to, or fails. */
void exchange_route_pinned(struct exchange *exchange);

/* Remembers the worker of the response that is being answered, as soon as its id is known. */
void exchange_note_response(struct exchange *exchange);

/* The worker has done as it was asked: forgets a response that was deleted. */
void exchange_note_deleted(struct exchange *exchange);

/* Starts an attempt on worker. -EBUSY and the like: none could be started there. */
MUST_CHECK int exchange_attempt(struct exchange *exchange, struct worker *worker);

/* Refuses it because exchange_attempt() failed with status, on every worker that may serve it. */
void exchange_refuse_connection(struct exchange *exchange, int status);

/* Whether a worker is left that may serve it and was not tried. */
bool exchange_has_other_worker(const struct exchange *exchange);

/* Sends the request over exchange->conn. */
void exchange_send(struct exchange *exchange);

/* The attempt at hand is held against its worker. */
void exchange_mark_failure(struct exchange *exchange);

/* The attempt at hand failed before anything went to the client: retries or answers error. */
void exchange_attempt_failed(struct exchange *exchange, enum attempt_failure failure);

/* Ends the attempt: counters down, connection returned, answer forgotten. */
void exchange_end_attempt(struct exchange *exchange);

/* Ends the exchange with an error: as an answer, as the stream's last event, or as a cut. */
void exchange_fail(struct exchange *exchange, const struct api_error *error,
                   enum end_reason reason);

/* Ends the attempt, frees everything; client->work is NULL afterwards. */
void exchange_destroy(struct exchange *exchange);

extern const struct worker_conn_callbacks exchange_worker_callbacks;

#endif
