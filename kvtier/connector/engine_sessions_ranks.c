/* SPDX-License-Identifier: Apache-2.0 */

#include <assert.h>
#include <stdio.h>

#include "backends/runtime/log.h"
#include "kvtier/connector/engine_sessions_parts.h"

/*
 * DESIGN
 *
 *   ranks:  0 here   1 here   2 away      nothing is found, loaded or saved
 *   ranks:  0 here   1 here   2 here      one memory, one layout: from here on nobody knows ranks
 *
 * An engine has tiers while all its ranks are here, and not a moment longer: a page is the parts of
 * all of them. A rank that goes takes along what was pending; those that had asked are answered, as
 * they may stand still. What is being copied already goes on: its job keeps the memory of all
 * ranks mapped and the connection of each open until the last byte is where it belongs.
 */

enum {
    /* For the last rank to say a SAVE: the engine stands still meanwhile, and what is left of
     * the time it gives is for the copy. */
    SAVE_GATHER_MS = 700,
    /* A LOAD stops nobody, and ranks of a pipeline come to it one step after the other. */
    LOAD_GATHER_MS = 5000,
    DEADLINE_TICK_MS = 50,
};

/* ---- all ranks as one ---- */

/* The memories of all ranks with the new one among them; false: not all are here. */
static bool collect(const struct engine_session *session, const struct ipc_hello *hello,
                    struct engine_memory *memory, struct engine_memory *ranks[RANK_COUNT_MAX])
{
    for (uint32_t rank = 0; rank < session->rank_count; rank++) {
        ranks[rank] = rank == hello->rank ? memory : session->ranks[rank].memory;
        if (ranks[rank] == NULL)
            return false;
    }
    return true;
}

static int join_memories(const struct engine_session *session,
                         struct engine_memory *const ranks[RANK_COUNT_MAX],
                         struct engine_memory **whole, char why[ENGINE_WHY_BYTES])
{
    char device_why[DEVICE_WHY_BYTES];
    int status;

    if (session->rank_count == 1) {
        *whole = engine_memory_ref(ranks[0]);
        return 0;
    }
    status = ranked_memory_create(ranks, session->rank_count, whole, device_why);
    if (status < 0)
        snprintf(why, ENGINE_WHY_BYTES, "the memory of the engine's ranks: %s", device_why);
    return status;
}

int engine_arrival_complete(struct engine_session *session, const struct ipc_hello *hello,
                            struct engine_arrival *arrival, char why[ENGINE_WHY_BYTES])
{
    struct engine_memory *ranks[RANK_COUNT_MAX];
    struct engine_layout_spec spec = {.model = hello->model,
                                      .block_tokens = hello->block_tokens,
                                      .rank_count = session->rank_count,
                                      .ranks = ranks};
    char tier_why[TIER_WHY_BYTES];
    int status;

    if (!collect(session, hello, arrival->memory, ranks))
        return 0;
    status = join_memories(session, ranks, &arrival->whole, why);
    if (status < 0)
        return status;
    spec.page_bytes = arrival->whole->layout->page_bytes;
    status = engine_layouts_acquire(session->sessions->config.layouts, &spec, &arrival->layout,
                                    tier_why);
    if (status < 0) {
        snprintf(why, ENGINE_WHY_BYTES, "%s", tier_why);
        engine_memory_unref(&arrival->whole);
    }
    return status;
}

static void attach(struct engine_session *session, struct engine_arrival *arrival)
{
    struct engine_sessions *sessions = session->sessions;

    assert(session->memory == NULL && session->layout == NULL);

    session->memory = arrival->whole;
    session->layout = arrival->layout;
    sessions->stats.engine_count++;
    sessions->stats.registered_total++;
    engine_session_reset(session);
    sessions->callbacks->on_registered(sessions->ctx, session, session->worker_index,
                                       session->layout);
}

void engine_session_take_rank(struct engine_session *session, struct engine_conn *conn,
                              struct engine_arrival *arrival)
{
    struct engine_rank *rank = &session->ranks[conn->rank];

    assert(rank->conn == NULL && rank->memory == NULL);

    *rank = (struct engine_rank){conn, arrival->memory};
    session->present_count++;
    engine_gathers_forget(&session->gathers, conn->rank);
    if (arrival->whole != NULL)
        attach(session, arrival);
    *arrival = (struct engine_arrival){NULL, NULL, NULL};
}

/* ---- what some have said ---- */

/* Nothing comes of job: those that wait for it are told. */
static void give_up(struct engine_session *session, const struct engine_gather *job)
{
    session->sessions->stats.ungathered_jobs_total++;
    for (uint32_t rank = 0; rank < session->rank_count; rank++) {
        if (engine_gather_has(job, rank) && session->ranks[rank].conn != NULL)
            engine_conn_answer_undone(session->ranks[rank].conn, job);
    }
}

static void give_up_failed(struct engine_session *session, uint64_t now_ms)
{
    struct engine_gather job;

    while (engine_gathers_take_failed(&session->gathers, now_ms, &job))
        give_up(session, &job);
}

static void detach(struct engine_session *session)
{
    struct engine_sessions *sessions = session->sessions;

    engine_session_stop_reset(session);
    engine_memory_unref(&session->memory);
    engine_layout_return(&session->layout);
    sessions->stats.engine_count--;
    sessions->callbacks->on_gone(sessions->ctx, session, session->worker_index);
}

void engine_session_drop_rank(struct engine_session *session, struct engine_conn *conn)
{
    struct engine_rank *rank = &session->ranks[conn->rank];

    assert(rank->conn == conn && session->present_count > 0);

    rank->conn = NULL;
    engine_memory_unref(&rank->memory);
    session->present_count--;
    if (session->layout == NULL)
        return;
    if (session->present_count > 0)
        LOG(LOG_WARN, "engine_incomplete", log_u64("rank", conn->rank),
            log_u64("rank_count", session->rank_count),
            log_text("effect", "no tiers for this engine until all its ranks are here"));
    detach(session);
    give_up_failed(session, UINT64_MAX);
}

/* ---- a job said ---- */

static void on_deadline(uv_timer_t *timer)
{
    struct engine_sessions *sessions = timer->data;
    const uint64_t now_ms = io_loop_now_ms(sessions->config.io);
    bool is_any_pending = false;

    for (struct list_node *node = sessions->all.head.next; node != &sessions->all.head;
         node = node->next) {
        struct engine_session *session = container_of(node, struct engine_session, in_all);

        give_up_failed(session, now_ms);
        is_any_pending |= session->gathers.count > 0;
    }
    if (!is_any_pending)
        uv_timer_stop(timer);
}

static void watch_deadlines(struct engine_sessions *sessions)
{
    if (!uv_is_active((uv_handle_t *)&sessions->deadline))
        uv_timer_start(&sessions->deadline, on_deadline, DEADLINE_TICK_MS, DEADLINE_TICK_MS);
}

/* Alone, as the others have not asked, or will not. */
static void answer_alone(struct engine_conn *conn, const struct engine_gather *said)
{
    conn->sessions->stats.ungathered_jobs_total++;
    engine_conn_answer_undone(conn, said);
}

bool engine_conn_gather(struct engine_conn *conn, const struct engine_gather *said)
{
    struct engine_session *session = conn->session;
    const uint64_t now_ms = io_loop_now_ms(conn->sessions->config.io);
    struct engine_gather job = *said;
    enum engine_gather_verdict verdict;

    if (session->layout == NULL) {
        engine_gathers_pass(&session->gathers, conn->rank, said->job);
        answer_alone(conn, said);
        return false;
    }
    job.deadline_ms = now_ms + (said->kind == IPC_SAVE ? SAVE_GATHER_MS : LOAD_GATHER_MS);
    verdict = engine_gathers_say(&session->gathers, conn->rank, &job);
    give_up_failed(session, now_ms); /* what this rank has just gone past */
    switch (verdict) {
    case ENGINE_GATHER_WHOLE:
        return true;
    case ENGINE_GATHER_WAIT:
        watch_deadlines(conn->sessions);
        return false;
    case ENGINE_GATHER_OVER:
    case ENGINE_GATHER_CROWDED:
        answer_alone(conn, said);
        return false;
    case ENGINE_GATHER_BROKEN:
        break;
    }
    engine_conn_refuse(conn, IPC_REFUSED_BROKEN,
                       "the ranks of one engine do not say the same job by the same number, or not "
                       "in the order of their numbers");
    return false;
}
