/* SPDX-License-Identifier: Apache-2.0 */

#include "router/prompt/answer_stream_parts.h"

#include <errno.h>
#include <stdlib.h>

/*
 * DESIGN
 *
 * The message is written as prompt_stream will write it: head, reasoning, content, calls. What
 * comes in another order is no prefix of that, so it ends learning.
 */
enum { BLOCK_COUNT_FIRST = 8 };

static int reserve_blocks(void *ctx, size_t block_count)
{
    struct answer_stream *answer = ctx;
    struct block_chain *chain = &answer->chain;
    size_t doubled = 2 * chain->block_count_max;
    size_t count = block_count > doubled ? block_count : doubled;
    struct block *blocks;

    count = count > BLOCK_COUNT_FIRST ? count : BLOCK_COUNT_FIRST;
    count = count < ANSWER_BLOCK_COUNT_MAX ? count : ANSWER_BLOCK_COUNT_MAX;
    if (count <= chain->block_count_max)
        return 0; /* at the limit: the chain will say so */
    blocks = realloc(answer->blocks, count * sizeof *blocks);
    if (blocks == NULL)
        return -ENOMEM;
    answer->blocks = chain->blocks = blocks;
    chain->block_count_max = count;
    return 0;
}

static struct prompt_writer writer_of(struct answer_stream *answer)
{
    return (struct prompt_writer){&answer->chain, reserve_blocks, answer, 0};
}

bool answer_is_writing(const struct answer_stream *answer)
{
    return answer->is_learnable && !answer->is_full;
}

/* Brings the message to place; its first step writes the head. */
static void move_to(struct answer_stream *answer, struct prompt_writer *writer,
                    enum answer_place place)
{
    if (answer->place == PLACE_START)
        prompt_write_field(writer, TAG_MESSAGE, SLICE("assistant"));
    answer->place = place;
}

bool answer_add_text(struct answer_stream *answer, enum answer_place place, struct slice text)
{
    struct prompt_writer writer = writer_of(answer);

    if (text.len == 0)
        return false;
    answer->is_learnable = answer->is_learnable && answer->place <= place;
    if (!answer_is_writing(answer))
        return true;
    if (answer->place < place || answer->is_part_new) {
        move_to(answer, &writer, place);
        prompt_write_tag(&writer, place == PLACE_REASONING ? TAG_REASONING : TAG_TEXT);
        answer->is_part_new = false;
    }
    prompt_write_text(&writer, text);
    answer->is_full = writer.status < 0;
    return true;
}

void answer_open_call(struct answer_stream *answer, const struct answer_call *call)
{
    struct prompt_writer writer = writer_of(answer);

    if (!answer_is_writing(answer))
        return;
    move_to(answer, &writer, PLACE_CALLS);
    prompt_write_field(&writer, TAG_CALL, call->id);
    prompt_write_field(&writer, TAG_NAME, call->space);
    if (call->space.len > 0)
        prompt_write_text(&writer, SLICE("__"));
    prompt_write_text(&writer, call->name);
    prompt_write_tag(&writer, call->tag);
    value_stream_init(&answer->arguments);
    answer->is_full = writer.status < 0;
}

void answer_add_more(struct answer_stream *answer, struct slice text)
{
    struct prompt_writer writer = writer_of(answer);

    if (!answer_is_writing(answer))
        return;
    prompt_write_text(&writer, text);
    answer->is_full = writer.status < 0;
}

void answer_add_value_text(struct answer_stream *answer, struct slice text)
{
    struct prompt_writer writer = writer_of(answer);

    if (!answer_is_writing(answer))
        return;
    if (!value_stream_feed(&answer->arguments, &writer, text))
        answer->is_learnable = false;
    answer->is_full = writer.status < 0;
}

void answer_end_value(struct answer_stream *answer)
{
    struct prompt_writer writer = writer_of(answer);

    if (!answer_is_writing(answer))
        return;
    if (answer->part_bytes == 0)
        (void)value_stream_feed(&answer->arguments, &writer, SLICE("{}"));
    if (!value_stream_end(&answer->arguments, &writer))
        answer->is_learnable = false;
    answer->is_full = writer.status < 0;
}

void answer_add_value(struct answer_stream *answer, struct json_value value)
{
    struct prompt_writer writer = writer_of(answer);

    if (!answer_is_writing(answer))
        return;
    prompt_write_value(&writer, value);
    answer->is_full = writer.status < 0;
}

void answer_close(struct answer_stream *answer)
{
    struct prompt_writer writer = writer_of(answer);

    if (answer->api != API_COMPLETIONS) {
        move_to(answer, &writer, answer->place);
        prompt_write_end(&writer);
    }
    answer->block_count = prompt_write_tail(&writer);
}
