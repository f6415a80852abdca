/* SPDX-License-Identifier: Apache-2.0 */

/*
 * engine_sessions_parts: what the files of engine_sessions share: engine_sessions.c knows who comes
 * and goes; engine_sessions_hello.c who they are; engine_sessions_ranks.c what all ranks of an
 * engine make together; engine_sessions_scheduler.c requests, and what is found of them;
 * engine_sessions_worker.c loads and saves. Nobody else includes it.
 */
#ifndef KVTIER_CONNECTOR_ENGINE_SESSIONS_PARTS_H
#define KVTIER_CONNECTOR_ENGINE_SESSIONS_PARTS_H

#include "backends/runtime/cost_line.h"
#include "backends/runtime/list.h"
#include "kvtier/connector/engine_conn_state.h"
#include "kvtier/connector/engine_gathers.h"
#include "kvtier/connector/engine_request.h"
#include "kvtier/connector/engine_sessions.h"

enum {
    ENGINE_SAVE_BLOCKS_MAX = IPC_MESSAGE_BYTES_MAX / 4, /* of one message */
    ENGINE_ANSWER_BYTES_MAX = 2 * IPC_TEXT_BYTES_MAX,
    ENGINE_WHY_BYTES = 512,
};

struct engine_sessions {
    struct engine_sessions_config config;
    const struct engine_sessions_callbacks *callbacks;
    void *ctx;
    uint64_t boot;
    struct ipc_server *server;
    struct list strangers; /* conns that have not said HELLO, longest silent first */
    struct list all;       /* of struct engine_session */
    struct engine_sessions_stats stats;
    uv_timer_t sweep;    /* of strangers */
    uv_timer_t deadline; /* runs while a job of some session is pending */
    bool is_closing;
    void (*on_closed)(void *ctx);
    void *closed_ctx;
    struct buf answer; /* in the making */
    struct buf busy;   /* the answer to who comes when all places are taken */
    /* Of the message in hand. */
    uint8_t tiers[IPC_BLOCK_COUNT_MAX];
    uint32_t numbers[IPC_BLOCK_COUNT_MAX];
    struct tier_save saves[ENGINE_SAVE_BLOCKS_MAX];
    struct engine_export from;
};

/* One connection. */
struct engine_conn {
    struct list_node in_strangers; /* while NEW */
    struct engine_sessions *sessions;
    struct engine_session *session; /* NULL while NEW, and if it never said who it is */
    struct ipc_conn *ipc;
    enum engine_conn_state state;
    uint32_t rank; /* of a worker */
    uint64_t since_ms;
    uint32_t job_count; /* loads and saves under way: it is closed after the last */
    /* Of a scheduler. */
    struct tier_clear clear; /* under way for it */
    uint64_t reset_number;   /* of its last RESET */
    bool is_reset_owed;      /* that has no DONE yet */
};

/* What an engine that has nothing else to do adds to a load: its scheduler's step before, and that
 * behind. */
enum { ENGINE_TURN_MS = 5 };

/* A worker process of an engine. Both or none. */
struct engine_rank {
    struct engine_conn *conn; /* NULL: there is none, or it is ENDING */
    struct engine_memory *memory;
};

/* One life of an engine: all connections that say its engine_id. */
struct engine_session {
    struct list_node in_all;
    struct engine_sessions *sessions;
    uint8_t engine_id[IPC_ID_BYTES];
    size_t worker_index; /* of this agent's workers */
    uint32_t block_tokens;
    uint32_t use_count;            /* its conns, those ENDING too: it goes with the last */
    struct engine_conn *scheduler; /* NULL: none, or it is ENDING */
    uint32_t rank_count;
    uint32_t present_count; /* of its ranks */
    uint32_t block_count;   /* that those say */
    uint64_t model;         /* likewise, its checksum */
    struct engine_rank ranks[RANK_COUNT_MAX];
    struct engine_layout *layout; /* while all ranks are present */
    struct engine_memory *memory; /* likewise: of all ranks as one */
    struct engine_gathers gathers;
    struct engine_requests requests;
    uint32_t scheduler_count; /* that there were: tells their requests apart */
    struct cost_line step;    /* by tokens, learned from steps that were saved */
    uint32_t step_tokens_max; /* of these */
    struct cost_line turn;    /* what it adds to a load */
    uint32_t passed_over; /* lookups since the last probe, of which something was not worth it */
};

/* engine_sessions.c */

/* Sends message, whose boot is set here. */
void engine_conn_answer(struct engine_conn *conn, struct ipc_message *message);

/* It is heard no longer, and may be gone when this returns: nothing of it may be touched. */
void engine_conn_end(struct engine_conn *conn);

/* Says why, and ends it. */
void engine_conn_refuse(struct engine_conn *conn, enum ipc_refusal code, const char *why);

/* One job less; closes it where that was what it waited for, as engine_conn_end(). */
void engine_conn_end_job(struct engine_conn *conn);

/* It finished, or nobody speaks for it any more: with what was promised of it. */
void engine_session_close_request(struct engine_session *session, struct engine_request *request);

/* Clears its layout where its scheduler has asked for that and is not told yet that it is done:
 * begins anew, as what it has now may be another. */
void engine_session_reset(struct engine_session *session);

/* Of a conn's clear: answers its RESET. */
void engine_conn_reset_done(struct tier_clear *clear);

/* Its layout goes, or its scheduler: a clear under way tells nobody. */
void engine_session_stop_reset(struct engine_session *session);

/* One reason less for it to stay: a conn that is closed, or who looked at it. */
void engine_session_leave(struct engine_session *session);

/* Ends what was promised of it, where anything was. */
static inline void engine_request_let_go(struct engine_request *request)
{
    if (request->hold == NULL)
        return;
    tier_hold_release(&request->hold);
    engine_layout_return(&request->hold_layout);
}

/* Each serves one message of conn, after which conn may be gone. */

/* engine_sessions_ranks.c */

/* A rank that has been looked at, and what it makes of its engine. */
struct engine_arrival {
    struct engine_memory *memory; /* of the rank */
    struct engine_memory *whole;  /* of all ranks, when this one is there; NULL: others are away */
    struct engine_layout *layout; /* with whole */
};

/* Where rank's memory makes all of them: fills in whole and layout. Else nothing of it. -errno with
 * a sentence: neither. */
MUST_CHECK int engine_arrival_complete(struct engine_session *session,
                                       const struct ipc_hello *hello,
                                       struct engine_arrival *arrival, char why[ENGINE_WHY_BYTES]);

/* Puts conn into its place, which is free, and takes over all of arrival. */
void engine_session_take_rank(struct engine_session *session, struct engine_conn *conn,
                              struct engine_arrival *arrival);

/* Without conn the engine has no tiers, until all ranks are there again. Copies that are under way
 * have the memory still. */
void engine_session_drop_rank(struct engine_session *session, struct engine_conn *conn);

/* conn has said a job. Whether it is to be begun, now and for all ranks: else it waits for others,
 * or was answered, or refused. */
MUST_CHECK bool engine_conn_gather(struct engine_conn *conn, const struct engine_gather *said);

/* engine_sessions_hello.c */
void engine_serve_hello(struct engine_conn *conn, const struct ipc_hello *hello,
                        const struct ipc_packet *packet);
/* engine_sessions_scheduler.c */
void engine_serve_open(struct engine_conn *conn, const struct ipc_open *open);
void engine_serve_tokens(struct engine_conn *conn, const struct ipc_tokens *tokens);
void engine_serve_lookup(struct engine_conn *conn, const struct ipc_lookup *lookup);
void engine_serve_take(struct engine_conn *conn, const struct ipc_take *take);
void engine_serve_close(struct engine_conn *conn, uint64_t number);
void engine_serve_reset(struct engine_conn *conn, uint64_t number);
/* engine_sessions_worker.c */
/* Answers that nothing came of the job, which is counted. */
void engine_conn_answer_undone(struct engine_conn *conn, const struct engine_gather *job);
void engine_serve_load(struct engine_conn *conn, const struct ipc_load *load);
void engine_serve_save(struct engine_conn *conn, const struct ipc_save *save);

#endif
