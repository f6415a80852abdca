/* SPDX-License-Identifier: Apache-2.0 */

/*
 * engine_gathers: the loads and saves of an engine of several ranks, each of which says all of
 * them, until all have said one: then it can be begun, once, for all. What not all will say is
 * given up: no rank waits for one that has gone past it. Bounded. Pure.
 *
 * The engine numbers its jobs: the ranks say the same one by the same number, and each rank's
 * numbers go up. So a rank that says a later one will never say those before it.
 */
#ifndef KVTIER_CONNECTOR_ENGINE_GATHERS_H
#define KVTIER_CONNECTOR_ENGINE_GATHERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvtier/connector/ipc_wire.h"
#include "kvtier/device/ranked_memory.h"

enum { ENGINE_GATHER_COUNT_MAX = 64 };

/* One job that some ranks have said, and not yet all. */
struct engine_gather {
    uint64_t job;
    enum ipc_kind kind;   /* IPC_LOAD, IPC_SAVE */
    uint64_t content;     /* a checksum of what is to be done: the ranks say the same */
    uint32_t block_count; /* of it */
    uint64_t ranks;       /* that have said it: a bit each */
    uint64_t deadline_ms; /* for the last of them */
};

/* Of one engine. */
struct engine_gathers {
    uint32_t rank_count;
    uint64_t last_job[RANK_COUNT_MAX]; /* that the rank has said; 0: none. From 1 on */
    uint32_t count;
    struct engine_gather pending[ENGINE_GATHER_COUNT_MAX];
};

enum engine_gather_verdict {
    ENGINE_GATHER_WHOLE,   /* all have said it: begin it now, it is pending no longer */
    ENGINE_GATHER_WAIT,    /* for the others */
    ENGINE_GATHER_OVER,    /* another rank has gone past it: it is not done */
    ENGINE_GATHER_CROWDED, /* too many are pending: it is not done */
    ENGINE_GATHER_BROKEN,  /* what the ranks say contradicts itself */
};

void engine_gathers_init(struct engine_gathers *gathers, uint32_t rank_count);

/* The rank has said said->job; its deadline_ms counts if it is the first. An engine of one rank
 * gathers nothing: each is WHOLE. */
enum engine_gather_verdict engine_gathers_say(struct engine_gathers *gathers, uint32_t rank,
                                              const struct engine_gather *said);

/* The rank has said the job while nothing could be done: nobody waits for it. */
void engine_gathers_pass(struct engine_gathers *gathers, uint32_t rank, uint64_t job);

/* The rank is another process from now on, which counts for itself. Nothing may be pending. */
void engine_gathers_forget(struct engine_gathers *gathers, uint32_t rank);

/* Takes one out that will not become whole: a rank has gone past it, or its deadline has come.
 * now_ms UINT64_MAX: any. False: there is none. */
bool engine_gathers_take_failed(struct engine_gathers *gathers, uint64_t now_ms,
                                struct engine_gather *failed);

static inline bool engine_gather_has(const struct engine_gather *gather, uint32_t rank)
{
    return (gather->ranks >> rank & 1) != 0;
}

#endif
