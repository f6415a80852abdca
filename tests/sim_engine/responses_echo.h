/* SPDX-License-Identifier: Apache-2.0 */

/* responses_echo: what of a body of /v1/responses stands in its answer again: four runs of members,
 * each where vLLM has it, defaults filled in. Pure. */
#ifndef TESTS_SIM_ENGINE_RESPONSES_ECHO_H
#define TESTS_SIM_ENGINE_RESPONSES_ECHO_H

#include <stddef.h>

#include "backends/json/json_scan.h"
#include "backends/runtime/buf.h"

/* The pieces of the echo: text_piece(). Each is members with a comma behind each. */
enum responses_echo {
    ECHO_INSTRUCTIONS, /* instructions, metadata */
    ECHO_TOOLS,        /* parallel_tool_calls to service_tier */
    ECHO_TEXT,         /* text to truncation */
    ECHO_USER,         /* user to frequency_penalty */
};

/* output_tokens_max: as many as the answer may have. */
void responses_echo_put(struct buf *echo, struct json_value root, size_t output_tokens_max);

#endif
