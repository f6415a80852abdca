/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/slot_list.h"

#include "hashing/checksum.h"
#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <string.h>

static const struct slot_list_owner owner = {
    .layout = 0x1122334455667788, .era = 0x99, .page_bytes = 65536};

static struct slot_list_entry entry_of(unsigned slot)
{
    return (struct slot_list_entry){.key = {.name = {slot + 1, slot + 2}, .check = slot + 3},
                                    .parent = {slot + 4, slot + 5},
                                    .depth = slot + 6,
                                    .sequence = slot + 7};
}

static void fill(uint8_t *bytes)
{
    slot_list_init(bytes, &owner);
    for (unsigned slot = 0; slot < SLOT_LIST_SLOTS; slot++) {
        const struct slot_list_entry entry = entry_of(slot);

        slot_list_put(bytes, slot, &entry);
    }
    slot_list_seal(bytes);
}

static bool is_entry(const struct slot_list_entry *entry, unsigned slot)
{
    const struct slot_list_entry expected = entry_of(slot);

    return block_key_equal(entry->key, expected.key) && entry->parent.low == expected.parent.low &&
           entry->parent.high == expected.parent.high && entry->depth == expected.depth &&
           entry->sequence == expected.sequence;
}

TestSuite(slot_list, .fini = leak_check);

Test(slot_list, what_was_put_is_got_and_the_rest_is_empty)
{
    uint8_t bytes[SLOT_LIST_BYTES];
    struct slot_list_entry entry = entry_of(70);
    slot_list_init(bytes, &owner);

    slot_list_put(bytes, 70, &entry);
    slot_list_seal(bytes);

    cr_assert(eq(int, slot_list_check(bytes, &owner), 0));
    for (unsigned slot = 0; slot < SLOT_LIST_SLOTS; slot++)
        cr_assert(eq(int, slot_list_get(bytes, slot, &entry), slot == 70));
    cr_assert(slot_list_get(bytes, 70, &entry));
    cr_assert(is_entry(&entry, 70));
}

Test(slot_list, dropping_one_leaves_its_neighbours)
{
    uint8_t bytes[SLOT_LIST_BYTES];
    struct slot_list_entry entry;
    fill(bytes);

    for (unsigned gone = 0; gone < SLOT_LIST_SLOTS; gone++) {
        slot_list_drop(bytes, gone);
        cr_assert(not(slot_list_get(bytes, gone, &entry)));
        for (unsigned slot = gone + 1; slot < SLOT_LIST_SLOTS; slot++) {
            cr_assert(slot_list_get(bytes, slot, &entry));
            cr_assert(is_entry(&entry, slot));
        }
    }
}

Test(slot_list, stays_what_it_was_on_every_host_and_version)
{
    uint8_t bytes[SLOT_LIST_BYTES];

    fill(bytes);

    cr_assert(memcmp(bytes, "smv-list\1\0\0\0\0\0\1\0\x88\x77\x66\x55\x44\x33\x22\x11\x99", 25) ==
              0);
    cr_assert(eq(u64, checksum(bytes, SLOT_LIST_BYTES), 0x7a41604af42c735e));
}

Test(slot_list, any_flipped_bit_makes_it_none)
{
    uint8_t bytes[SLOT_LIST_BYTES];
    fill(bytes);

    for (unsigned bit = 0; bit < SLOT_LIST_BYTES * 8; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        cr_assert(eq(int, slot_list_check(bytes, &owner), -EBADMSG), "bit %u", bit);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    cr_assert(eq(int, slot_list_check(bytes, &owner), 0));
}

Test(slot_list, another_owners_is_none_and_so_are_zeros)
{
    uint8_t bytes[SLOT_LIST_BYTES] = {0};
    struct slot_list_owner others[3] = {owner, owner, owner};
    others[0].layout++;
    others[1].era++;
    others[2].page_bytes++;

    cr_assert(eq(int, slot_list_check(bytes, &owner), -EBADMSG));
    fill(bytes);
    for (int i = 0; i < 3; i++)
        cr_assert(eq(int, slot_list_check(bytes, &others[i]), -EBADMSG));
}

Test(slot_list, another_version_is_none_though_its_checksum_is_right)
{
    uint8_t bytes[SLOT_LIST_BYTES];
    fill(bytes);

    bytes[8]++;
    slot_list_seal(bytes);

    cr_assert(eq(int, slot_list_check(bytes, &owner), -EBADMSG));
}
