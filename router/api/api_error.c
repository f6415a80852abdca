/* SPDX-License-Identifier: Apache-2.0 */

#include "router/api/api_error.h"

#include "backends/json/json_write.h"

/* Types as OpenAI's own errors have them. */
static const char *type_of(int status)
{
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 429:
        return "rate_limit_error";
    case 503:
        return "service_unavailable_error";
    default:
        return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

static int write_member(struct buf *buf, const char *name, const char *value)
{
    int status = buf_printf(buf, "\"%s\":", name);

    if (status < 0)
        return status;
    return value != NULL ? json_write_string(buf, slice_of_string(value))
                         : buf_append(buf, SLICE("null"));
}

int api_error_write(struct buf *buf, const struct api_error *error)
{
    const struct {
        const char *before, *name, *value;
    } members[] = {
        {"{\"error\":{", "message", error->message},
        {",", "type", type_of(error->status)},
        {",", "param", error->param},
        {",", "code", error->code},
    };
    int status = 0;

    for (size_t i = 0; status == 0 && i < array_count(members); i++) {
        status = buf_append(buf, slice_of_string(members[i].before));
        if (status == 0)
            status = write_member(buf, members[i].name, members[i].value);
    }
    return status < 0 ? status : buf_append(buf, SLICE("}}"));
}

int api_error_write_event(struct buf *buf, const struct api_error *error)
{
    int status = buf_append(buf, SLICE("data: "));

    if (status == 0)
        status = api_error_write(buf, error);
    return status < 0 ? status : buf_append(buf, SLICE("\n\n"));
}
