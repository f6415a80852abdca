/* SPDX-License-Identifier: Apache-2.0 */

/* fuzz_input: what a fuzz program provides, and inputs with readable bytes behind them. */
#ifndef TESTS_FUZZ_FUZZ_INPUT_H
#define TESTS_FUZZ_FUZZ_INPUT_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A copy with padding bytes behind it that look like more of the same. Free it. */
static inline char *fuzz_padded(const uint8_t *data, size_t size, size_t padding)
{
    char *copy = malloc(size + padding);

    if (copy == NULL)
        abort();
    if (size > 0)
        memcpy(copy, data, size);
    memset(copy + size, '0', padding);
    return copy;
}

#endif
