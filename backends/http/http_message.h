/* SPDX-License-Identifier: Apache-2.0 */

/*
 * http_message: the head of a request or an answer as values, and the tables around it (methods,
 * status texts, the errors we answer with). Pure; any thread.
 */
#ifndef BACKENDS_HTTP_HTTP_MESSAGE_H
#define BACKENDS_HTTP_HTTP_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/slice.h"

enum { HTTP_HEADER_COUNT_MAX = 100 };

enum http_method {
    HTTP_METHOD_GET,
    HTTP_METHOD_HEAD,
    HTTP_METHOD_POST,
    HTTP_METHOD_OPTIONS,
    HTTP_METHOD_DELETE,
    HTTP_METHOD_CONNECT,
    HTTP_METHOD_OTHER, /* known to the parser, used by nobody here: answered 405 */
    HTTP_METHOD_COUNT
};

struct http_header {
    struct slice name;  /* as received; compare without case */
    struct slice value; /* without surrounding blanks */
};

/* A head after its last header, before its body. The slices belong to the reader. */
struct http_head {
    enum http_method method; /* of a request */
    struct slice target;     /* of a request: origin form, query included; or "*" */
    int status;              /* of an answer */
    int version_minor;       /* HTTP/1.<minor>: 0 or 1 */
    const struct http_header *headers;
    size_t header_count;
    int64_t content_length; /* bytes; -1: not given */
    bool is_chunked;        /* body comes in chunks */
    bool has_body;          /* bytes of body may follow */
    bool keep_alive;        /* the connection may carry another message after this one */
    bool expects_continue;  /* the client waits for 100 before it sends the body */
};

/* Whether list, parted by commas, has item; case does not matter. */
bool http_list_has(struct slice list, struct slice item);

/* The first header of that name, or NULL. */
const struct http_header *http_head_find(const struct http_head *head, struct slice name);

/* Hop-by-hop headers (RFC 9110, 7.6.1) are ours to write, never to pass on. */
bool http_header_is_hop_by_hop(struct slice name);

/*
 * The peer lists that header in its Connection header: it is not to be passed on. A peer cannot
 * take away what a message means by itself (Authorization, Host, Content-*, ids), nor what proxies
 * before us said about it (Forwarded, Via and the like): those stay.
 */
bool http_head_names_in_connection(const struct http_head *head, struct slice name);

const char *http_method_name(enum http_method method);

/* "Not Found" for 404; "" for a status nobody named. */
const char *http_status_text(int status);

/* Why a message was refused: what the peer is told. All strings are literals. */
struct http_fault {
    int status;          /* to answer with: 400, 413, 431, ... */
    const char *code;    /* machine word: "headers_too_large" */
    const char *message; /* sentence for people: what is wrong and what to do */
};

#endif
