/* SPDX-License-Identifier: Apache-2.0 */

/*
 * answer_stream_parts: what the readers of the API families share: the assistant message as it is
 * hashed on, counts and errors. Private to answer_stream.
 */
#ifndef ROUTER_PROMPT_ANSWER_STREAM_PARTS_H
#define ROUTER_PROMPT_ANSWER_STREAM_PARTS_H

#include "router/prompt/answer_stream.h"
#include "router/prompt/prompt_writer.h"

/* How far the message has come: its fields stand in this order. */
enum answer_place { PLACE_START, PLACE_REASONING, PLACE_CONTENT, PLACE_CALLS };

/* What the open block (messages) or item (responses) is. */
enum answer_part { PART_NONE, PART_TEXT, PART_REASONING, PART_CALL };

/* The head of a tool call. */
struct answer_call {
    struct slice id;
    struct slice space; /* a namespace the function is in, or empty */
    struct slice name;
    enum prompt_tag tag; /* what its arguments are: TAG_ARGUMENTS; TAG_TEXT of a custom tool */
};

/* ---- answer_stream_message.c ---- */

/* Whether what comes is still to be hashed on. */
bool answer_is_writing(const struct answer_stream *answer);

/* Some more reasoning or content. One behind its place ends learning. True: there was some. */
bool answer_add_text(struct answer_stream *answer, enum answer_place place, struct slice text);

void answer_open_call(struct answer_stream *answer, const struct answer_call *call);

/* More of what is open, untagged: the arguments of a call, or a completion's text. */
void answer_add_more(struct answer_stream *answer, struct slice text);

/* The same where the next prompt holds their value: pieces of its text, then their end, which
 * stands for {} where there were none; or the value at once. */
void answer_add_value_text(struct answer_stream *answer, struct slice text);
void answer_end_value(struct answer_stream *answer);
void answer_add_value(struct answer_stream *answer, struct json_value value);

/* The end of the message, and the end node. */
void answer_close(struct answer_stream *answer);

/* ---- answer_stream.c ---- */

/* False: value is no count, which stays as it was. */
bool answer_read_count(struct json_value value, uint64_t *count);

/* Notes an error object; its code is a number, or a word of the API in code or type. Returns
 * ANSWER_EVENT_ERROR. */
enum answer_event_kind answer_fail(struct answer_stream *answer, struct json_value error);

/* Of an event that is understood: has_content: it carries something the client has waited for. */
static inline enum answer_event_kind answer_kind_of(bool has_content)
{
    return has_content ? ANSWER_EVENT_CONTENT : ANSWER_EVENT_OTHER;
}

/* ---- one for each family ---- */

/* A chunk of a chat or completions stream, or a whole body. */
enum answer_event_kind answer_read_chat(struct answer_stream *answer, struct json_value root);

enum answer_event_kind answer_read_responses_event(struct answer_stream *answer,
                                                   struct json_value root);
enum answer_event_kind answer_read_responses_body(struct answer_stream *answer,
                                                  struct json_value root);
enum answer_event_kind answer_read_messages_event(struct answer_stream *answer,
                                                  struct json_value root);
enum answer_event_kind answer_read_messages_body(struct answer_stream *answer,
                                                 struct json_value root);

#endif
