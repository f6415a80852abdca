/* SPDX-License-Identifier: Apache-2.0 */

#include "router/prompt/prompt_parts.h"

/*
 * DESIGN
 *
 * An estimate for balancing load, where exact names would serve nobody: the length of all texts, 4
 * bytes for a token id, nothing for images and files, whose bytes are not what the engine reads.
 */

static bool is_media(struct slice key)
{
    return slice_eq(key, SLICE("image_url")) || slice_eq(key, SLICE("input_audio")) ||
           slice_eq(key, SLICE("video_url")) || slice_eq(key, SLICE("file")) ||
           slice_eq(key, SLICE("file_data")) || slice_eq(key, SLICE("source"));
}

static uint64_t value_size(struct json_value value);

static uint64_t object_size(struct json_value value)
{
    struct json_iterator members = json_iterate(value);
    struct json_member member;
    uint64_t size = 0;

    while (json_next_member(&members, &member))
        if (!is_media(member.key))
            size += value_size(member.value);
    return size;
}

static uint64_t array_size(struct json_value value)
{
    struct json_iterator elements = json_iterate(value);
    struct json_value element;
    uint64_t size = 0;

    while (json_next_element(&elements, &element))
        size += value_size(element);
    return size;
}

/* The recursion is as deep as JSON_DEPTH_MAX allows. */
static uint64_t value_size(struct json_value value)
{
    switch (json_type(value)) {
    case JSON_STRING:
        return json_string(value).len;
    case JSON_INT64:
    case JSON_UINT64:
        return 4;
    case JSON_ARRAY:
        return array_size(value);
    case JSON_OBJECT:
        return object_size(value);
    default:
        return 0;
    }
}

/* The first of these members that is there. */
static struct json_value first_of(struct json_value root, const char *const keys[], size_t count)
{
    struct json_value value = {0};

    for (size_t i = 0; i < count && json_type(value) == JSON_NONE; i++)
        value = json_get(root, keys[i]);
    return value;
}

/* Each document is read together with the query; of two arrays, element by element. */
static uint64_t pairs_size(struct json_value root)
{
    static const char *const query_keys[] = {"query", "queries", "text_1", "data_1"};
    static const char *const document_keys[] = {"documents", "items", "text_2", "data_2"};
    struct json_value query = first_of(root, query_keys, array_count(query_keys));
    struct json_value documents = first_of(root, document_keys, array_count(document_keys));
    bool is_repeated = json_type(query) != JSON_ARRAY || json_count(query) == 1;
    uint64_t count = json_type(documents) == JSON_ARRAY ? json_count(documents) : 1;

    return value_size(query) * (is_repeated ? count : 1) + value_size(documents);
}

uint64_t prompt_size(const struct api_request *request)
{
    struct json_value root = request->root;

    switch (request->api) {
    case API_RESPONSES: /* the part of the prompt that is in the body */
        return value_size(json_get(root, "instructions")) + value_size(json_get(root, "tools")) +
               value_size(json_get(root, "input"));
    case API_EMBEDDINGS:
        return value_size(json_get(root, "input")) + value_size(json_get(root, "messages"));
    case API_RERANK:
    case API_SCORE:
        return pairs_size(root);
    default:
        return 0;
    }
}
