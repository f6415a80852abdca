/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/attempt_key.h"

#include <string.h>

#include "backends/runtime/must_check.h"
#include "hashing/digest.h"

/*
 * DESIGN
 * Read from the right: the first part of exactly six characters is the attempt's own, because what
 * engines put behind it is of other lengths (8 hex, a small number). From the left: one of the
 * words that engines begin with, which a client's own id may also be made to begin with; then there
 * is one of each, and the first is the engine's.
 */

enum { ATTEMPT_RANDOM_CHARS = 6 };

static const char *const beginnings[] = {"chatcmpl-", "cmpl-", "resp_", "msg_"};

static size_t length_up_to_attempt(struct slice id)
{
    size_t end = id.len;

    for (size_t i = id.len; i-- > 0;) {
        if (id.ptr[i] != '-')
            continue;
        if (end - i - 1 == ATTEMPT_RANDOM_CHARS)
            return end;
        end = i;
    }
    return 0;
}

uint64_t attempt_key_of_engine_id(const uint8_t *secret, struct slice engine_id)
{
    const size_t len = length_up_to_attempt(engine_id);
    size_t begin = 0;

    if (len == 0)
        return 0;
    for (size_t i = 0; i < array_count(beginnings); i++) {
        const size_t beginning = strlen(beginnings[i]);

        if (len > beginning && memcmp(engine_id.ptr, beginnings[i], beginning) == 0) {
            begin = beginning;
            break;
        }
    }
    return digest_64(secret, DIGEST_ATTEMPT, engine_id.ptr + begin, len - begin);
}
