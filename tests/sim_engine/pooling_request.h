/* SPDX-License-Identifier: Apache-2.0 */

/* pooling_request: what a body of /v1/embeddings, /rerank or /score asks of the engine: prompts
 * that are read and not answered. Pure. */
#ifndef TESTS_SIM_ENGINE_POOLING_REQUEST_H
#define TESTS_SIM_ENGINE_POOLING_REQUEST_H

#include "backends/json/json_scan.h"
#include "backends/runtime/must_check.h"
#include "tests/sim_engine/engine_request.h"

/* As engine_request_read(), behind its first checks. */
MUST_CHECK int pooling_request_read(const struct request_reader *reader, struct json_value root,
                                    struct engine_request *request, struct engine_fault *fault);

#endif
