/* SPDX-License-Identifier: Apache-2.0 */

/* messages_request: what a body of /v1/messages, or of its count_tokens, asks of the engine. Pure.
 */
#ifndef TESTS_SIM_ENGINE_MESSAGES_REQUEST_H
#define TESTS_SIM_ENGINE_MESSAGES_REQUEST_H

#include "backends/json/json_scan.h"
#include "backends/runtime/must_check.h"
#include "tests/sim_engine/engine_request.h"

/* As engine_request_read(), behind its first checks. */
MUST_CHECK int messages_request_read(const struct request_reader *reader, struct json_value root,
                                     struct engine_request *request, struct engine_fault *fault);

#endif
