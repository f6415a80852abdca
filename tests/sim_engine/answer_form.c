/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/answer_form.h"

#include <assert.h>
#include <time.h>

#include "backends/http/http_writer.h"
#include "tests/sim_engine/json_text.h"

static void put_header(struct buf *buf, const char *name, struct slice value)
{
    int status = http_write_header(buf, slice_of_string(name), value);

    assert(status == 0);
}

static void put_date(struct buf *buf, uint64_t wall_ms)
{
    char date[40];
    time_t seconds = (time_t)(wall_ms / 1000);
    struct tm tm;
    size_t len = strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&seconds, &tm));

    put_header(buf, "date", slice_of(date, len));
}

void answer_form_put(struct buf *buf, const struct answer_form *form, uint64_t wall_ms)
{
    int status = http_write_status_line(buf, form->status);

    assert(status == 0);
    put_date(buf, wall_ms);
    put_header(buf, "server", SLICE("uvicorn"));
    if (form->allow != NULL)
        put_header(buf, "allow", slice_of_string(form->allow));
    if (form->has_retry)
        put_header(buf, "retry-after", SLICE("1"));
    if (!form->is_stream)
        text_putf(buf, "content-length: %zu\r\n", form->length);
    if (form->type != NULL)
        put_header(buf, "content-type", slice_of_string(form->type));
    put_header(buf, "vary", SLICE("Origin"));
    if (!form->keep_alive)
        put_header(buf, "connection", SLICE("close"));
    if (form->is_stream && form->is_chunked)
        put_header(buf, "transfer-encoding", SLICE("chunked"));
    text_put(buf, SLICE("\r\n"));
}
