/* SPDX-License-Identifier: Apache-2.0 */

#include "router/prompt/token_anchor.h"

#include <assert.h>
#include <errno.h>

void token_anchor_maker_init(struct token_anchor_maker *maker, struct token_naming naming)
{
    assert(naming.block_tokens > 0 && naming.block_tokens <= TOKEN_ANCHOR_BLOCK_TOKENS_MAX);

    maker->naming = naming;
    maker->last = naming.root;
    maker->token_count = 0;
    maker->filled = 0;
    maker->before_tools = 0;
    maker->before_tools_block = 0;
}

/* Of the full blocks so far. */
static uint64_t last_block(const struct token_anchor_maker *maker)
{
    return maker->token_count >= maker->naming.block_tokens ? maker->last.low : 0;
}

bool token_anchor_maker_add(struct token_anchor_maker *maker, uint32_t id)
{
    const struct token_naming *naming = &maker->naming;

    if (maker->token_count == TOKEN_ANCHOR_COUNT_MAX)
        return false;
    if (naming->layout.has_mark && id == naming->layout.mark) {
        maker->before_tools = maker->token_count;
        maker->before_tools_block = last_block(maker);
    }
    maker->token_count++;
    maker->ids[maker->filled++] = id;
    if (maker->filled < naming->block_tokens)
        return true;
    maker->last = token_name_next(naming->secret, maker->last, maker->ids, maker->filled, 0);
    maker->filled = 0;
    return true;
}

void token_anchor_maker_finish(const struct token_anchor_maker *maker, struct token_anchor *anchor)
{
    anchor->token_count = maker->token_count;
    anchor->last_block = last_block(maker);
    anchor->before_tools = maker->before_tools;
    anchor->before_tools_block = maker->before_tools_block;
}

static int read_ids(const struct token_naming *naming, struct json_value ids,
                    struct token_anchor *anchor)
{
    struct token_anchor_maker maker;
    struct json_iterator elements = json_iterate(ids);
    struct json_value element;

    if (json_type(ids) != JSON_ARRAY)
        return -EPROTO;
    token_anchor_maker_init(&maker, *naming);
    while (json_next_element(&elements, &element)) {
        const int64_t id = json_int64(element);

        if (json_type(element) != JSON_INT64 || id < 0 || id > UINT32_MAX)
            return -EPROTO;
        if (!token_anchor_maker_add(&maker, (uint32_t)id))
            return -E2BIG;
    }
    token_anchor_maker_finish(&maker, anchor);
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
