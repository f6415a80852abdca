/* SPDX-License-Identifier: Apache-2.0 */

/* parse_error: where and why outside input did not parse. */
#ifndef BACKENDS_RUNTIME_PARSE_ERROR_H
#define BACKENDS_RUNTIME_PARSE_ERROR_H

#include <stddef.h>

struct parse_error {
    size_t offset;     /* in bytes from the start of the input */
    char message[192]; /* a full sentence without the input's own text, NUL-terminated */
};

#endif
