/* SPDX-License-Identifier: Apache-2.0 */

#include "router/api/api_request.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/*
 * DESIGN
 *
 * One pass over the body's members; a table says which of them we act on and what they may be. Two
 * parsers may disagree on which of two equal keys counts (Python: the last; json_get(): the first),
 * and a router that reads another `model` than the engine can be led past its own rules: a field we
 * act on, written twice, is refused. Keys are compared unescaped, so "\u006dodel" is `model`.
 * What is in range for a number is the engine's to say; we only need not to be misled by it.
 */
enum field {
    FIELD_MODEL,
    FIELD_MESSAGES,
    FIELD_PROMPT,
    FIELD_STREAM,
    FIELD_STREAM_OPTIONS,
    FIELD_N,
    FIELD_BEST_OF,
    FIELD_MAX_TOKENS,
    FIELD_MAX_COMPLETION_TOKENS,
    FIELD_ECHO,
    FIELD_SUFFIX,
    FIELD_CONTINUE_FINAL_MESSAGE,
    FIELD_ADD_GENERATION_PROMPT,
    FIELD_CACHE_SALT,
    FIELD_TOOLS,
    FIELD_COUNT
};

enum { TYPES_ANY = 0, TYPES_NUMBER = 1u << JSON_INT64 | 1u << JSON_UINT64 | 1u << JSON_DOUBLE };

/* types: a bit for each enum json_type that is fine beside null. */
static const struct field_row {
    struct slice key;
    unsigned types;
    const char *expected;
} rows[] = {
    [FIELD_MODEL] = {{"model", 5}, 1u << JSON_STRING, "a string"},
    [FIELD_MESSAGES] = {{"messages", 8}, 1u << JSON_ARRAY, "an array of messages"},
    [FIELD_PROMPT] = {{"prompt", 6}, 1u << JSON_STRING | 1u << JSON_ARRAY, "a string or an array"},
    [FIELD_STREAM] = {{"stream", 6}, 1u << JSON_BOOL, "true or false"},
    [FIELD_STREAM_OPTIONS] = {{"stream_options", 14}, 1u << JSON_OBJECT, "an object"},
    [FIELD_N] = {{"n", 1}, TYPES_NUMBER, "a number"},
    [FIELD_BEST_OF] = {{"best_of", 7}, TYPES_NUMBER, "a number"},
    [FIELD_MAX_TOKENS] = {{"max_tokens", 10}, TYPES_NUMBER, "a number"},
    [FIELD_MAX_COMPLETION_TOKENS] = {{"max_completion_tokens", 21}, TYPES_NUMBER, "a number"},
    [FIELD_ECHO] = {{"echo", 4}, 1u << JSON_BOOL, "true or false"},
    [FIELD_SUFFIX] = {{"suffix", 6}, TYPES_ANY, ""},
    [FIELD_CONTINUE_FINAL_MESSAGE] = {{"continue_final_message", 22},
                                      1u << JSON_BOOL,
                                      "true or false"},
    [FIELD_ADD_GENERATION_PROMPT] = {{"add_generation_prompt", 21},
                                     1u << JSON_BOOL,
                                     "true or false"},
    [FIELD_CACHE_SALT] = {{"cache_salt", 10}, 1u << JSON_STRING, "a string"},
    [FIELD_TOOLS] = {{"tools", 5}, 1u << JSON_ARRAY, "an array of tools"},
};
_Static_assert(array_count(rows) == FIELD_COUNT, "every field has a row");

static int refuse(struct api_fault *fault, const char *code, struct slice param)
{
    fault->code = code;
    snprintf(fault->param, sizeof fault->param, "%.*s", (int)param.len, param.ptr);
    return -EINVAL;
}

static enum field find_field(struct slice key)
{
    enum field field = 0;

    while (field < FIELD_COUNT && !slice_eq(rows[field].key, key))
        field++;
    return field;
}

/* Fills values[] with the members we act on. */
static int collect(struct json_value root, struct json_value values[FIELD_COUNT],
                   struct api_fault *fault)
{
    struct json_iterator members = json_iterate(root);
    struct json_member member;

    while (json_next_member(&members, &member)) {
        enum field field = find_field(member.key);
        enum json_type type = json_type(member.value);

        if (field == FIELD_COUNT)
            continue;
        if (json_type(values[field]) != JSON_NONE) {
            snprintf(fault->message, sizeof fault->message,
                     "The field is in the body twice; send it once.");
            return refuse(fault, "duplicate_field", rows[field].key);
        }
        if (type != JSON_NULL && rows[field].types != TYPES_ANY &&
            (rows[field].types & 1u << type) == 0) {
            snprintf(fault->message, sizeof fault->message, "The field must be %s.",
                     rows[field].expected);
            return refuse(fault, "invalid_type", rows[field].key);
        }
        values[field] = member.value;
    }
    return 0;
}

/* A count from any spelling of a number; below 0 is 0. */
static uint64_t count_of(struct json_value value)
{
    double number;
    int64_t integer;

    switch (json_type(value)) {
    case JSON_INT64:
    case JSON_UINT64:
        integer = json_int64(value);
        return integer > 0 ? (uint64_t)integer : 0;
    case JSON_DOUBLE:
        number = json_double(value);
        return number >= 1 && number < (double)INT64_MAX ? (uint64_t)number : 0;
    default:
        return 0;
    }
}

/* n and best_of: at least the one answer there always is. */
static uint32_t choice_count(const struct json_value values[FIELD_COUNT])
{
    uint64_t n = count_of(values[FIELD_N]), best_of = count_of(values[FIELD_BEST_OF]);
    uint64_t count = best_of > n ? best_of : n;

    if (count == 0)
        return 1;
    return count < UINT32_MAX ? (uint32_t)count : UINT32_MAX;
}

static bool is_number(struct json_value value)
{
    return (TYPES_NUMBER & 1u << json_type(value)) != 0;
}

/* The four forms of a prompt: text, texts, ids, arrays of ids. */
static void read_prompt(struct json_value prompt, struct api_request *request)
{
    struct json_iterator elements = json_iterate(prompt);
    struct json_value first;

    request->prompt_count = 1;
    if (json_type(prompt) != JSON_ARRAY || !json_next_element(&elements, &first))
        return;
    if (is_number(first)) {
        request->is_token_prompt = true;
        return;
    }
    request->prompt_count = (uint32_t)json_count(prompt);
    request->is_token_prompt = json_type(first) == JSON_ARRAY;
}

static int read_stream_options(struct json_value options, struct api_request *request,
                               struct api_fault *fault)
{
    struct json_value include = json_get(options, "include_usage");
    enum json_type type = json_type(include);

    request->has_stream_options = json_type(options) != JSON_NONE;
    if (type != JSON_NONE && type != JSON_NULL && type != JSON_BOOL) {
        snprintf(fault->message, sizeof fault->message, "The field must be true or false.");
        return refuse(fault, "invalid_type", SLICE("stream_options.include_usage"));
    }
    request->wants_usage = json_bool(include);
    return 0;
}

/* Only an answer that the next prompt holds word for word, behind this one, is worth learning. */
static bool is_answer_learnable(const struct api_request *request,
                                const struct json_value values[FIELD_COUNT])
{
    struct json_value generation = values[FIELD_ADD_GENERATION_PROMPT];
    enum json_type suffix = json_type(values[FIELD_SUFFIX]);

    return request->choice_count == 1 && request->prompt_count == 1 && !request->is_token_prompt &&
           !request->continues_message && !json_bool(values[FIELD_ECHO]) &&
           (json_type(generation) != JSON_BOOL || json_bool(generation)) &&
           (suffix == JSON_NONE || suffix == JSON_NULL);
}

static int scan_body(struct json_scanner *scanner, struct slice body, struct api_request *request,
                     struct api_fault *fault)
{
    struct parse_error error;
    int status = json_scan(scanner, body, &request->root, &error);

    if (status == -EINVAL) {
        snprintf(fault->message, sizeof fault->message,
                 "The body is not valid JSON: at byte %zu: %s", error.offset, error.message);
        return refuse(fault, "invalid_json", SLICE(""));
    }
    if (status < 0)
        return status;
    if (json_type(request->root) != JSON_OBJECT) {
        snprintf(fault->message, sizeof fault->message, "The body must be a JSON object.");
        return refuse(fault, "invalid_type", SLICE(""));
    }
    return 0;
}

int api_request_parse(enum api api, struct json_scanner *scanner, struct slice body,
                      struct api_request *request, struct api_fault *fault)
{
    struct json_value values[FIELD_COUNT] = {{0}};
    uint64_t tokens_max;
    int status;

    *request = (struct api_request){.api = api};
    *fault = (struct api_fault){.code = ""};
    if ((status = scan_body(scanner, body, request, fault)) < 0 ||
        (status = collect(request->root, values, fault)) < 0 ||
        (status = read_stream_options(values[FIELD_STREAM_OPTIONS], request, fault)) < 0)
        return status;

    request->model = json_string(values[FIELD_MODEL]);
    request->is_stream = json_bool(values[FIELD_STREAM]);
    request->choice_count = choice_count(values);
    request->prompt_count = 1;
    if (api == API_COMPLETIONS)
        read_prompt(values[FIELD_PROMPT], request);
    tokens_max = count_of(values[FIELD_MAX_COMPLETION_TOKENS]);
    request->answer_tokens_max = tokens_max > 0 ? tokens_max : count_of(values[FIELD_MAX_TOKENS]);
    request->continues_message = json_bool(values[FIELD_CONTINUE_FINAL_MESSAGE]);
    request->is_answer_learnable = is_answer_learnable(request, values);
    request->object_start = (size_t)((const char *)memchr(body.ptr, '{', body.len) - body.ptr);
    request->is_object_empty = json_count(request->root) == 0;
    return 0;
}

struct slice api_request_usage_splice(const struct api_request *request)
{
    if (!request->is_stream || request->has_stream_options)
        return SLICE("");
    return SLICE("\"stream_options\":{\"include_usage\":true},");
}
