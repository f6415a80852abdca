/* SPDX-License-Identifier: Apache-2.0 */

#include <errno.h>

#include "backends/runtime/clock.h"
#include "backends/runtime/fault_point.h"
#include "kvtier/connector/engine_sessions_parts.h"
#include "kvtier/tiers/load_plan.h"

/*
 * DESIGN
 *
 * A request that was not taken in, or whose hold has run out, is no mistake of the engine's: what
 * it asks of it is answered as a miss. Only what contradicts itself is refused.
 *
 * A scheduler that has no room for a request asks again at every step of the engine. While it holds
 * what was found, the answer is the same and costs a look into the map; a miss ends at the first
 * block that is not held, so it is looked up anew. What was held and not worth it is worth no more
 * a moment later: that answer is kept for ANSWER_MS.
 *
 * What a load costs a request goes from TAKE, when the engine has room for it, to the TAKE of no
 * blocks by which the engine goes on. The load itself (LOAD to LOADED) the store learns; the rest
 * is the engine's turn, learned here: the way to its worker, and its step that ends behind LOADED.
 * To wait for room is no part of a load, and what it does from then on nobody tells.
 *
 * That turn is told to routers, who predict when an answer begins. Whether loading pays is weighed
 * without what it has grown to: an engine's steps are long when it computes much for others, and
 * who would compute instead of loading waits for the same steps and lengthens them.
 *
 * Only loads teach what a load takes. So what is not worth it is loaded all the same once in a
 * while: a disk that was slow for a minute would else be passed over for ever.
 */

enum { ANSWER_MS = 10, PROBE_EVERY = 16 };

/* How long one answer may put an engine off, and all answers about one request together. */
enum { LATER_MS_MAX = 250, WAITED_MS_MAX = 1000 };

/* ---- requests ---- */

/* Once, when its last token has come. */
static void tell_anchor(struct engine_session *session, const struct engine_request *request)
{
    struct engine_sessions *sessions = session->sessions;
    const uint64_t last_block = request->key_count > 0 ? request->last.low : 0;

    if (!engine_request_is_whole(request))
        return;
    sessions->stats.anchors_total++;
    sessions->callbacks->on_anchor(sessions->ctx, session->worker_index,
                                   (struct slice){request->id, request->id_len}, last_block,
                                   request->prompt_tokens);
}

void engine_serve_open(struct engine_conn *conn, const struct ipc_open *open)
{
    struct engine_sessions *sessions = conn->sessions;
    struct engine_request *request;
    int status = engine_requests_open(&conn->session->requests, open, &request);

    sessions->stats.requests_total++;
    if (status == -EPROTO) {
        engine_conn_refuse(conn, IPC_REFUSED_BROKEN,
                           "a request is opened twice, or with more tokens than its prompt has");
        return;
    }
    if (status < 0) {
        sessions->stats.requests_refused_total++;
        return;
    }
    sessions->stats.request_count++;
    tell_anchor(conn->session, request);
}

void engine_serve_tokens(struct engine_conn *conn, const struct ipc_tokens *tokens)
{
    struct engine_request *request;
    int status = engine_requests_append(&conn->session->requests, tokens, &request);

    if (status == -ENOENT)
        return;
    if (status == -EPROTO) {
        engine_conn_refuse(conn, IPC_REFUSED_BROKEN,
                           "tokens of a request have a gap, or are more than its prompt has");
        return;
    }
    if (status < 0) { /* without these the rest has no names */
        conn->sessions->stats.requests_refused_total++;
        engine_session_close_request(conn->session, request);
        return;
    }
    request->found_until_ms = 0;
    if (tokens->token_count > 0)
        tell_anchor(conn->session, request);
}

void engine_serve_close(struct engine_conn *conn, uint64_t number)
{
    struct engine_request *request = engine_requests_find(&conn->session->requests, number);

    if (request != NULL)
        engine_session_close_request(conn->session, request);
}

/* ---- RESET ---- */

void engine_conn_reset_done(struct tier_clear *clear)
{
    struct engine_conn *conn = container_of(clear, struct engine_conn, clear);
    struct ipc_message done = {.kind = IPC_DONE, .as.number = {conn->reset_number}};

    conn->is_reset_owed = false;
    engine_conn_answer(conn, &done);
}

void engine_session_stop_reset(struct engine_session *session)
{
    if (session->layout != NULL && session->scheduler != NULL)
        tier_clear_cancel(session->layout->store, &session->scheduler->clear);
}

void engine_session_reset(struct engine_session *session)
{
    struct engine_conn *scheduler = session->scheduler;

    if (scheduler == NULL || !scheduler->is_reset_owed || session->layout == NULL)
        return;
    engine_session_stop_reset(session);
    engine_layout_clear(session->layout, &scheduler->clear);
}

/* Without its workers nobody knows which pages are meant: it is done when they have come. An engine
 * uses nothing of ours before it has its DONE. */
void engine_serve_reset(struct engine_conn *conn, uint64_t number)
{
    conn->reset_number = number;
    conn->is_reset_owed = true;
    engine_session_reset(conn->session);
}

/* ---- what can be loaded ---- */

static struct load_plan plan(const struct engine_session *session, size_t matched)
{
    const struct tier_store_stats stats = tier_store_stats(session->layout->store);
    struct load_plan_query query = {
        .tiers = session->sessions->tiers,
        .block_count = matched,
        .block_tokens = session->block_tokens,
        .prefill_ms_per_token = engine_session_costs(session).prefill_ms_per_token,
    };

    for (size_t i = 0; i < BLOCK_TIER_COUNT; i++) {
        const struct tier_load_stats *load = &stats.load[i];

        query.start_ms[i] = ENGINE_TURN_MS + load->cost.start_ms;
        query.queue_ms[i] = load->queue_ms;
        query.ms_per_block[i] = load->cost.unit_ms * session->layout->page_bytes;
    }
    return load_plan_make(&query);
}

/* How many of what the tiers hold to load. */
static size_t worth_loading(struct engine_session *session, const struct engine_request *request,
                            size_t matched)
{
    const size_t count = plan(session, matched).block_count;
    const bool is_repeated = request->found.why == IPC_FOUND_SLOWER;

    if (count == matched || is_repeated || ++session->passed_over < PROBE_EVERY)
        return count;
    session->passed_over = 0;
    return matched;
}

/* What is on its way up from the SSD and will be there soon is waited for, instead of being read
 * twice. 0: not so. */
static uint32_t later_ms(const struct engine_session *session, struct engine_request *request,
                         const struct block_key *keys, size_t count)
{
    const double ms = tier_store_rising_ms(session->layout->store, keys, count);
    uint32_t later;

    if (ms == 0 || ms > LATER_MS_MAX)
        return 0;
    later = (uint32_t)ms + 1;
    if (request->waited_ms + later > WAITED_MS_MAX)
        return 0;
    request->waited_ms += later;
    return later;
}

/* What it holds and has not used before; last blocks first, as block_table_use() does. */
static void use_held(struct engine_request *request)
{
    const uint32_t first = request->hold_first;
    const uint32_t end = first + (uint32_t)tier_hold_count(request->hold);
    const uint32_t behind = request->used_end > first ? request->used_end : first;
    const uint32_t before = request->used_first < end ? request->used_first : end;

    if (behind < end)
        tier_hold_use(request->hold, behind - first, end - behind);
    if (request->used_end > first && before > first)
        tier_hold_use(request->hold, 0, before - first);
    engine_request_note_use(request, first, end);
}

/* Holds what is worth loading of the request's blocks from first on. */
static struct ipc_found look_up(struct engine_session *session, struct engine_request *request,
                                uint32_t first)
{
    struct engine_sessions *sessions = session->sessions;
    struct ipc_found found = {.request = request->number, .why = IPC_FOUND_MISS};
    const struct block_key *keys = request->keys + first;
    size_t count = engine_request_usable(request, session->block_tokens);

    count = count > first ? count - first : 0;
    if (count > IPC_BLOCK_COUNT_MAX)
        count = IPC_BLOCK_COUNT_MAX;
    if (count > 0)
        count = tier_store_match(session->layout->store, keys, count, sessions->tiers);
    if (count == 0)
        return found;
    count = worth_loading(session, request, count);
    if (count == 0) {
        found.why = IPC_FOUND_SLOWER;
        return found;
    }
    found.later_ms = later_ms(session, request, keys, count);
    if (found.later_ms > 0) {
        found.why = IPC_FOUND_LATER;
        return found;
    }
    request->hold = tier_store_hold(session->layout->store, keys, count, sessions->config.hold_ms);
    request->hold_first = first;
    if (request->hold == NULL) {
        found.why = IPC_FOUND_NO_ROOM;
        return found;
    }
    request->hold_layout = engine_layout_ref(session->layout);
    use_held(request);
    fault_point_pass(FAULT_HOLD_TAKEN);
    found.tokens = (uint32_t)tier_hold_count(request->hold) * session->block_tokens;
    found.why = IPC_FOUND_HIT;
    sessions->stats.found_blocks_total += tier_hold_count(request->hold);
    return found;
}

/* For how long the same question gets the same answer. */
static uint64_t kept_ms(const struct ipc_found *found, uint32_t hold_ms)
{
    switch (found->why) {
    case IPC_FOUND_HIT:
        return hold_ms / 2;
    case IPC_FOUND_SLOWER:
    case IPC_FOUND_NO_ROOM:
        return ANSWER_MS;
    case IPC_FOUND_MISS:
    case IPC_FOUND_LATER:
        break;
    }
    return 0;
}

static struct ipc_found look_up_anew(struct engine_session *session, struct engine_request *request,
                                     uint32_t local_tokens)
{
    const uint32_t hold_ms = session->sessions->config.hold_ms;
    const uint64_t now_ms = io_loop_now_ms(session->sessions->config.io);

    engine_request_let_go(request);
    if (request->is_saving)
        engine_layout_preempted(session->layout);
    request->is_saving = false;
    request->local_tokens = local_tokens;
    request->found = look_up(session, request, local_tokens / session->block_tokens);
    request->found_until_ms = now_ms + kept_ms(&request->found, hold_ms);
    return request->found;
}

/* The same question while its answer holds; a lease that was asked about is a lease that is
 * wanted. */
static bool is_answered(const struct engine_session *session, struct engine_request *request,
                        uint32_t local_tokens)
{
    const uint32_t hold_ms = session->sessions->config.hold_ms;
    const uint64_t now_ms = io_loop_now_ms(session->sessions->config.io);

    if (request->local_tokens != local_tokens || now_ms >= request->found_until_ms)
        return false;
    if (request->hold != NULL) {
        tier_hold_extend(request->hold, hold_ms);
        request->found_until_ms = now_ms + hold_ms / 2;
    }
    return true;
}

void engine_serve_lookup(struct engine_conn *conn, const struct ipc_lookup *lookup)
{
    struct engine_session *session = conn->session;
    struct engine_request *request = engine_requests_find(&session->requests, lookup->request);
    struct ipc_message answer = {
        .kind = IPC_FOUND, .as.found = {.request = lookup->request, .why = IPC_FOUND_NO_ROOM}};

    if (lookup->local_tokens % session->block_tokens != 0 ||
        (request != NULL && lookup->local_tokens > request->prompt_tokens)) {
        engine_conn_refuse(conn, IPC_REFUSED_BROKEN,
                           "local_tokens is no multiple of the block, or longer than the prompt");
        return;
    }
    if (request != NULL && session->layout != NULL)
        answer.as.found = is_answered(session, request, lookup->local_tokens)
                              ? request->found
                              : look_up_anew(session, request, lookup->local_tokens);
    conn->sessions->stats.lookups_total[answer.as.found.why]++;
    engine_conn_answer(conn, &answer);
}

/* It goes on with what was loaded. The load itself is no part of the engine's turn. */
static void learn_turn(struct engine_session *session, struct engine_request *request)
{
    const uint64_t us = clock_now_us() - request->taken_us;
    struct engine_sessions_stats *stats = &session->sessions->stats;

    if (request->load_us > 0 && us > request->load_us) {
        cost_line_note(&session->turn, 0, (double)(us - request->load_us) / 1e3);
        stats->turns_total++;
        stats->turn_us_total += us - request->load_us;
    }
    request->load_us = 0;
}

void engine_serve_take(struct engine_conn *conn, const struct ipc_take *take)
{
    struct engine_request *request = engine_requests_find(&conn->session->requests, take->request);
    uint64_t end = (uint64_t)take->first_block + take->block_count;

    if (request == NULL)
        return;
    if (take->block_count == 0)
        learn_turn(conn->session, request);
    else
        request->taken_us = clock_now_us();
    if (request->hold == NULL)
        return;
    request->found_until_ms = 0;
    if (take->block_count == 0 || end <= request->hold_first)
        engine_request_let_go(request);
    else if (end < request->hold_first + tier_hold_count(request->hold))
        tier_hold_trim(request->hold, 0, (size_t)(end - request->hold_first));
}
