/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/slot_list.h"

#include "hashing/checksum.h"
#include "hashing/little_endian.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

/*
 * DESIGN
 *
 *   0 magic   8 version  12 page_bytes  16 layout  24 era
 *  32 entries of 56 bytes: 0 name (low, high)  16 check  24 parent (low, high)
 *                          40 sequence  48 depth  52 zero
 *  4064 zero  4088 checksum of bytes 0 to 4087
 *
 * One checksum for all, as a sector is written whole: a process that is killed leaves the one
 * before or the one after. A power cut may tear it, and then its slots are empty. An entry whose
 * name is 0 is none.
 */

enum {
    AT_MAGIC = 0,
    AT_VERSION = 8,
    AT_PAGE_BYTES = 12,
    AT_LAYOUT = 16,
    AT_ERA = 24,
    AT_ENTRIES = 32,
    AT_CHECKSUM = SLOT_LIST_BYTES - 8,
    /* of an entry */
    ENTRY_NAME = 0,
    ENTRY_CHECK = 16,
    ENTRY_PARENT = 24,
    ENTRY_SEQUENCE = 40,
    ENTRY_DEPTH = 48,
    ENTRY_BYTES = 56,
};
static_assert(AT_ENTRIES + SLOT_LIST_SLOTS * ENTRY_BYTES <= AT_CHECKSUM, "they fit");

static const char magic[8] = {'s', 'm', 'v', '-', 'l', 'i', 's', 't'};

static size_t entry_offset(unsigned slot)
{
    assert(slot < SLOT_LIST_SLOTS);
    return AT_ENTRIES + (size_t)slot * ENTRY_BYTES;
}

void slot_list_init(uint8_t bytes[SLOT_LIST_BYTES], const struct slot_list_owner *owner)
{
    memset(bytes, 0, SLOT_LIST_BYTES);
    memcpy(bytes + AT_MAGIC, magic, sizeof magic);
    put_little(bytes + AT_VERSION, 4, SLOT_LIST_VERSION);
    put_little(bytes + AT_PAGE_BYTES, 4, owner->page_bytes);
    put_little(bytes + AT_LAYOUT, 8, owner->layout);
    put_little(bytes + AT_ERA, 8, owner->era);
}

int slot_list_check(const uint8_t bytes[SLOT_LIST_BYTES], const struct slot_list_owner *owner)
{
    bool is_list = memcmp(bytes + AT_MAGIC, magic, sizeof magic) == 0 &&
                   get_little(bytes + AT_VERSION, 4) == SLOT_LIST_VERSION;
    bool is_owners = get_little(bytes + AT_PAGE_BYTES, 4) == owner->page_bytes &&
                     get_little(bytes + AT_LAYOUT, 8) == owner->layout &&
                     get_little(bytes + AT_ERA, 8) == owner->era;

    return is_list && is_owners &&
                   get_little(bytes + AT_CHECKSUM, 8) == checksum(bytes, AT_CHECKSUM)
               ? 0
               : -EBADMSG;
}

bool slot_list_get(const uint8_t bytes[SLOT_LIST_BYTES], unsigned slot,
                   struct slot_list_entry *entry)
{
    const uint8_t *at = bytes + entry_offset(slot);

    *entry = (struct slot_list_entry){
        .key = {.name = get_little_128(at + ENTRY_NAME), .check = get_little(at + ENTRY_CHECK, 8)},
        .parent = get_little_128(at + ENTRY_PARENT),
        .depth = (uint32_t)get_little(at + ENTRY_DEPTH, 4),
        .sequence = get_little(at + ENTRY_SEQUENCE, 8),
    };
    return entry->key.name.low != 0;
}

void slot_list_put(uint8_t bytes[SLOT_LIST_BYTES], unsigned slot,
                   const struct slot_list_entry *entry)
{
    uint8_t *at = bytes + entry_offset(slot);

    assert(entry->key.name.low != 0);

    memset(at, 0, ENTRY_BYTES);
    put_little_128(at + ENTRY_NAME, entry->key.name);
    put_little(at + ENTRY_CHECK, 8, entry->key.check);
    put_little_128(at + ENTRY_PARENT, entry->parent);
    put_little(at + ENTRY_SEQUENCE, 8, entry->sequence);
    put_little(at + ENTRY_DEPTH, 4, entry->depth);
}

void slot_list_drop(uint8_t bytes[SLOT_LIST_BYTES], unsigned slot)
{
    memset(bytes + entry_offset(slot), 0, ENTRY_BYTES);
}

void slot_list_seal(uint8_t bytes[SLOT_LIST_BYTES])
{
    put_little(bytes + AT_CHECKSUM, 8, checksum(bytes, AT_CHECKSUM));
}
