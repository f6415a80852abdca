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

uint64_t member_digest(const uint8_t *secret, struct json_member member)
{
    return digest_pair(secret, digest_text(secret, member.key), value_digest(secret, member.value));
}

static uint64_t array_content(const uint8_t *secret, struct json_value value)
{
    struct json_iterator elements = json_iterate(value);
    struct json_value element;
    uint64_t content = 0;

    while (json_next_element(&elements, &element))
        content = digest_pair(secret, content, value_digest(secret, element));
    return content;
}

static uint64_t object_content(const uint8_t *secret, struct json_value value)
{
    struct json_iterator members = json_iterate(value);
    struct json_member member;
    uint64_t content = 0;

    while (json_next_member(&members, &member))
        content += member_digest(secret, member);
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

static uint64_t content_of(const uint8_t *secret, struct json_value value)
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
        return digest_text(secret, json_string(value));
    case JSON_ARRAY:
        return array_content(secret, value);
    case JSON_OBJECT:
        return object_content(secret, value);
    }
    return 0;
}

uint64_t value_digest(const uint8_t *secret, struct json_value value)
{
    return digest_pair(secret, json_type(value), content_of(secret, value));
}
