/* SPDX-License-Identifier: Apache-2.0 */

/*
 * xxh3: the one place that includes xxHash, inlined into whoever hashes. For the short runs that
 * blocks are, the call and the dispatch on length cost as much as the hashing: 6 GB/s against the
 * shared library, 16 GB/s inlined, on 256-byte blocks with SSE2 alone. For .c files of this folder.
 */
#ifndef HASHING_XXH3_H
#define HASHING_XXH3_H

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <stdint.h>
#include <string.h>

/* Little-endian on every host: names travel between machines. */
static inline void xxh3_put_u64(uint8_t *bytes, uint64_t value)
{
    if (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__)
        value = __builtin_bswap64(value);
    memcpy(bytes, &value, sizeof value); /* one store: a loop over bytes costs 10 ns a block */
}

#endif
