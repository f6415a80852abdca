/* SPDX-License-Identifier: Apache-2.0 */

/* responses_form: a body of /v1/responses as a chat request, by vLLM's rules. What has an odd shape
 * is left out. Pure. */
#ifndef TESTS_SIM_ENGINE_RESPONSES_FORM_H
#define TESTS_SIM_ENGINE_RESPONSES_FORM_H

#include "backends/json/json_scan.h"
#include "backends/runtime/buf.h"
#include "backends/runtime/slice.h"

/*
 * The messages of the conversation, without brackets: those of earlier (what was kept of the
 * previous response; may be empty), then those of input. The instructions are not among them: they
 * do not carry over to the next response.
 */
void responses_form_put_messages(struct buf *buf, struct slice earlier, struct json_value input);

/* The answer as one more of them, for the next response. */
void responses_form_put_answer(struct buf *buf, struct slice text);

/* `{"messages":[...],"tools":[...],"tool_choice":...}`; messages: written by the above. */
void responses_form_put(struct buf *buf, struct json_value root, struct slice messages);

#endif
