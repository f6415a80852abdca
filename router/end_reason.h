/* SPDX-License-Identifier: Apache-2.0 */

/*
 * end_reason: how an exchange ended, as one word for the log line, the metrics and the tests. Every
 * exchange ends with exactly one of them. Pure; any thread.
 */
#ifndef ROUTER_END_REASON_H
#define ROUTER_END_REASON_H

/* row(constant, name, meaning) */
/* clang-format off */
#define END_REASON_ROWS(row)                                                                       \
    row(END_OK, "ok", "the whole answer was sent, whatever its status")                            \
    row(END_CLIENT_ABORT, "client_abort", "the client left before the answer's end")               \
    row(END_CLIENT_TIMEOUT, "client_timeout", "the client sent or read too slowly")                \
    row(END_CLIENT_ERROR, "client_error", "the request was wrong: answered 4xx by us")             \
    row(END_CONNECT_FAILED, "connect_failed", "no worker that was tried took a connection")        \
    row(END_UPSTREAM_CLOSED, "upstream_closed", "the worker closed before the first byte")         \
    row(END_UPSTREAM_TRUNCATED, "upstream_truncated", "the answer broke off in the middle")        \
    row(END_UPSTREAM_TIMEOUT, "upstream_timeout", "the worker was silent for too long")            \
    row(END_UPSTREAM_PROTOCOL, "upstream_protocol", "the worker's answer was not HTTP")            \
    row(END_REFUSED, "refused", "no worker may serve it: answered 503, or 502 where two died of it") \
    row(END_OVERLOADED, "overloaded", "a limit of ours was reached: 429 or 503")                   \
    row(END_DRAINED, "drained", "cut at the end of the drain")                                     \
    row(END_INTERNAL, "internal", "a fault of ours, or no memory")
/* clang-format on */

enum end_reason {
#define END_REASON_CONSTANT(constant, name, meaning) constant,
    END_REASON_ROWS(END_REASON_CONSTANT)
#undef END_REASON_CONSTANT
        END_REASON_COUNT
};

/* "ok", "client_abort", ... */
const char *end_reason_name(enum end_reason reason);

/* One line for people. */
const char *end_reason_meaning(enum end_reason reason);

#endif
