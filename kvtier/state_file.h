/* SPDX-License-Identifier: Apache-2.0 */

/*
 * state_file: what an agent keeps over a restart, one file a worker, in a directory of its own.
 * Written whole or not at all, and read only where it is ours: its bytes are hashes, but whoever
 * may write them may make the agent claim what is not. Blocks: for a thread, or for start and end.
 */
#ifndef KVTIER_STATE_FILE_H
#define KVTIER_STATE_FILE_H

#include <stdint.h>

#include "backends/runtime/buf.h"
#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"

enum { STATE_FILE_NAME_BYTES = 48, STATE_FILE_WHY_BYTES = 256 };

/* What the state is of: it fits nothing else. */
struct state_file_identity {
    uint64_t fingerprint;
    uint64_t worker; /* digest of its name */
    uint64_t model;  /* digest of what its engine serves; 0: not known */
};

/* The name of the worker's file in the directory. */
void state_file_name(uint64_t worker, char name[STATE_FILE_NAME_BYTES]);

/* Makes directory, with its parents there already, or checks that it is ours alone: -EPERM,
 * -errno, with a sentence in why. */
MUST_CHECK int state_file_check_directory(const char *directory, char why[STATE_FILE_WHY_BYTES]);

/* Puts the state in the place of the one before. -errno: that one is still there. */
MUST_CHECK int state_file_write(const char *directory, struct state_file_identity identity,
                                struct slice state);

/* Puts the worker's state into out, which is empty, and says of which model. -ENOENT: there is
 * none; -EPERM: the file is not ours alone; -EBADMSG: cut, changed, of another version or
 * fingerprint; -errno. */
MUST_CHECK int state_file_read(const char *directory, struct state_file_identity *identity,
                               struct buf *out);

#endif
