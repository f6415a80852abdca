/* SPDX-License-Identifier: Apache-2.0 */

/*
 * secret_file: the cluster's secret, out of the file that its routers and agents have in common.
 * Start of a process only.
 */
#ifndef BACKENDS_SECRET_FILE_H
#define BACKENDS_SECRET_FILE_H

#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "backends/runtime/private_file.h"
#include "hashing/digest.h"

/* Every byte of the file counts. -errno with a sentence in why, as of private_file_read(): secret
 * is as it was. */
MUST_CHECK int secret_file_read(uint8_t secret[DIGEST_SECRET_BYTES], const char *path,
                                char why[PRIVATE_FILE_WHY_BYTES]);

#endif
