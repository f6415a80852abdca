/* SPDX-License-Identifier: Apache-2.0 */

/*
 * slot_header: what stands before the payload of a slot and says which block it is of, so that
 * bytes of another block, layout or era are never taken for it. A slot whose header is not whole is
 * empty. Little-endian, of a fixed size: headers outlive processes. Pure; any thread.
 */
#ifndef KVTIER_TIERS_SLOT_HEADER_H
#define KVTIER_TIERS_SLOT_HEADER_H

#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "kvtier/tiers/block_key.h"

enum { SLOT_HEADER_BYTES = 112, SLOT_HEADER_VERSION = 2 };

struct slot_header {
    uint64_t layout; /* fingerprint of the pages' */
    struct block_key key;
    struct digest_128 parent; /* low 0: first of its chain */
    uint32_t depth;
    uint32_t payload_len;
    uint64_t payload_checksum; /* hashing/checksum; 0 where the tier trusts its memory */
    uint64_t era;              /* from one clear to the next; 0: the slots do not outlive us */
};

void slot_header_write(const struct slot_header *header, uint8_t bytes[SLOT_HEADER_BYTES]);

/* Bytes of any origin. -EBADMSG: not a header of this version, or not whole; the slot is empty. */
MUST_CHECK int slot_header_read(struct slot_header *header, const uint8_t bytes[SLOT_HEADER_BYTES]);

/* The same, and -EBADMSG too where layout, era, key or payload_len is not that of expected. */
MUST_CHECK int slot_header_expect(struct slot_header *header,
                                  const uint8_t bytes[SLOT_HEADER_BYTES],
                                  const struct slot_header *expected);

#endif
