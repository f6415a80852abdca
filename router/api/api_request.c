/* SPDX-License-Identifier: Apache-2.0 */

#include "router/api/api_request.h"

#include "backends/json/json_duplicate.h"
#include "router/api/api_fields.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { TYPES_NUMBER = 1u << JSON_INT64 | 1u << JSON_UINT64 | 1u << JSON_DOUBLE };

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
        return api_fields_refuse(fault, "invalid_type", SLICE("stream_options.include_usage"));
    }
    request->wants_usage = json_bool(include);
    return 0;
}

/* The last item's status says that the engine shall go on where it ends. */
static bool is_item_open(struct json_value item)
{
    struct json_value type = json_get(item, "type");
    struct slice name = json_string(type), status = json_string(json_get(item, "status"));
    bool is_message = json_type(type) != JSON_STRING || slice_eq(name, SLICE("message"));

    return (is_message || slice_eq(name, SLICE("reasoning"))) &&
           (slice_eq(status, SLICE("in_progress")) || slice_eq(status, SLICE("incomplete")));
}

static struct json_value last_element(struct json_value array)
{
    struct json_iterator elements = json_iterate(array);
    struct json_value element, last = {0};

    while (json_next_element(&elements, &element))
        last = element;
    return last;
}

/* Whether the last message is left open: each API says it its own way. */
static bool continues_message(enum api api, const struct json_value values[FIELD_COUNT])
{
    struct json_value message;

    switch (api) {
    case API_RESPONSES:
        return is_item_open(last_element(values[FIELD_INPUT]));
    case API_MESSAGES:
        message = last_element(values[FIELD_MESSAGES]);
        return slice_eq(json_string(json_get(message, "role")), SLICE("assistant"));
    default:
        return json_bool(values[FIELD_CONTINUE_FINAL_MESSAGE]);
    }
}

static bool is_given(struct json_value value)
{
    return json_type(value) != JSON_NONE && json_type(value) != JSON_NULL;
}

static bool is_false(struct json_value value)
{
    return json_type(value) == JSON_BOOL && !json_bool(value);
}

/* Only an answer that the next prompt holds word for word, behind this one, is worth learning. */
static bool is_answer_learnable(const struct api_request *request,
                                const struct json_value values[FIELD_COUNT])
{
    return api_work(request->api) == API_WORK_GENERATE && request->choice_count == 1 &&
           request->prompt_count == 1 && !request->is_token_prompt && !request->continues_message &&
           !request->continues_state && !json_bool(values[FIELD_ECHO]) &&
           !is_false(values[FIELD_ADD_GENERATION_PROMPT]) &&
           !is_false(values[FIELD_INCLUDE_REASONING]) && !is_given(values[FIELD_SUFFIX]);
}

/*
 * The first that is there, the narrowest first: what was made to bring equal prefixes together,
 * then what names a session, then what names a user, who may have many. metadata.user_id is all
 * that the messages API has; its clients put the session's id into it.
 */
static int read_session_key(const struct json_value values[FIELD_COUNT],
                            struct api_request *request, struct api_fault *fault)
{
    struct slice session, user;
    int status;

    if ((status = api_fields_string(values[FIELD_SESSION_PARAMS], "session_id",
                                    "session_params.session_id", &session, fault)) < 0 ||
        (status = api_fields_string(values[FIELD_METADATA], "user_id", "metadata.user_id", &user,
                                    fault)) < 0)
        return status;

    const struct slice keys[] = {
        json_string(values[FIELD_PROMPT_CACHE_KEY]),
        json_string(values[FIELD_SESSION_ID]),
        session,
        json_string(values[FIELD_SAFETY_IDENTIFIER]),
        json_string(values[FIELD_USER]),
        user,
    };

    for (size_t i = 0; i < array_count(keys) && request->session_key.len == 0; i++)
        request->session_key = keys[i];
    return 0;
}

static uint64_t answer_tokens_max(const struct json_value values[FIELD_COUNT])
{
    const enum field fields[] = {FIELD_MAX_COMPLETION_TOKENS, FIELD_MAX_TOKENS,
                                 FIELD_MAX_OUTPUT_TOKENS};
    uint64_t count = 0;

    for (size_t i = 0; i < array_count(fields) && count == 0; i++)
        count = count_of(values[fields[i]]);
    return count;
}

static void read_fields(const struct json_value values[FIELD_COUNT], struct api_request *request)
{
    request->model = json_string(values[FIELD_MODEL]);
    request->is_stream = json_bool(values[FIELD_STREAM]);
    request->choice_count = choice_count(values);
    request->prompt_count = 1;
    if (request->api == API_COMPLETIONS)
        read_prompt(values[FIELD_PROMPT], request);
    request->answer_tokens_max = answer_tokens_max(values);
    request->previous_response_id = json_string(values[FIELD_PREVIOUS_RESPONSE_ID]);
    request->is_background = json_bool(values[FIELD_BACKGROUND]);
    request->is_stored = request->api == API_RESPONSES && !is_false(values[FIELD_STORE]);
    request->continues_message = continues_message(request->api, values);
    request->continues_state = is_given(values[FIELD_PREVIOUS_RESPONSE_ID]) ||
                               is_given(values[FIELD_CONVERSATION]) ||
                               is_given(values[FIELD_PROMPT_TEMPLATE]);
    request->is_answer_learnable = is_answer_learnable(request, values);
}

/* Python's parser, which most engines read with, takes the last of two equal keys, others the
 * first: who sends both would have us choose by what the engine does not see. */
static int refuse_duplicates(struct json_value root, struct api_fault *fault)
{
    int status = json_find_duplicate(root, fault->param);

    if (status <= 0)
        return status;
    snprintf(fault->message, sizeof fault->message,
             "The field is in the body twice; send it once.");
    fault->code = "duplicate_field";
    return -EINVAL;
}

static int scan_body(struct json_scanner *scanner, struct slice body, struct api_request *request,
                     struct api_fault *fault)
{
    struct parse_error error;
    int status = json_scan(scanner, body, &request->root, &error);

    if (status == -EINVAL) {
        snprintf(fault->message, sizeof fault->message,
                 "The body is not valid JSON: at byte %zu: %s", error.offset, error.message);
        return api_fields_refuse(fault, "invalid_json", SLICE(""));
    }
    if (status < 0)
        return status;
    if (json_type(request->root) != JSON_OBJECT) {
        snprintf(fault->message, sizeof fault->message, "The body must be a JSON object.");
        return api_fields_refuse(fault, "invalid_type", SLICE(""));
    }
    return refuse_duplicates(request->root, fault);
}

_Static_assert(sizeof((struct api_fault *)NULL)->param >= JSON_PATH_BYTES_MAX, "a path fits");

int api_request_parse(enum api api, struct json_scanner *scanner, struct slice body,
                      struct api_request *request, struct api_fault *fault)
{
    struct json_value values[FIELD_COUNT] = {{0}};
    int status;

    *request = (struct api_request){.api = api};
    *fault = (struct api_fault){.code = ""};
    if ((status = scan_body(scanner, body, request, fault)) < 0 ||
        (status = api_fields_collect(api, request->root, values, fault)) < 0 ||
        (status = read_stream_options(values[FIELD_STREAM_OPTIONS], request, fault)) < 0 ||
        (status = read_session_key(values, request, fault)) < 0)
        return status;

    request->has_return_token_ids = json_type(values[FIELD_RETURN_TOKEN_IDS]) != JSON_NONE;
    read_fields(values, request);
    request->object_start = (size_t)((const char *)memchr(body.ptr, '{', body.len) - body.ptr);
    request->is_object_empty = json_count(request->root) == 0;
    return 0;
}

struct slice api_request_usage_splice(const struct api_request *request)
{
    bool takes_option = request->api == API_CHAT || request->api == API_COMPLETIONS;

    /* Streams of the other APIs carry usage unasked. */
    if (!takes_option || !request->is_stream || request->has_stream_options)
        return SLICE("");
    return SLICE("\"stream_options\":{\"include_usage\":true},");
}
