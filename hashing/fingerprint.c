/* SPDX-License-Identifier: Apache-2.0 */

#include "hashing/fingerprint.h"

#include "hashing/stream_identity.h"

/*
 * DESIGN
 *
 * Everything that a name of a block depends on besides the prompt, and nothing else: an upgrade
 * that keeps all of them keeps the map warm. The secret goes in twice, as the key and as a field,
 * because XXH3 looks at only a part of its secret for input this short: two secrets that differ
 * elsewhere would name long blocks differently under one fingerprint.
 */

/* Values are part of the fingerprint: never reuse or renumber one. */
enum { TAG_SECRET = 1, TAG_STREAM_VERSION, TAG_BLOCK_BYTES, TAG_CUT_BYTES_MIN };

uint64_t fingerprint(struct block_chain_config config, uint32_t stream_version)
{
    struct digest digest;

    digest_begin(&digest, config.secret, DIGEST_FINGERPRINT);
    digest_field(&digest, TAG_SECRET, config.secret, DIGEST_SECRET_BYTES);
    digest_field_u64(&digest, TAG_STREAM_VERSION, stream_version);
    digest_field_u64(&digest, TAG_BLOCK_BYTES, config.block_bytes);
    digest_field_u64(&digest, TAG_CUT_BYTES_MIN, config.cut_bytes_min);
    return digest_end(&digest);
}

uint64_t fingerprint_of_secret(const uint8_t secret[DIGEST_SECRET_BYTES])
{
    return fingerprint(
        (struct block_chain_config){secret, STREAM_BLOCK_BYTES, STREAM_CUT_BYTES_MIN},
        STREAM_VERSION);
}
