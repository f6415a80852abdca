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
#include "backends/runtime/buf.h"
#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"
#include "tests/sim_engine/chat_template.h"
#include "tests/sim_engine/request_field.h"
#include "tests/sim_engine/token_list.h"

struct response_store;

enum engine_api {
    ENGINE_CHAT,
    ENGINE_COMPLETIONS,
    ENGINE_COUNT_TOKENS,
    ENGINE_DETOKENIZE,
    ENGINE_EMBEDDINGS,
    ENGINE_MESSAGES,
    ENGINE_RERANK,
    ENGINE_RESPONSES,
    ENGINE_SCORE,
    ENGINE_TOKENIZE,
    ENGINE_API_COUNT
};

enum { ENGINE_LORA_COUNT_MAX = 8, ENGINE_CHOICE_COUNT_MAX = 128, ENGINE_ANSWER_TOKENS = 16 };

/* What the engine serves: the same for all requests. */
struct engine_model {
    struct slice name;
    struct slice loras[ENGINE_LORA_COUNT_MAX]; /* more names, each a cache of its own */
    size_t lora_count;
    size_t context_tokens_max; /* prompt and answer together */
    struct chat_template chat_template;
};

struct engine_request {
    enum engine_api api;
    struct slice model; /* one of engine_model's */
    uint32_t lora_id;   /* from 1 on; 0: model is no LoRA */
    struct slice salt;  /* empty: none */
    struct slice id;    /* the body's request_id; empty: none */
    bool is_stream;
    bool wants_usage;
    bool wants_usage_always; /* in every event */
    bool wants_ids;
    bool has_length_limit;      /* answer_tokens was asked for, not just the default */
    uint32_t choice_count;      /* per prompt */
    size_t answer_tokens;       /* per choice; 0: nothing is generated */
    struct json_value tool;     /* that must be called; JSON_NONE: none */
    bool is_tool_named;         /* by the client */
    bool skips_thinking;        /* chat_template_kwargs: enable_thinking is false */
    struct token_list *prompts; /* prompt_count of them, none empty; [0] is all of chat */
    size_t prompt_count;
    bool is_base64;      /* embeddings */
    size_t top_count;    /* rerank: results at most; 0: all */
    bool wants_store;    /* responses */
    struct buf messages; /* responses: the conversation, see responses_form.h */
    struct buf echo;     /* pieces of the body that come back: see responses_echo.h; of rerank: its
                            documents, as JSON strings */
};

/* What reading takes. */
struct request_reader {
    const struct engine_model *model;
    struct json_scanner *form_scanner;  /* for what is rewritten as a chat request */
    const struct response_store *store; /* of previous responses; NULL: none */
};

/* One choice, nothing else. */
void engine_request_init(struct engine_request *request, enum engine_api api);

/* May be called twice. */
void engine_request_release(struct engine_request *request);

#endif
