/* SPDX-License-Identifier: Apache-2.0 */

/*
 * chat_form: writes the messages and tools of a chat request. Other API families are written in
 * this form before they become a prompt, as vLLM does it: so the same conversation is the same
 * prompt, whichever way it comes. Pure.
 */
#ifndef TESTS_SIM_ENGINE_CHAT_FORM_H
#define TESTS_SIM_ENGINE_CHAT_FORM_H

#include <stdbool.h>

#include "backends/json/json_scan.h"
#include "backends/runtime/buf.h"
#include "backends/runtime/slice.h"

/* Messages as they are written, separated by commas. The zeroed one with a buf is ready. */
struct chat_form {
    struct buf *buf;
    bool is_open; /* an assistant's message, whose last brace is not written yet */
    bool has_content;
    bool has_calls; /* their array is open too */
};

/* A message of any role, whole. content: a string, or parts, of which texts and images are kept. */
void chat_form_put_message(struct chat_form *form, struct slice role, struct json_value content);
void chat_form_put_text_message(struct chat_form *form, struct slice role, struct slice text);

/* Parts of an assistant's turn. What belongs to the turn before them joins its message: content
 * follows reasoning, calls follow both; anything else begins a message. */
void chat_form_put_reasoning(struct chat_form *form, struct slice text);
void chat_form_put_content(struct chat_form *form, struct json_value content);
void chat_form_put_call(struct chat_form *form, struct slice name, struct slice arguments);

/* Is there a text or an image among parts? */
bool chat_form_has_parts(struct json_value parts);

/* Ends the message that is open. Needed behind the last part. */
void chat_form_close(struct chat_form *form);

/* `,"tools":[...]` of tools whose name, description and schema_key stand at their top; nothing
 * where tools is no array. */
void chat_form_put_tools(struct buf *buf, struct json_value tools, const char *schema_key);

/* `,"tool_choice":...`: the function of that name; where it is empty, word ("auto"). */
void chat_form_put_tool_choice(struct buf *buf, struct slice name, struct slice word);

#endif
