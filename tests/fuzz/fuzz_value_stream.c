/* SPDX-License-Identifier: Apache-2.0 */

/* A value whose text comes in pieces has the name of the whole one: the first byte is the length of
 * the pieces, the rest a text. What json_scan takes, value_stream takes too, unless it is deeper.
 */
#include "router/prompt/value_stream.h"
#include "tests/fuzz/fuzz_input.h"

#include <assert.h>
#include <errno.h>

enum { BLOCK_COUNT_MAX = 4096 };

struct naming {
    struct block blocks[BLOCK_COUNT_MAX];
    struct block_chain chain;
    struct prompt_writer writer;
};

static int reserve_blocks(void *ctx, size_t block_count)
{
    (void)ctx;
    return block_count <= BLOCK_COUNT_MAX ? 0 : -ENOBUFS;
}

static void begin(struct naming *naming)
{
    static const uint8_t secret[BLOCK_CHAIN_SECRET_BYTES] = {1, 2, 3};

    block_chain_init(&naming->chain, (struct block_chain_config){secret, 256, 64}, 7,
                     naming->blocks, BLOCK_COUNT_MAX);
    naming->writer = (struct prompt_writer){&naming->chain, reserve_blocks, NULL, 0};
}

static uint64_t end(struct naming *naming)
{
    size_t count = prompt_write_tail(&naming->writer);

    return count == 0 ? 0 : naming->blocks[count - 1].hash;
}

static bool name_pieces(struct naming *naming, struct slice text, size_t step)
{
    struct value_stream stream;
    bool is_fine = true;

    begin(naming);
    value_stream_init(&stream);
    while (text.len > 0 && is_fine) {
        size_t len = text.len < step ? text.len : step;

        is_fine = value_stream_feed(&stream, &naming->writer, slice_of(text.ptr, len));
        text = slice_skip(text, len);
    }
    return value_stream_end(&stream, &naming->writer) && is_fine;
}

static void check(struct slice text, struct json_value root, size_t step)
{
    static struct naming whole, pieces; /* large */
    bool is_value = name_pieces(&pieces, text, step);
    uint64_t name = end(&pieces);

    begin(&whole);
    prompt_write_value(&whole.writer, root);
    if (is_value && whole.writer.status == 0 && pieces.writer.status == 0)
        assert(name == end(&whole));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct json_scanner *scanner = json_scanner_create();
    struct parse_error error;
    struct json_value root;
    char *text;

    if (size > 1) {
        text = fuzz_padded(data + 1, size - 1, JSON_PADDING);
        if (json_scan(scanner, slice_of(text, size - 1), &root, &error) == 0)
            check(slice_of(text, size - 1), root, 1 + data[0] % 16);
        free(text);
    }
    json_scanner_destroy(scanner);
    return 0;
}
