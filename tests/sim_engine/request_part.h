/* SPDX-License-Identifier: Apache-2.0 */

/* request_part: the parts of a body that several endpoints have in common. Each function reads its
 * fields of root into request; -EINVAL: fault says why not. Pure. */
#ifndef TESTS_SIM_ENGINE_REQUEST_PART_H
#define TESTS_SIM_ENGINE_REQUEST_PART_H

#include "backends/json/json_scan.h"
#include "backends/runtime/buf.h"
#include "backends/runtime/must_check.h"
#include "tests/sim_engine/engine_request.h"
#include "tests/sim_engine/request_field.h"

MUST_CHECK int request_read_model(const struct engine_model *model, struct json_value root,
                                  struct engine_request *request, struct engine_fault *fault);

/* stream and stream_options. */
MUST_CHECK int request_read_stream(struct json_value root, struct engine_request *request,
                                   struct engine_fault *fault);

/* temperature, top_p, cache_salt. */
MUST_CHECK int request_read_sampling(struct json_value root, struct engine_request *request,
                                     struct engine_fault *fault);

/* Which tool must be called: tool_choice "required", or a function's name. */
MUST_CHECK int request_read_tool_choice(struct json_value root, struct engine_request *request,
                                        struct engine_fault *fault);

/* messages and tools as one prompt. */
MUST_CHECK int request_read_chat_prompt(const struct engine_model *model, struct json_value root,
                                        struct engine_request *request, struct engine_fault *fault);

/* The field named key: a text, ids, or an array of either. */
MUST_CHECK int request_read_prompts(struct json_value root, const char *key,
                                    struct engine_request *request, struct engine_fault *fault);

/* One of them. */
MUST_CHECK int request_read_prompt(struct json_value value, const char *key,
                                   struct engine_request *request, struct engine_fault *fault);

/* An empty prompt more, for the caller to fill. */
struct token_list *request_add_prompt(struct engine_request *request);

/* How many tokens the answer may have. */
struct answer_limit {
    const char *key;  /* the field that says it */
    const char *name; /* what an error calls it */
    size_t tokens_max;
};

/* 1: read; 0: not given. */
MUST_CHECK int request_read_answer_tokens(struct json_value root, struct answer_limit limit,
                                          struct engine_request *request,
                                          struct engine_fault *fault);

/*
 * A body of another family, rewritten as that of a chat request: prompt and tool choice. form is
 * scanned by reader's own scanner, so the values in request live as long as its document.
 */
MUST_CHECK int request_read_form(const struct request_reader *reader, struct slice form,
                                 struct engine_request *request, struct engine_fault *fault);

#endif
