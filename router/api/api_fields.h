/* SPDX-License-Identifier: Apache-2.0 */

/*
 * api_fields: the members of a body that the router acts on, by API, and of which types they may
 * be. Private to api_request. Pure; any thread.
 */
#ifndef ROUTER_API_API_FIELDS_H
#define ROUTER_API_API_FIELDS_H

#include "backends/json/json_scan.h"
#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"
#include "router/api/api.h"
#include "router/api/api_fault.h"

enum field {
    FIELD_MODEL,
    FIELD_MESSAGES,
    FIELD_PROMPT,
    FIELD_PROMPT_TEMPLATE,
    FIELD_INPUT,
    FIELD_SYSTEM,
    FIELD_INSTRUCTIONS,
    FIELD_TOOLS,
    FIELD_STREAM,
    FIELD_STREAM_OPTIONS,
    FIELD_N,
    FIELD_BEST_OF,
    FIELD_MAX_TOKENS,
    FIELD_MAX_COMPLETION_TOKENS,
    FIELD_MAX_OUTPUT_TOKENS,
    FIELD_ECHO,
    FIELD_SUFFIX,
    FIELD_CONTINUE_FINAL_MESSAGE,
    FIELD_ADD_GENERATION_PROMPT,
    FIELD_RETURN_TOKEN_IDS,
    FIELD_INCLUDE_REASONING,
    FIELD_CACHE_SALT,
    FIELD_PREVIOUS_RESPONSE_ID,
    FIELD_CONVERSATION,
    FIELD_BACKGROUND,
    FIELD_STORE,
    FIELD_PROMPT_CACHE_KEY,
    FIELD_SESSION_ID,
    FIELD_SESSION_PARAMS,
    FIELD_SAFETY_IDENTIFIER,
    FIELD_USER,
    FIELD_METADATA,
    FIELD_COUNT
};

/*
 * Fills values[] with the members of root, which has no key twice, that api has a field for; absent
 * ones stay JSON_NONE. -EINVAL: one has a wrong type, fault says which.
 */
MUST_CHECK int api_fields_collect(enum api api, struct json_value root,
                                  struct json_value values[FIELD_COUNT], struct api_fault *fault);

/* A member within a field's object. -EINVAL: it is neither a string nor null; param names it. */
MUST_CHECK int api_fields_string(struct json_value object, const char *key, const char *param,
                                 struct slice *text, struct api_fault *fault);

/* Fills code and param of fault, whose message is written already. -EINVAL. */
MUST_CHECK int api_fields_refuse(struct api_fault *fault, const char *code, struct slice param);

#endif
