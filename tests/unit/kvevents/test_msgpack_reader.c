/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/kvevents/msgpack_reader.h"

#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdlib.h>

struct example {
    struct slice encoded;
    enum msgpack_type type;
    uint64_t number;
};

#define EXAMPLE(literal, type, number)                                                             \
    {                                                                                              \
        {literal, sizeof(literal) - 1}, type, number                                               \
    }

/* Each form of the specification, and the edges of its numbers. */
static const struct example examples[] = {
    EXAMPLE("\x00", MSGPACK_UNSIGNED, 0),
    EXAMPLE("\x7f", MSGPACK_UNSIGNED, 127),
    EXAMPLE("\xe0", MSGPACK_NEGATIVE, (uint64_t)-32),
    EXAMPLE("\xff", MSGPACK_NEGATIVE, (uint64_t)-1),
    EXAMPLE("\xc0", MSGPACK_NIL, 0),
    EXAMPLE("\xc2", MSGPACK_BOOL, 0),
    EXAMPLE("\xc3", MSGPACK_BOOL, 1),
    EXAMPLE("\xcc\xff", MSGPACK_UNSIGNED, 255),
    EXAMPLE("\xcd\x01\x02", MSGPACK_UNSIGNED, 0x102),
    EXAMPLE("\xce\xff\xff\xff\xff", MSGPACK_UNSIGNED, UINT32_MAX),
    EXAMPLE("\xcf\xff\xff\xff\xff\xff\xff\xff\xff", MSGPACK_UNSIGNED, UINT64_MAX),
    EXAMPLE("\xd0\x7f", MSGPACK_UNSIGNED, 127),
    EXAMPLE("\xd0\x80", MSGPACK_NEGATIVE, (uint64_t)-128),
    EXAMPLE("\xd1\x80\x00", MSGPACK_NEGATIVE, (uint64_t)-32768),
    EXAMPLE("\xd2\xff\xff\xff\xfe", MSGPACK_NEGATIVE, (uint64_t)-2),
    EXAMPLE("\xd3\x80\x00\x00\x00\x00\x00\x00\x00", MSGPACK_NEGATIVE, UINT64_C(1) << 63),
    EXAMPLE("\xca\x3f\x80\x00\x00", MSGPACK_FLOAT, 0x3f800000),
    EXAMPLE("\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00", MSGPACK_FLOAT, UINT64_C(0x3ff8) << 48),
    EXAMPLE("\xa0", MSGPACK_STRING, 0),
    EXAMPLE("\xa3xyz", MSGPACK_STRING, 3),
    EXAMPLE("\xd9\x03xyz", MSGPACK_STRING, 3),
    EXAMPLE("\xda\x00\x03xyz", MSGPACK_STRING, 3),
    EXAMPLE("\xdb\x00\x00\x00\x03xyz", MSGPACK_STRING, 3),
    EXAMPLE("\xc4\x03xyz", MSGPACK_BINARY, 3),
    EXAMPLE("\xc5\x00\x03xyz", MSGPACK_BINARY, 3),
    EXAMPLE("\xc6\x00\x00\x00\x03xyz", MSGPACK_BINARY, 3),
    EXAMPLE("\xc7\x03\x05xyz", MSGPACK_EXTENSION, 3),
    EXAMPLE("\xc8\x00\x03\x05xyz", MSGPACK_EXTENSION, 3),
    EXAMPLE("\xc9\x00\x00\x00\x03\x05xyz", MSGPACK_EXTENSION, 3),
    EXAMPLE("\xd4\x05x", MSGPACK_EXTENSION, 1),
    EXAMPLE("\xd5\x05xy", MSGPACK_EXTENSION, 2),
    EXAMPLE("\xd6\x05xyzw", MSGPACK_EXTENSION, 4),
    EXAMPLE("\xd7\x05xyzwxyzw", MSGPACK_EXTENSION, 8),
    EXAMPLE("\xd8\x05xyzwxyzwxyzwxyzw", MSGPACK_EXTENSION, 16),
    EXAMPLE("\x90", MSGPACK_ARRAY, 0),
    EXAMPLE("\x92\x01\x02", MSGPACK_ARRAY, 2),
    EXAMPLE("\xdc\x00\x02\x01\x02", MSGPACK_ARRAY, 2),
    EXAMPLE("\xdd\x00\x00\x00\x02\x01\x02", MSGPACK_ARRAY, 2),
    EXAMPLE("\x80", MSGPACK_MAP, 0),
    EXAMPLE("\x81\x01\x02", MSGPACK_MAP, 1),
    EXAMPLE("\xde\x00\x01\x01\x02", MSGPACK_MAP, 1),
    EXAMPLE("\xdf\x00\x00\x00\x01\x01\x02", MSGPACK_MAP, 1),
};

/* A copy of exactly this length: the address sanitizer sees a read past its end. */
static char *copy_of(struct slice bytes)
{
    char *copy = malloc(bytes.len > 0 ? bytes.len : 1);

    cr_assert(ne(ptr, copy, NULL));
    memcpy(copy, bytes.ptr, bytes.len);
    return copy;
}

TestSuite(msgpack_reader, .fini = leak_check);

Test(msgpack_reader, each_form_is_read_and_passed_over_whole)
{
    for (size_t i = 0; i < array_count(examples); i++) {
        struct msgpack_reader reader = {examples[i].encoded}, other = reader;
        struct msgpack_value value;

        cr_assert(eq(int, msgpack_reader_next(&reader, &value), 0), "example %zu", i);
        cr_assert(eq(int, msgpack_reader_skip(&other), 0), "example %zu", i);

        cr_assert(eq(int, value.type, examples[i].type), "example %zu", i);
        cr_assert(eq(u64, value.number, examples[i].number), "example %zu", i);
        cr_assert(eq(sz, other.rest.len, 0), "example %zu", i);
        if (value.type == MSGPACK_STRING || value.type == MSGPACK_BINARY ||
            value.type == MSGPACK_EXTENSION) {
            cr_assert(eq(sz, value.bytes.len, (size_t)value.number), "example %zu", i);
            cr_assert(eq(sz, reader.rest.len, 0), "example %zu", i);
        }
        if (value.type == MSGPACK_STRING && value.number == 3)
            cr_assert(slice_eq(value.bytes, SLICE("xyz")), "example %zu", i);
    }
}

Test(msgpack_reader, a_value_cut_anywhere_is_an_error)
{
    for (size_t i = 0; i < array_count(examples); i++)
        for (size_t len = 0; len < examples[i].encoded.len; len++) {
            char *cut = copy_of((struct slice){examples[i].encoded.ptr, len});
            struct msgpack_reader reader = {{cut, len}};

            cr_assert(eq(int, msgpack_reader_skip(&reader), -EINVAL), "example %zu at %zu", i, len);
            free(cut);
        }
}

Test(msgpack_reader, both_widths_of_real_numbers_are_read)
{
    struct msgpack_reader single = {SLICE("\xca\x3f\x80\x00\x00")};
    struct msgpack_reader twice = {SLICE("\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00")};
    struct msgpack_value value;

    cr_assert(eq(int, msgpack_reader_next(&single, &value), 0));
    cr_assert(eq(dbl, value.real, 1.0));
    cr_assert(eq(int, msgpack_reader_next(&twice, &value), 0));
    cr_assert(eq(dbl, value.real, 1.5));
}

Test(msgpack_reader, a_count_without_the_bytes_for_it_is_an_error)
{
    static const struct slice lies[] = {
        {"\xdd\xff\xff\xff\xff\x01", 6},
        {"\xdf\xff\xff\xff\xff\x01\x02", 7},
        {"\xdf\x80\x00\x00\x00\x01", 6},
        {"\xc6\xff\xff\xff\xff\x01", 6},
        {"\x93\x01\x02", 3},
        {"\x82\x01\x02\x03", 4},
    };

    for (size_t i = 0; i < array_count(lies); i++) {
        struct msgpack_reader reader = {lies[i]};
        struct msgpack_value value;

        cr_assert(eq(int, msgpack_reader_next(&reader, &value), -EINVAL), "lie %zu", i);
    }
}

Test(msgpack_reader, the_form_that_was_never_given_out_is_an_error)
{
    struct msgpack_reader reader = {SLICE("\xc1")};
    struct msgpack_value value;

    cr_assert(eq(int, msgpack_reader_next(&reader, &value), -EINVAL));
}

Test(msgpack_reader, what_nests_a_million_deep_is_passed_over_without_a_stack)
{
    enum { DEPTH = 1000000 };
    char *nested = malloc(DEPTH + 1);
    cr_assert(ne(ptr, nested, NULL));
    memset(nested, '\x91', DEPTH);
    nested[DEPTH] = '\xc0';
    struct msgpack_reader whole = {{nested, DEPTH + 1}}, cut = {{nested, DEPTH}};

    cr_assert(eq(int, msgpack_reader_skip(&whole), 0));
    cr_assert(eq(int, msgpack_reader_skip(&cut), -EINVAL));

    cr_assert(eq(sz, whole.rest.len, 0));
    free(nested);
}
