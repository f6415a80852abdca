/* SPDX-License-Identifier: Apache-2.0 */

#include "router/prompt/prompt_parts.h"
#include "router/prompt/value_digest.h"

enum { IDS_AT_ONCE = 256 };

static bool token_id(struct json_value value, uint32_t *id)
{
    int64_t number = json_int64(value);

    *id = (uint32_t)number;
    return json_type(value) == JSON_INT64 && number >= 0 && number <= UINT32_MAX;
}

static int write_token_ids(struct prompt_sink *sink, struct json_value ids)
{
    struct json_iterator elements = json_iterate(ids);
    unsigned char bytes[4 * IDS_AT_ONCE];
    struct json_value element;
    size_t len = 0;
    uint32_t id;

    while (json_next_element(&elements, &element)) {
        if (!token_id(element, &id))
            return prompt_refuse(sink, "invalid_type", "prompt",
                                 "Each token id must be a whole number from 0 to 4294967295.");
        for (size_t i = 0; i < 4; i++)
            bytes[len++] = (unsigned char)(id >> 8 * i);
        if (len == sizeof bytes) {
            prompt_write_text(&sink->writer, slice_of(bytes, len));
            len = 0;
        }
    }
    prompt_write_text(&sink->writer, slice_of(bytes, len));
    return 0;
}

/* Bytes of the second and later prompts of a body: read, but not named. */
static int count_further(struct prompt_sink *sink, struct json_iterator *prompts,
                         enum json_type type, uint64_t *bytes)
{
    struct json_value prompt;

    while (json_next_element(prompts, &prompt)) {
        if (json_type(prompt) != type)
            return prompt_refuse(sink, "invalid_type", "prompt",
                                 "The prompts of one body must all be texts, or all be token ids.");
        *bytes += type == JSON_STRING ? json_string(prompt).len : 4 * json_count(prompt);
    }
    return 0;
}

int prompt_write_completion(struct prompt_sink *sink, const struct api_request *request,
                            uint64_t *further_bytes)
{
    struct json_value prompt = json_get(request->root, "prompt"), first = prompt;
    struct json_iterator prompts = json_iterate(prompt);
    int status = 0;

    if (value_is_empty(prompt) && json_type(prompt) != JSON_STRING) {
        if (!value_is_empty(json_get(request->root, "prompt_embeds")))
            return 0; /* it is in the root; nothing to cut into blocks */
        return prompt_refuse(sink, "missing_field", "prompt", "The body needs a prompt.");
    }
    if (json_type(prompt) == JSON_ARRAY && json_next_element(&prompts, &first) &&
        json_type(first) != JSON_STRING && json_type(first) != JSON_ARRAY)
        return write_token_ids(sink, prompt);

    if (json_type(first) == JSON_STRING)
        prompt_write_text(&sink->writer, json_string(first));
    else
        status = write_token_ids(sink, first);
    if (status == 0 && json_type(prompt) == JSON_ARRAY)
        status = count_further(sink, &prompts, json_type(first), further_bytes);
    return status;
}
