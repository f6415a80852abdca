/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/responses_answer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tests/sim_engine/json_text.h"
#include "tests/sim_engine/responses_echo.h"

/*
 * DESIGN
 *
 *   response.created response.in_progress                    as soon as the request is accepted
 *   (output_item.added content_part.added ...delta... ...done content_part.done
 *    output_item.done)...                                    an item for each kind of token
 *   response.completed                                       the whole answer once more
 *
 * A function call is an item without parts. As in vLLM the last event is response.completed even
 * where the status in it is "incomplete".
 */

static void begin_event(struct buf *buf, const char *type)
{
    text_putf(buf, "event: %s\ndata: {", type);
}

static void end_event(struct buf *buf, struct answer_head *head, const char *type)
{
    text_putf(buf, "\"sequence_number\":%" PRIu64 ",\"type\":\"%s\"}\n\n", head->event_count++,
              type);
}

/* The names that belong to a kind of item. */
struct item_kind {
    const char *id_prefix;
    const char *events;  /* "response.<events>.delta" */
    const char *part;    /* type of its one part; NULL: it has none */
    const char *members; /* of the part, besides text and type */
};

static const struct item_kind *item_kind_of(enum answer_piece_kind kind)
{
    static const struct item_kind kinds[] = {
        [ANSWER_CONTENT] = {"msg_", "output_text", "output_text", "\"annotations\":[],"},
        [ANSWER_REASONING] = {"rs_", "reasoning_text", "reasoning_text", ""},
        [ANSWER_TOOL_NAME] = {"fc_", "function_call_arguments", NULL, ""},
    };

    return &kinds[kind];
}

/* logprobs: of a text that is not said yet they are [], of one that is they are null. */
static void put_part(struct buf *buf, enum answer_piece_kind kind, struct slice text,
                     const char *logprobs)
{
    const struct item_kind *names = item_kind_of(kind);

    text_putf(buf, "{%s\"text\":", names->members);
    json_put_string(buf, text);
    text_putf(buf, ",\"type\":\"%s\"", names->part);
    if (kind == ANSWER_CONTENT)
        text_putf(buf, ",\"logprobs\":%s", logprobs);
    text_put(buf, SLICE("}"));
}

/* An item of the output: one kind of what the choice has said so far. */
struct item {
    enum answer_piece_kind kind;
    uint32_t index;
    bool is_done;
};

static void put_call(struct buf *buf, const struct answer_head *head,
                     const struct answer_choice *choice, struct item item)
{
    size_t count = choice->answered_count;

    text_put(buf, SLICE("{\"arguments\":"));
    json_put_string(buf, item.is_done ? answer_plan_text(choice->plan, ANSWER_TOOL_ARGUMENTS, count)
                                      : SLICE(""));
    text_put(buf, SLICE(",\"call_id\":"));
    answer_put_call_id(buf, head, 0);
    text_put(buf, SLICE(",\"name\":"));
    json_put_string(buf, answer_plan_text(choice->plan, ANSWER_TOOL_NAME, count));
    text_put(buf, SLICE(",\"type\":\"function_call\",\"id\":"));
    answer_put_item_id(buf, head, "fc_", item.index);
    text_putf(buf, ",\"async\":null,\"caller\":null,\"namespace\":null,\"status\":\"%s\"}",
              item.is_done ? "completed" : "in_progress");
}

static void put_item(struct buf *buf, const struct answer_head *head,
                     const struct answer_choice *choice, struct item item)
{
    const char *status = item.is_done ? "completed" : "in_progress";

    if (item.kind == ANSWER_TOOL_NAME) {
        put_call(buf, head, choice, item);
        return;
    }
    text_put(buf, SLICE("{\"id\":"));
    answer_put_item_id(buf, head, item_kind_of(item.kind)->id_prefix, item.index);
    if (item.kind == ANSWER_REASONING)
        text_put(buf, SLICE(",\"summary\":[],\"type\":\"reasoning\""));
    text_put(buf, SLICE(",\"content\":["));
    if (item.is_done)
        put_part(buf, item.kind, answer_plan_text(choice->plan, item.kind, choice->answered_count),
                 "null");
    if (item.kind == ANSWER_REASONING)
        text_putf(buf, "],\"encrypted_content\":null,\"status\":\"%s\"}", status);
    else
        text_putf(buf,
                  "],\"role\":\"assistant\",\"status\":\"%s\",\"type\":\"message\",\"phase\":null}",
                  status);
}

static void put_item_event(struct buf *buf, struct answer_head *head,
                           const struct answer_choice *choice, struct item item)
{
    const char *type = item.is_done ? "response.output_item.done" : "response.output_item.added";

    begin_event(buf, type);
    text_put(buf, SLICE("\"item\":"));
    put_item(buf, head, choice, item);
    text_putf(buf, ",\"output_index\":%" PRIu32 ",", item.index);
    end_event(buf, head, type);
}

/* `"item_id":"...",`, and what else names the item that is open. */
static void put_place(struct buf *buf, const struct answer_head *head)
{
    const struct item_kind *names = item_kind_of(head->open_kind);

    if (names->part != NULL)
        text_put(buf, SLICE("\"content_index\":0,"));
    text_put(buf, SLICE("\"item_id\":"));
    answer_put_item_id(buf, head, names->id_prefix, head->item_count);
    if (head->open_kind == ANSWER_CONTENT)
        text_put(buf, SLICE(",\"logprobs\":[]"));
    text_putf(buf, ",\"output_index\":%" PRIu32 ",", head->item_count);
}

static void put_part_event(struct buf *buf, struct answer_head *head,
                           const struct answer_choice *choice, bool is_done)
{
    const char *type = is_done ? "response.content_part.done" : "response.content_part.added";
    struct slice text = answer_plan_text(choice->plan, head->open_kind, choice->answered_count);

    begin_event(buf, type);
    text_put(buf, SLICE("\"content_index\":0,\"item_id\":"));
    answer_put_item_id(buf, head, item_kind_of(head->open_kind)->id_prefix, head->item_count);
    text_putf(buf, ",\"output_index\":%" PRIu32 ",\"part\":", head->item_count);
    put_part(buf, head->open_kind, is_done ? text : SLICE(""), is_done ? "null" : "[]");
    text_put(buf, SLICE(","));
    end_event(buf, head, type);
}

static void put_delta_event(struct buf *buf, struct answer_head *head, struct slice text)
{
    char type[64];

    snprintf(type, sizeof type, "response.%s.delta", item_kind_of(head->open_kind)->events);
    begin_event(buf, type);
    text_put(buf, SLICE("\"delta\":"));
    json_put_string(buf, text);
    text_put(buf, SLICE(","));
    put_place(buf, head);
    end_event(buf, head, type);
}

static void put_done_event(struct buf *buf, struct answer_head *head,
                           const struct answer_choice *choice)
{
    const struct item_kind *names = item_kind_of(head->open_kind);
    bool is_call = names->part == NULL;
    enum answer_piece_kind kind = is_call ? ANSWER_TOOL_ARGUMENTS : head->open_kind;
    char type[64];

    snprintf(type, sizeof type, "response.%s.done", names->events);
    begin_event(buf, type);
    text_put(buf, is_call ? SLICE("\"arguments\":") : SLICE("\"text\":"));
    json_put_string(buf, answer_plan_text(choice->plan, kind, choice->answered_count));
    text_put(buf, SLICE(","));
    if (is_call) {
        text_put(buf, SLICE("\"name\":"));
        json_put_string(buf,
                        answer_plan_text(choice->plan, ANSWER_TOOL_NAME, choice->answered_count));
        text_put(buf, SLICE(","));
    }
    put_place(buf, head);
    end_event(buf, head, type);
}

static void close_item(struct buf *buf, struct answer_head *head,
                       const struct answer_choice *choice)
{
    struct item item = {head->open_kind, head->item_count, true};

    if (head->open_kind == ANSWER_SILENT)
        return;
    put_done_event(buf, head, choice);
    if (item_kind_of(head->open_kind)->part != NULL)
        put_part_event(buf, head, choice, true);
    put_item_event(buf, head, choice, item);
    head->item_count++;
    head->open_kind = ANSWER_SILENT;
}

static void open_item(struct buf *buf, struct answer_head *head, const struct answer_choice *choice,
                      enum answer_piece_kind kind)
{
    if (head->open_kind == kind)
        return;
    close_item(buf, head, choice);
    head->open_kind = kind;
    put_item_event(buf, head, choice, (struct item){kind, head->item_count, false});
    if (item_kind_of(kind)->part != NULL)
        put_part_event(buf, head, choice, false);
}

static void put_token(struct buf *buf, struct answer_head *head, const struct answer_choice *choice,
                      const struct answer_usage *usage, bool is_last)
{
    struct answer_piece piece = answer_plan_piece(choice->plan, choice->answered_count - 1);

    (void)usage;
    (void)is_last;
    if (piece.kind == ANSWER_SILENT)
        return;
    if (piece.kind != ANSWER_TOOL_ARGUMENTS)
        open_item(buf, head, choice, piece.kind);
    if (piece.kind != ANSWER_TOOL_NAME)
        put_delta_event(buf, head, piece.text);
}

static void put_output(struct buf *buf, const struct answer_head *head,
                       const struct answer_choice *choice)
{
    static const enum answer_piece_kind order[] = {ANSWER_REASONING, ANSWER_CONTENT,
                                                   ANSWER_TOOL_NAME};
    uint32_t count = 0;

    for (size_t i = 0; i < array_count(order); i++) {
        if (answer_plan_text(choice->plan, order[i], choice->answered_count).len == 0)
            continue;
        text_put(buf, count > 0 ? SLICE(",") : SLICE(""));
        put_item(buf, head, choice, (struct item){order[i], count++, true});
    }
}

/* What vLLM would say of several turns with tools of its own stays empty. */
static void put_usage(struct buf *buf, const struct answer_choice *choice,
                      const struct answer_usage *usage)
{
    text_putf(buf,
              "{\"input_tokens\":%zu,\"input_tokens_details\":{\"cached_tokens\":%zu,"
              "\"cache_write_tokens\":%zu,\"input_tokens_per_turn\":[],"
              "\"cached_tokens_per_turn\":[]},\"output_tokens\":%zu,\"output_tokens_details\":"
              "{\"reasoning_tokens\":%zu,\"tool_output_tokens\":0,\"output_tokens_per_turn\":[],"
              "\"tool_output_tokens_per_turn\":[]},\"total_tokens\":%zu}",
              usage->prompt_tokens, usage->cached_tokens, usage->created_tokens,
              usage->completion_tokens, choice->plan->reasoning_count,
              usage->prompt_tokens + usage->completion_tokens);
}

static const char *status_of(const struct answer_choice *choice)
{
    if (choice == NULL)
        return "in_progress";
    return strcmp(choice->finish_reason, "length") == 0 ? "incomplete" : "completed";
}

/* choice NULL: nothing was said yet. */
static void put_response(struct buf *buf, const struct answer_head *head,
                         const struct answer_choice *choice, const struct answer_usage *usage)
{
    const struct buf *echo = &head->request->echo;
    const char *status = status_of(choice);
    bool is_incomplete = strcmp(status, "incomplete") == 0;

    text_put(buf, SLICE("{\"id\":"));
    json_put_string(buf, head->id);
    text_putf(buf, ",\"created_at\":%" PRIu64 ",\"incomplete_details\":%s,", head->created_s,
              is_incomplete ? "{\"reason\":\"max_output_tokens\"}" : "null");
    text_put(buf, text_piece(echo, ECHO_INSTRUCTIONS));
    text_put(buf, SLICE("\"model\":"));
    json_put_string(buf, head->request->model);
    text_put(buf, SLICE(",\"object\":\"response\",\"output\":["));
    if (choice != NULL)
        put_output(buf, head, choice);
    text_put(buf, SLICE("],"));
    text_put(buf, text_piece(echo, ECHO_TOOLS));
    text_putf(buf, "\"status\":\"%s\",", status);
    text_put(buf, text_piece(echo, ECHO_TEXT));
    text_put(buf, SLICE("\"usage\":"));
    if (choice != NULL && !head->hides_usage)
        put_usage(buf, choice, usage);
    else
        text_put(buf, SLICE("null"));
    text_put(buf, SLICE(","));
    text_put(buf, text_piece(echo, ECHO_USER));
    text_put(buf, SLICE("\"kv_transfer_params\":null,\"ec_transfer_params\":null,"
                        "\"input_messages\":null,\"output_messages\":null}"));
}

static void put_response_event(struct buf *buf, struct answer_head *head, const char *type,
                               const struct answer_choice *choice, const struct answer_usage *usage)
{
    begin_event(buf, type);
    text_put(buf, SLICE("\"response\":"));
    put_response(buf, head, choice, usage);
    text_put(buf, SLICE(","));
    end_event(buf, head, type);
}

static void put_opening(struct buf *buf, struct answer_head *head)
{
    put_response_event(buf, head, "response.created", NULL, NULL);
    put_response_event(buf, head, "response.in_progress", NULL, NULL);
}

static void put_end(struct buf *buf, struct answer_head *head, const struct answer_choice *choice,
                    const struct answer_usage *usage)
{
    close_item(buf, head, choice);
    if (!head->hides_done)
        put_response_event(buf, head, "response.completed", choice, usage);
}

static void put_body(struct buf *buf, const struct answer_head *head,
                     const struct answer_choice *choices, size_t choice_count,
                     const struct answer_usage *usage)
{
    (void)choice_count; /* this family knows one only */
    put_response(buf, head, &choices[0], usage);
}

const struct answer_family responses_family = {
    .put_opening = put_opening,
    .put_token = put_token,
    .put_end = put_end,
    .put_body = put_body,
};
