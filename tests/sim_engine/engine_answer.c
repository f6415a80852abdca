/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/engine_answer.h"

#include <inttypes.h>

#include "tests/sim_engine/json_text.h"

/* Anthropic's form knows neither param nor code. */
static void put_anthropic_error(struct buf *buf, const struct engine_fault *fault)
{
    text_putf(buf, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", fault->type);
    json_put_string(buf, slice_of_string(fault->message));
    text_put(buf, SLICE("}}"));
}

void answer_put_error(struct buf *buf, const struct engine_fault *fault, bool is_anthropic)
{
    if (is_anthropic && !fault->by_schema) {
        put_anthropic_error(buf, fault);
        return;
    }
    text_put(buf, SLICE("{\"error\":{\"message\":"));
    json_put_string(buf, slice_of_string(fault->message));
    text_putf(buf, ",\"type\":\"%s\",\"param\":", fault->type);
    json_put_string_or_null(buf, fault->param[0] != '\0' ? fault->param : NULL);
    text_putf(buf, ",\"code\":%d}}", fault->status);
}

static void put_model(struct buf *buf, const struct engine_model *model, struct slice name,
                      uint64_t created_s)
{
    bool is_lora = !slice_eq(name, model->name);

    text_put(buf, SLICE("{\"id\":"));
    json_put_string(buf, name);
    text_putf(buf, ",\"object\":\"model\",\"created\":%" PRIu64 ",\"owned_by\":\"vllm\",\"root\":",
              created_s);
    json_put_string(buf, name);
    text_put(buf, SLICE(",\"parent\":"));
    if (is_lora)
        json_put_string(buf, model->name);
    else
        text_put(buf, SLICE("null"));
    text_putf(buf,
              ",\"max_model_len\":%zu,\"permission\":[{\"id\":\"modelperm-0000000000000000\","
              "\"object\":\"model_permission\",\"created\":%" PRIu64
              ",\"allow_create_engine\":false,\"allow_sampling\":true,\"allow_logprobs\":true,"
              "\"allow_search_indices\":false,\"allow_view\":true,\"allow_fine_tuning\":false,"
              "\"organization\":\"*\",\"group\":null,\"is_blocking\":false}]}",
              model->context_tokens_max, created_s);
}

void answer_put_models(struct buf *buf, const struct engine_model *model, uint64_t created_s)
{
    text_put(buf, SLICE("{\"object\":\"list\",\"data\":["));
    put_model(buf, model, model->name, created_s);
    for (size_t i = 0; i < model->lora_count; i++) {
        text_put(buf, SLICE(","));
        put_model(buf, model, model->loras[i], created_s);
    }
    text_put(buf, SLICE("]}"));
}

void answer_put_tokens(struct buf *buf, const struct engine_model *model,
                       const struct token_list *ids)
{
    text_putf(buf, "{\"count\":%zu,\"max_model_len\":%zu,\"tokens\":", ids->count,
              model->context_tokens_max);
    json_put_ids(buf, ids->ids, ids->count);
    text_put(buf, SLICE(",\"token_strs\":null}"));
}

/* Ids are digests of text here, so any text will do: a word for each. */
void answer_put_detokenized(struct buf *buf, const struct token_list *ids)
{
    text_put(buf, SLICE("{\"prompt\":\""));
    for (size_t i = 0; i < ids->count; i++)
        text_putf(buf, "%st%" PRIu32, i > 0 ? " " : "", ids->ids[i]);
    text_put(buf, SLICE("\"}"));
}

void answer_put_count(struct buf *buf, const struct token_list *ids)
{
    text_putf(buf, "{\"input_tokens\":%zu,\"context_management\":{\"original_input_tokens\":%zu}}",
              ids->count, ids->count);
}
