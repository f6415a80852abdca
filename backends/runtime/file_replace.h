/* SPDX-License-Identifier: Apache-2.0 */

/*
 * file_replace: a small file that outlives a crash: the old one or the new one, never part of one.
 */
#ifndef BACKENDS_RUNTIME_FILE_REPLACE_H
#define BACKENDS_RUNTIME_FILE_REPLACE_H

#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"

enum { FILE_REPLACE_NAME_BYTES = 64 }; /* of the longest name, with its 0 */

/*
 * The file name in the directory dir_fd holds bytes, on the disk, and is readable and writable by
 * its owner only. Written beside the old one as NAME.new, synced, and renamed over it; no link is
 * followed. Blocks: never on a loop. -errno: the old one is still there, or, where only the
 * directory could not be synced, a crash of the machine may bring it back.
 */
MUST_CHECK int file_replace(int dir_fd, const char *name, struct slice bytes);

#endif
