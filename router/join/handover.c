/* SPDX-License-Identifier: Apache-2.0 */

#include "router/join/handover.h"

#include <errno.h>
#include <stdlib.h>

int handover_init(struct handover *handover, size_t lot_count_max, size_t block_count_max)
{
    *handover = (struct handover){
        .lots = calloc(lot_count_max, sizeof *handover->lots),
        .lot_count_max = lot_count_max,
        .block_count_max = block_count_max,
    };
    return handover->lots != NULL ? 0 : -ENOMEM;
}

static void swap(struct handover_lot *a, struct handover_lot *b)
{
    struct handover_lot lot = *a;

    *a = *b;
    *b = lot;
}

int handover_add(struct handover *handover, struct handover_lot lot)
{
    struct handover_lot *lots = handover->lots;
    size_t at = handover->lot_count;

    if (handover->lot_count == handover->lot_count_max ||
        lot.block_count > handover->block_count_max - handover->block_count)
        return -ENOBUFS;
    lots[at] = lot;
    handover->lot_count++;
    handover->block_count += lot.block_count;
    for (; at > 0 && lots[at].due_ms < lots[(at - 1) / 2].due_ms; at = (at - 1) / 2)
        swap(&lots[at], &lots[(at - 1) / 2]);
    return 0;
}

/* Whichever of lots[at] and its two children is due first. */
static size_t first_of(const struct handover *handover, size_t at)
{
    const struct handover_lot *lots = handover->lots;
    size_t first = at;

    for (size_t child = 2 * at + 1; child <= 2 * at + 2 && child < handover->lot_count; child++) {
        if (lots[child].due_ms < lots[first].due_ms)
            first = child;
    }
    return first;
}

struct handover_lot handover_take_due(struct handover *handover, uint64_t now_ms)
{
    struct handover_lot *lots = handover->lots;
    struct handover_lot due;
    size_t at = 0, first;

    if (handover_next_ms(handover) > now_ms)
        return (struct handover_lot){0};
    due = lots[0];
    lots[0] = lots[--handover->lot_count];
    handover->block_count -= due.block_count;
    while ((first = first_of(handover, at)) != at) {
        swap(&lots[at], &lots[first]);
        at = first;
    }
    return due;
}

uint64_t handover_next_ms(const struct handover *handover)
{
    return handover->lot_count > 0 ? handover->lots[0].due_ms : UINT64_MAX;
}

void handover_release(struct handover *handover)
{
    for (size_t i = 0; i < handover->lot_count; i++)
        free(handover->lots[i].blocks);
    free(handover->lots);
    *handover = (struct handover){0};
}
