/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Any answer, whole (the first byte is even) or as a stream: how it is cut into pieces changes
 * nothing of what leaves or of the ids that are read; what has been stripped has nothing to strip;
 * and of a JSON document what leaves is one, without ids where they are looked for.
 */
#include "router/prompt/echo_strip.h"

#include "backends/json/json_scan.h"
#include "backends/runtime/buf.h"
#include "tests/fuzz/fuzz_input.h"

#include <assert.h>

struct world {
    struct buf out;
    uint64_t sum; /* of the ids */
    enum echo_ids ids;
};

static int on_out(void *ctx, struct slice bytes)
{
    struct world *world = ctx;

    assert(bytes.len > 0);
    return buf_append(&world->out, bytes);
}

static void on_id(void *ctx, uint32_t id)
{
    struct world *world = ctx;

    world->sum = (world->sum ^ id) * 1099511628211u + 1;
}

static void strip(struct world *world, struct slice text, bool is_sse, size_t step)
{
    struct echo_strip strip;

    *world = (struct world){.sum = 0};
    buf_init(&world->out, 1 << 24);
    echo_strip_init(&strip, is_sse, on_out, on_id, world);
    for (size_t at = 0; at < text.len; at += step) {
        size_t len = text.len - at < step ? text.len - at : step;
        char *piece = fuzz_padded((const uint8_t *)text.ptr + at, len, 0);
        int status = echo_strip_feed(&strip, slice_of(piece, len));

        assert(status == 0);
        free(piece);
    }
    world->ids = strip.ids;
}

static bool has_ids(struct json_value root)
{
    struct json_iterator choices = json_iterate(json_get(root, "choices"));
    struct json_value choice;
    bool has = json_type(json_get(root, "prompt_token_ids")) == JSON_ARRAY;

    while (json_type(json_get(root, "choices")) == JSON_ARRAY &&
           json_next_element(&choices, &choice))
        has |= json_type(json_get(choice, "token_ids")) == JSON_ARRAY ||
               json_type(json_get(choice, "prompt_token_ids")) == JSON_ARRAY;
    return has;
}

static void check_document(struct slice before, struct slice after)
{
    struct json_scanner *scanner = json_scanner_create();
    struct json_value root;
    struct parse_error error;

    assert(scanner != NULL);
    if (json_scan_copy(scanner, before, &root, &error) == 0 && json_type(root) == JSON_OBJECT &&
        (before.len == 0 || memchr(before.ptr, '\\', before.len) == NULL)) {
        assert(json_scan_copy(scanner, after, &root, &error) == 0);
        assert(!has_ids(root));
    }
    json_scanner_destroy(scanner);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct slice text = slice_of(data + 1, size > 0 ? size - 1 : 0);
    struct world whole, pieces, again;
    bool is_sse;

    if (size < 2)
        return 0;
    is_sse = (data[0] & 1) != 0;
    strip(&whole, text, is_sse, text.len);
    strip(&pieces, text, is_sse, 1 + data[0] / 2 % 16);
    strip(&again, buf_slice(&whole.out), is_sse, text.len + 4);
    assert(slice_eq(buf_slice(&whole.out), buf_slice(&pieces.out)));
    assert(whole.sum == pieces.sum && whole.ids == pieces.ids);
    assert(slice_eq(buf_slice(&whole.out), buf_slice(&again.out)) && again.ids == ECHO_IDS_NONE);
    if (!is_sse)
        check_document(text, buf_slice(&whole.out));
    buf_release(&whole.out);
    buf_release(&pieces.out);
    buf_release(&again.out);
    return 0;
}
