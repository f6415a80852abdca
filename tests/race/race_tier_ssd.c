/* SPDX-License-Identifier: Apache-2.0 */

/*
 * race_tier_ssd: movers that write, read and erase slots of their own, and make the files these
 * lie in, while another thread scans all of them as after a restart. Every page that is read is the
 * one that was written; a scan finds no block where nobody put it. Both ways of block_io. Then the
 * same while all is cleared again and again: a page may be gone, and is never another.
 */

#include "kvtier/tiers/tier.h"

#include "backends/runtime/random.h"

#include <assert.h>
#include <errno.h>
#include <ftw.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE_BYTES = 8192, MOVERS = 4, SLOTS_EACH = 24, ROUNDS = 12, SLOTS = MOVERS * SLOTS_EACH };

struct race {
    struct tier *tier;
    bool has_clears;
    atomic_bool is_over;
};

struct mover {
    struct race *race;
    uint32_t number; /* slots number, number + MOVERS, ... are its */
    uint8_t *pages;
};

static struct block_key key_of(uint32_t slot, uint32_t round)
{
    return (struct block_key){.name = {.low = slot + 1, .high = round}, .check = slot};
}

static void fill(uint8_t *page, uint32_t slot, uint32_t round)
{
    uint64_t state = (uint64_t)round << 32 | slot;

    for (size_t i = 0; i < PAGE_BYTES; i++)
        page[i] = (uint8_t)random_next(&state);
}

static void transfers_of(const struct mover *mover, uint32_t round,
                         struct tier_transfer transfers[SLOTS_EACH])
{
    for (uint32_t i = 0; i < SLOTS_EACH; i++) {
        uint32_t slot = i * MOVERS + mover->number;

        transfers[i] = (struct tier_transfer){.slot = slot,
                                              .key = key_of(slot, round),
                                              .depth = round,
                                              .payload = mover->pages + (size_t)i * PAGE_BYTES};
    }
}

static void run_round(struct mover *mover, uint32_t round)
{
    struct tier *tier = mover->race->tier;
    struct tier_transfer transfers[SLOTS_EACH];
    uint32_t slots[SLOTS_EACH];
    static const size_t bytes = (size_t)SLOTS_EACH * PAGE_BYTES;
    uint8_t *written = malloc(bytes);

    assert(written != NULL);
    transfers_of(mover, round, transfers);
    for (uint32_t i = 0; i < SLOTS_EACH; i++) {
        slots[i] = transfers[i].slot;
        fill(transfers[i].payload, slots[i], round);
    }
    memcpy(written, mover->pages, bytes);
    if (tier->ops->write(tier, transfers, SLOTS_EACH) != SLOTS_EACH)
        abort();
    memset(mover->pages, 0, bytes);
    if (tier->ops->read(tier, transfers, SLOTS_EACH) != SLOTS_EACH && !mover->race->has_clears)
        abort();
    for (uint32_t i = 0; i < SLOTS_EACH; i++) {
        if (transfers[i].status == 0 &&
            memcmp(written + (size_t)i * PAGE_BYTES, transfers[i].payload, PAGE_BYTES) != 0)
            abort();
    }
    if (round % 3 == 1)
        tier->ops->erase(tier, slots, SLOTS_EACH);
    free(written);
}

static void *move(void *ctx)
{
    struct mover *mover = ctx;

    for (uint32_t round = 0; round < ROUNDS; round++)
        run_round(mover, round);
    return NULL;
}

static void *scan(void *ctx)
{
    struct race *race = ctx;
    struct tier_slot_found found[SLOTS];

    while (!atomic_load(&race->is_over)) {
        int count = race->tier->ops->scan(race->tier, 0, SLOTS, found);

        if (race->has_clears && race->tier->ops->clear(race->tier) < 0)
            abort();

        assert(count >= 0);
        for (int i = 0; i < count; i++)
            if (found[i].key.check != found[i].slot || found[i].depth >= ROUNDS)
                abort();
    }
    return NULL;
}

static void run_race(struct tier *tier, bool has_clears)
{
    struct race race = {.tier = tier, .has_clears = has_clears};
    struct mover movers[MOVERS];
    pthread_t threads[MOVERS], scanner;

    if (pthread_create(&scanner, NULL, scan, &race) != 0)
        abort();
    for (uint32_t i = 0; i < MOVERS; i++) {
        movers[i] = (struct mover){.race = &race, .number = i};
        movers[i].pages = aligned_alloc(TIER_ALIGN_BYTES, (size_t)SLOTS_EACH * PAGE_BYTES);
        if (movers[i].pages == NULL || pthread_create(&threads[i], NULL, move, &movers[i]) != 0)
            abort();
    }
    for (uint32_t i = 0; i < MOVERS; i++) {
        (void)pthread_join(threads[i], NULL);
        free(movers[i].pages);
    }
    atomic_store(&race.is_over, true);
    (void)pthread_join(scanner, NULL);
}

static int remove_one(const char *path, const struct stat *stat, int kind, struct FTW *at)
{
    (void)stat, (void)kind, (void)at;
    return remove(path);
}

int main(void)
{
    for (int way = 0; way < 2; way++) {
        char dir[] = "/tmp/race_tier_ssd-XXXXXX", why[TIER_WHY_BYTES];
        struct tier *tier;

        if (mkdtemp(dir) == NULL)
            abort();
        if (tier_ssd_create((struct tier_ssd_config){.dir = dir,
                                                     .bytes = (SLOTS + 1) * 12288 + 65536,
                                                     .page_bytes = PAGE_BYTES,
                                                     .layout = 1,
                                                     .may_use_uring = way == 0,
                                                     .may_use_direct = true,
                                                     .file_bytes = UINT64_C(10) * 12288},
                            &tier, why) < 0) {
            fprintf(stderr, "%s\n", why);
            return 1;
        }
        run_race(tier, false);
        run_race(tier, true);
        printf("%s: %d rounds of %d movers\n", tier_ssd_way(tier), ROUNDS, MOVERS);
        tier->ops->destroy(tier);
        if (nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0)
            return 1;
    }
    return 0;
}
