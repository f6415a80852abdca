/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/answer_registry.h"

#include <assert.h>

#include "tests/sim_engine/chat_answer.h"
#include "tests/sim_engine/messages_answer.h"
#include "tests/sim_engine/pooling_answer.h"
#include "tests/sim_engine/responses_answer.h"

const struct answer_family *answer_family_of(enum engine_api api)
{
    static const struct answer_family *const families[ENGINE_API_COUNT] = {
        [ENGINE_CHAT] = &chat_family,          [ENGINE_COMPLETIONS] = &chat_family,
        [ENGINE_EMBEDDINGS] = &pooling_family, [ENGINE_MESSAGES] = &messages_family,
        [ENGINE_RERANK] = &pooling_family,     [ENGINE_RESPONSES] = &responses_family,
        [ENGINE_SCORE] = &pooling_family,
    };

    assert(families[api] != NULL);
    return families[api];
}

const char *answer_id_prefix(enum engine_api api)
{
    switch (api) {
    case ENGINE_CHAT:
    case ENGINE_MESSAGES:
        return "chatcmpl-";
    case ENGINE_EMBEDDINGS:
        return "embd-";
    case ENGINE_RERANK:
    case ENGINE_SCORE:
        return "score-";
    default:
        return "cmpl-";
    }
}
