/* SPDX-License-Identifier: Apache-2.0 */

/*
 * msgpack_reader: reads untrusted MessagePack (github.com/msgpack/msgpack, spec.md: every form in
 * it, timestamps as plain extensions) value by value, where it lies. It builds no tree and knows
 * no schema. Pure: no allocation, no recursion; any thread, one reader at a time.
 */
#ifndef BACKENDS_KVEVENTS_MSGPACK_READER_H
#define BACKENDS_KVEVENTS_MSGPACK_READER_H

#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"

enum msgpack_type {
    MSGPACK_NIL,
    MSGPACK_BOOL,     /* number: 0 or 1 */
    MSGPACK_UNSIGNED, /* number; also a positive one that was written in a signed form */
    MSGPACK_NEGATIVE, /* number: two's complement */
    MSGPACK_FLOAT,    /* real */
    MSGPACK_STRING,   /* bytes; whether they are UTF-8 is not looked at */
    MSGPACK_BINARY,   /* bytes */
    MSGPACK_EXTENSION,
    MSGPACK_ARRAY, /* number: elements that follow */
    MSGPACK_MAP,   /* number: pairs that follow, the key first */
};

struct msgpack_value {
    enum msgpack_type type;
    uint64_t number;
    double real;
    struct slice bytes;
};

struct msgpack_reader {
    struct slice rest; /* not read yet; borrowed */
};

/*
 * Reads a scalar, or the head of an array or a map, whose elements are the next values. -EINVAL:
 * the bytes end within it, or it claims more elements than there are bytes for (so a count may be
 * trusted as far as memory goes), or the form does not exist. Then the reader is of no more use.
 */
MUST_CHECK int msgpack_reader_next(struct msgpack_reader *reader, struct msgpack_value *value);

/* Passes over one value with all that is in it, however deep. -EINVAL as above. */
MUST_CHECK int msgpack_reader_skip(struct msgpack_reader *reader);

#endif
