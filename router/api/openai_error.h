/* SPDX-License-Identifier: Apache-2.0 */

/*
 * openai_error: errors in the form that OpenAI's clients read. Pure; any thread.
 */
#ifndef ROUTER_API_OPENAI_ERROR_H
#define ROUTER_API_OPENAI_ERROR_H

#include "backends/runtime/buf.h"
#include "backends/runtime/must_check.h"

struct openai_error {
    int status;
    const char *code;    /* machine word */
    const char *param;   /* the field at fault, or NULL */
    const char *message; /* says what is wrong and what to do; no text of the prompt, no key */
};

/* {"error":{"message":...,"type":...,"param":...,"code":...}}; the type follows from the status. */
MUST_CHECK int openai_error_write(struct buf *buf, const struct openai_error *error);

/* The same as the last event of a stream: "data: {...}\n\n". */
MUST_CHECK int openai_error_write_event(struct buf *buf, const struct openai_error *error);

#endif
