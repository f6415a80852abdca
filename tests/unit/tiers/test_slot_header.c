/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/slot_header.h"

#include "hashing/checksum.h"
#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <string.h>

static const struct slot_header sample = {
    .layout = 0x1122334455667788,
    .key = {.name = {.low = 0xa1, .high = 0xb2}, .check = 0xc3},
    .parent = {.low = 0xd4, .high = 0xe5},
    .depth = 7,
    .payload_len = 65536,
    .payload_checksum = 0xf6,
    .era = 9,
};

/* As a forger or a later version would write it: all else agrees. */
static void put_right_checksum(uint8_t bytes[SLOT_HEADER_BYTES])
{
    uint64_t sum = checksum(bytes, SLOT_HEADER_BYTES - 8);

    for (unsigned i = 0; i < 8; i++)
        bytes[SLOT_HEADER_BYTES - 8 + i] = (uint8_t)(sum >> 8 * i);
}

TestSuite(slot_header, .fini = leak_check);

Test(slot_header, what_was_written_is_read)
{
    uint8_t bytes[SLOT_HEADER_BYTES];
    struct slot_header header;
    slot_header_write(&sample, bytes);

    cr_assert(eq(int, slot_header_read(&header, bytes), 0));

    cr_assert(memcmp(&header, &sample, sizeof header) == 0);
}

Test(slot_header, stays_what_it_was_on_every_host_and_version)
{
    uint8_t bytes[SLOT_HEADER_BYTES];

    slot_header_write(&sample, bytes);

    cr_assert(memcmp(bytes, "smv-slot\2\0\0\0\0\0\1\0\x88\x77\x66\x55\x44\x33\x22\x11\xa1", 25) ==
              0);
    cr_assert(eq(u64, checksum(bytes, SLOT_HEADER_BYTES), 0x34c48120cf99683c));
}

Test(slot_header, any_flipped_bit_makes_it_none)
{
    uint8_t bytes[SLOT_HEADER_BYTES];
    struct slot_header header;
    slot_header_write(&sample, bytes);

    for (unsigned bit = 0; bit < SLOT_HEADER_BYTES * 8; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        cr_assert(eq(int, slot_header_read(&header, bytes), -EBADMSG), "bit %u", bit);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    cr_assert(eq(int, slot_header_read(&header, bytes), 0));
}

Test(slot_header, zeros_are_none)
{
    uint8_t bytes[SLOT_HEADER_BYTES] = {0};
    struct slot_header header;

    cr_assert(eq(int, slot_header_read(&header, bytes), -EBADMSG));
    put_right_checksum(bytes);
    cr_assert(eq(int, slot_header_read(&header, bytes), -EBADMSG));
}

Test(slot_header, another_version_or_meaning_is_none_though_its_checksum_is_right)
{
    static const unsigned places[] = {0, 8, 68, 71, 88, 96, 103};
    struct slot_header header;

    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        uint8_t bytes[SLOT_HEADER_BYTES];
        slot_header_write(&sample, bytes);
        bytes[places[i]]++;
        put_right_checksum(bytes);

        cr_assert(eq(int, slot_header_read(&header, bytes), -EBADMSG), "byte %u", places[i]);
    }
}

Test(slot_header, a_name_of_zero_is_none)
{
    uint8_t bytes[SLOT_HEADER_BYTES];
    struct slot_header header;
    slot_header_write(&sample, bytes);
    memset(bytes + 24, 0, 8);
    put_right_checksum(bytes);

    cr_assert(eq(int, slot_header_read(&header, bytes), -EBADMSG));
}

Test(slot_header, another_blocks_layouts_eras_or_lengths_is_not_what_was_expected)
{
    uint8_t bytes[SLOT_HEADER_BYTES];
    struct slot_header header, other[6];
    slot_header_write(&sample, bytes);
    for (size_t i = 0; i < 6; i++)
        other[i] = sample;
    other[0].layout++;
    other[1].key.name.low++;
    other[2].key.name.high++;
    other[3].key.check++;
    other[4].payload_len++;
    other[5].era++;

    cr_assert(eq(int, slot_header_expect(&header, bytes, &sample), 0));
    for (size_t i = 0; i < 6; i++)
        cr_assert(eq(int, slot_header_expect(&header, bytes, &other[i]), -EBADMSG), "%zu", i);
}
