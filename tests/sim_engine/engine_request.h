/* SPDX-License-Identifier: Apache-2.0 */

/*
 * engine_request: what a body asks of the engine: prompts in token ids, how many tokens, how the
 * answer is to come. Refuses what vLLM refuses, in its words. Pure.
 */
#ifndef TESTS_SIM_ENGINE_ENGINE_REQUEST_H
#define TESTS_SIM_ENGINE_ENGINE_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/json/json_scan.h"
#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"
#include "tests/sim_engine/chat_template.h"
#include "tests/sim_engine/token_list.h"

enum engine_api { ENGINE_CHAT, ENGINE_COMPLETIONS, ENGINE_TOKENIZE };

enum { ENGINE_LORA_COUNT_MAX = 8, ENGINE_CHOICE_COUNT_MAX = 128, ENGINE_ANSWER_TOKENS = 16 };

/* What the engine serves: the same for all requests. */
struct engine_model {
    struct slice name;
    struct slice loras[ENGINE_LORA_COUNT_MAX]; /* more names, each a cache of its own */
    size_t lora_count;
    size_t context_tokens_max; /* prompt and answer together */
    struct chat_template chat_template;
};

/* An error answer in vLLM's shape. */
struct engine_fault {
    int status;
    const char *type; /* "BadRequestError", "NotFoundError", ... */
    char param[64];   /* "": null */
    char message[640];
};

struct engine_request {
    enum engine_api api;
    struct slice model; /* one of engine_model's */
    struct slice salt;  /* empty: none */
    struct slice id;    /* the body's request_id; empty: none */
    bool is_stream;
    bool wants_usage;
    bool wants_usage_always; /* in every event */
    bool wants_ids;
    bool has_length_limit;      /* answer_tokens was asked for, not just the default */
    uint32_t choice_count;      /* per prompt */
    size_t answer_tokens;       /* per choice */
    struct json_value tool;     /* that must be called; JSON_NONE: none */
    bool is_tool_named;         /* by the client */
    struct token_list *prompts; /* prompt_count of them, none empty; [0] is all of chat */
    size_t prompt_count;
};

/*
 * Reads the root of a JSON body. -EINVAL: fault says what to answer. Slices and values live as long
 * as the scanner's document; on success the caller releases the request.
 */
MUST_CHECK int engine_request_read(enum engine_api api, const struct engine_model *model,
                                   struct json_value root, struct engine_request *request,
                                   struct engine_fault *fault);

/* The answer to a body that is no JSON. */
void engine_fault_bad_json(struct engine_fault *fault, size_t offset, const char *why);

/* Also after a failed read. May be called twice. */
void engine_request_release(struct engine_request *request);

#endif
