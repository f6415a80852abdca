/* SPDX-License-Identifier: Apache-2.0 */

/*
 * echo_strip: reads the token ids that an engine was asked to put into an answer
 * (return_token_ids), and writes null in their place, which is what stands there when nobody asks.
 * Of a chat or completions answer, whole or as server-sent events, in pieces of any size; all other
 * bytes pass unchanged, and none is held back. Pure; one answer at a time.
 */
#ifndef ROUTER_PROMPT_ECHO_STRIP_H
#define ROUTER_PROMPT_ECHO_STRIP_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"

enum { ECHO_KEY_BYTES_MAX = 16 }; /* the longest that matters: prompt_token_ids */

/* Where bytes go, in order; of the piece being fed, or static. -errno stops. */
typedef int echo_out_fn(void *ctx, struct slice bytes);

/* The next id of the prompt. */
typedef void echo_id_fn(void *ctx, uint32_t id);

enum echo_ids {
    ECHO_IDS_NONE,  /* not seen yet */
    ECHO_IDS_BEGUN, /* being read */
    ECHO_IDS_WHOLE, /* on_id had all of them */
    ECHO_IDS_ODD,   /* what stands there are no ids */
};

struct echo_strip {
    enum echo_ids ids; /* the prompt's */
    bool is_sse;
    echo_out_fn *on_out;
    echo_id_fn *on_id;
    void *ctx;
    /* the rest is private to echo_strip.c */
    uint8_t state;
    uint8_t prefix_len; /* of "data:", at a line's start */
    uint8_t name;       /* of the value that is to come, if it matters */
    uint8_t key_len;
    bool is_key; /* the string being read may be a member's name */
    bool has_key;
    bool expects_key;
    bool is_escaped;
    bool in_choices;
    bool is_prompt; /* the ids being read are the prompt's */
    bool in_string; /* within what should be ids */
    bool has_digit;
    uint32_t depth;
    uint32_t ids_depth;
    uint64_t id;
    char key[ECHO_KEY_BYTES_MAX];
};

void echo_strip_init(struct echo_strip *strip, bool is_sse, echo_out_fn *on_out, echo_id_fn *on_id,
                     void *ctx);

/* The next bytes of the body. What on_out returned. */
MUST_CHECK int echo_strip_feed(struct echo_strip *strip, struct slice piece);

#endif
