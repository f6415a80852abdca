/* SPDX-License-Identifier: Apache-2.0 */

#include "router/api/api_error.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdio.h>

#include "backends/runtime/must_check.h"
#include "tests/support/leak_check.h"

enum { TEXT_BYTES_MAX = 4096 };

typedef int write_fn(struct buf *buf, const struct api_error *error);

static void expect(write_fn *write, const struct api_error *error, const char *text)
{
    struct buf buf;
    buf_init(&buf, TEXT_BYTES_MAX);

    cr_assert(eq(int, write(&buf, error), 0));

    cr_assert(slice_eq(buf_slice(&buf), slice_of_string(text)), "%.*s", (int)buf_len(&buf),
              buf.bytes);
    buf_release(&buf);
}

TestSuite(api_error, .fini = leak_check);

Test(api_error, all_four_keys_are_there)
{
    expect(api_error_write, &(struct api_error){404, "model_not_found", "model", "None."},
           "{\"error\":{\"message\":\"None.\",\"type\":\"invalid_request_error\","
           "\"param\":\"model\",\"code\":\"model_not_found\"}}");
    expect(api_error_write, &(struct api_error){500, NULL, NULL, "Ours."},
           "{\"error\":{\"message\":\"Ours.\",\"type\":\"server_error\",\"param\":null,"
           "\"code\":null}}");
}

Test(api_error, the_type_follows_from_the_status)
{
    static const struct {
        int status;
        const char *type;
    } rows[] = {
        {400, "invalid_request_error"}, {401, "authentication_error"},
        {403, "permission_error"},      {404, "invalid_request_error"},
        {408, "invalid_request_error"}, {413, "invalid_request_error"},
        {429, "rate_limit_error"},      {431, "invalid_request_error"},
        {499, "invalid_request_error"}, {500, "server_error"},
        {502, "server_error"},          {503, "service_unavailable_error"},
        {504, "server_error"},          {599, "server_error"},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        struct api_error error = {rows[i].status, "c", NULL, "m"};
        struct buf buf;
        char type[64];
        buf_init(&buf, TEXT_BYTES_MAX);

        cr_assert(eq(int, api_error_write(&buf, &error), 0));
        cr_assert(eq(int, buf_append(&buf, slice_of("", 1)), 0));

        cr_assert(eq(
            int, sscanf(buf.bytes, "{\"error\":{\"message\":\"m\",\"type\":\"%63[a-z_]", type), 1));
        cr_assert(eq(str, type, (char *)rows[i].type), "%d", rows[i].status);
        buf_release(&buf);
    }
}

Test(api_error, text_is_escaped_so_that_an_event_stays_one_line)
{
    expect(api_error_write_event,
           &(struct api_error){502, "upstream_closed", NULL, "a \"b\"\r\n\\c"},
           "data: {\"error\":{\"message\":\"a \\\"b\\\"\\r\\n\\\\c\",\"type\":\"server_error\","
           "\"param\":null,\"code\":\"upstream_closed\"}}\n\n");
}

Test(api_error, a_text_that_does_not_fit_is_an_error)
{
    struct api_error error = {500, "code", NULL, "a message"};

    for (size_t max = 0; max < 70; max++) {
        struct buf buf;
        buf_init(&buf, max);

        cr_assert(eq(int, api_error_write(&buf, &error), -ENOBUFS), "%zu", max);

        buf_release(&buf);
    }
}
