/* SPDX-License-Identifier: Apache-2.0 */

/*
 * token_anchor: how many tokens a prompt has, and the name of its last full token block, as its
 * worker's agent names it: from what an engine said when it was asked, or from a prompt of token
 * ids. The ids go nowhere else. Pure; any thread.
 */
#ifndef ROUTER_PROMPT_TOKEN_ANCHOR_H
#define ROUTER_PROMPT_TOKEN_ANCHOR_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/json/json_scan.h"
#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"
#include "hashing/token_name.h"
#include "router/prompt/tool_place.h"

enum {
    TOKEN_ANCHOR_BLOCK_TOKENS_MAX = 4096,
    TOKEN_ANCHOR_COUNT_MAX = (1 << 21) - 1, /* what a record of the map can say */
};

struct token_naming {
    const uint8_t *secret;     /* DIGEST_SECRET_BYTES; borrowed */
    struct digest_128 root;    /* token_name_root() of the request's LoRA and salt */
    uint32_t block_tokens;     /* of the engine; 1 to TOKEN_ANCHOR_BLOCK_TOKENS_MAX */
    struct tool_layout layout; /* of the prompt's tools */
};

struct token_anchor {
    uint32_t token_count;
    uint64_t last_block;         /* .low of the last full block's name; 0: not one is full */
    uint32_t before_tools;       /* tokens in front of the last mark of tools, and the last full */
    uint64_t before_tools_block; /* block of these; 0: not one, or no mark */
};

/* An anchor from ids that come one by one: of them, those of the block being filled are all that is
 * kept. */
struct token_anchor_maker {
    struct token_naming naming;
    struct digest_128 last;
    uint32_t token_count;
    uint32_t filled; /* of ids */
    uint32_t before_tools;
    uint64_t before_tools_block;
    uint32_t ids[TOKEN_ANCHOR_BLOCK_TOKENS_MAX];
};

void token_anchor_maker_init(struct token_anchor_maker *maker, struct token_naming naming);

/* False: more than TOKEN_ANCHOR_COUNT_MAX. */
MUST_CHECK bool token_anchor_maker_add(struct token_anchor_maker *maker, uint32_t id);
void token_anchor_maker_finish(const struct token_anchor_maker *maker, struct token_anchor *anchor);

/*
 * Of the body of a reply of /tokenize or .../render, or of a request of completions whose one
 * prompt is token ids. text has JSON_PADDING readable bytes behind it. -EPROTO: it is no such
 * thing, or contradicts itself; -E2BIG: more tokens than TOKEN_ANCHOR_COUNT_MAX; -ENOMEM. The
 * scanner is left with bounded memory.
 */
MUST_CHECK int token_anchor_read_reply(const struct token_naming *naming,
                                       struct json_scanner *scanner, struct slice text,
                                       struct token_anchor *anchor);
MUST_CHECK int token_anchor_read_prompt(const struct token_naming *naming,
                                        struct json_scanner *scanner, struct slice text,
                                        struct token_anchor *anchor);

#endif
