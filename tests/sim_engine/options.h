/* SPDX-License-Identifier: Apache-2.0 */

/* options: what samovar-sim is told on its command line, from one table. Pure but for the text that
 * options_parse() borrows from argv. */
#ifndef TESTS_SIM_ENGINE_OPTIONS_H
#define TESTS_SIM_ENGINE_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"
#include "tests/sim_engine/chat_template.h"
#include "tests/sim_engine/engine_request.h"
#include "tests/sim_engine/fault.h"
#include "tests/sim_engine/kv_event_log.h"

enum { OPTIONS_FAULT_COUNT_MAX = 16 };

struct options {
    const char *host;
    double port; /* 0: any free one; once it listens: that one */
    const char *model;
    const char *loras[ENGINE_LORA_COUNT_MAX];
    size_t lora_count;
    const char *date; /* of the dated template; "": today */
    const char *template_name;
    enum chat_habit habit; /* = template_name */
    double blocks;
    double block_size;
    double max_model_len; /* 0: as many as the cache holds */
    double max_running;
    double prefill_tps;
    double decode_ms;
    double decode_ms_per_request;
    double speedup;
    double seed;
    double retokenise; /* percent of answers that tokenise otherwise than they were made */
    double day_s;
    const char *kv_events; /* where KV events are published; "": nowhere */
    const char *kv_replay; /* where replays are asked for; "": nowhere */
    const char *kv_topic;
    double kv_buffer_steps;
    const char *kv_dialect_name;
    enum kv_dialect kv_dialect; /* = kv_dialect_name */
    const char *kv_hashes_name;
    enum kv_hash_form kv_hash_form; /* = kv_hashes_name */
    const char *connector;          /* the agent's socket; "": no connector */
    const char *connector_worker;
    double connector_lookup_ms;
    double page_bytes;
    double stored_responses;
    double keep_alive_ms;
    struct fault faults[OPTIONS_FAULT_COUNT_MAX];
    size_t fault_count;
};

enum options_verdict { OPTIONS_RUN, OPTIONS_HELP, OPTIONS_VERSION, OPTIONS_WRONG };

/* Fills options with defaults and arguments. OPTIONS_WRONG: message says what is wrong. */
MUST_CHECK enum options_verdict options_parse(int argc, char **argv, struct options *options,
                                              char *message, size_t message_size);

/* Prints the table and the faults. */
void options_print_help(void);

#endif
