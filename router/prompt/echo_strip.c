/* SPDX-License-Identifier: Apache-2.0 */

#include "router/prompt/echo_strip.h"

#include <string.h>

/*
 * DESIGN
 *
 *   {"id": ..., "prompt_token_ids": [1,2,3], "choices": [{"token_ids": [4], ...}], ...}
 *    depth 1                                             depth 3
 *
 * Only these places matter: members of the outermost object, and of the elements of its "choices".
 * Knowing them takes a depth and the last key, so the answer is walked byte by byte, without being
 * parsed or kept: a first event may carry a hundred thousand ids. Whether a value is taken out is
 * known when its '[' comes, so nothing is ever held back. An engine that does not ask for them
 * writes null there, and so does this: other members, commas and all, stay as they are.
 *
 * It never looks at whether the answer is JSON. What is not, passes; a line's end in a stream,
 * where none may be inside an event's data, begins anew. Keys that are written with escapes are
 * none.
 */
enum state {
    STATE_LINE,   /* of a stream: at a line's start, prefix_len bytes into "data:" */
    STATE_REST,   /* until the line's end, or of a whole answer, for good */
    STATE_BEFORE, /* the document's '{' is to come */
    STATE_DOC,
    STATE_STRING,
    STATE_IDS, /* being taken out */
};

enum name { NAME_OTHER, NAME_CHOICES, NAME_PROMPT_IDS, NAME_IDS };

enum { DEPTH_ANSWER = 1, DEPTH_CHOICES = 2, DEPTH_CHOICE = 3 };

static const char data_prefix[] = "data:";
#define NOTHING SLICE("null")

void echo_strip_init(struct echo_strip *strip, bool is_sse, echo_out_fn *on_out, echo_id_fn *on_id,
                     void *ctx)
{
    *strip = (struct echo_strip){.is_sse = is_sse,
                                 .on_out = on_out,
                                 .on_id = on_id,
                                 .ctx = ctx,
                                 .state = is_sse ? STATE_LINE : STATE_BEFORE};
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* ---- the ids ---- */

static void begin_ids(struct echo_strip *strip)
{
    strip->state = STATE_IDS;
    strip->is_prompt = strip->name == NAME_PROMPT_IDS && strip->ids == ECHO_IDS_NONE;
    strip->name = NAME_OTHER;
    strip->ids_depth = 1;
    strip->in_string = false;
    strip->has_digit = false;
    if (strip->is_prompt)
        strip->ids = ECHO_IDS_BEGUN;
}

static void spoil_ids(struct echo_strip *strip)
{
    if (strip->is_prompt)
        strip->ids = ECHO_IDS_ODD;
}

static void take_digit(struct echo_strip *strip, char digit)
{
    strip->id = (strip->has_digit ? strip->id * 10 : 0) + (uint64_t)(digit - '0');
    strip->has_digit = true;
    if (strip->id <= UINT32_MAX)
        return;
    strip->id = 0;
    spoil_ids(strip);
}

static void end_id(struct echo_strip *strip)
{
    if (strip->has_digit && strip->is_prompt && strip->ids == ECHO_IDS_BEGUN)
        strip->on_id(strip->ctx, (uint32_t)strip->id);
    strip->has_digit = false;
}

/* Of a string that should not be there: only its end matters. */
static void skip_string(struct echo_strip *strip, char c)
{
    if (strip->is_escaped)
        strip->is_escaped = false;
    else if (c == '\\')
        strip->is_escaped = true;
    else if (c == '"')
        strip->in_string = false;
}

static void close_ids(struct echo_strip *strip)
{
    end_id(strip);
    if (--strip->ids_depth > 0)
        return;
    strip->state = STATE_DOC;
    if (strip->is_prompt && strip->ids == ECHO_IDS_BEGUN)
        strip->ids = ECHO_IDS_WHOLE;
}

static void walk_ids(struct echo_strip *strip, char c)
{
    if (strip->in_string) {
        skip_string(strip, c);
    } else if (c >= '0' && c <= '9') {
        take_digit(strip, c);
    } else if (c == ']') {
        close_ids(strip);
    } else if (c == ',' || is_space(c)) {
        end_id(strip);
    } else {
        spoil_ids(strip);
        strip->ids_depth += c == '[';
        strip->in_string = c == '"';
        strip->is_escaped = false;
    }
}

/* ---- the document ---- */

static bool are_keys_read(const struct echo_strip *strip)
{
    return strip->depth == DEPTH_ANSWER || (strip->depth == DEPTH_CHOICE && strip->in_choices);
}

static bool is_key(const struct echo_strip *strip, const char *text)
{
    return strip->key_len == strlen(text) && memcmp(strip->key, text, strip->key_len) == 0;
}

static enum name name_of(const struct echo_strip *strip)
{
    if (!strip->has_key || !are_keys_read(strip))
        return NAME_OTHER;
    if (is_key(strip, "prompt_token_ids"))
        return NAME_PROMPT_IDS;
    if (strip->depth == DEPTH_CHOICE)
        return is_key(strip, "token_ids") ? NAME_IDS : NAME_OTHER;
    return is_key(strip, "choices") ? NAME_CHOICES : NAME_OTHER;
}

static void open_nest(struct echo_strip *strip, char c)
{
    strip->depth++;
    if (strip->depth == DEPTH_CHOICES)
        strip->in_choices = c == '[' && strip->name == NAME_CHOICES;
    strip->expects_key = c == '{';
    strip->has_key = false;
    strip->name = NAME_OTHER;
}

static void close_nest(struct echo_strip *strip)
{
    strip->depth--;
    strip->expects_key = false;
    strip->name = NAME_OTHER;
    if (strip->depth == 0)
        strip->state = STATE_REST;
}

static void begin_string(struct echo_strip *strip)
{
    strip->state = STATE_STRING;
    strip->is_escaped = false;
    strip->is_key = strip->expects_key && are_keys_read(strip);
    strip->key_len = 0;
    strip->name = NAME_OTHER;
}

static void walk_doc(struct echo_strip *strip, char c)
{
    if (c == '[' && (strip->name == NAME_PROMPT_IDS || strip->name == NAME_IDS)) {
        begin_ids(strip);
    } else if (c == '{' || c == '[') {
        open_nest(strip, c);
    } else if (c == '}' || c == ']') {
        close_nest(strip);
    } else if (c == '"') {
        begin_string(strip);
    } else if (c == ':') {
        strip->name = (uint8_t)name_of(strip);
        strip->has_key = false;
        strip->expects_key = false;
    } else if (c == ',') {
        strip->expects_key = true; /* in an array no ':' follows, so it is never one */
        strip->has_key = false;
        strip->name = NAME_OTHER;
    } else if (!is_space(c)) {
        strip->name = NAME_OTHER;
    }
}

static void walk_string(struct echo_strip *strip, char c)
{
    if (strip->is_escaped) {
        strip->is_escaped = false;
    } else if (c == '"') {
        strip->state = STATE_DOC;
        strip->has_key = strip->is_key;
        return;
    } else if (c == '\\') {
        strip->is_escaped = true;
        strip->is_key = false;
    }
    if (strip->is_key && strip->key_len < ECHO_KEY_BYTES_MAX)
        strip->key[strip->key_len++] = c;
    else
        strip->is_key = false;
}

/* ---- lines ---- */

static void walk_line(struct echo_strip *strip, char c)
{
    if (c != data_prefix[strip->prefix_len]) {
        strip->state = STATE_REST;
        return;
    }
    strip->prefix_len++;
    if (data_prefix[strip->prefix_len] == '\0')
        strip->state = STATE_BEFORE;
}

static void walk_before(struct echo_strip *strip, char c)
{
    if (c == '{') {
        strip->state = STATE_DOC;
        strip->depth = 0;
        strip->in_choices = false;
        open_nest(strip, c);
    } else if (!is_space(c)) {
        strip->state = STATE_REST;
    }
}

static void walk(struct echo_strip *strip, char c)
{
    if (strip->is_sse && (c == '\n' || c == '\r')) {
        if (strip->state == STATE_IDS)
            spoil_ids(strip);
        strip->state = STATE_LINE;
        strip->prefix_len = 0;
        return;
    }
    switch (strip->state) {
    case STATE_LINE:
        walk_line(strip, c);
        break;
    case STATE_BEFORE:
        walk_before(strip, c);
        break;
    case STATE_DOC:
        walk_doc(strip, c);
        break;
    case STATE_STRING:
        walk_string(strip, c);
        break;
    case STATE_IDS:
        walk_ids(strip, c);
        break;
    default:
        break;
    }
}

static int pass(struct echo_strip *strip, struct slice bytes)
{
    return bytes.len > 0 ? strip->on_out(strip->ctx, bytes) : 0;
}

int echo_strip_feed(struct echo_strip *strip, struct slice piece)
{
    size_t from = 0; /* what has not left yet */
    int status = 0;

    for (size_t i = 0; i < piece.len && status == 0; i++) {
        const bool was_out = strip->state == STATE_IDS;

        walk(strip, piece.ptr[i]);
        if (!was_out && strip->state == STATE_IDS) {
            status = pass(strip, slice_of(piece.ptr + from, i - from));
            if (status == 0)
                status = pass(strip, NOTHING);
        } else if (was_out) {
            /* the ']' goes with the ids; a line's end that cut them short does not */
            from = strip->state == STATE_LINE ? i : i + 1;
        }
    }
    if (status == 0 && strip->state != STATE_IDS)
        status = pass(strip, slice_skip(piece, from));
    return status;
}
