/* SPDX-License-Identifier: Apache-2.0 */

/* ssd_world: a directory of a test's own on a disk, and an SSD tier of small pages in it. */
#ifndef TESTS_UNIT_TIERS_SSD_WORLD_H
#define TESTS_UNIT_TIERS_SSD_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvtier/tiers/tier.h"

enum {
    SSD_PAGE_BYTES = 20000,
    SSD_SLOT_BYTES = 4096 + 20480,
    SSD_LIST_BYTES = 4096, /* before every SSD_LIST_SLOTS */
    SSD_LIST_SLOTS = 72,
    SSD_LAYOUT = 0xabc,
};

struct ssd_world {
    char dir[48];
    struct tier_ssd_config config;
    uint32_t slots;
    struct tier *tier; /* NULL: not open */
    char why[TIER_WHY_BYTES];
    uint8_t *page;
};

/* Room for slots pages, in one file; the directory is not there yet. */
void ssd_world_init(struct ssd_world *world, uint32_t slots);
void ssd_world_release(struct ssd_world *world);
/* As many slots, so many in each file. */
void ssd_world_split(struct ssd_world *world, uint32_t slots_per_file);
/* What so many slots take of a file; and where a slot begins in the first. */
uint64_t ssd_world_bytes(uint32_t slots);
uint64_t ssd_world_at(uint32_t slot);

int ssd_world_open(struct ssd_world *world);
void ssd_world_close(struct ssd_world *world);

/* One slot; number is the block's, whose page has its bytes. What the tier said. */
int ssd_world_write(struct ssd_world *world, uint32_t slot, uint64_t number);
/* Asserts that a page that is good has the right bytes. */
int ssd_world_read(struct ssd_world *world, uint32_t slot, uint64_t number);
/* All slots. */
int ssd_world_scan(struct ssd_world *world, struct tier_slot_found *found);

/* name below the directory: a path that is good until the next call. */
const char *ssd_world_path(const struct ssd_world *world, const char *name);
const char *ssd_world_slots(const struct ssd_world *world, unsigned file);
const char *ssd_world_era(const struct ssd_world *world);

/* Bytes of a file, by the page cache. */
void ssd_world_peek(const char *path, uint64_t at, void *bytes, size_t len);
void ssd_world_poke(const char *path, uint64_t at, const void *bytes, size_t len);
void ssd_world_flip(const char *path, uint64_t at);

/* What is below dir takes, as du says it. */
uint64_t ssd_world_used(const char *dir);
unsigned ssd_world_fds(void);

#endif
