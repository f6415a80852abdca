/* SPDX-License-Identifier: Apache-2.0 */

/*
 * json_duplicate: whether an object says a key twice. Parsers disagree on which of the two counts,
 * so whoever acts on a text that another parser reads as well must not take one that does. Pure;
 * the scanner's thread.
 */
#ifndef BACKENDS_JSON_JSON_DUPLICATE_H
#define BACKENDS_JSON_JSON_DUPLICATE_H

#include "backends/json/json_scan.h"
#include "backends/runtime/must_check.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { JSON_PATH_BYTES_MAX = 64 };

/*
 * Looks at value and all within it; keys count as they are meant, escapes undone. 1: path names one
 * of a pair, as "messages[2].role": shortened at its end if need be, what is not plain in it shown
 * as '?'. 0: there is none. -ENOMEM.
 */
MUST_CHECK int json_find_duplicate(struct json_value value, char path[JSON_PATH_BYTES_MAX]);

#ifdef __cplusplus
}
#endif

#endif
