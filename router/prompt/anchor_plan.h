/* SPDX-License-Identifier: Apache-2.0 */

/*
 * anchor_plan: whether it can be learned how many tokens a request's prompt becomes, and from what:
 * from the prompt itself where that is token ids, else from the engine, asked with the same body.
 * Where it might read that differently than for the answer, nothing is learned. Pure; any thread.
 */
#ifndef ROUTER_PROMPT_ANCHOR_PLAN_H
#define ROUTER_PROMPT_ANCHOR_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/runtime/arena.h"
#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"
#include "router/api/api_request.h"
#include "router/prompt/prompt_stream.h"

/* What became of the anchor of one attempt. row(constant, name) */
/* clang-format off */
#define ANCHOR_OUTCOME_ROWS(row)                                                                   \
    row(ANCHOR_POSTED, "posted")         /* told to the worker's agent */                          \
    row(ANCHOR_BY_ENGINE, "by_engine")   /* the engine says it itself; only the text was told */   \
    row(ANCHOR_NO_AGENT, "no_agent")     /* the worker has none that is believed */                \
    row(ANCHOR_API, "api")               /* its prompts cannot be asked about */                   \
    row(ANCHOR_SHAPE, "shape")           /* several prompts or answers, or an echo */              \
    row(ANCHOR_MEDIA, "media")           /* images, audio, files */                                \
    row(ANCHOR_FIELDS, "fields")         /* the body says what no such question covers */          \
    row(ANCHOR_KNOWN, "known")           /* the map has (nearly) all of it already */              \
    row(ANCHOR_SHORT, "short")           /* not one full block of the engine's */                  \
    row(ANCHOR_LONG, "long")             /* more than an agent takes in */                         \
    row(ANCHOR_UNABLE, "unable")         /* the worker has no endpoint for the question */         \
    row(ANCHOR_RATE, "rate")             /* asked too often lately */                              \
    row(ANCHOR_BUSY, "busy")             /* the worker is, or this router */                       \
    row(ANCHOR_FAILED, "failed")         /* the side call, or what it said made no sense */        \
    row(ANCHOR_MISMATCH, "mismatch")     /* not as many tokens as the answer's usage says */       \
    row(ANCHOR_UNCHECKED, "unchecked")   /* no usage came to check it by */                        \
    row(ANCHOR_DROPPED, "dropped")       /* Redis is away, or too much waits for it */
/* clang-format on */

enum anchor_outcome {
#define ANCHOR_OUTCOME_CONSTANT(constant, name) constant,
    ANCHOR_OUTCOME_ROWS(ANCHOR_OUTCOME_CONSTANT)
#undef ANCHOR_OUTCOME_CONSTANT
        ANCHOR_OUTCOME_COUNT
};

const char *anchor_outcome_name(enum anchor_outcome outcome);

enum anchor_source {
    ANCHOR_SOURCE_NONE,
    ANCHOR_SOURCE_IDS,   /* the prompt is token ids */
    ANCHOR_SOURCE_ENGINE /* asked with the same body, at target */
};

/* Where an engine is asked. What is true of one of them need not be of another. row(constant, path)
 */
/* clang-format off */
#define ANCHOR_TARGET_ROWS(row)                                                                    \
    row(ANCHOR_TARGET_TEXT, "/tokenize")                                                           \
    row(ANCHOR_TARGET_CHAT, "/tokenize")                                                           \
    row(ANCHOR_TARGET_RENDER_TEXT, "/v1/completions/render")                                       \
    row(ANCHOR_TARGET_RENDER_CHAT, "/v1/chat/completions/render")                                  \
    row(ANCHOR_TARGET_RENDER_RESPONSES, "/v1/responses/render")                                    \
    row(ANCHOR_TARGET_RENDER_MESSAGES, "/v1/messages/render")
/* clang-format on */

enum anchor_target {
#define ANCHOR_TARGET_CONSTANT(constant, path) constant,
    ANCHOR_TARGET_ROWS(ANCHOR_TARGET_CONSTANT)
#undef ANCHOR_TARGET_CONSTANT
        ANCHOR_TARGET_COUNT
};

const char *anchor_target_path(enum anchor_target target);

struct anchor_plan {
    enum anchor_source source;
    enum anchor_outcome why_not; /* of ANCHOR_SOURCE_NONE */
    enum anchor_target target;   /* of ANCHOR_SOURCE_ENGINE */
    struct slice salt;           /* cache_salt, in the arena; {NULL, 0}: none */
    /* Of what decides how many tokens the template puts behind the text for the answer; 0: none. */
    uint64_t template_name;
    bool may_ask_tail;  /* the body leaves add_generation_prompt open, so that it can be spliced */
    bool must_ask_tail; /* where it is not known and cannot be asked: no anchor */
};

/*
 * prompt: the request's, named. request's values must be alive. -ENOMEM: the arena is full.
 */
MUST_CHECK int anchor_plan_make(const uint8_t *secret, const struct api_request *request,
                                const struct prompt_blocks *prompt, struct arena *arena,
                                struct anchor_plan *plan);

#endif
