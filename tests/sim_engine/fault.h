/* SPDX-License-Identifier: Apache-2.0 */

/*
 * fault: how the engine misbehaves on demand: what it does, and to which requests. Parsed from
 *
 *     KIND[=ARG][,how=fin|rst][,path=PREFIX][,port=N][,every=N|nth=N|p=SHARE][,when=stream|plain]
 *
 * of --fault (a rule for all requests) or the header x-sim-fault (for one; there port says which of
 * the engines behind a router is meant). The kinds that begin with kv are of published batches
 * instead of requests, and those that begin with kill of what the connector sends: only --fault has
 * them. Pure.
 */
#ifndef TESTS_SIM_ENGINE_FAULT_H
#define TESTS_SIM_ENGINE_FAULT_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "backends/runtime/parse_error.h"
#include "backends/runtime/slice.h"

/* Rows in alphabetical order: kind, name, argument, help. */
#define FAULT_KINDS(ROW)                                                                           \
    ROW(FAULT_BAD_HEAD, "bad_head", FAULT_ARG_NONE, "answer with bytes that are no HTTP")          \
    ROW(FAULT_CLOSE_AFTER_REQUEST, "close_after_request", FAULT_ARG_NONE,                          \
        "read the request, then close without a byte")                                             \
    ROW(FAULT_DIE_AT_BYTE, "die_at_byte", FAULT_ARG_COUNT,                                         \
        "close after that many bytes of the answer, head included")                                \
    ROW(FAULT_DIE_AT_EVENT, "die_at_event", FAULT_ARG_COUNT,                                       \
        "close after that many events; a plain answer is cut in its body")                         \
    ROW(FAULT_EXIT, "exit", FAULT_ARG_NONE, "read the request, then end the process (_exit 1)")    \
    ROW(FAULT_HANG, "hang", FAULT_ARG_NONE, "read the request, then never answer")                 \
    ROW(FAULT_HANG_AT_EVENT, "hang_at_event", FAULT_ARG_COUNT,                                     \
        "send nothing more after that many events")                                                \
    ROW(FAULT_KILL_AT_LOAD, "kill_at_load", FAULT_ARG_NONE,                                        \
        "kill -9 of itself when it has asked for a load, before it is done")                       \
    ROW(FAULT_KILL_AT_LOOKUP, "kill_at_lookup", FAULT_ARG_NONE,                                    \
        "kill -9 of itself when it has asked what could be loaded")                                \
    ROW(FAULT_KILL_AT_SAVE, "kill_at_save", FAULT_ARG_NONE,                                        \
        "kill -9 of itself when it has offered blocks, before they are saved")                     \
    ROW(FAULT_KV_DROP, "kv_drop", FAULT_ARG_NONE,                                                  \
        "do not publish that batch of KV events; a replay has it")                                 \
    ROW(FAULT_KV_DROP_HARD, "kv_drop_hard", FAULT_ARG_NONE,                                        \
        "do not publish that batch of KV events; no replay has it")                                \
    ROW(FAULT_KV_NO_REPLAY, "kv_no_replay", FAULT_ARG_NONE,                                        \
        "never answer a request to replay KV events")                                              \
    ROW(FAULT_NO_DONE, "no_done", FAULT_ARG_NONE, "end the stream without [DONE]")                 \
    ROW(FAULT_NO_USAGE, "no_usage", FAULT_ARG_NONE, "leave usage out, asked for or not")           \
    ROW(FAULT_RESET, "reset", FAULT_ARG_NONE, "reset the connection as soon as the head is read")  \
    ROW(FAULT_SLOW, "slow", FAULT_ARG_COUNT, "that many ms between events, or before the answer")  \
    ROW(FAULT_STATUS, "status", FAULT_ARG_STATUS,                                                  \
        "answer 400, 429, 500 or 503 with an error body; 429 and 503 say Retry-After: 1")

enum fault_kind {
#define FAULT_ENUM(kind, name, arg, help) kind,
    FAULT_KINDS(FAULT_ENUM)
#undef FAULT_ENUM
        FAULT_KIND_COUNT
};

enum fault_which { FAULT_ALWAYS, FAULT_EVERY, FAULT_NTH, FAULT_SHARE };
enum fault_when { FAULT_WHEN_ANY, FAULT_WHEN_STREAM, FAULT_WHEN_PLAIN };

struct fault {
    enum fault_kind kind;
    uint64_t arg;   /* of kinds that have one */
    bool by_reset;  /* how=rst: end the connection by RST instead of FIN */
    char path[128]; /* only requests whose target begins so; "": all */
    uint16_t port;  /* only the engine that listens there; 0: each */
    enum fault_which which;
    uint64_t number; /* of FAULT_EVERY and FAULT_NTH; >= 1 */
    double share;    /* of FAULT_SHARE, in [0, 1] */
    enum fault_when when;
};

/* A fault and how many requests have come by that it could hit. */
struct fault_rule {
    struct fault fault;
    uint64_t seen_count;
    uint64_t random;
};

/* -EINVAL: error says where and why. */
MUST_CHECK int fault_parse(struct slice spec, struct fault *fault, struct parse_error *error);

/* Counts a request to target and says whether the rule hits it. */
bool fault_rule_hits(struct fault_rule *rule, struct slice target, bool is_stream);

/* It hits batches of KV events or messages of the connector, never a request. */
bool fault_is_inner(enum fault_kind kind);

/* Counts a batch or message, and says whether the rule, which is of such, hits it. */
bool fault_rule_hits_inner(struct fault_rule *rule);

/* "bad_head" for FAULT_BAD_HEAD. */
const char *fault_name(enum fault_kind kind);

/* The kinds, one a line, for --help. */
const char *fault_help(void);

#endif
