/* SPDX-License-Identifier: Apache-2.0 */

/*
 * api_error: errors in the form that OpenAI's clients read. Pure; any thread.
 */
#ifndef ROUTER_API_API_ERROR_H
#define ROUTER_API_API_ERROR_H

#include "backends/runtime/buf.h"
#include "backends/runtime/must_check.h"

struct api_error {
    int status;
    const char *code;    /* machine word */
    const char *param;   /* the field at fault, or NULL */
    const char *message; /* says what is wrong and what to do; no text of the prompt, no key */
};

/* {"error":{"message":...,"type":...,"param":...,"code":...}}; the type follows from the status. */
MUST_CHECK int api_error_write(struct buf *buf, const struct api_error *error);

/* The same as the last event of a stream: "data: {...}\n\n". */
MUST_CHECK int api_error_write_event(struct buf *buf, const struct api_error *error);

#endif
