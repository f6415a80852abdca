/* SPDX-License-Identifier: Apache-2.0 */

/*
 * private_file: a small file whose bytes are nobody else's business: a secret, a password. What is
 * read is wiped when it is released, and no message quotes any of it. Start of a process only.
 */
#ifndef BACKENDS_RUNTIME_PRIVATE_FILE_H
#define BACKENDS_RUNTIME_PRIVATE_FILE_H

#include <stddef.h>

#include "backends/runtime/must_check.h"

enum { PRIVATE_FILE_BYTES_MAX = 4096, PRIVATE_FILE_WHY_BYTES = 256 };

struct private_file {
    char bytes[PRIVATE_FILE_BYTES_MAX + 1]; /* with a NUL behind them */
    size_t len;
};

/*
 * All of the file, which must be one and not empty. option is named in why. -errno with a sentence
 * in why: it cannot be read; -EINVAL: empty or too long; -EPERM: others than its user and group may
 * write it, and who can choose a secret knows it. That others may read it is not refused, as
 * secrets of containers are mounted so.
 */
MUST_CHECK int private_file_read(struct private_file *file, const char *option, const char *path,
                                 char why[PRIVATE_FILE_WHY_BYTES]);

/* The first line of it alone, of what people write with an editor: a password. Where path is empty
 * there is none, which is no error. As above; -EINVAL also where the line is empty or holds what is
 * not printable. */
MUST_CHECK int private_file_read_line(struct private_file *file, const char *option,
                                      const char *path, char why[PRIVATE_FILE_WHY_BYTES]);

/* Wipes it. */
void private_file_release(struct private_file *file);

#endif
