/* SPDX-License-Identifier: Apache-2.0 */

/*
 * api_request: what the router reads of a body, whatever its API: the model, how the answer will
 * come, what ties it to earlier requests, and where usage may be asked for. Everything else passes
 * untouched. Unknown fields and nulls are fine; a field we act on with a wrong type, or written
 * twice, is an error. Pure; any thread.
 */
#ifndef ROUTER_API_API_REQUEST_H
#define ROUTER_API_API_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/json/json_scan.h"
#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"
#include "router/api/api.h"
#include "router/api/api_fault.h"

struct api_request {
    enum api api;
    struct slice model; /* {NULL, 0} when absent or null; lives with the scanner */
    bool is_stream;
    bool has_stream_options;    /* the client wrote stream_options, whatever is in it */
    bool has_return_token_ids;  /* the client wrote return_token_ids, whatever is in it */
    bool wants_usage;           /* stream_options.include_usage is true */
    uint32_t choice_count;      /* n, or best_of when larger; 1 by default */
    uint32_t prompt_count;      /* completions: prompts in one body; else 1 */
    uint64_t answer_tokens_max; /* max_completion_tokens, max_tokens or max_output_tokens; 0 when
                                   absent */
    bool is_token_prompt;       /* completions: the prompt is token ids, not text */
    bool continues_message;     /* the last message is left open: by continue_final_message, as an
                                   item in progress, as an assistant message at the end (messages) */
    bool is_answer_learnable;   /* one answer that the next turn's prompt continues from */
    struct slice previous_response_id; /* responses; {NULL, 0} when absent or null */
    bool continues_state;              /* responses: the prompt begins with what an engine holds, by
                                          previous_response_id, conversation or prompt template */
    bool is_background; /* responses: answered at once, the engine works on; polled by id */
    bool is_stored;     /* responses: the client expects to find the answer by its id later;
                           true unless store is false. An engine may have its store off. */
    /* What ties the requests of one conversation, or else of one user, together, to choose a worker
     * by where nothing better is known. {NULL, 0} when the body has none. */
    struct slice session_key;
    size_t object_start; /* offset of the body's first '{' */
    bool is_object_empty;
    struct json_value root;
};

/*
 * For every API with a body: chat to detokenize in api.h.
 * body needs JSON_PADDING readable bytes behind it. -EINVAL: fault says why (answer 400); -ENOMEM.
 * The request's slices and values live until the scanner's next use.
 */
MUST_CHECK int api_request_parse(enum api api, struct json_scanner *scanner, struct slice body,
                                 struct api_request *request, struct api_fault *fault);

/*
 * The text to splice in right behind the body's first '{' so that the engine reports usage of a
 * stream: `"stream_options":{"include_usage":true},` Empty where nothing needs asking: no stream,
 * usage asked for already, or the client wrote stream_options itself.
 */
struct slice api_request_usage_splice(const struct api_request *request);

#endif
