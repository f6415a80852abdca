/* SPDX-License-Identifier: Apache-2.0 */

/*
 * generation: the making of one answer: a sequence in the scheduler for each prompt and choice, and
 * the events or the body that come of their tokens. Knows nothing of sockets. Loop thread only.
 */
#ifndef TESTS_SIM_ENGINE_GENERATION_H
#define TESTS_SIM_ENGINE_GENERATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/slice.h"
#include "tests/sim_engine/answer_family.h"
#include "tests/sim_engine/engine_request.h"
#include "tests/sim_engine/scheduler.h"

struct generation;
struct response_store;

struct generation_config {
    struct scheduler *scheduler;
    struct slice id;     /* of the answer; copied */
    uint64_t created_s;  /* Unix time */
    uint64_t seed;       /* of the engine */
    uint32_t block_size; /* of its cache */
    double split_share;  /* of answers that tokenise otherwise than they were made, in [0, 1] */
    bool thinks_first;   /* answers in conversations begin with reasoning */
    bool hides_usage;
    bool hides_done; /* no [DONE], or what its family has instead */
};

/* Called while the scheduler steps. May destroy nothing. */
struct generation_callbacks {
    void (*on_event)(void *ctx, struct slice event); /* of a stream, each one */
    void (*on_end)(void *ctx, struct slice body);    /* complete; body is empty for a stream */
};

/* Takes request over and queues its sequences. */
struct generation *generation_create(const struct generation_config *config,
                                     struct engine_request *request,
                                     const struct generation_callbacks *callbacks, void *ctx);

/* Tells what comes before any token; on_event is called from within. */
void generation_open(struct generation *generation);

/* For the scheduler's on_token: hands the token to the generation of sequence. */
void generation_on_token(struct sequence *sequence, bool is_last);

bool generation_is_done(const struct generation *generation);
bool generation_is_stream(const struct generation *generation);
const char *generation_finish_reason(const struct generation *generation);
struct answer_usage generation_usage(const struct generation *generation);

/* Keeps a done answer for later requests, if its request wants that. */
void generation_store(const struct generation *generation, struct response_store *store);

/* Takes what is unfinished out of the scheduler. NULL is fine. */
void generation_destroy(struct generation *generation);

#endif
