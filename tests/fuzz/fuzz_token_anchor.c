/* SPDX-License-Identifier: Apache-2.0 */

/* The first byte is the block's size, the rest a reply or a body: whatever comes, it is refused, or
 * it gives a count and a name that go together. */
#include "router/prompt/token_anchor.h"
#include "tests/fuzz/fuzz_input.h"

#include <assert.h>
#include <errno.h>

static void check(int status, const struct token_naming *naming, const struct token_anchor *anchor)
{
    assert(status == 0 || status == -EPROTO || status == -E2BIG);
    if (status == 0)
        assert((anchor->last_block != 0) == (anchor->token_count >= naming->block_tokens));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t secret[DIGEST_SECRET_BYTES] = {1, 2, 3};
    struct token_naming naming = {
        secret, token_name_root(secret, NULL, 0, NULL, 0), 1, {TOOLS_BEHIND_LAST_USER, true, 7}};
    struct json_scanner *scanner;
    struct token_anchor anchor;
    char *text;

    if (size == 0)
        return 0;
    scanner = json_scanner_create();
    text = fuzz_padded(data + 1, size - 1, JSON_PADDING);
    naming.block_tokens = 1 + data[0] % 16u;
    check(token_anchor_read_reply(&naming, scanner, slice_of(text, size - 1), &anchor), &naming,
          &anchor);
    check(token_anchor_read_prompt(&naming, scanner, slice_of(text, size - 1), &anchor), &naming,
          &anchor);
    free(text);
    json_scanner_destroy(scanner);
    return 0;
}
