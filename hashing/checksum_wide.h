/* SPDX-License-Identifier: Apache-2.0 */

/* checksum_wide: the checksum by instructions that not every processor of its kind has. */
#ifndef HASHING_CHECKSUM_WIDE_H
#define HASHING_CHECKSUM_WIDE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whether this processor has them; checksum_wide() may be called only then. */
bool checksum_wide_is_there(void);

uint64_t checksum_wide(const void *bytes, size_t len);

#endif
