/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/tokenizer.h"

#include <xxhash.h>

#include <assert.h>
#include <stdbool.h>

/*
 * DESIGN
 *
 * A piece is, longest first from the left: an optional space and a run of letters and digits, cut
 * at six bytes; or a run of blanks; or one other character. "answers, at once" is |answer|s|,| at|
 * once|: English comes out near four bytes a token, as with the usual vocabularies of real models.
 * Bytes above 127 count as letters and a character is never split.
 */

enum char_class { CLASS_WORD, CLASS_BLANK, CLASS_OTHER };

static enum char_class class_of(char c)
{
    unsigned char byte = (unsigned char)c;

    if (byte >= 128 || (byte >= '0' && byte <= '9') || ((byte | 32) >= 'a' && (byte | 32) <= 'z'))
        return CLASS_WORD;
    return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r' ? CLASS_BLANK : CLASS_OTHER;
}

static bool is_continuation(char c)
{
    return ((unsigned char)c & 0xc0) == 0x80;
}

/* How many bytes from start belong to a run of class, within the limit of a piece. */
static size_t run_end(struct slice text, size_t start, enum char_class class)
{
    size_t end = start;

    while (end < text.len && class_of(text.ptr[end]) == class &&
           (end < TOKENIZER_PIECE_BYTES_MAX || is_continuation(text.ptr[end])))
        end++;
    return end;
}

struct slice tokenizer_first_piece(struct slice text)
{
    assert(text.len > 0);

    bool has_space = text.ptr[0] == ' ' && text.len > 1 && class_of(text.ptr[1]) == CLASS_WORD;
    enum char_class class = class_of(text.ptr[has_space ? 1 : 0]);

    if (class == CLASS_OTHER)
        return slice_of(text.ptr, 1);
    if (class == CLASS_BLANK) {
        size_t end = run_end(text, 0, CLASS_BLANK);

        /* The last space before a word belongs to the word. */
        if (end > 1 && end < text.len && text.ptr[end - 1] == ' ' &&
            class_of(text.ptr[end]) == CLASS_WORD)
            end--;
        return slice_of(text.ptr, end);
    }
    return slice_of(text.ptr, run_end(text, has_space ? 1 : 0, CLASS_WORD));
}

uint32_t tokenizer_piece_id(struct slice piece)
{
    return (uint32_t)(XXH3_64bits(piece.ptr, piece.len) %
                      (TOKENIZER_VOCABULARY - TOKENIZER_SPECIAL_COUNT)) +
           TOKENIZER_SPECIAL_COUNT;
}

void tokenizer_encode(struct slice text, struct token_list *ids)
{
    while (text.len > 0) {
        struct slice piece = tokenizer_first_piece(text);

        token_list_append(ids, tokenizer_piece_id(piece));
        text = slice_skip(text, piece.len);
    }
}
