/* SPDX-License-Identifier: Apache-2.0 */

#include "router/prompt/answer_stream.h"

#include "router/prompt/answer_stream_parts.h"

#include <stdlib.h>

/*
 * DESIGN
 *
 * The engine caches its own answer; the next turn's prompt holds it as an assistant message. So the
 * message is written here as prompt_stream.c will write it then: role, reasoning, content, calls,
 * in this order. Answers come in this order too (reasoning is thought before content is said, calls
 * come last, one by one); an answer that jumps back, or holds what we cannot foresee a client to
 * send (refusals, audio, several choices), is relayed all the same but not learned.
 *
 * Reasoning is part of the chain because it lies in the engine's cache before the content: where a
 * client drops it, the next prompt parts from the cached tokens exactly where its stream parts from
 * this one. Texts of zero length count as absent, as in requests.
 *
 * Each event is scanned as a whole: most are a few hundred bytes, and a scanner that stays warm
 * needs no memory. Each API family has a reader of its own; a body is read as if all of it came at
 * once.
 */

bool answer_read_count(struct json_value value, uint64_t *count)
{
    if (json_type(value) != JSON_INT64 || json_int64(value) < 0)
        return false;
    *count = (uint64_t)json_int64(value);
    return true;
}

/* The HTTP status that a word for an error stands for; 0: none that we know. */
static uint64_t status_of_word(struct slice word)
{
    static const struct {
        struct slice word;
        uint64_t status;
    } rows[] = {
#define ROW(word, status) {{word, sizeof word - 1}, status}
        ROW("invalid_request_error", 400), ROW("authentication_error", 401),
        ROW("billing_error", 402),         ROW("permission_error", 403),
        ROW("not_found_error", 404),       ROW("conflict_error", 409),
        ROW("request_too_large", 413),     ROW("rate_limit_error", 429),
        ROW("rate_limit_exceeded", 429),   ROW("api_error", 500),
        ROW("internal_error", 500),        ROW("server_error", 500),
        ROW("timeout_error", 504),         ROW("overloaded_error", 529),
#undef ROW
    };

    for (size_t i = 0; i < array_count(rows); i++)
        if (slice_eq(rows[i].word, word))
            return rows[i].status;
    return 0;
}

enum answer_event_kind answer_fail(struct answer_stream *answer, struct json_value error)
{
    struct json_value code = json_get(error, "code");

    answer->has_error = true;
    answer->is_learnable = false;
    if (answer_read_count(code, &answer->error_code))
        return ANSWER_EVENT_ERROR;
    answer->error_code = status_of_word(json_string(code));
    if (answer->error_code == 0)
        answer->error_code = status_of_word(json_string(json_get(error, "type")));
    return ANSWER_EVENT_ERROR;
}

void answer_stream_init(struct answer_stream *answer, const struct api_request *request,
                        const struct block_chain *prompt_chain)
{
    *answer = (struct answer_stream){.api = request->api};
    if (prompt_chain == NULL)
        return;
    answer->is_learnable = request->is_answer_learnable;
    answer->chain = *prompt_chain;
    answer->chain.blocks = NULL; /* its blocks are the prompt's; ours begin behind them */
    answer->chain.block_count = 0;
    answer->chain.block_count_max = 0;
}

static bool is_done_mark(struct slice data)
{
    while (data.len > 0 && data.ptr[data.len - 1] == ' ')
        data.len--;
    return slice_eq(data, SLICE("[DONE]"));
}

static enum answer_event_kind read_event(struct answer_stream *answer, struct json_value root)
{
    switch (api_family(answer->api)) {
    case API_FAMILY_RESPONSES:
        return answer_read_responses_event(answer, root);
    case API_FAMILY_ANTHROPIC:
        return answer_read_messages_event(answer, root);
    default:
        return answer_read_chat(answer, root);
    }
}

static enum answer_event_kind read_body(struct answer_stream *answer, struct json_value root)
{
    switch (api_family(answer->api)) {
    case API_FAMILY_RESPONSES:
        return answer_read_responses_body(answer, root);
    case API_FAMILY_ANTHROPIC:
        return answer_read_messages_body(answer, root);
    default:
        return answer_read_chat(answer, root);
    }
}

enum answer_event_kind answer_stream_event(struct answer_stream *answer,
                                           struct json_scanner *scanner, struct slice data)
{
    enum answer_event_kind kind;
    struct parse_error error;
    struct json_value root;

    answer->event_count++;
    if (api_family(answer->api) == API_FAMILY_OPENAI && is_done_mark(data)) {
        answer->has_done = true;
        return ANSWER_EVENT_DONE;
    }
    if (json_scan(scanner, data, &root, &error) < 0) {
        answer->is_learnable = false; /* it may have held text */
        return ANSWER_EVENT_OTHER;
    }
    kind = read_event(answer, root);
    answer->has_content |= kind == ANSWER_EVENT_CONTENT;
    return kind;
}

bool answer_stream_body(struct answer_stream *answer, struct json_scanner *scanner,
                        struct slice body)
{
    enum answer_event_kind kind;
    struct parse_error error;
    struct json_value root;

    if (json_scan(scanner, body, &root, &error) < 0 || json_type(root) != JSON_OBJECT) {
        answer->is_learnable = false;
        return false;
    }
    kind = read_body(answer, root);
    answer->has_content |= kind == ANSWER_EVENT_CONTENT;
    return kind != ANSWER_EVENT_OTHER || answer->has_finished;
}

const struct block *answer_stream_finish(struct answer_stream *answer, size_t *block_count)
{
    *block_count = 0;
    if (!answer->is_learnable || !answer->has_finished)
        return NULL;
    if (!answer->is_closed) {
        answer->is_closed = true;
        answer->block_count = answer->chain.block_count;
        if (!answer->is_full)
            answer_close(answer);
    }
    *block_count = answer->block_count;
    return answer->block_count > 0 ? answer->blocks : NULL;
}

void answer_stream_release(struct answer_stream *answer)
{
    free(answer->blocks);
    answer->blocks = answer->chain.blocks = NULL;
    answer->block_count = answer->chain.block_count = answer->chain.block_count_max = 0;
    answer->is_learnable = false;
}
