/* SPDX-License-Identifier: Apache-2.0 */

/*
 * request_record: what is known of one request at its end: one log line and the counters are made
 * from it, once. Holds no prompt text and no header value of a client but its request id.
 */
#ifndef ROUTER_REQUEST_RECORD_H
#define ROUTER_REQUEST_RECORD_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/http/http_message.h"
#include "backends/runtime/slice.h"
#include "router/metrics.h"

struct relay;

enum {
    REQUEST_ID_BYTES_MAX = 128,
    REQUEST_PATH_BYTES_MAX = 64,
    REQUEST_MODEL_BYTES_MAX = 96,
    ATTEMPT_ID_BYTES_MAX = REQUEST_ID_BYTES_MAX + 1 + 6,
};

struct request_record {
    uint64_t begun_us;    /* first byte of the request; 0: no request */
    uint64_t read_us;     /* its last byte */
    uint64_t parsed_us;   /* body understood */
    uint64_t sent_us;     /* to the worker that answered */
    uint64_t token_us;    /* first content of the answer */
    uint64_t connect_us;  /* spent connecting, all attempts */
    uint64_t overhead_us; /* our own part: read to sent, and answer head to answer head */
    enum api api;
    enum http_method method;
    int status; /* sent to the client; 0: none */
    enum end_reason end;
    enum abort_phase phase; /* where it ended, of aborts and faults */
    const char *error;      /* code of the error that we answered; NULL: none; borrowed */
    uint64_t bytes_in;
    uint64_t bytes_out;
    char request_id[REQUEST_ID_BYTES_MAX + 1];
    char path[REQUEST_PATH_BYTES_MAX + 1];

    /* Of requests to an engine. */
    bool is_relayed;
    const char *worker; /* name of the last one tried, NULL: none; borrowed */
    const char *policy;
    const char *anchor; /* what became of it; NULL: there is no map; a literal */
    enum route_rung rung;
    uint32_t attempt_count;
    uint32_t prompt_block_count;
    uint32_t matched_block_count;
    uint32_t claimed_block_count; /* of them, by the worker's agent */
    double predicted_ttft_ms;
    double predicted_cached_tokens;
    double claimed_tokens; /* of them, by an agent that is believed; the others are guessed */
    double cpu_tokens;     /* of them, to be brought from CPU memory */
    double ssd_tokens;     /* of them, to be brought from SSD */
    double move_ms;        /* that this is predicted to take */
    double prefill_ms;     /* that computing the rest is; 0: its policy does not predict */
    bool has_usage;
    bool has_cached;
    bool is_done_missing; /* the stream was whole but for its API's last event */
    uint64_t cached_tokens;
    uint64_t prompt_tokens;
    uint64_t completion_tokens;
    uint64_t event_count;
    char attempt_id[ATTEMPT_ID_BYTES_MAX + 1];
    char model[REQUEST_MODEL_BYTES_MAX + 1];
};

/* Takes the path of target without its query; longer ones are cut. */
void request_record_set_path(struct request_record *record, struct slice target);

/* Copies slice into a field of size bytes, cut where needed, with a NUL. */
void request_record_copy(char *field, size_t size, struct slice slice);

/* Writes the log line and counts; at the end of each request, once. */
void request_record_finish(struct request_record *record, struct relay *relay, uint64_t now_us);

#endif
