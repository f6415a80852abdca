/* SPDX-License-Identifier: Apache-2.0 */

#include "router/prefetch_hint.h"

#include "router/join/join.h"
#include "router/relay.h"

/*
 * DESIGN
 *
 * The hint goes out with the choice and not when the request is sent, because between the two lies
 * the wait for a connection. What is in CPU memory already is none of its business: the way into
 * HBM is the engine's to ask for.
 *
 * Bounded: one note a request and worker, PREFETCH_HINT_BLOCK_COUNT_MAX blocks a note, and behind
 * it note_post, which drops what is too much. An agent that is not believed for now gets hints too:
 * what it does not hold it will not move.
 *
 * The deadline is the predicted time to first token, because blocks that come later have been
 * computed meanwhile. Predictions are short where nothing queues; less than WITHIN_MS_MIN would be
 * over before the agent has read the note.
 */
static const double WITHIN_MS_MIN = 200;
static const double WITHIN_MS_MAX = 60000;

void prefetch_hint_find(const struct residency_index *index, uint32_t holder,
                        const struct block *blocks, size_t count, struct prefetch_cold *cold)
{
    cold->start = 0;
    cold->block_count = 0;
    for (size_t i = 0; i < count && cold->block_count < PREFETCH_HINT_BLOCK_COUNT_MAX; i++) {
        const uint64_t begin = i > 0 ? blocks[i - 1].end : 0;
        uint32_t tokens;

        if (residency_index_get(index, blocks[i].hash, holder, &tokens) != RESIDENCY_SSD)
            continue;
        if (cold->block_count == 0)
            cold->start = i > 0 ? blocks[i - 1].hash : 0;
        cold->blocks[cold->block_count++] =
            (struct residency_note_block){blocks[i].hash, (uint32_t)(blocks[i].end - begin)};
    }
}

static uint32_t within_ms(double predicted_ms)
{
    if (!(predicted_ms > WITHIN_MS_MIN))
        return (uint32_t)WITHIN_MS_MIN;
    return (uint32_t)(predicted_ms < WITHIN_MS_MAX ? predicted_ms : WITHIN_MS_MAX);
}

static enum prefetch_hint_outcome tell(struct relay *relay, const struct prefetch_wish *wish)
{
    const struct residency_agent agent = relay_agent(relay, wish->worker);
    struct residency_note note = {.kind = RESIDENCY_NOTE_PREFETCH,
                                  .within_ms = within_ms(wish->within_ms)};
    struct prefetch_cold cold;

    if (wish->told_id == wish->worker->id)
        return PREFETCH_HINT_REPEATED;
    if (!agent.is_there || !agent.has_claims)
        return PREFETCH_HINT_NO_AGENT;
    prefetch_hint_find(relay->index, agent.holder, wish->blocks, wish->block_count, &cold);
    if (cold.block_count == 0)
        return PREFETCH_HINT_NOTHING;
    note.start = cold.start;
    if (join_post(relay->join, wish->worker, &note, cold.blocks, cold.block_count) < 0)
        return PREFETCH_HINT_DROPPED;
    relay->stats.prefetch_hint_blocks_total += cold.block_count;
    return PREFETCH_HINT_SENT;
}

bool prefetch_hint_send(struct relay *relay, const struct prefetch_wish *wish)
{
    const enum prefetch_hint_outcome outcome = tell(relay, wish);

    relay->stats.prefetch_hints_total[outcome]++;
    return outcome == PREFETCH_HINT_SENT;
}
