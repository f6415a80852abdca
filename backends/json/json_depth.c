/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/json/json_depth.h"

#include <string.h>

/*
 * DESIGN
 *
 * Most of a prompt lies in strings, which memchr() passes at memory speed: a quote ends a string
 * unless an odd number of backslashes stands before it. These are counted back at most to the
 * quote before, so that no text takes more than two looks at a byte.
 */

/* Just past the string whose first quote is at bytes[at - 1], or the end. */
static size_t skip_string(const char *bytes, size_t at, size_t len)
{
    while (at < len) {
        const char *quote = memchr(bytes + at, '"', len - at);
        size_t end, backslash_count = 0;

        if (quote == NULL)
            return len;
        end = (size_t)(quote - bytes);
        while (end - backslash_count > at && bytes[end - backslash_count - 1] == '\\')
            backslash_count++;
        at = end + 1;
        if (backslash_count % 2 == 0)
            return at;
    }
    return len;
}

bool json_is_deeper(struct slice text, size_t depth_max)
{
    size_t depth = 0, at = 0;

    while (at < text.len) {
        switch (text.ptr[at++]) {
        case '"':
            at = skip_string(text.ptr, at, text.len);
            break;
        case '[':
        case '{':
            if (++depth > depth_max)
                return true;
            break;
        case ']':
        case '}':
            if (depth == 0) /* not JSON */
                return false;
            depth--;
            break;
        default:
            break;
        }
    }
    return false;
}
