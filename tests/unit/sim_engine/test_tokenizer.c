/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/tokenizer.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "tests/support/leak_check.h"

static const char english[] =
    "You are a careful assistant who answers in one short sentence. The samovar stands on the "
    "table, and its water has been hot since early morning; nobody had to wait for the tea.";

TestSuite(tokenizer, .fini = leak_check);

Test(tokenizer, pieces_put_together_are_the_text)
{
    struct slice texts[] = {SLICE("a  b\n\n c,d"),
                            SLICE("  \t x"),
                            SLICE(" "),
                            slice_of_string(english),
                            SLICE("\xd1\x81\xd0\xb0\xd0\xbc\xd0\xbe"),
                            SLICE("{\"cups\": 7}"),
                            SLICE("\0\x80\xff")};

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct slice rest = texts[i];
        while (rest.len > 0) {
            struct slice piece = tokenizer_first_piece(rest);

            cr_assert(eq(ptr, (void *)piece.ptr, (void *)rest.ptr));
            cr_assert(gt(sz, piece.len, 0));
            rest = slice_skip(rest, piece.len);
        }
    }
}

Test(tokenizer, a_prefix_that_ends_with_a_piece_has_a_prefix_of_the_ids)
{
    struct slice text = slice_of_string(english);
    struct token_list whole = {0};
    size_t end = 0;
    tokenizer_encode(text, &whole);

    for (size_t count = 1; count <= whole.count; count++) {
        struct token_list prefix = {0};
        end += tokenizer_first_piece(slice_skip(text, end)).len;

        tokenizer_encode(slice_of(text.ptr, end), &prefix);

        cr_assert(eq(sz, prefix.count, count));
        cr_assert(eq(int, memcmp(prefix.ids, whole.ids, count * sizeof *whole.ids), 0));
        token_list_release(&prefix);
    }
    cr_assert(eq(sz, end, text.len));
    token_list_release(&whole);
}

Test(tokenizer, english_comes_out_near_four_bytes_a_token)
{
    struct token_list ids = {0};

    tokenizer_encode(slice_of_string(english), &ids);

    double bytes_per_token = (double)(sizeof english - 1) / (double)ids.count;
    cr_assert(gt(dbl, bytes_per_token, 3.5));
    cr_assert(lt(dbl, bytes_per_token, 5.0));
    token_list_release(&ids);
}

Test(tokenizer, no_text_gives_the_id_of_a_mark_or_one_outside_the_vocabulary)
{
    for (uint32_t i = 0; i < 200000; i++) {
        uint32_t id = tokenizer_piece_id(slice_of(&i, sizeof i));

        cr_assert(ge(u32, id, TOKENIZER_SPECIAL_COUNT));
        cr_assert(lt(u32, id, TOKENIZER_VOCABULARY));
    }
}

Test(tokenizer, a_character_is_never_split)
{
    struct slice rest = SLICE("\xd1\x81\xd0\xb0\xd0\xbc\xd0\xbe\xd0\xb2\xd0\xb0\xd1\x80"
                              "\xf0\x9f\x8d\xb5\xf0\x9f\x8d\xb5");

    while (rest.len > 0) {
        rest = slice_skip(rest, tokenizer_first_piece(rest).len);
        cr_assert(rest.len == 0 || ((unsigned char)rest.ptr[0] & 0xc0) != 0x80);
    }
}
