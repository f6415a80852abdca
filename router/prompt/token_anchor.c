/* SPDX-License-Identifier: Apache-2.0 */

#include "router/prompt/token_anchor.h"

#include <assert.h>
#include <errno.h>

/* The ids of the block being filled are all that is kept of them. */
struct block_in_making {
    const struct token_naming *naming;
    struct digest_128 last;
    uint32_t count;
    uint32_t ids[TOKEN_ANCHOR_BLOCK_TOKENS_MAX];
};

static bool take_id(struct block_in_making *block, struct json_value value)
{
    int64_t id = json_int64(value);

    if (json_type(value) != JSON_INT64 || id < 0 || id > UINT32_MAX)
        return false;
    block->ids[block->count++] = (uint32_t)id;
    if (block->count < block->naming->block_tokens)
        return true;
    block->last = token_name_next(block->naming->secret, block->last, block->ids, block->count, 0);
    block->count = 0;
    return true;
}

static int read_ids(const struct token_naming *naming, struct json_value ids,
                    struct token_anchor *anchor)
{
    struct block_in_making block = {.naming = naming, .last = naming->root};
    struct json_iterator elements = json_iterate(ids);
    struct json_value element;
    uint32_t count = 0;

    assert(naming->block_tokens > 0 && naming->block_tokens <= TOKEN_ANCHOR_BLOCK_TOKENS_MAX);

    if (json_type(ids) != JSON_ARRAY)
        return -EPROTO;
    while (json_next_element(&elements, &element)) {
        if (count == TOKEN_ANCHOR_COUNT_MAX)
            return -E2BIG;
        if (!take_id(&block, element))
            return -EPROTO;
        count++;
    }
    anchor->token_count = count;
    anchor->last_block = count >= naming->block_tokens ? block.last.low : 0;
    return 0;
}

/* The only one of an array, or the value itself. */
static struct json_value only_element(struct json_value value)
{
    struct json_iterator elements = json_iterate(value);
    struct json_value element = {0};

    if (json_type(value) != JSON_ARRAY)
        return value;
    return json_count(value) == 1 && json_next_element(&elements, &element)
               ? element
               : (struct json_value){0};
}

/* Of /tokenize: {"count": 3, "max_model_len": 4096, "tokens": [1, 2, 3]}; of .../render:
 * {"token_ids": [1, 2, 3], ...}, or for completions a list of such. */
static int read_reply(const struct token_naming *naming, struct json_value root,
                      struct token_anchor *anchor)
{
    struct json_value rendered = json_get(only_element(root), "token_ids");
    struct json_value count = json_get(root, "count");
    int status;

    if (json_type(rendered) != JSON_NONE)
        return read_ids(naming, rendered, anchor);
    status = read_ids(naming, json_get(root, "tokens"), anchor);
    if (status < 0)
        return status;
    /* Some engines send the ids alone. */
    return json_type(count) == JSON_NONE ||
                   (json_type(count) == JSON_INT64 && json_int64(count) == anchor->token_count)
               ? 0
               : -EPROTO;
}

/* "prompt": [1, 2, 3], or [[1, 2, 3]] */
static int read_prompt(const struct token_naming *naming, struct json_value root,
                       struct token_anchor *anchor)
{
    struct json_value prompt = json_get(root, "prompt"), first = {0};
    struct json_iterator elements = json_iterate(prompt);

    if (json_next_element(&elements, &first) && json_type(first) == JSON_ARRAY)
        return json_count(prompt) == 1 ? read_ids(naming, first, anchor) : -EPROTO;
    return read_ids(naming, prompt, anchor);
}

static int scan(struct json_scanner *scanner, struct slice text, struct json_value *root)
{
    struct parse_error error;
    int status = json_scan(scanner, text, root, &error);

    return status == -EINVAL ? -EPROTO : status;
}

int token_anchor_read_reply(const struct token_naming *naming, struct json_scanner *scanner,
                            struct slice text, struct token_anchor *anchor)
{
    struct json_value root;
    int status = scan(scanner, text, &root);

    if (status == 0)
        status = read_reply(naming, root, anchor);
    json_scanner_trim(scanner);
    return status;
}

int token_anchor_read_prompt(const struct token_naming *naming, struct json_scanner *scanner,
                             struct slice text, struct token_anchor *anchor)
{
    struct json_value root;
    int status = scan(scanner, text, &root);

    if (status == 0)
        status = read_prompt(naming, root, anchor);
    json_scanner_trim(scanner);
    return status;
}
