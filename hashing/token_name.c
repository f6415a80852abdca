/* SPDX-License-Identifier: Apache-2.0 */

#include "hashing/token_name.h"

#include <assert.h>

/* Names of two hosts are compared, so ids must lie alike in both their memories. */
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "a port to big-endian machines has to swap the ids before they are hashed");

enum { FIELD_LORA = 1, FIELD_SALT, FIELD_PARENT, FIELD_IDS, FIELD_EXTRA };

static struct digest_128 named(struct digest_128 digest)
{
    if (digest.low == 0)
        digest.low = 1; /* 0 is nobody's name */
    return digest;
}

struct digest_128 token_name_root(const uint8_t *secret, const char *lora, size_t lora_len,
                                  const char *salt, size_t salt_len)
{
    struct digest digest;

    digest_begin(&digest, secret, DIGEST_TOKEN_ROOT);
    digest_field(&digest, FIELD_LORA, lora, lora_len);
    digest_field(&digest, FIELD_SALT, salt, salt_len);
    return named(digest_end_128(&digest));
}

struct digest_128 token_name_next(const uint8_t *secret, struct digest_128 parent,
                                  const uint32_t *ids, size_t id_count, uint64_t extra)
{
    const uint64_t names[2] = {parent.low, parent.high};
    struct digest digest;

    digest_begin(&digest, secret, DIGEST_TOKEN_BLOCK);
    digest_field_u64s(&digest, FIELD_PARENT, names, 2);
    digest_field(&digest, FIELD_IDS, ids, id_count * sizeof *ids);
    if (extra != 0)
        digest_field_u64(&digest, FIELD_EXTRA, extra);
    return named(digest_end_128(&digest));
}
