/* SPDX-License-Identifier: Apache-2.0 */

#include "router/policy/affinity.h"

#include "hashing/rendezvous.h"

/*
 * DESIGN
 *
 * Rendezvous, not a ring: it needs no state, and when a worker goes only its own sessions move. It
 * costs a hash for each worker, which is paid only for prompts that no worker holds: from its
 * second turn on a session is found by what its worker holds.
 *
 * A first block (256 bytes, or less) is the beginning of a system prompt more often than not. Short
 * prompts have none worth the name: they are spread by load.
 */

static const double FIRST_BLOCK_TOKENS_MIN = 512;

uint64_t affinity_session(const void *name, size_t len)
{
    uint64_t key = rendezvous_id(name, len);

    return key != 0 ? key : 1; /* 0: none */
}

void affinity_choose(struct route_query *query, uint64_t session, uint64_t first_block)
{
    query->affinity = ROUTE_AFFINITY_NONE;
    query->affinity_key = 0;
    if (session != 0) {
        query->affinity = ROUTE_AFFINITY_SESSION;
        query->affinity_key = session;
    } else if (first_block != 0 && query->prompt_tokens >= FIRST_BLOCK_TOKENS_MIN) {
        query->affinity = ROUTE_AFFINITY_FIRST_BLOCK;
        query->affinity_key = first_block;
    }
}

void affinity_mark(const struct route_query *query, struct worker_view *views, size_t count)
{
    struct worker_view *best = NULL;
    double best_score = -1;

    if (query->affinity == ROUTE_AFFINITY_NONE)
        return;
    for (size_t i = 0; i < count; i++) {
        double score = rendezvous_score(
            query->affinity_key, (struct rendezvous_node){.id = views[i].name_hash, .weight = 1});

        if (score > best_score) {
            best = &views[i];
            best_score = score;
        }
    }
    if (best != NULL)
        best->rung = ROUTE_RUNG_AFFINITY;
}
