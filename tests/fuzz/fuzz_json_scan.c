/* SPDX-License-Identifier: Apache-2.0 */

/* simdjson and the second reader must agree on what JSON is, and every value must be readable. What
 * is told of depth and of keys said twice must be what a plain walk over the values tells. */
#include "backends/json/json_depth.h"
#include "backends/json/json_duplicate.h"
#include "backends/json/json_locate.h"
#include "backends/json/json_scan.h"
#include "tests/fuzz/fuzz_input.h"

#include <assert.h>
#include <errno.h>

/* What a plain walk tells. */
struct walk {
    size_t depth_max; /* arrays and objects within each other, empty ones counted */
    bool has_duplicate;
    bool is_large; /* some object has too many keys for it */
};

/* Whether one of the members before the one at index has its key. */
static bool is_said_before(struct json_value object, size_t index, struct slice key)
{
    struct json_iterator members = json_iterate(object);
    struct json_member member;

    while (index-- > 0 && json_next_member(&members, &member))
        if (slice_eq(member.key, key))
            return true;
    return false;
}

static void read_value(struct walk *walk, struct json_value value, size_t depth)
{
    struct json_iterator members = json_iterate(value), elements = members;
    struct json_value element;
    struct json_member member;
    struct slice text = json_string(value);
    size_t count = 0;

    assert(json_type(value) != JSON_NONE);
    depth += json_type(value) == JSON_ARRAY || json_type(value) == JSON_OBJECT;
    walk->depth_max = depth > walk->depth_max ? depth : walk->depth_max;
    assert(text.len == 0 || memchr(text.ptr, '\xFF', text.len) == NULL); /* tags rest on this */
    (void)json_int64(value);
    (void)json_double(value);
    while (json_next_member(&members, &member)) {
        if (count < 64) /* quadratic; more of them are a unit test's */
            walk->has_duplicate |= is_said_before(value, count, member.key);
        else
            walk->is_large = true;
        read_value(walk, member.value, depth);
        count++;
    }
    while (json_next_element(&elements, &element)) {
        read_value(walk, element, depth);
        count++;
    }
    assert(count == json_count(value));
}

static void check_reading(struct slice text, struct json_value root)
{
    char path[JSON_PATH_BYTES_MAX];
    struct walk walk = {0};
    int status;

    read_value(&walk, root, 0);
    assert(!json_is_deeper(text, walk.depth_max));
    assert(walk.depth_max == 0 || json_is_deeper(text, walk.depth_max - 1));
    assert(walk.depth_max <= JSON_DEPTH_MAX + 1);
    status = json_find_duplicate(root, path);
    assert(status == 0 || status == 1);
    assert(walk.is_large || (status == 1) == walk.has_duplicate);
    assert(strlen(path) < sizeof path && (status == 1 || path[0] == '\0'));
}

/* A sentence that only the size of a number may leave out: see json_locate.h. */
static void check_refusal(const struct parse_error *error, struct slice text)
{
    struct parse_error located;

    assert(error->offset <= text.len);
    assert(strlen(error->message) > 0);
    if (!json_locate(text, &located))
        assert(memchr(text.ptr, 'e', text.len) != NULL || memchr(text.ptr, 'E', text.len) != NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct json_scanner *scanner = json_scanner_create();
    char *copy = fuzz_padded(data, size, JSON_PADDING);
    struct slice text = slice_of(copy, size);
    struct parse_error error;
    struct json_value root;
    int status = json_scan(scanner, text, &root, &error);

    assert(status == 0 || status == -EINVAL);
    if (status == 0) {
        assert(!json_locate(text, &error));
        check_reading(text, root);
    } else {
        check_refusal(&error, text);
    }
    json_scanner_destroy(scanner);
    free(copy);
    return 0;
}
