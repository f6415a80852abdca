/* SPDX-License-Identifier: Apache-2.0 */

/*
 * block_hash: the name of a block as people and keys see it. In memory it is a plain uint64_t,
 * never 0; in text it is 16 lower-case hex digits, most significant first. Pure.
 */
#ifndef HASHING_BLOCK_HASH_H
#define HASHING_BLOCK_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BLOCK_HASH_DIGITS = 16 };

/* <0, 0, >0, as memcmp; also the order of the text forms. */
static inline int block_hash_compare(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

/* Writes the digits and a NUL; returns text. */
static inline const char *block_hash_format(uint64_t hash, char text[BLOCK_HASH_DIGITS + 1])
{
    for (unsigned i = 0; i < BLOCK_HASH_DIGITS; i++)
        text[i] = "0123456789abcdef"[hash >> (60 - 4 * i) & 15];
    text[BLOCK_HASH_DIGITS] = '\0';
    return text;
}

/* True when text[0..len) is the text form of a hash, and nothing else; *hash is set only then. */
static inline bool block_hash_parse(const char *text, size_t len, uint64_t *hash)
{
    uint64_t value = 0;

    if (len != BLOCK_HASH_DIGITS)
        return false;
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        bool is_digit = c >= '0' && c <= '9';

        if (!is_digit && (c < 'a' || c > 'f'))
            return false;
        value = value << 4 | (uint64_t)(is_digit ? c - '0' : c - 'a' + 10);
    }
    if (value == 0)
        return false;
    *hash = value;
    return true;
}

#endif
