/* SPDX-License-Identifier: Apache-2.0 */

/* chat_request: what a body of /v1/chat/completions, /v1/completions, /tokenize or /detokenize asks
 * of the engine. Pure. */
#ifndef TESTS_SIM_ENGINE_CHAT_REQUEST_H
#define TESTS_SIM_ENGINE_CHAT_REQUEST_H

#include "backends/json/json_scan.h"
#include "backends/runtime/must_check.h"
#include "tests/sim_engine/engine_request.h"

/* As engine_request_read(), behind its first checks. */
MUST_CHECK int chat_request_read(const struct request_reader *reader, struct json_value root,
                                 struct engine_request *request, struct engine_fault *fault);
MUST_CHECK int completions_request_read(const struct request_reader *reader, struct json_value root,
                                        struct engine_request *request, struct engine_fault *fault);
MUST_CHECK int tokenize_request_read(const struct request_reader *reader, struct json_value root,
                                     struct engine_request *request, struct engine_fault *fault);
MUST_CHECK int detokenize_request_read(const struct request_reader *reader, struct json_value root,
                                       struct engine_request *request, struct engine_fault *fault);

#endif
