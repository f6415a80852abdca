/* SPDX-License-Identifier: Apache-2.0 */

/*
 * alignment: joins text blocks (H) with token blocks (T) by what is known of single requests: their
 * text (a record), and how many tokens it became and which is the last full block of these (an
 * anchor). From then on it says of each text block in which tiers the engine holds all of it.
 * Records, anchors and token events may come in any order; the result is the same.
 * Pure: the caller tells the time; init takes the memory, or bounds it (maps grow up
 * to a limit). One thread at a time.
 */
#ifndef KVTIER_IDENTITY_ALIGNMENT_H
#define KVTIER_IDENTITY_ALIGNMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "kvtier/identity/attempt_table.h"
#include "kvtier/identity/text_chain.h"
#include "kvtier/identity/token_chain.h"

/*
 * A text block's residency is now this (absolute, not a difference): tiers, bit 1 << tier; 0: none,
 * and if the block was forgotten too, it is not known any more. tokens: from the start of the
 * prompt to the end of the last token block that is full by the text block's end, which is what the
 * engine can find; 0 with tiers where there is none yet. Must not change the alignment.
 */
typedef void alignment_claimed_fn(void *ctx, uint64_t hash, uint8_t tiers, uint32_t tokens);

struct alignment_config {
    const uint8_t *secret;    /* DIGEST_SECRET_BYTES; borrowed */
    uint32_t token_nodes_max; /* see token_chain */
    uint32_t text_nodes_max;  /* see text_chain; some 100 bytes more for each */
    uint32_t depth_max;       /* of a chain, in blocks of either kind */
    uint32_t attempts_max;    /* that wait for their other parts; 4096 */
    uint32_t wait_ms;         /* for so long; 10,000 */
    uint8_t groups;           /* see token_chain */
    alignment_claimed_fn *on_claimed;
    void *ctx;
};

/* Where tokens came into the text chain. Parallel to text_chain's nodes. */
struct aligned {
    uint64_t block;     /* name of the last token block that is full by here; 0: none */
    uint32_t token_end; /* known in an anchor, else interpolated by bytes */
    uint32_t depth;     /* of block */
    uint32_t next;      /* in the list of text blocks that end in the same token block */
    uint32_t last;      /* the one before */
    uint32_t claimed_tokens;
    uint32_t claimed_children; /* text blocks that follow it and are claimed */
    uint8_t claimed;           /* tiers as told last */
    uint8_t flips;             /* how often a newer anchor said something else */
    bool is_mapped;
    bool is_anchor;
    bool is_answer;   /* mapped to what the engine generated: no later prompt has proved it yet */
    bool is_withheld; /* and answers are rarely kept so far: not claimed before one does */
    bool is_stale;    /* in the list of those to be looked at */
};

struct alignment_stats {
    uint64_t claimed[TOKEN_TIER_COUNT]; /* text blocks claimed now, by tier */
    uint64_t joined;
    uint64_t lost;      /* the record's blocks were forgotten before the rest came */
    uint64_t unfit;     /* anchors that contradict their own token block; dropped */
    uint64_t flipped;   /* text blocks that a newer anchor moved to other tokens */
    uint64_t corrected; /* places that were interpolated wrongly, as a parting of prompts shows */
    uint64_t answers_kept;   /* that the next turn's tokens went on from, as a whole */
    uint64_t answers_parted; /* or not: they became other tokens, or were dropped */
};

struct alignment {
    struct alignment_config config;
    struct token_chain tokens; /* give it the events: token_chain_store() and so on, then flush */
    struct text_chain text;
    struct attempt_table attempts;
    struct aligned *aligned;   /* [text_nodes_max + 1] */
    struct block_map by_block; /* token block's name -> first text block that ends there */
    uint32_t *stale;           /* [text_nodes_max] */
    uint32_t stale_count;
    uint32_t span_max;   /* token blocks that one text block has ever covered */
    uint32_t *path;      /* [depth_max] text nodes of the join in progress, first to last */
    uint32_t *blocks;    /* [depth_max + 1] its token nodes by depth */
    bool has_news;       /* since the last flush something came that may complete an attempt */
    double answer_share; /* of an answer's tokens, from its first on, that the next turn finds: the
                          * median of what was seen, 1 at first */
    struct alignment_stats stats;
};

/* What a router sent where. Keys of attempts are digests, one for a prompt and one for its answer.
 */
struct alignment_record {
    uint64_t attempt; /* not 0 */
    uint64_t start;   /* hash of the block it goes on from; 0: the beginning of a stream */
    const struct text_block *blocks;
    size_t block_count;
};

struct alignment_anchor {
    uint64_t attempt;       /* not 0 */
    uint64_t last_block;    /* name of the last full token block, of the prompt in any case */
    bool is_answer;         /* the answer's blocks follow last_block: nobody names them */
    uint32_t token_count;   /* of the prompt; of prompt and answer for an answer's */
    uint32_t tail_tokens;   /* of these behind the text: what the template adds for the answer */
    uint32_t cached_tokens; /* the engine found in its cache; UINT32_MAX: not known */
};

/* Empty. -ENOMEM; -EINVAL: a limit is 0. */
MUST_CHECK int alignment_init(struct alignment *alignment, struct alignment_config config);

/* It may know so many token blocks from now on, no fewer than before. -ENOMEM: as before. */
MUST_CHECK int alignment_allow_tokens(struct alignment *alignment, uint32_t token_nodes_max);

/* Errors are text_chain_extend()'s; then the record is not kept. now_ms never goes back. */
MUST_CHECK int alignment_record(struct alignment *alignment, const struct alignment_record *record,
                                uint64_t now_ms);

/* A prompt without a full token block has no anchor: there is nothing of it to find again. */
void alignment_anchor(struct alignment *alignment, const struct alignment_anchor *anchor,
                      uint64_t now_ms);

/* Joins what is complete, gives up what is overdue, and reports every change since the last time.
 */
void alignment_flush(struct alignment *alignment, uint64_t now_ms);

/* As reported last: tiers, and *tokens unless it is NULL; 0: nothing is claimed of hash. */
uint8_t alignment_claim(const struct alignment *alignment, uint64_t hash, uint32_t *tokens);

/* Frees everything; may be called twice, and after a failed init. Reports nothing. */
void alignment_release(struct alignment *alignment);

#endif
