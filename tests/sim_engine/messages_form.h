/* SPDX-License-Identifier: Apache-2.0 */

/* messages_form: a body of /v1/messages, or of its count_tokens, as a chat request, by vLLM's
 * rules. What has an odd shape is left out. Pure. */
#ifndef TESTS_SIM_ENGINE_MESSAGES_FORM_H
#define TESTS_SIM_ENGINE_MESSAGES_FORM_H

#include "backends/json/json_scan.h"
#include "backends/runtime/buf.h"

/* `{"messages":[...],"tools":[...],"tool_choice":...}` */
void messages_form_put(struct buf *buf, struct json_value root);

#endif
