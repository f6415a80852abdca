/* SPDX-License-Identifier: Apache-2.0 */

/*
 * engine_sessions: the engines of this node as their connectors speak for them: who is there, which
 * requests they have, what of these may be loaded, and the loads and saves themselves. All that an
 * engine has here ends with its connections. It moves no bytes: tier_store does. Loop thread only.
 */
#ifndef KVTIER_CONNECTOR_ENGINE_SESSIONS_H
#define KVTIER_CONNECTOR_ENGINE_SESSIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/io_loop.h"
#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"
#include "kvtier/connector/engine_layouts.h"
#include "kvtier/connector/ipc_server.h"
#include "kvtier/connector/ipc_wire.h"
#include "kvtier/device/device.h"

struct engine_sessions;
struct engine_session;

/* May not call the sessions. */
struct engine_sessions_callbacks {
    /* Which worker of this agent an engine is that calls itself so; -ENOENT: none. */
    int (*find_worker)(void *ctx, struct slice name);
    /* The worker's engine has its pages in the tiers of layout from now on, or no longer. An engine
     * that came again may be registered before its last life is gone: they differ by session. */
    void (*on_registered)(void *ctx, const struct engine_session *session, size_t worker,
                          const struct engine_layout *layout);
    void (*on_gone)(void *ctx, const struct engine_session *session, size_t worker);
    /* All tokens of a prompt are known: what the engine calls its request, how many they are, and
     * the name (.low) of the last full block, 0: none is full. */
    void (*on_anchor)(void *ctx, size_t worker, struct slice id, uint64_t last_block,
                      uint32_t prompt_tokens);
};

struct engine_sessions_config {
    struct io_loop *io;
    const uint8_t *secret; /* DIGEST_SECRET_BYTES; borrowed */
    const char *path;      /* of the socket; borrowed for the call */
    gid_t group;           /* as ipc_server_config's */
    uint32_t conn_count_max;
    uint32_t request_count_max;     /* that one engine may have open */
    uint32_t hold_ms;               /* for which what was FOUND stays */
    struct device *devices[2];      /* by enum device_kind; NULL: there is none. Borrowed */
    struct engine_layouts *layouts; /* borrowed until closed */
};

enum { IPC_FOUND_WHY_COUNT = IPC_FOUND_NO_ROOM + 1, IPC_REFUSAL_COUNT = IPC_REFUSED_BUSY + 1 };

/* row(field): counters, from the start on. */
#define ENGINE_SESSIONS_COUNTERS(row)                                                              \
    row(registered_total)            /* times that an engine's memory was there, of all ranks */   \
        row(requests_total)          /* opened */                                                  \
        row(requests_refused_total)  /* not taken in: too many, or too long */                     \
        row(anchors_total)           /* prompts that became whole */                               \
        row(found_blocks_total)      /* promised to engines */                                     \
        row(load_jobs_total)         /* LOADs */                                                   \
        row(load_jobs_refused_total) /* of these, that were not begun */                           \
        row(save_jobs_total) row(save_jobs_refused_total) row(save_discarded_total)                \
            row(turned_away_blocks_total)   /* of saves, for the guard's sake */                   \
        row(ungathered_jobs_total)          /* LOADs and SAVEs that not all ranks had said */      \
        row(turns_total) row(turn_us_total) /* loads of which the engine's part is known */

#define ENGINE_SESSIONS_COUNTER(field) uint64_t field;
struct engine_sessions_stats {
    ENGINE_SESSIONS_COUNTERS(ENGINE_SESSIONS_COUNTER)
    uint64_t lookups_total[IPC_FOUND_WHY_COUNT];
    uint64_t refused_total[IPC_REFUSAL_COUNT];
    uint32_t engine_count;  /* whose memory is here, of all ranks, now */
    uint32_t partial_count; /* of whose ranks some are here, and not all */
    uint32_t request_count; /* open now */
    uint32_t job_count;     /* loads and saves under way */
    struct ipc_server_stats server;
};
#undef ENGINE_SESSIONS_COUNTER

const char *ipc_found_why_name(enum ipc_found_why why);
const char *ipc_refusal_name(enum ipc_refusal code);

/* Listens for engines. -errno with a sentence in why. */
MUST_CHECK int engine_sessions_create(struct engine_sessions_config config,
                                      const struct engine_sessions_callbacks *callbacks, void *ctx,
                                      struct engine_sessions **sessions,
                                      char why[IPC_SOCKET_WHY_BYTES]);

/* What is learned of one engine, for whoever weighs loading against computing. */
struct engine_session_costs {
    double turn_ms; /* that it adds to any load: its scheduler's step before, and that behind */
    double prefill_ms_per_token; /* of a long prompt, the starts of steps included; 0: not known */
};
struct engine_session_costs engine_session_costs(const struct engine_session *session);

struct engine_sessions_stats engine_sessions_stats(const struct engine_sessions *sessions);

/* Ends every connection when what it has under way is done; on_gone comes for all that are
 * registered. NULLs *sessions, which may be NULL: then on_closed is not called; else once, by the
 * loop. */
void engine_sessions_close(struct engine_sessions **sessions, void (*on_closed)(void *ctx),
                           void *ctx);

#endif
