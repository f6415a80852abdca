/* SPDX-License-Identifier: Apache-2.0 */

/*
 * answer_stream: reads an answer as it passes: usage and cached_tokens, how it ended, and the
 * assistant message hashed on as the next turn will send it back. Takes server-sent events or one
 * JSON body. Keeps no text: only the open block of its chain. Pure; loop thread of the exchange.
 */
#ifndef ROUTER_PROMPT_ANSWER_STREAM_H
#define ROUTER_PROMPT_ANSWER_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/json/json_scan.h"
#include "backends/runtime/slice.h"
#include "hashing/block_chain.h"
#include "router/api/api_request.h"
#include "router/prompt/value_stream.h"

enum {
    ANSWER_BLOCK_COUNT_MAX = 1024,     /* an answer longer than 256 KiB is learned up to there */
    ANSWER_RESPONSE_ID_BYTES_MAX = 128 /* longer ones are not remembered */
};

enum answer_event_kind {
    ANSWER_EVENT_CONTENT,    /* carries text, reasoning or a tool call: the first one ends TTFT */
    ANSWER_EVENT_USAGE_ONLY, /* "choices":[] with usage: what a client who did not ask must not see
                              */
    ANSWER_EVENT_DONE,       /* [DONE], response.completed or .incomplete, message_stop */
    ANSWER_EVENT_ERROR,      /* an error object in the stream, response.failed, an error event */
    ANSWER_EVENT_OTHER,      /* role chunk, finish chunk, ping, not understood */
};

struct answer_usage {
    bool is_known;
    bool has_cached;        /* the number of cached tokens was there */
    uint64_t prompt_tokens; /* of the whole prompt, cached or not, in every API */
    uint64_t completion_tokens;
    uint64_t cached_tokens;
};

struct answer_stream {
    enum api api;
    struct answer_usage usage;
    bool has_content;  /* something the client has waited for: text, reasoning, a tool call */
    bool has_finished; /* the engine said why it stopped: finish_reason, stop_reason, status */
    bool has_done;     /* the API's own last event was seen: [DONE]; response.completed,
                          .incomplete or .failed; message_stop */
    bool has_error;
    uint64_t error_code;      /* of that error, as an HTTP status; 0: it has none */
    bool has_sequence_number; /* responses, streamed: */
    uint64_t sequence_number; /* of the newest event; one that we append goes on counting */
    char response_id[ANSWER_RESPONSE_ID_BYTES_MAX + 1]; /* responses; "" until known, or too long */
    bool is_learnable;                                  /* one choice, understood so far */
    uint64_t event_count;
    struct block *blocks; /* that the answer closed, beyond the prompt's; heap, grown as needed */
    size_t block_count;
    struct block_chain chain;
    /* private to answer_stream*.c */
    bool is_full; /* the chain takes no more: what it holds so far is still right */
    bool is_closed;
    unsigned place;                /* enum answer_place: how far the message has come */
    uint32_t call_index;           /* of the tool call that is open (chat) */
    unsigned part;                 /* enum answer_part: the block or item that is open */
    bool is_part_new;              /* the next text begins a part of its own */
    uint64_t part_index;           /* of that block or item, as its events name it */
    uint64_t part_bytes;           /* that its deltas carried so far */
    struct value_stream arguments; /* of the call that is open (messages) */
};

/*
 * Continues from the end of a prompt's chain, which is copied; of request only plain fields are
 * read, so its scanner may be in other use. prompt_chain NULL: only usage and ends are read.
 */
void answer_stream_init(struct answer_stream *answer, const struct api_request *request,
                        const struct block_chain *prompt_chain);

/* One event's data, with JSON_PADDING readable bytes behind it. scanner is borrowed for the call.
 */
enum answer_event_kind answer_stream_event(struct answer_stream *answer,
                                           struct json_scanner *scanner, struct slice data);

/* A whole JSON answer that was not streamed. False: not understood. */
bool answer_stream_body(struct answer_stream *answer, struct json_scanner *scanner,
                        struct slice body);

/*
 * Call once, at the end. Closes the message as the next turn's prompt will hold it, and gives the
 * blocks beyond the prompt (an end node included where the message's end falls inside a block).
 * {NULL, 0} where the answer is not learnable. Valid until release.
 */
const struct block *answer_stream_finish(struct answer_stream *answer, size_t *block_count);

void answer_stream_release(struct answer_stream *answer);

#endif
