/* SPDX-License-Identifier: Apache-2.0 */

/*
 * json_locate: says where a text stops being JSON, and why. A plain byte-by-byte reader for the
 * error path of json_scan, and what its fuzzer compares simdjson with. Pure; any thread.
 */
#ifndef BACKENDS_JSON_JSON_LOCATE_H
#define BACKENDS_JSON_JSON_LOCATE_H

#include <stdbool.h>

#include "backends/runtime/must_check.h"
#include "backends/runtime/parse_error.h"
#include "backends/runtime/slice.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { JSON_LOCATE_DEPTH_MAX = 256 }; /* JSON_DEPTH_MAX of json_scan.h */

/* True: *error is the first thing wrong with text. False: nothing is, but for the size of floating
 * point numbers at the very edge of their range. */
MUST_CHECK bool json_locate(struct slice text, struct parse_error *error);

#ifdef __cplusplus
}
#endif

#endif
