/* SPDX-License-Identifier: Apache-2.0 */

#include "router/api/api_fields.h"

#include <errno.h>
#include <stdio.h>

/*
 * DESIGN
 *
 * One pass over the body's members; a table says which of them we act on, in which API, and what
 * they may be. Keys are compared unescaped, so "\u006dodel" is `model`; none is there twice
 * (json_duplicate). What is in range for a number is the engine's to say; we only need not to be
 * misled by it.
 */
enum {
    TYPES_ANY = 0,
    TYPES_STRING = 1u << JSON_STRING,
    TYPES_BOOL = 1u << JSON_BOOL,
    TYPES_ARRAY = 1u << JSON_ARRAY,
    TYPES_OBJECT = 1u << JSON_OBJECT,
    TYPES_NUMBER = 1u << JSON_INT64 | 1u << JSON_UINT64 | 1u << JSON_DOUBLE,
};

/* In which APIs a field is one. */
enum {
    IN_CHAT = 1u << API_CHAT,
    IN_COMPLETIONS = 1u << API_COMPLETIONS,
    IN_RESPONSES = 1u << API_RESPONSES,
    IN_MESSAGES = 1u << API_MESSAGES,
    IN_OPENAI = IN_CHAT | IN_COMPLETIONS,
    IN_GENERATE = IN_OPENAI | IN_RESPONSES | IN_MESSAGES,
    IN_ALL = (1u << API_COUNT) - 1,
};

/* types: a bit for each enum json_type that is fine beside null. */
static const struct field_row {
    struct slice key;
    unsigned apis;
    unsigned types;
    const char *expected;
} rows[] = {
/* clang-format off */
#define ROW(key, apis, types, expected) {{key, sizeof key - 1}, apis, types, expected}
    [FIELD_MODEL] = ROW("model", IN_ALL, TYPES_STRING, "a string"),
    [FIELD_MESSAGES] = ROW("messages", IN_CHAT | IN_MESSAGES, TYPES_ARRAY, "an array of messages"),
    [FIELD_PROMPT] = ROW("prompt", IN_COMPLETIONS, TYPES_STRING | TYPES_ARRAY,
                         "a string or an array"),
    [FIELD_PROMPT_TEMPLATE] = ROW("prompt", IN_RESPONSES, TYPES_OBJECT, "an object"),
    [FIELD_INPUT] = ROW("input", IN_RESPONSES, TYPES_STRING | TYPES_ARRAY,
                        "a string or an array of items"),
    [FIELD_SYSTEM] = ROW("system", IN_MESSAGES, TYPES_STRING | TYPES_ARRAY,
                         "a string or an array of blocks"),
    [FIELD_INSTRUCTIONS] = ROW("instructions", IN_RESPONSES, TYPES_STRING, "a string"),
    [FIELD_TOOLS] = ROW("tools", IN_GENERATE, TYPES_ARRAY, "an array of tools"),
    [FIELD_STREAM] = ROW("stream", IN_GENERATE, TYPES_BOOL, "true or false"),
    [FIELD_STREAM_OPTIONS] = ROW("stream_options", IN_OPENAI, TYPES_OBJECT, "an object"),
    [FIELD_N] = ROW("n", IN_OPENAI, TYPES_NUMBER, "a number"),
    [FIELD_BEST_OF] = ROW("best_of", IN_OPENAI, TYPES_NUMBER, "a number"),
    [FIELD_MAX_TOKENS] = ROW("max_tokens", IN_OPENAI | IN_MESSAGES, TYPES_NUMBER, "a number"),
    [FIELD_MAX_COMPLETION_TOKENS] = ROW("max_completion_tokens", IN_OPENAI, TYPES_NUMBER,
                                        "a number"),
    [FIELD_MAX_OUTPUT_TOKENS] = ROW("max_output_tokens", IN_RESPONSES, TYPES_NUMBER, "a number"),
    [FIELD_ECHO] = ROW("echo", IN_OPENAI, TYPES_BOOL, "true or false"),
    [FIELD_SUFFIX] = ROW("suffix", IN_OPENAI, TYPES_ANY, ""),
    [FIELD_CONTINUE_FINAL_MESSAGE] = ROW("continue_final_message", IN_OPENAI, TYPES_BOOL,
                                         "true or false"),
    [FIELD_ADD_GENERATION_PROMPT] = ROW("add_generation_prompt", IN_OPENAI, TYPES_BOOL,
                                        "true or false"),
    [FIELD_RETURN_TOKEN_IDS] = ROW("return_token_ids", IN_OPENAI, TYPES_ANY, ""),
    [FIELD_INCLUDE_REASONING] = ROW("include_reasoning", IN_CHAT | IN_RESPONSES, TYPES_BOOL,
                                    "true or false"),
    [FIELD_CACHE_SALT] = ROW("cache_salt", IN_GENERATE, TYPES_STRING, "a string"),
    [FIELD_PREVIOUS_RESPONSE_ID] = ROW("previous_response_id", IN_RESPONSES, TYPES_STRING,
                                       "a string"),
    [FIELD_CONVERSATION] = ROW("conversation", IN_RESPONSES, TYPES_STRING | TYPES_OBJECT,
                               "a string or an object"),
    [FIELD_BACKGROUND] = ROW("background", IN_RESPONSES, TYPES_BOOL, "true or false"),
    [FIELD_STORE] = ROW("store", IN_RESPONSES, TYPES_BOOL, "true or false"),
    [FIELD_PROMPT_CACHE_KEY] = ROW("prompt_cache_key", IN_GENERATE, TYPES_STRING, "a string"),
    [FIELD_SESSION_ID] = ROW("session_id", IN_GENERATE, TYPES_STRING, "a string"),
    [FIELD_SESSION_PARAMS] = ROW("session_params", IN_GENERATE, TYPES_OBJECT, "an object"),
    [FIELD_SAFETY_IDENTIFIER] = ROW("safety_identifier", IN_GENERATE, TYPES_STRING, "a string"),
    [FIELD_USER] = ROW("user", IN_GENERATE, TYPES_STRING, "a string"),
    [FIELD_METADATA] = ROW("metadata", IN_MESSAGES, TYPES_OBJECT, "an object"),
#undef ROW
    /* clang-format on */
};
_Static_assert(array_count(rows) == FIELD_COUNT, "every field has a row");

int api_fields_refuse(struct api_fault *fault, const char *code, struct slice param)
{
    fault->code = code;
    snprintf(fault->param, sizeof fault->param, "%.*s", (int)param.len, param.ptr);
    return -EINVAL;
}

static enum field find_field(enum api api, struct slice key)
{
    for (enum field field = 0; field < FIELD_COUNT; field++) {
        const struct field_row *row = &rows[field];

        if (row->key.len == key.len && (row->apis & 1u << api) != 0 && slice_eq(row->key, key))
            return field;
    }
    return FIELD_COUNT;
}

int api_fields_collect(enum api api, struct json_value root, struct json_value values[FIELD_COUNT],
                       struct api_fault *fault)
{
    struct json_iterator members = json_iterate(root);
    struct json_member member;

    while (json_next_member(&members, &member)) {
        enum field field = find_field(api, member.key);
        enum json_type type = json_type(member.value);

        if (field == FIELD_COUNT)
            continue;
        if (type != JSON_NULL && rows[field].types != TYPES_ANY &&
            (rows[field].types & 1u << type) == 0) {
            snprintf(fault->message, sizeof fault->message, "The field must be %s.",
                     rows[field].expected);
            return api_fields_refuse(fault, "invalid_type", rows[field].key);
        }
        values[field] = member.value;
    }
    return 0;
}

int api_fields_string(struct json_value object, const char *key, const char *param,
                      struct slice *text, struct api_fault *fault)
{
    struct json_value value = json_get(object, key);
    enum json_type type = json_type(value);

    *text = json_string(value);
    if (type == JSON_NONE || type == JSON_NULL || type == JSON_STRING)
        return 0;
    snprintf(fault->message, sizeof fault->message, "The field must be a string.");
    return api_fields_refuse(fault, "invalid_type", slice_of_string(param));
}
