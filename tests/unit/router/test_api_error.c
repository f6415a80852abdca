/* SPDX-License-Identifier: Apache-2.0 */

#include "router/api/api_error.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "backends/runtime/must_check.h"
#include "tests/support/leak_check.h"

enum { TEXT_BYTES_MAX = 4096 };

typedef int write_fn(struct buf *buf, const struct api_error *error,
                     const struct api_error_form *form);

static const struct api_error_form forms[API_FAMILY_COUNT] = {
    [API_FAMILY_OPENAI] = {API_FAMILY_OPENAI, "req-1", 7},
    [API_FAMILY_RESPONSES] = {API_FAMILY_RESPONSES, "req-1", 7},
    [API_FAMILY_ANTHROPIC] = {API_FAMILY_ANTHROPIC, "req-1", 7},
};

static void expect(write_fn *write, const struct api_error *error, enum api_family family,
                   const char *text)
{
    struct buf buf;
    buf_init(&buf, TEXT_BYTES_MAX);

    cr_assert(eq(int, write(&buf, error, &forms[family]), 0));

    cr_assert(slice_eq(buf_slice(&buf), slice_of_string(text)), "%.*s", (int)buf_len(&buf),
              buf.bytes);
    buf_release(&buf);
}

/* The word behind the first `"type":"` that follows `after`. */
static void expect_type(int status, enum api_family family, const char *after, const char *type)
{
    struct api_error error = {status, "c", NULL, "m"};
    struct buf buf;
    char found[64] = "";
    const char *at;
    buf_init(&buf, TEXT_BYTES_MAX);

    cr_assert(eq(int, api_error_write(&buf, &error, &forms[family]), 0));
    cr_assert(eq(int, buf_append(&buf, slice_of("", 1)), 0));

    at = strstr(buf.bytes, after);
    cr_assert(at != NULL && (at = strstr(at, "\"type\":\"")) != NULL, "%s", buf.bytes);
    cr_assert(eq(int, sscanf(at, "\"type\":\"%63[a-z_]", found), 1));
    cr_assert(eq(str, found, (char *)type), "%d", status);
    buf_release(&buf);
}

TestSuite(api_error, .fini = leak_check);

Test(api_error, all_four_keys_are_there)
{
    static const struct api_error unknown = {404, "model_not_found", "model", "None."};
    static const struct api_error ours = {500, NULL, NULL, "Ours."};

    for (int family = API_FAMILY_OPENAI; family <= API_FAMILY_RESPONSES; family++) {
        expect(api_error_write, &unknown, (enum api_family)family,
               "{\"error\":{\"message\":\"None.\",\"type\":\"invalid_request_error\","
               "\"param\":\"model\",\"code\":\"model_not_found\"}}");
        expect(api_error_write, &ours, (enum api_family)family,
               "{\"error\":{\"message\":\"Ours.\",\"type\":\"server_error\",\"param\":null,"
               "\"code\":null}}");
    }
}

Test(api_error, anthropic_clients_get_their_own_form)
{
    expect(api_error_write, &(struct api_error){404, "model_not_found", "model", "None."},
           API_FAMILY_ANTHROPIC,
           "{\"type\":\"error\",\"error\":{\"type\":\"not_found_error\","
           "\"message\":\"model: None.\"},\"request_id\":\"req-1\"}");
    expect(api_error_write, &(struct api_error){504, "upstream_header_timeout", NULL, "Late."},
           API_FAMILY_ANTHROPIC,
           "{\"type\":\"error\",\"error\":{\"type\":\"timeout_error\",\"message\":\"Late.\"},"
           "\"request_id\":\"req-1\"}");
}

Test(api_error, the_type_follows_from_the_status)
{
    static const struct {
        int status;
        const char *openai;
        const char *anthropic;
    } rows[] = {
        {400, "invalid_request_error", "invalid_request_error"},
        {401, "authentication_error", "authentication_error"},
        {403, "permission_error", "permission_error"},
        {404, "invalid_request_error", "not_found_error"},
        {405, "invalid_request_error", "invalid_request_error"},
        {408, "invalid_request_error", "invalid_request_error"},
        {413, "invalid_request_error", "request_too_large"},
        {415, "invalid_request_error", "invalid_request_error"},
        {429, "rate_limit_error", "rate_limit_error"},
        {431, "invalid_request_error", "invalid_request_error"},
        {499, "invalid_request_error", "invalid_request_error"},
        {500, "server_error", "api_error"},
        {502, "server_error", "api_error"},
        {503, "service_unavailable_error", "overloaded_error"},
        {504, "server_error", "timeout_error"},
        {529, "server_error", "overloaded_error"},
        {599, "server_error", "api_error"},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        expect_type(rows[i].status, API_FAMILY_OPENAI, "{", rows[i].openai);
        expect_type(rows[i].status, API_FAMILY_RESPONSES, "{", rows[i].openai);
        expect_type(rows[i].status, API_FAMILY_ANTHROPIC, "\"error\":{", rows[i].anthropic);
    }
}

Test(api_error, each_family_ends_a_stream_with_an_event_that_its_clients_raise)
{
    static const struct api_error error = {502, "upstream_closed", NULL, "It died."};

    expect(api_error_write_event, &error, API_FAMILY_OPENAI,
           "data: {\"error\":{\"message\":\"It died.\",\"type\":\"server_error\",\"param\":null,"
           "\"code\":\"upstream_closed\"}}\n\n");
    expect(api_error_write_event, &error, API_FAMILY_RESPONSES,
           "event: error\n"
           "data: {\"type\":\"error\",\"sequence_number\":7,\"code\":\"upstream_closed\","
           "\"message\":\"It died.\",\"param\":null,\"error\":{\"message\":\"It died.\","
           "\"type\":\"server_error\",\"param\":null,\"code\":\"upstream_closed\"}}\n\n");
    expect(api_error_write_event, &error, API_FAMILY_ANTHROPIC,
           "event: error\n"
           "data: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"It died.\"},"
           "\"request_id\":\"req-1\"}\n\n");
}

Test(api_error, text_is_escaped_so_that_an_event_stays_one_line)
{
    struct api_error error = {502, "upstream_closed", NULL, "a \"b\"\r\n\\c"};

    for (int family = 0; family < API_FAMILY_COUNT; family++) {
        struct buf buf;
        buf_init(&buf, TEXT_BYTES_MAX);

        cr_assert(eq(int, api_error_write_event(&buf, &error, &forms[family]), 0));
        cr_assert(eq(int, buf_append(&buf, slice_of("", 1)), 0));

        const char *data = strstr(buf.bytes, "data: ");
        cr_assert(strstr(data, "a \\\"b\\\"\\r\\n\\\\c") != NULL, "%s", buf.bytes);
        cr_assert(eq(str, strchr(data, '\n'), (char *)"\n\n"), "%d", family);
        buf_release(&buf);
    }
}

Test(api_error, a_text_that_does_not_fit_is_an_error)
{
    struct api_error error = {500, "code", NULL, "a message"};

    for (int family = 0; family < API_FAMILY_COUNT; family++) {
        for (size_t max = 0; max < 70; max++) {
            struct buf buf;
            buf_init(&buf, max);

            cr_assert(eq(int, api_error_write(&buf, &error, &forms[family]), -ENOBUFS), "%zu", max);
            cr_assert(lt(int, api_error_write_event(&buf, &error, &forms[family]), 0), "%zu", max);

            buf_release(&buf);
        }
    }
}
