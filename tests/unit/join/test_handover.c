/* SPDX-License-Identifier: Apache-2.0 */

#include "router/join/handover.h"
#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdlib.h>

enum { LOTS_MAX = 64, BLOCKS_MAX = 100 };

static int add(struct handover *handover, uint64_t due_ms, uint64_t worker, size_t block_count)
{
    struct residency_note_block *blocks = calloc(block_count, sizeof *blocks);
    int status = handover_add(handover, (struct handover_lot){due_ms, worker, blocks, block_count});

    if (status < 0)
        free(blocks);
    return status;
}

/* The worker of the first lot that is due; 0: none is. */
static uint64_t take(struct handover *handover, uint64_t now_ms)
{
    struct handover_lot lot = handover_take_due(handover, now_ms);

    free(lot.blocks);
    return lot.worker;
}

TestSuite(handover, .fini = leak_check);

Test(handover, lots_come_when_they_are_due_whatever_their_order)
{
    static const uint64_t dues[] = {50, 10, 40, 20, 30, 60, 5};
    struct handover handover;

    cr_assert(eq(int, handover_init(&handover, LOTS_MAX, BLOCKS_MAX), 0));
    for (size_t i = 0; i < sizeof dues / sizeof *dues; i++)
        cr_assert(eq(int, add(&handover, dues[i], dues[i], 2), 0));

    cr_assert(eq(u64, handover_next_ms(&handover), 5));
    cr_assert(eq(u64, take(&handover, 4), 0));
    for (uint64_t due = 5; due <= 60; due = due == 5 ? 10 : due + 10)
        cr_assert(eq(u64, take(&handover, 60), due));
    cr_assert(eq(u64, take(&handover, 1000), 0));
    cr_assert(eq(u64, handover_next_ms(&handover), UINT64_MAX));
    handover_release(&handover);
}

Test(handover, many_lots_come_in_order)
{
    struct handover handover;
    uint64_t random = 1, last = 0;

    cr_assert(eq(int, handover_init(&handover, LOTS_MAX, BLOCKS_MAX), 0));
    for (int i = 0; i < LOTS_MAX; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        cr_assert(eq(int, add(&handover, random >> 33, 1 + (random >> 33), 1), 0));
    }
    for (int i = 0; i < LOTS_MAX; i++) {
        uint64_t next = take(&handover, UINT64_MAX - 1);

        cr_assert(ge(u64, next, last));
        last = next;
    }
    handover_release(&handover);
}

Test(handover, what_is_too_much_stays_the_callers)
{
    struct handover handover;

    cr_assert(eq(int, handover_init(&handover, 2, BLOCKS_MAX), 0));
    cr_assert(eq(int, add(&handover, 1, 1, BLOCKS_MAX), 0));
    cr_assert(eq(int, add(&handover, 1, 2, 1), -ENOBUFS)); /* too many blocks */
    cr_assert(eq(u64, take(&handover, 1), 1));
    cr_assert(eq(int, add(&handover, 1, 3, 1), 0));
    cr_assert(eq(int, add(&handover, 1, 4, 1), 0));
    cr_assert(eq(int, add(&handover, 1, 5, 1), -ENOBUFS)); /* too many lots */
    handover_release(&handover);
    handover_release(&handover);
}
