/* SPDX-License-Identifier: Apache-2.0 */

/*
 * api_error: errors in the form that the clients of each API family read, as a whole answer or as
 * the last event of a stream. Pure; any thread.
 */
#ifndef ROUTER_API_API_ERROR_H
#define ROUTER_API_API_ERROR_H

#include <stdint.h>

#include "backends/runtime/buf.h"
#include "backends/runtime/must_check.h"
#include "router/api/api.h"

struct api_error {
    int status;
    const char *code;    /* machine word; Anthropic's form has no place for it */
    const char *param;   /* the field at fault, or NULL; there it stands before the message */
    const char *message; /* says what is wrong and what to do; no text of the prompt, no key */
};

/* In which form, and what of the exchange at hand is written with it. */
struct api_error_form {
    enum api_family family;
    const char *request_id;   /* borrowed */
    uint64_t sequence_number; /* of a stream's event, where its family counts them */
};

/*
 * OpenAI, and responses: {"error":{"message":...,"type":...,"param":...,"code":...}}
 * Anthropic: {"type":"error","error":{"type":...,"message":...},"request_id":...}
 * The type follows from the status.
 */
MUST_CHECK int api_error_write(struct buf *buf, const struct api_error *error,
                               const struct api_error_form *form);

/* The same as the last event of a stream, such that the family's own clients raise it. */
MUST_CHECK int api_error_write_event(struct buf *buf, const struct api_error *error,
                                     const struct api_error_form *form);

#endif
