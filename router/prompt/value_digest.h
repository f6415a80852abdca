/* SPDX-License-Identifier: Apache-2.0 */

/*
 * value_digest: a keyed digest of a JSON value's meaning: white space, escapes, the spelling of
 * floating point numbers and the order of members do not matter; the order of elements does.
 * Pure; any thread.
 */
#ifndef ROUTER_PROMPT_VALUE_DIGEST_H
#define ROUTER_PROMPT_VALUE_DIGEST_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/json/json_scan.h"

/* Null, "", [] and {}: it says no more than an absent member. */
bool value_is_empty(struct json_value value);

/* secret: DIGEST_SECRET_BYTES, here and below. */
uint64_t value_digest(const uint8_t *secret, struct json_value value);

/* Of a key and its value. An object is the sum of its members: add up what shall count. */
uint64_t member_digest(const uint8_t *secret, struct json_member member);

/* Of a part of a message (an image, a document), without the cache_control marks in it, which move
 * from turn to turn and print nothing. */
uint64_t part_digest(const uint8_t *secret, struct json_value part);

#endif
