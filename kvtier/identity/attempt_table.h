/* SPDX-License-Identifier: Apache-2.0 */

/*
 * attempt_table: attempts of which alignment has only a part yet: the record, the anchor, or both
 * but not the tokens. Bounded in number and time; what leaves unjoined is counted.
 * Pure: the caller tells the time; init takes the memory, or bounds it (maps grow up
 * to a limit). One thread at a time.
 */
#ifndef KVTIER_IDENTITY_ATTEMPT_TABLE_H
#define KVTIER_IDENTITY_ATTEMPT_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "hashing/block_map.h"

struct attempt {
    uint64_t key;    /* 0: free */
    uint64_t due_ms; /* leaves then */
    bool has_record;
    bool has_anchor;
    bool is_answer;         /* anchor: last_block is the prompt's, token_count the answer's end */
    uint32_t tip;           /* record: index of the last text block, */
    uint64_t tip_hash;      /* which must still be this one */
    uint64_t last_block;    /* anchor: name of the last full token block */
    uint32_t token_count;   /* anchor: of the whole prompt, or prompt and answer */
    uint32_t tail_tokens;   /* anchor: of these, how many stand behind the text's end */
    uint32_t cached_tokens; /* anchor: found in the cache; UINT32_MAX: not known */
};

struct attempt_table {
    struct attempt *attempts; /* [count_max], a ring by age */
    struct block_map by_key;  /* key -> number of the attempt + 1 */
    uint64_t oldest;          /* number of the oldest; it lies at oldest % count_max */
    uint64_t next;            /* number of the next one */
    uint32_t count_max;
    uint32_t wait_ms;
    uint64_t expired;    /* left by time */
    uint64_t pushed_out; /* left for newer ones */
};

/* Empty. -ENOMEM; -EINVAL: a limit is 0. */
MUST_CHECK int attempt_table_init(struct attempt_table *table, uint32_t count_max,
                                  uint32_t wait_ms);

/* The attempt of key (not 0), a new one where there is none. now_ms never goes back. */
struct attempt *attempt_table_claim(struct attempt_table *table, uint64_t key, uint64_t now_ms);

/* The next attempt by age; NULL after the last. *cursor starts as 0; removing is allowed. */
struct attempt *attempt_table_next(struct attempt_table *table, uint64_t *cursor);

void attempt_table_remove(struct attempt_table *table, struct attempt *attempt);

/* Removes what is due. */
void attempt_table_expire(struct attempt_table *table, uint64_t now_ms);

/* Frees everything; may be called twice, and after a failed init. */
void attempt_table_release(struct attempt_table *table);

#endif
