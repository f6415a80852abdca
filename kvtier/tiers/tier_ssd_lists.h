/* SPDX-License-Identifier: Apache-2.0 */

/*
 * tier_ssd_lists: which slots of an SSD hold what, in memory and on the disk, and the era in which
 * that counts. A slot's bytes are written while it is on no list; what is listed can be found by a
 * later life. Calls block; any thread.
 */
#ifndef KVTIER_TIERS_TIER_SSD_LISTS_H
#define KVTIER_TIERS_TIER_SSD_LISTS_H

#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "kvtier/tiers/tier.h"

struct block_io;
struct ssd_files;
struct ssd_lists;

/* Borrows files and io for its life. *found: what the file of the era came to, as ssd_era_read();
 * where that is not 0 no slot holds anything. -ENOMEM. */
MUST_CHECK int ssd_lists_create(struct ssd_files *files, struct block_io *io,
                                const struct tier *tier, struct ssd_lists **lists, int *found);

/* The era that slots written from now on are of; a later life will know it too. As
 * ssd_write_status(). */
MUST_CHECK int ssd_lists_begin(struct ssd_lists *lists, uint64_t *era);

/* The era that counts now. */
uint64_t ssd_lists_era(const struct ssd_lists *lists);

/* Takes the slots of those transfers whose status is 0 off their lists; sets the status of each
 * where that cannot be written, as ssd_write_status(). */
void ssd_lists_drop(struct ssd_lists *lists, struct tier_transfer *transfers, size_t count);

/* The same the other way. Where era has ended meanwhile nothing is listed. */
void ssd_lists_put(struct ssd_lists *lists, struct tier_transfer *transfers, size_t count,
                   uint64_t era);

/* As tier_ops has them. */
void ssd_lists_erase(struct ssd_lists *lists, const uint32_t *slots, size_t count);
MUST_CHECK int ssd_lists_scan(struct ssd_lists *lists, uint32_t first, uint32_t count,
                              struct tier_slot_found *found);
MUST_CHECK int ssd_lists_clear(struct ssd_lists *lists);

/* NULLs *lists, which may be NULL. */
void ssd_lists_destroy(struct ssd_lists **lists);

#endif
