/* SPDX-License-Identifier: Apache-2.0 */

/*
 * json_depth: whether a text nests deeper than can be meant, before any memory is taken for it. One
 * fast look, no judgement of anything else. Pure; any thread.
 */
#ifndef BACKENDS_JSON_JSON_DEPTH_H
#define BACKENDS_JSON_JSON_DEPTH_H

#include <stdbool.h>
#include <stddef.h>

#include "backends/runtime/slice.h"

#ifdef __cplusplus
extern "C" {
#endif

/* True: more than depth_max arrays and objects are open at once somewhere, empty ones counted. Of a
 * text that is not JSON the answer may be either. */
bool json_is_deeper(struct slice text, size_t depth_max);

#ifdef __cplusplus
}
#endif

#endif
