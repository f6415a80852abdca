/* SPDX-License-Identifier: Apache-2.0 */

#include "hashing/digest.h"

#include "hashing/xxh3.h"

#include <assert.h>

/*
 * DESIGN
 *
 *   state[0]   = xxh3_128(secret, domain)
 *   state[i+1] = xxh3_128(secret, state[i] . tag . length . xxh3_128(secret, bytes of field i))
 *
 * Each step hashes one record of fixed size, so the fields need no escaping to be told apart, and
 * the state is 16 bytes instead of the half kilobyte of XXH3's own streaming form. All numbers are
 * little-endian.
 *
 * The secret of a chain must look random, because XXH3 uses its bytes as they are. Files do not:
 * digest_secret_derive() stretches them with plain seeded XXH3-128, which is frozen since xxHash
 * 0.8.0; XXH3_generateSecret() would do the same but changed between releases.
 */

enum { RECORD_BYTES = 16 + 4 + 8 + 16, TAG_WHOLE = 0 };

static struct digest_128 hash(const uint8_t *secret, const void *bytes, size_t len)
{
    XXH128_hash_t h = XXH3_128bits_withSecret(bytes, len, secret, DIGEST_SECRET_BYTES);

    return (struct digest_128){h.low64, h.high64};
}

static void put_u128(uint8_t *bytes, struct digest_128 value)
{
    xxh3_put_u64(bytes, value.low);
    xxh3_put_u64(bytes + 8, value.high);
}

void digest_secret_derive(uint8_t secret[DIGEST_SECRET_BYTES], const void *bytes, size_t len)
{
    for (unsigned at = 0; at < DIGEST_SECRET_BYTES; at += 16) {
        XXH128_hash_t h = XXH3_128bits_withSeed(bytes, len, at + 1);

        put_u128(secret + at, (struct digest_128){h.low64, h.high64});
    }
}

uint64_t digest_64(const uint8_t *secret, enum digest_domain domain, const void *bytes, size_t len)
{
    struct digest digest;

    digest_begin(&digest, secret, domain);
    digest_field(&digest, TAG_WHOLE, bytes, len);
    return digest_end(&digest);
}

struct digest_128 digest_128(const uint8_t *secret, enum digest_domain domain, const void *bytes,
                             size_t len)
{
    struct digest digest;

    digest_begin(&digest, secret, domain);
    digest_field(&digest, TAG_WHOLE, bytes, len);
    return digest_end_128(&digest);
}

void digest_begin(struct digest *digest, const uint8_t *secret, enum digest_domain domain)
{
    uint8_t bytes[8];

    assert(secret != NULL);
    assert(domain > 0);

    xxh3_put_u64(bytes, domain);
    digest->secret = secret;
    digest->state = hash(secret, bytes, sizeof bytes);
}

void digest_field(struct digest *digest, uint32_t tag, const void *bytes, size_t len)
{
    uint8_t record[RECORD_BYTES];

    assert(bytes != NULL || len == 0);

    put_u128(record, digest->state);
    for (unsigned i = 0; i < 4; i++)
        record[16 + i] = (uint8_t)(tag >> (8 * i));
    xxh3_put_u64(record + 20, len);
    put_u128(record + 28, hash(digest->secret, len > 0 ? bytes : "", len));
    digest->state = hash(digest->secret, record, sizeof record);
}

void digest_field_u64s(struct digest *digest, uint32_t tag, const uint64_t *values, size_t count)
{
    uint8_t bytes[8 * DIGEST_U64_COUNT_MAX];

    assert(count <= DIGEST_U64_COUNT_MAX);

    for (size_t i = 0; i < count; i++)
        xxh3_put_u64(bytes + 8 * i, values[i]);
    digest_field(digest, tag, bytes, 8 * count);
}

void digest_field_u64(struct digest *digest, uint32_t tag, uint64_t value)
{
    digest_field_u64s(digest, tag, &value, 1);
}

uint64_t digest_end(const struct digest *digest)
{
    return digest->state.low != 0 ? digest->state.low : 1;
}

struct digest_128 digest_end_128(const struct digest *digest)
{
    return digest->state;
}
