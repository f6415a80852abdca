/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/pooling_request.h"

#include <errno.h>
#include <inttypes.h>

#include "tests/sim_engine/json_text.h"
#include "tests/sim_engine/request_part.h"
#include "tests/sim_engine/tokenizer.h"

/*
 * DESIGN
 *
 * A prompt of embeddings is one input; one of rerank and score is a pair of texts, read as a
 * cross-encoder reads it. Each is one token long for the scheduler: that token stands for the
 * pooling of the prompt's last step, and is shown to nobody.
 */

enum { POOLING_ANSWER_TOKENS = 1 };

static int read_embeddings(const struct request_reader *reader, struct json_value root,
                           struct engine_request *request, struct engine_fault *fault)
{
    struct json_value format = json_get(root, "encoding_format");

    request->is_base64 = slice_eq(json_string(format), SLICE("base64"));
    if (json_is_given(format) && !request->is_base64 &&
        !slice_eq(json_string(format), SLICE("float")))
        return request_refuse_field(fault, "encoding_format", "literal_error",
                                    "Input should be 'float' or 'base64'");
    if (json_is_given(json_get(root, "dimensions")))
        return request_refuse(fault, "",
                              "The model does not support Matryoshka embeddings; "
                              "dimensions must be unset.");
    if (json_is_given(json_get(root, "messages")))
        return request_read_chat_prompt(reader->model, root, request, fault);
    if (request_read_prompts(root, "input", request, fault) < 0)
        return -EINVAL;
    if (request->prompt_count == 0)
        return request_refuse(fault, "", "You must pass at least one prompt");
    return 0;
}

/* One side of the pairs: a text, or an array of texts. */
struct side {
    struct json_value value;
    struct json_iterator iterator;
    size_t count;
};

static int read_side(struct json_value root, const char *key, struct side *side,
                     struct engine_fault *fault)
{
    struct json_value text;

    side->value = json_get(root, key);
    if (!json_is_given(side->value))
        return request_refuse_missing(fault, key);
    side->iterator = json_iterate(side->value);
    side->count = json_type(side->value) == JSON_STRING ? 1 : json_count(side->value);
    while (json_type(side->value) == JSON_ARRAY && json_next_element(&side->iterator, &text)) {
        if (json_type(text) != JSON_STRING)
            return request_refuse_field(fault, key, "string_type",
                                        "Input should be a valid string");
    }
    side->iterator = json_iterate(side->value);
    return 0;
}

/* The texts in turn; a single one again and again. */
static struct slice next_text(struct side *side)
{
    struct json_value text = side->value;

    if (json_type(side->value) != JSON_ARRAY)
        return json_string(side->value);
    if (!json_next_element(&side->iterator, &text)) {
        side->iterator = json_iterate(side->value);
        (void)json_next_element(&side->iterator, &text);
    }
    return json_string(text);
}

static int add_pairs(struct engine_request *request, struct side *first, struct side *second,
                     struct engine_fault *fault)
{
    if (first->count == 0 || second->count == 0)
        return request_refuse(fault, "", "At least one text_pair element must be given");
    if (first->count != 1 && first->count != second->count)
        return request_refuse(fault, "", "Input lengths must be either 1:1, 1:N or N:N");
    for (size_t i = 0; i < second->count; i++) {
        struct token_list *ids = request_add_prompt(request);
        struct slice text = next_text(second);

        tokenizer_encode(next_text(first), ids);
        tokenizer_encode(text, ids);
        if (request->api == ENGINE_RERANK) {
            json_put_string(&request->echo, text);
            text_end_piece(&request->echo);
        }
    }
    return 0;
}

static int read_pairs(struct json_value root, const char *first_key, const char *second_key,
                      struct engine_request *request, struct engine_fault *fault)
{
    struct side first, second;

    if (read_side(root, first_key, &first, fault) < 0 ||
        read_side(root, second_key, &second, fault) < 0)
        return -EINVAL;
    return add_pairs(request, &first, &second, fault);
}

static int read_rerank(struct json_value root, struct engine_request *request,
                       struct engine_fault *fault)
{
    int64_t count = 0;

    if (request_read_int(root, "top_n", &count, fault) < 0)
        return -EINVAL;
    if (count < 0)
        return request_refuse_field(fault, "top_n", "greater_than_equal",
                                    "Input should be greater than or equal to 0");
    request->top_count = (size_t)count;
    return read_pairs(root, "query", "documents", request, fault);
}

/* The first of the four pairs of names of which one is there; vLLM complains in the first's. */
static int read_score(struct json_value root, struct engine_request *request,
                      struct engine_fault *fault)
{
    static const char *const keys[][2] = {
        {"queries", "documents"}, {"queries", "items"}, {"data_1", "data_2"}, {"text_1", "text_2"}};

    for (size_t i = 0; i < array_count(keys); i++) {
        if (json_is_given(json_get(root, keys[i][0])) && json_is_given(json_get(root, keys[i][1])))
            return read_pairs(root, keys[i][0], keys[i][1], request, fault);
    }
    return request_refuse_missing(fault, keys[0][0]);
}

int pooling_request_read(const struct request_reader *reader, struct json_value root,
                         struct engine_request *request, struct engine_fault *fault)
{
    request->answer_tokens = POOLING_ANSWER_TOKENS;
    request->has_length_limit = true;
    if (request->api == ENGINE_EMBEDDINGS)
        return read_embeddings(reader, root, request, fault);
    return request->api == ENGINE_RERANK ? read_rerank(root, request, fault)
                                         : read_score(root, request, fault);
}
