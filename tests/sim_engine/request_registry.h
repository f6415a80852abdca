/* SPDX-License-Identifier: Apache-2.0 */

/* request_registry: which reader reads the body of which endpoint. Pure. */
#ifndef TESTS_SIM_ENGINE_REQUEST_REGISTRY_H
#define TESTS_SIM_ENGINE_REQUEST_REGISTRY_H

#include "backends/json/json_scan.h"
#include "backends/runtime/must_check.h"
#include "tests/sim_engine/engine_request.h"

/*
 * Reads the root of a JSON body. -EINVAL: fault says what to answer. Slices and values live as long
 * as the scanners' documents; the caller releases the request either way.
 */
MUST_CHECK int engine_request_read(enum engine_api api, const struct request_reader *reader,
                                   struct json_value root, struct engine_request *request,
                                   struct engine_fault *fault);

#endif
