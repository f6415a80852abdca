/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/http/http_writer.h"

#include <assert.h>

/* Room for the longest decimal of a uint64_t. */
enum { DECIMAL_BYTES_MAX = 20 };

static struct slice decimal(char digits[DECIMAL_BYTES_MAX], uint64_t value)
{
    char *end = digits + DECIMAL_BYTES_MAX;
    char *at = end;

    do {
        *--at = (char)('0' + value % 10);
        value /= 10;
    } while (value > 0);
    return slice_of(at, (size_t)(end - at));
}

/* Appends to a buf that has room already. */
static void put(struct buf *buf, struct slice slice)
{
    memcpy(buf->bytes + buf->end, slice.ptr, slice.len);
    buf->end += slice.len;
}

int http_write_request_line(struct buf *buf, enum http_method method, struct slice target)
{
    struct slice name = slice_of_string(http_method_name(method));
    int status = buf_reserve(buf, name.len + target.len + 12);

    if (status < 0)
        return status;
    put(buf, name);
    put(buf, SLICE(" "));
    put(buf, target);
    put(buf, SLICE(" HTTP/1.1\r\n"));
    return 0;
}

int http_write_status_line(struct buf *buf, int status_code)
{
    char digits[DECIMAL_BYTES_MAX];
    struct slice text = slice_of_string(http_status_text(status_code));
    int status = buf_reserve(buf, text.len + DECIMAL_BYTES_MAX + 12);

    assert(status_code >= 100 && status_code <= 999);
    if (status < 0)
        return status;
    put(buf, SLICE("HTTP/1.1 "));
    put(buf, decimal(digits, (uint64_t)status_code));
    put(buf, SLICE(" "));
    put(buf, text);
    put(buf, SLICE("\r\n"));
    return 0;
}

int http_write_header(struct buf *buf, struct slice name, struct slice value)
{
    int status = buf_reserve(buf, name.len + value.len + 4);

    if (status < 0)
        return status;
    put(buf, name);
    put(buf, SLICE(": "));
    if (value.len > 0)
        put(buf, value);
    put(buf, SLICE("\r\n"));
    return 0;
}

int http_write_header_u64(struct buf *buf, struct slice name, uint64_t value)
{
    char digits[DECIMAL_BYTES_MAX];

    return http_write_header(buf, name, decimal(digits, value));
}

int http_write_passed_headers(struct buf *buf, const struct http_head *head,
                              bool (*is_replaced)(struct slice name))
{
    int status = 0;

    for (size_t i = 0; status == 0 && i < head->header_count; i++) {
        const struct http_header *header = &head->headers[i];

        if (!is_replaced(header->name) && !http_header_is_hop_by_hop(header->name) &&
            !http_head_names_in_connection(head, header->name))
            status = http_write_header(buf, header->name, header->value);
    }
    return status;
}

int http_write_head_end(struct buf *buf)
{
    return buf_append(buf, SLICE("\r\n"));
}

size_t http_write_chunk_head(char head[HTTP_CHUNK_HEAD_BYTES_MAX], size_t len)
{
    static const char hex[] = "0123456789abcdef";
    size_t digit_count = 1;

    assert(len > 0);

    while (digit_count < 16 && len >> (4 * digit_count) != 0)
        digit_count++;
    for (size_t i = 0; i < digit_count; i++)
        head[i] = hex[len >> (4 * (digit_count - 1 - i)) & 15];
    head[digit_count] = '\r';
    head[digit_count + 1] = '\n';
    return digit_count + 2;
}
