/* SPDX-License-Identifier: Apache-2.0 */

/*
 * tail_table: how many tokens a template puts behind a prompt's text for the answer to begin with,
 * as found out for a worker, a model and template arguments. Fixed in size; what is old is found
 * out anew, since an engine may come back with another template. Pure.
 */
#ifndef ROUTER_JOIN_TAIL_TABLE_H
#define ROUTER_JOIN_TAIL_TABLE_H

#include <stdbool.h>
#include <stdint.h>

enum {
    TAIL_TABLE_COUNT = 256,
    TAIL_TABLE_MS_MAX = 600000, /* found out anew after that */
    TAIL_TOKENS_MAX = 255,      /* a longer one is none */
};

struct tail {
    uint64_t name; /* of worker, model and template; 0: free */
    uint64_t found_ms;
    uint32_t tokens;
};

struct tail_table { /* all zero is empty */
    struct tail tails[TAIL_TABLE_COUNT];
};

/* False: not known, or for too long. name is not 0. */
bool tail_table_find(const struct tail_table *table, uint64_t name, uint64_t now_ms,
                     uint32_t *tokens);

/* Takes the place of whatever stood there. */
void tail_table_set(struct tail_table *table, uint64_t name, uint32_t tokens, uint64_t now_ms);

#endif
