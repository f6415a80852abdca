/* SPDX-License-Identifier: Apache-2.0 */

#include "router/cors.h"

#include "backends/http/http_writer.h"

/* How long a page may keep the answer to a preflight; Firefox and Chromium cut it at a day and two
 * hours. */
enum { PREFLIGHT_AGE_S = 600 };

/* The entry of origins that allows origin, or NULL. */
static const char *entry_of(const struct option_list *origins, struct slice origin)
{
    for (size_t i = 0; i < origins->count; i++) {
        struct slice entry = slice_of_string(origins->items[i]);

        if (slice_eq(entry, SLICE("*")) || slice_eq_nocase(entry, origin))
            return origins->items[i];
    }
    return NULL;
}

/* The page that asks, if it may; else NULL. */
static const struct http_header *allowed_origin(const struct option_list *origins,
                                                const struct http_head *head)
{
    const struct http_header *origin = head != NULL ? http_head_find(head, SLICE("Origin")) : NULL;

    return origin != NULL && entry_of(origins, origin->value) != NULL ? origin : NULL;
}

int cors_write_headers(struct buf *buf, const struct option_list *origins,
                       const struct http_head *head)
{
    const struct http_header *origin;
    int status;

    if (origins->count == 0)
        return 0;
    /* Caches must not give one page's answer to another. */
    status = http_write_header(buf, SLICE("vary"), SLICE("Origin"));
    origin = allowed_origin(origins, head);
    if (status < 0 || origin == NULL)
        return status;
    status = http_write_header(buf, SLICE("access-control-allow-origin"), origin->value);
    if (status == 0)
        status = http_write_header(buf, SLICE("access-control-expose-headers"),
                                   SLICE("x-request-id, retry-after"));
    return status;
}

int cors_write_preflight(struct buf *buf, const struct option_list *origins,
                         const struct http_head *head, const char *allow)
{
    const struct http_header *names = http_head_find(head, SLICE("Access-Control-Request-Headers"));
    int status;

    if (allowed_origin(origins, head) == NULL ||
        http_head_find(head, SLICE("Access-Control-Request-Method")) == NULL)
        return 0;
    status = http_write_header(buf, SLICE("access-control-allow-methods"), slice_of_string(allow));
    /* Whatever it asks for: '*' would not include Authorization. */
    if (status == 0 && names != NULL)
        status = http_write_header(buf, SLICE("access-control-allow-headers"), names->value);
    if (status == 0)
        status = http_write_header_u64(buf, SLICE("access-control-max-age"), PREFLIGHT_AGE_S);
    return status;
}

bool cors_is_header(struct slice name)
{
    struct slice prefix = SLICE("Access-Control-");

    return name.len > prefix.len && slice_eq_nocase(slice_of(name.ptr, prefix.len), prefix);
}
