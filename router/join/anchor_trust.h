/* SPDX-License-Identifier: Apache-2.0 */

/*
 * anchor_trust: which workers' /tokenize has lately counted as their answers' usage did. Anchors of
 * a trusted one are told at once; those of others wait for usage, which is the proof. Pure.
 */
#ifndef ROUTER_JOIN_ANCHOR_TRUST_H
#define ROUTER_JOIN_ANCHOR_TRUST_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/worker_set.h"

enum { ANCHOR_TRUST_AGREED_MIN = 2 };

struct anchor_trust { /* all zero: nobody is trusted */
    struct {
        uint64_t id;           /* whom agreed_count is about */
        uint32_t agreed_count; /* in a row */
    } workers[WORKER_COUNT_MAX];
};

static inline bool anchor_trust_has(const struct anchor_trust *trust, uint32_t index, uint64_t id)
{
    return trust->workers[index].id == id &&
           trust->workers[index].agreed_count >= ANCHOR_TRUST_AGREED_MIN;
}

/* Both counts of one prompt are known. */
static inline void anchor_trust_note(struct anchor_trust *trust, uint32_t index, uint64_t id,
                                     bool agrees)
{
    if (trust->workers[index].id != id)
        trust->workers[index].agreed_count = 0;
    trust->workers[index].id = id;
    if (!agrees)
        trust->workers[index].agreed_count = 0;
    else if (trust->workers[index].agreed_count < ANCHOR_TRUST_AGREED_MIN)
        trust->workers[index].agreed_count++;
}

#endif
