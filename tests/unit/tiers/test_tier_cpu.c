/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/tier.h"

#include "tests/support/leak_check.h"
#include "tests/unit/tiers/slot_world.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PAGE_BYTES = 5000, SLOT_COUNT = 9 };

static struct tier *make_tier(bool has_checksum)
{
    struct tier *tier;

    cr_assert(eq(int,
                 tier_cpu_create((struct tier_cpu_config){.bytes = SLOT_COUNT * 8192 + 100,
                                                          .page_bytes = PAGE_BYTES,
                                                          .layout = 77,
                                                          .has_checksum = has_checksum},
                                 &tier),
                 0));
    return tier;
}

static void save(struct tier *tier, uint32_t slot, uint64_t number)
{
    struct tier_transfer transfer = slot_transfer(slot, number, NULL);

    tier->ops->invalidate(tier, slot);
    slot_fill(tier->ops->payload(tier, slot), PAGE_BYTES, number);
    tier->ops->seal(tier, &transfer);
}

static int verify(struct tier *tier, uint32_t slot, uint64_t number)
{
    struct tier_transfer transfer = slot_transfer(slot, number, NULL);

    return tier->ops->verify(tier, &transfer);
}

TestSuite(tier_cpu, .fini = leak_check);

Test(tier_cpu, has_as_many_slots_as_fit_and_each_is_whole_sectors)
{
    struct tier *tier = make_tier(true);
    void *arena;
    size_t arena_bytes;

    tier_cpu_arena(tier, &arena, &arena_bytes);

    cr_assert(eq(u32, tier->slot_count, SLOT_COUNT));
    cr_assert(eq(sz, arena_bytes, SLOT_COUNT * 8192));
    for (uint32_t slot = 0; slot < SLOT_COUNT; slot++)
        cr_assert(eq(ptr, tier->ops->payload(tier, slot), (uint8_t *)arena + slot * 8192));
    cr_assert(eq(sz, (uintptr_t)arena % TIER_ALIGN_BYTES, 0));
    tier->ops->destroy(tier);
}

Test(tier_cpu, less_than_one_page_or_more_than_there_can_be_is_refused)
{
    struct tier *tier;

    cr_assert(
        eq(int, tier_cpu_create((struct tier_cpu_config){.bytes = 8191, .page_bytes = 5000}, &tier),
           -ENOMEM));
    cr_assert(eq(int,
                 tier_cpu_create(
                     (struct tier_cpu_config){.bytes = UINT64_MAX / 2, .page_bytes = 5000}, &tier),
                 -ENOMEM));
}

Test(tier_cpu, a_new_slot_is_empty_and_a_sealed_one_is_of_its_block_alone)
{
    struct tier *tier = make_tier(true);

    cr_assert(eq(int, verify(tier, 3, 30), -EBADMSG));
    save(tier, 3, 30);

    cr_assert(eq(int, verify(tier, 3, 30), 0));
    cr_assert(eq(int, verify(tier, 3, 31), -EBADMSG));
    cr_assert(eq(int, verify(tier, 4, 30), -EBADMSG));
    cr_assert(slot_is_filled(tier->ops->payload(tier, 3), PAGE_BYTES, 30));
    tier->ops->destroy(tier);
}

Test(tier_cpu, a_slot_is_empty_from_its_invalidation_to_its_seal)
{
    struct tier *tier = make_tier(true);
    uint32_t slots[] = {1, 2};
    save(tier, 1, 10);
    save(tier, 2, 20);
    save(tier, 3, 30);

    tier->ops->invalidate(tier, 3);
    tier->ops->erase(tier, slots, 2);

    for (uint32_t slot = 1; slot <= 3; slot++)
        cr_assert(eq(int, verify(tier, slot, slot * 10), -EBADMSG));
    tier->ops->destroy(tier);
}

Test(tier_cpu, what_is_written_is_read_and_nothing_else)
{
    struct tier *tier = make_tier(true);
    struct tier_transfer transfers[SLOT_COUNT];
    uint8_t *pages = aligned_alloc(4096, SLOT_COUNT * 8192);
    cr_assert(pages != NULL);
    for (uint32_t i = 0; i < SLOT_COUNT; i++) {
        transfers[i] = slot_transfer(i, i + 1, pages + i * 8192);
        slot_fill(pages + i * 8192, PAGE_BYTES, i + 1);
    }

    cr_assert(eq(sz, tier->ops->write(tier, transfers, SLOT_COUNT), SLOT_COUNT));
    memset(pages, 0, SLOT_COUNT * 8192);
    transfers[4].key.check++;
    cr_assert(eq(sz, tier->ops->read(tier, transfers, SLOT_COUNT), SLOT_COUNT - 1));

    for (uint32_t i = 0; i < SLOT_COUNT; i++) {
        cr_assert(eq(int, transfers[i].status, i == 4 ? -EBADMSG : 0));
        cr_assert(eq(int, slot_is_filled(pages + i * 8192, PAGE_BYTES, i + 1), i != 4));
    }
    free(pages);
    tier->ops->destroy(tier);
}

Test(tier_cpu, a_flipped_bit_of_the_payload_is_found_where_there_are_checksums)
{
    static const size_t places[] = {0, PAGE_BYTES / 2, PAGE_BYTES - 1};

    for (int has_checksum = 0; has_checksum < 2; has_checksum++) {
        struct tier *tier = make_tier(has_checksum);
        uint8_t *bytes = tier->ops->payload(tier, 2);
        save(tier, 2, 20);

        for (size_t i = 0; i < 3; i++) {
            bytes[places[i]] ^= 4;
            cr_assert(eq(int, verify(tier, 2, 20), has_checksum ? -EBADMSG : 0));
            bytes[places[i]] ^= 4;
        }
        bytes[PAGE_BYTES] ^= 4; /* is nobody's */
        cr_assert(eq(int, verify(tier, 2, 20), 0));
        tier->ops->destroy(tier);
    }
}

/* The flags of the mapping that holds address, out of /proc/self/smaps. */
static void flags_of(const void *address, char flags[512])
{
    FILE *file = fopen("/proc/self/smaps", "r");
    char line[512];
    bool is_in = false;

    cr_assert(file != NULL);
    flags[0] = '\0';
    while (fgets(line, sizeof line, file) != NULL) {
        unsigned long start, end;

        if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
            is_in = (uintptr_t)address >= start && (uintptr_t)address < end;
        else if (is_in && strncmp(line, "VmFlags:", 8) == 0)
            snprintf(flags, 512, "%s", line);
    }
    (void)fclose(file);
}

Test(tier_cpu, the_arena_is_kept_out_of_core_dumps)
{
    struct tier *tier = make_tier(false);
    char flags[512];

    flags_of(tier->ops->payload(tier, 0), flags);

    cr_assert(strstr(flags, " dd") != NULL, "%s", flags);
    tier->ops->destroy(tier);
}

Test(tier_cpu, going_while_memory_is_still_being_asked_for_is_fine)
{
    struct tier *tier;

    cr_assert(eq(
        int,
        tier_cpu_create((struct tier_cpu_config){.bytes = 256 << 20, .page_bytes = 65536}, &tier),
        0));
    tier->ops->destroy(tier);
}
