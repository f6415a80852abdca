/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/request_field.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

/*
 * DESIGN
 *
 * vLLM checks in two layers, and the layer shows in the error: the schema of the body (pydantic:
 * "1 validation error", type "Bad Request", param "body.<field>") and the meaning of the values
 * ("BadRequestError", param the field or null). The recordings have both.
 */

int request_refuse(struct engine_fault *fault, const char *param, const char *format, ...)
{
    va_list args;

    *fault = (struct engine_fault){.status = 400, .type = "BadRequestError"};
    snprintf(fault->param, sizeof fault->param, "%s", param);
    va_start(args, format);
    vsnprintf(fault->message, sizeof fault->message, format, args);
    va_end(args);
    return -EINVAL;
}

int request_refuse_field(struct engine_fault *fault, const char *field, const char *type,
                         const char *message)
{
    char param[64];

    snprintf(param, sizeof param, "body.%s", field);
    (void)request_refuse(fault, param,
                         "1 validation error:\n  {'type': '%s', 'loc': '%s', 'msg': '%s'}", type,
                         param, message);
    fault->type = "Bad Request";
    fault->by_schema = true;
    return -EINVAL;
}

int request_refuse_missing(struct engine_fault *fault, const char *field)
{
    return request_refuse_field(fault, field, "missing", "Field required");
}

bool json_is_given(struct json_value value)
{
    return json_type(value) != JSON_NONE && json_type(value) != JSON_NULL;
}

int request_read_bool(struct json_value object, const char *key, bool *flag,
                      struct engine_fault *fault)
{
    struct json_value value = json_get(object, key);

    if (!json_is_given(value))
        return 0;
    if (json_type(value) != JSON_BOOL)
        return request_refuse_field(fault, key, "bool_type", "Input should be a valid boolean");
    *flag = json_bool(value);
    return 0;
}

int request_read_int(struct json_value object, const char *key, int64_t *number,
                     struct engine_fault *fault)
{
    struct json_value value = json_get(object, key);

    if (!json_is_given(value))
        return 0;
    if (json_type(value) != JSON_INT64)
        return request_refuse_field(fault, key, "int_type", "Input should be a valid integer");
    *number = json_int64(value);
    return 1;
}

int request_check_number(struct json_value object, const char *key, struct engine_fault *fault)
{
    struct json_value value = json_get(object, key);
    enum json_type type = json_type(value);

    if (!json_is_given(value) || type == JSON_INT64 || type == JSON_UINT64 || type == JSON_DOUBLE)
        return 0;
    return request_refuse_field(
        fault, key, "float_parsing",
        "Input should be a valid number, unable to parse string as a number");
}

void request_refuse_json(struct engine_fault *fault, size_t offset, const char *why)
{
    char param[64];

    snprintf(param, sizeof param, "body.%zu", offset);
    (void)request_refuse(
        fault, param,
        "1 validation error:\n  {'type': 'json_invalid', 'loc': '%s', 'msg': 'JSON decode "
        "error', 'input': '<dict of 0 items>', 'ctx': {'error': '%s'}}",
        param, why);
    fault->type = "Bad Request";
    fault->by_schema = true;
}
