/* SPDX-License-Identifier: Apache-2.0 */

/* utf8: which bytes are a character (RFC 3629), for whoever writes texts of others. Pure. */
#ifndef BACKENDS_RUNTIME_UTF8_H
#define BACKENDS_RUNTIME_UTF8_H

#include "backends/runtime/slice.h"

/*
 * Length of the character of two to four bytes that text begins with; 0: there is none, because the
 * bytes are wrong (overlong forms and surrogates too), cut, or of one byte. text is not empty.
 */
static inline size_t utf8_sequence_len(struct slice text)
{
    const unsigned char *bytes = (const unsigned char *)text.ptr;
    unsigned char first = bytes[0];
    unsigned char low = 0x80, high = 0xbf; /* limits of the second byte */
    size_t len = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;

    if (first < 0xc2 || first > 0xf4 || text.len < len)
        return 0;
    if (first == 0xe0)
        low = 0xa0;
    else if (first == 0xed)
        high = 0x9f;
    else if (first == 0xf0)
        low = 0x90;
    else if (first == 0xf4)
        high = 0x8f;
    if (bytes[1] < low || bytes[1] > high)
        return 0;
    for (size_t i = 2; i < len; i++)
        if ((bytes[i] & 0xc0) != 0x80)
            return 0;
    return len;
}

#endif
