/* SPDX-License-Identifier: Apache-2.0 */

#include "router/prompt/value_digest.h"

#include "hashing/digest.h"

#include <string.h>

/*
 * DESIGN
 *
 * A tree of pairs: each value is (its type, its content), an array chains its elements, an object
 * adds its members up, which forgets their order and needs no sorting, so no memory. Sums of keyed
 * digests cannot be steered without the secret. The depth of the recursion is JSON_DEPTH_MAX.
 */
bool value_is_empty(struct json_value value)
{
    switch (json_type(value)) {
    case JSON_NONE:
    case JSON_NULL:
        return true;
    case JSON_STRING:
        return json_string(value).len == 0;
    case JSON_ARRAY:
    case JSON_OBJECT:
        return json_count(value) == 0;
    default:
        return false;
    }
}

/* How a value is read. */
struct reading {
    const uint8_t *secret;
    bool skips_marks; /* cache_control is not there, at any depth */
};

static uint64_t digest_pair(const uint8_t *secret, uint64_t first, uint64_t second)
{
    struct digest digest;

    digest_begin(&digest, secret, DIGEST_MEDIA);
    digest_field_u64(&digest, 0, first);
    digest_field_u64(&digest, 1, second);
    return digest_end(&digest);
}

/* The long runs: images, templates. */
static uint64_t digest_text(const uint8_t *secret, struct slice text)
{
    return digest_64(secret, DIGEST_MEDIA, text.ptr, text.len);
}

static uint64_t read_value(struct reading reading, struct json_value value);

static uint64_t read_member(struct reading reading, struct json_member member)
{
    return digest_pair(reading.secret, digest_text(reading.secret, member.key),
                       read_value(reading, member.value));
}

static uint64_t array_content(struct reading reading, struct json_value value)
{
    struct json_iterator elements = json_iterate(value);
    struct json_value element;
    uint64_t content = 0;

    while (json_next_element(&elements, &element))
        content = digest_pair(reading.secret, content, read_value(reading, element));
    return content;
}

static uint64_t object_content(struct reading reading, struct json_value value)
{
    struct json_iterator members = json_iterate(value);
    struct json_member member;
    uint64_t content = 0;

    while (json_next_member(&members, &member))
        if (!reading.skips_marks || !slice_eq(member.key, SLICE("cache_control")))
            content += read_member(reading, member);
    return content;
}

static uint64_t number_content(struct json_value value)
{
    double number = json_double(value);
    uint64_t bits;

    if (json_type(value) == JSON_INT64)
        return (uint64_t)json_int64(value);
    /* Above INT64_MAX a double names the number: two neighbours may share a digest. */
    memcpy(&bits, &number, sizeof bits);
    return bits;
}

static uint64_t content_of(struct reading reading, struct json_value value)
{
    switch (json_type(value)) {
    case JSON_NONE:
    case JSON_NULL:
        return 0;
    case JSON_BOOL:
        return json_bool(value);
    case JSON_INT64:
    case JSON_UINT64:
    case JSON_DOUBLE:
        return number_content(value);
    case JSON_STRING:
        return digest_text(reading.secret, json_string(value));
    case JSON_ARRAY:
        return array_content(reading, value);
    case JSON_OBJECT:
        return object_content(reading, value);
    }
    return 0;
}

static uint64_t read_value(struct reading reading, struct json_value value)
{
    return digest_pair(reading.secret, json_type(value), content_of(reading, value));
}

uint64_t value_digest(const uint8_t *secret, struct json_value value)
{
    return read_value((struct reading){.secret = secret}, value);
}

uint64_t member_digest(const uint8_t *secret, struct json_member member)
{
    return read_member((struct reading){.secret = secret}, member);
}

uint64_t part_digest(const uint8_t *secret, struct json_value part)
{
    return read_value((struct reading){.secret = secret, .skips_marks = true}, part);
}
