/* SPDX-License-Identifier: Apache-2.0 */

/* fuzz_api: a byte of the input that names an API whose requests have a body. */
#ifndef TESTS_FUZZ_FUZZ_API_H
#define TESTS_FUZZ_FUZZ_API_H

#include <stdint.h>

#include "router/api/api.h"

enum { FUZZ_API_COUNT = API_DETOKENIZE + 1 };

/* 'a' is chat, 'b' completions, and so on in the order of enum api: a corpus can be read. */
static inline enum api fuzz_api(uint8_t byte)
{
    return (enum api)((byte - 'a') & 0xFF) % FUZZ_API_COUNT;
}

#endif
