/* SPDX-License-Identifier: Apache-2.0 */

/*
 * tier_ssd_dir: the directory that an SSD tier may fill, and in it the one of its layout. Both are
 * this user's alone, or they are refused: whoever can read pages can tell prompts from them, and
 * whoever can write them can change answers. The tier holds its layout's directory locked for its
 * life; a directory that nobody holds is of a layout that nobody uses. Any thread, one at a time.
 */
#ifndef KVTIER_TIERS_TIER_SSD_DIR_H
#define KVTIER_TIERS_TIER_SSD_DIR_H

#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "backends/runtime/must_check.h"
#include "kvtier/tiers/tier.h"

enum { SSD_NAME_BYTES = 32 };

struct ssd_dir {
    int root_fd; /* -1: not open */
    int fd;      /* of the layout's own; holds its lock */
    char name[SSD_NAME_BYTES];
};

/* What is below the directory, the tier's own slot files, the file of its era and layouts that
 * others use apart: those have their own quota. */
struct ssd_usage {
    uint64_t kept_bytes;   /* of files that we know nothing of: left alone, counted */
    uint64_t unused_bytes; /* of layouts that nobody uses: they go when room is needed */
};

/* Makes what is missing. -EPERM: a link, another user's, or open to others; -EROFS, -EACCES: it
 * cannot be written, and so not be cleared; -EBUSY: another tier
 * has this layout's; else -errno; always with a sentence in why. */
MUST_CHECK int ssd_dir_open(struct ssd_dir *dir, const char *path, uint64_t layout,
                            char why[TIER_WHY_BYTES]);

MUST_CHECK int ssd_dir_usage(const struct ssd_dir *dir, struct ssd_usage *usage);

/* Removes the layout that nobody uses and that was opened longest ago. -ENOENT: there is none. */
MUST_CHECK int ssd_dir_drop_unused(const struct ssd_dir *dir);

/* What an ordinary user may still write to the file system. */
MUST_CHECK int ssd_dir_free_bytes(const struct ssd_dir *dir, uint64_t *bytes);

/* A stream of its own over the directory of fd, to be closed with closedir(); NULL: it cannot be
 * read. */
DIR *ssd_dir_list(int fd);

/* A plain file of this user's that has no second name and nobody else may open. */
bool ssd_is_ours_alone(const struct stat *stat);

/* What a file takes of the disk. */
static inline uint64_t ssd_stat_bytes(const struct stat *stat)
{
    return (uint64_t)stat->st_blocks * 512; /* its unit, whatever the file system's is */
}

/* Whether errno says that this process or the system has no more of them, and nothing of a file. */
bool ssd_is_want_of_descriptors(int error);

/* "PATH: WHAT: the system's reason: what to do", and the status. */
int ssd_refuse_errno(const char *path, const char *what, int status, char why[TIER_WHY_BYTES]);

/* Slot files by number: their names, and whether name is one. */
void ssd_slot_file_name(uint32_t number, char name[SSD_NAME_BYTES]);
bool ssd_slot_file_number(const char *name, uint32_t *number);

/* May be called twice. */
void ssd_dir_close(struct ssd_dir *dir);

#endif
