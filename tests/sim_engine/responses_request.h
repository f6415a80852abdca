/* SPDX-License-Identifier: Apache-2.0 */

/* responses_request: what a body of /v1/responses asks of the engine. Pure. */
#ifndef TESTS_SIM_ENGINE_RESPONSES_REQUEST_H
#define TESTS_SIM_ENGINE_RESPONSES_REQUEST_H

#include "backends/json/json_scan.h"
#include "backends/runtime/must_check.h"
#include "tests/sim_engine/engine_request.h"

/* As engine_request_read(), behind its first checks. */
MUST_CHECK int responses_request_read(const struct request_reader *reader, struct json_value root,
                                      struct engine_request *request, struct engine_fault *fault);

/* The answer to an id that the store does not know. Always -EINVAL. */
int responses_refuse_id(struct engine_fault *fault, struct slice id);

#endif
