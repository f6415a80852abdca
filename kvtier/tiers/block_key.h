/* SPDX-License-Identifier: Apache-2.0 */

/*
 * block_key: what says that two pages hold the same keys and values: the name of a token block
 * (hashing/token_name: 128 bits, keyed, of all tokens up to its end), and a second digest of its
 * own token ids that is made another way, so that bytes are never taken for another block's by one
 * collision. Which model and layout they are of says the tier_store they lie in. Pure; any thread.
 */
#ifndef KVTIER_TIERS_BLOCK_KEY_H
#define KVTIER_TIERS_BLOCK_KEY_H

#include <stdbool.h>
#include <stdint.h>

#include "hashing/digest.h"

struct block_key {
    struct digest_128 name; /* .low is never 0 */
    uint64_t check;         /* digest_64(secret, DIGEST_TOKEN_CHECK, ids of this block alone) */
};

static inline bool block_key_equal(struct block_key a, struct block_key b)
{
    return a.name.low == b.name.low && a.name.high == b.name.high && a.check == b.check;
}

#endif
