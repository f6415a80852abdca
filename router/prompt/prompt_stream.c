/* SPDX-License-Identifier: Apache-2.0 */

#include "router/prompt/prompt_stream.h"

#include "router/prompt/prompt_parts.h"
#include "router/prompt/prompt_root.h"

#include <errno.h>
#include <string.h>

/*
 * DESIGN
 *
 * The canonical stream, version 3. `<x>` is the byte 0xFF and the letter x (prompt_writer.h); 0xFF
 * occurs in no UTF-8 text, so nothing needs escaping or a length in front, no byte can be shifted
 * from one field into the next, and a message still being streamed is a prefix of the finished one.
 *
 *   chat, responses, messages = [instructions] tool* message*             stream 'C'
 *   completions  = text                                                   stream 'T'
 *   token ids    = 4 bytes each, little-endian                            stream 'I'
 *   tool         = <T> value <.> cut          value: prompt_write_value(), members in order
 *   instructions = message, the first one where its role is system or developer
 *   message      = <M> role [<n> name] [<i> tool_call_id] [<r> reasoning] part* [<f> refusal]
 *                  call* [<x> digest] <.> cut
 *   part         = <t> text | <p> digest      an image is as long as its digest, whatever its bytes
 *   call         = <c> id <n> function name [<x> digest] <a> arguments [<x> digest]
 *   arguments    = text | value               text: chat, responses; value: messages
 *
 * Engines make chat messages of what /v1/responses and /v1/messages get and print them with the
 * same template. So these are written as those chat messages (prompt_responses.c,
 * prompt_messages.c say how): a conversation that moves between the APIs still finds its prefix, as
 * far as it is plain text, and tool calls between chat and responses. Not between messages and the
 * others from the first tool call on, whose arguments are text there and a value here, and from an
 * image on.
 *
 * Most templates print tools behind such instructions, and this order promises nothing where they
 * do not: two prompts with the same tools under other instructions share no name. With the tools
 * first each new system prompt would be told that its tools are in the cache, where most find
 * nothing.
 *
 * Some templates print the tools with the last user message (Mistral's in front of it): each turn
 * takes them from where the turn before had them, and of that one's tokens nothing behind that
 * place is found again. There the stream has them in the same place, so that text parts where
 * tokens do: [instructions] message* tool* message*, the tools in front of the last user message or
 * behind it. As nothing else can stand so, no version tells the forms apart: routers that know the
 * place (tool_survey) and such that do not yet share fewer names, and never a wrong one. What they
 * share of a prompt with tools, and what a router finds again of those it named before it knew, are
 * the instructions. A router knows it a few calls after the first such prompt was answered; one
 * whose workers do not tell it has them in front, and promises more than a next turn finds.
 *
 * The root, which every name depends on, is in prompt_root.c. cache_control marks move from turn to
 * turn and print nothing: they count nowhere.
 *
 * Where the prompt begins with what an engine holds (previous_response_id and the like), the body
 * shows only its end, and no name is given: such a request follows its state, not its text. Nor
 * have embeddings, rerank and score names, as they leave no prefix to continue from; their size is
 * estimated. count_tokens, tokenize and detokenize compute nothing: their size is 0.
 */
enum { BLOCK_COUNT_FIRST = 32 };

/* Grows the chain's array in the arena: at least doubles it, within the caller's limit. */
static int reserve_blocks(void *ctx, size_t block_count)
{
    struct prompt_sink *sink = ctx;
    struct block_chain *chain = sink->writer.chain;
    size_t doubled = 2 * chain->block_count_max;
    size_t count = block_count > doubled ? block_count : doubled;
    struct block *blocks;

    if (sink->block_count_max == 0)
        return -ENOBUFS;
    count = count > BLOCK_COUNT_FIRST ? count : BLOCK_COUNT_FIRST;
    count = count < sink->block_count_max ? count : sink->block_count_max;
    if (count <= chain->block_count_max)
        return 0; /* at the limit: the chain will say so */
    blocks = arena_alloc(sink->arena, count * sizeof *blocks);
    if (blocks == NULL)
        return -ENOMEM;
    if (chain->block_count > 0)
        memcpy(blocks, chain->blocks, chain->block_count * sizeof *blocks);
    chain->blocks = blocks;
    chain->block_count_max = count;
    return 0;
}

static int write_prompt(struct prompt_sink *sink, const struct api_request *request,
                        uint64_t *further_bytes)
{
    switch (request->api) {
    case API_CHAT:
        return prompt_write_chat(sink, request);
    case API_RESPONSES:
        return prompt_write_responses(sink, request);
    case API_MESSAGES:
        return prompt_write_messages(sink, request);
    case API_COMPLETIONS:
        return prompt_write_completion(sink, request, further_bytes);
    default:
        return 0;
    }
}

static bool has_names(const struct api_request *request)
{
    return api_work(request->api) == API_WORK_GENERATE && !request->continues_state;
}

int prompt_stream_write(struct prompt_stream_config config, const struct api_request *request,
                        struct arena *arena, size_t block_count_max, struct prompt_blocks *out,
                        struct api_fault *fault)
{
    struct prompt_sink sink = {
        .writer = {&out->chain, reserve_blocks, &sink, 0},
        .arena = arena,
        .secret = config.secret,
        .block_count_max = block_count_max,
        .fault = fault,
        .tool_place = config.tool_place,
    };
    uint64_t further_bytes = 0;
    int status = 0;

    *fault = (struct api_fault){.code = ""};
    out->token_ids = 0;
    block_chain_init(
        &out->chain,
        (struct block_chain_config){config.secret, config.block_bytes, config.cut_bytes_min},
        prompt_root(config.secret, request), NULL, 0);
    if (has_names(request))
        status = write_prompt(&sink, request, &further_bytes);
    else
        further_bytes = prompt_size(request);
    out->has_media = sink.has_media;
    out->block_count = prompt_write_tail(&sink.writer);
    out->blocks = out->chain.blocks;
    out->closed_count = out->chain.block_count;
    out->before_tools_count = sink.before_tools_count;
    out->before_tools_bytes = sink.before_tools_bytes;
    out->bytes = prompt_writer_bytes(&sink.writer) + further_bytes;
    if (request->is_token_prompt)
        out->token_ids = out->bytes / 4;
    return status < 0 ? status : sink.writer.status;
}
