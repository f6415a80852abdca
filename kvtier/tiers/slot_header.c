/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/slot_header.h"

#include "hashing/checksum.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

/*
 * DESIGN
 *
 *   0 magic   8 version  12 length of the payload
 *  16 layout  24 name (low, high)  40 check  48 parent (low, high)
 *  64 depth  68 zero  72 checksum of the payload  80 sequence  88 epoch
 *  96 zero  104 checksum of bytes 0 to 103
 *
 * A header is valid only if all of it agrees: the checksum covers the fields that mean nothing yet
 * too, and those must be zero, so that a later version can give them a meaning that an older one
 * refuses. Numbers are written one by one: a struct's padding and byte order are the compiler's.
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
    AT_SEQUENCE = 80,
    AT_EPOCH = 88,
    AT_MORE_ZERO = 96,
    AT_CHECKSUM = 104,
};
static_assert(AT_CHECKSUM + 8 == SLOT_HEADER_BYTES, "the checksum is its end");

static const char magic[8] = {'s', 'm', 'v', '-', 's', 'l', 'o', 't'};

static void put(uint8_t *at, unsigned bytes, uint64_t value)
{
    for (unsigned i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

static uint64_t get(const uint8_t *at, unsigned bytes)
{
    uint64_t value = 0;

    for (unsigned i = bytes; i-- > 0;)
        value = value << 8 | at[i];
    return value;
}

static void put_128(uint8_t *at, struct digest_128 value)
{
    put(at, 8, value.low);
    put(at + 8, 8, value.high);
}

static struct digest_128 get_128(const uint8_t *at)
{
    return (struct digest_128){.low = get(at, 8), .high = get(at + 8, 8)};
}

void slot_header_write(const struct slot_header *header, uint8_t bytes[SLOT_HEADER_BYTES])
{
    assert(header->key.name.low != 0);

    memset(bytes, 0, SLOT_HEADER_BYTES);
    memcpy(bytes + AT_MAGIC, magic, sizeof magic);
    put(bytes + AT_VERSION, 4, SLOT_HEADER_VERSION);
    put(bytes + AT_PAYLOAD_LEN, 4, header->payload_len);
    put(bytes + AT_LAYOUT, 8, header->layout);
    put_128(bytes + AT_NAME, header->key.name);
    put(bytes + AT_CHECK, 8, header->key.check);
    put_128(bytes + AT_PARENT, header->parent);
    put(bytes + AT_DEPTH, 4, header->depth);
    put(bytes + AT_PAYLOAD_CHECKSUM, 8, header->payload_checksum);
    put(bytes + AT_SEQUENCE, 8, header->sequence);
    put(bytes + AT_EPOCH, 8, header->epoch);
    put(bytes + AT_CHECKSUM, 8, checksum(bytes, AT_CHECKSUM));
}

int slot_header_read(struct slot_header *header, const uint8_t bytes[SLOT_HEADER_BYTES])
{
    if (memcmp(bytes + AT_MAGIC, magic, sizeof magic) != 0 ||
        get(bytes + AT_VERSION, 4) != SLOT_HEADER_VERSION ||
        get(bytes + AT_CHECKSUM, 8) != checksum(bytes, AT_CHECKSUM))
        return -EBADMSG;
    *header = (struct slot_header){
        .layout = get(bytes + AT_LAYOUT, 8),
        .key = {.name = get_128(bytes + AT_NAME), .check = get(bytes + AT_CHECK, 8)},
        .parent = get_128(bytes + AT_PARENT),
        .depth = (uint32_t)get(bytes + AT_DEPTH, 4),
        .payload_len = (uint32_t)get(bytes + AT_PAYLOAD_LEN, 4),
        .payload_checksum = get(bytes + AT_PAYLOAD_CHECKSUM, 8),
        .sequence = get(bytes + AT_SEQUENCE, 8),
        .epoch = get(bytes + AT_EPOCH, 8),
    };
    if (header->key.name.low == 0 || get(bytes + AT_ZERO, 4) != 0 ||
        get(bytes + AT_MORE_ZERO, 8) != 0)
        return -EBADMSG;
    return 0;
}

int slot_header_expect(struct slot_header *header, const uint8_t bytes[SLOT_HEADER_BYTES],
                       const struct slot_header *expected)
{
    int status = slot_header_read(header, bytes);

    if (status < 0)
        return status;
    return header->layout == expected->layout && block_key_equal(header->key, expected->key) &&
                   header->payload_len == expected->payload_len
               ? 0
               : -EBADMSG;
}
