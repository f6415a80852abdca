/* SPDX-License-Identifier: Apache-2.0 */

/*
 * json_write: writes JSON without blanks: strings of ours and values that json_scan read.
 * Pure; any thread.
 */
#ifndef BACKENDS_JSON_JSON_WRITE_H
#define BACKENDS_JSON_JSON_WRITE_H

#include "backends/json/json_scan.h"
#include "backends/runtime/buf.h"
#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"

/* text as a quoted string; bytes that are not UTF-8 become U+FFFD. -ENOBUFS, -ENOMEM as
 * buf_append(); so below. */
MUST_CHECK int json_write_string(struct buf *buf, struct slice text);

/* value with all that is in it: same members in the same order, same numbers (an
 * integer above INT64_MAX: as near as a double is). */
MUST_CHECK int json_write_value(struct buf *buf, struct json_value value);

#endif
