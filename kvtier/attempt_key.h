/* SPDX-License-Identifier: Apache-2.0 */

/*
 * attempt_key: the key under which alignment knows an attempt, from what an engine calls its
 * request. Pure; any thread.
 */
#ifndef KVTIER_ATTEMPT_KEY_H
#define KVTIER_ATTEMPT_KEY_H

#include <stdint.h>

#include "backends/runtime/slice.h"

/*
 * A router sends "<client's id or random>-<6 random>" as X-Request-Id, and the notes' key is that
 * one's keyed digest. vLLM makes of it "chatcmpl-<it>", "cmpl-<it>-<prompt's number>" or alike, and
 * puts "-<8 hex>" behind for its own use. 0: there is no such id in engine_id.
 */
uint64_t attempt_key_of_engine_id(const uint8_t *secret, struct slice engine_id);

#endif
