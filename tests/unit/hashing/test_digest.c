/* SPDX-License-Identifier: Apache-2.0 */

#include "hashing/digest.h"

#include "hashing/block_hash.h"
#include "hashing/fingerprint.h"
#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <string.h>

static void derive(uint8_t secret[DIGEST_SECRET_BYTES], const char *text)
{
    digest_secret_derive(secret, text, strlen(text));
}

/* The digest of two fields of text. */
static uint64_t of_pair(uint32_t tag_a, const char *a, uint32_t tag_b, const char *b)
{
    uint8_t secret[DIGEST_SECRET_BYTES];
    struct digest digest;

    derive(secret, "samovar");
    digest_begin(&digest, secret, DIGEST_ROOT);
    digest_field(&digest, tag_a, a, strlen(a));
    digest_field(&digest, tag_b, b, strlen(b));
    return digest_end(&digest);
}

TestSuite(digest, .fini = leak_check);

Test(digest, names_stay_what_they_were_on_every_host_and_version)
{
    uint8_t secret[DIGEST_SECRET_BYTES];
    derive(secret, "samovar");

    cr_assert(eq(u64, digest_64(secret, DIGEST_ROOT, "tea", 3), 0x961327d42208f25d));
    cr_assert(eq(u64, digest_128(secret, DIGEST_ROOT, "tea", 3).high, 0x5b4f3388cbd06757));
    cr_assert(
        eq(u64, fingerprint((struct block_chain_config){secret, 256, 64}, 1), 0xa163c41c2d392ed8));
}

Test(digest, equal_bytes_in_two_domains_share_no_name)
{
    uint8_t secret[DIGEST_SECRET_BYTES];
    derive(secret, "samovar");

    cr_assert(ne(u64, digest_64(secret, DIGEST_ROOT, "tea", 3),
                 digest_64(secret, DIGEST_MEDIA, "tea", 3)));
    cr_assert(ne(u64, digest_128(secret, DIGEST_ROOT, "tea", 3).low,
                 digest_128(secret, DIGEST_MEDIA, "tea", 3).low));
}

Test(digest, another_secret_names_everything_anew)
{
    uint8_t one[DIGEST_SECRET_BYTES], other[DIGEST_SECRET_BYTES];
    derive(one, "samovar");
    derive(other, "samovaR");

    cr_assert(ne(mem, ((struct cr_mem){one, sizeof one}), ((struct cr_mem){other, sizeof other})));
    cr_assert(ne(u64, digest_64(one, DIGEST_ROOT, "", 0), digest_64(other, DIGEST_ROOT, "", 0)));
}

Test(digest, tag_length_and_order_of_fields_count)
{
    const uint64_t name = of_pair(1, "ab", 2, "c");

    cr_assert(eq(u64, of_pair(1, "ab", 2, "c"), name));
    cr_assert(ne(u64, of_pair(1, "a", 2, "bc"), name));
    cr_assert(ne(u64, of_pair(2, "ab", 1, "c"), name));
    cr_assert(ne(u64, of_pair(2, "c", 1, "ab"), name));
    cr_assert(ne(u64, of_pair(1, "ab", 3, "c"), name));
}

Test(digest, an_empty_field_is_not_a_missing_one)
{
    uint8_t secret[DIGEST_SECRET_BYTES];
    struct digest missing, empty;
    derive(secret, "samovar");
    digest_begin(&missing, secret, DIGEST_ROOT);
    empty = missing;

    digest_field(&empty, 1, NULL, 0);

    cr_assert(ne(u64, digest_end(&empty), digest_end(&missing)));
}

Test(digest, a_copy_goes_on_by_itself)
{
    uint8_t secret[DIGEST_SECRET_BYTES];
    struct digest whole, copy;
    derive(secret, "samovar");
    digest_begin(&whole, secret, DIGEST_ROOT);
    digest_field_u64(&whole, 1, 42);
    copy = whole;
    digest_field_u64(&copy, 2, 7);

    digest_field_u64(&whole, 2, 7);

    cr_assert(eq(u64, digest_end(&whole), digest_end(&copy)));
    cr_assert(eq(u64, digest_end_128(&whole).high, digest_end_128(&copy).high));
}

static const uint8_t secret_of_zeros[DIGEST_SECRET_BYTES];

static uint64_t digest_of_numbers(const uint64_t *values, size_t count)
{
    struct digest digest;

    digest_begin(&digest, secret_of_zeros, DIGEST_ROOT);
    digest_field_u64s(&digest, 1, values, count);
    return digest_end(&digest);
}

Test(digest, of_several_numbers_each_counts_and_so_does_its_place)
{
    const uint64_t numbers[] = {1, 2, 3}, swapped[] = {2, 1, 3}, more[] = {1, 2, 3, 0};
    struct digest single;
    digest_begin(&single, secret_of_zeros, DIGEST_ROOT);
    digest_field_u64(&single, 1, 1);

    uint64_t name = digest_of_numbers(numbers, 3);

    cr_assert(ne(u64, name, digest_of_numbers(swapped, 3)));
    cr_assert(ne(u64, name, digest_of_numbers(more, 4)));
    cr_assert(ne(u64, name, digest_of_numbers(numbers, 2)));
    cr_assert(eq(u64, digest_end(&single), digest_of_numbers(numbers, 1)));
}

Test(digest, a_fingerprint_covers_secret_version_and_cuts)
{
    uint8_t secret[DIGEST_SECRET_BYTES];
    derive(secret, "samovar");
    const uint64_t ours = fingerprint((struct block_chain_config){secret, 256, 64}, 1);

    cr_assert(ne(u64, fingerprint((struct block_chain_config){secret, 256, 64}, 2), ours));
    cr_assert(ne(u64, fingerprint((struct block_chain_config){secret, 128, 64}, 1), ours));
    cr_assert(ne(u64, fingerprint((struct block_chain_config){secret, 256, 32}, 1), ours));
    for (size_t i = 0; i < sizeof secret; i++) {
        secret[i] ^= 1;
        cr_assert(ne(u64, fingerprint((struct block_chain_config){secret, 256, 64}, 1), ours));
        secret[i] ^= 1;
    }
}

TestSuite(block_hash, .fini = leak_check);

Test(block_hash, its_text_form_reads_back)
{
    static const uint64_t hashes[] = {1, 0x0123456789abcdef, UINT64_MAX};

    for (size_t i = 0; i < sizeof hashes / sizeof hashes[0]; i++) {
        char text[BLOCK_HASH_DIGITS + 1];
        uint64_t hash = 0;

        cr_assert(block_hash_parse(block_hash_format(hashes[i], text), 16, &hash));
        cr_assert(eq(u64, hash, hashes[i]));
    }
}

Test(block_hash, what_is_not_exactly_a_hash_is_refused_and_changes_nothing)
{
    static const char *const texts[] = {"",
                                        "123",
                                        "0123456789abcdeg",
                                        "0123456789ABCDEF",
                                        "00123456789abcdef",
                                        "0x23456789abcdef",
                                        "0000000000000000"};
    uint64_t hash = 7;

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        cr_assert(not(block_hash_parse(texts[i], strlen(texts[i]), &hash)), "%s", texts[i]);

    cr_assert(eq(u64, hash, 7));
}

Test(block_hash, numbers_and_texts_have_one_order)
{
    char low[BLOCK_HASH_DIGITS + 1], high[BLOCK_HASH_DIGITS + 1];

    cr_assert(lt(int, block_hash_compare(9, 10), 0));
    cr_assert(eq(int, block_hash_compare(10, 10), 0));
    cr_assert(lt(int, strcmp(block_hash_format(9, low), block_hash_format(1ull << 63, high)), 0));
}
