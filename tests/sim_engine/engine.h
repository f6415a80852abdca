/* SPDX-License-Identifier: Apache-2.0 */

/*
 * engine: what all requests of the process share: the model, the cache, the scheduler, the rules of
 * misbehaviour and the counts. It has no clock and no socket; whoever owns them wakes it.
 * Loop thread only.
 */
#ifndef TESTS_SIM_ENGINE_ENGINE_H
#define TESTS_SIM_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/json/json_scan.h"
#include "tests/sim_engine/engine_metrics.h"
#include "tests/sim_engine/engine_request.h"
#include "tests/sim_engine/options.h"

struct engine {
    struct options options;
    struct engine_model model;
    char today[sizeof "2026-11-29"]; /* what model.chat_template.date shows without --date */
    struct prefix_cache *cache;
    struct kv_event_log *events; /* NULL: none are wanted */
    struct scheduler *scheduler;
    struct json_scanner *scanner; /* one document at a time, within one callback */
    struct json_scanner *form_scanner;
    struct response_store *responses;
    struct fault_rule rules[OPTIONS_FAULT_COUNT_MAX];
    struct engine_counts counts;
    const struct connector_stats *connector; /* NULL: it has none */
    size_t active_count;                     /* generations in progress */
    uint64_t random;                         /* for ids */
    void (*wake)(void *ctx); /* something was added to the scheduler: sees that it steps */
    void *wake_ctx;
    void (*publish)(void *ctx); /* events may hold a batch: sees that it is taken */
    void *publish_ctx;
};

/* What a fault makes of a batch of events. */
enum batch_fate { BATCH_PUBLISHED, BATCH_DROPPED /* only replayed */, BATCH_LOST };

/* In place: the model's texts point into engine. seed: of what is random between two runs. */
void engine_init(struct engine *engine, const struct options *options, uint64_t seed);

/* Sees that the dated template writes the date of that time. */
void engine_set_time(struct engine *engine, uint64_t wall_ms);

/* Whether fault means this engine, once it listens. */
bool engine_is_aim(const struct engine *engine, const struct fault *fault);

/* Counts the batch that is to be published now. */
enum batch_fate engine_batch_fate(struct engine *engine);

/* Counts a message of the connector, and says whether a fault of that kind kills the engine now. */
bool engine_dies_at(struct engine *engine, enum fault_kind kind);

/* Whether a fault forbids to answer replay requests. */
bool engine_hides_replay(const struct engine *engine);

/* What reading a body takes. */
struct request_reader engine_reader(const struct engine *engine);

/* Every generation must be gone. */
void engine_release(struct engine *engine);

#endif
