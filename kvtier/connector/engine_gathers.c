/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/connector/engine_gathers.h"

#include <assert.h>

/*
 * DESIGN
 *
 *   rank 0   7 ------ 8 ------------ 9        8: rank 1 said 9 before it: given up at once, and
 *   rank 1       7 ----------- 9              nobody waits out a deadline for it
 *
 * Whether a job is done is decided here, for all ranks alike. Ranks that decided for themselves
 * would some day decide differently, and an engine that has half of a block's pages loaded answers
 * with nonsense, or waits for itself.
 *
 * Deadlines are for a rank that says nothing at all. It may stand still because others wait for an
 * answer to what it has not said: so they get theirs.
 */

static_assert(RANK_COUNT_MAX <= 64, "a bit for each rank");

void engine_gathers_init(struct engine_gathers *gathers, uint32_t rank_count)
{
    assert(rank_count > 0 && rank_count <= RANK_COUNT_MAX);

    *gathers = (struct engine_gathers){.rank_count = rank_count};
}

static struct engine_gather *find(struct engine_gathers *gathers, uint64_t job)
{
    for (uint32_t i = 0; i < gathers->count; i++) {
        if (gathers->pending[i].job == job)
            return &gathers->pending[i];
    }
    return NULL;
}

/* Nothing has an order here: the last one takes its place. */
static void drop(struct engine_gathers *gathers, struct engine_gather *gather)
{
    *gather = gathers->pending[--gathers->count];
}

/* A rank that has not said it has said a later one. */
static bool is_passed(const struct engine_gathers *gathers, const struct engine_gather *gather)
{
    for (uint32_t rank = 0; rank < gathers->rank_count; rank++) {
        if (!engine_gather_has(gather, rank) && gathers->last_job[rank] >= gather->job)
            return true;
    }
    return false;
}

static enum engine_gather_verdict add(struct engine_gathers *gathers, uint32_t rank,
                                      const struct engine_gather *said)
{
    struct engine_gather gather = *said;

    gather.ranks = (uint64_t)1 << rank;
    if (is_passed(gathers, &gather))
        return ENGINE_GATHER_OVER;
    if (gathers->count == ENGINE_GATHER_COUNT_MAX)
        return ENGINE_GATHER_CROWDED;
    gathers->pending[gathers->count++] = gather;
    return ENGINE_GATHER_WAIT;
}

enum engine_gather_verdict engine_gathers_say(struct engine_gathers *gathers, uint32_t rank,
                                              const struct engine_gather *said)
{
    const uint64_t all = UINT64_MAX >> (64 - gathers->rank_count);
    struct engine_gather *gather = find(gathers, said->job);

    assert(rank < gathers->rank_count);

    if (gathers->rank_count == 1)
        return ENGINE_GATHER_WHOLE;
    if (said->job <= gathers->last_job[rank])
        return ENGINE_GATHER_BROKEN;
    gathers->last_job[rank] = said->job;
    if (gather == NULL)
        return add(gathers, rank, said);
    if (gather->kind != said->kind || gather->content != said->content)
        return ENGINE_GATHER_BROKEN;
    gather->ranks |= (uint64_t)1 << rank;
    if (gather->ranks != all)
        return ENGINE_GATHER_WAIT;
    drop(gathers, gather);
    return ENGINE_GATHER_WHOLE;
}

void engine_gathers_pass(struct engine_gathers *gathers, uint32_t rank, uint64_t job)
{
    assert(rank < gathers->rank_count);

    if (job > gathers->last_job[rank])
        gathers->last_job[rank] = job;
}

void engine_gathers_forget(struct engine_gathers *gathers, uint32_t rank)
{
    assert(rank < gathers->rank_count && gathers->count == 0);

    gathers->last_job[rank] = 0;
}

bool engine_gathers_take_failed(struct engine_gathers *gathers, uint64_t now_ms,
                                struct engine_gather *failed)
{
    for (uint32_t i = 0; i < gathers->count; i++) {
        struct engine_gather *gather = &gathers->pending[i];

        if (now_ms < gather->deadline_ms && !is_passed(gathers, gather))
            continue;
        *failed = *gather;
        drop(gathers, gather);
        return true;
    }
    return false;
}
