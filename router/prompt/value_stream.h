/* SPDX-License-Identifier: Apache-2.0 */

/*
 * value_stream: writes a JSON value whose text comes in pieces just as prompt_write_value() writes
 * the whole one, so that a spelling by the engine and another one by the client have one name.
 * Keeps no text but an unfinished number or word. Pure; one thread at a time.
 */
#ifndef ROUTER_PROMPT_VALUE_STREAM_H
#define ROUTER_PROMPT_VALUE_STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/runtime/slice.h"
#include "router/prompt/prompt_writer.h"

enum { VALUE_STREAM_DEPTH_MAX = 64, VALUE_STREAM_ATOM_BYTES_MAX = 40 };

struct value_stream { /* private */
    unsigned state;
    unsigned depth;
    uint64_t objects; /* a bit for each level: it is an object, else an array */
    bool is_key;      /* the open string is the name of a member */
    char atom[VALUE_STREAM_ATOM_BYTES_MAX + 1];
    unsigned atom_len;
    unsigned hex_len;
    uint32_t code;      /* of the \u escape being read */
    uint32_t surrogate; /* the first half of a pair whose second one must follow; else 0 */
};

void value_stream_init(struct value_stream *stream);

/* Writes what is certain so far. False, and for good: this is no JSON, or deeper than the limit. */
bool value_stream_feed(struct value_stream *stream, struct prompt_writer *writer,
                       struct slice piece);

/* The text is complete. True: it was one whole value. */
bool value_stream_end(struct value_stream *stream, struct prompt_writer *writer);

#endif
