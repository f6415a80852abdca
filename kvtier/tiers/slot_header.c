/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/slot_header.h"

#include "hashing/checksum.h"
#include "hashing/little_endian.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

/*
 * DESIGN
 *
 *   0 magic   8 version  12 length of the payload
 *  16 layout  24 name (low, high)  40 check  48 parent (low, high)
 *  64 depth  68 zero  72 checksum of the payload  80 era
 *  88 zero  104 checksum of bytes 0 to 103
 *
 * A header is valid only if all of it agrees: the checksum covers the fields that mean nothing yet
 * too, and those must be zero, so that a later version can give them a meaning that an older one
 * refuses.
 */

enum {
    AT_MAGIC = 0,
    AT_VERSION = 8,
    AT_PAYLOAD_LEN = 12,
    AT_LAYOUT = 16,
    AT_NAME = 24,
    AT_CHECK = 40,
    AT_PARENT = 48,
    AT_DEPTH = 64,
    AT_ZERO = 68,
    AT_PAYLOAD_CHECKSUM = 72,
    AT_ERA = 80,
    AT_MORE_ZERO = 88,
    AT_CHECKSUM = 104,
};
static_assert(AT_CHECKSUM + 8 == SLOT_HEADER_BYTES, "the checksum is its end");

static const char magic[8] = {'s', 'm', 'v', '-', 's', 'l', 'o', 't'};

void slot_header_write(const struct slot_header *header, uint8_t bytes[SLOT_HEADER_BYTES])
{
    assert(header->key.name.low != 0);

    memset(bytes, 0, SLOT_HEADER_BYTES);
    memcpy(bytes + AT_MAGIC, magic, sizeof magic);
    put_little(bytes + AT_VERSION, 4, SLOT_HEADER_VERSION);
    put_little(bytes + AT_PAYLOAD_LEN, 4, header->payload_len);
    put_little(bytes + AT_LAYOUT, 8, header->layout);
    put_little_128(bytes + AT_NAME, header->key.name);
    put_little(bytes + AT_CHECK, 8, header->key.check);
    put_little_128(bytes + AT_PARENT, header->parent);
    put_little(bytes + AT_DEPTH, 4, header->depth);
    put_little(bytes + AT_PAYLOAD_CHECKSUM, 8, header->payload_checksum);
    put_little(bytes + AT_ERA, 8, header->era);
    put_little(bytes + AT_CHECKSUM, 8, checksum(bytes, AT_CHECKSUM));
}

int slot_header_read(struct slot_header *header, const uint8_t bytes[SLOT_HEADER_BYTES])
{
    if (memcmp(bytes + AT_MAGIC, magic, sizeof magic) != 0 ||
        get_little(bytes + AT_VERSION, 4) != SLOT_HEADER_VERSION ||
        get_little(bytes + AT_CHECKSUM, 8) != checksum(bytes, AT_CHECKSUM))
        return -EBADMSG;
    *header = (struct slot_header){
        .layout = get_little(bytes + AT_LAYOUT, 8),
        .key = {.name = get_little_128(bytes + AT_NAME), .check = get_little(bytes + AT_CHECK, 8)},
        .parent = get_little_128(bytes + AT_PARENT),
        .depth = (uint32_t)get_little(bytes + AT_DEPTH, 4),
        .payload_len = (uint32_t)get_little(bytes + AT_PAYLOAD_LEN, 4),
        .payload_checksum = get_little(bytes + AT_PAYLOAD_CHECKSUM, 8),
        .era = get_little(bytes + AT_ERA, 8),
    };
    if (header->key.name.low == 0 || get_little(bytes + AT_ZERO, 4) != 0 ||
        get_little(bytes + AT_MORE_ZERO, 8) != 0 || get_little(bytes + AT_MORE_ZERO + 8, 8) != 0)
        return -EBADMSG;
    return 0;
}

int slot_header_expect(struct slot_header *header, const uint8_t bytes[SLOT_HEADER_BYTES],
                       const struct slot_header *expected)
{
    int status = slot_header_read(header, bytes);

    if (status < 0)
        return status;
    return header->layout == expected->layout && header->era == expected->era &&
                   block_key_equal(header->key, expected->key) &&
                   header->payload_len == expected->payload_len
               ? 0
               : -EBADMSG;
}
