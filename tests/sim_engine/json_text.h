/* SPDX-License-Identifier: Apache-2.0 */

/* json_text: writes text and JSON into a buf that has no limit. Memory that cannot be had ends the
 * program, so nothing needs to be checked. Pure. */
#ifndef TESTS_SIM_ENGINE_JSON_TEXT_H
#define TESTS_SIM_ENGINE_JSON_TEXT_H

#include "backends/json/json_scan.h"
#include "backends/runtime/buf.h"
#include "backends/runtime/slice.h"
#include "tests/sim_engine/token_list.h"

void text_put(struct buf *buf, struct slice text);
void text_putf(struct buf *buf, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* What was put since the last piece (JSON has no NUL) is a piece. Pieces count from 0. */
void text_end_piece(struct buf *buf);
struct slice text_piece(const struct buf *buf, size_t index);

/* text as a JSON string, quotes included. */
void json_put_string(struct buf *buf, struct slice text);

/* NULL: null. */
void json_put_string_or_null(struct buf *buf, const char *string);

/* value without blanks. */
void json_put_value(struct buf *buf, struct json_value value);

/* "[1,2,3]" */
void json_put_ids(struct buf *buf, const uint32_t *ids, size_t count);

#endif
