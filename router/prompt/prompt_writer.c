/* SPDX-License-Identifier: Apache-2.0 */

#include "router/prompt/prompt_writer.h"

#include <errno.h>
#include <string.h>

/*
 * DESIGN
 *
 * Texts go straight from the JSON scanner's memory into the chain, which hashes whole blocks where
 * they lie. Room is made before each append for the blocks it can close and one more, so a cut or
 * the end node always finds a place below the limit.
 */
static const char TAG_MARK = '\xFF';

static void reserve(struct prompt_writer *writer, size_t len)
{
    const struct block_chain *chain = writer->chain;
    size_t needed =
        chain->block_count + (chain->gathered_len + len) / chain->config.block_bytes + 1;

    if (writer->status == 0 && needed > chain->block_count_max)
        writer->status = writer->reserve(writer->ctx, needed);
}

static void append(struct prompt_writer *writer, const void *bytes, size_t len)
{
    reserve(writer, len);
    if (writer->status == 0)
        writer->status = block_chain_append(writer->chain, bytes, len);
}

void prompt_write_tag(struct prompt_writer *writer, enum prompt_tag tag)
{
    char bytes[2] = {TAG_MARK, (char)tag};

    append(writer, bytes, sizeof bytes);
}

void prompt_write_text(struct prompt_writer *writer, struct slice text)
{
    if (text.len > 0)
        append(writer, text.ptr, text.len);
}

void prompt_write_field(struct prompt_writer *writer, enum prompt_tag tag, struct slice text)
{
    prompt_write_tag(writer, tag);
    prompt_write_text(writer, text);
}

void prompt_write_digest(struct prompt_writer *writer, enum prompt_tag tag, uint64_t digest)
{
    unsigned char bytes[10] = {(unsigned char)TAG_MARK, (unsigned char)tag};

    for (size_t i = 0; i < 8; i++) /* little-endian on every machine: routers share names */
        bytes[2 + i] = (unsigned char)(digest >> 8 * i);
    append(writer, bytes, sizeof bytes);
}

static void write_double(struct prompt_writer *writer, double number)
{
    uint64_t bits;

    memcpy(&bits, &number, sizeof bits);
    prompt_write_digest(writer, TAG_DOUBLE, bits);
}

static void write_members(struct prompt_writer *writer, struct json_value value)
{
    struct json_iterator members = json_iterate(value);
    struct json_member member;

    while (json_next_member(&members, &member)) {
        prompt_write_field(writer, TAG_KEY, member.key);
        prompt_write_value(writer, member.value);
    }
}

static void write_elements(struct prompt_writer *writer, struct json_value value)
{
    struct json_iterator elements = json_iterate(value);
    struct json_value element;

    while (json_next_element(&elements, &element))
        prompt_write_value(writer, element);
}

void prompt_write_value(struct prompt_writer *writer, struct json_value value)
{
    switch (json_type(value)) {
    case JSON_NONE:
    case JSON_NULL:
        prompt_write_tag(writer, TAG_NULL);
        break;
    case JSON_BOOL:
        prompt_write_tag(writer, json_bool(value) ? TAG_TRUE : TAG_FALSE);
        break;
    case JSON_INT64:
        prompt_write_digest(writer, TAG_INTEGER, (uint64_t)json_int64(value));
        break;
    case JSON_UINT64:
    case JSON_DOUBLE:
        write_double(writer, json_double(value));
        break;
    case JSON_STRING:
        prompt_write_field(writer, TAG_STRING, json_string(value));
        break;
    case JSON_ARRAY:
        prompt_write_tag(writer, TAG_ARRAY);
        write_elements(writer, value);
        prompt_write_tag(writer, TAG_ARRAY_END);
        break;
    case JSON_OBJECT:
        prompt_write_tag(writer, TAG_OBJECT);
        write_members(writer, value);
        prompt_write_tag(writer, TAG_OBJECT_END);
        break;
    }
}

void prompt_write_end(struct prompt_writer *writer)
{
    prompt_write_tag(writer, TAG_END);
    reserve(writer, 0);
    if (writer->status == 0)
        writer->status = block_chain_end(writer->chain);
}

uint64_t prompt_writer_bytes(const struct prompt_writer *writer)
{
    return writer->chain->end + writer->chain->gathered_len;
}

size_t prompt_write_tail(struct prompt_writer *writer)
{
    struct block_chain *chain = writer->chain;

    if (chain->gathered_len == 0)
        return chain->block_count;
    reserve(writer, 0);
    if (writer->status == 0 && chain->block_count == chain->block_count_max)
        writer->status = -ENOBUFS;
    if (writer->status < 0)
        return chain->block_count;
    chain->blocks[chain->block_count] = block_chain_tail(chain);
    return chain->block_count + 1;
}
