/* SPDX-License-Identifier: Apache-2.0 */

/*
 * tier_ssd_files: the files that an SSD tier's slots lie in: which file and where in it, made when
 * a slot of them is first written, never more than the quota and never the file system's last
 * bytes. It knows where slots and their lists are, not what is in them. Any thread.
 */
#ifndef KVTIER_TIERS_TIER_SSD_FILES_H
#define KVTIER_TIERS_TIER_SSD_FILES_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "kvtier/tiers/tier.h"

struct ssd_files;

struct ssd_place {
    int fd;
    int direct_fd; /* the same file with O_DIRECT; -1: the file system has none */
    uint64_t offset;
};

/* Opens, cuts and mends what is there already; see ssd_dir_open() for errors, and -ENOSPC: no room
 * for one slot. */
MUST_CHECK int ssd_files_open(const struct tier_ssd_config *config, struct ssd_files **files,
                              char why[TIER_WHY_BYTES]);

uint32_t ssd_files_slot_count(const struct ssd_files *files);

/* Whether files here can be opened with O_DIRECT, and may. */
bool ssd_files_are_direct(const struct ssd_files *files);

/* False: the slot's file is not there yet, and so nothing is in the slot. */
bool ssd_files_find(const struct ssd_files *files, uint32_t slot, struct ssd_place *place);

/* The list that slot is on, and which of its slots it is. */
uint32_t ssd_files_list_of(const struct ssd_files *files, uint32_t slot, unsigned *at);
uint32_t ssd_files_list_count(const struct ssd_files *files);
/* The slot that is number at on it; UINT32_MAX: it has no such slot. */
uint32_t ssd_files_list_slot(const struct ssd_files *files, uint32_t list, unsigned at);
/* Whether what an earlier life left of the file ended before the slot did. */
bool ssd_files_is_cut(const struct ssd_files *files, uint32_t slot);
/* False: as ssd_files_find(). */
bool ssd_files_find_list(const struct ssd_files *files, uint32_t list, struct ssd_place *place);

/* The layout's directory. */
int ssd_files_dir_fd(const struct ssd_files *files);

/* Makes the file where it must, which may remove layouts that nobody uses. -ENOSPC: quota, reserve
 * or file system say no; else as ssd_write_status(). */
MUST_CHECK int ssd_files_make(struct ssd_files *files, uint32_t slot, struct ssd_place *place);

/* What -errno of a write is to a tier: -ENOSPC, -EROFS, -EMFILE or -EIO; 0: 0. */
int ssd_write_status(int status);

/* NULLs *files, which may be NULL. */
void ssd_files_close(struct ssd_files **files);

#endif
