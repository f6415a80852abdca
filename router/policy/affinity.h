/* SPDX-License-Identifier: Apache-2.0 */

/*
 * affinity: where a prompt goes that nobody is known to hold. Every router prefers the same worker
 * for the same session, or for the same first block, without talking to the others: another router,
 * or this one before a restart, may have sent it there. Pure.
 */
#ifndef ROUTER_POLICY_AFFINITY_H
#define ROUTER_POLICY_AFFINITY_H

#include <stddef.h>
#include <stdint.h>

#include "router/policy/policy.h"

/* The key of a session by what the client calls it. Unlike names of blocks it is keyed by nothing:
 * every router, and one after a restart, must come to the same one, and it is shown nowhere. */
uint64_t affinity_session(const void *name, size_t len);

/*
 * Sets the affinity of query: to the session where there is one; else to the prompt's first block
 * where the prompt is long enough for a hit to matter; else to none. Keys are hashes; 0: there is
 * none. query->prompt_tokens must be set.
 */
void affinity_choose(struct route_query *query, uint64_t session, uint64_t first_block);

/* Gives the rung AFFINITY to the view that the query's key prefers, if it has one. How much that
 * weighs is the policy's. */
void affinity_mark(const struct route_query *query, struct worker_view *views, size_t count);

#endif
