/* SPDX-License-Identifier: Apache-2.0 */

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/runtime/log.h"
#include "hashing/checksum.h"
#include "kvtier/connector/engine_sessions_parts.h"

/*
 * DESIGN
 *
 * Everything that a HELLO says is looked at before anything of it is kept: a refusal leaves what
 * was there before. An engine that comes again before its last connection was seen to end takes
 * its place: engine_id is drawn by the engine, nobody else says it by accident. With several ranks
 * somebody may: a rank that is told to two processes. While the one lives the other is refused,
 * else they would take the place from each other for ever.
 */

enum {
    BLOCK_TOKENS_MAX = 4096,
    KEY_COUNT_MAX = 1 << 21, /* of one engine: prompts of 32 million tokens in all, 48 MiB */
    SAVE_MS = 1000,
};

/* ---- which session ---- */

static struct engine_session *find_session(const struct engine_sessions *sessions,
                                           const uint8_t engine_id[IPC_ID_BYTES])
{
    for (struct list_node *node = sessions->all.head.next; node != &sessions->all.head;
         node = node->next) {
        struct engine_session *session = container_of(node, struct engine_session, in_all);

        if (memcmp(session->engine_id, engine_id, IPC_ID_BYTES) == 0)
            return session;
    }
    return NULL;
}

/* Of an engine that nothing is known of: as measured with vLLM on small models, and as routers
 * assume. */
static const struct cost turn_prior = {.start_ms = ENGINE_TURN_MS};
static const struct cost step_prior = {.start_ms = 5, .unit_ms = 0.125};

static struct engine_session *create_session(struct engine_sessions *sessions,
                                             const struct ipc_hello *hello, size_t worker_index)
{
    struct engine_session *session = calloc(1, sizeof *session);

    if (session == NULL)
        return NULL;
    session->sessions = sessions;
    session->worker_index = worker_index;
    session->block_tokens = hello->block_tokens;
    session->rank_count = hello->rank_count;
    engine_gathers_init(&session->gathers, hello->rank_count);
    memcpy(session->engine_id, hello->engine_id, IPC_ID_BYTES);
    engine_requests_init(&session->requests,
                         (struct engine_requests_config){
                             .secret = sessions->config.secret,
                             .block_tokens = hello->block_tokens,
                             .request_count_max = sessions->config.request_count_max,
                             .key_count_max = KEY_COUNT_MAX,
                             .seed = sessions->boot,
                         });
    cost_line_init(&session->step, step_prior);
    cost_line_init(&session->turn, turn_prior);
    list_node_init(&session->in_all);
    list_append(&sessions->all, &session->in_all);
    return session;
}

static void welcome(struct engine_conn *conn)
{
    struct ipc_message message = {.kind = IPC_WELCOME,
                                  .as.welcome = {.lease_ms = conn->sessions->config.hold_ms,
                                                 .lookup_ms = IPC_LOOKUP_MS,
                                                 .save_ms = SAVE_MS,
                                                 .version = SLICE(SAMOVAR_VERSION)}};

    engine_conn_answer(conn, &message);
}

static void join(struct engine_conn *conn, struct engine_session *session,
                 enum engine_conn_state state)
{
    list_remove(&conn->sessions->strangers, &conn->in_strangers);
    conn->session = session;
    conn->state = state;
    session->use_count++;
}

/* ---- its memory ---- */

/* What the engine says of its memory, in sessions->from. NULL, or a sentence. */
static const char *read_memory(struct engine_sessions *sessions, const struct ipc_hello *hello,
                               const struct ipc_packet *packet, char why[PAGE_LAYOUT_WHY_BYTES])
{
    struct engine_export *from = &sessions->from;
    struct page_layout *pages = &from->layout;

    if (hello->device == DEVICE_HOST && packet->fd_count != hello->region_count)
        return "host memory comes with one descriptor for each region";
    if (hello->device != DEVICE_HOST && packet->fd_count > 0)
        return "memory of a device comes without descriptors";
    memset(from, 0, sizeof *from);
    from->kind = hello->device;
    memcpy(from->uuid, hello->uuid, sizeof from->uuid);
    memcpy(from->event_handle, hello->event_handle, sizeof from->event_handle);
    pages->block_count = hello->block_count;
    pages->region_count = hello->region_count;
    pages->segment_count = hello->segment_count;
    for (size_t i = 0; i < hello->region_count; i++) {
        const struct ipc_region region = ipc_hello_region(hello, i);

        pages->region_bytes[i] = region.bytes;
        from->handle_offsets[i] = region.offset;
        memcpy(from->handles[i], region.handle, DEVICE_HANDLE_BYTES);
        from->fds[i] = i < packet->fd_count ? packet->fds[i] : -1;
    }
    for (size_t i = 0; i < hello->segment_count; i++)
        pages->segments[i] = ipc_hello_segment(hello, i);
    return page_layout_check(pages, why) < 0 ? why : NULL;
}

static void log_rank(const struct engine_session *session, const struct ipc_hello *hello,
                     const struct engine_memory *memory)
{
    LOG(LOG_INFO, "engine_rank", log_u64("rank", hello->rank),
        log_u64("rank_count", hello->rank_count), log_u64("present", session->present_count),
        log_text("device", memory->device->ops->name),
        log_u64("part_bytes", memory->layout->page_bytes));
}

static void log_registered(const struct engine_session *session, const struct ipc_hello *hello)
{
    char layout[sizeof "0123456789abcdef"];

    snprintf(layout, sizeof layout, "%016" PRIx64, session->layout->fingerprint);
    LOG(LOG_INFO, "engine_registered", log_slice("engine", hello->version),
        log_slice("model", hello->model), log_text("layout", layout),
        log_text("device", session->ranks[0].memory->device->ops->name),
        log_u64("ranks", session->rank_count), log_u64("blocks", hello->block_count),
        log_u64("block_tokens", hello->block_tokens),
        log_u64("page_bytes", session->layout->page_bytes));
}

/* Whether the rank is one of this engine's: NULL, or why not. */
static const char *rank_fault(const struct engine_session *session, const struct ipc_hello *hello,
                              enum ipc_refusal *code)
{
    const struct engine_conn *before = session->ranks[hello->rank].conn;

    *code = IPC_REFUSED_RANKS;
    if (session->rank_count > 1 && before != NULL && ipc_conn_is_open(before->ipc))
        return "another process speaks for this rank of the engine";
    *code = IPC_REFUSED_LAYOUT;
    if (session->present_count > (before != NULL ? 1u : 0u) &&
        (session->block_count != hello->block_count ||
         session->model != checksum(hello->model.ptr, hello->model.len)))
        return "the ranks of one engine do not say the same model and number of blocks";
    return NULL;
}

/* The rank's memory, and where it is the last one all that follows; or a refusal. */
static bool look_at_rank(struct engine_conn *conn, struct engine_session *session,
                         const struct ipc_hello *hello, struct engine_arrival *arrival)
{
    struct engine_sessions *sessions = conn->sessions;
    struct device *device = sessions->config.devices[hello->device];
    char device_why[DEVICE_WHY_BYTES], why[ENGINE_WHY_BYTES];
    int status;

    if (device == NULL) {
        engine_conn_refuse(conn, IPC_REFUSED_LAYOUT,
                           "this agent cannot reach a GPU's memory: see its log for why");
        return false;
    }
    status = device->ops->import(device, &sessions->from, &arrival->memory, device_why);
    if (status < 0) {
        snprintf(why, sizeof why, "the engine's memory: %s", device_why);
        engine_conn_refuse(conn, IPC_REFUSED_LAYOUT, why);
        return false;
    }
    status = engine_arrival_complete(session, hello, arrival, why);
    if (status == 0)
        return true;
    engine_memory_unref(&arrival->memory);
    engine_conn_refuse(conn, status == -EBUSY ? IPC_REFUSED_BUSY : IPC_REFUSED_LAYOUT, why);
    return false;
}

static void register_worker(struct engine_conn *conn, struct engine_session *session,
                            const struct ipc_hello *hello, const struct ipc_packet *packet)
{
    struct engine_arrival arrival = {NULL, NULL, NULL};
    const struct engine_memory *memory;
    char why[PAGE_LAYOUT_WHY_BYTES];
    enum ipc_refusal code;
    const char *fault = rank_fault(session, hello, &code);

    if (fault == NULL)
        fault = read_memory(conn->sessions, hello, packet, why);
    if (fault != NULL) {
        engine_conn_refuse(conn, code, fault);
        return;
    }
    if (!look_at_rank(conn, session, hello, &arrival))
        return;
    if (session->ranks[hello->rank].conn != NULL)
        engine_conn_end(session->ranks[hello->rank].conn);
    join(conn, session, ENGINE_CONN_WORKER);
    conn->rank = hello->rank;
    session->block_count = hello->block_count;
    session->model = checksum(hello->model.ptr, hello->model.len);
    welcome(conn);
    memory = arrival.memory;
    engine_session_take_rank(session, conn, &arrival);
    if (session->rank_count > 1)
        log_rank(session, hello, memory);
    if (session->layout != NULL)
        log_registered(session, hello);
}

static void register_scheduler(struct engine_conn *conn, struct engine_session *session,
                               const struct ipc_packet *packet)
{
    if (packet->fd_count > 0) {
        engine_conn_refuse(conn, IPC_REFUSED_BROKEN, "a scheduler has no memory to give");
        return;
    }
    if (session->scheduler != NULL)
        engine_conn_end(session->scheduler);
    join(conn, session, ENGINE_CONN_SCHEDULER);
    session->scheduler = conn;
    welcome(conn);
}

/* ---- HELLO ---- */

/* session: of that engine_id, or NULL. */
static enum ipc_refusal fault_of(const struct engine_session *session,
                                 const struct ipc_hello *hello, int worker_index, const char **why)
{
    if (hello->rank_count > RANK_COUNT_MAX || hello->rank >= hello->rank_count) {
        *why = "an engine has 1 to 64 ranks, which are counted from 0";
        return IPC_REFUSED_RANKS;
    }
    if (session != NULL && session->rank_count != hello->rank_count) {
        *why = "the processes of one engine do not say the same number of ranks";
        return IPC_REFUSED_RANKS;
    }
    if (hello->block_tokens == 0 || hello->block_tokens > BLOCK_TOKENS_MAX) {
        *why = "blocks have 1 to 4096 tokens";
        return IPC_REFUSED_LAYOUT;
    }
    if (worker_index < 0) {
        *why = "this agent speaks for no worker of that name: it must be one of --advertise "
               "(without: of --engine), and be said where there are several";
        return IPC_REFUSED_WORKER;
    }
    if (session != NULL && (session->block_tokens != hello->block_tokens ||
                            session->worker_index != (size_t)worker_index)) {
        *why = "scheduler and worker of one engine do not say the same of it";
        return IPC_REFUSED_LAYOUT;
    }
    return (enum ipc_refusal)0;
}

void engine_serve_hello(struct engine_conn *conn, const struct ipc_hello *hello,
                        const struct ipc_packet *packet)
{
    struct engine_sessions *sessions = conn->sessions;
    const int worker_index = sessions->callbacks->find_worker(sessions->ctx, hello->worker);
    const char *why = NULL;
    struct engine_session *session = find_session(sessions, hello->engine_id);
    const enum ipc_refusal fault = fault_of(session, hello, worker_index, &why);

    if (fault != 0) {
        engine_conn_refuse(conn, fault, why);
        return;
    }
    if (session == NULL)
        session = create_session(sessions, hello, (size_t)worker_index);
    if (session == NULL) {
        engine_conn_refuse(conn, IPC_REFUSED_BUSY, "no memory");
        return;
    }
    session->use_count++; /* it stays while it is looked at */
    if (hello->role == IPC_WORKER)
        register_worker(conn, session, hello, packet);
    else
        register_scheduler(conn, session, packet);
    engine_session_leave(session);
}
