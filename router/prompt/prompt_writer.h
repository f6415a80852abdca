/* SPDX-License-Identifier: Apache-2.0 */

/*
 * prompt_writer: the alphabet of the canonical stream, shared by prompt_stream (what the client
 * sent) and answer_stream (what it will send next): tags, texts and cuts into a block_chain whose
 * array grows as needed. The grammar is in prompt_stream.c. The first error sticks and later calls
 * do nothing. Pure; one thread at a time.
 */
#ifndef ROUTER_PROMPT_PROMPT_WRITER_H
#define ROUTER_PROMPT_PROMPT_WRITER_H

#include <stddef.h>
#include <stdint.h>

#include "backends/json/json_scan.h"
#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"
#include "hashing/block_chain.h"

/* A tag is the byte 0xFF, which no UTF-8 text holds, and one of these. */
enum prompt_tag {
    TAG_TOOL = 'T',
    TAG_MESSAGE = 'M',   /* then the role */
    TAG_NAME = 'n',      /* of an author or a function */
    TAG_CALL_ID = 'i',   /* tool_call_id of a tool's answer */
    TAG_REASONING = 'r', /* reasoning_content, or reasoning */
    TAG_TEXT = 't',      /* content, or one text part of it */
    TAG_PART = 'p',      /* another part (image, audio, ...): then 8 bytes of its digest */
    TAG_REFUSAL = 'f',   /* then its text */
    TAG_CALL = 'c',      /* a tool call: then its id */
    TAG_ARGUMENTS = 'a', /* of a tool call: then their text */
    TAG_EXTRA = 'x',     /* members without a tag of their own: then 8 bytes of their digest */
    TAG_END = '.',       /* of a tool, a message */
    TAG_OBJECT = '{',    /* in tools: TAG_KEY, key, value; ... */
    TAG_KEY = 'k',
    TAG_OBJECT_END = '}',
    TAG_ARRAY = '[',
    TAG_ARRAY_END = ']',
    TAG_STRING = 's',
    TAG_INTEGER = 'I', /* then 8 bytes, as of every number */
    TAG_DOUBLE = 'D',
    TAG_TRUE = '1',
    TAG_FALSE = '0',
    TAG_NULL = '-',
};

/* Makes chain->blocks hold block_count blocks and sets its block_count_max, as far as a limit
 * allows. -ENOMEM. */
typedef int prompt_reserve_fn(void *ctx, size_t block_count);

struct prompt_writer {
    struct block_chain *chain;
    prompt_reserve_fn *reserve;
    void *ctx;
    int status; /* 0, or the first error: -ENOBUFS (the limit is reached), -ENOMEM */
};

void prompt_write_tag(struct prompt_writer *writer, enum prompt_tag tag);
void prompt_write_text(struct prompt_writer *writer, struct slice text);
void prompt_write_field(struct prompt_writer *writer, enum prompt_tag tag, struct slice text);
void prompt_write_digest(struct prompt_writer *writer, enum prompt_tag tag, uint64_t digest);

/* A JSON value as templates print it: white space, escapes and number spelling do not matter, the
 * order of members does. */
void prompt_write_value(struct prompt_writer *writer, struct json_value value);

/* TAG_END and a cut. */
void prompt_write_end(struct prompt_writer *writer);

/* Bytes of the whole stream so far. */
uint64_t prompt_writer_bytes(const struct prompt_writer *writer);

/*
 * Puts the end node behind the closed blocks where the stream does not end on one, without closing
 * anything in the chain. Returns how many blocks there are then.
 */
size_t prompt_write_tail(struct prompt_writer *writer);

#endif
