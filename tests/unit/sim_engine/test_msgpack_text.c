/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/msgpack_text.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "backends/kvevents/msgpack_reader.h"
#include "tests/support/leak_check.h"

/* What the reader of this repository, which was tried on an engine's own bytes, makes of buf. */
static struct msgpack_value read_only_value(const struct buf *buf)
{
    struct msgpack_reader reader = {buf_slice(buf)};
    struct msgpack_value value;

    cr_assert(eq(int, msgpack_reader_next(&reader, &value), 0));
    cr_assert(eq(sz, reader.rest.len, 0));
    return value;
}

TestSuite(msgpack_text, .fini = leak_check);

Test(msgpack_text, numbers_come_back_from_their_shortest_form)
{
    static const struct {
        uint64_t number;
        size_t len;
    } cases[] = {{0, 1},          {127, 1},       {128, 2},        {255, 2},       {256, 3},
                 {UINT16_MAX, 3}, {1UL << 16, 5}, {UINT32_MAX, 5}, {1UL << 32, 9}, {UINT64_MAX, 9}};

    for (size_t i = 0; i < array_count(cases); i++) {
        struct buf buf;
        buf_init(&buf, SIZE_MAX);

        msgpack_put_uint(&buf, cases[i].number);

        cr_assert(eq(sz, buf_len(&buf), cases[i].len));
        cr_assert(eq(u64, read_only_value(&buf).number, cases[i].number));
        buf_release(&buf);
    }
}

Test(msgpack_text, texts_and_bytes_of_each_length_come_back)
{
    static const size_t lengths[] = {0, 1, 31, 32, 255, 256, UINT16_MAX, UINT16_MAX + 1};
    static char bytes[UINT16_MAX + 1];

    for (size_t i = 0; i < array_count(lengths); i++) {
        struct slice expected = slice_of(bytes, lengths[i]);
        struct buf text, binary;
        buf_init(&text, SIZE_MAX);
        buf_init(&binary, SIZE_MAX);

        msgpack_put_string(&text, expected);
        msgpack_put_binary(&binary, expected);

        cr_assert(eq(int, read_only_value(&text).type, MSGPACK_STRING));
        cr_assert(slice_eq(read_only_value(&text).bytes, expected));
        cr_assert(eq(int, read_only_value(&binary).type, MSGPACK_BINARY));
        cr_assert(slice_eq(read_only_value(&binary).bytes, expected));
        buf_release(&text);
        buf_release(&binary);
    }
}

Test(msgpack_text, heads_say_how_many_values_follow)
{
    static const size_t counts[] = {0, 15, 16, 3000, UINT16_MAX + 1};

    for (size_t i = 0; i < array_count(counts); i++) {
        struct msgpack_reader reader;
        struct msgpack_value value;
        struct buf buf;
        buf_init(&buf, SIZE_MAX);

        msgpack_put_array(&buf, 2);
        msgpack_put_array(&buf, counts[i]);
        for (size_t k = 0; k < counts[i]; k++)
            msgpack_put_nil(&buf);
        msgpack_put_map(&buf, counts[i]);
        for (size_t k = 0; k < 2 * counts[i]; k++)
            msgpack_put_real(&buf, 0.5);

        reader = (struct msgpack_reader){buf_slice(&buf)};
        cr_assert(eq(int, msgpack_reader_next(&reader, &value), 0));
        cr_assert(eq(u64, value.number, 2));
        cr_assert(eq(int, msgpack_reader_next(&reader, &value), 0));
        cr_assert(eq(int, value.type, MSGPACK_ARRAY));
        cr_assert(eq(u64, value.number, counts[i]));
        for (size_t k = 0; k < counts[i]; k++)
            cr_assert(eq(int, msgpack_reader_skip(&reader), 0));
        cr_assert(eq(int, msgpack_reader_next(&reader, &value), 0));
        cr_assert(eq(int, value.type, MSGPACK_MAP));
        cr_assert(eq(u64, value.number, counts[i]));
        buf_release(&buf);
    }
}
