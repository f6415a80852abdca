/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/chat_answer.h"

#include <assert.h>
#include <inttypes.h>

#include "tests/sim_engine/engine_answer.h"
#include "tests/sim_engine/json_text.h"

/*
 * DESIGN
 *
 * Written by hand instead of through a tree: the order of keys and which of them are null is the
 * contract, and here it can be read beside a recording. Two oddities are vLLM's: the fingerprint
 * stands only in the last event of a stream, and stop_reason only in events that finish (chat).
 */

#define FINGERPRINT "\"system_fingerprint\":\"vllm-" ENGINE_VERSION "-samovar0\""

static bool is_chat(const struct answer_head *head)
{
    return head->request->api == ENGINE_CHAT;
}

static void put_ids_or_null(struct buf *buf, bool is_wanted, const uint32_t *ids, size_t count)
{
    if (is_wanted)
        json_put_ids(buf, ids, count);
    else
        text_put(buf, SLICE("null"));
}

static void put_preamble(struct buf *buf, const struct answer_head *head, const char *object)
{
    text_put(buf, SLICE("{\"id\":"));
    json_put_string(buf, head->id);
    text_putf(buf, ",\"object\":\"%s\",\"created\":%" PRIu64 ",\"model\":", object,
              head->created_s);
    json_put_string(buf, head->request->model);
}

static void put_event_preamble(struct buf *buf, const struct answer_head *head)
{
    text_put(buf, SLICE("data: "));
    put_preamble(buf, head, is_chat(head) ? "chat.completion.chunk" : "text_completion");
}

static void put_usage_counts(struct buf *buf, const struct answer_usage *usage)
{
    text_putf(buf,
              "\"usage\":{\"prompt_tokens\":%zu,\"total_tokens\":%zu,\"completion_tokens\":%zu",
              usage->prompt_tokens, usage->prompt_tokens + usage->completion_tokens,
              usage->completion_tokens);
}

/* In every event, where that was asked for. The cached tokens are only in the last. */
static void put_running_usage(struct buf *buf, const struct answer_head *head,
                              const struct answer_usage *usage)
{
    if (!head->request->wants_usage_always || head->hides_usage)
        return;
    text_put(buf, SLICE(","));
    put_usage_counts(buf, usage);
    text_put(buf, SLICE(",\"completion_tokens_details\":null}"));
}

/* The role of each choice, with nothing said yet. */
static void put_beginning(struct buf *buf, struct answer_head *head,
                          const struct answer_choice *choice, const struct answer_usage *usage)
{
    struct answer_usage none = {.prompt_tokens = usage->prompt_tokens};

    if (!is_chat(head))
        return;
    put_event_preamble(buf, head);
    text_putf(buf,
              ",\"choices\":[{\"index\":%" PRIu32
              ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
              "\"finish_reason\":null}]",
              choice->index);
    put_running_usage(buf, head, &none);
    text_put(buf, SLICE(",\"prompt_token_ids\":"));
    put_ids_or_null(buf, head->request->wants_ids, choice->prompt->ids, choice->prompt->count);
    text_put(buf, SLICE(",\"prompt_text\":null}\n\n"));
}

static void put_delta(struct buf *buf, const struct answer_head *head, uint32_t choice,
                      struct answer_piece piece)
{
    switch (piece.kind) {
    case ANSWER_SILENT:
        text_put(buf, SLICE("{"));
        break;
    case ANSWER_CONTENT:
        text_put(buf, SLICE("{\"content\":"));
        json_put_string(buf, piece.text);
        break;
    case ANSWER_REASONING:
        text_put(buf, SLICE("{\"reasoning\":"));
        json_put_string(buf, piece.text);
        break;
    case ANSWER_TOOL_NAME:
        text_put(buf, SLICE("{\"tool_calls\":[{\"id\":"));
        answer_put_call_id(buf, head, choice);
        text_put(buf, SLICE(",\"type\":\"function\",\"index\":0,\"function\":{\"name\":"));
        json_put_string(buf, piece.text);
        text_put(buf, SLICE(",\"arguments\":\"\"}}]"));
        break;
    case ANSWER_TOOL_ARGUMENTS:
        text_put(buf, SLICE("{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":"));
        json_put_string(buf, piece.text);
        text_put(buf, SLICE("}}]"));
        break;
    }
    text_put(buf, SLICE("}"));
}

static void put_chat_choice(struct buf *buf, const struct answer_head *head,
                            const struct answer_choice *choice, struct answer_piece piece)
{
    text_putf(buf, ",\"choices\":[{\"index\":%" PRIu32 ",\"delta\":", choice->index);
    put_delta(buf, head, choice->index, piece);
    text_put(buf, SLICE(",\"logprobs\":null,\"finish_reason\":"));
    json_put_string_or_null(buf, choice->finish_reason);
    if (choice->finish_reason != NULL)
        text_put(buf, SLICE(",\"stop_reason\":null"));
    text_put(buf, SLICE(",\"token_ids\":"));
    put_ids_or_null(buf, head->request->wants_ids, &piece.id, 1);
    text_put(buf, SLICE("}]"));
}

static void put_completion_choice(struct buf *buf, const struct answer_head *head,
                                  const struct answer_choice *choice, struct answer_piece piece)
{
    bool is_first = choice->answered_count == 1;

    text_putf(buf, ",\"choices\":[{\"index\":%" PRIu32 ",\"text\":", choice->index);
    json_put_string(buf, piece.text);
    text_put(buf, SLICE(",\"logprobs\":null,\"finish_reason\":"));
    json_put_string_or_null(buf, choice->finish_reason);
    text_put(buf, SLICE(",\"stop_reason\":null,\"prompt_token_ids\":"));
    put_ids_or_null(buf, head->request->wants_ids && is_first, choice->prompt->ids,
                    choice->prompt->count);
    text_put(buf, SLICE(",\"token_ids\":"));
    put_ids_or_null(buf, head->request->wants_ids, &piece.id, 1);
    text_put(buf, SLICE("}]"));
}

/* The event of the choice's newest token; nothing where the token shows nothing. */
static void put_token(struct buf *buf, struct answer_head *head, const struct answer_choice *choice,
                      const struct answer_usage *usage, bool is_last)
{
    struct answer_piece piece = answer_plan_piece(choice->plan, choice->answered_count - 1);

    if (is_chat(head) && piece.kind == ANSWER_SILENT && choice->finish_reason == NULL)
        return;
    put_event_preamble(buf, head);
    if (is_chat(head))
        put_chat_choice(buf, head, choice, piece);
    else
        put_completion_choice(buf, head, choice, piece);
    put_running_usage(buf, head, usage);
    if (is_last && (!head->request->wants_usage || head->hides_usage))
        text_put(buf, SLICE("," FINGERPRINT));
    text_put(buf, SLICE("}\n\n"));
}

static void put_usage_event(struct buf *buf, const struct answer_head *head,
                            const struct answer_usage *usage)
{
    put_event_preamble(buf, head);
    text_put(buf, SLICE(",\"choices\":[],"));
    put_usage_counts(buf, usage);
    text_putf(buf, ",\"prompt_tokens_details\":{\"cached_tokens\":%zu", usage->cached_tokens);
    if (is_chat(head))
        text_putf(buf, ",\"created_cache_tokens\":%zu", usage->created_tokens);
    text_put(buf, SLICE("}}," FINGERPRINT "}\n\n"));
}

static void put_end(struct buf *buf, struct answer_head *head, const struct answer_choice *choice,
                    const struct answer_usage *usage)
{
    (void)choice;
    if (head->request->wants_usage && !head->hides_usage)
        put_usage_event(buf, head, usage);
    if (!head->hides_done)
        text_put(buf, SLICE("data: [DONE]\n\n"));
}

static void put_tool_calls(struct buf *buf, const struct answer_head *head,
                           const struct answer_choice *choice)
{
    const struct answer_plan *plan = choice->plan;

    text_put(buf, SLICE(",\"tool_calls\":[{\"id\":"));
    answer_put_call_id(buf, head, choice->index);
    text_put(buf, SLICE(",\"type\":\"function\",\"function\":{\"name\":"));
    json_put_string(buf, answer_plan_text(plan, ANSWER_TOOL_NAME, choice->answered_count));
    text_put(buf, SLICE(",\"arguments\":"));
    json_put_string(buf, answer_plan_text(plan, ANSWER_TOOL_ARGUMENTS, choice->answered_count));
    text_put(buf, SLICE("}}]"));
}

static void put_message(struct buf *buf, const struct answer_head *head,
                        const struct answer_choice *choice)
{
    struct slice reasoning =
        answer_plan_text(choice->plan, ANSWER_REASONING, choice->answered_count);

    text_putf(buf, "{\"index\":%" PRIu32 ",\"message\":{\"role\":\"assistant\",\"content\":",
              choice->index);
    json_put_string(buf, answer_plan_text(choice->plan, ANSWER_CONTENT, choice->answered_count));
    text_put(buf, SLICE(",\"refusal\":null,\"annotations\":null,\"audio\":null,"
                        "\"function_call\":null"));
    if (answer_plan_is_tool_call(choice->plan))
        put_tool_calls(buf, head, choice);
    text_put(buf, SLICE(",\"reasoning\":"));
    if (reasoning.len > 0)
        json_put_string(buf, reasoning);
    else
        text_put(buf, SLICE("null"));
    text_put(buf, SLICE("}"));
}

static void put_whole_choice(struct buf *buf, const struct answer_head *head,
                             const struct answer_choice *choice)
{
    if (is_chat(head)) {
        put_message(buf, head, choice);
    } else {
        text_putf(buf, "{\"index\":%" PRIu32 ",\"text\":", choice->index);
        json_put_string(buf,
                        answer_plan_text(choice->plan, ANSWER_CONTENT, choice->answered_count));
    }
    text_put(buf, SLICE(",\"logprobs\":null,\"finish_reason\":"));
    json_put_string_or_null(buf, choice->finish_reason);
    text_put(buf, SLICE(",\"stop_reason\":null,\"token_ids\":"));
    put_ids_or_null(buf, head->request->wants_ids, choice->plan->ids.ids, choice->answered_count);
    if (!is_chat(head)) {
        text_put(buf, SLICE(",\"prompt_logprobs\":null,\"prompt_token_ids\":"));
        put_ids_or_null(buf, head->request->wants_ids, choice->prompt->ids, choice->prompt->count);
    }
    text_put(buf, SLICE(",\"routed_experts\":null}"));
}

static void put_body_usage(struct buf *buf, const struct answer_head *head,
                           const struct answer_usage *usage)
{
    if (head->hides_usage) {
        text_put(buf, SLICE("\"usage\":null"));
        return;
    }
    put_usage_counts(buf, usage);
    text_putf(buf, ",\"prompt_tokens_details\":{\"cached_tokens\":%zu,\"created_cache_tokens\":",
              usage->cached_tokens);
    if (is_chat(head))
        text_putf(buf, "%zu", usage->created_tokens);
    else
        text_put(buf, SLICE("null"));
    text_put(buf, SLICE(",\"multimodal_tokens\":null},\"completion_tokens_details\":null}"));
}

static void put_body(struct buf *buf, const struct answer_head *head,
                     const struct answer_choice *choices, size_t choice_count,
                     const struct answer_usage *usage)
{
    put_preamble(buf, head, is_chat(head) ? "chat.completion" : "text_completion");
    text_put(buf, SLICE(",\"choices\":["));
    for (size_t i = 0; i < choice_count; i++) {
        if (i > 0)
            text_put(buf, SLICE(","));
        put_whole_choice(buf, head, &choices[i]);
    }
    text_put(buf, SLICE("],\"service_tier\":null," FINGERPRINT ","));
    put_body_usage(buf, head, usage);
    if (is_chat(head)) {
        text_put(buf, SLICE(",\"prompt_logprobs\":null,\"prompt_token_ids\":"));
        put_ids_or_null(buf, head->request->wants_ids, choices[0].prompt->ids,
                        choices[0].prompt->count);
        text_put(buf, SLICE(",\"prompt_text\":null"));
    }
    text_put(buf, SLICE(",\"kv_transfer_params\":null,\"ec_transfer_params\":null,"
                        "\"metrics\":null}"));
}

const struct answer_family chat_family = {
    .put_beginning = put_beginning,
    .put_token = put_token,
    .put_end = put_end,
    .put_body = put_body,
};
