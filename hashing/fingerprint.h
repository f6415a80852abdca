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
#include "hashing/digest.h"

/* stream_version is that of the canonical stream (STREAM_VERSION). Never 0. */
uint64_t fingerprint(struct block_chain_config config, uint32_t stream_version);

/* The same for the stream as this version of routers and agents has it (stream_identity). */
uint64_t fingerprint_of_secret(const uint8_t secret[DIGEST_SECRET_BYTES]);

#endif
