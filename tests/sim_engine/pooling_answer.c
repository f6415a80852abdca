/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/pooling_answer.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "tests/sim_engine/json_text.h"
#include "tests/sim_engine/random.h"

/*
 * DESIGN
 *
 * There is no model, so a vector or a score is a digest of the prompt's tokens: the same for the
 * same prompt on every engine, which is all that a router's tests can ask. As with vLLM the usage
 * does not tell what was cached.
 */
enum { DIMENSIONS = 64 };

static uint64_t digest(const struct token_list *prompt)
{
    return XXH3_64bits(prompt->ids, prompt->count * sizeof *prompt->ids);
}

/* Of length 1. */
static void make_vector(float vector[DIMENSIONS], const struct token_list *prompt)
{
    uint64_t random = digest(prompt);
    double sum = 0;

    for (size_t i = 0; i < DIMENSIONS; i++) {
        vector[i] = (float)(random_share(&random) * 2 - 1);
        sum += (double)vector[i] * (double)vector[i];
    }
    for (size_t i = 0; i < DIMENSIONS; i++)
        vector[i] /= (float)sqrt(sum);
}

static void put_floats(struct buf *buf, const float vector[DIMENSIONS])
{
    for (size_t i = 0; i < DIMENSIONS; i++)
        text_putf(buf, "%s%.9g", i == 0 ? "[" : ",", (double)vector[i]);
    text_put(buf, SLICE("]"));
}

/* The bytes of the floats, little-endian: what the openai client asks for by itself. */
static void put_base64(struct buf *buf, const float vector[DIMENSIONS])
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    unsigned char bytes[DIMENSIONS * sizeof(float) + 2] = {0};
    size_t len = DIMENSIONS * sizeof(float);

    static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "floats are sent as they are");
    memcpy(bytes, vector, len);
    text_put(buf, SLICE("\""));
    for (size_t i = 0; i < len; i += 3) {
        uint32_t group = (uint32_t)bytes[i] << 16 | (uint32_t)bytes[i + 1] << 8 | bytes[i + 2];
        char text[4] = {digits[group >> 18], digits[group >> 12 & 63], digits[group >> 6 & 63],
                        digits[group & 63]};

        if (i + 2 >= len)
            text[3] = '=';
        if (i + 1 >= len)
            text[2] = '=';
        text_put(buf, slice_of(text, sizeof text));
    }
    text_put(buf, SLICE("\""));
}

static double score_of(const struct token_list *prompt)
{
    uint64_t random = digest(prompt);

    return random_share(&random);
}

static void put_list_head(struct buf *buf, const struct answer_head *head)
{
    text_put(buf, SLICE("{\"id\":"));
    json_put_string(buf, head->id);
    text_putf(buf, ",\"object\":\"list\",\"created\":%" PRIu64 ",\"model\":", head->created_s);
    json_put_string(buf, head->request->model);
    text_put(buf, SLICE(",\"data\":["));
}

static void put_list_end(struct buf *buf, const struct answer_head *head,
                         const struct answer_usage *usage)
{
    text_put(buf, SLICE("],\"usage\":"));
    if (head->hides_usage)
        text_put(buf, SLICE("null}"));
    else
        text_putf(buf,
                  "{\"prompt_tokens\":%zu,\"total_tokens\":%zu,\"completion_tokens\":0,"
                  "\"prompt_tokens_details\":null,\"completion_tokens_details\":null}}",
                  usage->prompt_tokens, usage->prompt_tokens);
}

static void put_embedding(struct buf *buf, const struct answer_head *head,
                          const struct answer_choice *choice)
{
    float vector[DIMENSIONS];

    make_vector(vector, choice->prompt);
    text_putf(buf, "{\"index\":%" PRIu32 ",\"object\":\"embedding\",\"embedding\":", choice->index);
    if (head->request->is_base64)
        put_base64(buf, vector);
    else
        put_floats(buf, vector);
    text_put(buf, SLICE("}"));
}

static int by_score(const void *a, const void *b)
{
    const struct answer_choice *const *left = a, *const *right = b;
    double difference = score_of((*right)->prompt) - score_of((*left)->prompt);

    if (difference != 0)
        return difference > 0 ? 1 : -1;
    return (*left)->index < (*right)->index ? -1 : 1;
}

/* The best first. */
static void put_ranking(struct buf *buf, const struct answer_head *head,
                        const struct answer_choice *choices, size_t count)
{
    const struct answer_choice **sorted = calloc(count, sizeof *sorted);
    size_t top_count = head->request->top_count;

    assert(sorted != NULL);
    for (size_t i = 0; i < count; i++)
        sorted[i] = &choices[i];
    qsort(sorted, count, sizeof *sorted, by_score);
    for (size_t i = 0; i < count && (top_count == 0 || i < top_count); i++) {
        text_putf(buf, "%s{\"index\":%" PRIu32 ",\"document\":{\"text\":", i > 0 ? "," : "",
                  sorted[i]->index);
        text_put(buf, text_piece(&head->request->echo, sorted[i]->index));
        text_putf(buf, ",\"multi_modal\":null},\"relevance_score\":%.9g}",
                  score_of(sorted[i]->prompt));
    }
    free(sorted);
}

static void put_rerank(struct buf *buf, const struct answer_head *head,
                       const struct answer_choice *choices, size_t count,
                       const struct answer_usage *usage)
{
    text_put(buf, SLICE("{\"id\":"));
    json_put_string(buf, head->id);
    text_put(buf, SLICE(",\"model\":"));
    json_put_string(buf, head->request->model);
    if (!head->hides_usage)
        text_putf(buf, ",\"usage\":{\"prompt_tokens\":%zu,\"total_tokens\":%zu}",
                  usage->prompt_tokens, usage->prompt_tokens);
    text_put(buf, SLICE(",\"results\":["));
    put_ranking(buf, head, choices, count);
    text_put(buf, SLICE("]}"));
}

static void put_body(struct buf *buf, const struct answer_head *head,
                     const struct answer_choice *choices, size_t choice_count,
                     const struct answer_usage *usage)
{
    bool is_embedding = head->request->api == ENGINE_EMBEDDINGS;

    if (head->request->api == ENGINE_RERANK) {
        put_rerank(buf, head, choices, choice_count, usage);
        return;
    }
    put_list_head(buf, head);
    for (size_t i = 0; i < choice_count; i++) {
        text_put(buf, i > 0 ? SLICE(",") : SLICE(""));
        if (is_embedding)
            put_embedding(buf, head, &choices[i]);
        else
            text_putf(buf, "{\"index\":%zu,\"object\":\"score\",\"score\":%.9g}", i,
                      score_of(choices[i].prompt));
    }
    put_list_end(buf, head, usage);
}

const struct answer_family pooling_family = {.put_body = put_body};
