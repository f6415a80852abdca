/* SPDX-License-Identifier: Apache-2.0 */

/*
 * prompt_stream: writes the prompt of a request as the canonical byte stream (version 3) that names
 * its prefix, into a block_chain. Format, see prompt_stream.c: a root (model, salt, template
 * arguments: whatever changes the whole prompt), then tools, then each message: role and parts in
 * order; the same for chat, responses and messages. Turn N's stream is a prefix of turn N+1's;
 * equal meaning in other JSON spelling gives the same stream. Prompts of token ids are hashed as
 * ids. Requests that leave no prefix, or begin with what an engine holds, get a size and no names.
 * Pure; any thread.
 */
#ifndef ROUTER_PROMPT_PROMPT_STREAM_H
#define ROUTER_PROMPT_PROMPT_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/arena.h"
#include "backends/runtime/must_check.h"
#include "hashing/block_chain.h"
#include "router/api/api_request.h"
#include "router/prompt/prompt_root.h"
#include "router/prompt/tool_place.h"

struct prompt_stream_config {
    const uint8_t *secret;  /* BLOCK_CHAIN_SECRET_BYTES; borrowed */
    uint32_t block_bytes;   /* 256 */
    uint32_t cut_bytes_min; /* 64 */
    enum tool_place tool_place;
};

struct prompt_blocks {
    struct block *blocks;      /* closed blocks, then one extra end node unless the stream ends on a
                                  block; in the arena */
    size_t block_count;        /* end node included */
    size_t closed_count;       /* without it */
    size_t before_tools_count; /* of the first blocks: in front of tools that stand late; 0: none */
    uint64_t before_tools_bytes; /* of the stream in front of these, an open block included */
    uint64_t bytes;              /* of the whole stream; an estimate where there are no names */
    uint64_t token_ids;          /* of a prompt given as ids: exact token count; else 0 */
    bool has_media;              /* parts that are no text: their tokens stand for nothing in it */
    struct block_chain chain; /* as it stands after the prompt: the answer continues a copy of it */
};

/*
 * Names the prompt of request (its first one, where a completions body has several: bytes then
 * counts all). block_count_max bounds the array. -EINVAL: the prompt's field is missing or of a
 * shape that has no meaning, fault says why; -ENOBUFS: more blocks than that, the first ones are
 * filled; -ENOMEM.
 */
MUST_CHECK int prompt_stream_write(struct prompt_stream_config config,
                                   const struct api_request *request, struct arena *arena,
                                   size_t block_count_max, struct prompt_blocks *out,
                                   struct api_fault *fault);

#endif
