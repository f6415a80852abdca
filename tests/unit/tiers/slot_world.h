/* SPDX-License-Identifier: Apache-2.0 */

/* slot_world: blocks by number, and pages that tell which block they are of. */
#ifndef TESTS_UNIT_TIERS_SLOT_WORLD_H
#define TESTS_UNIT_TIERS_SLOT_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/random.h"
#include "kvtier/tiers/tier.h"

static inline struct block_key slot_key(uint64_t number)
{
    return (struct block_key){.name = {.low = number + 1, .high = ~number}, .check = number * 3};
}

static inline struct tier_transfer slot_transfer(uint32_t slot, uint64_t number, void *payload)
{
    return (struct tier_transfer){.slot = slot,
                                  .key = slot_key(number),
                                  .parent = {.low = number, .high = 5},
                                  .depth = (uint32_t)number,
                                  .payload = payload,
                                  .status = 1};
}

static inline void slot_fill(uint8_t *bytes, size_t len, uint64_t number)
{
    for (size_t i = 0; i < len; i++)
        bytes[i] = (uint8_t)random_next(&number);
}

static inline bool slot_is_filled(const uint8_t *bytes, size_t len, uint64_t number)
{
    for (size_t i = 0; i < len; i++)
        if (bytes[i] != (uint8_t)random_next(&number))
            return false;
    return true;
}

#endif
