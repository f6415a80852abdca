/* SPDX-License-Identifier: Apache-2.0 */

/* request_field: one field of a body at a time, and vLLM's words for what is wrong with it. Every
 * function that returns an int gives -EINVAL when it refused: then fault says why. Pure. */
#ifndef TESTS_SIM_ENGINE_REQUEST_FIELD_H
#define TESTS_SIM_ENGINE_REQUEST_FIELD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/json/json_scan.h"
#include "backends/runtime/must_check.h"

/* An error answer in vLLM's shape. */
struct engine_fault {
    int status;
    const char *type; /* "BadRequestError", "NotFoundError", ... */
    bool by_schema;   /* found before any endpoint saw the body: of one shape everywhere */
    char param[64];   /* "": null */
    char message[640];
};

/* Not given and null are the same to vLLM. */
bool json_is_given(struct json_value value);

/* A value that has the right type and is still wrong. param "": null. Always -EINVAL. */
int request_refuse(struct engine_fault *fault, const char *param, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The schema's errors for one field. Always -EINVAL. */
int request_refuse_field(struct engine_fault *fault, const char *field, const char *type,
                         const char *message);
int request_refuse_missing(struct engine_fault *fault, const char *field);

/* The answer to a body that is no JSON. */
void request_refuse_json(struct engine_fault *fault, size_t offset, const char *why);

/* Leaves *flag as it is where the field is not given. */
MUST_CHECK int request_read_bool(struct json_value object, const char *key, bool *flag,
                                 struct engine_fault *fault);

/* 1: read; 0: not given. */
MUST_CHECK int request_read_int(struct json_value object, const char *key, int64_t *number,
                                struct engine_fault *fault);

/* 0: a number, or not given. */
MUST_CHECK int request_check_number(struct json_value object, const char *key,
                                    struct engine_fault *fault);

#endif
