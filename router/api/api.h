/* SPDX-License-Identifier: Apache-2.0 */

/*
 * api: the kinds of request that clients send, one row each: the word for the log and the metrics,
 * in which form its errors are written, and what it is to an engine. Pure; any thread.
 */
#ifndef ROUTER_API_API_H
#define ROUTER_API_API_H

#include <stdbool.h>

/* In which form errors and streams are written: whose clients read them. */
enum api_family {
    API_FAMILY_OPENAI,    /* {"error":{...}}; a stream ends with data: [DONE] */
    API_FAMILY_RESPONSES, /* the same errors; a stream of typed events ends with a terminal one */
    API_FAMILY_ANTHROPIC, /* {"type":"error","error":{...}}; a stream ends with message_stop */
    API_FAMILY_COUNT
};

/* What a request asks of an engine. */
enum api_work {
    API_WORK_NONE,     /* answered here, or no work: models, a stored response */
    API_WORK_GENERATE, /* reads a prompt whose prefix the KV cache may hold, and writes an answer */
    API_WORK_COMPUTE,  /* one answer from the whole input, the same each time: may be repeated */
};

/* row(constant, name, family, work) */
/* clang-format off */
#define API_ROWS(row)                                                                              \
    row(API_CHAT, "chat", API_FAMILY_OPENAI, API_WORK_GENERATE)                                    \
    row(API_COMPLETIONS, "completions", API_FAMILY_OPENAI, API_WORK_GENERATE)                      \
    row(API_RESPONSES, "responses", API_FAMILY_RESPONSES, API_WORK_GENERATE)                       \
    row(API_MESSAGES, "messages", API_FAMILY_ANTHROPIC, API_WORK_GENERATE)                         \
    row(API_COUNT_TOKENS, "count_tokens", API_FAMILY_ANTHROPIC, API_WORK_COMPUTE)                  \
    row(API_EMBEDDINGS, "embeddings", API_FAMILY_OPENAI, API_WORK_COMPUTE)                         \
    row(API_RERANK, "rerank", API_FAMILY_OPENAI, API_WORK_COMPUTE)                                 \
    row(API_SCORE, "score", API_FAMILY_OPENAI, API_WORK_COMPUTE)                                   \
    row(API_TOKENIZE, "tokenize", API_FAMILY_OPENAI, API_WORK_COMPUTE)                             \
    row(API_DETOKENIZE, "detokenize", API_FAMILY_OPENAI, API_WORK_COMPUTE)                         \
    /* GET, DELETE and cancel of a stored response */                                              \
    row(API_RESPONSE_BY_ID, "response_by_id", API_FAMILY_RESPONSES, API_WORK_NONE)                 \
    row(API_MODELS, "models", API_FAMILY_OPENAI, API_WORK_NONE)                                    \
    /* everything else, unknown paths included */                                                  \
    row(API_OTHER, "other", API_FAMILY_OPENAI, API_WORK_NONE)
/* clang-format on */

enum api {
#define API_CONSTANT(constant, name, family, work) constant,
    API_ROWS(API_CONSTANT)
#undef API_CONSTANT
        API_COUNT
};

/* "chat", "completions", ... */
const char *api_name(enum api api);

enum api_family api_family(enum api api);

enum api_work api_work(enum api api);

#endif
