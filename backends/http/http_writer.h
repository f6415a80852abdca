/* SPDX-License-Identifier: Apache-2.0 */

/*
 * http_writer: writes heads and chunk frames into a buf. Everything is serialised anew; no raw
 * bytes of a peer's framing pass through. Pure; any thread.
 */
#ifndef BACKENDS_HTTP_HTTP_WRITER_H
#define BACKENDS_HTTP_HTTP_WRITER_H

#include <stdint.h>

#include "backends/http/http_message.h"
#include "backends/runtime/buf.h"
#include "backends/runtime/must_check.h"

/* Room for "ffffffff\r\n" before a chunk. */
enum { HTTP_CHUNK_HEAD_BYTES_MAX = 18 };

/* "POST target HTTP/1.1\r\n". -ENOBUFS, -ENOMEM as buf_append(); so for all below. */
MUST_CHECK int http_write_request_line(struct buf *buf, enum http_method method,
                                       struct slice target);
MUST_CHECK int http_write_status_line(struct buf *buf, int status);

/* "name: value\r\n". Both must already be free of CR, LF and NUL. */
MUST_CHECK int http_write_header(struct buf *buf, struct slice name, struct slice value);
MUST_CHECK int http_write_header_u64(struct buf *buf, struct slice name, uint64_t value);

/* The headers of head that a proxy passes on: none that belong to its connection, or that head
 * names in Connection, and none of which is_replaced says that the caller writes it anew. */
MUST_CHECK int http_write_passed_headers(struct buf *buf, const struct http_head *head,
                                         bool (*is_replaced)(struct slice name));

/* The empty line. */
MUST_CHECK int http_write_head_end(struct buf *buf);

/* Writes "<hex>\r\n" for a chunk of len > 0 bytes; returns its length. */
size_t http_write_chunk_head(char head[HTTP_CHUNK_HEAD_BYTES_MAX], size_t len);

#endif
