/* SPDX-License-Identifier: Apache-2.0 */

/* answer_form: the head of an answer as uvicorn writes it: which headers, in which order. Pure. */
#ifndef TESTS_SIM_ENGINE_ANSWER_FORM_H
#define TESTS_SIM_ENGINE_ANSWER_FORM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/buf.h"

struct answer_form {
    int status;
    const char *type;  /* content-type; NULL: none */
    const char *allow; /* of a 405 */
    bool has_retry;    /* retry-after: 1 */
    bool is_stream;    /* its length is not known */
    bool is_chunked;   /* of a stream; else its end is that of the connection */
    bool keep_alive;
    size_t length; /* of the body, unless it is a stream */
};

/* Appends the head, empty line included. wall_ms: for its date. */
void answer_form_put(struct buf *buf, const struct answer_form *form, uint64_t wall_ms);

#endif
