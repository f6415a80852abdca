/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Any bytes as a slot's header, as they are and under a checksum that is right: one that is taken
 * has a name, and written again it is the same bytes, so nothing in it went unread; with any byte
 * changed it is none.
 */
#include "kvtier/tiers/slot_header.h"

#include "hashing/checksum.h"
#include "tests/fuzz/fuzz_input.h"

#include <assert.h>

static void check(uint8_t bytes[SLOT_HEADER_BYTES])
{
    uint8_t again[SLOT_HEADER_BYTES];
    struct slot_header header;

    if (slot_header_read(&header, bytes) < 0)
        return;
    assert(header.key.name.low != 0);
    slot_header_write(&header, again);
    assert(memcmp(bytes, again, sizeof again) == 0);
    again[header.era % sizeof again] ^= 1;
    assert(slot_header_read(&header, again) < 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t bytes[SLOT_HEADER_BYTES] = {0};
    uint64_t sum;

    memcpy(bytes, data, size < sizeof bytes ? size : sizeof bytes);
    check(bytes);
    sum = checksum(bytes, sizeof bytes - 8);
    for (unsigned i = 0; i < 8; i++)
        bytes[sizeof bytes - 8 + i] = (uint8_t)(sum >> 8 * i);
    check(bytes);
    return 0;
}
