/* SPDX-License-Identifier: Apache-2.0 */

/*
 * ladder: which kind of knowledge speaks for one worker about one prompt, best first: what its
 * agent says it holds (exact), then what we remember having sent there (guess). Below them are
 * affinity and load, which need no worker that holds anything (affinity.h, policy_ttft.h). Pure:
 * values in, values out; whoever routes for real, explains or replays comes through here.
 */
#ifndef ROUTER_POLICY_LADDER_H
#define ROUTER_POLICY_LADDER_H

#include <stdbool.h>
#include <stdint.h>

#include "router/policy/policy.h"

/* The prompt: what is the same for all workers. */
struct ladder_prompt {
    uint64_t bytes; /* of its stream */
    double tokens;  /* in all: estimated from bytes, or exact */
};

/* What is known of one worker. A run begins with the prompt's first block, or, the guess's, behind
 * the claimed one. */
struct ladder_facts {
    bool is_believed;          /* its agent is, now */
    bool is_whole;             /* and it knows all, so that what it does not claim is not there */
    bool can_anchor;           /* prompts of this kind can become known to it */
    uint64_t claimed_bytes;    /* of the run that its agent claims, or claimed when last believed */
    double claimed_tokens;     /* of them, as the agent counts: those in blocks that the engine can
                                * find; 0 where text is shared, and its tokens are not */
    double claimed_cpu_tokens; /* of them, those that have to be brought from CPU memory, */
    double claimed_ssd_tokens; /* and from SSD */
    uint64_t guessed_bytes;    /* of the run that was sent there, behind the claimed one */
    uint64_t pending_bytes;    /* of them still being made */
};

struct ladder_step {
    enum route_rung rung;
    double matched_tokens; /* claimed and guessed */
    double claimed_tokens; /* of them claimed by an agent that is believed: exact */
    double near_tokens;    /* of matched_tokens, those before the first that has to be moved */
    double cpu_tokens;     /* of matched_tokens, as the claims have it, believed or not */
    double ssd_tokens;
    double pending_tokens;
};

/* The prompt's tokens by what an agent says of the first bytes of it: nobody counts better. */
double ladder_prompt_tokens(const struct ladder_prompt *prompt, uint64_t claimed_bytes,
                            double claimed_tokens);

struct ladder_step ladder_step_of(const struct ladder_prompt *prompt,
                                  const struct ladder_facts *facts);

#endif
