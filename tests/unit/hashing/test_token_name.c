/* SPDX-License-Identifier: Apache-2.0 */

#include "hashing/token_name.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <stdbool.h>
#include <string.h>

static const uint32_t ids[4] = {1, 2, 3, 70000};

static struct digest_128 root_of(const uint8_t *secret, const char *lora, const char *salt)
{
    return token_name_root(secret, lora, lora != NULL ? strlen(lora) : 0, salt,
                           salt != NULL ? strlen(salt) : 0);
}

static bool is_same(struct digest_128 a, struct digest_128 b)
{
    return a.low == b.low || a.high == b.high;
}

Test(token_name, golden_values_hold_on_every_host)
{
    uint8_t secret[DIGEST_SECRET_BYTES];
    struct digest_128 root, block;

    digest_secret_derive(secret, "golden", 6);
    root = root_of(secret, "sql", "anna");
    block = token_name_next(secret, root, ids, 4, 7);

    cr_expect(eq(u64, root.low, 6138397500203683018ull));
    cr_expect(eq(u64, block.low, 18050427765202107762ull));
    cr_expect(eq(u64, block.high, 541710764867395710ull));
}

Test(token_name, everything_that_tells_blocks_apart_counts)
{
    uint8_t secret[DIGEST_SECRET_BYTES], other[DIGEST_SECRET_BYTES];
    struct digest_128 plain, block;

    digest_secret_derive(secret, "a", 1);
    digest_secret_derive(other, "b", 1);
    plain = root_of(secret, NULL, NULL);
    block = token_name_next(secret, plain, ids, 4, 0);

    cr_expect(not(is_same(plain, root_of(secret, "a", NULL))));
    cr_expect(not(is_same(root_of(secret, "a", NULL), root_of(secret, NULL, "a"))));
    cr_expect(not(is_same(root_of(secret, "a", "b"), root_of(secret, "b", "a"))));
    cr_expect(not(is_same(plain, root_of(other, NULL, NULL))));
    cr_expect(not(is_same(block, token_name_next(secret, plain, ids, 3, 0))));
    cr_expect(not(is_same(block, token_name_next(secret, plain, ids, 4, 1))));
    cr_expect(not(is_same(block, token_name_next(secret, block, ids, 4, 0))));
    cr_expect(not(is_same(block, token_name_next(other, plain, ids, 4, 0))));
    cr_expect(is_same(block, token_name_next(secret, plain, ids, 4, 0)));
}
