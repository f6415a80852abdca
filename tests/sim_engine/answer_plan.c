/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/answer_plan.h"

#include <assert.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim_engine/json_text.h"
#include "tests/sim_engine/random.h"
#include "tests/sim_engine/tokenizer.h"

/*
 * DESIGN
 *
 * A word is a space and two to five letters, so it is exactly one piece of the tokenizer, and text
 * made of whole words re-tokenises to itself. One that is to tokenise otherwise has a word made of
 * two ids somewhere: all behind it lies one token further back than in the text's own ids, as where
 * real models spell a word in a way that their tokenizer would not. A tool call is a mark, the
 * name, then the arguments, which is also how chat_template renders it when it is sent back. A call
 * that does not fit into the tokens asked for is cut like any text, and shown as text.
 */

enum { WORD_BYTES_MAX = TOKENIZER_PIECE_BYTES_MAX, TEXT_BYTES_MAX = 1 << 30 };

/* " kalin" */
static struct slice make_word(char word[WORD_BYTES_MAX], uint64_t *random)
{
    static const char consonants[] = "bdfgklmnprstvz", vowels[] = "aeiou";
    size_t letter_count = 2 + random_below(random, WORD_BYTES_MAX - 2);

    word[0] = ' ';
    for (size_t i = 1; i <= letter_count; i++)
        word[i] = i % 2 == 1 ? consonants[random_below(random, sizeof consonants - 1)]
                             : vowels[random_below(random, sizeof vowels - 1)];
    return slice_of(word, letter_count + 1);
}

static void put_word(struct buf *text, uint64_t *random)
{
    char word[WORD_BYTES_MAX];

    text_put(text, make_word(word, random));
}

/* An id that stands for the text up to end. */
static void add_id(struct answer_plan *plan, uint32_t id, size_t end)
{
    token_list_append(&plan->ids, id);
    plan->ends = realloc(plan->ends, plan->ids.capacity * sizeof *plan->ends);
    assert(plan->ends != NULL);
    plan->ends[plan->ids.count - 1] = end;
}

/* The text that no id stands for yet. */
static struct slice new_text(const struct answer_plan *plan)
{
    size_t start = plan->ids.count == 0 ? 0 : plan->ends[plan->ids.count - 1];

    return slice_skip(buf_slice(&plan->text), start);
}

/* The ids of the text behind those already there. */
static void add_ids(struct answer_plan *plan)
{
    struct slice rest = new_text(plan);

    while (rest.len > 0) {
        struct slice piece = tokenizer_first_piece(rest);

        rest = slice_skip(rest, piece.len);
        add_id(plan, tokenizer_piece_id(piece), buf_len(&plan->text) - rest.len);
    }
}

static void add_mark(struct answer_plan *plan, enum token_mark mark)
{
    add_id(plan, mark, buf_len(&plan->text));
}

static void add_words(struct answer_plan *plan, size_t count, uint64_t *random)
{
    for (size_t i = 0; i < count; i++)
        put_word(&plan->text, random);
    add_ids(plan);
}

/* " kalin" as " k" and "alin". */
static void add_split_word(struct answer_plan *plan, uint64_t *random)
{
    struct slice word, head, tail;

    put_word(&plan->text, random);
    word = new_text(plan);
    head = slice_of(word.ptr, 2);
    tail = slice_skip(word, head.len);
    add_id(plan, tokenizer_piece_id(head), buf_len(&plan->text) - tail.len);
    add_id(plan, tokenizer_piece_id(tail), buf_len(&plan->text));
}

/* A value that schema would accept, by its type. */
static void put_argument(struct buf *text, struct json_value schema, uint64_t *random)
{
    struct slice type = json_string(json_get(schema, "type"));
    struct json_iterator choices = json_iterate(json_get(schema, "enum"));
    struct json_value first;

    if (json_next_element(&choices, &first))
        json_put_value(text, first);
    else if (slice_eq(type, SLICE("integer")))
        text_putf(text, "%u", 1 + (unsigned)random_below(random, 9));
    else if (slice_eq(type, SLICE("number")))
        text_putf(text, "%u.5", 1 + (unsigned)random_below(random, 9));
    else if (slice_eq(type, SLICE("boolean")))
        text_put(text, SLICE("true"));
    else if (slice_eq(type, SLICE("array")))
        text_put(text, SLICE("[]"));
    else if (slice_eq(type, SLICE("object")))
        text_put(text, SLICE("{}"));
    else {
        char word[WORD_BYTES_MAX];

        json_put_string(text, slice_skip(make_word(word, random), 1));
    }
}

static void put_arguments(struct buf *text, struct json_value function, uint64_t *random)
{
    struct json_value properties = json_get(json_get(function, "parameters"), "properties");
    struct json_iterator iterator = json_iterate(properties);
    struct json_member member;
    const char *comma = "";

    text_put(text, SLICE("{"));
    for (; json_next_member(&iterator, &member); comma = ", ") {
        text_putf(text, "%s", comma);
        json_put_string(text, member.key);
        text_put(text, SLICE(": "));
        put_argument(text, member.value, random);
    }
    text_put(text, SLICE("}"));
}

static void plan_tool_call(struct answer_plan *plan, const struct answer_wish *wish,
                           uint64_t *random)
{
    struct json_value function = json_get(wish->tool, "function");

    add_mark(plan, TOKEN_TOOL_CALL);
    text_put(&plan->text, json_string(json_get(function, "name")));
    add_ids(plan);
    plan->name_count = plan->ids.count;
    put_arguments(&plan->text, function, random);
    add_ids(plan);
    if (plan->ids.count > wish->token_count) {
        plan->ids.count = wish->token_count;
        plan->name_count = 0;
    }
}

static void plan_talk(struct answer_plan *plan, const struct answer_wish *wish, uint64_t *random)
{
    size_t left = wish->token_count;

    if (wish->thinks_first && left >= 8) {
        add_mark(plan, TOKEN_THINK_BEGIN);
        add_words(plan, left / 4, random);
        add_mark(plan, TOKEN_THINK_END);
        plan->reasoning_count = plan->ids.count;
        left -= plan->reasoning_count;
    }
    if (wish->splits_word && left >= 2) {
        size_t before = random_below(random, left - 1);

        add_words(plan, before, random);
        add_split_word(plan, random);
        left -= before + 2;
    }
    add_words(plan, left, random);
}

void answer_plan_init(struct answer_plan *plan, const struct answer_wish *wish)
{
    assert(wish->token_count > 0);

    uint64_t random = wish->seed;

    *plan = (struct answer_plan){0};
    buf_init(&plan->text, TEXT_BYTES_MAX);
    if (json_type(wish->tool) != JSON_NONE)
        plan_tool_call(plan, wish, &random);
    else
        plan_talk(plan, wish, &random);
    assert(plan->ids.count > 0);
}

static size_t start_of(const struct answer_plan *plan, size_t index)
{
    return index == 0 ? 0 : plan->ends[index - 1];
}

static enum answer_piece_kind kind_of(const struct answer_plan *plan, size_t index)
{
    if (start_of(plan, index) == plan->ends[index])
        return ANSWER_SILENT;
    if (index + 1 < plan->name_count)
        return ANSWER_SILENT;
    if (index + 1 == plan->name_count)
        return ANSWER_TOOL_NAME;
    if (plan->name_count > 0)
        return ANSWER_TOOL_ARGUMENTS;
    return index < plan->reasoning_count ? ANSWER_REASONING : ANSWER_CONTENT;
}

struct answer_piece answer_plan_piece(const struct answer_plan *plan, size_t index)
{
    assert(index < plan->ids.count);

    enum answer_piece_kind kind = kind_of(plan, index);
    size_t start = kind == ANSWER_TOOL_NAME ? 0 : start_of(plan, index);

    return (struct answer_piece){
        .kind = kind,
        .text = slice_of(plan->text.bytes + start, plan->ends[index] - start),
        .id = plan->ids.ids[index],
    };
}

struct slice answer_plan_text(const struct answer_plan *plan, enum answer_piece_kind kind,
                              size_t count)
{
    struct slice text = {NULL, 0};

    for (size_t i = 0; i < count; i++) {
        struct answer_piece piece = answer_plan_piece(plan, i);

        if (piece.kind != kind)
            continue;
        if (text.ptr == NULL)
            text.ptr = piece.text.ptr;
        text.len = (size_t)(piece.text.ptr - text.ptr) + piece.text.len;
    }
    return text;
}

void answer_plan_spoil(struct answer_plan *plan, size_t first)
{
    for (size_t i = start_of(plan, first); i < plan->ends[plan->ids.count - 1]; i++) {
        if (isalpha((unsigned char)plan->text.bytes[i]))
            plan->text.bytes[i] = 'X';
    }
}

bool answer_plan_is_tool_call(const struct answer_plan *plan)
{
    return plan->name_count > 0;
}

void answer_plan_release(struct answer_plan *plan)
{
    token_list_release(&plan->ids);
    buf_release(&plan->text);
    free(plan->ends);
    *plan = (struct answer_plan){0};
}
