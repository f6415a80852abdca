/* SPDX-License-Identifier: Apache-2.0 */

/*
 * tier_ssd_era: the file in a layout's directory that says which slots there count: those of one
 * era. Without it none does, so that removing it forgets them all at once, however the process ends
 * then. Any thread, one at a time.
 */
#ifndef KVTIER_TIERS_TIER_SSD_ERA_H
#define KVTIER_TIERS_TIER_SSD_ERA_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"

enum { SSD_ERA_FILE_BYTES = 4096 }; /* what it takes of the disk at most */

/* -ENOENT: there is none; -EBADMSG: it is no such file, not whole, or of another layout; else
 * -errno. */
MUST_CHECK int ssd_era_read(int dir_fd, uint64_t layout, uint64_t *era);

/* In place of the one before; synced. -errno: the one before may be there still. */
MUST_CHECK int ssd_era_write(int dir_fd, uint64_t layout, uint64_t era);

/* Synced; needs no room. -errno: it may be there still. */
MUST_CHECK int ssd_era_remove(int dir_fd);

/* Whether name is that of its file, or of one that is being written. */
bool ssd_era_is_name(const char *name);

#endif
