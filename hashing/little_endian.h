/* SPDX-License-Identifier: Apache-2.0 */

/*
 * little_endian: numbers as what outlives a process holds them. One by one: a struct's padding and
 * byte order are the compiler's. Pure; any thread.
 */
#ifndef HASHING_LITTLE_ENDIAN_H
#define HASHING_LITTLE_ENDIAN_H

#include <stdint.h>

#include "hashing/digest.h"

static inline void put_little(uint8_t *at, unsigned bytes, uint64_t value)
{
    for (unsigned i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

static inline uint64_t get_little(const uint8_t *at, unsigned bytes)
{
    uint64_t value = 0;

    for (unsigned i = bytes; i-- > 0;)
        value = value << 8 | at[i];
    return value;
}

static inline void put_little_128(uint8_t *at, struct digest_128 value)
{
    put_little(at, 8, value.low);
    put_little(at + 8, 8, value.high);
}

static inline struct digest_128 get_little_128(const uint8_t *at)
{
    return (struct digest_128){.low = get_little(at, 8), .high = get_little(at + 8, 8)};
}

#endif
