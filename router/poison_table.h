/* SPDX-License-Identifier: Apache-2.0 */

/*
 * poison_table: which requests were being served when workers died. Clients send again what failed,
 * also where they are told not to; a request that kills engines (a query of death) would so take
 * one after the other. Here it is known by its body's name, and from its second victim on it is
 * poison: it is refused, and after a while one of them is let through, to one worker, to find out
 * whether it still kills. Pure; one thread.
 */
#ifndef ROUTER_POISON_TABLE_H
#define ROUTER_POISON_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"

enum {
    POISON_SET_COUNT = 128,
    POISON_WAY_COUNT = 8,
    POISON_VICTIM_COUNT = 2, /* deaths that make poison */
    POISON_WAIT_MS = 10000,  /* until the first trial; four times as long after each that kills */
};

/* One life of one worker: a process that comes back may be killed again. */
struct poison_victim {
    uint32_t worker;
    uint32_t restart_count;
};

struct poison_suspect {
    uint64_t body; /* its name; 0: free */
    uint64_t at_ms;
    struct poison_victim first;
    bool is_poison;
    uint64_t wait_ms;  /* of poison: from its last victim, or trial, to the next trial */
    uint64_t until_ms; /* no worker gets it before */
};

struct poison_table {
    struct poison_suspect suspects[POISON_SET_COUNT][POISON_WAY_COUNT];
    uint32_t count;     /* suspects that are remembered */
    uint64_t memory_ms; /* how long a death is remembered, and the longest wait; 0: not at all */
};

void poison_table_init(struct poison_table *table, uint64_t memory_ms);

/* victim died while it served body (0: a request without one, which is not remembered). True: it
 * was not the first, and body is poison now. */
MUST_CHECK bool poison_table_add(struct poison_table *table, uint64_t body,
                                 struct poison_victim victim, uint64_t now_ms);

enum poison_verdict {
    POISON_UNKNOWN, /* nothing speaks against it */
    POISON_TRIAL,   /* it may go to one worker and, if that one dies, to no other; for this while
                       the others are refused */
    POISON_REFUSED, /* no worker may get it */
};

/* What to do with a request of that body. */
MUST_CHECK enum poison_verdict poison_table_ask(struct poison_table *table, uint64_t body,
                                                uint64_t now_ms);

/* For how long from now_ms on it is refused; 0: it is not. */
uint64_t poison_table_wait_ms(struct poison_table *table, uint64_t body, uint64_t now_ms);

/* A worker has answered body and lives: it was another's fault. */
void poison_table_clear(struct poison_table *table, uint64_t body);

/* The name of a body: prompt is the name of its prompt, whatever else is in it lies at its ends.
 * Never 0. */
uint64_t poison_body_name(const uint8_t *secret, uint64_t prompt, const char *body, size_t len);

#endif
