/* SPDX-License-Identifier: Apache-2.0 */

/*
 * state_file: what an agent keeps over a restart, one file a worker, in a directory of its own.
 * Written whole or not at all, and read only where it is ours alone: who may write it could make
 * the agent claim what is not. What the bytes are it does not know. Blocks: for a thread, or for
 * start and end.
 */
#ifndef KVTIER_STATE_FILE_H
#define KVTIER_STATE_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/runtime/buf.h"
#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"

enum { STATE_FILE_NAME_BYTES = 48, STATE_FILE_WHY_BYTES = 256 };

/* The name of a worker's file in the directory; worker: a digest of its name. */
void state_file_name(uint64_t worker, char name[STATE_FILE_NAME_BYTES]);

/* Makes directory, with its parents there already, or checks that it is ours alone: -EPERM,
 * -errno, with a sentence in why. */
MUST_CHECK int state_file_check_directory(const char *directory, char why[STATE_FILE_WHY_BYTES]);

/* The directory, if it is ours alone: a descriptor. -EPERM; -errno. */
MUST_CHECK int state_file_open_directory(const char *directory);

/* Nobody else may write the file of fd. */
bool state_file_is_ours_alone(int fd);

/* Puts state in the place of the one before. -errno: that one is still there. */
MUST_CHECK int state_file_write(const char *directory, uint64_t worker, struct slice state);

/* Appends the worker's state to out. -ENOENT: there is none; -EPERM: the file, or its directory, is
 * not ours alone; -ENOBUFS: longer than out may be; -errno. */
MUST_CHECK int state_file_read(const char *directory, uint64_t worker, struct buf *out);

#endif
