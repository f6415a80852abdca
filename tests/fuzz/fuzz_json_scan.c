/* SPDX-License-Identifier: Apache-2.0 */

/* simdjson and the second reader must agree on what JSON is, and every value must be readable. */
#include "backends/json/json_locate.h"
#include "backends/json/json_scan.h"
#include "tests/fuzz/fuzz_input.h"

#include <assert.h>
#include <errno.h>

static void read_value(struct json_value value)
{
    struct json_iterator members = json_iterate(value), elements = members;
    struct json_value element;
    struct json_member member;
    struct slice text = json_string(value);
    size_t count = 0;

    assert(json_type(value) != JSON_NONE);
    assert(text.len == 0 || memchr(text.ptr, '\xFF', text.len) == NULL); /* tags rest on this */
    (void)json_int64(value);
    (void)json_double(value);
    while (json_next_member(&members, &member)) {
        read_value(member.value);
        count++;
    }
    while (json_next_element(&elements, &element)) {
        read_value(element);
        count++;
    }
    assert(count == json_count(value));
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
        read_value(root);
    } else {
        check_refusal(&error, text);
    }
    json_scanner_destroy(scanner);
    free(copy);
    return 0;
}
