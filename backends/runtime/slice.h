/* SPDX-License-Identifier: Apache-2.0 */

/* slice: bytes that somebody else owns. Passed by value; never freed; not NUL-terminated. */
#ifndef BACKENDS_RUNTIME_SLICE_H
#define BACKENDS_RUNTIME_SLICE_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>

struct slice {
    const char *ptr; /* may be NULL when len is 0 */
    size_t len;
};

/* A slice over a string literal. */
#define SLICE(literal) ((struct slice){"" literal, sizeof(literal) - 1})

static inline struct slice slice_of(const void *ptr, size_t len)
{
    return (struct slice){(const char *)ptr, len}; /* the cast is for C++, which reads this too */
}

static inline struct slice slice_of_string(const char *string)
{
    return (struct slice){string, strlen(string)};
}

static inline bool slice_eq(struct slice a, struct slice b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}

/* ASCII case does not matter: header names, schemes, tokens. Most that differ do so in their first
 * byte (but for case), and then nothing is called. */
static inline bool slice_eq_nocase(struct slice a, struct slice b)
{
    if (a.len != b.len)
        return false;
    return a.len == 0 ||
           (((a.ptr[0] ^ b.ptr[0]) & ~0x20) == 0 && strncasecmp(a.ptr, b.ptr, a.len) == 0);
}

static inline bool slice_starts_with(struct slice slice, struct slice prefix)
{
    return slice.len >= prefix.len &&
           (prefix.len == 0 || memcmp(slice.ptr, prefix.ptr, prefix.len) == 0);
}

/* Where the first such byte is; len where there is none. */
static inline size_t slice_find(struct slice slice, char byte)
{
    const char *found =
        slice.len > 0 ? (const char *)memchr(slice.ptr, byte, slice.len) : NULL; /* for C++ */

    return found != NULL ? (size_t)(found - slice.ptr) : slice.len;
}

/* Drops the first n bytes; n <= slice.len. */
static inline struct slice slice_skip(struct slice slice, size_t n)
{
    return (struct slice){slice.ptr + n, slice.len - n};
}

#endif
