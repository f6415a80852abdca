/* SPDX-License-Identifier: Apache-2.0 */

#include <errno.h>
#include <stdlib.h>

#include "backends/runtime/clock.h"
#include "hashing/checksum.h"
#include "kvtier/connector/engine_sessions_parts.h"

/*
 * DESIGN
 *
 * A job outlives the request, and the interest of the engine, but not the connections of its ranks:
 * each is closed behind its last job, as the engine takes end of file for "nobody touches your
 * pages".
 *
 * What is saved counts only if the engine had still been waiting when the copy was done: it goes on
 * only behind SAVED, or behind the end of its sending side, and the system is asked for that, not
 * the messages that were read so far.
 */

/* Steps that computed less tell more of their start than of tokens. */
enum { LEARN_TOKENS_MIN = 64 };

struct engine_job {
    struct engine_session *session; /* stays as long as its conns */
    struct engine_memory *memory;
    uint64_t number;
    uint64_t request;         /* of a LOAD */
    uint32_t end_block;       /* likewise: behind its last */
    uint32_t scheduler_count; /* likewise: who opened the request */
    uint32_t block_count;     /* likewise: that it asks for */
    uint64_t begun_us;
    uint32_t refused; /* of a SAVE: blocks that the store was not even asked for */
    uint32_t conn_count;
    struct engine_conn *conns[]; /* of all ranks */
};

/* ---- jobs ---- */

/* Of all ranks, which are present. */
static struct engine_job *begin_job(struct engine_session *session, uint64_t number)
{
    struct engine_job *job =
        calloc(1, sizeof *job + session->rank_count * sizeof(struct engine_conn *));

    if (job == NULL)
        return NULL;
    job->session = session;
    job->memory = engine_memory_ref(session->memory);
    job->number = number;
    job->begun_us = clock_now_us();
    job->conn_count = session->rank_count;
    for (uint32_t rank = 0; rank < session->rank_count; rank++) {
        job->conns[rank] = session->ranks[rank].conn;
        job->conns[rank]->job_count++;
    }
    session->sessions->stats.job_count++;
    return job;
}

/* Its connections and its session may be gone behind this. */
static void end_job(struct engine_job *job)
{
    job->session->sessions->stats.job_count--;
    engine_memory_unref(&job->memory);
    for (uint32_t i = 0; i < job->conn_count; i++)
        engine_conn_end_job(job->conns[i]);
    free(job);
}

/* Whether all are the engine's. */
static bool are_engine_blocks(const struct engine_session *session, struct slice engine_blocks)
{
    for (size_t i = 0; i < engine_blocks.len / 4; i++) {
        if (ipc_u32_at(engine_blocks, i) >= session->block_count)
            return false;
    }
    return true;
}

static void read_engine_blocks(struct slice engine_blocks, uint32_t *numbers)
{
    for (size_t i = 0; i < engine_blocks.len / 4; i++)
        numbers[i] = ipc_u32_at(engine_blocks, i);
}

static void refuse_blocks(struct engine_conn *conn)
{
    engine_conn_refuse(conn, IPC_REFUSED_BROKEN, "a block that the engine does not have");
}

/* ---- LOAD ---- */

static void answer_load(struct engine_conn *conn, uint64_t number, uint32_t loaded)
{
    struct ipc_message answer = {.kind = IPC_LOADED,
                                 .as.loaded = {.job = number, .block_count = loaded}};

    engine_conn_answer(conn, &answer);
}

static void answer_load_to_all(const struct engine_job *job, uint32_t loaded)
{
    for (uint32_t i = 0; i < job->conn_count; i++)
        answer_load(job->conns[i], job->number, loaded);
}

/* What was loaded to its end is the engine's now; the tier may let it go. The engine's turn is
 * learned from a load in one piece that came whole. */
static void release_loaded(const struct engine_job *job, uint32_t loaded)
{
    struct engine_session *session = job->session;
    struct engine_request *request = engine_requests_find(&session->requests, job->request);

    if (request == NULL || request->hold == NULL ||
        job->scheduler_count != session->scheduler_count)
        return;
    if (job->end_block >= request->hold_first + tier_hold_count(request->hold)) {
        if (loaded == job->block_count && loaded == tier_hold_count(request->hold))
            request->load_us = clock_now_us() - job->begun_us;
        engine_request_let_go(request);
        request->found_until_ms = 0;
    }
}

static void on_loaded(void *ctx, uint32_t loaded)
{
    struct engine_job *job = ctx;

    if (job->session->layout != NULL)
        engine_layout_hit(job->session->layout, loaded);
    release_loaded(job, loaded);
    answer_load_to_all(job, loaded);
    end_job(job);
}

static int begin_load(struct engine_session *session, const struct ipc_load *load)
{
    struct engine_request *request = engine_requests_find(&session->requests, load->request);
    struct engine_job *job;
    int status;

    if (request == NULL || request->hold == NULL || request->hold_layout != session->layout ||
        load->first_block < request->hold_first ||
        (uint64_t)load->first_block + load->block_count >
            request->hold_first + tier_hold_count(request->hold) ||
        load->block_count == 0)
        return -ESTALE;
    job = begin_job(session, load->job);
    if (job == NULL)
        return -ENOMEM;
    job->request = load->request;
    job->end_block = load->first_block + load->block_count;
    job->block_count = load->block_count;
    job->scheduler_count = session->scheduler_count;
    status = tier_store_load(session->layout->store, request->hold,
                             load->first_block - request->hold_first, load->block_count,
                             job->memory, session->sessions->numbers, on_loaded, job);
    if (status < 0)
        end_job(job);
    return status;
}

void engine_serve_load(struct engine_conn *conn, const struct ipc_load *load)
{
    struct engine_session *session = conn->session;
    struct engine_sessions *sessions = conn->sessions;
    const uint64_t what[] = {load->request, load->first_block,
                             checksum(load->engine_blocks.ptr, load->engine_blocks.len)};
    const struct engine_gather said = {.job = load->job,
                                       .kind = IPC_LOAD,
                                       .content = checksum(what, sizeof what),
                                       .block_count = load->block_count};

    if (!are_engine_blocks(session, load->engine_blocks)) {
        refuse_blocks(conn);
        return;
    }
    if (!engine_conn_gather(conn, &said))
        return;
    read_engine_blocks(load->engine_blocks, sessions->numbers);
    sessions->stats.load_jobs_total++;
    if (begin_load(session, load) < 0) {
        sessions->stats.load_jobs_refused_total++;
        for (uint32_t rank = 0; rank < session->rank_count; rank++)
            answer_load(session->ranks[rank].conn, load->job, 0);
    }
}

/* ---- SAVE ---- */

static void answer_save(struct engine_conn *conn, uint64_t number, struct tier_saved saved)
{
    struct ipc_message answer = {
        .kind = IPC_SAVED,
        .as.saved = {
            .job = number, .saved = saved.saved, .known = saved.known, .refused = saved.refused}};

    engine_conn_answer(conn, &answer);
}

void engine_conn_answer_undone(struct engine_conn *conn, const struct engine_gather *job)
{
    if (job->kind == IPC_LOAD)
        answer_load(conn, job->job, 0);
    else
        answer_save(conn, job->job, (struct tier_saved){.refused = job->block_count});
}

/* Every rank: a page of which one part may be another block's is none. */
static bool may_commit(void *ctx)
{
    const struct engine_job *job = ctx;

    for (uint32_t i = 0; i < job->conn_count; i++) {
        if (job->conns[i]->state != ENGINE_CONN_WORKER || !ipc_conn_is_open(job->conns[i]->ipc)) {
            job->session->sessions->stats.save_discarded_total++;
            return false;
        }
    }
    return true;
}

static void on_saved(void *ctx, struct tier_saved saved)
{
    struct engine_job *job = ctx;

    saved.refused += job->refused;
    for (uint32_t i = 0; i < job->conn_count; i++)
        answer_save(job->conns[i], job->number, saved);
    end_job(job);
}

/* How many blocks of one entry, from its first on, have a key and may come in. What was turned away
 * once leaves a gap: the rest of that request is of no use, and the guard is not asked again. */
static uint32_t count_admitted(const struct engine_session *session, struct engine_request *request,
                               const struct ipc_save_entry *entry)
{
    uint32_t count, admitted = 0;

    if (entry->first_block >= request->key_count)
        return 0;
    count = request->key_count - entry->first_block;
    if (count > entry->block_count)
        count = entry->block_count;
    if (!request->is_turned_away)
        admitted = (uint32_t)engine_layout_admit(session->layout,
                                                 request->keys + entry->first_block, count);
    if (admitted < count)
        request->is_turned_away = true;
    session->sessions->stats.turned_away_blocks_total += count - admitted;
    return admitted;
}

/* The blocks of one entry that may be saved, into saves; the others are counted in *refused. */
static size_t gather(const struct engine_session *session, const struct ipc_save_entry *entry,
                     struct tier_save *saves, uint32_t *refused)
{
    struct engine_request *request = engine_requests_find(&session->requests, entry->request);
    const uint32_t *engine_blocks = session->sessions->numbers;
    uint32_t count = 0;

    if (request != NULL) {
        count = count_admitted(session, request, entry);
        request->is_saving = true;
    }
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t index = entry->first_block + i;

        saves[i] = (struct tier_save){.key = request->keys[index],
                                      .depth = index,
                                      .engine_block = engine_blocks[i],
                                      .is_used = engine_request_has_used(request, index)};
        if (index > 0)
            saves[i].parent = request->keys[index - 1].name;
    }
    if (count > 0)
        engine_request_note_use(request, entry->first_block, entry->first_block + count);
    *refused += entry->block_count - count;
    return count;
}

/* All entries' blocks in sessions->saves: how many. */
static size_t gather_all(const struct engine_session *session, const struct ipc_save *save,
                         uint32_t *refused)
{
    struct engine_sessions *sessions = session->sessions;
    struct slice rest = save->entries;
    struct ipc_save_entry entry;
    size_t count = 0;

    *refused = 0;
    while (ipc_save_entry(&rest, &entry)) {
        read_engine_blocks(entry.engine_blocks, sessions->numbers);
        count += gather(session, &entry, sessions->saves + count, refused);
    }
    return count;
}

/* Whether all blocks are the engine's, and how many they are. */
static bool count_blocks(const struct engine_session *session, const struct ipc_save *save,
                         uint32_t *count)
{
    struct slice rest = save->entries;
    struct ipc_save_entry entry;

    *count = 0;
    while (ipc_save_entry(&rest, &entry)) {
        if (!are_engine_blocks(session, entry.engine_blocks))
            return false;
        *count += entry.block_count;
    }
    return true;
}

static void learn(struct engine_session *session, const struct ipc_save *save)
{
    if (save->step_tokens < LEARN_TOKENS_MIN || save->step_us == 0)
        return;
    cost_line_note(&session->step, save->step_tokens, save->step_us / 1e3);
    if (save->step_tokens > session->step_tokens_max)
        session->step_tokens_max = save->step_tokens;
}

/* -ENODATA: there is nothing to save. */
static int begin_save(struct engine_session *session, const struct ipc_save *save, size_t count,
                      uint32_t refused)
{
    struct engine_job *job;
    int status;

    if (count == 0)
        return -ENODATA;
    job = begin_job(session, save->job);
    if (job == NULL)
        return -ENOMEM;
    job->refused = refused;
    status = tier_store_save(session->layout->store, session->sessions->saves, count, job->memory,
                             may_commit, on_saved, job);
    if (status < 0)
        end_job(job);
    return status;
}

void engine_serve_save(struct engine_conn *conn, const struct ipc_save *save)
{
    struct engine_session *session = conn->session;
    struct engine_sessions *sessions = conn->sessions;
    struct engine_gather said = {.job = save->job,
                                 .kind = IPC_SAVE,
                                 .content = checksum(save->entries.ptr, save->entries.len)};
    uint32_t refused;
    size_t count;
    int status;

    if (!count_blocks(session, save, &said.block_count)) {
        refuse_blocks(conn);
        return;
    }
    if (!engine_conn_gather(conn, &said))
        return;
    count = gather_all(session, save, &refused);
    learn(session, save);
    sessions->stats.save_jobs_total++;
    status = begin_save(session, save, count, refused);
    if (status == 0)
        return;
    if (status != -ENODATA)
        sessions->stats.save_jobs_refused_total++;
    for (uint32_t rank = 0; rank < session->rank_count; rank++)
        answer_save(session->ranks[rank].conn, save->job,
                    (struct tier_saved){.refused = refused + (uint32_t)count});
}
