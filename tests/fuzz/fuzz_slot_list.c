/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Any bytes as a list of slots, as they are and under a checksum that is right: of one that is
 * taken each slot is empty or has a name; dropping one slot leaves the others what they were; and
 * with any byte changed it is none.
 */
#include "kvtier/tiers/slot_list.h"

#include "tests/fuzz/fuzz_input.h"

#include <assert.h>
#include <string.h>

static const struct slot_list_owner owner = {.layout = 1, .era = 2, .page_bytes = 4096};

static bool is_equal(const struct slot_list_entry *a, const struct slot_list_entry *b)
{
    return block_key_equal(a->key, b->key) && a->parent.low == b->parent.low &&
           a->parent.high == b->parent.high && a->depth == b->depth && a->sequence == b->sequence;
}

static void check(uint8_t bytes[SLOT_LIST_BYTES])
{
    struct slot_list_entry entries[SLOT_LIST_SLOTS], entry;
    bool is_held[SLOT_LIST_SLOTS];
    unsigned gone;

    if (slot_list_check(bytes, &owner) < 0)
        return;
    for (unsigned slot = 0; slot < SLOT_LIST_SLOTS; slot++) {
        is_held[slot] = slot_list_get(bytes, slot, &entries[slot]);
        assert(is_held[slot] == (entries[slot].key.name.low != 0));
    }
    gone = bytes[SLOT_LIST_BYTES - 1] % SLOT_LIST_SLOTS; /* of the checksum: any */
    slot_list_drop(bytes, gone);
    for (unsigned slot = 0; slot < SLOT_LIST_SLOTS; slot++) {
        assert(slot_list_get(bytes, slot, &entry) == (is_held[slot] && slot != gone));
        assert(slot == gone || is_equal(&entry, &entries[slot]));
    }
    slot_list_seal(bytes);
    assert(slot_list_check(bytes, &owner) == 0);
    bytes[gone * 7 + 32] ^= 1;
    assert(slot_list_check(bytes, &owner) < 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t bytes[SLOT_LIST_BYTES] = {0}, sealed[SLOT_LIST_BYTES];

    memcpy(bytes, data, size < sizeof bytes ? size : sizeof bytes);
    memcpy(sealed, bytes, sizeof sealed);
    check(bytes);
    slot_list_seal(sealed);
    check(sealed);
    return 0;
}
