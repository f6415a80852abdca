/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/messages_answer.h"

#include <inttypes.h>
#include <string.h>

#include "tests/sim_engine/json_text.h"

/*
 * DESIGN
 *
 *   message_start (content_block_start delta... content_block_stop)... message_delta message_stop
 *
 * A block is open as long as tokens are of its kind. As in vLLM: the id is that of the chat answer
 * behind it, the usage of message_start does not know the cache yet, and input_tokens are those
 * that were neither found in the cache nor put there.
 */

static void begin_event(struct buf *buf, struct answer_head *head, const char *type)
{
    head->event_count++;
    text_putf(buf, "event: %s\ndata: {\"type\":\"%s\"", type, type);
}

static void end_event(struct buf *buf)
{
    text_put(buf, SLICE("}\n\n"));
}

static void put_usage(struct buf *buf, const struct answer_head *head,
                      const struct answer_usage *usage)
{
    if (head->hides_usage)
        return;
    text_putf(buf,
              ",\"usage\":{\"input_tokens\":%zu,\"output_tokens\":%zu,"
              "\"cache_creation_input_tokens\":%zu,\"cache_read_input_tokens\":%zu}",
              usage->prompt_tokens - usage->cached_tokens - usage->created_tokens,
              usage->completion_tokens, usage->created_tokens, usage->cached_tokens);
}

static void put_message_head(struct buf *buf, const struct answer_head *head)
{
    text_put(buf, SLICE("{\"id\":"));
    json_put_string(buf, head->id);
    text_put(buf, SLICE(",\"type\":\"message\",\"role\":\"assistant\",\"content\":["));
}

static void put_beginning(struct buf *buf, struct answer_head *head,
                          const struct answer_choice *choice, const struct answer_usage *usage)
{
    (void)choice;
    begin_event(buf, head, "message_start");
    text_put(buf, SLICE(",\"message\":"));
    put_message_head(buf, head);
    text_put(buf, SLICE("],\"model\":"));
    json_put_string(buf, head->request->model);
    text_put(buf, SLICE(",\"stop_reason\":null,\"stop_sequence\":null"));
    if (!head->hides_usage)
        text_putf(buf, ",\"usage\":{\"input_tokens\":%zu,\"output_tokens\":0}",
                  usage->prompt_tokens);
    text_put(buf, SLICE("}"));
    end_event(buf);
}

static void put_delta(struct buf *buf, struct answer_head *head, const char *type,
                      struct slice text)
{
    begin_event(buf, head, "content_block_delta");
    text_putf(buf, ",\"delta\":{\"type\":\"%s_delta\",\"%s\":", type,
              strcmp(type, "input_json") == 0 ? "partial_json" : type);
    json_put_string(buf, text);
    text_putf(buf, "},\"index\":%" PRIu32, head->item_count);
    end_event(buf);
}

/* A thinking block is signed as it closes. */
static void put_signature(struct buf *buf, struct answer_head *head)
{
    begin_event(buf, head, "content_block_delta");
    text_put(buf, SLICE(",\"delta\":{\"type\":\"signature_delta\",\"signature\":"));
    answer_put_item_id(buf, head, "", head->item_count);
    text_putf(buf, "},\"index\":%" PRIu32, head->item_count);
    end_event(buf);
}

static void close_block(struct buf *buf, struct answer_head *head)
{
    if (head->open_kind == ANSWER_SILENT)
        return;
    if (head->open_kind == ANSWER_REASONING)
        put_signature(buf, head);
    begin_event(buf, head, "content_block_stop");
    text_putf(buf, ",\"index\":%" PRIu32, head->item_count);
    end_event(buf);
    head->item_count++;
    head->open_kind = ANSWER_SILENT;
}

/* Sees that a block of that kind is open. name: of a tool. */
static void open_block(struct buf *buf, struct answer_head *head, enum answer_piece_kind kind,
                       struct slice name)
{
    if (head->open_kind == kind)
        return;
    close_block(buf, head);
    begin_event(buf, head, "content_block_start");
    if (kind == ANSWER_CONTENT) {
        text_put(buf, SLICE(",\"content_block\":{\"type\":\"text\",\"text\":\"\"}"));
    } else if (kind == ANSWER_REASONING) {
        text_put(buf, SLICE(",\"content_block\":{\"type\":\"thinking\",\"thinking\":\"\"}"));
    } else {
        text_put(buf, SLICE(",\"content_block\":{\"type\":\"tool_use\",\"id\":"));
        answer_put_call_id(buf, head, 0);
        text_put(buf, SLICE(",\"name\":"));
        json_put_string(buf, name);
        text_put(buf, SLICE(",\"input\":{}}"));
    }
    text_putf(buf, ",\"index\":%" PRIu32, head->item_count);
    end_event(buf);
    head->open_kind = kind;
}

static void put_token(struct buf *buf, struct answer_head *head, const struct answer_choice *choice,
                      const struct answer_usage *usage, bool is_last)
{
    struct answer_piece piece = answer_plan_piece(choice->plan, choice->answered_count - 1);

    (void)usage;
    (void)is_last;
    switch (piece.kind) {
    case ANSWER_SILENT:
        break;
    case ANSWER_CONTENT:
        open_block(buf, head, ANSWER_CONTENT, SLICE(""));
        put_delta(buf, head, "text", piece.text);
        break;
    case ANSWER_REASONING:
        open_block(buf, head, ANSWER_REASONING, SLICE(""));
        put_delta(buf, head, "thinking", piece.text);
        break;
    case ANSWER_TOOL_NAME:
        open_block(buf, head, ANSWER_TOOL_NAME, piece.text);
        break;
    case ANSWER_TOOL_ARGUMENTS:
        put_delta(buf, head, "input_json", piece.text);
        break;
    }
}

/* A call is a reason of its own, whatever the engine says of a forced one. */
static const char *stop_reason(const struct answer_choice *choice)
{
    if (answer_plan_is_tool_call(choice->plan))
        return "tool_use";
    return strcmp(choice->finish_reason, "length") == 0 ? "max_tokens" : "end_turn";
}

static void put_end(struct buf *buf, struct answer_head *head, const struct answer_choice *choice,
                    const struct answer_usage *usage)
{
    close_block(buf, head);
    begin_event(buf, head, "message_delta");
    text_putf(buf, ",\"delta\":{\"stop_reason\":\"%s\",\"stop_sequence\":null}",
              stop_reason(choice));
    put_usage(buf, head, usage);
    end_event(buf);
    if (head->hides_done)
        return;
    begin_event(buf, head, "message_stop");
    end_event(buf);
}

static void put_blocks(struct buf *buf, const struct answer_head *head,
                       const struct answer_choice *choice)
{
    size_t count = choice->answered_count;
    struct slice reasoning = answer_plan_text(choice->plan, ANSWER_REASONING, count);
    struct slice content = answer_plan_text(choice->plan, ANSWER_CONTENT, count);

    if (reasoning.len > 0) {
        text_put(buf, SLICE("{\"type\":\"thinking\",\"thinking\":"));
        json_put_string(buf, reasoning);
        text_put(buf, SLICE(",\"signature\":"));
        answer_put_item_id(buf, head, "", 0);
        text_put(buf, SLICE("},"));
    }
    if (answer_plan_is_tool_call(choice->plan)) {
        text_put(buf, SLICE("{\"type\":\"tool_use\",\"id\":"));
        answer_put_call_id(buf, head, 0);
        text_put(buf, SLICE(",\"name\":"));
        json_put_string(buf, answer_plan_text(choice->plan, ANSWER_TOOL_NAME, count));
        text_put(buf, SLICE(",\"input\":"));
        text_put(buf, answer_plan_text(choice->plan, ANSWER_TOOL_ARGUMENTS, count));
        text_put(buf, SLICE("}"));
    } else {
        text_put(buf, SLICE("{\"type\":\"text\",\"text\":"));
        json_put_string(buf, content);
        text_put(buf, SLICE("}"));
    }
}

static void put_body(struct buf *buf, const struct answer_head *head,
                     const struct answer_choice *choices, size_t choice_count,
                     const struct answer_usage *usage)
{
    (void)choice_count; /* this family knows one only */
    put_message_head(buf, head);
    put_blocks(buf, head, &choices[0]);
    text_put(buf, SLICE("],\"model\":"));
    json_put_string(buf, head->request->model);
    text_putf(buf, ",\"stop_reason\":\"%s\"", stop_reason(&choices[0]));
    put_usage(buf, head, usage);
    text_put(buf, SLICE("}"));
}

const struct answer_family messages_family = {
    .put_beginning = put_beginning,
    .put_token = put_token,
    .put_end = put_end,
    .put_body = put_body,
};
