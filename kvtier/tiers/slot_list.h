/* SPDX-License-Identifier: Apache-2.0 */

/*
 * slot_list: a sector that stands before some slots and says what is in each, so that a restart
 * reads one sector for many slots. A slot that is not listed is empty, whatever its bytes are; what
 * a listed one holds is still verified by its own header (slot_header.h) when it is loaded. Worked
 * on in place, as the bytes that are written. Little-endian. Pure; any thread.
 */
#ifndef KVTIER_TIERS_SLOT_LIST_H
#define KVTIER_TIERS_SLOT_LIST_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "kvtier/tiers/block_key.h"

enum { SLOT_LIST_BYTES = 4096, SLOT_LIST_SLOTS = 72, SLOT_LIST_VERSION = 1 };

/* Whose slots: those of another are none. */
struct slot_list_owner {
    uint64_t layout; /* fingerprint of the pages' */
    uint64_t era;    /* from one clear to the next */
    uint32_t page_bytes;
};

struct slot_list_entry {
    struct block_key key;
    struct digest_128 parent; /* low 0: first of its chain */
    uint32_t depth;
    uint64_t sequence; /* of its writing: of two slots with one key the newer counts */
};

/* Makes it a list of empty slots. */
void slot_list_init(uint8_t bytes[SLOT_LIST_BYTES], const struct slot_list_owner *owner);

/* Bytes of any origin. -EBADMSG: not a list of this version, not whole, or another owner's: the
 * slots are empty. */
MUST_CHECK int slot_list_check(const uint8_t bytes[SLOT_LIST_BYTES],
                               const struct slot_list_owner *owner);

/* False: slot is empty. */
bool slot_list_get(const uint8_t bytes[SLOT_LIST_BYTES], unsigned slot,
                   struct slot_list_entry *entry);
void slot_list_put(uint8_t bytes[SLOT_LIST_BYTES], unsigned slot,
                   const struct slot_list_entry *entry);
void slot_list_drop(uint8_t bytes[SLOT_LIST_BYTES], unsigned slot);

/* After changes, before it is written: makes the checksum. */
void slot_list_seal(uint8_t bytes[SLOT_LIST_BYTES]);

#endif
