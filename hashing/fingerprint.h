/* SPDX-License-Identifier: Apache-2.0 */

/*
 * fingerprint: the identity of everybody who names blocks alike. Two programs with equal
 * fingerprints give equal prompts equal names; with different ones they share nothing and must say
 * so. Part of records, key names and log lines. Pure.
 */
#ifndef HASHING_FINGERPRINT_H
#define HASHING_FINGERPRINT_H

#include <stdint.h>

#include "hashing/block_chain.h"

/* stream_version is that of the canonical stream (STREAM_VERSION). Never 0. */
uint64_t fingerprint(struct block_chain_config config, uint32_t stream_version);

#endif
