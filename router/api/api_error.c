/* SPDX-License-Identifier: Apache-2.0 */

#include "router/api/api_error.h"

#include <assert.h>

#include "backends/json/json_write.h"

/*
 * DESIGN
 *
 * What the official clients make of an error in a stream decides how it is written:
 * - openai raises APIError for any event whose data has a truthy "error", and takes message, code
 *   and param from it; the name of the event does not matter to it, and anything else it hands out
 *   as one more chunk. So the event of a stream of responses, which is documented as {"type":
 *   "error","code","message","param","sequence_number"}, carries the error object as well.
 * - anthropic raises for an event named "error", with the whole data as its body.
 * A [DONE] never follows: it would say that the answer is whole.
 */

enum { MESSAGE_BYTES_MAX = 16 * 1024 };

/* Types as OpenAI's own errors have them. */
static const char *openai_type_of(int status)
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

/* And as Anthropic's. */
static const char *anthropic_type_of(int status)
{
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 413:
        return "request_too_large";
    case 429:
        return "rate_limit_error";
    case 503:
    case 529:
        return "overloaded_error";
    case 504:
        return "timeout_error";
    default:
        return status >= 500 ? "api_error" : "invalid_request_error";
    }
}

/* Writes `text"value"`, or `textnull`. */
static int write_text(struct buf *buf, const char *text, const char *value)
{
    int status = buf_append(buf, slice_of_string(text));

    if (status < 0)
        return status;
    return value != NULL ? json_write_string(buf, slice_of_string(value))
                         : buf_append(buf, SLICE("null"));
}

static int write_openai_members(struct buf *buf, const struct api_error *error)
{
    int status = write_text(buf, "\"error\":{\"message\":", error->message);

    if (status == 0)
        status = write_text(buf, ",\"type\":", openai_type_of(error->status));
    if (status == 0)
        status = write_text(buf, ",\"param\":", error->param);
    if (status == 0)
        status = write_text(buf, ",\"code\":", error->code);
    return status < 0 ? status : buf_append(buf, SLICE("}}"));
}

static int write_openai(struct buf *buf, const struct api_error *error)
{
    int status = buf_append(buf, SLICE("{"));

    return status < 0 ? status : write_openai_members(buf, error);
}

static int write_responses_event(struct buf *buf, const struct api_error *error,
                                 uint64_t sequence_number)
{
    int status = buf_printf(buf, "{\"type\":\"error\",\"sequence_number\":%llu",
                            (unsigned long long)sequence_number);

    if (status == 0)
        status = write_text(buf, ",\"code\":", error->code);
    if (status == 0)
        status = write_text(buf, ",\"message\":", error->message);
    if (status == 0)
        status = write_text(buf, ",\"param\":", error->param);
    if (status == 0)
        status = buf_append(buf, SLICE(","));
    return status < 0 ? status : write_openai_members(buf, error);
}

/* "field: message", as Anthropic's own messages name what is wrong. */
static int write_anthropic_message(struct buf *buf, const struct api_error *error)
{
    struct buf text;
    int status;

    if (error->param == NULL)
        return write_text(buf, ",\"message\":", error->message);
    buf_init(&text, MESSAGE_BYTES_MAX);
    status = buf_printf(&text, "%s: %s", error->param, error->message);
    if (status == 0)
        status = buf_append(buf, SLICE(",\"message\":"));
    if (status == 0)
        status = json_write_string(buf, buf_slice(&text));
    buf_release(&text);
    return status;
}

static int write_anthropic(struct buf *buf, const struct api_error *error, const char *request_id)
{
    int status = write_text(
        buf, "{\"type\":\"error\",\"error\":{\"type\":", anthropic_type_of(error->status));

    if (status == 0)
        status = write_anthropic_message(buf, error);
    if (status == 0)
        status = write_text(buf, "},\"request_id\":", request_id);
    return status < 0 ? status : buf_append(buf, SLICE("}"));
}

int api_error_write(struct buf *buf, const struct api_error *error,
                    const struct api_error_form *form)
{
    assert(form->family < API_FAMILY_COUNT);

    return form->family == API_FAMILY_ANTHROPIC ? write_anthropic(buf, error, form->request_id)
                                                : write_openai(buf, error);
}

int api_error_write_event(struct buf *buf, const struct api_error *error,
                          const struct api_error_form *form)
{
    struct slice before =
        form->family == API_FAMILY_OPENAI ? SLICE("data: ") : SLICE("event: error\ndata: ");
    int status = buf_append(buf, before);

    if (status == 0)
        status = form->family == API_FAMILY_RESPONSES
                     ? write_responses_event(buf, error, form->sequence_number)
                     : api_error_write(buf, error, form);
    return status < 0 ? status : buf_append(buf, SLICE("\n\n"));
}
