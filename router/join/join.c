/* SPDX-License-Identifier: Apache-2.0 */

#include "router/join/join.h"

#include <assert.h>
#include <stdlib.h>

/*
 * DESIGN
 *
 *   first byte of an answer --> attempt_notes --asks--> token_asker --side call--> the worker
 *                                    |    ^-----count, last block-----'
 *                     agrees with usage, or the worker is trusted
 *                                    |--> note_post --XADD--> smv:{w}:in --> the worker's agent
 *                                    '--> handover --later--> the guess forgets: the map knows
 *
 * Nothing here is on the way of a request: each step may be refused, and is then counted under its
 * reason. Without an anchor the prompt stays in the guess, as without any agent.
 */
enum {
    HANDOVER_LOTS_MAX = 8192,
    HANDOVER_BLOCKS_MAX = 1 << 20, /* 16 MiB */
    HAND_MS = 100,
};

static void hand_over(struct join *join, const struct handover_lot *lot)
{
    const struct worker *worker = worker_set_find(join->config.workers, lot->worker);

    if (worker == NULL)
        return;
    for (size_t i = 0; i < lot->block_count; i++)
        residency_guess_forget(join->config.guess, worker->index, lot->blocks[i].hash);
    join->handed_over_total += lot->block_count;
}

static void on_hand(uv_timer_t *timer)
{
    struct join *join = timer->data;
    struct handover_lot lot;

    while ((lot = handover_take_due(&join->handover, uv_now(timer->loop))).blocks != NULL) {
        hand_over(join, &lot);
        free(lot.blocks);
    }
    if (handover_next_ms(&join->handover) == UINT64_MAX)
        uv_timer_stop(timer);
}

void join_hand_over(struct join *join, struct handover_lot lot)
{
    if (handover_add(&join->handover, lot) < 0) {
        join->kept_total += lot.block_count;
        free(lot.blocks);
        return;
    }
    if (!uv_is_active((uv_handle_t *)&join->hand))
        uv_timer_start(&join->hand, on_hand, HAND_MS, HAND_MS);
}

struct join *join_create(struct join_config config)
{
    struct join *join = calloc(1, sizeof *join);
    int status;

    if (join == NULL)
        return NULL;
    join->config = config;
    join->asker = token_asker_create((struct token_asker_config){
        .io = config.io,
        .workers = config.workers,
        .threads = config.threads,
        .scanner = config.scanner,
        .authorization = config.authorization,
        .secret = config.secret,
        .rate_max = config.anchor_rate_max,
    });
    if (join->asker == NULL ||
        handover_init(&join->handover, HANDOVER_LOTS_MAX, HANDOVER_BLOCKS_MAX) < 0)
        goto fail;
    join->post = note_post_create((struct note_post_config){&config.io->loop, config.link,
                                                            config.fingerprint, config.router});
    if (join->post == NULL)
        goto fail;
    status = uv_timer_init(&config.io->loop, &join->hand);
    assert(status == 0);
    join->hand.data = join;
    return join;
fail:
    join_destroy(join);
    return NULL;
}

void join_configure(struct join *join, uint64_t anchor_bytes_min, uint32_t anchor_rate_max)
{
    join->config.anchor_bytes_min = anchor_bytes_min;
    token_asker_set_rate_max(join->asker, anchor_rate_max);
}

int join_post(struct join *join, const struct worker *worker, const struct residency_note *note,
              const struct residency_note_block *blocks, size_t block_count)
{
    return note_post_add(join->post, (struct note_receiver){worker->id, worker->name}, note, blocks,
                         block_count);
}

void join_forget_worker(struct join *join, const struct worker *worker)
{
    token_asker_forget_worker(join->asker, worker->index);
    for (size_t i = 0; i < array_count(join->trusts); i++)
        anchor_trust_note(&join->trusts[i], worker->index, worker->id, false);
}

void join_add_sources(const struct join *join, struct metrics_sources *sources)
{
    sources->notes = note_post_stats(join->post);
    sources->asker = token_asker_stats(join->asker);
    sources->handed_over_total = join->handed_over_total;
    sources->handover_kept_total = join->kept_total;
}

void join_close(struct join *join)
{
    token_asker_close(join->asker);
    note_post_close(&join->post);
    uv_close((uv_handle_t *)&join->hand, NULL);
}

void join_destroy(struct join *join)
{
    if (join == NULL)
        return;
    token_asker_destroy(join->asker);
    handover_release(&join->handover);
    free(join);
}
